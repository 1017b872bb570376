/* Softcap, ALiBi, masks of 16 bits, window, offsets, intervals, sinks, packed sequences, leading
 * axes, weights and appended keys of the double reference, against answers worked out by hand or
 * in another way. The letters are the families of cases. */
#include "check_reference.h"

#include "oracle/reference_parts.h"

#include <math.h>
#include <string.h>

/* D = Dv = 1, one row of 1 (scale 1) against keys k, values v. */
static void one_row(headway_attention_params *p, int64_t heads, const float *k, const float *v,
                    int64_t lk)
{
    const float q[4] = {1, 1, 1, 1}, scale = 1;
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, 1, heads, 1);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, lk, 1, 1);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 1, lk, 1, 1);
    p->scale = &scale;
    attend(p, &query, &key, &value);
    p->scale = NULL;
}

static const double w5 = 0.99330714907571527; /* e^5 / (1 + e^5) */
static const double t3 = 1.8102965072897328;  /* 2 tanh(3 / 2) */

static void check_softcap(void)
{
    if (!check_case("D softcap"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const float bias[2] = {0, 5}, slope = 1, k[3] = {3, -1e30f, 0}, v[3] = {1, 0, 0};
    headway_tensor mask = dense(bias, HEADWAY_F32, 1, 2, 1, 1, 1);
    p.softcap = 2;
    p.mask = &mask;
    uniform(&p, 1, 2, &w5, "before the bias");
    p.mask = NULL;
    one_row(&p, 1, k, v, 3);
    const double sum = exp(t3) + exp(-2) + 1;
    expect(probs, (double[]){exp(t3) / sum, exp(-2) / sum, 1 / sum}, 3, 1e-15, "3, -1e30, 0");
    expect(lse, (double[]){log(sum)}, 1, 1e-15, "lse");
    p.alibi_slopes = &slope;
    one_row(&p, 1, k + 2, v, 1);
    expect(lse, (double[]){0}, 1, 0, "at the row's own place");
    int64_t offset = -1;
    p.row_offsets = &offset;
    one_row(&p, 1, k, v, 1);
    expect(lse, (double[]){t3 + 1}, 1, 1e-15, "before ALiBi");
    p = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
    p.softcap = 2;
    const float ends[2] = {INFINITY, -INFINITY};
    one_row(&p, 1, ends, v, 2);
    expect(lse, (double[]){2 + log1p(exp(-4))}, 1, 1e-15, "infinite scores are capped");
    const float bad[2] = {0, NAN};
    one_row(&p, 1, bad, v, 2);
    expect(lse, (double[]){NAN}, 1, 0, "NaN stays");
    float zero[65] = {0}, ones[65];
    for (int j = 0; j < 65; j++)
        ones[j] = 1;
    p.softcap = 1;
    one_row(&p, 1, zero, ones, 65);
    expect(out, (double[]){1}, 1, 1e-14, "D01");
    expect(lse, (double[]){log(65)}, 1, 1e-14, "lse");
    p.softcap = 1e30f;
    one_row(&p, 1, (float[]){3}, ones, 1);
    expect(lse, (double[]){3}, 1, 1e-14, "a cap out of reach");
}

static void check_alibi(void)
{
    if (!check_case("D ALiBi"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const float zero[6] = {0}, slopes[2] = {1, -0.5f};
    headway_tensor query = dense(zero, HEADWAY_F32, 4, 1, 2, 2, 1);
    headway_tensor key = dense(zero, HEADWAY_F32, 4, 1, 3, 1, 1);
    p.alibi_slopes = slopes;
    attend(&p, &query, &key, &key);
    const double a = log(1 + exp(1) + exp(2)), b = log(exp(-1) + 1 + exp(1));
    const double c = log(1 + exp(-0.5) + exp(-1)), d = log(exp(0.5) + 1 + exp(-0.5));
    expect(lse, (double[]){a, b, c, d}, 4, 1e-15, "no offset");
    int64_t offset = 1;
    p.row_offsets = &offset;
    attend(&p, &query, &key, &key);
    expect(lse, (double[]){b, b - 1, d, d + 0.5}, 4, 1e-15, "offset 1 without causality");
    p.causal = HEADWAY_CAUSAL_OFFSETS;
    attend(&p, &query, &key, &key);
    expect(lse, (double[]){log(exp(-1) + 1), b - 1, log(exp(0.5) + 1), d + 0.5}, 4, 1e-15,
           "offset 1 and causality");
    p.row_offsets = NULL;
    p.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    attend(&p, &query, &key, &key);
    expect(lse, (double[]){log(exp(-1) + 1), b - 1, log(exp(0.5) + 1), d + 0.5}, 4, 1e-15,
           "bottom-right");
    offset = -(INT64_C(1) << 40);
    p.row_offsets = &offset;
    p.causal = HEADWAY_CAUSAL_NONE;
    attend(&p, &query, &key, &key);
    expect(lse, (double[]){0x1p40 + a}, 1, 1e-3, "a distance of 2^40");
    const float steep = 2e38f, low[3] = {-2e38f, -1e38f, 0}, v[3] = {1, 2, 3};
    headway_tensor mask = dense(low, HEADWAY_F32, 1, 3, 1, 1, 1);
    p.alibi_slopes = &steep;
    p.mask = &mask;
    offset = 1;
    one_row(&p, 1, zero, v, 3);
    expect(probs, (double[]){0, 0, 1}, 3, 0, "far apart");
    one_row(&p, 1, zero, v, 1);
    expect(lse, (double[]){-INFINITY}, 1, 0, "a sum of -inf leaves its key out");
}

static void check_half_masks(void)
{
    static const struct {
        headway_dtype dtype;
        uint16_t bits;
        double value;
    } halves[] = {
        {HEADWAY_F16, 0x4500, 5},          {HEADWAY_F16, 0xbc00, -1},
        {HEADWAY_F16, 0x0001, 0x1p-24},    {HEADWAY_F16, 0x83ff, -0x3ffp-24},
        {HEADWAY_F16, 0x0400, 0x1p-14},    {HEADWAY_F16, 0x3555, 0x1.554p-2},
        {HEADWAY_F16, 0xfbff, -65504},     {HEADWAY_F16, 0x7bff, 65504},
        {HEADWAY_F16, 0x8000, 0},          {HEADWAY_F16, 0xfc00, -INFINITY},
        {HEADWAY_F16, 0x7e00, NAN},        {HEADWAY_F16, 0x7c00, NAN},
        {HEADWAY_BF16, 0x40a0, 5},         {HEADWAY_BF16, 0xbf80, -1},
        {HEADWAY_BF16, 0x3eab, 0x1.56p-2}, {HEADWAY_BF16, 0xff7f, -0x1.fep127},
        {HEADWAY_BF16, 0xff80, -INFINITY}, {HEADWAY_BF16, 0x7fc0, NAN},
        {HEADWAY_BF16, 0x7f80, NAN},
    };
    for (unsigned n = 0; n < sizeof halves / sizeof *halves; n++) {
        if (!check_case("B mask of 16 bits, %s %04x",
                        halves[n].dtype == HEADWAY_F16 ? "f16" : "bf16", halves[n].bits))
            continue;
        headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
        const uint16_t pair[3] = {0, halves[n].bits, 0};
        const double x = halves[n].value;
        const double w = isnan(x) ? NAN : 1 / (1 + exp(-x));
        headway_tensor mask = dense(pair, halves[n].dtype, 1, 2, 1, 1, 1);
        p.mask = &mask;
        uniform(&p, 1, 2, &w, "weight of key 1");
        mask = dense(pair + 1, halves[n].dtype, 2, 1, 1, 1, 1);
        uniform(&p, 2, 1, isnan(x) ? (double[]){NAN, NAN} : (double[]){0, 0}, "one key");
        expect(lse, (double[]){isnan(x) ? NAN : x}, 1, 0, "lse");
    }
}

/* Every setting of causality, offset and window on 6 rows and 5 keys, counted key by key. */
static void check_window(void)
{
    static const int64_t sides[5] = {-1, 0, 1, 3, INT64_MAX};
    if (!check_case("C window"))
        return;
    for (int n = 0; n < 4 * 3 * 5 * 5; n++) {
        headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
        int64_t offset = n / 25 % 3 * 3 - 4; /* -4, -1, 2 */
        double wanted[6];
        p.causal = (headway_causal)(n / 75);
        p.window_left = sides[n % 5];
        p.window_right = sides[n / 5 % 5];
        if (p.causal == HEADWAY_CAUSAL_NONE || p.causal == HEADWAY_CAUSAL_OFFSETS)
            p.row_offsets = &offset;
        else
            offset = p.causal == HEADWAY_CAUSAL_TOP_LEFT ? 0 : 5 - 6;
        for (int i = 0; i < 6; i++) {
            int count = 0, sum = 0;
            for (int j = 0; j < 5; j++) {
                int place = i + (int)offset;
                int allowed = p.causal == HEADWAY_CAUSAL_NONE || j <= place;
                for (int far = 1; far < 12; far++) {
                    if (j == place - far && p.window_left >= 0 && far > p.window_left)
                        allowed = 0;
                    if (j == place + far && p.window_right >= 0 && far > p.window_right)
                        allowed = 0;
                }
                count += allowed;
                sum += allowed * j;
            }
            wanted[i] = count ? (double)sum / count : 0;
        }
        uniform(&p, 6, 5, wanted, "window");
    }
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    p.window_left = 2;
    p.window_right = 0;
    uniform(&p, 5, 5, (double[]){0, 0.5, 1, 2, 3}, "left 2 keeps three keys, self included");
    int64_t offset = INT64_MAX;
    p.row_offsets = &offset;
    uniform(&p, 2, 4, (double[]){0, 0}, "the largest offset: all keys are out of the window");
    p.window_left = -1;
    uniform(&p, 2, 4, (double[]){1.5, 1.5}, "nothing on the left is");
    offset = INT64_MIN;
    uniform(&p, 2, 4, (double[]){0, 0}, "everything on the right is");
    expect(lse, (double[]){-INFINITY, -INFINITY}, 2, 0, "lse");
}

static void check_interval(void)
{
    if (!check_case("interval"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const int32_t ends[14] = {0, 2, 1, 4, 3, 3, 3, 1, -5, 99, INT32_MAX, INT32_MIN, 2, INT32_MAX};
    headway_tensor interval = dense(ends, HEADWAY_I32, 2, 7, 2, 1, 1);
    p.interval = &interval;
    uniform(&p, 7, 4, (double[]){0.5, 2, 0, 0, 1.5, 0, 2.5}, "rank 2");
    expect(lse, (double[]){log(2), log(3), -INFINITY, -INFINITY, log(4), -INFINITY, log(2)}, 7,
           1e-15, "lse");
    p.causal = HEADWAY_CAUSAL_TOP_LEFT;
    p.window_left = 1;
    uniform(&p, 7, 4, (double[]){0, 1, 0, 0, 3, 0, 0}, "with causality and a window");
    p = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
    p.interval = &interval;
    const int32_t turned[6] = {9, 1, 0, 9, 4, 2}; /* firsts 0 1, lasts 2 4 */
    interval =
        (headway_tensor){(void *)(uintptr_t)(turned + 2), HEADWAY_I32, 3, {1, 2, 2}, {77, -1, 3}};
    uniform(&p, 2, 4, (double[]){0.5, 2}, "rank 3, any strides");
    const float zero[8] = {0}, v[4] = {0, 1, 10, 11};
    const int32_t each[8] = {0, 1, 1, 2, 0, 2, 5, 9};
    headway_tensor query = dense(zero, HEADWAY_F32, 4, 2, 2, 1, 1);
    headway_tensor key = dense(zero, HEADWAY_F32, 4, 2, 2, 1, 1);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 2, 2, 1, 1);
    interval = dense(each, HEADWAY_I32, 3, 2, 2, 2, 1);
    attend(&p, &query, &key, &value);
    expect(out, (double[]){0, 1, 10.5, 0}, 4, 1e-15, "one for each batch");
    interval = dense(each, HEADWAY_I32, 3, 1, 2, 2, 1);
    attend(&p, &query, &key, &value);
    expect(out, (double[]){0, 1, 10, 11}, 4, 1e-15, "one for both");
}

static void check_sinks(void)
{
    if (!check_case("A sinks"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const float k[3] = {0, 0, -INFINITY}, v[3] = {3, 6, 0}, sinks[3] = {0, -INFINITY, 1000};
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, 2, 1, 1);
    p.sinks = sinks;
    one_row(&p, 3, k, v, 2);
    expect(out, (double[]){3, 4.5, 0}, 3, 1e-15, "sinks 0, none, 1000");
    expect(lse, (double[]){log(3), log(2), 1000}, 3, 1e-13, "lse");
    expect(probs, (double[]){1 / 3.0, 1 / 3.0, 0.5, 0.5, 0, 0}, 6, 1e-15, "weights");
    expect(mean, (double[]){5 / 18.0, 5 / 18.0}, 2, 1e-15, "their mean");
    int64_t none = 0;
    p.key_lengths = &none;
    one_row(&p, 3, k, v, 2);
    expect(out, (double[]){0, 0, 0}, 3, 0, "no key");
    expect(bound, (double[]){0, 0, 0}, 3, 0, "exactly");
    expect(lse, (double[]){0, -INFINITY, 1000}, 3, 0, "the sinks themselves");
    expect(lse_bound, (double[]){0, 0, 0}, 3, 0, "exactly");
    expect(probs, (double[]){0, 0, 0, 0, 0, 0}, 6, 0, "weights");
    p.key_lengths = NULL;
    one_row(&p, 3, k + 2, v, 1);
    expect(out, (double[]){0, 0, 0}, 3, 0, "scores of -inf alone");
    expect(lse, (double[]){0, -INFINITY, 1000}, 3, 0, "lse");
    one_row(&p, 3, (float[]){NAN}, v, 1);
    expect(out, (double[]){NAN, NAN, NAN}, 3, 0, "NaN");
    key = dense(k, HEADWAY_F32, 4, 1, 0, 1, 1);
    attend(&p, &key, &key, &key);
    expect(out, (double[]){77777}, 1, 0, "nothing");
    const float low = -3e38f, far[2] = {-3e38f, -3e38f};
    p.sinks = &low;
    one_row(&p, 1, far, v, 2);
    expect(out, (double[]){3}, 1, 1e-15, "low numbers are numbers");
}

/* ---- packed sequences ------------------------------------------------------------------------- */

enum { HEADS = 2, SIZE = 3 };

static void check_packed_by_hand(void)
{
    if (!check_case("L05 packed sequences"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const int64_t starts[4] = {0, 3, 3, 8}, others[4] = {0, 0, 5, 7};
    p.sequences = 3;
    p.query_starts = starts;
    uniform(&p, 8, 8, (double[]){1, 1, 1, 5, 5, 5, 5, 5}, "lengths 3, 0, 5");
    expect(lse, (double[]){log(3), log(3), log(3), log(5), log(5), log(5), log(5), log(5)}, 8,
           1e-15, "lse");
    p.causal = HEADWAY_CAUSAL_TOP_LEFT;
    uniform(&p, 8, 8, (double[]){0, 0.5, 1, 3, 3.5, 4, 4.5, 5}, "causal");
    p.key_starts = others;
    p.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    uniform(&p, 8, 7, (double[]){0, 0, 0, 0, 0, 0, 5, 5.5}, "keys 0, 5, 2, bottom-right");
    expect(lse,
           (double[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 0, log(2)},
           8, 1e-15, "lse");
    p.causal = HEADWAY_CAUSAL_OFFSETS;
    p.row_offsets = (const int64_t[3]){0, 9, -3};
    uniform(&p, 8, 7, (double[]){0, 0, 0, 0, 0, 0, 5, 5.5}, "offsets of each sequence");
}

/* The packed call is one call for each sequence. */
static void check_packed(void)
{
    enum { QUERIES = 11, KEYS = 13, SEQUENCES = 4, LONGEST = 6 };
    static const int64_t queries[SEQUENCES + 1] = {0, 4, 4, 10, 11};
    static const int64_t keys[SEQUENCES + 1] = {0, 5, 7, 13, 13};
    float q[QUERIES * HEADS * SIZE], k[KEYS * SIZE], v[KEYS * SIZE], bias[SEQUENCES * 2 * 6 * 6];
    double packed[QUERIES * HEADS * SIZE], packed_lse[HEADS * QUERIES];
    int32_t ends[QUERIES * 2];
    const float slopes[HEADS] = {0.25f, 0.5f}, sinks[HEADS] = {-1, 0.5f};
    const int64_t offsets[SEQUENCES] = {1, 0, -1, 0};
    uint64_t state = check_seed;
    if (!check_case("packed sequences are calls of their own"))
        return;
    check_fill_normal(&state, q, QUERIES * HEADS * SIZE, 1);
    check_fill_normal(&state, k, KEYS * SIZE, 1);
    check_fill_normal(&state, v, KEYS * SIZE, 1);
    check_fill_normal(&state, bias, SEQUENCES * 2 * 6 * 6, 1);
    for (int i = 0; i < QUERIES; i++) {
        ends[2 * i] = i % 3;
        ends[2 * i + 1] = 3 + i % 4;
    }
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, QUERIES, HEADS, SIZE);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, KEYS, 1, SIZE);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 1, KEYS, 1, SIZE);
    headway_tensor mask = dense(bias, HEADWAY_F32, 4, SEQUENCES, HEADS, LONGEST, LONGEST);
    headway_tensor interval = dense(ends, HEADWAY_I32, 3, 1, QUERIES, 2, 1);
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    p.sequences = SEQUENCES;
    p.query_starts = queries;
    p.key_starts = keys;
    p.row_offsets = offsets;
    p.window_left = 3;
    p.softcap = 1.5f;
    p.mask = &mask;
    p.interval = &interval;
    p.alibi_slopes = slopes;
    p.sinks = sinks;
    attend(&p, &query, &key, &value);
    memcpy(packed, out, sizeof packed);
    memcpy(packed_lse, lse, sizeof packed_lse);
    p.query_starts = p.key_starts = NULL;
    p.sequences = 0;
    for (int b = 0; b < SEQUENCES; b++) {
        int64_t rows = queries[b + 1] - queries[b], n = keys[b + 1] - keys[b], at = queries[b];
        p.row_offsets = offsets + b;
        query = dense(q + at * HEADS * SIZE, HEADWAY_F32, 4, 1, rows, HEADS, SIZE);
        key = dense(k + keys[b] * SIZE, HEADWAY_F32, 4, 1, n, 1, SIZE);
        value = dense(v + keys[b] * SIZE, HEADWAY_F32, 4, 1, n, 1, SIZE);
        interval = dense(ends + 2 * at, HEADWAY_I32, 2, rows, 2, 1, 1);
        mask = (headway_tensor){bias + b * HEADS * LONGEST * LONGEST,
                                HEADWAY_F32,
                                4,
                                {1, HEADS, rows, n},
                                {0, LONGEST * LONGEST, LONGEST, 1}};
        attend(&p, &query, &key, &value);
        expect(packed + at * HEADS * SIZE, out, rows * HEADS * SIZE, 0, "out");
        for (int h = 0; h < HEADS; h++)
            expect(packed_lse + h * QUERIES + at, lse + h * rows, rows, 0, "lse");
    }
}

/* ---- leading axes ------------------------------------------------------------------------------
 */

/* Query of ranks 3 to 8 with masks of each rank, against rank 4. */
static void check_leading(void)
{
    enum { BATCH = 6, LENGTH = 3, KEYS = 4 };
    static const int64_t axes[6][6] = {{1}, {6}, {2, 3}, {1, 3, 2}, {3, 1, 1, 2}, {1, 2, 1, 3, 1}};
    float q[BATCH * LENGTH * HEADS * SIZE], k[BATCH * KEYS * SIZE], bias[BATCH * KEYS];
    int32_t ends[BATCH * LENGTH * 2];
    double wanted[BATCH * LENGTH * HEADS * SIZE];
    uint64_t state = check_seed;
    check_fill_normal(&state, q, BATCH * LENGTH * HEADS * SIZE, 1);
    check_fill_normal(&state, k, BATCH * KEYS * SIZE, 1);
    check_fill_normal(&state, bias, BATCH * KEYS, 1);
    for (int i = 0; i < BATCH * LENGTH; i++) {
        ends[2 * i] = i % 2;
        ends[2 * i + 1] = 2 + i % 3;
    }
    for (int outer = 0; outer < 6; outer++) {
        if (!check_case("G leading axes: %d", outer))
            continue;
        const int64_t batch = outer ? BATCH : 1;
        headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
        headway_tensor query = dense(q, HEADWAY_F32, 4, batch, LENGTH, HEADS, SIZE);
        headway_tensor key = dense(k, HEADWAY_F32, 4, batch, KEYS, 1, SIZE);
        headway_tensor mask = dense(bias, HEADWAY_F32, 4, batch, 1, 1, KEYS);
        headway_tensor interval = dense(ends, HEADWAY_I32, 3, batch, LENGTH, 2, 1);
        p.mask = &mask;
        p.interval = &interval;
        attend(&p, &query, &key, &key);
        memcpy(wanted, out, sizeof wanted);
        int64_t shape[4][8] = {{0}};
        for (int n = 0; n < outer; n++)
            shape[0][n] = shape[1][n] = shape[2][n] = shape[3][n] = axes[outer][n];
        memcpy(shape[0] + outer, (int64_t[]){LENGTH, HEADS, SIZE}, 3 * sizeof(int64_t));
        memcpy(shape[1] + outer, (int64_t[]){KEYS, 1, SIZE}, 3 * sizeof(int64_t));
        memcpy(shape[2] + outer, (int64_t[]){1, 1, KEYS}, 3 * sizeof(int64_t));
        memcpy(shape[3] + outer, (int64_t[]){LENGTH, 2}, 2 * sizeof(int64_t));
        query = headway_tensor_dense(q, HEADWAY_F32, outer + 3, shape[0]);
        key = headway_tensor_dense(k, HEADWAY_F32, outer + 3, shape[1]);
        attend(&p, &query, &key, &key);
        expect(out, wanted, batch * LENGTH * HEADS * SIZE, 0, "mask and interval with one B");
        headway_tensor value = dense(k, HEADWAY_F32, 4, batch, KEYS, 1, SIZE);
        attend(&p, &query, &value, &value);
        expect(out, wanted, batch * LENGTH * HEADS * SIZE, 0, "key and value too");
        mask = headway_tensor_dense(bias, HEADWAY_F32, outer + 3, shape[2]);
        interval = headway_tensor_dense(ends, HEADWAY_I32, outer + 2, shape[3]);
        attend(&p, &query, &key, &key);
        expect(out, wanted, batch * LENGTH * HEADS * SIZE, 0, "with the same axes");
        if (outer != 2)
            continue;
        for (int b = 0; b < BATCH; b++) {
            memcpy(bias + b * KEYS, bias + b % 3 * KEYS, KEYS * sizeof(float));
            memcpy(ends + b * LENGTH * 2, ends + b / 3 * 3 * LENGTH * 2, LENGTH * 2 * 4);
        }
        attend(&p, &query, &key, &key);
        memcpy(wanted, out, sizeof wanted);
        mask.shape[0] = interval.shape[1] = 1;
        attend(&p, &query, &key, &key);
        expect(out, wanted, BATCH * LENGTH * HEADS * SIZE, 0, "one of the axes broadcast");
    }
}

/* ---- weights and appended keys -----------------------------------------------------------------
 */

static void check_weights(void)
{
    if (!check_case("weights"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const float q[4] = {1, 2, 0, 5}, k[2] = {0, 1}, scale = 1;
    const double s1 = 0.73105857863000488, s2 = 0.88079707797788243; /* 1 / (1 + e^-x) */
    const double u = ROUNDOFF;
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, 2, 2, 1);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, 2, 1, 1);
    int64_t length = 1;
    p.scale = &scale;
    p.query_lengths = &length;
    attend(&p, &query, &key, &key);
    expect(probs, (double[]){1 - s1, s1, 0, 0, 1 - s2, s2, 0, 0}, 8, 1e-15, "per head");
    expect(mean, (double[]){1 - (s1 + s2) / 2, (s1 + s2) / 2, 0, 0}, 4, 1e-15, "mean");
    const double f1 = expm1(2 * (5 + 4) * u) + 18 * u, f2 = expm1(2 * (10 + 8) * u) + 18 * u;
    const double b1 = f1 * s1 + 0x1p-125, b2 = f2 * s2 + 0x1p-125;
    expect(probs_bound, (double[]){f1 * (1 - s1), b1, 0, 0, f2 * (1 - s2), b2, 0, 0}, 8, 1e-9 * b1,
           "bound");
    const double wanted = (b1 + b2 + 2 * u * (s1 + s2 + b1 + b2)) / 2;
    expect(mean_bound + 1, &wanted, 1, 1e-9 * wanted, "mean's bound");
    CHECK(mean[4] == 77777 && probs[8] == 77777, "wrote beyond the weights");
    const float far[2] = {0, 1e7f};
    key = dense(far, HEADWAY_F32, 4, 1, 2, 1, 1);
    attend(&p, &query, &key, &key);
    CHECK(probs_bound[1] > 1 && probs_bound[1] < 1.001, "no weight is off by more than 1: %g",
          probs_bound[1]);
}

/* Two more keys that no option touches. */
static void check_appended(void)
{
    if (!check_case("appended keys"))
        return;
    double got[2], weights[8], logs[2], query[2] = {0, 0}, key[4] = {9, 9, 9, 9};
    double value[4] = {100, 200, 3, 6};
    const float slope = 1, bias = -INFINITY;
    const int64_t keys = 2, shape = 1;
    headway_tensor mask = headway_tensor_dense((void *)(uintptr_t)&bias, HEADWAY_F32, 1, &shape);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    params.key_lengths = &keys;
    struct problem p = {.batch = 1, .query_length = 2, .key_length = 2, .query_heads = 1};
    p.kv_heads = p.size = p.value_size = 1;
    p.appended = 2;
    p.params = &params;
    reference_finish(&p);
    p.query.data = query;
    p.key.data = key;
    p.value.data = value;
    const struct headway_reference_out results = {.out = got, .lse = logs, .probs = weights};
    params.causal = HEADWAY_CAUSAL_TOP_LEFT;
    CHECK(reference_attend(&p, &results) == 0, "out of memory");
    expect(got, (double[]){109 / 3.0, 309 / 4.0}, 2, 1e-13, "beyond causality");
    expect(weights, (double[]){1 / 3.0, 0, 1 / 3.0, 1 / 3.0, 0.25, 0.25, 0.25, 0.25}, 8, 1e-15,
           "weights");
    params.alibi_slopes = &slope;
    CHECK(reference_attend(&p, &results) == 0, "out of memory");
    expect(logs, (double[]){log(3), log(exp(-1) + 3)}, 2, 1e-15, "beyond ALiBi");
    params.mask = &mask;
    CHECK(reference_attend(&p, &results) == 0, "out of memory");
    expect(got, (double[]){4.5, 4.5}, 2, 1e-15, "beyond the mask");
    params.sinks = &slope;
    CHECK(reference_attend(&p, &results) == 0, "out of memory");
    expect(logs, (double[]){log(2 + exp(1)), log(2 + exp(1))}, 2, 1e-15, "beside a sink");
}

/* ---- bounds ------------------------------------------------------------------------------------
 */

/* e of headway.h, written out for one key. */
static void check_bound_terms(void)
{
    if (!check_case("bounds of the options"))
        return;
    const double u = ROUNDOFF;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const float k[1] = {3}, v[1] = {2}, slope = 0.5f, sink = -7, bias = -4;
    headway_tensor mask = dense(&bias, HEADWAY_F32, 1, 1, 1, 1, 1);
    int64_t offset = -6;
    p.softcap = 2;
    one_row(&p, 1, k, v, 1);
    const double nearest = tanh((3 - 15 * u) / 2), c = 1 - nearest * nearest;
    const double capped = c * 15 * u + 11 * u * t3 + 0x1p-147;
    double e = capped + 4 * u * t3;
    double wanted = (expm1(2 * e) + 17 * u) * 2;
    expect(bound, &wanted, 1, 1e-9 * wanted, "softcap");
    p.alibi_slopes = &slope;
    p.row_offsets = &offset;
    p.mask = &mask;
    one_row(&p, 1, k, v, 1); /* + 3 - 4 */
    e = capped + 4 * u * 3 + 4 * u * (t3 - 1);
    wanted = (expm1(2 * e) + 17 * u) * 2;
    expect(bound, &wanted, 1, 1e-9 * wanted, "softcap, ALiBi, bias");
    p.sinks = &sink;
    one_row(&p, 1, k, v, 1);
    const double share = 1 / (1 + exp(-7 - (t3 - 1)));
    e = fmax(e, 4 * u * 7);
    wanted = (expm1(2 * e) + 26 * u) * 2 * share;
    expect(bound, &wanted, 1, 1e-9 * wanted, "and a sink");
    wanted = e + 26 * u + 2 * u * lse[0];
    expect(lse_bound, &wanted, 1, 1e-9 * wanted, "lse");
    p.softcap = 0.01f;
    one_row(&p, 1, (float[]){1e4f}, v, 1);
    CHECK(bound[0] < 1e-5, "a saturated softcap leaves %g of the product's error", bound[0]);
}

/* A row in f32 as kernels.h says, its tanh and exp as wrong as they may be, both ways. */
enum { ROW_KEYS = 40, ROW_SIZE = 8 };

struct row_case {
    float q[ROW_SIZE], k[ROW_KEYS * ROW_SIZE], v[ROW_KEYS], bias[ROW_KEYS];
    float scale, cap, slope, sink;
    int place;
    uint64_t state;
};

static float off(struct row_case *c, double exact, double ulps)
{
    return (float)(exact * (1 + (check_random(&c->state) & 1 ? ulps : -ulps) * 0x1p-24));
}

static float power(struct row_case *c, float t)
{
    return t == 0 ? 1 : off(c, exp2(2 * (double)t), 2);
}

static float plain_score(struct row_case *c, int j)
{
    const float unit = 0x1.715476p-1f, scale = c->scale * unit, cap = c->cap * unit;
    float s = 0;
    for (int d = 0; d < ROW_SIZE; d++)
        s = fmaf(c->k[j * ROW_SIZE + d], c->q[d] * scale, s);
    if (c->cap > 0)
        s = cap * off(c, tanh((double)(s * (1 / cap))), 4);
    s = fmaf(c->slope * unit, (float)(j - c->place), s);
    return fmaf(c->bias[j], unit, s);
}

static void plain_row(struct row_case *c, float *sum, float weight[ROW_KEYS], float *logarithm)
{
    const float sink = c->sink * 0x1.715476p-1f;
    float s[ROW_KEYS], top = -INFINITY, total = 0;
    *sum = 0;
    for (int j = 0; j < ROW_KEYS; j++) {
        s[j] = plain_score(c, j);
        top = fmaxf(top, s[j]);
    }
    for (int j = 0; j < ROW_KEYS; j++) {
        weight[j] = power(c, s[j] - top);
        total += weight[j];
        *sum = fmaf(weight[j], c->v[j], *sum);
    }
    const float last = fmaxf(top, sink), x = power(c, top - last);
    total = fmaf(total, x, power(c, sink - last));
    *sum = *sum * x / total;
    for (int j = 0; j < ROW_KEYS; j++)
        weight[j] = weight[j] * x / total;
    *logarithm = (float)(((double)last * 2 + log2((double)total)) * log(2));
}

static double worst_of(double worst, const float *got, const double *exact, const double *limit,
                       int count, const char *what)
{
    return fmax(worst, check_bound(got, exact, limit, count, what));
}

static void check_bounds_hold(void)
{
    double worst = 0, narrow = 0;
    for (unsigned n = 0; n < 200; n++) {
        struct row_case c = {.state = check_seed * 1000 + n};
        float sum, weight[ROW_KEYS], logarithm, size = (float)(1 << n % 5);
        headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
        if (!check_case("bounds hold, row %u", n))
            continue;
        check_fill_normal(&c.state, c.q, ROW_SIZE, size);
        check_fill_normal(&c.state, c.k, ROW_KEYS * ROW_SIZE, 1);
        check_fill_normal(&c.state, c.v, ROW_KEYS, 1);
        check_fill_normal(&c.state, c.bias, ROW_KEYS, 2);
        c.scale = 0.37f;
        c.cap = n % 2 ? (float)(1 + n % 7) * 3 : 0;
        c.slope = n % 3 ? 0.3f : 0;
        c.sink = check_normal(&c.state) * 5;
        c.place = (int)(n % 50);
        const int64_t offset = c.place;
        headway_tensor query = dense(c.q, HEADWAY_F32, 4, 1, 1, 1, ROW_SIZE);
        headway_tensor key = dense(c.k, HEADWAY_F32, 4, 1, ROW_KEYS, 1, ROW_SIZE);
        headway_tensor value = dense(c.v, HEADWAY_F32, 4, 1, ROW_KEYS, 1, 1);
        headway_tensor mask = dense(c.bias, HEADWAY_F32, 1, ROW_KEYS, 1, 1, 1);
        p.scale = &c.scale;
        p.softcap = c.cap;
        p.alibi_slopes = n % 3 ? &c.slope : NULL;
        p.row_offsets = &offset;
        p.sinks = &c.sink;
        p.mask = &mask;
        attend(&p, &query, &key, &value);
        plain_row(&c, &sum, weight, &logarithm);
        worst = worst_of(worst, &sum, out, bound, 1, "out");
        worst = worst_of(worst, &logarithm, lse, lse_bound, 1, "lse");
        worst = worst_of(worst, weight, probs, probs_bound, ROW_KEYS, "weight");
        if (n % 5 == 0)
            narrow = fmax(narrow, bound[0]);
    }
    if (check_case("bounds of the options mean something"))
        CHECK(worst < 1 && narrow < 1e-4 && (worst > 0.05 || narrow == 0),
              "largest error in bounds %g, largest bound of small scores %g", worst, narrow);
}

/* An infinite value whose weight f32 may drop: infinity and NaN are both right. */
static void check_vanishing(void)
{
    if (!check_case("E infinite values of small weights"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const float k[3] = {0, -80, -90}, v[3] = {1, INFINITY, INFINITY};
    one_row(&p, 1, k, v, 2);
    CHECK(out[0] == INFINITY && bound[0] < 1e-3, "e^-80: %g, bound %g", out[0], bound[0]);
    one_row(&p, 1, k, v, 3);
    CHECK(out[0] == INFINITY && bound[0] == INFINITY, "e^-90: %g, bound %g", out[0], bound[0]);
    one_row(&p, 1, k + 2, v + 2, 1);
    CHECK(out[0] == INFINITY && bound[0] < 1e-3, "alone: %g, bound %g", out[0], bound[0]);
}

void check_options(void)
{
    check_softcap();
    check_alibi();
    check_half_masks();
    check_window();
    check_interval();
    check_sinks();
    check_packed_by_hand();
    check_packed();
    check_leading();
    check_weights();
    check_appended();
    check_bound_terms();
    check_bounds_hold();
    check_vanishing();
}
