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

/* Any thread, up to workers_stop(). */
void workers_post(struct workers *workers, struct job *job, void (*run)(struct job *job));

/* Runs what was posted, what those jobs post too, and ends. NULL is allowed. */
void workers_stop(struct workers *workers);

#endif
