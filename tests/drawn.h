/* Attention problems drawn at random over every option of the API: a line of text that says one,
 * its simpler neighbours, its operands as dense arrays that a test may change, and a call that lays
 * them out in guarded memory. */
#ifndef HEADWAY_DRAWN_H
#define HEADWAY_DRAWN_H

#include <stddef.h>
#include <stdint.h>

#include "cached.h"

/* ---- what is drawn: numbers alone --------------------------------------------------------------
 */

/* One number each, named as in drawn.c's table. All data follows from these and the seed. */
enum drawn_field {
    DRAW_BATCH,
    DRAW_QUERIES,
    DRAW_KEYS,
    DRAW_KV_HEADS,
    DRAW_GROUP,
    DRAW_SIZE,
    DRAW_VALUE_SIZE,
    DRAW_CAUSAL,  /* headway_causal */
    DRAW_OFFSETS, /* 1: row offsets with HEADWAY_CAUSAL_NONE, 2: far away, with OFFSETS too */
    DRAW_LEFT,    /* the window; -1: unbounded */
    DRAW_RIGHT,
    DRAW_FIRST, /* keys that lie in every window */
    DRAW_QUERY_LENGTHS,
    DRAW_KEY_LENGTHS,
    DRAW_PACKED,     /* sequences; queries and keys are then the packed lengths */
    DRAW_KEY_STARTS, /* 1: the keys have starts of their own */
    DRAW_INTERVAL,   /* 1: (Lq, 2), 2: (1, Lq, 2), 3: (B, Lq, 2) */
    DRAW_MASK,       /* 1: bool, 2: f32, 3: f16, 4: bf16 */
    DRAW_MASK_RANK,  /* 1, 2 or 4 */
    DRAW_MASK_FULL,  /* bit a: axis a of (B, Hq, Lq, Lk) is not broadcast */
    DRAW_SCALE,      /* 1: 0, 2: negative, 3: any, 4: large */
    DRAW_SOFTCAP,    /* 1..5: 0.5, 5, 30, 50, 1e4 */
    DRAW_ALIBI,      /* 1: the usual slopes, 2: any, negative ones and 0 too */
    DRAW_SINKS,      /* 1: normal, 2: some -inf, 3: large */
    DRAW_LSE,
    DRAW_WEIGHTS, /* 1: of each head, 2: their mean */
    DRAW_POISON,  /* keys and values that no row sees: 1: NaN, 2: infinite */
    DRAW_VALUES,  /* 1: large scores, 2: tiny, 3: all equal, 4: NaN here and there, 5: infinities,
                       6: large values */
    DRAW_LAYOUT,  /* 1: BHLD, 2: packed QKV, 3: gaps, 4: backwards */
    DRAW_SHARED, /* stride 0 in query, key, value along 1: batch, 2: heads, 4: rows; sum of these */
    DRAW_LEADING, /* 1: no batch axis, 2: two batch axes, 3: those of mask, lse, ... too */
    DRAW_THREADS, /* 1..4 */
    DRAW_AT_END,  /* operands end, not begin, at an unreadable page */
    /* Keys and values in a cache; all plain where it is 0. */
    DRAW_CACHE,       /* 1: contiguous, 2 .. 10: pages of 1, 2, 4 .. 256 tokens */
    DRAW_KEY_STORAGE, /* 1: f16, 2: bf16, 3: int8 */
    DRAW_VALUE_STORAGE,
    DRAW_CHUNK,   /* tokens at a time: 1: 1, 2: 7, 3: 64 */
    DRAW_SLOTS,   /* 1: backwards, 2: keys beyond the lengths are there too; sum of these */
    DRAW_PREFIX,  /* forked: 1: not said, 2: said, 3: more is said */
    DRAW_ROLLING, /* no more is kept than rows see */
    /* The layer; all plain where it is 0. */
    DRAW_LAYER,
    DRAW_WIDTH, /* of the tokens of query, key, value, and of the output */
    DRAW_KEY_WIDTH,
    DRAW_VALUE_WIDTH,
    DRAW_OUT_WIDTH,
    DRAW_SELF,      /* 0: three inputs, 1: value is key, 2: all are query */
    DRAW_STORAGE,   /* of the weights; 1: transposed, 2: fused */
    DRAW_BIASES,    /* bit n: query, key, value, out has one */
    DRAW_ROPE,      /* headway_rope_style */
    DRAW_ROPE_SIZE, /* pairs that turn; 0: all */
    DRAW_SCALING,   /* headway_rope_scaling; 6: tables of one's own */
    DRAW_NORM,      /* of projected heads */
    DRAW_MORE,      /* bias_k and bias_v */
    DRAW_ZERO,      /* add_zero_attn */
    DRAW_POSITIONS, /* 1: the queries' (Lq), 2: both (1, L), 3: both (B, L) */
    DRAW_PAST,      /* tokens that are in the cache before the call: 1: half, 2: all */
    DRAW_FIELDS
};

struct drawn {
    uint64_t seed;
    int64_t f[DRAW_FIELDS];
};

struct drawn drawn_plain(uint64_t seed);
/* A problem of at most `cost` multiply-adds, of the core or of the layer. */
struct drawn drawn_draw(uint64_t seed, double cost, int layer);
/* Drops what does not go together, the later field of the table first. */
void drawn_settle(struct drawn *d);
/* "lq=33 lk=65 mask=2": the fields that aren't plain; "plain" when all are. Until the next call. */
const char *drawn_text(const struct drawn *d);
/* The fields named in the text, all others plain; 0 when it isn't such a text. */
int drawn_parse(struct drawn *d, const char *text);
/* Every value of the options after the shape, each alone, from a small problem on: the n-th, or 0
 * when there are no more. */
int drawn_each(int n, struct drawn *d);
/* The n-th simpler problem, one field nearer to plain; 0 when there are no more. */
int drawn_simpler(const struct drawn *d, int n, struct drawn *simpler);
/* The same in the words of `headway check`, as far as it has words for it. */
const char *drawn_command(const struct drawn *d);

/* ---- its operands ------------------------------------------------------------------------------
 */

enum { MAX_OWNED = 96 };

/* What a layer is made of, and its tokens. Projections are query, key, value and out. */
struct drawn_layer {
    int64_t width[4];
    int self, storage, zero;
    float *tokens[3];           /* dense (B, L, width); NULL: as headway_mha_forward() has it */
    float *weight[4], *bias[4]; /* (outputs, inputs), (outputs) or NULL */
    float *norm[2], *more[2];   /* (D); (Hkv, D) and (Hkv, Dv); or NULL */
    headway_rope_config rope;   /* cos and sin are here: */
    float *cos, *sin;           /* (positions, rotated / 2) or NULL */
    int32_t *positions[2];      /* of queries and keys, or NULL */
    int positions_rank;
    int64_t positions_batch;
};

/* The cache that a call goes through. */
struct drawn_cache {
    struct way way;
    int prefix, past; /* as DRAW_PREFIX, DRAW_PAST */
    int64_t common;   /* first tokens that are the same in all sequences */
    int lossy;
    int detour; /* 1: wrong tokens come and are truncated, 2: tokens beyond the lengths are; the core */
    float *stored[2]; /* dense, as key and value; what the last call's cache held */
};

/* Dense arrays. When packed, B = batch is 1 and queries, keys are the packed lengths. */
struct inputs {
    int64_t batch, queries, keys, heads, kv_heads, size, value_size;
    float *query, *key, *value; /* (B, L, H, size) */
    int has_scale;
    float scale, softcap;
    headway_causal causal;
    int64_t window_left, window_right, window_first, sequences;
    int64_t *row_offsets, *query_lengths, *key_lengths, *query_starts, *key_starts; /* or NULL */
    int32_t *interval;                                                              /* or NULL */
    int interval_rank;
    int64_t interval_batch;
    headway_dtype mask_dtype;
    int mask_rank; /* 0: none */
    int64_t mask_shape[4];
    float *mask;           /* numbers, or 0 and not 0 */
    float *slopes, *sinks; /* or NULL */
    int lse, weights;      /* asked for: as DRAW_LSE, DRAW_WEIGHTS */
    int layout, shared, leading, at_end;
    int flags_free;            /* the call must raise none of invalid, division by zero, overflow */
    struct drawn_layer *layer; /* NULL: the core alone; query, key and value are NULL with one */
    struct drawn_cache *cache; /* NULL: none */
    uint64_t random;
    void *owned[MAX_OWNED];
    int owned_count;
};

struct inputs *inputs_make(const struct drawn *d);
void inputs_free(struct inputs *in);
/* Zeroed memory that goes with the inputs. */
void *inputs_room(struct inputs *in, int64_t count, size_t size);
/* A mask of that type and rank, whose extents are 1 where bit a of `full` is clear; all 0. */
void inputs_mask_room(struct inputs *in, headway_dtype dtype, int rank, unsigned full);
/* Where the mask's element of (b, h, i, j) is. */
int64_t inputs_mask_index(const struct inputs *in, int64_t b, int64_t h, int64_t i, int64_t j);

/* The batches that lengths and offsets count: sequences when packed. */
int64_t inputs_batches(const struct inputs *in);
int64_t inputs_query_length(const struct inputs *in, int64_t b);
int64_t inputs_key_length(const struct inputs *in, int64_t b);
/* The longest of them: extents of a mask. */
int64_t inputs_mask_queries(const struct inputs *in);
int64_t inputs_mask_keys(const struct inputs *in);
/* Where row i of batch b stands among the keys, at most at the ends of int64_t. */
int64_t inputs_place(const struct inputs *in, int64_t b, int64_t i);
/* May row i see key j? All options but scores that overflow. */
int inputs_sees(const struct inputs *in, int64_t b, int64_t h, int64_t i, int64_t j);
/* Row of key j of batch b in the dense arrays; lines of them. */
int64_t inputs_key_row(const struct inputs *in, int64_t b, int64_t j);
float *inputs_query(const struct inputs *in, int64_t b, int64_t i, int64_t h);
float *inputs_key(const struct inputs *in, int64_t b, int64_t j, int64_t g);
float *inputs_value(const struct inputs *in, int64_t b, int64_t j, int64_t g);

/* Fills in->layer with what is drawn (drawn_layer.c). */
void drawn_layer_make(struct inputs *in, const struct drawn *d);
/* Keys that the layer appends. */
int64_t inputs_appended(const struct inputs *in);
/* The layer's configuration, and weights as dense views of its arrays. */
struct layer_views {
    headway_rope_config rope;
    headway_mha_config config;
    headway_mha_weights weights;
    headway_tensor weight[4], bias[4], norm[2], more[2], tables[2];
};
void inputs_layer_views(const struct inputs *in, struct layer_views *v);
/* The layer of that engine; NULL is a failure of the case. */
headway_mha *inputs_layer(const headway_engine *engine, const struct inputs *in);

/* Fills in->cache with what is drawn, after all else (drawn_cache.c). */
void drawn_cache_make(struct inputs *in, const struct drawn *d);

/* One call through in->cache: what is there before it, and what the call itself appends. */
struct cached_call {
    struct stored store;
    int64_t most; /* tokens that may be appended at a time */
    headway_tensor key, value, key_positions;
    const headway_tensor *key_given, *value_given; /* of the call; NULL of the core */
    void *memory[16];
    int pieces;
};
/* params are the call's without a cache, and are completed. */
void cached_call_begin(struct cached_call *c, const headway_engine *engine,
                       const headway_mha *layer, const struct inputs *in,
                       headway_attention_params *params);
/* Fills in->cache->stored and frees. */
void cached_call_end(struct cached_call *c, const struct inputs *in);

/* From now on without the cache, on the values that it held. A layer's rounded ones only the reference
 * takes, then 0 is returned. */
int inputs_uncache(struct inputs *in);

/* ---- the call ----------------------------------------------------------------------------------
 */

/* Dense; lse and weights NULL when they aren't asked for. Rows beyond a query length: 0 and -inf. */
struct results {
    int64_t outs, lses, weight_count;
    float *out;     /* (B, Lq, Hq, Dv), of a layer (B, Lq, Eo) */
    float *lse;     /* (B, Hq, Lq) */
    float *weights; /* (B, Hq, Lq, Lk) or (B, Lq, Lk) */
};

/* Calls headway_attention() in guarded memory, as attend() of attend.h does; with a layer, makes it
 * and calls headway_mha_forward(). */
struct results inputs_attend(const headway_engine *engine, const struct inputs *in);
float *results_out(const struct inputs *in, const struct results *r, int64_t b, int64_t i,
                   int64_t h);
void results_free(struct results *r);
/* Same bits in all. */
void results_bits(const struct results *got, const struct results *expected, const char *what);

/* Largest errors in units of the bound. */
struct errors {
    double out, lse, weights;
};
/* The double reference's answer, on stored values where the last call's cache rounded; owned by the
 * inputs. */
struct reference {
    double *out, *out_bound, *lse, *lse_bound, *weights, *weights_bound;
};
struct reference inputs_reference(struct inputs *in);
/* Fails the case where a result is further from the reference than its bound. */
struct errors results_compare(const struct results *got, const struct reference *expected);

#endif
