/* Caches of keys and values: every call, its errors, what is written and read, and attention from
 * them.
 *
 *   check_cache [--isa NAME] [--case TEXT] [--quick]
 *   check_cache --seconds N [--seed S]        random operations against a model, for N seconds
 *   check_cache --seconds 1 --case "..."      that sequence of operations
 *   check_cache --seconds N --plant 1         with a fault in the model, to be found and shrunk
 */
#include "check_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/kv_cache.h"
#include "cpu/widen.h"

/* One case asks for more memory than there is; the sanitizer's allocator must say so, not end the
 * program. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

struct row_engines rows[ROWS];
int row_count;

headway_kv_cache_config config_make(int64_t sequences, int64_t capacity, int64_t page_size,
                                    headway_dtype key, headway_dtype value)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    config.sequences = sequences;
    config.kv_heads = 2;
    config.head_size = 5;
    config.value_head_size = 3;
    config.capacity = capacity;
    config.page_size = page_size;
    config.key_dtype = key;
    config.value_dtype = value;
    return config;
}

headway_kv_cache *cache_make(const headway_engine *engine, const headway_kv_cache_config *config)
{
    headway_kv_cache *cache = NULL;
    char text[600] = "";
    const headway_status status = headway_kv_cache_create(engine, config, &cache);
    if (status != HEADWAY_OK) {
        headway_engine_error(engine, text, sizeof text);
        fprintf(stderr, "test: no cache: %s: %s\n", headway_status_text(status), text);
        exit(1);
    }
    return cache;
}

/* ---- memory of the caller ---------------------------------------------------------------------
 */

/* NaNs, and of I8 what is never stored. */
static void poison(struct region *r, headway_dtype dtype)
{
    uint16_t *halves = r->memory;
    if (dtype == HEADWAY_I8)
        memset(r->memory, 0x80, r->bytes);
    for (size_t i = 0; (dtype == HEADWAY_F16 || dtype == HEADWAY_BF16) && i < r->bytes / 2; i++)
        halves[i] = dtype == HEADWAY_F16 ? 0x7e5a : 0x7fda;
}

void caller_make(struct caller *m, headway_kv_cache_config *config, int order, int at_end)
{
    static const int orders[3][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {2, 1, 0, 3}};
    const headway_tensor **places[4] = {&config->key, &config->value, &config->key_scale,
                                        &config->value_scale};
    const int64_t page = config->page_size;
    const int64_t pages = page ? config->pages
                                     ? config->pages
                                     : config->sequences * ((config->capacity + page - 1) / page)
                               : config->sequences;
    memset(m, 0, sizeof *m);
    m->arena.at_end = at_end;
    for (int i = 0; i < 4; i++) {
        const headway_dtype dtype = i % 2 ? config->value_dtype : config->key_dtype;
        const int64_t shape[4] = {pages, config->kv_heads, page ? page : config->capacity,
                                  i % 2 ? config->value_head_size : config->head_size};
        headway_tensor *t = &m->tensor[i];
        if (i >= 2 && dtype != HEADWAY_I8)
            continue;
        *t = headway_tensor_dense(NULL, i >= 2 ? HEADWAY_F32 : dtype, i >= 2 ? 3 : 4, shape);
        if (i < 2) {
            lay(t, orders[order % 3], 1, order ? 3 : 0, order == 2);
            if (shape[3] != 1)
                t->stride[3] = 1;
        } else {
            lay(t, orders[order % 3], order ? 2 : 1, 0, order == 2);
        }
        arena_place(&m->arena, t);
        poison(&m->arena.regions[m->arena.used - 1], t->dtype);
        *places[i] = t;
    }
}

/* ---- tokens -----------------------------------------------------------------------------------
 */

void tokens_fill(float *to, uint64_t seed, int64_t sequence, int64_t first, int64_t count,
                 int64_t heads, int64_t size)
{
    for (int64_t t = 0; t < count; t++) {
        uint64_t state = seed * 1000003 + (uint64_t)sequence * 100003 + (uint64_t)(first + t);
        check_fill_normal(&state, to + t * heads * size, heads * size, 1.0f);
    }
}

static enum headway_storage storage_of(headway_dtype dtype)
{
    return dtype == HEADWAY_F32    ? HEADWAY_STORED_F32
           : dtype == HEADWAY_F16  ? HEADWAY_STORED_F16
           : dtype == HEADWAY_BF16 ? HEADWAY_STORED_BF16
                                   : HEADWAY_STORED_I8;
}

void stored_values(float *line, int64_t size, headway_dtype dtype)
{
    float stored[LONGEST];
    float scale = 1.0f;
    headway_narrow(stored, line, size, storage_of(dtype), &scale);
    headway_widen(line, stored, size, storage_of(dtype), scale);
}

static float *floats(int64_t count)
{
    float *memory = malloc((size_t)(count > 0 ? count : 1) * sizeof *memory);
    if (!memory) {
        perror("test");
        exit(1);
    }
    return memory;
}

int64_t length_of(const headway_kv_cache *cache, int64_t slot)
{
    return state_of(cache, slot).length;
}

headway_kv_cache_state state_of(const headway_kv_cache *cache, int64_t slot)
{
    headway_kv_cache_state state = HEADWAY_KV_CACHE_STATE_INIT;
    CHECK(headway_kv_cache_get_state(cache, slot, &state) == HEADWAY_OK, "state of slot %lld",
          (long long)slot);
    return state;
}

headway_status append_tokens(headway_kv_cache *cache, const headway_kv_cache_config *config,
                             uint64_t seed, int64_t sequence, int64_t slot, int64_t count)
{
    const int64_t heads = config->kv_heads, size = config->head_size,
                  value_size = config->value_head_size, first = length_of(cache, slot);
    const int64_t shape[4] = {1, count, heads, size},
                  value_shape[4] = {1, count, heads, value_size};
    float *key = floats(count * heads * size), *value = floats(count * heads * value_size);
    tokens_fill(key, seed, sequence, first, count, heads, size);
    tokens_fill(value, seed + 1, sequence, first, count, heads, value_size);
    const headway_tensor keys = headway_tensor_dense(key, HEADWAY_F32, 4, shape);
    const headway_tensor values = headway_tensor_dense(value, HEADWAY_F32, 4, value_shape);
    const headway_status status = headway_kv_cache_append(cache, &slot, NULL, &keys, &values);
    free(key);
    free(value);
    return status;
}

static void expect_lines(const float *got, uint64_t seed, int64_t sequence, int64_t first,
                         int64_t count, int64_t heads, int64_t size, headway_dtype dtype,
                         const char *what)
{
    float *expected = floats(count * heads * size);
    tokens_fill(expected, seed, sequence, first, count, heads, size);
    for (int64_t i = 0; i < count * heads; i++)
        stored_values(expected + i * size, size, dtype);
    check_bits(got, expected, count * heads * size, what);
    free(expected);
}

void expect_tokens(const headway_kv_cache *cache, const headway_kv_cache_config *config,
                   uint64_t seed, int64_t sequence, int64_t slot, int64_t first, int64_t count,
                   const char *what)
{
    const int64_t heads = config->kv_heads, size = config->head_size,
                  value_size = config->value_head_size;
    const int64_t shape[3] = {count, heads, size}, value_shape[3] = {count, heads, value_size};
    float *key = floats(count * heads * size), *value = floats(count * heads * value_size);
    const headway_tensor keys = headway_tensor_dense(key, HEADWAY_F32, 3, shape);
    const headway_tensor values = headway_tensor_dense(value, HEADWAY_F32, 3, value_shape);
    const headway_status status = headway_kv_cache_read(cache, slot, first, &keys, &values);
    CHECK(status == HEADWAY_OK, "%s: read of %lld from %lld: %s", what, (long long)count,
          (long long)first, headway_status_text(status));
    if (status == HEADWAY_OK) {
        expect_lines(key, seed, sequence, first, count, heads, size, config->key_dtype, what);
        expect_lines(value, seed + 1, sequence, first, count, heads, value_size,
                     config->value_dtype, what);
    }
    free(key);
    free(value);
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

static size_t part_of(const headway_kv_cache *cache, int part, const void **at)
{
    const headway_tensor *t = &cache->memory[part > 0 ? part - 1 : 0];
    int64_t low = 0, high = 0;
    *at = cache;
    if (part == 0)
        return cache->bytes;
    if (cache->own || !t->rank)
        return 0;
    for (int i = 0; i < t->rank; i++) {
        const int64_t reach = t->shape[i] > 1 ? (t->shape[i] - 1) * t->stride[i] : 0;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    const int64_t size = t->dtype == HEADWAY_F32 ? 4 : t->dtype == HEADWAY_I8 ? 1 : 2;
    *at = (const char *)t->data + low * size;
    return (size_t)((high - low + 1) * size);
}

struct bytes bytes_of(const headway_kv_cache *cache)
{
    struct bytes all;
    for (int i = 0; i < 5; i++) {
        const void *from;
        all.count[i] = part_of(cache, i, &from);
        all.at[i] = malloc(all.count[i] + 1);
        if (all.count[i])
            memcpy(all.at[i], from, all.count[i]);
    }
    return all;
}

void bytes_free(struct bytes *bytes)
{
    for (int i = 0; i < 5; i++)
        free(bytes->at[i]);
}

void bytes_same(struct bytes *before, const headway_kv_cache *cache, const char *what)
{
    for (int i = 0; i < 5; i++) {
        const void *from;
        const size_t count = part_of(cache, i, &from);
        CHECK(count == before->count[i] && (!count || memcmp(before->at[i], from, count) == 0),
              "%s: part %d of the cache changed", what, i);
    }
    bytes_free(before);
}

/* ---- all --------------------------------------------------------------------------------------
 */

int main(int argc, char **argv)
{
    const struct headway_row *row;
    int index = 0;
    check_begin(argc, argv);
    const int64_t seconds = check_option("--seconds", 0);
    const int quick = (int)check_option("--quick", 0), planted = (int)check_option("--plant", 0);
    while ((row = check_next_row(&index)) && row_count < ROWS) {
        rows[row_count].name = row->name;
        for (int t = 0; t < THREADS; t++)
            rows[row_count].engine[t] = engine_make(row->name, t + 1);
        row_count++;
    }
    if (row_count && seconds > 0) {
        check_random_operations(seconds, planted);
    } else if (row_count) {
        check_arguments();
        check_attention_calls();
        check_tokens();
        check_sharing();
        check_rolling_caches();
        check_attending(quick);
    }
    for (int r = 0; r < row_count; r++)
        for (int t = 0; t < THREADS; t++)
            headway_engine_destroy(rows[r].engine[t]);
    return check_end();
}
