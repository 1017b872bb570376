/* The weights as an output: a second pass over a tile's blocks of keys, now that the maximum and the
 * sum of each row are known. */
#include <math.h>
#include <string.h>

#include "core/tile.h"

static void clear(float *const *lines, int n, int64_t from, int64_t to)
{
    if (from < to)
        for (int lane = 0; lane < n; lane++)
            memset(lines[lane] + from, 0, (size_t)(to - from) * sizeof(float));
}

/* Of a row that holds a NaN all weights are NaN, but for the keys that it does not see. */
static void spoil(const struct headway_tile *t, const struct headway_block *block,
                  float *const *lines)
{
    for (int lane = 0; lane < t->lanes.n; lane++)
        if (isnan(t->whole.total[lane]))
            for (int j = 0; j < block->count; j++)
                lines[lane][j] = headway_block_sees(t, block, lane, j) ? NAN : 0.0f;
}

/* The weights of a block into lines[lane][at] and on. Scratch of the mask serves for those that are
 * to be added: the softmax is done with it. */
static void write_block(struct headway_tile *t, const struct headway_block *block,
                        float *const *lines, int64_t at)
{
    const int mean = t->p->mean_weights;
    float rescale[HEADWAY_MAX_WIDTH];
    float *to[HEADWAY_MAX_WIDTH];

    headway_tile_weigh(t, block, t->later.top, t->later.total, rescale);
    for (int lane = 0; lane < t->lanes.n; lane++)
        to[lane] = mean ? t->mask.lines + (ptrdiff_t)lane * HEADWAY_KEY_BLOCK : lines[lane] + at;
    t->row->unpack(to, t->lanes.n, t->scores, t->lanes.width, block->count, t->whole.total);
    spoil(t, block, to);
    for (int lane = 0; mean && lane < t->lanes.n; lane++)
        for (int j = 0; j < block->count; j++)
            lines[lane][at + j] += to[lane][j];
}

void headway_tile_weights(struct headway_tile *t, int seen)
{
    const struct headway_problem *p = t->p;
    const struct headway_lanes *l = &t->lanes;
    const int clears = !p->mean_weights;
    struct headway_block block;
    float *lines[HEADWAY_MAX_WIDTH];
    int64_t done = 0;

    headway_lane_lines(l, &p->weights, lines);
    if (seen) {
        memcpy(t->later.top, t->whole.top, (size_t)l->width * sizeof(float));
        memset(t->later.total, 0, (size_t)l->width * sizeof(float));
        int64_t begin = 0;
        while ((begin = headway_tile_skip(t, begin, HEADWAY_KEY_BLOCK)) < l->last_max) {
            const int64_t at = begin;
            begin += HEADWAY_KEY_BLOCK;
            if (!headway_tile_block(t, at, &block))
                continue;
            if (clears)
                clear(lines, l->n, done, block.start);
            write_block(t, &block, lines, block.start);
            done = block.start + block.count;
        }
    }
    if (clears)
        clear(lines, l->n, done, p->keys);
    if (p->appended) {
        block = headway_tile_appended(t);
        write_block(t, &block, lines, block.start);
    }
}

void headway_mean_begin(const struct headway_problem *problem, const struct headway_lanes *l)
{
    float *lines[HEADWAY_MAX_WIDTH];
    headway_lane_lines(l, &problem->weights, lines);
    clear(lines, l->n, 0, problem->keys + problem->appended);
}

void headway_mean_end(const struct headway_problem *problem, const struct headway_lanes *l)
{
    const float heads = (float)problem->heads;
    float *lines[HEADWAY_MAX_WIDTH];
    headway_lane_lines(l, &problem->weights, lines);
    for (int lane = 0; lane < l->n; lane++)
        for (int64_t j = 0; j < problem->keys + problem->appended; j++)
            lines[lane][j] /= heads;
}
