#define _POSIX_C_SOURCE 200809L

#include "cli/families.h"

#include "cli/file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct family families[] = {
    {.name = "torch.nn.MultiheadAttention",
     .form = FORM_TORCH_FUSED,
     .fused = "in_proj_weight",
     .outs = {"out_proj"}},
    {.name = "torch.nn.MultiheadAttention",
     .form = FORM_TORCH_SEPARATE,
     .query = "q_proj_weight",
     .key = "k_proj_weight",
     .value = "v_proj_weight",
     .outs = {"out_proj"}},
    {.name = "BERT",
     .form = FORM_SEPARATE,
     .query = "self.query",
     .key = "self.key",
     .value = "self.value",
     .outs = {"output.dense"}},
    {.name = "ViT",
     .form = FORM_SEPARATE,
     .query = "attention.query",
     .key = "attention.key",
     .value = "attention.value",
     .outs = {"output.dense"}},
    {.name = "Llama",
     .form = FORM_SEPARATE,
     .query = "q_proj",
     .key = "k_proj",
     .value = "v_proj",
     .outs = {"o_proj", "out_proj", "dense"}},
    {.name = "qkv_proj", .form = FORM_FUSED, .fused = "qkv_proj", .outs = {"o_proj"}},
    {.name = "GPT-2",
     .form = FORM_CONV1D,
     .query = "q_attn",
     .fused = "c_attn",
     .outs = {"c_proj"}},
    {.name = "T5",
     .form = FORM_SEPARATE,
     .parent = "SelfAttention",
     .query = "q",
     .key = "k",
     .value = "v",
     .outs = {"o"},
     .unscaled = 1},
    {.name = "T5 cross-attention",
     .form = FORM_SEPARATE,
     .parent = "EncDecAttention",
     .query = "q",
     .key = "k",
     .value = "v",
     .outs = {"o"},
     .unscaled = 1},
    {.name = "one matrix per head",
     .form = FORM_HEADS,
     .query = "heads.0.query",
     .key = "heads.0.key",
     .value = "heads.0.value",
     .outs = {"proj"}},
    {.name = "DistilBERT",
     .form = FORM_SEPARATE,
     .query = "q_lin",
     .key = "k_lin",
     .value = "v_lin",
     .outs = {"out_lin"}},
    {.name = "GPT-NeoX",
     .form = FORM_FUSED,
     .parent = "attention",
     .fused = "query_key_value",
     .outs = {"dense"},
     .rows = QKV_ROWS_PER_HEAD},
    {.name = "query_key_value", .form = FORM_FUSED, .fused = "query_key_value", .outs = {"dense"}},
    {.name = "Wqkv",
     .form = FORM_FUSED,
     .fused = "Wqkv",
     .outs = {"out_proj"},
     .rows = QKV_ROWS_PER_KIND},
    {.name = "timm ViT",
     .form = FORM_FUSED,
     .fused = "qkv",
     .outs = {"proj"},
     .rows = QKV_ROWS_PER_KIND},
};

const char *module_tensor(char *text, size_t size, const struct module *module, const char *stem,
                          const char *end)
{
    snprintf(text, size, "%s%s%s%s", module->path, module->path[0] ? "." : "", stem, end);
    return text;
}

static const char *last_component(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

const char *module_family_name(const struct module *module, const char *out)
{
    const char *name = module->family->name;
    const char *last = last_component(module->path);
    if (strcmp(name, "Llama") == 0 && strcmp(out, "dense") == 0) {
        return "Phi";
    }
    if (strcmp(name, "Llama") == 0 && strcmp(out, "out_proj") == 0) {
        return strcmp(last, "attn") == 0 ? "GPT-J" : "BART";
    }
    if (strcmp(name, "BERT") == 0 && strcmp(last, "crossattention") == 0) {
        return "BERT cross-attention";
    }
    return name;
}

/* Digits compare as numbers, and a dot before all else, so that a module precedes those inside it.
 */
static int natural_order(const char *a, const char *b)
{
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            a += strspn(a, "0");
            b += strspn(b, "0");
            size_t digits_a = strspn(a, "0123456789");
            size_t digits_b = strspn(b, "0123456789");
            int order =
                digits_a != digits_b ? (digits_a < digits_b ? -1 : 1) : strncmp(a, b, digits_a);
            if (order != 0) {
                return order;
            }
            a += digits_a;
            b += digits_b;
        } else if (*a != *b) {
            return *a == '.' ? -1 : *b == '.' ? 1 : (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return *a ? 1 : *b ? -1 : 0;
}

static int by_path(const void *a, const void *b)
{
    const struct module *x = a;
    const struct module *y = b;
    int order = natural_order(x->path, y->path);
    return order != 0 ? order : strcmp(x->path, y->path);
}

/* The tensor whose presence makes a module of this family. */
static void anchor_of(const struct family *family, char *text, size_t size)
{
    const char *stem = family->fused ? family->fused : family->query;
    int torch = family->form == FORM_TORCH_FUSED || family->form == FORM_TORCH_SEPARATE;
    snprintf(text, size, "%s%s", stem, torch ? "" : ".weight");
}

static void cut_component(char *path)
{
    char *dot = strrchr(path, '.');
    *(dot ? dot : path) = 0;
}

static int add_module(struct modules *modules, int *room, const struct family *family,
                      const char *name, size_t path_length)
{
    if (modules->count == *room) {
        *room = *room ? *room * 2 : 64;
        struct module *items = realloc(modules->items, (size_t)*room * sizeof *items);
        if (!items) {
            return -1;
        }
        modules->items = items;
    }
    struct module *module = &modules->items[modules->count++];
    module->family = family;
    module->path = strndup(name, path_length);
    module->inner = strdup(name);
    if (!module->path || !module->inner) {
        return -1;
    }
    cut_component(module->inner);
    if (family->form != FORM_TORCH_FUSED && family->form != FORM_TORCH_SEPARATE) {
        cut_component(module->inner);
    }
    return 0;
}

/* name ends in ".anchor" or is it, and what stands before ends in the family's parent. */
static int matches(const struct family *family, const char *name, const char *anchor,
                   size_t *path_length)
{
    size_t length = strlen(name);
    size_t tail = strlen(anchor);
    if (length < tail || strcmp(name + length - tail, anchor) != 0 ||
        (length > tail && name[length - tail - 1] != '.')) {
        return 0;
    }
    *path_length = length > tail ? length - tail - 1 : 0;
    if (!family->parent) {
        return 1;
    }
    size_t parent = strlen(family->parent);
    return *path_length >= parent &&
           memcmp(name + *path_length - parent, family->parent, parent) == 0 &&
           (*path_length == parent || name[*path_length - parent - 1] == '.');
}

int modules_find(const struct tensors *tensors, struct modules *modules, char *error)
{
    char anchors[sizeof families / sizeof families[0]][64];
    int room = 0;
    memset(modules, 0, sizeof *modules);
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        anchor_of(&families[f], anchors[f], sizeof anchors[f]);
    }
    for (int64_t i = 0; i < tensors_count(tensors); i++) {
        const char *name = tensors_name(tensors, i);
        for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
            size_t length = 0;
            if (!matches(&families[f], name, anchors[f], &length)) {
                continue;
            }
            if (add_module(modules, &room, &families[f], name, length)) {
                modules_free(modules);
                return error_set(error, "out of memory");
            }
            break;
        }
    }
    if (modules->count > 0) {
        qsort(modules->items, (size_t)modules->count, sizeof *modules->items, by_path);
    }
    return 0;
}

void modules_free(struct modules *modules)
{
    for (int i = 0; i < modules->count; i++) {
        free(modules->items[i].path);
        free(modules->items[i].inner);
    }
    free(modules->items);
    memset(modules, 0, sizeof *modules);
}

static int is_prefix(const char *prefix, const char *path)
{
    size_t length = strlen(prefix);
    return length == 0 ||
           (strncmp(prefix, path, length) == 0 && (path[length] == 0 || path[length] == '.'));
}

/* "a, b, c and 5 more" of the modules that fit, as far as there is room. */
static void list_fitting(const struct modules *modules, const char *prefix, int fitting, char *text,
                         size_t size)
{
    size_t used = 0;
    int listed = 0;
    text[0] = 0;
    for (int i = 0; i < modules->count; i++) {
        const char *path = modules->items[i].path;
        if (!is_prefix(prefix, modules->items[i].inner)) {
            continue;
        }
        if (used + strlen(path) + 24 > size) {
            snprintf(text + used, size - used, " and %d more", fitting - listed);
            return;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%s", listed ? ", " : "",
                                 path[0] ? path : "(the root)");
        listed++;
    }
}

const struct module *modules_choose(const struct modules *modules, const char *layer,
                                    const char *weights_path, char *error)
{
    char list[700];
    const char *prefix = layer ? layer : "";
    if (modules->count == 0) {
        error_set(error, "%s: has no attention module whose names are known", weights_path);
        return NULL;
    }
    if (layer && *layer && strspn(layer, "0123456789") == strlen(layer)) {
        long long number = strtoll(layer, NULL, 10);
        if (number < modules->count) {
            return &modules->items[number];
        }
        error_set(error,
                  "%s: --layer %s was given, expected a number below %d, that of the layers found",
                  weights_path, layer, modules->count);
        return NULL;
    }
    const struct module *found = NULL;
    int fitting = 0;
    for (int i = 0; i < modules->count; i++) {
        if (is_prefix(prefix, modules->items[i].inner)) {
            found = &modules->items[i];
            fitting++;
        }
    }
    if (fitting == 1) {
        return found;
    }
    list_fitting(modules, fitting ? prefix : "", fitting ? fitting : modules->count, list,
                 sizeof list);
    if (fitting == 0) {
        error_set(error, "%s: no attention module fits --layer %s, expected one of %s",
                  weights_path, layer, list);
    } else if (layer) {
        error_set(error, "%s: --layer %s fits several attention modules, expected one of %s",
                  weights_path, layer, list);
    } else {
        error_set(error, "%s: has several attention modules, expected --layer with one of %s",
                  weights_path, list);
    }
    return NULL;
}
