/* Attention from caches: bit by bit what it gives on the stored values as plain tensors, on every
 * row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_cache.h"

static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};

static int64_t below(uint64_t *state, int64_t n)
{
    return (int64_t)(check_random(state) % (uint64_t)n);
}

/* ---- problems in caches -----------------------------------------------------------------------
 */

static headway_tensor lines_of(float *data, int64_t batch, int64_t length, int64_t heads,
                               int64_t size)
{
    const int64_t shape[4] = {batch, length, heads, size};
    return headway_tensor_dense(data, HEADWAY_F32, 4, shape);
}

static headway_tensor one_of(headway_tensor t)
{
    const headway_tensor one = headway_tensor_dense(t.data, HEADWAY_F32, 3, t.shape + 1);
    return one;
}

void problem_fill_keys(struct problem *p)
{
    const struct shape *s = &p->shape;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t length = key_length(p, b), rest = s->keys - length;
        check_fill_normal(&p->random, key_line(p, b, 0, 0), length * s->kv_heads * s->size, 1.0f);
        check_fill_normal(&p->random, value_line(p, b, 0, 0), length * s->kv_heads * s->value_size,
                          1.0f);
        check_poison(key_line(p, b, length, 0), rest * s->kv_heads * s->size);
        check_poison(value_line(p, b, length, 0), rest * s->kv_heads * s->value_size);
    }
}

void problem_store(struct problem *p, headway_kv_cache *cache, const int64_t *slots)
{
    const struct shape *s = &p->shape;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t first = length_of(cache, slots[b]), length = key_length(p, b);
        for (int64_t done = 0; done < length;) {
            const int64_t rest = length - done;
            const int64_t count = 1 + below(&p->random, rest < 100 ? rest : 100);
            const headway_tensor key =
                lines_of(key_line(p, b, done, 0), 1, count, s->kv_heads, s->size);
            const headway_tensor value =
                lines_of(value_line(p, b, done, 0), 1, count, s->kv_heads, s->value_size);
            CHECK(headway_kv_cache_append(cache, &slots[b], NULL, &key, &value) == HEADWAY_OK,
                  "append to slot %lld", (long long)slots[b]);
            done += count;
        }
        const headway_tensor key =
            one_of(lines_of(key_line(p, b, 0, 0), 1, length, s->kv_heads, s->size));
        const headway_tensor value =
            one_of(lines_of(value_line(p, b, 0, 0), 1, length, s->kv_heads, s->value_size));
        CHECK(headway_kv_cache_read(cache, slots[b], first, &key, &value) == HEADWAY_OK, "read");
    }
}

void problem_append(const struct problem *p, headway_kv_cache *cache, int64_t slot, int64_t from)
{
    const struct shape *s = &p->shape;
    const headway_tensor key =
        lines_of(key_line(p, 0, from, 0), 1, s->keys - from, s->kv_heads, s->size);
    const headway_tensor value =
        lines_of(value_line(p, 0, from, 0), 1, s->keys - from, s->kv_heads, s->value_size);
    CHECK(headway_kv_cache_append(cache, &slot, NULL, &key, &value) == HEADWAY_OK, "append");
}

/* The options, and the operands beside key and value, of a call on a cache. */
struct cached_call {
    headway_attention_params params;
    headway_tensor query, out, lse, weights, mask, interval;
    struct arena arena;
};

static void make_call(struct cached_call *a, const struct problem *p)
{
    const struct shape *s = &p->shape;
    const int64_t lse[3] = {s->batch, s->heads, s->queries};
    const int64_t weights[4] = {s->batch, s->heads, s->queries, s->keys};
    const int64_t mean[3] = {s->batch, s->queries, s->keys};
    const int64_t interval[3] = {p->interval_batch, s->queries, 2};
    memset(a, 0, sizeof *a);
    a->arena.at_end = 1;
    a->query = lines_of(NULL, s->batch, s->queries, s->heads, s->size);
    a->out = lines_of(NULL, s->batch, s->queries, s->heads, s->value_size);
    a->lse = headway_tensor_dense(NULL, HEADWAY_F32, 3, lse);
    a->weights = p->weights == WEIGHTS_MEAN ? headway_tensor_dense(NULL, HEADWAY_F32, 3, mean)
                                            : headway_tensor_dense(NULL, HEADWAY_F32, 4, weights);
    a->interval = headway_tensor_dense(p->interval, HEADWAY_I32, p->interval_batch ? 3 : 2,
                                       interval + (p->interval_batch ? 0 : 1));
    a->mask = mask_tensor(p);
    arena_place(&a->arena, &a->query);
    arena_place(&a->arena, &a->out);
    arena_place(&a->arena, &a->lse);
    arena_place(&a->arena, &a->weights);
    scatter(&a->query, p->query);
    arena_seal(&a->arena);
    a->params = problem_params(p, &a->mask);
    a->params.lse = &a->lse;
    a->params.interval = p->interval ? &a->interval : NULL;
    a->params.weights = p->weights != WEIGHTS_NONE ? &a->weights : NULL;
}

static struct answer padded(const struct problem *p, const struct problem *packed,
                            const struct answer *from)
{
    const int64_t line = p->shape.heads * p->shape.value_size;
    struct answer a = answer_make(p, p->shape.batch * p->shape.queries * line);
    memset(a.out, 0, (size_t)a.outs * sizeof(float));
    for (int64_t n = 0; n < a.lses; n++)
        a.lse[n] = -INFINITY;
    for (int64_t b = 0; b < p->shape.batch; b++)
        for (int64_t i = 0; i < p->query_lengths[b]; i++) {
            const int64_t row = packed->query_starts[b] + i;
            memcpy(out_line(p, &a, b, i, 0), out_line(packed, from, 0, row, 0),
                   (size_t)line * sizeof(float));
            for (int64_t h = 0; h < p->shape.heads; h++)
                *lse_at(p, &a, b, i, h) = *lse_at(packed, from, 0, row, h);
        }
    return a;
}

/* p as it is called: of a packed problem `of` is the padded one. */
static struct answer call(const headway_engine *engine, const struct problem *p,
                          const struct problem *of, headway_kv_cache *cache, const int64_t *slots,
                          int64_t shared_prefix)
{
    struct cached_call a;
    size_t bytes = 0;
    char text[600] = "";
    struct answer answer =
        answer_make(p, p->shape.batch * p->shape.queries * p->shape.heads * p->shape.value_size);
    make_call(&a, p);
    a.params.cache = cache;
    a.params.cache_slots = slots;
    a.params.shared_prefix = shared_prefix;
    a.params.key_starts = NULL;
    a.params.key_lengths = NULL;
    for (int64_t b = 0; b < of->shape.batch; b++)
        if (length_of(cache, slots[b]) != key_length(of, b))
            a.params.key_lengths = of->key_lengths;
    headway_status status =
        headway_attention_workspace(engine, &a.params, &a.query, NULL, NULL, &bytes);
    void *workspace = check_guard(bytes, bytes % HEADWAY_WORKSPACE_ALIGNMENT == 0);
    check_poison(workspace, (int64_t)(bytes / sizeof(float)));
    environment_enter();
    if (status == HEADWAY_OK)
        status =
            headway_attention(engine, &a.params, &a.query, NULL, NULL, &a.out, workspace, bytes);
    environment_leave(p->flags_free);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s: %s", problem_name(p), headway_status_text(status), text);
    arena_take(&a.arena, &a.out, a.params.query_lengths, 1, 0.0f, answer.out);
    arena_take(&a.arena, &a.lse, a.params.query_lengths, 2, -INFINITY, answer.lse);
    if (p->weights != WEIGHTS_NONE)
        arena_take(&a.arena, &a.weights, a.params.query_lengths, a.weights.rank - 2, 0.0f,
                   answer.weights);
    arena_release(&a.arena);
    check_guard_free(workspace);
    return answer;
}

struct answer attend_cached(const headway_engine *engine, const struct problem *p,
                            headway_kv_cache *cache, const int64_t *slots, int64_t shared_prefix)
{
    if (!p->packed)
        return call(engine, p, p, cache, slots, shared_prefix);
    struct problem *q = problem_packed(p);
    q->shape.keys = p->shape.keys; /* a mask's last extent */
    struct answer whole = call(engine, q, p, cache, slots, shared_prefix);
    struct answer a = padded(p, q, &whole);
    answer_free(&whole);
    q->shape.keys = q->key_starts[p->shape.batch];
    problem_free(q);
    return a;
}

/* ---- drawn ------------------------------------------------------------------------------------
 */

static struct problem *draw(uint64_t seed, int64_t *slots)
{
    static const int64_t groups[] = {1, 1, 2, 3, 4, 7, 8, 12, 16}, sizes[] = {1, 3, 8, 16, 33, 64},
                         rows_of[] = {1, 1, 1, 2, 4, 7, 8, 9, 17, 40};
    uint64_t r = seed * 77 + 5;
    const int64_t batch = 1 + below(&r, 4), kv_heads = 1 + below(&r, 3);
    const struct shape shape = {batch,
                                rows_of[below(&r, COUNT(rows_of))],
                                1 + (below(&r, 4) ? below(&r, 200) : below(&r, 1300)),
                                kv_heads * groups[below(&r, COUNT(groups))],
                                kv_heads,
                                sizes[below(&r, COUNT(sizes))],
                                sizes[below(&r, COUNT(sizes))]};
    struct problem *p = problem_make(&shape, seed);
    problem_causal(p, (headway_causal)(below(&r, 4)));
    if (below(&r, 4) == 0)
        problem_pack(p);
    else
        problem_lengths(p, (int)below(&r, 2), 1);
    p->key_lengths[below(&r, batch)] = shape.keys;
    problem_fill_keys(p);
    if (below(&r, 3) == 0) {
        p->window_left = below(&r, shape.keys);
        p->window_first = below(&r, 2) * below(&r, 40);
    }
    if (below(&r, 5) == 0)
        problem_interval(p, below(&r, 2) ? batch : 0);
    if (below(&r, 4) == 0)
        problem_slopes(p);
    if (below(&r, 4) == 0)
        problem_sinks(p);
    if (below(&r, 5) == 0)
        p->softcap = 3.0f;
    if (below(&r, 3) == 0)
        problem_mask(p, (enum mask_kind)(1 + below(&r, 4)), 4, (unsigned)below(&r, 16));
    if (!p->packed)
        p->weights = below(&r, 3) ? WEIGHTS_NONE : (enum weights_kind)(1 + below(&r, 2));
    for (int64_t b = 0, first = below(&r, 3); b < batch; b++)
        slots[b] = (first + 3 * b) % 7; /* of seven */
    return p;
}

/* Every row and thread count against the plain call, which is against the reference. */
static void compare_all(const struct problem *p, headway_kv_cache *cache, const int64_t *slots,
                        int64_t shared_prefix, int against_reference)
{
    struct answer first = {0};
    for (int row = 0; row < row_count; row++)
        for (int t = 0; t < THREADS; t++) {
            struct answer cached =
                attend_cached(rows[row].engine[t], p, cache, slots, shared_prefix);
            if (row == 0 && t == 0) {
                struct answer plain = attend(rows[0].engine[0], p, LAYOUT_DENSE, 1);
                compare_bits(&cached, &plain, "the first row against plain tensors");
                answer_free(&plain);
                first = cached;
                continue;
            }
            compare_bits(&cached, &first, rows[row].name);
            answer_free(&cached);
        }
    if (against_reference) {
        struct expected e = expect(p);
        compare(p, &first, &e);
        expected_free(&e);
    }
    answer_free(&first);
}

static headway_kv_cache_config config_of(const struct problem *p, int64_t page_size, int types)
{
    headway_kv_cache_config config =
        config_make(7, p->shape.keys + 20, page_size, dtypes[types % 4], dtypes[types / 4 % 4]);
    config.kv_heads = p->shape.kv_heads;
    config.head_size = p->shape.size;
    config.value_head_size = p->shape.value_size;
    return config;
}

static void check_drawn(int quick)
{
    static const int64_t pages[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};
    for (int n = 0; n < (quick ? 40 : 200); n++) {
        int64_t slots[MAX_BATCH];
        struct problem *p = draw((uint64_t)n, slots);
        const headway_kv_cache_config config = config_of(p, pages[n % COUNT(pages)], n / 3);
        if (check_case("attention %d: page size %lld, types %d %d: %s", n,
                       (long long)config.page_size, (int)config.key_dtype, (int)config.value_dtype,
                       problem_name(p))) {
            headway_kv_cache *cache =
                cache_make(rows[n % row_count].engine[n / 2 % THREADS], &config);
            /* Sometimes what a slot held before lies behind its end, or it holds more than is
             * seen. */
            for (int64_t b = 0; n % 3 == 0 && b < p->shape.batch; b++) {
                append_tokens(cache, &config, 2, b, slots[b], p->shape.keys);
                headway_kv_cache_truncate(cache, slots[b], 0);
            }
            problem_store(p, cache, slots);
            for (int64_t b = 0; n % 3 == 1 && b < p->shape.batch; b++)
                append_tokens(cache, &config, 1, b, slots[b], 1 + b);
            compare_all(p, cache, slots, n % 7, n % 4 == 0 || quick);
            headway_kv_cache_destroy(cache);
        }
        problem_free(p);
    }
}

/* ---- a common beginning -----------------------------------------------------------------------
 */

static void copy_prefix(struct problem *p, int64_t prefix)
{
    for (int64_t b = 1; b < p->shape.batch; b++)
        for (int64_t j = 0; j < prefix; j++) {
            memcpy(key_line(p, b, j, 0), key_line(p, 0, j, 0),
                   (size_t)(p->shape.kv_heads * p->shape.size) * sizeof(float));
            memcpy(value_line(p, b, j, 0), value_line(p, 0, j, 0),
                   (size_t)(p->shape.kv_heads * p->shape.value_size) * sizeof(float));
        }
}

/* Keys from `from` on, as a problem of their own. */
static void store_rest(struct problem *p, headway_kv_cache *cache, int64_t b, int64_t slot,
                       int64_t from, int64_t until)
{
    const struct shape *s = &p->shape;
    const headway_tensor key =
        lines_of(key_line(p, b, from, 0), 1, until - from, s->kv_heads, s->size);
    const headway_tensor value =
        lines_of(value_line(p, b, from, 0), 1, until - from, s->kv_heads, s->value_size);
    CHECK(headway_kv_cache_append(cache, &slot, NULL, &key, &value) == HEADWAY_OK, "append");
    const headway_tensor all_keys =
        one_of(lines_of(key_line(p, b, 0, 0), 1, until, s->kv_heads, s->size));
    const headway_tensor all_values =
        one_of(lines_of(value_line(p, b, 0, 0), 1, until, s->kv_heads, s->value_size));
    CHECK(headway_kv_cache_read(cache, slot, 0, &all_keys, &all_values) == HEADWAY_OK, "read");
}

/* Forks of one beginning, which are then told of it or not. */
static void check_prefixes(int quick)
{
    static const int64_t pages[] = {1, 4, 16, 64, 0};
    for (int n = 0; n < (quick ? 10 : 40); n++) {
        int64_t slots[MAX_BATCH];
        struct problem *p = draw((uint64_t)(1000 + n), slots);
        const int64_t prefix = p->shape.keys * (n % 5 + 1) / 6;
        const headway_kv_cache_config config = config_of(p, pages[n % COUNT(pages)], n);
        for (int64_t b = 0; b < p->shape.batch; b++)
            if (p->key_lengths[b] < prefix)
                p->key_lengths[b] = prefix;
        problem_fill_keys(p);
        copy_prefix(p, prefix);
        if (check_case("common %lld of %s: page size %lld", (long long)prefix, problem_name(p),
                       (long long)config.page_size)) {
            headway_kv_cache *cache = cache_make(rows[0].engine[n % THREADS], &config);
            store_rest(p, cache, 0, slots[0], 0, prefix);
            for (int64_t b = 1; b < p->shape.batch; b++)
                CHECK(headway_kv_cache_fork(cache, slots[0], slots[b]) == HEADWAY_OK, "fork");
            for (int64_t b = 0; b < p->shape.batch; b++)
                store_rest(p, cache, b, slots[b], prefix, p->key_lengths[b]);
            for (int told = 0; told < 3; told++)
                compare_all(p, cache, slots,
                            told == 0   ? 0
                            : told == 1 ? prefix
                                        : p->shape.keys + 100,
                            0);
            headway_kv_cache_destroy(cache);
        }
        problem_free(p);
    }
}

/* Bits would not tell whether what is common is read for each sequence. */
static void expect_sharing(const struct problem *p, headway_kv_cache *cache, const int64_t *slots,
                           int64_t prefix, int copied)
{
    struct cached_call a;
    char text[2000] = "";
    make_call(&a, p);
    a.params.cache = cache;
    a.params.cache_slots = slots;
    a.params.shared_prefix = prefix;
    CHECK(headway_attention_explain(rows[0].engine[0], &a.params, &a.query, NULL, NULL, text,
                                    sizeof text) == HEADWAY_OK,
          "explain");
    CHECK(!strstr(text, "all sequences share") == (copied || prefix < 512), "common %lld: %s",
          (long long)prefix, text);
    arena_release(&a.arena);
}

/* So much is said to be common as there is, or more than that: it says nothing. */
static void check_long_prefixes(void)
{
    static const int64_t common[] = {40, 300, 530, 1060}, pages[] = {256, 64, 16, 0};
    static const int64_t slots[MAX_BATCH] = {4, 0, 2};
    for (int n = 0; n < COUNT(common) * COUNT(pages); n++) {
        const struct shape shape = {3, n % 3 ? 1 : 2, 1100, 4, 2, 8, 12};
        const int64_t prefix = common[n % COUNT(common)];
        struct problem *p = problem_make(&shape, (uint64_t)n);
        const headway_kv_cache_config config = config_of(p, pages[n / COUNT(common)], n);
        p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        copy_prefix(p, prefix);
        if (check_case("common %lld of %s: page size %lld", (long long)prefix, problem_name(p),
                       (long long)config.page_size)) {
            headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
            store_rest(p, cache, 0, slots[0], 0, prefix);
            for (int64_t b = 1; b < 3; b++)
                CHECK(headway_kv_cache_fork(cache, slots[0], slots[b]) == HEADWAY_OK, "fork");
            for (int64_t b = 0; b < 3; b++)
                store_rest(p, cache, b, slots[b], prefix, shape.keys);
            compare_all(p, cache, slots, prefix, 0);
            compare_all(p, cache, slots, shape.keys, 0);
            expect_sharing(p, cache, slots, prefix, config.page_size == 0);
            headway_kv_cache_destroy(cache);
        }
        problem_free(p);
    }
}

/* ---- in chunks --------------------------------------------------------------------------------
 */

/* Rows first .. first + count - 1 of a problem of one sequence, which sees first + count keys. */
static struct problem *part_of(const struct problem *p, int64_t first, int64_t count)
{
    const struct shape shape = {1,
                                count,
                                first + count,
                                p->shape.heads,
                                p->shape.kv_heads,
                                p->shape.size,
                                p->shape.value_size};
    struct problem *part = problem_make(&shape, 1);
    part->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    part->window_left = p->window_left;
    part->window_first = p->window_first;
    memcpy(part->query, query_line(p, 0, first, 0),
           (size_t)(count * shape.heads * shape.size) * sizeof(float));
    return part;
}

/* One prefill, chunks of any sizes, token by token: the same rows. */
static void check_prefill(int quick)
{
    static const int64_t pages[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};
    const int64_t slot = 1;
    for (int n = 0; n < (quick ? 4 : 20); n++) {
        uint64_t r = (uint64_t)n + 900;
        const int64_t length = n % 4 ? 70 : n % 8 ? 600 : 1100;
        const struct shape shape = {1, length, length, n % 2 ? 8 : 3, n % 2 ? 2 : 3, 16, 12};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        const headway_kv_cache_config config = config_of(p, pages[n % COUNT(pages)], 0);
        p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        p->window_left = n % 3 ? -1 : 33;
        p->window_first = n % 6 ? 0 : 5;
        if (check_case("prefill of %lld: page size %lld", (long long)length,
                       (long long)config.page_size)) {
            struct answer whole = attend(rows[0].engine[0], p, LAYOUT_DENSE, 0);
            headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
            for (int64_t first = 0, count; first < length; first += count) {
                const int64_t rest = length - first;
                count = 1 + (below(&r, 3) ? below(&r, rest < 12 ? rest : 12) : below(&r, rest));
                store_rest(p, cache, 0, slot, first, first + count);
                struct problem *part = part_of(p, first, count);
                struct answer a = attend_cached(
                    rows[below(&r, row_count)].engine[below(&r, THREADS)], part, cache, &slot, 0);
                check_bits(a.out, out_line(p, &whole, 0, first, 0), a.outs, "rows of a chunk");
                for (int64_t i = 0; i < count; i++)
                    for (int64_t h = 0; h < shape.heads; h++)
                        check_bits(lse_at(part, &a, 0, i, h), lse_at(p, &whole, 0, first + i, h), 1,
                                   "lse of a chunk");
                answer_free(&a);
                problem_free(part);
            }
            headway_kv_cache_destroy(cache);
            answer_free(&whole);
        }
        problem_free(p);
    }
}

void check_attending(int quick)
{
    check_drawn(quick);
    check_prefixes(quick);
    check_long_prefixes();
    check_prefill(quick);
}
