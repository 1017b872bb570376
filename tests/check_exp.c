/* The exponential and the hyperbolic tangent, through the softmax kernels: every float they are used
 * on, on every row.
 *
 * exp
 *   0 >= t > -62.75    at most 2 ulp (of the binade of the exact result) from exp2(2t) in double;
 *                      t > -62.75 is the same as 2t > -125.5
 *   t <= -62.75        exactly 0; all floats to -64, every 257th from there to -infinity
 *   t NaN              NaN; every 257th payload of either sign
 *
 * A block that starts with row_max = 0 and has no score above 0 keeps 0 as its reference, so that
 * the scores are t themselves. The other rows are compared with the scalar row, that with double.
 *
 * tanh
 *   |t| < 2^-25        t itself, 0 and subnormal numbers included; every 257th
 *   .. |t| < 9.5       at most 2.5 ulp (of the binade of the exact result), never beyond +-1; all
 *                      floats from 2^-13 on, every 257th below
 *   from there on      exactly +-1; every 257th to infinity
 *   t NaN              NaN; every 257th payload
 *
 * A block of one key with a cap of 1 leaves the capped score as row_max, or a NaN as row_sum. Of
 * every 16th chunk -t is taken too, on every row: tanh is odd to the bit.
 *
 * --stride N takes every N-th float; N = 1 takes all of them. --threads N. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cpu/kernels.h"

enum { CHUNK = 1 << 14, SIZE = CHUNK + HEADWAY_MAX_WIDTH, MAX_ROWS = 8, MAX_THREADS = 16 };
enum { MAX_RANGES = 5, WALKS = 2, ODD_CHUNKS = 16 };

/* Floats by their bits, first and last included. */
struct range {
    uint32_t first, last, step;
};

/* A function over its ranges. by_row takes n floats in place; a tile's width behind them may change.
 * wrong compares with double: 0 where got is good, else *expected is what it should be. */
struct walk {
    const char *name;
    struct range ranges[MAX_RANGES];
    double most_ulp;
    int odd;
    void (*by_row)(const struct headway_row *row, float *to, int n);
    int (*wrong)(float t, float got, double *ulp, float *expected);
};

struct finding {
    int64_t count; /* of floats with a wrong result */
    float t, got, expected;
};

/* What a thread found in the walk: against the scalar row; the scalar row: against double. */
struct worker {
    pthread_t thread;
    struct finding row[MAX_ROWS];
    double ulp; /* the scalar row's largest error */
    float ulp_at;
    int64_t floats;
};

static const struct headway_row *rows[MAX_ROWS], *scalar;
static int row_count;
static const struct walk *walk;
static atomic_int_fast64_t next_chunk;
static uint32_t stride = 1;

static int64_t step_of(const struct range *r)
{
    return (int64_t)r->step * stride;
}

static int64_t chunks_of(const struct range *r)
{
    const int64_t count = ((int64_t)r->last - r->first) / step_of(r) + 1;
    return (count + CHUNK - 1) / CHUNK;
}

/* Fills t with chunk number `chunk`; returns how many floats that is, 0 past the end. The rest of t
 * repeats the last of them. */
static int fill(float *t, int64_t chunk)
{
    for (int i = 0; i < MAX_RANGES && walk->ranges[i].step; i++) {
        const struct range *r = &walk->ranges[i];
        const int64_t chunks = chunks_of(r);
        if (chunk >= chunks) {
            chunk -= chunks;
            continue;
        }
        int64_t bits = r->first + chunk * CHUNK * step_of(r);
        int n = 0;
        for (; n < CHUNK && bits <= r->last; n++, bits += step_of(r)) {
            const uint32_t word = (uint32_t)bits;
            memcpy(&t[n], &word, sizeof word);
        }
        for (int j = n; j < SIZE; j++)
            t[j] = t[n - 1];
        return n;
    }
    return 0;
}

/* Distance of got from exact in units of the last place of exact's binade. */
static double ulp_between(float got, double exact)
{
    uint64_t bits;
    double binade;
    memcpy(&bits, &exact, sizeof bits);
    bits &= UINT64_C(0x7ff) << 52;
    memcpy(&binade, &bits, sizeof bits);
    return fabs((double)got - exact) / (binade * 0x1p-23);
}

/* ---- exp ------------------------------------------------------------------------------------- */

static void exp_by_row(const struct headway_row *row, float *to, int n)
{
    const int w = row->lanes * row->vectors;
    float row_max[HEADWAY_MAX_WIDTH], row_sum[HEADWAY_MAX_WIDTH], rescale[HEADWAY_MAX_WIDTH];
    memset(row_max, 0, sizeof row_max);
    for (int at = 0; at < n; at += HEADWAY_KEY_BLOCK * w) {
        const int keys = (n - at + w - 1) / w;
        memset(row_sum, 0, sizeof row_sum);
        const struct headway_softmax s = {
            .keys = keys < HEADWAY_KEY_BLOCK ? keys : HEADWAY_KEY_BLOCK,
            .vectors = row->vectors,
            .scores = to + at,
            .row_max = row_max,
            .row_sum = row_sum,
            .rescale = rescale,
        };
        row->softmax(&s);
    }
}

static int exp_wrong(float t, float got, double *ulp, float *expected)
{
    *ulp = 0;
    if (isnan(t)) {
        *expected = NAN;
        return !isnan(got);
    }
    if (t <= -62.75f) {
        *expected = 0;
        return !(got == 0 && !signbit(got));
    }
    const double exact = exp2(2 * (double)t);
    *expected = (float)exact;
    *ulp = ulp_between(got, exact);
    return !(*ulp <= 2) || (t == 0 && got != 1);
}

/* ---- tanh ------------------------------------------------------------------------------------ */

static void tanh_by_row(const struct headway_row *row, float *to, int n)
{
    const int w = row->lanes * row->vectors;
    float row_max[HEADWAY_MAX_WIDTH], row_sum[HEADWAY_MAX_WIDTH], rescale[HEADWAY_MAX_WIDTH];
    for (int at = 0; at < n; at += w) {
        for (int lane = 0; lane < w; lane++) {
            row_max[lane] = -INFINITY;
            row_sum[lane] = 0;
        }
        const struct headway_softmax s = {
            .keys = 1,
            .vectors = row->vectors,
            .scores = to + at,
            .cap = 1,
            .inverse_cap = 1,
            .row_max = row_max,
            .row_sum = row_sum,
            .rescale = rescale,
        };
        row->softmax(&s);
        for (int lane = 0; lane < w; lane++)
            to[at + lane] = isnan(row_sum[lane]) ? NAN : row_max[lane];
    }
}

static int tanh_wrong(float t, float got, double *ulp, float *expected)
{
    *ulp = 0;
    *expected = isnan(t) || fabsf(t) < 0x1p-25f ? t : copysignf(1, t);
    if (isnan(t))
        return !isnan(got);
    if (fabsf(t) < 0x1p-25f || fabsf(t) >= 9.5f)
        return memcmp(&got, expected, sizeof got) != 0;
    const double exact = tanh((double)t);
    *expected = (float)exact;
    *ulp = ulp_between(got, exact);
    return !(*ulp <= 2.5) || fabsf(got) > 1;
}

static const struct walk walks[WALKS] = {
    {"exp",
     {{0x80000000u, 0xc2800000u, 1},   /* -0 .. -64 */
      {0xc2800001u, 0xff7fffffu, 257}, /* .. the largest finite */
      {0xff800000u, 0xff800000u, 1},   /* -infinity */
      {0xff800001u, 0xffffffffu, 257}, /* NaNs */
      {0x7f800001u, 0x7fffffffu, 257}},
     2,
     0,
     exp_by_row,
     exp_wrong},
    {"tanh",
     {{0x00000000u, 0x38ffffffu, 257}, /* 0 .. below 2^-13 */
      {0x39000000u, 0x41180000u, 1},   /* .. 9.5 */
      {0x41180001u, 0x7f7fffffu, 257}, /* .. the largest finite */
      {0x7f800000u, 0x7f800000u, 1},   /* infinity */
      {0x7f800001u, 0x7fffffffu, 257}},
     2.5,
     1,
     tanh_by_row,
     tanh_wrong},
};

/* ---- the walk -------------------------------------------------------------------------------- */

static void note(struct finding *finding, float t, float got, float expected)
{
    if (!finding->count++) {
        finding->t = t;
        finding->got = got;
        finding->expected = expected;
    }
}

/* The scalar row against double. */
static void against_double(struct worker *worker, struct finding *finding, const float *t,
                           const float *got, int n)
{
    for (int i = 0; i < n; i++) {
        double ulp;
        float expected;
        if (walk->wrong(t[i], got[i], &ulp, &expected))
            note(finding, t[i], got[i], expected);
        if (ulp > worker->ulp) {
            worker->ulp = ulp;
            worker->ulp_at = t[i];
        }
    }
}

static void against_scalar(struct finding *finding, const float *t, const float *got,
                           const float *expected, int n)
{
    if (memcmp(got, expected, (size_t)n * sizeof *got) == 0)
        return;
    for (int i = 0; i < n; i++)
        if (memcmp(&got[i], &expected[i], sizeof *got) != 0 &&
            !(isnan(got[i]) && isnan(expected[i])))
            note(finding, t[i], got[i], expected[i]);
}

/* f(-t) must be -f(t). */
static void against_mirrored(const struct headway_row *row, struct finding *finding, const float *t,
                             const float *expected, int n)
{
    static _Thread_local float mirrored[SIZE];

    for (int i = 0; i < SIZE; i++)
        mirrored[i] = -t[i];
    walk->by_row(row, mirrored, n);
    for (int i = 0; i < n; i++)
        mirrored[i] = -mirrored[i];
    against_scalar(finding, t, mirrored, expected, n);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    static _Thread_local float t[SIZE], expected[SIZE], got[SIZE];
    int64_t chunk;
    int n;

    while ((n = fill(t, chunk = atomic_fetch_add(&next_chunk, 1))) != 0) {
        memcpy(expected, t, sizeof t);
        walk->by_row(scalar, expected, n);
        for (int r = 0; r < row_count; r++) {
            if (walk->odd && chunk % ODD_CHUNKS == 0)
                against_mirrored(rows[r], &worker->row[r], t, expected, n);
            if (rows[r] == scalar) {
                against_double(worker, &worker->row[r], t, expected, n);
                continue;
            }
            memcpy(got, t, sizeof t);
            walk->by_row(rows[r], got, n);
            against_scalar(&worker->row[r], t, got, expected, n);
        }
        worker->floats += n;
    }
    return NULL;
}

static void report(const struct worker *workers, int threads)
{
    int64_t floats = 0;
    double ulp = 0;
    float ulp_at = 0;

    for (int i = 0; i < threads; i++) {
        floats += workers[i].floats;
        if (workers[i].ulp > ulp) {
            ulp = workers[i].ulp;
            ulp_at = workers[i].ulp_at;
        }
    }
    for (int r = 0; r < row_count; r++) {
        const char *name = rows[r]->name;
        int64_t wrong = 0;
        if (!check_case("%s %s", name, walk->name))
            continue;
        for (int i = 0; i < threads; i++) {
            const struct finding *f = &workers[i].row[r];
            wrong += f->count;
            CHECK(!f->count,
                  "%s(%a) is %a, expected %a, the scalar row within %g ulp, others its bits",
                  walk->name, (double)f->t, (double)f->got, (double)f->expected, walk->most_ulp);
        }
        if (wrong)
            printf("%s %s %" PRId64 " floats, %" PRId64 " wrong\n", name, walk->name, floats,
                   wrong);
        else if (rows[r] == scalar)
            printf("%s %s %" PRId64 " floats ok, largest error %.4f ulp at %a\n", name, walk->name,
                   floats, ulp, (double)ulp_at);
        else
            printf("%s %s %" PRId64 " floats ok\n", name, walk->name, floats);
    }
}

/* Whether --case leaves any row of the walk. */
static int asked_for(const struct walk *w)
{
    char text[64];
    for (int r = 0; r < row_count; r++) {
        snprintf(text, sizeof text, "%s %s", rows[r]->name, w->name);
        if (!check_only() || strstr(text, check_only()))
            return 1;
    }
    return 0;
}

static int run(const struct walk *w, int threads)
{
    static struct worker workers[MAX_THREADS];

    walk = w;
    memset(workers, 0, sizeof workers);
    atomic_store(&next_chunk, 0);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            perror("check_exp: thread");
            return 0;
        }
    for (int i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    report(workers, threads);
    return 1;
}

int main(int argc, char **argv)
{
    const struct headway_row_entry *entry;
    const struct headway_row *row;
    int index = 0;

    check_begin(argc, argv);
    const int64_t given = check_option("--stride", 1);
    stride = given < 1 ? 1 : given > 1 << 20 ? 1 << 20 : (uint32_t)given;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t threads = check_option("--threads", cores > 1 ? cores : 1);
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;

    for (int i = 0; (entry = headway_row_at(i)) != NULL; i++)
        if (strcmp(entry->name, "scalar") == 0)
            scalar = entry->row;
    while ((row = check_next_row(&index)) != NULL && row_count < MAX_ROWS)
        rows[row_count++] = row;
    if (!scalar) {
        check_case("scalar");
        CHECK(0, "no scalar row to compare with");
        return check_end();
    }
    for (int i = 0; row_count && i < WALKS; i++)
        if (asked_for(&walks[i]) && !run(&walks[i], (int)threads))
            return 1;
    return check_end();
}
