#ifndef HEADWAY_CHECK_ALLOC_H
#define HEADWAY_CHECK_ALLOC_H

#include "headway/headway.h"

struct headway_row;

/* Between the two, calls of the C library's allocator by anybody are counted. */
void watch_begin(void);
long watch_end(void);

/* Values in guarded memory, for check_guard_free(). */
headway_tensor guarded(int rank, const int64_t *shape, float value);

/* Create functions on a caller's memory, which runs out. */
void check_caller(const struct headway_row *row);
/* Appending, reading, attention and layers over a cache. */
void check_caches(const headway_engine *engine, const char *isa);

#endif
