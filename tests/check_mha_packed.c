/* Saved layers: the same bits from any mapping, in any process; what is cut, damaged or another's is
 * refused. */
#define _GNU_SOURCE /* mkstemp */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check_mha.h"

/* api/mha.h, whose names for projections are the tests' own too. */
uint64_t headway_mha_packed_sum(const void *memory, size_t bytes);

/* Where the sum stands, and what the header takes (api/mha_packed.c). */
enum { SUM_AT = 24, HEADER = 192 };

/* Bits of `what` that packed_layer() reads. */
enum { ROPE = 1, NORM_QUERY = 2, NORM_KEY = 4, MORE = 8, ZERO = 16, BIASES = 32 };

static struct layer *packed_layer(int what)
{
    static const struct shape shape = {2, 5, 5, 4, 2, 6, 4};
    static const struct widths widths = {{10, 10, 10}, 9};
    struct layer *l = layer_make(&shape, &widths, (uint64_t)what);
    layer_share(l, 1);
    if (what & ROPE) {
        l->rope.style = HEADWAY_ROPE_HALF;
        l->rope.rotary_size = 4;
        l->rope.positions = 9;
    }
    if (what & (NORM_QUERY | NORM_KEY))
        layer_norms(l);
    for (int i = QUERY; i <= KEY; i++)
        if (l->norm[i] && !(what & (i == QUERY ? NORM_QUERY : NORM_KEY))) {
            free(l->norm[i]);
            l->norm[i] = NULL;
        }
    if (what & MORE)
        layer_more(l);
    l->zero = (what & ZERO) != 0;
    for (int i = 0; i < PROJECTIONS && !(what & BIASES); i++)
        layer_drop_bias(l, i);
    return l;
}

/* Its bytes, in guarded memory. */
static void *saved(const headway_mha *mha, size_t *bytes)
{
    CHECK(headway_mha_packed_bytes(mha, bytes) == HEADWAY_OK && *bytes % 64 == 0, "bytes");
    void *memory = check_guard(*bytes, 1), *again = check_guard(*bytes, 1);
    CHECK(headway_mha_save_packed(mha, memory, *bytes) == HEADWAY_OK, "not saved");
    CHECK(headway_mha_save_packed(mha, again, *bytes) == HEADWAY_OK, "not saved again");
    CHECK(memcmp(memory, again, *bytes) == 0, "saved otherwise the second time");
    check_guard_free(again);
    return memory;
}

static const void *map_file(const void *memory, size_t bytes)
{
    char name[] = "/tmp/headway-packed-XXXXXX";
    const int file = mkstemp(name);
    void *mapping = MAP_FAILED;
    if (file >= 0 && write(file, memory, bytes) == (ssize_t)bytes)
        mapping = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (mapping == MAP_FAILED) {
        perror("a saved layer's file");
        exit(1);
    }
    close(file);
    unlink(name);
    return mapping;
}

/* What a process that has nothing but the layer learns of it. */
static void expect_sizes(const headway_mha *mha, const struct layer *l)
{
    const struct shape *s = &l->options->shape;
    headway_mha_sizes sizes = HEADWAY_MHA_SIZES_INIT;
    CHECK(headway_mha_get_sizes(mha, &sizes) == HEADWAY_OK, "sizes");
    CHECK(sizes.heads == s->heads && sizes.kv_heads == s->kv_heads && sizes.head_size == s->size &&
              sizes.value_head_size == s->value_size,
          "%lld and %lld heads of %lld and %lld", (long long)sizes.heads, (long long)sizes.kv_heads,
          (long long)sizes.head_size, (long long)sizes.value_head_size);
    CHECK(sizes.query_width == l->widths.in[QUERY] && sizes.key_width == l->widths.in[KEY] &&
              sizes.value_width == l->widths.in[VALUE] && sizes.out_width == l->widths.out,
          "widths %lld, %lld, %lld, out %lld", (long long)sizes.query_width,
          (long long)sizes.key_width, (long long)sizes.value_width, (long long)sizes.out_width);
    CHECK(sizes.positions == l->rope.positions && sizes.appended_keys == layer_keys(l) - s->keys,
          "%lld positions, %lld keys appended", (long long)sizes.positions,
          (long long)sizes.appended_keys);
}

static void expect_mapped(const headway_engine *engine, const void *memory, size_t bytes,
                          const struct layer *l, const struct answer *expected, const char *what)
{
    headway_mha *mapped = NULL;
    char text[300];
    const headway_status status = headway_mha_map_packed(engine, memory, bytes, &mapped);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s: %s", what, headway_status_text(status), text);
    if (status != HEADWAY_OK)
        return;
    expect_sizes(mapped, l);
    struct answer a = forward(engine, mapped, l, LAYOUT_DENSE, 1);
    compare_bits(&a, expected, what);
    answer_free(&a);
    headway_mha_destroy(mapped);
}

/* The child maps what the parent has mapped. */
static void expect_in_child(const headway_engine *engine, const void *memory, size_t bytes,
                            const struct layer *l, const struct answer *expected)
{
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        expect_mapped(engine, memory, bytes, l, expected, "in another process");
        fflush(NULL);
        _exit(check_case_failures() != 0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0,
          "the other process ended with %d", status);
}

static void check_round_trip(const struct subject *s, int what)
{
    size_t bytes = 0;
    if (!check_case("%s: a saved layer, options %d", s->isa, what))
        return;
    struct layer *l = packed_layer(what);
    headway_mha *mha = layer_create(s->engines[0], l, STORED_PLAIN);
    struct answer expected = forward(s->engines[0], mha, l, LAYOUT_DENSE, 1);
    void *memory = saved(mha, &bytes);
    expect_sizes(mha, l);
    headway_mha_destroy(mha);
    const void *mapping = map_file(memory, bytes);
    expect_mapped(s->engines[0], memory, bytes, l, &expected, "from memory");
    expect_mapped(s->engines[1], mapping, bytes, l, &expected, "from a file, two threads");
    expect_in_child(s->engines[0], mapping, bytes, l, &expected);
    headway_mha *first = NULL, *second = NULL;
    CHECK(headway_mha_map_packed(s->engines[0], mapping, bytes, &first) == HEADWAY_OK &&
              headway_mha_map_packed(s->engines[0], mapping, bytes, &second) == HEADWAY_OK,
          "not mapped twice");
    headway_mha_destroy(first);
    size_t same = 0;
    CHECK(headway_mha_packed_bytes(second, &same) == HEADWAY_OK && same == bytes, "%zu bytes",
          same);
    void *copy = saved(second, &same);
    CHECK(memcmp(copy, memory, bytes) == 0, "a mapped layer is saved otherwise");
    headway_mha_destroy(second);
    CHECK(memcmp(mapping, memory, bytes) == 0, "the mapping has changed");
    check_guard_free(copy);
    munmap((void *)mapping, bytes);
    check_guard_free(memory);
    answer_free(&expected);
    layer_free(l);
}

/* A layer, or a reason that can be printed whatever the memory holds. */
static headway_mha *map(const headway_engine *engine, const void *memory, size_t bytes,
                        headway_status *status)
{
    headway_mha *mapped = NULL;
    char text[300] = "";
    *status = headway_mha_map_packed(engine, memory, bytes, &mapped);
    CHECK((*status == HEADWAY_OK) == (mapped != NULL), "%s, yet a layer is %s",
          headway_status_text(*status), mapped ? "given" : "not given");
    if (*status != HEADWAY_OK)
        headway_engine_error(engine, text, sizeof text);
    for (const char *c = text; *c; c++)
        CHECK(*c >= ' ' && *c <= '~', "a character 0x%02x in an error's text", (unsigned char)*c);
    return mapped;
}

static headway_status try_map(const headway_engine *engine, const void *memory, size_t bytes)
{
    headway_status status;
    headway_mha_destroy(map(engine, memory, bytes, &status));
    return status;
}

/* Every truncation, with nothing to be read behind it, and a flip in every byte. */
static void check_damage(const struct subject *s)
{
    size_t bytes = 0;
    if (!check_case("%s: a saved layer that is cut or damaged", s->isa))
        return;
    struct layer *l = packed_layer(ROPE | NORM_QUERY | MORE | BIASES);
    headway_mha *mha = layer_create(s->engines[0], l, STORED_PLAIN);
    unsigned char *memory = saved(mha, &bytes);
    const size_t step = quick ? 37 : 1;
    for (size_t length = 0; length < bytes; length += step) {
        void *cut = check_guard((length + 63) / 64 * 64, 1);
        memcpy(cut, memory, length);
        CHECK(try_map(s->engines[0], cut, length) == HEADWAY_ERROR_ARGUMENT, "%zu bytes of %zu",
              length, bytes);
        check_guard_free(cut);
    }
    for (size_t at = 0; at < bytes; at += at < HEADER ? 1 : step)
        for (unsigned bit = 1; bit < 256; bit *= at < HEADER ? 2 : 256) {
            memory[at] ^= (unsigned char)(bit << (at < HEADER ? 0 : at % 8));
            const headway_status status = try_map(s->engines[0], memory, bytes);
            CHECK(status == HEADWAY_ERROR_ARGUMENT || status == HEADWAY_ERROR_CANNOT_RUN,
                  "byte %zu, bit %u: %s", at, bit, headway_status_text(status));
            memory[at] ^= (unsigned char)(bit << (at < HEADER ? 0 : at % 8));
        }
    CHECK(try_map(s->engines[0], memory, bytes) == HEADWAY_OK, "whole again, yet refused");
    check_guard_free(memory);
    headway_mha_destroy(mha);
    layer_free(l);
}

/* A header that says otherwise, its sum made right: refused, or a layer that computes something. */
static void check_forged(const struct subject *s)
{
    static const unsigned char changes[] = {1, 2, 3, 4, 8, 16, 64, 127, 128, 255};
    size_t bytes = 0, needed = 0;
    int taken = 0;
    if (!check_case("%s: a saved layer whose header lies", s->isa))
        return;
    struct layer *l = packed_layer(ROPE | NORM_QUERY | MORE | BIASES);
    headway_mha *mha = layer_create(s->engines[0], l, STORED_PLAIN);
    unsigned char *memory = saved(mha, &bytes);
    const headway_tensor x = tokens_tensor(l, QUERY);
    for (size_t at = 0; at < HEADER; at++)
        for (size_t c = 0; c < sizeof changes; c += quick ? 3 : 1) {
            unsigned char *copy = check_guard(bytes, 1);
            headway_status status;
            memcpy(copy, memory, bytes);
            copy[at] ^= changes[c];
            const uint64_t sum = headway_mha_packed_sum(copy, bytes);
            memcpy(copy + SUM_AT, &sum, sizeof sum);
            headway_mha *mapped = map(s->engines[0], copy, bytes, &status);
            if (mapped &&
                headway_mha_workspace(mapped, NULL, &x, NULL, NULL, &needed) == HEADWAY_OK) {
                const int64_t shape[3] = {x.shape[0], x.shape[1], l->widths.out};
                float *out =
                    check_guard(sizeof(float) * (size_t)(shape[0] * shape[1] * shape[2]), 1);
                void *workspace = check_guard(needed, 1);
                const headway_tensor to = headway_tensor_dense(out, HEADWAY_F32, 3, shape);
                taken += headway_mha_forward(mapped, NULL, &x, NULL, NULL, &to, workspace,
                                             needed) == HEADWAY_OK;
                check_guard_free(workspace);
                check_guard_free(out);
            }
            headway_mha_destroy(mapped);
            check_guard_free(copy);
        }
    CHECK(taken > 0, "all were refused, those with another eps too");
    check_guard_free(memory);
    headway_mha_destroy(mha);
    layer_free(l);
}

static void expect_refused(const headway_engine *engine, headway_status status,
                           headway_status expected, const char *word)
{
    char text[300];
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == expected && strstr(text, word), "%s: \"%s\", expected %s and the word %s",
          headway_status_text(status), text, headway_status_text(expected), word);
}

static void check_refusals(const struct subject *s)
{
    const headway_engine *engine = s->engines[0];
    size_t bytes = 0;
    if (!check_case("%s: what saving and mapping refuse", s->isa))
        return;
    struct layer *l = packed_layer(BIASES);
    headway_mha *mha = layer_create(engine, l, STORED_PLAIN), *made = mha;
    char *memory = saved(mha, &bytes), *room = check_guard(bytes + 64, 1);
    memset(room, 0x55, bytes + 64);
    CHECK(headway_mha_packed_bytes(NULL, &bytes) == HEADWAY_ERROR_ARGUMENT, "no layer");
    expect_refused(engine, headway_mha_packed_bytes(mha, NULL), HEADWAY_ERROR_ARGUMENT, "bytes");
    expect_refused(engine, headway_mha_save_packed(mha, NULL, bytes), HEADWAY_ERROR_ARGUMENT,
                   "memory: NULL");
    expect_refused(engine, headway_mha_save_packed(mha, room, bytes - 1), HEADWAY_ERROR_ARGUMENT,
                   "memory");
    expect_refused(engine, headway_mha_save_packed(mha, room + 4, bytes), HEADWAY_ERROR_ARGUMENT,
                   "aligned");
    for (size_t i = 0; i < bytes + 64; i++)
        CHECK(room[i] == 0x55, "byte %zu was written all the same", i);
    expect_refused(engine, headway_mha_map_packed(engine, memory, bytes, NULL),
                   HEADWAY_ERROR_ARGUMENT, "layer");
    expect_refused(engine, headway_mha_map_packed(engine, NULL, bytes, &made),
                   HEADWAY_ERROR_ARGUMENT, "memory: NULL");
    expect_refused(engine, headway_mha_map_packed(engine, room, bytes, &made),
                   HEADWAY_ERROR_ARGUMENT, "no packed layer");
    memory[12]++;
    expect_refused(engine, headway_mha_map_packed(engine, memory, bytes, &made),
                   HEADWAY_ERROR_ARGUMENT, "format");
    memory[12]--;
    if (strcmp(s->isa, "scalar") != 0) {
        headway_engine *other = engine_make("scalar", 1);
        expect_refused(other, headway_mha_map_packed(other, memory, bytes, &made),
                       HEADWAY_ERROR_CANNOT_RUN, s->isa);
        headway_engine_destroy(other);
    }
    CHECK(made == mha, "the layer was written");
    check_guard_free(room);
    check_guard_free(memory);
    headway_mha_destroy(mha);
    layer_free(l);
}

void check_layer_packed(const struct subject *s)
{
    for (int what = 0; what < 64; what += quick ? 21 : 1)
        check_round_trip(s, what);
    check_damage(s);
    check_forged(s);
    check_refusals(s);
}
