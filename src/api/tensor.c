#include "headway/headway.h"

headway_tensor headway_tensor_dense(void *data, headway_dtype dtype, int rank, const int64_t *shape)
{
    headway_tensor tensor = {data, dtype, rank, {0}, {0}};
    /* Unsigned: extents that don't fit are refused later, by the call that gets the tensor. */
    uint64_t stride = 1;

    for (int i = (rank < HEADWAY_MAX_RANK ? rank : HEADWAY_MAX_RANK) - 1; i >= 0; i--) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = (int64_t)stride;
        stride *= (uint64_t)shape[i];
    }
    return tensor;
}
