/* Small models of known architectures, as case.json says, each run through the command and,
 * on every row, through the API. A run through a cache is made without one too, and through caches
 * of narrower types, for a cache must not change what a run means. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api_call.h"
#include "check.h"
#include "command.h"

enum { RUNS = 18, CACHE_RUNS = 2 };

static const char *const models[] = {"bert", "gpt2", "llama-gqa-rope", "torch-mha"};

struct run {
    const char *model, *label;
    const cJSON *json;
    double tolerance;
    char folder[4096], weights[8192];
};

static int runs, right, refused, cached, all = 1;

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text ? text : "";
}

static char *read_text(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    CHECK(file, "%s is missing", path);
    if (!file)
        exit(1);
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *text = malloc((size_t)length + 1);
    *size = text ? fread(text, 1, (size_t)length, file) : 0;
    if (!text)
        exit(1);
    text[*size] = '\0';
    fclose(file);
    return text;
}

static const char *const cache_options[] = {"--cache", "--append", "--decode", NULL};

static int needs_cache(const struct run *run)
{
    const cJSON *option;
    cJSON_ArrayForEach(
        option, cJSON_GetObjectItemCaseSensitive(
                    run->json, "options")) for (int i = 0; cache_options[i];
                                                i++) if (strcmp(cJSON_GetStringValue(option),
                                                                cache_options[i]) == 0) return 1;
    return 0;
}

/* with_cache 0 leaves the options of a cache out, which all take a value. */
static void add_options(const struct run *run, int with_cache, struct arguments *a)
{
    const cJSON *option = cJSON_GetObjectItemCaseSensitive(run->json, "options")->child;
    for (; option; option = option->next) {
        const char *text = cJSON_GetStringValue(option);
        int of_cache = 0;
        for (int i = 0; cache_options[i]; i++)
            of_cache |= strcmp(text, cache_options[i]) == 0;
        if (!of_cache || with_cache)
            arguments_add(a, "%s", text);
        else
            option = option->next;
    }
}

static void build(const struct run *run, int with_cache, struct arguments *a)
{
    const cJSON *item;
    arguments_begin(a);
    arguments_add(a, "run");
    arguments_add(a, "--weights");
    arguments_add(a, "%s", run->weights);
    if (text_of(run->json, "layer")[0]) {
        arguments_add(a, "--layer");
        arguments_add(a, "%s", text_of(run->json, "layer"));
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(run->json, "inputs"))
    {
        arguments_add(a, "--%s", item->string);
        arguments_add(a, "%s", cJSON_GetStringValue(item));
    }
    add_options(run, with_cache, a);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(run->json, "expected"))
    {
        char name[64];
        snprintf(name, sizeof name, "%s.npy", item->string);
        arguments_add(a, "--%s", item->string);
        arguments_add(a, "%s", folder_path(name));
    }
}

static void refuse(const struct run *run, const char *words)
{
    struct arguments a;
    struct outcome outcome;
    build(run, 1, &a);
    command_run(&a, run->folder, NULL, &outcome);
    expect_refusal(&outcome, words, run->label);
    CHECK(!file_exists(folder_path("output.npy")), "a refusal left an output file");
}

/* The files of one call, which are removed. */
static void compare(const struct run *run, double tolerance)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(run->json, "expected"))
    {
        char name[64], expected[8192];
        snprintf(name, sizeof name, "%s.npy", item->string);
        snprintf(expected, sizeof expected, "%s/%s", run->folder, cJSON_GetStringValue(item));
        expect_close(folder_path(name), expected, tolerance, 1, run->label);
        remove(folder_path(name));
    }
}

static int command(const struct run *run, int with_cache, const char *dtype, double tolerance)
{
    struct arguments a;
    struct outcome outcome;
    build(run, with_cache, &a);
    if (dtype) {
        arguments_add(&a, "--cache-dtype");
        arguments_add(&a, "%s", dtype);
    }
    command_run(&a, run->folder, NULL, &outcome);
    CHECK(outcome.status == 0, "exit %d: %.300s", outcome.status, outcome.err);
    if (outcome.status == 0)
        compare(run, tolerance);
    return outcome.status;
}

static void compute(const struct run *run)
{
    struct arguments a;
    if (command(run, 0, NULL, run->tolerance))
        return;
    build(run, 0, &a);
    for (const char *const *row = api_rows(); *row; row++)
        if (api_call(&a, run->folder, *row) == 0)
            compare(run, run->tolerance);
    right++;
    if (!needs_cache(run))
        return;
    /* Roundings of 2^-11, 2^-8 and 1/254 of a head's largest, in scores that spread widely. */
    if (command(run, 1, NULL, run->tolerance) == 0 && command(run, 1, "f16", 1e-3) == 0 &&
        command(run, 1, "bf16", 8e-3) == 0 && command(run, 1, "int8", 2e-2) == 0)
        cached++;
}

static void run_one(struct run *run)
{
    int config = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(run->json, "config"));
    snprintf(run->weights, sizeof run->weights, "%s",
             config ? run->folder : folder_path("model.safetensors"));
    if (strcmp(text_of(run->json, "expect"), "refuse") == 0) {
        refuse(run, text_of(run->json, "names"));
        refused++;
        return;
    }
    compute(run);
}

static void run_model(const char *model)
{
    struct run run = {.model = model};
    char path[8192];
    size_t size;
    snprintf(run.folder, sizeof run.folder, "%s/models/%s", HEADWAY_TEST_DATA, model);
    snprintf(path, sizeof path, "%s/model.safetensors", run.folder);
    char *weights = read_text(path, &size);
    file_write(folder_path("model.safetensors"), weights, size);
    free(weights);
    snprintf(path, sizeof path, "%s/case.json", run.folder);
    char *text = read_text(path, &size);
    cJSON *json = cJSON_Parse(text);
    run.tolerance = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "tolerance"));
    cJSON_ArrayForEach(run.json, cJSON_GetObjectItemCaseSensitive(json, "runs"))
    {
        run.label = text_of(run.json, "label");
        if (check_case("models/%s/%s", model, run.label)) {
            run_one(&run);
            runs++;
        } else
            all = 0;
    }
    cJSON_Delete(json);
    free(text);
}

int main(int argc, char **argv)
{
    struct arguments a;
    check_begin(argc, argv);
    if (!arguments_begin(&a)) {
        check_skip("models", "HEADWAY_COMMAND does not name the command");
        return check_end();
    }
    folder_make();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        run_model(models[i]);
    printf("models: %d runs: %d computed, %d of them through caches, %d refused\n", runs, right,
           cached, refused);
    if (all && check_case("models/count"))
        CHECK(runs == RUNS && right + refused == RUNS && cached == CACHE_RUNS,
              "%d runs, %d computed, %d through caches, %d refused", runs, right, cached, refused);
    folder_remove();
    return check_end();
}
