#include "api/check.h"

#include <math.h>
#include <stdlib.h>

#include "system/memory.h"

/* Offsets stay below this many bytes, so that sums of two of them fit int64_t. */
#define MOST_BYTES ((int64_t)1 << 62)

static const char *const dtype_names[] = {"F32", "F16", "BF16", "BOOL"};
static const int64_t dtype_sizes[] = {4, 2, 2, 1};

static const char *dtype_name(headway_dtype dtype)
{
    return (unsigned)dtype <= HEADWAY_BOOL ? dtype_names[dtype] : "unknown type";
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

static int is_empty(const headway_tensor *tensor)
{
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0)
            return 1;
    return 0;
}

/* Lowest and highest element offset; 0 when they don't fit. */
static int span_of(const headway_tensor *tensor, int64_t *low, int64_t *high)
{
    const int64_t most = MOST_BYTES / dtype_sizes[tensor->dtype];
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
    if (tensor->dtype != dtype)
        return headway_fail(engine,
                            (unsigned)tensor->dtype <= HEADWAY_BOOL ? HEADWAY_ERROR_UNSUPPORTED
                                                                    : HEADWAY_ERROR_ARGUMENT,
                            "%s: dtype %s (%d), expected %s in this version", name,
                            dtype_name(tensor->dtype), (int)tensor->dtype, dtype_name(dtype));
    if (tensor->rank != rank)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: rank %d, expected %d %s", name,
                            tensor->rank, rank, axes);
    for (int i = 0; i < rank; i++)
        if (tensor->shape[i] < 0)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "%s: extent %lld on axis %d, expected 0 or more %s", name,
                                (long long)tensor->shape[i], i, axes);
    for (int i = 0; i < rank && !is_empty(tensor); i++)
        if (!headway_mul(count, tensor->shape[i], &count))
            return headway_fail(engine, HEADWAY_ERROR_MEMORY, "%s: more than 2^63 elements", name);
    if (!is_empty(tensor) && !span_of(tensor, &low, &high))
        return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                            "%s: shape and strides reach beyond 2^62 bytes", name);
    return HEADWAY_OK;
}

headway_status headway_check_memory(const headway_engine *engine, const char *name,
                                    const headway_tensor *tensor)
{
    if (is_empty(tensor))
        return HEADWAY_OK;
    if (!tensor->data)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: data is NULL", name);
    if ((uintptr_t)tensor->data % (uintptr_t)dtype_sizes[tensor->dtype] != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: data is not aligned to its type",
                            name);
    return HEADWAY_OK;
}

static headway_status check_data(const headway_engine *engine, const char *name,
                                 const headway_tensor *tensor)
{
    const int last = tensor->rank - 1;
    HEADWAY_TRY(headway_check_memory(engine, name, tensor));
    if (is_empty(tensor))
        return HEADWAY_OK;
    if (tensor->shape[last] != 1 && tensor->stride[last] != 1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: innermost stride %lld, expected 1",
                            name, (long long)tensor->stride[last]);
    return HEADWAY_OK;
}

static headway_status check_distinct(const headway_engine *engine, const char *name,
                                     const headway_tensor *out)
{
    int axes[HEADWAY_MAX_RANK], used = 0;
    int64_t reach = 0;
    if (is_empty(out))
        return HEADWAY_OK;
    for (int i = 0; i < out->rank; i++) {
        int at = used;
        if (out->shape[i] == 1)
            continue;
        for (; at > 0 && llabs(out->stride[axes[at - 1]]) > llabs(out->stride[i]); at--)
            axes[at] = axes[at - 1];
        axes[at] = i;
        used++;
    }
    for (int i = 0; i < used; i++) {
        const int64_t stride = llabs(out->stride[axes[i]]);
        if (stride <= reach)
            return headway_fail(
                engine, HEADWAY_ERROR_OVERLAP,
                "%s: stride %lld of axis %d, expected more than %lld (elements overlap)", name,
                (long long)out->stride[axes[i]], axes[i], (long long)reach);
        reach += (out->shape[axes[i]] - 1) * stride;
    }
    return HEADWAY_OK;
}

/* Where a tensor lies modulo `step` bytes: axes whose stride is a multiple of it drop out. first
 * and last byte of what remains, or 0 when that is as long as the step or longer. */
static int residues(const headway_tensor *tensor, int64_t step, int64_t *start, int64_t *length)
{
    const int64_t size = dtype_sizes[tensor->dtype];
    int64_t low = 0, high = size;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 1 || tensor->stride[i] * size % step == 0)
            continue;
        const int64_t stride = tensor->stride[i] * size;
        if (stride < 0)
            low += (tensor->shape[i] - 1) * stride;
        else
            high += (tensor->shape[i] - 1) * stride;
        if (high - low >= step)
            return 0;
    }
    *length = high - low;
    *start = (int64_t)((uint64_t)(uintptr_t)tensor->data % (uint64_t)step) + low % step;
    *start = (*start % step + step) % step;
    return 1;
}

/* Interleaved tensors (packed query, key, value, out) lie in the same range of bytes, yet apart
 * modulo one of their strides. */
static int apart_modulo(const headway_tensor *a, const headway_tensor *b, int64_t step)
{
    int64_t a_start, a_length, b_start, b_length;
    if (step <= 1 || !residues(a, step, &a_start, &a_length) ||
        !residues(b, step, &b_start, &b_length))
        return 0;
    const int64_t from_a = (b_start - a_start + step) % step;
    return from_a >= a_length && from_a + b_length <= step;
}

static headway_status check_apart(const headway_engine *engine, const char *out_name,
                                  const headway_tensor *out, const char *other_name,
                                  const headway_tensor *other)
{
    int64_t low, high, other_low, other_high;
    if (is_empty(out) || is_empty(other) || !span_of(out, &low, &high) ||
        !span_of(other, &other_low, &other_high))
        return HEADWAY_OK;
    const uintptr_t a = (uintptr_t)out->data, b = (uintptr_t)other->data;
    const int64_t size = dtype_sizes[out->dtype], other_size = dtype_sizes[other->dtype];
    if (a + (uintptr_t)((high + 1) * size) <= b + (uintptr_t)(other_low * other_size) ||
        b + (uintptr_t)((other_high + 1) * other_size) <= a + (uintptr_t)(low * size))
        return HEADWAY_OK;
    for (int i = 0; i < out->rank; i++)
        if (out->shape[i] != 1 && apart_modulo(out, other, llabs(out->stride[i]) * size))
            return HEADWAY_OK;
    for (int i = 0; i < other->rank; i++)
        if (other->shape[i] != 1 && apart_modulo(out, other, llabs(other->stride[i]) * other_size))
            return HEADWAY_OK;
    return headway_fail(engine, HEADWAY_ERROR_OVERLAP,
                        "%s: overlaps %s, expected memory of its own", out_name, other_name);
}

static headway_status check_workspace(const headway_engine *engine, const void *workspace,
                                      size_t given, size_t needed)
{
    if (needed == 0)
        return HEADWAY_OK;
    if (!workspace)
        return headway_fail(engine, HEADWAY_ERROR_WORKSPACE, "workspace: NULL, expected %zu bytes",
                            needed);
    if (given < needed)
        return headway_fail(engine, HEADWAY_ERROR_WORKSPACE, "workspace: %zu bytes, expected %zu",
                            given, needed);
    if ((uintptr_t)workspace % HEADWAY_WORKSPACE_ALIGNMENT != 0)
        return headway_fail(engine, HEADWAY_ERROR_WORKSPACE,
                            "workspace: not aligned, expected a multiple of %d bytes",
                            HEADWAY_WORKSPACE_ALIGNMENT);
    return HEADWAY_OK;
}

enum { OPERANDS = 6 };

headway_status headway_check_operands(const headway_engine *engine,
                                      const headway_attention_params *params,
                                      const headway_tensor *query, const headway_tensor *key,
                                      const headway_tensor *value, const headway_tensor *out,
                                      void *workspace, size_t bytes, size_t needed)
{
    /* The outputs come first. */
    const headway_tensor *tensors[OPERANDS] = {out,   params ? params->lse : NULL, query, key,
                                               value, params ? params->mask : NULL};
    static const char *const names[OPERANDS] = {"out", "lse", "query", "key", "value", "mask"};
    const int64_t floats = (int64_t)(needed / sizeof(float));
    const headway_tensor room = headway_tensor_dense(workspace, HEADWAY_F32, 1, &floats);

    for (int i = 0; i < OPERANDS; i++) {
        if (!tensors[i])
            continue;
        const int any_strides = tensors[i] == tensors[1] || tensors[i] == tensors[OPERANDS - 1];
        HEADWAY_TRY(any_strides ? headway_check_memory(engine, names[i], tensors[i])
                                : check_data(engine, names[i], tensors[i]));
        if (i == 0)
            HEADWAY_TRY(check_distinct(engine, names[i], tensors[i]));
    }
    HEADWAY_TRY(check_workspace(engine, workspace, bytes, needed));
    for (int o = 0; o < 2; o++)
        for (int i = 2; i < OPERANDS; i++)
            if (tensors[o] && tensors[i])
                HEADWAY_TRY(check_apart(engine, names[o], tensors[o], names[i], tensors[i]));
    if (tensors[1])
        HEADWAY_TRY(check_apart(engine, names[1], tensors[1], names[0], tensors[0]));
    for (int i = 0; i < OPERANDS; i++)
        if (tensors[i])
            HEADWAY_TRY(check_apart(engine, "workspace", &room, names[i], tensors[i]));
    return HEADWAY_OK;
}

static headway_status check_lengths(const headway_engine *engine, const char *name,
                                    const int64_t *lengths, int64_t batch, int64_t most)
{
    for (int64_t b = 0; lengths && b < batch; b++)
        if (lengths[b] < 0 || lengths[b] > most)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "%s: %lld for batch %lld, expected 0..%lld", name,
                                (long long)lengths[b], (long long)b, (long long)most);
    return HEADWAY_OK;
}

static headway_status check_causal(const headway_engine *engine,
                                   const headway_attention_params *params,
                                   struct headway_problem *p)
{
    if ((unsigned)params->causal > HEADWAY_CAUSAL_OFFSETS)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "causal: %d, expected one of headway_causal (0..%d)",
                            (int)params->causal, HEADWAY_CAUSAL_OFFSETS);
    if ((params->causal == HEADWAY_CAUSAL_OFFSETS) != (params->row_offsets != NULL))
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "row_offsets: %s, expected them with HEADWAY_CAUSAL_OFFSETS and only then",
            params->row_offsets ? "given" : "NULL");
    p->causal = params->causal != HEADWAY_CAUSAL_NONE;
    p->bottom_right = params->causal == HEADWAY_CAUSAL_BOTTOM_RIGHT;
    p->offsets = params->row_offsets;
    p->window_left = p->window_right = INT64_MAX;
    return HEADWAY_OK;
}

static headway_status check_mask(const headway_engine *engine, const headway_tensor *mask,
                                 struct headway_problem *p)
{
    const int64_t full[4] = {p->batch, p->heads, p->query_rows, p->keys};
    ptrdiff_t stride[4] = {0, 0, 0, 0};

    p->mask.kind = HEADWAY_MASK_NONE;
    if (!mask)
        return HEADWAY_OK;
    if (mask->dtype != HEADWAY_BOOL && mask->dtype != HEADWAY_F32)
        return headway_fail(engine,
                            (unsigned)mask->dtype <= HEADWAY_BOOL ? HEADWAY_ERROR_UNSUPPORTED
                                                                  : HEADWAY_ERROR_ARGUMENT,
                            "mask: dtype %s (%d), expected BOOL or F32 in this version",
                            dtype_name(mask->dtype), (int)mask->dtype);
    if (mask->rank != 1 && mask->rank != 2 && mask->rank != 4)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "mask: rank %d, expected 1 (Lk), 2 (Lq, Lk) or 4 (B, Hq, Lq, Lk)",
                            mask->rank);
    HEADWAY_TRY(headway_check_tensor(engine, "mask", mask, mask->dtype, mask->rank, ""));
    for (int i = 0; i < mask->rank; i++) {
        const int axis = 4 - mask->rank + i;
        if (mask->shape[i] != full[axis] && mask->shape[i] != 1)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "mask: extent %lld on axis %d, expected 1 or %lld",
                                (long long)mask->shape[i], i, (long long)full[axis]);
        stride[axis] = headway_stride(mask, i);
    }
    p->mask.kind = mask->dtype == HEADWAY_BOOL ? HEADWAY_MASK_BOOL : HEADWAY_MASK_F32;
    p->mask.data = mask->data;
    p->mask.batch = stride[0];
    p->mask.head = stride[1];
    p->mask.row = stride[2];
    p->mask.key = stride[3];
    return HEADWAY_OK;
}

headway_status headway_check_params(const headway_engine *engine,
                                    const headway_attention_params *params,
                                    struct headway_problem *p)
{
    static const headway_attention_params defaults = HEADWAY_ATTENTION_PARAMS_INIT;
    double scale = 1.0 / sqrt((double)p->size);

    if (!params)
        params = &defaults;
    HEADWAY_TRY(
        headway_check_size(engine, "params", params->size, sizeof defaults, sizeof defaults));
    if (params->scale) {
        scale = *params->scale;
        if (!isfinite(scale))
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "scale: %g, expected a finite number", scale);
    }
    /* log2(e) / 2 in double: the product is rounded once. */
    p->scale = (float)(scale * 0.72134752044448170368);
    HEADWAY_TRY(check_causal(engine, params, p));
    HEADWAY_TRY(
        check_lengths(engine, "query_lengths", params->query_lengths, p->batch, p->query_rows));
    HEADWAY_TRY(check_lengths(engine, "key_lengths", params->key_lengths, p->batch, p->keys));
    p->query_lengths = params->query_lengths;
    p->key_lengths = params->key_lengths;
    HEADWAY_TRY(check_mask(engine, params->mask, p));
    p->lse.data = NULL;
    if (!params->lse)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_tensor(engine, "lse", params->lse, HEADWAY_F32, 3, "(B, Hq, Lq)"));
    HEADWAY_TRY(headway_check_extent(engine, "lse", 0, params->lse->shape[0], p->batch, "batch"));
    HEADWAY_TRY(
        headway_check_extent(engine, "lse", 1, params->lse->shape[1], p->heads, "query heads"));
    HEADWAY_TRY(
        headway_check_extent(engine, "lse", 2, params->lse->shape[2], p->query_rows, "query rows"));
    HEADWAY_TRY(check_distinct(engine, "lse", params->lse));
    p->lse.data = params->lse->data;
    p->lse.batch = headway_stride(params->lse, 0);
    p->lse.head = headway_stride(params->lse, 1);
    p->lse.row = headway_stride(params->lse, 2);
    return HEADWAY_OK;
}
