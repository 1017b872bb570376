/* A command line's computation by direct calls of the library, in this process. */
#ifndef HEADWAY_TEST_API_CALL_H
#define HEADWAY_TEST_API_CALL_H

#include "command.h"

/* The names of the rows to call on, NULL at the end; the others are skipped by name once. */
const char *const *api_rows(void);

/* What the arguments ask for, their files read in `folder`, computed through the public API on the
 * row `isa` and written to the outputs they name. Fails the case when anything goes wrong; returns
 * 0 or -1. */
int api_call(const struct arguments *arguments, const char *folder, const char *isa);

#endif
