#include "bad.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANY = 1, CLOSED = 1 /* besides a status: the connection may end without an answer */ };

/* Stands in a body for the byte 0. */
#define NUL "\x7f"

/* The body is before, `count` times `repeat` (and as often as the layer is wide, with `wide`),
 * after. */
struct bad {
    const char *name, *before, *repeat;
    int count, wide;
    const char *after;
    int status, closed;
    const char *claim;   /* of Content-Length; NULL: the body's */
    const char *request; /* line; NULL: POST /v1/states */
};

#define ROW "{\"tokens\":[[1"
#define END "]]}"
static const struct bad all[] = {
    {"JSON that ends early", ROW, ",1", -1, 1, "", 400, 0, NULL, NULL},
    {"a body that ends early", ROW, ",1", -1, 1, "]", 400, CLOSED, "100000", NULL},
    {"a huge claim", "{", "", 0, 0, "", 413, 0, "1000000000000", NULL},
    {"a claim beyond 64 bits", "{", "", 0, 0, "", 413, CLOSED, "1000000000000000000000000", NULL},
    {"a negative claim", "{", "", 0, 0, "", 400, CLOSED, "-5", NULL},
    {"a claim in words", "{", "", 0, 0, "", 400, CLOSED, "many", NULL},
    {"a row too short", ROW, ",1", -2, 1, END, 400, 0, NULL, NULL},
    {"a row too long", ROW, ",1", 0, 1, END, 400, 0, NULL, NULL},
    {"an empty row", "{\"tokens\":[[", "", 0, 0, END, 400, 0, NULL, NULL},
    {"no rows", "{\"tokens\":[", "", 0, 0, "]}", 400, 0, NULL, NULL},
    {"no members", "{", "", 0, 0, "}", 400, 0, NULL, NULL},
    {"rows of unequal length", ROW, ",1", -1, 1, "],[1]]}", 400, 0, NULL, NULL},
    {"a row that is a number", "{\"tokens\":[1", ",1", 3, 0, "]}", 400, 0, NULL, NULL},
    {"rows that are an object", "{\"tokens\":{\"a\":[1", ",1", -1, 1, "]}}", 400, 0, NULL, NULL},
    {"rows that are a number", "{\"tokens\":", "", 0, 0, "7}", 400, 0, NULL, NULL},
    {"steps that are a string", "{\"steps\":\"", "", 0, 0, "a\"}", 400, 0, NULL, NULL},
    {"a body that is an array", "[[1", ",1", -1, 1, "]]", 400, 0, NULL, NULL},
    {"a number in quotes", "{\"tokens\":[[\"1\"", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"null for a number", "{\"tokens\":[[null", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"true for a number", "{\"tokens\":[[true", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a number beyond double", "{\"tokens\":[[1e999", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a number beyond float", "{\"tokens\":[[-3.5e38", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"NaN", "{\"tokens\":[[NaN", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"Infinity", "{\"tokens\":[[Infinity", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"results beyond float", "{\"tokens\":[[3e38", ",3e38", -1, 1, END, 422, 0, NULL, NULL},
    {"deep nesting", "{\"tokens\":", "[", 100000, 0, "", 400, 0, NULL, NULL},
    {"deep nesting of objects", "", "{\"tokens\":", 20000, 0, "1", 400, 0, NULL, NULL},
    {"too many rows", "{\"tokens\":[[]", ",[]", 3000, 0, "]}", 413, 0, NULL, NULL},
    {"too many numbers", ROW, ",1", 600000, 0, END, 413, 0, NULL, NULL},
    {"too many members", "{\"tokens\":[]", ",\"a\":1", 600000, 0, "}", 413, 0, NULL, NULL},
    {"a string without end", "{\"tokens\":\"", "\\\\", 1000, 0, "", 400, 0, NULL, NULL},
    {"something behind", ROW, ",1", -1, 1, "]]} {}", 400, 0, NULL, NULL},
    {"an empty body", "", "", 0, 0, "", 400, 0, NULL, NULL},
    {"no JSON", "\x01\x02\xff\xfe", "", 0, 0, "", 400, 0, NULL, NULL},
    {"a number with a zero before it", "{\"tokens\":[[007", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a number of two zeros", "{\"tokens\":[[-00", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a number that ends with its point", "{\"tokens\":[[1.", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a number that begins with its point", "{\"tokens\":[[-.5", ",1", -1, 1, END, 400, 0, NULL,
     NULL},
    {"a number with a point and no digit", "{\"tokens\":[[1.e2", ",1", -1, 1, END, 400, 0, NULL,
     NULL},
    {"a number that ends with its e", "{\"tokens\":[[1e+", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a zero byte between tokens", "{\"tokens\":" NUL "[[1", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a zero byte behind", ROW, ",1", -1, 1, END NUL, 400, 0, NULL, NULL},
    {"a control character between tokens", "{\"tokens\":\v[[1", ",1", -1, 1, END, 400, 0, NULL,
     NULL},
    {"a byte order mark", "\xef\xbb\xbf" ROW, ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a member's name that is cut", "{\"tokens\\u0000\":[[1", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a control character in a string", "{\"session\":\"a\n\",\"tokens\":[[1", ",1", -1, 1, END,
     400, 0, NULL, NULL},
    {"an unknown member", "{\"prompt\":[[1", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"a member twice", "{\"tokens\":[],\"tokens\":[[1", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"past without session", "{\"past\":0,\"tokens\":[[1", ",1", -1, 1, END, 400, 0, NULL, NULL},
    {"past below 0", "{\"session\":\"a\",\"past\":-1,\"tokens\":[[1", ",1", -1, 1, END, 400, 0,
     NULL, NULL},
    {"past not whole", "{\"session\":\"a\",\"past\":0.5,\"tokens\":[[1", ",1", -1, 1, END, 400, 0,
     NULL, NULL},
    {"past of nothing", "{\"session\":\"nobody\",\"past\":3,\"tokens\":[[1", ",1", -1, 1, END, 409,
     0, NULL, NULL},
    {"past beyond 64 bits", "{\"session\":\"a\",\"past\":1e300,\"tokens\":[[1", ",1", -1, 1, END,
     400, 0, NULL, NULL},
    {"a session of no name", "{\"session\":\"\",\"tokens\":[[1", ",1", -1, 1, END, 400, 0, NULL,
     NULL},
    {"a session's name too long", "{\"session\":\"", "a", 65, 0, "\",\"tokens\":[[1]]}", 400, 0,
     NULL, NULL},
    {"a session's name with a slash", "{\"session\":\"../a\",\"tokens\":[[1", ",1", -1, 1, END, 400,
     0, NULL, NULL},
    {"a session's name with a zero", "{\"session\":\"a\\u0000b\",\"tokens\":[[1", ",1", -1, 1, END,
     400, 0, NULL, NULL},
    {"a session's name with no code", "{\"session\":\"a\\uzzzzb\",\"tokens\":[[1", ",1", -1, 1, END,
     400, 0, NULL, NULL},
    {"last that is a number", "{\"session\":\"a\",\"last\":1,\"tokens\":[[1", ",1", -1, 1, END, 400,
     0, NULL, NULL},
    {"another path", "", "", 0, 0, "", 404, 0, NULL, "GET /v1/../etc/passwd HTTP/1.1"},
    {"a path that is cut", "", "", 0, 0, "", 404, 0, NULL, "GET /healthz%00/a HTTP/1.1"},
    {"another method", "", "", 0, 0, "", 405, 0, NULL, "DELETE /v1/states HTTP/1.1"},
    {"GET of what takes POST", "", "", 0, 0, "", 405, 0, NULL, "GET /v1/states HTTP/1.1"},
    {"POST of what takes GET", "", "", 0, 0, "", 405, 0, NULL, "POST /metrics HTTP/1.1"},
    {"another protocol", "", "", 0, 0, "", 400, CLOSED, NULL, "\x16\x03\x01\x02"},
    {"no protocol", "", "", 0, 0, "", 400, CLOSED, NULL, "POST"},
    {"a version to come", "", "", 0, 0, "", 505, CLOSED, NULL, "POST /v1/states HTTP/9.9"},
    {"two claims that differ", "{}", "", 0, 0, "", 400, CLOSED, "2\r\nContent-Length: 5", NULL},
    {"chunks of no size", "zz\r\n", "", 0, 0, "", 400, CLOSED, "0\r\nTransfer-Encoding: chunked",
     NULL},
    {"a chunk of huge size", "fffffffffffffffff\r\n", "", 0, 0, "", 413, CLOSED,
     "0\r\nTransfer-Encoding: chunked", NULL},
    {"a header too long", "", "", 0, 0, "", 431, CLOSED, NULL, "long header"},
};

int bad_count(void)
{
    return (int)(sizeof all / sizeof *all);
}

static char *repeat(const char *before, const char *piece, size_t count, const char *after)
{
    size_t first = strlen(before), each = strlen(piece);
    char *text = malloc(first + each * count + strlen(after) + 1);
    if (!text)
        return NULL;
    memcpy(text, before, first);
    for (size_t i = 0; i < count; i++)
        memcpy(text + first + each * i, piece, each);
    strcpy(text + first + each * count, after);
    return text;
}

static char *head_of(const struct bad *bad, size_t body)
{
    char claim[64], *text = NULL;
    size_t size;
    if (bad->request && strcmp(bad->request, "long header") == 0)
        return repeat("POST /v1/states HTTP/1.1\r\nHost: localhost\r\nX: ", "x", 200000,
                      "\r\n\r\n");
    snprintf(claim, sizeof claim, "%zu", body);
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return NULL;
    fprintf(file, "%s\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n",
            bad->request ? bad->request : "POST /v1/states HTTP/1.1",
            bad->claim ? bad->claim : claim);
    fclose(file);
    return text;
}

/* What comes back, 0 for nothing; -1: no connection. The sending half is closed behind a body
 * that is shorter than claimed. */
static int ask(const struct bad *bad, int port, const char *head, const char *body, size_t size,
               struct answer *answer)
{
    int client = client_connect(port);
    if (client < 0)
        return -1;
    if (client_send(client, head, strlen(head)) == 0 && client_send(client, body, size) == 0 &&
        bad->claim)
        shutdown(client, SHUT_WR);
    client_receive(client, answer);
    close(client);
    return answer->status;
}

int bad_run(int index, int port, int64_t width, struct answer *answer)
{
    const struct bad *bad = &all[index];
    size_t count = (size_t)(bad->count + (bad->wide ? width : 0));
    char *body = repeat(bad->before, bad->repeat, count, bad->after);
    size_t size = body ? strlen(body) : 0;
    char *head = body ? head_of(bad, size) : NULL;
    int status = -1, tries = 0;
    for (size_t i = 0; i < size; i++)
        if (body[i] == *NUL)
            body[i] = 0;
    /* A full queue refuses the good and the bad alike; a server with all its connections in use
     * closes the next. */
    while (head && tries++ < 600) {
        status = ask(bad, port, head, body, size, answer);
        if (status != 503 && (status > 0 || bad->closed))
            break;
        client_sleep(0.1);
    }
    free(head);
    free(body);
    if (status == bad->status || (status == 0 && bad->closed) ||
        (bad->closed && status >= 400 && status < 500)) {
        if (!status || !bad->request || bad->closed ||
            strncmp(answer->body, "{\"error\":\"", 10) == 0)
            return 0;
        printf("FAIL %s: the answer is no JSON error: %.200s\n", bad->name, answer->body);
        return -1;
    }
    printf("FAIL %s: status %d, expected %d%s: %.200s\n", bad->name, status, bad->status,
           bad->closed ? " or none" : "", status > 0 ? answer->body : "");
    return -1;
}

/* ---- slow ones ------------------------------------------------------------------------------- */

static const struct {
    const char *name, *first;
    const char drip;
} slow[] = {
    {"nothing is sent", "", 0},
    {"headers byte by byte", "POST /v1/states HTTP/1.1\r\nHost: localhost\r\nX: ", 'x'},
    {"a body byte by byte",
     "POST /v1/states HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{", ' '},
    {"headers without end", "POST /v1/states HTTP/1.1\r\nHost: loc", 0},
    {"a body without end",
     "POST /v1/states HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{\"tokens\":", 0},
};

int slow_count(void)
{
    return (int)(sizeof slow / sizeof *slow);
}

/* Until the server closes, for two minutes at most. */
int slow_run(int index, int port)
{
    int client = client_connect(port), open = client >= 0;
    if (open)
        client_send(client, slow[index].first, strlen(slow[index].first));
    for (int i = 0; i < 1200 && open; i++) {
        char byte;
        client_sleep(0.1);
        if (slow[index].drip && client_send(client, &slow[index].drip, 1))
            open = 0;
        else if (recv(client, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0)
            open = 0;
    }
    if (client >= 0)
        close(client);
    if (!open && client >= 0)
        return 0;
    printf("FAIL %s: %s\n", slow[index].name, open ? "it is not cut off" : "no connection");
    return -1;
}
