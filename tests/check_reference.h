/* What the parts of check_reference share: the results of the last call, and how to call. */
#ifndef CHECK_REFERENCE_H
#define CHECK_REFERENCE_H

#include "check.h"
#include "headway/headway.h"
#include "oracle/reference.h"

enum { CAPACITY = 4096 };

extern double out[CAPACITY], bound[CAPACITY], lse[CAPACITY], lse_bound[CAPACITY], probs[CAPACITY];
extern double probs_bound[CAPACITY], mean[CAPACITY], mean_bound[CAPACITY];

headway_tensor dense(const void *data, headway_dtype dtype, int rank, int64_t a, int64_t b,
                     int64_t c, int64_t d);
/* Fills the result arrays with 77777, which no case expects, then computes. */
void attend(const headway_attention_params *params, const headway_tensor *query,
            const headway_tensor *key, const headway_tensor *value);
void expect(const double *got, const double *wanted, int64_t count, double tolerance,
            const char *what);
/* One head, D = Dv = 1, query of zeros: every visible key counts the same, key j's value is j. At
 * most 16 rows and keys. */
void uniform(headway_attention_params *params, int64_t lq, int64_t lk, const double *wanted,
             const char *what);

void check_options(void);

#endif
