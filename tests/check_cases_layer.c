/* Family M, and A07 again: what asking for the weights and saying causality either way must not
 * change, and a zero key beside finite masks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_cases.h"

enum { MOST_TOKENS = 40, MOST_WIDTH = 24, MOST_HEADS = 6, MOST_BATCH = 4 };

struct module {
    int64_t batch, length, width, heads;
    int zero;
    float weights[4][MOST_WIDTH * MOST_WIDTH], biases[4][MOST_WIDTH];
    float input[MOST_BATCH * MOST_TOKENS * MOST_WIDTH];
    float mask[MOST_HEADS * MOST_TOKENS * MOST_TOKENS];
    unsigned char excluded[MOST_HEADS * MOST_TOKENS * MOST_TOKENS];
};

struct module_answer {
    float out[MOST_BATCH * MOST_TOKENS * MOST_WIDTH];
    float weights[MOST_BATCH * MOST_HEADS * MOST_TOKENS * (MOST_TOKENS + 1)];
};

static struct module *module_make(int64_t batch, int64_t length, int64_t width, int64_t heads,
                                  uint64_t seed)
{
    struct module *m = calloc(1, sizeof *m);
    uint64_t state = check_seed + seed;
    if (!m)
        exit(1);
    m->batch = batch;
    m->length = length;
    m->width = width;
    m->heads = heads;
    for (int i = 0; i < 4; i++) {
        check_fill_normal(&state, m->weights[i], width * width, 0.4f);
        check_fill_normal(&state, m->biases[i], width, 0.5f);
    }
    check_fill_normal(&state, m->input, batch * length * width, 1);
    return m;
}

/* want: 0 no weights, 1 by head, 2 their mean. */
static void forward(const struct subject *s, const struct module *m,
                    headway_attention_params params, int want, struct module_answer *a)
{
    const int64_t square[2] = {m->width, m->width}, keys = m->length + m->zero;
    const int64_t tokens[3] = {m->batch, m->length, m->width};
    const int64_t by_head[4] = {m->batch, m->heads, m->length, keys};
    const int64_t by_row[3] = {m->batch, m->length, keys};
    headway_tensor matrix[4], bias[4];
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    headway_mha *layer = NULL;
    size_t bytes = 0;
    for (int i = 0; i < 4; i++) {
        matrix[i] = headway_tensor_dense((void *)(uintptr_t)m->weights[i], HEADWAY_F32, 2, square);
        bias[i] = headway_tensor_dense((void *)(uintptr_t)m->biases[i], HEADWAY_F32, 1, square);
    }
    w.query = &matrix[0];
    w.key = &matrix[1];
    w.value = &matrix[2];
    w.out = &matrix[3];
    w.query_bias = &bias[0];
    w.key_bias = &bias[1];
    w.value_bias = &bias[2];
    w.out_bias = &bias[3];
    config.heads = m->heads;
    config.add_zero_attn = m->zero;
    const headway_tensor in =
        headway_tensor_dense((void *)(uintptr_t)m->input, HEADWAY_F32, 3, tokens);
    const headway_tensor out = headway_tensor_dense(a->out, HEADWAY_F32, 3, tokens);
    const headway_tensor weights = want == 1
                                       ? headway_tensor_dense(a->weights, HEADWAY_F32, 4, by_head)
                                       : headway_tensor_dense(a->weights, HEADWAY_F32, 3, by_row);
    params.weights = want ? &weights : NULL;
    check_poison(a->out, (int64_t)(sizeof a->out / sizeof *a->out));
    check_poison(a->weights, (int64_t)(sizeof a->weights / sizeof *a->weights));
    headway_status status = headway_mha_create(s->one, &config, &w, &layer);
    if (status == HEADWAY_OK)
        status = headway_mha_workspace(layer, &params, &in, NULL, NULL, &bytes);
    void *workspace = check_guard(bytes, 0);
    if (status == HEADWAY_OK)
        status = headway_mha_forward(layer, &params, &in, NULL, NULL, &out, workspace, bytes);
    check_guard_free(workspace);
    headway_mha_destroy(layer);
    CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
}

static headway_tensor mask_of(const struct module *m, headway_dtype dtype, int rank)
{
    const int64_t shape[4] = {1, m->heads, m->length, m->length};
    const void *data = dtype == HEADWAY_BOOL ? (const void *)m->excluded : (const void *)m->mask;
    return headway_tensor_dense((void *)(uintptr_t)data, dtype, rank, shape + 4 - rank);
}

/* A07: a head that sees nothing, with and without weights. */
static void a07(const struct subject *s)
{
    static const int64_t lengths[] = {5, 1, 17, 40};
    static struct module_answer a, b;
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        const int64_t length = lengths[n], each = length * length;
        struct module *m = module_make(2, length, 12, 3, n);
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        memset(m->excluded, 1, (size_t)(2 * each)); /* true attends: heads 0 and 1 see all */
        const headway_tensor mask = mask_of(m, HEADWAY_BOOL, 4);
        params.mask = &mask;
        forward(s, m, params, 0, &a);
        forward(s, m, params, 1, &b);
        check_bits(b.out, a.out, 2 * length * 12, "with weights");
        for (int64_t batch = 0; batch < 2; batch++)
            for (int64_t h = 0; h < 3; h++)
                for (int64_t i = 0; i < length; i++) {
                    const float *line = b.weights + ((batch * 3 + h) * length + i) * length;
                    double sum = 0;
                    for (int64_t j = 0; j < length; j++)
                        sum += (double)line[j];
                    CHECK(h == 2 ? sum == 0 : fabs(sum - 1) < 1e-5, "head %lld's weights sum to %g",
                          (long long)h, sum);
                }
        free(m);
    }
}

/* Weights or none, by head or their mean; causality as a word, a window, a mask: one output. */
static void m01(const struct subject *s)
{
    static const int64_t cases[][4] = {{4, 3, 8, 2}, {1, 40, 24, 4}, {2, 17, 12, 6}, {3, 1, 8, 1}};
    static struct module_answer first, a;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const int64_t *c = cases[n];
        struct module *m = module_make(c[0], c[1], c[2], c[3], n);
        for (int64_t h = 0; h < m->heads; h++)
            for (int64_t i = 0; i < m->length; i++)
                for (int64_t j = 0; j < m->length; j++) {
                    const int64_t at = (h * m->length + i) * m->length + j;
                    m->excluded[at] = j <= i; /* true attends */
                    m->mask[at] = j <= i ? 0 : -INFINITY;
                }
        for (int way = 0; way < 5; way++)
            for (int want = 0; want < 3; want++) {
                headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
                const headway_tensor mask =
                    mask_of(m, way == 2 ? HEADWAY_BOOL : HEADWAY_F32, way == 4 ? 4 : 2);
                if (way == 0)
                    params.causal = HEADWAY_CAUSAL_TOP_LEFT;
                else if (way == 1)
                    params.window_right = 0;
                else
                    params.mask = &mask;
                forward(s, m, params, want, way || want ? &a : &first);
                if (way || want)
                    check_bits(a.out, first.out, c[0] * c[1] * c[2], "the same layer");
            }
        free(m);
    }
}

/* Finite masks of -1e4 leave a row nothing but the zero key; no token reaches it. */
static void m03(const struct subject *s)
{
    static const int64_t cases[][3] = {{4, 8, 2}, {40, 24, 3}, {17, 12, 6}, {1, 8, 2}};
    static struct module_answer first, a;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const int64_t *c = cases[n];
        struct module *m = module_make(1, c[0], c[1], c[2], n);
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        m->zero = 1;
        for (int64_t i = 0; i < c[0]; i++)
            for (int64_t j = 0; j < c[0]; j++)
                m->mask[i * c[0] + j] = j >= i ? -1e4f : 0;
        const headway_tensor mask = mask_of(m, HEADWAY_F32, 2);
        params.mask = &mask;
        forward(s, m, params, 1, &first);
        for (int64_t h = 0; h < c[2]; h++)
            for (int64_t j = 0; j <= c[0]; j++) {
                const float w = first.weights[h * c[0] * (c[0] + 1) + j];
                CHECK(w == (float)(j == c[0]), "weight of key %lld in row 0 is %g", (long long)j,
                      (double)w);
            }
        for (int64_t j = 0; j < c[0]; j++) {
            /* Row 0's own query may only change what it multiplies with zero. */
            m->input[j * c[1]] += 1;
            forward(s, m, params, 0, &a);
            check_bits(a.out, first.out, c[1], "row 0");
            m->input[j * c[1]] -= 1;
        }
        free(m);
    }
}

const struct entry layer_cases[] = {
    {"A07", "a head that sees nothing, weights asked for or not", a07},
    {"M01", "weights and ways to say causality", m01},
    {"M03", "a zero key beside finite masks", m03},
    {0},
};
