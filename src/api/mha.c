/* headway_mha: a forward call projects into per-head query, key and value, norms and rotates them,
 * attends straight into the concatenated heads, and projects out. */
#include "api/mha.h"

#include <stdio.h>
#include <string.h>

#include "api/call.h"
#include "api/check.h"
#include "api/kv_cache.h"
#include "system/memory.h"

/* One call: the attention problem on the projected tensors, and where they lie in the workspace. */
struct forward {
    struct headway_machine machine;
    struct headway_batch batch;
    headway_tensor in[3];            /* query, key, value as (B, L, width) */
    struct headway_places places[2]; /* of query and key */
    headway_kv_cache *grows;         /* the cache that the call appends to, or NULL */
    struct headway_problem problem;
    struct headway_attend_plan plan;
    int64_t at[3], heads, scratch; /* offsets, in floats */
    size_t bytes;
};

static headway_status check_inputs(const headway_mha *layer, const headway_tensor *query,
                                   const headway_tensor **key, const headway_tensor **value,
                                   struct forward *f)
{
    const headway_engine *engine = layer->engine;
    *key = *key ? *key : query;
    *value = *value ? *value : *key;
    HEADWAY_TRY(headway_check_batch(engine, "query", query, 2, "(B, Lq, E)", &f->batch));
    struct headway_form form = {.name = "query",
                                .axes = "(B, Lq, E)",
                                .rank = 2,
                                .extents = {-1, layer->linear[QUERY].inputs},
                                .why = {"", "the query weight's inputs"}};
    HEADWAY_TRY(headway_check_form(engine, &f->batch, &form, query, &f->in[QUERY]));
    form.name = "key";
    form.axes = "(B, Lk, Ek)";
    form.extents[1] = layer->linear[KEY].inputs;
    form.why[1] = "the key weight's inputs";
    HEADWAY_TRY(headway_check_form(engine, &f->batch, &form, *key, &f->in[KEY]));
    form.name = "value";
    form.axes = "(B, Lk, Ev)";
    form.extents[0] = f->in[KEY].shape[1];
    form.why[0] = "key's length";
    form.extents[1] = layer->linear[VALUE].inputs;
    form.why[1] = "the value weight's inputs";
    return headway_check_form(engine, &f->batch, &form, *value, &f->in[VALUE]);
}

/* The caller's positions, or none. */
static headway_status check_positions(const headway_mha *layer, const char *name,
                                      const headway_tensor *positions, int64_t rows,
                                      struct forward *f, struct headway_places *places)
{
    const struct headway_form form = {.name = name,
                                      .axes = "(B, L) or 1 (L)",
                                      .dtype = HEADWAY_I32,
                                      .rank = 1,
                                      .extents = {rows},
                                      .why = {"the tokens' number"},
                                      .shared = HEADWAY_SHARED_BATCH,
                                      .no_batch = 1};
    headway_tensor flat;
    memset(places, 0, sizeof *places);
    if (!positions)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_form(layer->engine, &f->batch, &form, positions, &flat));
    places->data = flat.data;
    places->batch = flat.stride[0];
    places->row = flat.stride[1];
    return HEADWAY_OK;
}

static headway_status plan(const headway_mha *layer, struct forward *f)
{
    struct headway_problem *p = &f->problem;
    int64_t queries, keys, end = 0, all;
    if (!headway_mul(f->in[QUERY].shape[0], f->in[QUERY].shape[1], &queries) ||
        !headway_mul(f->in[KEY].shape[0], f->in[KEY].shape[1], &keys) ||
        !headway_reserve(&f->at[QUERY], &end, queries, p->heads * p->size) ||
        !headway_reserve(&f->at[KEY], &end, keys, p->kv_heads * p->size) ||
        !headway_reserve(&f->at[VALUE], &end, keys, p->kv_heads * p->value_size) ||
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

/* The keys or values that the layer appends, the same for every batch. */
static struct headway_view more_of(const headway_mha *layer, int i, int64_t size)
{
    const struct headway_view view = {(float *)layer->more[i], 0, size, layer->appended * size};
    return view;
}

/* Tokens without positions: rows stand at their offset and keys at 0 and on, what goes into a cache
 * behind what the slot holds, the rows whose own tokens that are with it. */
static headway_status check_all_positions(const headway_mha *layer,
                                          const headway_attention_params *params, int self,
                                          struct forward *f)
{
    const struct headway_problem *p = &f->problem;
    const headway_tensor *rows = params->query_positions;
    const headway_tensor *keys = params->key_positions ? params->key_positions : self ? rows : NULL;
    HEADWAY_TRY(check_positions(layer, "query_positions", rows, f->in[QUERY].shape[1], f,
                                &f->places[QUERY]));
    HEADWAY_TRY(
        check_positions(layer, "key_positions", keys, f->in[KEY].shape[1], f, &f->places[KEY]));
    f->places[QUERY].problem = p;
    if (!p->cached.store)
        return HEADWAY_OK;
    f->places[KEY].cached = &p->cached;
    f->places[QUERY].cached = self ? &p->cached : NULL;
    return HEADWAY_OK;
}

/* Everything but the memory of a call. *params, *key and *value become what they stand for. */
static headway_status prepare(const headway_mha *layer, const headway_attention_params **params,
                              const headway_tensor *query, const headway_tensor **key,
                              const headway_tensor **value, struct forward *f)
{
    struct headway_problem *p = &f->problem;
    const int self = !*key;
    const int call = HEADWAY_CALL_LAYER | (layer->rope.size > 0 ? HEADWAY_CALL_POSITIONS : 0) |
                     (self ? HEADWAY_CALL_SELF : 0);
    HEADWAY_TRY(headway_check_given(layer->engine, params));
    HEADWAY_TRY(check_inputs(layer, query, key, value, f));
    f->machine = headway_engine_machine(layer->engine);
    memset(p, 0, sizeof *p);
    p->batch = f->batch.all;
    p->query_rows = f->in[QUERY].shape[1];
    p->keys = f->in[KEY].shape[1];
    p->heads = layer->heads;
    p->kv_heads = layer->kv_heads;
    p->group = layer->heads / layer->kv_heads;
    p->size = layer->size;
    p->value_size = layer->value_size;
    p->appended = layer->appended;
    p->appended_key = more_of(layer, KEY, layer->size);
    p->appended_value = more_of(layer, VALUE, layer->value_size);
    HEADWAY_TRY(headway_check_params(layer->engine, *params, &f->batch, call, p));
    f->grows = p->cached.store && f->in[KEY].shape[1] > 0 ? (*params)->cache : NULL;
    HEADWAY_TRY(check_all_positions(layer, *params, self, f));
    return plan(layer, f);
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
    HEADWAY_TRY(prepare(layer, &params, query, &key, &value, &f));
    *bytes = f.bytes;
    return HEADWAY_OK;
}

/* From a token to the next: of batches of single tokens, the next batch's. */
static ptrdiff_t pitch_of(const headway_tensor *tokens)
{
    return tokens->shape[1] == 1 ? tokens->stride[0] : tokens->stride[1];
}

/* Projects tokens of x into heads at `to`, which lie head by head, (heads, B, L, size): the rows that
 * a tile reads are next to each other, and all tokens of a head have one pitch. */
static struct headway_linear_job project(const struct headway_linear *linear,
                                         const headway_tensor *x, float *to,
                                         struct headway_view *view)
{
    struct headway_linear_job job = {.linear = linear, .x = x->data};
    job.x_batch = x->stride[0];
    job.x_row = pitch_of(x);
    job.batch = x->shape[0];
    job.rows = x->shape[1];
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

/* Which tokens of the job live, and how they are packed. */
static void choose(struct headway_linear_job *job, const struct headway_problem *p,
                   const int64_t *lengths, const int64_t *starts, struct headway_view *view)
{
    job->lengths = lengths;
    job->starts = starts;
    if (!starts)
        return;
    job->batch = p->batch;
    view->batch = 0;
}

/* Every live token stands within the tables. */
static headway_status check_places(const headway_mha *layer, const char *tokens,
                                   const char *positions_name, const struct headway_turn_job *job)
{
    const int64_t positions = layer->rope.positions;
    for (int64_t b = 0; layer->rope.size > 0 && b < job->at->batch; b++) {
        const int64_t live = headway_linear_length(job->at, b);
        const int64_t step = job->places.data || live < 2 ? 1 : live - 1;
        for (int64_t i = 0; i < live; i += step) {
            const int64_t at = headway_place(job, b, i);
            if (at < 0 || at >= positions)
                return headway_fail(layer->engine, HEADWAY_ERROR_ARGUMENT,
                                    "%s: position %lld of token %lld in batch %lld, expected "
                                    "0..%lld, which the layer's rotary tables hold",
                                    job->places.data ? positions_name : tokens, (long long)at,
                                    (long long)i, (long long)b, (long long)positions - 1);
        }
    }
    return HEADWAY_OK;
}

/* Projections of query, key and value, and what is done to each. */
struct intake {
    struct headway_linear_job jobs[3];
    struct headway_turn_job turns[3];
};

/* Describes them, and makes of them what the core attends; with a cache keys and values go into it. The
 * last that can fail; then the cache has pages for what comes. */
static headway_status take_in(const headway_mha *layer, struct forward *f, float *room,
                              struct intake *in)
{
    struct headway_problem *p = &f->problem;
    const struct headway_cached *cached = p->cached.store ? &p->cached : NULL;
    const int64_t *key_lengths = cached ? cached->more_lengths : p->key_lengths;
    const int64_t *key_starts = cached ? cached->more_starts : p->key_starts;
    struct headway_view *const views[3] = {&p->query, &p->key, &p->value};
    memset(in, 0, sizeof *in);
    for (int i = QUERY; i <= VALUE; i++) {
        in->jobs[i] = project(&layer->linear[i], &f->in[i], room + f->at[i], views[i]);
        choose(&in->jobs[i], p, i == QUERY ? p->query_lengths : key_lengths,
               i == QUERY ? p->query_starts : key_starts, views[i]);
        in->turns[i].at = &in->jobs[i];
        in->turns[i].cached = i == QUERY ? NULL : cached;
    }
    for (int i = QUERY; i <= KEY; i++) {
        in->turns[i].norm = layer->norm[i];
        in->turns[i].eps = layer->norm_eps;
        in->turns[i].rope = &layer->rope;
        in->turns[i].places = f->places[i];
    }
    in->turns[KEY].pool = cached ? &cached->store->key : NULL;
    in->turns[VALUE].pool = cached ? &cached->store->value : NULL;
    HEADWAY_TRY(check_places(layer, "query", "query_positions", &in->turns[QUERY]));
    HEADWAY_TRY(check_places(layer, "key", "key_positions", &in->turns[KEY]));
    if (!f->grows)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_cache_prepare(layer->engine, f->grows, "cache_slots", cached, p->batch));
    headway_cache_begin(f->grows, cached, p->batch);
    return HEADWAY_OK;
}

static void project_in(struct headway_call *call, struct forward *f, struct intake *in)
{
    for (int i = QUERY; i <= VALUE; i++)
        in->jobs[i].turn = headway_turn_span(&in->turns[i], f->machine.row) ? &in->turns[i] : NULL;
    headway_linear_run(&f->machine, in->jobs, 3);
    headway_turn_run(&f->machine, in->turns, 3);
    headway_call_phase(call, "project");
    headway_call_linear(call, in->jobs, 3);
}

/* Attends into the workspace, and projects that into `to`. */
static void project_out(struct headway_call *call, const headway_mha *layer, struct forward *f,
                        float *room, const headway_tensor *to)
{
    struct headway_problem *p = &f->problem;
    const int64_t width = p->heads * p->value_size;
    const struct headway_view heads = {room + f->heads, f->in[QUERY].shape[1] * width, width,
                                       p->value_size};
    p->out = heads;
    p->out.batch = p->query_starts ? 0 : heads.batch;
    struct headway_attend_run run = {p, &f->plan, &f->machine, room + f->scratch};
    headway_attend(&run);
    headway_call_phase(call, "attend");
    headway_call_attention(call, p, &f->plan);

    struct headway_linear_job last = {.linear = &layer->linear[OUT],
                                      .x = heads.data,
                                      .x_batch = heads.batch,
                                      .x_row = heads.row,
                                      .y = to->data,
                                      .y_batch = to->stride[0],
                                      .y_row = pitch_of(to),
                                      .batch = to->shape[0],
                                      .rows = to->shape[1],
                                      .lengths = p->query_lengths};
    headway_linear_run(&f->machine, &last, 1);
    headway_call_phase(call, "out");
    headway_call_linear(call, &last, 1);
}

static headway_status forward(struct headway_call *call, const headway_mha *layer,
                              const headway_attention_params *params, const headway_tensor *query,
                              const headway_tensor *key, const headway_tensor *value,
                              const headway_tensor *out, void *workspace, size_t bytes)
{
    struct forward f;
    struct intake in;
    headway_tensor to;
    HEADWAY_TRY(prepare(layer, &params, query, &key, &value, &f));
    f.machine = headway_call_machine(call);
    const struct headway_form form = {.name = "out",
                                      .axes = "(B, Lq, Eo)",
                                      .rank = 2,
                                      .extents = {f.in[QUERY].shape[1], layer->linear[OUT].size},
                                      .why = {"query's length", "the out weight's outputs"}};
    HEADWAY_TRY(headway_check_form(layer->engine, &f.batch, &form, out, &to));
    HEADWAY_TRY(headway_check_operands(layer->engine, params, &f.problem, query, key, value, out,
                                       workspace, bytes, f.bytes));
    HEADWAY_TRY(take_in(layer, &f, workspace, &in));
    headway_call_workspace(call, f.bytes);
    headway_call_phase(call, "check");
    project_in(call, &f, &in);
    project_out(call, layer, &f, workspace, &to);
    if (f.grows)
        headway_cache_commit(f.grows, &f.problem.cached, f.problem.batch);
    return HEADWAY_OK;
}

headway_status headway_mha_forward(const headway_mha *layer, const headway_attention_params *params,
                                   const headway_tensor *query, const headway_tensor *key,
                                   const headway_tensor *value, const headway_tensor *out,
                                   void *workspace, size_t bytes)
{
    struct headway_call call;
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    headway_call_begin(&call, layer->engine, "mha");
    return headway_call_end(
        &call, forward(&call, layer, params, query, key, value, out, workspace, bytes));
}

/* Whether keys and values are stored in the cache while their panels are at hand. */
static int stores_panels(const headway_mha *layer, const struct forward *f)
{
    for (int i = KEY; i <= VALUE; i++) {
        const struct headway_linear_job job = {.linear = &layer->linear[i]};
        const struct headway_turn_job turn = {.at = &job, .cached = &f->problem.cached};
        if (!headway_turn_span(&turn, f->machine.row))
            return 0;
    }
    return 1;
}

/* What is done to projected heads, a line each. */
static int explain_extras(const headway_mha *layer, const struct forward *f, char *text,
                          size_t size)
{
    static const char *const kinds[] = {"no", "linear", "dynamic", "llama3", "yarn", "longrope"};
    const struct headway_rope *rope = &layer->rope;
    char line[200] = "";
    if (rope->size)
        snprintf(line, sizeof line,
                 "  rotary embedding: %s pairs, %lld of %lld channels, %s scaling, tables of %lld "
                 "positions in %lld bytes\n",
                 rope->style == HEADWAY_ROPE_HALF ? "half" : "interleaved", (long long)rope->size,
                 (long long)layer->size, kinds[layer->scaling], (long long)rope->positions,
                 (long long)(rope->positions * rope->size) * (long long)sizeof(float));
    return snprintf(text, size, "%s%s%s%s%s%s", line,
                    layer->norm[QUERY] ? "  RMS norm of each query head\n" : "",
                    layer->norm[KEY] ? "  RMS norm of each key head\n" : "",
                    layer->appended == 2   ? "  two keys and values appended to each batch\n"
                    : layer->appended == 1 ? "  one key and value appended to each batch\n"
                                           : "",
                    !f->grows                 ? ""
                    : stores_panels(layer, f) ? "  keys and values go into the cache while the "
                                                "panels that make a head are at hand\n"
                                              : "  keys and values go into the cache in a pass "
                                                "after the projections\n",
                    f->problem.cached.store && !f->grows ? "  nothing goes into the cache\n" : "");
}

headway_status headway_mha_explain(const headway_mha *layer, const headway_attention_params *params,
                                   const headway_tensor *query, const headway_tensor *key,
                                   const headway_tensor *value, char *text, size_t size)
{
    struct forward f;
    char extras[600];
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    if (!text || size == 0)
        return headway_fail(layer->engine, HEADWAY_ERROR_ARGUMENT,
                            "text: no room, expected 1 byte or more");
    HEADWAY_TRY(prepare(layer, &params, query, &key, &value, &f));
    const struct headway_machine *m = &f.machine;
    const struct headway_linear_plan cut = headway_linear_cut(
        m, f.in[QUERY].shape[0] * f.in[QUERY].shape[1], layer->linear[QUERY].inputs);
    explain_extras(layer, &f, extras, sizeof extras);
    int used = snprintf(
        text, size,
        "projections: row %s, panels of %d columns packed at create, up to %d threads\n"
        "  query: %lld blocks of %lld tokens, panels in %lld pieces: half and a quarter of level "
        "2\n"
        "  query, key and value are written head by head as attention reads them, heads are\n"
        "  written concatenated\n"
        "%s"
        "  workspace of the call: %zu bytes\n",
        m->row->name, m->row->lanes * m->row->vectors, m->team.threads, (long long)cut.blocks,
        (long long)cut.block_rows, (long long)cut.pieces, extras, f.bytes);
    if (used < 0 || (size_t)used >= size)
        used = (int)size - 1;
    headway_attend_words(&f.problem, m, &f.plan, text + used, size - (size_t)used);
    return HEADWAY_OK;
}
