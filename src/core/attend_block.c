/* The blocks and segments of keys of one tile: S^T = K . Q^T, online softmax down the keys, O^T +=
 * V^T . P^T, merged in order. Keys and values are read in place as broadcast operands. */
#include <math.h>

#include "core/tile.h"
#include "cpu/exp_poly.h"

void headway_tile_slopes(struct headway_tile *t)
{
    const struct headway_lanes *l = &t->lanes;
    const int64_t offset = headway_row_offset(t->p, l->b);
    for (int lane = 0; lane < l->width; lane++) {
        const int64_t at = l->start + lane;
        const int live = lane < l->n;
        t->slope[lane] =
            live ? t->p->slopes[headway_lane_head(l, lane)] * HEADWAY_EXP_UNIT : 0.0f;
        t->place[lane] = live ? (int32_t)(at / l->group + offset) : 0;
    }
}

static const float *line_of(const struct headway_tile *t, const struct headway_view *view,
                            int64_t row)
{
    return view->data + t->lanes.b * view->batch + row * view->row +
           t->lanes.head / t->p->group * view->head;
}

static const struct headway_view *key_view(const struct headway_tile *t,
                                           const struct headway_block *block)
{
    return block->start < t->p->keys ? &t->p->key : &t->p->appended_key;
}

static const struct headway_view *value_view(const struct headway_tile *t,
                                             const struct headway_block *block)
{
    return block->start < t->p->keys ? &t->p->value : &t->p->appended_value;
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

int headway_tile_block(struct headway_tile *t, int64_t begin, struct headway_block *block)
{
    const struct headway_lanes *l = &t->lanes;
    block->start = begin > l->first_min ? begin : l->first_min;
    block->count = (int)(headway_at_most(begin + HEADWAY_KEY_BLOCK, l->last_max) - block->start);
    if (block->count > 0 && t->p->interval.data)
        narrow(l, block);
    if (block->count <= 0)
        return 0;
    block->allowed = NULL;
    block->bias = NULL;
    if (t->p->mask.kind != HEADWAY_MASK_NONE &&
        !headway_mask_block(t->p, t->row, l, &t->mask, block))
        return 0;
    block->row = l->key_start + block->start;
    block->ranged = l->first_max > block->start || l->last_min < block->start + block->count;
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

/* Asks for the next block's lines of view; its place is that of the whole block. */
static void ask_for_next(struct headway_tile *t, const struct headway_view *view,
                         const struct headway_block *block, int64_t floats)
{
    const int64_t next = block->start / HEADWAY_KEY_BLOCK * HEADWAY_KEY_BLOCK + HEADWAY_KEY_BLOCK;
    const int64_t end = headway_at_most(next + HEADWAY_KEY_BLOCK, t->lanes.last_max);
    t->ahead.at = t->ahead.count = 0;
    t->ahead.floats = floats;
    for (int64_t j = next; j < end; j++)
        t->lines_ahead[t->ahead.count++] = (float *)line_of(t, view, block->row + j - block->start);
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
    g.a = line_of(t, key_view(t, block), block->row);
    g.a_row = key_view(t, block)->row;
    g.a_col = 1;
    g.b = t->panel;
    g.c_row = t->lanes.width;
    if (t->streams)
        ask_for_next(t, &t->p->key, block, t->p->size);
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

    if (!(s.cap > 0.0f || sloped || s.bias || s.allowed || block->ranged)) {
        for (int lane = 0; lane < t->lanes.width; lane++) {
            highest[lane] = -INFINITY;
            lowest[lane] = INFINITY;
        }
        s.highest = highest;
        s.lowest = lowest;
    }
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
        ask_for_next(t, &t->p->value, block, t->p->value_size);
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

    for (int j = 0; j < block->count; j++) {
        const float *value = line_of(t, value_view(t, block), block->row + j);
        for (int64_t d = 0; d < size; d++)
            t->clean[j * size + d] = isfinite(value[d]) ? value[d] * t->shrink : 0.0f;
    }
    add_values(t, block, t->clean, size, s, fresh, rescale);
    for (int j = 0; j < block->count; j++) {
        const float *value = line_of(t, value_view(t, block), block->row + j);
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
    if (t->careful)
        add_carefully(t, block, s, fresh, rescale);
    else
        add_values(t, block, line_of(t, value_view(t, block), block->row),
                   value_view(t, block)->row, s, fresh, rescale);
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
    return !fresh;
}

static int attend_appended(struct headway_tile *t, const struct headway_state *s)
{
    const struct headway_block block = headway_tile_appended(t);
    begin_segment(t, s);
    attend_block(t, &block, s, 1);
    return 1;
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

int headway_tile_attend(struct headway_tile *t)
{
    int seen = 0;
    int64_t begin = t->lanes.first_min / HEADWAY_SEGMENT_KEYS * HEADWAY_SEGMENT_KEYS;
    for (; begin < t->lanes.last_max; begin += HEADWAY_SEGMENT_KEYS) {
        if (!seen)
            seen = attend_segment(t, begin, &t->whole);
        else if (attend_segment(t, begin, &t->later))
            merge(t, t->later.sum, t->later.top, t->later.total);
    }
    if (t->p->appended && !seen)
        seen = attend_appended(t, &t->whole);
    else if (t->p->appended && attend_appended(t, &t->later))
        merge(t, t->later.sum, t->later.top, t->later.total);
    if (t->p->sinks && seen)
        add_sink(t);
    return seen;
}
