#define _POSIX_C_SOURCE 200809L

#include "cli/layer_parts.h"

#include "cli/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL with error when the tensor is missing, of another rank or of a type that can't be read. */
static const struct tensor_info *find_float(struct tensors *tensors, const struct module *module,
                                            const char *stem, const char *end, int rank,
                                            char *error)
{
    char name[TENSOR_NAME_SIZE];
    char shape[SHAPE_TEXT_SIZE];
    module_tensor(name, sizeof name, module, stem, end);
    const struct tensor_info *info = tensors_find(tensors, name, error);
    if (!info) {
        return NULL;
    }
    if (!info->is_float) {
        error_set(error, "%s is %s, expected F32, F16, BF16 or F64", name, info->type_name);
        return NULL;
    }
    if (info->rank != rank) {
        error_set(error, "%s has the shape %s, expected rank %d", name,
                  shape_text(shape, info->rank, info->shape), rank);
        return NULL;
    }
    return info;
}

static int has(const struct tensors *tensors, const struct module *module, const char *stem,
               const char *end)
{
    char name[TENSOR_NAME_SIZE];
    return tensors_has(tensors, module_tensor(name, sizeof name, module, stem, end));
}

static void orient(struct part *part, int transposed)
{
    part->transposed = transposed;
    part->rows = part->weight->shape[transposed ? 1 : 0];
    part->columns = part->weight->shape[transposed ? 0 : 1];
}

static int check_bias(const struct part *part, char *error)
{
    if (part->bias && part->bias->shape[0] != part->rows) {
        return error_set(error, "%s has %lld elements, expected %lld, the outputs of %s",
                         part->bias->name, (long long)part->bias->shape[0], (long long)part->rows,
                         part->weight->name);
    }
    if (part->rows < 1 || part->columns < 1) {
        return error_set(error, "%s is empty", part->weight->name);
    }
    return 0;
}

/* weight_end and bias_end follow the stem; the bias may be missing. Oriented as torch's Linear. */
static int find_part(struct tensors *tensors, const struct module *module, const char *stem,
                     const char *weight_end, const char *bias_end, struct part *part, char *error)
{
    part->weight = find_float(tensors, module, stem, weight_end, 2, error);
    if (!part->weight) {
        return -1;
    }
    if (bias_end && has(tensors, module, stem, bias_end)) {
        part->bias = find_float(tensors, module, stem, bias_end, 1, error);
        if (!part->bias) {
            return -1;
        }
    }
    orient(part, 0);
    return 0;
}

static int find_linear(struct tensors *tensors, const struct module *module, const char *stem,
                       struct part *part, char *error)
{
    return find_part(tensors, module, stem, ".weight", ".bias", part, error) ||
                   check_bias(part, error)
               ? -1
               : 0;
}

static int find_out(struct tensors *tensors, const struct module *module, struct layer_parts *parts,
                    char *error)
{
    const char *const *outs = module->family->outs;
    char name[TENSOR_NAME_SIZE];
    for (int i = 0; i < 4 && outs[i]; i++) {
        if (!has(tensors, module, outs[i], ".weight")) {
            continue;
        }
        if (parts->out_stem) {
            return error_set(error, "%s has both %s and %s, expected one output projection",
                             module->path, parts->out_stem, outs[i]);
        }
        parts->out_stem = outs[i];
    }
    if (!parts->out_stem) {
        return error_set(error, "the tensor %s is missing, the output projection%s",
                         module_tensor(name, sizeof name, module, outs[0], ".weight"),
                         outs[1] ? " (out_proj and dense are known too)" : "");
    }
    return find_linear(tensors, module, parts->out_stem, &parts->out, error);
}

static int find_torch(struct tensors *tensors, const struct module *module,
                      struct layer_parts *parts, char *error)
{
    const struct family *family = module->family;
    if (has(tensors, module, "in_proj_bias", "")) {
        parts->shared_bias = find_float(tensors, module, "in_proj_bias", "", 1, error);
        if (!parts->shared_bias) {
            return -1;
        }
    }
    if (family->form == FORM_TORCH_FUSED) {
        if (find_part(tensors, module, family->fused, "", NULL, &parts->fused, error)) {
            return -1;
        }
        parts->fused.bias = parts->shared_bias;
        return check_bias(&parts->fused, error);
    }
    if (find_part(tensors, module, family->query, "", NULL, &parts->query, error) ||
        find_part(tensors, module, family->key, "", NULL, &parts->key, error) ||
        find_part(tensors, module, family->value, "", NULL, &parts->value, error) ||
        check_bias(&parts->query, error) || check_bias(&parts->key, error) ||
        check_bias(&parts->value, error)) {
        return -1;
    }
    int64_t rows = parts->query.rows + parts->key.rows + parts->value.rows;
    if (parts->shared_bias && parts->shared_bias->shape[0] != rows) {
        return error_set(error, "%s has %lld elements, expected %lld", parts->shared_bias->name,
                         (long long)parts->shared_bias->shape[0], (long long)rows);
    }
    return 0;
}

/* GPT-2 stores (inputs, outputs); lecture code that took its names stores (outputs, inputs). The
 * bias tells, else the ratio of outputs to inputs. */
static int orient_conv1d(struct part *part, int64_t ratio, int *transposed, char *error)
{
    const int64_t *shape = part->weight->shape;
    char text[SHAPE_TEXT_SIZE];
    int stored = shape[1] / ratio == shape[0] && shape[1] % ratio == 0;
    int linear = shape[0] / ratio == shape[1] && shape[0] % ratio == 0;
    if (stored == linear) {
        return error_set(error, "%s has the shape %s, expected (n, %lldn) or (%lldn, n)",
                         part->weight->name, shape_text(text, 2, shape), (long long)ratio,
                         (long long)ratio);
    }
    *transposed = stored;
    orient(part, stored);
    return check_bias(part, error);
}

static int find_conv1d(struct tensors *tensors, const struct module *module,
                       struct layer_parts *parts, char *error)
{
    const struct family *family = module->family;
    int transposed = 1;
    int cross = has(tensors, module, family->query, ".weight");
    if (find_part(tensors, module, family->fused, ".weight", ".bias", &parts->fused, error) ||
        orient_conv1d(&parts->fused, cross ? 2 : 3, &transposed, error)) {
        return -1;
    }
    if (cross) {
        if (find_part(tensors, module, family->query, ".weight", ".bias", &parts->query, error)) {
            return -1;
        }
        orient(&parts->query, transposed);
        parts->key.rows = parts->fused.rows / 2;
        parts->value.rows = parts->fused.rows / 2;
        if (check_bias(&parts->query, error)) {
            return -1;
        }
    }
    if (find_part(tensors, module, family->outs[0], ".weight", ".bias", &parts->out, error)) {
        return -1;
    }
    parts->out_stem = family->outs[0];
    orient(&parts->out, transposed);
    return check_bias(&parts->out, error);
}

static int find_heads(struct tensors *tensors, const struct module *module,
                      struct layer_parts *parts, char *error)
{
    static const char *const kinds[] = {"query", "key", "value"};
    struct part *firsts[] = {&parts->query, &parts->key, &parts->value};
    char stem[64];
    for (int64_t head = 0;; head++) {
        snprintf(stem, sizeof stem, "heads.%lld.query", (long long)head);
        if (!has(tensors, module, stem, ".weight")) {
            parts->separate_heads = head;
            return 0;
        }
        for (int kind = 0; kind < 3; kind++) {
            struct part part = {0};
            snprintf(stem, sizeof stem, "heads.%lld.%s", (long long)head, kinds[kind]);
            if (find_linear(tensors, module, stem, &part, error)) {
                return -1;
            }
            if (head == 0) {
                *firsts[kind] = part;
            } else if (part.rows != firsts[kind]->rows || part.columns != firsts[kind]->columns ||
                       !part.bias != !firsts[kind]->bias) {
                return error_set(error, "%s differs in shape or bias from that of head 0",
                                 part.weight->name);
            }
        }
    }
}

int parts_find(struct tensors *tensors, const struct module *module, struct layer_parts *parts,
               char *error)
{
    const struct family *family = module->family;
    int result = 0;
    memset(parts, 0, sizeof *parts);
    switch (family->form) {
    case FORM_CONV1D:
        return find_conv1d(tensors, module, parts, error);
    case FORM_TORCH_FUSED:
    case FORM_TORCH_SEPARATE:
        result = find_torch(tensors, module, parts, error);
        break;
    case FORM_HEADS:
        result = find_heads(tensors, module, parts, error);
        break;
    case FORM_FUSED:
        result = find_linear(tensors, module, family->fused, &parts->fused, error);
        break;
    case FORM_SEPARATE:
        result = find_linear(tensors, module, family->query, &parts->query, error) ||
                         find_linear(tensors, module, family->key, &parts->key, error) ||
                         find_linear(tensors, module, family->value, &parts->value, error)
                     ? -1
                     : 0;
        break;
    }
    return result == 0 ? find_out(tensors, module, parts, error) : -1;
}

/* total = count * each, where one of them may be 0, not known yet. */
static int split(int64_t total, int64_t *count, int64_t *each, const char *what,
                 const char *count_flag, const char *each_flag, char *error)
{
    if (!*count && !*each) {
        return error_set(error, "nothing tells the number of heads: expected %s", count_flag);
    }
    int64_t known = *count ? *count : *each;
    if (total % known != 0 || (*count && *each && total / *count != *each)) {
        char size[48] = "";
        if (*count && *each) {
            snprintf(size, sizeof size, " of %lld (%s)", (long long)*each, each_flag);
        }
        return error_set(error, "%s has %lld channels, which are not %s%lld%s%s", what,
                         (long long)total, *count ? "" : "heads of ", (long long)known,
                         *count ? " heads" : "", size);
    }
    if (!*count) {
        *count = total / *each;
    }
    *each = total / *count;
    return 0;
}

static int split_fused(const struct layer_parts *parts, struct layer_sizes *s, char *error)
{
    int64_t rows = parts->fused.rows;
    const char *name = parts->fused.weight->name;
    int64_t value_size = s->value_head_size;
    if (parts->per_head) {
        int64_t head_rows = s->head_size * 3;
        if (split(rows, &s->heads, &head_rows, name, "--heads", "three times --head-size", error)) {
            return -1;
        }
        if (head_rows % 3 != 0) {
            return error_set(error,
                             "%s has %lld rows for each of %lld heads, expected a multiple of 3",
                             name, (long long)head_rows, (long long)s->heads);
        }
        s->head_size = head_rows / 3;
        s->kv_heads = s->kv_heads ? s->kv_heads : s->heads;
        s->value_head_size = value_size ? value_size : s->head_size;
        if (s->kv_heads != s->heads || s->value_head_size != s->head_size) {
            return error_set(error,
                             "%s has its rows per head, expected as many and as large key and "
                             "value heads as query heads",
                             name);
        }
        return 0;
    }
    if (!s->heads && !value_size) {
        value_size = s->head_size;
    }
    if (split(parts->out.columns, &s->heads, &value_size, parts->out.weight->name, "--heads",
              "--value-head-size", error)) {
        return -1;
    }
    s->value_head_size = value_size;
    s->head_size = s->head_size ? s->head_size : value_size;
    int64_t rest = rows - s->heads * s->head_size;
    int64_t both = s->head_size + s->value_head_size;
    if (s->head_size > rows || rest < both || rest % both != 0 ||
        (s->kv_heads && rest / both != s->kv_heads)) {
        return error_set(
            error,
            "%s has %lld rows, which are not %lld query heads of %lld and %s%lld key and "
            "value heads of %lld and %lld",
            name, (long long)rows, (long long)s->heads, (long long)s->head_size,
            s->kv_heads ? "" : "at least ", (long long)(s->kv_heads ? s->kv_heads : 1),
            (long long)s->head_size, (long long)s->value_head_size);
    }
    s->kv_heads = rest / both;
    return 0;
}

static int split_separate(const struct layer_parts *parts, struct layer_sizes *s, char *error)
{
    int64_t each = parts->separate_heads ? parts->separate_heads : 1;
    const char *key = parts->key.weight ? parts->key.weight->name : parts->fused.weight->name;
    const char *value = parts->value.weight ? parts->value.weight->name : parts->fused.weight->name;
    if (parts->separate_heads) {
        if (s->heads && s->heads != parts->separate_heads) {
            return error_set(error, "%lld heads were asked for, the file holds %lld",
                             (long long)s->heads, (long long)parts->separate_heads);
        }
        s->heads = parts->separate_heads;
    }
    if (split(parts->query.rows * each, &s->heads, &s->head_size, parts->query.weight->name,
              "--heads", "--head-size", error) ||
        split(parts->key.rows * each, &s->kv_heads, &s->head_size, key, "--kv-heads", "--head-size",
              error) ||
        split(parts->value.rows * each, &s->kv_heads, &s->value_head_size, value, "--kv-heads",
              "--value-head-size", error)) {
        return -1;
    }
    return 0;
}

int parts_sizes(const struct layer_parts *parts, struct layer_sizes *sizes,
                const struct module *module, char *error)
{
    int fused = parts->fused.weight && !parts->query.weight;
    int64_t columns = 0;
    const int64_t given[] = {sizes->heads, sizes->kv_heads, sizes->head_size,
                             sizes->value_head_size};
    for (int i = 0; i < 4; i++) {
        if (given[i] < 0 || given[i] > INT32_MAX) {
            return error_set(error,
                             "a count of heads or a head size is %lld, expected 1 to 2^31 - 1",
                             (long long)given[i]);
        }
    }
    if (fused ? split_fused(parts, sizes, error) : split_separate(parts, sizes, error)) {
        return -1;
    }
    if (sizes->heads % sizes->kv_heads != 0) {
        return error_set(error,
                         "%s: %lld query heads and %lld key and value heads, expected a multiple",
                         module->path, (long long)sizes->heads, (long long)sizes->kv_heads);
    }
    if (__builtin_mul_overflow(sizes->heads, sizes->value_head_size, &columns) ||
        columns != parts->out.columns) {
        return error_set(error, "%s has %lld inputs, expected %lld heads of %lld",
                         parts->out.weight->name, (long long)parts->out.columns,
                         (long long)sizes->heads, (long long)sizes->value_head_size);
    }
    return 0;
}
