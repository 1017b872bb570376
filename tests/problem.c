#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"

static void *room(int64_t count, size_t size)
{
    void *memory = malloc(count > 0 ? (size_t)count * size : 1);
    if (!memory) {
        perror("test");
        exit(1);
    }
    return memory;
}

static void *copy_of(const void *from, int64_t count, size_t size)
{
    void *memory = room(count, size);
    if (count > 0)
        memcpy(memory, from, (size_t)count * size);
    return memory;
}

static int64_t below(struct problem *p, int64_t n)
{
    return n > 0 ? (int64_t)(check_random(&p->random) % (uint64_t)n) : 0;
}

static int64_t queries_of(const struct shape *s)
{
    return s->batch * s->queries * s->heads * s->size;
}

static int64_t keys_of(const struct shape *s)
{
    return s->batch * s->keys * s->kv_heads * s->size;
}

static int64_t values_of(const struct shape *s)
{
    return s->batch * s->keys * s->kv_heads * s->value_size;
}

static int64_t masks_of(const struct problem *p)
{
    int64_t count = 1;
    for (int i = 0; i < p->mask_rank; i++)
        count *= p->mask_shape[i];
    return count;
}

static size_t mask_size(const struct problem *p)
{
    return p->mask_kind == MASK_BOOL ? 1 : sizeof(float);
}

struct problem *problem_make(const struct shape *shape, uint64_t seed)
{
    struct problem *p = room(1, sizeof *p);
    memset(p, 0, sizeof *p);
    p->shape = *shape;
    p->random = check_seed * UINT64_C(0x9e3779b97f4a7c15) + seed;
    p->flags_free = 1;
    p->query = room(queries_of(shape), sizeof(float));
    p->key = room(keys_of(shape), sizeof(float));
    p->value = room(values_of(shape), sizeof(float));
    check_fill_normal(&p->random, p->query, queries_of(shape), 1.5f);
    check_fill_normal(&p->random, p->key, keys_of(shape), 1.0f);
    check_fill_normal(&p->random, p->value, values_of(shape), 1.0f);
    return p;
}

struct problem *problem_copy(const struct problem *p)
{
    struct problem *copy = copy_of(p, 1, sizeof *p);
    copy->query = copy_of(p->query, queries_of(&p->shape), sizeof(float));
    copy->key = copy_of(p->key, keys_of(&p->shape), sizeof(float));
    copy->value = copy_of(p->value, values_of(&p->shape), sizeof(float));
    if (p->mask)
        copy->mask = copy_of(p->mask, masks_of(p), mask_size(p));
    return copy;
}

void problem_free(struct problem *p)
{
    if (!p)
        return;
    free(p->query);
    free(p->key);
    free(p->value);
    free(p->mask);
    free(p);
}

static void share(float *data, const int64_t extent[3], int64_t size, unsigned shared)
{
    for (int64_t b = 0; b < extent[0]; b++)
        for (int64_t l = 0; l < extent[1]; l++)
            for (int64_t h = 0; h < extent[2]; h++) {
                const int64_t from_b = shared & SHARED_BATCH ? 0 : b;
                const int64_t from_l = shared & SHARED_ROWS ? 0 : l;
                const int64_t from_h = shared & SHARED_HEADS ? 0 : h;
                memmove(data + ((b * extent[1] + l) * extent[2] + h) * size,
                        data + ((from_b * extent[1] + from_l) * extent[2] + from_h) * size,
                        (size_t)size * sizeof(float));
            }
}

void problem_share(struct problem *p, unsigned shared)
{
    const struct shape *s = &p->shape;
    const int64_t queries[3] = {s->batch, s->queries, s->heads};
    const int64_t keys[3] = {s->batch, s->keys, s->kv_heads};
    share(p->query, queries, s->size, shared);
    share(p->key, keys, s->size, shared);
    share(p->value, keys, s->value_size, shared);
    p->shared = shared;
}

void problem_causal(struct problem *p, headway_causal causal)
{
    p->causal = causal;
    for (int64_t b = 0; b < p->shape.batch; b++)
        p->offsets[b] = below(p, p->shape.queries + p->shape.keys + 20) - p->shape.queries - 10;
}

void problem_lengths(struct problem *p, int query, int key)
{
    const struct shape *s = &p->shape;
    p->has_query_lengths = query;
    p->has_key_lengths = key;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t kind = below(p, 5);
        p->query_lengths[b] = kind == 0 ? 0 : kind == 1 ? s->queries : below(p, s->queries + 1);
        p->key_lengths[b] = kind == 2 ? 0 : kind == 3 ? s->keys : below(p, s->keys + 1);
        for (int64_t j = key ? p->key_lengths[b] : s->keys; j < s->keys; j++) {
            check_poison(key_line(p, b, j, 0), s->kv_heads * s->size);
            check_poison(value_line(p, b, j, 0), s->kv_heads * s->value_size);
        }
    }
}

static void mask_room(struct problem *p, enum mask_kind kind, int rank, unsigned full)
{
    const int64_t extents[4] = {p->shape.batch, p->shape.heads, p->shape.queries, p->shape.keys};
    free(p->mask);
    p->mask_kind = kind;
    p->mask_rank = rank;
    for (int i = 0; i < rank; i++) {
        const int axis = 4 - rank + i;
        p->mask_shape[i] = full & (1u << axis) ? extents[axis] : 1;
    }
    p->mask = room(masks_of(p), mask_size(p));
}

void problem_mask(struct problem *p, enum mask_kind kind, int rank, unsigned full)
{
    static const unsigned char truths[] = {1, 2, 0x80, 0xff};
    int line_excludes = 0;
    mask_room(p, kind, rank, full);
    for (int64_t i = 0, count = masks_of(p); i < count; i++) {
        if (i % p->mask_shape[rank - 1] == 0)
            line_excludes = below(p, 8) == 0 && count > 1;
        const int attend = !line_excludes && (below(p, 4) != 0 || count == 1);
        if (kind == MASK_BOOL)
            ((unsigned char *)p->mask)[i] = attend ? truths[below(p, 4)] : 0;
        else
            ((float *)p->mask)[i] = attend ? check_normal(&p->random) * 2 : -INFINITY;
    }
}

void problem_mask_full(struct problem *p, enum mask_kind kind)
{
    mask_room(p, kind, 4, 15);
    memset(p->mask, kind == MASK_BOOL, (size_t)masks_of(p) * mask_size(p));
}

void problem_mask_expand(struct problem *p)
{
    const struct shape *s = &p->shape;
    struct problem old = *p;
    if (p->mask_kind == MASK_NONE)
        return;
    p->mask = NULL;
    mask_room(p, old.mask_kind, 4, 15);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->queries; i++)
                for (int64_t j = 0; j < s->keys; j++) {
                    const size_t size = mask_size(p);
                    memcpy((char *)p->mask + (size_t)mask_index(p, b, h, i, j) * size,
                           (char *)old.mask + (size_t)mask_index(&old, b, h, i, j) * size, size);
                }
    free(old.mask);
}

headway_tensor mask_tensor(const struct problem *p)
{
    return headway_tensor_dense(p->mask, p->mask_kind == MASK_BOOL ? HEADWAY_BOOL : HEADWAY_F32,
                                p->mask_rank, p->mask_shape);
}

headway_attention_params problem_params(const struct problem *p, const headway_tensor *mask)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    params.scale = p->has_scale ? &p->scale : NULL;
    params.causal = p->causal;
    params.row_offsets = p->causal == HEADWAY_CAUSAL_OFFSETS ? p->offsets : NULL;
    params.query_lengths = p->has_query_lengths ? p->query_lengths : NULL;
    params.key_lengths = p->has_key_lengths ? p->key_lengths : NULL;
    params.mask = p->mask_kind == MASK_NONE ? NULL : mask;
    return params;
}

int64_t query_length(const struct problem *p, int64_t b)
{
    return p->has_query_lengths ? p->query_lengths[b] : p->shape.queries;
}

int64_t key_length(const struct problem *p, int64_t b)
{
    return p->has_key_lengths ? p->key_lengths[b] : p->shape.keys;
}

int64_t causal_offset(const struct problem *p, int64_t b)
{
    switch (p->causal) {
    case HEADWAY_CAUSAL_BOTTOM_RIGHT:
        return key_length(p, b) - query_length(p, b);
    case HEADWAY_CAUSAL_OFFSETS:
        return p->offsets[b];
    default:
        return 0;
    }
}

int64_t mask_index(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t at[4] = {b, h, i, j};
    int64_t index = 0;
    for (int n = 0; n < p->mask_rank; n++)
        index = index * p->mask_shape[n] + (p->mask_shape[n] == 1 ? 0 : at[4 - p->mask_rank + n]);
    return index;
}

int problem_sees(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (i >= query_length(p, b) || j >= key_length(p, b))
        return 0;
    if (p->causal != HEADWAY_CAUSAL_NONE && j - i > causal_offset(p, b))
        return 0;
    if (p->mask_kind == MASK_BOOL)
        return ((unsigned char *)p->mask)[mask_index(p, b, h, i, j)] != 0;
    if (p->mask_kind == MASK_F32)
        return !(((float *)p->mask)[mask_index(p, b, h, i, j)] == -INFINITY);
    return 1;
}

float *query_line(const struct problem *p, int64_t b, int64_t i, int64_t h)
{
    return p->query + ((b * p->shape.queries + i) * p->shape.heads + h) * p->shape.size;
}

float *key_line(const struct problem *p, int64_t b, int64_t j, int64_t g)
{
    return p->key + ((b * p->shape.keys + j) * p->shape.kv_heads + g) * p->shape.size;
}

float *value_line(const struct problem *p, int64_t b, int64_t j, int64_t g)
{
    return p->value + ((b * p->shape.keys + j) * p->shape.kv_heads + g) * p->shape.value_size;
}

double problem_cost(const struct problem *p)
{
    const struct shape *s = &p->shape;
    return (double)s->batch * (double)s->heads * (double)s->queries * (double)s->keys *
           (double)(s->size + s->value_size);
}

const char *problem_name(const struct problem *p)
{
    static const char *const causals[] = {"", " top-left", " bottom-right", " offsets"};
    static const char *const masks[] = {"", " bool", " float"};
    static char text[200];
    const struct shape *s = &p->shape;
    int used = snprintf(text, sizeof text, "%lldx%lldx%lld heads %lld/%lld size %lld/%lld%s%s%s%s",
                        (long long)s->batch, (long long)s->queries, (long long)s->keys,
                        (long long)s->heads, (long long)s->kv_heads, (long long)s->size,
                        (long long)s->value_size, causals[p->causal],
                        p->has_query_lengths ? " query lengths" : "",
                        p->has_key_lengths ? " key lengths" : "", masks[p->mask_kind]);
    for (int i = 0; i < p->mask_rank && used < (int)sizeof text; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%c%lld", i ? 'x' : ' ',
                         (long long)p->mask_shape[i]);
    return text;
}
