#include "cli/info.h"

#include "cli/compute.h"
#include "cli/machine.h"
#include "oracle/onednn.h"

#include <stdio.h>
#include <string.h>

static void print_row(const headway_isa_info *row, const char *chosen)
{
    int tells = !row->runs && row->reason && row->reason[0];
    printf("isa %s %s %s%s%s%s\n", row->name, row->built ? "built" : "absent",
           row->runs ? "runs" : "cannot-run", tells ? ": " : "", tells ? row->reason : "",
           chosen && strcmp(row->name, chosen) == 0 ? " (chosen)" : "");
}

int info_print(const struct options *options, char *error)
{
    if (options->weights)
        return layer_list(options->weights, error);
    headway_engine *engine = NULL;
    headway_isa_info row;
    char line[ERROR_SIZE];
    int failed = engine_open(options, &engine, line);
    for (int i = 0; headway_isa_at(i, &row) == HEADWAY_OK; i++)
        print_row(&row, engine ? headway_engine_isa(engine) : NULL);
    printf("%s\n", headway_onednn_about());
    machine_print();
    if (engine)
        printf("threads %d\n", headway_engine_threads(engine));
    else
        snprintf(error, ERROR_SIZE, "%s", line);
    headway_engine_destroy(engine);
    return failed;
}
