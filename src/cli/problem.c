#include "cli/problem.h"

#include "cli/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static headway_tensor view(const struct array *array)
{
    return headway_tensor_dense(array->data, HEADWAY_F32, array->rank, array->shape);
}

void heads_third(headway_tensor *tensor)
{
    int64_t extent = tensor->shape[1], stride = tensor->stride[1];
    tensor->shape[1] = tensor->shape[2];
    tensor->stride[1] = tensor->stride[2];
    tensor->shape[2] = extent;
    tensor->stride[2] = stride;
}

/* (B, L, heads * size) or (L, heads * size) as (B, L, heads, size). */
static int split_heads(const struct array *array, const char *flag, int64_t heads,
                       headway_tensor *tensor, char *error)
{
    int first = array->rank == 2;
    int64_t length = array->shape[1 - first], width = array->shape[2 - first];
    int64_t shape[4] = {first ? 1 : array->shape[0], length, heads, width / heads};
    if (width % heads || width == 0) {
        snprintf(error, ERROR_SIZE, "--%s: width %lld given, a multiple of its %lld heads expected",
                 flag, (long long)width, (long long)heads);
        return -1;
    }
    *tensor = headway_tensor_dense(array->data, HEADWAY_F32, 4, shape);
    return 0;
}

/* (total, heads, size) as (1, total, heads, size). */
static headway_tensor packed_view(const struct array *array)
{
    int64_t shape[4] = {1, array->shape[0], array->shape[1], array->shape[2]};
    return headway_tensor_dense(array->data, HEADWAY_F32, 4, shape);
}

static int agree(const char *flag, int64_t given, int64_t found, char *error)
{
    if (!given || given == found)
        return 0;
    snprintf(error, ERROR_SIZE, "--%s: %lld given, the files' shapes say %lld", flag,
             (long long)given, (long long)found);
    return -1;
}

/* Heads of query and of key from flags and widths (ranks 2 and 3). */
static int count_heads(const struct problem *p, int64_t *heads, int64_t *kv_heads, char *error)
{
    const struct options *o = p->options;
    int last = p->inputs[0].rank - 1;
    int64_t width = p->inputs[0].shape[last], key_width = p->inputs[1].shape[last];
    *heads = o->heads;
    if (!*heads && o->head_size)
        *heads = width / o->head_size;
    if (*heads < 1) {
        snprintf(
            error, ERROR_SIZE,
            "--query: rank %d of width %lld given, --heads or a --head-size that fits expected",
            p->inputs[0].rank, (long long)width);
        return -1;
    }
    if (width % *heads || width == 0) {
        snprintf(
            error, ERROR_SIZE,
            "--query: rank %d of width %lld given with %lld heads, --heads that divide it expected",
            p->inputs[0].rank, (long long)width, (long long)*heads);
        return -1;
    }
    *kv_heads = o->kv_heads;
    if (!*kv_heads) {
        int64_t size = width / *heads;
        if (size < 1 || key_width % size || key_width == 0) {
            snprintf(error, ERROR_SIZE,
                     "--key: width %lld given, a multiple of the head size %lld expected",
                     (long long)key_width, (long long)size);
            return -1;
        }
        *kv_heads = key_width / size;
    }
    return 0;
}

static int shape_core(struct problem *p, char *error)
{
    static const char *const flags[] = {"query", "key", "value"};
    const struct options *o = p->options;
    headway_tensor *tensors[] = {&p->query, &p->key, &p->value};
    int64_t heads = 0, kv_heads = 0;
    int rank = p->inputs[0].rank, packed = 0;
    for (int i = 0; i < 3; i++)
        if (p->inputs[i].rank != rank || rank < 2 || rank > 4) {
            snprintf(error, ERROR_SIZE, "--%s: rank %d given, %s expected", flags[i],
                     p->inputs[i].rank, i && rank >= 2 && rank <= 4 ? "the query's" : "2, 3 or 4");
            return -1;
        }
    if (p->options->query_offsets) {
        if (rank == 4) {
            snprintf(error, ERROR_SIZE,
                     "--query: rank 4 given, 2 or 3 expected with --query-offsets");
            return -1;
        }
        packed = rank == 3;
    }
    if (rank < 4 && !packed && count_heads(p, &heads, &kv_heads, error))
        return -1;
    for (int i = 0; i < 3; i++) {
        if (rank == 4)
            *tensors[i] = view(&p->inputs[i]);
        else if (packed)
            *tensors[i] = packed_view(&p->inputs[i]);
        else if (split_heads(&p->inputs[i], flags[i], i ? kv_heads : heads, tensors[i], error))
            return -1;
        if (rank == 4 && o->layout && strcmp(o->layout, "bhld") == 0)
            heads_third(tensors[i]);
    }
    p->batch = p->query.shape[0];
    p->query_length = p->query.shape[1];
    p->key_length = p->key.shape[1];
    p->heads = p->query.shape[2];
    p->kv_heads = p->key.shape[2];
    p->head_size = p->query.shape[3];
    p->value_head_size = p->value.shape[3];
    p->key_given = &p->key;
    p->value_given = &p->value;
    return agree("heads", o->heads, p->heads, error) ||
                   agree("kv-heads", o->kv_heads, p->kv_heads, error) ||
                   agree("head-size", o->head_size, p->head_size, error) ||
                   agree("value-head-size", o->value_head_size, p->value_head_size, error)
               ? -1
               : 0;
}

/* One input of the layer as (B, L, width). */
static int shape_input(struct array *array, const char *flag, int rank, int64_t width,
                       headway_tensor *tensor, char *error)
{
    if (array->rank != rank || rank < 2 || rank > 3) {
        snprintf(error, ERROR_SIZE, "--%s: rank %d given, %s expected", flag, array->rank,
                 array->rank != rank ? "the input's" : "3 (B, L, width) or 2 (L, width)");
        return -1;
    }
    if (array->shape[rank - 1] != width) {
        snprintf(error, ERROR_SIZE, "--%s: width %lld given, the layer's weights expect %lld", flag,
                 (long long)array->shape[rank - 1], (long long)width);
        return -1;
    }
    int64_t shape[3] = {rank == 2 ? 1 : array->shape[0], array->shape[rank - 2], width};
    *tensor = headway_tensor_dense(array->data, HEADWAY_F32, 3, shape);
    return 0;
}

static int shape_layer(struct problem *p, char *error)
{
    const struct layer *layer = &p->layer;
    const struct options *o = p->options;
    int rank = p->inputs[0].rank;
    const char *key_flag = o->key ? "key" : "input", *value_flag = o->value ? "value" : key_flag;
    struct array *key = o->key ? &p->inputs[1] : &p->inputs[0];
    struct array *value = o->value ? &p->inputs[2] : key;
    if (shape_input(&p->inputs[0], "input", rank, layer->query_width, &p->query, error) ||
        shape_input(key, key_flag, rank, layer->key_width, &p->key, error) ||
        shape_input(value, value_flag, rank, layer->value_width, &p->value, error))
        return -1;
    p->key_given = o->key ? &p->key : NULL;
    p->value_given = o->value ? &p->value : NULL;
    p->batch = p->query.shape[0];
    p->query_length = p->query.shape[1];
    p->key_length = p->key.shape[1];
    p->heads = layer->config.heads;
    p->kv_heads = layer->config.kv_heads ? layer->config.kv_heads : p->heads;
    p->head_size = layer->config.head_size;
    p->value_head_size = layer->config.value_head_size;
    p->appended = (layer->weights.bias_k != NULL) + layer->config.add_zero_attn;
    return 0;
}

static int load_layer(struct problem *p, char *error)
{
    const struct options *o = p->options;
    const struct layer_request request = {
        .path = o->weights,
        .layer = o->layer,
        .heads = o->heads,
        .kv_heads = o->kv_heads,
        .head_size = o->head_size,
        .value_head_size = o->value_head_size,
        .qkv_rows = o->qkv_rows,
        .has_scale = o->scale.given,
        .has_window = o->window != NULL,
        .has_softcap = o->softcap.given,
        .has_alibi = o->alibi != NULL,
        .has_sink = o->sink != NULL,
        .rope_style = o->rope_style,
        .rope_theta = o->rope.value,
        .rope_scale = o->rope_scale.value,
        .rope_size = o->rope_size,
        .rope_table = o->rope_table != NULL,
        .norm_eps = o->qk_norm_eps.value,
        .add_zero_attn = o->add_zero_attn,
    };
    if (layer_load(&request, &p->layer, error))
        return -1;
    if (p->layer.is_decoder && !o->causal)
        snprintf(p->note, ERROR_SIZE,
                 "note: %.200s is of a decoder; the run is not causal without --causal",
                 p->layer.name[0] ? p->layer.name : o->weights);
    return 0;
}

static int load_inputs(struct problem *p, char *error)
{
    const struct options *o = p->options;
    const char *paths[] = {p->is_layer ? o->input : o->query, o->key, o->value};
    const char *flags[] = {p->is_layer ? "input" : "query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        enum array_type type;
        if (!paths[i])
            continue;
        if (input_values(flags[i], paths[i], &p->inputs[i], &type, error))
            return -1;
        if (i == 0)
            p->type = type;
        if (type != p->type) {
            snprintf(error, ERROR_SIZE, "--%s: %.200s holds %s, the type of --%s, %s, expected",
                     flags[i], paths[i], array_type_name(type), flags[0], array_type_name(p->type));
            return -1;
        }
    }
    return p->is_layer ? shape_layer(p, error) : shape_core(p, error);
}

int problem_load(const struct options *options, struct problem *p, char *error)
{
    memset(p, 0, sizeof *p);
    p->options = options;
    p->is_layer = options_is_layer(options);
    return (p->is_layer && load_layer(p, error)) || load_inputs(p, error) ||
                   problem_set_params(p, error) || problem_results(p, error)
               ? -1
               : 0;
}

void problem_unload(struct problem *p)
{
    for (int i = 0; i < 3; i++)
        array_free(&p->inputs[i]);
    struct array *const arrays[] = {&p->mask_array, &p->interval_array, &p->positions_array,
                                    &p->tables[0],  &p->tables[1],      &p->result,
                                    &p->lse,        &p->probs,          &p->mean};
    void *const memory[] = {p->row_offsets, p->query_lengths, p->key_lengths, p->query_starts,
                            p->key_starts,  p->slopes,        p->sinks};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        array_free(arrays[i]);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    if (p->is_layer)
        layer_free(&p->layer);
}
