/* Caches of other systems: what they call a past, a present, a block table or a sink. */
#include "check_compat.h"

#include <string.h>

static headway_kv_cache_config config_of(int64_t sequences, int64_t capacity)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    config.sequences = sequences;
    config.kv_heads = HKV;
    config.head_size = D;
    config.capacity = capacity;
    return config;
}

static headway_kv_cache *make(const headway_kv_cache_config *config)
{
    headway_kv_cache *cache = NULL;
    char text[300];
    const headway_status status = headway_kv_cache_create(engine, config, &cache);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s", headway_status_text(status), text);
    return cache;
}

static float *token(float *of, int b, int j)
{
    return of + (b * lk + j) * HKV * D;
}

/* Tokens from .. to - 1 of the problem's batches into slots[b], or slot b. */
static void append(headway_kv_cache *cache, const int64_t *slots, int from, int to)
{
    headway_tensor k = tensor(token(key, 0, from), HEADWAY_F32, 4, (int[]){B, to - from, HKV, D});
    headway_tensor v = tensor(token(value, 0, from), HEADWAY_F32, 4, (int[]){B, to - from, HKV, D});
    k.stride[0] = v.stride[0] = (int64_t)lk * HKV * D;
    const headway_status status = headway_kv_cache_append(cache, slots, NULL, &k, &v);
    CHECK(status == HEADWAY_OK, "append: %s", headway_status_text(status));
}

static void same_tokens(const float *got, const float *expected, int count, const char *what)
{
    CHECK(memcmp(got, expected, (size_t)count * HKV * D * sizeof(float)) == 0, "%s", what);
}

/* ---- ONNX, ONNX Runtime ------------------------------------------------------------------------
 */

/* Past and key are joined; row i stands at i + the past's length. present is the join. */
static void onnx_past(void)
{
    static const int lengths[][2] = {{1, 9}, {4, 12}, {5, 5}};
    for (int n = 0; n < COUNT(lengths); n++) {
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        struct peer p = peer_plain();
        float present[MOST * HKV * D];
        problem(lengths[n][0], lengths[n][1]);
        p.sees = bottom_right;
        peer_answer(&p);
        const headway_kv_cache_config config = config_of(B, lk);
        headway_kv_cache *cache = make(&config);
        if (lk > lq)
            append(cache, NULL, 0, lk - lq);
        append(cache, NULL, lk - lq, lk);
        params.cache = cache;
        params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        our_answer(params);
        agree_weights("past_key, past_value, is_causal");
        const headway_tensor read = tensor(present, HEADWAY_F32, 3, (int[]){lk, HKV, D});
        CHECK(headway_kv_cache_read(cache, 1, 0, &read, NULL) == HEADWAY_OK, "read");
        same_tokens(present, token(key, 1, 0), lk, "present_key");
        headway_kv_cache_destroy(cache);
    }
}

/* One buffer (B, Hkv, longest, D) is past and present; seqlens_k says the totals less one. */
static void ort_present(void)
{
    static float buffers[2][B * HKV * MOST * D];
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(2, 11);
    p.sees = bottom_right;
    peer_answer(&p);
    const headway_tensor k = tensor(buffers[0], HEADWAY_F32, 4, (int[]){B, HKV, MOST, D});
    const headway_tensor v = tensor(buffers[1], HEADWAY_F32, 4, (int[]){B, HKV, MOST, D});
    headway_kv_cache_config config = config_of(B, MOST);
    config.key = &k;
    config.value = &v;
    memset(buffers, 0xff, sizeof buffers);
    headway_kv_cache *cache = make(&config);
    append(cache, NULL, 0, 9);
    append(cache, NULL, 9, 11);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < HKV; h++)
            for (int j = 0; j < lk; j++)
                CHECK(memcmp(buffers[0] + ((b * HKV + h) * MOST + j) * D, token(key, b, j) + h * D,
                             D * sizeof(float)) == 0,
                      "token %d of batch %d", j, b);
    params.cache = cache;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    our_answer(params);
    agree_weights("past_present_share_buffer");
    headway_kv_cache_destroy(cache);
}

/* ---- vLLM, FlashAttention ----------------------------------------------------------------------
 */

enum { BLOCK = 4, BLOCKS = 11 };

/* block_tables, seq_lens, key_cache (blocks, block size, heads, D); the window keeps W keys. */
static void vllm_blocks(void)
{
    static const int32_t tables[B][4] = {{7, 2, 9, 0}, {3, 10, 1, 5}};
    static float pools[2][BLOCKS * BLOCK * HKV * D];
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(3, 14);
    p.sees = bottom_right;
    peer_answer(&p);
    memset(pools, 0xff, sizeof pools);
    headway_tensor k = tensor(pools[0], HEADWAY_F32, 4, (int[]){BLOCKS, HKV, BLOCK, D}), v;
    k.stride[1] = D;
    k.stride[2] = HKV * D;
    v = k;
    v.data = pools[1];
    for (int b = 0; b < B; b++)
        for (int j = 0; j < lk; j++)
            for (int i = 0; i < 2; i++)
                memcpy(pools[i] + (tables[b][j / BLOCK] * BLOCK + j % BLOCK) * HKV * D,
                       token(i ? value : key, b, j), HKV * D * sizeof(float));
    headway_kv_cache_config config = config_of(B, 4 * BLOCK);
    config.page_size = BLOCK;
    config.pages = BLOCKS;
    config.caller_pages = 1;
    config.key = &k;
    config.value = &v;
    headway_kv_cache *cache = make(&config);
    for (int b = 0; b < B; b++)
        CHECK(headway_kv_cache_set_pages(cache, b, tables[b], 4, lk) == HEADWAY_OK, "pages");
    params.cache = cache;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    our_answer(params);
    agree_weights("block_tables, seq_lens");
    headway_kv_cache_destroy(cache);
}

/* flash_attn_with_kvcache appends k, v at cache_seqlens to the rows cache_batch_idx of the cache. */
static void fa_kvcache(void)
{
    static const int64_t slots[B] = {4, 1};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(3, 12);
    p.sees = bottom_right;
    peer_answer(&p);
    headway_kv_cache_config config = config_of(5, MOST);
    config.page_size = 8;
    headway_kv_cache *cache = make(&config);
    append(cache, slots, 0, 9);
    append(cache, slots, 9, 12);
    params.cache = cache;
    params.cache_slots = slots;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    our_answer(params);
    agree_weights("k, v, cache_seqlens, cache_batch_idx, block_table");
    headway_kv_cache_destroy(cache);
}

/* ---- Hugging Face transformers -----------------------------------------------------------------
 */

/* DynamicCache.crop() drops what came last; reorder_cache() gives beams each other's past. */
static void hf_crop(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(1, 10);
    headway_kv_cache_config config = config_of(B + 1, MOST);
    config.page_size = 4;
    headway_kv_cache *cache = make(&config);
    append(cache, NULL, 0, 7);
    append(cache, NULL, 2, 9);
    for (int b = 0; b < B; b++)
        CHECK(headway_kv_cache_truncate(cache, b, 7) == HEADWAY_OK, "crop");
    append(cache, NULL, 7, 10);
    p.sees = bottom_right;
    peer_answer(&p);
    params.cache = cache;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    our_answer(params);
    agree_weights("crop");
    /* Both beams go on from the second one. */
    CHECK(headway_kv_cache_fork(cache, 1, 0) == HEADWAY_OK, "reorder");
    memcpy(token(key, 0, 0), token(key, 1, 0), (size_t)lk * HKV * D * sizeof(float));
    memcpy(token(value, 0, 0), token(value, 1, 0), (size_t)lk * HKV * D * sizeof(float));
    peer_answer(&p);
    our_answer(params);
    agree_weights("reorder_cache");
    headway_kv_cache_destroy(cache);
}

/* ---- StreamingLLM ------------------------------------------------------------------------------
 */

enum { START = 4, RECENT = 5 };

static int streaming_sees(int b, int h, int i, int j)
{
    (void)b, (void)h;
    const int place = i + lk - lq;
    return j <= place && (j < START || place - j < RECENT);
}

/* start_size first tokens and the recent_size last ones are kept, all others given up. */
static void streaming(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(1, 16);
    p.sees = streaming_sees;
    peer_answer(&p);
    headway_kv_cache_config config = config_of(B, START + 2 * START);
    config.page_size = START;
    config.rolling = 1;
    config.pinned = START;
    headway_kv_cache *cache = make(&config);
    for (int j = 0; j < lk; j++)
        append(cache, NULL, j, j + 1);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.window_first = START;
    params.window_left = RECENT - 1;
    our_answer(params);
    agree_weights("of all tokens");
    params.cache = cache;
    our_answer(params);
    agree_weights("start_size, recent_size");
    params.window_first = 0;
    our_answer(params);
    differ("without its first tokens it is another model");
    headway_kv_cache_destroy(cache);
}

const struct test cache_tests[] = {{"onnx-past", onnx_past},     {"ort-present", ort_present},
                                   {"vllm-blocks", vllm_blocks}, {"fa-kvcache", fa_kvcache},
                                   {"hf-crop", hf_crop},         {"streaming", streaming}};
const int cache_test_count = COUNT(cache_tests);
