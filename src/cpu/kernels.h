/* THE contract: what a row of the kernel table provides, and what its kernels promise.
 *
 * Words. A row is one instruction set's set of kernels. A vector is `lanes` floats wide; lanes
 * never share a sum. A tile is a block of up to row->vectors vectors side by side. A panel is k
 * lines of one tile's width, densely packed: panel[p * width + j].
 *
 * Common to all kernels
 *   units      elements, never bytes
 *   reads      exactly the named elements; panels and tiles to their padded width
 *   writes     exactly the named elements
 *   alignment  pointers are aligned to their type; 64 bytes is faster, never required
 *   aliasing   arguments do not overlap unless said otherwise
 *   effects    no allocation, no errors, no globals, no change of the floating-point environment
 *   re-entrant any number of threads, distinct outputs
 *   bits       each kernel gives the bits of the scalar row's kernel, whatever m, vectors, strides
 *              and alignment are; a NaN equals any NaN
 *
 * No kernel uses a fused multiply-add where the contract does not write fma, nor separate
 * operations where it does.
 */
#ifndef HEADWAY_KERNELS_H
#define HEADWAY_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* The order of summation: constants of the arithmetic, the same for every row, never to be tuned.
 * The running maximum moves at multiples of HEADWAY_KEY_BLOCK keys; segments of
 * HEADWAY_SEGMENT_KEYS keys start afresh and are merged in order. */
#define HEADWAY_KEY_BLOCK 128
#define HEADWAY_SEGMENT_KEYS 512

/* Limits over all rows, for the callers' arrays. */
#define HEADWAY_MAX_VECTORS 4
#define HEADWAY_MAX_WIDTH 64
/* Lanes that dot and mix serve. */
#define HEADWAY_MAX_FEW 8

/* Lines of memory that will be needed soon: `floats` floats from each of lines[at .. count - 1]. A
 * kernel may ask the cache for some of them between its tiles, a few at a time so that they do not
 * stand in the way of its own loads, and moves `at`. They have no part in any result. */
struct headway_ahead {
    float *const *lines;
    int at, count;
    int64_t floats;
    int all; /* non-zero: all of them by the end of this call, evenly */
};

/* One tile row of GEMM: for i < m, v < vectors, l < lanes
 *
 *   start = accumulate ? c(i,v,l) * (scale ? scale[v*lanes + l] : 1) : +0
 *   sum   = fma over p = 0 .. k-1 in order, starting at start: sum = fma(a(i,p), b(p,v,l), sum)
 *   c(i,v,l) = bias ? sum + bias[v*lanes + l] : sum
 *
 *   a(i,p)   = a[i * a_row + p * a_col]       any strides
 *   b(p,v,l) = b[p * vectors*lanes + v*lanes + l]
 *   c(i,v,l) = c[v][i * c_row + l], touched for l < count[v] only (count NULL: all lanes)
 *
 * and, with highest and lowest: highest = c > highest ? c : highest, lowest = c < lowest ? c : lowest
 * of each column over its rows in any order (which zero of two is open). A NaN is neither.
 *
 * m >= 1, 1 <= vectors <= row->vectors, k >= 0. Without accumulate, c is not read. highest and
 * lowest need all lanes: count is NULL then.
 * Serves the projections (a: activations, b: packed weights), K . Q^T (a: keys, b: packed queries)
 * and P . V (a: values read along keys, b: weights, accumulate with the rescaling of the online
 * softmax).
 * Error: (k + 1) * 2^-24 * sum |a b| against exact arithmetic, plus rounding of scale and bias. */
struct headway_gemm {
    int64_t m;
    int64_t k;
    int vectors;
    int accumulate;
    const float *a;
    ptrdiff_t a_row, a_col;
    const float *b;
    float *c[HEADWAY_MAX_VECTORS];
    ptrdiff_t c_row;
    const int *count;
    const float *scale;
    const float *bias;
    float *highest, *lowest;     /* (vectors*lanes), or NULL both */
    struct headway_ahead *ahead; /* or NULL */
};
typedef void headway_gemm_fn(const struct headway_gemm *g);

/* One block of keys of the online softmax, in place, lanes = query rows; w = vectors*lanes:
 * scores[j * w + lane] for j < keys holds the dot products in units of exp_poly.h, then weights.
 *
 *   s(j) = scores(j)
 *   with cap > 0, in the same units:
 *     s(j) = cap * tanh(t * inverse_cap)                  tanh and LIMIT are tanh_poly.h's; t is
 *                                                         s(j) kept within +-LIMIT(cap), where
 *                                                         tanh is +-1: no product overflows
 *   with slope, distance (w):
 *     s(j) = fma(slope, (float)(distance + j), s(j))      the sum in int32, then rounded
 *   with bias (keys, w), in natural units:
 *     s(j) = bias(j) == -inf ? -inf : fma(bias(j), HEADWAY_EXP_UNIT, s(j))
 *   with allowed (keys):
 *     s(j) = bit `lane` of allowed[j] ? s(j) : -inf
 *   with first, last (w):
 *     s(j) = first <= j && j < last ? s(j) : -inf
 *   top = row_max; for j in order: top = s(j) > top ? s(j) : top        a NaN is never the maximum
 *   ref = top == -inf ? 0 : top
 *   rescale = e(row_max - ref)
 *   row_sum = row_sum * rescale; for j in order: p = e(s(j) - ref), row_sum = row_sum + p,
 *                                                scores(j) = p
 *   row_max = top
 *
 * e is exp_poly.h's. Start a segment with row_max = -INFINITY, row_sum = 0. 1 <= keys <=
 * HEADWAY_KEY_BLOCK. first and last are given together or not at all, so are slope and distance;
 * ranges may lie outside 0 .. keys. distance + keys does not overflow. The work of what isn't given
 * isn't done. A NaN score that is not excluded gives NaN in its lane's row_sum; +inf does too. */
struct headway_softmax {
    int keys;
    int vectors;
    float *scores;
    /* What gemm says of these scores when begun with -inf and +inf, so that nobody need look for the
     * maximum and no score near it need be held back; or NULL both. Not with any option below. No
     * bit depends on them but the sign of a zero row_max. */
    const float *highest, *lowest;
    float cap, inverse_cap; /* cap 0: none; else 1 / cap, or FLT_MAX where that overflows */
    const float *slope;
    const int32_t *distance;
    const float *bias;
    const uint64_t *allowed;
    const int32_t *first, *last;
    float *row_max, *row_sum, *rescale;
};
typedef void headway_softmax_fn(const struct headway_softmax *s);

/* Merges a later segment into an earlier one, w = vectors*lanes:
 *   top = later_max > row_max ? later_max : row_max; ref = top == -inf ? 0 : top
 *   x = e(row_max - ref), y = e(later_max - ref)
 *   row_sum = fma(row_sum, x, later_sum * y)
 *   sum(d)  = fma(sum(d), x, later(d) * y)                        d < m, sum and later (m, w)
 *   row_max = top
 * later NULL: zeros, which are not read. */
struct headway_merge {
    int64_t m;
    int vectors;
    float *sum, *row_max, *row_sum;
    const float *later, *later_max, *later_sum;
};
typedef void headway_merge_fn(const struct headway_merge *g);

/* Transposes n lines into a panel: panel[p * width + j] = lines[j][p] * scale for j < n, p < k,
 * and +0 for n <= j < width. 0 <= n <= width, width a multiple of the row's lanes, at most
 * HEADWAY_MAX_WIDTH. */
typedef void headway_pack_fn(float *panel, int width, const float *const *lines, int n, int64_t k,
                             float scale);

/* Transposes back and divides, for j < n, p < k; divisor has `width` elements:
 *   x = panel[p * width + j] + 0          -0, which an underflowing product may leave, becomes +0
 *   r = 1 / divisor[j]
 *   q = x * r
 *   lines[j][p] = divisor[j] == 0 ? 0 : refined, where refined = fma(fma(-q, divisor[j], x), r, q),
 *                                       or q where that is a NaN (x infinite)
 * A divisor is 0, a NaN, or between 2^-64 and 2^64. There is one division a line; the result is
 * x / divisor where that is a float, else within 0.51 ulp, and within 2^-149 where it is subnormal.
 * Returns non-zero if `refined` was a NaN on a line whose divisor is neither 0 nor a NaN: the sign
 * that poison behind a mask may have come through. */
typedef int headway_unpack_fn(float *const *lines, int n, const float *panel, int width, int64_t k,
                              const float *divisor);

/* Lines of bytes into bits: bit j of allowed[p] = lines[j][p] != 0 for j < n, p < k; bits n and above
 * are 0. 0 <= n <= HEADWAY_MAX_WIDTH, 0 <= k <= HEADWAY_KEY_BLOCK. Reads exactly lines[j][0 .. k - 1].
 */
typedef void headway_bits_fn(uint64_t *allowed, const unsigned char *const *lines, int n, int k);

/* How elements are kept: a stored element's value is itself, exactly, and with I8 (-127 .. 127) the
 * product of it and its row's scale, rounded to float. */
enum headway_storage {
    HEADWAY_STORED_F32,
    HEADWAY_STORED_F16,
    HEADWAY_STORED_BF16,
    HEADWAY_STORED_I8
};

/* line[j] = value of stored[j] for j < count. scale is for I8. */
typedef void headway_widen_fn(float *line, const void *stored, int64_t count,
                              enum headway_storage storage, float scale);

/* stored[j] = line[j] for j < count, rounded to nearest even; a NaN stays one. With I8
 *   a = max |line(j)|;  not finite: *scale = NaN, stored = 0;  a < 2^-100: *scale = 0, stored = 0
 *   else *scale = a / 127, r = 127 / a, stored[j] = line[j] * r rounded to an integer, ties to even
 * each operation rounded to float. scale is not touched otherwise. */
typedef void headway_narrow_fn(void *stored, const float *line, int64_t count,
                               enum headway_storage storage, float *scale);

/* Rows of keys or values as they are kept, each on its own: row[j] is its first element. ahead[j] are
 * rows that will be needed as these are now, of as many elements: a kernel asks level 2 of the cache
 * for the same place of ahead[j] as it reads of row[j]; NULL: it doesn't. */
struct headway_rows {
    const void *const *row;
    const void *const *ahead;
    const float *scale; /* (count), for I8 */
    int count;          /* 1 .. HEADWAY_KEY_BLOCK */
    enum headway_storage storage;
};

/* K . Q^T for few lanes, in gemm's order, so that the bits are gemm's on widened keys: for j < count
 *
 *   scores[j * width + l] = sum, fma over p = 0 .. k-1 in order from +0: sum = fma(key(j,p),
 *                           query[p * width + l], sum)                                 for l < n
 *                           +0                                             for n <= l < width
 *
 * 1 <= n <= HEADWAY_MAX_FEW, n <= width; width is any row's tile width, also another row's. */
struct headway_dot {
    const struct headway_rows *keys;
    int n, width;
    int64_t k;
    const float *query; /* a panel: (k, width) */
    float *scores;      /* (count, width) */
};
typedef void headway_dot_fn(const struct headway_dot *g);

/* P . V for few lanes, in gemm's order: for l < n, d < m
 *
 *   start = fresh ? +0 : sum[l * pitch + d] * rescale[l]
 *   sum[l * pitch + d] = fma over j = 0 .. count-1 in order: fma(value(j,d), weights[j * width + l])
 *
 * fresh: sum and rescale are not read. */
struct headway_mix {
    const struct headway_rows *values;
    int n, width;
    int64_t m;
    const float *weights; /* (count, width) */
    const float *rescale; /* (n) */
    int fresh;
    float *sum; /* (n, pitch), pitch >= m */
    ptrdiff_t pitch;
};
typedef void headway_mix_fn(const struct headway_mix *g);

/* Runs `rounds` rounds of independent fused multiply-adds in registers, as many chains as hide
 * their latency; returns the floating-point operations done (two per lane and multiply-add). The
 * machine's peak is that over the time it took. *sink keeps the compiler from dropping the work. */
typedef int64_t headway_peak_fn(int64_t rounds, float *sink);

struct headway_row {
    const char *name; /* the one word: directory, suffix, --isa, test label */
    uint32_t tiers;   /* what the CPU and operating system must offer, all of it: tiers.h */
    /* The row that serves a rest of no more query rows than it has lanes, or NULL: one that runs
     * wherever this row does, as fast per lane. */
    const char *narrower;
    int lanes;   /* floats in a vector */
    int vectors; /* vectors of the widest tile; lanes * vectors <= HEADWAY_MAX_WIDTH */
    headway_gemm_fn *gemm;
    headway_softmax_fn *softmax;
    headway_merge_fn *merge;
    headway_pack_fn *pack;
    headway_unpack_fn *unpack;
    headway_bits_fn *bits;
    headway_widen_fn *widen;
    headway_narrow_fn *narrow;
    headway_dot_fn *dot;
    headway_mix_fn *mix;
    headway_peak_fn *peak;
};

/* A row of the list: built (row != NULL) or absent with the reason. */
struct headway_row_entry {
    const char *name;
    const struct headway_row *row;
    const char *absent;
};

/* The rows in order of preference, best first; NULL past the end. */
const struct headway_row_entry *headway_row_at(int index);

#endif
