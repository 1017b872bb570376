/* What a model's config.json says about one attention module. */
#ifndef HEADWAY_CLI_CONFIG_H
#define HEADWAY_CLI_CONFIG_H

#include "headway/headway.h"

#include <stdint.h>

enum qkv_rows {
    QKV_ROWS_UNKNOWN,
    QKV_ROWS_PER_KIND, /* all of query, all of key, all of value */
    QKV_ROWS_PER_HEAD  /* each head's query, key, value */
};

/* What the weights called q_norm and k_norm mean. */
enum qk_norm {
    QK_NORM_UNKNOWN,
    QK_NORM_RMS,         /* the library's */
    QK_NORM_RMS_PLUS_ONE /* the same, of weight + 1 */
};

#define ROPE_FACTORS 1024 /* most pairs of channels whose factors are read */

/* Rotary embedding: `config` lacks rotary_size and positions, which the layer and the run give, and
 * its factors are arrays of the struct that holds it. */
struct rope_facts {
    int used;
    headway_rope_config config; /* style NONE: the family's is not known */
    int64_t size;               /* rotated channels; 0: fraction of the head's */
    double fraction;
    int64_t short_count, long_count; /* of the factors given */
    double short_factors[ROPE_FACTORS], long_factors[ROPE_FACTORS];
};

struct model_facts {
    int present;                                         /* there is a config.json */
    char model_type[64];                                 /* "" when it is not said */
    int64_t heads, kv_heads, head_size, value_head_size; /* 0: not said */
    int has_scale;
    double scale;         /* of the model's own */
    double scale_divisor; /* the default scale is divided by it; 1 when nothing is said */
    int is_decoder;       /* the module's self-attention is causal in its family */
    enum qkv_rows rows;
    struct rope_facts rope;
    int64_t window; /* keys a row keeps, its own included; 0: all */
    double softcap; /* 0: none */
    int alibi;
    double alibi_bias_max; /* 8 in the paper */
    enum qk_norm norm;
    int norm_needed, sinks_needed; /* a layer without these tensors is not the family's */
    double norm_eps;               /* 0: not said */
    /* What this version does not compute, comma separated; "". Those after the first are for
     * nothing where the command line says what is meant. */
    char refused[400], rope_refused[200], window_refused[200], alibi_refused[200];
};

/* Reads folder/config.json for the module of that name (its path in the weights file), taking
 * nested parts (text, vision, encoder, decoder) by the module's name. No file: facts->present is 0.
 * 0, or -1 with error. */
int config_read(const char *folder, const char *module, struct model_facts *facts, char *error);

/* Attention from one sequence to another, by the last component of the module's name. */
int module_is_cross(const char *module);
/* module's components separated by dots: whether one of them is `component`. */
int module_has(const char *module, const char *component);
/* The last component that is a number, or 0: the layer's place in its stack. */
int64_t module_index(const char *module);

#endif
