/* The memory of a call: present, aligned, and the outputs' apart from everything else. */
#include <stdlib.h>

#include "api/check.h"
#include "api/kv_cache.h"

headway_status headway_check_data(const headway_engine *engine, const char *name,
                                  const headway_tensor *tensor)
{
    const int last = tensor->rank - 1;
    HEADWAY_TRY(headway_check_memory(engine, name, tensor));
    if (headway_tensor_empty(tensor))
        return HEADWAY_OK;
    if (tensor->shape[last] != 1 && tensor->stride[last] != 1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: innermost stride %lld, expected 1",
                            name, (long long)tensor->stride[last]);
    return HEADWAY_OK;
}

headway_status headway_check_distinct(const headway_engine *engine, const char *name,
                                      const headway_tensor *out)
{
    int axes[HEADWAY_MAX_RANK], used = 0;
    int64_t reach = 0;
    if (headway_tensor_empty(out))
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
    const int64_t size = headway_dtype_size(tensor->dtype);
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

/* A tensor of a call, and its bytes: first .. end - 1, none where it is empty. */
struct operand {
    const char *name;
    const headway_tensor *tensor;
    int inner_stride_1;
    uintptr_t first, end;
};

static struct operand operand_of(const char *name, const headway_tensor *tensor, int inner_stride_1)
{
    struct operand one = {name, tensor, inner_stride_1, 0, 0};
    int64_t low, high;
    if (!headway_tensor_empty(tensor) && headway_tensor_span(tensor, &low, &high)) {
        const int64_t size = headway_dtype_size(tensor->dtype);
        one.first = (uintptr_t)tensor->data + (uintptr_t)(low * size);
        one.end = (uintptr_t)tensor->data + (uintptr_t)((high + 1) * size);
    }
    return one;
}

static headway_status check_apart(const headway_engine *engine, const struct operand *out,
                                  const struct operand *other)
{
    const headway_tensor *a = out->tensor, *b = other->tensor;
    if (out->first == out->end || other->first == other->end || out->end <= other->first ||
        other->end <= out->first)
        return HEADWAY_OK;
    const int64_t size = headway_dtype_size(a->dtype), other_size = headway_dtype_size(b->dtype);
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != 1 && apart_modulo(a, b, llabs(a->stride[i]) * size))
            return HEADWAY_OK;
    for (int i = 0; i < b->rank; i++)
        if (b->shape[i] != 1 && apart_modulo(a, b, llabs(b->stride[i]) * other_size))
            return HEADWAY_OK;
    return headway_fail(engine, HEADWAY_ERROR_OVERLAP,
                        "%s: overlaps %s, expected memory of its own", out->name, other->name);
}

headway_status headway_check_apart(const headway_engine *engine, const char *name,
                                   const headway_tensor *out, const char *other_name,
                                   const headway_tensor *other)
{
    const struct operand one = operand_of(name, out, 0), two = operand_of(other_name, other, 0);
    return check_apart(engine, &one, &two);
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

struct operands {
    int count, arrays;
    struct operand list[25];
    headway_tensor array[12];
};

static void add(struct operands *o, const char *name, const headway_tensor *tensor,
                int inner_stride_1)
{
    if (tensor)
        o->list[o->count++] = operand_of(name, tensor, inner_stride_1);
}

/* Memory counted in floats. */
static void add_array(struct operands *o, const char *name, const void *data, int64_t floats)
{
    if (!data)
        return;
    headway_tensor *tensor = &o->array[o->arrays++];
    tensor->data = (void *)data;
    tensor->dtype = HEADWAY_F32;
    tensor->rank = 1;
    tensor->shape[0] = floats;
    tensor->stride[0] = 1;
    add(o, name, tensor, 0);
}

static void add_params(struct operands *o, const headway_attention_params *params,
                       const struct headway_problem *p)
{
    const int64_t word = sizeof(int64_t) / sizeof(float);
    add(o, "mask", params->mask, 0);
    add(o, "interval", params->interval, 0);
    add(o, "query_positions", params->query_positions, 0);
    add(o, "key_positions", params->key_positions, 0);
    add_array(o, "scale", params->scale, 1);
    add_array(o, "row_offsets", params->row_offsets, p->batch * word);
    add_array(o, "query_lengths", params->query_lengths, p->batch * word);
    add_array(o, "key_lengths", params->key_lengths, p->batch * word);
    add_array(o, "query_starts", params->query_starts, (p->batch + 1) * word);
    add_array(o, "key_starts", params->key_starts, (p->batch + 1) * word);
    add_array(o, "alibi_slopes", params->alibi_slopes, p->heads);
    add_array(o, "sinks", params->sinks, p->heads);
    add_array(o, "cache_slots", params->cache_slots, p->batch * word);
}

static void add_cache(struct operands *o, const headway_kv_cache *cache)
{
    add_array(o, "the cache", cache, (int64_t)(cache->bytes / sizeof(float)));
    for (int i = 0; !cache->own && i < HEADWAY_CACHE_TENSORS; i++)
        if (cache->memory[i].rank)
            add(o, "the cache", &cache->memory[i], 0);
}

headway_status headway_check_operands(const headway_engine *engine,
                                      const headway_attention_params *params,
                                      const struct headway_problem *problem,
                                      const headway_tensor *query, const headway_tensor *key,
                                      const headway_tensor *value, const headway_tensor *out,
                                      void *workspace, size_t bytes, size_t needed)
{
    struct operands all;

    all.count = all.arrays = 0;
    add(&all, "out", out, 1);
    add(&all, "lse", params->lse, 0);
    add(&all, "weights", params->weights, 0);
    const headway_kv_cache *cache = params->cache;
    const struct headway_cached *cached = &problem->cached;
    const int appends = cached->more_lengths || cached->more_starts || cached->more_rows > 0;
    if (cache && appends)
        add_cache(&all, cache);
    const int outputs = all.count;
    if (cache && !appends)
        add_cache(&all, cache);
    add(&all, "query", query, 1);
    add(&all, "key", key, 1);
    add(&all, "value", value, 1);
    add_params(&all, params, problem);

    for (const struct operand *o = all.list; o < all.list + all.count; o++)
        HEADWAY_TRY((o->inner_stride_1 ? headway_check_data : headway_check_memory)(engine, o->name,
                                                                                    o->tensor));
    HEADWAY_TRY(headway_check_distinct(engine, "out", out));
    HEADWAY_TRY(check_workspace(engine, workspace, bytes, needed));
    for (int o = 0; o < outputs; o++)
        for (int i = 0; i < all.count; i++)
            if (i >= outputs || i < o)
                HEADWAY_TRY(check_apart(engine, &all.list[o], &all.list[i]));
    const int operands = all.count;
    add_array(&all, "workspace", workspace, (int64_t)(needed / sizeof(float)));
    for (int i = 0; operands < all.count && i < operands; i++)
        HEADWAY_TRY(check_apart(engine, &all.list[operands], &all.list[i]));
    return cache ? headway_check_reach(engine, cache, problem) : HEADWAY_OK;
}
