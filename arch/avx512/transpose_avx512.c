/* Panels in and out for AVX-512: blocks of 16 x 16 floats are transposed in registers, tails by
 * masked loads and stores. */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/unroll.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#define LANES 16

/* t[i][j] <-> t[j][i]: pairs, fours within 128 bits, then the 128-bit quarters in two steps. */
INLINE void transpose16(__m512 *t)
{
    __m512 a[LANES], b[LANES];
    UNROLL
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm512_unpacklo_ps(t[i], t[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(t[i], t[i + 1]);
    }
    UNROLL
    for (int i = 0; i < LANES; i += 4) {
        b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
        b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xDD);
        a[i + 8] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xDD);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xDD);
        t[i + 12] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xDD);
    }
}

INLINE __mmask16 first_lanes(int64_t n)
{
    const unsigned mask = n >= LANES ? 0xFFFFu : (1u << n) - 1;
    return (__mmask16)mask;
}

headway_pack_fn headway_pack_avx512;
headway_unpack_fn headway_unpack_avx512;

/* A block of 16 lines by 16, all there: four lines' pieces of four floats are loaded into the quarters
 * of one vector each, so that only fours within 128 bits are left to transpose. */
INLINE void pack_block(float *panel, int width, const float *const *lines, int64_t p, __m512 factor)
{
    __m512 t[LANES];
    UNROLL
    for (int i = 0; i < 4; i++) {
        const float *const l0 = lines[i] + p, *const l1 = lines[4 + i] + p;
        const float *const l2 = lines[8 + i] + p, *const l3 = lines[12 + i] + p;
        UNROLL
        for (int c = 0; c < 4; c++) {
            __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(l0 + 4 * c));
            x = _mm512_mask_broadcast_f32x4(x, 0x00F0, _mm_loadu_ps(l1 + 4 * c));
            x = _mm512_mask_broadcast_f32x4(x, 0x0F00, _mm_loadu_ps(l2 + 4 * c));
            t[4 * c + i] = _mm512_mask_broadcast_f32x4(x, 0xF000, _mm_loadu_ps(l3 + 4 * c));
        }
    }
    UNROLL
    for (int c = 0; c < LANES; c += 4) {
        const __m512 a = _mm512_unpacklo_ps(t[c], t[c + 1]), b = _mm512_unpackhi_ps(t[c], t[c + 1]);
        const __m512 d = _mm512_unpacklo_ps(t[c + 2], t[c + 3]),
                     e = _mm512_unpackhi_ps(t[c + 2], t[c + 3]);
        _mm512_storeu_ps(panel + (p + c) * width,
                         _mm512_mul_ps(_mm512_shuffle_ps(a, d, 0x44), factor));
        _mm512_storeu_ps(panel + (p + c + 1) * width,
                         _mm512_mul_ps(_mm512_shuffle_ps(a, d, 0xEE), factor));
        _mm512_storeu_ps(panel + (p + c + 2) * width,
                         _mm512_mul_ps(_mm512_shuffle_ps(b, e, 0x44), factor));
        _mm512_storeu_ps(panel + (p + c + 3) * width,
                         _mm512_mul_ps(_mm512_shuffle_ps(b, e, 0xEE), factor));
    }
}

void headway_pack_avx512(float *panel, int width, const float *const *lines, int n, int64_t k,
                         float scale)
{
    const __m512 factor = _mm512_set1_ps(scale);
    for (int j = 0; j < width; j += LANES) {
        const int live = n - j < LANES ? (n - j > 0 ? n - j : 0) : LANES;
        int64_t p = 0;
        if (live == LANES)
            for (; p + LANES <= k; p += LANES)
                pack_block(panel + j, width, lines + j, p, factor);
        for (; p < k; p += LANES) {
            const __mmask16 mask = first_lanes(k - p);
            __m512 t[LANES];
            UNROLL
            for (int i = 0; i < LANES; i++)
                t[i] =
                    i < live ? _mm512_maskz_loadu_ps(mask, lines[j + i] + p) : _mm512_setzero_ps();
            transpose16(t);
            /* Columns past n stay +0 whatever the sign of scale. */
            UNROLL
            for (int i = 0; i < LANES; i++)
                if (p + i < k)
                    _mm512_storeu_ps(panel + (p + i) * width + j,
                                     _mm512_maskz_mul_ps(first_lanes(live), t[i], factor));
        }
    }
}

int headway_unpack_avx512(float *const *lines, int n, const float *panel, int width, int64_t k,
                          const float *divisor)
{
    __mmask16 spoiled = 0;
    for (int j = 0; j < n; j += LANES) {
        const __mmask16 asked = first_lanes(n - j);
        const __m512 one = _mm512_set1_ps(1.0f), given = _mm512_loadu_ps(divisor + j);
        const __mmask16 live =
            _mm512_mask_cmp_ps_mask(asked, given, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        const __mmask16 clean = _mm512_mask_cmp_ps_mask(live, given, given, _CMP_ORD_Q);
        /* Dividing by 1 where the quotient is of no use raises no flag. */
        const __m512 by = _mm512_mask_blend_ps(live, one, given);
        const __m512 reciprocal = _mm512_div_ps(one, by);
        for (int64_t p = 0; p < k; p += LANES) {
            const __mmask16 mask = first_lanes(k - p);
            __m512 t[LANES];
            UNROLL
            for (int i = 0; i < LANES; i++) {
                t[i] = _mm512_setzero_ps();
                if (p + i < k) {
                    const __m512 x = _mm512_add_ps(_mm512_loadu_ps(panel + (p + i) * width + j),
                                                   _mm512_setzero_ps());
                    const __m512 q = _mm512_mul_ps(x, reciprocal);
                    const __m512 rest = _mm512_fnmadd_ps(q, by, x);
                    t[i] = _mm512_fmadd_ps(rest, reciprocal, q);
                    const __mmask16 nan = _mm512_cmp_ps_mask(t[i], t[i], _CMP_UNORD_Q);
                    t[i] = _mm512_maskz_mov_ps(live, _mm512_mask_blend_ps(nan, t[i], q));
                    spoiled |= nan & clean;
                }
            }
            transpose16(t);
            UNROLL
            for (int i = 0; i < LANES; i++) {
                if (j + i < n && mask == 0xFFFF)
                    _mm512_storeu_ps(lines[j + i] + p, t[i]);
                else if (j + i < n)
                    _mm512_mask_storeu_ps(lines[j + i] + p, mask, t[i]);
            }
        }
    }
    return spoiled != 0;
}
