/* What a layer has beside its projections: norms, sinks, an added key and value, rotary embedding. */
#define _POSIX_C_SOURCE 200809L

#include "cli/file.h"
#include "cli/layer_parts.h"

#include <stdio.h>
#include <string.h>

/* The tensor of that name, NULL when there is none; -1 with error when it can't be read. */
static int find(struct tensors *tensors, const struct module *module, const char *name,
                const struct tensor_info **info, char *error)
{
    char text[TENSOR_NAME_SIZE];
    if (!tensors_has(tensors, module_tensor(text, sizeof text, module, name, ""))) {
        return 0;
    }
    *info = tensors_find(tensors, text, error);
    if (*info && !(*info)->is_float) {
        return error_set(error, "%s is %s, expected F32, F16, BF16 or F64", text,
                         (*info)->type_name);
    }
    return *info ? 0 : -1;
}

int parts_find_extras(struct tensors *tensors, const struct module *module,
                      struct layer_parts *parts, char *error)
{
    if (find(tensors, module, "q_norm.weight", &parts->query_norm, error) ||
        find(tensors, module, "k_norm.weight", &parts->key_norm, error) ||
        find(tensors, module, "sinks", &parts->sinks, error) ||
        find(tensors, module, "bias_k", &parts->bias_k, error) ||
        find(tensors, module, "bias_v", &parts->bias_v, error)) {
        return -1;
    }
    if (!parts->bias_k != !parts->bias_v) {
        return error_set(error, "%s is there and %s is not, expected both or none",
                         parts->bias_k ? parts->bias_k->name : parts->bias_v->name,
                         parts->bias_k ? "bias_v" : "bias_k");
    }
    return 0;
}

static int64_t count_of(const struct tensor_info *info)
{
    int64_t count = 1;
    for (int axis = 0; axis < info->rank; axis++) {
        count *= info->shape[axis];
    }
    return count;
}

int parts_check_extras(const struct layer_parts *parts, const struct layer_sizes *s, char *error)
{
    const struct {
        const struct tensor_info *info;
        int64_t count;
        int rank; /* 0: any */
    } extras[] = {
        {parts->query_norm, s->head_size, 1},
        {parts->key_norm, s->head_size, 1},
        {parts->sinks, s->heads, 1},
        {parts->bias_k, s->kv_heads * s->head_size, 0},
        {parts->bias_v, s->kv_heads * s->value_head_size, 0},
    };
    char shape[SHAPE_TEXT_SIZE];
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        const struct tensor_info *info = extras[i].info;
        if (info && (count_of(info) != extras[i].count ||
                     (extras[i].rank && info->rank != extras[i].rank))) {
            return error_set(error,
                             "%s has the shape %s, expected %lld elements: another meaning of it "
                             "is not in this version",
                             info->name, shape_text(shape, info->rank, info->shape),
                             (long long)extras[i].count);
        }
    }
    return 0;
}

static int rope_size(const struct layer_request *request, const struct rope_facts *facts,
                     int64_t head_size, int64_t *size, char *error)
{
    *size = head_size;
    if (request->rope_size) {
        *size = request->rope_size;
    } else if (facts->used) {
        *size = facts->size ? facts->size : (int64_t)((double)head_size * facts->fraction);
    }
    if (*size < 2 || *size % 2 || *size > head_size) {
        return error_set(error,
                         "--rope-size: %lld %s, an even number up to the head size %lld "
                         "expected",
                         (long long)*size, request->rope_size ? "given" : "is the model's",
                         (long long)head_size);
    }
    return 0;
}

/* config.json's scaling, with factors that last. */
static int copy_scaling(const struct rope_facts *facts, struct layer *layer, int64_t size,
                        char *error)
{
    headway_rope_config *rope = &layer->rope;
    *rope = facts->config;
    if (rope->scaling != HEADWAY_ROPE_LONGROPE) {
        return 0;
    }
    if (facts->short_count != size / 2 || facts->long_count != size / 2) {
        return error_set(error,
                         "config.json's short_factor and long_factor have %lld and %lld numbers, "
                         "expected %lld, half the rotated channels",
                         (long long)facts->short_count, (long long)facts->long_count,
                         (long long)size / 2);
    }
    rope->short_factors = layer_doubles(layer, facts->short_factors, size / 2, error);
    rope->long_factors = layer_doubles(layer, facts->long_factors, size / 2, error);
    return rope->short_factors && rope->long_factors ? 0 : -1;
}

int parts_rope(const struct layer_request *request, const struct model_facts *facts,
               struct layer *layer, char *error)
{
    const struct rope_facts *model = &facts->rope;
    headway_rope_config *rope = &layer->rope;
    int64_t size;
    *rope = (headway_rope_config)HEADWAY_ROPE_CONFIG_INIT;
    if (!model->used && request->rope_theta == 0 && !request->rope_table) {
        const char *flag = request->rope_style       ? "rope-style"
                           : request->rope_size      ? "rope-size"
                           : request->rope_scale > 0 ? "rope-scale"
                                                     : NULL;
        return flag ? error_set(error,
                                "--%s: given for a layer without rotary embedding, expected with "
                                "--rope or --rope-table",
                                flag)
                    : 0;
    }
    if (rope_size(request, model, layer->config.head_size, &size, error)) {
        return -1;
    }
    int plain = request->rope_table || request->rope_scale > 0;
    if (model->used && !plain && copy_scaling(model, layer, size, error)) {
        return -1;
    }
    rope->style = model->config.style ? model->config.style : HEADWAY_ROPE_HALF;
    if (request->rope_style) {
        rope->style = strcmp(request->rope_style, "interleaved") == 0 ? HEADWAY_ROPE_INTERLEAVED
                                                                      : HEADWAY_ROPE_HALF;
    }
    rope->rotary_size = size;
    if (!request->rope_table) {
        rope->theta = request->rope_theta > 0 ? request->rope_theta : model->config.theta;
    }
    if (request->rope_scale > 0) {
        rope->scaling = HEADWAY_ROPE_LINEAR;
        rope->factor = request->rope_scale;
    }
    layer->config.rope = rope;
    return 0;
}
