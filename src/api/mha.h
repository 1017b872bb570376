/* The layer as create and forward share it. */
#ifndef HEADWAY_MHA_H
#define HEADWAY_MHA_H

#include "core/linear.h"
#include "core/rope.h"
#include "headway/headway.h"

enum { QUERY, KEY, VALUE, OUT, PROJECTIONS };

/* Lies at the start of one allocation that all it points to follows. */
struct headway_mha {
    const headway_engine *engine;
    int64_t heads, kv_heads, size, value_size;
    struct headway_linear linear[PROJECTIONS];
    const float *norm[2]; /* of QUERY and KEY: (D), sixteenths, or NULL */
    double norm_eps;
    struct headway_rope rope;
    headway_rope_scaling scaling;
    int appended;                 /* keys and values, 0 to 2 */
    const float *more[VALUE + 1]; /* them: KEY (Hkv, appended, D), VALUE (Hkv, appended, Dv) */
};

/* Checks the configuration (NULL: none) for heads of that size, and sets all of *rope but its
 * tables. */
headway_status headway_mha_check_rope(const headway_engine *engine,
                                      const headway_rope_config *config, int64_t size,
                                      struct headway_rope *rope);
/* Makes or copies the tables of a checked configuration: cos and sin (positions, size / 2). */
void headway_mha_fill_rope(const headway_rope_config *config, const struct headway_rope *rope,
                           float *cos, float *sin);

#endif
