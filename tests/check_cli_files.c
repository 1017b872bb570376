/* Files that are missing, broken, of the wrong type or shape: exit 2 and no output. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"

static const double zeros[4096];

static void write_bad_files(void)
{
    /* The length of the dictionary, 'v' = 118, makes a header of 128 bytes. */
    static const char start[] = "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, "
                                "'shape': (2, 5, 4, 8), }";
    char bytes[128 + 2048] = "";
    size_t whole = 128 + 2 * 5 * 4 * 8 * 4;
    memset(bytes, ' ', 127);
    memcpy(bytes, start, sizeof start - 1);
    bytes[127] = '\n';
    file_write(folder_path("whole.npy"), bytes, whole);
    file_write(folder_path("short.npy"), bytes, whole - 1);
    file_write(folder_path("long.npy"), bytes, whole + 1);
    file_write(folder_path("empty.npy"), bytes, 0);
    file_write(folder_path("text.npy"), "not an array\n", 13);
    file_write(folder_path("w.safetensors"), "\x02\0\0\0\0\0\0\0{}", 10);
    cli_write("ints.npy", ARRAY_I32, 4, (int64_t[]){2, 5, 4, 8}, zeros);
    cli_write("bools.npy", ARRAY_BOOL, 4, (int64_t[]){2, 5, 4, 8}, zeros);
    cli_write("rank1.npy", ARRAY_F32, 1, (int64_t[]){8}, zeros);
    cli_write("rank0.npy", ARRAY_F32, 0, (int64_t[]){1}, zeros);
    cli_write("rank5.npy", ARRAY_F32, 5, (int64_t[]){1, 1, 1, 1, 8}, zeros);
    cli_write("heads3.npy", ARRAY_F32, 4, (int64_t[]){2, 7, 3, 8}, zeros);
    cli_write("size9.npy", ARRAY_F32, 4, (int64_t[]){2, 7, 2, 9}, zeros);
    cli_write("batch3.npy", ARRAY_F32, 4, (int64_t[]){3, 7, 2, 8}, zeros);
    cli_write("keys8.npy", ARRAY_F32, 4, (int64_t[]){2, 8, 2, 6}, zeros);
    cli_write("m32.npy", ARRAY_I32, 2, (int64_t[]){5, 7}, zeros);
    cli_write("m64.npy", ARRAY_I64, 2, (int64_t[]){5, 7}, zeros);
    cli_write("m3.npy", ARRAY_BOOL, 3, (int64_t[]){2, 5, 7}, zeros);
    cli_write("m0.npy", ARRAY_F32, 0, (int64_t[]){1}, zeros);
    cli_write("m57.npy", ARRAY_F32, 2, (int64_t[]){7, 5}, zeros);
    cli_write("m4.npy", ARRAY_F32, 4, (int64_t[]){2, 3, 5, 7}, zeros);
    cli_write("n3.npy", ARRAY_I64, 1, (int64_t[]){3}, (double[]){1, 1, 1});
    cli_write("n22.npy", ARRAY_I64, 2, (int64_t[]){2, 1}, (double[]){1, 1});
    cli_write("nf.npy", ARRAY_F32, 1, (int64_t[]){2}, (double[]){1, 1});
    cli_write("large.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){1, 8});
    cli_write("below.npy", ARRAY_I32, 1, (int64_t[]){2}, (double[]){-1, 5});
}

static void refusals(void)
{
    static const char *const table[][2] = {
        {"attend --query none.npy --key k.npy --value v.npy --output y.npy", "none.npy"},
        {"attend --query . --key k.npy --value v.npy --output y.npy", "."},
        {"attend --query short.npy --key k.npy --value v.npy --output y.npy", "short.npy"},
        {"attend --query long.npy --key k.npy --value v.npy --output y.npy", "long.npy"},
        {"attend --query empty.npy --key k.npy --value v.npy --output y.npy", "empty.npy"},
        {"attend --query text.npy --key k.npy --value v.npy --output y.npy", "text.npy"},
        {"attend --query ints.npy --key k.npy --value v.npy --output y.npy",
         "--query|ints.npy|i32"},
        {"attend --query bools.npy --key k.npy --value v.npy --output y.npy", "--query|bool"},
        {"attend --query q.npy --key k16.npy --value v.npy --output y.npy", "--key|f16|f32"},
        {"attend --query q.npy --key k.npy --value v64.npy --output y.npy", "--value|f64|f32"},
        {"attend --query rank1.npy --key k.npy --value v.npy --output y.npy", "--query|rank 1"},
        {"attend --query rank0.npy --key k.npy --value v.npy --output y.npy", "--query|rank 0"},
        {"attend --query rank5.npy --key k.npy --value v.npy --output y.npy", "--query|rank 5"},
        {"attend --query q3.npy --key k.npy --value v.npy --output y.npy --heads 4",
         "--key|rank 4"},
        {"attend --query q3.npy --key k3.npy --value v3.npy --output y.npy", "--heads"},
        {"attend --query q3.npy --key k3.npy --value v3.npy --output y.npy --heads 5", "32|5"},
        {"attend --query q3.npy --key k3.npy --value v3.npy --output y.npy --heads 4 --kv-heads 3",
         "16|3"},
        {"attend --query q3.npy --key k3.npy --value v3.npy --output y.npy --heads 4 --head-size 4",
         "--head-size|4|8"},
        {"attend --query q.npy --key heads3.npy --value heads3.npy --output y.npy", "3"},
        {"attend --query q.npy --key size9.npy --value v.npy --output y.npy", "9"},
        {"attend --query q.npy --key batch3.npy --value batch3.npy --output y.npy", "3"},
        {"attend --query q.npy --key k.npy --value keys8.npy --output y.npy", "8"},
        {ATTEND "--output y.npy --mask none.npy", "none.npy"},
        {ATTEND "--output y.npy --mask m32.npy", "--mask|m32.npy|i32"},
        {ATTEND "--output y.npy --mask m64.npy", "--mask|m64.npy|i64"},
        {ATTEND "--output y.npy --mask m3.npy", "--mask|rank 3"},
        {ATTEND "--output y.npy --mask m0.npy", "--mask|rank 0"},
        {ATTEND "--output y.npy --mask m57.npy", "mask"},
        {ATTEND "--output y.npy --mask m4.npy", "mask"},
        {ATTEND "--output y.npy --key-lengths n3.npy", "--key-lengths|3|2"},
        {ATTEND "--output y.npy --key-lengths n22.npy", "--key-lengths|rank 2"},
        {ATTEND "--output y.npy --key-lengths nf.npy", "--key-lengths|f32"},
        {ATTEND "--output y.npy --key-lengths large.npy", "8"},
        {ATTEND "--output y.npy --key-lengths below.npy", "-1"},
        {ATTEND "--output y.npy --query-lengths large.npy", "8"},
        {ATTEND "--output y.npy --query-lengths below.npy", "-1"},
        {ATTEND "--output y.npy --causal n3.npy", "--causal|3|2"},
        {ATTEND "--output y.npy --causal nf.npy", "--causal|f32"},
        {ATTEND "--output nowhere/y.npy", "nowhere/y.npy"},
        {ATTEND "--output y.npy --lse nowhere/l.npy", "nowhere/l.npy"},
        {CHECK_CORE "--against none.npy", "none.npy"},
        {CHECK_CORE "--against k.npy", "--against|k.npy|(2,7,2,8)|(2,5,4,6)"},
        {CHECK_CORE "--against ints.npy", "--against|ints.npy"},
        {"run --weights none --input q2.npy --output y.npy", "none"},
        {"run --weights w.safetensors --input q2.npy --output y.npy", "w.safetensors"},
        {"run --weights text.npy --input q2.npy --output y.npy", "text.npy"},
        {"info --weights none.safetensors", "none.safetensors"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (check_case("cli/files/%s", table[i][0]))
            cli_refused(table[i][0], table[i][1]);
}

/* What lay at the output's path stays, and no temporary file is left beside it. */
static void untouched(void)
{
    char text[8];
    if (!check_case("cli/files/untouched"))
        return;
    file_write(folder_path("kept.npy"), "before", 6);
    struct outcome outcome;
    cli_run(ATTEND "--output kept.npy --lse nowhere/l.npy", &outcome);
    CHECK(outcome.status == 2, "exit %d", outcome.status);
    cli_run(ATTEND "--output kept.npy --mask m57.npy", &outcome);
    CHECK(outcome.status == 2, "exit %d", outcome.status);
    FILE *file = fopen(folder_path("kept.npy"), "rb");
    CHECK(file && fread(text, 1, sizeof text, file) == 6 && memcmp(text, "before", 6) == 0,
          "the output file has changed");
    if (file)
        fclose(file);
    cli_done(ATTEND "--output kept.npy");
    cli_done(ATTEND "--output fresh.npy");
    cli_same("kept.npy", "fresh.npy");
}

void check_cli_files(void)
{
    write_bad_files();
    refusals();
    untouched();
    if (check_case("cli/files/whole"))
        cli_done("attend --query whole.npy --key k.npy --value v.npy --output fresh.npy");
}
