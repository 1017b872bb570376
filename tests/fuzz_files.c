/* libFuzzer on the file readers: whatever the bytes are, they return, and what they accept is used.
 * The bytes are a .npy file, a .safetensors file, and the config.json beside a good one. Preset
 * fuzz; then tests/fuzz_files -max_len=700 NEW_CORPUS tests/data/fuzz/files. */
#define _GNU_SOURCE

#include "cli/config.h"
#include "cli/safetensors.h"
#include "cli/weights.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A number that nobody else's file has, so that the links stay good. */
enum { FILE_NUMBER = 900 };

static char folder[] = "/tmp/headway-fuzz-XXXXXX";
static char links[2][64];
static headway_engine *engine;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void clean(void)
{
    headway_engine_destroy(engine);
    unlink(links[0]);
    unlink(links[1]);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char bytes[64];
    (void)argc;
    (void)argv;
    snprintf(bytes, sizeof bytes, "/proc/self/fd/%d", FILE_NUMBER);
    const char *const targets[] = {bytes,
                                   HEADWAY_TEST_DATA "/models/llama-gqa-rope/model.safetensors"};
    if (!mkdtemp(folder) || headway_engine_create(NULL, &engine) != HEADWAY_OK) {
        abort();
    }
    for (int i = 0; i < 2; i++) {
        snprintf(links[i], sizeof links[i], "%s/%s", folder, names[i]);
        if (symlink(targets[i], links[i]) != 0) {
            abort();
        }
    }
    atexit(clean);
    return 0;
}

static void read_all(struct tensors *tensors)
{
    char error[ERROR_SIZE];
    for (int64_t i = 0; i < tensors_count(tensors); i++) {
        const struct tensor_info *info = tensors_find(tensors, tensors_name(tensors, i), error);
        free(info ? tensors_read(tensors, info, error) : NULL);
    }
}

static void load(const char *path)
{
    char error[ERROR_SIZE];
    struct layer_request request = {.path = path, .layer = "0", .heads = 2};
    struct layer layer;
    headway_mha *made = NULL;
    if (path == folder) {
        request.heads = 0;
    }
    if (layer_load(&request, &layer, error) != 0) {
        return;
    }
    layer.rope.positions = 8;
    if (headway_mha_create(engine, &layer.config, &layer.weights, &made) == HEADWAY_OK) {
        headway_mha_destroy(made);
    }
    layer_free(&layer);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char path[64];
    char error[ERROR_SIZE];
    struct array array;
    struct tensors *tensors = NULL;
    struct model_facts facts;
    int fd = memfd_create("headway-fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, count) != (ssize_t)count || dup2(fd, FILE_NUMBER) < 0) {
        abort();
    }
    close(fd);
    snprintf(path, sizeof path, "/proc/self/fd/%d", FILE_NUMBER);
    if (npy_read(path, &array, error) == 0) {
        array_free(&array);
    }
    if (tensors_open(&tensors, path, error) == 0) {
        read_all(tensors);
        tensors_close(tensors);
        load(path);
    }
    if (config_read(folder, "model.layers.0.self_attn", &facts, error) == 0) {
        load(folder);
    }
    close(FILE_NUMBER);
    return 0;
}
