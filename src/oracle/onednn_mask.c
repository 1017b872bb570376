#include "oracle/onednn_plan.h"

#include <math.h>

static int64_t key_length(const struct problem *s, int64_t b)
{
    return s->params->key_lengths ? s->params->key_lengths[b] : s->key_length;
}

/* What is added to a score, -inf where the key is excluded. */
static float addend(const struct problem *s, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t at[4] = {b, h, i, j};
    int64_t offset = 0;
    float sum = 0;
    if (s->params->causal == HEADWAY_CAUSAL_OFFSETS)
        offset = s->params->row_offsets[b];
    if (s->params->causal == HEADWAY_CAUSAL_BOTTOM_RIGHT)
        offset = key_length(s, b) - reference_query_length(s, b);
    if (j >= key_length(s, b) || (s->params->causal != HEADWAY_CAUSAL_NONE && j - i > offset))
        return -INFINITY;
    const headway_tensor *mask = s->params->mask;
    int64_t from = 0;
    for (int axis = 0; mask && axis < mask->rank; axis++)
        from += mask->shape[axis] == 1 ? 0 : at[4 - mask->rank + axis] * mask->stride[axis];
    if (mask && mask->dtype == HEADWAY_BOOL)
        sum = ((const unsigned char *)mask->data)[from] ? 0 : -INFINITY;
    else if (mask)
        sum = ((const float *)mask->data)[from];
    return sum;
}

int plan_mask(struct plan *p, struct dnn_view *v, int64_t *groups, int *excluded)
{
    const struct problem *s = &p->sizes;
    const headway_tensor *mask = s->params->mask;
    int causal = s->params->causal != HEADWAY_CAUSAL_NONE;
    int per_head = mask && mask->rank == 4 && mask->shape[1] > 1;
    int per_row = causal || (mask && mask->rank > 1 && mask->shape[mask->rank - 2] > 1);
    /* A mask of rows or heads that all batches share makes oneDNN fall back to plain loops. */
    int per_batch = per_row || per_head || s->params->key_lengths || s->params->query_lengths ||
                    (mask && mask->rank == 4 && mask->shape[0] > 1);
    int64_t group = s->query_heads / s->kv_heads;
    *groups = per_head ? group : 1;
    int64_t batch = per_batch ? s->batch : 1, heads = per_head ? s->kv_heads : 1;
    int64_t rows = per_row ? s->query_length : 1, keys = s->key_length;
    int64_t count;
    float *to = NULL;
    if (!__builtin_mul_overflow(batch * *groups * heads, rows * keys, &count))
        to = plan_buffer(p, count);
    if (!to)
        return -1;
    *v = plan_dense(to, 4, batch, heads, rows, keys);
    for (int64_t n = 0; n < *groups * batch * heads * rows; n++) {
        int64_t i = n % rows, h = n / rows % heads, b = n / rows / heads % batch;
        int64_t g = n / rows / heads / batch;
        int any = 0;
        for (int64_t j = 0; j < keys; j++) {
            float x = addend(s, b, h * group + g, i, j);
            any |= x != -INFINITY;
            *excluded |= x == -INFINITY;
            *to++ = x;
        }
        if (!any && i < reference_query_length(s, b))
            return plan_refuse(p, "rows without keys");
    }
    return 0;
}
