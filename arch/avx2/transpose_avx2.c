/* Packing and unpacking for AVX2 and FMA: blocks of 8 x 8 transposed in registers. */
#include "cpu/kernels.h"
#include "cpu/unroll.h"

#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { LANES = 8 };

headway_pack_fn headway_pack_avx2;
headway_unpack_fn headway_unpack_avx2;

/* Lanes below count are all ones. */
INLINE __m256i first_lanes(int64_t count)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), index);
}

INLINE void transpose(__m256 x[LANES])
{
    __m256 y[LANES];

    /* 2 x 2 blocks within the 128-bit halves, */
    UNROLL for (int i = 0; i < LANES; i += 4) {
        const __m256 a = _mm256_unpacklo_ps(x[i], x[i + 1]);
        const __m256 b = _mm256_unpackhi_ps(x[i], x[i + 1]);
        const __m256 c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
        const __m256 d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm256_shuffle_ps(a, c, 0x44);
        y[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        y[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        y[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    /* then the halves. */
    UNROLL for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
}

/* Packs up to eight lines into one vector of the panel's width. */
INLINE void pack(float *panel, int width, const float *const *lines, const int n, int64_t k,
                 float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    int64_t p = 0;

    for (; p + LANES <= k; p += LANES) {
        __m256 x[LANES];
        UNROLL for (int j = 0; j < LANES; j++)
            x[j] = j < n ? _mm256_mul_ps(_mm256_loadu_ps(lines[j] + p), factor)
                         : _mm256_setzero_ps();
        transpose(x);
        UNROLL for (int i = 0; i < LANES; i++)
            _mm256_storeu_ps(panel + (p + i) * width, x[i]);
    }
    for (; p < k; p++)
        UNROLL for (int j = 0; j < LANES; j++)
            panel[p * width + j] = j < n ? lines[j][p] * scale : 0.0f;
}

void headway_pack_avx2(float *panel, int width, const float *const *lines, int n, int64_t k,
                       float scale)
{
    for (int j = 0; j < width; j += LANES) {
        if (n - j >= LANES)
            pack(panel + j, width, lines + j, LANES, k, scale);
        else
            pack(panel + j, width, lines + j, n - j, k, scale);
    }
}

/* Unpacks one vector of the panel's width into up to eight lines. */
INLINE int unpack(float *const *lines, const int n, const float *panel, int width, int64_t k,
                  const float *divisor)
{
    const __m256 asked = _mm256_castsi256_ps(first_lanes(n));
    const __m256 given = _mm256_loadu_ps(divisor), one = _mm256_set1_ps(1.0f);
    const __m256 empty = _mm256_cmp_ps(given, _mm256_setzero_ps(), _CMP_EQ_OQ);
    /* Dividing by 1 where the quotient is of no use raises no flag. */
    const __m256 d = _mm256_blendv_ps(one, _mm256_blendv_ps(given, one, empty), asked);
    const __m256 reciprocal = _mm256_div_ps(one, d);
    __m256 spoiled = _mm256_setzero_ps();

    for (int64_t p = 0; p < k; p += LANES) {
        __m256 x[LANES];
        UNROLL for (int i = 0; i < LANES; i++) {
            x[i] = p + i < k ? _mm256_loadu_ps(panel + (p + i) * width) : _mm256_setzero_ps();
            x[i] = _mm256_add_ps(x[i], _mm256_setzero_ps());
            const __m256 q = _mm256_mul_ps(x[i], reciprocal);
            const __m256 refined = _mm256_fmadd_ps(_mm256_fnmadd_ps(q, d, x[i]), reciprocal, q);
            const __m256 nan = _mm256_cmp_ps(refined, refined, _CMP_UNORD_Q);
            x[i] = _mm256_andnot_ps(empty, _mm256_blendv_ps(refined, q, nan));
            spoiled = _mm256_or_ps(spoiled, nan);
        }
        transpose(x);
        if (p + LANES <= k) {
            UNROLL for (int j = 0; j < LANES; j++)
                if (j < n)
                    _mm256_storeu_ps(lines[j] + p, x[j]);
        } else {
            const __m256i mask = first_lanes(k - p);
            UNROLL for (int j = 0; j < LANES; j++)
                if (j < n)
                    _mm256_maskstore_ps(lines[j] + p, mask, x[j]);
        }
    }
    const __m256 clean = _mm256_andnot_ps(empty, _mm256_cmp_ps(d, d, _CMP_ORD_Q));
    return _mm256_movemask_ps(_mm256_and_ps(_mm256_and_ps(spoiled, clean), asked));
}

int headway_unpack_avx2(float *const *lines, int n, const float *panel, int width, int64_t k,
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
