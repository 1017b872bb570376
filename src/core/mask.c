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

    int64_t row = l->start / problem->group;
    int64_t head = l->start % problem->group;
    int64_t last = keys;
    for (int lane = 0; lane < l->width; lane++) {
        if (problem->causal && lane < l->n && (lane == 0 || head == 0)) {
            const int64_t end = causal_end(row, offset);
            last = end < keys ? (end > 0 ? end : 0) : keys;
        }
        l->first[lane] = 0;
        l->last[lane] = last;
        if (++head == problem->group) {
            head = 0;
            row++;
        }
    }
    /* Rows never fall, so the ranges' ends don't either. */
    l->first_min = l->first_max = 0;
    l->last_min = l->last[0];
    l->last_max = l->last[l->n - 1];
}

void headway_lane_offsets(const struct headway_problem *problem, const struct headway_lanes *l,
                          ptrdiff_t batch, ptrdiff_t row, ptrdiff_t head, ptrdiff_t *offset)
{
    const int64_t group = problem->group;
    int64_t within = l->start % group;
    ptrdiff_t at = l->b * batch + l->start / group * row + (l->kv_head * group + within) * head;
    for (int lane = 0; lane < l->n; lane++) {
        offset[lane] = at;
        at += head;
        if (++within == group) {
            within = 0;
            at += row - group * head;
        }
    }
}

/* Lanes that read different mask lines; 1 when one line serves the whole tile. */
static int distinct_lines(const struct headway_problem *p, const struct headway_lanes *l)
{
    return p->mask.row == 0 && (p->mask.head == 0 || p->group == 1) ? 1 : l->n;
}

/* line[j] = 0 or -inf; returns how many are -inf. */
static inline int expand_bool(const unsigned char *m, ptrdiff_t stride, int count, float *line)
{
    int out = 0;
    for (int j = 0; j < count; j++) {
        const int excluded = m[j * stride] == 0;
        line[j] = excluded ? -INFINITY : 0.0f;
        out += excluded;
    }
    return out;
}

/* Points at[] to the mask's lines for keys start .. start + count - 1 as floats: in place where
 * they are that, else converted into `lines`. fewest and most: keys that a bool line excludes. */
static void read_lines(const struct headway_problem *p, const struct headway_lanes *l, int used,
                       int64_t start, int count, float *lines, const float **at, int *fewest,
                       int *most)
{
    const ptrdiff_t stride = p->mask.key;
    ptrdiff_t offsets[HEADWAY_MAX_WIDTH];
    headway_lane_offsets(p, l, p->mask.batch, p->mask.row, p->mask.head, offsets);
    *fewest = count;
    *most = 0;
    for (int lane = 0; lane < used; lane++) {
        const ptrdiff_t offset = offsets[lane] + start * stride;
        float *line = lines + (ptrdiff_t)lane * HEADWAY_KEY_BLOCK;
        at[lane] = line;
        if (p->mask.kind == HEADWAY_MASK_BOOL) {
            const unsigned char *m = (const unsigned char *)p->mask.data + offset;
            /* The constant lets the compiler see that bytes follow each other. */
            const int out =
                stride == 1 ? expand_bool(m, 1, count, line) : expand_bool(m, stride, count, line);
            *fewest = out < *fewest ? out : *fewest;
            *most = out > *most ? out : *most;
            continue;
        }
        const float *m = (const float *)p->mask.data + offset;
        if (stride == 1)
            at[lane] = m;
        else
            for (int j = 0; j < count; j++)
                line[j] = m[j * stride];
    }
}

/* The keys low .. high - 1 that some line does not exclude; low == high when there is none. */
static void seen_keys(const float *const *at, int used, int count, int *low, int *high)
{
    *low = count;
    *high = 0;
    for (int lane = 0; lane < used; lane++) {
        int j = 0;
        while (j < *low && at[lane][j] == -INFINITY)
            j++;
        *low = j;
    }
    for (int lane = 0; lane < used; lane++) {
        int j = count;
        while (j > *high && at[lane][j - 1] == -INFINITY)
            j--;
        *high = j;
    }
    if (*low == count)
        *high = count;
}

/* bias[j][lane] = at[lane][j], one line spread over all lanes when there is only one. */
static void spread(const struct headway_row *row, const struct headway_lanes *l, int used,
                   const float *const *at, int count, float *bias)
{
    if (used == l->n) {
        row->pack(bias, l->width, at, l->n, count, 1.0f);
        return;
    }
    for (int j = 0; j < count; j++)
        for (int lane = 0; lane < l->width; lane++)
            bias[(ptrdiff_t)j * l->width + lane] = at[0][j];
}

/* A float mask of a line for every row is read once, so each block waits for it: the next one's is
 * asked for a block ahead. */
static void prefetch_lines(const float *const *at, int used, int count)
{
    for (int lane = 0; lane < used; lane++)
        for (int j = 0; j < count; j += LINE_FLOATS)
            __builtin_prefetch(at[lane] + HEADWAY_KEY_BLOCK + j, 0, 2);
}

enum headway_block headway_mask_block(const struct headway_problem *problem,
                                      const struct headway_row *row, const struct headway_lanes *l,
                                      int64_t *start, int *count, float *lines, float *bias)
{
    const float *at[HEADWAY_MAX_WIDTH];
    int low, high, fewest, most;
    if (problem->mask.kind == HEADWAY_MASK_NONE)
        return HEADWAY_BLOCK_PLAIN;
    const int used = distinct_lines(problem, l);
    read_lines(problem, l, used, *start, *count, lines, at, &fewest, &most);
    seen_keys(at, used, *count, &low, &high);
    if (low == high)
        return HEADWAY_BLOCK_SKIP;
    if (problem->mask.kind == HEADWAY_MASK_F32 && problem->mask.key == 1 && used > 1)
        prefetch_lines(at, used, *count);
    const int left_out = *count - (high - low);
    *start += low;
    *count = high - low;
    if (problem->mask.kind == HEADWAY_MASK_BOOL && fewest == left_out && most == left_out)
        return HEADWAY_BLOCK_PLAIN;
    for (int lane = 0; lane < used; lane++)
        at[lane] += low;
    spread(row, l, used, at, *count, bias);
    return HEADWAY_BLOCK_BIAS;
}
