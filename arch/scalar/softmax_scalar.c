#include <math.h>

#include "exp_scalar.h"
#include "row_scalar.h"

/* The lane's scores with bias and limits applied, in place; returns their maximum with row_max. */
static float limit(const struct headway_softmax *s, int lane)
{
    const int w = s->vectors * SCALAR_LANES;
    float top = s->row_max[lane];

    for (int j = 0; j < s->keys; j++) {
        float *score = &s->scores[j * w + lane];
        if (s->bias) {
            const float bias = s->bias[j * w + lane];
            *score = bias == -INFINITY ? -INFINITY : fmaf(bias, HEADWAY_EXP_UNIT, *score);
        }
        if (s->first && !(s->first[lane] <= j && j < s->last[lane]))
            *score = -INFINITY;
        top = *score > top ? *score : top;
    }
    return top;
}

void headway_softmax_scalar(const struct headway_softmax *s)
{
    const int w = s->vectors * SCALAR_LANES;

    for (int lane = 0; lane < w; lane++) {
        const float top = limit(s, lane);
        const float ref = top == -INFINITY ? 0.0f : top;
        const float rescale = exp_scalar(s->row_max[lane] - ref);
        float sum = s->row_sum[lane] * rescale;
        for (int j = 0; j < s->keys; j++) {
            const float p = exp_scalar(s->scores[j * w + lane] - ref);
            sum += p;
            s->scores[j * w + lane] = p;
        }
        s->rescale[lane] = rescale;
        s->row_sum[lane] = sum;
        s->row_max[lane] = top;
    }
}
