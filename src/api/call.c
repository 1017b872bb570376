/* clock_gettime */
#define _POSIX_C_SOURCE 200809L
#include "api/call.h"

#include <string.h>
#include <time.h>

#include "core/tile.h"

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

void headway_call_begin(struct headway_call *call, const headway_engine *engine, const char *name)
{
    void *context;

    call->engine = engine;
    call->before = headway_float_enter();
    call->traced = headway_engine_trace(engine, &context) != NULL;
    if (!call->traced)
        return;
    memset(&call->trace, 0, sizeof call->trace);
    call->trace.size = sizeof call->trace;
    call->trace.call = name;
    call->trace.isa = headway_engine_isa(engine);
    call->trace.path = "";
    call->trace.threads = 1;
    call->start = call->last = now();
}

headway_status headway_call_end(struct headway_call *call, headway_status status)
{
    headway_float_leave(call->before);
    if (call->traced && status == HEADWAY_OK) {
        void *context;
        headway_trace_fn *const trace = headway_engine_trace(call->engine, &context);
        const struct headway_machine machine = headway_engine_machine(call->engine);
        call->trace.nanoseconds = call->last - call->start;
        call->trace.threads =
            (int)headway_at_most(call->trace.threads, headway_team_threads(&machine.team));
        trace(context, &call->trace);
    }
    return status;
}

struct headway_machine headway_call_machine(const struct headway_call *call)
{
    struct headway_machine machine = headway_engine_machine(call->engine);
    machine.team.before = call->before;
    return machine;
}

void headway_call_phase(struct headway_call *call, const char *name)
{
    if (!call->traced || call->trace.phases == HEADWAY_TRACE_PHASES)
        return;
    const int64_t end = now();
    call->trace.phase[call->trace.phases].name = name;
    call->trace.phase[call->trace.phases].nanoseconds = end - call->last;
    call->trace.phases++;
    call->last = end;
}

/* The clock stands still while something is counted. */
static void resume(struct headway_call *call, int64_t stopped)
{
    const int64_t taken = now() - stopped;

    call->start += taken;
    call->last += taken;
}

void headway_call_threads(struct headway_call *call, int threads)
{
    if (call->traced && threads > call->trace.threads)
        call->trace.threads = threads;
}

/* Keys that the lanes see, by anything but the mask. */
static double keys_seen(const struct headway_problem *p, const struct headway_lanes *l)
{
    int64_t seen = 0;
    for (int lane = 0; lane < l->n; lane++) {
        int64_t first = 0, last = 0;
        if (l->prefix > 0)
            headway_mask_prefix(p, l, lane, &first, &last);
        const int64_t from = first > l->first[lane] ? first : l->first[lane];
        const int64_t both = headway_at_most(last, l->last[lane]) - from;
        seen += l->last[lane] - l->first[lane] + last - first - (both > 0 ? both : 0) + p->appended;
    }
    return (double)seen;
}

static int64_t bytes_of_key(const struct headway_pool *pool, int64_t size)
{
    return size * headway_storage_bytes(pool->storage) +
           (pool->scale ? (int64_t)sizeof *pool->scale : 0);
}

void headway_call_attention(struct headway_call *call, const struct headway_problem *problem,
                            const struct headway_attend_plan *plan)
{
    if (!call->traced)
        return;
    const int64_t stopped = now(), sizes = problem->size + problem->value_size;
    const struct headway_store *store = problem->cached.store;
    const int64_t of_key = store ? bytes_of_key(&store->key, problem->size) +
                                       bytes_of_key(&store->value, problem->value_size)
                                 : sizes * (int64_t)sizeof(float);
    struct headway_lanes l = {.group = 1};
    double pairs = 0.0, bytes = 0.0;
    for (l.b = 0; l.b < problem->batch; l.b++) {
        const int64_t rows = headway_query_length(problem, l.b);
        l.query_start = problem->query_starts ? problem->query_starts[l.b] : 0;
        for (l.start = 0; l.start < rows; l.start += l.n) {
            l.n = (int)headway_at_most(rows - l.start, HEADWAY_MAX_WIDTH);
            l.width = l.n;
            headway_mask_ranges(problem, &l);
            pairs += keys_seen(problem, &l);
        }
        bytes += (double)(rows * problem->heads * sizes) * sizeof(float) +
                 (double)(headway_key_length(problem, l.b) * problem->kv_heads * of_key);
    }
    call->trace.path =
        headway_attend_few(&plan->cut, problem->query_rows * plan->group) ? "few rows" : "tiles";
    call->trace.tasks = plan->tasks;
    call->trace.flops += pairs * (double)problem->heads * 2.0 * (double)sizes;
    call->trace.bytes += (int64_t)bytes;
    headway_call_threads(call, plan->threads);
    resume(call, stopped);
}

void headway_call_linear(struct headway_call *call, const struct headway_linear_job *jobs,
                         int count)
{
    double flops = 0.0;
    if (!call->traced)
        return;
    const int64_t stopped = now();
    for (int j = 0; j < count; j++) {
        const int64_t outputs = jobs[j].linear->groups * jobs[j].linear->size;
        const int64_t weights = outputs * jobs[j].linear->inputs;
        int64_t tokens = 0;
        for (int64_t b = 0; b < jobs[j].batch; b++)
            tokens += headway_linear_length(&jobs[j], b);
        flops += 2.0 * (double)tokens * (double)weights;
        call->trace.bytes += (tokens * (jobs[j].linear->inputs + outputs) + weights +
                              (jobs[j].linear->bias ? outputs : 0)) *
                             (int64_t)sizeof(float);
    }
    call->trace.flops += flops;
    headway_call_threads(call, headway_threads_for(flops, headway_engine_threads(call->engine)));
    resume(call, stopped);
}

void headway_call_append(struct headway_call *call, const struct headway_store *store,
                         int64_t kv_heads, int64_t size, int64_t value_size, int64_t tokens)
{
    if (!call->traced)
        return;
    call->trace.bytes +=
        tokens * kv_heads *
        ((size + value_size) * (int64_t)sizeof(float) + bytes_of_key(&store->key, size) +
         bytes_of_key(&store->value, value_size));
}
