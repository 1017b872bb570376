/* Which keys a query row may see: ranges from causality and lengths, and the caller's mask, read in
 * place one block of keys at a time. */
#include <math.h>

#include "core/attend.h"

int64_t headway_query_length(const struct headway_problem *problem, int64_t b)
{
    return problem->query_lengths ? problem->query_lengths[b] : problem->query_rows;
}

int64_t headway_key_length(const struct headway_problem *problem, int64_t b)
{
    return problem->key_lengths ? problem->key_lengths[b] : problem->keys;
}

/* Offsets may be any int64: row + offset + 1 saturates instead of overflowing. */
static int64_t causal_end(int64_t row, int64_t offset)
{
    if (offset > INT64_MAX - row - 1)
        return INT64_MAX;
    return row + 1 + offset;
}

void headway_mask_ranges(const struct headway_problem *problem, struct headway_lanes *l)
{
    const int64_t keys = headway_key_length(problem, l->b);
    int64_t offset = 0;
    if (problem->offsets)
        offset = problem->offsets[l->b];
    else if (problem->bottom_right)
        offset = keys - headway_query_length(problem, l->b);

    for (int lane = 0; lane < l->width; lane++) {
        int64_t last = keys;
        if (problem->causal && lane < l->n) {
            const int64_t end = causal_end(l->row[lane], offset);
            last = end < keys ? (end > 0 ? end : 0) : keys;
        }
        l->first[lane] = 0;
        l->last[lane] = last;
    }
    l->first_min = l->first_max = l->first[0];
    l->last_min = l->last_max = l->last[0];
    for (int lane = 1; lane < l->n; lane++) {
        if (l->first[lane] < l->first_min)
            l->first_min = l->first[lane];
        if (l->first[lane] > l->first_max)
            l->first_max = l->first[lane];
        if (l->last[lane] < l->last_min)
            l->last_min = l->last[lane];
        if (l->last[lane] > l->last_max)
            l->last_max = l->last[lane];
    }
}

static ptrdiff_t mask_start(const struct headway_problem *p, const struct headway_lanes *l,
                            int lane, int64_t key)
{
    const struct headway_mask *m = &p->mask;
    return l->b * m->batch + l->head[lane] * m->head + l->row[lane] * m->row + key * m->key;
}

/* Lanes that read different mask lines; 1 when one line serves the whole tile. */
static int distinct_lines(const struct headway_problem *p, const struct headway_lanes *l)
{
    return p->mask.row == 0 && (p->mask.head == 0 || p->group == 1) ? 1 : l->n;
}

/* bias[j][lane] = lines[lane][j], one line spread over all lanes when there is only one. */
static void spread(const struct headway_row *row, const struct headway_lanes *l, int lines_used,
                   const float *const *lines, int count, float *bias)
{
    if (lines_used == l->n) {
        row->pack(bias, l->width, lines, l->n, count, 1.0f);
        return;
    }
    for (int j = 0; j < count; j++)
        for (int lane = 0; lane < l->width; lane++)
            bias[(ptrdiff_t)j * l->width + lane] = lines[0][j];
}

static enum headway_block bool_block(const struct headway_problem *p, const struct headway_row *row,
                                     const struct headway_lanes *l, int64_t start, int count,
                                     float *lines, float *bias)
{
    const ptrdiff_t key_stride = p->mask.key;
    const int used = distinct_lines(p, l);
    const float *at[HEADWAY_MAX_WIDTH];
    int some = 0, all = 1;

    for (int lane = 0; lane < used; lane++) {
        const unsigned char *m =
            (const unsigned char *)p->mask.data + mask_start(p, l, lane, start);
        float *line = lines + (ptrdiff_t)lane * HEADWAY_KEY_BLOCK;
        int any = 0, every = 1;
        for (int j = 0; j < count; j++) {
            const int attend = m[j * key_stride] != 0;
            any |= attend;
            every &= attend;
            line[j] = attend ? 0.0f : -INFINITY;
        }
        some |= any;
        all &= every;
        at[lane] = line;
    }
    if (!some)
        return HEADWAY_BLOCK_SKIP;
    if (all)
        return HEADWAY_BLOCK_PLAIN;
    spread(row, l, used, at, count, bias);
    return HEADWAY_BLOCK_BIAS;
}

static int excludes_all(const float *line, int count)
{
    for (int j = 0; j < count; j++)
        if (!(line[j] == -INFINITY))
            return 0;
    return 1;
}

static enum headway_block float_block(const struct headway_problem *p,
                                      const struct headway_row *row, const struct headway_lanes *l,
                                      int64_t start, int count, float *lines, float *bias)
{
    const ptrdiff_t key_stride = p->mask.key;
    const int used = distinct_lines(p, l);
    const float *at[HEADWAY_MAX_WIDTH];
    int skip = 1;

    for (int lane = 0; lane < used; lane++) {
        const float *m = (const float *)p->mask.data + mask_start(p, l, lane, start);
        if (key_stride == 1) {
            at[lane] = m;
        } else {
            float *line = lines + (ptrdiff_t)lane * HEADWAY_KEY_BLOCK;
            for (int j = 0; j < count; j++)
                line[j] = m[j * key_stride];
            at[lane] = line;
        }
        skip = skip && excludes_all(at[lane], count);
    }
    if (skip)
        return HEADWAY_BLOCK_SKIP;
    spread(row, l, used, at, count, bias);
    return HEADWAY_BLOCK_BIAS;
}

enum headway_block headway_mask_block(const struct headway_problem *problem,
                                      const struct headway_row *row, const struct headway_lanes *l,
                                      int64_t start, int count, float *lines, float *bias)
{
    switch (problem->mask.kind) {
    case HEADWAY_MASK_BOOL:
        return bool_block(problem, row, l, start, count, lines, bias);
    case HEADWAY_MASK_F32:
        return float_block(problem, row, l, start, count, lines, bias);
    default:
        return HEADWAY_BLOCK_PLAIN;
    }
}
