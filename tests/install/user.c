/* Another project's program, in C11 and in C++17: every family of calls, and numbers that are exact.
 */
#include <headway/headway.h>
#include <stdio.h>
#include <stdlib.h>

static void must(const headway_engine *engine, headway_status status, const char *what)
{
    char text[200] = "";
    if (status == HEADWAY_OK)
        return;
    if (engine)
        headway_engine_error(engine, text, sizeof text);
    printf("%s: %s: %s\n", what, headway_status_text(status), text);
    exit(1);
}

static headway_tensor tensor(float *data, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[] = {a, b, c, d};
    return headway_tensor_dense(data, HEADWAY_F32, rank, shape);
}

/* A query of zeros sees every key alike: the mean of the values. */
static void core(headway_engine *engine, float *mean, float *cached)
{
    float zeros[2] = {0, 0}, keys[8] = {1, 2, 3, 4, 5, 6, 7, 8}, values[4] = {1, 2, 3, 4};
    const headway_tensor query = tensor(zeros, 4, 1, 1, 1, 2), key = tensor(keys, 4, 1, 4, 1, 2);
    const headway_tensor value = tensor(values, 4, 1, 4, 1, 1), out = tensor(mean, 4, 1, 1, 1, 1);
    const headway_tensor again = tensor(cached, 4, 1, 1, 1, 1);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    headway_kv_cache_state state = HEADWAY_KV_CACHE_STATE_INIT;
    headway_kv_cache *cache = NULL;
    size_t bytes = 0, more = 0;

    config.sequences = config.kv_heads = config.value_head_size = 1;
    config.head_size = config.page_size = 2;
    config.capacity = 6;
    must(engine, headway_kv_cache_create(engine, &config, &cache), "cache");
    must(engine, headway_kv_cache_append(cache, NULL, NULL, &key, &value), "append");
    must(engine, headway_kv_cache_get_state(cache, 0, &state), "state");
    params.cache = cache;
    must(engine, headway_attention_workspace(engine, NULL, &query, &key, &value, &bytes), "bytes");
    must(engine, headway_attention_workspace(engine, &params, &query, NULL, NULL, &more), "more");
    bytes = (bytes > more ? bytes : more) + 63;
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, bytes / 64 * 64);
    must(engine,
         headway_attention(engine, NULL, &query, &key, &value, &out, workspace, bytes / 64 * 64),
         "attention");
    must(engine,
         headway_attention(engine, &params, &query, NULL, NULL, &again, workspace, bytes / 64 * 64),
         "attention with a cache");
    must(NULL, state.length == 4 ? HEADWAY_OK : HEADWAY_ERROR_ARGUMENT, "length");
    free(workspace);
    headway_kv_cache_destroy(cache);
}

/* One token, and weights that change nothing: the token. */
static void layer(headway_engine *engine, float *y)
{
    float unit[12] = {1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1}, x[2] = {3, -1};
    const headway_tensor in = tensor(unit, 2, 6, 2, 0, 0), back = tensor(unit, 2, 2, 2, 0, 0);
    const headway_tensor token = tensor(x, 3, 1, 1, 2, 0), out = tensor(y, 3, 1, 1, 2, 0);
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    headway_rope_config rope = HEADWAY_ROPE_CONFIG_INIT;
    headway_mha *mha = NULL;
    size_t bytes = 0;

    rope.style = HEADWAY_ROPE_HALF;
    rope.positions = 8;
    config.heads = 1;
    config.rope = &rope;
    weights.fused = &in;
    weights.out = &back;
    must(engine, headway_mha_create(engine, &config, &weights, &mha), "layer");
    must(engine, headway_mha_workspace(mha, NULL, &token, NULL, NULL, &bytes), "layer's bytes");
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes + 64) / 64 * 64);
    must(engine, headway_mha_forward(mha, NULL, &token, NULL, NULL, &out, workspace, bytes),
         "forward");
    free(workspace);
    headway_mha_destroy(mha);
}

int main(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = NULL;
    float mean = 0, cached = 0, y[2] = {0, 0};
    must(NULL, headway_engine_create(&config, &engine), "engine");
    core(engine, &mean, &cached);
    layer(engine, y);
    headway_engine_destroy(engine);
    printf("%s: %g %g %g %g\n", headway_version(), mean, cached, y[0], y[1]);
    return 0;
}
