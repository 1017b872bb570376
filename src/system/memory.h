/* Memory. The only door to the allocator. */
#ifndef HEADWAY_MEMORY_H
#define HEADWAY_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Whose memory: allocate's (see the public header), or the C library's where that is NULL. */
struct headway_memory {
    void *(*allocate)(void *context, size_t bytes);
    void (*release)(void *context, void *memory, size_t bytes);
    void *context;
};

/* 64-byte aligned, or NULL. Never called by a function that runs a computation. */
void *headway_allocate(const struct headway_memory *memory, size_t bytes);
/* Of the same memory; block NULL is allowed. */
void headway_release(const struct headway_memory *memory, void *block);

/* Bytes of one core's level 2 cache as the system tells it, or 512 KB when it doesn't. */
int64_t headway_level2_bytes(void);

/* *result = a * b or a + b; 0 when it does not fit or an operand is negative, and *result is
 * untouched. */
static inline int headway_mul(int64_t a, int64_t b, int64_t *result)
{
    int64_t product;

    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product))
        return 0;
    *result = product;
    return 1;
}

static inline int headway_add(int64_t a, int64_t b, int64_t *result)
{
    int64_t sum;

    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum))
        return 0;
    *result = sum;
    return 1;
}
/* Room for lines * width floats from *end on, rounded up to a cache line: *offset is where it begins,
 * *end moves behind it. 0 when it does not fit. */
int headway_reserve(int64_t *offset, int64_t *end, int64_t lines, int64_t width);

#endif
