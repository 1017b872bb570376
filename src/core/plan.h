/* How work is cut: pure functions of the problem and the machine. Results never depend on what is
 * decided here; the constants that they do depend on are in cpu/kernels.h. */
#ifndef HEADWAY_PLAN_H
#define HEADWAY_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels.h"
#include "system/parallel.h"

struct headway_problem;

/* a >= 0, b > 0. Small calls are most of what asks, and a division is not free there. */
static inline int64_t headway_divide_up(int64_t a, int64_t b)
{
    return a <= b ? a > 0 : a / b + (a % b != 0);
}

static inline int64_t headway_at_most(int64_t a, int64_t limit)
{
    return a < limit ? a : limit;
}

/* What the engine runs on. */
struct headway_machine {
    const struct headway_row *row;
    const struct headway_row *narrow; /* row->narrower, or NULL where it isn't built */
    struct headway_team team;
    int64_t level2; /* bytes of one core's level 2 cache */
};

/* How the lanes of one batch and unit are cut: `wide` tiles that share the row's vectors evenly, then
 * one of the narrow row where it holds what they leave. */
struct headway_cut {
    int64_t vectors, wide, tiles;
};
struct headway_cut headway_cut_lanes(const struct headway_machine *machine, int64_t lanes,
                                     int64_t widest);

/* How an attention problem is cut into query tiles. Where the weights' mean over heads is asked for,
 * a task is a tile of query rows and goes through all heads; else a tile of a KV head's group. */
struct headway_attend_plan {
    int64_t group;          /* heads whose rows share a tile */
    int64_t units;          /* of a batch: KV heads, or 1 */
    int64_t vectors;        /* query rows x group, in vectors of lanes, rounded up */
    int64_t widest;         /* vectors of a tile, at most */
    int64_t tiles;          /* query tiles of one (batch, unit), at most */
    struct headway_cut cut; /* of the longest sequence's lanes */
    int64_t tasks;          /* batch * units * tiles */
    /* The segments of keys below `stored` are computed before, in `pieces` tasks for each unit of
     * each batch, or of all batches where `shared`, and kept: where there are fewer tiles than threads
     * could use, keys that many sequences share, or tiles that go through the segments together. Where
     * these tasks are enough for the threads they go on to the tiles (`united`), so that only those of
     * one task are kept for each worker. */
    int64_t stored, pieces, early_tasks;
    int64_t kept; /* tiles whose segments are: of a united task, or all */
    int shared, together, united;
    int threads;     /* workers that can have work */
    int width;       /* lanes of the widest tile */
    int ahead;       /* tiles ask for memory that the next ones need */
    const char *why; /* what decided the width */
    int64_t panel, scores, allowed, bias, lines, sum, later, stats, clean; /* offsets, in floats */
    int64_t widened[2], few, few_scores, rows;
    size_t worker_floats; /* scratch of one worker, a multiple of 16 */
    size_t tile_floats;   /* of stored segments of one tile */
};

/* 0, or -1 when the scratch does not fit the address space. */
int headway_attend_plan(const struct headway_problem *problem,
                        const struct headway_machine *machine, struct headway_attend_plan *plan);
/* Bytes of scratch for all workers, and of stored segments behind it. */
int headway_attend_bytes(const struct headway_attend_plan *plan, size_t *bytes);
/* Writes the plan in words; returns the text's whole length like snprintf. */
int headway_attend_words(const struct headway_problem *problem,
                         const struct headway_machine *machine,
                         const struct headway_attend_plan *plan, char *text, size_t size);

/* How a projection is cut: blocks of tokens that stay in level 2 while panels pass by, each panel
 * in pieces of at most `depth` inputs for the same reason. */
struct headway_linear_plan {
    int64_t block_rows; /* tokens of a block */
    int64_t blocks;
    int64_t pieces; /* of a panel */
};
struct headway_linear_plan headway_linear_cut(const struct headway_machine *machine, int64_t tokens,
                                              int64_t inputs);

/* Threads worth waking for that many floating-point operations, at most `threads`. */
int headway_threads_for(double flops, int threads);

#endif
