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
        if (i != OUT)
            free(l->tokens[i]);
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

struct answer forward(const headway_engine *engine, const headway_mha *mha, const struct layer *l,
                      enum layout layout, int at_end)
{
    const struct shape *s = &l->options->shape;
    const int64_t out_shape[3] = {s->batch, s->queries, l->widths.out};
    const int64_t lse_shape[3] = {s->batch, s->heads, s->queries};
    struct arena arena = {.at_end = at_end};
    headway_tensor t[3], out = headway_tensor_dense(NULL, HEADWAY_F32, 3, out_shape);
    headway_tensor lse = headway_tensor_dense(NULL, HEADWAY_F32, 3, lse_shape);
    const headway_tensor mask = mask_tensor(l->options);
    const headway_tensor *key = l->tokens[KEY] ? &t[KEY] : NULL;
    const headway_tensor *value = l->tokens[VALUE] ? &t[VALUE] : NULL;
    headway_attention_params params = problem_params(l->options, &mask);
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

struct expected expect_layer(const struct layer *l)
{
    const struct shape *s = &l->options->shape;
    const size_t outs = (size_t)(s->batch * s->queries * l->widths.out + 1) * sizeof(double);
    const size_t lses = (size_t)(s->batch * s->queries * s->heads + 1) * sizeof(double);
    struct expected e = {malloc(outs), malloc(outs), malloc(lses), malloc(lses)};
    const struct headway_reference_out results = {e.out, e.out_bound, e.lse, e.lse_bound, NULL};
    headway_tensor t[3], weight[PROJECTIONS], bias[PROJECTIONS];
    const headway_tensor mask = mask_tensor(l->options);
    const headway_attention_params params = problem_params(l->options, &mask);
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;

    config.heads = s->heads;
    config.kv_heads = s->kv_heads;
    for (int i = 0; i < PROJECTIONS; i++) {
        const int64_t shape[2] = {outputs_of(l, i), inputs_of(l, i)};
        weight[i] = headway_tensor_dense(l->weight[i], HEADWAY_F32, 2, shape);
        bias[i] = headway_tensor_dense(l->bias[i], HEADWAY_F32, 1, shape);
        if (i != OUT && l->tokens[i])
            t[i] = tokens_tensor(l, i);
    }
    w.query = &weight[QUERY];
    w.key = &weight[KEY];
    w.value = &weight[VALUE];
    w.out = &weight[OUT];
    w.query_bias = l->bias[QUERY] ? &bias[QUERY] : NULL;
    w.key_bias = l->bias[KEY] ? &bias[KEY] : NULL;
    w.value_bias = l->bias[VALUE] ? &bias[VALUE] : NULL;
    w.out_bias = l->bias[OUT] ? &bias[OUT] : NULL;
    CHECK(headway_reference_mha(&config, &w, &params, &t[QUERY], l->tokens[KEY] ? &t[KEY] : NULL,
                                l->tokens[VALUE] ? &t[VALUE] : NULL, &results) == 0,
          "the reference has no memory");
    return e;
}

double compare_layer(const struct layer *l, const struct answer *a, const struct expected *e)
{
    const double out = check_bound(a->out, e->out, e->out_bound, a->outs, problem_name(l->options));
    const double lse = check_bound(a->lse, e->lse, e->lse_bound, a->lses, "lse");
    return out > lse ? out : lse;
}
