#include "json.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 3, NUMBER = 16 /* "-1.17549435e-38," */ };

static int refuse(char *error, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int refuse(char *error, int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, JSON_ERROR, format, arguments);
    va_end(arguments);
    return status;
}

static const char *digits(const char *at, const char *end)
{
    while (at < end && isdigit((unsigned char)*at))
        at++;
    return at;
}

/* Where a number ends that is one by JSON's grammar; NULL: it is none. */
static const char *number(const char *at, const char *end)
{
    const char *from = at += *at == '-';
    at = digits(at, end);
    if (at == from || (*from == '0' && at > from + 1))
        return NULL;
    if (at < end && *at == '.') {
        from = at + 1;
        at = digits(from, end);
        if (at == from)
            return NULL;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        from = at + 1;
        from += from < end && (*from == '+' || *from == '-');
        at = digits(from, end);
        if (at == from)
            return NULL;
    }
    return at;
}

/* Behind a string's closing quote; NULL: it has none, a control character as it is, or an escape that
 * is none or of code 0, where a C string would end. Which letters may be escaped cJSON knows. */
static const char *string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++) {
        if ((unsigned char)*at < ' ')
            return NULL;
        if (*at == '\\' && ++at < end && *at == 'u') {
            int zeros = 0;
            for (int i = 1; i <= 4; i++) {
                if (end - at <= i || !isxdigit((unsigned char)at[i]))
                    return NULL;
                zeros += at[i] == '0';
            }
            if (zeros == 4)
                return NULL;
        }
    }
    return at < end ? at + 1 : NULL;
}

/* The token's end, NULL: it is none. cJSON is less strict with numbers, strings and blanks, and strict
 * enough with the rest: literals come letter by letter. */
static const char *token(const char *at, const char *end)
{
    if (*at == '"')
        return string(at, end);
    if (*at == '-' || isdigit((unsigned char)*at))
        return number(at, end);
    return strchr("[]{}:, \t\r\n", *at) || isalpha((unsigned char)*at) ? at + 1 : NULL;
}

/* What cJSON would take though it is no JSON; and what a parse will cost, before it: cJSON makes a
 * node of some 80 bytes from as few as two characters, and goes into each nesting. */
static int scan(const char *text, size_t size, int64_t most_values, char *error)
{
    const char *const end = text + size;
    int64_t values = 0;
    int depth = 0;
    for (const char *at = text, *next; at < end; at = next) {
        next = *at ? token(at, end) : NULL;
        if (!next)
            return refuse(error, 400, "the body is not JSON at byte %zu", (size_t)(at - text));
        if (*at == '[' || *at == '{') {
            values++;
            if (++depth > DEEPEST)
                return refuse(error, 400, "the body nests deeper than %d", DEEPEST);
        } else if (*at == ']' || *at == '}') {
            depth--;
        } else if (*at == ',') {
            values++;
        }
        if (values > most_values)
            return refuse(error, 413, "the body has more values than any request");
    }
    return 0;
}

/* ---- what a request says --------------------------------------------------------------------- */

static int count_rows(const cJSON *rows, const char *name, int64_t *count, char *error)
{
    if (!cJSON_IsArray(rows))
        return refuse(error, 400, "\"%s\" is not an array of arrays of numbers", name);
    *count = cJSON_GetArraySize(rows);
    return 0;
}

static int read_row(const cJSON *row, const char *name, int64_t index, int64_t width, float *to,
                    char *error)
{
    int64_t n = 0;
    if (!cJSON_IsArray(row))
        return refuse(error, 400, "\"%s\"[%" PRId64 "] is not an array", name, index);
    for (const cJSON *item = row->child; item; item = item->next, n++) {
        if (n == width)
            break;
        to[n] = (float)item->valuedouble;
        if (!cJSON_IsNumber(item) || !isfinite(to[n]))
            return refuse(error, 400, "\"%s\"[%" PRId64 "][%" PRId64 "] is not a finite number",
                          name, index, n);
    }
    if (n != width || cJSON_GetArraySize(row) != width)
        return refuse(error, 400, "\"%s\"[%" PRId64 "] has %d numbers, expected %" PRId64, name,
                      index, cJSON_GetArraySize(row), width);
    return 0;
}

static int read_rows(const cJSON *rows, const char *name, int64_t width, float *to, char *error)
{
    int64_t index = 0;
    for (const cJSON *row = rows ? rows->child : NULL; row; row = row->next, index++) {
        int status = read_row(row, name, index, width, to + index * width, error);
        if (status)
            return status;
    }
    return 0;
}

/* Names end up in nothing but comparisons and messages; that they are plain keeps logs plain. */
static int read_session(const cJSON *item, struct json_request *request, char *error)
{
    const char *name = cJSON_GetStringValue(item);
    size_t length = name ? strlen(name) : 0;
    if (length < 1 || length > SESSION_NAME ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != length)
        return refuse(error, 400, "\"session\" is not 1 to %d letters, digits, '-', '_' and '.'",
                      SESSION_NAME);
    memcpy(request->session, name, length + 1);
    return 0;
}

static int read_past(const cJSON *item, struct json_request *request, char *error)
{
    double value = item->valuedouble;
    if (!cJSON_IsNumber(item) || !(value >= 0 && value <= 1e9) || value != floor(value))
        return refuse(error, 400, "\"past\" is not a count of tokens");
    request->past = (int64_t)value;
    return 0;
}

struct members {
    const cJSON *tokens, *steps, *session, *past, *last;
};

static int find_members(const cJSON *root, struct members *members, char *error)
{
    const struct {
        const char *name;
        const cJSON **item;
    } known[] = {{"tokens", &members->tokens},
                 {"steps", &members->steps},
                 {"session", &members->session},
                 {"past", &members->past},
                 {"last", &members->last}};
    if (!cJSON_IsObject(root))
        return refuse(error, 400, "the body is not a JSON object");
    for (const cJSON *item = root->child; item; item = item->next) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i].name, item->string) != 0)
            i++;
        if (i == sizeof known / sizeof *known)
            return refuse(error, 400, "a member is none of tokens, steps, session, past, last");
        if (*known[i].item)
            return refuse(error, 400, "\"%s\" is given twice", known[i].name);
        *known[i].item = item;
    }
    return 0;
}

static int read_members(const struct members *m, struct json_request *request, char *error)
{
    int status = 0;
    if (m->tokens)
        status = count_rows(m->tokens, "tokens", &request->tokens, error);
    if (!status && m->steps)
        status = count_rows(m->steps, "steps", &request->steps, error);
    if (!status && m->session)
        status = read_session(m->session, request, error);
    if (!status && m->past)
        status = read_past(m->past, request, error);
    if (!status && m->last && !cJSON_IsBool(m->last))
        status = refuse(error, 400, "\"last\" is neither true nor false");
    if (!status && !m->session && (m->past || m->last))
        status =
            refuse(error, 400, "\"past\" and \"last\" are of a \"session\", which is not given");
    request->last = cJSON_IsTrue(m->last);
    return status;
}

static int read_root(const cJSON *root, int64_t width, int64_t most_tokens,
                     struct json_request *request, char *error)
{
    struct members members = {0};
    int status = find_members(root, &members, error);
    if (!status)
        status = read_members(&members, request, error);
    if (status)
        return status;
    int64_t tokens = request->tokens + request->steps;
    if (tokens < 1)
        return refuse(error, 400, "there are neither \"tokens\" nor \"steps\"");
    if (tokens > most_tokens)
        return refuse(error, 413, "%" PRId64 " tokens, a sequence has %" PRId64 " at most", tokens,
                      most_tokens);
    request->values = malloc((size_t)(tokens * width) * sizeof(float));
    if (!request->values)
        return refuse(error, 503, "out of memory");
    status = read_rows(members.tokens, "tokens", width, request->values, error);
    if (!status)
        status = read_rows(members.steps, "steps", width, request->values + request->tokens * width,
                           error);
    return status;
}

int json_read(const char *text, size_t size, int64_t width, int64_t most_tokens,
              struct json_request *request, char error[JSON_ERROR])
{
    const char *end = NULL;
    memset(request, 0, sizeof *request);
    int status = scan(text, size, most_tokens * (width + 1) + 16, error);
    if (status)
        return status;
    cJSON *root = cJSON_ParseWithLengthOpts(text, size, &end, 0);
    if (!root)
        return refuse(error, 400, "the body is not JSON at byte %zu",
                      end ? (size_t)(end - text) : (size_t)0);
    size_t at = (size_t)(end - text);
    while (at < size && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    if (at < size)
        status = refuse(error, 400, "there is something behind the JSON value, at byte %zu", at);
    else
        status = read_root(root, width, most_tokens, request, error);
    cJSON_Delete(root);
    if (status) {
        free(request->values);
        memset(request, 0, sizeof *request);
    }
    return status;
}

/* ---- answers --------------------------------------------------------------------------------- */

static char *write_rows(char *at, const char *name, const float *values, int64_t rows,
                        int64_t width)
{
    at += sprintf(at, "\"%s\":[", name);
    for (int64_t i = 0; i < rows; i++) {
        *at++ = '[';
        for (int64_t e = 0; e < width; e++)
            at += sprintf(at, e ? ",%.9g" : "%.9g", (double)values[i * width + e]);
        *at++ = ']';
        if (i + 1 < rows)
            *at++ = ',';
    }
    *at++ = ']';
    return at;
}

char *json_answer(const float *values, int64_t tokens, int64_t steps, int64_t width, size_t *size)
{
    size_t room = (size_t)((tokens + steps) * (width * NUMBER + 3)) + 64;
    char *text = malloc(room), *at = text;
    if (!text)
        return NULL;
    *at++ = '{';
    at = write_rows(at, "states", values, tokens, width);
    *at++ = ',';
    at = write_rows(at, "steps", values + tokens * width, steps, width);
    *at++ = '}';
    *at++ = '\n';
    *size = (size_t)(at - text);
    char *fitted = realloc(text, *size);
    return fitted ? fitted : text;
}

char *json_error(const char *text)
{
    cJSON *root = cJSON_CreateObject();
    char *printed = NULL;
    if (root && cJSON_AddStringToObject(root, "error", text))
        printed = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return printed;
}
