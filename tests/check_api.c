/* Every wrong argument of every public function: its status, that the error's text names it, that
 * no output was touched. And what is legal although it looks odd. */
#define _POSIX_C_SOURCE 200809L
#include "check_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

headway_engine *engine;

/* One case asks for more memory than there is; the sanitizer's allocator must say so, not end the
 * program. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

void expect_error(headway_status got, headway_status status, const char *words)
{
    char text[600] = "";
    headway_engine_error(engine, text, sizeof text);
    CHECK(got == status, "status \"%s\", expected \"%s\" (%s); text: %s", headway_status_text(got),
          headway_status_text(status), words, text);
    CHECK(strstr(text, words) != NULL, "the text does not say \"%s\": %s", words, text);
}

/* ---- version, status, tensor ------------------------------------------------------------------
 */

static void check_words(void)
{
    char version[40];
    if (check_case("version and status")) {
        snprintf(version, sizeof version, "%d.%d.%d", HEADWAY_VERSION_MAJOR, HEADWAY_VERSION_MINOR,
                 HEADWAY_VERSION_PATCH);
        CHECK(strcmp(headway_version(), version) == 0, "version %s", headway_version());
        for (int a = HEADWAY_OK; a <= HEADWAY_ERROR_UNSUPPORTED; a++)
            for (int b = HEADWAY_OK; b <= HEADWAY_ERROR_UNSUPPORTED; b++)
                CHECK((a == b) == (strcmp(headway_status_text((headway_status)a),
                                          headway_status_text((headway_status)b)) == 0),
                      "status %d and %d are called the same", a, b);
        CHECK(strcmp(headway_status_text((headway_status)99), "unknown status") == 0, "status 99");
        CHECK(strcmp(headway_status_text((headway_status)-1), "unknown status") == 0, "status -1");
    }
    if (check_case("tensor_dense")) {
        static const int64_t shape[4] = {2, 3, 4, 5}, empty[4] = {2, 0, 4, 5},
                             huge[4] = {INT64_MAX, INT64_MAX, INT64_MAX, 2}, ones[9] = {1};
        const headway_tensor t = headway_tensor_dense(version, HEADWAY_F16, 4, shape);
        CHECK(t.data == version && t.dtype == HEADWAY_F16 && t.rank == 4, "fields");
        CHECK(t.stride[0] == 60 && t.stride[1] == 20 && t.stride[2] == 5 && t.stride[3] == 1,
              "strides");
        CHECK(memcmp(t.shape, shape, sizeof shape) == 0, "shape");
        CHECK(headway_tensor_dense(NULL, HEADWAY_F32, 0, NULL).rank == 0, "rank 0");
        CHECK(headway_tensor_dense(NULL, HEADWAY_F32, 9, ones).rank == 9,
              "a rank too large is kept");
        CHECK(headway_tensor_dense(NULL, HEADWAY_F32, 4, empty).stride[3] == 1, "an extent of 0");
        CHECK(headway_tensor_dense(NULL, HEADWAY_F32, 4, huge).stride[3] == 1,
              "extents beyond 2^63");
    }
}

/* ---- engine -----------------------------------------------------------------------------------
 */

struct lines {
    int count;
    char last[600];
};

static void note(void *context, const char *line)
{
    struct lines *lines = context;
    lines->count++;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

static void expect_refused(headway_engine_config config, headway_status status, const char *words)
{
    struct lines lines = {0, ""};
    headway_engine *made = engine; /* any value that must survive */
    config.log = note;
    config.log_context = &lines;
    const headway_status got = headway_engine_create(&config, &made);
    CHECK(got == status, "%s: %s", words, headway_status_text(got));
    CHECK(made == engine, "%s: *engine was written", words);
    CHECK(lines.count == 1 && strstr(lines.last, words), "%s: %d lines, the last: %s", words,
          lines.count, lines.last);
}

static void check_engine(void)
{
    const headway_engine_config plain = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine_config config = plain;
    headway_engine *made = engine;
    if (check_case("engine: arguments")) {
        CHECK(headway_engine_create(NULL, NULL) == HEADWAY_ERROR_ARGUMENT,
              "no place for the engine");
        for (size_t size = 0; size < 2 * sizeof config; size += sizeof config - 8 + size) {
            config.size = size;
            CHECK(headway_engine_create(&config, &made) == HEADWAY_ERROR_ARGUMENT && made == engine,
                  "size %zu", size);
        }
        config = plain;
        config.threads = -1;
        expect_refused(config, HEADWAY_ERROR_ARGUMENT, "threads is -1");
        config.threads = 1 << 20;
        expect_refused(config, HEADWAY_ERROR_ARGUMENT, "threads is 1048576");
        config = plain;
        config.isa = "sse9";
        expect_refused(config, HEADWAY_ERROR_NOT_BUILT, "sse9");
        config.isa = "avx";
        expect_refused(config, HEADWAY_ERROR_NOT_BUILT, "avx");
        headway_engine_destroy(NULL);
    }
    headway_isa_info info;
    for (int i = 0; headway_isa_at(i, &info) == HEADWAY_OK; i++) {
        if (info.runs || !check_case("engine: %s, which can't run here", info.name))
            continue;
        config = plain;
        config.isa = info.name;
        expect_refused(config, info.built ? HEADWAY_ERROR_CANNOT_RUN : HEADWAY_ERROR_NOT_BUILT,
                       info.name);
        CHECK(*info.reason, "no reason");
        setenv("HEADWAY_ISA", info.name, 1);
        config.isa = NULL;
        expect_refused(config, info.built ? HEADWAY_ERROR_CANNOT_RUN : HEADWAY_ERROR_NOT_BUILT,
                       info.name);
        unsetenv("HEADWAY_ISA");
    }
}

static void check_questions(void)
{
    headway_isa_info info;
    char text[600];
    if (!check_case("engine: questions"))
        return;
    memset(&info, 0, sizeof info);
    CHECK(headway_isa_at(-1, &info) == HEADWAY_ERROR_ARGUMENT && !info.name, "row -1");
    CHECK(headway_isa_at(1000, &info) == HEADWAY_ERROR_ARGUMENT && !info.name, "row 1000");
    CHECK(headway_isa_at(0, NULL) == HEADWAY_ERROR_ARGUMENT, "no place for the row");
    CHECK(headway_engine_error(NULL, text, sizeof text) == 0 && !*text, "error of no engine");
    CHECK(strcmp(headway_engine_isa(NULL), "") == 0 && headway_engine_threads(NULL) >= 0,
          "no engine");
    headway_attention_workspace(engine, NULL, NULL, NULL, NULL, NULL);
    const size_t length = headway_engine_error(engine, text, sizeof text);
    CHECK(length > 5 && strlen(text) == length, "%zu: %s", length, text);
    CHECK(headway_engine_error(engine, NULL, 0) == length, "asked for the length alone");
    memset(text, '#', sizeof text);
    CHECK(headway_engine_error(engine, text, 0) == length && text[0] == '#',
          "no room, but written");
    CHECK(headway_engine_error(engine, text, 4) == length && strlen(text) == 3 && text[4] == '#',
          "cut to %zu", strlen(text));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    unsetenv("HEADWAY_ISA");
    engine = engine_make(check_isa(), 2);
    check_words();
    check_engine();
    check_questions();
    check_attention_arguments();
    check_overlaps();
    check_options();
    check_mha_arguments();
    check_sizes();
    check_plans();
    headway_engine_destroy(engine);
    return check_end();
}
