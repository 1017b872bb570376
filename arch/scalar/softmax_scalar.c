#include <math.h>

#include "exp_scalar.h"
#include "row_scalar.h"
#include "tanh_scalar.h"

/* Score j of a lane with everything applied that was given; at is its place in a (keys, w) array. */
static float apply(const struct headway_softmax *s, int lane, int j, int at)
{
    float score = s->scores[at];

    if (s->cap > 0) {
        const float limit = HEADWAY_TANH_LIMIT(s->cap);
        score = score > limit ? limit : score < -limit ? -limit : score;
        score = s->cap * tanh_scalar(score * s->inverse_cap);
    }
    if (s->slope)
        score = fmaf(s->slope[lane], (float)(s->distance[lane] + j), score);
    if (s->bias)
        score = s->bias[at] == -INFINITY ? -INFINITY : fmaf(s->bias[at], HEADWAY_EXP_UNIT, score);
    if (s->allowed && !(s->allowed[j] >> lane & 1))
        score = -INFINITY;
    if (s->first && !(s->first[lane] <= j && j < s->last[lane]))
        score = -INFINITY;
    return score;
}

void headway_softmax_scalar(const struct headway_softmax *s)
{
    const int w = s->vectors * SCALAR_LANES;

    for (int lane = 0; lane < w; lane++) {
        float top = s->row_max[lane];
        for (int j = 0; j < s->keys; j++) {
            const float score = apply(s, lane, j, j * w + lane);
            s->scores[j * w + lane] = score;
            top = score > top ? score : top;
        }
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
