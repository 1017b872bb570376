/* The attention core below the argument checks: what is to be computed (problem) and the tile that
 * computes it; how it is cut is plan.h's. Everything here has been checked; nothing here can fail.
 */
#ifndef HEADWAY_ATTEND_H
#define HEADWAY_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include "core/cache.h"
#include "core/plan.h"
#include "cpu/kernels.h"

#define LINE_FLOATS 16 /* a cache line of 64 bytes */

/* Lanes up to which keys and values are taken as they are stored, HEADWAY_MAX_FEW at a time: more
 * are cheaper side by side. */
#define HEADWAY_FEW_LANES 24

/* Whether `lanes` that are cut so are few. */
static inline int headway_attend_few(const struct headway_cut *cut, int64_t lanes)
{
    return cut->tiles == 1 && lanes <= HEADWAY_FEW_LANES;
}

/* Floats from the sum of one of few lanes to the next: an odd number of cache lines. */
static inline int64_t headway_few_pitch(int64_t value_size)
{
    return ((value_size + LINE_FLOATS - 1) / LINE_FLOATS | 1) * LINE_FLOATS;
}

enum headway_mask_kind {
    HEADWAY_MASK_NONE,
    HEADWAY_MASK_BOOL,
    HEADWAY_MASK_F32,
    HEADWAY_MASK_F16,
    HEADWAY_MASK_BF16
};

/* The caller's mask in place; strides in elements, 0 where an extent is broadcast. */
struct headway_mask {
    enum headway_mask_kind kind;
    const void *data;
    ptrdiff_t batch, head, row, key;
};

/* A (B, L, H, size) view; the innermost stride is 1. */
struct headway_view {
    float *data;
    ptrdiff_t batch, row, head;
};

/* The caller's intervals: row i of batch b may attend keys data[at] .. data[at + end] - 1, at =
 * b * batch + i * row. data NULL: any. */
struct headway_interval {
    const int32_t *data;
    ptrdiff_t batch, row, end;
};

/* Keys and values that lie in a cache; store NULL: they are views. Sequence b is in slot slots[b], or
 * b. The call appends to what the slot holds: more(b) = more_lengths[b], or more_starts[b + 1] -
 * more_starts[b], or more_rows tokens; its key length is the sum unless key_lengths says less. */
struct headway_cached {
    const struct headway_store *store;
    const int64_t *slots;
    const int64_t *more_lengths, *more_starts;
    int64_t more_rows;
};

struct headway_problem {
    int64_t batch;            /* B, or how many packed sequences there are */
    int64_t query_rows, keys; /* Lq, Lk: the longest sequence's */
    /* (B + 1), or NULL. Packed: row i of sequence b is row starts[b] + i of every view, of lse and
     * interval, and the views' batch strides are 0. A mask is read at i and j themselves. */
    const int64_t *query_starts, *key_starts;
    int64_t heads, kv_heads, group; /* group = heads / kv_heads */
    int64_t size, value_size;       /* D, Dv */
    struct headway_view query, key, value, out;
    struct headway_view lse; /* (B, Lq, Hq): data NULL when it isn't asked for */
    /* (B, Lq, Hq) lines of keys + appended; data NULL when they aren't asked for. Their mean over
     * heads, where mean_weights is set, with a head stride of 0. */
    struct headway_view weights;
    int mean_weights;
    struct headway_cached cached;
    int64_t shared_prefix; /* keys, a hint */
    /* 0 to 2 keys and values that every row attends, rows 0 and on of views of their own: they come
     * after all others, as a segment of their own; neither mask, range nor ALiBi apply to them. */
    int appended;
    struct headway_view appended_key, appended_value;
    float scale;         /* the score's scale times HEADWAY_EXP_UNIT, rounded once */
    float softcap;       /* in the units of exp_poly.h, with a normal inverse; 0: none */
    const float *slopes; /* (Hq) ALiBi, as given, or NULL */
    const float *sinks;  /* (Hq), as given, or NULL */
    int causal;
    const int64_t *offsets; /* (B) of the rows among the keys, or NULL: 0, or bottom_right's */
    int bottom_right;
    int64_t window_left, window_right; /* INT64_MAX: unbounded */
    int64_t window_first;              /* keys that lie in every window */
    struct headway_interval interval;
    const int64_t *query_lengths, *key_lengths; /* (B) or NULL */
    struct headway_mask mask;
};

int64_t headway_query_length(const struct headway_problem *problem, int64_t b);
int64_t headway_key_length(const struct headway_problem *problem, int64_t b);
/* With a cache: the slot of sequence b, and how many tokens the call appends to it. */
int64_t headway_slot(const struct headway_cached *cached, int64_t b);
int64_t headway_more(const struct headway_cached *cached, int64_t b);

/* Where row 0 of batch b stands among the keys. */
int64_t headway_row_offset(const struct headway_problem *problem, int64_t b);

/* Everything the tasks of a call need. */
struct headway_attend_run {
    const struct headway_problem *problem;
    const struct headway_attend_plan *plan;
    const struct headway_machine *machine;
    float *scratch; /* headway_attend_bytes() of it */
};
/* All of it. */
void headway_attend(const struct headway_attend_run *run);

#endif
