#include "cached.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "oracle/reference.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of one pool: elements, and scales of I8; both tensors point into guarded, poisoned memory. */
static void pool_make(struct stored *s, int i, headway_dtype dtype, const int64_t *shape,
                      headway_tensor *tensors)
{
    const size_t size = dtype == HEADWAY_F32 ? 4 : dtype == HEADWAY_I8 ? 1 : 2;
    const size_t lines = (size_t)(shape[0] * shape[1] * shape[2]);
    s->memory[i] = check_guard(lines * (size_t)shape[3] * size, 1);
    memset(s->memory[i], 0xff, lines * (size_t)shape[3] * size);
    tensors[i] = headway_tensor_dense(s->memory[i], dtype, 4, shape);
    if (dtype != HEADWAY_I8)
        return;
    s->memory[i + 2] = check_guard(lines * 4, 1);
    memset(s->memory[i + 2], 0xff, lines * 4);
    tensors[i + 2] = headway_tensor_dense(s->memory[i + 2], HEADWAY_F32, 3, shape);
}

struct stored stored_make(const headway_engine *engine, const struct way *way, int64_t sequences,
                          int64_t kv_heads, int64_t size, int64_t value_size, int64_t capacity)
{
    struct stored s = {NULL, kv_heads, size, value_size, {0}, {NULL}};
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    headway_tensor tensors[4];
    char text[400];
    config.sequences = sequences + way->turned > 0 ? sequences + way->turned : 1;
    config.kv_heads = kv_heads;
    config.head_size = size;
    config.value_head_size = value_size;
    config.capacity = capacity > 0 ? capacity : 1;
    config.key_dtype = way->key;
    config.value_dtype = way->value;
    config.page_size = way->page;
    config.rolling = way->rolling;
    config.pinned = way->pinned;
    int64_t shape[4] = {config.sequences, kv_heads, config.capacity, size};
    if (way->page) {
        shape[0] = config.pages = config.sequences * ((config.capacity - 1) / way->page + 1);
        shape[2] = way->page;
    }
    pool_make(&s, 0, way->key, shape, tensors);
    shape[3] = value_size;
    pool_make(&s, 1, way->value, shape, tensors);
    config.key = &tensors[0];
    config.value = &tensors[1];
    config.key_scale = way->key == HEADWAY_I8 ? &tensors[2] : NULL;
    config.value_scale = way->value == HEADWAY_I8 ? &tensors[3] : NULL;
    const headway_status status = headway_kv_cache_create(engine, &config, &s.cache);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "cache: %s: %s", headway_status_text(status), text);
    for (int64_t b = 0; b < sequences && b < (int64_t)(sizeof s.slots / sizeof *s.slots); b++)
        s.slots[b] = way->turned ? sequences - b : b;
    return s;
}

void stored_free(struct stored *s)
{
    headway_kv_cache_destroy(s->cache);
    for (int i = 0; i < 4; i++)
        if (s->memory[i])
            check_guard_free(s->memory[i]);
}

void stored_append(const struct stored *s, int64_t b, int64_t batch, const int64_t *lengths,
                   const float *key, int64_t key_pitch, const float *value, int64_t value_pitch)
{
    int64_t longest = 0;
    for (int64_t n = 0; n < batch; n++)
        longest = larger(longest, lengths[n]);
    const int64_t keys[4] = {batch, longest, s->kv_heads, s->size};
    const int64_t values[4] = {batch, longest, s->kv_heads, s->value_size};
    headway_tensor k = headway_tensor_dense((void *)(uintptr_t)key, HEADWAY_F32, 4, keys);
    headway_tensor v = headway_tensor_dense((void *)(uintptr_t)value, HEADWAY_F32, 4, values);
    k.stride[0] = key_pitch;
    v.stride[0] = value_pitch;
    if (!s->cache || longest == 0)
        return;
    const headway_status status = headway_kv_cache_append(s->cache, s->slots + b, lengths, &k, &v);
    CHECK(status == HEADWAY_OK, "append: %s", headway_status_text(status));
}

void stored_read(const struct stored *s, int64_t b, int64_t pinned, int64_t count, float *key,
                 float *value)
{
    const int64_t keys[3] = {count, s->kv_heads, s->size};
    const int64_t values[3] = {count, s->kv_heads, s->value_size};
    const headway_tensor k = headway_tensor_dense(key, HEADWAY_F32, 3, keys);
    const headway_tensor v = headway_tensor_dense(value, HEADWAY_F32, 3, values);
    const headway_status status =
        s->cache ? headway_stored_values(s->cache, s->slots[b], pinned, &k, &v) : HEADWAY_OK;
    CHECK(status == HEADWAY_OK, "read: %s", headway_status_text(status));
}

/* ---- a problem ---------------------------------------------------------------------------------
 */

/* Brings every sequence to `targets` tokens. */
static void append_to(const struct stored *s, const struct problem *p, const struct way *way,
                      int64_t *done, const int64_t *targets)
{
    const struct shape *x = &p->shape;
    for (;;) {
        /* Those that have as many begin at one token; the others follow one by one. */
        int64_t lengths[MAX_BATCH] = {0}, first = -1, most = 0;
        for (int64_t b = 0; b < x->batch; b++) {
            const int64_t left = targets[b] - done[b];
            if (left > 0 && first < 0)
                first = done[b];
            if (left > 0 && done[b] == first)
                lengths[b] = way->chunk ? smaller(left, way->chunk) : left;
            most = larger(most, lengths[b]);
        }
        if (most == 0)
            return;
        const int64_t key = x->kv_heads * x->size, value = x->kv_heads * x->value_size;
        stored_append(s, 0, x->batch, lengths, p->key + first * key, x->keys * key,
                      p->value + first * value, x->keys * value);
        for (int64_t b = 0; b < x->batch; b++)
            done[b] += lengths[b];
    }
}

static int64_t appended_length(const struct problem *p, const struct way *way, int64_t b)
{
    return way->beyond ? p->shape.keys : key_length(p, b);
}

/* The call of rows first .. first + count - 1. */
struct part {
    headway_tensor query, out, lse, weights, mask, interval;
    int64_t offsets[MAX_BATCH], query_lengths[MAX_BATCH];
    headway_attention_params params;
};

/* Rows of a dense tensor's axis, and the columns of its last one. */
static void cut(headway_tensor *t, int axis, int64_t first, int64_t count, size_t size)
{
    if (t->shape[axis] != 1)
        t->data = (char *)t->data + (size_t)(first * t->stride[axis]) * size;
    t->shape[axis] = t->shape[axis] == 1 ? 1 : count;
}

static void part_views(struct part *c, const struct problem *p, const struct answer *a,
                       int64_t first, int64_t count, int64_t longest)
{
    const struct shape *x = &p->shape;
    const int64_t query[4] = {x->batch, x->queries, x->heads, x->size};
    const int64_t out[4] = {x->batch, x->queries, x->heads, x->value_size};
    const int64_t lse[3] = {x->batch, x->heads, x->queries};
    const int64_t weights[4] = {x->batch, x->heads, x->queries, x->keys};
    const int64_t mean[3] = {x->batch, x->queries, x->keys};
    const int means = p->weights == WEIGHTS_MEAN;
    c->query = headway_tensor_dense(p->query, HEADWAY_F32, 4, query);
    c->out = headway_tensor_dense(a->out, HEADWAY_F32, 4, out);
    c->lse = headway_tensor_dense(a->lse, HEADWAY_F32, 3, lse);
    c->weights = means ? headway_tensor_dense(a->weights, HEADWAY_F32, 3, mean)
                       : headway_tensor_dense(a->weights, HEADWAY_F32, 4, weights);
    if (x->queries != 1) {
        cut(&c->query, 1, first, count, 4);
        cut(&c->out, 1, first, count, 4);
        cut(&c->lse, 2, first, count, 4);
        cut(&c->weights, c->weights.rank - 2, first, count, 4);
    }
    c->weights.shape[c->weights.rank - 1] = longest;
    if (p->mask_kind != MASK_NONE) {
        c->mask = mask_tensor(p);
        if (c->mask.rank > 1)
            cut(&c->mask, c->mask.rank - 2, first, count, mask_size(p));
        if (c->mask.shape[c->mask.rank - 1] != 1)
            c->mask.shape[c->mask.rank - 1] = longest;
    }
    if (p->interval) {
        const int64_t shape[3] = {p->interval_batch, x->queries, 2};
        const int batchless = p->interval_batch == 0;
        c->interval =
            headway_tensor_dense(p->interval, HEADWAY_I32, 3 - batchless, shape + batchless);
        c->interval.data = p->interval + first * 2;
        c->interval.shape[c->interval.rank - 2] = count;
    }
}

static void part_params(struct part *c, const struct problem *p, const struct way *way,
                        const struct stored *s, int64_t first, int64_t count)
{
    headway_attention_params *a = &c->params;
    *a = problem_params(p, &c->mask);
    for (int64_t b = 0; b < p->shape.batch; b++) {
        c->offsets[b] = causal_offset(p, b) + first;
        c->query_lengths[b] = larger(0, smaller(query_length(p, b) - first, count));
    }
    if (way->rows || way->grow) {
        if (a->causal != HEADWAY_CAUSAL_NONE)
            a->causal = HEADWAY_CAUSAL_OFFSETS;
        a->row_offsets = c->offsets;
        a->query_lengths = c->query_lengths;
    }
    if (!way->beyond)
        a->key_lengths = NULL;
    a->interval = p->interval ? &c->interval : NULL;
    a->lse = &c->lse;
    a->weights = p->weights != WEIGHTS_NONE ? &c->weights : NULL;
    a->cache = s->cache;
    a->cache_slots = way->turned ? s->slots : NULL;
}

static void call_part(const headway_engine *engine, const struct part *c, const struct problem *p)
{
    size_t bytes = 0;
    char text[400];
    headway_status status =
        headway_attention_workspace(engine, &c->params, &c->query, NULL, NULL, &bytes);
    void *workspace = check_guard(bytes, bytes % HEADWAY_WORKSPACE_ALIGNMENT == 0);
    check_poison(workspace, (int64_t)(bytes / sizeof(float)));
    environment_enter();
    if (status == HEADWAY_OK)
        status =
            headway_attention(engine, &c->params, &c->query, NULL, NULL, &c->out, workspace, bytes);
    environment_leave(p->flags_free);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s: %s", problem_name(p), headway_status_text(status), text);
    check_guard_free(workspace);
}

struct answer cached_attend(const headway_engine *engine, const struct problem *p,
                            const struct way *way)
{
    const struct shape *x = &p->shape;
    struct answer a = answer_make(p, x->batch * x->queries * x->heads * x->value_size);
    struct stored s = stored_make(engine, way, x->batch, x->kv_heads, x->size, x->value_size,
                                  x->keys + way->spare);
    int64_t done[MAX_BATCH] = {0}, targets[MAX_BATCH];
    const int64_t rows = way->rows ? way->rows : larger(1, x->queries);
    memset(a.out, 0, (size_t)a.outs * sizeof(float));
    memset(a.weights, 0, (size_t)a.all_weights * sizeof(float));
    for (int64_t n = 0; n < a.lses; n++)
        a.lse[n] = -INFINITY;
    for (int64_t first = 0; s.cache && first < x->queries; first += rows) {
        const int64_t count = smaller(rows, x->queries - first);
        int64_t longest = 0;
        struct part c;
        for (int64_t b = 0; b < x->batch; b++) {
            targets[b] = appended_length(p, way, b);
            if (way->grow && p->causal != HEADWAY_CAUSAL_NONE)
                targets[b] =
                    larger(done[b], smaller(targets[b], causal_offset(p, b) + first + count));
            longest = larger(longest, way->beyond ? key_length(p, b) : targets[b]);
        }
        append_to(&s, p, way, done, targets);
        part_views(&c, p, &a, first, count, longest);
        part_params(&c, p, way, &s, first, count);
        call_part(engine, &c, p);
    }
    stored_free(&s);
    return a;
}

struct problem *cached_problem(const headway_engine *engine, const struct problem *p,
                               const struct way *way)
{
    const struct shape *x = &p->shape;
    struct problem *q = problem_copy(p);
    struct stored s = stored_make(engine, way, x->batch, x->kv_heads, x->size, x->value_size,
                                  x->keys + way->spare);
    int64_t done[MAX_BATCH] = {0}, targets[MAX_BATCH];
    for (int64_t b = 0; b < x->batch; b++)
        targets[b] = x->keys;
    append_to(&s, p, way, done, targets);
    for (int64_t b = 0; b < x->batch && x->keys > 0; b++)
        stored_read(&s, b, 0, x->keys, key_line(q, b, 0, 0), value_line(q, b, 0, 0));
    stored_free(&s);
    return q;
}
