/* Every edge of tiles, vectors, blocks and segments; head sizes; groups; masks; causality. */
#include <math.h>

#include "check_attention.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static const int64_t lengths[] = {1,  2,   7,   15,  16,  17,  31,  33,  47,  48,  49,   63,  64,
                                  65, 127, 128, 129, 255, 257, 511, 512, 513, 640, 1025, 1300};
static const int64_t sizes[] = {1, 3, 8, 17, 32, 40, 64, 72, 80, 128, 256, 576};
static const int64_t heads[][2] = {{1, 1}, {2, 1}, {3, 3}, {3, 1}, {4, 1}, {7, 1},
                                   {8, 1}, {8, 2}, {6, 3}, {4, 4}, {14, 2}};

static double most_cost(void)
{
    return quick ? 8e4 : 2e7;
}

/* Options that move on from case to case, each at a pace of its own. */
static void add_options(struct problem *p, int n)
{
    static const unsigned axes[] = {15, 12, 8, 4, 14, 13, 9, 0};
    static const enum mask_kind kinds[] = {MASK_BOOL, MASK_F32, MASK_BOOL, MASK_F16, MASK_BF16};
    static const int64_t windows[] = {0, 1, 15, 16, 64, 127, 128, 129, 500, -1};
    p->weights = n % 5 == 2 ? (enum weights_kind)(1 + n % 2) : WEIGHTS_NONE;
    if (p->weights == WEIGHTS_NONE && n % 6 == 1)
        problem_pack(p);
    else
        problem_lengths(p, n % 3 == 1, n % 5 >= 3);
    problem_causal(p, (headway_causal)(n % 4));
    p->has_offsets = n % 8 == 4;
    if (n % 7 >= 3)
        problem_mask(p, kinds[n % 5], 4, axes[n / 2 % COUNT(axes)]);
    if (n % 4 == 1) {
        p->window_left = windows[n / 4 % COUNT(windows)];
        p->window_right = windows[n / 3 % COUNT(windows)];
    }
    if (n % 9 == 4)
        problem_interval(p, n % 2 ? p->shape.batch : n % 4 / 2);
    if (n % 10 == 3)
        p->softcap = 1.0f + (float)(n % 50);
    if (n % 8 == 2)
        problem_slopes(p);
    if (n % 6 == 5)
        problem_sinks(p);
    if (n % 11 == 0) {
        p->has_scale = 1;
        p->scale = -0.3f;
    }
}

/* Cheap enough by giving up batch, heads and head size, in that order; NULL when that isn't enough.
 */
static struct problem *affordable(struct shape s, int n)
{
    for (int step = 0; step < 4; step++) {
        struct problem *p = problem_make(&s, (uint64_t)n);
        if (problem_cost(p) <= most_cost())
            return p;
        problem_free(p);
        if (step == 0)
            s.batch = 1;
        else if (step == 1)
            s.heads = s.kv_heads = 1;
        else
            s.size = s.value_size = step == 2 ? 8 : 1;
    }
    return NULL;
}

static void run_lengths(int64_t queries, int64_t keys, int n)
{
    const int64_t *pair = heads[n % COUNT(heads)];
    const int64_t size = sizes[n % (COUNT(sizes) - 2)],
                  value_size = sizes[n * 5 / 2 % (COUNT(sizes) - 2)];
    struct shape s = {1 + n % 3, queries, keys, pair[0], pair[1], size, value_size};
    struct problem *p = affordable(s, n);
    if (!p)
        return;
    add_options(p, n);
    run(p, "lengths");
}

static void run_heads_and_sizes(void)
{
    for (int n = 0; n < COUNT(sizes); n++) {
        const struct shape same = {1, 19, 140, 2, 1, sizes[n], sizes[n]};
        const struct shape other = {2, 9, 131, 1, 1, sizes[n], sizes[(n * 5 + 3) % COUNT(sizes)]};
        struct problem *p = problem_make(&same, (uint64_t)n);
        run(p, "sizes");
        p = problem_make(&other, (uint64_t)n);
        add_options(p, n + 2);
        run(p, "sizes");
    }
    for (int n = 0; n < COUNT(heads); n++) {
        const struct shape s = {1 + n % 2, 21, 135, heads[n][0], heads[n][1], 24, 20};
        struct problem *p = problem_make(&s, (uint64_t)n);
        run(p, "groups");
        p = problem_make(&s, (uint64_t)n);
        add_options(p, n * 3 + 3);
        run(p, "groups");
    }
}

/* Sizes of about 2^0 .. 2^most, every size as likely to be below as above the middle of those. */
static int64_t any_size(uint64_t *random, int most)
{
    const uint64_t bits = check_random(random) % (uint64_t)(most + 1);
    return (int64_t)((UINT64_C(1) << bits) + check_random(random) % (UINT64_C(1) << bits));
}

static void run_random(int count)
{
    uint64_t random = check_seed + 77;
    for (int n = 0; n < count; n++) {
        const int64_t kv_heads = 1 + (int64_t)(check_random(&random) % 3);
        const int64_t group = 1 + (int64_t)(check_random(&random) % 9);
        const struct shape s = {any_size(&random, 1),
                                any_size(&random, 8),
                                any_size(&random, 9),
                                kv_heads * group,
                                kv_heads,
                                any_size(&random, 6),
                                any_size(&random, 6)};
        struct problem *p = affordable(s, n);
        if (!p)
            continue;
        add_options(p, (int)(check_random(&random) % 100000));
        run(p, "random");
    }
}

void check_shapes(void)
{
    const int n = COUNT(lengths);
    for (int i = 0; i < n; i++) {
        run_lengths(lengths[i], lengths[i], 3 * i);
        run_lengths(lengths[i], lengths[(i * 7 + 5) % n], 3 * i + 1);
        run_lengths(lengths[(i * 11 + 3) % n], lengths[i], 3 * i + 2);
        run_lengths(1, lengths[i], 3 * i + 4);
    }
    run_heads_and_sizes();
    run_random(quick ? 20 : 200);
}

static void run_offsets(void)
{
    static const int64_t offsets[] = {
        INT64_MIN, INT64_MIN + 1, -1000, -41,  -40,           -39,      -1, 0, 1, 87,
        88,        127,           128,   1000, INT64_MAX - 1, INT64_MAX};
    const struct shape s = {2, 40, 170, 2, 1, 12, 10};
    for (int n = 0; n < COUNT(offsets); n++) {
        struct problem *p = problem_make(&s, (uint64_t)n);
        p->causal = HEADWAY_CAUSAL_OFFSETS;
        p->offsets[0] = offsets[n];
        p->offsets[1] = offsets[COUNT(offsets) - 1 - n];
        run(p, "offsets");
    }
    for (int n = 0; n < COUNT(offsets); n++) {
        static const int64_t windows[] = {0, 30, -1, 200, INT64_MAX - 1};
        struct problem *p = problem_make(&s, (uint64_t)n);
        p->has_offsets = 1;
        p->offsets[0] = offsets[n];
        p->offsets[1] = offsets[COUNT(offsets) - 1 - n];
        p->window_left = windows[n % 5];
        p->window_right = windows[n / 3 % 5];
        run(p, "offsets");
    }
}

static void run_scales(void)
{
    static const float scales[] = {0.0f, -0.0f, 1.0f, -0.5f, 1e-30f, 40.0f, -1e4f};
    const struct shape s = {1, 23, 150, 2, 2, 16, 16};
    for (int n = 0; n < COUNT(scales); n++) {
        struct problem *p = problem_make(&s, (uint64_t)n);
        p->has_scale = 1;
        p->scale = scales[n];
        if (n % 2)
            problem_mask(p, MASK_F32, 2, 12);
        run(p, "scales");
    }
}

void check_masks(void)
{
    const struct shape s = {2, 35, 150, 4, 2, 16, 24};
    int n = 0;
    for (int kind = MASK_BOOL; kind <= MASK_BF16; kind++)
        for (int rank = 1; rank <= 4; rank += rank == 1 ? 1 : 2)
            for (unsigned full = 0; full < 16; full++) {
                if (full & ((1u << (4 - rank)) - 1))
                    continue;
                struct problem *p = problem_make(&s, full);
                if (n % 3 == 1)
                    problem_lengths(p, 1, 1);
                if (n % 4 == 2)
                    problem_causal(p, HEADWAY_CAUSAL_OFFSETS);
                problem_mask(p, (enum mask_kind)kind, rank, full);
                n++;
                run(p, "masks");
            }
    run_offsets();
    run_scales();
}
