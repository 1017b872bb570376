#define _POSIX_C_SOURCE 200809L

#include "cli/file.h"
#include "cli/layer_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENSORS 20

struct layer_memory {
    headway_tensor tensors[MAX_TENSORS];
    void *buffers[MAX_TENSORS];
    int tensor_count, buffer_count;
};

struct views {
    struct tensors *tensors;
    const struct module *module;
    const struct layer_parts *parts;
    const struct layer_sizes *sizes;
    struct layer_memory *memory;
    char *error;
};

/* All elements of a tensor as f32, owned by the layer. */
static float *read_tensor(struct views *v, const struct tensor_info *info)
{
    float *data = tensors_read(v->tensors, info, v->error);
    if (data) {
        v->memory->buffers[v->memory->buffer_count++] = data;
    }
    return data;
}

static const headway_tensor *add(struct views *v, float *data, int rank, const int64_t *shape,
                                 const int64_t *stride)
{
    headway_tensor *tensor = &v->memory->tensors[v->memory->tensor_count++];
    tensor->data = data;
    tensor->dtype = HEADWAY_F32;
    tensor->rank = rank;
    for (int axis = 0; axis < rank; axis++) {
        tensor->shape[axis] = shape[axis];
        tensor->stride[axis] = stride[axis];
    }
    return tensor;
}

/* rows of a linear map's weight from `first` on, as (rows, columns). */
static const headway_tensor *add_rows(struct views *v, const struct part *part, float *data,
                                      int64_t first, int64_t rows)
{
    int64_t shape[] = {rows, part->columns};
    int64_t row = part->transposed ? 1 : part->columns;
    int64_t stride[] = {row, part->transposed ? part->rows : 1};
    return add(v, data + first * row, 2, shape, stride);
}

static const headway_tensor *add_elements(struct views *v, float *data, int64_t first,
                                          int64_t count)
{
    int64_t one = 1;
    return add(v, data + first, 1, &count, &one);
}

/* A whole linear map. */
static int view_part(struct views *v, const struct part *part, const headway_tensor **weight,
                     const headway_tensor **bias)
{
    float *data = read_tensor(v, part->weight);
    if (!data) {
        return -1;
    }
    *weight = add_rows(v, part, data, 0, part->rows);
    if (part->bias) {
        float *elements = read_tensor(v, part->bias);
        if (!elements) {
            return -1;
        }
        *bias = add_elements(v, elements, 0, part->rows);
    }
    return 0;
}

/* Each head's rows are query, key, value: three views that skip the others' rows. */
static int view_per_head(struct views *v, headway_mha_weights *w)
{
    const struct part *fused = &v->parts->fused;
    int64_t size = v->sizes->head_size;
    int64_t columns = fused->columns;
    int64_t shape[] = {v->sizes->heads, size, columns};
    int64_t stride[] = {3 * size * columns, columns, 1};
    const headway_tensor **weights[] = {&w->query, &w->key, &w->value};
    const headway_tensor **biases[] = {&w->query_bias, &w->key_bias, &w->value_bias};
    float *data = read_tensor(v, fused->weight);
    if (!data) {
        return -1;
    }
    for (int kind = 0; kind < 3; kind++) {
        *weights[kind] = add(v, data + kind * size * columns, 3, shape, stride);
    }
    if (fused->bias) {
        int64_t bias_stride[] = {3 * size, 1};
        data = read_tensor(v, fused->bias);
        for (int kind = 0; data && kind < 3; kind++) {
            *biases[kind] = add(v, data + kind * size, 2, shape, bias_stride);
        }
    }
    return data ? 0 : -1;
}

/* Query by itself, key and value fused: GPT-2's cross-attention. */
static int view_key_value(struct views *v, headway_mha_weights *w)
{
    const struct part *fused = &v->parts->fused;
    int64_t rows = v->parts->key.rows;
    if (view_part(v, &v->parts->query, &w->query, &w->query_bias)) {
        return -1;
    }
    float *data = read_tensor(v, fused->weight);
    if (!data) {
        return -1;
    }
    w->key = add_rows(v, fused, data, 0, rows);
    w->value = add_rows(v, fused, data, rows, rows);
    if (fused->bias) {
        data = read_tensor(v, fused->bias);
        if (!data) {
            return -1;
        }
        w->key_bias = add_elements(v, data, 0, rows);
        w->value_bias = add_elements(v, data, rows, rows);
    }
    return 0;
}

/* One kind's tensor of every head, one after the other. */
static float *join_heads(struct views *v, const char *kind, const char *end, int64_t each)
{
    char stem[64];
    char name[TENSOR_NAME_SIZE];
    int64_t heads = v->parts->separate_heads;
    struct array all;
    int64_t shape[] = {heads, each};
    if (array_make(&all, ARRAY_F32, 2, shape, v->error)) {
        return NULL;
    }
    float *joined = all.data;
    v->memory->buffers[v->memory->buffer_count++] = joined;
    for (int64_t head = 0; head < heads; head++) {
        snprintf(stem, sizeof stem, "heads.%lld.%s", (long long)head, kind);
        module_tensor(name, sizeof name, v->module, stem, end);
        const struct tensor_info *info = tensors_find(v->tensors, name, v->error);
        float *data = info ? tensors_read(v->tensors, info, v->error) : NULL;
        if (!data) {
            return NULL;
        }
        memcpy(joined + head * each, data, (size_t)each * sizeof *data);
        free(data);
    }
    return joined;
}

static int view_heads(struct views *v, const struct part *first, const char *kind,
                      const headway_tensor **weight, const headway_tensor **bias)
{
    int64_t rows = first->rows * v->parts->separate_heads;
    float *data = join_heads(v, kind, ".weight", first->rows * first->columns);
    if (!data) {
        return -1;
    }
    *weight = add_rows(v, first, data, 0, rows);
    if (first->bias) {
        data = join_heads(v, kind, ".bias", first->rows);
        if (!data) {
            return -1;
        }
        *bias = add_elements(v, data, 0, rows);
    }
    return 0;
}

static int view_separate(struct views *v, headway_mha_weights *w)
{
    const struct layer_parts *parts = v->parts;
    if (parts->separate_heads) {
        return view_heads(v, &parts->query, "query", &w->query, &w->query_bias) ||
                       view_heads(v, &parts->key, "key", &w->key, &w->key_bias) ||
                       view_heads(v, &parts->value, "value", &w->value, &w->value_bias)
                   ? -1
                   : 0;
    }
    if (view_part(v, &parts->query, &w->query, &w->query_bias) ||
        view_part(v, &parts->key, &w->key, &w->key_bias) ||
        view_part(v, &parts->value, &w->value, &w->value_bias)) {
        return -1;
    }
    if (parts->shared_bias) {
        float *data = read_tensor(v, parts->shared_bias);
        if (!data) {
            return -1;
        }
        int64_t query = parts->query.rows;
        int64_t key = parts->key.rows;
        w->query_bias = add_elements(v, data, 0, query);
        w->key_bias = add_elements(v, data, query, key);
        w->value_bias = add_elements(v, data, query + key, parts->value.rows);
    }
    return 0;
}

static struct layer_memory *memory_of(struct layer *layer, char *error)
{
    if (!layer->memory) {
        layer->memory = calloc(1, sizeof *layer->memory);
        if (!layer->memory) {
            error_set(error, "out of memory");
        }
    }
    return layer->memory;
}

static void *keep(struct layer *layer, int64_t count, size_t size, char *error)
{
    struct layer_memory *memory = memory_of(layer, error);
    void *data = memory ? calloc(count > 0 ? (size_t)count : 1, size) : NULL;
    if (data) {
        memory->buffers[memory->buffer_count++] = data;
    } else {
        error_set(error, "out of memory for %lld numbers", (long long)count);
    }
    return data;
}

float *layer_floats(struct layer *layer, int64_t count, char *error)
{
    return keep(layer, count, sizeof(float), error);
}

const double *layer_doubles(struct layer *layer, const double *values, int64_t count, char *error)
{
    double *copy = keep(layer, count, sizeof *copy, error);
    if (copy) {
        memcpy(copy, values, (size_t)count * sizeof *copy);
    }
    return copy;
}

int parts_views(struct tensors *tensors, const struct module *module,
                const struct layer_parts *parts, const struct layer_sizes *sizes,
                struct layer *layer, char *error)
{
    const struct part *query = parts->query.weight ? &parts->query : &parts->fused;
    const struct part *key = parts->key.weight ? &parts->key : &parts->fused;
    const struct part *value = parts->value.weight ? &parts->value : &parts->fused;
    if (!memory_of(layer, error)) {
        return -1;
    }
    struct views v = {tensors, module, parts, sizes, layer->memory, error};
    headway_mha_weights *w = &layer->weights;
    layer->query_width = query->columns;
    layer->key_width = key->columns;
    layer->value_width = value->columns;
    layer->out_width = parts->out.rows;
    layer->stored = query->weight->type;
    int result = 0;
    if (!parts->fused.weight) {
        result = view_separate(&v, w);
    } else if (parts->query.weight) {
        result = view_key_value(&v, w);
    } else if (parts->per_head) {
        result = view_per_head(&v, w);
    } else {
        result = view_part(&v, &parts->fused, &w->fused, &w->fused_bias);
    }
    return result == 0 ? view_part(&v, &parts->out, &w->out, &w->out_bias) : -1;
}

/* A norm's weights, a key or a value for every head: (rows, columns), or (columns). */
static int view_extra(struct views *v, const struct tensor_info *info, int64_t rows,
                      int64_t columns, float added, const headway_tensor **to)
{
    const int64_t shape[] = {rows ? rows : columns, columns};
    const int64_t stride[] = {rows ? columns : 1, 1};
    if (!info) {
        return 0;
    }
    float *data = read_tensor(v, info);
    for (int64_t i = 0; data && added != 0 && i < columns; i++) {
        data[i] += added;
    }
    *to = data ? add(v, data, rows ? 2 : 1, shape, stride) : NULL;
    return data ? 0 : -1;
}

int parts_view_extras(struct tensors *tensors, const struct layer_parts *parts,
                      const struct layer_sizes *sizes, int plus_one, struct layer *layer,
                      char *error)
{
    struct views v = {tensors, NULL, parts, sizes, layer->memory, error};
    headway_mha_weights *w = &layer->weights;
    const float added = plus_one ? 1.0f : 0.0f;
    if (parts->sinks) {
        layer->sinks = read_tensor(&v, parts->sinks);
        if (!layer->sinks) {
            return -1;
        }
    }
    return view_extra(&v, parts->query_norm, 0, sizes->head_size, added, &w->query_norm) ||
                   view_extra(&v, parts->key_norm, 0, sizes->head_size, added, &w->key_norm) ||
                   view_extra(&v, parts->bias_k, sizes->kv_heads, sizes->head_size, 0,
                              &w->bias_k) ||
                   view_extra(&v, parts->bias_v, sizes->kv_heads, sizes->value_head_size, 0,
                              &w->bias_v)
               ? -1
               : 0;
}

void layer_free(struct layer *layer)
{
    if (layer->memory) {
        for (int i = 0; i < layer->memory->buffer_count; i++) {
            free(layer->memory->buffers[i]);
        }
        free(layer->memory);
    }
    memset(layer, 0, sizeof *layer);
}
