/* Few lanes for AVX-512, on rows as they are stored.
 *
 * dot: lanes over 16 keys, or twice 16 that share the broadcasts of the query. 32 bytes of each key
 * are transposed as 32-bit words, two halves or four bytes for what one float costs, and widened
 * after that.
 * mix: lanes over the columns of the values; the sums of 16 keys stay in registers, and in level 1
 * of the cache between one 16 keys and the next, so that a row of values is read in one go.
 */
#include "widen_avx512.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "arch/avx512 is compiled with the flags listed in arch/CMakeLists.txt"
#endif

#define LANES 16
#define STEP 32 /* bytes of a key at a time */
#define WORDS 8 /* of 32 bits in a step */

/* Bounds by constants: clang 14 leaves sums in memory where a parameter is the loop's bound. */
#define EACH(i, most, count) UNROLL for (int i = 0; i < most; i++) if (i < count)

headway_dot_fn headway_dot_avx512;
headway_mix_fn headway_mix_avx512;

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

/* Zen 4 loads under a mask for nothing and inserts for a shuffle. */
INLINE __m512 two_rows(const char *low, const char *high)
{
    const __m512 x = _mm512_castps256_ps512(_mm256_loadu_ps((const float *)(const void *)low));
    return _mm512_mask_loadu_ps(x, 0xFF00, high - STEP);
}

/* An integer's broadcast needs no arithmetic port of Zen 4's, a float's does. */
INLINE __m512 broadcast(const float *from)
{
    int bits;
    memcpy(&bits, from, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}

/* words[c]: bytes at + 4 c to at + 4 c + 3 of 16 rows, a row a lane. */
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
INLINE void store_scores(const int n, float *scores, int width, int live, const __m512 *acc)
{
    const __mmask16 first = (__mmask16)((1u << (width < LANES ? width : LANES)) - 1);
    __m512 t[HEADWAY_MAX_FEW];
    EACH(l, HEADWAY_MAX_FEW, HEADWAY_MAX_FEW)
        t[l] = l < n ? acc[l] : _mm512_setzero_ps();
    turn(t);
    turn(t + 4);
    UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512 low = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x44);
        const __m512 high = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xEE);
        __m512 row[4];
        row[0] = _mm512_maskz_shuffle_f32x4(0xFF, low, low, 0x8);
        row[1] = _mm512_maskz_shuffle_f32x4(0xFF, low, low, 0xD);
        row[2] = _mm512_maskz_shuffle_f32x4(0xFF, high, high, 0x8);
        row[3] = _mm512_maskz_shuffle_f32x4(0xFF, high, high, 0xD);
        UNROLL
        for (int q = 0; q < 4; q++) {
            const int j = 4 * q + i;
            _mm512_mask_storeu_ps(scores + (j < live ? (ptrdiff_t)j * width : 0),
                                  j < live ? first : 0, row[q]);
        }
    }
    for (int l = LANES; l < width; l += LANES)
        for (int j = 0; j < live; j++)
            _mm512_mask_storeu_ps(scores + (ptrdiff_t)j * width + l,
                                  (__mmask16)((1u << (width - l < LANES ? width - l : LANES)) - 1),
                                  _mm512_setzero_ps());
}

/* The 4 / size elements of a word of each lane. */
INLINE void widen_words(const enum headway_storage storage, __m512 *to, __m512 words, __m512 scale)
{
    const __m512i x = _mm512_castps_si512(words);
    to[0] = words;
    if (storage == HEADWAY_STORED_BF16) {
        to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        to[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
    }
    if (storage == HEADWAY_STORED_F16) {
        /* The low halves of all lanes, then the high ones. */
        const __m512i apart =
            _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26,
                             24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        const __m512i halves = _mm512_permutexvar_epi16(apart, x);
        to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
        to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    }
    if (storage == HEADWAY_STORED_I8) {
        __m512i byte[4];
        byte[0] = _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24);
        byte[1] = _mm512_srai_epi32(_mm512_slli_epi32(x, 16), 24);
        byte[2] = _mm512_srai_epi32(_mm512_slli_epi32(x, 8), 24);
        byte[3] = _mm512_srai_epi32(x, 24);
        UNROLL
        for (int e = 0; e < 4; e++)
            to[e] = _mm512_mul_ps(_mm512_cvtepi32_ps(byte[e]), scale);
    }
}

/* Keys of which a sum for each of n lanes grows, `groups` times 16 side by side. */
struct sums {
    __m512 acc[2][HEADWAY_MAX_FEW], scale[2];
    const float *query;
};

/* acc = fma over the elements of words[..][c], a line of the query each. */
INLINE void multiply(const int n, const int groups, const enum headway_storage storage,
                     struct sums *s, int width, __m512 (*words)[WORDS], int c)
{
    __m512 x[2][4];
    EACH(i, 2, groups)
        widen_words(storage, x[i], words[i][c], s->scale[i]);
    EACH(e, 4, 4 / headway_few_bytes(storage)) {
        EACH(l, HEADWAY_MAX_FEW, n) {
            const __m512 q = broadcast(s->query + l);
            EACH(i, 2, groups)
                s->acc[i][l] = _mm512_fmadd_ps(x[i][e], q, s->acc[i][l]);
        }
        s->query += width;
    }
}

/* The last `count` elements of 16 keys, fewer than a step has, a line each. */
static void widen_rest(const enum headway_storage storage, float (*to)[LANES],
                       const void *const *row, int64_t at, int count, __m512 scale)
{
    const int size = headway_few_bytes(storage);
    const __mmask32 mask = (__mmask32)((UINT64_C(1) << (count * size)) - 1);
    char copy[LANES][STEP];
    const void *copies[LANES];
    __m512 words[WORDS];

    for (int j = 0; j < LANES; j++) {
        const __m256i x = _mm256_maskz_loadu_epi8(mask, (const char *)row[j] + at);
        _mm256_storeu_si256((__m256i *)(void *)copy[j], x);
        copies[j] = copy[j];
    }
    gather(words, copies, 0);
    for (int c = 0; c < WORDS; c++) {
        __m512 x[4];
        widen_words(storage, x, words[c], scale);
        for (int e = 0; e < 4 / size; e++)
            _mm512_storeu_ps(to[c * 4 / size + e], x[e]);
    }
}

/* multiply() for those. */
INLINE void multiply_rest(const int n, const int groups, struct sums *s, int width,
                          float (*rest)[STEP][LANES], int count)
{
    for (int p = 0; p < count; p++, s->query += width)
        EACH(l, HEADWAY_MAX_FEW, n) {
            const __m512 q = broadcast(s->query + l);
            EACH(i, 2, groups)
                s->acc[i][l] = _mm512_fmadd_ps(_mm512_loadu_ps(rest[i][p]), q, s->acc[i][l]);
        }
}

/* `groups` times 16 keys, the first `live` of them different. */
struct keys {
    const void *const *row, *const *ahead;
    const float *scale;
    int live;
};

/* Two steps have a line of memory of each key: the first of them asks for those of one half of the
 * keys, the second for those of the other. */
INLINE void ask(const int groups, const struct keys *keys, int64_t step, int c)
{
    if (keys->ahead)
        EACH(i, 2, groups)
            _mm_prefetch((const char *)keys->ahead[(step % 2 * WORDS + c) * groups + i] + step * STEP,
                         _MM_HINT_T1);
}

/* All whole steps, of which there is one at least. The next words are gathered between the
 * multiply-adds of the latest: neither waits for the other then. */
INLINE void multiply_steps(const int n, const int groups, const enum headway_storage storage,
                           struct sums *s, int width, const struct keys *keys, int64_t bytes)
{
    const int64_t steps = bytes / STEP;
    __m512 words[2][WORDS], fresh[WORDS];

    EACH(i, 2, groups)
        gather(words[i], keys->row + i * LANES, 0);
    for (int64_t i = 0; i < steps; i++) {
        const int64_t next = (i + 1 < steps ? i + 1 : i) * STEP;
        EACH(c, WORDS / 2, WORDS / 2) {
            ask(groups, keys, i, c);
            multiply(n, groups, storage, s, width, words, c);
        }
        gather(fresh, keys->row, next);
        EACH(c, WORDS / 2, WORDS / 2) {
            ask(groups, keys, i, WORDS / 2 + c);
            multiply(n, groups, storage, s, width, words, WORDS / 2 + c);
        }
        if (groups == 2)
            gather(words[1], keys->row + LANES, next);
        EACH(c, WORDS, WORDS)
            words[0][c] = fresh[c];
    }
}

INLINE void dot_keys(const int n, const int groups, const enum headway_storage storage,
                     const struct headway_dot *g, float *scores, const struct keys *keys)
{
    const int64_t bytes = g->k * headway_few_bytes(storage);
    const int width = g->width, rest = (int)(bytes % STEP) / headway_few_bytes(storage);
    struct sums s;

    s.query = g->query;
    EACH(i, 2, groups) {
        EACH(l, HEADWAY_MAX_FEW, n)
            s.acc[i][l] = _mm512_setzero_ps();
        s.scale[i] = storage == HEADWAY_STORED_I8 ? _mm512_loadu_ps(keys->scale + i * LANES)
                                                  : _mm512_setzero_ps();
    }
    if (bytes >= STEP)
        multiply_steps(n, groups, storage, &s, width, keys, bytes);
    if (rest) {
        float lines[2][STEP][LANES];
        EACH(i, 2, groups)
            widen_rest(storage, lines[i], keys->row + i * LANES, bytes - bytes % STEP, rest,
                       s.scale[i]);
        multiply_rest(n, groups, &s, width, lines, rest);
    }
    store_scores(n, scores, width, keys->live, s.acc[0]);
    if (groups == 2 && keys->live > LANES)
        store_scores(n, scores + (ptrdiff_t)LANES * width, width, keys->live - LANES, s.acc[1]);
}

/* Room for the last keys, where the very last makes up the number. */
struct last {
    const void *row[2 * LANES], *ahead[2 * LANES];
    float scale[2 * LANES];
};

static void fill_up(struct last *last, const struct keys *keys, int most)
{
    for (int i = 0; i < most; i++) {
        const int from = i < keys->live ? i : keys->live - 1;
        last->row[i] = keys->row[from];
        last->ahead[i] = keys->ahead ? keys->ahead[from] : NULL;
        last->scale[i] = keys->scale ? keys->scale[from] : 0;
    }
}

/* 32 keys at a time while the registers hold their sums. */
INLINE void dot_lanes(const int n, const enum headway_storage storage, const struct headway_dot *g)
{
    /* Floats come from memory more evenly with fewer rows at a time, bytes have work enough. */
    const int groups = n <= 4 && headway_few_bytes(storage) == 2 ? 2 : 1;
    const int most = groups * LANES;
    const struct headway_rows *rows = g->keys;
    struct last last;

    for (int j = 0; j < rows->count; j += most) {
        struct keys keys = {rows->row + j, rows->ahead ? rows->ahead + j : NULL,
                            storage == HEADWAY_STORED_I8 ? rows->scale + j : NULL, most};
        if (rows->count - j < most) {
            keys.live = rows->count - j;
            fill_up(&last, &keys, most);
            keys.row = last.row;
            keys.ahead = keys.ahead ? last.ahead : NULL;
            keys.scale = last.scale;
        }
        dot_keys(n, groups, storage, g, g->scores + (ptrdiff_t)j * g->width, &keys);
    }
}

INLINE void dot_stored(const enum headway_storage storage, const struct headway_dot *g)
{
    switch (g->n) {
    case 8: dot_lanes(8, storage, g); break;
    case 7: dot_lanes(7, storage, g); break;
    case 6: dot_lanes(6, storage, g); break;
    case 5: dot_lanes(5, storage, g); break;
    case 4: dot_lanes(4, storage, g); break;
    case 3: dot_lanes(3, storage, g); break;
    case 2: dot_lanes(2, storage, g); break;
    default: dot_lanes(1, storage, g); break;
    }
}

static void dot_f32(const struct headway_dot *g)
{
    dot_stored(HEADWAY_STORED_F32, g);
}

static void dot_f16(const struct headway_dot *g)
{
    dot_stored(HEADWAY_STORED_F16, g);
}

static void dot_bf16(const struct headway_dot *g)
{
    dot_stored(HEADWAY_STORED_BF16, g);
}

static void dot_i8(const struct headway_dot *g)
{
    dot_stored(HEADWAY_STORED_I8, g);
}

void headway_dot_avx512(const struct headway_dot *g)
{
    static headway_dot_fn *const stored[] = {dot_f32, dot_f16, dot_bf16, dot_i8};
    stored[g->keys->storage](g);
}

/* Adds the values of keys j .. end - 1 in `vectors` vectors of columns from d on: several whole ones,
 * or a single one's lanes of mask. */
INLINE void mix_columns(const int n, const int vectors, const enum headway_storage storage,
                        const struct headway_mix *g, int64_t d, __mmask16 mask, int j, int end)
{
    const int whole = vectors > 1;
    const struct headway_rows *values = g->values;
    const int size = headway_few_bytes(storage);
    const void *const *row = values->row, *const *ahead = values->ahead;
    const float *weights = g->weights + (ptrdiff_t)j * g->width;
    const ptrdiff_t width = g->width;
    __m512 acc[HEADWAY_MAX_FEW][8];

    EACH(l, HEADWAY_MAX_FEW, n) {
        const float *sum = g->sum + l * g->pitch + d;
        EACH(v, 8, vectors)
            acc[l][v] = j == 0 && g->fresh ? _mm512_setzero_ps()
                        : whole            ? _mm512_loadu_ps(sum + v * LANES)
                                           : _mm512_maskz_loadu_ps(mask, sum + v * LANES);
        if (j == 0 && !g->fresh)
            EACH(v, 8, vectors)
                acc[l][v] = _mm512_mul_ps(acc[l][v], _mm512_set1_ps(g->rescale[l]));
    }
    for (; j < end; j++, weights += width) {
        const char *from = (const char *)row[j] + d * size;
        const __m512 scale =
            storage == HEADWAY_STORED_I8 ? broadcast(values->scale + j) : _mm512_setzero_ps();
        __m512 x[8];
        if (ahead)
            EACH(v, 8, vectors)
                if (v * LANES * size % HEADWAY_FEW_LINE_BYTES == 0)
                    _mm_prefetch((const char *)ahead[j] + d * size + v * LANES * size, _MM_HINT_T1);
        EACH(v, 8, vectors)
            x[v] = whole ? widen_whole(storage, from + v * LANES * size, scale)
                         : widen_masked(storage, from + v * LANES * size, mask, scale);
        EACH(l, HEADWAY_MAX_FEW, n) {
            const __m512 weight = broadcast(weights + l);
            EACH(v, 8, vectors)
                acc[l][v] = _mm512_fmadd_ps(x[v], weight, acc[l][v]);
        }
    }
    EACH(l, HEADWAY_MAX_FEW, n) {
        float *sum = g->sum + l * g->pitch + d;
        EACH(v, 8, vectors) {
            if (whole)
                _mm512_storeu_ps(sum + v * LANES, acc[l][v]);
            else
                _mm512_mask_storeu_ps(sum + v * LANES, mask, acc[l][v]);
        }
    }
}

/* As many columns at a time as the sums of n lanes have registers for. */
INLINE void mix_lanes(const int n, const enum headway_storage storage, const struct headway_mix *g)
{
    const int most = n <= 2 ? 8 : n <= 6 ? 4 : 2;
    const int count = g->values->count;

    for (int j = 0; j < count; j += LANES) {
        const int end = count - j < LANES ? count : j + LANES;
        const int64_t whole = g->m / LANES * LANES;
        int64_t d = 0;
        for (; most == 8 && d + 8 * LANES <= whole; d += 8 * LANES)
            mix_columns(n, 8, storage, g, d, 0, j, end);
        for (; most >= 4 && d + 4 * LANES <= whole; d += 4 * LANES)
            mix_columns(n, 4, storage, g, d, 0, j, end);
        for (; d + 2 * LANES <= whole; d += 2 * LANES)
            mix_columns(n, 2, storage, g, d, 0, j, end);
        for (; d < g->m; d += LANES)
            mix_columns(n, 1, storage, g, d, first_lanes(g->m - d), j, end);
    }
}

INLINE void mix_stored(const enum headway_storage storage, const struct headway_mix *g)
{
    switch (g->n) {
    case 8: mix_lanes(8, storage, g); break;
    case 7: mix_lanes(7, storage, g); break;
    case 6: mix_lanes(6, storage, g); break;
    case 5: mix_lanes(5, storage, g); break;
    case 4: mix_lanes(4, storage, g); break;
    case 3: mix_lanes(3, storage, g); break;
    case 2: mix_lanes(2, storage, g); break;
    default: mix_lanes(1, storage, g); break;
    }
}

static void mix_f32(const struct headway_mix *g)
{
    mix_stored(HEADWAY_STORED_F32, g);
}

static void mix_f16(const struct headway_mix *g)
{
    mix_stored(HEADWAY_STORED_F16, g);
}

static void mix_bf16(const struct headway_mix *g)
{
    mix_stored(HEADWAY_STORED_BF16, g);
}

static void mix_i8(const struct headway_mix *g)
{
    mix_stored(HEADWAY_STORED_I8, g);
}

void headway_mix_avx512(const struct headway_mix *g)
{
    static headway_mix_fn *const stored[] = {mix_f32, mix_f16, mix_bf16, mix_i8};
    stored[g->values->storage](g);
}
