#include "api/check.h"

#include "system/memory.h"

/* Offsets stay below this many bytes, so that sums of two of them fit int64_t. */
#define MOST_BYTES ((int64_t)1 << 62)

const char *headway_dtype_name(headway_dtype dtype)
{
    static const char *const names[] = {"F32", "F16", "BF16", "BOOL", "I32", "I8"};
    return (unsigned)dtype <= HEADWAY_I8 ? names[dtype] : "unknown type";
}

int64_t headway_dtype_size(headway_dtype dtype)
{
    static const int64_t sizes[] = {4, 2, 2, 1, 4, 1};
    return sizes[dtype];
}

headway_status headway_check_size(const headway_engine *engine, const char *name, size_t given,
                                  size_t least, size_t known)
{
    if (given < least || given > known)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: size %zu, expected %zu..%zu (start from the initialiser)", name,
                            given, least, known);
    return HEADWAY_OK;
}

headway_status headway_check_extent(const headway_engine *engine, const char *name, int axis,
                                    int64_t given, int64_t expected, const char *why)
{
    if (given != expected)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: extent %lld on axis %d, expected %lld (%s)", name,
                            (long long)given, axis, (long long)expected, why);
    return HEADWAY_OK;
}

int headway_tensor_empty(const headway_tensor *tensor)
{
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0)
            return 1;
    return 0;
}

int headway_tensor_span(const headway_tensor *tensor, int64_t *low, int64_t *high)
{
    const int64_t size = headway_dtype_size(tensor->dtype);
    const int64_t most = size == 4 ? MOST_BYTES / 4 : MOST_BYTES / size; /* divides seldom */
    *low = *high = 0;
    for (int i = 0; i < tensor->rank; i++) {
        const int64_t stride = tensor->stride[i];
        int64_t reach;
        if (tensor->shape[i] <= 1)
            continue;
        if (stride == INT64_MIN ||
            !headway_mul(tensor->shape[i] - 1, stride < 0 ? -stride : stride, &reach) ||
            reach > most)
            return 0;
        if (stride < 0)
            *low -= reach;
        else
            *high += reach;
        if (*high - *low > most)
            return 0;
    }
    return 1;
}

headway_status headway_check_tensor(const headway_engine *engine, const char *name,
                                    const headway_tensor *tensor, headway_dtype dtype, int rank,
                                    const char *axes)
{
    int64_t low, high, count = 1;
    if (!tensor)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: NULL, expected a tensor %s", name,
                            axes);
    if (tensor->dtype != dtype) {
        const int later = dtype == HEADWAY_F32 && (unsigned)tensor->dtype <= HEADWAY_BOOL;
        return headway_fail(engine, later ? HEADWAY_ERROR_UNSUPPORTED : HEADWAY_ERROR_ARGUMENT,
                            "%s: dtype %s (%d), expected %s%s", name,
                            headway_dtype_name(tensor->dtype), (int)tensor->dtype,
                            headway_dtype_name(dtype), later ? " in this version" : "");
    }
    if (tensor->rank != rank)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: rank %d, expected %d %s", name,
                            tensor->rank, rank, axes);
    for (int i = 0; i < rank; i++)
        if (tensor->shape[i] < 0)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "%s: extent %lld on axis %d, expected 0 or more %s", name,
                                (long long)tensor->shape[i], i, axes);
    if (headway_tensor_empty(tensor))
        return HEADWAY_OK;
    for (int i = 0; i < rank; i++)
        if (!headway_mul(count, tensor->shape[i], &count))
            return headway_fail(engine, HEADWAY_ERROR_MEMORY, "%s: more than 2^63 elements", name);
    if (!headway_tensor_span(tensor, &low, &high))
        return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                            "%s: shape and strides reach beyond 2^62 bytes", name);
    return HEADWAY_OK;
}

headway_status headway_check_memory(const headway_engine *engine, const char *name,
                                    const headway_tensor *tensor)
{
    if (headway_tensor_empty(tensor))
        return HEADWAY_OK;
    if (!tensor->data)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: data is NULL", name);
    if (((uintptr_t)tensor->data & (uintptr_t)(headway_dtype_size(tensor->dtype) - 1)) != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: data is not aligned to its type",
                            name);
    return HEADWAY_OK;
}

headway_status headway_check_batch(const headway_engine *engine, const char *name,
                                   const headway_tensor *tensor, int rank, const char *axes,
                                   struct headway_batch *batch)
{
    if (!tensor)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: NULL, expected a tensor %s", name,
                            axes);
    if (tensor->rank < rank || tensor->rank > HEADWAY_MAX_RANK)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: rank %d, expected %d %s, or %d..%d with other leading axes", name,
                            tensor->rank, rank + 1, axes, rank, HEADWAY_MAX_RANK);
    HEADWAY_TRY(headway_check_tensor(engine, name, tensor, HEADWAY_F32, tensor->rank, axes));
    batch->axes = tensor->rank - rank;
    batch->all = 1;
    for (int a = 0; a < batch->axes; a++) {
        batch->extents[a] = tensor->shape[a];
        if (!headway_mul(batch->all, tensor->shape[a], &batch->all))
            return headway_fail(engine, HEADWAY_ERROR_MEMORY, "%s: a batch of more than 2^63",
                                name);
    }
    return HEADWAY_OK;
}

static headway_status check_form_extent(const headway_engine *engine,
                                        const struct headway_form *form, int axis, int64_t given,
                                        int64_t expected, const char *why, int shared)
{
    if (expected < 0 || given == expected || (shared && given == 1))
        return HEADWAY_OK;
    return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                        "%s: extent %lld on axis %d, expected %s%lld (%s)", form->name,
                        (long long)given, axis, shared && expected != 1 ? "1 or " : "",
                        (long long)expected, why);
}

/* The one stride of the first `axes` axes, which stand for extents[]: 0 where all are 1. */
static headway_status collapse(const headway_engine *engine, const char *name,
                               const headway_tensor *tensor, int axes, const int64_t *extents,
                               int64_t *stride)
{
    int64_t count = 1;
    *stride = 0;
    for (int a = axes - 1; a >= 0; a--) {
        if (extents[a] == 1)
            continue;
        const int64_t given = headway_stride(tensor, a);
        if (count == 1)
            *stride = given;
        else if (given % count != 0 || given / count != *stride)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "%s: stride %lld of axis %d, expected %lld (leading axes must "
                                "collapse: the next one's stride times its extent)",
                                name, (long long)given, a,
                                (long long)((uint64_t)*stride * (uint64_t)count));
        count *= extents[a];
    }
    return HEADWAY_OK;
}

headway_status headway_check_form(const headway_engine *engine, const struct headway_batch *batch,
                                  const struct headway_form *form, const headway_tensor *tensor,
                                  headway_tensor *flat)
{
    const struct headway_batch one = {1, {batch->all}, batch->all}, none = {0, {0}, 1};
    if (!tensor)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: NULL, expected a tensor %s",
                            form->name, form->axes);
    const struct headway_batch *lead = tensor->rank == form->rank + batch->axes       ? batch
                                       : tensor->rank == form->rank + 1               ? &one
                                       : form->no_batch && tensor->rank == form->rank ? &none
                                                                                      : NULL;
    if (!lead && batch->axes == 1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: rank %d, expected %d %s",
                            form->name, tensor->rank, form->rank + 1, form->axes);
    if (!lead)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: rank %d, expected %d %s, or %d with query's leading axes",
                            form->name, tensor->rank, form->rank + 1, form->axes,
                            form->rank + batch->axes);
    HEADWAY_TRY(
        headway_check_tensor(engine, form->name, tensor, form->dtype, tensor->rank, form->axes));
    for (int a = 0; a < lead->axes; a++)
        HEADWAY_TRY(check_form_extent(engine, form, a, tensor->shape[a], lead->extents[a],
                                      "the batch", form->shared != HEADWAY_SHARED_NONE));
    flat->data = tensor->data;
    flat->dtype = tensor->dtype;
    flat->rank = form->rank + 1;
    flat->shape[0] = lead->all;
    flat->stride[0] = 0;
    const int nowhere = lead->all == 0 || headway_tensor_empty(tensor);
    if (!nowhere)
        HEADWAY_TRY(
            collapse(engine, form->name, tensor, lead->axes, lead->extents, &flat->stride[0]));
    for (int i = 0; i < form->rank; i++) {
        const int axis = lead->axes + i;
        HEADWAY_TRY(check_form_extent(engine, form, axis, tensor->shape[axis], form->extents[i],
                                      form->why[i], form->shared == HEADWAY_SHARED_ANY));
        flat->shape[i + 1] = tensor->shape[axis];
        flat->stride[i + 1] = nowhere ? 0 : headway_stride(tensor, axis);
    }
    return HEADWAY_OK;
}
