/* Regular files read by position, and error sentences. */
#ifndef HEADWAY_CLI_FILE_H
#define HEADWAY_CLI_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Names from files and the command line end up in messages: one line stays one line, and a terminal
 * sees no escapes. Control characters become '?'. */
void error_clean(char *error);
/* Writes a sentence of at most ERROR_SIZE - 1 bytes, control characters replaced; returns -1. */
int error_set(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct file {
    int fd;
    int64_t size;
    char *path; /* owned copy, for messages */
};

/* Only regular files; never waits for a pipe. 0, or -1 with error; then nothing needs closing. */
int file_open(struct file *file, const char *path, char *error);
/* Exactly bytes from offset, or an error. */
int file_read(const struct file *file, int64_t offset, void *to, int64_t bytes, char *error);
/* Allowed on a zeroed struct. */
void file_close(struct file *file);

/* The whole file in new memory, when it has at most `limit` bytes. */
int file_load(const char *path, int64_t limit, char **text, int64_t *bytes, char *error);

#endif
