#include "system/float_mode.h"

#if defined(__x86_64__) || defined(__i386__)
/* MXCSR: denormals are zeros, rounding control, flush to zero. Flags and masks are in it too. */
#define MODES (UINT64_C(1) << 6 | UINT64_C(3) << 13 | UINT64_C(1) << 15)

static uint64_t control(void)
{
    return __builtin_ia32_stmxcsr();
}

static void set_control(uint64_t value)
{
    __builtin_ia32_ldmxcsr((unsigned)value);
}
#elif defined(__aarch64__)
/* FPCR: FIZ and AH (flushing of inputs, and other results, of FEAT_AFP), FZ16, rounding mode, FZ, DN
 * (one NaN for all). The flags are in another register. */
#define MODES                                                                                      \
    (UINT64_C(3) | UINT64_C(1) << 19 | UINT64_C(3) << 22 | UINT64_C(1) << 24 | UINT64_C(1) << 25)

static uint64_t control(void)
{
    uint64_t value;

    __asm__ __volatile__("mrs %0, fpcr" : "=r"(value));
    return value;
}

static void set_control(uint64_t value)
{
    __asm__ __volatile__("msr fpcr, %0" : : "r"(value));
}
#else
#error "which modes this processor's floating-point unit has must be said here"
#endif

struct headway_float_mode headway_float_enter(void)
{
    const uint64_t now = control();
    const struct headway_float_mode before = {now, (now & MODES) != 0};

    if (before.changed)
        set_control(now & ~MODES);
    return before;
}

void headway_float_leave(struct headway_float_mode before)
{
    if (before.changed)
        set_control((control() & ~MODES) | (before.control & MODES));
}
