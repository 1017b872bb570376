#define _GNU_SOURCE

#include "cli/compare.h"
#include "cli/cache.h"

#include "oracle/reference.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From this many operations on a person waits for the reference. */
#define LONG_REFERENCE 3e8

static double *doubles(const struct array *array)
{
    int64_t count = array->data ? array_count(array) : 0;
    return calloc(count ? (size_t)count : 1, sizeof(double));
}

/* What the cache holds, laid out as key and value are. */
static int take_stored(const struct problem *p, const headway_kv_cache *cache,
                       struct answer *answer, char *error)
{
    headway_tensor *const tensors[] = {&answer->key, &answer->value};
    int64_t shape[4] = {p->batch, p->key_length, p->kv_heads, p->head_size};
    for (int i = 0; i < 2; i++) {
        shape[3] = i ? p->value_head_size : p->head_size;
        if (array_make(&answer->stored[i], ARRAY_F32, 4, shape, error))
            return -1;
        *tensors[i] = headway_tensor_dense(answer->stored[i].data, HEADWAY_F32, 4, shape);
    }
    for (int64_t b = 0; b < p->sequences; b++) {
        struct sequence s = problem_sequence(p, b);
        headway_tensor parts[2];
        for (int i = 0; i < 2; i++) {
            const int64_t *extents = tensors[i]->shape;
            int64_t batch = p->params.query_starts ? 0 : b, token = extents[2] * extents[3];
            parts[i] = headway_tensor_dense(
                (float *)tensors[i]->data + (batch * extents[1] + s.key_start) * token, HEADWAY_F32,
                3, (int64_t[]){s.keys, extents[2], extents[3]});
        }
        headway_status status = headway_stored_values(cache, b, 0, &parts[0], &parts[1]);
        if (status != HEADWAY_OK) {
            snprintf(error, ERROR_SIZE, "the cache can't be read: %s", headway_status_text(status));
            return -1;
        }
    }
    return 0;
}

static struct headway_reference_out results_of(const struct problem *p, const struct answer *answer)
{
    struct headway_reference_out results = {
        answer->out, answer->out_bound, NULL, NULL, NULL, NULL, NULL, NULL};
    if (p->lse.data) {
        results.lse = answer->lse;
        results.lse_bound = answer->lse_bound;
    }
    if (p->probs.data) {
        results.probs = answer->probs;
        results.probs_bound = answer->probs_bound;
    }
    if (p->mean.data) {
        results.mean = answer->mean;
        results.mean_bound = answer->mean_bound;
    }
    return results;
}

static int compute_answer(const struct problem *p, const struct answer *answer, int stored)
{
    const struct headway_reference_out results = results_of(p, answer);
    const headway_tensor *key = p->is_layer ? p->key_given : &p->key;
    const headway_tensor *value = p->is_layer ? p->value_given : &p->value;
    if (stored) {
        key = &answer->key;
        value = &answer->value;
    }
    if (!p->is_layer)
        return headway_reference_attention(&p->params, &p->query, key, value, &results);
    return headway_reference_mha(&p->layer.config, &p->layer.weights, &p->params, &p->query, key,
                                 value, &results);
}

int answer_make(const struct problem *p, const headway_kv_cache *cache, struct answer *answer,
                char *error)
{
    *answer = (struct answer){.out = doubles(&p->result),
                              .out_bound = doubles(&p->result),
                              .lse = doubles(&p->lse),
                              .lse_bound = doubles(&p->lse),
                              .probs = doubles(&p->probs),
                              .probs_bound = doubles(&p->probs),
                              .mean = doubles(&p->mean),
                              .mean_bound = doubles(&p->mean)};
    int shows = isatty(STDERR_FILENO) && problem_flops(p) > LONG_REFERENCE;
    int stored = cache && cache_rounds(p->options);
    int failed = !answer->out || !answer->out_bound || !answer->lse || !answer->lse_bound ||
                 !answer->probs || !answer->probs_bound || !answer->mean || !answer->mean_bound;
    if (stored && !failed && take_stored(p, cache, answer, error)) {
        answer_free(answer);
        return -1;
    }
    if (shows)
        fprintf(stderr, "computing in double precision ...");
    failed = failed || compute_answer(p, answer, stored);
    if (shows)
        fprintf(stderr, "\r\033[K");
    if (failed) {
        snprintf(error, ERROR_SIZE, "memory ran out in the double reference, %lld results wanted",
                 (long long)array_count(&p->result));
        answer_free(answer);
    }
    return failed ? -1 : 0;
}

void answer_free(struct answer *answer)
{
    double *const arrays[] = {answer->out,   answer->out_bound,   answer->lse,  answer->lse_bound,
                              answer->probs, answer->probs_bound, answer->mean, answer->mean_bound};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    for (int i = 0; i < 2; i++)
        array_free(&answer->stored[i]);
    memset(answer, 0, sizeof *answer);
}

void compare_element(struct comparison *c, int64_t at, double got, double expected, double bound)
{
    double error = fabs(got - expected);
    if ((isnan(got) && isnan(expected)) || got == expected)
        error = 0;
    else if (isnan(error))
        error = INFINITY;
    double units = error == 0 ? 0 : error / bound;
    if (!(error == 0 || error <= bound)) {
        c->outside++;
        if (isnan(units))
            units = INFINITY;
    }
    if (c->count == 0 || error > c->largest) {
        c->largest = error;
        c->got = got;
        c->expected = expected;
        c->at = at;
    }
    if (c->count == 0 || units > c->worst) {
        c->worst = units;
        c->worst_at = at;
    }
    c->count++;
}

struct format {
    int bits, least; /* of the significand; exponent of the smallest normal number */
};

static struct format format_of(enum array_type type)
{
    return type == ARRAY_F16    ? (struct format){11, -14}
           : type == ARRAY_BF16 ? (struct format){8, -126}
           : type == ARRAY_F64  ? (struct format){53, -1022}
                                : (struct format){24, -126};
}

double half_unit(enum array_type type, double x)
{
    struct format format = format_of(type);
    int exponent;
    if (!isfinite(x))
        return 0;
    frexp(x, &exponent);
    exponent--;
    if (x == 0 || exponent < format.least)
        exponent = format.least;
    return ldexp(1.0, exponent - format.bits);
}

/* Rounding to the file's type: nothing for f32, which the bound speaks of, and for f64. */
static double rounding(enum array_type type, double x)
{
    return type == ARRAY_F16 || type == ARRAY_BF16 ? half_unit(type, x) : 0;
}

/* What is too large for an f16 file is infinite there, and rightly. */
static double as_stored(enum array_type type, double got, double expected, double bound)
{
    double limit = type == ARRAY_F16 ? 65520.0 : (double)FLT_MAX;
    if (isinf(got) && (got > 0) == (expected > 0) && isfinite(expected) && type != ARRAY_F64 &&
        fabs(expected) + bound >= limit)
        return expected;
    return got;
}

struct sides {
    const struct problem *problem;
    const struct answer *answer;
    enum source source;
    enum array_type expected_type;
    const double *got, *expected; /* as the file lies; expected NULL: the answer's */
};

static void compare_place(const struct sides *s, int64_t dense, int64_t at, struct comparison *c)
{
    enum array_type type = s->problem->type;
    double bound = s->answer->out_bound[dense];
    double expected = s->expected ? s->expected[at] : s->answer->out[dense];
    if (s->source == SOURCE_ONEDNN)
        bound *= 2;
    bound += rounding(type, fabs(expected) + bound);
    if (s->source == SOURCE_FILE)
        bound += half_unit(s->expected_type, expected);
    compare_element(c, at, as_stored(type, s->got[at], expected, bound), expected, bound);
}

static void compare_places(const struct sides *s, struct comparison *c)
{
    const struct problem *p = s->problem;
    const headway_tensor *out = &p->out;
    int heads_axis = out->rank == 4;
    int64_t heads = heads_axis ? out->shape[2] : 1, width = out->shape[out->rank - 1], dense = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t queries = p->params.query_lengths ? p->params.query_lengths[b] : p->query_length;
        for (int64_t i = 0; i < p->query_length; i++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t at =
                    b * out->stride[0] + i * out->stride[1] + (heads_axis ? h * out->stride[2] : 0);
                for (int64_t d = 0; d < width; d++, dense++)
                    if (s->source != SOURCE_ONEDNN || i < queries)
                        compare_place(s, dense, at + d, c);
            }
    }
}

int compare_out(const struct problem *p, const struct answer *answer, enum source source,
                const struct array *expected, struct comparison *c, char *error)
{
    struct array stored = {0}, got = {0}, wanted = {0};
    *c = (struct comparison){0};
    int failed = array_convert(&stored, &p->result, p->type, error) ||
                 array_convert(&got, &stored, ARRAY_F64, error) ||
                 (expected && array_convert(&wanted, expected, ARRAY_F64, error));
    if (!failed) {
        struct sides sides = {p,        answer,
                              source,   expected ? expected->type : ARRAY_F64,
                              got.data, expected ? wanted.data : NULL};
        compare_places(&sides, c);
    }
    array_free(&stored);
    array_free(&got);
    array_free(&wanted);
    return failed ? -1 : 0;
}

struct headway_onednn *onednn_open(const struct problem *p, const struct answer *answer,
                                   enum headway_onednn_path path, const headway_tensor *out,
                                   char *note, size_t size)
{
    headway_attention_params params = p->params;
    int stored = answer->stored[0].data != NULL;
    params.lse = NULL;
    params.weights = NULL;
    /* Rows beyond a query length may hold anything, as nobody compares them; bottom-right causality
     * is the one thing that counts on those lengths. */
    if (params.causal != HEADWAY_CAUSAL_BOTTOM_RIGHT)
        params.query_lengths = NULL;
    if (p->is_layer)
        return headway_onednn_mha(path, &p->layer.config, &p->layer.weights, &params, &p->query,
                                  p->key_given, p->value_given, out, note, size);
    return headway_onednn_attention(path, &params, &p->query, stored ? &answer->key : &p->key,
                                    stored ? &answer->value : &p->value, out, note, size);
}
