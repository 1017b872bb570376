/* Parts of reading a config.json: what a family says, what its fields say, what is refused. All of
 * them read facts->model_type. */
#ifndef HEADWAY_CLI_CONFIG_PARTS_H
#define HEADWAY_CLI_CONFIG_PARTS_H

#include "cli/config.h"
#include "cli/json.h"

/* Which layers of a stack have the window, where no list of layers says it. */
enum window_rule {
    WINDOW_UNKNOWN, /* a window that is set can't be understood */
    WINDOW_ALL,
    WINDOW_OPTION,  /* with use_sliding_window, from max_window_layers on */
    WINDOW_EVEN,    /* 0, 2, ... */
    WINDOW_PATTERN, /* all but each sliding_window_pattern-th */
    WINDOW_UNUSED   /* never, unless use_sliding_window is set: then unknown */
};

/* A family whose attention is known; missing fields have the values its own code gives them. */
struct model_family {
    const char *type; /* model_type, the whole of it */
    headway_rope_style style;
    double theta, fraction; /* of RoPE */
    enum window_rule windows;
    int64_t window, pattern; /* where the file does not say; 0: none */
    enum qk_norm norm;
    double query_scalar; /* the scale is 1 / its root; 0: 1 / root of the head size */
    double softcap;
};

/* NULL: not known. */
const struct model_family *config_family(const char *type);

/* A finite number: 1 and *value; 0 when it is missing or null; -1 with error when it is no number. */
int config_number(const cJSON *part, const char *key, double *value, const char *path, char *error);
/* The member is there, be it null. */
int config_has(const cJSON *part, const char *key);
/* Set to something: not null, false, 0, "" or an empty list. */
int config_is_set(const cJSON *part, const char *key);
/* Appends "what (field)" to a text of refusals, once. */
void config_refuse_text(char *text, size_t size, const char *what, const char *field);

/* window, softcap, alibi; *sliding: the layer is one of those with a window. 0, or -1 with error. */
int config_read_scores(const cJSON *part, const char *module, struct model_facts *facts,
                       int *sliding, const char *path, char *error);
/* rope; after the above. */
int config_read_rope(const cJSON *part, const char *module, int sliding, struct model_facts *facts,
                     const char *path, char *error);
/* All else that changes attention's meaning. */
void config_refuse(const cJSON *part, const char *module, struct model_facts *facts);

#endif
