#include "check_compat.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

const struct test operator_tests[] = {{"sdpa-bool", sdpa_bool},
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
                                      {"onnx-lowest", onnx_lowest}};
const int operator_test_count = (int)(sizeof operator_tests / sizeof *operator_tests);
