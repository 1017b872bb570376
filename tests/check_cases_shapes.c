/* Families G, H, I, L and R as far as the core goes: strides, empty and odd shapes, offsets beyond
 * 32 bits, padding, independence of threads and neighbours. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "check_cases.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* A call on tensors as they are; the workspace is the case's own. */
static headway_status call(const headway_engine *engine, const headway_tensor *query,
                           const headway_tensor *key, const headway_tensor *value,
                           const headway_tensor *out)
{
    size_t bytes = 0;
    headway_status status = headway_attention_workspace(engine, NULL, query, key, value, &bytes);
    if (status != HEADWAY_OK)
        return status;
    void *workspace = check_guard(bytes, 0);
    status = headway_attention(engine, NULL, query, key, value, out, workspace, bytes);
    check_guard_free(workspace);
    return status;
}

static void says(const struct subject *s, const char *words)
{
    char text[400];
    headway_engine_error(s->one, text, sizeof text);
    CHECK(strstr(text, words) != NULL, "the error does not say \"%s\": %s", words, text);
}

/* ---- G ----------------------------------------------------------------------------------------
 */

/* (B, H, D, L) storage seen as (B, L, H, D). */
static void g01(const struct subject *s)
{
    float data[2 * 3 * 7 * 5], out[2 * 7 * 3 * 5];
    const int64_t shape[4] = {2, 7, 3, 5};
    const headway_tensor dense = headway_tensor_dense(data, HEADWAY_F32, 4, shape);
    const headway_tensor to = headway_tensor_dense(out, HEADWAY_F32, 4, shape);
    headway_tensor turned = dense;
    fill(data, COUNT(data), 1);
    turned.stride[0] = 3 * 5 * 7;
    turned.stride[1] = 1;
    turned.stride[2] = 5 * 7;
    turned.stride[3] = 7;
    fill(out, COUNT(out), 42);
    CHECK(call(s->one, &turned, &dense, &dense, &to) == HEADWAY_ERROR_ARGUMENT, "query");
    says(s, "query: innermost stride 7");
    CHECK(call(s->one, &dense, &turned, &dense, &to) == HEADWAY_ERROR_ARGUMENT, "key");
    says(s, "key: innermost stride 7");
    CHECK(call(s->one, &dense, &dense, &turned, &to) == HEADWAY_ERROR_ARGUMENT, "value");
    says(s, "value: innermost stride 7");
    headway_tensor turned_out = turned;
    turned_out.data = out;
    CHECK(call(s->one, &dense, &dense, &dense, &turned_out) == HEADWAY_ERROR_ARGUMENT, "out");
    says(s, "out: innermost stride 7");
    for (int x = 0; x < COUNT(out); x++)
        CHECK(out[x] == 42, "out was written");
}

static void g03(const struct subject *s)
{
    const struct shape shape = {32, 32, 32, 1, 1, 32, 32};
    struct problem *p = problem_make(&shape, 0);
    fill_all(p, 1, 1, 1);
    p->shared = SHARED_BATCH;
    struct answer a = answer_of(s, p);
    for (int64_t i = 0; i < 32; i++)
        expect_row(p, &a, i, 1, 1);
    answer_free(&a);
    problem_free(p);
}

static void g07(const struct subject *s)
{
    static const int64_t keys[] = {1, 130, 513, 1300};
    for (int n = 0; n < COUNT(keys); n++) {
        const struct shape shape = {2, 1, keys[n], 8, 2, 32, 32};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        struct answer a = answer_of(s, p);
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int at_end = 0; at_end < 2; at_end++) {
                struct answer b = attend(s->seven, p, (enum layout)layout, at_end);
                compare_bits(&b, &a, "a layout of the output");
                answer_free(&b);
            }
        answer_free(&a);
        expect_reference(s, p);
    }
}

static void g09(const struct subject *s)
{
    static const int64_t edges[] = {16, 32, 48, 64, 128};
    for (int n = 0; n < COUNT(edges); n++)
        for (int64_t off = -1; off <= 1; off++) {
            const struct shape shape = {2, edges[n] + off, edges[n] + off, 2,
                                        2, edges[n] + off, 16 + off};
            struct problem *p = problem_make(&shape, (uint64_t)n);
            struct answer a = answer_of(s, p), b = attend(s->one, p, LAYOUT_ODD, 1),
                          c = attend(s->one, p, LAYOUT_NEGATIVE, 0);
            compare_bits(&b, &a, "odd strides");
            compare_bits(&c, &a, "negative strides");
            answer_free(&a);
            answer_free(&b);
            answer_free(&c);
            problem_free(p);
        }
}

/* ---- H ----------------------------------------------------------------------------------------
 */

/* Extents as (B, Lq, Lk, Hq, Hkv, D, Dv); NULL data is legal where nothing is read. */
static headway_status call_empty(const struct subject *s, const int64_t x[7], float *memory)
{
    const int64_t query_shape[4] = {x[0], x[1], x[3], x[5]},
                  key_shape[4] = {x[0], x[2], x[4], x[5]};
    const int64_t value_shape[4] = {x[0], x[2], x[4], x[6]},
                  out_shape[4] = {x[0], x[1], x[3], x[6]};
    const headway_tensor query = headway_tensor_dense(memory, HEADWAY_F32, 4, query_shape);
    const headway_tensor key = headway_tensor_dense(memory, HEADWAY_F32, 4, key_shape);
    const headway_tensor value = headway_tensor_dense(memory, HEADWAY_F32, 4, value_shape);
    const headway_tensor out = headway_tensor_dense(memory + 1000, HEADWAY_F32, 4, out_shape);
    return call(s->one, &query, &key, &value, &out);
}

static void h01(const struct subject *s)
{
    static const struct {
        int64_t extents[7];
        headway_status status;
        int written; /* elements of out */
    } cases[] = {
        {{2, 3, 4, 2, 1, 5, 6}, HEADWAY_OK, 72},
        {{0, 3, 4, 2, 1, 5, 6}, HEADWAY_OK, 0},
        {{2, 0, 4, 2, 1, 5, 6}, HEADWAY_OK, 0},
        {{2, 3, 0, 2, 1, 5, 6}, HEADWAY_OK, 72},
        {{2, 3, 4, 2, 1, 5, 0}, HEADWAY_OK, 0},
        {{2, 3, 4, 0, 1, 5, 6}, HEADWAY_ERROR_ARGUMENT, 0},
        {{2, 3, 4, 2, 0, 5, 6}, HEADWAY_ERROR_ARGUMENT, 0},
        {{2, 3, 4, 0, 0, 5, 6}, HEADWAY_ERROR_ARGUMENT, 0},
        {{2, 3, 4, 2, 1, 0, 6}, HEADWAY_ERROR_ARGUMENT, 0},
        {{7, 0, 0, 9, 7, 7, 7}, HEADWAY_ERROR_ARGUMENT, 0}, /* 9 heads, 7 KV heads */
        {{7, 0, 0, 9, 3, 7, 7}, HEADWAY_OK, 0},
        {{0, 0, 0, 1, 1, 1, 0}, HEADWAY_OK, 0},
    };
    static float memory[2000];
    for (int n = 0; n < COUNT(cases); n++) {
        fill(memory, 1000, 1);
        fill(memory + 1000, 1000, 42);
        const headway_status status = call_empty(s, cases[n].extents, memory);
        int written = 0;
        for (int x = 1000; x < 2000; x++)
            written += memory[x] != 42;
        CHECK(status == cases[n].status && written == cases[n].written,
              "%d: %s, %d elements written", n, headway_status_text(status), written);
        if (status == HEADWAY_OK && cases[n].extents[2] == 0)
            for (int x = 0; x < written; x++)
                CHECK(memory[1000 + x] == 0, "%d: no keys, but %g", n, (double)memory[1000 + x]);
    }
}

static void h03(const struct subject *s)
{
    const int64_t query_shape[4] = {0, 2, 1, 0}, key_shape[4] = {0, 13, 1, 0},
                  value_shape[4] = {0, 0, 1, 0};
    const headway_tensor query = headway_tensor_dense(NULL, HEADWAY_F32, 4, query_shape);
    const headway_tensor key = headway_tensor_dense(NULL, HEADWAY_F32, 4, key_shape);
    const headway_tensor value = headway_tensor_dense(NULL, HEADWAY_F32, 4, value_shape);
    CHECK(call(s->one, &query, &key, &value, &query) == HEADWAY_ERROR_ARGUMENT,
          "lengths that differ");
}

static void h07(const struct subject *s)
{
    for (int64_t n = 1; n <= 13; n++) {
        const struct shape rows = {1, n, 4, 1, 1, 20, 20}, keys = {1, 4, n, 1, 1, 20, 4},
                           sizes = {1, 4, 20, 1, 1, n, n};
        expect_reference(s, problem_make(&rows, (uint64_t)n));
        expect_reference(s, problem_make(&keys, (uint64_t)n));
        expect_reference(s, problem_make(&sizes, (uint64_t)n));
    }
}

static void h09(const struct subject *s)
{
    static const int64_t extents[][7] = {
        {1, 2, 3, 3, 4, 5, 6}, {1, 2, 3, 4, 3, 5, 6}, {1, 2, 3, 5, 2, 5, 6}};
    static float memory[2000];
    for (int n = 0; n < COUNT(extents); n++) {
        fill(memory, 2000, 42);
        CHECK(call_empty(s, extents[n], memory) == HEADWAY_ERROR_ARGUMENT, "heads %d", n);
        for (int x = 0; x < 2000; x++)
            CHECK(memory[x] == 42, "heads %d: something was written", n);
    }
}

/* ---- I ----------------------------------------------------------------------------------------
 */

/* Strides of each kind beyond 32 bits, in a mapping of which only the pages in use exist. */
static void i01(const struct subject *s)
{
    const int64_t row = INT64_C(1) << 30, far = 3 * row;
    static const int64_t extents[3][3] = {{1, 3, 1}, {2, 3, 1}, {1, 3, 2}}; /* B, L, H */
    const size_t floats = (size_t)(far + 2 * row + 4096);
    float *memory = mmap(NULL, floats * sizeof(float), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        check_skip("I01", "no address space for a sparse mapping of 20 GB");
        return;
    }
    for (int n = 0; n < 3; n++) {
        const struct shape shape = {extents[n][0], 3, 3, extents[n][2], extents[n][2], 8, 8};
        struct problem *p = problem_make(&shape, (uint64_t)n);
        const int64_t sizes[4] = {extents[n][0], 3, extents[n][2], 8};
        headway_tensor tensors[4];
        for (int t = 0; t < 4; t++) {
            tensors[t] = headway_tensor_dense(memory + 8 * t, HEADWAY_F32, 4, sizes);
            tensors[t].stride[0] = n == 1 ? far : 0;
            tensors[t].stride[1] = row;
            tensors[t].stride[2] = n == 2 ? far : 0;
        }
        const float *dense[3] = {p->query, p->key, p->value};
        for (int64_t b = 0; b < sizes[0]; b++)
            for (int64_t i = 0; i < 3; i++)
                for (int64_t h = 0; h < sizes[2]; h++)
                    for (int t = 0; t < 3; t++)
                        memcpy((float *)tensors[t].data + b * tensors[t].stride[0] + i * row +
                                   h * tensors[t].stride[2],
                               dense[t] + ((b * 3 + i) * sizes[2] + h) * 8, 8 * sizeof(float));
        const headway_status status =
            call(s->one, &tensors[0], &tensors[1], &tensors[2], &tensors[3]);
        CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
        struct answer a = answer_of(s, p);
        for (int64_t b = 0; b < sizes[0]; b++)
            for (int64_t i = 0; i < 3; i++)
                for (int64_t h = 0; h < sizes[2]; h++)
                    check_bits((float *)tensors[3].data + b * tensors[3].stride[0] + i * row +
                                   h * tensors[3].stride[2],
                               out_line(p, &a, b, i, h), 8, "strides beyond 32 bits");
        answer_free(&a);
        problem_free(p);
    }
    munmap(memory, floats * sizeof(float));
}

static void i03(const struct subject *s)
{
    static const int64_t shapes[][4] = {{1, 1, 1, INT64_C(1) << 61},
                                        {INT64_C(1) << 32, INT64_C(1) << 32, 1, 8},
                                        {1, INT64_C(1) << 60, 4, 8},
                                        {INT64_MAX, 1, 1, 8}};
    for (int n = 0; n < COUNT(shapes); n++) {
        const headway_tensor x = headway_tensor_dense(NULL, HEADWAY_F32, 4, shapes[n]);
        size_t bytes = 42;
        const headway_status status = headway_attention_workspace(s->one, NULL, &x, &x, &x, &bytes);
        CHECK(status == HEADWAY_ERROR_MEMORY && bytes == 42, "%d: %s", n,
              headway_status_text(status));
    }
}

static void i07(const struct subject *s)
{
    const int64_t shape[4] = {8, 4096, 16, 64}, larger[4] = {64, 1 << 20, 64, 128};
    const headway_tensor x = headway_tensor_dense(NULL, HEADWAY_F32, 4, shape);
    const headway_tensor y = headway_tensor_dense(NULL, HEADWAY_F32, 4, larger);
    size_t bytes = 0;
    CHECK(headway_attention_workspace(s->seven, NULL, &x, &x, &x, &bytes) == HEADWAY_OK &&
              bytes < (size_t)8 << 20,
          "%zu bytes", bytes);
    CHECK(headway_attention_workspace(s->seven, NULL, &y, &y, &y, &bytes) == HEADWAY_OK &&
              bytes < (size_t)8 << 20,
          "%zu bytes", bytes);
}

/* ---- L ----------------------------------------------------------------------------------------
 */

static void l09(const struct subject *s)
{
    static const int64_t capacities[] = {96, 128, 160, 520};
    for (int n = 0; n < COUNT(capacities); n++) {
        const struct shape shape = {1, 1, capacities[n], 1, 1, 4, 4};
        struct problem *p = problem_make(&shape, 0);
        fill_all(p, 0, 1, 0);
        number_values(p);
        p->has_key_lengths = 1;
        for (int64_t at = 0; at < capacities[n]; at += quick ? 31 : 1) {
            p->key_lengths[0] = at + 1;
            struct answer a = answer_of(s, p);
            expect_row(p, &a, 0, (double)at / 2, 1);
            answer_free(&a);
        }
        problem_free(p);
    }
}

/* Rows from `first` on, as a call of their own: the bits of one call for all. */
static void l17(const struct subject *s)
{
    const struct shape shape = {1, 1100, 1100, 1, 1, 4, 4};
    struct problem *p = problem_make(&shape, 0);
    p->causal = HEADWAY_CAUSAL_TOP_LEFT;
    struct answer whole = attend(s->seven, p, LAYOUT_DENSE, 0);
    for (int64_t count = 1; count <= 7; count += 6)
        for (int64_t first = 0; first + count <= 1100; first += quick ? 211 : 13) {
            const struct shape part_shape = {1, count, 1100, 1, 1, 4, 4};
            struct problem *part = problem_make(&part_shape, 0);
            memcpy(part->query, query_line(p, 0, first, 0), (size_t)count * 4 * sizeof(float));
            memcpy(part->key, p->key, 1100 * 4 * sizeof(float));
            memcpy(part->value, p->value, 1100 * 4 * sizeof(float));
            part->causal = HEADWAY_CAUSAL_OFFSETS;
            part->offsets[0] = first;
            struct answer a = answer_of(s, part);
            check_bits(a.out, out_line(p, &whole, 0, first, 0), count * 4, "a chunk");
            answer_free(&a);
            problem_free(part);
        }
    answer_free(&whole);
    problem_free(p);
}

static void l19(const struct subject *s)
{
    static const int64_t capacities[] = {7, 8, 15, 16, 64, 130, 600};
    const struct shape least = {1, 9, 7, 2, 1, 8, 8};
    struct problem *p = problem_make(&least, 0);
    struct answer a = answer_of(s, p);
    for (int n = 0; n < COUNT(capacities); n++) {
        const struct shape shape = {1, 9, capacities[n], 2, 1, 8, 8};
        struct problem *q = problem_make(&shape, 1);
        memcpy(q->query, p->query, 9 * 2 * 8 * sizeof(float));
        q->has_key_lengths = 1;
        q->key_lengths[0] = 7;
        check_poison(q->key, capacities[n] * 8);
        check_poison(q->value, capacities[n] * 8);
        memcpy(q->key, p->key, 7 * 8 * sizeof(float));
        memcpy(q->value, p->value, 7 * 8 * sizeof(float));
        struct answer b = answer_of(s, q);
        compare_bits(&b, &a, "padding");
        answer_free(&b);
        problem_free(q);
    }
    answer_free(&a);
    problem_free(p);
}

/* ---- R ----------------------------------------------------------------------------------------
 */

static void r01(const struct subject *s)
{
    static const struct shape shapes[] = {
        {1, 1, 1300, 8, 2, 64, 64}, {1, 96, 700, 4, 4, 64, 64}, {4, 130, 130, 2, 2, 56, 44}};
    for (int n = 0; n < (quick ? 1 : 3); n++) {
        struct problem *p = problem_make(&shapes[n], (uint64_t)n);
        struct answer a = answer_of(s, p);
        for (int threads = 2; threads <= 16; threads++) {
            headway_engine *engine = engine_make(s->isa, threads);
            struct answer b = attend(engine, p, LAYOUT_DENSE, 0);
            compare_bits(&b, &a, "more threads");
            answer_free(&b);
            headway_engine_destroy(engine);
        }
        answer_free(&a);
        problem_free(p);
    }
}

static void r05(const struct subject *s)
{
    static const int64_t counts[] = {1, 32, 192, 193};
    const struct shape shape = {1, 768, 257, 2, 1, 16, 16};
    struct problem *p = problem_make(&shape, 0);
    struct answer whole = attend(s->seven, p, LAYOUT_DENSE, 0);
    for (int n = 0; n < COUNT(counts); n++) {
        struct problem *q = problem_copy(p);
        q->shape.queries = counts[n];
        struct answer a = answer_of(s, q);
        check_bits(a.out, whole.out, a.outs, "fewer query rows");
        answer_free(&a);
        problem_free(q);
    }
    answer_free(&whole);
    problem_free(p);
}

const struct entry shape_cases[] = {
    {"G01", "an inner stride that is not 1", g01},
    {"G03", "a batch of views of one matrix", g03},
    {"G07", "layouts of the output of a single row", g07},
    {"G09", "gaps beside exact multiples of a tile", g09},
    {"H01", "each extent 0", h01},
    {"H03", "empty tensors that don't fit", h03},
    {"H07", "all tails", h07},
    {"H09", "heads that don't divide", h09},
    {"I01", "strides beyond 32 bits", i01},
    {"I03", "sizes whose product overflows", i03},
    {"I07", "memory of a long problem", i07},
    {"L09", "positions in a buffer of keys", l09},
    {"L17", "chunks at every offset", l17},
    {"L19", "padding keys", l19},
    {"R01", "2 to 16 threads", r01},
    {"R05", "query rows in calls of any size", r05},
    {0},
};
