/* Where a cache's tokens lie, and their elements in and out: addresses and conversions only. Who
 * owns what, lengths and pages are api/kv_cache.c's. */
#ifndef HEADWAY_CACHE_H
#define HEADWAY_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels.h"

/* Elements of all pages; strides in elements. */
struct headway_pool {
    enum headway_storage storage;
    char *data;
    ptrdiff_t page, head, token;
    float *scale; /* of I8 */
    ptrdiff_t scale_page, scale_head, scale_token;
};

/* Token t of slot s is place t % page_size of page tables[s * entries + entry(t / page_size)]:
 *   entry(n) = n < fixed ? n : fixed + (n - fixed) % (entries - fixed)
 * Contiguous sequences are one page each. */
struct headway_store {
    struct headway_pool key, value;
    int64_t page_size, entries, fixed;
    const int32_t *tables;
    const int64_t *lengths; /* (slots) */
    /* (slots), or NULL where nothing rolls: tokens from the fixed pages' end to below this are
     * gone. */
    const int64_t *first;
};

static inline int64_t headway_store_entry(const struct headway_store *store, int64_t page)
{
    if (page < store->entries)
        return page;
    return store->fixed + (page - store->fixed) % (store->entries - store->fixed);
}

/* rows[i] = first + i * pitch bytes, i < count. */
void headway_rows_apart(const void **rows, const void *first, ptrdiff_t pitch, int64_t count);

/* Whether keys first .. first + count - 1 are rows of one pitch, none of them gone. */
int headway_store_even(const struct headway_store *store, int64_t first, int64_t count);

/* rows[i] = element 0 of token first + i of a head, i < count; scales, unless NULL, of I8. One that
 * is there stands for those that are gone, so that whole blocks may be read. */
void headway_store_rows(const struct headway_store *store, const struct headway_pool *pool,
                        int64_t slot, int64_t head, int64_t first, int count, const void **rows,
                        float *scales);

/* One token's head of `size` elements into its place, or out of it as floats. */
void headway_store_put(const struct headway_row *row, const struct headway_store *store,
                       const struct headway_pool *pool, int64_t slot, int64_t head, int64_t token,
                       int64_t size, const float *line);
void headway_store_get(const struct headway_row *row, const struct headway_store *store,
                       const struct headway_pool *pool, int64_t slot, int64_t head, int64_t token,
                       int64_t size, float *line);

int64_t headway_storage_bytes(enum headway_storage storage);

#endif
