/* The server under load: many clients, bad ones among them, every answer compared byte for byte
 * with the one the layer gives alone. Exit status 0: all as it must be. */
#include "bad.h"
#include "client.h"
#include "clock.h"
#include "server.h"
#include "talks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TALKS = 48, WARM_UP = 5, STACK = 1 << 18 };

static struct {
    const char *server, *weights, *layer;
    char **more; /* arguments for the server */
    int clients, longest, memory,
        slow; /* memory: its growth is looked at; slow: slow ones take part */
    long requests;
} given = {NULL, NULL, NULL, NULL, 200, 200, 1, 1, 1500};

static struct {
    struct server server;
    int64_t width;
    struct talk talks[TALKS];
    atomic_long next, failures, good, bad, busy, again, tokens, started_over;
    long until;      /* of next: where this part of the load ends */
    double *latency; /* (room) of good answers */
    long room;
    double seconds;
} run;

/* ---- one good request ------------------------------------------------------------------------ */

struct caller {
    int client, closed; /* -1: not connected; its sending half is closed */
    struct answer answer;
    uint64_t seed;
    char *text; /* the request with its session's name in it */
};

static uint64_t draw(struct caller *caller)
{
    caller->seed ^= caller->seed << 13;
    caller->seed ^= caller->seed >> 7;
    return caller->seed ^= caller->seed << 17;
}

static void hang_up(struct caller *caller)
{
    if (caller->client >= 0)
        close(caller->client);
    caller->client = -1;
    caller->closed = 0;
}

/* In one piece, in several, in chunks of its own, or with the sending half closed behind it. */
static int say(struct caller *caller, const char *text, size_t size)
{
    unsigned way = (unsigned)(draw(caller) % 16);
    if (caller->client < 0)
        caller->client = client_connect(run.server.port);
    if (caller->client < 0)
        return -1;
    if (way == 0) {
        for (size_t at = 0, piece = size / 5 + 1; at < size; at += piece) {
            if (client_send(caller->client, text + at, size - at < piece ? size - at : piece))
                return -1;
            client_sleep(0.002);
        }
        return 0;
    }
    if (client_send(caller->client, text, size))
        return -1;
    caller->closed = way == 1 && shutdown(caller->client, SHUT_WR) == 0;
    return 0;
}

/* The status, 0 when the connection was closed instead. */
static int ask(struct caller *caller, const char *text, size_t size)
{
    caller->answer.status = 0;
    if (say(caller, text, size) == 0)
        client_receive(caller->client, &caller->answer);
    if (!caller->answer.status || caller->answer.closes || caller->closed || draw(caller) % 8 == 0)
        hang_up(caller);
    return caller->answer.status;
}

static int fail(const char *what, int status, const struct answer *answer)
{
    printf("FAIL %s: status %d: %.300s\n", what, status, status ? answer->body : "");
    run.failures++;
    return -1;
}

static void note(double seconds, const struct part *part)
{
    long at = run.good++;
    if (at < run.room)
        run.latency[at] = seconds;
    run.tokens += part->tokens;
}

/* 0 answered rightly, 1 the session is gone, -1 a failure. */
static int converse(struct caller *caller, const struct part *part, const char *name)
{
    memcpy(caller->text, part->text, part->text_size);
    if (part->name)
        memcpy(caller->text + part->name, name, NAME);
    for (int tries = 0; tries < 2000; tries++) {
        double from = clock_seconds();
        int status = ask(caller, caller->text, part->text_size);
        if (status == 200) {
            if (caller->answer.size != part->answer_size ||
                memcmp(caller->answer.body, part->answer, part->answer_size) != 0)
                return fail("a wrong answer", status, &caller->answer);
            note(clock_seconds() - from, part);
            return 0;
        }
        if (status == 409 && part->name)
            return 1;
        if (status != 503 && status != 0)
            return fail("a good request", status, &caller->answer);
        *(status ? &run.busy : &run.again) += 1;
        client_sleep((double)(1 + draw(caller) % 64) * 0.001 * (tries < 16 ? tries + 1 : 16));
    }
    return fail("a good request, 2000 times", 0, &caller->answer);
}

/* All parts of a talk; a session that had to make room is begun anew. */
static void talk(struct caller *caller)
{
    const struct talk *talk = &run.talks[draw(caller) % TALKS];
    char name[NAME + 1];
    int result = 1;
    if (run.next >= run.until)
        return;
    run.next += talk->parts;
    for (int tries = 0; result == 1 && tries < 100; tries++) {
        snprintf(name, sizeof name, "%08x", (unsigned)draw(caller));
        run.started_over += tries > 0;
        result = 0;
        for (int i = 0; i < talk->parts && result == 0; i++)
            result = converse(caller, &talk->part[i], name);
    }
    if (result == 1)
        fail("a session, 100 times", 409, &caller->answer);
}

/* Asks and does not wait for the answer. */
static void leave(struct caller *caller)
{
    const struct part *part = &run.talks[draw(caller) % TALKS].part[0];
    hang_up(caller);
    if (part->name)
        return;
    say(caller, part->text, part->text_size);
    hang_up(caller);
}

static void *client(void *number)
{
    struct caller caller = {.client = -1, .seed = 0x9e3779b97f4a7c15u * ((uintptr_t)number + 1)};
    size_t longest = 0;
    for (int t = 0; t < TALKS; t++)
        for (int i = 0; i < run.talks[t].parts; i++)
            if (run.talks[t].part[i].text_size > longest)
                longest = run.talks[t].part[i].text_size;
    caller.text = malloc(longest);
    while (caller.text && run.next < run.until && !run.failures) {
        talk(&caller);
        if (draw(&caller) % 6 == 0) {
            int index = (int)(run.bad++ % bad_count());
            if (bad_run(index, run.server.port, run.width, &caller.answer))
                run.failures++;
        }
        if (draw(&caller) % 32 == 0)
            leave(&caller);
    }
    hang_up(&caller);
    client_forget(&caller.answer);
    free(caller.text);
    return NULL;
}

/* Those that a short load did not come to. */
static void bad_rest(void)
{
    struct answer answer = {0};
    while (run.bad < bad_count())
        run.failures += bad_run((int)run.bad++, run.server.port, run.width, &answer) != 0;
    client_forget(&answer);
}

static void *slow_client(void *number)
{
    if (slow_run((int)(uintptr_t)number, run.server.port))
        run.failures++;
    return NULL;
}

/* ---- the run --------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The clients, and so many slow ones, until so many requests were taken. */
static void load(long until, int slow)
{
    int count = given.clients + slow;
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    run.until = until;
    double from = clock_seconds();
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], &attributes, i < slow ? slow_client : client,
                           (void *)(uintptr_t)(i < slow ? i : i - slow))) {
            printf("FAIL thread %d can't be started\n", i);
            exit(1);
        }
    for (int i = slow; i < count; i++)
        pthread_join(threads[i], NULL);
    run.seconds += clock_seconds() - from;
    for (int i = 0; i < slow; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    pthread_attr_destroy(&attributes);
}

static void report(void)
{
    long good = run.good, known = good < run.room ? good : run.room;
    qsort(run.latency, (size_t)known, sizeof *run.latency, compare);
    printf("%ld good requests of %ld tokens by %d clients, %ld bad ones, in %.1f s\n", good,
           (long)run.tokens, given.clients, (long)run.bad, run.seconds);
    printf("%.0f requests/s, %.0f tokens/s; latency p50 %.1f ms, p99 %.1f ms, largest %.1f ms\n",
           (double)good / run.seconds, (double)run.tokens / run.seconds,
           run.latency[known / 2] * 1e3, run.latency[known * 99 / 100] * 1e3,
           run.latency[known - 1] * 1e3);
    printf(
        "refused with 503 and asked again: %ld, closed and asked again: %ld, sessions begun anew: "
        "%ld\n",
        (long)run.busy, (long)run.again, (long)run.started_over);
}

/* Pages, slots and bytes are all given back. What clients left behind is computed to its end, and
 * sessions are kept for a while. */
static void settle(void)
{
    static const char *const zero[] = {"pages_used", "slots_used", "queue_length",
                                       "running",    "sessions",   "body_bytes"};
    double value = 0;
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        for (int tries = 0; tries < 600 && (value = server_metric(&run.server, zero[i])) != 0;
             tries++)
            client_sleep(0.1);
        if (value != 0) {
            printf("FAIL %s is %g after the load\n", zero[i], value);
            run.failures++;
        }
    }
    client_sleep(
        1); /* a few of the server's ticks, of which one without a request gives memory back */
}

static void check_counts(void)
{
    const struct server *server = &run.server;
    double answered = server_metric(server, "requests_total{code=\"200\"}");
    if (answered < (double)run.good || server_metric(server, "requests_total{code=\"500\"}") > 0) {
        printf("FAIL the server counts %g answers, the clients %ld\n", answered, (long)run.good);
        run.failures++;
    }
    double steps = server_metric(server, "step_rows_count");
    printf(
        "%.0f steps of %.1f rows and %.1f sequences; in the layer: attend %.2f s, project %.2f s, "
        "out %.2f s\n",
        steps, server_metric(server, "step_rows_sum") / steps,
        server_metric(server, "step_sequences_sum") / steps,
        server_metric(server, "layer_seconds_total{phase=\"attend\"}"),
        server_metric(server, "layer_seconds_total{phase=\"project\"}"),
        server_metric(server, "layer_seconds_total{phase=\"out\"}"));
}

/* HEAD is GET without the body; a refusal names what the path takes. */
static void check_methods(void)
{
    static const struct {
        const char *request, *status, *header;
        int body;
    } methods[] = {
        {"HEAD /healthz", "HTTP/1.1 200 ", "\r\nContent-Length: 16\r\n", 0},
        {"HEAD /metrics", "HTTP/1.1 200 ", "\r\nContent-Length: ", 0},
        {"HEAD /v1/states", "HTTP/1.1 405 ", "\r\nAllow: POST\r\n", 0},
        {"GET /v1/states", "HTTP/1.1 405 ", "\r\nAllow: POST\r\n", 1},
        {"POST /healthz", "HTTP/1.1 405 ", "\r\nAllow: GET, HEAD\r\n", 1},
        {"DELETE /metrics", "HTTP/1.1 405 ", "\r\nAllow: GET, HEAD\r\n", 1},
    };
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char text[200], got[4096];
        size_t have = 0;
        ssize_t more = 0;
        int client = client_connect(run.server.port);
        int size = snprintf(text, sizeof text,
                            "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                            methods[i].request);
        client_send(client, text, (size_t)size);
        do
            have += (size_t)more;
        while ((more = recv(client, got + have, sizeof got - 1 - have, 0)) > 0);
        close(client);
        got[have] = 0;
        const char *end = strstr(got, "\r\n\r\n");
        if (strncmp(got, methods[i].status, strlen(methods[i].status)) != 0 ||
            !strstr(got, methods[i].header) || !end || !end[4] != !methods[i].body) {
            printf("FAIL %s: %s\n", methods[i].request, got);
            run.failures++;
        }
    }
}

/* Both at rest. What the allocator may keep is 256 KB for each of some 8 threads (see the server's
 * mallopt()), or 2 %. */
static void check_memory(long before, long after)
{
    long allowed = before / 50 > 2048 ? before / 50 : 2048;
    int grows = given.memory && after - before > allowed;
    printf("%sresident at rest: %ld KB after %ld good requests, %ld KB after %ld\n",
           grows ? "FAIL " : "", before, given.requests / WARM_UP, after, (long)run.good);
    run.failures += grows;
}

static void *last_client(void *number)
{
    struct caller caller = {.client = -1, .seed = (uintptr_t)number + 12345};
    const struct part *part = &run.talks[1].part[0];
    (void)number;
    int status = ask(&caller, part->text, part->text_size);
    if (status == 200 && (caller.answer.size != part->answer_size ||
                          memcmp(caller.answer.body, part->answer, part->answer_size) != 0))
        fail("a wrong answer at the end", status, &caller.answer);
    else if (status != 200 && status != 503 && status != 0)
        fail("a request at the end", status, &caller.answer);
    run.good += status == 200;
    hang_up(&caller);
    client_forget(&caller.answer);
    return NULL;
}

/* A signal comes while requests run and one is being sent that does not end: answers are right or
 * refusals, and the server ends by itself. */
static void check_stop(void)
{
    enum { LAST = 24 };
    pthread_t threads[LAST], slow;
    long before = run.good;
    pthread_create(&slow, NULL, slow_client, (void *)(uintptr_t)2);
    client_sleep(0.3);
    for (uintptr_t i = 0; i < LAST; i++)
        pthread_create(&threads[i], NULL, last_client, (void *)i);
    for (int tries = 0; tries < 100 && run.good == before; tries++)
        client_sleep(0.001);
    int status = server_stop(&run.server);
    for (int i = 0; i < LAST; i++)
        pthread_join(threads[i], NULL);
    pthread_join(slow, NULL);
    printf("stopped amid %d requests, %ld of them answered: exit status %d\n", LAST,
           (long)run.good - before, status);
    if (status != 0 || run.good == before) {
        printf("FAIL the stop\n");
        run.failures++;
    }
}

static int with_model(void)
{
    char error[MODEL_ERROR];
    headway_engine *engine = NULL;
    struct model model = {0};
    int failed = headway_engine_create(NULL, &engine) != HEADWAY_OK;
    if (!failed)
        failed = model_open(engine, given.weights, given.layer, given.longest, NULL, &model, error);
    if (failed)
        printf("FAIL %s\n", engine ? error : "no engine");
    else
        failed = talks_make(engine, &model, given.longest, TALKS, run.talks);
    run.width = model.sizes.query_width;
    model_close(&model);
    headway_engine_destroy(engine);
    return failed;
}

static int read_arguments(int argc, char **argv)
{
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            given.more = argv + i + 1;
            break;
        }
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--no-memory") == 0)
            given.memory = 0;
        else if (strcmp(argv[i], "--no-slow") == 0)
            given.slow = 0;
        else if (strcmp(argv[i], "--layer") == 0 && ++i)
            given.layer = value;
        else if (strcmp(argv[i], "--requests") == 0 && ++i)
            given.requests = atol(value);
        else if (strcmp(argv[i], "--clients") == 0 && ++i)
            given.clients = atoi(value);
        else if (strcmp(argv[i], "--longest") == 0 && ++i)
            given.longest = atoi(value);
        else
            return -1;
    }
    return argc < 3 || given.requests < 100 || given.clients < 1 || given.longest < 1;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (read_arguments(argc, argv)) {
        fprintf(stderr, "serve-load SERVER WEIGHTS [--layer NAME] [--requests N] [--clients N] "
                        "[--longest TOKENS] [--no-memory] [--no-slow] [-- SERVER'S ARGUMENTS]\n");
        return 2;
    }
    given.server = argv[1];
    given.weights = argv[2];
    run.room = given.requests * 2 + given.clients * PARTS;
    run.latency = calloc((size_t)run.room, sizeof *run.latency);
    if (!run.latency || with_model() ||
        server_start(&run.server, given.server, given.weights, given.layer, given.longest,
                     given.more))
        return 1;
    load(given.requests / WARM_UP, 0);
    settle();
    long before = server_resident(&run.server);
    load(given.requests, given.slow ? slow_count() : 0);
    bad_rest();
    settle();
    report();
    check_counts();
    check_methods();
    check_memory(before, server_resident(&run.server));
    check_stop();
    talks_free(run.talks, TALKS);
    free(run.latency);
    printf("%s\n", run.failures ? "FAIL" : "passed");
    return run.failures != 0;
}
