#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_metamorphic.h"

/* ---- the same said otherwise ------------------------------------------------------------------
 */

void say_in_offsets(struct inputs *in)
{
    int64_t *offsets = inputs_room(in, inputs_batches(in), sizeof *offsets);
    for (int64_t b = 0; b < inputs_batches(in); b++)
        offsets[b] = inputs_place(in, b, 0);
    in->row_offsets = offsets;
    if (in->causal != HEADWAY_CAUSAL_NONE)
        in->causal = HEADWAY_CAUSAL_OFFSETS;
}

static float mask_value(const struct inputs *in, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (!in->mask_rank)
        return 1;
    return in->mask[inputs_mask_index(in, b, h, i, j)];
}

void expand_mask(struct inputs *in)
{
    const struct inputs old = *in;
    if (!in->mask_rank)
        return;
    inputs_mask_room(in, old.mask_dtype, 4, 15);
    for (int64_t b = 0; b < inputs_batches(in); b++)
        for (int64_t h = 0; h < in->heads; h++)
            for (int64_t i = 0; i < inputs_mask_queries(in); i++)
                for (int64_t j = 0; j < inputs_mask_keys(in); j++)
                    in->mask[inputs_mask_index(in, b, h, i, j)] = mask_value(&old, b, h, i, j);
}

void say_in_mask(struct inputs *in, int what)
{
    struct inputs said = *in;
    say_in_offsets(in);
    /* What `said` still sees without the others' help goes into the mask. */
    if (!(what & SAY_CAUSAL))
        said.causal = HEADWAY_CAUSAL_NONE;
    said.row_offsets = in->row_offsets;
    if (said.causal != HEADWAY_CAUSAL_NONE)
        said.causal = HEADWAY_CAUSAL_OFFSETS;
    if (!(what & SAY_WINDOW))
        said.window_left = said.window_right = -1;
    if (!(what & SAY_KEY_LENGTHS))
        said.key_lengths = NULL;
    if (!(what & SAY_INTERVAL))
        said.interval = NULL;
    const headway_dtype dtype = in->mask_rank ? in->mask_dtype : HEADWAY_BOOL;
    inputs_mask_room(in, dtype, 4, 15);
    for (int64_t b = 0; b < inputs_batches(in); b++)
        for (int64_t h = 0; h < in->heads; h++)
            for (int64_t i = 0; i < inputs_query_length(&said, b); i++)
                for (int64_t j = 0; j < inputs_mask_keys(in); j++)
                    in->mask[inputs_mask_index(in, b, h, i, j)] =
                        inputs_sees(&said, b, h, i, j) ? mask_value(&said, b, h, i, j)
                        : dtype == HEADWAY_BOOL        ? 0
                                                       : -INFINITY;
    if (what & SAY_CAUSAL)
        in->causal = HEADWAY_CAUSAL_NONE;
    if (what & SAY_WINDOW)
        in->window_left = in->window_right = -1;
    if (what & SAY_KEY_LENGTHS)
        in->key_lengths = NULL;
    if (what & SAY_INTERVAL)
        in->interval = NULL;
}

/* ---- parts of a problem ------------------------------------------------------------------------
 */

static int64_t *count_up(struct inputs *in, int64_t count)
{
    int64_t *at = inputs_room(in, count, sizeof *at);
    for (int64_t n = 0; n < count; n++)
        at[n] = n;
    return at;
}

struct selection select_all(struct inputs *in)
{
    const struct selection s = {in->batch,
                                in->queries,
                                in->keys,
                                in->heads,
                                in->kv_heads,
                                count_up(in, in->batch),
                                count_up(in, in->queries),
                                count_up(in, in->keys),
                                count_up(in, in->heads),
                                count_up(in, in->kv_heads)};
    return s;
}

struct selection select_sequence(struct inputs *in, int64_t b)
{
    struct selection s = select_all(in);
    s.batches = 1;
    s.batch[0] = b;
    s.rows = inputs_query_length(in, b);
    s.keys = inputs_key_length(in, b);
    return s;
}

static int64_t clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

static float *select_lines(struct inputs *to, const struct inputs *from, const struct selection *s,
                           int which)
{
    const int64_t rows = which ? s->keys : s->rows, heads = which ? s->kv_heads : s->heads;
    const int64_t size = which == 2 ? to->value_size : to->size;
    float *data = inputs_room(to, s->batches * rows * heads * size, sizeof *data), *at = data;
    for (int64_t b = 0; b < s->batches; b++)
        for (int64_t l = 0; l < rows; l++)
            for (int64_t h = 0; h < heads; h++, at += size) {
                const float *line =
                    which == 0   ? inputs_query(from, s->batch[b], s->row[l], s->head[h])
                    : which == 1 ? inputs_key(from, s->batch[b], s->key[l], s->kv_head[h])
                                 : inputs_value(from, s->batch[b], s->key[l], s->kv_head[h]);
                memcpy(at, line, (size_t)size * sizeof *at);
            }
    return data;
}

static void select_places(struct inputs *to, const struct inputs *old, const struct selection *s)
{
    const int64_t first = s->rows ? s->row[0] : 0;
    to->sequences = 0;
    to->query_starts = to->key_starts = NULL;
    to->row_offsets = inputs_room(to, s->batches, sizeof(int64_t));
    if (to->causal != HEADWAY_CAUSAL_NONE)
        to->causal = HEADWAY_CAUSAL_OFFSETS;
    if (old->query_lengths)
        to->query_lengths = inputs_room(to, s->batches, sizeof(int64_t));
    if (old->key_lengths)
        to->key_lengths = inputs_room(to, s->batches, sizeof(int64_t));
    for (int64_t b = 0; b < s->batches; b++) {
        to->row_offsets[b] = inputs_place(old, s->batch[b], first);
        if (old->query_lengths)
            to->query_lengths[b] = clamp(old->query_lengths[s->batch[b]] - first, s->rows);
        if (old->key_lengths)
            to->key_lengths[b] = clamp(old->key_lengths[s->batch[b]], s->keys);
    }
}

static void select_interval(struct inputs *to, const struct inputs *old, const struct selection *s)
{
    if (!old->interval)
        return;
    to->interval_rank = 3;
    to->interval_batch = s->batches;
    to->interval = inputs_room(to, s->batches * s->rows * 2, sizeof(int32_t));
    for (int64_t b = 0; b < s->batches; b++)
        for (int64_t i = 0; i < s->rows; i++) {
            const int64_t batch = old->query_starts || old->interval_batch == 1 ? 0 : s->batch[b];
            const int64_t row =
                old->query_starts ? old->query_starts[s->batch[b]] + s->row[i] : s->row[i];
            memcpy(to->interval + (b * s->rows + i) * 2,
                   old->interval + (batch * old->queries + row) * 2, 2 * sizeof(int32_t));
        }
}

static void select_mask(struct inputs *to, const struct inputs *old, const struct selection *s)
{
    if (!old->mask_rank)
        return;
    inputs_mask_room(to, old->mask_dtype, 4, 15);
    for (int64_t b = 0; b < s->batches; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->rows; i++)
                for (int64_t j = 0; j < s->keys; j++)
                    to->mask[inputs_mask_index(to, b, h, i, j)] =
                        mask_value(old, s->batch[b], s->head[h], s->row[i], s->key[j]);
}

struct inputs *select_inputs(struct inputs *old, const struct selection *s)
{
    struct inputs *to = malloc(sizeof *to);
    if (!to) {
        perror("test");
        exit(1);
    }
    *to = *old;
    to->owned_count = 0;
    to->shared = to->leading = 0;
    to->batch = s->batches;
    to->queries = s->rows;
    to->keys = s->keys;
    to->heads = s->heads;
    to->kv_heads = s->kv_heads;
    to->query = select_lines(to, old, s, 0);
    to->key = select_lines(to, old, s, 1);
    to->value = select_lines(to, old, s, 2);
    select_places(to, old, s);
    select_interval(to, old, s);
    select_mask(to, old, s);
    if (old->slopes)
        to->slopes = inputs_room(to, s->heads, sizeof(float));
    if (old->sinks)
        to->sinks = inputs_room(to, s->heads, sizeof(float));
    for (int64_t h = 0; h < s->heads; h++) {
        if (old->slopes)
            to->slopes[h] = old->slopes[s->head[h]];
        if (old->sinks)
            to->sinks[h] = old->sinks[s->head[h]];
    }
    return to;
}

static const float *lse_at(const struct inputs *in, const struct results *r, int64_t b, int64_t h,
                           int64_t i)
{
    const int64_t batch = in->query_starts ? 0 : b;
    const int64_t row = in->query_starts ? in->query_starts[b] + i : i;
    return r->lse + (batch * in->heads + h) * in->queries + row;
}

void compare_selected(const struct inputs *old, const struct results *old_results,
                      const struct inputs *new, const struct results *new_results,
                      const struct selection *s)
{
    for (int64_t b = 0; b < s->batches; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < inputs_query_length(new, b); i++) {
                const int64_t at[3] = {s->batch[b], s->head[h], s->row[i]};
                check_bits(results_out(new, new_results, b, i, h),
                           results_out(old, old_results, at[0], at[2], at[1]), new->value_size,
                           "out");
                if (new_results->lse)
                    check_bits(lse_at(new, new_results, b, h, i),
                               lse_at(old, old_results, at[0], at[1], at[2]), 1, "lse");
                if (new_results->weights && new->weights == 1)
                    check_bits(new_results->weights +
                                   ((b * new->heads + h) * new->queries + i) * new->keys,
                               old_results->weights +
                                   ((at[0] * old->heads + at[1]) * old->queries + at[2]) *
                                       old->keys,
                               new->keys, "weights");
            }
}
