/* Each line of the README's table "In the words of others": what a peer's documentation says, as a
 * plain loop, against the settings of ours that the line names, on every row that runs here. */
#include "check_compat.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "cpu/kernels.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

float query[B * MOST * HQ * D], key[B * MOST * HKV * D], value[B * MOST * HKV * D];
int lq, lk;
struct attended theirs, ours;
const headway_engine *engine;
uint64_t random_state;

void problem(int queries, int keys)
{
    lq = queries;
    lk = keys;
    check_fill_normal(&random_state, query, B * lq * HQ * D, 1.5f);
    check_fill_normal(&random_state, key, B * lk * HKV * D, 1);
    check_fill_normal(&random_state, value, B * lk * HKV * D, 1);
}

/* ---- theirs ----------------------------------------------------------------------------------
 */

struct peer peer_plain(void)
{
    const struct peer p = {1 / sqrt(D), NULL, NULL, NULL, 0, -INFINITY};
    return p;
}

static double dot_of(int b, int h, int i, int j)
{
    double sum = 0;
    for (int d = 0; d < D; d++)
        sum += (double)query[((b * lq + i) * HQ + h) * D + d] *
               (double)key[((b * lk + j) * HKV + h / (HQ / HKV)) * D + d];
    return sum;
}

static void peer_row(const struct peer *p, int b, int h, int i)
{
    double weight[MOST] = {0}, sum = p->sink ? exp(p->sink(h)) : 0;
    double *out = theirs.out + ((b * lq + i) * HQ + h) * D;
    int any = 0;
    for (int j = 0; j < lk; j++) {
        if (p->sees && !p->sees(b, h, i, j))
            continue;
        const double s = p->scale * dot_of(b, h, i, j);
        weight[j] = exp(p->score ? p->score(s, b, h, i, j) : s);
        sum += weight[j];
        any = 1;
    }
    for (int d = 0; d < D; d++) {
        out[d] = any ? 0 : p->empty;
        for (int j = 0; any && j < lk; j++)
            if (weight[j] > 0)
                out[d] +=
                    weight[j] / sum * (double)value[((b * lk + j) * HKV + h / (HQ / HKV)) * D + d];
    }
    for (int j = 0; j < lk; j++)
        theirs.weights[((b * HQ + h) * lq + i) * lk + j] = any ? weight[j] / sum : p->empty;
    theirs.lse[(b * HQ + h) * lq + i] = any || p->sink ? log(sum) : p->empty_lse;
}

void peer_answer(const struct peer *p)
{
    for (int b = 0; b < B; b++)
        for (int h = 0; h < HQ; h++)
            for (int i = 0; i < lq; i++)
                peer_row(p, b, h, i);
}

/* ---- ours ------------------------------------------------------------------------------------
 */

headway_tensor tensor(void *data, headway_dtype dtype, int rank, const int *shape)
{
    int64_t extents[HEADWAY_MAX_RANK];
    for (int i = 0; i < rank; i++)
        extents[i] = shape[i];
    return headway_tensor_dense(data, dtype, rank, extents);
}

static void doubles(double *to, const float *from, int count)
{
    for (int n = 0; n < count; n++)
        to[n] = (double)from[n];
}

/* Packed sequences have a batch of 1, and no weights. */
void our_answer(headway_attention_params params)
{
    static float out[B * MOST * HQ * D], lse[B * HQ * MOST], weights[B * HQ * MOST * MOST];
    const int batch = params.query_starts ? 1 : B, rows = B / batch * lq, keys = B / batch * lk;
    const headway_tensor q = tensor(query, HEADWAY_F32, 4, (int[]){batch, rows, HQ, D}),
                         k = tensor(key, HEADWAY_F32, 4, (int[]){batch, keys, HKV, D}),
                         v = tensor(value, HEADWAY_F32, 4, (int[]){batch, keys, HKV, D}),
                         o = tensor(out, HEADWAY_F32, 4, (int[]){batch, rows, HQ, D}),
                         l = tensor(lse, HEADWAY_F32, 3, (int[]){batch, HQ, rows}),
                         w = tensor(weights, HEADWAY_F32, 4, (int[]){B, HQ, lq, lk});
    size_t bytes = 0;
    char text[300];
    params.lse = &l;
    params.weights = params.query_starts ? NULL : &w;
    headway_status status = headway_attention_workspace(engine, &params, &q, &k, &v, &bytes);
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes + 64) / 64 * 64);
    if (status == HEADWAY_OK)
        status = headway_attention(engine, &params, &q, &k, &v, &o, workspace, bytes);
    free(workspace);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s", headway_status_text(status), text);
    doubles(ours.out, out, B * lq * HQ * D);
    doubles(ours.weights, weights, B * HQ * lq * lk);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < HQ; h++)
            for (int i = 0; i < lq; i++)
                ours.lse[(b * HQ + h) * lq + i] =
                    (double)lse[batch == 1 ? (h * B + b) * lq + i : (b * HQ + h) * lq + i];
}

/* ---- comparison ------------------------------------------------------------------------------
 */

static int apart(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    return !(fabs(a - b) <= 1e-5 * (1 + fabs(b)));
}

void agree_on(const double *a, const double *b, int count, const char *what)
{
    for (int n = 0; n < count; n++)
        if (apart(a[n], b[n])) {
            CHECK(0, "%s: element %d is %.9g, theirs %.9g", what, n, a[n], b[n]);
            return;
        }
}

void agree(const char *what)
{
    char name[100];
    agree_on(ours.out, theirs.out, B * lq * HQ * D, what);
    snprintf(name, sizeof name, "%s: lse", what);
    agree_on(ours.lse, theirs.lse, B * HQ * lq, name);
}

static void agree_weights(const char *what)
{
    agree(what);
    agree_on(ours.weights, theirs.weights, B * HQ * lq * lk, what);
}

void differ(const char *what)
{
    int different = 0;
    for (int n = 0; n < B * lq * HQ * D; n++)
        different |= apart(ours.out[n], theirs.out[n]);
    CHECK(different, "%s: no difference, so the test shows nothing", what);
}

/* ---- masks that several tests use --------------------------------------------------------------
 */

static unsigned char mask_bool[B * HQ * MOST * MOST];
static float mask_float[B * HQ * MOST * MOST];
static headway_tensor mask;

static int at4(int b, int h, int i, int j)
{
    return ((b * HQ + h) * lq + i) * lk + j;
}

/* Full masks of random content; row 1 of every head excludes all. */
static void draw_masks(void)
{
    for (int n = 0; n < B * HQ * lq * lk; n++) {
        mask_bool[n] = check_random(&random_state) % 3 != 0 && n / lk % lq != 1;
        mask_float[n] = mask_bool[n] ? check_normal(&random_state) : -INFINITY;
    }
}

static headway_attention_params with_mask(void *data, headway_dtype dtype)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    mask = tensor(data, dtype, 4, (int[]){B, HQ, lq, lk});
    params.mask = &mask;
    return params;
}

static int bool_attends(int b, int h, int i, int j)
{
    return mask_bool[at4(b, h, i, j)] != 0;
}

static double add_float(double s, int b, int h, int i, int j)
{
    return s + (double)mask_float[at4(b, h, i, j)];
}

static int top_left(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return j <= i;
}

static int bottom_right(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return j <= i + lk - lq;
}

/* ---- PyTorch scaled_dot_product_attention ------------------------------------------------------
 */

static void sdpa_bool(void)
{
    problem(5, 7);
    draw_masks();
    struct peer p = peer_plain();
    p.sees = bool_attends;
    peer_answer(&p);
    our_answer(with_mask(mask_bool, HEADWAY_BOOL));
    agree_weights("True attends; rows that see nothing are 0");
}

static void sdpa_float(void)
{
    problem(5, 7);
    draw_masks();
    struct peer p = peer_plain();
    p.sees = bool_attends;
    p.score = add_float;
    peer_answer(&p);
    our_answer(with_mask(mask_float, HEADWAY_F32));
    agree_weights("added after the scale");
}

static void sdpa_causal(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    for (int n = 0; n < 3; n++) {
        problem((int[]){5, 3, 6}[n], (int[]){5, 8, 4}[n]);
        p.sees = top_left;
        peer_answer(&p);
        params.causal = HEADWAY_CAUSAL_TOP_LEFT;
        our_answer(params);
        agree("is_causal");
        p.sees = bottom_right;
        peer_answer(&p);
        params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        our_answer(params);
        agree("causal_lower_right");
    }
}

static void sdpa_scale(void)
{
    const float scales[] = {0.3f, 0, -0.4f};
    for (int n = 0; n < COUNT(scales); n++) {
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        struct peer p = peer_plain();
        problem(4, 6);
        p.scale = (double)scales[n];
        params.scale = &scales[n];
        peer_answer(&p);
        our_answer(params);
        agree("scale");
    }
}

/* peer_row() maps heads as enable_gqa does: query head h uses h / (Hq / Hkv). */
static void sdpa_gqa(void)
{
    const headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    const struct peer p = peer_plain();
    problem(4, 6);
    peer_answer(&p);
    our_answer(params);
    agree_weights("enable_gqa");
}

static int never(int b, int h, int i, int j)
{
    (void)b, (void)h, (void)i, (void)j;
    return 0;
}

static void sdpa_empty(void)
{
    problem(3, 4);
    memset(mask_bool, 0, sizeof mask_bool);
    struct peer p = peer_plain();
    p.sees = never;
    p.empty_lse = 0; /* of the CPU's flash path */
    peer_answer(&p);
    our_answer(with_mask(mask_bool, HEADWAY_BOOL));
    agree_on(ours.out, theirs.out, B * lq * HQ * D, "a row that sees nothing is 0");
    for (int n = 0; n < B * HQ * lq; n++)
        CHECK(theirs.lse[n] == 0 && ours.lse[n] == -INFINITY, "lse 0 there, -inf here");
}

/* 0 * NaN there. */
static void sdpa_masked_nan(void)
{
    problem(3, 5);
    for (int n = 0; n < B * HQ * lq * lk; n++)
        mask_bool[n] = n % lk != 2;
    struct peer p = peer_plain();
    p.sees = bool_attends;
    peer_answer(&p);
    for (int b = 0; b < B; b++)
        for (int c = 0; c < HKV * D; c++)
            key[(b * lk + 2) * HKV * D + c] = value[(b * lk + 2) * HKV * D + c] = NAN;
    our_answer(with_mask(mask_bool, HEADWAY_BOOL));
    agree_weights("what is masked does not matter");
}

/* ---- ONNX Attention ----------------------------------------------------------------------------
 */

static int past;

static int after_past(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return j <= i + past;
}

/* Past keys and new ones, concatenated: lk = past + new. */
static void onnx_causal(void)
{
    const int pasts[] = {0, 4, 0}, new[] = {6, 3, 3};
    for (int n = 0; n < COUNT(pasts); n++) {
        const int64_t offsets[B] = {pasts[n], pasts[n]};
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        struct peer p = peer_plain();
        past = pasts[n];
        problem(n == 2 ? 5 : new[n], past + new[n]);
        p.sees = after_past;
        peer_answer(&p);
        params.causal = HEADWAY_CAUSAL_OFFSETS;
        params.row_offsets = offsets;
        our_answer(params);
        agree("offset = the past's length, 0 without");
    }
}

static const int64_t valid_keys[B] = {7, 2};

static int onnx_external(int b, int h, int i, int j)
{
    (void)h;
    return j < valid_keys[b] && j <= i + valid_keys[b] - lq;
}

static void onnx_nonpad(void)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    problem(4, 9);
    p.sees = onnx_external;
    peer_answer(&p);
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.key_lengths = valid_keys;
    our_answer(params);
    agree_weights("nonpad_kv_seqlen, a negative offset among them");
}

static int onnx_in_window(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return j >= i + past - 2 && j <= i + past + 1;
}

static void onnx_window(void)
{
    const int64_t offsets[B] = {3, 3};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    struct peer p = peer_plain();
    past = 3;
    problem(5, 9);
    p.sees = onnx_in_window;
    peer_answer(&p);
    params.row_offsets = offsets;
    params.window_left = 2;
    params.window_right = 1;
    our_answer(params);
    agree_weights("left 2 keeps three keys, self included");
}

static double cap_then_add(double s, int b, int h, int i, int j)
{
    return 2 * tanh(s / 2) + (double)mask_float[at4(b, h, i, j)];
}

static void onnx_softcap(void)
{
    problem(5, 7);
    draw_masks();
    struct peer p = peer_plain();
    p.sees = bool_attends;
    p.score = cap_then_add;
    peer_answer(&p);
    headway_attention_params params = with_mask(mask_float, HEADWAY_F32);
    params.softcap = 2;
    our_answer(params);
    agree_weights("softcap, then the mask");
}

static int short_mask(int b, int h, int i, int j)
{
    return j < 5 && mask_bool[((b * HQ + h) * lq + i) * 5 + j];
}

/* The mask ends before the keys do: what is missing is masked. */
static void onnx_short_mask(void)
{
    const int64_t lengths[B] = {5, 5};
    problem(4, 8);
    draw_masks();
    struct peer p = peer_plain();
    p.sees = short_mask;
    peer_answer(&p);
    static unsigned char padded[B * HQ * MOST * MOST];
    for (int line = 0; line < B * HQ * lq; line++)
        memcpy(padded + line * lk, mask_bool + line * 5, 5);
    headway_attention_params params = with_mask(padded, HEADWAY_BOOL);
    params.key_lengths = lengths;
    our_answer(params);
    agree_weights("key lengths say where the mask ends");
}

static void onnx_weights(void)
{
    problem(4, 6);
    struct peer p = peer_plain();
    p.sees = bottom_right;
    peer_answer(&p);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    our_answer(params);
    agree_weights("qk_matmul_output_mode 3");
}

/* A number as low as it goes is a number, for ONNX and for us; ONNX Runtime 1.30 masks it. */
static void onnx_lowest(void)
{
    problem(3, 4);
    for (int n = 0; n < B * HQ * lq * lk; n++)
        mask_float[n] = -FLT_MAX;
    struct peer mean = peer_plain();
    mean.scale = 0;
    peer_answer(&mean);
    our_answer(with_mask(mask_float, HEADWAY_F32));
    agree_on(ours.out, theirs.out, B * lq * HQ * D, "the mean of the values");
    struct peer runtime = peer_plain();
    runtime.sees = never;
    peer_answer(&runtime);
    differ("ONNX Runtime: 0");
}

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

/* ---- ONNX Runtime ------------------------------------------------------------------------------
 */

static double filled(double s, int b, int h, int i, int j)
{
    return bool_attends(b, h, i, j) ? s : s - 10000;
}

/* key_padding_mask: 1 keeps. Its mask_filter_value -10000 is a number, so a row of padding alone is
 * the mean that the scores make. */
static void ort_padding(void)
{
    problem(3, 6);
    for (int n = 0; n < B * HQ * lq * lk; n++)
        mask_bool[n] = n / lk / lq / HQ == 0 && n % lk < 4;
    struct peer p = peer_plain();
    p.score = filled;
    /* exp(-10000) is nothing in a row that sees others; where all are filled it cancels. */
    for (int b = 0; b < B; b++)
        for (int n = 0; n < HQ * lq; n++) {
            p.score = b == 0 ? filled : NULL;
            peer_row(&p, b, n / lq, n % lq);
        }
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

/* ---- all -------------------------------------------------------------------------------------
 */

static const struct test tests[] = {
    {"sdpa-bool", sdpa_bool},
    {"sdpa-float", sdpa_float},
    {"sdpa-causal", sdpa_causal},
    {"sdpa-scale", sdpa_scale},
    {"sdpa-gqa", sdpa_gqa},
    {"sdpa-empty", sdpa_empty},
    {"sdpa-masked-nan", sdpa_masked_nan},
    {"onnx-causal", onnx_causal},
    {"onnx-nonpad", onnx_nonpad},
    {"onnx-window", onnx_window},
    {"onnx-softcap", onnx_softcap},
    {"onnx-short-mask", onnx_short_mask},
    {"onnx-weights", onnx_weights},
    {"onnx-lowest", onnx_lowest},
    {"fa-causal", fa_causal},
    {"fa-window", fa_window},
    {"fa-varlen", fa_varlen},
    {"fa-alibi", fa_alibi},
    {"fa-softcap", fa_softcap},
    {"fa-empty", fa_empty},
    {"ort-padding", ort_padding},
    {"ort-bias", ort_bias},
    {"ort-window", ort_window},
    {"ort-lengths", ort_lengths},
    {"ort-sink", ort_sink},
    {"ggml-mask", ggml_mask},
    {"ggml-alibi", ggml_alibi},
    {"ggml-softcap", ggml_softcap},
    {"ggml-sinks", ggml_sinks},
};

/* ---- the table -------------------------------------------------------------------------------
 */

static int is_test(const char *name)
{
    int found = 0;
    for (int n = 0; n < COUNT(tests); n++)
        found |= strcmp(tests[n].name, name) == 0;
    for (int n = 0; n < layer_test_count; n++)
        found |= strcmp(layer_tests[n].name, name) == 0;
    return found;
}

/* Every line of the table ends in the name of a test, and every test has a line. */
static void check_table(void)
{
    char line[1000], name[100];
    int inside = 0, lines = 0;
    FILE *readme = fopen(HEADWAY_SOURCE_DIR "/README.md", "r");
    if (!readme) {
        check_skip("the README's table", "no README.md");
        return;
    }
    check_case("the README's table");
    while (fgets(line, sizeof line, readme)) {
        if (strncmp(line, "## ", 3) == 0)
            inside = strcmp(line, "## In the words of others\n") == 0;
        if (!inside || strncmp(line, "| ", 2) != 0 || strncmp(line, "| theirs", 8) == 0)
            continue;
        const char *last = strrchr(line, '|');
        while (last > line && *--last != '|')
            continue;
        CHECK(sscanf(last, "| `%99[^`]` |", name) == 1 && is_test(name), "no test: %s", line);
        lines++;
    }
    fclose(readme);
    CHECK(lines == COUNT(tests) + layer_test_count, "%d lines, %d tests", lines,
          COUNT(tests) + layer_test_count);
}

static void run_all(const char *isa, const struct test *some, int count)
{
    for (int n = 0; n < count; n++)
        if (check_case("%s: %s", isa, some[n].name)) {
            random_state = check_seed * 1000 + (uint64_t)n;
            some[n].run();
        }
}

int main(int argc, char **argv)
{
    const struct headway_row *row;
    int index = 0;
    check_begin(argc, argv);
    while ((row = check_next_row(&index)) != NULL) {
        headway_engine *made = engine_make(row->name, 2);
        engine = made;
        run_all(row->name, tests, COUNT(tests));
        run_all(row->name, layer_tests, layer_test_count);
        headway_engine_destroy(made);
    }
    check_table();
    return check_end();
}
