/* A module's tensors, their sizes and the views of them that headway_mha_create() takes. */
#ifndef HEADWAY_CLI_LAYER_PARTS_H
#define HEADWAY_CLI_LAYER_PARTS_H

#include "cli/families.h"
#include "cli/weights.h"

/* One linear map as the file holds it. */
struct part {
    const struct tensor_info *weight; /* NULL: there is none */
    const struct tensor_info *bias;   /* NULL: there is none */
    int transposed;                   /* stored (inputs, outputs) */
    int64_t rows, columns;            /* outputs, inputs */
};

struct layer_parts {
    struct part fused; /* query, key and value; or, with query, key and value alone */
    struct part query, key, value, out;
    const struct tensor_info *shared_bias; /* torch, separate: the three biases in one */
    const char *out_stem;
    int64_t separate_heads; /* FORM_HEADS: how many; query, key, value are those of the first */
    int per_head;           /* fused: rows are each head's query, key, value */
};

struct layer_sizes {
    int64_t heads, kv_heads, head_size, value_head_size; /* 0: not known */
};

/* Finds and checks shapes by themselves. 0, or -1 with error. */
int parts_find(struct tensors *tensors, const struct module *module, struct layer_parts *parts,
               char *error);
/* Refuses tensors in the module, or shared by its stack, that change what attention means. */
int parts_refuse_others(struct tensors *tensors, const struct modules *modules,
                        const struct module *module, const struct layer_parts *parts, char *error);
/* Completes the sizes from the shapes, and checks that all agree. */
int parts_sizes(const struct layer_parts *parts, struct layer_sizes *sizes,
                const struct module *module, char *error);
/* Reads the data and fills layer's weights, widths, stored and memory. */
int parts_views(struct tensors *tensors, const struct module *module,
                const struct layer_parts *parts, const struct layer_sizes *sizes,
                struct layer *layer, char *error);

#endif
