/* Rotary embedding and RMS norm of projected heads, and their way into a cache: tables made once, and
 * the pass that does it. */
#ifndef HEADWAY_ROPE_H
#define HEADWAY_ROPE_H

#include <stddef.h>
#include <stdint.h>

#include "core/linear.h"
#include "headway/headway.h"

/* Positions have 27 bits at most, so have angles: what headway_rope_turn() is exact for. */
#define HEADWAY_ROPE_MOST (1 << 27)

/* Of a checked configuration without tables of its own: frequency(k) and the attention factor. The
 * same bits on every machine: nothing of the C library but sqrt and exact functions has a part in
 * them. Relative error below 2^-48. */
double headway_rope_frequency(const headway_rope_config *config, int64_t size, int64_t k);
double headway_rope_factor(const headway_rope_config *config);

/* Cosine and sine of position * frequency, the product taken as exact: 0 <= position and 0 <=
 * position * frequency, both at most HEADWAY_ROPE_MOST. The same bits on every machine; relative
 * error below 2^-50, so that rounding to float adds less than 0.501 ulp. */
void headway_rope_turn(int64_t position, double frequency, double *cosine, double *sine);

/* Fills cos and sin (positions, size / 2): multiplied by the attention factor, rounded once. */
void headway_rope_tables(const headway_rope_config *config, int64_t size, float *cos, float *sin);

struct headway_rope {
    headway_rope_style style;
    int64_t size; /* channels that turn; 0: none, and nothing else means anything */
    int64_t positions;
    const float *cos, *sin; /* (positions, size / 2) */
};

/* Where the tokens of a projection stand: token (b, i) at data[b * batch + i * row], or without data
 * at i + offset(b), which with `cached` is the length of b's slot, else the problem's, or 0. All lie
 * within the tables. */
struct headway_places {
    const int32_t *data;
    ptrdiff_t batch, row;
    const struct headway_cached *cached;
    const struct headway_problem *problem;
};

/* Heads of a projection's live tokens, in place where the job has put them:
 *
 *   norm:  s = sum of x(d)^2 in double, as 8 sums over d mod 8 in order, then 4, 2, 1 of them;
 *          x(d) = x(d) * r * norm(d), r = 16 / sqrt(s * (1 / D) + eps) rounded to float
 *   rope:  (x, y) = (x cos - y sin, x sin + y cos), each operation rounded to float
 *   put:   token (b, i) is stored in its place behind the length of b's slot, pages at hand
 *
 * Error of the norm: 3.001 u |x|; of the rotation of exact x and y: (u' + 2 u) (|x cos| + |y sin|),
 * u' the tables' 1.002 u. */
struct headway_turn_job {
    const struct headway_linear_job *at;
    const float *norm; /* (D), sixteenths of the weights, or NULL */
    double eps;
    const struct headway_rope *rope; /* NULL: none */
    struct headway_places places;
    const struct headway_cached *cached; /* NULL: nothing is stored */
    const struct headway_pool *pool;
};

/* After how many panels there are whole heads, on which the job can be done at once; 0: there is
 * nothing to do, or heads and panels don't end together. */
int64_t headway_turn_span(const struct headway_turn_job *job, const struct headway_row *row);
/* Panels panel .. panel + span - 1 of tokens token .. end - 1. */
void headway_turn_panels(const struct headway_turn_job *job, const struct headway_row *row,
                         int64_t panel, int64_t span, int64_t token, int64_t end);

/* Runs the jobs that no panel has done. Allocates nothing, needs no workspace. */
void headway_turn_run(const struct headway_machine *machine, const struct headway_turn_job *jobs,
                      int count);

/* Position of token (b, i); INT64_MAX stands for all beyond. */
int64_t headway_place(const struct headway_turn_job *job, int64_t b, int64_t i);

#endif
