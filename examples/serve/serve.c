/* headway-serve: hidden states through a model's attention layer, over HTTP. Exit status: 0 stopped
 * by a signal, 2 bad arguments or files. */
#include "clock.h"
#include "http.h"
#include "metrics.h"
#include "pool.h"
#include "scheduler.h"
#include "weights.h"

#include <getopt.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct settings {
    const char *weights, *layer, *packed, *isa;
    long port, threads, workers, connections, body, bodies, seconds, stop_seconds;
    long tokens, slots, page_size, pages, step_tokens, chunk, requests, queue_seconds,
        session_seconds;
};

struct option_of {
    const char *name;
    long *value;
    long least, most;
    const char *help;
};

enum { NUMBERS = 17 };

static void list_numbers(struct settings *s, struct option_of numbers[NUMBERS])
{
    const struct option_of all[NUMBERS] = {
        {"port", &s->port, 0, 65535, "on the loopback address; 0: a free one"},
        {"threads", &s->threads, 1, 1024, "that compute"},
        {"workers", &s->workers, 1, 64, "threads that read bodies and write answers"},
        {"connections", &s->connections, 8, 65536, "at a time"},
        {"body", &s->body, 1024, 1 << 30, "bytes of a request, at most"},
        {"bodies", &s->bodies, 1024, 1L << 40, "bytes of all that are being read, at most"},
        {"seconds", &s->seconds, 1, 3600, "a client has for a request, and for its answer"},
        {"stop-seconds", &s->stop_seconds, 0, 3600, "for what runs when a signal comes"},
        {"tokens", &s->tokens, 1, 1 << 20, "of a sequence, at most"},
        {"slots", &s->slots, 1, 65536, "sequences in the cache at a time"},
        {"page-size", &s->page_size, 1, 256, "tokens of a page, a power of two"},
        {"pages", &s->pages, 1, 1 << 24, "of the cache"},
        {"step-tokens", &s->step_tokens, 1, 1 << 20, "of one call of the layer, at most"},
        {"chunk", &s->chunk, 1, 1 << 20, "tokens of one prompt in a call, at most"},
        {"requests", &s->requests, 1, 1 << 20, "computed or waiting at a time; more get 503"},
        {"queue-seconds", &s->queue_seconds, 1, 3600, "that one waits, at most"},
        {"session-seconds", &s->session_seconds, 1, 86400, "that an idle session is kept"},
    };
    memcpy(numbers, all, sizeof all);
}

static void help(const struct option_of *numbers)
{
    printf("headway-serve --weights FILE.safetensors [options]\n"
           "  --layer NAME          as model.layers.0; the first one in the file\n"
           "  --packed PREFIX       where packed weights are kept between starts\n"
           "  --isa NAME            avx512, avx2, neon, scalar; the best that runs\n");
    for (int i = 0; i < NUMBERS; i++)
        printf("  --%-19s %s; %ld\n", numbers[i].name, numbers[i].help, *numbers[i].value);
}

static int read_number(const struct option_of *option, const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (!*text || *end || value < option->least || value > option->most) {
        fprintf(stderr, "headway-serve: --%s is %s, expected %ld to %ld\n", option->name, text,
                option->least, option->most);
        return -1;
    }
    *option->value = value;
    return 0;
}

/* 0: go on; 1: help was asked for; -1: an error was told. */
static int read_arguments(int argc, char **argv, struct settings *s)
{
    struct option_of numbers[NUMBERS];
    const char **const texts[] = {&s->weights, &s->layer, &s->packed, &s->isa};
    struct option options[NUMBERS + 6] = {{"weights", 1, NULL, 'a'},
                                          {"layer", 1, NULL, 'b'},
                                          {"packed", 1, NULL, 'c'},
                                          {"isa", 1, NULL, 'd'},
                                          {"help", 0, NULL, 'h'}};
    int code, index = 0;
    list_numbers(s, numbers);
    for (int i = 0; i < NUMBERS; i++)
        options[5 + i] = (struct option){numbers[i].name, 1, NULL, 0};
    while ((code = getopt_long(argc, argv, "", options, &index)) != -1) {
        if (code == 'h') {
            help(numbers);
            return 1;
        }
        if (code == '?' || (code == 0 && read_number(&numbers[index - 5], optarg)))
            return -1;
        if (code >= 'a' && code <= 'd')
            *texts[code - 'a'] = optarg;
    }
    if (optind < argc || !s->weights || s->slots > s->step_tokens ||
        s->pages * s->page_size < s->tokens) {
        fprintf(stderr, "headway-serve: %s\n",
                optind < argc               ? "it takes options alone"
                : !s->weights               ? "--weights is missing; --help says more"
                : s->slots > s->step_tokens ? "--step-tokens is less than --slots"
                                            : "--pages do not hold one sequence of --tokens");
        return -1;
    }
    return 0;
}

/* ---- the server ------------------------------------------------------------------------------ */

/* When the last request is gone, what the allocator kept of its memory goes back to the system. */
static void tidy(struct http *http, int *busy)
{
    int pending = http_pending(http);
#ifdef __GLIBC__
    if (*busy && !pending)
        malloc_trim(0);
#endif
    *busy = pending > 0;
}

static int serve(const struct settings *s, const sigset_t *stops, struct scheduler *scheduler,
                 const struct model *model, struct metrics *metrics)
{
    const struct http_config config = {.port = (int)s->port,
                                       .workers = (int)s->workers,
                                       .connections = (int)s->connections,
                                       .requests = (int)s->requests,
                                       .body = (size_t)s->body,
                                       .bodies = (size_t)s->bodies,
                                       .tokens = s->tokens,
                                       .seconds = (double)s->seconds};
    const struct timespec tick = {.tv_nsec = 200000000}, short_tick = {.tv_nsec = 10000000};
    int busy = 0;
    struct http *http = http_start(&config, scheduler, model, metrics);
    if (!http) {
        fprintf(stderr, "headway-serve: port %ld can't be had\n", s->port);
        return 2;
    }
    printf("listening on 127.0.0.1:%d\n", http_port(http));
    fflush(stdout);
    while (sigtimedwait(stops, NULL, &tick) < 0) {
        http_tick(http);
        tidy(http, &busy);
    }
    http_refuse(http);
    for (double end = clock_seconds() + (double)s->stop_seconds;
         http_pending(http) && clock_seconds() < end;) {
        http_tick(http);
        nanosleep(&short_tick, NULL);
    }
    scheduler_stop(scheduler);
    http_stop(http);
    return 0;
}

static int with_model(const struct settings *s, const sigset_t *stops, const headway_engine *engine,
                      struct metrics *metrics)
{
    const struct scheduler_config config = {.capacity = s->tokens,
                                            .slots = s->slots,
                                            .page_size = s->page_size,
                                            .pages = s->pages,
                                            .step_tokens = s->step_tokens,
                                            .chunk = s->chunk,
                                            .queue_seconds = (double)s->queue_seconds,
                                            .session_seconds = (double)s->session_seconds};
    char error[MODEL_ERROR];
    struct model model;
    struct scheduler *scheduler = NULL;
    int status = 2;
    if (model_open(engine, s->weights, s->layer, s->tokens, s->packed, &model, error) == 0)
        scheduler = scheduler_create(engine, &model, &config, metrics, error);
    if (model.packed)
        fprintf(stderr, "headway-serve: weights mapped, %zu bytes\n", model.packed_size);
    if (scheduler)
        status = serve(s, stops, scheduler, &model, metrics);
    else
        fprintf(stderr, "headway-serve: %s\n", error);
    if (scheduler)
        scheduler_stop(scheduler);
    scheduler_destroy(scheduler);
    model_close(&model);
    return status;
}

static void log_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "headway-serve: %s\n", line);
}

/* The library's memory, touched at once: what the cache and the weights take is there from the
 * start, and not found missing under load. */
static void *allocate(void *context, size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes) != 0)
        return NULL;
    memset(memory, 0, bytes);
    metrics_memory(context, (int64_t)bytes);
    return memory;
}

static void release(void *context, void *memory, size_t bytes)
{
    free(memory);
    metrics_memory(context, -(int64_t)bytes);
}

static int with_engine(const struct settings *s, const sigset_t *stops)
{
    struct metrics *metrics = metrics_create();
    struct pool *pool = pool_create((int)s->threads);
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = NULL;
    int status = 2;
    config.isa = s->isa;
    config.threads = (int)s->threads;
    config.log = log_line;
    config.parallel_for = pool_run;
    config.parallel_context = pool;
    config.allocate = allocate;
    config.release = release;
    config.memory_context = metrics;
    config.trace = metrics_trace;
    config.trace_context = metrics;
    if (metrics && pool && headway_engine_create(&config, &engine) == HEADWAY_OK)
        status = with_model(s, stops, engine, metrics);
    else
        fprintf(stderr, "headway-serve: no engine, no threads or no memory\n");
    headway_engine_destroy(engine);
    pool_destroy(pool);
    metrics_destroy(metrics);
    return status;
}

int main(int argc, char **argv)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct settings settings = {.port = 8080,
                                .threads = processors > 0 ? processors : 1,
                                .workers = 2,
                                .connections = 1024,
                                .body = 16 << 20,
                                .bodies = 256 << 20,
                                .seconds = 10,
                                .stop_seconds = 10,
                                .tokens = 512,
                                .slots = 64,
                                .page_size = 16,
                                .pages = 1024,
                                .step_tokens = 512,
                                .chunk = 64,
                                .requests = 256,
                                .queue_seconds = 30,
                                .session_seconds = 60};
    sigset_t stops;
    int result = read_arguments(argc, argv, &settings);
    if (result)
        return result < 0 ? 2 : 0;
#ifdef __GLIBC__
    /* Set, it stays: by itself it would follow the largest bodies, and malloc_trim() does not
     * see the ends of other threads' heaps. */
    mallopt(M_TRIM_THRESHOLD, 256 << 10);
#endif
    /* Blocked before there are threads, so that the signals wait for sigtimedwait(). */
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stops, NULL);
    signal(SIGPIPE, SIG_IGN);
    return with_engine(&settings, &stops);
}
