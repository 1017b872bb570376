/* What the server counts, as Prometheus' text format 0.0.4. Everything here may be called from any
 * thread. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <headway/headway.h>
#include <stddef.h>
#include <stdint.h>

struct metrics;

struct metrics *metrics_create(void);
void metrics_destroy(struct metrics *metrics);

/* A request that was answered: status code, and seconds from its headers to its end. */
void metrics_request(struct metrics *metrics, int code, double seconds);

/* A request or connection that ended without an answer, cut off by us or by the client. */
void metrics_broken(struct metrics *metrics, int cut_off);

/* What one call of the layer did. */
struct metrics_work {
    int64_t prefill, decode, sequences; /* tokens, tokens, and whose */
};
void metrics_step(struct metrics *metrics, const struct metrics_work *work, double seconds);

/* Bytes that the library took, or gave back when negative. */
void metrics_memory(struct metrics *metrics, int64_t bytes);

/* A headway_trace_fn; context is the metrics. */
void metrics_trace(void *context, const headway_trace *trace);

/* What is true now. */
struct metrics_state {
    int64_t pages_used, pages_free, slots_used, slots_free, queued, running, sessions, body_bytes;
};

/* The text, to be freed; NULL: out of memory. */
char *metrics_text(struct metrics *metrics, const struct metrics_state *state, size_t *size);

#endif
