/* oneDNN against the double reference on both of its paths, Headway against oneDNN, and what oneDNN
 * must refuse. */
#include "check.h"
#include "headway/headway.h"
#include "oracle/onednn.h"
#include "oracle/reference.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOTE = 512 };

static const enum headway_onednn_path paths[2] = {HEADWAY_ONEDNN_PRIMITIVES, HEADWAY_ONEDNN_GRAPH};
static const char *const path_names[2] = {"onednn-primitives", "onednn-graph"};

static int has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* Elements of a tensor of these extents, laid out in the order given by `layout`: 0 (B, L, H, X), 1
 * (B, H, L, X), 2 rows with a gap after them. */
static headway_tensor lay(float *data, int layout, int64_t b, int64_t l, int64_t h, int64_t x)
{
    headway_tensor t = {data, HEADWAY_F32, 4, {b, l, h, x}, {l * h * x, h * x, x, 1}};
    if (layout == 1) {
        t.stride[1] = x;
        t.stride[2] = l * x;
    } else if (layout == 2) {
        t.stride[0] = l * (h * x + 5);
        t.stride[1] = h * x + 5;
    }
    return t;
}

static float *numbers(uint64_t *state, int64_t count)
{
    float *data = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    if (!data)
        abort();
    check_fill_normal(state, data, count, 1);
    return data;
}

/* Offset of element n, counted in the order of the axes. */
static int64_t place(const headway_tensor *t, int64_t n)
{
    int64_t offset = 0;
    for (int axis = t->rank - 1; axis >= 0; axis--) {
        offset += n % t->shape[axis] * t->stride[axis];
        n /= t->shape[axis];
    }
    return offset;
}

static int64_t count_of(const headway_tensor *t)
{
    int64_t count = 1;
    for (int axis = 0; axis < t->rank; axis++)
        count *= t->shape[axis];
    return count;
}

/* What is expected: `exact` of the reference, its bound for Headway, and room for oneDNN. */
struct expected {
    int64_t count;
    double *exact, *bound;
    float *onednn[2]; /* what the paths gave, NULL: nothing */
};

static struct expected expect(int64_t count)
{
    struct expected e = {.count = count};
    e.exact = calloc((size_t)count + 1, sizeof(double));
    e.bound = calloc((size_t)count + 1, sizeof(double));
    if (!e.exact || !e.bound)
        abort();
    return e;
}

/* Rows beyond a query length keep the NaN that stood there. */
static void expect_untouched(struct expected *e, const headway_attention_params *params,
                             int64_t batch, int64_t rows)
{
    int64_t line = batch * rows > 0 ? e->count / (batch * rows) : 1;
    for (int64_t n = 0; params->query_lengths && n < e->count; n++) {
        if (n / line % rows >= params->query_lengths[n / line / rows])
            e->exact[n] = NAN;
    }
}

static void free_expected(struct expected *e)
{
    free(e->exact);
    free(e->bound);
    free(e->onednn[0]);
    free(e->onednn[1]);
}

/* oneDNN documents no bound: its sums run in other orders, for which Headway's bound holds as well,
 * and its exp and reciprocal are good to some units in the last place of the weights. */
static double room(const struct expected *e, int64_t n)
{
    return 2 * e->bound[n] + 64 * 0x1p-24;
}

static void compare(const char *what, const headway_tensor *out, const struct expected *e)
{
    for (int64_t n = 0; n < e->count; n++) {
        double got = ((const float *)out->data)[place(out, n)];
        if (isnan(e->exact[n]) && isnan(got))
            continue;
        double error = fabs(got - e->exact[n]);
        CHECK(error <= room(e, n), "%s element %d: %.9g, exactly %.9g, off by %.3g of %.3g", what,
              (int)n, got, e->exact[n], error, room(e, n));
    }
}

struct shape {
    int64_t b, hq, hkv, lq, lk, d, dv;
    enum headway_causal causal;
    int mask; /* 0 none, 1 bool (Lk), 2 float (Lq, Lk), 3 bool (B, 1, 1, Lk), 4 float, all axes */
    int lengths; /* 1 of keys, 2 of queries */
    int layout;
    float scale; /* 0: default */
};

static const struct shape shapes[] = {
    {2, 3, 3, 7, 9, 16, 16, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {1, 12, 12, 64, 64, 64, 64, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {2, 4, 4, 33, 65, 20, 20, HEADWAY_CAUSAL_NONE, 0, 0, 1, 0},
    {2, 4, 4, 33, 65, 20, 20, HEADWAY_CAUSAL_NONE, 0, 0, 2, 0.3f},
    {2, 3, 3, 10, 12, 8, 24, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {2, 3, 3, 10, 12, 24, 5, HEADWAY_CAUSAL_NONE, 0, 0, 1, -0.5f},
    {2, 8, 2, 10, 12, 16, 16, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {1, 6, 1, 17, 31, 16, 8, HEADWAY_CAUSAL_TOP_LEFT, 0, 0, 1, 0},
    {2, 8, 2, 12, 40, 16, 16, HEADWAY_CAUSAL_BOTTOM_RIGHT, 0, 0, 0, 0},
    {2, 4, 4, 30, 30, 16, 16, HEADWAY_CAUSAL_TOP_LEFT, 0, 0, 0, 0},
    {2, 4, 4, 20, 30, 16, 16, HEADWAY_CAUSAL_BOTTOM_RIGHT, 0, 0, 1, 0},
    {3, 4, 4, 20, 30, 16, 16, HEADWAY_CAUSAL_OFFSETS, 0, 0, 0, 0},
    {2, 4, 4, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 1, 0, 0, 0},
    {2, 4, 2, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 2, 0, 0, 0},
    {2, 4, 4, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 3, 0, 1, 0},
    {2, 4, 2, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 4, 0, 0, 0},
    {2, 4, 1, 10, 30, 16, 16, HEADWAY_CAUSAL_TOP_LEFT, 4, 1, 0, 0},
    {3, 4, 4, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 0, 1, 0, 0},
    {3, 4, 4, 10, 30, 16, 16, HEADWAY_CAUSAL_TOP_LEFT, 0, 1, 1, 0},
    {1, 1, 1, 1, 1, 1, 1, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {1, 1, 1, 1, 9, 8, 8, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {1, 1, 1, 9, 1, 8, 8, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {1, 1, 1, 9, 9, 1, 8, HEADWAY_CAUSAL_NONE, 0, 0, 1, 0},
    {1, 1, 1, 9, 9, 8, 1, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {1, 4, 4, 1, 9, 8, 8, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {2, 4, 4, 1, 9, 1, 8, HEADWAY_CAUSAL_NONE, 2, 0, 1, 0},
    {2, 1, 1, 5, 1, 3, 1, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0},
    {2, 2, 2, 1, 5, 1, 1, HEADWAY_CAUSAL_NONE, 1, 0, 0, 0},
    {1, 2, 1, 5, 5, 1, 1, HEADWAY_CAUSAL_TOP_LEFT, 0, 0, 0, 0},
    {1, 8, 2, 1, 100, 32, 32, HEADWAY_CAUSAL_BOTTOM_RIGHT, 0, 0, 0, 0},
    {3, 8, 2, 1, 30, 16, 16, HEADWAY_CAUSAL_NONE, 4, 1, 1, 0},
    {3, 4, 4, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 0, 3, 0, 0},
    {3, 4, 2, 10, 30, 16, 16, HEADWAY_CAUSAL_BOTTOM_RIGHT, 1, 3, 1, 0},
    {3, 4, 2, 1, 30, 16, 16, HEADWAY_CAUSAL_NONE, 0, 2, 0, 0},
};

/* What becomes part of the mask that oneDNN is given, or of its views. */
enum { WINDOW = 1, INTERVAL = 2, ALIBI = 4, OFFSETS = 8, HALVES = 16, LEADING = 32 };

static const struct {
    struct shape shape;
    int options;
} option_shapes[] = {
    {{2, 4, 4, 20, 30, 16, 16, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0}, WINDOW},
    {{2, 4, 2, 30, 30, 16, 16, HEADWAY_CAUSAL_BOTTOM_RIGHT, 0, 0, 1, 0}, WINDOW},
    {{3, 4, 2, 20, 30, 16, 16, HEADWAY_CAUSAL_NONE, 0, 3, 1, 0}, WINDOW | OFFSETS},
    {{2, 4, 4, 20, 30, 16, 16, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0}, INTERVAL},
    {{2, 4, 4, 20, 30, 16, 16, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0}, ALIBI},
    {{2, 6, 2, 20, 30, 16, 16, HEADWAY_CAUSAL_TOP_LEFT, 0, 1, 1, 0.3f}, ALIBI},
    {{3, 6, 2, 1, 30, 16, 16, HEADWAY_CAUSAL_NONE, 2, 0, 0, 0}, ALIBI | OFFSETS},
    {{2, 4, 2, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 2, 0, 0, 0}, HALVES},
    {{2, 4, 2, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 4, 0, 0, 0}, HALVES | ALIBI},
    {{4, 4, 4, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 3, 0, 0, 0}, LEADING},
    {{4, 4, 2, 10, 30, 16, 16, HEADWAY_CAUSAL_TOP_LEFT, 4, 1, 2, 0}, LEADING},
    {{4, 4, 2, 10, 30, 16, 16, HEADWAY_CAUSAL_NONE, 4, 0, 1, 0},
     WINDOW | INTERVAL | ALIBI | OFFSETS | HALVES | LEADING},
};

struct inputs {
    headway_attention_params params;
    headway_tensor query, key, value, out, mask, interval;
    float *data[5];
    unsigned char bools[256];
    uint16_t halves[8192];
    int32_t ends[256];
    int64_t key_lengths[4], query_lengths[4], offsets[4];
    float scale, slopes[12];
};

static void make_mask(struct inputs *in, const struct shape *s, uint64_t *state)
{
    in->data[4] = numbers(state, s->b * s->hq * s->lq * s->lk);
    for (int i = 0; i < 256; i++)
        in->bools[i] = i % 3 != 1;
    in->mask = (headway_tensor){in->bools, HEADWAY_BOOL, 1, {s->lk}, {1}};
    if (s->mask == 2) {
        for (int64_t i = 0; i < s->lq * s->lk; i += 4)
            in->data[4][i] = i % 16 == 0 && i % s->lk ? -INFINITY : -20;
        in->mask = (headway_tensor){in->data[4], HEADWAY_F32, 2, {s->lq, s->lk}, {s->lk, 1}};
    } else if (s->mask == 3) {
        in->mask =
            (headway_tensor){in->bools, HEADWAY_BOOL, 4, {s->b, 1, 1, s->lk}, {s->lk, 0, 0, 1}};
    } else if (s->mask == 4) {
        in->mask = (headway_tensor){in->data[4],
                                    HEADWAY_F32,
                                    4,
                                    {s->b, s->hq, s->lq, s->lk},
                                    {s->hq * s->lq * s->lk, s->lq * s->lk, s->lk, 1}};
    }
    in->params.mask = s->mask ? &in->mask : NULL;
}

static void make(struct inputs *in, const struct shape *s, uint64_t seed)
{
    uint64_t state = seed;
    *in = (struct inputs){.params = HEADWAY_ATTENTION_PARAMS_INIT, .scale = s->scale};
    const int64_t queries = s->b * s->lq * (s->hq * s->d + 5),
                  outs = s->b * s->lq * (s->hq * s->dv + 5);
    in->data[0] = numbers(&state, queries);
    in->data[1] = numbers(&state, s->b * s->lk * (s->hkv * s->d + 5));
    in->data[2] = numbers(&state, s->b * s->lk * (s->hkv * s->dv + 5));
    in->data[3] = numbers(&state, outs);
    check_poison(in->data[3], outs);
    in->query = lay(in->data[0], s->layout, s->b, s->lq, s->hq, s->d);
    in->key = lay(in->data[1], s->layout, s->b, s->lk, s->hkv, s->d);
    in->value = lay(in->data[2], s->layout, s->b, s->lk, s->hkv, s->dv);
    in->out = lay(in->data[3], s->layout, s->b, s->lq, s->hq, s->dv);
    make_mask(in, s, &state);
    for (int b = 0; b < 4; b++) {
        in->key_lengths[b] = s->lk - 7 * b > 0 ? s->lk - 7 * b : s->lk;
        in->query_lengths[b] = s->lq - b * s->lq / 2;
        in->offsets[b] = 3 * b;
    }
    if (s->scale != 0)
        in->params.scale = &in->scale;
    in->params.causal = s->causal;
    in->params.row_offsets = s->causal == HEADWAY_CAUSAL_OFFSETS ? in->offsets : NULL;
    in->params.key_lengths = s->lengths & 1 ? in->key_lengths : NULL;
    in->params.query_lengths = s->lengths & 2 ? in->query_lengths : NULL;
}

/* Batch axes (2, B / 2) in the place of B. */
static void split_batch(headway_tensor *t)
{
    for (int axis = t->rank; axis > 0; axis--) {
        t->shape[axis] = t->shape[axis - 1];
        t->stride[axis] = t->stride[axis - 1];
    }
    t->rank++;
    t->shape[0] = 2;
    t->shape[1] /= 2;
    t->stride[0] = t->shape[1] * t->stride[1];
}

static void make_options(struct inputs *in, const struct shape *s, int options)
{
    headway_attention_params *p = &in->params;
    if (options & WINDOW) {
        p->window_left = 7;
        p->window_right = s->causal ? -1 : 4;
    }
    if (options & OFFSETS)
        p->row_offsets = in->offsets;
    for (int h = 0; h < 12; h++)
        in->slopes[h] = ldexpf(1, -h % 5 - 1);
    p->alibi_slopes = options & ALIBI ? in->slopes : NULL;
    for (int i = 0; i < 128; i++) {
        in->ends[2 * i] = i % 5;
        in->ends[2 * i + 1] = 7 + i % 40;
    }
    in->interval = (headway_tensor){in->ends, HEADWAY_I32, 3, {s->b, s->lq, 2}, {2 * s->lq, 2, 1}};
    p->interval = options & INTERVAL ? &in->interval : NULL;
    if (options & HALVES) { /* 1/4, 1/2, 1 and -inf */
        for (int i = 0; i < 8192; i++)
            in->halves[i] = i % 7 == 3 ? 0xff80 : (uint16_t)(0x3e80 + i % 3 * 0x80);
        in->mask.data = in->halves;
        in->mask.dtype = HEADWAY_BF16;
    }
    if (options & LEADING) {
        headway_tensor *const all[6] = {&in->query, &in->key,  &in->value,
                                        &in->out,   &in->mask, &in->interval};
        for (int n = 0; n < 6; n++)
            split_batch(all[n]);
    }
}

static void unmake(struct inputs *in)
{
    for (int n = 0; n < 5; n++)
        free(in->data[n]);
}

static int has_path(int n)
{
    const char *about = headway_onednn_about();
    return !has(about, "absent") && (paths[n] == HEADWAY_ONEDNN_PRIMITIVES ||
                                     (has(about, "graph") && !has(about, "no graph")));
}

/* Runs twice, as a benchmark does; keeps what came out. Takes prepared. */
static void run_path(int n, struct headway_onednn *prepared, const char *note,
                     const headway_tensor *out, struct expected *e)
{
    CHECK(prepared != NULL, "%s: %s", path_names[n], note);
    if (!prepared)
        return;
    CHECK(has(note, "onednn ") && has(note, n ? "partition" : "out "), "note '%s'", note);
    for (int repeat = 0; repeat < 2; repeat++) {
        CHECK(headway_onednn_run(prepared) == 0, "%s: failed", path_names[n]);
        compare(path_names[n], out, e);
    }
    headway_onednn_free(prepared);
    e->onednn[n] = numbers(&(uint64_t){0}, e->count);
    for (int64_t i = 0; i < e->count; i++)
        e->onednn[n][i] = ((const float *)out->data)[place(out, i)];
}

static headway_engine *engine;

/* Headway's result is in `out`: within its own bound of the reference, and as near to oneDNN. */
static void compare_headway(headway_status status, const headway_tensor *out,
                            const struct expected *e)
{
    char why[256];
    headway_engine_error(engine, why, sizeof why);
    CHECK(status == HEADWAY_OK, "headway: %s", why);
    for (int64_t n = 0; status == HEADWAY_OK && n < e->count; n++) {
        double got = ((const float *)out->data)[place(out, n)];
        if (isnan(e->exact[n]) && isnan(got))
            continue;
        CHECK(fabs(got - e->exact[n]) <= e->bound[n], "headway element %d: %.9g, exactly %.9g",
              (int)n, got, e->exact[n]);
        for (int path = 0; path < 2; path++) {
            if (!e->onednn[path])
                continue;
            double other = e->onednn[path][n];
            CHECK(fabs(got - other) <= e->bound[n] + room(e, n),
                  "headway element %d: %.9g, %s: %.9g", (int)n, got, path_names[path], other);
        }
    }
}

static void *workspace(size_t bytes)
{
    void *memory = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, bytes / 64 * 64 + 64);
    if (!memory)
        abort();
    return memory;
}

static void check_shape(const struct shape *s, int options, uint64_t seed)
{
    struct inputs in;
    make(&in, s, seed);
    make_options(&in, s, options);
    struct expected e = expect(count_of(&in.out));
    struct headway_reference_out results = {.out = e.exact, .out_bound = e.bound};
    const int64_t size = s->b * s->lq * (s->hq * s->dv + 5);
    CHECK(headway_reference_attention(&in.params, &in.query, &in.key, &in.value, &results) == 0,
          "reference: out of memory");
    expect_untouched(&e, &in.params, s->b, s->lq);
    for (int n = 0; n < 2; n++) {
        char note[NOTE] = "";
        if (!has_path(n))
            continue;
        check_poison(in.data[3], size);
        struct headway_onednn *prepared = headway_onednn_attention(
            paths[n], &in.params, &in.query, &in.key, &in.value, &in.out, note, sizeof note);
        if (n == 1 && s->d != s->dv)
            CHECK(!prepared && has(note, "cannot express head sizes"), "note '%s'", note);
        else
            run_path(n, prepared, note, &in.out, &e);
    }
    check_poison(in.data[3], size);
    size_t bytes = 0;
    headway_status status =
        headway_attention_workspace(engine, &in.params, &in.query, &in.key, &in.value, &bytes);
    void *memory = workspace(bytes);
    if (status == HEADWAY_OK)
        status = headway_attention(engine, &in.params, &in.query, &in.key, &in.value, &in.out,
                                   memory, bytes);
    compare_headway(status, &in.out, &e);
    free(memory);
    free_expected(&e);
    unmake(&in);
}

/* ---- the layer ------------------------------------------------------------------------------- */

enum { SELF, CROSS, THREE };

struct layer_shape {
    int inputs; /* SELF: query only, CROSS: query and key, THREE: each its own */
    int64_t b, lq, lk, hq, hkv, d, dv, e, ek, ev, eo;
    int fused, transposed, biases;
    headway_causal causal;
    int gap;     /* rows of inputs and output are apart */
    int lengths; /* query and key lengths */
};

static const struct layer_shape layer_shapes[] = {
    {SELF, 1, 16, 16, 4, 4, 16, 16, 64, 64, 64, 64, 1, 0, 1, HEADWAY_CAUSAL_NONE, 0, 0},
    {SELF, 3, 20, 20, 12, 12, 32, 32, 384, 384, 384, 384, 1, 0, 1, HEADWAY_CAUSAL_NONE, 0, 0},
    {SELF, 2, 20, 20, 4, 2, 16, 8, 50, 50, 50, 30, 1, 0, 0, HEADWAY_CAUSAL_TOP_LEFT, 0, 0},
    {SELF, 2, 20, 20, 4, 2, 16, 16, 50, 50, 50, 30, 0, 1, 1, HEADWAY_CAUSAL_NONE, 0, 0},
    {SELF, 2, 9, 9, 4, 4, 16, 16, 48, 48, 48, 30, 1, 1, 1, HEADWAY_CAUSAL_NONE, 1, 0},
    {CROSS, 2, 5, 9, 4, 4, 16, 16, 48, 40, 40, 48, 0, 0, 1, HEADWAY_CAUSAL_NONE, 0, 0},
    {CROSS, 2, 5, 9, 4, 4, 16, 16, 48, 40, 40, 48, 0, 0, 0, HEADWAY_CAUSAL_BOTTOM_RIGHT, 1, 0},
    {THREE, 2, 5, 9, 4, 2, 8, 24, 48, 40, 44, 20, 0, 0, 1, HEADWAY_CAUSAL_NONE, 0, 0},
    {THREE, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, HEADWAY_CAUSAL_NONE, 0, 0},
    {SELF, 1, 1, 1, 2, 1, 3, 3, 5, 5, 5, 1, 0, 0, 0, HEADWAY_CAUSAL_NONE, 0, 0},
    {SELF, 3, 12, 12, 4, 4, 16, 16, 64, 64, 64, 64, 1, 0, 1, HEADWAY_CAUSAL_NONE, 0, 1},
    {CROSS, 3, 7, 9, 4, 2, 16, 16, 48, 40, 40, 48, 0, 0, 1, HEADWAY_CAUSAL_TOP_LEFT, 1, 1},
};

/* (rows, columns), stored the other way round when transposed. */
static headway_tensor matrix(uint64_t *state, float **data, int64_t rows, int64_t columns,
                             int transposed)
{
    *data = numbers(state, rows * columns);
    for (int64_t i = 0; i < rows * columns; i++)
        (*data)[i] /= sqrtf((float)columns);
    if (transposed)
        return (headway_tensor){*data, HEADWAY_F32, 2, {columns, rows}, {rows, 1}};
    return (headway_tensor){*data, HEADWAY_F32, 2, {rows, columns}, {columns, 1}};
}

static headway_tensor sequence(uint64_t *state, float **data, int64_t b, int64_t l, int64_t e,
                               int gap)
{
    int64_t row = e + (gap ? 3 : 0);
    *data = numbers(state, b * l * row);
    return (headway_tensor){*data, HEADWAY_F32, 3, {b, l, e}, {l * row, row, 1}};
}

struct layer {
    headway_mha_config config;
    headway_mha_weights weights;
    headway_attention_params params;
    headway_tensor weight[5], bias[5], input[3], out; /* query, key, value, out, fused */
    int64_t query_lengths[3], key_lengths[3];
    const headway_tensor *key, *value;
    float *data[14];
};

static void make_layer(struct layer *l, const struct layer_shape *s, uint64_t seed)
{
    uint64_t state = seed;
    const int64_t q = s->hq * s->d, k = s->hkv * s->d, v = s->hkv * s->dv;
    const int64_t rows[5] = {q, k, v, s->eo, q + k + v};
    const int64_t columns[5] = {s->e, s->ek, s->ev, s->hq * s->dv, s->e};
    *l = (struct layer){.config = HEADWAY_MHA_CONFIG_INIT,
                        .weights = HEADWAY_MHA_WEIGHTS_INIT,
                        .params = HEADWAY_ATTENTION_PARAMS_INIT};
    for (int n = 0; n < 5; n++) {
        l->weight[n] = matrix(&state, &l->data[n], rows[n], columns[n], s->transposed);
        l->data[5 + n] = numbers(&state, rows[n]);
        l->bias[n] = (headway_tensor){l->data[5 + n], HEADWAY_F32, 1, {rows[n]}, {1}};
    }
    headway_mha_weights *w = &l->weights;
    const headway_tensor **slots[5][2] = {{&w->query, &w->query_bias},
                                          {&w->key, &w->key_bias},
                                          {&w->value, &w->value_bias},
                                          {&w->out, &w->out_bias},
                                          {&w->fused, &w->fused_bias}};
    for (int n = s->fused ? 3 : 0; n < (s->fused ? 5 : 4); n++) {
        *slots[n][0] = &l->weight[n];
        *slots[n][1] = s->biases ? &l->bias[n] : NULL;
    }
    l->config.heads = s->hq;
    l->config.kv_heads = s->hkv;
    l->config.head_size = s->d;
    l->config.value_head_size = s->dv;
    l->config.transposed = s->transposed;
    l->params.causal = s->causal;
    for (int b = 0; b < 3; b++) {
        l->query_lengths[b] = s->lq - b * s->lq / 2;
        l->key_lengths[b] = s->lk - b * s->lk / 3;
    }
    if (s->lengths) {
        l->params.query_lengths = l->query_lengths;
        l->params.key_lengths = l->key_lengths;
    }
    l->input[0] = sequence(&state, &l->data[10], s->b, s->lq, s->e, s->gap);
    l->input[1] = sequence(&state, &l->data[11], s->b, s->lk, s->ek, s->gap);
    l->input[2] = sequence(&state, &l->data[12], s->b, s->lk, s->ev, s->gap);
    l->out = sequence(&state, &l->data[13], s->b, s->lq, s->eo, s->gap);
    l->key = s->inputs == SELF ? NULL : &l->input[1];
    l->value = s->inputs == THREE ? &l->input[2] : NULL;
}

static headway_status run_headway(const struct layer *l)
{
    headway_mha *layer = NULL;
    size_t bytes = 0;
    headway_status status = headway_mha_create(engine, &l->config, &l->weights, &layer);
    if (status != HEADWAY_OK)
        return status;
    status = headway_mha_workspace(layer, &l->params, &l->input[0], l->key, l->value, &bytes);
    void *memory = workspace(bytes);
    if (status == HEADWAY_OK)
        status = headway_mha_forward(layer, &l->params, &l->input[0], l->key, l->value, &l->out,
                                     memory, bytes);
    free(memory);
    headway_mha_destroy(layer);
    return status;
}

static void check_layer(const struct layer_shape *s, uint64_t seed)
{
    struct layer l;
    make_layer(&l, s, seed);
    const int64_t size = s->b * s->lq * (s->eo + (s->gap ? 3 : 0));
    struct expected e = expect(count_of(&l.out));
    struct headway_reference_out results = {.out = e.exact, .out_bound = e.bound};
    CHECK(headway_reference_mha(&l.config, &l.weights, &l.params, &l.input[0], l.key, l.value,
                                &results) == 0,
          "reference: out of memory");
    expect_untouched(&e, &l.params, s->b, s->lq);
    for (int n = 0; n < 2; n++) {
        char note[NOTE] = "";
        if (!has_path(n))
            continue;
        check_poison(l.data[13], size);
        struct headway_onednn *prepared =
            headway_onednn_mha(paths[n], &l.config, &l.weights, &l.params, &l.input[0], l.key,
                               l.value, &l.out, note, sizeof note);
        if (n == 1 && s->d != s->dv)
            CHECK(!prepared && has(note, "cannot express head sizes"), "note '%s'", note);
        else
            run_path(n, prepared, note, &l.out, &e);
        for (int64_t row = 0; s->gap && prepared && row < s->b * s->lq; row++)
            CHECK(isnan(l.data[13][row * (s->eo + 3) + s->eo]), "%s wrote between rows",
                  path_names[n]);
    }
    check_poison(l.data[13], size);
    compare_headway(run_headway(&l), &l.out, &e);
    free_expected(&e);
    for (int n = 0; n < 14; n++)
        free(l.data[n]);
}

/* ---- what it can't do, and nothing to do ------------------------------------------------------
 */

/* Both paths must refuse, with these words, or (words NULL) do nothing. */
static void refused(struct inputs *in, const char *words)
{
    for (int n = 0; n < 2; n++) {
        char note[NOTE] = "";
        struct headway_onednn *prepared = headway_onednn_attention(
            paths[n], &in->params, &in->query, &in->key, &in->value, &in->out, note, sizeof note);
        if (words) {
            CHECK(!prepared && strncmp(note, "onednn: cannot express ", 23) == 0 &&
                      has(note, words),
                  "%s should not express %s: '%s'", path_names[n], words, note);
        } else {
            CHECK(prepared && headway_onednn_run(prepared) == 0, "%s: %s", path_names[n], note);
        }
        headway_onednn_free(prepared);
    }
    CHECK(isnan(in->data[3][0]), "wrote an output");
}

static const struct shape plain = {2, 2, 2, 5, 4, 8, 8, HEADWAY_CAUSAL_NONE, 0, 0, 0, 0};

static void check_refusals(void)
{
    struct inputs in;
    if (!check_case("refusals"))
        return;
    make(&in, &plain, check_seed);
    int64_t lengths[2] = {4, 0};
    in.params.query_lengths = lengths;
    in.params.mask = &in.mask;
    in.mask = (headway_tensor){in.bools, HEADWAY_BOOL, 4, {1, 2, 1, 1}, {0, 0, 0, 0}};
    refused(&in, "query lengths with a mask for each head");
    in.params.query_lengths = NULL;
    in.params.mask = NULL;
    in.params.key_lengths = lengths;
    refused(&in, "rows without keys");
    in.params.key_lengths = NULL;
    in.params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    refused(&in, "rows without keys");
    in.params.causal = HEADWAY_CAUSAL_NONE;
    in.params.mask = &in.mask;
    in.mask = (headway_tensor){in.bools, HEADWAY_BOOL, 2, {5, 4}, {4, 1}};
    memset(in.bools + 8, 0, 4);
    refused(&in, "rows without keys");
    in.params.mask = NULL;
    in.params.lse = &in.out;
    refused(&in, "lse");
    in.params.lse = NULL;
    in.params.weights = &in.out;
    refused(&in, "weights");
    in.params.weights = NULL;
    in.params.softcap = 30;
    refused(&in, "softcap");
    in.params.softcap = 0;
    in.params.sinks = &in.scale;
    refused(&in, "sinks");
    in.params.sinks = NULL;
    in.params.query_starts = lengths;
    refused(&in, "packed sequences");
    in.params.query_starts = NULL;
    in.params.window_left = in.params.window_right = 0;
    refused(&in, "rows without keys");
    in.params.window_left = in.params.window_right = -1;
    in.query.stride[1] = -in.query.stride[1];
    refused(&in, "strides of 0 or below");
    in.query.stride[1] = 0;
    refused(&in, "strides of 0 or below");
    unmake(&in);
    make(&in, &plain, check_seed);
    lengths[1] = 3;
    in.params.key_lengths = lengths;
    in.data[2][2 * 4 * 2 * 8 - 1] = NAN; /* the last value, beyond its length */
    refused(&in, "not finite");
    unmake(&in);
}

static void refused_layer(const struct layer *l, const char *words)
{
    for (int n = 0; n < 2; n++) {
        char note[NOTE] = "";
        struct headway_onednn *prepared =
            headway_onednn_mha(paths[n], &l->config, &l->weights, &l->params, &l->input[0], l->key,
                               l->value, &l->out, note, sizeof note);
        CHECK(!prepared && strncmp(note, "onednn: cannot express ", 23) == 0 && has(note, words),
              "%s should not express %s: '%s'", path_names[n], words, note);
        headway_onednn_free(prepared);
    }
}

static void check_layer_refusals(void)
{
    struct layer l;
    headway_rope_config rope = HEADWAY_ROPE_CONFIG_INIT;
    if (!check_case("refusals of the layer"))
        return;
    make_layer(&l, &layer_shapes[0], check_seed);
    rope.style = HEADWAY_ROPE_HALF;
    l.config.rope = &rope;
    refused_layer(&l, "rotary embedding");
    l.config.rope = NULL;
    l.weights.key_norm = &l.bias[0];
    refused_layer(&l, "norms of query and key");
    l.weights.key_norm = NULL;
    l.weights.bias_k = l.weights.bias_v = &l.bias[1];
    refused_layer(&l, "bias_k and bias_v");
    l.weights.bias_k = l.weights.bias_v = NULL;
    l.config.add_zero_attn = 1;
    refused_layer(&l, "add_zero_attn");
    l.config.add_zero_attn = 0;
    split_batch(&l.input[0]);
    refused_layer(&l, "batch axes");
    for (int n = 0; n < 14; n++)
        free(l.data[n]);
}

static void check_nothing(void)
{
    if (!has_path(0) || !check_case("sizes of zero"))
        return;
    struct shape s[4] = {plain, plain, plain, plain};
    s[0].b = 0;
    s[1].lq = 0;
    s[2].dv = 0;
    s[3].lk = 0;
    for (int n = 0; n < 4; n++) {
        struct inputs in;
        make(&in, &s[n], check_seed);
        check_poison(in.data[3], 1);
        refused(&in, n == 3 ? "rows without keys" : NULL);
        unmake(&in);
    }
}

/* A NaN that is not excluded spreads as in the reference, and no further. */
static void check_spread(void)
{
    struct inputs in;
    if (!has_path(0) || !check_case("a NaN that counts"))
        return;
    make(&in, &plain, check_seed);
    in.data[0][0] = NAN;
    in.data[2][8] = NAN;
    struct expected e = expect(count_of(&in.out));
    struct headway_reference_out results = {.out = e.exact, .out_bound = e.bound};
    CHECK(headway_reference_attention(NULL, &in.query, &in.key, &in.value, &results) == 0,
          "reference: out of memory");
    int64_t nans = 0;
    for (int64_t n = 0; n < e.count; n++)
        nans += isnan(e.exact[n]);
    CHECK(nans == 8 + 5, "the reference has %d NaN", (int)nans);
    for (int n = 0; n < 2; n++) {
        char note[NOTE] = "";
        if (has_path(n))
            run_path(n,
                     headway_onednn_attention(paths[n], NULL, &in.query, &in.key, &in.value,
                                              &in.out, note, sizeof note),
                     note, &in.out, &e);
    }
    free_expected(&e);
    unmake(&in);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    printf("%s\n", headway_onednn_about());
    for (int n = 0; n < 2; n++) {
        if (!has_path(n))
            check_skip(path_names[n], headway_onednn_about());
    }
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.isa = check_isa();
    if (headway_engine_create(&config, &engine) != HEADWAY_OK)
        abort();
    for (unsigned n = 0; has_path(0) && n < sizeof shapes / sizeof *shapes; n++) {
        const struct shape *s = &shapes[n];
        if (check_case("attention %u: %dx%dx%d heads %d/%d size %d/%d causal %d mask %d lengths %d "
                       "layout %d",
                       n, (int)s->b, (int)s->lq, (int)s->lk, (int)s->hq, (int)s->hkv, (int)s->d,
                       (int)s->dv, (int)s->causal, s->mask, s->lengths, s->layout))
            check_shape(s, 0, check_seed + n);
    }
    for (unsigned n = 0; has_path(0) && n < sizeof option_shapes / sizeof *option_shapes; n++) {
        if (check_case("options %u: %d", n, option_shapes[n].options))
            check_shape(&option_shapes[n].shape, option_shapes[n].options, check_seed + n);
    }
    for (unsigned n = 0; has_path(0) && n < sizeof layer_shapes / sizeof *layer_shapes; n++) {
        const struct layer_shape *s = &layer_shapes[n];
        if (check_case("layer %u: %dx%dx%d heads %d/%d size %d/%d inputs %d fused %d", n, (int)s->b,
                       (int)s->lq, (int)s->lk, (int)s->hq, (int)s->hkv, (int)s->d, (int)s->dv,
                       s->inputs, s->fused))
            check_layer(s, check_seed + n);
    }
    if (has_path(0))
        check_refusals();
    if (has_path(0))
        check_layer_refusals();
    check_nothing();
    check_spread();
    headway_engine_destroy(engine);
    return check_end();
}
