/* Stored elements as floats and back for AVX-512, the rest of a line under a mask. */
#include "widen_avx512.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#define LANES 16

headway_widen_fn headway_widen_avx512;
headway_narrow_fn headway_narrow_avx512;

void headway_widen_avx512(float *line, const void *stored, int64_t count,
                          enum headway_storage storage, float scale)
{
    const __m512 factor = _mm512_set1_ps(storage == HEADWAY_STORED_I8 ? scale : 0.0f);
    const int size = headway_few_bytes(storage);

    for (int64_t j = 0; j < count; j += LANES) {
        const __mmask16 mask = first_lanes(count - j);
        const __m512 x = widen_masked(storage, (const char *)stored + j * size, mask, factor);
        _mm512_mask_storeu_ps(line + j, mask, x);
    }
}

/* Whole numbers: the instruction that rounds to bfloat16 takes subnormal floats for zeros. */
INLINE __m512i narrow_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(_mm512_srli_epi32(_mm512_add_epi32(bits, up), 16), nan, high,
                                _mm512_set1_epi32(0x40));
}

/* The largest size, or infinity if an element is not finite. */
static float most_of(const float *line, int64_t count)
{
    const __m512i size = _mm512_set1_epi32(INT32_MAX);
    __m512i most = _mm512_setzero_si512();

    /* The bits of floats without a sign are in order, NaNs last. */
    for (int64_t j = 0; j < count; j += LANES) {
        const __m512i x = _mm512_maskz_loadu_epi32(first_lanes(count - j), line + j);
        most = _mm512_max_epi32(most, _mm512_and_si512(x, size));
    }
    const uint32_t top = (uint32_t)_mm512_reduce_max_epi32(most);
    return headway_float_of(top < 0x7f800000 ? top : 0x7f800000);
}

static void narrow_i8(int8_t *stored, const float *line, int64_t count, float *scale)
{
    const float most = most_of(line, count);

    if (headway_narrow_zeros(stored, most, count, scale))
        return;
    const __m512 factor = _mm512_set1_ps(127.0f / most);
    *scale = most / 127.0f;
    for (int64_t j = 0; j < count; j += LANES) {
        const __mmask16 mask = first_lanes(count - j);
        const __m512 x = _mm512_maskz_loadu_ps(mask, line + j);
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
        _mm_mask_storeu_epi8(stored + j, mask, _mm512_cvtepi32_epi8(whole));
    }
}

static void narrow_16(uint16_t *stored, const float *line, int64_t count,
                      enum headway_storage storage)
{
    for (int64_t j = 0; j < count; j += LANES) {
        const __mmask16 mask = first_lanes(count - j);
        const __m512 x = _mm512_maskz_loadu_ps(mask, line + j);
        const __m256i halves =
            storage == HEADWAY_STORED_F16
                ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                : _mm512_cvtepi32_epi16(narrow_bf16(x));
        _mm256_mask_storeu_epi16(stored + j, mask, halves);
    }
}

void headway_narrow_avx512(void *stored, const float *line, int64_t count,
                           enum headway_storage storage, float *scale)
{
    if (storage == HEADWAY_STORED_F32)
        memcpy(stored, line, (size_t)count * sizeof *line);
    else if (storage == HEADWAY_STORED_I8)
        narrow_i8(stored, line, count, scale);
    else
        narrow_16(stored, line, count, storage);
}
