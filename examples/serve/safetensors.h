/* F32 tensors by name from a safetensors file: u64 length of a JSON header, the header, the
 * data. */
#ifndef SERVE_SAFETENSORS_H
#define SERVE_SAFETENSORS_H

#include <cjson/cJSON.h>
#include <headway/headway.h>
#include <stddef.h>

struct safetensors {
    cJSON *header;
    char *data;
    size_t size; /* of data */
};

enum { FILE_ERROR = 300 };

/* The whole file, a zero behind it, to be freed; NULL with a sentence in error. */
char *file_read(const char *path, size_t *size, char error[FILE_ERROR]);

/* 0, or -1 with a sentence in error. */
int safetensors_open(const char *path, struct safetensors *file, char error[FILE_ERROR]);
void safetensors_close(struct safetensors *file);

/* The tensor of that name, a view of file->data: 1; there is none: 0; it is not F32 of that rank
 * within the data: -1 with a sentence in error. */
int safetensors_find(const struct safetensors *file, const char *name, int rank,
                     headway_tensor *tensor, char error[FILE_ERROR]);

#endif
