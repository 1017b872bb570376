#include "oracle/reference_parts.h"

#include <math.h>
#include <stdlib.h>

/* RMS norm and rotary embedding in the C library's arithmetic, and what their errors are, u = 2^-24.
 *
 * Norm of x with errors dx. n = sqrt(mean(x^2) + eps) is a vector's length, so it moves by at most
 * dn = sqrt(mean(dx^2)), and not below sqrt(eps). With r = 1 / n, up to 1 / (n - dn):
 *   |hat - exact| <= |w| ((|x| + dx) r_up - |x| r) + 3.001 u |w| (|x| + dx) r_up
 * for r and two products; the other end, |x| (r - 1 / (n + dn)), is nearer. r itself is made in double.
 *
 * Rotation with tables off by dc and ds: for P = |x c| + |y s| and P_up the same with all errors
 * added to the magnitudes, products and their sum are rounded once each:
 *   |hat - exact| <= P_up - P + 2.001 u P_up
 * A table's entry is rounded to float from a double whose angle a and factor are off by 2^-48 of
 * themselves: dc = 1.002 u |c| + (a + 1) 2^-47 factor; the caller's tables are exact.
 *
 * Subnormal results lose 2^-150 for each rounding; so does a sixteenth of w, which is multiplied by at
 * most 16 sqrt(D) (2^-140 in all). */

#define PI 3.14159265358979323846264338327950288L

static long double theta_of(const headway_rope_config *c, int64_t size)
{
    long double theta = c->theta != 0 ? c->theta : 10000;
    if (c->scaling == HEADWAY_ROPE_DYNAMIC && c->positions > c->original_positions) {
        long double longer = (long double)c->positions / c->original_positions;
        theta *= powl(c->factor * longer - (c->factor - 1), (long double)size / (size - 2));
    }
    return theta;
}

/* Pairs below low turn as they are, from high on they are divided, between them both are blended. */
static long double yarn_share(const headway_rope_config *c, int64_t size, int64_t k)
{
    long double betas[2] = {c->beta_fast != 0 ? c->beta_fast : 32,
                            c->beta_slow != 0 ? c->beta_slow : 1};
    long double ends[2];
    for (int n = 0; n < 2; n++) {
        ends[n] = size * logl(c->original_positions / (betas[n] * 2 * PI)) /
                  (2 * logl(theta_of(c, size)));
        if (!c->no_truncate)
            ends[n] = n ? ceill(ends[n]) : floorl(ends[n]);
    }
    long double low = fmaxl(ends[0], 0), high = fminl(ends[1], size - 1);
    if (low == high)
        high += 0.001L;
    return fminl(fmaxl((k - low) / (high - low), 0), 1);
}

static long double frequency_of(const headway_rope_config *c, int64_t size, int64_t k)
{
    long double plain = powl(theta_of(c, size), -2.0L * k / size), share = 0;
    long double divisor = c->factor;
    if (c->scaling == HEADWAY_ROPE_LINEAR) {
        share = 1;
    } else if (c->scaling == HEADWAY_ROPE_LLAMA3) {
        long double turns = c->original_positions * plain / (2 * PI);
        share = (c->high_freq_factor - turns) / (c->high_freq_factor - c->low_freq_factor);
        share = fminl(fmaxl(share, 0), 1);
    } else if (c->scaling == HEADWAY_ROPE_YARN) {
        share = yarn_share(c, size, k);
    } else if (c->scaling == HEADWAY_ROPE_LONGROPE) {
        share = 1;
        divisor = c->positions > c->original_positions ? c->long_factors[k] : c->short_factors[k];
    }
    return share == 0 ? plain : share * plain / divisor + (1 - share) * plain;
}

static double mscale_of(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double factor_of(const headway_rope_config *c)
{
    if (c->scaling == HEADWAY_ROPE_YARN) {
        if (c->attention_factor != 0)
            return c->attention_factor;
        if (c->mscale != 0 && c->mscale_all_dim != 0)
            return mscale_of(c->factor, c->mscale) / mscale_of(c->factor, c->mscale_all_dim);
        return mscale_of(c->factor, 1);
    }
    if (c->scaling == HEADWAY_ROPE_LONGROPE) {
        if (c->attention_factor != 0)
            return c->attention_factor;
        return c->factor <= 1 ? 1 : sqrt(1 + log(c->factor) / log((double)c->original_positions));
    }
    return 1;
}

struct turn {
    const headway_rope_config *rope; /* NULL: none */
    const headway_tensor *norm;
    const headway_tensor *positions;
    int rows; /* query rows, not keys */
    double eps, factor;
    int64_t size;              /* channels that turn */
    long double *frequency;    /* (size / 2) */
    double *cos, *sin, *error; /* (size / 2) of one token: the tables, and their error */
};

static void norm_line(const struct turn *t, double *x, double *dx, int64_t size)
{
    double sum = 0, sum_error = 0;
    for (int64_t d = 0; d < size; d++) {
        sum += x[d] * x[d];
        sum_error += dx[d] * dx[d];
    }
    double n = sqrt(sum / (double)size + t->eps), dn = sqrt(sum_error / (double)size);
    double up = 1 / fmax(n - dn, sqrt(t->eps));
    for (int64_t d = 0; d < size; d++) {
        double w = reference_at(t->norm, d * t->norm->stride[0]);
        double reach = fabs(w) * (fabs(x[d]) + dx[d]) * up;
        dx[d] = reach - fabs(w * x[d]) / n + 3.001 * ROUNDOFF * reach + 0x1p-140;
        x[d] = x[d] * w / n;
    }
}

static void look_up(const struct turn *t, int64_t position)
{
    for (int64_t k = 0; k < t->size / 2; k++) {
        if (t->rope->cos) {
            const headway_tensor *c = t->rope->cos, *s = t->rope->sin;
            t->cos[k] = reference_at(c, position * c->stride[0] + k * c->stride[1]);
            t->sin[k] = reference_at(s, position * s->stride[0] + k * s->stride[1]);
            t->error[k] = 0;
        } else {
            long double angle = position * t->frequency[k];
            t->cos[k] = (double)(cosl(angle) * t->factor);
            t->sin[k] = (double)(sinl(angle) * t->factor);
            t->error[k] = ((double)angle + 1) * 0x1p-47 * t->factor;
        }
    }
}

/* One half of a pair: x c + y s. */
static double half_turn(const struct turn *t, int64_t k, double x, double dx, double y, double dy,
                        double c, double s, double *error)
{
    double own = t->rope->cos ? 0 : 1.002 * ROUNDOFF;
    double dc = own * fabs(c) + t->error[k], ds = own * fabs(s) + t->error[k];
    double up = (fabs(x) + dx) * (fabs(c) + dc) + (fabs(y) + dy) * (fabs(s) + ds);
    *error = up - fabs(x * c) - fabs(y * s) + 2.001 * ROUNDOFF * up + 3 * SUBNORMAL;
    return x * c + y * s;
}

static void turn_line(const struct turn *t, double *x, double *dx)
{
    int half = t->rope->style == HEADWAY_ROPE_HALF;
    for (int64_t k = 0; k < t->size / 2; k++) {
        int64_t i = half ? k : 2 * k, j = half ? k + t->size / 2 : 2 * k + 1;
        double c = t->cos[k], s = t->sin[k], a = x[i], da = dx[i], b = x[j], db = dx[j];
        x[i] = half_turn(t, k, a, da, b, db, c, -s, &dx[i]);
        x[j] = half_turn(t, k, b, db, a, da, c, s, &dx[j]);
    }
}

static int64_t position_of(const struct problem *p, const struct turn *t, int64_t b, int64_t i)
{
    const headway_tensor *positions = t->positions;
    if (positions) {
        struct sequence s = reference_sequence(p, b);
        int64_t row = (t->rows ? s.first_query : s.first_key) + i;
        int64_t at = reference_batch_offset(p, positions, 1, s.batch) +
                     row * positions->stride[positions->rank - 1];
        return ((const int32_t *)positions->data)[at];
    }
    return t->rows ? i - (int64_t)reference_distance(p, b, 0, 0) : i;
}

static void turn_operand(const struct problem *p, const struct turn *t, const struct operand *o)
{
    const int64_t *lengths = t->rows ? p->params->query_lengths : p->params->key_lengths;
    for (int64_t b = 0; b < reference_sequences(p); b++) {
        struct sequence s = reference_sequence(p, b);
        int64_t live = lengths ? lengths[b] : t->rows ? s.queries : s.keys;
        for (int64_t i = 0; i < live; i++) {
            int64_t row = s.batch * o->length + (t->rows ? s.first_query : s.first_key) + i;
            if (t->rope)
                look_up(t, position_of(p, t, b, i));
            for (int64_t h = 0; h < o->heads; h++) {
                int64_t at = (row * o->heads + h) * o->size;
                if (t->norm)
                    norm_line(t, o->data + at, o->error + at, o->size);
                if (t->rope)
                    turn_line(t, o->data + at, o->error + at);
            }
        }
    }
}

int reference_turn(const struct problem *p, const headway_mha_config *config,
                   const headway_mha_weights *w, int self)
{
    const headway_attention_params *a = p->params;
    struct turn t = {.rows = 1, .norm = w->query_norm, .positions = a->query_positions};
    t.eps = config->norm_eps != 0 ? (double)config->norm_eps : (double)1e-6f;
    int status = 0;
    if (config->rope && config->rope->style != HEADWAY_ROPE_NONE) {
        t.rope = config->rope;
        t.size = t.rope->rotary_size ? t.rope->rotary_size : p->size;
        t.factor = factor_of(t.rope);
        t.frequency = calloc((size_t)t.size, sizeof *t.frequency);
        t.cos = reference_doubles(t.size, 1, 1, 1);
        t.sin = reference_doubles(t.size, 1, 1, 1);
        t.error = reference_doubles(t.size, 1, 1, 1);
        status = t.frequency && t.cos && t.sin && t.error ? 0 : -1;
        for (int64_t k = 0; status == 0 && !t.rope->cos && k < t.size / 2; k++)
            t.frequency[k] = frequency_of(t.rope, t.size, k);
    }
    if (status == 0) {
        turn_operand(p, &t, &p->query);
    }
    if (status == 0 && !p->stored) {
        t.rows = 0;
        t.norm = w->key_norm;
        t.positions = a->key_positions ? a->key_positions : self ? a->query_positions : NULL;
        turn_operand(p, &t, &p->key);
    }
    free(t.frequency);
    free(t.cos);
    free(t.sin);
    free(t.error);
    return status;
}
