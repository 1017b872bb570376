/* A host for the tests: its thread pool, its floating-point modes, and one of every call that
 * computes. */
#ifndef HEADWAY_GUEST_H
#define HEADWAY_GUEST_H

#include <stdint.h>

#include "headway/headway.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* A pool of a host's own. Callers help, so that a task may use the pool itself. */
struct pool;
struct pool *pool_make(int threads); /* of 64 KB of stack each, but with sanitizers */
void pool_free(struct pool *pool);
/* In a forked child, of a parent none of whose threads was in pool_for: starts its threads again. */
void pool_revive(struct pool *pool);
/* A headway_parallel_for_fn: context is the pool. */
void pool_for(void *pool, int count, void (*body)(void *task, int index), void *task);
/* Sets floating-point modes on all threads of the pool that are its own. */
void pool_mode(struct pool *pool, int mode);
/* Since the last time: how often pool_for was called, on how many threads of the pool's own bodies
 * ran, and how many bodies found or left another mode than the pool's or, on the caller, than the
 * call's. */
struct pool_counts {
    int calls, workers, moved;
};
struct pool_counts pool_counts(struct pool *pool);

/* Modes are numbers below MODES: four ways to round, then subnormals as zeros (flushed, read as
 * zeros, both), then all of it. 0 is the usual one. */
enum { MODES = 8 };
void mode_set(int mode);
/* The control bits of this thread, without flags and masks. */
uint64_t mode_bits(void);

/* Inputs and weights of the calls, made once. */
void everything_begin(void);
void everything_end(void);
/* Creates layers and caches on the engine and uses them: attention of many options, slopes, the
 * layer, and both over caches of several types, in chunks, token by token. The results into `out`;
 * "" or the first thing that went wrong, which lasts. Uses little stack. Any number of threads. */
enum { EVERYTHING = 64 * 1024 };
const char *everything(const headway_engine *engine, float *out);

#endif
