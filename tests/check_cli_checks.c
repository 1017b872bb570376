/* headway check: what passes, what fails, and that it can fail. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"

static void expect(const char *words, int status, const char *printed)
{
    struct outcome outcome;
    if (!check_case("cli/check/%s", words))
        return;
    cli_run(words, &outcome);
    CHECK(outcome.status == status && outcome.err[0] == '\0', "exit %d, %d expected: %.300s",
          outcome.status, status, outcome.err);
    CHECK(strstr(outcome.out, printed), "'%s' expected in: %.600s", printed, outcome.out);
}

/* The right output with one element changed. */
static void spoil(const char *name, float element)
{
    struct array array = {0};
    char error[ERROR_SIZE];
    if (npy_read(folder_path("right.npy"), &array, error)) {
        CHECK(0, "%s", error);
        return;
    }
    float kept = ((float *)array.data)[7];
    ((float *)array.data)[7] = isnan(element) ? element : kept + element;
    struct npy_output output = {folder_path(name), &array};
    CHECK(npy_write_all(&output, 1, error) == 0, "%s", error);
    array_free(&array);
}

static void onednn(void)
{
    struct outcome outcome;
    if (!check_case("cli/check/onednn"))
        return;
    cli_run("info", &outcome);
    int absent = strstr(outcome.out, "onednn absent") != NULL;
    if (absent) {
        check_skip("cli/check/onednn", "this build has no oneDNN");
        cli_refused(CHECK_CORE "--against onednn", "onednn");
        return;
    }
    cli_run(CHECK_CORE "--against onednn --causal bottom-right --mask mb.npy", &outcome);
    CHECK(outcome.status == 0 && strstr(outcome.out, "onednn primitives: ") &&
              strstr(outcome.out, "onednn graph: ") &&
              strstr(outcome.out, "out against onednn primitives: ") &&
              !strstr(outcome.out, "FAIL"),
          "exit %d: %s%s", outcome.status, outcome.out, outcome.err);
}

void check_cli_checks(void)
{
    cli_done(ATTEND "--output right.npy");
    spoil("off.npy", 1e-3f);
    spoil("near.npy", 3e-8f);
    spoil("far.npy", 0.1f);
    spoil("nan.npy", NAN);
    expect(CHECK_CORE, 0, "out against reference: ");
    expect(CHECK_CORE "--against reference --causal top-left --mask mb.npy", 0, ": ok\n");
    expect(CHECK_CORE "--lse l.npy", 0, "lse against reference: ");
    expect(CHECK_CORE "--against right.npy", 0, "out against right.npy: ");
    expect(CHECK_CORE "--against near.npy", 0, ": ok\n");
    expect(CHECK_CORE "--against off.npy", 1, "(0,0,1,1)");
    expect(CHECK_CORE "--against off.npy", 1, "FAIL (1 of 240 outside)\n");
    expect(CHECK_CORE "--against nan.npy", 1, "FAIL (1 of 240 outside)\n");
    expect(CHECK_CORE "--against right.npy --scale 1", 1, "FAIL");
    expect("check --query q16.npy --key k16.npy --value v16.npy", 0, ": ok\n");
    expect("check --query qb16.npy --key kb16.npy --value vb16.npy", 0, ": ok\n");
    expect("check --query q64.npy --key k64.npy --value v64.npy --against reference", 0, ": ok\n");
    expect("check --query q3.npy --key k3.npy --value v3.npy --heads 4", 0, ": ok\n");
    expect("check --query qt.npy --key kt.npy --value vt.npy --layout bhld", 0, ": ok\n");
    expect("check --query q.npy --key k0.npy --value k0.npy --lse l.npy", 0, ": ok\n");
    onednn();
}
