/* Many host threads at once, inside parallel regions and pools, on small stacks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check_guest.h"
#include "cpu/kernels.h"
#include "system/parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { HOSTS = 4, THREADS = 3 };

/* What calls of several threads found. */
struct host {
    const headway_engine *engine;
    pthread_t thread;
    const char *wrong;
};

static void *use(void *given)
{
    struct host *host = given;
    float *out = malloc(EVERYTHING * sizeof *out);
    host->wrong = out ? differs(host->engine, out) : "no memory";
    free(out);
    return NULL;
}

static void start(struct host *host, const headway_engine *engine, size_t stack)
{
    pthread_attr_t attributes;
    host->engine = engine;
    pthread_attr_init(&attributes);
    /* 64 KB are fewer than some systems give at all. */
    const long least = sysconf(_SC_THREAD_STACK_MIN);
    if (stack && least > 0 && stack < (size_t)least)
        stack = (size_t)least;
    if (stack)
        CHECK(pthread_attr_setstacksize(&attributes, stack) == 0, "no stack of %zu", stack);
    if (pthread_create(&host->thread, &attributes, use, host) != 0)
        abort();
    pthread_attr_destroy(&attributes);
}

static void finish(struct host *host, const char *where)
{
    pthread_join(host->thread, NULL);
    CHECK(!*host->wrong, "%s: %s", where, host->wrong);
}

static void all_at_once(headway_engine *const *engines, const char *const *names)
{
    struct host hosts[2 * HOSTS];
    for (int i = 0; i < 2 * HOSTS; i++)
        start(&hosts[i], engines[i % 2], 0);
    for (int i = 0; i < 2 * HOSTS; i++)
        finish(&hosts[i], names[i % 2]);
}

#ifdef _OPENMP
struct settings {
    int max_threads, dynamic, levels, limit, kind, chunk;
};

static struct settings settings(void)
{
    struct settings s;
    omp_sched_t kind;
    memset(&s, 0, sizeof s);
    omp_get_schedule(&kind, &s.chunk);
    s.kind = (int)kind;
    s.max_threads = omp_get_max_threads();
    s.dynamic = omp_get_dynamic();
    s.levels = omp_get_max_active_levels();
    s.limit = omp_get_thread_limit();
    return s;
}

static void at_first_level(void *context, int64_t task, int worker)
{
    int *deeper = context;
    (void)task;
    *deeper += worker != 0 || omp_get_level() != 1;
}

static void in_region(const headway_engine *openmp, const headway_engine *pooled)
{
    const char *wrong[HOSTS] = {"", "", "", ""};
    const int levels = omp_get_max_active_levels(), own = omp_get_max_threads();
    omp_set_max_active_levels(3);
    omp_set_num_threads(2);
    const struct settings before = settings();
    int changed = 0;
    {
#pragma omp parallel num_threads(HOSTS)
        {
            const int self = omp_get_thread_num();
            const struct settings inside = settings();
            float *out = malloc(EVERYTHING * sizeof *out);
            wrong[self] = differs(openmp, out);
            if (!*wrong[self])
                wrong[self] = differs(pooled, out);
            free(out);
            const struct headway_team team = {.threads = THREADS};
            int deeper = 0;
            headway_parallel(&team, THREADS, 20, at_first_level, &deeper);
            const struct settings after = settings();
#pragma omp critical
            changed += memcmp(&inside, &after, sizeof after) != 0 || deeper;
        }
    }
    for (int i = 0; i < HOSTS; i++)
        CHECK(!*wrong[i], "thread %d of a region: %s", i, wrong[i]);
    expect_same(openmp, "behind the region");
    const struct settings after = settings();
    CHECK(!changed && memcmp(&before, &after, sizeof after) == 0,
          "OpenMP's settings changed, or a region was nested");
    omp_set_max_active_levels(levels);
    omp_set_num_threads(own);
}

static void openmp_limits(const headway_engine *openmp, const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    const int own = omp_get_max_threads();
    CHECK(headway_engine_threads(openmp) ==
              (omp_get_thread_limit() < THREADS ? omp_get_thread_limit() : THREADS),
          "%d threads, OpenMP's limit is %d", headway_engine_threads(openmp),
          omp_get_thread_limit());
    omp_set_num_threads(1);
    headway_engine *one = guest_make(config, row);
    CHECK(headway_engine_threads(one) == 1, "%d threads, OpenMP is set to one",
          headway_engine_threads(one));
    headway_engine_destroy(one);
    omp_set_num_threads(own);
}
#endif

/* By default a pool's engine has what affinity allows, whatever OpenMP's settings are. */
static void pool_limits(const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    cpu_set_t before, one;
    int cpu = 0;
    config.parallel_for = pool_for;
    if (sched_getaffinity(0, sizeof before, &before) != 0) {
        check_skip("affinity", "the mask can't be read");
        return;
    }
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
#ifdef _OPENMP
    const int own = omp_get_max_threads();
    omp_set_num_threads(1);
#endif
    headway_engine *all = guest_make(config, row);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0, "affinity can't be set");
    headway_engine *alone = guest_make(config, row);
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0, "affinity can't be restored");
#ifdef _OPENMP
    omp_set_num_threads(own);
    headway_engine_config plain = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *openmp = guest_make(plain, row);
    CHECK(getenv("OMP_NUM_THREADS") || getenv("OMP_THREAD_LIMIT") ||
              headway_engine_threads(all) == headway_engine_threads(openmp),
          "%d threads, OpenMP's engine has %d", headway_engine_threads(all),
          headway_engine_threads(openmp));
    headway_engine_destroy(openmp);
#endif
    CHECK(headway_engine_threads(all) >= 1 && headway_engine_threads(all) <= CPU_COUNT(&before),
          "%d threads on %d CPUs", headway_engine_threads(all), CPU_COUNT(&before));
    CHECK(headway_engine_threads(alone) == 1, "%d threads on one CPU",
          headway_engine_threads(alone));
    headway_engine_destroy(all);
    headway_engine_destroy(alone);
}

/* Tasks of the pool that call the library, which calls the pool. */
static void use_in_pool(void *task, int index)
{
    struct host *host = task;
    use(&host[index]);
}

static void inside_pool(struct pool *pool, const headway_engine *pooled,
                        const headway_engine *openmp)
{
    struct host hosts[HOSTS];
    for (int i = 0; i < HOSTS; i++)
        hosts[i].engine = i % 2 ? openmp : pooled;
    pool_for(pool, HOSTS, use_in_pool, hosts);
    for (int i = 0; i < HOSTS; i++)
        CHECK(!*hosts[i].wrong, "task %d of the pool: %s", i, hosts[i].wrong);
}

/* The pool is asked for no more than the engine's threads, and for several. */
static int largest, smallest;

static void measure(void *context, int count, void (*body)(void *task, int index), void *task)
{
    largest = count > largest ? count : largest;
    smallest = smallest == 0 || count < smallest ? count : smallest;
    pool_for(context, count, body, task);
}

static void count_bodies(struct pool *pool, const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.threads = THREADS;
    config.parallel_for = measure;
    config.parallel_context = pool;
    headway_engine *engine = guest_make(config, row);
    largest = smallest = 0;
    pool_counts(pool);
    expect_same(engine, "a pool that counts");
    const struct pool_counts counts = pool_counts(pool);
    CHECK(largest == THREADS && smallest >= 2, "%d to %d indices, expected 2 to %d", smallest,
          largest, THREADS);
    CHECK(counts.calls > 0, "the pool was not called");
    headway_engine_destroy(engine);
}

static void on_small_stacks(const headway_engine *serial, headway_engine *const *engines)
{
    struct host host;
#ifdef SANITIZED
    (void)serial;
    (void)engines;
    (void)host;
    check_skip("small stacks", "a sanitizer needs more");
#else
    start(&host, serial, 64 * 1024);
    finish(&host, "one thread on 64 KB of stack");
    for (int i = 0; i < 2; i++) {
        start(&host, engines[i], 64 * 1024);
        finish(&host, "a caller on 64 KB of stack");
    }
#endif
}

void check_guest_threads(const struct headway_row *row)
{
    static const char *const names[] = {"OpenMP", "a pool"};
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    struct pool *pool = pool_make(2);
    config.threads = 1;
    headway_engine *serial = guest_make(config, row);
    config.threads = THREADS;
    headway_engine *openmp = guest_make(config, row);
    config.parallel_for = pool_for;
    config.parallel_context = pool;
    headway_engine *pooled = guest_make(config, row);
    headway_engine *const engines[] = {openmp, pooled};
    if (check_case("%s: many host threads at once", row->name))
        all_at_once(engines, names);
    if (check_case("%s: a pool does what it is asked for", row->name))
        count_bodies(pool, row);
    if (check_case("%s: inside a pool's own tasks", row->name))
        inside_pool(pool, pooled, openmp);
    if (check_case("%s: a caller with a small stack", row->name))
        on_small_stacks(serial, engines);
    if (check_case("%s: threads of a pool by default", row->name))
        pool_limits(row);
#ifdef _OPENMP
    if (check_case("%s: inside OpenMP's parallel regions", row->name))
        in_region(openmp, pooled);
    if (check_case("%s: OpenMP's limits", row->name))
        openmp_limits(openmp, row);
#endif
    headway_engine_destroy(serial);
    headway_engine_destroy(openmp);
    headway_engine_destroy(pooled);
    pool_free(pool);
}
