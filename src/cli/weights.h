/* From a weights file (or a folder with one) to a layer: finds the attention module, maps the
 * tensor names of its family to headway_mha_weights, and takes what config.json says of it. */
#ifndef HEADWAY_WEIGHTS_H
#define HEADWAY_WEIGHTS_H

#include "cli/array.h"
#include "headway/headway.h"

/* What the command line says; 0 or NULL = nothing. It wins over config.json. */
struct layer_request {
    const char *path;  /* --weights */
    const char *layer; /* --layer */
    int64_t heads, kv_heads, head_size, value_head_size;
    const char *qkv_rows; /* --qkv-rows: "per-head", "per-kind" or NULL */
    /* Given on the command line: what the model says of them does not matter. */
    int has_scale, has_window, has_softcap, has_alibi, has_sink;
    const char *rope_style; /* --rope-style: "half", "interleaved" or NULL */
    double rope_theta, rope_scale;
    int64_t rope_size;
    int rope_table; /* the caller's tables take the place of theta and scaling */
    double norm_eps;
    int add_zero_attn;
};

/* A loaded layer. config and weights are ready for headway_mha_create() once rope.positions or its
 * tables are filled in; their tensors point into memory the struct owns, config.rope at `rope`. */
struct layer {
    headway_mha_config config;
    headway_mha_weights weights;
    headway_rope_config rope; /* config.rope is NULL where there is none */
    const char *family; /* for messages and info: "BERT", "torch.nn.MultiheadAttention", ... */
    char name[256];     /* the module's prefix in the file */
    int64_t query_width, key_width, value_width, out_width;
    enum array_type stored; /* type of the tensors in the file */
    int has_scale;          /* config.json gives a scale of its own */
    float scale;
    int64_t window_left;         /* -1: unbounded */
    float softcap;               /* 0: none */
    const float *slopes, *sinks; /* (heads), or NULL */
    int is_decoder;              /* config.json's family is causal: the caller prints a note */
    struct layer_memory *memory;
};

/* 0, or -1 with one sentence: what was wrong, what was given, what was expected. A layer whose
 * tensors or config.json ask for something this version does not compute is refused by that name:
 * "... not in this version". */
int layer_load(const struct layer_request *request, struct layer *layer, char *error);
void layer_free(struct layer *layer);

/* Prints the attention modules found in a file, one line each (info --weights). 0, or -1 with
 * error. */
int layer_list(const char *path, char *error);

#endif
