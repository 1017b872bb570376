/* What the parts of check_cases share. Each case is a fault seen in some system of this kind; its
 * id is that of the collection the cases come from, a letter for the family and a number. */
#ifndef HEADWAY_CHECK_CASES_H
#define HEADWAY_CHECK_CASES_H

#include "attend.h"

struct subject {
    const char *isa;
    headway_engine *one, *seven; /* threads */
};

typedef void case_fn(const struct subject *s);
struct entry {
    const char *id, *title;
    case_fn *body;
};

extern const struct entry empty_cases[], mask_cases[], number_cases[], shape_cases[], score_cases[],
    layer_cases[], cache_cases[];
extern int quick; /* a sample, for emulators and sanitizers */

/* On one and seven threads, dense and in another layout that moves on with each call: the
 * reference's answer. Frees the problem. */
void expect_reference(const struct subject *s, struct problem *p);
/* One thread, dense. */
struct answer answer_of(const struct subject *s, const struct problem *p);
/* Dense (B, Lq, Hq, Dv) out of one thread for any mask tensor; NULL: none. */
headway_status call_with_mask(const struct subject *s, const struct problem *p,
                              const headway_tensor *mask, float *out);

void fill(float *to, int64_t count, float value);
void fill_all(struct problem *p, float query, float key, float value);
/* Every element of the value of key j is j. */
void number_values(struct problem *p);
/* All elements of row i of every batch and head are `expected`, to the bit or within the tolerance
 * 1e-6 + 1e-5 |expected|. */
void expect_row(const struct problem *p, const struct answer *a, int64_t i, double expected,
                int exactly);
void expect_no_key(const struct problem *p, const struct answer *a, int64_t i);

#endif
