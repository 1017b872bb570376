#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "guest.h"

enum { B = 2, LQ = 70, LK = 150, HQ = 4, HKV = 2, D = 16, E = 24, SLOPES = 12, TOKENS = 40 };

/* Read by all threads; slices of `memory`. */
static struct {
    float *memory, *query, *key, *value, *input, *fused, *last, *norm, *slopes, *sinks;
    unsigned char mask[LQ * LK];
} in;

static float *take(float **from, int64_t count, uint64_t seed, float deviation)
{
    float *taken = *from;
    check_fill_normal(&seed, taken, count, deviation);
    *from += count;
    return taken;
}

/* Every fourth of a line of `size` becomes so small that what is made of it is subnormal. */
static void make_small(float *lines, int64_t count, int64_t size)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < size; c += 4)
            lines[i * size + c] *= 1e-39f;
}

void everything_begin(void)
{
    uint64_t random = 1;
    float *at = malloc((B * LQ * HQ * D + 2 * B * LK * HKV * D + B * LQ * E + D +
                        (HQ + 2 * HKV) * D * E + E * HQ * D + 2 * HQ) *
                       sizeof *at);
    if (!at)
        abort();
    in.memory = at;
    in.query = take(&at, B * LQ * HQ * D, 2, 1);
    in.key = take(&at, B * LK * HKV * D, 3, 1);
    in.value = take(&at, B * LK * HKV * D, 4, 1);
    in.input = take(&at, B * LQ * E, 5, 1);
    in.fused = take(&at, (HQ + 2 * HKV) * D * E, 6, 0.2f);
    in.last = take(&at, E * HQ * D, 7, 0.2f);
    in.norm = take(&at, D, 8, 1);
    in.slopes = take(&at, HQ, 9, 0.1f);
    in.sinks = take(&at, HQ, 10, 1);
    make_small(in.value, B * LK * HKV, D);
    for (int i = 0; i < E; i += 4)
        for (int j = 0; j < HQ * D; j++)
            in.last[i * HQ * D + j] *= 1e-39f;
    for (int i = 0; i < LQ * LK; i++)
        in.mask[i] = check_random(&random) % 5 != 0;
}

void everything_end(void)
{
    free(in.memory);
    in.memory = NULL;
}

struct run {
    const headway_engine *engine;
    float *out;
    int64_t used;
    uint64_t mode;     /* of the thread */
    const char *wrong; /* the first thing */
};

static void tell(struct run *run, headway_status status, const char *what)
{
    if ((status != HEADWAY_OK || mode_bits() != run->mode) && !*run->wrong)
        run->wrong = what;
}

static headway_tensor tensor(float *data, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[] = {a, b, c, d};
    return headway_tensor_dense(data, HEADWAY_F32, rank, shape);
}

/* Room for a result. */
static headway_tensor room(struct run *run, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const headway_tensor made = tensor(run->out + run->used, rank, a, b, c, d);
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= made.shape[i];
    run->used += count;
    if (run->used > EVERYTHING)
        abort();
    return made;
}

static void *workspace_of(size_t bytes)
{
    return aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes / 64 + 1) * 64);
}

static void attention(struct run *run, const headway_attention_params *params,
                      const headway_tensor *query, const headway_tensor *key,
                      const headway_tensor *value)
{
    const headway_tensor out = room(run, 4, query->shape[0], query->shape[1], query->shape[2], D);
    size_t bytes = 0;
    headway_status status =
        headway_attention_workspace(run->engine, params, query, key, value, &bytes);
    void *workspace = workspace_of(bytes);
    if (status == HEADWAY_OK)
        status = headway_attention(run->engine, params, query, key, value, &out, workspace, bytes);
    tell(run, status, "attention");
    free(workspace);
}

static void core(struct run *run)
{
    static const int64_t mask_shape[] = {LQ, LK}, lengths[B] = {LK, LK - 9};
    const headway_tensor query = tensor(in.query, 4, B, LQ, HQ, D);
    const headway_tensor key = tensor(in.key, 4, B, LK, HKV, D);
    const headway_tensor value = tensor(in.value, 4, B, LK, HKV, D);
    const headway_tensor mask = headway_tensor_dense(in.mask, HEADWAY_BOOL, 2, mask_shape);
    const headway_tensor lse = room(run, 3, B, HQ, LQ, 0), weights = room(run, 3, B, LQ, LK, 0);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    attention(run, &params, &query, &key, &value);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.key_lengths = lengths;
    params.window_left = 60;
    params.softcap = 5;
    params.alibi_slopes = in.slopes;
    params.sinks = in.sinks;
    params.mask = &mask;
    params.lse = &lse;
    params.weights = &weights;
    attention(run, &params, &query, &key, &value);
}

static headway_mha *layer_make(struct run *run)
{
    const headway_tensor fused = tensor(in.fused, 2, (HQ + 2 * HKV) * D, E, 0, 0);
    const headway_tensor last = tensor(in.last, 2, E, HQ * D, 0, 0);
    const headway_tensor norm = tensor(in.norm, 1, D, 0, 0, 0);
    headway_rope_config rope = HEADWAY_ROPE_CONFIG_INIT;
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    headway_mha *layer = NULL;
    rope.style = HEADWAY_ROPE_HALF;
    rope.positions = LQ;
    rope.scaling = HEADWAY_ROPE_YARN;
    rope.factor = 4;
    rope.original_positions = 32;
    config.heads = HQ;
    config.kv_heads = HKV;
    config.rope = &rope;
    weights.fused = &fused;
    weights.out = &last;
    weights.query_norm = weights.key_norm = &norm;
    tell(run, headway_mha_create(run->engine, &config, &weights, &layer), "headway_mha_create");
    return layer;
}

/* Rows first .. first + rows - 1 of both sequences. */
static void forward(struct run *run, const headway_mha *layer,
                    const headway_attention_params *params, int64_t first, int64_t rows)
{
    headway_tensor x = tensor(in.input + first * E, 3, B, LQ, E, 0);
    x.shape[1] = rows;
    const headway_tensor out = room(run, 3, B, rows, E, 0);
    size_t bytes = 0;
    headway_status status = headway_mha_workspace(layer, params, &x, NULL, NULL, &bytes);
    void *workspace = workspace_of(bytes);
    if (status == HEADWAY_OK)
        status = headway_mha_forward(layer, params, &x, NULL, NULL, &out, workspace, bytes);
    tell(run, status, "headway_mha_forward");
    free(workspace);
}

static headway_kv_cache *cache_make(struct run *run, headway_dtype dtype, int64_t page_size)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    headway_kv_cache *cache = NULL;
    config.sequences = B;
    config.kv_heads = HKV;
    config.head_size = D;
    config.capacity = LQ;
    config.key_dtype = config.value_dtype = dtype;
    config.page_size = page_size;
    tell(run, headway_kv_cache_create(run->engine, &config, &cache), "headway_kv_cache_create");
    return cache;
}

static void layer(struct run *run)
{
    static const int64_t chunks[] = {20, 1, 1, 3};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_mha *made = layer_make(run);
    if (!made)
        return;
    params.causal = HEADWAY_CAUSAL_TOP_LEFT;
    forward(run, made, &params, 0, LQ);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.cache = cache_make(run, HEADWAY_F32, 4);
    for (int64_t i = 0, first = 0; params.cache && i < 4; first += chunks[i++])
        forward(run, made, &params, first, chunks[i]);
    headway_kv_cache_destroy(params.cache);
    headway_mha_destroy(made);
}

/* Sequences of TOKENS and fewer, read back and attended by one row each and by three. */
static void cached(struct run *run, headway_dtype dtype, int64_t page_size)
{
    static const int64_t lengths[B] = {TOKENS, TOKENS - 7};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_tensor key = tensor(in.key, 4, B, LK, HKV, D);
    headway_tensor value = tensor(in.value, 4, B, LK, HKV, D);
    const headway_tensor old_key = room(run, 3, TOKENS, HKV, D, 0);
    const headway_tensor old_value = room(run, 3, TOKENS, HKV, D, 0);
    params.cache = cache_make(run, dtype, page_size);
    if (!params.cache)
        return;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    key.shape[1] = value.shape[1] = TOKENS;
    tell(run, headway_kv_cache_append(params.cache, NULL, lengths, &key, &value),
         "headway_kv_cache_append");
    tell(run, headway_kv_cache_read(params.cache, 0, 0, &old_key, &old_value),
         "headway_kv_cache_read");
    for (int64_t rows = 1; rows <= 3; rows += 2) {
        headway_tensor query = tensor(in.query, 4, B, LQ, HQ, D);
        query.shape[1] = rows;
        attention(run, &params, &query, NULL, NULL);
    }
    headway_kv_cache_destroy(params.cache);
}

const char *everything(const headway_engine *engine, float *out)
{
    struct run run = {engine, out, 0, mode_bits(), ""};
    memset(out, 0, EVERYTHING * sizeof *out);
    tell(&run, headway_alibi_slopes(SLOPES, room(&run, 1, SLOPES, 0, 0, 0).data),
         "headway_alibi_slopes");
    core(&run);
    layer(&run);
    cached(&run, HEADWAY_F32, 0);
    cached(&run, HEADWAY_BF16, 16);
    cached(&run, HEADWAY_I8, 1);
    return run.wrong;
}
