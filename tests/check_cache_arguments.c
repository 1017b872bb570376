/* Wrong arguments of every call with a cache: the status, that the text names the argument, that
 * nothing changed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check_cache.h"

static const headway_engine *engine;

/* The status, and the error's text begins with the words. */
static void refused(headway_status got, headway_status expected, const char *words)
{
    char text[600] = "";
    headway_engine_error(engine, text, sizeof text);
    CHECK(got == expected, "%s: status \"%s\", expected \"%s\"; text: %s", words,
          headway_status_text(got), headway_status_text(expected), text);
    CHECK(strncmp(text, words, strlen(words)) == 0, "the text does not begin with \"%s\": %s",
          words, text);
}

/* ---- create -----------------------------------------------------------------------------------
 */

static void refuse_config(const headway_kv_cache_config *config, headway_status status,
                          const char *words)
{
    headway_kv_cache *cache = (headway_kv_cache *)&engine; /* any value that must survive */
    refused(headway_kv_cache_create(engine, config, &cache), status, words);
    CHECK(cache == (headway_kv_cache *)&engine, "%s: *cache was written", words);
}

static const struct {
    const char *words;
    headway_status status;
    int64_t sequences, kv_heads, head_size, value_head_size, capacity, page_size, pages, pinned;
    int rolling, caller_pages;
} sizes[] = {
    {"sequences: 0", HEADWAY_ERROR_ARGUMENT, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0},
    {"sequences: -1", HEADWAY_ERROR_ARGUMENT, -1, 1, 1, 1, 1, 0, 0, 0, 0, 0},
    {"kv_heads: 0", HEADWAY_ERROR_ARGUMENT, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0},
    {"head_size: 0", HEADWAY_ERROR_ARGUMENT, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0},
    {"value_head_size: -1", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, -1, 1, 0, 0, 0, 0, 0},
    {"capacity: 0", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0},
    {"pages: -1", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 1, 4, -1, 0, 0, 0},
    {"page_size: 3", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 3, 0, 0, 0, 0},
    {"page_size: 512", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 512, 0, 0, 0, 0},
    {"page_size: -1", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, -1, 0, 0, 0, 0},
    {"pages: 2 without page_size", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 0, 2, 0, 0, 0},
    {"caller_pages: 1 without", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 0, 0, 0, 0, 1},
    {"capacity: 9", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 9, 4, 0, 0, 1, 0},
    {"pinned: 4", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 4, 0, 4, 0, 0},
    {"pinned: 4", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 0, 0, 4, 1, 0},
    {"pinned: 8", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 4, 0, 8, 1, 0},
    {"pinned: 3", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 4, 0, 3, 1, 0},
    {"pinned: -4", HEADWAY_ERROR_ARGUMENT, 1, 1, 1, 1, 8, 4, 0, -4, 1, 0},
    {"pages: 2147483648", HEADWAY_ERROR_MEMORY, 1, 1, 1, 1, 8, 4, INT64_C(1) << 31, 0, 0, 0},
    {"pages: ", HEADWAY_ERROR_MEMORY, INT64_MAX, 1, 1, 1, INT64_MAX, 1, 0, 0, 0, 0},
    {"sequences: 2147483648", HEADWAY_ERROR_ARGUMENT, INT64_C(1) << 31, 1, 1, 1, 8, 0, 0, 0, 0, 0},
    {"cache: these sizes", HEADWAY_ERROR_MEMORY, 1, 1, INT64_MAX, 1, 8, 0, 0, 0, 0, 0},
    {"cache: these sizes", HEADWAY_ERROR_MEMORY, 1, INT64_MAX, 1, 1, INT64_MAX, 0, 0, 0, 0, 0},
    {"cache: no memory", HEADWAY_ERROR_MEMORY, 1, 1, INT64_C(1) << 44, 1, 1 << 12, 0, 0, 0, 0, 0},
};

static void refuse_sizes(void)
{
    for (int n = 0; n < COUNT(sizes); n++) {
        headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
        config.sequences = sizes[n].sequences;
        config.kv_heads = sizes[n].kv_heads;
        config.head_size = sizes[n].head_size;
        config.value_head_size = sizes[n].value_head_size;
        config.capacity = sizes[n].capacity;
        config.page_size = sizes[n].page_size;
        config.pages = sizes[n].pages;
        config.pinned = sizes[n].pinned;
        config.rolling = sizes[n].rolling;
        config.caller_pages = sizes[n].caller_pages;
        refuse_config(&config, sizes[n].status, sizes[n].words);
    }
}

enum {
    NO_VALUE,
    NO_KEY,
    NO_SCALE,
    MORE_SCALE,
    TYPE,
    SCALE_TYPE,
    RANK,
    PAGES,
    HEAD_COUNT,
    TOKENS,
    HEAD_SIZE,
    SCALE_TOKENS,
    NULL_DATA,
    ALIGNED,
    INNER,
    OVERLAPS,
    STRIDE,
    SAME,
    KINDS
};
static const struct {
    const char *words;
    headway_status status;
} faults[KINDS] = {
    [NO_VALUE] = {"value: NULL", HEADWAY_ERROR_ARGUMENT},
    [NO_KEY] = {"value: given, expected NULL without key", HEADWAY_ERROR_ARGUMENT},
    [NO_SCALE] = {"key_scale: NULL", HEADWAY_ERROR_ARGUMENT},
    [MORE_SCALE] = {"value_scale: given", HEADWAY_ERROR_ARGUMENT},
    [TYPE] = {"value: dtype BF16", HEADWAY_ERROR_ARGUMENT},
    [SCALE_TYPE] = {"key_scale: dtype I32", HEADWAY_ERROR_ARGUMENT},
    [RANK] = {"key: rank 3", HEADWAY_ERROR_ARGUMENT},
    [PAGES] = {"key: extent 4 on axis 0", HEADWAY_ERROR_ARGUMENT},
    [HEAD_COUNT] = {"value: extent 3 on axis 1", HEADWAY_ERROR_ARGUMENT},
    [TOKENS] = {"key: extent 8 on axis 2", HEADWAY_ERROR_ARGUMENT},
    [HEAD_SIZE] = {"value: extent 5 on axis 3", HEADWAY_ERROR_ARGUMENT},
    [SCALE_TOKENS] = {"key_scale: extent 3 on axis 2", HEADWAY_ERROR_ARGUMENT},
    [NULL_DATA] = {"value: data is NULL", HEADWAY_ERROR_ARGUMENT},
    [ALIGNED] = {"value: data is not aligned", HEADWAY_ERROR_ARGUMENT},
    [INNER] = {"key: innermost stride 2", HEADWAY_ERROR_ARGUMENT},
    [OVERLAPS] = {"key: stride 0 of axis 2", HEADWAY_ERROR_OVERLAP},
    [STRIDE] = {"key: shape and strides", HEADWAY_ERROR_MEMORY},
    [SAME] = {"value: overlaps key", HEADWAY_ERROR_OVERLAP},
};

/* One thing wrong with the memory of a cache of I8 keys and F16 values. */
static void spoil(int fault, headway_kv_cache_config *config, struct caller *m)
{
    headway_tensor *key = &m->tensor[0], *value = &m->tensor[1], *scale = &m->tensor[2];
    switch (fault) {
    case NO_VALUE:
        config->value = NULL;
        break;
    case NO_KEY:
        config->key = NULL;
        break;
    case NO_SCALE:
        config->key_scale = NULL;
        break;
    case MORE_SCALE:
        config->value_scale = &m->tensor[3];
        break;
    case TYPE:
        value->dtype = HEADWAY_BF16;
        break;
    case SCALE_TYPE:
        scale->dtype = HEADWAY_I32;
        break;
    case RANK:
        key->rank = 3;
        break;
    case PAGES:
        key->shape[0] = 4;
        break;
    case HEAD_COUNT:
        value->shape[1] = 3;
        break;
    case TOKENS:
        key->shape[2] = 8;
        break;
    case HEAD_SIZE:
        value->shape[3] = 5;
        break;
    case SCALE_TOKENS:
        scale->shape[2] = 3;
        break;
    case NULL_DATA:
        value->data = NULL;
        break;
    case ALIGNED:
        value->data = (char *)value->data + 1;
        break;
    case INNER:
        key->stride[3] = 2;
        break;
    case OVERLAPS:
        key->stride[2] = 0;
        break;
    case STRIDE:
        key->stride[0] = INT64_MAX;
        break;
    default:
        value->data = key->data;
    }
}

static void refuse_memory(void)
{
    for (int n = 0; n < KINDS; n++) {
        headway_kv_cache_config config = config_make(3, 8, 4, HEADWAY_I8, HEADWAY_F16);
        struct caller m;
        caller_make(&m, &config, 0, n % 2);
        m.tensor[3] = m.tensor[2];
        spoil(n, &config, &m);
        refuse_config(&config, faults[n].status, faults[n].words);
        arena_release(&m.arena);
    }
}

static void check_create(void)
{
    headway_kv_cache_config config = config_make(2, 8, 0, HEADWAY_F32, HEADWAY_F32);
    headway_kv_cache *cache = NULL;
    if (!check_case("create"))
        return;
    CHECK(headway_kv_cache_create(NULL, &config, &cache) == HEADWAY_ERROR_ARGUMENT && !cache,
          "no engine");
    refuse_config(NULL, HEADWAY_ERROR_ARGUMENT, "config: NULL");
    refused(headway_kv_cache_create(engine, &config, NULL), HEADWAY_ERROR_ARGUMENT, "cache: NULL");
    config.size--;
    refuse_config(&config, HEADWAY_ERROR_ARGUMENT, "config: size");
    config.size += 9;
    refuse_config(&config, HEADWAY_ERROR_ARGUMENT, "config: size");
    config.size = sizeof config;
    config.key_dtype = HEADWAY_I32;
    refuse_config(&config, HEADWAY_ERROR_ARGUMENT, "key_dtype: I32 (4)");
    config.key_dtype = HEADWAY_F32;
    config.value_dtype = (headway_dtype)-1;
    refuse_config(&config, HEADWAY_ERROR_ARGUMENT, "value_dtype: unknown type (-1)");
    refuse_sizes();
    refuse_memory();
    headway_kv_cache_destroy(NULL);
}

/* Memory that is counted, and may run out. */
struct memory {
    int64_t given, taken, bytes,
        left; /* allocations: made, returned; their bytes; before there is none */
};

static void *give(void *context, size_t bytes)
{
    struct memory *m = context;
    if (m->left-- <= 0)
        return NULL;
    m->given++;
    m->bytes += (int64_t)bytes;
    return malloc(bytes);
}

static void take(void *context, void *memory, size_t bytes)
{
    struct memory *m = context;
    m->taken++;
    m->bytes -= (int64_t)bytes;
    free(memory);
}

static void check_memory(void)
{
    struct memory memory = {.left = 100};
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *own = NULL;
    const headway_engine *before = engine;
    if (!check_case("create: memory"))
        return;
    config.allocate = give;
    config.release = take;
    config.memory_context = &memory;
    config.threads = 1;
    CHECK(headway_engine_create(&config, &own) == HEADWAY_OK, "engine");
    engine = own;
    for (int n = 0; own && n < 4; n++) {
        headway_kv_cache_config cache =
            config_make(3, 8, n % 2 ? 4 : 0, HEADWAY_I8, n / 2 ? HEADWAY_F32 : HEADWAY_BF16);
        const struct memory at_first = memory;
        memory.left = 0;
        refuse_config(&cache, HEADWAY_ERROR_MEMORY, "cache: no memory for");
        CHECK(memory.given == memory.taken + at_first.given - at_first.taken,
              "a refusal keeps some");
        memory.left = 1;
        headway_kv_cache *made = cache_make(own, &cache);
        CHECK(memory.given == at_first.given + 1, "more than one allocation");
        memory.left = 0;
        CHECK(append_tokens(made, &cache, 1, 0, 0, 7) == HEADWAY_OK, "append takes memory");
        CHECK(headway_kv_cache_fork(made, 0, 1) == HEADWAY_OK, "fork takes memory");
        headway_kv_cache_destroy(made);
        CHECK(memory.bytes == at_first.bytes, "%lld bytes stay behind",
              (long long)(memory.bytes - at_first.bytes));
        memory.left = 100;
    }
    headway_engine_destroy(own);
    CHECK(memory.bytes == 0 && memory.given == memory.taken, "the engine's");
    engine = before;
}

/* ---- calls ------------------------------------------------------------------------------------
 */

enum { HEADS = 2, SIZE = 5, VALUE_SIZE = 3 };

/* A cache in pages of 4, capacity 10, 6 pages: slots 0 and 1 hold 9 and 2 tokens. */
struct made {
    headway_kv_cache_config config;
    struct caller memory;
    headway_kv_cache *cache;
    float floats[2][4 * 20 * HEADS * SIZE];
    headway_tensor key, value; /* (2, 3, ...) */
};

static void make(struct made *m)
{
    static const int64_t key[4] = {2, 3, HEADS, SIZE}, value[4] = {2, 3, HEADS, VALUE_SIZE};
    memset(m, 0, sizeof *m);
    m->config = config_make(4, 10, 4, HEADWAY_I8, HEADWAY_F32);
    m->config.pages = 6;
    caller_make(&m->memory, &m->config, 1, 1);
    m->cache = cache_make(engine, &m->config);
    CHECK(append_tokens(m->cache, &m->config, 7, 0, 0, 9) == HEADWAY_OK, "append 9");
    CHECK(append_tokens(m->cache, &m->config, 7, 1, 1, 2) == HEADWAY_OK, "append 2");
    m->key = headway_tensor_dense(m->floats[0], HEADWAY_F32, 4, key);
    m->value = headway_tensor_dense(m->floats[1], HEADWAY_F32, 4, value);
}

static void unmake(struct made *m)
{
    headway_kv_cache_destroy(m->cache);
    arena_release(&m->memory.arena);
}

#define NOTHING_CHANGED(m, call, status, words)                                                    \
    do {                                                                                           \
        struct bytes before_ = bytes_of((m)->cache);                                               \
        refused(call, status, words);                                                              \
        bytes_same(&before_, (m)->cache, words);                                                   \
    } while (0)

#define BAD(words, slots, lengths)                                                                 \
    NOTHING_CHANGED(&m, headway_kv_cache_append(c, slots, lengths, &m.key, &m.value),              \
                    HEADWAY_ERROR_ARGUMENT, words)

static void check_append_tensors(void)
{
    static const int64_t free_slots[2] = {2, 3};
    struct made m;
    if (!check_case("append: tensors"))
        return;
    make(&m);
    headway_kv_cache *c = m.cache;
    const headway_tensor key = m.key, value = m.value;
    m.key.dtype = HEADWAY_I32;
    BAD("key: dtype I32", free_slots, NULL);
    m.key = key;
    m.key.rank = 3;
    BAD("key: rank 3", free_slots, NULL);
    m.key = key;
    m.key.shape[2] = 1;
    BAD("key: extent 1 on axis 2", free_slots, NULL);
    m.key = key;
    m.key.shape[3] = 4;
    BAD("key: extent 4 on axis 3", free_slots, NULL);
    m.key = key;
    m.key.stride[3] = 2;
    BAD("key: innermost stride", free_slots, NULL);
    m.key = key;
    m.key.data = NULL;
    BAD("key: data is NULL", free_slots, NULL);
    m.key = key;
    m.value.shape[0] = 1;
    BAD("value: extent 1 on axis 0", free_slots, NULL);
    m.value = value;
    m.value.shape[1] = 2;
    BAD("value: extent 2 on axis 1", free_slots, NULL);
    m.value = value;
    m.key.shape[0] = m.value.shape[0] = 5;
    BAD("slots: NULL for 5 sequences", NULL, NULL);
    unmake(&m);
}

static void check_append_calls(void)
{
    static const int64_t twice[2] = {2, 2}, high[2] = {0, 4}, low[2] = {-1, 0},
                         free_slots[2] = {2, 3}, first[2] = {0, 2}, many[2] = {4, 0},
                         fewer[2] = {-1, 0}, one[2] = {1, 3};
    struct made m;
    if (!check_case("append: arguments"))
        return;
    make(&m);
    headway_kv_cache *c = m.cache;
    const headway_tensor key = m.key, value = m.value;
    CHECK(headway_kv_cache_append(NULL, NULL, NULL, &key, &value) == HEADWAY_ERROR_ARGUMENT,
          "NULL");
    NOTHING_CHANGED(&m, headway_kv_cache_append(c, NULL, NULL, NULL, &value),
                    HEADWAY_ERROR_ARGUMENT, "key: NULL");
    NOTHING_CHANGED(&m, headway_kv_cache_append(c, NULL, NULL, &key, NULL), HEADWAY_ERROR_ARGUMENT,
                    "value: NULL");
    BAD("slots: 2 at 1 again", twice, NULL);
    BAD("slots: 4 at 1, expected 0..3", high, NULL);
    BAD("slots: -1 at 0", low, NULL);
    BAD("lengths: 4 for batch 0, expected 0..3", free_slots, many);
    BAD("lengths: -1 for batch 0", free_slots, fewer);
    BAD("cache: 3 tokens for slot 0, expected at most 1 (it has 9 of 10)", first, NULL);
    m.value.data = (float *)m.memory.tensor[1].data + 1;
    NOTHING_CHANGED(&m, headway_kv_cache_append(c, free_slots, NULL, &m.key, &m.value),
                    HEADWAY_ERROR_OVERLAP, "value: overlaps the cache");
    m.value = value;
    /* Slot 0 has three pages, slot 1 one; two are left. */
    m.key.shape[0] = m.value.shape[0] = 2;
    m.key.shape[1] = m.value.shape[1] = 5;
    NOTHING_CHANGED(&m, headway_kv_cache_append(c, free_slots, NULL, &m.key, &m.value),
                    HEADWAY_ERROR_MEMORY, "cache: 2 pages free, expected the 4");
    NOTHING_CHANGED(&m, headway_kv_cache_append(c, one, NULL, &m.key, &m.value),
                    HEADWAY_ERROR_MEMORY, "cache: 2 pages free, expected the 3");
    m.key = key;
    m.value = value;
    CHECK(headway_kv_cache_append(c, free_slots, NULL, &key, &value) == HEADWAY_OK, "it fits");
    unmake(&m);
}

static void check_slots(void)
{
    static const int32_t pages[3] = {0, 5, 6};
    struct made m;
    if (!check_case("truncate, reset, fork, set_pages, state"))
        return;
    make(&m);
    headway_kv_cache *c = m.cache;
    headway_kv_cache_state state = HEADWAY_KV_CACHE_STATE_INIT;
    CHECK(headway_kv_cache_truncate(NULL, 0, 0) == HEADWAY_ERROR_ARGUMENT &&
              headway_kv_cache_reset(NULL, 0) == HEADWAY_ERROR_ARGUMENT &&
              headway_kv_cache_fork(NULL, 0, 1) == HEADWAY_ERROR_ARGUMENT &&
              headway_kv_cache_set_pages(NULL, 0, pages, 1, 1) == HEADWAY_ERROR_ARGUMENT &&
              headway_kv_cache_get_state(NULL, 0, &state) == HEADWAY_ERROR_ARGUMENT,
          "NULL");
#define WRONG(call, words) NOTHING_CHANGED(&m, call, HEADWAY_ERROR_ARGUMENT, words)
    WRONG(headway_kv_cache_truncate(c, 4, 0), "slot: 4, expected 0..3");
    WRONG(headway_kv_cache_truncate(c, 0, 10), "length: 10, expected 0..9");
    WRONG(headway_kv_cache_truncate(c, 0, -1), "length: -1");
    WRONG(headway_kv_cache_reset(c, -1), "slot: -1, expected 0..3");
    WRONG(headway_kv_cache_fork(c, 4, 0), "from: 4, expected 0..3");
    WRONG(headway_kv_cache_fork(c, 0, -1), "to: -1, expected 0..3");
    WRONG(headway_kv_cache_fork(c, 1, 1), "to: 1, expected another");
    WRONG(headway_kv_cache_set_pages(c, 0, pages, 1, 1), "cache: hands out its pages itself");
    WRONG(headway_kv_cache_get_state(c, 0, NULL), "state: NULL");
    WRONG(headway_kv_cache_get_state(c, 9, &state), "slot: 9, expected 0..3");
    state.size = 4;
    WRONG(headway_kv_cache_get_state(c, 0, &state), "state: size 4");
    unmake(&m);

    headway_kv_cache_config config = config_make(2, 10, 4, HEADWAY_F32, HEADWAY_F32);
    config.caller_pages = 1;
    m.cache = c = cache_make(engine, &config);
    WRONG(headway_kv_cache_set_pages(c, 2, pages, 1, 1), "slot: 2, expected 0..1");
    WRONG(headway_kv_cache_set_pages(c, 0, pages, 4, 1), "count: 4, expected 0..3");
    WRONG(headway_kv_cache_set_pages(c, 0, pages, -1, 0), "count: -1");
    WRONG(headway_kv_cache_set_pages(c, 0, NULL, 1, 1), "pages: NULL");
    WRONG(headway_kv_cache_set_pages(c, 0, pages, 3, 1), "pages: 6 at 2, expected 0..5");
    WRONG(headway_kv_cache_set_pages(c, 0, pages, 2, 9), "length: 9, expected 0..8");
    WRONG(headway_kv_cache_set_pages(c, 0, pages, 2, -1), "length: -1");
    CHECK(headway_kv_cache_set_pages(c, 0, pages, 2, 8) == HEADWAY_OK, "set_pages");
    NOTHING_CHANGED(&m, append_tokens(c, &config, 1, 0, 0, 1), HEADWAY_ERROR_MEMORY,
                    "cache: slot 0 has no page 2");
    headway_kv_cache_destroy(c);
}

static void check_read(void)
{
    static const int64_t key[3] = {2, HEADS, SIZE}, value[3] = {2, HEADS, VALUE_SIZE};
    struct made m;
    if (!check_case("read"))
        return;
    make(&m);
    headway_kv_cache *c = m.cache;
    const headway_tensor keys = headway_tensor_dense(m.floats[0], HEADWAY_F32, 3, key);
    const headway_tensor values = headway_tensor_dense(m.floats[1], HEADWAY_F32, 3, value);
    m.key = keys;
    m.value = values;
    CHECK(headway_kv_cache_read(NULL, 0, 0, &keys, NULL) == HEADWAY_ERROR_ARGUMENT, "NULL");
    WRONG(headway_kv_cache_read(c, 4, 0, &keys, NULL), "slot: 4, expected 0..3");
    WRONG(headway_kv_cache_read(c, 0, 0, NULL, NULL), "key: NULL");
    WRONG(headway_kv_cache_read(c, 0, 8, &keys, NULL), "first: 8 with 2 tokens");
    WRONG(headway_kv_cache_read(c, 0, -1, &keys, NULL), "first: -1");
    WRONG(headway_kv_cache_read(c, 2, 0, NULL, &values), "first: 0 with 2 tokens");
    m.key.rank = 4;
    WRONG(headway_kv_cache_read(c, 0, 0, &m.key, NULL), "key: rank 4");
    m.key = keys;
    m.value.shape[0] = 1;
    WRONG(headway_kv_cache_read(c, 0, 0, &keys, &m.value), "value: extent 1 on axis 0");
    m.value = values;
    m.value.shape[2] = 4;
    WRONG(headway_kv_cache_read(c, 0, 0, NULL, &m.value), "value: extent 4 on axis 2");
    m.key.stride[0] = 0;
    NOTHING_CHANGED(&m, headway_kv_cache_read(c, 0, 0, &m.key, NULL), HEADWAY_ERROR_OVERLAP,
                    "key: stride");
    m.key = keys;
    m.value = values;
    m.value.data = m.floats[0] + 3;
    NOTHING_CHANGED(&m, headway_kv_cache_read(c, 0, 0, &keys, &m.value), HEADWAY_ERROR_OVERLAP,
                    "value: overlaps key");
    m.value.data = m.memory.tensor[2].data;
    NOTHING_CHANGED(&m, headway_kv_cache_read(c, 0, 0, NULL, &m.value), HEADWAY_ERROR_OVERLAP,
                    "value: overlaps the cache");
    CHECK(headway_kv_cache_read(c, 0, 7, &keys, &values) == HEADWAY_OK, "the last two");
    unmake(&m);
}

void check_arguments(void)
{
    engine = rows[0].engine[0];
    check_create();
    check_memory();
    check_append_tensors();
    check_append_calls();
    check_slots();
    check_read();
}

/* ---- attention --------------------------------------------------------------------------------
 */

struct call {
    struct made m;
    headway_attention_params params;
    headway_tensor query, out, lse, weights, mask;
    float memory[2000];
    _Alignas(64) unsigned char workspace[1 << 20];
    int64_t slots[2], lengths[2];
};

/* Two sequences of three rows, in slots 1 and 0: 2 and 9 keys. */
static void make_call(struct call *a)
{
    static const int64_t query[4] = {2, 3, 4, SIZE}, out[4] = {2, 3, 4, VALUE_SIZE},
                         lse[3] = {2, 4, 3}, keys[4] = {2, 4, 3, 9};
    const headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    make(&a->m);
    a->params = params;
    a->params.cache = a->m.cache;
    a->params.cache_slots = a->slots;
    a->slots[0] = 1;
    a->slots[1] = 0;
    a->lengths[0] = a->lengths[1] = 2;
    memset(a->memory, 0, sizeof a->memory);
    a->query = headway_tensor_dense(a->memory, HEADWAY_F32, 4, query);
    a->out = headway_tensor_dense(a->memory + 200, HEADWAY_F32, 4, out);
    a->lse = headway_tensor_dense(a->memory + 400, HEADWAY_F32, 3, lse);
    a->weights = headway_tensor_dense(a->memory + 600, HEADWAY_F32, 4, keys);
    a->mask = headway_tensor_dense(a->memory + 1000, HEADWAY_F32, 4, keys);
    a->params.lse = &a->lse;
    a->params.weights = &a->weights;
    a->params.mask = &a->mask;
}

static headway_status run(struct call *a)
{
    return headway_attention(engine, &a->params, &a->query, NULL, NULL, &a->out, a->workspace,
                             sizeof a->workspace);
}

/* `change` makes one thing wrong. */
#define WRONG_CALL(status, words, change)                                                          \
    do {                                                                                           \
        float floats_[2000];                                                                       \
        make_call(a);                                                                              \
        change;                                                                                    \
        memcpy(floats_, a->memory, sizeof floats_);                                                \
        NOTHING_CHANGED(&a->m, run(a), status, words);                                             \
        CHECK(memcmp(floats_, a->memory, sizeof floats_) == 0, "%s: wrote", words);                \
        unmake(&a->m);                                                                             \
    } while (0)

/* What workspace and explain refuse as the call does. */
static void refuse_everywhere(struct call *a, const char *words)
{
    size_t bytes = 4242;
    char text[100] = "#";
    refused(headway_attention_workspace(engine, &a->params, &a->query, NULL, NULL, &bytes),
            HEADWAY_ERROR_ARGUMENT, words);
    refused(headway_attention_explain(engine, &a->params, &a->query, NULL, NULL, text, sizeof text),
            HEADWAY_ERROR_ARGUMENT, words);
    CHECK(bytes == 4242 && text[0] == '#', "%s: written", words);
}

#define WRONG_PARAMS(words, change)                                                                \
    do {                                                                                           \
        WRONG_CALL(HEADWAY_ERROR_ARGUMENT, words, change);                                         \
        make_call(a);                                                                              \
        change;                                                                                    \
        refuse_everywhere(a, words);                                                               \
        unmake(&a->m);                                                                             \
    } while (0)

static void check_params_of(struct call *a)
{
    static const int64_t starts[3] = {0, 1, 3};
    WRONG_PARAMS("cache_slots: 4 at 1, expected 0..3", a->slots[1] = 4);
    WRONG_PARAMS("cache_slots: -1 at 0", a->slots[0] = -1);
    WRONG_PARAMS("cache_slots: NULL for 5", (a->params.cache_slots = NULL, a->query.shape[0] = 5));
    WRONG_PARAMS("shared_prefix: -1", a->params.shared_prefix = -1);
    WRONG_PARAMS("window_first: -1", a->params.window_first = -1);
    WRONG_PARAMS("key_lengths: 3 for batch 0, expected 0..2",
                 (a->params.key_lengths = a->lengths, a->lengths[0] = 3));
    WRONG_PARAMS("key_lengths: -1 for batch 1",
                 (a->params.key_lengths = a->lengths, a->lengths[1] = -1));
    WRONG_PARAMS("cache: head_size 5, expected 4", a->query.shape[3] = 4);
    WRONG_PARAMS("cache: 2 heads for 3 query heads", a->query.shape[2] = 3);
    WRONG_PARAMS("mask: extent 9 on axis 3, expected 1 or 2",
                 (a->params.key_lengths = a->lengths, a->params.weights = NULL));
    WRONG_PARAMS("weights: extent 9 on axis 3, expected 2",
                 (a->params.key_lengths = a->lengths, a->params.mask = NULL));
    WRONG_PARAMS("params: size", a->params.size = 8);
    WRONG_PARAMS("key_starts: given with cache",
                 (a->params.query_starts = a->params.key_starts = starts, a->params.sequences = 2,
                  a->query.shape[0] = 1, a->params.mask = NULL, a->params.weights = NULL));
    WRONG_PARAMS("query_starts: 3 at 2, the last",
                 (a->params.query_starts = starts, a->params.sequences = 2, a->query.shape[0] = 1,
                  a->query.shape[1] = 4, a->params.mask = NULL, a->params.weights = NULL));
}

/* An aligned place in the memory of one of the cache's tensors. */
static void *inside(const struct call *a, int tensor)
{
    char *at = a->m.memory.tensor[tensor].data;
    return at + (4 - (uintptr_t)at % 4) % 4;
}

static void check_tensors_of(struct call *a)
{
    make_call(a);
    const headway_tensor key = headway_tensor_dense(a->memory, HEADWAY_F32, 4, a->query.shape);
    refused(headway_attention(engine, &a->params, &a->query, &key, NULL, &a->out, a->workspace,
                              sizeof a->workspace),
            HEADWAY_ERROR_ARGUMENT, "key: given with cache");
    refused(headway_attention(engine, &a->params, &a->query, NULL, &key, &a->out, a->workspace,
                              sizeof a->workspace),
            HEADWAY_ERROR_ARGUMENT, "value: given with cache");
    a->params.cache = NULL;
    a->params.cache_slots = NULL;
    refused(run(a), HEADWAY_ERROR_ARGUMENT, "key: NULL");
    a->params.shared_prefix = 1;
    refused(headway_attention(engine, &a->params, &a->query, &key, &key, &a->out, a->workspace,
                              sizeof a->workspace),
            HEADWAY_ERROR_ARGUMENT, "shared_prefix: given without cache, expected 0");
    a->params.cache_slots = a->slots;
    refused(headway_attention(engine, &a->params, &a->query, &key, &key, &a->out, a->workspace,
                              sizeof a->workspace),
            HEADWAY_ERROR_ARGUMENT, "cache_slots: given without cache, expected NULL");
    unmake(&a->m);
    WRONG_CALL(HEADWAY_ERROR_ARGUMENT, "out: extent 4 on axis 3", a->out.shape[3] = 4);
    for (int i = 0; i < 3; i++) {
        WRONG_CALL(HEADWAY_ERROR_OVERLAP, "out: overlaps the cache", a->out.data = inside(a, i));
        WRONG_CALL(HEADWAY_ERROR_OVERLAP, "lse: overlaps the cache", a->lse.data = inside(a, i));
        WRONG_CALL(HEADWAY_ERROR_OVERLAP, "weights: overlaps the cache",
                   a->weights.data = inside(a, i));
    }
    WRONG_CALL(HEADWAY_ERROR_OVERLAP, "out: overlaps the cache", a->out.data = a->m.cache);
    WRONG_CALL(HEADWAY_ERROR_OVERLAP, "out: overlaps cache_slots",
               a->out.data = (void *)a->params.cache_slots);
    make_call(a);
    refused(headway_attention(engine, &a->params, &a->query, NULL, NULL, &a->out, a->m.cache,
                              sizeof a->workspace),
            HEADWAY_ERROR_OVERLAP, "workspace: overlaps the cache");
    CHECK(run(a) == HEADWAY_OK, "nothing is wrong");
    unmake(&a->m);
}

void check_attention_calls(void)
{
    struct call *a = aligned_alloc(64, (sizeof *a + 63) / 64 * 64);
    engine = rows[0].engine[0];
    if (check_case("attention: options"))
        check_params_of(a);
    if (check_case("attention: tensors"))
        check_tensors_of(a);
    free(a);
}
