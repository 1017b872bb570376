/* Keys and values through a cache: the same bytes as without one, whatever is appended at a time,
 * how many rows are decoded one by one and where the pages end; the double reference on what the
 * narrower types hold; and what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"

/* The files of check_cli_options.c and check_cli_layers.c, which run before. */
#define LAYER "run --weights layer.safetensors --input q2.npy --heads 4 "
#define NORMED "run --weights normed.safetensors --input q2.npy --heads 4 "
#define TORCH "run --weights torch.safetensors --input q2.npy --heads 4 "
#define PACKED                                                                                     \
    "attend --query cacheq.npy --key cachek.npy --value cachev.npy --query-offsets cacheqs.npy "   \
    "--key-offsets cacheks.npy "
#define BHLD "attend --query cacheqb.npy --key cachekb.npy --value cachevb.npy --layout bhld "
#define PACKED_LAYER LAYER "--query-offsets cachels.npy "
#define MANY                                                                                       \
    "--window 3,1 --interval both.npy --softcap 1.5 --alibi default --sink sinks.npy --mask "      \
    "a16.npy --scale 0.7 "
#define LENGTHS "--query-lengths cacheql.npy --key-lengths cachekl.npy "

static void write_files(void)
{
    double values[10 * 32], mask[2 * 4 * 5 * 7];
    uint64_t state = check_seed + 19;
    for (int n = 0; n < 10 * 32; n++)
        values[n] = check_normal(&state);
    for (int n = 0; n < 2 * 4 * 5 * 7; n++)
        mask[n] = n * 7 % 5 != 1;
    cli_write("cacheq.npy", ARRAY_F32, 3, (int64_t[]){9, 4, 8}, values);
    cli_write("cachek.npy", ARRAY_F32, 3, (int64_t[]){10, 2, 8}, values + 31);
    cli_write("cachev.npy", ARRAY_F32, 3, (int64_t[]){10, 2, 6}, values + 77);
    cli_write("cacheqb.npy", ARRAY_F32, 4, (int64_t[]){2, 4, 5, 8}, values);
    cli_write("cachekb.npy", ARRAY_F32, 4, (int64_t[]){2, 2, 7, 8}, values + 9);
    cli_write("cachevb.npy", ARRAY_F32, 4, (int64_t[]){2, 2, 7, 6}, values + 13);
    cli_write("cacheqs.npy", ARRAY_I32, 1, (int64_t[]){5}, (double[]){0, 1, 6, 6, 9});
    cli_write("cacheks.npy", ARRAY_I32, 1, (int64_t[]){5}, (double[]){0, 4, 4, 7, 10});
    cli_write("cachels.npy", ARRAY_I32, 1, (int64_t[]){4}, (double[]){0, 2, 2, 5});
    cli_write("cacheql.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){5, 2});
    cli_write("cachekl.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){6, 3});
    cli_write("cacheone.npy", ARRAY_I32, 1, (int64_t[]){1}, (double[]){4});
    cli_write("cachetwo.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){2, -1});
    cli_write("cachem.npy", ARRAY_BOOL, 4, (int64_t[]){2, 4, 5, 7}, mask);
    cli_write("cachem1.npy", ARRAY_BOOL, 4, (int64_t[]){2, 1, 1, 7}, mask);
    cli_write("cachem2.npy", ARRAY_BOOL, 1, (int64_t[]){7}, mask);
    cli_write("cachemk.npy", ARRAY_BOOL, 4, (int64_t[]){1, 4, 5, 1}, mask);
    cli_write("cachemq.npy", ARRAY_BOOL, 2, (int64_t[]){5, 5}, mask);
    cli_write("cachemp.npy", ARRAY_BOOL, 4, (int64_t[]){4, 1, 5, 4}, mask);
}

static void run_with(const char *words, const char *more, const char *prefix, int probs)
{
    char line[2048], weights[128] = "";
    if (probs)
        snprintf(weights, sizeof weights, "--probs %sp.npy --probs-mean %sm.npy", prefix, prefix);
    snprintf(line, sizeof line, "%s%s --output %s.npy --lse %sl.npy %s", words, more, prefix,
             prefix, weights);
    cli_done(line);
}

static const char *const ways[] = {
    "--cache paged:16 --append 3",
    "--cache paged:1 --append 1 --threads 2",
    "--cache contiguous --cache-capacity 1000 --decode 2",
    "--cache paged:2 --append 2 --decode 3",
    "--decode 5 --isa scalar",
};
enum { WAYS = sizeof ways / sizeof *ways };

/* All outputs are the same bytes in every way. */
static void same(const char *words)
{
    int probs = !strstr(words, "--query-offsets");
    static const char *const first[] = {"a.npy", "al.npy", "ap.npy", "am.npy"};
    static const char *const second[] = {"b.npy", "bl.npy", "bp.npy", "bm.npy"};
    if (!check_case("cli/cache/%s", words))
        return;
    run_with(words, "", "a", probs);
    for (int way = 0; way < WAYS; way++) {
        run_with(words, ways[way], "b", probs);
        for (int i = 0; i < (probs ? 4 : 2); i++) {
            cli_same(first[i], second[i]);
            remove(folder_path(second[i]));
        }
    }
}

static void attends(void)
{
    static const char *const table[] = {
        ATTEND,
        ATTEND "--causal bottom-right ",
        ATTEND "--causal top-left ",
        ATTEND "--causal -2 ",
        ATTEND "--causal cachetwo.npy " MANY,
        ATTEND "--causal bottom-right " LENGTHS,
        ATTEND LENGTHS "--offset 1 " MANY,
        ATTEND "--offset -1 --window 2,2 --alibi default ",
        ATTEND "--mask cachem.npy --causal 1 ",
        ATTEND "--mask cachem1.npy ",
        ATTEND "--mask cachem2.npy --causal bottom-right ",
        ATTEND "--mask cachemk.npy ",
        "attend --query q16.npy --key k16.npy --value v16.npy --causal bottom-right ",
        BHLD "--causal 2 ",
        "attend --query q3.npy --key k3.npy --value v3.npy --heads 4 ",
        "attend --query q2.npy --key k2.npy --value v2.npy --heads 4 ",
        PACKED,
        PACKED "--causal bottom-right ",
        PACKED "--causal 0 --window 2,-1 --mask cachemp.npy --sink sinks.npy ",
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        same(table[i]);
}

static void runs(void)
{
    static const char *const table[] = {
        LAYER,
        LAYER "--rope 1e4 --causal top-left ",
        LAYER "--rope 1e4 ",
        LAYER "--rope 1e4 --causal 2 --window 2,1 ",
        LAYER "--rope 1e4 --rope-style interleaved --positions even.npy --causal top-left ",
        LAYER "--rope 1e4 --key-lengths cacheone.npy --causal top-left ",
        LAYER "--rope 1e4 --query-lengths cacheone.npy --causal bottom-right --mask cachemq.npy ",
        LAYER "--key k2w.npy --causal bottom-right --rope 1e4 ",
        LAYER "--key k2w.npy --value k2w.npy ",
        NORMED "--rope 1e6 --causal top-left --alibi default --softcap 5 ",
        TORCH,
        TORCH "--add-zero-attn --causal top-left --window 1,0 ",
        PACKED_LAYER,
        PACKED_LAYER "--rope 1e4 --causal top-left ",
        PACKED_LAYER "--rope 1e4 --positions even.npy --window 1,1 ",
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        same(table[i]);
}

/* Decoding has to go through the cache: the plans of the first step and of the last are shown. */
static void explained(void)
{
    struct outcome outcome;
    if (!check_case("cli/cache/--explain"))
        return;
    cli_run(ATTEND "--causal bottom-right --decode 2 --output a.npy --explain", &outcome);
    CHECK(outcome.status == 0 && strstr(outcome.out, "step 1 of 3: 6 rows, 10 new keys\n") &&
              strstr(outcome.out, "step 3 of 3: 2 rows, 2 new keys\n"),
          "exit %d: %s%s", outcome.status, outcome.out, outcome.err);
    cli_run(LAYER "--causal top-left --append 2 --output a.npy --explain --repeat 2", &outcome);
    CHECK(outcome.status == 0 && strstr(outcome.out, "step 1 of 3: 2 rows, 2 new keys\n") &&
              strstr(outcome.out, "step 3 of 3: 1 rows, 1 new keys\n") &&
              strstr(outcome.out, "GFLOP/s"),
          "exit %d: %s%s", outcome.status, outcome.out, outcome.err);
}

static void expect(const char *words, int status, const char *printed)
{
    struct outcome outcome;
    if (!check_case("cli/cache/%s", words))
        return;
    cli_run(words, &outcome);
    CHECK(outcome.status == status && outcome.err[0] == '\0', "exit %d, %d expected: %s%.300s",
          outcome.status, status, outcome.out, outcome.err);
    CHECK(strstr(outcome.out, printed), "'%s' expected in: %.600s", printed, outcome.out);
    CHECK(status || !strstr(outcome.out, "FAIL"), "%s", outcome.out);
}

#define OUTPUTS "--lse l.npy --probs p.npy --probs-mean m.npy "
#define CHECKED "check --weights layer.safetensors --input q2.npy --heads 4 "
#define CHECKED_TORCH "check --weights torch.safetensors --input q2.npy --heads 4 --add-zero-attn "
#define CHECKED_PACKED                                                                             \
    "check --query cacheq.npy --key cachek.npy --value cachev.npy --query-offsets cacheqs.npy "    \
    "--key-offsets cacheks.npy "

#define CHECKED_BHLD                                                                               \
    "check --query cacheqb.npy --key cachekb.npy --value cachevb.npy --layout bhld "

static void checks(void)
{
    static const char *const table[] = {
        CHECK_CORE OUTPUTS "--cache contiguous ",
        CHECK_CORE OUTPUTS "--cache-dtype f16 --decode 2 ",
        CHECK_CORE OUTPUTS "--cache paged:4 --cache-dtype bf16 --causal bottom-right " LENGTHS,
        CHECK_CORE OUTPUTS "--cache-dtype int8 --causal 1 --append 2 " MANY,
        CHECK_CORE OUTPUTS "--cache-dtype f32,int8 --decode 1 ",
        CHECK_CORE OUTPUTS "--cache-dtype int8,f16 --cache paged:2 --mask cachem.npy ",
        CHECKED OUTPUTS "--cache contiguous --decode 5 --causal top-left --rope 1e4 ",
        CHECKED OUTPUTS "--cache-dtype f16 --decode 2 --causal top-left --rope 1e4 ",
        CHECKED OUTPUTS "--cache-dtype int8 --cache paged:2 --append 2 --rope 1e4 --offset 1 ",
        CHECKED OUTPUTS "--cache-dtype bf16,int8 --key k2w.npy --causal bottom-right ",
        CHECKED_TORCH OUTPUTS "--cache-dtype f16 ",
        CHECKED_PACKED "--cache-dtype int8 --append 2 --lse l.npy",
        CHECKED_BHLD "--cache-dtype int8,f16 --decode 2",
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        expect(table[i], 0, ": ok\n");
    cli_done(ATTEND "--output right.npy");
    expect(CHECK_CORE "--decode 3 --against right.npy", 0, "out against right.npy: ");
    /* What storing costs is no fault, whether the file knows of it or not; anything else is. */
    expect(CHECK_CORE "--cache-dtype int8 --against right.npy", 0,
           "storing as int8 moves it by up to");
    expect(CHECK_CORE "--cache-dtype f16,bf16 --against right.npy", 0, "out against right.npy: ");
    expect(CHECK_CORE "--cache-dtype int8 --against right.npy --scale 1", 1, "FAIL");
    expect(CHECK_CORE "--cache-dtype f16 --against far.npy", 1, "FAIL (1 of 240 outside)\n");
    cli_done(ATTEND "--cache-dtype int8 --output right8.npy");
    expect(CHECK_CORE "--cache-dtype int8 --decode 1 --against right8.npy", 0, ": ok\n");
    expect(CHECK_CORE "--cache-dtype f16 --against right8.npy", 1, "FAIL");
    expect(CHECK_CORE "--cache-dtype int8,bf16 --cache paged:2", 0, "stored key against key: ");
    cli_done(LAYER "--causal top-left --output layer.npy");
    expect(CHECKED "--causal top-left --cache-dtype int8 --append 2 --against layer.npy", 0,
           "out against layer.npy: ");
    expect(CHECKED "--cache-dtype int8 --append 2 --against layer.npy", 1, "FAIL");
}

static void onednn(void)
{
    struct outcome outcome;
    if (!check_case("cli/cache/onednn"))
        return;
    cli_run("info", &outcome);
    if (strstr(outcome.out, "onednn absent")) {
        check_skip("cli/cache/onednn", "this build has no oneDNN");
        return;
    }
    static const char *const table[] = {
        CHECK_CORE "--against onednn --causal bottom-right --decode 3",
        CHECK_CORE "--against onednn --cache-dtype int8,bf16 --cache paged:2",
        CHECKED "--against onednn --cache contiguous --append 2",
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        cli_run(table[i], &outcome);
        CHECK(outcome.status == 0 && strstr(outcome.out, "out against onednn primitives: ") &&
                  !strstr(outcome.out, "FAIL"),
              "%s: exit %d: %s%s", table[i], outcome.status, outcome.out, outcome.err);
    }
    cli_refused(CHECKED "--against onednn --cache-dtype f16", "--against onednn|--cache-dtype");
}

static void refusals(void)
{
    static const char *const table[][2] = {
        {"--cache", "--cache|missing"},
        {"--cache paged", "--cache|paged|paged:SIZE"},
        {"--cache paged:", "--cache|paged:SIZE"},
        {"--cache paged:0", "--cache|paged:0"},
        {"--cache paged:3", "--cache|paged:3|power of two"},
        {"--cache paged:512", "--cache|paged:512|256"},
        {"--cache paged:-4", "--cache|paged:-4"},
        {"--cache paged:4k", "--cache|paged:4k"},
        {"--cache rolling", "--cache|rolling|contiguous"},
        {"--cache-capacity 0", "--cache-capacity|0"},
        {"--cache-capacity 6", "--cache-capacity|6|7"},
        {"--cache paged:4 --cache-capacity 3", "--cache-capacity|3|7"},
        {"--cache-capacity x", "--cache-capacity|x"},
        {"--cache-dtype f64", "--cache-dtype|f64|int8"},
        {"--cache-dtype f16,", "--cache-dtype|f16,"},
        {"--cache-dtype ,f16", "--cache-dtype|,f16"},
        {"--cache-dtype f16,f16,f16", "--cache-dtype|f16,f16,f16"},
        {"--cache-dtype i8", "--cache-dtype|i8|int8"},
        {"--append 0", "--append|0"},
        {"--append -1", "--append|-1"},
        {"--decode 0", "--decode|0"},
        {"--decode 6", "--decode|6|5"},
        {"--decode 1.5", "--decode|1.5"},
        {"--cache contiguous --offset 9223372036854775807", "--cache|9223372036854775807"},
        {"--cache contiguous --key-lengths two.npy --mask mq.npy", "mask"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char words[512];
        if (!check_case("cli/cache/refused/%s", table[i][0]))
            continue;
        snprintf(words, sizeof words, "%s--output y.npy %s", ATTEND, table[i][0]);
        cli_refused(words, table[i][1]);
    }
    if (check_case("cli/cache/refused/run")) {
        cli_refused(LAYER "--output y.npy --decode 6", "--decode|6|5");
        cli_refused(LAYER "--output y.npy --cache-capacity 4", "--cache-capacity|4|5");
        cli_refused("info --cache contiguous", "--cache|unknown option");
    }
}

void check_cli_cache(void)
{
    write_files();
    attends();
    runs();
    explained();
    checks();
    onednn();
    refusals();
}
