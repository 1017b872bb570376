/* Stored elements as floats and back, for AVX2 and F16C: whole vectors, and the rest by widen.h. */
#include "cpu/widen.h"

#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__F16C__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { LANES = 8 };

headway_widen_fn headway_widen_avx2;
headway_narrow_fn headway_narrow_avx2;

static int64_t widen_f16(float *line, const uint16_t *stored, int64_t count)
{
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        _mm256_storeu_ps(line + j, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(stored + j))));
    return j;
}

static int64_t widen_bf16(float *line, const uint16_t *stored, int64_t count)
{
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES) {
        const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(stored + j)));
        _mm256_storeu_ps(line + j, _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)));
    }
    return j;
}

static int64_t widen_i8(float *line, const int8_t *stored, int64_t count, float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES) {
        const __m256i x = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(stored + j)));
        _mm256_storeu_ps(line + j, _mm256_mul_ps(_mm256_cvtepi32_ps(x), factor));
    }
    return j;
}

void headway_widen_avx2(float *line, const void *stored, int64_t count,
                        enum headway_storage storage, float scale)
{
    static const int bytes[] = {4, 2, 2, 1};
    int64_t done = 0;

    if (storage == HEADWAY_STORED_F16)
        done = widen_f16(line, stored, count);
    else if (storage == HEADWAY_STORED_BF16)
        done = widen_bf16(line, stored, count);
    else if (storage == HEADWAY_STORED_I8)
        done = widen_i8(line, stored, count, scale);
    headway_widen(line + done, (const char *)stored + done * bytes[storage], count - done, storage,
                  scale);
}

static int64_t narrow_f16(uint16_t *stored, const float *line, int64_t count)
{
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        _mm_storeu_si128((void *)(stored + j),
                         _mm256_cvtps_ph(_mm256_loadu_ps(line + j), _MM_FROUND_TO_NEAREST_INT));
    return j;
}

static int64_t narrow_bf16(uint16_t *stored, const float *line, int64_t count)
{
    const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    const __m256i quiet = _mm256_set1_epi32(0x40);
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES) {
        const __m256 x = _mm256_loadu_ps(line + j);
        const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
        const __m256i up = _mm256_add_epi32(half, _mm256_and_si256(high, one));
        const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i kept = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, quiet), nan);
        _mm_storeu_si128((void *)(stored + j), _mm_packus_epi32(_mm256_castsi256_si128(kept),
                                                                _mm256_extracti128_si256(kept, 1)));
    }
    return j;
}

/* The largest size of the line's elements, or infinity if one is not finite. */
static float most_of(const float *line, int64_t count)
{
    const __m256 size = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    __m256 most = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    float lanes[LANES], top = 0.0f;
    int64_t j = 0;

    for (; j + LANES <= count; j += LANES) {
        const __m256 x = _mm256_and_ps(_mm256_loadu_ps(line + j), size);
        odd = _mm256_or_ps(odd, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        most = _mm256_max_ps(x, most);
    }
    _mm256_storeu_ps(lanes, most);
    for (int l = 0; l < LANES; l++)
        top = lanes[l] > top ? lanes[l] : top;
    int nan = _mm256_movemask_ps(odd);
    for (; j < count; j++) {
        nan |= isnan(line[j]);
        top = fabsf(line[j]) > top ? fabsf(line[j]) : top;
    }
    return nan ? INFINITY : top;
}

static void narrow_i8(int8_t *stored, const float *line, int64_t count, float *scale)
{
    const float most = most_of(line, count);

    if (headway_narrow_zeros(stored, most, count, scale))
        return;
    const float times = 127.0f / most;
    const __m256 factor = _mm256_set1_ps(times);
    int64_t j = 0;
    *scale = most / 127.0f;
    for (; j + LANES <= count; j += LANES) {
        const __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(line + j), factor));
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_storel_epi64((void *)(stored + j), _mm_packs_epi16(words, words));
    }
    for (; j < count; j++)
        stored[j] = (int8_t)(int32_t)rintf(line[j] * times);
}

void headway_narrow_avx2(void *stored, const float *line, int64_t count,
                         enum headway_storage storage, float *scale)
{
    static const int bytes[] = {4, 2, 2, 1};
    int64_t done = 0;

    if (storage == HEADWAY_STORED_I8) {
        narrow_i8(stored, line, count, scale);
        return;
    }
    if (storage == HEADWAY_STORED_F16)
        done = narrow_f16(stored, line, count);
    else if (storage == HEADWAY_STORED_BF16)
        done = narrow_bf16(stored, line, count);
    headway_narrow((char *)stored + done * bytes[storage], line + done, count - done, storage,
                   scale);
}
