#include "core/lse.h"

#include <math.h>

#define LN2 0.693147180559945309417

/* ln(x) for a positive, finite float: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and the series of
 * ln m = 2 artanh((m - 1) / (m + 1)); |z| <= 0.1716, so nine terms leave less than 1e-15. */
static double ln(float x)
{
    int e;
    double m = frexp((double)x, &e);
    if (m < 0.70710678118654752440) {
        m = m * 2.0;
        e = e - 1;
    }
    const double z = (m - 1.0) / (m + 1.0);
    const double zz = z * z;
    double sum = 0.0;
    for (int n = 17; n >= 1; n -= 2)
        sum = sum * zz + 1.0 / n;
    return 2.0 * z * sum + e * LN2;
}

float headway_lse(float top, float total)
{
    if (total == 0.0f)
        return -INFINITY;
    if (!(total > 0.0f && total < INFINITY))
        return NAN;
    return (float)((double)top * (2.0 * LN2) + ln(total));
}
