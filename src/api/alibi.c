/* The default slopes of ALiBi. */
#include <math.h>

#include "headway/headway.h"
#include "system/float_mode.h"

/* 2^(-8 m / 2^k), 1 <= m <= 2^k <= 2^63: a power of two by its exponent, and one square root after
 * the other for the bits of what is left of it. No other function of libm has the same bits
 * everywhere. Exact where 8 m / 2^k is whole. */
static float slope_at(int64_t m, int k)
{
    if (k <= 3)
        return (float)ldexp(1.0, -(int)(m << (3 - k)));
    const int bits = k - 3;
    double slope = ldexp(1.0, -(int)(m >> bits)), root = 0.5;
    for (int bit = bits - 1; bit >= 0; bit--) {
        root = sqrt(root);
        if (m >> bit & 1)
            slope *= root;
    }
    return (float)slope;
}

headway_status headway_alibi_slopes(int64_t heads, float *slopes)
{
    int k = 0;
    if (heads < 1 || !slopes)
        return HEADWAY_ERROR_ARGUMENT;
    while (heads >> (k + 1))
        k++;
    const int64_t n = INT64_C(1) << k;
    const struct headway_float_mode before = headway_float_enter();
    for (int64_t h = 0; h < heads; h++)
        slopes[h] = h < n ? slope_at(h + 1, k) : slope_at(2 * (h - n) + 1, k + 1);
    headway_float_leave(before);
    return HEADWAY_OK;
}
