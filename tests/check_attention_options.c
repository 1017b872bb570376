/* Each option by itself at every edge of tiles, blocks and segments. */
#include <math.h>

#include "check_attention.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static const int64_t lengths[] = {1, 15, 16, 17, 33, 48, 63, 64, 65, 127, 128, 129, 300, 513, 700};
static const int64_t heads[][2] = {{1, 1}, {2, 1}, {3, 3}, {6, 2}, {17, 1}, {4, 4}};

/* Problems whose lengths are edges, n of them in all. */
static struct problem *edge(int n)
{
    const int64_t *pair = heads[n % COUNT(heads)];
    const struct shape s = {1 + n % 2,
                            lengths[n % COUNT(lengths)],
                            lengths[(n * 4 + n / COUNT(lengths)) % COUNT(lengths)],
                            pair[0],
                            pair[1],
                            quick ? 3 : 8,
                            quick ? 3 : 12};
    return problem_make(&s, (uint64_t)n);
}

static int edges(void)
{
    return quick ? COUNT(lengths) : 3 * COUNT(lengths);
}

static void run_windows(void)
{
    static const int64_t sides[] = {0, 1, 16, 63, 64, 127, 128, 256, -1};
    for (int n = 0; n < edges(); n++) {
        struct problem *p = edge(n);
        problem_causal(p, (headway_causal)(n % 4));
        p->has_offsets = n % 3 == 0 && p->causal == HEADWAY_CAUSAL_NONE;
        p->window_left = sides[n % COUNT(sides)];
        p->window_right = sides[(n / 2 + 3) % COUNT(sides)];
        run(p, "windows");
    }
}

static void run_intervals(void)
{
    for (int n = 0; n < edges(); n++) {
        struct problem *p = edge(n);
        problem_interval(p, n % 3 == 0 ? 0 : n % 3 == 1 ? 1 : p->shape.batch);
        run(p, "intervals");
        p = edge(n);
        /* Documents: rows see their own, of 40 keys each. */
        problem_interval(p, 1);
        for (int64_t i = 0; i < p->shape.queries; i++) {
            p->interval[2 * i] = (int32_t)(i / 40 * 40);
            p->interval[2 * i + 1] = (int32_t)(i / 40 * 40 + 40);
        }
        problem_causal(p, (headway_causal)(n % 2));
        run(p, "documents");
    }
}

static void run_packed(void)
{
    for (int n = 0; n < edges(); n++) {
        struct problem *p = edge(n);
        struct shape s = p->shape;
        problem_free(p);
        s.batch = 1 + n % 7;
        p = problem_make(&s, (uint64_t)n);
        problem_pack(p);
        problem_causal(p, (headway_causal)(n % 4));
        run(p, "packed");
    }
}

static void run_scores(void)
{
    static const float caps[] = {1e-3f, 0.5f, 5.0f, 50.0f, 1e6f};
    for (int n = 0; n < edges(); n++) {
        struct problem *p = edge(n);
        p->softcap = caps[n % COUNT(caps)];
        run(p, "softcap");
        p = edge(n);
        problem_causal(p, (headway_causal)(n % 4));
        p->has_offsets = n % 3 == 0 && p->causal == HEADWAY_CAUSAL_NONE;
        problem_slopes(p);
        run(p, "slopes");
        p = edge(n);
        problem_causal(p, (headway_causal)(n % 4));
        problem_sinks(p);
        if (n % 4 == 0)
            p->sinks[0] = 1e30f;
        if (n % 4 == 1)
            p->sinks[0] = -1e30f;
        run(p, "sinks");
    }
}

/* Queries so small that they lose digits under the scale, against keys so large that it counts. */
static void run_tiny_queries(void)
{
    static const float scales[] = {0.5f, 0.9f, -0.5f, 1.0f};
    for (int n = 0; n < COUNT(scales); n++) {
        const struct shape s = {1, 9, 2, 1, 1, 64, 1};
        struct problem *p = problem_make(&s, (uint64_t)n);
        for (int d = 0; d < 9 * 64; d++)
            p->query[d] = 0x1p-149f * (float)(1 + d / 64);
        for (int d = 0; d < 64; d++) {
            p->key[d] = 0x1p127f;
            p->key[64 + d] = 0;
        }
        p->has_scale = 1;
        p->scale = scales[n];
        p->weights = WEIGHTS_HEADS;
        run(p, "tiny queries");
    }
}

static void run_weights(void)
{
    for (int n = 0; n < edges(); n++)
        for (int kind = WEIGHTS_HEADS; kind <= WEIGHTS_MEAN; kind++) {
            struct problem *p = edge(n);
            problem_causal(p, (headway_causal)(n % 4));
            problem_lengths(p, n % 3 == 0, n % 3 == 1);
            p->weights = (enum weights_kind)kind;
            if (n % 2)
                problem_mask(p, n % 4 == 1 ? MASK_BOOL : MASK_F32, 4, n % 5 ? 15 : 10);
            run(p, "weights");
        }
}

/* Few rows of long keys: every size of a group, lanes up to those that tiles take over, and segments
 * that threads compute apart. */
static void run_few(void)
{
    static const int64_t groups[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 64};
    static const int64_t keys[] = {1, 17, 128, 513, 1023, 1024, 1025, 1537, 2100};
    for (int n = 0; n < (quick ? 1 : 3) * COUNT(groups); n++) {
        const int64_t group = groups[n % COUNT(groups)], kv_heads = 1 + n % 2;
        const struct shape s = {
            1 + n / 2 % 3,    1 + n % 5, keys[(n * 2 + n / COUNT(groups)) % COUNT(keys)],
            group * kv_heads, kv_heads,  n % 3 ? 17 : 64,
            n % 4 ? 35 : 16};
        struct problem *p = problem_make(&s, (uint64_t)n);
        problem_lengths(p, n % 4 == 1, n % 4 == 2);
        problem_causal(p, (headway_causal)(n % 4));
        if (n % 3 == 1)
            problem_sinks(p);
        if (n % 5 == 2)
            problem_mask(p, n % 2 ? MASK_BOOL : MASK_F32, 4, 15);
        if (n % 6 == 3)
            p->window_left = 700;
        p->weights = n % 4 == 3 ? WEIGHTS_HEADS : WEIGHTS_NONE;
        run(p, "few rows");
    }
}

/* Tiles of one head that go through keys together, as level 2 doesn't hold them. */
static void run_together(void)
{
    static const struct shape shapes[] = {{1, 5, 6100, 32, 2, 128, 120},
                                          {2, 30, 6100, 3, 1, 128, 128},
                                          {1, 101, 6200, 1, 1, 120, 128}};
    /* Emulators have no time for so many keys. */
    for (int n = 0; n < (quick ? 0 : 2 * COUNT(shapes)); n++) {
        struct problem *p = problem_make(&shapes[n / 2], (uint64_t)n);
        if (n % 2) {
            problem_lengths(p, 0, 1);
            problem_causal(p, HEADWAY_CAUSAL_BOTTOM_RIGHT);
            problem_sinks(p);
        }
        run(p, "tiles together");
    }
}

/* Everything at once. */
static void run_all(void)
{
    for (int n = 0; n < edges(); n++) {
        struct problem *p = edge(n);
        problem_lengths(p, n & 1, n & 2);
        problem_causal(p, (headway_causal)(n % 4));
        p->window_left = 90;
        p->window_right = 70;
        problem_interval(p, 1);
        p->softcap = 20;
        problem_slopes(p);
        problem_sinks(p);
        problem_mask(p, (enum mask_kind)(1 + n % 4), 4, 15);
        p->weights = (enum weights_kind)(n % 3);
        run(p, "all");
    }
}

void check_options(void)
{
    run_windows();
    run_intervals();
    run_packed();
    run_scores();
    run_tiny_queries();
    run_weights();
    run_few();
    run_together();
    run_all();
}
