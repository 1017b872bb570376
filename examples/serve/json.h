/* Requests and answers as JSON text. */
#ifndef SERVE_JSON_H
#define SERVE_JSON_H

#include <stddef.h>
#include <stdint.h>

enum { JSON_ERROR = 200, SESSION_NAME = 64 };

/* {"tokens": [[E numbers], ...], "steps": [[E numbers], ...],
 *  "session": "name", "past": n, "last": true}, all but tokens or steps optional. */
struct json_request {
    int64_t tokens, steps;          /* how many of each */
    float *values;                  /* (tokens + steps, width), to be freed */
    char session[SESSION_NAME + 1]; /* "": none */
    int64_t past;                   /* tokens that the session holds */
    int last;                       /* the session ends with this request */
};

/* Returns 0, or the HTTP status of the refusal with its reason in error; then *request holds
 * nothing. A number is read as a double and rounded to float: what "%.9g" wrote is read exactly. */
int json_read(const char *text, size_t size, int64_t width, int64_t most_tokens,
              struct json_request *request, char error[JSON_ERROR]);

/* {"states": [[...], ...], "steps": [[...], ...]}: rows of `width` floats, by "%.9g". To be freed;
 * NULL: out of memory. */
char *json_answer(const float *values, int64_t tokens, int64_t steps, int64_t width, size_t *size);

/* {"error": text}, to be freed; NULL: out of memory. */
char *json_error(const char *text);

#endif
