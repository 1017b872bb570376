/* headway_attention: checks, then the core on the caller's tensors. */
#include <string.h>

#include "api/check.h"
#include "system/parallel.h"

static struct headway_view view_of(const headway_tensor *tensor)
{
    const struct headway_view view = {tensor->data, headway_stride(tensor, 0),
                                      headway_stride(tensor, 1), headway_stride(tensor, 2)};
    return view;
}

/* Shapes and params into a problem; data pointers are looked at by the caller. */
static headway_status problem_of(const headway_engine *engine,
                                 const headway_attention_params *params,
                                 const headway_tensor *query, const headway_tensor *key,
                                 const headway_tensor *value, struct headway_problem *p)
{
    HEADWAY_TRY(headway_check_tensor(engine, "query", query, HEADWAY_F32, 4, "(B, Lq, Hq, D)"));
    HEADWAY_TRY(headway_check_tensor(engine, "key", key, HEADWAY_F32, 4, "(B, Lk, Hkv, D)"));
    HEADWAY_TRY(headway_check_tensor(engine, "value", value, HEADWAY_F32, 4, "(B, Lk, Hkv, Dv)"));
    memset(p, 0, sizeof *p);
    p->batch = query->shape[0];
    p->query_rows = query->shape[1];
    p->heads = query->shape[2];
    p->size = query->shape[3];
    p->keys = key->shape[1];
    p->kv_heads = key->shape[2];
    p->value_size = value->shape[3];
    if (p->heads < 1 || p->kv_heads < 1 || p->heads % p->kv_heads != 0)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "key: %lld heads for %lld query heads, expected a divisor of them, 1 or more",
            (long long)p->kv_heads, (long long)p->heads);
    if (p->size < 1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "query: head size 0, expected 1 or more");
    HEADWAY_TRY(headway_check_extent(engine, "key", 0, key->shape[0], p->batch, "query's batch"));
    HEADWAY_TRY(
        headway_check_extent(engine, "key", 3, key->shape[3], p->size, "query's head size"));
    HEADWAY_TRY(
        headway_check_extent(engine, "value", 0, value->shape[0], p->batch, "query's batch"));
    HEADWAY_TRY(headway_check_extent(engine, "value", 1, value->shape[1], p->keys, "key's length"));
    HEADWAY_TRY(
        headway_check_extent(engine, "value", 2, value->shape[2], p->kv_heads, "key's heads"));
    p->group = p->heads / p->kv_heads;
    p->query = view_of(query);
    p->key = view_of(key);
    p->value = view_of(value);
    return headway_check_params(engine, params, p);
}

static headway_status plan_of(const headway_engine *engine, const struct headway_problem *p,
                              const struct headway_machine *machine,
                              struct headway_attend_plan *plan, size_t *bytes)
{
    if (headway_attend_plan(p, machine, plan) != 0 || headway_attend_bytes(plan, bytes) != 0)
        return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                            "workspace: these sizes need more bytes than an address space has");
    return HEADWAY_OK;
}

headway_status headway_attention_workspace(const headway_engine *engine,
                                           const headway_attention_params *params,
                                           const headway_tensor *query, const headway_tensor *key,
                                           const headway_tensor *value, size_t *bytes)
{
    struct headway_problem p;
    struct headway_attend_plan plan;
    size_t needed;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    const struct headway_machine machine = headway_engine_machine(engine);
    if (!bytes)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "bytes: NULL, expected where to write them");
    HEADWAY_TRY(problem_of(engine, params, query, key, value, &p));
    HEADWAY_TRY(plan_of(engine, &p, &machine, &plan, &needed));
    *bytes = needed;
    return HEADWAY_OK;
}

headway_status headway_attention(const headway_engine *engine,
                                 const headway_attention_params *params,
                                 const headway_tensor *query, const headway_tensor *key,
                                 const headway_tensor *value, const headway_tensor *out,
                                 void *workspace, size_t bytes)
{
    struct headway_problem p;
    struct headway_attend_plan plan;
    size_t needed;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    const struct headway_machine machine = headway_engine_machine(engine);
    HEADWAY_TRY(problem_of(engine, params, query, key, value, &p));
    HEADWAY_TRY(headway_check_tensor(engine, "out", out, HEADWAY_F32, 4, "(B, Lq, Hq, Dv)"));
    const int64_t shape[4] = {p.batch, p.query_rows, p.heads, p.value_size};
    static const char *const why[4] = {"query's batch", "query's length", "query's heads",
                                       "value's head size"};
    for (int i = 0; i < 4; i++)
        HEADWAY_TRY(headway_check_extent(engine, "out", i, out->shape[i], shape[i], why[i]));
    HEADWAY_TRY(plan_of(engine, &p, &machine, &plan, &needed));
    HEADWAY_TRY(
        headway_check_operands(engine, params, query, key, value, out, workspace, bytes, needed));

    p.out = view_of(out);
    struct headway_attend_run run = {&p, &plan, machine.row, workspace};
    headway_parallel(machine.threads, plan.threads, plan.tasks, headway_attend_task, &run);
    return HEADWAY_OK;
}

headway_status headway_attention_explain(const headway_engine *engine,
                                         const headway_attention_params *params,
                                         const headway_tensor *query, const headway_tensor *key,
                                         const headway_tensor *value, char *text, size_t size)
{
    struct headway_problem p;
    struct headway_attend_plan plan;
    size_t needed;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    const struct headway_machine machine = headway_engine_machine(engine);
    if (!text || size == 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "text: no room, expected 1 byte or more");
    HEADWAY_TRY(problem_of(engine, params, query, key, value, &p));
    HEADWAY_TRY(plan_of(engine, &p, &machine, &plan, &needed));
    headway_attend_words(&p, &machine, &plan, text, size);
    return HEADWAY_OK;
}
