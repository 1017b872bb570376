/* Threads. The only door to OpenMP. */
#ifndef HEADWAY_PARALLEL_H
#define HEADWAY_PARALLEL_H

#include <stdint.h>

#include "system/float_mode.h"

/* One task; worker is 0 .. threads-1 and no two tasks run with the same worker at a time. */
typedef void headway_task_fn(void *context, int64_t task, int worker);

/* An upper bound on what a caller may ask for; workspaces are cut for every thread. */
#define HEADWAY_MAX_THREADS 1024

/* Threads to use when the caller asks for `asked` (0: what OpenMP's settings, the affinity mask and
 * the cgroup's quota allow). 1 .. HEADWAY_MAX_THREADS, and 1 without OpenMP and in a process that
 * was forked and has not called exec: OpenMP's threads do not survive a fork, and whether the
 * parent had any can't be seen. */
int headway_threads_allowed(int asked);

/* The same of the caller's own threads: 0 is what affinity and quota allow, the rest is theirs. */
int headway_threads_of_caller(int asked);

/* The process's number, never 0: to tell a forked child from the process that made an engine. A
 * system call: not for the way of small calls. */
int headway_process(void);

/* CPUs that a cgroup's bandwidth limit amounts to, rounded up: text is "QUOTA PERIOD" or "QUOTA"
 * with the usual period of 100000, as in cpu.max and cpu.cfs_quota_us. 0: no limit ("max", "-1") or
 * not understood. Pure. */
int headway_quota_cpus(const char *text);

/* Whose threads: parallel_for's (see the public header), or OpenMP's where that is NULL. */
struct headway_team {
    int threads;
    void (*parallel_for)(void *context, int count, void (*body)(void *task, int index), void *task);
    void *context;
    int process;                      /* that OpenMP's threads belong to; 0: this one */
    struct headway_float_mode before; /* of the call: others' code runs under it while tasks do */
};

/* The threads that headway_parallel() would use at most when called here: team->threads, but 1 where
 * it is serial. */
int headway_team_threads(const struct headway_team *team);

/* Runs body for every task in 0 .. tasks-1 on at most `threads` workers of the team, threads <=
 * team->threads, handed out in order, and returns when all are done. Every worker computes under the
 * modes of headway_float_enter(), which the caller has called. Serial (worker 0) for one task or
 * thread, and on OpenMP's threads inside another parallel region, in a forked child or without
 * OpenMP; the caller's threads may do the same. Calls whose teams are of one size allocate nothing
 * after the first. Leaves OpenMP's settings and errno alone. */
void headway_parallel(const struct headway_team *team, int threads, int64_t tasks,
                      headway_task_fn *body, void *context);

#endif
