#include "scheduler.h"
#include "clock.h"
#include "slots.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one call of the layer takes. */
struct batch {
    int64_t sequences, rows;
    struct sequence **sequence; /* (slots) whose rows are starts[i] .. starts[i + 1] - 1 */
    int64_t *starts, *slots;
    float *in, *out; /* (step_tokens, E) */
    void *workspace;
    size_t workspace_size;
};

struct scheduler {
    struct scheduler_config config;
    const headway_engine *engine;
    const struct model *model;
    struct metrics *metrics;
    headway_kv_cache *cache;
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows, up to the next comment */
    pthread_cond_t wake;
    struct sequence *first, **last; /* that wait */
    int64_t queued;
    int stopping, started;
    struct slots slots;
    struct sequence *running; /* in the order in which they were let in */
    int64_t pages_free;
    /* The thread's own. */
    struct batch batch;
};

/* ---- one step -------------------------------------------------------------------------------- */

static int64_t length_of(const struct sequence *sequence)
{
    return sequence->tokens + sequence->steps;
}

static void add(struct scheduler *s, struct sequence *sequence, int64_t rows)
{
    struct batch *batch = &s->batch;
    int64_t width = s->model->sizes.query_width;
    memcpy(batch->in + batch->rows * width, sequence->values + sequence->done * width,
           (size_t)(rows * width) * sizeof(float));
    batch->sequence[batch->sequences] = sequence;
    batch->slots[batch->sequences] = sequence->slot;
    batch->rows += rows;
    batch->starts[++batch->sequences] = batch->rows;
}

/* A token for each sequence that is past its prompt, then chunks of prompts while there is room. */
static struct metrics_work gather(struct scheduler *s)
{
    struct metrics_work work = {0};
    s->batch.sequences = s->batch.rows = s->batch.starts[0] = 0;
    for (struct sequence *q = s->running; q; q = q->next)
        if (q->done >= q->tokens) {
            add(s, q, 1);
            work.decode++;
        }
    for (struct sequence *q = s->running; q && s->batch.rows < s->config.step_tokens; q = q->next)
        if (q->done < q->tokens) {
            int64_t rows = q->tokens - q->done, room = s->config.step_tokens - s->batch.rows;
            rows = rows < s->config.chunk ? rows : s->config.chunk;
            rows = rows < room ? rows : room;
            add(s, q, rows);
            work.prefill += rows;
        }
    work.sequences = s->batch.sequences;
    return work;
}

static int make_room(struct batch *batch, size_t bytes)
{
    if (bytes <= batch->workspace_size)
        return 0;
    free(batch->workspace);
    batch->workspace_size = 0;
    if (posix_memalign(&batch->workspace, HEADWAY_WORKSPACE_ALIGNMENT, bytes + bytes / 2) != 0) {
        batch->workspace = NULL;
        return -1;
    }
    batch->workspace_size = bytes + bytes / 2;
    return 0;
}

static headway_status forward(struct scheduler *s)
{
    struct batch *batch = &s->batch;
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    int64_t shape[3] = {1, batch->rows, s->model->sizes.query_width};
    headway_tensor in = headway_tensor_dense(batch->in, HEADWAY_F32, 3, shape);
    headway_tensor out = headway_tensor_dense(batch->out, HEADWAY_F32, 3, shape);
    size_t bytes = 0;
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    params.sequences = batch->sequences;
    params.query_starts = batch->starts;
    params.cache = s->cache;
    params.cache_slots = batch->slots;
    headway_status status =
        headway_mha_workspace(s->model->layer, &params, &in, NULL, NULL, &bytes);
    if (status == HEADWAY_OK && make_room(batch, bytes))
        status = HEADWAY_ERROR_MEMORY;
    if (status == HEADWAY_OK)
        status = headway_mha_forward(s->model->layer, &params, &in, NULL, NULL, &out,
                                     batch->workspace, batch->workspace_size);
    return status;
}

static int is_finite(const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return 0;
    return 1;
}

/* States out take the place of states in. */
static void scatter(struct scheduler *s, headway_status status)
{
    const struct batch *batch = &s->batch;
    int64_t width = s->model->sizes.query_width;
    for (int64_t i = 0; i < batch->sequences; i++) {
        struct sequence *q = batch->sequence[i];
        int64_t rows = batch->starts[i + 1] - batch->starts[i];
        if (status != HEADWAY_OK) {
            q->status = 500;
            snprintf(q->error, SEQUENCE_ERROR, "the layer failed: %s", headway_status_text(status));
            continue;
        }
        const float *out = batch->out + batch->starts[i] * width;
        memcpy(q->values + q->done * width, out, (size_t)(rows * width) * sizeof(float));
        q->done += rows;
        if (!is_finite(out, rows * width)) {
            q->status = 422;
            snprintf(q->error, SEQUENCE_ERROR, "the states out are not all finite numbers");
        } else if (q->done == length_of(q)) {
            q->status = 200;
        }
    }
}

static void step(struct scheduler *s)
{
    char detail[MODEL_ERROR];
    struct metrics_work work = gather(s);
    double from = clock_seconds();
    headway_status status = forward(s);
    scatter(s, status);
    metrics_step(s->metrics, &work, clock_seconds() - from);
    if (status != HEADWAY_OK) {
        headway_engine_error(s->engine, detail, sizeof detail);
        fprintf(stderr, "headway-serve: a step of %lld rows failed: %s: %s\n",
                (long long)s->batch.rows, headway_status_text(status), detail);
    }
}

/* ---- who runs -------------------------------------------------------------------------------- */

/* Moves those with a status out of the running ones. */
static struct sequence *take_finished(struct scheduler *s, double now)
{
    struct sequence *finished = NULL, **at = &s->running;
    while (*at) {
        struct sequence *q = *at;
        if (!q->status) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        q->next = finished;
        finished = q;
        slots_take(&s->slots, q, q->status == 200 && *q->session && !q->last, now);
    }
    return finished;
}

static void dequeue(struct scheduler *s)
{
    s->first = s->first->next;
    if (!s->first)
        s->last = &s->first;
    s->queued--;
}

/* Lets in what waits while there is room; returns those that are refused. */
static struct sequence *admit(struct scheduler *s, double now)
{
    struct sequence *refused = NULL, **end = &s->running;
    while (*end)
        end = &(*end)->next;
    while (s->first) {
        struct sequence *q = s->first;
        enum slots_result result = slots_give(&s->slots, q);
        if (result == SLOTS_WAIT && now - q->since > s->config.queue_seconds) {
            q->status = 503;
            snprintf(q->error, SEQUENCE_ERROR, "the server is busy");
            result = SLOTS_REFUSED;
        }
        if (result == SLOTS_WAIT)
            break;
        dequeue(s);
        q->next = NULL;
        if (result == SLOTS_GIVEN) {
            *end = q;
            end = &q->next;
        } else {
            q->next = refused;
            refused = q;
        }
    }
    return refused;
}

/* All that waits or runs, with status 503. */
static struct sequence *give_up(struct scheduler *s)
{
    struct sequence *all;
    for (struct sequence *q = s->running; q; q = q->next)
        q->status = 503;
    all = take_finished(s, 0);
    while (s->first) {
        struct sequence *q = s->first;
        dequeue(s);
        q->status = 503;
        q->next = all;
        all = q;
    }
    for (struct sequence *q = all; q; q = q->next)
        snprintf(q->error, SEQUENCE_ERROR, "the server is stopping");
    return all;
}

static void tell(struct sequence *sequences)
{
    while (sequences) {
        struct sequence *next = sequences->next;
        sequences->finished(sequences);
        sequences = next;
    }
}

/* Until something is submitted, a second at most: sessions and waiting have their time. */
static void rest(struct scheduler *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&s->wake, &s->mutex, &until);
}

static void note_pages(struct scheduler *s)
{
    headway_kv_cache_state state = HEADWAY_KV_CACHE_STATE_INIT;
    if (headway_kv_cache_get_state(s->cache, 0, &state) == HEADWAY_OK)
        s->pages_free = state.pages_free;
}

static void *run(void *context)
{
    struct scheduler *s = context;
    pthread_mutex_lock(&s->mutex);
    while (!s->stopping) {
        double now = clock_seconds();
        slots_expire(&s->slots, now - s->config.session_seconds);
        struct sequence *refused = admit(s, now);
        note_pages(s);
        if (!s->running && !refused) {
            rest(s);
            continue;
        }
        pthread_mutex_unlock(&s->mutex);
        tell(refused);
        if (s->running)
            step(s);
        pthread_mutex_lock(&s->mutex);
        struct sequence *finished = take_finished(s, clock_seconds());
        note_pages(s);
        pthread_mutex_unlock(&s->mutex);
        tell(finished);
        pthread_mutex_lock(&s->mutex);
    }
    struct sequence *all = give_up(s);
    pthread_mutex_unlock(&s->mutex);
    tell(all);
    return NULL;
}

/* ---- from outside ---------------------------------------------------------------------------- */

int scheduler_submit(struct scheduler *s, struct sequence *sequence)
{
    int result = -1;
    pthread_mutex_lock(&s->mutex);
    if (!s->stopping) {
        sequence->status = 0;
        sequence->done = 0;
        sequence->next = NULL;
        sequence->since = clock_seconds();
        *s->last = sequence;
        s->last = &sequence->next;
        s->queued++;
        pthread_cond_signal(&s->wake);
        result = 0;
    }
    pthread_mutex_unlock(&s->mutex);
    return result;
}

void scheduler_state(struct scheduler *s, struct metrics_state *state)
{
    pthread_mutex_lock(&s->mutex);
    state->slots_used = slots_used(&s->slots);
    state->slots_free = s->config.slots - state->slots_used;
    state->sessions = slots_sessions(&s->slots);
    state->pages_free = s->pages_free;
    state->pages_used = s->config.pages - s->pages_free;
    state->queued = s->queued;
    state->running = 0;
    for (int64_t i = 0; i < s->slots.count; i++)
        state->running += s->slots.slot[i].sequence != NULL;
    pthread_mutex_unlock(&s->mutex);
}

static headway_status make_cache(struct scheduler *s)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    config.sequences = s->config.slots;
    config.kv_heads = s->model->sizes.kv_heads;
    config.head_size = s->model->sizes.head_size;
    config.value_head_size = s->model->sizes.value_head_size;
    config.capacity = s->config.capacity;
    config.page_size = s->config.page_size;
    config.pages = s->config.pages;
    return headway_kv_cache_create(s->engine, &config, &s->cache);
}

static int make_batch(struct scheduler *s)
{
    struct batch *batch = &s->batch;
    size_t slots = (size_t)s->config.slots;
    size_t floats = (size_t)(s->config.step_tokens * s->model->sizes.query_width);
    batch->sequence = calloc(slots, sizeof *batch->sequence);
    batch->starts = calloc(slots + 1, sizeof *batch->starts);
    batch->slots = calloc(slots, sizeof *batch->slots);
    batch->in = malloc(floats * sizeof(float));
    batch->out = malloc(floats * sizeof(float));
    s->slots.slot = calloc(slots, sizeof *s->slots.slot);
    return batch->sequence && batch->starts && batch->slots && batch->in && batch->out &&
                   s->slots.slot
               ? 0
               : -1;
}

static int start(struct scheduler *s)
{
    pthread_condattr_t steady;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &steady);
    pthread_condattr_destroy(&steady);
    s->started = pthread_create(&s->thread, NULL, run, s) == 0;
    return s->started ? 0 : -1;
}

struct scheduler *scheduler_create(const headway_engine *engine, const struct model *model,
                                   const struct scheduler_config *config, struct metrics *metrics,
                                   char error[MODEL_ERROR])
{
    struct scheduler *s = calloc(1, sizeof *s);
    snprintf(error, MODEL_ERROR, "out of memory or threads");
    if (!s)
        return NULL;
    s->config = *config;
    s->engine = engine;
    s->model = model;
    s->metrics = metrics;
    s->last = &s->first;
    s->pages_free = config->pages;
    if (make_cache(s) != HEADWAY_OK)
        headway_engine_error(engine, error, MODEL_ERROR);
    else if (make_batch(s) == 0) {
        s->slots.cache = s->cache;
        s->slots.capacity = config->capacity;
        s->slots.count = config->slots;
        s->slots.page_size = config->page_size;
        s->slots.pages = config->pages;
        if (start(s) == 0)
            return s;
    }
    scheduler_destroy(s);
    return NULL;
}

void scheduler_stop(struct scheduler *s)
{
    pthread_mutex_lock(&s->mutex);
    s->stopping = 1;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
    if (s->started)
        pthread_join(s->thread, NULL);
    s->started = 0;
}

void scheduler_destroy(struct scheduler *s)
{
    if (!s)
        return;
    headway_kv_cache_destroy(s->cache);
    free(s->slots.slot);
    free(s->batch.sequence);
    free(s->batch.starts);
    free(s->batch.slots);
    free(s->batch.in);
    free(s->batch.out);
    free(s->batch.workspace);
    free(s);
}
