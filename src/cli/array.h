/* Arrays in memory, as files hold them: what the .npy and .safetensors readers give and the writer
 * takes. Errors come as one sentence in `error`, without a prefix or a final newline. */
#ifndef HEADWAY_ARRAY_H
#define HEADWAY_ARRAY_H

#include <stddef.h>
#include <stdint.h>

#define ARRAY_MAX_RANK 8
#define ERROR_SIZE 1024

enum array_type {
    ARRAY_F32,
    ARRAY_F16,
    ARRAY_BF16,
    ARRAY_F64,
    ARRAY_BOOL,
    ARRAY_I8,
    ARRAY_U8,
    ARRAY_I32,
    ARRAY_I64
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
int array_make(struct array *array, enum array_type type, int rank, const int64_t *shape,
               char *error);
/* A new array of another floating type; one rounding to nearest even. Integers and bool go to F32
 * only (a bool that is not zero becomes 1). */
int array_convert(struct array *to, const struct array *from, enum array_type type, char *error);
/* A new I32 array of integers that all fit. */
int array_indices(struct array *to, const struct array *from, char *error);
/* Integers of any width, as int64; *to is the caller's to free(). Floats and bool are refused. */
int array_integers(int64_t **to, const struct array *from, char *error);
/* elements * size of type without wrapping: 0, or -1 when the shape is negative or too large, zero
 * extents left aside. */
int array_bytes(enum array_type type, int rank, const int64_t *shape, int64_t *bytes);
/* Fills floating elements of one type from another. Neither needs alignment. */
void array_convert_elements(enum array_type to_type, void *to, enum array_type from_type,
                            const void *from, int64_t count);
/* "(2, 3)", as numpy prints a shape; text holds SHAPE_TEXT_SIZE bytes. Returns text. */
#define SHAPE_TEXT_SIZE 200
const char *shape_text(char *text, int rank, const int64_t *shape);

/* .npy versions 1-3, C or Fortran order (turned into C order), little endian. bfloat16 is '<V2' or
 * 'bfloat16'. 0, or -1 with a sentence naming the file. */
int npy_read(const char *path, struct array *array, char *error);

/* Writes all of them or none: each to a temporary name beside its path, then all are renamed. What
 * lay there before stays untouched on failure. Existing paths must be regular files (a link is
 * followed); one file named twice is an error. Bytes are those of numpy.save. */
struct npy_output {
    const char *path;
    const struct array *array;
};
int npy_write_all(const struct npy_output *outputs, int count, char *error);

#endif
