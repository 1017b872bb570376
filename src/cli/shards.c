#define _POSIX_C_SOURCE 200809L

#include "cli/shards.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_NAME "model.safetensors.index.json"

struct entry {
    const char *name;
    int shard;
};

struct tensors {
    char *folder;
    cJSON *index;          /* NULL for a single file; owns the entries' names */
    struct entry *entries; /* sorted by name */
    int64_t count;
    const char **shard_names; /* in the folder, sorted; owned by index */
    struct shard *shards;     /* those not looked at yet have no file.path */
    int shard_count;
};

static char *join(const char *folder, const char *name)
{
    char *path = malloc(strlen(folder) + strlen(name) + 2);
    if (path) {
        strcpy(path, folder);
        strcat(path, "/");
        strcat(path, name);
    }
    return path;
}

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text);
    size_t tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static int by_entry(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int open_single(struct tensors *t, const char *path, char *error)
{
    t->shards = calloc(1, sizeof *t->shards);
    if (!t->shards) {
        return error_set(error, "%s: out of memory", path);
    }
    t->shard_count = 1;
    if (shard_open(&t->shards[0], path, error)) {
        return -1;
    }
    t->count = t->shards[0].count;
    t->entries = calloc((size_t)t->count + 1, sizeof *t->entries);
    if (!t->entries) {
        return error_set(error, "%s: out of memory", path);
    }
    for (int64_t i = 0; i < t->count; i++) {
        t->entries[i].name = t->shards[0].infos[i].name;
    }
    return 0;
}

/* A shard is a file in the index's own folder. */
static int safe_name(const char *name)
{
    return name[0] != 0 && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\') &&
           strlen(name) < 256 && ends_with(name, ".safetensors");
}

static int read_map(struct tensors *t, const cJSON *map, const char *path, char *error)
{
    size_t members = (size_t)cJSON_GetArraySize(map);
    t->entries = calloc(members + 1, sizeof *t->entries);
    t->shard_names = calloc(members + 1, sizeof *t->shard_names);
    t->shards = calloc(members + 1, sizeof *t->shards);
    if (!t->entries || !t->shard_names || !t->shards) {
        return error_set(error, "%s: out of memory", path);
    }
    size_t names = 0;
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!cJSON_IsString(item) || !safe_name(item->valuestring)) {
            return error_set(error,
                             "%s: weight_map places %s in \"%s\", expected the name of a "
                             ".safetensors file in the same folder",
                             path, item->string, cJSON_IsString(item) ? item->valuestring : "");
        }
        t->shard_names[names++] = item->valuestring;
        t->entries[t->count++].name = item->string;
    }
    qsort(t->shard_names, names, sizeof *t->shard_names, by_text);
    for (size_t i = 0; i < names; i++) {
        if (i == 0 || strcmp(t->shard_names[i], t->shard_names[t->shard_count - 1]) != 0) {
            t->shard_names[t->shard_count++] = t->shard_names[i];
        }
    }
    int64_t next = 0;
    for (const cJSON *item = map->child; item; item = item->next) {
        const char *key = item->valuestring;
        const char **at =
            bsearch(&key, t->shard_names, (size_t)t->shard_count, sizeof *t->shard_names, by_text);
        t->entries[next++].shard = (int)(at - t->shard_names);
    }
    qsort(t->entries, (size_t)t->count, sizeof *t->entries, by_entry);
    return 0;
}

static int open_index(struct tensors *t, const char *path, char *error)
{
    char *text = NULL;
    int64_t bytes = 0;
    if (file_load(path, SAFETENSORS_HEADER_LIMIT, &text, &bytes, error)) {
        return -1;
    }
    t->index = json_parse(text, bytes, 0, path, error);
    free(text);
    if (!t->index) {
        return -1;
    }
    const cJSON *map = json_get(t->index, "weight_map");
    if (!cJSON_IsObject(map) || !map->child) {
        return error_set(error, "%s: has no weight_map of tensor names", path);
    }
    return read_map(t, map, path, error);
}

/* The folder's only *.safetensors in new memory, or NULL with error. */
static char *only_file(const char *folder, char *error)
{
    DIR *directory = opendir(folder);
    char *found = NULL;
    int count = 0;
    if (!directory) {
        error_set(error, "%s: the folder cannot be read", folder);
        return NULL;
    }
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        if (entry->d_name[0] != '.' && ends_with(entry->d_name, ".safetensors") && count++ == 0) {
            found = join(folder, entry->d_name);
        }
    }
    closedir(directory);
    if (count == 1 && found) {
        return found;
    }
    free(found);
    error_set(error,
              "%s: the folder has %d .safetensors files, expected model.safetensors, " INDEX_NAME
              " or exactly one",
              folder, count);
    return NULL;
}

static int exists(const char *folder, const char *name)
{
    struct stat status;
    char *path = join(folder, name);
    int found = path && stat(path, &status) == 0;
    free(path);
    return found;
}

static int open_folder(struct tensors *t, char *error)
{
    int single = exists(t->folder, "model.safetensors");
    int index = !single && exists(t->folder, INDEX_NAME);
    char *path = single  ? join(t->folder, "model.safetensors")
                 : index ? join(t->folder, INDEX_NAME)
                         : only_file(t->folder, error);
    if (!path) {
        return single || index ? error_set(error, "%s: out of memory", t->folder) : -1;
    }
    int result = index ? open_index(t, path, error) : open_single(t, path, error);
    free(path);
    return result;
}

static char *folder_of(const char *path, int is_folder)
{
    if (is_folder) {
        size_t length = strlen(path);
        while (length > 1 && path[length - 1] == '/') {
            length--;
        }
        return strndup(path, length);
    }
    const char *slash = strrchr(path, '/');
    return !slash          ? strdup(".")
           : slash == path ? strdup("/")
                           : strndup(path, (size_t)(slash - path));
}

int tensors_open(struct tensors **tensors, const char *path, char *error)
{
    struct stat status;
    struct tensors *t = calloc(1, sizeof *t);
    int is_folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    if (!t || !(t->folder = folder_of(path, is_folder))) {
        free(t);
        return error_set(error, "%s: out of memory", path);
    }
    int result = is_folder                  ? open_folder(t, error)
                 : ends_with(path, ".json") ? open_index(t, path, error)
                                            : open_single(t, path, error);
    if (result != 0) {
        tensors_close(t);
        return -1;
    }
    *tensors = t;
    return 0;
}

void tensors_close(struct tensors *t)
{
    if (!t) {
        return;
    }
    for (int i = 0; i < t->shard_count; i++) {
        shard_close(&t->shards[i]);
    }
    free(t->shards);
    free(t->shard_names);
    free(t->entries);
    free(t->folder);
    cJSON_Delete(t->index);
    free(t);
}

int64_t tensors_count(const struct tensors *t)
{
    return t->count;
}

const char *tensors_name(const struct tensors *t, int64_t index)
{
    return t->entries[index].name;
}

const char *tensors_folder(const struct tensors *t)
{
    return t->folder;
}

static const struct entry *find_entry(const struct tensors *t, const char *name)
{
    struct entry wanted = {.name = name};
    return t->count == 0
               ? NULL
               : bsearch(&wanted, t->entries, (size_t)t->count, sizeof *t->entries, by_entry);
}

int tensors_has(const struct tensors *t, const char *name)
{
    return find_entry(t, name) != NULL;
}

const struct tensor_info *tensors_find(struct tensors *t, const char *name, char *error)
{
    const struct entry *entry = find_entry(t, name);
    if (!entry) {
        error_set(error, "the tensor %s is missing", name);
        return NULL;
    }
    struct shard *shard = &t->shards[entry->shard];
    if (!shard->file.path) {
        char *path = join(t->folder, t->shard_names[entry->shard]);
        int result = path ? shard_open(shard, path, error) : error_set(error, "out of memory");
        free(path);
        if (result != 0) {
            return NULL;
        }
        for (int64_t i = 0; i < shard->count; i++) {
            shard->infos[i].shard = entry->shard;
        }
    }
    const struct tensor_info *info = shard_find(shard, name);
    if (!info) {
        error_set(error, "%s: lacks the tensor %s, which the index places there", shard->file.path,
                  name);
    }
    return info;
}

float *tensors_read(struct tensors *t, const struct tensor_info *info, char *error)
{
    return shard_read(&t->shards[info->shard], info, error);
}
