#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

/* A call of pool_run(), which lives on its caller's stack. */
struct work {
    void (*body)(void *task, int index);
    void *task;
    int count, next, unfinished;
    pthread_cond_t finished;
    struct work *later;
};

struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct work *first; /* works with indices that nobody has taken */
    int stopping, started;
    pthread_t threads[];
};

/* Takes one index of a work and runs it; the mutex is held before and after. */
static void run_one(struct pool *pool, struct work *work)
{
    int index = work->next++;
    if (work->next == work->count) {
        struct work **at = &pool->first;
        while (*at != work)
            at = &(*at)->later;
        *at = work->later;
    }
    pthread_mutex_unlock(&pool->mutex);
    work->body(work->task, index);
    pthread_mutex_lock(&pool->mutex);
    if (--work->unfinished == 0)
        pthread_cond_signal(&work->finished);
}

static void *worker(void *context)
{
    struct pool *pool = context;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stopping) {
        if (pool->first)
            run_one(pool, pool->first);
        else
            pthread_cond_wait(&pool->wake, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

struct pool *pool_create(int threads)
{
    struct pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof(pthread_t));
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    while (pool->started < threads - 1) {
        if (pthread_create(&pool->threads[pool->started], NULL, worker, pool) != 0) {
            pool_destroy(pool);
            return NULL;
        }
        pool->started++;
    }
    return pool;
}

void pool_destroy(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void pool_run(void *context, int count, void (*body)(void *task, int index), void *task)
{
    struct pool *pool = context;
    struct work work = {body, task, count, 0, count, PTHREAD_COND_INITIALIZER, NULL};
    if (count < 1)
        return;
    pthread_mutex_lock(&pool->mutex);
    work.later = pool->first;
    pool->first = &work;
    if (count > 1)
        pthread_cond_broadcast(&pool->wake);
    while (work.next < work.count)
        run_one(pool, &work);
    while (work.unfinished)
        pthread_cond_wait(&work.finished, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    pthread_cond_destroy(&work.finished);
}
