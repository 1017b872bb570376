#include "check_compat.h"

#include <stdlib.h>

/* ---- FlashAttention 2 --------------------------------------------------------------------------
 */

static int fa_in_window(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return i + lk - lq - 2 <= j && j <= i + lk - lq + 1;
}

static void fa_causal(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    p.sees = bottom_right;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    for (int n = 0; n < 2; n++) {
        problem(n ? 3 : 7, n ? 8 : 4);
        peer_answer(&p);
        our_answer(params);
        agree("causal");
    }
}

static void fa_window(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(4, 9);
    const int64_t offsets[B] = {lk - lq, lk - lq};
    p.sees = fa_in_window;
    peer_answer(&p);
    params.row_offsets = offsets;
    params.window_left = 2;
    params.window_right = 1;
    our_answer(params);
    agree("window_size=(2, 1), counted from the bottom right");
    params.row_offsets = NULL;
    our_answer(params);
    differ("without offsets it counts from the top left");
}

/* Of the packed rows; the batch is one of two sequences with as many rows each. */
static void fa_varlen(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(4, 6);
    const int64_t starts[B + 1] = {0, lq, 2 * lq}, key_starts[B + 1] = {0, lk, 2 * lk};
    p.sees = bottom_right;
    peer_answer(&p);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.sequences = B;
    params.query_starts = starts;
    params.key_starts = key_starts;
    our_answer(params);
    agree("cu_seqlens_q, cu_seqlens_k");
}

static const float slopes[HQ] = {0.5f, 0.25f, 0.125f, 0.0625f};

static double fa_bias(double s, int b, int h, int i, int j)
{
    (void)b;
    return s - (double)slopes[h] * abs(i + lk - lq - j);
}

static void fa_alibi(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(4, 7);
    p.sees = bottom_right;
    p.score = fa_bias;
    peer_answer(&p);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.alibi_slopes = slopes;
    our_answer(params);
    agree_weights("alibi_slopes, causal");
    p.sees = NULL;
    peer_answer(&p);
    params.causal = HEADWAY_CAUSAL_NONE;
    const int64_t offsets[B] = {lk - lq, lk - lq};
    params.row_offsets = offsets;
    our_answer(params);
    differ("the distance's absolute value there, its sign here, when keys to the right are seen");
    for (int n = 0; n < B * HQ * lq * lk; n++)
        mask_float[n] = -slopes[n / lk / lq % HQ] * (float)abs(n / lk % lq + lk - lq - n % lk);
    our_answer(with_mask(mask_float, HEADWAY_F32));
    agree_weights("as a float mask");
}

static double fa_cap(double s, int b, int h, int i, int j)
{
    (void)b, (void)h, (void)i, (void)j;
    return 1.5 * tanh(s / 1.5);
}

static void fa_softcap(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(4, 7);
    p.score = fa_cap;
    peer_answer(&p);
    params.softcap = 1.5f;
    our_answer(params);
    agree_weights("softcap");
}

static void fa_empty(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(6, 3);
    p.sees = bottom_right;
    p.empty_lse = INFINITY;
    peer_answer(&p);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    our_answer(params);
    agree_on(ours.out, theirs.out, B * lq * HQ * D, "a row that sees nothing is 0");
    for (int n = 0; n < B * HQ * lq; n++)
        CHECK(n % lq >= lq - lk ? !apart(ours.lse[n], theirs.lse[n])
                                : theirs.lse[n] == INFINITY && ours.lse[n] == -INFINITY,
              "natural logarithm; of an empty row +inf there, -inf here");
}

static const int64_t valid_keys[B] = {7, 2};

/* ---- ONNX Runtime ------------------------------------------------------------------------------
 */

/* key_padding_mask: 1 keeps. Its mask_filter_value -10000 is a number, so a row of padding alone is
 * the mean that the scores make: batch 1, where it cancels. */
static double filled(double s, int b, int h, int i, int j)
{
    return b == 0 && !bool_attends(b, h, i, j) ? s - 10000 : s;
}

static void ort_padding(void)
{
    problem(3, 6);
    for (int n = 0; n < B * HQ * lq * lk; n++)
        mask_bool[n] = n / lk / lq / HQ == 0 && n % lk < 4;
    struct peer p = peer_plain();
    p.score = filled;
    peer_answer(&p);
    for (int n = 0; n < B * HQ * lq * lk; n++)
        mask_float[n] = mask_bool[n] ? 0 : -10000;
    our_answer(with_mask(mask_float, HEADWAY_F32));
    for (int n = 0; n < HQ * lq * D; n++)
        CHECK(!apart(ours.out[n], theirs.out[n]), "-10000 beside keys that are kept");
    for (int n = HQ * lq * D; n < B * HQ * lq * D; n++)
        CHECK(fabs(ours.out[n] - theirs.out[n]) < 2e-2, "-10000 costs the scores their digits");
    our_answer(with_mask(mask_bool, HEADWAY_BOOL));
    differ("a bool mask excludes: a row of padding is 0");
}

static void ort_bias(void)
{
    problem(4, 5);
    draw_masks();
    for (int n = 0; n < B * HQ * lq * lk; n++)
        mask_float[n] = mask_float[n % (lq * lk)] == -INFINITY ? 0 : mask_float[n % (lq * lk)];
    struct peer p = peer_plain();
    p.score = add_float;
    peer_answer(&p);
    headway_attention_params params = with_mask(mask_float, HEADWAY_F32);
    mask = tensor(mask_float, HEADWAY_F32, 4, (int[]){1, 1, lq, lk});
    params.mask = &mask;
    our_answer(params);
    agree_weights("attention_bias, broadcast");
}

static int gqa_window(int b, int h, int i, int j)
{
    const int place = i + lk - lq;
    (void)b, (void)h;
    return j <= place && j > place - 3;
}

static void ort_window(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(4, 9);
    p.sees = gqa_window;
    peer_answer(&p);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.window_left = 3 - 1;
    our_answer(params);
    agree_weights("local_window_size 3 keeps three keys");
    params.window_left = 3;
    our_answer(params);
    differ("ours counts the keys beside its own");
}

static int gqa_lengths(int b, int h, int i, int j)
{
    const int total = (int)valid_keys[b];
    (void)h;
    return j < total && j <= i + total - lq;
}

/* seqlens_k holds each total length less one. */
static void ort_lengths(void)
{
    const int seqlens_k[B] = {6, 1};
    int64_t lengths[B];
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(2, 9);
    p.sees = gqa_lengths;
    peer_answer(&p);
    for (int b = 0; b < B; b++)
        lengths[b] = seqlens_k[b] + 1;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.key_lengths = lengths;
    our_answer(params);
    agree_weights("seqlens_k + 1");
}

static const float sinks[HQ] = {0.5f, -1, 2, 0};

static double given_sink(int h)
{
    return (double)sinks[h];
}

static double zero_sink(int h)
{
    (void)h;
    return 0;
}

static void ort_sink(void)
{
    static const float zeros[HQ] = {0};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(3, 6);
    p.sink = given_sink;
    peer_answer(&p);
    params.sinks = sinks;
    our_answer(params);
    agree_weights("head_sink");
    p.sink = zero_sink;
    peer_answer(&p);
    params.sinks = zeros;
    our_answer(params);
    agree_weights("smooth_softmax is a sink of 0");
}

/* ---- ggml --------------------------------------------------------------------------------------
 */

/* Of a small number of quarters, exactly. */
static uint16_t half_of(int quarters)
{
    if (quarters == 0)
        return 0;
    const unsigned sign = quarters < 0 ? 0x8000 : 0;
    unsigned m = (unsigned)abs(quarters);
    int exponent = 13; /* of a quarter */
    for (; m >> (exponent - 12) != 0; exponent++)
        continue;
    return (uint16_t)(sign | (unsigned)exponent << 10 | ((m << (10 + 13 - exponent)) & 0x3ff));
}

static uint16_t mask_half[B * HQ * MOST * MOST];

static void ggml_mask(void)
{
    problem(4, 6);
    for (int n = 0; n < B * HQ * lq * lk; n++) {
        const int quarters = (int)(check_random(&random_state) % 40) - 20;
        mask_bool[n] = n % 5 != 3 && n / lk % lq != 2;
        mask_float[n] = mask_bool[n] ? (float)quarters / 4 : -INFINITY;
        mask_half[n] = mask_bool[n] ? half_of(quarters) : 0xfc00;
    }
    struct peer p = peer_plain();
    p.sees = bool_attends;
    p.score = add_float;
    peer_answer(&p);
    our_answer(with_mask(mask_half, HEADWAY_F16));
    agree_weights("an F16 mask is added, -inf excludes, an empty row is 0");
}

/* ggml.h: max_bias 8; the mask holds -|distance|. */
static double ggml_bias(double s, int b, int h, int i, int j)
{
    const int n = 1 << (int)floor(log2(HQ));
    const double m0 = pow(2, -8.0 / n), m1 = pow(2, -4.0 / n);
    const double slope = h < n ? pow(m0, h + 1) : pow(m1, 2 * (h - n) + 1);
    (void)b;
    return s + slope * -abs(i - j);
}

static void ggml_alibi(void)
{
    float usual[HQ];
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(6, 6);
    p.sees = top_left;
    p.score = ggml_bias;
    peer_answer(&p);
    CHECK(headway_alibi_slopes(HQ, usual) == HEADWAY_OK, "no slopes");
    params.causal = HEADWAY_CAUSAL_TOP_LEFT;
    params.alibi_slopes = usual;
    our_answer(params);
    agree_weights("max_bias 8 and a causal mask of distances");
    float many[12];
    CHECK(headway_alibi_slopes(12, many) == HEADWAY_OK, "no slopes");
    for (int h = 0; h < 12; h++) {
        const double slope = h < 8 ? pow(2, -(h + 1)) : pow(pow(2, -4.0 / 8), 2 * (h - 8) + 1);
        CHECK(!apart((double)many[h], slope), "slope %d of 12", h);
    }
}

static double ggml_cap(double s, int b, int h, int i, int j)
{
    /* The scale is divided by the cap first. */
    return 3 * tanh(s / 3) + (double)mask_float[at4(b, h, i, j)];
}

static void ggml_softcap(void)
{
    problem(4, 6);
    draw_masks();
    struct peer p = peer_plain();
    p.sees = bool_attends;
    p.score = ggml_cap;
    peer_answer(&p);
    headway_attention_params params = with_mask(mask_float, HEADWAY_F32);
    params.softcap = 3;
    our_answer(params);
    agree_weights("logit_softcap, then the mask");
}

static void ggml_sinks(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(4, 6);
    p.sink = given_sink;
    p.sees = top_left;
    peer_answer(&p);
    params.sinks = sinks;
    params.causal = HEADWAY_CAUSAL_TOP_LEFT;
    our_answer(params);
    agree_weights("flash_attn_ext_add_sinks");
}

const struct test runtime_tests[] = {
    {"fa-causal", fa_causal},     {"fa-window", fa_window},       {"fa-varlen", fa_varlen},
    {"fa-alibi", fa_alibi},       {"fa-softcap", fa_softcap},     {"fa-empty", fa_empty},
    {"ort-padding", ort_padding}, {"ort-bias", ort_bias},         {"ort-window", ort_window},
    {"ort-lengths", ort_lengths}, {"ort-sink", ort_sink},         {"ggml-mask", ggml_mask},
    {"ggml-alibi", ggml_alibi},   {"ggml-softcap", ggml_softcap}, {"ggml-sinks", ggml_sinks}};
const int runtime_test_count = (int)(sizeof runtime_tests / sizeof *runtime_tests);
