#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "check.h"
#include "drawn.h"

enum { QUERY, KEY, VALUE, OUT, PROJECTIONS };

static int64_t below(uint64_t *random, int64_t n)
{
    return n > 0 ? (int64_t)(check_random(random) % (uint64_t)n) : 0;
}

static int64_t outputs_of(const struct inputs *in, int projection)
{
    switch (projection) {
    case QUERY:
        return in->heads * in->size;
    case KEY:
        return in->kv_heads * in->size;
    case VALUE:
        return in->kv_heads * in->value_size;
    default:
        return in->layer->width[OUT];
    }
}

static int64_t inputs_of(const struct inputs *in, int projection)
{
    return projection == OUT ? in->heads * in->value_size : in->layer->width[projection];
}

int64_t inputs_appended(const struct inputs *in)
{
    return in->layer ? (in->layer->more[0] != NULL) + in->layer->zero : 0;
}

/* ---- drawing ---------------------------------------------------------------------------------
 */

static float *normal(struct inputs *in, uint64_t *random, int64_t count, float deviation)
{
    float *data = inputs_room(in, count, sizeof *data);
    check_fill_normal(random, data, count, deviation);
    return data;
}

static void draw_tokens(struct inputs *in, const struct drawn *d, uint64_t *random)
{
    struct drawn_layer *l = in->layer;
    for (int i = QUERY; i <= VALUE; i++) {
        const int64_t count = in->batch * (i == QUERY ? in->queries : in->keys) * l->width[i];
        if (l->self > VALUE - i)
            continue;
        l->tokens[i] = normal(in, random, count, 1);
        for (int64_t n = 0; d->f[DRAW_VALUES] == 3 && n < count; n++)
            l->tokens[i][n] = 0.5f;
        if (d->f[DRAW_VALUES] == 4 && count)
            l->tokens[i][below(random, count)] = NAN;
    }
}

static void draw_scaling(struct inputs *in, int64_t kind, int64_t pairs, uint64_t *random)
{
    headway_rope_config *rope = &in->layer->rope;
    if (kind == 6) {
        in->layer->cos = normal(in, random, rope->positions * pairs, 0.7f);
        in->layer->sin = normal(in, random, rope->positions * pairs, 0.7f);
        return;
    }
    rope->scaling = (headway_rope_scaling)kind;
    rope->factor = kind == HEADWAY_ROPE_PLAIN ? 0 : 2.5;
    if (kind >= HEADWAY_ROPE_DYNAMIC)
        rope->original_positions = below(random, 2) ? 16 : 4096;
    if (kind == HEADWAY_ROPE_LLAMA3) {
        rope->low_freq_factor = 1;
        rope->high_freq_factor = 4;
    }
    if (kind == HEADWAY_ROPE_LONGROPE) {
        double *factors = inputs_room(in, 2 * pairs, sizeof *factors);
        for (int64_t n = 0; n < 2 * pairs; n++)
            factors[n] = 1 + (double)below(random, 64) / 16;
        rope->short_factors = factors;
        rope->long_factors = factors + pairs;
    }
}

static void draw_positions(struct inputs *in, int64_t kind, uint64_t *random)
{
    struct drawn_layer *l = in->layer;
    l->positions_rank = kind == 1 ? 1 : 2;
    l->positions_batch = kind == 3 ? in->batch : 1;
    for (int i = 0; i < 2 && kind > i; i++) {
        const int64_t count = l->positions_batch * (i ? in->keys : in->queries);
        l->positions[i] = inputs_room(in, count, sizeof(int32_t));
        for (int64_t n = 0; n < count; n++)
            l->positions[i][n] = (int32_t)below(random, l->rope.positions);
    }
}

static void draw_rope(struct inputs *in, const struct drawn *d, uint64_t *random)
{
    const int64_t *f = d->f;
    headway_rope_config *rope = &in->layer->rope;
    if (!f[DRAW_ROPE])
        return;
    rope->style = (headway_rope_style)f[DRAW_ROPE];
    rope->rotary_size = 2 * f[DRAW_ROPE_SIZE];
    rope->positions = in->queries + in->keys + 20;
    const int64_t pairs = f[DRAW_ROPE_SIZE] ? f[DRAW_ROPE_SIZE] : in->size / 2;
    draw_scaling(in, f[DRAW_SCALING], pairs, random);
    if (f[DRAW_POSITIONS])
        draw_positions(in, f[DRAW_POSITIONS], random);
}

void drawn_layer_make(struct inputs *in, const struct drawn *d)
{
    const int64_t *f = d->f;
    uint64_t state = d->seed + 1, random = check_random(&state);
    struct drawn_layer *l = in->layer = inputs_room(in, 1, sizeof *l);
    memcpy(l->width, &f[DRAW_WIDTH], sizeof l->width);
    l->self = (int)f[DRAW_SELF];
    l->storage = (int)f[DRAW_STORAGE];
    l->zero = (int)f[DRAW_ZERO];
    l->rope = (headway_rope_config)HEADWAY_ROPE_CONFIG_INIT;
    for (int i = 0; i < PROJECTIONS; i++) {
        const int64_t outputs = outputs_of(in, i), inputs = inputs_of(in, i);
        l->weight[i] = normal(in, &random, outputs * inputs, 1.1f / sqrtf((float)inputs));
        if (f[DRAW_BIASES] >> i & 1)
            l->bias[i] = normal(in, &random, outputs, 0.3f);
    }
    draw_tokens(in, d, &random);
    for (int i = 0; i < 2; i++) {
        if (f[DRAW_NORM])
            l->norm[i] = normal(in, &random, in->size, 1);
        if (f[DRAW_MORE])
            l->more[i] = normal(in, &random, outputs_of(in, KEY + i), 1);
    }
    draw_rope(in, d, &random);
}

/* ---- the layer -------------------------------------------------------------------------------
 */

static const headway_tensor *view(headway_tensor *t, float *data, int rank, int64_t a, int64_t b)
{
    const int64_t shape[2] = {a, b};
    *t = headway_tensor_dense(data, HEADWAY_F32, rank, shape);
    return data ? t : NULL;
}

void inputs_layer_views(const struct inputs *in, struct layer_views *v)
{
    struct drawn_layer *l = in->layer;
    headway_mha_weights *w = &v->weights;
    const headway_tensor **const weights[] = {&w->query, &w->key, &w->value, &w->out},
                                 **const biases[] = {&w->query_bias, &w->key_bias, &w->value_bias,
                                                     &w->out_bias};
    v->config = (headway_mha_config)HEADWAY_MHA_CONFIG_INIT;
    v->weights = (headway_mha_weights)HEADWAY_MHA_WEIGHTS_INIT;
    v->config.heads = in->heads;
    v->config.kv_heads = in->kv_heads;
    v->config.head_size = in->size;
    v->config.value_head_size = in->value_size;
    v->config.add_zero_attn = l->zero;
    v->rope = l->rope;
    if (l->rope.style != HEADWAY_ROPE_NONE)
        v->config.rope = &v->rope;
    for (int i = 0; i < PROJECTIONS; i++) {
        *weights[i] = view(&v->weight[i], l->weight[i], 2, outputs_of(in, i), inputs_of(in, i));
        *biases[i] = view(&v->bias[i], l->bias[i], 1, outputs_of(in, i), 0);
    }
    w->query_norm = view(&v->norm[0], l->norm[0], 1, in->size, 0);
    w->key_norm = view(&v->norm[1], l->norm[1], 1, in->size, 0);
    w->bias_k = view(&v->more[0], l->more[0], 2, in->kv_heads, in->size);
    w->bias_v = view(&v->more[1], l->more[1], 2, in->kv_heads, in->value_size);
    const int64_t pairs = l->rope.rotary_size ? l->rope.rotary_size / 2 : in->size / 2;
    v->rope.cos = view(&v->tables[0], l->cos, 2, l->rope.positions, pairs);
    v->rope.sin = view(&v->tables[1], l->sin, 2, l->rope.positions, pairs);
    if (l->cos)
        v->rope.positions = 0;
}

/* The view's own memory between unreadable pages, its axes in another order when `turned`. */
static void store(struct arena *a, headway_tensor *t, int turned)
{
    static const int same[2] = {0, 1}, swapped[2] = {1, 0};
    const void *dense = t->data;
    if (!dense)
        return;
    lay(t, turned && t->rank == 2 ? swapped : same, 1, 2, 0);
    arena_place(a, t);
    scatter(t, dense);
}

/* The weight as (inputs, outputs). */
static void transpose(headway_tensor *t)
{
    const int64_t extent = t->shape[0], stride = t->stride[0];
    t->shape[0] = t->shape[1];
    t->stride[0] = t->stride[1];
    t->shape[1] = extent;
    t->stride[1] = stride;
}

/* Query, key and value in one, where all or none have biases; else they stay apart. */
static void fuse(struct inputs *in, struct layer_views *v)
{
    const int64_t outputs[3] = {outputs_of(in, QUERY), outputs_of(in, KEY), outputs_of(in, VALUE)};
    const int64_t rows = outputs[0] + outputs[1] + outputs[2], width = in->layer->width[QUERY];
    headway_mha_weights *w = &v->weights;
    if (!w->query_bias != !w->key_bias || !w->query_bias != !w->value_bias)
        return;
    float *weight = inputs_room(in, rows * width, sizeof *weight), *at = weight;
    float *bias = w->query_bias ? inputs_room(in, rows, sizeof *bias) : NULL, *bias_at = bias;
    for (int i = QUERY; i <= VALUE; i++) {
        memcpy(at, v->weight[i].data, (size_t)(outputs[i] * width) * sizeof *at);
        at += outputs[i] * width;
        if (bias)
            memcpy(bias_at, v->bias[i].data, (size_t)outputs[i] * sizeof *bias);
        bias_at = bias ? bias_at + outputs[i] : NULL;
        v->weight[i].data = v->bias[i].data = NULL;
    }
    w->fused = view(&v->weight[QUERY], weight, 2, rows, width);
    w->fused_bias = view(&v->bias[QUERY], bias, 1, rows, 0);
    w->query = w->key = w->value = w->query_bias = w->key_bias = w->value_bias = NULL;
}

headway_mha *inputs_layer(const headway_engine *engine, const struct inputs *in)
{
    struct inputs own = *in;
    struct layer_views v;
    struct arena arena = {.at_end = in->at_end};
    headway_mha *layer = NULL;
    char text[400];
    own.owned_count = 0;
    inputs_layer_views(&own, &v);
    if (own.layer->storage == 2)
        fuse(&own, &v);
    for (int i = 0; i < PROJECTIONS; i++) {
        store(&arena, &v.weight[i], own.layer->storage == 1);
        store(&arena, &v.bias[i], 0);
        if (own.layer->storage == 1)
            transpose(&v.weight[i]);
    }
    for (int i = 0; i < 2; i++) {
        store(&arena, &v.norm[i], 0);
        store(&arena, &v.more[i], 1);
        store(&arena, &v.tables[i], i);
    }
    v.config.transposed = own.layer->storage == 1;
    arena_seal(&arena);
    const headway_status status = headway_mha_create(engine, &v.config, &v.weights, &layer);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "create: %s: %s", headway_status_text(status), text);
    arena_release(&arena);
    for (int i = 0; i < own.owned_count; i++)
        free(own.owned[i]);
    return layer;
}
