#include "cli/inputs.h"

#include "cli/options.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_float(enum array_type type)
{
    return type == ARRAY_F32 || type == ARRAY_F16 || type == ARRAY_BF16 || type == ARRAY_F64;
}

int input_values(const char *flag, const char *path, struct array *array, enum array_type *type,
                 char *error)
{
    struct array raw;
    if (npy_read(path, &raw, error))
        return -1;
    *type = raw.type;
    if (!is_float(raw.type)) {
        snprintf(error, ERROR_SIZE, "--%s: %.200s holds %s, f16, bf16, f32 or f64 expected", flag,
                 path, array_type_name(raw.type));
        array_free(&raw);
        return -1;
    }
    if (raw.type == ARRAY_F32) {
        *array = raw;
        return 0;
    }
    int failed = array_convert(array, &raw, ARRAY_F32, error);
    array_free(&raw);
    return failed;
}

/* Finite stays finite: a double below f32's range is a number that masks nothing. */
static void clamp_doubles(struct array *array)
{
    double *values = array->data;
    for (int64_t i = 0, n = array_count(array); i < n; i++)
        if (isfinite(values[i]) && fabs(values[i]) > FLT_MAX)
            values[i] = values[i] > 0 ? FLT_MAX : -FLT_MAX;
}

static void warn_of_zeros_and_ones(const char *path, const struct array *array, char *warning)
{
    const float *values = array->data;
    int ones = 0;
    for (int64_t i = 0, n = array_count(array); i < n; i++) {
        if (values[i] != 0.0f && values[i] != 1.0f)
            return;
        ones |= values[i] == 1.0f;
    }
    if (ones)
        snprintf(warning, ERROR_SIZE,
                 "warning: --mask: %.200s is a float mask of only 0 and 1, which are "
                 "added to the scores; a mask that says which keys to attend is bool",
                 path);
}

int input_mask(const char *path, struct array *array, headway_tensor *mask, char *warning,
               char *error)
{
    struct array raw;
    if (npy_read(path, &raw, error))
        return -1;
    int is_bool = raw.type == ARRAY_BOOL || raw.type == ARRAY_U8 || raw.type == ARRAY_I8;
    if (!is_bool && !is_float(raw.type)) {
        snprintf(error, ERROR_SIZE,
                 "--mask: %.200s holds %s, bool (or u1, i1) or a float type expected", path,
                 array_type_name(raw.type));
        array_free(&raw);
        return -1;
    }
    if (raw.rank != 1 && raw.rank != 2 && raw.rank != 4) {
        snprintf(error, ERROR_SIZE,
                 "--mask: %.200s has rank %d, 1 (Lk), 2 (Lq, Lk) or 4 (B, heads, Lq, Lk) "
                 "expected",
                 path, raw.rank);
        array_free(&raw);
        return -1;
    }
    if (is_bool || raw.type == ARRAY_F32)
        *array = raw;
    else {
        if (raw.type == ARRAY_F64)
            clamp_doubles(&raw);
        int failed = array_convert(array, &raw, ARRAY_F32, error);
        array_free(&raw);
        if (failed)
            return -1;
    }
    if (!is_bool)
        warn_of_zeros_and_ones(path, array, warning);
    *mask = headway_tensor_dense(array->data, is_bool ? HEADWAY_BOOL : HEADWAY_F32, array->rank,
                                 array->shape);
    return 0;
}

int input_integers(const char *flag, const char *path, int64_t batch, int64_t **values, char *error)
{
    struct array raw;
    char detail[ERROR_SIZE];
    if (npy_read(path, &raw, error))
        return -1;
    int failed = 0;
    if (is_float(raw.type) || raw.type == ARRAY_BOOL) {
        snprintf(error, ERROR_SIZE, "--%s: %.200s holds %s, integers expected", flag, path,
                 array_type_name(raw.type));
        failed = -1;
    } else if (raw.rank != 1 || raw.shape[0] != batch) {
        snprintf(error, ERROR_SIZE,
                 "--%s: %.200s has rank %d and %lld elements, one for each of %lld batches "
                 "expected",
                 flag, path, raw.rank, (long long)array_count(&raw), (long long)batch);
        failed = -1;
    } else if (array_integers(values, &raw, detail)) {
        snprintf(error, ERROR_SIZE, "--%s: %.400s", flag, detail);
        failed = -1;
    }
    array_free(&raw);
    return failed;
}

int input_causal(const char *text, int64_t batch, headway_causal *causal, int64_t **offsets,
                 char *error)
{
    static const struct {
        const char *word;
        headway_causal meaning;
    } words[] = {
        {"none", HEADWAY_CAUSAL_NONE},
        {"top-left", HEADWAY_CAUSAL_TOP_LEFT},
        {"bottom-right", HEADWAY_CAUSAL_BOTTOM_RIGHT},
    };
    int64_t offset;
    size_t length = strlen(text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i].word) == 0) {
            *causal = words[i].meaning;
            return 0;
        }
    *causal = HEADWAY_CAUSAL_OFFSETS;
    if (parse_integer(text, INT64_MIN, INT64_MAX, &offset) == 0) {
        *offsets = malloc((size_t)(batch ? batch : 1) * sizeof **offsets);
        if (!*offsets) {
            snprintf(error, ERROR_SIZE, "--causal: memory for %lld offsets ran out",
                     (long long)batch);
            return -1;
        }
        for (int64_t b = 0; b < batch; b++)
            (*offsets)[b] = offset;
        return 0;
    }
    if (length > 4 && strcmp(text + length - 4, ".npy") == 0)
        return input_integers("causal", text, batch, offsets, error);
    snprintf(error, ERROR_SIZE,
             "--causal: \"%.100s\" given, none, top-left, bottom-right, a whole number or "
             "FILE.npy expected",
             text);
    return -1;
}
