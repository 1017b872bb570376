/* The same computations through oneDNN's C API, to check against and to time beside. Everything is
 * bound to the caller's tensors at create; run computes into `out`. Not part of libheadway.
 * Builds without oneDNN too: then every create fails with the note "onednn: not in this build". */
#ifndef HEADWAY_ONEDNN_H
#define HEADWAY_ONEDNN_H

#include "headway/headway.h"

enum headway_onednn_path {
    HEADWAY_ONEDNN_PRIMITIVES, /* matmul, softmax, matmul; inner product for projections */
    HEADWAY_ONEDNN_GRAPH       /* Graph API SDPA, where the version has it */
};

struct headway_onednn;

/* "onednn 3.7.2: primitives (v3 API), graph", or "onednn absent: why". Static text. */
const char *headway_onednn_about(void);

/* NULL when oneDNN can't do it: note says "onednn: cannot express ..." or what failed. On success
 * note names the path and the implementations oneDNN chose. params may be NULL. */
struct headway_onednn *headway_onednn_attention(enum headway_onednn_path path,
                                                const headway_attention_params *params,
                                                const headway_tensor *query,
                                                const headway_tensor *key,
                                                const headway_tensor *value,
                                                const headway_tensor *out, char *note, size_t size);
struct headway_onednn *
headway_onednn_mha(enum headway_onednn_path path, const headway_mha_config *config,
                   const headway_mha_weights *weights, const headway_attention_params *params,
                   const headway_tensor *query, const headway_tensor *key,
                   const headway_tensor *value, const headway_tensor *out, char *note, size_t size);

/* 0, or -1 when oneDNN reported a failure. */
int headway_onednn_run(struct headway_onednn *prepared);
void headway_onednn_free(struct headway_onednn *prepared);

#endif
