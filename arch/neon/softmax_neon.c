/* Online softmax and the merging of segments for NEON: lanes never meet, so both are the contract's
 * operations on vectors. */
#include "cpu/exp_poly.h"
#include "cpu/kernels.h"
#include "cpu/tanh_poly.h"
#include "cpu/unroll.h"

#include <arm_neon.h>
#include <math.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

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

    UNROLL
    for (int i = 0; i < n; i++) {
        t[i] = greater(vdupq_n_f32(HEADWAY_EXP_MIN), t[i]);
        u[i] = vaddq_f32(t[i], shift);
        t[i] = vsubq_f32(t[i], vsubq_f32(u[i], shift));
        p[i] = vdupq_n_f32(HEADWAY_EXP_C5);
    }
    UNROLL
    for (int c = 0; c < 5; c++)
        UNROLL
    for (int i = 0; i < n; i++)
        p[i] = vfmaq_f32(vdupq_n_f32(factors[c]), p[i], t[i]);
    UNROLL
    for (int i = 0; i < n; i++) {
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

/* tanh_poly.h's tanh of a size, which is no less than 0 or a NaN. */
INLINE float32x4_t tanh_of(float32x4_t size)
{
    const float32x4_t shift = vdupq_n_f32(HEADWAY_TANH_SHIFT),
                      limit = vdupq_n_f32(HEADWAY_TANH_MAX);
    const float32x4_t x = vbslq_f32(vcltq_f32(limit, size), limit, size);
    const float32x4_t u = vfmaq_f32(shift, x, vdupq_n_f32(HEADWAY_TANH_RATE));
    const float32x4_t n = vsubq_f32(u, shift);
    const float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(HEADWAY_TANH_STEP));
    const float32x4_t power = vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(u), 23));
    float32x4_t p = vdupq_n_f32(HEADWAY_TANH_C6);
    p = vfmaq_f32(vdupq_n_f32(HEADWAY_TANH_C5), p, r);
    p = vfmaq_f32(vdupq_n_f32(HEADWAY_TANH_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(HEADWAY_TANH_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(HEADWAY_TANH_C2), p, r);
    const float32x4_t e = vfmaq_f32(r, vmulq_f32(r, p), r);
    const float32x4_t rest = vfmaq_f32(vdupq_n_f32(-0.5f), power, vdupq_n_f32(0.5f));
    const float32x4_t h = vfmaq_f32(rest, e, power);
    return vdivq_f32(h, vaddq_f32(h, vdupq_n_f32(1.0f)));
}

/* What a call gives besides the scores. */
enum { CAP = 1, SLOPE = 2, BIAS = 4, ALLOWED = 8, RANGE = 16 };

/* First pass down one vector's lanes, v: what is given goes into the scores; returns their maximum
 * with row_max. Options may be a constant: then the loop asks for nothing. */
INLINE float32x4_t apply(const struct headway_softmax *s, int v, const unsigned options)
{
    static const uint32_t bit_of[LANES] = {1, 2, 4, 8};
    const float32x4_t excluded = vdupq_n_f32(-INFINITY), unit = vdupq_n_f32(HEADWAY_EXP_UNIT);
    const float32x4_t limit = vdupq_n_f32(HEADWAY_TANH_LIMIT(s->cap));
    const float cap = s->cap, inverse = s->inverse_cap;
    const int32x4_t one = vdupq_n_s32(1);
    const uint32x4_t bits = vld1q_u32(bit_of), sign = vdupq_n_u32(UINT32_C(1) << 31);
    const ptrdiff_t w = (ptrdiff_t)s->vectors * LANES, column = (ptrdiff_t)v * LANES;
    const int keys = s->keys;
    float *const scores = s->scores + column;
    const float *const biases = options & BIAS ? s->bias + column : NULL;
    const uint64_t *const allowed = s->allowed;
    float32x4_t top = vld1q_f32(s->row_max + column), slope = excluded;
    int32x4_t place = one, first = one, last = one, key = vdupq_n_s32(0);

    if (options & SLOPE) {
        slope = vld1q_f32(s->slope + column);
        place = vld1q_s32(s->distance + column);
    }
    if (options & RANGE) {
        first = vld1q_s32(s->first + column);
        last = vld1q_s32(s->last + column);
    }
    for (int j = 0; j < keys; j++) {
        float *at = scores + j * w;
        float32x4_t score = vld1q_f32(at);
        if (options & CAP) {
            float32x4_t size = vabsq_f32(score);
            size = vbslq_f32(vcltq_f32(limit, size), limit, size);
            const float32x4_t capped = vmulq_n_f32(tanh_of(vmulq_n_f32(size, inverse)), cap);
            score = vbslq_f32(sign, score, capped);
        }
        if (options & SLOPE) {
            score = vfmaq_f32(score, slope, vcvtq_f32_s32(place));
            place = vaddq_s32(place, one);
        }
        if (options & BIAS) {
            const float32x4_t bias = vld1q_f32(biases + j * w);
            score = vbslq_f32(vceqq_f32(bias, excluded), excluded, vfmaq_f32(score, bias, unit));
        }
        if (options & ALLOWED) {
            const uint32x4_t word = vdupq_n_u32((uint32_t)(allowed[j] >> column));
            score = vbslq_f32(vtstq_u32(word, bits), score, excluded);
        }
        if (options & RANGE) {
            const uint32x4_t inside = vandq_u32(vcleq_s32(first, key), vcgtq_s32(last, key));
            score = vbslq_f32(inside, score, excluded);
            key = vaddq_s32(key, one);
        }
        vst1q_f32(at, score);
        top = greater(score, top);
    }
    return top;
}

/* One loop for each option that usually comes alone, one for all others; a softcap has enough to do
 * to be better off by itself. */
static __attribute__((noinline)) void apply_options(const struct headway_softmax *s, int v,
                                                    unsigned options)
{
    float32x4_t top = vld1q_f32(s->row_max + v * LANES);

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
    vst1q_f32(s->rescale + v * LANES, top);
}

/* First pass where nothing but the scores is given. Vectors is a constant where this is inlined. */
INLINE void find_maximum(const struct headway_softmax *s, const int vectors)
{
    const float *scores = s->scores;
    float32x4_t top[MAX_VECTORS];

    UNROLL
    for (int v = 0; v < vectors; v++)
        top[v] = vld1q_f32(s->row_max + v * LANES);
    for (int j = 0; j < s->keys; j++, scores += vectors * LANES) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            top[v] = greater(vld1q_f32(scores + v * LANES), top[v]);
    }
    UNROLL
    for (int v = 0; v < vectors; v++)
        vst1q_f32(s->rescale + v * LANES, top[v]);
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
            vst1q_f32(s->rescale + lane,
                      greater(vld1q_f32(s->highest + lane), vld1q_f32(s->row_max + lane)));
    else if (s->vectors == 4)
        find_maximum(s, 4);
    else if (s->vectors == 3)
        find_maximum(s, 3);
    else if (s->vectors == 2)
        find_maximum(s, 2);
    else
        find_maximum(s, 1);
}

/* Turns the scores of n keys, n a constant, into weights in one vector's lanes; returns row_sum
 * with them added in order. */
INLINE float32x4_t weigh_keys(float *scores, const int n, ptrdiff_t w, float32x4_t ref,
                              float32x4_t row_sum)
{
    float32x4_t p[AT_ONCE];

    UNROLL
    for (int i = 0; i < n; i++)
        p[i] = vsubq_f32(vld1q_f32(scores + i * w), ref);
    exp_each(p, n);
    UNROLL
    for (int i = 0; i < n; i++) {
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

    first_pass(s);
    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const float32x4_t top = vld1q_f32(s->rescale + lane);
        const float32x4_t old = vld1q_f32(s->row_max + lane);
        const float32x4_t rescale = exp_one(vsubq_f32(old, reference(top)));
        vst1q_f32(s->row_sum + lane, vmulq_f32(vld1q_f32(s->row_sum + lane), rescale));
        vst1q_f32(s->rescale + lane, rescale);
        vst1q_f32(s->row_max + lane, top);
    }
    for (ptrdiff_t lane = 0; lane < w; lane += LANES) {
        const float32x4_t ref = reference(vld1q_f32(s->row_max + lane));
        const float32x4_t row_sum = vld1q_f32(s->row_sum + lane);
        vst1q_f32(s->row_sum + lane, weigh(s->scores + lane, s->keys, w, ref, row_sum));
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
            const float32x4_t later =
                g->later ? vld1q_f32(g->later + d * w + lane) : vdupq_n_f32(0.0f);
            vst1q_f32(sum, vfmaq_f32(vmulq_f32(later, y), vld1q_f32(sum), x));
        }
    }
}
