/* headway_mha: the layer is made, its weights looked at and packed once; and asked for its sizes. */
#include <math.h>
#include <string.h>

#include "api/check.h"
#include "api/mha.h"
#include "system/float_mode.h"
#include "system/memory.h"

static const char *const weight_names[PROJECTIONS] = {"query weight", "key weight", "value weight",
                                                      "out weight"};
static const char *const bias_names[PROJECTIONS] = {"query bias", "key bias", "value bias",
                                                    "out bias"};

/* What create learns of one projection before it packs. */
struct projection {
    struct headway_weight_view view;
    int64_t groups, size, inputs;
};

/* Given, and of a rank that view_weight() can split. */
static headway_status check_weight(const headway_engine *engine, const char *name,
                                   const headway_tensor *weight)
{
    if (!weight)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: NULL, expected a tensor (or the fused weight)", name);
    if (weight->rank != 2 && weight->rank != 3)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: rank %d, expected 2 (outputs, inputs) or 3 (heads, size, inputs)",
                            name, weight->rank);
    return headway_check_tensor(engine, name, weight, HEADWAY_F32, weight->rank,
                                "(outputs, inputs)");
}

/* A weight as (groups, size, inputs): rank 2 (outputs, inputs) is split at the head size, rank 3 is
 * taken as it stands; transposed storage has the inputs first. */
static headway_status view_weight(const headway_engine *engine, const char *name,
                                  const headway_tensor *weight, int transposed,
                                  struct projection *p)
{
    HEADWAY_TRY(check_weight(engine, name, weight));
    const int in = transposed ? 0 : weight->rank - 1;
    const int channel = transposed ? weight->rank - 1 : weight->rank - 2;
    int64_t outputs = weight->shape[channel];
    p->inputs = weight->shape[in];
    p->view.data = weight->data;
    p->view.input_stride = headway_stride(weight, in);
    p->view.channel_stride = headway_stride(weight, channel);
    p->view.group_stride = p->size * p->view.channel_stride;
    if (weight->rank == 3) {
        const int group = transposed ? 1 : 0;
        HEADWAY_TRY(headway_check_extent(engine, name, channel, outputs, p->size, "head size"));
        HEADWAY_TRY(
            headway_check_extent(engine, name, group, weight->shape[group], p->groups, "heads"));
        p->view.group_stride = headway_stride(weight, group);
        outputs = p->groups * p->size;
    }
    if (outputs != p->groups * p->size || p->inputs < 1)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "%s: (%lld outputs, %lld inputs), expected %lld outputs (%lld x %lld) and 1 or "
            "more inputs%s",
            name, (long long)outputs, (long long)p->inputs, (long long)(p->groups * p->size),
            (long long)p->groups, (long long)p->size,
            transposed ? "; weights are said to be stored transposed" : "");
    return headway_check_memory(engine, name, weight);
}

static headway_status view_bias(const headway_engine *engine, const char *name,
                                const headway_tensor *bias, struct projection *p)
{
    p->view.bias = NULL;
    if (!bias)
        return HEADWAY_OK;
    if (bias->rank != 1 && bias->rank != 2)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: rank %d, expected 1 (outputs) or 2 (heads, size)", name,
                            bias->rank);
    HEADWAY_TRY(headway_check_tensor(engine, name, bias, HEADWAY_F32, bias->rank, "(outputs)"));
    const int channel = bias->rank - 1;
    const int64_t expected = bias->rank == 1 ? p->groups * p->size : p->size;
    HEADWAY_TRY(headway_check_extent(engine, name, channel, bias->shape[channel], expected,
                                     bias->rank == 1 ? "the weight's outputs" : "head size"));
    if (bias->rank == 2)
        HEADWAY_TRY(headway_check_extent(engine, name, 0, bias->shape[0], p->groups, "heads"));
    HEADWAY_TRY(headway_check_memory(engine, name, bias));
    p->view.bias = bias->data;
    p->view.bias_channel = headway_stride(bias, channel);
    p->view.bias_group = bias->rank == 1 ? p->size * p->view.bias_channel : headway_stride(bias, 0);
    return HEADWAY_OK;
}

/* Rows of the fused matrix (or its bias) as a tensor of their own. */
static headway_tensor rows_of(const headway_tensor *fused, int axis, int64_t first, int64_t rows)
{
    headway_tensor part = *fused;
    if (part.data) /* an empty one may have none */
        part.data = (float *)part.data + first * fused->stride[axis];
    part.shape[axis] = rows;
    return part;
}

static headway_status check_fused(const headway_engine *engine, const headway_mha_config *config,
                                  const headway_mha_weights *weights, int64_t outputs)
{
    const headway_tensor *fused = weights->fused;
    if (weights->query || weights->key || weights->value || weights->query_bias ||
        weights->key_bias || weights->value_bias)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "fused weight: given together with separate ones, expected one or the other");
    const int axis = config->transposed ? 1 : 0;
    HEADWAY_TRY(
        headway_check_tensor(engine, "fused weight", fused, HEADWAY_F32, 2, "(outputs, inputs)"));
    HEADWAY_TRY(headway_check_extent(engine, "fused weight", axis, fused->shape[axis], outputs,
                                     "query, key and value rows"));
    HEADWAY_TRY(headway_check_memory(engine, "fused weight", fused));
    if (!weights->fused_bias)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_tensor(engine, "fused bias", weights->fused_bias, HEADWAY_F32, 1,
                                     "(outputs)"));
    HEADWAY_TRY(headway_check_extent(engine, "fused bias", 0, weights->fused_bias->shape[0],
                                     outputs, "the weight's outputs"));
    return headway_check_memory(engine, "fused bias", weights->fused_bias);
}

/* Query, key, value out of one matrix. */
static headway_status view_fused(const headway_engine *engine, const headway_mha_config *config,
                                 const headway_mha_weights *weights, struct projection *p)
{
    const int axis = config->transposed ? 1 : 0;
    const int64_t rows[3] = {p[QUERY].groups * p[QUERY].size, p[KEY].groups * p[KEY].size,
                             p[VALUE].groups * p[VALUE].size};
    int64_t first = 0;
    HEADWAY_TRY(check_fused(engine, config, weights, rows[0] + rows[1] + rows[2]));
    for (int i = QUERY; i <= VALUE; i++) {
        const headway_tensor part = rows_of(weights->fused, axis, first, rows[i]);
        HEADWAY_TRY(view_weight(engine, "fused weight", &part, config->transposed, &p[i]));
        p[i].view.bias = NULL;
        if (weights->fused_bias) {
            const headway_tensor bias = rows_of(weights->fused_bias, 0, first, rows[i]);
            HEADWAY_TRY(view_bias(engine, "fused bias", &bias, &p[i]));
        }
        first += rows[i];
    }
    return HEADWAY_OK;
}

static headway_status view_separate(const headway_engine *engine, const headway_mha_config *config,
                                    const headway_mha_weights *weights, struct projection *p)
{
    const headway_tensor *weight[3] = {weights->query, weights->key, weights->value};
    const headway_tensor *bias[3] = {weights->query_bias, weights->key_bias, weights->value_bias};
    if (weights->fused_bias)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "fused bias: given without the fused weight, expected NULL");
    for (int i = QUERY; i <= VALUE; i++) {
        HEADWAY_TRY(view_weight(engine, weight_names[i], weight[i], config->transposed, &p[i]));
        HEADWAY_TRY(view_bias(engine, bias_names[i], bias[i], &p[i]));
    }
    return HEADWAY_OK;
}

static headway_status check_separate(const headway_engine *engine,
                                     const headway_mha_weights *weights)
{
    HEADWAY_TRY(check_weight(engine, weight_names[QUERY], weights->query));
    HEADWAY_TRY(check_weight(engine, weight_names[KEY], weights->key));
    return check_weight(engine, weight_names[VALUE], weights->value);
}

/* Outputs of a projection weight of rank 2 or 3; 0 when they don't fit. */
static int64_t outputs_of(const headway_tensor *weight, int transposed)
{
    const int channel = transposed ? weight->rank - 1 : weight->rank - 2;
    int64_t outputs = weight->shape[channel];
    if (weight->rank == 3 && !headway_mul(outputs, weight->shape[transposed ? 1 : 0], &outputs))
        return 0;
    return outputs;
}

/* Head counts and sizes, given or told by the weights. */
static headway_status sizes_of(const headway_engine *engine, const headway_mha_config *config,
                               const headway_mha_weights *weights, struct headway_mha *layer)
{
    const int64_t most = (int64_t)1 << 30; /* sums of products of two stay in int64_t */
    const int fused = weights->fused != NULL;
    layer->heads = config->heads;
    layer->kv_heads = config->kv_heads ? config->kv_heads : config->heads;
    if (layer->heads < 1 || layer->kv_heads < 1 || layer->heads > most ||
        layer->heads % layer->kv_heads != 0)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "config: %lld heads with %lld kv_heads, expected kv_heads that divide heads, 1 "
            "or more",
            (long long)config->heads, (long long)config->kv_heads);
    if (config->head_size < 0 || config->value_head_size < 0 || config->head_size > most ||
        config->value_head_size > most)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "config: head_size %lld, value_head_size %lld, expected 0 (from the weights) to "
            "2^30",
            (long long)config->head_size, (long long)config->value_head_size);
    if (fused)
        HEADWAY_TRY(headway_check_tensor(engine, "fused weight", weights->fused, HEADWAY_F32, 2,
                                         "(outputs, inputs)"));
    else
        HEADWAY_TRY(check_separate(engine, weights));
    layer->size = config->head_size;
    if (!layer->size)
        layer->size = fused ? outputs_of(weights->fused, config->transposed) /
                                  (layer->heads + 2 * layer->kv_heads)
                            : outputs_of(weights->query, config->transposed) / layer->heads;
    layer->value_size = config->value_head_size;
    if (!layer->value_size)
        layer->value_size =
            fused ? layer->size : outputs_of(weights->value, config->transposed) / layer->kv_heads;
    if (layer->size < 1 || layer->value_size < 1 || layer->size > most || layer->value_size > most)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "config: head size %lld, value head size %lld by the weights, expected 1 or more",
            (long long)layer->size, (long long)layer->value_size);
    return HEADWAY_OK;
}

static headway_status view_all(const headway_engine *engine, const headway_mha_config *config,
                               const headway_mha_weights *weights, const struct headway_mha *layer,
                               struct projection *p)
{
    p[QUERY].groups = layer->heads;
    p[KEY].groups = p[VALUE].groups = layer->kv_heads;
    p[QUERY].size = p[KEY].size = layer->size;
    p[VALUE].size = layer->value_size;
    HEADWAY_TRY(weights->fused ? view_fused(engine, config, weights, p)
                               : view_separate(engine, config, weights, p));
    p[OUT].groups = 1;
    p[OUT].size = 0;
    if (weights->out && weights->out->rank == 2)
        p[OUT].size = weights->out->shape[config->transposed ? 1 : 0];
    HEADWAY_TRY(headway_check_tensor(engine, weight_names[OUT], weights->out, HEADWAY_F32, 2,
                                     "(outputs, inputs)"));
    HEADWAY_TRY(view_weight(engine, weight_names[OUT], weights->out, config->transposed, &p[OUT]));
    HEADWAY_TRY(headway_check_extent(engine, weight_names[OUT], config->transposed ? 0 : 1,
                                     p[OUT].inputs, layer->heads * layer->value_size,
                                     "heads x value head size"));
    return view_bias(engine, bias_names[OUT], weights->out_bias, &p[OUT]);
}

/* A tensor of the layer beside the projections, of one or two axes; NULL: none. */
static headway_status check_extra(const headway_engine *engine, const char *name,
                                  const headway_tensor *tensor, int rank, int64_t heads,
                                  int64_t size)
{
    if (!tensor)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_tensor(engine, name, tensor, HEADWAY_F32, rank,
                                     rank == 1 ? "(head size)" : "(kv_heads, head size)"));
    if (rank == 2)
        HEADWAY_TRY(headway_check_extent(engine, name, 0, tensor->shape[0], heads, "kv_heads"));
    HEADWAY_TRY(
        headway_check_extent(engine, name, rank - 1, tensor->shape[rank - 1], size, "head size"));
    return headway_check_memory(engine, name, tensor);
}

/* Norms, rotary embedding and appended keys: checked, and described but for their memory. */
static headway_status check_extras(const headway_engine *engine, const headway_mha_config *config,
                                   const headway_mha_weights *weights, struct headway_mha *layer)
{
    if (!(config->norm_eps >= 0.0f && isfinite(config->norm_eps)))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "config: norm_eps %g, expected a positive number, or 0 (1e-6)",
                            (double)config->norm_eps);
    layer->norm_eps = config->norm_eps != 0.0f ? (double)config->norm_eps : (double)1e-6f;
    HEADWAY_TRY(headway_mha_check_rope(engine, config->rope, layer->size, &layer->rope));
    layer->scaling = config->rope ? config->rope->scaling : HEADWAY_ROPE_PLAIN;
    HEADWAY_TRY(check_extra(engine, "query_norm", weights->query_norm, 1, 0, layer->size));
    HEADWAY_TRY(check_extra(engine, "key_norm", weights->key_norm, 1, 0, layer->size));
    if (!weights->bias_k != !weights->bias_v)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: NULL, expected both or none",
                            weights->bias_k ? "bias_v" : "bias_k");
    HEADWAY_TRY(check_extra(engine, "bias_k", weights->bias_k, 2, layer->kv_heads, layer->size));
    HEADWAY_TRY(
        check_extra(engine, "bias_v", weights->bias_v, 2, layer->kv_heads, layer->value_size));
    layer->normed[QUERY] = weights->query_norm != NULL;
    layer->normed[KEY] = weights->key_norm != NULL;
    layer->appended = (weights->bias_k != NULL) + (config->add_zero_attn != 0);
    return HEADWAY_OK;
}

headway_status headway_mha_plan(struct headway_mha *layer, int64_t at[PARTS + 1])
{
    const headway_engine *engine = layer->engine;
    const struct headway_row *row = headway_engine_machine(engine).row;
    const int64_t half = layer->rope.size / 2, more = layer->kv_heads * layer->appended;
    int64_t floats, keys, values, end = 0;
    for (int i = 0; i < PROJECTIONS; i++) {
        struct headway_linear *linear = &layer->linear[i];
        linear->groups = i == OUT ? 1 : i == QUERY ? layer->heads : layer->kv_heads;
        linear->size = i == OUT ? linear->size : i == VALUE ? layer->value_size : layer->size;
        if (headway_linear_size(linear, row, &floats) != 0 ||
            !headway_reserve(&at[i], &end, floats, 1))
            return headway_fail(engine, HEADWAY_ERROR_MEMORY, "%s: too large to pack",
                                weight_names[i]);
    }
    if (!headway_reserve(&at[COS], &end, layer->rope.positions, half) ||
        !headway_reserve(&at[SIN], &end, layer->rope.positions, half))
        return headway_fail(engine, HEADWAY_ERROR_MEMORY, "rope: tables too large");
    if (!headway_reserve(&at[NORMS], &end, layer->normed[QUERY] + layer->normed[KEY],
                         layer->size) ||
        !headway_mul(more, layer->size, &keys) || !headway_mul(more, layer->value_size, &values) ||
        !headway_reserve(&at[MORE_KEYS], &end, keys, 1) ||
        !headway_reserve(&at[MORE_VALUES], &end, values, 1) || end >= INT64_MAX / 8)
        return headway_fail(engine, HEADWAY_ERROR_MEMORY, "layer: too large to pack");
    at[PARTS] = end;
    return HEADWAY_OK;
}

void headway_mha_attach(struct headway_mha *layer, const int64_t at[PARTS + 1], const float *memory)
{
    const struct headway_row *row = headway_engine_machine(layer->engine).row;
    for (int i = 0; i < PROJECTIONS; i++)
        headway_linear_attach(&layer->linear[i], row, memory + at[i]);
    layer->rope.cos = memory + at[COS];
    layer->rope.sin = memory + at[SIN];
    layer->norm[QUERY] = layer->normed[QUERY] ? memory + at[NORMS] : NULL;
    layer->norm[KEY] =
        layer->normed[KEY] ? memory + at[NORMS] + layer->normed[QUERY] * layer->size : NULL;
    layer->more[KEY] = memory + at[MORE_KEYS];
    layer->more[VALUE] = memory + at[MORE_VALUES];
}

/* One tensor of keys or values to append, zeros where there is none. */
static void fill_more(const headway_tensor *bias, int64_t heads, int appended, int64_t size,
                      float *to)
{
    for (int64_t h = 0; h < heads; h++)
        for (int64_t x = 0; x < appended * size; x++)
            to[h * appended * size + x] =
                bias && x < size
                    ? ((const float *)
                           bias->data)[h * headway_stride(bias, 0) + x * headway_stride(bias, 1)]
                    : 0.0f;
}

/* Everything into the memory that the layer is attached to. */
static void fill(const struct headway_mha *layer, const headway_mha_config *config,
                 const headway_mha_weights *weights, const struct projection *p, const int64_t *at,
                 float *memory, const float *zeros)
{
    const headway_tensor *norms[2] = {weights->query_norm, weights->key_norm};
    const struct headway_row *row = headway_engine_machine(layer->engine).row;
    float *norm = memory + at[NORMS];
    /* What rounding leaves between parts is zeros: saved layers are the same for the same weights. */
    for (int i = 0; i < PARTS; i++) {
        const int64_t gap = headway_at_most(32, at[i + 1] - at[i]);
        memset(memory + at[i + 1] - gap, 0, (size_t)gap * sizeof(float));
    }
    for (int i = 0; i < PROJECTIONS; i++)
        headway_linear_pack(&layer->linear[i], row, &p[i].view, memory + at[i], zeros);
    for (int i = QUERY; i <= KEY; norm += layer->normed[i] * layer->size, i++)
        for (int64_t d = 0; norms[i] && d < layer->size; d++)
            norm[d] = ((const float *)norms[i]->data)[d * headway_stride(norms[i], 0)] / 16.0f;
    if (layer->rope.size)
        headway_mha_fill_rope(config->rope, &layer->rope, memory + at[COS], memory + at[SIN]);
    fill_more(weights->bias_k, layer->kv_heads, layer->appended, layer->size,
              memory + at[MORE_KEYS]);
    fill_more(weights->bias_v, layer->kv_heads, layer->appended, layer->value_size,
              memory + at[MORE_VALUES]);
}

/* The struct and its memory are one allocation. */
static headway_status make(struct headway_mha *made, const headway_mha_config *config,
                           const headway_mha_weights *weights, const struct projection *p,
                           headway_mha **layer)
{
    const struct headway_memory *from = headway_engine_memory(made->engine);
    const int64_t head = headway_divide_up((int64_t)sizeof *made, 64) * 16;
    int64_t at[PARTS + 1], longest = 0;
    HEADWAY_TRY(headway_mha_plan(made, at));
    for (int i = 0; i < PROJECTIONS; i++)
        longest = p[i].inputs > longest ? p[i].inputs : longest;
    float *memory = headway_allocate(from, (size_t)(head + at[PARTS]) * sizeof(float));
    float *zeros = headway_allocate(from, (size_t)longest * sizeof(float));
    if (!memory || !zeros) {
        headway_release(from, memory);
        headway_release(from, zeros);
        return headway_fail(made->engine, HEADWAY_ERROR_MEMORY,
                            "layer: no memory for %lld bytes of packed weights and tables",
                            (long long)(head + at[PARTS]) * 4);
    }
    memset(zeros, 0, (size_t)longest * sizeof(float));
    headway_mha_attach(made, at, memory + head);
    fill(made, config, weights, p, at, memory + head, zeros);
    headway_release(from, zeros);
    *layer = (headway_mha *)(void *)memory;
    memcpy(*layer, made, sizeof *made);
    return HEADWAY_OK;
}

headway_status headway_mha_create(const headway_engine *engine, const headway_mha_config *config,
                                  const headway_mha_weights *weights, headway_mha **layer)
{
    struct headway_mha made = {.engine = engine};
    struct projection p[PROJECTIONS];
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    if (!config || !weights || !layer)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: NULL",
                            !config    ? "config"
                            : !weights ? "weights"
                                       : "layer");
    HEADWAY_TRY(headway_check_size(engine, "config", config->size, sizeof *config, sizeof *config));
    HEADWAY_TRY(
        headway_check_size(engine, "weights", weights->size, sizeof *weights, sizeof *weights));
    HEADWAY_TRY(sizes_of(engine, config, weights, &made));
    HEADWAY_TRY(view_all(engine, config, weights, &made, p));
    HEADWAY_TRY(check_extras(engine, config, weights, &made));
    for (int i = 0; i < PROJECTIONS; i++) {
        made.linear[i].inputs = p[i].inputs;
        made.linear[i].size = p[i].size;
        made.linear[i].has_bias = p[i].view.bias != NULL;
    }
    const struct headway_float_mode before = headway_float_enter();
    const headway_status status = make(&made, config, weights, p, layer);
    headway_float_leave(before);
    return status;
}

void headway_mha_destroy(headway_mha *layer)
{
    if (layer)
        headway_release(headway_engine_memory(layer->engine), layer);
}

headway_status headway_mha_get_sizes(const headway_mha *layer, headway_mha_sizes *sizes)
{
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    if (!sizes)
        return headway_fail(layer->engine, HEADWAY_ERROR_ARGUMENT, "sizes: NULL");
    HEADWAY_TRY(
        headway_check_size(layer->engine, "sizes", sizes->size, sizeof *sizes, sizeof *sizes));
    sizes->heads = layer->heads;
    sizes->kv_heads = layer->kv_heads;
    sizes->head_size = layer->size;
    sizes->value_head_size = layer->value_size;
    sizes->query_width = layer->linear[QUERY].inputs;
    sizes->key_width = layer->linear[KEY].inputs;
    sizes->value_width = layer->linear[VALUE].inputs;
    sizes->out_width = layer->linear[OUT].size;
    sizes->positions = layer->rope.size ? layer->rope.positions : 0;
    sizes->appended_keys = layer->appended;
    return HEADWAY_OK;
}
