/* The engine: the chosen row, the threads, and the text of the last error. */
#include "api/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/tiers.h"
#include "system/memory.h"
#include "system/parallel.h"

#define TEXT_SIZE 512

/* holder is the process that is at the text, 0 when none is. A process finds another's number there
 * only when it was forked while a thread of its parent was: that thread will never let go, so the
 * lock is taken over and the half-written text dropped. Errors alone come here, and can afford to ask
 * for the process. */
struct last_error {
    atomic_int holder;
    char text[TEXT_SIZE];
};

/* Everything but the text behind `last` is fixed at create. */
struct headway_engine {
    struct headway_machine machine;
    struct headway_memory memory;
    headway_log_fn *log;
    void *log_context;
    headway_trace_fn *trace;
    void *trace_context;
    struct last_error *last;
    struct last_error storage;
};

static void lock(struct last_error *last)
{
    const int self = headway_process();
    int holder = 0;

    while (!atomic_compare_exchange_weak_explicit(&last->holder, &holder, self,
                                                  memory_order_acquire, memory_order_relaxed))
        if (holder == self)
            holder = 0;
    if (holder != 0)
        last->text[0] = '\0';
}

static void unlock(struct last_error *last)
{
    atomic_store_explicit(&last->holder, 0, memory_order_release);
}

headway_status headway_fail(const headway_engine *engine, headway_status status, const char *format,
                            ...)
{
    const int saved = errno;
    char text[TEXT_SIZE];
    va_list arguments;

    if (!engine)
        return status;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lock(engine->last);
    memcpy(engine->last->text, text, sizeof text);
    unlock(engine->last);
    if (engine->log)
        engine->log(engine->log_context, text);
    errno = saved;
    return status;
}

size_t headway_engine_error(const headway_engine *engine, char *text, size_t size)
{
    char copy[TEXT_SIZE] = "";
    size_t length, taken;

    if (engine) {
        lock(engine->last);
        memcpy(copy, engine->last->text, sizeof copy);
        unlock(engine->last);
    }
    length = strlen(copy);
    if (text && size > 0) {
        taken = length < size - 1 ? length : size - 1;
        memcpy(text, copy, taken);
        text[taken] = '\0';
    }
    return length;
}

static void tell(const headway_engine_config *config, const char *line)
{
    if (config->log)
        config->log(config->log_context, line);
}

static headway_status check_config(const headway_engine_config *config)
{
    char line[TEXT_SIZE];

    if (config->threads < 0 || config->threads > HEADWAY_MAX_THREADS) {
        snprintf(line, sizeof line, "threads is %d, expected 0 (what the machine allows) .. %d",
                 config->threads, HEADWAY_MAX_THREADS);
        tell(config, line);
        return HEADWAY_ERROR_ARGUMENT;
    }
    if (!config->allocate != !config->release) {
        tell(config, config->allocate
                         ? "release is NULL, expected a function, as allocate is given"
                         : "allocate is NULL, expected a function, as release is given");
        return HEADWAY_ERROR_ARGUMENT;
    }
    return HEADWAY_OK;
}

static headway_status choose_row(const headway_engine_config *config,
                                 const struct headway_row **row)
{
    const struct headway_cpu_registers registers = headway_cpu_read();
    const char *name = config->isa;
    char reason[TEXT_SIZE];
    headway_status status;

    if (!name) {
        name = getenv("HEADWAY_ISA");
        if (name && !*name)
            name = NULL;
    }
    status = headway_row_choose(name, headway_cpu_tiers(&registers), row, reason, sizeof reason);
    if (status != HEADWAY_OK)
        tell(config, reason);
    return status;
}

static const struct headway_row *narrower_than(const struct headway_row *row)
{
    const struct headway_row_entry *entry;
    for (int i = 0; row->narrower && (entry = headway_row_at(i)); i++)
        if (strcmp(entry->name, row->narrower) == 0)
            return entry->row;
    return NULL;
}

static struct headway_team team_of(const headway_engine_config *config)
{
    struct headway_team team = {.parallel_for = config->parallel_for,
                                .context = config->parallel_context};

    if (config->parallel_for) {
        team.threads = headway_threads_of_caller(config->threads);
    } else {
        team.threads = headway_threads_allowed(config->threads);
        team.process = headway_process();
    }
    return team;
}

/* An engine on that row, of a configuration that is right. */
static void fill(headway_engine *made, const headway_engine_config *config,
                 const struct headway_row *row)
{
    made->machine.row = row;
    made->machine.narrow = narrower_than(row);
    made->machine.team = team_of(config);
    made->machine.level2 = headway_level2_bytes();
    made->memory.allocate = config->allocate;
    made->memory.release = config->release;
    made->memory.context = config->memory_context;
    made->log = config->log;
    made->log_context = config->log_context;
    made->trace = config->trace;
    made->trace_context = config->trace_context;
    made->last = &made->storage;
    atomic_init(&made->storage.holder, 0);
    memset(made->storage.text, 0, sizeof made->storage.text);
}

headway_status headway_engine_create(const headway_engine_config *config, headway_engine **engine)
{
    static const headway_engine_config defaults = HEADWAY_ENGINE_CONFIG_INIT;
    const struct headway_row *row;
    headway_engine *made;
    headway_status status;

    /* A struct of another size may hold its log function elsewhere: it can't be told. */
    if (!engine || (config && config->size != sizeof *config))
        return HEADWAY_ERROR_ARGUMENT;
    if (!config)
        config = &defaults;
    status = check_config(config);
    if (status == HEADWAY_OK)
        status = choose_row(config, &row);
    if (status != HEADWAY_OK)
        return status;
    const struct headway_memory memory = {config->allocate, config->release,
                                          config->memory_context};
    made = headway_allocate(&memory, sizeof *made);
    if (!made) {
        tell(config, "no memory for the engine");
        return HEADWAY_ERROR_MEMORY;
    }
    fill(made, config, row);
    *engine = made;
    return HEADWAY_OK;
}

void headway_engine_destroy(headway_engine *engine)
{
    if (!engine)
        return;
    const struct headway_memory memory = engine->memory;
    headway_release(&memory, engine);
}

struct headway_machine headway_engine_machine(const headway_engine *engine)
{
    return engine->machine;
}

const struct headway_memory *headway_engine_memory(const headway_engine *engine)
{
    return &engine->memory;
}

headway_trace_fn *headway_engine_trace(const headway_engine *engine, void **context)
{
    *context = engine->trace_context;
    return engine->trace;
}

const char *headway_engine_isa(const headway_engine *engine)
{
    return engine ? engine->machine.row->name : "";
}

int headway_engine_threads(const headway_engine *engine)
{
    if (!engine)
        return 1;
    /* A forked child has none of the threads that its parent's OpenMP counts on. */
    const struct headway_team *team = &engine->machine.team;
    return team->threads == 1 || !team->process || team->process == headway_process()
               ? team->threads
               : 1;
}

headway_status headway_isa_at(int index, headway_isa_info *info)
{
    const struct headway_row_entry *entry = headway_row_at(index);
    const struct headway_cpu_registers registers = headway_cpu_read();
    const char *missing;

    if (!entry || !info)
        return HEADWAY_ERROR_ARGUMENT;
    info->name = entry->name;
    info->built = entry->row != NULL;
    missing = entry->row ? headway_tier_missing(entry->row->tiers, headway_cpu_tiers(&registers))
                         : entry->absent;
    info->runs = missing == NULL;
    info->reason = missing ? missing : "";
    return HEADWAY_OK;
}
