#include "check_compat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* torch.nn.MultiheadAttention with batch_first, N batches, H heads of size S. */
enum { N = 2, H = 3, S = 4, E = H * S, MORE = 2, SLOTS = MOST + MORE };

static int length, keys, appended; /* L, S of the inputs; keys that the layer appends */
static float x[N * MOST * E], y[N * MOST * E];
static float in_proj_weight[3 * E * E], in_proj_bias[3 * E], out_weight[E * E], out_bias[E];
static float bias_k[E], bias_v[E];
static int add_bias_kv, add_zero_attn;
/* headway_rope_style, with which position t turns by t * 10000^(-2k / S). */
static headway_rope_style rope;

static unsigned char attn_mask[N * H * MOST * MOST], padding[N * MOST]; /* True: masked */
static float float_mask[N * H * MOST * MOST], float_padding[N * MOST];  /* added */

static struct {
    double out[N * MOST * E], weights[N * H * MOST * SLOTS], mean[N * MOST * SLOTS];
} peer, mine;

static void layer(int queries, int given)
{
    length = queries;
    keys = given;
    add_bias_kv = add_zero_attn = 0;
    rope = HEADWAY_ROPE_NONE;
    check_fill_normal(&random_state, x, N * length * E, 1);
    check_fill_normal(&random_state, y, N * keys * E, 1);
    check_fill_normal(&random_state, in_proj_weight, 3 * E * E, 0.4f);
    check_fill_normal(&random_state, in_proj_bias, 3 * E, 0.4f);
    check_fill_normal(&random_state, out_weight, E * E, 0.4f);
    check_fill_normal(&random_state, out_bias, E, 0.4f);
    check_fill_normal(&random_state, bias_k, E, 1);
    check_fill_normal(&random_state, bias_v, E, 1);
    memset(attn_mask, 0, sizeof attn_mask);
    memset(padding, 0, sizeof padding);
    memset(float_mask, 0, sizeof float_mask);
    memset(float_padding, 0, sizeof float_padding);
}

/* ---- theirs ----------------------------------------------------------------------------------
 */

static void project(const float *token, int which, double *to)
{
    for (int c = 0; c < E; c++) {
        to[c] = (double)in_proj_bias[which * E + c];
        for (int e = 0; e < E; e++)
            to[c] += (double)in_proj_weight[(which * E + c) * E + e] * (double)token[e];
    }
}

static void turn(double *heads, int position)
{
    for (int h = 0; h < H && rope != HEADWAY_ROPE_NONE; h++)
        for (int k = 0; k < S / 2; k++) {
            double *first = heads + h * S + (rope == HEADWAY_ROPE_HALF ? k : 2 * k);
            double *second = heads + h * S + (rope == HEADWAY_ROPE_HALF ? k + S / 2 : 2 * k + 1);
            const double angle = position * pow(10000, -2.0 * k / S), a = *first, b = *second;
            *first = a * cos(angle) - b * sin(angle);
            *second = a * sin(angle) + b * cos(angle);
        }
}

static void peer_row(int n, int h, int i, const double *q, double (*k)[E], double (*v)[E],
                     double *heads)
{
    double weight[SLOTS], sum = 0;
    for (int j = 0; j < keys + appended; j++) {
        const int at = ((n * H + h) * length + i) * keys + j;
        double s = 0;
        for (int d = 0; d < S; d++)
            s += q[h * S + d] / sqrt(S) * k[j][h * S + d];
        if (j < keys)
            s += (double)float_mask[at] + (double)float_padding[n * keys + j];
        weight[j] = j < keys && (attn_mask[at] || padding[n * keys + j]) ? 0 : exp(s);
        sum += weight[j];
    }
    for (int d = 0; d < S; d++)
        heads[h * S + d] = 0;
    for (int j = 0; j < keys + appended; j++) {
        /* Plain softmax: 0 / 0 in a row that sees nothing. */
        const double w = weight[j] / sum;
        peer.weights[((n * H + h) * length + i) * (keys + appended) + j] = w;
        peer.mean[(n * length + i) * (keys + appended) + j] += w / H;
        for (int d = 0; d < S; d++)
            heads[h * S + d] += w * v[j][h * S + d];
    }
}

static void peer_layer(void)
{
    static double k[SLOTS][E], v[SLOTS][E];
    appended = add_bias_kv + add_zero_attn;
    memset(&peer, 0, sizeof peer);
    for (int n = 0; n < N; n++) {
        for (int j = 0; j < keys; j++) {
            project(y + (n * keys + j) * E, 1, k[j]);
            project(y + (n * keys + j) * E, 2, v[j]);
            turn(k[j], j);
        }
        for (int c = 0; c < E; c++) {
            if (add_bias_kv) {
                k[keys][c] = (double)bias_k[c];
                v[keys][c] = (double)bias_v[c];
            }
            if (add_zero_attn)
                k[keys + add_bias_kv][c] = v[keys + add_bias_kv][c] = 0;
        }
        for (int i = 0; i < length; i++) {
            double q[E], heads[E];
            project(x + (n * length + i) * E, 0, q);
            turn(q, i);
            for (int h = 0; h < H; h++)
                peer_row(n, h, i, q, k, v, heads);
            for (int c = 0; c < E; c++) {
                double *to = &peer.out[(n * length + i) * E + c];
                *to = (double)out_bias[c];
                for (int e = 0; e < E; e++)
                    *to += (double)out_weight[c * E + e] * heads[e];
            }
        }
    }
}

/* ---- ours ------------------------------------------------------------------------------------
 */

static headway_mha *make(void)
{
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    headway_rope_config turning = HEADWAY_ROPE_CONFIG_INIT;
    headway_mha *made = NULL;
    const headway_tensor fused = tensor(in_proj_weight, HEADWAY_F32, 2, (int[]){3 * E, E}),
                         fused_bias = tensor(in_proj_bias, HEADWAY_F32, 1, (int[]){3 * E}),
                         out = tensor(out_weight, HEADWAY_F32, 2, (int[]){E, E}),
                         bias = tensor(out_bias, HEADWAY_F32, 1, (int[]){E}),
                         more_k = tensor(bias_k, HEADWAY_F32, 2, (int[]){H, S}),
                         more_v = tensor(bias_v, HEADWAY_F32, 2, (int[]){H, S});
    config.heads = H;
    config.add_zero_attn = add_zero_attn;
    turning.style = rope;
    turning.positions = MOST;
    config.rope = rope == HEADWAY_ROPE_NONE ? NULL : &turning;
    weights.fused = &fused;
    weights.fused_bias = &fused_bias;
    weights.out = &out;
    weights.out_bias = &bias;
    weights.bias_k = add_bias_kv ? &more_k : NULL;
    weights.bias_v = add_bias_kv ? &more_v : NULL;
    const headway_status status = headway_mha_create(engine, &config, &weights, &made);
    CHECK(status == HEADWAY_OK, "create: %s", headway_status_text(status));
    return made;
}

static void my_layer(headway_attention_params params, int mean)
{
    static float out[N * MOST * E], probs[N * H * MOST * SLOTS];
    const int slots = keys + appended, count = mean ? N * length * slots : N * H * length * slots;
    const headway_tensor query_tensor = tensor(x, HEADWAY_F32, 3, (int[]){N, length, E}),
                         key_tensor = tensor(y, HEADWAY_F32, 3, (int[]){N, keys, E}),
                         o = tensor(out, HEADWAY_F32, 3, (int[]){N, length, E}),
                         per_head = tensor(probs, HEADWAY_F32, 4, (int[]){N, H, length, slots}),
                         means = tensor(probs, HEADWAY_F32, 3, (int[]){N, length, slots});
    size_t bytes = 0;
    char text[300];
    headway_mha *made = make();
    if (!made)
        return;
    params.weights = mean ? &means : &per_head;
    headway_status status =
        headway_mha_workspace(made, &params, &query_tensor, &key_tensor, NULL, &bytes);
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes + 64) / 64 * 64);
    if (status == HEADWAY_OK)
        status = headway_mha_forward(made, &params, &query_tensor, &key_tensor, NULL, &o, workspace,
                                     bytes);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s", headway_status_text(status), text);
    for (int n = 0; n < N * length * E; n++)
        mine.out[n] = (double)out[n];
    for (int n = 0; n < count; n++)
        (mean ? mine.mean : mine.weights)[n] = (double)probs[n];
    free(workspace);
    headway_mha_destroy(made);
}

static void same(headway_attention_params params, const char *what)
{
    my_layer(params, 0);
    agree_on(mine.out, peer.out, N * length * E, what);
    agree_on(mine.weights, peer.weights, N * H * length * (keys + appended), what);
}

static const headway_attention_params plain = HEADWAY_ATTENTION_PARAMS_INIT;

/* ---- the lines ---------------------------------------------------------------------------------
 */

/* attn_mask (L, S): True is masked there, attends here. */
static void mha_mask(void)
{
    static unsigned char attends[MOST * MOST];
    layer(5, 6);
    for (int n = 0; n < length * keys; n++)
        attends[n] = n % 3 != 1;
    for (int n = 0; n < N * H * length * keys; n++)
        attn_mask[n] = !attends[n % (length * keys)];
    peer_layer();
    headway_attention_params params = plain;
    const headway_tensor masking = tensor(attends, HEADWAY_BOOL, 2, (int[]){length, keys});
    params.mask = &masking;
    same(params, "turned round");
}

/* attn_mask (N * H, L, S), element n * H + h: the same memory as (N, H, L, S). */
static void mha_mask3(void)
{
    layer(4, 7);
    check_fill_normal(&random_state, float_mask, N * H * length * keys, 1);
    peer_layer();
    headway_attention_params params = plain;
    const headway_tensor masking = tensor(float_mask, HEADWAY_F32, 4, (int[]){N, H, length, keys});
    params.mask = &masking;
    same(params, "as rank 4");
}

/* key_padding_mask (N, S), True is ignored. */
static void mha_padding(void)
{
    static unsigned char attends[N * MOST];
    const int64_t lengths[N] = {6, 3};
    layer(4, 6);
    for (int n = 0; n < N; n++)
        for (int j = 0; j < keys && j < MOST; j++)
            attends[n * keys + j] = !(padding[n * keys + j] = j >= lengths[n]);
    peer_layer();
    headway_attention_params params = plain;
    const headway_tensor masking = tensor(attends, HEADWAY_BOOL, 4, (int[]){N, 1, 1, keys});
    params.mask = &masking;
    same(params, "as a mask");
    params.mask = NULL;
    params.key_lengths = lengths;
    same(params, "as lengths");
}

/* Both masks, one bool and one of numbers: merged, as one of numbers. */
static void mha_merged(void)
{
    static float merged[N * H * MOST * MOST];
    layer(4, 6);
    for (int n = 0; n < N * keys; n++)
        float_padding[n] = (float)(n % 4) / 4;
    for (int n = 0; n < N * H * length * keys; n++) {
        attn_mask[n] = n % 5 == 2;
        merged[n] =
            attn_mask[n] ? -INFINITY : float_padding[n / keys / length / H * keys + n % keys];
    }
    peer_layer();
    headway_attention_params params = plain;
    const headway_tensor masking = tensor(merged, HEADWAY_F32, 4, (int[]){N, H, length, keys});
    params.mask = &masking;
    same(params, "their sum");
}

/* is_causal is a hint beside an attn_mask that says the same. */
static void mha_causal(void)
{
    layer(5, 5);
    for (int n = 0; n < N * H * length * keys; n++)
        attn_mask[n] = n % keys > n / keys % length;
    peer_layer();
    headway_attention_params params = plain;
    params.causal = HEADWAY_CAUSAL_TOP_LEFT;
    same(params, "top-left");
}

/* Appended keys are never masked, and count in the weights. */
static void mha_appended(void)
{
    static unsigned char attends[MOST * MOST];
    for (int which = 1; which < 4; which++) {
        layer(4, 6);
        add_bias_kv = which & 1;
        add_zero_attn = which >> 1;
        for (int n = 0; n < length * keys; n++)
            attends[n] = n / keys != 2 && n % 4 != 0;
        for (int n = 0; n < N * H * length * keys; n++)
            attn_mask[n] = !attends[n % (length * keys)];
        peer_layer();
        headway_attention_params params = plain;
        const headway_tensor masking = tensor(attends, HEADWAY_BOOL, 2, (int[]){length, keys});
        params.mask = &masking;
        same(params, "bias_k and bias_v, then zeros");
    }
}

static void mha_weights(void)
{
    layer(4, 6);
    peer_layer();
    same(plain, "average_attn_weights=False");
    my_layer(plain, 1);
    agree_on(mine.mean, peer.mean, N * length * keys, "need_weights=True");
}

/* A row that sees nothing: NaN with weights and in the fast path, the output's bias without. */
static void mha_empty(void)
{
    const int64_t lengths[N] = {6, 0};
    layer(4, 6);
    for (int j = 0; j < keys; j++)
        padding[keys + j] = 1;
    peer_layer();
    headway_attention_params params = plain;
    params.key_lengths = lengths;
    my_layer(params, 0);
    agree_on(mine.out, peer.out, length * E, "the other batch");
    for (int n = 0; n < length * E; n++)
        CHECK(isnan(peer.out[length * E + n]) &&
                  mine.out[length * E + n] == (double)out_bias[n % E],
              "NaN there, out_proj.bias here");
    for (int n = H * length * keys; n < N * H * length * keys; n++)
        CHECK(isnan(peer.weights[n]) && mine.weights[n] == 0, "NaN there, weights of 0 here");
}

static void turned(headway_rope_style style, const char *what)
{
    layer(6, 6);
    rope = style;
    peer_layer();
    same(plain, what);
}

static void rope_half(void)
{
    turned(HEADWAY_ROPE_HALF, "pairs (k, k + size / 2)");
}

static void rope_interleaved(void)
{
    turned(HEADWAY_ROPE_INTERLEAVED, "pairs (2k, 2k + 1)");
}

const struct test layer_tests[] = {
    {"mha-mask", mha_mask},       {"mha-mask3", mha_mask3},
    {"mha-padding", mha_padding}, {"mha-merged", mha_merged},
    {"mha-causal", mha_causal},   {"mha-appended", mha_appended},
    {"mha-weights", mha_weights}, {"mha-empty", mha_empty},
    {"rope-half", rope_half},     {"rope-interleaved", rope_interleaved},
};
const int layer_test_count = (int)(sizeof layer_tests / sizeof *layer_tests);
