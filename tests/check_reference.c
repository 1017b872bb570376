/* The double reference against answers worked out by hand: it is not trusted alone. */
#include "check_reference.h"

#include <float.h>
#include <math.h>
#include <string.h>

double out[CAPACITY], bound[CAPACITY], lse[CAPACITY], lse_bound[CAPACITY], probs[CAPACITY];
double probs_bound[CAPACITY], mean[CAPACITY], mean_bound[CAPACITY];
static const struct headway_reference_out results = {out,   bound,       lse,  lse_bound,
                                                     probs, probs_bound, mean, mean_bound};

headway_tensor dense(const void *data, headway_dtype dtype, int rank, int64_t a, int64_t b,
                     int64_t c, int64_t d)
{
    const int64_t shape[4] = {a, b, c, d};
    return headway_tensor_dense((void *)(uintptr_t)data, dtype, rank, shape);
}

static void forget(void)
{
    for (int i = 0; i < CAPACITY; i++) {
        out[i] = bound[i] = lse[i] = lse_bound[i] = 77777;
        probs[i] = probs_bound[i] = mean[i] = mean_bound[i] = 77777;
    }
}

void attend(const headway_attention_params *params, const headway_tensor *query,
            const headway_tensor *key, const headway_tensor *value)
{
    forget();
    CHECK(headway_reference_attention(params, query, key, value, &results) == 0, "out of memory");
}

void expect(const double *got, const double *wanted, int64_t count, double tolerance,
            const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        int same = isnan(wanted[i])   ? isnan(got[i])
                   : isinf(wanted[i]) ? got[i] == wanted[i]
                                      : fabs(got[i] - wanted[i]) <= tolerance;
        CHECK(same, "%s[%d]: %.17g, expected %.17g", what, (int)i, got[i], wanted[i]);
    }
}

void uniform(headway_attention_params *params, int64_t lq, int64_t lk, const double *wanted,
             const char *what)
{
    float q[16] = {0}, k[16], v[16];
    for (int j = 0; j < 16; j++) {
        k[j] = 3 - (float)j;
        v[j] = (float)j;
    }
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, lq, 1, 1);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, lk, 1, 1);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 1, lk, 1, 1);
    attend(params, &query, &key, &value);
    expect(out, wanted, lq, 1e-15, what);
}

static void check_causality(void)
{
    if (!check_case("causal"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    uniform(&p, 1, 4, (double[]){1.5}, "none");
    p.causal = HEADWAY_CAUSAL_TOP_LEFT;
    uniform(&p, 1, 4, (double[]){0}, "top-left, one row");
    uniform(&p, 3, 4, (double[]){0, 0.5, 1}, "top-left");
    p.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    uniform(&p, 1, 4, (double[]){1.5}, "bottom-right, one row");
    uniform(&p, 3, 4, (double[]){0.5, 1, 1.5}, "bottom-right");
    uniform(&p, 4, 2, (double[]){0, 0, 0, 0.5}, "bottom-right, more queries than keys");
    expect(lse, (double[]){-INFINITY, -INFINITY, 0, log(2)}, 4, 1e-15, "lse");
    const int64_t lengths[2] = {3, 3};
    p.key_lengths = lengths;
    uniform(&p, 4, 6, (double[]){0, 0, 0.5, 1}, "bottom-right of the key length");
    p.query_lengths = lengths;
    uniform(&p, 4, 6, (double[]){0, 0.5, 1, 0}, "bottom-right of both lengths");
    expect(lse, (double[]){0, log(2), log(3), -INFINITY}, 4, 1e-15, "lse");
    p.query_lengths = p.key_lengths = NULL;
    p.causal = HEADWAY_CAUSAL_OFFSETS;
    int64_t offset = 2;
    p.row_offsets = &offset;
    uniform(&p, 3, 4, (double[]){1, 1.5, 1.5}, "offset 2");
    offset = -2;
    uniform(&p, 4, 4, (double[]){0, 0, 0, 0.5}, "offset -2");
    offset = INT64_MAX;
    uniform(&p, 2, 4, (double[]){1.5, 1.5}, "the largest offset");
    offset = INT64_MIN;
    uniform(&p, 2, 4, (double[]){0, 0}, "the smallest offset");
    expect(lse, (double[]){-INFINITY, -INFINITY}, 2, 0, "lse");
}

static void check_masks(void)
{
    if (!check_case("masks"))
        return;
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const unsigned char keys[4] = {1, 0, 2, 255}; /* any non-zero byte is true */
    headway_tensor mask = dense(keys, HEADWAY_BOOL, 1, 4, 1, 1, 1);
    p.mask = &mask;
    uniform(&p, 2, 4, (double[]){5 / 3.0, 5 / 3.0}, "rank 1 bool");
    const unsigned char rows[8] = {1, 1, 0, 0, 0, 0, 0, 1};
    mask = dense(rows, HEADWAY_BOOL, 2, 2, 4, 1, 1);
    uniform(&p, 2, 4, (double[]){0.5, 3}, "rank 2 bool");
    mask = (headway_tensor){(void *)(uintptr_t)rows, HEADWAY_BOOL, 2, {4, 2}, {1, 4}};
    uniform(&p, 4, 2, (double[]){0, 0, 0, 1}, "rank 2 bool, transposed by strides");
    mask = (headway_tensor){(void *)(uintptr_t)(rows + 7), HEADWAY_BOOL, 2, {2, 4}, {-4, -1}};
    uniform(&p, 2, 4, (double[]){0, 2.5}, "rank 2 bool, negative strides");
    mask = dense(rows, HEADWAY_BOOL, 4, 1, 1, 1, 4);
    uniform(&p, 2, 4, (double[]){0.5, 0.5}, "rank 4 bool, one row for all");
    mask = dense(rows + 3, HEADWAY_BOOL, 2, 2, 1, 1, 1);
    uniform(&p, 2, 4, (double[]){0, 0}, "one bool for a row");
    const float excluded[4] = {0, -INFINITY, 0, 0};
    mask = dense(excluded, HEADWAY_F32, 1, 4, 1, 1, 1);
    uniform(&p, 2, 4, (double[]){5 / 3.0, 5 / 3.0}, "rank 1 float, -inf");
    const float bias[2] = {0, 5};
    const double w = 0.99330714907571527; /* e^5 / (1 + e^5) */
    mask = dense(bias, HEADWAY_F32, 2, 1, 2, 1, 1);
    uniform(&p, 2, 2, (double[]){w, w}, "bias of 5");
    expect(probs, (double[]){1 - w, w, 1 - w, w}, 4, 1e-15, "probs");
    expect(lse, (double[]){5.0067153484891179, 5.0067153484891179}, 2, 1e-14, "lse");
    mask = dense(bias, HEADWAY_F32, 4, 1, 1, 2, 1);
    uniform(&p, 2, 2, (double[]){0.5, 0.5}, "bias constant along keys");
    expect(lse, (double[]){log(2), 5 + log(2)}, 2, 1e-14, "lse");
    p.causal = HEADWAY_CAUSAL_TOP_LEFT;
    mask = dense(bias, HEADWAY_F32, 1, 2, 1, 1, 1);
    uniform(&p, 2, 2, (double[]){0, w}, "bias and causal");
}

/* Each of (B, Hq, Lq, Lk) broadcast or not: the answer is that of the mask written out. */
static void check_mask_broadcast(void)
{
    if (!check_case("masks broadcast"))
        return;
    const int64_t full[4] = {2, 4, 3, 5};
    float q[2 * 3 * 4 * 2], k[2 * 5 * 2], v[2 * 5 * 3], small[120], large[120];
    static double first[2 * 3 * 4 * 3];
    uint64_t state = check_seed;
    check_fill_normal(&state, q, 48, 1);
    check_fill_normal(&state, k, 20, 1);
    check_fill_normal(&state, v, 30, 1);
    check_fill_normal(&state, small, 120, 1);
    headway_tensor query = dense(q, HEADWAY_F32, 4, 2, 3, 4, 2);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 2, 5, 1, 2);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 2, 5, 1, 3);
    for (int broadcast = 0; broadcast < 16; broadcast++) {
        int64_t s[4];
        for (int axis = 0; axis < 4; axis++)
            s[axis] = broadcast >> axis & 1 ? 1 : full[axis];
        headway_tensor mask = dense(small, HEADWAY_F32, 4, s[0], s[1], s[2], s[3]);
        for (int64_t i = 0; i < 120; i++) {
            const int64_t at[4] = {i / 60, i / 15 % 4, i / 5 % 3, i % 5};
            int64_t from = 0;
            for (int axis = 0; axis < 4; axis++)
                from = from * s[axis] + at[axis] % s[axis];
            large[i] = small[from];
        }
        headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
        p.mask = &mask;
        attend(&p, &query, &key, &value);
        memcpy(first, out, sizeof first);
        mask = dense(large, HEADWAY_F32, 4, 2, 4, 3, 5);
        attend(&p, &query, &key, &value);
        expect(first, out, 72, 0, "out");
        double largest = 0;
        for (int i = 0; i < 72; i++)
            largest = fmax(largest, fabs(first[i]));
        CHECK(largest > 0.1 && largest < 5, "results look empty: %g", largest);
    }
}

static void check_scale(void)
{
    if (!check_case("scale"))
        return;
    const float q[4] = {1, 1, 1, 1}, k[8] = {1, 1, 1, 1, 0, 0, 0, 0}, v[2] = {1, 0};
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, 1, 1, 4);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, 2, 1, 4);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 1, 2, 1, 1);
    attend(NULL, &query, &key, &value); /* 4 / sqrt(4) = 2 against 0 */
    expect(out, (double[]){0.88079707797788243}, 1, 1e-15, "default");
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    float scale = -0.5f;
    p.scale = &scale;
    attend(&p, &query, &key, &value); /* -2 against 0 */
    expect(out, (double[]){0.11920292202211755}, 1, 1e-15, "negative");
    expect(lse, (double[]){0.12692801104297250}, 1, 1e-15, "lse");
    scale = 0;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){0.5}, 1, 0, "zero");
}

static void check_heads(void)
{
    static const int64_t shapes[4][2] = {{6, 2}, {12, 2}, {15, 5}, {28, 4}};
    for (int n = 0; n < 4; n++) {
        int64_t hq = shapes[n][0], hkv = shapes[n][1];
        if (!check_case("heads %d of %d", (int)hq, (int)hkv))
            continue;
        float q[28 * 2], k[2 * 5 * 2], v[2 * 5];
        double wanted[28];
        uint64_t state = check_seed + (uint64_t)n;
        check_fill_normal(&state, q, 56, 1);
        check_fill_normal(&state, k, 20, 1);
        for (int64_t j = 0; j < 2 * hkv; j++)
            v[j] = (float)(j % hkv);
        for (int64_t h = 0; h < hq; h++)
            wanted[h] = (double)(h / (hq / hkv));
        headway_tensor query = dense(q, HEADWAY_F32, 4, 1, 1, hq, 2);
        headway_tensor key = dense(k, HEADWAY_F32, 4, 1, 2, hkv, 2);
        headway_tensor value = dense(v, HEADWAY_F32, 4, 1, 2, hkv, 1);
        attend(NULL, &query, &key, &value);
        expect(out, wanted, hq, 1e-14, "out");
    }
}

/* Two heads, D = 1, Dv = 2, out of a packed (B, L, 4 * ...) array and with reversed keys. */
static void check_strides(void)
{
    if (!check_case("strides"))
        return;
    const float q[6] = {0, 9, 0, 9, 0, 9};
    const float k[2] = {1, 2};
    const float v[8] = {1, 9, 2, 9, 3, 9, 4, 9};
    headway_tensor query = {(void *)(uintptr_t)q, HEADWAY_F32, 4, {1, 3, 2, 1}, {9, 2, 0, 5}};
    headway_tensor key = {(void *)(uintptr_t)k, HEADWAY_F32, 4, {1, 2, 2, 1}, {0, 1, 0, 1}};
    headway_tensor value = {
        (void *)(uintptr_t)(v + 4), HEADWAY_F32, 4, {1, 2, 2, 2}, {0, -4, 0, 2}};
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    p.causal = HEADWAY_CAUSAL_TOP_LEFT;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){3, 4, 3, 4, 2, 3, 2, 3, 2, 3, 2, 3}, 12, 1e-15, "out");
    CHECK(out[12] == 77777, "wrote beyond the output");
}

static void check_extremes(void)
{
    if (!check_case("extremes"))
        return;
    const float low[5] = {-FLT_MAX, -INFINITY, -INFINITY, -FLT_MAX, -FLT_MAX};
    const float q[2] = {10, 10}, k[5] = {-20, 1, 2, -7, 3}, v[5] = {0, 100, 200, 3, 6};
    headway_tensor mask = dense(low, HEADWAY_F32, 1, 5, 1, 1, 1);
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, 1, 1, 1);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, 5, 1, 1);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 1, 5, 1, 1);
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    p.mask = &mask;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){3}, 1, 1e-15, "-FLT_MAX is a number");
    CHECK(bound[0] >= 6 && bound[0] < 6.01, "bound %g is not the spread of the values", bound[0]);
    expect(probs, (double[]){1 / 3.0, 0, 0, 1 / 3.0, 1 / 3.0}, 5, 1e-15, "probs");
    const float sum[5] = {-FLT_MAX, -FLT_MAX, 0, -FLT_MAX, -FLT_MAX};
    const float steep[5] = {-1e37f, 1e37f, 0, -1e36f, 1e36f};
    mask = dense(sum, HEADWAY_F32, 1, 5, 1, 1, 1);
    key = dense(steep, HEADWAY_F32, 4, 1, 5, 1, 1);
    attend(&p, &query, &key, &value);
    expect(out, (double[]){200}, 1, 0, "only the unmasked key");
    p.mask = NULL;
    const float far[3] = {-2000, -2000, -3000};
    key = dense(far, HEADWAY_F32, 4, 1, 3, 1, 1);
    attend(&p, &query, &key, &value);
    expect(out, (double[]){50}, 1, 1e-13, "scores of -20000");
    expect(lse, (double[]){-20000 + log(2)}, 1, 1e-11, "lse");
    const float big[7] = {133120, 133120, 133120, 133120, 133120, 133120, 133120};
    key = dense(big, HEADWAY_F32, 4, 1, 7, 1, 1);
    value = key;
    attend(NULL, &key, &key, &value);
    for (int i = 0; i < 7; i++)
        CHECK(fabs(out[i] - 133120) < 1e-9, "constant values give %.17g", out[i]);
}

static void check_nan(void)
{
    if (!check_case("nan and infinities"))
        return;
    const float q[2] = {1, NAN}, k[3] = {0, 0, NAN};
    float v[6] = {1, 2, 3, 4, NAN, INFINITY};
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, 2, 1, 1);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, 3, 1, 1);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 1, 3, 1, 2);
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    int64_t length = 2;
    p.key_lengths = &length;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){2, 3, NAN, NAN}, 4, 1e-15, "NaN in a query row; excluded NaN");
    expect(lse, (double[]){log(2), NAN}, 2, 1e-15, "lse");
    length = 0;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){0, 0, 0, 0}, 4, 0, "empty rows, whatever the query holds");
    expect(lse, (double[]){-INFINITY, -INFINITY}, 2, 0, "lse");
    expect(probs, (double[]){0, 0, 0, 0, 0, 0}, 6, 0, "probs");
    length = 3;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){NAN, NAN, NAN, NAN}, 4, 0, "NaN in a valid key");
    length = 2;
    v[1] = NAN;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){2, NAN}, 2, 1e-15, "NaN in a valid value's column");
    v[1] = INFINITY;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){2, INFINITY}, 2, 1e-15, "infinite value");
    const float steep[3] = {-INFINITY, 0, 0};
    key = dense(steep, HEADWAY_F32, 4, 1, 3, 1, 1);
    attend(&p, &query, &key, &value);
    expect(out, (double[]){3, NAN}, 2, 0, "a weight of 0 times an infinite value");
    v[1] = 2;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){3, 4}, 2, 0, "a score of -inf has weight 0");
    length = 1;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){0, 0}, 2, 0, "only scores of -inf: empty");
    expect(lse, (double[]){-INFINITY}, 1, 0, "lse");
    const float rise[3] = {INFINITY, 0, 0};
    key = dense(rise, HEADWAY_F32, 4, 1, 3, 1, 1);
    attend(&p, &query, &key, &value);
    expect(out, (double[]){NAN, NAN}, 2, 0, "a score of +inf");
    const float bad[3] = {0, NAN, -INFINITY};
    headway_tensor mask = dense(bad, HEADWAY_F32, 1, 3, 1, 1, 1);
    p.mask = &mask;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){NAN, NAN}, 2, 0, "still +inf beside a mask of 0");
    key = dense(k, HEADWAY_F32, 4, 1, 3, 1, 1);
    attend(&p, &query, &key, &value);
    expect(out, (double[]){1, 2}, 2, 0, "a NaN mask beyond the key length");
    length = 3;
    attend(&p, &query, &key, &value);
    expect(out, (double[]){NAN, NAN}, 2, 0, "a NaN mask at a valid key");
}

static void check_sizes(void)
{
    if (!check_case("sizes of zero"))
        return;
    const float one[4] = {1, 2, 3, 4};
    headway_tensor query = dense(one, HEADWAY_F32, 4, 1, 2, 1, 2);
    headway_tensor none = dense(NULL, HEADWAY_F32, 4, 1, 0, 1, 2);
    attend(NULL, &query, &none, &none);
    expect(out, (double[]){0, 0, 0, 0, 77777}, 5, 0, "no keys");
    expect(lse, (double[]){-INFINITY, -INFINITY, 77777}, 3, 0, "lse");
    attend(NULL, &none, &query, &query);
    expect(out, (double[]){77777}, 1, 0, "no queries");
    headway_tensor thin = dense(NULL, HEADWAY_F32, 4, 1, 2, 1, 0);
    attend(NULL, &query, &query, &thin);
    expect(out, (double[]){77777}, 1, 0, "values of no elements");
    none = dense(NULL, HEADWAY_F32, 4, 0, 2, 1, 2);
    attend(NULL, &none, &none, &none);
    expect(out, (double[]){77777}, 1, 0, "no batch");
}

static void check_bounds(void)
{
    if (!check_case("bounds"))
        return;
    /* q = (1, -2); k = (3, 1), (0, 4): dots 1, -8, magnitudes 5, 8; scale 0.5, bias 0, 3. */
    const float q[2] = {1, -2}, k[4] = {3, 1, 0, 4}, v[2] = {2, -4}, bias[2] = {0, 3};
    const double u = ldexp(1, -24), rounding = (2 + 0 + 16) * u;
    headway_tensor query = dense(q, HEADWAY_F32, 4, 1, 1, 1, 2);
    headway_tensor key = dense(k, HEADWAY_F32, 4, 1, 2, 1, 2);
    headway_tensor value = dense(v, HEADWAY_F32, 4, 1, 2, 1, 1);
    headway_tensor mask = dense(bias, HEADWAY_F32, 1, 2, 1, 1, 1);
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    const float scale = 0.5f;
    p.scale = &scale;
    p.mask = &mask;
    attend(&p, &query, &key, &value); /* scores 0.5, -1 */
    double e = fmax(6 * u * 0.5 * 5 + 4 * u * 0.5, 6 * u * 0.5 * 8 + 4 * u * 1);
    double w = 1 / (1 + exp(-1.5)), l = 0.5 + log1p(exp(-1.5));
    expect(out, (double[]){2 * w - 4 * (1 - w)}, 1, 1e-14, "out");
    double wanted = (expm1(2 * e) + rounding) * (2 * w + 4 * (1 - w));
    expect(bound, &wanted, 1, 1e-12 * wanted, "bound");
    expect(lse, &l, 1, 1e-14, "lse");
    wanted = e + rounding + 2 * u * l;
    expect(lse_bound, &wanted, 1, 1e-12 * wanted, "lse bound");
    /* A weight of e^-87.5, which f32 may drop, on a value so large that it shows. */
    const float one = 1, apart[2] = {0, -87.5f}, huge[2] = {0, 3e38f};
    query = dense(&one, HEADWAY_F32, 4, 1, 1, 1, 1);
    key = dense(apart, HEADWAY_F32, 4, 1, 2, 1, 1);
    value = dense(huge, HEADWAY_F32, 4, 1, 2, 1, 1);
    attend(NULL, &query, &key, &value);
    CHECK(out[0] > 2.99 && out[0] < 3 && bound[0] > out[0] && bound[0] < 5 * out[0],
          "a dropped weight: %g, bound %g", out[0], bound[0]);
}

/* ---- the layer ------------------------------------------------------------------------------- */

static void run_layer(const headway_mha_config *config, const headway_mha_weights *weights,
                      const headway_attention_params *params, const headway_tensor *query,
                      const headway_tensor *key, const headway_tensor *value)
{
    forget();
    CHECK(headway_reference_mha(config, weights, params, query, key, value, &results) == 0,
          "out of memory");
}

static void check_layer_by_hand(void)
{
    if (!check_case("layer by hand"))
        return;
    const float x[4] = {1, 1, 3, -1}, zero[4] = {0}, wv[4] = {1, 2, 3, 4}, bv[2] = {10, 20};
    const float wo[6] = {1, -1, 0, 2, 5, 0}, bo[3] = {100, 200, 300};
    headway_tensor input = dense(x, HEADWAY_F32, 3, 1, 2, 2, 1);
    headway_tensor nothing = dense(zero, HEADWAY_F32, 2, 2, 2, 1, 1);
    headway_tensor value = dense(wv, HEADWAY_F32, 2, 2, 2, 1, 1);
    headway_tensor value_bias = dense(bv, HEADWAY_F32, 1, 2, 1, 1, 1);
    headway_tensor last = dense(wo, HEADWAY_F32, 2, 3, 2, 1, 1);
    headway_tensor last_bias = dense(bo, HEADWAY_F32, 1, 3, 1, 1, 1);
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    config.heads = 1;
    w.query = &nothing;
    w.key = w.value = &value;
    w.value_bias = &value_bias;
    w.out = &last;
    w.out_bias = &last_bias;
    /* Values (13, 27) and (11, 25), their mean (12, 26). */
    run_layer(&config, &w, NULL, &input, NULL, NULL);
    expect(out, (double[]){86, 252, 360, 86, 252, 360}, 6, 1e-12, "uniform weights");
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    int64_t keys = 1, queries = 1;
    p.key_lengths = &keys;
    run_layer(&config, &w, &p, &input, NULL, NULL);
    expect(out, (double[]){86, 254, 365, 86, 254, 365}, 6, 1e-12, "one key");
    keys = 0;
    p.query_lengths = &queries;
    run_layer(&config, &w, &p, &input, NULL, NULL);
    expect(out, (double[]){100, 200, 300, 0, 0, 0}, 6, 0, "an empty row gives the bias");
    w.out_bias = NULL;
    run_layer(&config, &w, NULL, &input, NULL, NULL);
    expect(out, (double[]){-14, 52, 60}, 3, 1e-12, "without the output bias");
}

/* Two query heads on one key head, E = 1: q (1, 3), (0, 1); k 3, 0; v 1.5, 0.5. */
static void check_layer_heads(void)
{
    if (!check_case("layer with two heads"))
        return;
    const float x[2] = {1, 0}, wq[2] = {1, 2}, bq[2] = {0, 1}, wk[1] = {3}, wv[1] = {1};
    const float bv[1] = {0.5f}, wo[2] = {1, 10};
    headway_tensor input = dense(x, HEADWAY_F32, 3, 1, 2, 1, 1);
    headway_tensor query = dense(wq, HEADWAY_F32, 2, 2, 1, 1, 1);
    headway_tensor query_bias = dense(bq, HEADWAY_F32, 1, 2, 1, 1, 1);
    headway_tensor key = dense(wk, HEADWAY_F32, 2, 1, 1, 1, 1);
    headway_tensor value = dense(wv, HEADWAY_F32, 2, 1, 1, 1, 1);
    headway_tensor value_bias = dense(bv, HEADWAY_F32, 1, 1, 1, 1, 1);
    headway_tensor last = dense(wo, HEADWAY_F32, 2, 1, 2, 1, 1);
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    config.heads = 2;
    config.kv_heads = 1;
    w.query = &query;
    w.query_bias = &query_bias;
    w.key = &key;
    w.value = &value;
    w.value_bias = &value_bias;
    w.out = &last;
    const double s3 = 0.95257412682243322, s9 = 0.99987660542401369; /* 1 / (1 + e^-x) */
    run_layer(&config, &w, NULL, &input, NULL, NULL);
    expect(out, (double[]){0.5 + s3 + 10 * (0.5 + s9), 1 + 10 * (0.5 + s3)}, 2, 1e-13, "out");
    expect(probs, (double[]){s3, 1 - s3, 0.5, 0.5, s9, 1 - s9, s3, 1 - s3}, 8, 1e-14, "probs");
}

/* A layer with every size different, and the plainest code for it, in double or in f32. */
enum { B = 2, LQ = 3, LK = 5, HQ = 4, HKV = 2, D = 3, DV = 5, E = 6, EK = 7, EV = 8, EO = 9 };

struct layer {
    float query[B * LQ * E], key[B * LK * EK], value[B * LK * EV];
    float wq[HQ * D * E], wk[HKV * D * EK], wv[HKV * DV * EV], wo[EO * HQ * DV];
    float bq[HQ * D], bk[HKV * D], bv[HKV * DV], bo[EO];
};

static double rounded(double x, int single)
{
    return single ? (double)(float)x : x;
}

static void plain_linear(double *to, const double *x, const float *w, const float *bias, int rows,
                         int inputs, int outputs, int single)
{
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < outputs; o++) {
            double sum = 0;
            for (int k = 0; k < inputs; k++)
                sum = rounded(sum + (double)w[o * inputs + k] * x[r * inputs + k], single);
            to[r * outputs + o] = rounded(sum + bias[o], single);
        }
    }
}

static void plain_row(const double *q, const double *k, const double *v, double *to, int single)
{
    double s[LK], top = -INFINITY, sum = 0;
    for (int j = 0; j < LK; j++) {
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot = rounded(dot + q[d] * k[j * HKV * D + d], single);
        s[j] = rounded(dot * rounded(1 / sqrt(D), single), single);
        top = fmax(top, s[j]);
    }
    for (int j = 0; j < LK; j++) {
        s[j] = rounded(exp(rounded(s[j] - top, single)), single);
        sum = rounded(sum + s[j], single);
    }
    for (int c = 0; c < DV; c++) {
        to[c] = 0;
        for (int j = 0; j < LK; j++)
            to[c] = rounded(to[c] + s[j] * v[j * HKV * DV + c], single);
        to[c] = rounded(to[c] / sum, single);
    }
}

static void plain_layer(const struct layer *l, double *to, int single)
{
    static double x[512], q[B * LQ * HQ * D], k[B * LK * HKV * D], v[B * LK * HKV * DV];
    static double heads[B * LQ * HQ * DV];
    for (int i = 0; i < B * LQ * E; i++)
        x[i] = l->query[i];
    plain_linear(q, x, l->wq, l->bq, B * LQ, E, HQ * D, single);
    for (int i = 0; i < B * LK * EK; i++)
        x[i] = l->key[i];
    plain_linear(k, x, l->wk, l->bk, B * LK, EK, HKV * D, single);
    for (int i = 0; i < B * LK * EV; i++)
        x[i] = l->value[i];
    plain_linear(v, x, l->wv, l->bv, B * LK, EV, HKV * DV, single);
    for (int n = 0; n < B * LQ * HQ; n++) {
        int b = n / (LQ * HQ), g = n % HQ / (HQ / HKV);
        plain_row(q + n * D, k + (b * LK * HKV + g) * D, v + (b * LK * HKV + g) * DV,
                  heads + n * DV, single);
    }
    plain_linear(to, heads, l->wo, l->bo, B * LQ, HQ * DV, EO, single);
}

static void fill_layer(struct layer *l, uint64_t seed)
{
    uint64_t state = seed;
    check_fill_normal(&state, l->query, B * LQ * E, 1);
    check_fill_normal(&state, l->key, B * LK * EK, 1);
    check_fill_normal(&state, l->value, B * LK * EV, 1);
    check_fill_normal(&state, l->wq, HQ * D * E, 0.7f);
    check_fill_normal(&state, l->wk, HKV * D * EK, 0.7f);
    check_fill_normal(&state, l->wv, HKV * DV * EV, 0.7f);
    check_fill_normal(&state, l->wo, EO * HQ * DV, 0.7f);
    check_fill_normal(&state, l->bq, HQ * D, 0.5f);
    check_fill_normal(&state, l->bk, HKV * D, 0.5f);
    check_fill_normal(&state, l->bv, HKV * DV, 0.5f);
    check_fill_normal(&state, l->bo, EO, 0.5f);
}

static void run_separate(const struct layer *l)
{
    headway_tensor query = dense(l->query, HEADWAY_F32, 3, B, LQ, E, 1);
    headway_tensor key = dense(l->key, HEADWAY_F32, 3, B, LK, EK, 1);
    headway_tensor value = dense(l->value, HEADWAY_F32, 3, B, LK, EV, 1);
    headway_tensor wq = dense(l->wq, HEADWAY_F32, 3, HQ, D, E, 1);
    headway_tensor wk = dense(l->wk, HEADWAY_F32, 2, HKV * D, EK, 1, 1);
    headway_tensor wv = dense(l->wv, HEADWAY_F32, 2, HKV * DV, EV, 1, 1);
    headway_tensor wo = dense(l->wo, HEADWAY_F32, 2, EO, HQ * DV, 1, 1);
    headway_tensor bq = dense(l->bq, HEADWAY_F32, 1, HQ * D, 1, 1, 1);
    headway_tensor bk = dense(l->bk, HEADWAY_F32, 2, HKV, D, 1, 1);
    headway_tensor bv = dense(l->bv, HEADWAY_F32, 1, HKV * DV, 1, 1, 1);
    headway_tensor bo = dense(l->bo, HEADWAY_F32, 1, EO, 1, 1, 1);
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    config.heads = HQ;
    config.kv_heads = HKV;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    w.query = &wq, w.query_bias = &bq;
    w.key = &wk, w.key_bias = &bk;
    w.value = &wv, w.value_bias = &bv;
    w.out = &wo, w.out_bias = &bo;
    run_layer(&config, &w, NULL, &query, &key, &value);
}

static void check_layer_sizes(void)
{
    static struct layer l;
    static double exact[B * LQ * EO], single[B * LQ * EO];
    double worst = 0, widest = 0;
    for (unsigned n = 0; n < 20; n++) {
        if (!check_case("layer of different sizes, inputs %u", n))
            continue;
        fill_layer(&l, check_seed + n);
        run_separate(&l);
        plain_layer(&l, exact, 0);
        expect(out, exact, B * LQ * EO, 1e-12, "out");
        plain_layer(&l, single, 1);
        for (int i = 0; i < B * LQ * EO; i++) {
            double error = fabs(single[i] - out[i]);
            CHECK(error <= bound[i], "f32 is off by %g, the bound is %g", error, bound[i]);
            worst = fmax(worst, error / bound[i]);
            widest = fmax(widest, bound[i]);
        }
    }
    if (check_case("layer bounds mean something"))
        CHECK(widest < 3e-3 && worst < 1 && (worst > 1e-3 || widest == 0),
              "largest bound %g, largest error in bounds %g", widest, worst);
}

enum { HEADS = 3, SIZE = 2, WIDTH = 4, CHANNELS = HEADS * SIZE, ROWS = 3 * CHANNELS };

/* The fused and the output matrix transposed, and the fused one with each head's parts together. */
static void store(const float *fused, const float *last, float *turned, float *mixed,
                  float *last_turned)
{
    for (int r = 0; r < ROWS; r++) {
        int kind = r / CHANNELS, head = r % CHANNELS / SIZE, d = r % SIZE;
        for (int k = 0; k < WIDTH; k++) {
            turned[k * ROWS + r] = fused[r * WIDTH + k];
            mixed[((head * 3 + kind) * SIZE + d) * WIDTH + k] = fused[r * WIDTH + k];
        }
    }
    for (int r = 0; r < WIDTH; r++) {
        for (int k = 0; k < CHANNELS; k++)
            last_turned[k * WIDTH + r] = last[r * CHANNELS + k];
    }
}

/* Fused, separate, transposed and interleaved storage of one layer. */
static void check_layer_storage(void)
{
    if (!check_case("layer storage"))
        return;
    float fused[ROWS * WIDTH], turned[ROWS * WIDTH], mixed[ROWS * WIDTH], bias[ROWS];
    float last[WIDTH * CHANNELS], last_turned[WIDTH * CHANNELS], x[2 * 3 * WIDTH];
    double first[24];
    uint64_t state = check_seed;
    check_fill_normal(&state, fused, ROWS * WIDTH, 1);
    check_fill_normal(&state, bias, ROWS, 1);
    check_fill_normal(&state, last, WIDTH * CHANNELS, 1);
    check_fill_normal(&state, x, 24, 1);
    store(fused, last, turned, mixed, last_turned);
    headway_tensor input = dense(x, HEADWAY_F32, 3, 2, 3, WIDTH, 1);
    headway_tensor whole = dense(fused, HEADWAY_F32, 2, ROWS, WIDTH, 1, 1);
    headway_tensor whole_bias = dense(bias, HEADWAY_F32, 1, ROWS, 1, 1, 1);
    headway_tensor wo = dense(last, HEADWAY_F32, 2, WIDTH, CHANNELS, 1, 1);
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    config.heads = HEADS;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    w.fused = &whole;
    w.fused_bias = &whole_bias;
    w.out = &wo;
    run_layer(&config, &w, NULL, &input, NULL, NULL);
    memcpy(first, out, sizeof first);
    headway_tensor parts[3], biases[3];
    for (int n = 0; n < 3; n++) {
        parts[n] = dense(fused + n * CHANNELS * WIDTH, HEADWAY_F32, 2, CHANNELS, WIDTH, 1, 1);
        biases[n] = dense(bias + n * CHANNELS, HEADWAY_F32, 1, CHANNELS, 1, 1, 1);
    }
    headway_mha_weights s = HEADWAY_MHA_WEIGHTS_INIT;
    s.query = &parts[0], s.query_bias = &biases[0];
    s.key = &parts[1], s.key_bias = &biases[1];
    s.value = &parts[2], s.value_bias = &biases[2];
    s.out = &wo;
    run_layer(&config, &s, NULL, &input, &input, &input);
    expect(out, first, 24, 0, "separate");
    for (int n = 0; n < 3; n++) {
        parts[n] = (headway_tensor){mixed + n * SIZE * WIDTH,
                                    HEADWAY_F32,
                                    3,
                                    {HEADS, SIZE, WIDTH},
                                    {3 * SIZE * WIDTH, WIDTH, 1}};
    }
    run_layer(&config, &s, NULL, &input, &input, NULL);
    expect(out, first, 24, 0, "interleaved per head");
    config.transposed = 1;
    whole = dense(turned, HEADWAY_F32, 2, WIDTH, ROWS, 1, 1);
    wo = dense(last_turned, HEADWAY_F32, 2, CHANNELS, WIDTH, 1, 1);
    run_layer(&config, &w, NULL, &input, NULL, NULL);
    expect(out, first, 24, 0, "transposed");
    for (int n = 0; n < 3; n++) {
        parts[n] = (headway_tensor){
            turned + n * CHANNELS, HEADWAY_F32, 3, {WIDTH, HEADS, SIZE}, {ROWS, SIZE, 1}};
    }
    run_layer(&config, &s, NULL, &input, NULL, NULL);
    expect(out, first, 24, 0, "transposed parts");
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    check_causality();
    check_masks();
    check_mask_broadcast();
    check_scale();
    check_heads();
    check_strides();
    check_extremes();
    check_nan();
    check_sizes();
    check_bounds();
    check_options();
    check_layer_by_hand();
    check_layer_heads();
    check_layer_sizes();
    check_layer_storage();
    return check_end();
}
