/* headway_attention() on every row that runs here and on 1, 2, 3 and 7 threads: against the
 * reference under its bounds, against the scalar row bit by bit, between unreadable pages, with
 * poison in all that must not be read. --quick takes a sample, for emulators and sanitizers. */
#include "check_attention.h"

#include <stdio.h>

#include "cpu/kernels.h"

const int thread_counts[THREADS] = {1, 2, 3, 7};
struct subject subjects[MAX_ROWS];
int subject_count;
int quick;

static headway_engine *scalar;
static unsigned turn;
static double worst;

/* Below this a call uses one thread whatever the engine has, see headway_attend_plan(). */
#define THREADED_COST 1e6

static void run_on(const struct subject *s, const struct problem *p, const struct expected *e,
                   const struct answer *base)
{
    static const char *const layouts[LAYOUTS] = {"dense", "BHLD", "packed", "odd", "negative"};
    const int one_only = problem_cost(p) < THREADED_COST;
    for (int t = 0; t < THREADS; t++) {
        char what[100];
        const enum layout layout = turn % LAYOUTS;
        const int at_end = turn / LAYOUTS % 2 == 0;
        turn++;
        if (one_only && t != 0 && t != THREADS - 1)
            continue;
        struct answer a = attend(s->engines[t], p, layout, at_end);
        const double error = compare(p, &a, e);
        worst = error > worst ? error : worst;
        snprintf(what, sizeof what, "%s on %d threads, %s at the page's %s, against scalar", s->isa,
                 thread_counts[t], layouts[layout], at_end ? "end" : "start");
        compare_bits(&a, base, what);
        answer_free(&a);
    }
}

void run(struct problem *p, const char *group)
{
    if (check_case("%s: %s", group, problem_name(p))) {
        struct expected e = expect(p);
        struct answer base = attend(scalar, p, LAYOUT_DENSE, 1);
        for (int i = 0; i < subject_count; i++)
            run_on(&subjects[i], p, &e, &base);
        answer_free(&base);
        expected_free(&e);
    }
    problem_free(p);
}

static void begin(void)
{
    const struct headway_row *row;
    int index = 0;
    scalar = engine_make("scalar", 1);
    while ((row = check_next_row(&index)) && subject_count < MAX_ROWS) {
        struct subject *s = &subjects[subject_count++];
        s->isa = row->name;
        for (int t = 0; t < THREADS; t++)
            s->engines[t] = engine_make(s->isa, thread_counts[t]);
    }
}

static void end(void)
{
    for (int i = 0; i < subject_count; i++)
        for (int t = 0; t < THREADS; t++)
            headway_engine_destroy(subjects[i].engines[t]);
    headway_engine_destroy(scalar);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    quick = (int)check_option("--quick", 0);
    begin();
    if (subject_count) {
        check_shapes();
        check_masks();
        check_options();
        printf("largest error: %.3g of its bound\n", worst);
    }
    for (int i = 0; i < subject_count; i++) {
        check_equalities(&subjects[i]);
        check_excluded(&subjects[i]);
        check_empty(&subjects[i]);
        check_workspaces(&subjects[i]);
    }
    end();
    return check_end();
}
