/* The engine as the other API files see it. */
#ifndef HEADWAY_ENGINE_H
#define HEADWAY_ENGINE_H

#include "core/plan.h"
#include "headway/headway.h"
#include "system/memory.h"

/* What the engine runs on, fixed at create. */
struct headway_machine headway_engine_machine(const headway_engine *engine);

/* Where create functions get memory. Lasts as long as the engine. */
const struct headway_memory *headway_engine_memory(const headway_engine *engine);

/* Whom to tell what a call did, or NULL. */
headway_trace_fn *headway_engine_trace(const headway_engine *engine, void **context);

/* Stores the detail text (printf-style), sends it to the log, and returns status. engine NULL: only
 * returns status. */
headway_status headway_fail(const headway_engine *engine, headway_status status, const char *format,
                            ...) __attribute__((format(printf, 3, 4)));

/* Among the rows that run with `tiers` (tiers.h): entry `name`, or the best when name is NULL. On
 * failure (NOT_BUILT, CANNOT_RUN) *reason is filled with a sentence naming the row. */
headway_status headway_row_choose(const char *name, uint32_t tiers, const struct headway_row **row,
                                  char *reason, size_t reason_size);

#endif
