/* The calls made from ONNX's node tests, each through the command, through its cache as well, and, on
 * every row, through the API: outputs, and the weights after the softmax where ONNX gives them. */
#include <stdio.h>
#include <string.h>

#include "api_call.h"
#include "check.h"
#include "command.h"

enum { CASES = 55, PROBS_CASES = 4 };

struct node_case {
    char name[120], folder[4096];
    double tolerance, probs_tolerance; /* the second 0: no weights */
};

static int computed, probs;

static int start(const struct node_case *node, struct arguments *a, char *text, size_t size)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/args.txt", node->folder);
    FILE *file = fopen(path, "r");
    CHECK(file, "%s is missing", path);
    if (!file)
        return -1;
    size_t length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    fclose(file);
    arguments_begin(a);
    arguments_add(a, "%s", strstr(text, "--weights") ? "run" : "attend");
    arguments_split(a, text);
    arguments_add(a, "--output");
    arguments_add(a, "%s", folder_path("y.npy"));
    return 0;
}

/* The files of one call, which are removed. */
static void compare(const struct node_case *node)
{
    char expected[4400];
    snprintf(expected, sizeof expected, "%s/expected.npy", node->folder);
    expect_close(folder_path("y.npy"), expected, node->tolerance, 0, node->name);
    remove(folder_path("y.npy"));
    if (node->probs_tolerance > 0) {
        snprintf(expected, sizeof expected, "%s/expected-probs.npy", node->folder);
        expect_close(folder_path("probs.npy"), expected, node->probs_tolerance, 0, node->name);
        remove(folder_path("probs.npy"));
    }
}

static void run_case(const struct node_case *node)
{
    struct arguments a;
    struct outcome outcome;
    char text[4096], expected[4400];
    if (start(node, &a, text, sizeof text))
        return;
    snprintf(expected, sizeof expected, "%s/expected-probs.npy", node->folder);
    CHECK(file_exists(expected) == (node->probs_tolerance > 0), "%s and the table disagree",
          expected);
    if (node->probs_tolerance > 0) {
        arguments_add(&a, "--probs");
        arguments_add(&a, "%s", folder_path("probs.npy"));
    }
    command_run(&a, node->folder, NULL, &outcome);
    CHECK(outcome.status == 0, "exit %d: %.300s", outcome.status, outcome.err);
    if (outcome.status)
        return;
    computed++;
    probs += node->probs_tolerance > 0;
    compare(node);
    for (const char *const *row = api_rows(); *row; row++)
        if (api_call(&a, node->folder, *row) == 0)
            compare(node);
    arguments_split(&a, "--cache paged:2 --append 3 --decode 1");
    command_run(&a, node->folder, NULL, &outcome);
    CHECK(outcome.status == 0, "through a cache: exit %d: %.300s", outcome.status, outcome.err);
    if (outcome.status == 0)
        compare(node);
}

int main(int argc, char **argv)
{
    struct arguments a;
    char line[1024];
    int cases = 0, all = 1;
    check_begin(argc, argv);
    if (!arguments_begin(&a)) {
        check_skip("onnx", "HEADWAY_COMMAND does not name the command");
        return check_end();
    }
    folder_make();
    FILE *table = fopen(HEADWAY_TEST_DATA "/onnx/README.md", "r");
    while (table && fgets(line, sizeof line, table)) {
        struct node_case node = {.probs_tolerance = 0};
        if (sscanf(line, "| %119s | %*[^|] | %*[^|] | %lf / %lf", node.name, &node.tolerance,
                   &node.probs_tolerance) < 2)
            continue;
        cases++;
        if (!check_case("onnx/%s", node.name)) {
            all = 0;
            continue;
        }
        snprintf(node.folder, sizeof node.folder, "%s/onnx/%s", HEADWAY_TEST_DATA, node.name);
        run_case(&node);
    }
    if (table)
        fclose(table);
    if (all && check_case("onnx/count"))
        CHECK(cases == CASES && computed == CASES && probs == PROBS_CASES,
              "%d cases, %d computed, %d with weights", cases, computed, probs);
    printf("onnx: %d computed, %d of them with weights\n", computed, probs);
    folder_remove();
    return check_end();
}
