/* Tiers from recorded registers, the choice of a row, the engine's configuration and error text,
 * the thread count, and running tasks: alone, nested and after fork. */
#define _GNU_SOURCE
#include "check_cpu.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/engine.h"
#include "check.h"
#include "cpu/tiers.h"
#include "system/memory.h"
#include "system/parallel.h"

#define AVX2 HEADWAY_TIER_AVX2
#define AVX512 (HEADWAY_TIER_AVX2 | HEADWAY_TIER_AVX512)
#define NEON HEADWAY_TIER_NEON

struct dump {
    const char *name;
    struct headway_cpu_registers registers; /* max leaf, 1:ECX, 7.0:EBX, XCR0, HWCAP */
    uint32_t tiers;
};

/* CPUID from the public InstLatx64 collection and google/cpu_features' tests, XCR0 from the
 * features the CPU has and Linux enables, HWCAP from /proc/cpuinfo's list of features. */
static const struct dump recorded[] = {
    {"Nehalem 106A5", {0xB, 0x0098E3BD, 0, 0, 0}, 0},
    {"Sandy Bridge 206A7", {0xD, 0x1FBAE3BF, 0, 0x7, 0}, 0},
    {"Haswell 40651", {0xD, 0x7FDAFBBF, 0x000027AB, 0x7, 0}, AVX2},
    {"Skylake-X 50654", {0x16, 0x7FFEFBFF, 0xD39FFFFB, 0x2FF, 0}, AVX512},
    {"Ice Lake 706E5", {0x1B, 0x7FFAFBBF, 0xF2BF27EF, 0x2E7, 0}, AVX512},
    {"Zen 3 A20F10", {0x10, 0x7ED8320B, 0x219C97A9, 0x207, 0}, AVX2},
    {"Zen 4 A10F11", {0x10, 0x7EF8320B, 0xF1BF97A9, 0x2E7, 0}, AVX512},
    {"Zen 4 guest", {0x1C, 0xFFFA3203, 0xF1BF07AB, 0xE7, 0}, AVX512},
    {"Zen 5 B40F40 guest", {0x10, 0xFED8320B, 0xF1BF97A9, 0xE7, 0}, AVX512},
    {"Neoverse N1", {0, 0, 0, 0, 0x10119FFF}, NEON},
    {"Cortex-A53 of Armv8.0", {0, 0, 0, 0, 0xFF}, NEON},
    {"AArch64 without Advanced SIMD", {0, 0, 0, 0, 0x10119FFD}, 0},
    {"HWCAP with SVE absent, as HWCAP2 alone would tell it", {0, 0, 0, 0, 0x3}, NEON},
    {"nothing known", {0, 0, 0, 0, 0}, 0},
};

/* Skylake-X with one thing changed. */
static const struct dump altered[] = {
    {"AVX-512 present, not enabled by the OS", {0x16, 0x7FFEFBFF, 0xD39FFFFB, 0x7, 0}, AVX2},
    {"opmask state missing", {0x16, 0x7FFEFBFF, 0xD39FFFFB, 0xC7, 0}, AVX2},
    {"ZMM_Hi256 state missing", {0x16, 0x7FFEFBFF, 0xD39FFFFB, 0xA7, 0}, AVX2},
    {"Hi16_ZMM state missing", {0x16, 0x7FFEFBFF, 0xD39FFFFB, 0x67, 0}, AVX2},
    {"AVX state missing", {0x16, 0x7FFEFBFF, 0xD39FFFFB, 0xE3, 0}, 0},
    {"SSE state missing", {0x16, 0x7FFEFBFF, 0xD39FFFFB, 0xE5, 0}, 0},
    {"no OSXSAVE", {0x16, 0x77FEFBFF, 0xD39FFFFB, 0xE7, 0}, 0},
    {"no AVX", {0x16, 0x6FFEFBFF, 0xD39FFFFB, 0xE7, 0}, 0},
    {"no FMA", {0x16, 0x7FFEEBFF, 0xD39FFFFB, 0xE7, 0}, 0},
    {"no F16C", {0x16, 0x5FFEFBFF, 0xD39FFFFB, 0xE7, 0}, 0},
    {"no AVX2", {0x16, 0x7FFEFBFF, 0xD39FFFDB, 0xE7, 0}, 0},
    {"no AVX-512 F", {0x16, 0x7FFEFBFF, 0xD39EFFFB, 0xE7, 0}, AVX2},
    {"no AVX-512 DQ", {0x16, 0x7FFEFBFF, 0xD39DFFFB, 0xE7, 0}, AVX2},
    {"no AVX-512 BW", {0x16, 0x7FFEFBFF, 0x939FFFFB, 0xE7, 0}, AVX2},
    {"no AVX-512 VL", {0x16, 0x7FFEFBFF, 0x539FFFFB, 0xE7, 0}, AVX2},
    {"AVX2 without FMA on Haswell", {0xD, 0x7FDAEBBF, 0x000027AB, 0x7, 0}, 0},
    {"XCR0 0x3 with AVX2", {0xD, 0x7FDAFBBF, 0x000027AB, 0x3, 0}, 0},
};

/* The best built row whose tiers are all among those given: what the list's order promises. */
static const struct headway_row *best_of(uint32_t tiers)
{
    const struct headway_row_entry *entry;

    for (int i = 0; (entry = headway_row_at(i)); i++)
        if (entry->row && (entry->row->tiers & ~tiers) == 0)
            return entry->row;
    return NULL;
}

static void check_dumps(const struct dump *dumps, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct dump *dump = &dumps[i];
        const struct headway_row *row = NULL;
        char reason[256] = "";
        headway_status status;
        uint32_t tiers;
        if (!check_case("dump: %s", dump->name))
            continue;
        tiers = headway_cpu_tiers(&dump->registers);
        CHECK(tiers == dump->tiers, "tiers 0x%x, expected 0x%x", tiers, dump->tiers);
        status = headway_row_choose(NULL, tiers, &row, reason, sizeof reason);
        CHECK(status == HEADWAY_OK && row == best_of(dump->tiers), "chose %s (%s)",
              row ? row->name : "no row", reason);
    }
}

static void check_max_leaf(void)
{
    for (uint32_t leaf = 0; leaf < 9; leaf++) {
        const struct headway_cpu_registers registers = {leaf, ~0u, ~0u, ~0ull, 0};
        const uint32_t tiers = headway_cpu_tiers(&registers);
        if (check_case("leaf 7 all ones, max leaf %u", (unsigned)leaf))
            CHECK(tiers == (leaf < 7 ? 0u : AVX512), "tiers 0x%x", tiers);
    }
}

static void check_words(void)
{
    if (!check_case("words for what is missing"))
        return;
    CHECK(!headway_tier_missing(0, 0) && !headway_tier_missing(AVX512, AVX512 | NEON),
          "nothing is");
    CHECK(strstr(headway_tier_missing(AVX512, 0), "AVX-512"), "AVX-512");
    CHECK(strstr(headway_tier_missing(AVX512, AVX2), "AVX-512"), "AVX-512 alone");
    CHECK(strstr(headway_tier_missing(AVX2, 0), "AVX2"), "AVX2");
    CHECK(strstr(headway_tier_missing(NEON, 0), "Advanced SIMD"), "NEON");
}

/* Every row by its name: with no tier, and with all. */
static void check_names(void)
{
    const struct headway_row_entry *entry;
    const struct headway_row *row;
    char reason[256];
    headway_status status;

    for (int i = 0; (entry = headway_row_at(i)); i++) {
        if (!check_case("row %s by name", entry->name))
            continue;
        row = NULL;
        status = headway_row_choose(entry->name, ~0u, &row, reason, sizeof reason);
        if (entry->row)
            CHECK(status == HEADWAY_OK && row == entry->row && strcmp(row->name, entry->name) == 0,
                  "status %d", status);
        else
            CHECK(status == HEADWAY_ERROR_NOT_BUILT && !row && strstr(reason, entry->name) &&
                      strstr(reason, entry->absent) && *entry->absent,
                  "%d: %s", status, reason);
        if (!entry->row || !entry->row->tiers)
            continue;
        row = NULL;
        status = headway_row_choose(entry->name, 0, &row, reason, sizeof reason);
        CHECK(status == HEADWAY_ERROR_CANNOT_RUN && !row && strstr(reason, entry->name) &&
                  strstr(reason, "needs"),
              "%d: %s", status, reason);
    }
    if (check_case("no row past the ends"))
        CHECK(!headway_row_at(-1) && !headway_row_at(INT_MAX), "there is");
    if (check_case("a row that does not exist")) {
        row = NULL;
        status = headway_row_choose("avx1024", ~0u, &row, reason, sizeof reason);
        CHECK(status == HEADWAY_ERROR_NOT_BUILT && !row && strstr(reason, "avx1024") &&
                  strstr(reason, "scalar"),
              "%d: %s", status, reason);
    }
}

/* ---- engine ---------------------------------------------------------------------------------- */

struct lines {
    int count;
    char last[512];
};

static void keep_line(void *context, const char *line)
{
    struct lines *lines = context;

    lines->count++;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

static void expect_refused(const headway_engine_config *config, headway_status expected,
                           const char *first, const char *second)
{
    headway_engine *const none = (headway_engine *)(void *)&expected;
    headway_engine *engine = none;
    headway_engine_config with_log = *config;
    struct lines lines = {0, ""};
    headway_status status;

    with_log.log = keep_line;
    with_log.log_context = &lines;
    status = headway_engine_create(&with_log, &engine);
    CHECK(status == expected, "status %s, expected %s", headway_status_text(status),
          headway_status_text(expected));
    CHECK(engine == none, "*engine was written");
    CHECK(lines.count == (first ? 1 : 0), "%d log lines", lines.count);
    CHECK(!first || (strstr(lines.last, first) && strstr(lines.last, second)), "log: %s",
          lines.last);
}

static void check_config(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = NULL;

    if (check_case("config: engine NULL"))
        CHECK(headway_engine_create(NULL, NULL) == HEADWAY_ERROR_ARGUMENT, "accepted");
    if (check_case("config: size")) {
        const size_t sizes[] = {0, 1, sizeof config - 1, sizeof config + 1, SIZE_MAX};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            config.size = sizes[i];
            expect_refused(&config, HEADWAY_ERROR_ARGUMENT, NULL, NULL);
        }
        config.size = sizeof config;
    }
    if (check_case("config: threads")) {
        config.threads = -1;
        expect_refused(&config, HEADWAY_ERROR_ARGUMENT, "threads", "-1");
        config.threads = INT_MIN;
        expect_refused(&config, HEADWAY_ERROR_ARGUMENT, "threads", "-2147483648");
        config.threads = HEADWAY_MAX_THREADS + 1;
        expect_refused(&config, HEADWAY_ERROR_ARGUMENT, "threads", "1025");
        config.threads = 0;
    }
    if (check_case("config: isa unknown")) {
        config.isa = "mmx";
        expect_refused(&config, HEADWAY_ERROR_NOT_BUILT, "mmx", "scalar");
        config.isa = "";
        expect_refused(&config, HEADWAY_ERROR_NOT_BUILT, "isa", "scalar");
        config.isa = "AVX2";
        expect_refused(&config, HEADWAY_ERROR_NOT_BUILT, "AVX2", "scalar");
        config.isa = NULL;
    }
    if (check_case("config: errno stays")) {
        errno = 12345;
        CHECK(headway_engine_create(NULL, &engine) == HEADWAY_OK, "defaults refused");
        CHECK(headway_engine_threads(engine) >= 1, "threads");
        headway_engine_destroy(engine);
        headway_engine_destroy(NULL);
        CHECK(errno == 12345, "errno is %d", errno);
    }
}

/* Every row through the public door: what headway_isa_at() says is what create does. */
static void check_isa_at(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    const char *best = NULL;
    headway_isa_info info;
    headway_engine *engine;
    int index = 0;

    for (; headway_isa_at(index, &info) == HEADWAY_OK; index++) {
        const headway_status expected = !info.built ? HEADWAY_ERROR_NOT_BUILT
                                        : info.runs ? HEADWAY_OK
                                                    : HEADWAY_ERROR_CANNOT_RUN;
        if (info.runs && !best)
            best = info.name;
        if (!check_case("isa %s: listed and created", info.name))
            continue;
        CHECK(!info.runs || info.built, "runs but is not built");
        CHECK((*info.reason == '\0') == (info.runs != 0), "reason: %s", info.reason);
        config.isa = info.name;
        if (expected != HEADWAY_OK) {
            expect_refused(&config, expected, info.name, info.reason);
            continue;
        }
        CHECK(headway_engine_create(&config, &engine) == HEADWAY_OK, "refused");
        CHECK(strcmp(headway_engine_isa(engine), info.name) == 0, "%s", headway_engine_isa(engine));
        CHECK(headway_engine_machine(engine).row->name == headway_engine_isa(engine),
              "the row is another");
        headway_engine_destroy(engine);
    }
    if (check_case("isa: past the ends"))
        CHECK(headway_isa_at(-1, &info) == HEADWAY_ERROR_ARGUMENT &&
                  headway_isa_at(index, &info) == HEADWAY_ERROR_ARGUMENT &&
                  headway_isa_at(0, NULL) == HEADWAY_ERROR_ARGUMENT,
              "accepted");
    if (check_case("isa: the default is the best that runs")) {
        config.isa = NULL;
        CHECK(headway_engine_create(&config, &engine) == HEADWAY_OK && best, "refused");
        CHECK(strcmp(headway_engine_isa(engine), best) == 0, "%s, best is %s",
              headway_engine_isa(engine), best);
        headway_engine_destroy(engine);
    }
}

static void check_environment(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_isa_info info;
    headway_engine *engine;

    for (int i = 0; headway_isa_at(i, &info) == HEADWAY_OK; i++) {
        if (!check_case("HEADWAY_ISA=%s", info.name))
            continue;
        setenv("HEADWAY_ISA", info.name, 1);
        if (info.runs) {
            CHECK(headway_engine_create(NULL, &engine) == HEADWAY_OK, "refused");
            CHECK(strcmp(headway_engine_isa(engine), info.name) == 0, "%s",
                  headway_engine_isa(engine));
            headway_engine_destroy(engine);
        } else {
            expect_refused(&config, info.built ? HEADWAY_ERROR_CANNOT_RUN : HEADWAY_ERROR_NOT_BUILT,
                           info.name, info.reason);
        }
    }
    if (check_case("HEADWAY_ISA: unknown, empty, and config->isa wins")) {
        setenv("HEADWAY_ISA", "mmx", 1);
        expect_refused(&config, HEADWAY_ERROR_NOT_BUILT, "mmx", "scalar");
        config.isa = "scalar";
        CHECK(headway_engine_create(&config, &engine) == HEADWAY_OK, "config->isa did not win");
        headway_engine_destroy(engine);
        setenv("HEADWAY_ISA", "", 1);
        CHECK(headway_engine_create(NULL, &engine) == HEADWAY_OK, "the empty name was used");
        headway_engine_destroy(engine);
    }
    unsetenv("HEADWAY_ISA");
}

static void check_error_text(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    struct lines lines = {0, ""};
    headway_engine *engine;
    char text[64] = "untouched", small[4] = "zzz", long_word[2000];

    if (!check_case("error text"))
        return;
    config.log = keep_line;
    config.log_context = &lines;
    if (headway_engine_create(&config, &engine) != HEADWAY_OK) {
        CHECK(0, "no engine");
        return;
    }
    CHECK(headway_engine_error(engine, text, sizeof text) == 0 && *text == '\0',
          "not empty at first");
    CHECK(headway_fail(engine, HEADWAY_ERROR_OVERLAP, "out %s %d", "overlaps", 7) ==
              HEADWAY_ERROR_OVERLAP,
          "status");
    CHECK(headway_engine_error(engine, text, sizeof text) == 14 && !strcmp(text, "out overlaps 7"),
          "%s", text);
    CHECK(lines.count == 1 && !strcmp(lines.last, "out overlaps 7"), "%d: %s", lines.count,
          lines.last);
    CHECK(headway_engine_error(engine, small, sizeof small) == 14 && !strcmp(small, "out"), "%s",
          small);
    CHECK(headway_engine_error(engine, small, 1) == 14 && *small == '\0', "size 1");
    small[0] = 'z';
    CHECK(headway_engine_error(engine, small, 0) == 14 && *small == 'z', "size 0 was written");
    CHECK(headway_engine_error(engine, NULL, 0) == 14, "NULL");
    CHECK(headway_fail(NULL, HEADWAY_ERROR_MEMORY, "x") == HEADWAY_ERROR_MEMORY, "engine NULL");
    memset(long_word, 'w', sizeof long_word - 1);
    long_word[sizeof long_word - 1] = '\0';
    headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s", long_word);
    CHECK(headway_engine_error(engine, NULL, 0) == 511, "a long text is cut");
    headway_engine_destroy(engine);
}

/* ---- several threads ------------------------------------------------------------------------- */

#define HOST_THREADS 16

struct shared {
    headway_engine *engine;
    const char *isa;
    atomic_int bad;
    atomic_int started;
};

static void *create_at_once(void *context)
{
    struct shared *shared = context;
    headway_engine *engine;

    atomic_fetch_add(&shared->started, 1);
    while (atomic_load(&shared->started) < HOST_THREADS)
        sched_yield();
    if (headway_engine_create(NULL, &engine) != HEADWAY_OK ||
        strcmp(headway_engine_isa(engine), shared->isa) != 0)
        atomic_fetch_add(&shared->bad, 1);
    else
        headway_engine_destroy(engine);
    return NULL;
}

static void *fail_and_read(void *context)
{
    struct shared *shared = context;
    const int self = atomic_fetch_add(&shared->started, 1);
    char text[512], word[301];
    size_t length;

    memset(word, 'a' + self, sizeof word - 1);
    word[sizeof word - 1] = '\0';
    for (int i = 0; i < 500; i++) {
        headway_fail(shared->engine, HEADWAY_ERROR_ARGUMENT, "%.*s", 100 + self * 10, word);
        length = headway_engine_error(shared->engine, text, sizeof text);
        if (length != (size_t)(100 + (text[0] - 'a') * 10) ||
            strspn(text, (char[]){text[0], 0}) != length)
            atomic_fetch_add(&shared->bad, 1);
    }
    return NULL;
}

static void on_threads(void *(*body)(void *), struct shared *shared)
{
    pthread_t threads[HOST_THREADS];

    for (int i = 0; i < HOST_THREADS; i++)
        if (pthread_create(&threads[i], NULL, body, shared) != 0)
            abort();
    for (int i = 0; i < HOST_THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void check_host_threads(void)
{
    struct shared shared = {.engine = NULL};

    if (headway_engine_create(NULL, &shared.engine) != HEADWAY_OK) {
        CHECK(0, "no engine");
        return;
    }
    shared.isa = headway_engine_isa(shared.engine);
    if (check_case("%d threads create an engine at once", HOST_THREADS)) {
        on_threads(create_at_once, &shared);
        CHECK(atomic_load(&shared.bad) == 0, "%d chose otherwise", atomic_load(&shared.bad));
    }
    atomic_store(&shared.started, 0);
    atomic_store(&shared.bad, 0);
    if (check_case("error text is never torn")) {
        on_threads(fail_and_read, &shared);
        CHECK(atomic_load(&shared.bad) == 0, "%d torn texts", atomic_load(&shared.bad));
    }
    headway_engine_destroy(shared.engine);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

#define TASKS 1000
#define WORKERS 7

struct work {
    int threads;
    atomic_int runs[TASKS];
    atomic_int busy[WORKERS];
    int64_t last[WORKERS]; /* the worker's latest task */
    atomic_int bad;
    int nest;
};

static void inner_task(void *context, int64_t task, int worker)
{
    struct work *inner = context;

    if (worker != 0 || atomic_fetch_add(&inner->runs[task], 1) != 0)
        atomic_fetch_add(&inner->bad, 1);
}

static void count_task(void *context, int64_t task, int worker)
{
    struct work *work = context;

    if (task < 0 || task >= TASKS || worker < 0 || worker >= work->threads) {
        atomic_fetch_add(&work->bad, 1);
        return;
    }
    if (atomic_exchange(&work->busy[worker], 1) != 0 || task <= work->last[worker])
        atomic_fetch_add(&work->bad, 1);
    work->last[worker] = task;
    atomic_fetch_add(&work->runs[task], 1);
    if (work->nest && work->threads > 1 && task % 100 == 0) {
        struct work inner = {.threads = 1};
        headway_parallel(&(struct headway_team){.threads = 3}, 3, 10, inner_task, &inner);
        if (atomic_load(&inner.bad) != 0 || atomic_load(&inner.runs[9]) != 1)
            atomic_fetch_add(&work->bad, 1);
    }
    atomic_store(&work->busy[worker], 0);
}

/* 0 when every one of `tasks` ran once and none beyond, each worker's in order. */
static int run_tasks(int threads, int64_t tasks, int nest)
{
    struct work *work = calloc(1, sizeof *work);
    int wrong;

    if (!work)
        abort();
    work->threads = threads;
    work->nest = nest;
    for (int i = 0; i < WORKERS; i++)
        work->last[i] = -1;
    headway_parallel(&(struct headway_team){.threads = threads}, threads, tasks, count_task, work);
    wrong = atomic_load(&work->bad);
    for (int64_t i = 0; i < TASKS; i++)
        wrong += atomic_load(&work->runs[i]) != (i < tasks);
    free(work);
    return wrong;
}

static void check_parallel(void)
{
    const int threads[] = {1, 2, 3, WORKERS};
    const int64_t tasks[] = {0, 1, 2, 3, TASKS};

    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
        for (size_t j = 0; j < sizeof tasks / sizeof *tasks; j++)
            if (check_case("%d tasks on %d threads", (int)tasks[j], threads[i])) {
                const int allowed = headway_threads_allowed(threads[i]);
                CHECK(run_tasks(allowed, tasks[j], 0) == 0,
                      "a task was lost, doubled or disordered");
            }
    if (check_case("a parallel call inside a task is serial")) {
        const int allowed = headway_threads_allowed(2);
        if (allowed < 2)
            check_skip("nested tasks", "this build or machine gives one thread only");
        else
            CHECK(run_tasks(allowed, TASKS, 1) == 0, "it was not");
    }
}

static void check_allowed(void)
{
    cpu_set_t before, one;
    int cpu = 0;

    if (check_case("threads: asked for, and by default")) {
        const int own = headway_threads_allowed(0);
        CHECK(own >= 1 && own <= sysconf(_SC_NPROCESSORS_CONF), "default %d", own);
        CHECK(headway_threads_allowed(1) == 1, "1");
        CHECK(headway_threads_allowed(INT_MAX) <= HEADWAY_MAX_THREADS, "more than the limit");
    }
    if (check_case("threads: affinity of one CPU")) {
        if (sched_getaffinity(0, sizeof before, &before) != 0) {
            check_skip("affinity", "the mask can't be read");
            return;
        }
        while (!CPU_ISSET(cpu, &before))
            cpu++;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK(sched_setaffinity(0, sizeof one, &one) == 0, "can't be set");
        CHECK(headway_threads_allowed(0) == 1, "%d", headway_threads_allowed(0));
        CHECK(sched_setaffinity(0, sizeof before, &before) == 0, "can't be restored");
    }
}

static void check_quota(void)
{
    static const struct {
        const char *text;
        int cpus;
    } quotas[] = {
        {"max 100000", 0},
        {"max 100000\n", 0},
        {"max", 0},
        {"-1", 0},
        {"-1\n", 0},
        {"-1 100000", 0},
        {"150000 100000", 2},
        {"150000 100000\n", 2},
        {"150000\n 100000\n", 2},
        {"100000 100000", 1},
        {"100001 100000", 2},
        {"99999 100000", 1},
        {"1 100000", 1},
        {"200000", 2},
        {"50000 10000", 5},
        {"400000 50000", 8},
        {"0 100000", 0},
        {"100000 0", 0},
        {"100000 -5", 0},
        {"", 0},
        {"x", 0},
        {"100000 x", 0},
        {"100000 100000 x", 0},
        {"9223372036854775807 1", 0},
        {"99999999999999999999 100000", 0},
        {"9223372036854775806 1", INT_MAX},
    };

    for (size_t i = 0; i < sizeof quotas / sizeof *quotas; i++) {
        const int cpus = headway_quota_cpus(quotas[i].text);
        if (check_case("quota %d: \"%.20s\"", (int)i, quotas[i].text))
            CHECK(cpus == quotas[i].cpus, "%d, expected %d", cpus, quotas[i].cpus);
    }
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* What the child found: a bit for each promise that broke. */
static int in_child(headway_engine *engine)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *own;
    char text[64];
    int broken = 0;

    alarm(10);
    if (headway_engine_threads(engine) != 1 || run_tasks(headway_engine_threads(engine), TASKS, 0))
        broken |= 1;
    config.threads = 2;
    if (headway_engine_create(&config, &own) != HEADWAY_OK ||
        run_tasks(headway_engine_threads(own), TASKS, 0))
        return broken | 2;
    headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "child");
    if (headway_engine_error(engine, text, sizeof text) != 5 || strcmp(text, "child") != 0)
        broken |= 4;
    headway_engine_destroy(own);
    return broken;
}

static void *fail_until_told(void *context)
{
    struct shared *shared = context;

    while (!atomic_load(&shared->bad)) {
        headway_fail(shared->engine, HEADWAY_ERROR_ARGUMENT, "%d", 1);
        atomic_store(&shared->started, 1);
    }
    return NULL;
}

static void fork_once(headway_engine *engine)
{
    int status = -1;
    const pid_t child = fork();

    if (child == 0)
        _exit(in_child(engine));
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child's wait status 0x%x",
          (unsigned)status);
}

static void check_fork(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    struct shared shared = {.engine = NULL};
    pthread_t thread;

    if (!check_case("fork after threads have run"))
        return;
    config.threads = 2;
    if (headway_engine_create(&config, &shared.engine) != HEADWAY_OK) {
        CHECK(0, "no engine");
        return;
    }
    CHECK(run_tasks(headway_engine_threads(shared.engine), TASKS, 0) == 0, "before fork");
    fork_once(shared.engine);
    if (check_case("fork while another thread reports errors")) {
        if (pthread_create(&thread, NULL, fail_until_told, &shared) != 0)
            abort();
        while (!atomic_load(&shared.started))
            sched_yield();
        for (int i = 0; i < 5; i++)
            fork_once(shared.engine);
        atomic_store(&shared.bad, 1);
        pthread_join(thread, NULL);
    }
    CHECK(run_tasks(headway_engine_threads(shared.engine), TASKS, 0) == 0, "after fork");
    headway_engine_destroy(shared.engine);
}

/* ---- memory, names --------------------------------------------------------------------------- */

/* A caller's memory: every block 16 bytes behind a multiple of 64, 32, 48. */
struct ledger {
    int blocks, taken, refuse;
    size_t bytes;
};

static void *ledger_take(void *context, size_t bytes)
{
    struct ledger *ledger = context;
    const size_t shift = 16 + 16 * (size_t)(ledger->taken % 3);
    char *memory = ledger->refuse ? NULL : aligned_alloc(64, (bytes + shift + 63) / 64 * 64);
    if (!memory)
        return NULL;
    ledger->taken++;
    ledger->blocks++;
    ledger->bytes += bytes;
    return memory + shift;
}

static void ledger_give(void *context, void *memory, size_t bytes)
{
    struct ledger *ledger = context;
    ledger->blocks--;
    ledger->bytes -= bytes;
    free((void *)((uintptr_t)memory / 64 * 64));
}

static void take_and_give(const struct headway_memory *memory)
{
    for (size_t bytes = 0; bytes < 9 << 20; bytes = bytes < 200 ? bytes + 3 : bytes * 3) {
        unsigned char *block = headway_allocate(memory, bytes);
        CHECK(block && (uintptr_t)block % 64 == 0, "%zu bytes", bytes);
        if (block)
            memset(block, 1, bytes);
        headway_release(memory, block);
    }
    headway_release(memory, NULL);
    errno = 12345;
    CHECK(!headway_allocate(memory, SIZE_MAX) && !headway_allocate(memory, PTRDIFF_MAX),
          "too much was given");
    CHECK(errno == 12345, "errno is %d", errno);
}

static void check_memory(void)
{
    int64_t result = 5;

    if (check_case("checked arithmetic")) {
        CHECK(headway_mul(3, 4, &result) && result == 12, "3 * 4");
        CHECK(headway_mul(0, INT64_MAX, &result) && result == 0, "0 * max");
        CHECK(headway_mul(INT64_MAX, 1, &result) && result == INT64_MAX, "max * 1");
        CHECK(headway_add(INT64_MAX - 1, 1, &result) && result == INT64_MAX, "max - 1 + 1");
        result = 5;
        CHECK(!headway_mul(INT64_C(1) << 32, INT64_C(1) << 31, &result), "2^63 fits");
        CHECK(!headway_mul(INT64_MAX, INT64_MAX, &result), "max * max fits");
        CHECK(!headway_mul(-1, 4, &result) && !headway_mul(4, -1, &result), "a negative factor");
        CHECK(!headway_mul(-1, -1, &result) && !headway_add(-1, -1, &result), "two negatives");
        CHECK(!headway_add(INT64_MAX, 1, &result), "max + 1 fits");
        CHECK(!headway_add(-1, 4, &result) && !headway_add(4, -1, &result), "a negative term");
        CHECK(result == 5, "*result was touched");
    }
    if (check_case("memory: the C library's")) {
        const struct headway_memory own = {0};
        take_and_give(&own);
    }
    if (check_case("memory: a caller's that is aligned to 16 and no more")) {
        struct ledger ledger = {0};
        const struct headway_memory theirs = {ledger_take, ledger_give, &ledger};
        take_and_give(&theirs);
        CHECK(ledger.blocks == 0 && ledger.bytes == 0, "%d blocks, %zu bytes are left",
              ledger.blocks, ledger.bytes);
        CHECK(ledger.taken > 64, "%d were taken", ledger.taken);
        headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
        config.allocate = ledger_take;
        expect_refused(&config, HEADWAY_ERROR_ARGUMENT, "release is NULL", "allocate");
        config.release = ledger_give;
        config.allocate = NULL;
        expect_refused(&config, HEADWAY_ERROR_ARGUMENT, "allocate is NULL", "release");
        ledger.refuse = 1;
        CHECK(!headway_allocate(&theirs, 100) && ledger.blocks == 0, "nothing became something");
    }
}

static void check_names_of_status(void)
{
    if (!check_case("status texts and version"))
        return;
    for (int i = 0; i <= HEADWAY_ERROR_UNSUPPORTED; i++) {
        const char *text = headway_status_text((headway_status)i);
        CHECK(strcmp(text, "unknown status") != 0, "%d has none", i);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(text, headway_status_text((headway_status)j)) != 0, "%d and %d alike", i,
                  j);
    }
    CHECK(!strcmp(headway_status_text(HEADWAY_OK), "ok"), "ok");
    CHECK(!strcmp(headway_status_text((headway_status)(HEADWAY_ERROR_UNSUPPORTED + 1)),
                  "unknown status"),
          "past the last");
    CHECK(!strcmp(headway_version(), "0.1.0"), "%s", headway_version());
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    /* Cases that want it set it themselves. */
    unsetenv("HEADWAY_ISA");
    check_dumps(recorded, sizeof recorded / sizeof *recorded);
    check_dumps(altered, sizeof altered / sizeof *altered);
    check_max_leaf();
    check_words();
    check_names();
    check_config();
    check_isa_at();
    check_environment();
    check_error_text();
    check_host_threads();
    check_quota();
    check_allowed();
    check_parallel();
    check_fork();
    check_memory();
    check_cpu_system();
    check_names_of_status();
    return check_end();
}
