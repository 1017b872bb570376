#include "attend.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum { MAX_REGIONS = 8, OTHER_ERRNO = 4321 };

/* ---- environment ------------------------------------------------------------------------------ */

static struct {
    int rounding;
    uint64_t control;
} before;

/* What of the floating-point unit's control no call may change: rounding, masks, flushing to zero. */
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
          raised & FE_DIVBYZERO ? " division by zero" : "", raised & FE_OVERFLOW ? " overflow" : "");
    CHECK(fegetround() == before.rounding && control_bits() == before.control,
          "the floating-point environment changed");
    CHECK(errno == OTHER_ERRNO, "errno became %d", errno);
}

/* ---- layout ----------------------------------------------------------------------------------- */

struct region {
    void *memory;
    void *copy; /* what it must hold in the end */
    size_t bytes;
};

struct operands {
    headway_tensor query, key, value, out, lse, mask;
    struct region regions[MAX_REGIONS];
    int used, at_end;
    void *workspace;
};

/* Memory for elements low .. high of a tensor whose element 0 is returned. */
static void *add_region(struct operands *o, int64_t low, int64_t high, size_t size)
{
    struct region *r = &o->regions[o->used++];
    r->bytes = (size_t)(high - low) * size;
    r->memory = check_guard(r->bytes, o->at_end);
    if (size == sizeof(float))
        check_poison(r->memory, high - low);
    return (char *)r->memory - low * (int64_t)size;
}

static int64_t elements(const headway_tensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++)
        count *= t->shape[i];
    return count;
}

static void place(struct operands *o, headway_tensor *t)
{
    int64_t low = 0, high = 1;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] <= 1)
            continue;
        if (t->stride[i] < 0)
            low += (t->shape[i] - 1) * t->stride[i];
        else
            high += (t->shape[i] - 1) * t->stride[i];
    }
    if (elements(t) == 0)
        low = high = 0;
    t->data = add_region(o, low, high, t->dtype == HEADWAY_BOOL ? 1 : sizeof(float));
}

/* Offset of the n-th element in row-major order. */
static int64_t offset_of(const headway_tensor *t, int64_t n)
{
    int64_t offset = 0;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->shape[i] > 1)
            offset += n % t->shape[i] * t->stride[i];
        n /= t->shape[i];
    }
    return offset;
}

static void scatter(const headway_tensor *t, const void *dense)
{
    const int64_t count = elements(t), run = t->rank ? t->shape[t->rank - 1] : 1;
    const size_t size = t->dtype == HEADWAY_BOOL ? 1 : sizeof(float);
    const int64_t step = run > 1 ? t->stride[t->rank - 1] : 1;
    for (int64_t n = 0; n < count; n += run) {
        char *to = (char *)t->data + offset_of(t, n) * (int64_t)size;
        const char *from = (const char *)dense + (size_t)n * size;
        if (step == 1)
            memcpy(to, from, (size_t)run * size);
        else
            for (int64_t i = 0; i < run; i++)
                memcpy(to + i * step * (int64_t)size, from + (size_t)i * size, size);
    }
}

/* Strides for axes in the order of `order`, outermost first; gap: unused elements behind each axis;
 * innermost: of the last axis. Wild strides where they can't matter. */
static void lay(headway_tensor *t, const int *order, int64_t innermost, int64_t gap, int backwards)
{
    int64_t step = innermost;
    for (int i = t->rank - 1; i >= 0; i--) {
        const int axis = order[i];
        t->stride[axis] = backwards ? -step : step;
        step = step * (t->shape[axis] > 0 ? t->shape[axis] : 1) + gap;
        if (gap && t->shape[axis] == 1)
            t->stride[axis] = (int64_t)1 << 40;
    }
}

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
    float *data = add_region(o, 0, lines * width, sizeof(float));
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
            place(o, all[i]);
        }
    } else if (p->shape.queries == p->shape.keys) {
        pack(o, all, 4);
    } else {
        pack(o, all, 2);
        pack(o, all + 2, 2);
    }
}

static void lay_extras(struct operands *o, const struct problem *p, enum layout layout)
{
    static const int same[4] = {0, 1, 2, 3}, lse_turned[3] = {0, 2, 1}, mask_turned[4] = {0, 1, 3, 2},
                     mask_turned2[2] = {1, 0};
    const int turn = layout == LAYOUT_BHLD, odd = layout == LAYOUT_ODD;
    lay(&o->lse, turn ? lse_turned : same, odd ? 2 : 1, odd ? 3 : 0, layout == LAYOUT_NEGATIVE);
    place(o, &o->lse);
    if (p->mask_kind == MASK_NONE)
        return;
    lay(&o->mask, !turn || p->mask_rank == 1 ? same : p->mask_rank == 2 ? mask_turned2 : mask_turned,
        odd ? 3 : 1, odd ? 5 : 0, layout == LAYOUT_NEGATIVE);
    place(o, &o->mask);
    scatter(&o->mask, p->mask);
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
    o->at_end = at_end;
    o->query = describe(HEADWAY_F32, 4, query);
    o->key = describe(HEADWAY_F32, 4, key);
    o->value = describe(HEADWAY_F32, 4, value);
    o->out = describe(HEADWAY_F32, 4, out);
    o->lse = describe(HEADWAY_F32, 3, lse);
    if (p->mask_kind != MASK_NONE)
        o->mask = describe(p->mask_kind == MASK_BOOL ? HEADWAY_BOOL : HEADWAY_F32, p->mask_rank,
                           p->mask_shape);
    lay_all(o, p, layout);
    lay_extras(o, p, layout);
    scatter(&o->query, p->query);
    scatter(&o->key, p->key);
    scatter(&o->value, p->value);
    for (int i = 0; i < o->used; i++) {
        struct region *r = &o->regions[i];
        r->copy = malloc(r->bytes + 1);
        if (!r->copy) {
            perror("test");
            exit(1);
        }
        if (r->bytes)
            memcpy(r->copy, r->memory, r->bytes);
    }
}

/* ---- results ---------------------------------------------------------------------------------- */

/* The element's place in the copy of its region. */
static float *copy_at(const struct operands *o, const float *at)
{
    for (int i = 0; i < o->used; i++) {
        const struct region *r = &o->regions[i];
        const char *from = r->memory;
        if ((const char *)at >= from && (const char *)at < from + r->bytes)
            return (float *)(void *)((char *)r->copy + ((const char *)at - from));
    }
    abort();
}

/* Takes results out of an output: from rows the call was asked for, and notes them in the copy as
 * legal changes; others read as `otherwise`. */
static void take(const struct operands *o, const struct problem *p, const headway_tensor *t,
                 int row_axis, float otherwise, float *dense)
{
    const int64_t count = elements(t);
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n, b, row = 0;
        for (int i = t->rank - 1; i > 0; i--) {
            if (i == row_axis)
                row = rest % t->shape[i];
            rest /= t->shape[i];
        }
        b = rest;
        float *at = (float *)t->data + offset_of(t, n);
        if (row < query_length(p, b)) {
            dense[n] = *at;
            memcpy(copy_at(o, at), at, sizeof *at);
        } else {
            dense[n] = otherwise;
        }
    }
}

static void release(struct operands *o)
{
    for (int i = 0; i < o->used; i++) {
        struct region *r = &o->regions[i];
        CHECK(r->bytes == 0 || memcmp(r->memory, r->copy, r->bytes) == 0,
              "memory that is not the call's to write changed (operand %d of %d)", i, o->used);
        check_guard_free(r->memory);
        free(r->copy);
    }
    check_guard_free(o->workspace);
}

static struct answer answer_make(const struct problem *p)
{
    struct answer a;
    a.lses = p->shape.batch * p->shape.heads * p->shape.queries;
    a.outs = a.lses * p->shape.value_size;
    a.out = malloc((size_t)(a.outs + 1) * sizeof(float));
    a.lse = malloc((size_t)(a.lses + 1) * sizeof(float));
    if (!a.out || !a.lse) {
        perror("test");
        exit(1);
    }
    return a;
}

void answer_free(struct answer *a)
{
    free(a->out);
    free(a->lse);
    a->out = a->lse = NULL;
}

float *out_line(const struct problem *p, const struct answer *a, int64_t b, int64_t i, int64_t h)
{
    return a->out + ((b * p->shape.queries + i) * p->shape.heads + h) * p->shape.value_size;
}

float *lse_at(const struct problem *p, const struct answer *a, int64_t b, int64_t i, int64_t h)
{
    return a->lse + (b * p->shape.heads + h) * p->shape.queries + i;
}

void compare_bits(const struct answer *a, const struct answer *b, const char *what)
{
    check_bits(a->out, b->out, a->outs, what);
    check_bits(a->lse, b->lse, a->lses, what);
}

/* ---- the call --------------------------------------------------------------------------------- */

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

struct answer attend(const headway_engine *engine, const struct problem *p, enum layout layout,
                     int at_end)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct operands o;
    struct answer a = answer_make(p);
    size_t bytes = 0;
    char text[400];

    lay_out(&o, p, layout, at_end);
    params.scale = p->has_scale ? &p->scale : NULL;
    params.causal = p->causal;
    params.causal_offsets = p->causal == HEADWAY_CAUSAL_OFFSETS ? p->offsets : NULL;
    params.query_lengths = p->has_query_lengths ? p->query_lengths : NULL;
    params.key_lengths = p->has_key_lengths ? p->key_lengths : NULL;
    params.mask = p->mask_kind == MASK_NONE ? NULL : &o.mask;
    params.lse = &o.lse;
    headway_status status =
        headway_attention_workspace(engine, &params, &o.query, &o.key, &o.value, &bytes);
    o.workspace = check_guard(bytes, at_end && bytes % HEADWAY_WORKSPACE_ALIGNMENT == 0);
    check_poison(o.workspace, (int64_t)(bytes / sizeof(float)));
    environment_enter();
    if (status == HEADWAY_OK)
        status = headway_attention(engine, &params, &o.query, &o.key, &o.value, &o.out, o.workspace,
                                   bytes);
    environment_leave(p->flags_free);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s: %s", problem_name(p), headway_status_text(status), text);
    take(&o, p, &o.out, 1, 0.0f, a.out);
    take(&o, p, &o.lse, 2, -INFINITY, a.lse);
    release(&o);
    return a;
}
