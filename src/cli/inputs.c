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
    size_t size = array_type_size(array->type);
    int ones = 0;
    for (int64_t i = 0, n = array_count(array); i < n; i++) {
        float value;
        array_convert_elements(ARRAY_F32, &value, array->type,
                               (const char *)array->data + (size_t)i * size, 1);
        if (value != 0.0f && value != 1.0f)
            return;
        ones |= value == 1.0f;
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
    if (raw.type != ARRAY_F64)
        *array = raw;
    else {
        clamp_doubles(&raw);
        int failed = array_convert(array, &raw, ARRAY_F32, error);
        array_free(&raw);
        if (failed)
            return -1;
    }
    if (!is_bool)
        warn_of_zeros_and_ones(path, array, warning);
    *mask = headway_tensor_dense(array->data,
                                 is_bool                     ? HEADWAY_BOOL
                                 : array->type == ARRAY_F16  ? HEADWAY_F16
                                 : array->type == ARRAY_BF16 ? HEADWAY_BF16
                                                             : HEADWAY_F32,
                                 array->rank, array->shape);
    return 0;
}

/* A file of integers. */
static int read_integers(const char *flag, const char *path, struct array *raw, char *error)
{
    if (npy_read(path, raw, error))
        return -1;
    if (!is_float(raw->type) && raw->type != ARRAY_BOOL)
        return 0;
    snprintf(error, ERROR_SIZE, "--%s: %.200s holds %s, integers expected", flag, path,
             array_type_name(raw->type));
    array_free(raw);
    return -1;
}

int input_integers(const char *flag, const char *path, int64_t batch, int64_t **values, char *error)
{
    struct array raw;
    char detail[ERROR_SIZE];
    int failed = 0;
    if (read_integers(flag, path, &raw, error))
        return -1;
    if (raw.rank != 1 || raw.shape[0] != batch) {
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

int input_starts(const char *flag, const char *path, int64_t total, int64_t **starts,
                 int64_t *sequences, char *error)
{
    struct array raw;
    char detail[ERROR_SIZE];
    if (read_integers(flag, path, &raw, error))
        return -1;
    int failed = -1;
    int64_t count = array_count(&raw);
    if (raw.rank != 1 || count < 1)
        snprintf(error, ERROR_SIZE,
                 "--%s: %.200s has rank %d and %lld elements, rank 1 and at least one expected",
                 flag, path, raw.rank, (long long)count);
    else if (array_integers(starts, &raw, detail))
        snprintf(error, ERROR_SIZE, "--%s: %.400s", flag, detail);
    else
        failed = 0;
    array_free(&raw);
    for (int64_t b = 0; !failed && b < count; b++) {
        int64_t least = b ? (*starts)[b - 1] : 0, most = b ? total : 0;
        int last = b == count - 1;
        if ((*starts)[b] < least || (*starts)[b] > most || (last && (*starts)[b] != total)) {
            snprintf(error, ERROR_SIZE,
                     "--%s: %.200s has %lld at %lld, %lld%s expected (from 0, never falling, at "
                     "last the total)",
                     flag, path, (long long)(*starts)[b], (long long)b,
                     (long long)(last ? total : least), last || !b ? "" : " or more");
            failed = -1;
        }
    }
    *sequences = count - 1;
    return failed;
}

int input_indices(const char *flag, const char *path, struct array *array, headway_tensor *tensor,
                  char *error)
{
    struct array raw;
    char detail[ERROR_SIZE];
    if (read_integers(flag, path, &raw, error))
        return -1;
    int failed = array_indices(array, &raw, detail);
    if (failed)
        snprintf(error, ERROR_SIZE, "--%s: %.200s: %.400s", flag, path, detail);
    else
        *tensor = headway_tensor_dense(array->data, HEADWAY_I32, array->rank, array->shape);
    array_free(&raw);
    return failed;
}

int input_heads(const char *flag, const char *path, int64_t heads, float **values, char *error)
{
    struct array array = {0};
    enum array_type type;
    if (input_values(flag, path, &array, &type, error))
        return -1;
    if (array.rank != 1 || array.shape[0] != heads) {
        snprintf(error, ERROR_SIZE,
                 "--%s: %.200s has rank %d and %lld elements, one for each of %lld heads expected",
                 flag, path, array.rank, (long long)array_count(&array), (long long)heads);
        array_free(&array);
        return -1;
    }
    *values = array.data;
    return 0;
}

int input_table(const char *flag, const char *path, struct array *array, headway_tensor *tensor,
                char *error)
{
    enum array_type type;
    if (input_values(flag, path, array, &type, error))
        return -1;
    if (array->rank != 2) {
        snprintf(error, ERROR_SIZE,
                 "--%s: %.200s has rank %d, 2 (positions, rope-size / 2) expected", flag, path,
                 array->rank);
        return -1;
    }
    *tensor = headway_tensor_dense(array->data, HEADWAY_F32, 2, array->shape);
    return 0;
}

static int is_npy(const char *text)
{
    size_t length = strlen(text);
    return length > 4 && strcmp(text + length - 4, ".npy") == 0;
}

int input_offsets(const char *flag, const char *text, int64_t batch, int64_t **offsets, char *error)
{
    int64_t offset;
    if (parse_integer(text, INT64_MIN, INT64_MAX, &offset)) {
        if (is_npy(text))
            return input_integers(flag, text, batch, offsets, error);
        snprintf(error, ERROR_SIZE, "--%s: \"%.100s\" given, %sa whole number or FILE.npy expected",
                 flag, text, strcmp(flag, "causal") == 0 ? "none, top-left, bottom-right, " : "");
        return -1;
    }
    *offsets = malloc((size_t)(batch ? batch : 1) * sizeof **offsets);
    if (!*offsets) {
        snprintf(error, ERROR_SIZE, "--%s: memory for %lld offsets ran out", flag,
                 (long long)batch);
        return -1;
    }
    for (int64_t b = 0; b < batch; b++)
        (*offsets)[b] = offset;
    return 0;
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
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i].word) == 0) {
            *causal = words[i].meaning;
            return 0;
        }
    *causal = HEADWAY_CAUSAL_OFFSETS;
    return input_offsets("causal", text, batch, offsets, error);
}

int input_window(const char *text, int64_t *left, int64_t *right, char *error)
{
    char sides[2][64];
    if (parse_pair(text, sides[0], sides[1], sizeof sides[0]) == 0 &&
        parse_integer(sides[0], -1, INT64_MAX, left) == 0 &&
        parse_integer(sides[1], -1, INT64_MAX, right) == 0)
        return 0;
    snprintf(error, ERROR_SIZE,
             "--window: \"%.100s\" given, LEFT,RIGHT expected, each -1 (unbounded) or more", text);
    return -1;
}
