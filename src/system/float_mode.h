/* The floating-point modes that results are documented for, on threads that may have others. */
#ifndef HEADWAY_FLOAT_MODE_H
#define HEADWAY_FLOAT_MODE_H

#include <stdint.h>

/* What a thread had. All zeros: nothing to put back. */
struct headway_float_mode {
    uint64_t control;
    int changed;
};

/* Rounding to nearest, subnormals neither read nor written as zeros; which exceptions trap stays.
 * Returns what was there before, for headway_float_leave(), which leaves the flags of exceptions
 * raised in between. A few cycles when nothing has to change. */
struct headway_float_mode headway_float_enter(void);
void headway_float_leave(struct headway_float_mode before);

#endif
