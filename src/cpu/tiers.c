/* Tiers: reading the CPU, and what the registers mean. The only file that asks which architecture
 * it is compiled for. */
#include "cpu/tiers.h"

#include <stddef.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* CPUID.1:ECX and CPUID.7.0:EBX, Intel SDM volume 2A, CPUID; HWCAP, Linux asm/hwcap.h for arm64. */
#define LEAF1_ECX_FMA (1u << 12)
#define LEAF1_ECX_OSXSAVE (1u << 27)
#define LEAF1_ECX_AVX (1u << 28)
#define LEAF1_ECX_F16C (1u << 29)
#define LEAF7_EBX_AVX2 (1u << 5)
#define LEAF7_EBX_AVX512F (1u << 16)
#define LEAF7_EBX_AVX512DQ (1u << 17)
#define LEAF7_EBX_AVX512BW (1u << 30)
#define LEAF7_EBX_AVX512VL (1u << 31)
#define HWCAP_BIT_ASIMD (1u << 1)

/* XCR0: SSE and AVX state; the same with opmask and both halves of the ZMM state. */
#define XCR0_AVX 0x6u
#define XCR0_AVX512 0xE6u

struct headway_cpu_registers headway_cpu_read(void)
{
    struct headway_cpu_registers registers = {0, 0, 0, 0, 0};
#if defined(__x86_64__) || defined(__i386__)
    uint32_t eax, ebx, ecx, edx;
    registers.max_leaf = __get_cpuid_max(0, NULL);
    if (registers.max_leaf >= 1) {
        __cpuid(1, eax, ebx, ecx, edx);
        registers.leaf1_ecx = ecx;
    }
    if (registers.max_leaf >= 7) {
        __cpuid_count(7, 0, eax, ebx, ecx, edx);
        registers.leaf7_ebx = ebx;
    }
    if (registers.leaf1_ecx & LEAF1_ECX_OSXSAVE) {
        __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
        registers.xcr0 = (uint64_t)edx << 32 | eax;
    }
#elif defined(__aarch64__)
    registers.hwcap = getauxval(AT_HWCAP);
#endif
    return registers;
}

static int has_all(uint64_t have, uint64_t needed)
{
    return (have & needed) == needed;
}

uint32_t headway_cpu_tiers(const struct headway_cpu_registers *registers)
{
    const uint32_t leaf1 = registers->max_leaf >= 1 ? registers->leaf1_ecx : 0;
    /* Older CPUs answer a leaf beyond the last with the last one's data. */
    const uint32_t leaf7 = registers->max_leaf >= 7 ? registers->leaf7_ebx : 0;
    const uint64_t xcr0 = leaf1 & LEAF1_ECX_OSXSAVE ? registers->xcr0 : 0;
    uint32_t tiers = 0;

    if (has_all(leaf1, LEAF1_ECX_AVX | LEAF1_ECX_FMA | LEAF1_ECX_F16C) &&
        has_all(leaf7, LEAF7_EBX_AVX2) && has_all(xcr0, XCR0_AVX)) {
        tiers |= HEADWAY_TIER_AVX2;
        if (has_all(leaf7, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512DQ |
                               LEAF7_EBX_AVX512VL) &&
            has_all(xcr0, XCR0_AVX512))
            tiers |= HEADWAY_TIER_AVX512;
    }
    if (has_all(registers->hwcap, HWCAP_BIT_ASIMD))
        tiers |= HEADWAY_TIER_NEON;
    return tiers;
}

const char *headway_tier_missing(uint32_t needed, uint32_t have)
{
    const uint32_t missing = needed & ~have;

    if (missing & HEADWAY_TIER_AVX512)
        return "needs AVX-512 F, BW, DQ and VL, with AVX-512 state enabled by the operating system";
    if (missing & HEADWAY_TIER_AVX2)
        return "needs AVX2, FMA and F16C, with AVX state enabled by the operating system";
    if (missing & HEADWAY_TIER_NEON)
        return "needs the Advanced SIMD of AArch64";
    return missing ? "needs a tier this version does not know" : NULL;
}
