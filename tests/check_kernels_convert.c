/* widen: every half and every byte, in pieces of every length. narrow: every half, everything next to
 * and between two of them, every bit pattern's upper half; lines of bytes against their rule. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "check_kernels.h"

enum { PIECE = HEADWAY_KEY_BLOCK };

static const int sizes[] = {4, 2, 2, 1};

static float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static int places_of(enum headway_storage storage)
{
    return storage == HEADWAY_STORED_BF16 ? 7 : 10;
}

static int bias_of(enum headway_storage storage)
{
    return storage == HEADWAY_STORED_BF16 ? 127 : 15;
}

/* What the half means, by its definition. */
static float float_of(unsigned half, enum headway_storage storage)
{
    const int places = places_of(storage), bias = bias_of(storage);
    const int fraction = (int)(half & ((1u << places) - 1));
    const int exponent = (int)((half & 0x7fff) >> places);
    float size = ldexpf((float)fraction, 1 - bias - places);
    if (exponent == 2 * bias + 1)
        size = fraction ? NAN : INFINITY;
    else if (exponent > 0)
        size = ldexpf((float)(fraction + (1 << places)), exponent - bias - places);
    return half & 0x8000 ? -size : size;
}

/* ---- widen ----------------------------------------------------------------------------------- */

/* expected: what `count` elements at `stored` mean. */
static void widen_piece(struct subject *s, enum headway_storage storage, const void *stored,
                        const float *expected, int count, float scale, int at_end)
{
    const size_t bytes = (size_t)(count * sizes[storage]);
    int numbers = 1;

    for (int j = 0; j < count; j++)
        numbers &= isfinite(expected[j]) != 0;
    void *from = check_guard(bytes, at_end);
    if (bytes)
        memcpy(from, stored, bytes);
    float *line = check_guard((size_t)count * sizeof *line, at_end);

    environment_enter();
    s->row->widen(line, from, count, storage, scale);
    environment_leave(s, numbers);

    release_written(s, line, expected, count, count ? count : 1, count ? count : 1, "the line");
    release_read_only(s, from, stored, bytes, "what is stored");
}

static void widen_halves(struct subject *s, enum headway_storage storage, unsigned first, int count,
                         int at_end)
{
    uint16_t stored[PIECE];
    float expected[PIECE];

    label(s, "storage %d halves from %u, %d of them, at_end %d", storage, first, count, at_end);
    for (int j = 0; j < count; j++) {
        stored[j] = (uint16_t)(first + (unsigned)j);
        expected[j] = float_of(stored[j], storage);
    }
    widen_piece(s, storage, stored, expected, count, NAN, at_end);
}

static void widen_bytes(struct subject *s, int first, int count, float scale, int at_end)
{
    int8_t stored[PIECE];
    float expected[PIECE];

    label(s, "bytes from %d, %d of them, scale %a at_end %d", first, count, (double)scale, at_end);
    for (int j = 0; j < count; j++) {
        stored[j] = (int8_t)((first + 127 + j) % 255 - 127);
        expected[j] = (float)((double)stored[j] * (double)scale); /* the product is exact */
    }
    widen_piece(s, HEADWAY_STORED_I8, stored, expected, count, scale, at_end);
}

static void widen_floats(struct subject *s, int count, int at_end)
{
    float line[PIECE];

    label(s, "floats, %d of them, at_end %d", count, at_end);
    fill_normal(s, line, count, 1);
    for (int j = below(s, 20); j < count; j += 7)
        line[j] = j % 2 ? -INFINITY : 0x1p-149f;
    widen_piece(s, HEADWAY_STORED_F32, line, line, count, NAN, at_end);
}

void check_widen(struct subject *s)
{
    static const float scales[] = {1,         0.01f, 0x1.fffffep127f / 127, 0x1p-107f, 0,
                                   0x1p-149f, NAN,   0x1.234566p-5f};
    for (int at_end = 0; at_end < 2; at_end++)
        for (int count = 0; count <= PIECE; count++) {
            widen_floats(s, count, at_end);
            widen_halves(s, HEADWAY_STORED_F16, (unsigned)below(s, 0x10000), count, at_end);
            widen_halves(s, HEADWAY_STORED_BF16, (unsigned)below(s, 0x10000), count, at_end);
            widen_bytes(s, below(s, 255) - 127, count, scales[below(s, 8)], at_end);
        }
    for (unsigned first = 0; first < 0x10000; first += PIECE) {
        widen_halves(s, HEADWAY_STORED_F16, first, PIECE, below(s, 2));
        widen_halves(s, HEADWAY_STORED_BF16, first, PIECE, below(s, 2));
    }
    for (int i = 0; i < 8; i++) {
        widen_bytes(s, -127, PIECE, scales[i], below(s, 2));
        widen_bytes(s, 0, PIECE, scales[i], below(s, 2));
    }
}

/* ---- narrow to halves ------------------------------------------------------------------------ */

/* The half's value by the rule: nearest, of two as near the even one. */
static float rounded(float x, enum headway_storage storage)
{
    const int places = places_of(storage), least = 1 - bias_of(storage);
    if (!isfinite(x) || x == 0)
        return x;
    const int exponent = ilogbf(x) > least ? ilogbf(x) : least;
    const double whole = nearbyint(ldexp((double)x, places - exponent));
    const double value = ldexp(whole, exponent - places);
    if (fabs(value) >= ldexp(1, bias_of(storage) + 1))
        return copysignf(INFINITY, x);
    return (float)copysign(value, x);
}

static void narrow_piece(struct subject *s, enum headway_storage storage, const float *given,
                         int count, int at_end)
{
    const float kept = 0x1.23p4f;
    int finite = 1;

    label(s, "storage %d line of %d from %08x at_end %d", storage, count,
          count ? (unsigned)bits_of(given[0]) : 0, at_end);
    for (int j = 0; j < count; j++)
        finite &= isfinite(rounded(given[j], storage)) != 0;
    float *line = guarded(given, count, at_end);
    float *scale = guarded(&kept, 1, at_end);
    uint16_t *stored = check_guard((size_t)count * sizeof *stored, at_end);

    environment_enter();
    s->row->narrow(stored, line, count, storage, scale);
    environment_leave(s, finite);

    for (int j = 0; j < count; j++) {
        const float got = float_of(stored[j], storage), want = rounded(given[j], storage);
        if (bits_of(got) != bits_of(want) && !(isnan(got) && isnan(want))) {
            CHECK(0, "%s: %a is kept as %04x, %a, expected %a", s->label, (double)given[j],
                  stored[j], (double)got, (double)want);
            break;
        }
    }
    check_guard_free(stored);
    release_read_only(s, scale, &kept, sizeof kept, "scale");
    release_read_only(s, line, given, (size_t)count * sizeof *line, "the line");
}

/* Every half itself, its neighbours' middle and the floats around: line after line. */
static void narrow_all(struct subject *s, enum headway_storage storage)
{
    const int shift = storage == HEADWAY_STORED_BF16 ? 16 : 13;
    const int step = s->quick ? 7 : 1;
    float line[PIECE];
    int count = 0, length = PIECE;

    for (unsigned half = 0; half < 0x10000; half += step) {
        const float value = float_of(half, storage);
        const uint32_t bits = bits_of(value);
        const uint32_t middle = 1u << (shift - 1);
        /* Of subnormal F16 the middle is elsewhere. */
        const float next = float_of(half + 1 < 0x10000 ? half + 1 : half, storage);
        const float between = value / 2 + next / 2;
        const float these[] = {value,
                               float_of_bits(bits + 1),
                               float_of_bits(bits + middle - 1),
                               float_of_bits(bits + middle),
                               float_of_bits(bits + middle + 1),
                               float_of_bits(bits + 2 * middle - 1),
                               between,
                               nextafterf(between, value),
                               nextafterf(between, next)};
        for (int i = 0; i < 9; i++) {
            line[count++] = these[i];
            if (count == length) {
                narrow_piece(s, storage, line, count, below(s, 2));
                count = 0;
                length = below(s, 2) ? PIECE : 1 + below(s, PIECE);
            }
        }
    }
    narrow_piece(s, storage, line, count, 1);
}

/* One value of a line of zeros, in every place. */
static void narrow_known(struct subject *s, enum headway_storage storage, uint32_t bits,
                         unsigned expected)
{
    float line[40];
    uint16_t stored[40];
    float scale = 0;

    label(s, "storage %d of %08x", storage, (unsigned)bits);
    for (int j = 0; j < 40; j++) {
        memset(line, 0, sizeof line);
        line[j] = float_of_bits(bits);
        s->row->narrow(stored, line, 40, storage, &scale);
        for (int i = 0; i < 40; i++)
            CHECK(stored[i] == (i == j ? expected : 0), "%s: element %d of %d is %04x", s->label, i,
                  j, stored[i]);
    }
}

/* ---- narrow to bytes ------------------------------------------------------------------------- */

static void narrow_bytes(struct subject *s, const float *given, int count, int at_end)
{
    float most = 0, scale_expected = 0, times = 0;
    int finite = 1;
    int8_t expected[PIECE] = {0};

    label(s, "bytes, line of %d from %a at_end %d", count, count ? (double)given[0] : 0.0, at_end);
    for (int j = 0; j < count; j++) {
        finite &= isfinite(given[j]) != 0;
        most = fabsf(given[j]) > most ? fabsf(given[j]) : most;
    }
    if (!finite) {
        scale_expected = NAN;
    } else if (most >= 0x1p-100f) {
        scale_expected = most / 127;
        times = 127 / most;
        for (int j = 0; j < count; j++) {
            const float product = given[j] * times;
            expected[j] = (int8_t)nearbyint((double)product);
        }
    }
    float *line = guarded(given, count, at_end);
    float *scale = check_guard(sizeof *scale, at_end);
    int8_t *stored = check_guard((size_t)count, at_end);

    environment_enter();
    s->row->narrow(stored, line, count, HEADWAY_STORED_I8, scale);
    environment_leave(s, finite);

    check_bits(scale, &scale_expected, 1, s->label);
    for (int j = 0; j < count; j++) {
        CHECK(stored[j] == expected[j], "%s: element %d, %a, is %d, expected %d", s->label, j,
              (double)given[j], stored[j], expected[j]);
        /* Half a step, and the rounding of scale, its inverse and the product. */
        const double error = fabs((double)stored[j] * (double)*scale - (double)given[j]);
        const double bound = (double)most / 254 * (1 + 0x1p-14);
        CHECK(times == 0 || error <= bound, "%s: element %d is %a off", s->label, j, error);
    }
    check_guard_free(stored);
    check_guard_free(scale);
    release_read_only(s, line, given, (size_t)count * sizeof *line, "the line");
}

static void narrow_lines(struct subject *s)
{
    static const float mosts[] = {1,
                                  0x1p-100f,
                                  0x1.fffffep-101f,
                                  0x1p-149f,
                                  0,
                                  FLT_MAX,
                                  0x1.8p-99f,
                                  NAN,
                                  INFINITY,
                                  -INFINITY,
                                  -FLT_MAX,
                                  0x1.555556p20f,
                                  3e-39f,
                                  127,
                                  254,
                                  0x1.fep-9f,
                                  0x1.fffffep-1f};
    float line[PIECE];

    for (int count = 0; count <= PIECE; count += s->quick ? 3 : 1)
        for (int i = 0; i < 17; i++) {
            const float size = isfinite(mosts[i]) ? fabsf(mosts[i]) : 1;
            for (int j = 0; j < count; j++)
                line[j] = check_uniform(&s->random, -1, 1) * size;
            /* Ties where the scale is a whole number's inverse. */
            for (int j = 0; j < count && i >= 13 && i < 15; j++)
                line[j] = (float)(below(s, 508) - 254) * size / 254;
            if (count)
                line[below(s, count)] = mosts[i];
            narrow_bytes(s, line, count, below(s, 2));
        }
}

void check_narrow(struct subject *s)
{
    float line[PIECE];

    narrow_all(s, HEADWAY_STORED_F16);
    narrow_all(s, HEADWAY_STORED_BF16);
    for (int i = 0; i < (s->quick ? 50 : 500); i++)
        for (int storage = HEADWAY_STORED_F16; storage <= HEADWAY_STORED_BF16; storage++) {
            for (int j = 0; j < PIECE; j++)
                line[j] = float_of_bits((uint32_t)check_random(&s->random));
            narrow_piece(s, (enum headway_storage)storage, line, below(s, PIECE + 1), below(s, 2));
        }
    static const unsigned known[][2] = {
        {0x3E89CCD5, 0x3E8A}, {0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x7F7FFFFF, 0x7F80},
        {0xFF7F8000, 0xFF80}, {0x00008000, 0x0000}, {0x80008001, 0x8001}, {0x00018000, 0x0002},
        {0x7F800000, 0x7F80}, {0x80000000, 0x8000}};
    for (int i = 0; i < 10; i++)
        narrow_known(s, HEADWAY_STORED_BF16, known[i][0], known[i][1]);
    static const unsigned known_f16[][2] = {
        {0x477FEFFF, 0x7BFF}, {0x477FF000, 0x7C00}, {0xC77FF000, 0xFC00}, {0x33000000, 0x0000},
        {0x33000001, 0x0001}, {0x33C00000, 0x0002}, {0x387FE000, 0x0400}, {0x3F801000, 0x3C00},
        {0x3F803000, 0x3C02}, {0x80000001, 0x8000}};
    for (int i = 0; i < 10; i++)
        narrow_known(s, HEADWAY_STORED_F16, known_f16[i][0], known_f16[i][1]);
    for (int count = 0; count <= PIECE; count++) {
        label(s, "floats, %d of them", count);
        fill_normal(s, line, count, 1);
        const float kept = 3;
        float *from = guarded(line, count, 1), *scale = guarded(&kept, 1, 1);
        float *stored = check_guard((size_t)count * sizeof *stored, count % 2);
        s->row->narrow(stored, from, count, HEADWAY_STORED_F32, scale);
        release_written(s, stored, line, count, count ? count : 1, count ? count : 1, "stored");
        release_read_only(s, scale, &kept, sizeof kept, "scale");
        release_read_only(s, from, line, (size_t)count * sizeof *line, "the line");
    }
    narrow_lines(s);
}
