/* The options of headway_attention_params, one by one, into the problem that the core works on. */
#include <math.h>

#include "api/check.h"
#include "system/memory.h"

/* log2(e) / 2: what is multiplied by it in double is rounded once. */
#define EXP_UNIT 0.72134752044448170368
/* Within these a softcap and its inverse are normal floats in units of exp_poly.h too. */
#define LEAST_SOFTCAP 0x1p-125f
#define MOST_SOFTCAP 0x1p125f

static headway_status check_starts(const headway_engine *engine, const char *name,
                                   const int64_t *starts, int64_t sequences, int64_t packed,
                                   int64_t *longest)
{
    *longest = 0;
    if (starts[0] != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: %lld at 0, expected 0", name,
                            (long long)starts[0]);
    for (int64_t b = 0; b < sequences; b++) {
        if (starts[b + 1] < starts[b] || starts[b + 1] > packed)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "%s: %lld at %lld, expected %lld..%lld (never falling, up to the "
                                "packed length)",
                                name, (long long)starts[b + 1], (long long)b + 1,
                                (long long)starts[b], (long long)packed);
        if (starts[b + 1] - starts[b] > *longest)
            *longest = starts[b + 1] - starts[b];
    }
    if (starts[sequences] != packed)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: %lld at %lld, the last, expected %lld (the packed length)", name,
                            (long long)starts[sequences], (long long)sequences, (long long)packed);
    return HEADWAY_OK;
}

/* What may stand beside packed sequences. */
static headway_status check_packed(const headway_engine *engine,
                                   const headway_attention_params *params, int call, int64_t batch)
{
    if (!params->query_starts && params->key_starts)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "key_starts: given without query_starts, expected NULL");
    if (params->query_starts ? params->sequences < 0 : params->sequences != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "sequences: %lld %s query_starts, expected %s",
                            (long long)params->sequences, params->query_starts ? "with" : "without",
                            params->query_starts ? "0 or more" : "0");
    if (!params->query_starts)
        return HEADWAY_OK;
    if (batch != 1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "query_starts: given with a batch of %lld, expected 1 (sequences are "
                            "packed along the length)",
                            (long long)batch);
    const int key_lengths = params->key_lengths && (!params->cache || (call & HEADWAY_CALL_LAYER));
    if (params->query_lengths || key_lengths || params->weights)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: given with query_starts, expected NULL",
                            params->query_lengths ? "query_lengths"
                            : key_lengths         ? "key_lengths"
                                                  : "weights");
    return HEADWAY_OK;
}

/* The problem's sizes become those of a batch of sequences. */
static headway_status check_sequences(const headway_engine *engine,
                                      const headway_attention_params *params, int call,
                                      struct headway_problem *p)
{
    const int64_t rows = p->query_rows, keys = p->keys;
    const int key_tensor = !params->cache || HEADWAY_CALL_APPENDS_KEY(call);
    HEADWAY_TRY(check_packed(engine, params, call, p->batch));
    p->query_starts = params->query_starts;
    p->key_starts = params->key_starts ? params->key_starts : params->query_starts;
    if (!p->query_starts)
        return HEADWAY_OK;
    p->batch = params->sequences;
    HEADWAY_TRY(
        check_starts(engine, "query_starts", p->query_starts, p->batch, rows, &p->query_rows));
    if (!key_tensor || (params->cache && !params->key_starts && keys == 0)) {
        p->key_starts = NULL;
        return HEADWAY_OK;
    }
    if (!params->key_starts && keys != rows)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "key_starts: NULL with %lld packed keys for %lld query rows, expected "
                            "them unless both are the same",
                            (long long)keys, (long long)rows);
    return check_starts(engine, "key_starts", p->key_starts, p->batch, keys, &p->keys);
}

headway_status headway_check_lengths(const headway_engine *engine, const char *name,
                                     const int64_t *lengths, int64_t batch, int64_t most)
{
    for (int64_t b = 0; lengths && b < batch; b++)
        if (lengths[b] < 0 || lengths[b] > most)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "%s: %lld for batch %lld, expected 0..%lld", name,
                                (long long)lengths[b], (long long)b, (long long)most);
    return HEADWAY_OK;
}

static headway_status check_window(const headway_engine *engine, const char *name, int64_t given,
                                   int64_t *window)
{
    if (given < -1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: %lld, expected 0 or more, or -1 (unbounded)", name,
                            (long long)given);
    *window = given == -1 ? INT64_MAX : given;
    return HEADWAY_OK;
}

/* Where rows stand among the keys, and what that excludes. */
static headway_status check_places(const headway_engine *engine,
                                   const headway_attention_params *params,
                                   struct headway_problem *p)
{
    const headway_causal causal = params->causal;
    if ((unsigned)causal > HEADWAY_CAUSAL_OFFSETS)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "causal: %d, expected one of headway_causal (0..%d)", (int)causal,
                            HEADWAY_CAUSAL_OFFSETS);
    if (causal == HEADWAY_CAUSAL_OFFSETS && !params->row_offsets)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "row_offsets: NULL, expected (B) with HEADWAY_CAUSAL_OFFSETS");
    if (params->row_offsets && causal != HEADWAY_CAUSAL_OFFSETS && causal != HEADWAY_CAUSAL_NONE)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "row_offsets: given with causal %d, expected NULL (%s)", (int)causal,
                            causal == HEADWAY_CAUSAL_TOP_LEFT ? "HEADWAY_CAUSAL_TOP_LEFT"
                                                              : "HEADWAY_CAUSAL_BOTTOM_RIGHT");
    p->causal = causal != HEADWAY_CAUSAL_NONE;
    p->bottom_right = causal == HEADWAY_CAUSAL_BOTTOM_RIGHT;
    p->offsets = params->row_offsets;
    HEADWAY_TRY(check_window(engine, "window_left", params->window_left, &p->window_left));
    HEADWAY_TRY(check_window(engine, "window_right", params->window_right, &p->window_right));
    if (params->window_first < 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "window_first: %lld, expected 0 or more",
                            (long long)params->window_first);
    p->window_first = params->window_first;
    return HEADWAY_OK;
}

static headway_status check_both_lengths(const headway_engine *engine,
                                         const headway_attention_params *params, int call,
                                         struct headway_problem *p)
{
    HEADWAY_TRY(headway_check_lengths(engine, "query_lengths", params->query_lengths, p->batch,
                                      p->query_rows));
    p->query_lengths = params->query_lengths;
    if (params->cache)
        return headway_check_cached(engine, params, call, p);
    HEADWAY_TRY(
        headway_check_lengths(engine, "key_lengths", params->key_lengths, p->batch, p->keys));
    p->key_lengths = params->key_lengths;
    return HEADWAY_OK;
}

/* Distances j - (i + offset) stay within int32_t. */
static headway_status check_distances(const headway_engine *engine, const struct headway_problem *p)
{
    int64_t room = INT32_MAX;
    if (p->query_rows <= room)
        room -= p->query_rows;
    else
        room = -1;
    room = room < p->keys ? -1 : room - p->keys;
    /* Offsets of bottom-right causality are at most a length. */
    if (room < 0 || (p->bottom_right && (room < p->keys || room < p->query_rows)))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "alibi_slopes: given with lengths %lld and %lld, expected distances "
                            "below 2^31",
                            (long long)p->query_rows, (long long)p->keys);
    for (int64_t b = 0; p->offsets && b < p->batch; b++)
        if (p->offsets[b] > room || p->offsets[b] < -room)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "row_offsets: %lld for batch %lld, expected %lld..%lld with "
                                "alibi_slopes",
                                (long long)p->offsets[b], (long long)b, (long long)-room,
                                (long long)room);
    return HEADWAY_OK;
}

/* What changes scores and sums: scale, softcap, ALiBi, sinks. */
static headway_status check_numbers(const headway_engine *engine,
                                    const headway_attention_params *params,
                                    struct headway_problem *p)
{
    const double scale = params->scale ? *params->scale : 1.0 / sqrt((double)p->size);
    if (!isfinite(scale))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "scale: %g, expected a finite number",
                            scale);
    p->scale = (float)(scale * EXP_UNIT);
    if (params->softcap != 0 &&
        !(params->softcap >= LEAST_SOFTCAP && params->softcap <= MOST_SOFTCAP))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "softcap: %g, expected 0 (none) or 2^-125 .. 2^125",
                            (double)params->softcap);
    p->softcap = (float)(params->softcap * EXP_UNIT);
    p->slopes = params->alibi_slopes;
    p->sinks = params->sinks;
    for (int64_t h = 0; p->slopes && h < p->heads; h++)
        if (!isfinite(p->slopes[h]))
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "alibi_slopes: %g for head %lld, expected a finite number",
                                (double)p->slopes[h], (long long)h);
    for (int64_t h = 0; p->sinks && h < p->heads; h++)
        if (!(p->sinks[h] < INFINITY))
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "sinks: %g for head %lld, expected a finite number, or -inf (none)",
                                (double)p->sinks[h], (long long)h);
    return p->slopes ? check_distances(engine, p) : HEADWAY_OK;
}

/* What is asked for before its place is known must count in the plan. */
static void *place_of(const headway_tensor *tensor)
{
    static const float nowhere[1];
    return tensor->data ? tensor->data : (void *)nowhere;
}

static headway_status check_interval(const headway_engine *engine, const headway_tensor *interval,
                                     const struct headway_batch *batch, int64_t rows,
                                     struct headway_problem *p)
{
    const struct headway_form form = {"interval",
                                      "(B, Lq, 2)",
                                      HEADWAY_I32,
                                      2,
                                      {rows, 2},
                                      {"query's length", "first and end"},
                                      HEADWAY_SHARED_BATCH,
                                      1};
    headway_tensor flat;
    p->interval.data = NULL;
    if (!interval)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_form(engine, batch, &form, interval, &flat));
    p->interval.data = place_of(&flat);
    p->interval.batch = flat.stride[0];
    p->interval.row = flat.stride[1];
    p->interval.end = flat.stride[2];
    return HEADWAY_OK;
}

static headway_status check_mask(const headway_engine *engine, const headway_tensor *mask,
                                 const struct headway_batch *batch, struct headway_problem *p)
{
    static const enum headway_mask_kind kinds[] = {HEADWAY_MASK_F32, HEADWAY_MASK_F16,
                                                   HEADWAY_MASK_BF16, HEADWAY_MASK_BOOL};
    const int64_t full[3] = {p->heads, p->query_rows, p->keys};
    static const char *const why[3] = {"query's heads", "query's length", "key's length"};
    struct headway_form form = {.name = "mask",
                                .axes = "(B, Hq, Lq, Lk), 2 (Lq, Lk) or 1 (Lk)",
                                .shared = HEADWAY_SHARED_ANY};
    headway_tensor flat;
    ptrdiff_t stride[3] = {0, 0, 0};

    p->mask.kind = HEADWAY_MASK_NONE;
    if (!mask)
        return HEADWAY_OK;
    if ((unsigned)mask->dtype > HEADWAY_BOOL)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "mask: dtype %s (%d), expected BOOL, F32, F16 or BF16",
                            headway_dtype_name(mask->dtype), (int)mask->dtype);
    form.dtype = mask->dtype;
    form.no_batch = mask->rank == 1 || mask->rank == 2;
    form.rank = form.no_batch ? mask->rank : 3;
    for (int i = 0; i < form.rank; i++) {
        form.extents[i] = full[3 - form.rank + i];
        form.why[i] = why[3 - form.rank + i];
    }
    HEADWAY_TRY(headway_check_form(engine, batch, &form, mask, &flat));
    for (int i = 0; i < form.rank; i++)
        stride[3 - form.rank + i] = flat.stride[i + 1];
    p->mask.kind = kinds[mask->dtype];
    p->mask.data = mask->data;
    p->mask.batch = flat.stride[0];
    p->mask.head = stride[0];
    p->mask.row = stride[1];
    p->mask.key = stride[2];
    return HEADWAY_OK;
}

static headway_status check_lse(const headway_engine *engine, const headway_tensor *lse,
                                const struct headway_batch *batch, int64_t rows,
                                struct headway_problem *p)
{
    const struct headway_form form = {"lse",
                                      "(B, Hq, Lq)",
                                      HEADWAY_F32,
                                      2,
                                      {p->heads, rows},
                                      {"query's heads", "query's length"},
                                      HEADWAY_SHARED_NONE,
                                      p->query_starts != NULL};
    headway_tensor flat;
    p->lse.data = NULL;
    if (!lse)
        return HEADWAY_OK;
    HEADWAY_TRY(headway_check_form(engine, batch, &form, lse, &flat));
    HEADWAY_TRY(headway_check_distinct(engine, "lse", lse));
    p->lse.data = place_of(&flat);
    p->lse.batch = flat.stride[0];
    p->lse.head = flat.stride[1];
    p->lse.row = flat.stride[2];
    return HEADWAY_OK;
}

/* Whether weights of that rank are asked for by head. Between (B.., Lq, Lk) and (B, Hq, Lq, Lk),
 * which have one rank with two leading axes, and (Hq, Lq, Lk) and (B, Lq, Lk), which have with
 * none, the extents decide; where both fit there is one head. */
static int weights_by_head(const headway_tensor *weights, const struct headway_batch *batch,
                           int64_t heads)
{
    if (batch->axes == 0)
        return weights->rank == 4 || (weights->rank == 3 && weights->shape[0] == heads);
    if (batch->axes == 2 && weights->rank == 4)
        return weights->shape[0] != batch->extents[0] || weights->shape[1] != batch->extents[1];
    return weights->rank == batch->axes + 3 || weights->rank == 4;
}

static headway_status check_weights(const headway_engine *engine, const headway_tensor *weights,
                                    const struct headway_batch *batch, struct headway_problem *p)
{
    struct headway_form form = {"weights",
                                "(B, Hq, Lq, Lk)",
                                HEADWAY_F32,
                                3,
                                {p->heads, p->query_rows, 0},
                                {"query's heads", "query's length", "key's length"},
                                HEADWAY_SHARED_NONE,
                                0};
    const int appended = p->appended;
    headway_tensor flat;
    p->weights.data = NULL;
    p->mean_weights = 0;
    if (!weights)
        return HEADWAY_OK;
    if (!headway_add(p->keys, appended, &form.extents[2]))
        return headway_fail(engine, HEADWAY_ERROR_MEMORY, "weights: more than 2^63 keys");
    if (appended)
        form.why[2] = "key's length and what the layer appends";
    p->mean_weights = !weights_by_head(weights, batch, p->heads);
    if (p->mean_weights) {
        form.axes = "(B, Lq, Lk) or 4 (B, Hq, Lq, Lk)";
        form.rank = 2;
        for (int i = 0; i < 2; i++) {
            form.extents[i] = form.extents[i + 1];
            form.why[i] = form.why[i + 1];
        }
    }
    HEADWAY_TRY(headway_check_form(engine, batch, &form, weights, &flat));
    const int last = weights->rank - 1;
    if (!headway_tensor_empty(weights) && weights->shape[last] > 1 && weights->stride[last] != 1)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "weights: innermost stride %lld, expected 1",
                            (long long)weights->stride[last]);
    HEADWAY_TRY(headway_check_distinct(engine, "weights", weights));
    p->weights.data = place_of(&flat);
    p->weights.batch = flat.stride[0];
    p->weights.head = p->mean_weights ? 0 : flat.stride[1];
    p->weights.row = flat.stride[form.rank - 1];
    return HEADWAY_OK;
}

headway_status headway_check_given(const headway_engine *engine,
                                   const headway_attention_params **params)
{
    static const headway_attention_params defaults = HEADWAY_ATTENTION_PARAMS_INIT;
    if (!*params)
        *params = &defaults;
    return headway_check_size(engine, "params", (*params)->size, sizeof defaults, sizeof defaults);
}

headway_status headway_check_params(const headway_engine *engine,
                                    const headway_attention_params *params,
                                    const struct headway_batch *batch, int call,
                                    struct headway_problem *p)
{
    const int64_t rows = p->query_rows;

    if (!(call & HEADWAY_CALL_POSITIONS) && (params->query_positions || params->key_positions))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "%s: given, expected NULL but for a layer with rotary embedding",
                            params->query_positions ? "query_positions" : "key_positions");
    HEADWAY_TRY(headway_check_cache(engine, params, p));
    HEADWAY_TRY(check_sequences(engine, params, call, p));
    HEADWAY_TRY(check_both_lengths(engine, params, call, p));
    HEADWAY_TRY(check_places(engine, params, p));
    HEADWAY_TRY(check_numbers(engine, params, p));
    HEADWAY_TRY(check_interval(engine, params->interval, batch, rows, p));
    /* A mask is by sequence. */
    const struct headway_batch sequences = {1, {p->batch}, p->batch};
    HEADWAY_TRY(check_mask(engine, params->mask, p->query_starts ? &sequences : batch, p));
    HEADWAY_TRY(check_lse(engine, params->lse, batch, rows, p));
    return check_weights(engine, params->weights, batch, p);
}
