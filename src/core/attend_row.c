/* Few query rows of a head: keys and values pass by once, as they are stored, and what waits for them
 * is memory. Scores have lanes over keys and values lanes over their elements; the order of summation
 * is that of many rows, so the bits are. */
#include <string.h>

#include "core/tile.h"

static enum headway_storage storage_of(const struct headway_tile *t, int which)
{
    const struct headway_store *store = t->p->cached.store;
    return !store                  ? HEADWAY_STORED_F32
           : which == HEADWAY_KEYS ? store->key.storage
                                   : store->value.storage;
}

/* Bytes of a stream of rows between what is used and what is asked for: enough to hide memory, and so
 * little that rows a page apart, which share their places in the cache, don't drive each other out. */
#define AHEAD_BYTES 32768

/* `count` rows that come after the block's: of the next block, or the first ones of the head that the
 * worker may come to next; the last one again where there are fewer. Returns 0 when there is none. */
static int rows_after(const struct headway_tile *t, int which, const struct headway_block *block,
                      const void **rows, int count)
{
    const struct headway_lanes *l = &t->lanes;
    const int64_t next = block->start / HEADWAY_KEY_BLOCK * HEADWAY_KEY_BLOCK + HEADWAY_KEY_BLOCK;
    int64_t b = l->b, head = l->head / t->p->group, first = block->row + next - block->start;
    int there = (int)headway_at_most(l->last_max - next, count);
    if (there <= 0) {
        b = t->few.next_b;
        if (b < 0)
            return 0;
        head = t->few.next_head;
        first = t->few.next_first;
        there = (int)headway_at_most(headway_key_length(t->p, b), count);
    }
    if (there <= 0)
        return 0;
    headway_tile_rows(t, which, b, head, first, there, rows, NULL);
    for (; there < count; there++)
        rows[there] = rows[there - 1];
    return 1;
}

static struct headway_rows rows_of(struct headway_tile *t, int which,
                                   const struct headway_block *block)
{
    const struct headway_few *few = &t->few;
    const enum headway_storage storage = storage_of(t, which);
    const int64_t size = which == HEADWAY_KEYS ? t->p->size : t->p->value_size;
    const int64_t bytes = size * headway_storage_bytes(storage);
    const int64_t far = headway_at_most(AHEAD_BYTES / (bytes > 0 ? bytes : 1) + 1, block->count);
    const void **rows = few->rows[which];

    headway_tile_rows(t, which, t->lanes.b, t->lanes.head / t->p->group, block->row, block->count,
                      rows, few->scale[which]);
    const int more = rows_after(t, which, block, rows + block->count, (int)far);
    for (int j = 0; !more && j < far; j++)
        rows[block->count + j] = rows[block->count - 1];
    const struct headway_rows found = {.row = rows,
                                       .ahead = rows + far,
                                       .scale = few->scale[which],
                                       .count = block->count,
                                       .storage = storage};
    return found;
}

void headway_few_scores(struct headway_tile *t, const struct headway_block *block)
{
    struct headway_rows keys = rows_of(t, HEADWAY_KEYS, block);
    struct headway_dot dot = {
        .keys = &keys, .width = t->lanes.width, .k = t->p->size, .scores = t->scores};
    for (int lane = 0; lane < t->lanes.n; lane += HEADWAY_MAX_FEW) {
        dot.n = (int)headway_at_most(t->lanes.n - lane, HEADWAY_MAX_FEW);
        dot.query = t->panel + lane;
        t->few.row->dot(&dot);
        for (int j = 0; lane > 0 && j < block->count; j++)
            memcpy(t->scores + (ptrdiff_t)j * dot.width + lane,
                   dot.scores + (ptrdiff_t)j * dot.width, (size_t)dot.n * sizeof(float));
        /* A kernel fills up its lines: those of further lanes pass through lines of their own. */
        dot.scores = t->few.scores;
        keys.ahead = NULL;
    }
}

void headway_few_values(struct headway_tile *t, const struct headway_block *block, int fresh,
                        const float *rescale)
{
    struct headway_rows values = rows_of(t, HEADWAY_VALUES, block);
    struct headway_mix mix = {.values = &values,
                              .width = t->lanes.width,
                              .m = t->p->value_size,
                              .fresh = fresh,
                              .pitch = t->few.pitch};
    for (int lane = 0; mix.m > 0 && lane < t->lanes.n; lane += HEADWAY_MAX_FEW) {
        mix.n = (int)headway_at_most(t->lanes.n - lane, HEADWAY_MAX_FEW);
        mix.weights = t->scores + lane;
        mix.rescale = rescale + lane;
        mix.sum = t->few.sum + lane * mix.pitch;
        t->few.row->mix(&mix);
        values.ahead = NULL;
    }
}

void headway_few_finish(struct headway_tile *t, float *sum)
{
    const float *lines[HEADWAY_FEW_LANES];
    for (int lane = 0; lane < t->lanes.n; lane++)
        lines[lane] = t->few.sum + lane * t->few.pitch;
    t->row->pack(sum, t->lanes.width, lines, t->lanes.n, t->p->value_size, 1.0f);
}
