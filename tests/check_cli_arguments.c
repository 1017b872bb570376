#define _GNU_SOURCE

/* The command line: what is refused and how, help, version, info. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"
#include "headway/headway.h"

static const char *const wrong[][2] = {
    {"", "verb"},
    {"walk", "walk|run, attend, check or info"},
    {"--query q.npy", "--query"},
    {ATTEND "--output y.npy --colour red", "--colour|unknown option"},
    {"attend --quer q.npy --key k.npy --value v.npy --output y.npy", "--quer|unknown option"},
    {ATTEND "--output y.npy -t 1", "-t|unknown option"},
    {ATTEND "--output y.npy more", "more|belongs to no option"},
    {ATTEND "more --output y.npy", "more|belongs to no option"},
    {ATTEND "--output", "--output|missing"},
    {ATTEND "--output y.npy --explain=1", "--explain|none expected"},
    {ATTEND, "--output is missing"},
    {"attend --key k.npy --value v.npy --output y.npy", "--query is missing"},
    {"attend --query q.npy --value v.npy --output y.npy", "--key is missing"},
    {"attend --query q.npy --key k.npy --output y.npy", "--value is missing"},
    {"run --input q2.npy --output y.npy", "--weights is missing"},
    {"run --weights w.safetensors --output y.npy", "--input is missing"},
    {"run --weights w.safetensors --input q2.npy --value v.npy --output y.npy", "--value|--key"},
    {ATTEND "--output y.npy --weights w.safetensors", "--weights|unknown option"},
    {ATTEND "--output y.npy --layer 1", "--layer|unknown option"},
    {"run --weights w.safetensors --input q2.npy --output y.npy --layout blhd", "--layout"},
    {CHECK_CORE "--layer 1", "--layer"},
    {"check --weights w.safetensors --input q2.npy --query q.npy", "--query"},
    {ATTEND "--output y.npy --threads -1", "--threads|-1"},
    {ATTEND "--output y.npy --threads two", "--threads|two"},
    {ATTEND "--output y.npy --threads 1.5", "--threads|1.5"},
    {ATTEND "--output y.npy --threads 99999999999999999999", "--threads"},
    {ATTEND "--output y.npy --heads 0", "--heads|0"},
    {ATTEND "--output y.npy --heads 3", "--heads|3"},
    {ATTEND "--output y.npy --kv-heads 4", "--kv-heads|4"},
    {ATTEND "--output y.npy --head-size 6", "--head-size|6"},
    {ATTEND "--output y.npy --value-head-size 8", "--value-head-size|8"},
    {ATTEND "--output y.npy --repeat 0", "--repeat|0"},
    {ATTEND "--output y.npy --scale nan", "--scale|nan"},
    {ATTEND "--output y.npy --scale inf", "--scale|inf"},
    {ATTEND "--output y.npy --scale 1e39", "--scale|1e39"},
    {ATTEND "--output y.npy --scale 0,5", "--scale|0,5"},
    {ATTEND "--output y.npy --scale 1x", "--scale|1x"},
    {ATTEND "--output y.npy --scale 0x1p3", "--scale|0x1p3"},
    {ATTEND "--output y.npy --layout lbhd", "--layout|lbhd|blhd or bhld"},
    {ATTEND "--output y.npy --causal yes", "--causal|yes|bottom-right"},
    {ATTEND "--output y.npy --causal 1.5", "--causal|1.5"},
    {ATTEND "--output y.npy --dtype f16", "--dtype f16|not in this version"},
    {ATTEND "--output y.npy --dtype bf16", "--dtype bf16|not in this version"},
    {ATTEND "--output y.npy --dtype f31", "--dtype|f31"},
    {ATTEND "--output y.npy --isa vax", "vax"},
    {ATTEND "--output y.npy --isa v\033x", "v?x"},
    {ATTEND "--output y.npy --lse y.npy", "--lse|--output"},
    {ATTEND "--output y.npy --lse ./y.npy", "--lse|--output"},
    {ATTEND "--output y.npy --lse .//./y.npy", "--lse|--output"},
    {ATTEND "--output y.npy --probs y.npy", "--probs|--output"},
    {ATTEND "--output y.npy --lse l.npy --probs ./l.npy", "--probs|--lse"},
    {ATTEND "--output y.npy --probs p.npy --probs-mean p.npy", "--probs-mean|--probs"},
    {ATTEND "--output y.npy --window 3", "--window|3|LEFT,RIGHT"},
    {ATTEND "--output y.npy --window 3,", "--window|LEFT,RIGHT"},
    {ATTEND "--output y.npy --window -2,1", "--window|-2,1|-1"},
    {ATTEND "--output y.npy --window 1,-9223372036854775808", "--window|-1"},
    {ATTEND "--output y.npy --window 1,2,3", "--window|1,2,3"},
    {ATTEND "--output y.npy --window 1.5,2", "--window|1.5"},
    {ATTEND "--output y.npy --offset 1.5", "--offset|1.5|whole number"},
    {ATTEND "--output y.npy --offset top-left", "--offset|top-left"},
    {ATTEND "--output y.npy --offset 1 --causal top-left", "--offset|--causal"},
    {ATTEND "--output y.npy --softcap -1", "--softcap|-1|positive"},
    {ATTEND "--output y.npy --softcap inf", "--softcap|inf"},
    {ATTEND "--output y.npy --softcap 1e-40", "softcap"},
    {ATTEND "--output y.npy --softcap 1e-60", "--softcap|1e-60|positive"},
    {ATTEND "--output y.npy --alibi usual", "usual"},
    {ATTEND "--output y.npy --rope 1e4", "--rope|unknown option"},
    {ATTEND "--output y.npy --positions p.npy", "--positions|unknown option"},
    {ATTEND "--output y.npy --add-zero-attn", "--add-zero-attn|unknown option"},
    {CHECK_CORE "--rope 1e4", "--rope|not an option of attend"},
    {CHECK_CORE "--qk-norm-eps 1", "--qk-norm-eps|not an option of attend"},
    {RUN "--output y.npy --rope 0", "--rope|0|positive"},
    {RUN "--output y.npy --rope 1e-60", "--rope|positive"},
    {RUN "--output y.npy --rope -5", "--rope|-5"},
    {RUN "--output y.npy --rope 1e4 --rope-style both", "--rope-style|both|half or interleaved"},
    {RUN "--output y.npy --rope 1e4 --rope-size 0", "--rope-size|0"},
    {RUN "--output y.npy --rope 1e4 --rope-scale 0", "--rope-scale|0"},
    {RUN "--output y.npy --rope 1e4 --rope-table a.npy,b.npy", "--rope-table|--rope"},
    {RUN "--output y.npy --rope-table a.npy,b.npy --rope-scale 2", "--rope-table|--rope-scale"},
    {RUN "--output y.npy --qk-norm-eps 0", "--qk-norm-eps|0|positive"},
    {ATTEND "--output y.npy --key-offsets o.npy", "--key-offsets|--query-offsets"},
    {ATTEND "--output y.npy --query-offsets o.npy --probs p.npy", "--probs|--query-offsets"},
    {ATTEND "--output y.npy --query-offsets o.npy --probs-mean p.npy",
     "--probs-mean|--query-offsets"},
    {ATTEND "--output y.npy --query-offsets o.npy --key-lengths n.npy",
     "--key-lengths|--query-offsets"},
    {ATTEND "--output y.npy --query-offsets o.npy --query-lengths n.npy",
     "--query-lengths|--query-offsets"},
    {ATTEND "--output y.npy --query-offsets o.npy", "--query|rank 4|--query-offsets"},
    {"info --query q.npy", "--query|unknown option"},
    {"--version now", "--version"},
};

static void refusals(void)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (check_case("cli/refused/%s", wrong[i][0]))
            cli_refused(wrong[i][0], wrong[i][1]);
}

static void expect_printed(const char *words, const char *start, const char *part)
{
    struct outcome outcome;
    cli_run(words, &outcome);
    CHECK(outcome.status == 0 && outcome.err[0] == '\0', "%s: exit %d: %.200s", words,
          outcome.status, outcome.err);
    CHECK(strncmp(outcome.out, start, strlen(start)) == 0 && strstr(outcome.out, part),
          "%s: '%s' expected in %.300s", words, part, outcome.out);
}

static void words_of_help(void)
{
    if (check_case("cli/version"))
        expect_printed("--version", "headway ", ".");
    if (check_case("cli/help")) {
        expect_printed("--help", "Headway", "headway attend --query");
        expect_printed("run --help", "headway run", "--causal");
        expect_printed("attend --help", "headway attend", "--layout");
        expect_printed("check --help", "headway check", "--against");
        expect_printed("info --help", "headway info", "--weights");
        expect_printed("attend --threads 2 --help", "headway attend", "--decode");
        expect_printed("run --help", "headway run", "dynamic, longrope");
    }
}

/* One line for each row in the library's order, then oneDNN, CPU, caches, threads. */
static void info_lines(void)
{
    struct outcome outcome;
    int rows = 0, chosen = 0, others = 0;
    if (!check_case("cli/info"))
        return;
    cli_run("info", &outcome);
    CHECK(outcome.status == 0, "exit %d: %s", outcome.status, outcome.err);
    for (char *line = strtok(outcome.out, "\n"); line; line = strtok(NULL, "\n")) {
        char name[32], built[16], runs[16];
        if (sscanf(line, "isa %31s %15s %15s", name, built, runs) == 3) {
            rows++;
            CHECK(others == 0, "a row after other lines: %s", line);
            CHECK(!strcmp(built, "built") || !strcmp(built, "absent"), "%s", line);
            CHECK(!strcmp(runs, "runs") || (!strcmp(runs, "cannot-run:") && strlen(line) > 20),
                  "%s", line);
            CHECK(strcmp(built, "absent") || strcmp(runs, "runs"), "absent, yet it runs: %s", line);
            if (strstr(line, " (chosen)")) {
                chosen++;
                CHECK(!strcmp(runs, "runs"), "%s", line);
            }
        } else
            others++;
        if (others == 1 && rows)
            CHECK(strncmp(line, "onednn ", 7) == 0 || others > 1, "oneDNN's line expected: %s",
                  line);
        if (strncmp(line, "threads ", 8) == 0)
            CHECK(atoi(line + 8) >= 1, "%s", line);
    }
    headway_isa_info row;
    CHECK(rows > 0 && headway_isa_at(rows - 1, &row) == HEADWAY_OK &&
              headway_isa_at(rows, &row) != HEADWAY_OK && chosen == 1 && others == 4,
          "%d rows, %d chosen, %d other lines", rows, chosen, others);
}

static void environment(void)
{
    struct outcome outcome;
    if (!check_case("cli/environment"))
        return;
    setenv("HEADWAY_ISA", "vax", 1);
    cli_refused(ATTEND "--output y.npy", "vax");
    cli_run("info", &outcome);
    CHECK(outcome.status == 2 && strstr(outcome.out, "isa scalar") && strstr(outcome.err, "vax"),
          "info with an unknown HEADWAY_ISA: exit %d: %s", outcome.status, outcome.err);
    cli_done(ATTEND "--output one.npy --isa scalar");
    setenv("HEADWAY_ISA", "scalar", 1);
    cli_run("info", &outcome);
    CHECK(strstr(outcome.out, "isa scalar built runs (chosen)"), "%s", outcome.out);
    unsetenv("HEADWAY_ISA");
    /* The command never takes a locale: a decimal comma changes nothing. */
    setenv("LC_ALL", "de_DE.UTF-8", 1);
    cli_done(ATTEND "--output two.npy --scale 0.125");
    unsetenv("LC_ALL");
    cli_done(ATTEND "--output one.npy --scale 0.125");
    cli_same("one.npy", "two.npy");
}

static void full_disk(void)
{
    struct arguments a;
    struct outcome outcome;
    if (!check_case("cli/full stdout") || !file_exists("/dev/full"))
        return;
    arguments_begin(&a);
    arguments_split(&a, ATTEND "--output y.npy --explain");
    command_run(&a, folder_path("."), "/dev/full", &outcome);
    expect_refusal(&outcome, "standard output", "a full stdout");
    CHECK(!file_exists(folder_path("y.npy")), "left an output file");
}

void check_cli_arguments(void)
{
    refusals();
    words_of_help();
    info_lines();
    environment();
    full_disk();
}
