#include "cli/config_refuse.h"

#include <stdio.h>
#include <string.h>

static void refuse(struct model_facts *facts, const char *what, const char *field)
{
    size_t used = strlen(facts->refused);
    if (strstr(facts->refused, what)) {
        return;
    }
    snprintf(facts->refused + used, sizeof facts->refused - used, "%s%s (%s)", used ? ", " : "",
             what, field);
}

/* Set to something: not null, false, 0, "" or an empty list. */
static int is_set(const cJSON *part, const char *field)
{
    const cJSON *item = json_get(part, field);
    if (!item || cJSON_IsFalse(item)) {
        return 0;
    }
    if (cJSON_IsNumber(item)) {
        return item->valuedouble != 0;
    }
    if (cJSON_IsString(item)) {
        return item->valuestring[0] != 0;
    }
    return cJSON_IsTrue(item) || item->child != NULL;
}

/* Fields that mean one thing in whatever family they stand. */
static const struct {
    const char *field, *what;
} fields[] = {
    {"rope_theta", "RoPE"},
    {"rope_parameters", "RoPE"},
    {"rope_scaling", "RoPE"},
    {"rope_local_base_freq", "RoPE"},
    {"global_rope_theta", "RoPE"},
    {"rotary_pct", "RoPE"},
    {"rotary_dim", "RoPE"},
    {"rotary_emb_base", "RoPE"},
    {"rotary_emb_fraction", "RoPE"},
    {"rotary_embedding_base", "RoPE"},
    {"partial_rotary_factor", "RoPE"},
    {"rotary", "RoPE"},
    {"use_rotary", "RoPE"},
    {"alibi", "ALiBi"},
    {"relative_attention", "relative position bias"},
    {"has_relative_attention_bias", "relative position bias"},
    {"has_spatial_attention_bias", "relative position bias"},
    {"use_relative_position_bias", "relative position bias"},
    {"use_shared_relative_position_bias", "relative position bias"},
    {"use_rel_pos", "relative position bias"},
    {"attn_logit_softcapping", "softcap"},
    {"attn_logit_softcap", "softcap"},
    {"attention_logit_softcapping", "softcap"},
    {"attention_logit_cap", "softcap"},
    {"clip_qkv", "clipped query, key, value"},
    {"attention_window", "sliding window"},
    {"attention_window_size", "sliding window"},
    {"local_attention", "sliding window"},
    {"attention_chunk_size", "chunked attention"},
    {"use_qk_norm", "q_norm and k_norm"},
    {"qk_norm", "q_norm and k_norm"},
    {"qk_layernorm", "q_norm and k_norm"},
    {"use_qk_layernorm", "q_norm and k_norm"},
    {"attn_temperature_tuning", "temperature tuning"},
    {"use_logn_attn", "logarithmic scaling of queries"},
    {"kv_lora_rank", "latent attention"},
    {"attn_output_gate", "gated output"},
};

/* Families with RoPE whose older config.json does not say so; names that begin like this. */
static const char *const rope_families[] = {
    "llama",      "mistral",  "ministral",  "mixtral",  "qwen2",     "qwen3",     "gemma",
    "phi",        "gptj",     "gpt_neox",   "cohere",   "glm",       "chatglm",   "granite",
    "olmo",       "stablelm", "starcoder2", "codegen",  "persimmon", "fuyu",      "internlm",
    "exaone",     "baichuan", "deepseek",   "smollm",   "nemotron",  "roformer",  "modernbert",
    "nomic_bert", "gpt_oss",  "minicpm",    "helium",   "dbrx",      "chameleon", "pixtral",
    "hunyuan",    "bitnet",   "jetmoe",     "eurobert", "falcon",    "ernie4",    "seed_oss",
    "apertus",    "arcee",    "lfm2",       "rope",
};

/* Families that share names with BERT, BART or timm and compute something else. */
static const struct {
    const char *family, *what;
} other_families[] = {
    {"bloom", "ALiBi"},
    {"mpt", "ALiBi"},
    {"gpt_oss", "sinks"},
    {"deberta", "relative position bias"},
    {"mpnet", "relative position bias"},
    {"wavlm", "relative position bias"},
    {"swin", "relative position bias"},
    {"donut-swin", "relative position bias"},
    {"longformer", "sliding window"},
    {"led", "sliding window"},
    {"longt5", "sliding window"},
    {"reformer", "hashed attention"},
    {"nystromformer", "approximate attention"},
    {"performer", "approximate attention"},
    {"yoso", "approximate attention"},
    {"mra", "approximate attention"},
    {"xlnet", "relative position bias"},
};

static int begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static void refuse_family(const cJSON *part, struct model_facts *facts)
{
    const char *type = facts->model_type;
    int plain = strstr(type, "audio") || begins(type, "mllama_vision") ||
                cJSON_IsTrue(json_get(part, "alibi"));
    for (size_t i = 0; i < sizeof rope_families / sizeof rope_families[0] && !plain; i++) {
        if (begins(type, rope_families[i])) {
            refuse(facts, "RoPE", type);
        }
    }
    for (size_t i = 0; i < sizeof other_families / sizeof other_families[0]; i++) {
        const char *family = other_families[i].family;
        /* "led" must not catch another name that begins with it. */
        if (strlen(family) > 3 ? begins(type, family) : strcmp(type, family) == 0) {
            refuse(facts, other_families[i].what, type);
        }
    }
}

static void refuse_positions(const cJSON *part, const char *field, struct model_facts *facts)
{
    const cJSON *item = json_get(part, field);
    if (!cJSON_IsString(item)) {
        return;
    }
    const char *kind = item->valuestring;
    if (begins(kind, "relative")) {
        refuse(facts, "relative position bias", kind);
    } else if (begins(kind, "rotary") || begins(kind, "rope")) {
        refuse(facts, "RoPE", field);
    } else if (strcmp(kind, "alibi") == 0) {
        refuse(facts, "ALiBi", field);
    } else if (strcmp(kind, "absolute") != 0 && strcmp(kind, "learned") != 0 &&
               strcmp(kind, "sinusoidal") != 0 && strcmp(kind, "none") != 0) {
        refuse(facts, "position embedding", kind);
    }
}

/* The kind of RoPE's scaling, which a refusal should name beside RoPE itself. */
static void refuse_scaling(const cJSON *part, const char *field, struct model_facts *facts)
{
    const cJSON *item = json_get(part, field);
    const cJSON *kind = json_get(item, "rope_type");
    kind = kind ? kind : json_get(item, "type");
    if (cJSON_IsString(kind) && strcmp(kind->valuestring, "default") != 0) {
        refuse(facts, "scaling of positions", kind->valuestring);
    }
}

/* Kinds of attention told layer by layer: a list with a name for each. NULL: not told. */
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

static void refuse_windows(const cJSON *part, const char *module, struct model_facts *facts)
{
    const char *kind = kind_of_layer(part, "layer_types", module);
    int full = kind && strcmp(kind, "full_attention") == 0;
    if (kind && !full) {
        refuse(facts, strcmp(kind, "sliding_attention") == 0 ? "sliding window" : kind,
               "layer_types");
    }
    if (is_set(part, "sliding_window") && !full &&
        !cJSON_IsFalse(json_get(part, "use_sliding_window"))) {
        refuse(facts, "sliding window", "sliding_window");
    }
    const cJSON *kinds = json_get(part, "attention_type");
    if (cJSON_IsString(kinds) && strcmp(kinds->valuestring, "block_sparse") == 0) {
        refuse(facts, "block-sparse attention", "attention_type");
    }
    if (strcmp(facts->model_type, "gpt_neo") == 0) {
        const char *neo = kind_of_layer(part, "attention_layers", module);
        int local = neo ? strcmp(neo, "global") != 0 : module_index(module) % 2 == 1;
        if (local) {
            refuse(facts, "sliding window", "attention_layers, window_size");
        }
    }
}

void config_refuse(const cJSON *part, const char *module, struct model_facts *facts)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (is_set(part, fields[i].field)) {
            refuse(facts, fields[i].what, fields[i].field);
        }
    }
    refuse_scaling(part, "rope_parameters", facts);
    refuse_scaling(part, "rope_scaling", facts);
    refuse_family(part, facts);
    refuse_positions(part, "position_embedding_type", facts);
    refuse_positions(part, "position_embeddings_type", facts);
    refuse_windows(part, module, facts);
    if (is_set(part, "relative_attention_num_buckets") && !module_is_cross(module)) {
        refuse(facts, "relative position bias",
               "relative_attention_bias, relative_attention_num_buckets");
    }
}
