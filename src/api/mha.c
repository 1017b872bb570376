/* headway_mha: a forward call projects into per-head query, key and value, attends straight into
 * the concatenated heads, and projects out. */
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/mha.h"
#include "system/memory.h"
#include "system/parallel.h"

/* One call: the attention problem on the projected tensors, and where they lie in the workspace. */
struct forward {
    struct headway_machine machine;
    struct headway_problem problem;
    struct headway_attend_plan plan;
    int64_t query, key, value, heads, scratch; /* offsets, in floats */
    size_t bytes;
};

static headway_status check_inputs(const headway_mha *layer, const headway_tensor *query,
                                   const headway_tensor **key, const headway_tensor **value)
{
    const headway_engine *engine = layer->engine;
    *key = *key ? *key : query;
    *value = *value ? *value : *key;
    HEADWAY_TRY(headway_check_tensor(engine, "query", query, HEADWAY_F32, 3, "(B, Lq, E)"));
    HEADWAY_TRY(headway_check_tensor(engine, "key", *key, HEADWAY_F32, 3, "(B, Lk, Ek)"));
    HEADWAY_TRY(headway_check_tensor(engine, "value", *value, HEADWAY_F32, 3, "(B, Lk, Ev)"));
    HEADWAY_TRY(headway_check_extent(engine, "query", 2, query->shape[2],
                                     layer->linear[QUERY].inputs, "the query weight's inputs"));
    HEADWAY_TRY(headway_check_extent(engine, "key", 2, (*key)->shape[2], layer->linear[KEY].inputs,
                                     "the key weight's inputs"));
    HEADWAY_TRY(headway_check_extent(engine, "value", 2, (*value)->shape[2],
                                     layer->linear[VALUE].inputs, "the value weight's inputs"));
    HEADWAY_TRY(
        headway_check_extent(engine, "key", 0, (*key)->shape[0], query->shape[0], "query's batch"));
    HEADWAY_TRY(headway_check_extent(engine, "value", 0, (*value)->shape[0], query->shape[0],
                                     "query's batch"));
    return headway_check_extent(engine, "value", 1, (*value)->shape[1], (*key)->shape[1],
                                "key's length");
}

/* Projected tensors lie head by head, (heads, B, L, size): the rows that a tile reads are next to
 * each other, and all tokens of a head have one pitch. */
static headway_status prepare(const headway_mha *layer, const headway_attention_params *params,
                              const headway_tensor *query, const headway_tensor *key,
                              struct forward *f)
{
    struct headway_problem *p = &f->problem;
    int64_t queries, keys, end = 0, all;
    f->machine = headway_engine_machine(layer->engine);
    memset(p, 0, sizeof *p);
    p->batch = query->shape[0];
    p->query_rows = query->shape[1];
    p->keys = key->shape[1];
    p->heads = layer->heads;
    p->kv_heads = layer->kv_heads;
    p->group = layer->heads / layer->kv_heads;
    p->size = layer->size;
    p->value_size = layer->value_size;
    const struct headway_batch batch = {1, {p->batch}, p->batch};
    HEADWAY_TRY(headway_check_params(layer->engine, params, &batch, 0, p));
    if (!headway_mul(p->batch, p->query_rows, &queries) || !headway_mul(p->batch, p->keys, &keys) ||
        !headway_reserve(&f->query, &end, queries, p->heads * p->size) ||
        !headway_reserve(&f->key, &end, keys, p->kv_heads * p->size) ||
        !headway_reserve(&f->value, &end, keys, p->kv_heads * p->value_size) ||
        !headway_reserve(&f->heads, &end, queries, p->heads * p->value_size) ||
        headway_attend_plan(p, &f->machine, &f->plan) != 0 ||
        headway_attend_bytes(&f->plan, &f->bytes) != 0 || !headway_mul(end, sizeof(float), &all) ||
        !headway_add(all, (int64_t)f->bytes, &all))
        return headway_fail(layer->engine, HEADWAY_ERROR_MEMORY,
                            "workspace: these sizes need more bytes than an address space has");
    f->scratch = end;
    f->bytes = (size_t)all;
    return HEADWAY_OK;
}

headway_status headway_mha_workspace(const headway_mha *layer,
                                     const headway_attention_params *params,
                                     const headway_tensor *query, const headway_tensor *key,
                                     const headway_tensor *value, size_t *bytes)
{
    struct forward f;
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    if (!bytes)
        return headway_fail(layer->engine, HEADWAY_ERROR_ARGUMENT,
                            "bytes: NULL, expected where to write them");
    HEADWAY_TRY(check_inputs(layer, query, &key, &value));
    HEADWAY_TRY(prepare(layer, params, query, key, &f));
    *bytes = f.bytes;
    return HEADWAY_OK;
}

static headway_status check_out(const headway_mha *layer, const headway_tensor *query,
                                const headway_tensor *out)
{
    const headway_engine *engine = layer->engine;
    HEADWAY_TRY(headway_check_tensor(engine, "out", out, HEADWAY_F32, 3, "(B, Lq, Eo)"));
    HEADWAY_TRY(
        headway_check_extent(engine, "out", 0, out->shape[0], query->shape[0], "query's batch"));
    HEADWAY_TRY(
        headway_check_extent(engine, "out", 1, out->shape[1], query->shape[1], "query's length"));
    return headway_check_extent(engine, "out", 2, out->shape[2], layer->linear[OUT].size,
                                "the out weight's outputs");
}

/* Projects (batch, rows) tokens of x into heads at `to`, and describes them as (B, L, H, size). */
static struct headway_linear_job project(const struct headway_linear *linear,
                                         const headway_tensor *x, const int64_t *lengths, float *to,
                                         struct headway_view *view)
{
    struct headway_linear_job job = {.linear = linear, .x = x->data};
    job.x_batch = headway_stride(x, 0);
    job.x_row = headway_stride(x, 1);
    job.batch = x->shape[0];
    job.rows = x->shape[1];
    job.lengths = lengths;
    job.y = to;
    job.y_row = linear->size;
    job.y_batch = job.rows * linear->size;
    job.y_group = job.batch * job.y_batch;
    view->data = to;
    view->batch = job.y_batch;
    view->row = job.y_row;
    view->head = job.y_group;
    return job;
}

headway_status headway_mha_forward(const headway_mha *layer, const headway_attention_params *params,
                                   const headway_tensor *query, const headway_tensor *key,
                                   const headway_tensor *value, const headway_tensor *out,
                                   void *workspace, size_t bytes)
{
    struct forward f;
    struct headway_problem *p = &f.problem;
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    float *room = workspace;
    HEADWAY_TRY(check_inputs(layer, query, &key, &value));
    HEADWAY_TRY(prepare(layer, params, query, key, &f));
    HEADWAY_TRY(check_out(layer, query, out));
    HEADWAY_TRY(headway_check_operands(layer->engine, params, query, key, value, out, workspace,
                                       bytes, f.bytes));

    const struct headway_linear_job in[] = {
        project(&layer->linear[QUERY], query, p->query_lengths, room + f.query, &p->query),
        project(&layer->linear[KEY], key, p->key_lengths, room + f.key, &p->key),
        project(&layer->linear[VALUE], value, p->key_lengths, room + f.value, &p->value)};
    headway_linear_run(&f.machine, in, 3);

    const int64_t width = p->heads * p->value_size;
    const struct headway_view heads = {room + f.heads, p->query_rows * width, width, p->value_size};
    p->out = heads;
    struct headway_attend_run run = {p, &f.plan, f.machine.row, room + f.scratch};
    headway_parallel(f.machine.threads, f.plan.threads, f.plan.tasks, headway_attend_task, &run);

    const struct headway_linear_job last = {.linear = &layer->linear[OUT],
                                            .x = heads.data,
                                            .x_batch = heads.batch,
                                            .x_row = heads.row,
                                            .y = out->data,
                                            .y_batch = headway_stride(out, 0),
                                            .y_row = headway_stride(out, 1),
                                            .y_group = 0,
                                            .batch = p->batch,
                                            .rows = p->query_rows,
                                            .lengths = p->query_lengths};
    headway_linear_run(&f.machine, &last, 1);
    return HEADWAY_OK;
}

headway_status headway_mha_explain(const headway_mha *layer, const headway_attention_params *params,
                                   const headway_tensor *query, const headway_tensor *key,
                                   const headway_tensor *value, char *text, size_t size)
{
    struct forward f;
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    if (!text || size == 0)
        return headway_fail(layer->engine, HEADWAY_ERROR_ARGUMENT,
                            "text: no room, expected 1 byte or more");
    HEADWAY_TRY(check_inputs(layer, query, &key, &value));
    HEADWAY_TRY(prepare(layer, params, query, key, &f));
    const struct headway_machine *m = &f.machine;
    const struct headway_linear_plan cut =
        headway_linear_cut(m, query->shape[0] * query->shape[1], layer->linear[QUERY].inputs);
    int used = snprintf(
        text, size,
        "projections: row %s, panels of %d columns packed at create, up to %d threads\n"
        "  query: %lld blocks of %lld tokens, panels in %lld pieces: half and a quarter of level "
        "2\n"
        "  query, key and value are written head by head as attention reads them, heads are\n"
        "  written concatenated\n"
        "  workspace of the call: %zu bytes\n",
        m->row->name, m->row->lanes * m->row->vectors, m->threads, (long long)cut.blocks,
        (long long)cut.block_rows, (long long)cut.pieces, f.bytes);
    if (used < 0 || (size_t)used >= size)
        used = (int)size - 1;
    headway_attend_words(&f.problem, m, &f.plan, text + used, size - (size_t)used);
    return HEADWAY_OK;
}
