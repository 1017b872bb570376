/* Tensors by name from a .safetensors file, a folder with one, or shards with their index. Headers
 * are checked whole before anything is believed; data is read when it is asked for. */
#ifndef HEADWAY_SAFETENSORS_H
#define HEADWAY_SAFETENSORS_H

#include "cli/array.h"

/* The format's own limit on a header. */
#define SAFETENSORS_HEADER_LIMIT 100000000

struct tensor_info {
    const char *name;
    const char *type_name; /* "F32", "I64", ... as the format spells it */
    int is_float;          /* F32, F16, BF16 or F64: can be read; then type says which */
    enum array_type type;
    int rank; /* of a tensor that can be read: at most ARRAY_MAX_RANK */
    int64_t shape[ARRAY_MAX_RANK];
    int64_t begin, end; /* bytes in the data section */
    int shard;
};

struct tensors;

/* path: a file, a folder, or a model.safetensors.index.json. A folder gives model.safetensors, else
 * what model.safetensors.index.json names, else its only *.safetensors. 0, or -1 with error. */
int tensors_open(struct tensors **tensors, const char *path, char *error);
void tensors_close(struct tensors *tensors); /* NULL is allowed */

/* Names, sorted bytewise. */
int64_t tensors_count(const struct tensors *tensors);
const char *tensors_name(const struct tensors *tensors, int64_t index);
int tensors_has(const struct tensors *tensors, const char *name);
/* The folder that holds the files, without a slash at the end. */
const char *tensors_folder(const struct tensors *tensors);

/* Opens the shard when it is a first look. NULL with error, also when there is no such tensor. */
const struct tensor_info *tensors_find(struct tensors *tensors, const char *name, char *error);
/* All elements as f32 in new memory; NULL with error. */
float *tensors_read(struct tensors *tensors, const struct tensor_info *info, char *error);

#endif
