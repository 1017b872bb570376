/* The command line: one table says every option, for the parser and for --help alike. */
#ifndef HEADWAY_OPTIONS_H
#define HEADWAY_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

enum verb { VERB_RUN = 1, VERB_ATTEND = 2, VERB_CHECK = 4, VERB_INFO = 8 };

struct option_number {
    int given;
    double value;
};

/* What was said; NULL or 0 = nothing. Strings are argv's own. */
struct options {
    enum verb verb;
    int help;

    const char *weights, *layer, *qkv_rows;
    const char *input, *query, *key, *value;
    const char *output, *lse, *probs, *probs_mean, *against;
    int64_t heads, kv_heads, head_size, value_head_size;
    const char *layout, *causal, *window, *offset, *mask, *interval, *dtype;
    const char *query_lengths, *key_lengths, *query_offsets, *key_offsets;
    const char *alibi, *sink;
    struct option_number scale, softcap, qk_norm_eps;
    struct option_number rope, rope_scale; /* rope: theta */
    const char *rope_style, *rope_table, *positions;
    int64_t rope_size;
    int add_zero_attn;
    const char *cache, *cache_dtype;
    int64_t cache_capacity, append, decode;

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

/* Whether a cache was asked for; an option of one asks for a contiguous one. */
int options_cached(const struct options *options);

void help_command(void);        /* headway --help */
void help_verb(enum verb verb); /* headway VERB --help */

/* Strict and the same in every locale that the program doesn't set: the whole text, no blanks. 0 or
 * -1. */
int parse_integer(const char *text, int64_t least, int64_t most, int64_t *number);
int parse_number(const char *text, double *number);
/* "A,B": the two texts into first and second, `size` characters each. */
int parse_pair(const char *text, char *first, char *second, size_t size);

#endif
