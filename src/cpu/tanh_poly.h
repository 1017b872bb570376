/* The one hyperbolic tangent of the project: the operations below, in this order, on every row, so
 * that all rows give the same bits. With h = (exp(2 |t|) - 1) / 2 it is h / (h + 1).
 *
 *   x = MAX < |t| ? MAX : |t|                           NaN stays NaN
 *   u = fma(x, RATE, SHIFT)                             rounds x * 2 / ln 2 to the integer n
 *   r = fma(u - SHIFT, -STEP, x)                        |r| <= ln 2 / 4
 *   p = C2 + r (C3 + r (C4 + r (C5 + r C6)))            Horner, four fused multiply-adds
 *   e = fma(r * p, r, r)                                (exp(2 r) - 1) / 2
 *   s = bits(bits(u) << 23)                             2^n
 *   h = fma(e, s, fma(s, 0.5, -0.5))
 *   tanh = h / (h + 1) with the sign of t
 *
 * Odd to the bit, +-0 for +-0, t itself for |t| < 2^-25, never beyond +-1 and exactly that from MAX
 * on. Neither overflow nor an invalid operation arises. The error is at most 2.5 ulp:
 * tests/check_exp.c walks all floats from 2^-13 to MAX.
 */
#ifndef HEADWAY_TANH_POLY_H
#define HEADWAY_TANH_POLY_H

#include <float.h>

#define HEADWAY_TANH_MAX 9.5f
#define HEADWAY_TANH_RATE 0x1.715476p+1f /* 2 / ln 2 */
#define HEADWAY_TANH_STEP                                                                          \
    0x1.62e43p-2f /* ln 2 / 2: its own error is of no account, as the slope of
                                          * tanh falls faster than n rises */
/* 1.5 * 2^23 makes the last place of u one; 127 puts n + 127 into its low bits, where the shift by
 * 23 finds the exponent of 2^n. */
#define HEADWAY_TANH_SHIFT 12583039.0f
/* Minimax for the relative error of e, then the last bits searched for the smallest error of tanh
 * with all roundings: 2.45 ulp. */
#define HEADWAY_TANH_C2 1.0f
#define HEADWAY_TANH_C3 0x1.5554eep-1f
#define HEADWAY_TANH_C4 0x1.555654p-2f
#define HEADWAY_TANH_C5 0x1.11ed18p-3f
#define HEADWAY_TANH_C6 0x1.6b2d5ep-5f

/* A bound for scores under a softcap: once divided by cap it lies beyond MAX, and far below
 * overflow. */
#define HEADWAY_TANH_LIMIT(cap) ((cap) < 0x1p123f ? (cap)*16.0f : FLT_MAX)

#endif
