/* Outputs that overlap an input or themselves, against brute force; packed tensors that do not. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check_api.h"

enum { ROOM = 4096, FREE = 0, INPUT = 1, OUTPUT = 2 };

static _Alignas(64) unsigned char workspace[1 << 20];
static float memory[ROOM];
static unsigned char owner[ROOM];

/* Notes who owns each element; returns whether it had another owner before: itself, if an output.
 */
static int take_elements(const headway_tensor *t, unsigned char who)
{
    int clash = 0;
    for (int64_t a = 0; a < t->shape[0]; a++)
        for (int64_t b = 0; b < t->shape[1]; b++)
            for (int64_t c = 0; c < t->shape[2]; c++)
                for (int64_t d = 0; d < t->shape[3]; d++) {
                    const int64_t at = (float *)t->data - memory + (a ? a * t->stride[0] : 0) +
                                       b * t->stride[1] + c * t->stride[2] + d * t->stride[3];
                    clash |= owner[at] == OUTPUT || (who == OUTPUT && owner[at] != FREE);
                    owner[at] = who;
                }
    return clash;
}

static int64_t below(uint64_t *random, int64_t n)
{
    return (int64_t)(check_random(random) % (uint64_t)n);
}

/* Somewhere near the middle, where no stride used here leaves the room. */
static headway_tensor anywhere(uint64_t *random, const int64_t shape[4])
{
    static const int64_t strides[] = {0,  1,  2,  3,  4,  5,  6,  8,  9,  12,
                                      16, 18, 24, 27, 36, 48, 54, 72, 108};
    headway_tensor t =
        headway_tensor_dense(memory + ROOM / 2 + below(random, 120), HEADWAY_F32, 4, shape);
    for (int axis = 0; axis < 3; axis++) {
        t.stride[axis] = strides[below(random, COUNT(strides))];
        if (below(random, 5) == 0)
            t.stride[axis] = -t.stride[axis];
    }
    return t;
}

static void check_against_force(void)
{
    uint64_t random = check_seed;
    int overlapping = 0, apart = 0, careful = 0;
    if (!check_case("overlap: as brute force finds it"))
        return;
    for (int n = 0; n < 60000; n++) {
        const int64_t b = 1 + below(&random, 2), lq = 1 + below(&random, 3),
                      lk = 1 + below(&random, 3);
        const int64_t h = 1 + below(&random, 2), d = 1 + below(&random, 4),
                      dv = 1 + below(&random, 4);
        const int64_t query_shape[4] = {b, lq, h, d}, key_shape[4] = {b, lk, h, d};
        const int64_t value_shape[4] = {b, lk, h, dv}, out_shape[4] = {b, lq, h, dv};
        const headway_tensor query = anywhere(&random, query_shape),
                             key = anywhere(&random, key_shape);
        const headway_tensor value = anywhere(&random, value_shape),
                             out = anywhere(&random, out_shape);
        memset(owner, FREE, sizeof owner);
        take_elements(&query, INPUT);
        take_elements(&key, INPUT);
        take_elements(&value, INPUT);
        const int clash = take_elements(&out, OUTPUT);
        const headway_status status = headway_attention(engine, NULL, &query, &key, &value, &out,
                                                        workspace, sizeof workspace);
        CHECK(status == HEADWAY_ERROR_OVERLAP || status == HEADWAY_OK, "%s",
              headway_status_text(status));
        CHECK(!clash || status == HEADWAY_ERROR_OVERLAP, "an overlap that was not seen (%d)", n);
        overlapping += clash;
        apart += !clash;
        careful += !clash && status != HEADWAY_OK;
    }
    CHECK(overlapping > 1000 && apart > 1000 && careful < apart,
          "%d overlap, %d do not, of which %d are refused", overlapping, apart, careful);
}

/* Query, key, value and out side by side in one buffer, by token, by head or by batch, in all
 * orders. */
static void check_packed(void)
{
    for (int by = 0; by < 4; by++)
        for (int order = 0; order < 24; order++) {
            /* Where the batch is 1 its stride means nothing. */
            const int64_t b = 1 + order % 2, l = 3, h = 2, d = 4;
            const int64_t shape[4] = {b, l, h, d};
            headway_tensor t[4];
            int place[4] = {order / 6, order / 2 % 3, order % 2, 0}, seat[4], taken[4] = {0};
            if (!check_case("overlap: packed by axis %d, order %d", by, order))
                continue;
            for (int i = 0; i < 4; i++) {
                int s = 0, left = place[i];
                while (taken[s] || left-- > 0)
                    s++;
                taken[s] = 1;
                seat[i] = s;
            }
            for (int i = 0; i < 4; i++) {
                int64_t step = 1;
                t[i] = headway_tensor_dense(memory, HEADWAY_F32, 4, shape);
                for (int axis = 3; axis >= 0; axis--) {
                    t[i].stride[axis] = step;
                    step *= shape[axis];
                    if (axis == 3 - by) {
                        t[i].data = memory + seat[i] * step;
                        step *= 4;
                    }
                }
                if (b == 1)
                    t[i].stride[0] = INT64_MIN;
                check_fill_normal(&(uint64_t){check_seed}, memory, 4 * b * l * h * d, 1);
            }
            memset(owner, FREE, sizeof owner);
            take_elements(&t[0], INPUT);
            take_elements(&t[1], INPUT);
            take_elements(&t[2], INPUT);
            CHECK(!take_elements(&t[3], OUTPUT), "the case is wrong");
            const headway_status status = headway_attention(engine, NULL, &t[0], &t[1], &t[2],
                                                            &t[3], workspace, sizeof workspace);
            CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
        }
}

/* Each operand in turn lies in the workspace. */
static void check_workspace_apart(void)
{
    static const char *const names[] = {"query", "key", "value",   "out",
                                        "mask",  "lse", "weights", "interval"};
    static const int ranks[] = {4, 4, 4, 4, 2, 3, 4, 2};
    static const int64_t shapes[][4] = {{1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8},
                                        {4, 4},       {1, 2, 4},    {1, 2, 4, 4}, {4, 2}};
    for (int in = 0; in < COUNT(names); in++) {
        headway_tensor t[COUNT(names)];
        char words[64];
        size_t bytes = 0;
        if (!check_case("overlap: %s in the workspace", names[in]))
            continue;
        for (int i = 0; i < COUNT(names); i++) {
            void *data = i == in ? (void *)(workspace + 64) : (void *)(memory + i * 256);
            t[i] =
                headway_tensor_dense(data, i == 7 ? HEADWAY_I32 : HEADWAY_F32, ranks[i], shapes[i]);
        }
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        params.mask = &t[4];
        params.lse = &t[5];
        params.weights = &t[6];
        params.interval = &t[7];
        memset(workspace, 0, 4096);
        CHECK(headway_attention_workspace(engine, &params, &t[0], &t[1], &t[2], &bytes) ==
                      HEADWAY_OK &&
                  bytes <= sizeof workspace,
              "no workspace");
        snprintf(words, sizeof words, "workspace: overlaps %s", names[in]);
        expect_error(headway_attention(engine, &params, &t[0], &t[1], &t[2], &t[3], workspace,
                                       sizeof workspace),
                     HEADWAY_ERROR_OVERLAP, words);
    }
}

void check_overlaps(void)
{
    check_workspace_apart();
    check_against_force();
    check_packed();
}
