#include "core/plan.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/attend.h"
#include "system/memory.h"

/* Work for which another thread is worth its while: about 5 us of one core. A region takes about half
 * a microsecond where calls follow each other. */
#define GRAIN_FLOPS 500000.0
/* What a head costs beside its products, in operations that take as long. */
#define HEAD_FLOPS 30000.0
/* Tasks for each thread, so that tiles of different cost even out. */
#define TASKS_PER_THREAD 2
/* Lanes of the narrowest tile that is worth its overhead. */
#define NARROWEST 16
/* Tokens of a block come in multiples of this, which the tile heights of every row divide. */
#define BLOCK_ROWS 24
/* Lanes of a head up to which the states of a segment are a small part of its keys and values. */
#define MOST_STORED_LANES 128

int headway_threads_for(double flops, int threads)
{
    const double useful = flops / GRAIN_FLOPS + 1.0;
    return useful < threads ? (int)useful : threads;
}

/* How far a row sees to each side of its place, at most all keys. */
static double reach_left(const struct headway_problem *p)
{
    return (double)headway_at_most(p->window_left, p->keys);
}

static double reach_right(const struct headway_problem *p)
{
    return p->causal ? 0.0 : (double)headway_at_most(p->window_right, p->keys);
}

/* Pairs of a query row and a key that causality and window leave, roughly: rows near the ends count
 * as all others. Offsets are taken as bottom right. */
static double pairs_of(const struct headway_problem *p, double rows, double keys)
{
    const double window = reach_left(p) + reach_right(p) + 1.0;
    if (p->causal && window >= keys) {
        const double most = p->offsets || p->bottom_right || rows > keys ? keys : rows;
        const double least = most > rows ? most - rows : 0.0;
        return rows * (most + least) / 2.0;
    }
    return rows * (window < keys ? window : keys);
}

static double flops_of(const struct headway_problem *p)
{
    double pairs = 0.0;
    if (p->query_starts)
        for (int64_t b = 0; b < p->batch; b++)
            pairs += pairs_of(p, (double)(p->query_starts[b + 1] - p->query_starts[b]),
                              (double)headway_key_length(p, b));
    else
        pairs = (double)p->batch * pairs_of(p, (double)p->query_rows, (double)p->keys);
    const double products = (double)(p->size * (p->weights.data ? 2 : 1) + p->value_size);
    return (double)p->heads * (2.0 * pairs * products + (double)p->batch * HEAD_FLOPS);
}

/* Floats that one lane of a tile needs at hand: query, scores and sums. */
static int64_t lane_floats(const struct headway_problem *p)
{
    return p->size + p->value_size + HEADWAY_KEY_BLOCK;
}

/* Vectors of the widest tile that fits: all that the row has, fewer where a tile would fill more
 * than half of level 2, which keys and values pass through. */
static int64_t vectors_that_fit(const struct headway_problem *p,
                                const struct headway_machine *machine, const char **why)
{
    const int64_t room = machine->level2 / 2 / (int64_t)sizeof(float) / machine->row->lanes;
    const int64_t fit = room / lane_floats(p);
    *why = "as wide as the row's kernels are";
    if (fit >= machine->row->vectors)
        return machine->row->vectors;
    *why = "as wide as half of level 2 holds";
    return fit > 1 ? fit : 1;
}

/* What a pair of a row and a key that the row sees costs in tiles of `width` lanes. A tile computes
 * the keys that any of its rows sees: `edges` times its rows more than each row sees by itself. Wide
 * tiles reuse a key more often, which counts like one lane less of overhead in each. */
static double cost_of(double seen, double edges, int64_t group, int64_t width)
{
    const double rows = (double)width / (double)group;
    return (seen + edges * (rows > 1.0 ? rows - 1.0 : 0.0)) * (double)(width + 1) / (double)width;
}

/* Where rows see a part of the keys only, a narrower tile computes less that nobody sees. Below
 * NARROWEST lanes the kernels wait for their operands. */
static int64_t tile_vectors(const struct headway_problem *p, const struct headway_machine *machine,
                            const struct headway_attend_plan *plan, const char **why)
{
    const int64_t lanes = machine->row->lanes, most = vectors_that_fit(p, machine, why);
    const double keys = (double)p->keys, rows = (double)p->query_rows;
    const double edges =
        ((reach_left(p) < keys ? 1.0 : 0.0) + (reach_right(p) < keys ? 1.0 : 0.0)) / 2.0;
    const double seen = rows > 0.0 ? pairs_of(p, rows, keys) / rows : 0.0;
    int64_t best = headway_at_most(most, plan->vectors > 0 ? plan->vectors : 1);
    double least = cost_of(seen, edges, plan->group, best * lanes);
    for (int64_t v = best - 1; v > 0 && v * lanes >= NARROWEST; v--) {
        const double cost = cost_of(seen, edges, plan->group, v * lanes);
        if (cost < least) {
            least = cost;
            best = v;
            *why = "narrow enough that few pairs beside the window or the diagonal are computed";
        }
    }
    return best;
}

static int in_place(const struct headway_problem *p, const struct headway_pool *pool)
{
    return pool->storage == HEADWAY_STORED_F32 && !p->cached.store->first &&
           p->cached.store->page_size % HEADWAY_KEY_BLOCK == 0;
}

/* Keys and values as floats, where a cache has them otherwise; rows, scales and sums of few lanes. */
static int plan_few(const struct headway_problem *p, struct headway_attend_plan *plan, int64_t *end)
{
    const struct headway_store *store = p->cached.store;
    const int64_t keys = store && !in_place(p, &store->key) ? HEADWAY_KEY_BLOCK : 0;
    const int64_t values = store && !in_place(p, &store->value) ? HEADWAY_KEY_BLOCK : 0;
    const int64_t few = headway_at_most(p->query_rows * plan->group, HEADWAY_FEW_LANES);
    const int64_t pointers = 4 * HEADWAY_KEY_BLOCK * (int64_t)(sizeof(void *) / sizeof(float));
    int64_t states;
    return headway_reserve(&plan->widened[0], end, keys, p->size) &&
           headway_reserve(&plan->widened[1], end, values, p->value_size) &&
           headway_reserve(&plan->few, end, few, headway_few_pitch(p->value_size)) &&
           headway_reserve(&plan->few_scores, end, few > HEADWAY_MAX_FEW ? HEADWAY_KEY_BLOCK : 0,
                           plan->width) &&
           headway_reserve(&plan->rows, end, pointers + 2 * HEADWAY_KEY_BLOCK, 1) &&
           headway_mul(p->value_size + 3, plan->width, &states) &&
           headway_mul(states, plan->stored, &states) && (plan->tile_floats = (size_t)states, 1);
}

static int plan_scratch(const struct headway_problem *p, struct headway_attend_plan *plan)
{
    const enum headway_mask_kind kind = p->mask.kind;
    const int64_t w = plan->width;
    const int64_t halves = kind == HEADWAY_MASK_BOOL ? HEADWAY_KEY_BLOCK : 0;
    const int64_t words = halves > 0 || p->window_first > 0 ? HEADWAY_KEY_BLOCK : 0;
    const int64_t added = kind != HEADWAY_MASK_NONE && !halves ? HEADWAY_KEY_BLOCK : 0;
    const int64_t lines =
        added || (p->weights.data && p->mean_weights) ? HEADWAY_KEY_BLOCK : halves / 4;
    const int64_t merged = p->keys > HEADWAY_SEGMENT_KEYS || p->appended ? p->value_size : 0;
    int64_t end = 0;
    const int ok = headway_reserve(&plan->panel, &end, p->size, w) &&
                   headway_reserve(&plan->scores, &end, HEADWAY_KEY_BLOCK, w) &&
                   headway_reserve(&plan->allowed, &end, words, 2) &&
                   headway_reserve(&plan->bias, &end, added, w) &&
                   headway_reserve(&plan->lines, &end, lines, w) &&
                   headway_reserve(&plan->sum, &end, p->value_size, w) &&
                   headway_reserve(&plan->later, &end, merged, w) &&
                   headway_reserve(&plan->stats, &end, 4, w) &&
                   headway_reserve(&plan->clean, &end, HEADWAY_KEY_BLOCK, p->value_size) &&
                   plan_few(p, plan, &end);
    plan->worker_floats = (size_t)end;
    return ok;
}

struct headway_cut headway_cut_lanes(const struct headway_machine *machine, int64_t lanes,
                                     int64_t widest)
{
    const int64_t rest = lanes % machine->row->lanes;
    /* Few lanes in one tile see each key once. */
    const int together = lanes > machine->row->lanes && lanes <= HEADWAY_FEW_LANES &&
                         lanes <= widest * machine->row->lanes;
    const int borrow = machine->narrow && !together && rest > 0 && rest <= machine->narrow->lanes;
    struct headway_cut cut;
    cut.vectors = lanes / machine->row->lanes + (rest > 0 && !borrow);
    cut.wide = headway_divide_up(cut.vectors, widest);
    cut.tiles = cut.wide + borrow;
    return cut;
}

/* Whether everything the call touches may be further away than level 2, from where nobody waits. */
static int looks_ahead(const struct headway_problem *p, const struct headway_machine *machine)
{
    const double sizes = (double)p->size + (double)p->value_size;
    const double lines =
        (double)p->query_rows * (double)p->heads + (double)p->keys * (double)p->kv_heads;
    return p->mask.kind != HEADWAY_MASK_NONE ||
           (double)p->batch * lines * sizes * (double)sizeof(float) > (double)machine->level2 / 2.0;
}

/* How many vectors the widest tile has, at most `most` and few enough for `wanted` tiles. */
static void cut_tiles(const struct headway_problem *p, const struct headway_machine *machine,
                      struct headway_attend_plan *plan, int64_t most, int64_t wanted)
{
    int64_t tiles = headway_divide_up(plan->vectors, most);
    if (tiles < headway_at_most(wanted, plan->vectors)) {
        tiles = headway_at_most(wanted, plan->vectors);
        plan->why = "narrow enough that every thread has work";
    }
    plan->widest = tiles > 0 ? headway_divide_up(plan->vectors, tiles) : 1;
    plan->cut = headway_cut_lanes(machine, p->query_rows * plan->group, plan->widest);
    plan->tiles = plan->cut.tiles;
    /* A shorter sequence may leave a rest where the longest has none. */
    if (machine->narrow && (p->query_lengths || p->query_starts))
        plan->tiles = headway_divide_up(plan->vectors, plan->widest) + 1;
}

/* Several tiles of few rows in all, each of which would wait for all keys and values of its head, as
 * level 2 doesn't hold them. */
static int go_together(const struct headway_problem *p, const struct headway_machine *machine,
                       const struct headway_attend_plan *plan)
{
    const double sizes = (double)p->size + (double)p->value_size;
    return plan->tiles > 1 && plan->vectors <= MOST_STORED_LANES / machine->row->lanes &&
           p->keys >= 2 * HEADWAY_SEGMENT_KEYS && !p->mean_weights &&
           (double)p->keys * sizes * (double)sizeof(float) > (double)machine->level2;
}

/* What is computed before: all segments of tiles too few for the threads, in `pieces` each; or where
 * keys and values should pass by once, those of a prefix that all sequences share, or of several
 * tiles. */
static void plan_early(const struct headway_problem *p, const struct headway_machine *machine,
                       struct headway_attend_plan *plan, int single, int threads)
{
    const int64_t prefix = headway_at_most(p->shared_prefix, p->keys) / HEADWAY_SEGMENT_KEYS;
    plan->shared = p->batch > 1 && prefix > 0 && !p->mean_weights;
    const int64_t groups = plan->shared ? plan->units : p->batch * plan->units;
    const int64_t wanted =
        threads > 1 && groups > 0 ? headway_divide_up(threads * TASKS_PER_THREAD, groups) : 1;
    plan->together = !plan->shared && go_together(p, machine, plan);
    plan->stored = plan->shared ? prefix : 0;
    if (!plan->shared && ((single && !p->mean_weights && wanted > 1) || plan->together))
        plan->stored = headway_divide_up(p->keys, HEADWAY_SEGMENT_KEYS);
    plan->pieces = headway_at_most(wanted, plan->stored);
    plan->early_tasks = plan->pieces * groups;
    plan->united = plan->early_tasks > 0 && wanted == 1;
    plan->kept = !plan->united ? plan->tasks : plan->shared ? p->batch * plan->tiles : plan->tiles;
}

int headway_attend_plan(const struct headway_problem *problem,
                        const struct headway_machine *machine, struct headway_attend_plan *plan)
{
    const int lanes = machine->row->lanes;
    const int threads = headway_threads_for(flops_of(problem), machine->team.threads);
    const int mean = problem->mean_weights;
    int64_t rows, units;
    plan->group = mean ? 1 : problem->group;
    plan->units = mean ? 1 : problem->kv_heads;
    if (!headway_mul(problem->query_rows, plan->group, &rows) ||
        !headway_mul(problem->batch, plan->units, &units))
        return -1;
    plan->vectors = headway_divide_up(rows, lanes);
    const int64_t most = tile_vectors(problem, machine, plan, &plan->why);
    const int single = plan->vectors <= most && problem->keys >= 2 * HEADWAY_SEGMENT_KEYS;
    cut_tiles(problem, machine, plan, most,
              threads > 1 && units > 0 && !single
                  ? headway_divide_up((int64_t)threads * TASKS_PER_THREAD, units)
                  : 1);
    if (!headway_mul(units, plan->tiles, &plan->tasks))
        return -1;
    plan_early(problem, machine, plan, single, threads);
    if (problem->value_size == 0 && !problem->lse.data && !problem->weights.data)
        plan->tasks = 0; /* nothing is asked for */
    if (plan->tasks == 0)
        plan->stored = plan->early_tasks = plan->united = 0;
    const int64_t useful =
        plan->united || plan->early_tasks > plan->tasks ? plan->early_tasks : plan->tasks;
    plan->threads = (int)headway_at_most(threads, useful > 0 ? useful : 1);
    plan->width = lanes * (int)plan->widest;
    plan->ahead = looks_ahead(problem, machine);
    return plan_scratch(problem, plan) ? 0 : -1;
}

int headway_attend_bytes(const struct headway_attend_plan *plan, size_t *bytes)
{
    int64_t all, states;
    if (!headway_mul((int64_t)plan->worker_floats, plan->threads, &all) ||
        !headway_mul((int64_t)plan->tile_floats, plan->kept, &states) ||
        !headway_mul(states, plan->united ? plan->threads : 1, &states) ||
        !headway_add(all, states, &all) || !headway_mul(all, (int64_t)sizeof(float), &all))
        return -1;
    *bytes = (size_t)all;
    return 0;
}

/* Text that grows like snprintf's. */
struct words {
    char *text;
    size_t size;
    int used;
};

__attribute__((format(printf, 2, 3))) static void say(struct words *w, const char *format, ...)
{
    const size_t used = (size_t)w->used < w->size ? (size_t)w->used : w->size;
    va_list arguments;
    va_start(arguments, format);
    w->used += vsnprintf(w->text ? w->text + used : NULL, w->size - used, format, arguments);
    va_end(arguments);
}

/* What the options change. */
static void say_options(struct words *w, const struct headway_problem *p)
{
    static const char *const masks[] = {
        [HEADWAY_MASK_NONE] = "",
        [HEADWAY_MASK_BOOL] = " bool mask (as bits),",
        [HEADWAY_MASK_F32] = " float mask (as it is),",
        [HEADWAY_MASK_F16] = " float16 mask (a block at a time as floats),",
        [HEADWAY_MASK_BF16] = " bfloat16 mask (a block at a time as floats),"};
    const int windowed = p->window_left != INT64_MAX || p->window_right != INT64_MAX;
    const int lengths = p->query_lengths || p->key_lengths;
    if (p->causal || windowed || lengths || p->interval.data || p->mask.kind != HEADWAY_MASK_NONE)
        say(w, "  limits:%s%s%s%s%s blocks of keys that no row of a tile sees are skipped\n",
            lengths ? " lengths," : "", p->causal ? " causality," : "", windowed ? " window," : "",
            p->interval.data ? " intervals," : "", masks[p->mask.kind]);
    if (p->softcap > 0.0f || p->slopes || p->sinks)
        say(w, "  scores:%s%s%s, in the softmax's pass over them\n",
            p->softcap > 0.0f ? " softcap" : "", p->slopes ? " ALiBi" : "",
            p->sinks ? " sinks" : "");
    if (p->appended)
        say(w, "  appended: %d keys for every row, a segment of their own\n", p->appended);
    if (p->query_starts)
        say(w,
            "  packed: %lld sequences of at most %lld rows and %lld keys, each in tiles of its "
            "own\n",
            (long long)p->batch, (long long)p->query_rows, (long long)p->keys);
    if (p->weights.data)
        say(w, "  weights: a second pass over the same blocks, %s\n",
            p->mean_weights ? "added up head by head" : "straight to where they are asked for");
}

int headway_attend_words(const struct headway_problem *problem,
                         const struct headway_machine *machine,
                         const struct headway_attend_plan *plan, char *text, size_t size)
{
    struct words w = {text, size, 0};
    say(&w,
        "attention: row %s, path %s (lanes are query rows x the %lld heads of a group)\n"
        "  tile: %d query rows, %s; query, scores and sums take %lld of level 2's %lld bytes\n"
        "  keys in blocks of %d and segments of %d, the constants of the arithmetic\n",
        machine->row->name,
        headway_attend_few(&plan->cut, problem->query_rows * plan->group)
            ? "few rows, keys as they lie"
            : "fused tiles",
        (long long)plan->group, plan->width, plan->why,
        (long long)(lane_floats(problem) * plan->width * (int64_t)sizeof(float)),
        (long long)machine->level2, HEADWAY_KEY_BLOCK, HEADWAY_SEGMENT_KEYS);
    if (machine->narrow)
        say(&w, "  a rest of up to %d query rows: row %s, whose vectors are no wider\n",
            machine->narrow->lanes, machine->narrow->name);
    say_options(&w, problem);
    if (plan->early_tasks > 0)
        say(&w, "  before: %lld tasks on %lld segments of keys%s\n", (long long)plan->early_tasks,
            (long long)plan->stored,
            plan->shared     ? ", which all sequences share"
            : plan->together ? ", which a head's tiles go through together"
                             : "");
    say(&w,
        "  tasks: %lld = %lld batch x %lld %s x %lld query tiles, on %d of %d threads\n"
        "  workspace: %zu bytes for each thread\n",
        (long long)plan->tasks, (long long)problem->batch, (long long)plan->units,
        problem->mean_weights ? "(each through all heads)" : "kv heads", (long long)plan->tiles,
        plan->threads, machine->team.threads, plan->worker_floats * sizeof(float));
    return w.used;
}

struct headway_linear_plan headway_linear_cut(const struct headway_machine *machine, int64_t tokens,
                                              int64_t inputs)
{
    const int64_t floats = machine->level2 / (int64_t)sizeof(float);
    const int64_t width = (int64_t)machine->row->lanes * machine->row->vectors;
    /* A quarter of level 2 for a piece of a panel, half for a block of tokens. */
    const int64_t depth = floats / 4 / width;
    struct headway_linear_plan plan;
    plan.pieces = headway_divide_up(inputs, depth);
    const int64_t fit = floats / 2 / headway_divide_up(inputs, plan.pieces);
    const int64_t even =
        tokens > 0 ? headway_divide_up(tokens, headway_divide_up(tokens, fit > 1 ? fit : 1)) : 1;
    plan.block_rows = headway_divide_up(even, BLOCK_ROWS) * BLOCK_ROWS;
    plan.blocks = headway_divide_up(tokens, plan.block_rows);
    return plan;
}
