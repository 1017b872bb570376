/* Online softmax and the merging of segments for AVX2 and FMA: lanes never meet, so both are the
 * contract's operations on vectors. */
#include "cpu/exp_poly.h"
#include "cpu/kernels.h"

#include <immintrin.h>
#include <math.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8, MAX_VECTORS = 3, AT_ONCE = 2 };

headway_softmax_fn headway_softmax_avx2;
headway_merge_fn headway_merge_avx2;

/* max(a, b) is a > b ? a : b, and so b where either is NaN: the operands' order is the
 * contract's. */
#define MAX(a, b) _mm256_max_ps(a, b)

/* exp_poly.h's e for n vectors in place, n a constant. Two at once, step by step, take 0.93 of
 * the time of one after the other (Zen 4, measured); more run out of registers. */
INLINE void exp_each(__m256 *t, const int n)
{
    static const float factors[] = {HEADWAY_EXP_C4, HEADWAY_EXP_C3, HEADWAY_EXP_C2, HEADWAY_EXP_C1,
                                    HEADWAY_EXP_C0};
    const __m256 shift = _mm256_set1_ps(HEADWAY_EXP_SHIFT);
    __m256 u[AT_ONCE], p[AT_ONCE];

    UNROLL for (int i = 0; i < n; i++) {
        t[i] = MAX(_mm256_set1_ps(HEADWAY_EXP_MIN), t[i]);
        u[i] = _mm256_add_ps(t[i], shift);
        t[i] = _mm256_sub_ps(t[i], _mm256_sub_ps(u[i], shift));
        p[i] = _mm256_set1_ps(HEADWAY_EXP_C5);
    }
    UNROLL for (int c = 0; c < 5; c++)
        UNROLL for (int i = 0; i < n; i++)
            p[i] = _mm256_fmadd_ps(p[i], t[i], _mm256_set1_ps(factors[c]));
    UNROLL for (int i = 0; i < n; i++) {
        const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(u[i]), 23);
        t[i] = _mm256_mul_ps(p[i], _mm256_castsi256_ps(power));
    }
}

INLINE __m256 exp_one(__m256 t)
{
    exp_each(&t, 1);
    return t;
}

/* top, but 0 where it is -inf. */
INLINE __m256 reference(__m256 top)
{
    const __m256 nothing = _mm256_cmp_ps(top, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
    return _mm256_andnot_ps(nothing, top);
}

/* Applies bias and limits to the scores of `vectors` vectors from vector v on and stores in top
 * their maximum with row_max. Vectors, biased and limited are constants where this is inlined. */
INLINE void limit(const struct headway_softmax *s, float *top_out, const int vectors,
                  const int biased, const int limited)
{
    const __m256 excluded = _mm256_set1_ps(-INFINITY);
    const int w = vectors * LANES;
    __m256 top[MAX_VECTORS];
    __m256i first[MAX_VECTORS], last[MAX_VECTORS];

    UNROLL for (int v = 0; v < vectors; v++) {
        top[v] = _mm256_loadu_ps(s->row_max + v * LANES);
        if (limited) {
            first[v] = _mm256_loadu_si256((const __m256i *)(const void *)(s->first + v * LANES));
            last[v] = _mm256_loadu_si256((const __m256i *)(const void *)(s->last + v * LANES));
        }
    }
    for (int j = 0; j < s->keys; j++) {
        float *scores = s->scores + j * w;
        const __m256i key = _mm256_set1_epi32(j);
        UNROLL for (int v = 0; v < vectors; v++) {
            __m256 score = _mm256_loadu_ps(scores + v * LANES);
            if (biased) {
                const __m256 bias = _mm256_loadu_ps(s->bias + j * w + v * LANES);
                score = _mm256_fmadd_ps(bias, _mm256_set1_ps(HEADWAY_EXP_UNIT), score);
                score = _mm256_blendv_ps(score, excluded,
                                         _mm256_cmp_ps(bias, excluded, _CMP_EQ_OQ));
            }
            if (limited) {
                const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(first[v], key),
                                                           _mm256_cmpgt_epi32(last[v], key));
                score = _mm256_blendv_ps(excluded, score, _mm256_castsi256_ps(inside));
            }
            if (biased || limited)
                _mm256_storeu_ps(scores + v * LANES, score);
            top[v] = MAX(score, top[v]);
        }
    }
    UNROLL for (int v = 0; v < vectors; v++)
        _mm256_storeu_ps(top_out + v * LANES, top[v]);
}

INLINE void limit_as_asked(const struct headway_softmax *s, float *top, const int vectors)
{
    if (s->bias && s->first)
        limit(s, top, vectors, 1, 1);
    else if (s->bias)
        limit(s, top, vectors, 1, 0);
    else if (s->first)
        limit(s, top, vectors, 0, 1);
    else
        limit(s, top, vectors, 0, 0);
}

/* Turns the scores of n keys, n a constant, into weights in one vector's lanes; returns row_sum
 * with them added in order. */
INLINE __m256 weigh_keys(float *scores, const int n, ptrdiff_t w, __m256 ref, __m256 row_sum)
{
    __m256 p[AT_ONCE];

    UNROLL for (int i = 0; i < n; i++)
        p[i] = _mm256_sub_ps(_mm256_loadu_ps(scores + i * w), ref);
    exp_each(p, n);
    UNROLL for (int i = 0; i < n; i++) {
        row_sum = _mm256_add_ps(row_sum, p[i]);
        _mm256_storeu_ps(scores + i * w, p[i]);
    }
    return row_sum;
}

INLINE __m256 weigh(float *scores, int keys, ptrdiff_t w, __m256 ref, __m256 row_sum)
{
    int j = 0;

    for (; j + AT_ONCE <= keys; j += AT_ONCE)
        row_sum = weigh_keys(scores + j * w, AT_ONCE, w, ref, row_sum);
    for (; j < keys; j++)
        row_sum = weigh_keys(scores + j * w, 1, w, ref, row_sum);
    return row_sum;
}

void headway_softmax_avx2(const struct headway_softmax *s)
{
    const ptrdiff_t w = (ptrdiff_t)s->vectors * LANES;
    float tops[MAX_VECTORS * LANES];

    switch (s->vectors) {
    case 3: limit_as_asked(s, tops, 3); break;
    case 2: limit_as_asked(s, tops, 2); break;
    default: limit_as_asked(s, tops, 1); break;
    }
    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const __m256 top = _mm256_loadu_ps(tops + lane);
        const __m256 ref = reference(top);
        const __m256 rescale = exp_one(_mm256_sub_ps(_mm256_loadu_ps(s->row_max + lane), ref));
        const __m256 row_sum = _mm256_mul_ps(_mm256_loadu_ps(s->row_sum + lane), rescale);
        _mm256_storeu_ps(s->row_sum + lane,
                         weigh(s->scores + lane, s->keys, w, ref, row_sum));
        _mm256_storeu_ps(s->rescale + lane, rescale);
        _mm256_storeu_ps(s->row_max + lane, top);
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
            const __m256 later = _mm256_mul_ps(_mm256_loadu_ps(g->later + d * w + lane), y);
            _mm256_storeu_ps(sum, _mm256_fmadd_ps(_mm256_loadu_ps(sum), x, later));
        }
    }
}
