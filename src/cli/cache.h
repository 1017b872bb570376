/* A run through a KV cache: the cache that the options ask for, and the steps in which a problem's
 * rows and keys go through it. */
#ifndef HEADWAY_CLI_CACHE_H
#define HEADWAY_CLI_CACHE_H

#include "cli/problem.h"

/* What --cache and --cache-dtype say. 0, or -1 with error. */
int cache_parse(const struct options *options, headway_kv_cache_config *config, char *error);

/* The cache for a problem whose arguments were checked, empty. */
int cache_make(const struct problem *problem, const headway_engine *engine,
               headway_kv_cache **cache, char *error);

/* Whether what is stored differs from what is appended. */
int cache_rounds(const struct options *options);

/* Tokens or rows of one sequence. */
struct range {
    int64_t first, count;
};

/* One call: new tokens of each sequence, and the rows that then have seen all they may see. Rows are
 * the problem's own, as a batch of the step's lengths, or packed where the problem's are. */
struct step {
    struct range *rows, *keys; /* of each sequence */
    int64_t most_rows, most_keys, total_rows, total_keys;
    int64_t seen; /* keys of the longest sequence after it */
    headway_attention_params params;
    headway_tensor query, key, value, out;
    const headway_tensor *key_given, *value_given;
    headway_tensor mask, interval, query_positions, key_positions, lse, weights, mean;
    int64_t *row_starts, *key_starts, *key_lengths, *offsets; /* starts: of packed sequences */
    void *memory[16];
    int pieces, failed;
};

struct steps {
    const struct problem *problem;
    const headway_engine *engine;
    const headway_mha *layer; /* NULL: attend */
    headway_kv_cache *cache;
    struct step *list;
    int64_t count;
    void *workspace;
    size_t bytes;
};

/* Makes the cache and cuts the problem. 0, or -1 with error; close it either way. */
int steps_open(struct steps *steps, const struct problem *problem, const headway_engine *engine,
               const headway_mha *layer, char *error);
void steps_close(struct steps *steps);

/* Which rows and keys each step has: list and count, without their tensors. */
int steps_cut(struct steps *steps, char *error);

/* The tensors of one step. 0, or -1 when memory ran out. */
int step_fill(const struct steps *steps, struct step *step);
/* Its results to the problem's. */
void step_keep(const struct steps *steps, const struct step *step);
void step_free(struct step *step);

/* All steps on an emptied cache, into the problem's results. With `explain` the plans of the first
 * step that has rows and of the last go to stdout on the way. */
headway_status steps_run(struct steps *steps, int explain);

#endif
