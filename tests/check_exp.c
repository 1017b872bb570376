/* The exponential, through the softmax kernels: every float it is used on, on every row.
 *
 *   0 >= t > -62.75    at most 2 ulp (of the binade of the exact result) from exp2(2t) in double;
 *                      t > -62.75 is the same as 2t > -125.5
 *   t <= -62.75        exactly 0; all floats to -64, every 257th from there to -infinity
 *   t NaN              NaN; every 257th payload of either sign
 *
 * A block that starts with row_max = 0 and has no score above 0 keeps 0 as its reference, so that
 * the scores are t themselves. The other rows are compared with the scalar row, that with double.
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

enum { CHUNK = 1 << 14, MAX_ROWS = 8, MAX_THREADS = 16, BITS_RANGES = 5 };

/* Floats by their bits, first and last included. */
struct range {
    uint32_t first, last, step;
};
static struct range ranges[BITS_RANGES] = {
    {0x80000000u, 0xc2800000u, 1},   /* -0 .. -64 */
    {0xc2800001u, 0xff7fffffu, 257}, /* .. the largest finite */
    {0xff800000u, 0xff800000u, 1},   /* -infinity */
    {0xff800001u, 0xffffffffu, 257}, /* NaNs */
    {0x7f800001u, 0x7fffffffu, 257},
};

struct finding {
    int64_t count; /* of floats with a wrong result */
    float t, got, expected;
};

struct worker {
    pthread_t thread;
    struct finding row[MAX_ROWS]; /* against the scalar row; scalar: against double */
    double ulp;                   /* the scalar row's largest error */
    float ulp_at;
    int64_t floats;
};

static const struct headway_row *rows[MAX_ROWS], *scalar;
static int row_count;
static atomic_int_fast64_t next_chunk;

static int64_t chunks_of(const struct range *r)
{
    const int64_t count = ((int64_t)r->last - r->first) / r->step + 1;
    return (count + CHUNK - 1) / CHUNK;
}

/* Fills t with chunk number `chunk`; returns how many floats that is, 0 past the end. The rest of t
 * repeats the last of them. */
static int fill(float *t, int capacity, int64_t chunk)
{
    for (int i = 0; i < BITS_RANGES; i++) {
        const struct range *r = &ranges[i];
        const int64_t chunks = chunks_of(r);
        if (chunk >= chunks) {
            chunk -= chunks;
            continue;
        }
        int64_t bits = r->first + chunk * CHUNK * r->step;
        int n = 0;
        for (; n < CHUNK && bits <= r->last; n++, bits += r->step) {
            const uint32_t word = (uint32_t)bits;
            memcpy(&t[n], &word, sizeof word);
        }
        for (int j = n; j < capacity; j++)
            t[j] = t[n - 1];
        return n;
    }
    return 0;
}

/* e(t) of n floats, in place, by a row's softmax. to has a block's width behind n. */
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
        if (isnan(t[i]) || t[i] <= -62.75f) {
            if (isnan(t[i]) ? !isnan(got[i]) : !(got[i] == 0 && !signbit(got[i])))
                note(finding, t[i], got[i], isnan(t[i]) ? NAN : 0);
            continue;
        }
        const double exact = exp2(2 * (double)t[i]);
        uint64_t bits;
        memcpy(&bits, &exact, sizeof bits);
        bits &= UINT64_C(0x7ff) << 52; /* the binade */
        double binade;
        memcpy(&binade, &bits, sizeof bits);
        const double ulp = fabs((double)got[i] - exact) / (binade * 0x1p-23);
        if (!(ulp <= 2) || (t[i] == 0 && got[i] != 1))
            note(finding, t[i], got[i], (float)exact);
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

static void *work(void *argument)
{
    enum { SIZE = CHUNK + HEADWAY_MAX_WIDTH };
    struct worker *worker = argument;
    static _Thread_local float t[SIZE], expected[SIZE], got[SIZE];
    int n;

    while ((n = fill(t, SIZE, atomic_fetch_add(&next_chunk, 1))) != 0) {
        memcpy(expected, t, sizeof t);
        exp_by_row(scalar, expected, n);
        for (int r = 0; r < row_count; r++) {
            if (rows[r] == scalar) {
                against_double(worker, &worker->row[r], t, expected, n);
                continue;
            }
            memcpy(got, t, sizeof t);
            exp_by_row(rows[r], got, n);
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
        int64_t wrong = 0;
        if (!check_case("%s exp", rows[r]->name))
            continue;
        for (int i = 0; i < threads; i++) {
            const struct finding *f = &workers[i].row[r];
            wrong += f->count;
            CHECK(!f->count, "e(%a) is %a, expected %a%s", (double)f->t, (double)f->got,
                  (double)f->expected,
                  rows[r] == scalar ? " within 2 ulp" : " like the scalar row");
        }
        if (wrong)
            printf("%s exp %" PRId64 " floats, %" PRId64 " wrong\n", rows[r]->name, floats, wrong);
        else if (rows[r] == scalar)
            printf("scalar exp %" PRId64 " floats ok, largest error %.4f ulp at %a\n", floats, ulp,
                   (double)ulp_at);
        else
            printf("%s exp %" PRId64 " floats ok\n", rows[r]->name, floats);
    }
}

int main(int argc, char **argv)
{
    static struct worker workers[MAX_THREADS];
    const struct headway_row_entry *entry;
    const struct headway_row *row;
    int index = 0;

    check_begin(argc, argv);
    const int64_t stride = check_option("--stride", 1);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t threads = check_option("--threads", cores > 1 ? cores : 1);
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    for (int i = 0; i < BITS_RANGES; i++)
        ranges[i].step *= stride < 1 ? 1 : stride > 1 << 20 ? 1 << 20 : (uint32_t)stride;

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
    if (row_count) {
        for (int i = 0; i < threads; i++)
            if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
                perror("check_exp: thread");
                return 1;
            }
        for (int i = 0; i < threads; i++)
            pthread_join(workers[i].thread, NULL);
        report(workers, (int)threads);
    }
    return check_end();
}
