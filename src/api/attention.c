/* headway_attention: checks, then the core on the caller's tensors. */
#include <string.h>

#include "api/call.h"
#include "api/check.h"
#include "api/kv_cache.h"

static struct headway_view view_of(const headway_tensor *tensor)
{
    const struct headway_view view = {tensor->data, tensor->stride[0], tensor->stride[1],
                                      tensor->stride[2]};
    return view;
}

static headway_status check_heads(const headway_engine *engine, const char *name,
                                  const struct headway_problem *p)
{
    if (p->heads < 1 || p->kv_heads < 1 || p->heads % p->kv_heads != 0)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "%s: %lld heads for %lld query heads, expected a divisor of them, 1 or more", name,
            (long long)p->kv_heads, (long long)p->heads);
    return HEADWAY_OK;
}

/* Key and value of a problem whose query is set. */
static headway_status keys_of(const headway_engine *engine, const headway_tensor *key,
                              const headway_tensor *value, const struct headway_batch *batch,
                              struct headway_problem *p)
{
    headway_tensor flat;
    const struct headway_form key_form = {.name = "key",
                                          .axes = "(B, Lk, Hkv, D)",
                                          .rank = 3,
                                          .extents = {-1, -1, p->size},
                                          .why = {"", "", "query's head size"}};
    HEADWAY_TRY(headway_check_form(engine, batch, &key_form, key, &flat));
    p->key = view_of(&flat);
    p->keys = flat.shape[1];
    p->kv_heads = flat.shape[2];
    HEADWAY_TRY(check_heads(engine, "key", p));
    const struct headway_form value_form = {.name = "value",
                                            .axes = "(B, Lk, Hkv, Dv)",
                                            .rank = 3,
                                            .extents = {p->keys, p->kv_heads, -1},
                                            .why = {"key's length", "key's heads", ""}};
    HEADWAY_TRY(headway_check_form(engine, batch, &value_form, value, &flat));
    p->value = view_of(&flat);
    p->value_size = flat.shape[3];
    return HEADWAY_OK;
}

static headway_status cache_of(const headway_engine *engine, const headway_attention_params *params,
                               const headway_tensor *key, const headway_tensor *value,
                               struct headway_problem *p)
{
    if (key || value)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: given with cache, expected NULL (the cache has them)",
                            key ? "key" : "value");
    p->kv_heads = params->cache->kv_heads;
    p->value_size = params->cache->value_size;
    return check_heads(engine, "cache", p);
}

/* Shapes and params into a problem; data pointers are looked at by the caller. *params become what
 * they stand for. */
static headway_status problem_of(const headway_engine *engine,
                                 const headway_attention_params **params,
                                 const headway_tensor *query, const headway_tensor *key,
                                 const headway_tensor *value, struct headway_batch *batch,
                                 struct headway_problem *p)
{
    static const struct headway_form query_form = {
        .name = "query", .axes = "(B, Lq, Hq, D)", .rank = 3, .extents = {-1, -1, -1}};
    headway_tensor flat;
    memset(p, 0, sizeof *p);
    HEADWAY_TRY(headway_check_given(engine, params));
    HEADWAY_TRY(headway_check_batch(engine, "query", query, 3, "(B, Lq, Hq, D)", batch));
    HEADWAY_TRY(headway_check_form(engine, batch, &query_form, query, &flat));
    p->query = view_of(&flat);
    p->batch = batch->all;
    p->query_rows = flat.shape[1];
    p->heads = flat.shape[2];
    p->size = flat.shape[3];
    if (p->size < 1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "query: head size 0, expected 1 or more");
    HEADWAY_TRY((*params)->cache ? cache_of(engine, *params, key, value, p)
                                 : keys_of(engine, key, value, batch, p));
    p->group = p->heads / p->kv_heads;
    return headway_check_params(engine, *params, batch, 0, p);
}

static headway_status plan_of(const headway_engine *engine, const struct headway_problem *p,
                              const struct headway_machine *machine,
                              struct headway_attend_plan *plan, size_t *bytes)
{
    const int64_t most = (int64_t)1 << 56; /* floats: sums of several stay in int64_t */
    if (p->size > most || p->value_size > most || headway_attend_plan(p, machine, plan) != 0 ||
        headway_attend_bytes(plan, bytes) != 0)
        return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                            "workspace: these sizes need more bytes than an address space has");
    return HEADWAY_OK;
}

headway_status headway_attention_workspace(const headway_engine *engine,
                                           const headway_attention_params *params,
                                           const headway_tensor *query, const headway_tensor *key,
                                           const headway_tensor *value, size_t *bytes)
{
    struct headway_batch batch;
    struct headway_problem p;
    struct headway_attend_plan plan;
    size_t needed;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    const struct headway_machine machine = headway_engine_machine(engine);
    if (!bytes)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "bytes: NULL, expected where to write them");
    HEADWAY_TRY(problem_of(engine, &params, query, key, value, &batch, &p));
    HEADWAY_TRY(plan_of(engine, &p, &machine, &plan, &needed));
    *bytes = needed;
    return HEADWAY_OK;
}

static headway_status attend(struct headway_call *call, const headway_attention_params *params,
                             const headway_tensor *query, const headway_tensor *key,
                             const headway_tensor *value, const headway_tensor *out,
                             void *workspace, size_t bytes)
{
    const headway_engine *engine = call->engine;
    const struct headway_machine machine = headway_call_machine(call);
    struct headway_batch batch;
    struct headway_problem p;
    struct headway_attend_plan plan;
    headway_tensor flat;
    size_t needed;
    HEADWAY_TRY(problem_of(engine, &params, query, key, value, &batch, &p));
    const struct headway_form form = {
        .name = "out",
        .axes = "(B, Lq, Hq, Dv)",
        .rank = 3,
        .extents = {query->shape[batch.axes], p.heads, p.value_size},
        .why = {"query's length", "query's heads", "value's head size"}};
    HEADWAY_TRY(headway_check_form(engine, &batch, &form, out, &flat));
    HEADWAY_TRY(plan_of(engine, &p, &machine, &plan, &needed));
    HEADWAY_TRY(headway_check_operands(engine, params, &p, query, key, value, out, workspace, bytes,
                                       needed));

    p.out = view_of(&flat);
    struct headway_attend_run run = {&p, &plan, &machine, workspace};
    headway_call_phase(call, "check");
    headway_attend(&run);
    headway_call_phase(call, "attend");
    headway_call_attention(call, &p, &plan);
    headway_call_workspace(call, needed);
    return HEADWAY_OK;
}

headway_status headway_attention(const headway_engine *engine,
                                 const headway_attention_params *params,
                                 const headway_tensor *query, const headway_tensor *key,
                                 const headway_tensor *value, const headway_tensor *out,
                                 void *workspace, size_t bytes)
{
    struct headway_call call;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    headway_call_begin(&call, engine, "attention");
    return headway_call_end(&call, attend(&call, params, query, key, value, out, workspace, bytes));
}

headway_status headway_attention_explain(const headway_engine *engine,
                                         const headway_attention_params *params,
                                         const headway_tensor *query, const headway_tensor *key,
                                         const headway_tensor *value, char *text, size_t size)
{
    struct headway_batch batch;
    struct headway_problem p;
    struct headway_attend_plan plan;
    size_t needed;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    const struct headway_machine machine = headway_engine_machine(engine);
    if (!text || size == 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "text: no room, expected 1 byte or more");
    HEADWAY_TRY(problem_of(engine, &params, query, key, value, &batch, &p));
    HEADWAY_TRY(plan_of(engine, &p, &machine, &plan, &needed));
    headway_attend_words(&p, &machine, &plan, text, size);
    return HEADWAY_OK;
}
