#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE 700

#include "cli/array.h"
#include "cli/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* numpy leaves room for the first extent to grow to this many digits, and aligns the data to 64. */
#define GROWTH_DIGITS 21
#define DATA_ALIGNMENT 64

struct pending {
    char *final;   /* the path with links followed */
    char *written; /* the temporary, until it is renamed */
    char *saved;   /* a second name of what lay at `final` before */
    int renamed;
};

static size_t make_header(char *header, const struct array *array)
{
    static const char *const descr[] = {
        [ARRAY_F32] = "<f4", [ARRAY_F16] = "<f2",  [ARRAY_BF16] = "<V2",
        [ARRAY_F64] = "<f8", [ARRAY_BOOL] = "|b1", [ARRAY_I8] = "|i1",
        [ARRAY_U8] = "|u1",  [ARRAY_I32] = "<i4",  [ARRAY_I64] = "<i8",
    };
    char shape[SHAPE_TEXT_SIZE];
    char extent[24];
    size_t used = 10;
    size_t spare = 0;
    if (array->rank > 0) {
        spare = GROWTH_DIGITS -
                (size_t)snprintf(extent, sizeof extent, "%lld", (long long)array->shape[0]);
    }
    used += (size_t)sprintf(header + used, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                            descr[array->type], shape_text(shape, array->rank, array->shape));
    size_t end = used + spare + 1;
    end += DATA_ALIGNMENT - end % DATA_ALIGNMENT;
    memset(header + used, ' ', end - used);
    header[end - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((end - 10) & 255);
    header[9] = (char)((end - 10) >> 8);
    return end;
}

static int write_all(int fd, const char *from, size_t bytes)
{
    while (bytes > 0) {
        ssize_t done = write(fd, from, bytes > (1u << 30) ? 1u << 30 : bytes);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return -1;
        }
        from += done;
        bytes -= (size_t)done;
    }
    return 0;
}

/* The same file has the same text here, however it was spelled: the folder is resolved, and the
 * name too when it exists. */
static char *resolve(const char *path, char *error)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    char *resolved = realpath(path, NULL);
    if (resolved) {
        return resolved;
    }
    if (errno != ENOENT || *name == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        error_set(error, "%s: cannot be written: %s", path,
                  errno == ENOENT ? "it names a folder" : strerror(errno));
        return NULL;
    }
    char *folder = slash ? strndup(path, (size_t)(slash - path + 1)) : strdup(".");
    char *real = folder ? realpath(folder, NULL) : NULL;
    if (!real) {
        error_set(error, "%s: cannot be written: %s", path, strerror(errno));
    } else if ((resolved = malloc(strlen(real) + strlen(name) + 2)) != NULL) {
        sprintf(resolved, "%s%s%s", real, strcmp(real, "/") == 0 ? "" : "/", name);
    } else {
        error_set(error, "%s: out of memory", path);
    }
    free(real);
    free(folder);
    return resolved;
}

/* A name in final's folder that nobody uses: short, since final's own may be as long as names can
 * be. */
static char *neighbour(const char *final, int number)
{
    size_t folder = (size_t)(strrchr(final, '/') - final) + 1;
    char *path = malloc(folder + 64);
    if (path) {
        memcpy(path, final, folder);
        snprintf(path + folder, 64, ".headway-%ld-%d.tmp", (long)getpid(), number);
    }
    return path;
}

/* An open file under a new neighbour's name; counts *number on past names that are taken. */
static int create_neighbour(struct pending *p, int *number)
{
    for (int tries = 0; tries < 1000; tries++) {
        char *path = neighbour(p->final, (*number)++);
        int fd = path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
        if (fd >= 0) {
            p->written = path;
            return fd;
        }
        free(path);
        if (!path || errno != EEXIST) {
            return -1;
        }
    }
    return -1;
}

static int write_pending(struct pending *p, const struct npy_output *output, int *number,
                         char *error)
{
    char header[512];
    struct stat status;
    if (stat(p->final, &status) == 0 && !S_ISREG(status.st_mode)) {
        return error_set(error, "%s: is not a regular file, expected a .npy to write",
                         output->path);
    }
    int fd = create_neighbour(p, number);
    if (fd < 0) {
        return error_set(error, "%s: cannot be written: %s", output->path, strerror(errno));
    }
    size_t bytes = (size_t)array_count(output->array) * array_type_size(output->array->type);
    int failed = write_all(fd, header, make_header(header, output->array)) != 0 ||
                 write_all(fd, output->array->data, bytes) != 0;
    int reason = errno;
    if (close(fd) != 0 && !failed) {
        failed = 1;
        reason = errno;
    }
    return failed ? error_set(error, "%s: cannot be written: %s", output->path, strerror(reason))
                  : 0;
}

static int rename_pending(struct pending *p, const char *path, int *number, char *error)
{
    /* A second link lets a later failure put the old file back; where links can't be made, what was
     * there before is replaced for good. */
    char *saved = neighbour(p->final, (*number)++);
    if (saved && link(p->final, saved) == 0) {
        p->saved = saved;
    } else {
        free(saved);
    }
    if (rename(p->written, p->final) != 0) {
        return error_set(error, "%s: cannot be written: %s", path, strerror(errno));
    }
    p->renamed = 1;
    return 0;
}

static void finish_pending(struct pending *p, int failed)
{
    if (failed && p->renamed) {
        if (p->saved) {
            rename(p->saved, p->final);
        } else {
            unlink(p->final);
        }
    } else if (p->saved) {
        unlink(p->saved);
    }
    if (p->written && !p->renamed) {
        unlink(p->written);
    }
    free(p->final);
    free(p->written);
    free(p->saved);
}

int npy_write_all(const struct npy_output *outputs, int count, char *error)
{
    struct pending *pending = calloc(count > 0 ? (size_t)count : 1, sizeof *pending);
    int number = 0;
    int result = pending ? 0 : error_set(error, "out of memory");
    for (int i = 0; result == 0 && i < count; i++) {
        pending[i].final = resolve(outputs[i].path, error);
        result = pending[i].final ? 0 : -1;
        for (int other = 0; result == 0 && other < i; other++) {
            if (strcmp(pending[i].final, pending[other].final) == 0) {
                result = error_set(error, "%s: is named for two outputs, expected a path for each",
                                   outputs[i].path);
            }
        }
    }
    for (int i = 0; result == 0 && i < count; i++) {
        result = write_pending(&pending[i], &outputs[i], &number, error);
    }
    for (int i = 0; result == 0 && i < count; i++) {
        result = rename_pending(&pending[i], outputs[i].path, &number, error);
    }
    for (int i = 0; pending && i < count; i++) {
        finish_pending(&pending[i], result != 0);
    }
    free(pending);
    return result;
}
