/* gemm: every number of rows up to twice the largest tile and one more, every number of vectors,
 * every tail, chains of all sorts of lengths, every layout of a. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_kernels.h"

enum {
    MAX_M = 25,
    MAX_K = 255,
    MAX_A = 1 << 14,
    MAX_STRIDE = HEADWAY_MAX_WIDTH + 5,
    MAX_LANES = 16
};

/* How a lies in memory. */
enum layout {
    K_CONTIGUOUS,
    K_CONTIGUOUS_PADDED,
    M_CONTIGUOUS,
    M_CONTIGUOUS_PADDED,
    BOTH_STRIDED,
    ROWS_BACKWARDS,
    ONE_ROW, /* a_row = 0 */
    K_BACKWARDS,
    LAYOUTS
};

enum values { NORMAL, TINY, HUGE_VALUES, SPECIAL, VALUES };

struct gemm_case {
    int m, vectors, k;
    int accumulate, scale, bias;
    enum layout layout;
    enum values values;
    int count[HEADWAY_MAX_VECTORS]; /* all lanes in every vector: count is passed as NULL or not */
    int pass_count;
    int padding;  /* c_row beyond the longest count */
    int extremes; /* highest and lowest are asked for, without count */
};

struct operands {
    float a[MAX_A];
    float b[MAX_K * HEADWAY_MAX_WIDTH];
    float c[HEADWAY_MAX_VECTORS][MAX_M * MAX_STRIDE];        /* before */
    float expected[HEADWAY_MAX_VECTORS][MAX_M * MAX_STRIDE]; /* after */
    float scale[HEADWAY_MAX_WIDTH], bias[HEADWAY_MAX_WIDTH];
    float highest[HEADWAY_MAX_WIDTH], lowest[HEADWAY_MAX_WIDTH]; /* before */
    int64_t a_count, a_base, c_count[HEADWAY_MAX_VECTORS];
    ptrdiff_t a_row, a_col, c_row;
};
static struct operands o;

static void lay_out_a(const struct gemm_case *x)
{
    const ptrdiff_t m = x->m, k = x->k;
    switch (x->layout) {
    case K_CONTIGUOUS: o.a_row = k, o.a_col = 1; break;
    case K_CONTIGUOUS_PADDED: o.a_row = k + 3, o.a_col = 1; break;
    case M_CONTIGUOUS: o.a_row = 1, o.a_col = m; break;
    case M_CONTIGUOUS_PADDED: o.a_row = 1, o.a_col = m + 5; break;
    case BOTH_STRIDED: o.a_row = 2, o.a_col = 2 * m + 1; break;
    case ROWS_BACKWARDS: o.a_row = -(k + 1), o.a_col = 1; break;
    case ONE_ROW: o.a_row = 0, o.a_col = 1; break;
    default: o.a_row = 1, o.a_col = -(m + 2); break;
    }
    const ptrdiff_t rows = (m - 1) * o.a_row, columns = (k - 1) * o.a_col;
    o.a_base = -(rows < 0 ? rows : 0) - (columns < 0 ? columns : 0);
    o.a_count = k ? llabs(rows) + llabs(columns) + 1 : 0;
    o.a_base = k ? o.a_base : 0;
}

static void fill_values(struct subject *s, const struct gemm_case *x, float *to, int64_t count)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, -0.0f, 0x1p-149f, 0.0f};
    const float scale[VALUES] = {1, 0x1p-70f, 0x1p70f, 1};
    fill_normal(s, to, count, scale[x->values]);
    if (x->values == SPECIAL)
        for (int64_t i = 0; i < count; i += 1 + below(s, 40))
            to[i] = special[below(s, 6)];
}

static void fill_operands(struct subject *s, const struct gemm_case *x)
{
    const int lanes = s->row->lanes, w = lanes * x->vectors;

    lay_out_a(x);
    check_poison(o.a, o.a_count);
    static float line[MAX_K];
    for (int i = 0; i < x->m; i++) {
        fill_values(s, x, line, x->k);
        for (int p = 0; p < x->k; p++)
            o.a[o.a_base + i * o.a_row + p * o.a_col] = line[p];
    }
    fill_values(s, x, o.b, (int64_t)x->k * w);
    fill_values(s, x, o.scale, w);
    fill_values(s, x, o.bias, w);
    for (int j = 0; j < w; j++) {
        o.highest[j] = below(s, 2) ? -INFINITY : 0.5f;
        o.lowest[j] = below(s, 2) ? INFINITY : -0.5f;
    }

    int longest = 1;
    for (int v = 0; v < x->vectors; v++)
        longest = x->count[v] > longest ? x->count[v] : longest;
    o.c_row = longest + x->padding;
    for (int v = 0; v < x->vectors; v++) {
        o.c_count[v] = (x->m - 1) * o.c_row + x->count[v];
        check_poison(o.c[v], o.c_count[v]);
        if (x->accumulate)
            for (int i = 0; i < x->m; i++)
                fill_values(s, x, &o.c[v][i * o.c_row], x->count[v]);
        /* Lanes beyond the count are read but touch nothing. */
        for (int l = x->count[v]; l < lanes; l++) {
            for (int p = 0; p < x->k; p++)
                check_poison(&o.b[p * w + v * lanes + l], 1);
            check_poison(&o.scale[v * lanes + l], 1);
            check_poison(&o.bias[v * lanes + l], 1);
        }
        memcpy(o.expected[v], o.c[v], (size_t)o.c_count[v] * sizeof(float));
    }
}

static struct headway_gemm describe(const struct gemm_case *x)
{
    struct headway_gemm g = {
        .m = x->m,
        .k = x->k,
        .vectors = x->vectors,
        .accumulate = x->accumulate,
        .a = o.a + o.a_base,
        .a_row = o.a_row,
        .a_col = o.a_col,
        .b = o.b,
        .c_row = o.c_row,
        .count = x->pass_count ? x->count : NULL,
        .scale = x->scale ? o.scale : NULL,
        .bias = x->bias ? o.bias : NULL,
    };
    for (int v = 0; v < x->vectors; v++)
        g.c[v] = o.expected[v];
    return g;
}

/* The scalar row's results, in o.expected, against sums in double under the contract's bound. */
static void against_double(struct subject *s, const struct gemm_case *x)
{
    const int lanes = s->row->lanes, w = lanes * x->vectors;

    for (int v = 0; v < x->vectors; v++)
        for (int i = 0; i < x->m; i++) {
            double exact[MAX_LANES] = {0}, size[MAX_LANES] = {0}, bound[MAX_LANES];
            for (int l = 0; l < x->count[v] && x->accumulate; l++) {
                exact[l] = (double)o.c[v][i * o.c_row + l];
                if (x->scale)
                    exact[l] *= (double)o.scale[v * lanes + l];
                size[l] = fabs(exact[l]);
            }
            for (int p = 0; p < x->k; p++) {
                const double a = (double)o.a[o.a_base + i * o.a_row + p * o.a_col];
                const float *b = &o.b[p * w + v * lanes];
                for (int l = 0; l < lanes; l++) {
                    exact[l] += a * (double)b[l];
                    size[l] += fabs(a * (double)b[l]);
                }
            }
            for (int l = 0; l < x->count[v]; l++) {
                bound[l] = (x->k + 1) * (UNIT_ROUNDOFF * size[l] + SMALLEST);
                if (x->bias)
                    exact[l] += (double)o.bias[v * lanes + l];
                if (x->bias)
                    bound[l] += UNIT_ROUNDOFF * (fabs(exact[l]) + bound[l]);
                /* double's own rounding */
                bound[l] += (x->k + 1) * 0x1p-52 * size[l];
            }
            check_bound(&o.expected[v][i * o.c_row], exact, bound, x->count[v], s->label);
        }
}

/* highest and lowest of one column against the scalar row's results; NULL when not asked for. */
static void check_extremes(struct subject *s, const struct gemm_case *x, const float *highest,
                           const float *lowest, int v, int l)
{
    const int lanes = s->row->lanes;
    float high = o.highest[v * lanes + l], low = o.lowest[v * lanes + l];
    for (int i = 0; i < x->m; i++) {
        const float c = o.expected[v][i * o.c_row + l];
        high = c > high ? c : high;
        low = c < low ? c : low;
    }
    CHECK(highest[v * lanes + l] == high, "%s: highest of column %d is %g, not %g", s->label,
          v * lanes + l, (double)highest[v * lanes + l], (double)high);
    CHECK(lowest[v * lanes + l] == low, "%s: lowest of column %d is %g, not %g", s->label,
          v * lanes + l, (double)lowest[v * lanes + l], (double)low);
}

static void release_extremes(struct subject *s, const struct gemm_case *x, float *highest,
                             float *lowest)
{
    if (!highest)
        return;
    for (int v = 0; v < x->vectors; v++)
        for (int l = 0; l < s->row->lanes; l++)
            check_extremes(s, x, highest, lowest, v, l);
    check_guard_free(highest);
    check_guard_free(lowest);
}

static void run_guarded(struct subject *s, const struct gemm_case *x, int at_end)
{
    const size_t w = (size_t)(s->row->lanes * x->vectors);
    struct headway_gemm g = describe(x);

    float *a = guarded(o.a, o.a_count, at_end);
    float *b = guarded(o.b, x->k * (int64_t)w, at_end);
    float *scale = g.scale ? guarded(o.scale, (int64_t)w, at_end) : NULL;
    float *bias = g.bias ? guarded(o.bias, (int64_t)w, at_end) : NULL;
    int32_t *count = g.count ? guarded_ints(x->count, x->vectors, at_end) : NULL;
    g.a = a + o.a_base;
    g.b = b;
    g.scale = scale;
    g.bias = bias;
    g.count = count;
    for (int v = 0; v < x->vectors; v++)
        g.c[v] = guarded(o.c[v], o.c_count[v], at_end);
    if (x->extremes && !x->pass_count) {
        g.highest = guarded(o.highest, (int64_t)w, at_end);
        g.lowest = guarded(o.lowest, (int64_t)w, at_end);
    }

    environment_enter();
    s->row->gemm(&g);
    environment_leave(s, x->values == NORMAL || x->values == TINY);

    release_read_only(s, a, o.a, (size_t)o.a_count * sizeof *a, "a");
    release_read_only(s, b, o.b, (size_t)x->k * w * sizeof *b, "b");
    release_read_only(s, scale, o.scale, w * sizeof *scale, "scale");
    release_read_only(s, bias, o.bias, w * sizeof *bias, "bias");
    release_read_only(s, count, x->count, (size_t)x->vectors * sizeof *count, "count");
    for (int v = 0; v < x->vectors; v++)
        release_written(s, g.c[v], o.expected[v], o.c_count[v], x->count[v], o.c_row, "c");
    release_extremes(s, x, g.highest, g.lowest);
}

static void run(struct subject *s, const struct gemm_case *x)
{
    label(s, "m %d k %d vectors %d count %d %d %d %d%s%s%s layout %d padding %d values %d", x->m,
          x->k, x->vectors, x->count[0], x->count[1], x->count[2], x->count[3],
          x->accumulate ? " accumulate" : "", x->scale ? " scale" : "", x->bias ? " bias" : "",
          (int)x->layout, x->padding, (int)x->values);
    fill_operands(s, x);
    const struct headway_gemm g = describe(x);
    scalar_gemm(s->row, &g);
    if (x->values == NORMAL || x->values == TINY)
        against_double(s, x);
    run_guarded(s, x, 0);
    run_guarded(s, x, 1);
}

/* What the loops leave open, drawn. */
static void draw(struct subject *s, struct gemm_case *x)
{
    const int32_t bits = below(s, 8);
    x->accumulate = bits & 1;
    x->scale = bits >> 1 & 1;
    x->bias = bits >> 2 & 1;
    x->extremes = below(s, 2);
    x->layout = (enum layout)below(s, LAYOUTS);
    x->padding = below(s, 2) ? 0 : below(s, s->row->lanes + 5);
    x->values = below(s, 8) ? NORMAL : (enum values)(1 + below(s, VALUES - 1));
}

static void full_counts(const struct subject *s, struct gemm_case *x)
{
    for (int v = 0; v < x->vectors; v++)
        x->count[v] = s->row->lanes;
}

static void every_size(struct subject *s)
{
    static const int lengths[] = {0, 1, 2, 3, 7, 8, 9, 64, 127, 128, 255};
    const int draws = s->quick ? 1 : 6, lines = (int)(sizeof lengths / sizeof *lengths);

    for (int m = 1; m <= MAX_M; m++)
        for (int vectors = 1; vectors <= s->row->vectors; vectors++)
            for (int i = s->quick ? below(s, 4) : 0; i < lines; i += s->quick ? 4 : 1)
                for (int d = 0; d < draws; d++) {
                    struct gemm_case x = {.m = m, .vectors = vectors, .k = lengths[i]};
                    draw(s, &x);
                    full_counts(s, &x);
                    x.pass_count = below(s, 2);
                    run(s, &x);
                }
}

/* Every tail of the last vector, with the vectors before it full, and every mixture that is drawn.
 */
static void every_tail(struct subject *s)
{
    for (int m = 1; m <= MAX_M; m += s->quick ? 6 : 1)
        for (int vectors = 1; vectors <= s->row->vectors; vectors++)
            for (int tail = 0; tail <= s->row->lanes; tail++) {
                struct gemm_case x = {
                    .m = m, .vectors = vectors, .k = below(s, 20), .pass_count = 1};
                full_counts(s, &x);
                x.count[vectors - 1] = tail;
                draw(s, &x);
                run(s, &x);
                for (int v = 0; v < vectors; v++)
                    x.count[v] = below(s, s->row->lanes + 1);
                draw(s, &x);
                run(s, &x);
            }
}

/* Every layout of a, every combination of start and end, on one tile that is full and one that
 * isn't. */
static void every_form(struct subject *s)
{
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (int bits = 0; bits < 8; bits++)
            for (int values = 0; values < VALUES; values++) {
                struct gemm_case x = {.m = 1 + below(s, MAX_M),
                                      .vectors = 1 + below(s, s->row->vectors),
                                      .k = 1 + below(s, 30),
                                      .accumulate = bits & 1,
                                      .scale = bits >> 1 & 1,
                                      .bias = bits >> 2 & 1,
                                      .layout = (enum layout)layout,
                                      .values = (enum values)values};
                full_counts(s, &x);
                run(s, &x);
                x.pass_count = 1;
                x.count[x.vectors - 1] = 1 + below(s, s->row->lanes);
                run(s, &x);
            }
}

/* A chain cut anywhere and continued in c, and rows taken in any portions: the same bits. */
static void any_split(struct subject *s)
{
    for (int i = 0; i < (s->quick ? 10 : 100); i++) {
        struct gemm_case x = {.m = 2 + below(s, MAX_M - 1),
                              .vectors = 1 + below(s, s->row->vectors),
                              .k = 2 + below(s, MAX_K - 1),
                              .accumulate = 1,
                              .layout = K_CONTIGUOUS_PADDED};
        full_counts(s, &x);
        label(s, "m %d k %d vectors %d in parts", x.m, x.k, x.vectors);
        fill_operands(s, &x);
        struct headway_gemm g = describe(&x);
        scalar_gemm(s->row, &g);
        const int w = s->row->lanes * x.vectors, k = 1 + below(s, x.k - 1),
                  m = 1 + below(s, x.m - 1);
        for (int part = 0; part < 4; part++) {
            const int later = part & 1, lower = part >> 1;
            struct headway_gemm half = g;
            half.m = lower ? x.m - m : m;
            half.k = later ? x.k - k : k;
            half.a = g.a + (lower ? m : 0) * g.a_row + (later ? k : 0) * g.a_col;
            half.b = g.b + (ptrdiff_t)(later ? k : 0) * w;
            for (int v = 0; v < x.vectors; v++)
                half.c[v] = o.c[v] + (lower ? m : 0) * g.c_row;
            s->row->gemm(&half);
        }
        for (int v = 0; v < x.vectors; v++)
            check_bits(o.c[v], o.expected[v], o.c_count[v], s->label);
    }
}

void check_gemm(struct subject *s)
{
    every_size(s);
    every_tail(s);
    every_form(s);
    any_split(s);
}
