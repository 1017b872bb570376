/* Families D and E: which head reads what, and numbers at their extremes. */
#include <float.h>
#include <math.h>

#include "check_cases.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* The value of KV head g is g; zero queries weigh all keys alike, so that it comes out to the bit.
 */
static void heads_of(const struct subject *s, int64_t heads, int64_t kv_heads)
{
    const struct shape shape = {2, 5, 20, heads, kv_heads, 8, 4};
    const int64_t group = heads / kv_heads;
    struct problem *p = problem_make(&shape, 0);
    for (int zero = 0; zero < 2; zero++) {
        if (zero)
            fill(p->query, 2 * 5 * heads * 8, 0);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t j = 0; j < 20; j++)
                for (int64_t g = 0; g < kv_heads; g++)
                    fill(value_line(p, b, j, g), 4, (float)g);
        struct answer a = answer_of(s, p);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t i = 0; i < 5; i++)
                for (int64_t h = 0; h < heads; h++) {
                    const float got = out_line(p, &a, b, i, h)[3], expected = (float)(h / group);
                    CHECK(fabsf(got - expected) <= (zero ? 0.0f : 1e-5f * expected),
                          "%lld/%lld heads: head %lld reads %g, expected %g", (long long)heads,
                          (long long)kv_heads, (long long)h, (double)got, (double)expected);
                }
        answer_free(&a);
    }
    problem_free(p);
}

static void d11(const struct subject *s)
{
    heads_of(s, 6, 2);
    for (int64_t heads = 1; heads <= 12; heads++)
        for (int64_t kv_heads = 1; kv_heads <= heads; kv_heads++)
            if (heads % kv_heads == 0)
                heads_of(s, heads, kv_heads);
}

static void d13(const struct subject *s)
{
    static const int64_t heads[][2] = {{12, 2}, {15, 5}, {28, 4}, {71, 1}, {32, 8}, {130, 2}};
    for (int n = 0; n < COUNT(heads); n++)
        heads_of(s, heads[n][0], heads[n][1]);
}

static void e01(const struct subject *s)
{
    static const float values[] = {133120.0f, -133120.0f, 1e15f, 1e-20f};
    static const int64_t keys[] = {1, 2, 7, 16, 129, 513};
    for (int n = 0; n < COUNT(values); n++)
        for (int k = 0; k < COUNT(keys); k++)
            for (int64_t queries = 1; queries <= 35; queries += 34) {
                const struct shape shape = {1, queries, keys[k], 1, 1, 64, 64};
                struct problem *p = problem_make(&shape, 0);
                fill_all(p, values[n], values[n], values[n]);
                struct answer a = answer_of(s, p);
                const int exactly = keys[k] == 1 || fabsf(values[n]) == 133120.0f;
                for (int64_t i = 0; i < queries; i++)
                    expect_row(p, &a, i, (double)values[n], exactly);
                answer_free(&a);
                problem_free(p);
            }
    /* The sum of so many large values overflows, their mean doesn't. */
    for (int k = 0; k < COUNT(keys); k++) {
        const struct shape shape = {2, 19, keys[k], 2, 1, 8, 21};
        struct problem *p = problem_make(&shape, 0);
        fill_all(p, 0.0f, 0.0f, -3e38f);
        p->flags_free = keys[k] == 1;
        struct answer a = answer_of(s, p);
        for (int64_t i = 0; i < 19; i++)
            expect_row(p, &a, i, (double)-3e38f, keys[k] == 1);
        answer_free(&a);
        problem_free(p);
    }
}

/* Weights of a key whose score lies ever further below the other's. */
static void e03(const struct subject *s)
{
    static const float extremes[] = {-0.0f, -87.33f, -87.34f,  -88.0f,  -103.0f,   -104.0f,
                                     -1e3f, -1e30f,  -FLT_MAX, -1e-45f, -INFINITY, NAN};
    const int64_t rows = 320;
    const struct shape shape = {1, rows, 2, 1, 1, 1, 2};
    struct problem *p = problem_make(&shape, 0);
    fill_all(p, 0, 0, 1);
    problem_mask(p, MASK_F32, 2, 12);
    value_line(p, 0, 0, 0)[0] = 0;
    p->flags_free = 0; /* one mask entry is a NaN */
    float *mask = p->mask;
    for (int64_t i = 0; i < rows; i++) {
        mask[2 * i] = 0;
        mask[2 * i + 1] = i < COUNT(extremes) ? extremes[i] : -0.35f * (float)i;
    }
    struct answer a = answer_of(s, p);
    for (int64_t i = 0; i < rows; i++) {
        const double score = (double)mask[2 * i + 1], got = (double)out_line(p, &a, 0, i, 0)[0];
        const double exact = exp(score) / (1 + exp(score));
        if (isnan(score))
            CHECK(isnan(got), "score NaN: weight %g", got);
        else if (score > -86)
            CHECK(fabs(got - exact) <= (8 - 2 * score) * 0x1p-24 * exact,
                  "score %g: weight %.9g, expected %.9g", score, got, exact);
        else
            CHECK(got >= 0 && got <= 1.01 * exact && (score > -104 || got == 0),
                  "score %g: weight %g", score, got);
    }
    answer_free(&a);
    problem_free(p);
}

static void e05(const struct subject *s)
{
    for (int64_t n = 1; n <= 67; n += quick ? 6 : 1) {
        const struct shape all = {1, n, n, 1, 1, n, 68 - n}, keys = {1, 3, n, 2, 1, 5, n},
                           rows = {1, n, 3, 1, 1, 68 - n, 2};
        expect_reference(s, problem_make(&all, (uint64_t)n));
        expect_reference(s, problem_make(&keys, (uint64_t)n));
        expect_reference(s, problem_make(&rows, (uint64_t)n));
    }
}

const struct entry number_cases[] = {
    {"D11", "heads of a group, side by side", d11},
    {"D13", "groups as large as anyone's", d13},
    {"E01", "equal keys give the value, whatever its size", e01},
    {"E03", "weights of very low scores", e03},
    {"E05", "every length up to 67", e05},
    {0},
};
