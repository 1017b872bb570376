/* The one exponential of the project: the operations below, in this order, on every row, so that
 * all rows give the same bits.
 *
 * Scores live in units of 2 ln 2 ("half binary logarithms"): a natural score s is stored as
 * s * HEADWAY_EXP_UNIT, and exp(s) = 4^t. With this unit the reduction to |f| <= 1/4 is additions
 * only and exact, and no finite float bias overflows when it is brought into the unit, as it would
 * with the usual factor log2(e) > 1.
 *
 *   x = t < HEADWAY_EXP_MIN ? HEADWAY_EXP_MIN : t       NaN stays NaN
 *   u = x + HEADWAY_EXP_SHIFT                           rounds 2x to the integer n, ties to even
 *   f = x - (u - HEADWAY_EXP_SHIFT)                     exact, |f| <= 1/4
 *   p = C0 + f (C1 + f (C2 + f (C3 + f (C4 + f C5))))   Horner, five fused multiply-adds: 2 * 4^f
 *   e = p * bits(bits(u) << 23)                         2^(n-1), or 0 where n = -126
 *
 * Used for t <= 0 (scores minus their maximum) and NaN. e(0) = 1 and e(-inf) = 0 exactly. Results
 * of 2^-125.5 and below, just above the smallest normal float, are 0, so no subnormal ever appears.
 * Over the whole range 2t > -125.5 the error is at most 2 ulp: tests/check_exp.c walks all floats
 * in it. One degree more, a sixth fused multiply-add, would bring it to 0.80 ulp.
 */
#ifndef HEADWAY_EXP_POLY_H
#define HEADWAY_EXP_POLY_H

#define HEADWAY_EXP_UNIT 0x1.715476p-1f /* log2(e) / 2, rounded to float */
#define HEADWAY_EXP_MIN (-63.0f)
/* 1.5 * 2^22 makes the last place of u one half; 63 puts n + 126 into its low bits, where the shift
 * by 23 finds the exponent of 2^(n-1). */
#define HEADWAY_EXP_SHIFT 6291519.0f
/* Minimax for the error of 2 * 4^f in ulp on |f| <= 1/4 with C0 fixed, then the last bits searched
 * for the smallest error with all roundings: 1.80 ulp, of which 1.05 is the polynomial's own. */
#define HEADWAY_EXP_C0 2.0f
#define HEADWAY_EXP_C1 0x1.62e424p+1f
#define HEADWAY_EXP_C2 0x1.ebf9b4p+0f
#define HEADWAY_EXP_C3 0x1.c6baacp-1f
#define HEADWAY_EXP_C4 0x1.3cec6ep-2f
#define HEADWAY_EXP_C5 0x1.5aacf8p-4f

#endif
