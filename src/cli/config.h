/* What a model's config.json says about one attention module. */
#ifndef HEADWAY_CLI_CONFIG_H
#define HEADWAY_CLI_CONFIG_H

#include <stdint.h>

enum qkv_rows {
    QKV_ROWS_UNKNOWN,
    QKV_ROWS_PER_KIND, /* all of query, all of key, all of value */
    QKV_ROWS_PER_HEAD  /* each head's query, key, value */
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
    char refused[400]; /* what this version does not compute, comma separated; "" */
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
