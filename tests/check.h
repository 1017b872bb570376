/* The harness: named cases, guarded memory, comparison, skips that are named. One program = one
 * ctest entry; exit 0 passed, 1 failed, 77 everything asked for was skipped. */
#ifndef HEADWAY_CHECK_H
#define HEADWAY_CHECK_H

#include <stddef.h>
#include <stdint.h>

struct headway_row;

/* Options every test program takes: --isa NAME (only that row), --case SUBSTRING, --seed N,
 * --require a,b (a skip of one of these rows is a failure), --list (the rows: built or why not,
 * runs here or why not; then exits), --slack N (guarded memory is followed by N readable bytes, for
 * emulators whose masked loads touch the whole vector; they still must not be written). A program's
 * own options are read with check_option(). Bad arguments end the program with status 2. Everything
 * here is for one thread. */
void check_begin(int argc, char **argv);
/* Prints "N passed, N failed, N skipped"; returns the exit status. A program in which no case ran
 * and none was skipped has failed, as has one with an option that nobody read. */
int check_end(void);

/* The number behind the option, 1 if it stands alone, `otherwise` if it isn't given. */
int64_t check_option(const char *name, int64_t otherwise);

/* The next row that was asked for, is built and runs here; *index starts at 0. The others are
 * skipped by name on the way. NULL at the end. */
const struct headway_row *check_next_row(int *index);

extern uint64_t check_seed;
const char *check_isa(void);  /* --isa, or NULL */
const char *check_only(void); /* --case, or NULL */

/* Enters a case; 0 when --case excludes it. All failures until the next call belong to it. */
int check_case(const char *format, ...) __attribute__((format(printf, 1, 2)));
int check_case_failures(void); /* of the case entered last */
/* Records a failure, prints its place and text (the first ten of a case), and goes on. */
void check_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Failures between the two are counted and not recorded; the end returns how many there were, and
 * the text of the first, which lasts until the next trial. */
void check_trial_begin(void);
int check_trial_end(const char **text);
void check_skip(const char *what, const char *reason); /* what: a row's name or a case */

#define CHECK(condition, ...) ((condition) ? (void)0 : check_fail(__FILE__, __LINE__, __VA_ARGS__))

/* Memory between two unreadable pages, flush to the end (at_end) or to the start; filled with the
 * byte 0xA5. check_guard_free() fails the case if slack inside the mapping was written. */
void *check_guard(size_t bytes, int at_end);
void check_guard_free(void *memory);

/* Same bits, a NaN equal to any NaN. Reports the first difference under `what`. */
void check_bits(const float *got, const float *expected, int64_t count, const char *what);
/* |got - expected| <= bound[i], written so that NaN against a number fails; NaN against NaN and
 * equal infinities pass; under an infinite bound any two that are not finite do. Returns the largest
 * error in units of the bound. */
double check_bound(const float *got, const double *expected, const double *bound, int64_t count,
                   const char *what);
/* Poison: NaNs with a payload. */
void check_poison(float *memory, int64_t count);

/* splitmix64-based: same numbers everywhere. */
uint64_t check_random(uint64_t *state);
float check_uniform(uint64_t *state, float low, float high);
float check_normal(uint64_t *state);
void check_fill_normal(uint64_t *state, float *to, int64_t count, float deviation);

#endif
