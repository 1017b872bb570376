#ifndef HEADWAY_CHECK_GUEST_H
#define HEADWAY_CHECK_GUEST_H

#include "check.h"
#include "guest.h"

struct headway_row;

/* An engine of that configuration on that row, or the end of the program. */
headway_engine *guest_make(headway_engine_config config, const struct headway_row *row);
/* everything() on the engine gives what one thread gave under the usual modes, bit for bit. */
void expect_same(const headway_engine *engine, const char *where);
/* The same without failing: "" or what is wrong. For threads; `out` is room for EVERYTHING. */
const char *differs(const headway_engine *engine, float *out);

/* The four ways to round and all ways to flush, or --quick: a sample. */
void check_guest_modes(const struct headway_row *row, int quick);
void check_guest_threads(const struct headway_row *row);
void check_guest_forks(const struct headway_row *row);
void check_guest_trace(const struct headway_row *row);

#endif
