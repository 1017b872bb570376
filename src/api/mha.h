/* The layer as create and forward share it. */
#ifndef HEADWAY_MHA_H
#define HEADWAY_MHA_H

#include "core/linear.h"
#include "core/rope.h"
#include "headway/headway.h"

enum { QUERY, KEY, VALUE, OUT, PROJECTIONS };

/* The parts of a layer's memory, in order: packed projections, then these. */
enum { COS = PROJECTIONS, SIN, NORMS, MORE_KEYS, MORE_VALUES, PARTS };

struct headway_mha {
    const headway_engine *engine;
    int64_t heads, kv_heads, size, value_size;
    struct headway_linear linear[PROJECTIONS];
    int normed[2];        /* QUERY and KEY */
    const float *norm[2]; /* (D), sixteenths, or NULL */
    double norm_eps;
    struct headway_rope rope;
    headway_rope_scaling scaling;
    int appended;                 /* keys and values, 0 to 2 */
    const float *more[VALUE + 1]; /* them: KEY (Hkv, appended, D), VALUE (Hkv, appended, Dv) */
};

/* Of a layer whose sizes are known (heads, sizes, inputs of each projection, outputs of OUT, has_bias,
 * normed, rope's sizes, appended): at[i] is where part i begins, in floats, at[PARTS] the end of all.
 * MEMORY when it does not fit. */
headway_status headway_mha_plan(struct headway_mha *layer, int64_t at[PARTS + 1]);
/* Points the layer to parts that lie, or will, in memory (64-byte aligned). */
void headway_mha_attach(struct headway_mha *layer, const int64_t at[PARTS + 1],
                        const float *memory);

/* Checks the configuration (NULL: none) for heads of that size, and sets all of *rope but its
 * tables. */
headway_status headway_mha_check_rope(const headway_engine *engine,
                                      const headway_rope_config *config, int64_t size,
                                      struct headway_rope *rope);
/* Makes or copies the tables of a checked configuration: cos and sin (positions, size / 2). */
void headway_mha_fill_rope(const headway_rope_config *config, const struct headway_rope *rope,
                           float *cos, float *sin);

/* The sum that guards a saved layer, over `bytes` bytes, whole lines of 64. */
uint64_t headway_mha_packed_sum(const void *memory, size_t bytes);

#endif
