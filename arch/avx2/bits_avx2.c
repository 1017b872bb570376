/* Lines of bytes to bits for AVX2: 32 keys at a time. Eight lines leave their bits in one vector, a
 * byte a key; eight such vectors are then put side by side, so that a key's bytes become its word. */
#include "cpu/kernels.h"
#include "cpu/unroll.h"

#include <immintrin.h>
#include <string.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { KEYS = 32, LINES = 8 /* whose bits share a byte */ };

headway_bits_fn headway_bits_avx2;

/* Bit i of byte p: lines[i][at + p] != 0, for i < n, p < keys. */
INLINE __m256i gather_bits(const unsigned char *const *lines, int n, int at, int keys)
{
    __m256i bits = _mm256_setzero_si256();

    for (int i = 0; i < n; i++) {
        __m256i line = _mm256_setzero_si256();
        memcpy(&line, lines[i] + at, (size_t)keys);
        const __m256i none = _mm256_cmpeq_epi8(line, _mm256_setzero_si256());
        const __m256i bit = _mm256_set1_epi8((char)(1 << i));
        bits = _mm256_or_si256(bits, _mm256_andnot_si256(none, bit));
    }
    return bits;
}

/* From t[g], byte p = byte g of word p, to t[i], words 4 i .. 4 i + 3: bytes, pairs and fours within
 * 128 bits, then the halves. */
INLINE void side_by_side(__m256i *t)
{
    __m256i a[8], b[8];

    UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi8(t[i], t[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi8(t[i], t[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        b[2 * i] = _mm256_unpacklo_epi16(a[i], a[i + 2]);
        b[2 * i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 2]);
        b[2 * i + 4] = _mm256_unpacklo_epi16(a[i + 4], a[i + 6]);
        b[2 * i + 5] = _mm256_unpackhi_epi16(a[i + 4], a[i + 6]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(b[i], b[i + 4]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(b[i], b[i + 4]);
    }
    /* Half h of a[i] holds words 16 h + 2 i and the next. */
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(a[2 * i], a[2 * i + 1], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(a[2 * i], a[2 * i + 1], 0x31);
    }
}

/* The words of `keys` keys, a constant where it is KEYS. */
INLINE void bits_of(uint64_t *allowed, const unsigned char *const *lines, int n, int at, int keys)
{
    __m256i t[8];

    UNROLL
    for (int g = 0; g < 8; g++) {
        const int rest = n - g * LINES;
        t[g] =
            gather_bits(lines + (rest > 0 ? g * LINES : 0), rest < LINES ? rest : LINES, at, keys);
    }
    side_by_side(t);
    memcpy(allowed + at, t, (size_t)keys * sizeof *allowed);
}

void headway_bits_avx2(uint64_t *allowed, const unsigned char *const *lines, int n, int k)
{
    int at = 0;

    for (; at + KEYS <= k; at += KEYS)
        bits_of(allowed, lines, n, at, KEYS);
    if (at < k)
        bits_of(allowed, lines, n, at, k - at);
}
