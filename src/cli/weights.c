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

/* What the model says and the command line does not: window, softcap, slopes, sinks. */
static int decide_scores(const struct layer_request *request, const struct model_facts *facts,
                         const struct layer_parts *parts, struct layer *layer, char *error)
{
    layer->window_left = facts->window && !request->has_window ? facts->window - 1 : -1;
    layer->softcap = request->has_softcap ? 0 : (float)facts->softcap;
    if (facts->alibi && !request->has_alibi) {
        int64_t heads = layer->config.heads;
        float *slopes = layer_floats(layer, heads, error);
        if (!slopes) {
            return -1;
        }
        if (headway_alibi_slopes(heads, slopes) != HEADWAY_OK) {
            return error_set(error, "%lld heads have no slopes of ALiBi", (long long)heads);
        }
        for (int64_t h = 0; facts->alibi_bias_max != 8 && h < heads; h++) {
            slopes[h] = (float)pow((double)slopes[h], facts->alibi_bias_max / 8);
        }
        layer->slopes = slopes;
    }
    if (facts->sinks_needed && !parts->sinks && !request->has_sink) {
        return error_set(error, "%s: the tensor sinks is missing, which %s has", layer->name,
                         facts->model_type);
    }
    return 0;
}

/* Gemma's norms weigh with one more than the file holds; without a config.json the layer norms that
 * only its blocks have tell it. */
static int is_gemma_by_names(const struct tensors *tensors)
{
    for (int64_t i = 0; i < tensors_count(tensors); i++) {
        if (strstr(tensors_name(tensors, i), "pre_feedforward_layernorm")) {
            return 1;
        }
    }
    return 0;
}

static int decide_norms(const struct layer_request *request, const struct model_facts *facts,
                        const struct tensors *tensors, const struct layer_parts *parts,
                        struct layer *layer, char *error)
{
    const struct tensor_info *norm = parts->query_norm ? parts->query_norm : parts->key_norm;
    if (!norm) {
        if (facts->norm_needed) {
            return error_set(error, "%s: the tensor q_norm.weight is missing, which %s has",
                             layer->name, facts->model_type);
        }
        return request->norm_eps > 0 ? error_set(error, "--qk-norm-eps: given for a layer without "
                                                        "the tensors q_norm and k_norm")
                                     : 0;
    }
    if (facts->present && facts->norm == QK_NORM_UNKNOWN && request->norm_eps == 0) {
        return error_set(error,
                         "the layer %s has the tensor %s, whose meaning in %s is not in this "
                         "version; --qk-norm-eps says that it is RMS norm",
                         layer->name, norm->name,
                         facts->model_type[0] ? facts->model_type : "a model without model_type");
    }
    if (!facts->present && is_gemma_by_names(tensors)) {
        return error_set(error,
                         "%s is of Gemma's names, whose norms weigh 1 + weight, but no config.json "
                         "says so: expected one",
                         norm->name);
    }
    layer->config.norm_eps = (float)(request->norm_eps > 0 ? request->norm_eps : facts->norm_eps);
    return 0;
}

static int refuse_config(const struct layer_request *request, const struct tensors *tensors,
                         const struct model_facts *facts, char *error)
{
    char all[1000] = "";
    const struct {
        const char *text;
        int settled; /* by the command line */
    } kinds[] = {
        {facts->refused, 0},
        {facts->rope_refused, request->rope_style != NULL},
        {facts->window_refused, request->has_window},
        {facts->alibi_refused, request->has_alibi},
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].text[0] && !kinds[i].settled) {
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "",
                                     kinds[i].text);
        }
    }
    if (!used) {
        return 0;
    }
    int hint = facts->rope_refused[0] && !facts->refused[0] && !request->rope_style;
    return error_set(error, "%s/config.json asks for %.600s: not in this version%s",
                     tensors_folder(tensors), all,
                     hint ? ", unless --rope-style says which channels are a pair" : "");
}

static int load_module(struct tensors *tensors, const struct modules *modules,
                       const struct module *module, const struct layer_request *request,
                       struct layer *layer, char *error)
{
    struct model_facts facts;
    struct layer_parts parts = {0};
    struct layer_sizes sizes = {0};
    if (config_read(tensors_folder(tensors), module->path, &facts, error) ||
        refuse_config(request, tensors, &facts, error) ||
        parts_find(tensors, module, &parts, error) ||
        parts_find_extras(tensors, module, &parts, error)) {
        return -1;
    }
    int rotates = facts.rope.used || request->rope_theta > 0 || request->rope_table;
    if (parts_refuse_others(tensors, modules, module, &parts, rotates, error)) {
        return -1;
    }
    merge_counts(request, &facts, &sizes);
    enum qkv_rows rows = QKV_ROWS_PER_KIND;
    if (module->family->form == FORM_FUSED &&
        decide_rows(request, &facts, module, &parts, &rows, error)) {
        return -1;
    }
    parts.per_head = rows == QKV_ROWS_PER_HEAD;
    if (parts_sizes(&parts, &sizes, module, error) || parts_check_extras(&parts, &sizes, error)) {
        return -1;
    }
    layer->config.heads = sizes.heads;
    layer->config.kv_heads = sizes.kv_heads;
    layer->config.head_size = sizes.head_size;
    layer->config.value_head_size = sizes.value_head_size;
    layer->config.add_zero_attn = request->add_zero_attn;
    layer->family = module_family_name(module, parts.out_stem);
    if (is_qkv_proj(module)) {
        layer->family = parts.per_head ? "UvA tutorial" : "Phi-3";
    }
    layer->is_decoder = facts.is_decoder;
    snprintf(layer->name, sizeof layer->name, "%s", module->path);
    int plus_one = facts.norm == QK_NORM_RMS_PLUS_ONE;
    return decide_scale(request, &facts, module, layer, error) ||
                   decide_norms(request, &facts, tensors, &parts, layer, error) ||
                   decide_scores(request, &facts, &parts, layer, error) ||
                   parts_rope(request, &facts, layer, error) ||
                   parts_views(tensors, module, &parts, &sizes, layer, error) ||
                   parts_view_extras(tensors, &parts, &sizes, plus_one, layer, error)
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
