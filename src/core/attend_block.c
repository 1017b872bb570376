/* The blocks and segments of keys of one tile: S^T = K . Q^T, online softmax down the keys, O^T +=
 * V^T . P^T, merged in order. Keys and values are read in place as broadcast operands. */
#include <math.h>
#include <string.h>

#include "core/tile.h"
#include "cpu/exp_poly.h"

void headway_tile_slopes(struct headway_tile *t)
{
    const struct headway_lanes *l = &t->lanes;
    const int64_t offset = headway_row_offset(t->p, l->b);
    for (int lane = 0; lane < l->width; lane++) {
        const int64_t at = l->start + lane;
        const int live = lane < l->n;
        t->slope[lane] = live ? t->p->slopes[headway_lane_head(l, lane)] * HEADWAY_EXP_UNIT : 0.0f;
        t->place[lane] = live ? (int32_t)(at / l->group + offset) : 0;
    }
}

static const struct headway_view *view_of(const struct headway_tile *t, int which, int appended)
{
    if (appended)
        return which == HEADWAY_KEYS ? &t->p->appended_key : &t->p->appended_value;
    return which == HEADWAY_KEYS ? &t->p->key : &t->p->value;
}

static const struct headway_pool *pool_of(const struct headway_tile *t, int which)
{
    const struct headway_store *store = t->p->cached.store;
    return which == HEADWAY_KEYS ? &store->key : &store->value;
}

void headway_tile_rows(const struct headway_tile *t, int which, int64_t b, int64_t head,
                       int64_t first, int count, const void **rows, float *scales)
{
    const struct headway_cached *cached = &t->p->cached;
    if (cached->store) {
        headway_store_rows(cached->store, pool_of(t, which), headway_slot(cached, b), head, first,
                           count, rows, scales);
        return;
    }
    const struct headway_view *view = view_of(t, which, 0);
    const float *row = view->data + b * view->batch + first * view->row + head * view->head;
    headway_rows_apart(rows, row, view->row * (ptrdiff_t)sizeof *row, count);
}

/* Stored rows as floats, one behind the other. */
static const float *widen_rows(struct headway_tile *t, int which, const struct headway_block *block,
                               ptrdiff_t *pitch)
{
    const int64_t size = which == HEADWAY_KEYS ? t->p->size : t->p->value_size;
    const struct headway_store *store = t->p->cached.store;
    const struct headway_pool *pool = pool_of(t, which);
    const void *rows[HEADWAY_KEY_BLOCK];
    float scales[HEADWAY_KEY_BLOCK];
    const int even =
        pool->storage == HEADWAY_STORED_F32 && headway_store_even(store, block->row, block->count);

    headway_tile_rows(t, which, t->lanes.b, t->lanes.head / t->p->group, block->row,
                      even ? 1 : block->count, rows, scales);
    *pitch = even ? pool->token : size;
    if (even)
        return rows[0];
    for (int j = 0; j < block->count; j++)
        t->row->widen(t->widened[which] + j * size, rows[j], size, pool->storage, scales[j]);
    return t->widened[which];
}

/* Element 0 of the block's first key or value, as floats of one pitch. */
static const float *operand(struct headway_tile *t, int which, const struct headway_block *block,
                            ptrdiff_t *pitch)
{
    const int appended = block->start >= t->p->keys;
    if (t->p->cached.store && !appended)
        return widen_rows(t, which, block, pitch);
    const struct headway_view *view = view_of(t, which, appended);
    *pitch = view->row;
    return view->data + t->lanes.b * view->batch + block->row * view->row +
           t->lanes.head / t->p->group * view->head;
}

/* Intervals leave gaps between lanes: the part of the block between the first and the last key that
 * any lane sees. */
static void narrow(const struct headway_lanes *l, struct headway_block *block)
{
    const int64_t stop = block->start + block->count;
    int64_t low = stop, high = block->start;
    for (int lane = 0; lane < l->n; lane++) {
        const int64_t first = l->first[lane] > block->start ? l->first[lane] : block->start;
        const int64_t last = headway_at_most(l->last[lane], stop);
        if (first < last) {
            low = headway_at_most(first, low);
            high = last > high ? last : high;
        }
    }
    block->start = low;
    block->count = high > low ? (int)(high - low) : 0;
}

/* The lanes' bits of keys that they see in or beside their ranges, where both kinds meet in a block.
 * What no lane sees at its ends is cut off; 0 when that is all. */
static int allow_prefix(struct headway_tile *t, struct headway_block *block)
{
    const struct headway_lanes *l = &t->lanes;
    uint64_t *allowed = t->mask.allowed, seen[HEADWAY_KEY_BLOCK];
    int low = block->count, high = 0;
    memset(seen, 0, sizeof seen);
    for (int lane = 0; lane < l->n; lane++) {
        int64_t first, last;
        headway_mask_prefix(t->p, l, lane, &first, &last);
        for (int j = 0; j < block->count; j++) {
            const int64_t key = block->start + j;
            if ((key >= first && key < last) || (key >= l->first[lane] && key < l->last[lane]))
                seen[j] |= UINT64_C(1) << lane;
        }
    }
    for (int j = 0; j < block->count; j++) {
        allowed[j] = seen[j] & (block->allowed ? block->allowed[j] : UINT64_MAX);
        if (allowed[j]) {
            low = j < low ? j : low;
            high = j + 1;
        }
    }
    if (low >= high)
        return 0;
    block->allowed = allowed + low;
    block->bias = block->bias ? block->bias + (ptrdiff_t)low * l->width : NULL;
    block->start += low;
    block->count = high - low;
    return 1;
}

int64_t headway_tile_skip(const struct headway_tile *t, int64_t begin, int64_t step)
{
    const int64_t first = t->lanes.first_min / step * step;
    return begin < t->lanes.prefix ? begin : begin > first ? begin : first;
}

int headway_tile_block(struct headway_tile *t, int64_t begin, struct headway_block *block)
{
    const struct headway_lanes *l = &t->lanes;
    const int prefix = begin < l->prefix;
    block->start = begin > l->first_min || prefix ? begin : l->first_min;
    block->count = (int)(headway_at_most(begin + HEADWAY_KEY_BLOCK, l->last_max) - block->start);
    if (block->count > 0 && t->p->interval.data && !prefix)
        narrow(l, block);
    if (block->count <= 0)
        return 0;
    block->allowed = NULL;
    block->bias = NULL;
    if (t->p->mask.kind != HEADWAY_MASK_NONE &&
        !headway_mask_block(t->p, t->row, l, &t->mask, block))
        return 0;
    if (prefix && !allow_prefix(t, block))
        return 0;
    block->row = l->key_start + block->start;
    block->ranged =
        !prefix && (l->first_max > block->start || l->last_min < block->start + block->count);
    return 1;
}

struct headway_block headway_tile_appended(const struct headway_tile *t)
{
    const struct headway_block block = {.start = t->p->keys, .row = 0, .count = t->p->appended};
    return block;
}

int headway_block_sees(const struct headway_tile *t, const struct headway_block *block, int lane,
                       int j)
{
    const struct headway_lanes *l = &t->lanes;
    const int64_t key = block->start + j;
    if (block->ranged && (key < l->first[lane] || key >= l->last[lane]))
        return 0;
    if (block->allowed && !(block->allowed[j] >> lane & 1))
        return 0;
    return !block->bias || block->bias[(ptrdiff_t)j * l->width + lane] != -INFINITY;
}

/* Asks for the next block's rows; its place is that of the whole block. */
static void ask_for_next(struct headway_tile *t, int which, const struct headway_block *block,
                         int64_t floats)
{
    const int64_t next = block->start / HEADWAY_KEY_BLOCK * HEADWAY_KEY_BLOCK + HEADWAY_KEY_BLOCK;
    const int64_t end = headway_at_most(next + HEADWAY_KEY_BLOCK, t->lanes.last_max);
    t->ahead.at = 0;
    t->ahead.count = end > next ? (int)(end - next) : 0;
    t->ahead.floats = t->p->cached.store
                          ? floats * headway_storage_bytes(pool_of(t, which)->storage) / 4
                          : floats;
    if (t->ahead.count > 0)
        headway_tile_rows(t, which, t->lanes.b, t->lanes.head / t->p->group,
                          block->row + next - block->start, t->ahead.count,
                          (const void **)(void *)t->lines_ahead, NULL);
}

static void set_columns(struct headway_gemm *g, float *c, int lanes)
{
    for (int v = 0; v < g->vectors; v++)
        g->c[v] = c + v * lanes;
}

static void scores_of(struct headway_tile *t, const struct headway_block *block, float *highest,
                      float *lowest)
{
    struct headway_gemm g = {.m = block->count, .k = t->p->size, .vectors = t->vectors};
    g.a = operand(t, HEADWAY_KEYS, block, &g.a_row);
    g.a_col = 1;
    g.b = t->panel;
    g.c_row = t->lanes.width;
    if (t->streams)
        ask_for_next(t, HEADWAY_KEYS, block, t->p->size);
    g.ahead = t->mask.ahead.count > 0 ? &t->mask.ahead : t->ahead.count > 0 ? &t->ahead : NULL;
    g.highest = highest;
    g.lowest = lowest;
    set_columns(&g, t->scores, t->row->lanes);
    t->row->gemm(&g);
}

static void range_within(struct headway_tile *t, const struct headway_block *block)
{
    const struct headway_lanes *l = &t->lanes;
    for (int lane = 0; lane < l->width; lane++) {
        const int64_t first = l->first[lane] - block->start, last = l->last[lane] - block->start;
        t->first[lane] = (int32_t)(first < 0 ? 0 : headway_at_most(first, block->count));
        t->last[lane] = (int32_t)(last < 0 ? 0 : headway_at_most(last, block->count));
    }
}

/* Appended keys lie elsewhere, and poison is looked for by lanes that are many. */
static int in_few(const struct headway_tile *t, const struct headway_block *block)
{
    return t->few.row && !t->careful && block->start < t->p->keys;
}

void headway_tile_weigh(struct headway_tile *t, const struct headway_block *block, float *top,
                        float *total, float *rescale)
{
    struct headway_softmax s = {.keys = block->count,
                                .vectors = t->vectors,
                                .scores = t->scores,
                                .cap = t->p->softcap,
                                .inverse_cap = t->inverse_cap,
                                .allowed = block->allowed,
                                .bias = block->bias,
                                .row_max = top,
                                .row_sum = total,
                                .rescale = rescale};
    const int sloped = t->p->slopes && block->start < t->p->keys;
    _Alignas(64) float highest[HEADWAY_MAX_WIDTH];
    _Alignas(64) float lowest[HEADWAY_MAX_WIDTH];

    const int few = in_few(t, block);
    if (!few && !(s.cap > 0.0f || sloped || s.bias || s.allowed || block->ranged)) {
        for (int lane = 0; lane < t->lanes.width; lane++) {
            highest[lane] = -INFINITY;
            lowest[lane] = INFINITY;
        }
        s.highest = highest;
        s.lowest = lowest;
    }
    if (few)
        headway_few_scores(t, block);
    else
        scores_of(t, block, s.highest ? highest : NULL, s.highest ? lowest : NULL);
    if (block->ranged) {
        range_within(t, block);
        s.first = t->first;
        s.last = t->last;
    }
    if (sloped) {
        for (int lane = 0; lane < t->lanes.width; lane++)
            t->distance[lane] = (int32_t)(block->start - t->place[lane]);
        s.slope = t->slope;
        s.distance = t->distance;
    }
    t->row->softmax(&s);
}

/* sum = sum * rescale + weights . values; a fresh segment's sum is written without being read. */
static void add_values(struct headway_tile *t, const struct headway_block *block,
                       const float *values, ptrdiff_t pitch, const struct headway_state *s,
                       int fresh, const float *rescale)
{
    struct headway_gemm g = {.m = t->p->value_size, .k = block->count, .vectors = t->vectors};
    if (g.m == 0)
        return;
    if (t->streams)
        ask_for_next(t, HEADWAY_VALUES, block, t->p->value_size);
    g.ahead = t->ahead.count > 0 ? &t->ahead : NULL;
    g.a = values;
    g.a_row = 1;
    g.a_col = pitch;
    g.b = t->scores;
    g.c_row = t->lanes.width;
    g.accumulate = !fresh;
    for (int lane = 0; lane < t->lanes.width; lane++)
        if (rescale[lane] != 1.0f)
            g.scale = rescale;
    set_columns(&g, s->sum, t->row->lanes);
    t->row->gemm(&g);
}

/* A block of values that may hold NaN or Inf where some rows exclude the key: a copy with 0 in
 * their place goes through the ordinary product, where 0 changes nothing, and what was taken out is
 * added for the rows that do see the key. */
static void add_carefully(struct headway_tile *t, const struct headway_block *block,
                          const struct headway_state *s, int fresh, const float *rescale)
{
    const int64_t size = t->p->value_size;
    const int width = t->lanes.width;
    ptrdiff_t pitch;
    const float *values = operand(t, HEADWAY_VALUES, block, &pitch);

    for (int j = 0; j < block->count; j++) {
        const float *value = values + j * pitch;
        for (int64_t d = 0; d < size; d++)
            t->clean[j * size + d] = isfinite(value[d]) ? value[d] * t->shrink : 0.0f;
    }
    add_values(t, block, t->clean, size, s, fresh, rescale);
    for (int j = 0; j < block->count; j++) {
        const float *value = values + j * pitch;
        for (int64_t d = 0; d < size; d++) {
            if (isfinite(value[d]))
                continue;
            for (int lane = 0; lane < t->lanes.n; lane++)
                if (headway_block_sees(t, block, lane, j))
                    s->sum[d * width + lane] = fmaf(
                        value[d], t->scores[(ptrdiff_t)j * width + lane], s->sum[d * width + lane]);
        }
    }
}

static void attend_block(struct headway_tile *t, const struct headway_block *block,
                         const struct headway_state *s, int fresh)
{
    _Alignas(64) float rescale[HEADWAY_MAX_WIDTH];
    headway_tile_weigh(t, block, s->top, s->total, rescale);
    if (t->careful) {
        add_carefully(t, block, s, fresh, rescale);
    } else if (in_few(t, block)) {
        headway_few_values(t, block, fresh, rescale);
    } else {
        ptrdiff_t pitch;
        const float *values = operand(t, HEADWAY_VALUES, block, &pitch);
        add_values(t, block, values, pitch, s, fresh, rescale);
    }
}

static void begin_segment(const struct headway_tile *t, const struct headway_state *s)
{
    for (int lane = 0; lane < t->lanes.width; lane++) {
        s->top[lane] = -INFINITY;
        s->total[lane] = 0.0f;
    }
}

/* One segment from a fresh state; returns 0 when no block of it was seen by any lane. */
static int attend_segment(struct headway_tile *t, int64_t begin, const struct headway_state *s)
{
    const int64_t end = headway_at_most(begin + HEADWAY_SEGMENT_KEYS, t->lanes.last_max);
    struct headway_block block;
    int fresh = 1;

    begin_segment(t, s);
    for (; begin < end; begin += HEADWAY_KEY_BLOCK)
        if (headway_tile_block(t, begin, &block)) {
            attend_block(t, &block, s, fresh);
            fresh = 0;
        }
    if (!fresh && t->few.row && !t->careful)
        headway_few_finish(t, s->sum);
    return !fresh;
}

static int attend_appended(struct headway_tile *t, const struct headway_state *s)
{
    const struct headway_block block = headway_tile_appended(t);
    begin_segment(t, s);
    attend_block(t, &block, s, 1);
    return 1;
}

/* Where the state of a stored segment lies, and behind it whether any lane saw a key of it. */
static float *stored_state(const struct headway_tile *t, int64_t segment, struct headway_state *s)
{
    const int64_t width = t->lanes.width, size = t->p->value_size;
    s->sum = t->segments + segment * (size + 3) * width;
    s->top = s->sum + size * width;
    s->total = s->top + width;
    return s->total + width;
}

void headway_tile_segments(struct headway_tile *t, int64_t first, int64_t last)
{
    struct headway_state s;
    for (; first < last; first++) {
        float *seen = stored_state(t, first, &s);
        *seen = (float)attend_segment(t, first * HEADWAY_SEGMENT_KEYS, &s);
    }
}

static void merge(struct headway_tile *t, const float *later, const float *later_max,
                  const float *later_sum)
{
    const struct headway_merge merge = {.m = t->p->value_size,
                                        .vectors = t->vectors,
                                        .sum = t->whole.sum,
                                        .row_max = t->whole.top,
                                        .row_sum = t->whole.total,
                                        .later = later,
                                        .later_max = later_max,
                                        .later_sum = later_sum};
    t->row->merge(&merge);
}

/* The sink is a segment of one key whose value is 0. A row of nothing but scores of -inf is empty,
 * whatever its values. */
static void add_sink(struct headway_tile *t)
{
    const struct headway_lanes *l = &t->lanes;
    for (int lane = 0; lane < l->width; lane++) {
        for (int64_t d = 0; t->whole.top[lane] == -INFINITY && d < t->p->value_size; d++)
            t->whole.sum[d * l->width + lane] = 0.0f;
        t->later.top[lane] =
            lane < l->n ? t->p->sinks[headway_lane_head(l, lane)] * HEADWAY_EXP_UNIT : -INFINITY;
        t->later.total[lane] = 1.0f;
    }
    merge(t, NULL, t->later.top, t->later.total);
}

/* A segment that has been computed is read where it is stored. */
static int add_stored(struct headway_tile *t, int64_t segment, int seen)
{
    const size_t line = (size_t)t->lanes.width * sizeof(float);
    struct headway_state s;
    if (*stored_state(t, segment, &s) == 0.0f)
        return seen;
    if (seen) {
        merge(t, s.sum, s.top, s.total);
    } else {
        memcpy(t->whole.sum, s.sum, (size_t)t->p->value_size * line);
        memcpy(t->whole.top, s.top, line);
        memcpy(t->whole.total, s.total, line);
    }
    return 1;
}

int headway_tile_attend(struct headway_tile *t)
{
    const int64_t stored = t->segments && !t->careful ? t->stored : 0;
    int seen = 0;
    int64_t begin = headway_tile_skip(t, 0, HEADWAY_SEGMENT_KEYS);
    while (begin < t->lanes.last_max) {
        const int64_t segment = begin / HEADWAY_SEGMENT_KEYS;
        if (segment < stored)
            seen = add_stored(t, segment, seen);
        else if (!seen)
            seen = attend_segment(t, begin, &t->whole);
        else if (attend_segment(t, begin, &t->later))
            merge(t, t->later.sum, t->later.top, t->later.total);
        begin = headway_tile_skip(t, begin + HEADWAY_SEGMENT_KEYS, HEADWAY_SEGMENT_KEYS);
    }
    if (t->p->appended && !seen)
        seen = attend_appended(t, &t->whole);
    else if (t->p->appended && attend_appended(t, &t->later))
        merge(t, t->later.sum, t->later.top, t->later.total);
    if (t->p->sinks && seen)
        add_sink(t);
    return seen;
}
