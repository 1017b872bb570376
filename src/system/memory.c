/* sysconf and its names */
#define _GNU_SOURCE
#include "system/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define ALIGNMENT 64

void *headway_memory_get(size_t bytes)
{
    const int saved = errno;
    void *memory;

    if (bytes > PTRDIFF_MAX - ALIGNMENT)
        return NULL;
    /* aligned_alloc wants whole multiples of the alignment; none would be allowed to give NULL. */
    bytes = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    memory = aligned_alloc(ALIGNMENT, bytes);
    errno = saved;
    return memory;
}

void headway_memory_free(void *memory)
{
    const int saved = errno;

    free(memory);
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
