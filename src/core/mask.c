/* Which keys a query row may see: ranges from causality, window, lengths and intervals, and the
 * caller's mask, read in place one block of keys at a time. */
#include <math.h>

#include "core/tile.h"

int64_t headway_query_length(const struct headway_problem *problem, int64_t b)
{
    if (problem->query_lengths)
        return problem->query_lengths[b];
    if (problem->query_starts)
        return problem->query_starts[b + 1] - problem->query_starts[b];
    return problem->query_rows;
}

int64_t headway_slot(const struct headway_cached *cached, int64_t b)
{
    return cached->slots ? cached->slots[b] : b;
}

int64_t headway_more(const struct headway_cached *cached, int64_t b)
{
    if (cached->more_lengths)
        return cached->more_lengths[b];
    if (cached->more_starts)
        return cached->more_starts[b + 1] - cached->more_starts[b];
    return cached->more_rows;
}

int64_t headway_key_length(const struct headway_problem *problem, int64_t b)
{
    const struct headway_cached *cached = &problem->cached;
    if (problem->key_lengths)
        return problem->key_lengths[b];
    if (cached->store)
        return cached->store->lengths[headway_slot(cached, b)] + headway_more(cached, b);
    if (problem->key_starts)
        return problem->key_starts[b + 1] - problem->key_starts[b];
    return problem->keys;
}

int64_t headway_row_offset(const struct headway_problem *problem, int64_t b)
{
    if (problem->offsets)
        return problem->offsets[b];
    if (problem->bottom_right)
        return headway_key_length(problem, b) - headway_query_length(problem, b);
    return 0;
}

/* No row or key is as far as this from another: what lies further is as good as there. */
#define FAR (INT64_C(1) << 61)

/* a + b for any offset a and any b, kept within +-FAR. */
static int64_t place_of(int64_t a, int64_t b)
{
    if (a > 0 && b > INT64_MAX - a)
        return FAR;
    if (a < 0 && b < INT64_MIN - a)
        return -FAR;
    return a + b < -FAR ? -FAR : headway_at_most(a + b, FAR);
}

static int64_t clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x < most ? x : most;
}

static void limit_by_interval(const struct headway_problem *p, const struct headway_lanes *l,
                              int64_t row, int64_t *first, int64_t *last)
{
    const int32_t *at =
        p->interval.data + l->b * p->interval.batch + (l->query_start + row) * p->interval.row;
    const int64_t begin = at[0], end = at[p->interval.end];
    *first = begin > *first ? begin : *first;
    *last = headway_at_most(end, *last);
}

void headway_mask_prefix(const struct headway_problem *problem, const struct headway_lanes *l,
                         int lane, int64_t *first, int64_t *last)
{
    const int64_t row = (l->start + lane) / l->group;
    const int64_t keys = headway_key_length(problem, l->b);
    *first = 0;
    *last = headway_at_most(problem->window_first, keys);
    if (problem->causal)
        *last = headway_at_most(*last,
                                clamp(place_of(headway_row_offset(problem, l->b), row + 1), keys));
    if (problem->interval.data)
        limit_by_interval(problem, l, row, first, last);
    if (*first >= *last)
        *first = *last = 0;
}

/* Where lanes see keys beside their ranges. */
static void find_prefix(const struct headway_problem *p, struct headway_lanes *l)
{
    int64_t first, last;
    for (int lane = 0; lane < l->n; lane++) {
        headway_mask_prefix(p, l, lane, &first, &last);
        l->prefix = last > l->prefix ? last : l->prefix;
    }
    l->last_max = l->prefix > l->last_max ? l->prefix : l->last_max;
}

/* The extremes over all live lanes. Rows never fall, so without an interval neither do the ends of
 * the ranges that aren't empty, and those that are empty stand at either end. */
static void find_extremes(const struct headway_problem *p, struct headway_lanes *l)
{
    const int final = l->n - 1;
    int any = 0;
    l->first_min = l->first[0];
    l->last_max = l->last[final];
    l->first_max = l->first[final];
    l->last_min = l->last[0];
    if (!p->interval.data && l->last[0] > 0 && l->last[final] > 0)
        return;
    l->first_min = l->last_max = 0;
    for (int lane = 0; lane < l->n; lane++) {
        const int64_t first = l->first[lane], last = l->last[lane];
        l->first_max = first > l->first_max ? first : l->first_max;
        l->last_min = headway_at_most(last, l->last_min);
        if (last == 0)
            continue;
        l->first_min = any ? headway_at_most(first, l->first_min) : first;
        l->last_max = last > l->last_max ? last : l->last_max;
        any = 1;
    }
}

void headway_mask_ranges(const struct headway_problem *problem, struct headway_lanes *l)
{
    const int64_t keys = headway_key_length(problem, l->b);
    const int64_t offset = headway_row_offset(problem, l->b);
    const int64_t left = problem->window_left;
    const int64_t right = problem->causal ? 0 : problem->window_right;
    /* The first and last allowed key, less the row. */
    const int64_t low = left == INT64_MAX ? -FAR : place_of(offset, -left);
    const int64_t high = right == INT64_MAX ? FAR : place_of(offset, right);

    l->prefix = 0;
    if (low == -FAR && high == FAR && !problem->interval.data) {
        for (int lane = 0; lane < l->width; lane++) {
            l->first[lane] = 0;
            l->last[lane] = lane < l->n ? keys : 0;
        }
        l->first_min = l->first_max = 0;
        l->last_min = l->last_max = keys;
        return;
    }
    int64_t row = l->start / l->group;
    int64_t head = l->start % l->group;
    int64_t first = 0, last = 0;
    for (int lane = 0; lane < l->width; lane++) {
        if (lane < l->n && (lane == 0 || head == 0)) {
            first = clamp(row + low, keys);
            last = clamp(row + 1 + high, keys);
            if (problem->interval.data)
                limit_by_interval(problem, l, row, &first, &last);
            if (first >= last)
                first = last = 0;
        }
        l->first[lane] = first;
        l->last[lane] = last;
        if (++head == l->group) {
            head = 0;
            row++;
        }
    }
    find_extremes(problem, l);
    if (problem->window_first > 0 &&
        (left != INT64_MAX || (right != INT64_MAX && !problem->causal)))
        find_prefix(problem, l);
}

static size_t element_size(enum headway_mask_kind kind)
{
    return kind == HEADWAY_MASK_BOOL ? 1 : kind == HEADWAY_MASK_F32 ? 4 : 2;
}

int headway_mask_lines(const struct headway_problem *problem, const struct headway_lanes *l,
                       int64_t start, const unsigned char **lines)
{
    const struct headway_mask *m = &problem->mask;
    const ptrdiff_t size = (ptrdiff_t)element_size(m->kind);
    const int used = m->row == 0 && (m->head == 0 || l->group == 1) ? 1 : l->n;
    ptrdiff_t offset[HEADWAY_MAX_WIDTH];
    headway_lane_offsets(l, 0, m->batch, m->row, m->head, offset);
    for (int lane = 0; lane < used; lane++)
        lines[lane] = (const unsigned char *)m->data + (offset[lane] + start * m->key) * size;
    return used;
}

/* Bytes that may be asked for at once: more would stand in the way of the product to come. */
#define BURST 16384

/* A mask of a line for every row is read once, so each block would wait for it: the next one's, bytes
 * from .. until - 1 of each line, is asked for a block ahead; much of it by the product of this one's
 * scores, on the way. */
static void look_ahead(struct headway_mask_room *room, const unsigned char *const *at, int used,
                       ptrdiff_t from, ptrdiff_t until)
{
    const int much = used * (until - from) > BURST;
    room->ahead = (struct headway_ahead){.lines = room->next, .all = 1};
    room->ahead.floats = (until - from) / (ptrdiff_t)sizeof(float);
    for (int lane = 0; lane < used; lane++) {
        if (lane > 0 && at[lane] == at[lane - 1])
            continue;
        if (much)
            room->next[room->ahead.count++] = (float *)(void *)(at[lane] + from);
        for (ptrdiff_t byte = from; !much && byte < until; byte += LINE_FLOATS * sizeof(float))
            __builtin_prefetch(at[lane] + byte, 0, 2);
    }
}

static void cut(struct headway_block *block, int low, int high)
{
    block->start += low;
    block->count = high - low;
}

/* Bool lines: bits of lanes. */
static int allow(const struct headway_problem *p, const struct headway_row *row,
                 const struct headway_lanes *l, const struct headway_mask_room *room,
                 const unsigned char **at, int used, struct headway_block *block)
{
    const ptrdiff_t stride = p->mask.key;
    const uint64_t live = l->n == 64 ? UINT64_MAX : (UINT64_C(1) << l->n) - 1;
    uint64_t *allowed = room->allowed, all = live;
    int low = 0, high = block->count;

    if (used == 1 && l->n > 1) {
        for (int j = 0; j < block->count; j++)
            allowed[j] = at[0][j * stride] ? live : 0;
    } else {
        for (int lane = 0; stride != 1 && lane < used; lane++) {
            unsigned char *line = (unsigned char *)room->lines + lane * HEADWAY_KEY_BLOCK;
            for (int j = 0; j < block->count; j++)
                line[j] = at[lane][j * stride];
            at[lane] = line;
        }
        row->bits(allowed, at, used, block->count);
    }
    while (low < high && allowed[low] == 0)
        low++;
    while (high > low && allowed[high - 1] == 0)
        high--;
    for (int j = low; j < high; j++)
        all &= allowed[j];
    cut(block, low, high);
    if (all != live)
        block->allowed = allowed + low;
    return low < high;
}

static void read_halves(const struct headway_row *row, int bfloat, const uint16_t *at,
                        ptrdiff_t stride, int count, float *line)
{
    uint16_t halves[HEADWAY_KEY_BLOCK];
    for (int j = 0; stride != 1 && j < count; j++)
        halves[j] = at[j * stride];
    row->widen(line, stride == 1 ? at : halves, count,
               bfloat ? HEADWAY_STORED_BF16 : HEADWAY_STORED_F16, 1.0f);
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

/* Float lines: a bias. Lines that are floats one after the other are not copied. */
static int add(const struct headway_problem *p, const struct headway_row *row,
               const struct headway_lanes *l, const struct headway_mask_room *room,
               const unsigned char *const *at, int used, struct headway_block *block)
{
    const enum headway_mask_kind kind = p->mask.kind;
    const ptrdiff_t stride = p->mask.key;
    const float *line[HEADWAY_MAX_WIDTH];
    int low, high;

    for (int lane = 0; lane < used; lane++) {
        const float *wide = (const float *)(const void *)at[lane];
        float *copy = room->lines + (ptrdiff_t)lane * HEADWAY_KEY_BLOCK;
        line[lane] = kind == HEADWAY_MASK_F32 && stride == 1 ? wide : copy;
        if (kind != HEADWAY_MASK_F32)
            read_halves(row, kind == HEADWAY_MASK_BF16, (const uint16_t *)(const void *)at[lane],
                        stride, block->count, copy);
        else
            for (int j = 0; stride != 1 && j < block->count; j++)
                copy[j] = wide[j * stride];
    }
    seen_keys(line, used, block->count, &low, &high);
    if (low == high)
        return 0;
    for (int lane = 0; lane < used; lane++)
        line[lane] += low;
    cut(block, low, high);
    spread(row, l, used, line, block->count, room->bias);
    block->bias = room->bias;
    return 1;
}

int headway_mask_block(const struct headway_problem *problem, const struct headway_row *row,
                       const struct headway_lanes *l, struct headway_mask_room *room,
                       struct headway_block *block)
{
    const unsigned char *at[HEADWAY_MAX_WIDTH];
    const ptrdiff_t size = (ptrdiff_t)element_size(problem->mask.kind);
    const int used = headway_mask_lines(problem, l, block->start, at);
    const int64_t next = block->start / HEADWAY_KEY_BLOCK * HEADWAY_KEY_BLOCK + HEADWAY_KEY_BLOCK;
    const int64_t end = headway_at_most(next + HEADWAY_KEY_BLOCK, l->last_max);
    if (problem->mask.key == 1 && used > 1)
        look_ahead(room, at, used, (next - block->start) * size, (end - block->start) * size);
    if (problem->mask.kind == HEADWAY_MASK_BOOL)
        return allow(problem, row, l, room, at, used, block);
    return add(problem, row, l, room, at, used, block);
}
