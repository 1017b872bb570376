/* What the rows' dot and mix share around their vectors. */
#ifndef HEADWAY_FEW_H
#define HEADWAY_FEW_H

#include <stddef.h>

#include "cpu/unroll.h"
#include "cpu/widen.h"

enum { HEADWAY_FEW_KEYS = 16, HEADWAY_FEW_LINE_BYTES = 64 };

INLINE int headway_few_bytes(enum headway_storage storage)
{
    return storage == HEADWAY_STORED_F32 ? 4 : storage == HEADWAY_STORED_I8 ? 1 : 2;
}

/* HEADWAY_FEW_KEYS rows; ahead is NULL if nothing is to be asked for, scale if it isn't I8. */
struct headway_few_keys {
    const char *const *row, *const *ahead;
    const float *scale;
};

/* The scores of keys first .. first + count - 1, which is what `keys` begins with. */
typedef void headway_few_dot_fn(const struct headway_dot *g, const struct headway_few_keys *keys,
                                int first, int count);

/* A dot product in blocks of HEADWAY_FEW_KEYS; the last row fills up the last one. */
static inline void headway_few_dot(const struct headway_dot *g, headway_few_dot_fn *some)
{
    const struct headway_rows *rows = g->keys;
    const char *const *row = (const char *const *)rows->row;
    const char *const *ahead = (const char *const *)rows->ahead;
    const int scaled = rows->storage == HEADWAY_STORED_I8;
    int first = 0;

    for (; first + HEADWAY_FEW_KEYS <= rows->count; first += HEADWAY_FEW_KEYS) {
        const struct headway_few_keys keys = {row + first, ahead ? ahead + first : NULL,
                                              scaled ? rows->scale + first : NULL};
        some(g, &keys, first, HEADWAY_FEW_KEYS);
    }
    if (first < rows->count) {
        const char *last_row[HEADWAY_FEW_KEYS], *last_ahead[HEADWAY_FEW_KEYS];
        float last_scale[HEADWAY_FEW_KEYS];
        for (int j = 0; j < HEADWAY_FEW_KEYS; j++) {
            const int i = first + j < rows->count ? first + j : rows->count - 1;
            last_row[j] = row[i];
            last_ahead[j] = ahead ? ahead[i] : NULL;
            last_scale[j] = scaled ? rows->scale[i] : 1.0f;
        }
        const struct headway_few_keys keys = {last_row, ahead ? last_ahead : NULL, last_scale};
        some(g, &keys, first, rows->count - first);
    }
}

/* Element p of each row. */
static inline void headway_few_column(float *column, const struct headway_few_keys *keys, int64_t p,
                                      enum headway_storage storage)
{
    for (int j = 0; j < HEADWAY_FEW_KEYS; j++)
        column[j] = headway_widen_at(keys->row[j], p, storage,
                                     storage == HEADWAY_STORED_I8 ? keys->scale[j] : 1.0f);
}

/* Elements d .. m - 1 of a mix, each on its own. */
static inline void headway_few_mix_rest(const struct headway_mix *g, int64_t d)
{
    const struct headway_rows *values = g->values;

    for (; d < g->m; d++)
        for (int l = 0; l < g->n; l++) {
            float *old = g->sum + l * g->pitch + d;
            float sum = g->fresh ? 0.0f : *old * g->rescale[l];
            for (int j = 0; j < values->count; j++) {
                const float scale = values->storage == HEADWAY_STORED_I8 ? values->scale[j] : 1.0f;
                sum = fmaf(headway_widen_at(values->row[j], d, values->storage, scale),
                           g->weights[(ptrdiff_t)j * g->width + l], sum);
            }
            *old = sum;
        }
}

#endif
