/* bits: every number of lines and every length, each line in guarded memory of its own. */
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
