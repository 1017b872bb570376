/* How much a problem has to compute. */
#include "cli/problem.h"

#include <math.h>

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* x + y, or the end of the range it falls out of. */
static int64_t add(int64_t x, int64_t y)
{
    int64_t sum;
    return __builtin_add_overflow(x, y, &sum) ? (x < 0 ? INT64_MIN : INT64_MAX) : sum;
}

/* Keys that row i of sequence b may see but for the mask: *first .. *last - 1. */
static void visible(const struct problem *p, const struct sequence *s, int64_t b, int64_t i,
                    int64_t *first, int64_t *last)
{
    const headway_attention_params *params = &p->params;
    const headway_tensor *interval = params->interval;
    int64_t place = add(i, s->offset), low = 0, high = s->keys;
    if (params->causal != HEADWAY_CAUSAL_NONE)
        high = clamp(add(place, 1), 0, high);
    if (params->window_left >= 0)
        low = clamp(add(place, -params->window_left), 0, high);
    if (params->window_right >= 0)
        high = clamp(add(add(place, params->window_right), 1), low, high);
    if (interval) {
        const int32_t *pair = interval->data;
        int axis = interval->rank - 2;
        pair += (s->query_start + i) * interval->stride[axis];
        if (axis > 0 && interval->shape[0] > 1)
            pair += b * interval->stride[0];
        low = clamp(pair[0], low, high);
        high = clamp(pair[interval->stride[axis + 1]], low, high);
    }
    *first = low;
    *last = high;
}

static int attends(const headway_tensor *mask, int64_t at)
{
    switch (mask->dtype) {
    case HEADWAY_BOOL:
        return ((const uint8_t *)mask->data)[at] != 0;
    case HEADWAY_F16:
        return ((const uint16_t *)mask->data)[at] != 0xfc00;
    case HEADWAY_BF16:
        return ((const uint16_t *)mask->data)[at] != 0xff80;
    default:
        return ((const float *)mask->data)[at] != -INFINITY;
    }
}

static int64_t unmasked(const headway_tensor *mask, int64_t b, int64_t h, int64_t i, int64_t first,
                        int64_t last)
{
    const int64_t index[4] = {b, h, i, 0};
    int64_t at = 0, count = 0;
    int shift = 4 - mask->rank;
    for (int axis = 0; axis < mask->rank - 1; axis++)
        at += mask->shape[axis] == 1 ? 0 : index[axis + shift] * mask->stride[axis];
    int64_t step = mask->shape[mask->rank - 1] == 1 ? 0 : mask->stride[mask->rank - 1];
    for (int64_t j = first; j < last; j++)
        count += attends(mask, at + j * step);
    return count;
}

static double pairs_of(const struct problem *p, int64_t b)
{
    struct sequence s = problem_sequence(p, b);
    double pairs = 0;
    for (int64_t i = 0; i < s.queries; i++) {
        int64_t first, last;
        visible(p, &s, b, i, &first, &last);
        pairs += (double)(p->appended * p->heads);
        if (!p->params.mask)
            pairs += (double)((last - first) * p->heads);
        else
            for (int64_t h = 0; h < p->heads; h++)
                pairs += (double)unmasked(p->params.mask, b, h, i, first, last);
    }
    return pairs;
}

double problem_flops(const struct problem *p)
{
    double pairs = 0, projections = 0;
    for (int64_t b = 0; b < p->sequences; b++) {
        struct sequence s = problem_sequence(p, b);
        pairs += pairs_of(p, b);
        if (p->is_layer) {
            const struct layer *layer = &p->layer;
            double q = (double)(p->heads * p->head_size), k = (double)(p->kv_heads * p->head_size);
            double v = (double)(p->kv_heads * p->value_head_size);
            double o = (double)(p->heads * p->value_head_size);
            projections +=
                (double)s.queries *
                    (q * (double)layer->query_width + o * (double)layer->out_width) +
                (double)s.keys * (k * (double)layer->key_width + v * (double)layer->value_width);
        }
    }
    return 2.0 * projections + 2.0 * pairs * (double)(p->head_size + p->value_head_size);
}
