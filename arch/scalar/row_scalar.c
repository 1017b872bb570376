#include "row_scalar.h"

const struct headway_row headway_row_scalar = {
    .name = "scalar",
    .tiers = 0,
    .lanes = SCALAR_LANES,
    .vectors = SCALAR_VECTORS,
    .gemm = headway_gemm_scalar,
    .softmax = headway_softmax_scalar,
    .merge = headway_merge_scalar,
    .pack = headway_pack_scalar,
    .unpack = headway_unpack_scalar,
    .bits = headway_bits_scalar,
    .widen = headway_widen_scalar,
    .narrow = headway_narrow_scalar,
    .dot = headway_dot_scalar,
    .mix = headway_mix_scalar,
    .peak = headway_peak_scalar,
};
