/* check: what a problem's results are compared with, and how far they may be off. */
#ifndef HEADWAY_COMPARE_H
#define HEADWAY_COMPARE_H

#include "cli/problem.h"
#include "oracle/onednn.h"

/* The double reference of a problem and its bounds, dense in the API's order; where a cache rounds,
 * of the values it holds, in `stored`. */
struct answer {
    struct array stored[2];
    headway_tensor key, value; /* of attend */
    double *out, *out_bound;
    double *lse, *lse_bound, *probs, *probs_bound, *mean, *mean_bound; /* of what is asked for */
};

int answer_make(const struct problem *problem, const headway_kv_cache *cache, struct answer *answer,
                char *error);
void answer_free(struct answer *answer);

/* What a comparison found. `at` and `worst_at` are offsets into the file's array. */
struct comparison {
    double largest, got, expected, worst; /* worst: in units of the bound */
    int64_t at, worst_at, count, outside;
};

/* One element: NaN against a number is outside, two NaNs and equal infinities are equal. */
void compare_element(struct comparison *c, int64_t at, double got, double expected, double bound);

/* Half a unit in the last place of that type at x. */
double half_unit(enum array_type type, double x);

/* `result` (the file's array) against the answer, `expected` (same shape, any float type) or, where
 * expected is NULL, the answer itself. type is what the result is rounded to, times what the bound
 * is multiplied with. Rows beyond a query length are left out when expected is oneDNN's. */
enum source { SOURCE_REFERENCE, SOURCE_FILE, SOURCE_ONEDNN };
int compare_out(const struct problem *problem, const struct answer *answer, enum source source,
                const struct array *expected, struct comparison *c, char *error);

/* Binds a oneDNN path to the problem and `out`, whose rows beyond a query length mean nothing. */
struct headway_onednn *onednn_open(const struct problem *problem, const struct answer *answer,
                                   enum headway_onednn_path path, const headway_tensor *out,
                                   char *note, size_t size);

/* The whole of check, on what the run left in its cache, if any. *differs is set when something is
 * outside its bound. */
int check_problem(const struct problem *problem, const headway_kv_cache *cache, int *differs,
                  char *error);

#endif
