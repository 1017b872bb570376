/* oneDNN against the double reference on both of its paths, and what it must refuse. */
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

static int has(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

/* Elements of a tensor of these extents, laid out in the order given by `layout`: 0 (B, L, H, X), 1
 * (B, H, L, X), 2 rows with a gap after them. */
static headway_tensor lay(float *data, int layout, int64_t b, int64_t l, int64_t h, int64_t x) {
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

static float *numbers(uint64_t *state, int64_t count) {
    float *data = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    if (!data)
        abort();
    check_fill_normal(state, data, count, 1);
    return data;
}

/* The output compared element by element; oneDNN promises no bound, so Headway's is widened by the
 * factor that separates sums in any order from sums in one, and its exp by 8 units in the last place. */
static void compare(const char *what, const headway_tensor *out, const double *exact,
                    const double *bound, double largest) {
    double worst = 0;
    int64_t n = 0;
    for (int64_t b = 0; b < out->shape[0]; b++) {
        for (int64_t l = 0; l < out->shape[1]; l++) {
            for (int64_t c = 0; c < out->shape[2] * (out->rank == 4 ? out->shape[3] : 1); c++) {
                int64_t x = out->rank == 4 ? out->shape[3] : 1;
                int64_t at = b * out->stride[0] + l * out->stride[1] + c / x * out->stride[2] +
                             (out->rank == 4 ? c % x * out->stride[3] : 0);
                double got = ((const float *)out->data)[at];
                double limit = 2 * bound[n] + 16 * ldexp(largest, -24);
                double error = fabs(got - exact[n]);
                CHECK(error <= limit, "%s (%d,%d,%d): %.9g, exactly %.9g, off by %.3g of %.3g", what,
                      (int)b, (int)l, (int)c, got, exact[n], error, limit);
                worst = fmax(worst, error / limit);
                n++;
            }
        }
    }
    CHECK(worst < 1 || n == 0, "%s: largest error %g of what is allowed", what, worst);
}

struct shape {
    int64_t b, hq, hkv, lq, lk, d, dv;
    enum headway_causal causal;
    int mask; /* 0 none, 1 bool (Lk), 2 float (Lq, Lk), 3 bool (B, 1, 1, Lk), 4 float, all axes */
    int lengths;
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
};

struct inputs {
    headway_attention_params params;
    headway_tensor query, key, value, out, mask;
    float *data[5];
    unsigned char bools[256];
    int64_t lengths[4], offsets[4];
    float scale;
};

static void make_mask(struct inputs *in, const struct shape *s, uint64_t *state) {
    in->data[4] = numbers(state, s->b * s->hq * s->lq * s->lk);
    for (int i = 0; i < 256; i++)
        in->bools[i] = i % 3 != 1;
    in->mask = (headway_tensor){in->bools, HEADWAY_BOOL, 1, {s->lk}, {1}};
    if (s->mask == 2) {
        for (int64_t i = 0; i < s->lq * s->lk; i += 4)
            in->data[4][i] = i % 16 == 0 && i % s->lk ? -INFINITY : -20;
        in->mask =
            (headway_tensor){in->data[4], HEADWAY_F32, 2, {s->lq, s->lk}, {s->lk, 1}};
    } else if (s->mask == 3) {
        in->mask = (headway_tensor){
            in->bools, HEADWAY_BOOL, 4, {s->b, 1, 1, s->lk}, {s->lk, 0, 0, 1}};
    } else if (s->mask == 4) {
        in->mask = (headway_tensor){in->data[4],
                                    HEADWAY_F32,
                                    4,
                                    {s->b, s->hq, s->lq, s->lk},
                                    {s->hq * s->lq * s->lk, s->lq * s->lk, s->lk, 1}};
    }
    in->params.mask = s->mask ? &in->mask : NULL;
}

static void make(struct inputs *in, const struct shape *s, uint64_t seed) {
    uint64_t state = seed;
    *in = (struct inputs){.params = HEADWAY_ATTENTION_PARAMS_INIT, .scale = s->scale};
    const int64_t queries = s->b * s->lq * (s->hq * s->d + 5), outs = s->b * s->lq * (s->hq * s->dv + 5);
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
        in->lengths[b] = s->lk - 7 * b > 0 ? s->lk - 7 * b : s->lk;
        in->offsets[b] = 3 * b;
    }
    if (s->scale != 0)
        in->params.scale = &in->scale;
    in->params.causal = s->causal;
    in->params.causal_offsets = s->causal == HEADWAY_CAUSAL_OFFSETS ? in->offsets : NULL;
    in->params.key_lengths = s->lengths ? in->lengths : NULL;
}

static void unmake(struct inputs *in) {
    for (int n = 0; n < 5; n++)
        free(in->data[n]);
}

static int verbose;

/* A path that is absent is skipped by name once; any other refusal is a failure. */
static void run_path(int n, struct headway_onednn *prepared, const char *note,
                     const headway_tensor *out, const double *exact, const double *bound,
                     double largest) {
    if (!prepared && (has(note, "not in this build") || has(note, "no Graph API") ||
                      has(note, "head sizes of key and value that differ as a graph"))) {
        check_skip(path_names[n], note);
        return;
    }
    CHECK(prepared != NULL, "%s: %s", path_names[n], note);
    if (!prepared)
        return;
    if (verbose)
        printf("    %s\n", note);
    for (int repeat = 0; repeat < 2; repeat++) {
        CHECK(headway_onednn_run(prepared) == 0, "%s: failed", path_names[n]);
        compare(path_names[n], out, exact, bound, largest);
    }
    headway_onednn_free(prepared);
}

static void check_shape(const struct shape *s, uint64_t seed) {
    struct inputs in;
    make(&in, s, seed);
    int64_t count = s->b * s->lq * s->hq * s->dv;
    double *exact = calloc((size_t)(2 * count + 1), sizeof(double));
    if (!exact)
        abort();
    struct headway_reference_out results = {.out = exact, .out_bound = exact + count};
    CHECK(headway_reference_attention(&in.params, &in.query, &in.key, &in.value, &results) == 0,
          "reference: out of memory");
    for (int n = 0; n < 2; n++) {
        char note[NOTE] = "";
        check_poison(in.data[3], s->b * s->lq * (s->hq * s->dv + 5));
        struct headway_onednn *prepared = headway_onednn_attention(
            paths[n], &in.params, &in.query, &in.key, &in.value, &in.out, note, sizeof note);
        run_path(n, prepared, note, &in.out, exact, exact + count, 4);
    }
    free(exact);
    unmake(&in);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    verbose = getenv("CHECK_VERBOSE") != NULL;
    printf("%s\n", headway_onednn_about());
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        const struct shape *s = &shapes[n];
        if (check_case("attention b%d hq%d hkv%d lq%d lk%d d%d dv%d causal%d mask%d lengths%d layout%d",
                       (int)s->b, (int)s->hq, (int)s->hkv, (int)s->lq, (int)s->lk, (int)s->d,
                       (int)s->dv, (int)s->causal, s->mask, s->lengths, s->layout))
            check_shape(s, check_seed + n);
    }
    return check_end();
}
