/* One .safetensors file; a struct tensors has one or several. */
#ifndef HEADWAY_SHARDS_H
#define HEADWAY_SHARDS_H

#include "cli/file.h"
#include "cli/json.h"
#include "cli/safetensors.h"

struct shard {
    struct file file;
    cJSON *header;             /* owns the tensors' names */
    struct tensor_info *infos; /* sorted by name */
    int64_t count;
    int64_t data; /* where the data section begins */
};

/* Into a zeroed struct. 0, or -1 with error and nothing to close. */
int shard_open(struct shard *shard, const char *path, char *error);
void shard_close(struct shard *shard); /* allowed on a zeroed struct */
const struct tensor_info *shard_find(const struct shard *shard, const char *name);
float *shard_read(const struct shard *shard, const struct tensor_info *info, char *error);

#endif
