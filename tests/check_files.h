/* The parts of check_files: what they share. */
#ifndef HEADWAY_CHECK_FILES_H
#define HEADWAY_CHECK_FILES_H

#include "check.h"

#include "cli/array.h"
#include "cli/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Folders and files below the program's own temporary folder; the text lasts until the call after
 * the next seven. */
const char *files_path(const char *name);
void files_folder(const char *name);
void files_write(const char *name, const void *bytes, size_t count);
/* The file's bytes in new memory with a 0 behind; fails the case and gives "" when it can't be
 * read. */
char *files_read(const char *name, size_t *count);
/* How many entries the folder has, "." and ".." left out. */
int files_entries(const char *folder);
void files_empty(const char *folder);

/* error is one non-empty line that has `words` (separated by |, all of them). */
void files_check_error(const char *error, const char *words);

/* A .safetensors being made: tensor k's element i is k * 4096 + i, in the order they are added. */
struct maker {
    char header[65536];
    size_t header_length;
    unsigned char *data;
    size_t data_length;
    int count;
    char names[160][128];
};
void maker_start(struct maker *m);
/* type: F32, F16, BF16, F64, or another of the format's, filled with zero bytes. rank up to 4. */
void maker_add(struct maker *m, const char *name, const char *type, int rank, int64_t a, int64_t b,
               int64_t c, int64_t d);
void maker_matrix(struct maker *m, const char *name, int64_t rows, int64_t columns); /* F32 */
void maker_vector(struct maker *m, const char *name, int64_t count);
/* Writes the file, padded_by spaces behind the header, and frees what the maker holds. */
void maker_write(struct maker *m, const char *path, int padded_by);
/* What element i of a tensor is; the maker keeps its names after maker_write(). */
float maker_value(const struct maker *m, const char *name, int64_t i);

void check_npy(void);
void check_npy_writing(void);
void check_conversions(void);
void check_safetensors(void);
void check_shards(void);
void check_families(void);
void check_choices(void);
void check_config(void);
void check_models_meaning(void);
void check_locale(void);

#endif
