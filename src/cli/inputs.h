/* The meaning of each kind of input file and of --causal. All: 0, or -1 with error. */
#ifndef HEADWAY_INPUTS_H
#define HEADWAY_INPUTS_H

#include "cli/array.h"
#include "headway/headway.h"

/* Query, key, value or a layer's input: floats, as F32; `type` is the file's own. */
int input_values(const char *flag, const char *path, struct array *array, enum array_type *type,
                 char *error);

/* Bool and one-byte integers as BOOL, floats as they are (f64 as F32). warning (ERROR_SIZE) is
 * filled for a float mask that looks like a bool one. mask is a view of array. */
int input_mask(const char *path, struct array *array, headway_tensor *mask, char *warning,
               char *error);

/* One integer for each batch. */
int input_integers(const char *flag, const char *path, int64_t batch, int64_t **values,
                   char *error);

/* Where packed sequences begin and end: 0, never falling, at last `total`. *sequences is how many
 * there are. */
int input_starts(const char *flag, const char *path, int64_t total, int64_t **starts,
                 int64_t *sequences, char *error);

/* Integers that fit int32_t, in the file's shape. tensor is a view of array. */
int input_indices(const char *flag, const char *path, struct array *array, headway_tensor *tensor,
                  char *error);

/* One float for each head. */
int input_heads(const char *flag, const char *path, int64_t heads, float **values, char *error);

/* A rank-2 file of floats as F32. */
int input_table(const char *flag, const char *path, struct array *array, headway_tensor *tensor,
                char *error);

/* One offset for all batches, or a file. */
int input_offsets(const char *flag, const char *text, int64_t batch, int64_t **offsets,
                  char *error);

/* A word, an offset or a file. offsets is set for HEADWAY_CAUSAL_OFFSETS only. */
int input_causal(const char *text, int64_t batch, headway_causal *causal, int64_t **offsets,
                 char *error);

/* "LEFT,RIGHT". */
int input_window(const char *text, int64_t *left, int64_t *right, char *error);

#endif
