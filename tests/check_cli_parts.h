/* The parts of check_cli: what they share. */
#ifndef HEADWAY_CHECK_CLI_PARTS_H
#define HEADWAY_CHECK_CLI_PARTS_H

#include "command.h"

/* q.npy, k.npy, v.npy in the folder: (2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6), normal numbers. */
void cli_inputs(void);
#define ATTEND "attend --query q.npy --key k.npy --value v.npy "
#define CHECK_CORE "check --query q.npy --key k.npy --value v.npy "

#define RUN "run --weights w.safetensors --input q2.npy "

/* A layer's file: F32 tensors by name, their shapes and values, up to a name NULL. */
struct cli_tensor {
    const char *name;
    int rank;
    int64_t shape[3];
    const float *values;
};
void cli_weights(const char *name, const struct cli_tensor *tensors);
/* The file's values as f32 in new memory, NULL (and a failure) when it can't be read; array owns. */
float *cli_read(const char *name, struct array *array);
/* Both say the same: equal bytes of the outputs. */
void cli_equal(const char *first, const char *second);

/* Runs the words in the folder. */
void cli_run(const char *words, struct outcome *outcome);
/* Runs them; exit 2, one line with these words, no y.npy. */
void cli_refused(const char *words, const char *expected);
/* Runs them; exit 0 and nothing on stderr. */
void cli_done(const char *words);
void cli_same(const char *a, const char *b); /* the same bytes */

void cli_write(const char *name, enum array_type type, int rank, const int64_t *shape,
               const double *values);

void check_cli_arguments(void);
void check_cli_files(void);
void check_cli_meaning(void);
void check_cli_checks(void);
void check_cli_options(void);
void check_cli_layers(void);
void check_cli_cases(void);
void check_cli_cache(void);

#endif
