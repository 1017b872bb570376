/* What the parts of check_mha share: layers as dense arrays, stored in every way the API can see
 * them. */
#ifndef HEADWAY_CHECK_MHA_H
#define HEADWAY_CHECK_MHA_H

#include "attend.h"

enum { QUERY, KEY, VALUE, OUT, PROJECTIONS };

/* Widths of the inputs of query, key and value, and of the output. */
struct widths {
    int64_t in[3], out;
};

struct layer {
    struct problem *options; /* shape, causality, lengths and mask; its tensors are not used */
    struct widths widths;
    float *weight[PROJECTIONS]; /* dense (outputs, inputs), owned */
    float *bias[PROJECTIONS];   /* NULL: none */
    float *tokens[3];           /* dense (B, L, width); key NULL: query's, value NULL: key's */
    headway_rope_config rope;   /* what it points to is the test's */
    float *norm[2];             /* QUERY, KEY: (D) or NULL; owned, as the following */
    float norm_eps;
    float *more[3];          /* KEY: bias_k (Hkv, D), VALUE: bias_v (Hkv, Dv), or NULL */
    int zero;                /* add_zero_attn */
    int32_t *positions[2];   /* QUERY, KEY: (positions_batch, L), or NULL */
    int64_t positions_batch; /* B, 1, or 0: (L) */
};

/* Normal weights and tokens, all biases. widths NULL: D * Hq for all. */
struct layer *layer_make(const struct shape *shape, const struct widths *widths, uint64_t seed);
void layer_free(struct layer *l);
void layer_drop_bias(struct layer *l, int projection);
/* Self-attention, or one tensor of keys and values; the widths must be equal. */
void layer_share(struct layer *l, int key_is_query);
int64_t outputs_of(const struct layer *l, int projection);
int64_t inputs_of(const struct layer *l, int projection);
float *token(const struct layer *l, int projection, int64_t b, int64_t i);
/* Norms of query and key, with weights about 1. */
void layer_norms(struct layer *l);
/* A key and value to append, normal numbers. */
void layer_more(struct layer *l);
/* Positions of queries, or of keys, 0 .. most - 1; those beyond lengths are none that a table has. */
void layer_positions(struct layer *l, int projection, int64_t batch, int64_t most);
/* Query and key lengths as so many packed sequences; the batch is 1. Empty ones are among them. */
void layer_pack(struct layer *l, int64_t sequences);
/* Keys in a line of weights. */
int64_t layer_keys(const struct layer *l);
/* Makes key tokens beyond the key lengths, and query tokens beyond theirs, NaN. */
void layer_lengths(struct layer *l, int query, int key);

enum storage {
    STORED_PLAIN,            /* (outputs, inputs) */
    STORED_TRANSPOSED,       /* (inputs, outputs) */
    STORED_HEADS,            /* (heads, size, inputs) with gaps; biases (heads, size) */
    STORED_HEADS_TRANSPOSED, /* (inputs, heads, size) */
    STORED_BACKWARDS,        /* negative strides */
    STORED_FUSED,            /* needs equal inputs */
    STORED_FUSED_TRANSPOSED,
    STORED_INTERLEAVED, /* query, key, value of a head next to each other; needs Hq = Hkv too */
    STORAGES
};
/* NULL when the layer can't be stored like that. All memory of the weights is gone when it returns.
 */
headway_mha *layer_create(const headway_engine *engine, const struct layer *l,
                          enum storage storage);

/* headway_mha_forward() as attend() does it; answer.out is (B, Lq, Eo), and a line of answer.weights
 * is layer_keys() long. */
struct answer forward(const headway_engine *engine, const headway_mha *mha, const struct layer *l,
                      enum layout layout, int at_end);
/* Engine's layer in plain storage, made, used once and destroyed. */
struct answer forward_once(const headway_engine *engine, const struct layer *l);
/* Of any call of the layer. */
struct headway_reference_out;
void layer_reference(const struct layer *l, const headway_attention_params *params,
                     const headway_tensor *query, const headway_tensor *key,
                     const headway_tensor *value, const struct headway_reference_out *results);
struct expected expect_layer(const struct layer *l);
/* Under the reference's bounds; returns the largest error in units of the bound. */
double compare_layer(const struct layer *l, const struct answer *a, const struct expected *e);
/* Dense views for callers that bring their own memory. */
headway_tensor tokens_tensor(const struct layer *l, int projection);

struct subject {
    const char *isa;
    headway_engine *engines[4]; /* 1, 2, 3, 7 threads */
};
extern int quick; /* a sample, for emulators and sanitizers */
void check_layer_cases(const struct subject *s);
/* Rotary embedding, norms and appended keys: what they must be equal to. */
void check_layer_extras(const struct subject *s);
/* With a cache. */
void check_layer_cache(const struct subject *s, const headway_engine *scalar);
/* Packed weights saved and mapped. */
void check_layer_packed(const struct subject *s);
/* The tables of rotary embedding, which know no row. */
void check_tables(void);

#endif
