/* The frame of a call that computes: floating-point modes, and what the trace is told. */
#ifndef HEADWAY_CALL_H
#define HEADWAY_CALL_H

#include "api/engine.h"
#include "core/attend.h"
#include "core/linear.h"

struct headway_call {
    const headway_engine *engine;
    struct headway_float_mode before;
    int traced; /* else what follows means nothing, and no clock is read */
    int64_t start, last;
    headway_trace trace;
};

/* From begin to end, which returns `status`, the thread has the modes of headway_float_enter(). end
 * tells the engine's trace when status is OK. */
void headway_call_begin(struct headway_call *call, const headway_engine *engine, const char *name);
headway_status headway_call_end(struct headway_call *call, headway_status status);

/* The engine's machine, for tasks of this call. */
struct headway_machine headway_call_machine(const struct headway_call *call);

/* How much of the workspace the call uses. */
static inline void headway_call_workspace(struct headway_call *call, size_t bytes)
{
    if (call->traced)
        call->trace.workspace = (int64_t)bytes;
}

/* That a part of the call could use as many threads, wherever it ran. */
void headway_call_threads(struct headway_call *call, int threads);

/* What was done since begin or the last phase was `name`. */
void headway_call_phase(struct headway_call *call, const char *name);

/* Count what a part of the call does; the time that takes is nobody's. Lengths are those that the
 * part sees. */
void headway_call_attention(struct headway_call *call, const struct headway_problem *problem,
                            const struct headway_attend_plan *plan);
void headway_call_linear(struct headway_call *call, const struct headway_linear_job *jobs,
                         int count);
void headway_call_append(struct headway_call *call, const struct headway_store *store,
                         int64_t kv_heads, int64_t size, int64_t value_size, int64_t tokens);

#endif
