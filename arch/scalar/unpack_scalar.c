#include "row_scalar.h"

#include <math.h>

/* A zero divisor is replaced before the division, so that no compiler can turn the choice into a
 * division by zero with its flag. */
int headway_unpack_scalar(float *const *lines, int n, const float *panel, int width, int64_t k,
                          const float *divisor)
{
    int poison = 0;

    for (int j = 0; j < n; j++) {
        const int empty = divisor[j] == 0.0f;
        const float by = empty ? 1.0f : divisor[j];
        const float reciprocal = 1.0f / by;
        const int clean = !empty && by == by;
        for (int64_t p = 0; p < k; p++) {
            const float x = panel[p * width + j] + 0.0f;
            const float q = x * reciprocal;
            const float refined = fmaf(fmaf(-q, by, x), reciprocal, q);
            const float result = empty ? 0.0f : refined == refined ? refined : q;
            lines[j][p] = result;
            poison |= clean && refined != refined;
        }
    }
    return poison;
}
