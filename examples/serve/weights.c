#include "weights.h"
#include "safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { QUERY, KEY, VALUE, OUT, ROLES };

static const char *const families[][ROLES] = {
    {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj", ".self_attn.o_proj"},
    {".attention.self.query", ".attention.self.key", ".attention.self.value",
     ".attention.output.dense"},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* ---- config.json ----------------------------------------------------------------------------- */

struct settings {
    int64_t heads, kv_heads, head_size;
    double theta; /* 0: no RoPE */
};

static double number(const cJSON *config, const char *name, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, name);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

/* What would change the result and isn't read here must not be passed over. */
static const char *misses(const cJSON *config, const cJSON *rope)
{
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(rope, "rope_type"));
    const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(config, "sliding_window");
    if ((type && strcmp(type, "default") != 0) || (scaling && !cJSON_IsNull(scaling)))
        return "it scales its rotary embedding, which this server does not";
    if (window && !cJSON_IsNull(window))
        return "it has a sliding window, which this server has not";
    return NULL;
}

static int settings_read(const char *weights, struct settings *settings, char *error)
{
    char path[4096], detail[FILE_ERROR];
    const char *slash = strrchr(weights, '/');
    size_t size = 0;
    int folder = slash ? (int)(slash - weights) + 1 : 0;
    snprintf(path, sizeof path, "%.*sconfig.json", folder, weights);
    char *text = file_read(path, &size, detail);
    cJSON *config = text ? cJSON_ParseWithLength(text, size) : NULL;
    free(text);
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    const char *missing = misses(config, rope);
    double heads = number(config, "num_attention_heads", 0);
    double kv_heads = number(config, "num_key_value_heads", heads);
    double head_size = number(config, "head_dim", 0);
    settings->theta = number(rope, "rope_theta", number(config, "rope_theta", 0));
    cJSON_Delete(config);
    if (!missing && !(heads >= 1 && heads <= 4096 && kv_heads >= 1 && kv_heads <= heads &&
                      head_size >= 0 && head_size <= 65536))
        missing = "it is missing or says nothing of num_attention_heads";
    if (missing) {
        snprintf(error, MODEL_ERROR, "%.150s: %s", path, missing);
        return -1;
    }
    settings->heads = (int64_t)heads;
    settings->kv_heads = (int64_t)kv_heads;
    settings->head_size = (int64_t)head_size;
    return 0;
}

/* ---- the layer's tensors --------------------------------------------------------------------- */

struct tensors {
    headway_tensor weight[ROLES], bias[ROLES];
    int has_bias[ROLES];
};

/* The layer's name, and which family it is of: the first name in the file that ends like a query's
 * weight, of that layer if one is asked for. */
static int find_layer(const struct safetensors *file, const char *layer, char *name, size_t size)
{
    for (const cJSON *item = file->header->child; item; item = item->next)
        for (int f = 0; f < FAMILIES; f++) {
            char end[64];
            snprintf(end, sizeof end, "%s.weight", families[f][QUERY]);
            size_t length = strlen(item->string), tail = strlen(end);
            if (length < tail || length - tail >= size ||
                strcmp(item->string + length - tail, end) != 0)
                continue;
            snprintf(name, size, "%.*s", (int)(length - tail), item->string);
            if (!layer || strcmp(layer, name) == 0)
                return f;
        }
    return -1;
}

static int find_tensors(const struct safetensors *file, const char *layer, struct tensors *tensors,
                        char *error)
{
    char prefix[128], name[256];
    int family = find_layer(file, layer, prefix, sizeof prefix);
    if (family < 0) {
        snprintf(error, MODEL_ERROR, "no attention layer%s%.100s under the names of Llama or BERT",
                 layer ? " " : "", layer ? layer : "");
        return -1;
    }
    for (int role = 0; role < ROLES; role++) {
        snprintf(name, sizeof name, "%s%s.weight", prefix, families[family][role]);
        int found = safetensors_find(file, name, 2, &tensors->weight[role], error);
        if (found == 0)
            snprintf(error, MODEL_ERROR, "no tensor %s", name);
        if (found != 1)
            return -1;
        snprintf(name, sizeof name, "%s%s.bias", prefix, families[family][role]);
        tensors->has_bias[role] = safetensors_find(file, name, 1, &tensors->bias[role], error);
        if (tensors->has_bias[role] < 0)
            return -1;
    }
    return 0;
}

static const headway_tensor *bias(const struct tensors *tensors, int role)
{
    return tensors->has_bias[role] ? &tensors->bias[role] : NULL;
}

static headway_status create(const headway_engine *engine, const struct settings *settings,
                             const struct tensors *tensors, int64_t positions, headway_mha **layer)
{
    headway_rope_config rope = HEADWAY_ROPE_CONFIG_INIT;
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    rope.style = HEADWAY_ROPE_HALF;
    rope.theta = settings->theta;
    rope.positions = positions;
    config.heads = settings->heads;
    config.kv_heads = settings->kv_heads;
    config.head_size = settings->head_size;
    config.rope = settings->theta > 0 ? &rope : NULL;
    weights.query = &tensors->weight[QUERY];
    weights.key = &tensors->weight[KEY];
    weights.value = &tensors->weight[VALUE];
    weights.out = &tensors->weight[OUT];
    weights.query_bias = bias(tensors, QUERY);
    weights.key_bias = bias(tensors, KEY);
    weights.value_bias = bias(tensors, VALUE);
    weights.out_bias = bias(tensors, OUT);
    return headway_mha_create(engine, &config, &weights, layer);
}

/* ---- packed weights -------------------------------------------------------------------------- */

/* FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t mix(uint64_t key, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        key = (key ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return key;
}

/* Stands for all that packed weights are made of, so that no others are taken for them: which file
 * it is and when it was written, the layer in it, what config.json says. 0: there is no file. */
static uint64_t key_of(const char *weights, const char *layer, const struct settings *settings,
                       int64_t positions)
{
    struct stat file;
    if (stat(weights, &file) != 0)
        return 0;
    const int64_t numbers[] = {
        (int64_t)file.st_dev,         (int64_t)file.st_ino, (int64_t)file.st_size,
        (int64_t)file.st_mtim.tv_sec, file.st_mtim.tv_nsec, settings->heads,
        settings->kv_heads,           settings->head_size,  positions};
    uint64_t key = mix(0xcbf29ce484222325u, numbers, sizeof numbers);
    key = mix(key, &settings->theta, sizeof settings->theta);
    return mix(key, layer ? layer : "", layer ? strlen(layer) : 0);
}

/* 1: the layer lives in the file. 0: it is none that can be used, and has to be written. */
static int map_packed(const headway_engine *engine, const char *path, struct model *model)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    void *memory = MAP_FAILED;
    size_t size = 0;
    if (fstat(file, &status) == 0 && status.st_size > 0) {
        size = (size_t)status.st_size;
        memory = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    }
    close(file);
    if (memory == MAP_FAILED)
        return 0;
    if (headway_mha_map_packed(engine, memory, size, &model->layer) != HEADWAY_OK) {
        munmap(memory, size);
        return 0;
    }
    model->packed = memory;
    model->packed_size = size;
    return 1;
}

/* Under another name first: whoever maps the file finds all of it. A failure costs the next start
 * some time and nothing else. */
static void save_packed(const headway_mha *layer, const char *path)
{
    char partial[4096];
    size_t bytes = 0;
    void *memory = NULL;
    snprintf(partial, sizeof partial, "%.4000s.%ld", path, (long)getpid());
    if (headway_mha_packed_bytes(layer, &bytes) != HEADWAY_OK ||
        posix_memalign(&memory, 64, bytes) != 0)
        return;
    FILE *file =
        headway_mha_save_packed(layer, memory, bytes) == HEADWAY_OK ? fopen(partial, "wb") : NULL;
    int written = file && fwrite(memory, 1, bytes, file) == bytes;
    if (file && fclose(file) == 0 && written)
        rename(partial, path);
    else
        remove(partial);
    free(memory);
}

/* ---- together -------------------------------------------------------------------------------- */

/* The layer's sizes, which only it knows where it was mapped. States go in and come out as wide. */
static int take_sizes(const headway_engine *engine, struct model *model, char *error)
{
    headway_mha_sizes *sizes = &model->sizes;
    *sizes = (headway_mha_sizes)HEADWAY_MHA_SIZES_INIT;
    if (headway_mha_get_sizes(model->layer, sizes) != HEADWAY_OK) {
        headway_engine_error(engine, error, MODEL_ERROR);
        return -1;
    }
    if (sizes->key_width == sizes->query_width && sizes->value_width == sizes->query_width &&
        sizes->out_width == sizes->query_width)
        return 0;
    snprintf(error, MODEL_ERROR, "the layer's outputs are not as wide as its inputs");
    return -1;
}

static headway_status make_layer(const headway_engine *engine, const struct settings *settings,
                                 const struct tensors *tensors, int64_t positions, uint64_t key,
                                 const char *packed, struct model *model)
{
    char path[4096];
    if (!packed || !key)
        return create(engine, settings, tensors, positions, &model->layer);
    snprintf(path, sizeof path, "%.3900s-%s-%016" PRIx64, packed, headway_engine_isa(engine), key);
    if (map_packed(engine, path, model))
        return HEADWAY_OK;
    headway_status status = create(engine, settings, tensors, positions, &model->layer);
    if (status == HEADWAY_OK)
        save_packed(model->layer, path);
    return status;
}

int model_open(const headway_engine *engine, const char *path, const char *layer, int64_t positions,
               const char *packed, struct model *model, char error[MODEL_ERROR])
{
    struct safetensors file;
    struct settings settings;
    struct tensors tensors;
    memset(model, 0, sizeof *model);
    if (settings_read(path, &settings, error) || safetensors_open(path, &file, error))
        return -1;
    int failed = find_tensors(&file, layer, &tensors, error);
    const uint64_t key = key_of(path, layer, &settings, positions);
    if (!failed &&
        make_layer(engine, &settings, &tensors, positions, key, packed, model) != HEADWAY_OK) {
        headway_engine_error(engine, error, MODEL_ERROR);
        failed = -1;
    }
    if (!failed)
        failed = take_sizes(engine, model, error);
    safetensors_close(&file);
    return failed;
}

void model_close(struct model *model)
{
    headway_mha_destroy(model->layer);
    if (model->packed)
        munmap(model->packed, model->packed_size);
    memset(model, 0, sizeof *model);
}
