#define _POSIX_C_SOURCE 200809L

#include "cli/array.h"
#include "cli/file.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files are little endian, and so must be the machine"
#endif

/* numpy writes far less; the limit keeps the header of a bad file from being loaded whole. */
#define HEADER_LIMIT (16 << 20)

/* The header is a Python dict literal: three keys in any order, spaces anywhere. */
struct header {
    const char *next, *end;
    char descr[16];
    int fortran;
    int rank;
    int64_t shape[ARRAY_MAX_RANK];
    const char *problem; /* what was wrong, or NULL */
};

static void skip_space(struct header *h)
{
    while (h->next < h->end &&
           (*h->next == ' ' || *h->next == '\n' || *h->next == '\t' || *h->next == '\r')) {
        h->next++;
    }
}

static int take(struct header *h, char wanted)
{
    skip_space(h);
    if (h->next < h->end && *h->next == wanted) {
        h->next++;
        return 1;
    }
    return 0;
}

static int expect(struct header *h, char wanted, const char *problem)
{
    if (take(h, wanted)) {
        return 0;
    }
    h->problem = problem;
    return -1;
}

static int parse_string(struct header *h, char *to, size_t size, const char *problem)
{
    h->problem = problem;
    skip_space(h);
    if (h->next >= h->end || (*h->next != '\'' && *h->next != '"')) {
        return -1;
    }
    const char *start = h->next + 1;
    const char *close = memchr(start, *h->next, (size_t)(h->end - start));
    if (!close || (size_t)(close - start) >= size || memchr(start, '\\', (size_t)(close - start))) {
        return -1;
    }
    memcpy(to, start, (size_t)(close - start));
    to[close - start] = 0;
    h->next = close + 1;
    h->problem = NULL;
    return 0;
}

static int parse_bool(struct header *h)
{
    static const char *const names[] = {"False", "True"};
    skip_space(h);
    for (int value = 0; value < 2; value++) {
        size_t length = strlen(names[value]);
        if ((size_t)(h->end - h->next) >= length && memcmp(h->next, names[value], length) == 0) {
            h->next += length;
            h->fortran = value;
            return 0;
        }
    }
    h->problem = "fortran_order is not True or False";
    return -1;
}

static int parse_extent(struct header *h, int64_t *extent)
{
    int64_t value = 0;
    const char *start = h->next;
    h->problem = "the shape has an extent that is not a number from 0 to 2^63 - 1";
    while (h->next < h->end && *h->next >= '0' && *h->next <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *h->next - '0', &value)) {
            return -1;
        }
        h->next++;
    }
    if (h->next == start) {
        return -1;
    }
    /* Python 2 wrote its long integers as 3L. */
    if (h->next < h->end && *h->next == 'L') {
        h->next++;
    }
    h->problem = NULL;
    *extent = value;
    return 0;
}

static int parse_shape(struct header *h)
{
    if (expect(h, '(', "the shape is not a tuple")) {
        return -1;
    }
    int comma = 1;
    while (!take(h, ')')) {
        if (!comma) {
            h->problem = "the shape's extents are not separated by commas";
            return -1;
        }
        if (h->rank == ARRAY_MAX_RANK) {
            h->problem = "the rank is above 8";
            return -1;
        }
        if (parse_extent(h, &h->shape[h->rank])) {
            return -1;
        }
        h->rank++;
        comma = take(h, ',');
    }
    if (h->rank == 1 && !comma) {
        h->problem = "the shape is not a tuple";
        return -1;
    }
    return 0;
}

static int parse_entry(struct header *h, int *seen)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[16];
    if (parse_string(h, key, sizeof key,
                     "the header has a key that is not descr, fortran_order "
                     "or shape") ||
        expect(h, ':', "the header has a key without a value")) {
        return -1;
    }
    int which = 0;
    while (which < 3 && strcmp(key, keys[which]) != 0) {
        which++;
    }
    if (which == 3) {
        h->problem = "the header has a key that is not descr, fortran_order or shape";
        return -1;
    }
    if (*seen & 1 << which) {
        h->problem = "the header has a key twice";
        return -1;
    }
    *seen |= 1 << which;
    if (which == 0) {
        return parse_string(
            h, h->descr, sizeof h->descr,
            "descr is not the name of a simple type (structured types are refused)");
    }
    return which == 1 ? parse_bool(h) : parse_shape(h);
}

static int parse_header(struct header *h)
{
    int seen = 0;
    int comma = 1;
    if (expect(h, '{', "the header is not a dict")) {
        return -1;
    }
    while (!take(h, '}')) {
        if (!comma) {
            h->problem = "the header's entries are not separated by commas";
            return -1;
        }
        if (parse_entry(h, &seen)) {
            return -1;
        }
        comma = take(h, ',');
    }
    skip_space(h);
    if (h->next != h->end) {
        h->problem = "the header goes on after its dict";
        return -1;
    }
    if (seen != 7) {
        h->problem = "the header lacks one of descr, fortran_order, shape";
        return -1;
    }
    return 0;
}

static int find_type(const char *descr, enum array_type *type, const char *path, char *error)
{
    static const struct {
        const char *descr;
        enum array_type type;
    } known[] = {
        {"<f4", ARRAY_F32}, {"<f2", ARRAY_F16},  {"<V2", ARRAY_BF16}, {"bfloat16", ARRAY_BF16},
        {"<f8", ARRAY_F64}, {"|b1", ARRAY_BOOL}, {"|i1", ARRAY_I8},   {"|u1", ARRAY_U8},
        {"<i4", ARRAY_I32}, {"<i8", ARRAY_I64},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(descr, known[i].descr) == 0) {
            *type = known[i].type;
            return 0;
        }
    }
    return error_set(
        error,
        "%s: the type is '%s'%s, expected little-endian f2, f4, f8, bfloat16, bool, i1, "
        "u1, i4 or i8",
        path, descr, descr[0] == '>' ? " (big endian)" : "");
}

/* Copies column-major data to row-major: walks the target in order and steps through the source. */
static void from_fortran(struct array *array, const char *source)
{
    size_t size = array_type_size(array->type);
    int64_t count = array_count(array);
    int64_t index[ARRAY_MAX_RANK] = {0};
    int64_t step[ARRAY_MAX_RANK];
    int64_t from = 0;
    char *to = array->data;
    for (int axis = 0; axis < array->rank; axis++) {
        step[axis] = axis == 0 ? 1 : step[axis - 1] * array->shape[axis - 1];
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(to + (size_t)i * size, source + (size_t)from * size, size);
        for (int axis = array->rank - 1; axis >= 0; axis--) {
            from += step[axis];
            if (++index[axis] < array->shape[axis]) {
                break;
            }
            from -= step[axis] * array->shape[axis];
            index[axis] = 0;
        }
    }
}

/* Where the data begins; the header's text in new memory. */
static int read_header(const struct file *file, char **text, int64_t *length, int64_t *data,
                       char *error)
{
    unsigned char start[12];
    if (file->size == 0) {
        return error_set(error, "%s: is empty, expected a .npy file", file->path);
    }
    if (file->size < 10) {
        return error_set(error, "%s: has %lld bytes, too few for a .npy file", file->path,
                         (long long)file->size);
    }
    if (file_read(file, 0, start, 10, error) != 0) {
        return -1;
    }
    if (memcmp(start, "\x93NUMPY", 6) != 0) {
        return error_set(error, "%s: does not begin as a .npy file does", file->path);
    }
    if (start[6] < 1 || start[6] > 3 || start[7] != 0) {
        return error_set(error, "%s: is .npy version %d.%d, expected 1.0, 2.0 or 3.0", file->path,
                         start[6], start[7]);
    }
    *data = start[6] == 1 ? 10 : 12;
    if (file_read(file, 8, start + 8, *data - 8, error) != 0) {
        return -1;
    }
    *length = start[8] | start[9] << 8;
    if (*data == 12) {
        *length |= (int64_t)start[10] << 16 | (int64_t)start[11] << 24;
    }
    if (*length > HEADER_LIMIT || *length > file->size - *data) {
        return error_set(error, "%s: the header's length is %lld, expected at most %lld",
                         file->path, (long long)*length,
                         (long long)(*length > HEADER_LIMIT ? HEADER_LIMIT : file->size - *data));
    }
    *text = malloc((size_t)*length + 1);
    if (!*text) {
        return error_set(error, "%s: out of memory", file->path);
    }
    int64_t begin = *data;
    *data += *length;
    return file_read(file, begin, *text, *length, error);
}

static int read_data(const struct file *file, const struct header *h, int64_t begin,
                     struct array *array, char *error)
{
    enum array_type type = ARRAY_F32;
    char shape[SHAPE_TEXT_SIZE];
    int64_t bytes = 0;
    if (find_type(h->descr, &type, file->path, error) != 0) {
        return -1;
    }
    shape_text(shape, h->rank, h->shape);
    if (array_bytes(type, h->rank, h->shape, &bytes) != 0) {
        return error_set(error, "%s: the shape %s is too large", file->path, shape);
    }
    if (bytes != file->size - begin) {
        return error_set(error,
                         "%s: %lld bytes of data follow the header, expected %lld for %s of %s",
                         file->path, (long long)(file->size - begin), (long long)bytes, shape,
                         array_type_name(type));
    }
    if (array_make(array, type, h->rank, h->shape, error) != 0) {
        return -1;
    }
    if (!h->fortran || h->rank < 2) {
        return file_read(file, begin, array->data, bytes, error);
    }
    char *columns = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (!columns) {
        return error_set(error, "%s: out of memory", file->path);
    }
    int result = file_read(file, begin, columns, bytes, error);
    if (result == 0) {
        from_fortran(array, columns);
    }
    free(columns);
    return result;
}

int npy_read(const char *path, struct array *array, char *error)
{
    struct file file;
    struct header h = {0};
    char *text = NULL;
    int64_t length = 0;
    int64_t begin = 0;
    memset(array, 0, sizeof *array);
    if (file_open(&file, path, error) != 0) {
        return -1;
    }
    int result = read_header(&file, &text, &length, &begin, error);
    if (result == 0) {
        h.next = text;
        h.end = text + length;
        result = parse_header(&h);
        if (result != 0) {
            error_set(error, "%s: %s", path, h.problem);
        }
    }
    if (result == 0) {
        result = read_data(&file, &h, begin, array, error);
    }
    if (result != 0) {
        array_free(array);
    }
    free(text);
    file_close(&file);
    return result;
}
