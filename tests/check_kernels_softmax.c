/* softmax and merge: every number of vectors, lanes of every kind side by side, two blocks in a row
 * so that state is carried, and the error of the scalar row against double. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "check_kernels.h"
#include "cpu/exp_poly.h"

enum { KEYS = HEADWAY_KEY_BLOCK, WIDTH = HEADWAY_MAX_WIDTH, BLOCKS = 2, MAX_M = 130 };

/* What a lane's scores are. */
enum kind {
    ORDINARY,
    WIDE,      /* +-1e4 */
    WIDER,     /* +-2e5 */
    CLOSE,     /* a few last places apart */
    SUBNORMAL, /* scores */
    EQUAL,
    RISING, /* the maximum is the last */
    FALLING,
    MASKED,           /* -inf everywhere */
    ONE_MASKED,       /* -inf for one key */
    ONE_LIVE,         /* -inf for all keys but one */
    MASKED_THEN_LIVE, /* the first block masked */
    FINITE_KINDS,
    ENORMOUS = FINITE_KINDS, /* differences overflow */
    WITH_NAN,
    ALL_NAN,
    WITH_INFINITY,
    KINDS,
    MIXED_FINITE = KINDS, /* lanes of all finite kinds */
    MIXED,                /* of all kinds */
    MODES
};

/* What a case gives besides the scores: any union of these. */
enum { CAP = 1, SLOPE = 2, BIAS = 4, ALLOWED = 8, RANGE = 16, FORMS = 32 };

struct block {
    float scores[KEYS * WIDTH], bias[KEYS * WIDTH];
    float cap, slope[WIDTH];
    int32_t distance[WIDTH], first[WIDTH], last[WIDTH];
    uint64_t allowed[KEYS];
};

struct state {
    float row_max[WIDTH], row_sum[WIDTH], rescale[WIDTH];
};

struct softmax_case {
    int keys, vectors, form;
    enum kind mode;
    int finite;
    int extremes; /* highest and lowest are given */
};

static struct block before, after; /* after: the scalar row's scores */
static enum kind kinds[WIDTH];
static double exact[KEYS + 3], bound[KEYS + 3];
static float measured[KEYS + 3];

static float score_of(struct subject *s, enum kind kind, int j, int keys, int live, int block)
{
    float normal;
    fill_normal(s, &normal, 1, 1);
    switch (kind) {
    case WIDE:
        return normal * 1e4f;
    case WIDER:
        return normal * 2e5f;
    case CLOSE:
        return 37 + (float)below(s, 5) * 0x1p-18f;
    case SUBNORMAL:
        return normal * 0x1p-140f;
    case EQUAL:
        return 3.25f;
    case RISING:
        return (float)j * 0.75f - 20;
    case FALLING:
        return 20 - (float)j * 0.75f;
    case MASKED:
        return -INFINITY;
    case ONE_MASKED:
        return j == live ? -INFINITY : normal * 3;
    case ONE_LIVE:
        return j == live ? normal * 3 : -INFINITY;
    case MASKED_THEN_LIVE:
        return block ? normal * 3 : -INFINITY;
    case ENORMOUS:
        return normal * 1e38f;
    case WITH_NAN:
        return j == live ? NAN : normal * 3;
    case ALL_NAN:
        return NAN;
    case WITH_INFINITY:
        return j == live ? INFINITY : j == keys / 2 ? -INFINITY : normal * 3;
    default:
        return normal * 3;
    }
}

static float bias_of(struct subject *s, const struct softmax_case *x)
{
    static const float finite[] = {0, -0.0f, -1e4f, 1e4f, -INFINITY, 0x1p-149f};
    static const float special[] = {NAN, INFINITY, -FLT_MAX, FLT_MAX, -INFINITY};
    float normal;
    fill_normal(s, &normal, 1, 2);
    if (below(s, 3))
        return normal;
    return x->finite ? finite[below(s, 6)] : special[below(s, 5)];
}

static int32_t limit_of(struct subject *s, int keys)
{
    static const int32_t far[] = {INT32_MIN, INT32_MIN + 1, -1, 0, INT32_MAX - 1, INT32_MAX};
    return below(s, 4) ? below(s, keys + 8) - 4 : far[below(s, 6)];
}

static int excluded(const struct softmax_case *x, int lane, int j)
{
    return (x->form & RANGE && !(before.first[lane] <= j && j < before.last[lane])) ||
           (x->form & ALLOWED && !(before.allowed[j] >> lane & 1));
}

static void fill_lane(struct subject *s, const struct softmax_case *x, int lane, int block)
{
    static const int32_t far[] = {INT32_MIN, -16777217, 0, 16777217, INT32_MAX - KEYS};
    const int w = s->row->lanes * x->vectors, live = below(s, x->keys);

    for (int j = 0; j < x->keys; j++) {
        before.scores[j * w + lane] = score_of(s, kinds[lane], j, x->keys, live, block);
        before.bias[j * w + lane] = x->form & BIAS ? bias_of(s, x) : NAN;
    }
    before.slope[lane] = below(s, 8) ? check_uniform(&s->random, -1, 1) * 0x1p-3f : 0;
    before.distance[lane] = below(s, 6) ? below(s, 9000) - 8191 : far[below(s, 5)];
    before.first[lane] = below(s, 2) ? 0 : limit_of(s, x->keys);
    before.last[lane] = below(s, 2) ? x->keys : limit_of(s, x->keys);
}

static void fill_block(struct subject *s, const struct softmax_case *x, int block)
{
    static const float caps[] = {20, 34.6f, 0.3f, 1e-3f, 1e4f, FLT_MIN, 0x1p-140f, 0x1p124f};
    const int w = s->row->lanes * x->vectors, many = below(s, 4);

    before.cap = below(s, 2) ? caps[0] : caps[below(s, x->finite ? 7 : 8)];
    /* Bits beyond the width say nothing. */
    for (int j = 0; j < x->keys; j++) {
        before.allowed[j] = check_random(&s->random);
        before.allowed[j] |= many > 1 ? check_random(&s->random) : 0;
        before.allowed[j] &= many < 1 ? check_random(&s->random) : UINT64_MAX;
    }
    for (int lane = 0; lane < w; lane++) {
        fill_lane(s, x, lane, block);
        /* What is excluded may hold anything. */
        for (int j = 0; !x->finite && j < x->keys; j++)
            if (excluded(x, lane, j) && below(s, 2))
                check_poison(
                    below(s, 2) ? &before.scores[j * w + lane] : &before.bias[j * w + lane], 1);
    }
}

static void fill_state(struct subject *s, const struct softmax_case *x, struct state *state)
{
    const int w = s->row->lanes * x->vectors;
    for (int lane = 0; lane < w; lane++) {
        const int fresh = below(s, 2);
        state->row_max[lane] = fresh ? -INFINITY : check_uniform(&s->random, -30, 30);
        state->row_sum[lane] = fresh ? 0 : check_uniform(&s->random, 1, 500);
        if (!x->finite && !below(s, 6))
            state->row_sum[lane] = NAN;
        if (!x->finite && !below(s, 6))
            state->row_max[lane] = INFINITY;
    }
    check_poison(state->rescale, w);
}

static float inverse_of(float cap)
{
    return cap < 0x1p-127f ? FLT_MAX : 1 / cap;
}

static struct headway_softmax describe(const struct softmax_case *x, struct block *block,
                                       struct state *state)
{
    return (struct headway_softmax){
        .keys = x->keys,
        .vectors = x->vectors,
        .scores = block->scores,
        .cap = x->form & CAP ? block->cap : 0,
        .inverse_cap = inverse_of(block->cap),
        .slope = x->form & SLOPE ? block->slope : NULL,
        .distance = x->form & SLOPE ? block->distance : NULL,
        .bias = x->form & BIAS ? block->bias : NULL,
        .allowed = x->form & ALLOWED ? block->allowed : NULL,
        .first = x->form & RANGE ? block->first : NULL,
        .last = x->form & RANGE ? block->last : NULL,
        .row_max = state->row_max,
        .row_sum = state->row_sum,
        .rescale = state->rescale,
    };
}

/* 4^t in double and how far the exponential may be from it, when t is itself wrong by at most dt.
 */
static double power(double t, double dt, double *error)
{
    const double value = exp2(2 * t);
    *error = value * (2 * 0x1p-23 + expm1(1.38629437 * dt)) * (1 + 0x1p-10);
    if (2 * (t - dt) <= -125.5)
        *error += 0x1p-125;
    return value;
}

/* A finite lane's score in double, and how far a float may be from it. */
static double exact_score(const struct subject *s, const struct softmax_case *x, int lane, int j,
                          double *slack)
{
    const int at = j * s->row->lanes * x->vectors + lane;
    double score = (double)before.scores[at];

    *slack = 0;
    if (x->form & CAP) {
        const double cap = (double)before.cap, inverse = (double)inverse_of(before.cap);
        score = fmax(-16 * cap, fmin(score, 16 * cap));
        const double size = tanh(score * inverse);
        *slack = cap * (5 * UNIT_ROUNDOFF * fabs(size) + 4 * SMALLEST +
                        UNIT_ROUNDOFF * fmin(fabs(score * inverse), 12) * (1 - size * size)) +
                 UNIT_ROUNDOFF * fabs(cap * size) + SMALLEST;
        score = cap * size;
    }
    if (x->form & SLOPE) {
        const double place = (double)before.distance[lane] + j;
        score += (double)before.slope[lane] * place;
        *slack +=
            UNIT_ROUNDOFF * (fabs((double)before.slope[lane] * place) + fabs(score)) + SMALLEST;
        if (!isfinite(score))
            *slack = 0;
    }
    if (x->form & BIAS) {
        score += (double)before.bias[at] * (double)HEADWAY_EXP_UNIT;
        *slack = isfinite(score) ? *slack + UNIT_ROUNDOFF * (fabs(score) + *slack) + SMALLEST : 0;
    }
    if (excluded(x, lane, j)) {
        *slack = 0;
        score = -INFINITY;
    }
    return score;
}

/* One finite lane: weights, sum and rescaling, given the maximum, which is checked too. */
static void lane_against_double(struct subject *s, const struct softmax_case *x, int lane,
                                const struct state *old, const struct state *new)
{
    const int w = s->row->lanes * x->vectors;
    double score[KEYS], slack[KEYS], top = (double)old->row_max[lane], top_slack = 0;

    for (int j = 0; j < x->keys; j++) {
        score[j] = exact_score(s, x, lane, j, &slack[j]);
        if (score[j] > top)
            top = score[j];
        if (slack[j] > top_slack)
            top_slack = slack[j];
    }
    const double ref = (double)new->row_max[lane] == -INFINITY ? 0 : (double)new->row_max[lane];
    measured[x->keys] = new->row_max[lane];
    exact[x->keys] = top;
    bound[x->keys] = top_slack;

    double t = (double)old->row_max[lane] - ref, error;
    const double rescale = power(t, isfinite(t) ? UNIT_ROUNDOFF * fabs(t) : 0, &error);
    measured[x->keys + 1] = new->rescale[lane];
    exact[x->keys + 1] = rescale;
    bound[x->keys + 1] = error;

    double sum = (double)old->row_sum[lane] * rescale,
           sum_error = (double)old->row_sum[lane] * error;
    for (int j = 0; j < x->keys; j++) {
        t = score[j] - ref;
        const double dt = isfinite(t) ? UNIT_ROUNDOFF * (fabs(t) + slack[j]) + slack[j] : 0;
        exact[j] = power(t, dt, &error);
        bound[j] = error;
        measured[j] = after.scores[j * w + lane];
        sum += exact[j];
        sum_error += error;
    }
    measured[x->keys + 2] = new->row_sum[lane];
    exact[x->keys + 2] = sum;
    bound[x->keys + 2] = sum_error + (x->keys + 1) * (UNIT_ROUNDOFF * (sum + sum_error) + SMALLEST);
    check_bound(measured, exact, bound, x->keys + 3, s->label);
}

/* The highest or the lowest of a lane's scores, in guarded memory. */
static float *guarded_extremes(const struct subject *s, const struct softmax_case *x, int highest,
                               int at_end)
{
    const int w = s->row->lanes * x->vectors;
    float found[WIDTH];
    for (int lane = 0; lane < w; lane++) {
        found[lane] = highest ? -INFINITY : INFINITY;
        for (int j = 0; j < x->keys; j++) {
            const float score = before.scores[j * w + lane];
            if (highest ? score > found[lane] : score < found[lane])
                found[lane] = score;
        }
    }
    return guarded(found, w, at_end);
}

static void run_guarded(struct subject *s, const struct softmax_case *x, const struct state *old,
                        const struct state *new, int at_end)
{
    const int w = s->row->lanes * x->vectors;
    const int64_t count = (int64_t)x->keys * w;
    struct state *none = (struct state *)(uintptr_t)old; /* replaced before any use */
    struct headway_softmax g = describe(x, &before, none);

    g.scores = guarded(before.scores, count, at_end);
    g.row_max = guarded(old->row_max, w, at_end);
    g.row_sum = guarded(old->row_sum, w, at_end);
    g.rescale = guarded(old->rescale, w, at_end);
    float *bias = x->form & BIAS ? guarded(before.bias, count, at_end) : NULL;
    float *slope = x->form & SLOPE ? guarded(before.slope, w, at_end) : NULL;
    int32_t *distance = x->form & SLOPE ? guarded_ints(before.distance, w, at_end) : NULL;
    uint64_t *allowed = x->form & ALLOWED ? guarded_words(before.allowed, x->keys, at_end) : NULL;
    int32_t *first = x->form & RANGE ? guarded_ints(before.first, w, at_end) : NULL;
    int32_t *last = x->form & RANGE ? guarded_ints(before.last, w, at_end) : NULL;
    g.bias = bias;
    g.slope = slope;
    g.distance = distance;
    g.allowed = allowed;
    g.first = first;
    g.last = last;
    float *highest = x->extremes ? guarded_extremes(s, x, 1, at_end) : NULL;
    float *lowest = x->extremes ? guarded_extremes(s, x, 0, at_end) : NULL;
    g.highest = highest;
    g.lowest = lowest;

    environment_enter();
    s->row->softmax(&g);
    environment_leave(s, x->finite);

    release_read_only(s, bias, before.bias, (size_t)count * sizeof *bias, "bias");
    release_read_only(s, slope, before.slope, (size_t)w * sizeof *slope, "slope");
    release_read_only(s, distance, before.distance, (size_t)w * sizeof *distance, "distance");
    release_read_only(s, allowed, before.allowed, (size_t)x->keys * sizeof *allowed, "allowed");
    release_read_only(s, first, before.first, (size_t)w * sizeof *first, "first");
    release_read_only(s, last, before.last, (size_t)w * sizeof *last, "last");
    if (x->extremes) {
        check_guard_free(highest);
        check_guard_free(lowest);
    }
    release_written(s, g.scores, after.scores, count, w, w, "scores");
    release_written(s, g.row_max, new->row_max, w, w, w, "row_max");
    release_written(s, g.row_sum, new->row_sum, w, w, w, "row_sum");
    release_written(s, g.rescale, new->rescale, w, w, w, "rescale");
}

/* NaN and +inf where they aren't excluded show in row_sum; that of a lane without them is finite.
 */
static void check_rules(struct subject *s, const struct softmax_case *x, const struct state *old,
                        const struct state *new)
{
    const int w = s->row->lanes * x->vectors;
    for (int lane = 0; lane < w; lane++) {
        int bad = isnan(old->row_sum[lane]) || old->row_max[lane] == INFINITY;
        for (int j = 0; j < x->keys; j++) {
            const float bias = x->form & BIAS ? before.bias[j * w + lane] : 0;
            const float given = before.scores[j * w + lane];
            const float capped = x->form & CAP && !isnan(given) ? 0 : given;
            const float score = fmaf(bias, HEADWAY_EXP_UNIT, capped);
            if (excluded(x, lane, j))
                CHECK(after.scores[j * w + lane] == 0 || new->row_max[lane] == INFINITY,
                      "%s: lane %d: an excluded key weighs", s->label, lane);
            else if (bias != -INFINITY)
                bad |= isnan(score) || score == INFINITY;
        }
        if (old->row_max[lane] != INFINITY)
            CHECK(bad == isnan(new->row_sum[lane]), "%s: lane %d: row_sum is %g", s->label, lane,
                  (double)new->row_sum[lane]);
        CHECK(!isnan(new->row_max[lane]), "%s: lane %d: row_max is NaN", s->label, lane);
    }
}

static void softmax_case(struct subject *s, struct softmax_case *x)
{
    const int w = s->row->lanes * x->vectors;
    struct state old, new;

    x->finite = x->mode < FINITE_KINDS || x->mode == MIXED_FINITE;
    for (int lane = 0; lane < w; lane++)
        kinds[lane] = x->mode < KINDS
                          ? x->mode
                          : (enum kind)below(s, x->mode == MIXED ? KINDS : FINITE_KINDS);
    fill_state(s, x, &new);
    for (int block = 0; block < BLOCKS; block++) {
        label(s, "keys %d vectors %d%s%s%s%s%s mode %d block %d", x->keys, x->vectors,
              x->form & CAP ? " cap" : "", x->form & SLOPE ? " slope" : "",
              x->form & BIAS ? " bias" : "", x->form & ALLOWED ? " allowed" : "",
              x->form & RANGE ? " range" : "", (int)x->mode, block);
        fill_block(s, x, block);
        old = new;
        check_poison(old.rescale, w);
        after = before;
        const struct headway_softmax g = describe(x, &after, &new);
        scalar_softmax(s->row, &g);
        check_rules(s, x, &old, &new);
        for (int lane = 0; lane < w && x->finite; lane++)
            lane_against_double(s, x, lane, &old, &new);
        for (x->extremes = 0; x->extremes <= (x->form == 0); x->extremes++) {
            run_guarded(s, x, &old, &new, 0);
            run_guarded(s, x, &old, &new, 1);
        }
    }
}

void check_softmax(struct subject *s)
{
    static const int lengths[] = {1,  2,  3,  4,  5,  7,  8,   9,   15, 16,
                                  17, 31, 33, 63, 64, 65, 100, 127, 128};
    const int count = (int)(sizeof lengths / sizeof *lengths), step = s->quick ? 11 : 1;
    int turn = 0;

    for (int vectors = 1; vectors <= s->row->vectors; vectors++)
        for (int i = 0; i < count; i++)
            for (int form = 0; form < FORMS; form++)
                for (int mode = 0; mode < MODES; mode++) {
                    const int union_of_some = form & (form - 1);
                    if (turn++ % step || (union_of_some && below(s, 4)))
                        continue;
                    struct softmax_case x = {.keys = lengths[i],
                                             .vectors = vectors,
                                             .form = form,
                                             .mode = (enum kind)mode};
                    softmax_case(s, &x);
                }
}

/* ---- merge ----------------------------------------------------------------------------------- */

struct merge_operands {
    float sum[MAX_M * WIDTH], later[MAX_M * WIDTH];
    float row_max[WIDTH], row_sum[WIDTH], later_max[WIDTH], later_sum[WIDTH];
};
static struct merge_operands given, merged;

/* How the two segments' maxima stand to one another. */
static void fill_maxima(struct subject *s, int lane, int finite)
{
    static const float special[] = {INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0};
    float *earlier = &given.row_max[lane], *later = &given.later_max[lane];
    const float scale = below(s, 3) ? 10 : 2e5f;

    fill_normal(s, earlier, 1, scale);
    fill_normal(s, later, 1, scale);
    switch (below(s, 8)) {
    case 0:
        *earlier = -INFINITY;
        break;
    case 1:
        *later = -INFINITY;
        break;
    case 2:
        *earlier = *later = -INFINITY;
        break;
    case 3:
        *later = *earlier;
        break;
    case 4:
        *later = *earlier + 0x1p-10f;
        break;
    default:
        break;
    }
    if (!finite && !below(s, 4))
        *(below(s, 2) ? earlier : later) = special[below(s, 5)];
}

static void fill_merge(struct subject *s, int m, int w, int finite)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, -0.0f, 0x1p-149f};
    fill_normal(s, given.sum, (int64_t)m * w, 5);
    fill_normal(s, given.later, (int64_t)m * w, below(s, 4) ? 5 : 0x1p-128f);
    for (int lane = 0; lane < w; lane++) {
        fill_maxima(s, lane, finite);
        given.row_sum[lane] = check_uniform(&s->random, 1, 512);
        given.later_sum[lane] = check_uniform(&s->random, 1, 512);
        if (given.row_max[lane] == -INFINITY)
            given.row_sum[lane] = 0;
        if (given.later_max[lane] == -INFINITY)
            given.later_sum[lane] = 0;
        if (!finite && !below(s, 5))
            given.row_sum[lane] = NAN;
        if (!finite && !below(s, 5))
            given.later_sum[lane] = NAN;
        for (int d = 0; d < m; d++) {
            if (given.row_max[lane] == -INFINITY)
                given.sum[d * w + lane] = 0;
            if (given.later_max[lane] == -INFINITY)
                given.later[d * w + lane] = 0;
            if (!finite && !below(s, 20))
                given.sum[d * w + lane] = special[below(s, 5)];
            if (!finite && !below(s, 20))
                given.later[d * w + lane] = special[below(s, 5)];
        }
    }
}

static void merge_against_double(struct subject *s, int m, int w)
{
    for (int lane = 0; lane < w; lane++) {
        const double earlier = (double)given.row_max[lane], later = (double)given.later_max[lane];
        const double top = later > earlier ? later : earlier, ref = top == -INFINITY ? 0 : top;
        const double tx = earlier - ref, ty = later - ref;
        double dx, dy;
        const double x = power(tx, isfinite(tx) ? UNIT_ROUNDOFF * fabs(tx) : 0, &dx);
        const double y = power(ty, isfinite(ty) ? UNIT_ROUNDOFF * fabs(ty) : 0, &dy);
        CHECK((double)merged.row_max[lane] == top, "%s: row_max is %g, expected %g", s->label,
              (double)merged.row_max[lane], top);
        for (int d = -1; d < m; d++) {
            const double a = (double)(d < 0 ? given.row_sum[lane] : given.sum[d * w + lane]);
            const double b = (double)(d < 0 ? given.later_sum[lane] : given.later[d * w + lane]);
            const float *got = d < 0 ? &merged.row_sum[lane] : &merged.sum[d * w + lane];
            const double sum = a * x + b * y;
            const double slack = fabs(a) * dx + fabs(b) * dy +
                                 2 * UNIT_ROUNDOFF * (fabs(a) * x + fabs(b) * y) + 2 * SMALLEST;
            check_bound(got, &sum, &slack, 1, s->label);
        }
    }
}

static void merge_guarded(struct subject *s, int m, int vectors, int finite, int zeros, int at_end)
{
    const int w = s->row->lanes * vectors;
    const int64_t count = (int64_t)m * w;
    float *sum = guarded(given.sum, count, at_end);
    float *later = zeros ? NULL : guarded(given.later, count, at_end);
    float *row_max = guarded(given.row_max, w, at_end),
          *row_sum = guarded(given.row_sum, w, at_end);
    float *later_max = guarded(given.later_max, w, at_end);
    float *later_sum = guarded(given.later_sum, w, at_end);
    const struct headway_merge g = {m, vectors, sum, row_max, row_sum, later, later_max, later_sum};

    environment_enter();
    s->row->merge(&g);
    environment_leave(s, finite);

    const size_t width = (size_t)w * sizeof *sum;
    release_read_only(s, later, given.later, (size_t)count * sizeof *later, "later");
    release_read_only(s, later_max, given.later_max, width, "later_max");
    release_read_only(s, later_sum, given.later_sum, width, "later_sum");
    release_written(s, sum, merged.sum, count, w, w, "sum");
    release_written(s, row_max, merged.row_max, w, w, w, "row_max");
    release_written(s, row_sum, merged.row_sum, w, w, w, "row_sum");
}

void check_merge(struct subject *s)
{
    static const int lengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 64, 80, 127, 128, 130};
    const int repeat = s->quick ? 1 : 6;

    for (int vectors = 1; vectors <= s->row->vectors; vectors++)
        for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++)
            for (int turn = 0; turn < 4 * repeat; turn++) {
                const int m = lengths[i], w = s->row->lanes * vectors, finite = turn & 1;
                const int zeros = turn >> 1 & 1;
                label(s, "m %d vectors %d%s%s", m, vectors, finite ? "" : " specials",
                      zeros ? " zeros" : "");
                fill_merge(s, m, w, finite);
                if (zeros)
                    memset(given.later, 0, sizeof given.later);
                merged = given;
                const struct headway_merge g = {m,
                                                vectors,
                                                merged.sum,
                                                merged.row_max,
                                                merged.row_sum,
                                                zeros ? NULL : merged.later,
                                                merged.later_max,
                                                merged.later_sum};
                scalar_merge(s->row, &g);
                if (finite)
                    merge_against_double(s, m, w);
                merge_guarded(s, m, vectors, finite, zeros, 0);
                merge_guarded(s, m, vectors, finite, zeros, 1);
            }
}
