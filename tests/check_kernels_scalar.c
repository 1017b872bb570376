/* The scalar row over tiles of any width: a slice of its lanes at a time. */
#include <stdlib.h>
#include <string.h>

#include "check_kernels.h"

enum { MAX_LANES = 16, MAX_LENGTH = 1024 };

const struct headway_row *scalar_row(void)
{
    const struct headway_row_entry *entry;
    for (int i = 0; (entry = headway_row_at(i)) != NULL; i++)
        if (strcmp(entry->name, "scalar") == 0)
            return entry->row;
    return NULL;
}

static void slice_in(float *to, const float *from, int64_t lines, int width, int at, int n)
{
    for (int64_t j = 0; j < lines; j++)
        memcpy(to + j * n, from + j * width + at, (size_t)n * sizeof *to);
}

static void slice_out(float *to, const float *from, int64_t lines, int width, int at, int n)
{
    for (int64_t j = 0; j < lines; j++)
        memcpy(to + j * width + at, from + j * n, (size_t)n * sizeof *to);
}

void scalar_gemm(const struct headway_row *row, const struct headway_gemm *g)
{
    static float b[MAX_LENGTH * MAX_LANES];
    const struct headway_row *scalar = scalar_row();
    const int lanes = scalar->lanes, width = row->lanes * g->vectors;

    for (int at = 0; at < width; at += lanes) {
        const int v = at / row->lanes, l = at % row->lanes;
        int count = (g->count ? g->count[v] : row->lanes) - l;
        if (count <= 0)
            continue;
        count = count < lanes ? count : lanes;
        slice_in(b, g->b, g->k, width, at, lanes);
        struct headway_gemm part = *g;
        part.vectors = 1;
        part.b = b;
        part.c[0] = g->c[v] + l;
        part.count = &count;
        part.scale = g->scale ? g->scale + at : NULL;
        part.bias = g->bias ? g->bias + at : NULL;
        scalar->gemm(&part);
    }
}

void scalar_softmax(const struct headway_row *row, const struct headway_softmax *x)
{
    static float scores[HEADWAY_KEY_BLOCK * MAX_LANES], bias[HEADWAY_KEY_BLOCK * MAX_LANES];
    static uint64_t allowed[HEADWAY_KEY_BLOCK];
    const struct headway_row *scalar = scalar_row();
    const int lanes = scalar->lanes, width = row->lanes * x->vectors;

    for (int at = 0; at < width; at += lanes) {
        slice_in(scores, x->scores, x->keys, width, at, lanes);
        if (x->bias)
            slice_in(bias, x->bias, x->keys, width, at, lanes);
        for (int j = 0; x->allowed && j < x->keys; j++)
            allowed[j] = x->allowed[j] >> at;
        const struct headway_softmax part = {
            .keys = x->keys,
            .vectors = 1,
            .scores = scores,
            .cap = x->cap,
            .inverse_cap = x->inverse_cap,
            .slope = x->slope ? x->slope + at : NULL,
            .distance = x->distance ? x->distance + at : NULL,
            .bias = x->bias ? bias : NULL,
            .allowed = x->allowed ? allowed : NULL,
            .first = x->first ? x->first + at : NULL,
            .last = x->last ? x->last + at : NULL,
            .row_max = x->row_max + at,
            .row_sum = x->row_sum + at,
            .rescale = x->rescale + at,
        };
        scalar->softmax(&part);
        slice_out(x->scores, scores, x->keys, width, at, lanes);
    }
}

void scalar_merge(const struct headway_row *row, const struct headway_merge *g)
{
    static float sum[MAX_LENGTH * MAX_LANES], later[MAX_LENGTH * MAX_LANES];
    const struct headway_row *scalar = scalar_row();
    const int lanes = scalar->lanes, width = row->lanes * g->vectors;

    for (int at = 0; at < width; at += lanes) {
        slice_in(sum, g->sum, g->m, width, at, lanes);
        if (g->later)
            slice_in(later, g->later, g->m, width, at, lanes);
        const struct headway_merge part = {
            .m = g->m,
            .vectors = 1,
            .sum = sum,
            .row_max = g->row_max + at,
            .row_sum = g->row_sum + at,
            .later = g->later ? later : NULL,
            .later_max = g->later_max + at,
            .later_sum = g->later_sum + at,
        };
        scalar->merge(&part);
        slice_out(g->sum, sum, g->m, width, at, lanes);
    }
}

void scalar_pack(float *panel, int width, const float *const *lines, int n, int64_t k, float scale)
{
    static float part[MAX_LENGTH * MAX_LANES];
    const struct headway_row *scalar = scalar_row();
    const int lanes = scalar->lanes;

    for (int at = 0; at < width; at += lanes) {
        const int rest = n > at ? n - at : 0;
        scalar->pack(part, lanes, lines + (rest ? at : 0), rest < lanes ? rest : lanes, k, scale);
        slice_out(panel, part, k, width, at, lanes);
    }
}

int scalar_unpack(float *const *lines, int n, const float *panel, int width, int64_t k,
                  const float *divisor)
{
    static float part[MAX_LENGTH * MAX_LANES];
    const struct headway_row *scalar = scalar_row();
    const int lanes = scalar->lanes;
    int poison = 0;

    for (int at = 0; at < n; at += lanes) {
        slice_in(part, panel, k, width, at, lanes);
        poison |= scalar->unpack(lines + at, n - at < lanes ? n - at : lanes, part, lanes, k,
                                 divisor + at) != 0;
    }
    return poison;
}
