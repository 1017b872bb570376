#include "workers.h"

#include <pthread.h>
#include <stdlib.h>

struct workers {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct job *first, **last;
    int stopping, started;
    pthread_t threads[];
};

static void *worker(void *context)
{
    struct workers *workers = context;
    pthread_mutex_lock(&workers->mutex);
    for (;;) {
        struct job *job = workers->first;
        if (job) {
            workers->first = job->next;
            if (!workers->first)
                workers->last = &workers->first;
            pthread_mutex_unlock(&workers->mutex);
            job->run(job);
            pthread_mutex_lock(&workers->mutex);
        } else if (workers->stopping) {
            break;
        } else {
            pthread_cond_wait(&workers->wake, &workers->mutex);
        }
    }
    pthread_mutex_unlock(&workers->mutex);
    return NULL;
}

struct workers *workers_create(int threads)
{
    struct workers *workers = calloc(1, sizeof *workers + (size_t)threads * sizeof(pthread_t));
    if (!workers)
        return NULL;
    pthread_mutex_init(&workers->mutex, NULL);
    pthread_cond_init(&workers->wake, NULL);
    workers->last = &workers->first;
    while (workers->started < threads) {
        if (pthread_create(&workers->threads[workers->started], NULL, worker, workers) != 0) {
            workers_stop(workers);
            workers_destroy(workers);
            return NULL;
        }
        workers->started++;
    }
    return workers;
}

int workers_post(struct workers *workers, struct job *job, void (*run)(struct job *job))
{
    job->run = run;
    job->next = NULL;
    pthread_mutex_lock(&workers->mutex);
    int stopping = workers->stopping;
    if (!stopping) {
        *workers->last = job;
        workers->last = &job->next;
        pthread_cond_signal(&workers->wake);
    }
    pthread_mutex_unlock(&workers->mutex);
    return stopping ? -1 : 0;
}

void workers_stop(struct workers *workers)
{
    pthread_mutex_lock(&workers->mutex);
    workers->stopping = 1;
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->mutex);
    for (int i = 0; i < workers->started; i++)
        pthread_join(workers->threads[i], NULL);
}

void workers_destroy(struct workers *workers)
{
    if (!workers)
        return;
    pthread_cond_destroy(&workers->wake);
    pthread_mutex_destroy(&workers->mutex);
    free(workers);
}
