/* The command: good and bad arguments and files, exit statuses, messages, and what options mean. */
#include "check_cli_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

void cli_run(const char *words, struct outcome *outcome)
{
    struct arguments a;
    arguments_begin(&a);
    arguments_split(&a, words);
    command_run(&a, folder_path("."), NULL, outcome);
}

void cli_refused(const char *words, const char *expected)
{
    struct outcome outcome;
    cli_run(words, &outcome);
    expect_refusal(&outcome, expected, words);
    CHECK(outcome.out[0] == '\0', "%s: printed %.200s", words, outcome.out);
    CHECK(!file_exists(folder_path("y.npy")), "%s: left an output file", words);
}

void cli_done(const char *words)
{
    struct outcome outcome;
    cli_run(words, &outcome);
    CHECK(outcome.status == 0 && outcome.err[0] == '\0', "%s: exit %d: %.300s", words,
          outcome.status, outcome.err);
}

static size_t read_bytes(const char *name, unsigned char *bytes, size_t size)
{
    FILE *file = fopen(folder_path(name), "rb");
    size_t length = file ? fread(bytes, 1, size, file) : 0;
    if (file)
        fclose(file);
    return length;
}

void cli_same(const char *a, const char *b)
{
    static unsigned char bytes[2][1 << 16];
    size_t first = read_bytes(a, bytes[0], sizeof bytes[0]);
    size_t second = read_bytes(b, bytes[1], sizeof bytes[1]);
    CHECK(first > 0 && first == second && memcmp(bytes[0], bytes[1], first) == 0,
          "%s and %s differ", a, b);
}

void cli_write(const char *name, enum array_type type, int rank, const int64_t *shape,
               const double *values)
{
    struct array doubles = {0}, array = {0};
    char error[ERROR_SIZE] = "";
    int failed = array_make(&doubles, ARRAY_F64, rank, shape, error);
    int64_t count = failed ? 0 : array_count(&doubles);
    if (!failed)
        memcpy(doubles.data, values, (size_t)count * sizeof(double));
    if (!failed &&
        (type == ARRAY_F32 || type == ARRAY_F16 || type == ARRAY_BF16 || type == ARRAY_F64))
        failed = array_convert(&array, &doubles, type, error);
    else if (!failed) {
        failed = array_make(&array, type, rank, shape, error);
        for (int64_t i = 0; !failed && i < count; i++) {
            if (type == ARRAY_I32)
                ((int32_t *)array.data)[i] = (int32_t)values[i];
            else if (type == ARRAY_I64)
                ((int64_t *)array.data)[i] = (int64_t)values[i];
            else
                ((int8_t *)array.data)[i] = (int8_t)values[i];
        }
    }
    struct npy_output output = {folder_path(name), &array};
    if (failed || npy_write_all(&output, 1, error)) {
        fprintf(stderr, "check: %s: %s\n", name, error);
        exit(2);
    }
    array_free(&doubles);
    array_free(&array);
}

float *cli_read(const char *name, struct array *array)
{
    char error[ERROR_SIZE];
    memset(array, 0, sizeof *array);
    if (npy_read(folder_path(name), array, error)) {
        CHECK(0, "%s: %s", name, error);
        return NULL;
    }
    return array->data;
}

void cli_equal(const char *first, const char *second)
{
    char words[2048];
    if (!check_case("cli/equal/%s = %s", first, second))
        return;
    snprintf(words, sizeof words, "%s --output a.npy", first);
    cli_done(words);
    snprintf(words, sizeof words, "%s --output b.npy", second);
    cli_done(words);
    cli_same("a.npy", "b.npy");
}

void cli_weights(const char *name, const struct cli_tensor *tensors)
{
    static char bytes[1 << 16];
    size_t header = 8, data = 0;
    const size_t room = 4096;
    memset(bytes, ' ', sizeof bytes);
    for (int i = 0; tensors[i].name; i++) {
        const struct cli_tensor *t = &tensors[i];
        int64_t count = 1;
        char shape[64] = "";
        for (int axis = 0; axis < t->rank; axis++) {
            size_t used = strlen(shape);
            snprintf(shape + used, sizeof shape - used, "%s%lld", axis ? "," : "",
                     (long long)t->shape[axis]);
            count *= t->shape[axis];
        }
        size_t size = (size_t)count * sizeof(float);
        header += (size_t)snprintf(bytes + header, room - header,
                                   "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],"
                                   "\"data_offsets\":[%zu,%zu]}",
                                   i ? ',' : '{', t->name, shape, data, data + size);
        memcpy(bytes + room + data, t->values, size);
        data += size;
    }
    bytes[header++] = '}';
    if (header < room)
        bytes[header] = ' ';
    uint64_t length = room - 8;
    memcpy(bytes, &length, sizeof length);
    file_write(folder_path(name), bytes, room + data);
}

void cli_inputs(void)
{
    static const int64_t shapes[3][4] = {{2, 5, 4, 8}, {2, 7, 2, 8}, {2, 7, 2, 6}};
    static const char *const names[] = {"q", "k", "v"};
    static const enum array_type types[] = {ARRAY_F32, ARRAY_F16, ARRAY_BF16, ARRAY_F64};
    static const char *const ends[] = {".npy", "16.npy", "b16.npy", "64.npy"};
    uint64_t state = check_seed;
    for (int i = 0; i < 3; i++) {
        double values[2 * 7 * 4 * 8];
        for (int64_t n = 0; n < 2 * 7 * 4 * 8; n++)
            values[n] = check_normal(&state);
        for (int t = 0; t < 4; t++) {
            char name[16];
            snprintf(name, sizeof name, "%s%s", names[i], ends[t]);
            cli_write(name, types[t], 4, shapes[i], values);
        }
        /* The same values as rank 3 and, the first batch, as rank 2. */
        const int64_t *s = shapes[i];
        char flat[16], first[16];
        snprintf(flat, sizeof flat, "%s3.npy", names[i]);
        snprintf(first, sizeof first, "%s2.npy", names[i]);
        cli_write(flat, ARRAY_F32, 3, (int64_t[]){s[0], s[1], s[2] * s[3]}, values);
        cli_write(first, ARRAY_F32, 2, (int64_t[]){s[1], s[2] * s[3]}, values);
    }
}

int main(int argc, char **argv)
{
    struct arguments a;
    check_begin(argc, argv);
    if (!arguments_begin(&a)) {
        check_skip("cli", "HEADWAY_COMMAND does not name the command");
        return check_end();
    }
    folder_make();
    cli_inputs();
    check_cli_arguments();
    check_cli_files();
    check_cli_meaning();
    check_cli_checks();
    check_cli_options();
    check_cli_layers();
    check_cli_cases();
    check_cli_cache();
    folder_remove();
    return check_end();
}
