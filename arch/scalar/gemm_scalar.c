#include <math.h>

#include "row_scalar.h"

/* One row of c, one vector wide: a chain of multiply-adds per lane. */
static void line(const struct headway_gemm *g, int64_t i, int v)
{
    const float *a = g->a + i * g->a_row;
    const float *b = g->b + v * SCALAR_LANES;
    const ptrdiff_t width = (ptrdiff_t)g->vectors * SCALAR_LANES;
    float *c = g->c[v] + i * g->c_row;
    const int count = g->count ? g->count[v] : SCALAR_LANES;
    float sum[SCALAR_LANES] = {0};

    if (g->accumulate)
        for (int l = 0; l < count; l++)
            sum[l] = g->scale ? c[l] * g->scale[v * SCALAR_LANES + l] : c[l];
    for (int64_t p = 0; p < g->k; p++, a += g->a_col, b += width) {
        const float x = *a;
        sum[0] = fmaf(x, b[0], sum[0]);
        sum[1] = fmaf(x, b[1], sum[1]);
        sum[2] = fmaf(x, b[2], sum[2]);
        sum[3] = fmaf(x, b[3], sum[3]);
    }
    for (int l = 0; l < count; l++)
        c[l] = g->bias ? sum[l] + g->bias[v * SCALAR_LANES + l] : sum[l];
    for (int l = 0; g->highest && l < SCALAR_LANES; l++) {
        float *highest = &g->highest[v * SCALAR_LANES + l], *lowest = &g->lowest[v * SCALAR_LANES + l];
        *highest = c[l] > *highest ? c[l] : *highest;
        *lowest = c[l] < *lowest ? c[l] : *lowest;
    }
}

void headway_gemm_scalar(const struct headway_gemm *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int v = 0; v < g->vectors; v++)
            line(g, i, v);
}
