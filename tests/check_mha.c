/* The layer on every row that runs here and on 1, 2, 3 and 7 threads: against the reference under
 * its bounds, against the scalar row bit by bit, with weights stored in every way. --quick takes a
 * sample. */
#include "check_mha.h"

#include <stdio.h>

#include "cpu/kernels.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { MAX_ROWS = 8 };

static const int thread_counts[4] = {1, 2, 3, 7};
static struct subject subjects[MAX_ROWS];
static int subject_count;
int quick;
static headway_engine *scalar;
static unsigned turn;
static double worst;

static void run_on(const struct subject *s, const struct layer *l, const struct expected *e,
                   const struct answer *base)
{
    for (int t = 0; t < 4; t++) {
        const headway_engine *engine = s->engines[t];
        const enum storage storage = turn % STORAGES;
        const enum layout layout = turn % LAYOUTS;
        const int at_end = turn++ % 3 != 0;
        char what[100];
        headway_mha *mha = layer_create(engine, l, storage);
        if (!mha)
            continue;
        struct answer a = forward(engine, mha, l, layout, at_end);
        const double error = compare_layer(l, &a, e);
        worst = error > worst ? error : worst;
        snprintf(what, sizeof what, "%s on %d threads, storage %d, layout %d, against scalar",
                 s->isa, thread_counts[t], storage, layout);
        compare_bits(&a, base, what);
        answer_free(&a);
        headway_mha_destroy(mha);
    }
}

static void run(struct layer *l, const char *group)
{
    if (check_case("%s: %s, widths %lld %lld %lld %lld", group, problem_name(l->options),
                   (long long)l->widths.in[0], (long long)l->widths.in[1],
                   (long long)l->widths.in[2], (long long)l->widths.out)) {
        struct expected e = expect_layer(l);
        struct answer base = forward_once(scalar, l);
        for (int i = 0; i < subject_count; i++)
            run_on(&subjects[i], l, &e, &base);
        answer_free(&base);
        expected_free(&e);
    }
    layer_free(l);
}

static void run_lengths(void)
{
    static const int64_t lengths[] = {1, 2, 7, 15, 16, 17, 31, 33, 47, 49, 63, 65, 127, 129, 257};
    const int n = COUNT(lengths);
    for (int i = 0; i < n - 3 * quick; i++) {
        const struct shape self = {1 + i % 3, lengths[i], lengths[i], 4, i % 2 ? 4 : 2, 16, 16};
        struct layer *l = layer_make(&self, NULL, (uint64_t)i);
        problem_causal(l->options, (headway_causal)(i % 4));
        if (i % 5 == 2)
            problem_mask(l->options, i % 2 ? MASK_BOOL : MASK_F32, 4, 13);
        layer_share(l, 1);
        if (i % 3 == 1)
            layer_lengths(l, 1, 1);
        run(l, "self");
        const struct shape cross = {1 + i % 2, lengths[i], lengths[(i * 4 + 3) % n], 3, 3, 8, 12};
        const struct widths widths = {{24, 40, 40}, 20};
        l = layer_make(&cross, &widths, (uint64_t)i);
        layer_share(l, 0);
        if (i % 3 == 0)
            layer_lengths(l, i % 2, 1);
        run(l, "cross");
    }
}

static void run_widths(void)
{
    static const struct {
        struct shape shape;
        struct widths widths;
    } layers[] = {{{2, 9, 11, 1, 1, 1, 1}, {{1, 1, 1}, 1}},
                  {{1, 17, 5, 2, 1, 3, 5}, {{7, 3, 2}, 9}},
                  {{2, 12, 30, 6, 2, 16, 8}, {{33, 47, 65}, 130}},
                  {{1, 40, 40, 8, 1, 24, 24}, {{48, 48, 48}, 48}},
                  {{1, 25, 31, 5, 5, 20, 33}, {{100, 61, 17}, 77}},
                  {{3, 5, 6, 2, 2, 64, 80}, {{128, 128, 128}, 16}},
                  {{1, 20, 20, 12, 12, 32, 32}, {{384, 384, 384}, 384}}};
    for (int n = 0; n < COUNT(layers) - quick; n++)
        for (int biases = 0; biases < 16; biases += quick ? 15 : n == 2 ? 1 : 5) {
            struct layer *l =
                layer_make(&layers[n].shape, &layers[n].widths, (uint64_t)(n + biases));
            for (int i = 0; i < PROJECTIONS; i++)
                if (!(biases >> i & 1))
                    layer_drop_bias(l, i);
            run(l, "widths");
        }
}

/* Bits of `what`: which options a layer has. */
enum { INTERLEAVED = 1, PARTIAL = 2, NORMS = 4, MORE = 8, ZERO = 16, PLACES = 32 };

static struct layer *make_extras(int what, const struct shape *shape, uint64_t seed)
{
    struct layer *l = layer_make(shape, NULL, seed);
    l->rope.style = what & INTERLEAVED ? HEADWAY_ROPE_INTERLEAVED : HEADWAY_ROPE_HALF;
    l->rope.rotary_size = what & PARTIAL ? shape->size / 4 * 2 : 0;
    l->rope.theta = what & PARTIAL ? 500000 : 0;
    l->rope.positions = 1024;
    l->zero = (what & ZERO) != 0;
    l->norm_eps = what & ZERO ? 1e-5f : 0;
    if (what & NORMS)
        layer_norms(l);
    if (what & MORE)
        layer_more(l);
    return l;
}

/* Every choice of them, with lengths, causality, masks and weights as they come. */
static void run_extras(void)
{
    static const struct shape shapes[] = {{2, 5, 7, 4, 2, 8, 8},
                                          {1, 33, 33, 2, 2, 16, 12},
                                          {3, 17, 40, 3, 1, 12, 20},
                                          {1, 70, 140, 2, 1, 64, 64}};
    for (int what = 0; what < 64; what += quick ? 5 : 1) {
        const struct shape *shape = &shapes[what % 4 * 7 % 4];
        struct layer *l = make_extras(what, shape, (uint64_t)what);
        struct problem *p = l->options;
        problem_causal(p, what % 3 == 1 ? HEADWAY_CAUSAL_TOP_LEFT : HEADWAY_CAUSAL_NONE);
        if (what % 5 == 2) {
            p->has_offsets = p->causal == HEADWAY_CAUSAL_NONE;
            p->causal = p->has_offsets ? HEADWAY_CAUSAL_NONE : HEADWAY_CAUSAL_OFFSETS;
            for (int64_t b = 0; b < shape->batch; b++)
                p->offsets[b] = 3 + 100 * b;
        }
        p->weights = (enum weights_kind)(what % 7 % 3);
        if (what % 4 == 3)
            problem_mask(p, what % 8 == 3 ? MASK_BOOL : MASK_F32, 4, 15);
        if (what % 11 == 0 && shape->queries == shape->keys)
            layer_share(l, 1);
        if (what % 3 == 2)
            layer_lengths(l, 1, 1);
        if (what & PLACES) {
            layer_positions(l, QUERY, what % 2 ? shape->batch : 0, 1024);
            if (what % 7 < 5)
                layer_positions(l, KEY, what % 2 ? shape->batch : 0, 1024);
        }
        run(l, "norms, rotary embedding, appended keys");
    }
}

static void run_packed(void)
{
    static const struct shape shapes[] = {
        {1, 9, 9, 2, 2, 8, 8}, {1, 75, 75, 4, 2, 16, 8}, {1, 130, 200, 2, 1, 24, 24}};
    for (int n = 0; n < 12; n += quick ? 5 : 1) {
        struct layer *l = make_extras(n % 4 ? MORE | NORMS : ZERO, &shapes[n % 3], (uint64_t)n);
        layer_pack(l, 1 + n % 3 * 3);
        problem_causal(l->options, n & 1 ? HEADWAY_CAUSAL_TOP_LEFT : HEADWAY_CAUSAL_NONE);
        if (n >= 6)
            layer_positions(l, QUERY, n & 1, 1024);
        run(l, "packed sequences");
    }
}

/* Every storage of one layer by itself: run() takes what comes. */
static void run_storages(const struct subject *s)
{
    const struct shape shape = {2, 9, 9, 3, 3, 8, 8}, grouped = {2, 9, 9, 4, 2, 8, 12};
    const struct widths widths = {{32, 32, 32}, 24};
    for (int n = 0; n < 2; n++) {
        struct layer *l = layer_make(n ? &grouped : &shape, &widths, (uint64_t)n);
        struct answer base = forward_once(scalar, l);
        for (int storage = 0; storage < STORAGES; storage++) {
            if (!check_case("%s: storage %d, %s", s->isa, storage, problem_name(l->options)))
                continue;
            headway_mha *mha = layer_create(s->engines[0], l, (enum storage)storage);
            CHECK(mha || (storage == STORED_INTERLEAVED && n), "no layer");
            if (!mha)
                continue;
            struct answer a = forward(s->engines[0], mha, l, LAYOUT_DENSE, 1);
            compare_bits(&a, &base, "stored otherwise");
            answer_free(&a);
            headway_mha_destroy(mha);
        }
        answer_free(&base);
        layer_free(l);
    }
}

static void begin(void)
{
    const struct headway_row *row;
    int index = 0;
    scalar = engine_make("scalar", 1);
    while ((row = check_next_row(&index)) && subject_count < MAX_ROWS) {
        struct subject *s = &subjects[subject_count++];
        s->isa = row->name;
        for (int t = 0; t < 4; t++)
            s->engines[t] = engine_make(s->isa, thread_counts[t]);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    quick = (int)check_option("--quick", 0);
    begin();
    if (subject_count) {
        check_tables();
        run_lengths();
        run_widths();
        run_extras();
        run_packed();
        printf("largest error: %.3g of its bound\n", worst);
    }
    for (int i = 0; i < subject_count; i++) {
        run_storages(&subjects[i]);
        check_layer_cases(&subjects[i]);
        check_layer_extras(&subjects[i]);
        check_layer_cache(&subjects[i], scalar);
        check_layer_packed(&subjects[i]);
    }
    for (int i = 0; i < subject_count; i++)
        for (int t = 0; t < 4; t++)
            headway_engine_destroy(subjects[i].engines[t]);
    headway_engine_destroy(scalar);
    return check_end();
}
