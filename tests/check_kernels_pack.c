/* pack and unpack: every width, every number of lines, each line in guarded memory of its own. */
#include <math.h>
#include <string.h>

#include "check_kernels.h"

enum { MAX_K = 130, WIDTH = HEADWAY_MAX_WIDTH };

static float line_data[WIDTH][MAX_K], line_expected[WIDTH][MAX_K];
static float panel_data[MAX_K * WIDTH], panel_expected[MAX_K * WIDTH];
static float divisor_data[WIDTH];
static const int lengths[] = {0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 130};

static void sprinkle(struct subject *s, float *to, int64_t count)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, -0.0f, 0x1p-149f, -0x1p-130f, 0.0f};
    for (int64_t i = below(s, 20); i < count; i += 1 + below(s, 40))
        to[i] = special[below(s, 7)];
}

static void pack_case(struct subject *s, int width, int n, int k, int at_end)
{
    static const float scales[] = {1, 0.125f, 0x1.715476p-4f, -3};
    const float scale = scales[below(s, 4)];
    const int finite = below(s, 3) != 0;
    const float *lines[WIDTH];
    float *memory[WIDTH];

    label(s, "width %d n %d k %d scale %a at_end %d", width, n, k, (double)scale, at_end);
    for (int j = 0; j < n; j++) {
        fill_normal(s, line_data[j], k, 1);
        if (!finite)
            sprinkle(s, line_data[j], k);
        lines[j] = line_data[j];
    }
    check_poison(panel_data, (int64_t)k * width);
    memcpy(panel_expected, panel_data, (size_t)(k * width) * sizeof *panel_data);
    scalar_pack(panel_expected, width, lines, n, k, scale);
    for (int p = 0; p < k; p++)
        for (int j = 0; j < width; j++) {
            const float exact = j < n ? line_data[j][p] * scale : 0.0f;
            check_bits(&panel_expected[p * width + j], &exact, 1, s->label);
        }

    for (int j = 0; j < n; j++)
        lines[j] = memory[j] = guarded(line_data[j], k, at_end);
    const float **guarded_lines = check_guard((size_t)n * sizeof *lines, at_end);
    memcpy(guarded_lines, lines, (size_t)n * sizeof *lines);
    float *panel = guarded(panel_data, (int64_t)k * width, at_end);

    environment_enter();
    s->row->pack(panel, width, guarded_lines, n, k, scale);
    environment_leave(s, finite);

    release_written(s, panel, panel_expected, (int64_t)k * width, width, width, "panel");
    release_read_only(s, guarded_lines, lines, (size_t)n * sizeof *lines, "lines");
    for (int j = n; j-- > 0;)
        release_read_only(s, memory[j], line_data[j], (size_t)k * sizeof(float), "a line");
}

void check_pack(struct subject *s)
{
    const int step = s->quick ? 5 : 1;
    for (int width = s->row->lanes; width <= WIDTH; width += s->row->lanes)
        for (int n = 0; n <= width; n++)
            for (int i = s->quick ? below(s, step) : 0; i < 16; i += step) {
                if (width > s->row->lanes * 4 && i % 4)
                    continue;
                const int first = below(s, 2);
                pack_case(s, width, n, lengths[i], first);
                pack_case(s, width, n, lengths[i], !first);
            }
}

/* Divisors; those beyond n are poison, zeros or numbers, which must leave no trace. */
static void fill_divisor(struct subject *s, int n, int width, int finite)
{
    for (int j = 0; j < n; j++)
        divisor_data[j] = below(s, 4)   ? check_uniform(&s->random, 0.5f, 300)
                          : below(s, 2) ? 0
                                        : -0.0f;
    for (int j = 0; j < n && !finite; j++)
        if (below(s, 3) == 0)
            check_poison(divisor_data + j, 1);
    check_poison(divisor_data + n, width - n);
    const int beyond = below(s, 3);
    for (int j = n; j < width && beyond; j++)
        divisor_data[j] = (float)(beyond - 1);
}

static void unpack_case(struct subject *s, int width, int n, int k, int at_end)
{
    const int values = below(s, 4); /* 0: specials anywhere, 1: one NaN, else finite */
    float *lines[WIDTH], *memory[WIDTH];
    int exact_poison = 0;

    label(s, "width %d n %d k %d values %d at_end %d", width, n, k, values, at_end);
    fill_normal(s, panel_data, (int64_t)k * width, 1);
    fill_divisor(s, n, width, values != 0);
    if (values == 0)
        sprinkle(s, panel_data, (int64_t)k * width);
    if (values == 1 && n && k)
        panel_data[below(s, k) * width + below(s, n)] = NAN;
    if (below(s, 2))
        for (int p = 0; p < k; p++)
            check_poison(panel_data + p * width + n, width - n);
    for (int j = 0; j < n; j++) {
        check_poison(line_data[j], k);
        memcpy(line_expected[j], line_data[j], (size_t)k * sizeof(float));
        lines[j] = line_expected[j];
    }
    const int poison = scalar_unpack(lines, n, panel_data, width, k, divisor_data);
    for (int j = 0; j < n; j++)
        for (int p = 0; p < k; p++) {
            const float by = divisor_data[j], x = panel_data[p * width + j] + 0.0f;
            const float exact = by == 0 ? 0 : x / by, got = line_expected[j][p];
            const double wide = (double)x / by;
            if (isfinite(exact) && exact != 0) {
                const double unit = fmax(0.51 * scalbn(1, ilogbf(exact) - 23), 0x1p-149);
                CHECK(fabs(got - wide) <= unit, "%s: %a / %a is %a", s->label, x, by, got);
            } else {
                check_bits(&got, &exact, 1, s->label);
            }
            const float q = x * (1 / by);
            exact_poison |= by != 0 && !isnan(by) && isnan(fmaf(fmaf(-q, by, x), 1 / by, q));
        }
    CHECK(poison == exact_poison, "%s: the scalar row returns %d", s->label, poison);

    for (int j = 0; j < n; j++)
        lines[j] = memory[j] = guarded(line_data[j], k, at_end);
    float **guarded_lines = check_guard((size_t)n * sizeof *lines, at_end);
    memcpy(guarded_lines, lines, (size_t)n * sizeof *lines);
    float *panel = guarded(panel_data, (int64_t)k * width, at_end);
    float *divisor = guarded(divisor_data, width, at_end);

    environment_enter();
    const int got = s->row->unpack(guarded_lines, n, panel, width, k, divisor) != 0;
    environment_leave(s, values > 1);

    CHECK(got == poison, "%s: returns %d, expected %d", s->label, got, poison);
    release_read_only(s, panel, panel_data, (size_t)(k * width) * sizeof *panel, "panel");
    release_read_only(s, divisor, divisor_data, (size_t)width * sizeof *divisor, "divisor");
    release_read_only(s, guarded_lines, lines, (size_t)n * sizeof *lines, "lines");
    for (int j = n; j-- > 0;)
        release_written(s, memory[j], line_expected[j], k, k, k, "a line");
}

void check_unpack(struct subject *s)
{
    const int step = s->quick ? 5 : 1;
    for (int width = s->row->lanes; width <= WIDTH; width += s->row->lanes)
        for (int n = 0; n <= width; n++)
            for (int i = s->quick ? below(s, step) : 0; i < 16; i += step) {
                if (width > s->row->lanes * 4 && i % 4)
                    continue;
                const int first = below(s, 2);
                unpack_case(s, width, n, lengths[i], first);
                unpack_case(s, width, n, lengths[i], !first);
            }
}
