/* What the parts of check_compat share: a small problem, the peer's answer by a plain loop over what
 * the test says the peer does, and ours by the settings of the README's table. */
#ifndef HEADWAY_CHECK_COMPAT_H
#define HEADWAY_CHECK_COMPAT_H

#include <math.h>

#include "check.h"
#include "headway/headway.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

enum { B = 2, HQ = 4, HKV = 2, D = 8, MOST = 16 }; /* MOST: of Lq and of Lk */

/* Dense (B, L, H, D) of the lengths below; new for each case. */
extern float query[B * MOST * HQ * D], key[B * MOST * HKV * D], value[B * MOST * HKV * D];
extern int lq, lk;
void problem(int queries, int keys);

/* What a peer does, as its documentation says; NULL: nothing special. */
struct peer {
    double scale;
    int (*sees)(int b, int h, int i, int j);
    double (*score)(double s, int b, int h, int i, int j); /* of a key that is seen */
    double (*sink)(int h);                                 /* joins the sum as exp(sink) */
    double empty, empty_lse;                               /* of rows that see nothing */
};
/* 1/sqrt(D), all seen, empty rows 0 and -inf. */
struct peer peer_plain(void);

struct attended {
    double out[B * MOST * HQ * D], lse[B * HQ * MOST], weights[B * HQ * MOST * MOST];
};
extern struct attended theirs, ours;
void peer_answer(const struct peer *p);
/* headway_attention() of the problem with these params, into ours; a cache has its keys. */
void our_answer(headway_attention_params params);
/* Within rounding; `differ`: somewhere they are further apart than any rounding. */
void agree(const char *what);
void differ(const char *what);
void agree_weights(const char *what); /* too */
int apart(double a, double b);
void agree_on(const double *a, const double *b, int count, const char *what);

extern const headway_engine *engine;
headway_tensor tensor(void *data, headway_dtype dtype, int rank, const int *shape);
/* random numbers of the case */
extern uint64_t random_state;

/* Masks of (B, HQ, lq, lk) of the same random content; row 1 of every head excludes all. */
extern unsigned char mask_bool[B * HQ * MOST * MOST];
extern float mask_float[B * HQ * MOST * MOST];
extern headway_tensor mask;
void draw_masks(void);
int at4(int b, int h, int i, int j);
headway_attention_params with_mask(void *data, headway_dtype dtype);
/* For struct peer. */
int bool_attends(int b, int h, int i, int j);
double add_float(double s, int b, int h, int i, int j);
int top_left(int b, int h, int i, int j);
int bottom_right(int b, int h, int i, int j);
int never(int b, int h, int i, int j);

struct test {
    const char *name; /* as in the README's table */
    void (*run)(void);
};
extern const struct test operator_tests[], layer_tests[], runtime_tests[], cache_tests[];
extern const int operator_test_count, layer_test_count, runtime_test_count, cache_test_count;

#endif
