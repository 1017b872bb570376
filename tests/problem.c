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

size_t mask_size(const struct problem *p)
{
    return p->mask_kind == MASK_BOOL ? 1 : p->mask_kind == MASK_F32 ? sizeof(float) : 2;
}

static int64_t intervals_of(const struct problem *p)
{
    return (p->interval_batch > 0 ? p->interval_batch : 1) * p->shape.queries * 2;
}

struct problem *problem_make(const struct shape *shape, uint64_t seed)
{
    struct problem *p = room(1, sizeof *p);
    memset(p, 0, sizeof *p);
    p->shape = *shape;
    p->random = check_seed * UINT64_C(0x9e3779b97f4a7c15) + seed;
    p->flags_free = 1;
    p->window_left = p->window_right = -1;
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
    if (p->interval)
        copy->interval = copy_of(p->interval, intervals_of(p), sizeof(int32_t));
    if (p->slopes)
        copy->slopes = copy_of(p->slopes, p->shape.heads, sizeof(float));
    if (p->sinks)
        copy->sinks = copy_of(p->sinks, p->shape.heads, sizeof(float));
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
    free(p->interval);
    free(p->slopes);
    free(p->sinks);
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

static void draw_lengths(struct problem *p)
{
    const struct shape *s = &p->shape;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t kind = below(p, 5);
        p->query_lengths[b] = kind == 0 ? 0 : kind == 1 ? s->queries : below(p, s->queries + 1);
        p->key_lengths[b] = kind == 2 ? 0 : kind == 3 ? s->keys : below(p, s->keys + 1);
    }
}

static void poison_beyond(struct problem *p)
{
    const struct shape *s = &p->shape;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t j = key_length(p, b); j < s->keys; j++) {
            check_poison(key_line(p, b, j, 0), s->kv_heads * s->size);
            check_poison(value_line(p, b, j, 0), s->kv_heads * s->value_size);
        }
}

void problem_lengths(struct problem *p, int query, int key)
{
    p->has_query_lengths = query;
    p->has_key_lengths = key;
    draw_lengths(p);
    poison_beyond(p);
}

void problem_pack(struct problem *p)
{
    p->has_query_lengths = p->has_key_lengths = p->packed = 1;
    draw_lengths(p);
    /* A mask's extents are the longest sequence's. */
    if (p->shape.batch > 0) {
        p->query_lengths[below(p, p->shape.batch)] = p->shape.queries;
        p->key_lengths[below(p, p->shape.batch)] = p->shape.keys;
    }
    poison_beyond(p);
}

/* Rows below the lengths, one sequence after the other. */
static void gather(void *to, const void *from, int64_t batch, int64_t rows, const int64_t *lengths,
                   size_t bytes)
{
    char *at = to;
    for (int64_t b = 0; b < batch; b++) {
        const size_t all = (size_t)lengths[b] * bytes;
        if (all > 0)
            memcpy(at, (const char *)from + (size_t)(b * rows) * bytes, all);
        at += all;
    }
}

struct problem *problem_packed(const struct problem *p)
{
    const struct shape *s = &p->shape;
    struct problem *q = problem_copy(p);
    q->packed = q->has_query_lengths = q->has_key_lengths = 0;
    q->sequences = s->batch;
    for (int64_t b = 0; b < s->batch; b++) {
        q->query_starts[b + 1] = q->query_starts[b] + p->query_lengths[b];
        q->key_starts[b + 1] = q->key_starts[b] + p->key_lengths[b];
    }
    q->shape.batch = 1;
    q->shape.queries = q->query_starts[s->batch];
    q->shape.keys = q->key_starts[s->batch];
    gather(q->query, p->query, s->batch, s->queries, p->query_lengths,
           (size_t)(s->heads * s->size) * sizeof(float));
    gather(q->key, p->key, s->batch, s->keys, p->key_lengths,
           (size_t)(s->kv_heads * s->size) * sizeof(float));
    gather(q->value, p->value, s->batch, s->keys, p->key_lengths,
           (size_t)(s->kv_heads * s->value_size) * sizeof(float));
    if (p->interval) {
        const int64_t step = p->interval_batch == s->batch ? s->queries : 0;
        char *at = (char *)(q->interval = realloc(
                                q->interval, (size_t)q->shape.queries * 2 * sizeof(int32_t) + 1));
        for (int64_t b = 0; b < s->batch; b++) {
            const size_t bytes = (size_t)p->query_lengths[b] * 2 * sizeof(int32_t);
            memcpy(at, p->interval + b * step * 2, bytes);
            at += bytes;
        }
        q->interval_batch = p->interval_batch ? 1 : 0;
    }
    return q;
}

void problem_interval(struct problem *p, int64_t batch)
{
    const int64_t keys = p->shape.keys;
    p->interval_batch = batch;
    free(p->interval);
    p->interval = room(intervals_of(p), sizeof(int32_t));
    for (int64_t i = 0; i < intervals_of(p); i += 2) {
        const int64_t kind = below(p, 6);
        const int64_t first = kind == 0 ? INT32_MIN : below(p, keys + 10) - 5;
        const int64_t last = kind == 1 ? INT32_MAX : first + below(p, keys) - (kind == 2 ? 9 : 0);
        p->interval[i] = (int32_t)first;
        p->interval[i + 1] = (int32_t)last;
    }
}

void problem_slopes(struct problem *p)
{
    p->slopes = room(p->shape.heads, sizeof(float));
    for (int64_t h = 0; h < p->shape.heads; h++)
        p->slopes[h] = below(p, 5) ? check_normal(&p->random) * 0.1f : 0.0f;
}

void problem_sinks(struct problem *p)
{
    p->sinks = room(p->shape.heads, sizeof(float));
    for (int64_t h = 0; h < p->shape.heads; h++)
        p->sinks[h] = below(p, 4) ? check_normal(&p->random) * 4 : -INFINITY;
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

/* Bits of a number between 1/16 and 4, or a subnormal. */
static uint16_t half(struct problem *p)
{
    const unsigned sign = (unsigned)below(p, 2) << 15;
    if (p->mask_kind == MASK_BF16)
        return (uint16_t)(sign | (unsigned)(below(p, 6) + 123) << 7 | (unsigned)below(p, 128));
    const unsigned exponent = below(p, 9) ? (unsigned)(below(p, 6) + 11) : 0;
    return (uint16_t)(sign | exponent << 10 | (unsigned)below(p, 1024));
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
        else if (kind == MASK_F32)
            ((float *)p->mask)[i] = attend ? check_normal(&p->random) * 2 : -INFINITY;
        else
            ((uint16_t *)p->mask)[i] = attend ? half(p) : kind == MASK_F16 ? 0xfc00 : 0xff80;
    }
}

float mask_value(const struct problem *p, int64_t index)
{
    if (p->mask_kind == MASK_F32)
        return ((const float *)p->mask)[index];
    const int bits = ((const uint16_t *)p->mask)[index], rest = bits & 0x7fff;
    const int low = p->mask_kind == MASK_F16 ? 10 : 7, bias = p->mask_kind == MASK_F16 ? 15 : 127;
    const int exponent = rest >> low, fraction = rest & ((1 << low) - 1);
    float value = ldexpf((float)fraction, 1 - bias - low);
    if (exponent == 2 * bias + 1)
        value = fraction ? NAN : INFINITY;
    else if (exponent > 0)
        value = ldexpf((float)(fraction + (1 << low)), exponent - bias - low);
    return bits & 0x8000 ? -value : value;
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
    static const headway_dtype dtypes[] = {[MASK_BOOL] = HEADWAY_BOOL,
                                           [MASK_F32] = HEADWAY_F32,
                                           [MASK_F16] = HEADWAY_F16,
                                           [MASK_BF16] = HEADWAY_BF16};
    return headway_tensor_dense(p->mask, dtypes[p->mask_kind], p->mask_rank, p->mask_shape);
}

headway_attention_params problem_params(const struct problem *p, const headway_tensor *mask)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    params.scale = p->has_scale ? &p->scale : NULL;
    params.causal = p->causal;
    if (p->causal == HEADWAY_CAUSAL_OFFSETS || p->has_offsets)
        params.row_offsets = p->offsets;
    params.window_left = p->window_left;
    params.window_right = p->window_right;
    params.window_first = p->window_first;
    params.softcap = p->softcap;
    params.alibi_slopes = p->slopes;
    params.sinks = p->sinks;
    if (p->sequences > 0) {
        params.sequences = p->sequences;
        params.query_starts = p->query_starts;
        params.key_starts = p->key_starts;
    }
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
        return p->has_offsets ? p->offsets[b] : 0;
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

static int window_sees(const struct problem *p, int64_t b, int64_t i, int64_t j)
{
    /* Neither sum of three fits int64_t for any offset. */
    const long double at = (long double)i + (long double)causal_offset(p, b);
    if (p->causal != HEADWAY_CAUSAL_NONE && (long double)j > at)
        return 0;
    if (j < p->window_first)
        return 1;
    if (p->window_left >= 0 && (long double)j < at - (long double)p->window_left)
        return 0;
    return p->window_right < 0 || (long double)j <= at + (long double)p->window_right;
}

int problem_sees(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (i >= query_length(p, b) || j >= key_length(p, b) || !window_sees(p, b, i, j))
        return 0;
    if (p->interval) {
        const int64_t line = p->interval_batch == p->shape.batch ? b * p->shape.queries + i : i;
        if (j < p->interval[line * 2] || j >= p->interval[line * 2 + 1])
            return 0;
    }
    if (p->mask_kind == MASK_NONE)
        return 1;
    const int64_t at = mask_index(p, b, h, i, j);
    if (p->mask_kind == MASK_BOOL)
        return ((unsigned char *)p->mask)[at] != 0;
    return !(mask_value(p, at) == -INFINITY);
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

static const char *options_name(const struct problem *p)
{
    static const char *const weights[] = {"", " weights", " mean weights"};
    static char text[120];
    int used = 0;
    text[0] = '\0';
    if (p->window_left >= 0 || p->window_right >= 0)
        used =
            snprintf(text, sizeof text, " window %lld,%lld first %lld", (long long)p->window_left,
                     (long long)p->window_right, (long long)p->window_first);
    snprintf(text + used, sizeof text - (size_t)used, "%s%s%s%s%s%s%s",
             p->has_offsets ? " offset" : "", p->packed ? " packed" : "",
             p->interval ? " interval" : "", p->softcap > 0 ? " softcap" : "",
             p->slopes ? " slopes" : "", p->sinks ? " sinks" : "", weights[p->weights]);
    return text;
}

const char *problem_name(const struct problem *p)
{
    static const char *const causals[] = {"", " top-left", " bottom-right", " offsets"};
    static const char *const masks[] = {"", " bool", " float", " f16", " bf16"};
    static char text[300];
    const struct shape *s = &p->shape;
    int used = snprintf(
        text, sizeof text, "%lldx%lldx%lld heads %lld/%lld size %lld/%lld%s%s%s%s%s",
        (long long)s->batch, (long long)s->queries, (long long)s->keys, (long long)s->heads,
        (long long)s->kv_heads, (long long)s->size, (long long)s->value_size, causals[p->causal],
        p->has_query_lengths ? " query lengths" : "", p->has_key_lengths ? " key lengths" : "",
        options_name(p), masks[p->mask_kind]);
    for (int i = 0; i < p->mask_rank && used < (int)sizeof text; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%c%lld", i ? 'x' : ' ',
                         (long long)p->mask_shape[i]);
    return text;
}
