#include "arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

void *arena_add(struct arena *a, int64_t low, int64_t high, size_t size)
{
    if (a->used == MAX_REGIONS)
        abort();
    struct region *r = &a->regions[a->used++];
    r->bytes = (size_t)(high - low) * size;
    r->memory = check_guard(r->bytes, a->at_end);
    r->copy = NULL;
    if (size == sizeof(float))
        check_poison(r->memory, high - low);
    return (char *)r->memory - low * (int64_t)size;
}

/* Bytes of one element. */
static size_t size_of(const headway_tensor *t)
{
    static const size_t sizes[] = {[HEADWAY_F32] = 4,
                                   [HEADWAY_F16] = 2,
                                   [HEADWAY_BF16] = 2,
                                   [HEADWAY_BOOL] = 1,
                                   [HEADWAY_I32] = 4,
                                   [HEADWAY_I8] = 1};
    return sizes[t->dtype];
}

int64_t elements(const headway_tensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++)
        count *= t->shape[i];
    return count;
}

void arena_place(struct arena *a, headway_tensor *t)
{
    int64_t low = 0, high = 1;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] <= 1)
            continue;
        if (t->stride[i] < 0)
            low += (t->shape[i] - 1) * t->stride[i];
        else
            high += (t->shape[i] - 1) * t->stride[i];
    }
    if (elements(t) == 0)
        low = high = 0;
    t->data = arena_add(a, low, high, size_of(t));
}

/* Offset of the n-th element in row-major order. */
static int64_t offset_of(const headway_tensor *t, int64_t n)
{
    int64_t offset = 0;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->shape[i] > 1)
            offset += n % t->shape[i] * t->stride[i];
        n /= t->shape[i];
    }
    return offset;
}

void scatter(const headway_tensor *t, const void *dense)
{
    const int64_t count = elements(t), run = t->rank ? t->shape[t->rank - 1] : 1;
    const size_t size = size_of(t);
    const int64_t step = run > 1 ? t->stride[t->rank - 1] : 1;
    for (int64_t n = 0; n < count; n += run) {
        char *to = (char *)t->data + offset_of(t, n) * (int64_t)size;
        const char *from = (const char *)dense + (size_t)n * size;
        if (step == 1)
            memcpy(to, from, (size_t)run * size);
        else
            for (int64_t i = 0; i < run; i++)
                memcpy(to + i * step * (int64_t)size, from + (size_t)i * size, size);
    }
}

void lay(headway_tensor *t, const int *order, int64_t innermost, int64_t gap, int backwards)
{
    int64_t step = innermost;
    for (int i = t->rank - 1; i >= 0; i--) {
        const int axis = order[i];
        t->stride[axis] = backwards ? -step : step;
        step = step * (t->shape[axis] > 0 ? t->shape[axis] : 1) + gap;
        if (gap && t->shape[axis] == 1)
            t->stride[axis] = (int64_t)1 << 40;
    }
}

void arena_seal(struct arena *a)
{
    for (int i = 0; i < a->used; i++) {
        struct region *r = &a->regions[i];
        r->copy = malloc(r->bytes + 1);
        if (!r->copy) {
            perror("test");
            exit(1);
        }
        if (r->bytes)
            memcpy(r->copy, r->memory, r->bytes);
    }
}

/* The element's place in the copy of its region. */
static float *copy_at(const struct arena *a, const float *at)
{
    for (int i = 0; i < a->used; i++) {
        const struct region *r = &a->regions[i];
        const char *from = r->memory;
        if ((const char *)at >= from && (const char *)at < from + r->bytes)
            return (float *)(void *)((char *)r->copy + ((const char *)at - from));
    }
    abort();
}

void arena_take(const struct arena *a, const headway_tensor *t, const int64_t *lengths,
                int row_axis, float otherwise, float *dense)
{
    const int64_t count = elements(t);
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n, row = 0;
        for (int i = t->rank - 1; i > 0; i--) {
            if (i == row_axis)
                row = rest % t->shape[i];
            rest /= t->shape[i];
        }
        float *at = (float *)t->data + offset_of(t, n);
        if (!lengths || row < lengths[rest]) {
            dense[n] = *at;
            memcpy(copy_at(a, at), at, sizeof *at);
        } else {
            dense[n] = otherwise;
        }
    }
}

void arena_release(struct arena *a)
{
    for (int i = 0; i < a->used; i++) {
        struct region *r = &a->regions[i];
        CHECK(!r->copy || r->bytes == 0 || memcmp(r->memory, r->copy, r->bytes) == 0,
              "memory that is not the call's to write changed (operand %d of %d)", i, a->used);
        check_guard_free(r->memory);
        free(r->copy);
    }
    a->used = 0;
}
