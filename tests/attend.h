/* Attention problems for the tests: what is asked for as dense arrays, and a call that lays it out
 * in guarded memory, poisons what must not be read, and looks at everything the call may not have
 * touched. */
#ifndef HEADWAY_ATTEND_TESTS_H
#define HEADWAY_ATTEND_TESTS_H

#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "headway/headway.h"

enum { MAX_BATCH = 32 };

struct shape {
    int64_t batch, queries, keys, heads, kv_heads, size, value_size;
};

enum mask_kind { MASK_NONE, MASK_BOOL, MASK_F32, MASK_F16, MASK_BF16 };
enum weights_kind { WEIGHTS_NONE, WEIGHTS_HEADS, WEIGHTS_MEAN };

/* Axes of which all entries are equal, to be laid out with stride 0. */
enum { SHARED_BATCH = 1, SHARED_HEADS = 2, SHARED_ROWS = 4 };

struct problem {
    struct shape shape;
    float *query, *key, *value; /* dense (B, L, H, size), owned */
    headway_causal causal;
    int has_query_lengths, has_key_lengths, has_scale;
    int has_offsets; /* without causality; with HEADWAY_CAUSAL_OFFSETS they always count */
    int64_t offsets[MAX_BATCH], query_lengths[MAX_BATCH], key_lengths[MAX_BATCH];
    float scale;
    int64_t window_left, window_right; /* -1: unbounded */
    int64_t window_first;              /* keys in every window */
    int64_t interval_batch;            /* B, 1, or 0: (Lq, 2) */
    int32_t *interval;                 /* dense, or NULL; owned, as the next two */
    float *slopes, *sinks;             /* (Hq), or NULL */
    float softcap;
    enum weights_kind weights; /* are asked for */
    int packed;                /* lengths are to be given as packed sequences */
    int64_t sequences;         /* problem_packed()'s: how many */
    int64_t query_starts[MAX_BATCH + 1], key_starts[MAX_BATCH + 1];
    enum mask_kind mask_kind;
    int mask_rank;
    int64_t mask_shape[4];
    void *mask; /* dense, unsigned char, float or uint16_t, owned */
    unsigned shared;
    int flags_free; /* the call must raise none of invalid, division by zero, overflow */
    uint64_t random;
};

/* Normal inputs, no options. */
struct problem *problem_make(const struct shape *shape, uint64_t seed);
struct problem *problem_copy(const struct problem *p);
void problem_free(struct problem *p);
/* Makes the axes of query, key and value equal along `shared`. */
void problem_share(struct problem *p, unsigned shared);
/* OFFSETS draws offsets from below -Lq to above Lk. */
void problem_causal(struct problem *p, headway_causal causal);
/* Random lengths, 0 and the full length among them; keys and values beyond are NaN. */
void problem_lengths(struct problem *p, int query, int key);
/* Packed sequences of random lengths. Call it before what depends on lengths. */
void problem_pack(struct problem *p);
/* The same as one batch of all rows, which is how a packed problem is called. */
struct problem *problem_packed(const struct problem *p);
/* Random intervals for all batches (B or 1 extent) or one without a batch axis (0): empty, reversed
 * and whole ones among them, ends below 0 and above Lk too. */
void problem_interval(struct problem *p, int64_t batch);
/* Random slopes, sinks. One in four sinks is -inf. */
void problem_slopes(struct problem *p);
void problem_sinks(struct problem *p);
/* Rank 1, 2 or 4; bit a of `full` (0: batch .. 3: keys) says that axis a is not broadcast. About a
 * quarter of the entries excludes; float masks add normal numbers elsewhere, and some lines exclude
 * all. */
void problem_mask(struct problem *p, enum mask_kind kind, int rank, unsigned full);
/* A mask of that kind and of full extents, all true or 0, to be filled by the caller. */
void problem_mask_full(struct problem *p, enum mask_kind kind);
/* The mask as its whole self, (B, Hq, Lq, Lk). */
void problem_mask_expand(struct problem *p);

/* The mask as a dense tensor; the options, with `mask` where there is one. LSE is not asked for. */
headway_tensor mask_tensor(const struct problem *p);
headway_attention_params problem_params(const struct problem *p, const headway_tensor *mask);

int64_t query_length(const struct problem *p, int64_t b);
int64_t key_length(const struct problem *p, int64_t b);
int64_t causal_offset(const struct problem *p, int64_t b);
/* Does row i see key j? By lengths, causality, window, interval and mask. */
int problem_sees(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j);
/* Element of a float mask. */
float mask_value(const struct problem *p, int64_t index);
/* Bytes of an element, and offset into mask. */
size_t mask_size(const struct problem *p);
int64_t mask_index(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j);
/* Lines of the dense arrays. */
float *query_line(const struct problem *p, int64_t b, int64_t i, int64_t h);
float *key_line(const struct problem *p, int64_t b, int64_t j, int64_t g);
float *value_line(const struct problem *p, int64_t b, int64_t j, int64_t g);
/* Multiply-adds of the problem. */
double problem_cost(const struct problem *p);
/* "2x33x65 heads 4/2 size 32/40 causal 3 mask 2 (4, 2, 35, 1)": until the next call. */
const char *problem_name(const struct problem *p);

/* Dense results. Rows beyond a query length: 0 and -inf. */
struct answer {
    int64_t outs, lses, all_weights;
    float *out;     /* (B, Lq, Hq, Dv) */
    float *lse;     /* (B, Hq, Lq) */
    float *weights; /* (B, Hq, Lq, Lk), (B, Lq, Lk) or none */
};
struct answer answer_make(const struct problem *p, int64_t outs);
void answer_free(struct answer *a);
float *out_line(const struct problem *p, const struct answer *a, int64_t b, int64_t i, int64_t h);
float *lse_at(const struct problem *p, const struct answer *a, int64_t b, int64_t i, int64_t h);
float *weights_line(const struct problem *p, const struct answer *a, int64_t b, int64_t i,
                    int64_t h);

enum layout {
    LAYOUT_DENSE,    /* BLHD */
    LAYOUT_BHLD,     /* and a key-major mask, LSE as (B, Lq, Hq) */
    LAYOUT_PACKED,   /* query, key, value and out interleaved, row by row */
    LAYOUT_ODD,      /* gaps everywhere, wild strides where an extent is 1 */
    LAYOUT_NEGATIVE, /* every axis backwards */
    LAYOUTS
};

/* Calls headway_attention() and hands out what it wrote. Fails the case when the status isn't OK,
 * when anything but the asked rows of out and lse changed, when the floating-point environment or
 * errno did, or when an exception flag was raised that must not be. */
struct answer attend(const headway_engine *engine, const struct problem *p, enum layout layout,
                     int at_end);

/* An engine or the end of the program. */
headway_engine *engine_make(const char *isa, int threads);

/* The reference's answer and how far from it an answer may be. */
struct expected {
    double *out, *out_bound, *lse, *lse_bound, *weights, *weights_bound;
};
struct expected expect(const struct problem *p);
void expected_free(struct expected *e);
/* Returns the largest error in units of the bound. */
double compare(const struct problem *p, const struct answer *a, const struct expected *e);
/* Same bits in all. */
void compare_bits(const struct answer *a, const struct answer *b, const char *what);

/* The floating-point environment and errno, before and after a call. */
void environment_enter(void);
void environment_leave(int flags_free);

#endif
