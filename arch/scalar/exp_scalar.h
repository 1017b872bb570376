/* exp_poly.h, one float at a time. Only for the files of this directory: they share their flags. */
#ifndef HEADWAY_EXP_SCALAR_H
#define HEADWAY_EXP_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu/exp_poly.h"

static inline float exp_scalar(float t)
{
    float x = t < HEADWAY_EXP_MIN ? HEADWAY_EXP_MIN : t;
    float u = x + HEADWAY_EXP_SHIFT;
    float f = x - (u - HEADWAY_EXP_SHIFT);
    float p = fmaf(f, HEADWAY_EXP_C5, HEADWAY_EXP_C4);
    p = fmaf(f, p, HEADWAY_EXP_C3);
    p = fmaf(f, p, HEADWAY_EXP_C2);
    p = fmaf(f, p, HEADWAY_EXP_C1);
    p = fmaf(f, p, HEADWAY_EXP_C0);
    uint32_t bits;
    memcpy(&bits, &u, sizeof bits);
    bits <<= 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

#endif
