#include "safetensors.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(char *error, const char *what, const char *detail)
{
    snprintf(error, FILE_ERROR, "%.200s: %s", what, detail);
    return -1;
}

char *file_read(const char *path, size_t *size, char error[FILE_ERROR])
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    long end = -1;
    if (file && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) >= 0 &&
        fseek(file, 0, SEEK_SET) == 0)
        text = malloc((size_t)end + 1);
    if (text && fread(text, 1, (size_t)end, file) != (size_t)end) {
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    if (!text) {
        fail(error, path, "can't be read");
        return NULL;
    }
    text[end] = 0;
    *size = (size_t)end;
    return text;
}

int safetensors_open(const char *path, struct safetensors *file, char error[FILE_ERROR])
{
    size_t size = 0;
    uint64_t header = 0;
    memset(file, 0, sizeof *file);
    char *bytes = file_read(path, &size, error);
    if (!bytes)
        return -1;
    for (size_t i = 0; i < 8 && i < size; i++)
        header |= (uint64_t)(unsigned char)bytes[i] << 8 * i;
    if (size >= 8 && header <= size - 8)
        file->header = cJSON_ParseWithLength(bytes + 8, (size_t)header);
    if (!cJSON_IsObject(file->header)) {
        free(bytes);
        safetensors_close(file);
        return fail(error, path, "not a safetensors file");
    }
    /* To the front, where it is aligned. */
    file->size = size - 8 - (size_t)header;
    memmove(bytes, bytes + 8 + header, file->size);
    file->data = bytes;
    return 0;
}

void safetensors_close(struct safetensors *file)
{
    cJSON_Delete(file->header);
    free(file->data);
    memset(file, 0, sizeof *file);
}

/* A count of at most `most` from a JSON number; -1: it is none. */
static int64_t count_of(const cJSON *item, size_t most)
{
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return value >= 0 && value <= (double)most && value == (double)(int64_t)value ? (int64_t)value
                                                                                  : -1;
}

int safetensors_find(const struct safetensors *file, const char *name, int rank,
                     headway_tensor *tensor, char error[FILE_ERROR])
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(file->header, name);
    if (!entry)
        return 0;
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t from = count_of(cJSON_GetArrayItem(offsets, 0), file->size);
    int64_t to = count_of(cJSON_GetArrayItem(offsets, 1), file->size);
    int64_t extents[HEADWAY_MAX_RANK] = {0}, bytes = (int64_t)sizeof(float);
    if (!type || strcmp(type, "F32") != 0)
        return fail(error, name, "its type is not F32");
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) != rank)
        return fail(error, name, "its rank is not what a layer's is");
    for (int i = 0; i < rank; i++) {
        extents[i] = count_of(cJSON_GetArrayItem(shape, i), file->size / (size_t)bytes);
        if (extents[i] < 1)
            return fail(error, name, "its shape says more than the file holds");
        bytes *= extents[i];
    }
    if (from < 0 || to < from || to - from != bytes || from % (int64_t)sizeof(float))
        return fail(error, name, "its data_offsets do not fit its shape or the file");
    *tensor = headway_tensor_dense(file->data + from, HEADWAY_F32, rank, extents);
    return 1;
}
