/* dot and mix: every number of lanes, every kind of element, every number of rows, each of which is
 * flush to an unreadable page, with NaNs on its other side. */
#include <math.h>
#include <string.h>

#include "check_kernels.h"

enum { ROWS = HEADWAY_KEY_BLOCK, FEW = HEADWAY_MAX_FEW, MAX_WIDTH = HEADWAY_MAX_WIDTH };
enum { MAX_K = 272, ROW_BYTES = MAX_K * 4, MAX_PITCH = MAX_K + 5 };
enum values { NORMAL, TINY, SPECIAL, VALUES };

static const char *const storage_names[] = {"f32", "f16", "bf16", "i8"};
static const int sizes[] = {4, 2, 2, 1};
static const int lengths[] = {1,  2,  3,  4,  5,  7,  8,  9,  12, 15, 16, 17,  20,  23,  24, 31,
                              32, 33, 40, 47, 48, 63, 64, 65, 80, 95, 96, 100, 127, 128, 130};
/* Tiles' widths of rows that there are or may be. */
static const int widths[] = {4, 8, 12, 16, 24, 32, 48, 64};
enum { LENGTHS = sizeof lengths / sizeof *lengths, WIDTHS = sizeof widths / sizeof *widths };

/* Guarded memory for every row, at the start and at the end. */
static char *room[2][ROWS];
static char original[ROWS][ROW_BYTES];
static float widened[ROWS * MAX_K];
static float scale_data[ROWS], panel_data[MAX_K * MAX_WIDTH];
static float score_data[ROWS * MAX_WIDTH], score_expected[ROWS * MAX_WIDTH];
static float sum_data[FEW * MAX_PITCH], sum_expected[FEW * MAX_PITCH], rescale_data[FEW];

struct few {
    enum headway_storage storage;
    enum values values;
    int n, width, count, k, at_end, ahead;
};

static void take_room(void)
{
    for (int at_end = 0; at_end < 2; at_end++)
        for (int j = 0; j < ROWS; j++)
            room[at_end][j] = check_guard(ROW_BYTES, at_end);
}

static void give_room(void)
{
    for (int at_end = 0; at_end < 2; at_end++)
        for (int j = 0; j < ROWS; j++)
            check_guard_free(room[at_end][j]);
}

static float value_of(struct subject *s, enum values values)
{
    static const float special[] = {NAN,       INFINITY, -INFINITY, -0.0f,
                                    0x1p-149f, 0.0f,     -0x1p-15f, 0x1p-126f};
    if (values == SPECIAL && below(s, 30) == 0)
        return special[below(s, 8)];
    float x;
    fill_normal(s, &x, 1, values == TINY ? 0x1p-70f : 1);
    return x;
}

static void fill_row(struct subject *s, const struct few *x, char *to)
{
    static float line[MAX_K];
    float unused = 0;

    fill_normal(s, line, x->k, x->values == TINY ? 0x1p-70f : 1);
    for (int p = below(s, 20); p < x->k && x->values == SPECIAL; p += 1 + below(s, 40))
        line[p] = value_of(s, SPECIAL);
    if (x->storage == HEADWAY_STORED_I8)
        for (int p = 0; p < x->k; p++)
            to[p] = (char)(below(s, 255) - 127);
    else if (x->storage == HEADWAY_STORED_F16 && x->values == TINY)
        /* Subnormal halves, of which some are 0. */
        for (int p = 0; p < x->k; p++)
            memcpy(to + 2 * p, &(uint16_t){(uint16_t)(below(s, 2) << 15 | below(s, 0x400))}, 2);
    else
        scalar_row()->narrow(to, line, x->k, x->storage, &unused);
}

/* Rows in guarded memory, and as floats, line by line, in `widened`. */
static void fill_rows(struct subject *s, const struct few *x, const void **rows)
{
    const size_t bytes = (size_t)(x->k * sizes[x->storage]);

    for (int j = 0; j < x->count; j++) {
        char *memory = room[x->at_end][j];
        check_poison((float *)(void *)memory, ROW_BYTES / 4);
        scale_data[j] = value_of(s, x->values);
        fill_row(s, x, original[j]);
        char *row = memory + (x->at_end ? ROW_BYTES - bytes : 0);
        memcpy(row, original[j], bytes);
        rows[j] = row;
        scalar_row()->widen(widened + j * x->k, original[j], x->k, x->storage, scale_data[j]);
    }
}

static void check_rows(struct subject *s, const struct few *x, const void *const *rows)
{
    const size_t bytes = (size_t)(x->k * sizes[x->storage]);
    for (int j = 0; j < x->count; j++)
        CHECK(memcmp(rows[j], original[j], bytes) == 0, "%s: row %d was written", s->label, j);
}

/* A panel of which lanes from n on are poison. */
static void fill_panel(struct subject *s, const struct few *x, int64_t lines)
{
    for (int64_t p = 0; p < lines; p++) {
        for (int l = 0; l < x->n; l++)
            panel_data[p * x->width + l] = value_of(s, x->values);
        check_poison(panel_data + p * x->width + x->n, x->width - x->n);
    }
}

static void label_few(struct subject *s, const struct few *x, const char *more)
{
    label(s, "%s n %d width %d rows %d length %d values %d at_end %d ahead %d%s",
          storage_names[x->storage], x->n, x->width, x->count, x->k, x->values, x->at_end, x->ahead,
          more);
}

/* The same sum for each lane by the scalar row's gemm on floats: c(i, l), l < 4, of lanes first ..
 * of the panel. */
static void gemm_lanes(const struct few *x, int first, int64_t m, int64_t k, ptrdiff_t a_row,
                       ptrdiff_t a_col, float *c, const float *scale)
{
    static float b[MAX_K * 4];
    const int lanes = x->n - first < 4 ? x->n - first : 4;

    memset(b, 0, sizeof b);
    for (int64_t p = 0; p < k; p++)
        memcpy(b + p * 4, panel_data + p * x->width + first, (size_t)lanes * sizeof *b);
    const struct headway_gemm g = {.m = m,
                                   .k = k,
                                   .vectors = 1,
                                   .accumulate = scale != NULL,
                                   .a = widened,
                                   .a_row = a_row,
                                   .a_col = a_col,
                                   .b = b,
                                   .c = {c},
                                   .c_row = 4,
                                   .count = &lanes,
                                   .scale = scale};
    scalar_row()->gemm(&g);
}

/* |got - exact| <= (terms + 1) u sum |products| + underflow. */
static void check_error(struct subject *s, float got, double sum, double size, int terms)
{
    const double bound = (terms + 1) * UNIT_ROUNDOFF * size + terms * SMALLEST;
    CHECK(fabs((double)got - sum) <= bound, "%s: %.9g, exactly %.17g, bound %.3g", s->label,
          (double)got, sum, bound);
}

/* ---- dot ------------------------------------------------------------------------------------- */

/* What the scalar row says against gemm, and against double sums. */
static void check_scores(struct subject *s, const struct few *x)
{
    static float c[ROWS * 4];
    for (int first = 0; first < x->n; first += 4) {
        gemm_lanes(x, first, x->count, x->k, x->k, 1, c, NULL);
        for (int j = 0; j < x->count; j++)
            for (int l = first; l < x->n && l < first + 4; l++)
                check_bits(&score_expected[j * x->width + l], &c[j * 4 + l - first], 1, s->label);
    }
    for (int j = 0; j < x->count && x->values != SPECIAL; j++)
        for (int l = 0; l < x->n; l++) {
            double sum = 0, size = 0;
            for (int p = 0; p < x->k; p++) {
                const double product =
                    (double)widened[j * x->k + p] * (double)panel_data[p * x->width + l];
                sum += product;
                size += fabs(product);
            }
            check_error(s, score_expected[j * x->width + l], sum, size, x->k);
        }
}

static void dot_case(struct subject *s, const struct few *x)
{
    const void *rows[ROWS];
    const int64_t panel = (int64_t)x->k * x->width, scores = (int64_t)x->count * x->width;

    label_few(s, x, "");
    fill_rows(s, x, rows);
    fill_panel(s, x, x->k);
    check_poison(score_data, scores);
    memcpy(score_expected, score_data, (size_t)scores * sizeof *score_data);
    struct headway_rows keys = {rows, NULL, scale_data, x->count, x->storage};
    struct headway_dot g = {&keys, x->n, x->width, x->k, panel_data, score_expected};
    scalar_row()->dot(&g);
    if (s->row == scalar_row()) {
        check_scores(s, x);
        for (int64_t i = 0; i < scores; i++)
            if (i % x->width >= x->n)
                check_bits(&score_expected[i], &(float){0}, 1, s->label);
    }

    const size_t pointers = (size_t)x->count * sizeof *rows;
    const void **guarded_rows = check_guard(pointers, x->at_end);
    memcpy(guarded_rows, rows, pointers);
    const void **ahead = check_guard(pointers, x->at_end);
    for (int j = 0; j < x->count; j++)
        ahead[j] = rows[x->count - 1 - j];
    float *scale = guarded(scale_data, x->storage == HEADWAY_STORED_I8 ? x->count : 0, x->at_end);
    float *query = guarded(panel_data, panel, x->at_end);
    float *to = guarded(score_data, scores, x->at_end);
    keys =
        (struct headway_rows){guarded_rows, x->ahead ? ahead : NULL, scale, x->count, x->storage};
    g.query = query;
    g.scores = to;

    environment_enter();
    s->row->dot(&g);
    environment_leave(s, x->values != SPECIAL);

    release_written(s, to, score_expected, scores, x->width, x->width, "scores");
    release_read_only(s, query, panel_data, (size_t)panel * sizeof *query, "the query");
    check_rows(s, x, rows);
    check_guard_free(scale);
    check_guard_free(ahead);
    release_read_only(s, guarded_rows, rows, pointers, "the pointers");
}

/* ---- mix ------------------------------------------------------------------------------------- */

static void check_sums(struct subject *s, const struct few *x, int fresh, ptrdiff_t pitch)
{
    static float c[MAX_K * 4];
    const int64_t m = x->k;

    for (int first = 0; first < x->n; first += 4) {
        float scale[4] = {0};
        for (int l = first; l < x->n && l < first + 4; l++) {
            scale[l - first] = rescale_data[l];
            for (int64_t d = 0; d < m; d++)
                c[d * 4 + l - first] = sum_data[l * pitch + d];
        }
        gemm_lanes(x, first, m, x->count, 1, m, c, fresh ? NULL : scale);
        for (int l = first; l < x->n && l < first + 4; l++)
            for (int64_t d = 0; d < m; d++)
                check_bits(&sum_expected[l * pitch + d], &c[d * 4 + l - first], 1, s->label);
    }
    for (int l = 0; l < x->n && x->values != SPECIAL; l++)
        for (int64_t d = 0; d < m; d++) {
            double sum = fresh ? 0 : (double)(sum_data[l * pitch + d] * rescale_data[l]);
            double size = fabs(sum);
            for (int j = 0; j < x->count; j++) {
                const double product =
                    (double)widened[j * m + d] * (double)panel_data[j * x->width + l];
                sum += product;
                size += fabs(product);
            }
            check_error(s, sum_expected[l * pitch + d], sum, size, x->count);
        }
}

static void mix_case(struct subject *s, const struct few *x)
{
    const void *rows[ROWS];
    const int fresh = below(s, 2);
    const ptrdiff_t pitch = x->k + below(s, 2) * 5;
    const int64_t panel = (int64_t)x->count * x->width, sums = (x->n - 1) * pitch + x->k;

    label_few(s, x, fresh ? " fresh" : "");
    fill_rows(s, x, rows);
    fill_panel(s, x, x->count);
    check_poison(sum_data, sums);
    check_poison(rescale_data, x->n);
    for (int l = 0; l < x->n && !fresh; l++) {
        rescale_data[l] = fabsf(value_of(s, x->values));
        for (int d = 0; d < x->k; d++)
            sum_data[l * pitch + d] = value_of(s, x->values);
    }
    memcpy(sum_expected, sum_data, (size_t)sums * sizeof *sum_data);
    struct headway_rows values = {rows, NULL, scale_data, x->count, x->storage};
    struct headway_mix g = {&values,      x->n,  x->width,     x->k, panel_data,
                            rescale_data, fresh, sum_expected, pitch};
    scalar_row()->mix(&g);
    if (s->row == scalar_row())
        check_sums(s, x, fresh, pitch);

    const size_t pointers = (size_t)x->count * sizeof *rows;
    const void **guarded_rows = check_guard(pointers, x->at_end);
    memcpy(guarded_rows, rows, pointers);
    const void **ahead = check_guard(pointers, x->at_end);
    for (int j = 0; j < x->count; j++)
        ahead[j] = rows[x->count - 1 - j];
    float *scale = guarded(scale_data, x->storage == HEADWAY_STORED_I8 ? x->count : 0, x->at_end);
    float *weights = guarded(panel_data, panel, x->at_end);
    float *rescale = guarded(rescale_data, x->n, x->at_end);
    float *to = guarded(sum_data, sums, x->at_end);
    values =
        (struct headway_rows){guarded_rows, x->ahead ? ahead : NULL, scale, x->count, x->storage};
    g.weights = weights;
    g.rescale = fresh && x->ahead ? NULL : rescale;
    g.sum = to;

    environment_enter();
    s->row->mix(&g);
    environment_leave(s, x->values != SPECIAL);

    release_written(s, to, sum_expected, sums, x->k, pitch, "sums");
    release_read_only(s, rescale, rescale_data, (size_t)x->n * sizeof *rescale, "rescale");
    release_read_only(s, weights, panel_data, (size_t)panel * sizeof *weights, "the weights");
    check_rows(s, x, rows);
    check_guard_free(scale);
    check_guard_free(ahead);
    release_read_only(s, guarded_rows, rows, pointers, "the pointers");
}

/* ---- which ----------------------------------------------------------------------------------- */

static void every_case(struct subject *s, void (*check)(struct subject *, const struct few *))
{
    const int step = s->quick ? 17 : 1;

    take_room();
    for (int storage = HEADWAY_STORED_F32; storage <= HEADWAY_STORED_I8; storage++)
        for (int n = 1; n <= FEW; n++) {
            struct few x = {.storage = (enum headway_storage)storage, .n = n};
            for (int i = s->quick ? below(s, step) : 0; i < ROWS + LENGTHS; i += step) {
                do
                    x.width = widths[below(s, WIDTHS)];
                while (x.width < n);
                /* Every number of rows, then every length with many of them. */
                x.count = i < ROWS ? i + 1 : ROWS - below(s, 34);
                x.k = i < ROWS ? lengths[below(s, LENGTHS)] : lengths[i - ROWS];
                x.k = below(s, 40) ? x.k : 140 + below(s, MAX_K - 140);
                x.values = below(s, 4) ? NORMAL : (enum values)below(s, VALUES);
                x.at_end = below(s, 2);
                x.ahead = below(s, 2);
                check(s, &x);
            }
        }
    give_room();
}

void check_dot(struct subject *s)
{
    every_case(s, dot_case);
}

void check_mix(struct subject *s)
{
    every_case(s, mix_case);
}
