/* The command line: one table says every option, for the parser and for --help alike. */
#ifndef HEADWAY_OPTIONS_H
#define HEADWAY_OPTIONS_H

#include <stdint.h>

enum verb { VERB_RUN = 1, VERB_ATTEND = 2, VERB_CHECK = 4, VERB_INFO = 8 };

/* What was said; NULL or 0 = nothing. Strings are argv's own. */
struct options {
    enum verb verb;
    int help;

    const char *weights, *layer, *qkv_rows;
    const char *input, *query, *key, *value;
    const char *output, *lse, *against;
    int64_t heads, kv_heads, head_size, value_head_size;
    const char *layout, *causal, *mask, *query_lengths, *key_lengths, *dtype;
    int has_scale;
    float scale;

    const char *isa;
    int64_t threads, repeat;
    int explain;
};

/* argv[1] is the verb, what follows its options; of one given twice the last counts. Checks that
 * the options belong to the verb, that their values are well formed and that none is missing. 0, or
 * -1 with one sentence in error. */
int options_parse(int argc, char **argv, struct options *options, char *error);

/* run and attend are one pipeline; check is the one or the other by --weights. */
int options_is_layer(const struct options *options);

void help_command(void);        /* headway --help */
void help_verb(enum verb verb); /* headway VERB --help */

/* Strict and the same in every locale that the program doesn't set: the whole text, no blanks. 0 or
 * -1. */
int parse_integer(const char *text, int64_t least, int64_t most, int64_t *number);
int parse_float(const char *text, float *number);

#endif
