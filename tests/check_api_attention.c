/* The arguments of headway_attention() and of the two functions that take the same ones. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "check_api.h"

enum { B = 2, LQ = 3, LK = 5, HQ = 4, HKV = 2, D = 8, DV = 6, FLOATS = 2000, UNTOUCHED = 4242 };

struct fixture {
    headway_attention_params params;
    headway_tensor query, key, value, out, mask, lse, weights, interval, positions;
    const headway_engine *engine;
    const headway_attention_params *params_at;
    const headway_tensor *query_at, *key_at, *value_at, *out_at;
    float scale, slopes[HQ], sinks[HQ];
    int64_t offsets[B], query_lengths[B], key_lengths[B], query_starts[3], key_starts[3];
    float memory[FLOATS]; /* all operands, one after the other */
    _Alignas(64) unsigned char workspace[1 << 20];
    void *workspace_at;
    size_t bytes;
    size_t *bytes_at;
    char text[4000];
    char *text_at;
    size_t text_size;
};

static struct fixture f;

static void reset(void)
{
    static const int64_t query[4] = {B, LQ, HQ, D}, key[4] = {B, LK, HKV, D},
                         value[4] = {B, LK, HKV, DV}, out[4] = {B, LQ, HQ, DV},
                         mask[4] = {B, HQ, LQ, LK}, lse[3] = {B, HQ, LQ}, interval[3] = {B, LQ, 2};
    const headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    f.params = params;
    f.params_at = &f.params;
    f.query = headway_tensor_dense(f.memory, HEADWAY_F32, 4, query);
    f.key = headway_tensor_dense(f.memory + 200, HEADWAY_F32, 4, key);
    f.value = headway_tensor_dense(f.memory + 400, HEADWAY_F32, 4, value);
    f.mask = headway_tensor_dense(f.memory + 600, HEADWAY_F32, 4, mask);
    f.lse = headway_tensor_dense(f.memory + 800, HEADWAY_F32, 3, lse);
    f.out = headway_tensor_dense(f.memory + 1000, HEADWAY_F32, 4, out);
    f.weights = headway_tensor_dense(f.memory + 1200, HEADWAY_F32, 4, mask);
    f.interval = headway_tensor_dense(f.memory + 1400, HEADWAY_I32, 3, interval);
    f.positions = headway_tensor_dense(f.memory + 1500, HEADWAY_I32, 2, query);
    f.query_at = &f.query;
    f.key_at = &f.key;
    f.value_at = &f.value;
    f.out_at = &f.out;
    f.params.mask = &f.mask;
    f.params.lse = &f.lse;
    f.engine = engine;
    f.scale = 0.5f;
    for (int b = 0; b < B; b++) {
        f.offsets[b] = 1;
        f.query_lengths[b] = LQ;
        f.key_lengths[b] = LK - b;
    }
    for (int h = 0; h < HQ; h++) {
        f.slopes[h] = 0.5f;
        f.sinks[h] = -INFINITY;
    }
    for (int i = 0; i < FLOATS; i++)
        f.memory[i] = 0.01f * (float)(i % 17);
    for (int i = 0; i < B * LQ * 2; i++)
        memcpy(f.memory + 1400 + i, &(int32_t){i % 2 ? LK : -1}, sizeof(int32_t));
    f.workspace_at = f.workspace;
    f.bytes = UNTOUCHED;
    f.bytes_at = &f.bytes;
    memset(f.text, '#', sizeof f.text);
    f.text_at = f.text;
    f.text_size = sizeof f.text;
}

/* Two sequences packed along the lengths of a batch of one. */
static void pack(void)
{
    f.query.shape[0] = f.key.shape[0] = f.value.shape[0] = f.out.shape[0] = f.lse.shape[0] = 1;
    f.params.mask = NULL;
    f.params.sequences = 2;
    f.params.query_starts = f.query_starts;
    f.params.key_starts = f.key_starts;
    f.query_starts[0] = f.key_starts[0] = 0;
    f.query_starts[1] = 1;
    f.query_starts[2] = LQ;
    f.key_starts[1] = 4;
    f.key_starts[2] = LK;
}

/* Every tensor with (2, 2) in place of the batch. */
static void lead(void)
{
    headway_tensor *const all[] = {&f.query, &f.key, &f.value,   &f.out,
                                   &f.mask,  &f.lse, &f.weights, &f.interval};
    for (int n = 0; n < COUNT(all); n++) {
        headway_tensor *t = all[n];
        memmove(t->shape + 1, t->shape, (size_t)t->rank * sizeof *t->shape);
        memmove(t->stride + 1, t->stride, (size_t)t->rank * sizeof *t->stride);
        t->rank++;
        t->shape[0] = 2;
        t->stride[0] = 2 * t->stride[1];
    }
    f.params.interval = &f.interval;
    f.params.weights = &f.weights;
}

static float *out_float(int at)
{
    return (float *)f.out.data + at;
}

/* More keys than the memory holds. */
static void many_keys(int64_t keys)
{
    f.key.shape[1] = f.value.shape[1] = keys;
    f.key.stride[1] = f.value.stride[1] = 0;
    f.params.alibi_slopes = f.slopes;
}

static void slopes_and_offsets(void)
{
    f.params.alibi_slopes = f.slopes;
    f.params.row_offsets = f.offsets;
}

static headway_tensor *interval(void)
{
    f.params.interval = &f.interval;
    return &f.interval;
}

static headway_tensor *weights(void)
{
    f.params.weights = &f.weights;
    return &f.weights;
}

/* Which functions look at the argument. */
enum { WORKSPACE = 1, CALL = 2, EXPLAIN = 4, ALL = 7 };

static headway_status ask_workspace(void)
{
    return headway_attention_workspace(f.engine, f.params_at, f.query_at, f.key_at, f.value_at,
                                       f.bytes_at);
}

static headway_status call(size_t bytes)
{
    return headway_attention(f.engine, f.params_at, f.query_at, f.key_at, f.value_at, f.out_at,
                             f.workspace_at, bytes);
}

static headway_status explain(void)
{
    return headway_attention_explain(f.engine, f.params_at, f.query_at, f.key_at, f.value_at,
                                     f.text_at, f.text_size);
}

struct bad {
    const char *name;
    void (*spoil)(void);
    headway_status status;
    const char *words;
    int where;
};

static void try_bad(const struct bad *bad)
{
    static float before[FLOATS];
    if (!check_case("attention: %s", bad->name))
        return;
    for (int where = WORKSPACE; where <= EXPLAIN; where *= 2) {
        reset();
        bad->spoil();
        memcpy(before, f.memory, sizeof before);
        memset(f.workspace, 0x5a, sizeof f.workspace);
        const headway_status status = where == WORKSPACE ? ask_workspace()
                                      : where == CALL    ? call(sizeof f.workspace)
                                                         : explain();
        if (bad->where & where) {
            expect_error(status, bad->status, f.engine ? bad->words : "");
            CHECK(f.bytes == UNTOUCHED, "*bytes was written");
            CHECK(f.text[0] == '#', "the text was written");
            CHECK(memcmp(before, f.memory, sizeof before) == 0, "an operand was written");
            for (size_t i = 0; i < sizeof f.workspace; i += 997)
                CHECK(f.workspace[i] == 0x5a, "the workspace was written");
        } else {
            CHECK(status == HEADWAY_OK, "function %d: %s", where, headway_status_text(status));
        }
    }
}

#define BAD(name, ...)                                                                             \
    static void name(void)                                                                         \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

BAD(no_engine, f.engine = NULL)
BAD(no_query, f.query_at = NULL)
BAD(no_key, f.key_at = NULL)
BAD(no_value, f.value_at = NULL)
BAD(no_out, f.out_at = NULL)
BAD(no_bytes, f.bytes_at = NULL)
BAD(no_text, f.text_at = NULL)
BAD(no_room, f.text_size = 0)
BAD(size_0, f.params.size = 0)
BAD(size_small, f.params.size -= 1)
BAD(size_large, f.params.size += 8)
BAD(query_rank, f.query.rank = 2)
BAD(key_rank, f.key.rank = 5)
BAD(value_rank, f.value.rank = 0)
BAD(out_rank, f.out.rank = -1)
BAD(query_f16, f.query.dtype = HEADWAY_F16)
BAD(key_bf16, f.key.dtype = HEADWAY_BF16)
BAD(value_bool, f.value.dtype = HEADWAY_BOOL)
BAD(out_f16, f.out.dtype = HEADWAY_F16)
BAD(query_type, f.query.dtype = (headway_dtype)99)
BAD(out_type, f.out.dtype = (headway_dtype)-1)
BAD(query_negative, f.query.shape[1] = -1)
BAD(key_negative, f.key.shape[1] = f.value.shape[1] = -5)
BAD(value_negative, f.value.shape[3] = -1)
BAD(query_least, f.query.shape[0] = INT64_MIN)
BAD(no_size, f.query.shape[3] = f.key.shape[3] = 0)
BAD(no_heads, f.query.shape[2] = 0)
BAD(no_kv_heads, f.key.shape[2] = f.value.shape[2] = 0)
BAD(three_heads, f.query.shape[2] = 3)
BAD(more_kv_heads, f.key.shape[2] = f.value.shape[2] = 8)
BAD(key_batch, f.key.shape[0] = 1)
BAD(key_size, f.key.shape[3] = 7)
BAD(value_batch, f.value.shape[0] = 3)
BAD(value_length, f.value.shape[1] = 4)
BAD(value_heads, f.value.shape[2] = 1)
BAD(out_batch, f.out.shape[0] = 1)
BAD(out_rows, f.out.shape[1] = 2)
BAD(out_heads, f.out.shape[2] = 2)
BAD(out_size, f.out.shape[3] = D)
BAD(query_far, f.query.stride[1] = INT64_MAX)
BAD(key_far, f.key.stride[0] = INT64_MIN)
BAD(value_far, f.value.stride[2] = INT64_C(1) << 61)
BAD(out_far, f.out.stride[0] = -(INT64_C(1) << 60))
BAD(key_product, f.key.shape[1] = f.value.shape[1] = INT64_MAX / 4)
BAD(sums_far, f.query.stride[0] = INT64_C(1) << 59; f.query.stride[1] = INT64_C(1) << 59)
BAD(query_data, f.query.data = NULL)
BAD(key_data, f.key.data = NULL)
BAD(value_data, f.value.data = NULL)
BAD(out_data, f.out.data = NULL)
BAD(query_odd, f.query.data = (char *)f.query.data + 1)
BAD(out_odd, f.out.data = (char *)f.out.data + 2)
BAD(query_inner, f.query.stride[3] = 2)
BAD(key_inner, f.key.stride[3] = 0)
BAD(value_inner, f.value.stride[3] = -1)
BAD(out_inner, f.out.stride[3] = 2)
BAD(out_rows_one, f.out.stride[1] = 0)
BAD(out_heads_close, f.out.stride[2] = DV - 1)
BAD(out_batch_close, f.out.stride[0] = DV)
BAD(out_folded, f.out.stride[2] = -DV; f.out.stride[1] = DV)
BAD(out_is_query, f.out.data = f.query.data)
BAD(out_is_key, f.out.data = (float *)f.key.data + 100)
BAD(out_is_value, f.out.data = (float *)f.value.data - 100)
BAD(out_is_mask, f.out.data = (float *)f.mask.data + 119)
BAD(out_is_lse, f.out.data = (float *)f.lse.data + 23)
BAD(lse_is_query, f.lse.data = f.query.data)
BAD(lse_is_key, f.lse.data = (float *)f.key.data + 159)
BAD(lse_is_value, f.lse.data = f.value.data)
BAD(lse_is_mask, f.lse.data = f.mask.data)
BAD(lse_shape, f.lse.shape[2] = LQ + 1)
BAD(lse_turned, f.lse.shape[1] = LQ; f.lse.shape[2] = HQ)
BAD(lse_batch, f.lse.shape[0] = 1)
BAD(lse_rank, f.lse.rank = 2)
BAD(lse_f16, f.lse.dtype = HEADWAY_F16)
BAD(lse_stride_0, f.lse.stride[0] = 0)
BAD(lse_data, f.lse.data = NULL)
BAD(lse_odd, f.lse.data = (char *)f.lse.data + 1)
BAD(mask_rank_0, f.mask.rank = 0)
BAD(mask_rank_3, f.mask.rank = 3)
BAD(mask_rank_5, f.mask.rank = 5)
BAD(mask_i32, f.mask.dtype = HEADWAY_I32)
BAD(mask_type, f.mask.dtype = (headway_dtype)7)
BAD(mask_keys, f.mask.shape[3] = LK - 1)
BAD(mask_rows, f.mask.shape[2] = 2)
BAD(mask_heads, f.mask.shape[1] = HKV)
BAD(mask_batch, f.mask.shape[0] = 3)
BAD(mask_negative, f.mask.shape[0] = -1)
BAD(mask_none, f.mask.shape[3] = 0)
BAD(mask_2, f.mask.rank = 2; f.mask.shape[0] = LK; f.mask.shape[1] = LQ)
BAD(mask_1, f.mask.rank = 1; f.mask.shape[0] = LQ)
BAD(mask_data, f.mask.data = NULL)
BAD(mask_odd, f.mask.data = (char *)f.mask.data + 3)
BAD(mask_far, f.mask.stride[2] = INT64_MAX)
BAD(query_length_negative, f.query_lengths[1] = -1; f.params.query_lengths = f.query_lengths)
BAD(query_length_large, f.query_lengths[0] = LQ + 1; f.params.query_lengths = f.query_lengths)
BAD(key_length_negative, f.key_lengths[0] = INT64_MIN; f.params.key_lengths = f.key_lengths)
BAD(key_length_large, f.key_lengths[1] = LK + 1; f.params.key_lengths = f.key_lengths)
BAD(causal_unknown, f.params.causal = (headway_causal)4)
BAD(causal_negative, f.params.causal = (headway_causal)-1)
BAD(offsets_missing, f.params.causal = HEADWAY_CAUSAL_OFFSETS)
BAD(offsets_top_left, f.params.causal = HEADWAY_CAUSAL_TOP_LEFT; f.params.row_offsets = f.offsets)
BAD(offsets_besides, f.params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    f.params.row_offsets = f.offsets)
BAD(window_left, f.params.window_left = -2)
BAD(window_right, f.params.window_right = INT64_MIN)
BAD(interval_rank_1, interval()->rank = 1)
BAD(interval_rank_4, interval()->rank = 4)
BAD(interval_f32, interval()->dtype = HEADWAY_F32)
BAD(interval_batch, interval()->shape[0] = 3)
BAD(interval_rows, interval()->shape[1] = 1)
BAD(interval_ends, interval()->shape[2] = 1)
BAD(interval_2, interval()->rank = 2)
BAD(interval_far, interval()->stride[2] = INT64_MIN)
BAD(interval_data, interval()->data = NULL)
BAD(interval_odd, interval()->data = (char *)f.interval.data + 2)
BAD(interval_is_out, interval()->data = f.out.data)
BAD(interval_is_lse, interval()->data = f.lse.data)
BAD(interval_is_weights, interval()->data = f.weights.data; weights())
BAD(softcap_negative, f.params.softcap = -1)
BAD(softcap_nan, f.params.softcap = NAN)
BAD(softcap_inf, f.params.softcap = INFINITY)
BAD(softcap_tiny, f.params.softcap = 1e-38f)
BAD(softcap_huge, f.params.softcap = 3e38f)
BAD(slope_nan, f.params.alibi_slopes = f.slopes; f.slopes[2] = NAN)
BAD(slope_inf, f.params.alibi_slopes = f.slopes; f.slopes[3] = -INFINITY)
BAD(slopes_offset, slopes_and_offsets(); f.offsets[1] = INT32_MAX - LQ - LK + 1)
BAD(slopes_offset_low, slopes_and_offsets(); f.offsets[0] = -(INT32_MAX - LQ - LK + 1))
BAD(slopes_offset_most, slopes_and_offsets(); f.offsets[0] = INT64_MAX)
BAD(slopes_offset_least, slopes_and_offsets(); f.offsets[1] = INT64_MIN)
BAD(slopes_keys, many_keys(INT32_MAX - LQ + 1))
BAD(slopes_bottom_right, many_keys(INT32_MAX / 2); f.params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT)
BAD(sink_nan, f.params.sinks = f.sinks; f.sinks[0] = NAN)
BAD(sink_inf, f.params.sinks = f.sinks; f.sinks[3] = INFINITY)
BAD(sequences_negative, pack(); f.params.sequences = -1)
BAD(sequences_least, pack(); f.params.sequences = INT64_MIN)
BAD(sequences_alone, f.params.sequences = 2)
BAD(sequences_few, pack(); f.params.sequences = 1)
BAD(sequences_none, pack(); f.params.sequences = 0)
BAD(key_starts_alone, f.params.key_starts = f.key_starts)
BAD(key_starts_missing, pack(); f.params.key_starts = NULL)
BAD(starts_batch, pack(); f.query.shape[0] = f.key.shape[0] = f.value.shape[0] = 2)
BAD(starts_query_lengths, pack(); f.params.query_lengths = f.query_lengths)
BAD(starts_key_lengths, pack(); f.params.key_lengths = f.key_lengths)
BAD(starts_weights, pack(); weights())
BAD(starts_first, pack(); f.query_starts[0] = 1)
BAD(starts_first_least, pack(); f.key_starts[0] = INT64_MIN)
BAD(starts_falling, pack(); f.key_starts[1] = -1)
BAD(starts_high, pack(); f.query_starts[1] = LQ + 1)
BAD(starts_most, pack(); f.key_starts[1] = INT64_MAX)
BAD(starts_short, pack(); f.query_starts[2] = LQ - 1)
BAD(starts_long, pack(); f.key_starts[2] = LK + 1)
BAD(starts_lse, pack(); f.lse.shape[2] = LQ - 1)
BAD(starts_lse_batch, pack(); f.lse.shape[0] = 2)
BAD(starts_out, pack(); f.out.shape[1] = LQ - 1)
BAD(starts_mask, pack(); f.params.mask = &f.mask)
BAD(starts_offset, pack(); slopes_and_offsets(); f.offsets[1] = INT64_MAX)
BAD(query_positions, f.params.query_positions = &f.positions)
BAD(key_positions, f.params.key_positions = &f.positions)
BAD(weights_rank_2, weights()->rank = 2)
BAD(weights_rank_5, weights()->rank = 5)
BAD(weights_f16, weights()->dtype = HEADWAY_F16)
BAD(weights_batch, weights()->shape[0] = 1)
BAD(weights_heads, weights()->shape[1] = HKV)
BAD(weights_rows, weights()->shape[2] = LQ + 1)
BAD(weights_keys, weights()->shape[3] = LK - 1)
BAD(weights_mean, weights()->rank = 3)
BAD(weights_inner, weights()->stride[3] = 2)
BAD(weights_inner_0, weights()->stride[3] = 0)
BAD(weights_stride_0, weights()->stride[0] = 0)
BAD(weights_close, weights()->stride[2] = LK - 1)
BAD(weights_far, weights()->stride[1] = INT64_MAX)
BAD(weights_data, weights()->data = NULL)
BAD(weights_odd, weights()->data = (char *)f.weights.data + 1)
BAD(weights_is_out, weights()->data = (float *)f.out.data + 143)
BAD(weights_is_lse, weights()->data = f.lse.data)
BAD(weights_is_query, weights()->data = f.query.data)
BAD(weights_is_key, weights()->data = f.key.data)
BAD(weights_is_value, weights()->data = f.value.data)
BAD(weights_is_mask, weights()->data = f.mask.data)
BAD(key_no_batch, f.key.rank = 3)
BAD(query_leads, lead(); f.query.stride[0] += 1)
BAD(key_leads, lead(); f.key.stride[0] = 0)
BAD(value_leads, lead(); f.value.stride[1] = -f.value.stride[1])
BAD(out_leads, lead(); f.out.stride[0] *= 2)
BAD(lse_leads, lead(); f.lse.stride[0] *= 2)
BAD(mask_leads, lead(); f.mask.stride[0] = INT64_C(1) << 40)
BAD(mask_lead_shared, lead(); f.mask.shape[1] = 1)
BAD(interval_leads, lead(); f.interval.stride[0] = -5)
BAD(weights_leads, lead(); f.weights.stride[0] *= 2)
BAD(key_lead_extents, lead(); f.key.shape[0] = 1)
BAD(key_lead_rank, lead(); f.key.rank = 6)
BAD(query_rank_9, f.query.rank = HEADWAY_MAX_RANK + 1)
BAD(query_rank_least, f.query.rank = INT_MIN)
BAD(mask_rank_least, f.mask.rank = INT_MIN)
BAD(lse_rank_most, f.lse.rank = INT_MAX)
BAD(out_is_scale, f.params.scale = out_float(3))
BAD(out_is_slopes, f.params.alibi_slopes = out_float(143))
BAD(out_is_sinks, f.params.sinks = out_float(-3))
BAD(out_is_offsets, f.params.row_offsets = (int64_t *)(void *)out_float(0);
    memset(f.out.data, 0, sizeof f.offsets))
BAD(out_is_lengths, f.params.key_lengths = (int64_t *)(void *)out_float(0);
    memset(f.out.data, 0, sizeof f.key_lengths))
BAD(lse_is_starts, pack(); memcpy(f.lse.data, f.key_starts, sizeof f.key_starts);
    f.params.key_starts = f.lse.data)
BAD(workspace_is_sinks, f.params.sinks = memset(f.workspace, 0, sizeof f.sinks))
BAD(scale_nan, f.scale = NAN; f.params.scale = &f.scale)
BAD(scale_inf, f.scale = -INFINITY; f.params.scale = &f.scale)
BAD(workspace_missing, f.workspace_at = NULL)
BAD(workspace_odd, f.workspace_at = f.workspace + 32)

#define ARGUMENT HEADWAY_ERROR_ARGUMENT
#define OVERLAP HEADWAY_ERROR_OVERLAP
#define MEMORY HEADWAY_ERROR_MEMORY
#define UNSUPPORTED HEADWAY_ERROR_UNSUPPORTED
#define CASE(name, status, words, where)                                                           \
    {                                                                                              \
#name, name, status, words, where                                                          \
    }

static const struct bad bads[] = {
    CASE(no_engine, ARGUMENT, "", ALL),
    CASE(no_query, ARGUMENT, "query: NULL", ALL),
    CASE(no_key, ARGUMENT, "key: NULL", ALL),
    CASE(no_value, ARGUMENT, "value: NULL", ALL),
    CASE(no_out, ARGUMENT, "out: NULL", CALL),
    CASE(no_bytes, ARGUMENT, "bytes: NULL", WORKSPACE),
    CASE(no_text, ARGUMENT, "text", EXPLAIN),
    CASE(no_room, ARGUMENT, "text", EXPLAIN),
    CASE(size_0, ARGUMENT, "params: size 0", ALL),
    CASE(size_small, ARGUMENT, "params: size", ALL),
    CASE(size_large, ARGUMENT, "params: size", ALL),
    CASE(query_rank, ARGUMENT, "query: rank 2", ALL),
    CASE(key_rank, ARGUMENT, "key: rank 5", ALL),
    CASE(value_rank, ARGUMENT, "value: rank 0", ALL),
    CASE(out_rank, ARGUMENT, "out: rank -1", CALL),
    CASE(query_f16, UNSUPPORTED, "query: dtype F16", ALL),
    CASE(key_bf16, UNSUPPORTED, "key: dtype BF16", ALL),
    CASE(value_bool, UNSUPPORTED, "value: dtype BOOL", ALL),
    CASE(out_f16, UNSUPPORTED, "out: dtype F16", CALL),
    CASE(query_type, ARGUMENT, "query: dtype", ALL),
    CASE(out_type, ARGUMENT, "out: dtype", CALL),
    CASE(query_negative, ARGUMENT, "query: extent -1", ALL),
    CASE(key_negative, ARGUMENT, "key: extent -5", ALL),
    CASE(value_negative, ARGUMENT, "value: extent -1", ALL),
    CASE(query_least, ARGUMENT, "query: extent", ALL),
    CASE(no_size, ARGUMENT, "head size 0", ALL),
    CASE(no_heads, ARGUMENT, "heads", ALL),
    CASE(no_kv_heads, ARGUMENT, "0 heads", ALL),
    CASE(three_heads, ARGUMENT, "2 heads for 3 query heads", ALL),
    CASE(more_kv_heads, ARGUMENT, "8 heads for 4 query heads", ALL),
    CASE(key_batch, ARGUMENT, "key: extent 1 on axis 0", ALL),
    CASE(key_size, ARGUMENT, "key: extent 7 on axis 3", ALL),
    CASE(value_batch, ARGUMENT, "value: extent 3 on axis 0", ALL),
    CASE(value_length, ARGUMENT, "value: extent 4 on axis 1", ALL),
    CASE(value_heads, ARGUMENT, "value: extent 1 on axis 2", ALL),
    CASE(out_batch, ARGUMENT, "out: extent 1 on axis 0", CALL),
    CASE(out_rows, ARGUMENT, "out: extent 2 on axis 1", CALL),
    CASE(out_heads, ARGUMENT, "out: extent 2 on axis 2", CALL),
    CASE(out_size, ARGUMENT, "out: extent 8 on axis 3", CALL),
    CASE(query_far, MEMORY, "query", ALL),
    CASE(key_far, MEMORY, "key", ALL),
    CASE(value_far, MEMORY, "value", ALL),
    CASE(out_far, MEMORY, "out", CALL),
    CASE(key_product, MEMORY, "key", ALL),
    CASE(sums_far, MEMORY, "query", ALL),
    CASE(query_data, ARGUMENT, "query: data is NULL", CALL),
    CASE(key_data, ARGUMENT, "key: data is NULL", CALL),
    CASE(value_data, ARGUMENT, "value: data is NULL", CALL),
    CASE(out_data, ARGUMENT, "out: data is NULL", CALL),
    CASE(query_odd, ARGUMENT, "query: data is not aligned", CALL),
    CASE(out_odd, ARGUMENT, "out: data is not aligned", CALL),
    CASE(query_inner, ARGUMENT, "query: innermost stride 2", CALL),
    CASE(key_inner, ARGUMENT, "key: innermost stride 0", CALL),
    CASE(value_inner, ARGUMENT, "value: innermost stride -1", CALL),
    CASE(out_inner, ARGUMENT, "out: innermost stride 2", CALL),
    CASE(out_rows_one, OVERLAP, "out: stride 0 of axis 1", CALL),
    CASE(out_heads_close, OVERLAP, "out: stride 5 of axis 2", CALL),
    CASE(out_batch_close, OVERLAP, "out: stride 6 of axis", CALL),
    CASE(out_folded, OVERLAP, "out: stride", CALL),
    CASE(out_is_query, OVERLAP, "out: overlaps query", CALL),
    CASE(out_is_key, OVERLAP, "out: overlaps key", CALL),
    CASE(out_is_value, OVERLAP, "out: overlaps", CALL),
    CASE(out_is_mask, OVERLAP, "out: overlaps mask", CALL),
    CASE(out_is_lse, OVERLAP, "lse: overlaps out", CALL),
    CASE(lse_is_query, OVERLAP, "lse: overlaps query", CALL),
    CASE(lse_is_key, OVERLAP, "lse: overlaps key", CALL),
    CASE(lse_is_value, OVERLAP, "lse: overlaps value", CALL),
    CASE(lse_is_mask, OVERLAP, "lse: overlaps mask", CALL),
    CASE(lse_shape, ARGUMENT, "lse: extent 4 on axis 2", ALL),
    CASE(lse_turned, ARGUMENT, "lse: extent 3 on axis 1", ALL),
    CASE(lse_batch, ARGUMENT, "lse: extent 1 on axis 0", ALL),
    CASE(lse_rank, ARGUMENT, "lse: rank 2", ALL),
    CASE(lse_f16, UNSUPPORTED, "lse: dtype F16", ALL),
    CASE(lse_stride_0, OVERLAP, "lse: stride 0", ALL),
    CASE(lse_data, ARGUMENT, "lse: data is NULL", CALL),
    CASE(lse_odd, ARGUMENT, "lse: data is not aligned", CALL),
    CASE(mask_rank_0, ARGUMENT, "mask: rank 0", ALL),
    CASE(mask_rank_3, ARGUMENT, "mask: rank 3", ALL),
    CASE(mask_rank_5, ARGUMENT, "mask: rank 5", ALL),
    CASE(mask_i32, ARGUMENT, "mask: dtype I32", ALL),
    CASE(mask_type, ARGUMENT, "mask: dtype", ALL),
    CASE(mask_keys, ARGUMENT, "mask: extent 4 on axis 3", ALL),
    CASE(mask_rows, ARGUMENT, "mask: extent 2 on axis 2", ALL),
    CASE(mask_heads, ARGUMENT, "mask: extent 2 on axis 1", ALL),
    CASE(mask_batch, ARGUMENT, "mask: extent 3 on axis 0", ALL),
    CASE(mask_negative, ARGUMENT, "mask: extent -1", ALL),
    CASE(mask_none, ARGUMENT, "mask: extent 0 on axis 3", ALL),
    CASE(mask_2, ARGUMENT, "mask: extent 5 on axis 0", ALL),
    CASE(mask_1, ARGUMENT, "mask: extent 3 on axis 0", ALL),
    CASE(mask_data, ARGUMENT, "mask: data is NULL", CALL),
    CASE(mask_odd, ARGUMENT, "mask: data is not aligned", CALL),
    CASE(mask_far, MEMORY, "mask", ALL),
    CASE(query_length_negative, ARGUMENT, "query_lengths: -1 for batch 1", ALL),
    CASE(query_length_large, ARGUMENT, "query_lengths: 4 for batch 0", ALL),
    CASE(key_length_negative, ARGUMENT, "key_lengths", ALL),
    CASE(key_length_large, ARGUMENT, "key_lengths: 6 for batch 1", ALL),
    CASE(causal_unknown, ARGUMENT, "causal: 4", ALL),
    CASE(causal_negative, ARGUMENT, "causal: -1", ALL),
    CASE(offsets_missing, ARGUMENT, "row_offsets", ALL),
    CASE(offsets_top_left, ARGUMENT, "row_offsets", ALL),
    CASE(offsets_besides, ARGUMENT, "row_offsets", ALL),
    CASE(window_left, ARGUMENT, "window_left: -2, expected 0 or more, or -1", ALL),
    CASE(window_right, ARGUMENT, "window_right: -9223372036854775808, expected", ALL),
    CASE(interval_rank_1, ARGUMENT, "interval: rank 1, expected 3 (B, Lq, 2)", ALL),
    CASE(interval_rank_4, ARGUMENT, "interval: rank 4, expected 3 (B, Lq, 2)", ALL),
    CASE(interval_f32, ARGUMENT, "interval: dtype F32 (0), expected I32", ALL),
    CASE(interval_batch, ARGUMENT, "interval: extent 3 on axis 0, expected 1 or 2", ALL),
    CASE(interval_rows, ARGUMENT, "interval: extent 1 on axis 1, expected 3", ALL),
    CASE(interval_ends, ARGUMENT, "interval: extent 1 on axis 2, expected 2", ALL),
    CASE(interval_2, ARGUMENT, "interval: extent 2 on axis 0, expected 3", ALL),
    CASE(interval_far, MEMORY, "interval", ALL),
    CASE(interval_data, ARGUMENT, "interval: data is NULL", CALL),
    CASE(interval_odd, ARGUMENT, "interval: data is not aligned", CALL),
    CASE(interval_is_out, OVERLAP, "out: overlaps interval", CALL),
    CASE(interval_is_lse, OVERLAP, "lse: overlaps interval", CALL),
    CASE(interval_is_weights, OVERLAP, "weights: overlaps interval", CALL),
    CASE(softcap_negative, ARGUMENT, "softcap: -1, expected 0 (none) or 2^-125 .. 2^125", ALL),
    CASE(softcap_nan, ARGUMENT, "softcap: nan, expected", ALL),
    CASE(softcap_inf, ARGUMENT, "softcap: inf, expected", ALL),
    CASE(softcap_tiny, ARGUMENT, "softcap: 1e-38, expected", ALL),
    CASE(softcap_huge, ARGUMENT, "softcap: 3e+38, expected", ALL),
    CASE(slope_nan, ARGUMENT, "alibi_slopes: nan for head 2, expected a finite number", ALL),
    CASE(slope_inf, ARGUMENT, "alibi_slopes: -inf for head 3, expected", ALL),
    CASE(slopes_offset, ARGUMENT, "row_offsets: 2147483640 for batch 1, expected -2147", ALL),
    CASE(slopes_offset_low, ARGUMENT, "row_offsets: -2147483640 for batch 0, expected -2147", ALL),
    CASE(slopes_offset_most, ARGUMENT, "row_offsets: 9223372036854775807 for batch 0", ALL),
    CASE(slopes_offset_least, ARGUMENT, "row_offsets: -9223372036854775808 for batch 1", ALL),
    CASE(slopes_keys, ARGUMENT, "alibi_slopes: given with lengths 3 and 2147483645", ALL),
    CASE(slopes_bottom_right, ARGUMENT, "alibi_slopes: given with lengths 3 and 10737", ALL),
    CASE(sink_nan, ARGUMENT, "sinks: nan for head 0, expected a finite number, or -inf", ALL),
    CASE(sink_inf, ARGUMENT, "sinks: inf for head 3, expected", ALL),
    CASE(sequences_negative, ARGUMENT, "sequences: -1 with query_starts, expected 0 or more", ALL),
    CASE(sequences_least, ARGUMENT, "sequences: -9223372036854775808 with query_starts", ALL),
    CASE(sequences_alone, ARGUMENT, "sequences: 2 without query_starts, expected 0", ALL),
    CASE(sequences_few, ARGUMENT, "query_starts: 1 at 1, the last, expected 3", ALL),
    CASE(sequences_none, ARGUMENT, "query_starts: 0 at 0, the last, expected 3", ALL),
    CASE(key_starts_alone, ARGUMENT, "key_starts: given without query_starts, expected NULL", ALL),
    CASE(key_starts_missing, ARGUMENT, "key_starts: NULL with 5 packed keys for 3", ALL),
    CASE(starts_batch, ARGUMENT, "query_starts: given with a batch of 2, expected 1", ALL),
    CASE(starts_query_lengths, ARGUMENT, "query_lengths: given with query_starts, expected", ALL),
    CASE(starts_key_lengths, ARGUMENT, "key_lengths: given with query_starts, expected", ALL),
    CASE(starts_weights, ARGUMENT, "weights: given with query_starts, expected NULL", ALL),
    CASE(starts_first, ARGUMENT, "query_starts: 1 at 0, expected 0", ALL),
    CASE(starts_first_least, ARGUMENT, "key_starts: -9223372036854775808 at 0, expected 0", ALL),
    CASE(starts_falling, ARGUMENT, "key_starts: -1 at 1, expected 0..5", ALL),
    CASE(starts_high, ARGUMENT, "query_starts: 4 at 1, expected 0..3", ALL),
    CASE(starts_most, ARGUMENT, "key_starts: 9223372036854775807 at 1, expected 0..5", ALL),
    CASE(starts_short, ARGUMENT, "query_starts: 2 at 2, the last, expected 3", ALL),
    CASE(starts_long, ARGUMENT, "key_starts: 6 at 2, expected 4..5", ALL),
    CASE(starts_lse, ARGUMENT, "lse: extent 2 on axis 2, expected 3", ALL),
    CASE(starts_lse_batch, ARGUMENT, "lse: extent 2 on axis 0, expected 1", ALL),
    CASE(starts_out, ARGUMENT, "out: extent 2 on axis 1, expected 3", CALL),
    CASE(starts_mask, ARGUMENT, "mask: extent 3 on axis 2, expected 1 or 2", ALL),
    CASE(starts_offset, ARGUMENT, "row_offsets: 9223372036854775807 for batch 1", ALL),
    CASE(query_positions, ARGUMENT, "query_positions: given, expected NULL", ALL),
    CASE(key_positions, ARGUMENT, "key_positions: given, expected NULL", ALL),
    CASE(weights_rank_2, ARGUMENT, "weights: rank 2, expected 3 (B, Lq, Lk) or 4 (B, Hq", ALL),
    CASE(weights_rank_5, ARGUMENT, "weights: rank 5, expected 3 (B, Lq, Lk) or 4 (B, Hq", ALL),
    CASE(weights_f16, UNSUPPORTED, "weights: dtype F16 (1), expected F32", ALL),
    CASE(weights_batch, ARGUMENT, "weights: extent 1 on axis 0, expected 2", ALL),
    CASE(weights_heads, ARGUMENT, "weights: extent 2 on axis 1, expected 4", ALL),
    CASE(weights_rows, ARGUMENT, "weights: extent 4 on axis 2, expected 3", ALL),
    CASE(weights_keys, ARGUMENT, "weights: extent 4 on axis 3, expected 5", ALL),
    CASE(weights_mean, ARGUMENT, "weights: extent 4 on axis 1, expected 3", ALL),
    CASE(weights_inner, ARGUMENT, "weights: innermost stride 2, expected 1", ALL),
    CASE(weights_inner_0, ARGUMENT, "weights: innermost stride 0, expected 1", ALL),
    CASE(weights_stride_0, OVERLAP, "weights: stride 0 of axis 0, expected more", ALL),
    CASE(weights_close, OVERLAP, "weights: stride 4 of axis 2, expected more than 4", ALL),
    CASE(weights_far, MEMORY, "weights", ALL),
    CASE(weights_data, ARGUMENT, "weights: data is NULL", CALL),
    CASE(weights_odd, ARGUMENT, "weights: data is not aligned", CALL),
    CASE(weights_is_out, OVERLAP, "weights: overlaps out", CALL),
    CASE(weights_is_lse, OVERLAP, "weights: overlaps lse", CALL),
    CASE(weights_is_query, OVERLAP, "weights: overlaps query", CALL),
    CASE(weights_is_key, OVERLAP, "weights: overlaps key", CALL),
    CASE(weights_is_value, OVERLAP, "weights: overlaps value", CALL),
    CASE(weights_is_mask, OVERLAP, "weights: overlaps mask", CALL),
    CASE(key_no_batch, ARGUMENT, "key: rank 3, expected 4 (B, Lk, Hkv, D)", ALL),
    CASE(query_leads, ARGUMENT, "query: stride 193 of axis 0, expected 192", ALL),
    CASE(key_leads, ARGUMENT, "key: stride 0 of axis 0, expected 160", ALL),
    CASE(value_leads, ARGUMENT, "value: stride 120 of axis 0, expected -120", ALL),
    CASE(out_leads, ARGUMENT, "out: stride 288 of axis 0, expected 144", CALL),
    CASE(lse_leads, ARGUMENT, "lse: stride 48 of axis 0, expected 24", ALL),
    CASE(mask_leads, ARGUMENT, "mask: stride 1099511627776 of axis 0, expected 120", ALL),
    CASE(mask_lead_shared, ARGUMENT, "mask: stride 120 of axis 0, expected 0", ALL),
    CASE(interval_leads, ARGUMENT, "interval: stride -5 of axis 0, expected 12", ALL),
    CASE(weights_leads, ARGUMENT, "weights: stride 240 of axis 0, expected 120", ALL),
    CASE(key_lead_extents, ARGUMENT, "key: extent 1 on axis 0, expected 2", ALL),
    CASE(key_lead_rank, ARGUMENT, "key: rank 6, expected 4 (B, Lk, Hkv, D), or 5 with query", ALL),
    CASE(query_rank_9, ARGUMENT, "query: rank 9, expected 4 (B, Lq, Hq, D), or 3..8", ALL),
    CASE(query_rank_least, ARGUMENT, "query: rank -2147483648", ALL),
    CASE(mask_rank_least, ARGUMENT, "mask: rank -2147483648", ALL),
    CASE(lse_rank_most, ARGUMENT, "lse: rank 2147483647", ALL),
    CASE(out_is_scale, OVERLAP, "out: overlaps scale", CALL),
    CASE(out_is_slopes, OVERLAP, "out: overlaps alibi_slopes", CALL),
    CASE(out_is_sinks, OVERLAP, "out: overlaps sinks", CALL),
    CASE(out_is_offsets, OVERLAP, "out: overlaps row_offsets", CALL),
    CASE(out_is_lengths, OVERLAP, "out: overlaps key_lengths", CALL),
    CASE(lse_is_starts, OVERLAP, "lse: overlaps key_starts", CALL),
    CASE(workspace_is_sinks, OVERLAP, "workspace: overlaps sinks", CALL),
    CASE(scale_nan, ARGUMENT, "scale", ALL),
    CASE(scale_inf, ARGUMENT, "scale", ALL),
    CASE(workspace_missing, HEADWAY_ERROR_WORKSPACE, "workspace: NULL", CALL),
    CASE(workspace_odd, HEADWAY_ERROR_WORKSPACE, "workspace: not aligned", CALL),
};

/* ---- any numbers ------------------------------------------------------------------------------
 */

static int64_t wild(uint64_t *random)
{
    static const int64_t values[] = {INT64_MIN,
                                     INT64_MIN + 1,
                                     -1,
                                     0,
                                     1,
                                     1,
                                     2,
                                     4,
                                     8,
                                     INT32_MAX,
                                     1ll << 33,
                                     1ll << 60,
                                     1ll << 61,
                                     1ll << 62,
                                     INT64_MAX - 1,
                                     INT64_MAX};
    return values[check_random(random) % COUNT(values)];
}

/* Every tensor of sizes that agree, however large, with strides that let them pass more often than
 * not. */
static void size_wildly(uint64_t *random)
{
    int64_t b = wild(random), lq = wild(random), lk = wild(random), hq = wild(random);
    const int64_t hkv = check_random(random) % 2 ? hq : wild(random), d = wild(random),
                  dv = wild(random);
    if (check_random(random) % 2)
        b = lq = lk = 0;
    const int64_t shapes[8][4] = {{b, lq, hq, d},  {b, lk, hkv, d}, {b, lk, hkv, dv},
                                  {b, lq, hq, dv}, {b, hq, lq, lk}, {b, hq, lq, lk},
                                  {b, hq, lq, dv}, {b, lq, 2, 0}};
    headway_tensor *const all[] = {&f.query, &f.key,     &f.value, &f.out,
                                   &f.mask,  &f.weights, &f.lse,   &f.interval};
    for (int n = 0; n < COUNT(all); n++) {
        memcpy(all[n]->shape, shapes[n], sizeof shapes[n]);
        for (int i = 0; i < all[n]->rank; i++)
            all[n]->stride[i] = check_random(random) % 8 ? 0 : wild(random);
    }
}

/* Only one number of the call is wild. */
static void spoil_wildly(uint64_t *random)
{
    headway_tensor *const all[] = {&f.query, &f.key,     &f.value, &f.out,
                                   &f.mask,  &f.weights, &f.lse,   &f.interval};
    headway_tensor *t = all[check_random(random) % COUNT(all)];
    switch (check_random(random) % 6) {
    case 0:
        t->shape[check_random(random) % 4] = wild(random);
        break;
    case 1:
        t->stride[check_random(random) % 4] = wild(random);
        break;
    case 2:
        t->rank = (int)wild(random);
        break;
    case 3:
        t->dtype = (headway_dtype)wild(random);
        break;
    case 4:
        f.params.window_left = wild(random);
        f.params.window_right = wild(random);
        break;
    default:
        f.params.causal = (headway_causal)(check_random(random) % 3);
        lead();
        t->stride[0] = wild(random);
    }
}

/* Sanitizers watch the arithmetic. Data isn't looked at. */
static void check_wild(void)
{
    uint64_t random = check_seed;
    int refused = 0, fine = 0;
    if (!check_case("attention: wild numbers"))
        return;
    for (int n = 0; n < 100000; n++) {
        reset();
        f.params.interval = check_random(&random) % 2 ? &f.interval : NULL;
        f.params.weights = check_random(&random) % 2 ? &f.weights : NULL;
        f.params.mask = check_random(&random) % 2 ? &f.mask : NULL;
        f.params.lse = check_random(&random) % 2 ? &f.lse : NULL;
        f.text_size = 1;
        (n % 2 ? size_wildly : spoil_wildly)(&random);
        const headway_status asked = ask_workspace(), explained = explain();
        CHECK(asked == explained, "%s, %s", headway_status_text(asked),
              headway_status_text(explained));
        CHECK((asked == HEADWAY_OK) == (f.bytes != UNTOUCHED), "%zu bytes and %s", f.bytes,
              headway_status_text(asked));
        refused += asked != HEADWAY_OK;
        fine += asked == HEADWAY_OK;
    }
    CHECK(refused > 1000 && fine > 1000, "%d refused, %d fine", refused, fine);
}

static void check_workspace_size(void)
{
    if (!check_case("attention: a workspace of any smaller size"))
        return;
    reset();
    CHECK(ask_workspace() == HEADWAY_OK, "workspace");
    const size_t needed = f.bytes;
    CHECK(needed > 0 && needed <= sizeof f.workspace, "%zu bytes", needed);
    expect_error(call(needed - 1), HEADWAY_ERROR_WORKSPACE, "workspace");
    expect_error(call(0), HEADWAY_ERROR_WORKSPACE, "workspace: 0 bytes");
    CHECK(call(needed) == HEADWAY_OK, "exactly enough");
    CHECK(call(SIZE_MAX) == HEADWAY_OK, "more than enough");
}

static void check_explain(void)
{
    if (!check_case("attention: explain"))
        return;
    reset();
    CHECK(explain() == HEADWAY_OK && strstr(f.text, headway_engine_isa(engine)), "%s", f.text);
    f.text_size = 1;
    CHECK(explain() == HEADWAY_OK && f.text[0] == 0, "one byte: %s", f.text);
    memset(f.text, '#', sizeof f.text);
    f.text_size = 10;
    CHECK(explain() == HEADWAY_OK && strlen(f.text) == 9 && f.text[10] == '#', "ten bytes: %s",
          f.text);
}

/* Legal, and the result is that of the plain call. */
static void expect_same(const char *what, const float *expected)
{
    const headway_status status = call(sizeof f.workspace);
    CHECK(status == HEADWAY_OK, "%s: %s", what, headway_status_text(status));
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < LQ; i++)
            for (int64_t h = 0; h < HQ; h++)
                check_bits((float *)f.out.data + b * f.out.stride[0] + i * f.out.stride[1] +
                               h * f.out.stride[2],
                           expected + ((b * LQ + i) * HQ + h) * DV, DV, what);
}

static void check_odd_but_legal(void)
{
    float expected[B * LQ * HQ * DV];
    if (!check_case("attention: odd, but legal"))
        return;
    reset();
    f.params_at = NULL;
    CHECK(call(sizeof f.workspace) == HEADWAY_OK, "no params");
    memcpy(expected, f.out.data, sizeof expected);
    reset();
    f.params.mask = NULL;
    f.params.lse = NULL;
    expect_same("params with nothing", expected);
    reset();
    f.params.mask = NULL;
    f.params.lse = NULL;
    f.query_at = &f.query;
    f.key.stride[0] += 7;
    memmove((float *)f.key.data + f.key.stride[0], (float *)f.key.data + 80, 80 * sizeof(float));
    expect_same("a gap between batches", expected);
    reset();
    f.params.mask = NULL;
    f.out.stride[1] = -f.out.stride[1];
    f.out.data = (float *)f.out.data - (LQ - 1) * f.out.stride[1];
    expect_same("output rows backwards", expected);
    reset();
    f.params.mask = NULL;
    f.out.data = (float *)f.lse.data + B * HQ * LQ;
    expect_same("out right behind lse", expected);
    reset();
    f.params.mask = NULL;
    f.out.data = (float *)f.lse.data - B * LQ * HQ * DV;
    expect_same("out right before lse", expected);
    reset();
    f.params.scale = &f.scale;
    f.scale = 1 / sqrtf((float)D);
    f.params.mask = NULL;
    f.params.query_lengths = f.query_lengths;
    CHECK(call(sizeof f.workspace) == HEADWAY_OK, "scale and full lengths");
    reset();
    f.key_at = f.value_at = &f.key;
    f.out.shape[3] = D;
    CHECK(headway_attention(
              f.engine, NULL, &f.query, &f.key, &f.key,
              &(headway_tensor){
                  f.memory + 1000, HEADWAY_F32, 4, {B, LQ, HQ, D}, {LQ * HQ * D, HQ * D, D, 1}},
              f.workspace, sizeof f.workspace) == HEADWAY_OK,
          "key and value are one tensor");
}

/* Strides of axes with one element mean nothing. */
static void check_single(void)
{
    static const int64_t wild[] = {0, -1, INT64_MAX, INT64_MIN, INT64_MAX / 4};
    for (int n = 0; n < COUNT(wild); n++) {
        if (!check_case("attention: stride %lld where the extent is 1", (long long)wild[n]))
            continue;
        float memory[8] = {0.5f, 0.25f, 3, 42, 42, 42, 42, 42};
        static const int64_t ones[4] = {1, 1, 1, 1};
        headway_tensor t[6];
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        for (int i = 0; i < 6; i++) {
            t[i] = headway_tensor_dense(memory + i, HEADWAY_F32, i == 5 ? 3 : 4, ones);
            for (int axis = 0; axis < 4; axis++)
                t[i].stride[axis] = wild[n];
        }
        memory[4] = 0; /* the mask */
        params.mask = &t[4];
        params.lse = &t[5];
        reset();
        const headway_status status = headway_attention(engine, &params, &t[0], &t[1], &t[2], &t[3],
                                                        f.workspace, sizeof f.workspace);
        CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
        CHECK(memory[3] == 3 && memory[5] == 0.125f && memory[6] == 42, "%g, lse %g",
              (double)memory[3], (double)memory[5]);
    }
}

void check_attention_arguments(void)
{
    reset();
    if (check_case("attention: the plain call")) {
        CHECK(ask_workspace() == HEADWAY_OK && call(sizeof f.workspace) == HEADWAY_OK &&
                  explain() == HEADWAY_OK,
              "the call that the others spoil");
    }
    for (int n = 0; n < COUNT(bads); n++)
        try_bad(&bads[n]);
    check_wild();
    check_workspace_size();
    check_explain();
    check_odd_but_legal();
    check_single();
}
