/* bits: every number of lines and every length, each line in guarded memory of its own. widen: every
 * half, in pieces of every length. */
#include <math.h>
#include <string.h>

#include "check_kernels.h"

enum { LINES = HEADWAY_MAX_WIDTH, KEYS = HEADWAY_KEY_BLOCK };

static unsigned char line_data[LINES][KEYS];

static void bits_case(struct subject *s, int n, int k, int at_end)
{
    const unsigned char *lines[LINES];
    unsigned char *memory[LINES];
    uint64_t expected[KEYS];
    const int many = below(s, 3);

    label(s, "n %d k %d at_end %d", n, k, at_end);
    memset(expected, 0, sizeof expected);
    for (int j = 0; j < n; j++) {
        for (int p = 0; p < k; p++) {
            /* Any byte but 0 is true, of which some differ from 0 in their first or last bit. */
            static const unsigned char truths[] = {1, 0x80, 0xff, 0x10, 2, 0x7f};
            const int truth = below(s, 4) <= many;
            line_data[j][p] = truth ? truths[below(s, 6)] : 0;
            expected[p] |= (uint64_t)truth << j;
        }
        memory[j] = check_guard((size_t)k, at_end);
        memcpy(memory[j], line_data[j], (size_t)k);
        lines[j] = memory[j];
    }
    const unsigned char **guarded_lines = check_guard((size_t)n * sizeof *lines, at_end);
    memcpy(guarded_lines, lines, (size_t)n * sizeof *lines);
    uint64_t *allowed = check_guard((size_t)k * sizeof *allowed, at_end);

    environment_enter();
    s->row->bits(allowed, guarded_lines, n, k);
    environment_leave(s, 1);

    for (int p = 0; p < k; p++)
        if (allowed[p] != expected[p]) {
            CHECK(0, "%s: key %d is %016llx, expected %016llx", s->label, p,
                  (unsigned long long)allowed[p], (unsigned long long)expected[p]);
            break;
        }
    check_guard_free(allowed);
    release_read_only(s, guarded_lines, lines, (size_t)n * sizeof *lines, "lines");
    for (int j = n; j-- > 0;)
        release_read_only(s, memory[j], line_data[j], (size_t)k, "a line");
}

void check_bits_kernel(struct subject *s)
{
    const int step = s->quick ? 23 : 1;
    for (int n = 0; n <= LINES; n++)
        for (int k = s->quick ? below(s, step) : 0; k <= KEYS; k += step)
            bits_case(s, n, k, below(s, 2));
}

/* What the half means, by its definition. */
static float float_of(unsigned half, int bfloat)
{
    const int places = bfloat ? 7 : 10, bias = bfloat ? 127 : 15;
    const int fraction = (int)(half & ((1u << places) - 1));
    const int exponent = (int)((half & 0x7fff) >> places);
    float size = ldexpf((float)fraction, 1 - bias - places);
    if (exponent == 2 * bias + 1)
        size = fraction ? NAN : INFINITY;
    else if (exponent > 0)
        size = ldexpf((float)(fraction + (1 << places)), exponent - bias - places);
    return half & 0x8000 ? -size : size;
}

static void widen_case(struct subject *s, unsigned first, int count, int bfloat, int at_end)
{
    uint16_t given[KEYS];
    float expected[KEYS];
    int numbers = 1;

    label(s, "halves from %u, %d of them, bfloat %d at_end %d", first, count, bfloat, at_end);
    for (int j = 0; j < count; j++) {
        given[j] = (uint16_t)(first + (unsigned)j);
        expected[j] = float_of(given[j], bfloat);
        numbers &= !isnan(expected[j]);
    }
    uint16_t *halves = check_guard((size_t)count * sizeof *halves, at_end);
    memcpy(halves, given, (size_t)count * sizeof *halves);
    float *line = check_guard((size_t)count * sizeof *line, at_end);

    environment_enter();
    s->row->widen(line, halves, count, bfloat ? HEADWAY_STORED_BF16 : HEADWAY_STORED_F16, 1.0f);
    environment_leave(s, numbers);

    for (int j = 0; j < count; j++)
        if (memcmp(&line[j], &expected[j], sizeof line[j]) &&
            !(isnan(line[j]) && isnan(expected[j]))) {
            CHECK(0, "%s: half %04x is %a, expected %a", s->label, given[j], line[j], expected[j]);
            break;
        }
    check_guard_free(line);
    release_read_only(s, halves, given, (size_t)count * sizeof *halves, "halves");
}

void check_widen(struct subject *s)
{
    for (int bfloat = 0; bfloat < 2; bfloat++) {
        for (unsigned first = 0; first < 0x10000; first += KEYS)
            widen_case(s, first, KEYS, bfloat, below(s, 2));
        for (int count = 0; count < KEYS; count++)
            for (int at_end = 0; at_end < 2; at_end++)
                widen_case(s, (unsigned)below(s, 0x10000), count, bfloat, at_end);
    }
}
