/* Threads that run jobs one after the other, in the order in which they were posted. */
#ifndef SERVE_WORKERS_H
#define SERVE_WORKERS_H

struct workers;

/* The poster's memory until it is run. */
struct job {
    void (*run)(struct job *job);
    struct job *next;
};

/* NULL: out of memory or threads. */
struct workers *workers_create(int threads);

/* From any thread. -1: they were stopped, and it will not be run. */
int workers_post(struct workers *workers, struct job *job, void (*run)(struct job *job));

/* Returns when all that was posted has been run. */
void workers_stop(struct workers *workers);

/* After workers_stop(). NULL is allowed. */
void workers_destroy(struct workers *workers);

#endif
