/* Runs a problem through the library. */
#ifndef HEADWAY_COMPUTE_H
#define HEADWAY_COMPUTE_H

#include "cli/cache.h"

struct computation {
    const struct problem *problem;
    headway_engine *engine;
    headway_mha *layer;
    struct steps steps; /* with a cache, else empty */
    void *workspace;
    size_t bytes;
    char line[ERROR_SIZE];
};

/* An engine as --isa and --threads ask. Its latest error goes to line, ERROR_SIZE characters that
 * must outlive it. 0, or -1 with line filled. */
int engine_open(const struct options *options, headway_engine **engine, char *line);

/* Engine, packed layer, workspace. 0, or -1 with error; close it either way. */
int compute_open(struct computation *computation, const struct problem *problem, char *error);
void compute_close(struct computation *computation);

/* One run into the problem's results. */
int compute_run(struct computation *computation, char *error);

/* Prints the plan to stdout; with a cache, which grows on the way, the plans. */
int compute_explain(struct computation *computation, char *error);

/* Warms up, runs `runs` times and prints the median time, GFLOP/s and the share of the FMA peak
 * that the same number of threads reach just before: a line, or a table where a terminal shows it.
 */
int compute_repeat(struct computation *computation, int64_t runs, char *error);

/* Median seconds of `runs` runs of body, after one that doesn't count; negative when body failed.
 */
double time_median(int64_t runs, int (*body)(void *context), void *context);

#endif
