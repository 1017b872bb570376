/* What the system's files say: the cgroup's quota in an engine's threads, huge pages under large
 * blocks. */
#define _GNU_SOURCE
#include "check_cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "guest.h"

/* ---- the cgroup's quota ---------------------------------------------------------------------- */

/* The library's files below this folder, while it is not empty. */
static char root[64];

#ifndef SANITIZED
#pragma GCC visibility push(default)
int open(const char *path, int flags, ...)
{
    char there[256];
    va_list arguments;
    va_start(arguments, flags);
    const int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
    va_end(arguments);
    if (*root && (strcmp(path, "/proc/self/cgroup") == 0 || strncmp(path, "/sys/", 5) == 0)) {
        snprintf(there, sizeof there, "%s%s", root, path);
        path = there;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
#pragma GCC visibility pop
#endif

/* Makes the file and the folders above it. */
static void put(const char *name, const char *text)
{
    char path[256];
    const int base = snprintf(path, sizeof path, "%s", root);
    snprintf(path + base, sizeof path - (size_t)base, "%s", name);
    for (char *at = path + base + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        CHECK(mkdir(path, 0700) == 0 || errno == EEXIST, "no folder %s", path);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0, "no file %s", path);
    if (file)
        fclose(file);
}

static void run_bodies(void *context, int count, void (*body)(void *task, int index), void *task)
{
    (void)context;
    for (int i = 0; i < count; i++)
        body(task, i);
}

/* The threads of an engine that has them by default: OpenMP's, or the caller's. */
static int default_threads(int of_caller)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = NULL;
    config.parallel_for = of_caller ? run_bodies : NULL;
    if (headway_engine_create(&config, &engine) != HEADWAY_OK)
        return -1;
    const int threads = headway_engine_threads(engine);
    headway_engine_destroy(engine);
    return threads;
}

#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/cpu"
#define ONE "100000 100000\n"
#define MANY "6400000 100000\n"

/* One CPU, or all: a quota of several says nothing on a machine of few. How text becomes a number is
 * tested by itself. */
static const struct {
    const char *name, *groups;
    const char *files[8]; /* names and texts in turn */
    int limited;
} systems[] = {
    {"no quota", "0::/a\n", {V2 "/a/cpu.max", "max 100000\n"}, 0},
    {"no files", "0::/a\n", {NULL}, 0},
    {"version 2", "0::/a\n", {V2 "/a/cpu.max", ONE}, 1},
    {"version 2, the mount's own", "0::/\n", {V2 "/cpu.max", ONE}, 1},
    {"version 2, of a group above",
     "0::/a/b/c\n",
     {V2 "/a/b/c/cpu.max", MANY, V2 "/a/b/cpu.max", "max 100000\n", V2 "/a/cpu.max", ONE},
     1},
    {"version 2, less than the group above",
     "0::/a/b\n",
     {V2 "/a/b/cpu.max", ONE, V2 "/a/cpu.max", MANY},
     1},
    {"version 2, a path of the host's", "0::/host/pod\n", {V2 "/cpu.max", ONE}, 1},
    {"version 2, of another group", "0::/a\n", {V2 "/b/cpu.max", ONE, V2 "/a/cpu.max", MANY}, 0},
    {"version 1", "4:cpuset:/x\n3:cpu,cpuacct:/a\n", {V1 "/a/cpu.cfs_quota_us", "50000\n"}, 1},
    {"version 1, with its period",
     "3:cpuacct,cpu:/a\n",
     {V1 "/a/cpu.cfs_quota_us", "900000\n", V1 "/a/cpu.cfs_period_us", "900000\n"},
     1},
    {"version 1, of a group above",
     "3:cpu:/a/b\n",
     {V1 "/a/b/cpu.cfs_quota_us", "-1\n", V1 "/cpu.cfs_quota_us", "100000\n"},
     1},
    {"version 1, of another controller",
     "3:cpuset,cpuacct:/a\n",
     {V1 "/a/cpu.cfs_quota_us", "100000\n"},
     0},
    {"both versions, the lesser",
     "3:cpu:/a\n0::/b\n",
     {V1 "/a/cpu.cfs_quota_us", "6400000\n", V2 "/b/cpu.max", ONE},
     1},
};

static void check_limits(void)
{
    static const char *const whose[] = {"OpenMP's", "the caller's"};
#ifdef SANITIZED
    check_skip("the cgroup's quota", "a sanitizer has an open() of its own");
    return;
#endif
    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++) {
        char folder[sizeof root] = "/tmp/headway-check-XXXXXX", command[100];
        if (!check_case("cgroup: %s", systems[i].name))
            continue;
        CHECK(mkdtemp(folder), "no folder");
        memcpy(root, folder, sizeof root);
        for (int c = 0; c < 2; c++) {
            put("/proc/self/cgroup", "0::/\n");
            const int all = default_threads(c);
            put("/proc/self/cgroup", systems[i].groups);
            for (int f = 0; f < 8 && systems[i].files[f]; f += 2)
                put(systems[i].files[f], systems[i].files[f + 1]);
            const int threads = default_threads(c);
            if (all == 1)
                check_skip(whose[c], "all that the system allows is one thread");
            CHECK(threads == (systems[i].limited ? 1 : all), "%d of %s threads, %d without quotas",
                  threads, whose[c], all);
            /* No limit again, for the other one. */
            for (int f = 0; f < 8 && systems[i].files[f]; f += 2)
                put(systems[i].files[f], "max\n");
        }
        *root = '\0';
        snprintf(command, sizeof command, "rm -r %s", folder);
        CHECK(system(command) == 0, "%s stays", folder);
    }
}

/* ---- huge pages ------------------------------------------------------------------------------ */

/* Whether the mapping that `memory` lies in was advised to have huge pages; -1: the system doesn't
 * tell. */
static int advised(const void *memory)
{
    char line[512];
    int inside = 0, found = -1;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = (uintptr_t)memory >= from && (uintptr_t)memory < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " hg") != NULL;
    }
    if (file)
        fclose(file);
    return found;
}

/* Whether advice shows, in a mapping of the test's own. */
static int advice_shows(void)
{
    const size_t bytes = (size_t)4 << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int shows = 0;
    if (memory == MAP_FAILED)
        return 0;
#ifdef MADV_HUGEPAGE
    shows =
        advised(memory) == 0 && madvise(memory, bytes, MADV_HUGEPAGE) == 0 && advised(memory) == 1;
#endif
    munmap(memory, bytes);
    return shows;
}

enum { WIDE = 1024, HEADS = 8, SIZE = 128, TOKENS = 1 << 11 };

static headway_mha *make_layer(headway_engine *engine)
{
    const int64_t square[2] = {WIDE, WIDE};
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    float *data = calloc((size_t)WIDE * WIDE, sizeof *data);
    const headway_tensor tensor = headway_tensor_dense(data, HEADWAY_F32, 2, square);
    headway_mha *layer = NULL;
    config.heads = HEADS;
    config.head_size = SIZE;
    weights.query = weights.key = weights.value = weights.out = &tensor;
    CHECK(headway_mha_create(engine, &config, &weights, &layer) == HEADWAY_OK, "no layer");
    free(data);
    return layer;
}

static headway_kv_cache *make_cache(headway_engine *engine)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    headway_kv_cache *cache = NULL;
    config.sequences = 1;
    config.kv_heads = HEADS;
    config.head_size = SIZE;
    config.capacity = TOKENS;
    CHECK(headway_kv_cache_create(engine, &config, &cache) == HEADWAY_OK, "no cache");
    return cache;
}

/* Both are the beginning of the one block that has all of them, of 16 MB here. */
static void check_huge_pages(void)
{
    headway_engine *engine = NULL;
    if (!check_case("memory: weights and caches of 8 MB and more in huge pages"))
        return;
    if (!advice_shows()) {
        check_skip("huge pages", "smaps does not tell of advice here");
        return;
    }
    CHECK(headway_engine_create(NULL, &engine) == HEADWAY_OK, "no engine");
    headway_mha *layer = make_layer(engine);
    headway_kv_cache *cache = make_cache(engine);
    CHECK(advised(layer) == 1, "the weights' mapping is not advised");
    CHECK(advised(cache) == 1, "the cache's mapping is not advised");
    headway_kv_cache_destroy(cache);
    headway_mha_destroy(layer);
    headway_engine_destroy(engine);
}

void check_cpu_system(void)
{
    check_limits();
    check_huge_pages();
}
