/* Each line of the README's table "In the words of others": what a peer's documentation says, as a
 * plain loop, against the settings of ours that the line names, on every row that runs here. */
#include "check_compat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "cpu/kernels.h"

float query[B * MOST * HQ * D], key[B * MOST * HKV * D], value[B * MOST * HKV * D];
int lq, lk;
struct attended theirs, ours;
const headway_engine *engine;
uint64_t random_state;

void problem(int queries, int keys)
{
    lq = queries;
    lk = keys;
    check_fill_normal(&random_state, query, B * lq * HQ * D, 1.5f);
    check_fill_normal(&random_state, key, B * lk * HKV * D, 1);
    check_fill_normal(&random_state, value, B * lk * HKV * D, 1);
}

/* ---- theirs ----------------------------------------------------------------------------------
 */

struct peer peer_plain(void)
{
    const struct peer p = {1 / sqrt(D), NULL, NULL, NULL, 0, -INFINITY};
    return p;
}

static double dot_of(int b, int h, int i, int j)
{
    double sum = 0;
    for (int d = 0; d < D; d++)
        sum += (double)query[((b * lq + i) * HQ + h) * D + d] *
               (double)key[((b * lk + j) * HKV + h / (HQ / HKV)) * D + d];
    return sum;
}

static void peer_row(const struct peer *p, int b, int h, int i)
{
    double weight[MOST] = {0}, sum = p->sink ? exp(p->sink(h)) : 0;
    double *out = theirs.out + ((b * lq + i) * HQ + h) * D;
    int any = 0;
    for (int j = 0; j < lk; j++) {
        if (p->sees && !p->sees(b, h, i, j))
            continue;
        const double s = p->scale * dot_of(b, h, i, j);
        weight[j] = exp(p->score ? p->score(s, b, h, i, j) : s);
        sum += weight[j];
        any = 1;
    }
    for (int d = 0; d < D; d++) {
        out[d] = any ? 0 : p->empty;
        for (int j = 0; any && j < lk; j++)
            if (weight[j] > 0)
                out[d] +=
                    weight[j] / sum * (double)value[((b * lk + j) * HKV + h / (HQ / HKV)) * D + d];
    }
    for (int j = 0; j < lk; j++)
        theirs.weights[((b * HQ + h) * lq + i) * lk + j] = any ? weight[j] / sum : p->empty;
    theirs.lse[(b * HQ + h) * lq + i] = any || p->sink ? log(sum) : p->empty_lse;
}

void peer_answer(const struct peer *p)
{
    for (int b = 0; b < B; b++)
        for (int h = 0; h < HQ; h++)
            for (int i = 0; i < lq; i++)
                peer_row(p, b, h, i);
}

/* ---- ours ------------------------------------------------------------------------------------
 */

headway_tensor tensor(void *data, headway_dtype dtype, int rank, const int *shape)
{
    int64_t extents[HEADWAY_MAX_RANK];
    for (int i = 0; i < rank; i++)
        extents[i] = shape[i];
    return headway_tensor_dense(data, dtype, rank, extents);
}

static void doubles(double *to, const float *from, int count)
{
    for (int n = 0; n < count; n++)
        to[n] = (double)from[n];
}

/* Packed sequences have a batch of 1, and no weights. */
void our_answer(headway_attention_params params)
{
    static float out[B * MOST * HQ * D], lse[B * HQ * MOST], weights[B * HQ * MOST * MOST];
    const int batch = params.query_starts ? 1 : B, rows = B / batch * lq, keys = B / batch * lk;
    const headway_tensor q = tensor(query, HEADWAY_F32, 4, (int[]){batch, rows, HQ, D}),
                         k = tensor(key, HEADWAY_F32, 4, (int[]){batch, keys, HKV, D}),
                         v = tensor(value, HEADWAY_F32, 4, (int[]){batch, keys, HKV, D}),
                         o = tensor(out, HEADWAY_F32, 4, (int[]){batch, rows, HQ, D}),
                         l = tensor(lse, HEADWAY_F32, 3, (int[]){batch, HQ, rows}),
                         w = tensor(weights, HEADWAY_F32, 4, (int[]){B, HQ, lq, lk});
    const headway_tensor *kept = params.cache ? NULL : &k, *values = params.cache ? NULL : &v;
    size_t bytes = 0;
    char text[300];
    params.lse = &l;
    params.weights = params.query_starts ? NULL : &w;
    headway_status status = headway_attention_workspace(engine, &params, &q, kept, values, &bytes);
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes + 64) / 64 * 64);
    if (status == HEADWAY_OK)
        status = headway_attention(engine, &params, &q, kept, values, &o, workspace, bytes);
    free(workspace);
    headway_engine_error(engine, text, sizeof text);
    CHECK(status == HEADWAY_OK, "%s: %s", headway_status_text(status), text);
    doubles(ours.out, out, B * lq * HQ * D);
    doubles(ours.weights, weights, B * HQ * lq * lk);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < HQ; h++)
            for (int i = 0; i < lq; i++)
                ours.lse[(b * HQ + h) * lq + i] =
                    (double)lse[batch == 1 ? (h * B + b) * lq + i : (b * HQ + h) * lq + i];
}

/* ---- comparison ------------------------------------------------------------------------------
 */

int apart(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    return !(fabs(a - b) <= 1e-5 * (1 + fabs(b)));
}

void agree_on(const double *a, const double *b, int count, const char *what)
{
    for (int n = 0; n < count; n++)
        if (apart(a[n], b[n])) {
            CHECK(0, "%s: element %d is %.9g, theirs %.9g", what, n, a[n], b[n]);
            return;
        }
}

void agree(const char *what)
{
    char name[100];
    agree_on(ours.out, theirs.out, B * lq * HQ * D, what);
    snprintf(name, sizeof name, "%s: lse", what);
    agree_on(ours.lse, theirs.lse, B * HQ * lq, name);
}

void agree_weights(const char *what)
{
    agree(what);
    agree_on(ours.weights, theirs.weights, B * HQ * lq * lk, what);
}

void differ(const char *what)
{
    int different = 0;
    for (int n = 0; n < B * lq * HQ * D; n++)
        different |= apart(ours.out[n], theirs.out[n]);
    CHECK(different, "%s: no difference, so the test shows nothing", what);
}

/* ---- masks that several tests use --------------------------------------------------------------
 */

unsigned char mask_bool[B * HQ * MOST * MOST];
float mask_float[B * HQ * MOST * MOST];
headway_tensor mask;

int at4(int b, int h, int i, int j)
{
    return ((b * HQ + h) * lq + i) * lk + j;
}

/* Full masks of random content; row 1 of every head excludes all. */
void draw_masks(void)
{
    for (int n = 0; n < B * HQ * lq * lk; n++) {
        mask_bool[n] = check_random(&random_state) % 3 != 0 && n / lk % lq != 1;
        mask_float[n] = mask_bool[n] ? check_normal(&random_state) : -INFINITY;
    }
}

headway_attention_params with_mask(void *data, headway_dtype dtype)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    mask = tensor(data, dtype, 4, (int[]){B, HQ, lq, lk});
    params.mask = &mask;
    return params;
}

int bool_attends(int b, int h, int i, int j)
{
    return mask_bool[at4(b, h, i, j)] != 0;
}

double add_float(double s, int b, int h, int i, int j)
{
    return s + (double)mask_float[at4(b, h, i, j)];
}

int top_left(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return j <= i;
}

int bottom_right(int b, int h, int i, int j)
{
    (void)b, (void)h;
    return j <= i + lk - lq;
}

int never(int b, int h, int i, int j)
{
    (void)b, (void)h, (void)i, (void)j;
    return 0;
}

/* ---- all -------------------------------------------------------------------------------------
 */

static struct {
    const struct test *tests;
    int count;
} parts[4];

/* ---- the table -------------------------------------------------------------------------------
 */

static int is_test(const char *name)
{
    int found = 0;
    for (int part = 0; part < COUNT(parts); part++)
        for (int n = 0; n < parts[part].count; n++)
            found |= strcmp(parts[part].tests[n].name, name) == 0;
    return found;
}

/* Every line of the table ends in the name of a test, and every test has a line. */
static void check_table(void)
{
    char line[1000], name[100];
    int inside = 0, lines = 0;
    FILE *readme = fopen(HEADWAY_SOURCE_DIR "/README.md", "r");
    if (!readme) {
        check_skip("the README's table", "no README.md");
        return;
    }
    check_case("the README's table");
    while (fgets(line, sizeof line, readme)) {
        if (strncmp(line, "## ", 3) == 0)
            inside = strcmp(line, "## In the words of others\n") == 0;
        if (!inside || strncmp(line, "| ", 2) != 0 || strncmp(line, "| theirs", 8) == 0)
            continue;
        const char *last = strrchr(line, '|');
        while (last > line && *--last != '|')
            continue;
        CHECK(sscanf(last, "| `%99[^`]` |", name) == 1 && is_test(name), "no test: %s", line);
        lines++;
    }
    fclose(readme);
    int tests = 0;
    for (int part = 0; part < COUNT(parts); part++)
        tests += parts[part].count;
    CHECK(lines == tests, "%d lines, %d tests", lines, tests);
}

static void run_all(const char *isa, const struct test *some, int count)
{
    for (int n = 0; n < count; n++)
        if (check_case("%s: %s", isa, some[n].name)) {
            random_state = check_seed * 1000 + (uint64_t)n;
            some[n].run();
        }
}

int main(int argc, char **argv)
{
    const struct headway_row *row;
    int index = 0;
    check_begin(argc, argv);
    parts[0].tests = operator_tests;
    parts[0].count = operator_test_count;
    parts[1].tests = layer_tests;
    parts[1].count = layer_test_count;
    parts[2].tests = runtime_tests;
    parts[2].count = runtime_test_count;
    parts[3].tests = cache_tests;
    parts[3].count = cache_test_count;
    while ((row = check_next_row(&index)) != NULL) {
        headway_engine *made = engine_make(row->name, 2);
        engine = made;
        for (int part = 0; part < COUNT(parts); part++)
            run_all(row->name, parts[part].tests, parts[part].count);
        headway_engine_destroy(made);
    }
    check_table();
    return check_end();
}
