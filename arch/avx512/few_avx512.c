/* Few lanes for AVX-512, on rows as they are stored.
 *
 * dot: lanes over 16 keys. 32 bytes of each of them are transposed as 32-bit words, which costs one
 * word of two halves or four bytes what it costs one float, and widened after that. A processor
 * that loads one vector a cycle, broadcasts included, is kept busy by 32 keys that share them.
 * mix: lanes over the columns of the values; the sums of 16 keys stay in registers, and in the first
 * level of the cache between one 16 keys and the next, so that a row of values is read in one go.
 */
#include <immintrin.h>
#include <string.h>

#include "cpu/kernels.h"
#include "cpu/unroll.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#define LANES 16
#define STEP 32 /* bytes of a key at a time */
#define WORDS 8 /* of 32 bits in a step */
#define LINE 64 /* of the cache */

/* Bounds by constants: clang 14 leaves sums in memory where a parameter is the loop's bound. */
#define EACH(i, most, count) UNROLL for (int i = 0; i < most; i++) if (i < count)

headway_dot_fn headway_dot_avx512;
headway_mix_fn headway_mix_avx512;
headway_dot_fn headway_dot_scalar;
headway_mix_fn headway_mix_scalar;

/* 4 x 4 words within each 128 bits. */
INLINE void turn(__m512 *t)
{
    const __m512 a = _mm512_unpacklo_ps(t[0], t[1]), b = _mm512_unpackhi_ps(t[0], t[1]);
    const __m512 c = _mm512_unpacklo_ps(t[2], t[3]), d = _mm512_unpackhi_ps(t[2], t[3]);
    t[0] = _mm512_shuffle_ps(a, c, 0x44);
    t[1] = _mm512_shuffle_ps(a, c, 0xEE);
    t[2] = _mm512_shuffle_ps(b, d, 0x44);
    t[3] = _mm512_shuffle_ps(b, d, 0xEE);
}

INLINE __m512 two_rows(const char *low, const char *high)
{
    const __m512 x = _mm512_castps256_ps512(_mm256_loadu_ps((const float *)(const void *)low));
    return _mm512_insertf32x8(x, _mm256_loadu_ps((const float *)(const void *)high), 1);
}

/* Word c of lane j of words[c]: byte at + 4 c of row[j]. */
INLINE void gather(__m512 *words, const void *const *row, int64_t at)
{
    __m512 x[4], y[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = two_rows((const char *)row[i] + at, (const char *)row[4 + i] + at);
        y[i] = two_rows((const char *)row[8 + i] + at, (const char *)row[12 + i] + at);
    }
    turn(x);
    turn(y);
    UNROLL
    for (int i = 0; i < 4; i++) {
        words[i] = _mm512_shuffle_f32x4(x[i], y[i], 0x88);
        words[4 + i] = _mm512_shuffle_f32x4(x[i], y[i], 0xDD);
    }
}

/* scores[j * width + l], l < width, of 16 keys of which `live` are there. */
INLINE void store_scores(const int n, float *scores, int width, int live, __m512 *acc)
{
    __m512 t[HEADWAY_MAX_FEW];
    EACH(l, HEADWAY_MAX_FEW, HEADWAY_MAX_FEW)
        t[l] = l < n ? acc[l] : _mm512_setzero_ps();
    turn(t);
    turn(t + 4);
    UNROLL
    for (int i = 0; i < 4; i++) {
        UNROLL
        for (int q = 0; q < 4; q++) {
            const int j = 4 * q + i;
            float *to = scores + (ptrdiff_t)j * width;
            if (j >= live)
                continue;
            _mm_storeu_ps(to, _mm512_extractf32x4_ps(t[i], q));
            if (width > 4)
                _mm_storeu_ps(to + 4, _mm512_extractf32x4_ps(t[4 + i], q));
            for (int l = 8; l < width; l += 4)
                _mm_storeu_ps(to + l, _mm_setzero_ps());
        }
    }
}

/* Keys j .. of `groups` times 16, of which `live` are there; rows and ahead have all. */
INLINE void dot_keys(const int n, const int groups, const struct headway_dot *g, int j, int live,
                     const void *const *row, const void *const *ahead)
{
    __m512 acc[2][HEADWAY_MAX_FEW];
    const int64_t bytes = g->k * 4;
    const int width = g->width;
    const float *query = g->query;
    int64_t at = 0;

    EACH(i, 2, groups)
        EACH(l, HEADWAY_MAX_FEW, n)
            acc[i][l] = _mm512_setzero_ps();
    for (; at + STEP <= bytes; at += STEP) {
        __m512 words[2][WORDS];
        if (ahead)
            UNROLL
            for (int i = 0; i < 8 * groups; i++)
                _mm_prefetch((const char *)ahead[at / STEP % 2 * 8 * groups + i] + at, _MM_HINT_T1);
        EACH(i, 2, groups)
            gather(words[i], row + i * LANES, at);
        EACH(c, WORDS, WORDS) {
            EACH(l, HEADWAY_MAX_FEW, n) {
                const __m512 x = _mm512_set1_ps(query[l]);
                EACH(i, 2, groups)
                    acc[i][l] = _mm512_fmadd_ps(words[i][c], x, acc[i][l]);
            }
            query += width;
        }
    }
    if (at < bytes) {
        float rest[2][WORDS][LANES];
        EACH(i, 2, groups)
            for (int64_t p = 0; p < (bytes - at) / 4; p++)
                for (int r = 0; r < LANES; r++)
                    rest[i][p][r] = ((const float *)row[i * LANES + r])[at / 4 + p];
        for (int64_t p = 0; p < (bytes - at) / 4; p++, query += width)
            EACH(l, HEADWAY_MAX_FEW, n) {
                const __m512 x = _mm512_set1_ps(query[l]);
                EACH(i, 2, groups)
                    acc[i][l] = _mm512_fmadd_ps(_mm512_loadu_ps(rest[i][p]), x, acc[i][l]);
            }
    }
    EACH(i, 2, groups)
        store_scores(n, g->scores + (ptrdiff_t)(j + i * LANES) * width, width, live - i * LANES,
                     acc[i]);
}

/* The last rows of a block, the last of all as often as makes 16 of them. */
INLINE void fill_up(const void **to, const void *const *from, int count)
{
    for (int i = 0; i < LANES; i++)
        to[i] = from[i < count ? i : count - 1];
}

INLINE void dot_lanes(const int n, const struct headway_dot *g)
{
    const struct headway_rows *keys = g->keys;
    int j = 0;

    if (n <= 4)
        for (; j + 2 * LANES <= keys->count; j += 2 * LANES)
            dot_keys(n, 2, g, j, 2 * LANES, keys->row + j, keys->ahead ? keys->ahead + j : NULL);
    for (; j < keys->count; j += LANES) {
        const int live = keys->count - j < LANES ? keys->count - j : LANES;
        const void *row[LANES], *ahead[LANES];
        fill_up(row, keys->row + j, live);
        if (keys->ahead)
            fill_up(ahead, keys->ahead + j, live);
        dot_keys(n, 1, g, j, live, row, keys->ahead ? ahead : NULL);
    }
}

void headway_dot_avx512(const struct headway_dot *g)
{
    if (g->keys->storage != HEADWAY_STORED_F32) {
        headway_dot_scalar(g);
        return;
    }
    switch (g->n) {
    case 8: dot_lanes(8, g); break;
    case 7: dot_lanes(7, g); break;
    case 6: dot_lanes(6, g); break;
    case 5: dot_lanes(5, g); break;
    case 4: dot_lanes(4, g); break;
    case 3: dot_lanes(3, g); break;
    case 2: dot_lanes(2, g); break;
    default: dot_lanes(1, g); break;
    }
}

/* Columns d .. of `vectors` vectors, the last of which are masked, of keys j .. end - 1. */
INLINE void mix_columns(const int n, const int vectors, const struct headway_mix *g, int64_t d,
                        const __mmask16 *mask, int j, int end)
{
    __m512 acc[HEADWAY_MAX_FEW][8];
    const struct headway_rows *values = g->values;

    EACH(l, HEADWAY_MAX_FEW, n) {
        const float *sum = g->sum + l * g->pitch + d;
        EACH(v, 8, vectors)
            acc[l][v] = j == 0 && g->fresh ? _mm512_setzero_ps()
                                           : _mm512_maskz_loadu_ps(mask[v], sum + v * LANES);
        if (j == 0 && !g->fresh)
            EACH(v, 8, vectors)
                acc[l][v] = _mm512_mul_ps(acc[l][v], _mm512_set1_ps(g->rescale[l]));
    }
    for (; j < end; j++) {
        const float *value = (const float *)values->row[j] + d;
        const float *weights = g->weights + (ptrdiff_t)j * g->width;
        __m512 x[8];
        if (values->ahead)
            EACH(v, 8, vectors)
                _mm_prefetch((const char *)((const float *)values->ahead[j] + d + v * LANES),
                             _MM_HINT_T1);
        EACH(v, 8, vectors)
            x[v] = _mm512_maskz_loadu_ps(mask[v], value + v * LANES);
        EACH(l, HEADWAY_MAX_FEW, n) {
            const __m512 weight = _mm512_set1_ps(weights[l]);
            EACH(v, 8, vectors)
                acc[l][v] = _mm512_fmadd_ps(x[v], weight, acc[l][v]);
        }
    }
    EACH(l, HEADWAY_MAX_FEW, n) {
        float *sum = g->sum + l * g->pitch + d;
        EACH(v, 8, vectors)
            _mm512_mask_storeu_ps(sum + v * LANES, mask[v], acc[l][v]);
    }
}

INLINE void mix_lanes(const int n, const struct headway_mix *g)
{
    const int vectors = n <= 2 ? 8 : n <= 6 ? 4 : 2;
    const int count = g->values->count;

    for (int j = 0; j < count; j += LANES) {
        const int end = count - j < LANES ? count : j + LANES;
        for (int64_t d = 0; d < g->m; d += vectors * LANES) {
            __mmask16 mask[8];
            for (int v = 0; v < vectors; v++) {
                const int64_t rest = g->m - d - v * LANES;
                mask[v] = (__mmask16)(rest >= LANES ? 0xFFFF : rest <= 0 ? 0 : (1u << rest) - 1);
            }
            mix_columns(n, vectors, g, d, mask, j, end);
        }
    }
}

void headway_mix_avx512(const struct headway_mix *g)
{
    if (g->values->storage != HEADWAY_STORED_F32) {
        headway_mix_scalar(g);
        return;
    }
    switch (g->n) {
    case 8: mix_lanes(8, g); break;
    case 7: mix_lanes(7, g); break;
    case 6: mix_lanes(6, g); break;
    case 5: mix_lanes(5, g); break;
    case 4: mix_lanes(4, g); break;
    case 3: mix_lanes(3, g); break;
    case 2: mix_lanes(2, g); break;
    default: mix_lanes(1, g); break;
    }
}
