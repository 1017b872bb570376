/* The parts of check_cli: what they share. */
#ifndef HEADWAY_CHECK_CLI_PARTS_H
#define HEADWAY_CHECK_CLI_PARTS_H

#include "command.h"

/* q.npy, k.npy, v.npy in the folder: (2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6), normal numbers. */
void cli_inputs(void);
#define ATTEND "attend --query q.npy --key k.npy --value v.npy "
#define CHECK_CORE "check --query q.npy --key k.npy --value v.npy "

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

#endif
