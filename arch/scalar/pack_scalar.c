#include "row_scalar.h"

void headway_pack_scalar(float *panel, int width, const float *const *lines, int n, int64_t k,
                         float scale)
{
    for (int64_t p = 0; p < k; p++, panel += width) {
        for (int j = 0; j < n; j++)
            panel[j] = lines[j][p] * scale;
        for (int j = n; j < width; j++)
            panel[j] = 0.0f;
    }
}
