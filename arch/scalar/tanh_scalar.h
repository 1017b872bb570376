/* tanh_poly.h, one float at a time. Only for the files of this directory: they share their flags. */
#ifndef HEADWAY_TANH_SCALAR_H
#define HEADWAY_TANH_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu/tanh_poly.h"

static inline float tanh_scalar(float t)
{
    const float size = fabsf(t);
    const float x = HEADWAY_TANH_MAX < size ? HEADWAY_TANH_MAX : size;
    const float u = fmaf(x, HEADWAY_TANH_RATE, HEADWAY_TANH_SHIFT);
    const float r = fmaf(u - HEADWAY_TANH_SHIFT, -HEADWAY_TANH_STEP, x);
    float p = fmaf(r, HEADWAY_TANH_C6, HEADWAY_TANH_C5);
    p = fmaf(r, p, HEADWAY_TANH_C4);
    p = fmaf(r, p, HEADWAY_TANH_C3);
    p = fmaf(r, p, HEADWAY_TANH_C2);
    const float e = fmaf(r * p, r, r);
    uint32_t bits;
    memcpy(&bits, &u, sizeof bits);
    bits <<= 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    const float h = fmaf(e, power, fmaf(power, 0.5f, -0.5f));
    return copysignf(h / (h + 1.0f), t);
}

#endif
