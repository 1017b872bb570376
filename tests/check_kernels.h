/* What the parts of check_kernels share: the row under test, guarded operands, and the scalar row
 * driven over tiles of any width. */
#ifndef HEADWAY_CHECK_KERNELS_H
#define HEADWAY_CHECK_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "cpu/kernels.h"

/* Rounding of a float: half the distance from 1 to the next. */
#define UNIT_ROUNDOFF 0x1p-24
/* The smallest subnormal float: what underflow adds to an error bound. */
#define SMALLEST 0x1p-149

struct subject {
    const struct headway_row *row;
    uint64_t random;
    int quick;     /* a sample of the cases, for emulators */
    int64_t cases; /* run so far */
    char label[160];
};

void check_gemm(struct subject *s);
void check_softmax(struct subject *s);
void check_merge(struct subject *s);
void check_pack(struct subject *s);
void check_unpack(struct subject *s);
void check_bits_kernel(struct subject *s);
void check_widen(struct subject *s);
void check_narrow(struct subject *s);
void check_dot(struct subject *s);
void check_mix(struct subject *s);
void check_peak(struct subject *s);

/* Names the case in s->label, counts it. */
void label(struct subject *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A guarded copy of count floats; ints and words likewise. */
float *guarded(const float *from, int64_t count, int at_end);
int32_t *guarded_ints(const int32_t *from, int64_t count, int at_end);
uint64_t *guarded_words(const uint64_t *from, int64_t count, int at_end);
/* Fails if the kernel changed an operand it only reads, then frees it. */
void release_read_only(struct subject *s, void *operand, const void *original, size_t bytes,
                       const char *name);
/* Compares a written buffer with what it must hold: same bits where written(i) (any NaN for a NaN),
 * and bit by bit elsewhere. Row length and stride as in c(i, l) = buffer[i * stride + l]. */
void release_written(struct subject *s, float *buffer, const float *expected, int64_t count,
                     int64_t line, int64_t stride, const char *name);

/* Around a call of a kernel: control bits unchanged; no invalid operation, division by zero or
 * overflow raised when the case has none (finite). */
void environment_enter(void);
void environment_leave(struct subject *s, int finite);

/* Numbers with deviation 1 from a fixed pool, at a random place: cheap. */
void fill_normal(struct subject *s, float *to, int64_t count, float scale);
int below(struct subject *s, int n); /* 0 .. n - 1 */

/* The scalar row's kernels on tiles of a row with other lanes. */
const struct headway_row *scalar_row(void);
void scalar_gemm(const struct headway_row *row, const struct headway_gemm *g);
void scalar_softmax(const struct headway_row *row, const struct headway_softmax *x);
void scalar_merge(const struct headway_row *row, const struct headway_merge *g);
void scalar_pack(float *panel, int width, const float *const *lines, int n, int64_t k, float scale);
int scalar_unpack(float *const *lines, int n, const float *panel, int width, int64_t k,
                  const float *divisor);

#endif
