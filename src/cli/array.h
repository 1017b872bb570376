/* Arrays in memory, as files hold them: what the .npy and .safetensors readers give and the writer
 * takes. Errors come as one sentence in `error`, without a prefix or a final newline. */
#ifndef HEADWAY_ARRAY_H
#define HEADWAY_ARRAY_H

#include <stddef.h>
#include <stdint.h>

#define ARRAY_MAX_RANK 8
#define ERROR_SIZE 512

enum array_type {
    ARRAY_F32, ARRAY_F16, ARRAY_BF16, ARRAY_F64, ARRAY_BOOL, ARRAY_I8, ARRAY_U8, ARRAY_I32, ARRAY_I64
};

/* C order, densely packed. Owns data. */
struct array {
    enum array_type type;
    int rank;
    int64_t shape[ARRAY_MAX_RANK];
    void *data;
};

const char *array_type_name(enum array_type type); /* "f32", "bf16", ... */
size_t array_type_size(enum array_type type);
int64_t array_count(const struct array *array); /* product of the shape; checked when it was made */
void array_free(struct array *array);

/* Allocates zeroed data of that shape. 0, or -1 with error filled. */
int array_make(struct array *array, enum array_type type, int rank, const int64_t *shape, char *error);
/* A new array of another floating type; one rounding to nearest even. Integers and bool to F32 too. */
int array_convert(struct array *to, const struct array *from, enum array_type type, char *error);
/* Integers of any width, as int64. */
int array_integers(int64_t **to, const struct array *from, char *error);

/* .npy versions 1-3. 0, or -1 with a sentence naming the file. */
int npy_read(const char *path, struct array *array, char *error);

/* Writes all of them or none: each to a temporary name beside its path, then all are renamed. */
struct npy_output {
    const char *path;
    const struct array *array;
};
int npy_write_all(const struct npy_output *outputs, int count, char *error);

#endif
