/* Projection GEMM: loops over packed panels. A task is one panel, or a few, for one block of tokens. */
#include "core/linear.h"

#include "core/rope.h"
#include "system/memory.h"
#include "system/parallel.h"

int headway_linear_size(struct headway_linear *linear, const struct headway_row *row,
                        int64_t *floats)
{
    int64_t width;
    linear->group_vectors = headway_divide_up(linear->size, row->lanes);
    linear->packed = NULL;
    linear->bias = NULL;
    if (!headway_mul(linear->groups, linear->group_vectors, &linear->vectors) ||
        !headway_mul(linear->vectors, row->lanes, &width) ||
        !headway_mul(width, linear->inputs, floats) ||
        !headway_add(*floats, 16 + (linear->has_bias ? width : 0), floats))
        return -1;
    linear->panels = headway_divide_up(linear->vectors, row->vectors);
    return 0;
}

void headway_linear_attach(struct headway_linear *linear, const struct headway_row *row,
                           const float *room)
{
    linear->packed = room;
    linear->bias = linear->has_bias ? room + linear->vectors * row->lanes * linear->inputs : NULL;
}

static const float *channel_of(const struct headway_linear *linear,
                               const struct headway_weight_view *view, int lanes, int64_t column)
{
    const int64_t vector = column / lanes;
    const int64_t i = vector % linear->group_vectors * lanes + column % lanes;
    if (i >= linear->size)
        return NULL;
    return view->data + vector / linear->group_vectors * view->group_stride +
           i * view->channel_stride;
}

static void pack_panel(const struct headway_linear *linear, const struct headway_row *row,
                       const struct headway_weight_view *view, int64_t panel, float *to,
                       const float *zeros)
{
    const float *lines[HEADWAY_MAX_WIDTH];
    const int64_t first = panel * row->vectors;
    const int width = (int)headway_at_most(row->vectors, linear->vectors - first) * row->lanes;

    for (int j = 0; j < width; j++)
        lines[j] = channel_of(linear, view, row->lanes, first * row->lanes + j);
    if (view->input_stride == 1) {
        for (int j = 0; j < width; j++)
            if (!lines[j])
                lines[j] = zeros;
        row->pack(to, width, lines, width, linear->inputs, 1.0f);
        return;
    }
    for (int64_t p = 0; p < linear->inputs; p++)
        for (int j = 0; j < width; j++)
            to[p * width + j] = lines[j] ? lines[j][p * view->input_stride] : 0.0f;
}

void headway_linear_pack(const struct headway_linear *linear, const struct headway_row *row,
                         const struct headway_weight_view *view, float *room, const float *zeros)
{
    const int64_t width = linear->vectors * row->lanes;
    for (int64_t panel = 0; panel < linear->panels; panel++)
        pack_panel(linear, row, view, panel,
                   room + panel * row->vectors * row->lanes * linear->inputs, zeros);
    float *bias = room + width * linear->inputs;
    for (int64_t column = 0; view->bias && column < width; column++) {
        const int64_t vector = column / row->lanes;
        const int64_t i = vector % linear->group_vectors * row->lanes + column % row->lanes;
        bias[column] = i < linear->size
                           ? view->bias[vector / linear->group_vectors * view->bias_group +
                                        i * view->bias_channel]
                           : 0.0f;
    }
}

/* One panel for m tokens with one pitch. */
static void panel_rows(const struct headway_row *row, const struct headway_linear_job *job,
                       int64_t panel, int64_t pieces, const float *x, float *y, int64_t m)
{
    const struct headway_linear *linear = job->linear;
    const int64_t first = panel * row->vectors;
    struct headway_gemm g = {.m = m, .a_row = job->x_row, .a_col = 1, .c_row = job->y_row};
    int count[HEADWAY_MAX_VECTORS];

    g.vectors = (int)headway_at_most(row->vectors, linear->vectors - first);
    for (int v = 0; v < g.vectors; v++) {
        const int64_t group = (first + v) / linear->group_vectors;
        const int64_t i = (first + v) % linear->group_vectors * row->lanes;
        g.c[v] = y + group * job->y_group + i;
        count[v] = (int)headway_at_most(row->lanes, linear->size - i);
        if (count[v] < row->lanes)
            g.count = count;
    }
    const int width = g.vectors * row->lanes;
    const float *packed = linear->packed + first * row->lanes * linear->inputs;
    int64_t p = 0;
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t end = (piece + 1) * linear->inputs / pieces;
        g.a = x + p;
        g.b = packed + p * width;
        g.k = end - p;
        g.accumulate = p > 0;
        g.bias = end == linear->inputs && linear->bias ? linear->bias + first * row->lanes : NULL;
        row->gemm(&g);
        p = end;
    }
}

int64_t headway_linear_first(const struct headway_linear_job *job, int64_t b)
{
    return job->starts ? job->starts[b] : b * job->rows;
}

int64_t headway_linear_tokens(const struct headway_linear_job *job)
{
    return headway_linear_first(job, job->batch);
}

int64_t headway_linear_batch(const struct headway_linear_job *job, int64_t token)
{
    if (!job->starts)
        return token / job->rows;
    int64_t low = 0, high = job->batch;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (job->starts[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t headway_linear_length(const struct headway_linear_job *job, int64_t b)
{
    return job->lengths ? job->lengths[b]
                        : headway_linear_first(job, b + 1) - headway_linear_first(job, b);
}

ptrdiff_t headway_linear_offset(const struct headway_linear_job *job, int64_t b, int64_t i,
                                ptrdiff_t batch, ptrdiff_t row)
{
    return job->starts ? (job->starts[b] + i) * row : b * batch + i * row;
}

/* Tokens from .. until, in runs of live rows; batches that follow each other without a gap in memory
 * are one run. */
static void panel_tokens(const struct headway_row *row, const struct headway_linear_job *job,
                         int64_t panel, int64_t pieces, int64_t from, int64_t until)
{
    const int joined = job->starts || (job->x_batch == job->rows * job->x_row &&
                                       job->y_batch == job->rows * job->y_row);
    int64_t token = from;
    for (int64_t b = headway_linear_batch(job, from); token < until; b++) {
        const int64_t i = token - headway_linear_first(job, b);
        const float *x = job->x + headway_linear_offset(job, b, i, job->x_batch, job->x_row);
        float *y = job->y + headway_linear_offset(job, b, i, job->y_batch, job->y_row);
        int64_t end = headway_linear_first(job, b) + headway_linear_length(job, b);
        while (joined && end < until && end == headway_linear_first(job, b + 1))
            end += headway_linear_length(job, ++b);
        if (end > token)
            panel_rows(row, job, panel, pieces, x, y, headway_at_most(end, until) - token);
        token = headway_linear_first(job, b + 1);
    }
}

/* Tasks run block by block; within a block, span by span of panels of the jobs in turn. */
struct linear_run {
    const struct headway_row *row;
    const struct headway_linear_job *jobs;
    int count;
    struct headway_linear_plan plan[HEADWAY_MAX_JOBS];
    int64_t span[HEADWAY_MAX_JOBS], spans[HEADWAY_MAX_JOBS];
};

static void run_span(const struct linear_run *run, int j, int64_t block, int64_t span)
{
    const struct headway_linear_job *job = &run->jobs[j];
    const struct headway_linear_plan *plan = &run->plan[j];
    const int64_t from = block * plan->block_rows, first = span * run->span[j];
    const int64_t until = headway_at_most(from + plan->block_rows, headway_linear_tokens(job));
    const int64_t end = headway_at_most(first + run->span[j], job->linear->panels);
    for (int64_t panel = first; panel < end; panel++)
        panel_tokens(run->row, job, panel, plan->pieces, from, until);
    if (job->turn)
        headway_turn_panels(job->turn, run->row, first, run->span[j], from, until);
}

static void linear_task(void *context, int64_t task, int worker)
{
    const struct linear_run *run = context;
    (void)worker;
    for (int j = 0; j < run->count;) {
        /* Jobs of equally many blocks share them. */
        int64_t spans = 0;
        int last = j;
        for (; last < run->count && run->plan[last].blocks == run->plan[j].blocks; last++)
            spans += run->spans[last];
        if (task >= run->plan[j].blocks * spans) {
            task -= run->plan[j].blocks * spans;
            j = last;
            continue;
        }
        const int64_t block = task / spans;
        int64_t span = task % spans;
        for (; span >= run->spans[j]; j++)
            span -= run->spans[j];
        run_span(run, j, block, span);
        return;
    }
}

void headway_linear_run(const struct headway_machine *machine,
                        const struct headway_linear_job *jobs, int count)
{
    struct linear_run run = {.row = machine->row, .jobs = jobs, .count = count};
    int64_t tasks = 0;
    double flops = 0.0;

    for (int j = 0; j < count; j++) {
        const struct headway_linear *linear = jobs[j].linear;
        const int64_t tokens = headway_linear_tokens(&jobs[j]);
        run.plan[j] = j > 0 && tokens == headway_linear_tokens(&jobs[j - 1]) &&
                              linear->inputs == jobs[j - 1].linear->inputs
                          ? run.plan[j - 1]
                          : headway_linear_cut(machine, tokens, linear->inputs);
        run.span[j] = jobs[j].turn ? headway_turn_span(jobs[j].turn, machine->row) : 1;
        run.spans[j] = headway_divide_up(linear->panels, run.span[j]);
        tasks += run.plan[j].blocks * run.spans[j];
        flops += 2.0 * (double)tokens * (double)linear->inputs *
                 (double)(linear->vectors * machine->row->lanes);
    }
    headway_parallel(&machine->team, headway_threads_for(flops, machine->team.threads), tasks,
                     linear_task, &run);
}
