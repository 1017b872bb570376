#define _POSIX_C_SOURCE 200809L

#include "api_call.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cli/problem.h"
#include "cpu/kernels.h"

enum { MOST_ROWS = 15 };

const char *const *api_rows(void)
{
    static const char *names[MOST_ROWS + 1];
    static int listed;
    const struct headway_row *row;
    int index = 0;
    for (int n = 0; !listed && n < MOST_ROWS && (row = check_next_row(&index)) != NULL; n++)
        names[n] = row->name;
    listed = 1;
    return names;
}

static headway_status attention(const headway_engine *engine, const struct problem *p,
                                const headway_attention_params *params)
{
    size_t bytes = 0;
    headway_status status =
        headway_attention_workspace(engine, params, &p->query, &p->key, &p->value, &bytes);
    if (status != HEADWAY_OK)
        return status;
    void *workspace = check_guard(bytes, 0);
    status =
        headway_attention(engine, params, &p->query, &p->key, &p->value, &p->out, workspace, bytes);
    check_guard_free(workspace);
    return status;
}

static headway_status layer(const headway_engine *engine, const struct problem *p,
                            const headway_attention_params *params)
{
    headway_mha *mha = NULL;
    size_t bytes = 0;
    headway_status status = headway_mha_create(engine, &p->layer.config, &p->layer.weights, &mha);
    if (status == HEADWAY_OK)
        status =
            headway_mha_workspace(mha, params, &p->query, p->key_given, p->value_given, &bytes);
    void *workspace = check_guard(bytes, 0);
    if (status == HEADWAY_OK)
        status = headway_mha_forward(mha, params, &p->query, p->key_given, p->value_given, &p->out,
                                     workspace, bytes);
    check_guard_free(workspace);
    headway_mha_destroy(mha);
    return status;
}

/* Weights and their mean are two calls. */
static headway_status compute(const headway_engine *engine, const struct problem *p)
{
    headway_attention_params params = p->params;
    headway_status status = (p->is_layer ? layer : attention)(engine, p, &params);
    if (status == HEADWAY_OK && p->probs.data && p->mean.data) {
        params.weights = &p->mean_tensor;
        status = (p->is_layer ? layer : attention)(engine, p, &params);
    }
    return status;
}

int api_call(const struct arguments *a, const char *folder, const char *isa)
{
    char *argv[100] = {"headway"}, error[ERROR_SIZE] = "";
    struct options options;
    struct problem problem = {0};
    int from = 0, argc = 1, here = open(".", O_RDONLY | O_DIRECTORY);
    while (from < a->count && strcmp(a->list[from], "run") != 0 &&
           strcmp(a->list[from], "attend") != 0)
        from++;
    for (; from < a->count; from++)
        argv[argc++] = (char *)(uintptr_t)a->list[from];
    int failed = here < 0 || chdir(folder) || options_parse(argc, argv, &options, error) ||
                 problem_load(&options, &problem, error);
    if (!failed) {
        headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
        headway_engine *engine = NULL;
        config.isa = isa;
        config.threads = 2;
        headway_status status = headway_engine_create(&config, &engine);
        if (status == HEADWAY_OK)
            status = compute(engine, &problem);
        char text[256] = "";
        if (engine)
            headway_engine_error(engine, text, sizeof text);
        CHECK(status == HEADWAY_OK, "%s on %s: %s", headway_status_text(status), isa, text);
        failed = status != HEADWAY_OK || problem_write(&problem, error);
        headway_engine_destroy(engine);
        problem_unload(&problem);
    }
    if (here >= 0) {
        CHECK(fchdir(here) == 0, "the folder of the test is gone");
        close(here);
    }
    CHECK(!error[0], "%s", error);
    return failed ? -1 : 0;
}
