/* What the trace is told, and that nobody looks at a clock without one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check_guest.h"
#include "cpu/kernels.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static atomic_int clocks;

#ifndef SANITIZED
#pragma GCC visibility push(default)
int clock_gettime(clockid_t clock, struct timespec *time)
{
    atomic_fetch_add(&clocks, 1);
    return (int)syscall(SYS_clock_gettime, clock, time);
}
#pragma GCC visibility pop
#endif

enum { B = 3, LQ = 37, LK = 90, HQ = 6, HKV = 2, D = 24, DV = 40, E = 20 };

static struct told {
    int calls;
    pthread_t thread;
    uint64_t mode;
    headway_trace last;
} told;

static void note(void *context, const headway_trace *trace)
{
    struct told *to = context;
    to->calls++;
    to->thread = pthread_self();
    to->mode = mode_bits();
    to->last = *trace;
}

static int64_t now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* What holds for all traces. `before` is now() before the call. */
static void expect_trace(const headway_engine *engine, const char *call, const char *phases,
                         int64_t before)
{
    const int64_t longest = now() - before + 1000000;
    const headway_trace *t = &told.last;
    char names[100] = "";
    int64_t sum = 0;
    CHECK(told.calls == 1, "%d traces of one call", told.calls);
    told.calls = 0;
    CHECK(t->size == sizeof *t && !strcmp(t->call, call), "of %s: size %zu, call %s", call, t->size,
          t->call);
    CHECK(!strcmp(t->isa, headway_engine_isa(engine)), "row %s", t->isa);
    for (int i = 0; i < t->phases; i++) {
        strcat(strcat(names, i ? " " : ""), t->phase[i].name);
        CHECK(t->phase[i].nanoseconds >= 0, "%s took %lld", t->phase[i].name,
              (long long)t->phase[i].nanoseconds);
        sum += t->phase[i].nanoseconds;
    }
    CHECK(!strcmp(names, phases), "phases: %s", names);
    CHECK(sum == t->nanoseconds && sum > 0 && sum <= longest,
          "phases add up to %lld, the call to %lld, seen from outside %lld", (long long)sum,
          (long long)t->nanoseconds, (long long)longest);
    CHECK(t->threads >= 1 && t->threads <= headway_engine_threads(engine), "%d threads",
          t->threads);
    CHECK(pthread_equal(told.thread, pthread_self()), "another thread told it");
    CHECK(told.mode == mode_bits(), "told under other modes");
}

static headway_tensor made(int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[] = {a, b, c, d};
    int64_t count = 1;
    uint64_t random = 1;
    for (int i = 0; i < rank; i++)
        count *= shape[i];
    float *data = malloc((size_t)count * sizeof *data);
    if (!data)
        abort();
    check_fill_normal(&random, data, count, 1);
    return headway_tensor_dense(data, HEADWAY_F32, rank, shape);
}

static void expect_counts(double flops, double bytes, int64_t workspace)
{
    const headway_trace *t = &told.last;
    CHECK(t->flops == flops, "%.0f flops, expected %.0f", t->flops, flops);
    CHECK((double)t->bytes == bytes, "%lld bytes, expected %.0f", (long long)t->bytes, bytes);
    CHECK(t->workspace == workspace, "workspace %lld, expected %lld", (long long)t->workspace,
          (long long)workspace);
}

/* The call, its trace's counts, and no trace of one that fails. */
static void attention(headway_engine *engine, const headway_attention_params *params, int64_t rows,
                      const headway_tensor *key, const headway_tensor *value, double pairs,
                      double key_bytes)
{
    const int64_t batch = rows == LQ ? B : 2;
    headway_tensor query = made(4, batch, rows, HQ, D), out = made(4, batch, rows, HQ, DV);
    double lines = 0;
    size_t bytes = 0;
    for (int64_t b = 0; b < batch; b++)
        lines += (double)(params->query_lengths ? params->query_lengths[b] : rows) * HQ;
    headway_status status = headway_attention_workspace(engine, params, &query, key, value, &bytes);
    void *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
    const int64_t before = now();
    if (status == HEADWAY_OK)
        status = headway_attention(engine, params, &query, key, value, &out, workspace, bytes);
    CHECK(status == HEADWAY_OK, "attention: %s", headway_status_text(status));
    expect_trace(engine, "attention", "check attend", before);
    expect_counts(pairs * HQ * 2 * (D + DV), lines * (D + DV) * 4 + key_bytes, (int64_t)bytes);
    CHECK(!strcmp(told.last.path, rows == 1 ? "few rows" : "tiles"), "path %s", told.last.path);
    CHECK(told.last.tasks > 0, "%lld tasks", (long long)told.last.tasks);
    CHECK(headway_attention(engine, params, &query, key, value, &out, NULL, 0) != HEADWAY_OK &&
              told.calls == 0,
          "a call that failed is told");
    free(workspace);
    free(query.data);
    free(out.data);
}

static void check_attention(headway_engine *engine)
{
    static const int64_t queries[B] = {LQ, 11, 0}, keys[B] = {LK, 60, 33};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_tensor key = made(4, B, LK, HKV, D), value = made(4, B, LK, HKV, DV);
    attention(engine, &params, LQ, &key, &value, (double)B * LQ * LK,
              (double)B * LK * HKV * (D + DV) * 4);
    params.window_left = 13;
    params.window_first = 5;
    params.query_lengths = queries;
    params.key_lengths = keys;
    for (int top = 0; top < 2; top++) {
        double pairs = 0;
        for (int64_t b = 0; b < B; b++)
            for (int64_t i = 0; i < queries[b]; i++) {
                const int64_t at = i + (top ? 0 : keys[b] - queries[b]);
                for (int64_t j = 0; j < keys[b]; j++)
                    pairs += j <= at && (j >= at - 13 || j < 5);
            }
        params.causal = top ? HEADWAY_CAUSAL_TOP_LEFT : HEADWAY_CAUSAL_BOTTOM_RIGHT;
        attention(engine, &params, LQ, &key, &value, pairs,
                  (double)(keys[0] + keys[1] + keys[2]) * HKV * (D + DV) * 4);
    }
    free(key.data);
    free(value.data);
}

static void check_cache(headway_engine *engine, headway_dtype dtype, int64_t of_key)
{
    static const int64_t lengths[2] = {50, 21};
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_tensor key = made(4, 2, 50, HKV, D), value = made(4, 2, 50, HKV, DV);
    config.sequences = 2;
    config.kv_heads = HKV;
    config.head_size = D;
    config.value_head_size = DV;
    config.capacity = 64;
    config.key_dtype = config.value_dtype = dtype;
    CHECK(headway_kv_cache_create(engine, &config, &params.cache) == HEADWAY_OK, "no cache");
    const int64_t before = now();
    CHECK(headway_kv_cache_append(params.cache, NULL, lengths, &key, &value) == HEADWAY_OK,
          "append");
    expect_trace(engine, "append", "check append", before);
    expect_counts(0, 71.0 * HKV * ((D + DV) * 4 + (double)of_key), 0);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    attention(engine, &params, 1, NULL, NULL, 71, 71.0 * HKV * (double)of_key);
    CHECK(headway_kv_cache_append(params.cache, NULL, lengths, &key, NULL) != HEADWAY_OK &&
              told.calls == 0,
          "an append that failed is told");
    headway_kv_cache_destroy(params.cache);
    free(key.data);
    free(value.data);
}

/* Enough tokens for all threads of any engine here to store. */
static void check_large_append(headway_engine *engine)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    headway_kv_cache *cache = NULL;
    headway_tensor tokens = made(4, 1, 2000, HKV, 64);
    config.sequences = 1;
    config.kv_heads = HKV;
    config.head_size = 64;
    config.capacity = 2000;
    CHECK(headway_kv_cache_create(engine, &config, &cache) == HEADWAY_OK, "no cache");
    const int64_t before = now();
    CHECK(headway_kv_cache_append(cache, NULL, NULL, &tokens, &tokens) == HEADWAY_OK, "append");
    expect_trace(engine, "append", "check append", before);
    CHECK(told.last.threads == headway_engine_threads(engine), "%d threads of %d",
          told.last.threads, headway_engine_threads(engine));
    headway_kv_cache_destroy(cache);
    free(tokens.data);
}

static void check_layer(headway_engine *engine)
{
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_kv_cache_config cache = HEADWAY_KV_CACHE_CONFIG_INIT;
    const int64_t wide = HQ * D + HKV * (D + DV);
    headway_tensor fused = made(2, wide, E, 0, 0), last = made(2, E, HQ * DV, 0, 0);
    headway_tensor bias = made(1, E, 0, 0, 0);
    headway_tensor x = made(3, 2, LQ, E, 0), y = made(3, 2, LQ, E, 0);
    headway_mha *layer = NULL;
    size_t bytes = 0;
    config.heads = HQ;
    config.kv_heads = HKV;
    config.head_size = D;
    config.value_head_size = DV;
    config.add_zero_attn = 1;
    weights.fused = &fused;
    weights.out = &last;
    weights.out_bias = &bias;
    CHECK(headway_mha_create(engine, &config, &weights, &layer) == HEADWAY_OK, "no layer");
    cache.sequences = 2;
    cache.kv_heads = HKV;
    cache.head_size = D;
    cache.value_head_size = DV;
    cache.capacity = 2 * LQ;
    CHECK(headway_kv_cache_create(engine, &cache, &params.cache) == HEADWAY_OK, "no cache");
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    for (int n = 0; n < 2 && layer && params.cache; n++) {
        headway_status status = headway_mha_workspace(layer, &params, &x, NULL, NULL, &bytes);
        void *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
        const int64_t before = now();
        if (status == HEADWAY_OK)
            status = headway_mha_forward(layer, &params, &x, NULL, NULL, &y, workspace, bytes);
        CHECK(status == HEADWAY_OK, "forward: %s", headway_status_text(status));
        expect_trace(engine, "mha", "check project attend out", before);
        const double tokens = 2 * LQ, pairs = tokens * (LQ * n + (LQ + 1) / 2.0 + 1);
        const double parts = (double)wide * E + E * HQ * DV;
        expect_counts(tokens * 2 * parts + pairs * HQ * 2 * (D + DV),
                      4 * (parts + E + tokens * (3 * E + (double)wide + HQ * DV + E) +
                           tokens * HQ * (D + DV) + tokens * (n + 1) * HKV * (D + DV)),
                      (int64_t)bytes);
        CHECK(headway_mha_forward(layer, &params, &x, NULL, NULL, &y, NULL, 0) != HEADWAY_OK &&
                  told.calls == 0,
              "a forward that failed is told");
        free(workspace);
    }
    headway_kv_cache_destroy(params.cache);
    headway_mha_destroy(layer);
    float *const owned[] = {fused.data, last.data, bias.data, x.data, y.data};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

static void check_clock(const struct headway_row *row, struct pool *pool)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.threads = 3;
    for (int on = 0; on < 2; on++) {
        config.parallel_for = NULL;
        config.trace = on ? note : NULL;
        config.trace_context = &told;
        for (int n = 0; n < 2; n++) {
            headway_engine *engine = guest_make(config, row);
            expect_same(engine, on ? "traced" : "not traced");
            atomic_store(&clocks, 0);
            told.calls = 0;
            expect_same(engine, on ? "traced" : "not traced");
            CHECK((told.calls > 0) == on, "%d traces", told.calls);
#ifndef SANITIZED
            CHECK((atomic_load(&clocks) > 0) == on, "%d looks at the clock", atomic_load(&clocks));
#endif
            headway_engine_destroy(engine);
            config.parallel_for = pool_for;
            config.parallel_context = pool;
        }
    }
    told.calls = 0;
}

/* Up to 24 lanes of a head, if the row's tiles are so wide, are one task that takes keys as they lie,
 * and the plan in words says what the trace does. */
static void check_path(headway_engine *engine, const struct headway_row *row)
{
    enum { KEYS = 1100, GROUP = 4, ROWS = 8 };
    const int tile = row->lanes * row->vectors, most = tile < 24 ? tile : 24;
    headway_tensor key = made(4, 1, KEYS, 1, D);
    for (int64_t rows = 1; rows <= ROWS; rows++) {
        headway_tensor query = made(4, 1, rows, GROUP, D), out = made(4, 1, rows, GROUP, D);
        const int few = rows * GROUP <= most;
        char text[3000] = "";
        size_t bytes = 0;
        headway_attention_workspace(engine, NULL, &query, &key, &key, &bytes);
        void *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
        CHECK(headway_attention(engine, NULL, &query, &key, &key, &out, workspace, bytes) ==
                  HEADWAY_OK,
              "%lld rows: no attention", (long long)rows);
        CHECK(!strcmp(told.last.path, few ? "few rows" : "tiles"), "%lld rows: path %s",
              (long long)rows, told.last.path);
        CHECK(!few || told.last.tasks == 1, "%lld rows: %lld tasks", (long long)rows,
              (long long)told.last.tasks);
        headway_attention_explain(engine, NULL, &query, &key, &key, text, sizeof text);
        CHECK(!strstr(text, "path few rows") == !few, "%lld rows: %s", (long long)rows, text);
        free(workspace);
        free(query.data);
        free(out.data);
    }
    told.calls = 0;
    free(key.data);
}

/* The threads that the trace tells of a call with work for more than the engine has. */
static int threads_told(const headway_engine *engine)
{
    headway_tensor query = made(4, 1, 256, 8, D), key = made(4, 1, 256, 8, D);
    headway_tensor out = made(4, 1, 256, 8, D);
    size_t bytes = 0;
    headway_attention_workspace(engine, NULL, &query, &key, &key, &bytes);
    void *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
    told.calls = told.last.threads = 0;
    headway_attention(engine, NULL, &query, &key, &key, &out, workspace, bytes);
    told.calls = 0;
    free(workspace);
    free(query.data);
    free(key.data);
    free(out.data);
    return told.last.threads;
}

/* Where OpenMP's engine computes on the calling thread alone the trace says so. */
static void check_threads(const headway_engine *openmp, const headway_engine *pooled)
{
    const int own = headway_engine_threads(openmp), pool = headway_engine_threads(pooled);
    const int outside = threads_told(openmp), of_pool = threads_told(pooled);
    CHECK(outside == own && of_pool == pool, "%d of %d threads, %d of the pool's %d", outside, own,
          of_pool, pool);
#ifdef _OPENMP
#pragma omp parallel num_threads(2)
    {
#pragma omp single
        {
            const int openmps = threads_told(openmp), pools = threads_told(pooled);
            const int alone = !omp_in_parallel();
            CHECK(openmps == (alone ? own : 1) && pools == pool,
                  "in a region %d threads, %d of the pool's", openmps, pools);
        }
    }
#endif
    const pid_t child = fork();
    int status = -1;
    if (child == 0) {
        alarm(30);
        _exit(threads_told(openmp));
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
              WEXITSTATUS(status) == 1,
          "in a child 0x%x", (unsigned)status);
}

void check_guest_trace(const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.trace = note;
    config.trace_context = &told;
    for (config.threads = 1; config.threads <= 3; config.threads += 2) {
        headway_engine *engine = guest_make(config, row);
        if (check_case("%s: trace of attention, %d threads", row->name, config.threads))
            check_attention(engine);
        if (check_case("%s: trace of the path, %d threads", row->name, config.threads))
            check_path(engine, row);
        if (check_case("%s: trace of a cache, %d threads", row->name, config.threads)) {
            check_cache(engine, HEADWAY_F32, (D + DV) * 4);
            check_cache(engine, HEADWAY_F16, (D + DV) * 2);
            check_cache(engine, HEADWAY_I8, D + DV + 8);
            check_large_append(engine);
        }
        if (check_case("%s: trace of a layer, %d threads", row->name, config.threads))
            check_layer(engine);
        headway_engine_destroy(engine);
    }
    config.threads = 3;
    headway_engine *openmp = guest_make(config, row);
    struct pool *pool = pool_make(2);
    config.parallel_for = pool_for;
    config.parallel_context = pool;
    headway_engine *pooled = guest_make(config, row);
    if (check_case("%s: trace of threads in a region and in a child", row->name))
        check_threads(openmp, pooled);
    headway_engine_destroy(openmp);
    headway_engine_destroy(pooled);
    if (check_case("%s: no clock without a trace", row->name))
        check_clock(row, pool);
    pool_free(pool);
}
