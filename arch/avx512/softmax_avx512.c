/* Online softmax and segment merge for AVX-512: lanes are query rows, so maximum, sum and rescaling
 * are vertical and nothing is reduced across lanes. The operations and their order are those of
 * cpu/kernels.h, cpu/exp_poly.h and cpu/tanh_poly.h. */
#include <immintrin.h>

#include "cpu/exp_poly.h"
#include "cpu/kernels.h"
#include "cpu/tanh_poly.h"
#include "cpu/unroll.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#define LANES 16

/* exp_poly.h's e of x no less than HEADWAY_EXP_MIN, or a NaN. */
INLINE __m512 exp_near(__m512 x)
{
    const __m512 shift = _mm512_set1_ps(HEADWAY_EXP_SHIFT);
    const __m512 u = _mm512_add_ps(x, shift);
    const __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(u, shift));
    const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(u), 23));
    __m512 p = _mm512_set1_ps(HEADWAY_EXP_C5);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(HEADWAY_EXP_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(HEADWAY_EXP_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(HEADWAY_EXP_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(HEADWAY_EXP_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(HEADWAY_EXP_C0));
    return _mm512_mul_ps(p, power);
}

/* max_ps(a, b) is a > b ? a : b, b when either is a NaN: with the limit first a NaN passes through.
 */
INLINE __m512 exp_f32x16(__m512 t)
{
    return exp_near(_mm512_max_ps(_mm512_set1_ps(HEADWAY_EXP_MIN), t));
}

/* The reference of the exponents: a maximum of -inf (no key so far) counts as 0. */
INLINE __m512 reference_of(__m512 top)
{
    const __mmask16 empty = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
    return _mm512_mask_blend_ps(empty, top, _mm512_setzero_ps());
}

/* tanh_poly.h's tanh of a size, which is no less than 0 or a NaN. */
INLINE __m512 tanh_f32x16(__m512 size)
{
    const __m512 shift = _mm512_set1_ps(HEADWAY_TANH_SHIFT), half = _mm512_set1_ps(0.5f);
    const __m512 x = _mm512_min_ps(_mm512_set1_ps(HEADWAY_TANH_MAX), size);
    const __m512 u = _mm512_fmadd_ps(x, _mm512_set1_ps(HEADWAY_TANH_RATE), shift);
    const __m512 n = _mm512_sub_ps(u, shift);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(HEADWAY_TANH_STEP), x);
    const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(u), 23));
    __m512 p = _mm512_set1_ps(HEADWAY_TANH_C6);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(HEADWAY_TANH_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(HEADWAY_TANH_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(HEADWAY_TANH_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(HEADWAY_TANH_C2));
    const __m512 e = _mm512_fmadd_ps(_mm512_mul_ps(r, p), r, r);
    const __m512 h = _mm512_fmadd_ps(e, power, _mm512_fmsub_ps(power, half, half));
    return _mm512_div_ps(h, _mm512_add_ps(h, _mm512_set1_ps(1.0f)));
}

/* What a call gives besides the scores. */
enum { CAP = 1, SLOPE = 2, BIAS = 4, ALLOWED = 8, RANGE = 16 };

/* First pass down one vector's lanes, v, for keys from .. until - 1: what is given goes into the
 * scores; returns their maximum with top. Options are a constant: the loop asks for nothing. */
INLINE __m512 apply(const struct headway_softmax *s, int v, const unsigned options, int from,
                    int until, __m512 top)
{
    const __m512 minus_inf = _mm512_set1_ps(-__builtin_inff());
    const __m512 unit = _mm512_set1_ps(HEADWAY_EXP_UNIT), sign = _mm512_set1_ps(-0.0f);
    const __m512 cap = _mm512_set1_ps(s->cap), inverse = _mm512_set1_ps(s->inverse_cap);
    const __m512 limit = _mm512_set1_ps(HEADWAY_TANH_LIMIT(s->cap));
    const __m512i one = _mm512_set1_epi32(1), zero = _mm512_setzero_si512();
    const ptrdiff_t width = (ptrdiff_t)s->vectors * LANES, column = (ptrdiff_t)v * LANES;
    const __m512 slope = options & SLOPE ? _mm512_loadu_ps(s->slope + column) : top;
    const __m512i distance = options & SLOPE ? _mm512_loadu_si512(s->distance + column) : zero;
    const __m512i first = options & RANGE ? _mm512_loadu_si512(s->first + column) : zero;
    const __m512i last = options & RANGE ? _mm512_loadu_si512(s->last + column) : zero;
    __m512i key = _mm512_set1_epi32(from);

    for (int j = from; j < until; j++) {
        float *at = s->scores + j * width + column;
        __m512 score = _mm512_loadu_ps(at);
        if (options & CAP) {
            const __m512 size = _mm512_min_ps(limit, _mm512_abs_ps(score));
            const __m512 capped = _mm512_mul_ps(cap, tanh_f32x16(_mm512_mul_ps(size, inverse)));
            score = _mm512_or_ps(capped, _mm512_and_ps(score, sign));
        }
        if (options & SLOPE) {
            const __m512i place = _mm512_add_epi32(key, distance);
            score = _mm512_fmadd_ps(slope, _mm512_cvtepi32_ps(place), score);
        }
        if (options & BIAS) {
            const __m512 bias = _mm512_loadu_ps(s->bias + j * width + column);
            const __mmask16 out = _mm512_cmp_ps_mask(bias, minus_inf, _CMP_EQ_OQ);
            score = _mm512_fmadd_ps(bias, unit, score);
            score = _mm512_mask_blend_ps(out, score, minus_inf);
        }
        if (options & ALLOWED)
            score = _mm512_mask_blend_ps((__mmask16)(s->allowed[j] >> column), minus_inf, score);
        if (options & RANGE) {
            __mmask16 in = _mm512_cmple_epi32_mask(first, key);
            in = _mm512_mask_cmpgt_epi32_mask(in, last, key);
            score = _mm512_mask_blend_ps(in, minus_inf, score);
        }
        key = _mm512_add_epi32(key, one);
        if (options)
            _mm512_storeu_ps(at, score);
        top = _mm512_max_ps(score, top);
    }
    return top;
}

/* One loop for each set of options; a softcap has enough to do to be better off by itself. */
static __attribute__((noinline)) __m512 apply_options(const struct headway_softmax *s, int v,
                                                      unsigned options, int from, int until,
                                                      __m512 top)
{
    if (from >= until)
        return top;
    if (options & CAP) {
        const __m512 capped = apply(s, v, CAP, from, until, top);
        if (options == CAP)
            return capped;
    }
    switch (options & ~(unsigned)CAP) {
#define CASE(options)                                                                              \
    case options:                                                                                  \
        return apply(s, v, options, from, until, top);
        CASE(0)
        CASE(SLOPE)
        CASE(BIAS)
        CASE(SLOPE | BIAS)
        CASE(ALLOWED)
        CASE(SLOPE | ALLOWED)
        CASE(RANGE)
        CASE(SLOPE | RANGE)
        CASE(BIAS | RANGE)
        CASE(SLOPE | BIAS | RANGE)
        CASE(ALLOWED | RANGE)
        CASE(SLOPE | ALLOWED | RANGE)
        CASE(BIAS | ALLOWED)
        CASE(SLOPE | BIAS | ALLOWED)
        CASE(BIAS | ALLOWED | RANGE)
        CASE(SLOPE | BIAS | ALLOWED | RANGE)
#undef CASE
    }
    return top;
}

INLINE int within(int x, int low, int high)
{
    return x < low ? low : x < high ? x : high;
}

/* Where ranges are given, only keys that some lanes see and some don't need to be compared with
 * them; those that none sees are -inf whatever else is given. */
INLINE __m512 apply_ranges(const struct headway_softmax *s, int v, unsigned options, __m512 top)
{
    const ptrdiff_t width = (ptrdiff_t)s->vectors * LANES, column = (ptrdiff_t)v * LANES;
    const __m512i first = _mm512_loadu_si512(s->first + column);
    const __m512i last = _mm512_loadu_si512(s->last + column);
    const __mmask16 any = _mm512_cmplt_epi32_mask(first, last);
    const int begin = within(_mm512_mask_reduce_min_epi32(any, first), 0, s->keys);
    const int end = within(_mm512_mask_reduce_max_epi32(any, last), begin, s->keys);
    const int whole = within(_mm512_reduce_max_epi32(first), begin, end);
    const int part = within(_mm512_reduce_min_epi32(last), whole, end);

    for (int j = begin > 0 ? 0 : end; j < s->keys; j = j + 1 == begin ? end : j + 1)
        _mm512_storeu_ps(s->scores + j * width + column, _mm512_set1_ps(-__builtin_inff()));
    top = apply_options(s, v, options, begin, whole, top);
    top = apply_options(s, v, options & ~(unsigned)RANGE, whole, part, top);
    return apply_options(s, v, options, part, end, top);
}

/* First pass where nothing but the scores is given. */
INLINE void find_maximum(const int vectors, const struct headway_softmax *s, __m512 *top)
{
    const int width = vectors * LANES, keys = s->keys;

    for (int j = 0; j < keys; j++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            const float *at = s->scores + (ptrdiff_t)j * width + v * LANES;
            top[v] = _mm512_max_ps(_mm512_loadu_ps(at), top[v]);
        }
    }
}

/* No score is so far below its reference that exp would be held at its lowest. */
INLINE int all_near(const int vectors, const struct headway_softmax *s, const __m512 *ref)
{
    const __m512 limit = _mm512_set1_ps(HEADWAY_EXP_MIN);
    int far = !s->lowest;

    UNROLL
    for (int v = 0; v < vectors; v++)
        if (s->lowest)
            far |= _mm512_cmp_ps_mask(_mm512_sub_ps(_mm512_loadu_ps(s->lowest + v * LANES), ref[v]),
                                      limit, _CMP_NGE_UQ);
    return !far;
}

/* Second pass: weights in the scores' place; near is a constant. */
INLINE void weigh(const int vectors, const int near, const struct headway_softmax *s,
                  const __m512 *ref, __m512 *sum)
{
    const int width = vectors * LANES, keys = s->keys;
    float *const scores = s->scores;

    for (int j = 0; j < keys; j++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            float *at = scores + (ptrdiff_t)j * width + v * LANES;
            const __m512 t = _mm512_sub_ps(_mm512_loadu_ps(at), ref[v]);
            const __m512 p = near ? exp_near(t) : exp_f32x16(t);
            sum[v] = _mm512_add_ps(sum[v], p);
            _mm512_storeu_ps(at, p);
        }
    }
}

INLINE void softmax(const int vectors, const struct headway_softmax *s)
{
    const unsigned options = (s->cap > 0 ? CAP : 0) | (s->slope ? SLOPE : 0) |
                             (s->bias ? BIAS : 0) | (s->allowed ? ALLOWED : 0) |
                             (s->first ? RANGE : 0);
    __m512 top[HEADWAY_MAX_VECTORS], ref[HEADWAY_MAX_VECTORS], sum[HEADWAY_MAX_VECTORS];

    UNROLL
    for (int v = 0; v < vectors; v++)
        top[v] = _mm512_loadu_ps(s->row_max + v * LANES);
    if (options) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            top[v] = s->first ? apply_ranges(s, v, options, top[v])
                              : apply_options(s, v, options, 0, s->keys, top[v]);
    } else if (s->highest) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            top[v] = _mm512_max_ps(_mm512_loadu_ps(s->highest + v * LANES), top[v]);
    } else {
        find_maximum(vectors, s, top);
    }

    UNROLL
    for (int v = 0; v < vectors; v++) {
        ref[v] = reference_of(top[v]);
        const __m512 old = _mm512_loadu_ps(s->row_max + v * LANES);
        const __m512 rescale = exp_f32x16(_mm512_sub_ps(old, ref[v]));
        sum[v] = _mm512_mul_ps(_mm512_loadu_ps(s->row_sum + v * LANES), rescale);
        _mm512_storeu_ps(s->rescale + v * LANES, rescale);
        _mm512_storeu_ps(s->row_max + v * LANES, top[v]);
    }
    if (all_near(vectors, s, ref))
        weigh(vectors, 1, s, ref, sum);
    else
        weigh(vectors, 0, s, ref, sum);
    UNROLL
    for (int v = 0; v < vectors; v++)
        _mm512_storeu_ps(s->row_sum + v * LANES, sum[v]);
}

headway_softmax_fn headway_softmax_avx512;
headway_merge_fn headway_merge_avx512;

void headway_softmax_avx512(const struct headway_softmax *s)
{
    switch (s->vectors) {
    case 4:
        softmax(4, s);
        break;
    case 3:
        softmax(3, s);
        break;
    case 2:
        softmax(2, s);
        break;
    default:
        softmax(1, s);
        break;
    }
}

void headway_merge_avx512(const struct headway_merge *g)
{
    const int width = g->vectors * LANES;
    for (int v = 0; v < width; v += LANES) {
        const __m512 older = _mm512_loadu_ps(g->row_max + v);
        const __m512 newer = _mm512_loadu_ps(g->later_max + v);
        const __m512 top = _mm512_max_ps(newer, older);
        const __m512 ref = reference_of(top);
        const __m512 x = exp_f32x16(_mm512_sub_ps(older, ref));
        const __m512 y = exp_f32x16(_mm512_sub_ps(newer, ref));
        const __m512 sum = _mm512_fmadd_ps(_mm512_loadu_ps(g->row_sum + v), x,
                                           _mm512_mul_ps(_mm512_loadu_ps(g->later_sum + v), y));
        _mm512_storeu_ps(g->row_sum + v, sum);
        _mm512_storeu_ps(g->row_max + v, top);
        for (int64_t d = 0; d < g->m; d++) {
            float *at = g->sum + d * width + v;
            const __m512 later =
                g->later ? _mm512_loadu_ps(g->later + d * width + v) : _mm512_setzero_ps();
            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), x, _mm512_mul_ps(later, y)));
        }
    }
}
