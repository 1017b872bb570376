/* Few lanes for AVX2, FMA and F16C.
 *
 * dot: lanes are keys. A piece of 16 keys by 16 elements is transposed and widened into a small array,
 * in dwords of what is stored, so that an element of 16 or 8 bits costs a half or a quarter of the
 * shuffles. Then up to four queries a pass have two chains each, eight in all: what hides the
 * multiply-add's latency, in 8 + 2 + 1 of the 16 registers.
 *
 * mix: lanes are elements of a value. Sixteen values at a time are read whole, as many columns side
 * by side as give eight chains or more. */
#include "cpu/unroll.h"
#include "cpu/widen.h"

#include <immintrin.h>
#include <stddef.h>

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "arch/avx2 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

enum { LANES = 8, KEYS = 16, PIECE = 16, PASS = 4, MIX_PASS = 6, LINE_BYTES = 64 };

headway_dot_fn headway_dot_avx2;
headway_mix_fn headway_mix_avx2;

INLINE int bytes_of(enum headway_storage storage)
{
    return storage == HEADWAY_STORED_F32 ? 4 : storage == HEADWAY_STORED_I8 ? 1 : 2;
}

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

/* Sixteen bytes of each of eight rows: element c of the row's lane is out[c * KEYS]. */
INLINE void stage_eight(float *out, const char *const *row, ptrdiff_t at, const float *scale,
                        const enum headway_storage storage)
{
    /* Half floats leave their conversion in this order. */
    static const int lows[2][4] = {{0, 1, 2, 3}, {0, 1, 4, 5}};
    static const int highs[2][4] = {{4, 5, 6, 7}, {2, 3, 6, 7}};
    const int order = storage == HEADWAY_STORED_F16;
    __m256 x[4];

    UNROLL for (int i = 0; i < 4; i++) {
        const __m128 low = _mm_loadu_ps((const float *)(const void *)(row[lows[order][i]] + at));
        const __m128 high = _mm_loadu_ps((const float *)(const void *)(row[highs[order][i]] + at));
        x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }
    transpose_halves(x);
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i bits = _mm256_castps_si256(x[i]);
        if (storage == HEADWAY_STORED_F32) {
            _mm256_storeu_ps(out + i * KEYS, x[i]);
        } else if (storage == HEADWAY_STORED_BF16) {
            const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
            _mm256_storeu_ps(out + 2 * i * KEYS, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
            _mm256_storeu_ps(out + (2 * i + 1) * KEYS,
                             _mm256_castsi256_ps(_mm256_and_si256(bits, odd)));
        } else if (storage == HEADWAY_STORED_F16) {
            const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(bits));
            const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1));
            _mm256_storeu_ps(out + 2 * i * KEYS, _mm256_shuffle_ps(low, high, 0x88));
            _mm256_storeu_ps(out + (2 * i + 1) * KEYS, _mm256_shuffle_ps(low, high, 0xdd));
        } else {
            const __m256 factor = _mm256_loadu_ps(scale);
            UNROLL for (int b = 0; b < 4; b++) {
                const __m256i top = b < 3 ? _mm256_slli_epi32(bits, 24 - 8 * b) : bits;
                const __m256 value = _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
                _mm256_storeu_ps(out + (4 * i + b) * KEYS, _mm256_mul_ps(value, factor));
            }
        }
    }
}

/* KEYS rows of which some may be the same one, so that there are always as many. */
struct some_keys {
    const char *row[KEYS], *ahead[KEYS];
    float scale[KEYS];
};

/* piece[c][j] = element p + c of row j, c < columns. */
INLINE void stage(float (*piece)[KEYS], const struct some_keys *keys, int64_t p, int columns,
                  const enum headway_storage storage)
{
    const int bytes = bytes_of(storage), step = (int)sizeof(__m128) / bytes;
    int c = 0;

    for (; c + step <= columns; c += step)
        UNROLL for (int j = 0; j < KEYS; j += LANES)
            stage_eight(piece[c] + j, keys->row + j, (p + c) * bytes, keys->scale + j, storage);
    for (; c < columns; c++)
        for (int j = 0; j < KEYS; j++)
            piece[c][j] = headway_widen_at(keys->row[j], p + c, storage, keys->scale[j]);
}

static void stage_any(float (*piece)[KEYS], const struct some_keys *keys, int64_t p, int columns,
                      enum headway_storage storage)
{
    switch (storage) {
    case HEADWAY_STORED_F16: stage(piece, keys, p, columns, HEADWAY_STORED_F16); break;
    case HEADWAY_STORED_BF16: stage(piece, keys, p, columns, HEADWAY_STORED_BF16); break;
    case HEADWAY_STORED_I8: stage(piece, keys, p, columns, HEADWAY_STORED_I8); break;
    default: stage(piece, keys, p, columns, HEADWAY_STORED_F32); break;
    }
}

INLINE void product(float (*sums)[KEYS], const float (*piece)[KEYS], int columns,
                    const float *query, int width, const int n)
{
    __m256 sum[PASS][KEYS / LANES];

    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < KEYS / LANES; v++)
            sum[l][v] = _mm256_loadu_ps(sums[l] + v * LANES);
    for (int c = 0; c < columns; c++, query += width) {
        __m256 key[KEYS / LANES];
        UNROLL for (int v = 0; v < KEYS / LANES; v++)
            key[v] = _mm256_loadu_ps(piece[c] + v * LANES);
        UNROLL for (int l = 0; l < n; l++) {
            const __m256 x = _mm256_broadcast_ss(query + l);
            UNROLL for (int v = 0; v < KEYS / LANES; v++)
                sum[l][v] = _mm256_fmadd_ps(key[v], x, sum[l][v]);
        }
    }
    UNROLL for (int l = 0; l < n; l++)
        UNROLL for (int v = 0; v < KEYS / LANES; v++)
            _mm256_storeu_ps(sums[l] + v * LANES, sum[l][v]);
}

static void product_any(float (*sums)[KEYS], const float (*piece)[KEYS], int columns,
                        const float *query, int width, int n)
{
    switch (n) {
    case 1: product(sums, piece, columns, query, width, 1); break;
    case 2: product(sums, piece, columns, query, width, 2); break;
    case 3: product(sums, piece, columns, query, width, 3); break;
    default: product(sums, piece, columns, query, width, 4); break;
    }
}

/* scores[j * width + l] = sums[l][j] for j < count, l < HEADWAY_MAX_FEW and below width, +0 beyond. A
 * width is a multiple of four. */
static void write_scores(float *scores, float (*sums)[KEYS], int count, int width)
{
    for (int j = 0; j < count; j += LANES) {
        __m256 a[4], b[4];
        UNROLL for (int l = 0; l < 4; l++) {
            a[l] = _mm256_loadu_ps(sums[l] + j);
            b[l] = _mm256_loadu_ps(sums[l + 4] + j);
        }
        transpose_halves(a);
        transpose_halves(b);
        for (int i = j; i < count && i < j + LANES; i++) {
            float *line = scores + (ptrdiff_t)i * width;
            const int high = (i - j) / 4;
            const __m256 x = a[i % 4], y = b[i % 4];
            _mm_storeu_ps(line, high ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x));
            if (width > 4)
                _mm_storeu_ps(line + 4,
                              high ? _mm256_extractf128_ps(y, 1) : _mm256_castps256_ps128(y));
            for (int l = HEADWAY_MAX_FEW; l < width; l += 4)
                _mm_storeu_ps(line + l, _mm_setzero_ps());
        }
    }
}

static void take_keys(struct some_keys *keys, const struct headway_rows *rows, int first)
{
    for (int j = 0; j < KEYS; j++) {
        const int i = first + j < rows->count ? first + j : rows->count - 1;
        keys->row[j] = rows->row[i];
        keys->ahead[j] = rows->ahead ? rows->ahead[i] : NULL;
        keys->scale[j] = rows->storage == HEADWAY_STORED_I8 ? rows->scale[i] : 1.0f;
    }
}

void headway_dot_avx2(const struct headway_dot *g)
{
    const struct headway_rows *rows = g->keys;
    const int bytes = bytes_of(rows->storage);
    struct some_keys keys;
    float piece[PIECE][KEYS], sums[HEADWAY_MAX_FEW][KEYS];

    for (int first = 0; first < rows->count; first += KEYS) {
        const int count = rows->count - first < KEYS ? rows->count - first : KEYS;
        take_keys(&keys, rows, first);
        memset(sums, 0, sizeof sums);
        for (int64_t p = 0; p < g->k; p += PIECE) {
            const int columns = (int)(g->k - p < PIECE ? g->k - p : PIECE);
            if (rows->ahead && p * bytes % LINE_BYTES == 0)
                for (int j = 0; j < count; j++)
                    _mm_prefetch(keys.ahead[j] + p * bytes, _MM_HINT_T1);
            stage_any(piece, &keys, p, columns, rows->storage);
            for (int l = 0; l < g->n; l += PASS)
                product_any(sums + l, (const float(*)[KEYS])piece, columns,
                            g->query + p * g->width + l, g->width,
                            g->n - l < PASS ? g->n - l : PASS);
        }
        write_scores(g->scores + (ptrdiff_t)first * g->width, sums, count, g->width);
    }
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

/* The part of a mix: count values from `first` on, lanes l .. l + n - 1, elements d to d + columns * 8. */
INLINE void mix(const struct headway_mix *g, int first, int count, int lane, int64_t d, const int n,
                const int columns, const enum headway_storage storage)
{
    const struct headway_rows *values = g->values;
    const void *const *row = values->row + first;
    const void *const *ahead = values->ahead ? values->ahead + first : NULL;
    const float *weights = g->weights + (ptrdiff_t)first * g->width + lane;
    const int bytes = columns * LANES * bytes_of(storage);
    const ptrdiff_t at = d * bytes_of(storage);
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
    const int ask = ahead && at % LINE_BYTES == 0;
    for (int j = 0; j < count; j++, weights += g->width) {
        const float scale = storage == HEADWAY_STORED_I8 ? values->scale[first + j] : 1.0f;
        __m256 value[4];
        if (ask)
            UNROLL for (int b = 0; b < bytes; b += LINE_BYTES)
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

/* Elements from d on, each on its own. */
static void mix_rest(const struct headway_mix *g, int64_t d)
{
    const struct headway_rows *values = g->values;

    for (; d < g->m; d++)
        for (int l = 0; l < g->n; l++) {
            float *old = g->sum + l * g->pitch + d;
            float sum = g->fresh ? 0.0f : *old * g->rescale[l];
            for (int j = 0; j < values->count; j++) {
                const float scale = values->storage == HEADWAY_STORED_I8 ? values->scale[j] : 1.0f;
                sum = fmaf(headway_widen_at(values->row[j], d, values->storage, scale),
                           g->weights[(ptrdiff_t)j * g->width + l], sum);
            }
            *old = sum;
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
    mix_rest(g, done);
}
