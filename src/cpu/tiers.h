/* Tiers: what a CPU offers and its operating system has enabled, in the clusters that rows need. */
#ifndef HEADWAY_TIERS_H
#define HEADWAY_TIERS_H

#include <stdint.h>

enum {
    HEADWAY_TIER_AVX2 = 1u << 0, /* AVX2, FMA and F16C; XCR0 has SSE and AVX state */
    HEADWAY_TIER_AVX512 =
        1u << 1,                /* AVX2's, and AVX-512 F, BW, DQ, VL; XCR0 has all AVX-512 state */
    HEADWAY_TIER_NEON = 1u << 2 /* Advanced SIMD of AArch64 */
};

/* What the registers said. x86: the leaves below; xcr0 counts only if leaf 1 says OSXSAVE.
 * AArch64: hwcap as getauxval(AT_HWCAP) gives it. All zero: nothing known. */
struct headway_cpu_registers {
    uint32_t max_leaf;  /* CPUID.0:EAX */
    uint32_t leaf1_ecx; /* CPUID.1:ECX */
    uint32_t leaf7_ebx; /* CPUID.7.0:EBX, 0 if max_leaf < 7 */
    uint64_t xcr0;      /* XGETBV(0), 0 and not executed without OSXSAVE */
    uint64_t hwcap;
};

/* Reads this CPU. Impure and short. */
struct headway_cpu_registers headway_cpu_read(void);

/* The tiers those registers mean. Pure. */
uint32_t headway_cpu_tiers(const struct headway_cpu_registers *registers);

/* Says what the first of the tiers in `needed` that `have` lacks asks for ("needs AVX2, FMA
 * and F16C, with AVX state enabled by the operating system"); NULL if none is missing. Static text. */
const char *headway_tier_missing(uint32_t needed, uint32_t have);

#endif
