/* JSON from files that are not trusted: cJSON parses, and what it lets pass is refused before. */
#ifndef HEADWAY_CLI_JSON_H
#define HEADWAY_CLI_JSON_H

#include <cjson/cJSON.h>
#include <stdint.h>

/* Strict RFC 8259: one object, no control bytes, no NUL in names, valid UTF-8, no key twice, nested
 * at most 64 deep; spaces and newlines may follow it. The locale does not matter. integers_only:
 * every number is an integer from 0 to 2^53. NULL with error, which names the path. */
cJSON *json_parse(const char *text, int64_t bytes, int integers_only, const char *path,
                  char *error);

/* The member of that exact name; NULL when it is missing or null, or object is not one. */
const cJSON *json_get(const cJSON *object, const char *key);
/* 0 when item is an integer of at most 2^53 in magnitude. */
int json_integer(const cJSON *item, int64_t *value);

#endif
