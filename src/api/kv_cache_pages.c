/* A cache's pages: who holds which, what an append needs, copies where shared ones are written. */
#include <string.h>

#include "api/check.h"
#include "api/kv_cache.h"
#include "system/memory.h"

static int32_t *table_of(const headway_kv_cache *c, int64_t slot)
{
    return c->tables + slot * c->store.entries;
}

/* Tokens that go round behind the pinned ones. */
static int64_t ring_of(const headway_kv_cache *c)
{
    return c->capacity - c->pinned;
}

headway_status headway_cache_check_slots(const headway_engine *engine,
                                         const headway_kv_cache *cache, const char *name,
                                         const int64_t *slots, int64_t batch)
{
    if (!slots && batch > cache->sequences)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: NULL for %lld sequences, expected them as the cache has %lld",
                            name, (long long)batch, (long long)cache->sequences);
    for (int64_t b = 0; slots && b < batch; b++)
        if (slots[b] < 0 || slots[b] >= cache->sequences)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "%s: %lld at %lld, expected 0..%lld", name, (long long)slots[b],
                                (long long)b, (long long)cache->sequences - 1);
    return HEADWAY_OK;
}

int64_t headway_cache_first(const headway_kv_cache *cache, const struct headway_cached *grow,
                            int64_t b)
{
    const int64_t slot = headway_slot(grow, b), first = cache->first[slot];
    const int64_t behind = cache->lengths[slot] + headway_more(grow, b) - ring_of(cache);
    return cache->rolling && behind > first ? behind : first;
}

/* ---- what an append writes ------------------------------------------------------------------ */

/* Pages first .. last of a sequence, each in an entry of its own. */
struct span {
    int64_t first, last;
};

/* The pages that hold the slot's next tokens. Where the last goes round into the first's entry it
 * is left out. */
static struct span written(const headway_kv_cache *c, int64_t slot, int64_t more)
{
    const struct headway_store *s = &c->store;
    const int64_t length = c->lengths[slot];
    struct span span = {length / s->page_size, -1};
    if (more > 0) {
        const int64_t from = span.first > s->fixed ? span.first : s->fixed;
        span.last =
            headway_at_most((length + more - 1) / s->page_size, from + s->entries - s->fixed - 1);
    }
    return span;
}

/* Pages that appending would take. *leaving counts who gives a shared page up for a copy. */
static int64_t pages_needed(const headway_kv_cache *c, int64_t slot, int64_t more)
{
    const struct span span = written(c, slot, more);
    int64_t needed = 0;
    for (int64_t n = span.first; n <= span.last; n++) {
        const int32_t page = table_of(c, slot)[headway_store_entry(&c->store, n)];
        if (page >= 0 && c->shares[page] - c->leaving[page] < 2)
            continue;
        if (page >= 0)
            c->leaving[page]++;
        needed++;
    }
    return needed;
}

static void forget_leaving(const headway_kv_cache *c, int64_t slot, int64_t more)
{
    const struct span span = written(c, slot, more);
    for (int64_t n = span.first; n <= span.last; n++) {
        const int32_t page = table_of(c, slot)[headway_store_entry(&c->store, n)];
        if (page >= 0)
            c->leaving[page] = 0;
    }
}

static headway_status check_pages(const headway_engine *engine, const headway_kv_cache *c,
                                  const struct headway_cached *grow, int64_t batch)
{
    int64_t needed = 0;
    if (c->contiguous)
        return HEADWAY_OK;
    for (int64_t b = 0; c->caller_pages && b < batch; b++) {
        const int64_t slot = headway_slot(grow, b);
        const struct span span = written(c, slot, headway_more(grow, b));
        for (int64_t n = span.first; n <= span.last; n++)
            if (table_of(c, slot)[headway_store_entry(&c->store, n)] < 0)
                return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                                    "cache: slot %lld has no page %lld, expected it from "
                                    "headway_kv_cache_set_pages()",
                                    (long long)slot, (long long)n);
    }
    if (c->caller_pages)
        return HEADWAY_OK;
    for (int64_t b = 0; b < batch; b++)
        needed += pages_needed(c, headway_slot(grow, b), headway_more(grow, b));
    for (int64_t b = 0; b < batch; b++)
        forget_leaving(c, headway_slot(grow, b), headway_more(grow, b));
    if (needed > c->free_pages)
        return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                            "cache: %lld pages free, expected the %lld that the tokens need",
                            (long long)c->free_pages, (long long)needed);
    return HEADWAY_OK;
}

static headway_status check_room(const headway_engine *engine, const headway_kv_cache *c,
                                 int64_t slot, int64_t more)
{
    const int64_t length = c->lengths[slot];
    int64_t end;
    if (!c->rolling && more > c->capacity - length)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "cache: %lld tokens for slot %lld, expected at most %lld (it has %lld of "
            "%lld)",
            (long long)more, (long long)slot, (long long)(c->capacity - length), (long long)length,
            (long long)c->capacity);
    if (!headway_add(length, more, &end) || end > HEADWAY_CACHE_LONGEST)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "cache: %lld tokens for slot %lld of %lld, expected at most 2^61 in all",
            (long long)more, (long long)slot, (long long)length);
    const int64_t from = length > c->pinned ? length : c->pinned;
    if (c->rolling && end - from > ring_of(c))
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "cache: %lld tokens at once for slot %lld, expected at most %lld, which "
            "are kept",
            (long long)more, (long long)slot, (long long)(from - length + ring_of(c)));
    return HEADWAY_OK;
}

static headway_status check_each(const headway_engine *engine, const headway_kv_cache *c,
                                 const char *name, const struct headway_cached *grow, int64_t b)
{
    const int64_t slot = headway_slot(grow, b);
    if (c->marks[slot])
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: %lld at %lld again, expected different slots", name,
                            (long long)slot, (long long)b);
    c->marks[slot] = 1;
    return check_room(engine, c, slot, headway_more(grow, b));
}

headway_status headway_cache_prepare(const headway_engine *engine, const headway_kv_cache *cache,
                                     const char *name, const struct headway_cached *grow,
                                     int64_t batch)
{
    headway_status status = HEADWAY_OK;
    int64_t b = 0;
    while (status == HEADWAY_OK && b < batch)
        status = check_each(engine, cache, name, grow, b++);
    while (b > 0)
        cache->marks[headway_slot(grow, --b)] = 0;
    return status == HEADWAY_OK ? check_pages(engine, cache, grow, batch) : status;
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Tokens at `at` of a page, elements and scales, into the same places of another. */
static void copy_place(const headway_kv_cache *c, int32_t from, int32_t to, int64_t at)
{
    for (int i = 0; i < HEADWAY_CACHE_TENSORS; i++) {
        const headway_tensor *m = &c->memory[i];
        const int64_t bytes = headway_dtype_size(m->dtype);
        if (!m->rank)
            continue;
        for (int64_t h = 0; h < c->kv_heads; h++) {
            char *head =
                (char *)m->data + (h * headway_stride(m, 1) + at * headway_stride(m, 2)) * bytes;
            memcpy(head + to * headway_stride(m, 0) * bytes,
                   head + from * headway_stride(m, 0) * bytes,
                   (size_t)(m->rank == 4 ? m->shape[3] * bytes : bytes));
        }
    }
}

static int32_t take_page(headway_kv_cache *c)
{
    const int32_t page = c->free[--c->free_pages];
    c->shares[page] = 1;
    return page;
}

static void give_page(headway_kv_cache *c, int32_t *entry)
{
    const int32_t page = *entry;
    *entry = -1;
    if (page >= 0 && !c->caller_pages && --c->shares[page] == 0)
        c->free[c->free_pages++] = page;
}

/* The entry of page n becomes the slot's own: what it shares is copied as far as it is kept once
 * the sequence begins at `first`. A place of the page that holds no token of page n holds one of a
 * lap ago. */
static void own_page(headway_kv_cache *c, int64_t slot, int64_t n, int64_t first)
{
    const struct headway_store *s = &c->store;
    int32_t *entry = &table_of(c, slot)[headway_store_entry(s, n)];
    const int32_t page = *entry;
    if (page >= 0 && c->shares[page] < 2)
        return;
    *entry = take_page(c);
    if (page < 0)
        return;
    c->shares[page]--;
    const int64_t length = c->lengths[slot], lap = (s->entries - s->fixed) * s->page_size;
    for (int64_t at = 0; at < s->page_size; at++) {
        int64_t token = n * s->page_size + at;
        if (token >= length && n >= s->fixed)
            token -= lap;
        if (token < length && (n < s->fixed || token >= first))
            copy_place(c, page, *entry, at);
    }
}

void headway_cache_begin(headway_kv_cache *cache, const struct headway_cached *grow, int64_t batch)
{
    for (int64_t b = 0; !cache->contiguous && !cache->caller_pages && b < batch; b++) {
        const int64_t slot = headway_slot(grow, b);
        const struct span span = written(cache, slot, headway_more(grow, b));
        for (int64_t n = span.first; n <= span.last; n++)
            own_page(cache, slot, n, headway_cache_first(cache, grow, b));
    }
}

void headway_cache_commit(headway_kv_cache *cache, const struct headway_cached *grow, int64_t batch)
{
    for (int64_t b = 0; b < batch; b++) {
        const int64_t slot = headway_slot(grow, b);
        cache->first[slot] = headway_cache_first(cache, grow, b);
        cache->lengths[slot] += headway_more(grow, b);
    }
}

/* Whether a kept token of the slot lies in the entry. */
static int is_needed(const headway_kv_cache *c, int64_t slot, int64_t entry)
{
    const struct headway_store *s = &c->store;
    const int64_t length = c->lengths[slot], ring = s->entries - s->fixed;
    if (entry < s->fixed)
        return entry * s->page_size < length;
    if (length <= c->first[slot])
        return 0;
    const int64_t oldest = c->first[slot] / s->page_size - s->fixed;
    const int64_t pages = (length - 1) / s->page_size - s->fixed - oldest + 1;
    return (entry - s->fixed - oldest % ring + ring) % ring < pages;
}

void headway_cache_give_back(headway_kv_cache *cache, int64_t slot)
{
    for (int64_t e = 0; !cache->contiguous && !cache->caller_pages && e < cache->store.entries; e++)
        if (!is_needed(cache, slot, e))
            give_page(cache, &table_of(cache, slot)[e]);
}

void headway_cache_empty(headway_kv_cache *cache, int64_t slot)
{
    cache->lengths[slot] = 0;
    cache->first[slot] = cache->pinned;
    for (int64_t e = 0; !cache->contiguous && e < cache->store.entries; e++)
        give_page(cache, &table_of(cache, slot)[e]);
}

void headway_cache_copy(headway_kv_cache *cache, int64_t from, int64_t to)
{
    headway_cache_empty(cache, to);
    cache->lengths[to] = cache->lengths[from];
    cache->first[to] = cache->first[from];
    for (int64_t t = cache->first[from]; cache->contiguous && t < cache->lengths[from]; t++)
        copy_place(cache, (int32_t)from, (int32_t)to, t % cache->store.page_size);
    for (int64_t e = 0; !cache->contiguous && e < cache->store.entries; e++) {
        const int32_t page = table_of(cache, from)[e];
        table_of(cache, to)[e] = page;
        if (page >= 0 && !cache->caller_pages)
            cache->shares[page]++;
    }
}
