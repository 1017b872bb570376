#include "cli/cache.h"
#include "cli/compare.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* "(2,5,17)" */
static const char *list(const int64_t *numbers, int count, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? "," : "",
                                 (long long)numbers[i]);
    if (used < size)
        snprintf(text + used, size - used, ")");
    return text;
}

/* Where an offset into a dense array lies. */
static const char *place(const struct array *array, int64_t at, char *text, size_t size)
{
    int64_t index[ARRAY_MAX_RANK];
    for (int axis = array->rank - 1; axis >= 0; axis--) {
        index[axis] = at % array->shape[axis];
        at /= array->shape[axis];
    }
    return list(index, array->rank, text, size);
}

static void print(const char *output, const char *against, const struct array *array,
                  const struct comparison *c, int *differs)
{
    char at[128], worst[128];
    if (c->count == 0) {
        printf("%s against %s: nothing to compare: ok\n", output, against);
        return;
    }
    printf("%s against %s: largest error %.3g at %s, %.9g for %.9g; %.3g of the bound at %s: ",
           output, against, c->largest, place(array, c->at, at, sizeof at), c->got, c->expected,
           c->worst, place(array, c->worst_at, worst, sizeof worst));
    if (c->outside) {
        printf("FAIL (%lld of %lld outside)\n", (long long)c->outside, (long long)c->count);
        *differs = 1;
    } else
        printf("ok\n");
}

/* An output beside the first, which is f32 in the order of the reference's. */
static void check_other(const char *name, const struct array *array, const double *expected,
                        const double *bound, int *differs)
{
    struct comparison c = {0};
    const float *got = array->data;
    if (!got)
        return;
    for (int64_t i = 0, n = array_count(array); i < n; i++)
        compare_element(&c, i, got[i], expected[i], bound[i]);
    print(name, "reference", array, &c, differs);
}

/* How far a stored element may be from x, of a head's line with the largest |x| `most`: headway.h. */
static double storage_bound(headway_dtype dtype, double x, double most)
{
    switch (dtype) {
    case HEADWAY_F16:
        return x > 65504 ? INFINITY : fmax(x * 0x1p-11, 0x1p-25);
    case HEADWAY_BF16:
        return x > 255 * 0x1p120 ? INFINITY : fmax(x * 0x1p-8, 0x1p-134);
    case HEADWAY_I8:
        return most < (double)FLT_MAX ? most / 254 * (1 + 0x1p-14) + 0x1p-100 : INFINITY;
    default:
        return 0;
    }
}

/* A head's line of a token and what is stored of it, which begins at `at`. */
static void compare_line(const float *line, const float *stored, int64_t size, headway_dtype dtype,
                         int64_t at, struct comparison *c)
{
    double most = 0;
    for (int64_t d = 0; d < size; d++)
        most = fabs((double)line[d]) > most || isnan(line[d]) ? fabs((double)line[d]) : most;
    for (int64_t d = 0; d < size; d++) {
        const double bound = storage_bound(dtype, fabs((double)line[d]), most);
        if (isfinite(bound) && isfinite(most))
            compare_element(c, at + d, stored[at + d], line[d], bound);
    }
}

/* What the cache holds, which is what reference and onednn compute on, beside the given tensor. */
static void check_stored(const struct problem *p, const char *name, const headway_tensor *given,
                         const struct array *stored, headway_dtype dtype, int *differs)
{
    const int64_t heads = p->kv_heads, size = given->shape[3];
    struct comparison c = {0};
    char output[32];
    for (int64_t b = 0; b < p->sequences; b++) {
        const struct sequence s = problem_sequence(p, b);
        const int64_t batch = p->params.query_starts ? 0 : b;
        for (int64_t n = 0; n < s.keys * heads; n++) {
            const int64_t t = s.key_start + n / heads, h = n % heads;
            const float *line = (const float *)given->data + batch * given->stride[0] +
                                t * given->stride[1] + h * given->stride[2];
            const int64_t at = ((batch * p->key_length + t) * heads + h) * size;
            compare_line(line, stored->data, size, dtype, at, &c);
        }
    }
    snprintf(output, sizeof output, "stored %s", name);
    print(output, name, stored, &c, differs);
}

static void check_cache(const struct problem *p, const struct answer *answer, int *differs)
{
    headway_kv_cache_config config;
    char error[ERROR_SIZE];
    if (p->is_layer || !answer->stored[0].data || cache_parse(p->options, &config, error))
        return;
    check_stored(p, "key", &p->key, &answer->stored[0], config.key_dtype, differs);
    check_stored(p, "value", &p->value, &answer->stored[1], config.value_dtype, differs);
}

/* A file that was made without this cache knows nothing of its rounding: the bound of each element
 * grows by what that moves it, in double precision. */
static int allow_storing(const struct problem *p, struct answer *answer, char *error)
{
    struct answer plain;
    double most = 0;
    if (!answer->stored[0].data)
        return 0;
    if (answer_make(p, NULL, &plain, error))
        return -1;
    for (int64_t i = 0, n = array_count(&p->result); i < n; i++) {
        const double moved = fabs(answer->out[i] - plain.out[i]);
        if (!isfinite(moved))
            continue;
        answer->out_bound[i] += moved;
        most = fmax(most, moved);
    }
    printf("out: storing as %s moves it by up to %.3g, which the bound takes in\n",
           p->options->cache_dtype, most);
    answer_free(&plain);
    return 0;
}

static int check_file(const struct problem *p, struct answer *answer, const char *path,
                      int *differs, char *error)
{
    struct array expected = {0};
    struct comparison c;
    char given[128], wanted[128];
    if (npy_read(path, &expected, error))
        return -1;
    int same = expected.rank == p->result.rank, failed = -1;
    for (int axis = 0; same && axis < expected.rank; axis++)
        same = expected.shape[axis] == p->result.shape[axis];
    if (!same)
        snprintf(error, ERROR_SIZE, "--against: %.200s has shape %s, the output's, %s, expected",
                 path, list(expected.shape, expected.rank, given, sizeof given),
                 list(p->result.shape, p->result.rank, wanted, sizeof wanted));
    else if (expected.type != ARRAY_F32 && expected.type != ARRAY_F16 &&
             expected.type != ARRAY_BF16 && expected.type != ARRAY_F64)
        snprintf(error, ERROR_SIZE, "--against: %.200s holds %s, a float type expected", path,
                 array_type_name(expected.type));
    else
        failed = allow_storing(p, answer, error) ||
                 compare_out(p, answer, SOURCE_FILE, &expected, &c, error);
    if (!failed)
        print("out", path, &expected, &c, differs);
    array_free(&expected);
    return failed;
}

static const char *const path_names[] = {"onednn primitives", "onednn graph"};

/* One of oneDNN's paths; *ran counts those that could. note: what it says, ERROR_SIZE. */
static int check_path(const struct problem *p, const struct answer *answer,
                      enum headway_onednn_path path, char *note, int *ran, int *differs,
                      char *error)
{
    struct array other = {0};
    struct comparison c;
    if (array_make(&other, ARRAY_F32, p->result.rank, p->result.shape, error))
        return -1;
    headway_tensor out = problem_out(p, other.data);
    struct headway_onednn *prepared = onednn_open(p, answer, path, &out, note, ERROR_SIZE);
    int failed = 0;
    if (prepared) {
        *ran += 1;
        failed = headway_onednn_run(prepared);
        if (failed)
            snprintf(error, ERROR_SIZE, "%s reported a failure: %.300s", path_names[path], note);
        else
            failed = compare_out(p, answer, SOURCE_ONEDNN, &other, &c, error);
        if (!failed)
            print("out", path_names[path], &p->result, &c, differs);
        headway_onednn_free(prepared);
    }
    array_free(&other);
    return failed;
}

static int check_onednn(const struct problem *p, const struct answer *answer, int *differs,
                        char *error)
{
    char notes[2][ERROR_SIZE] = {"", ""};
    int ran = 0;
    if (p->is_layer && answer->stored[0].data) {
        snprintf(
            error, ERROR_SIZE,
            "--against onednn: given for a layer with --cache-dtype %.100s, whose rounded keys "
            "and values oneDNN would not see, f32 expected",
            p->options->cache_dtype);
        return -1;
    }
    for (int path = 0; path < 2; path++)
        if (check_path(p, answer, (enum headway_onednn_path)path, notes[path], &ran, differs,
                       error))
            return -1;
    if (!ran) {
        snprintf(error, ERROR_SIZE, "--against onednn: %.230s; %.230s", notes[0],
                 strcmp(notes[0], notes[1]) == 0 ? "neither of its paths" : notes[1]);
        return -1;
    }
    for (int path = 0; path < 2; path++) {
        int named = strncmp(notes[path], path_names[path], strlen(path_names[path])) == 0;
        printf("%s%s%s\n", named ? "" : path_names[path], named ? "" : ": ", notes[path]);
    }
    return 0;
}

int check_problem(const struct problem *p, const headway_kv_cache *cache, int *differs, char *error)
{
    const char *against = p->options->against ? p->options->against : "reference";
    struct answer answer;
    struct comparison c;
    if (answer_make(p, cache, &answer, error))
        return -1;
    int failed;
    check_cache(p, &answer, differs);
    if (strcmp(against, "onednn") == 0)
        failed = check_onednn(p, &answer, differs, error);
    else if (strcmp(against, "reference") != 0)
        failed = check_file(p, &answer, against, differs, error);
    else {
        failed = compare_out(p, &answer, SOURCE_REFERENCE, NULL, &c, error);
        if (!failed)
            print("out", against, &p->result, &c, differs);
    }
    if (!failed) {
        check_other("lse", &p->lse, answer.lse, answer.lse_bound, differs);
        check_other("probs", &p->probs, answer.probs, answer.probs_bound, differs);
        check_other("probs-mean", &p->mean, answer.mean, answer.mean_bound, differs);
    }
    answer_free(&answer);
    return failed;
}
