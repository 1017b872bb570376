#define _XOPEN_SOURCE 700

#include "check_files.h"

#include "cli/safetensors.h"

#include <unistd.h>

/* length < 0: that of the header. */
static void put_file(const char *name, const char *header, size_t header_size, int64_t length,
                     size_t bytes)
{
    unsigned char *file = calloc(1, 8 + header_size + bytes);
    uint64_t said = length < 0 ? header_size : (uint64_t)length;
    for (int i = 0; i < 8; i++) {
        file[i] = (unsigned char)(said >> (8 * i));
    }
    memcpy(file + 8, header, header_size);
    files_write(name, file, 8 + header_size + bytes);
    free(file);
}

static void check_refused(const char *name, const char *header, size_t header_size, size_t bytes,
                          const char *words)
{
    char error[ERROR_SIZE] = "";
    struct tensors *tensors = NULL;
    if (check_case("safetensors/refused/%s", name)) {
        put_file("bad.safetensors", header, header_size, -1, bytes);
        CHECK(tensors_open(&tensors, files_path("bad.safetensors"), error) == -1, "was read");
        files_check_error(error, words);
        CHECK(strstr(error, "bad.safetensors"), "the error does not name the file: %s", error);
    }
}

#define ONE(body) "{\"a\":{" body "}}"
#define TENSOR(dtype, shape, offsets)                                                              \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

/* One broken rule each: header, bytes of data, what the error must say. */
static const struct {
    const char *name, *header;
    size_t bytes;
    const char *words;
} rules[] = {
    {"no dtype", ONE("\"shape\":[1],\"data_offsets\":[0,4]"), 4, "no dtype"},
    {"no shape", ONE("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, "no shape"},
    {"no offsets", ONE("\"dtype\":\"F32\",\"shape\":[1]"), 4, "no data_offsets"},
    {"unknown dtype", "{\"a\":" TENSOR("F99", "1", "0,4") "}", 4, "F99"},
    {"dtype a number", ONE("\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]"), 4, "dtype"},
    {"shape not a list", ONE("\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]"), 4, "shape"},
    {"extent a string", "{\"a\":" TENSOR("F32", "\"1\"", "0,4") "}", 4, "shape"},
    {"extent negative", "{\"a\":" TENSOR("F32", "-1", "0,4") "}", 4, "integer"},
    {"extent fractional", "{\"a\":" TENSOR("F32", "1.0", "0,4") "}", 4, "integer"},
    {"extent with exponent", "{\"a\":" TENSOR("F32", "1e0", "0,4") "}", 4, "integer"},
    {"extent beyond 2^53", "{\"a\":" TENSOR("F32", "9007199254740993", "0,4") "}", 4, "2^53"},
    {"extents wrap", "{\"a\":" TENSOR("F32", "4294967296,4294967296", "0,0") "}", 0, "too large"},
    {"extents wrap to 4", "{\"a\":" TENSOR("U8", "4611686018427387904,4", "0,0") "}", 0, "2^53"},
    {"offsets one", "{\"a\":" TENSOR("F32", "1", "0") "}", 4, "data_offsets"},
    {"offsets three", "{\"a\":" TENSOR("F32", "1", "0,4,4") "}", 4, "data_offsets"},
    {"offsets negative", "{\"a\":" TENSOR("F32", "2", "-4,4") "}", 8, "integer"},
    {"offsets reversed", "{\"a\":" TENSOR("F32", "1", "8,4") "}", 8, "larger"},
    {"offsets wrap", "{\"a\":" TENSOR("F32", "1", "9223372036854775808,9223372036854775812") "}", 4,
     "2^53"},
    {"span too small", "{\"a\":" TENSOR("F32", "2", "0,4") "}", 4, "spans 4|expected 8"},
    {"span too large", "{\"a\":" TENSOR("F32", "1", "0,8") "}", 8, "spans 8|expected 4"},
    {"span of an empty tensor", "{\"a\":" TENSOR("F32", "0", "0,4") "}", 4, "spans 4|expected 0"},
    {"beyond the end", "{\"a\":" TENSOR("F32", "2", "0,8") "}", 4, "ends at byte 8"},
    {"data follows", "{\"a\":" TENSOR("F32", "1", "0,4") "}", 5, "follow"},
    {"data without tensors", "{}", 4, "follow"},
    {"hole in front", "{\"a\":" TENSOR("F32", "1", "4,8") "}", 8, "hole"},
    {"hole between", "{\"a\":" TENSOR("F32", "1", "0,4") ",\"b\":" TENSOR("F32", "1", "8,12") "}",
     12, "hole"},
    {"overlap", "{\"a\":" TENSOR("F32", "2", "0,8") ",\"b\":" TENSOR("F32", "2", "4,12") "}", 12,
     "overlap"},
    {"the same bytes twice",
     "{\"a\":" TENSOR("F32", "1", "0,4") ",\"b\":" TENSOR("F32", "1", "0,4") "}", 4, "overlap"},
    {"a name twice", "{\"a\":" TENSOR("F32", "1", "0,4") ",\"a\":" TENSOR("F32", "1", "4,8") "}", 8,
     "\"a\" twice"},
    {"a name twice, escaped",
     "{\"a\":" TENSOR("F32", "1", "0,4") ",\"\\u0061\":" TENSOR("F32", "1", "4,8") "}", 8, "twice"},
    {"a key twice", ONE("\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"),
     4, "\"dtype\" twice"},
    {"tensor a list", "{\"a\":[1]}", 4, "object"},
    {"metadata a list", "{\"__metadata__\":[\"a\"]}", 0, "__metadata__"},
    {"metadata with numbers", "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
    {"half bytes", "{\"a\":" TENSOR("F4", "3", "0,2") "}", 2, "whole bytes"},
    {"space in front", " {}", 0, "begin with {"},
    {"a list", "[]", 0, "begin with {"},
    {"no end", "{\"a\":", 0, "too early"},
    {"two objects", "{}{}", 0, "follows"},
    {"comma at the end", "{\"a\":" TENSOR("F32", "1", "0,4") ",}", 4, "malformed"},
    {"leading zero", "{\"a\":" TENSOR("F32", "01", "0,4") "}", 4, "begins with 0"},
    {"unquoted", "{a:1}", 0, "malformed"},
    {"control character", "{\"a\n\":1}", 0, "control"},
    {"unknown escape", "{\"\\x\":1}", 0, "escape"},
    {"NUL escaped", "{\"a\\u0000b\":1}", 0, "NUL"},
    {"bad UTF-8", "{\"\xc3(\":1}", 0, "UTF-8"},
    {"long UTF-8", "{\"\xc0\xaf\":1}", 0, "UTF-8"},
    {"surrogate", "{\"\xed\xa0\x80\":1}", 0, "UTF-8"},
    {"half a surrogate pair", "{\"\\ud800\":1}", 0, "malformed"},
};

static void check_rules(void)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        check_refused(rules[i].name, rules[i].header, strlen(rules[i].header), rules[i].bytes,
                      rules[i].words);
    }
    check_refused("NUL padding", "{}\0\0\0", 5, 0, "NUL");
    char deep[400] = "{\"a\":";
    memset(deep + 5, '[', 300);
    check_refused("deep nesting", deep, 305, 0, "nested");
}

static void check_header_lengths(void)
{
    static const struct {
        const char *name;
        int64_t length;
        off_t size;
        const char *words;
    } table[] = {
        {"above the limit", 100000001, 100000020, "100000001|100000000"},
        {"at the limit, no header there", 100000000, 100000008, "begin with {"},
        {"at the limit, file too short", 100000000, 5000, "100000000"},
        {"2^63", INT64_MIN, 100, "9223372036854775808"},
        {"2^64 - 1", -1, 100, "18446744073709551615"},
        {"0", 0, 100, "header"},
    };
    char error[ERROR_SIZE];
    struct tensors *tensors = NULL;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (check_case("safetensors/header length/%s", table[i].name)) {
            unsigned char start[8];
            for (int byte = 0; byte < 8; byte++) {
                start[byte] = (unsigned char)((uint64_t)table[i].length >> (8 * byte));
            }
            files_write("long.safetensors", start, 8);
            CHECK(truncate(files_path("long.safetensors"), table[i].size) == 0, "no sparse file");
            CHECK(tensors_open(&tensors, files_path("long.safetensors"), error) == -1, "was read");
            files_check_error(error, table[i].words);
        }
    }
}

static void check_every_length(void)
{
    struct maker *m = malloc(sizeof *m);
    char error[ERROR_SIZE];
    struct tensors *tensors = NULL;
    size_t size = 0;
    if (!check_case("safetensors/every length")) {
        free(m);
        return;
    }
    maker_start(m);
    maker_matrix(m, "a", 2, 3);
    maker_vector(m, "b", 3);
    maker_write(m, "whole.safetensors", 0);
    char *bytes = files_read("whole.safetensors", &size);
    for (size_t length = 0; length <= size + 1; length++) {
        files_write("cut.safetensors", bytes, length);
        int result = tensors_open(&tensors, files_path("cut.safetensors"), error);
        CHECK((result == 0) == (length == size), "%zu bytes of %zu: %s", length, size,
              result ? error : "read");
        if (result == 0) {
            tensors_close(tensors);
        }
    }
    free(bytes);
    free(m);
}

/* Whatever one byte of the header is changed to, the reader returns, and tensors lie in the file.
 */
static void check_bytes_changed(void)
{
    static const char changes[] = {0,   ' ', '"', ',', ':',  '0', '9',       '-',
                                   '[', ']', '{', '}', '\\', 'e', (char)0xc3};
    struct maker *m = malloc(sizeof *m);
    char error[ERROR_SIZE];
    struct tensors *tensors = NULL;
    size_t size = 0;
    int read = 0;
    if (!check_case("safetensors/every byte of the header changed")) {
        free(m);
        return;
    }
    maker_start(m);
    maker_matrix(m, "ab", 2, 3);
    maker_add(m, "c", "F16", 1, 3, 0, 0, 0);
    maker_write(m, "whole.safetensors", 2);
    char *bytes = files_read("whole.safetensors", &size);
    for (size_t at = 0; at < size - 30; at++) {
        char before = bytes[at];
        for (size_t i = 0; i < sizeof changes; i++) {
            bytes[at] = changes[i];
            files_write("cut.safetensors", bytes, size);
            if (tensors_open(&tensors, files_path("cut.safetensors"), error) != 0) {
                continue;
            }
            for (int64_t t = 0; t < tensors_count(tensors); t++) {
                const struct tensor_info *info =
                    tensors_find(tensors, tensors_name(tensors, t), error);
                float *data = info ? tensors_read(tensors, info, error) : NULL;
                read += data != NULL;
                free(data);
            }
            tensors_close(tensors);
        }
        bytes[at] = before;
    }
    CHECK(read > 0, "no change was harmless, not even that of a name");
    free(bytes);
    free(m);
}

static void check_type(const char *type, int padded_by)
{
    char error[ERROR_SIZE];
    struct tensors *tensors = NULL;
    struct maker *m = malloc(sizeof *m);
    maker_start(m);
    maker_add(m, "first", "U8", 1, 3, 0, 0, 0);
    maker_add(m, "second", type, 3, 2, 1, 5, 0);
    maker_add(m, "empty", type, 2, 0, 5, 0, 0);
    maker_add(m, "single", type, 0, 0, 0, 0, 0);
    maker_write(m, "good.safetensors", padded_by);
    CHECK(tensors_open(&tensors, files_path("good.safetensors"), error) == 0, "%s", error);
    if (tensors) {
        const struct tensor_info *info = tensors_find(tensors, "second", error);
        float *data = info ? tensors_read(tensors, info, error) : NULL;
        CHECK(data, "%s", error);
        for (int i = 0; data && i < 10; i++) {
            float expected = maker_value(m, "second", i);
            /* 4096 and more has a last place of 4 in f16 and of 32 in bf16. */
            float step = strcmp(type, "F16") == 0 ? 4 : strcmp(type, "BF16") == 0 ? 32 : 0;
            CHECK(data[i] >= expected - step / 2 && data[i] <= expected + step / 2,
                  "element %d is %g, expected %g", i, (double)data[i], (double)expected);
        }
        free(data);
        info = tensors_find(tensors, "single", error);
        CHECK(info && info->rank == 0 && info->end - info->begin > 0, "%s", error);
        info = tensors_find(tensors, "first", error);
        CHECK(info && !info->is_float && !tensors_read(tensors, info, error), "U8 was read");
        CHECK(!tensors_find(tensors, "third", error), "a tensor that is not there was found");
        files_check_error(error, "third|missing");
        tensors_close(tensors);
    }
    free(m);
}

static void check_good(void)
{
    static const char *const types[] = {"F32", "F16", "BF16", "F64"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (int padded_by = 0; padded_by < 8; padded_by++) {
            if (check_case("safetensors/read/%s behind %d spaces", types[i], padded_by)) {
                check_type(types[i], padded_by);
            }
        }
    }
}

static const char unusual[] = "{ \"b\" : " TENSOR(
    "F32", "1", "4,8") ",\"__metadata__\":{\"format\":\"pt\"},"
                       "\n\t\"a\":" TENSOR("F32", "1", "0,4") ",\"c\":" TENSOR(
                           "F8_E4M3", "2",
                           "8,10") ",\"\\u00e9\":" TENSOR("U64", "0,3",
                                                          "8,8") ",\"r\":" TENSOR("U8",
                                                                                  "1,1,1,1,1,"
                                                                                  "1,1,1,1,1",
                                                                                  "10,11") ","
                                                                                           "\""
                                                                                           "x"
                                                                                           "\""
                                                                                           ":{"
                                                                                           "\""
                                                                                           "dt"
                                                                                           "yp"
                                                                                           "e"
                                                                                           "\""
                                                                                           ":"
                                                                                           "\""
                                                                                           "I6"
                                                                                           "4"
                                                                                           "\""
                                                                                           ","
                                                                                           "\""
                                                                                           "ne"
                                                                                           "w"
                                                                                           "\""
                                                                                           ":{"
                                                                                           "},"
                                                                                           "\""
                                                                                           "sh"
                                                                                           "ap"
                                                                                           "e"
                                                                                           "\""
                                                                                           ":["
                                                                                           "1]"
                                                                                           ","
                                                                                           "\""
                                                                                           "da"
                                                                                           "ta"
                                                                                           "_o"
                                                                                           "ff"
                                                                                           "se"
                                                                                           "ts"
                                                                                           "\""
                                                                                           ":["
                                                                                           "11"
                                                                                           ",1"
                                                                                           "9]"
                                                                                           "}}"
                                                                                           "\r"
                                                                                           "\n"
                                                                                           " "
                                                                                           "\t"
                                                                                           " ";

static void check_unusual(void)
{
    char error[ERROR_SIZE];
    struct tensors *tensors = NULL;
    if (check_case("safetensors/read/unsorted, other types, metadata, spaces")) {
        put_file("good.safetensors", unusual, sizeof unusual - 1, -1, 19);
        CHECK(tensors_open(&tensors, files_path("good.safetensors"), error) == 0, "%s", error);
        if (tensors) {
            CHECK(tensors_count(tensors) == 6, "%lld tensors", (long long)tensors_count(tensors));
            CHECK(tensors_has(tensors, "\xc3\xa9"), "the escaped name is missing");
            tensors_close(tensors);
        }
    }
    if (check_case("safetensors/read/no tensors")) {
        tensors = NULL;
        put_file("good.safetensors", "{}", 2, -1, 0);
        CHECK(tensors_open(&tensors, files_path("good.safetensors"), error) == 0, "%s", error);
        CHECK(tensors && tensors_count(tensors) == 0 && !tensors_has(tensors, "a"), "has tensors");
        tensors_close(tensors);
    }
}

void check_safetensors(void)
{
    check_good();
    check_unusual();
    check_rules();
    check_header_lengths();
    check_every_length();
    check_bytes_changed();
}

/* Two shards: "a.weight" in the first, "b.weight" in the second. */
static void make_shards(const char *folder, const char *index)
{
    char name[256];
    struct maker *m = malloc(sizeof *m);
    files_empty(folder);
    for (int i = 0; i < 2; i++) {
        maker_start(m);
        maker_vector(m, "filler", i + 1);
        maker_vector(m, i ? "b.weight" : "a.weight", 3);
        snprintf(name, sizeof name, "%s/model-0000%d-of-00002.safetensors", folder, i + 1);
        maker_write(m, name, i);
    }
    snprintf(name, sizeof name, "%s/model.safetensors.index.json", folder);
    files_write(name, index, strlen(index));
    free(m);
}

#define MAP(a, b)                                                                                  \
    "{\"metadata\":{\"total_size\":24.0},\"weight_map\":{\"a.weight\":\"" a "\",\"b.weight\":\"" b \
    "\"}}"
#define FIRST "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"

static void check_bad_index(const char *name, const char *index, const char *words)
{
    char error[ERROR_SIZE] = "";
    struct tensors *tensors = NULL;
    if (check_case("safetensors/index/%s", name)) {
        make_shards("sharded", index);
        int opened = tensors_open(&tensors, files_path("sharded"), error) == 0;
        CHECK(!opened || !tensors_find(tensors, "b.weight", error), "was found");
        files_check_error(error, words);
        if (opened) {
            tensors_close(tensors);
        }
    }
}

static void check_good_shards(const char *path, int second_lost)
{
    char error[ERROR_SIZE] = "";
    struct tensors *tensors = NULL;
    CHECK(tensors_open(&tensors, files_path(path), error) == 0, "%s", error);
    if (!tensors) {
        return;
    }
    CHECK(tensors_count(tensors) == 2, "%lld tensors", (long long)tensors_count(tensors));
    const struct tensor_info *info = tensors_find(tensors, "a.weight", error);
    float *data = info ? tensors_read(tensors, info, error) : NULL;
    CHECK(data && data[2] == 4098, "%s", error);
    free(data);
    info = tensors_find(tensors, "b.weight", error);
    data = info ? tensors_read(tensors, info, error) : NULL;
    CHECK(second_lost ? !data : data && data[0] == 4096, "%s", error);
    free(data);
    tensors_close(tensors);
}

void check_shards(void)
{
    char error[ERROR_SIZE] = "";
    struct tensors *tensors = NULL;
    if (check_case("safetensors/index/folder and file")) {
        make_shards("sharded", MAP(FIRST, SECOND));
        check_good_shards("sharded", 0);
        check_good_shards("sharded/", 0);
        check_good_shards("sharded/model.safetensors.index.json", 0);
    }
    if (check_case("safetensors/index/only what is asked for is opened")) {
        make_shards("sharded", MAP(FIRST, SECOND));
        unlink(files_path("sharded/" SECOND));
        check_good_shards("sharded", 1);
    }
    check_bad_index("path with a slash", MAP(FIRST, "../sharded/" SECOND), "same folder");
    check_bad_index("absolute path", MAP(FIRST, "/etc/passwd"), "same folder");
    check_bad_index("a folder below", MAP(FIRST, "below/" SECOND), "same folder");
    check_bad_index("parent", MAP(FIRST, ".."), "same folder");
    check_bad_index("another kind of file", MAP(FIRST, "config.json"), "same folder");
    check_bad_index("empty name", MAP(FIRST, ""), "same folder");
    check_bad_index("wrong shard", MAP(FIRST, FIRST), "lacks|b.weight");
    check_bad_index("no such shard", MAP(FIRST, "none.safetensors"), "none.safetensors");
    check_bad_index("a number", "{\"weight_map\":{\"b.weight\":1}}", "weight_map");
    check_bad_index("no map", "{\"metadata\":{}}", "weight_map");
    check_bad_index("empty map", "{\"weight_map\":{}}", "weight_map");
    check_bad_index("not JSON", "weight_map", "begin with {");
    check_bad_index("empty", "", "begin with {");
    check_bad_index("a name twice", "{\"weight_map\":{\"b\":\"" FIRST "\",\"b\":\"" SECOND "\"}}",
                    "twice");
    if (check_case("safetensors/folder")) {
        struct maker *m = malloc(sizeof *m);
        files_empty("folder");
        CHECK(tensors_open(&tensors, files_path("folder"), error) == -1,
              "an empty folder was read");
        files_check_error(error, "0 .safetensors");
        maker_start(m);
        maker_vector(m, "a.weight", 3);
        maker_write(m, "folder/other.safetensors", 0);
        CHECK(tensors_open(&tensors, files_path("folder"), error) == 0, "%s", error);
        tensors_close(tensors);
        files_write("folder/second.safetensors", "", 0);
        CHECK(tensors_open(&tensors, files_path("folder"), error) == -1, "one of two was read");
        files_check_error(error, "2 .safetensors");
        maker_start(m);
        maker_vector(m, "a.weight", 3);
        maker_write(m, "folder/model.safetensors", 0);
        CHECK(tensors_open(&tensors, files_path("folder"), error) == 0, "%s", error);
        tensors_close(tensors);
        CHECK(tensors_open(&tensors, files_path("nowhere"), error) == -1, "nothing was read");
        files_check_error(error, "nowhere");
        free(m);
    }
}
