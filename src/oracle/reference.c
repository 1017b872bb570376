#include "oracle/reference_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where the bounds come from, u = 2^-24 and a hat on what Headway computes in f32.
 *
 * Projection of K inputs with errors dx:
 *   |hat - exact| <= d = sum |w| (dx + (K + 1) u (|x| + dx)), and u (|exact| + d) for the bias.
 *
 * One score, to first order. M = |scale| sum_d |q k|; HEADWAY_EXP_UNIT is off by 0.23 u.
 *   product  (D + 2.3) u M: unit, scale and q rounded, D fused additions; where scale times q is
 *            subnormal, 2^-150 of the unit with each |k|
 *   softcap  tanh is steepest within reach of the product's error at c = 1 - tanh(x)^2, x the
 *            nearest argument, so c times that error comes through. An argument or a cap that is
 *            off by a factor of 1 + y moves cap tanh(s / cap) by y of itself at most, as tanh is
 *            concave: 1.3 u for the cap, 2 u for its inverse and the product with it, 1 u for the
 *            product with tanh, and tanh's own TANH u. Arguments below 2^-126 add 2^-148 of cap.
 *   ALiBi    2.3 u |A|, A = slope distance: slope and distance rounded; u |capped + A| for the sum
 *   bias     0.3 u |bias| for the unit (f16 and bf16 are f32 exactly); u |score| for the sum
 *   maximum  u (|score| + |top|) for the difference
 * With |bias| <= |score| + |capped| + |A| and, without a cap, |capped| <= M, their sum is at most
 *   e = c ((D + 4) u M + 2^-149 sum_d |k|) + (TANH + 6) u |capped| + 2^-148 cap + 4 u |A|
 *       + 4 u |score|
 * where the terms of what isn't given are left out, and c is 1 without a cap. A sink is a score of
 * e = 4 u |sink|.
 *
 * Attention on exact inputs is headway.h's statement: scores, the exponential's 2 ulp for a weight
 * and for the sum, and one rounding for each key in each of the two sums, blocks and segments
 * counted with Lk/64. A segment costs 8 u, an exponential and four roundings: a sink is a segment
 * of one key, and so are appended keys together.
 *
 * With inputs off by dq, dk, dv, and t the largest over valid keys of c |scale| sum_d (dq |k| + |q|
 * dk + dq dk), a score moves by at most t, a weight by a factor within exp(+-2t). The statement
 * applied to the moved inputs, plus the way from those to the exact ones, with |q| + dq, |k| + dk
 * and |score| + t in e, is
 *
 *   (expm1(2 (e + t)) + R exp(2t)) sum_j p (|v| + dv) + sum_j p dv
 *   R = (Lk + Lk/64 + 16 [+ 9 with sinks] [+ 8 + appended keys]) u
 *
 * Where scores are so large that this says nothing, another limit holds: weights are never negative
 * and are divided by their sum, so both results lie between the smallest v - dv and the largest
 * v + dv, up to R times the largest |v| + dv; a sink's value is 0. The bound is the smaller of the
 * two. A weight's bound is the same with v = 1 at its key and 0 elsewhere; a mean of Hq weights adds
 * Hq roundings.
 *
 * Near the ends of f32's range something comes on top, far below all else otherwise. A weight below
 * 2^-125.5 of the largest is 0 (exp_poly.h), and what is subnormal has lost digits, at most 2^-150
 * for each operation: Lk 2^-125 max_j (|v| + dv) + R/u 2^-150, for a projection (K + 2) 2^-150. */

#define TANH 5.0 /* u: the 2.5 ulp of tanh_poly.h */

/* From here on a sum rounds to infinity in f32. */
#define FLOAT_OVERFLOW 0x1.ffffffp127

/* One query row against the keys of its sequence, then the appended ones: e and t of the top are
 * error and shift. */
struct row {
    struct sequence s;
    int64_t b, h, i, kv_head, keys;
    double *weight;
    unsigned char *valid;
    double top, sum, error, shift, sink;
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

static const double *line(const struct operand *o, const double *from, int64_t b, int64_t l,
                          int64_t h)
{
    return from + ((b * o->length + l) * o->heads + h) * o->size;
}

/* Row of the operands where key n of a row stands. */
static int64_t key_row(const struct problem *p, const struct row *row, int64_t n)
{
    return n < row->s.keys ? row->s.first_key + n : p->key_length + n - row->s.keys;
}

static const double *value_line(const struct problem *p, const struct row *row, const double *from,
                                int64_t n)
{
    return from ? line(&p->value, from, row->s.batch, key_row(p, row, n), row->kv_head) : NULL;
}

/* sum_d q k; the sum of magnitudes, and of the largest magnitudes that the errors allow, of products
 * and of keys alone. */
static double product(const struct problem *p, const struct row *row, int64_t n, double *magnitude,
                      double *reach, double *keys)
{
    int64_t b = row->s.batch, l = row->s.first_query + row->i, j = key_row(p, row, n);
    const double *q = line(&p->query, p->query.data, b, l, row->h);
    const double *k = line(&p->key, p->key.data, b, j, row->kv_head);
    double dot = 0;
    *magnitude = *keys = 0;
    for (int64_t d = 0; d < p->size; d++) {
        dot += q[d] * k[d];
        *magnitude += fabs(q[d] * k[d]);
        *keys += fabs(k[d]);
    }
    *reach = *magnitude;
    if (p->query.error) {
        const double *dq = line(&p->query, p->query.error, b, l, row->h);
        const double *dk = line(&p->key, p->key.error, b, j, row->kv_head);
        *reach = 0;
        for (int64_t d = 0; d < p->size; d++) {
            *reach += (fabs(q[d]) + dq[d]) * (fabs(k[d]) + dk[d]);
            *keys += dk[d];
        }
    }
    return dot;
}

/* Score of one valid key into row->weight[n]; takes part in the row's maxima. A sum with the mask
 * that overflows to -inf leaves its key out; a score that is -inf by the data has a weight of 0. */
static void add_score(const struct problem *p, struct row *row, int64_t n, double alibi,
                      double mask)
{
    double magnitude, reach, keys, cap = p->params->softcap;
    double own = p->scale * product(p, row, n, &magnitude, &reach, &keys);
    /* A product that is infinite by the data is exactly that. */
    int exact = magnitude == INFINITY;
    double shift = exact ? 0 : fabs(p->scale) * (reach - magnitude);
    double error =
        exact ? 0 : ((double)p->size + 4) * ROUNDOFF * fabs(p->scale) * reach + 0x1p-149 * keys;
    if (cap > 0) {
        double nearest = tanh(fmax(0, fabs(own) - error - shift) / cap);
        double steepest = (1 - nearest) * (1 + nearest);
        own = cap * tanh(own / cap);
        shift *= steepest;
        error = steepest * error + (TANH + 6) * ROUNDOFF * (fabs(own) + shift) + 0x1p-148 * cap;
    }
    double score = own + alibi + mask;
    if (score <= -FLOAT_OVERFLOW && own != -INFINITY)
        return;
    row->valid[n] = 1;
    row->weight[n] = score;
    if (score == -INFINITY)
        return;
    row->any = 1;
    if (!(score < FLOAT_OVERFLOW))
        row->is_nan = 1;
    error += 4 * ROUNDOFF * (fabs(alibi) + fabs(score) + shift);
    if (score > row->top)
        row->top = score;
    if (error > row->error)
        row->error = error;
    if (shift > row->shift)
        row->shift = shift;
}

static void score_row(const struct problem *p, struct row *row)
{
    const float *slopes = p->params->alibi_slopes;
    for (int64_t n = 0; n < row->keys; n++) {
        double alibi = 0, mask = 0;
        if (n < row->s.keys) {
            if (!reference_allows(p, row->b, row->i, n))
                continue;
            mask = reference_mask(p, row->b, row->h, row->i, n);
            if (mask == -INFINITY)
                continue;
            if (slopes)
                alibi = slopes[row->h] * reference_distance(p, row->b, row->i, n);
        }
        add_score(p, row, n, alibi, mask);
    }
}

/* Scores, then weights that sum to 1 with the sink's in row->weight; 0 where a key is left out. */
static void weigh_row(const struct problem *p, struct row *row)
{
    memset(row->valid, 0, (size_t)row->keys);
    memset(row->weight, 0, (size_t)row->keys * sizeof(double));
    row->top = -INFINITY;
    row->sum = row->error = row->shift = 0;
    row->any = row->is_nan = 0;
    row->sink = p->params->sinks ? p->params->sinks[row->h] : -INFINITY;
    if (row->i >= reference_query_length(p, row->b)) {
        row->sink = -INFINITY;
        return;
    }
    score_row(p, row);
    if (row->sink > -INFINITY) {
        row->top = fmax(row->top, row->sink);
        row->error = fmax(row->error, 4 * ROUNDOFF * fabs(row->sink));
        row->sum = exp(row->sink - row->top);
    }
    for (int64_t n = 0; n < row->keys; n++) {
        if (!row->valid[n])
            continue;
        row->weight[n] = !row->any ? 0 : row->is_nan ? NAN : exp(row->weight[n] - row->top);
        row->sum += row->weight[n];
    }
    for (int64_t n = 0; n < row->keys; n++) {
        if (row->valid[n] && row->any)
            row->weight[n] /= row->sum;
    }
}

/* R of the top */
static double rounding_of(const struct problem *p, const struct row *row)
{
    double count = (double)row->s.keys + (double)(row->s.keys / 64) + 16;
    if (p->params->sinks)
        count += 9;
    if (p->appended)
        count += 8 + (double)p->appended;
    return count * ROUNDOFF;
}

/* Between the smallest and the largest value, see the top. */
static double hull(const struct problem *p, const struct row *row, int64_t d)
{
    double low = INFINITY, high = -INFINITY, largest = 0;
    if (row->sink > -INFINITY)
        low = high = 0;
    for (int64_t n = 0; n < row->keys; n++) {
        if (!row->valid[n])
            continue;
        const double *error = value_line(p, row, p->value.error, n);
        double v = value_line(p, row, p->value.data, n)[d], dv = error ? error[d] : 0;
        low = fmin(low, v - dv);
        high = fmax(high, v + dv);
        largest = fmax(largest, fabs(v) + dv);
    }
    return high - low + rounding_of(p, row) * largest;
}

/* How far the weights may be off, in units of themselves. */
static double factor_of(const struct problem *p, const struct row *row)
{
    return expm1(2 * (row->error + row->shift)) + rounding_of(p, row) * exp(2 * row->shift);
}

/* Whether Headway's weight of key n may be 0. */
static int may_vanish(const struct row *row, int64_t n)
{
    return row->weight[n] * row->sum * exp(-2 * (row->error + row->shift)) < 0x1p-125;
}

/* One key's part in out and bound. An infinite value whose weight may vanish gives infinity or NaN:
 * then the bound is infinite, else such a value has no part in it. */
static void add_value(const struct problem *p, const struct row *row, int64_t n, double factor,
                      double *out, double *bound, double *largest)
{
    double weight = row->weight[n];
    const double *v = value_line(p, row, p->value.data, n);
    const double *dv = value_line(p, row, p->value.error, n);
    for (int64_t d = 0; d < p->value_size; d++) {
        double reach = dv ? fabs(v[d]) + dv[d] : fabs(v[d]);
        out[d] += weight * v[d];
        if (isinf(v[d]) && !may_vanish(row, n))
            continue;
        bound[d] += isinf(v[d]) ? INFINITY : weight * (factor * reach + (dv ? dv[d] : 0));
        if (reach > largest[d])
            largest[d] = reach;
    }
}

/* out, bound and largest: value_size elements each, the last for this function's own use. */
static void sum_row(const struct problem *p, const struct row *row, double *out, double *bound,
                    double *largest)
{
    for (int64_t d = 0; d < p->value_size; d++)
        out[d] = bound[d] = largest[d] = 0;
    if (!row->any)
        return;
    double factor = factor_of(p, row);
    for (int64_t n = 0; n < row->keys; n++) {
        if (row->valid[n])
            add_value(p, row, n, factor, out, bound, largest);
    }
    for (int64_t d = 0; d < p->value_size; d++) {
        if (!(factor < 0.5))
            bound[d] = fmin(bound[d], hull(p, row, d));
        bound[d] +=
            (double)row->keys * 0x1p-125 * largest[d] + rounding_of(p, row) / ROUNDOFF * SUBNORMAL;
    }
}

static void store_lse(const struct problem *p, const struct row *row,
                      const struct headway_reference_out *results)
{
    int64_t at =
        (row->s.batch * p->query_heads + row->h) * p->query_length + row->s.first_query + row->i;
    double lse = !row->any ? row->sink : row->is_nan ? NAN : row->top + log(row->sum);
    if (results->lse)
        results->lse[at] = lse;
    if (results->lse_bound) {
        results->lse_bound[at] = row->any ? row->error + row->shift + rounding_of(p, row) +
                                                2 * ROUNDOFF * (fabs(lse) + row->shift)
                                          : 0;
    }
}

/* One key's weight and its bound; heads come in order, the last one completes their mean. */
static void store_weight(const struct problem *p, const struct row *row, int64_t key, double weight,
                         double bound, const struct headway_reference_out *results)
{
    int64_t keys = p->key_length + p->appended, heads = p->query_heads, h = row->h;
    int64_t i = row->s.first_query + row->i;
    int64_t at = ((row->s.batch * heads + h) * p->query_length + i) * keys + key;
    int64_t mean_at = (row->s.batch * p->query_length + i) * keys + key;
    double rounding = (double)heads * ROUNDOFF;
    if (results->probs)
        results->probs[at] = weight;
    if (results->probs_bound)
        results->probs_bound[at] = bound;
    if (results->mean) {
        double *mean = results->mean + mean_at;
        *mean = (h ? *mean : 0) + weight / (double)heads;
    }
    if (results->mean_bound) {
        double *mean_bound = results->mean_bound + mean_at;
        *mean_bound = (h ? *mean_bound : 0) + (bound + rounding * (weight + bound)) / (double)heads;
    }
}

static void store_weights(const struct problem *p, const struct row *row,
                          const struct headway_reference_out *results)
{
    double factor = row->any ? factor_of(p, row) : 0;
    for (int64_t k = 0; k < p->key_length + p->appended; k++) {
        int64_t n = k < p->key_length ? k - row->s.first_key : k - p->key_length + row->s.keys;
        double weight = 0, bound = 0;
        int own = k >= p->key_length || (n >= 0 && n < row->s.keys);
        if (own && row->valid[n] && row->any) {
            weight = row->weight[n];
            bound = fmin(factor * weight, 1 + rounding_of(p, row)) + 0x1p-125;
        }
        store_weight(p, row, k, weight, bound, results);
    }
}

static void attend_row(const struct problem *p, struct row *row, double *scratch,
                       const struct headway_reference_out *results)
{
    double *out = scratch, *bound = out + p->value_size, *largest = bound + p->value_size;
    int64_t i = row->s.first_query + row->i;
    int64_t to = ((row->s.batch * p->query_length + i) * p->query_heads + row->h) * p->value_size;
    size_t bytes = (size_t)p->value_size * sizeof(double);
    weigh_row(p, row);
    if (results->out || results->out_bound)
        sum_row(p, row, out, bound, largest);
    if (results->out)
        memcpy(results->out + to, out, bytes);
    if (results->out_bound)
        memcpy(results->out_bound + to, bound, bytes);
    store_lse(p, row, results);
    if (results->probs || results->probs_bound || results->mean || results->mean_bound)
        store_weights(p, row, results);
}

int reference_attend(const struct problem *p, const struct headway_reference_out *results)
{
    struct row row = {0};
    row.weight = reference_doubles(p->key_length + p->appended, 1, 1, 1);
    row.valid = allocate(p->key_length + p->appended, 1);
    double *scratch = reference_doubles(3, p->value_size, 1, 1);
    int status = row.weight && row.valid && scratch ? 0 : -1;
    for (row.b = 0; status == 0 && row.b < reference_sequences(p); row.b++) {
        row.s = reference_sequence(p, row.b);
        row.keys = row.s.keys + p->appended;
        for (row.h = 0; row.h < p->query_heads; row.h++) {
            row.kv_head = row.h / (p->query_heads / p->kv_heads);
            for (row.i = 0; row.i < row.s.queries; row.i++)
                attend_row(p, &row, scratch, results);
        }
    }
    free(row.weight);
    free(row.valid);
    free(scratch);
    return status;
}

/* Element by element from the outer axes in; returns where the next one goes. */
static double *gather(const headway_tensor *t, int axis, int64_t offset, double *to)
{
    if (axis == t->rank) {
        *to = reference_at(t, offset);
        return to + 1;
    }
    for (int64_t n = 0; n < t->shape[axis]; n++)
        to = gather(t, axis + 1, offset + n * t->stride[axis], to);
    return to;
}

/* -1 when it does not fit. */
static int64_t product_of(const int64_t *extents, int count)
{
    int64_t product = 1;
    for (int n = 0; n < count; n++) {
        if (__builtin_mul_overflow(product, extents[n], &product))
            return -1;
    }
    return product;
}

double *reference_gather(const headway_tensor *t)
{
    double *dense = reference_doubles(product_of(t->shape, t->rank), 1, 1, 1);
    if (dense)
        gather(t, 0, 0, dense);
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
    p->key.length = p->value.length = p->key_length + p->appended;
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
    int outer = query->rank - 3;
    p.params = reference_params(params);
    p.batch = product_of(query->shape, outer);
    memcpy(p.batch_shape, query->shape, (size_t)outer * sizeof *query->shape);
    p.query_length = query->shape[outer];
    p.query_heads = query->shape[outer + 1];
    p.size = query->shape[outer + 2];
    p.key_length = key->shape[key->rank - 3];
    p.kv_heads = key->shape[key->rank - 2];
    p.value_size = value->shape[value->rank - 1];
    reference_finish(&p);
    p.query.data = reference_gather(query);
    p.key.data = reference_gather(key);
    p.value.data = reference_gather(value);
    int status = p.query.data && p.key.data && p.value.data ? reference_attend(&p, results) : -1;
    reference_free(&p);
    return status;
}
