/* Caches in use: nothing is allocated. */
#include <stdlib.h>

#include "check.h"
#include "check_alloc.h"

enum { B = 3, TOKENS = 40, HEADS = 4, KV_HEADS = 2, SIZE = 16, WIDTH = 32, ROUNDS = 4 };

/* A call of everything that a cache is for, `rows` tokens at a time. */
struct use {
    const headway_engine *engine;
    headway_mha *layer;
    headway_attention_params params;
    headway_tensor input, output, key, value, query, out;
    void *workspace;
    size_t bytes;
};

static headway_status once(struct use *u)
{
    const headway_tensor old_key =
        headway_tensor_dense(u->key.data, HEADWAY_F32, 3, (int64_t[]){1, KV_HEADS, SIZE});
    headway_kv_cache *cache = u->params.cache;
    headway_status status = headway_kv_cache_append(cache, NULL, NULL, &u->key, &u->value);
    if (status == HEADWAY_OK)
        status = headway_kv_cache_read(cache, 0, 0, &old_key, NULL);
    if (status == HEADWAY_OK)
        status = headway_attention(u->engine, &u->params, &u->query, NULL, NULL, &u->out,
                                   u->workspace, u->bytes);
    if (status == HEADWAY_OK)
        status = headway_mha_forward(u->layer, &u->params, &u->input, NULL, NULL, &u->output,
                                     u->workspace, u->bytes);
    if (status == HEADWAY_OK)
        status = headway_kv_cache_fork(cache, 0, 1);
    if (status == HEADWAY_OK)
        status = headway_kv_cache_truncate(cache, 0, 1);
    return status;
}

static headway_mha *layer_of(const headway_engine *engine)
{
    const int64_t wide = (HEADS + 2 * KV_HEADS) * SIZE;
    const int64_t fused_shape[2] = {wide, WIDTH}, last_shape[2] = {WIDTH, HEADS * SIZE};
    headway_tensor fused = guarded(2, fused_shape, 0.01f), last = guarded(2, last_shape, 0.01f);
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    headway_mha *layer = NULL;
    config.heads = HEADS;
    config.kv_heads = KV_HEADS;
    weights.fused = &fused;
    weights.out = &last;
    CHECK(headway_mha_create(engine, &config, &weights, &layer) == HEADWAY_OK, "no layer");
    check_guard_free(fused.data);
    check_guard_free(last.data);
    return layer;
}

static headway_kv_cache *cache_of(const headway_engine *engine, headway_dtype dtype, int64_t page)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    headway_kv_cache *cache = NULL;
    config.sequences = B;
    config.kv_heads = KV_HEADS;
    config.head_size = SIZE;
    config.capacity = 10 * TOKENS;
    config.key_dtype = config.value_dtype = dtype;
    config.page_size = page;
    CHECK(headway_kv_cache_create(engine, &config, &cache) == HEADWAY_OK, "no cache");
    return cache;
}

static void use_cache(const headway_engine *engine, const char *isa, headway_dtype dtype,
                      int64_t page, int64_t rows)
{
    const int64_t key_shape[4] = {B, rows, KV_HEADS, SIZE}, query_shape[4] = {B, rows, HEADS, SIZE};
    const int64_t input_shape[3] = {B, rows, WIDTH};
    struct use u = {.engine = engine, .params = HEADWAY_ATTENTION_PARAMS_INIT};
    u.layer = layer_of(engine);
    u.params.cache = cache_of(engine, dtype, page);
    u.params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    u.key = guarded(4, key_shape, 1);
    u.value = guarded(4, key_shape, 1);
    u.query = guarded(4, query_shape, 1);
    u.out = guarded(4, query_shape, 1);
    u.input = guarded(3, input_shape, 1);
    u.output = guarded(3, input_shape, 1);
    u.bytes = 64 << 20;
    u.workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, u.bytes);
    headway_status status = once(&u);
    watch_begin();
    for (int n = 1; n < ROUNDS && status == HEADWAY_OK; n++)
        status = once(&u);
    const long calls = watch_end();
    CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
    CHECK(calls == 0, "%s: calls with a cache called the allocator %ld times", isa, calls);
    headway_kv_cache_destroy(u.params.cache);
    headway_mha_destroy(u.layer);
    free(u.workspace);
    void *const owned[] = {u.key.data, u.value.data, u.query.data,
                           u.out.data, u.input.data, u.output.data};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        check_guard_free(owned[i]);
}

void check_caches(const headway_engine *engine, const char *isa)
{
    static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_I8};
    for (int i = 0; i < 3; i++)
        for (int64_t rows = 1; rows <= TOKENS; rows += TOKENS - 1)
            if (check_case("%s: cache of type %d, %lld rows, %d threads", isa, (int)dtypes[i],
                           (long long)rows, headway_engine_threads(engine)))
                use_cache(engine, isa, dtypes[i], 16 * i, rows);
}
