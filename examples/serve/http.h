/* HTTP/1.1 on a loopback port:
 *   POST /v1/states   a sequence of hidden states through the layer (json.h)
 *   GET  /metrics     Prometheus' text
 *   GET  /healthz     200 while requests are taken
 * and HEAD wherever GET is.
 */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include "metrics.h"
#include "scheduler.h"

#include <stddef.h>
#include <stdint.h>

struct http;

struct http_config {
    int port;    /* 0: a free one */
    int workers; /* threads that read bodies and write answers */
    int connections;
    int requests;   /* between their body and their answer at a time; more are refused with 503 */
    size_t body;    /* bytes of a request's, at most */
    size_t bodies;  /* of all that are held at a time */
    int64_t tokens; /* of a request */
    double seconds; /* that a client may take for a request or for an answer */
};

/* NULL: the port can't be had, or out of memory. All that is given must outlive it. */
struct http *http_start(const struct http_config *config, struct scheduler *scheduler,
                        const struct model *model, struct metrics *metrics);

int http_port(const struct http *http);

/* To be called a few times a second: cuts off clients that are too slow. */
void http_tick(struct http *http);

/* Takes no more connections, and of those there are no more requests. */
void http_refuse(struct http *http);

/* Requests that have not got their whole answer. */
int http_pending(struct http *http);

/* After scheduler_stop(). */
void http_stop(struct http *http);

#endif
