/* Online softmax and the merging of segments for AVX2 and FMA: lanes never meet, so both are the
 * contract's operations on vectors. */
#include "cpu/exp_poly.h"
#include "cpu/kernels.h"
#include "cpu/tanh_poly.h"
#include "cpu/unroll.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { LANES = 8, MAX_VECTORS = 3, AT_ONCE = 2, RUNS = 4 };

headway_softmax_fn headway_softmax_avx2;
headway_merge_fn headway_merge_avx2;

/* max(a, b) is a > b ? a : b, and so b where either is NaN: the operands' order is the
 * contract's. */
#define MAX(a, b) _mm256_max_ps(a, b)

/* exp_poly.h's e for n vectors in place; where they are near, no less than HEADWAY_EXP_MIN, nothing
 * need be held back. n and near are constants. Two at once, step by step, take 0.93 of the time of
 * one after the other (Zen 4, measured); more run out of registers. */
INLINE void exp_each(__m256 *t, const int n, const int near)
{
    static const float factors[] = {HEADWAY_EXP_C4, HEADWAY_EXP_C3, HEADWAY_EXP_C2, HEADWAY_EXP_C1,
                                    HEADWAY_EXP_C0};
    const __m256 shift = _mm256_set1_ps(HEADWAY_EXP_SHIFT);
    __m256 u[AT_ONCE], p[AT_ONCE];

    UNROLL
    for (int i = 0; i < n; i++) {
        if (!near)
            t[i] = MAX(_mm256_set1_ps(HEADWAY_EXP_MIN), t[i]);
        u[i] = _mm256_add_ps(t[i], shift);
        t[i] = _mm256_sub_ps(t[i], _mm256_sub_ps(u[i], shift));
        p[i] = _mm256_set1_ps(HEADWAY_EXP_C5);
    }
    UNROLL
    for (int c = 0; c < 5; c++) {
        UNROLL
        for (int i = 0; i < n; i++)
            p[i] = _mm256_fmadd_ps(p[i], t[i], _mm256_set1_ps(factors[c]));
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(u[i]), 23);
        t[i] = _mm256_mul_ps(p[i], _mm256_castsi256_ps(power));
    }
}

INLINE __m256 exp_one(__m256 t)
{
    exp_each(&t, 1, 0);
    return t;
}

/* top, but 0 where it is -inf. */
INLINE __m256 reference(__m256 top)
{
    const __m256 nothing = _mm256_cmp_ps(top, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
    return _mm256_andnot_ps(nothing, top);
}

/* tanh_poly.h's tanh of a size, which is no less than 0 or a NaN. */
INLINE __m256 tanh_of(__m256 size)
{
    const __m256 shift = _mm256_set1_ps(HEADWAY_TANH_SHIFT), half = _mm256_set1_ps(0.5f);
    const __m256 x = _mm256_min_ps(_mm256_set1_ps(HEADWAY_TANH_MAX), size);
    const __m256 u = _mm256_fmadd_ps(x, _mm256_set1_ps(HEADWAY_TANH_RATE), shift);
    const __m256 n = _mm256_sub_ps(u, shift);
    const __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(HEADWAY_TANH_STEP), x);
    const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(u), 23));
    __m256 p = _mm256_set1_ps(HEADWAY_TANH_C6);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(HEADWAY_TANH_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(HEADWAY_TANH_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(HEADWAY_TANH_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(HEADWAY_TANH_C2));
    const __m256 e = _mm256_fmadd_ps(_mm256_mul_ps(r, p), r, r);
    const __m256 h = _mm256_fmadd_ps(e, power, _mm256_fmsub_ps(power, half, half));
    return _mm256_div_ps(h, _mm256_add_ps(h, _mm256_set1_ps(1.0f)));
}

INLINE __m256i load_ints(const int32_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

/* All ones in the lanes of vector v whose bit is set. The four bytes from the vector's own on are
 * within the word: v <= 2. */
INLINE __m256 lanes_of(const uint64_t *word, int v)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    int bits;

    memcpy(&bits, (const char *)word + v, sizeof bits);
    return _mm256_castsi256_ps(
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), bit), bit));
}

/* What a call gives besides the scores. */
enum { CAP = 1, SLOPE = 2, BIAS = 4, ALLOWED = 8, RANGE = 16 };

/* First pass down one vector's lanes, v: what is given goes into the scores; returns their maximum
 * with row_max. Options may be a constant: then the loop asks for nothing. */
INLINE __m256 apply(const struct headway_softmax *s, int v, const unsigned options)
{
    const __m256 excluded = _mm256_set1_ps(-INFINITY), sign = _mm256_set1_ps(-0.0f);
    const __m256 limit = _mm256_set1_ps(HEADWAY_TANH_LIMIT(s->cap));
    const __m256i one = _mm256_set1_epi32(1);
    const ptrdiff_t w = (ptrdiff_t)s->vectors * LANES, column = (ptrdiff_t)v * LANES;
    const int keys = s->keys;
    float *const scores = s->scores + column;
    const float *const slopes = options & SLOPE ? s->slope + column : NULL;
    const int32_t *const distances = options & SLOPE ? s->distance + column : NULL;
    const float *const biases = options & BIAS ? s->bias + column : NULL;
    const int32_t *const first = options & RANGE ? s->first + column : NULL;
    const int32_t *const last = options & RANGE ? s->last + column : NULL;
    const uint64_t *const allowed = s->allowed;
    __m256 top = _mm256_loadu_ps(s->row_max + column);
    __m256i key = _mm256_setzero_si256();

    for (int j = 0; j < keys; j++) {
        float *at = scores + j * w;
        __m256 score = _mm256_loadu_ps(at);
        if (options & CAP) {
            const __m256 size = _mm256_min_ps(limit, _mm256_andnot_ps(sign, score));
            const __m256 x = _mm256_mul_ps(size, _mm256_broadcast_ss(&s->inverse_cap));
            const __m256 capped = _mm256_mul_ps(_mm256_broadcast_ss(&s->cap), tanh_of(x));
            score = _mm256_or_ps(capped, _mm256_and_ps(score, sign));
        }
        if (options & SLOPE) {
            const __m256i place = _mm256_add_epi32(key, load_ints(distances));
            score = _mm256_fmadd_ps(_mm256_loadu_ps(slopes), _mm256_cvtepi32_ps(place), score);
        }
        if (options & BIAS) {
            const __m256 bias = _mm256_loadu_ps(biases + j * w);
            score = _mm256_fmadd_ps(bias, _mm256_set1_ps(HEADWAY_EXP_UNIT), score);
            score = _mm256_blendv_ps(score, excluded, _mm256_cmp_ps(bias, excluded, _CMP_EQ_OQ));
        }
        if (options & ALLOWED)
            score = _mm256_blendv_ps(excluded, score, lanes_of(allowed + j, v));
        if (options & RANGE) {
            const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(load_ints(first), key),
                                                       _mm256_cmpgt_epi32(load_ints(last), key));
            score = _mm256_blendv_ps(excluded, score, _mm256_castsi256_ps(inside));
        }
        key = _mm256_add_epi32(key, one);
        _mm256_storeu_ps(at, score);
        top = MAX(score, top);
    }
    return top;
}

/* One loop for each option that usually comes alone, one for all others; a softcap has enough to do
 * to be better off by itself. */
static __attribute__((noinline)) void apply_options(const struct headway_softmax *s, int v,
                                                    unsigned options)
{
    __m256 top = _mm256_loadu_ps(s->row_max + v * LANES);

    if (options & CAP)
        top = apply(s, v, CAP);
    switch (options & ~CAP) {
    case 0:
        break;
    case BIAS:
        top = apply(s, v, BIAS);
        break;
    case ALLOWED:
        top = apply(s, v, ALLOWED);
        break;
    case RANGE:
        top = apply(s, v, RANGE);
        break;
    default:
        top = apply(s, v, options & ~CAP);
        break;
    }
    _mm256_storeu_ps(s->rescale + v * LANES, top);
}

/* First pass where nothing but the scores is given. Vectors is a constant where this is inlined. Keys
 * go in runs side by side, so that no maximum waits for the one before, and the first of equals, of a
 * zero and another, is the first of all keys. */
INLINE void find_maximum(const struct headway_softmax *s, const int vectors)
{
    const ptrdiff_t w = vectors * LANES, run = s->keys / RUNS * w;
    const float *scores = s->scores;
    __m256 top[RUNS][MAX_VECTORS];

    UNROLL
    for (int v = 0; v < vectors; v++) {
        top[0][v] = _mm256_loadu_ps(s->row_max + v * LANES);
        UNROLL
        for (int r = 1; r < RUNS; r++)
            top[r][v] = _mm256_set1_ps(-INFINITY);
    }
    for (ptrdiff_t at = 0; at < run; at += w) {
        UNROLL
        for (int r = 0; r < RUNS; r++) {
            UNROLL
            for (int v = 0; v < vectors; v++)
                top[r][v] = MAX(_mm256_loadu_ps(scores + r * run + at + v * LANES), top[r][v]);
        }
    }
    for (ptrdiff_t at = RUNS * run; at < s->keys * w; at += w) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            top[RUNS - 1][v] = MAX(_mm256_loadu_ps(scores + at + v * LANES), top[RUNS - 1][v]);
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        UNROLL
        for (int r = 1; r < RUNS; r++)
            top[0][v] = MAX(top[r][v], top[0][v]);
        _mm256_storeu_ps(s->rescale + v * LANES, top[0][v]);
    }
}

/* Leaves the maxima in s->rescale. */
static void first_pass(const struct headway_softmax *s)
{
    const unsigned options = (s->cap > 0 ? CAP : 0) | (s->slope ? SLOPE : 0) |
                             (s->bias ? BIAS : 0) | (s->allowed ? ALLOWED : 0) |
                             (s->first ? RANGE : 0);

    if (options)
        for (int v = 0; v < s->vectors; v++)
            apply_options(s, v, options);
    else if (s->highest)
        for (int lane = 0; lane < s->vectors * LANES; lane += LANES)
            _mm256_storeu_ps(s->rescale + lane, MAX(_mm256_loadu_ps(s->highest + lane),
                                                    _mm256_loadu_ps(s->row_max + lane)));
    else if (s->vectors == 3)
        find_maximum(s, 3);
    else if (s->vectors == 2)
        find_maximum(s, 2);
    else
        find_maximum(s, 1);
}

/* Turns the scores of n keys into weights in one vector's lanes; returns row_sum with them added in
 * order. n and near are constants. */
INLINE __m256 weigh_keys(float *scores, const int n, const int near, ptrdiff_t w, __m256 ref,
                         __m256 row_sum)
{
    __m256 p[AT_ONCE];

    UNROLL
    for (int i = 0; i < n; i++)
        p[i] = _mm256_sub_ps(_mm256_loadu_ps(scores + i * w), ref);
    exp_each(p, n, near);
    UNROLL
    for (int i = 0; i < n; i++) {
        row_sum = _mm256_add_ps(row_sum, p[i]);
        _mm256_storeu_ps(scores + i * w, p[i]);
    }
    return row_sum;
}

INLINE __m256 weigh(float *scores, int keys, const int near, ptrdiff_t w, __m256 ref,
                    __m256 row_sum)
{
    int j = 0;

    for (; j + AT_ONCE <= keys; j += AT_ONCE)
        row_sum = weigh_keys(scores + j * w, AT_ONCE, near, w, ref, row_sum);
    for (; j < keys; j++)
        row_sum = weigh_keys(scores + j * w, 1, near, w, ref, row_sum);
    return row_sum;
}

/* No score of these lanes is so far below its reference that exp would be held at its lowest. */
INLINE int all_near(const struct headway_softmax *s, ptrdiff_t lane, __m256 ref)
{
    if (!s->lowest)
        return 0;
    const __m256 least = _mm256_sub_ps(_mm256_loadu_ps(s->lowest + lane), ref);
    return _mm256_movemask_ps(_mm256_cmp_ps(least, _mm256_set1_ps(HEADWAY_EXP_MIN), _CMP_NGE_UQ)) ==
           0;
}

void headway_softmax_avx2(const struct headway_softmax *s)
{
    const ptrdiff_t w = (ptrdiff_t)s->vectors * LANES;

    first_pass(s);
    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const __m256 top = _mm256_loadu_ps(s->rescale + lane);
        const __m256 old = _mm256_loadu_ps(s->row_max + lane);
        const __m256 rescale = exp_one(_mm256_sub_ps(old, reference(top)));
        _mm256_storeu_ps(s->row_sum + lane, _mm256_mul_ps(_mm256_loadu_ps(s->row_sum + lane), rescale));
        _mm256_storeu_ps(s->rescale + lane, rescale);
        _mm256_storeu_ps(s->row_max + lane, top);
    }
    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const __m256 ref = reference(_mm256_loadu_ps(s->row_max + lane));
        __m256 row_sum = _mm256_loadu_ps(s->row_sum + lane);
        if (all_near(s, lane, ref))
            row_sum = weigh(s->scores + lane, s->keys, 1, w, ref, row_sum);
        else
            row_sum = weigh(s->scores + lane, s->keys, 0, w, ref, row_sum);
        _mm256_storeu_ps(s->row_sum + lane, row_sum);
    }
}

void headway_merge_avx2(const struct headway_merge *g)
{
    const ptrdiff_t w = (ptrdiff_t)g->vectors * LANES;

    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const __m256 row_max = _mm256_loadu_ps(g->row_max + lane);
        const __m256 later_max = _mm256_loadu_ps(g->later_max + lane);
        const __m256 top = MAX(later_max, row_max);
        const __m256 ref = reference(top);
        const __m256 x = exp_one(_mm256_sub_ps(row_max, ref));
        const __m256 y = exp_one(_mm256_sub_ps(later_max, ref));

        _mm256_storeu_ps(g->row_max + lane, top);
        _mm256_storeu_ps(g->row_sum + lane,
                         _mm256_fmadd_ps(_mm256_loadu_ps(g->row_sum + lane), x,
                                         _mm256_mul_ps(_mm256_loadu_ps(g->later_sum + lane), y)));
        for (int64_t d = 0; d < g->m; d++) {
            float *sum = g->sum + d * w + lane;
            const __m256 later =
                g->later ? _mm256_loadu_ps(g->later + d * w + lane) : _mm256_setzero_ps();
            _mm256_storeu_ps(sum,
                             _mm256_fmadd_ps(_mm256_loadu_ps(sum), x, _mm256_mul_ps(later, y)));
        }
    }
}
