/* Between onednn.c, which alone sees oneDNN, and onednn_plan.c, which says what is to be computed:
 * a list of steps over plain views, bound to memory when they are added and run in order. */
#ifndef HEADWAY_ONEDNN_STEPS_H
#define HEADWAY_ONEDNN_STEPS_H

#include <stddef.h>
#include <stdint.h>

#define DNN_MAX_RANK 12 /* the length of oneDNN's own arrays, which it copies whole */

/* f32 elements of the caller's memory; strides are positive. */
struct dnn_view {
    float *data;
    int rank;
    int64_t shape[DNN_MAX_RANK];
    int64_t stride[DNN_MAX_RANK];
};

struct dnn_steps;

/* Everything that can fail returns 0, or -1 after saying why in note ("onednn: cannot express
 * ..."). Implementations that oneDNN chose are added to note as "; label name". label NULL: not
 * mentioned. */
struct dnn_steps *dnn_create(char *note, size_t size);
void dnn_free(struct dnn_steps *steps);
int dnn_run(struct dnn_steps *steps);

/* out = scale * a . b + mask: (..., m, k) (..., k, n) (..., m, n). mask, NULL or broadcast to out's
 * shape by extents of 1. */
int dnn_matmul(struct dnn_steps *steps, const char *label, const struct dnn_view *a,
               const struct dnn_view *b, const struct dnn_view *out, float scale,
               const struct dnn_view *mask);
/* Along the last axis, in place. */
int dnn_softmax(struct dnn_steps *steps, const char *label, const struct dnn_view *scores);
/* out (rows, outputs) = x (rows, inputs) . weight (outputs, inputs)^T + bias (outputs) or NULL, as
 * an inner product. weight and bias are read here, never later. All dense. */
int dnn_linear(struct dnn_steps *steps, const char *label, const struct dnn_view *x,
               const struct dnn_view *weight, const struct dnn_view *bias,
               const struct dnn_view *out);
/* to = from, any strides. */
int dnn_copy(struct dnn_steps *steps, const char *label, const struct dnn_view *from,
             const struct dnn_view *to);
/* out = softmax(scale * query . key^T + mask) . value through the Graph API: query (..., Lq, D),
 * key
 * (..., Lk, D), value (..., Lk, Dv). mention: add to note what became of it. */
int dnn_sdpa(struct dnn_steps *steps, const struct dnn_view *query, const struct dnn_view *key,
             const struct dnn_view *value, const struct dnn_view *out, float scale,
             const struct dnn_view *mask, int mention);

#endif
