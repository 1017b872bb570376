/* The engine as the other API files see it. */
#ifndef HEADWAY_ENGINE_H
#define HEADWAY_ENGINE_H

#include "cpu/kernels.h"
#include "headway/headway.h"

/* Row and threads are fixed at create. */
const struct headway_row *headway_engine_row(const headway_engine *engine);

/* Stores the detail text (printf-style), sends it to the log, and returns status. engine NULL: only
 * returns status. */
headway_status headway_fail(const headway_engine *engine, headway_status status, const char *format,
                            ...) __attribute__((format(printf, 3, 4)));

/* Among the rows that run with `tiers` (tiers.h): entry `name`, or the best when name is NULL. On
 * failure (NOT_BUILT, CANNOT_RUN) *reason is filled with a sentence naming the row. */
headway_status headway_row_choose(const char *name, uint32_t tiers, const struct headway_row **row,
                                  char *reason, size_t reason_size);

#endif
