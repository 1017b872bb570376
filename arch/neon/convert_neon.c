/* Stored elements as floats and back, for NEON: whole vectors, and the rest by widen.h. */
#include "cpu/widen.h"

#include <arm_neon.h>

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "arch/neon is compiled for AArch64 with Advanced SIMD"
#endif

enum { LANES = 4, PAIR = 8 };

headway_widen_fn headway_widen_neon;
headway_narrow_fn headway_narrow_neon;

static int64_t widen_f16(float *line, const uint16_t *stored, int64_t count)
{
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        vst1q_f32(line + j, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(stored + j))));
    return j;
}

static int64_t widen_bf16(float *line, const uint16_t *stored, int64_t count)
{
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        vst1q_f32(line + j, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(stored + j), 16)));
    return j;
}

static int64_t widen_i8(float *line, const int8_t *stored, int64_t count, float scale)
{
    int64_t j = 0;
    for (; j + PAIR <= count; j += PAIR) {
        const int16x8_t x = vmovl_s8(vld1_s8(stored + j));
        const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(x)));
        const float32x4_t high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(x)));
        vst1q_f32(line + j, vmulq_n_f32(low, scale));
        vst1q_f32(line + j + LANES, vmulq_n_f32(high, scale));
    }
    return j;
}

void headway_widen_neon(float *line, const void *stored, int64_t count,
                        enum headway_storage storage, float scale)
{
    static const int bytes[] = {4, 2, 2, 1};
    int64_t done = 0;

    if (storage == HEADWAY_STORED_F16)
        done = widen_f16(line, stored, count);
    else if (storage == HEADWAY_STORED_BF16)
        done = widen_bf16(line, stored, count);
    else if (storage == HEADWAY_STORED_I8)
        done = widen_i8(line, stored, count, scale);
    headway_widen(line + done, (const char *)stored + done * bytes[storage], count - done, storage,
                  scale);
}

static int64_t narrow_f16(uint16_t *stored, const float *line, int64_t count)
{
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        vst1_u16(stored + j, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(line + j))));
    return j;
}

static int64_t narrow_bf16(uint16_t *stored, const float *line, int64_t count)
{
    const uint32x4_t half = vdupq_n_u32(0x7fff), one = vdupq_n_u32(1), quiet = vdupq_n_u32(0x40);
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES) {
        const float32x4_t x = vld1q_f32(line + j);
        const uint32x4_t bits = vreinterpretq_u32_f32(x), high = vshrq_n_u32(bits, 16);
        const uint32x4_t up = vaddq_u32(half, vandq_u32(high, one));
        const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, up), 16);
        vst1_u16(stored + j,
                 vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(high, quiet))));
    }
    return j;
}

/* The largest size of the line's elements, or a NaN if there is one. */
static float most_of(const float *line, int64_t count)
{
    float32x4_t most = vdupq_n_f32(0.0f);
    int64_t j = 0;

    for (; j + LANES <= count; j += LANES)
        most = vmaxq_f32(most, vabsq_f32(vld1q_f32(line + j)));
    float top = vmaxvq_f32(most);
    for (; j < count; j++)
        top = fabsf(line[j]) <= top ? top : isnan(top) ? top : fabsf(line[j]);
    return top;
}

static void narrow_i8(int8_t *stored, const float *line, int64_t count, float *scale)
{
    const float most = most_of(line, count);

    if (headway_narrow_zeros(stored, most, count, scale))
        return;
    const float times = 127.0f / most;
    int64_t j = 0;
    *scale = most / 127.0f;
    for (; j + PAIR <= count; j += PAIR) {
        const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(line + j), times));
        const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(line + j + LANES), times));
        vst1_s8(stored + j, vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high))));
    }
    for (; j < count; j++)
        stored[j] = (int8_t)(int32_t)rintf(line[j] * times);
}

void headway_narrow_neon(void *stored, const float *line, int64_t count,
                         enum headway_storage storage, float *scale)
{
    static const int bytes[] = {4, 2, 2, 1};
    int64_t done = 0;

    if (storage == HEADWAY_STORED_I8) {
        narrow_i8(stored, line, count, scale);
        return;
    }
    if (storage == HEADWAY_STORED_F16)
        done = narrow_f16(stored, line, count);
    else if (storage == HEADWAY_STORED_BF16)
        done = narrow_bf16(stored, line, count);
    headway_narrow((char *)stored + done * bytes[storage], line + done, count - done, storage,
                   scale);
}
