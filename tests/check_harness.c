/* The harness itself: what must fail fails, and what must pass passes. Each probe runs in a process
 * of its own, whose exit status is the answer. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "cpu/kernels.h"

enum { PASS = 0, FAIL = 1, USAGE = 2, SKIPPED = 77, CRASH = -1 };

static float four[4] = {1, 2, 3, 4};
static const double four_exact[4] = {1, 2, 3, 4};
static const double small[4] = {0.5, 0.5, 0.5, 0.5};

static void bound_of(float got, double expected, double bound)
{
    check_bound(&got, &expected, &bound, 1, "probe");
}

static void bound_equal(void) { check_bound(four, four_exact, small, 4, "probe"); }
static void bound_touched(void) { bound_of(1.5f, 1, 0.5); }
static void bound_passed(void) { bound_of(1.75f, 1, 0.5); }
static void bound_nan_for_number(void) { bound_of(NAN, 1, 0.5); }
static void bound_number_for_nan(void) { bound_of(1, NAN, 0.5); }
static void bound_nan_for_nan(void) { bound_of(NAN, NAN, 0.5); }
static void bound_infinities(void) { bound_of(INFINITY, INFINITY, 0.5); }
static void bound_opposite(void) { bound_of(INFINITY, -INFINITY, 0.5); }
static void bound_infinity_for_number(void) { bound_of(INFINITY, 1, INFINITY); }
static void bound_infinite(void) { bound_of(NAN, INFINITY, INFINITY); }
static void bound_number_for_infinity(void) { bound_of(1, INFINITY, INFINITY); }
static void bound_is_nan(void) { bound_of(1.5f, 1, NAN); }
static void bound_zero_exact(void) { bound_of(1, 1, 0); }
static void bound_zero(void) { bound_of(1.5f, 1, 0); }

static void bits_of(float got, float expected)
{
    check_bits(&got, &expected, 1, "probe");
}

static void bits_same(void) { check_bits(four, four, 4, "probe"); }
static void bits_sign_of_zero(void) { bits_of(0.0f, -0.0f); }
static void bits_nans(void) { bits_of(NAN, -NAN); }
static void bits_nan_for_number(void) { bits_of(NAN, 1); }
static void bits_last_place(void) { bits_of(1, 1 + 0x1p-23f); }

static volatile unsigned char sink;

static void guard_inside(void)
{
    for (int at_end = 0; at_end < 2; at_end++) {
        unsigned char *memory = check_guard(100, at_end);
        memset(memory, 1, 100);
        check_guard_free(memory);
    }
}

static void guard_before(void)
{
    unsigned char *memory = check_guard(100, 1);
    memory[-1] = 1;
    check_guard_free(memory);
}

static void guard_behind(void)
{
    unsigned char *memory = check_guard(100, 0);
    memory[100] = 1;
    check_guard_free(memory);
}

static void guard_read(int at_end, int at)
{
    const unsigned char *memory = check_guard(4096, at_end);
    sink = memory[at];
}

static void guard_start(void) { guard_read(0, -1); }
static void guard_end(void) { guard_read(1, 4096); }
static void guard_empty(void) { sink = *(unsigned char *)check_guard(0, 0); }

static void condition_true(void) { CHECK(four[0] < four[1], "probe"); }
static void condition_false(void) { CHECK(four[0] > four[1], "probe"); }
static void skip_scalar(void) { check_skip("scalar", "probe"); }
static void nothing(void) {}

/* The best row's name and scalar. */
static char best_and_scalar[64];

struct probe {
    const char *name;
    void (*run)(void);
    int expected;
    const char *options[3];
};

static const struct probe probes[] = {
    {"equal", bound_equal, PASS, {NULL}},
    {"at the bound", bound_touched, PASS, {NULL}},
    {"beyond the bound", bound_passed, FAIL, {NULL}},
    {"NaN for a number", bound_nan_for_number, FAIL, {NULL}},
    {"number for a NaN", bound_number_for_nan, FAIL, {NULL}},
    {"NaN for a NaN", bound_nan_for_nan, PASS, {NULL}},
    {"equal infinities", bound_infinities, PASS, {NULL}},
    {"opposite infinities", bound_opposite, FAIL, {NULL}},
    {"infinity, infinite bound", bound_infinity_for_number, FAIL, {NULL}},
    {"NaN for an infinity, infinite bound", bound_infinite, PASS, {NULL}},
    {"number for an infinity, infinite bound", bound_number_for_infinity, FAIL, {NULL}},
    {"bound NaN", bound_is_nan, FAIL, {NULL}},
    {"bound zero, exact", bound_zero_exact, PASS, {NULL}},
    {"bound zero", bound_zero, FAIL, {NULL}},
    {"same bits", bits_same, PASS, {NULL}},
    {"sign of zero", bits_sign_of_zero, FAIL, {NULL}},
    {"any NaN", bits_nans, PASS, {NULL}},
    {"bits of NaN for a number", bits_nan_for_number, FAIL, {NULL}},
    {"last place", bits_last_place, FAIL, {NULL}},
    {"write inside", guard_inside, PASS, {NULL}},
    {"write before", guard_before, FAIL, {NULL}},
    {"write behind", guard_behind, FAIL, {NULL}},
    {"read before", guard_start, CRASH, {NULL}},
    {"read behind", guard_end, CRASH, {NULL}},
    {"read of nothing", guard_empty, CRASH, {NULL}},
    {"true", condition_true, PASS, {NULL}},
    {"false", condition_false, FAIL, {NULL}},
    {"a skip beside a pass", skip_scalar, PASS, {NULL}},
    {"a skip that is required", skip_scalar, FAIL, {"--require", best_and_scalar}},
    {"only skips", skip_scalar, SKIPPED, {"--case", "no such case"}},
    {"no case", nothing, FAIL, {"--case", "no such case"}},
    {"unknown option", nothing, FAIL, {"--no-such-option"}},
    {"unknown row", nothing, USAGE, {"--isa", "no-such-row"}},
    {"unknown row required", nothing, USAGE, {"--require", "scalar,no-such-row"}},
    {"no number", nothing, USAGE, {"--seed", "one"}},
    {"nothing behind", nothing, USAGE, {"--case"}},
};

/* In the child: the probe as a program of its own. */
static void be_probe(const struct probe *probe)
{
    char name[] = "probe", options[2][32] = {"", ""};
    char *argv[4] = {name};
    const struct rlimit no_core = {0, 0};
    int argc = 1;

    for (int i = 0; i < 2 && probe->options[i]; i++) {
        snprintf(options[i], sizeof options[i], "%s", probe->options[i]);
        argv[argc++] = options[i];
    }
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
        _exit(99);
    /* Sanitizers turn the signal into an exit status of their own. */
    signal(SIGSEGV, SIG_DFL);
    setrlimit(RLIMIT_CORE, &no_core);
    check_begin(argc, argv);
    if (check_case("probe") || probe->expected == SKIPPED)
        probe->run();
    _exit(check_end());
}

static int run(const struct probe *probe)
{
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        be_probe(probe);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("check_harness");
        exit(1);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : CRASH;
}

int main(int argc, char **argv)
{
    enum { COUNT = sizeof probes / sizeof *probes };
    int got[COUNT];

    snprintf(best_and_scalar, sizeof best_and_scalar, "%s,scalar", headway_row_at(0)->name);
    /* All of them before the first case, whose count they would inherit. */
    for (int i = 0; i < COUNT; i++)
        got[i] = run(&probes[i]);
    check_begin(argc, argv);
    for (int i = 0; i < COUNT; i++)
        if (check_case("harness: %s", probes[i].name))
            CHECK(got[i] == probes[i].expected, "exit status %d, expected %d", got[i],
                  probes[i].expected);
    return check_end();
}
