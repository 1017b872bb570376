/* What options and file types mean: equal bytes where two ways of saying mean the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"

static void write_masks(void)
{
    double bits[35], added[35], offsets[2] = {2, 2}, full[2] = {5, 5}, keys[2] = {7, 7};
    for (int i = 0; i < 35; i++) {
        bits[i] = (i * 7) % 3 != 0;
        added[i] = bits[i] != 0 ? 0 : -INFINITY;
    }
    const int64_t shape[2] = {5, 7}, four[4] = {1, 1, 5, 7};
    cli_write("mb.npy", ARRAY_BOOL, 2, shape, bits);
    cli_write("mu.npy", ARRAY_U8, 2, shape, bits);
    cli_write("mi.npy", ARRAY_I8, 2, shape, bits);
    cli_write("mb4.npy", ARRAY_BOOL, 4, four, bits);
    cli_write("mf.npy", ARRAY_F32, 2, shape, added);
    cli_write("mh.npy", ARRAY_F16, 2, shape, added);
    cli_write("md.npy", ARRAY_F64, 2, shape, added);
    cli_write("m01.npy", ARRAY_F32, 2, shape, bits);
    for (int i = 0; i < 35; i++)
        added[i] = bits[i] != 0 ? 0 : -1e300;
    cli_write("mfar.npy", ARRAY_F64, 2, shape, added);
    for (int i = 0; i < 35; i++)
        added[i] = bits[i] != 0 ? 0 : -3.4028234663852886e38;
    cli_write("mmax.npy", ARRAY_F32, 2, shape, added);
    cli_write("two.npy", ARRAY_I32, 1, (int64_t[]){2}, offsets);
    cli_write("five.npy", ARRAY_I64, 1, (int64_t[]){2}, full);
    cli_write("seven.npy", ARRAY_I8, 1, (int64_t[]){2}, keys);
}

static void same_meaning(void)
{
    cli_equal(ATTEND, ATTEND "--causal none --layout blhd --heads 4 --kv-heads 2 --dtype f32");
    cli_equal(ATTEND, ATTEND "--query-lengths five.npy --key-lengths seven.npy --threads 2");
    cli_equal(ATTEND, ATTEND "--scale 0.35355338454246521");
    cli_equal(ATTEND "--scale 0.5", ATTEND "--scale 2 --scale=5e-1");
    cli_equal(ATTEND "--causal bottom-right", ATTEND "--causal 2");
    cli_equal(ATTEND "--causal two.npy", ATTEND "--causal=+2 --isa scalar");
    cli_equal(ATTEND "--causal top-left", ATTEND "--causal 0");
    cli_equal(ATTEND "--causal 9223372036854775807", ATTEND);
    cli_equal(ATTEND "--mask mb.npy", ATTEND "--mask mu.npy");
    cli_equal(ATTEND "--mask mb.npy", ATTEND "--mask mi.npy");
    cli_equal(ATTEND "--mask mb.npy", ATTEND "--mask mb4.npy");
    cli_equal(ATTEND "--mask mb.npy", ATTEND "--mask mf.npy");
    cli_equal(ATTEND "--mask mb.npy", ATTEND "--mask mh.npy");
    cli_equal(ATTEND "--mask mb.npy", ATTEND "--mask md.npy");
    cli_equal(ATTEND "--mask mfar.npy", ATTEND "--mask mmax.npy");
    cli_equal(ATTEND, "attend --value v.npy --key k.npy --query q.npy");
}

/* The output has the query's type and rank. */
static void types(void)
{
    static const struct {
        const char *words;
        enum array_type type;
        int rank;
        double tolerance;
    } table[] = {
        {"attend --query q16.npy --key k16.npy --value v16.npy", ARRAY_F16, 4, 8e-3},
        {"attend --query qb16.npy --key kb16.npy --value vb16.npy", ARRAY_BF16, 4, 6e-2},
        {"attend --query q64.npy --key k64.npy --value v64.npy", ARRAY_F64, 4, 1e-5},
        {"attend --query q3.npy --key k3.npy --value v3.npy --heads 4", ARRAY_F32, 3, 0},
        {"attend --query q3.npy --key k3.npy --value v3.npy --head-size 8", ARRAY_F32, 3, 0},
        {"attend --query q2.npy --key k2.npy --value v2.npy --heads 4 --kv-heads 2", ARRAY_F32, 2,
         0},
    };
    cli_done(ATTEND "--output a.npy");
    struct array expected, got;
    float *truth = cli_read("a.npy", &expected);
    for (size_t i = 0; truth && i < sizeof table / sizeof *table; i++) {
        char words[256], error[ERROR_SIZE];
        struct array floats = {0};
        if (!check_case("cli/types/%s", table[i].words))
            continue;
        snprintf(words, sizeof words, "%s --output b.npy", table[i].words);
        cli_done(words);
        if (!cli_read("b.npy", &got))
            continue;
        CHECK(got.type == table[i].type && got.rank == table[i].rank, "%s, rank %d",
              array_type_name(got.type), got.rank);
        CHECK(array_convert(&floats, &got, ARRAY_F32, error) == 0, "%s", error);
        for (int64_t n = 0, count = array_count(&got); n < count; n++)
            if (!(fabs(((float *)floats.data)[n] - truth[n]) <= table[i].tolerance)) {
                CHECK(0, "element %lld: %g, %g expected", (long long)n, ((float *)floats.data)[n],
                      truth[n]);
                break;
            }
        array_free(&floats);
        array_free(&got);
    }
    array_free(&expected);
}

static void transpose(const char *from, const char *to)
{
    struct array array;
    float *values = cli_read(from, &array);
    if (!values)
        return;
    int64_t *s = array.shape, shape[4] = {s[0], s[2], s[1], s[3]};
    double turned[512];
    for (int64_t n = 0; n < s[0] * s[1] * s[2] * s[3]; n++) {
        int64_t d = n % s[3], h = n / s[3] % s[2], l = n / s[3] / s[2] % s[1],
                b = n / s[3] / s[2] / s[1];
        turned[((b * s[2] + h) * s[1] + l) * s[3] + d] = values[n];
    }
    cli_write(to, ARRAY_F32, 4, shape, turned);
    array_free(&array);
}

static void layouts(void)
{
    if (!check_case("cli/layout"))
        return;
    transpose("q.npy", "qt.npy");
    transpose("k.npy", "kt.npy");
    transpose("v.npy", "vt.npy");
    cli_done(ATTEND "--output a.npy --causal bottom-right");
    transpose("a.npy", "at.npy");
    cli_done("attend --query qt.npy --key kt.npy --value vt.npy --layout bhld --output b.npy "
             "--causal bottom-right");
    cli_same("at.npy", "b.npy");
}

static void lengths(void)
{
    struct array out, lse;
    if (!check_case("cli/lengths"))
        return;
    cli_write("ql.npy", ARRAY_I64, 1, (int64_t[]){2}, (double[]){3, 5});
    cli_write("kl.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){7, 0});
    cli_done(ATTEND "--output a.npy --lse l.npy --query-lengths ql.npy --key-lengths kl.npy");
    float *o = cli_read("a.npy", &out), *l = cli_read("l.npy", &lse);
    if (!o || !l)
        return;
    CHECK(lse.rank == 3 && lse.shape[0] == 2 && lse.shape[1] == 4 && lse.shape[2] == 5,
          "lse's shape");
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 5; i++)
            for (int h = 0; h < 4; h++) {
                int empty = b == 1 || i >= 3;
                float sum = 0;
                for (int d = 0; d < 6; d++)
                    sum += fabsf(o[((b * 5 + i) * 4 + h) * 6 + d]);
                CHECK(empty ? sum == 0 : sum > 0, "row %d %d %d: %g", b, i, h, sum);
                CHECK((l[(b * 4 + h) * 5 + i] == -INFINITY) == empty, "lse %d %d %d", b, h, i);
            }
    array_free(&out);
    array_free(&lse);
}

/* A float mask of only 0 and 1 is added, with a warning. */
static void warning(void)
{
    struct outcome outcome;
    if (!check_case("cli/mask of 0 and 1"))
        return;
    cli_run(CHECK_CORE "--mask m01.npy", &outcome);
    CHECK(outcome.status == 0 && strstr(outcome.out, ": ok"), "exit %d: %s", outcome.status,
          outcome.out);
    CHECK(strncmp(outcome.err, "headway: warning: --mask", 24) == 0, "%s", outcome.err);
}

static void reports(void)
{
    struct outcome outcome;
    if (!check_case("cli/explain and repeat"))
        return;
    cli_run(ATTEND "--output a.npy --explain --repeat 3 --isa scalar --threads 1", &outcome);
    CHECK(outcome.status == 0 && outcome.err[0] == '\0', "exit %d: %s", outcome.status,
          outcome.err);
    CHECK(strstr(outcome.out, "scalar"), "the row is not named: %s", outcome.out);
    const char *time = strstr(outcome.out, "time ");
    double milliseconds = 0, rate = 0, share = 0;
    int runs = 0,
        fields = time ? sscanf(time, "time %lf ms (median of %d), %lf GFLOP/s, %lf of the FMA",
                               &milliseconds, &runs, &rate, &share)
                      : 0;
    CHECK(fields == 4 && milliseconds > 0 && runs == 3 && rate > 0 && share >= 0 && share < 1,
          "the line of --repeat: %s", outcome.out);
    cli_done(ATTEND "--output b.npy");
    cli_same("a.npy", "b.npy");
}

static void empty_shapes(void)
{
    static const double none[1];
    struct array out;
    if (!check_case("cli/empty"))
        return;
    cli_write("k0.npy", ARRAY_F32, 4, (int64_t[]){2, 0, 2, 8}, none);
    cli_write("q0.npy", ARRAY_F32, 4, (int64_t[]){2, 0, 4, 8}, none);
    cli_done("attend --query q.npy --key k0.npy --value k0.npy --output a.npy");
    float *o = cli_read("a.npy", &out);
    for (int64_t i = 0; o && i < 2 * 5 * 4 * 8; i++)
        CHECK(o[i] == 0, "element %lld is %g", (long long)i, o[i]);
    array_free(&out);
    cli_done("attend --query q0.npy --key k.npy --value v.npy --output a.npy");
    CHECK(cli_read("a.npy", &out) && out.shape[1] == 0 && out.shape[3] == 6, "the empty output");
    array_free(&out);
}

void check_cli_meaning(void)
{
    write_masks();
    same_meaning();
    types();
    layouts();
    lengths();
    warning();
    reports();
    empty_shapes();
}
