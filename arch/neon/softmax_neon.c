/* Online softmax and the merging of segments for NEON: lanes never meet, so both are the contract's
 * operations on vectors. */
#include "cpu/exp_poly.h"
#include "cpu/kernels.h"

#include <arm_neon.h>
#include <math.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 4, MAX_VECTORS = 4, AT_ONCE = 4 };

headway_softmax_fn headway_softmax_neon;
headway_merge_fn headway_merge_neon;

/* a > b ? a : b, and so b where either is a NaN; the machine's own maximum would return the NaN. */
INLINE float32x4_t greater(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* exp_poly.h's e for n vectors in place, n a constant: step by step for all of them, so that
 * they hide each other's latency also where the CPU executes in order. */
INLINE void exp_each(float32x4_t *t, const int n)
{
    static const float factors[] = {HEADWAY_EXP_C4, HEADWAY_EXP_C3, HEADWAY_EXP_C2, HEADWAY_EXP_C1,
                                    HEADWAY_EXP_C0};
    const float32x4_t shift = vdupq_n_f32(HEADWAY_EXP_SHIFT);
    float32x4_t u[AT_ONCE], p[AT_ONCE];

    UNROLL for (int i = 0; i < n; i++) {
        t[i] = greater(vdupq_n_f32(HEADWAY_EXP_MIN), t[i]);
        u[i] = vaddq_f32(t[i], shift);
        t[i] = vsubq_f32(t[i], vsubq_f32(u[i], shift));
        p[i] = vdupq_n_f32(HEADWAY_EXP_C5);
    }
    UNROLL for (int c = 0; c < 5; c++)
        UNROLL for (int i = 0; i < n; i++)
            p[i] = vfmaq_f32(vdupq_n_f32(factors[c]), p[i], t[i]);
    UNROLL for (int i = 0; i < n; i++) {
        const uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(u[i]), 23);
        t[i] = vmulq_f32(p[i], vreinterpretq_f32_u32(power));
    }
}

INLINE float32x4_t exp_one(float32x4_t t)
{
    exp_each(&t, 1);
    return t;
}

/* top, but 0 where it is -inf. */
INLINE float32x4_t reference(float32x4_t top)
{
    const uint32x4_t nothing = vceqq_f32(top, vdupq_n_f32(-INFINITY));
    return vbslq_f32(nothing, vdupq_n_f32(0.0f), top);
}

/* Applies bias and limits to the scores and stores in top_out their maximum with row_max. Vectors,
 * biased and limited are constants where this is inlined. */
INLINE void limit(const struct headway_softmax *s, float *top_out, const int vectors,
                  const int biased, const int limited)
{
    const float32x4_t excluded = vdupq_n_f32(-INFINITY), unit = vdupq_n_f32(HEADWAY_EXP_UNIT);
    const int w = vectors * LANES;
    float32x4_t top[MAX_VECTORS];
    int32x4_t first[MAX_VECTORS], last[MAX_VECTORS];

    UNROLL for (int v = 0; v < vectors; v++) {
        top[v] = vld1q_f32(s->row_max + v * LANES);
        if (limited) {
            first[v] = vld1q_s32(s->first + v * LANES);
            last[v] = vld1q_s32(s->last + v * LANES);
        }
    }
    for (int j = 0; j < s->keys; j++) {
        float *scores = s->scores + j * w;
        const int32x4_t key = vdupq_n_s32(j);
        UNROLL for (int v = 0; v < vectors; v++) {
            float32x4_t score = vld1q_f32(scores + v * LANES);
            if (biased) {
                const float32x4_t bias = vld1q_f32(s->bias + j * w + v * LANES);
                score = vbslq_f32(vceqq_f32(bias, excluded), excluded,
                                  vfmaq_f32(score, bias, unit));
            }
            if (limited) {
                const uint32x4_t inside = vandq_u32(vcleq_s32(first[v], key),
                                                    vcgtq_s32(last[v], key));
                score = vbslq_f32(inside, score, excluded);
            }
            if (biased || limited)
                vst1q_f32(scores + v * LANES, score);
            top[v] = greater(score, top[v]);
        }
    }
    UNROLL for (int v = 0; v < vectors; v++)
        vst1q_f32(top_out + v * LANES, top[v]);
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
INLINE float32x4_t weigh_keys(float *scores, const int n, ptrdiff_t w, float32x4_t ref,
                              float32x4_t row_sum)
{
    float32x4_t p[AT_ONCE];

    UNROLL for (int i = 0; i < n; i++)
        p[i] = vsubq_f32(vld1q_f32(scores + i * w), ref);
    exp_each(p, n);
    UNROLL for (int i = 0; i < n; i++) {
        row_sum = vaddq_f32(row_sum, p[i]);
        vst1q_f32(scores + i * w, p[i]);
    }
    return row_sum;
}

INLINE float32x4_t weigh(float *scores, int keys, ptrdiff_t w, float32x4_t ref, float32x4_t row_sum)
{
    int j = 0;

    for (; j + AT_ONCE <= keys; j += AT_ONCE)
        row_sum = weigh_keys(scores + j * w, AT_ONCE, w, ref, row_sum);
    for (; j < keys; j++)
        row_sum = weigh_keys(scores + j * w, 1, w, ref, row_sum);
    return row_sum;
}

void headway_softmax_neon(const struct headway_softmax *s)
{
    const ptrdiff_t w = (ptrdiff_t)s->vectors * LANES;
    float tops[MAX_VECTORS * LANES];

    switch (s->vectors) {
    case 4: limit_as_asked(s, tops, 4); break;
    case 3: limit_as_asked(s, tops, 3); break;
    case 2: limit_as_asked(s, tops, 2); break;
    default: limit_as_asked(s, tops, 1); break;
    }
    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const float32x4_t top = vld1q_f32(tops + lane);
        const float32x4_t ref = reference(top);
        const float32x4_t rescale = exp_one(vsubq_f32(vld1q_f32(s->row_max + lane), ref));
        const float32x4_t row_sum = vmulq_f32(vld1q_f32(s->row_sum + lane), rescale);
        vst1q_f32(s->row_sum + lane, weigh(s->scores + lane, s->keys, w, ref, row_sum));
        vst1q_f32(s->rescale + lane, rescale);
        vst1q_f32(s->row_max + lane, top);
    }
}

void headway_merge_neon(const struct headway_merge *g)
{
    const ptrdiff_t w = (ptrdiff_t)g->vectors * LANES;

    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const float32x4_t row_max = vld1q_f32(g->row_max + lane);
        const float32x4_t later_max = vld1q_f32(g->later_max + lane);
        const float32x4_t top = greater(later_max, row_max);
        const float32x4_t ref = reference(top);
        const float32x4_t x = exp_one(vsubq_f32(row_max, ref));
        const float32x4_t y = exp_one(vsubq_f32(later_max, ref));
        const float32x4_t later_sum = vmulq_f32(vld1q_f32(g->later_sum + lane), y);

        vst1q_f32(g->row_max + lane, top);
        vst1q_f32(g->row_sum + lane, vfmaq_f32(later_sum, vld1q_f32(g->row_sum + lane), x));
        for (int64_t d = 0; d < g->m; d++) {
            float *sum = g->sum + d * w + lane;
            const float32x4_t later = vmulq_f32(vld1q_f32(g->later + d * w + lane), y);
            vst1q_f32(sum, vfmaq_f32(later, vld1q_f32(sum), x));
        }
    }
}
