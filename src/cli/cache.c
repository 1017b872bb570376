#include "cli/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "f32" and the like; `size` characters of text. */
static int parse_type(const char *text, size_t size, headway_dtype *type)
{
    static const struct {
        const char *name;
        headway_dtype type;
    } types[] = {
        {"f32", HEADWAY_F32}, {"bf16", HEADWAY_BF16}, {"f16", HEADWAY_F16}, {"int8", HEADWAY_I8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].name) == size && strncmp(types[i].name, text, size) == 0) {
            *type = types[i].type;
            return 0;
        }
    return -1;
}

static int parse_types(const char *text, headway_kv_cache_config *config)
{
    const char *comma = strchr(text, ',');
    if (!comma) {
        int failed = parse_type(text, strlen(text), &config->key_dtype);
        config->value_dtype = config->key_dtype;
        return failed;
    }
    return parse_type(text, (size_t)(comma - text), &config->key_dtype) ||
                   parse_type(comma + 1, strlen(comma + 1), &config->value_dtype)
               ? -1
               : 0;
}

int cache_parse(const struct options *o, headway_kv_cache_config *config, char *error)
{
    *config = (headway_kv_cache_config)HEADWAY_KV_CACHE_CONFIG_INIT;
    if (o->cache && strcmp(o->cache, "contiguous") != 0 &&
        (strncmp(o->cache, "paged:", 6) != 0 ||
         parse_integer(o->cache + 6, 1, 256, &config->page_size) ||
         (config->page_size & (config->page_size - 1)) != 0)) {
        snprintf(error, ERROR_SIZE,
                 "--cache: \"%.100s\" given, contiguous or paged:SIZE expected, SIZE a power of "
                 "two from 1 to 256",
                 o->cache);
        return -1;
    }
    if (o->cache_dtype && parse_types(o->cache_dtype, config)) {
        snprintf(error, ERROR_SIZE,
                 "--cache-dtype: \"%.100s\" given, f32, bf16, f16 or int8 expected, or two of "
                 "them, of keys and of values",
                 o->cache_dtype);
        return -1;
    }
    return 0;
}

int cache_rounds(const struct options *options)
{
    headway_kv_cache_config config;
    char error[ERROR_SIZE];
    return options_cached(options) && cache_parse(options, &config, error) == 0 &&
           (config.key_dtype != HEADWAY_F32 || config.value_dtype != HEADWAY_F32);
}

int cache_make(const struct problem *p, const headway_engine *engine, headway_kv_cache **cache,
               char *error)
{
    const struct options *o = p->options;
    headway_kv_cache_config config;
    if (cache_parse(o, &config, error))
        return -1;
    config.sequences = p->sequences > 0 ? p->sequences : 1;
    config.kv_heads = p->kv_heads;
    config.head_size = p->head_size;
    config.value_head_size = p->value_head_size;
    config.capacity = o->cache_capacity ? o->cache_capacity : 1;
    for (int64_t b = 0; b < p->sequences; b++) {
        int64_t keys = problem_sequence(p, b).keys;
        if (o->cache_capacity && keys > o->cache_capacity) {
            snprintf(error, ERROR_SIZE,
                     "--cache-capacity: %lld given, the %lld keys of sequence %lld or more "
                     "expected",
                     (long long)o->cache_capacity, (long long)keys, (long long)b);
            return -1;
        }
        if (keys > config.capacity)
            config.capacity = keys;
    }
    return headway_kv_cache_create(engine, &config, cache) == HEADWAY_OK ? 0 : 1;
}

/* How far each sequence is. */
struct progress {
    int64_t *rows, *keys;               /* done */
    int64_t *row_targets, *key_targets; /* of the phase */
};

/* Keys that the first `rows` rows may see by causality. */
static int64_t needed(const struct problem *p, const struct sequence *s, int64_t rows)
{
    int64_t end;
    if (rows == 0)
        return 0;
    if (p->params.causal == HEADWAY_CAUSAL_NONE || __builtin_add_overflow(s->offset, rows, &end))
        return s->keys;
    return end < 0 ? 0 : end < s->keys ? end : s->keys;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int add_step(struct steps *steps, struct progress *done)
{
    const struct problem *p = steps->problem;
    int64_t most = p->options->append ? p->options->append : INT64_MAX;
    struct step *list = realloc(steps->list, (size_t)(steps->count + 1) * sizeof *list);
    if (!list)
        return -1;
    steps->list = list;
    struct step *step = &list[steps->count++];
    memset(step, 0, sizeof *step);
    step->rows = calloc((size_t)p->sequences, sizeof *step->rows);
    step->keys = calloc((size_t)p->sequences, sizeof *step->keys);
    if (!step->rows || !step->keys)
        return -1;
    for (int64_t b = 0; b < p->sequences; b++) {
        struct sequence s = problem_sequence(p, b);
        int64_t keys = smaller(most, done->key_targets[b] - done->keys[b]), rows = 0;
        step->keys[b] = (struct range){done->keys[b], keys};
        done->keys[b] += keys;
        while (done->rows[b] + rows < done->row_targets[b] &&
               needed(p, &s, done->rows[b] + rows + 1) <= done->keys[b])
            rows++;
        step->rows[b] = (struct range){done->rows[b], rows};
        done->rows[b] += rows;
        step->most_rows = larger(step->most_rows, rows);
        step->most_keys = larger(step->most_keys, keys);
        step->total_rows += rows;
        step->total_keys += keys;
        step->seen = larger(step->seen, done->keys[b]);
    }
    return 0;
}

/* Steps until all targets are reached. */
static int add_phase(struct steps *steps, struct progress *done)
{
    for (int64_t b = 0; b < steps->problem->sequences; b++)
        while (done->keys[b] < done->key_targets[b] || done->rows[b] < done->row_targets[b])
            if (add_step(steps, done))
                return -1;
    return 0;
}

/* Phase 0 is what comes before --decode, 1 to `decoded` a row each, the last the keys that no row
 * sees. A row's own key comes with it where causality keeps it from the rows before. */
static void set_targets(const struct problem *p, int64_t phase, int64_t decoded,
                        struct progress *done)
{
    for (int64_t b = 0; b < p->sequences; b++) {
        struct sequence s = problem_sequence(p, b);
        int64_t before = larger(0, s.queries - decoded);
        int64_t rows = phase > decoded ? s.queries : smaller(s.queries, before + phase);
        int64_t keys = needed(p, &s, rows);
        if (phase == 0 && rows < s.queries && p->params.causal == HEADWAY_CAUSAL_NONE)
            keys = s.keys;
        else if (phase == 0 && rows < s.queries)
            keys = larger(keys, needed(p, &s, rows + 1) - 1);
        if (phase > decoded || decoded == 0)
            keys = s.keys;
        done->row_targets[b] = rows;
        done->key_targets[b] = larger(keys, done->keys[b]);
    }
}

int steps_cut(struct steps *steps, char *error)
{
    const struct problem *p = steps->problem;
    int64_t decoded = p->options->decode;
    size_t count = (size_t)(p->sequences ? p->sequences : 1);
    if (decoded > p->query_length) {
        snprintf(error, ERROR_SIZE, "--decode: %lld given, at most the %lld rows expected",
                 (long long)decoded, (long long)p->query_length);
        return -1;
    }
    int64_t *numbers = calloc(count, 4 * sizeof *numbers);
    struct progress done = {numbers, numbers + count, numbers + 2 * count, numbers + 3 * count};
    int failed = !numbers;
    for (int64_t phase = 0; !failed && phase <= decoded + 1; phase++) {
        set_targets(p, phase, decoded, &done);
        failed = add_phase(steps, &done);
    }
    free(numbers);
    if (failed)
        snprintf(error, ERROR_SIZE, "memory ran out, steps of %lld sequences wanted",
                 (long long)p->sequences);
    return failed ? -1 : 0;
}

/* The places of all rows must be numbers. */
static int check_places(const struct problem *p, char *error)
{
    for (int64_t b = 0; b < p->sequences; b++) {
        struct sequence s = problem_sequence(p, b);
        int64_t end;
        if (__builtin_add_overflow(s.offset, s.queries, &end)) {
            snprintf(error, ERROR_SIZE,
                     "--cache: the %lld rows of sequence %lld from place %lld given, places "
                     "within 64 bits expected",
                     (long long)s.queries, (long long)b, (long long)s.offset);
            return -1;
        }
    }
    return 0;
}

int steps_open(struct steps *s, const struct problem *p, const headway_engine *engine,
               const headway_mha *layer, char *error)
{
    memset(s, 0, sizeof *s);
    s->problem = p;
    s->engine = engine;
    s->layer = layer;
    if (check_places(p, error) || steps_cut(s, error))
        return -1;
    int failed = cache_make(p, engine, &s->cache, error);
    for (int64_t i = 0; !failed && i < s->count; i++)
        if (step_fill(s, &s->list[i])) {
            snprintf(error, ERROR_SIZE, "memory ran out, tensors of %lld steps wanted",
                     (long long)s->count);
            failed = -1;
        }
    return failed;
}

void steps_close(struct steps *s)
{
    for (int64_t i = 0; i < s->count; i++)
        step_free(&s->list[i]);
    free(s->list);
    headway_kv_cache_destroy(s->cache);
    free(s->workspace);
    memset(s, 0, sizeof *s);
}

/* Workspace for the step, grown where it must be. */
static headway_status reserve(struct steps *s, const struct step *step)
{
    size_t bytes;
    headway_status status = s->layer
                                ? headway_mha_workspace(s->layer, &step->params, &step->query,
                                                        step->key_given, step->value_given, &bytes)
                                : headway_attention_workspace(s->engine, &step->params,
                                                              &step->query, NULL, NULL, &bytes);
    if (status != HEADWAY_OK || (s->workspace && bytes <= s->bytes))
        return status;
    free(s->workspace);
    s->bytes = (bytes / HEADWAY_WORKSPACE_ALIGNMENT + 1) * HEADWAY_WORKSPACE_ALIGNMENT;
    s->workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, s->bytes);
    return s->workspace ? HEADWAY_OK : HEADWAY_ERROR_MEMORY;
}

static headway_status explain_step(const struct steps *s, const struct step *step)
{
    char text[8192];
    headway_status status =
        s->layer ? headway_mha_explain(s->layer, &step->params, &step->query, step->key_given,
                                       step->value_given, text, sizeof text)
                 : headway_attention_explain(s->engine, &step->params, &step->query, NULL, NULL,
                                             text, sizeof text);
    if (status != HEADWAY_OK)
        return status;
    size_t length = strlen(text);
    printf("step %lld of %lld: %lld rows, %lld new keys\n%s%s", (long long)(step - s->list) + 1,
           (long long)s->count, (long long)step->total_rows, (long long)step->total_keys, text,
           length && text[length - 1] == '\n' ? "" : "\n");
    return HEADWAY_OK;
}

static headway_status run_step(struct steps *s, const struct step *step, int explain)
{
    headway_status status = HEADWAY_OK;
    if (!s->layer && step->total_keys > 0)
        status =
            headway_kv_cache_append(s->cache, NULL, step->key_lengths, &step->key, &step->value);
    if (status != HEADWAY_OK || (!s->layer && step->total_rows == 0))
        return status;
    status = reserve(s, step);
    if (status == HEADWAY_OK && explain)
        status = explain_step(s, step);
    if (status == HEADWAY_OK)
        status = s->layer
                     ? headway_mha_forward(s->layer, &step->params, &step->query, step->key_given,
                                           step->value_given, &step->out, s->workspace, s->bytes)
                     : headway_attention(s->engine, &step->params, &step->query, NULL, NULL,
                                         &step->out, s->workspace, s->bytes);
    return status;
}

/* All steps; the calls give the weights, or their mean. */
static headway_status run_pass(struct steps *s, int mean, int explain)
{
    const struct problem *p = s->problem;
    headway_status status = HEADWAY_OK;
    int64_t first = 0, last = s->count - 1;
    while (first < last && s->list[first].total_rows == 0)
        first++;
    while (last > first && s->list[last].total_rows == 0)
        last--;
    for (int64_t b = 0; status == HEADWAY_OK && b < p->sequences; b++)
        status = headway_kv_cache_truncate(s->cache, b, 0);
    for (int64_t i = 0; status == HEADWAY_OK && i < s->count; i++) {
        struct step *step = &s->list[i];
        step->params.weights = mean ? &step->mean : p->probs.data ? &step->weights : NULL;
        status = run_step(s, step, explain && (i == first || i == last));
        if (status == HEADWAY_OK)
            step_keep(s, step);
    }
    return status;
}

headway_status steps_run(struct steps *s, int explain)
{
    const struct problem *p = s->problem;
    int means_only = p->mean.data && !p->probs.data;
    headway_status status = run_pass(s, means_only, explain);
    if (status == HEADWAY_OK && p->mean.data && !means_only)
        status = run_pass(s, 1, 0);
    return status;
}
