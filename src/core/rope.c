/* The tables are made by our own logarithm, exponential, sine and cosine: those of C libraries differ
 * in their last bits from machine to machine, and a table's bits are part of every result. */
#include "core/rope.h"

#include <math.h>

#include "core/attend.h"
#include "system/parallel.h"

/* ln 2 and pi / 2 as sums of numbers, the leading ones short enough for exact products. */
#define LN2_HIGH 0x1.62e42feep-1
#define LN2_LOW 0x1.a39ef35793c76p-33
#define HALF_PI_HIGH 0x1.921fb5p+0
#define HALF_PI_MIDDLE 0x1.110b46p-26
#define HALF_PI_LOW 0x1.1a62633145c06p-54
#define TWO_PI 0x1.921fb54442d18p+2

/* Tokens of one task: their lines of the tables stay near while the heads pass by. */
#define TURN_TOKENS 64

/* x = m 2^e with m within sqrt(1/2) .. sqrt(2): log m = 2 artanh(s), s = (m - 1) / (m + 1) below
 * 0.172, whose series ends at s^25: the rest is below 2^-68. */
static double logarithm(double x)
{
    int e;
    double m = frexp(x, &e), sum = 0.0;
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    const double s = (m - 1.0) / (m + 1.0);
    for (int n = 25; n >= 3; n -= 2)
        sum = (sum + 1.0 / n) * (s * s);
    return e * LN2_HIGH + (2.0 * s + (2.0 * s * sum + e * LN2_LOW));
}

/* x = n ln 2 + r with |r| below 0.35: the series to r^15, the rest is below 2^-68. */
static double exponential(double x)
{
    const double n = floor(x / 0.69314718055994531 + 0.5);
    const double r = (x - n * LN2_HIGH) - n * LN2_LOW;
    double sum = 1.0;
    for (int i = 15; i >= 1; i--)
        sum = 1.0 + sum * r / i;
    return ldexp(sum, (int)n);
}

static double power(double base, double exponent)
{
    return exponential(exponent * logarithm(base));
}

/* *sum + *rest = a + b exactly (Knuth's TwoSum). */
static void add_exactly(double a, double b, double *sum, double *rest)
{
    *sum = a + b;
    const double of_b = *sum - a;
    *rest = (a - (*sum - of_b)) + (b - of_b);
}

/* Sine and cosine for |r| <= pi / 4: 1 / 3!, 1 / 5!, ... and 1 / 2!, 1 / 4!, ... with alternating
 * signs; the rest is below 2^-59 of them. */
static void series(double r, double *cosine, double *sine)
{
    static const double odd[8] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    static const double even[8] = {
        -1.0 / 2,       1.0 / 24,        -1.0 / 720,         1.0 / 40320,
        -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    const double q = r * r;
    double s = odd[7], c = even[7];
    for (int n = 6; n >= 0; n--) {
        s = s * q + odd[n];
        c = c * q + even[n];
    }
    *sine = r + r * (s * q);
    *cosine = 1.0 + c * q;
}

/* The angle t * f less n quarter turns: f is cut in two (Veltkamp), so that t * f and n * pi / 2
 * are sums of exact products, all but the last of which cancel exactly. */
void headway_rope_turn(int64_t position, double frequency, double *cosine, double *sine)
{
    const double t = (double)position;
    const double c = frequency * 134217729.0; /* 2^27 + 1 */
    const double high = c - (c - frequency), low = frequency - high;
    const double n = (double)(int64_t)(t * frequency * 0.63661977236758134 + 0.5);
    double r, rest1, rest2, x, y;
    add_exactly(t * high - n * HALF_PI_HIGH, -(n * HALF_PI_MIDDLE), &r, &rest1);
    add_exactly(r, t * low, &r, &rest2);
    series(r + (rest1 + rest2 - n * HALF_PI_LOW), &x, &y);
    const int quarter = (int)((int64_t)n & 3);
    *cosine = quarter == 0 ? x : quarter == 1 ? -y : quarter == 2 ? -x : y;
    *sine = quarter == 0 ? y : quarter == 1 ? x : quarter == 2 ? -y : -x;
}

/* ---- the kinds of scaling, as Hugging Face's modeling_rope_utils has them ---------------------- */

/* A wavelength is compared with the original context: frequencies that turn less than low_freq_factor
 * times in it are divided, those that turn high_freq_factor times or more are not. */
static double llama3(const headway_rope_config *c, double frequency)
{
    const double turns = (double)c->original_positions * frequency / TWO_PI;
    if (turns < c->low_freq_factor)
        return frequency / c->factor;
    if (turns > c->high_freq_factor)
        return frequency;
    const double smooth = (turns - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
    return (1.0 - smooth) * frequency / c->factor + smooth * frequency;
}

/* The ramp's end: the pair, as a real number, that turns `beta` times in the original context. */
static double yarn_end(const headway_rope_config *c, double theta, int64_t size, double beta)
{
    return (double)size * logarithm((double)c->original_positions / (beta * TWO_PI)) /
           (2.0 * logarithm(theta));
}

static double yarn(const headway_rope_config *c, double theta, int64_t size, int64_t k,
                   double frequency)
{
    double low = yarn_end(c, theta, size, c->beta_fast != 0.0 ? c->beta_fast : 32.0);
    double high = yarn_end(c, theta, size, c->beta_slow != 0.0 ? c->beta_slow : 1.0);
    if (!c->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0.0 ? low : 0.0;
    high = high < (double)(size - 1) ? high : (double)(size - 1);
    if (low == high)
        high += 0.001;
    double ramp = ((double)k - low) / (high - low);
    ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
    return frequency / c->factor * ramp + frequency * (1.0 - ramp);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * logarithm(factor) + 1.0;
}

double headway_rope_factor(const headway_rope_config *c)
{
    if (c->scaling != HEADWAY_ROPE_YARN && c->scaling != HEADWAY_ROPE_LONGROPE)
        return 1.0;
    if (c->attention_factor != 0.0)
        return c->attention_factor;
    if (c->scaling == HEADWAY_ROPE_LONGROPE)
        return c->factor <= 1.0
                   ? 1.0
                   : sqrt(1.0 + logarithm(c->factor) / logarithm((double)c->original_positions));
    if (c->mscale != 0.0 && c->mscale_all_dim != 0.0)
        return yarn_mscale(c->factor, c->mscale) / yarn_mscale(c->factor, c->mscale_all_dim);
    return yarn_mscale(c->factor, 1.0);
}

double headway_rope_frequency(const headway_rope_config *c, int64_t size, int64_t k)
{
    const int longer = c->positions > c->original_positions;
    double theta = c->theta != 0.0 ? c->theta : 10000.0;
    if (c->scaling == HEADWAY_ROPE_DYNAMIC && longer)
        theta *= power(c->factor * (double)c->positions / (double)c->original_positions -
                           (c->factor - 1.0),
                       (double)size / (double)(size - 2));
    const double plain = power(theta, -2.0 * (double)k / (double)size);
    switch (c->scaling) {
    case HEADWAY_ROPE_LINEAR:
        return plain / c->factor;
    case HEADWAY_ROPE_LLAMA3:
        return llama3(c, plain);
    case HEADWAY_ROPE_YARN:
        return yarn(c, theta, size, k, plain);
    case HEADWAY_ROPE_LONGROPE:
        return plain / (longer ? c->long_factors[k] : c->short_factors[k]);
    case HEADWAY_ROPE_PLAIN:
    case HEADWAY_ROPE_DYNAMIC:
        break;
    }
    return plain;
}

/* Blocks of positions keep the lines that a frequency's column crosses in cache. */
void headway_rope_tables(const headway_rope_config *config, int64_t size, float *cos, float *sin)
{
    const double factor = headway_rope_factor(config);
    const int64_t half = size / 2, block = 128;
    for (int64_t from = 0; from < config->positions; from += block)
        for (int64_t k = 0; k < half; k++) {
            const double frequency = headway_rope_frequency(config, size, k);
            const int64_t until = headway_at_most(from + block, config->positions);
            for (int64_t t = from; t < until; t++) {
                double cosine, sine;
                headway_rope_turn(t, frequency, &cosine, &sine);
                cos[t * half + k] = (float)(cosine * factor);
                sin[t * half + k] = (float)(sine * factor);
            }
        }
}

/* ---- the pass ---------------------------------------------------------------------------------- */

static void add_squares(double *restrict part, const float *restrict x)
{
    for (int l = 0; l < 8; l++)
        part[l] += (double)x[l] * (double)x[l];
}

/* r of the norm. Sixteenfold, as 1 / FLT_MAX is subnormal. */
static float norm_factor(const float *x, int64_t size, double eps)
{
    double part[8] = {0};
    int64_t d = 0;
    for (; d + 8 <= size; d += 8)
        add_squares(part, x + d);
    if (d < size) {
        float rest[8] = {0};
        for (int l = 0; d + l < size; l++)
            rest[l] = x[d + l];
        add_squares(part, rest);
    }
    for (int n = 4; n >= 1; n /= 2)
        for (int l = 0; l < n; l++)
            part[l] += part[l + n];
    return (float)(16.0 / sqrt(part[0] * (1.0 / (double)size) + eps));
}

static void norm_line(float *restrict x, const float *restrict norm, int64_t size, float r)
{
    for (int64_t d = 0; d < size; d++)
        x[d] = x[d] * r * norm[d];
}

static void turn_half(float *restrict x, float *restrict y, const float *restrict cos,
                      const float *restrict sin, int64_t half)
{
    for (int64_t k = 0; k < half; k++) {
        const float a = x[k], b = y[k];
        x[k] = a * cos[k] - b * sin[k];
        y[k] = a * sin[k] + b * cos[k];
    }
}

static void turn_interleaved(float *restrict x, const float *restrict cos,
                             const float *restrict sin, int64_t half)
{
    for (int64_t k = 0; k < half; k++) {
        const float a = x[2 * k], b = x[2 * k + 1];
        x[2 * k] = a * cos[k] - b * sin[k];
        x[2 * k + 1] = a * sin[k] + b * cos[k];
    }
}

static int64_t held_by(const struct headway_cached *cached, int64_t b)
{
    return cached->store->lengths[headway_slot(cached, b)];
}

int64_t headway_place(const struct headway_turn_job *job, int64_t b, int64_t i)
{
    const struct headway_places *places = &job->places;
    if (places->data)
        return places->data[headway_linear_offset(job->at, b, i, places->batch, places->row)];
    const int64_t offset = places->cached    ? held_by(places->cached, b)
                           : places->problem ? headway_row_offset(places->problem, b)
                                             : 0;
    return offset > INT64_MAX - i ? INT64_MAX : offset + i;
}

static int64_t turned(const struct headway_turn_job *job)
{
    return job->rope ? job->rope->size : 0;
}

/* Of a head y whose first token is `first`. */
static void put_tokens(const struct headway_turn_job *job, const struct headway_row *row, int64_t b,
                       int64_t first, int64_t count, int64_t head, const float *y)
{
    const struct headway_store *store = job->cached->store;
    const int64_t slot = headway_slot(job->cached, b), token = held_by(job->cached, b) + first;
    for (int64_t n = 0; n < count; n++)
        headway_store_put(row, store, job->pool, slot, head, token + n, job->at->linear->size,
                          y + n * job->at->y_row);
}

/* Tokens first .. first + count - 1 of batch b, all live, in heads from .. until - 1, one by one. */
static void turn_tokens(const struct headway_turn_job *job, const struct headway_row *row,
                        int64_t b, int64_t first, int64_t count, int64_t from, int64_t until)
{
    const struct headway_linear_job *at = job->at;
    const struct headway_rope *rope = job->rope;
    const int64_t half = turned(job) / 2;
    int64_t line[TURN_TOKENS]; /* of the tables */
    float r[TURN_TOKENS];      /* apart, so that lines' square roots overlap */
    float *y =
        at->y + headway_linear_offset(at, b, first, at->y_batch, at->y_row) + from * at->y_group;

    const int64_t place = half ? headway_place(job, b, first) : 0;
    for (int64_t n = 0; half && n < count; n++)
        line[n] = (job->places.data ? headway_place(job, b, first + n) : place + n) * half;
    for (int64_t h = from; h < until; h++, y += at->y_group) {
        for (int64_t n = 0; job->norm && n < count; n++)
            r[n] = norm_factor(y + n * at->y_row, at->linear->size, job->eps);
        for (int64_t n = 0; n < count; n++) {
            float *x = y + n * at->y_row;
            if (job->norm)
                norm_line(x, job->norm, at->linear->size, r[n]);
            if (half == 0)
                continue;
            const float *cos = rope->cos + line[n], *sin = rope->sin + line[n];
            if (rope->style == HEADWAY_ROPE_HALF)
                turn_half(x, x + half, cos, sin, half);
            else
                turn_interleaved(x, cos, sin, half);
        }
        if (job->cached)
            put_tokens(job, row, b, first, count, h, y);
    }
}

/* The live ones of tokens token .. end - 1. */
static void turn_range(const struct headway_turn_job *job, const struct headway_row *row,
                       int64_t token, int64_t end, int64_t from, int64_t until)
{
    for (int64_t b = headway_linear_batch(job->at, token); token < end; b++) {
        const int64_t first = headway_linear_first(job->at, b);
        const int64_t last = headway_at_most(first + headway_linear_length(job->at, b), end);
        for (; token < last; token += TURN_TOKENS)
            turn_tokens(job, row, b, token - first, headway_at_most(TURN_TOKENS, last - token),
                        from, until);
        token = headway_linear_first(job->at, b + 1);
    }
}

static int has_work(const struct headway_turn_job *job)
{
    return job->norm || turned(job) || job->cached;
}

int64_t headway_turn_span(const struct headway_turn_job *job, const struct headway_row *row)
{
    const int64_t vectors = job->at->linear->group_vectors;
    if (!has_work(job))
        return 0;
    return row->vectors % vectors == 0   ? 1
           : vectors % row->vectors == 0 ? vectors / row->vectors
                                         : 0;
}

void headway_turn_panels(const struct headway_turn_job *job, const struct headway_row *row,
                         int64_t panel, int64_t span, int64_t token, int64_t end)
{
    const struct headway_linear *linear = job->at->linear;
    const int64_t until = (panel + span) * row->vectors / linear->group_vectors;
    turn_range(job, row, token, end, panel * row->vectors / linear->group_vectors,
               headway_at_most(until, linear->groups));
}

struct turn_run {
    const struct headway_row *row;
    const struct headway_turn_job *jobs;
};

static int64_t tasks_of(const struct headway_turn_job *job)
{
    return has_work(job) && !job->at->turn
               ? headway_divide_up(headway_linear_tokens(job->at), TURN_TOKENS)
               : 0;
}

static void turn_task(void *context, int64_t task, int worker)
{
    const struct turn_run *run = context;
    const struct headway_turn_job *job = run->jobs;
    (void)worker;
    for (; task >= tasks_of(job); job++)
        task -= tasks_of(job);
    const int64_t token = task * TURN_TOKENS;
    turn_range(job, run->row, token,
               headway_at_most(token + TURN_TOKENS, headway_linear_tokens(job->at)), 0,
               job->at->linear->groups);
}

void headway_turn_run(const struct headway_machine *machine, const struct headway_turn_job *jobs,
                      int count)
{
    struct turn_run run = {machine->row, jobs};
    int64_t tasks = 0;
    double flops = 0.0;
    for (int j = 0; j < count; j++) {
        const struct headway_linear *linear = jobs[j].at->linear;
        tasks += tasks_of(&jobs[j]);
        flops += 8.0 * (double)headway_linear_tokens(jobs[j].at) *
                 (double)(linear->groups * linear->size);
    }
    headway_parallel(&machine->team, headway_threads_for(flops, machine->team.threads), tasks,
                     turn_task, &run);
}
