/* Online softmax and segment merge for AVX-512: lanes are query rows, so maximum, sum and rescaling
 * are vertical and nothing is reduced across lanes. The operations and their order are those of
 * cpu/kernels.h and cpu/exp_poly.h. */
#include <immintrin.h>

#include "cpu/exp_poly.h"
#include "cpu/kernels.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

/* max_ps(a, b) is a > b ? a : b, b when either is a NaN: with the limit first a NaN passes through.
 */
INLINE __m512 exp_f32x16(__m512 t)
{
    const __m512 shift = _mm512_set1_ps(HEADWAY_EXP_SHIFT);
    const __m512 x = _mm512_max_ps(_mm512_set1_ps(HEADWAY_EXP_MIN), t);
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

/* The reference of the exponents: a maximum of -inf (no key so far) counts as 0. */
INLINE __m512 reference_of(__m512 top)
{
    const __mmask16 empty = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
    return _mm512_mask_blend_ps(empty, top, _mm512_setzero_ps());
}

/* First pass: bias and range go into the scores, and top becomes the running maximum. */
INLINE void apply_and_max(const int vectors, const int has_bias, const int has_range,
                          const struct headway_softmax *s, __m512 *top)
{
    const __m512 minus_inf = _mm512_set1_ps(-__builtin_inff());
    const __m512 unit = _mm512_set1_ps(HEADWAY_EXP_UNIT);
    const int width = vectors * LANES, keys = s->keys;
    float *const scores = s->scores;

    for (int j = 0; j < keys; j++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            float *at = scores + (ptrdiff_t)j * width + v * LANES;
            __m512 score = _mm512_loadu_ps(at);
            if (has_bias) {
                const __m512 bias = _mm512_loadu_ps(s->bias + (at - scores));
                const __mmask16 out = _mm512_cmp_ps_mask(bias, minus_inf, _CMP_EQ_OQ);
                score = _mm512_fmadd_ps(bias, unit, score);
                score = _mm512_mask_blend_ps(out, score, minus_inf);
            }
            if (has_range) {
                const __m512i key = _mm512_set1_epi32(j);
                __mmask16 in = _mm512_cmple_epi32_mask(_mm512_loadu_si512(s->first + v * LANES), key);
                in = _mm512_mask_cmpgt_epi32_mask(in, _mm512_loadu_si512(s->last + v * LANES), key);
                score = _mm512_mask_blend_ps(in, minus_inf, score);
            }
            if (has_bias || has_range)
                _mm512_storeu_ps(at, score);
            top[v] = _mm512_max_ps(score, top[v]);
        }
    }
}

INLINE void softmax(const int vectors, const struct headway_softmax *s)
{
    /* Copies: the compiler must take every vector store for one into *s. */
    const int width = vectors * LANES, keys = s->keys;
    float *const scores = s->scores;
    __m512 top[HEADWAY_MAX_VECTORS], ref[HEADWAY_MAX_VECTORS], sum[HEADWAY_MAX_VECTORS];

    UNROLL for (int v = 0; v < vectors; v++)
        top[v] = _mm512_loadu_ps(s->row_max + v * LANES);
    if (s->bias && s->first)
        apply_and_max(vectors, 1, 1, s, top);
    else if (s->bias)
        apply_and_max(vectors, 1, 0, s, top);
    else if (s->first)
        apply_and_max(vectors, 0, 1, s, top);
    else
        apply_and_max(vectors, 0, 0, s, top);

    UNROLL for (int v = 0; v < vectors; v++) {
        ref[v] = reference_of(top[v]);
        const __m512 old = _mm512_loadu_ps(s->row_max + v * LANES);
        const __m512 rescale = exp_f32x16(_mm512_sub_ps(old, ref[v]));
        sum[v] = _mm512_mul_ps(_mm512_loadu_ps(s->row_sum + v * LANES), rescale);
        _mm512_storeu_ps(s->rescale + v * LANES, rescale);
        _mm512_storeu_ps(s->row_max + v * LANES, top[v]);
    }
    for (int j = 0; j < keys; j++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            float *at = scores + (ptrdiff_t)j * width + v * LANES;
            const __m512 p = exp_f32x16(_mm512_sub_ps(_mm512_loadu_ps(at), ref[v]));
            sum[v] = _mm512_add_ps(sum[v], p);
            _mm512_storeu_ps(at, p);
        }
    }
    UNROLL for (int v = 0; v < vectors; v++)
        _mm512_storeu_ps(s->row_sum + v * LANES, sum[v]);
}

headway_softmax_fn headway_softmax_avx512;
headway_merge_fn headway_merge_avx512;

void headway_softmax_avx512(const struct headway_softmax *s)
{
    switch (s->vectors) {
    case 4: softmax(4, s); break;
    case 3: softmax(3, s); break;
    case 2: softmax(2, s); break;
    default: softmax(1, s); break;
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
            const __m512 later = _mm512_mul_ps(_mm512_loadu_ps(g->later + d * width + v), y);
            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), x, later));
        }
    }
}
