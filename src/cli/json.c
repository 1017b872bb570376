#define _POSIX_C_SOURCE 200809L

#include "cli/json.h"

#include "cli/file.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_LIMIT 64
#define EXACT_LIMIT 9007199254740992 /* 2^53: beyond it a double no longer tells integers apart */

struct scan {
    const unsigned char *next, *end;
    int integers_only;
    const char *problem;
};

static int problem(struct scan *s, const char *text)
{
    s->problem = text;
    return -1;
}

static int peek(const struct scan *s)
{
    return s->next < s->end ? *s->next : -1;
}

static void skip_space(struct scan *s)
{
    while (peek(s) == ' ' || peek(s) == '\t' || peek(s) == '\n' || peek(s) == '\r') {
        s->next++;
    }
}

static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int skip_digits(struct scan *s)
{
    const unsigned char *start = s->next;
    while (is_digit(peek(s))) {
        s->next++;
    }
    return s->next > start ? 0 : problem(s, "a number is malformed");
}

static int scan_number(struct scan *s)
{
    const unsigned char *start = s->next;
    s->next += peek(s) == '-';
    int zero = peek(s) == '0';
    const unsigned char *digits = s->next;
    if (skip_digits(s)) {
        return -1;
    }
    if (zero && s->next - digits > 1) {
        return problem(s, "a number begins with 0");
    }
    int fraction = peek(s) == '.';
    if (fraction) {
        s->next++;
        if (skip_digits(s)) {
            return -1;
        }
    }
    int exponent = peek(s) == 'e' || peek(s) == 'E';
    if (exponent) {
        s->next++;
        s->next += peek(s) == '+' || peek(s) == '-';
        if (skip_digits(s)) {
            return -1;
        }
    }
    if (s->next - start > 60) {
        return problem(s, "a number has more than 60 characters");
    }
    if (s->integers_only) {
        int64_t value = 0;
        if (fraction || exponent || start != digits) {
            return problem(s, "a number is not an integer from 0 on");
        }
        for (; digits < s->next; digits++) {
            value = value * 10 + (*digits - '0');
            if (value > EXACT_LIMIT) {
                return problem(s, "a number is above 2^53");
            }
        }
    }
    return 0;
}

static int scan_escape(struct scan *s)
{
    int c = peek(s);
    if (c < 0) {
        return problem(s, "it ends inside a string");
    }
    s->next++;
    if (c != 'u') {
        return c > 0 && strchr("\"\\/bfnrt", c) ? 0 : problem(s, "a string has an unknown escape");
    }
    int value = 0;
    for (int i = 0; i < 4; i++, s->next++) {
        int digit = peek(s);
        if (is_digit(digit)) {
            digit -= '0';
        } else if ((digit | 32) >= 'a' && (digit | 32) <= 'f') {
            digit = (digit | 32) - 'a' + 10;
        } else {
            return problem(s, "a string has a malformed \\u escape");
        }
        value = value * 16 + digit;
    }
    return value ? 0 : problem(s, "a string holds NUL");
}

/* One character that is not ASCII: well-formed UTF-8, the shortest form, no surrogates. */
static int scan_utf8(struct scan *s)
{
    static const uint32_t lowest[] = {0, 0x80, 0x800, 0x10000};
    int first = *s->next++;
    int more = first >= 0xf0 && first < 0xf8 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
    uint32_t value = (uint32_t)first & (0x3fu >> more);
    if (more == 0 || first >= 0xf8) {
        return problem(s, "a string is not valid UTF-8");
    }
    for (int i = 0; i < more; i++) {
        if ((peek(s) & 0xc0) != 0x80 || peek(s) < 0) {
            return problem(s, "a string is not valid UTF-8");
        }
        value = value << 6 | (*s->next++ & 0x3fu);
    }
    if (value < lowest[more] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        return problem(s, "a string is not valid UTF-8");
    }
    return 0;
}

static int scan_string(struct scan *s)
{
    if (peek(s) != '"') {
        return problem(s, "a string was expected");
    }
    s->next++;
    for (;;) {
        int c = peek(s);
        if (c < 0) {
            return problem(s, "it ends inside a string");
        }
        if (c < 0x20) {
            return problem(s, "a string has a control character");
        }
        if (c >= 0x80) {
            if (scan_utf8(s)) {
                return -1;
            }
            continue;
        }
        s->next++;
        if (c == '"') {
            return 0;
        }
        if (c == '\\' && scan_escape(s)) {
            return -1;
        }
    }
}

static int scan_word(struct scan *s, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(s->end - s->next) < length || memcmp(s->next, word, length) != 0) {
        return problem(s, "a value was expected");
    }
    s->next += length;
    return 0;
}

static int scan_value(struct scan *s, int depth);

static int scan_members(struct scan *s, int depth, int close)
{
    s->next++;
    skip_space(s);
    if (peek(s) == close) {
        s->next++;
        return 0;
    }
    for (;;) {
        if (close == '}') {
            skip_space(s);
            if (scan_string(s)) {
                return -1;
            }
            skip_space(s);
            if (peek(s) != ':') {
                return problem(s, "a colon was expected");
            }
            s->next++;
        }
        if (scan_value(s, depth + 1)) {
            return -1;
        }
        skip_space(s);
        int c = peek(s);
        if (c < 0) {
            return problem(s, "it ends too early");
        }
        s->next++;
        if (c == close) {
            return 0;
        }
        if (c != ',') {
            return problem(s, c == 0 ? "it has a NUL byte"
                                     : "a comma or a closing bracket was expected");
        }
    }
}

static int scan_value(struct scan *s, int depth)
{
    if (depth > DEPTH_LIMIT) {
        return problem(s, "it is nested deeper than 64");
    }
    skip_space(s);
    int c = peek(s);
    switch (c) {
    case '{':
        return scan_members(s, depth, '}');
    case '[':
        return scan_members(s, depth, ']');
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    case -1:
        return problem(s, "it ends too early");
    default:
        return c == '-' || is_digit(c) ? scan_number(s) : problem(s, "a value was expected");
    }
}

static int scan_all(struct scan *s)
{
    skip_space(s);
    if (peek(s) != '{') {
        return problem(s, "it does not begin with {");
    }
    if (scan_value(s, 0)) {
        return -1;
    }
    skip_space(s);
    if (s->next < s->end) {
        return problem(s, *s->next == 0 ? "NUL bytes follow it" : "more follows it");
    }
    return 0;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A key that some object in the tree has twice, NULL if none does; *failed on lack of memory. */
static const char *duplicate_key(const cJSON *item, int *failed)
{
    const char *found = NULL;
    size_t count = 0;
    for (const cJSON *child = item->child; child && !found; child = child->next) {
        found = duplicate_key(child, failed);
        count++;
    }
    if (found || !cJSON_IsObject(item) || count < 2) {
        return found;
    }
    const char **keys = malloc(count * sizeof *keys);
    if (!keys) {
        *failed = 1;
        return NULL;
    }
    size_t i = 0;
    for (const cJSON *child = item->child; child; child = child->next) {
        keys[i++] = child->string;
    }
    qsort(keys, count, sizeof *keys, compare_keys);
    for (i = 1; i < count && !found; i++) {
        found = strcmp(keys[i - 1], keys[i]) == 0 ? keys[i] : NULL;
    }
    free(keys);
    return found;
}

static cJSON *parse_in_c_locale(const char *text, size_t bytes)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) {
        return NULL;
    }
    locale_t before = uselocale(plain);
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    uselocale(before);
    freelocale(plain);
    return root;
}

cJSON *json_parse(const char *text, int64_t bytes, int integers_only, const char *path, char *error)
{
    struct scan s = {(const unsigned char *)text, (const unsigned char *)text + bytes,
                     integers_only, NULL};
    if (scan_all(&s)) {
        error_set(error, "%s: the JSON is malformed at its byte %lld: %s", path,
                  (long long)(s.next - (const unsigned char *)text), s.problem);
        return NULL;
    }
    int failed = 0;
    cJSON *root = parse_in_c_locale(text, (size_t)bytes);
    if (!root) {
        error_set(error, "%s: the JSON is malformed, or memory ran out", path);
        return NULL;
    }
    const char *twice = duplicate_key(root, &failed);
    if (twice || failed) {
        if (twice) {
            error_set(error, "%s: the JSON has the key \"%s\" twice", path, twice);
        } else {
            error_set(error, "%s: out of memory", path);
        }
        cJSON_Delete(root);
        return NULL;
    }
    return root;
}

const cJSON *json_get(const cJSON *object, const char *key)
{
    const cJSON *item =
        cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
    return cJSON_IsNull(item) ? NULL : item;
}

int json_integer(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= (double)EXACT_LIMIT) ||
        item->valuedouble != floor(item->valuedouble)) {
        return -1;
    }
    *value = (int64_t)item->valuedouble;
    return 0;
}
