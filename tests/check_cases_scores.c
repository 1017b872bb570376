/* Families C, D and L as far as they speak of windows, softcaps, slopes and packed sequences. */
#include <math.h>
#include <string.h>

#include "check_cases.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* Zero queries and one-hot values: an output row is the row of weights. */
static struct problem *one_hot(int64_t queries, int64_t keys, int64_t heads)
{
    const struct shape shape = {1, queries, keys, heads, 1, 4, keys};
    struct problem *p = problem_make(&shape, 0);
    fill_all(p, 0, 1, 0);
    for (int64_t j = 0; j < keys; j++)
        value_line(p, 0, j, 0)[j] = 1;
    return p;
}

/* Any params on a problem's dense tensors; out is (B, Lq, Hq, Dv). */
static headway_status call(const struct subject *s, const struct problem *p,
                           const headway_attention_params *params, float *out)
{
    const struct shape *x = &p->shape;
    const int64_t query_shape[4] = {x->batch, x->queries, x->heads, x->size};
    const int64_t key_shape[4] = {x->batch, x->keys, x->kv_heads, x->size};
    const int64_t value_shape[4] = {x->batch, x->keys, x->kv_heads, x->value_size};
    const int64_t out_shape[4] = {x->batch, x->queries, x->heads, x->value_size};
    const headway_tensor query = headway_tensor_dense(p->query, HEADWAY_F32, 4, query_shape);
    const headway_tensor key = headway_tensor_dense(p->key, HEADWAY_F32, 4, key_shape);
    const headway_tensor value = headway_tensor_dense(p->value, HEADWAY_F32, 4, value_shape);
    const headway_tensor to = headway_tensor_dense(out, HEADWAY_F32, 4, out_shape);
    static _Alignas(HEADWAY_WORKSPACE_ALIGNMENT) unsigned char workspace[1 << 20];
    return headway_attention(s->one, params, &query, &key, &value, &to, workspace,
                             sizeof workspace);
}

/* ---- C -----------------------------------------------------------------------------------------
 */

static void c09(const struct subject *s)
{
    static const int64_t lengths[] = {1, 5, 64, 65, 129, 200, 257};
    for (int n = 0; n < COUNT(lengths); n++) {
        const int64_t length = lengths[n];
        const int64_t windows[][2] = {
            {-1, 0}, {length, 0}, {length - 1, 0}, {INT64_MAX, 0}, {length - 1, length}};
        const struct shape shape = {1, length, length, 2, 1, 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_TOP_LEFT;
        struct answer a = answer_of(s, p);
        for (int w = 0; w < COUNT(windows); w++) {
            p->causal = w == 4 ? HEADWAY_CAUSAL_TOP_LEFT : HEADWAY_CAUSAL_NONE;
            p->window_left = windows[w][0];
            p->window_right = windows[w][1];
            struct answer b = answer_of(s, p);
            compare_bits(&b, &a, "causality said as a window");
            answer_free(&b);
        }
        answer_free(&a);
        problem_free(p);
    }
}

/* The set of keys of every row, counted one by one. */
static void c11(const struct subject *s)
{
    static const int64_t cases[][5] = {
        /* queries, keys, offset, left, right */
        {129, 40, -89, 32, 64}, {129, 40, 0, 32, 64}, {5, 140, 135, 3, 0},
        {40, 129, 89, 64, 32},  {70, 200, -3, 0, 0},  {17, 300, 140, 5, 130},
        {33, 64, 100, 70, 0},   {9, 9, 4, -1, 0},     {64, 65, 1, 0, -1},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        const int64_t *c = cases[n], left = c[3], right = c[4];
        struct problem *p = one_hot(c[0], c[1], 1);
        p->has_offsets = 1;
        p->offsets[0] = c[2];
        p->window_left = left;
        p->window_right = right;
        struct answer a = answer_of(s, p);
        for (int64_t i = 0; i < c[0]; i++) {
            int64_t count = 0;
            for (int64_t j = 0; j < c[1]; j++)
                count += (left < 0 || j >= i + c[2] - left) && (right < 0 || j <= i + c[2] + right);
            if (count == 0)
                expect_no_key(p, &a, i);
            for (int64_t j = 0; count && j < c[1]; j++) {
                const int seen =
                    (left < 0 || j >= i + c[2] - left) && (right < 0 || j <= i + c[2] + right);
                const double got = (double)out_line(p, &a, 0, i, 0)[j];
                CHECK(fabs(got - (seen ? 1.0 / (double)count : 0)) <= (seen ? 1e-6 : 0),
                      "case %d: weight of key %lld in row %lld is %g of %lld keys", n, (long long)j,
                      (long long)i, got, (long long)count);
            }
        }
        answer_free(&a);
        problem_free(p);
    }
}

/* A chunk behind a prefix is what its rows are one by one. */
static void c13(const struct subject *s)
{
    static const int64_t cases[][3] = {
        {10, 4, 3}, {0, 4, 3}, {61, 9, 0}, {130, 5, 70}, {64, 3, 64}};
    for (int n = 0; n < COUNT(cases); n++) {
        const int64_t prefix = cases[n][0], chunk = cases[n][1];
        const struct shape shape = {1, chunk, prefix + chunk, 2, 1, 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        p->window_left = cases[n][2];
        struct answer a = answer_of(s, p);
        for (int64_t i = 0; i < chunk; i++) {
            struct problem *q = problem_copy(p);
            q->shape.queries = 1;
            q->shape.keys = prefix + i + 1;
            memcpy(q->query, query_line(p, 0, i, 0), 16 * sizeof(float));
            struct answer b = answer_of(s, q);
            check_bits(b.out, out_line(p, &a, 0, i, 0), 16, "token by token");
            answer_free(&b);
            problem_free(q);
        }
        answer_free(&a);
        expect_reference(s, p);
    }
}

static void c15(const struct subject *s)
{
    static const int64_t refused[] = {-2, -3, -100, INT64_MIN, INT64_MIN + 1};
    static const int64_t unbounded[] = {-1, 6, 1000, INT64_MAX};
    const struct shape shape = {1, 7, 7, 2, 1, 4, 4};
    struct problem *p = problem_make(&shape, 0);
    float out[7 * 2 * 4], plain[7 * 2 * 4];
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    CHECK(call(s, p, &params, plain) == HEADWAY_OK, "no window");
    for (int side = 0; side < 2; side++) {
        params = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
        int64_t *window = side ? &params.window_right : &params.window_left;
        for (int n = 0; n < COUNT(refused); n++) {
            *window = refused[n];
            fill(out, COUNT(out), 42);
            CHECK(call(s, p, &params, out) == HEADWAY_ERROR_ARGUMENT, "window %lld",
                  (long long)refused[n]);
            for (int x = 0; x < COUNT(out); x++)
                CHECK(out[x] == 42, "out was written");
        }
        for (int n = 0; n < COUNT(unbounded); n++) {
            *window = unbounded[n];
            CHECK(call(s, p, &params, out) == HEADWAY_OK, "window %lld", (long long)unbounded[n]);
            check_bits(out, plain, COUNT(out), "a window that excludes nothing");
        }
    }
    problem_free(p);
}

/* ---- D -----------------------------------------------------------------------------------------
 */

/* Padding of a tile must not pass through the cap. */
static void d01(const struct subject *s)
{
    static const float caps[] = {1.0f, 0.1f, 50.0f, 1e-30f, 1e30f};
    for (int64_t keys = 1; keys <= 270; keys += quick ? 23 : 1) {
        const struct shape shape = {1, 1 + keys % 19, keys, 2, 1, 4, 3};
        struct problem *p = problem_make(&shape, 0);
        fill_all(p, 0, 1, 1);
        p->softcap = caps[keys % COUNT(caps)];
        struct answer a = answer_of(s, p);
        for (int64_t i = 0; i < shape.queries; i++)
            expect_row(p, &a, i, 1, 1);
        answer_free(&a);
        problem_free(p);
    }
}

/* The bias comes after the cap, in every type of mask. */
static void d03(const struct subject *s)
{
    static const float biases[] = {5, -5, 0.5f, 20, -60};
    for (int kind = MASK_F32; kind <= MASK_BF16; kind++)
        for (int n = 0; n < COUNT(biases); n++) {
            const struct shape shape = {1, 3, 2, 1, 1, 4, 1};
            struct problem *p = problem_make(&shape, 0);
            fill_all(p, 0, 1, 0);
            number_values(p);
            p->softcap = 2;
            problem_mask(p, (enum mask_kind)kind, 1, 8);
            /* 5, -5, 0.5, 20 and -60 in f16 and bf16. */
            static const uint16_t halves[2][5] = {{0x4500, 0xc500, 0x3800, 0x4d00, 0xd380},
                                                  {0x40a0, 0xc0a0, 0x3f00, 0x41a0, 0xc270}};
            if (kind == MASK_F32) {
                ((float *)p->mask)[0] = 0;
                ((float *)p->mask)[1] = biases[n];
            } else {
                ((uint16_t *)p->mask)[0] = 0;
                ((uint16_t *)p->mask)[1] = halves[kind - MASK_F16][n];
            }
            struct answer a = answer_of(s, p);
            const double exact = 1 / (1 + exp(-(double)biases[n]));
            for (int64_t i = 0; i < 3; i++)
                expect_row(p, &a, i, exact, 0);
            answer_free(&a);
            expect_reference(s, p);
        }
}

static void d05(const struct subject *s)
{
    static const float scales[] = {0.37f, -0.37f, 0, 3, 1e-3f}, caps[] = {1.7f, 0.05f, 30, 1e4f};
    for (int n = 0; n < COUNT(scales) * COUNT(caps); n++) {
        const struct shape shape = {1, 1 + n, 20 + 13 * n, 2, 1, 16, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->has_scale = 1;
        p->scale = scales[n % COUNT(scales)];
        p->softcap = caps[n / COUNT(scales)];
        expect_reference(s, p);
    }
    /* One score of 3: cap * tanh(scale * 3 / cap), against a score of 0. */
    for (int n = 0; n < COUNT(scales) * COUNT(caps); n++) {
        const struct shape shape = {1, 2, 2, 1, 1, 1, 1};
        struct problem *p = problem_make(&shape, 0);
        const double scale = (double)scales[n % COUNT(scales)],
                     cap = (double)caps[n / COUNT(scales)];
        fill_all(p, 3, 1, 0);
        number_values(p);
        p->key[0] = 0;
        p->has_scale = 1;
        p->scale = (float)scale;
        p->softcap = (float)cap;
        struct answer a = answer_of(s, p);
        expect_row(p, &a, 1, 1 / (1 + exp(-cap * tanh(scale * 3 / cap))), 0);
        answer_free(&a);
        problem_free(p);
    }
}

/* Slope h of `heads`, as the paper's code gives them. */
static double slope_of(int64_t heads, int64_t h)
{
    int64_t power = 1;
    while (power * 2 <= heads)
        power *= 2;
    return h < power ? exp2(-8.0 * (double)(h + 1) / (double)power)
                     : exp2(-4.0 * (double)(2 * (h - power) + 1) / (double)power);
}

static void slopes_of(const struct subject *s, int64_t heads)
{
    const int64_t queries = 5, keys = 40;
    float slopes[64];
    struct problem *p = one_hot(queries, keys, heads);
    CHECK(headway_alibi_slopes(heads, slopes) == HEADWAY_OK, "%lld heads", (long long)heads);
    problem_slopes(p);
    memcpy(p->slopes, slopes, (size_t)heads * sizeof *slopes);
    p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    struct answer a = answer_of(s, p);
    for (int64_t h = 0; h < heads; h++) {
        const double slope = slope_of(heads, h);
        CHECK(fabs((double)slopes[h] - slope) <= 1e-7 * slope, "slope %lld of %lld is %.9g",
              (long long)h, (long long)heads, (double)slopes[h]);
        for (int64_t i = 0; i < queries; i++) {
            const int64_t place = i + keys - queries;
            double sum = 0;
            for (int64_t j = 0; j <= place; j++)
                sum += exp(slope * (double)(j - place));
            for (int64_t j = 0; j < keys; j++) {
                const double exact = j <= place ? exp(slope * (double)(j - place)) / sum : 0;
                const double got = (double)out_line(p, &a, 0, i, h)[j];
                CHECK(fabs(got - exact) <= 1e-5 * exact + 1e-12,
                      "weight %lld %lld %lld is %g, not %g", (long long)h, (long long)i,
                      (long long)j, got, exact);
            }
        }
    }
    answer_free(&a);
    expect_reference(s, p);
}

static void d07(const struct subject *s)
{
    static const float six[] = {1.0f / 4, 1.0f / 16, 1.0f / 64, 1.0f / 256, 1.0f / 2, 1.0f / 8};
    static const float three[] = {1.0f / 16, 1.0f / 256, 1.0f / 4};
    float slopes[6];
    CHECK(headway_alibi_slopes(6, slopes) == HEADWAY_OK && memcmp(slopes, six, sizeof six) == 0,
          "six heads");
    CHECK(headway_alibi_slopes(3, slopes) == HEADWAY_OK && memcmp(slopes, three, sizeof three) == 0,
          "three heads");
    for (int64_t heads = 1; heads <= 40; heads += quick ? 7 : 1)
        slopes_of(s, heads);
}

static void d09(const struct subject *s)
{
    float slopes[8];
    CHECK(headway_alibi_slopes(8, slopes) == HEADWAY_OK, "eight heads");
    for (int h = 0; h < 8; h++)
        CHECK(slopes[h] == ldexpf(1, -h - 1), "slope %d is %g", h, (double)slopes[h]);
    for (int64_t heads = 1; heads <= 64; heads *= 2)
        slopes_of(s, heads);
}

/* ---- L -----------------------------------------------------------------------------------------
 */

/* Packed sequences, some without keys or rows: every slot of lse. */
static void l05(const struct subject *s)
{
    static const int64_t keys[][4] = {{3, 0, 5, 1}, {0, 0, 0, 0}, {0, 70, 0, 129}, {64, 65, 0, 2}};
    static const int64_t rows[][4] = {{3, 4, 5, 1}, {2, 1, 0, 5}, {1, 0, 5, 3}, {0, 5, 4, 5}};
    for (int n = 0; n < COUNT(keys); n++) {
        const struct shape shape = {4, 5, 130, 2, 1, 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->packed = p->has_query_lengths = p->has_key_lengths = 1;
        memcpy(p->key_lengths, keys[n], sizeof keys[n]);
        memcpy(p->query_lengths, rows[n], sizeof rows[n]);
        struct answer a = answer_of(s, p), b = attend(s->seven, p, LAYOUT_BHLD, 0);
        compare_bits(&b, &a, "packed sequences");
        for (int64_t q = 0; q < 4; q++)
            for (int64_t i = 0; i < rows[n][q]; i++)
                for (int64_t h = 0; h < 2; h++)
                    CHECK((*lse_at(p, &a, q, i, h) == -INFINITY) == (keys[n][q] == 0),
                          "lse of row %lld of sequence %lld is %g", (long long)i, (long long)q,
                          (double)*lse_at(p, &a, q, i, h));
        struct expected e = expect(p);
        compare(p, &a, &e);
        expected_free(&e);
        answer_free(&a);
        answer_free(&b);
        problem_free(p);
    }
}

/* Keys are cut among threads: parts of them, or all, hold nothing that may be attended. */
static void l07(const struct subject *s)
{
    static const int64_t valid[] = {0, 1, 63, 64, 1999};
    for (int n = 0; n < COUNT(valid); n++) {
        const struct shape shape = {1, 1, 2000, 4, 1, 16, 16};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        fill(p->value, 2000 * 16, NAN);
        if (valid[n])
            fill(value_line(p, 0, valid[n] - 1, 0), 16, 7);
        p->has_key_lengths = p->has_offsets = 1;
        p->key_lengths[0] = valid[n];
        p->offsets[0] = valid[n] - 1;
        p->window_left = 0;
        struct answer a = attend(s->seven, p, LAYOUT_DENSE, 1), b = answer_of(s, p);
        compare_bits(&a, &b, "seven threads");
        if (valid[n])
            expect_row(p, &a, 0, 7, 1);
        else
            expect_no_key(p, &a, 0);
        answer_free(&a);
        answer_free(&b);
        problem_free(p);
    }
}

/* Fifty tokens, each after as many keys as there are by then, in memory that ends with them. */
static void l11(const struct subject *s)
{
    static const int64_t lefts[] = {2, 5, 0};
    for (int n = 0; n < COUNT(lefts); n++) {
        const struct shape shape = {1, 50, 50, 2, 1, 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_TOP_LEFT;
        p->window_left = lefts[n];
        struct answer a = answer_of(s, p);
        for (int64_t i = 0; i < 50; i++) {
            struct problem *q = problem_copy(p);
            q->causal = HEADWAY_CAUSAL_OFFSETS;
            q->offsets[0] = i;
            q->shape.queries = 1;
            q->shape.keys = i + 1;
            memcpy(q->query, query_line(p, 0, i, 0), 16 * sizeof(float));
            fill(q->key, i > lefts[n] ? (i - lefts[n]) * 8 : 0, NAN);
            fill(q->value, i > lefts[n] ? (i - lefts[n]) * 8 : 0, INFINITY);
            struct answer b = answer_of(s, q);
            check_bits(b.out, out_line(p, &a, 0, i, 0), 16, "a token's row");
            answer_free(&b);
            problem_free(q);
        }
        answer_free(&a);
        problem_free(p);
    }
}

const struct entry score_cases[] = {
    {"C09", "causality said as a window", c09},
    {"C11", "which keys a window holds", c11},
    {"C13", "chunks with a window", c13},
    {"C15", "windows below -1", c15},
    {"D01", "padding does not pass the cap", d01},
    {"D03", "bias after cap", d03},
    {"D05", "scale and cap", d05},
    {"D07", "slopes of any number of heads", d07},
    {"D09", "slopes of powers of two", d09},
    {"L05", "packed sequences without keys", l05},
    {"L07", "parts of the keys that are empty", l07},
    {"L11", "a window, token by token", l11},
    {0},
};
