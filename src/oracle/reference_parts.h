/* What the files of the reference share, and onednn_plan.c with them. */
#ifndef HEADWAY_REFERENCE_PARTS_H
#define HEADWAY_REFERENCE_PARTS_H

#include "oracle/reference.h"

#define ROUNDOFF 0x1p-24   /* u of headway.h */
#define SUBNORMAL 0x1p-150 /* half the distance of subnormal floats */

/* Dense (B, L, H, D); error NULL: the elements are exact. */
struct operand {
    double *data;
    double *error;
    int64_t length, heads, size;
};

struct problem {
    int64_t batch, query_length, key_length, query_heads, kv_heads, size, value_size;
    /* Rows key_length .. key_length + appended - 1 of the operands key and value, which every query
     * row attends: neither mask, causality, window, interval, lengths nor ALiBi apply to them. */
    int64_t appended;
    int stored; /* key and value are as a cache holds them */
    int64_t batch_shape[HEADWAY_MAX_RANK]; /* query's batch axes where it has not exactly one */
    double scale;
    const headway_attention_params *params;
    struct operand query, key, value;
};

/* Where batch or packed sequence b lies in the operands. Everywhere below b is counted so, and i
 * and j count from the sequence's start. */
struct sequence {
    int64_t batch, first_query, first_key;
    int64_t queries, keys; /* without regard to lengths */
};

/* NULL: all defaults. */
const headway_attention_params *reference_params(const headway_attention_params *params);
/* a * b * c * d zeros, or NULL. */
double *reference_doubles(int64_t a, int64_t b, int64_t c, int64_t d);
/* An element of an F32, F16 or BF16 tensor. */
double reference_at(const headway_tensor *t, int64_t offset);
/* Dense doubles of a strided tensor of the same dtypes, or NULL. */
double *reference_gather(const headway_tensor *t);
/* The operands' shapes and the scale, from the sizes and params. */
void reference_finish(struct problem *p);
void reference_free(struct problem *p);
int64_t reference_sequences(const struct problem *p);
struct sequence reference_sequence(const struct problem *p, int64_t b);
int64_t reference_query_length(const struct problem *p, int64_t b);
/* Whether lengths, causality, window and interval leave key j to row i. */
int reference_allows(const struct problem *p, int64_t b, int64_t i, int64_t j);
/* j - (i + offset) */
double reference_distance(const struct problem *p, int64_t b, int64_t i, int64_t j);
/* Offset of batch b in a tensor whose last `inner` axes are not batch axes: there is none, one for
 * all of B, or one for each of query's, and each may be broadcast. */
int64_t reference_batch_offset(const struct problem *p, const headway_tensor *t, int inner,
                               int64_t b);
/* What the mask adds to a score, -inf where it excludes the key; 0 without a mask. */
double reference_mask(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j);
/* The core on a finished problem whose operands are filled: 0, or -1 without memory. */
int reference_attend(const struct problem *p, const struct headway_reference_out *results);

/* A weight and its bias, which may be NULL: element (k, c) at data[k * outputs + c]. */
struct matrix {
    double *data;
    double *bias;
    int64_t inputs, outputs;
};

/* Numbers of heads and their sizes, as the configuration or the weights' shapes tell them. */
void reference_size_heads(struct problem *p, const headway_mha_config *config,
                          const headway_mha_weights *weights);
/* Query, key, value, out; heads are sized. 0, or -1 without memory; to be freed either way. */
int reference_load_weights(struct matrix m[4], const struct problem *p,
                           const headway_mha_config *config, const headway_mha_weights *w);
void reference_free_weights(struct matrix m[4]);
/* RMS norm and rotary embedding of the live tokens of query and key, in place, errors included; self:
 * keys without positions have the queries'. 0, or -1 without memory. */
int reference_turn(const struct problem *p, const headway_mha_config *config,
                   const headway_mha_weights *w, int self);

#endif
