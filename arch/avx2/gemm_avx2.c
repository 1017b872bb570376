/* GEMM for AVX2 and FMA.
 *
 * Register map: the tile's sums in 12 of the 16 registers (4 rows x 3 vectors, 6 x 2, 12 x 1), one
 * line of b in up to 3, one element of a, broadcast, in the last. Twelve independent chains cover
 * the multiply-add's latency (4 cycles x 2 units on Zen, 5 x 2 on Intel), and three vectors by four
 * rows need 7 loads for 12 multiply-adds, the fewest that fit. */
#include "cpu/kernels.h"
#include "cpu/unroll.h"

#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { LANES = 8, MAX_VECTORS = 3, MAX_ROWS = 12, ROWS_OF_A_POINTER = 3 };

headway_gemm_fn headway_gemm_avx2;

/* Rows i .. i+rows-1 of the tile, all lanes of c, rows and vectors being constants where this
 * is inlined. */
INLINE void tile(const struct headway_gemm *g, int64_t i, const int rows, const int vectors)
{
    const ptrdiff_t a_row = g->a_row, a_col = g->a_col, c_row = g->c_row;
    __m256 sum[MAX_ROWS][MAX_VECTORS];

    UNROLL for (int v = 0; v < vectors; v++) {
        if (!g->accumulate) {
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][v] = _mm256_setzero_ps();
            continue;
        }
        const float *c = g->c[v] + i * c_row;
        UNROLL for (int r = 0; r < rows; r++)
            sum[r][v] = _mm256_loadu_ps(c + r * c_row);
        if (g->scale) {
            const __m256 scale = _mm256_loadu_ps(g->scale + v * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][v] = _mm256_mul_ps(sum[r][v], scale);
        }
    }

    /* A pointer serves three rows: base, base + a_row, base + 2 a_row are addressing modes. */
    const float *a[MAX_ROWS / ROWS_OF_A_POINTER];
    UNROLL for (int r = 0; r < rows; r += ROWS_OF_A_POINTER)
        a[r / ROWS_OF_A_POINTER] = g->a + (i + r) * a_row;
    const float *b = g->b;
    for (int64_t p = g->k; p > 0; p--) {
        __m256 line[MAX_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++)
            line[v] = _mm256_loadu_ps(b + v * LANES);
        b += vectors * LANES;
        UNROLL for (int r = 0; r < rows; r++) {
            const int q = r / ROWS_OF_A_POINTER;
            const __m256 x = _mm256_broadcast_ss(a[q] + (r - q * ROWS_OF_A_POINTER) * a_row);
            UNROLL for (int v = 0; v < vectors; v++)
                sum[r][v] = _mm256_fmadd_ps(x, line[v], sum[r][v]);
        }
        UNROLL for (int r = 0; r < rows; r += ROWS_OF_A_POINTER)
            a[r / ROWS_OF_A_POINTER] += a_col;
    }

    UNROLL for (int v = 0; v < vectors; v++) {
        if (g->bias) {
            const __m256 bias = _mm256_loadu_ps(g->bias + v * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][v] = _mm256_add_ps(sum[r][v], bias);
        }
        if (g->highest) {
            __m256 highest = _mm256_loadu_ps(g->highest + v * LANES);
            __m256 lowest = _mm256_loadu_ps(g->lowest + v * LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                highest = _mm256_max_ps(sum[r][v], highest);
                lowest = _mm256_min_ps(sum[r][v], lowest);
            }
            _mm256_storeu_ps(g->highest + v * LANES, highest);
            _mm256_storeu_ps(g->lowest + v * LANES, lowest);
        }
        float *c = g->c[v] + i * c_row;
        UNROLL for (int r = 0; r < rows; r++)
            _mm256_storeu_ps(c + r * c_row, sum[r][v]);
    }
}

static void rows_of_three(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 4: tile(g, i, 4, 3); break;
    case 3: tile(g, i, 3, 3); break;
    case 2: tile(g, i, 2, 3); break;
    default: tile(g, i, 1, 3); break;
    }
}

static void rows_of_two(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
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
    case 3: rows_of_three(g, i, rows); break;
    case 2: rows_of_two(g, i, rows); break;
    default: rows_of_one(g, i, rows); break;
    }
}

/* Rows of which some lanes are not c's go through a tile of their own: masked stores are slow
 * on Zen, and emulators read the lanes that a masked load leaves out. */
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

/* A line every sixteenth step of a tile, some 100 cycles: what is in flight leaves room for the
 * tile's own loads. */
static void prefetch_some(struct headway_ahead *ahead, int64_t steps, int rows, int64_t left)
{
    const int64_t lines = (ahead->count - ahead->at) * ((ahead->floats + 2 * LANES - 1) / (2 * LANES));
    const int64_t most = ahead->all ? (lines * rows + left - 1) / left : steps / 16;
    for (int64_t asked = 0; ahead->at < ahead->count && asked < most; ahead->at++)
        for (int64_t p = 0; p < ahead->floats; p += 2 * LANES, asked++)
            _mm_prefetch((const char *)(ahead->lines[ahead->at] + p), _MM_HINT_T1);
}

void headway_gemm_avx2(const struct headway_gemm *g)
{
    const int most = MAX_ROWS / g->vectors;
    int whole = 1;

    for (int v = 0; v < g->vectors && g->count; v++)
        whole &= g->count[v] >= LANES;
    for (int64_t i = 0; i < g->m;) {
        const int64_t left = g->m - i;
        /* The last two tiles share what is left: two of middling size have more chains than a full
         * one and a stub. */
        const int rows = (int)(left <= most ? left : left < 2 * most ? (left + 1) / 2 : most);
        if (g->ahead)
            prefetch_some(g->ahead, g->k, rows, left);
        if (whole)
            some_rows(g, i, rows);
        else
            some_rows_and_lanes(g, i, rows);
        i += rows;
    }
}
