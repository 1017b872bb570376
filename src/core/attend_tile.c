/* Attention for one query tile: S^T = K . Q^T, online softmax down the keys, O^T += V^T . P^T, with
 * the lanes of the vectors running over query rows (times the heads of a KV group). Keys and values
 * are read in place as broadcast operands; only the queries are transposed in and the outputs out.
 */
#include <math.h>

#include "core/attend.h"
#include "core/lse.h"

/* Keeps sums of 2^32 values of any size from overflowing. */
#define SHRINK 0x1p-32f

/* Scratch of one tile, in the worker's slice. */
struct tile {
    const struct headway_problem *p;
    const struct headway_row *row;
    struct headway_lanes lanes;
    int vectors;
    int careful;  /* values behind a mask may be poison: look at each block of values first */
    float shrink; /* of the values, when careful: 1, or SHRINK */
    float *panel, *scores, *bias, *lines, *clean;
    int32_t *first, *last;
    float *lines_ahead[4 * HEADWAY_MAX_WIDTH]; /* outputs of the live lanes first */
    struct headway_ahead ahead;
};

/* State of the online softmax over one segment. */
struct segment {
    float *sum, *top, *total; /* (value_size, width), (width), (width) */
};

static void lines_of(const struct headway_problem *p, const struct headway_lanes *l,
                     const struct headway_view *view, float **lines)
{
    ptrdiff_t offset[HEADWAY_MAX_WIDTH];
    headway_lane_offsets(p, l, view->batch, view->row, view->head, offset);
    for (int lane = 0; lane < l->n; lane++)
        lines[lane] = view->data + offset[lane];
}

static const float *key_at(const struct headway_problem *p, const struct headway_lanes *l,
                           int64_t j)
{
    return p->key.data + l->b * p->key.batch + l->kv_head * p->key.head + j * p->key.row;
}

static const float *value_at(const struct headway_problem *p, const struct headway_lanes *l,
                             int64_t j)
{
    return p->value.data + l->b * p->value.batch + l->kv_head * p->value.head + j * p->value.row;
}

static void set_columns(struct headway_gemm *g, float *c, int lanes)
{
    for (int v = 0; v < g->vectors; v++)
        g->c[v] = c + v * lanes;
}

static void scores_of(struct tile *t, int64_t start, int count)
{
    struct headway_gemm g = {.m = count, .k = t->p->size, .vectors = t->vectors};
    g.a = key_at(t->p, &t->lanes, start);
    g.a_row = t->p->key.row;
    g.a_col = 1;
    g.b = t->panel;
    g.c_row = t->lanes.width;
    g.ahead = &t->ahead;
    set_columns(&g, t->scores, t->row->lanes);
    t->row->gemm(&g);
}

/* sum = sum * rescale + weights . values; a fresh segment's sum is written without being read. */
static void weigh(struct tile *t, const float *values, ptrdiff_t pitch, int count,
                  const struct segment *s, int fresh, const float *rescale)
{
    struct headway_gemm g = {.m = t->p->value_size, .k = count, .vectors = t->vectors};
    if (g.m == 0)
        return;
    g.a = values;
    g.a_row = 1;
    g.a_col = pitch;
    g.b = t->scores;
    g.c_row = t->lanes.width;
    g.accumulate = !fresh;
    g.ahead = &t->ahead;
    for (int lane = 0; lane < t->lanes.width; lane++)
        if (rescale[lane] != 1.0f)
            g.scale = rescale;
    set_columns(&g, s->sum, t->row->lanes);
    t->row->gemm(&g);
}

/* A block of values that may hold NaN or Inf where some rows exclude the key: a copy with 0 in
 * their place goes through the ordinary product, where 0 changes nothing, and what was taken out is
 * added for the rows that do see the key. */
static void weigh_carefully(struct tile *t, int64_t start, int count, const struct segment *s,
                            int fresh, const float *rescale, int has_bias)
{
    const int64_t size = t->p->value_size;
    const int width = t->lanes.width;

    for (int j = 0; j < count; j++) {
        const float *value = value_at(t->p, &t->lanes, start + j);
        for (int64_t d = 0; d < size; d++)
            t->clean[j * size + d] = isfinite(value[d]) ? value[d] * t->shrink : 0.0f;
    }
    weigh(t, t->clean, size, count, s, fresh, rescale);
    for (int j = 0; j < count; j++) {
        const float *value = value_at(t->p, &t->lanes, start + j);
        for (int64_t d = 0; d < size; d++) {
            if (isfinite(value[d]))
                continue;
            for (int lane = 0; lane < t->lanes.n; lane++) {
                const ptrdiff_t at = (ptrdiff_t)j * width + lane;
                const int valid = start + j >= t->lanes.first[lane] &&
                                  start + j < t->lanes.last[lane] &&
                                  !(has_bias && t->bias[at] == -INFINITY);
                if (valid)
                    s->sum[d * width + lane] =
                        fmaf(value[d], t->scores[at], s->sum[d * width + lane]);
            }
        }
    }
}

/* Ranges relative to the block, or none when every lane sees every key of it. */
static int block_ranges(const struct tile *t, int64_t start, int count)
{
    const struct headway_lanes *l = &t->lanes;
    if (l->first_max <= start && l->last_min >= start + count)
        return 0;
    for (int lane = 0; lane < l->width; lane++) {
        const int64_t first = l->first[lane] - start, last = l->last[lane] - start;
        t->first[lane] = (int32_t)(first < 0 ? 0 : first > count ? count : first);
        t->last[lane] = (int32_t)(last < 0 ? 0 : last > count ? count : last);
    }
    return 1;
}

/* One segment from a fresh state; returns 0 when no block of it was seen by any lane. */
static int attend_segment(struct tile *t, int64_t begin, int64_t end, const struct segment *s)
{
    float rescale[HEADWAY_MAX_WIDTH];
    int fresh = 1;

    for (int lane = 0; lane < t->lanes.width; lane++) {
        s->top[lane] = -INFINITY;
        s->total[lane] = 0.0f;
    }
    for (int64_t block = begin; block < end; block += HEADWAY_KEY_BLOCK) {
        const int64_t stop = block + HEADWAY_KEY_BLOCK < end ? block + HEADWAY_KEY_BLOCK : end;
        int64_t start = block > t->lanes.first_min ? block : t->lanes.first_min;
        int count = (int)((stop < t->lanes.last_max ? stop : t->lanes.last_max) - start);
        if (count <= 0)
            continue;
        const enum headway_block kind =
            headway_mask_block(t->p, t->row, &t->lanes, &start, &count, t->lines, t->bias);
        if (kind == HEADWAY_BLOCK_SKIP)
            continue;
        scores_of(t, start, count);
        const int ranged = block_ranges(t, start, count);
        const int has_bias = kind == HEADWAY_BLOCK_BIAS;
        const struct headway_softmax softmax = {.keys = count,
                                                .vectors = t->vectors,
                                                .scores = t->scores,
                                                .bias = has_bias ? t->bias : NULL,
                                                .first = ranged ? t->first : NULL,
                                                .last = ranged ? t->last : NULL,
                                                .row_max = s->top,
                                                .row_sum = s->total,
                                                .rescale = rescale};
        t->row->softmax(&softmax);
        if (t->careful)
            weigh_carefully(t, start, count, s, fresh, rescale, has_bias);
        else
            weigh(t, value_at(t->p, &t->lanes, start), t->p->value.row, count, s, fresh, rescale);
        fresh = 0;
    }
    return !fresh;
}

/* All segments in order, merged into `whole`; returns 0 when nothing was seen. */
static int attend_keys(struct tile *t, const struct segment *whole, const struct segment *later)
{
    int seen = 0;
    int64_t begin = t->lanes.first_min / HEADWAY_SEGMENT_KEYS * HEADWAY_SEGMENT_KEYS;
    for (; begin < t->lanes.last_max; begin += HEADWAY_SEGMENT_KEYS) {
        const int64_t end = begin + HEADWAY_SEGMENT_KEYS;
        if (!seen) {
            seen = attend_segment(t, begin, end, whole);
        } else if (attend_segment(t, begin, end, later)) {
            const struct headway_merge merge = {.m = t->p->value_size,
                                                .vectors = t->vectors,
                                                .sum = whole->sum,
                                                .row_max = whole->top,
                                                .row_sum = whole->total,
                                                .later = later->sum,
                                                .later_max = later->top,
                                                .later_sum = later->total};
            t->row->merge(&merge);
        }
    }
    return seen;
}

/* log(sum exp) = top * 2 ln 2 + ln(total), in double and rounded once. */
static void write_lse(const struct headway_problem *p, const struct headway_lanes *l,
                      const struct segment *s, int seen)
{
    float *lse[HEADWAY_MAX_WIDTH];
    lines_of(p, l, &p->lse, lse);
    for (int lane = 0; lane < l->n; lane++)
        *lse[lane] = seen ? headway_lse(s->top[lane], s->total[lane]) : -INFINITY;
}

/* Sums of large values overflow where the weighted mean is a float: those elements are computed
 * again from values made smaller. */
static void attend_shrunk(struct tile *t, const struct segment *whole, const struct segment *later)
{
    const int64_t size = t->p->value_size;
    float *lines[HEADWAY_MAX_WIDTH];

    t->shrink = SHRINK;
    attend_keys(t, whole, later);
    for (int lane = 0; lane < t->lanes.n; lane++)
        lines[lane] = t->clean + lane * size;
    t->row->unpack(lines, t->lanes.n, whole->sum, t->lanes.width, size, whole->total);
    for (int lane = 0; lane < t->lanes.n; lane++)
        for (int64_t d = 0; d < size; d++)
            if (!isfinite(t->lines_ahead[lane][d]))
                t->lines_ahead[lane][d] = lines[lane][d] / SHRINK;
}

static void write_out(struct tile *t, const struct segment *whole, const struct segment *later)
{
    const struct headway_problem *p = t->p;
    const struct headway_lanes *l = &t->lanes;
    const int seen = attend_keys(t, whole, later);

    if (!seen)
        for (int lane = 0; lane < l->width; lane++)
            whole->total[lane] = 0.0f;
    if (!seen || p->value_size == 0) {
        for (int lane = 0; lane < l->n; lane++)
            for (int64_t d = 0; d < p->value_size; d++)
                t->lines_ahead[lane][d] = 0.0f;
    } else if (t->row->unpack(t->lines_ahead, l->n, whole->sum, l->width, p->value_size,
                              whole->total)) {
        t->careful = 1;
        attend_keys(t, whole, later);
        if (t->row->unpack(t->lines_ahead, l->n, whole->sum, l->width, p->value_size, whole->total))
            attend_shrunk(t, whole, later);
    }
    if (p->lse.data)
        write_lse(p, l, whole, seen);
}

/* Where task `task` stands; 0 when its rows all lie beyond the query length. */
static int place(const struct headway_attend_run *run, int64_t task, struct headway_lanes *l)
{
    const struct headway_problem *p = run->problem;
    const struct headway_attend_plan *plan = run->plan;
    const int lanes = run->row->lanes;
    /* Causal tiles are handed out longest first, so that no long one is left for the end. */
    int64_t tile = task % plan->tiles;
    if (p->causal)
        tile = plan->tiles - 1 - tile;
    l->kv_head = task / plan->tiles % p->kv_heads;
    l->b = task / plan->tiles / p->kv_heads;
    l->start = tile * plan->vectors / plan->tiles * lanes;
    const int64_t live = headway_query_length(p, l->b) * p->group;
    int64_t stop = (tile + 1) * plan->vectors / plan->tiles * lanes;
    stop = stop < live ? stop : live;
    if (stop <= l->start)
        return 0;
    l->n = (int)(stop - l->start);
    l->width = (l->n + lanes - 1) / lanes * lanes;
    return 1;
}

/* What a tile touches for the first time it would wait for: its outputs, the next tile's queries,
 * and its share of the next head's keys and values. The products ask for them on the way. A head of
 * one block is over before asking for another pays. */
static void look_ahead(const struct headway_attend_run *run, int64_t task, struct tile *t)
{
    const struct headway_problem *p = run->problem;
    const int64_t tiles = run->plan->tiles;
    struct headway_ahead *ahead = &t->ahead;
    struct headway_lanes next;

    ahead->lines = t->lines_ahead;
    ahead->at = 0;
    ahead->count = t->lanes.n;
    ahead->floats = p->size > p->value_size ? p->size : p->value_size;
    if (task + 1 < run->plan->tasks && place(run, task + 1, &next)) {
        lines_of(p, &next, &p->query, t->lines_ahead + ahead->count);
        ahead->count += next.n;
    }
    const int64_t head = task / tiles + 1;
    if (p->keys <= HEADWAY_KEY_BLOCK || head >= p->batch * p->kv_heads)
        return;
    next.kv_head = head % p->kv_heads;
    next.b = head / p->kv_heads;
    const int64_t keys = headway_key_length(p, next.b);
    const int64_t from = task % tiles * keys / tiles;
    const int64_t until = (task % tiles + 1) * keys / tiles;
    for (int64_t j = from; j < until && ahead->count + 2 <= 4 * HEADWAY_MAX_WIDTH; j++) {
        t->lines_ahead[ahead->count++] = (float *)key_at(p, &next, j);
        t->lines_ahead[ahead->count++] = (float *)value_at(p, &next, j);
    }
}

void headway_attend_task(void *context, int64_t task, int worker)
{
    const struct headway_attend_run *run = context;
    const struct headway_problem *p = run->problem;
    const struct headway_attend_plan *plan = run->plan;
    float *scratch = run->scratch + (size_t)worker * plan->worker_floats;
    struct tile t;
    float *query[HEADWAY_MAX_WIDTH];

    if (!place(run, task, &t.lanes))
        return;
    headway_mask_ranges(p, &t.lanes);
    t.p = p;
    t.row = run->row;
    t.careful = 0;
    t.shrink = 1.0f;
    t.vectors = t.lanes.width / run->row->lanes;
    t.panel = scratch + plan->panel;
    t.scores = scratch + plan->scores;
    t.bias = scratch + plan->bias;
    t.lines = scratch + plan->lines;
    t.clean = scratch + plan->clean;
    t.first = (int32_t *)(void *)(scratch + plan->range);
    t.last = t.first + plan->width;
    float *stats = scratch + plan->stats;
    const struct segment whole = {scratch + plan->sum, stats, stats + plan->width};
    const struct segment later = {scratch + plan->later, stats + 2 * plan->width,
                                  stats + 3 * plan->width};

    lines_of(p, &t.lanes, &p->query, query);
    lines_of(p, &t.lanes, &p->out, t.lines_ahead);
    run->row->pack(t.panel, t.lanes.width, (const float *const *)query, t.lanes.n, p->size,
                   p->scale);
    look_ahead(run, task, &t);
    write_out(&t, &whole, &later);
}
