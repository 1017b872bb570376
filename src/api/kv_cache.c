/* headway_kv_cache: made, destroyed, asked, and its sequences as a whole. Its tokens are
 * kv_cache_tokens.c's, its pages kv_cache_pages.c's. */
#include "api/kv_cache.h"

#include <string.h>

#include "api/check.h"
#include "system/memory.h"

/* What create finds out before it allocates. */
struct draft {
    headway_kv_cache cache;
    int64_t at[HEADWAY_CACHE_TENSORS]; /* offsets of elements of its own, in bytes */
    int64_t tables, lengths, first, shares, free, leaving, marks;
};

static const char *const tensor_names[HEADWAY_CACHE_TENSORS] = {"key", "value", "key_scale",
                                                                "value_scale"};

static headway_status check_least(const headway_engine *engine, const char *name, int64_t given,
                                  int64_t least)
{
    if (given < least)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: %lld, expected %lld or more", name,
                            (long long)given, (long long)least);
    return HEADWAY_OK;
}

static headway_status storage_of(const headway_engine *engine, const char *name,
                                 headway_dtype dtype, enum headway_storage *storage)
{
    switch (dtype) {
    case HEADWAY_F32:
        *storage = HEADWAY_STORED_F32;
        return HEADWAY_OK;
    case HEADWAY_F16:
        *storage = HEADWAY_STORED_F16;
        return HEADWAY_OK;
    case HEADWAY_BF16:
        *storage = HEADWAY_STORED_BF16;
        return HEADWAY_OK;
    case HEADWAY_I8:
        *storage = HEADWAY_STORED_I8;
        return HEADWAY_OK;
    default:
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: %s (%d), expected F32, F16, BF16 or I8", name,
                            headway_dtype_name(dtype), (int)dtype);
    }
}

static headway_status check_rolling(const headway_engine *engine,
                                    const headway_kv_cache_config *config)
{
    const int64_t page = config->page_size;
    if (config->rolling && page && config->capacity % page != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "capacity: %lld, expected whole pages of %lld where rolling",
                            (long long)config->capacity, (long long)page);
    if (config->pinned == 0)
        return HEADWAY_OK;
    if (!config->rolling || !page)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "pinned: %lld, expected 0 unless rolling in pages",
                            (long long)config->pinned);
    if (config->pinned < 0 || config->pinned >= config->capacity || config->pinned % page != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "pinned: %lld, expected whole pages of %lld, fewer than capacity %lld",
                            (long long)config->pinned, (long long)page,
                            (long long)config->capacity);
    return HEADWAY_OK;
}

/* Everything but memory: sizes, and how tokens lie. */
static headway_status check_config(const headway_engine *engine,
                                   const headway_kv_cache_config *config, headway_kv_cache *c)
{
    const int64_t page = config->page_size;
    HEADWAY_TRY(check_least(engine, "sequences", config->sequences, 1));
    HEADWAY_TRY(check_least(engine, "kv_heads", config->kv_heads, 1));
    HEADWAY_TRY(check_least(engine, "head_size", config->head_size, 1));
    HEADWAY_TRY(check_least(engine, "value_head_size", config->value_head_size, 0));
    HEADWAY_TRY(check_least(engine, "capacity", config->capacity, 1));
    HEADWAY_TRY(check_least(engine, "pages", config->pages, 0));
    HEADWAY_TRY(storage_of(engine, "key_dtype", config->key_dtype, &c->store.key.storage));
    HEADWAY_TRY(storage_of(engine, "value_dtype", config->value_dtype, &c->store.value.storage));
    if (page < 0 || page > 256 || (page & (page - 1)) != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "page_size: %lld, expected 0 (contiguous) or a power of two to 256",
                            (long long)page);
    if (!page && (config->pages || config->caller_pages))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: %lld without page_size, expected 0",
                            config->pages ? "pages" : "caller_pages",
                            (long long)(config->pages ? config->pages : config->caller_pages));
    HEADWAY_TRY(check_rolling(engine, config));
    c->sequences = config->sequences;
    c->kv_heads = config->kv_heads;
    c->size = config->head_size;
    c->value_size = config->value_head_size ? config->value_head_size : config->head_size;
    c->capacity = config->capacity;
    c->pinned = config->pinned;
    c->contiguous = !page;
    c->rolling = config->rolling != 0;
    c->caller_pages = config->caller_pages != 0;
    c->store.page_size = page ? page : c->capacity;
    c->store.entries = headway_divide_up(c->capacity, c->store.page_size);
    c->store.fixed = c->pinned / c->store.page_size;
    c->pages = config->pages;
    if (c->pages == 0 && !headway_mul(c->sequences, c->store.entries, &c->pages))
        c->pages = INT64_MAX;
    if (c->pages > INT32_MAX)
        return headway_fail(engine, page ? HEADWAY_ERROR_MEMORY : HEADWAY_ERROR_ARGUMENT,
                            "%s: %lld, expected at most %d", page ? "pages" : "sequences",
                            (long long)c->pages, INT32_MAX);
    return HEADWAY_OK;
}

/* Shape and type of each tensor; rank 0 where there is none. */
static void shape_tensors(const headway_kv_cache_config *config, headway_kv_cache *c)
{
    for (int i = 0; i < HEADWAY_CACHE_TENSORS; i++) {
        const int of_value = i == HEADWAY_CACHE_VALUE || i == HEADWAY_CACHE_VALUE_SCALE;
        const int scale = i >= HEADWAY_CACHE_KEY_SCALE;
        const headway_dtype dtype = of_value ? config->value_dtype : config->key_dtype;
        const int64_t shape[4] = {c->pages, c->kv_heads, c->store.page_size,
                                  of_value ? c->value_size : c->size};
        memset(&c->memory[i], 0, sizeof c->memory[i]);
        if (scale && dtype != HEADWAY_I8)
            continue;
        c->memory[i].dtype = scale ? HEADWAY_F32 : dtype;
        c->memory[i].rank = scale ? 3 : 4;
        memcpy(c->memory[i].shape, shape, (size_t)c->memory[i].rank * sizeof *shape);
    }
}

/* The caller's tensor in place of the expected one. */
static headway_status take_tensor(const headway_engine *engine, const char *name,
                                  const headway_tensor *given, headway_tensor *expected)
{
    static const char *const axes[] = {"pages or sequences", "kv_heads", "page_size or capacity",
                                       "the head size"};
    const int rank = expected->rank;
    const char *const form =
        rank == 4 ? "(pages or sequences, Hkv, tokens, size)" : "(pages or sequences, Hkv, tokens)";
    if (given->dtype != expected->dtype)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: dtype %s (%d), expected %s", name,
                            headway_dtype_name(given->dtype), (int)given->dtype,
                            headway_dtype_name(expected->dtype));
    HEADWAY_TRY(headway_check_tensor(engine, name, given, expected->dtype, rank, form));
    for (int i = 0; i < rank; i++)
        HEADWAY_TRY(
            headway_check_extent(engine, name, i, given->shape[i], expected->shape[i], axes[i]));
    HEADWAY_TRY((rank == 4 ? headway_check_data : headway_check_memory)(engine, name, given));
    HEADWAY_TRY(headway_check_distinct(engine, name, given));
    *expected = *given;
    return HEADWAY_OK;
}

static headway_status take_memory(const headway_engine *engine,
                                  const headway_kv_cache_config *config, headway_kv_cache *c)
{
    const headway_tensor *given[HEADWAY_CACHE_TENSORS] = {config->key, config->value,
                                                          config->key_scale, config->value_scale};
    for (int i = 0; i < HEADWAY_CACHE_TENSORS; i++) {
        const int wanted = config->key && c->memory[i].rank;
        if (!given[i] != !wanted && i != HEADWAY_CACHE_KEY)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: %s, expected %s",
                                tensor_names[i], given[i] ? "given" : "NULL",
                                !config->key        ? "NULL without key"
                                : c->memory[i].rank ? "a tensor beside key"
                                                    : "NULL unless the elements are I8");
        if (wanted)
            HEADWAY_TRY(take_tensor(engine, tensor_names[i], given[i], &c->memory[i]));
        for (int k = 0; k < i; k++)
            if (given[i] && given[k])
                HEADWAY_TRY(headway_check_apart(engine, tensor_names[i], given[i], tensor_names[k],
                                                given[k]));
    }
    return HEADWAY_OK;
}

/* Room for count things of `size` bytes from *end on, in cache lines. */
static int reserve(int64_t *offset, int64_t *end, int64_t count, int64_t size)
{
    int64_t bytes;
    *offset = *end;
    return headway_mul(count, size, &bytes) && headway_add(bytes, 63, &bytes) &&
           headway_add(*end, bytes / 64 * 64, end);
}

static int elements_of(const headway_tensor *tensor, int64_t *count)
{
    *count = tensor->rank > 0;
    for (int i = 0; i < tensor->rank; i++)
        if (!headway_mul(*count, tensor->shape[i], count))
            return 0;
    return 1;
}

/* Offsets of everything in the allocation, and its bytes. */
static int lay_out(struct draft *d)
{
    const headway_kv_cache *c = &d->cache;
    int64_t start, end = 0, count;
    if (!reserve(&start, &end, 1, sizeof *c) ||
        !headway_mul(c->sequences, c->store.entries, &count) ||
        !reserve(&d->tables, &end, count, sizeof *c->tables) ||
        !reserve(&d->lengths, &end, c->sequences, sizeof *c->lengths) ||
        !reserve(&d->first, &end, c->sequences, sizeof *c->first) ||
        !reserve(&d->marks, &end, c->sequences, sizeof *c->marks) ||
        !reserve(&d->shares, &end, c->pages, sizeof *c->shares) ||
        !reserve(&d->leaving, &end, c->pages, sizeof *c->leaving) ||
        !reserve(&d->free, &end, c->pages, sizeof *c->free))
        return 0;
    for (int i = 0; i < HEADWAY_CACHE_TENSORS; i++) {
        int64_t bytes;
        if (!elements_of(&c->memory[i], &count) ||
            !headway_mul(count, headway_dtype_size(c->memory[i].dtype), &bytes) ||
            bytes >= (int64_t)1 << 61 || !headway_add(d->cache.element_bytes, bytes, &bytes) ||
            (c->own && !reserve(&d->at[i], &end, count, headway_dtype_size(c->memory[i].dtype))))
            return 0;
        d->cache.element_bytes = bytes;
    }
    d->cache.bytes = (size_t)end;
    return end < (int64_t)1 << 62;
}

static void set_pool(struct headway_pool *pool, const headway_tensor *elements,
                     const headway_tensor *scales)
{
    pool->data = elements->data;
    pool->page = headway_stride(elements, 0);
    pool->head = headway_stride(elements, 1);
    pool->token = headway_stride(elements, 2);
    pool->scale = scales->data;
    pool->scale_page = scales->rank ? headway_stride(scales, 0) : 0;
    pool->scale_head = scales->rank ? headway_stride(scales, 1) : 0;
    pool->scale_token = scales->rank ? headway_stride(scales, 2) : 0;
}

/* Pages lie head by head: those of a sequence that came one after the other are then one stream for
 * each head, and don't share their places in the processor's caches. */
static headway_tensor own_tensor(void *data, const headway_tensor *of, int contiguous)
{
    headway_tensor tensor = headway_tensor_dense(data, of->dtype, of->rank, of->shape);
    if (!contiguous) {
        tensor.stride[0] = tensor.stride[1];
        tensor.stride[1] *= of->shape[0];
    }
    return tensor;
}

/* The draft becomes a cache of empty sequences in `block`. */
static headway_kv_cache *settle(const struct draft *d, char *block)
{
    headway_kv_cache *c = (headway_kv_cache *)block;
    *c = d->cache;
    c->tables = (int32_t *)(block + d->tables);
    c->lengths = (int64_t *)(block + d->lengths);
    c->first = (int64_t *)(block + d->first);
    c->marks = (unsigned char *)(block + d->marks);
    c->shares = (int32_t *)(block + d->shares);
    c->leaving = (int32_t *)(block + d->leaving);
    c->free = (int32_t *)(block + d->free);
    for (int i = 0; c->own && i < HEADWAY_CACHE_TENSORS; i++)
        if (c->memory[i].rank)
            c->memory[i] = own_tensor(block + d->at[i], &d->cache.memory[i], c->contiguous);
    set_pool(&c->store.key, &c->memory[HEADWAY_CACHE_KEY], &c->memory[HEADWAY_CACHE_KEY_SCALE]);
    set_pool(&c->store.value, &c->memory[HEADWAY_CACHE_VALUE],
             &c->memory[HEADWAY_CACHE_VALUE_SCALE]);
    c->store.tables = c->tables;
    c->store.lengths = c->lengths;
    c->store.first = c->rolling ? c->first : NULL;
    memset(c->marks, 0, (size_t)c->sequences);
    for (int64_t s = 0; s < c->sequences; s++) {
        c->lengths[s] = 0;
        c->first[s] = c->pinned;
        for (int64_t e = 0; e < c->store.entries; e++)
            c->tables[s * c->store.entries + e] = c->contiguous ? (int32_t)s : -1;
    }
    c->free_pages = c->contiguous || c->caller_pages ? 0 : c->pages;
    for (int64_t i = 0; i < c->pages; i++) {
        c->shares[i] = c->leaving[i] = 0;
        c->free[i] = (int32_t)(c->pages - 1 - i);
    }
    return c;
}

headway_status headway_kv_cache_create(const headway_engine *engine,
                                       const headway_kv_cache_config *config,
                                       headway_kv_cache **cache)
{
    struct draft d;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    if (!config || !cache)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: NULL",
                            config ? "cache" : "config");
    HEADWAY_TRY(headway_check_size(engine, "config", config->size, sizeof *config, sizeof *config));
    memset(&d, 0, sizeof d);
    d.cache.engine = engine;
    d.cache.own = !config->key;
    HEADWAY_TRY(check_config(engine, config, &d.cache));
    shape_tensors(config, &d.cache);
    HEADWAY_TRY(take_memory(engine, config, &d.cache));
    if (!lay_out(&d))
        return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                            "cache: these sizes need more bytes than an address space has");
    void *block = headway_allocate(headway_engine_memory(engine), d.cache.bytes);
    if (!block)
        return headway_fail(engine, HEADWAY_ERROR_MEMORY, "cache: no memory for %zu bytes",
                            d.cache.bytes);
    *cache = settle(&d, block);
    return HEADWAY_OK;
}

void headway_kv_cache_destroy(headway_kv_cache *cache)
{
    if (cache)
        headway_release(headway_engine_memory(cache->engine), cache);
}

headway_status headway_cache_check_slot(const headway_kv_cache *cache, const char *name,
                                        int64_t slot)
{
    if (slot < 0 || slot >= cache->sequences)
        return headway_fail(cache->engine, HEADWAY_ERROR_ARGUMENT, "%s: %lld, expected 0..%lld",
                            name, (long long)slot, (long long)cache->sequences - 1);
    return HEADWAY_OK;
}

headway_status headway_kv_cache_get_state(const headway_kv_cache *cache, int64_t slot,
                                          headway_kv_cache_state *state)
{
    if (!cache)
        return HEADWAY_ERROR_ARGUMENT;
    if (!state)
        return headway_fail(cache->engine, HEADWAY_ERROR_ARGUMENT, "state: NULL");
    HEADWAY_TRY(
        headway_check_size(cache->engine, "state", state->size, sizeof *state, sizeof *state));
    HEADWAY_TRY(headway_cache_check_slot(cache, "slot", slot));
    state->length = cache->lengths[slot];
    state->first = cache->first[slot];
    state->pages = 0;
    for (int64_t e = 0; !cache->contiguous && e < cache->store.entries; e++)
        state->pages += cache->tables[slot * cache->store.entries + e] >= 0;
    state->pages_free = cache->free_pages;
    state->bytes = cache->element_bytes;
    return HEADWAY_OK;
}

headway_status headway_kv_cache_truncate(headway_kv_cache *cache, int64_t slot, int64_t length)
{
    if (!cache)
        return HEADWAY_ERROR_ARGUMENT;
    HEADWAY_TRY(headway_cache_check_slot(cache, "slot", slot));
    if (length < 0 || length > cache->lengths[slot])
        return headway_fail(cache->engine, HEADWAY_ERROR_ARGUMENT, "length: %lld, expected 0..%lld",
                            (long long)length, (long long)cache->lengths[slot]);
    cache->lengths[slot] = length;
    if (cache->first[slot] > length)
        cache->first[slot] = length > cache->pinned ? length : cache->pinned;
    headway_cache_give_back(cache, slot);
    return HEADWAY_OK;
}

headway_status headway_kv_cache_reset(headway_kv_cache *cache, int64_t slot)
{
    if (!cache)
        return HEADWAY_ERROR_ARGUMENT;
    HEADWAY_TRY(headway_cache_check_slot(cache, "slot", slot));
    headway_cache_empty(cache, slot);
    return HEADWAY_OK;
}

headway_status headway_kv_cache_fork(headway_kv_cache *cache, int64_t from, int64_t to)
{
    if (!cache)
        return HEADWAY_ERROR_ARGUMENT;
    HEADWAY_TRY(headway_cache_check_slot(cache, "from", from));
    HEADWAY_TRY(headway_cache_check_slot(cache, "to", to));
    if (from == to)
        return headway_fail(cache->engine, HEADWAY_ERROR_ARGUMENT,
                            "to: %lld, expected another slot than from", (long long)to);
    headway_cache_copy(cache, from, to);
    return HEADWAY_OK;
}

headway_status headway_kv_cache_set_pages(headway_kv_cache *cache, int64_t slot,
                                          const int32_t *pages, int64_t count, int64_t length)
{
    if (!cache)
        return HEADWAY_ERROR_ARGUMENT;
    const headway_engine *engine = cache->engine;
    const struct headway_store *store = &cache->store;
    if (!cache->caller_pages)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "cache: hands out its pages itself, expected one with caller_pages");
    HEADWAY_TRY(headway_cache_check_slot(cache, "slot", slot));
    if (count < 0 || count > store->entries)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "count: %lld, expected 0..%lld",
                            (long long)count, (long long)store->entries);
    if (count > 0 && !pages)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "pages: NULL, expected %lld",
                            (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (pages[i] < 0 || pages[i] >= cache->pages)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "pages: %d at %lld, expected 0..%lld", (int)pages[i], (long long)i,
                                (long long)cache->pages - 1);
    const int64_t room = cache->rolling && count == store->entries    ? HEADWAY_CACHE_LONGEST
                         : count * store->page_size < cache->capacity ? count * store->page_size
                                                                      : cache->capacity;
    if (length < 0 || length > room)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "length: %lld, expected 0..%lld (what the pages and the capacity hold)",
                            (long long)length, (long long)room);
    headway_cache_empty(cache, slot);
    if (count > 0)
        memcpy(cache->tables + slot * store->entries, pages, (size_t)count * sizeof *pages);
    cache->lengths[slot] = length;
    if (length > cache->capacity)
        cache->first[slot] = length - (cache->capacity - cache->pinned);
    return HEADWAY_OK;
}
