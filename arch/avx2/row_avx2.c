/* The row for AVX2, FMA and F16C. */
#include "cpu/kernels.h"
#include "cpu/tiers.h"
#include "cpu/unroll.h"

#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { LANES = 8, CHAINS = 12 };

headway_gemm_fn headway_gemm_avx2;
headway_softmax_fn headway_softmax_avx2;
headway_merge_fn headway_merge_avx2;
headway_pack_fn headway_pack_avx2;
headway_unpack_fn headway_unpack_avx2;
headway_bits_fn headway_bits_avx2;
headway_widen_fn headway_widen_avx2;
headway_narrow_fn headway_narrow_avx2;
headway_dot_fn headway_dot_avx2;
headway_mix_fn headway_mix_avx2;
headway_peak_fn headway_peak_avx2;

int64_t headway_peak_avx2(int64_t rounds, float *sink)
{
    const __m256 factor = _mm256_set1_ps(0.999f), addend = _mm256_set1_ps(0.001f);
    __m256 x[CHAINS];

    UNROLL for (int i = 0; i < CHAINS; i++)
        x[i] = _mm256_set1_ps(2.0f + (float)i);
    for (int64_t r = 0; r < rounds; r++) {
        UNROLL for (int i = 0; i < CHAINS; i++)
            x[i] = _mm256_fmadd_ps(x[i], factor, addend);
    }
    __m256 total = x[0];
    UNROLL for (int i = 1; i < CHAINS; i++)
        total = _mm256_add_ps(total, x[i]);
    *sink = _mm256_cvtss_f32(total);
    return rounds * CHAINS * LANES * 2;
}

extern const struct headway_row headway_row_avx2;
const struct headway_row headway_row_avx2 = {
    .name = "avx2",
    .tiers = HEADWAY_TIER_AVX2,
    .lanes = LANES,
    .vectors = 3,
    .gemm = headway_gemm_avx2,
    .softmax = headway_softmax_avx2,
    .merge = headway_merge_avx2,
    .pack = headway_pack_avx2,
    .unpack = headway_unpack_avx2,
    .bits = headway_bits_avx2,
    .widen = headway_widen_avx2,
    .narrow = headway_narrow_avx2,
    .dot = headway_dot_avx2,
    .mix = headway_mix_avx2,
    .peak = headway_peak_avx2,
};
