/* The layer with a cache: however a sequence's tokens arrive, and whoever is served beside it, its rows
 * have the bits of one call on all of it; what is refused leaves the cache as it was. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_mha.h"
#include "oracle/reference.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { SEQUENCES = 4, TENSORS = 4 };

/* ---- a cache in guarded memory ----------------------------------------------------------------- */

struct store {
    headway_kv_cache *cache;
    headway_kv_cache_config config;
    headway_tensor tensor[TENSORS]; /* key, value and their scales */
    void *copy[TENSORS];
    headway_kv_cache_state state[SEQUENCES];
};

static int64_t element_bytes(headway_dtype dtype)
{
    return dtype == HEADWAY_I8 ? 1 : dtype == HEADWAY_F32 ? 4 : 2;
}

static size_t bytes_of(const headway_tensor *t)
{
    size_t bytes = t->rank ? (size_t)element_bytes(t->dtype) : 0;
    for (int i = 0; i < t->rank; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

/* For the layer's heads; config says the rest. All elements are NaN, or where there is none 0xA5. */
static struct store store_make(const headway_engine *engine, const struct layer *l,
                               const headway_kv_cache_config *config)
{
    const struct shape *s = &l->options->shape;
    struct store m = {.config = *config};
    const int64_t page = config->page_size ? config->page_size : config->capacity;
    const int64_t pages =
        config->pages ? config->pages : config->sequences * ((config->capacity + page - 1) / page);
    const headway_dtype dtypes[TENSORS] = {config->key_dtype, config->value_dtype, HEADWAY_F32,
                                           HEADWAY_F32};
    for (int i = 0; i < TENSORS; i++) {
        const int64_t shape[4] = {pages, s->kv_heads, page, i % 2 ? s->value_size : s->size};
        if (i >= 2 && dtypes[i - 2] != HEADWAY_I8)
            continue;
        m.tensor[i] = headway_tensor_dense(NULL, dtypes[i], i < 2 ? 4 : 3, shape);
        m.tensor[i].data = check_guard(bytes_of(&m.tensor[i]), 1);
        memset(m.tensor[i].data, dtypes[i] == HEADWAY_I8 ? 0xA5 : 0xFF, bytes_of(&m.tensor[i]));
    }
    m.config.kv_heads = s->kv_heads;
    m.config.head_size = s->size;
    m.config.value_head_size = s->value_size;
    m.config.key = &m.tensor[0];
    m.config.value = &m.tensor[1];
    m.config.key_scale = m.tensor[2].rank ? &m.tensor[2] : NULL;
    m.config.value_scale = m.tensor[3].rank ? &m.tensor[3] : NULL;
    const headway_status status = headway_kv_cache_create(engine, &m.config, &m.cache);
    CHECK(status == HEADWAY_OK, "no cache: %s", headway_status_text(status));
    return m;
}

static void store_free(struct store *m)
{
    headway_kv_cache_destroy(m->cache);
    for (int i = 0; i < TENSORS; i++)
        if (m->tensor[i].rank)
            check_guard_free(m->tensor[i].data);
}

static headway_kv_cache_state state_of(const struct store *m, int64_t slot)
{
    headway_kv_cache_state state = HEADWAY_KV_CACHE_STATE_INIT;
    CHECK(headway_kv_cache_get_state(m->cache, slot, &state) == HEADWAY_OK, "no state");
    return state;
}

static void store_remember(struct store *m)
{
    for (int64_t s = 0; s < m->config.sequences; s++)
        m->state[s] = state_of(m, s);
    for (int i = 0; i < TENSORS; i++) {
        m->copy[i] = malloc(bytes_of(&m->tensor[i]) + 1);
        if (m->tensor[i].rank)
            memcpy(m->copy[i], m->tensor[i].data, bytes_of(&m->tensor[i]));
    }
}

static void store_expect_same(struct store *m, const char *what)
{
    for (int64_t s = 0; s < m->config.sequences; s++) {
        const headway_kv_cache_state now = state_of(m, s);
        CHECK(memcmp(&now, &m->state[s], sizeof now) == 0, "%s: slot %lld is in another state",
              what, (long long)s);
    }
    for (int i = 0; i < TENSORS; i++) {
        CHECK(!m->tensor[i].rank ||
                  memcmp(m->copy[i], m->tensor[i].data, bytes_of(&m->tensor[i])) == 0,
              "%s: elements %d have changed", what, i);
        free(m->copy[i]);
    }
}

/* ---- sequences to be served -------------------------------------------------------------------- */

/* Options a layer is tested with. */
enum {
    HALF = 1,
    INTERLEAVED = 2,
    PARTIAL = 4,
    NORMS = 8,
    MORE = 16,
    ZERO = 32,
    WINDOW = 64,
    FIRST = 128,
    SINKS = 256,
    ALIBI = 512,
    SOFTCAP = 1024
};

struct served {
    struct layer *l;
    headway_attention_params params; /* causal, at the end */
    int count;
    int64_t length[SEQUENCES], width, outputs;
    float *x[SEQUENCES];   /* (length, width) */
    float *out[SEQUENCES]; /* (length, outputs), as it should be */
    float *lse[SEQUENCES]; /* (heads, length) */
};

static float *floats_of(int64_t count)
{
    float *memory = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    if (!memory) {
        perror("check_mha_cache");
        exit(1);
    }
    check_poison(memory, count);
    return memory;
}

static struct layer *layer_with(int what, const struct shape *shape)
{
    struct layer *l = layer_make(shape, NULL, (uint64_t)what);
    l->rope.style = what & HALF          ? HEADWAY_ROPE_HALF
                    : what & INTERLEAVED ? HEADWAY_ROPE_INTERLEAVED
                                         : HEADWAY_ROPE_NONE;
    l->rope.rotary_size = what & PARTIAL ? shape->size / 4 * 2 : 0;
    l->rope.positions = 1024;
    l->zero = (what & ZERO) != 0;
    if (what & NORMS)
        layer_norms(l);
    if (what & MORE)
        layer_more(l);
    if (what & ALIBI)
        problem_slopes(l->options);
    if (what & SINKS)
        problem_sinks(l->options);
    layer_share(l, 1);
    return l;
}

static headway_attention_params params_with(int what, const struct layer *l)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.window_left = what & WINDOW ? 40 : -1;
    params.window_first = what & FIRST ? 3 : 0;
    params.sinks = l->options->sinks;
    params.alibi_slopes = l->options->slopes;
    params.softcap = what & SOFTCAP ? 2.0f : 0.0f;
    return params;
}

static struct served served_make(int what, const struct shape *shape, const int64_t *lengths,
                                 int count)
{
    struct served v = {.l = layer_with(what, shape), .count = count};
    v.params = params_with(what, v.l);
    v.width = v.l->widths.in[QUERY];
    v.outputs = v.l->widths.out;
    for (int b = 0; b < count; b++) {
        v.length[b] = lengths[b];
        v.x[b] = floats_of(lengths[b] * v.width);
        check_fill_normal(&v.l->options->random, v.x[b], lengths[b] * v.width, 1);
        v.out[b] = floats_of(lengths[b] * v.outputs);
        v.lse[b] = floats_of(lengths[b] * shape->heads);
    }
    return v;
}

static void served_free(struct served *v)
{
    for (int b = 0; b < v->count; b++) {
        free(v->x[b]);
        free(v->out[b]);
        free(v->lse[b]);
    }
    layer_free(v->l);
}

/* With a workspace of its own. */
static headway_status call(const headway_mha *mha, const headway_attention_params *params,
                           const headway_tensor *query, const headway_tensor *key,
                           const headway_tensor *out)
{
    size_t bytes = 0;
    headway_status status = headway_mha_workspace(mha, params, query, key, NULL, &bytes);
    if (status != HEADWAY_OK)
        return status;
    void *workspace = check_guard(bytes, 1);
    check_poison(workspace, (int64_t)(bytes / sizeof(float)));
    status = headway_mha_forward(mha, params, query, key, NULL, out, workspace, bytes);
    check_guard_free(workspace);
    return status;
}

static void expect_ok(const headway_engine *engine, headway_status status, const char *what)
{
    char text[400];
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s: %s", what, headway_status_text(status), text);
}

/* Each sequence by itself, in one call without a cache. */
static void serve_alone(const headway_engine *engine, struct served *v)
{
    headway_mha *mha = layer_create(engine, v->l, STORED_PLAIN);
    for (int b = 0; b < v->count; b++) {
        const int64_t x[3] = {1, v->length[b], v->width}, y[3] = {1, v->length[b], v->outputs};
        const int64_t lse[3] = {1, v->l->options->shape.heads, v->length[b]};
        const headway_tensor query = headway_tensor_dense(v->x[b], HEADWAY_F32, 3, x);
        const headway_tensor out = headway_tensor_dense(v->out[b], HEADWAY_F32, 3, y);
        const headway_tensor sums = headway_tensor_dense(v->lse[b], HEADWAY_F32, 3, lse);
        headway_attention_params params = v->params;
        params.lse = &sums;
        expect_ok(engine, call(mha, &params, &query, NULL, &out), "alone");
    }
    headway_mha_destroy(mha);
}

/* Sequence b is in slot slots[b], and its next count[b] tokens come. */
struct step {
    int64_t past[SEQUENCES], count[SEQUENCES], slots[SEQUENCES];
    int packed, explicit_positions;
};

/* The step's tokens, one after the other or each sequence's in lines of `rows`. */
struct batch {
    int64_t rows, all; /* of a sequence; of the tensor's length axis */
    int64_t starts[SEQUENCES + 1], at[SEQUENCES];
    float *x, *out, *lse;
    int32_t *positions;
    headway_tensor query, to, sums, places;
};

static void batch_make(const struct served *v, const struct step *step, struct batch *t)
{
    const int64_t heads = v->l->options->shape.heads;
    memset(t, 0, sizeof *t);
    for (int b = 0; b < v->count; b++) {
        t->rows = step->count[b] > t->rows ? step->count[b] : t->rows;
        t->starts[b + 1] = t->starts[b] + step->count[b];
    }
    for (int b = 0; b < v->count; b++)
        t->at[b] = step->packed ? t->starts[b] : b * t->rows;
    const int64_t batch = step->packed ? 1 : v->count;
    t->all = step->packed ? t->starts[v->count] : t->rows;
    const int64_t x[3] = {batch, t->all, v->width}, y[3] = {batch, t->all, v->outputs};
    const int64_t lse[3] = {batch, heads, t->all};
    t->x = floats_of(batch * t->all * v->width);
    t->out = floats_of(batch * t->all * v->outputs);
    t->lse = floats_of(batch * t->all * heads);
    t->positions = (int32_t *)(void *)floats_of(batch * t->all);
    t->query = headway_tensor_dense(t->x, HEADWAY_F32, 3, x);
    t->to = headway_tensor_dense(t->out, HEADWAY_F32, 3, y);
    t->sums = headway_tensor_dense(t->lse, HEADWAY_F32, 3, lse);
    t->places = headway_tensor_dense(t->positions, HEADWAY_I32, 2, x);
    for (int b = 0; b < v->count; b++) {
        if (step->count[b])
            memcpy(t->x + t->at[b] * v->width, v->x[b] + step->past[b] * v->width,
                   (size_t)(step->count[b] * v->width) * sizeof(float));
        for (int64_t i = 0; i < step->count[b]; i++)
            t->positions[t->at[b] + i] = (int32_t)(step->past[b] + i);
    }
}

static void batch_free(struct batch *t)
{
    free(t->x);
    free(t->out);
    free(t->lse);
    free(t->positions);
}

static headway_attention_params params_of(const struct served *v, const struct store *m,
                                          const struct step *step, const struct batch *t)
{
    headway_attention_params params = v->params;
    params.cache = m->cache;
    params.cache_slots = step->slots;
    params.lse = &t->sums;
    params.sequences = step->packed ? v->count : 0;
    params.query_starts = step->packed ? t->starts : NULL;
    params.query_lengths = step->packed ? NULL : step->count;
    params.query_positions =
        step->explicit_positions && v->l->rope.style != HEADWAY_ROPE_NONE ? &t->places : NULL;
    return params;
}

/* One call; rows are compared with what they should be, and nothing else is written. */
static void serve_step(const headway_engine *engine, const headway_mha *mha, const struct store *m,
                       const struct served *v, const struct step *step)
{
    const int64_t heads = v->l->options->shape.heads;
    struct batch t;
    batch_make(v, step, &t);
    const headway_attention_params params = params_of(v, m, step, &t);
    expect_ok(engine, call(mha, &params, &t.query, NULL, &t.to), "with a cache");
    for (int b = 0; b < v->count; b++) {
        const int64_t line = step->packed ? t.all : t.rows;
        const float *lse = t.lse + (step->packed ? t.starts[b] : b * heads * t.rows);
        check_bits(t.out + t.at[b] * v->outputs, v->out[b] + step->past[b] * v->outputs,
                   step->count[b] * v->outputs, "out");
        for (int64_t h = 0; h < heads; h++)
            check_bits(lse + h * line, v->lse[b] + h * v->length[b] + step->past[b], step->count[b],
                       "lse");
        const int64_t rest = step->packed ? 0 : t.rows - step->count[b];
        for (int64_t i = 0; i < rest * v->outputs; i++)
            CHECK(isnan(t.out[(t.at[b] + step->count[b]) * v->outputs + i]),
                  "a row beyond the length was written");
    }
    batch_free(&t);
}

/* How tokens arrive: at once, one by one, all in chunks of `most`, or as they come. */
enum arrival { AT_ONCE, ONE_BY_ONE, MIXED, ARRIVALS };

static int64_t next_count(enum arrival arrival, int64_t left, uint64_t *random)
{
    static const int64_t chunks[] = {0, 1, 1, 1, 2, 3, 5, 8, 16, 33, 100, 150};
    const int64_t count = arrival == AT_ONCE      ? left
                          : arrival == ONE_BY_ONE ? 1
                                                  : chunks[check_random(random) % COUNT(chunks)];
    return count < left ? count : left;
}

/* The first `shared` tokens of all sequences come once, and the others' slots begin as copies. */
static void serve_all(const headway_engine *engine, const struct served *v, const struct store *m,
                      enum arrival arrival, unsigned turn, int64_t shared)
{
    headway_mha *mha = layer_create(engine, v->l, STORED_PLAIN);
    struct step step = {.packed = (int)(turn & 1), .explicit_positions = (int)(turn >> 1 & 1)};
    uint64_t random = turn + 1;
    for (int b = 0; b < v->count; b++)
        step.slots[b] = (b + turn) % v->count;
    if (shared > 0) {
        step.count[0] = shared;
        serve_step(engine, mha, m, v, &step);
        for (int b = 0; b < v->count; b++)
            CHECK(b == 0 ||
                      headway_kv_cache_fork(m->cache, step.slots[0], step.slots[b]) == HEADWAY_OK,
                  "no fork");
        for (int b = 0; b < v->count; b++)
            step.past[b] = shared;
    }
    for (int64_t left = 1; left > 0 && check_case_failures() == 0;) {
        left = 0;
        for (int b = 0; b < v->count; b++) {
            step.count[b] = next_count(arrival, v->length[b] - step.past[b], &random);
            left += v->length[b] - step.past[b];
        }
        serve_step(engine, mha, m, v, &step);
        for (int b = 0; b < v->count; b++) {
            step.past[b] += step.count[b];
            CHECK(state_of(m, step.slots[b]).length == step.past[b], "the cache's length");
        }
    }
    headway_mha_destroy(mha);
}

static const struct shape shapes[] = {{1, 1, 1, 4, 2, 8, 8},   {1, 1, 1, 2, 2, 16, 12},
                                      {1, 1, 1, 6, 2, 12, 20}, {1, 1, 1, 3, 1, 64, 64},
                                      {1, 1, 1, 8, 1, 4, 4},   {1, 1, 1, 2, 1, 128, 128},
                                      {1, 1, 1, 16, 2, 16, 16}};
static const int options[] = {HALF,
                              INTERLEAVED | NORMS | MORE,
                              HALF | PARTIAL | WINDOW,
                              INTERLEAVED | PARTIAL | ZERO | SINKS,
                              NORMS | ALIBI,
                              HALF | NORMS | MORE | ZERO | WINDOW | FIRST | SINKS,
                              SOFTCAP | MORE,
                              HALF | WINDOW | FIRST,
                              0};
static const int64_t pages[] = {0, 1, 2, 16, 64, 256};

/* Prefill in any chunks, decode and what is between, in one call for all sequences. */
static void check_arrivals(const struct subject *s, const headway_engine *scalar)
{
    static const int64_t lengths[] = {37, 150, 1, 9}, longer[] = {530, 20, 129, 64};
    for (int n = 0; n < COUNT(options); n++) {
        const struct shape *shape = &shapes[n % COUNT(shapes)];
        const int64_t *const length = n == 1 && !quick ? longer : lengths;
        struct served v = served_make(options[n], shape, length, SEQUENCES);
        serve_alone(scalar, &v);
        for (int p = n < 2 ? 0 : n % 2; p < COUNT(pages); p += quick ? 3 : n < 2 ? 1 : 2)
            for (int arrival = 0; arrival < ARRIVALS; arrival++) {
                const unsigned turn = (unsigned)(n + p + arrival);
                headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
                if (!check_case("%s: tokens in a cache, options %d, pages of %lld, arrival %d",
                                s->isa, options[n], (long long)pages[p], arrival))
                    continue;
                config.sequences = SEQUENCES;
                config.capacity = length[0] > 150 ? length[0] : 150;
                config.page_size = pages[p];
                struct store m = store_make(s->engines[0], v.l, &config);
                serve_all(s->engines[turn / 2 % 2], &v, &m, (enum arrival)arrival, turn, 0);
                store_free(&m);
            }
        served_free(&v);
    }
}

/* Sequences that begin alike share pages, and copy what one of them writes. */
static void check_shared(const struct subject *s, const headway_engine *scalar)
{
    static const int64_t lengths[] = {60, 150, 22, 90};
    const int64_t shared = 21;
    struct served v = served_make(HALF | MORE, &shapes[0], lengths, SEQUENCES);
    for (int b = 1; b < SEQUENCES; b++)
        memcpy(v.x[b], v.x[0], (size_t)(shared * v.width) * sizeof(float));
    serve_alone(scalar, &v);
    v.params.shared_prefix = shared;
    for (int p = 0; p < COUNT(pages); p++) {
        headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
        if (!check_case("%s: tokens in shared pages of %lld", s->isa, (long long)pages[p]))
            continue;
        config.sequences = SEQUENCES;
        config.capacity = 150;
        config.page_size = pages[p];
        struct store m = store_make(s->engines[0], v.l, &config);
        serve_all(s->engines[p / 2 % 2], &v, &m, p % 3 ? MIXED : ONE_BY_ONE, (unsigned)p, shared);
        store_free(&m);
    }
    served_free(&v);
}

/* A rolling cache that keeps what windows see: the same rows as if all were kept. */
static void check_rolling(const struct subject *s, const headway_engine *scalar)
{
    static const int64_t lengths[] = {300, 170, 41, 260};
    for (int first = 0; first < 2; first++) {
        struct served v =
            served_make(HALF | WINDOW | (first ? FIRST : 0), &shapes[0], lengths, SEQUENCES);
        v.params.window_first = first ? 16 : 0;
        serve_alone(scalar, &v);
        for (int arrival = ONE_BY_ONE; arrival <= MIXED; arrival++) {
            headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
            if (!check_case("%s: a rolling cache, pinned %d, arrival %d", s->isa, first, arrival))
                continue;
            config.sequences = SEQUENCES;
            config.rolling = 1;
            config.page_size = first || arrival == MIXED ? 16 : 0;
            config.pinned = first ? 16 : 0;
            config.capacity = 16 * first + (arrival == MIXED ? 192 : 48);
            struct store m = store_make(s->engines[0], v.l, &config);
            serve_all(s->engines[first], &v, &m, (enum arrival)arrival, (unsigned)arrival, 0);
            store_free(&m);
        }
        served_free(&v);
    }
}

/* ---- other elements ---------------------------------------------------------------------------- */

/* The last step's rows against the reference on what the cache holds. */
static void expect_stored(const headway_engine *engine, const struct served *v,
                          const struct store *m, const struct step *step)
{
    const struct shape *s = &v->l->options->shape;
    headway_mha *mha = layer_create(engine, v->l, STORED_PLAIN);
    struct batch t;
    batch_make(v, step, &t);
    const headway_attention_params params = params_of(v, m, step, &t);
    expect_ok(engine, call(mha, &params, &t.query, NULL, &t.to), "with a cache");
    for (int b = 0; b < v->count; b++) {
        const int64_t rows = step->count[b], keys = step->past[b] + rows;
        const int64_t key_shape[4] = {1, keys, s->kv_heads, s->size};
        const int64_t value_shape[4] = {1, keys, s->kv_heads, s->value_size};
        const int64_t x_shape[3] = {1, rows, v->width}, place_shape[2] = {1, rows};
        float *key = floats_of(keys * s->kv_heads * s->size);
        float *value = floats_of(keys * s->kv_heads * s->value_size);
        const headway_tensor k = headway_tensor_dense(key, HEADWAY_F32, 4, key_shape);
        const headway_tensor w = headway_tensor_dense(value, HEADWAY_F32, 4, value_shape);
        const headway_tensor k3 = headway_tensor_dense(key, HEADWAY_F32, 3, key_shape + 1);
        const headway_tensor w3 = headway_tensor_dense(value, HEADWAY_F32, 3, value_shape + 1);
        const headway_tensor x =
            headway_tensor_dense(t.x + t.at[b] * v->width, HEADWAY_F32, 3, x_shape);
        const headway_tensor places =
            headway_tensor_dense(t.positions + t.at[b], HEADWAY_I32, 2, place_shape);
        expect_ok(engine, headway_kv_cache_read(m->cache, step->slots[b], 0, &k3, &w3), "read");
        headway_attention_params alone = v->params;
        alone.query_positions = v->l->rope.style != HEADWAY_ROPE_NONE ? &places : NULL;
        double *out = (double *)(void *)floats_of(2 * rows * v->outputs);
        double *bound = (double *)(void *)floats_of(2 * rows * v->outputs);
        const struct headway_reference_out results = {.out = out, .out_bound = bound};
        layer_reference(v->l, &alone, &x, &k, &w, &results);
        check_bound(t.out + t.at[b] * v->outputs, out, bound, rows * v->outputs, "stored values");
        free(out);
        free(bound);
        free(key);
        free(value);
    }
    batch_free(&t);
    headway_mha_destroy(mha);
}

/* Prefill but for a few tokens, then those. Returns how. */
static struct step fill_store(const headway_engine *engine, const struct served *v,
                              const struct store *m, enum arrival arrival, unsigned turn)
{
    headway_mha *mha = layer_create(engine, v->l, STORED_PLAIN);
    struct step step = {.packed = (int)(turn & 1)};
    uint64_t random = turn;
    for (int b = 0; b < v->count; b++)
        step.slots[b] = (b + turn) % v->count;
    for (int64_t left = 1; left > 0;) {
        left = 0;
        for (int b = 0; b < v->count; b++) {
            const int64_t until = v->length[b] - 1 - b % 3;
            step.count[b] = next_count(arrival, until - step.past[b], &random);
            left += until - step.past[b];
        }
        struct batch t;
        batch_make(v, &step, &t);
        const headway_attention_params params = params_of(v, m, &step, &t);
        expect_ok(engine, call(mha, &params, &t.query, NULL, &t.to), "filling");
        batch_free(&t);
        for (int b = 0; b < v->count; b++)
            step.past[b] += step.count[b];
    }
    for (int b = 0; b < v->count; b++)
        step.count[b] = 1 + b % 3;
    headway_mha_destroy(mha);
    return step;
}

static void check_storage(const struct subject *s)
{
    static const headway_dtype dtypes[][2] = {
        {HEADWAY_F32, HEADWAY_F32}, {HEADWAY_F16, HEADWAY_F16}, {HEADWAY_BF16, HEADWAY_BF16},
        {HEADWAY_I8, HEADWAY_I8},   {HEADWAY_F16, HEADWAY_I8},  {HEADWAY_I8, HEADWAY_F32},
        {HEADWAY_F32, HEADWAY_BF16}};
    static const int64_t lengths[] = {70, 5, 141, 33};
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int n = 0; n < COUNT(shapes); n += quick ? 3 : 1) {
            const unsigned turn = (unsigned)(d + n);
            const int what = n % 3 == 0 ? HALF : n % 3 == 1 ? INTERLEAVED | MORE : NORMS | SINKS;
            headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
            if (!check_case("%s: elements %d and %d, shape %d", s->isa, dtypes[d][0], dtypes[d][1],
                            n))
                continue;
            struct served v = served_make(what, &shapes[n], lengths, SEQUENCES);
            config.sequences = SEQUENCES;
            config.capacity = 150;
            config.key_dtype = dtypes[d][0];
            config.value_dtype = dtypes[d][1];
            config.page_size = pages[turn % COUNT(pages)];
            struct store m = store_make(s->engines[0], v.l, &config);
            struct store other = store_make(s->engines[0], v.l, &config);
            const struct step step = fill_store(s->engines[1], &v, &m, AT_ONCE, turn);
            fill_store(s->engines[0], &v, &other, MIXED, turn);
            for (int i = 0; i < TENSORS && !config.page_size; i++)
                CHECK(!m.tensor[i].rank || memcmp(m.tensor[i].data, other.tensor[i].data,
                                                  bytes_of(&m.tensor[i])) == 0,
                      "elements %d are others after chunks", i);
            expect_stored(s->engines[turn % 2], &v, &m, &step);
            store_free(&other);
            store_free(&m);
            served_free(&v);
        }
}

/* ---- keys of another input --------------------------------------------------------------------- */

/* Keys parts[i] .. parts[i + 1] - 1 of each sequence, one sequence after the other. */
static headway_tensor part_of(const struct layer *l, int64_t first, int64_t end, float *memory)
{
    const struct shape *s = &l->options->shape;
    const int64_t width = l->widths.in[KEY], count = end - first;
    const int64_t shape[3] = {1, s->batch * count, width};
    for (int64_t b = 0; b < s->batch && count; b++)
        memcpy(memory + b * count * width, token(l, KEY, b, first),
               (size_t)(count * width) * sizeof(float));
    return headway_tensor_dense(memory, HEADWAY_F32, 3, shape);
}

/* Keys come in parts, until all are there; then queries attend to what there is, once more. */
static void serve_keys(const headway_engine *engine, const struct layer *l, const struct store *m,
                       int packed, const float *expected)
{
    static const int64_t parts[] = {0, 1, 21, 60, 60, 60};
    const struct shape *s = &l->options->shape;
    headway_mha *mha = layer_create(engine, l, STORED_PLAIN);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_tensor query = tokens_tensor(l, QUERY);
    int64_t y[3] = {s->batch, s->queries, l->widths.out}, starts[2][SEQUENCES + 1];
    float *memory = floats_of(s->batch * s->keys * l->widths.in[KEY]);
    float *got = floats_of(y[0] * y[1] * y[2]);
    if (packed) {
        y[1] *= y[0];
        y[0] = query.shape[0] = 1;
        query.shape[1] = y[1];
        params.sequences = s->batch;
        params.query_starts = starts[0];
    }
    const headway_tensor out = headway_tensor_dense(got, HEADWAY_F32, 3, y);
    params.cache = m->cache;
    for (int part = 0; part + 1 < COUNT(parts); part++) {
        const int64_t count = parts[part + 1] - parts[part];
        headway_tensor key = part_of(l, parts[part], parts[part + 1], memory);
        for (int64_t b = 0; b <= s->batch; b++) {
            starts[0][b] = b * s->queries;
            starts[1][b] = b * count;
        }
        /* Of no keys at all it may be left unsaid where each sequence's begin. */
        params.key_starts = packed && (count || part % 2) ? starts[1] : NULL;
        if (!packed) {
            key.shape[0] = s->batch;
            key.shape[1] = count;
            key.stride[0] = count * key.stride[1];
        }
        expect_ok(engine, call(mha, &params, &query, &key, &out), "keys");
        if (parts[part + 1] == s->keys)
            check_bits(got, expected, y[0] * y[1] * y[2], "all keys are there");
    }
    free(memory);
    free(got);
    headway_mha_destroy(mha);
}

static void check_cross(const struct subject *s, const headway_engine *scalar)
{
    static const int whats[] = {0, HALF, MORE | ZERO | NORMS};
    const struct shape shape = {2, 6, 60, 4, 2, 8, 12};
    for (int n = 0; n < 2 * COUNT(whats); n++) {
        headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
        const int what = whats[n / 2];
        if (!check_case("%s: keys of another input in a cache, options %d, packed %d", s->isa, what,
                        n % 2))
            continue;
        struct layer *l = layer_make(&shape, NULL, (uint64_t)n), *base = layer_with(what, &shape);
        l->rope = base->rope;
        l->zero = base->zero;
        layer_free(base);
        if (what & NORMS)
            layer_norms(l);
        if (what & MORE)
            layer_more(l);
        layer_share(l, 0);
        struct answer expected = forward_once(scalar, l);
        config.sequences = shape.batch;
        config.capacity = shape.keys;
        config.page_size = n > 1 ? 16 : 0;
        struct store m = store_make(s->engines[0], l, &config);
        serve_keys(s->engines[n / 2 % 2], l, &m, n % 2, expected.out);
        answer_free(&expected);
        store_free(&m);
        layer_free(l);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------- */

struct refusal {
    const headway_engine *engine;
    const headway_mha *mha;
    const struct served *v;
    struct store *m;
};

/* The step with changed params, or a changed step, is refused with that word, and leaves no trace. */
static void expect_refused(const struct refusal *r, const struct step *step,
                           const headway_attention_params *changed, headway_status expected,
                           const char *word)
{
    char text[400];
    struct batch t;
    batch_make(r->v, step, &t);
    headway_attention_params params = params_of(r->v, r->m, step, &t);
    if (changed)
        params = *changed;
    store_remember(r->m);
    const headway_status status = call(r->mha, &params, &t.query, NULL, &t.to);
    headway_engine_error(r->engine, text, sizeof text);
    CHECK(status == expected && strstr(text, word), "%s: \"%s\", expected %s and the word %s",
          headway_status_text(status), text, headway_status_text(expected), word);
    for (int64_t i = 0; i < (step->packed ? t.all : t.rows * r->v->count) * r->v->outputs; i++)
        CHECK(isnan(t.out[i]), "out was written");
    store_expect_same(r->m, word);
    batch_free(&t);
}

static void expect_explained(const struct refusal *r, const struct step *step)
{
    char text[4000] = "";
    struct batch t;
    batch_make(r->v, step, &t);
    const headway_attention_params params = params_of(r->v, r->m, step, &t);
    store_remember(r->m);
    expect_ok(r->engine,
              headway_mha_explain(r->mha, &params, &t.query, NULL, NULL, text, sizeof text),
              "explained");
    CHECK(strstr(text, "go into the cache"), "\"%s\" says nothing of the cache", text);
    store_expect_same(r->m, "explaining");
    batch_free(&t);
}

static void refuse_all(const struct refusal *r)
{
    struct step step = {.count = {4, 3, 1, 2}, .slots = {2, 0, 1, 3}};
    struct batch t;
    serve_step(r->engine, r->mha, r->m, r->v, &step);
    for (int b = 0; b < SEQUENCES; b++)
        step.past[b] = step.count[b];
    expect_explained(r, &step);
    struct step bad = step;
    bad.count[1] = 30;
    expect_refused(r, &bad, NULL, HEADWAY_ERROR_ARGUMENT, "cache");
    bad.packed = 1;
    expect_refused(r, &bad, NULL, HEADWAY_ERROR_ARGUMENT, "cache");
    for (int b = 0; b < SEQUENCES; b++)
        bad.count[b] = 17;
    expect_refused(r, &bad, NULL, HEADWAY_ERROR_MEMORY, "pages");
    bad = step;
    bad.slots[3] = bad.slots[0];
    expect_refused(r, &bad, NULL, HEADWAY_ERROR_ARGUMENT, "cache_slots");
    bad.slots[3] = SEQUENCES;
    expect_refused(r, &bad, NULL, HEADWAY_ERROR_ARGUMENT, "cache_slots");
    bad.slots[3] = -1;
    expect_refused(r, &bad, NULL, HEADWAY_ERROR_ARGUMENT, "cache_slots");
    batch_make(r->v, &step, &t);
    headway_attention_params params = params_of(r->v, r->m, &step, &t);
    t.positions[t.at[2]] = 1024;
    params.query_positions = &t.places;
    expect_refused(r, &step, &params, HEADWAY_ERROR_ARGUMENT, "query_positions");
    params = params_of(r->v, r->m, &step, &t);
    params.key_lengths = step.count;
    expect_refused(r, &step, &params, HEADWAY_ERROR_ARGUMENT, "key_lengths");
    params = params_of(r->v, r->m, &step, &t);
    const struct shape other_shape = {1, 1, 1, 4, 1, 8, 8};
    struct layer *other_layer = layer_with(0, &other_shape);
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    config.sequences = SEQUENCES;
    config.capacity = 20;
    struct store other = store_make(r->engine, other_layer, &config);
    params.cache = other.cache;
    expect_refused(r, &step, &params, HEADWAY_ERROR_ARGUMENT, "cache");
    store_free(&other);
    layer_free(other_layer);
    batch_free(&t);
    serve_step(r->engine, r->mha, r->m, r->v, &step);
}

static void check_refusals(const struct subject *s, const headway_engine *scalar)
{
    static const int64_t lengths[] = {40, 40, 40, 40};
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    if (!check_case("%s: what a layer with a cache refuses", s->isa))
        return;
    struct served v = served_make(HALF, &shapes[0], lengths, SEQUENCES);
    serve_alone(scalar, &v);
    config.sequences = SEQUENCES;
    config.capacity = 24;
    config.page_size = 4;
    config.pages = 12;
    struct store m = store_make(s->engines[0], v.l, &config);
    headway_mha *mha = layer_create(s->engines[0], v.l, STORED_PLAIN);
    const struct refusal r = {s->engines[0], mha, &v, &m};
    refuse_all(&r);
    headway_mha_destroy(mha);
    store_free(&m);
    served_free(&v);
}

/* A row whose keys are gone, and a position that only the cache's length makes too large. */
static void check_late_refusals(const struct subject *s, const headway_engine *scalar)
{
    static const int64_t lengths[] = {60, 60, 60, 60};
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    if (!check_case("%s: what a layer with a full cache refuses", s->isa))
        return;
    struct served v = served_make(HALF, &shapes[0], lengths, SEQUENCES);
    v.l->rope.positions = 24;
    v.params.window_left = 10;
    for (int b = 0; b < SEQUENCES; b++)
        v.length[b] = 24;
    serve_alone(scalar, &v);
    config.sequences = SEQUENCES;
    config.capacity = 16;
    config.rolling = 1;
    struct store m = store_make(s->engines[0], v.l, &config);
    headway_mha *mha = layer_create(s->engines[0], v.l, STORED_PLAIN);
    const struct refusal r = {s->engines[0], mha, &v, &m};
    struct step step = {.count = {12, 12, 12, 12}, .slots = {3, 2, 1, 0}};
    serve_step(r.engine, mha, &m, &v, &step);
    for (int b = 0; b < SEQUENCES; b++) {
        step.past[b] = 12;
        step.count[b] = 10;
    }
    expect_refused(&r, &step, NULL, HEADWAY_ERROR_ARGUMENT, "cache");
    for (int b = 0; b < SEQUENCES; b++)
        step.count[b] = 6;
    serve_step(r.engine, mha, &m, &v, &step);
    for (int b = 0; b < SEQUENCES; b++)
        step.past[b] = 18;
    step.count[2] = 5;
    serve_step(r.engine, mha, &m, &v, &step);
    step.past[2] = 23;
    for (int b = 0; b < SEQUENCES; b++) {
        step.past[b] = b == 2 ? 23 : 24;
        step.count[b] = b == 2;
    }
    serve_step(r.engine, mha, &m, &v, &step);
    step.past[2] = 24;
    expect_refused(&r, &step, NULL, HEADWAY_ERROR_ARGUMENT, "position");
    headway_mha_destroy(mha);
    store_free(&m);
    for (int b = 0; b < SEQUENCES; b++)
        v.length[b] = 60;
    served_free(&v);
}

void check_layer_cache(const struct subject *s, const headway_engine *scalar)
{
    check_arrivals(s, scalar);
    check_shared(s, scalar);
    check_rolling(s, scalar);
    check_storage(s);
    check_cross(s, scalar);
    check_refusals(s, scalar);
    check_late_refusals(s, scalar);
}
