/* The command `headway`. Exit status: 0 done, 1 check found a difference, 2 bad arguments or files.
 */
#include "cli/compare.h"
#include "cli/compute.h"
#include "cli/file.h"
#include "cli/info.h"

#include <stdio.h>
#include <string.h>

/* One line on stderr, if there is anything to say. */
static void tell(char *text)
{
    error_clean(text);
    if (*text)
        fprintf(stderr, "headway: %s\n", text);
}

static int flushed(char *error)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    snprintf(error, ERROR_SIZE, "standard output can't be written");
    return -1;
}

static int compute(struct computation *c, int *differs, char *error)
{
    const struct options *o = c->problem->options;
    if ((o->explain && compute_explain(c, error)) || compute_run(c, error) ||
        (o->verb == VERB_CHECK && check_problem(c->problem, c->steps.cache, differs, error)) ||
        (o->repeat && compute_repeat(c, o->repeat, error)))
        return -1;
    return flushed(error) || problem_write(c->problem, error) ? -1 : 0;
}

/* run, attend and check. */
static int pipeline(const struct options *options, int *differs, char *error)
{
    struct problem problem;
    struct computation computation = {0};
    int failed = problem_load(options, &problem, error) ||
                 compute_open(&computation, &problem, error) ||
                 compute(&computation, differs, error);
    compute_close(&computation);
    if (!failed)
        tell(problem.note);
    if (!failed)
        tell(problem.warning);
    problem_unload(&problem);
    return failed;
}

static int command(int argc, char **argv, int *differs, char *error)
{
    struct options options;
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        printf("headway %s\n", headway_version());
    else if (argc == 2 && strcmp(argv[1], "--help") == 0)
        help_command();
    else if (options_parse(argc, argv, &options, error))
        return -1;
    else if (options.help)
        help_verb(options.verb);
    else if (options.verb == VERB_INFO ? info_print(&options, error)
                                       : pipeline(&options, differs, error))
        return -1;
    return flushed(error);
}

int main(int argc, char **argv)
{
    char error[ERROR_SIZE] = "";
    int differs = 0;
    if (command(argc, argv, &differs, error)) {
        fflush(stdout);
        tell(error);
        return 2;
    }
    return differs ? 1 : 0;
}
