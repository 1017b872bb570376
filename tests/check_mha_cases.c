/* What the layer must not depend on, what it must give where nothing is seen, and several host
 * threads in one layer. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check_mha.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static float *out_row(const struct layer *l, const struct answer *a, int64_t b, int64_t i)
{
    return a->out + (b * l->options->shape.queries + i) * l->widths.out;
}

/* Batch b alone; a mask must be the same for all batches. */
static struct layer *layer_batch(const struct layer *l, int64_t b)
{
    const struct shape *s = &l->options->shape;
    struct shape shape = *s;
    shape.batch = 1;
    struct layer *one = layer_make(&shape, &l->widths, 0);
    problem_free(one->options);
    one->options = problem_copy(l->options);
    one->options->shape.batch = 1;
    one->options->offsets[0] = l->options->offsets[b];
    one->options->query_lengths[0] = l->options->query_lengths[b];
    one->options->key_lengths[0] = l->options->key_lengths[b];
    for (int i = 0; i < PROJECTIONS; i++) {
        const int64_t outputs = outputs_of(l, i), inputs = inputs_of(l, i);
        memcpy(one->weight[i], l->weight[i], (size_t)(outputs * inputs) * sizeof(float));
        if (l->bias[i])
            memcpy(one->bias[i], l->bias[i], (size_t)outputs * sizeof(float));
        else
            layer_drop_bias(one, i);
    }
    for (int i = QUERY; i <= VALUE; i++) {
        const int64_t rows = i == QUERY ? s->queries : s->keys;
        memcpy(one->tokens[i], token(l, i, b, 0), (size_t)(rows * l->widths.in[i]) * sizeof(float));
    }
    return one;
}

static void check_alone(const struct subject *s)
{
    static const struct shape shapes[] = {
        {2, 3, 3, 8, 8, 16, 16}, {4, 21, 35, 4, 2, 8, 12}, {3, 70, 70, 2, 1, 32, 32}};
    for (int n = 0; n < 6; n++) {
        struct layer *l = layer_make(&shapes[n / 2], NULL, (uint64_t)n);
        problem_causal(l->options, (headway_causal)(n % 4));
        if (n & 1)
            layer_lengths(l, n == 3, 1);
        if (n >= 4)
            problem_mask(l->options, MASK_BOOL, 4, 14);
        if (check_case("%s: R03 a batch as its parts, %s", s->isa, problem_name(l->options))) {
            headway_mha *mha = layer_create(s->engines[3], l, STORED_PLAIN);
            struct answer whole = forward(s->engines[3], mha, l, LAYOUT_DENSE, 0);
            for (int64_t b = 0; b < l->options->shape.batch; b++) {
                struct layer *one = layer_batch(l, b);
                struct answer a = forward_once(s->engines[0], one);
                check_bits(a.out, out_row(l, &whole, b, 0), a.outs, "alone");
                check_bits(a.lse, whole.lse + b * a.lses, a.lses, "alone, lse");
                answer_free(&a);
                layer_free(one);
            }
            answer_free(&whole);
            headway_mha_destroy(mha);
        }
        layer_free(l);
    }
}

/* Rows without a key give the output bias to the bit, or 0. */
static void check_empty_rows(const struct subject *s)
{
    const struct shape shape = {2, 9, 20, 4, 2, 8, 8};
    for (int n = 0; n < 8; n++) {
        struct layer *l = layer_make(&shape, NULL, (uint64_t)n);
        struct problem *p = l->options;
        if (n & 1)
            layer_drop_bias(l, OUT);
        if (n / 2 == 0) {
            p->causal = HEADWAY_CAUSAL_OFFSETS;
            p->offsets[0] = -4;
            p->offsets[1] = -100;
        } else if (n / 2 == 1) {
            p->has_key_lengths = 1;
            p->key_lengths[0] = 0;
            p->key_lengths[1] = 20;
        } else {
            problem_mask_full(p, n / 2 == 2 ? MASK_BOOL : MASK_F32);
            for (int64_t x = 0; x < 2 * 4 * 9 * 20; x++)
                if (x / 20 % 9 < 5 && n / 2 == 2)
                    ((unsigned char *)p->mask)[x] = 0;
                else if (x / 20 % 9 < 5)
                    ((float *)p->mask)[x] = -INFINITY;
        }
        if (check_case("%s: empty rows give the output bias, %s", s->isa, problem_name(p))) {
            static const float zeros[32];
            struct answer a = forward_once(s->engines[n % 4], l);
            int empty_rows = 0;
            for (int64_t b = 0; b < 2; b++)
                for (int64_t i = 0; i < 9; i++) {
                    int any = 0;
                    for (int64_t j = 0; j < 20; j++)
                        any |= problem_sees(p, b, 0, i, j);
                    empty_rows += !any;
                    if (!any)
                        check_bits(out_row(l, &a, b, i), l->bias[OUT] ? l->bias[OUT] : zeros, 32,
                                   "row");
                }
            CHECK(empty_rows > 0, "the case has no empty row");
            answer_free(&a);
        }
        layer_free(l);
    }
}

/* Head 2 is masked altogether: as if its values were 0. */
static void check_dead_head(const struct subject *s)
{
    for (int64_t keys = 5; keys < 300; keys += 140) {
        const struct shape shape = {1, 5, keys, 3, 3, 1, 1};
        struct layer *l = layer_make(&shape, NULL, 0);
        if (check_case("%s: A07 a head that sees nothing, %s", s->isa, problem_name(l->options))) {
            problem_mask(l->options, MASK_BOOL, 4, 2);
            ((unsigned char *)l->options->mask)[0] = ((unsigned char *)l->options->mask)[1] = 1;
            ((unsigned char *)l->options->mask)[2] = 0;
            struct answer a = forward_once(s->engines[0], l);
            struct expected e = expect_layer(l);
            compare_layer(l, &a, &e);
            l->options->mask_kind = MASK_NONE;
            memset(l->weight[VALUE] + 2 * 3, 0, 3 * sizeof(float));
            l->bias[VALUE][2] = 0;
            struct answer b = forward_once(s->engines[0], l);
            check_bits(a.out, b.out, a.outs, "the layer without that head's values");
            CHECK(a.lse[2 * 5] == -INFINITY, "lse of the head is %g", (double)a.lse[2 * 5]);
            answer_free(&a);
            answer_free(&b);
            expected_free(&e);
        }
        layer_free(l);
    }
}

static void check_lengths_in_batch(const struct subject *s)
{
    static const int64_t lengths[4] = {5, 3, 1, 0};
    const struct shape shape = {4, 5, 5, 5, 5, 4, 4};
    struct layer *l = layer_make(&shape, NULL, 0);
    if (check_case("%s: A19 lengths down to 0 in a batch", s->isa)) {
        l->options->has_key_lengths = 1;
        memcpy(l->options->key_lengths, lengths, sizeof lengths);
        struct answer a = forward_once(s->engines[3], l);
        struct expected e = expect_layer(l);
        compare_layer(l, &a, &e);
        for (int64_t i = 0; i < 5; i++) {
            check_bits(out_row(l, &a, 2, i), out_row(l, &a, 2, 0), 20, "one key: all rows alike");
            check_bits(out_row(l, &a, 3, i), l->bias[OUT], 20, "no key: the output bias");
        }
        for (int64_t b = 0; b < 2; b++) {
            struct layer *one = layer_batch(l, b);
            struct answer alone = forward_once(s->engines[0], one);
            check_bits(alone.out, out_row(l, &a, b, 0), alone.outs, "alone");
            answer_free(&alone);
            layer_free(one);
        }
        answer_free(&a);
        expected_free(&e);
    }
    layer_free(l);
}

/* Causality and lengths together: NaN in the tokens that a row does not see leaves it alone. */
static void check_unseen_tokens(const struct subject *s)
{
    static const int64_t lengths[] = {4, 40, 150};
    for (int n = 0; n < COUNT(lengths); n++) {
        const struct shape shape = {2, lengths[n], lengths[n], 2, 1, 8, 8};
        struct layer *l = layer_make(&shape, NULL, (uint64_t)n);
        struct problem *p = l->options;
        p->causal = HEADWAY_CAUSAL_TOP_LEFT;
        p->has_key_lengths = 1;
        p->key_lengths[0] = lengths[n];
        p->key_lengths[1] = 2;
        if (check_case("%s: M05 causality and lengths, NaN in unseen tokens, %s", s->isa,
                       problem_name(p))) {
            struct answer a = forward_once(s->engines[0], l);
            const int64_t from = lengths[n] / 2;
            p->flags_free = 0;
            for (int64_t j = from; j < lengths[n]; j++)
                for (int64_t b = 0; b < 2; b++) {
                    token(l, KEY, b, j)[0] = NAN;
                    token(l, VALUE, b, j)[1] = n & 1 ? INFINITY : NAN;
                }
            struct answer b = forward_once(s->engines[1], l);
            for (int64_t i = 0; i < lengths[n]; i++) {
                if (i < from)
                    check_bits(out_row(l, &b, 0, i), out_row(l, &a, 0, i), l->widths.out, "before");
                else
                    CHECK(isnan(out_row(l, &b, 0, i)[0]), "row %lld sees a NaN and is %g",
                          (long long)i, (double)out_row(l, &b, 0, i)[0]);
                check_bits(out_row(l, &b, 1, i), out_row(l, &a, 1, i), l->widths.out,
                           "beyond the length");
            }
            answer_free(&a);
            answer_free(&b);
        }
        layer_free(l);
    }
}

/* Token strides of 2^30 floats in a mapping of which only the pages in use exist. */
static void check_far_tokens(const struct subject *s)
{
    const int64_t row = INT64_C(1) << 30;
    const struct shape shape = {1, 3, 3, 2, 2, 4, 4};
    const size_t bytes = (size_t)(2 * row + 4096) * sizeof(float);
    if (!check_case("%s: I05 tokens further apart than 32 bits", s->isa))
        return;
    float *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        check_skip("I05", "no address space for a sparse mapping of 8 GB");
        return;
    }
    struct layer *l = layer_make(&shape, NULL, 0);
    layer_share(l, 1);
    struct answer a = forward_once(s->engines[0], l);
    headway_mha *mha = layer_create(s->engines[0], l, STORED_PLAIN);
    headway_tensor x = tokens_tensor(l, QUERY), out = x;
    size_t needed = 0;
    x.data = memory;
    out.data = memory + 64;
    x.stride[1] = out.stride[1] = row;
    for (int64_t i = 0; i < 3; i++)
        memcpy(memory + i * row, token(l, QUERY, 0, i), 8 * sizeof(float));
    CHECK(headway_mha_workspace(mha, NULL, &x, NULL, NULL, &needed) == HEADWAY_OK, "workspace");
    void *workspace = check_guard(needed, 0);
    CHECK(headway_mha_forward(mha, NULL, &x, NULL, NULL, &out, workspace, needed) == HEADWAY_OK,
          "forward");
    for (int64_t i = 0; i < 3; i++)
        check_bits(memory + 64 + i * row, out_row(l, &a, 0, i), 8, "far tokens");
    check_guard_free(workspace);
    headway_mha_destroy(mha);
    answer_free(&a);
    layer_free(l);
    munmap(memory, bytes);
}

/* ---- several host threads in one layer --------------------------------------------------------
 */

enum { HOSTS = 5, ROUNDS = 8 };

struct host {
    const headway_mha *mha;
    headway_tensor x, out;
    size_t bytes;
    void *workspace;
    headway_status status;
};

static void *host_main(void *context)
{
    struct host *h = context;
    for (int n = 0; n < (quick ? 1 : ROUNDS) && h->status == HEADWAY_OK; n++) {
        memset(h->out.data, 0xff, (size_t)(h->out.shape[1] * h->out.shape[2]) * sizeof(float));
        h->status =
            headway_mha_forward(h->mha, NULL, &h->x, NULL, NULL, &h->out, h->workspace, h->bytes);
    }
    return NULL;
}

static void check_hosts(const struct subject *s)
{
    const int64_t rows = quick ? 20 : 90;
    const struct shape shape = {HOSTS, rows, rows, 4, 4, 32, 32};
    for (int t = 0; t < 2; t++) {
        if (!check_case("%s: %d host threads in one layer, %d threads each", s->isa, HOSTS, t + 1))
            continue;
        struct layer *l = layer_make(&shape, NULL, 1);
        struct host hosts[HOSTS];
        pthread_t threads[HOSTS];
        layer_share(l, 1);
        struct answer expected = forward_once(s->engines[0], l);
        headway_mha *mha = layer_create(s->engines[t], l, STORED_PLAIN);
        for (int n = 0; n < HOSTS; n++) {
            struct host *h = &hosts[n];
            h->mha = mha;
            h->x = tokens_tensor(l, QUERY);
            h->x.shape[0] = 1;
            h->x.data = token(l, QUERY, n, 0);
            h->out = h->x;
            h->out.data = check_guard((size_t)rows * 128 * sizeof(float), 1);
            h->status = headway_mha_workspace(mha, NULL, &h->x, NULL, NULL, &h->bytes);
            h->workspace = check_guard(h->bytes, 0);
        }
        int started = 0;
        while (started < HOSTS &&
               pthread_create(&threads[started], NULL, host_main, &hosts[started]) == 0)
            started++;
        CHECK(started == HOSTS, "only %d threads started", started);
        for (int n = 0; n < started; n++)
            pthread_join(threads[n], NULL);
        for (int n = 0; n < HOSTS; n++) {
            CHECK(hosts[n].status == HEADWAY_OK, "%s", headway_status_text(hosts[n].status));
            check_bits(hosts[n].out.data, out_row(l, &expected, n, 0), rows * 128, "a host thread");
            check_guard_free(hosts[n].out.data);
            check_guard_free(hosts[n].workspace);
        }
        headway_mha_destroy(mha);
        answer_free(&expected);
        layer_free(l);
    }
}

void check_layer_cases(const struct subject *s)
{
    check_alone(s);
    check_empty_rows(s);
    check_dead_head(s);
    check_lengths_in_batch(s);
    check_unseen_tokens(s);
    check_far_tokens(s);
    check_hosts(s);
}
