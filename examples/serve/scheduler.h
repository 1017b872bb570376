/* Continuous batching: sequences of concurrent requests share one paged cache and go through the
 * layer together, each step one call of headway_mha_forward() on what every running sequence has
 * next: a chunk of its prompt, or one token. */
#ifndef SERVE_SCHEDULER_H
#define SERVE_SCHEDULER_H

#include "metrics.h"
#include "weights.h"

#include <stdint.h>

struct scheduler;

struct scheduler_config {
    int64_t capacity; /* tokens of a sequence */
    int64_t slots;    /* sequences in the cache at a time */
    int64_t page_size, pages;
    int64_t step_tokens;    /* of one call, at most; at least slots */
    int64_t chunk;          /* of one sequence's prompt in a call */
    double queue_seconds;   /* that one waits, at most */
    double session_seconds; /* that an idle session is kept */
};

enum { SEQUENCE_ERROR = 200 };

/* What a request asks for, the caller's until `finished` was called and while nothing is
 * submitted. */
struct sequence {
    int64_t tokens, steps;
    float *values;       /* (tokens + steps, E): states in, states out */
    const char *session; /* "": none */
    int64_t past;        /* tokens of the session that stay, before these */
    int last;
    void (*finished)(struct sequence *sequence); /* on the scheduler's thread */
    void *context;
    int status; /* HTTP's: 200, or a refusal's with its reason in error */
    char error[SEQUENCE_ERROR];
    /* The scheduler's. */
    int64_t done;
    int slot;
    double since;
    struct sequence *next;
};

/* NULL with a sentence in error. Model and metrics must outlive it. */
struct scheduler *scheduler_create(const headway_engine *engine, const struct model *model,
                                   const struct scheduler_config *config, struct metrics *metrics,
                                   char error[MODEL_ERROR]);

/* Gives up all that is waiting or running, with status 503; `finished` is called for each before
 * this returns. What is submitted later is refused. */
void scheduler_stop(struct scheduler *scheduler);

/* After scheduler_stop(). NULL is allowed. */
void scheduler_destroy(struct scheduler *scheduler);

/* 0: `finished` will be called, perhaps before this returns. -1: it was stopped. */
int scheduler_submit(struct scheduler *scheduler, struct sequence *sequence);

void scheduler_state(struct scheduler *scheduler, struct metrics_state *state);

#endif
