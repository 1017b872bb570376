/* Attention for one query tile, with the lanes of the vectors running over query rows (times the
 * heads of a KV group): only the queries are transposed in and the outputs out. */
#include <math.h>

#include "core/lse.h"
#include "core/tile.h"
#include "cpu/exp_poly.h"
#include "system/parallel.h"

/* Keeps sums of 2^32 values of any size from overflowing. */
#define SHRINK 0x1p-32f
/* What passes by once comes from memory where there are more keys than these. */
#define STREAMED_KEYS 512

void headway_lane_offsets(const struct headway_lanes *l, int64_t shift, ptrdiff_t batch,
                          ptrdiff_t row, ptrdiff_t head, ptrdiff_t *offset)
{
    if (l->group == 1) {
        const ptrdiff_t at = l->b * batch + (shift + l->start) * row + l->head * head;
        for (int lane = 0; lane < l->n; lane++)
            offset[lane] = at + lane * row;
        return;
    }
    int64_t within = l->start % l->group;
    ptrdiff_t at = l->b * batch + (shift + l->start / l->group) * row + (l->head + within) * head;
    for (int lane = 0; lane < l->n; lane++) {
        offset[lane] = at;
        at += head;
        if (++within == l->group) {
            within = 0;
            at += row - l->group * head;
        }
    }
}

void headway_lane_lines(const struct headway_lanes *l, const struct headway_view *view,
                        float **lines)
{
    ptrdiff_t offset[HEADWAY_MAX_WIDTH];
    headway_lane_offsets(l, l->query_start, view->batch, view->row, view->head, offset);
    for (int lane = 0; lane < l->n; lane++)
        lines[lane] = view->data + offset[lane];
}

/* log(sum exp) = top * 2 ln 2 + ln(total), in double and rounded once. Where the sink is all that
 * counts it is the sink itself. */
static void write_lse(const struct headway_tile *t, int seen)
{
    const struct headway_lanes *l = &t->lanes;
    const struct headway_state *s = &t->whole;
    float *lse[HEADWAY_MAX_WIDTH];
    headway_lane_lines(l, &t->p->lse, lse);
    for (int lane = 0; lane < l->n; lane++) {
        const float sink = t->p->sinks ? t->p->sinks[headway_lane_head(l, lane)] : -INFINITY;
        const int alone =
            !seen || (s->total[lane] == 1.0f && s->top[lane] == sink * HEADWAY_EXP_UNIT);
        *lse[lane] = alone ? sink : headway_lse(s->top[lane], s->total[lane]);
    }
}

/* Sums of large values overflow where the weighted mean is a float: those elements are computed
 * again from values made smaller. */
static void attend_shrunk(struct headway_tile *t)
{
    const int64_t size = t->p->value_size;
    float *lines[HEADWAY_MAX_WIDTH];

    t->shrink = SHRINK;
    headway_tile_attend(t);
    for (int lane = 0; lane < t->lanes.n; lane++)
        lines[lane] = t->clean + lane * size;
    t->row->unpack(lines, t->lanes.n, t->whole.sum, t->lanes.width, size, t->whole.total);
    for (int lane = 0; lane < t->lanes.n; lane++)
        for (int64_t d = 0; d < size; d++)
            if (!isfinite(t->out[lane][d]))
                t->out[lane][d] = lines[lane][d] / SHRINK;
}

static int unpack(const struct headway_tile *t)
{
    return t->row->unpack(t->out, t->lanes.n, t->whole.sum, t->lanes.width, t->p->value_size,
                          t->whole.total);
}

static void attend(struct headway_tile *t)
{
    const struct headway_problem *p = t->p;
    const struct headway_lanes *l = &t->lanes;
    const int seen = headway_tile_attend(t);

    if (!seen || p->value_size == 0) {
        for (int lane = 0; lane < l->n; lane++)
            for (int64_t d = 0; d < p->value_size; d++)
                t->out[lane][d] = 0.0f;
    } else if (unpack(t)) {
        t->careful = 1;
        headway_tile_attend(t);
        if (unpack(t))
            attend_shrunk(t);
    }
    if (p->lse.data)
        write_lse(t, seen);
    if (p->weights.data)
        headway_tile_weights(t, seen);
}

/* Where wide tile `tile` begins. Problems of one tile are the small ones, which divisions cost most. */
static int64_t first_vector(const struct headway_cut *cut, int64_t tile)
{
    return cut->wide == 1 ? tile * cut->vectors : tile * cut->vectors / cut->wide;
}

static void place_tile(const struct headway_attend_run *run, int64_t index, struct headway_lanes *l)
{
    const struct headway_cut *cut = &l->cut;
    const int lanes = run->machine->row->lanes;
    /* Causal tiles are handed out longest first, so that no long one is left for the end. */
    const int64_t tile = run->problem->causal ? cut->tiles - 1 - index : index;
    const int wide = tile < cut->wide;
    l->tile = index;
    l->row = wide ? run->machine->row : run->machine->narrow;
    l->start = wide ? first_vector(cut, tile) * lanes : cut->vectors * lanes;
    l->width = wide ? (int)(first_vector(cut, tile + 1) * lanes - l->start) : l->row->lanes;
    l->n = (int)headway_at_most(l->live - l->start, l->width);
}

/* Where tile `tile` of `unit`, a batch's unit, stands; 0 when its rows all lie beyond the query
 * length. */
static int place_at(const struct headway_attend_run *run, int64_t unit, int64_t tile,
                    struct headway_lanes *l)
{
    const struct headway_problem *p = run->problem;
    const struct headway_attend_plan *plan = run->plan;
    l->b = unit / plan->units;
    l->head = unit % plan->units * plan->group;
    l->group = plan->group;
    l->query_start = p->query_starts ? p->query_starts[l->b] : 0;
    l->key_start = p->key_starts ? p->key_starts[l->b] : 0;
    l->live = headway_query_length(p, l->b) * l->group;
    l->cut = l->live == p->query_rows * l->group
                 ? plan->cut
                 : headway_cut_lanes(run->machine, l->live, plan->widest);
    if (tile >= l->cut.tiles)
        return 0;
    place_tile(run, tile, l);
    return 1;
}

static int place(const struct headway_attend_run *run, int64_t task, struct headway_lanes *l)
{
    return place_at(run, task / run->plan->tiles, task % run->plan->tiles, l);
}

/* The lanes to come after l, of the same task or the next one that has any. */
static int place_next(const struct headway_attend_run *run, int64_t task,
                      const struct headway_lanes *l, struct headway_lanes *next)
{
    const int same_task = run->problem->mean_weights && l->head + 1 < run->problem->heads;
    if (same_task || l->tile + 1 < l->cut.tiles) {
        next->b = l->b;
        next->head = l->head + same_task;
        next->group = l->group;
        next->live = l->live;
        next->cut = l->cut;
        next->query_start = l->query_start;
        next->key_start = l->key_start;
        place_tile(run, l->tile + !same_task, next);
        return 1;
    }
    for (int64_t i = 1; i <= run->plan->tiles && task + i < run->plan->tasks; i++)
        if (place(run, task + i, next))
            return 1;
    return 0;
}

static void ask_for_mask(const struct headway_problem *p, struct headway_lanes *next,
                         struct headway_tile *t)
{
    const unsigned char *lines[HEADWAY_MAX_WIDTH];
    headway_mask_ranges(p, next);
    const int used = headway_mask_lines(p, next, next->first_min, lines);
    for (int lane = 0; lane < used; lane++)
        t->lines_ahead[t->ahead.count++] = (float *)(void *)lines[lane];
}

/* This tile's share of the keys and values of the head after its own. */
static void ask_for_keys(const struct headway_problem *p, struct headway_tile *t, int most)
{
    const struct headway_lanes *l = &t->lanes;
    int64_t b = l->b, head = l->head / p->group + 1;
    if (head == p->kv_heads) {
        head = 0;
        b++;
    }
    if (b == p->batch)
        return;
    const int64_t keys = headway_key_length(p, b);
    const int64_t start = p->key_starts ? p->key_starts[b] : 0;
    const int64_t from = start + l->tile * keys / l->cut.tiles;
    const int64_t until = start + (l->tile + 1) * keys / l->cut.tiles;
    const float *key = p->key.data + b * p->key.batch + head * p->key.head;
    const float *value = p->value.data + b * p->value.batch + head * p->value.head;
    for (int64_t j = from; j < until && t->ahead.count + 2 <= most; j++) {
        t->lines_ahead[t->ahead.count++] = (float *)key + j * p->key.row;
        t->lines_ahead[t->ahead.count++] = (float *)value + j * p->value.row;
    }
}

/* What a tile touches for the first time it would wait for: its outputs, the next tile's queries and
 * mask, and its share of the next head's keys and values. The products ask for them on the way. A
 * head of one block is over before asking for another pays. */
static void look_ahead(const struct headway_attend_run *run, int64_t task, struct headway_tile *t)
{
    const struct headway_problem *p = run->problem;
    struct headway_ahead *ahead = &t->ahead;
    struct headway_lanes next;

    for (int lane = 0; lane < t->lanes.n; lane++)
        t->lines_ahead[lane] = t->out[lane];
    ahead->count = t->lanes.n;
    ahead->floats = p->size > p->value_size ? p->size : p->value_size;
    if (place_next(run, task, &t->lanes, &next)) {
        headway_lane_lines(&next, &p->query, t->lines_ahead + ahead->count);
        ahead->count += next.n;
        if (p->mask.kind != HEADWAY_MASK_NONE && p->mask.key == 1)
            ask_for_mask(p, &next, t);
    }
    if (p->keys > HEADWAY_KEY_BLOCK && !p->mean_weights && !p->cached.store && !t->few.row)
        ask_for_keys(p, t, 4 * HEADWAY_MAX_WIDTH);
}

/* Lanes are few when they are all there are of their head. */
static void set_up_few(const struct headway_attend_run *run, float *scratch, struct headway_tile *t)
{
    const struct headway_attend_plan *plan = run->plan;
    struct headway_few *few = &t->few;
    const void **rows = (const void **)(void *)(scratch + plan->rows);
    float *scales = (float *)(void *)(rows + 4 * HEADWAY_KEY_BLOCK);

    few->row = headway_attend_few(&t->lanes.cut, t->lanes.n) ? run->machine->row : NULL;
    few->scores = scratch + plan->few_scores;
    few->sum = scratch + plan->few;
    few->pitch = headway_few_pitch(t->p->value_size);
    few->next_b = -1;
    for (int which = HEADWAY_KEYS; which <= HEADWAY_VALUES; which++) {
        few->rows[which] = rows + 2 * which * HEADWAY_KEY_BLOCK;
        few->scale[which] = scales + which * HEADWAY_KEY_BLOCK;
    }
}

/* The tile's place among those whose segments are kept. */
static int64_t kept_at(const struct headway_attend_plan *plan, const struct headway_lanes *l,
                       int worker)
{
    if (plan->united)
        return worker * plan->kept + (plan->shared ? l->b : 0) * plan->tiles + l->tile;
    return (l->b * plan->units + l->head / plan->group) * plan->tiles + l->tile;
}

static void set_up(const struct headway_attend_run *run, int worker, struct headway_tile *t)
{
    const struct headway_problem *p = run->problem;
    const struct headway_attend_plan *plan = run->plan;
    float *scratch = run->scratch + (size_t)worker * plan->worker_floats;
    float *stats = scratch + plan->stats;

    t->p = p;
    t->row = t->lanes.row;
    t->vectors = t->lanes.width / t->row->lanes;
    t->panel = scratch + plan->panel;
    t->scores = scratch + plan->scores;
    t->clean = scratch + plan->clean;
    t->mask.allowed = (uint64_t *)(void *)(scratch + plan->allowed);
    t->mask.bias = scratch + plan->bias;
    t->mask.lines = scratch + plan->lines;
    t->mask.ahead.count = 0;
    t->whole.sum = scratch + plan->sum;
    t->whole.top = stats;
    t->whole.total = stats + plan->width;
    t->later.sum = scratch + plan->later;
    t->later.top = stats + 2 * plan->width;
    t->later.total = stats + 3 * plan->width;
    t->inverse_cap = p->softcap > 0.0f ? 1.0f / p->softcap : 0.0f;
    t->widened[HEADWAY_KEYS] = scratch + plan->widened[HEADWAY_KEYS];
    t->widened[HEADWAY_VALUES] = scratch + plan->widened[HEADWAY_VALUES];
    t->segments = plan->stored == 0
                      ? NULL
                      : run->scratch + plan->threads * plan->worker_floats +
                            (size_t)kept_at(plan, &t->lanes, worker) * plan->tile_floats;
    t->stored = plan->stored;
    set_up_few(run, scratch, t);
}

static void pack_queries(const struct headway_attend_plan *plan, struct headway_tile *t)
{
    float *query[HEADWAY_MAX_WIDTH];
    t->careful = 0;
    t->shrink = 1.0f;
    t->ahead.at = t->ahead.count = 0;
    t->ahead.lines = t->lines_ahead;
    t->streams = t->ahead.all =
        (t->lanes.cut.tiles == 1 || plan->together) && t->p->keys > STREAMED_KEYS && !t->few.row;
    headway_lane_lines(&t->lanes, &t->p->query, query);
    t->row->pack(t->panel, t->lanes.width, (const float *const *)query, t->lanes.n, t->p->size,
                 t->p->scale);
    if (t->p->slopes)
        headway_tile_slopes(t);
}

/* Tasks are taken in turn, so that the worker probably comes to the one as many further as there are
 * workers. Where a window will begin is not looked for. */
static void look_for_next_head(const struct headway_attend_run *run, int64_t task,
                               struct headway_tile *t)
{
    const struct headway_problem *p = run->problem;
    const struct headway_attend_plan *plan = run->plan;
    const int64_t next = (task + plan->threads) / plan->tiles;
    if (task + plan->threads >= plan->tasks || p->window_left != INT64_MAX || p->mean_weights)
        return;
    t->few.next_b = next / plan->units;
    t->few.next_head = next % plan->units;
    t->few.next_first = p->key_starts ? p->key_starts[t->few.next_b] : 0;
}

static void attend_head(const struct headway_attend_run *run, int64_t task, struct headway_tile *t)
{
    pack_queries(run->plan, t);
    headway_lane_lines(&t->lanes, &t->p->out, t->out);
    if (run->plan->ahead)
        look_ahead(run, task, t);
    look_for_next_head(run, task, t);
    attend(t);
}

static void attend_task(void *context, int64_t task, int worker)
{
    const struct headway_attend_run *run = context;
    const struct headway_problem *p = run->problem;
    struct headway_tile t;

    if (!place(run, task, &t.lanes))
        return;
    set_up(run, worker, &t);
    headway_mask_ranges(p, &t.lanes);
    if (!p->mean_weights) {
        attend_head(run, task, &t);
        return;
    }
    headway_mean_begin(p, &t.lanes);
    for (t.lanes.head = 0; t.lanes.head < p->heads; t.lanes.head++)
        attend_head(run, task, &t);
    headway_mean_end(p, &t.lanes);
}

/* Segments first .. last - 1 of a unit's tiles. */
static void store_segments(const struct headway_attend_run *run, int64_t unit, int64_t first,
                           int64_t last, int worker)
{
    struct headway_tile t;
    for (int64_t tile = 0; tile < run->plan->tiles; tile++) {
        if (!place_at(run, unit, tile, &t.lanes))
            continue;
        set_up(run, worker, &t);
        headway_mask_ranges(run->problem, &t.lanes);
        pack_queries(run->plan, &t);
        headway_tile_segments(&t, first, last);
    }
}

static void early_task(void *context, int64_t task, int worker)
{
    const struct headway_attend_run *run = context;
    const struct headway_attend_plan *plan = run->plan;
    const int64_t unit = task / plan->pieces, piece = task % plan->pieces;
    const int64_t first = piece * plan->stored / plan->pieces;
    const int64_t last = (piece + 1) * plan->stored / plan->pieces;

    /* Segment by segment where several tiles see it: all but the first find it in the cache. */
    const int64_t step = plan->shared || plan->together ? 1 : last - first;
    const int64_t sequences = plan->shared ? run->problem->batch : 1;
    for (int64_t segment = first; segment < last; segment += step)
        for (int64_t i = 0; i < sequences; i++)
            store_segments(run, i * plan->units + unit, segment, segment + step, worker);
    for (int64_t i = 0; plan->united && i < sequences; i++)
        for (int64_t tile = 0; tile < plan->tiles; tile++)
            attend_task(context, (i * plan->units + unit) * plan->tiles + tile, worker);
}

void headway_attend(const struct headway_attend_run *run)
{
    const struct headway_attend_plan *plan = run->plan;
    const struct headway_team *team = &run->machine->team;
    if (plan->early_tasks > 0)
        headway_parallel(team, plan->threads, plan->early_tasks, early_task, (void *)run);
    if (!plan->united)
        headway_parallel(team, plan->threads, plan->tasks, attend_task, (void *)run);
}
