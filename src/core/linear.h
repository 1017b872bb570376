/* Projections: y = x . W^T + bias on weights packed once for the row's GEMM kernel. */
#ifndef HEADWAY_LINEAR_H
#define HEADWAY_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include "core/plan.h"
#include "cpu/kernels.h"

/* A weight matrix as its owner sees it: output channel c = group * size + i, input channel p at
 * data[group * group_stride + i * channel_stride + p * input_stride]. */
struct headway_weight_view {
    const float *data;
    ptrdiff_t group_stride, channel_stride, input_stride;
    const float *bias; /* NULL: none; bias of c at bias[group * bias_group + i * bias_channel] */
    ptrdiff_t bias_group, bias_channel;
};

/* Packed weights. Groups are attention heads (or one group for the output projection); each begins
 * on a fresh vector, so that a vector never spans two heads and every head can be stored on its
 * own. */
struct headway_linear {
    int64_t inputs, groups, size;
    int64_t group_vectors; /* vectors of one group */
    int64_t vectors;       /* of all groups */
    int64_t panels; /* of up to row->vectors vectors; panel i begins at vector i * row->vectors */
    int has_bias;
    const float *packed; /* panel after panel, each (inputs, its vectors * lanes) */
    const float *bias;   /* vectors * lanes, or NULL */
};

/* From inputs, groups, size and has_bias, sets all but the pointers; *floats is the room that packed
 * and bias need together. 0, or -1 when it does not fit the address space. */
int headway_linear_size(struct headway_linear *linear, const struct headway_row *row,
                        int64_t *floats);
/* Sets the pointers: the weights lie, or will, in `room` (64-byte aligned, of that size). */
void headway_linear_attach(struct headway_linear *linear, const struct headway_row *row,
                           const float *room);
/* Fills the room from the view; zeros: `inputs` zeros. */
void headway_linear_pack(const struct headway_linear *linear, const struct headway_row *row,
                         const struct headway_weight_view *view, float *room, const float *zeros);

struct headway_turn_job;

/* One projection of (batch, rows) tokens. Token (b, i) is computed for i < lengths[b] only.
 * y(b, i, group, c) at y[b * y_batch + i * y_row + group * y_group + c]. Packed sequences: batch b has
 * the rows starts[b] .. starts[b + 1] - 1 of all, and (starts[b] + i) * y_row stands for the first
 * two; so it is for x. */
struct headway_linear_job {
    const struct headway_linear *linear;
    const float *x;
    ptrdiff_t x_batch, x_row;
    float *y;
    ptrdiff_t y_batch, y_row, y_group;
    int64_t batch, rows;
    const int64_t *lengths; /* (batch) or NULL: all rows */
    const int64_t *starts;  /* (batch + 1) or NULL */
    /* What is done to panels while they are at hand, of this job's y and where it fits (rope.h), or
     * NULL. A task is then as many panels as that needs. */
    const struct headway_turn_job *turn;
};

/* Tokens are counted through all batches, dead ones included: how many there are, the first of batch b
 * (b = batch: their number), the batch of a token, and how many of batch b are live. */
int64_t headway_linear_tokens(const struct headway_linear_job *job);
int64_t headway_linear_first(const struct headway_linear_job *job, int64_t b);
int64_t headway_linear_batch(const struct headway_linear_job *job, int64_t token);
int64_t headway_linear_length(const struct headway_linear_job *job, int64_t b);
/* Offset of token (b, i) in a tensor of these strides. */
ptrdiff_t headway_linear_offset(const struct headway_linear_job *job, int64_t b, int64_t i,
                                ptrdiff_t batch, ptrdiff_t row);

#define HEADWAY_MAX_JOBS 3

/* Runs the jobs; the panels of all jobs with as many blocks of tokens pass by a block in turn.
 * Allocates nothing, needs no workspace. */
void headway_linear_run(const struct headway_machine *machine,
                        const struct headway_linear_job *jobs, int count);

#endif
