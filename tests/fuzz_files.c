/* libFuzzer on the file readers: whatever the bytes are, they return, and what they accept is used.
 * Configure with clang, -DHEADWAY_FUZZ=ON and -DHEADWAY_SANITIZE=address,undefined, then run
 * tests/fuzz_files -runs=1000000 -max_len=700 CORPUS, a folder with some good files. */
#define _GNU_SOURCE

#include "cli/safetensors.h"
#include "cli/weights.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void read_all(struct tensors *tensors)
{
    char error[ERROR_SIZE];
    for (int64_t i = 0; i < tensors_count(tensors); i++) {
        const struct tensor_info *info = tensors_find(tensors, tensors_name(tensors, i), error);
        free(info ? tensors_read(tensors, info, error) : NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char path[64];
    char error[ERROR_SIZE];
    struct array array;
    struct tensors *tensors = NULL;
    struct layer layer;
    int fd = memfd_create("headway-fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, count) != (ssize_t)count) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (npy_read(path, &array, error) == 0) {
        array_free(&array);
    }
    if (tensors_open(&tensors, path, error) == 0) {
        struct layer_request request = {.path = path, .layer = "0", .heads = 2};
        read_all(tensors);
        tensors_close(tensors);
        if (layer_load(&request, &layer, error) == 0) {
            layer_free(&layer);
        }
    }
    close(fd);
    return 0;
}
