/* The arguments of the layer's functions. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "check_api.h"

enum {
    B = 2,
    LQ = 3,
    LK = 5,
    HEADS = 4,
    KV_HEADS = 2,
    D = 8,
    DV = 6,
    E = 10,
    EK = 12,
    EV = 14,
    EO = 16
};
enum { FLOATS = 6000, UNTOUCHED = 4242 };

struct fixture {
    headway_mha_config config;
    headway_mha_weights weights;
    headway_tensor wq, wk, wv, wo, bq, bk, bv, bo, fused, fused_bias;
    headway_rope_config rope;
    headway_tensor query_norm, key_norm, bias_k, bias_v, cosine, sine;
    double factors[D / 2];
    const headway_engine *engine;
    const headway_mha_config *config_at;
    const headway_mha_weights *weights_at;
    headway_mha *made;
    headway_mha **made_at;

    const headway_mha *layer;
    headway_attention_params params;
    headway_tensor query, key, value, out, mask, lse, positions, weights_out;
    int32_t places[B * LK];
    const headway_tensor *query_at, *key_at, *value_at, *out_at;
    int64_t lengths[B];
    float scale;
    float memory[FLOATS];
    _Alignas(64) unsigned char workspace[1 << 20];
    void *workspace_at;
    size_t bytes, given;
    size_t *bytes_at;
    char text[4000];
    char *text_at;
    size_t text_size;
};

static struct fixture f;
/* Two layers: a plain one; one with rotary embedding for POSITIONS positions, norms, a key and a zero
 * key appended. */
static headway_mha *good, *turning;
enum { POSITIONS = 6 };

static headway_tensor tensor(int offset, int rank, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[3] = {a, b, c};
    return headway_tensor_dense(f.memory + offset, HEADWAY_F32, rank, shape);
}

/* What a layer may have beside its projections, and what a call of such a layer may. */
static void reset_extras(void)
{
    static const int64_t weights[4] = {B, HEADS, LQ, LK}, positions[2] = {B, LQ};
    f.rope = (headway_rope_config)HEADWAY_ROPE_CONFIG_INIT;
    f.rope.style = HEADWAY_ROPE_HALF;
    f.rope.positions = POSITIONS;
    f.query_norm = tensor(3000, 1, D, 0, 0);
    f.key_norm = tensor(3010, 1, D, 0, 0);
    f.bias_k = tensor(3020, 2, KV_HEADS, D, 0);
    f.bias_v = tensor(3040, 2, KV_HEADS, DV, 0);
    f.cosine = tensor(3060, 2, POSITIONS, D / 2, 0);
    f.sine = tensor(3100, 2, POSITIONS, D / 2, 0);
    for (int k = 0; k < D / 2; k++)
        f.factors[k] = 1 + k;
    f.weights_out = headway_tensor_dense(f.memory + 4000, HEADWAY_F32, 4, weights);
    f.positions = headway_tensor_dense(f.places, HEADWAY_I32, 2, positions);
    f.positions.stride[0] = LK;
    for (int x = 0; x < B * LK; x++)
        f.places[x] = x % POSITIONS;
}

static void reset(void)
{
    static const int64_t mask[4] = {B, HEADS, LQ, LK};
    const headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    const headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    const headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    const int outputs = HEADS * D + KV_HEADS * D + KV_HEADS * DV;
    f.config = config;
    f.config.heads = HEADS;
    f.config.kv_heads = KV_HEADS;
    f.weights = weights;
    f.wq = tensor(0, 2, HEADS * D, E, 0);
    f.wk = tensor(400, 2, KV_HEADS * D, EK, 0);
    f.wv = tensor(600, 2, KV_HEADS * DV, EV, 0);
    f.wo = tensor(800, 2, EO, HEADS * DV, 0);
    f.bq = tensor(1200, 1, HEADS * D, 0, 0);
    f.bk = tensor(1240, 1, KV_HEADS * D, 0, 0);
    f.bv = tensor(1260, 1, KV_HEADS * DV, 0, 0);
    f.bo = tensor(1280, 1, EO, 0, 0);
    f.fused = tensor(1300, 2, outputs, E, 0);
    f.fused_bias = tensor(1900, 1, outputs, 0, 0);
    f.weights.query = &f.wq;
    f.weights.key = &f.wk;
    f.weights.value = &f.wv;
    f.weights.out = &f.wo;
    f.weights.query_bias = &f.bq;
    f.weights.key_bias = &f.bk;
    f.weights.value_bias = &f.bv;
    f.weights.out_bias = &f.bo;
    reset_extras();
    f.engine = engine;
    f.config_at = &f.config;
    f.weights_at = &f.weights;
    f.made = good;
    f.made_at = &f.made;
    f.layer = good;
    f.params = params;
    f.query = tensor(2000, 3, B, LQ, E);
    f.key = tensor(2100, 3, B, LK, EK);
    f.value = tensor(2300, 3, B, LK, EV);
    f.out = tensor(2500, 3, B, LQ, EO);
    f.lse = tensor(2700, 3, B, HEADS, LQ);
    f.mask = headway_tensor_dense(f.memory + 2800, HEADWAY_F32, 4, mask);
    f.params.mask = &f.mask;
    f.params.lse = &f.lse;
    f.query_at = &f.query;
    f.key_at = &f.key;
    f.value_at = &f.value;
    f.out_at = &f.out;
    f.workspace_at = f.workspace;
    f.given = sizeof f.workspace;
    f.bytes = UNTOUCHED;
    f.bytes_at = &f.bytes;
    memset(f.text, '#', sizeof f.text);
    f.text_at = f.text;
    f.text_size = sizeof f.text;
    for (int i = 0; i < FLOATS; i++)
        f.memory[i] = 0.01f * (float)(i % 17);
}

/* One fused matrix instead of the three. */
static void fuse(void)
{
    f.weights.query = f.weights.key = f.weights.value = NULL;
    f.weights.query_bias = f.weights.key_bias = f.weights.value_bias = NULL;
    f.weights.fused = &f.fused;
    f.weights.fused_bias = &f.fused_bias;
    f.config.head_size = D;
    f.config.value_head_size = DV;
}

/* Everything that a layer may have beside its projections. */
static void extend(void)
{
    f.config.rope = &f.rope;
    f.config.add_zero_attn = 1;
    f.weights.query_norm = &f.query_norm;
    f.weights.key_norm = &f.key_norm;
    f.weights.bias_k = &f.bias_k;
    f.weights.bias_v = &f.bias_v;
}

static void extend_scaled(headway_rope_scaling scaling)
{
    extend();
    f.rope.scaling = scaling;
    f.rope.factor = 4;
    f.rope.original_positions = 4;
    f.rope.low_freq_factor = 1;
    f.rope.high_freq_factor = 4;
    f.rope.short_factors = f.rope.long_factors = f.factors;
}

static void extend_tables(void)
{
    extend();
    f.rope.positions = 0;
    f.rope.cos = &f.cosine;
    f.rope.sin = &f.sine;
}

struct bad {
    const char *name;
    void (*spoil)(void);
    headway_status status;
    const char *words;
    int where;
};

#define BAD(name, ...)                                                                             \
    static void name(void)                                                                         \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
#define ARGUMENT HEADWAY_ERROR_ARGUMENT
#define OVERLAP HEADWAY_ERROR_OVERLAP
#define MEMORY HEADWAY_ERROR_MEMORY
#define UNSUPPORTED HEADWAY_ERROR_UNSUPPORTED
#define CASE(name, status, words, where)                                                           \
    {                                                                                              \
#name, name, status, words, where                                                          \
    }

/* ---- create -----------------------------------------------------------------------------------
 */

BAD(no_engine, f.engine = NULL)
BAD(no_config, f.config_at = NULL)
BAD(no_weights, f.weights_at = NULL)
BAD(no_layer, f.made_at = NULL)
BAD(config_size, f.config.size = 0)
BAD(config_large, f.config.size += 8)
BAD(weights_size, f.weights.size -= 8)
BAD(weights_large, f.weights.size += 1)
BAD(heads_0, f.config.heads = 0)
BAD(heads_negative, f.config.heads = -4)
BAD(heads_many, f.config.heads = f.config.kv_heads = INT64_MAX)
BAD(kv_heads_3, f.config.kv_heads = 3)
BAD(kv_heads_more, f.config.kv_heads = 8)
BAD(kv_heads_negative, f.config.kv_heads = -2)
BAD(head_size_other, f.config.head_size = D + 1)
BAD(head_size_negative, f.config.head_size = -1)
BAD(head_size_huge, f.config.head_size = INT64_MAX)
BAD(value_size_other, f.config.value_head_size = DV + 1)
BAD(value_size_negative, f.config.value_head_size = -DV)
BAD(turned, f.config.transposed = 1)
BAD(no_wq, f.weights.query = NULL)
BAD(no_wk, f.weights.key = NULL)
BAD(no_wv, f.weights.value = NULL)
BAD(no_wo, f.weights.out = NULL)
BAD(wq_rank, f.wq.rank = 1)
BAD(wk_rank, f.wk.rank = 4)
BAD(wo_rank, f.wo = tensor(800, 3, HEADS, DV, EO))
BAD(wq_f16, f.wq.dtype = HEADWAY_F16)
BAD(wv_type, f.wv.dtype = (headway_dtype)17)
BAD(wo_bool, f.wo.dtype = HEADWAY_BOOL)
BAD(bq_bf16, f.bq.dtype = HEADWAY_BF16)
BAD(wq_rows, f.wq.shape[0] = HEADS * D - 1)
BAD(wk_rows, f.wk.shape[0] = KV_HEADS * D + 1)
BAD(wv_rows, f.wv.shape[0] = KV_HEADS * DV - 1)
BAD(wo_inputs, f.wo.shape[1] = HEADS * DV - 1)
BAD(wq_inputs, f.wq.shape[1] = 0)
BAD(wk_negative, f.wk.shape[1] = -1)
BAD(wq_least, f.wq.shape[0] = INT64_MIN)
BAD(wq_heads, f.wq = tensor(0, 3, HEADS / 2, D * 2, E); f.config.head_size = D)
BAD(wq_far, f.wq.stride[0] = INT64_MAX)
BAD(wv_far, f.wv.stride[1] = INT64_MIN)
BAD(wq_data, f.wq.data = NULL)
BAD(wo_data, f.wo.data = NULL)
BAD(bo_data, f.bo.data = NULL)
BAD(wk_odd, f.wk.data = (char *)f.wk.data + 1)
BAD(bv_odd, f.bv.data = (char *)f.bv.data + 2)
BAD(bq_length, f.bq.shape[0] = HEADS * D - 1)
BAD(bk_length, f.bk.shape[0] = HEADS * D)
BAD(bv_rank, f.bv.rank = 3)
BAD(bo_length, f.bo.shape[0] = EO + 1)
BAD(bq_heads, f.bq = tensor(1200, 2, HEADS * 2, D / 2, 0))
BAD(fused_too, f.weights.fused = &f.fused)
BAD(fused_bias_alone, f.weights.fused_bias = &f.fused_bias)
BAD(fused_and_key, fuse(); f.weights.key = &f.wk)
BAD(fused_and_bias, fuse(); f.weights.value_bias = &f.bv)
BAD(fused_rows, fuse(); f.fused.shape[0] -= 1)
BAD(fused_rank, fuse(); f.fused = tensor(1300, 3, 1, 60, E))
BAD(fused_f16, fuse(); f.fused.dtype = HEADWAY_F16)
BAD(fused_data, fuse(); f.fused.data = NULL)
BAD(fused_other, fuse(); f.config.head_size = f.config.value_head_size = 0; f.fused.rank = 1)
BAD(fused_odd, fuse(); f.fused.data = (char *)f.fused.data + 1)
BAD(fused_bias_length, fuse(); f.fused_bias.shape[0] += 1)
BAD(fused_bias_rank, fuse(); f.fused_bias = tensor(1900, 2, 1, 60, 0))
BAD(fused_bias_data, fuse(); f.fused_bias.data = NULL)
BAD(huge, f.wq.shape[1] = INT64_C(1) << 44; f.wq.stride[0] = f.wq.stride[1] = 0)
BAD(beyond, f.wq.shape[1] = INT64_C(1) << 58; f.wq.stride[0] = f.wq.stride[1] = 0)

BAD(eps_negative, extend(); f.config.norm_eps = -1e-6f)
BAD(eps_nan, extend(); f.config.norm_eps = NAN)
BAD(norm_rank, extend(); f.query_norm = tensor(3000, 2, 1, D, 0))
BAD(norm_length, extend(); f.key_norm.shape[0] = D - 1)
BAD(norm_f16, extend(); f.key_norm.dtype = HEADWAY_F16)
BAD(norm_data, extend(); f.query_norm.data = NULL)
BAD(bias_k_alone, extend(); f.weights.bias_v = NULL)
BAD(bias_v_alone, extend(); f.weights.bias_k = NULL)
BAD(bias_k_rank, extend(); f.bias_k = tensor(3020, 1, KV_HEADS *D, 0, 0))
BAD(bias_k_heads, extend(); f.bias_k = tensor(3020, 2, HEADS, D / 2, 0))
BAD(bias_v_size, extend(); f.bias_v.shape[1] = D)
BAD(bias_v_data, extend(); f.bias_v.data = (char *)f.bias_v.data + 1)
BAD(rope_size, extend(); f.rope.size = 4)
BAD(rope_style, extend(); f.rope.style = (headway_rope_style)3)
BAD(rotary_odd, extend(); f.rope.rotary_size = 3)
BAD(rotary_large, extend(); f.rope.rotary_size = D + 2)
BAD(rotary_negative, extend(); f.rope.rotary_size = -2)
BAD(theta_1, extend(); f.rope.theta = 1)
BAD(theta_nan, extend(); f.rope.theta = NAN)
BAD(theta_infinite, extend(); f.rope.theta = INFINITY)
BAD(positions_0, extend(); f.rope.positions = 0)
BAD(positions_negative, extend(); f.rope.positions = -1)
BAD(positions_many, extend(); f.rope.positions = INT64_MAX)
BAD(scaling_unknown, extend_scaled((headway_rope_scaling)6))
BAD(factor_missing, extend_scaled(HEADWAY_ROPE_LINEAR); f.rope.factor = 0)
BAD(factor_negative, extend_scaled(HEADWAY_ROPE_DYNAMIC); f.rope.factor = -4)
BAD(factor_nan, extend_scaled(HEADWAY_ROPE_LLAMA3); f.rope.factor = NAN)
BAD(factor_infinite, extend_scaled(HEADWAY_ROPE_YARN); f.rope.factor = INFINITY)
BAD(factor_tiny, extend_scaled(HEADWAY_ROPE_LINEAR); f.rope.factor = 1e-9)
BAD(original_missing, extend_scaled(HEADWAY_ROPE_DYNAMIC); f.rope.original_positions = 0)
BAD(original_negative, extend_scaled(HEADWAY_ROPE_YARN); f.rope.original_positions = -4)
BAD(dynamic_pair, extend_scaled(HEADWAY_ROPE_DYNAMIC); f.rope.rotary_size = 2)
BAD(llama3_low, extend_scaled(HEADWAY_ROPE_LLAMA3); f.rope.low_freq_factor = 0)
BAD(llama3_high, extend_scaled(HEADWAY_ROPE_LLAMA3); f.rope.high_freq_factor = 1)
BAD(beta_nan, extend_scaled(HEADWAY_ROPE_YARN); f.rope.beta_fast = NAN)
BAD(beta_negative, extend_scaled(HEADWAY_ROPE_YARN); f.rope.beta_slow = -1)
BAD(betas_swapped, extend_scaled(HEADWAY_ROPE_YARN); f.rope.beta_slow = 64)
BAD(mscale_negative, extend_scaled(HEADWAY_ROPE_YARN); f.rope.mscale = -1)
BAD(mscale_all_infinite, extend_scaled(HEADWAY_ROPE_YARN); f.rope.mscale_all_dim = INFINITY)
BAD(attention_negative, extend_scaled(HEADWAY_ROPE_LONGROPE); f.rope.attention_factor = -1)
BAD(longrope_short, extend_scaled(HEADWAY_ROPE_LONGROPE); f.rope.short_factors = NULL)
BAD(longrope_long, extend_scaled(HEADWAY_ROPE_LONGROPE); f.rope.long_factors = NULL)
BAD(longrope_0, extend_scaled(HEADWAY_ROPE_LONGROPE); f.factors[3] = 0)
BAD(longrope_factor, extend_scaled(HEADWAY_ROPE_LONGROPE); f.rope.factor = 0)
BAD(longrope_original, extend_scaled(HEADWAY_ROPE_LONGROPE); f.rope.original_positions = 1)
BAD(cos_alone, extend_tables(); f.rope.sin = NULL)
BAD(sin_alone, extend_tables(); f.rope.cos = NULL)
BAD(tables_theta, extend_tables(); f.rope.theta = 10000)
BAD(tables_positions, extend_tables(); f.rope.positions = POSITIONS)
BAD(tables_scaling, extend_tables(); f.rope.scaling = HEADWAY_ROPE_LINEAR)
BAD(cos_width, extend_tables(); f.cosine.shape[1] = D)
BAD(sin_positions, extend_tables(); f.sine.shape[0] = POSITIONS - 1)
BAD(tables_empty, extend_tables(); f.cosine.shape[0] = f.sine.shape[0] = 0)
BAD(cos_rank, extend_tables(); f.cosine.rank = 1)
BAD(sin_f16, extend_tables(); f.sine.dtype = HEADWAY_F16)
BAD(cos_data, extend_tables(); f.cosine.data = NULL)

static const struct bad creates[] = {
    CASE(eps_negative, ARGUMENT, "norm_eps -1e-06", 0),
    CASE(eps_nan, ARGUMENT, "norm_eps nan", 0),
    CASE(norm_rank, ARGUMENT, "query_norm: rank 2", 0),
    CASE(norm_length, ARGUMENT, "key_norm: extent 7 on axis 0, expected 8", 0),
    CASE(norm_f16, UNSUPPORTED, "key_norm: dtype F16", 0),
    CASE(norm_data, ARGUMENT, "query_norm: data is NULL", 0),
    CASE(bias_k_alone, ARGUMENT, "bias_v: NULL", 0),
    CASE(bias_v_alone, ARGUMENT, "bias_k: NULL", 0),
    CASE(bias_k_rank, ARGUMENT, "bias_k: rank 1", 0),
    CASE(bias_k_heads, ARGUMENT, "bias_k: extent 4 on axis 0, expected 2", 0),
    CASE(bias_v_size, ARGUMENT, "bias_v: extent 8 on axis 1, expected 6", 0),
    CASE(bias_v_data, ARGUMENT, "bias_v: data is not aligned", 0),
    CASE(rope_size, ARGUMENT, "rope: size 4", 0),
    CASE(rope_style, ARGUMENT, "rope: style 3", 0),
    CASE(rotary_odd, ARGUMENT, "rope: rotary_size 3", 0),
    CASE(rotary_large, ARGUMENT, "rope: rotary_size 10", 0),
    CASE(rotary_negative, ARGUMENT, "rope: rotary_size -2", 0),
    CASE(theta_1, ARGUMENT, "rope: theta 1,", 0),
    CASE(theta_nan, ARGUMENT, "rope: theta nan", 0),
    CASE(theta_infinite, ARGUMENT, "rope: theta inf", 0),
    CASE(positions_0, ARGUMENT, "rope: 0 positions", 0),
    CASE(positions_negative, ARGUMENT, "rope: -1 positions", 0),
    CASE(positions_many, ARGUMENT, "rope: 9223372036854775807 positions", 0),
    CASE(scaling_unknown, ARGUMENT, "rope: scaling 6", 0),
    CASE(factor_missing, ARGUMENT, "rope: factor 0,", 0),
    CASE(factor_negative, ARGUMENT, "rope: factor -4", 0),
    CASE(factor_nan, ARGUMENT, "rope: factor nan", 0),
    CASE(factor_infinite, ARGUMENT, "rope: factor inf", 0),
    CASE(factor_tiny, ARGUMENT, "rope: factor 1e-09", 0),
    CASE(original_missing, ARGUMENT, "rope: original_positions 0", 0),
    CASE(original_negative, ARGUMENT, "rope: original_positions -4", 0),
    CASE(dynamic_pair, ARGUMENT, "rope: rotary_size 2", 0),
    CASE(llama3_low, ARGUMENT, "rope: low_freq_factor 0", 0),
    CASE(llama3_high, ARGUMENT, "high_freq_factor 1", 0),
    CASE(beta_nan, ARGUMENT, "rope: beta_fast nan", 0),
    CASE(beta_negative, ARGUMENT, "rope: beta_slow -1", 0),
    CASE(betas_swapped, ARGUMENT, "rope: beta_fast 32 below beta_slow 64", 0),
    CASE(mscale_negative, ARGUMENT, "rope: mscale -1", 0),
    CASE(mscale_all_infinite, ARGUMENT, "rope: mscale_all_dim inf", 0),
    CASE(attention_negative, ARGUMENT, "rope: attention_factor -1", 0),
    CASE(longrope_short, ARGUMENT, "rope: short_factors: NULL", 0),
    CASE(longrope_long, ARGUMENT, "rope: long_factors: NULL", 0),
    CASE(longrope_0, ARGUMENT, "rope: short_factors 0", 0),
    CASE(longrope_factor, ARGUMENT, "rope: factor 0,", 0),
    CASE(longrope_original, ARGUMENT, "rope: original_positions 1", 0),
    CASE(cos_alone, ARGUMENT, "rope sin: NULL", 0),
    CASE(sin_alone, ARGUMENT, "rope cos: NULL", 0),
    CASE(tables_theta, ARGUMENT, "rope: theta 10000", 0),
    CASE(tables_positions, ARGUMENT, "positions 6", 0),
    CASE(tables_scaling, ARGUMENT, "scaling 1", 0),
    CASE(cos_width, ARGUMENT, "rope cos: extent 8 on axis 1, expected 4", 0),
    CASE(sin_positions, ARGUMENT, "rope sin: extent 5 on axis 0, expected 6", 0),
    CASE(tables_empty, ARGUMENT, "rope: 0 positions", 0),
    CASE(cos_rank, ARGUMENT, "rope cos: rank 1", 0),
    CASE(sin_f16, UNSUPPORTED, "rope sin: dtype F16", 0),
    CASE(cos_data, ARGUMENT, "rope cos: data is NULL", 0),
    CASE(no_engine, ARGUMENT, "", 0),
    CASE(no_config, ARGUMENT, "config: NULL", 0),
    CASE(no_weights, ARGUMENT, "weights: NULL", 0),
    CASE(no_layer, ARGUMENT, "layer: NULL", 0),
    CASE(config_size, ARGUMENT, "config: size 0", 0),
    CASE(config_large, ARGUMENT, "config: size", 0),
    CASE(weights_size, ARGUMENT, "weights: size", 0),
    CASE(weights_large, ARGUMENT, "weights: size", 0),
    CASE(heads_0, ARGUMENT, "0 heads", 0),
    CASE(heads_negative, ARGUMENT, "-4 heads", 0),
    CASE(heads_many, ARGUMENT, "heads", 0),
    CASE(kv_heads_3, ARGUMENT, "3 kv_heads", 0),
    CASE(kv_heads_more, ARGUMENT, "8 kv_heads", 0),
    CASE(kv_heads_negative, ARGUMENT, "-2 kv_heads", 0),
    CASE(head_size_other, ARGUMENT, "query weight", 0),
    CASE(head_size_negative, ARGUMENT, "head_size -1", 0),
    CASE(head_size_huge, ARGUMENT, "head_size", 0),
    CASE(value_size_other, ARGUMENT, "value weight", 0),
    CASE(value_size_negative, ARGUMENT, "value_head_size -6", 0),
    CASE(turned, ARGUMENT, "transposed", 0),
    CASE(no_wq, ARGUMENT, "query weight: NULL", 0),
    CASE(no_wk, ARGUMENT, "key weight: NULL", 0),
    CASE(no_wv, ARGUMENT, "value weight: NULL", 0),
    CASE(no_wo, ARGUMENT, "out weight: NULL", 0),
    CASE(wq_rank, ARGUMENT, "query weight: rank 1", 0),
    CASE(wk_rank, ARGUMENT, "key weight: rank 4", 0),
    CASE(wo_rank, ARGUMENT, "out weight: rank 3", 0),
    CASE(wq_f16, UNSUPPORTED, "query weight: dtype F16", 0),
    CASE(wv_type, ARGUMENT, "value weight: dtype", 0),
    CASE(wo_bool, UNSUPPORTED, "out weight: dtype BOOL", 0),
    CASE(bq_bf16, UNSUPPORTED, "query bias: dtype BF16", 0),
    CASE(wq_rows, ARGUMENT, "query weight", 0),
    CASE(wk_rows, ARGUMENT, "key weight", 0),
    CASE(wv_rows, ARGUMENT, "value weight", 0),
    CASE(wo_inputs, ARGUMENT, "out weight: extent 23 on axis 1", 0),
    CASE(wq_inputs, ARGUMENT, "query weight", 0),
    CASE(wk_negative, ARGUMENT, "key weight: extent -1", 0),
    CASE(wq_least, ARGUMENT, "", 0),
    CASE(wq_heads, ARGUMENT, "query weight", 0),
    CASE(wq_far, MEMORY, "query weight", 0),
    CASE(wv_far, MEMORY, "value weight", 0),
    CASE(wq_data, ARGUMENT, "query weight: data is NULL", 0),
    CASE(wo_data, ARGUMENT, "out weight: data is NULL", 0),
    CASE(bo_data, ARGUMENT, "out bias: data is NULL", 0),
    CASE(wk_odd, ARGUMENT, "key weight: data is not aligned", 0),
    CASE(bv_odd, ARGUMENT, "value bias: data is not aligned", 0),
    CASE(bq_length, ARGUMENT, "query bias: extent 31", 0),
    CASE(bk_length, ARGUMENT, "key bias: extent 32", 0),
    CASE(bv_rank, ARGUMENT, "value bias: rank 3", 0),
    CASE(bo_length, ARGUMENT, "out bias: extent 17", 0),
    CASE(bq_heads, ARGUMENT, "query bias: extent", 0),
    CASE(fused_too, ARGUMENT, "fused weight: given together", 0),
    CASE(fused_bias_alone, ARGUMENT, "fused bias: given without", 0),
    CASE(fused_and_key, ARGUMENT, "fused weight: given together", 0),
    CASE(fused_and_bias, ARGUMENT, "fused weight: given together", 0),
    CASE(fused_rows, ARGUMENT, "fused weight: extent 59", 0),
    CASE(fused_rank, ARGUMENT, "fused weight: rank 3", 0),
    CASE(fused_f16, UNSUPPORTED, "fused weight: dtype F16", 0),
    CASE(fused_data, ARGUMENT, "fused weight: data is NULL", 0),
    CASE(fused_other, ARGUMENT, "fused weight: rank 1", 0),
    CASE(fused_odd, ARGUMENT, "fused weight: data is not aligned", 0),
    CASE(fused_bias_length, ARGUMENT, "fused bias: extent 61", 0),
    CASE(fused_bias_rank, ARGUMENT, "fused bias: rank 2", 0),
    CASE(fused_bias_data, ARGUMENT, "fused bias: data is NULL", 0),
    CASE(huge, MEMORY, "", 0),
    CASE(beyond, MEMORY, "query weight", 0),
};

static headway_status create(void)
{
    return headway_mha_create(f.engine, f.config_at, f.weights_at, f.made_at);
}

static void try_create(const struct bad *bad)
{
    if (!check_case("mha_create: %s", bad->name))
        return;
    reset();
    bad->spoil();
    const headway_status status = create();
    expect_error(status, bad->status, bad->words);
    CHECK(f.made == good, "*layer was written");
}

static void expect_created(const char *what)
{
    headway_mha *made = NULL;
    f.made_at = &made;
    const headway_status status = create();
    CHECK(status == HEADWAY_OK && made, "%s: %s", what, headway_status_text(status));
    headway_mha_destroy(made);
}

static void check_created(void)
{
    if (!check_case("mha_create: what is legal"))
        return;
    headway_mha_destroy(NULL);
    reset();
    expect_created("the plain call");
    reset();
    f.weights.query_bias = f.weights.key_bias = f.weights.value_bias = f.weights.out_bias = NULL;
    expect_created("no biases");
    reset();
    fuse();
    expect_created("fused");
    reset();
    fuse();
    f.weights.fused_bias = NULL;
    expect_created("fused without bias");
    reset();
    f.config.head_size = D;
    f.config.value_head_size = DV;
    f.config.kv_heads = KV_HEADS;
    expect_created("sizes given");
    reset();
    f.wq = tensor(0, 3, HEADS, D, E);
    f.bq = tensor(1200, 2, HEADS, D, 0);
    expect_created("outputs split in two");
    reset();
    f.wq.stride[0] = f.wq.stride[1] = 0;
    expect_created("a weight of strides 0");
    for (int scaling = 0; scaling <= HEADWAY_ROPE_LONGROPE; scaling++) {
        reset();
        extend_scaled((headway_rope_scaling)scaling);
        expect_created("a scaling");
    }
    reset();
    extend_tables();
    f.cosine.stride[1] = f.sine.stride[0] = 0;
    expect_created("tables of strides 0");
    reset();
    extend();
    f.rope.style = HEADWAY_ROPE_NONE;
    f.rope.positions = 0;
    expect_created("a rotary embedding that is none");
    reset();
    f.config.transposed = 1;
    f.wq = tensor(0, 2, E, HEADS * D, 0);
    f.wk = tensor(400, 2, EK, KV_HEADS * D, 0);
    f.wv = tensor(600, 2, EV, KV_HEADS * DV, 0);
    f.wo = tensor(800, 2, HEADS * DV, EO, 0);
    expect_created("transposed");
}

/* ---- forward ----------------------------------------------------------------------------------
 */

enum { WORKSPACE = 1, CALL = 2, EXPLAIN = 4, ALL = 7 };

BAD(layer_missing, f.layer = NULL)
BAD(query_missing, f.query_at = NULL)
BAD(out_missing, f.out_at = NULL)
BAD(bytes_missing, f.bytes_at = NULL)
BAD(text_missing, f.text_at = NULL)
BAD(text_none, f.text_size = 0)
BAD(query_rank, f.query.rank = 1)
BAD(key_rank, f.key.rank = 2)
BAD(value_rank, f.value.rank = 0)
BAD(out_rank, f.out.rank = 4)
BAD(query_f16, f.query.dtype = HEADWAY_F16)
BAD(value_type, f.value.dtype = (headway_dtype)-3)
BAD(out_bool, f.out.dtype = HEADWAY_BOOL)
BAD(query_width, f.query.shape[2] = E + 1)
BAD(key_width, f.key.shape[2] = EK - 1)
BAD(value_width, f.value.shape[2] = EK)
BAD(self, f.key_at = f.value_at = NULL)
BAD(value_of_key, f.value_at = NULL)
BAD(key_batch, f.key.shape[0] = 1)
BAD(value_batch, f.value.shape[0] = 1)
BAD(value_length, f.value.shape[1] = LK - 1)
BAD(key_negative, f.key.shape[1] = f.value.shape[1] = -1)
BAD(query_far, f.query.stride[0] = INT64_MAX)
BAD(query_inner, f.query.stride[2] = 2)
BAD(key_inner, f.key.stride[2] = -1)
BAD(out_inner, f.out.stride[2] = 0)
BAD(query_data, f.query.data = NULL)
BAD(value_data, f.value.data = NULL)
BAD(out_data, f.out.data = NULL)
BAD(key_odd, f.key.data = (char *)f.key.data + 2)
BAD(out_odd, f.out.data = (char *)f.out.data + 1)
BAD(out_batch, f.out.shape[0] = 1)
BAD(out_rows, f.out.shape[1] = LK)
BAD(out_width, f.out.shape[2] = E)
BAD(out_folded, f.out.stride[1] = EO - 1)
BAD(out_same, f.out.stride[0] = 0)
BAD(out_on_query, f.out.data = (float *)f.query.data + 50)
BAD(out_on_key, f.out.data = f.key.data)
BAD(out_on_value, f.out.data = (float *)f.value.data + 130)
BAD(out_on_mask, f.out.data = f.mask.data)
BAD(lse_on_out, f.lse.data = f.out.data)
BAD(lse_on_query, f.lse.data = f.query.data)
BAD(lse_shape, f.lse.shape[1] = LQ)
BAD(mask_rank, f.mask.rank = 3)
BAD(mask_heads, f.mask.shape[1] = KV_HEADS)
BAD(length_large, f.lengths[0] = 0; f.lengths[1] = LQ + 1; f.params.query_lengths = f.lengths)
BAD(length_negative, f.lengths[0] = -1; f.lengths[1] = 0; f.params.key_lengths = f.lengths)
BAD(causal_unknown, f.params.causal = (headway_causal)77)
BAD(causal_alone, f.params.causal = HEADWAY_CAUSAL_OFFSETS)
BAD(scale_nan, f.scale = NAN; f.params.scale = &f.scale)
BAD(params_size, f.params.size = 3)
BAD(workspace_missing, f.workspace_at = NULL)
BAD(workspace_small, f.given = 64)
BAD(workspace_odd, f.workspace_at = f.workspace + 8)

BAD(positions_plain, f.params.query_positions = &f.positions)
BAD(key_positions_plain, f.params.key_positions = &f.positions)
BAD(positions_rank, f.layer = turning; f.params.query_positions = &f.positions;
    f.positions.rank = 3)
BAD(positions_type, f.layer = turning; f.params.query_positions = &f.positions;
    f.positions.dtype = HEADWAY_F32)
BAD(positions_length, f.layer = turning; f.params.key_positions = &f.positions)
BAD(positions_batch, f.layer = turning; f.params.query_positions = &f.positions;
    f.positions.shape[0] = 3)
BAD(positions_data, f.layer = turning; f.params.query_positions = &f.positions;
    f.positions.data = NULL)
BAD(position_negative, f.layer = turning; f.params.query_positions = &f.positions;
    f.places[LK + 1] = -1)
BAD(position_large, f.layer = turning; f.params.key_positions = &f.positions;
    f.positions.shape[1] = LK; f.places[2] = POSITIONS)
BAD(position_below, f.layer = turning; f.params.row_offsets = f.lengths; f.lengths[0] = 0;
    f.lengths[1] = -1)
BAD(position_beyond, f.layer = turning; f.params.row_offsets = f.lengths; f.lengths[0] = 4;
    f.lengths[1] = 0)
BAD(position_overflow, f.layer = turning; f.params.row_offsets = f.lengths;
    f.lengths[0] = INT64_MAX; f.lengths[1] = 0)
BAD(weights_short, f.layer = turning; f.params.weights = &f.weights_out)

static const struct bad forwards[] = {
    CASE(positions_plain, ARGUMENT, "query_positions: given", ALL),
    CASE(key_positions_plain, ARGUMENT, "key_positions: given", ALL),
    CASE(positions_rank, ARGUMENT, "query_positions: rank 3", ALL),
    CASE(positions_type, ARGUMENT, "query_positions: dtype F32", ALL),
    CASE(positions_length, ARGUMENT, "key_positions: extent 3 on axis 1", ALL),
    CASE(positions_batch, ARGUMENT, "query_positions: extent 3 on axis 0", ALL),
    CASE(positions_data, ARGUMENT, "query_positions: data is NULL", CALL),
    CASE(position_negative, ARGUMENT, "query_positions: position -1 of token 1 in batch 1", CALL),
    CASE(position_large, ARGUMENT, "key_positions: position 6 of token 2 in batch 0, expected 0..5",
         CALL),
    CASE(position_below, ARGUMENT, "query: position -1 of token 0 in batch 1", CALL),
    CASE(position_beyond, ARGUMENT, "query: position 6 of token 2 in batch 0", CALL),
    CASE(position_overflow, ARGUMENT, "query: position 9223372036854775807", CALL),
    CASE(weights_short, ARGUMENT, "weights: extent 5 on axis 3, expected 7", ALL),
    CASE(layer_missing, ARGUMENT, "", ALL),
    CASE(query_missing, ARGUMENT, "query: NULL", ALL),
    CASE(out_missing, ARGUMENT, "out: NULL", CALL),
    CASE(bytes_missing, ARGUMENT, "bytes: NULL", WORKSPACE),
    CASE(text_missing, ARGUMENT, "text", EXPLAIN),
    CASE(text_none, ARGUMENT, "text", EXPLAIN),
    CASE(query_rank, ARGUMENT, "query: rank 1", ALL),
    CASE(key_rank, ARGUMENT, "key: rank 2", ALL),
    CASE(value_rank, ARGUMENT, "value: rank 0", ALL),
    CASE(out_rank, ARGUMENT, "out: rank 4", CALL),
    CASE(query_f16, UNSUPPORTED, "query: dtype F16", ALL),
    CASE(value_type, ARGUMENT, "value: dtype", ALL),
    CASE(out_bool, UNSUPPORTED, "out: dtype BOOL", CALL),
    CASE(query_width, ARGUMENT, "query: extent 11 on axis 2", ALL),
    CASE(key_width, ARGUMENT, "key: extent 11 on axis 2", ALL),
    CASE(value_width, ARGUMENT, "value: extent 12 on axis 2", ALL),
    CASE(self, ARGUMENT, "key: extent 10 on axis 2", ALL),
    CASE(value_of_key, ARGUMENT, "value: extent 12 on axis 2", ALL),
    CASE(key_batch, ARGUMENT, "key: extent 1 on axis 0", ALL),
    CASE(value_batch, ARGUMENT, "value: extent 1 on axis 0", ALL),
    CASE(value_length, ARGUMENT, "value: extent 4 on axis 1", ALL),
    CASE(key_negative, ARGUMENT, "key: extent -1", ALL),
    CASE(query_far, MEMORY, "query", ALL),
    CASE(query_inner, ARGUMENT, "query: innermost stride 2", CALL),
    CASE(key_inner, ARGUMENT, "key: innermost stride -1", CALL),
    CASE(out_inner, ARGUMENT, "out: innermost stride 0", CALL),
    CASE(query_data, ARGUMENT, "query: data is NULL", CALL),
    CASE(value_data, ARGUMENT, "value: data is NULL", CALL),
    CASE(out_data, ARGUMENT, "out: data is NULL", CALL),
    CASE(key_odd, ARGUMENT, "key: data is not aligned", CALL),
    CASE(out_odd, ARGUMENT, "out: data is not aligned", CALL),
    CASE(out_batch, ARGUMENT, "out: extent 1 on axis 0", CALL),
    CASE(out_rows, ARGUMENT, "out: extent 5 on axis 1", CALL),
    CASE(out_width, ARGUMENT, "out: extent 10 on axis 2", CALL),
    CASE(out_folded, OVERLAP, "out: stride 15", CALL),
    CASE(out_same, OVERLAP, "out: stride 0", CALL),
    CASE(out_on_query, OVERLAP, "out: overlaps query", CALL),
    CASE(out_on_key, OVERLAP, "out: overlaps key", CALL),
    CASE(out_on_value, OVERLAP, "out: overlaps value", CALL),
    CASE(out_on_mask, OVERLAP, "out: overlaps mask", CALL),
    CASE(lse_on_out, OVERLAP, "lse: overlaps out", CALL),
    CASE(lse_on_query, OVERLAP, "lse: overlaps query", CALL),
    CASE(lse_shape, ARGUMENT, "lse: extent 3 on axis 1", ALL),
    CASE(mask_rank, ARGUMENT, "mask: rank 3", ALL),
    CASE(mask_heads, ARGUMENT, "mask: extent 2 on axis 1", ALL),
    CASE(length_large, ARGUMENT, "query_lengths: 4 for batch 1", ALL),
    CASE(length_negative, ARGUMENT, "key_lengths: -1 for batch 0", ALL),
    CASE(causal_unknown, ARGUMENT, "causal: 77", ALL),
    CASE(causal_alone, ARGUMENT, "row_offsets: NULL", ALL),
    CASE(scale_nan, ARGUMENT, "scale", ALL),
    CASE(params_size, ARGUMENT, "params: size 3", ALL),
    CASE(workspace_missing, HEADWAY_ERROR_WORKSPACE, "workspace: NULL", CALL),
    CASE(workspace_small, HEADWAY_ERROR_WORKSPACE, "workspace: 64 bytes", CALL),
    CASE(workspace_odd, HEADWAY_ERROR_WORKSPACE, "workspace: not aligned", CALL),
};

static headway_status call(int where)
{
    if (where == WORKSPACE)
        return headway_mha_workspace(f.layer, &f.params, f.query_at, f.key_at, f.value_at,
                                     f.bytes_at);
    if (where == CALL)
        return headway_mha_forward(f.layer, &f.params, f.query_at, f.key_at, f.value_at, f.out_at,
                                   f.workspace_at, f.given);
    return headway_mha_explain(f.layer, &f.params, f.query_at, f.key_at, f.value_at, f.text_at,
                               f.text_size);
}

static void try_forward(const struct bad *bad)
{
    static float before[FLOATS];
    if (!check_case("mha_forward: %s", bad->name))
        return;
    for (int where = WORKSPACE; where <= EXPLAIN; where *= 2) {
        reset();
        bad->spoil();
        memcpy(before, f.memory, sizeof before);
        memset(f.workspace, 0x5a, sizeof f.workspace);
        const headway_status status = call(where);
        if (bad->where & where) {
            expect_error(status, bad->status, f.layer ? bad->words : "");
            CHECK(f.bytes == UNTOUCHED && f.text[0] == '#', "bytes or text was written");
            CHECK(memcmp(before, f.memory, sizeof before) == 0, "an operand was written");
            for (size_t i = 0; i < sizeof f.workspace; i += 997)
                CHECK(f.workspace[i] == 0x5a, "the workspace was written");
        } else {
            CHECK(status == HEADWAY_OK, "function %d: %s", where, headway_status_text(status));
        }
    }
}

static void check_forward_edges(void)
{
    if (!check_case("mha_forward: exactly the workspace; explain cut short"))
        return;
    reset();
    CHECK(call(WORKSPACE) == HEADWAY_OK && f.bytes > 0, "workspace");
    f.given = f.bytes;
    CHECK(call(CALL) == HEADWAY_OK, "exactly enough");
    f.given = f.bytes - 1;
    expect_error(call(CALL), HEADWAY_ERROR_WORKSPACE, "workspace");
    CHECK(call(EXPLAIN) == HEADWAY_OK && strstr(f.text, headway_engine_isa(engine)), "%s", f.text);
    for (size_t size = 1; size < 600; size += 7) {
        memset(f.text, '#', sizeof f.text);
        f.text_size = size;
        CHECK(call(EXPLAIN) == HEADWAY_OK && strlen(f.text) < size && f.text[size] == '#',
              "%zu bytes", size);
    }
}

/* Positions of rows beyond the lengths may be anything; explain tells all that a layer does. */
static void check_turning(void)
{
    if (!check_case("mha_forward: positions that don't count; explain names what the layer does"))
        return;
    reset();
    f.layer = turning;
    f.params.query_positions = &f.positions;
    f.params.query_lengths = f.lengths;
    f.lengths[0] = 2;
    f.lengths[1] = 0;
    f.places[2] = -5;
    f.places[LK] = POSITIONS;
    CHECK(call(CALL) == HEADWAY_OK, "positions beyond the lengths");
    CHECK(call(EXPLAIN) == HEADWAY_OK &&
              strstr(f.text, "half pairs, 8 of 8 channels, no scaling") &&
              strstr(f.text, "6 positions in 192 bytes") && strstr(f.text, "norm of each query") &&
              strstr(f.text, "norm of each key") && strstr(f.text, "two keys and values appended"),
          "%s", f.text);
}

static void check_asked(void)
{
    headway_mha_sizes sizes = HEADWAY_MHA_SIZES_INIT;
    if (!check_case("mha_get_sizes"))
        return;
    CHECK(headway_mha_get_sizes(NULL, &sizes) == HEADWAY_ERROR_ARGUMENT, "no layer");
    expect_error(headway_mha_get_sizes(good, NULL), HEADWAY_ERROR_ARGUMENT, "sizes: NULL");
    CHECK(headway_mha_get_sizes(good, &sizes) == HEADWAY_OK && sizes.heads == HEADS &&
              sizes.kv_heads == KV_HEADS && sizes.head_size == D && sizes.value_head_size == DV &&
              sizes.query_width == E && sizes.key_width == EK && sizes.value_width == EV &&
              sizes.out_width == EO && sizes.positions == 0 && sizes.appended_keys == 0,
          "the plain layer's");
    CHECK(headway_mha_get_sizes(turning, &sizes) == HEADWAY_OK && sizes.heads == HEADS &&
              sizes.positions == POSITIONS && sizes.appended_keys == 2,
          "%lld positions, %lld keys appended", (long long)sizes.positions,
          (long long)sizes.appended_keys);
}

void check_mha_arguments(void)
{
    reset();
    extend();
    f.made_at = &turning;
    CHECK(create() == HEADWAY_OK, "the layer with all options");
    reset();
    CHECK(create() == HEADWAY_OK, "the layer that the others use");
    good = f.made;
    if (!good || !turning)
        return;
    for (int n = 0; n < COUNT(creates); n++)
        try_create(&creates[n]);
    check_created();
    for (int n = 0; n < COUNT(forwards); n++)
        try_forward(&forwards[n]);
    check_forward_edges();
    check_turning();
    check_asked();
    headway_mha_destroy(turning);
    headway_mha_destroy(good);
}
