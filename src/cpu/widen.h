/* Stored elements as floats and back, for every row: choices by masks, of which compilers make
 * vectors of the row's own width. */
#ifndef HEADWAY_WIDEN_H
#define HEADWAY_WIDEN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu/kernels.h"

#define HEADWAY_LEAST_SCALED 0x1p-100f /* rows of less are kept as 0 with I8 */

static inline float headway_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t headway_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The bits of a float that is exactly the binary16. */
static inline uint32_t headway_widen_f16(uint32_t half)
{
    const uint32_t sign = (half & 0x8000) << 16, rest = half & 0x7fff;
    const uint32_t normal = -(uint32_t)(rest >= 0x0400), large = -(uint32_t)(rest >= 0x7c00);
    const uint32_t bits = headway_bits_of((float)(int32_t)rest * 0x1p-24f);
    const uint32_t wide = (rest << 13) + (UINT32_C(112) << 23) + (large & (UINT32_C(112) << 23));
    return sign | (normal & wide) | (~normal & bits);
}

/* Element p of a row. */
static inline float headway_widen_at(const void *row, int64_t p, enum headway_storage storage,
                                     float scale)
{
    switch (storage) {
    case HEADWAY_STORED_F16:
        return headway_float_of(headway_widen_f16(((const uint16_t *)row)[p]));
    case HEADWAY_STORED_BF16:
        return headway_float_of((uint32_t)((const uint16_t *)row)[p] << 16);
    case HEADWAY_STORED_I8:
        return (float)((const int8_t *)row)[p] * scale;
    default:
        return ((const float *)row)[p];
    }
}

/* headway_widen_fn's rule. */
static inline void headway_widen(float *line, const void *stored, int64_t count,
                                 enum headway_storage storage, float scale)
{
    if (storage == HEADWAY_STORED_F32)
        memcpy(line, stored, (size_t)count * sizeof *line);
    for (int64_t j = 0; j < count && storage == HEADWAY_STORED_F16; j++)
        line[j] = headway_widen_at(stored, j, HEADWAY_STORED_F16, scale);
    for (int64_t j = 0; j < count && storage == HEADWAY_STORED_BF16; j++)
        line[j] = headway_widen_at(stored, j, HEADWAY_STORED_BF16, scale);
    for (int64_t j = 0; j < count && storage == HEADWAY_STORED_I8; j++)
        line[j] = headway_widen_at(stored, j, HEADWAY_STORED_I8, scale);
}

static inline uint16_t headway_narrow_bf16(float x)
{
    const uint32_t bits = headway_bits_of(x);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Below binary16's normal numbers the sum with one half has the rounded units in its last bits. */
static inline uint16_t headway_narrow_f16(float x)
{
    const uint32_t bits = headway_bits_of(x), sign = bits >> 16 & 0x8000;
    const uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) /* 65520 and above are infinite */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000)
        return (uint16_t)(sign |
                          (headway_bits_of(headway_float_of(rest) + 0.5f) - headway_bits_of(0.5f)));
    return (uint16_t)(sign | ((rest - (UINT32_C(112) << 23) + 0xfff + (rest >> 13 & 1)) >> 13));
}

/* 1: a row whose largest size is `most`, infinity where it is not finite, is kept as zeros. To be asked
 * before a division by most: compilers divide before they choose, and one by zero leaves its flag. */
static inline int headway_narrow_zeros(int8_t *stored, float most, int64_t count, float *scale)
{
    if (most >= HEADWAY_LEAST_SCALED && most < INFINITY)
        return 0;
    *scale = most < INFINITY ? 0.0f : NAN;
    memset(stored, 0, (size_t)count);
    return 1;
}

static inline void headway_narrow_i8(int8_t *stored, const float *line, int64_t count, float *scale)
{
    float most = 0.0f;
    int finite = 1;
    for (int64_t j = 0; j < count; j++) {
        const float size = fabsf(line[j]);
        finite &= size <= 0x1.fffffep127f;
        most = size > most ? size : most;
    }
    if (headway_narrow_zeros(stored, finite ? most : INFINITY, count, scale))
        return;
    const float times = 127.0f / most;
    *scale = most / 127.0f;
    for (int64_t j = 0; j < count; j++)
        stored[j] = (int8_t)(int32_t)rintf(line[j] * times);
}

/* headway_narrow_fn's rule. */
static inline void headway_narrow(void *stored, const float *line, int64_t count,
                                  enum headway_storage storage, float *scale)
{
    if (storage == HEADWAY_STORED_F32)
        memcpy(stored, line, (size_t)count * sizeof *line);
    if (storage == HEADWAY_STORED_I8)
        headway_narrow_i8(stored, line, count, scale);
    for (int64_t j = 0; j < count && storage == HEADWAY_STORED_F16; j++)
        ((uint16_t *)stored)[j] = headway_narrow_f16(line[j]);
    for (int64_t j = 0; j < count && storage == HEADWAY_STORED_BF16; j++)
        ((uint16_t *)stored)[j] = headway_narrow_bf16(line[j]);
}

#endif
