#include "cli/array.h"

#include "cli/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [ARRAY_F32] = {"f32", 4}, [ARRAY_F16] = {"f16", 2},   [ARRAY_BF16] = {"bf16", 2},
    [ARRAY_F64] = {"f64", 8}, [ARRAY_BOOL] = {"bool", 1}, [ARRAY_I8] = {"i8", 1},
    [ARRAY_U8] = {"u8", 1},   [ARRAY_I32] = {"i32", 4},   [ARRAY_I64] = {"i64", 8},
};

const char *array_type_name(enum array_type type)
{
    return types[type].name;
}

size_t array_type_size(enum array_type type)
{
    return types[type].size;
}

static int is_float(enum array_type type)
{
    return type == ARRAY_F32 || type == ARRAY_F16 || type == ARRAY_BF16 || type == ARRAY_F64;
}

int array_bytes(enum array_type type, int rank, const int64_t *shape, int64_t *bytes)
{
    int64_t total = (int64_t)types[type].size;
    int empty = 0;
    for (int axis = 0; axis < rank; axis++) {
        if (shape[axis] < 0) {
            return -1;
        }
        if (shape[axis] == 0) {
            empty = 1;
        } else if (__builtin_mul_overflow(total, shape[axis], &total) || total > PTRDIFF_MAX) {
            return -1;
        }
    }
    *bytes = empty ? 0 : total;
    return 0;
}

const char *shape_text(char *text, int rank, const int64_t *shape)
{
    size_t used = 1;
    text[0] = '(';
    text[1] = 0;
    for (int axis = 0; axis < rank; axis++) {
        const char *separator = rank == 1 ? "," : axis + 1 < rank ? ", " : "";
        used += (size_t)snprintf(text + used, SHAPE_TEXT_SIZE - used, "%lld%s",
                                 (long long)shape[axis], separator);
    }
    text[used] = ')';
    text[used + 1] = 0;
    return text;
}

int64_t array_count(const struct array *array)
{
    int64_t count = 1;
    for (int axis = 0; axis < array->rank; axis++) {
        if (array->shape[axis] == 0) {
            return 0;
        }
        count *= array->shape[axis];
    }
    return count;
}

void array_free(struct array *array)
{
    free(array->data);
    memset(array, 0, sizeof *array);
}

int array_make(struct array *array, enum array_type type, int rank, const int64_t *shape,
               char *error)
{
    char text[SHAPE_TEXT_SIZE];
    int64_t bytes = 0;
    memset(array, 0, sizeof *array);
    if (rank < 0 || rank > ARRAY_MAX_RANK) {
        return error_set(error, "an array of rank %d was asked for, expected at most %d", rank,
                         ARRAY_MAX_RANK);
    }
    if (array_bytes(type, rank, shape, &bytes) != 0) {
        return error_set(error, "the shape %s is negative or too large",
                         shape_text(text, rank, shape));
    }
    array->data = calloc(1, bytes > 0 ? (size_t)bytes : 1);
    if (!array->data) {
        return error_set(error, "out of memory for %lld bytes of shape %s", (long long)bytes,
                         shape_text(text, rank, shape));
    }
    array->type = type;
    array->rank = rank;
    for (int axis = 0; axis < rank; axis++) {
        array->shape[axis] = shape[axis];
    }
    return 0;
}

/* A double as a binary float of `fraction` bits below the leading one, exponents from `lowest`
 * (that of the smallest normal) to -lowest + 1, in the low bits of the result. Rounds once, to
 * even. */
static uint16_t narrow(double x, int fraction, int lowest)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 63 << 15);
    uint16_t infinity = (uint16_t)(0x7fff >> fraction << fraction);
    if (isnan(x)) {
        uint16_t payload = (uint16_t)((bits & 0xfffffffffffffu) >> (52 - fraction));
        return (uint16_t)(sign | infinity | payload | 1u << (fraction - 1));
    }
    double magnitude = fabs(x);
    if (isinf(x)) {
        return (uint16_t)(sign | infinity);
    }
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    if (exponent < lowest) {
        exponent = lowest;
    }
    if (exponent > 1 - lowest) {
        return (uint16_t)(sign | infinity);
    }
    /* In units of the last place: the integer that rint leaves carries into the exponent by itself.
     */
    double units = rint(ldexp(magnitude, fraction - exponent));
    uint32_t result = ((uint32_t)(exponent - lowest) << fraction) + (uint32_t)units;
    return (uint16_t)(sign | (result > infinity ? infinity : result));
}

static double widen_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    int fraction = bits & 1023;
    uint64_t wide = (uint64_t)(bits >> 15) << 63;
    if (exponent == 31) {
        wide |= 0x7ff0000000000000u | (uint64_t)fraction << 42;
    } else if (exponent == 0) {
        double x = ldexp((double)fraction, -24);
        return bits >> 15 ? -x : x;
    } else {
        wide |= (uint64_t)(exponent - 15 + 1023) << 52 | (uint64_t)fraction << 42;
    }
    double x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

static double load(enum array_type type, const char *from)
{
    uint16_t half;
    float single;
    double x = 0;
    switch (type) {
    case ARRAY_F32:
        memcpy(&single, from, sizeof single);
        return (double)single;
    case ARRAY_F16:
        memcpy(&half, from, sizeof half);
        return widen_f16(half);
    case ARRAY_BF16: {
        memcpy(&half, from, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    }
    default:
        memcpy(&x, from, sizeof x);
        return x;
    }
}

static void store(enum array_type type, char *to, double x)
{
    uint16_t half;
    float single;
    switch (type) {
    case ARRAY_F32:
        single = (float)x;
        memcpy(to, &single, sizeof single);
        break;
    case ARRAY_F16:
        half = narrow(x, 10, -14);
        memcpy(to, &half, sizeof half);
        break;
    case ARRAY_BF16:
        half = narrow(x, 7, -126);
        memcpy(to, &half, sizeof half);
        break;
    default:
        memcpy(to, &x, sizeof x);
        break;
    }
}

void array_convert_elements(enum array_type to_type, void *to, enum array_type from_type,
                            const void *from, int64_t count)
{
    size_t to_size = types[to_type].size;
    size_t from_size = types[from_type].size;
    if (to_type == from_type) {
        if (count > 0) {
            memcpy(to, from, (size_t)count * to_size);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        store(to_type, (char *)to + (size_t)i * to_size,
              load(from_type, (const char *)from + (size_t)i * from_size));
    }
}

static int64_t load_integer(enum array_type type, const char *from)
{
    int32_t word;
    int64_t wide;
    switch (type) {
    case ARRAY_I8:
        return *(const signed char *)from;
    case ARRAY_U8:
        return *(const unsigned char *)from;
    case ARRAY_BOOL:
        return *from != 0;
    case ARRAY_I32:
        memcpy(&word, from, sizeof word);
        return word;
    default:
        memcpy(&wide, from, sizeof wide);
        return wide;
    }
}

int array_convert(struct array *to, const struct array *from, enum array_type type, char *error)
{
    if (!is_float(type) || (!is_float(from->type) && type != ARRAY_F32)) {
        return error_set(error, "%s cannot be converted to %s", types[from->type].name,
                         types[type].name);
    }
    if (array_make(to, type, from->rank, from->shape, error) != 0) {
        return -1;
    }
    int64_t count = array_count(from);
    if (is_float(from->type)) {
        array_convert_elements(type, to->data, from->type, from->data, count);
        return 0;
    }
    float *floats = to->data;
    const char *data = from->data;
    for (int64_t i = 0; i < count; i++) {
        floats[i] = (float)load_integer(from->type, data + (size_t)i * types[from->type].size);
    }
    return 0;
}

int array_integers(int64_t **to, const struct array *from, char *error)
{
    if (is_float(from->type) || from->type == ARRAY_BOOL) {
        return error_set(error, "the type is %s, expected integers", types[from->type].name);
    }
    int64_t count = array_count(from);
    *to = malloc(count > 0 ? (size_t)count * sizeof **to : 1);
    if (!*to) {
        return error_set(error, "out of memory for %lld integers", (long long)count);
    }
    const char *data = from->data;
    for (int64_t i = 0; i < count; i++) {
        (*to)[i] = load_integer(from->type, data + (size_t)i * types[from->type].size);
    }
    return 0;
}

int array_indices(struct array *to, const struct array *from, char *error)
{
    int64_t *wide = NULL;
    if (array_integers(&wide, from, error)) {
        return -1;
    }
    int result = array_make(to, ARRAY_I32, from->rank, from->shape, error);
    int64_t count = array_count(from);
    int32_t *words = to->data;
    for (int64_t i = 0; result == 0 && i < count; i++) {
        if (wide[i] < INT32_MIN || wide[i] > INT32_MAX) {
            result = error_set(error, "element %lld is %lld, expected -2^31 to 2^31 - 1",
                               (long long)i, (long long)wide[i]);
            array_free(to);
            break;
        }
        words[i] = (int32_t)wide[i];
    }
    free(wide);
    return result;
}
