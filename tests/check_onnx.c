/* The calls made from ONNX's node tests, each through the command. Those that need options of later
 * versions must be refused by name; they are counted and named. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "command.h"

enum { CASES = 55, LATER_CASES = 14, PROBS_CASES = 4 };

static const char *const later[] = {"--window", "--softcap", "--rope-table", "--alibi", "--sink"};

struct node_case {
    char name[120], folder[4096];
    double tolerance;
};

static int computed, refused, probs;

/* The option in args.txt that this version doesn't have, or NULL. */
static const char *needs_later(const char *arguments)
{
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strstr(arguments, later[i]))
            return later[i];
    return NULL;
}

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

/* The weights after the softmax that ONNX gives for some cases are an output of a later version. */
static void refuse_probs(const struct node_case *node, struct arguments *a)
{
    char path[4400];
    struct outcome outcome;
    snprintf(path, sizeof path, "%s/expected-probs.npy", node->folder);
    if (!file_exists(path))
        return;
    arguments_add(a, "--probs");
    arguments_add(a, "%s", folder_path("probs.npy"));
    command_run(a, node->folder, NULL, &outcome);
    expect_refusal(&outcome, "--probs|not in this version", node->name);
    printf("onnx: the weights of %s need --probs of a later version\n", node->name);
    probs++;
}

static void run_case(const struct node_case *node)
{
    struct arguments a;
    struct outcome outcome;
    char text[4096], expected[4400];
    if (start(node, &a, text, sizeof text))
        return;
    const char *option = needs_later(text);
    command_run(&a, node->folder, NULL, &outcome);
    if (option) {
        expect_refusal(&outcome, option, node->name);
        expect_refusal(&outcome, "not in this version", node->name);
        CHECK(!file_exists(folder_path("y.npy")), "a refusal left an output file");
        printf("onnx: %s needs %s of a later version\n", node->name, option);
        refused++;
        return;
    }
    CHECK(outcome.status == 0, "exit %d: %.300s", outcome.status, outcome.err);
    if (outcome.status)
        return;
    snprintf(expected, sizeof expected, "%s/expected.npy", node->folder);
    expect_close(folder_path("y.npy"), expected, node->tolerance, 0, node->name);
    computed++;
    refuse_probs(node, &a);
    remove(folder_path("y.npy"));
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
        struct node_case node;
        if (sscanf(line, "| %119s | %*[^|] | %*[^|] | %lf", node.name, &node.tolerance) != 2)
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
        CHECK(cases == CASES && computed == CASES - LATER_CASES && refused == LATER_CASES &&
                  probs == PROBS_CASES,
              "%d cases, %d computed, %d refused, %d with weights", cases, computed, refused,
              probs);
    printf("onnx: %d computed, %d of later versions refused by name\n", computed, refused);
    folder_remove();
    return check_end();
}
