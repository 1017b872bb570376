#define _POSIX_C_SOURCE 200809L

#include "cli/safetensors.h"

#include "cli/file.h"
#include "cli/json.h"
#include "cli/shards.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int bits;
    int is_float;
    enum array_type type;
} types[] = {
    {"F32", 32, 1, ARRAY_F32}, {"F16", 16, 1, ARRAY_F16}, {"BF16", 16, 1, ARRAY_BF16},
    {"F64", 64, 1, ARRAY_F64}, {"BOOL", 8, 0, 0},         {"U8", 8, 0, 0},
    {"I8", 8, 0, 0},           {"U16", 16, 0, 0},         {"I16", 16, 0, 0},
    {"U32", 32, 0, 0},         {"I32", 32, 0, 0},         {"U64", 64, 0, 0},
    {"I64", 64, 0, 0},         {"F8_E5M2", 8, 0, 0},      {"F8_E4M3", 8, 0, 0},
    {"F8_E8M0", 8, 0, 0},      {"F6_E2M3", 6, 0, 0},      {"F6_E3M2", 6, 0, 0},
    {"F4", 4, 0, 0},           {"C64", 64, 0, 0},
};

static int parse_type(struct tensor_info *info, const cJSON *item, int *bits, const char *path,
                      char *error)
{
    if (!cJSON_IsString(item)) {
        return error_set(error, "%s: tensor %s has no dtype", path, info->name);
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(item->valuestring, types[i].name) == 0) {
            info->type_name = types[i].name;
            info->is_float = types[i].is_float;
            info->type = types[i].type;
            *bits = types[i].bits;
            return 0;
        }
    }
    return error_set(error, "%s: tensor %s has the unknown dtype %s", path, info->name,
                     item->valuestring);
}

static int parse_shape(struct tensor_info *info, const cJSON *item, int bits, int64_t *bytes,
                       const char *path, char *error)
{
    int64_t total = bits;
    int empty = 0;
    if (!cJSON_IsArray(item)) {
        return error_set(error, "%s: tensor %s has no shape", path, info->name);
    }
    for (const cJSON *child = item->child; child; child = child->next) {
        int64_t extent = 0;
        if (json_integer(child, &extent) || extent < 0) {
            return error_set(error, "%s: tensor %s has a shape that is not of integers", path,
                             info->name);
        }
        if (info->rank < ARRAY_MAX_RANK) {
            info->shape[info->rank] = extent;
        }
        info->rank++;
        empty |= extent == 0;
        if (extent > 0 && __builtin_mul_overflow(total, extent, &total)) {
            return error_set(error, "%s: tensor %s has a shape that is too large", path,
                             info->name);
        }
    }
    if (info->rank > ARRAY_MAX_RANK) {
        info->is_float = 0;
    }
    if (empty) {
        total = 0;
    }
    if (total % 8 != 0) {
        return error_set(error, "%s: tensor %s does not fill whole bytes", path, info->name);
    }
    *bytes = total / 8;
    return 0;
}

static int parse_offsets(struct tensor_info *info, const cJSON *item, const char *path, char *error)
{
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
    if (!first || !first->next || first->next->next || json_integer(first, &info->begin) ||
        json_integer(first->next, &info->end) || info->begin < 0) {
        return error_set(error, "%s: tensor %s has no data_offsets of two integers", path,
                         info->name);
    }
    if (info->begin > info->end) {
        return error_set(error, "%s: tensor %s has the offsets %lld and %lld, the first is larger",
                         path, info->name, (long long)info->begin, (long long)info->end);
    }
    return 0;
}

static int parse_tensor(struct tensor_info *info, const cJSON *item, const char *path, char *error)
{
    int bits = 0;
    int64_t bytes = 0;
    if (!cJSON_IsObject(item)) {
        return error_set(error, "%s: tensor %s is not described by an object", path, info->name);
    }
    if (parse_type(info, json_get(item, "dtype"), &bits, path, error) ||
        parse_shape(info, json_get(item, "shape"), bits, &bytes, path, error) ||
        parse_offsets(info, json_get(item, "data_offsets"), path, error)) {
        return -1;
    }
    if (info->end - info->begin != bytes) {
        return error_set(
            error, "%s: tensor %s spans %lld bytes, expected %lld for its shape and %s", path,
            info->name, (long long)(info->end - info->begin), (long long)bytes, info->type_name);
    }
    return 0;
}

static int check_metadata(const cJSON *item, const char *path, char *error)
{
    if (!cJSON_IsObject(item)) {
        return error_set(error, "%s: __metadata__ is not an object", path);
    }
    for (const cJSON *child = item->child; child; child = child->next) {
        if (!cJSON_IsString(child)) {
            return error_set(error, "%s: __metadata__ has a value that is not a string", path);
        }
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct tensor_info *x = a;
    const struct tensor_info *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor_info *)a)->name, ((const struct tensor_info *)b)->name);
}

/* Tensors tile the data: no overlap, no hole, nothing behind. Leaves them sorted by name. */
static int check_cover(struct shard *shard, int64_t bytes, char *error)
{
    const char *path = shard->file.path;
    int64_t at = 0;
    if (shard->count > 0) {
        qsort(shard->infos, (size_t)shard->count, sizeof *shard->infos, by_offset);
    }
    for (int64_t i = 0; i < shard->count; i++) {
        const struct tensor_info *info = &shard->infos[i];
        if (info->end > bytes) {
            return error_set(error, "%s: tensor %s ends at byte %lld of the data, which has %lld",
                             path, info->name, (long long)info->end, (long long)bytes);
        }
        if (info->begin != at) {
            return error_set(error, "%s: tensor %s begins at byte %lld of the data, %s %lld", path,
                             info->name, (long long)info->begin,
                             info->begin < at ? "overlapping another that ends at"
                                              : "leaving a hole after",
                             (long long)at);
        }
        at = info->end;
    }
    if (at != bytes) {
        return error_set(error, "%s: %lld bytes follow the last tensor", path,
                         (long long)(bytes - at));
    }
    if (shard->count > 0) {
        qsort(shard->infos, (size_t)shard->count, sizeof *shard->infos, by_name);
    }
    return 0;
}

static int fill_shard(struct shard *shard, int64_t data_bytes, char *error)
{
    const char *path = shard->file.path;
    int64_t members = cJSON_GetArraySize(shard->header);
    shard->infos = calloc((size_t)members + 1, sizeof *shard->infos);
    if (!shard->infos) {
        return error_set(error, "%s: out of memory", path);
    }
    for (const cJSON *item = shard->header->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0) {
            if (check_metadata(item, path, error)) {
                return -1;
            }
            continue;
        }
        struct tensor_info *info = &shard->infos[shard->count++];
        info->name = item->string;
        if (parse_tensor(info, item, path, error)) {
            return -1;
        }
    }
    return check_cover(shard, data_bytes, error);
}

/* Length of the header, which is in the file whole and looks like one at its first byte. */
static int check_length(const struct file *file, int64_t *length, char *error)
{
    unsigned char start[9];
    uint64_t value = 0;
    if (file->size == 0) {
        return error_set(error, "%s: is empty, expected a .safetensors file", file->path);
    }
    if (file->size < 10) {
        return error_set(error, "%s: has %lld bytes, too few for a .safetensors file", file->path,
                         (long long)file->size);
    }
    if (file_read(file, 0, start, 9, error)) {
        return -1;
    }
    for (int i = 7; i >= 0; i--) {
        value = value << 8 | start[i];
    }
    if (value > SAFETENSORS_HEADER_LIMIT) {
        return error_set(
            error, "%s: the header's length is %llu, expected at most %d (is it a .safetensors?)",
            file->path, (unsigned long long)value, SAFETENSORS_HEADER_LIMIT);
    }
    if ((int64_t)value > file->size - 8 || value < 2) {
        return error_set(error, "%s: the header's length is %llu, the file has %lld bytes after it",
                         file->path, (unsigned long long)value, (long long)(file->size - 8));
    }
    if (start[8] != '{') {
        return error_set(error, "%s: the header does not begin with {", file->path);
    }
    *length = (int64_t)value;
    return 0;
}

int shard_open(struct shard *shard, const char *path, char *error)
{
    int64_t length = 0;
    char *text = NULL;
    if (file_open(&shard->file, path, error)) {
        return -1;
    }
    int result = check_length(&shard->file, &length, error);
    if (result == 0 && !(text = malloc((size_t)length))) {
        result = error_set(error, "%s: out of memory", path);
    }
    if (result == 0) {
        result = file_read(&shard->file, 8, text, length, error);
    }
    if (result == 0) {
        shard->header = json_parse(text, length, 1, path, error);
        result = shard->header ? 0 : -1;
    }
    free(text);
    if (result == 0) {
        shard->data = 8 + length;
        result = fill_shard(shard, shard->file.size - shard->data, error);
    }
    if (result != 0) {
        shard_close(shard);
    }
    return result;
}

void shard_close(struct shard *shard)
{
    cJSON_Delete(shard->header);
    free(shard->infos);
    file_close(&shard->file);
    shard->header = NULL;
    shard->infos = NULL;
    shard->count = 0;
}

const struct tensor_info *shard_find(const struct shard *shard, const char *name)
{
    struct tensor_info wanted = {.name = name};
    return shard->count == 0 ? NULL
                             : bsearch(&wanted, shard->infos, (size_t)shard->count,
                                       sizeof *shard->infos, by_name);
}

float *shard_read(const struct shard *shard, const struct tensor_info *info, char *error)
{
    const char *path = shard->file.path;
    int64_t stored = info->end - info->begin;
    if (!info->is_float) {
        error_set(error, "%s: tensor %s is %s, expected F32, F16, BF16 or F64 of rank at most %d",
                  path, info->name, info->type_name, ARRAY_MAX_RANK);
        return NULL;
    }
    int64_t count = stored / (int64_t)array_type_size(info->type);
    float *floats = malloc(count > 0 ? (size_t)count * sizeof *floats : 1);
    char *raw = info->type == ARRAY_F32 ? (char *)floats : malloc(stored > 0 ? (size_t)stored : 1);
    if (!floats || !raw) {
        error_set(error, "%s: out of memory for tensor %s", path, info->name);
    } else if (file_read(&shard->file, shard->data + info->begin, raw, stored, error) == 0) {
        if (info->type != ARRAY_F32) {
            array_convert_elements(ARRAY_F32, floats, info->type, raw, count);
            free(raw);
        }
        return floats;
    }
    if (raw != (char *)floats) {
        free(raw);
    }
    free(floats);
    return NULL;
}
