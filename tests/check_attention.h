/* What the parts of check_attention share. */
#ifndef HEADWAY_CHECK_ATTENTION_H
#define HEADWAY_CHECK_ATTENTION_H

#include "attend.h"

enum { THREADS = 4, MAX_ROWS = 8 };
extern const int thread_counts[THREADS]; /* 1, 2, 3, 7 */

struct subject {
    const char *isa;
    headway_engine *engines[THREADS];
};

extern struct subject subjects[MAX_ROWS]; /* the rows under test */
extern int subject_count;
extern int quick; /* a sample of everything, for emulators and sanitizers */

/* All rows and threads, in a layout and at a page edge that move on with each call, against the
 * reference and bit by bit against the scalar row. Opens the case and frees the problem. */
void run(struct problem *p, const char *group);

void check_shapes(void);
void check_masks(void);
void check_options(void);
void check_equalities(const struct subject *s);
void check_excluded(const struct subject *s);
void check_empty(const struct subject *s);
void check_workspaces(const struct subject *s);

#endif
