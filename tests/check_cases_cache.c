/* Families L, and F, B, C, R again: what caches, storage types and decoding must not change. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cached.h"
#include "check_cases.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static const headway_dtype storages[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};
static const int64_t page_sizes[] = {0, 1, 2, 16, 64, 256};

/* Through the cache, on one and seven threads: the bits of a call without one on what it holds, and
 * the double reference's answer for that. Frees the problem. */
static struct answer expect_stored(const struct subject *s, struct problem *p,
                                   const struct way *way)
{
    struct problem *q = cached_problem(s->one, p, way);
    struct answer a = cached_attend(s->one, p, way), b = cached_attend(s->seven, p, way);
    struct answer plain = answer_of(s, q);
    struct expected e = expect(q);
    compare(q, &a, &e);
    compare_bits(&b, &a, "seven threads");
    compare_bits(&a, &plain, problem_name(p));
    expected_free(&e);
    answer_free(&b);
    answer_free(&plain);
    problem_free(q);
    problem_free(p);
    return a;
}

static void expect_cached(const struct subject *s, struct problem *p, const struct way *way)
{
    struct answer a = expect_stored(s, p, way);
    answer_free(&a);
}

/* ---- F -----------------------------------------------------------------------------------------
 */

/* Scores that no half can hold, of keys and queries that are stored as such. */
static void f01(const struct subject *s)
{
    static const int64_t keys[] = {1, 7, 64, 65, 700};
    for (int n = 0; n < COUNT(keys); n++)
        for (int t = 1; t < COUNT(storages); t++) {
            const struct shape shape = {1, 2, keys[n], 2, 1, 128, 4};
            const struct way way = {
                .page = page_sizes[t], .key = storages[t], .value = storages[t]};
            struct problem *p = problem_make(&shape, 0);
            double mean = 0;
            fill_all(p, 64, 64, 0);
            for (int64_t j = 0; j < keys[n]; j++) {
                fill(value_line(p, 0, j, 0), 4, (float)(j % 7));
                mean += (double)(j % 7) / (double)keys[n];
            }
            struct problem *copy = problem_copy(p);
            struct answer a = expect_stored(s, p, &way);
            for (int64_t i = 0; i < 2; i++)
                expect_row(copy, &a, i, mean, 0);
            answer_free(&a);
            problem_free(copy);
        }
}

/* Half of 4096 values are 1: a sum kept in a narrow type stalls far below 2048. */
static void f03(const struct subject *s)
{
    for (int t = 0; t < COUNT(storages); t++) {
        const struct shape shape = {1, 1, 4096, 2, 1, 8, 8};
        const struct way way = {.page = 256, .key = storages[t], .value = storages[t]};
        struct problem *p = problem_make(&shape, 0);
        fill_all(p, 0, 1, 0);
        for (int64_t j = 2048; j < 4096; j++)
            fill(value_line(p, 0, j, 0), 8, 1);
        struct problem *copy = problem_copy(p);
        struct answer a = expect_stored(s, p, &way);
        if (storages[t] == HEADWAY_I8)
            CHECK(fabs((double)a.out[0] - 0.5) < 1e-6, "%.9g, expected 0.5", (double)a.out[0]);
        else
            expect_row(copy, &a, 0, 0.5, 1);
        answer_free(&a);
        problem_free(copy);
    }
}

/* Rounded to bf16 as the bits say, to nearest and ties to even: every upper half of a float with lower
 * ones around the middle, in heads of every size, so that all of a vector's places meet them. */
static void f05(const struct subject *s)
{
    static const uint32_t known[][2] = {
        {0x3e89ccd5, 0x3e8a}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}};
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (int64_t size = 1; size <= 33; size += quick ? 11 : 4) {
        const int64_t tokens = 65536 * COUNT(lows) / size / (quick ? 16 : 1);
        const struct way way = {.key = HEADWAY_BF16, .value = HEADWAY_BF16};
        struct stored c = stored_make(s->one, &way, 1, 1, size, size, tokens);
        float *x = malloc((size_t)(tokens * size) * sizeof *x);
        if (!x)
            exit(1);
        for (int64_t n = 0; n < tokens * size; n++) {
            const uint32_t bits = n < COUNT(known)
                                      ? known[n][0]
                                      : (uint32_t)(n / COUNT(lows)) << 16 | lows[n % COUNT(lows)];
            memcpy(&x[n], &bits, sizeof bits);
        }
        stored_append(&c, 0, 1, &tokens, x, 0, x, 0);
        const uint16_t *got = c.memory[0];
        for (int64_t n = 0; c.cache && n < tokens * size; n++) {
            uint32_t bits;
            memcpy(&bits, &x[n], sizeof bits);
            const uint32_t expected = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            const int is_nan = (bits & 0x7fffffff) > 0x7f800000;
            if (is_nan ? (got[n] & 0x7fff) <= 0x7f80 : got[n] != expected) {
                CHECK(0, "%08x became %04x, expected %04x", (unsigned)bits, got[n],
                      (unsigned)expected);
                break;
            }
            CHECK(n >= COUNT(known) || got[n] == known[n][1], "%08x", (unsigned)bits);
        }
        free(x);
        stored_free(&c);
    }
}

/* Every number of channels and of keys up to a few vectors, in every storage. */
static void f07(const struct subject *s)
{
    for (int t = 0; t < COUNT(storages); t++)
        for (int64_t keys = 1; keys <= 33; keys += quick ? 8 : 1)
            for (int64_t size = 1; size <= 17; size += quick ? 5 : 1) {
                const struct shape shape = {1, 1, keys, 2, 1, size, 18 - size};
                const struct way way = {
                    .page = page_sizes[size % 6], .key = storages[t], .value = storages[3 - t]};
                expect_cached(s, problem_make(&shape, (uint64_t)(keys * 32 + size)), &way);
            }
}

/* ---- B, C --------------------------------------------------------------------------------------
 */

static void b11(const struct subject *s)
{
    const struct way way = {.page = 2, .chunk = 4, .turned = 1};
    for (unsigned bits = 0; bits < 32; bits++) {
        const struct shape shape = {1, 1, 5, 2, 1, 4, 4};
        struct problem *p = problem_make(&shape, bits);
        problem_mask(p, MASK_BOOL, 4, 8);
        for (int j = 0; j < 5; j++)
            ((unsigned char *)p->mask)[j] = bits >> j & 1;
        expect_cached(s, p, &way);
    }
}

static void c07(const struct subject *s)
{
    static const int64_t histories[] = {0, 63, 64, 65, 511, 512};
    for (int n = 0; n < COUNT(histories); n++) {
        const struct shape shape = {1, 5, histories[n] + 5, 2, 1, 8, 8};
        const struct way way = {.page = page_sizes[n], .chunk = 64, .grow = n & 1, .rows = n % 3};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        p->flags_free = 0;
        struct answer plain = answer_of(s, p), a = cached_attend(s->one, p, &way);
        compare_bits(&a, &plain, "through a cache");
        for (int change = 0; change < 2; change++) {
            for (int64_t j = histories[n] + 1; j < shape.keys; j++) {
                fill(key_line(p, 0, j, 0), 8, change == 0 ? 100.0f : NAN);
                fill(value_line(p, 0, j, 0), 8, change == 0 ? -1e30f : INFINITY);
                fill(query_line(p, 0, j - histories[n], 0), 16, change == 0 ? 3.0f : NAN);
            }
            struct answer b = cached_attend(s->one, p, &way);
            check_bits(out_line(p, &b, 0, 0, 0), out_line(p, &a, 0, 0, 0), 16, "row 0");
            answer_free(&b);
        }
        answer_free(&a);
        answer_free(&plain);
        problem_free(p);
    }
}

/* A prefix, a chunk and a window: the chunk at once, its tokens one by one, and no cache. */
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
        struct answer plain = answer_of(s, p);
        for (int way = 0; way < 3; way++) {
            const struct way ways[] = {{.page = 4}, {.page = 4, .rows = 1, .grow = 1}, {.rows = 2}};
            struct answer a = cached_attend(s->one, p, &ways[way]);
            compare_bits(&a, &plain, "through a cache");
            answer_free(&a);
        }
        answer_free(&plain);
        problem_free(p);
    }
}

/* ---- L -----------------------------------------------------------------------------------------
 */

static headway_status attend_one(const struct subject *s, headway_kv_cache *cache,
                                 const int64_t *lengths, float *out)
{
    const int64_t shape[4] = {1, 1, 1, 4};
    float query[4] = {0, 0, 0, 0};
    const headway_tensor q = headway_tensor_dense(query, HEADWAY_F32, 4, shape);
    const headway_tensor o = headway_tensor_dense(out, HEADWAY_F32, 4, shape);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    size_t bytes = 0;
    params.cache = cache;
    params.key_lengths = lengths;
    headway_status status = headway_attention_workspace(s->one, &params, &q, NULL, NULL, &bytes);
    void *workspace = check_guard(bytes, 0);
    if (status == HEADWAY_OK)
        status = headway_attention(s->one, &params, &q, NULL, NULL, &o, workspace, bytes);
    check_guard_free(workspace);
    return status;
}

static int64_t length_of(const headway_kv_cache *cache, int64_t slot)
{
    headway_kv_cache_state state = HEADWAY_KV_CACHE_STATE_INIT;
    CHECK(headway_kv_cache_get_state(cache, slot, &state) == HEADWAY_OK, "state");
    return state.length;
}

/* Lengths that claim more than there is, of any of the calls that take one. */
static void l01(const struct subject *s)
{
    for (int64_t page = 0; page <= 4; page += 4) {
        const struct way way = {.page = page};
        struct stored c = stored_make(s->one, &way, 1, 1, 4, 4, 4);
        float tokens[6 * 4] = {0}, out[4] = {7, 7, 7, 7};
        const int64_t three = 3, two = 2, claims[] = {4, 6, -1, INT64_MAX, INT64_MIN};
        const int64_t shape[4] = {1, 2, 1, 4};
        const headway_tensor more = headway_tensor_dense(tokens, HEADWAY_F32, 4, shape);
        stored_append(&c, 0, 1, &three, tokens, 0, tokens, 0);
        for (int n = 0; c.cache && n < COUNT(claims); n++) {
            CHECK(attend_one(s, c.cache, &claims[n], out) == HEADWAY_ERROR_ARGUMENT,
                  "%lld of 3 keys are claimed", (long long)claims[n]);
            CHECK(headway_kv_cache_truncate(c.cache, 0, claims[n]) == HEADWAY_ERROR_ARGUMENT,
                  "3 keys are cut to %lld", (long long)claims[n]);
        }
        CHECK(headway_kv_cache_append(c.cache, NULL, &two, &more, &more) == HEADWAY_ERROR_ARGUMENT,
              "five tokens where four fit");
        CHECK(length_of(c.cache, 0) == 3 && out[0] == 7, "something changed");
        CHECK(attend_one(s, c.cache, &three, out) == HEADWAY_OK && out[0] == 0, "three keys");
        stored_free(&c);
    }
}

/* The first step: an empty cache, then one token, then three. */
static void l03(const struct subject *s)
{
    for (int n = 0; n < COUNT(page_sizes); n++) {
        const struct shape shape = {2, 4, 4, 2, 1, 8, 8};
        const struct way way = {.page = page_sizes[n]},
                         one = {.page = page_sizes[n], .rows = 1, .grow = 1};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_TOP_LEFT;
        struct answer plain = answer_of(s, p), a = cached_attend(s->one, p, &one);
        compare_bits(&a, &plain, "token by token");
        answer_free(&a);
        p->has_key_lengths = 1;
        p->key_lengths[0] = 0;
        p->key_lengths[1] = 1;
        struct answer b = cached_attend(s->one, p, &way);
        for (int64_t i = 0; i < 4; i++)
            CHECK(*lse_at(p, &b, 0, i, 0) == -INFINITY && out_line(p, &b, 0, i, 0)[0] == 0,
                  "row %lld of an empty cache", (long long)i);
        answer_free(&plain);
        plain = answer_of(s, p);
        compare_bits(&b, &plain, "an empty cache beside one of a token");
        answer_free(&b);
        answer_free(&plain);
        problem_free(p);
    }
}

/* Sequences of 3, 0 and 5 keys; long ones whose parts are empty. */
static void l05(const struct subject *s)
{
    static const int64_t lengths[][3] = {{3, 0, 5}, {0, 70, 0}, {2000, 0, 1}, {0, 0, 0}};
    for (int n = 0; n < COUNT(lengths); n++) {
        const struct shape shape = {3, 2, 2000, 4, 1, 8, 8};
        const struct way way = {
            .page = page_sizes[n], .turned = 1, .key = storages[n], .value = storages[n]};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->has_key_lengths = 1;
        memcpy(p->key_lengths, lengths[n], sizeof lengths[n]);
        struct problem *copy = problem_copy(p);
        struct answer a = expect_stored(s, p, &way);
        for (int64_t b = 0; b < 3; b++)
            for (int64_t i = 0; i < 2; i++)
                CHECK((*lse_at(copy, &a, b, i, 3) == -INFINITY) == (lengths[n][b] == 0),
                      "lse of row %lld of sequence %lld", (long long)i, (long long)b);
        answer_free(&a);
        problem_free(copy);
    }
}

static void l07(const struct subject *s)
{
    static const int64_t valid[] = {0, 1, 63, 64, 1999};
    for (int n = 0; n < COUNT(valid); n++) {
        const struct shape shape = {1, 1, 2000, 4, 1, 16, 16};
        const struct way way = {.page = 16, .beyond = 1};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        fill(p->value, 2000 * 16, NAN);
        if (valid[n])
            fill(value_line(p, 0, valid[n] - 1, 0), 16, 7);
        p->has_key_lengths = p->has_offsets = 1;
        p->key_lengths[0] = valid[n];
        p->offsets[0] = valid[n] - 1;
        p->window_left = 0;
        struct answer a = cached_attend(s->seven, p, &way), b = cached_attend(s->one, p, &way);
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

/* The row at position t of a buffer of any size sees the tokens 0 .. t: t / 2. */
static void l09(const struct subject *s)
{
    static const int64_t capacities[] = {96, 128, 160};
    for (int n = 0; n < COUNT(capacities); n++)
        for (int t = 0; t < 3; t++) {
            const struct shape shape = {1, capacities[n], capacities[n], 1, 1, 4, 4};
            const struct way way = {.page = page_sizes[t * 2],
                                    .rows = 1,
                                    .grow = 1,
                                    .key = storages[t],
                                    .value = storages[t]};
            struct problem *p = problem_make(&shape, 0);
            fill_all(p, 0, 1, 0);
            number_values(p);
            p->causal = HEADWAY_CAUSAL_TOP_LEFT;
            struct answer a = cached_attend(s->one, p, &way);
            for (int64_t at = 0; at < capacities[n]; at++)
                expect_row(p, &a, at, (double)at / 2, 1);
            answer_free(&a);
            problem_free(p);
        }
}

/* A ring: row i of a problem from a rolling cache whose tokens come `chunk` at a time. */
static void roll(const struct subject *s, const struct problem *p, int64_t capacity, int64_t chunk,
                 const struct answer *plain)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    const struct shape *x = &p->shape;
    struct stored c = {NULL, x->kv_heads, x->size, x->value_size, {0}, {NULL}};
    const int64_t pool[4] = {1, x->kv_heads, capacity, x->size};
    const size_t bytes = (size_t)(x->kv_heads * capacity * x->size) * sizeof(float);
    c.memory[0] = check_guard(bytes, 1);
    c.memory[1] = check_guard(bytes, 0);
    check_poison(c.memory[0], (int64_t)(bytes / sizeof(float)));
    check_poison(c.memory[1], (int64_t)(bytes / sizeof(float)));
    const headway_tensor key = headway_tensor_dense(c.memory[0], HEADWAY_F32, 4, pool);
    const headway_tensor value = headway_tensor_dense(c.memory[1], HEADWAY_F32, 4, pool);
    config.sequences = 1;
    config.kv_heads = x->kv_heads;
    config.head_size = x->size;
    config.capacity = capacity;
    config.rolling = 1;
    config.key = &key;
    config.value = &value;
    CHECK(headway_kv_cache_create(s->one, &config, &c.cache) == HEADWAY_OK, "create");
    for (int64_t first = 0; c.cache && first < x->queries; first += chunk) {
        const int64_t count = first + chunk < x->queries ? chunk : x->queries - first;
        const int64_t rows[4] = {1, count, x->heads, x->size};
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        float out[64 * 16];
        size_t needed = 0;
        const headway_tensor query =
            headway_tensor_dense(query_line(p, 0, first, 0), HEADWAY_F32, 4, rows);
        const headway_tensor to = headway_tensor_dense(out, HEADWAY_F32, 4, rows);
        stored_append(&c, 0, 1, &count, key_line(p, 0, first, 0), 0, value_line(p, 0, first, 0), 0);
        params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        params.window_left = p->window_left;
        params.cache = c.cache;
        headway_status status =
            headway_attention_workspace(s->one, &params, &query, NULL, NULL, &needed);
        void *workspace = check_guard(needed, 0);
        if (status == HEADWAY_OK)
            status = headway_attention(s->one, &params, &query, NULL, NULL, &to, workspace, needed);
        check_guard_free(workspace);
        CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
        check_bits(out, out_line(p, plain, 0, first, 0), count * x->heads * x->size, "a ring");
    }
    stored_free(&c);
}

/* A window of three in a ring of six, fifty tokens one by one; and what it cannot hold. */
static void l11(const struct subject *s)
{
    static const int64_t cases[][3] = {{2, 6, 1}, {0, 1, 1}, {5, 6, 1}, {2, 6, 4}, {3, 64, 61}};
    for (int n = 0; n < COUNT(cases); n++) {
        const struct shape shape = {1, 50, 50, 2, 1, 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_TOP_LEFT;
        p->window_left = cases[n][0];
        struct answer plain = answer_of(s, p);
        roll(s, p, cases[n][1], cases[n][2], &plain);
        answer_free(&plain);
        problem_free(p);
    }
}

/* A ring of five that stands at three: four tokens go in two parts; what does not fit is an error that
 * changes nothing. */
static void l13(const struct subject *s)
{
    static const int64_t starts[] = {3, 4, 5, 8};
    for (int n = 0; n < COUNT(starts); n++) {
        headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
        headway_kv_cache *cache = NULL;
        float tokens[16], got[5];
        const int64_t one[4] = {1, 16, 1, 1}, last[3] = {5, 1, 1};
        const int64_t four = 4, total = starts[n] + 4;
        for (int t = 0; t < 16; t++)
            tokens[t] = (float)t;
        headway_tensor key = headway_tensor_dense(tokens, HEADWAY_F32, 4, one);
        const headway_tensor read = headway_tensor_dense(got, HEADWAY_F32, 3, last);
        config.sequences = config.kv_heads = config.head_size = 1;
        config.capacity = 5;
        config.rolling = 1;
        CHECK(headway_kv_cache_create(s->one, &config, &cache) == HEADWAY_OK, "create");
        for (int64_t t = 0; cache && t < starts[n]; t++) {
            const int64_t single = 1;
            key.data = tokens + t;
            key.shape[1] = 1;
            CHECK(headway_kv_cache_append(cache, NULL, &single, &key, &key) == HEADWAY_OK, "one");
        }
        key.data = tokens + starts[n];
        key.shape[1] = 4;
        CHECK(headway_kv_cache_append(cache, NULL, &four, &key, &key) == HEADWAY_OK, "four");
        CHECK(length_of(cache, 0) == total, "the length");
        CHECK(headway_kv_cache_read(cache, 0, total - 5, &read, NULL) == HEADWAY_OK, "read");
        for (int t = 0; t < 5; t++)
            CHECK(got[t] == (float)(total - 5 + t), "token %lld is %g", (long long)(total - 5 + t),
                  (double)got[t]);
        CHECK(headway_kv_cache_read(cache, 0, total - 6, &read, NULL) == HEADWAY_ERROR_ARGUMENT,
              "a token that is gone");
        const int64_t negative = -1;
        CHECK(headway_kv_cache_append(cache, NULL, &negative, &key, &key) ==
                      HEADWAY_ERROR_ARGUMENT &&
                  length_of(cache, 0) == total,
              "a negative length");
        headway_kv_cache_destroy(cache);
    }
}

/* Attending only reads; a layer's call with no key does as well. */
static void l15(const struct subject *s)
{
    const struct way way = {.spare = 3};
    struct stored c = stored_make(s->one, &way, 1, 1, 4, 4, 4);
    float tokens[8], weight[16], before[28], out[8];
    const int64_t three = 3, none = 0, square[2] = {4, 4}, row[3] = {1, 1, 4};
    const int64_t nothing[3] = {1, 0, 4};
    uint64_t state = check_seed;
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_mha *layer = NULL;
    size_t bytes = 0;
    check_fill_normal(&state, weight, 16, 1);
    float twelve[12];
    check_fill_normal(&state, twelve, 12, 1);
    memcpy(tokens, twelve, sizeof tokens);
    stored_append(&c, 0, 1, &three, twelve, 0, twelve, 0);
    memcpy(before, c.memory[0], 16 * sizeof(float));
    CHECK(attend_one(s, c.cache, NULL, out) == HEADWAY_OK, "attend");
    const headway_tensor matrix = headway_tensor_dense(weight, HEADWAY_F32, 2, square);
    const headway_tensor x = headway_tensor_dense(tokens, HEADWAY_F32, 3, row);
    const headway_tensor key = headway_tensor_dense(tokens, HEADWAY_F32, 3, nothing);
    const headway_tensor to = headway_tensor_dense(out, HEADWAY_F32, 3, row);
    w.query = w.key = w.value = w.out = &matrix;
    config.heads = 1;
    params.cache = c.cache;
    CHECK(headway_mha_create(s->one, &config, &w, &layer) == HEADWAY_OK, "create");
    for (int given = 0; given < 2; given++) {
        const headway_tensor *added = given ? &x : &key;
        params.key_lengths = given ? &none : NULL;
        headway_status status = headway_mha_workspace(layer, &params, &x, added, NULL, &bytes);
        void *workspace = check_guard(bytes, 0);
        if (status == HEADWAY_OK)
            status = headway_mha_forward(layer, &params, &x, added, NULL, &to, workspace, bytes);
        CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
        check_guard_free(workspace);
    }
    CHECK(length_of(c.cache, 0) == 3 && memcmp(before, c.memory[0], 16 * sizeof(float)) == 0,
          "the cache changed");
    headway_mha_destroy(layer);
    stored_free(&c);
}

static void l17(const struct subject *s)
{
    const struct shape shape = {1, 1100, 1100, 1, 1, 4, 4};
    struct problem *p = problem_make(&shape, 0);
    p->causal = HEADWAY_CAUSAL_TOP_LEFT;
    struct answer plain = attend(s->seven, p, LAYOUT_DENSE, 0);
    for (int n = 0; n < 3; n++) {
        const struct way ways[] = {{.rows = 7, .grow = 1, .page = 16},
                                   {.rows = 1, .grow = 1},
                                   {.rows = 1, .page = 1, .chunk = 100}};
        if (quick && n > 0)
            break;
        struct answer a = cached_attend(s->one, p, &ways[n]);
        compare_bits(&a, &plain, "chunks through a cache");
        answer_free(&a);
    }
    answer_free(&plain);
    problem_free(p);
}

/* What lies behind the length, and how much, says nothing. */
static void l19(const struct subject *s)
{
    static const int64_t spares[] = {0, 1, 8, 9, 57};
    const struct shape shape = {2, 3, 7, 4, 2, 8, 8};
    for (int t = 0; t < COUNT(storages); t++) {
        struct problem *p = problem_make(&shape, 1);
        struct problem *q = NULL;
        for (int n = 0; n < COUNT(spares); n++) {
            const struct way way = {.page = page_sizes[n],
                                    .spare = spares[n],
                                    .key = storages[t],
                                    .value = storages[t]};
            if (!q)
                q = cached_problem(s->one, p, &way);
            struct answer plain = answer_of(s, q), a = cached_attend(s->one, p, &way);
            compare_bits(&a, &plain, "capacity beyond the length");
            answer_free(&plain);
            answer_free(&a);
        }
        problem_free(q);
        problem_free(p);
    }
}

/* ---- R -----------------------------------------------------------------------------------------
 */

/* Decoding on 1 to 16 threads, long enough for the keys to be cut. */
static void r01(const struct subject *s)
{
    const struct shape shape = {1, 1, 444, 8, 2, 56, 56};
    for (int t = 0; t < COUNT(storages); t++) {
        const struct way way = {.page = 32, .key = storages[t], .value = storages[t]};
        struct problem *p = problem_make(&shape, 0);
        struct answer first = cached_attend(s->one, p, &way);
        for (int threads = 2; threads <= 16; threads += quick ? 7 : 1) {
            headway_engine *engine = engine_make(s->isa, threads);
            struct answer a = cached_attend(engine, p, &way);
            compare_bits(&a, &first, "more threads");
            answer_free(&a);
            headway_engine_destroy(engine);
        }
        answer_free(&first);
        problem_free(p);
    }
}

/* A sequence alone and beside others; a row alone and beside others. */
static void r05(const struct subject *s)
{
    static const int64_t counts[] = {1, 2, 8, 32, 193};
    const struct shape shape = {3, 200, 257, 6, 2, 16, 16};
    struct problem *p = problem_make(&shape, 0);
    struct answer plain = attend(s->seven, p, LAYOUT_DENSE, 0);
    for (int n = 0; n < COUNT(counts); n++) {
        const struct way way = {.page = page_sizes[n], .rows = counts[n], .turned = n & 1};
        struct answer a = cached_attend(n & 1 ? s->seven : s->one, p, &way);
        compare_bits(&a, &plain, "fewer query rows");
        answer_free(&a);
    }
    for (int64_t b = 0; b < 3; b++) {
        const struct way way = {.page = 16};
        struct problem *q = problem_copy(p);
        q->shape.batch = 1;
        memcpy(q->query, query_line(p, b, 0, 0), 200 * 6 * 16 * sizeof(float));
        memcpy(q->key, key_line(p, b, 0, 0), 257 * 2 * 16 * sizeof(float));
        memcpy(q->value, value_line(p, b, 0, 0), 257 * 2 * 16 * sizeof(float));
        struct answer a = cached_attend(s->one, q, &way);
        check_bits(a.out, out_line(p, &plain, b, 0, 0), a.outs, "alone");
        answer_free(&a);
        problem_free(q);
    }
    answer_free(&plain);
    problem_free(p);
}

/* ---- O -----------------------------------------------------------------------------------------
 */

/* A cache that one thread makes and fills, another attends from after that one has ended, and a third
 * destroys. */
struct handed {
    const struct subject *s;
    struct stored stored;
    float out[4];
    int step;
};

static void *take_a_step(void *context)
{
    static const struct way way = {.page = 2, .key = HEADWAY_F16, .value = HEADWAY_F16};
    static const float tokens[3 * 4] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4};
    struct handed *h = context;
    const int64_t three = 3;
    if (h->step == 0) {
        h->stored = stored_make(h->s->one, &way, 1, 1, 4, 4, 4);
        stored_append(&h->stored, 0, 1, &three, tokens, 0, tokens, 0);
    } else if (h->step == 1)
        CHECK(attend_one(h->s, h->stored.cache, NULL, h->out) == HEADWAY_OK, "attend");
    else
        stored_free(&h->stored);
    return NULL;
}

static void o11(const struct subject *s)
{
    struct handed h = {.s = s};
    for (; h.step < 3; h.step++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, take_a_step, &h) == 0, "no thread");
        pthread_join(thread, NULL);
    }
    for (int d = 0; d < 4; d++)
        CHECK(h.out[d] == (float)(d + 1), "element %d is %g", d, (double)h.out[d]);
}

const struct entry cache_cases[] = {
    {"F01", "scores that no half holds", f01},
    {"F03", "a long sum of narrow values", f03},
    {"F05", "roundings to bf16, wherever in a vector", f05},
    {"F07", "every tail, in every storage", f07},
    {"B11", "masks with holes, past and new", b11},
    {"C07", "later tokens do not leak through a cache", c07},
    {"C13", "chunks with a window through a cache", c13},
    {"L01", "lengths beyond what is there", l01},
    {"L03", "the first step", l03},
    {"L05", "sequences without keys", l05},
    {"L07", "parts of the cached keys that are empty", l07},
    {"L09", "positions in a cache of any size", l09},
    {"L11", "a window in a ring", l11},
    {"L13", "a ring that turns, and errors", l13},
    {"L15", "reading changes nothing", l15},
    {"L17", "chunks at every offset through a cache", l17},
    {"L19", "capacity beyond the length", l19},
    {"R01", "decoding on 1 to 16 threads", r01},
    {"R05", "rows and sequences alone and beside others", r05},
    {"O11", "made, used and destroyed by three threads", o11},
    {0},
};
