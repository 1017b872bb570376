/* Operands of one call in guarded memory, and proof of what the call wrote. */
#ifndef HEADWAY_ARENA_H
#define HEADWAY_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "headway/headway.h"

enum { MAX_REGIONS = 32 };

struct region {
    void *memory;
    void *copy; /* what it must hold in the end */
    size_t bytes;
};

struct arena {
    struct region regions[MAX_REGIONS];
    int used, at_end;
};

/* Guarded memory, floats poisoned, for elements low .. high - 1; returns where element 0 is. */
void *arena_add(struct arena *a, int64_t low, int64_t high, size_t size);
/* Gives the tensor memory of its own, exactly as much as its shape and strides reach. */
void arena_place(struct arena *a, headway_tensor *t);
/* After the operands are filled: remembers all bytes. */
void arena_seal(struct arena *a);
/* Copies results out, in row-major order. Rows (along row_axis) below lengths[batch] (NULL: all)
 * are the call's to write; others read as `otherwise`. Axis 0 is the batch. */
void arena_take(const struct arena *a, const headway_tensor *t, const int64_t *lengths,
                int row_axis, float otherwise, float *dense);
/* Fails the case if anything else was written; frees all. */
void arena_release(struct arena *a);

/* Fills the tensor's elements from row-major data. */
void scatter(const headway_tensor *t, const void *dense);
int64_t elements(const headway_tensor *t);

/* Strides for axes in the order of `order`, outermost first; innermost: of the last axis; gap:
 * unused elements behind each axis, and then wild strides where an extent of 1 makes them
 * meaningless. */
void lay(headway_tensor *t, const int *order, int64_t innermost, int64_t gap, int backwards);

#endif
