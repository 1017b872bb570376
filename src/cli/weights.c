#define _POSIX_C_SOURCE 200809L

#include "cli/weights.h"

#include "cli/config.h"
#include "cli/families.h"
#include "cli/file.h"
#include "cli/layer_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t first_set(int64_t a, int64_t b)
{
    return a ? a : b;
}

/* Counts asked for: the command line's, then config.json's. Where the command line splits the rows
 * into other heads than config.json does, what that says of sizes belongs to another split. */
static void merge_counts(const struct layer_request *request, const struct model_facts *facts,
                         struct layer_sizes *sizes)
{
    int other = request->heads && facts->heads && request->heads != facts->heads;
    sizes->heads = first_set(request->heads, facts->heads);
    sizes->kv_heads = first_set(request->kv_heads, other ? 0 : facts->kv_heads);
    sizes->head_size = first_set(request->head_size, other ? 0 : facts->head_size);
    sizes->value_head_size =
        first_set(request->value_head_size, other ? 0 : facts->value_head_size);
}

static int is_qkv_proj(const struct module *module)
{
    return module->family->fused && strcmp(module->family->fused, "qkv_proj") == 0;
}

/* Which way the rows of one fused matrix run: the command line, then config.json, then the name,
 * then the shape (per head needs as many key heads as query heads). */
static int decide_rows(const struct layer_request *request, const struct model_facts *facts,
                       const struct module *module, const struct layer_parts *parts,
                       enum qkv_rows *rows, char *error)
{
    if (request->qkv_rows) {
        if (strcmp(request->qkv_rows, "per-head") == 0) {
            *rows = QKV_ROWS_PER_HEAD;
        } else if (strcmp(request->qkv_rows, "per-kind") == 0) {
            *rows = QKV_ROWS_PER_KIND;
        } else {
            return error_set(error, "--qkv-rows %s was given, expected per-head or per-kind",
                             request->qkv_rows);
        }
        return 0;
    }
    int differ = request->kv_heads && request->heads && request->kv_heads != request->heads;
    differ |= parts->fused.rows != 3 * parts->out.columns;
    *rows = facts->rows ? facts->rows : module->family->rows;
    if (*rows == QKV_ROWS_UNKNOWN && is_qkv_proj(module)) {
        /* Without a module's name before it, it is the UvA tutorial's. */
        *rows = differ             ? QKV_ROWS_PER_KIND
                : !module->path[0] ? QKV_ROWS_PER_HEAD
                                   : QKV_ROWS_UNKNOWN;
    }
    if (*rows == QKV_ROWS_UNKNOWN) {
        return error_set(error,
                         "the rows of %s.%s may lie per head or per kind, and nothing tells which: "
                         "expected --qkv-rows per-head or --qkv-rows per-kind",
                         module->path, module->family->fused);
    }
    return 0;
}

static int decide_scale(const struct layer_request *request, const struct model_facts *facts,
                        const struct module *module, struct layer *layer, char *error)
{
    if (request->has_scale) {
        return 0;
    }
    const char *neo =
        strcmp(module->family->name, "Llama") == 0 ? strstr(module->path, ".attn.attention") : NULL;
    if (neo && !facts->present) {
        return error_set(
            error,
            "%s has the names of GPT-Neo, which does not scale scores, but no config.json "
            "says so: expected --scale",
            module->path);
    }
    if (module->family->unscaled) {
        layer->has_scale = 1;
        layer->scale = 1;
    } else if (facts->has_scale || facts->scale_divisor > 1) {
        double scale = facts->has_scale ? facts->scale : 1 / sqrt((double)layer->config.head_size);
        layer->has_scale = 1;
        layer->scale = (float)(scale / facts->scale_divisor);
    }
    return 0;
}

static int refuse_config(const struct tensors *tensors, const struct model_facts *facts,
                         char *error)
{
    if (facts->refused[0]) {
        return error_set(error, "%s/config.json asks for %s: not in this version",
                         tensors_folder(tensors), facts->refused);
    }
    return 0;
}

static int load_module(struct tensors *tensors, const struct modules *modules,
                       const struct module *module, const struct layer_request *request,
                       struct layer *layer, char *error)
{
    struct model_facts facts;
    struct layer_parts parts = {0};
    struct layer_sizes sizes = {0};
    if (config_read(tensors_folder(tensors), module->path, &facts, error) ||
        refuse_config(tensors, &facts, error) || parts_find(tensors, module, &parts, error) ||
        parts_refuse_others(tensors, modules, module, &parts, error)) {
        return -1;
    }
    merge_counts(request, &facts, &sizes);
    enum qkv_rows rows = QKV_ROWS_PER_KIND;
    if (module->family->form == FORM_FUSED &&
        decide_rows(request, &facts, module, &parts, &rows, error)) {
        return -1;
    }
    parts.per_head = rows == QKV_ROWS_PER_HEAD;
    if (parts_sizes(&parts, &sizes, module, error)) {
        return -1;
    }
    layer->config.heads = sizes.heads;
    layer->config.kv_heads = sizes.kv_heads;
    layer->config.head_size = sizes.head_size;
    layer->config.value_head_size = sizes.value_head_size;
    layer->family = module_family_name(module, parts.out_stem);
    if (is_qkv_proj(module)) {
        layer->family = parts.per_head ? "UvA tutorial" : "Phi-3";
    }
    layer->is_decoder = facts.is_decoder;
    snprintf(layer->name, sizeof layer->name, "%s", module->path);
    return decide_scale(request, &facts, module, layer, error) ||
                   parts_views(tensors, module, &parts, &sizes, layer, error)
               ? -1
               : 0;
}

int layer_load(const struct layer_request *request, struct layer *layer, char *error)
{
    struct tensors *tensors = NULL;
    struct modules modules = {0};
    memset(layer, 0, sizeof *layer);
    layer->config = (headway_mha_config)HEADWAY_MHA_CONFIG_INIT;
    layer->weights = (headway_mha_weights)HEADWAY_MHA_WEIGHTS_INIT;
    if (tensors_open(&tensors, request->path, error)) {
        return -1;
    }
    int result = modules_find(tensors, &modules, error);
    const struct module *module =
        result == 0 ? modules_choose(&modules, request->layer, request->path, error) : NULL;
    result = module ? load_module(tensors, &modules, module, request, layer, error) : -1;
    modules_free(&modules);
    tensors_close(tensors);
    if (result != 0) {
        layer_free(layer);
    }
    return result;
}

static void print_module(struct tensors *tensors, const struct module *module, int number)
{
    char error[ERROR_SIZE];
    struct layer_parts parts = {0};
    const char *path = module->path[0] ? module->path : "(the root)";
    if (parts_find(tensors, module, &parts, error)) {
        printf("layer %d %s: %s, incomplete: %s\n", number, path, module->family->name, error);
        return;
    }
    const struct part *query = parts.fused.weight ? &parts.fused : &parts.query;
    printf("layer %d %s: %s, %s, %lld inputs, %lld outputs\n", number, path,
           module_family_name(module, parts.out_stem), query->weight->type_name,
           (long long)query->columns, (long long)parts.out.rows);
}

int layer_list(const char *path, char *error)
{
    struct tensors *tensors = NULL;
    struct modules modules = {0};
    if (tensors_open(&tensors, path, error)) {
        return -1;
    }
    int result = modules_find(tensors, &modules, error);
    for (int i = 0; i < modules.count; i++) {
        print_module(tensors, &modules.items[i], i);
    }
    if (result == 0 && modules.count == 0) {
        result = error_set(error, "%s: has no attention module whose names are known", path);
    }
    modules_free(&modules);
    tensors_close(tensors);
    return result;
}
