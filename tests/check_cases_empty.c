/* Family A: rows that see no key, and infinities in the online softmax. */
#include <float.h>
#include <math.h>

#include "check_cases.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static float *float_mask_at(const struct problem *p, int64_t i, int64_t j)
{
    return (float *)p->mask + mask_index(p, 0, 0, i, j);
}

/* Leading blocks of the band are empty for later rows: the running maximum is -inf when they begin.
 */
static void a01(const struct subject *s)
{
    static const int64_t lengths[] = {9, 127, 128, 129, 257, 511, 512, 513, 640, 1025};
    static const float constants[] = {1.0f, -3.25f, 0x1p100f, 0x1p-100f};
    for (int n = 0; n < COUNT(lengths) - 3 * quick; n++) {
        const struct shape shape = {1, lengths[n], lengths[n], 1, 1, 4, 4};
        struct problem *p = problem_make(&shape, 0);
        const float c = constants[n % 4];
        fill_all(p, 1, 1, c);
        problem_mask(p, MASK_F32, 2, 12);
        for (int64_t i = 0; i < shape.queries; i++)
            for (int64_t j = 0; j < shape.keys; j++)
                *float_mask_at(p, i, j) = i - 9 <= j && j <= i ? 0.0f : -INFINITY;
        struct answer a = answer_of(s, p), b = attend(s->seven, p, LAYOUT_ODD, 0);
        for (int64_t i = 0; i < shape.queries; i++)
            expect_row(p, &a, i, (double)c, 1);
        compare_bits(&b, &a, "seven threads");
        answer_free(&a);
        answer_free(&b);
        problem_free(p);
    }
}

static void a03(const struct subject *s)
{
    static const int64_t lengths[] = {1, 2, 6, 17, 33};
    for (int n = 0; n < COUNT(lengths); n++)
        for (int64_t dead = 0; dead < lengths[n]; dead += 1 + lengths[n] / 6) {
            const struct shape shape = {1, lengths[n], lengths[n] + 4, 2, 2, 8, 8};
            struct problem *p = problem_make(&shape, (uint64_t)dead);
            p->has_scale = 1;
            p->scale = 0.125f;
            problem_mask(p, MASK_BOOL, 2, 12);
            unsigned char *mask = p->mask;
            for (int64_t i = 0; i < shape.queries; i++)
                for (int64_t j = 0; j < shape.keys; j++)
                    mask[i * shape.keys + j] = j <= i;
            struct answer alive = answer_of(s, p);
            for (int64_t j = 0; j < shape.keys; j++)
                mask[dead * shape.keys + j] = 0;
            struct answer a = answer_of(s, p);
            expect_no_key(p, &a, dead);
            for (int64_t i = 0; i < shape.queries; i++)
                if (i != dead)
                    check_bits(out_line(p, &a, 0, i, 0), out_line(p, &alive, 0, i, 0), 2 * 8,
                               "a row beside the dead one");
            answer_free(&alive);
            answer_free(&a);
            expect_reference(s, p);
        }
}

static void a05(const struct subject *s)
{
    static const float scores[] = {0.0f, -1e3f, 1e3f};
    for (int64_t keys = 1; keys <= (quick ? 20 : 140); keys += keys < 20 ? 1 : 7)
        for (int n = 0; n < COUNT(scores); n++) {
            const struct shape shape = {1, 3, keys, 1, 1, 4, 4};
            struct problem *p = problem_make(&shape, (uint64_t)keys);
            problem_mask(p, MASK_F32, 2, 12);
            number_values(p);
            for (int64_t j = 0; j < keys; j++) {
                *float_mask_at(p, 0, j) = -FLT_MAX;
                *float_mask_at(p, 1, j) = *float_mask_at(p, 2, j) = 1.0f;
            }
            fill(p->query, shape.size, 1);
            for (int64_t j = 0; j < keys && n; j++)
                fill(key_line(p, 0, j, 0), 4, scores[n] / 4 + (float)(j % 5));
            struct answer a = answer_of(s, p);
            expect_row(p, &a, 0, (double)((float)(keys * (keys - 1) / 2) / (float)keys), 1);
            answer_free(&a);
            expect_reference(s, p);
        }
}

/* Uniform weights although every logit lies far below a guard value of 0. */
static void a09(const struct subject *s)
{
    static const float keys[] = {-20.0f, -1000.0f, -1e30f};
    for (int n = 0; n < 2 * COUNT(keys); n++) {
        const struct shape shape = {1, 88, n & 1 ? 448 : 1100, 7, 1, 1, 1};
        struct problem *p = problem_make(&shape, 0);
        fill_all(p, 10, keys[n / 2], 0);
        number_values(p);
        p->has_scale = 1;
        p->scale = 1;
        for (int causal = HEADWAY_CAUSAL_TOP_LEFT; causal <= HEADWAY_CAUSAL_BOTTOM_RIGHT;
             causal++) {
            p->causal = (headway_causal)causal;
            struct answer a = answer_of(s, p), b = attend(s->seven, p, LAYOUT_BHLD, 0);
            for (int64_t i = 0; i < shape.queries; i++)
                expect_row(p, &a, i, (double)(i + causal_offset(p, 0)) / 2, 1);
            compare_bits(&b, &a, "seven threads");
            answer_free(&a);
            answer_free(&b);
        }
        problem_free(p);
    }
}

static void a11(const struct subject *s)
{
    static const int64_t lengths[3][2] = {{126, 0}, {0, 83}, {60, 77}};
    for (int order = 0; order < 6; order++) {
        const struct shape shape = {3, 126, 83, 2, 1, 16, 16};
        struct problem *p = problem_make(&shape, (uint64_t)order);
        problem_lengths(p, 1, 1);
        for (int b = 0; b < 3; b++) {
            const int from = order < 3 ? (b + order) % 3 : (order - b) % 3;
            p->query_lengths[b] = lengths[from][0];
            p->key_lengths[b] = lengths[from][1];
        }
        const int64_t keys = 83 * 3;
        check_fill_normal(&p->random, p->key, keys * 16, 1);
        check_fill_normal(&p->random, p->value, keys * 16, 1);
        expect_reference(s, p);
    }
}

static void a13(const struct subject *s)
{
    for (int64_t keys = 1; keys <= 140; keys += keys < 67 && !quick ? 1 : 19)
        for (int kind = MASK_BOOL; kind <= MASK_F32; kind++) {
            const struct shape shape = {1, 1 + keys % 35, keys, 1, 1, 3, 5};
            struct problem *p = problem_make(&shape, 0);
            problem_mask_full(p, (enum mask_kind)kind);
            for (int64_t n = 0; n < shape.queries * keys; n++)
                if (kind == MASK_BOOL)
                    ((unsigned char *)p->mask)[n] = 0;
                else
                    ((float *)p->mask)[n] = -INFINITY;
            struct answer a = answer_of(s, p);
            for (int64_t i = 0; i < shape.queries; i++)
                expect_no_key(p, &a, i);
            answer_free(&a);
            problem_free(p);
        }
}

static void a15(const struct subject *s)
{
    for (int64_t keys = 5; keys <= 300; keys += quick ? 59 : 13)
        for (int n = 0; n < 3; n++) {
            const struct shape shape = {1, 1, keys, 1, 1, 4, 2};
            struct problem *p = problem_make(&shape, (uint64_t)keys);
            const int64_t finite[3] = {n, keys / 2 + 1, keys - 1};
            problem_mask(p, MASK_F32, 1, 8);
            for (int64_t j = 0; j < keys; j++) {
                ((float *)p->mask)[j] = -INFINITY;
                fill(value_line(p, 0, j, 0), 2, 1e6f);
            }
            for (int x = 0; x < 3; x++) {
                ((float *)p->mask)[finite[x]] = -FLT_MAX;
                fill(value_line(p, 0, finite[x], 0), 2, (float)(x + 1));
            }
            struct answer a = answer_of(s, p);
            expect_row(p, &a, 0, 2, 1);
            answer_free(&a);
            expect_reference(s, p);
        }
}

static void a17(const struct subject *s)
{
    static const int64_t lengths[] = {1, 4, 16, 33, 130};
    static const float scales[] = {-0.5f, 0.0f, -1e-3f};
    for (int n = 0; n < COUNT(lengths); n++) {
        const struct shape shape = {1, lengths[n], lengths[n], 2, 1, 4, 4};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_TOP_LEFT;
        struct answer without = answer_of(s, p);
        problem_mask_full(p, MASK_BOOL);
        struct answer with = answer_of(s, p);
        compare_bits(&with, &without, "causal with a mask of true");
        answer_free(&with);
        answer_free(&without);
        problem_free(p);
        for (int x = 0; x < COUNT(scales); x++) {
            p = problem_make(&shape, (uint64_t)n);
            p->has_scale = 1;
            p->scale = scales[x];
            if (p->scale == 0) {
                number_values(p);
                struct answer a = answer_of(s, p);
                for (int64_t i = 0; i < shape.queries; i++)
                    expect_row(p, &a, i, (double)(shape.keys - 1) / 2, 1);
                answer_free(&a);
            }
            expect_reference(s, p);
        }
    }
}

const struct entry empty_cases[] = {
    {"A01", "bands whose blocks are empty for some rows", a01},
    {"A03", "one row sees nothing", a03},
    {"A05", "the lowest finite mask value ties", a05},
    {"A09", "logits far below zero", a09},
    {"A11", "lengths of 0 and poisoned memory", a11},
    {"A13", "rows of nothing but -inf, of every length", a13},
    {"A15", "the lowest finite value among -inf", a15},
    {"A17", "masks of true; negative and zero scales", a17},
    {0},
};
