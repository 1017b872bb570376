/* GEMM for NEON.
 *
 * Register map: the tile's sums in 20 of the 32 registers (5 rows x 4 vectors) or 24 (8 x 3, 12
 * x 2; 12 in 12 x 1), one line of b in up to 4, and elements of a in what is left: a scalar
 * load fills lane 0, and the multiply-add by element takes it from there, so nothing is
 * broadcast. Twenty chains cover a latency of 4 cycles on up to five units, and four vectors by
 * five rows need 7 loads, b's in pairs, for 20 multiply-adds. A sixth row would fit too, but
 * GCC 12 loads all of a's elements first and then lacks two registers. */
#include "cpu/kernels.h"
#include "cpu/unroll.h"

#include <arm_neon.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

enum { LANES = 4, MAX_VECTORS = 4, MAX_ROWS = 12 };

headway_gemm_fn headway_gemm_neon;

/* Rows i .. i+rows-1 of the tile, all lanes of c, rows and vectors being constants where this
 * is inlined. */
INLINE void tile(const struct headway_gemm *g, int64_t i, const int rows, const int vectors)
{
    const ptrdiff_t a_row = g->a_row, a_col = g->a_col, c_row = g->c_row;
    float32x4_t sum[MAX_ROWS][MAX_VECTORS];

    UNROLL for (int v = 0; v < vectors; v++) {
        if (!g->accumulate) {
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][v] = vdupq_n_f32(0.0f);
            continue;
        }
        const float *c = g->c[v] + i * c_row;
        UNROLL for (int r = 0; r < rows; r++)
            sum[r][v] = vld1q_f32(c + r * c_row);
        if (g->scale) {
            const float32x4_t scale = vld1q_f32(g->scale + v * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][v] = vmulq_f32(sum[r][v], scale);
        }
    }

    const float *a[MAX_ROWS];
    UNROLL for (int r = 0; r < rows; r++)
        a[r] = g->a + (i + r) * a_row;
    const float *b = g->b;
    for (int64_t p = g->k; p > 0; p--) {
        float32x4_t line[MAX_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++)
            line[v] = vld1q_f32(b + v * LANES);
        b += vectors * LANES;
        UNROLL for (int r = 0; r < rows; r++) {
            const float x = *a[r];
            a[r] += a_col;
            UNROLL for (int v = 0; v < vectors; v++)
                sum[r][v] = vfmaq_n_f32(sum[r][v], line[v], x);
        }
    }

    UNROLL for (int v = 0; v < vectors; v++) {
        if (g->bias) {
            const float32x4_t bias = vld1q_f32(g->bias + v * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][v] = vaddq_f32(sum[r][v], bias);
        }
        if (g->highest) {
            float32x4_t highest = vld1q_f32(g->highest + v * LANES);
            float32x4_t lowest = vld1q_f32(g->lowest + v * LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                highest = vbslq_f32(vcgtq_f32(sum[r][v], highest), sum[r][v], highest);
                lowest = vbslq_f32(vcltq_f32(sum[r][v], lowest), sum[r][v], lowest);
            }
            vst1q_f32(g->highest + v * LANES, highest);
            vst1q_f32(g->lowest + v * LANES, lowest);
        }
        float *c = g->c[v] + i * c_row;
        UNROLL for (int r = 0; r < rows; r++)
            vst1q_f32(c + r * c_row, sum[r][v]);
    }
}

static void rows_of_four(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 5: tile(g, i, 5, 4); break;
    case 4: tile(g, i, 4, 4); break;
    case 3: tile(g, i, 3, 4); break;
    case 2: tile(g, i, 2, 4); break;
    default: tile(g, i, 1, 4); break;
    }
}

static void rows_of_three(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 8: tile(g, i, 8, 3); break;
    case 7: tile(g, i, 7, 3); break;
    case 6: tile(g, i, 6, 3); break;
    case 5: tile(g, i, 5, 3); break;
    case 4: tile(g, i, 4, 3); break;
    case 3: tile(g, i, 3, 3); break;
    case 2: tile(g, i, 2, 3); break;
    default: tile(g, i, 1, 3); break;
    }
}

static void rows_of_two(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 12: tile(g, i, 12, 2); break;
    case 11: tile(g, i, 11, 2); break;
    case 10: tile(g, i, 10, 2); break;
    case 9: tile(g, i, 9, 2); break;
    case 8: tile(g, i, 8, 2); break;
    case 7: tile(g, i, 7, 2); break;
    case 6: tile(g, i, 6, 2); break;
    case 5: tile(g, i, 5, 2); break;
    case 4: tile(g, i, 4, 2); break;
    case 3: tile(g, i, 3, 2); break;
    case 2: tile(g, i, 2, 2); break;
    default: tile(g, i, 1, 2); break;
    }
}

static void rows_of_one(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 12: tile(g, i, 12, 1); break;
    case 11: tile(g, i, 11, 1); break;
    case 10: tile(g, i, 10, 1); break;
    case 9: tile(g, i, 9, 1); break;
    case 8: tile(g, i, 8, 1); break;
    case 7: tile(g, i, 7, 1); break;
    case 6: tile(g, i, 6, 1); break;
    case 5: tile(g, i, 5, 1); break;
    case 4: tile(g, i, 4, 1); break;
    case 3: tile(g, i, 3, 1); break;
    case 2: tile(g, i, 2, 1); break;
    default: tile(g, i, 1, 1); break;
    }
}

static void some_rows(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (g->vectors) {
    case 4: rows_of_four(g, i, rows); break;
    case 3: rows_of_three(g, i, rows); break;
    case 2: rows_of_two(g, i, rows); break;
    default: rows_of_one(g, i, rows); break;
    }
}

/* Rows of which some lanes are not c's go through a tile of their own. */
static void some_rows_and_lanes(const struct headway_gemm *g, int64_t i, int rows)
{
    float edge[MAX_VECTORS][MAX_ROWS * LANES] = {{0}};
    struct headway_gemm inner = *g;

    inner.a += i * g->a_row;
    inner.c_row = LANES;
    for (int v = 0; v < g->vectors; v++) {
        inner.c[v] = edge[v];
        if (g->accumulate)
            for (int r = 0; r < rows; r++)
                for (int l = 0; l < g->count[v]; l++)
                    edge[v][r * LANES + l] = g->c[v][(i + r) * g->c_row + l];
    }
    some_rows(&inner, 0, rows);
    for (int v = 0; v < g->vectors; v++)
        for (int r = 0; r < rows; r++)
            for (int l = 0; l < g->count[v]; l++)
                g->c[v][(i + r) * g->c_row + l] = edge[v][r * LANES + l];
}

void headway_gemm_neon(const struct headway_gemm *g)
{
    static const int most_rows[] = {0, 12, 12, 8, 5};
    const int most = most_rows[g->vectors];
    int whole = 1;

    for (int v = 0; v < g->vectors && g->count; v++)
        whole &= g->count[v] >= LANES;
    for (int64_t i = 0; i < g->m;) {
        const int64_t left = g->m - i;
        /* The last two tiles share what is left: two of middling size have more chains than a full
         * one and a stub. */
        const int rows = (int)(left <= most ? left : left < 2 * most ? (left + 1) / 2 : most);
        if (whole)
            some_rows(g, i, rows);
        else
            some_rows_and_lanes(g, i, rows);
        i += rows;
    }
}
