/* Few lanes at a time: the order of gemm, on rows as they are stored. */
#include <math.h>

#include "cpu/widen.h"

#include "row_scalar.h"

void headway_dot_scalar(const struct headway_dot *g)
{
    const struct headway_rows *keys = g->keys;
    for (int j = 0; j < keys->count; j++) {
        const float scale = keys->storage == HEADWAY_STORED_I8 ? keys->scale[j] : 1.0f;
        float sum[HEADWAY_MAX_FEW] = {0};
        for (int64_t p = 0; p < g->k; p++) {
            const float key = headway_widen_at(keys->row[j], p, keys->storage, scale);
            for (int l = 0; l < g->n; l++)
                sum[l] = fmaf(key, g->query[p * g->width + l], sum[l]);
        }
        for (int l = 0; l < g->width; l++)
            g->scores[(ptrdiff_t)j * g->width + l] = l < g->n ? sum[l] : 0.0f;
    }
}

void headway_mix_scalar(const struct headway_mix *g)
{
    const struct headway_rows *values = g->values;
    for (int l = 0; l < g->n; l++)
        for (int64_t d = 0; d < g->m; d++) {
            float *sum = g->sum + l * g->pitch + d;
            *sum = g->fresh ? 0.0f : *sum * g->rescale[l];
        }
    for (int j = 0; j < values->count; j++) {
        const float scale = values->storage == HEADWAY_STORED_I8 ? values->scale[j] : 1.0f;
        for (int64_t d = 0; d < g->m; d++) {
            const float value = headway_widen_at(values->row[j], d, values->storage, scale);
            for (int l = 0; l < g->n; l++) {
                float *sum = g->sum + l * g->pitch + d;
                *sum = fmaf(value, g->weights[(ptrdiff_t)j * g->width + l], *sum);
            }
        }
    }
}
