#include "row_scalar.h"

void headway_bits_scalar(uint64_t *allowed, const unsigned char *const *lines, int n, int k)
{
    for (int p = 0; p < k; p++) {
        uint64_t bits = 0;
        for (int j = 0; j < n; j++)
            bits |= (uint64_t)(lines[j][p] != 0) << j;
        allowed[p] = bits;
    }
}
