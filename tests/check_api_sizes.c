/* Structs that begin with their size: 0.1 is the first version, so its sizes are the only ones. What is
 * smaller or larger is refused by name, and nothing is made or written. */
#include "check_api.h"

#include <string.h>

static float data[64];
static headway_tensor square, wide, tokens;
static headway_attention_params params;
static headway_rope_config rope;
static headway_mha_config layer_config;
static headway_mha_weights weights;
static headway_kv_cache_config cache_config;
static headway_kv_cache_state state;
static headway_kv_cache *cache;
static headway_mha_sizes layer_sizes;
static headway_mha *layer;

static headway_status ask_core(void)
{
    size_t bytes = 12345;
    const headway_status status =
        headway_attention_workspace(engine, &params, &tokens, &tokens, &tokens, &bytes);
    CHECK((status == HEADWAY_OK) == (bytes != 12345), "bytes: %zu", bytes);
    return status;
}

static headway_status make_layer(void)
{
    headway_mha *made = NULL;
    const headway_status status = headway_mha_create(engine, &layer_config, &weights, &made);
    CHECK((status == HEADWAY_OK) == (made != NULL), "a layer was made, or none");
    headway_mha_destroy(made);
    return status;
}

static headway_status ask_forward(void)
{
    const int64_t one[] = {1, 1, 2};
    const headway_tensor x = headway_tensor_dense(data, HEADWAY_F32, 3, one);
    size_t bytes = 12345;
    const headway_status status = headway_mha_workspace(layer, &params, &x, NULL, NULL, &bytes);
    CHECK((status == HEADWAY_OK) == (bytes != 12345), "bytes: %zu", bytes);
    return status;
}

static headway_status make_cache(void)
{
    headway_kv_cache *made = NULL;
    const headway_status status = headway_kv_cache_create(engine, &cache_config, &made);
    CHECK((status == HEADWAY_OK) == (made != NULL), "a cache was made, or none");
    headway_kv_cache_destroy(made);
    return status;
}

static headway_status ask_cache(void)
{
    state.bytes = -1;
    const headway_status status = headway_kv_cache_get_state(cache, 0, &state);
    CHECK((status == HEADWAY_OK) == (state.bytes != -1), "bytes: %lld", (long long)state.bytes);
    return status;
}

static headway_status ask_layer(void)
{
    layer_sizes.heads = layer_sizes.appended_keys = -1;
    const headway_status status = headway_mha_get_sizes(layer, &layer_sizes);
    CHECK((status == HEADWAY_OK) == (layer_sizes.heads == 1) &&
              (status == HEADWAY_OK) == (layer_sizes.appended_keys == 0),
          "%lld heads, %lld keys appended", (long long)layer_sizes.heads,
          (long long)layer_sizes.appended_keys);
    return status;
}

static void refuse(const char *words, size_t *size, headway_status (*call)(void))
{
    const size_t known = *size, wrong[] = {0, known - 8, known - 1, known + 1, known + 8, SIZE_MAX};
    if (!check_case("sizes: %s", words))
        return;
    for (int i = 0; i < COUNT(wrong); i++) {
        *size = wrong[i];
        expect_error(call(), HEADWAY_ERROR_ARGUMENT, words);
    }
    *size = known;
    CHECK(call() == HEADWAY_OK, "its own size is refused");
}

void check_sizes(void)
{
    const int64_t two[] = {2, 2}, six[] = {6, 2}, four[] = {1, 1, 1, 2};
    square = headway_tensor_dense(data, HEADWAY_F32, 2, two);
    wide = headway_tensor_dense(data, HEADWAY_F32, 2, six);
    tokens = headway_tensor_dense(data, HEADWAY_F32, 4, four);
    params = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
    rope = (headway_rope_config)HEADWAY_ROPE_CONFIG_INIT;
    rope.style = HEADWAY_ROPE_HALF;
    rope.positions = 4;
    layer_config = (headway_mha_config)HEADWAY_MHA_CONFIG_INIT;
    layer_config.heads = 1;
    layer_config.rope = &rope;
    weights = (headway_mha_weights)HEADWAY_MHA_WEIGHTS_INIT;
    weights.fused = &wide;
    weights.out = &square;
    cache_config = (headway_kv_cache_config)HEADWAY_KV_CACHE_CONFIG_INIT;
    cache_config.sequences = cache_config.kv_heads = cache_config.capacity = 1;
    cache_config.head_size = 2;
    state = (headway_kv_cache_state)HEADWAY_KV_CACHE_STATE_INIT;

    refuse("params: size ", &params.size, ask_core);
    refuse("config: size ", &layer_config.size, make_layer);
    refuse("weights: size ", &weights.size, make_layer);
    refuse("rope: size ", &rope.size, make_layer);
    refuse("config: size ", &cache_config.size, make_cache);
    if (headway_kv_cache_create(engine, &cache_config, &cache) == HEADWAY_OK)
        refuse("state: size ", &state.size, ask_cache);
    headway_kv_cache_destroy(cache);
    layer_sizes = (headway_mha_sizes)HEADWAY_MHA_SIZES_INIT;
    if (headway_mha_create(engine, &layer_config, &weights, &layer) == HEADWAY_OK) {
        refuse("sizes: size ", &layer_sizes.size, ask_layer);
        refuse("params: size ", &params.size, ask_forward);
    }
    headway_mha_destroy(layer);
}
