/* How the rows' kernels are written: loops over the vectors and lines of a tile become straight code,
 * so that every accumulator is a register. UNROLL stands before a loop whose count is a constant of
 * at most 24 once the function around it is inlined. */
#ifndef HEADWAY_UNROLL_H
#define HEADWAY_UNROLL_H

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif
#define INLINE static inline __attribute__((always_inline))

#endif
