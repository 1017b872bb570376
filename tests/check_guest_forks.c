/* A process that forks, before and after threads ran. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check_guest.h"
#include "cpu/kernels.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { THREADS = 2 };

struct engines {
    headway_engine *openmp, *pooled;
    struct pool *pool;
    const struct headway_row *row;
};

static int same(const headway_engine *engine)
{
    float *out = malloc(EVERYTHING * sizeof *out);
    const char *wrong = out ? differs(engine, out) : "no memory";
    free(out);
    return !*wrong;
}

static int child_status(pid_t child)
{
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 255;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* What is not as promised in a child: a bit each. */
static int in_child(const struct engines *e, int generations)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *own = NULL;
    int broken = 0;
    alarm(30);
    broken |= headway_engine_threads(e->openmp) == 1 ? 0 : 1;
    broken |= same(e->openmp) ? 0 : 2;
    config.isa = e->row->name;
    config.threads = 2 * THREADS;
    if (headway_engine_create(&config, &own) != HEADWAY_OK)
        return broken | 4;
    broken |= headway_engine_threads(own) == 1 && same(own) ? 0 : 8;
    headway_engine_destroy(own);
    /* The pool is the host's to mend. */
    broken |= headway_engine_threads(e->pooled) == THREADS ? 0 : 16;
#ifndef NO_THREADS_IN_CHILD
    pool_revive(e->pool);
    broken |= same(e->pooled) && pool_counts(e->pool).calls > 0 ? 0 : 32;
#endif
    if (generations > 1) {
        const pid_t child = fork();
        if (child == 0)
            _exit(in_child(e, generations - 1));
        broken |= child_status(child);
    }
    return broken;
}

static void fork_once(const struct engines *e, const char *when)
{
    const pid_t child = fork();
    if (child == 0)
        _exit(in_child(e, 2));
    const int status = child_status(child);
    CHECK(status == 0, "a child of a process %s: 0x%x", when, (unsigned)status);
}

#ifndef SANITIZED
static atomic_int stop;

static void *keep_using(void *given)
{
    const struct engines *e = given;
    intptr_t good = 1;
    while (!atomic_load(&stop))
        good &= same(e->openmp);
    return (void *)good;
}
#endif

void check_guest_forks(const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    struct engines e = {.pool = pool_make(THREADS), .row = row};
    config.threads = THREADS;
    e.openmp = guest_make(config, row);
    config.parallel_for = pool_for;
    config.parallel_context = e.pool;
    e.pooled = guest_make(config, row);
#ifdef NO_THREADS_IN_CHILD
    check_skip("a pool in a child",
               "qemu-user and ThreadSanitizer end a child that starts threads");
#endif
    if (check_case("%s: a process that forks", row->name)) {
        fork_once(&e, "whose engines have not run");
        expect_same(e.openmp, "OpenMP");
        expect_same(e.pooled, "a pool");
        fork_once(&e, "whose engines have run");
#ifdef _OPENMP
        const int own = omp_get_max_threads();
        for (int threads = 1; threads <= 4; threads *= 2) {
            omp_set_num_threads(threads);
            fork_once(&e, "whose OpenMP has other threads");
        }
        omp_set_num_threads(own);
#endif
        expect_same(e.openmp, "OpenMP behind forks");
        expect_same(e.pooled, "a pool behind forks");
    }
#ifdef SANITIZED
    check_skip("forks while another thread computes", "a sanitizer's allocator may be locked then");
#else
    if (check_case("%s: a process that forks while another thread computes", row->name)) {
        pthread_t thread;
        void *good = NULL;
        atomic_store(&stop, 0);
        if (pthread_create(&thread, NULL, keep_using, &e) != 0)
            abort();
        for (int i = 0; i < 3; i++)
            fork_once(&e, "that computes");
        atomic_store(&stop, 1);
        pthread_join(thread, &good);
        CHECK(good != NULL, "the other thread got other bits");
    }
#endif
    headway_engine_destroy(e.openmp);
    headway_engine_destroy(e.pooled);
    pool_free(e.pool);
}
