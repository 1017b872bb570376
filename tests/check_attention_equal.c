/* Pairs of calls that mean the same give the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_attention.h"

/* Lines (b, i, h) of one answer and (c, k, g) of another. */
static void same_line(const struct problem *p, const struct answer *a, const int64_t at[3],
                      const struct problem *q, const struct answer *b, const int64_t other[3],
                      const char *what)
{
    check_bits(out_line(p, a, at[0], at[1], at[2]), out_line(q, b, other[0], other[1], other[2]),
               p->shape.value_size, what);
    check_bits(lse_at(p, a, at[0], at[1], at[2]), lse_at(q, b, other[0], other[1], other[2]), 1,
               what);
    if (p->weights != WEIGHTS_NONE)
        check_bits(weights_line(p, a, at[0], at[1], at[2]),
                   weights_line(q, b, other[0], other[1], other[2]), p->shape.keys, what);
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

static void copy_mask_rows(struct problem *to, const struct problem *from, int64_t b, int64_t first)
{
    problem_mask_full(to, from->mask_kind);
    const size_t size = mask_size(to), line = (size_t)from->shape.keys * size;
    for (int64_t h = 0; h < to->shape.heads; h++)
        for (int64_t i = 0; i < to->shape.queries; i++)
            memcpy((char *)to->mask + (size_t)mask_index(to, 0, h, i, 0) * size,
                   (char *)from->mask + (size_t)mask_index(from, b, h, first + i, 0) * size, line);
}

static float *copy_floats(const float *from, int64_t count)
{
    float *to = malloc((size_t)count * sizeof *to);
    if (to)
        memcpy(to, from, (size_t)count * sizeof *to);
    return to;
}

/* What an option says for those rows. */
static void copy_options(struct problem *to, const struct problem *from, int64_t b, int64_t first)
{
    to->causal = from->causal != HEADWAY_CAUSAL_NONE ? HEADWAY_CAUSAL_OFFSETS : HEADWAY_CAUSAL_NONE;
    to->has_offsets = 1;
    to->offsets[0] = causal_offset(from, b) + first;
    to->window_left = from->window_left;
    to->window_right = from->window_right;
    to->softcap = from->softcap;
    to->weights = from->weights;
    if (from->slopes)
        to->slopes = copy_floats(from->slopes, from->shape.heads);
    if (from->sinks)
        to->sinks = copy_floats(from->sinks, from->shape.heads);
    if (from->interval) {
        const int64_t at = from->interval_batch == from->shape.batch ? b * from->shape.queries : 0;
        problem_interval(to, 1);
        memcpy(to->interval, from->interval + (at + first) * 2,
               (size_t)to->shape.queries * 2 * sizeof(int32_t));
    }
}

/* Rows first .. first + count - 1 of batch b, as a problem of their own. */
static struct problem *rows_of(const struct problem *from, int64_t b, int64_t first, int64_t count)
{
    struct shape s = from->shape;
    s.batch = 1;
    s.queries = count;
    struct problem *full = problem_copy(from), *p = problem_make(&s, 0);
    problem_mask_expand(full);
    memcpy(p->query, query_line(from, b, first, 0),
           (size_t)(count * s.heads * s.size) * sizeof(float));
    memcpy(p->key, key_line(from, b, 0, 0), (size_t)(s.keys * s.kv_heads * s.size) * sizeof(float));
    memcpy(p->value, value_line(from, b, 0, 0),
           (size_t)(s.keys * s.kv_heads * s.value_size) * sizeof(float));
    copy_options(p, from, b, first);
    p->has_query_lengths = from->has_query_lengths;
    p->has_key_lengths = from->has_key_lengths;
    p->query_lengths[0] = clamp(from->query_lengths[b] - first, 0, count);
    p->key_lengths[0] = from->key_lengths[b];
    if (full->mask_kind != MASK_NONE)
        copy_mask_rows(p, full, b, first);
    problem_free(full);
    return p;
}

/* Options by number, combinations of all but packed sequences. */
static struct problem *variant(const struct shape *s, int n)
{
    static const enum mask_kind kinds[] = {MASK_BF16, MASK_BOOL, MASK_F32, MASK_BOOL, MASK_F16};
    struct problem *p = problem_make(s, (uint64_t)n);
    problem_causal(p, (headway_causal)(n % 4));
    problem_lengths(p, n % 2, n % 3 == 1);
    if (n % 3 != 2)
        problem_mask(p, kinds[n % 5], 4, n % 4 == 3 ? 14 : n % 4 == 1 ? 12 : 15);
    if (n % 4 == 2)
        p->window_left = 20;
    if (n % 3 == 2)
        p->window_right = 70;
    if (n % 5 == 3)
        problem_interval(p, n % 2 ? s->batch : 1);
    p->softcap = n % 4 == 3 ? 2.5f : 0;
    if (n % 5 < 2)
        problem_slopes(p);
    if (n % 4 > 1)
        problem_sinks(p);
    p->weights = (enum weights_kind)(n % 3);
    return p;
}

static int variants(void)
{
    return quick ? 6 : 24;
}

static void check_alone(const struct subject *s)
{
    const struct shape shape = {5, 21, 140, 6, 3, 16, 24};
    for (int n = 0; n < variants(); n++) {
        struct problem *p = variant(&shape, n);
        if (check_case("%s: alone as inside a batch, %s", s->isa, problem_name(p))) {
            struct answer whole = attend(s->engines[n % THREADS], p, LAYOUT_DENSE, 0);
            for (int64_t b = 0; b < shape.batch; b++) {
                struct problem *one = rows_of(p, b, 0, shape.queries);
                struct answer alone = attend(s->engines[0], one, n % LAYOUTS, 1);
                for (int64_t i = 0; i < shape.queries; i++)
                    for (int64_t h = 0; h < shape.heads; h++) {
                        const int64_t at[3] = {0, i, h}, inside[3] = {b, i, h};
                        same_line(one, &alone, at, p, &whole, inside, "alone");
                    }
                answer_free(&alone);
                problem_free(one);
            }
            answer_free(&whole);
        }
        problem_free(p);
    }
}

static void check_split(const struct subject *s)
{
    static const int64_t chunks[] = {1, 7, 16, 33};
    const struct shape shape = {2, 70, 300, 3, 1, 8, 8};
    for (int n = 0; n < variants(); n++) {
        struct problem *p = variant(&shape, n);
        const int64_t chunk = chunks[n % 4], b = n % 2;
        if (check_case("%s: %lld query rows at a time, %s", s->isa, (long long)chunk,
                       problem_name(p))) {
            struct answer whole = attend(s->engines[n % THREADS], p, LAYOUT_DENSE, 1);
            for (int64_t first = 0; first < shape.queries; first += chunk) {
                const int64_t left = shape.queries - first, count = left < chunk ? left : chunk;
                struct problem *part = rows_of(p, b, first, count);
                struct answer answer = attend(s->engines[0], part, LAYOUT_DENSE, 0);
                for (int64_t i = 0; i < count; i++)
                    for (int64_t h = 0; h < shape.heads; h++) {
                        const int64_t at[3] = {0, i, h}, inside[3] = {b, first + i, h};
                        same_line(part, &answer, at, p, &whole, inside, "part");
                    }
                answer_free(&answer);
                problem_free(part);
            }
            answer_free(&whole);
        }
        problem_free(p);
    }
}

/* Attends to both problems in turn and compares all bits; frees both. */
static void same(const struct subject *s, struct problem *a, struct problem *b, const char *what)
{
    if (check_case("%s: %s, %s", s->isa, what, problem_name(a))) {
        struct answer x = attend(s->engines[0], a, LAYOUT_DENSE, 1);
        struct answer y = attend(s->engines[THREADS - 1], b, LAYOUT_ODD, 0);
        compare_bits(&y, &x, what);
        answer_free(&x);
        answer_free(&y);
    }
    problem_free(a);
    problem_free(b);
}

/* Writes what problem_sees() says into a full mask of q. */
static void mask_by_sight(struct problem *q, const struct problem *p, enum mask_kind kind)
{
    static const uint16_t low[] = {[MASK_F16] = 0xfc00, [MASK_BF16] = 0xff80};
    const struct shape *s = &p->shape;
    problem_mask_full(q, kind);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->queries; i++)
                for (int64_t j = 0; j < s->keys; j++) {
                    const int64_t at = mask_index(q, b, h, i, j);
                    const int sees = problem_sees(p, b, h, i, j);
                    if (kind == MASK_BOOL)
                        ((unsigned char *)q->mask)[at] = (unsigned char)sees;
                    else if (kind == MASK_F32)
                        ((float *)q->mask)[at] = sees ? 0.0f : -INFINITY;
                    else
                        ((uint16_t *)q->mask)[at] = sees ? 0 : low[kind];
                }
}

/* The problem of p with all that excludes keys as one mask. Slopes still count from the same place.
 */
static struct problem *as_mask(const struct problem *p, enum mask_kind kind)
{
    struct problem *q = problem_copy(p);
    q->causal = HEADWAY_CAUSAL_NONE;
    q->has_offsets = 1;
    for (int64_t b = 0; b < p->shape.batch; b++)
        q->offsets[b] = causal_offset(p, b);
    q->has_key_lengths = 0;
    q->window_left = q->window_right = -1;
    free(q->interval);
    q->interval = NULL;
    q->flags_free = !p->has_key_lengths; /* the NaN beyond the lengths are now behind a mask */
    mask_by_sight(q, p, kind);
    return q;
}

static const struct shape mask_shapes[] = {
    {2, 37, 290, 4, 2, 16, 8}, {1, 5, 129, 1, 1, 3, 40}, {3, 130, 65, 2, 2, 8, 8}};

static void check_masks_as(const struct subject *s)
{
    const struct shape *shapes = mask_shapes;
    for (int n = 0; n < 3; n++) {
        struct problem *p = problem_make(&shapes[n], (uint64_t)n);
        problem_mask(p, MASK_BOOL, 4, n == 0 ? 15 : n == 1 ? 12 : 9);
        p->weights = (enum weights_kind)n;
        for (int kind = MASK_F32; kind <= MASK_BF16; kind++)
            same(s, problem_copy(p), as_mask(p, (enum mask_kind)kind),
                 "a bool mask as a mask of 0 and -inf");
        problem_free(p);
        for (int causal = 1; causal < 4; causal++) {
            p = problem_make(&shapes[n], (uint64_t)causal);
            problem_causal(p, (headway_causal)causal);
            same(s, problem_copy(p), as_mask(p, MASK_BOOL), "causality as a bool mask");
            problem_lengths(p, causal & 1, 1);
            same(s, problem_copy(p), as_mask(p, MASK_F32), "causality and lengths as a float mask");
            problem_free(p);
        }
        p = problem_make(&shapes[n], 5);
        problem_lengths(p, 0, 1);
        same(s, problem_copy(p), as_mask(p, MASK_BOOL), "key lengths as a bool mask");
        problem_free(p);
        for (int kind = MASK_BOOL; kind <= MASK_BF16; kind++) {
            p = problem_make(&shapes[n], 6);
            problem_causal(p, (headway_causal)(n % 4));
            struct problem *q = problem_copy(p);
            problem_mask_full(q, (enum mask_kind)kind);
            same(s, p, q, "no mask as one that is all true or 0");
        }
    }
}

/* Windows and intervals, with what else may be asked for, as masks. */
static void check_windows_as(const struct subject *s)
{
    static const int64_t windows[][2] = {{0, 0}, {5, -1}, {-1, 3}, {64, 64}, {200, 1}, {7, 130}};
    for (int n = 0; n < (quick ? 6 : 18); n++) {
        struct problem *p = problem_make(&mask_shapes[n % 3], (uint64_t)n);
        problem_causal(p, (headway_causal)(n % 4));
        p->has_offsets = n % 8 >= 4 && p->causal == HEADWAY_CAUSAL_NONE;
        if (n % 5 != 4) {
            p->window_left = windows[n % 6][0];
            p->window_right = windows[n % 6][1];
        }
        if (n % 2)
            problem_interval(p, n % 3 ? p->shape.batch : 0);
        if (n % 3 == 1)
            problem_slopes(p);
        if (n % 4 == 1)
            problem_sinks(p);
        p->softcap = n % 5 == 1 ? 3 : 0;
        p->weights = (enum weights_kind)(n / 2 % 3);
        same(s, problem_copy(p), as_mask(p, n % 2 ? MASK_BOOL : MASK_F16),
             "windows and intervals as a mask");
        problem_free(p);
    }
}

/* Options that say nothing. */
static void check_nothing(const struct subject *s)
{
    for (int n = 0; n < 6; n++) {
        struct problem *p = problem_make(&mask_shapes[n % 3], (uint64_t)n);
        problem_causal(p, (headway_causal)(n % 4));
        p->weights = (enum weights_kind)(n % 3);
        struct problem *q = problem_copy(p);
        if (n == 0 || n == 5)
            q->window_left = q->window_right = 300;
        if (n == 1 || n == 5) {
            problem_slopes(q);
            memset(q->slopes, 0, (size_t)q->shape.heads * sizeof(float));
        }
        if (n == 2 || n == 5) {
            problem_sinks(q);
            for (int64_t h = 0; h < q->shape.heads; h++)
                q->sinks[h] = -INFINITY;
        }
        if (n == 3 || n == 5) {
            problem_interval(q, 1);
            for (int64_t i = 0; i < q->shape.queries; i++) {
                q->interval[2 * i] = INT32_MIN;
                q->interval[2 * i + 1] = INT32_MAX;
            }
        }
        same(s, p, q, "options that say nothing as none");
    }
}

/* Rows without a key give the sink itself, alone in a tile and beside rows that have keys. */
static void check_sinks(const struct subject *s)
{
    const struct shape shape = {2, 40, 150, 6, 3, 8, 8};
    for (int n = 0; n < 3; n++) {
        struct problem *p = problem_make(&shape, (uint64_t)n);
        problem_sinks(p);
        p->causal = HEADWAY_CAUSAL_OFFSETS;
        p->offsets[0] = n == 0 ? -100 : -20;
        p->offsets[1] = -1;
        p->weights = (enum weights_kind)n;
        if (check_case("%s: the lse of rows that see no key, %s", s->isa, problem_name(p))) {
            struct answer a = attend(s->engines[n], p, LAYOUT_DENSE, 1);
            for (int64_t b = 0; b < 2; b++)
                for (int64_t i = 0; i < -p->offsets[b] && i < shape.queries; i++)
                    for (int64_t h = 0; h < shape.heads; h++)
                        check_bits(lse_at(p, &a, b, i, h), &p->sinks[h], 1, "the sink");
            answer_free(&a);
        }
        problem_free(p);
    }
}

/* Packed sequences as a batch with lengths. */
static void check_packed(const struct subject *s)
{
    static const struct shape shapes[] = {
        {6, 70, 140, 4, 2, 8, 12}, {1, 33, 33, 1, 1, 16, 8}, {9, 130, 30, 2, 2, 4, 4}};
    for (int n = 0; n < (quick ? 6 : 18); n++) {
        struct problem *p = problem_make(&shapes[n % 3], (uint64_t)n);
        problem_pack(p);
        problem_causal(p, (headway_causal)(n % 4));
        if (n % 3 == 1)
            p->window_left = 30;
        if (n % 4 == 2)
            problem_interval(p, n % 8 < 4 ? p->shape.batch : 0);
        if (n % 5 == 0)
            problem_slopes(p);
        if (n % 2)
            problem_mask(p, n % 4 == 1 ? MASK_BOOL : MASK_BF16, 4, n % 3 ? 15 : 12);
        struct problem *q = problem_copy(p);
        q->packed = 0;
        same(s, p, q, "packed sequences as a batch with lengths");
    }
}

static void check_broadcasts(const struct subject *s)
{
    const struct shape shape = {2, 19, 140, 4, 2, 8, 8};
    for (int kind = MASK_BOOL; kind <= MASK_BF16; kind++)
        for (unsigned full = 0; full < 16; full++) {
            struct problem *p = problem_make(&shape, full);
            problem_mask(p, (enum mask_kind)kind, 4, full);
            struct problem *q = problem_copy(p);
            problem_mask_expand(q);
            same(s, p, q, "a broadcast mask as its full self");
        }
    for (unsigned shared = 1; shared < 8; shared++) {
        struct problem *p = problem_make(&shape, shared);
        problem_share(p, shared);
        struct problem *q = problem_copy(p);
        q->shared = 0;
        same(s, p, q, "strides of 0 as copies");
    }
}

/* KV heads turned round, the query heads of a group with them. */
static struct problem *turn_heads(const struct problem *p)
{
    const struct shape *s = &p->shape;
    const int64_t group = s->heads / s->kv_heads;
    struct problem *q = problem_copy(p);
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t i = 0; i < s->queries; i++)
            for (int64_t h = 0; h < s->heads; h++) {
                const int64_t to = (s->kv_heads - 1 - h / group) * group + (h + 1) % group;
                memcpy(query_line(q, b, i, to), query_line(p, b, i, h),
                       (size_t)s->size * sizeof(float));
                q->slopes[to] = p->slopes[h];
                q->sinks[to] = p->sinks[h];
            }
        for (int64_t j = 0; j < s->keys; j++)
            for (int64_t g = 0; g < s->kv_heads; g++) {
                memcpy(key_line(q, b, j, s->kv_heads - 1 - g), key_line(p, b, j, g),
                       (size_t)s->size * sizeof(float));
                memcpy(value_line(q, b, j, s->kv_heads - 1 - g), value_line(p, b, j, g),
                       (size_t)s->value_size * sizeof(float));
            }
    }
    return q;
}

static void check_turned(const struct subject *s)
{
    static const int64_t heads[][2] = {{4, 4}, {6, 2}, {7, 1}, {8, 4}};
    for (int n = 0; n < 4; n++) {
        const struct shape shape = {2, 18, 133, heads[n][0], heads[n][1], 12, 20};
        const int64_t group = shape.heads / shape.kv_heads;
        struct problem *p = problem_make(&shape, (uint64_t)n);
        problem_causal(p, (headway_causal)(n % 4));
        problem_slopes(p);
        problem_sinks(p);
        p->weights = WEIGHTS_HEADS;
        struct problem *q = turn_heads(p);
        if (check_case("%s: heads in another order, %s", s->isa, problem_name(p))) {
            struct answer x = attend(s->engines[0], p, LAYOUT_DENSE, 0);
            struct answer y = attend(s->engines[1], q, LAYOUT_PACKED, 1);
            for (int64_t b = 0; b < shape.batch; b++)
                for (int64_t i = 0; i < shape.queries; i++)
                    for (int64_t h = 0; h < shape.heads; h++) {
                        const int64_t to =
                            (shape.kv_heads - 1 - h / group) * group + (h + 1) % group;
                        const int64_t at[3] = {b, i, h}, turned[3] = {b, i, to};
                        same_line(p, &x, at, q, &y, turned, "turned");
                    }
            answer_free(&x);
            answer_free(&y);
        }
        problem_free(p);
        problem_free(q);
    }
}

/* Grouped heads as heads with copies of their keys and values. */
static void check_repeated(const struct subject *s)
{
    static const int64_t heads[][2] = {{4, 2}, {7, 1}, {12, 4}};
    for (int n = 0; n < 3; n++) {
        const struct shape shape = {2, 20, 150, heads[n][0], heads[n][1], 16, 8};
        const int64_t group = shape.heads / shape.kv_heads;
        struct shape wide = shape;
        wide.kv_heads = wide.heads;
        struct problem *p = problem_make(&shape, (uint64_t)n),
                       *q = problem_make(&wide, (uint64_t)n);
        memcpy(q->query, p->query,
               (size_t)(shape.batch * shape.queries * shape.heads * shape.size) * sizeof(float));
        for (int64_t b = 0; b < shape.batch; b++)
            for (int64_t j = 0; j < shape.keys; j++)
                for (int64_t h = 0; h < shape.heads; h++) {
                    memcpy(key_line(q, b, j, h), key_line(p, b, j, h / group),
                           (size_t)shape.size * sizeof(float));
                    memcpy(value_line(q, b, j, h), value_line(p, b, j, h / group),
                           (size_t)shape.value_size * sizeof(float));
                }
        same(s, p, q, "grouped heads as repeated ones");
    }
}

/* Subnormal values whose weighted sums round to a zero: its sign must not tell what else is in the
 * tile. */
static void check_tiny(const struct subject *s)
{
    const struct shape shape = {1, 40, 60, 1, 1, 4, 4};
    struct problem *p = problem_make(&shape, 1);
    problem_causal(p, HEADWAY_CAUSAL_TOP_LEFT);
    for (int64_t j = 0; j < shape.keys; j++)
        for (int64_t d = 0; d < 4; d++)
            value_line(p, 0, j, 0)[d] = j == 0 ? -0x1p-149f : j < 3 ? -0.0f : (float)d;
    /* Key 0 has a weight below one half in rows 0 .. 3. */
    for (int64_t d = 0; d < 4; d++) {
        key_line(p, 0, 0, 0)[d] = -1;
        key_line(p, 0, 1, 0)[d] = 1;
        for (int64_t i = 0; i < 4; i++)
            query_line(p, 0, i, 0)[d] = 1;
    }
    if (check_case("%s: a sum that underflows, alone as inside a tile", s->isa)) {
        struct answer whole = attend(s->engines[0], p, LAYOUT_DENSE, 1);
        for (int64_t i = 0; i < 4; i++) {
            struct problem *one = rows_of(p, 0, i, 1);
            struct answer alone = attend(s->engines[0], one, LAYOUT_DENSE, 1);
            const int64_t at[3] = {0, 0, 0}, inside[3] = {0, i, 0};
            same_line(one, &alone, at, p, &whole, inside, "alone");
            answer_free(&alone);
            problem_free(one);
        }
        answer_free(&whole);
    }
    problem_free(p);
}

void check_equalities(const struct subject *s)
{
    check_alone(s);
    check_split(s);
    check_masks_as(s);
    check_windows_as(s);
    check_nothing(s);
    check_sinks(s);
    check_packed(s);
    check_broadcasts(s);
    check_turned(s);
    check_repeated(s);
    check_tiny(s);
}
