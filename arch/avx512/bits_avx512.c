/* Lines of bytes to bits for AVX-512: 64 keys at a time. Eight lines leave their bits in one vector,
 * a byte a key; eight such vectors are then put side by side, so that a key's bytes become its word.
 */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/unroll.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#define KEYS 64
#define LINES 8 /* whose bits share a byte */

headway_bits_fn headway_bits_avx512;

/* Bit i of byte p: lines[i][at + p] != 0, for i < n and the keys p in mask. */
INLINE __m512i gather_bits(const unsigned char *const *lines, int n, int at, __mmask64 mask)
{
    __m512i bits = _mm512_setzero_si512();

    for (int i = 0; i < n; i++) {
        const __m512i line = _mm512_maskz_loadu_epi8(mask, lines[i] + at);
        const __m512i bit = _mm512_set1_epi8((char)(1 << i));
        bits = _mm512_mask_add_epi8(bits, _mm512_test_epi8_mask(line, line), bits, bit);
    }
    return bits;
}

/* From t[g], byte p = byte g of word p, to t[i], words 8 i .. 8 i + 7: bytes, pairs and fours within
 * 128 bits, then the 128-bit quarters in two steps. */
INLINE void side_by_side(__m512i *t)
{
    __m512i a[8], b[8];

    UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm512_unpacklo_epi8(t[i], t[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi8(t[i], t[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        b[2 * i] = _mm512_unpacklo_epi16(a[i], a[i + 2]);
        b[2 * i + 1] = _mm512_unpackhi_epi16(a[i], a[i + 2]);
        b[2 * i + 4] = _mm512_unpacklo_epi16(a[i + 4], a[i + 6]);
        b[2 * i + 5] = _mm512_unpackhi_epi16(a[i + 4], a[i + 6]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(b[i], b[i + 4]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(b[i], b[i + 4]);
    }
    /* Quarter q of a[i] holds words 16 q + 2 i and the next. */
    UNROLL
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm512_shuffle_i64x2(a[4 * i], a[4 * i + 1], 0x88);
        b[4 * i + 1] = _mm512_shuffle_i64x2(a[4 * i], a[4 * i + 1], 0xDD);
        b[4 * i + 2] = _mm512_shuffle_i64x2(a[4 * i + 2], a[4 * i + 3], 0x88);
        b[4 * i + 3] = _mm512_shuffle_i64x2(a[4 * i + 2], a[4 * i + 3], 0xDD);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        t[i] = _mm512_shuffle_i64x2(b[4 * i], b[4 * i + 2], 0x88);
        t[2 + i] = _mm512_shuffle_i64x2(b[4 * i + 1], b[4 * i + 3], 0x88);
        t[4 + i] = _mm512_shuffle_i64x2(b[4 * i], b[4 * i + 2], 0xDD);
        t[6 + i] = _mm512_shuffle_i64x2(b[4 * i + 1], b[4 * i + 3], 0xDD);
    }
}

void headway_bits_avx512(uint64_t *allowed, const unsigned char *const *lines, int n, int k)
{
    for (int p = 0; p < k; p += KEYS) {
        const __mmask64 mask = k - p < KEYS ? (UINT64_C(1) << (k - p)) - 1 : UINT64_MAX;
        __m512i t[8];
        UNROLL
        for (int g = 0; g < 8; g++) {
            const int rest = n - g * LINES;
            t[g] = gather_bits(lines + (rest > 0 ? g * LINES : 0), rest < LINES ? rest : LINES, p,
                               mask);
        }
        side_by_side(t);
        UNROLL
        for (int i = 0; i < 8; i++) {
            const int words = k - p - 8 * i > 0 ? k - p - 8 * i : 0;
            const unsigned first = words < 8 ? (1u << words) - 1 : 0xFF;
            if (words)
                _mm512_mask_storeu_epi64(allowed + p + 8 * i, (__mmask8)first, t[i]);
        }
    }
}
