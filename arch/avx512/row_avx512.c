/* The AVX-512 row of the kernel table, and its peak loop. */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/tiers.h"
#include "cpu/unroll.h"

#if !defined(__AVX512F__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#define LANES 16
#define CHAINS 16

headway_gemm_fn headway_gemm_avx512;
headway_softmax_fn headway_softmax_avx512;
headway_merge_fn headway_merge_avx512;
headway_pack_fn headway_pack_avx512;
headway_unpack_fn headway_unpack_avx512;
headway_bits_fn headway_bits_avx512;
headway_widen_fn headway_widen_avx512;
headway_narrow_fn headway_narrow_avx512;
headway_dot_fn headway_dot_avx512;
headway_mix_fn headway_mix_avx512;

static int64_t peak_avx512(int64_t rounds, float *sink)
{
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
    __m512 acc[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)(i + 2)); /* 1 is where x * a + y stands still */
    for (int64_t r = 0; r < rounds; r++)
        UNROLL for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], x, y);
    __m512 sum = acc[0];
    UNROLL for (int i = 1; i < CHAINS; i++)
        sum = _mm512_add_ps(sum, acc[i]);
    *sink = _mm512_reduce_add_ps(sum);
    return rounds * CHAINS * LANES * 2;
}

const struct headway_row headway_row_avx512 = {
    .name = "avx512",
    .tiers = HEADWAY_TIER_AVX2 | HEADWAY_TIER_AVX512,
    .narrower = "avx2",
    .lanes = LANES,
    .vectors = 4,
    .gemm = headway_gemm_avx512,
    .softmax = headway_softmax_avx512,
    .merge = headway_merge_avx512,
    .pack = headway_pack_avx512,
    .unpack = headway_unpack_avx512,
    .bits = headway_bits_avx512,
    .widen = headway_widen_avx512,
    .narrow = headway_narrow_avx512,
    .dot = headway_dot_avx512,
    .mix = headway_mix_avx512,
    .peak = peak_avx512,
};
