#define _GNU_SOURCE
#include "guest.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "check.h"

/* ---- modes ------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
enum { FLUSH = 1 << 15, READ_AS_ZERO = 1 << 6, CONTROL = FLUSH | READ_AS_ZERO | 3 << 13 };

uint64_t mode_bits(void)
{
    return _mm_getcsr() & CONTROL;
}

static void set_bits(uint64_t bits)
{
    _mm_setcsr((_mm_getcsr() & ~(unsigned)CONTROL) | (unsigned)bits);
}
#else
/* One switch for both. */
enum { FLUSH = 1 << 24, READ_AS_ZERO = 1 << 24, CONTROL = FLUSH | 3 << 22 };

static uint64_t control(void)
{
    uint64_t value;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(value));
    return value;
}

uint64_t mode_bits(void)
{
    return control() & CONTROL;
}

static void set_bits(uint64_t bits)
{
    const uint64_t value = (control() & ~(uint64_t)CONTROL) | bits;
    __asm__ __volatile__("msr fpcr, %0" : : "r"(value));
}
#endif

void mode_set(int mode)
{
    static const int rounding[MODES] = {FE_TONEAREST, FE_UPWARD,    FE_DOWNWARD,  FE_TOWARDZERO,
                                        FE_TONEAREST, FE_TONEAREST, FE_TONEAREST, FE_UPWARD};
    static const int zeros[MODES] = {
        0, 0, 0, 0, FLUSH, READ_AS_ZERO, FLUSH | READ_AS_ZERO, FLUSH | READ_AS_ZERO};
    fesetround(rounding[mode]);
    set_bits((mode_bits() & ~(uint64_t)(FLUSH | READ_AS_ZERO)) | (uint64_t)zeros[mode]);
}

/* ---- the pool --------------------------------------------------------------------------------- */

struct job {
    void (*body)(void *task, int index);
    void *task;
    int count, next, done;
    struct job *after;
};

struct worker {
    pthread_t thread;
    struct pool *pool;
    int mode, busy; /* has the mode; has run a body since the counts were last asked for */
};

struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct job *jobs;
    int threads, mode, stop;
    struct pool_counts counts;
    struct worker workers[];
};

/* Runs one index of the job, the mutex held before and after. */
static void run_one(struct pool *pool, struct job *job)
{
    const int index = job->next++;
    if (job->next == job->count) {
        struct job **at = &pool->jobs;
        while (*at != job)
            at = &(*at)->after;
        *at = job->after;
    }
    pthread_mutex_unlock(&pool->mutex);
    const uint64_t before = mode_bits();
    job->body(job->task, index);
    const int moved = mode_bits() != before;
    pthread_mutex_lock(&pool->mutex);
    pool->counts.moved += moved;
    if (++job->done == job->count)
        pthread_cond_broadcast(&pool->changed);
}

static void *work(void *given)
{
    struct worker *worker = given;
    struct pool *pool = worker->pool;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop) {
        if (worker->mode != pool->mode) {
            mode_set(worker->mode = pool->mode);
            pthread_cond_broadcast(&pool->changed);
        } else if (pool->jobs) {
            worker->busy = 1;
            run_one(pool, pool->jobs);
        } else {
            pthread_cond_wait(&pool->changed, &pool->mutex);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void start_threads(struct pool *pool)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
#ifndef SANITIZED
    pthread_attr_setstacksize(&attributes, 64 * 1024);
#endif
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->changed, NULL);
    for (int i = 0; i < pool->threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool};
        if (pthread_create(&pool->workers[i].thread, &attributes, work, &pool->workers[i]) != 0)
            abort();
    }
    pthread_attr_destroy(&attributes);
}

struct pool *pool_make(int threads)
{
    struct pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof *pool->workers);
    if (!pool)
        abort();
    pool->threads = threads;
    start_threads(pool);
    return pool;
}

void pool_revive(struct pool *pool)
{
    start_threads(pool);
}

void pool_free(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->threads; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void pool_for(void *context, int count, void (*body)(void *task, int index), void *task)
{
    struct pool *pool = context;
    struct job job = {body, task, count, 0, 0, NULL};
    pthread_mutex_lock(&pool->mutex);
    pool->counts.calls++;
    job.after = pool->jobs;
    pool->jobs = &job;
    pthread_cond_broadcast(&pool->changed);
    while (job.next < job.count)
        run_one(pool, &job);
    while (job.done < job.count)
        pthread_cond_wait(&pool->changed, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

void pool_mode(struct pool *pool, int mode)
{
    pthread_mutex_lock(&pool->mutex);
    pool->mode = mode;
    pthread_cond_broadcast(&pool->changed);
    for (int i = 0; i < pool->threads; i++)
        while (pool->workers[i].mode != mode)
            pthread_cond_wait(&pool->changed, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

struct pool_counts pool_counts(struct pool *pool)
{
    static const struct pool_counts none;
    pthread_mutex_lock(&pool->mutex);
    struct pool_counts counts = pool->counts;
    for (int i = 0; i < pool->threads; i++) {
        counts.workers += pool->workers[i].busy;
        pool->workers[i].busy = 0;
    }
    pool->counts = none;
    pthread_mutex_unlock(&pool->mutex);
    return counts;
}
