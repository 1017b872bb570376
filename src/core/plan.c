#include "core/plan.h"

#include <stdio.h>

#include "core/attend.h"
#include "system/memory.h"

/* Work that another thread must save to be worth waking: about 20 us of one core. */
#define GRAIN_FLOPS 2000000.0
/* Tasks for each thread, so that tiles of different cost even out. */
#define TASKS_PER_THREAD 2
/* Tokens of a block come in multiples of this, which the tile heights of every row divide. */
#define BLOCK_ROWS 24

int headway_threads_for(double flops, int threads)
{
    const double useful = flops / GRAIN_FLOPS + 1.0;
    return useful < threads ? (int)useful : threads;
}

static double flops_of(const struct headway_problem *p)
{
    return 2.0 * (double)p->batch * (double)p->heads * (double)p->query_rows * (double)p->keys *
           (double)(p->size + p->value_size);
}

/* Floats that one lane of a tile needs at hand: query, scores and sums. */
static int64_t lane_floats(const struct headway_problem *p)
{
    return p->size + p->value_size + HEADWAY_KEY_BLOCK;
}

/* Vectors of the widest tile: all that the row has, fewer where a tile would fill more than half of
 * level 2, which keys and values pass through. */
static int64_t tile_vectors(const struct headway_problem *p, const struct headway_machine *machine,
                            const char **why)
{
    const int64_t room = machine->level2 / 2 / (int64_t)sizeof(float) / machine->row->lanes;
    const int64_t fit = room / lane_floats(p);
    *why = "as wide as the row's kernels are";
    if (fit >= machine->row->vectors)
        return machine->row->vectors;
    *why = "as wide as half of level 2 holds";
    return fit > 1 ? fit : 1;
}

static int plan_scratch(const struct headway_problem *p, struct headway_attend_plan *plan)
{
    const int64_t w = plan->width;
    const int64_t masked = p->mask.kind != HEADWAY_MASK_NONE ? HEADWAY_KEY_BLOCK : 0;
    const int64_t merged = p->keys > HEADWAY_SEGMENT_KEYS ? p->value_size : 0;
    int64_t end = 0;
    const int ok = headway_reserve(&plan->panel, &end, p->size, w) &&
                   headway_reserve(&plan->scores, &end, HEADWAY_KEY_BLOCK, w) &&
                   headway_reserve(&plan->bias, &end, masked, w) &&
                   headway_reserve(&plan->lines, &end, masked, w) &&
                   headway_reserve(&plan->sum, &end, p->value_size, w) &&
                   headway_reserve(&plan->later, &end, merged, w) &&
                   headway_reserve(&plan->stats, &end, 4, w) &&
                   headway_reserve(&plan->range, &end, 2, w) &&
                   headway_reserve(&plan->clean, &end, HEADWAY_KEY_BLOCK, p->value_size);
    plan->worker_floats = (size_t)end;
    return ok;
}

int headway_attend_plan(const struct headway_problem *problem,
                        const struct headway_machine *machine, struct headway_attend_plan *plan)
{
    const int lanes = machine->row->lanes;
    const int threads = headway_threads_for(flops_of(problem), machine->threads);
    int64_t rows, heads;
    if (!headway_mul(problem->query_rows, problem->group, &rows) ||
        !headway_mul(problem->batch, problem->kv_heads, &heads))
        return -1;
    plan->vectors = headway_divide_up(rows, lanes);
    plan->tiles = headway_divide_up(plan->vectors, tile_vectors(problem, machine, &plan->why));
    const int64_t wanted = threads > 1 && heads > 0
                               ? headway_divide_up((int64_t)threads * TASKS_PER_THREAD, heads)
                               : 1;
    if (plan->tiles < headway_at_most(wanted, plan->vectors)) {
        plan->tiles = headway_at_most(wanted, plan->vectors);
        plan->why = "narrow enough that every thread has work";
    }
    if (!headway_mul(heads, plan->tiles, &plan->tasks))
        return -1;
    if (problem->value_size == 0 && !problem->lse.data)
        plan->tasks = 0; /* nothing is asked for */
    plan->threads = (int)headway_at_most(threads, plan->tasks > 0 ? plan->tasks : 1);
    plan->width =
        lanes * (int)(plan->tiles > 0 ? headway_divide_up(plan->vectors, plan->tiles) : 1);
    return plan_scratch(problem, plan) ? 0 : -1;
}

int headway_attend_bytes(const struct headway_attend_plan *plan, size_t *bytes)
{
    int64_t all;
    if (!headway_mul((int64_t)plan->worker_floats, plan->threads, &all) ||
        !headway_mul(all, (int64_t)sizeof(float), &all))
        return -1;
    *bytes = (size_t)all;
    return 0;
}

int headway_attend_words(const struct headway_problem *problem,
                         const struct headway_machine *machine,
                         const struct headway_attend_plan *plan, char *text, size_t size)
{
    return snprintf(
        text, size,
        "attention: row %s, path fused tiles (lanes are query rows x the %lld heads of a group)\n"
        "  tile: %d query rows, %s; query, scores and sums take %lld of level 2's %lld bytes\n"
        "  keys in blocks of %d and segments of %d, the constants of the arithmetic\n"
        "  tasks: %lld = %lld batch x %lld kv heads x %lld query tiles, on %d of %d threads\n"
        "  workspace: %zu bytes for each thread\n",
        machine->row->name, (long long)problem->group, plan->width, plan->why,
        (long long)(lane_floats(problem) * plan->width * (int64_t)sizeof(float)),
        (long long)machine->level2, HEADWAY_KEY_BLOCK, HEADWAY_SEGMENT_KEYS, (long long)plan->tasks,
        (long long)problem->batch, (long long)problem->kv_heads, (long long)plan->tiles,
        plan->threads, machine->threads, plan->worker_floats * sizeof(float));
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
