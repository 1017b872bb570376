/* A drawn problem's keys and values through a cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "drawn.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Tokens of sequence b that are in the cache when its rows attend. */
static int64_t tokens_of(const struct inputs *in, int64_t b)
{
    return in->cache->way.beyond ? in->keys : inputs_key_length(in, b);
}

/* Tokens that a ring must keep so that all rows find what their windows hold. */
static int64_t tokens_kept(const struct inputs *in, int64_t pinned)
{
    int64_t most = 1;
    for (int64_t b = 0; b < inputs_batches(in); b++) {
        const int64_t place = inputs_place(in, b, 0), all = tokens_of(in, b);
        int64_t first;
        if (inputs_query_length(in, b) == 0 || in->window_left < 0 || in->window_first > pinned ||
            __builtin_sub_overflow(place, in->window_left, &first) || first < 0)
            first = 0;
        most = larger(most, all - smaller(first, all));
    }
    return most;
}

/* The first `common` tokens of all sequences become those of the first. */
static void share_prefix(struct inputs *in, uint64_t *random)
{
    struct drawn_cache *c = in->cache;
    int64_t shortest = INT64_MAX;
    for (int64_t b = 0; b < inputs_batches(in); b++)
        shortest = smaller(shortest, tokens_of(in, b));
    if (shortest == INT64_MAX)
        return;
    c->common = (int64_t)(check_random(random) % (uint64_t)(shortest + 1));
    if (check_random(random) % 2)
        c->common = shortest - c->common % smaller(20, shortest + 1);
    for (int64_t b = 1; b < inputs_batches(in); b++)
        for (int64_t j = 0; j < c->common; j++) {
            memcpy(inputs_key(in, b, j, 0), inputs_key(in, 0, j, 0),
                   (size_t)(in->kv_heads * in->size) * sizeof(float));
            memcpy(inputs_value(in, b, j, 0), inputs_value(in, 0, j, 0),
                   (size_t)(in->kv_heads * in->value_size) * sizeof(float));
        }
}

void drawn_cache_make(struct inputs *in, const struct drawn *d)
{
    static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};
    static const int64_t chunks[] = {0, 1, 7, 64};
    const int64_t *f = d->f;
    struct drawn_cache *c = in->cache = inputs_room(in, 1, sizeof *c);
    uint64_t random = d->seed * 64 + 63;
    c->way.page = f[DRAW_CACHE] == 1 ? 0 : (int64_t)1 << (f[DRAW_CACHE] - 2);
    c->way.key = dtypes[f[DRAW_KEY_STORAGE]];
    c->way.value = dtypes[f[DRAW_VALUE_STORAGE]];
    c->way.chunk = chunks[f[DRAW_CHUNK]];
    c->way.turned = (int)f[DRAW_SLOTS] & 1;
    c->way.beyond = (int)f[DRAW_SLOTS] >> 1;
    c->prefix = (int)f[DRAW_PREFIX];
    c->past = (int)f[DRAW_PAST];
    c->lossy = c->way.key != HEADWAY_F32 || c->way.value != HEADWAY_F32;
    c->way.spare = (int64_t)(check_random(&random) % 20);
    if (c->prefix)
        share_prefix(in, &random);
    if (f[DRAW_ROLLING]) {
        c->way.rolling = 1;
        c->way.spare %= 3;
        if (c->way.page)
            c->way.pinned = (in->window_first + c->way.page - 1) / c->way.page * c->way.page;
    }
    /* Large values are infinite in f16, and what is infinite raises flags. */
    if (f[DRAW_VALUES] == 6 && f[DRAW_VALUE_STORAGE] == 1)
        in->flags_free = 0;
    for (int i = 0; i < 2; i++) {
        const int64_t size = i ? in->value_size : in->size;
        const float *from = i ? in->value : in->key;
        c->stored[i] = inputs_room(in, in->batch * in->keys * in->kv_heads * size, sizeof(float));
        if (from)
            memcpy(c->stored[i], from,
                   (size_t)(in->batch * in->keys * in->kv_heads * size) * sizeof(float));
    }
}

static void *take(struct cached_call *c, int64_t count, size_t size)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory)
        abort();
    return c->memory[c->pieces++] = memory;
}

/* ---- the core ----------------------------------------------------------------------------------
 */

/* Tokens from .. to - 1 of sequence b. */
static void append(const struct cached_call *c, const struct inputs *in, int64_t b, int64_t from,
                   int64_t to)
{
    const int64_t chunk = smaller(in->cache->way.chunk ? in->cache->way.chunk : to - from, c->most);
    for (; from < to; from += chunk) {
        const int64_t count = smaller(chunk, to - from);
        stored_append(&c->store, b, 1, &count, inputs_key(in, b, from, 0), 0,
                      inputs_value(in, b, from, 0), 0);
    }
}

static void cut_back(const struct cached_call *c, int64_t b, int64_t length)
{
    CHECK(!c->store.cache ||
              headway_kv_cache_truncate(c->store.cache, c->store.slots[b], length) == HEADWAY_OK,
          "truncate");
}

/* Tokens from .. to - 1 of sequence b, after others that did not stay. */
static void append_again(const struct cached_call *c, const struct inputs *in, int64_t b,
                         int64_t from, int64_t to)
{
    const int64_t wrong = smaller(to - from, 5), back = from + (to - from) / 3;
    if (wrong > 0) {
        stored_append(&c->store, b, 1, &wrong, inputs_key(in, b, to - wrong, 0), 0,
                      inputs_value(in, b, to - wrong, 0), 0);
        cut_back(c, b, from);
    }
    append(c, in, b, from, to);
    cut_back(c, b, back);
    append(c, in, b, back, to);
}

/* All at a time where they lie as a batch does. */
static void append_batch(const struct cached_call *c, const struct inputs *in)
{
    const int64_t chunk =
        smaller(in->cache->way.chunk ? in->cache->way.chunk : larger(1, in->keys), c->most);
    int64_t lengths[64];
    for (int64_t first = 0; first < in->keys; first += chunk) {
        for (int64_t b = 0; b < in->batch; b++)
            lengths[b] = larger(0, smaller(chunk, tokens_of(in, b) - first));
        stored_append(&c->store, 0, in->batch, lengths, inputs_key(in, 0, first, 0),
                      in->keys * in->kv_heads * in->size, inputs_value(in, 0, first, 0),
                      in->keys * in->kv_heads * in->value_size);
    }
}

static void fill_core(struct cached_call *c, const struct inputs *in)
{
    const int64_t common = in->cache->common;
    if (!common && !in->query_starts && !in->cache->detour) {
        append_batch(c, in);
        return;
    }
    for (int64_t b = 0; b < inputs_batches(in); b++) {
        if (b == 0)
            append(c, in, 0, 0, common);
        else if (common && c->store.cache)
            CHECK(headway_kv_cache_fork(c->store.cache, c->store.slots[0], c->store.slots[b]) ==
                      HEADWAY_OK,
                  "fork");
    }
    for (int64_t b = 0; b < inputs_batches(in); b++) {
        if (in->cache->detour == 1)
            append_again(c, in, b, common, tokens_of(in, b));
        else
            append(c, in, b, common, in->cache->detour ? in->keys : tokens_of(in, b));
        if (in->cache->detour == 2)
            cut_back(c, b, tokens_of(in, b));
    }
}

/* ---- the layer ---------------------------------------------------------------------------------
 */

/* Tokens first[b] .. first[b] + counts[b] - 1 of each sequence. */
struct cut {
    int64_t *first, *counts, *starts; /* starts: where they begin when packed, else NULL */
    int64_t longest, total;
};

static struct cut cut_tokens(struct cached_call *c, const struct inputs *in, int after_past,
                             int64_t skip)
{
    const int64_t n = inputs_batches(in);
    struct cut cut = {take(c, n, 8), take(c, n, 8), NULL, 0, 0};
    if (in->query_starts)
        cut.starts = take(c, n + 1, 8);
    for (int64_t b = 0; b < n; b++) {
        const int64_t all = tokens_of(in, b);
        const int64_t past = in->cache->past == 0 ? 0 : in->cache->past == 1 ? all / 2 : all;
        cut.first[b] = after_past ? past : smaller(skip, past);
        cut.counts[b] = after_past ? all - past : smaller(past - cut.first[b], c->most);
        cut.longest = larger(cut.longest, cut.counts[b]);
        cut.total += cut.counts[b];
        if (cut.starts)
            cut.starts[b + 1] = cut.total;
    }
    return cut;
}

/* Row n of the cut's sequence b in a tensor of them. */
static int64_t cut_row(const struct cut *cut, int64_t b, int64_t n)
{
    return cut->starts ? cut->starts[b] + n : b * cut->longest + n;
}

static headway_tensor cut_shape(const struct inputs *in, const struct cut *cut, headway_dtype dtype,
                                void *data, int64_t width)
{
    const int64_t shape[3] = {in->batch, cut->starts ? cut->total : cut->longest, width};
    return headway_tensor_dense(data, dtype, 3, shape);
}

static headway_tensor cut_inputs(struct cached_call *c, const struct inputs *in,
                                 const struct cut *cut, int which)
{
    const int64_t width = in->layer->width[which], n = inputs_batches(in);
    float *to = take(c, cut->starts ? cut->total * width : n * cut->longest * width, 4);
    for (int64_t b = 0; b < n; b++)
        for (int64_t t = 0; t < cut->counts[b]; t++)
            memcpy(to + cut_row(cut, b, t) * width,
                   in->layer->tokens[which] + inputs_key_row(in, b, cut->first[b] + t) * width,
                   (size_t)width * sizeof(float));
    return cut_shape(in, cut, HEADWAY_F32, to, width);
}

/* Of keys that have positions of their own or, in self-attention, the queries'. */
static int cut_positions(struct cached_call *c, const struct inputs *in, const struct cut *cut,
                         headway_tensor *positions)
{
    const struct drawn_layer *l = in->layer;
    const int32_t *from = l->positions[1] ? l->positions[1] : l->self == 2 ? l->positions[0] : NULL;
    const int64_t n = inputs_batches(in);
    if (!from)
        return 0;
    int32_t *to = take(c, cut->starts ? cut->total : n * cut->longest, 4);
    for (int64_t b = 0; b < n; b++)
        for (int64_t t = 0; t < cut->counts[b]; t++) {
            int64_t at = inputs_key_row(in, b, cut->first[b] + t);
            if (!in->query_starts && (l->positions_rank == 1 || l->positions_batch == 1))
                at = cut->first[b] + t;
            to[cut_row(cut, b, t)] = from[at];
        }
    *positions = cut_shape(in, cut, HEADWAY_I32, to, 1);
    positions->rank = 2;
    return 1;
}

/* The tokens of a call that has them as key and value. */
static void give_tokens(struct cached_call *c, const struct inputs *in, const struct cut *cut,
                        headway_attention_params *params)
{
    const struct drawn_layer *l = in->layer;
    c->key = cut_inputs(c, in, cut, l->self == 2 ? 0 : 1);
    c->key_given = &c->key;
    if (l->self == 0) {
        c->value = cut_inputs(c, in, cut, 2);
        c->value_given = &c->value;
    }
    params->key_starts = cut->starts;
    params->key_lengths = cut->starts ? NULL : cut->counts;
    params->key_positions = cut_positions(c, in, cut, &c->key_positions) ? &c->key_positions : NULL;
}

/* A call without rows that appends tokens `skip` and on of the past; how many at most. */
static int64_t append_past(struct cached_call *c, const headway_mha *layer, const struct inputs *in,
                           const headway_attention_params *call, int64_t skip)
{
    const int kept = c->pieces;
    const struct cut cut = cut_tokens(c, in, 0, skip);
    const int64_t none[3] = {in->batch, 0, in->layer->width[0]};
    const int64_t nothing[3] = {in->batch, 0, in->layer->width[3]};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    float anything = 0;
    size_t bytes = 0;
    const headway_tensor query = headway_tensor_dense(&anything, HEADWAY_F32, 3, none);
    const headway_tensor out = headway_tensor_dense(&anything, HEADWAY_F32, 3, nothing);
    params.cache = call->cache;
    params.cache_slots = call->cache_slots;
    if (in->query_starts) {
        params.sequences = in->sequences;
        params.query_starts = take(c, in->sequences + 1, 8);
    }
    give_tokens(c, in, &cut, &params);
    headway_status status =
        headway_mha_workspace(layer, &params, &query, c->key_given, c->value_given, &bytes);
    void *workspace = check_guard(bytes, 0);
    check_poison(workspace, (int64_t)(bytes / sizeof(float)));
    if (status == HEADWAY_OK)
        status = headway_mha_forward(layer, &params, &query, c->key_given, c->value_given, &out,
                                     workspace, bytes);
    check_guard_free(workspace);
    CHECK(status == HEADWAY_OK, "appending the past: %s", headway_status_text(status));
    for (int i = kept; i < c->pieces; i++)
        free(c->memory[i]);
    c->pieces = kept;
    return cut.longest;
}

static void fill_layer(struct cached_call *c, const headway_mha *layer, const struct inputs *in,
                       headway_attention_params *params)
{
    int together = in->layer->self == 2 && in->cache->past == 0;
    for (int64_t b = 0; b < inputs_batches(in); b++)
        together &= inputs_key_length(in, b) == inputs_query_length(in, b);
    int64_t appended = in->cache->past ? 1 : 0;
    for (int64_t skip = 0; appended > 0; skip += appended)
        appended = append_past(c, layer, in, params, skip);
    c->key_given = c->value_given = NULL;
    if (together) {
        params->key_lengths = params->key_starts = NULL;
        return;
    }
    const struct cut cut = cut_tokens(c, in, 1, 0);
    give_tokens(c, in, &cut, params);
}

/* ---- both --------------------------------------------------------------------------------------
 */

void cached_call_begin(struct cached_call *c, const headway_engine *engine,
                       const headway_mha *layer, const struct inputs *in,
                       headway_attention_params *params)
{
    const struct drawn_cache *cache = in->cache;
    int64_t capacity = 1;
    memset(c, 0, sizeof *c);
    for (int64_t b = 0; b < inputs_batches(in); b++)
        capacity = larger(capacity, tokens_of(in, b));
    if (cache->detour)
        capacity = larger(capacity, in->keys);
    if (cache->way.rolling)
        capacity = cache->way.pinned + tokens_kept(in, cache->way.pinned);
    capacity += cache->way.spare;
    if (cache->way.rolling && cache->way.page)
        capacity = (capacity + cache->way.page - 1) / cache->way.page * cache->way.page;
    c->store = stored_make(engine, &cache->way, inputs_batches(in), in->kv_heads, in->size,
                           in->value_size, capacity);
    c->most = cache->way.rolling ? capacity - cache->way.pinned : INT64_MAX;
    params->cache = c->store.cache;
    params->cache_slots = cache->way.turned ? c->store.slots : NULL;
    if (layer) {
        fill_layer(c, layer, in, params);
        return;
    }
    fill_core(c, in);
    params->key_starts = NULL;
    if (!cache->way.beyond)
        params->key_lengths = NULL;
    params->shared_prefix = cache->prefix == 2   ? cache->common
                            : cache->prefix == 3 ? cache->common + 600
                                                 : 0;
}

/* What a ring has lost stays as it was drawn, which no row sees. */
void cached_call_end(struct cached_call *c, const struct inputs *in)
{
    const int64_t key = in->kv_heads * in->size, value = in->kv_heads * in->value_size;
    for (int64_t b = 0; c->store.cache && b < inputs_batches(in); b++)
        if (tokens_of(in, b) > 0)
            stored_read(&c->store, b, in->cache->way.pinned, inputs_key_length(in, b),
                        in->cache->stored[0] + inputs_key_row(in, b, 0) * key,
                        in->cache->stored[1] + inputs_key_row(in, b, 0) * value);
    stored_free(&c->store);
    for (int i = 0; i < c->pieces; i++)
        free(c->memory[i]);
}

int inputs_uncache(struct inputs *in)
{
    if (!in->cache || (in->layer && in->cache->lossy))
        return 0;
    if (!in->layer) {
        in->key = in->cache->stored[0];
        in->value = in->cache->stored[1];
    }
    in->cache = NULL;
    return 1;
}
