/* What is appended, where it lies, and what is never touched. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check_cache.h"

static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};
static const int64_t page_sizes[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t below(uint64_t *state, int64_t n)
{
    return (int64_t)(check_random(state) % (uint64_t)n);
}

/* ---- appending --------------------------------------------------------------------------------
 */

/* Bytes of two regions that are equal. */
static int64_t equal_bytes(const struct region *a, const struct region *b)
{
    int64_t equal = 0;
    for (size_t i = 0; i < a->bytes; i++)
        equal += ((const unsigned char *)a->memory)[i] == ((const unsigned char *)b->memory)[i];
    return equal;
}

/* Two caches in memory of two fillings, one fed at once on one thread of the first row, one in
 * chunks on the others: they hold the tokens, and what is equal is what was appended. */
static void append_twice(const headway_kv_cache_config *c, int order, uint64_t seed, int row)
{
    headway_kv_cache_config config[2] = {*c, *c};
    struct caller memory[2];
    headway_kv_cache *cache[2];
    uint64_t random = seed;
    const int64_t lengths[3] = {c->capacity, 0, below(&random, c->capacity + 1)};
    for (int i = 0; i < 2; i++) {
        caller_make(&memory[i], &config[i], order, i);
        for (int r = 0; r < memory[i].arena.used; r++)
            memset(memory[i].arena.regions[r].memory, i ? 0xff : 0x00,
                   memory[i].arena.regions[r].bytes);
        cache[i] = cache_make(rows[i ? row : 0].engine[i], &config[i]);
    }
    for (int64_t s = 0; s < 3; s++) {
        CHECK(append_tokens(cache[0], &config[0], seed, s, s, lengths[s]) == HEADWAY_OK, "whole");
        while (length_of(cache[1], s) < lengths[s]) {
            const int64_t left = lengths[s] - length_of(cache[1], s);
            const int64_t count = 1 + below(&random, left < 40 ? left : 40);
            CHECK(append_tokens(cache[1], &config[1], seed, s, s, count) == HEADWAY_OK, "chunk");
        }
        for (int i = 0; i < 2; i++)
            expect_tokens(cache[i], &config[i], seed, s, s, 0, lengths[s], i ? "chunks" : "whole");
    }
    for (int r = 0; r < memory[0].arena.used; r++) {
        const int of_value = r % 2, scale = r >= 2;
        const headway_dtype dtype = of_value ? c->value_dtype : c->key_dtype;
        const int64_t size = scale ? 1 : of_value ? c->value_head_size : c->head_size;
        const int64_t bytes = scale ? 4 : dtype == HEADWAY_F32 ? 4 : dtype == HEADWAY_I8 ? 1 : 2;
        if (memory[0].arena.used == 3 && scale && dtype != HEADWAY_I8)
            continue;
        CHECK(equal_bytes(&memory[0].arena.regions[r], &memory[1].arena.regions[r]) ==
                  (lengths[0] + lengths[2]) * c->kv_heads * size * bytes,
              "region %d: %lld bytes are equal", r,
              (long long)equal_bytes(&memory[0].arena.regions[r], &memory[1].arena.regions[r]));
    }
    for (int i = 0; i < 2; i++) {
        headway_kv_cache_destroy(cache[i]);
        arena_release(&memory[i].arena);
    }
}

static void check_chunks(void)
{
    for (int n = 0; n < COUNT(page_sizes); n++) {
        if (!check_case("append: page size %lld", (long long)page_sizes[n]))
            continue;
        for (int pair = 0; pair < 16; pair++) {
            const int64_t capacity = n < 4 ? 23 : 2 * page_sizes[n] + 9;
            headway_kv_cache_config config =
                config_make(3, capacity, page_sizes[n], dtypes[pair % 4], dtypes[pair / 4]);
            append_twice(&config, n + pair, (uint64_t)(n * 16 + pair), pair % row_count);
        }
    }
    /* Enough for several threads. */
    if (check_case("append: on threads"))
        for (int row = 0; row < row_count; row++) {
            headway_kv_cache_config config = config_make(3, 700, 16, HEADWAY_I8, HEADWAY_F16);
            config.kv_heads = 4;
            config.head_size = 65;
            config.value_head_size = 130;
            append_twice(&config, 0, 99, row);
        }
}

/* A batch of slots in any order, lengths of 0 and strides of all kinds among them. */
static void check_batches(void)
{
    static const int64_t slots[4] = {4, 0, 3, 1}, lengths[4] = {3, 0, 7, 1};
    static const int orders[3][4] = {{0, 1, 2, 3}, {1, 2, 0, 3}, {2, 0, 1, 3}};
    if (!check_case("append: batches and strides"))
        return;
    for (int n = 0; n < 12; n++) {
        headway_kv_cache_config config =
            config_make(5, 20, n % 2 ? 8 : 0, dtypes[n % 4], dtypes[(n + 1) % 4]);
        headway_kv_cache *cache = cache_make(rows[n % row_count].engine[n % THREADS], &config);
        for (int round = 0; round < 2; round++) {
            struct arena arena = {.at_end = n % 2};
            headway_tensor t[2];
            for (int i = 0; i < 2; i++) {
                const int64_t size = i ? config.value_head_size : config.head_size;
                const int64_t shape[4] = {4, 7, config.kv_heads, size};
                float dense[4 * 7 * 2 * 5];
                check_poison(dense, COUNT(dense));
                for (int b = 0; b < 4; b++)
                    tokens_fill(dense + b * 7 * config.kv_heads * size, 5 + (uint64_t)i, slots[b],
                                length_of(cache, slots[b]), lengths[b], config.kv_heads, size);
                t[i] = headway_tensor_dense(NULL, HEADWAY_F32, 4, shape);
                lay(&t[i], orders[n % 3], 1, n % 4 ? 3 : 0, n % 4 == 2);
                t[i].stride[3] = 1;
                arena_place(&arena, &t[i]);
                scatter(&t[i], dense);
            }
            arena_seal(&arena);
            CHECK(headway_kv_cache_append(cache, slots, lengths, &t[0], &t[1]) == HEADWAY_OK,
                  "append");
            arena_release(&arena);
        }
        for (int b = 0; b < 4; b++) {
            CHECK(length_of(cache, slots[b]) == 2 * lengths[b], "length of slot %lld",
                  (long long)slots[b]);
            expect_tokens(cache, &config, 5, slots[b], slots[b], 0, 2 * lengths[b], "batch");
        }
        CHECK(length_of(cache, 2) == 0, "a slot that isn't named");
        headway_kv_cache_destroy(cache);
    }
}

/* Strided reads of one or both. */
static void check_reads(void)
{
    if (!check_case("read: parts and strides"))
        return;
    headway_kv_cache_config config = config_make(1, 20, 4, HEADWAY_BF16, HEADWAY_I8);
    headway_kv_cache *cache = cache_make(rows[0].engine[1], &config);
    CHECK(append_tokens(cache, &config, 3, 0, 0, 18) == HEADWAY_OK, "append");
    for (int n = 0; n < 18; n++) {
        const int64_t first = n, count = n % 4 < 18 - n ? n % 4 : 18 - n;
        const int64_t shape[3] = {count, 2, config.value_head_size};
        struct arena arena = {.at_end = n % 2};
        headway_tensor t = headway_tensor_dense(NULL, HEADWAY_F32, 3, shape);
        float got[18 * 2 * 3], expected[18 * 2 * 3];
        lay(&t, n % 3 ? (const int[3]){0, 1, 2} : (const int[3]){1, 0, 2}, 1, n % 3, n % 5 == 0);
        t.stride[2] = 1;
        arena_place(&arena, &t);
        arena_seal(&arena);
        CHECK(headway_kv_cache_read(cache, 0, first, NULL, &t) == HEADWAY_OK, "read");
        arena_take(&arena, &t, NULL, 0, 0, got);
        arena_release(&arena);
        tokens_fill(expected, 4, 0, first, count, 2, config.value_head_size);
        for (int64_t i = 0; i < count * 2; i++)
            stored_values(expected + i * config.value_head_size, config.value_head_size,
                          config.value_dtype);
        check_bits(got, expected, count * 2 * config.value_head_size, "values");
    }
    headway_kv_cache_destroy(cache);
}

/* What headway.h says a stored value differs by, at most. */
static double bound_of(headway_dtype dtype, double x, double a)
{
    switch (dtype) {
    case HEADWAY_F16:
        return fabs(x) > 65504.0 ? INFINITY : fmax(0x1p-11 * fabs(x), 0x1p-25);
    case HEADWAY_BF16:
        return fabs(x) > 255 * 0x1p120 ? INFINITY : fmax(0x1p-8 * fabs(x), 0x1p-134);
    case HEADWAY_I8:
        return a == (double)FLT_MAX ? INFINITY : a / 254 * (1 + 0x1p-14) + 0x1p-100;
    default:
        return 0;
    }
}

/* A token's head: any floats, all of a size, by the halves of 8, 11 and 7 bits, or by FLT_MAX. */
static void fill_anything(float *line, int64_t size, int kind, uint64_t *random)
{
    const int exponent = (int)below(random, 254) - 126;
    for (int64_t i = 0; i < size; i++) {
        const double whole = (double)(1 + below(random, 1 << 23)) * 0x1p-23;
        const double half = (double)(2 * below(random, 127) + 1), sign = below(random, 2) ? 1 : -1;
        const int any = (int)below(random, 276) - 148;
        const double x[] = {ldexp(whole, any),
                            ldexp(whole, exponent),
                            ldexp(1 + half * 0x1p-8, any - 1),
                            ldexp(1 + half * 0x1p-11, any - 1),
                            ldexp(i ? half / 254 : 1, exponent),
                            FLT_MAX * (1 - ldexp(whole, -16)),
                            i ? FLT_MAX * whole : FLT_MAX};
        line[i] = (float)(sign * x[kind]);
    }
}

static double largest(const float *line, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++)
        most = fabs((double)line[i]) > most ? fabs((double)line[i]) : most;
    return most;
}

static void bounds(const headway_engine *engine, headway_dtype dtype, int kind)
{
    enum { TOKENS = 600, SIZE = 5, HEADS = 2 };
    headway_kv_cache_config config = config_make(1, TOKENS, 0, dtype, dtype);
    config.value_head_size = SIZE;
    headway_kv_cache *cache = cache_make(engine, &config);
    static float x[TOKENS * HEADS * SIZE], got[2][TOKENS * HEADS * SIZE];
    uint64_t random = 77 + (uint64_t)kind;
    for (int64_t i = 0; i < COUNT(x); i += SIZE)
        fill_anything(x + i, SIZE, kind, &random);
    const int64_t shape[4] = {1, TOKENS, HEADS, SIZE};
    const headway_tensor all = headway_tensor_dense(x, HEADWAY_F32, 4, shape);
    CHECK(headway_kv_cache_append(cache, NULL, NULL, &all, &all) == HEADWAY_OK, "append");
    const headway_tensor k = headway_tensor_dense(got[0], HEADWAY_F32, 3, shape + 1);
    const headway_tensor v = headway_tensor_dense(got[1], HEADWAY_F32, 3, shape + 1);
    CHECK(headway_kv_cache_read(cache, 0, 0, &k, &v) == HEADWAY_OK, "read");
    int wrong = 0;
    for (int64_t i = 0; i < COUNT(x); i++) {
        const double a = largest(x + i / SIZE * SIZE, SIZE);
        for (int n = 0; n < 2; n++)
            wrong += !(fabs((double)got[n][i] - (double)x[i]) <= bound_of(dtype, (double)x[i], a));
    }
    CHECK(!wrong, "%d of %d values", wrong, 2 * COUNT(x));
    headway_kv_cache_destroy(cache);
}

/* Stored values differ from what was appended by no more than the bounds of the header. */
static void check_bounds(void)
{
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int kind = 0; kind < 7; kind++)
            if (check_case("bounds: dtype %d, kind %d", (int)dtypes[d], kind))
                for (int row = 0; row < row_count; row++)
                    bounds(rows[row].engine[0], dtypes[d], kind);
}

static void check_states(void)
{
    if (!check_case("state"))
        return;
    headway_kv_cache_config config = config_make(3, 10, 4, HEADWAY_F16, HEADWAY_I8);
    headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
    headway_kv_cache_state state = state_of(cache, 1);
    CHECK(state.length == 0 && state.first == 0 && state.pages == 0 && state.pages_free == 9,
          "empty");
    CHECK(state.bytes == 9 * 4 * 2 * (5 * 2 + 3 + 4), "%lld bytes", (long long)state.bytes);
    CHECK(append_tokens(cache, &config, 3, 0, 1, 5) == HEADWAY_OK, "append");
    state = state_of(cache, 1);
    CHECK(state.length == 5 && state.pages == 2 && state.pages_free == 7, "5 tokens");
    CHECK(headway_kv_cache_truncate(cache, 1, 4) == HEADWAY_OK, "truncate");
    state = state_of(cache, 1);
    CHECK(state.length == 4 && state.pages == 1 && state.pages_free == 8, "4 tokens");
    headway_kv_cache_destroy(cache);
    config.value_head_size = 0; /* the same as D */
    config.page_size = 0;
    config.value_dtype = HEADWAY_F16;
    cache = cache_make(rows[0].engine[0], &config);
    state = state_of(cache, 1);
    CHECK(state.bytes == 3 * 10 * 2 * (5 + 5) * 2 && state.pages == 0 && state.pages_free == 0,
          "contiguous");
    headway_kv_cache_destroy(cache);
}

/* ---- never touched ----------------------------------------------------------------------------
 */

enum { OS_PAGE = 4096 };

/* Memory in which every token has a page of the system's to itself, unreadable until shown. */
struct spread {
    headway_tensor tensor[4];
    size_t bytes[4];
};

static void spread_make(struct spread *m, headway_kv_cache_config *config, int64_t pages)
{
    const headway_tensor **places[4] = {&config->key, &config->value, &config->key_scale,
                                        &config->value_scale};
    const int64_t tokens = config->page_size ? config->page_size : config->capacity;
    for (int i = 0; i < 4; i++) {
        const headway_dtype dtype = i % 2 ? config->value_dtype : config->key_dtype;
        const int scale = i >= 2;
        const int64_t bytes = scale || dtype == HEADWAY_F32 ? 4 : dtype == HEADWAY_I8 ? 1 : 2;
        const int64_t shape[4] = {pages, config->kv_heads, tokens,
                                  i % 2 ? config->value_head_size : config->head_size};
        headway_tensor *t = &m->tensor[i];
        m->bytes[i] = 0;
        if (scale && dtype != HEADWAY_I8)
            continue;
        m->bytes[i] = (size_t)(pages * tokens * OS_PAGE);
        *t = headway_tensor_dense(
            mmap(NULL, m->bytes[i], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
            scale ? HEADWAY_F32 : dtype, scale ? 3 : 4, shape);
        t->stride[2] = OS_PAGE / bytes;
        t->stride[0] = tokens * t->stride[2];
        t->stride[1] = scale ? 1 : shape[3];
        if (t->data == MAP_FAILED) {
            perror("test");
            exit(1);
        }
        *places[i] = t;
    }
}

static void spread_show(const struct spread *m, int64_t page, int64_t place)
{
    for (int i = 0; i < 4; i++)
        if (m->bytes[i])
            mprotect((char *)m->tensor[i].data + (page * m->tensor[i].shape[2] + place) * OS_PAGE,
                     OS_PAGE, PROT_READ | PROT_WRITE);
}

static void spread_free(struct spread *m)
{
    for (int i = 0; i < 4; i++)
        if (m->bytes[i])
            munmap(m->tensor[i].data, m->bytes[i]);
}

/* Three sequences in slots 2, 0 and 3; what is not theirs can't be touched: by append, read,
 * attention. */
static void touch_only(int n, int64_t page_size)
{
    static const int64_t slots[3] = {2, 0, 3};
    const int64_t capacity = page_size ? 2 * page_size + 40 : 90;
    const int64_t entries = page_size ? (capacity + page_size - 1) / page_size : 1;
    const int64_t tokens = page_size ? page_size : capacity, pages = 4 * entries;
    const struct shape shape = {3, n % 2 ? 1 : 19, capacity - 3, n % 3 ? 8 : 2,
                                2, 8 + n % 4,      9 - n % 3};
    struct problem *p = problem_make(&shape, (uint64_t)n);
    headway_kv_cache_config config =
        config_make(4, capacity, page_size, dtypes[n % 4], dtypes[n / 2 % 4]);
    struct spread memory;
    int32_t numbers[512];
    problem_causal(p, n % 3 ? HEADWAY_CAUSAL_BOTTOM_RIGHT : HEADWAY_CAUSAL_NONE);
    problem_lengths(p, n % 2 == 0, 1);
    p->key_lengths[n % 3] = shape.keys;
    problem_fill_keys(p);
    p->weights = n % 5 ? WEIGHTS_NONE : WEIGHTS_HEADS;
    config.kv_heads = shape.kv_heads;
    config.head_size = shape.size;
    config.value_head_size = shape.value_size;
    config.caller_pages = page_size > 0;
    config.pages = page_size ? pages : 0;
    spread_make(&memory, &config, pages);
    headway_kv_cache *cache = cache_make(rows[n % row_count].engine[n / 2 % 2], &config);
    for (int b = 0; b < 3; b++) {
        const int64_t slot = slots[b], used = divide_up(p->key_lengths[b], tokens);
        for (int64_t i = 0; i < used; i++)
            numbers[i] = (int32_t)(page_size ? pages - 1 - (slot * entries + i) : slot);
        for (int64_t t = 0; t < p->key_lengths[b]; t++)
            spread_show(&memory, numbers[t / tokens], t % tokens);
        if (page_size)
            CHECK(headway_kv_cache_set_pages(cache, slot, numbers, used, 0) == HEADWAY_OK, "pages");
    }
    problem_store(p, cache, slots);
    for (int row = 0; row < row_count; row++)
        for (int t = 0; t < THREADS; t++) {
            struct answer plain = attend(rows[row].engine[t], p, LAYOUT_DENSE, t);
            struct answer cached = attend_cached(rows[row].engine[t], p, cache, slots, 0);
            compare_bits(&cached, &plain, "from the cache");
            answer_free(&plain);
            answer_free(&cached);
        }
    headway_kv_cache_destroy(cache);
    spread_free(&memory);
    problem_free(p);
}

static void check_touched(void)
{
    static const int64_t sizes[] = {0, 1, 4, 16, 64, 256};
    for (int i = 0; i < COUNT(sizes); i++)
        if (check_case("untouched: page size %lld", (long long)sizes[i]))
            for (int n = 0; n < 12; n++)
                touch_only(n, sizes[i]);
}

void check_tokens(void)
{
    check_chunks();
    check_batches();
    check_reads();
    check_bounds();
    check_states();
    check_touched();
}
