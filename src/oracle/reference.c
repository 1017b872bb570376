#include "oracle/reference_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where the bounds come from, u = 2^-24 and a hat on what Headway computes in f32.
 *
 * Projection of K inputs with errors dx:
 *   |hat - exact| <= d = sum |w| (dx + (K + 1) u (|x| + dx)), and u (|exact| + d) for the bias.
 *
 * Attention on exact inputs is headway.h's statement. With inputs off by dq, dk, dv, and t the
 * largest over valid keys of |scale| sum_d (dq |k| + |q| dk + dq dk), a score moves by at most t, a
 * weight by a factor within exp(+-2t). The statement applied to the moved inputs, plus the way from
 * those to the exact ones, with |q| + dq, |k| + dk and |score| + t in e, is
 *
 *   (expm1(2 (e + t)) + R exp(2t)) sum_j p (|v| + dv) + sum_j p dv
 *   R = (Lk + Lk/64 + 16) u
 *
 * Where scores are so large that this says nothing, another limit holds: weights are never negative
 * and are divided by their sum, so both results lie between the smallest v - dv and the largest
 * v + dv, up to R times the largest |v| + dv. The bound is the smaller of the two.
 *
 * Near the ends of f32's range something comes on top, far below all else otherwise. A weight below
 * 2^-125.5 of the largest is 0 (exp_poly.h), and what is subnormal has lost digits, at most 2^-150
 * for each operation: Lk 2^-125 max_j (|v| + dv) + R/u 2^-150, for a projection (K + 2) 2^-150. */

/* From here on a sum rounds to infinity in f32. */
#define FLOAT_OVERFLOW 0x1.ffffffp127

/* One query row against all keys: e and t of the top are error and shift. */
struct row {
    double *weight;
    unsigned char *valid;
    double top, sum, error, shift;
    int any, is_nan;
};

static void *allocate(int64_t count, size_t size)
{
    if (count < 0 || (uint64_t)count > SIZE_MAX / size)
        return NULL;
    return calloc(count > 0 ? (size_t)count : 1, size);
}

double *reference_doubles(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t count = a;
    const int64_t rest[3] = {b, c, d};
    for (int n = 0; n < 3; n++) {
        if (__builtin_mul_overflow(count, rest[n], &count))
            return NULL;
    }
    return allocate(count, sizeof(double));
}

float reference_at(const headway_tensor *t, int64_t offset)
{
    return ((const float *)t->data)[offset];
}

/* Addend of a mask; clears *valid where the mask excludes. */
static double mask_at(const headway_tensor *mask, const int64_t index[4], int *valid)
{
    int64_t offset = 0;
    for (int axis = 0; axis < mask->rank; axis++) {
        int64_t at = index[4 - mask->rank + axis];
        if (mask->shape[axis] != 1)
            offset += at * mask->stride[axis];
    }
    if (mask->dtype == HEADWAY_BOOL) {
        if (!((const unsigned char *)mask->data)[offset])
            *valid = 0;
        return 0;
    }
    double addend = reference_at(mask, offset);
    if (addend == -INFINITY)
        *valid = 0;
    return addend;
}

int64_t reference_query_length(const struct problem *p, int64_t b)
{
    const int64_t *lengths = p->params->query_lengths;
    return lengths ? lengths[b] : p->query_length;
}

static int64_t key_length(const struct problem *p, int64_t b)
{
    const int64_t *lengths = p->params->key_lengths;
    return lengths ? lengths[b] : p->key_length;
}

static int causal_allows(const struct problem *p, int64_t b, int64_t i, int64_t j)
{
    switch (p->params->causal) {
    case HEADWAY_CAUSAL_TOP_LEFT:
        return j <= i;
    case HEADWAY_CAUSAL_BOTTOM_RIGHT:
        return j - i <= key_length(p, b) - reference_query_length(p, b);
    case HEADWAY_CAUSAL_OFFSETS:
        return j - i <= p->params->row_offsets[b];
    case HEADWAY_CAUSAL_NONE:
        break;
    }
    return 1;
}

static const double *line(const struct operand *o, const double *from, int64_t b, int64_t l,
                          int64_t h)
{
    return from + ((b * o->length + l) * o->heads + h) * o->size;
}

/* Score of one valid key into row->weight[j]; takes part in the row's maxima. A sum with the mask
 * that overflows to -inf leaves its key out; a score that is -inf by the data has a weight of 0. */
static void add_score(const struct problem *p, struct row *row, const int64_t at[4],
                      int64_t kv_head, double addend)
{
    int64_t b = at[0], h = at[1], i = at[2], j = at[3];
    const double *q = line(&p->query, p->query.data, b, i, h);
    const double *k = line(&p->key, p->key.data, b, j, kv_head);
    double dot = 0, magnitude = 0, reach = 0;
    for (int64_t d = 0; d < p->size; d++) {
        dot += q[d] * k[d];
        magnitude += fabs(q[d] * k[d]);
    }
    reach = magnitude;
    if (p->query.error) {
        const double *dq = line(&p->query, p->query.error, b, i, h);
        const double *dk = line(&p->key, p->key.error, b, j, kv_head);
        reach = 0;
        for (int64_t d = 0; d < p->size; d++) {
            reach += (fabs(q[d]) + dq[d]) * (fabs(k[d]) + dk[d]);
        }
    }
    double score = p->scale * dot + addend;
    if (score <= -FLOAT_OVERFLOW && p->scale * dot != -INFINITY)
        return;
    row->valid[j] = 1;
    row->weight[j] = score;
    if (score == -INFINITY)
        return;
    row->any = 1;
    if (!(score < FLOAT_OVERFLOW))
        row->is_nan = 1;
    double shift = fabs(p->scale) * (reach - magnitude);
    double error = ((double)p->size + 4) * ROUNDOFF * fabs(p->scale) * reach +
                   4 * ROUNDOFF * (fabs(score) + shift);
    if (score > row->top)
        row->top = score;
    if (error > row->error)
        row->error = error;
    if (shift > row->shift)
        row->shift = shift;
}

/* Scores, then weights that sum to 1 in row->weight; 0 where a key is left out. */
static void weigh_row(const struct problem *p, struct row *row, int64_t b, int64_t h, int64_t i)
{
    memset(row->valid, 0, (size_t)p->key_length);
    row->top = -INFINITY;
    row->sum = row->error = row->shift = 0;
    row->any = row->is_nan = 0;
    int64_t kv_head = h / (p->query_heads / p->kv_heads);
    for (int64_t j = 0; j < p->key_length; j++) {
        const int64_t at[4] = {b, h, i, j};
        int valid = j < key_length(p, b) && causal_allows(p, b, i, j);
        double addend = 0;
        row->weight[j] = 0;
        if (valid && p->params->mask)
            addend = mask_at(p->params->mask, at, &valid);
        if (valid)
            add_score(p, row, at, kv_head, addend);
    }
    for (int64_t j = 0; j < p->key_length; j++) {
        if (!row->valid[j])
            continue;
        row->weight[j] = !row->any ? 0 : row->is_nan ? NAN : exp(row->weight[j] - row->top);
        row->sum += row->weight[j];
    }
    for (int64_t j = 0; j < p->key_length; j++) {
        if (row->valid[j] && row->any)
            row->weight[j] /= row->sum;
    }
}

/* Between the smallest and the largest value, see the top. */
static double hull(const struct problem *p, const struct row *row, int64_t b, int64_t kv_head,
                   int64_t d, double rounding)
{
    double low = INFINITY, high = -INFINITY, largest = 0;
    for (int64_t j = 0; j < p->key_length; j++) {
        if (!row->valid[j])
            continue;
        double v = line(&p->value, p->value.data, b, j, kv_head)[d];
        double dv = p->value.error ? line(&p->value, p->value.error, b, j, kv_head)[d] : 0;
        low = fmin(low, v - dv);
        high = fmax(high, v + dv);
        largest = fmax(largest, fabs(v) + dv);
    }
    return high - low + rounding * largest;
}

static double rounding_of(const struct problem *p)
{
    return ((double)p->key_length + (double)(p->key_length / 64) + 16) * ROUNDOFF;
}

/* out, bound and largest: value_size elements each, the last for this function's own use. */
static void sum_row(const struct problem *p, const struct row *row, int64_t b, int64_t h,
                    double *out, double *bound, double *largest)
{
    int64_t kv_head = h / (p->query_heads / p->kv_heads);
    double rounding = rounding_of(p);
    for (int64_t d = 0; d < p->value_size; d++)
        out[d] = bound[d] = largest[d] = 0;
    if (!row->any)
        return;
    double factor = expm1(2 * (row->error + row->shift)) + rounding * exp(2 * row->shift);
    for (int64_t j = 0; j < p->key_length; j++) {
        if (!row->valid[j])
            continue;
        double weight = row->weight[j];
        const double *v = line(&p->value, p->value.data, b, j, kv_head);
        const double *dv = p->value.error ? line(&p->value, p->value.error, b, j, kv_head) : NULL;
        for (int64_t d = 0; d < p->value_size; d++) {
            double reach = dv ? fabs(v[d]) + dv[d] : fabs(v[d]);
            out[d] += weight * v[d];
            bound[d] += weight * (factor * reach + (dv ? dv[d] : 0));
            if (reach > largest[d])
                largest[d] = reach;
        }
    }
    for (int64_t d = 0; d < p->value_size; d++) {
        if (!(factor < 0.5))
            bound[d] = fmin(bound[d], hull(p, row, b, kv_head, d, rounding));
        bound[d] += (double)p->key_length * 0x1p-125 * largest[d] + rounding / ROUNDOFF * SUBNORMAL;
    }
}

static void store_row(const struct problem *p, const struct row *row, int64_t at,
                      const struct headway_reference_out *results)
{
    double lse = !row->any ? -INFINITY : row->is_nan ? NAN : row->top + log(row->sum);
    if (results->lse)
        results->lse[at] = lse;
    if (results->lse_bound) {
        results->lse_bound[at] = row->any ? row->error + row->shift + rounding_of(p) +
                                                2 * ROUNDOFF * (fabs(lse) + row->shift)
                                          : 0;
    }
    if (results->probs) {
        memcpy(results->probs + at * p->key_length, row->weight,
               (size_t)p->key_length * sizeof(double));
    }
}

int reference_attend(const struct problem *p, const struct headway_reference_out *results)
{
    struct row row = {0};
    row.weight = reference_doubles(p->key_length, 1, 1, 1);
    row.valid = allocate(p->key_length, 1);
    double *out = reference_doubles(3, p->value_size, 1, 1);
    if (!row.weight || !row.valid || !out) {
        free(row.weight);
        free(row.valid);
        free(out);
        return -1;
    }
    double *bound = out + p->value_size, *largest = bound + p->value_size;
    size_t bytes = (size_t)p->value_size * sizeof(double);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->query_heads; h++) {
            for (int64_t i = 0; i < p->query_length; i++) {
                row.any = 0;
                row.error = row.shift = 0;
                if (i < reference_query_length(p, b)) {
                    weigh_row(p, &row, b, h, i);
                } else {
                    memset(row.weight, 0, (size_t)p->key_length * sizeof(double));
                }
                sum_row(p, &row, b, h, out, bound, largest);
                int64_t to = ((b * p->query_length + i) * p->query_heads + h) * p->value_size;
                if (results->out)
                    memcpy(results->out + to, out, bytes);
                if (results->out_bound)
                    memcpy(results->out_bound + to, bound, bytes);
                store_row(p, &row, (b * p->query_heads + h) * p->query_length + i, results);
            }
        }
    }
    free(row.weight);
    free(row.valid);
    free(out);
    return 0;
}

double *reference_gather(const headway_tensor *t)
{
    int64_t shape[4] = {1, 1, 1, 1}, stride[4] = {0, 0, 0, 0};
    for (int axis = 0; axis < t->rank; axis++) {
        shape[4 - t->rank + axis] = t->shape[axis];
        stride[4 - t->rank + axis] = t->stride[axis];
    }
    double *dense = reference_doubles(shape[0], shape[1], shape[2], shape[3]);
    if (!dense)
        return NULL;
    double *to = dense;
    for (int64_t a = 0; a < shape[0]; a++) {
        for (int64_t b = 0; b < shape[1]; b++) {
            for (int64_t c = 0; c < shape[2]; c++) {
                int64_t start = a * stride[0] + b * stride[1] + c * stride[2];
                for (int64_t d = 0; d < shape[3]; d++) {
                    *to++ = reference_at(t, start + d * stride[3]);
                }
            }
        }
    }
    return dense;
}

void reference_free(struct problem *p)
{
    struct operand *operands[3] = {&p->query, &p->key, &p->value};
    for (int n = 0; n < 3; n++) {
        free(operands[n]->data);
        free(operands[n]->error);
    }
}

const headway_attention_params *reference_params(const headway_attention_params *params)
{
    static const headway_attention_params plain = HEADWAY_ATTENTION_PARAMS_INIT;
    return params ? params : &plain;
}

void reference_finish(struct problem *p)
{
    p->query.length = p->query_length;
    p->query.heads = p->query_heads;
    p->key.length = p->value.length = p->key_length;
    p->key.heads = p->value.heads = p->kv_heads;
    p->query.size = p->key.size = p->size;
    p->value.size = p->value_size;
    p->scale = p->params->scale ? (double)*p->params->scale : 1 / sqrt((double)p->size);
}

int headway_reference_attention(const headway_attention_params *params, const headway_tensor *query,
                                const headway_tensor *key, const headway_tensor *value,
                                const struct headway_reference_out *results)
{
    struct problem p = {0};
    p.params = reference_params(params);
    p.batch = query->shape[0];
    p.query_length = query->shape[1];
    p.query_heads = query->shape[2];
    p.size = query->shape[3];
    p.key_length = key->shape[1];
    p.kv_heads = key->shape[2];
    p.value_size = value->shape[3];
    reference_finish(&p);
    p.query.data = reference_gather(query);
    p.key.data = reference_gather(key);
    p.value.data = reference_gather(value);
    int status = p.query.data && p.key.data && p.value.data ? reference_attend(&p, results) : -1;
    reference_free(&p);
    return status;
}
