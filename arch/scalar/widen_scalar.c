#include "cpu/widen.h"

#include "row_scalar.h"

void headway_widen_scalar(float *line, const uint16_t *halves, int count, int bfloat)
{
    headway_widen(line, halves, count, bfloat);
}
