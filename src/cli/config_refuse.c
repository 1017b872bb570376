#include "cli/config_parts.h"

#include <stdio.h>
#include <string.h>

void config_refuse_text(char *text, size_t size, const char *what, const char *field)
{
    size_t used = strlen(text);
    if (strstr(text, what)) {
        return;
    }
    snprintf(text + used, size - used, "%s%s (%s)", used ? ", " : "", what, field);
}

static void refuse(struct model_facts *facts, const char *what, const char *field)
{
    config_refuse_text(facts->refused, sizeof facts->refused, what, field);
}

int config_has(const cJSON *part, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(part, key) != NULL;
}

int config_is_set(const cJSON *part, const char *key)
{
    const cJSON *item = json_get(part, key);
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
    {"relative_attention", "relative position bias"},
    {"has_relative_attention_bias", "relative position bias"},
    {"has_spatial_attention_bias", "relative position bias"},
    {"use_relative_position_bias", "relative position bias"},
    {"use_shared_relative_position_bias", "relative position bias"},
    {"use_rel_pos", "relative position bias"},
    {"clip_qkv", "clipped query, key, value"},
    {"attention_window", "sliding window"},
    {"attention_window_size", "sliding window"},
    {"local_attention", "sliding window"},
    {"attention_chunk_size", "chunked attention"},
    {"qk_ln", "q_norm and k_norm"},
    {"qk_layernorm", "q_norm and k_norm"},
    {"use_qk_layernorm", "q_norm and k_norm"},
    {"attn_temperature_tuning", "temperature tuning"},
    {"use_logn_attn", "logarithmic scaling of queries"},
    {"kv_lora_rank", "latent attention"},
    {"attn_output_gate", "gated output"},
    {"rotary_value", "RoPE of values"},
    {"global_rope_theta", "RoPE by kinds of layers"},
    {"key_multiplier", "multiplied keys"},
};

/* Families that share names with BERT, BART or timm and compute something else. */
static const struct {
    const char *family, *what;
} other_families[] = {
    {"codegen", "an order of rows of its own"},
    {"gpt_bigcode", "an order of rows of its own"},
    {"llama4", "chunked attention"},
    {"gemma3n", "normed values"},
    {"qwen3_next", "gated output"},
    {"exaone4", "layers with and without RoPE"},
    {"pixtral", "RoPE in two dimensions"},
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

static void refuse_family(struct model_facts *facts)
{
    const char *type = facts->model_type;
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
    } else if (strcmp(kind, "alibi") == 0) {
        refuse(facts, "ALiBi", field);
    } else if (strcmp(kind, "absolute") != 0 && strcmp(kind, "learned") != 0 &&
               strcmp(kind, "sinusoidal") != 0 && strcmp(kind, "none") != 0 &&
               !begins(kind, "rotary") && !begins(kind, "rope")) {
        refuse(facts, "position embedding", kind);
    }
}

void config_refuse(const cJSON *part, const char *module, struct model_facts *facts)
{
    const cJSON *attention = json_get(part, "attn_config");
    const cJSON *kinds = json_get(part, "attention_type");
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (config_is_set(part, fields[i].field) || config_is_set(attention, fields[i].field)) {
            refuse(facts, fields[i].what, fields[i].field);
        }
    }
    if (facts->norm == QK_NORM_UNKNOWN &&
        (config_is_set(part, "use_qk_norm") || config_is_set(part, "qk_norm"))) {
        refuse(facts, "q_norm and k_norm", facts->model_type);
    }
    refuse_family(facts);
    refuse_positions(part, "position_embedding_type", facts);
    refuse_positions(part, "position_embeddings_type", facts);
    if (cJSON_IsString(kinds) && strcmp(kinds->valuestring, "block_sparse") == 0) {
        refuse(facts, "block-sparse attention", "attention_type");
    }
    if (config_is_set(part, "relative_attention_num_buckets") && !module_is_cross(module)) {
        refuse(facts, "relative position bias",
               "relative_attention_bias, relative_attention_num_buckets");
    }
}
