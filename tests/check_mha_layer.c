#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "check_mha.h"
#include "oracle/reference.h"

static float *floats(int64_t count)
{
    float *memory = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    if (!memory) {
        perror("test");
        exit(1);
    }
    return memory;
}

static int64_t groups_of(const struct layer *l, int projection)
{
    const struct shape *s = &l->options->shape;
    return projection == QUERY ? s->heads : projection == OUT ? 1 : s->kv_heads;
}

int64_t outputs_of(const struct layer *l, int projection)
{
    const struct shape *s = &l->options->shape;
    if (projection == OUT)
        return l->widths.out;
    return groups_of(l, projection) * (projection == VALUE ? s->value_size : s->size);
}

int64_t inputs_of(const struct layer *l, int projection)
{
    const struct shape *s = &l->options->shape;
    return projection == OUT ? s->heads * s->value_size : l->widths.in[projection];
}

static int64_t rows_of(const struct layer *l, int projection)
{
    return projection == QUERY ? l->options->shape.queries : l->options->shape.keys;
}

struct layer *layer_make(const struct shape *shape, const struct widths *widths, uint64_t seed)
{
    struct layer *l = (struct layer *)(void *)floats(sizeof *l / sizeof(float) + 1);
    const int64_t width = shape->heads * shape->size;
    const struct widths same = {{width, width, width}, width};
    memset(l, 0, sizeof *l);
    l->rope = (headway_rope_config)HEADWAY_ROPE_CONFIG_INIT;
    l->options = problem_make(shape, seed);
    l->widths = widths ? *widths : same;
    uint64_t *random = &l->options->random;
    for (int i = 0; i < PROJECTIONS; i++) {
        const int64_t outputs = outputs_of(l, i), inputs = inputs_of(l, i);
        l->weight[i] = floats(outputs * inputs);
        l->bias[i] = floats(outputs);
        check_fill_normal(random, l->weight[i], outputs * inputs, 1.2f / sqrtf((float)inputs));
        check_fill_normal(random, l->bias[i], outputs, 0.3f);
        if (i == OUT)
            continue;
        const int64_t count = shape->batch * rows_of(l, i) * inputs;
        l->tokens[i] = floats(count);
        check_fill_normal(random, l->tokens[i], count, 1);
    }
    return l;
}

void layer_free(struct layer *l)
{
    for (int i = 0; i < PROJECTIONS; i++) {
        free(l->weight[i]);
        free(l->bias[i]);
        if (i == OUT)
            continue;
        free(l->tokens[i]);
        free(l->more[i]);
        if (i != VALUE) {
            free(l->norm[i]);
            free(l->positions[i]);
        }
    }
    problem_free(l->options);
    free(l);
}

void layer_drop_bias(struct layer *l, int projection)
{
    free(l->bias[projection]);
    l->bias[projection] = NULL;
}

void layer_share(struct layer *l, int key_is_query)
{
    free(l->tokens[VALUE]);
    l->tokens[VALUE] = NULL;
    if (key_is_query) {
        free(l->tokens[KEY]);
        l->tokens[KEY] = NULL;
    }
}

float *token(const struct layer *l, int projection, int64_t b, int64_t i)
{
    while (projection > QUERY && !l->tokens[projection])
        projection--;
    return l->tokens[projection] + (b * rows_of(l, projection) + i) * l->widths.in[projection];
}

void layer_lengths(struct layer *l, int query, int key)
{
    const struct shape *s = &l->options->shape;
    problem_lengths(l->options, query, key);
    for (int i = QUERY; i <= VALUE; i++) {
        if (!l->tokens[i] || (i == QUERY && !l->tokens[KEY]))
            continue;
        for (int64_t b = 0; b < s->batch; b++) {
            const int64_t from =
                i == QUERY ? query_length(l->options, b) : key_length(l->options, b);
            for (int64_t row = from; row < rows_of(l, i); row++)
                check_poison(token(l, i, b, row), l->widths.in[i]);
        }
    }
}

void layer_norms(struct layer *l)
{
    const int64_t size = l->options->shape.size;
    for (int i = QUERY; i <= KEY; i++) {
        l->norm[i] = floats(size);
        for (int64_t d = 0; d < size; d++)
            l->norm[i][d] = 1 + 0.3f * check_normal(&l->options->random);
    }
}

void layer_more(struct layer *l)
{
    for (int i = KEY; i <= VALUE; i++) {
        l->more[i] = floats(outputs_of(l, i));
        check_fill_normal(&l->options->random, l->more[i], outputs_of(l, i), 1);
    }
}

void layer_positions(struct layer *l, int projection, int64_t batch, int64_t most)
{
    const int64_t rows = rows_of(l, projection), batches = batch > 0 ? batch : 1;
    int32_t *to = l->positions[projection] = (int32_t *)(void *)floats(batches * rows);
    l->positions_batch = batch;
    for (int64_t b = 0; b < batches; b++)
        for (int64_t i = 0; i < rows; i++) {
            int live = batch < l->options->shape.batch;
            live |=
                i < (projection == QUERY ? query_length(l->options, b) : key_length(l->options, b));
            to[b * rows + i] =
                live ? (int32_t)(check_random(&l->options->random) % (uint64_t)most) : -77;
        }
}

void layer_pack(struct layer *l, int64_t sequences)
{
    struct problem *p = l->options;
    p->sequences = sequences;
    for (int64_t b = 0; b <= sequences; b++) {
        p->query_starts[b] =
            b == sequences ? p->shape.queries : p->shape.queries * b * b / (sequences * sequences);
        p->key_starts[b] = p->shape.keys * b / sequences;
    }
    if (sequences > 2)
        p->key_starts[2] = p->key_starts[1];
}

int64_t layer_keys(const struct layer *l)
{
    return l->options->shape.keys + (l->more[KEY] != NULL) + l->zero;
}

/* The layer beside its projections, in memory of the arena, or in place where that is NULL. */
struct extras {
    headway_tensor norm[2], more[3];
};

static const headway_tensor *store_extra(struct arena *arena, headway_tensor *t, int rank,
                                         int64_t heads, int64_t size, float *dense)
{
    static const int order[2] = {0, 1};
    const int64_t shape[2] = {heads, size};
    if (!dense)
        return NULL;
    *t = headway_tensor_dense(dense, HEADWAY_F32, rank, rank == 2 ? shape : shape + 1);
    if (!arena)
        return t;
    lay(t, order, 2, 3, arena->used & 1);
    arena_place(arena, t);
    scatter(t, dense);
    return t;
}

static void store_extras(const struct layer *l, struct arena *arena, struct extras *e,
                         headway_mha_config *config, headway_mha_weights *w)
{
    const struct shape *s = &l->options->shape;
    config->rope = l->rope.style != HEADWAY_ROPE_NONE ? &l->rope : NULL;
    config->norm_eps = l->norm_eps;
    config->add_zero_attn = l->zero;
    w->query_norm = store_extra(arena, &e->norm[QUERY], 1, 0, s->size, l->norm[QUERY]);
    w->key_norm = store_extra(arena, &e->norm[KEY], 1, 0, s->size, l->norm[KEY]);
    w->bias_k = store_extra(arena, &e->more[KEY], 2, s->kv_heads, s->size, l->more[KEY]);
    w->bias_v = store_extra(arena, &e->more[VALUE], 2, s->kv_heads, s->value_size, l->more[VALUE]);
}

/* ---- storage ----------------------------------------------------------------------------------
 */

struct stored {
    struct arena arena;
    headway_tensor weight[PROJECTIONS], bias[PROJECTIONS], fused, fused_bias;
};

/* Element (output o, input p) of row-major data into the tensor, whose axes are (outputs, inputs),
 * (inputs, outputs) or the same with outputs split in two. */
static void fill_weight(const headway_tensor *t, int transposed, const float *dense, int64_t inputs)
{
    const int64_t size = t->rank == 3 ? t->shape[transposed ? 2 : 1] : 1;
    const int64_t outputs = elements(t) / inputs;
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t p = 0; p < inputs; p++) {
            int64_t offset;
            if (t->rank == 2)
                offset = transposed ? p * t->stride[0] + o * t->stride[1]
                                    : o * t->stride[0] + p * t->stride[1];
            else if (transposed)
                offset = p * t->stride[0] + o / size * t->stride[1] + o % size * t->stride[2];
            else
                offset = o / size * t->stride[0] + o % size * t->stride[1] + p * t->stride[2];
            ((float *)t->data)[offset] = dense[o * inputs + p];
        }
}

static void store_one(struct stored *m, const struct layer *l, int i, enum storage storage)
{
    static const int order[4] = {0, 1, 2, 3};
    const int heads = i != OUT && (storage == STORED_HEADS || storage == STORED_HEADS_TRANSPOSED);
    const int transposed = storage == STORED_TRANSPOSED || storage == STORED_HEADS_TRANSPOSED ||
                           storage == STORED_FUSED_TRANSPOSED;
    const int64_t outputs = outputs_of(l, i), inputs = inputs_of(l, i);
    const int64_t groups = groups_of(l, i), size = outputs / groups;
    const int64_t plain[2] = {outputs, inputs}, turned[2] = {inputs, outputs};
    const int64_t plain_heads[3] = {groups, size, inputs}, turned_heads[3] = {inputs, groups, size};
    const int64_t bias_heads[2] = {groups, size};
    const int gaps = storage == STORED_HEADS ? 3 : 0, step = gaps && i != OUT ? 2 : 1;
    const int backwards = storage == STORED_BACKWARDS;
    headway_tensor *weight = &m->weight[i], *bias = &m->bias[i];

    *weight = headway_tensor_dense(NULL, HEADWAY_F32, heads ? 3 : 2,
                                   heads ? (transposed ? turned_heads : plain_heads)
                                         : (transposed ? turned : plain));
    lay(weight, order, step, gaps, backwards);
    arena_place(&m->arena, weight);
    fill_weight(weight, transposed, l->weight[i], inputs);
    if (!l->bias[i])
        return;
    *bias = headway_tensor_dense(NULL, HEADWAY_F32, heads ? 2 : 1, heads ? bias_heads : &outputs);
    lay(bias, order, step, gaps, backwards);
    arena_place(&m->arena, bias);
    scatter(bias, l->bias[i]);
}

static int is_fusible(const struct layer *l)
{
    const int biases = (l->bias[QUERY] != NULL) + (l->bias[KEY] != NULL) + (l->bias[VALUE] != NULL);
    return l->widths.in[QUERY] == l->widths.in[KEY] && l->widths.in[QUERY] == l->widths.in[VALUE] &&
           biases % 3 == 0;
}

/* Rows of all three one below the other. */
static void store_fused(struct stored *m, const struct layer *l, int transposed)
{
    static const int order[2] = {0, 1};
    const int64_t inputs = l->widths.in[0];
    const int64_t outputs = outputs_of(l, QUERY) + outputs_of(l, KEY) + outputs_of(l, VALUE);
    const int64_t plain[2] = {outputs, inputs}, turned[2] = {inputs, outputs};
    int64_t first = 0;
    m->fused = headway_tensor_dense(NULL, HEADWAY_F32, 2, transposed ? turned : plain);
    lay(&m->fused, order, 1, 5, 0);
    arena_place(&m->arena, &m->fused);
    m->fused_bias = headway_tensor_dense(NULL, HEADWAY_F32, 1, &outputs);
    arena_place(&m->arena, &m->fused_bias);
    for (int i = QUERY; i <= VALUE; i++) {
        headway_tensor part = m->fused;
        const int axis = transposed ? 1 : 0;
        part.shape[axis] = outputs_of(l, i);
        part.data = (float *)m->fused.data + first * m->fused.stride[axis];
        fill_weight(&part, transposed, l->weight[i], inputs);
        if (l->bias[i])
            memcpy((float *)m->fused_bias.data + first, l->bias[i],
                   (size_t)part.shape[axis] * sizeof(float));
        first += outputs_of(l, i);
    }
}

/* (heads, query + key + value rows, inputs), each a view of it. */
static void store_interleaved(struct stored *m, const struct layer *l)
{
    const struct shape *s = &l->options->shape;
    const int64_t inputs = l->widths.in[0], rows = 2 * s->size + s->value_size;
    float *weights = arena_add(&m->arena, 0, s->heads * rows * inputs, sizeof(float));
    float *biases = arena_add(&m->arena, 0, s->heads * rows, sizeof(float));
    for (int i = QUERY; i <= VALUE; i++) {
        const int64_t size = i == VALUE ? s->value_size : s->size;
        const int64_t shape[3] = {s->heads, size, inputs};
        m->weight[i] = headway_tensor_dense(weights + i * s->size * inputs, HEADWAY_F32, 3, shape);
        m->weight[i].stride[0] = rows * inputs;
        fill_weight(&m->weight[i], 0, l->weight[i], inputs);
        m->bias[i] = headway_tensor_dense(biases + i * s->size, HEADWAY_F32, 2, shape);
        m->bias[i].stride[0] = rows;
        if (l->bias[i])
            scatter(&m->bias[i], l->bias[i]);
    }
}

headway_mha *layer_create(const headway_engine *engine, const struct layer *l, enum storage storage)
{
    const struct shape *s = &l->options->shape;
    struct stored m = {.arena = {.at_end = storage & 1}};
    struct extras extras;
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    headway_mha *mha = NULL;
    char text[400];
    const int fused = storage == STORED_FUSED || storage == STORED_FUSED_TRANSPOSED;

    if ((fused && !is_fusible(l)) ||
        (storage == STORED_INTERLEAVED && (!is_fusible(l) || s->heads != s->kv_heads)))
        return NULL;
    if (fused)
        store_fused(&m, l, storage == STORED_FUSED_TRANSPOSED);
    else if (storage == STORED_INTERLEAVED)
        store_interleaved(&m, l);
    else
        for (int i = QUERY; i <= VALUE; i++)
            store_one(&m, l, i, storage);
    store_one(&m, l, OUT, storage);
    config.heads = s->heads;
    config.kv_heads = s->kv_heads == s->heads ? 0 : s->kv_heads;
    config.head_size = fused && s->size != s->value_size ? s->size : 0;
    config.value_head_size = fused && s->size != s->value_size ? s->value_size : 0;
    config.transposed = m.weight[OUT].shape[0] == inputs_of(l, OUT) && storage != STORED_PLAIN &&
                        (storage == STORED_TRANSPOSED || storage == STORED_HEADS_TRANSPOSED ||
                         storage == STORED_FUSED_TRANSPOSED);
    w.fused = fused ? &m.fused : NULL;
    w.fused_bias = fused && l->bias[QUERY] ? &m.fused_bias : NULL;
    w.query = fused ? NULL : &m.weight[QUERY];
    w.key = fused ? NULL : &m.weight[KEY];
    w.value = fused ? NULL : &m.weight[VALUE];
    w.query_bias = fused || !l->bias[QUERY] ? NULL : &m.bias[QUERY];
    w.key_bias = fused || !l->bias[KEY] ? NULL : &m.bias[KEY];
    w.value_bias = fused || !l->bias[VALUE] ? NULL : &m.bias[VALUE];
    w.out = &m.weight[OUT];
    w.out_bias = l->bias[OUT] ? &m.bias[OUT] : NULL;
    store_extras(l, &m.arena, &extras, &config, &w);
    arena_seal(&m.arena);
    const headway_status status = headway_mha_create(engine, &config, &w, &mha);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "storage %d: %s: %s", storage, headway_status_text(status), text);
    arena_release(&m.arena);
    return mha;
}

/* ---- forward ----------------------------------------------------------------------------------
 */

headway_tensor tokens_tensor(const struct layer *l, int projection)
{
    const int64_t shape[3] = {l->options->shape.batch, rows_of(l, projection),
                              l->widths.in[projection]};
    return headway_tensor_dense(l->tokens[projection], HEADWAY_F32, 3, shape);
}

static void lay_tokens(headway_tensor *t, enum layout layout)
{
    static const int order[3] = {0, 1, 2}, turned[3] = {1, 0, 2};
    lay(t, layout == LAYOUT_BHLD ? turned : order, 1, layout == LAYOUT_ODD ? 3 : 0,
        layout == LAYOUT_NEGATIVE);
    if (t->shape[2] != 1)
        t->stride[2] = 1;
}

/* The options' tensors, dense. */
struct options {
    headway_tensor mask, interval, positions[2], weights;
};

static headway_attention_params describe_options(const struct layer *l, struct options *o)
{
    const struct problem *p = l->options;
    const struct shape *s = &p->shape;
    const int64_t interval[3] = {p->interval_batch, s->queries, 2};
    const int64_t weights[4] = {s->batch, s->heads, s->queries, layer_keys(l)};
    const int64_t mean[3] = {s->batch, s->queries, layer_keys(l)};
    o->mask = mask_tensor(p);
    headway_attention_params params = problem_params(p, &o->mask);
    o->interval = headway_tensor_dense(p->interval, HEADWAY_I32, p->interval_batch ? 3 : 2,
                                       interval + (p->interval_batch ? 0 : 1));
    params.interval = p->interval ? &o->interval : NULL;
    for (int i = QUERY; i <= KEY; i++) {
        const int64_t positions[2] = {l->positions_batch, rows_of(l, i)};
        o->positions[i] =
            headway_tensor_dense(l->positions[i], HEADWAY_I32, l->positions_batch ? 2 : 1,
                                 positions + (l->positions_batch ? 0 : 1));
    }
    params.query_positions = l->positions[QUERY] ? &o->positions[QUERY] : NULL;
    params.key_positions = l->positions[KEY] ? &o->positions[KEY] : NULL;
    o->weights = p->weights == WEIGHTS_MEAN ? headway_tensor_dense(NULL, HEADWAY_F32, 3, mean)
                                            : headway_tensor_dense(NULL, HEADWAY_F32, 4, weights);
    params.weights = p->weights != WEIGHTS_NONE ? &o->weights : NULL;
    return params;
}

/* Positions and weights into the arena, weights with room between their lines. */
static void place_options(const struct layer *l, struct options *o, struct arena *arena)
{
    static const int order[4] = {0, 1, 2, 3};
    for (int i = QUERY; i <= KEY; i++) {
        if (!l->positions[i])
            continue;
        lay(&o->positions[i], order, 2, 1, 0);
        arena_place(arena, &o->positions[i]);
        scatter(&o->positions[i], l->positions[i]);
    }
    if (l->options->weights == WEIGHTS_NONE)
        return;
    lay(&o->weights, order, 1, 2, 0);
    arena_place(arena, &o->weights);
}

struct answer forward(const headway_engine *engine, const headway_mha *mha, const struct layer *l,
                      enum layout layout, int at_end)
{
    const struct shape *s = &l->options->shape;
    const int64_t out_shape[3] = {s->batch, s->queries, l->widths.out};
    const int64_t lse_shape[3] = {s->batch, s->heads, s->queries};
    struct arena arena = {.at_end = at_end};
    headway_tensor t[3], out = headway_tensor_dense(NULL, HEADWAY_F32, 3, out_shape);
    headway_tensor lse = headway_tensor_dense(NULL, HEADWAY_F32, 3, lse_shape);
    struct options options;
    const headway_tensor *key = l->tokens[KEY] ? &t[KEY] : NULL;
    const headway_tensor *value = l->tokens[VALUE] ? &t[VALUE] : NULL;
    headway_attention_params params = describe_options(l, &options);
    struct answer a = answer_make(l->options, s->batch * s->queries * l->widths.out);
    size_t bytes = 0;
    char text[400];

    for (int i = QUERY; i <= VALUE; i++) {
        if (!l->tokens[i])
            continue;
        t[i] = tokens_tensor(l, i);
        lay_tokens(&t[i], layout);
        arena_place(&arena, &t[i]);
        scatter(&t[i], l->tokens[i]);
    }
    lay_tokens(&out, layout);
    lay_tokens(&lse, layout == LAYOUT_NEGATIVE ? LAYOUT_NEGATIVE : LAYOUT_DENSE);
    arena_place(&arena, &out);
    arena_place(&arena, &lse);
    place_options(l, &options, &arena);
    arena_seal(&arena);
    params.lse = &lse;
    headway_status status = headway_mha_workspace(mha, &params, &t[QUERY], key, value, &bytes);
    void *workspace = check_guard(bytes, at_end && bytes % HEADWAY_WORKSPACE_ALIGNMENT == 0);
    check_poison(workspace, (int64_t)(bytes / sizeof(float)));
    environment_enter();
    if (status == HEADWAY_OK)
        status = headway_mha_forward(mha, &params, &t[QUERY], key, value, &out, workspace, bytes);
    environment_leave(l->options->flags_free);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "forward: %s: %s", headway_status_text(status), text);
    arena_take(&arena, &out, params.query_lengths, 1, 0.0f, a.out);
    arena_take(&arena, &lse, params.query_lengths, 2, -INFINITY, a.lse);
    if (params.weights) {
        free(a.weights);
        a.all_weights = elements(&options.weights);
        a.weights = floats(a.all_weights);
        arena_take(&arena, &options.weights, params.query_lengths, options.weights.rank - 2, 0.0f,
                   a.weights);
    }
    arena_release(&arena);
    check_guard_free(workspace);
    return a;
}

struct answer forward_once(const headway_engine *engine, const struct layer *l)
{
    headway_mha *mha = layer_create(engine, l, STORED_PLAIN);
    struct answer a = forward(engine, mha, l, LAYOUT_DENSE, 1);
    headway_mha_destroy(mha);
    return a;
}

static double *doubles(int64_t count)
{
    return (double *)(void *)floats(2 * (count > 0 ? count : 1));
}

void layer_reference(const struct layer *l, const headway_attention_params *params,
                     const headway_tensor *query, const headway_tensor *key,
                     const headway_tensor *value, const struct headway_reference_out *results)
{
    const struct shape *s = &l->options->shape;
    headway_tensor weight[PROJECTIONS], bias[PROJECTIONS];
    struct extras extras;
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;

    config.heads = s->heads;
    config.kv_heads = s->kv_heads;
    store_extras(l, NULL, &extras, &config, &w);
    for (int i = 0; i < PROJECTIONS; i++) {
        const int64_t shape[2] = {outputs_of(l, i), inputs_of(l, i)};
        weight[i] = headway_tensor_dense(l->weight[i], HEADWAY_F32, 2, shape);
        bias[i] = headway_tensor_dense(l->bias[i], HEADWAY_F32, 1, shape);
    }
    w.query = &weight[QUERY];
    w.key = &weight[KEY];
    w.value = &weight[VALUE];
    w.out = &weight[OUT];
    w.query_bias = l->bias[QUERY] ? &bias[QUERY] : NULL;
    w.key_bias = l->bias[KEY] ? &bias[KEY] : NULL;
    w.value_bias = l->bias[VALUE] ? &bias[VALUE] : NULL;
    w.out_bias = l->bias[OUT] ? &bias[OUT] : NULL;
    CHECK(headway_reference_mha(&config, &w, params, query, key, value, results) == 0,
          "the reference has no memory");
}

struct expected expect_layer(const struct layer *l)
{
    const struct shape *s = &l->options->shape;
    const int64_t outs = s->batch * s->queries * l->widths.out;
    const int64_t lses = s->batch * s->queries * s->heads, all = lses * layer_keys(l);
    struct expected e = {doubles(outs), doubles(outs), doubles(lses),
                         doubles(lses), doubles(all),  doubles(all)};
    const int mean = l->options->weights == WEIGHTS_MEAN;
    const struct headway_reference_out results = {e.out,
                                                  e.out_bound,
                                                  e.lse,
                                                  e.lse_bound,
                                                  mean ? NULL : e.weights,
                                                  mean ? NULL : e.weights_bound,
                                                  mean ? e.weights : NULL,
                                                  mean ? e.weights_bound : NULL};
    headway_tensor t[3];
    struct options options;
    const headway_attention_params params = describe_options(l, &options);

    for (int i = QUERY; i <= VALUE; i++)
        if (l->tokens[i])
            t[i] = tokens_tensor(l, i);
    layer_reference(l, &params, &t[QUERY], l->tokens[KEY] ? &t[KEY] : NULL,
                    l->tokens[VALUE] ? &t[VALUE] : NULL, &results);
    return e;
}

double compare_layer(const struct layer *l, const struct answer *a, const struct expected *e)
{
    return compare(l->options, a, e);
}
