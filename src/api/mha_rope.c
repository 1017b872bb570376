/* The layer's rotary embedding: its configuration is looked at, its tables are made or copied. */
#include <math.h>
#include <string.h>

#include "api/check.h"
#include "api/mha.h"

/* A number of the configuration that must lie within least .. most, or be 0 where that is said. */
static headway_status check_number(const headway_engine *engine, const char *name, double given,
                                   double least, double most, const char *expected)
{
    if (!(given >= least && given <= most))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "rope: %s %g, expected %s", name, given,
                            expected);
    return HEADWAY_OK;
}

/* Dividing by it must not take an angle beyond HEADWAY_ROPE_MOST. */
static headway_status check_factor(const headway_engine *engine, const char *name, double factor,
                                   int64_t positions)
{
    if (!(factor > 0.0 && factor <= 0x1p100 && (double)positions / factor <= HEADWAY_ROPE_MOST))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: %s %g, expected a number above 0 that leaves the angles of %lld "
                            "positions below %d",
                            name, factor, (long long)positions, HEADWAY_ROPE_MOST);
    return HEADWAY_OK;
}

static headway_status check_llama3(const headway_engine *engine, const headway_rope_config *c)
{
    if (!(c->low_freq_factor > 0.0 && c->low_freq_factor < c->high_freq_factor &&
          c->high_freq_factor <= 0x1p100))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: low_freq_factor %g and high_freq_factor %g, expected numbers "
                            "above 0, the second larger",
                            c->low_freq_factor, c->high_freq_factor);
    return HEADWAY_OK;
}

static headway_status check_yarn(const headway_engine *engine, const headway_rope_config *c)
{
    static const char zero_or_more[] = "0 (not given) or a positive number";
    HEADWAY_TRY(check_number(engine, "beta_fast", c->beta_fast, 0.0, 0x1p100, zero_or_more));
    HEADWAY_TRY(check_number(engine, "beta_slow", c->beta_slow, 0.0, 0x1p100, zero_or_more));
    HEADWAY_TRY(check_number(engine, "mscale", c->mscale, 0.0, 0x1p100, zero_or_more));
    HEADWAY_TRY(
        check_number(engine, "mscale_all_dim", c->mscale_all_dim, 0.0, 0x1p100, zero_or_more));
    const double fast = c->beta_fast != 0.0 ? c->beta_fast : 32.0;
    const double slow = c->beta_slow != 0.0 ? c->beta_slow : 1.0;
    if (fast < slow)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: beta_fast %g below beta_slow %g, expected the larger first",
                            fast, slow);
    return HEADWAY_OK;
}

static headway_status check_longrope(const headway_engine *engine, const headway_rope_config *c,
                                     int64_t half)
{
    if (!c->short_factors || !c->long_factors)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: %s: NULL, expected %lld numbers with HEADWAY_ROPE_LONGROPE",
                            c->short_factors ? "long_factors" : "short_factors", (long long)half);
    for (int64_t k = 0; k < half; k++) {
        HEADWAY_TRY(check_factor(engine, "short_factors", c->short_factors[k], c->positions));
        HEADWAY_TRY(check_factor(engine, "long_factors", c->long_factors[k], c->positions));
    }
    if (c->attention_factor != 0.0)
        return HEADWAY_OK;
    HEADWAY_TRY(check_number(engine, "factor", c->factor, 0x1p-100, 0x1p100,
                             "a number above 0, or an attention_factor"));
    return check_number(engine, "original_positions", (double)c->original_positions, 2.0,
                        HEADWAY_ROPE_MOST, "2 or more, or an attention_factor");
}

static headway_status check_scaling(const headway_engine *engine, const headway_rope_config *c,
                                    int64_t size)
{
    const headway_rope_scaling s = c->scaling;
    if ((unsigned)s > HEADWAY_ROPE_LONGROPE)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: scaling %d, expected one of headway_rope_scaling (0..%d)",
                            (int)s, HEADWAY_ROPE_LONGROPE);
    if (s == HEADWAY_ROPE_LINEAR || s == HEADWAY_ROPE_DYNAMIC || s == HEADWAY_ROPE_LLAMA3 ||
        s == HEADWAY_ROPE_YARN)
        HEADWAY_TRY(check_factor(engine, "factor", c->factor, c->positions));
    if (s >= HEADWAY_ROPE_DYNAMIC)
        HEADWAY_TRY(check_number(engine, "original_positions", (double)c->original_positions, 1.0,
                                 HEADWAY_ROPE_MOST, "1..2^27 with this scaling"));
    if (s == HEADWAY_ROPE_DYNAMIC && size < 4)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: rotary_size %lld, expected 4 or more with HEADWAY_ROPE_DYNAMIC",
                            (long long)size);
    if (s == HEADWAY_ROPE_YARN || s == HEADWAY_ROPE_LONGROPE)
        HEADWAY_TRY(check_number(engine, "attention_factor", c->attention_factor, 0.0, 0x1p100,
                                 "0 (not given) or a positive number"));
    return s == HEADWAY_ROPE_LLAMA3     ? check_llama3(engine, c)
           : s == HEADWAY_ROPE_YARN     ? check_yarn(engine, c)
           : s == HEADWAY_ROPE_LONGROPE ? check_longrope(engine, c, size / 2)
                                        : HEADWAY_OK;
}

/* The caller's own tables, and nothing that they would leave without a meaning. */
static headway_status check_tables(const headway_engine *engine, const headway_rope_config *c,
                                   struct headway_rope *rope)
{
    const headway_tensor *tables[2] = {c->cos, c->sin};
    static const char *const names[2] = {"rope cos", "rope sin"};
    if (!c->cos || !c->sin)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: NULL, expected both tables or none", names[c->cos != NULL]);
    if (c->theta != 0.0 || c->positions != 0 || c->scaling != HEADWAY_ROPE_PLAIN)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "rope: theta %g, positions %lld, scaling %d given together with tables, "
            "expected 0 for each",
            c->theta, (long long)c->positions, (int)c->scaling);
    for (int i = 0; i < 2; i++) {
        HEADWAY_TRY(headway_check_tensor(engine, names[i], tables[i], HEADWAY_F32, 2,
                                         "(positions, rotary_size / 2)"));
        HEADWAY_TRY(headway_check_extent(engine, names[i], 1, tables[i]->shape[1], rope->size / 2,
                                         "rotary_size / 2"));
        HEADWAY_TRY(headway_check_extent(engine, names[i], 0, tables[i]->shape[0], c->cos->shape[0],
                                         "rope cos's positions"));
        HEADWAY_TRY(headway_check_memory(engine, names[i], tables[i]));
    }
    rope->positions = c->cos->shape[0];
    return HEADWAY_OK;
}

headway_status headway_mha_check_rope(const headway_engine *engine, const headway_rope_config *c,
                                      int64_t size, struct headway_rope *rope)
{
    memset(rope, 0, sizeof *rope);
    if (!c)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_size(engine, "rope", c->size, sizeof *c, sizeof *c));
    if ((unsigned)c->style > HEADWAY_ROPE_INTERLEAVED)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: style %d, expected one of headway_rope_style (0..%d)",
                            (int)c->style, HEADWAY_ROPE_INTERLEAVED);
    if (c->style == HEADWAY_ROPE_NONE)
        return HEADWAY_OK;
    rope->style = c->style;
    rope->size = c->rotary_size != 0 ? c->rotary_size : size;
    if (rope->size < 2 || rope->size > size || rope->size % 2 != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "rope: rotary_size %lld, expected an even number up to the head size "
                            "%lld, or 0 where that is even",
                            (long long)c->rotary_size, (long long)size);
    if (c->cos || c->sin) {
        HEADWAY_TRY(check_tables(engine, c, rope));
    } else {
        rope->positions = c->positions;
        if (c->theta != 0.0 && !(c->theta > 1.0 && isfinite(c->theta)))
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "rope: theta %g, expected a number above 1, or 0 (10000)",
                                c->theta);
        if (c->positions >= 1 && c->positions <= HEADWAY_ROPE_MOST)
            HEADWAY_TRY(check_scaling(engine, c, rope->size));
    }
    if (rope->positions < 1 || rope->positions > HEADWAY_ROPE_MOST)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "rope: %lld positions, expected 1..%d",
                            (long long)rope->positions, HEADWAY_ROPE_MOST);
    return HEADWAY_OK;
}

void headway_mha_fill_rope(const headway_rope_config *c, const struct headway_rope *rope,
                           float *cos, float *sin)
{
    const int64_t half = rope->size / 2;
    if (!c->cos) {
        headway_rope_tables(c, rope->size, cos, sin);
        return;
    }
    const float *from_cos = c->cos->data, *from_sin = c->sin->data;
    for (int64_t t = 0; t < rope->positions; t++)
        for (int64_t k = 0; k < half; k++) {
            cos[t * half + k] =
                from_cos[t * headway_stride(c->cos, 0) + k * headway_stride(c->cos, 1)];
            sin[t * half + k] =
                from_sin[t * headway_stride(c->sin, 0) + k * headway_stride(c->sin, 1)];
        }
}
