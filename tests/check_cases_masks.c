/* Families B and C: what masks mean and how they are read; where causality is anchored. */
#include <math.h>
#include <string.h>

#include "check_cases.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static void b01(const struct subject *s)
{
    static const int64_t lengths[] = {4, 17, 131};
    for (int n = 0; n < COUNT(lengths); n++) {
        const struct shape shape = {1, lengths[n], lengths[n], 2, 2, 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        problem_mask(p, MASK_F32, 2, 12);
        float *mask = p->mask;
        check_fill_normal(&p->random, mask, shape.queries * shape.keys, 1);
        struct answer a = answer_of(s, p);
        for (int64_t j = 0; j < shape.keys; j++)
            mask[2 * shape.keys + j] += 7;
        struct answer b = answer_of(s, p);
        for (int64_t x = 0; x < a.outs; x++)
            CHECK(fabsf(a.out[x] - b.out[x]) <= 1e-5f, "a row's mask shifted by 7: %g became %g",
                  (double)a.out[x], (double)b.out[x]);
        answer_free(&a);
        answer_free(&b);
        expect_reference(s, p);
    }
}

static void b03(const struct subject *s)
{
    static const int64_t lengths[] = {4, 60, 300};
    for (int n = 0; n < COUNT(lengths); n++)
        for (int kind = MASK_BOOL; kind <= MASK_F32; kind++) {
            const struct shape shape = {2, lengths[n], lengths[n], 2, 1, 8, 8};
            struct problem *p = problem_make(&shape, (uint64_t)n);
            problem_mask(p, (enum mask_kind)kind, 4, 9);
            for (int64_t b = 0; b < 2; b++)
                for (int64_t j = 0; j < shape.keys; j++) {
                    const int valid = j < shape.keys - 2 + b;
                    const int64_t at = mask_index(p, b, 0, 0, j);
                    if (kind == MASK_BOOL)
                        ((unsigned char *)p->mask)[at] = (unsigned char)valid;
                    else
                        ((float *)p->mask)[at] = valid ? 0.0f : -INFINITY;
                    if (!valid)
                        fill(value_line(p, b, j, 0), 8, 1e6f);
                }
            struct answer a = answer_of(s, p);
            for (int64_t x = 0; x < a.outs; x++)
                CHECK(fabsf(a.out[x]) < 10, "a masked value shows: %g", (double)a.out[x]);
            answer_free(&a);
            expect_reference(s, p);
        }
}

static void b05(const struct subject *s)
{
    static unsigned char mask[400];
    static const int64_t refused[][5] = {
        {3, 2, 3, 5},    {3, 4, 3, 5},    {3, 1, 3, 5}, {4, 4, 1, 3, 5}, {4, 2, 4, 3, 5},
        {4, 2, 2, 3, 4}, {4, 2, 2, 2, 5}, {2, 2, 5},    {2, 3, 4},       {1, 3}};
    const struct shape shape = {2, 3, 5, 2, 2, 4, 4};
    struct problem *p = problem_make(&shape, 0);
    float out[2 * 3 * 2 * 4];
    memset(mask, 1, sizeof mask);
    for (int n = 0; n < COUNT(refused); n++) {
        const headway_tensor tensor =
            headway_tensor_dense(mask, HEADWAY_BOOL, (int)refused[n][0], refused[n] + 1);
        fill(out, COUNT(out), 42);
        const headway_status status = call_with_mask(s, p, &tensor, out);
        CHECK(status == HEADWAY_ERROR_ARGUMENT, "mask shape %d: %s", n,
              headway_status_text(status));
        for (int x = 0; x < COUNT(out); x++)
            CHECK(out[x] == 42, "mask shape %d: out was written", n);
    }
    problem_mask(p, MASK_BOOL, 4, 9);
    memset(p->mask, 1, 10);
    ((unsigned char *)p->mask)[5] = 0; /* key 0 of batch 1 */
    fill(value_line(p, 1, 0, 0), 8, 1e6f);
    expect_reference(s, p);
}

static void b07(const struct subject *s)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    for (unsigned n = 0; n < 64; n++) {
        const struct shape shape = {2, 19, 133, 4, 1, 8, 8};
        struct problem *p = problem_make(&shape, n);
        problem_mask(p, (enum mask_kind)(MASK_BOOL + (int)(n >> 4)), 4, n & 15);
        struct answer a = answer_of(s, p);
        problem_mask_expand(p);
        struct answer b = answer_of(s, p);
        compare_bits(&a, &b, "a broadcast mask");
        answer_free(&a);
        answer_free(&b);
        problem_free(p);
    }
    for (int rank = 1; rank <= 4; rank++) {
        static const unsigned char never = 0;
        const struct shape shape = {1, 2, 3, 1, 1, 2, 2};
        struct problem *p = problem_make(&shape, 0);
        const headway_tensor tensor =
            headway_tensor_dense((void *)(uintptr_t)&never, HEADWAY_BOOL, rank, one);
        float out[4] = {1, 1, 1, 1};
        const headway_status status = call_with_mask(s, p, &tensor, out);
        CHECK(status == (rank == 3 ? HEADWAY_ERROR_ARGUMENT : HEADWAY_OK), "rank %d: %s", rank,
              headway_status_text(status));
        CHECK(rank == 3 || out[0] == 0, "one false for all: %g", (double)out[0]);
        problem_free(p);
    }
}

static void b09(const struct subject *s)
{
    static const int64_t keys[] = {1, 15, 16, 17, 64, 129, 600};
    for (int n = 0; n < COUNT(keys); n++) {
        const struct shape shape = {2, 9, keys[n], 2, 1, 4, 4};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        struct answer without = answer_of(s, p);
        problem_mask(p, MASK_F32, 4, 5);
        for (int64_t i = 0; i < 18; i++)
            ((float *)p->mask)[i] = i % 3 == 0 ? 0.0f : i % 3 == 1 ? -INFINITY : 3.5f;
        struct answer with = attend(s->seven, p, LAYOUT_ODD, 1);
        for (int64_t i = 0; i < 9; i++) {
            if (i % 3 == 1) {
                expect_no_key(p, &with, i);
                continue;
            }
            for (int64_t b = 0; b < 2; b++)
                for (int64_t x = 0; x < 8; x++) {
                    const float got = out_line(p, &with, b, i, 0)[x];
                    const float expected = out_line(p, &without, b, i, 0)[x];
                    CHECK(fabsf(got - expected) <= (i % 3 == 0 ? 0.0f : 1e-5f),
                          "row %lld: %g, %g without", (long long)i, (double)got, (double)expected);
                }
        }
        answer_free(&with);
        answer_free(&without);
        expect_reference(s, p);
    }
}

static void b11(const struct subject *s)
{
    for (unsigned bits = 0; bits < 32; bits++) {
        const struct shape shape = {1, 1, 5, 2, 1, 4, 4};
        struct problem *p = problem_make(&shape, bits);
        problem_mask(p, MASK_BOOL, 4, 8);
        for (int j = 0; j < 5; j++)
            ((unsigned char *)p->mask)[j] = bits >> j & 1;
        expect_reference(s, p);
    }
}

static void b13(const struct subject *s)
{
    for (int64_t keys = 2; keys < 40; keys += 5) {
        const struct shape shape = {1, 7, keys, 1, 1, 4, 4};
        struct problem *p = problem_make(&shape, 0);
        problem_mask(p, MASK_F32, 2, 12);
        for (int64_t n = 0; n < 7 * keys; n++)
            ((float *)p->mask)[n] = (float)(n % 2);
        expect_reference(s, p);
    }
}

/* All extents full, strides 0. */
static void b15(const struct subject *s)
{
    const struct shape shape = {8, 33, 33, 2, 2, 8, 8};
    const int64_t full[4] = {8, 2, 33, 33};
    static const int64_t strides[][4] = {{0, 33, 1, 0}, {0, 0, 1, 0}, {0, 33, 0, 1}, {0, 0, 0, 0}};
    for (int n = 0; n < COUNT(strides); n++) {
        float line[66], out[8 * 33 * 2 * 8];
        struct problem *p = problem_make(&shape, (uint64_t)n);
        for (int x = 0; x < COUNT(line); x++)
            line[x] = x % 7 == 3 ? -INFINITY : check_normal(&p->random);
        headway_tensor mask = headway_tensor_dense(line, HEADWAY_F32, 4, full);
        memcpy(mask.stride, strides[n], sizeof strides[n]);
        CHECK(call_with_mask(s, p, &mask, out) == HEADWAY_OK, "strides %d", n);
        problem_mask(p, MASK_F32, 4, 15);
        for (int64_t b = 0; b < 8; b++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t i = 0; i < 33; i++)
                    for (int64_t j = 0; j < 33; j++)
                        ((float *)p->mask)[mask_index(p, b, h, i, j)] =
                            line[h * strides[n][1] + i * strides[n][2] + j * strides[n][3]];
        struct answer a = answer_of(s, p);
        check_bits(out, a.out, a.outs, "strides of 0 in full extents");
        answer_free(&a);
        problem_free(p);
    }
}

static void b17(const struct subject *s)
{
    for (int64_t keys = 1; keys <= 400; keys += quick ? 21 : 1) {
        const struct shape shape = {1, 3, keys, 1, 1, 4, 3};
        struct problem *p = problem_make(&shape, (uint64_t)keys);
        problem_mask(p, keys & 1 ? MASK_BOOL : MASK_F32, 2, keys & 2 ? 8 : 12);
        expect_reference(s, p);
    }
}

/* ---- causality --------------------------------------------------------------------------------
 */

static void c01(const struct subject *s)
{
    for (int64_t queries = 1; queries <= 20; queries += quick ? 6 : 1)
        for (int64_t keys = 1; keys <= 40; keys += quick ? 9 : 1)
            for (int causal = HEADWAY_CAUSAL_TOP_LEFT; causal <= HEADWAY_CAUSAL_BOTTOM_RIGHT;
                 causal++) {
                const struct shape shape = {1, queries, keys, 1, 1, 2, 1};
                struct problem *p = problem_make(&shape, 0);
                fill_all(p, 0, 1, 0);
                number_values(p);
                p->causal = (headway_causal)causal;
                struct answer a = answer_of(s, p);
                for (int64_t i = 0; i < queries; i++) {
                    const int64_t last =
                        i + (causal == HEADWAY_CAUSAL_TOP_LEFT ? 0 : keys - queries);
                    if (last < 0)
                        expect_no_key(p, &a, i);
                    else
                        expect_row(p, &a, i, (double)(last < keys ? last : keys - 1) / 2, 1);
                }
                answer_free(&a);
                problem_free(p);
            }
}

/* Is the answer that of the explicit mask j <= i + offset? */
static int is_masked_by(const struct subject *s, const struct problem *p, const struct answer *a,
                        int64_t offset)
{
    struct problem *q = problem_copy(p);
    q->causal = HEADWAY_CAUSAL_NONE;
    problem_mask_full(q, MASK_BOOL);
    for (int64_t h = 0; h < p->shape.heads; h++)
        for (int64_t i = 0; i < p->shape.queries; i++)
            for (int64_t j = 0; j < p->shape.keys; j++)
                ((unsigned char *)q->mask)[mask_index(q, 0, h, i, j)] = j <= i + offset;
    struct answer b = answer_of(s, q);
    const int same = memcmp(a->out, b.out, (size_t)a->outs * sizeof(float)) == 0;
    answer_free(&b);
    problem_free(q);
    return same;
}

static void c03(const struct subject *s)
{
    static const int64_t shapes[][2] = {{1, 16}, {2, 4}, {4, 4}, {16, 4}, {5, 140}, {140, 5}};
    for (int n = 0; n < COUNT(shapes); n++) {
        const struct shape shape = {1, shapes[n][0], shapes[n][1], 4, 4, 64, 64};
        const int64_t right = shape.keys - shape.queries;
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_TOP_LEFT;
        struct answer a = answer_of(s, p);
        CHECK(is_masked_by(s, p, &a, 0), "top-left is not its mask");
        CHECK(right == 0 || !is_masked_by(s, p, &a, right), "top-left is the mask of bottom-right");
        answer_free(&a);
        p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        a = answer_of(s, p);
        CHECK(is_masked_by(s, p, &a, right), "bottom-right is not its mask");
        CHECK(right == 0 || !is_masked_by(s, p, &a, 0), "bottom-right is the mask of top-left");
        answer_free(&a);
        problem_free(p);
    }
}

/* Values are one-hot: the output row is the row of weights. */
static void c05(const struct subject *s)
{
    static const int64_t cases[][3] = {
        {16, 48, 64}, {16, 0, 64}, {1, 63, 64}, {7, 120, 130}, {20, -5, 64}};
    for (int n = 0; n < COUNT(cases); n++) {
        const struct shape shape = {1, cases[n][0], cases[n][2], 1, 1, 8, cases[n][2]};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        fill(p->value, shape.keys * shape.keys, 0);
        for (int64_t j = 0; j < shape.keys; j++)
            value_line(p, 0, j, 0)[j] = 1;
        p->causal = HEADWAY_CAUSAL_OFFSETS;
        p->offsets[0] = cases[n][1];
        struct answer a = answer_of(s, p);
        for (int64_t i = 0; i < shape.queries; i++)
            for (int64_t j = 0; j < shape.keys; j++)
                CHECK((out_line(p, &a, 0, i, 0)[j] > 0) == (j <= i + cases[n][1]),
                      "weight of key %lld in row %lld is %g", (long long)j, (long long)i,
                      (double)out_line(p, &a, 0, i, 0)[j]);
        answer_free(&a);
        problem_free(p);
    }
}

static void c07(const struct subject *s)
{
    static const int64_t histories[] = {0, 63, 64, 65, 127, 128, 129, 511, 512};
    for (int n = 0; n < COUNT(histories); n++) {
        const struct shape shape = {1, 5, histories[n] + 5, 2, 1, 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        p->flags_free = 0;
        struct answer a = answer_of(s, p);
        for (int change = 0; change < 3; change++) {
            for (int64_t j = histories[n] + 1; j < shape.keys; j++) {
                fill(key_line(p, 0, j, 0), 8, change == 0 ? 100.0f : change == 1 ? NAN : INFINITY);
                fill(value_line(p, 0, j, 0), 8,
                     change == 0   ? -1e30f
                     : change == 1 ? INFINITY
                                   : NAN);
                fill(query_line(p, 0, j - histories[n], 0), 16, change == 0 ? 3.0f : NAN);
            }
            struct answer b = answer_of(s, p);
            check_bits(out_line(p, &b, 0, 0, 0), out_line(p, &a, 0, 0, 0), 16, "row 0");
            answer_free(&b);
        }
        answer_free(&a);
        problem_free(p);
    }
}

const struct entry mask_cases[] = {
    {"B01", "float masks are added", b01},
    {"B03", "masked values do not show", b03},
    {"B05", "shapes that could mean two things are refused", b05},
    {"B07", "all broadcasts", b07},
    {"B09", "a mask broadcast along keys", b09},
    {"B11", "masks with holes", b11},
    {"B13", "a float mask of 0 and 1", b13},
    {"B15", "strides of 0", b15},
    {"B17", "masks that end at the page", b17},
    {"C01", "where causality is anchored", c01},
    {"C03", "exactly one explicit mask matches", c03},
    {"C05", "which keys have a weight", c05},
    {"C07", "later tokens do not leak", c07},
    {0},
};
