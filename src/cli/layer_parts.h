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
    /* NULL: there is none. */
    const struct tensor_info *query_norm, *key_norm, *sinks, *bias_k, *bias_v;
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
/* Refuses tensors in the module, or shared by its stack, that change what attention means. rotates:
 * frequencies of rotary embedding are no more than what is computed anyway. */
int parts_refuse_others(struct tensors *tensors, const struct modules *modules,
                        const struct module *module, const struct layer_parts *parts, int rotates,
                        char *error);
/* The optional tensors of the module: norms of query and key, sinks, added key and value. Their
 * shapes are checked against the sizes by parts_check_extras(). */
int parts_find_extras(struct tensors *tensors, const struct module *module,
                      struct layer_parts *parts, char *error);
int parts_check_extras(const struct layer_parts *parts, const struct layer_sizes *sizes,
                       char *error);
/* The layer's rotary embedding: the command line's word, then config.json's. 0, or -1 with error. */
int parts_rope(const struct layer_request *request, const struct model_facts *facts,
               struct layer *layer, char *error);
/* Memory of the layer's own: `count` floats, or NULL with error. */
float *layer_floats(struct layer *layer, int64_t count, char *error);
/* A copy of doubles that lasts as long as the layer. */
const double *layer_doubles(struct layer *layer, const double *values, int64_t count, char *error);
/* Completes the sizes from the shapes, and checks that all agree. */
int parts_sizes(const struct layer_parts *parts, struct layer_sizes *sizes,
                const struct module *module, char *error);
/* Reads the data and fills layer's weights, widths, stored and memory. */
int parts_views(struct tensors *tensors, const struct module *module,
                const struct layer_parts *parts, const struct layer_sizes *sizes,
                struct layer *layer, char *error);
/* The same for the optional tensors; one is added to the norms' weights where plus_one is set. */
int parts_view_extras(struct tensors *tensors, const struct layer_parts *parts,
                      const struct layer_sizes *sizes, int plus_one, struct layer *layer,
                      char *error);

#endif
