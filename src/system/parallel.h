/* Threads. The only door to OpenMP. */
#ifndef HEADWAY_PARALLEL_H
#define HEADWAY_PARALLEL_H

#include <stdint.h>

/* One task; worker is 0 .. threads-1 and no two tasks run with the same worker at a time. */
typedef void headway_task_fn(void *context, int64_t task, int worker);

/* Threads to use when the caller asks for `asked` (0: what OpenMP's settings, the affinity mask and
 * the cgroup's quota allow). At least 1. */
int headway_threads_allowed(int asked);

/* Runs body for every task in 0 .. tasks-1, handed out in order to at most `threads` workers, and
 * returns when all are done. Serial (worker 0) inside another parallel region, in a child forked after
 * the library was used, without OpenMP, and for one task or thread. */
void headway_parallel(int threads, int64_t tasks, headway_task_fn *body, void *context);

#endif
