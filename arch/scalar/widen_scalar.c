#include <math.h>
#include <string.h>

#include "cpu/widen.h"

#include "row_scalar.h"

void headway_widen_scalar(float *line, const void *stored, int64_t count,
                          enum headway_storage storage, float scale)
{
    headway_widen(line, stored, count, storage, scale);
}

void headway_narrow_scalar(void *stored, const float *line, int64_t count,
                           enum headway_storage storage, float *scale)
{
    headway_narrow(stored, line, count, storage, scale);
}
