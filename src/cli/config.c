#define _POSIX_C_SOURCE 200809L

#include "cli/config.h"

#include "cli/config_parts.h"
#include "cli/file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_LIMIT (64 << 20)

static const char *const head_keys[] = {"num_attention_heads", "n_head", "num_heads", "n_heads",
                                        "attention_heads",     NULL};
static const char *const kv_head_keys[] = {"num_key_value_heads", "num_kv_heads", "n_head_kv",
                                           "n_kv_heads", NULL};
static const char *const size_keys[] = {"head_dim", "d_kv", "kv_channels", NULL};
static const char *const value_size_keys[] = {"v_head_dim", "value_head_dim", NULL};

/* The next component of a dotted name, its length in *length; NULL at the end. */
static const char *next_component(const char *at, size_t *length)
{
    if (*at == 0) {
        return NULL;
    }
    *length = strcspn(at, ".");
    return at;
}

static const char *after_component(const char *at, size_t length)
{
    return at[length] == '.' ? at + length + 1 : at + length;
}

int module_has(const char *module, const char *component)
{
    size_t length = 0;
    for (const char *at = module; (at = next_component(at, &length)) != NULL;
         at = after_component(at, length)) {
        if (strlen(component) == length && memcmp(at, component, length) == 0) {
            return 1;
        }
    }
    return 0;
}

int module_is_cross(const char *module)
{
    static const char *const names[] = {
        "encoder_attn",   "crossattention",  "EncDecAttention",          "cross_attn",
        "multihead_attn", "cross_attention", "encoder_decoder_attention"};
    const char *dot = strrchr(module, '.');
    const char *last = dot ? dot + 1 : module;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(last, names[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

int64_t module_index(const char *module)
{
    int64_t found = 0;
    size_t length = 0;
    for (const char *at = module; (at = next_component(at, &length)) != NULL;
         at = after_component(at, length)) {
        if (length > 0 && length < 10 && strspn(at, "0123456789") == length) {
            found = strtol(at, NULL, 10);
        }
    }
    return found;
}

static int has_heads(const cJSON *part)
{
    for (int i = 0; head_keys[i]; i++) {
        if (json_get(part, head_keys[i])) {
            return 1;
        }
    }
    return json_get(part, "encoder_attention_heads") || json_get(part, "decoder_attention_heads");
}

/* Other objects, such as RoPE's parameters, may be called after a component too; MPT's attn_config
 * has a model_type of "". */
static int is_part(const cJSON *item)
{
    int part = has_heads(item) || config_is_set(item, "model_type");
    for (const cJSON *child = cJSON_IsObject(item) ? item->child : NULL; child;
         child = child->next) {
        part |= cJSON_IsObject(child) && has_heads(child);
    }
    return part;
}

/* Parts are called after the module's components: "decoder", or "vision_config" for vision_model,
 * vision_tower and the like. */
static int part_matches(const char *key, const char *component, size_t length)
{
    size_t key_length = strlen(key);
    if (key_length == length && memcmp(key, component, length) == 0) {
        return 1;
    }
    if (key_length <= 7 || strcmp(key + key_length - 7, "_config") != 0) {
        return 0;
    }
    size_t stem = key_length - 7;
    if (length >= stem && memcmp(key, component, stem) == 0 &&
        (length == stem || component[stem] == '_')) {
        return 1;
    }
    int language = strncmp(key, "text_", 5) == 0 || strncmp(key, "llm_", 4) == 0;
    return (strncmp(key, "vision_", 7) == 0 && length == 6 &&
            memcmp(component, "visual", 6) == 0) ||
           (language && length == 14 && memcmp(component, "language_model", 14) == 0);
}

static const cJSON *named_part(const cJSON *root, const char *module)
{
    size_t length = 0;
    for (const char *at = module; (at = next_component(at, &length)) != NULL;
         at = after_component(at, length)) {
        for (const cJSON *item = root->child; item; item = item->next) {
            if (is_part(item) && part_matches(item->string, at, length)) {
                return item;
            }
        }
    }
    return NULL;
}

/* The object that speaks of the module; NULL with error when several might. */
static const cJSON *choose_part(const cJSON *root, const char *module, const char *path,
                                char *error)
{
    const cJSON *part = named_part(root, module);
    if (part) {
        return choose_part(part, module, path, error);
    }
    if (has_heads(root)) {
        return root;
    }
    const cJSON *only = NULL;
    for (const cJSON *item = root->child; item; item = item->next) {
        if (cJSON_IsObject(item) && has_heads(item)) {
            if (only) {
                error_set(error,
                          "%s: has the parts %s and %s, and the module's name %s tells neither",
                          path, only->string, item->string, module);
                return NULL;
            }
            only = item;
        }
    }
    return only ? only : root;
}

static int read_count(const cJSON *part, const char *const *keys, int64_t *count, const char *path,
                      char *error)
{
    for (; *keys; keys++) {
        const cJSON *item = json_get(part, *keys);
        if (!item) {
            continue;
        }
        if (json_integer(item, count) || *count < 1 || *count > INT32_MAX) {
            return error_set(error, "%s: %s is not a count", path, *keys);
        }
        return 0;
    }
    return 0;
}

/* Encoder-decoder models count their heads on each side; the module's name tells the side. */
static int read_side(const cJSON *part, const char *module, int64_t *heads, const char *path,
                     char *error)
{
    static const char *const encoder[] = {"encoder_attention_heads", NULL};
    static const char *const decoder[] = {"decoder_attention_heads", NULL};
    int64_t of_encoder = 0;
    int64_t of_decoder = 0;
    if (read_count(part, encoder, &of_encoder, path, error) ||
        read_count(part, decoder, &of_decoder, path, error)) {
        return -1;
    }
    int in_encoder = module_has(module, "encoder");
    int in_decoder = module_has(module, "decoder");
    if (in_encoder != in_decoder) {
        int64_t side = in_encoder ? of_encoder : of_decoder;
        *heads = side ? side : *heads;
    } else if (of_encoder == of_decoder && of_encoder) {
        *heads = of_encoder;
    } else if (of_encoder || of_decoder) {
        *heads = 0;
    }
    return 0;
}

int config_number(const cJSON *part, const char *key, double *value, const char *path, char *error)
{
    const cJSON *item = json_get(part, key);
    if (!item) {
        return 0;
    }
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)) {
        return error_set(error, "%s: %s is not a number", path, key);
    }
    *value = item->valuedouble;
    return 1;
}

/* The family's own scale, where the file leaves it out. */
static int default_scale(const cJSON *part, const struct model_facts *facts, double *value)
{
    const struct model_family *family = config_family(facts->model_type);
    if (family && family->query_scalar > 0 && !config_has(part, "query_pre_attn_scalar")) {
        *value = 1 / sqrt(family->query_scalar);
        return 1;
    }
    if (strncmp(facts->model_type, "granite", 7) == 0 ||
        strcmp(facts->model_type, "gpt_neo") == 0 ||
        cJSON_IsFalse(json_get(part, "scale_attn_weights"))) {
        *value = 1;
        return 1;
    }
    return 0;
}

static int read_scale(const cJSON *part, const char *module, struct model_facts *facts,
                      const char *path, char *error)
{
    double value = 0;
    facts->scale_divisor = 1;
    int found = config_number(part, "attention_multiplier", &value, path, error);
    if (found == 0) {
        found = config_number(json_get(part, "attn_config"), "softmax_scale", &value, path, error);
    }
    if (found == 0) {
        found = config_number(part, "query_pre_attn_scalar", &value, path, error);
        if (found > 0 && value <= 0) {
            return error_set(error, "%s: query_pre_attn_scalar is not above 0", path);
        }
        value = found > 0 ? 1 / sqrt(value) : value;
    }
    if (found == 0) {
        found = default_scale(part, facts, &value);
    }
    if (found < 0) {
        return -1;
    }
    facts->has_scale = found;
    facts->scale = value;
    if (cJSON_IsTrue(json_get(part, "scale_attn_by_inverse_layer_idx"))) {
        facts->scale_divisor = (double)(module_index(module) + 1);
    }
    return 0;
}

static void read_decoder(const cJSON *root, const cJSON *part, const char *module,
                         struct model_facts *facts)
{
    static const char *const causal[] = {"gpt2", "gptj",        "gpt_neo", "gpt_neox",        "opt",
                                         "xglm", "biogpt",      "bloom",   "clip_text_model", "mpt",
                                         "ctrl", "gpt_bigcode", NULL};
    for (int i = 0; causal[i]; i++) {
        facts->is_decoder |= strcmp(facts->model_type, causal[i]) == 0;
    }
    /* Of the families with RoPE that are known, these two are encoders. */
    facts->is_decoder |= config_family(facts->model_type) &&
                         strcmp(facts->model_type, "roformer") != 0 &&
                         strcmp(facts->model_type, "esm") != 0;
    if (part == root || module_has(module, "language_model")) {
        const cJSON *names = json_get(root, "architectures");
        for (const cJSON *item = names ? names->child : NULL; item; item = item->next) {
            facts->is_decoder |=
                cJSON_IsString(item) && (strstr(item->valuestring, "ForCausalLM") ||
                                         strstr(item->valuestring, "LMHeadModel"));
        }
    }
    facts->is_decoder |= cJSON_IsTrue(json_get(part, "is_decoder"));
    facts->is_decoder |=
        cJSON_IsTrue(json_get(part, "is_encoder_decoder")) && module_has(module, "decoder");
    facts->is_decoder &= !module_is_cross(module);
}

static void read_type(const cJSON *root, const cJSON *part, struct model_facts *facts)
{
    const cJSON *type = json_get(part, "model_type");
    if (!cJSON_IsString(type)) {
        type = json_get(root, "model_type");
    }
    if (cJSON_IsString(type)) {
        snprintf(facts->model_type, sizeof facts->model_type, "%s", type->valuestring);
    }
    if (strncmp(facts->model_type, "phi3", 4) == 0 || strncmp(facts->model_type, "phi4", 4) == 0) {
        facts->rows = QKV_ROWS_PER_KIND;
    } else if (strncmp(facts->model_type, "gpt_neox", 8) == 0 ||
               strcmp(facts->model_type, "bloom") == 0) {
        facts->rows = QKV_ROWS_PER_HEAD;
    }
}

static int read_norm(const cJSON *part, const char *module, struct model_facts *facts,
                     const char *path, char *error)
{
    const struct model_family *family = config_family(facts->model_type);
    facts->norm = family ? family->norm : QK_NORM_UNKNOWN;
    facts->norm_needed = strncmp(facts->model_type, "qwen3", 5) == 0 ||
                         strncmp(facts->model_type, "gemma3", 6) == 0 ||
                         strcmp(facts->model_type, "apertus") == 0 ||
                         (facts->norm != QK_NORM_UNKNOWN && config_is_set(part, "use_qk_norm"));
    facts->sinks_needed = strcmp(facts->model_type, "gpt_oss") == 0;
    if (module_is_cross(module)) {
        facts->norm_needed = facts->sinks_needed = 0;
    }
    return config_number(part, "rms_norm_eps", &facts->norm_eps, path, error) < 0 ? -1 : 0;
}

static int read_facts(const cJSON *root, const char *module, struct model_facts *facts,
                      const char *path, char *error)
{
    const cJSON *part = choose_part(root, module, path, error);
    if (!part) {
        return -1;
    }
    int sliding = 0;
    read_type(root, part, facts);
    if (read_count(part, head_keys, &facts->heads, path, error) ||
        read_side(part, module, &facts->heads, path, error) ||
        read_count(part, kv_head_keys, &facts->kv_heads, path, error) ||
        read_count(part, size_keys, &facts->head_size, path, error) ||
        read_count(part, value_size_keys, &facts->value_head_size, path, error) ||
        read_scale(part, module, facts, path, error) ||
        read_norm(part, module, facts, path, error) ||
        config_read_scores(part, module, facts, &sliding, path, error) ||
        config_read_rope(part, module, sliding, facts, path, error)) {
        return -1;
    }
    read_decoder(root, part, module, facts);
    config_refuse(part, module, facts);
    return 0;
}

int config_read(const char *folder, const char *module, struct model_facts *facts, char *error)
{
    struct stat status;
    char *text = NULL;
    int64_t bytes = 0;
    memset(facts, 0, sizeof *facts);
    facts->scale_divisor = 1;
    facts->rope.config = (headway_rope_config)HEADWAY_ROPE_CONFIG_INIT;
    char *path = malloc(strlen(folder) + sizeof "/config.json");
    if (!path) {
        return error_set(error, "out of memory");
    }
    sprintf(path, "%s/config.json", folder);
    int result = 0;
    if (stat(path, &status) == 0 || errno != ENOENT) {
        result = file_load(path, CONFIG_LIMIT, &text, &bytes, error);
        cJSON *root = result == 0 ? json_parse(text, bytes, 0, path, error) : NULL;
        facts->present = 1;
        result = root ? read_facts(root, module, facts, path, error) : -1;
        cJSON_Delete(root);
        free(text);
    }
    free(path);
    return result;
}
