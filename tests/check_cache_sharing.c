/* Sequences that share pages, are cut and given up; caches that roll. */
#include <string.h>

#include "check_cache.h"

static int64_t below(uint64_t *state, int64_t n)
{
    return (int64_t)(check_random(state) % (uint64_t)n);
}

static void expect_state(const headway_kv_cache *cache, int64_t slot, int64_t length, int64_t pages,
                         int64_t free, const char *what)
{
    const headway_kv_cache_state state = state_of(cache, slot);
    CHECK(state.length == length && state.pages == pages && state.pages_free == free,
          "%s: slot %lld has %lld tokens, %lld pages, %lld free; expected %lld, %lld, %lld", what,
          (long long)slot, (long long)state.length, (long long)state.pages,
          (long long)state.pages_free, (long long)length, (long long)pages, (long long)free);
}

static void append(headway_kv_cache *cache, const headway_kv_cache_config *config, int64_t sequence,
                   int64_t slot, int64_t count)
{
    const headway_status status = append_tokens(cache, config, 1, sequence, slot, count);
    CHECK(status == HEADWAY_OK, "append of %lld to slot %lld: %s", (long long)count,
          (long long)slot, headway_status_text(status));
}

/* Tokens first .. end - 1 are the sequence's. */
static void expect_part(const headway_kv_cache *cache, const headway_kv_cache_config *config,
                        int64_t sequence, int64_t slot, int64_t first, int64_t end,
                        const char *what)
{
    expect_tokens(cache, config, 1, sequence, slot, first, end - first, what);
}

/* ---- sharing ----------------------------------------------------------------------------------
 */

static void share_pages(headway_dtype key, headway_dtype value)
{
    headway_kv_cache_config config = config_make(4, 20, 4, key, value);
    config.pages = 8;
    struct caller memory;
    caller_make(&memory, &config, 0, 1);
    headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
    append(cache, &config, 0, 0, 6);
    CHECK(headway_kv_cache_fork(cache, 0, 1) == HEADWAY_OK, "fork");
    CHECK(headway_kv_cache_fork(cache, 1, 2) == HEADWAY_OK, "fork of a fork");
    expect_state(cache, 2, 6, 2, 6, "forked");
    append(cache, &config, 1, 1, 1); /* copies the second page */
    expect_state(cache, 1, 7, 2, 5, "written");
    append(cache, &config, 0, 0, 3); /* copies it again, and takes one */
    expect_state(cache, 0, 9, 3, 3, "written too");
    append(cache, &config, 2, 2, 2); /* has it to itself */
    expect_state(cache, 2, 8, 2, 3, "alone");
    expect_part(cache, &config, 0, 0, 0, 9, "0");
    expect_part(cache, &config, 0, 1, 0, 6, "1, shared");
    expect_part(cache, &config, 1, 1, 6, 7, "1, own");
    expect_part(cache, &config, 0, 2, 0, 6, "2, shared");
    expect_part(cache, &config, 2, 2, 6, 8, "2, own");
    CHECK(headway_kv_cache_fork(cache, 2, 3) == HEADWAY_OK, "fork at a page's end");
    append(cache, &config, 3, 3, 1);
    expect_state(cache, 3, 9, 3, 2, "nothing to copy");
    CHECK(headway_kv_cache_truncate(cache, 3, 7) == HEADWAY_OK, "truncate");
    expect_state(cache, 3, 7, 2, 3, "truncated into a shared page");
    append(cache, &config, 3, 3, 1);
    expect_state(cache, 3, 8, 2, 2, "copied");
    expect_part(cache, &config, 2, 2, 6, 8, "2, not touched");
    expect_part(cache, &config, 2, 3, 6, 7, "3, of 2");
    expect_part(cache, &config, 3, 3, 7, 8, "3, own");
    CHECK(headway_kv_cache_fork(cache, 0, 3) == HEADWAY_OK, "over what it held");
    expect_state(cache, 3, 9, 3, 3, "given up");
    for (int64_t s = 0; s < 4; s++)
        CHECK(headway_kv_cache_reset(cache, s) == HEADWAY_OK, "reset");
    expect_state(cache, 0, 0, 0, 8, "all free");
    headway_kv_cache_destroy(cache);
    arena_release(&memory.arena);
}

/* Of two that share a page only one needs a copy, and both in one call get by with one page. */
static void share_last_page(void)
{
    static const int64_t slots[3] = {2, 0, 1}, shape[4] = {3, 1, 2, 5},
                         value_shape[4] = {3, 1, 2, 3};
    headway_kv_cache_config config = config_make(3, 12, 4, HEADWAY_F32, HEADWAY_F32);
    float floats[2][30] = {{0}, {0}};
    const headway_tensor key = headway_tensor_dense(floats[0], HEADWAY_F32, 4, shape);
    const headway_tensor value = headway_tensor_dense(floats[1], HEADWAY_F32, 4, value_shape);
    for (int pages = 2; pages <= 4; pages++) {
        config.pages = pages;
        headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
        append(cache, &config, 0, 0, 2);
        CHECK(headway_kv_cache_fork(cache, 0, 1) == HEADWAY_OK &&
                  headway_kv_cache_fork(cache, 0, 2) == HEADWAY_OK,
              "fork");
        struct bytes before = bytes_of(cache);
        const headway_status status = headway_kv_cache_append(cache, slots, NULL, &key, &value);
        CHECK(status == (pages == 2 ? HEADWAY_ERROR_MEMORY : HEADWAY_OK), "%d pages: %s", pages,
              headway_status_text(status));
        if (pages == 2) {
            bytes_same(&before, cache, "too few pages");
        } else {
            bytes_free(&before);
            expect_state(cache, 0, 3, 1, pages - 3, "appended");
        }
        for (int64_t s = 0; s < 3; s++)
            expect_part(cache, &config, 0, s, 0, 2, "the shared tokens");
        headway_kv_cache_destroy(cache);
    }
}

static void check_forks(void)
{
    static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};
    if (check_case("pages are shared"))
        for (int n = 0; n < 16; n++)
            share_pages(dtypes[n / 4], dtypes[n % 4]);
    if (check_case("the last page of several"))
        share_last_page();
    if (check_case("contiguous forks")) {
        headway_kv_cache_config config = config_make(3, 9, 0, HEADWAY_I8, HEADWAY_BF16);
        headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
        append(cache, &config, 0, 0, 5);
        append(cache, &config, 1, 2, 9);
        CHECK(headway_kv_cache_fork(cache, 0, 2) == HEADWAY_OK, "fork");
        append(cache, &config, 2, 2, 4);
        append(cache, &config, 0, 0, 1);
        expect_part(cache, &config, 0, 0, 0, 6, "from");
        expect_part(cache, &config, 0, 2, 0, 5, "copied");
        expect_part(cache, &config, 2, 2, 5, 9, "own");
        headway_kv_cache_destroy(cache);
    }
}

/* Pages of the caller's: a common beginning in two tables, one of which is written on. */
static void check_caller_pages(void)
{
    static const int32_t first[3] = {5, 1, 3}, second[3] = {5, 1, 0};
    if (!check_case("pages of the caller"))
        return;
    headway_kv_cache_config config = config_make(3, 11, 4, HEADWAY_F16, HEADWAY_I8);
    config.pages = 6;
    config.caller_pages = 1;
    headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
    CHECK(headway_kv_cache_set_pages(cache, 0, first, 3, 0) == HEADWAY_OK, "pages of 0");
    append(cache, &config, 0, 0, 10);
    CHECK(headway_kv_cache_set_pages(cache, 1, second, 3, 8) == HEADWAY_OK, "pages of 1");
    append(cache, &config, 1, 1, 3);
    expect_state(cache, 1, 11, 3, 0, "the caller's");
    expect_part(cache, &config, 0, 0, 0, 10, "0");
    expect_part(cache, &config, 0, 1, 0, 8, "the beginning of 0");
    expect_part(cache, &config, 1, 1, 8, 11, "its own");
    CHECK(headway_kv_cache_truncate(cache, 1, 2) == HEADWAY_OK, "truncate");
    expect_state(cache, 1, 2, 3, 0, "keeps its pages");
    CHECK(headway_kv_cache_fork(cache, 0, 2) == HEADWAY_OK, "fork");
    expect_part(cache, &config, 0, 2, 0, 10, "numbers");
    CHECK(headway_kv_cache_reset(cache, 1) == HEADWAY_OK, "reset");
    expect_state(cache, 1, 0, 0, 0, "forgotten");
    CHECK(append_tokens(cache, &config, 1, 1, 1, 1) == HEADWAY_ERROR_MEMORY, "no page");
    CHECK(headway_kv_cache_set_pages(cache, 1, NULL, 0, 0) == HEADWAY_OK, "none");
    headway_kv_cache_destroy(cache);
}

void check_sharing(void)
{
    check_forks();
    check_caller_pages();
}

/* ---- rolling ----------------------------------------------------------------------------------
 */

/* What a rolling sequence keeps, told by the rule alone. */
static int is_kept(const headway_kv_cache_config *c, int64_t longest, int64_t token)
{
    return token < c->pinned || token >= longest - (c->capacity - c->pinned);
}

static void expect_kept(const headway_kv_cache *cache, const headway_kv_cache_config *config,
                        int64_t slot, int64_t length, const char *what)
{
    float line[5 * 2];
    static const int64_t shape[3] = {1, 2, 5};
    const headway_tensor key = headway_tensor_dense(line, HEADWAY_F32, 3, shape);
    for (int64_t t = 0; t < length; t++)
        if (is_kept(config, length, t))
            expect_part(cache, config, 0, slot, t, t + 1, what);
        else
            CHECK(headway_kv_cache_read(cache, slot, t, &key, NULL) == HEADWAY_ERROR_ARGUMENT,
                  "%s: token %lld of %lld is gone", what, (long long)t, (long long)length);
}

static void roll(const headway_kv_cache_config *c, uint64_t seed)
{
    headway_kv_cache_config config = *c;
    struct caller memory;
    uint64_t random = seed;
    const int64_t ring = config.capacity - config.pinned;
    caller_make(&memory, &config, (int)seed % 3, (int)seed % 2);
    headway_kv_cache *cache = cache_make(rows[0].engine[seed % THREADS], &config);
    for (int n = 0; n < 50; n++) {
        const int64_t length = length_of(cache, 1);
        const int64_t missing = length < config.pinned ? config.pinned - length : 0;
        const int64_t count = n == 7 ? ring + missing : below(&random, ring + missing + 1);
        CHECK(append_tokens(cache, &config, 1, 0, 1, ring + missing + 1) == HEADWAY_ERROR_ARGUMENT,
              "more than are kept");
        append(cache, &config, 0, 1, count);
        const headway_kv_cache_state state = state_of(cache, 1);
        const int64_t begin = state.length - ring;
        CHECK(state.length == length + count, "length %lld", (long long)state.length);
        CHECK(state.first == (begin > config.pinned ? begin : config.pinned), "first %lld of %lld",
              (long long)state.first, (long long)state.length);
        expect_kept(cache, &config, 1, state.length, "rolling");
    }
    headway_kv_cache_destroy(cache);
    arena_release(&memory.arena);
}

static void check_rolls(void)
{
    static const struct {
        int64_t capacity, page, pinned;
    } all[] = {{1, 0, 0},  {5, 0, 0},  {12, 0, 0}, {1, 1, 0},    {6, 1, 0}, {6, 1, 2},
               {12, 4, 0}, {12, 4, 4}, {12, 4, 8}, {64, 16, 32}, {8, 8, 0}, {512, 256, 256}};
    for (int n = 0; n < COUNT(all); n++)
        if (check_case("rolling: %lld in pages of %lld, %lld pinned", (long long)all[n].capacity,
                       (long long)all[n].page, (long long)all[n].pinned)) {
            headway_kv_cache_config config = config_make(
                2, all[n].capacity, all[n].page, n % 2 ? HEADWAY_I8 : HEADWAY_F32, HEADWAY_F16);
            config.rolling = 1;
            config.pinned = all[n].pinned;
            roll(&config, (uint64_t)n);
        }
}

/* Cut, grown again, shared and written on while it rolls. */
static void check_cuts(void)
{
    if (!check_case("rolling: truncate and fork"))
        return;
    headway_kv_cache_config config = config_make(3, 12, 4, HEADWAY_F32, HEADWAY_I8);
    config.rolling = 1;
    config.pinned = 4;
    config.pages = 9;
    headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
    append(cache, &config, 0, 0, 12);
    append(cache, &config, 0, 0, 7); /* 0..3 and 11..18: entries of pages 3, 4 and 2's end */
    expect_state(cache, 0, 19, 3, 6, "rolled");
    CHECK(headway_kv_cache_fork(cache, 0, 1) == HEADWAY_OK, "fork");
    append(cache, &config, 0, 1, 3); /* 19 in page 4, 20 and 21 in page 5, both shared */
    expect_state(cache, 1, 22, 3, 4, "copied");
    expect_part(cache, &config, 0, 1, 14, 22, "the fork");
    expect_part(cache, &config, 0, 1, 0, 4, "its pinned");
    expect_part(cache, &config, 0, 0, 11, 19, "not touched");
    CHECK(headway_kv_cache_truncate(cache, 0, 13) == HEADWAY_OK, "truncate");
    CHECK(state_of(cache, 0).first == 11, "first stays");
    expect_part(cache, &config, 0, 0, 11, 13, "what is left");
    append(cache, &config, 0, 0, 6);
    expect_part(cache, &config, 0, 0, 11, 19, "grown again");
    CHECK(headway_kv_cache_truncate(cache, 0, 7) == HEADWAY_OK, "truncate below first");
    CHECK(state_of(cache, 0).first == 7, "nothing behind the pinned");
    expect_state(cache, 0, 7, 1, 6, "one page");
    append(cache, &config, 0, 0, 2);
    expect_part(cache, &config, 0, 0, 7, 9, "on from there");
    expect_part(cache, &config, 0, 0, 0, 4, "pinned");
    CHECK(headway_kv_cache_truncate(cache, 0, 2) == HEADWAY_OK, "truncate into the pinned");
    CHECK(state_of(cache, 0).first == 4, "all is kept");
    append(cache, &config, 0, 0, 10);
    expect_part(cache, &config, 0, 0, 0, 12, "all");
    CHECK(headway_kv_cache_reset(cache, 0) == HEADWAY_OK, "reset");
    append(cache, &config, 0, 0, 5);
    expect_part(cache, &config, 0, 0, 0, 5, "afresh");
    headway_kv_cache_destroy(cache);
}

/* Rows of a window, pinned keys first, against a plain call on all keys. */
static void attend_rolling(int64_t page, int64_t capacity, int64_t pinned, int n)
{
    const int64_t slot = 1, length = 150, ring = capacity - pinned;
    uint64_t random = (uint64_t)n;
    const struct shape all = {1, length, length, 4, 2, 8, 6};
    struct problem *p = problem_make(&all, (uint64_t)n);
    headway_kv_cache_config config = config_make(2, capacity, page, HEADWAY_F32, HEADWAY_F32);
    config.head_size = 8;
    config.value_head_size = 6;
    config.rolling = 1;
    config.pinned = pinned;
    struct caller memory;
    caller_make(&memory, &config, n % 3, n % 2);
    headway_kv_cache *cache = cache_make(rows[0].engine[0], &config);
    p->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    p->window_left = ring / 2;
    p->window_first = pinned;
    struct answer whole = attend(rows[0].engine[0], p, LAYOUT_DENSE, 0);
    for (int64_t first = 0, count; first < length; first += count) {
        const int64_t most =
            ring - p->window_left < length - first ? ring - p->window_left : length - first;
        count = 1 + below(&random, most);
        const struct shape shape = {1, count, first + count, 4, 2, 8, 6};
        struct problem *part = problem_make(&shape, 1);
        part->causal = p->causal;
        part->window_left = p->window_left;
        part->window_first = p->window_first;
        memcpy(part->query, query_line(p, 0, first, 0), (size_t)(count * 4 * 8) * sizeof(float));
        memcpy(part->key, p->key, (size_t)((first + count) * 2 * 8) * sizeof(float));
        memcpy(part->value, p->value, (size_t)((first + count) * 2 * 6) * sizeof(float));
        problem_append(part, cache, slot, first);
        struct answer a =
            attend_cached(rows[n % row_count].engine[first % THREADS], part, cache, &slot, 0);
        check_bits(a.out, out_line(p, &whole, 0, first, 0), a.outs, "rows of a window");
        answer_free(&a);
        problem_free(part);
    }
    answer_free(&whole);
    headway_kv_cache_destroy(cache);
    arena_release(&memory.arena);
    problem_free(p);
}

/* Three rows of slot 1, which holds 30 tokens, 0..3 and 22..29 of them kept. */
static void expect_reach(headway_kv_cache *cache, headway_attention_params params,
                         headway_status expected, const char *what)
{
    static const int64_t query[4] = {1, 3, 2, 5}, out[4] = {1, 3, 2, 3}, slot = 1;
    static _Alignas(64) unsigned char workspace[1 << 20];
    float floats[2][30] = {{0}, {0}};
    const headway_tensor q = headway_tensor_dense(floats[0], HEADWAY_F32, 4, query);
    const headway_tensor o = headway_tensor_dense(floats[1], HEADWAY_F32, 4, out);
    params.cache = cache;
    params.cache_slots = &slot;
    const headway_status got = headway_attention(rows[0].engine[0], &params, &q, NULL, NULL, &o,
                                                 workspace, sizeof workspace);
    CHECK(got == expected, "%s: %s", what, headway_status_text(got));
}

static headway_attention_params rows_at(headway_causal causal, int64_t left, int64_t first)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    params.causal = causal;
    params.window_left = left;
    params.window_first = first;
    return params;
}

/* Which windows reach keys that are gone. */
static void check_reach(void)
{
    static const int64_t keys = 12, one = 1, none = 0, offset = 20, interval_shape[2] = {3, 2};
    const headway_causal end = HEADWAY_CAUSAL_BOTTOM_RIGHT; /* rows 27..29 */
    const headway_status ok = HEADWAY_OK, gone = HEADWAY_ERROR_ARGUMENT;
    int32_t interval[6] = {23, 30, 23, 30, 0, 4};
    const headway_tensor ranges = headway_tensor_dense(interval, HEADWAY_I32, 2, interval_shape);
    if (!check_case("rolling: reach"))
        return;
    headway_kv_cache_config config = config_make(2, 12, 4, HEADWAY_F32, HEADWAY_F32);
    config.rolling = 1;
    config.pinned = 4;
    headway_kv_cache *c = cache_make(rows[0].engine[0], &config);
    for (int i = 0; i < 5; i++)
        append(c, &config, 0, 1, 6);
    headway_attention_params a = rows_at(HEADWAY_CAUSAL_NONE, -1, 0);
    expect_reach(c, a, gone, "all keys");
    expect_reach(c, rows_at(end, 5, 0), ok, "a window that is kept");
    expect_reach(c, rows_at(end, 6, 0), gone, "one key more");
    expect_reach(c, rows_at(end, 5, 4), ok, "the pinned");
    expect_reach(c, rows_at(end, 5, 5), gone, "beyond the pinned");
    a.query_lengths = &none;
    expect_reach(c, a, ok, "no rows");
    a.query_lengths = NULL;
    a.key_lengths = &keys;
    expect_reach(c, a, gone, "fewer keys");
    a.causal = HEADWAY_CAUSAL_TOP_LEFT;
    expect_reach(c, a, ok, "causal in the pinned");
    a = rows_at(end, 7, 0);
    a.query_lengths = &one; /* row 29 */
    expect_reach(c, a, ok, "one row");
    a = rows_at(HEADWAY_CAUSAL_NONE, 0, 4);
    a.window_right = 0; /* rows 0..2 */
    expect_reach(c, a, ok, "in the pinned");
    a = rows_at(HEADWAY_CAUSAL_OFFSETS, 0, 0);
    a.row_offsets = &offset; /* rows 20..22 */
    expect_reach(c, a, gone, "an offset");
    a = rows_at(HEADWAY_CAUSAL_NONE, -1, 0);
    a.interval = &ranges;
    expect_reach(c, a, ok, "an interval");
    interval[0] = 21;
    expect_reach(c, a, gone, "an interval too long");
    headway_kv_cache_destroy(c);
}

void check_rolling_caches(void)
{
    static const struct {
        int64_t page, capacity, pinned;
    } all[] = {{0, 5, 0}, {0, 16, 0}, {1, 8, 2}, {4, 16, 4}, {4, 12, 0}, {16, 64, 16}, {8, 32, 24}};
    check_rolls();
    check_cuts();
    check_reach();
    for (int n = 0; n < COUNT(all); n++)
        if (check_case("rolling: attention in pages of %lld, %lld of %lld pinned",
                       (long long)all[n].page, (long long)all[n].pinned,
                       (long long)all[n].capacity))
            for (int k = 0; k < 6; k++)
                attend_rolling(all[n].page, all[n].capacity, all[n].pinned, n * 6 + k);
}
