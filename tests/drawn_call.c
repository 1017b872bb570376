#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "attend.h"
#include "drawn.h"
#include "oracle/reference.h"

struct tensors {
    headway_tensor query, key, value, out, lse, weights, mask, interval, positions[2];
};

/* The operands of one call. `passed` are the views with their leading axes as asked for. */
struct operands {
    headway_tensor query, key, value, out, lse, weights, mask, interval, positions[2];
    struct tensors passed;
    headway_attention_params params;
    struct arena arena;
};

/* ---- descriptions ----------------------------------------------------------------------------
 */

static headway_tensor tensor3(headway_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[3] = {a, b, c};
    return headway_tensor_dense(NULL, dtype, 3, shape);
}

static headway_tensor tensor4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[4] = {a, b, c, d};
    return headway_tensor_dense(NULL, HEADWAY_F32, 4, shape);
}

static void describe_layer(struct operands *o, const struct inputs *in)
{
    const struct drawn_layer *l = in->layer;
    o->query = tensor3(HEADWAY_F32, in->batch, in->queries, l->width[0]);
    o->key = tensor3(HEADWAY_F32, in->batch, in->keys, l->width[1]);
    o->value = tensor3(HEADWAY_F32, in->batch, in->keys, l->width[2]);
    o->out = tensor3(HEADWAY_F32, in->batch, in->queries, l->width[3]);
    o->weights.shape[o->weights.rank - 1] += inputs_appended(in);
    for (int i = 0; i < 2; i++) {
        const int64_t shape[2] = {l->positions_batch, i ? in->keys : in->queries};
        o->positions[i] = headway_tensor_dense(NULL, HEADWAY_I32, l->positions_rank,
                                               shape + 2 - l->positions_rank);
    }
}

/* Dense, without memory. */
static void describe(struct operands *o, const struct inputs *in)
{
    memset(o, 0, sizeof *o);
    o->query = tensor4(in->batch, in->queries, in->heads, in->size);
    o->key = tensor4(in->batch, in->keys, in->kv_heads, in->size);
    o->value = tensor4(in->batch, in->keys, in->kv_heads, in->value_size);
    o->out = tensor4(in->batch, in->queries, in->heads, in->value_size);
    o->lse = tensor3(HEADWAY_F32, in->batch, in->heads, in->queries);
    o->weights = in->weights == 2 ? tensor3(HEADWAY_F32, in->batch, in->queries, in->keys)
                                  : tensor4(in->batch, in->heads, in->queries, in->keys);
    o->mask = headway_tensor_dense(NULL, in->mask_dtype, in->mask_rank, in->mask_shape);
    o->interval = tensor3(HEADWAY_I32, in->interval_batch, in->queries, 2);
    if (in->interval && in->interval_rank == 2)
        o->interval = headway_tensor_dense(NULL, HEADWAY_I32, 2, o->interval.shape + 1);
    if (in->layer)
        describe_layer(o, in);
}

static unsigned half_bits(float x)
{
    int exponent;
    const unsigned sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return 0x7e01;
    if (isinf(x))
        return sign | 0x7c00;
    const float fraction = frexpf(fabsf(x), &exponent);
    if (x == 0 || exponent < -13)
        return sign | (unsigned)ldexpf(fabsf(x), 24);
    return sign | ((unsigned)(exponent + 14) << 10) | ((unsigned)ldexpf(fraction, 11) & 0x3ff);
}

/* The mask in its own type, row-major; the caller frees it. */
static void *encode_mask(const struct inputs *in)
{
    static const unsigned char truths[] = {1, 2, 0x80, 0xff};
    int64_t count = 1;
    for (int i = 0; i < in->mask_rank; i++)
        count *= in->mask_shape[i];
    unsigned char *bytes = malloc((size_t)(count + 1) * sizeof(float));
    if (!bytes) {
        perror("test");
        exit(1);
    }
    for (int64_t n = 0; n < count; n++) {
        uint32_t bits;
        memcpy(&bits, &in->mask[n], sizeof bits);
        const uint16_t half =
            (uint16_t)(in->mask_dtype == HEADWAY_F16 ? half_bits(in->mask[n]) : bits >> 16);
        if (in->mask_dtype == HEADWAY_BOOL)
            bytes[n] = in->mask[n] != 0 ? truths[n % 4] : 0;
        else if (in->mask_dtype == HEADWAY_F32)
            memcpy(bytes + n * 4, &bits, 4);
        else
            memcpy(bytes + n * 2, &half, 2);
    }
    return bytes;
}

static headway_attention_params options(const struct inputs *in)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    params.scale = in->has_scale ? &in->scale : NULL;
    params.softcap = in->softcap;
    params.causal = in->causal;
    params.window_left = in->window_left;
    params.window_right = in->window_right;
    params.window_first = in->window_first;
    params.sequences = in->query_starts ? in->sequences : 0;
    return params;
}

/* ---- layout ----------------------------------------------------------------------------------
 */

enum { BHLD = 1, INTERLEAVED, GAPS, BACKWARDS };

static void lay_operand(headway_tensor *t, int layout, int shared)
{
    static const int blhd[4] = {0, 1, 2, 3}, bhld[4] = {0, 2, 1, 3};
    lay(t, layout == BHLD ? bhld : blhd, 1, layout == GAPS ? 3 : 0, layout == BACKWARDS);
    if (t->shape[t->rank - 1] != 1)
        t->stride[t->rank - 1] = 1;
    for (int axis = 0; axis < 3; axis++)
        if (shared & (int[]){1, 4, 2}[axis])
            t->stride[axis] = 0;
}

/* Views side by side in one buffer of (B, L, width). */
static void interleave(struct arena *a, headway_tensor *const *views, int count)
{
    int64_t width = 0;
    for (int i = 0; i < count; i++)
        width += views[i]->shape[2] * views[i]->shape[3];
    float *data = arena_add(a, 0, views[0]->shape[0] * views[0]->shape[1] * width, sizeof(float));
    for (int i = 0; i < count; i++) {
        headway_tensor *t = views[i];
        t->data = data;
        t->stride[0] = t->shape[1] * width;
        t->stride[1] = width;
        t->stride[2] = t->shape[3];
        t->stride[3] = 1;
        data += t->shape[2] * t->shape[3];
    }
}

static void lay_tokens(struct operands *o, const struct inputs *in)
{
    headway_tensor *const all[4] = {&o->query, &o->key, &o->value, &o->out};
    for (int i = 0; i < 4; i++) {
        const float *tokens = i < 3 ? in->layer->tokens[i] : NULL;
        if (i < 3 && !tokens)
            continue;
        lay_operand(all[i], in->layout, 0);
        arena_place(&o->arena, all[i]);
        if (tokens)
            scatter(all[i], tokens);
    }
}

static void lay_tensors(struct operands *o, const struct inputs *in)
{
    headway_tensor *all[4] = {&o->query, &o->out, &o->key, &o->value};
    if (in->layout == INTERLEAVED && in->queries == in->keys) {
        interleave(&o->arena, all, 4);
    } else if (in->layout == INTERLEAVED) {
        interleave(&o->arena, all, 2);
        interleave(&o->arena, all + 2, 2);
    } else {
        for (int i = 0; i < 4; i++) {
            lay_operand(all[i], in->layout, all[i] == &o->out ? 0 : in->shared);
            arena_place(&o->arena, all[i]);
        }
    }
    scatter(&o->query, in->query);
    scatter(&o->key, in->key);
    scatter(&o->value, in->value);
}

/* Lays out lse, weights, mask or interval; `turned` is the order of its axes in BHLD. */
static void lay_extra(struct operands *o, const struct inputs *in, headway_tensor *t,
                      const int *turned, int unit)
{
    static const int same[4] = {0, 1, 2, 3};
    lay(t, in->layout == BHLD ? turned : same, in->layout == GAPS && !unit ? 3 : 1,
        in->layout == GAPS ? 5 : 0, in->layout == BACKWARDS);
    if (unit && t->shape[t->rank - 1] != 1)
        t->stride[t->rank - 1] = 1;
    arena_place(&o->arena, t);
}

static void lay_extras(struct operands *o, const struct inputs *in)
{
    static const int turn3[3] = {0, 2, 1}, swap4[4] = {0, 1, 3, 2}, swap2[2] = {1, 0}, one[1] = {0},
                     heads_inner[4] = {0, 2, 1, 3}, rows3[3] = {1, 0, 2};
    if (in->lse)
        lay_extra(o, in, &o->lse, turn3, 0);
    if (in->weights)
        lay_extra(o, in, &o->weights, in->weights == 2 ? rows3 : heads_inner, 1);
    if (in->interval) {
        lay_extra(o, in, &o->interval, in->interval_rank == 2 ? swap2 : turn3, 0);
        scatter(&o->interval, in->interval);
    }
    if (in->mask_rank) {
        void *dense = encode_mask(in);
        lay_extra(o, in, &o->mask,
                  in->mask_rank == 4   ? swap4
                  : in->mask_rank == 2 ? swap2
                                       : one,
                  0);
        scatter(&o->mask, dense);
        free(dense);
    }
    for (int i = 0; in->layer && i < 2; i++)
        if (in->layer->positions[i]) {
            lay_extra(o, in, &o->positions[i], in->layer->positions_rank == 2 ? swap2 : one, 0);
            scatter(&o->positions[i], in->layer->positions[i]);
        }
}

/* A guarded copy of an array of an option; NULL stays NULL. */
static void *lay_array(struct operands *o, const void *from, int64_t count, size_t size)
{
    if (!from)
        return NULL;
    void *to = arena_add(&o->arena, 0, count, size);
    if (count)
        memcpy(to, from, (size_t)count * size);
    return to;
}

static void lay_arrays(struct operands *o, const struct inputs *in)
{
    headway_attention_params *p = &o->params;
    const int64_t batches = inputs_batches(in);
    p->scale = lay_array(o, p->scale, 1, sizeof(float));
    p->row_offsets = lay_array(o, in->row_offsets, batches, sizeof(int64_t));
    p->query_lengths = lay_array(o, in->query_lengths, batches, sizeof(int64_t));
    p->key_lengths = lay_array(o, in->key_lengths, batches, sizeof(int64_t));
    p->query_starts = lay_array(o, in->query_starts, batches + 1, sizeof(int64_t));
    p->key_starts = lay_array(o, in->key_starts, batches + 1, sizeof(int64_t));
    p->alibi_slopes = lay_array(o, in->slopes, in->heads, sizeof(float));
    p->sinks = lay_array(o, in->sinks, in->heads, sizeof(float));
}

/* ---- leading axes ------------------------------------------------------------------------------
 */

/* The batch axis taken away, or split in two. */
static headway_tensor led(const headway_tensor *t, int leading)
{
    headway_tensor to = *t;
    if (leading == 1) {
        to.rank--;
        memmove(to.shape, t->shape + 1, (size_t)to.rank * sizeof *to.shape);
        memmove(to.stride, t->stride + 1, (size_t)to.rank * sizeof *to.stride);
        return to;
    }
    const int64_t batch = t->shape[0], first = batch % 2 == 0 ? 2 : batch % 3 == 0 ? 3 : 1;
    to.rank++;
    memmove(to.shape + 1, t->shape, (size_t)t->rank * sizeof *to.shape);
    memmove(to.stride + 1, t->stride, (size_t)t->rank * sizeof *to.stride);
    to.shape[0] = batch == 0 ? 0 : first;
    to.shape[1] = batch == 0 ? 3 : batch / first;
    to.stride[0] = t->stride[0] * to.shape[1];
    if (batch == 1)
        to.stride[0] = 77;
    return to;
}

static void lead(struct operands *o, const struct inputs *in)
{
    const int leading = in->leading, extras = leading == 3;
    o->passed.query = leading ? led(&o->query, leading) : o->query;
    o->passed.key = leading ? led(&o->key, leading) : o->key;
    o->passed.value = leading ? led(&o->value, leading) : o->value;
    o->passed.out = leading ? led(&o->out, leading) : o->out;
    o->passed.lse = extras ? led(&o->lse, 2) : o->lse;
    o->passed.weights = extras ? led(&o->weights, 2) : o->weights;
    const int mask_leads = extras && in->mask_rank == 4 && in->mask_shape[0] == in->batch;
    o->passed.mask = mask_leads ? led(&o->mask, 2) : o->mask;
    const int interval_leads =
        extras && in->interval && in->interval_rank == 3 && in->interval_batch == in->batch;
    o->passed.interval = interval_leads ? led(&o->interval, 2) : o->interval;
    for (int i = 0; in->layer && i < 2; i++) {
        const int leads = extras && in->layer->positions_rank == 2 && in->layer->positions[i] &&
                          in->layer->positions_batch == in->batch;
        o->passed.positions[i] = leads ? led(&o->positions[i], 2) : o->positions[i];
    }
    if (in->layer && in->layer->positions[0])
        o->params.query_positions = &o->passed.positions[0];
    if (in->layer && in->layer->positions[1])
        o->params.key_positions = &o->passed.positions[1];
    o->params.lse = in->lse ? &o->passed.lse : NULL;
    o->params.weights = in->weights ? &o->passed.weights : NULL;
    o->params.mask = in->mask_rank ? &o->passed.mask : NULL;
    o->params.interval = in->interval ? &o->passed.interval : NULL;
}

/* ---- the call ----------------------------------------------------------------------------------
 */

static float *result(int64_t count)
{
    float *memory = malloc((size_t)(count + 1) * sizeof *memory);
    if (!memory) {
        perror("test");
        exit(1);
    }
    return memory;
}

static void take(const struct operands *o, const struct inputs *in, struct results *r)
{
    const int64_t *lengths = in->query_lengths;
    r->outs = elements(&o->out);
    r->out = result(r->outs);
    arena_take(&o->arena, &o->out, lengths, 1, 0.0f, r->out);
    if (in->lse) {
        r->lses = elements(&o->lse);
        r->lse = result(r->lses);
        arena_take(&o->arena, &o->lse, lengths, 2, -INFINITY, r->lse);
    }
    if (in->weights) {
        r->weight_count = elements(&o->weights);
        r->weights = result(r->weight_count);
        arena_take(&o->arena, &o->weights, lengths, in->weights == 2 ? 1 : 2, 0.0f, r->weights);
    }
}

/* Workspace and call, of the core or the layer. */
static headway_status call(const headway_engine *engine, headway_mha *layer,
                           const struct inputs *in, struct operands *o)
{
    const struct tensors *t = &o->passed;
    const headway_tensor *key = in->layer && in->layer->self == 2 ? NULL : &t->key;
    const headway_tensor *value = in->layer && in->layer->self ? NULL : &t->value;
    struct cached_call cached;
    size_t bytes = 0;
    if (in->cache) {
        cached_call_begin(&cached, engine, layer, in, &o->params);
        key = cached.key_given;
        value = cached.value_given;
    }
    headway_status status =
        layer ? headway_mha_workspace(layer, &o->params, &t->query, key, value, &bytes)
              : headway_attention_workspace(engine, &o->params, &t->query, key, value, &bytes);
    void *workspace = check_guard(bytes, in->at_end && bytes % HEADWAY_WORKSPACE_ALIGNMENT == 0);
    check_poison(workspace, (int64_t)(bytes / sizeof(float)));
    environment_enter();
    if (status == HEADWAY_OK && layer)
        status = headway_mha_forward(layer, &o->params, &t->query, key, value, &t->out, workspace,
                                     bytes);
    else if (status == HEADWAY_OK)
        status =
            headway_attention(engine, &o->params, &t->query, key, value, &t->out, workspace, bytes);
    environment_leave(in->flags_free);
    check_guard_free(workspace);
    if (in->cache)
        cached_call_end(&cached, in);
    return status;
}

struct results inputs_attend(const headway_engine *engine, const struct inputs *in)
{
    struct operands o;
    struct results r = {0};
    char text[400];
    headway_mha *layer = in->layer ? inputs_layer(engine, in) : NULL;

    describe(&o, in);
    o.arena.at_end = in->at_end;
    o.params = options(in);
    if (in->layer)
        lay_tokens(&o, in);
    else
        lay_tensors(&o, in);
    lay_extras(&o, in);
    lay_arrays(&o, in);
    lead(&o, in);
    arena_seal(&o.arena);
    const headway_status status = in->layer && !layer ? HEADWAY_OK : call(engine, layer, in, &o);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s", headway_status_text(status), text);
    take(&o, in, &r);
    arena_release(&o.arena);
    headway_mha_destroy(layer);
    return r;
}

float *results_out(const struct inputs *in, const struct results *r, int64_t b, int64_t i,
                   int64_t h)
{
    const int64_t row = in->query_starts ? in->query_starts[b] + i : b * in->queries + i;
    return r->out + (row * in->heads + h) * in->value_size;
}

void results_free(struct results *r)
{
    free(r->out);
    free(r->lse);
    free(r->weights);
    memset(r, 0, sizeof *r);
}

void results_bits(const struct results *got, const struct results *expected, const char *what)
{
    char name[200];
    snprintf(name, sizeof name, "%s: out", what);
    check_bits(got->out, expected->out, got->outs, name);
    snprintf(name, sizeof name, "%s: lse", what);
    if (got->lse && expected->lse)
        check_bits(got->lse, expected->lse, got->lses, name);
    snprintf(name, sizeof name, "%s: weights", what);
    if (got->weights && expected->weights)
        check_bits(got->weights, expected->weights, got->weight_count, name);
}

/* ---- the reference -----------------------------------------------------------------------------
 */

static int refer_layer(const struct inputs *in, struct operands *o,
                       const struct headway_reference_out *results)
{
    const struct drawn_layer *l = in->layer;
    struct layer_views v;
    inputs_layer_views(in, &v);
    const headway_tensor *key = l->self == 2 ? NULL : &o->key;
    const headway_tensor *value = l->self ? NULL : &o->value;
    o->query.data = l->tokens[0];
    o->key.data = l->tokens[1];
    o->value.data = l->tokens[2];
    o->positions[0].data = l->positions[0];
    o->positions[1].data = l->positions[1];
    o->params.query_positions = l->positions[0] ? &o->positions[0] : NULL;
    o->params.key_positions = l->positions[1] ? &o->positions[1] : NULL;
    if (in->cache && in->cache->lossy) {
        o->key = tensor4(in->batch, in->keys, in->kv_heads, in->size);
        o->value = tensor4(in->batch, in->keys, in->kv_heads, in->value_size);
        o->key.data = in->cache->stored[0];
        o->value.data = in->cache->stored[1];
        key = &o->key;
        value = &o->value;
    }
    return headway_reference_mha(&v.config, &v.weights, &o->params, &o->query, key, value, results);
}

struct reference inputs_reference(struct inputs *in)
{
    struct operands o;
    struct reference r;
    describe(&o, in);
    void *mask = in->mask_rank ? encode_mask(in) : NULL;
    o.query.data = in->query;
    o.key.data = in->key;
    o.value.data = in->value;
    o.mask.data = mask;
    o.interval.data = in->interval;
    o.params = options(in);
    o.params.row_offsets = in->row_offsets;
    o.params.query_lengths = in->query_lengths;
    o.params.key_lengths = in->key_lengths;
    o.params.query_starts = in->query_starts;
    o.params.key_starts = in->key_starts;
    o.params.alibi_slopes = in->slopes;
    o.params.sinks = in->sinks;
    o.params.mask = mask ? &o.mask : NULL;
    o.params.interval = in->interval ? &o.interval : NULL;

    const int64_t outs = elements(&o.out), lses = elements(&o.lse);
    const int64_t weights = in->weights ? elements(&o.weights) : 0;
    double *all = inputs_room(in, 2 * (outs + lses + weights), sizeof *all);
    r.out = all;
    r.out_bound = r.out + outs;
    r.lse = r.out_bound + outs;
    r.lse_bound = r.lse + lses;
    r.weights = in->weights ? r.lse_bound + lses : NULL;
    r.weights_bound = in->weights ? r.weights + weights : NULL;
    const struct headway_reference_out results = {
        .out = r.out,
        .out_bound = r.out_bound,
        .lse = r.lse,
        .lse_bound = r.lse_bound,
        .probs = in->weights == 1 ? r.weights : NULL,
        .probs_bound = in->weights == 1 ? r.weights_bound : NULL,
        .mean = in->weights == 2 ? r.weights : NULL,
        .mean_bound = in->weights == 2 ? r.weights_bound : NULL,
    };
    const int status =
        in->layer ? refer_layer(in, &o, &results)
                  : headway_reference_attention(&o.params, &o.query, &o.key, &o.value, &results);
    CHECK(status == 0, "the reference has no memory");
    free(mask);
    return r;
}

struct errors results_compare(const struct results *got, const struct reference *expected)
{
    struct errors e = {0, 0, 0};
    /* A weight so small that it is 0 makes NaN of an infinite value. */
    for (int64_t n = 0; n < got->outs; n++)
        if (isinf(expected->out[n]) && isinf(expected->out_bound[n]) && isnan(got->out[n]))
            expected->out[n] = NAN;
    e.out = check_bound(got->out, expected->out, expected->out_bound, got->outs, "out");
    if (got->lse)
        e.lse = check_bound(got->lse, expected->lse, expected->lse_bound, got->lses, "lse");
    if (got->weights)
        e.weights = check_bound(got->weights, expected->weights, expected->weights_bound,
                                got->weight_count, "weights");
    return e;
}
