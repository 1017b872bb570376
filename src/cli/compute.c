#define _GNU_SOURCE

#include "cli/compute.h"

#include "api/engine.h"
#include "cli/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void keep_line(void *context, const char *line)
{
    snprintf(context, ERROR_SIZE, "%s", line);
}

int engine_open(const struct options *options, headway_engine **engine, char *line)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.isa = options->isa;
    config.threads = (int)options->threads;
    config.log = keep_line;
    config.log_context = line;
    line[0] = '\0';
    headway_status status = headway_engine_create(&config, engine);
    if (status != HEADWAY_OK && !line[0])
        keep_line(line, headway_status_text(status));
    return status == HEADWAY_OK ? 0 : -1;
}

static int failed(const struct computation *c, headway_status status, char *error)
{
    if (status == HEADWAY_OK)
        return 0;
    keep_line(error, c->line[0] ? c->line : headway_status_text(status));
    return -1;
}

/* Workspace for these params too. */
static int reserve(struct computation *c, const headway_attention_params *params, char *error)
{
    const struct problem *p = c->problem;
    size_t bytes;
    headway_status status =
        p->is_layer
            ? headway_mha_workspace(c->layer, params, &p->query, p->key_given, p->value_given,
                                    &bytes)
            : headway_attention_workspace(c->engine, params, &p->query, &p->key, &p->value, &bytes);
    if (failed(c, status, error))
        return -1;
    c->bytes = bytes > c->bytes ? bytes : c->bytes;
    return 0;
}

int compute_open(struct computation *c, const struct problem *p, char *error)
{
    headway_status status;
    memset(c, 0, sizeof *c);
    c->problem = p;
    if (engine_open(p->options, &c->engine, c->line)) {
        keep_line(error, c->line);
        return -1;
    }
    if (p->is_layer) {
        status = headway_mha_create(c->engine, &p->layer.config, &p->layer.weights, &c->layer);
        if (failed(c, status, error))
            return -1;
    }
    if (reserve(c, &p->params, error))
        return -1;
    if (p->probs.data && p->mean.data) {
        headway_attention_params params = p->params;
        params.weights = &p->mean_tensor;
        if (reserve(c, &params, error))
            return -1;
    }
    if (options_cached(p->options)) {
        int opened = steps_open(&c->steps, p, c->engine, c->layer, error);
        return opened > 0 ? failed(c, HEADWAY_ERROR_ARGUMENT, error) : opened;
    }
    size_t rounded = (c->bytes / HEADWAY_WORKSPACE_ALIGNMENT + 1) * HEADWAY_WORKSPACE_ALIGNMENT;
    c->workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, rounded);
    if (!c->workspace) {
        snprintf(error, ERROR_SIZE, "memory ran out, %zu bytes of workspace wanted", c->bytes);
        return -1;
    }
    return 0;
}

void compute_close(struct computation *c)
{
    steps_close(&c->steps);
    headway_mha_destroy(c->layer);
    headway_engine_destroy(c->engine);
    free(c->workspace);
}

static int run(const struct computation *c, const headway_attention_params *params, char *error)
{
    const struct problem *p = c->problem;
    headway_status status;
    if (p->is_layer)
        status = headway_mha_forward(c->layer, params, &p->query, p->key_given, p->value_given,
                                     &p->out, c->workspace, c->bytes);
    else
        status = headway_attention(c->engine, params, &p->query, &p->key, &p->value, &p->out,
                                   c->workspace, c->bytes);
    return failed(c, status, error);
}

int compute_run(struct computation *c, char *error)
{
    const struct problem *p = c->problem;
    if (c->steps.cache)
        return failed(c, steps_run(&c->steps, 0), error);
    if (run(c, &p->params, error))
        return -1;
    if (!p->probs.data || !p->mean.data)
        return 0;
    /* A call gives the weights or their mean. */
    headway_attention_params params = p->params;
    params.weights = &p->mean_tensor;
    return run(c, &params, error);
}

int compute_explain(struct computation *c, char *error)
{
    const struct problem *p = c->problem;
    if (c->steps.cache)
        return failed(c, steps_run(&c->steps, 1), error);
    char text[8192];
    headway_status status;
    if (p->is_layer)
        status = headway_mha_explain(c->layer, &p->params, &p->query, p->key_given, p->value_given,
                                     text, sizeof text);
    else
        status = headway_attention_explain(c->engine, &p->params, &p->query, &p->key, &p->value,
                                           text, sizeof text);
    if (failed(c, status, error))
        return -1;
    size_t length = strlen(text);
    printf("%s%s", text, length && text[length - 1] == '\n' ? "" : "\n");
    return 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double time_median(int64_t runs, int (*body)(void *context), void *context)
{
    double *times = malloc((size_t)runs * sizeof *times);
    if (!times || body(context)) {
        free(times);
        return -1;
    }
    int shows = isatty(STDERR_FILENO), shown = 0;
    double start = seconds(), told = start;
    for (int64_t i = 0; i < runs; i++) {
        double from = seconds();
        if (body(context)) {
            free(times);
            return -1;
        }
        double now = seconds();
        times[i] = now - from;
        if (shows && now - told > 1.0) {
            fprintf(stderr, "\rrun %lld of %lld", (long long)(i + 1), (long long)runs);
            told = now;
            shown = 1;
        }
    }
    if (shown)
        fprintf(stderr, "\r\033[K");
    qsort(times, (size_t)runs, sizeof *times, ascending);
    double median = (times[(runs - 1) / 2] + times[runs / 2]) / 2;
    free(times);
    return median;
}

struct repeated {
    struct computation *computation;
    char *error;
};

static int run_once(void *context)
{
    const struct repeated *r = context;
    return compute_run(r->computation, r->error);
}

int compute_repeat(struct computation *c, int64_t runs, char *error)
{
    const struct headway_row *row = headway_engine_machine(c->engine).row;
    int threads = headway_engine_threads(c->engine);
    struct repeated repeated = {c, error};
    snprintf(error, ERROR_SIZE, "memory ran out, times of %lld runs wanted", (long long)runs);
    double peak = fma_peak(row, threads);
    double median = time_median(runs, run_once, &repeated);
    if (median < 0)
        return -1;
    double rate = problem_flops(c->problem) / median;
    const char *plural = threads == 1 ? "" : "s";
    if (isatty(STDOUT_FILENO))
        printf("%-20s %12s %10s %10s %7s\n%-8s %3d thread%-1s %12.4g %10.4g %10.4g %7.3f\n", "",
               "median ms", "GFLOP/s", "FMA peak", "share", row->name, threads, plural,
               median * 1e3, rate * 1e-9, peak * 1e-9, rate / peak);
    else
        printf("time %.6g ms (median of %lld), %.4g GFLOP/s, %.3f of the FMA peak (%s, %d "
               "thread%s: %.4g GFLOP/s)\n",
               median * 1e3, (long long)runs, rate * 1e-9, rate / peak, row->name, threads, plural,
               peak * 1e-9);
    return 0;
}
