/* Pairs of problems that must have the same answer, made of random ones over every option: bit for
 * bit unless the relation says rounding. On every row that runs here. --count N pairs for each
 * relation; --case with a relation's name or a problem's text picks. */
#include "check_metamorphic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attend.h"
#include "check.h"
#include "cpu/kernels.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { MAX_ROWS = 8, MAX_THREADS = 4 };

static struct {
    const char *isa;
    headway_engine *engines[MAX_THREADS];
} rows[MAX_ROWS];
static int row_count;

static int64_t below(uint64_t *random, int64_t n)
{
    return n > 0 ? (int64_t)(check_random(random) % (uint64_t)n) : 0;
}

/* ---- relations that change the inputs in place ------------------------------------------------
 */

/* Each makes `d` fit, then changes one of two equal inputs. */
static void fit_no_mask(struct drawn *d)
{
    d->f[DRAW_MASK] = 0;
}

static void fit_bool(struct drawn *d)
{
    d->f[DRAW_MASK] = 1;
}

static void fit_f32(struct drawn *d)
{
    d->f[DRAW_MASK] = 2;
}

static void fit_half(struct drawn *d)
{
    d->f[DRAW_MASK] = d->f[DRAW_MASK] > 2 ? d->f[DRAW_MASK] : 3 + d->f[DRAW_KEYS] % 2;
}

static void fit_mask(struct drawn *d)
{
    d->f[DRAW_MASK] += d->f[DRAW_MASK] ? 0 : 1;
}

static void fit_causal(struct drawn *d)
{
    d->f[DRAW_CAUSAL] += d->f[DRAW_CAUSAL] ? 0 : 1;
}

static void fit_window(struct drawn *d)
{
    if (d->f[DRAW_LEFT] < 0 && d->f[DRAW_RIGHT] < 0)
        d->f[DRAW_LEFT] = 3;
}

static void fit_no_window(struct drawn *d)
{
    d->f[DRAW_LEFT] = d->f[DRAW_RIGHT] = -1;
}

static void fit_lengths(struct drawn *d)
{
    d->f[DRAW_PACKED] = 0;
    d->f[DRAW_KEY_LENGTHS] = 1;
}

static void fit_unpacked(struct drawn *d)
{
    d->f[DRAW_PACKED] = 0;
}

static void fit_interval(struct drawn *d)
{
    d->f[DRAW_INTERVAL] += d->f[DRAW_INTERVAL] ? 0 : 1;
}

static void fit_no_sinks(struct drawn *d)
{
    d->f[DRAW_SINKS] = 0;
}

static void fit_no_interval(struct drawn *d)
{
    d->f[DRAW_INTERVAL] = d->f[DRAW_FIRST] = 0;
}

static void fit_right_0(struct drawn *d)
{
    d->f[DRAW_CAUSAL] = d->f[DRAW_OFFSETS] = d->f[DRAW_RIGHT] = d->f[DRAW_FIRST] = 0;
}

/* The usual scale is not rounded to a float, and numbers given in its place are. */
static void fit_scale(struct drawn *d)
{
    d->f[DRAW_SCALE] = d->f[DRAW_SCALE] ? d->f[DRAW_SCALE] : 3;
    d->f[DRAW_VALUES] = 0;
}

static void fit_square(struct drawn *d)
{
    d->f[DRAW_CAUSAL] = HEADWAY_CAUSAL_TOP_LEFT;
    d->f[DRAW_KEYS] = d->f[DRAW_QUERIES];
    d->f[DRAW_KEY_LENGTHS] = d->f[DRAW_QUERY_LENGTHS] = d->f[DRAW_KEY_STARTS] = 0;
}

static void fill_mask(struct inputs *in, headway_dtype dtype, float value)
{
    const int ranks[3] = {1, 2, 4}, rank = ranks[below(&in->random, 3)];
    int64_t count = 1;
    inputs_mask_room(in, dtype, rank, (unsigned)below(&in->random, 16));
    for (int i = 0; i < rank; i++)
        count *= in->mask_shape[i];
    for (int64_t n = 0; n < count; n++)
        in->mask[n] = value;
}

static void all_allowed(struct inputs *in)
{
    static const headway_dtype dtypes[] = {HEADWAY_BOOL, HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16};
    const headway_dtype dtype = dtypes[below(&in->random, 4)];
    fill_mask(in, dtype, dtype == HEADWAY_BOOL ? 1 : 0);
}

static void causal_in_mask(struct inputs *in)
{
    say_in_mask(in, SAY_CAUSAL);
}

static void window_in_mask(struct inputs *in)
{
    say_in_mask(in, SAY_WINDOW);
}

static void lengths_in_mask(struct inputs *in)
{
    say_in_mask(in, SAY_KEY_LENGTHS);
}

static void interval_in_mask(struct inputs *in)
{
    say_in_mask(in, SAY_INTERVAL);
}

static void all_in_mask(struct inputs *in)
{
    say_in_mask(in, SAY_CAUSAL | SAY_WINDOW | SAY_KEY_LENGTHS | SAY_INTERVAL);
}

static void large_window(struct inputs *in)
{
    in->window_left = below(&in->random, 2) ? INT64_MAX : 4 * (in->queries + in->keys) + 60;
    in->window_right = below(&in->random, 2) ? INT64_MAX : 4 * (in->queries + in->keys) + 60;
}

static void right_is_0(struct inputs *in)
{
    in->causal = HEADWAY_CAUSAL_TOP_LEFT;
    in->window_right = -1;
}

/* The same interval as a causal window has. */
static void window_as_interval(struct inputs *in)
{
    in->interval_rank = 3;
    in->interval_batch = in->batch;
    in->interval = inputs_room(in, in->batch * in->queries * 2, sizeof(int32_t));
    for (int64_t b = 0; b < inputs_batches(in); b++)
        for (int64_t i = 0; i < inputs_query_length(in, b); i++) {
            const int64_t row = in->query_starts ? in->query_starts[b] + i : b * in->queries + i;
            const int64_t place = inputs_place(in, b, i), most = INT32_MAX;
            int64_t low =
                in->window_left < 0 || in->window_left > most ? -most : place - in->window_left;
            int64_t high = in->window_right < 0 || in->window_right > most
                               ? most
                               : place + in->window_right + 1;
            if (in->causal != HEADWAY_CAUSAL_NONE && high > place + 1)
                high = place + 1;
            in->interval[row * 2] = (int32_t)low;
            in->interval[row * 2 + 1] = (int32_t)high;
        }
    say_in_offsets(in);
    in->causal = HEADWAY_CAUSAL_NONE;
    in->window_left = in->window_right = -1;
}

static void sinks_of_none(struct inputs *in)
{
    in->sinks = inputs_room(in, in->heads, sizeof(float));
    for (int64_t h = 0; h < in->heads; h++)
        in->sinks[h] = -INFINITY;
}

static void bool_as_float(struct inputs *in)
{
    static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16};
    int64_t count = 1;
    for (int i = 0; i < in->mask_rank; i++)
        count *= in->mask_shape[i];
    for (int64_t n = 0; n < count; n++)
        in->mask[n] = in->mask[n] != 0 ? 0 : -INFINITY;
    in->mask_dtype = dtypes[below(&in->random, 3)];
}

static void half_as_f32(struct inputs *in)
{
    in->mask_dtype = HEADWAY_F32;
}

static void dense(struct inputs *in)
{
    in->layout = in->shared = in->leading = 0;
}

/* A power of two in scale or in query is the same. */
static void scale_in_query(struct inputs *in)
{
    const float scale = in->has_scale ? in->scale : 1 / sqrtf((float)in->size);
    for (int64_t n = 0; n < in->batch * in->queries * in->heads * in->size; n++)
        in->query[n] *= 8;
    in->has_scale = 1;
    in->scale = scale / 8;
}

static void nothing_else_asked(struct inputs *in)
{
    in->lse = in->weights = 0;
}

static void bottom_right(struct inputs *in)
{
    in->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
}

/* More keys in the mask's last axis, excluded. */
static void widen_mask(struct inputs *in, const struct inputs *old)
{
    unsigned full = 8;
    for (int n = 0; n < old->mask_rank - 1; n++)
        full |= old->mask_shape[n] != 1 ? 1u << (4 - old->mask_rank + n) : 0;
    inputs_mask_room(in, old->mask_dtype, old->mask_rank, full);
    int64_t lines = 1;
    for (int n = 0; n < old->mask_rank - 1; n++)
        lines *= old->mask_shape[n];
    for (int64_t line = 0; line < lines; line++)
        memcpy(in->mask + line * in->keys, old->mask + line * old->keys,
               (size_t)old->keys * sizeof(float));
}

/* Adds keys behind the last one, which key lengths then exclude. */
static void more_keys(struct inputs *in)
{
    const struct inputs old = *in;
    const int64_t more = 1 + below(&in->random, 140);
    if (in->causal == HEADWAY_CAUSAL_BOTTOM_RIGHT)
        say_in_offsets(in);
    in->keys += more;
    in->key = inputs_room(in, in->batch * in->keys * in->kv_heads * in->size, sizeof(float));
    in->value =
        inputs_room(in, in->batch * in->keys * in->kv_heads * in->value_size, sizeof(float));
    check_poison(in->key, in->batch * in->keys * in->kv_heads * in->size);
    check_poison(in->value, in->batch * in->keys * in->kv_heads * in->value_size);
    for (int64_t b = 0; b < in->batch; b++) {
        const int64_t line = in->kv_heads * in->keys, from = in->kv_heads * old.keys;
        memcpy(in->key + b * line * in->size, old.key + b * from * in->size,
               (size_t)(from * in->size) * sizeof(float));
        memcpy(in->value + b * line * in->value_size, old.value + b * from * in->value_size,
               (size_t)(from * in->value_size) * sizeof(float));
    }
    in->key_lengths = inputs_room(in, in->batch, sizeof(int64_t));
    for (int64_t b = 0; b < in->batch; b++)
        in->key_lengths[b] = inputs_key_length(&old, b);
    if (in->mask_rank && in->mask_shape[in->mask_rank - 1] == old.keys)
        widen_mask(in, &old);
    in->weights = in->shared = 0;
}

static const struct relation relations[] = {
    {"a mask that allows all = none", fit_no_mask, all_allowed},
    {"causal = its mask", fit_causal, causal_in_mask},
    {"window = its mask", fit_window, window_in_mask},
    {"a large window = none", fit_no_window, large_window},
    {"causal and window = their interval", fit_no_interval, window_as_interval},
    {"right 0 = top-left", fit_right_0, right_is_0},
    {"square: top-left = bottom-right", fit_square, bottom_right},
    {"lengths = their mask", fit_lengths, lengths_in_mask},
    {"interval = its mask", fit_interval, interval_in_mask},
    {"all in the mask", NULL, all_in_mask},
    {"an alignment = its offsets", fit_causal, say_in_offsets},
    {"sinks of -inf = none", fit_no_sinks, sinks_of_none},
    {"bool mask = 0 and -inf", fit_bool, bool_as_float},
    {"half mask = its floats", fit_half, half_as_f32},
    {"a broadcast mask = the full one", fit_mask, expand_mask},
    {"any strides = dense", NULL, dense},
    {"a power of two in scale or query", fit_scale, scale_in_query},
    {"lse and weights asked for or not", NULL, nothing_else_asked},
    {"keys behind the lengths = none", fit_unpacked, more_keys},
};

static void compare_changed(int row, const struct drawn *d, const struct relation *relation)
{
    struct inputs *a = inputs_make(d), *b = inputs_make(d);
    relation->change(b);
    struct results expected = inputs_attend(rows[row].engines[d->f[DRAW_THREADS] - 1], a);
    struct results got = inputs_attend(rows[row].engines[d->seed % MAX_THREADS], b);
    results_bits(&got, &expected, rows[row].isa);
    results_free(&expected);
    results_free(&got);
    inputs_free(a);
    inputs_free(b);
}

/* ---- parts of a problem ------------------------------------------------------------------------
 */

static void reverse(int64_t *at, int64_t count)
{
    for (int64_t n = 0; n < count / 2; n++) {
        const int64_t swap = at[n];
        at[n] = at[count - 1 - n];
        at[count - 1 - n] = swap;
    }
}

static void select_batches_reversed(struct inputs *in, int64_t part, struct selection *s)
{
    (void)part;
    *s = select_all(in);
    reverse(s->batch, s->batches);
}

static void select_batch(struct inputs *in, int64_t part, struct selection *s)
{
    *s = select_all(in);
    s->batches = in->batch ? 1 : 0;
    s->batch[0] = part;
}

/* The groups backwards, and the heads of each group. */
static void select_heads_permuted(struct inputs *in, int64_t part, struct selection *s)
{
    (void)part;
    *s = select_all(in);
    reverse(s->head, s->heads);
    reverse(s->kv_head, s->kv_heads);
}

static void select_heads_repeated(struct inputs *in, int64_t part, struct selection *s)
{
    (void)part;
    *s = select_all(in);
    s->kv_heads = in->heads;
    s->kv_head = inputs_room(in, in->heads, sizeof *s->kv_head);
    for (int64_t h = 0; h < in->heads; h++)
        s->kv_head[h] = h / (in->heads / in->kv_heads);
}

static void select_rows(struct inputs *in, int64_t part, struct selection *s)
{
    const int64_t cut = in->queries * 3 / 7;
    *s = select_all(in);
    s->rows = part ? in->queries - cut : cut;
    for (int64_t i = 0; i < s->rows; i++)
        s->row[i] = part ? cut + i : i;
}

static void select_sequence_alone(struct inputs *in, int64_t part, struct selection *s)
{
    *s = select_sequence(in, part);
}

/* One batch cut down to its key length. */
static void select_length(struct inputs *in, int64_t part, struct selection *s)
{
    select_batch(in, part, s);
    s->keys = in->batch ? inputs_key_length(in, part) : 0;
}

static int64_t one(const struct inputs *in)
{
    (void)in;
    return 1;
}

static int64_t two(const struct inputs *in)
{
    (void)in;
    return 2;
}

static void fit_unpacked_length(struct drawn *d)
{
    fit_lengths(d);
    d->f[DRAW_WEIGHTS] = 0;
}

static void fit_packed(struct drawn *d)
{
    d->f[DRAW_PACKED] += d->f[DRAW_PACKED] ? 0 : 3;
}

static const struct part_relation {
    const char *name;
    void (*fit)(struct drawn *d);
    int64_t (*parts)(const struct inputs *in);
    void (*select)(struct inputs *in, int64_t part, struct selection *s);
} part_relations[] = {
    {"batches in another order", fit_unpacked, one, select_batches_reversed},
    {"each batch alone", fit_unpacked, inputs_batches, select_batch},
    {"heads permuted", fit_unpacked, one, select_heads_permuted},
    {"keys and values repeated for each head", fit_unpacked, one, select_heads_repeated},
    {"query rows in two calls", fit_unpacked, two, select_rows},
    {"packed = each alone", fit_packed, inputs_batches, select_sequence_alone},
    {"a length = fewer keys", fit_unpacked_length, inputs_batches, select_length},
    {"cache: query rows in two calls", fit_cache_rows, two, select_rows},
    {"cache: each batch alone", fit_cache_batch, inputs_batches, select_batch},
};

static void compare_parts(int row, const struct drawn *d, const struct part_relation *relation)
{
    struct inputs *old = inputs_make(d);
    struct results old_results = inputs_attend(rows[row].engines[d->f[DRAW_THREADS] - 1], old);
    for (int64_t part = 0; part < relation->parts(old); part++) {
        struct selection s;
        relation->select(old, part, &s);
        struct inputs *new = select_inputs(old, &s);
        struct results results =
            inputs_attend(rows[row].engines[(d->seed + (uint64_t)part) % MAX_THREADS], new);
        compare_selected(old, &old_results, new, &results, &s);
        results_free(&results);
        inputs_free(new);
    }
    results_free(&old_results);
    inputs_free(old);
}

/* ---- within rounding ---------------------------------------------------------------------------
 */

/* A number for each row, which softmax takes away again. */
static void constants_in_rows(struct inputs *in)
{
    const int64_t run = in->mask_shape[in->mask_rank - 1];
    int64_t count = 1;
    for (int i = 0; i < in->mask_rank; i++)
        count *= in->mask_shape[i];
    for (int64_t n = 0; n < count; n++)
        in->mask[n] += (float)(n / run % 8 - 4);
}

static void huge_softcap(struct inputs *in)
{
    in->softcap = 0x1p40f;
}

/* Slopes that are few bits, so that the products are exact. */
static void alibi_in_bias(struct inputs *in)
{
    const struct inputs old = *in;
    inputs_mask_room(in, HEADWAY_F32, 4, 15);
    for (int64_t b = 0; b < inputs_batches(in); b++)
        for (int64_t h = 0; h < in->heads; h++)
            for (int64_t i = 0; i < inputs_query_length(in, b); i++)
                for (int64_t j = 0; j < inputs_key_length(in, b); j++) {
                    float *m = &in->mask[inputs_mask_index(in, b, h, i, j)];
                    *m = old.slopes[h] * (float)(j - inputs_place(in, b, i));
                    if (old.mask_rank && !inputs_sees(&old, b, h, i, j))
                        *m = -INFINITY;
                }
    in->slopes = NULL;
}

static void fit_bias_in_rows(struct drawn *d)
{
    fit_f32(d);
    d->f[DRAW_SINKS] = 0;
    d->f[DRAW_VALUES] = d->f[DRAW_VALUES] == 4 ? 0 : d->f[DRAW_VALUES];
    /* A rank without rows has one number for all. */
    d->f[DRAW_MASK_FULL] |= 8;
}

/* An infinite score is the cap with one, and infinite without. */
static void fit_no_softcap(struct drawn *d)
{
    d->f[DRAW_SOFTCAP] = 0;
    d->f[DRAW_VALUES] = d->f[DRAW_VALUES] == 5 ? 0 : d->f[DRAW_VALUES];
}

static void fit_alibi(struct drawn *d)
{
    d->f[DRAW_ALIBI] = 1;
    d->f[DRAW_MASK] = d->f[DRAW_MASK] ? 1 : 0;
}

static void dyadic(struct inputs *in)
{
    for (int64_t h = 0; in->slopes && h < in->heads; h++)
        in->slopes[h] = (float)(h % 5 - 1) / 16;
}

static const struct near_relation {
    const char *name;
    void (*fit)(struct drawn *d);
    void (*change)(struct inputs *in);
    int shifts_lse; /* by what the change adds: lse is not compared */
} near_relations[] = {
    {"a constant in a row of bias", fit_bias_in_rows, constants_in_rows, 1},
    {"a huge softcap ~ none", fit_no_softcap, huge_softcap, 0},
    {"ALiBi ~ its bias", fit_alibi, alibi_in_bias, 0},
};

static void compare_floats(const float *a, const float *b, const double *a_bound,
                           const double *b_bound, int64_t count, const char *what)
{
    for (int64_t n = 0; n < count; n++)
        CHECK(fabs((double)a[n] - (double)b[n]) <= a_bound[n] + b_bound[n] || a[n] == b[n] ||
                  (isnan(a[n]) && isnan(b[n])),
              "%s: element %lld is %.9g, and %.9g", what, (long long)n, (double)a[n], (double)b[n]);
}

/* Both are within their bounds of the same exact answer. */
static void compare_near(int row, const struct drawn *d, const struct near_relation *relation)
{
    struct inputs *a = inputs_make(d), *b = inputs_make(d);
    dyadic(a);
    dyadic(b);
    relation->change(b);
    const struct reference exact = inputs_reference(a), other = inputs_reference(b);
    struct results ra = inputs_attend(rows[row].engines[d->f[DRAW_THREADS] - 1], a);
    struct results rb = inputs_attend(rows[row].engines[d->seed % MAX_THREADS], b);
    compare_floats(ra.out, rb.out, exact.out_bound, other.out_bound, ra.outs, "out");
    if (!relation->shifts_lse)
        compare_floats(ra.lse, rb.lse, exact.lse_bound, other.lse_bound, ra.lses, "lse");
    results_free(&ra);
    results_free(&rb);
    inputs_free(a);
    inputs_free(b);
}

/* ---- all of them -------------------------------------------------------------------------------
 */

static struct drawn draw(const char *name, int64_t n, void (*fit)(struct drawn *d))
{
    uint64_t seed = check_seed;
    for (const char *c = name; *c; c++)
        seed = seed * 31 + (unsigned char)*c;
    struct drawn d = drawn_draw(seed * 1000 + (uint64_t)n, 2e5, 0);
    /* The relations count with places. */
    d.f[DRAW_OFFSETS] = d.f[DRAW_OFFSETS] ? 1 : 0;
    if (strncmp(name, "cache", 5) != 0)
        d.f[DRAW_CACHE] = 0;
    if (fit)
        fit(&d);
    drawn_settle(&d);
    return d;
}

int main(int argc, char **argv)
{
    const struct headway_row *next;
    int index = 0;
    check_begin(argc, argv);
    const int64_t count = check_option("--count", 25);
    while ((next = check_next_row(&index)) && row_count < MAX_ROWS) {
        rows[row_count].isa = next->name;
        for (int t = 0; t < MAX_THREADS; t++)
            rows[row_count].engines[t] = engine_make(next->name, t + 1);
        row_count++;
    }
    for (int row = 0; row < row_count; row++)
        for (int64_t n = 0; n < count; n++) {
            for (int i = 0; i < COUNT(relations); i++) {
                const struct drawn d = draw(relations[i].name, n, relations[i].fit);
                if (check_case("%s: %s: %s", rows[row].isa, relations[i].name, drawn_text(&d)))
                    compare_changed(row, &d, &relations[i]);
            }
            for (int i = 0; cache_relations[i].name; i++) {
                const struct drawn d = draw(cache_relations[i].name, n, cache_relations[i].fit);
                if (check_case("%s: %s: %s", rows[row].isa, cache_relations[i].name,
                               drawn_text(&d)))
                    compare_changed(row, &d, &cache_relations[i]);
            }
            for (int i = 0; i < COUNT(part_relations); i++) {
                const struct drawn d = draw(part_relations[i].name, n, part_relations[i].fit);
                if (check_case("%s: %s: %s", rows[row].isa, part_relations[i].name, drawn_text(&d)))
                    compare_parts(row, &d, &part_relations[i]);
            }
            for (int i = 0; i < COUNT(near_relations); i++) {
                const struct drawn d = draw(near_relations[i].name, n, near_relations[i].fit);
                if (check_case("%s: %s: %s", rows[row].isa, near_relations[i].name, drawn_text(&d)))
                    compare_near(row, &d, &near_relations[i]);
            }
        }
    for (int row = 0; row < row_count; row++)
        for (int t = 0; t < MAX_THREADS; t++)
            headway_engine_destroy(rows[row].engines[t]);
    return check_end();
}
