/* The reference: attention and the whole layer in double precision, plain loops, every option the
 * public API has. Allocates; not part of libheadway. */
#ifndef HEADWAY_REFERENCE_H
#define HEADWAY_REFERENCE_H

#include "headway/headway.h"

/* Where results go: dense arrays, each may be NULL. Rows beyond a query length are 0 (lse: -inf).
 * The bounds say how far an f32 result of Headway may be from the value beside it (headway.h), one
 * for each element; under an infinite one a value that is not finite stands for any that is not.
 * Packed sequences: B is 1, lengths are the packed ones. */
struct headway_reference_out {
    double *out;         /* attention (B, Lq, Hq, Dv), layer (B, Lq, Eo) */
    double *out_bound;   /* same shape */
    double *lse;         /* (B, Hq, Lq) */
    double *lse_bound;   /* same shape */
    double *probs;       /* (B, Hq, Lq, Lk): the attention weights; keys a layer appends count */
    double *probs_bound; /* same shape */
    double *mean;        /* (B, Lq, Lk): their mean over heads */
    double *mean_bound;  /* same shape */
};

/* Arguments as headway_attention() and headway_mha_forward() take them and have checked them, but for
 * caches, of which nothing is known here: key and value are then what headway_stored_values() says.
 * The layer's may be as a cache holds them, (B, Lk, Hkv, D) and (B, Lk, Hkv, Dv), both, F32: projected
 * and turned already, and exact. Returns 0, or -1 when memory ran out. */
int headway_reference_attention(const headway_attention_params *params, const headway_tensor *query,
                                const headway_tensor *key, const headway_tensor *value,
                                const struct headway_reference_out *results);
int headway_reference_mha(const headway_mha_config *config, const headway_mha_weights *weights,
                          const headway_attention_params *params, const headway_tensor *query,
                          const headway_tensor *key, const headway_tensor *value,
                          const struct headway_reference_out *results);

/* The values of a cache's sequence into key (L, Hkv, D) and value (L, Hkv, Dv), F32, as far as both
 * reach; what a rolling cache of so many pinned tokens has lost stays as it is. */
headway_status headway_stored_values(const headway_kv_cache *cache, int64_t slot, int64_t pinned,
                                     const headway_tensor *key, const headway_tensor *value);

#endif
