/* Runs the command under test: HEADWAY_COMMAND is its path, HEADWAY_EMULATOR an emulator with its
 * arguments, parted by blanks, where one is needed. */
#ifndef HEADWAY_TEST_COMMAND_H
#define HEADWAY_TEST_COMMAND_H

#include "cli/array.h"

struct arguments {
    const char *list[96];
    int count;
    char text[16384];
    size_t used;
};

/* The first arguments are the command's own words. 0 when HEADWAY_COMMAND is not set. */
int arguments_begin(struct arguments *arguments);
void arguments_add(struct arguments *arguments, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void arguments_split(struct arguments *arguments, const char *words); /* at blanks */

struct outcome {
    int status; /* of exit; 128 + signal when it was killed */
    char out[16384], err[4096];
};

/* Runs in `folder` (NULL: this one). Its stdout goes to the file `out` where that is not NULL. */
void command_run(struct arguments *arguments, const char *folder, const char *out,
                 struct outcome *outcome);

/* A new empty folder, and its end with all files in it. */
const char *folder_make(void);
void folder_remove(void);
const char *folder_path(const char *name); /* a file's path in it; lasts for eight calls */
int file_exists(const char *path);
void file_write(const char *path, const void *bytes, size_t size);

/* Exit 2, one line "headway: ..." on stderr that has every one of the words (parted by '|'). */
void expect_refusal(const struct outcome *outcome, const char *words, const char *what);

/* |got - expected| <= tolerance everywhere, same shape. Fails the case otherwise. */
void expect_close(const char *got, const char *expected, double tolerance, int relative,
                  const char *what);

#endif
