#include <math.h>

#include "row_scalar.h"

/* Eight chains: a latency of four cycles times the two multiply-adds a cycle that cores do. Each
 * converges to 2 and so stays normal and finite for ever. */
int64_t headway_peak_scalar(int64_t rounds, float *sink)
{
    float s0 = 0, s1 = 1, s2 = 2, s3 = 3, s4 = 4, s5 = 5, s6 = 6, s7 = 7;

    for (int64_t r = 0; r < rounds; r++) {
        s0 = fmaf(s0, 0.5f, 1.0f);
        s1 = fmaf(s1, 0.5f, 1.0f);
        s2 = fmaf(s2, 0.5f, 1.0f);
        s3 = fmaf(s3, 0.5f, 1.0f);
        s4 = fmaf(s4, 0.5f, 1.0f);
        s5 = fmaf(s5, 0.5f, 1.0f);
        s6 = fmaf(s6, 0.5f, 1.0f);
        s7 = fmaf(s7, 0.5f, 1.0f);
    }
    *sink = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
    return rounds * 8 * 2;
}
