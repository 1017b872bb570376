/* From options and files to one computation: what run, attend and check share. */
#ifndef HEADWAY_PROBLEM_H
#define HEADWAY_PROBLEM_H

#include "cli/options.h"
#include "cli/weights.h"

/* A loaded problem. The tensors are views of the arrays it owns; results are dense arrays of the
 * file's shape, 0 (lse: -inf) until computed and beyond a query length for good. */
struct problem {
    const struct options *options;
    int is_layer;
    struct layer layer;
    /* Of packed sequences (params.query_starts) batch is 1 and the lengths are the packed ones. */
    int64_t batch, query_length, key_length, heads, kv_heads, head_size, value_head_size;
    int64_t appended;     /* keys that the layer adds */
    int64_t sequences;    /* entries of what is given for each batch: batch, or packed sequences */
    enum array_type type; /* the query file's: the output file's too */

    headway_attention_params params;
    headway_tensor query, key, value, out;
    const headway_tensor *key_given, *value_given; /* NULL where the layer takes another's place */
    struct array result;                           /* f32 */
    struct array lse, probs, mean;                 /* f32; data NULL when not asked for */

    struct array inputs[3], mask_array, interval_array, positions_array, tables[2];
    headway_tensor mask, interval, positions, cosines, sines, lse_tensor, probs_tensor, mean_tensor;
    float scale;
    float *slopes, *sinks;
    char note[ERROR_SIZE], warning[ERROR_SIZE]; /* for stderr once all went well; may be "" */
    int64_t *row_offsets, *query_lengths, *key_lengths, *query_starts, *key_starts;
};

/* Reads and checks all files. 0, or -1 with error; free it either way. */
int problem_load(const struct options *options, struct problem *problem, char *error);
void problem_unload(struct problem *problem);

/* The parts of problem_load() after the inputs: params, then results. 0, or -1 with error. */
int problem_set_params(struct problem *problem, char *error);
int problem_results(struct problem *problem, char *error);

/* (B, H, L, size) as (B, L, H, size). */
void heads_third(headway_tensor *tensor);

/* Two paths of one file, also by another name of its folder. */
int same_file(const char *a, const char *b);

/* The same result in another memory: `out` with its data replaced. */
headway_tensor problem_out(const struct problem *problem, void *data);

/* Puts `result` to what it is before a run. */
void problem_clear(struct problem *problem);

/* Sequence b of those the params speak of: its lengths, where its rows begin in the packed axes (0
 * where they aren't packed) and its row 0's place among the keys. */
struct sequence {
    int64_t queries, keys, query_start, key_start, offset;
};
struct sequence problem_sequence(const struct problem *problem, int64_t b);

/* Floating-point operations: projections of the rows within the lengths, and 2 * (D + Dv) for each
 * allowed (query, key) pair. */
double problem_flops(const struct problem *problem);

/* Writes the output files asked for; all or none. */
int problem_write(const struct problem *problem, char *error);

#endif
