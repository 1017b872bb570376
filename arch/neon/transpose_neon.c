/* Packing and unpacking for NEON: blocks of 4 x 4 transposed in registers. */
#include "cpu/kernels.h"
#include "cpu/unroll.h"

#include <arm_neon.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

enum { LANES = 4 };

headway_pack_fn headway_pack_neon;
headway_unpack_fn headway_unpack_neon;

INLINE void transpose(float32x4_t x[LANES])
{
    /* 2 x 2 blocks, then the halves. */
    const float32x4x2_t a = vtrnq_f32(x[0], x[1]);
    const float32x4x2_t b = vtrnq_f32(x[2], x[3]);

    x[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    x[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    x[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    x[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

/* Packs n lines, at most four, into one vector of the panel's width. */
INLINE void pack(float *panel, int width, const float *const *lines, const int n, int64_t k,
                 float scale)
{
    int64_t p = 0;

    for (; p + LANES <= k; p += LANES) {
        float32x4_t x[LANES];
        UNROLL for (int j = 0; j < LANES; j++)
            x[j] = j < n ? vmulq_n_f32(vld1q_f32(lines[j] + p), scale) : vdupq_n_f32(0.0f);
        transpose(x);
        UNROLL for (int i = 0; i < LANES; i++)
            vst1q_f32(panel + (p + i) * width, x[i]);
    }
    for (; p < k; p++)
        UNROLL for (int j = 0; j < LANES; j++)
            panel[p * width + j] = j < n ? lines[j][p] * scale : 0.0f;
}

void headway_pack_neon(float *panel, int width, const float *const *lines, int n, int64_t k,
                       float scale)
{
    for (int j = 0; j < width; j += LANES) {
        if (n - j >= LANES)
            pack(panel + j, width, lines + j, LANES, k, scale);
        else
            pack(panel + j, width, lines + j, n - j, k, scale);
    }
}

/* Unpacks one vector of the panel's width into n lines, at most four. */
INLINE int unpack(float *const *lines, const int n, const float *panel, int width, int64_t k,
                  const float *divisor)
{
    static const uint32_t index[LANES] = {0, 1, 2, 3};
    const uint32x4_t asked = vcltq_u32(vld1q_u32(index), vdupq_n_u32((uint32_t)n));
    const float32x4_t given = vld1q_f32(divisor), one = vdupq_n_f32(1.0f);
    const uint32x4_t empty = vceqq_f32(given, vdupq_n_f32(0.0f));
    /* Dividing by 1 where the quotient is of no use raises no flag. */
    const float32x4_t d = vbslq_f32(vbicq_u32(asked, empty), given, one);
    const float32x4_t reciprocal = vdivq_f32(one, d);
    uint32x4_t sound = vdupq_n_u32(UINT32_MAX);

    for (int64_t p = 0; p < k; p += LANES) {
        float32x4_t x[LANES];
        UNROLL for (int i = 0; i < LANES; i++) {
            x[i] = p + i < k ? vld1q_f32(panel + (p + i) * width) : vdupq_n_f32(0.0f);
            x[i] = vaddq_f32(x[i], vdupq_n_f32(0.0f));
            const float32x4_t q = vmulq_f32(x[i], reciprocal);
            const float32x4_t refined = vfmaq_f32(q, vfmsq_f32(x[i], q, d), reciprocal);
            const uint32x4_t number = vceqq_f32(refined, refined);
            x[i] = vbslq_f32(empty, vdupq_n_f32(0.0f), vbslq_f32(number, refined, q));
            sound = vandq_u32(sound, number);
        }
        transpose(x);
        UNROLL for (int j = 0; j < LANES; j++) {
            if (j >= n)
                continue;
            if (p + LANES <= k) {
                vst1q_f32(lines[j] + p, x[j]);
            } else {
                float tail[LANES];
                vst1q_f32(tail, x[j]);
                for (int64_t i = p; i < k; i++)
                    lines[j][i] = tail[i - p];
            }
        }
    }
    /* Where the divisor itself is a NaN or 0, and in lanes not asked for, all is sound. */
    sound = vornq_u32(sound, vandq_u32(vbicq_u32(asked, empty), vceqq_f32(d, d)));
    return vminvq_u32(sound) == 0;
}

int headway_unpack_neon(float *const *lines, int n, const float *panel, int width, int64_t k,
                        const float *divisor)
{
    int spoiled = 0;

    for (int j = 0; j < n; j += LANES) {
        if (n - j >= LANES)
            spoiled |= unpack(lines + j, LANES, panel + j, width, k, divisor + j);
        else
            spoiled |= unpack(lines + j, n - j, panel + j, width, k, divisor + j);
    }
    return spoiled;
}
