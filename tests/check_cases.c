/* Faults that systems of this kind have had, as named cases with the right answer, on every row.
 * --quick takes a sample. */
#include "check_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"

int quick;

/* Cases of other programs, and what stands in these where they are. */
static const struct {
    const char *ids, *file, *text;
} elsewhere[] = {
    {"N01, N05, N13, N15", "check_cpu.c", "\"dump: %s\""},
    {"N03", "CMakeLists.txt", "headway_emulated(Nehalem"},
    {"N07", "check_cpu.c", "\"leaf 7 all ones"},
    {"N09", "check_cpu.c", "\"HEADWAY_ISA=%s\""},
    {"N11", "check_cpu.c", "threads create an engine at once"},
    {"O01, O03", "check_concurrent.c", "%s: threads of this program"},
    {"O05", "check_guest_threads.c", "%s: many host threads at once"},
    {"O07", "check_guest_threads.c", "%s: OpenMP's limits"},
    {"O13, V03", "CMakeLists.txt", "check_concurrent/plant"},
    {"P01, P03", "check_guest_forks.c", "%s: a process that forks"},
    {"P05, P07, P09", "check_load.c", "static void unload_under"},
    {"P11", "check_cpu_system.c", "\"cgroup: %s"},
    {"P13", "check_guest_threads.c", "%s: a caller with a small stack"},
    {"R03", "check_mha_cases.c", "R03 a batch as its parts"},
    {"S01", "check_guest_modes.c", "static void check_mode"},
    {"S05", "check_guest_modes.c", "%s: zeros raise no flag"},
    {"V01", "check_files_choices.c", "locale/decimal comma"},
};

static void look_elsewhere(void)
{
    static char text[1 << 17], path[4096];
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        snprintf(path, sizeof path, HEADWAY_SOURCE_DIR "/tests/%s", elsewhere[i].file);
        FILE *file = fopen(path, "r");
        if (!file) {
            check_skip("cases of other programs", "no sources");
            return;
        }
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        if (check_case("%s, in %s", elsewhere[i].ids, elsewhere[i].file))
            CHECK(strstr(text, elsewhere[i].text), "'%s' is not there", elsewhere[i].text);
    }
}

struct answer answer_of(const struct subject *s, const struct problem *p)
{
    return attend(s->one, p, LAYOUT_DENSE, 1);
}

void expect_reference(const struct subject *s, struct problem *p)
{
    static unsigned turn;
    struct expected e = expect(p);
    struct answer a = answer_of(s, p), b = attend(s->seven, p, turn % LAYOUTS, turn & 1);
    turn++;
    compare(p, &a, &e);
    compare_bits(&b, &a, problem_name(p));
    answer_free(&a);
    answer_free(&b);
    expected_free(&e);
    problem_free(p);
}

headway_status call_with_mask(const struct subject *s, const struct problem *p,
                              const headway_tensor *mask, float *out)
{
    const struct shape *x = &p->shape;
    const int64_t query_shape[4] = {x->batch, x->queries, x->heads, x->size};
    const int64_t key_shape[4] = {x->batch, x->keys, x->kv_heads, x->size};
    const int64_t value_shape[4] = {x->batch, x->keys, x->kv_heads, x->value_size};
    const int64_t out_shape[4] = {x->batch, x->queries, x->heads, x->value_size};
    const headway_tensor query = headway_tensor_dense(p->query, HEADWAY_F32, 4, query_shape);
    const headway_tensor key = headway_tensor_dense(p->key, HEADWAY_F32, 4, key_shape);
    const headway_tensor value = headway_tensor_dense(p->value, HEADWAY_F32, 4, value_shape);
    const headway_tensor to = headway_tensor_dense(out, HEADWAY_F32, 4, out_shape);
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    size_t bytes = 0;

    params.mask = mask;
    headway_status status =
        headway_attention_workspace(s->one, &params, &query, &key, &value, &bytes);
    void *workspace = check_guard(bytes, 0);
    if (status == HEADWAY_OK)
        status = headway_attention(s->one, &params, &query, &key, &value, &to, workspace, bytes);
    check_guard_free(workspace);
    return status;
}

void fill(float *to, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = value;
}

void fill_all(struct problem *p, float query, float key, float value)
{
    const struct shape *s = &p->shape;
    fill(p->query, s->batch * s->queries * s->heads * s->size, query);
    fill(p->key, s->batch * s->keys * s->kv_heads * s->size, key);
    fill(p->value, s->batch * s->keys * s->kv_heads * s->value_size, value);
}

void number_values(struct problem *p)
{
    const struct shape *s = &p->shape;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t j = 0; j < s->keys; j++)
            fill(value_line(p, b, j, 0), s->kv_heads * s->value_size, (float)j);
}

void expect_row(const struct problem *p, const struct answer *a, int64_t i, double expected,
                int exactly)
{
    const double tolerance = exactly ? 0 : 1e-6 + 1e-5 * fabs(expected);
    for (int64_t b = 0; b < p->shape.batch; b++)
        for (int64_t h = 0; h < p->shape.heads; h++)
            for (int64_t d = 0; d < p->shape.value_size; d++) {
                const double got = (double)out_line(p, a, b, i, h)[d];
                CHECK(fabs(got - expected) <= tolerance,
                      "%s: row %lld of head %lld is %.9g, expected %.9g", problem_name(p),
                      (long long)i, (long long)h, got, expected);
            }
}

void expect_no_key(const struct problem *p, const struct answer *a, int64_t i)
{
    expect_row(p, a, i, 0, 1);
    for (int64_t b = 0; b < p->shape.batch; b++)
        for (int64_t h = 0; h < p->shape.heads; h++)
            CHECK(*lse_at(p, a, b, i, h) == -INFINITY, "%s: lse of row %lld is %g", problem_name(p),
                  (long long)i, (double)*lse_at(p, a, b, i, h));
}

static void run(const struct subject *s, const struct entry *entry)
{
    for (; entry->id; entry++)
        if (check_case("%s: %s, %s", s->isa, entry->id, entry->title))
            entry->body(s);
}

int main(int argc, char **argv)
{
    const struct headway_row *row;
    int index = 0;
    check_begin(argc, argv);
    quick = (int)check_option("--quick", 0);
    while ((row = check_next_row(&index)) != NULL) {
        const struct subject s = {row->name, engine_make(row->name, 1), engine_make(row->name, 7)};
        run(&s, empty_cases);
        run(&s, mask_cases);
        run(&s, number_cases);
        run(&s, shape_cases);
        run(&s, score_cases);
        run(&s, layer_cases);
        run(&s, cache_cases);
        headway_engine_destroy(s.one);
        headway_engine_destroy(s.seven);
    }
    look_elsewhere();
    return check_end();
}
