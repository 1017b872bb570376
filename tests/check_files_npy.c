#define _XOPEN_SOURCE 700

#include "check_files.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A .npy of that header text (a newline is added) with `bytes` of data 0, 1, 2, ...; returns its
 * size. */
static size_t make_npy(char *file, int version, const char *header, size_t padding, size_t bytes)
{
    size_t start = version == 1 ? 10 : 12;
    size_t length = strlen(header) + padding + 1;
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (char)version;
    file[7] = 0;
    for (size_t i = 0; i < start - 8; i++) {
        file[8 + i] = (char)(length >> (8 * i));
    }
    memcpy(file + start, header, strlen(header));
    memset(file + start + strlen(header), ' ', padding);
    file[start + length - 1] = '\n';
    for (size_t i = 0; i < bytes; i++) {
        file[start + length + i] = (char)i;
    }
    return start + length + bytes;
}

static void check_refused(const char *name, int version, const char *header, size_t bytes,
                          const char *words)
{
    char file[4096];
    char error[ERROR_SIZE] = "";
    struct array array;
    if (!check_case("npy/refused/%s", name)) {
        return;
    }
    files_write("bad.npy", file, make_npy(file, version, header, 0, bytes));
    CHECK(npy_read(files_path("bad.npy"), &array, error) == -1, "was read");
    files_check_error(error, words);
    CHECK(strstr(error, "bad.npy"), "the error does not name the file: %s", error);
}

#define HEADER(descr, shape) "{'descr': '" descr "', 'fortran_order': False, 'shape': " shape ", }"

static void check_bad_headers(void)
{
    static const struct {
        const char *name, *header;
        size_t bytes;
        const char *words;
    } table[] = {
        {"extra byte", HEADER("<f4", "(2,)"), 9, "9 bytes|expected 8"},
        {"missing byte", HEADER("<f4", "(2,)"), 7, "7 bytes|expected 8"},
        {"no data", HEADER("<f4", "(2, 3)"), 0, "expected 24"},
        {"data of an empty shape", HEADER("<f4", "(0,)"), 4, "expected 0"},
        {"big endian", HEADER(">f4", "(2,)"), 8, "big endian|little"},
        {"complex", HEADER("<c8", "(1,)"), 8, "<c8"},
        {"long double", HEADER("<f16", "(1,)"), 16, "<f16"},
        {"i2", HEADER("<i2", "(1,)"), 2, "<i2"},
        {"u4", HEADER("<u4", "(1,)"), 4, "<u4"},
        {"object", HEADER("|O", "(1,)"), 8, "|O"},
        {"raw bytes", HEADER("|V2", "(1,)"), 2, "|V2"},
        {"text", HEADER("<U1", "(1,)"), 4, "<U1"},
        {"structured", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4,
         "structured"},
        {"wraps to 0", HEADER("<f4", "(4294967296, 4294967296)"), 0, "too large"},
        {"wraps in bytes", HEADER("<f8", "(2305843009213693952, 1)"), 0, "too large"},
        {"beyond 63 bits", HEADER("<f4", "(9223372036854775808, 2)"), 0, "2^63"},
        {"2^63 - 1", HEADER("|u1", "(9223372036854775807, 2)"), 0, "too large"},
        {"hidden by 0", HEADER("<f4", "(4294967296, 4294967296, 0)"), 0, "too large"},
        {"large, in a small file", HEADER("<f4", "(1000000000000,)"), 8, "expected 4000000000000"},
        {"negative", HEADER("<f4", "(-1,)"), 4, "extent"},
        {"fractional", HEADER("<f4", "(1.0,)"), 4, "separated"},
        {"words for extents", HEADER("<f4", "(a,)"), 4, "extent"},
        {"rank 9", HEADER("|u1", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), 1, "rank"},
        {"no tuple", HEADER("<f4", "(2)"), 8, "tuple"},
        {"list", HEADER("<f4", "[2]"), 8, "tuple"},
        {"tuple without end", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, ", 8,
         "extent"},
        {"no shape", "{'descr': '<f4', 'fortran_order': False, }", 4, "lacks"},
        {"no descr", "{'fortran_order': False, 'shape': (1,), }", 4, "lacks"},
        {"no order", "{'descr': '<f4', 'shape': (1,), }", 4, "lacks"},
        {"shape twice", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'shape': (1,)}", 4,
         "twice"},
        {"another key", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", 4,
         "key"},
        {"order 0", "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", 4, "fortran_order"},
        {"no dict", "'descr'", 4, "dict"},
        {"no end", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), ", 4, "key"},
        {"string without end", "{'descr': '<f4, ", 4, "descr"},
        {"more", HEADER("<f4", "(1,)") " x", 4, "after"},
        {"no commas", "{'descr': '<f4' 'fortran_order': False 'shape': (1,)}", 4, "commas"},
        {"escaped", HEADER("\\x3cf4", "(1,)"), 4, "descr"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        check_refused(table[i].name, 1, table[i].header, table[i].bytes, table[i].words);
    }
    check_refused("version 4", 4, HEADER("<f4", "(1,)"), 4, "version 4.0");
    check_refused("version 0", 0, HEADER("<f4", "(1,)"), 4, "version 0.0");
}

static void check_lengths(void)
{
    char file[512];
    char error[ERROR_SIZE];
    struct array array;
    for (int version = 1; version <= 3; version++) {
        if (!check_case("npy/every length/version %d", version)) {
            continue;
        }
        size_t size = make_npy(file, version, HEADER("<f4", "(2, 3)"), 5, 24);
        for (size_t length = 0; length <= size + 1; length++) {
            files_write("cut.npy", file, length);
            int result = npy_read(files_path("cut.npy"), &array, error);
            CHECK((result == 0) == (length == size), "%zu bytes of %zu: %s", length, size,
                  result ? error : "read");
            if (result == 0) {
                array_free(&array);
            }
        }
    }
    if (check_case("npy/header length beyond the file")) {
        size_t size = make_npy(file, 2, HEADER("<f4", "(1,)"), 0, 4);
        memcpy(file + 8, "\xff\xff\xff\xff", 4);
        files_write("cut.npy", file, size);
        CHECK(npy_read(files_path("cut.npy"), &array, error) == -1, "was read");
        files_check_error(error, "4294967295");
    }
    if (check_case("npy/not a file")) {
        CHECK(npy_read(files_path("."), &array, error) == -1, "a folder was read");
        files_check_error(error, "regular");
        CHECK(npy_read(files_path("none.npy"), &array, error) == -1, "nothing was read");
        files_check_error(error, "none.npy|opened");
        mkfifo(files_path("pipe.npy"), 0600);
        CHECK(npy_read(files_path("pipe.npy"), &array, error) == -1, "a pipe was read");
        files_check_error(error, "regular");
    }
}

/* Whatever one byte is changed to, the reader returns, and gives an array of the data's size or
 * none. */
static void check_bytes_changed(void)
{
    static const char changes[] = {0,   ' ', '\'', '(', ')', ',',      '0',
                                   '9', '-', 'L',  '{', '}', (char)255};
    char file[512];
    char error[ERROR_SIZE];
    struct array array;
    int read = 0;
    if (!check_case("npy/every byte of the header changed")) {
        return;
    }
    size_t size = make_npy(file, 1, HEADER("<f4", "(2, 3)"), 5, 24);
    for (size_t at = 0; at < size - 24; at++) {
        char before = file[at];
        for (size_t i = 0; i < sizeof changes; i++) {
            file[at] = changes[i];
            files_write("cut.npy", file, size);
            if (npy_read(files_path("cut.npy"), &array, error) == 0) {
                CHECK(array_count(&array) * (int64_t)array_type_size(array.type) == 24,
                      "byte %zu as %d gives %lld elements", at, changes[i],
                      (long long)array_count(&array));
                array_free(&array);
                read++;
            }
        }
        file[at] = before;
    }
    CHECK(read > 0, "no change was harmless, not even that of padding");
}

static void check_type(const char *descr, enum array_type type, int version)
{
    char file[512];
    char header[128];
    char error[ERROR_SIZE];
    struct array array;
    size_t size = array_type_size(type);
    if (!check_case("npy/read/%s version %d", descr, version)) {
        return;
    }
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }",
             descr);
    size_t bytes = make_npy(file, version, header, 3, 6 * size);
    files_write("good.npy", file, bytes);
    CHECK(npy_read(files_path("good.npy"), &array, error) == 0, "%s", error);
    CHECK(array.data && array.type == type && array.rank == 2 && array.shape[0] == 2 &&
              array.shape[1] == 3,
          "type %d, rank %d", array.type, array.rank);
    CHECK(array.data && memcmp(array.data, file + bytes - 6 * size, 6 * size) == 0, "other bytes");
    array_free(&array);
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': True, 'shape': (2L, 3L)}",
             descr);
    bytes = make_npy(file, version, header, 0, 6 * size);
    files_write("good.npy", file, bytes);
    CHECK(npy_read(files_path("good.npy"), &array, error) == 0, "%s", error);
    for (size_t i = 0; array.data && i < 6; i++) {
        size_t from = i / 3 + i % 3 * 2;
        CHECK(memcmp((char *)array.data + i * size, file + bytes - 6 * size + from * size, size) ==
                  0,
              "Fortran order: element %zu", i);
    }
    array_free(&array);
}

static void check_good(void)
{
    static const struct {
        const char *descr;
        enum array_type type;
    } types[] = {
        {"<f4", ARRAY_F32},  {"<f2", ARRAY_F16},       {"<f8", ARRAY_F64}, {"<V2", ARRAY_BF16},
        {"|b1", ARRAY_BOOL}, {"|i1", ARRAY_I8},        {"|u1", ARRAY_U8},  {"<i4", ARRAY_I32},
        {"<i8", ARRAY_I64},  {"bfloat16", ARRAY_BF16},
    };
    char error[ERROR_SIZE];
    struct array array;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (int version = 1; version <= 3; version++) {
            check_type(types[i].descr, types[i].type, version);
        }
    }
    if (check_case("npy/read/largest version 1 header")) {
        char *file = malloc(70000);
        const char *header = HEADER(" <f4", "( 2 ,3, )");
        header = "  {  'shape' : ( 2 ,3, ) ,\"descr\":\"<f4\",  'fortran_order' :False}";
        size_t size = make_npy(file, 1, header, 65535 - 10 - strlen(header) - 1, 24);
        files_write("good.npy", file, size);
        CHECK(npy_read(files_path("good.npy"), &array, error) == 0, "%s", error);
        CHECK(array.rank == 2 && array.shape[1] == 3, "rank %d", array.rank);
        array_free(&array);
        free(file);
    }
    if (check_case("npy/read/rank 0 and empty")) {
        char file[512];
        files_write("good.npy", file, make_npy(file, 1, HEADER("<f4", "()"), 0, 4));
        CHECK(npy_read(files_path("good.npy"), &array, error) == 0, "%s", error);
        CHECK(array.rank == 0 && array_count(&array) == 1, "rank %d", array.rank);
        array_free(&array);
        files_write("good.npy", file, make_npy(file, 1, HEADER("<f4", "(0, 5)"), 0, 0));
        CHECK(npy_read(files_path("good.npy"), &array, error) == 0, "%s", error);
        CHECK(array.rank == 2 && array_count(&array) == 0 && array.data, "rank %d", array.rank);
        array_free(&array);
    }
    if (check_case("npy/read/Fortran order of rank 3")) {
        char file[512];
        const char *header = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }";
        files_write("good.npy", file, make_npy(file, 1, header, 0, 24));
        CHECK(npy_read(files_path("good.npy"), &array, error) == 0, "%s", error);
        for (int i = 0; array.data && i < 24; i++) {
            int from = i / 12 + i / 4 % 3 * 2 + i % 4 * 6;
            CHECK(((unsigned char *)array.data)[i] == from, "element %d", i);
        }
        array_free(&array);
    }
}

void check_npy(void)
{
    check_good();
    check_bad_headers();
    check_lengths();
    check_bytes_changed();
}

static struct array numbered(enum array_type type, int rank, int64_t a, int64_t b)
{
    char error[ERROR_SIZE];
    int64_t shape[] = {a, b};
    struct array array;
    CHECK(array_make(&array, type, rank, shape, error) == 0, "%s", error);
    for (int64_t i = 0; i < array_count(&array) * (int64_t)array_type_size(type); i++) {
        ((char *)array.data)[i] = (char)i;
    }
    return array;
}

/* What numpy 2's save() writes in front of the data. */
static void check_bytes_written(const char *name, enum array_type type, int rank, int64_t a,
                                int64_t b, const char *header, size_t header_size)
{
    char error[ERROR_SIZE] = "";
    char expected[512];
    size_t count = 0;
    if (!check_case("npy/written/%s", name)) {
        return;
    }
    struct array array = numbered(type, rank, a, b);
    struct npy_output output = {files_path("out.npy"), &array};
    CHECK(npy_write_all(&output, 1, error) == 0, "%s", error);
    char *bytes = files_read("out.npy", &count);
    size_t data = (size_t)array_count(&array) * array_type_size(type);
    memset(expected, ' ', sizeof expected);
    memcpy(expected, "\x93NUMPY\x01\x00", 8);
    expected[8] = (char)(header_size - 10);
    expected[9] = 0;
    memcpy(expected + 10, header, strlen(header));
    expected[header_size - 1] = '\n';
    CHECK(count == header_size + data, "%zu bytes, expected %zu", count, header_size + data);
    CHECK(memcmp(bytes, expected, header_size) == 0, "the header is %.118s", bytes + 10);
    CHECK(memcmp(bytes + header_size, array.data, data) == 0, "the data differs");
    free(bytes);
    array_free(&array);
}

static void check_failed_write(const char *name, const char *second, const char *words)
{
    char error[ERROR_SIZE] = "";
    size_t count = 0;
    if (!check_case("npy/write refused/%s", name)) {
        return;
    }
    files_empty("out");
    files_folder("out/folder");
    files_write("out/a.npy", "before", 6);
    symlink("a.npy", files_path("out/link.npy"));
    int entries = files_entries("out");
    struct array array = numbered(ARRAY_F32, 2, 2, 3);
    struct npy_output outputs[] = {{files_path("out/a.npy"), &array}, {files_path(second), &array}};
    CHECK(npy_write_all(outputs, 2, error) == -1, "was written");
    files_check_error(error, words);
    char *bytes = files_read("out/a.npy", &count);
    CHECK(count == 6 && memcmp(bytes, "before", 6) == 0, "what was there before is gone");
    CHECK(files_entries("out") == entries, "%d entries, expected %d", files_entries("out"),
          entries);
    free(bytes);
    array_free(&array);
}

static void check_disk_full(void)
{
    char error[ERROR_SIZE] = "";
    struct rlimit before;
    if (!check_case("npy/write refused/no room")) {
        return;
    }
    files_empty("out");
    struct array array = numbered(ARRAY_F32, 2, 100, 100);
    struct array small = numbered(ARRAY_F32, 2, 2, 2);
    struct npy_output outputs[] = {{files_path("out/small.npy"), &small},
                                   {files_path("out/large.npy"), &array}};
    getrlimit(RLIMIT_FSIZE, &before);
    struct rlimit limit = {1024, before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    int result = npy_write_all(outputs, 2, error);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    CHECK(result == -1, "was written");
    files_check_error(error, "large.npy");
    CHECK(files_entries("out") == 0, "%d files were left", files_entries("out"));
    array_free(&array);
    array_free(&small);
}

static void check_several_written(void)
{
    char error[ERROR_SIZE] = "";
    struct array back;
    struct stat status;
    if (!check_case("npy/written/several, over others and through a link")) {
        return;
    }
    files_empty("out");
    files_write("out/target.npy", "before", 6);
    symlink("target.npy", files_path("out/link.npy"));
    struct array a = numbered(ARRAY_F32, 2, 2, 3);
    struct array b = numbered(ARRAY_F32, 1, 4, 0);
    struct npy_output outputs[] = {{files_path("out/link.npy"), &a}, {files_path("out/b.npy"), &b}};
    CHECK(npy_write_all(outputs, 2, error) == 0, "%s", error);
    CHECK(files_entries("out") == 3, "%d entries, expected 3", files_entries("out"));
    CHECK(lstat(files_path("out/link.npy"), &status) == 0 && S_ISLNK(status.st_mode),
          "the link is gone");
    CHECK(npy_read(files_path("out/target.npy"), &back, error) == 0, "%s", error);
    CHECK(back.data && memcmp(back.data, a.data, 24) == 0, "other data");
    array_free(&back);
    CHECK(npy_write_all(NULL, 0, error) == 0, "%s", error);
    array_free(&a);
    array_free(&b);
}

void check_npy_writing(void)
{
    check_bytes_written("f32 (2, 3)", ARRAY_F32, 2, 2, 3, HEADER("<f4", "(2, 3)"), 128);
    check_bytes_written("f32 ()", ARRAY_F32, 0, 0, 0, HEADER("<f4", "()"), 128);
    check_bytes_written("bf16 (5,)", ARRAY_BF16, 1, 5, 0, HEADER("<V2", "(5,)"), 128);
    check_bytes_written("f16 (1, 7)", ARRAY_F16, 2, 1, 7, HEADER("<f2", "(1, 7)"), 128);
    check_bytes_written("f64 (0, 9)", ARRAY_F64, 2, 0, 9, HEADER("<f8", "(0, 9)"), 128);
    check_bytes_written("i64 (12,)", ARRAY_I64, 1, 12, 0, HEADER("<i8", "(12,)"), 128);
    check_bytes_written("bool (3, 1)", ARRAY_BOOL, 2, 3, 1, HEADER("|b1", "(3, 1)"), 128);
    check_failed_write("the same path", "out/a.npy", "two outputs");
    check_failed_write("the same file otherwise spelled", "out/folder/.././a.npy", "two outputs");
    check_failed_write("the same file through a link", "out/link.npy", "two outputs");
    check_failed_write("no such folder", "out/none/b.npy", "none/b.npy|cannot");
    check_failed_write("a folder", "out/folder", "folder|regular");
    check_failed_write("a folder that is not there", "out/none/", "none");
    check_disk_full();
    check_several_written();
}

static void check_halves(void)
{
    if (check_case("conversion/all f16 and bf16 there and back")) {
        for (int type = ARRAY_F16; type <= ARRAY_BF16; type++) {
            for (int i = 0; i < 65536; i++) {
                uint16_t half = (uint16_t)i;
                uint16_t back = 0;
                float single = 0;
                array_convert_elements(ARRAY_F32, &single, type, &half, 1);
                array_convert_elements(type, &back, ARRAY_F32, &single, 1);
                float again = 0;
                array_convert_elements(ARRAY_F32, &again, type, &back, 1);
                CHECK(back == half || (isnan(single) && isnan(again)), "%s %04x came back as %04x",
                      array_type_name(type), i, back);
            }
        }
    }
}

static void check_rounding(void)
{
    if (check_case("conversion/rounding")) {
        static const struct {
            enum array_type type;
            double value;
            uint16_t bits;
        } table[] = {
            {ARRAY_F16, 1.0 / 3, 0x3555},
            {ARRAY_F16, 65504, 0x7bff},
            {ARRAY_F16, 65519.99, 0x7bff},
            {ARRAY_F16, 65520, 0x7c00},
            {ARRAY_F16, -1e300, 0xfc00},
            {ARRAY_F16, 0x1p-24, 0x0001},
            {ARRAY_F16, 0x1p-25, 0x0000},
            {ARRAY_F16, 0x1.8p-24, 0x0002},
            {ARRAY_F16, 0x1.000001p-25, 0x0001},
            {ARRAY_F16, 2049, 0x6800},
            {ARRAY_F16, 2051, 0x6802},
            {ARRAY_F16, -0.0, 0x8000},
            {ARRAY_F16, 1 + 0x1p-11 + 0x1p-40, 0x3c01},
            {ARRAY_BF16, 1.0 / 3, 0x3eab},
            {ARRAY_BF16, 0x1.01p0, 0x3f80},
            {ARRAY_BF16, 0x1.03p0, 0x3f82},
            {ARRAY_BF16, 0x1.01p0 + 0x1p-40, 0x3f81},
            {ARRAY_BF16, 3.4e38, 0x7f80},
            {ARRAY_BF16, 0x1p-133, 0x0001},
            {ARRAY_BF16, 0x1p-134, 0x0000},
        };
        for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
            uint16_t bits = 0;
            array_convert_elements(table[i].type, &bits, ARRAY_F64, &table[i].value, 1);
            CHECK(bits == table[i].bits, "%a as %s is %04x, expected %04x", table[i].value,
                  array_type_name(table[i].type), bits, table[i].bits);
        }
    }
}

static void check_integers(void)
{
    char error[ERROR_SIZE];
    if (check_case("conversion/integers and bool")) {
        struct array from = numbered(ARRAY_BOOL, 1, 4, 0);
        struct array to;
        int64_t *integers = NULL;
        CHECK(array_convert(&to, &from, ARRAY_F32, error) == 0, "%s", error);
        CHECK(((float *)to.data)[0] == 0 && ((float *)to.data)[3] == 1, "bool 3 is %g",
              (double)((float *)to.data)[3]);
        CHECK(array_integers(&integers, &to, error) == -1, "floats count as integers");
        files_check_error(error, "f32");
        array_free(&to);
        from.type = ARRAY_I8;
        ((signed char *)from.data)[1] = -5;
        CHECK(array_integers(&integers, &from, error) == 0 && integers[1] == -5, "%s", error);
        free(integers);
        array_free(&from);
        int64_t wide[] = {INT64_MIN, 7};
        int64_t two = 2;
        CHECK(array_make(&from, ARRAY_I64, 1, &two, error) == 0, "%s", error);
        memcpy(from.data, wide, sizeof wide);
        CHECK(array_integers(&integers, &from, error) == 0 && integers[0] == INT64_MIN, "%s",
              error);
        free(integers);
        array_free(&from);
        int64_t huge[] = {INT64_MAX, 2};
        CHECK(array_make(&from, ARRAY_F32, 2, huge, error) == -1, "a huge array was made");
        int64_t negative = -1;
        CHECK(array_make(&from, ARRAY_F32, 1, &negative, error) == -1, "a negative array was made");
    }
}

void check_conversions(void)
{
    check_halves();
    check_rounding();
    check_integers();
}
