/* The library inside somebody else's program: foreign floating-point modes, threads of every kind,
 * forks, small stacks, the trace. Whatever is around it, everything() gives the same bits and finds
 * the thread as it was. */
#include "check_guest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"

static float *expected;

headway_engine *guest_make(headway_engine_config config, const struct headway_row *row)
{
    headway_engine *engine = NULL;
    config.isa = row->name;
    const headway_status status = headway_engine_create(&config, &engine);
    if (status != HEADWAY_OK) {
        fprintf(stderr, "test: no engine: %s\n", headway_status_text(status));
        exit(1);
    }
    return engine;
}

const char *differs(const headway_engine *engine, float *out)
{
    const char *wrong = everything(engine, out);
    return *wrong                                                 ? wrong
           : memcmp(out, expected, EVERYTHING * sizeof *out) != 0 ? "other bits"
                                                                  : "";
}

void expect_same(const headway_engine *engine, const char *where)
{
    float *out = malloc(EVERYTHING * sizeof *out);
    const char *wrong = out ? differs(engine, out) : "no memory";
    CHECK(!*wrong, "%s: %s", where, wrong);
    free(out);
}

int main(int argc, char **argv)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    const struct headway_row *row;
    int index = 0, any = 0;
    check_begin(argc, argv);
    const int quick = check_option("--quick", 0) != 0;
    everything_begin();
    expected = malloc(EVERYTHING * sizeof *expected);
    config.threads = 1;
    while ((row = check_next_row(&index)) != NULL) {
        headway_engine *engine = guest_make(config, row);
        const char *wrong = any++ ? "" : everything(engine, expected);
        if (check_case("%s: alone", row->name)) {
            CHECK(!*wrong, "%s", wrong);
            expect_same(engine, "again");
        }
        headway_engine_destroy(engine);
        check_guest_modes(row, quick);
        check_guest_threads(row);
        check_guest_trace(row);
        check_guest_forks(row);
    }
    free(expected);
    everything_end();
    return check_end();
}
