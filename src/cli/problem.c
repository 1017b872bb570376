#include "cli/problem.h"

#include "cli/inputs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static headway_tensor view(const struct array *array)
{
    return headway_tensor_dense(array->data, HEADWAY_F32, array->rank, array->shape);
}

static void batch_major(headway_tensor *tensor)
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
    int rank = p->inputs[0].rank;
    for (int i = 0; i < 3; i++)
        if (p->inputs[i].rank != rank || rank < 2 || rank > 4) {
            snprintf(error, ERROR_SIZE, "--%s: rank %d given, %s expected", flags[i],
                     p->inputs[i].rank, i && rank >= 2 && rank <= 4 ? "the query's" : "2, 3 or 4");
            return -1;
        }
    if (rank < 4 && count_heads(p, &heads, &kv_heads, error))
        return -1;
    for (int i = 0; i < 3; i++) {
        if (rank == 4)
            *tensors[i] = view(&p->inputs[i]);
        else if (split_heads(&p->inputs[i], flags[i], i ? kv_heads : heads, tensors[i], error))
            return -1;
        if (rank == 4 && o->layout && strcmp(o->layout, "bhld") == 0)
            batch_major(tensors[i]);
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
        .has_scale = o->has_scale,
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

static int load_params(struct problem *p, char *error)
{
    const struct options *o = p->options;
    p->params = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
    if (o->has_scale || (p->is_layer && p->layer.has_scale)) {
        p->scale = o->has_scale ? o->scale : p->layer.scale;
        p->params.scale = &p->scale;
    }
    if (o->causal &&
        input_causal(o->causal, p->batch, &p->params.causal, &p->row_offsets, error))
        return -1;
    if (o->query_lengths &&
        input_integers("query-lengths", o->query_lengths, p->batch, &p->query_lengths, error))
        return -1;
    if (o->key_lengths &&
        input_integers("key-lengths", o->key_lengths, p->batch, &p->key_lengths, error))
        return -1;
    p->params.row_offsets = p->row_offsets;
    p->params.query_lengths = p->query_lengths;
    p->params.key_lengths = p->key_lengths;
    if (o->mask) {
        if (input_mask(o->mask, &p->mask_array, &p->mask, p->warning, error))
            return -1;
        p->params.mask = &p->mask;
    }
    return 0;
}

static int make_results(struct problem *p, char *error)
{
    struct array *result = &p->result;
    const struct array *query = &p->inputs[0];
    int64_t shape[ARRAY_MAX_RANK];
    memcpy(shape, query->shape, sizeof shape);
    int64_t width = p->is_layer ? p->layer.out_width : p->value_head_size;
    shape[query->rank - 1] = p->is_layer || query->rank == 4 ? width : p->heads * width;
    if (array_make(result, ARRAY_F32, query->rank, shape, error))
        return -1;
    p->out = problem_out(p, result->data);
    if (p->options->lse) {
        int64_t lse_shape[3] = {p->batch, p->heads, p->query_length};
        if (array_make(&p->lse, ARRAY_F32, 3, lse_shape, error))
            return -1;
        p->lse_tensor = view(&p->lse);
        p->params.lse = &p->lse_tensor;
    }
    problem_clear(p);
    return 0;
}

/* The same file, also by another name of its folder. */
static int same_file(const char *a, const char *b)
{
    char folder[2][4096];
    const char *paths[2] = {a, b}, *names[2];
    struct stat status[2];
    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(paths[i], '/');
        names[i] = slash ? slash + 1 : paths[i];
        snprintf(folder[i], sizeof folder[i], "%.*s.", slash ? (int)(slash + 1 - paths[i]) : 0,
                 paths[i]);
        if (stat(folder[i], &status[i]))
            return strcmp(a, b) == 0;
    }
    return strcmp(names[0], names[1]) == 0 && status[0].st_dev == status[1].st_dev &&
           status[0].st_ino == status[1].st_ino;
}

int problem_load(const struct options *options, struct problem *p, char *error)
{
    memset(p, 0, sizeof *p);
    p->options = options;
    p->is_layer = options_is_layer(options);
    if (options->output && options->lse && same_file(options->output, options->lse)) {
        snprintf(error, ERROR_SIZE, "--lse: %.200s given, the path of --output; another expected",
                 options->lse);
        return -1;
    }
    return (p->is_layer && load_layer(p, error)) || load_inputs(p, error) ||
                   load_params(p, error) || make_results(p, error)
               ? -1
               : 0;
}

void problem_free(struct problem *p)
{
    for (int i = 0; i < 3; i++)
        array_free(&p->inputs[i]);
    array_free(&p->mask_array);
    array_free(&p->result);
    array_free(&p->lse);
    free(p->row_offsets);
    free(p->query_lengths);
    free(p->key_lengths);
    if (p->is_layer)
        layer_free(&p->layer);
}

headway_tensor problem_out(const struct problem *p, void *data)
{
    int64_t layer[3] = {p->batch, p->query_length, p->layer.out_width};
    int64_t core[4] = {p->batch, p->query_length, p->heads, p->value_head_size};
    int bhld = !p->is_layer && p->inputs[0].rank == 4 && p->options->layout &&
               strcmp(p->options->layout, "bhld") == 0;
    if (p->is_layer)
        return headway_tensor_dense(data, HEADWAY_F32, 3, layer);
    if (bhld) {
        core[1] = p->heads;
        core[2] = p->query_length;
    }
    headway_tensor out = headway_tensor_dense(data, HEADWAY_F32, 4, core);
    if (bhld)
        batch_major(&out);
    return out;
}

void problem_clear(struct problem *p)
{
    memset(p->result.data, 0, (size_t)array_count(&p->result) * sizeof(float));
    if (p->lse.data)
        for (int64_t i = 0, n = array_count(&p->lse); i < n; i++)
            ((float *)p->lse.data)[i] = -INFINITY;
}

/* Keys that row i of batch b may see but for the mask: 0 .. end - 1. */
static int64_t visible_end(const struct problem *p, int64_t b, int64_t i)
{
    const headway_attention_params *params = &p->params;
    int64_t queries = params->query_lengths ? params->query_lengths[b] : p->query_length;
    int64_t keys = params->key_lengths ? params->key_lengths[b] : p->key_length;
    int64_t end = keys;
    if (i >= queries)
        return 0;
    if (params->causal == HEADWAY_CAUSAL_TOP_LEFT)
        end = i + 1;
    else if (params->causal == HEADWAY_CAUSAL_BOTTOM_RIGHT)
        end = i + 1 + keys - queries;
    else if (params->causal == HEADWAY_CAUSAL_OFFSETS) {
        int64_t offset = params->row_offsets[b];
        end = offset >= keys ? keys : offset < -i ? 0 : i + 1 + offset;
    }
    return end < 0 ? 0 : end < keys ? end : keys;
}

static int64_t unmasked(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t end)
{
    const headway_tensor *mask = p->params.mask;
    const int64_t index[4] = {b, h, i, 0};
    int64_t at = 0, count = 0;
    int shift = 4 - mask->rank;
    for (int axis = 0; axis < mask->rank - 1; axis++)
        at += mask->shape[axis] == 1 ? 0 : index[axis + shift] * mask->stride[axis];
    int64_t step = mask->shape[mask->rank - 1] == 1 ? 0 : mask->stride[mask->rank - 1];
    for (int64_t j = 0; j < end; j++, at += step)
        count += mask->dtype == HEADWAY_BOOL ? ((const uint8_t *)mask->data)[at] != 0
                                             : ((const float *)mask->data)[at] != -INFINITY;
    return count;
}

static double rows_of(const struct problem *p, const int64_t *lengths, int64_t length)
{
    double rows = 0;
    for (int64_t b = 0; b < p->batch; b++)
        rows += (double)(lengths ? lengths[b] : length);
    return rows;
}

double problem_flops(const struct problem *p)
{
    double pairs = 0, projections = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->query_length; i++) {
            int64_t end = visible_end(p, b, i);
            if (!p->params.mask)
                pairs += (double)(end * p->heads);
            else
                for (int64_t h = 0; h < p->heads; h++)
                    pairs += (double)unmasked(p, b, h, i, end);
        }
    if (p->is_layer) {
        const struct layer *layer = &p->layer;
        double queries = rows_of(p, p->query_lengths, p->query_length);
        double keys = rows_of(p, p->key_lengths, p->key_length);
        double q = (double)(p->heads * p->head_size), k = (double)(p->kv_heads * p->head_size);
        double v = (double)(p->kv_heads * p->value_head_size);
        double o = (double)(p->heads * p->value_head_size);
        projections = queries * (q * (double)layer->query_width + o * (double)layer->out_width) +
                      keys * (k * (double)layer->key_width + v * (double)layer->value_width);
    }
    return 2.0 * projections + 2.0 * pairs * (double)(p->head_size + p->value_head_size);
}

int problem_write(const struct problem *p, char *error)
{
    struct npy_output outputs[2];
    struct array converted;
    int count = 0, failed;
    if (array_convert(&converted, &p->result, p->type, error))
        return -1;
    if (p->options->output)
        outputs[count++] = (struct npy_output){p->options->output, &converted};
    if (p->options->lse)
        outputs[count++] = (struct npy_output){p->options->lse, &p->lse};
    failed = count ? npy_write_all(outputs, count, error) : 0;
    array_free(&converted);
    return failed;
}
