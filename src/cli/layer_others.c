#define _POSIX_C_SOURCE 200809L

#include "cli/file.h"
#include "cli/layer_parts.h"

#include <stdio.h>
#include <string.h>

/* Parts of names that stand for something attention does. */
static const char *const telling[] = {
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "query_norm",
    "key_norm",
    "q_ln",
    "k_ln",
    "sink",
    "relative",
    "rel_pos",
    "distance",
    "bias_k",
    "bias_v",
    "q_bias",
    "v_bias",
    "k_bias",
    "pos_bias",
    "rotary",
    "inv_freq",
    "lora_",
    "alibi",
    "slopes",
    "lambda",
    "logit_scale",
    "qk_norm",
    "temperature",
    "layernorm_qk",
    "query_layernorm",
    "key_layernorm",
    "query_global",
    "key_global",
    "value_global",
};

static int is_telling(const char *name)
{
    for (size_t i = 0; i < sizeof telling / sizeof telling[0]; i++) {
        if (strstr(name, telling[i])) {
            return 1;
        }
    }
    return 0;
}

static int is_attention_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    const char *last = dot ? dot + 1 : path;
    return strstr(last, "attn") || strstr(last, "ttention");
}

static int is_part(const struct part *part, const char *name)
{
    return (part->weight && strcmp(part->weight->name, name) == 0) ||
           (part->bias && strcmp(part->bias->name, name) == 0);
}

static int is_used(const struct layer_parts *parts, const char *name, const char *relative)
{
    if (is_part(&parts->fused, name) || is_part(&parts->query, name) ||
        is_part(&parts->key, name) || is_part(&parts->value, name) || is_part(&parts->out, name) ||
        (parts->shared_bias && strcmp(parts->shared_bias->name, name) == 0)) {
        return 1;
    }
    const struct tensor_info *const extras[] = {parts->query_norm, parts->key_norm, parts->sinks,
                                                parts->bias_k, parts->bias_v};
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        if (extras[i] && strcmp(extras[i]->name, name) == 0) {
            return 1;
        }
    }
    long long head = 0;
    int used = 0;
    if (!parts->separate_heads || sscanf(relative, "heads.%8lld.%n", &head, &used) != 1 ||
        used == 0 || head >= parts->separate_heads) {
        return 0;
    }
    const char *rest = relative + used;
    return strcmp(rest, "query.weight") == 0 || strcmp(rest, "query.bias") == 0 ||
           strcmp(rest, "key.weight") == 0 || strcmp(rest, "key.bias") == 0 ||
           strcmp(rest, "value.weight") == 0 || strcmp(rest, "value.bias") == 0;
}

/* Layer norms of the block, and the causal masks that older checkpoints keep as buffers. */
static int is_harmless(const struct module *module, const struct tensor_info *info,
                       const char *relative)
{
    static const char *const masks[] = {"bias", "masked_bias",    "tril",
                                        "mask", "attention.bias", "attention.masked_bias"};
    /* Of BERT's kin ESM has its norm before attention, outside of `self`. */
    if (strncmp(relative, "output.LayerNorm.", 17) == 0 ||
        (strcmp(module->family->name, "BERT") == 0 && strncmp(relative, "LayerNorm.", 10) == 0)) {
        return 1;
    }
    const char *dot = strrchr(relative, '.');
    const char *last = dot ? dot + 1 : relative;
    if (strcmp(last, "tril") == 0 && info->rank >= 2) {
        return 1;
    }
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        if (strcmp(relative, masks[i]) == 0 && info->rank != 1) {
            return 1;
        }
    }
    return 0;
}

static int is_below(const char *path, const char *name)
{
    size_t length = strlen(path);
    return length == 0 || (strncmp(path, name, length) == 0 && name[length] == '.');
}

/* A module inside ours has its tensors for itself. */
static int is_anothers(const struct modules *modules, const struct module *module, const char *name)
{
    for (int i = 0; i < modules->count; i++) {
        const char *other = modules->items[i].path;
        if (strlen(other) > strlen(module->path) && is_below(module->path, other) &&
            is_below(other, name)) {
            return 1;
        }
    }
    return 0;
}

static int is_frequencies(const char *name)
{
    return strstr(name, "rotary") || strstr(name, "inv_freq");
}

static int refuse(const struct module *module, const char *name, char *error)
{
    int rope = is_frequencies(name);
    int position = strstr(name, "relative") || strstr(name, "rel_pos") || strstr(name, "distance");
    return error_set(error, "the layer %s has the tensor %s%s: not in this version",
                     module->path[0] ? module->path : "(the root)", name,
                     rope       ? " (RoPE, and nothing else says so)"
                     : position ? " (relative position bias)"
                                : ", which changes what attention computes");
}

/* Where a table of relative positions serves: below the name in front of it, and in T5, where the
 * first block's serves all, in the whole stack. Cross-attention of that kind has none. */
static int shared_table_serves(const char *name, const struct module *module)
{
    static const char *const tables[] = {"relative_attention_bias", "relative_position_bias"};
    char stack[TENSOR_NAME_SIZE];
    if (module_is_cross(module->path)) {
        return 0;
    }
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const char *at = strstr(name, tables[i]);
        size_t length = at ? (size_t)(at - name) : sizeof stack;
        if (length >= sizeof stack) {
            continue;
        }
        memcpy(stack, name, length);
        stack[length > 0 ? length - 1 : 0] = 0;
        if (is_below(stack, module->path) || strcmp(stack, module->path) == 0) {
            return 1;
        }
        char *block = strstr(stack, "block.");
        if (block && module->family->unscaled) {
            block[strlen("block")] = 0;
            return is_below(stack, module->path);
        }
    }
    return 0;
}

int parts_refuse_others(struct tensors *tensors, const struct modules *modules,
                        const struct module *module, const struct layer_parts *parts, int rotates,
                        char *error)
{
    size_t prefix = module->path[0] ? strlen(module->path) + 1 : 0;
    for (int64_t i = 0; i < tensors_count(tensors); i++) {
        const char *name = tensors_name(tensors, i);
        if (shared_table_serves(name, module)) {
            return refuse(module, name, error);
        }
        if (!is_below(module->path, name) || is_used(parts, name, name + prefix) ||
            is_anothers(modules, module, name)) {
            continue;
        }
        /* Around a module that is not called attention lie a block's other layers. */
        if (!is_attention_name(module->path) && !is_telling(name + prefix)) {
            continue;
        }
        if (rotates && is_frequencies(name + prefix)) {
            continue;
        }
        const struct tensor_info *info = tensors_find(tensors, name, error);
        if (!info) {
            return -1;
        }
        int counts = !info->is_float && strncmp(info->type_name, "F", 1) != 0;
        if (!counts && !is_harmless(module, info, name + prefix)) {
            return refuse(module, name, error);
        }
    }
    return 0;
}
