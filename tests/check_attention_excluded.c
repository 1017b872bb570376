/* What must not matter: NaN and Inf behind causality, lengths and masks. What must: NaN where a row
 * looks. Empty problems. Memory that does not grow. */
#include <math.h>
#include <string.h>

#include "check_attention.h"

enum poison { KEY_NAN, KEY_INF, VALUE_NAN, VALUE_INF, VALUE_MIXED, QUERY_NAN, MASK_NAN, POISONS };
static const char *const poison_names[POISONS] = {
    "NaN in keys",           "Inf in keys",    "NaN in values",  "Inf in values",
    "NaN and Inf in values", "NaN in a query", "NaN in the mask"};

/* Keys of one batch and KV head that were spoilt, or one query row. */
struct spoilt {
    int64_t b, head, row;
    int64_t keys[8];
    int count;
    int64_t column;
};

static int64_t below(uint64_t *random, int64_t n)
{
    return (int64_t)(check_random(random) % (uint64_t)n);
}

static void spoil(struct problem *p, enum poison poison, struct spoilt *x, uint64_t *random)
{
    static const int64_t edges[] = {0, 127, 128, 255, 256, 511, 512, 640};
    const struct shape *s = &p->shape;
    x->b = below(random, s->batch);
    x->head = below(random, s->kv_heads);
    x->row = below(random, s->queries);
    x->column = below(random, s->value_size);
    x->count = 1 + (int)below(random, 5);
    for (int n = 0; n < x->count; n++) {
        const int64_t edge = edges[below(random, 8)];
        const int64_t j = below(random, 2) && edge < s->keys ? edge : below(random, s->keys);
        float *key = key_line(p, x->b, j, x->head), *value = value_line(p, x->b, j, x->head);
        x->keys[n] = j;
        switch (poison) {
        case KEY_NAN:
            key[below(random, s->size)] = NAN;
            break;
        case KEY_INF:
            key[below(random, s->size)] = below(random, 2) ? INFINITY : -INFINITY;
            break;
        case VALUE_NAN:
            value[x->column] = NAN;
            break;
        case VALUE_INF:
            value[x->column] = INFINITY;
            break;
        case VALUE_MIXED:
            value[x->column] = below(random, 2) ? -INFINITY : NAN;
            break;
        case QUERY_NAN:
            query_line(p, x->b, x->row, x->head)[below(random, s->size)] = NAN;
            break;
        default:
            ((float *)p->mask)[mask_index(p, x->b, x->head, x->row, j)] = NAN;
            break;
        }
    }
}

static int sees_spoilt(const struct problem *p, enum poison poison, const struct spoilt *x,
                       const int64_t at[3])
{
    const int64_t group = p->shape.heads / p->shape.kv_heads;
    const int64_t b = at[0], i = at[1], h = at[2];
    int any = 0;
    if (b != x->b && !(poison == MASK_NAN && p->mask_shape[0] == 1))
        return 0;
    if (poison == QUERY_NAN) {
        for (int64_t j = 0; j < p->shape.keys; j++)
            any |= problem_sees(p, b, h, i, j);
        return any && h == x->head && i == x->row;
    }
    if (poison == MASK_NAN ? h != x->head || i != x->row : h / group != x->head)
        return 0;
    for (int n = 0; n < x->count; n++)
        any |= problem_sees(p, b, h, i, x->keys[n]);
    return any;
}

static int all_nan(const float *x, int64_t count)
{
    int all = 1;
    for (int64_t n = 0; n < count; n++)
        all &= isnan(x[n]) != 0;
    return all;
}

/* The weights of a row: as before, or NaN where it sees a key. */
static void check_weights(const struct problem *p, const int64_t at[3], const struct answer *clean,
                          const struct answer *got, int spoilt)
{
    const float *before = weights_line(p, clean, at[0], at[1], at[2]);
    const float *after = weights_line(p, got, at[0], at[1], at[2]);
    if (p->weights == WEIGHTS_NONE)
        return;
    if (!spoilt) {
        check_bits(after, before, p->shape.keys, "weights of a row without poison");
        return;
    }
    for (int64_t j = 0; j < p->shape.keys; j++) {
        const int sees = problem_sees(p, at[0], at[2], at[1], j);
        CHECK(sees ? isnan(after[j]) != 0 : after[j] == 0.0f,
              "weight %lld of row %lld, head %lld: %g where the row %s the key", (long long)j,
              (long long)at[1], (long long)at[2], (double)after[j], sees ? "sees" : "excludes");
    }
}

static void check_row(const struct problem *p, enum poison poison, const struct spoilt *x,
                      const int64_t at[3], const struct answer *clean, const struct answer *got)
{
    const float *before = out_line(p, clean, at[0], at[1], at[2]);
    const float *after = out_line(p, got, at[0], at[1], at[2]);
    const int64_t size = p->shape.value_size, d = x->column;
    const int lse_changed = memcmp(lse_at(p, clean, at[0], at[1], at[2]),
                                   lse_at(p, got, at[0], at[1], at[2]), sizeof(float)) != 0;
    if (!sees_spoilt(p, poison, x, at)) {
        check_bits(after, before, size, "a row that does not see the poison");
        CHECK(!lse_changed, "lse of row %lld changed", (long long)at[1]);
        check_weights(p, at, clean, got, 0);
        return;
    }
    if (poison == KEY_INF)
        return;
    if (poison == KEY_NAN || poison == QUERY_NAN || poison == MASK_NAN) {
        CHECK(all_nan(after, size) && isnan(*lse_at(p, got, at[0], at[1], at[2])),
              "row %lld of head %lld sees a NaN and is %g", (long long)at[1], (long long)at[2],
              (double)after[0]);
        check_weights(p, at, clean, got, 1);
        return;
    }
    check_weights(p, at, clean, got, 0);
    check_bits(after, before, d, "columns before the poison");
    check_bits(after + d + 1, before + d + 1, size - d - 1, "columns behind the poison");
    CHECK(!lse_changed, "lse of row %lld changed by values", (long long)at[1]);
    CHECK(poison == VALUE_INF ? after[d] == INFINITY : !isfinite(after[d]) && after[d] != INFINITY,
          "row %lld of head %lld sees the poison and is %g", (long long)at[1], (long long)at[2],
          (double)after[d]);
}

static void check_spoilt(const struct subject *s, struct problem *clean, enum poison poison, int n)
{
    uint64_t random = check_seed + (uint64_t)(n * POISONS) + poison;
    if (poison == MASK_NAN && (clean->mask_kind != MASK_F32 || clean->mask_shape[2] == 1))
        return;
    if (!check_case("%s: %s (%d), %s", s->isa, poison_names[poison], n, problem_name(clean)))
        return;
    struct answer before = attend(s->engines[0], clean, LAYOUT_DENSE, 1);
    for (int trial = 0; trial < (quick ? 2 : 5); trial++) {
        struct problem *p = problem_copy(clean);
        struct spoilt x;
        spoil(p, poison, &x, &random);
        p->flags_free = 0;
        struct answer after = attend(s->engines[trial % THREADS], p, trial % LAYOUTS, trial & 1);
        for (int64_t b = 0; b < p->shape.batch; b++)
            for (int64_t i = 0; i < query_length(p, b); i++)
                for (int64_t h = 0; h < p->shape.heads; h++) {
                    const int64_t at[3] = {b, i, h};
                    check_row(p, poison, &x, at, &before, &after);
                }
        struct expected e = expect(p);
        if (poison != KEY_INF)
            compare(p, &after, &e);
        expected_free(&e);
        answer_free(&after);
        problem_free(p);
    }
    answer_free(&before);
}

static void add_options(struct problem *p, int n)
{
    p->window_left = 40;
    p->window_right = 25;
    if (n % 3 == 0)
        problem_interval(p, p->shape.batch);
    if (n % 4 == 1)
        p->softcap = 30;
    if (n % 4 == 2)
        problem_slopes(p);
    if (n % 2)
        problem_sinks(p);
    p->weights = WEIGHTS_HEADS;
}

void check_excluded(const struct subject *s)
{
    static const struct shape shapes[] = {{2, 40, 300, 4, 2, 8, 12},
                                          {1, 70, 700, 2, 2, 5, 6},
                                          {2, 17, 129, 3, 1, 16, 33},
                                          {1, 130, 140, 1, 1, 8, 8}};
    for (int n = 0; n < (quick ? 8 : 16); n++) {
        struct problem *p = problem_make(&shapes[n % 4], (uint64_t)n);
        problem_causal(p, (headway_causal)(n % 2 ? 1 + n / 2 % 3 : 0));
        problem_lengths(p, n % 3 == 1, 0);
        if (n % 4 != 1)
            problem_mask(p, n % 4 == 0 ? MASK_BOOL : MASK_F32, 4, n % 3 == 0 ? 15 : 14);
        if (n % 4 == 1)
            problem_lengths(p, 0, 1);
        if (n % 8 >= 4)
            add_options(p, n);
        for (int poison = 0; poison < POISONS; poison++)
            check_spoilt(s, p, (enum poison)poison, n);
        problem_free(p);
    }
}

/* ---- nothing to do ----------------------------------------------------------------------------
 */

static void check_empty_shape(const struct subject *s, const struct shape *shape)
{
    struct problem *p = problem_make(shape, 1);
    if (check_case("%s: empty, %s", s->isa, problem_name(p))) {
        for (int n = 0; n < 2 * LAYOUTS; n++) {
            struct problem *q = problem_copy(p);
            if (n & 1)
                problem_mask(q, n & 2 ? MASK_BOOL : MASK_F32, 4, 15);
            struct answer a = attend(s->engines[n % THREADS], q, n % LAYOUTS, n & 1);
            struct expected e = expect(q);
            compare(q, &a, &e);
            expected_free(&e);
            answer_free(&a);
            problem_free(q);
        }
    }
    problem_free(p);
}

/* A row of nothing but scores of -inf is empty, with sinks too: whatever its values hold. */
static void check_vanished(const struct subject *s)
{
    const struct shape shape = {1, 3, 70, 2, 1, 4, 5};
    struct problem *p = problem_make(&shape, 1);
    problem_sinks(p);
    p->flags_free = 0;
    for (int64_t h = 0; h < shape.heads; h++)
        p->sinks[h] = 0.5f;
    for (int64_t d = 0; d < shape.size; d++) {
        for (int64_t j = 0; j < shape.keys; j++)
            key_line(p, 0, j, 0)[d] = 1e30f;
        for (int64_t i = 0; i < shape.queries * shape.heads; i++)
            query_line(p, 0, i / shape.heads, i % shape.heads)[d] = -1e30f;
    }
    value_line(p, 0, 66, 0)[0] = NAN;
    value_line(p, 0, 2, 0)[3] = INFINITY;
    if (check_case("%s: scores of -inf beside a sink, NaN in a value", s->isa)) {
        struct answer a = attend(s->engines[0], p, LAYOUT_DENSE, 1);
        for (int64_t n = 0; n < a.outs; n++)
            CHECK(a.out[n] == 0.0f, "out %lld is %g", (long long)n, (double)a.out[n]);
        for (int64_t n = 0; n < a.lses; n++)
            CHECK(a.lse[n] == 0.5f, "lse %lld is %g", (long long)n, (double)a.lse[n]);
        answer_free(&a);
    }
    problem_free(p);
}

void check_empty(const struct subject *s)
{
    static const struct shape shapes[] = {{0, 3, 4, 2, 1, 5, 6},   {2, 0, 4, 2, 1, 5, 6},
                                          {2, 3, 0, 2, 1, 5, 6},   {2, 3, 4, 2, 1, 5, 0},
                                          {0, 0, 0, 1, 1, 1, 0},   {2, 3, 0, 2, 1, 5, 0},
                                          {1, 40, 700, 2, 2, 3, 0}};
    for (int n = 0; n < (int)(sizeof shapes / sizeof *shapes); n++)
        check_empty_shape(s, &shapes[n]);
    check_vanished(s);
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static size_t workspace_of(const headway_engine *engine, int64_t batch, int64_t queries,
                           int64_t keys, const headway_tensor *mask)
{
    const int64_t query_shape[4] = {batch, queries, 8, 64}, key_shape[4] = {batch, keys, 2, 64};
    const headway_tensor query = headway_tensor_dense(NULL, HEADWAY_F32, 4, query_shape);
    const headway_tensor key = headway_tensor_dense(NULL, HEADWAY_F32, 4, key_shape);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    size_t bytes = 0;
    params.mask = mask;
    const headway_status status =
        headway_attention_workspace(engine, &params, &query, &key, &key, &bytes);
    CHECK(status == HEADWAY_OK, "workspace: %s", headway_status_text(status));
    return bytes;
}

void check_workspaces(const struct subject *s)
{
    static const unsigned char one = 1;
    const int64_t broadcast[4] = {1, 1, 1, 1};
    const headway_tensor mask =
        headway_tensor_dense((void *)(uintptr_t)&one, HEADWAY_BOOL, 4, broadcast);
    for (int t = 0; t < THREADS; t++) {
        const headway_engine *engine = s->engines[t];
        if (!check_case("%s: memory of a tile, %d threads", s->isa, thread_counts[t]))
            continue;
        const int threads = headway_engine_threads(engine);
        for (int masked = 0; masked < 2; masked++) {
            const headway_tensor *with = masked ? &mask : NULL;
            const size_t least = workspace_of(engine, 1, 1024, 1024, with);
            CHECK(least <= (size_t)threads << 18, "%zu bytes for %d threads", least, threads);
            const int64_t lengths[] = {2048, 65536, 1 << 20, (int64_t)1 << 31};
            for (int n = 0; n < 4; n++)
                for (int64_t batch = 1; batch <= 64; batch *= 64) {
                    const size_t bytes = workspace_of(engine, batch, lengths[n], lengths[n], with);
                    CHECK(bytes == least, "%zu bytes at length %lld, %zu at 1024", bytes,
                          (long long)lengths[n], least);
                }
        }
    }
}
