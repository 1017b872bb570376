/* A step's tensors: cut out of the problem's, and its results put back. */
#include "cli/cache.h"

#include <stdlib.h>
#include <string.h>

static void *take(struct step *step, int64_t count, size_t size)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    step->failed |= !memory;
    return step->memory[step->pieces++] = memory;
}

/* (sequences, rows, heads, items) of four bytes each; strides in elements. */
struct grid {
    char *data;
    int64_t batch, row, head, item, heads, items;
    const int64_t *starts; /* rows of sequence b begin at starts[b]; NULL: in batch b */
};

/* Of (B, L, heads, items), (B, L, items) or (L, items). */
static struct grid grid_of(const headway_tensor *t, const int64_t *starts)
{
    int rank = t->rank, row = rank == 4 ? 1 : rank - 2;
    struct grid grid = {t->data, 0, t->stride[row], 0, t->stride[rank - 1], 1, t->shape[rank - 1],
                        starts};
    if (rank > 2 && t->shape[0] > 1)
        grid.batch = t->stride[0];
    if (rank == 4) {
        grid.head = t->stride[2];
        grid.heads = t->shape[2];
    }
    return grid;
}

static char *grid_at(const struct grid *grid, int64_t b, int64_t row, int64_t head)
{
    row += grid->starts ? grid->starts[b] : 0;
    b = grid->starts ? 0 : b;
    return grid->data + (b * grid->batch + row * grid->row + head * grid->head) * 4;
}

/* Between rows ranges[b] of `whole` and rows 0 and on of `part`. */
static void copy(const struct grid *whole, const struct grid *part, const struct range *ranges,
                 int64_t sequences, int to_whole)
{
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t r = 0; r < ranges[b].count; r++)
            for (int64_t h = 0; h < whole->heads; h++) {
                char *a = grid_at(whole, b, ranges[b].first + r, h), *c = grid_at(part, b, r, h);
                for (int64_t n = 0; n < whole->items; n++) {
                    char *to = to_whole ? a + n * whole->item * 4 : c + n * part->item * 4;
                    memcpy(to, to_whole ? c + n * part->item * 4 : a + n * whole->item * 4, 4);
                }
            }
}

/* A dense tensor of the step's rows or keys, of the last axes of `like`: (B, L, ...), packed where
 * `starts` are given. */
static headway_tensor make(struct step *step, int64_t sequences, const struct range *ranges,
                           const int64_t *starts, const headway_tensor *like)
{
    int rows = ranges == step->rows, rank = like->rank > 3 ? like->rank : 3;
    int64_t total = rows ? step->total_rows : step->total_keys;
    int64_t shape[4] = {starts ? 1 : sequences, starts ? total
                                                : rows ? step->most_rows
                                                       : step->most_keys};
    for (int axis = 2; axis < rank; axis++)
        shape[axis] = like->shape[like->rank - rank + axis];
    int64_t count = shape[0] * shape[1] * shape[2] * (rank == 4 ? shape[3] : 1);
    return headway_tensor_dense(take(step, count, 4), like->dtype, rank, shape);
}

/* The step's part of an input. */
static headway_tensor part_of(struct step *step, int64_t sequences, const struct range *ranges,
                              const int64_t *starts, const headway_tensor *input,
                              const int64_t *input_starts)
{
    headway_tensor part = make(step, sequences, ranges, starts, input);
    struct grid whole = grid_of(input, input_starts), dense = grid_of(&part, starts);
    if (!step->failed)
        copy(&whole, &dense, ranges, sequences, 0);
    return part;
}

/* An axis of the mask, counted from its end; 1 where it has none. */
static int64_t mask_extent(const headway_tensor *mask, int from_end)
{
    return from_end <= mask->rank ? mask->shape[mask->rank - from_end] : 1;
}

static int64_t mask_stride(const headway_tensor *mask, int from_end)
{
    return mask_extent(mask, from_end) > 1 ? mask->stride[mask->rank - from_end] : 0;
}

/* The mask of the step's rows, of all keys that are there. */
static void fill_mask(const struct problem *p, struct step *step)
{
    const headway_tensor *mask = p->params.mask;
    int rows_differ = mask_extent(mask, 2) > 1;
    size_t size = mask->dtype == HEADWAY_BOOL ? 1 : mask->dtype == HEADWAY_F32 ? 4 : 2;
    int64_t shape[4] = {rows_differ || mask_extent(mask, 4) > 1 ? p->sequences : 1,
                        mask_extent(mask, 3), rows_differ ? step->most_rows : 1,
                        mask_extent(mask, 1) > 1 ? step->seen : 1};
    char *to = take(step, shape[0] * shape[1] * shape[2] * shape[3], size);
    step->mask = headway_tensor_dense(to, mask->dtype, 4, shape);
    step->params.mask = &step->mask;
    for (int64_t b = 0; !step->failed && b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t r = 0; r < shape[2]; r++) {
                int64_t row = rows_differ ? step->rows[b].first + r : 0;
                const char *from = (const char *)mask->data +
                                   (b * mask_stride(mask, 4) + h * mask_stride(mask, 3) +
                                    row * mask_stride(mask, 2)) *
                                       (int64_t)size;
                int64_t count = rows_differ && r >= step->rows[b].count ? 0 : shape[3];
                memcpy(to, from, (size_t)count * size);
                to += (size_t)shape[3] * size;
            }
}

/* Where packed rows or keys of each sequence begin in the step. */
static int64_t *starts_of(struct step *step, int64_t sequences, const struct range *ranges)
{
    int64_t *starts = take(step, sequences + 1, sizeof *starts);
    for (int64_t b = 0; !step->failed && b < sequences; b++)
        starts[b + 1] = starts[b] + ranges[b].count;
    return starts;
}

static int64_t *counts_of(struct step *step, int64_t sequences, const struct range *ranges)
{
    int64_t *counts = take(step, sequences, sizeof *counts);
    for (int64_t b = 0; !step->failed && b < sequences; b++)
        counts[b] = ranges[b].count;
    return counts;
}

static void fill_lengths(const struct problem *p, struct step *step)
{
    int64_t n = p->sequences;
    headway_attention_params *params = &step->params;
    step->key_lengths = counts_of(step, n, step->keys);
    step->offsets = take(step, n, sizeof *step->offsets);
    params->key_lengths = NULL;
    if (p->params.query_starts) {
        step->row_starts = starts_of(step, n, step->rows);
        params->query_starts = step->row_starts;
        params->key_starts = NULL;
    } else
        params->query_lengths = counts_of(step, n, step->rows);
    int placed = params->causal != HEADWAY_CAUSAL_NONE;
    for (int64_t b = 0; !step->failed && b < n; b++) {
        step->offsets[b] = problem_sequence(p, b).offset + step->rows[b].first;
        placed |= step->offsets[b] != 0;
    }
    params->row_offsets = placed ? step->offsets : NULL;
    if (params->causal != HEADWAY_CAUSAL_NONE)
        params->causal = HEADWAY_CAUSAL_OFFSETS;
}

/* Positions of the step's rows or keys: the problem's own, or their places. */
static headway_tensor positions_of(const struct problem *p, struct step *step,
                                   const struct range *ranges, const int64_t *starts)
{
    int rows = ranges == step->rows;
    const headway_tensor one = headway_tensor_dense(NULL, HEADWAY_I32, 3, (int64_t[]){1, 1, 1});
    headway_tensor positions;
    if (p->params.query_positions) {
        headway_tensor given = *p->params.query_positions;
        given.shape[given.rank] = 1;
        given.stride[given.rank++] = 1;
        positions = part_of(step, p->sequences, ranges, starts, &given, p->params.query_starts);
    } else
        positions = make(step, p->sequences, ranges, starts, &one);
    struct grid grid = grid_of(&positions, starts);
    for (int64_t b = 0; !p->params.query_positions && !step->failed && b < p->sequences; b++)
        for (int64_t r = 0; r < ranges[b].count; r++) {
            int64_t place = r + (rows ? step->offsets[b] : ranges[b].first);
            int32_t position = place > INT32_MAX ? INT32_MAX : place < -1 ? -1 : (int32_t)place;
            memcpy(grid_at(&grid, b, r, 0), &position, sizeof position);
        }
    positions.rank = 2;
    return positions;
}

/* The layer's keys and values, which are the rows themselves where both go together. */
static void fill_layer(const struct problem *p, struct step *step)
{
    int packed = p->params.query_starts != NULL, together = !p->key_given, placed = 0;
    for (int64_t b = 0; b < p->sequences; b++) {
        together &= step->rows[b].first == step->keys[b].first &&
                    step->rows[b].count == step->keys[b].count;
        placed |= problem_sequence(p, b).offset != 0;
    }
    const int64_t *whole = p->params.key_starts ? p->params.key_starts : p->params.query_starts;
    step->key_starts = packed ? starts_of(step, p->sequences, step->keys) : NULL;
    if (!together) {
        step->key = part_of(step, p->sequences, step->keys, step->key_starts, &p->key, whole);
        step->key_given = &step->key;
        step->params.key_starts = step->key_starts;
        step->params.key_lengths = packed ? NULL : step->key_lengths;
    }
    if (!together && p->value_given) {
        step->value = part_of(step, p->sequences, step->keys, step->key_starts, &p->value, whole);
        step->value_given = &step->value;
    }
    if (!p->layer.config.rope || !(p->params.query_positions || placed))
        return;
    step->query_positions = positions_of(p, step, step->rows, step->row_starts);
    step->params.query_positions = &step->query_positions;
    if (p->key_given)
        return;
    step->key_positions = positions_of(p, step, step->keys, step->key_starts);
    step->params.key_positions = &step->key_positions;
}

/* (B, L, H) of step memory as (B, H, L), and its like of more axes. */
static headway_tensor heads_second(headway_tensor t)
{
    heads_third(&t);
    return t;
}

static void fill_results(const struct problem *p, struct step *step)
{
    int64_t n = p->sequences, seen = step->seen + p->appended;
    const headway_tensor lse = {NULL, HEADWAY_F32, 3, {1, 1, p->heads}, {0}};
    const headway_tensor probs = {NULL, HEADWAY_F32, 4, {1, 1, p->heads, seen}, {0}};
    const headway_tensor mean = {NULL, HEADWAY_F32, 3, {1, 1, seen}, {0}};
    step->out = make(step, n, step->rows, step->row_starts, &p->out);
    if (p->params.lse) {
        step->lse = heads_second(make(step, n, step->rows, step->row_starts, &lse));
        step->params.lse = &step->lse;
    }
    if (p->probs.data)
        step->weights = heads_second(make(step, n, step->rows, step->row_starts, &probs));
    if (p->mean.data)
        step->mean = make(step, n, step->rows, step->row_starts, &mean);
}

int step_fill(const struct steps *steps, struct step *step)
{
    const struct problem *p = steps->problem;
    const int64_t *keys = p->params.key_starts ? p->params.key_starts : p->params.query_starts;
    step->params = p->params;
    step->params.cache = steps->cache;
    step->params.weights = NULL;
    fill_lengths(p, step);
    if (step->failed)
        return -1;
    step->query = part_of(step, p->sequences, step->rows, step->row_starts, &p->query,
                          p->params.query_starts);
    if (p->is_layer)
        fill_layer(p, step);
    else {
        step->key = part_of(step, p->sequences, step->keys, NULL, &p->key, keys);
        step->value = part_of(step, p->sequences, step->keys, NULL, &p->value, keys);
    }
    if (p->params.mask)
        fill_mask(p, step);
    if (p->params.interval) {
        step->interval = part_of(step, p->sequences, step->rows, step->row_starts,
                                 p->params.interval, p->params.query_starts);
        step->params.interval = &step->interval;
    }
    fill_results(p, step);
    return step->failed ? -1 : 0;
}

/* Weights' last axis: the keys seen, then the layer's own, which stand at the end of the whole. */
static void keep_weights(const struct problem *p, const struct step *step,
                         const headway_tensor *whole_tensor, const headway_tensor *part_tensor)
{
    headway_tensor tensors[2] = {*whole_tensor, *part_tensor};
    struct grid grids[2];
    for (int i = 0; i < 2; i++) {
        if (tensors[i].rank == 4)
            heads_third(&tensors[i]);
        grids[i] = grid_of(&tensors[i], NULL);
        grids[i].items = step->seen;
    }
    copy(&grids[0], &grids[1], step->rows, p->sequences, 1);
    for (int i = 0; i < 2; i++) {
        grids[i].data += (i ? step->seen : p->key_length) * 4;
        grids[i].items = p->appended;
    }
    copy(&grids[0], &grids[1], step->rows, p->sequences, 1);
}

void step_keep(const struct steps *steps, const struct step *step)
{
    const struct problem *p = steps->problem;
    struct grid whole = grid_of(&p->out, p->params.query_starts);
    struct grid part = grid_of(&step->out, step->row_starts);
    copy(&whole, &part, step->rows, p->sequences, 1);
    if (step->params.lse) {
        headway_tensor lse = *p->params.lse, own = step->lse;
        int64_t shape[3] = {p->batch, p->heads, p->query_length};
        lse = heads_second(headway_tensor_dense(lse.data, HEADWAY_F32, 3, shape));
        heads_third(&own);
        whole = grid_of(&lse, p->params.query_starts);
        part = grid_of(&own, step->row_starts);
        copy(&whole, &part, step->rows, p->sequences, 1);
    }
    if (step->params.weights == &step->weights)
        keep_weights(p, step, &p->probs_tensor, &step->weights);
    if (step->params.weights == &step->mean)
        keep_weights(p, step, &p->mean_tensor, &step->mean);
}

void step_free(struct step *step)
{
    for (int i = 0; i < step->pieces; i++)
        free(step->memory[i]);
    free(step->rows);
    free(step->keys);
}
