/* Sixteen stored elements as floats, for the AVX-512 row. */
#ifndef HEADWAY_WIDEN_AVX512_H
#define HEADWAY_WIDEN_AVX512_H

#include "cpu/few.h"

#include <immintrin.h>

INLINE __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

INLINE __m512 widen_whole(const enum headway_storage storage, const char *from, __m512 scale)
{
    if (storage == HEADWAY_STORED_F32)
        return _mm512_loadu_ps(from);
    if (storage == HEADWAY_STORED_I8) {
        const __m512i x =
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(x), scale);
    }
    const __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)from);
    if (storage == HEADWAY_STORED_F16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* Those of mask, which alone are read; the others are 0. */
INLINE __m512 widen_masked(const enum headway_storage storage, const char *from, __mmask16 mask,
                           __m512 scale)
{
    if (storage == HEADWAY_STORED_F32)
        return _mm512_maskz_loadu_ps(mask, from);
    if (storage == HEADWAY_STORED_I8) {
        const __m512i x = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, from));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(x), scale);
    }
    const __m256i halves = _mm256_maskz_loadu_epi16(mask, from);
    if (storage == HEADWAY_STORED_F16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

#endif
