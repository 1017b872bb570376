#include "oracle/reference_parts.h"

#include <math.h>
#include <string.h>

/* What a key is to a query row, before any score: where the row stands, which keys it may attend,
 * and what the mask adds. One element at a time. */

static double half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, digits = bits & 1023;
    double size = exponent == 31  ? (digits ? NAN : INFINITY)
                  : exponent == 0 ? ldexp(digits, -24)
                                  : ldexp(1024 + digits, exponent - 25);
    return bits >> 15 ? -size : size;
}

static double upper_half_of_float(uint16_t bits)
{
    uint32_t all = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &all, sizeof x);
    return x;
}

double reference_at(const headway_tensor *t, int64_t offset)
{
    if (t->dtype == HEADWAY_F16)
        return half(((const uint16_t *)t->data)[offset]);
    if (t->dtype == HEADWAY_BF16)
        return upper_half_of_float(((const uint16_t *)t->data)[offset]);
    return ((const float *)t->data)[offset];
}

int64_t reference_sequences(const struct problem *p)
{
    return p->params->query_starts ? p->params->sequences : p->batch;
}

struct sequence reference_sequence(const struct problem *p, int64_t b)
{
    const headway_attention_params *a = p->params;
    struct sequence s = {b, 0, 0, p->query_length, p->key_length};
    if (a->query_starts) {
        const int64_t *keys = a->key_starts ? a->key_starts : a->query_starts;
        s = (struct sequence){0, a->query_starts[b], keys[b],
                              a->query_starts[b + 1] - a->query_starts[b], keys[b + 1] - keys[b]};
    }
    return s;
}

int64_t reference_query_length(const struct problem *p, int64_t b)
{
    const int64_t *lengths = p->params->query_lengths;
    return lengths ? lengths[b] : reference_sequence(p, b).queries;
}

static int64_t key_length(const struct problem *p, int64_t b)
{
    const int64_t *lengths = p->params->key_lengths;
    return lengths ? lengths[b] : reference_sequence(p, b).keys;
}

static int64_t offset_of(const struct problem *p, int64_t b)
{
    switch (p->params->causal) {
    case HEADWAY_CAUSAL_TOP_LEFT:
        return 0;
    case HEADWAY_CAUSAL_BOTTOM_RIGHT:
        return key_length(p, b) - reference_query_length(p, b);
    case HEADWAY_CAUSAL_NONE:
    case HEADWAY_CAUSAL_OFFSETS:
        break;
    }
    return p->params->row_offsets ? p->params->row_offsets[b] : 0;
}

int64_t reference_batch_offset(const struct problem *p, const headway_tensor *t, int inner,
                               int64_t b)
{
    int64_t offset = 0;
    if (t->rank == inner + 1)
        return t->shape[0] == 1 ? 0 : b * t->stride[0];
    for (int axis = t->rank - inner - 1; axis >= 0; axis--) {
        if (t->shape[axis] != 1)
            offset += b % p->batch_shape[axis] * t->stride[axis];
        b /= p->batch_shape[axis];
    }
    return offset;
}

/* b is not negative; what is beyond int64 is beyond everything it is compared with. */
static int64_t add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int reference_allows(const struct problem *p, int64_t b, int64_t i, int64_t j)
{
    const headway_attention_params *a = p->params;
    int64_t offset = offset_of(p, b);
    if (j >= key_length(p, b))
        return 0;
    if (a->causal != HEADWAY_CAUSAL_NONE && j - i > offset)
        return 0;
    if (j >= a->window_first && a->window_left >= 0 && add(j - i, a->window_left) < offset)
        return 0;
    if (j >= a->window_first && a->window_right >= 0 && j - i > add(offset, a->window_right))
        return 0;
    if (a->interval) {
        const headway_tensor *t = a->interval;
        int64_t row = reference_sequence(p, b).first_query + i;
        const int32_t *ends =
            (const int32_t *)t->data + reference_batch_offset(p, t, 2, a->query_starts ? 0 : b);
        ends += row * t->stride[t->rank - 2];
        return ends[0] <= j && j < ends[t->stride[t->rank - 1]];
    }
    return 1;
}

double reference_distance(const struct problem *p, int64_t b, int64_t i, int64_t j)
{
    return (double)(j - i) - (double)offset_of(p, b);
}

double reference_mask(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const headway_tensor *mask = p->params->mask;
    const int64_t at[3] = {j, i, h};
    if (!mask)
        return 0;
    int inner = mask->rank < 3 ? mask->rank : 3;
    int64_t offset = reference_batch_offset(p, mask, inner, b);
    for (int n = 0; n < inner; n++) {
        int axis = mask->rank - 1 - n;
        if (mask->shape[axis] != 1)
            offset += at[n] * mask->stride[axis];
    }
    if (mask->dtype == HEADWAY_BOOL)
        return ((const unsigned char *)mask->data)[offset] ? 0 : -INFINITY;
    return reference_at(mask, offset);
}
