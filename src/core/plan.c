/* How a problem is cut: pure functions of the problem, the row and the number of threads. Results
 * never depend on what is decided here. */
#include "core/attend.h"

#include <stdio.h>

#include "system/memory.h"

/* Work below which another thread costs more to wake than it saves: about 20 us of one core. */
#define GRAIN_FLOPS 2000000.0
/* Tasks per thread that even out tiles of different cost. */
#define TASKS_PER_THREAD 2

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t at_most(int64_t a, int64_t limit)
{
    return a < limit ? a : limit;
}

static double flops_of(const struct headway_problem *p)
{
    return 2.0 * (double)p->batch * (double)p->heads * (double)p->query_rows * (double)p->keys *
           (double)(p->size + p->value_size);
}

/* Reserves `floats` rounded up to a cache line; 0 on overflow. */
static int reserve(size_t *offset, int64_t *end, int64_t lines, int64_t width)
{
    int64_t floats;
    *offset = (size_t)*end;
    return headway_mul(lines, width, &floats) && headway_add(floats, 15, &floats) &&
           headway_add(*end, floats / 16 * 16, end);
}

static int plan_scratch(const struct headway_problem *p, struct headway_attend_plan *plan)
{
    const int64_t w = plan->width;
    const int masked = p->mask.kind != HEADWAY_MASK_NONE;
    int64_t end = 0;
    const int ok =
        reserve(&plan->panel, &end, p->size, w) &&
        reserve(&plan->scores, &end, HEADWAY_KEY_BLOCK, w) &&
        reserve(&plan->bias, &end, masked ? HEADWAY_KEY_BLOCK : 0, w) &&
        reserve(&plan->lines, &end, masked ? HEADWAY_KEY_BLOCK : 0, w) &&
        reserve(&plan->sum, &end, p->value_size, w) &&
        reserve(&plan->later, &end, p->keys > HEADWAY_SEGMENT_KEYS ? p->value_size : 0, w) &&
        reserve(&plan->stats, &end, 4, w) && reserve(&plan->range, &end, 2, w) &&
        reserve(&plan->clean, &end, HEADWAY_KEY_BLOCK, p->value_size);
    plan->worker_floats = (size_t)end;
    return ok;
}

int headway_attend_plan(const struct headway_problem *problem, const struct headway_row *row,
                        int threads, struct headway_attend_plan *plan)
{
    int64_t rows, heads, wanted;
    if (!headway_mul(problem->query_rows, problem->group, &rows) ||
        !headway_mul(problem->batch, problem->kv_heads, &heads))
        return -1;
    const double useful = flops_of(problem) / GRAIN_FLOPS + 1.0;
    if (useful < threads)
        threads = (int)useful;

    plan->vectors = divide_up(rows, row->lanes);
    plan->tiles = divide_up(plan->vectors, row->vectors);
    wanted = threads > 1 && heads > 0 ? divide_up((int64_t)threads * TASKS_PER_THREAD, heads) : 1;
    if (plan->tiles < wanted)
        plan->tiles = at_most(wanted, plan->vectors);
    if (!headway_mul(heads, plan->tiles, &plan->tasks))
        return -1;
    plan->threads = (int)at_most(threads, plan->tasks > 0 ? plan->tasks : 1);
    plan->width = row->lanes * (int)(plan->tiles > 0 ? divide_up(plan->vectors, plan->tiles) : 1);
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

int headway_attend_words(const struct headway_problem *problem, const struct headway_row *row,
                         const struct headway_attend_plan *plan, char *text, size_t size)
{
    return snprintf(
        text, size,
        "attention: row %s, path fused tiles (S^T: lanes are query rows x the %lld heads of a "
        "group)\n"
        "  tile: %d query rows x blocks of %d keys, segments of %d keys (constants of the "
        "arithmetic)\n"
        "  tasks: %lld = %lld batch x %lld kv heads x %lld query tiles, on %d thread%s%s\n"
        "  workspace: %zu bytes for each thread\n",
        row->name, (long long)problem->group, plan->width, HEADWAY_KEY_BLOCK, HEADWAY_SEGMENT_KEYS,
        (long long)plan->tasks, (long long)problem->batch, (long long)problem->kv_heads,
        (long long)plan->tiles, plan->threads, plan->threads == 1 ? "" : "s",
        plan->tiles * row->vectors > plan->vectors + row->vectors - 1
            ? " (narrower tiles, so that every thread has work)"
            : "",
        plan->worker_floats * sizeof(float));
}
