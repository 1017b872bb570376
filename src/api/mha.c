/* headway_mha: the layer. Weights are packed once; a forward call projects into per-head query, key
 * and value, attends straight into the concatenated heads, and projects out. */
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "core/linear.h"
#include "system/memory.h"
#include "system/parallel.h"

enum { QUERY, KEY, VALUE, OUT, PROJECTIONS };

struct headway_mha {
    const headway_engine *engine;
    int64_t heads, kv_heads, size, value_size;
    struct headway_linear linear[PROJECTIONS];
};

/* ---- create -----------------------------------------------------------------------------------
 */

static const char *const weight_names[PROJECTIONS] = {"query weight", "key weight", "value weight",
                                                      "out weight"};
static const char *const bias_names[PROJECTIONS] = {"query bias", "key bias", "value bias",
                                                    "out bias"};

/* What create learns of one projection before it packs. */
struct projection {
    struct headway_weight_view view;
    int64_t groups, size, inputs;
};

/* Given, and of a rank that view_weight() can split. */
static headway_status check_weight(const headway_engine *engine, const char *name,
                                   const headway_tensor *weight)
{
    if (!weight)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: NULL, expected a tensor (or the fused weight)", name);
    if (weight->rank != 2 && weight->rank != 3)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: rank %d, expected 2 (outputs, inputs) or 3 (heads, size, inputs)",
                            name, weight->rank);
    return headway_check_tensor(engine, name, weight, HEADWAY_F32, weight->rank,
                                "(outputs, inputs)");
}

/* A weight as (groups, size, inputs): rank 2 (outputs, inputs) is split at the head size, rank 3 is
 * taken as it stands; transposed storage has the inputs first. */
static headway_status view_weight(const headway_engine *engine, const char *name,
                                  const headway_tensor *weight, int transposed,
                                  struct projection *p)
{
    HEADWAY_TRY(check_weight(engine, name, weight));
    const int in = transposed ? 0 : weight->rank - 1;
    const int channel = transposed ? weight->rank - 1 : weight->rank - 2;
    int64_t outputs = weight->shape[channel];
    p->inputs = weight->shape[in];
    p->view.data = weight->data;
    p->view.input_stride = headway_stride(weight, in);
    p->view.channel_stride = headway_stride(weight, channel);
    p->view.group_stride = p->size * p->view.channel_stride;
    if (weight->rank == 3) {
        const int group = transposed ? 1 : 0;
        HEADWAY_TRY(headway_check_extent(engine, name, channel, outputs, p->size, "head size"));
        HEADWAY_TRY(
            headway_check_extent(engine, name, group, weight->shape[group], p->groups, "heads"));
        p->view.group_stride = headway_stride(weight, group);
        outputs = p->groups * p->size;
    }
    if (outputs != p->groups * p->size || p->inputs < 1)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "%s: (%lld outputs, %lld inputs), expected %lld outputs (%lld x %lld) and 1 or "
            "more inputs%s",
            name, (long long)outputs, (long long)p->inputs, (long long)(p->groups * p->size),
            (long long)p->groups, (long long)p->size,
            transposed ? "; weights are said to be stored transposed" : "");
    return headway_check_memory(engine, name, weight);
}

static headway_status view_bias(const headway_engine *engine, const char *name,
                                const headway_tensor *bias, struct projection *p)
{
    p->view.bias = NULL;
    if (!bias)
        return HEADWAY_OK;
    if (bias->rank != 1 && bias->rank != 2)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: rank %d, expected 1 (outputs) or 2 (heads, size)", name,
                            bias->rank);
    HEADWAY_TRY(headway_check_tensor(engine, name, bias, HEADWAY_F32, bias->rank, "(outputs)"));
    const int channel = bias->rank - 1;
    const int64_t expected = bias->rank == 1 ? p->groups * p->size : p->size;
    HEADWAY_TRY(headway_check_extent(engine, name, channel, bias->shape[channel], expected,
                                     bias->rank == 1 ? "the weight's outputs" : "head size"));
    if (bias->rank == 2)
        HEADWAY_TRY(headway_check_extent(engine, name, 0, bias->shape[0], p->groups, "heads"));
    HEADWAY_TRY(headway_check_memory(engine, name, bias));
    p->view.bias = bias->data;
    p->view.bias_channel = headway_stride(bias, channel);
    p->view.bias_group =
        bias->rank == 1 ? p->size * p->view.bias_channel : headway_stride(bias, 0);
    return HEADWAY_OK;
}

/* Rows of the fused matrix (or its bias) as a tensor of their own. */
static headway_tensor rows_of(const headway_tensor *fused, int axis, int64_t first, int64_t rows)
{
    headway_tensor part = *fused;
    part.data = (float *)fused->data + first * fused->stride[axis];
    part.shape[axis] = rows;
    return part;
}

static headway_status check_fused(const headway_engine *engine, const headway_mha_config *config,
                                  const headway_mha_weights *weights, int64_t outputs)
{
    const headway_tensor *fused = weights->fused;
    if (weights->query || weights->key || weights->value || weights->query_bias ||
        weights->key_bias || weights->value_bias)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "fused weight: given together with separate ones, expected one or the other");
    const int axis = config->transposed ? 1 : 0;
    HEADWAY_TRY(
        headway_check_tensor(engine, "fused weight", fused, HEADWAY_F32, 2, "(outputs, inputs)"));
    HEADWAY_TRY(headway_check_extent(engine, "fused weight", axis, fused->shape[axis], outputs,
                                     "query, key and value rows"));
    HEADWAY_TRY(headway_check_memory(engine, "fused weight", fused));
    if (!weights->fused_bias)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_tensor(engine, "fused bias", weights->fused_bias, HEADWAY_F32, 1,
                                     "(outputs)"));
    HEADWAY_TRY(headway_check_extent(engine, "fused bias", 0, weights->fused_bias->shape[0],
                                     outputs, "the weight's outputs"));
    return headway_check_memory(engine, "fused bias", weights->fused_bias);
}

/* Query, key, value out of one matrix. */
static headway_status view_fused(const headway_engine *engine, const headway_mha_config *config,
                                 const headway_mha_weights *weights, struct projection *p)
{
    const int axis = config->transposed ? 1 : 0;
    const int64_t rows[3] = {p[QUERY].groups * p[QUERY].size, p[KEY].groups * p[KEY].size,
                             p[VALUE].groups * p[VALUE].size};
    int64_t first = 0;
    HEADWAY_TRY(check_fused(engine, config, weights, rows[0] + rows[1] + rows[2]));
    for (int i = QUERY; i <= VALUE; i++) {
        const headway_tensor part = rows_of(weights->fused, axis, first, rows[i]);
        HEADWAY_TRY(view_weight(engine, "fused weight", &part, config->transposed, &p[i]));
        p[i].view.bias = NULL;
        if (weights->fused_bias) {
            const headway_tensor bias = rows_of(weights->fused_bias, 0, first, rows[i]);
            HEADWAY_TRY(view_bias(engine, "fused bias", &bias, &p[i]));
        }
        first += rows[i];
    }
    return HEADWAY_OK;
}

static headway_status view_separate(const headway_engine *engine, const headway_mha_config *config,
                                    const headway_mha_weights *weights, struct projection *p)
{
    const headway_tensor *weight[3] = {weights->query, weights->key, weights->value};
    const headway_tensor *bias[3] = {weights->query_bias, weights->key_bias, weights->value_bias};
    if (weights->fused_bias)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "fused bias: given without the fused weight, expected NULL");
    for (int i = QUERY; i <= VALUE; i++) {
        HEADWAY_TRY(view_weight(engine, weight_names[i], weight[i], config->transposed, &p[i]));
        HEADWAY_TRY(view_bias(engine, bias_names[i], bias[i], &p[i]));
    }
    return HEADWAY_OK;
}

static headway_status check_separate(const headway_engine *engine,
                                     const headway_mha_weights *weights)
{
    HEADWAY_TRY(check_weight(engine, weight_names[QUERY], weights->query));
    HEADWAY_TRY(check_weight(engine, weight_names[KEY], weights->key));
    return check_weight(engine, weight_names[VALUE], weights->value);
}

/* Outputs of a projection weight of rank 2 or 3; 0 when they don't fit. */
static int64_t outputs_of(const headway_tensor *weight, int transposed)
{
    const int channel = transposed ? weight->rank - 1 : weight->rank - 2;
    int64_t outputs = weight->shape[channel];
    if (weight->rank == 3 && !headway_mul(outputs, weight->shape[transposed ? 1 : 0], &outputs))
        return 0;
    return outputs;
}

/* Head counts and sizes, given or told by the weights. */
static headway_status sizes_of(const headway_engine *engine, const headway_mha_config *config,
                               const headway_mha_weights *weights, struct headway_mha *layer)
{
    const int64_t most = (int64_t)1 << 30; /* sums of products of two stay in int64_t */
    const int fused = weights->fused != NULL;
    layer->heads = config->heads;
    layer->kv_heads = config->kv_heads ? config->kv_heads : config->heads;
    if (layer->heads < 1 || layer->kv_heads < 1 || layer->heads > most ||
        layer->heads % layer->kv_heads != 0)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "config: %lld heads with %lld kv_heads, expected kv_heads that divide heads, 1 "
            "or more",
            (long long)config->heads, (long long)config->kv_heads);
    if (config->head_size < 0 || config->value_head_size < 0 || config->head_size > most ||
        config->value_head_size > most)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "config: head_size %lld, value_head_size %lld, expected 0 (from the weights) to "
            "2^30",
            (long long)config->head_size, (long long)config->value_head_size);
    if (fused)
        HEADWAY_TRY(headway_check_tensor(engine, "fused weight", weights->fused, HEADWAY_F32, 2,
                                         "(outputs, inputs)"));
    else
        HEADWAY_TRY(check_separate(engine, weights));
    layer->size = config->head_size;
    if (!layer->size)
        layer->size = fused ? outputs_of(weights->fused, config->transposed) /
                                  (layer->heads + 2 * layer->kv_heads)
                            : outputs_of(weights->query, config->transposed) / layer->heads;
    layer->value_size = config->value_head_size;
    if (!layer->value_size)
        layer->value_size =
            fused ? layer->size : outputs_of(weights->value, config->transposed) / layer->kv_heads;
    if (layer->size < 1 || layer->value_size < 1 || layer->size > most || layer->value_size > most)
        return headway_fail(
            engine, HEADWAY_ERROR_ARGUMENT,
            "config: head size %lld, value head size %lld by the weights, expected 1 or more",
            (long long)layer->size, (long long)layer->value_size);
    return HEADWAY_OK;
}

static headway_status view_all(const headway_engine *engine, const headway_mha_config *config,
                               const headway_mha_weights *weights, const struct headway_mha *layer,
                               struct projection *p)
{
    p[QUERY].groups = layer->heads;
    p[KEY].groups = p[VALUE].groups = layer->kv_heads;
    p[QUERY].size = p[KEY].size = layer->size;
    p[VALUE].size = layer->value_size;
    HEADWAY_TRY(weights->fused ? view_fused(engine, config, weights, p)
                               : view_separate(engine, config, weights, p));
    p[OUT].groups = 1;
    p[OUT].size = 0;
    if (weights->out && weights->out->rank == 2)
        p[OUT].size = weights->out->shape[config->transposed ? 1 : 0];
    HEADWAY_TRY(headway_check_tensor(engine, weight_names[OUT], weights->out, HEADWAY_F32, 2,
                                     "(outputs, inputs)"));
    HEADWAY_TRY(view_weight(engine, weight_names[OUT], weights->out, config->transposed, &p[OUT]));
    HEADWAY_TRY(headway_check_extent(engine, weight_names[OUT], config->transposed ? 0 : 1,
                                     p[OUT].inputs, layer->heads * layer->value_size,
                                     "heads x value head size"));
    return view_bias(engine, bias_names[OUT], weights->out_bias, &p[OUT]);
}

headway_status headway_mha_create(const headway_engine *engine, const headway_mha_config *config,
                                  const headway_mha_weights *weights, headway_mha **layer)
{
    struct headway_mha made = {.engine = engine};
    struct projection p[PROJECTIONS];
    int64_t floats[PROJECTIONS], total = (sizeof(struct headway_mha) + 63) / 64 * 16, longest = 0;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    if (!config || !weights || !layer)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: NULL",
                            !config    ? "config"
                            : !weights ? "weights"
                                       : "layer");
    HEADWAY_TRY(headway_check_size(engine, "config", config->size, sizeof *config, sizeof *config));
    HEADWAY_TRY(
        headway_check_size(engine, "weights", weights->size, sizeof *weights, sizeof *weights));
    HEADWAY_TRY(sizes_of(engine, config, weights, &made));
    HEADWAY_TRY(view_all(engine, config, weights, &made, p));

    const struct headway_row *row = headway_engine_machine(engine).row;
    for (int i = 0; i < PROJECTIONS; i++) {
        if (headway_linear_size(&made.linear[i], row, p[i].inputs, p[i].groups, p[i].size,
                                p[i].view.bias != NULL, &floats[i]) != 0 ||
            !headway_add(floats[i], 15, &floats[i]) ||
            !headway_add(total, floats[i] = floats[i] / 16 * 16, &total))
            return headway_fail(engine, HEADWAY_ERROR_MEMORY, "%s: too large to pack",
                                weight_names[i]);
        longest = p[i].inputs > longest ? p[i].inputs : longest;
    }
    float *room = total < INT64_MAX / 8 ? headway_memory_get((size_t)total * sizeof(float)) : NULL;
    float *zeros = headway_memory_get((size_t)longest * sizeof(float));
    if (!room || !zeros) {
        headway_memory_free(room);
        headway_memory_free(zeros);
        return headway_fail(engine, HEADWAY_ERROR_MEMORY,
                            "layer: no memory for %lld bytes of packed weights",
                            (long long)total * 4);
    }
    memset(zeros, 0, (size_t)longest * sizeof(float));
    float *at = room + (sizeof(struct headway_mha) + 63) / 64 * 16;
    for (int i = 0; i < PROJECTIONS; i++) {
        headway_linear_pack(&made.linear[i], row, &p[i].view, at, zeros);
        at += floats[i];
    }
    headway_memory_free(zeros);
    *layer = (headway_mha *)(void *)room;
    memcpy(*layer, &made, sizeof made);
    return HEADWAY_OK;
}

void headway_mha_destroy(headway_mha *layer)
{
    headway_memory_free(layer);
}

/* ---- forward ----------------------------------------------------------------------------------
 */

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

/* Room for (lines x width) floats behind *end, on a cache line of its own; 0 when it does not fit.
 */
static int reserve(int64_t *offset, int64_t *end, int64_t lines, int64_t width)
{
    int64_t floats;
    *offset = *end;
    return headway_mul(lines, width, &floats) && headway_add(floats, 15, &floats) &&
           headway_add(*end, floats / 16 * 16, end);
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
    HEADWAY_TRY(headway_check_params(layer->engine, params, p));
    if (!headway_mul(p->batch, p->query_rows, &queries) || !headway_mul(p->batch, p->keys, &keys) ||
        !reserve(&f->query, &end, queries, p->heads * p->size) ||
        !reserve(&f->key, &end, keys, p->kv_heads * p->size) ||
        !reserve(&f->value, &end, keys, p->kv_heads * p->value_size) ||
        !reserve(&f->heads, &end, queries, p->heads * p->value_size) ||
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

static headway_status check_forward(const headway_mha *layer,
                                    const headway_attention_params *params,
                                    const headway_tensor *query, const headway_tensor *key,
                                    const headway_tensor *value, const headway_tensor *out)
{
    const headway_engine *engine = layer->engine;
    const headway_tensor *inputs[] = {query, key, value, params ? params->mask : NULL};
    const char *names[] = {"query", "key", "value", "mask"};
    const headway_tensor *lse = params ? params->lse : NULL;
    HEADWAY_TRY(headway_check_tensor(engine, "out", out, HEADWAY_F32, 3, "(B, Lq, Eo)"));
    HEADWAY_TRY(
        headway_check_extent(engine, "out", 0, out->shape[0], query->shape[0], "query's batch"));
    HEADWAY_TRY(
        headway_check_extent(engine, "out", 1, out->shape[1], query->shape[1], "query's length"));
    HEADWAY_TRY(headway_check_extent(engine, "out", 2, out->shape[2], layer->linear[OUT].size,
                                     "the out weight's outputs"));
    HEADWAY_TRY(headway_check_data(engine, "out", out));
    if (lse)
        HEADWAY_TRY(headway_check_memory(engine, "lse", lse));
    HEADWAY_TRY(headway_check_distinct(engine, "out", out));
    for (int i = 0; i < 4; i++) {
        if (!inputs[i])
            continue;
        HEADWAY_TRY(i < 3 ? headway_check_data(engine, names[i], inputs[i])
                          : headway_check_memory(engine, names[i], inputs[i]));
        HEADWAY_TRY(headway_check_apart(engine, "out", out, names[i], inputs[i]));
        if (lse)
            HEADWAY_TRY(headway_check_apart(engine, "lse", lse, names[i], inputs[i]));
    }
    return lse ? headway_check_apart(engine, "lse", lse, "out", out) : HEADWAY_OK;
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
    HEADWAY_TRY(check_forward(layer, params, query, key, value, out));
    HEADWAY_TRY(headway_check_workspace(layer->engine, workspace, bytes, f.bytes));

    const struct headway_linear_job in[] = {
        project(&layer->linear[QUERY], query, p->query_lengths, room + f.query, &p->query),
        project(&layer->linear[KEY], key, p->key_lengths, room + f.key, &p->key),
        project(&layer->linear[VALUE], value, p->key_lengths, room + f.value, &p->value)};
    headway_linear_run(&f.machine, in, 3);

    const int64_t width = p->heads * p->value_size;
    const struct headway_view heads = {room + f.heads, p->query_rows * width, width, p->value_size};
    p->out = heads;
    struct headway_attend_run run = {p, &f.plan, f.machine.row, room + f.scratch};
    headway_parallel_few(f.machine.threads, f.plan.threads, f.plan.tasks, headway_attend_task,
                         &run);

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
