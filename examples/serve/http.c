#include "http.h"
#include "clients.h"
#include "clock.h"
#include "json.h"
#include "workers.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_ROOM = 16384, CONNECTION_MEMORY = 65536 };

struct http {
    struct http_config config;
    struct scheduler *scheduler;
    const struct model *model;
    struct metrics *metrics;
    struct MHD_Daemon *daemon;
    struct workers *workers;
    struct clients clients;
    MHD_socket listening;  /* of a daemon that takes no more connections */
    pthread_mutex_t mutex; /* of what follows */
    size_t bodies;
    int pending, refusing; /* requests without their whole answer; a stop has begun */
    int inside;            /* of them, between body and answer */
};

enum stage { READING, READ, COMPUTING, ANSWERED };

struct request {
    struct job job; /* first, so that a job is its request */
    struct http *http;
    struct MHD_Connection *connection;
    struct client *client;
    enum stage stage;
    const char *allow; /* methods of the path, of a request by another */
    double since;
    char *body;
    size_t size, room;
    int status; /* of the answer; before the body's end, of a refusal that waits for that */
    char error[JSON_ERROR];
    char *text; /* of the answer, with status 200 */
    size_t text_size;
    struct json_request json;
    struct sequence sequence;
};

void http_tick(struct http *http)
{
    clients_cut_off(&http->clients, clock_seconds() - http->config.seconds);
}

static void on_connection(void *context, struct MHD_Connection *connection, void **client,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http *http = context;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (what != MHD_CONNECTION_NOTIFY_STARTED)
        clients_go(&http->clients, *client);
    else
        *client = info ? clients_come(&http->clients, info->connect_fd) : NULL;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* text is freed, in the end. */
static enum MHD_Result answer(struct request *request, int status, char *text, size_t size,
                              const char *type)
{
    struct MHD_Response *response =
        text ? MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!response) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, request->allow);
    request->status = status;
    request->stage = ANSWERED;
    clients_turn(&request->http->clients, request->client, clock_seconds());
    enum MHD_Result result = MHD_queue_response(request->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct request *request, int status, const char *why)
{
    char *text = json_error(why);
    return answer(request, status, text, text ? strlen(text) : 0, "application/json");
}

static enum MHD_Result answer_metrics(struct request *request)
{
    struct http *http = request->http;
    struct metrics_state state = {0};
    size_t size = 0;
    scheduler_state(http->scheduler, &state);
    pthread_mutex_lock(&http->mutex);
    state.body_bytes = (int64_t)http->bodies;
    pthread_mutex_unlock(&http->mutex);
    char *text = metrics_text(http->metrics, &state, &size);
    return answer(request, MHD_HTTP_OK, text, size, "text/plain; version=0.0.4");
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* Books `room` bytes for a body, or gives back what is there with 0. */
static int book(struct request *request, size_t room)
{
    struct http *http = request->http;
    pthread_mutex_lock(&http->mutex);
    int fits = http->bodies - request->room + room <= http->config.bodies || room == 0;
    if (fits) {
        http->bodies += room - request->room;
        request->room = room;
    }
    pthread_mutex_unlock(&http->mutex);
    return fits ? 0 : -1;
}

static void drop_body(struct request *request)
{
    book(request, 0);
    free(request->body);
    request->body = NULL;
    request->size = 0;
}

/* Keeps a piece of the body. What is refused here is read to its end, for the answer's sake. */
static void receive(struct request *request, const char *data, size_t size)
{
    const struct http_config *config = &request->http->config;
    if (request->status)
        return;
    if (size > config->body - request->size) {
        request->status = MHD_HTTP_CONTENT_TOO_LARGE;
    } else if (request->size + size > request->room) {
        size_t room = request->room ? request->room * 2 : FIRST_ROOM;
        while (room < request->size + size)
            room *= 2;
        char *body = book(request, room) == 0 ? realloc(request->body, room) : NULL;
        if (body)
            request->body = body;
        else
            request->status = MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    if (request->status) {
        drop_body(request);
        return;
    }
    memcpy(request->body + request->size, data, size);
    request->size += size;
}

/* ---- from a body to an answer: on the workers' threads and the scheduler's, which take time -- */

static void refuse_later(struct request *request, int status, const char *why)
{
    request->status = status;
    snprintf(request->error, sizeof request->error, "%s", why);
}

static void write_answer(struct job *job)
{
    struct request *request = (struct request *)job;
    const struct sequence *sequence = &request->sequence;
    if (sequence->status != MHD_HTTP_OK) {
        refuse_later(request, sequence->status, sequence->error);
    } else {
        request->status = MHD_HTTP_OK;
        request->text = json_answer(sequence->values, sequence->tokens, sequence->steps,
                                    request->http->model->sizes.query_width, &request->text_size);
        if (!request->text)
            refuse_later(request, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory");
    }
    MHD_resume_connection(request->connection);
}

/* Sequences are all finished before the workers are stopped. */
static void on_finished(struct sequence *sequence)
{
    struct request *request = sequence->context;
    workers_post(request->http->workers, &request->job, write_answer);
}

static int submit(struct request *request)
{
    struct sequence *sequence = &request->sequence;
    sequence->tokens = request->json.tokens;
    sequence->steps = request->json.steps;
    sequence->values = request->json.values;
    sequence->session = request->json.session;
    sequence->past = request->json.past;
    sequence->last = request->json.last;
    sequence->finished = on_finished;
    sequence->context = request;
    return scheduler_submit(request->http->scheduler, sequence);
}

static void read_body(struct job *job)
{
    struct request *request = (struct request *)job;
    const struct http *http = request->http;
    request->status =
        json_read(request->body ? request->body : "", request->size, http->model->sizes.query_width,
                  http->config.tokens, &request->json, request->error);
    drop_body(request);
    if (!request->status) {
        if (submit(request) == 0)
            return;
        refuse_later(request, MHD_HTTP_SERVICE_UNAVAILABLE, "the server is busy");
    }
    MHD_resume_connection(request->connection);
}

/* ---- requests: on libmicrohttpd's threads, which must not be kept waiting -------------------- */

static int enter(struct http *http)
{
    pthread_mutex_lock(&http->mutex);
    int full = http->inside >= http->config.requests;
    http->inside += !full;
    pthread_mutex_unlock(&http->mutex);
    return full;
}

static void leave(struct http *http)
{
    pthread_mutex_lock(&http->mutex);
    http->inside--;
    pthread_mutex_unlock(&http->mutex);
}

/* The end of the body. What follows is left to another turn: libmicrohttpd resumes a connection
 * with the wishes that it had before it was suspended. In this turn it still wishes to read,
 * would meet the end of a half-closed stream, and drop the connection with its answer; after a
 * turn without an answer it wishes nothing. */
static enum MHD_Result end_body(struct request *request)
{
    if (request->status == MHD_HTTP_CONTENT_TOO_LARGE)
        return refuse(request, request->status, "the body is too large");
    if (request->status || enter(request->http))
        return refuse(request, MHD_HTTP_SERVICE_UNAVAILABLE, "the server is busy");
    request->stage = READ;
    return MHD_YES;
}

/* Suspended first: the answer may be there before workers_post() returns. */
static enum MHD_Result compute(struct request *request)
{
    request->stage = COMPUTING;
    clients_turn(&request->http->clients, request->client, 0);
    MHD_suspend_connection(request->connection);
    if (workers_post(request->http->workers, &request->job, read_body)) {
        refuse_later(request, MHD_HTTP_SERVICE_UNAVAILABLE, "the server is stopping");
        MHD_resume_connection(request->connection);
    }
    return MHD_YES;
}

static enum MHD_Result deliver(struct request *request)
{
    leave(request->http);
    char *text = request->text;
    request->text = NULL;
    return text ? answer(request, request->status, text, request->text_size, "application/json")
                : refuse(request, request->status, request->error);
}

/* What can be said with nothing but the headers. */
static enum MHD_Result begin(struct request *request, const char *path, const char *method)
{
    struct http *http = request->http;
    /* libmicrohttpd leaves the body of an answer to HEAD away. */
    int get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    int post = strcmp(method, "POST") == 0;
    int states = strcmp(path, "/v1/states") == 0, health = strcmp(path, "/healthz") == 0;
    const char *length = MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND,
                                                     MHD_HTTP_HEADER_CONTENT_LENGTH);
    pthread_mutex_lock(&http->mutex);
    int refusing = http->refusing;
    pthread_mutex_unlock(&http->mutex);
    if (!states && !health && strcmp(path, "/metrics") != 0)
        return refuse(request, MHD_HTTP_NOT_FOUND, "no such path");
    request->allow = states ? "POST" : "GET, HEAD";
    if (states ? !post : !get)
        return refuse(request, MHD_HTTP_METHOD_NOT_ALLOWED, "not a method of this path");
    if (refusing && (states || health))
        return refuse(request, MHD_HTTP_SERVICE_UNAVAILABLE, "the server is stopping");
    if (health)
        return answer(request, MHD_HTTP_OK, strdup("{\"status\":\"ok\"}\n"), 16,
                      "application/json");
    if (!states)
        return answer_metrics(request);
    if (length && strtoull(length, NULL, 10) > http->config.body)
        return refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, "the body is too large");
    return MHD_YES;
}

/* No path here has an escape; read as one, "%00" would end a path that goes on. */
static size_t leave_escapes(void *context, struct MHD_Connection *connection, char *path)
{
    (void)context;
    (void)connection;
    return strlen(path);
}

static struct request *open_request(struct http *http, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct request *request = calloc(1, sizeof *request);
    if (!request)
        return NULL;
    request->http = http;
    request->connection = connection;
    request->client = info ? info->socket_context : NULL;
    request->since = clock_seconds();
    pthread_mutex_lock(&http->mutex);
    http->pending++;
    pthread_mutex_unlock(&http->mutex);
    return request;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection,
                                  const char *path, const char *method, const char *version,
                                  const char *data, size_t *size, void **state)
{
    struct request *request = *state;
    (void)version;
    if (!request) {
        *state = request = open_request(context, connection);
        return request ? begin(request, path, method) : MHD_NO;
    }
    if (*size) {
        receive(request, data, *size);
        *size = 0;
        return MHD_YES;
    }
    switch (request->stage) {
    case READING:
        return end_body(request);
    case READ:
        return compute(request);
    default:
        return deliver(request);
    }
}

static void on_completed(void *context, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct http *http = context;
    struct request *request = *state;
    (void)connection;
    if (!request)
        return;
    double now = clock_seconds();
    if (request->stage == READ || request->stage == COMPUTING)
        leave(http);
    if (request->stage == ANSWERED && how == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        metrics_request(http->metrics, request->status, now - request->since);
    else
        metrics_broken(http->metrics, request->client && request->client->cut_off);
    clients_turn(&http->clients, request->client, now);
    drop_body(request);
    free(request->json.values);
    free(request->text);
    free(request);
    *state = NULL;
    pthread_mutex_lock(&http->mutex);
    http->pending--;
    pthread_mutex_unlock(&http->mutex);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct http *http_start(const struct http_config *config, struct scheduler *scheduler,
                        const struct model *model, struct metrics *metrics)
{
    struct http *http = calloc(1, sizeof *http);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)config->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!http)
        return NULL;
    http->config = *config;
    http->listening = MHD_INVALID_SOCKET;
    http->scheduler = scheduler;
    http->model = model;
    http->metrics = metrics;
    pthread_mutex_init(&http->mutex, NULL);
    clients_init(&http->clients);
    http->workers = workers_create(config->workers);
    if (http->workers)
        http->daemon = MHD_start_daemon(
            MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request,
            http, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address, MHD_OPTION_UNESCAPE_CALLBACK,
            leave_escapes, NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)config->connections,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
            MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_NOTIFY_CONNECTION,
            on_connection, http, MHD_OPTION_END);
    if (http->daemon)
        return http;
    if (http->workers)
        workers_stop(http->workers);
    workers_destroy(http->workers);
    clients_destroy(&http->clients);
    pthread_mutex_destroy(&http->mutex);
    free(http);
    return NULL;
}

int http_port(const struct http *http)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info ? info->port : 0;
}

void http_refuse(struct http *http)
{
    pthread_mutex_lock(&http->mutex);
    http->refusing = 1;
    pthread_mutex_unlock(&http->mutex);
    /* Not closed yet: libmicrohttpd may be waiting on it. */
    http->listening = MHD_quiesce_daemon(http->daemon);
    if (http->listening != MHD_INVALID_SOCKET)
        shutdown(http->listening, SHUT_RDWR);
}

int http_pending(struct http *http)
{
    pthread_mutex_lock(&http->mutex);
    int pending = http->pending;
    pthread_mutex_unlock(&http->mutex);
    return pending;
}

void http_stop(struct http *http)
{
    workers_stop(http->workers);
    MHD_stop_daemon(http->daemon);
    workers_destroy(http->workers);
    if (http->listening != MHD_INVALID_SOCKET)
        close(http->listening);
    clients_destroy(&http->clients);
    pthread_mutex_destroy(&http->mutex);
    free(http);
}
