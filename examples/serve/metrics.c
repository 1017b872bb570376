#include "metrics.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODES = 16, PHASES = 8, BUCKETS = 12 };

/* counts[i]: values in (bounds[i - 1], bounds[i]]; the last is of what lies beyond. */
struct histogram {
    const double *bounds;
    uint64_t counts[BUCKETS + 1];
    double sum;
};

static const double seconds_bounds[BUCKETS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                               0.05,   0.1,   0.25,   0.5,   1,    5};
static const double count_bounds[BUCKETS] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};

struct metrics {
    pthread_mutex_t mutex;
    struct {
        int code;
        uint64_t count;
    } requests[CODES];
    uint64_t cut_off, abandoned, prefill, decode;
    struct histogram request_seconds, step_seconds, step_rows, step_sequences;
    struct {
        const char *name;
        int64_t nanoseconds;
    } phases[PHASES];
    int64_t memory;
    uint64_t calls;
    double flops, bytes;
};

struct metrics *metrics_create(void)
{
    struct metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics)
        return NULL;
    pthread_mutex_init(&metrics->mutex, NULL);
    metrics->request_seconds.bounds = metrics->step_seconds.bounds = seconds_bounds;
    metrics->step_rows.bounds = metrics->step_sequences.bounds = count_bounds;
    return metrics;
}

void metrics_destroy(struct metrics *metrics)
{
    if (metrics)
        pthread_mutex_destroy(&metrics->mutex);
    free(metrics);
}

static void observe(struct histogram *histogram, double value)
{
    int i = 0;
    while (i < BUCKETS && value > histogram->bounds[i])
        i++;
    histogram->counts[i]++;
    histogram->sum += value;
}

void metrics_request(struct metrics *metrics, int code, double seconds)
{
    pthread_mutex_lock(&metrics->mutex);
    for (int i = 0; i < CODES; i++)
        if (metrics->requests[i].code == code || !metrics->requests[i].code) {
            metrics->requests[i].code = code;
            metrics->requests[i].count++;
            break;
        }
    observe(&metrics->request_seconds, seconds);
    pthread_mutex_unlock(&metrics->mutex);
}

void metrics_broken(struct metrics *metrics, int cut_off)
{
    pthread_mutex_lock(&metrics->mutex);
    if (cut_off)
        metrics->cut_off++;
    else
        metrics->abandoned++;
    pthread_mutex_unlock(&metrics->mutex);
}

void metrics_step(struct metrics *metrics, const struct metrics_work *work, double seconds)
{
    pthread_mutex_lock(&metrics->mutex);
    metrics->prefill += (uint64_t)work->prefill;
    metrics->decode += (uint64_t)work->decode;
    observe(&metrics->step_seconds, seconds);
    observe(&metrics->step_rows, (double)(work->prefill + work->decode));
    observe(&metrics->step_sequences, (double)work->sequences);
    pthread_mutex_unlock(&metrics->mutex);
}

void metrics_memory(struct metrics *metrics, int64_t bytes)
{
    pthread_mutex_lock(&metrics->mutex);
    metrics->memory += bytes;
    pthread_mutex_unlock(&metrics->mutex);
}

/* The names of phases last as long as the library. */
void metrics_trace(void *context, const headway_trace *trace)
{
    struct metrics *metrics = context;
    pthread_mutex_lock(&metrics->mutex);
    metrics->calls++;
    metrics->flops += trace->flops;
    metrics->bytes += (double)trace->bytes;
    for (int p = 0; p < trace->phases; p++)
        for (int i = 0; i < PHASES; i++) {
            const char *name = metrics->phases[i].name;
            if (!name || strcmp(name, trace->phase[p].name) == 0) {
                metrics->phases[i].name = trace->phase[p].name;
                metrics->phases[i].nanoseconds += trace->phase[p].nanoseconds;
                break;
            }
        }
    pthread_mutex_unlock(&metrics->mutex);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP headway_serve_%s %s\n# TYPE headway_serve_%s %s\n", name, help, name,
            type);
}

static void counter(FILE *out, const char *name, const char *help, double value)
{
    head(out, name, "counter", help);
    fprintf(out, "headway_serve_%s %.17g\n", name, value);
}

static void gauge(FILE *out, const char *name, const char *help, int64_t value)
{
    head(out, name, "gauge", help);
    fprintf(out, "headway_serve_%s %" PRId64 "\n", name, value);
}

static void histogram(FILE *out, const char *name, const char *help, const struct histogram *h)
{
    uint64_t below = 0;
    head(out, name, "histogram", help);
    for (int i = 0; i < BUCKETS; i++) {
        below += h->counts[i];
        fprintf(out, "headway_serve_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, h->bounds[i], below);
    }
    below += h->counts[BUCKETS];
    fprintf(out, "headway_serve_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, below);
    fprintf(out, "headway_serve_%s_sum %.17g\n", name, h->sum);
    fprintf(out, "headway_serve_%s_count %" PRIu64 "\n", name, below);
}

static void write_counts(FILE *out, const struct metrics *m)
{
    head(out, "requests_total", "counter", "Requests answered, by status code.");
    for (int i = 0; i < CODES && m->requests[i].code; i++)
        fprintf(out, "headway_serve_requests_total{code=\"%d\"} %" PRIu64 "\n", m->requests[i].code,
                m->requests[i].count);
    head(out, "broken_total", "counter", "Requests that ended without an answer.");
    fprintf(out, "headway_serve_broken_total{by=\"client\"} %" PRIu64 "\n", m->abandoned);
    fprintf(out, "headway_serve_broken_total{by=\"deadline\"} %" PRIu64 "\n", m->cut_off);
    head(out, "tokens_total", "counter", "Tokens that went through the layer.");
    fprintf(out, "headway_serve_tokens_total{phase=\"prefill\"} %" PRIu64 "\n", m->prefill);
    fprintf(out, "headway_serve_tokens_total{phase=\"decode\"} %" PRIu64 "\n", m->decode);
    histogram(out, "request_seconds", "From a request's headers to its answer's last byte.",
              &m->request_seconds);
    histogram(out, "step_seconds", "One call of the layer.", &m->step_seconds);
    histogram(out, "step_rows", "Tokens in one call.", &m->step_rows);
    histogram(out, "step_sequences", "Sequences in one call.", &m->step_sequences);
    gauge(out, "library_bytes", "Memory that the library has.", m->memory);
    counter(out, "layer_calls_total", "Calls that the library traced.", (double)m->calls);
    counter(out, "layer_flops_total", "Their floating-point operations.", m->flops);
    counter(out, "layer_bytes_total", "Their bytes of inputs, outputs, weights and cache.",
            m->bytes);
    head(out, "layer_seconds_total", "counter", "Their time, by phase.");
    for (int i = 0; i < PHASES && m->phases[i].name; i++)
        fprintf(out, "headway_serve_layer_seconds_total{phase=\"%s\"} %.9f\n", m->phases[i].name,
                (double)m->phases[i].nanoseconds * 1e-9);
}

static void write_state(FILE *out, const struct metrics_state *state)
{
    gauge(out, "pages_used", "Pages of the cache that hold tokens.", state->pages_used);
    gauge(out, "pages_free", "Pages of the cache that don't.", state->pages_free);
    gauge(out, "slots_used", "Sequences in the cache.", state->slots_used);
    gauge(out, "slots_free", "Sequences that it has room for.", state->slots_free);
    gauge(out, "queue_length", "Requests that wait for a slot or pages.", state->queued);
    gauge(out, "running", "Requests whose sequences are in the cache.", state->running);
    gauge(out, "sessions", "Sessions whose tokens are kept.", state->sessions);
    gauge(out, "body_bytes", "Bytes of request bodies held.", state->body_bytes);
}

char *metrics_text(struct metrics *metrics, const struct metrics_state *state, size_t *size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (!out)
        return NULL;
    pthread_mutex_lock(&metrics->mutex);
    write_counts(out, metrics);
    pthread_mutex_unlock(&metrics->mutex);
    write_state(out, state);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}
