/* log-sum-exp from the state of the online softmax. */
#ifndef HEADWAY_LSE_H
#define HEADWAY_LSE_H

/* top * 2 ln 2 + ln(total), computed in double by the same operations everywhere and rounded once;
 * top in the units of cpu/exp_poly.h. -inf when total is 0; NaN when either is NaN. Error against
 * exact arithmetic on (top, total): half a unit in the last place of the result. */
float headway_lse(float top, float total);

#endif
