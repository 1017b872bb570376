/* A layer of one shape: its weights and tokens, and what it should give. */
#ifndef HEADWAY_BENCH_LAYER_H
#define HEADWAY_BENCH_LAYER_H

#include "attention.h"

#include <cmath>

namespace bench
{

/* One weight matrix (outputs, inputs) with its bias, and tensors on both. */
struct Weight {
    Weight(int64_t outputs, int64_t inputs, uint64_t seed)
        : matrix(floats(outputs * inputs)), bias(floats(outputs))
    {
        const int64_t shape[] = {outputs, inputs};
        fill_normal(matrix.get(), outputs * inputs, seed, 1.0f / std::sqrt(float(inputs)));
        fill_normal(bias.get(), outputs, seed + 100, 0.1f);
        tensor = headway_tensor_dense(matrix.get(), HEADWAY_F32, 2, shape);
        bias_tensor = headway_tensor_dense(bias.get(), HEADWAY_F32, 1, shape);
    }
    Floats matrix, bias;
    headway_tensor tensor, bias_tensor;
};

/* A layer of E = Hq * D inputs and outputs, and an input. Lq != Lk: keys come from another one. */
struct LayerData {
    explicit LayerData(const Shape &given)
        : shape(given), E(given.Hq * given.D), query(floats(given.B * given.Lq * E)),
          key(floats(given.B * given.Lk * E)), q(E, E, 11), k(given.Hkv * given.D, E, 12),
          v(given.Hkv * given.Dv, E, 13), o(E, given.Hq * given.Dv, 14)
    {
        const int64_t x[] = {shape.B, shape.Lq, E}, y[] = {shape.B, shape.Lk, E};
        fill_normal(query.get(), x[0] * x[1] * x[2], 1, 1.0f);
        fill_normal(key.get(), y[0] * y[1] * y[2], 2, 1.0f);
        query_tensor = headway_tensor_dense(query.get(), HEADWAY_F32, 3, x);
        key_tensor = headway_tensor_dense(key.get(), HEADWAY_F32, 3, y);
        key_or_null = shape.Lq == shape.Lk ? nullptr : &key_tensor;
        params.causal = shape.causal ? HEADWAY_CAUSAL_BOTTOM_RIGHT : HEADWAY_CAUSAL_NONE;
        config.heads = shape.Hq;
        config.kv_heads = shape.Hkv;
        config.head_size = shape.D;
        config.value_head_size = shape.Dv;
        weights.query = &q.tensor;
        weights.query_bias = &q.bias_tensor;
        weights.key = &k.tensor;
        weights.key_bias = &k.bias_tensor;
        weights.value = &v.tensor;
        weights.value_bias = &v.bias_tensor;
        weights.out = &o.tensor;
        weights.out_bias = &o.bias_tensor;
    }
    LayerData(const LayerData &) = delete;
    LayerData &operator=(const LayerData &) = delete;

    int64_t out_count() const
    {
        return shape.B * shape.Lq * E;
    }
    double flops() const
    {
        const double per_query = double(E * shape.Hq * (shape.D + shape.Dv));
        const double per_key = double(E * shape.Hkv * (shape.D + shape.Dv));
        return 2.0 * double(shape.B) * (double(shape.Lq) * per_query + double(shape.Lk) * per_key) +
               shape.attention_flops();
    }
    /* Weights, input and output once. */
    double bytes() const
    {
        const double per_head = double(E * (shape.D + shape.Dv));
        const int64_t tokens = 2 * shape.Lq + (key_or_null ? shape.Lk : 0);
        return 4.0 * (per_head * double(shape.Hq + shape.Hkv) + double(shape.B * tokens * E));
    }

    Shape shape;
    int64_t E;
    Floats query, key;
    Weight q, k, v, o;
    headway_tensor query_tensor, key_tensor;
    const headway_tensor *key_or_null;
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    Expected expected;
};

/* layer/headway/<type of the cache's elements>/step4k.../threads:<N>. */
void register_steps(const std::vector<int> &threads);

} // namespace bench

#endif
