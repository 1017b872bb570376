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
    int64_t batch, query_length, key_length, heads, kv_heads, head_size, value_head_size;
    enum array_type type; /* the query file's: the output file's too */

    headway_attention_params params;
    headway_tensor query, key, value, out;
    const headway_tensor *key_given, *value_given; /* NULL where the layer takes another's place */
    struct array result, lse;                      /* f32; lse.data NULL when not asked for */

    struct array inputs[3], mask_array;
    headway_tensor mask, lse_tensor;
    float scale;
    char note[ERROR_SIZE], warning[ERROR_SIZE]; /* for stderr once all went well; may be "" */
    int64_t *row_offsets, *query_lengths, *key_lengths;
};

/* Reads and checks all files. 0, or -1 with error; free it either way. */
int problem_load(const struct options *options, struct problem *problem, char *error);
void problem_free(struct problem *problem);

/* The same result in another memory: `out` with its data replaced. */
headway_tensor problem_out(const struct problem *problem, void *data);

/* Puts `result` to what it is before a run. */
void problem_clear(struct problem *problem);

/* Floating-point operations: projections of the rows within the lengths, and 2 * (D + Dv) for each
 * allowed (query, key) pair. */
double problem_flops(const struct problem *problem);

/* Writes the output files asked for; all or none. */
int problem_write(const struct problem *problem, char *error);

#endif
