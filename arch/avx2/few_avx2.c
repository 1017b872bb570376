/* Few lanes for AVX2, FMA and F16C.
 *
 * dot: lanes are keys. Sixteen bytes of each of 16 keys are transposed in dwords and then widened,
 * so that an element of 16 or 8 bits costs a half or a quarter of the shuffles. Up to four queries
 * a pass have two chains each: eight hide the multiply-add's latency. Eight sums, eight dwords and
 * a query are one register too many, which is cheaper than to transpose for each half of the sums.
 *
 * mix: lanes are elements of a value. Sixteen values at a time are read whole, as many columns side
 * by side as give four chains at least. */
#include "cpu/few.h"

#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { LANES = 8, KEYS = HEADWAY_FEW_KEYS, GROUPS = KEYS / LANES, DWORDS = 4 };
enum { PASS = 4, MIX_PASS = 6 }; /* the most lanes at a time */

headway_dot_fn headway_dot_avx2;
headway_mix_fn headway_mix_avx2;

/* Blocks of 4 x 4 within the 128-bit halves. */
INLINE void transpose_halves(__m256 x[4])
{
    const __m256 a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
    const __m256 c = _mm256_unpacklo_ps(x[2], x[3]), d = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(a, c, 0x44);
    x[1] = _mm256_shuffle_ps(a, c, 0xee);
    x[2] = _mm256_shuffle_ps(b, d, 0x44);
    x[3] = _mm256_shuffle_ps(b, d, 0xee);
}

/* Sixteen bytes of each of eight rows: lane j of x[i] is dword i of row j. Half floats leave their
 * conversion in another order, for which the rows are taken in one that makes up for it. */
INLINE void load_dwords(__m256 x[DWORDS], const char *const *row, ptrdiff_t at,
                        const enum headway_storage storage)
{
    static const int lows[2][DWORDS] = {{0, 1, 2, 3}, {0, 1, 4, 5}};
    static const int highs[2][DWORDS] = {{4, 5, 6, 7}, {2, 3, 6, 7}};
    const int order = storage == HEADWAY_STORED_F16;

    UNROLL for (int i = 0; i < DWORDS; i++) {
        const __m128 low = _mm_loadu_ps((const float *)(const void *)(row[lows[order][i]] + at));
        const __m128 high = _mm_loadu_ps((const float *)(const void *)(row[highs[order][i]] + at));
        x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }
    transpose_halves(x);
}

/* The elements of a dword of eight rows, in order; scale is for I8. */
INLINE void widen_dword(__m256 value[4], __m256 dword, const float *scale,
                        const enum headway_storage storage)
{
    const __m256i bits = _mm256_castps_si256(dword);

    if (storage == HEADWAY_STORED_F32) {
        value[0] = dword;
    } else if (storage == HEADWAY_STORED_BF16) {
        const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
        value[0] = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
        value[1] = _mm256_castsi256_ps(_mm256_and_si256(bits, odd));
    } else if (storage == HEADWAY_STORED_F16) {
        const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(bits));
        const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1));
        value[0] = _mm256_shuffle_ps(low, high, 0x88);
        value[1] = _mm256_shuffle_ps(low, high, 0xdd);
    } else {
        UNROLL for (int b = 0; b < 4; b++) {
            const __m256i top = b < 3 ? _mm256_slli_epi32(bits, 24 - 8 * b) : bits;
            const __m256 whole = _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
            value[b] = _mm256_mul_ps(whole, _mm256_loadu_ps(scale));
        }
    }
}

/* sums[l][j] = the product of row j and query l, l < n. */
INLINE void dot(float (*sums)[KEYS], const struct headway_few_keys *keys, int64_t k,
                const float *query, int width, const int n, const enum headway_storage storage)
{
    const int bytes = headway_few_bytes(storage), parts = (int)sizeof(float) / bytes;
    __m256 sum[PASS][GROUPS];
    int64_t p = 0;

    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < GROUPS; v++)
            sum[l][v] = _mm256_setzero_ps();
    for (; p + DWORDS * parts <= k; p += DWORDS * parts) {
        __m256 dword[GROUPS][DWORDS];
        if (keys->ahead) {
            /* A line of each key in the time of four steps, a few at a time. */
            const char *const *some = keys->ahead + p * bytes % HEADWAY_FEW_LINE_BYTES / DWORDS;
            UNROLL for (int j = 0; j < KEYS / DWORDS; j++)
                _mm_prefetch(some[j] + p * bytes, _MM_HINT_T1);
        }
        UNROLL for (int v = 0; v < GROUPS; v++)
            load_dwords(dword[v], keys->row + v * LANES, p * bytes, storage);
        UNROLL for (int i = 0; i < DWORDS; i++) {
            __m256 key[GROUPS][4];
            UNROLL for (int v = 0; v < GROUPS; v++)
                widen_dword(key[v], dword[v][i],
                            storage == HEADWAY_STORED_I8 ? keys->scale + v * LANES : NULL,
                            storage);
            UNROLL for (int c = 0; c < parts; c++, query += width)
                UNROLL for (int l = 0; l < n; l++) {
                    const __m256 x = _mm256_broadcast_ss(query + l);
                    UNROLL for (int v = 0; v < GROUPS; v++)
                        sum[l][v] = _mm256_fmadd_ps(key[v][c], x, sum[l][v]);
                }
        }
    }
    for (; p < k; p++, query += width) {
        float key[KEYS];
        headway_few_column(key, keys, p, storage);
        UNROLL for (int l = 0; l < n; l++)
            UNROLL for (int v = 0; v < GROUPS; v++)
                sum[l][v] = _mm256_fmadd_ps(_mm256_loadu_ps(key + v * LANES),
                                            _mm256_broadcast_ss(query + l), sum[l][v]);
    }
    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < GROUPS; v++)
            _mm256_storeu_ps(sums[l] + v * LANES, sum[l][v]);
}

INLINE void dot_lanes(float (*sums)[KEYS], const struct headway_few_keys *keys, int64_t k,
                      const float *query, int width, int n, const enum headway_storage storage)
{
    switch (n) {
    case 1: dot(sums, keys, k, query, width, 1, storage); break;
    case 2: dot(sums, keys, k, query, width, 2, storage); break;
    case 3: dot(sums, keys, k, query, width, 3, storage); break;
    default: dot(sums, keys, k, query, width, 4, storage); break;
    }
}

static void dot_any(float (*sums)[KEYS], const struct headway_few_keys *keys,
                    const struct headway_dot *g, int lane, int n)
{
    const float *query = g->query + lane;

    switch (g->keys->storage) {
    case HEADWAY_STORED_F16:
        dot_lanes(sums, keys, g->k, query, g->width, n, HEADWAY_STORED_F16);
        break;
    case HEADWAY_STORED_BF16:
        dot_lanes(sums, keys, g->k, query, g->width, n, HEADWAY_STORED_BF16);
        break;
    case HEADWAY_STORED_I8:
        dot_lanes(sums, keys, g->k, query, g->width, n, HEADWAY_STORED_I8);
        break;
    default: dot_lanes(sums, keys, g->k, query, g->width, n, HEADWAY_STORED_F32); break;
    }
}

/* scores[j * width + l] = sums[l][j] for j < count, l < HEADWAY_MAX_FEW and below width, +0 beyond.
 * A width is a multiple of four. */
static void write_scores(float *scores, float (*sums)[KEYS], int count, int width)
{
    for (int j = 0; j < count; j += LANES, scores += (ptrdiff_t)LANES * width) {
        __m256 a[4], b[4];
        UNROLL for (int l = 0; l < 4; l++) {
            a[l] = _mm256_loadu_ps(sums[l] + j);
            b[l] = _mm256_loadu_ps(sums[l + 4] + j);
        }
        transpose_halves(a);
        transpose_halves(b);
        UNROLL for (int i = 0; i < LANES; i++) {
            if (j + i >= count)
                continue;
            const __m256 first = a[i % 4], second = b[i % 4];
            float *line = scores + (ptrdiff_t)i * width;
            _mm_storeu_ps(line, i < 4 ? _mm256_castps256_ps128(first)
                                      : _mm256_extractf128_ps(first, 1));
            if (width > 4)
                _mm_storeu_ps(line + 4, i < 4 ? _mm256_castps256_ps128(second)
                                              : _mm256_extractf128_ps(second, 1));
            for (int l = HEADWAY_MAX_FEW; l < width; l += 4)
                _mm_storeu_ps(line + l, _mm_setzero_ps());
        }
    }
}

static void dot_keys(const struct headway_dot *g, const struct headway_few_keys *keys, int first,
                     int count)
{
    float sums[HEADWAY_MAX_FEW][KEYS] = {{0}};

    for (int lane = 0; lane < g->n; lane += PASS)
        dot_any(sums + lane, keys, g, lane, g->n - lane < PASS ? g->n - lane : PASS);
    write_scores(g->scores + (ptrdiff_t)first * g->width, sums, count, g->width);
}

void headway_dot_avx2(const struct headway_dot *g)
{
    headway_few_dot(g, dot_keys);
}

INLINE __m256 value_at(const void *row, int64_t d, float scale, const enum headway_storage storage)
{
    if (storage == HEADWAY_STORED_F32)
        return _mm256_loadu_ps((const float *)row + d);
    if (storage == HEADWAY_STORED_I8) {
        const __m128i x = _mm_loadl_epi64((const void *)((const int8_t *)row + d));
        return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_set1_ps(scale));
    }
    const __m128i x = _mm_loadu_si128((const void *)((const uint16_t *)row + d));
    if (storage == HEADWAY_STORED_F16)
        return _mm256_cvtph_ps(x);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* The part of a mix: count values from `first` on, n lanes from `lane` on, `columns` vectors of
 * elements from d on. */
INLINE void mix(const struct headway_mix *g, int first, int count, int lane, int64_t d, const int n,
                const int columns, const enum headway_storage storage)
{
    const struct headway_rows *values = g->values;
    const void *const *row = values->row + first;
    const void *const *ahead = values->ahead ? values->ahead + first : NULL;
    const float *weights = g->weights + (ptrdiff_t)first * g->width + lane;
    const int bytes = columns * LANES * headway_few_bytes(storage);
    const ptrdiff_t at = d * headway_few_bytes(storage);
    __m256 sum[MIX_PASS][4];

    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < columns; v++) {
            const float *old = g->sum + (lane + l) * g->pitch + d + v * LANES;
            if (first > 0)
                sum[l][v] = _mm256_loadu_ps(old);
            else if (g->fresh)
                sum[l][v] = _mm256_setzero_ps();
            else
                sum[l][v] =
                    _mm256_mul_ps(_mm256_loadu_ps(old), _mm256_broadcast_ss(g->rescale + lane + l));
        }
    const int ask = ahead && at % HEADWAY_FEW_LINE_BYTES == 0;
    for (int j = 0; j < count; j++, weights += g->width) {
        const float scale = storage == HEADWAY_STORED_I8 ? values->scale[first + j] : 1.0f;
        __m256 value[4];
        if (ask)
            UNROLL for (int b = 0; b < bytes; b += HEADWAY_FEW_LINE_BYTES)
                _mm_prefetch((const char *)ahead[j] + at + b, _MM_HINT_T1);
        UNROLL for (int v = 0; v < columns; v++)
            value[v] = value_at(row[j], d + v * LANES, scale, storage);
        UNROLL for (int l = 0; l < n; l++) {
            const __m256 x = _mm256_broadcast_ss(weights + l);
            UNROLL for (int v = 0; v < columns; v++)
                sum[l][v] = _mm256_fmadd_ps(value[v], x, sum[l][v]);
        }
    }
    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < columns; v++)
            _mm256_storeu_ps(g->sum + (lane + l) * g->pitch + d + v * LANES, sum[l][v]);
}

/* All whole vectors of elements; returns where they end. */
INLINE int64_t mix_vectors(const struct headway_mix *g, int first, int count, int lane, const int n,
                           const enum headway_storage storage)
{
    const int columns = n <= 2 ? 4 : 2;
    int64_t d = 0;

    for (; d + columns * LANES <= g->m; d += columns * LANES)
        mix(g, first, count, lane, d, n, columns, storage);
    for (; d + LANES <= g->m; d += LANES)
        mix(g, first, count, lane, d, n, 1, storage);
    return d;
}

INLINE int64_t mix_lanes(const struct headway_mix *g, int first, int count, int lane, int n,
                         const enum headway_storage storage)
{
    switch (n) {
    case 1: return mix_vectors(g, first, count, lane, 1, storage);
    case 2: return mix_vectors(g, first, count, lane, 2, storage);
    case 3: return mix_vectors(g, first, count, lane, 3, storage);
    case 4: return mix_vectors(g, first, count, lane, 4, storage);
    case 5: return mix_vectors(g, first, count, lane, 5, storage);
    default: return mix_vectors(g, first, count, lane, 6, storage);
    }
}

static int64_t mix_any(const struct headway_mix *g, int first, int count, int lane, int n)
{
    switch (g->values->storage) {
    case HEADWAY_STORED_F16: return mix_lanes(g, first, count, lane, n, HEADWAY_STORED_F16);
    case HEADWAY_STORED_BF16: return mix_lanes(g, first, count, lane, n, HEADWAY_STORED_BF16);
    case HEADWAY_STORED_I8: return mix_lanes(g, first, count, lane, n, HEADWAY_STORED_I8);
    default: return mix_lanes(g, first, count, lane, n, HEADWAY_STORED_F32);
    }
}

void headway_mix_avx2(const struct headway_mix *g)
{
    /* Seven or eight lanes go in two passes. */
    const int most = g->n <= MIX_PASS ? g->n : PASS;
    int64_t done = 0;

    for (int first = 0; first < g->values->count; first += KEYS) {
        const int left = g->values->count - first;
        for (int lane = 0; lane < g->n; lane += most)
            done = mix_any(g, first, left < KEYS ? left : KEYS, lane,
                           g->n - lane < most ? g->n - lane : most);
    }
    headway_few_mix_rest(g, done);
}
