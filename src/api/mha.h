/* The layer as create and forward share it. */
#ifndef HEADWAY_MHA_H
#define HEADWAY_MHA_H

#include "core/linear.h"
#include "headway/headway.h"

enum { QUERY, KEY, VALUE, OUT, PROJECTIONS };

/* Lies at the start of one allocation that the packed weights follow. */
struct headway_mha {
    const headway_engine *engine;
    int64_t heads, kv_heads, size, value_size;
    struct headway_linear linear[PROJECTIONS];
};

#endif
