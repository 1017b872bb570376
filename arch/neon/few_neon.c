/* Few lanes for NEON.
 *
 * dot: lanes are keys. Sixteen bytes of each key are transposed in dwords and then widened. Eight
 * keys have two chains a query: eight queries' 16 sums, eight dwords and what is widened of them fit
 * in 32 registers. One or two queries take 16 keys at once, to have more chains.
 *
 * mix: lanes are elements of a value. Sixteen values at a time are read whole, as many columns side
 * by side as give eight chains or more. */
#include "cpu/few.h"

#include <arm_neon.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

enum { LANES = 4, KEYS = HEADWAY_FEW_KEYS, DWORDS = 4, MAX_PARTS = 4 };
enum { PAIR = 2 * LANES, MAX_PAIRS = 4 }; /* two vectors are what a load of bytes gives */

headway_dot_fn headway_dot_neon;
headway_mix_fn headway_mix_neon;

INLINE void prefetch(const char *at)
{
    __builtin_prefetch(at, 0, 2);
}

INLINE float32x4_t low_halves(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

INLINE float32x4_t high_halves(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

INLINE void transpose(float32x4_t x[LANES])
{
    const float32x4x2_t a = vtrnq_f32(x[0], x[1]);
    const float32x4x2_t b = vtrnq_f32(x[2], x[3]);

    x[0] = low_halves(a.val[0], b.val[0]);
    x[1] = low_halves(a.val[1], b.val[1]);
    x[2] = high_halves(a.val[0], b.val[0]);
    x[3] = high_halves(a.val[1], b.val[1]);
}

/* The elements of a dword of four rows, in order; scale is for I8. */
INLINE void widen_dword(float32x4_t value[MAX_PARTS], float32x4_t dword, const float *scale,
                        const enum headway_storage storage)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(dword);

    if (storage == HEADWAY_STORED_F32) {
        value[0] = dword;
    } else if (storage == HEADWAY_STORED_BF16) {
        value[0] = vreinterpretq_f32_u32(vshlq_n_u32(bits, 16));
        value[1] = vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xffff0000u)));
    } else if (storage == HEADWAY_STORED_F16) {
        value[0] = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(bits)));
        value[1] = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(bits, 16)));
    } else {
        const float32x4_t factor = vld1q_f32(scale);
        const int32x4_t whole = vreinterpretq_s32_u32(bits);
        value[0] = vmulq_f32(vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(whole, 24), 24)), factor);
        value[1] = vmulq_f32(vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(whole, 16), 24)), factor);
        value[2] = vmulq_f32(vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(whole, 8), 24)), factor);
        value[3] = vmulq_f32(vcvtq_f32_s32(vshrq_n_s32(whole, 24)), factor);
    }
}

/* The products of dword i of each row. */
INLINE void multiply(float32x4_t (*sum)[KEYS / LANES], float32x4_t (*dword)[DWORDS], int i,
                     const float *scale, const float *query, int width, const int n,
                     const int groups, const enum headway_storage storage)
{
    const int parts = (int)sizeof(float) / headway_few_bytes(storage);
    float32x4_t key[KEYS / LANES][MAX_PARTS];

    UNROLL for (int v = 0; v < groups; v++)
        widen_dword(key[v], dword[v][i], storage == HEADWAY_STORED_I8 ? scale + v * LANES : NULL,
                    storage);
    UNROLL for (int c = 0; c < parts; c++) {
        float32x4_t line[HEADWAY_MAX_FEW / LANES];
        UNROLL for (int l = 0; l < n; l += LANES)
            line[l / LANES] = vld1q_f32(query + c * width + l);
        UNROLL for (int l = 0; l < n; l++)
            UNROLL for (int v = 0; v < groups; v++)
                sum[l][v] = vfmaq_n_f32(sum[l][v], key[v][c], line[l / LANES][l % LANES]);
    }
}

/* sums[l][j] = the product of row j and query l, l < n, j from `from` to the groups' end. */
INLINE void dot(float (*sums)[KEYS], const struct headway_few_keys *keys, int from,
                const struct headway_dot *g, const int n, const int groups,
                const enum headway_storage storage)
{
    const int bytes = headway_few_bytes(storage), parts = (int)sizeof(float) / bytes;
    const float *query = g->query;
    const char *const *row = keys->row + from;
    float32x4_t sum[HEADWAY_MAX_FEW][KEYS / LANES];
    int64_t p = 0;

    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < groups; v++)
            sum[l][v] = vdupq_n_f32(0.0f);
    for (; p + DWORDS * parts <= g->k; p += DWORDS * parts) {
        float32x4_t dword[KEYS / LANES][DWORDS];
        if (keys->ahead && p * bytes % HEADWAY_FEW_LINE_BYTES == 0)
            UNROLL for (int j = 0; j < groups * LANES; j++)
                prefetch(keys->ahead[from + j] + p * bytes);
        UNROLL for (int v = 0; v < groups; v++) {
            UNROLL for (int j = 0; j < LANES; j++)
                dword[v][j] = vreinterpretq_f32_u8(
                    vld1q_u8((const uint8_t *)row[v * LANES + j] + p * bytes));
            transpose(dword[v]);
        }
        const float *scale = keys->scale ? keys->scale + from : NULL;
        if (storage == HEADWAY_STORED_F32) {
            UNROLL for (int i = 0; i < DWORDS; i++, query += g->width)
                multiply(sum, dword, i, scale, query, g->width, n, groups, storage);
        } else {
            /* Straight code of all parts of all dwords is too long for compilers to keep in
             * registers. */
            for (int i = 0; i < DWORDS; i++, query += parts * g->width)
                multiply(sum, dword, i, scale, query, g->width, n, groups, storage);
        }
    }
    for (; p < g->k; p++, query += g->width) {
        float key[KEYS];
        headway_few_column(key, keys, p, storage);
        UNROLL for (int l = 0; l < n; l++)
            UNROLL for (int v = 0; v < groups; v++)
                sum[l][v] =
                    vfmaq_n_f32(sum[l][v], vld1q_f32(key + from + v * LANES), query[l]);
    }
    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < groups; v++)
            vst1q_f32(sums[l] + from + v * LANES, sum[l][v]);
}

INLINE void dot_all(float (*sums)[KEYS], const struct headway_few_keys *keys, int count,
                    const struct headway_dot *g, const int n, const enum headway_storage storage)
{
    const int groups = n <= 2 ? 4 : 2;

    for (int from = 0; from < count; from += groups * LANES)
        dot(sums, keys, from, g, n, groups, storage);
}

INLINE void dot_lanes(float (*sums)[KEYS], const struct headway_few_keys *keys, int count,
                      const struct headway_dot *g, const enum headway_storage storage)
{
    switch (g->n) {
    case 1: dot_all(sums, keys, count, g, 1, storage); break;
    case 2: dot_all(sums, keys, count, g, 2, storage); break;
    case 3: dot_all(sums, keys, count, g, 3, storage); break;
    case 4: dot_all(sums, keys, count, g, 4, storage); break;
    case 5: dot_all(sums, keys, count, g, 5, storage); break;
    case 6: dot_all(sums, keys, count, g, 6, storage); break;
    case 7: dot_all(sums, keys, count, g, 7, storage); break;
    default: dot_all(sums, keys, count, g, 8, storage); break;
    }
}

/* scores[j * width + l] = sums[l][j] for j < count, l < HEADWAY_MAX_FEW and below width, +0 beyond.
 * A width is a multiple of four. */
static void write_scores(float *scores, float (*sums)[KEYS], int count, int width)
{
    for (int j = 0; j < count; j += LANES)
        for (int l = 0; l < width; l += LANES) {
            float32x4_t x[LANES];
            UNROLL for (int i = 0; i < LANES; i++)
                x[i] = l < HEADWAY_MAX_FEW ? vld1q_f32(sums[l + i] + j) : vdupq_n_f32(0.0f);
            transpose(x);
            UNROLL for (int i = 0; i < LANES; i++)
                if (j + i < count)
                    vst1q_f32(scores + (ptrdiff_t)(j + i) * width + l, x[i]);
        }
}

static void dot_keys(const struct headway_dot *g, const struct headway_few_keys *keys, int first,
                     int count)
{
    float sums[HEADWAY_MAX_FEW][KEYS] = {{0}};

    switch (g->keys->storage) {
    case HEADWAY_STORED_F16: dot_lanes(sums, keys, count, g, HEADWAY_STORED_F16); break;
    case HEADWAY_STORED_BF16: dot_lanes(sums, keys, count, g, HEADWAY_STORED_BF16); break;
    case HEADWAY_STORED_I8: dot_lanes(sums, keys, count, g, HEADWAY_STORED_I8); break;
    default: dot_lanes(sums, keys, count, g, HEADWAY_STORED_F32); break;
    }
    write_scores(g->scores + (ptrdiff_t)first * g->width, sums, count, g->width);
}

void headway_dot_neon(const struct headway_dot *g)
{
    headway_few_dot(g, dot_keys);
}

INLINE void pair_at(float32x4_t value[2], const void *row, int64_t d, float scale,
                    const enum headway_storage storage)
{
    if (storage == HEADWAY_STORED_F32) {
        value[0] = vld1q_f32((const float *)row + d);
        value[1] = vld1q_f32((const float *)row + d + LANES);
    } else if (storage == HEADWAY_STORED_I8) {
        const int16x8_t x = vmovl_s8(vld1_s8((const int8_t *)row + d));
        value[0] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), scale);
        value[1] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(x))), scale);
    } else {
        const uint16x8_t x = vld1q_u16((const uint16_t *)row + d);
        const uint16x4_t low = vget_low_u16(x), high = vget_high_u16(x);
        if (storage == HEADWAY_STORED_F16) {
            value[0] = vcvt_f32_f16(vreinterpret_f16_u16(low));
            value[1] = vcvt_f32_f16(vreinterpret_f16_u16(high));
        } else {
            value[0] = vreinterpretq_f32_u32(vshll_n_u16(low, 16));
            value[1] = vreinterpretq_f32_u32(vshll_n_u16(high, 16));
        }
    }
}

/* The part of a mix: count values from `first` on, n lanes, `pairs` pairs of vectors from d on. */
INLINE void mix(const struct headway_mix *g, int first, int count, int64_t d, const int n,
                const int pairs, const enum headway_storage storage)
{
    const struct headway_rows *values = g->values;
    const void *const *row = values->row + first;
    const void *const *ahead = values->ahead ? values->ahead + first : NULL;
    const float *weights = g->weights + (ptrdiff_t)first * g->width;
    const int bytes = pairs * PAIR * headway_few_bytes(storage);
    const ptrdiff_t at = d * headway_few_bytes(storage);
    const int ask = ahead && at % HEADWAY_FEW_LINE_BYTES == 0;
    float32x4_t sum[HEADWAY_MAX_FEW][2 * MAX_PAIRS];

    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < 2 * pairs; v++) {
            const float *old = g->sum + l * g->pitch + d + v * LANES;
            if (first > 0)
                sum[l][v] = vld1q_f32(old);
            else if (g->fresh)
                sum[l][v] = vdupq_n_f32(0.0f);
            else
                sum[l][v] = vmulq_n_f32(vld1q_f32(old), g->rescale[l]);
        }
    for (int j = 0; j < count; j++, weights += g->width) {
        const float scale = storage == HEADWAY_STORED_I8 ? values->scale[first + j] : 1.0f;
        float32x4_t value[2 * MAX_PAIRS];
        if (ask)
            UNROLL for (int b = 0; b < bytes; b += HEADWAY_FEW_LINE_BYTES)
                prefetch((const char *)ahead[j] + at + b);
        UNROLL for (int v = 0; v < pairs; v++)
            pair_at(value + 2 * v, row[j], d + v * PAIR, scale, storage);
        UNROLL for (int l = 0; l < n; l++)
            UNROLL for (int v = 0; v < 2 * pairs; v++)
                sum[l][v] = vfmaq_n_f32(sum[l][v], value[v], weights[l]);
    }
    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < 2 * pairs; v++)
            vst1q_f32(g->sum + l * g->pitch + d + v * LANES, sum[l][v]);
}

/* All whole pairs of vectors; returns where they end. */
INLINE int64_t mix_pairs(const struct headway_mix *g, int first, int count, const int n,
                         const enum headway_storage storage)
{
    const int pairs = n <= 2 ? 4 : n <= 4 ? 2 : 1;
    int64_t d = 0;

    for (; d + pairs * PAIR <= g->m; d += pairs * PAIR)
        mix(g, first, count, d, n, pairs, storage);
    for (; d + PAIR <= g->m; d += PAIR)
        mix(g, first, count, d, n, 1, storage);
    return d;
}

INLINE int64_t mix_lanes(const struct headway_mix *g, int first, int count,
                         const enum headway_storage storage)
{
    switch (g->n) {
    case 1: return mix_pairs(g, first, count, 1, storage);
    case 2: return mix_pairs(g, first, count, 2, storage);
    case 3: return mix_pairs(g, first, count, 3, storage);
    case 4: return mix_pairs(g, first, count, 4, storage);
    case 5: return mix_pairs(g, first, count, 5, storage);
    case 6: return mix_pairs(g, first, count, 6, storage);
    case 7: return mix_pairs(g, first, count, 7, storage);
    default: return mix_pairs(g, first, count, 8, storage);
    }
}

static int64_t mix_any(const struct headway_mix *g, int first, int count)
{
    switch (g->values->storage) {
    case HEADWAY_STORED_F16: return mix_lanes(g, first, count, HEADWAY_STORED_F16);
    case HEADWAY_STORED_BF16: return mix_lanes(g, first, count, HEADWAY_STORED_BF16);
    case HEADWAY_STORED_I8: return mix_lanes(g, first, count, HEADWAY_STORED_I8);
    default: return mix_lanes(g, first, count, HEADWAY_STORED_F32);
    }
}

void headway_mix_neon(const struct headway_mix *g)
{
    int64_t done = 0;

    for (int first = 0; first < g->values->count; first += KEYS) {
        const int left = g->values->count - first;
        done = mix_any(g, first, left < KEYS ? left : KEYS);
    }
    headway_few_mix_rest(g, done);
}
