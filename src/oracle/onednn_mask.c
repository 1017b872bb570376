#include "oracle/onednn_plan.h"

#include <math.h>

/* What is added to a score, -inf where the key is excluded. */
static float addend(const struct problem *s, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const float *slopes = s->params->alibi_slopes;
    if (!reference_allows(s, b, i, j))
        return -INFINITY;
    double sum = reference_mask(s, b, h, i, j);
    if (slopes)
        sum += slopes[h] * reference_distance(s, b, i, j);
    return (float)sum;
}

/* Whether a mask differs along an axis of (Hq, Lq, Lk), or (axis -1) along any batch axis. */
static int varies(const headway_tensor *mask, int axis)
{
    int last = mask ? mask->rank - 3 + axis : -1, first = axis < 0 ? 0 : last;
    for (int at = first; at >= 0 && at <= last; at++) {
        if (mask->shape[at] > 1)
            return 1;
    }
    return 0;
}

int plan_mask(struct plan *p, struct dnn_view *v, int64_t *groups, int *excluded)
{
    const struct problem *s = &p->sizes;
    const headway_tensor *mask = s->params->mask;
    int per_head = s->params->alibi_slopes || varies(mask, 0);
    int per_row = s->params->causal != HEADWAY_CAUSAL_NONE || s->params->window_left >= 0 ||
                  s->params->window_right >= 0 || s->params->interval || s->params->alibi_slopes ||
                  varies(mask, 1);
    /* A mask of rows or heads that all batches share makes oneDNN fall back to plain loops. */
    int per_batch = per_row || per_head || s->params->key_lengths || s->params->query_lengths ||
                    varies(mask, -1);
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
