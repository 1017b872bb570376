/* One engine and one layer in 16 host threads at once, each with a cache of its own and all with one
 * that they read: the answers are those of one thread, error texts are whole, and ThreadSanitizer has
 * nothing to say (preset tsan). Tasks run on threads that this program starts, as ThreadSanitizer
 * can't see into an OpenMP runtime, and on OpenMP's where the library has it. --plant 1 gives all
 * tasks of a call the same scratch memory: a race that must be found. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cpu/kernels.h"
#include "headway/headway.h"

enum { HOSTS = 16, WORKERS = 3, B = 2, LQ = 70, LK = 150, HQ = 4, HKV = 2, D = 16, E = 24 };

static int plant;

struct worker {
    pthread_t thread;
    void (*body)(void *task, int index);
    void *task;
    int index;
};

static void *work(void *given)
{
    struct worker *worker = given;
    worker->body(worker->task, plant ? 0 : worker->index);
    return NULL;
}

/* A headway_parallel_for_fn: a thread for each index. */
static void on_threads(void *context, int count, void (*body)(void *task, int index), void *task)
{
    struct worker workers[WORKERS];
    (void)context;
    if (count > WORKERS)
        abort();
    for (int i = 0; i < count; i++) {
        workers[i] = (struct worker){.body = body, .task = task, .index = i};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            abort();
    }
    for (int i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
}

/* What all threads share, and only read. */
static struct {
    headway_engine *engine;
    headway_mha *layer;
    headway_mha_config config;
    headway_mha_weights weights;
    headway_attention_params core, whole; /* of a call of the core, of the layer */
    headway_tensor query, key, value, input;
    headway_kv_cache *cache;                  /* filled, and only read from then on */
    float *core_out, *whole_out, *served_out; /* what one thread got */
    char errors[2][256];                      /* of wrong() */
    int rounds;
} all;

struct host {
    pthread_t thread;
    int index, failures;
    const char *what; /* the first of them */
};

static float *normal(uint64_t seed, int64_t count)
{
    float *made = malloc((size_t)count * sizeof *made);
    if (!made)
        abort();
    check_fill_normal(&seed, made, count, 1.0f);
    return made;
}

static headway_tensor tensor(float *data, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[] = {a, b, c, d};
    return headway_tensor_dense(data, HEADWAY_F32, rank, shape);
}

/* The outputs of one call, computed into `out` from its start: out, lse, weights. */
enum {
    OUT = B * LQ * HQ * D,
    LSE = B * HQ * LQ,
    WEIGHTS = B * LQ * LK,
    CORE = OUT + LSE + WEIGHTS,
    WHOLE = B * LQ * E,
    SERVED = WHOLE + B * HQ * D
};

static headway_status core(float *out)
{
    headway_attention_params params = all.core;
    const headway_tensor o = tensor(out, 4, B, LQ, HQ, D);
    const headway_tensor lse = tensor(out + OUT, 3, B, HQ, LQ, 0);
    const headway_tensor weights = tensor(out + OUT + LSE, 3, B, LQ, LK, 0);
    size_t bytes = 0;
    params.lse = &lse;
    params.weights = &weights;
    headway_status status =
        headway_attention_workspace(all.engine, &params, &all.query, &all.key, &all.value, &bytes);
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes / 64 + 1) * 64);
    if (status == HEADWAY_OK)
        status = headway_attention(all.engine, &params, &all.query, &all.key, &all.value, &o,
                                   workspace, bytes);
    free(workspace);
    return status;
}

static headway_status whole(const headway_mha *layer, float *out)
{
    const headway_tensor o = tensor(out, 3, B, LQ, E, 0);
    size_t bytes = 0;
    headway_status status =
        headway_mha_workspace(layer, &all.whole, &all.input, NULL, NULL, &bytes);
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes / 64 + 1) * 64);
    if (status == HEADWAY_OK)
        status =
            headway_mha_forward(layer, &all.whole, &all.input, NULL, NULL, &o, workspace, bytes);
    free(workspace);
    return status;
}

static headway_status cache_make(headway_dtype dtype, int64_t page_size, headway_kv_cache **cache)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    config.sequences = B;
    config.kv_heads = HKV;
    config.head_size = D;
    config.capacity = LK;
    config.key_dtype = config.value_dtype = dtype;
    config.page_size = page_size;
    return headway_kv_cache_create(all.engine, &config, cache);
}

/* The layer's input in chunks, the cache empty at first. */
static headway_status serve(const headway_mha *layer, headway_kv_cache *cache, float *out)
{
    static const int64_t chunks[] = {33, 1, LQ - 34};
    headway_attention_params params = all.whole;
    headway_status status = HEADWAY_OK;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.cache = cache;
    for (int64_t slot = 0; slot < B && status == HEADWAY_OK; slot++)
        status = headway_kv_cache_truncate(cache, slot, 0);
    for (int64_t i = 0, first = 0; i < 3 && status == HEADWAY_OK; first += chunks[i++]) {
        headway_tensor x = all.input, o = tensor(out, 3, B, LQ, E, 0);
        size_t bytes = 0;
        x.shape[1] = o.shape[1] = chunks[i];
        x.data = (float *)x.data + first * E;
        o.data = out + first * E;
        status = headway_mha_workspace(layer, &params, &x, NULL, NULL, &bytes);
        void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes / 64 + 1) * 64);
        if (status == HEADWAY_OK)
            status = headway_mha_forward(layer, &params, &x, NULL, NULL, &o, workspace, bytes);
        free(workspace);
    }
    return status;
}

/* A row for each sequence of the cache that all read. */
static headway_status look(float *out)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    const headway_tensor q = tensor(all.query.data, 4, B, 1, HQ, D);
    const headway_tensor o = tensor(out, 4, B, 1, HQ, D);
    size_t bytes = 0;
    params.cache = all.cache;
    headway_status status =
        headway_attention_workspace(all.engine, &params, &q, NULL, NULL, &bytes);
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes / 64 + 1) * 64);
    if (status == HEADWAY_OK)
        status = headway_attention(all.engine, &params, &q, NULL, NULL, &o, workspace, bytes);
    free(workspace);
    return status;
}

/* One of two calls that are refused. */
static headway_status wrong(int which)
{
    headway_attention_params params = all.core;
    size_t bytes;
    if (which)
        params.softcap = -1;
    else
        params.causal = (headway_causal)99;
    return headway_attention_workspace(all.engine, &params, &all.query, &all.key, &all.value,
                                       &bytes);
}

static void tell(struct host *host, int good, const char *what)
{
    if (good)
        return;
    if (!host->failures++)
        host->what = what;
}

static void serve_round(struct host *host, headway_kv_cache *cache, float *out)
{
    memset(out, 0, SERVED * sizeof *out);
    tell(host, serve(all.layer, cache, out) == HEADWAY_OK && look(out + WHOLE) == HEADWAY_OK,
         "a cache is refused");
    tell(host, !memcmp(out, all.served_out, SERVED * sizeof *out), "caches: other bits");
}

static void one_round(struct host *host, float *out, int round)
{
    char text[256];
    headway_mha *layer = NULL;

    memset(out, 0, CORE * sizeof *out);
    tell(host, core(out) == HEADWAY_OK, "headway_attention refuses");
    tell(host, !memcmp(out, all.core_out, CORE * sizeof *out), "headway_attention: other bits");
    tell(host, wrong(round & 1) == HEADWAY_ERROR_ARGUMENT, "a wrong argument is accepted");
    headway_engine_error(all.engine, text, sizeof text);
    tell(host, !strcmp(text, all.errors[0]) || !strcmp(text, all.errors[1]), "a torn error text");
    memset(out, 0, WHOLE * sizeof *out);
    tell(host, whole(all.layer, out) == HEADWAY_OK, "headway_mha_forward refuses");
    tell(host, !memcmp(out, all.whole_out, WHOLE * sizeof *out), "headway_mha_forward: other bits");
    if (round % 4 == host->index % 4) {
        tell(host,
             headway_mha_create(all.engine, &all.config, &all.weights, &layer) == HEADWAY_OK &&
                 whole(layer, out) == HEADWAY_OK,
             "headway_mha_create refuses");
        tell(host, !memcmp(out, all.whole_out, WHOLE * sizeof *out), "a layer's own: other bits");
        headway_mha_destroy(layer);
    }
    tell(host,
         headway_attention_explain(all.engine, &all.core, &all.query, &all.key, &all.value, text,
                                   sizeof text) == HEADWAY_OK,
         "headway_attention_explain refuses");
}

static void *run(void *given)
{
    struct host *host = given;
    float *out = malloc((CORE > SERVED ? CORE : SERVED) * sizeof *out);
    headway_kv_cache *cache = NULL;
    tell(host, cache_make(HEADWAY_F32, 4, &cache) == HEADWAY_OK, "no cache");
    for (int round = 0; round < all.rounds && cache; round++) {
        one_round(host, out, round);
        serve_round(host, cache, out);
    }
    headway_kv_cache_destroy(cache);
    free(out);
    return NULL;
}

static void together(void)
{
    struct host hosts[HOSTS];
    for (int i = 0; i < HOSTS; i++) {
        hosts[i] = (struct host){.index = i};
        if (pthread_create(&hosts[i].thread, NULL, run, &hosts[i]) != 0)
            abort();
    }
    for (int i = 0; i < HOSTS; i++) {
        pthread_join(hosts[i].thread, NULL);
        CHECK(!hosts[i].failures, "thread %d: %d failures, the first: %s", i, hosts[i].failures,
              hosts[i].what);
    }
}

/* The answers of this thread alone. */
static void prepare(void)
{
    headway_kv_cache *cache = NULL;
    CHECK(headway_mha_create(all.engine, &all.config, &all.weights, &all.layer) == HEADWAY_OK,
          "no layer");
    for (int i = 0; i < 2; i++) {
        CHECK(wrong(i) == HEADWAY_ERROR_ARGUMENT, "a wrong argument is accepted");
        headway_engine_error(all.engine, all.errors[i], sizeof all.errors[i]);
    }
    CHECK(core(all.core_out) == HEADWAY_OK, "headway_attention refuses");
    CHECK(whole(all.layer, all.whole_out) == HEADWAY_OK, "headway_mha_forward refuses");
    CHECK(cache_make(HEADWAY_F32, 4, &cache) == HEADWAY_OK &&
              cache_make(HEADWAY_F16, 16, &all.cache) == HEADWAY_OK &&
              headway_kv_cache_append(all.cache, NULL, NULL, &all.key, &all.value) == HEADWAY_OK,
          "no cache");
    CHECK(serve(all.layer, cache, all.served_out) == HEADWAY_OK &&
              look(all.served_out + WHOLE) == HEADWAY_OK,
          "a cache is refused");
    CHECK(!memcmp(all.served_out, all.whole_out, WHOLE * sizeof(float)), "chunks: other bits");
    headway_kv_cache_destroy(cache);
}

static void check_engine(const headway_engine_config *config)
{
    CHECK(headway_engine_create(config, &all.engine) == HEADWAY_OK, "no engine");
    prepare();
    if (!check_case_failures())
        together();
    headway_kv_cache_destroy(all.cache);
    headway_mha_destroy(all.layer);
    headway_engine_destroy(all.engine);
}

static void check_row(const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.isa = row->name;
#ifdef HEADWAY_HAS_OPENMP
    if (check_case("%s: OpenMP's threads", row->name))
        check_engine(&config);
#endif
    config.threads = WORKERS;
    config.parallel_for = on_threads;
    if (check_case("%s: threads of this program", row->name))
        check_engine(&config);
}

int main(int argc, char **argv)
{
    static unsigned char mask[LQ * LK];
    static const int64_t mask_shape[] = {LQ, LK}, lengths[B] = {LK, LK - 9};
    static float slopes[HQ];
    int index = 0;
    uint64_t random = 1;

    check_begin(argc, argv);
    plant = (int)check_option("--plant", 0);
    all.rounds = (int)check_option("--rounds", 20);
    for (int i = 0; i < LQ * LK; i++)
        mask[i] = check_random(&random) % 5 != 0;
    headway_alibi_slopes(HQ, slopes);
    headway_tensor bools = headway_tensor_dense(mask, HEADWAY_BOOL, 2, mask_shape);
    float *const sinks = normal(2, HQ);
    float *const q = normal(3, B * LQ * HQ * D), *const k = normal(4, B * LK * HKV * D);
    float *const v = normal(5, B * LK * HKV * D), *const x = normal(6, B * LQ * E);
    float *const w = normal(7, (HQ + 2 * HKV) * D * E), *const o = normal(8, E * HQ * D);
    all.core = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
    all.core.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    all.core.key_lengths = lengths;
    all.core.window_left = 60;
    all.core.softcap = 5;
    all.core.alibi_slopes = slopes;
    all.core.sinks = sinks;
    all.core.mask = &bools;
    all.query = tensor(q, 4, B, LQ, HQ, D);
    all.key = tensor(k, 4, B, LK, HKV, D);
    all.value = tensor(v, 4, B, LK, HKV, D);

    headway_rope_config rope = HEADWAY_ROPE_CONFIG_INIT;
    rope.style = HEADWAY_ROPE_HALF;
    rope.positions = LQ;
    all.config = (headway_mha_config)HEADWAY_MHA_CONFIG_INIT;
    all.config.heads = HQ;
    all.config.kv_heads = HKV;
    all.config.rope = &rope;
    all.config.add_zero_attn = 1;
    const headway_tensor fused = tensor(w, 2, (HQ + 2 * HKV) * D, E, 0, 0);
    const headway_tensor out = tensor(o, 2, E, HQ * D, 0, 0);
    all.weights = (headway_mha_weights)HEADWAY_MHA_WEIGHTS_INIT;
    all.weights.fused = &fused;
    all.weights.out = &out;
    all.whole = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
    all.whole.causal = HEADWAY_CAUSAL_TOP_LEFT;
    all.input = tensor(x, 3, B, LQ, E, 0);
    all.core_out = malloc(CORE * sizeof(float));
    all.whole_out = malloc(WHOLE * sizeof(float));
    all.served_out = malloc(SERVED * sizeof(float));

    for (const struct headway_row *row; (row = check_next_row(&index));)
        check_row(row);
    float *const owned[] = {sinks, q, k, v, x, w, o, all.core_out, all.whole_out, all.served_out};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    return check_end();
}
