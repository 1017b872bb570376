/* Random problems over every option of the API, against the double reference under the documented
 * bound and bit by bit between all rows that run here.
 *
 *   check_property [--seconds N] [--seed S] [--isa NAME]   draws for N seconds from seed S
 *   check_property --seed S --case "lq=33 mask=2"          runs that one problem
 *   (first each option alone, its operands at both ends of guarded memory, in every layout)
 *   check_property --plant 1                               compares wrongly on purpose, and passes
 *                                                          when that is found and shrunk
 *
 * A failing problem is made simpler for as long as it still fails, and named in a line that runs it
 * again. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attend.h"
#include "check.h"
#include "cpu/kernels.h"
#include "drawn.h"

enum { MAX_ROWS = 8, MAX_THREADS = 4, ENOUGH_FAILURES = 5 };

static struct {
    const char *isa;
    headway_engine *engines[MAX_THREADS];
    struct errors worst;
} rows[MAX_ROWS];
static int row_count, planted;
static struct drawn worst_drawn;
static double worst;

/* ---- one problem ------------------------------------------------------------------------------
 */

/* The fault that --plant puts into the comparison: it hits what has all of these. */
static int is_hit(const struct drawn *d)
{
    return planted && d->f[DRAW_CAUSAL] == HEADWAY_CAUSAL_TOP_LEFT && d->f[DRAW_MASK] == 1 &&
           d->f[DRAW_KEYS] > 17;
}

static void keep_largest(int row, const struct errors *e, const struct drawn *d)
{
    struct errors *largest = &rows[row].worst;
    const double all[3] = {e->out, e->lse, e->weights};
    largest->out = e->out > largest->out ? e->out : largest->out;
    largest->lse = e->lse > largest->lse ? e->lse : largest->lse;
    largest->weights = e->weights > largest->weights ? e->weights : largest->weights;
    for (int i = 0; i < 3; i++)
        if (all[i] > worst && all[i] <= 1) {
            worst = all[i];
            worst_drawn = *d;
        }
}

static void run(const struct drawn *d)
{
    struct inputs *in = inputs_make(d);
    struct results r[MAX_ROWS];
    char what[80];
    for (int row = 0; row < row_count; row++)
        r[row] = inputs_attend(rows[row].engines[d->f[DRAW_THREADS] - 1], in);
    const int cached = inputs_uncache(in);
    const struct reference expected = inputs_reference(in);
    for (int row = 0; row < row_count; row++) {
        if (is_hit(d) && r[row].outs)
            r[row].out[0] += 1;
        const struct errors e = results_compare(&r[row], &expected);
        keep_largest(row, &e, d);
        if (row == 0)
            continue;
        snprintf(what, sizeof what, "%s against %s", rows[row].isa, rows[0].isa);
        results_bits(&r[row], &r[0], what);
    }
    if (cached) {
        struct results plain = inputs_attend(rows[0].engines[0], in);
        results_bits(&r[0], &plain, "with a cache against without");
        results_free(&plain);
    }
    for (int row = 0; row < row_count; row++)
        results_free(&r[row]);
    inputs_free(in);
}

static char current[700];

static void say_where(int number)
{
    (void)!write(STDOUT_FILENO, current, strlen(current));
    signal(number, SIG_DFL);
    raise(number);
}

/* Where a signal ends the program, the problem's line comes out first. */
static void announce(const struct drawn *d)
{
    snprintf(current, sizeof current, "ended in: check_property --seed %llu --case \"%s\"\n",
             (unsigned long long)d->seed, drawn_text(d));
}

static int fails(const struct drawn *d, const char **text)
{
    announce(d);
    check_trial_begin();
    run(d);
    return check_trial_end(text);
}

static struct drawn shrink(struct drawn d)
{
    struct drawn simpler;
    const char *text;
    for (int n = 0; drawn_simpler(&d, n, &simpler); n++)
        if (memcmp(&simpler, &d, sizeof d) != 0 && fails(&simpler, &text)) {
            d = simpler;
            n = -1;
        }
    return d;
}

static void report(const struct drawn *found, const char *text)
{
    printf("found (%s):\n  check_property --seed %llu --case \"%s\"\n", text,
           (unsigned long long)found->seed, drawn_text(found));
    const struct drawn d = shrink(*found);
    printf("shrunk:\n  check_property --seed %llu --case \"%s\"\n  about: %s\n",
           (unsigned long long)d.seed, drawn_text(&d), drawn_command(&d));
    if (planted) {
        check_case("plant");
        CHECK(strcmp(drawn_text(&d), "lk=18 causal=1 mask=1") == 0, "not shrunk as far as it goes");
    } else if (check_case("%s", drawn_text(&d))) {
        run(&d);
    }
}

/* ---- many -------------------------------------------------------------------------------------
 */

static void begin(void)
{
    const struct headway_row *row;
    int index = 0;
    while ((row = check_next_row(&index)) && row_count < MAX_ROWS) {
        rows[row_count].isa = row->name;
        for (int t = 0; t < MAX_THREADS; t++)
            rows[row_count].engines[t] = engine_make(row->name, t + 1);
        row_count++;
    }
    signal(SIGSEGV, say_where);
    signal(SIGBUS, say_where);
    signal(SIGABRT, say_where);
    signal(SIGFPE, say_where);
    signal(SIGILL, say_where);
}

static void end(void)
{
    for (int row = 0; row < row_count; row++) {
        printf("largest error on %s in units of its bound: out %.3g, lse %.3g, weights %.3g\n",
               rows[row].isa, rows[row].worst.out, rows[row].worst.lse, rows[row].worst.weights);
        for (int t = 0; t < MAX_THREADS; t++)
            headway_engine_destroy(rows[row].engines[t]);
    }
    if (worst > 0)
        printf("the largest: check_property --seed %llu --case \"%s\"\n",
               (unsigned long long)worst_drawn.seed, drawn_text(&worst_drawn));
}

/* The guarded memory sees every operand of every option, whatever is drawn later; quick: each in one
 * layout, in turn. */
static void run_each(int quick)
{
    struct drawn d = drawn_plain(check_seed);
    for (int n = 0; drawn_each(n, &d); n++) {
        if (!check_case("each: %s", drawn_text(&d)))
            continue;
        for (int layout = quick ? n % 5 : 0; layout < (quick ? n % 5 + 1 : 5); layout++)
            for (int end = 0; end < 2; end++) {
                struct drawn laid = d;
                laid.f[DRAW_LAYOUT] = layout;
                laid.f[DRAW_AT_END] = end;
                laid.f[DRAW_THREADS] = 1 + (n + layout) % MAX_THREADS;
                drawn_settle(&laid);
                announce(&laid);
                run(&laid);
            }
    }
}

/* One case for each kind of problem would say nothing: all that are drawn are one. */
static void draw_many(int64_t seconds)
{
    const time_t begun = time(NULL), end = begun + (planted ? 600 : seconds);
    int64_t count = 0;
    int failures = 0;
    while (failures < ENOUGH_FAILURES && time(NULL) < end) {
        const char *text;
        const struct drawn d =
            drawn_draw(check_seed * 1000003 + (uint64_t)count, count % 32 == 31 ? 2e7 : 1.5e6,
                       !planted && count % 4 == 1);
        count++;
        if (fails(&d, &text)) {
            report(&d, text);
            failures++;
            if (planted)
                return;
        }
    }
    check_case("drawn from seed %llu", (unsigned long long)check_seed);
    CHECK(!planted, "the planted fault was not found");
    printf("%lld problems drawn from seed %llu in %lld seconds\n", (long long)count,
           (unsigned long long)check_seed, (long long)(time(NULL) - begun));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    const int64_t seconds = check_option("--seconds", 60);
    const int quick = (int)check_option("--quick", 0);
    planted = (int)check_option("--plant", 0);
    begin();
    struct drawn d = drawn_plain(check_seed);
    if (row_count && check_only() && drawn_parse(&d, check_only())) {
        announce(&d);
        if (check_case("%s", check_only()))
            run(&d);
    } else if (row_count && check_only()) {
        run_each(quick);
    } else if (row_count) {
        if (!planted)
            run_each(quick);
        draw_many(seconds);
    }
    end();
    return check_end();
}
