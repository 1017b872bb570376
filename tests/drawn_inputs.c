#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "drawn.h"

/* A source of numbers of its own for each thing that is drawn: dropping one option leaves the
 * others' data alone. */
enum stream {
    STREAM_QUERY = 1,
    STREAM_KEY,
    STREAM_VALUE,
    STREAM_LENGTHS,
    STREAM_OFFSETS,
    STREAM_STARTS,
    STREAM_INTERVAL,
    STREAM_MASK,
    STREAM_HEADS,
    STREAM_SPECIAL
};

static uint64_t stream(const struct drawn *d, enum stream which)
{
    uint64_t state = d->seed * 64 + (uint64_t)which;
    return check_random(&state);
}

static int64_t below(uint64_t *random, int64_t n)
{
    return n > 0 ? (int64_t)(check_random(random) % (uint64_t)n) : 0;
}

void *inputs_room(struct inputs *in, int64_t count, size_t size)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory || in->owned_count == MAX_OWNED) {
        perror("test");
        exit(1);
    }
    in->owned[in->owned_count++] = memory;
    return memory;
}

void inputs_free(struct inputs *in)
{
    if (!in)
        return;
    for (int i = 0; i < in->owned_count; i++)
        free(in->owned[i]);
    free(in);
}

/* ---- what the options mean -------------------------------------------------------------------
 */

int64_t inputs_batches(const struct inputs *in)
{
    return in->query_starts ? in->sequences : in->batch;
}

int64_t inputs_query_length(const struct inputs *in, int64_t b)
{
    if (in->query_starts)
        return in->query_starts[b + 1] - in->query_starts[b];
    return in->query_lengths ? in->query_lengths[b] : in->queries;
}

int64_t inputs_key_length(const struct inputs *in, int64_t b)
{
    const int64_t *starts = in->key_starts ? in->key_starts : in->query_starts;
    if (starts)
        return starts[b + 1] - starts[b];
    return in->key_lengths ? in->key_lengths[b] : in->keys;
}

int64_t inputs_mask_queries(const struct inputs *in)
{
    int64_t most = in->query_starts ? 0 : in->queries;
    for (int64_t b = 0; in->query_starts && b < in->sequences; b++)
        most = inputs_query_length(in, b) > most ? inputs_query_length(in, b) : most;
    return most;
}

int64_t inputs_mask_keys(const struct inputs *in)
{
    int64_t most = in->query_starts ? 0 : in->keys;
    for (int64_t b = 0; in->query_starts && b < in->sequences; b++)
        most = inputs_key_length(in, b) > most ? inputs_key_length(in, b) : most;
    return most;
}

static int64_t plus(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}

int64_t inputs_place(const struct inputs *in, int64_t b, int64_t i)
{
    switch (in->causal) {
    case HEADWAY_CAUSAL_TOP_LEFT:
        return i;
    case HEADWAY_CAUSAL_BOTTOM_RIGHT:
        return i + inputs_key_length(in, b) - inputs_query_length(in, b);
    default:
        return in->row_offsets ? plus(i, in->row_offsets[b]) : i;
    }
}

int64_t inputs_mask_index(const struct inputs *in, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t at[4] = {b, h, i, j};
    int64_t index = 0;
    for (int n = 0; n < in->mask_rank; n++)
        index =
            index * in->mask_shape[n] + (in->mask_shape[n] == 1 ? 0 : at[4 - in->mask_rank + n]);
    return index;
}

static int interval_has(const struct inputs *in, int64_t b, int64_t i, int64_t j)
{
    const int64_t batch = in->query_starts || in->interval_batch == 1 ? 0 : b;
    const int64_t row = in->query_starts ? in->query_starts[b] + i : i;
    const int32_t *pair = in->interval + (batch * in->queries + row) * 2;
    return pair[0] <= j && j < pair[1];
}

int inputs_sees(const struct inputs *in, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t place = inputs_place(in, b, i);
    if (i >= inputs_query_length(in, b) || j >= inputs_key_length(in, b))
        return 0;
    if (in->causal != HEADWAY_CAUSAL_NONE && j > place)
        return 0;
    /* place - j > left and j - place > right, by sums that stay within int64_t or at its ends. */
    if (j >= in->window_first && in->window_left >= 0 && place > plus(in->window_left, j))
        return 0;
    if (j >= in->window_first && in->window_right >= 0 && j > plus(place, in->window_right))
        return 0;
    if (in->interval && !interval_has(in, b, i, j))
        return 0;
    if (!in->mask_rank)
        return 1;
    const float m = in->mask[inputs_mask_index(in, b, h, i, j)];
    return in->mask_dtype == HEADWAY_BOOL ? m != 0 : !(m == -INFINITY);
}

float *inputs_query(const struct inputs *in, int64_t b, int64_t i, int64_t h)
{
    const int64_t row = in->query_starts ? in->query_starts[b] + i : b * in->queries + i;
    return in->query + (row * in->heads + h) * in->size;
}

int64_t inputs_key_row(const struct inputs *in, int64_t b, int64_t j)
{
    const int64_t *starts = in->key_starts ? in->key_starts : in->query_starts;
    return starts ? starts[b] + j : b * in->keys + j;
}

float *inputs_key(const struct inputs *in, int64_t b, int64_t j, int64_t g)
{
    return in->key + (inputs_key_row(in, b, j) * in->kv_heads + g) * in->size;
}

float *inputs_value(const struct inputs *in, int64_t b, int64_t j, int64_t g)
{
    return in->value + (inputs_key_row(in, b, j) * in->kv_heads + g) * in->value_size;
}

/* ---- drawing them ------------------------------------------------------------------------------
 */

static float *numbers(struct inputs *in, uint64_t random, int64_t rows, int64_t heads, int64_t size,
                      int shared, float deviation, float constant)
{
    float *data = inputs_room(in, rows * heads * size * in->batch, sizeof(float));
    for (int64_t b = 0; b < in->batch; b++)
        for (int64_t l = 0; l < rows; l++)
            for (int64_t h = 0; h < heads; h++) {
                float *to = data + ((b * rows + l) * heads + h) * size;
                const int64_t from_b = shared & 1 ? 0 : b, from_l = shared & 4 ? 0 : l,
                              from_h = shared & 2 ? 0 : h;
                const float *from = data + ((from_b * rows + from_l) * heads + from_h) * size;
                if (from != to)
                    memcpy(to, from, (size_t)size * sizeof(float));
                else if (constant != 0)
                    for (int64_t d = 0; d < size; d++)
                        to[d] = constant;
                else
                    check_fill_normal(&random, to, size, deviation);
            }
    return data;
}

static void draw_numbers(struct inputs *in, const struct drawn *d)
{
    static const float deviations[][3] = {{1.5f, 1, 1},    {12, 10, 1},  {1e-18f, 1e-19f, 1e-20f},
                                          {0, 0, 0},       {1.5f, 1, 1}, {1.5f, 1, 1},
                                          {1.5f, 1, 1e37f}};
    const float *deviation = deviations[d->f[DRAW_VALUES]];
    const float constant = d->f[DRAW_VALUES] == 3 ? 0.375f : 0;
    const int shared = in->shared;
    in->query = numbers(in, stream(d, STREAM_QUERY), in->queries, in->heads, in->size, shared,
                        deviation[0], constant);
    in->key = numbers(in, stream(d, STREAM_KEY), in->keys, in->kv_heads, in->size, shared,
                      deviation[1], constant);
    in->value = numbers(in, stream(d, STREAM_VALUE), in->keys, in->kv_heads, in->value_size, shared,
                        deviation[2], constant);
}

/* Non-finite numbers at a few places that rows may see. With shared lines they are everywhere, so
 * those stay as they are. */
static void draw_special(struct inputs *in, const struct drawn *d)
{
    uint64_t random = stream(d, STREAM_SPECIAL);
    const int64_t counts[3] = {in->batch * in->queries * in->heads * in->size,
                               in->batch * in->keys * in->kv_heads * in->size,
                               in->batch * in->keys * in->kv_heads * in->value_size};
    float *const data[3] = {in->query, in->key, in->value};
    if ((d->f[DRAW_VALUES] != 4 && d->f[DRAW_VALUES] != 5) || in->shared)
        return;
    for (int n = 0; n < 6; n++) {
        const int which = n % 3;
        const float special = d->f[DRAW_VALUES] == 4 ? NAN : n & 1 ? INFINITY : -INFINITY;
        if (counts[which] && below(&random, 2))
            data[which][below(&random, counts[which])] = special;
    }
}

static int64_t *draw_starts(struct inputs *in, uint64_t *random, int64_t total)
{
    int64_t *starts = inputs_room(in, in->sequences + 1, sizeof *starts);
    for (int64_t b = 0; b < in->sequences; b++)
        starts[b] = b == 0 ? 0 : below(random, 5) ? below(random, total + 1) : 0;
    starts[in->sequences] = total;
    for (int64_t b = 1; b < in->sequences; b++)
        for (int64_t a = b; a > 0 && starts[a - 1] > starts[a]; a--) {
            const int64_t swap = starts[a];
            starts[a] = starts[a - 1];
            starts[a - 1] = swap;
        }
    return starts;
}

static int64_t *draw_lengths(struct inputs *in, uint64_t *random, int64_t most)
{
    int64_t *lengths = inputs_room(in, in->batch, sizeof *lengths);
    for (int64_t b = 0; b < in->batch; b++) {
        const int64_t kind = below(random, 5);
        lengths[b] = kind == 0 ? 0 : kind == 1 ? most : below(random, most + 1);
    }
    return lengths;
}

static void draw_places(struct inputs *in, const struct drawn *d)
{
    const int64_t *f = d->f;
    uint64_t lengths = stream(d, STREAM_LENGTHS), offsets = stream(d, STREAM_OFFSETS),
             starts = stream(d, STREAM_STARTS);
    in->causal = (headway_causal)f[DRAW_CAUSAL];
    in->window_left = f[DRAW_LEFT];
    in->window_right = f[DRAW_RIGHT];
    in->window_first = f[DRAW_FIRST];
    if (f[DRAW_QUERY_LENGTHS])
        in->query_lengths = draw_lengths(in, &lengths, in->queries);
    if (f[DRAW_KEY_LENGTHS])
        in->key_lengths = draw_lengths(in, &lengths, in->keys);
    if (f[DRAW_CACHE] && in->key_lengths)
        in->key_lengths[0] = in->keys; /* the longest is what masks and weights are for */
    in->sequences = f[DRAW_PACKED];
    if (in->sequences)
        in->query_starts = draw_starts(in, &starts, in->queries);
    if (f[DRAW_KEY_STARTS])
        in->key_starts = draw_starts(in, &starts, in->keys);
    if (f[DRAW_OFFSETS] == 2) {
        const int64_t far[] = {INT64_MAX,
                               INT64_MIN,
                               INT64_MAX / 2,
                               INT64_MIN / 2,
                               plus(in->window_left, below(&offsets, in->keys + 1)),
                               -in->window_right};
        in->row_offsets = inputs_room(in, inputs_batches(in), sizeof(int64_t));
        for (int64_t b = 0; b < inputs_batches(in); b++)
            in->row_offsets[b] = far[below(&offsets, 6)];
    } else if (f[DRAW_OFFSETS] || f[DRAW_CAUSAL] == HEADWAY_CAUSAL_OFFSETS) {
        in->row_offsets = inputs_room(in, inputs_batches(in), sizeof(int64_t));
        for (int64_t b = 0; b < inputs_batches(in); b++)
            in->row_offsets[b] = below(&offsets, in->queries + in->keys + 20) - in->queries - 10;
    }
}

static void draw_interval(struct inputs *in, const struct drawn *d)
{
    uint64_t random = stream(d, STREAM_INTERVAL);
    const int64_t kind = d->f[DRAW_INTERVAL];
    if (!kind)
        return;
    in->interval_rank = kind == 1 ? 2 : 3;
    in->interval_batch = kind == 3 ? in->batch : 1;
    const int64_t rows = in->interval_batch * in->queries;
    in->interval = inputs_room(in, rows * 2, sizeof *in->interval);
    for (int64_t row = 0; row < rows; row++) {
        int32_t *pair = in->interval + row * 2;
        pair[0] = (int32_t)(below(&random, in->keys + 6) - 3);
        pair[1] = (int32_t)(below(&random, in->keys + 6) - 2);
        if (pair[1] < pair[0] && below(&random, 4)) {
            const int32_t swap = pair[0];
            pair[0] = pair[1];
            pair[1] = swap;
        }
        if (below(&random, 16) == 0)
            pair[0] = INT32_MIN;
        if (below(&random, 16) == 0)
            pair[1] = INT32_MAX;
    }
}

void inputs_mask_room(struct inputs *in, headway_dtype dtype, int rank, unsigned full)
{
    const int64_t extents[4] = {inputs_batches(in), in->heads, inputs_mask_queries(in),
                                inputs_mask_keys(in)};
    int64_t count = 1;
    in->mask_dtype = dtype;
    in->mask_rank = rank;
    for (int i = 0; i < rank; i++) {
        const int axis = 4 - rank + i;
        in->mask_shape[i] = full & (1u << axis) ? extents[axis] : 1;
        count *= in->mask_shape[i];
    }
    in->mask = inputs_room(in, count, sizeof(float));
}

/* Numbers that the mask's type holds exactly, and all but the lowest every float type. */
static float draw_addend(uint64_t *random, headway_dtype dtype)
{
    switch (below(random, 40)) {
    case 0:
        return 0;
    case 1:
        return -10000 + 16; /* of the models that mask with -10000 */
    case 2:
        return 0x1p-20f;
    case 3:
        return dtype == HEADWAY_F16 ? -65504 : dtype == HEADWAY_BF16 ? -0x1.fep127f : -FLT_MAX;
    default:
        return floorf(check_normal(random) * 16) / 8;
    }
}

static void draw_mask(struct inputs *in, const struct drawn *d)
{
    static const headway_dtype dtypes[] = {HEADWAY_BOOL, HEADWAY_BOOL, HEADWAY_F32, HEADWAY_F16,
                                           HEADWAY_BF16};
    uint64_t random = stream(d, STREAM_MASK);
    int64_t count = 1;
    if (!d->f[DRAW_MASK])
        return;
    inputs_mask_room(in, dtypes[d->f[DRAW_MASK]], (int)d->f[DRAW_MASK_RANK],
                     (unsigned)d->f[DRAW_MASK_FULL]);
    for (int i = 0; i < in->mask_rank; i++)
        count *= in->mask_shape[i];
    const int64_t run = in->mask_shape[in->mask_rank - 1];
    /* How often an entry excludes: never, rarely, often, nearly always. */
    const int64_t kinds[] = {0, 1, 4, 12, 15}, rate = kinds[below(&random, 5)];
    int line = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i % run == 0)
            line = (int)below(&random, 12);
        const int excludes = line == 0 ? 1 : line == 1 ? 0 : below(&random, 16) < rate;
        if (in->mask_dtype == HEADWAY_BOOL)
            in->mask[i] = !excludes;
        else
            in->mask[i] = excludes ? -INFINITY : draw_addend(&random, in->mask_dtype);
    }
    if (d->f[DRAW_VALUES] == 4 && in->mask_dtype != HEADWAY_BOOL && count)
        in->mask[below(&random, count)] = NAN;
}

static void draw_heads(struct inputs *in, const struct drawn *d)
{
    uint64_t random = stream(d, STREAM_HEADS);
    if (d->f[DRAW_ALIBI]) {
        in->slopes = inputs_room(in, in->heads, sizeof(float));
        for (int64_t h = 0; h < in->heads; h++)
            in->slopes[h] = d->f[DRAW_ALIBI] == 1 ? exp2f(-8 * (float)(h + 1) / (float)in->heads)
                            : h % 3 == 2          ? 0
                                                  : check_normal(&random) * 0.3f;
    }
    if (!d->f[DRAW_SINKS])
        return;
    in->sinks = inputs_room(in, in->heads, sizeof(float));
    for (int64_t h = 0; h < in->heads; h++)
        in->sinks[h] = d->f[DRAW_SINKS] == 2 && below(&random, 2)
                           ? -INFINITY
                           : check_normal(&random) * (d->f[DRAW_SINKS] == 3 ? 300.0f : 2.0f);
}

static void draw_scalars(struct inputs *in, const struct drawn *d)
{
    static const float softcaps[] = {0, 0.5f, 5, 30, 50, 1e4f};
    const float usual = 1 / sqrtf((float)in->size);
    const float scales[] = {0, 0, -usual, usual * 0.37f, usual * 9};
    in->has_scale = d->f[DRAW_SCALE] != 0;
    in->scale = scales[d->f[DRAW_SCALE]];
    in->softcap = softcaps[d->f[DRAW_SOFTCAP]];
}

/* Tokens that no row of any head sees as a key; as queries they may be poison too. */
static void poison_tokens(struct inputs *in, const unsigned char *seen, float poison)
{
    const struct drawn_layer *l = in->layer;
    for (int64_t n = 0; n < in->batch * in->keys; n++) {
        int any = 0;
        for (int64_t g = 0; g < in->kv_heads; g++)
            any |= seen[n * in->kv_heads + g];
        for (int which = 0; !any && which < 3; which++)
            for (int64_t c = 0;
                 l->tokens[which] && (which > 0 || l->self == 2) && c < l->width[which]; c++)
                l->tokens[which][n * l->width[which] + c] = poison;
    }
}

/* Keys and values that no row sees become what must not matter. */
static void draw_poison(struct inputs *in, float poison)
{
    unsigned char *seen = inputs_room(in, in->batch * in->keys * in->kv_heads, 1);
    for (int64_t b = 0; b < inputs_batches(in); b++)
        for (int64_t h = 0; h < in->heads; h++)
            for (int64_t j = 0; j < inputs_key_length(in, b); j++) {
                unsigned char *at =
                    &seen[inputs_key_row(in, b, j) * in->kv_heads + h / (in->heads / in->kv_heads)];
                for (int64_t i = 0; !*at && i < inputs_query_length(in, b); i++)
                    *at = (unsigned char)inputs_sees(in, b, h, i, j);
            }
    if (in->layer) {
        poison_tokens(in, seen, poison);
        return;
    }
    for (int64_t n = 0; n < in->batch * in->keys * in->kv_heads; n++) {
        for (int64_t c = 0; !seen[n] && c < in->size; c++)
            in->key[n * in->size + c] = poison;
        for (int64_t c = 0; !seen[n] && c < in->value_size; c++)
            in->value[n * in->value_size + c] = poison;
    }
}

struct inputs *inputs_make(const struct drawn *d)
{
    const int64_t *f = d->f;
    struct inputs *in = calloc(1, sizeof *in);
    if (!in) {
        perror("test");
        exit(1);
    }
    in->batch = f[DRAW_BATCH];
    in->queries = f[DRAW_QUERIES];
    in->keys = f[DRAW_KEYS];
    in->kv_heads = f[DRAW_KV_HEADS];
    in->heads = f[DRAW_KV_HEADS] * f[DRAW_GROUP];
    in->size = f[DRAW_SIZE];
    in->value_size = f[DRAW_VALUE_SIZE];
    in->layout = (int)f[DRAW_LAYOUT];
    in->shared = (int)f[DRAW_SHARED];
    in->leading = (int)f[DRAW_LEADING];
    in->at_end = (int)f[DRAW_AT_END];
    in->lse = (int)f[DRAW_LSE];
    in->weights = (int)f[DRAW_WEIGHTS];
    in->flags_free = !f[DRAW_POISON] && f[DRAW_VALUES] < 4;
    in->random = d->seed;
    if (f[DRAW_LAYER]) {
        drawn_layer_make(in, d);
    } else {
        draw_numbers(in, d);
        draw_special(in, d);
    }
    draw_scalars(in, d);
    draw_places(in, d);
    draw_interval(in, d);
    draw_mask(in, d);
    draw_heads(in, d);
    if (f[DRAW_POISON] && !in->shared)
        draw_poison(in, f[DRAW_POISON] == 1 ? NAN : INFINITY);
    if (f[DRAW_CACHE])
        drawn_cache_make(in, d);
    return in;
}
