/* Lines of bytes to bits for NEON: 16 keys at a time. Eight lines leave their bits in one vector, a
 * byte a key; eight such vectors are then put side by side, so that a key's bytes become its word. */
#include "cpu/kernels.h"
#include "cpu/unroll.h"

#include <arm_neon.h>
#include <string.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

enum { KEYS = 16, LINES = 8 /* whose bits share a byte */ };

headway_bits_fn headway_bits_neon;

/* Bit i of byte p: lines[i][at + p] != 0, for i < n, p < keys. */
INLINE uint8x16_t gather_bits(const unsigned char *const *lines, int n, int at, int keys)
{
    uint8x16_t bits = vdupq_n_u8(0);

    for (int i = 0; i < n; i++) {
        uint8x16_t line = vdupq_n_u8(0);
        memcpy(&line, lines[i] + at, (size_t)keys);
        const uint8x16_t bit = vdupq_n_u8((uint8_t)(1 << i));
        bits = vorrq_u8(bits, vandq_u8(vtstq_u8(line, line), bit));
    }
    return bits;
}

/* From t[g], byte p = byte g of word p, to words[i], words 2 i and 2 i + 1: bytes, pairs, fours. */
INLINE void side_by_side(const uint8x16_t *t, uint64x2_t *words)
{
    uint16x8_t a[8];
    uint32x4_t b[8];

    UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = vreinterpretq_u16_u8(vzip1q_u8(t[i], t[i + 1]));
        a[i + 1] = vreinterpretq_u16_u8(vzip2q_u8(t[i], t[i + 1]));
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        b[2 * i] = vreinterpretq_u32_u16(vzip1q_u16(a[i], a[i + 2]));
        b[2 * i + 1] = vreinterpretq_u32_u16(vzip2q_u16(a[i], a[i + 2]));
        b[2 * i + 4] = vreinterpretq_u32_u16(vzip1q_u16(a[i + 4], a[i + 6]));
        b[2 * i + 5] = vreinterpretq_u32_u16(vzip2q_u16(a[i + 4], a[i + 6]));
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        words[2 * i] = vreinterpretq_u64_u32(vzip1q_u32(b[i], b[i + 4]));
        words[2 * i + 1] = vreinterpretq_u64_u32(vzip2q_u32(b[i], b[i + 4]));
    }
}

/* The words of `keys` keys, a constant where it is KEYS. */
INLINE void bits_of(uint64_t *allowed, const unsigned char *const *lines, int n, int at, int keys)
{
    uint8x16_t t[8];
    uint64x2_t words[8];

    UNROLL
    for (int g = 0; g < 8; g++) {
        const int rest = n - g * LINES;
        t[g] =
            gather_bits(lines + (rest > 0 ? g * LINES : 0), rest < LINES ? rest : LINES, at, keys);
    }
    side_by_side(t, words);
    memcpy(allowed + at, words, (size_t)keys * sizeof *allowed);
}

void headway_bits_neon(uint64_t *allowed, const unsigned char *const *lines, int n, int k)
{
    int at = 0;

    for (; at + KEYS <= k; at += KEYS)
        bits_of(allowed, lines, n, at, KEYS);
    if (at < k)
        bits_of(allowed, lines, n, at, k - at);
}
