/* What config.json says of the scores: window, softcap, ALiBi. */
#include "cli/config_parts.h"

#include "cli/file.h"

#include <math.h>
#include <string.h>

/* The name of the layer's kind in a list of all layers; NULL: not told. */
static const char *kind_of_layer(const cJSON *part, const char *field, const char *module)
{
    const cJSON *list = json_get(part, field);
    int64_t index = module_index(module);
    if (!cJSON_IsArray(list) || index >= cJSON_GetArraySize(list)) {
        return NULL;
    }
    const cJSON *item = cJSON_GetArrayItem(list, (int)index);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static int whole(const cJSON *part, const char *key, int64_t otherwise, int64_t *value,
                 const char *path, char *error)
{
    const cJSON *item = json_get(part, key);
    *value = otherwise;
    if (item && (json_integer(item, value) || *value < 0 || *value > INT32_MAX)) {
        return error_set(error, "%s: %s is not a count", path, key);
    }
    return 0;
}

static void refuse_window(struct model_facts *facts, const char *what, const char *field)
{
    config_refuse_text(facts->window_refused, sizeof facts->window_refused, what, field);
}

/* By the family's rule, where there is no list of layers. */
static int slides(const cJSON *part, const char *module, enum window_rule rule, int64_t pattern,
                  struct model_facts *facts, const char *path, char *error)
{
    int64_t index = module_index(module), from;
    switch (rule) {
    case WINDOW_ALL:
        return 1;
    case WINDOW_EVEN:
        return index % 2 == 0;
    case WINDOW_OPTION:
        if (!cJSON_IsTrue(json_get(part, "use_sliding_window"))) {
            return 0;
        }
        return whole(part, "max_window_layers", 28, &from, path, error) ? -1 : index >= from;
    case WINDOW_PATTERN:
        if (whole(part, "sliding_window_pattern", pattern, &from, path, error)) {
            return -1;
        }
        return from == 0 || (index + 1) % from != 0;
    case WINDOW_UNUSED:
        if (!cJSON_IsTrue(json_get(part, "use_sliding_window"))) {
            return 0;
        }
        break;
    case WINDOW_UNKNOWN:
        break;
    }
    if (!cJSON_IsFalse(json_get(part, "use_sliding_window"))) {
        refuse_window(facts, "sliding window", "sliding_window");
    }
    return 0;
}

/* GPT-Neo's layers take turns. */
static int neo_slides(const cJSON *part, const char *module)
{
    const char *kind = kind_of_layer(part, "attention_layers", module);
    return kind ? strcmp(kind, "global") != 0 : module_index(module) % 2 == 1;
}

static int read_window(const cJSON *part, const char *module, const struct model_family *family,
                       struct model_facts *facts, int *sliding, const char *path, char *error)
{
    int neo = strcmp(facts->model_type, "gpt_neo") == 0;
    const char *key = neo ? "window_size" : "sliding_window";
    int64_t otherwise = neo ? 256 : family && !config_has(part, key) ? family->window : 0, window;
    const char *kind = kind_of_layer(part, "layer_types", module);
    if (whole(part, key, otherwise, &window, path, error)) {
        return -1;
    }
    if (neo) {
        *sliding = neo_slides(part, module);
    } else if (kind) {
        *sliding = strcmp(kind, "sliding_attention") == 0;
        if (!*sliding && strcmp(kind, "full_attention") != 0) {
            config_refuse_text(facts->refused, sizeof facts->refused, kind, "layer_types");
        } else if (*sliding && !window) {
            refuse_window(facts, "sliding window of unknown size", "layer_types");
        }
    } else if (window || (family && family->windows == WINDOW_PATTERN)) {
        *sliding = slides(part, module, family ? family->windows : WINDOW_UNKNOWN,
                          family ? family->pattern : 0, facts, path, error);
    }
    facts->window = *sliding > 0 ? window : 0;
    if (*sliding && cJSON_IsTrue(json_get(part, "use_bidirectional_attention"))) {
        refuse_window(facts, "window to both sides", "use_bidirectional_attention");
    }
    return *sliding < 0 ? -1 : 0;
}

static int read_softcap(const cJSON *part, const struct model_family *family,
                        struct model_facts *facts, const char *path, char *error)
{
    static const char *const keys[] = {"attn_logit_softcapping", "attn_logit_softcap",
                                       "attention_logit_softcapping", "attention_logit_cap"};
    int found = 0;
    facts->softcap = family && !config_has(part, keys[0]) ? family->softcap : 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && found == 0; i++) {
        found = config_number(part, keys[i], &facts->softcap, path, error);
        if (found > 0 && facts->softcap < 0) {
            return error_set(error, "%s: %s is negative", path, keys[i]);
        }
    }
    return found < 0 ? -1 : 0;
}

/* BLOOM's and MPT's slopes are the paper's, which their codes compute each in its own way. */
static int read_alibi(const cJSON *part, struct model_facts *facts, const char *path, char *error)
{
    const cJSON *attention = json_get(part, "attn_config");
    facts->alibi_bias_max = 8;
    if (strcmp(facts->model_type, "mpt") == 0) {
        const cJSON *alibi = json_get(attention, "alibi");
        facts->alibi = !alibi || cJSON_IsTrue(alibi);
        return config_number(attention, "alibi_bias_max", &facts->alibi_bias_max, path, error) < 0
                   ? -1
                   : 0;
    }
    facts->alibi = strcmp(facts->model_type, "bloom") == 0;
    if (!facts->alibi && (config_is_set(part, "alibi") || config_is_set(attention, "alibi"))) {
        config_refuse_text(facts->alibi_refused, sizeof facts->alibi_refused, "ALiBi",
                           facts->model_type[0] ? facts->model_type : "alibi");
    }
    return 0;
}

int config_read_scores(const cJSON *part, const char *module, struct model_facts *facts,
                       int *sliding, const char *path, char *error)
{
    const struct model_family *family = config_family(facts->model_type);
    *sliding = 0;
    if (read_softcap(part, family, facts, path, error)) {
        return -1;
    }
    if (module_is_cross(module)) {
        return 0;
    }
    return read_window(part, module, family, facts, sliding, path, error) ||
                   read_alibi(part, facts, path, error)
               ? -1
               : 0;
}
