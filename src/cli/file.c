#define _POSIX_C_SOURCE 200809L

#include "cli/file.h"

#include "cli/array.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void error_clean(char *error)
{
    for (unsigned char *c = (unsigned char *)error; *c != 0; c++) {
        if (*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
}

int error_set(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, ERROR_SIZE, format, arguments);
    va_end(arguments);
    error_clean(error);
    return -1;
}

int file_open(struct file *file, const char *path, char *error)
{
    memset(file, 0, sizeof *file);
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file->fd < 0) {
        return error_set(error, "%s: cannot be opened: %s", path, strerror(errno));
    }
    struct stat status;
    if (fstat(file->fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(file->fd);
        return error_set(error, "%s: is not a regular file", path);
    }
    file->size = status.st_size;
    file->path = strdup(path);
    if (!file->path) {
        close(file->fd);
        return error_set(error, "%s: out of memory", path);
    }
    return 0;
}

int file_read(const struct file *file, int64_t offset, void *to, int64_t bytes, char *error)
{
    if (offset < 0 || bytes < 0 || bytes > file->size || offset > file->size - bytes) {
        return error_set(error, "%s: ends at byte %lld, expected %lld more from byte %lld",
                         file->path, (long long)file->size, (long long)bytes, (long long)offset);
    }
    char *next = to;
    while (bytes > 0) {
        size_t piece = bytes > (1 << 30) ? (size_t)1 << 30 : (size_t)bytes;
        ssize_t got = pread(file->fd, next, piece, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return error_set(error, "%s: cannot be read at byte %lld: %s", file->path,
                             (long long)offset,
                             got < 0 ? strerror(errno) : "the file became shorter");
        }
        next += got;
        offset += got;
        bytes -= got;
    }
    return 0;
}

void file_close(struct file *file)
{
    if (file->path) {
        close(file->fd);
        free(file->path);
        memset(file, 0, sizeof *file);
    }
}

int file_load(const char *path, int64_t limit, char **text, int64_t *bytes, char *error)
{
    struct file file;
    if (file_open(&file, path, error) != 0) {
        return -1;
    }
    int result = -1;
    *text = NULL;
    if (file.size > limit) {
        error_set(error, "%s: has %lld bytes, expected at most %lld", path, (long long)file.size,
                  (long long)limit);
    } else if (!(*text = malloc((size_t)file.size + 1))) {
        error_set(error, "%s: out of memory", path);
    } else {
        result = file_read(&file, 0, *text, file.size, error);
        (*text)[file.size] = 0;
        *bytes = file.size;
    }
    if (result != 0) {
        free(*text);
        *text = NULL;
    }
    file_close(&file);
    return result;
}
