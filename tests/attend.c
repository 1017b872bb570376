#include "attend.h"

#include "arena.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum { OTHER_ERRNO = 4321 };

/* ---- environment ------------------------------------------------------------------------------
 */

static struct {
    int rounding;
    uint64_t control;
} before;

/* What of the floating-point unit's control no call may change: rounding, masks, flushing to zero.
 */
static uint64_t control_bits(void)
{
#if defined(__SSE__)
    return _mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK;
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return 0;
#endif
}

void environment_enter(void)
{
    before.rounding = fegetround();
    before.control = control_bits();
    errno = OTHER_ERRNO;
    feclearexcept(FE_ALL_EXCEPT);
}

void environment_leave(int flags_free)
{
    const int raised = fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    CHECK(!flags_free || !raised, "raised%s%s%s", raised & FE_INVALID ? " invalid" : "",
          raised & FE_DIVBYZERO ? " division by zero" : "",
          raised & FE_OVERFLOW ? " overflow" : "");
    CHECK(fegetround() == before.rounding && control_bits() == before.control,
          "the floating-point environment changed");
    CHECK(errno == OTHER_ERRNO, "errno became %d", errno);
}

/* ---- layout -----------------------------------------------------------------------------------
 */

struct operands {
    headway_tensor query, key, value, out, lse, mask, interval, weights;
    struct arena arena;
};

static void lay_operand(headway_tensor *t, enum layout layout, unsigned shared)
{
    static const int blhd[4] = {0, 1, 2, 3}, bhld[4] = {0, 2, 1, 3};
    lay(t, layout == LAYOUT_BHLD ? bhld : blhd, 1, layout == LAYOUT_ODD ? 3 : 0,
        layout == LAYOUT_NEGATIVE);
    if (t->shape[3] != 1)
        t->stride[3] = 1;
    if (shared & SHARED_BATCH)
        t->stride[0] = 0;
    if (shared & SHARED_ROWS)
        t->stride[1] = 0;
    if (shared & SHARED_HEADS)
        t->stride[2] = 0;
}

static headway_tensor describe(headway_dtype dtype, int rank, const int64_t *shape)
{
    return headway_tensor_dense(NULL, dtype, rank, shape);
}

/* Views side by side in one buffer of (B, L, width). */
static void pack(struct operands *o, headway_tensor *const *views, int count)
{
    int64_t width = 0;
    for (int i = 0; i < count; i++)
        width += views[i]->shape[2] * views[i]->shape[3];
    const int64_t lines = views[0]->shape[0] * views[0]->shape[1];
    float *data = arena_add(&o->arena, 0, lines * width, sizeof(float));
    for (int i = 0; i < count; i++) {
        headway_tensor *t = views[i];
        t->data = data;
        t->stride[0] = t->shape[1] * width;
        t->stride[1] = width;
        t->stride[2] = t->shape[3];
        t->stride[3] = 1;
        data += t->shape[2] * t->shape[3];
    }
}

static void lay_all(struct operands *o, const struct problem *p, enum layout layout)
{
    headway_tensor *all[4] = {&o->query, &o->out, &o->key, &o->value};
    if (layout != LAYOUT_PACKED || p->shared) {
        for (int i = 0; i < 4; i++) {
            lay_operand(all[i], layout, all[i] == &o->out ? 0 : p->shared);
            arena_place(&o->arena, all[i]);
        }
    } else if (p->shape.queries == p->shape.keys) {
        pack(o, all, 4);
    } else {
        pack(o, all, 2);
        pack(o, all + 2, 2);
    }
}

/* Places one of the others: axes in that order in the turned layout. */
static void lay_extra(struct operands *o, headway_tensor *t, enum layout layout, const int *turned,
                      int64_t innermost)
{
    static const int same[4] = {0, 1, 2, 3};
    const int odd = layout == LAYOUT_ODD, last = t->rank - 1;
    lay(t, layout == LAYOUT_BHLD ? turned : same, odd ? innermost : 1, odd ? 5 : 0,
        layout == LAYOUT_NEGATIVE);
    if (t == &o->weights && t->shape[last] != 1)
        t->stride[last] = 1;
    arena_place(&o->arena, t);
}

static void lay_extras(struct operands *o, const struct problem *p, enum layout layout)
{
    static const int lse_turned[3] = {0, 2, 1}, mask_turned[4] = {0, 1, 3, 2},
                     mask_turned2[2] = {1, 0}, mask_same[1] = {0}, interval_turned[3] = {2, 0, 1},
                     interval_turned2[2] = {1, 0}, weights_turned[4] = {0, 2, 1, 3},
                     mean_turned[3] = {1, 0, 2};
    lay_extra(o, &o->lse, layout, lse_turned, 2);
    if (p->mask_kind != MASK_NONE) {
        lay_extra(o, &o->mask, layout,
                  p->mask_rank == 1   ? mask_same
                  : p->mask_rank == 2 ? mask_turned2
                                      : mask_turned,
                  3);
        scatter(&o->mask, p->mask);
    }
    if (p->interval) {
        lay_extra(o, &o->interval, layout, p->interval_batch ? interval_turned : interval_turned2,
                  2);
        scatter(&o->interval, p->interval);
    }
    if (p->weights != WEIGHTS_NONE)
        lay_extra(o, &o->weights, layout,
                  p->weights == WEIGHTS_HEADS ? weights_turned : mean_turned, 1);
}

static void lay_out(struct operands *o, const struct problem *p, enum layout layout, int at_end)
{
    const struct shape *s = &p->shape;
    const int64_t query[4] = {s->batch, s->queries, s->heads, s->size};
    const int64_t key[4] = {s->batch, s->keys, s->kv_heads, s->size};
    const int64_t value[4] = {s->batch, s->keys, s->kv_heads, s->value_size};
    const int64_t out[4] = {s->batch, s->queries, s->heads, s->value_size};
    const int64_t lse[3] = {s->batch, s->heads, s->queries};

    memset(o, 0, sizeof *o);
    o->arena.at_end = at_end;
    o->query = describe(HEADWAY_F32, 4, query);
    o->key = describe(HEADWAY_F32, 4, key);
    o->value = describe(HEADWAY_F32, 4, value);
    o->out = describe(HEADWAY_F32, 4, out);
    o->lse = describe(HEADWAY_F32, 3, lse);
    if (p->mask_kind != MASK_NONE)
        o->mask = mask_tensor(p);
    if (p->interval) {
        const int64_t interval[3] = {p->interval_batch, s->queries, 2};
        const int batchless = p->interval_batch == 0;
        o->interval = describe(HEADWAY_I32, 3 - batchless, interval + batchless);
    }
    const int64_t weights[4] = {s->batch, s->heads, s->queries, s->keys};
    const int64_t mean[3] = {s->batch, s->queries, s->keys};
    o->weights = p->weights == WEIGHTS_MEAN ? describe(HEADWAY_F32, 3, mean)
                                            : describe(HEADWAY_F32, 4, weights);
    lay_all(o, p, layout);
    lay_extras(o, p, layout);
    scatter(&o->query, p->query);
    scatter(&o->key, p->key);
    scatter(&o->value, p->value);
    arena_seal(&o->arena);
}

/* ---- results ----------------------------------------------------------------------------------
 */

struct answer answer_make(const struct problem *p, int64_t outs)
{
    struct answer a;
    a.lses = p->shape.batch * p->shape.heads * p->shape.queries;
    a.outs = outs;
    a.all_weights = p->weights == WEIGHTS_NONE ? 0
                    : p->weights == WEIGHTS_HEADS
                        ? a.lses * p->shape.keys
                        : p->shape.batch * p->shape.queries * p->shape.keys;
    a.out = malloc((size_t)(a.outs + 1) * sizeof(float));
    a.lse = malloc((size_t)(a.lses + 1) * sizeof(float));
    a.weights = malloc((size_t)(a.all_weights + 1) * sizeof(float));
    if (!a.out || !a.lse || !a.weights) {
        perror("test");
        exit(1);
    }
    return a;
}

void answer_free(struct answer *a)
{
    free(a->out);
    free(a->lse);
    free(a->weights);
    a->out = a->lse = a->weights = NULL;
}

float *out_line(const struct problem *p, const struct answer *a, int64_t b, int64_t i, int64_t h)
{
    return a->out + ((b * p->shape.queries + i) * p->shape.heads + h) * p->shape.value_size;
}

float *lse_at(const struct problem *p, const struct answer *a, int64_t b, int64_t i, int64_t h)
{
    return a->lse + (b * p->shape.heads + h) * p->shape.queries + i;
}

float *weights_line(const struct problem *p, const struct answer *a, int64_t b, int64_t i,
                    int64_t h)
{
    const int64_t line = p->weights == WEIGHTS_MEAN ? b : b * p->shape.heads + h;
    return a->weights + (line * p->shape.queries + i) * p->shape.keys;
}

void compare_bits(const struct answer *a, const struct answer *b, const char *what)
{
    check_bits(a->out, b->out, a->outs, what);
    check_bits(a->lse, b->lse, a->lses, what);
    check_bits(a->weights, b->weights, a->all_weights, what);
}

/* ---- the call ---------------------------------------------------------------------------------
 */

headway_engine *engine_make(const char *isa, int threads)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = NULL;
    config.isa = isa;
    config.threads = threads;
    const headway_status status = headway_engine_create(&config, &engine);
    if (status != HEADWAY_OK) {
        fprintf(stderr, "test: no engine for %s: %s\n", isa ? isa : "the best row",
                headway_status_text(status));
        exit(1);
    }
    return engine;
}

/* The answer of problem_packed() in the places of the padded one. */
static struct answer unpack(const struct problem *p, const struct problem *packed,
                            const struct answer *from)
{
    const size_t line = (size_t)(p->shape.heads * p->shape.value_size) * sizeof(float);
    struct answer a =
        answer_make(p, p->shape.batch * p->shape.queries * p->shape.heads * p->shape.value_size);
    memset(a.out, 0, (size_t)a.outs * sizeof(float));
    for (int64_t n = 0; n < a.lses; n++)
        a.lse[n] = -INFINITY;
    for (int64_t b = 0; b < p->shape.batch; b++)
        for (int64_t i = 0; i < p->query_lengths[b]; i++) {
            const int64_t row = packed->query_starts[b] + i;
            if (line > 0)
                memcpy(out_line(p, &a, b, i, 0), out_line(packed, from, 0, row, 0), line);
            for (int64_t h = 0; h < p->shape.heads; h++)
                *lse_at(p, &a, b, i, h) = *lse_at(packed, from, 0, row, h);
        }
    return a;
}

struct answer attend(const headway_engine *engine, const struct problem *p, enum layout layout,
                     int at_end)
{
    headway_attention_params params;
    struct operands o;
    size_t bytes = 0;
    char text[400];

    if (p->packed) {
        struct problem *q = problem_packed(p);
        struct answer whole = attend(engine, q, layout, at_end), padded = unpack(p, q, &whole);
        answer_free(&whole);
        problem_free(q);
        return padded;
    }
    struct answer a =
        answer_make(p, p->shape.batch * p->shape.queries * p->shape.heads * p->shape.value_size);
    lay_out(&o, p, layout, at_end);
    params = problem_params(p, &o.mask);
    params.lse = &o.lse;
    params.interval = p->interval ? &o.interval : NULL;
    params.weights = p->weights != WEIGHTS_NONE ? &o.weights : NULL;
    headway_status status =
        headway_attention_workspace(engine, &params, &o.query, &o.key, &o.value, &bytes);
    void *workspace = check_guard(bytes, at_end && bytes % HEADWAY_WORKSPACE_ALIGNMENT == 0);
    check_poison(workspace, (int64_t)(bytes / sizeof(float)));
    environment_enter();
    if (status == HEADWAY_OK)
        status = headway_attention(engine, &params, &o.query, &o.key, &o.value, &o.out, workspace,
                                   bytes);
    environment_leave(p->flags_free);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s: %s", problem_name(p), headway_status_text(status), text);
    arena_take(&o.arena, &o.out, params.query_lengths, 1, 0.0f, a.out);
    arena_take(&o.arena, &o.lse, params.query_lengths, 2, -INFINITY, a.lse);
    if (p->weights != WEIGHTS_NONE)
        arena_take(&o.arena, &o.weights, params.query_lengths, o.weights.rank - 2, 0.0f, a.weights);
    arena_release(&o.arena);
    check_guard_free(workspace);
    return a;
}
