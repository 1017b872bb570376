/* Halves as floats, for every row: choices by masks, of which compilers make vectors of the row's
 * own width. */
#ifndef HEADWAY_WIDEN_H
#define HEADWAY_WIDEN_H

#include <stdint.h>
#include <string.h>

/* The bits of a float that is exactly the binary16. */
static inline uint32_t headway_widen_f16(uint32_t half)
{
    const uint32_t sign = (half & 0x8000) << 16, rest = half & 0x7fff;
    const uint32_t normal = -(uint32_t)(rest >= 0x0400), large = -(uint32_t)(rest >= 0x7c00);
    const float small = (float)(int32_t)rest * 0x1p-24f;
    uint32_t bits;
    memcpy(&bits, &small, sizeof bits);
    const uint32_t wide = (rest << 13) + (UINT32_C(112) << 23) + (large & (UINT32_C(112) << 23));
    return sign | (normal & wide) | (~normal & bits);
}

/* headway_widen_fn's rule. */
static inline void headway_widen(float *line, const uint16_t *halves, int count, int bfloat)
{
    for (int j = 0; j < count && bfloat; j++) {
        const uint32_t bits = (uint32_t)halves[j] << 16;
        memcpy(&line[j], &bits, sizeof bits);
    }
    for (int j = 0; j < count && !bfloat; j++) {
        const uint32_t bits = headway_widen_f16(halves[j]);
        memcpy(&line[j], &bits, sizeof bits);
    }
}

#endif
