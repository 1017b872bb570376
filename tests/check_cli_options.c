/* What the options of attention mean: equal bytes where two ways of saying mean the same, small
 * answers worked out by hand, the double reference for all at once, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"

enum { BATCH = 2, QUERIES = 5, KEYS = 7, HEADS = 4, SIZE = 8, VALUE = 6 };

static void write_files(void)
{
    double pairs[QUERIES * 2], far[QUERIES * 2], both[BATCH * QUERIES * 2];
    for (int i = 0; i < QUERIES; i++) {
        pairs[2 * i] = far[2 * i] = 0;
        pairs[2 * i + 1] = i + 3;
        far[2 * i + 1] = 2147483647;
        for (int b = 0; b < BATCH; b++) {
            both[2 * (b * QUERIES + i)] = b + i;
            both[2 * (b * QUERIES + i) + 1] = 3 * i; /* reversed where i is 0: empty */
        }
    }
    cli_write("causal2.npy", ARRAY_I32, 3, (int64_t[]){1, QUERIES, 2}, pairs);
    cli_write("causal2wide.npy", ARRAY_I64, 2, (int64_t[]){QUERIES, 2}, pairs);
    cli_write("all.npy", ARRAY_I64, 3, (int64_t[]){1, QUERIES, 2}, far);
    cli_write("both.npy", ARRAY_I32, 3, (int64_t[]){BATCH, QUERIES, 2}, both);
    cli_write("pairs3.npy", ARRAY_I32, 3, (int64_t[]){3, QUERIES, 2}, (double[30]){0});
    cli_write("toofar.npy", ARRAY_I64, 2, (int64_t[]){QUERIES, 2},
              (double[QUERIES * 2]){0, 2147483648});
    cli_write("slopes.npy", ARRAY_F64, 1, (int64_t[]){HEADS},
              (double[]){0.25, 0.0625, 0.015625, 0.00390625});
    cli_write("slopes0.npy", ARRAY_F32, 1, (int64_t[]){HEADS}, (double[]){0, 0, 0, 0});
    cli_write("slopes3.npy", ARRAY_F32, 1, (int64_t[]){3}, (double[]){1, 1, 1});
    cli_write("slopesnan.npy", ARRAY_F32, 1, (int64_t[]){HEADS}, (double[]){1, NAN, 1, 1});
    cli_write("sinks.npy", ARRAY_F16, 1, (int64_t[]){HEADS}, (double[]){0.5, -1, 2, -INFINITY});
    cli_write("nosinks.npy", ARRAY_F32, 1, (int64_t[]){HEADS},
              (double[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY});
    cli_write("sinksinf.npy", ARRAY_F32, 1, (int64_t[]){HEADS}, (double[]){INFINITY, 0, 0, 0});
    cli_write("minustwo.npy", ARRAY_I64, 1, (int64_t[]){BATCH}, (double[]){-2, -2});
}

/* One float mask in every type that holds it. */
static void float_masks(void)
{
    static const char *const names[] = {"a32.npy", "a16.npy", "ab16.npy", "a64.npy"};
    static const enum array_type types[] = {ARRAY_F32, ARRAY_F16, ARRAY_BF16, ARRAY_F64};
    double values[QUERIES * KEYS];
    for (int n = 0; n < QUERIES * KEYS; n++)
        values[n] = n % 11 == 4 ? -INFINITY : (n % 9) * 0.25 - 1;
    for (int t = 0; t < 4; t++) {
        char words[128];
        cli_write(names[t], types[t], 2, (int64_t[]){QUERIES, KEYS}, values);
        snprintf(words, sizeof words, ATTEND "--mask %s", names[t]);
        cli_equal(ATTEND "--mask a32.npy", words);
    }
    for (int t = 0; t < 4; t++) {
        struct outcome outcome;
        char words[128];
        if (!check_case("cli/mask of 0 and 1/%s", names[t]))
            continue;
        for (int n = 0; n < QUERIES * KEYS; n++)
            values[n] = n % 2;
        cli_write("ones.npy", types[t], 2, (int64_t[]){QUERIES, KEYS}, values);
        snprintf(words, sizeof words, ATTEND "--mask ones.npy --output a.npy");
        cli_run(words, &outcome);
        CHECK(outcome.status == 0 && strstr(outcome.err, "headway: warning: --mask"), "exit %d: %s",
              outcome.status, outcome.err);
    }
}

static void same_meaning(void)
{
    cli_equal(ATTEND, ATTEND "--window -1,-1");
    cli_equal(ATTEND, ATTEND "--window 9223372036854775807,9223372036854775807");
    cli_equal(ATTEND, ATTEND "--window 6,6 --offset 0");
    cli_equal(ATTEND, ATTEND "--offset 5");
    cli_equal(ATTEND "--causal top-left", ATTEND "--window -1,0");
    cli_equal(ATTEND "--causal 2", ATTEND "--window -1,0 --offset 2");
    cli_equal(ATTEND "--causal 2", ATTEND "--window -1,0 --offset two.npy --causal none");
    cli_equal(ATTEND "--causal -2", ATTEND "--window -1,0 --offset minustwo.npy");
    cli_equal(ATTEND "--causal bottom-right --window 2,-1", ATTEND "--offset 2 --window 2,0");
    cli_equal(ATTEND "--causal 2", ATTEND "--interval causal2.npy");
    cli_equal(ATTEND "--causal 2", ATTEND "--interval causal2wide.npy");
    cli_equal(ATTEND, ATTEND "--interval all.npy");
    cli_equal(ATTEND, ATTEND "--softcap 0");
    cli_equal(ATTEND "--softcap 2", ATTEND "--softcap 2e0 --isa scalar --threads 3");
    cli_equal(ATTEND "--alibi default", ATTEND "--alibi slopes.npy");
    cli_equal(ATTEND, ATTEND "--alibi slopes0.npy");
    cli_equal(ATTEND, ATTEND "--sink nosinks.npy");
    cli_equal(ATTEND, ATTEND "--probs a1.npy --probs-mean a2.npy --lse a3.npy");
}

#define MANY                                                                                       \
    "--causal 1 --window 3,-1 --interval both.npy --softcap 1.5 --alibi default --sink sinks.npy " \
    "--mask a16.npy --scale 0.7 "
#define OUTPUTS "--lse l.npy --probs p.npy --probs-mean m.npy "

static void checks(void)
{
    static const char *const table[] = {
        CHECK_CORE MANY OUTPUTS,
        CHECK_CORE OUTPUTS "--query-lengths ql.npy --key-lengths kl.npy",
        CHECK_CORE "--window 1,2 --probs-mean m.npy",
        CHECK_CORE "--offset -3 --window 2,0 --alibi slopes.npy " OUTPUTS,
        CHECK_CORE "--softcap 0.25 --isa scalar",
        CHECK_CORE "--sink sinks.npy --key-lengths kl.npy --lse l.npy",
        "check --query qt.npy --key kt.npy --value vt.npy --layout bhld " MANY OUTPUTS,
        "check --query q16.npy --key k16.npy --value v16.npy " MANY OUTPUTS,
        "check --query q3.npy --key k3.npy --value v3.npy --heads 4 " MANY OUTPUTS,
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct outcome outcome;
        if (!check_case("cli/check/%s", table[i]))
            continue;
        cli_run(table[i], &outcome);
        CHECK(outcome.status == 0 && outcome.err[0] == '\0' && !strstr(outcome.out, "FAIL"),
              "exit %d: %s%s", outcome.status, outcome.out, outcome.err);
        const char *const named[][2] = {{"--lse", "lse against reference: "},
                                        {"--probs ", "probs against reference: "},
                                        {"--probs-mean", "probs-mean against reference: "}};
        for (int n = 0; n < 3; n++)
            CHECK(!strstr(table[i], named[n][0]) || strstr(outcome.out, named[n][1]),
                  "%s is not compared: %s", named[n][0], outcome.out);
    }
}

/* The weights: none beyond a query length, of an empty row, of a key that is not there; each other
 * row sums to 1, and the mean is the mean. */
static void weights(void)
{
    struct array probs, mean;
    if (!check_case("cli/probs"))
        return;
    cli_done(ATTEND "--output a.npy --probs p.npy --probs-mean m.npy --query-lengths ql.npy "
                    "--key-lengths kl.npy");
    float *p = cli_read("p.npy", &probs), *m = cli_read("m.npy", &mean);
    if (!p || !m)
        return;
    CHECK(probs.rank == 4 && probs.shape[0] == BATCH && probs.shape[1] == HEADS &&
              probs.shape[2] == QUERIES && probs.shape[3] == KEYS && probs.type == ARRAY_F32,
          "the shape of --probs");
    CHECK(mean.rank == 3 && mean.shape[0] == BATCH && mean.shape[1] == QUERIES &&
              mean.shape[2] == KEYS,
          "the shape of --probs-mean");
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < QUERIES; i++) {
            double sums[KEYS] = {0};
            for (int h = 0; h < HEADS; h++) {
                double sum = 0;
                for (int j = 0; j < KEYS; j++) {
                    double w = (double)p[((b * HEADS + h) * QUERIES + i) * KEYS + j];
                    sum += w;
                    sums[j] += w / HEADS;
                }
                int empty = b == 1 || i >= 3; /* key length 0, query length 3 */
                CHECK(empty ? sum == 0 : fabs(sum - 1) < 1e-5, "row %d %d %d sums to %g", b, h, i,
                      sum);
            }
            for (int j = 0; j < KEYS; j++)
                CHECK(fabs((double)m[(b * QUERIES + i) * KEYS + j] - sums[j]) < 1e-6,
                      "mean %d %d %d", b, i, j);
        }
    array_free(&probs);
    array_free(&mean);
}

/* Rows from..to of the first axes of a (B, L, ...) file of the inputs, packed one batch after the
 * other as (total, heads, size) or (total, heads * size). */
static int64_t pack(const char *from, const char *to, const int *lengths, int split)
{
    struct array array;
    double *rows = NULL;
    float *values = cli_read(from, &array);
    int64_t total = 0, width = array.shape[2] * array.shape[3];
    rows = calloc((size_t)(BATCH * array.shape[1] * width), sizeof *rows);
    for (int b = 0; values && rows && b < BATCH; b++)
        for (int i = 0; i < lengths[b]; i++, total++)
            for (int64_t x = 0; x < width; x++)
                rows[total * width + x] = (double)values[(b * array.shape[1] + i) * width + x];
    const int64_t three[3] = {total, array.shape[2], array.shape[3]}, two[2] = {total, width};
    cli_write(to, ARRAY_F32, split ? 3 : 2, split ? three : two, rows);
    free(rows);
    array_free(&array);
    return total;
}

/* Packed sequences are what the padded batch with lengths is, row for row. */
static void packed(void)
{
    static const int queries[BATCH] = {3, 5}, keys[BATCH] = {7, 0};
    for (int split = 0; split < 2; split++) {
        char words[512];
        struct array padded, rows, lse, padded_lse;
        if (!check_case("cli/packed of rank %d", split ? 3 : 2))
            continue;
        int64_t total = pack("q.npy", "qp.npy", queries, split);
        int64_t key_total = pack("k.npy", "kp.npy", keys, split);
        pack("v.npy", "vp.npy", keys, split);
        cli_write("qo.npy", ARRAY_I32, 1, (int64_t[]){3}, (double[]){0, 3, 8});
        cli_write("ko.npy", ARRAY_I64, 1, (int64_t[]){3}, (double[]){0, 7, 7});
        CHECK(total == 8 && key_total == 7, "%d rows", (int)total);
        cli_done(ATTEND "--output a.npy --lse al.npy --query-lengths ql.npy --key-lengths kl.npy "
                        "--causal bottom-right --window 3,-1 --alibi default");
        snprintf(words, sizeof words,
                 "--query qp.npy --key kp.npy --value vp.npy --query-offsets qo.npy --key-offsets "
                 "ko.npy --causal bottom-right --window 3,-1 --alibi default --lse bl.npy %s",
                 split ? "" : "--heads 4");
        char all[600];
        snprintf(all, sizeof all, "attend %s --output b.npy", words);
        cli_done(all);
        snprintf(all, sizeof all, "check %s", words);
        struct outcome outcome;
        cli_run(all, &outcome);
        CHECK(outcome.status == 0 && strstr(outcome.out, "lse against"), "exit %d: %s%s",
              outcome.status, outcome.out, outcome.err);
        float *p = cli_read("a.npy", &padded), *r = cli_read("b.npy", &rows);
        float *l = cli_read("bl.npy", &lse), *pl = cli_read("al.npy", &padded_lse);
        if (!p || !r || !l || !pl)
            return;
        CHECK(rows.rank == (split ? 3 : 2) && rows.shape[0] == total &&
                  rows.shape[rows.rank - 1] == (split ? VALUE : HEADS * VALUE),
              "the shape of the packed output");
        CHECK(lse.rank == 2 && lse.shape[0] == HEADS && lse.shape[1] == total,
              "the shape of the packed lse");
        int64_t at = 0;
        for (int b = 0; b < BATCH; b++)
            for (int i = 0; i < queries[b]; i++, at++) {
                check_bits(r + at * HEADS * VALUE, p + (b * QUERIES + i) * HEADS * VALUE,
                           HEADS * VALUE, "a packed row");
                for (int h = 0; h < HEADS; h++)
                    check_bits(l + h * total + at, pl + (b * HEADS + h) * QUERIES + i, 1, "lse");
            }
        array_free(&padded);
        array_free(&rows);
        array_free(&lse);
        array_free(&padded_lse);
    }
}

static void refusals(void)
{
    static const char *const table[][2] = {
        {ATTEND "--output y.npy --probs nowhere/p.npy", "nowhere/p.npy"},
        {ATTEND "--output y.npy --lse l.npy --probs-mean nowhere/m.npy", "nowhere/m.npy"},
        {"attend --query qlong.npy --key klong.npy --value klong.npy --output y.npy --probs p.npy",
         "--probs|too large"},
        {ATTEND "--output y.npy --interval q.npy", "--interval|f32|integers"},
        {ATTEND "--output y.npy --interval bools.npy", "--interval|bool"},
        {ATTEND "--output y.npy --interval two.npy", "interval"},
        {ATTEND "--output y.npy --interval pairs3.npy", "interval|3"},
        {ATTEND "--output y.npy --interval toofar.npy", "--interval|toofar.npy|2147483648"},
        {ATTEND "--output y.npy --offset n3.npy", "--offset|3|2"},
        {ATTEND "--output y.npy --offset nf.npy", "--offset|f32"},
        {ATTEND "--output y.npy --alibi slopes3.npy", "--alibi|3|4 heads"},
        {ATTEND "--output y.npy --alibi slopesnan.npy", "alibi|nan"},
        {ATTEND "--output y.npy --alibi two.npy", "--alibi|i32"},
        {ATTEND "--output y.npy --alibi q.npy", "--alibi|rank 4"},
        {ATTEND "--output y.npy --sink slopes3.npy", "--sink|3|4 heads"},
        {ATTEND "--output y.npy --sink sinksinf.npy", "sinks|inf"},
        {"attend --query q2.npy --key k2.npy --value v2.npy --heads 4 --output y.npy "
         "--query-offsets five.npy",
         "--query-offsets|five.npy|5|0"},
        {"attend --query q2.npy --key k2.npy --value v2.npy --heads 4 --output y.npy "
         "--query-offsets qo4.npy",
         "--query-offsets|4|5"},
        {"attend --query q2.npy --key k2.npy --value v2.npy --heads 4 --output y.npy "
         "--query-offsets qo5.npy",
         "--key-offsets|7|5"},
        {"attend --query q2.npy --key k2.npy --value v2.npy --heads 4 --output y.npy "
         "--query-offsets qo5.npy --key-offsets ko3.npy",
         "--key-offsets|2|1"},
        {"attend --query q3.npy --key k3.npy --value v3.npy --heads 4 --output y.npy "
         "--query-offsets qo5.npy",
         "5|4"},
        {"attend --query q2.npy --key k2.npy --value v2.npy --heads 4 --output y.npy "
         "--query-offsets qofall.npy",
         "--query-offsets|never falling"},
        {"attend --query q2.npy --key k2.npy --value v2.npy --heads 4 --output y.npy "
         "--query-offsets n22.npy",
         "--query-offsets|rank 2"},
    };
    /* Without rows or keys to read, and more weights than a size counts. */
    cli_write("qlong.npy", ARRAY_F32, 4, (int64_t[]){1, 1 << 30, 8, 0}, (double[1]){0});
    cli_write("klong.npy", ARRAY_F32, 4, (int64_t[]){1, 1 << 30, 1, 0}, (double[1]){0});
    cli_write("qo4.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){0, 4});
    cli_write("qo5.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){0, 5});
    cli_write("ko3.npy", ARRAY_I32, 1, (int64_t[]){3}, (double[]){0, 5, 7});
    cli_write("qofall.npy", ARRAY_I32, 1, (int64_t[]){4}, (double[]){0, 3, 2, 5});
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (check_case("cli/refused/%s", table[i][0]))
            cli_refused(table[i][0], table[i][1]);
}

/* oneDNN does what it can, and names what it can't. */
static void onednn(void)
{
    struct outcome outcome;
    if (!check_case("cli/check/onednn and options"))
        return;
    cli_run("info", &outcome);
    if (strstr(outcome.out, "onednn absent")) {
        check_skip("cli/check/onednn and options", "this build has no oneDNN");
        return;
    }
    cli_run(CHECK_CORE "--against onednn --window 2,1 --alibi default --mask a16.npy " OUTPUTS,
            &outcome);
    CHECK(outcome.status == 0 && strstr(outcome.out, "out against onednn primitives: ") &&
              strstr(outcome.out, "probs against reference: ") && !strstr(outcome.out, "FAIL"),
          "exit %d: %s%s", outcome.status, outcome.out, outcome.err);
    cli_refused(CHECK_CORE "--against onednn --softcap 2", "onednn|softcap");
    cli_refused(CHECK_CORE "--against onednn --sink sinks.npy", "onednn|sink");
}

void check_cli_options(void)
{
    write_files();
    float_masks();
    same_meaning();
    checks();
    weights();
    packed();
    refusals();
    onednn();
}
