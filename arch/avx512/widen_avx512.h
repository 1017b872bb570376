/* Sixteen stored elements as floats, for the AVX-512 row. */
#ifndef HEADWAY_WIDEN_AVX512_H
#define HEADWAY_WIDEN_AVX512_H

#include "cpu/few.h"

#include <immintrin.h>

/* The lanes below n, all of them from 16 on. */
INLINE __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

INLINE __m512 widen_bytes(__m128i bytes, __m512 scale)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale);
}

/* F16 or BF16. */
INLINE __m512 widen_halves(const enum headway_storage storage, __m256i halves)
{
    if (storage == HEADWAY_STORED_F16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

INLINE __m512 widen_whole(const enum headway_storage storage, const void *from, __m512 scale)
{
    if (storage == HEADWAY_STORED_F32)
        return _mm512_loadu_ps(from);
    if (storage == HEADWAY_STORED_I8)
        return widen_bytes(_mm_loadu_si128(from), scale);
    return widen_halves(storage, _mm256_loadu_si256(from));
}

/* Those of mask, which alone are read; the others are 0. */
INLINE __m512 widen_masked(const enum headway_storage storage, const void *from, __mmask16 mask,
                           __m512 scale)
{
    if (storage == HEADWAY_STORED_F32)
        return _mm512_maskz_loadu_ps(mask, from);
    if (storage == HEADWAY_STORED_I8)
        return widen_bytes(_mm_maskz_loadu_epi8(mask, from), scale);
    return widen_halves(storage, _mm256_maskz_loadu_epi16(mask, from));
}

#endif
