/* One attention layer out of a model's files. */
#ifndef SERVE_WEIGHTS_H
#define SERVE_WEIGHTS_H

#include <headway/headway.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_ERROR = 300 };

struct model {
    headway_mha *layer;
    headway_mha_sizes sizes; /* states in and out are query_width wide */
    void *packed;            /* the mapped file that the layer lives in, or NULL */
    size_t packed_size;
};

/* path: a safetensors file of F32 matrices under Llama's names or BERT's, config.json beside it.
 * layer: its name, "model.layers.0", or NULL for the first one in the file. positions: tokens of
 * a sequence, for RoPE. packed: NULL, or where packed weights are kept, as PACKED-ROW-KEY: mapped if
 * they are there and whole, else written. The key stands for the file as it is, the layer and its
 * settings. Returns 0, or -1 with a sentence in error. */
int model_open(const headway_engine *engine, const char *path, const char *layer, int64_t positions,
               const char *packed, struct model *model, char error[MODEL_ERROR]);
void model_close(struct model *model);

#endif
