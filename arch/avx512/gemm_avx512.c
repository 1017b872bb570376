/* GEMM tiles for AVX-512: the lanes run over the tile's columns, one broadcast of `a` per row and
 * step.
 *
 * Register map of the widest tile, 6 rows x 4 vectors of 16:
 *   zmm 0-23   acc[row][vector], one chain of fused multiply-adds each
 *   zmm 24-27  a line of the panel b
 *   zmm 28     a(row, p), broadcast
 * Twenty-four chains hide the latency of four to five cycles at one or two multiply-adds a cycle,
 * and 64 columns divide the widths and lengths of real models (64, 384, 768, 1024) without a rest.
 * Narrower tiles take more rows for the same reason.
 *
 * With few rows the panel's way from memory is what takes time. One row alone does not keep the
 * hardware's prefetcher busy. Seven or eight would pass by the panel twice, and nothing would come
 * from memory during the second time: they take half of the panel's columns each time, whose lines
 * the hardware does not foresee. Both ask level 2 for lines ahead; the distances are measured.
 */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/unroll.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#if defined(__clang__)
#define UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

#define LANES 16
#define MAX_ROWS 12
#define AHEAD_OF_ONE_ROW 3072 /* bytes */
#define AHEAD_OF_HALVES 16384

/* Bounds by constants: clang 14 leaves sums in memory where a parameter is the loop's bound. */
#define EACH_ROW(r, rows) UNROLL for (int r = 0; r < MAX_ROWS; r++) if (r < rows)
#define EACH_VECTOR(v, vectors) \
    UNROLL for (int v = 0; v < HEADWAY_MAX_VECTORS; v++) if (v < vectors)

static inline __mmask16 tail_mask(const struct headway_gemm *g, int v)
{
    return (__mmask16)((1u << g->count[v]) - 1);
}

/* Rows i .. i + rows - 1 of a panel of `line` floats a step, asking for what lies `ahead` bytes
 * further on; rows to ahead are constants after inlining. */
INLINE void tile_of_line(const int rows, const int vectors, const int line, const int ahead,
                         const struct headway_gemm *g, int64_t i)
{
    __m512 acc[MAX_ROWS][HEADWAY_MAX_VECTORS];
    const ptrdiff_t a_row = g->a_row, a_col = g->a_col;
    const float *a = g->a + i * a_row;
    const float *b = g->b;

    if (g->accumulate) {
        EACH_ROW(r, rows) {
            EACH_VECTOR(v, vectors) {
                const float *c = g->c[v] + (i + r) * g->c_row;
                acc[r][v] = g->count ? _mm512_maskz_loadu_ps(tail_mask(g, v), c)
                                     : _mm512_loadu_ps(c);
            }
        }
        if (g->scale) {
            EACH_VECTOR(v, vectors) {
                const __m512 scale = _mm512_loadu_ps(g->scale + v * LANES);
                EACH_ROW(r, rows)
                    acc[r][v] = _mm512_mul_ps(acc[r][v], scale);
            }
        }
    } else {
        EACH_ROW(r, rows)
            EACH_VECTOR(v, vectors)
                acc[r][v] = _mm512_setzero_ps();
    }

    UNROLL_TWICE for (int64_t p = g->k; p > 0; p--) {
        __m512 columns[HEADWAY_MAX_VECTORS];
        EACH_VECTOR(v, vectors)
            columns[v] = _mm512_loadu_ps(b + v * LANES);
        if (ahead)
            EACH_VECTOR(v, vectors)
                _mm_prefetch((const char *)(b + v * LANES) + ahead, _MM_HINT_T1);
        EACH_ROW(r, rows) {
            const __m512 x = _mm512_set1_ps(a[r * a_row]);
            EACH_VECTOR(v, vectors)
                acc[r][v] = _mm512_fmadd_ps(x, columns[v], acc[r][v]);
        }
        a += a_col;
        b += line;
    }

    EACH_VECTOR(v, vectors) {
        float *c = g->c[v] + i * g->c_row;
        if (g->bias) {
            const __m512 bias = _mm512_loadu_ps(g->bias + v * LANES);
            EACH_ROW(r, rows)
                acc[r][v] = _mm512_add_ps(acc[r][v], bias);
        }
        if (g->highest) {
            __m512 highest = _mm512_loadu_ps(g->highest + v * LANES);
            __m512 lowest = _mm512_loadu_ps(g->lowest + v * LANES);
            EACH_ROW(r, rows) {
                highest = _mm512_max_ps(acc[r][v], highest);
                lowest = _mm512_min_ps(acc[r][v], lowest);
            }
            _mm512_storeu_ps(g->highest + v * LANES, highest);
            _mm512_storeu_ps(g->lowest + v * LANES, lowest);
        }
        if (g->count && g->count[v] < LANES) {
            const __mmask16 mask = tail_mask(g, v);
            EACH_ROW(r, rows)
                _mm512_mask_storeu_ps(c + r * g->c_row, mask, acc[r][v]);
        } else {
            EACH_ROW(r, rows)
                _mm512_storeu_ps(c + r * g->c_row, acc[r][v]);
        }
    }
}

INLINE void tile(const int rows, const int vectors, const struct headway_gemm *g, int64_t i)
{
    tile_of_line(rows, vectors, vectors * LANES, 0, g, i);
}

/* Seven or eight rows of two of four vectors. */
static void half_of_four(const struct headway_gemm *g)
{
    if (g->m == 8)
        tile_of_line(8, 2, 4 * LANES, AHEAD_OF_HALVES, g, 0);
    else
        tile_of_line(7, 2, 4 * LANES, AHEAD_OF_HALVES, g, 0);
}

static void halves_of_four(const struct headway_gemm *g)
{
    half_of_four(g);
    struct headway_gemm second = *g;
    second.b += 2 * LANES;
    second.c[0] = g->c[2];
    second.c[1] = g->c[3];
    if (g->count)
        second.count += 2;
    if (g->scale)
        second.scale += 2 * LANES;
    if (g->bias)
        second.bias += 2 * LANES;
    if (g->highest) {
        second.highest += 2 * LANES;
        second.lowest += 2 * LANES;
    }
    half_of_four(&second);
}

static void rows_of_four(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 6: tile(6, 4, g, i); break;
    case 5: tile(5, 4, g, i); break;
    case 4: tile(4, 4, g, i); break;
    case 3: tile(3, 4, g, i); break;
    case 2: tile(2, 4, g, i); break;
    default: tile_of_line(1, 4, 4 * LANES, AHEAD_OF_ONE_ROW, g, i); break;
    }
}

static void rows_of_three(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 8: tile(8, 3, g, i); break;
    case 7: tile(7, 3, g, i); break;
    case 6: tile(6, 3, g, i); break;
    case 5: tile(5, 3, g, i); break;
    case 4: tile(4, 3, g, i); break;
    case 3: tile(3, 3, g, i); break;
    case 2: tile(2, 3, g, i); break;
    default: tile(1, 3, g, i); break;
    }
}

static void rows_of_two(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 12: tile(12, 2, g, i); break;
    case 11: tile(11, 2, g, i); break;
    case 10: tile(10, 2, g, i); break;
    case 9: tile(9, 2, g, i); break;
    case 8: tile(8, 2, g, i); break;
    case 7: tile(7, 2, g, i); break;
    case 6: tile(6, 2, g, i); break;
    case 5: tile(5, 2, g, i); break;
    case 4: tile(4, 2, g, i); break;
    case 3: tile(3, 2, g, i); break;
    case 2: tile(2, 2, g, i); break;
    default: tile(1, 2, g, i); break;
    }
}

static void rows_of_one(const struct headway_gemm *g, int64_t i, int rows)
{
    switch (rows) {
    case 12: tile(12, 1, g, i); break;
    case 11: tile(11, 1, g, i); break;
    case 10: tile(10, 1, g, i); break;
    case 9: tile(9, 1, g, i); break;
    case 8: tile(8, 1, g, i); break;
    case 7: tile(7, 1, g, i); break;
    case 6: tile(6, 1, g, i); break;
    case 5: tile(5, 1, g, i); break;
    case 4: tile(4, 1, g, i); break;
    case 3: tile(3, 1, g, i); break;
    case 2: tile(2, 1, g, i); break;
    default: tile(1, 1, g, i); break;
    }
}

/* A line every fourth step of a tile, some 100 cycles: what is in flight leaves room for the tile's
 * own loads. */
static void prefetch_some(struct headway_ahead *ahead, int64_t steps, int rows, int64_t left)
{
    const int64_t lines = (ahead->count - ahead->at) * ((ahead->floats + LANES - 1) / (LANES));
    const int64_t most = ahead->all ? (lines * rows + left - 1) / left : steps / 4;
    for (int64_t asked = 0; ahead->at < ahead->count && asked < most; ahead->at++)
        for (int64_t p = 0; p < ahead->floats; p += LANES, asked++)
            _mm_prefetch((const char *)(ahead->lines[ahead->at] + p), _MM_HINT_T1);
}

headway_gemm_fn headway_gemm_avx512;

void headway_gemm_avx512(const struct headway_gemm *g)
{
    static const int most_rows[] = {12, 12, 8, 6};
    const int most = most_rows[g->vectors - 1];

    if (g->vectors == 4 && (g->m == 7 || g->m == 8)) {
        if (g->ahead)
            prefetch_some(g->ahead, g->k, (int)g->m, g->m);
        halves_of_four(g);
        return;
    }
    for (int64_t i = 0; i < g->m;) {
        const int64_t left = g->m - i;
        /* The last two tiles share what is left: two of middling size have more chains than a full
         * one and a stub. */
        const int rows = (int)(left <= most ? left : left < 2 * most ? (left + 1) / 2 : most);
        if (g->ahead)
            prefetch_some(g->ahead, g->k, rows, left);
        switch (g->vectors) {
        case 4: rows_of_four(g, i, rows); break;
        case 3: rows_of_three(g, i, rows); break;
        case 2: rows_of_two(g, i, rows); break;
        default: rows_of_one(g, i, rows); break;
        }
        i += rows;
    }
}
