/* What config.json says of rotary embedding, under its old names and its new ones. */
#include "cli/config_parts.h"

#include "cli/file.h"

#include <stdio.h>
#include <string.h>

static const struct model_family families[] = {
    {.type = "llama", .style = HEADWAY_ROPE_HALF},
    {.type = "mistral", .style = HEADWAY_ROPE_HALF, .windows = WINDOW_ALL, .window = 4096},
    {.type = "ministral", .style = HEADWAY_ROPE_HALF, .windows = WINDOW_ALL, .window = 4096},
    {.type = "mixtral", .style = HEADWAY_ROPE_HALF, .theta = 1e6, .windows = WINDOW_ALL},
    {.type = "qwen2", .style = HEADWAY_ROPE_HALF, .windows = WINDOW_OPTION},
    {.type = "qwen2_moe", .style = HEADWAY_ROPE_HALF, .windows = WINDOW_UNUSED},
    {.type = "qwen3", .style = HEADWAY_ROPE_HALF, .windows = WINDOW_OPTION, .norm = QK_NORM_RMS},
    {.type = "qwen3_moe",
     .style = HEADWAY_ROPE_HALF,
     .windows = WINDOW_UNUSED,
     .norm = QK_NORM_RMS},
    {.type = "gemma", .style = HEADWAY_ROPE_HALF},
    {.type = "gemma2",
     .style = HEADWAY_ROPE_HALF,
     .windows = WINDOW_EVEN,
     .window = 4096,
     .query_scalar = 256,
     .softcap = 50},
    {.type = "gemma3",
     .style = HEADWAY_ROPE_HALF,
     .theta = 1e6,
     .windows = WINDOW_PATTERN,
     .window = 4096,
     .pattern = 6,
     .norm = QK_NORM_RMS_PLUS_ONE,
     .query_scalar = 256},
    {.type = "gemma3_text",
     .style = HEADWAY_ROPE_HALF,
     .theta = 1e6,
     .windows = WINDOW_PATTERN,
     .window = 4096,
     .pattern = 6,
     .norm = QK_NORM_RMS_PLUS_ONE,
     .query_scalar = 256},
    {.type = "phi", .style = HEADWAY_ROPE_HALF, .fraction = 0.5},
    {.type = "phi3", .style = HEADWAY_ROPE_HALF, .windows = WINDOW_ALL},
    {.type = "gpt_neox", .style = HEADWAY_ROPE_HALF, .fraction = 0.25},
    {.type = "gptj", .style = HEADWAY_ROPE_INTERLEAVED},
    {.type = "cohere", .style = HEADWAY_ROPE_INTERLEAVED, .theta = 5e5},
    {.type = "cohere2",
     .style = HEADWAY_ROPE_INTERLEAVED,
     .windows = WINDOW_PATTERN,
     .window = 4096,
     .pattern = 4},
    {.type = "glm", .style = HEADWAY_ROPE_INTERLEAVED, .fraction = 0.5},
    {.type = "glm4", .style = HEADWAY_ROPE_INTERLEAVED, .fraction = 0.5},
    {.type = "glm4_moe", .style = HEADWAY_ROPE_HALF, .fraction = 0.5, .norm = QK_NORM_RMS},
    {.type = "granite", .style = HEADWAY_ROPE_HALF},
    {.type = "granitemoe", .style = HEADWAY_ROPE_HALF},
    {.type = "olmo", .style = HEADWAY_ROPE_HALF},
    {.type = "stablelm", .style = HEADWAY_ROPE_HALF, .fraction = 0.25},
    {.type = "starcoder2", .style = HEADWAY_ROPE_HALF, .windows = WINDOW_ALL},
    {.type = "nemotron", .style = HEADWAY_ROPE_HALF, .fraction = 0.5},
    {.type = "gpt_oss",
     .style = HEADWAY_ROPE_HALF,
     .theta = 150000,
     .windows = WINDOW_EVEN,
     .window = 128},
    {.type = "helium", .style = HEADWAY_ROPE_INTERLEAVED, .theta = 1e5},
    {.type = "ernie4_5", .style = HEADWAY_ROPE_INTERLEAVED, .theta = 5e5},
    {.type = "smollm3", .style = HEADWAY_ROPE_HALF, .theta = 2e6, .windows = WINDOW_UNUSED},
    {.type = "arcee", .style = HEADWAY_ROPE_HALF},
    {.type = "seed_oss", .style = HEADWAY_ROPE_HALF},
    {.type = "apertus", .style = HEADWAY_ROPE_HALF, .theta = 12e6, .norm = QK_NORM_RMS},
    {.type = "mllama_text_model", .style = HEADWAY_ROPE_HALF, .theta = 500000, .norm = QK_NORM_RMS},
    {.type = "roformer", .style = HEADWAY_ROPE_INTERLEAVED},
    {.type = "esm", .style = HEADWAY_ROPE_HALF},
};

const struct model_family *config_family(const char *type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(type, families[i].type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

/* Families with RoPE whose names begin like this, and whose style nobody tells here. */
static const char *const others[] = {
    "llama",   "mistral",  "ministral", "mixtral",   "qwen2",     "qwen3",      "gemma",
    "phi",     "gptj",     "gpt_neox",  "cohere",    "glm",       "chatglm",    "granite",
    "olmo",    "stablelm", "starcoder", "codegen",   "persimmon", "fuyu",       "internlm",
    "exaone",  "baichuan", "deepseek",  "smollm",    "nemotron",  "modernbert", "nomic_bert",
    "minicpm", "helium",   "dbrx",      "chameleon", "pixtral",   "hunyuan",    "bitnet",
    "jetmoe",  "eurobert", "falcon",    "ernie4",    "seed_oss",  "apertus",    "arcee",
    "lfm2",    "rope",
};

static const char *const fields[] = {
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "rope_local_base_freq",
    "rotary_pct",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_emb_fraction",
    "global_rope_theta",
    "rotary_embedding_base",
    "partial_rotary_factor",
    "rotary",
    "use_rotary",
};

/* What says that there is RoPE, for a refusal; NULL: nothing does. */
static const char *told_by(const cJSON *part, const struct model_family *family, const char *type)
{
    static const char *const positions[] = {"position_embedding_type", "position_embeddings_type"};
    for (size_t i = 0; i < 2; i++) {
        const cJSON *item = json_get(part, positions[i]);
        if (cJSON_IsString(item)) {
            int rotary = strncmp(item->valuestring, "rotary", 6) == 0 ||
                         strncmp(item->valuestring, "rope", 4) == 0;
            if (rotary || strcmp(type, "esm") == 0) {
                return rotary ? positions[i] : NULL;
            }
        }
    }
    if (family) {
        return strcmp(type, "esm") == 0 ? NULL : type;
    }
    if (strstr(type, "audio") || strncmp(type, "mllama_vision", 13) == 0 ||
        cJSON_IsTrue(json_get(part, "alibi"))) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (config_is_set(part, fields[i])) {
            return fields[i];
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strncmp(type, others[i], strlen(others[i])) == 0) {
            return type;
        }
    }
    return NULL;
}

/* Models whose layers do not all rotate. */
static int layer_rotates(const cJSON *part, const char *module, const struct model_facts *facts)
{
    const char *type = facts->model_type;
    const cJSON *list = json_get(part, "no_rope_layers");
    const cJSON *item = cJSON_GetArrayItem(list, (int)module_index(module));
    if (strcmp(type, "cohere2") == 0) {
        return facts->window > 0;
    }
    if (strcmp(type, "smollm3") == 0 && !item) {
        const cJSON *interval = json_get(part, "no_rope_layer_interval");
        int64_t each = 4;
        if (interval && (json_integer(interval, &each) || each < 1)) {
            return 1;
        }
        return (module_index(module) + 1) % each != 0;
    }
    return !item || !cJSON_IsNumber(item) || item->valuedouble != 0;
}

static int read_factors(const cJSON *values, const char *key, double *factors, int64_t *count,
                        const char *path, char *error)
{
    const cJSON *list = json_get(values, key);
    *count = 0;
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next) {
        if (!cJSON_IsNumber(item) || *count == ROPE_FACTORS || !(item->valuedouble > 0)) {
            return error_set(error, "%s: %s is not a list of at most %d positive numbers", path,
                             key, ROPE_FACTORS);
        }
        factors[(*count)++] = item->valuedouble;
    }
    return *count ? 0 : error_set(error, "%s: %s is missing", path, key);
}

/* Numbers of the scaling that are there; those that must be are the library's to miss. */
static int read_numbers(const cJSON *values, const cJSON *part, headway_rope_config *c,
                        const char *path, char *error)
{
    double original = 0, most = 0;
    const struct {
        const cJSON *from;
        const char *key;
        double *to;
    } numbers[] = {
        {values, "factor", &c->factor},
        {values, "low_freq_factor", &c->low_freq_factor},
        {values, "high_freq_factor", &c->high_freq_factor},
        {values, "beta_fast", &c->beta_fast},
        {values, "beta_slow", &c->beta_slow},
        {values, "attention_factor", &c->attention_factor},
        {values, "mscale", &c->mscale},
        {values, "mscale_all_dim", &c->mscale_all_dim},
        {part, "max_position_embeddings", &most},
        {values, "original_max_position_embeddings", &original},
        /* Where both are there it is the model's. */
        {part, "original_max_position_embeddings", &original},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (config_number(numbers[i].from, numbers[i].key, numbers[i].to, path, error) < 0) {
            return -1;
        }
    }
    original = original > 0 && c->scaling != HEADWAY_ROPE_DYNAMIC ? original : most;
    if (!(original >= 0 && original <= INT32_MAX && most >= 0 && most <= INT32_MAX)) {
        return error_set(error, "%s: max_position_embeddings is not a count", path);
    }
    c->original_positions = (int64_t)original;
    if (c->factor == 0 && original > 0 &&
        (c->scaling == HEADWAY_ROPE_YARN || c->scaling == HEADWAY_ROPE_LONGROPE)) {
        c->factor = most > 0 ? most / original : 0;
    }
    c->no_truncate = cJSON_IsFalse(json_get(values, "truncate"));
    return 0;
}

static int read_scaling(const cJSON *values, const cJSON *part, struct model_facts *facts,
                        const char *path, char *error)
{
    static const struct {
        const char *name;
        headway_rope_scaling scaling;
    } kinds[] = {
        {"default", HEADWAY_ROPE_PLAIN},   {"linear", HEADWAY_ROPE_LINEAR},
        {"dynamic", HEADWAY_ROPE_DYNAMIC}, {"llama3", HEADWAY_ROPE_LLAMA3},
        {"yarn", HEADWAY_ROPE_YARN},       {"longrope", HEADWAY_ROPE_LONGROPE},
        {"su", HEADWAY_ROPE_LONGROPE},
    };
    struct rope_facts *rope = &facts->rope;
    const cJSON *kind = json_get(values, "rope_type");
    kind = kind ? kind : json_get(values, "type");
    const char *name = cJSON_IsString(kind) ? kind->valuestring : "default";
    size_t i = 0;
    while (i < sizeof kinds / sizeof kinds[0] && strcmp(name, kinds[i].name) != 0) {
        i++;
    }
    int sections = config_is_set(values, "mrope_section");
    if (i == sizeof kinds / sizeof kinds[0] || sections || config_is_set(values, "alpha")) {
        config_refuse_text(facts->refused, sizeof facts->refused,
                           sections ? "MRoPE" : "scaling of RoPE's positions", name);
        return 0;
    }
    if (!kind && config_is_set(values, "factor")) {
        return error_set(error, "%s: RoPE's scaling has a factor and no type", path);
    }
    rope->config.scaling = kinds[i].scaling;
    if (rope->config.scaling == HEADWAY_ROPE_PLAIN) {
        return 0;
    }
    if (rope->config.scaling == HEADWAY_ROPE_LONGROPE &&
        (read_factors(values, "short_factor", rope->short_factors, &rope->short_count, path,
                      error) ||
         read_factors(values, "long_factor", rope->long_factors, &rope->long_count, path, error))) {
        return -1;
    }
    return read_numbers(values, part, &rope->config, path, error);
}

/* The first of these numbers that is there; 0: none. */
static int first_number(const cJSON *const *from, const char *const *keys, double *value,
                        const char *path, char *error)
{
    int found = 0;
    for (; *keys && found == 0; keys++, from++) {
        found = config_number(*from, *keys, value, path, error);
        if (found > 0 && !(*value > 0 && *value <= 1e30)) {
            return error_set(error, "%s: %s is not a positive number", path, *keys);
        }
    }
    return found;
}

static int read_size(const cJSON *values, const cJSON *part, struct rope_facts *rope,
                     const char *path, char *error)
{
    const cJSON *const from[] = {values, part, part, part};
    static const char *const keys[] = {"partial_rotary_factor", "partial_rotary_factor",
                                       "rotary_pct", "rotary_emb_fraction", NULL};
    const cJSON *size = json_get(part, "rotary_dim");
    if (first_number(from, keys, &rope->fraction, path, error) < 0) {
        return -1;
    }
    if (size && (json_integer(size, &rope->size) || rope->size < 1 || rope->size > INT32_MAX)) {
        return error_set(error, "%s: rotary_dim is not a count", path);
    }
    return 0;
}

int config_read_rope(const cJSON *part, const char *module, int sliding, struct model_facts *facts,
                     const char *path, char *error)
{
    static const char *const keys[] = {
        "rope_theta", "rope_theta", "rotary_emb_base", "rope_base", "rotary_embedding_base", NULL};
    const struct model_family *family = config_family(facts->model_type);
    const char *field = told_by(part, family, facts->model_type);
    struct rope_facts *rope = &facts->rope;
    headway_rope_config *c = &rope->config;
    if (!field || module_is_cross(module) || !layer_rotates(part, module, facts)) {
        return 0;
    }
    rope->used = 1;
    c->style = family ? family->style : HEADWAY_ROPE_NONE;
    c->theta = family && family->theta > 0 ? family->theta : 10000;
    rope->fraction = family && family->fraction > 0 ? family->fraction : 1;
    if (!family) {
        config_refuse_text(facts->rope_refused, sizeof facts->rope_refused, "RoPE", field);
    }
    /* Each kind of layer may have parameters of its own. */
    const cJSON *values = json_get(part, "rope_parameters");
    values = values ? values : json_get(part, "rope_scaling");
    const cJSON *own = json_get(values, sliding ? "sliding_attention" : "full_attention");
    int local = sliding && !own && family && family->windows == WINDOW_PATTERN &&
                family->norm == QK_NORM_RMS_PLUS_ONE;
    values = own ? own : values;
    if (local) {
        c->theta = 10000;
        return read_size(NULL, part, rope, path, error) ||
                       config_number(part, "rope_local_base_freq", &c->theta, path, error) < 0
                   ? -1
                   : 0;
    }
    const cJSON *const from[] = {values, part, part, part, part};
    return first_number(from, keys, &c->theta, path, error) < 0 ||
                   read_size(values, part, rope, path, error) ||
                   read_scaling(values, part, facts, path, error)
               ? -1
               : 0;
}
