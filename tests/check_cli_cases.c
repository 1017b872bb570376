/* Faults that systems of this kind have had, through the command: small inputs whose answers are
 * worked out by hand. The same ids on every row through the API are check_cases'. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"

#define CASE "attend --query cq.npy --key ck.npy --value cv.npy --layout bhld --output y.npy "

/* (1, heads, length, size) of one number, or of key numbers j for value NAN. */
static void write_flat(const char *name, int64_t heads, int64_t length, int64_t size, double value)
{
    double *values = calloc((size_t)(heads * length * size + 1), sizeof *values);
    for (int64_t n = 0; values && n < heads * length * size; n++)
        values[n] = isnan(value) ? (double)(n / size % length) : value;
    cli_write(name, ARRAY_F32, 4, (int64_t[]){1, heads, length, size}, values);
    free(values);
}

/* Zero queries weigh all keys alike; values number the keys. */
static void plain(int64_t queries, int64_t keys, int64_t heads)
{
    write_flat("cq.npy", heads, queries, 4, 0);
    write_flat("ck.npy", 1, keys, 4, 1);
    write_flat("cv.npy", 1, keys, 1, NAN);
}

/* Runs; element n of the output must be expected[n] within tolerance (NaN: is not looked at). */
static void expect(const char *words, const double *expected, int64_t count, double tolerance)
{
    struct array out;
    struct outcome outcome;
    cli_run(words, &outcome);
    CHECK(outcome.status == 0, "%s: exit %d: %s", words, outcome.status, outcome.err);
    float *got = cli_read("y.npy", &out);
    CHECK(got && array_count(&out) == count, "%s: the output's size", words);
    for (int64_t n = 0; got && n < count; n++)
        CHECK(isnan(expected[n]) || fabs((double)got[n] - expected[n]) <= tolerance,
              "%s: element %lld is %.9g, %.9g expected", words, (long long)n, (double)got[n],
              expected[n]);
    array_free(&out);
    remove(folder_path("y.npy"));
}

static int enter(const char *id)
{
    return check_case("cli/cases/%s", id);
}

static void empty_rows(void)
{
    if (enter("A01 a band of ten keys")) {
        enum { L = 130 };
        static double mask[L * L], ones[L];
        for (int i = 0; i < L; i++) {
            ones[i] = 1;
            for (int j = 0; j < L; j++)
                mask[i * L + j] = j >= i - 9 && j <= i ? 0 : -INFINITY;
        }
        write_flat("cq.npy", 1, L, 4, 1);
        write_flat("ck.npy", 1, L, 4, 1);
        write_flat("cv.npy", 1, L, 1, 1);
        cli_write("cm.npy", ARRAY_F32, 2, (int64_t[]){L, L}, mask);
        expect(CASE "--mask cm.npy", ones, L, 0);
        expect(CASE "--causal top-left --window 9,-1", ones, L, 0);
    }
    if (enter("A03 a row that sees nothing")) {
        double mask[6 * 10], expected[6];
        for (int i = 0; i < 6; i++) {
            expected[i] = i == 5 ? 0 : i / 2.0;
            for (int j = 0; j < 10; j++)
                mask[i * 10 + j] = i < 5 && j <= i;
        }
        plain(6, 10, 1);
        cli_write("cm.npy", ARRAY_BOOL, 2, (int64_t[]){6, 10}, mask);
        expect(CASE "--mask cm.npy", expected, 6, 1e-6);
    }
    if (enter("A05 the lowest finite mask")) {
        static const double lowest = -3.4028234663852886e38;
        const double mask[9] = {lowest, lowest, lowest, 1, 1, 1, 1, 1, 1};
        plain(3, 3, 1);
        cli_write("cm.npy", ARRAY_F32, 2, (int64_t[]){3, 3}, mask);
        expect(CASE "--mask cm.npy", (double[]){1, 1, 1}, 3, 1e-6);
    }
    if (enter("A15 lowest and infinite masks in one row")) {
        static const double lowest = -3.4028234663852886e38;
        const double mask[5] = {lowest, -INFINITY, -INFINITY, lowest, lowest};
        plain(1, 5, 1);
        cli_write("cm.npy", ARRAY_F32, 1, (int64_t[]){5}, mask);
        expect(CASE "--mask cm.npy", (double[]){7.0 / 3}, 1, 1e-5);
    }
    if (enter("A17 a mask that allows all; scales 0 and below")) {
        const double mask[4] = {1, 1, 1, 1};
        plain(4, 4, 1);
        cli_write("cm.npy", ARRAY_BOOL, 1, (int64_t[]){4}, mask);
        expect(CASE "--mask cm.npy --causal top-left", (double[]){0, 0.5, 1, 1.5}, 4, 1e-6);
        expect(CASE "--scale 0", (double[]){1.5, 1.5, 1.5, 1.5}, 4, 1e-6);
        expect(CASE "--scale -0.5", (double[]){1.5, 1.5, 1.5, 1.5}, 4, 1e-6);
    }
    if (enter("A11 sequences without rows or keys")) {
        cli_write("cl.npy", ARRAY_I32, 1, (int64_t[]){4}, (double[]){0, 3, 3, 5});
        cli_write("co.npy", ARRAY_I32, 1, (int64_t[]){4}, (double[]){0, 0, 2, 6});
        cli_write("cq.npy", ARRAY_F32, 3, (int64_t[]){5, 1, 4}, (double[20]){0});
        cli_write("ck.npy", ARRAY_F32, 3, (int64_t[]){6, 1, 4}, (double[24]){0});
        cli_write("cv.npy", ARRAY_F32, 3, (int64_t[]){6, 1, 1}, (double[]){0, 1, 2, 3, 4, 5});
        expect("attend --query cq.npy --key ck.npy --value cv.npy --output y.npy --query-offsets "
               "cl.npy --key-offsets co.npy",
               (double[]){0, 0, 0, 3.5, 3.5}, 5, 1e-6);
    }
}

static void masks(void)
{
    if (enter("B07 every broadcast")) {
        for (unsigned full = 0; full < 16; full++) {
            const int64_t shape[4] = {1, full & 2 ? 4 : 1, full & 4 ? 3 : 1, full & 8 ? 5 : 1};
            double mask[60], all[60];
            for (int n = 0; n < 60; n++)
                mask[n] = n % 3 - 1;
            for (int h = 0; h < 4; h++)
                for (int i = 0; i < 3; i++)
                    for (int j = 0; j < 5; j++)
                        all[(h * 3 + i) * 5 + j] =
                            mask[((full & 2 ? h : 0) * shape[2] + (full & 4 ? i : 0)) * shape[3] +
                                 (full & 8 ? j : 0)];
            write_flat("cq.npy", 4, 3, 4, 0.5);
            write_flat("ck.npy", 1, 5, 4, NAN);
            write_flat("cv.npy", 1, 5, 1, NAN);
            cli_write("cm.npy", ARRAY_F16, 4, shape, mask);
            cli_write("cm2.npy", ARRAY_F16, 4, (int64_t[]){1, 4, 3, 5}, all);
            cli_done("attend --query cq.npy --key ck.npy --value cv.npy --layout bhld --output "
                     "a.npy --mask cm.npy");
            cli_done("attend --query cq.npy --key ck.npy --value cv.npy --layout bhld --output "
                     "b.npy --mask cm2.npy");
            cli_same("a.npy", "b.npy");
        }
    }
    if (enter("B11 a mask with holes")) {
        plain(1, 5, 1);
        cli_write("cm.npy", ARRAY_U8, 2, (int64_t[]){1, 5}, (double[]){1, 0, 0, 1, 0});
        expect(CASE "--mask cm.npy", (double[]){1.5}, 1, 1e-6);
    }
}

static void places(void)
{
    if (enter("C01 where causality is anchored")) {
        plain(1, 4, 1);
        expect(CASE "--causal top-left", (double[]){0}, 1, 0);
        expect(CASE "--causal bottom-right", (double[]){1.5}, 1, 1e-6);
        expect(CASE "--causal 1", (double[]){0.5}, 1, 1e-6);
        expect(CASE "--causal -1", (double[]){0}, 1, 0);
    }
    if (enter("C11 rows outside the band")) {
        double expected[129];
        for (int i = 0; i < 129; i++) {
            int count = 0, sum = 0;
            for (int j = 0; j < 40; j++)
                if (i - 89 - 32 <= j && j <= i - 89 + 64) {
                    count++;
                    sum += j;
                }
            expected[i] = count ? (double)sum / count : 0;
        }
        plain(129, 40, 1);
        expect(CASE "--offset -89 --window 32,64", expected, 129, 1e-4);
    }
    if (enter("C13 a window counts from the row's place")) {
        plain(4, 14, 1);
        expect(CASE "--causal bottom-right --window 2,-1", (double[]){9, 10, 11, 12}, 4, 1e-5);
        expect(CASE "--causal 10 --window 0,-1", (double[]){10, 11, 12, 13}, 4, 1e-5);
    }
    if (enter("C15 windows below -1")) {
        plain(1, 4, 1);
        cli_refused(CASE "--window -3,0", "--window|-3,0");
        cli_refused(CASE "--window 0,-9223372036854775808", "--window");
        expect(CASE "--window -1,-1", (double[]){1.5}, 1, 1e-6);
    }
    if (enter("L05 lse of a sequence without keys")) {
        struct array lse;
        cli_write("cl.npy", ARRAY_I32, 1, (int64_t[]){4}, (double[]){0, 1, 2, 3});
        cli_write("co.npy", ARRAY_I32, 1, (int64_t[]){4}, (double[]){0, 3, 3, 8});
        cli_write("cq.npy", ARRAY_F32, 3, (int64_t[]){3, 1, 4}, (double[12]){0});
        cli_write("ck.npy", ARRAY_F32, 3, (int64_t[]){8, 1, 4}, (double[32]){0});
        cli_done("attend --query cq.npy --key ck.npy --value ck.npy --output a.npy --lse l.npy "
                 "--query-offsets cl.npy --key-offsets co.npy");
        float *l = cli_read("l.npy", &lse);
        CHECK(l && fabs((double)l[0] - log(3)) < 1e-6 && l[1] == -INFINITY &&
                  fabs((double)l[2] - log(5)) < 1e-6,
              "lse");
        array_free(&lse);
    }
}

static void scores(void)
{
    if (enter("D01 padding does not pass the cap")) {
        for (int64_t keys = 1; keys < 140; keys += 16) {
            write_flat("cq.npy", 1, 1, 4, 0);
            write_flat("ck.npy", 1, keys, 4, 0);
            write_flat("cv.npy", 1, keys, 1, 1);
            expect(CASE "--softcap 1", (double[]){1}, 1, 0);
        }
    }
    if (enter("D03 bias after cap")) {
        plain(1, 2, 1);
        cli_write("cm.npy", ARRAY_BF16, 1, (int64_t[]){2}, (double[]){0, 5});
        expect(CASE "--softcap 2 --mask cm.npy", (double[]){exp(5) / (1 + exp(5))}, 1, 1e-6);
    }
    if (enter("D05 scale before cap")) {
        write_flat("cq.npy", 1, 1, 1, 3);
        write_flat("ck.npy", 1, 2, 1, NAN);
        write_flat("cv.npy", 1, 2, 1, NAN);
        double w = 1 / (1 + exp(-1.7 * tanh(0.37 * 3 / 1.7)));
        expect(CASE "--scale 0.37 --softcap 1.7", (double[]){w}, 1, 1e-6);
    }
    if (enter("D07, D09 slopes")) {
        static const double six[] = {1 / 4.0, 1 / 16.0, 1 / 64.0, 1 / 256.0, 1 / 2.0, 1 / 8.0};
        double expected[6];
        for (int h = 0; h < 6; h++)
            expected[h] = 1 / (1 + exp(-six[h]));
        plain(1, 2, 6);
        expect(CASE "--alibi default", expected, 6, 1e-6);
        for (int h = 0; h < 4; h++)
            expected[h] = 1 / (1 + exp(-ldexp(1, -2 * h - 2)));
        plain(1, 2, 4);
        expect(CASE "--alibi default --offset 7", expected, 4, 1e-6);
    }
    if (enter("D11 heads of a group, side by side")) {
        write_flat("cq.npy", 6, 1, 4, 0);
        write_flat("ck.npy", 2, 3, 4, 0);
        cli_write("cv.npy", ARRAY_F32, 4, (int64_t[]){1, 2, 3, 1}, (double[]){0, 0, 0, 1, 1, 1});
        expect(CASE, (double[]){0, 0, 0, 1, 1, 1}, 6, 0);
    }
    if (enter("E01 equal keys give the value")) {
        for (int64_t keys = 1; keys <= 7; keys += 6) {
            write_flat("cq.npy", 1, 1, 64, 133120);
            write_flat("ck.npy", 1, keys, 64, 133120);
            write_flat("cv.npy", 1, keys, 1, 133120);
            expect(CASE, (double[]){133120}, 1, 0);
            expect(CASE "--softcap 30 --window 6,6", (double[]){133120}, 1, 0);
        }
    }
    if (enter("a sink takes weight and gives nothing")) {
        plain(1, 4, 1);
        cli_write("cs.npy", ARRAY_F32, 1, (int64_t[]){1}, (double[]){0});
        expect(CASE "--sink cs.npy", (double[]){6 / 5.0}, 1, 1e-6);
        cli_write("cs.npy", ARRAY_BF16, 1, (int64_t[]){1}, (double[]){-INFINITY});
        expect(CASE "--sink cs.npy", (double[]){1.5}, 1, 1e-6);
    }
}

static void shapes(void)
{
    if (enter("H01 no keys, no rows")) {
        write_flat("cq.npy", 2, 3, 4, 0);
        write_flat("ck.npy", 1, 0, 4, 0);
        write_flat("cv.npy", 1, 0, 1, 0);
        expect(CASE "--softcap 3 --alibi default --window 1,1", (double[6]){0}, 6, 0);
        write_flat("cq.npy", 2, 0, 4, 0);
        write_flat("ck.npy", 1, 3, 4, 0);
        write_flat("cv.npy", 1, 3, 1, 0);
        expect(CASE "--softcap 3 --alibi default --window 1,1", NULL, 0, 0);
    }
    if (enter("H03 lengths that differ; H09 heads that don't divide")) {
        write_flat("cq.npy", 3, 2, 4, 0);
        write_flat("ck.npy", 1, 13, 4, 0);
        write_flat("cv.npy", 1, 12, 4, 0);
        cli_refused(CASE, "12");
        write_flat("ck.npy", 2, 13, 4, 0);
        write_flat("cv.npy", 2, 13, 4, 0);
        cli_refused(CASE, "3");
    }
    if (enter("L09 positions in a buffer of keys")) {
        double expected[96], places[96];
        for (int i = 0; i < 96; i++) {
            expected[i] = i / 2.0;
            places[i] = 0;
        }
        plain(96, 96, 1);
        cli_write("co.npy", ARRAY_I64, 1, (int64_t[]){1}, places);
        expect(CASE "--causal co.npy", expected, 96, 1e-4);
    }
}

void check_cli_cases(void)
{
    empty_rows();
    masks();
    places();
    scores();
    shapes();
}
