/* What the files that plan share; oneDNN itself is behind onednn_steps.h. */
#ifndef HEADWAY_ONEDNN_PLAN_H
#define HEADWAY_ONEDNN_PLAN_H

#include "oracle/onednn.h"
#include "oracle/onednn_steps.h"
#include "oracle/reference_parts.h"

enum { MAX_BUFFERS = 24 };

struct headway_onednn {
    struct dnn_steps *steps; /* NULL: nothing to compute */
    int buffers;
    float *buffer[MAX_BUFFERS];
};

/* What is to be planned. sizes.params is never NULL. */
struct plan {
    struct headway_onednn *prepared;
    enum headway_onednn_path path;
    struct problem sizes;
    char *note;
    size_t size;
};

/* Says "onednn: cannot express ..."; -1. */
int plan_refuse(struct plan *p, const char *what);
/* Memory that lives as long as what is prepared, or NULL after saying so. */
float *plan_buffer(struct plan *p, int64_t count);
/* A densely packed view of rank `rank`. */
struct dnn_view plan_dense(float *data, int rank, int64_t a, int64_t b, int64_t c, int64_t d);
/* Strides of axes of extent 1 become those of a dense array around the inner axes: oneDNN derives
 * leading dimensions from them. */
void plan_tidy(struct dnn_view *v);
/* Elements of a view without gaps fill the memory from the first to the last, in some order. */
int plan_has_gaps(const struct dnn_view *v);
/* The last two of four axes exchanged. */
struct dnn_view plan_transposed(const struct dnn_view *v);
/* A single query row: the query heads that share a key head become the rows of one product. */
void plan_fold(struct dnn_view *v, int64_t group);
/* Writes out mask, causality and lengths: (groups, B, Hkv, Lq, Lk), each of the first four 1 where
 * nothing depends on it; groups 1 means that nothing depends on the head. *excluded: some key is.
 */
int plan_mask(struct plan *p, struct dnn_view *v, int64_t *groups, int *excluded);

#endif
