#include "cli/options.h"

#include "cli/array.h"
#include "cli/cache.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_TEXT,     /* const char * */
    KIND_COUNT,    /* int64_t >= 1 */
    KIND_NATURAL,  /* int64_t >= 0 */
    KIND_NUMBER,   /* struct option_number, finite as a float */
    KIND_LIMIT,    /* the same, > 0 or 0 itself */
    KIND_POSITIVE, /* the same, > 0 */
    KIND_FLAG      /* int, takes no value */
};

struct option_row {
    const char *name, *value; /* value: how help shows it */
    enum kind kind;
    size_t field;
    int verbs;
    const char *help;
};

#define FIELD(name) offsetof(struct options, name)
#define LAYER (VERB_RUN | VERB_CHECK)
#define CORE (VERB_ATTEND | VERB_CHECK)
#define BOTH (VERB_RUN | VERB_ATTEND | VERB_CHECK)

static const struct option_row rows[] = {
    {"weights", "FILE|DIR", KIND_TEXT, FIELD(weights), LAYER | VERB_INFO,
     "the layer's .safetensors, or its folder (config.json, shards)"},
    {"layer", "NAME", KIND_TEXT, FIELD(layer), LAYER,
     "prefix of the attention module, or its number, from 0"},
    {"qkv-rows", "ORDER", KIND_TEXT, FIELD(qkv_rows), LAYER,
     "rows of a fused qkv_proj: per-head or per-kind"},
    {"input", "X.npy", KIND_TEXT, FIELD(input), LAYER,
     "(B, L, width) or (L, width): the queries' input"},
    {"query", "Q.npy", KIND_TEXT, FIELD(query), CORE,
     "rank 4 by --layout, rank 3 (B, L, heads*size), or rank 2 with B = 1"},
    {"key", "K.npy", KIND_TEXT, FIELD(key), BOTH,
     "run: absent = self-attention; without --value it serves as value too"},
    {"value", "V.npy", KIND_TEXT, FIELD(value), BOTH, "as key, with its own head size"},
    {"output", "Y.npy", KIND_TEXT, FIELD(output), BOTH, "of the query's type and rank"},
    {"lse", "F.npy", KIND_TEXT, FIELD(lse), BOTH,
     "further output, f32: (B, heads, Lq); packed (heads, total)"},
    {"probs", "F.npy", KIND_TEXT, FIELD(probs), BOTH,
     "further output, f32: the weights, (B, heads, Lq, Lk)"},
    {"probs-mean", "F.npy", KIND_TEXT, FIELD(probs_mean), BOTH,
     "further output, f32: their mean over heads, (B, Lq, Lk)"},
    {"against", "WHAT", KIND_TEXT, FIELD(against), VERB_CHECK,
     "reference (default: double precision), onednn, or FILE.npy"},
    {"heads", "N", KIND_COUNT, FIELD(heads), BOTH, "needed where shapes don't tell"},
    {"kv-heads", "N", KIND_COUNT, FIELD(kv_heads), BOTH,
     "default: what the shapes say, else heads"},
    {"head-size", "N", KIND_COUNT, FIELD(head_size), BOTH, "of query and key"},
    {"value-head-size", "N", KIND_COUNT, FIELD(value_head_size), BOTH, "of value"},
    {"layout", "ORDER", KIND_TEXT, FIELD(layout), CORE, "of rank-4 files: blhd (default) or bhld"},
    {"causal", "WHAT", KIND_TEXT, FIELD(causal), BOTH,
     "none (default), top-left, bottom-right, an offset, or FILE.npy (B,)"},
    {"window", "LEFT,RIGHT", KIND_TEXT, FIELD(window), BOTH,
     "keys beside a row's own place; -1 = unbounded"},
    {"offset", "N|FILE.npy", KIND_TEXT, FIELD(offset), BOTH,
     "row 0's place among the keys when nothing is causal; default 0"},
    {"mask", "M.npy", KIND_TEXT, FIELD(mask), BOTH,
     "bool (true = attend) or float (added); rank 1 (Lk), 2 (Lq, Lk) or 4"},
    {"interval", "F.npy", KIND_TEXT, FIELD(interval), BOTH,
     "(B|1, Lq, 2): row i may attend keys first <= j < last"},
    {"query-lengths", "F.npy", KIND_TEXT, FIELD(query_lengths), BOTH,
     "(B,); output rows beyond are 0"},
    {"key-lengths", "F.npy", KIND_TEXT, FIELD(key_lengths), BOTH,
     "(B,); keys beyond are not there"},
    {"query-offsets", "F.npy", KIND_TEXT, FIELD(query_offsets), BOTH,
     "(B+1,): packed sequences, files (total, heads, size) or (total, width)"},
    {"key-offsets", "F.npy", KIND_TEXT, FIELD(key_offsets), BOTH,
     "(B+1,) of key and value; default: the query's"},
    {"scale", "X", KIND_NUMBER, FIELD(scale), BOTH, "of the scores; default 1/sqrt(head size)"},
    {"softcap", "X", KIND_LIMIT, FIELD(softcap), BOTH, "scores become X tanh(score / X); 0 = none"},
    {"alibi", "default|F.npy", KIND_TEXT, FIELD(alibi), BOTH,
     "slopes, (heads,); default: those of the paper"},
    {"sink", "F.npy", KIND_TEXT, FIELD(sink), BOTH,
     "(heads,): a score that takes weight and gives no value"},
    {"rope", "THETA", KIND_POSITIVE, FIELD(rope), LAYER, "rotary embedding of query and key"},
    {"rope-style", "STYLE", KIND_TEXT, FIELD(rope_style), LAYER,
     "which channels are a pair: half (default) or interleaved"},
    {"rope-size", "N", KIND_COUNT, FIELD(rope_size), LAYER,
     "channels that are rotated; default the head size"},
    {"rope-scale", "X", KIND_POSITIVE, FIELD(rope_scale), LAYER, "divides the positions"},
    {"rope-table", "COS,SIN", KIND_TEXT, FIELD(rope_table), LAYER,
     "two .npy, (positions, rope-size / 2), in place of a theta"},
    {"positions", "P.npy", KIND_TEXT, FIELD(positions), LAYER,
     "(B, Lq) of the queries and, in self-attention, the keys"},
    {"add-zero-attn", NULL, KIND_FLAG, FIELD(add_zero_attn), LAYER,
     "a key and value of zeros that every row attends"},
    {"qk-norm-eps", "X", KIND_POSITIVE, FIELD(qk_norm_eps), LAYER,
     "of the layer's q_norm, k_norm; default config.json's, else 1e-6"},
    {"dtype", "TYPE", KIND_TEXT, FIELD(dtype), BOTH,
     "what is computed with: f32 only in this version, whatever the files' type"},
    {"cache", "KIND", KIND_TEXT, FIELD(cache), BOTH,
     "keys and values go through a cache: contiguous, or paged:SIZE tokens a page"},
    {"cache-capacity", "N", KIND_COUNT, FIELD(cache_capacity), BOTH,
     "tokens of a sequence, at most; default: as many as it has"},
    {"cache-dtype", "T|K,V", KIND_TEXT, FIELD(cache_dtype), BOTH,
     "stored as f32 (default), bf16, f16 or int8; of keys and of values"},
    {"append", "N", KIND_COUNT, FIELD(append), BOTH,
     "at most N tokens at a time into the cache; default: all"},
    {"decode", "N", KIND_COUNT, FIELD(decode), BOTH,
     "the last N rows one at a time, after the rest, through the cache"},
    {"isa", "NAME", KIND_TEXT, FIELD(isa), BOTH | VERB_INFO,
     "instruction set; default: HEADWAY_ISA, else the best here"},
    {"threads", "N", KIND_NATURAL, FIELD(threads), BOTH | VERB_INFO,
     "0 (default): what the machine and its cgroup allow"},
    {"explain", NULL, KIND_FLAG, FIELD(explain), BOTH, "print the plan"},
    {"repeat", "N", KIND_COUNT, FIELD(repeat), BOTH,
     "time N runs: median, GFLOP/s, share of the FMA peak"},
    {"help", NULL, KIND_FLAG, FIELD(help), BOTH | VERB_INFO, "this text"},
};
#define ROWS ((int)(sizeof rows / sizeof *rows))

int parse_integer(const char *text, int64_t least, int64_t most, int64_t *number)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits))
        return -1;
    errno = 0;
    long long parsed = strtoll(text, NULL, 10);
    if (errno || parsed < least || parsed > most)
        return -1;
    *number = parsed;
    return 0;
}

int parse_number(const char *text, double *number)
{
    char *end;
    if (*text == '\0' || strspn(text, "0123456789+-.eE") != strlen(text))
        return -1;
    double parsed = strtod(text, &end);
    if (*end != '\0' || !isfinite((float)parsed))
        return -1;
    *number = parsed;
    return 0;
}

int parse_pair(const char *text, char *first, char *second, size_t size)
{
    const char *comma = strchr(text, ',');
    if (!comma || comma == text || !comma[1] || strchr(comma + 1, ',') || strlen(text) >= size)
        return -1;
    snprintf(first, size, "%.*s", (int)(comma - text), text);
    snprintf(second, size, "%s", comma + 1);
    return 0;
}

static const char *verb_name(enum verb verb)
{
    return verb == VERB_RUN      ? "run"
           : verb == VERB_ATTEND ? "attend"
           : verb == VERB_CHECK  ? "check"
                                 : "info";
}

static int verb_parse(const char *text, enum verb *verb)
{
    for (int bit = VERB_RUN; bit <= VERB_INFO; bit *= 2)
        if (strcmp(text, verb_name((enum verb)bit)) == 0) {
            *verb = (enum verb)bit;
            return 0;
        }
    return -1;
}

/* What a number must be, where it isn't; else NULL. */
static const char *store_number(enum kind kind, const char *text, struct option_number *number)
{
    number->given = 1;
    if (parse_number(text, &number->value))
        return "a finite number";
    /* Of what is computed with, which is a float. */
    if (kind == KIND_LIMIT && !((float)number->value > 0 || number->value == 0))
        return "0 or a positive number";
    if (kind == KIND_POSITIVE && !((float)number->value > 0))
        return "a positive number";
    return NULL;
}

static int store(const struct option_row *row, const char *text, struct options *options,
                 char *error)
{
    char *field = (char *)options + row->field;
    const char *expected = NULL;
    switch (row->kind) {
    case KIND_TEXT:
        *(const char **)field = text;
        break;
    case KIND_COUNT:
        if (parse_integer(text, 1, INT32_MAX, (int64_t *)field))
            expected = "a whole number from 1";
        break;
    case KIND_NATURAL:
        if (parse_integer(text, 0, INT32_MAX, (int64_t *)field))
            expected = "a whole number from 0";
        break;
    case KIND_NUMBER:
    case KIND_LIMIT:
    case KIND_POSITIVE:
        expected = store_number(row->kind, text, (struct option_number *)field);
        break;
    case KIND_FLAG:
        *(int *)field = 1;
        break;
    }
    if (expected) {
        snprintf(error, ERROR_SIZE, "--%s: \"%.100s\" given, %s expected", row->name, text,
                 expected);
        return -1;
    }
    return 0;
}

static int one_of(const char *name, const char *given, const char *first, const char *second,
                  char *error)
{
    if (!given || strcmp(given, first) == 0 || (second && strcmp(given, second) == 0))
        return 0;
    snprintf(error, ERROR_SIZE, "--%s: \"%.100s\" given, %s%s%s expected", name, given, first,
             second ? " or " : "", second ? second : "");
    return -1;
}

static int check_values(const struct options *o, char *error)
{
    headway_kv_cache_config cache;
    if (o->dtype && (strcmp(o->dtype, "f16") == 0 || strcmp(o->dtype, "bf16") == 0)) {
        snprintf(error, ERROR_SIZE, "--dtype %s: not in this version, which computes with f32",
                 o->dtype);
        return -1;
    }
    return one_of("layout", o->layout, "blhd", "bhld", error) ||
                   one_of("rope-style", o->rope_style, "half", "interleaved", error) ||
                   one_of("qkv-rows", o->qkv_rows, "per-head", "per-kind", error) ||
                   one_of("dtype", o->dtype, "f32", NULL, error) ||
                   (options_cached(o) && cache_parse(o, &cache, error))
               ? -1
               : 0;
}

struct presence {
    const char *name, *given;
    int needed;
};

static const char *given(int is_given)
{
    return is_given ? "" : NULL;
}

/* The options of check that belong to the other of run and attend; `needed` says to run. */
static int check_alien(const struct options *o, int layer, const char *verb, char *error)
{
    const struct presence alien[] = {
        {"input", o->input, 1},
        {"layer", o->layer, 1},
        {"qkv-rows", o->qkv_rows, 1},
        {"rope", given(o->rope.given), 1},
        {"rope-style", o->rope_style, 1},
        {"rope-size", given(o->rope_size != 0), 1},
        {"rope-scale", given(o->rope_scale.given), 1},
        {"rope-table", o->rope_table, 1},
        {"positions", o->positions, 1},
        {"add-zero-attn", given(o->add_zero_attn), 1},
        {"qk-norm-eps", given(o->qk_norm_eps.given), 1},
        {"query", o->query, 0},
        {"layout", o->layout, 0},
    };
    for (size_t i = 0; i < sizeof alien / sizeof *alien; i++)
        if (alien[i].given && alien[i].needed != layer) {
            snprintf(error, ERROR_SIZE, "--%s: not an option of %s, %s", alien[i].name, verb,
                     layer ? "which takes --input" : "which is meant without --weights");
            return -1;
        }
    return 0;
}

/* Options that can't be meant together. */
static int check_pairs(const struct options *o, char *error)
{
    const struct {
        const char *name;
        int given;
        const char *other;
        int other_given;
    } pairs[] = {
        {"offset", o->offset != NULL, "causal", o->causal && strcmp(o->causal, "none") != 0},
        {"rope-table", o->rope_table != NULL, "rope", o->rope.given},
        {"rope-table", o->rope_table != NULL, "rope-scale", o->rope_scale.given},
        {"probs", o->probs != NULL, "query-offsets", o->query_offsets != NULL},
        {"probs-mean", o->probs_mean != NULL, "query-offsets", o->query_offsets != NULL},
        {"query-lengths", o->query_lengths != NULL, "query-offsets", o->query_offsets != NULL},
        {"key-lengths", o->key_lengths != NULL, "query-offsets", o->query_offsets != NULL},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].given && pairs[i].other_given) {
            snprintf(error, ERROR_SIZE, "--%s: given with --%s, one of them expected",
                     pairs[i].name, pairs[i].other);
            return -1;
        }
    if (o->key_offsets && !o->query_offsets) {
        snprintf(error, ERROR_SIZE,
                 "--key-offsets: given without --query-offsets, expected with it");
        return -1;
    }
    return 0;
}

/* What run and attend need and what is only for the other; --output is no need of check. */
static int check_presence(const struct options *o, char *error)
{
    int layer = options_is_layer(o);
    const char *verb = layer ? "run" : "attend";
    int output = o->verb != VERB_CHECK;
    const struct presence needs[] = {
        {"weights", o->weights, layer}, {"input", o->input, layer},  {"query", o->query, !layer},
        {"key", o->key, !layer},        {"value", o->value, !layer}, {"output", o->output, output},
    };
    if (check_alien(o, layer, verb, error))
        return -1;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i].needed && !needs[i].given) {
            snprintf(error, ERROR_SIZE, "%s: --%s is missing", verb_name(o->verb), needs[i].name);
            return -1;
        }
    if (layer && o->value && !o->key) {
        snprintf(error, ERROR_SIZE, "--value: given without --key, expected with it");
        return -1;
    }
    return 0;
}

/* getopt_long completes shortened names; here they are errors, lest a new option change what an old
 * script means. */
static int spelled_out(const char *argument, const char *name)
{
    size_t length = strlen(name);
    return strncmp(argument, "--", 2) == 0 && strncmp(argument + 2, name, length) == 0 &&
           (argument[2 + length] == '\0' || argument[2 + length] == '=');
}

static int unknown(const char *argument, enum verb verb, char *error)
{
    int length = (int)strcspn(argument, "=");
    snprintf(error, ERROR_SIZE, "%.*s: unknown option of %s, see headway %s --help",
             length > 100 ? 100 : length, argument, verb_name(verb), verb_name(verb));
    return -1;
}

static int parse_all(int argc, char **argv, struct options *options, char *error)
{
    struct option table[ROWS + 1];
    memset(table, 0, sizeof table);
    for (int i = 0; i < ROWS; i++) {
        table[i].name = rows[i].name;
        table[i].has_arg = rows[i].value ? required_argument : no_argument;
    }
    opterr = 0;
    optind = 1;
    for (;;) {
        int at = optind, index = -1;
        int got = getopt_long(argc, argv, "+:", table, &index);
        if (got == -1)
            break;
        const char *argument = argv[at];
        if (got == ':') {
            snprintf(error, ERROR_SIZE, "%.100s: a value is missing", argument);
            return -1;
        }
        if (got == '?' || index < 0) {
            for (int i = 0; i < ROWS; i++)
                if (!rows[i].value && spelled_out(argument, rows[i].name)) {
                    snprintf(error, ERROR_SIZE, "--%s: a value is given, none expected",
                             rows[i].name);
                    return -1;
                }
            return unknown(argument, options->verb, error);
        }
        if (!(rows[index].verbs & options->verb) || !spelled_out(argument, rows[index].name))
            return unknown(argument, options->verb, error);
        if (store(&rows[index], optarg, options, error))
            return -1;
    }
    if (optind < argc) {
        snprintf(error, ERROR_SIZE, "\"%.100s\": an argument that belongs to no option",
                 argv[optind]);
        return -1;
    }
    return 0;
}

int options_parse(int argc, char **argv, struct options *options, char *error)
{
    memset(options, 0, sizeof *options);
    if (argc < 2) {
        snprintf(error, ERROR_SIZE,
                 "no verb given, run, attend, check or info expected; see headway --help");
        return -1;
    }
    if (verb_parse(argv[1], &options->verb)) {
        snprintf(error, ERROR_SIZE, "\"%.100s\" given, run, attend, check or info expected",
                 argv[1]);
        return -1;
    }
    if (parse_all(argc - 1, argv + 1, options, error))
        return -1;
    if (options->help || options->verb == VERB_INFO)
        return 0;
    return check_values(options, error) || check_presence(options, error) ||
                   check_pairs(options, error)
               ? -1
               : 0;
}

int options_cached(const struct options *o)
{
    return o->cache || o->cache_dtype || o->cache_capacity || o->append || o->decode;
}

int options_is_layer(const struct options *options)
{
    return options->verb == VERB_RUN || (options->verb == VERB_CHECK && options->weights);
}

static const char usage_run[] =
    "headway run --weights FILE|DIR [--layer NAME] --input X.npy [--key X.npy] [--value X.npy]\n"
    "            --output Y.npy [options]\n"
    "The whole layer: projections, attention, output projection.\n";
static const char usage_attend[] =
    "headway attend --query Q.npy --key K.npy --value V.npy --output O.npy [options]\n"
    "The attention core alone.\n";
static const char usage_check[] =
    "headway check (arguments of run or attend) [--against reference|onednn|FILE.npy]\n"
    "Compares: for each output the largest error, the largest in units of the documented bound,\n"
    "where they are, and ok or FAIL. Where a cache rounds, reference and onednn compute on what "
    "it\n"
    "holds, which attend's keys and values are compared with; a FILE's bound takes in, and says, "
    "how\n"
    "far the rounding moves the output.\n";
static const char usage_info[] =
    "headway info [--weights FILE|DIR]\n"
    "This CPU, every instruction set's row, oneDNN; or the layers in a file.\n";

void help_command(void)
{
    printf(
        "Headway: multi-head attention for CPUs.\n\n%s\n%s\n%s\n%s\n"
        "headway --version, headway --help, headway VERB --help\n\n"
        "Files are .npy and .safetensors. Exit status: 0 done; 1 check found a difference; 2 bad\n"
        "arguments or files, with one line on stderr, and no output file made or touched.\n",
        usage_run, usage_attend, usage_check, usage_info);
}

void help_verb(enum verb verb)
{
    printf("%s\nOptions (of one given twice the last counts):\n",
           verb == VERB_RUN      ? usage_run
           : verb == VERB_ATTEND ? usage_attend
           : verb == VERB_CHECK  ? usage_check
                                 : usage_info);
    for (int i = 0; i < ROWS; i++)
        if (rows[i].verbs & verb) {
            char left[40];
            snprintf(left, sizeof left, "--%s %s", rows[i].name,
                     rows[i].value ? rows[i].value : "");
            printf("  %-22s %s\n", left, rows[i].help);
        }
    if (verb == VERB_RUN || verb == VERB_CHECK)
        printf("\nRotary tables reach to the run's largest position, which kinds of scaling that "
               "depend on\nthe length (dynamic, longrope) take for it. Flags win over "
               "config.json.\n");
}
