#include <math.h>

#include "exp_scalar.h"
#include "row_scalar.h"

void headway_merge_scalar(const struct headway_merge *g)
{
    const int w = g->vectors * SCALAR_LANES;

    for (int lane = 0; lane < w; lane++) {
        const float earlier = g->row_max[lane], later = g->later_max[lane];
        const float top = later > earlier ? later : earlier;
        const float ref = top == -INFINITY ? 0.0f : top;
        const float x = exp_scalar(earlier - ref), y = exp_scalar(later - ref);
        g->row_sum[lane] = fmaf(g->row_sum[lane], x, g->later_sum[lane] * y);
        for (int64_t d = 0; d < g->m; d++) {
            const int64_t at = d * w + lane;
            g->sum[at] = fmaf(g->sum[at], x, (g->later ? g->later[at] : 0.0f) * y);
        }
        g->row_max[lane] = top;
    }
}
