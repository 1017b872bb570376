/* The attention core below the argument checks: what is to be computed (problem) and the tile that
 * computes it; how it is cut is plan.h's. Everything here has been checked; nothing here can fail.
 */
#ifndef HEADWAY_ATTEND_H
#define HEADWAY_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include "core/plan.h"
#include "cpu/kernels.h"

#define LINE_FLOATS 16 /* a cache line of 64 bytes */

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

struct headway_problem {
    int64_t batch;            /* B, or how many packed sequences there are */
    int64_t query_rows, keys; /* Lq, Lk: the longest sequence's */
    /* (B + 1), or NULL. Packed: row i of sequence b is row starts[b] + i of every view, of lse and
     * interval, and the views' batch strides are 0. A mask is read at i and j themselves. */
    const int64_t *query_starts, *key_starts;
    int64_t heads, kv_heads, group;  /* group = heads / kv_heads */
    int64_t size, value_size;        /* D, Dv */
    struct headway_view query, key, value, out;
    struct headway_view lse; /* (B, Lq, Hq): data NULL when it isn't asked for */
    /* (B, Lq, Hq) lines of keys + appended; data NULL when they aren't asked for. Their mean over
     * heads, where mean_weights is set: the head stride means nothing then. */
    struct headway_view weights;
    int mean_weights;
    /* 0 to 2 keys and values that every row attends, at rows appended_row and on of each batch's view
     * (of the whole view when packed): they come after all others, as a segment of their own;
     * neither mask, range nor ALiBi apply to them. */
    int appended;
    int64_t appended_row;
    float scale;             /* the score's scale times HEADWAY_EXP_UNIT, rounded once */
    float softcap;           /* in the units of exp_poly.h; 0: none */
    const float *slopes;     /* (Hq) ALiBi, as given, or NULL */
    const float *sinks;      /* (Hq), as given, or NULL */
    int causal;
    const int64_t *offsets; /* (B) of the rows among the keys, or NULL: 0, or bottom_right's */
    int bottom_right;
    int64_t window_left, window_right; /* INT64_MAX: unbounded */
    struct headway_interval interval;
    const int64_t *query_lengths, *key_lengths; /* (B) or NULL */
    struct headway_mask mask;
};

int64_t headway_query_length(const struct headway_problem *problem, int64_t b);
int64_t headway_key_length(const struct headway_problem *problem, int64_t b);

/* Everything a task needs; one task is one query tile of one KV head. */
struct headway_attend_run {
    const struct headway_problem *problem;
    const struct headway_attend_plan *plan;
    const struct headway_row *row;
    float *scratch; /* plan->threads * plan->worker_floats */
};
/* A headway_task_fn: context is a struct headway_attend_run. */
void headway_attend_task(void *context, int64_t task, int worker);

/* The query rows of a tile, as lanes: lane l is query row (start + l) / group of the head
 * kv_head * group + (start + l) % group. Rows never fall from lane to lane. */
struct headway_lanes {
    int64_t b, kv_head, start;
    int n;                            /* live lanes */
    int width;                        /* lanes of the tile, n rounded up */
    int64_t first[HEADWAY_MAX_WIDTH]; /* allowed keys first <= j < last of each lane */
    int64_t last[HEADWAY_MAX_WIDTH];
    int64_t first_min, first_max, last_min, last_max; /* over the live lanes */
};

/* offset[lane] = b * batch + row * `row` + head * `head` of every live lane. */
void headway_lane_offsets(const struct headway_problem *problem, const struct headway_lanes *l,
                          ptrdiff_t batch, ptrdiff_t row, ptrdiff_t head, ptrdiff_t *offset);

/* Fills the ranges of l from causality and lengths (mask.c). */
void headway_mask_ranges(const struct headway_problem *problem, struct headway_lanes *l);

/* What a block of keys is to a tile. */
enum headway_block { HEADWAY_BLOCK_SKIP, HEADWAY_BLOCK_PLAIN, HEADWAY_BLOCK_BIAS };

/* Looks at the mask of keys *start .. *start + *count - 1 for all lanes: SKIP when it excludes all
 * of them, PLAIN when it changes nothing, else BIAS with bias (*count, width) filled in natural
 * units. Keys at both ends that every lane excludes are cut off *start and *count. lines: scratch
 * of width * HEADWAY_KEY_BLOCK floats. Ranges are not looked at. */
enum headway_block headway_mask_block(const struct headway_problem *problem,
                                      const struct headway_row *row, const struct headway_lanes *l,
                                      int64_t *start, int *count, float *lines, float *bias);

#endif
