#include "core/cache.h"

int64_t headway_storage_bytes(enum headway_storage storage)
{
    static const int64_t bytes[] = {[HEADWAY_STORED_F32] = 4,
                                    [HEADWAY_STORED_F16] = 2,
                                    [HEADWAY_STORED_BF16] = 2,
                                    [HEADWAY_STORED_I8] = 1};
    return bytes[storage];
}

/* By steps, which compilers make vectors of: addresses are a twentieth of what few rows of half-size
 * elements take. */
void headway_rows_apart(const void **rows, const void *first, ptrdiff_t pitch, int64_t count)
{
    const char *row = first;
    for (int64_t i = 0; i < count; i++, row += pitch)
        rows[i] = row;
}

int headway_store_even(const struct headway_store *store, int64_t first, int64_t count)
{
    return !store->first && first / store->page_size == (first + count - 1) / store->page_size;
}

static void find_rows(const struct headway_store *store, const struct headway_pool *pool,
                      int64_t slot, int64_t head, int64_t first, int count, const void **rows,
                      float *scales)
{
    const int32_t *table = store->tables + slot * store->entries;
    const ptrdiff_t bytes = (ptrdiff_t)headway_storage_bytes(pool->storage);
    int64_t page = first / store->page_size, at = first % store->page_size;

    for (int i = 0; i < count; page++, at = 0) {
        const int32_t number = table[headway_store_entry(store, page)];
        const int64_t left = count - i,
                      run = store->page_size - at < left ? store->page_size - at : left;
        const char *row =
            pool->data + (number * pool->page + head * pool->head + at * pool->token) * bytes;
        headway_rows_apart(rows + i, row, pool->token * bytes, run);
        for (int64_t r = 0; scales && pool->storage == HEADWAY_STORED_I8 && r < run; r++)
            scales[i + r] = pool->scale[number * pool->scale_page + head * pool->scale_head +
                                        (at + r) * pool->scale_token];
        i += (int)run;
    }
}

void headway_store_rows(const struct headway_store *store, const struct headway_pool *pool,
                        int64_t slot, int64_t head, int64_t first, int count, const void **rows,
                        float *scales)
{
    const int64_t end = first + count, fixed = store->fixed * store->page_size;
    const int64_t oldest = store->first ? store->first[slot] : 0;
    const int64_t from = first > fixed ? first : fixed, until = end < oldest ? end : oldest;
    if (from >= until) {
        find_rows(store, pool, slot, head, first, count, rows, scales);
        return;
    }
    const int gone = (int)(from - first), there = (int)(until - first);
    const void *other;
    float scale = 0.0f;
    find_rows(store, pool, slot, head, first, gone, rows, scales);
    find_rows(store, pool, slot, head, until, count - there, rows + there,
              scales ? scales + there : NULL);
    find_rows(store, pool, slot, head, fixed > 0 ? 0 : oldest, 1, &other, scales ? &scale : NULL);
    for (int i = gone; i < there; i++) {
        rows[i] = other;
        if (scales)
            scales[i] = scale;
    }
}

static char *place_of(const struct headway_store *store, const struct headway_pool *pool,
                      int64_t slot, int64_t head, int64_t token, float **scale)
{
    const int64_t at = token % store->page_size;
    const int32_t number =
        store->tables[slot * store->entries + headway_store_entry(store, token / store->page_size)];
    *scale = pool->storage == HEADWAY_STORED_I8
                 ? pool->scale + number * pool->scale_page + head * pool->scale_head +
                       at * pool->scale_token
                 : NULL;
    return pool->data + (number * pool->page + head * pool->head + at * pool->token) *
                            (ptrdiff_t)headway_storage_bytes(pool->storage);
}

void headway_store_put(const struct headway_row *row, const struct headway_store *store,
                       const struct headway_pool *pool, int64_t slot, int64_t head, int64_t token,
                       int64_t size, const float *line)
{
    float *scale;
    char *place = place_of(store, pool, slot, head, token, &scale);
    row->narrow(place, line, size, pool->storage, scale);
}

void headway_store_get(const struct headway_row *row, const struct headway_store *store,
                       const struct headway_pool *pool, int64_t slot, int64_t head, int64_t token,
                       int64_t size, float *line)
{
    float *scale;
    const char *place = place_of(store, pool, slot, head, token, &scale);
    row->widen(line, place, size, pool->storage, scale ? *scale : 1.0f);
}
