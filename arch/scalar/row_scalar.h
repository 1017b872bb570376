/* The scalar row: plain C11 for every machine, and the bits that all other rows must give. */
#ifndef HEADWAY_ROW_SCALAR_H
#define HEADWAY_ROW_SCALAR_H

#include "cpu/kernels.h"

enum { SCALAR_LANES = 4, SCALAR_VECTORS = 2 };

headway_gemm_fn headway_gemm_scalar;
headway_softmax_fn headway_softmax_scalar;
headway_merge_fn headway_merge_scalar;
headway_pack_fn headway_pack_scalar;
headway_unpack_fn headway_unpack_scalar;
headway_bits_fn headway_bits_scalar;
headway_widen_fn headway_widen_scalar;
headway_narrow_fn headway_narrow_scalar;
headway_dot_fn headway_dot_scalar;
headway_mix_fn headway_mix_scalar;
headway_peak_fn headway_peak_scalar;

extern const struct headway_row headway_row_scalar;

#endif
