/* The row for NEON, which every AArch64 CPU for applications has. */
#include "cpu/kernels.h"
#include "cpu/tiers.h"
#include "cpu/unroll.h"

#include <arm_neon.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

enum { LANES = 4, CHAINS = 24 };

headway_gemm_fn headway_gemm_neon;
headway_softmax_fn headway_softmax_neon;
headway_merge_fn headway_merge_neon;
headway_pack_fn headway_pack_neon;
headway_unpack_fn headway_unpack_neon;
headway_bits_fn headway_bits_neon;
headway_widen_fn headway_widen_neon;
headway_narrow_fn headway_narrow_neon;
headway_dot_fn headway_dot_neon;
headway_mix_fn headway_mix_neon;
headway_peak_fn headway_peak_neon;

/* The addend is the accumulator, as in the GEMM: on some cores that operand has the shortest
 * latency. */
int64_t headway_peak_neon(int64_t rounds, float *sink)
{
    const float32x4_t factor = vdupq_n_f32(0.999f), step = vdupq_n_f32(0.001f);
    float32x4_t x[CHAINS];

    UNROLL for (int i = 0; i < CHAINS; i++)
        x[i] = vdupq_n_f32(2.0f + (float)i);
    for (int64_t r = 0; r < rounds; r++) {
        UNROLL for (int i = 0; i < CHAINS; i++)
            x[i] = vfmaq_f32(x[i], factor, step);
    }
    float32x4_t total = x[0];
    UNROLL for (int i = 1; i < CHAINS; i++)
        total = vaddq_f32(total, x[i]);
    *sink = vgetq_lane_f32(total, 0);
    return rounds * CHAINS * LANES * 2;
}

extern const struct headway_row headway_row_neon;
const struct headway_row headway_row_neon = {
    .name = "neon",
    .tiers = HEADWAY_TIER_NEON,
    .lanes = LANES,
    .vectors = 4,
    .gemm = headway_gemm_neon,
    .softmax = headway_softmax_neon,
    .merge = headway_merge_neon,
    .pack = headway_pack_neon,
    .unpack = headway_unpack_neon,
    .bits = headway_bits_neon,
    .widen = headway_widen_neon,
    .narrow = headway_narrow_neon,
    .dot = headway_dot_neon,
    .mix = headway_mix_neon,
    .peak = headway_peak_neon,
};
