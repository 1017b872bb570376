/* From options to headway_attention_params, and the positions that rotary tables must reach. */
#include "cli/inputs.h"
#include "cli/problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int load_sequences(struct problem *p, char *error)
{
    const struct options *o = p->options;
    p->sequences = p->batch;
    if (!o->query_offsets)
        return 0;
    if (p->batch != 1) {
        snprintf(error, ERROR_SIZE,
                 "--query-offsets: given with a batch of %lld, (total, ...) without a batch "
                 "expected",
                 (long long)p->batch);
        return -1;
    }
    if (input_starts("query-offsets", o->query_offsets, p->query_length, &p->query_starts,
                     &p->sequences, error))
        return -1;
    p->params.sequences = p->sequences;
    p->params.query_starts = p->query_starts;
    if (o->key_offsets) {
        int64_t count;
        if (input_starts("key-offsets", o->key_offsets, p->key_length, &p->key_starts, &count,
                         error))
            return -1;
        if (count != p->sequences) {
            snprintf(error, ERROR_SIZE,
                     "--key-offsets: %lld sequences given, the %lld of --query-offsets expected",
                     (long long)count, (long long)p->sequences);
            return -1;
        }
        p->params.key_starts = p->key_starts;
    } else if (p->key_length != p->query_length) {
        snprintf(error, ERROR_SIZE,
                 "--key-offsets: missing with %lld packed keys for %lld queries, expected unless "
                 "both are the same",
                 (long long)p->key_length, (long long)p->query_length);
        return -1;
    }
    return 0;
}

/* Which pairs may meet. */
static int load_places(struct problem *p, char *error)
{
    const struct options *o = p->options;
    headway_attention_params *params = &p->params;
    params->window_left = p->is_layer ? p->layer.window_left : -1;
    if ((o->causal &&
         input_causal(o->causal, p->sequences, &params->causal, &p->row_offsets, error)) ||
        (o->offset && input_offsets("offset", o->offset, p->sequences, &p->row_offsets, error)) ||
        (o->query_lengths &&
         input_integers("query-lengths", o->query_lengths, p->batch, &p->query_lengths, error)) ||
        (o->key_lengths &&
         input_integers("key-lengths", o->key_lengths, p->batch, &p->key_lengths, error)) ||
        (o->window && input_window(o->window, &params->window_left, &params->window_right, error)))
        return -1;
    params->row_offsets = p->row_offsets;
    params->query_lengths = p->query_lengths;
    params->key_lengths = p->key_lengths;
    if (o->interval) {
        if (input_indices("interval", o->interval, &p->interval_array, &p->interval, error))
            return -1;
        params->interval = &p->interval;
    }
    return 0;
}

/* What is done to scores. */
static int load_scores(struct problem *p, char *error)
{
    const struct options *o = p->options;
    headway_attention_params *params = &p->params;
    if (o->scale.given || (p->is_layer && p->layer.has_scale)) {
        p->scale = o->scale.given ? (float)o->scale.value : p->layer.scale;
        params->scale = &p->scale;
    }
    params->softcap = o->softcap.given ? (float)o->softcap.value
                      : p->is_layer    ? p->layer.softcap
                                       : 0;
    params->alibi_slopes = p->is_layer ? p->layer.slopes : NULL;
    params->sinks = p->is_layer ? p->layer.sinks : NULL;
    if (o->alibi && strcmp(o->alibi, "default") == 0) {
        p->slopes = calloc((size_t)(p->heads > 0 ? p->heads : 1), sizeof *p->slopes);
        if (!p->slopes || headway_alibi_slopes(p->heads, p->slopes) != HEADWAY_OK) {
            snprintf(error, ERROR_SIZE, "--alibi: no slopes for %lld heads", (long long)p->heads);
            return -1;
        }
    } else if (o->alibi && input_heads("alibi", o->alibi, p->heads, &p->slopes, error))
        return -1;
    if (o->sink && input_heads("sink", o->sink, p->heads, &p->sinks, error))
        return -1;
    if (p->slopes)
        params->alibi_slopes = p->slopes;
    if (p->sinks)
        params->sinks = p->sinks;
    if (o->mask) {
        if (input_mask(o->mask, &p->mask_array, &p->mask, p->warning, error))
            return -1;
        params->mask = &p->mask;
    }
    return 0;
}

struct sequence problem_sequence(const struct problem *p, int64_t b)
{
    const headway_attention_params *params = &p->params;
    struct sequence s = {p->query_length, p->key_length, 0, 0, 0};
    if (params->query_starts) {
        const int64_t *keys = params->key_starts ? params->key_starts : params->query_starts;
        s = (struct sequence){params->query_starts[b + 1] - params->query_starts[b],
                              keys[b + 1] - keys[b], params->query_starts[b], keys[b], 0};
    }
    if (params->query_lengths)
        s.queries = params->query_lengths[b];
    if (params->key_lengths)
        s.keys = params->key_lengths[b];
    if (params->causal == HEADWAY_CAUSAL_BOTTOM_RIGHT)
        s.offset = s.keys - s.queries;
    else if (params->row_offsets)
        s.offset = params->row_offsets[b];
    return s;
}

/* The largest position given for a token that is there: of the queries or, in self-attention, of
 * the keys. */
static int64_t largest_given(const struct problem *p)
{
    const struct array *array = &p->positions_array;
    const int32_t *positions = array->data;
    int64_t row = array->rank ? array->shape[array->rank - 1] : 0, largest = 0;
    for (int64_t n = 0, count = array_count(array); n < count; n++) {
        int beyond = 0;
        if (p->query_lengths && array->rank == 2 && array->shape[0] == p->batch) {
            struct sequence s = problem_sequence(p, n / row);
            beyond = n % row >= s.queries && (p->key_given || n % row >= s.keys);
        }
        if (!beyond && positions[n] > largest)
            largest = positions[n];
    }
    return largest;
}

/* The largest position of the run. */
static int64_t largest_position(const struct problem *p)
{
    int given = p->params.query_positions != NULL;
    int64_t largest = given ? largest_given(p) : 0;
    for (int64_t b = 0; b < p->sequences; b++) {
        struct sequence s = problem_sequence(p, b);
        int64_t last;
        if (!given && s.queries > 0 && !__builtin_add_overflow(s.offset, s.queries - 1, &last) &&
            last > largest)
            largest = last;
        if ((p->key_given || !given) && s.keys - 1 > largest)
            largest = s.keys - 1;
    }
    return largest;
}

static int load_tables(struct problem *p, headway_rope_config *rope, char *error)
{
    char paths[2][4096];
    if (parse_pair(p->options->rope_table, paths[0], paths[1], sizeof paths[0])) {
        snprintf(error, ERROR_SIZE, "--rope-table: \"%.100s\" given, COS.npy,SIN.npy expected",
                 p->options->rope_table);
        return -1;
    }
    headway_tensor *const tensors[] = {&p->cosines, &p->sines};
    for (int i = 0; i < 2; i++) {
        if (input_table("rope-table", paths[i], &p->tables[i], tensors[i], error))
            return -1;
        if (tensors[i]->shape[1] != rope->rotary_size / 2) {
            snprintf(error, ERROR_SIZE,
                     "--rope-table: %.200s has %lld columns, %lld expected, half of the %lld "
                     "rotated channels",
                     paths[i], (long long)tensors[i]->shape[1], (long long)rope->rotary_size / 2,
                     (long long)rope->rotary_size);
            return -1;
        }
    }
    if (p->cosines.shape[0] != p->sines.shape[0]) {
        snprintf(error, ERROR_SIZE,
                 "--rope-table: %lld positions of cosines and %lld of sines given, as many "
                 "expected",
                 (long long)p->cosines.shape[0], (long long)p->sines.shape[0]);
        return -1;
    }
    rope->cos = &p->cosines;
    rope->sin = &p->sines;
    return 0;
}

static int load_rope(struct problem *p, char *error)
{
    const struct options *o = p->options;
    headway_rope_config *rope = &p->layer.rope;
    if (!p->is_layer || !p->layer.config.rope) {
        if (!o->positions)
            return 0;
        snprintf(error, ERROR_SIZE,
                 "--positions: given for a layer without rotary embedding, expected with --rope or "
                 "--rope-table");
        return -1;
    }
    if (o->positions) {
        if (input_indices("positions", o->positions, &p->positions_array, &p->positions, error))
            return -1;
        p->params.query_positions = &p->positions;
    }
    if (o->rope_table)
        return load_tables(p, rope, error);
    rope->positions = largest_position(p) + 1;
    return 0;
}

int problem_set_params(struct problem *p, char *error)
{
    p->params = (headway_attention_params)HEADWAY_ATTENTION_PARAMS_INIT;
    return load_sequences(p, error) || load_places(p, error) || load_scores(p, error) ||
                   load_rope(p, error)
               ? -1
               : 0;
}
