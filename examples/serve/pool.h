/* Threads of this server's own, lent to the library as headway_engine_config.parallel_for. */
#ifndef SERVE_POOL_H
#define SERVE_POOL_H

struct pool;

/* `threads` in all, the calling one included: threads - 1 are started. NULL: out of memory or
 * threads. */
struct pool *pool_create(int threads);

/* NULL is allowed. No pool_run() is going on. */
void pool_destroy(struct pool *pool);

/* A headway_parallel_for_fn; context is the pool. */
void pool_run(void *context, int count, void (*body)(void *task, int index), void *task);

#endif
