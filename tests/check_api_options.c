/* What the options of a call mean at the door: leading batch axes, packed sequences, ALiBi's slopes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_api.h"

/* ---- ALiBi's slopes ---------------------------------------------------------------------------
 */

static void check_slope(int64_t heads, int64_t h, float got)
{
    int64_t n = 1;
    while (2 * n <= heads)
        n *= 2;
    const double exact = h < n ? pow(2, -8.0 * (double)(h + 1) / (double)n)
                               : pow(2, -4.0 * (double)(2 * (h - n) + 1) / (double)n);
    const double ulp = (double)(nextafterf((float)exact, 1) - (float)exact);
    CHECK(fabs(got - exact) <= 0.501 * ulp, "slope %lld of %lld: %.9g, expected %.9g", (long long)h,
          (long long)heads, (double)got, exact);
}

static void check_slopes(void)
{
    static const float of_12[12] = {0x1p-1f,        0x1p-2f,        0x1p-3f,        0x1p-4f,
                                    0x1p-5f,        0x1p-6f,        0x1p-7f,        0x1p-8f,
                                    0x1.6a09e6p-1f, 0x1.6a09e6p-2f, 0x1.6a09e6p-3f, 0x1.6a09e6p-4f};
    static float slopes[5001];
    if (!check_case("alibi_slopes"))
        return;
    CHECK(headway_alibi_slopes(12, slopes) == HEADWAY_OK, "12 heads");
    check_bits(slopes, of_12, 12, "12 heads");
    for (int64_t heads = 1; heads < 5000; heads = heads < 140 ? heads + 1 : heads * 3 / 2) {
        slopes[heads] = 42;
        CHECK(headway_alibi_slopes(heads, slopes) == HEADWAY_OK, "%lld heads", (long long)heads);
        CHECK(slopes[heads] == 42, "%lld heads: one too many", (long long)heads);
        for (int64_t h = 0; h < heads; h++)
            check_slope(heads, h, slopes[h]);
    }
    slopes[0] = 42;
    CHECK(headway_alibi_slopes(0, slopes) == HEADWAY_ERROR_ARGUMENT, "no heads");
    CHECK(headway_alibi_slopes(INT64_MIN, slopes) == HEADWAY_ERROR_ARGUMENT, "fewer heads");
    CHECK(headway_alibi_slopes(1, NULL) == HEADWAY_ERROR_ARGUMENT, "no slopes");
    CHECK(slopes[0] == 42, "an error wrote");
}

/* ---- leading batch axes -----------------------------------------------------------------------
 */

enum { B = 6, LQ = 3, LK = 5, HQ = 4, HKV = 2, D = 8, DV = 6, OPERANDS = 8 };
enum { QUERY, KEY, VALUE, MASK, INTERVAL, OUT, LSE, WEIGHTS };

static const struct {
    int rank; /* without the batch */
    headway_dtype dtype;
    int64_t shape[3];
} forms[OPERANDS] = {{3, HEADWAY_F32, {LQ, HQ, D}},   {3, HEADWAY_F32, {LK, HKV, D}},
                     {3, HEADWAY_F32, {LK, HKV, DV}}, {3, HEADWAY_BOOL, {HQ, LQ, LK}},
                     {2, HEADWAY_I32, {LQ, 2}},       {3, HEADWAY_F32, {LQ, HQ, DV}},
                     {2, HEADWAY_F32, {HQ, LQ}},      {3, HEADWAY_F32, {HQ, LQ, LK}}};

enum { ROOM = B * LK * HQ * D };
static float floats[OPERANDS][ROOM];
static unsigned char bools[ROOM];
static int32_t ints[ROOM];
static _Alignas(64) unsigned char workspace[1 << 20];

/* The batch's axes of one call: 6 elements of the batch, which a reversed or shared one takes from
 * the same memory. */
struct lead {
    const char *name;
    int axes;
    int64_t extents[5];
    unsigned flat; /* a bit for each operand that has one axis of extent B instead */
    int mean;      /* of the weights */
    enum { PLAIN, BACKWARDS, SHARED } batch; /* of query, mask and interval */
};

static headway_tensor operand(const struct lead *lead, int which)
{
    const int flat = lead->flat >> which & 1, axes = flat ? 1 : lead->axes;
    const int skip = which == WEIGHTS && lead->mean;
    const int64_t one[1] = {B};
    int64_t shape[HEADWAY_MAX_RANK], step;
    void *data = which == MASK ? (void *)bools : which == INTERVAL ? (void *)ints : floats[which];
    memcpy(shape, flat ? one : lead->extents, (size_t)axes * sizeof *shape);
    for (int i = skip; i < forms[which].rank; i++)
        shape[axes + i - skip] = forms[which].shape[i];
    headway_tensor t =
        headway_tensor_dense(data, forms[which].dtype, axes + forms[which].rank - skip, shape);
    if (lead->batch == PLAIN || (which != QUERY && which != MASK && which != INTERVAL))
        return t;
    step = t.stride[axes - 1];
    for (int a = 0; a < axes; a++) {
        t.stride[a] = lead->batch == SHARED ? 0 : -t.stride[a];
        if (lead->batch == SHARED && which != QUERY)
            t.shape[a] = 1;
    }
    if (lead->batch == BACKWARDS)
        t.data = (char *)data + (B - 1) * step * (which == MASK ? 1 : 4);
    return t;
}

struct results {
    float out[B * LQ * HQ * DV], lse[B * HQ * LQ], weights[B * HQ * LQ * LK];
};

static void run(const struct lead *lead, struct results *results)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_tensor t[OPERANDS];
    for (int i = 0; i < OPERANDS; i++)
        t[i] = operand(lead, i);
    params.mask = &t[MASK];
    params.interval = &t[INTERVAL];
    params.lse = &t[LSE];
    params.weights = &t[WEIGHTS];
    memset(floats[WEIGHTS], 0, sizeof floats[WEIGHTS]);
    const headway_status status = headway_attention(engine, &params, &t[QUERY], &t[KEY], &t[VALUE],
                                                    &t[OUT], workspace, sizeof workspace);
    if (status != HEADWAY_OK)
        expect_error(status, HEADWAY_OK, lead->name);
    memcpy(results->out, floats[OUT], sizeof results->out);
    memcpy(results->lse, floats[LSE], sizeof results->lse);
    memcpy(results->weights, floats[WEIGHTS], sizeof results->weights);
}

static void fill_operands(void)
{
    uint64_t random = check_seed;
    for (int i = QUERY; i <= VALUE; i++)
        check_fill_normal(&random, floats[i], ROOM, 1);
    for (int i = 0; i < ROOM; i++) {
        bools[i] = check_random(&random) % 4 != 0;
        ints[i] = (int32_t)(check_random(&random) % (LK + 3)) - 1;
    }
}

static void expect_same(const struct results *a, const struct results *b, const char *what)
{
    float sum = 0;
    check_bits(a->out, b->out, COUNT(a->out), what);
    check_bits(a->lse, b->lse, COUNT(a->lse), what);
    check_bits(a->weights, b->weights, COUNT(a->weights), what);
    for (int i = 0; i < COUNT(a->weights); i++)
        sum += a->weights[i];
    CHECK(sum > 0.5f, "%s: weights sum up to %g", what, (double)sum);
}

static void check_leads(void)
{
    static const unsigned all = (1u << OPERANDS) - 1, others = all & ~(1u << QUERY);
    static const struct lead leads[] = {
        {"2 x 3", 2, {2, 3}, 0, 0, PLAIN},
        {"3 x 2, backwards", 2, {3, 2}, 0, 0, BACKWARDS},
        {"3 x 2, shared", 2, {3, 2}, 0, 0, SHARED},
        {"1 x 2 x 3", 3, {1, 2, 3}, 0, 0, PLAIN},
        {"2 x 1 x 3 x 1, shared", 4, {2, 1, 3, 1}, 0, 0, SHARED},
        {"1 x 6", 2, {1, 6}, 0, 0, PLAIN},
        {"6 x 1, mean", 2, {6, 1}, 0, 1, BACKWARDS},
        {"five axes", 5, {1, 2, 1, 3, 1}, 0, 0, BACKWARDS},
        {"five axes, mean", 5, {3, 1, 1, 2, 1}, 0, 1, SHARED},
        {"2 x 3, B elsewhere", 2, {2, 3}, others, 0, PLAIN},
        {"2 x 3, B elsewhere, mean", 2, {2, 3}, others, 1, PLAIN},
        {"2 x 3, B in out and mask", 2, {2, 3}, 1u << OUT | 1u << MASK, 1, BACKWARDS},
        {"1 x 2 x 3, B in weights", 3, {1, 2, 3}, 1u << WEIGHTS, 0, SHARED},
        {"1 x 3 x 2, B in weights, mean", 3, {1, 3, 2}, 1u << WEIGHTS, 1, SHARED},
    };
    static struct results plain, got;
    for (int n = 0; n < COUNT(leads); n++) {
        struct lead reference = {"B", 1, {B}, 0, leads[n].mean, leads[n].batch};
        if (!check_case("leading axes: %s", leads[n].name))
            continue;
        fill_operands();
        run(&reference, &plain);
        run(&leads[n], &got);
        expect_same(&got, &plain, leads[n].name);
    }
}

/* No batch axis is a batch of one. */
static void check_no_lead(void)
{
    for (int mean = 0; mean < 2; mean++)
        for (unsigned flat = 0; flat < 2; flat++) {
            static struct results plain, got;
            headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
            headway_tensor t[OPERANDS];
            const struct lead one = {"1", 1, {1}, 0, mean, PLAIN};
            const struct lead none = {"none", 0, {0}, 0, mean, PLAIN};
            if (!check_case("leading axes: none, %s weights, %s", mean ? "mean" : "all",
                            flat ? "a batch of 1 in the params" : "nor in the params"))
                continue;
            fill_operands();
            memset(floats[OUT], 0, sizeof floats[OUT]);
            memset(floats[LSE], 0, sizeof floats[LSE]);
            run(&one, &plain);
            for (int i = 0; i < OPERANDS; i++)
                t[i] = operand(flat && (i == MASK || i == INTERVAL || i >= LSE) ? &one : &none, i);
            params.mask = &t[MASK];
            params.interval = &t[INTERVAL];
            params.lse = &t[LSE];
            params.weights = &t[WEIGHTS];
            memset(floats[OUT], 0, sizeof floats[OUT]);
            memset(floats[LSE], 0, sizeof floats[LSE]);
            memset(floats[WEIGHTS], 0, sizeof floats[WEIGHTS]);
            expect_error(headway_attention(engine, &params, &t[QUERY], &t[KEY], &t[VALUE], &t[OUT],
                                           workspace, sizeof workspace),
                         HEADWAY_OK, "");
            memcpy(got.out, floats[OUT], sizeof got.out);
            memcpy(got.lse, floats[LSE], sizeof got.lse);
            memcpy(got.weights, floats[WEIGHTS], sizeof got.weights);
            expect_same(&got, &plain, "no batch axis");
        }
}

/* Strides of what is empty mean nothing: some make them 0. */
static void check_empty(void)
{
    static const int which[] = {QUERY, KEY, VALUE, OUT, LSE, WEIGHTS};
    for (int empty = 0; empty < 3; empty++)
        for (int mean = 0; mean < 2; mean++) {
            const struct lead lead = {"", 1, {B}, 0, mean, PLAIN};
            const int64_t b = empty == 0 ? 0 : B, rows = empty == 1 ? 0 : LQ;
            const int64_t keys = empty == 2 ? 0 : LK;
            headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
            headway_tensor t[OPERANDS];
            if (!check_case("strides of 0 where there is no %s, %s weights",
                            empty == 0   ? "batch"
                            : empty == 1 ? "row"
                                         : "key",
                            mean ? "mean" : "all"))
                continue;
            fill_operands();
            for (int i = 0; i < COUNT(which); i++) {
                headway_tensor *one = &t[which[i]];
                *one = operand(&lead, which[i]);
                one->shape[0] = b;
                if (which[i] == KEY || which[i] == VALUE)
                    one->shape[1] = keys;
                else if (which[i] == QUERY || which[i] == OUT)
                    one->shape[1] = rows;
                else
                    one->shape[which[i] == WEIGHTS && mean ? 1 : 2] = rows;
                if (which[i] == WEIGHTS)
                    one->shape[one->rank - 1] = keys;
                if (one->shape[0] * one->shape[1] * one->shape[2] == 0 ||
                    one->shape[one->rank - 1] == 0)
                    memset(one->stride, 0, sizeof one->stride);
            }
            params.lse = &t[LSE];
            params.weights = &t[WEIGHTS];
            expect_error(headway_attention(engine, &params, &t[QUERY], &t[KEY], &t[VALUE], &t[OUT],
                                           workspace, sizeof workspace),
                         HEADWAY_OK, "");
        }
}

/* ---- packed sequences -------------------------------------------------------------------------
 */

/* Rows or keys from .. end - 1 of the operand, whose batch is one. */
static headway_tensor part(int which, int axes, int axis, int64_t from, int64_t end)
{
    const struct lead lead = {"", axes, {1}, 0, 0, PLAIN};
    headway_tensor t = operand(&lead, which);
    t.data = (char *)t.data + 4 * from * t.stride[axes + axis];
    t.shape[axes + axis] = end - from;
    return t;
}

/* One call for all sequences gives the bits of a call for each. */
static void check_packed(void)
{
    static const int64_t query_starts[] = {0, 1, 1, 2, 3}, key_starts[] = {0, 2, 3, 3, 5};
    static struct results single, packed;
    for (int n = 0; n < 3; n++) {
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        const int axes = n > 0, lse_axes = n == 1;
        if (!check_case("packed sequences, %d and %d leading axes", axes, lse_axes))
            continue;
        fill_operands();
        memset(&single, 0, sizeof single);
        memset(&packed, 0, sizeof packed);
        for (int b = 0; b <= 4; b++) {
            const int all = b == 4;
            const int64_t rows = all ? 0 : query_starts[b], keys = all ? 0 : key_starts[b];
            const int64_t rows_end = all ? LQ : query_starts[b + 1];
            const int64_t keys_end = all ? LK : key_starts[b + 1];
            headway_tensor query = part(QUERY, axes, 0, rows, rows_end);
            headway_tensor key = part(KEY, axes, 0, keys, keys_end);
            headway_tensor value = part(VALUE, axes, 0, keys, keys_end);
            headway_tensor interval = part(INTERVAL, axes, 0, rows, rows_end);
            headway_tensor out = part(OUT, axes, 0, rows, rows_end);
            headway_tensor lse = part(LSE, all ? lse_axes : axes, 1, rows, rows_end);
            struct results *results = all ? &packed : &single;
            out.data = results->out + (all ? 0 : rows * out.stride[axes]);
            lse.data = results->lse + rows;
            params.interval = &interval;
            params.lse = &lse;
            params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
            params.sequences = all ? 4 : 0;
            params.query_starts = all ? query_starts : NULL;
            params.key_starts = all ? key_starts : NULL;
            expect_error(headway_attention(engine, &params, &query, &key, &value, &out, workspace,
                                           sizeof workspace),
                         HEADWAY_OK, "");
        }
        check_bits(packed.out, single.out, LQ * HQ * DV, "out");
        check_bits(packed.lse, single.lse, HQ * LQ, "lse");
        CHECK(single.lse[0] != 0, "lse was not written");
    }
}

void check_options(void)
{
    check_slopes();
    check_leads();
    check_no_lead();
    check_empty();
    check_packed();
}
