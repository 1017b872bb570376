/* sysconf and its names, madvise */
#define _GNU_SOURCE
#include "system/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64
/* Blocks that many pages of the usual size would make slow to read: from about here on weights that a
 * single token goes through take 1.1 to 2 times as long without huge ones. */
#define LARGE ((size_t)8 << 20)
#define HUGE_PAGE ((size_t)2 << 20)

/* Lies right before a block in the caller's memory. */
struct origin {
    void *memory;
    size_t bytes;
};

/* A caller's memory may be aligned to no more than an origin's size: behind the first of these there
 * is always an aligned place within ALIGNMENT bytes. */
static void *caller_allocate(const struct headway_memory *memory, size_t bytes)
{
    struct origin origin = {NULL, bytes + ALIGNMENT};
    char *block;

    origin.memory = memory->allocate(memory->context, origin.bytes);
    if (!origin.memory)
        return NULL;
    block = (char *)origin.memory + sizeof origin;
    block += -(uintptr_t)block % ALIGNMENT;
    memcpy(block - sizeof origin, &origin, sizeof origin);
    return block;
}

static void caller_release(const struct headway_memory *memory, void *block)
{
    struct origin origin;

    memcpy(&origin, (char *)block - sizeof origin, sizeof origin);
    memory->release(memory->context, origin.memory, origin.bytes);
}

/* aligned_alloc wants whole multiples of the alignment; none would be allowed to give NULL. */
static void *own_allocate(size_t bytes)
{
    const size_t alignment = bytes < LARGE ? ALIGNMENT : HUGE_PAGE;
    void *block;

    bytes = bytes ? (bytes + alignment - 1) / alignment * alignment : alignment;
    block = aligned_alloc(alignment, bytes);
#ifdef MADV_HUGEPAGE
    if (block && alignment == HUGE_PAGE)
        madvise(block, bytes, MADV_HUGEPAGE);
#endif
    return block;
}

void *headway_allocate(const struct headway_memory *memory, size_t bytes)
{
    const int saved = errno;
    void *block;

    if (bytes > PTRDIFF_MAX - HUGE_PAGE)
        return NULL;
    block = memory->allocate ? caller_allocate(memory, bytes) : own_allocate(bytes);
    errno = saved;
    return block;
}

void headway_release(const struct headway_memory *memory, void *block)
{
    const int saved = errno;

    if (memory->allocate && block)
        caller_release(memory, block);
    else
        free(block);
    errno = saved;
}

int64_t headway_level2_bytes(void)
{
    const int saved = errno;
    long bytes = -1;

#ifdef _SC_LEVEL2_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    errno = saved;
    return bytes > 0 ? bytes : 512 * 1024;
}

int headway_reserve(int64_t *offset, int64_t *end, int64_t lines, int64_t width)
{
    int64_t floats;
    *offset = *end;
    return headway_mul(lines, width, &floats) && headway_add(floats, 15, &floats) &&
           headway_add(*end, floats / 16 * 16, end);
}
