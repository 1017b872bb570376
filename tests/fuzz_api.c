/* libFuzzer on the public API: the bytes choose ranks, shapes, strides, types, pointers, lengths and
 * options of a call of the attention core or of a layer, through a cache or not, what happens to the
 * cache before, and how saved weights are damaged. Whatever they say, a call that is refused
 * writes nothing and leaves a text; one that is accepted stays inside memory that is exactly what
 * its arguments say (AddressSanitizer), and writes no input. Bytes that are 0 or missing choose a
 * good call. Preset fuzz; then tests/fuzz_api -max_len=200 NEW_CORPUS tests/data/fuzz/api. */
#define _GNU_SOURCE

#include "headway/headway.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REGIONS = 128, MAX_ELEMENTS = 4096, MAX_EXTENT = 6 };

const char *__asan_default_options(void);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Sizes that no machine has are for the library to refuse. */
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

#define DEMAND(condition, what) ((condition) ? (void)0 : give_up(what))

static void give_up(const char *what)
{
    fprintf(stderr, "fuzz_api: %s\n", what);
    abort();
}

/* ---- choices ---------------------------------------------------------------------------------- */

static const uint8_t *at, *end;

static unsigned byte(void)
{
    return at < end ? *at++ : 0;
}

/* 0 .. choices - 1, 0 when nothing is said. */
static int pick(int choices)
{
    return (int)(byte() % (unsigned)choices);
}

/* Rarely 1. */
static int odd(void)
{
    return byte() % 32 == 31;
}

/* Small, or larger than any machine: nothing between that would take time or memory. */
static int64_t wild(void)
{
    static const int64_t numbers[] = {0,
                                      -1,
                                      1,
                                      2,
                                      7,
                                      INT64_MAX,
                                      INT64_MIN,
                                      INT64_MAX / 2,
                                      INT64_C(1) << 40,
                                      -(INT64_C(1) << 40),
                                      INT64_C(1) << 62,
                                      INT32_MAX};
    const int chosen = pick(14);
    uint64_t bits = 0;
    if (chosen < 12)
        return numbers[chosen];
    if (chosen == 12)
        return (int8_t)byte();
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | byte();
    const int64_t number = (int64_t)bits;
    return number > MAX_ELEMENTS && number < INT64_C(1) << 40 ? INT64_MAX - number : number;
}

static float number(void)
{
    static const float numbers[] = {1.0f,  0.0f,  -1.0f,  0.125f, -0.0f,
                                    3e38f, 1e30f, 1e-40f, -3e38f, __builtin_inff()};
    const int chosen = pick(16);
    if (chosen < 10)
        return numbers[chosen];
    return chosen == 10   ? -__builtin_inff()
           : chosen == 11 ? __builtin_nanf("")
                          : (float)((int)byte() - 128) / 16.0f;
}

/* ---- memory ----------------------------------------------------------------------------------- */

/* Everything a call gets, with what it must hold afterwards. */
static struct region {
    void *memory, *copy;
    size_t bytes;
    int output;
} regions[MAX_REGIONS];
static int used;

static void *region(size_t bytes, int output)
{
    DEMAND(used < MAX_REGIONS, "too many regions");
    struct region *r = &regions[used++];
    r->bytes = bytes;
    r->output = output;
    r->copy = NULL;
    /* Aligned, and no byte more than asked for. */
    if (posix_memalign(&r->memory, HEADWAY_WORKSPACE_ALIGNMENT, bytes ? bytes : 1) != 0)
        give_up("no memory");
    memset(r->memory, 0, bytes);
    return r->memory;
}

static void *region_of(const void *from, size_t bytes)
{
    return memcpy(region(bytes, 0), from, bytes);
}

/* A struct that says its own size: that much of it, if it is less. */
static void *region_sized(const void *from, size_t said, size_t bytes)
{
    return region_of(from, said < sizeof said ? sizeof said : said < bytes ? said : bytes);
}

static void seal(void)
{
    for (int i = 0; i < used; i++) {
        regions[i].copy = malloc(regions[i].bytes + 1);
        DEMAND(regions[i].copy != NULL, "no memory");
        memcpy(regions[i].copy, regions[i].memory, regions[i].bytes);
    }
}

static void verify(int written)
{
    for (int i = 0; i < used; i++)
        DEMAND(!regions[i].copy || (written && regions[i].output) ||
                   !memcmp(regions[i].memory, regions[i].copy, regions[i].bytes),
               written ? "an accepted call wrote an input" : "a refused call wrote something");
}

static void release(void)
{
    for (int i = 0; i < used; i++) {
        free(regions[i].memory);
        free(regions[i].copy);
    }
    used = 0;
}

/* ---- tensors ---------------------------------------------------------------------------------- */

static size_t size_of(headway_dtype type)
{
    return type == HEADWAY_BOOL || type == HEADWAY_I8    ? 1
           : type == HEADWAY_F16 || type == HEADWAY_BF16 ? 2
                                                         : 4;
}

/* Offsets of the lowest and highest element; 0 when there are more than any call may have here. */
static int reach(const headway_tensor *t, int64_t *low, int64_t *high)
{
    int64_t count = 1;
    *low = *high = 0;
    if (t->rank < 0 || t->rank > HEADWAY_MAX_RANK)
        return 0;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] == 0)
            return 1;
    for (int i = 0; i < t->rank; i++) {
        const int64_t extent = t->shape[i], stride = t->stride[i];
        if (extent < 1 || extent > MAX_ELEMENTS || (count *= extent) > MAX_ELEMENTS)
            return 0;
        if (extent > 1 && (stride > MAX_ELEMENTS || stride < -MAX_ELEMENTS))
            return 0;
        if (extent > 1)
            *(stride > 0 ? high : low) += (extent - 1) * stride;
    }
    return *high - *low <= 1 << 16;
}

static void fill(void *memory, headway_dtype type, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (type == HEADWAY_BOOL || type == HEADWAY_I8)
            ((uint8_t *)memory)[i] = i % 8 == 7 ? (uint8_t)byte() : 1;
        else if (type == HEADWAY_F16 || type == HEADWAY_BF16)
            ((uint16_t *)memory)[i] = (uint16_t)(i % 8 == 7 ? byte() << 8 | byte() : 0x3400);
        else if (type == HEADWAY_I32)
            ((int32_t *)memory)[i] = i % 4 == 3 && odd() ? (int32_t)wild() : (int32_t)(i % 5);
        else
            ((float *)memory)[i] = i % 8 == 7 ? number() : (float)(i % 11) * 0.25f - 1.0f;
    }
}

/* Wraps around. */
static int64_t times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* Strides of a dense tensor, or of one whose axes lie otherwise. */
static void stride(headway_tensor *t, int output)
{
    const int kind = pick(8);
    for (int i = t->rank - 1; i >= 0; i--)
        t->stride[i] = i == t->rank - 1 ? 1 : times(t->stride[i + 1], t->shape[i + 1]);
    if (kind == 1 && t->rank >= 3) { /* two axes change places */
        const int i = t->rank - 3;
        t->stride[i + 1] = times(t->shape[t->rank - 1], t->shape[i] ? t->shape[i] : 1);
        t->stride[i] = t->shape[t->rank - 1];
    } else if (kind == 2 && t->rank >= 2) { /* lines with a gap, or backwards */
        for (int i = 0; i < t->rank - 1; i++)
            t->stride[i] = times(t->stride[i], i == 0 ? -3 : 3);
    } else if (kind == 3 && t->rank >= 2 && !output) {
        t->stride[pick(t->rank - 1)] = 0;
    } else if (kind == 4) {
        t->stride[t->rank > 0 ? t->rank - 1 : 0] = 2;
    } else if (kind == 5 && odd()) {
        t->stride[pick(HEADWAY_MAX_RANK)] = wild();
    }
}

/* A tensor of that shape, or one that is not quite that; NULL now and then. With memory for exactly
 * its elements, filled, when they are few. */
static headway_tensor *tensor(headway_dtype type, int rank, const int64_t *shape, int output)
{
    headway_tensor made;
    int64_t low, high;
    if (odd())
        return NULL;
    memset(&made, 0, sizeof made);
    made.dtype = type;
    made.rank = rank;
    memcpy(made.shape, shape, (size_t)rank * sizeof *shape);
    if (odd())
        made.shape[pick(HEADWAY_MAX_RANK)] = odd() ? wild() : pick(MAX_EXTENT);
    stride(&made, output);
    if (odd())
        made.dtype = (headway_dtype)(odd() ? (int)wild() : pick(5));
    if (odd())
        made.rank = odd() ? (int)wild() : pick(HEADWAY_MAX_RANK + 2);
    if (reach(&made, &low, &high) && !odd()) {
        const size_t size = size_of(made.dtype);
        const int astray = odd(); /* not aligned */
        char *memory = region((size_t)(high - low + 1) * size + (size_t)astray, output);
        fill(memory, made.dtype, high - low + 1);
        made.data = memory - low * (int64_t)size + astray;
    }
    return region_of(&made, sizeof made);
}

static int64_t extent(const headway_tensor *t, int from_end)
{
    if (!t || t->rank > HEADWAY_MAX_RANK || t->rank < from_end)
        return 0;
    return t->shape[t->rank - from_end];
}

/* The product of a tensor's axes in front of its own; 0 when there are too many to give lengths. */
static int64_t batch_of(const headway_tensor *t, int own)
{
    int64_t batch = 1;
    if (!t || t->rank > HEADWAY_MAX_RANK)
        return 0;
    for (int i = 0; i < t->rank - own; i++)
        if (t->shape[i] < 0 || t->shape[i] > MAX_ELEMENTS || (batch *= t->shape[i]) > MAX_ELEMENTS)
            return 0;
    return batch;
}

/* ---- params ----------------------------------------------------------------------------------- */

/* `count` numbers up to `most`, or none. */
static const int64_t *lengths(int64_t count, int64_t most)
{
    if (pick(3) != 1 || count < 1 || count > MAX_ELEMENTS)
        return NULL;
    int64_t *made = region((size_t)count * sizeof *made, 0);
    for (int64_t i = 0; i < count; i++)
        made[i] = odd() ? wild() : most > 0 ? (int64_t)byte() % (most + 1) : 0;
    return made;
}

static const int64_t *starts(int64_t sequences, int64_t total)
{
    if (sequences < 0 || sequences >= MAX_ELEMENTS)
        return NULL;
    int64_t *made = region((size_t)(sequences + 1) * sizeof *made, 0);
    for (int64_t i = 0; i <= sequences; i++)
        made[i] = odd() ? wild() : sequences ? total * i / sequences : 0;
    return made;
}

static const float *per_head(int64_t heads)
{
    if (pick(3) != 1 || heads < 1 || heads > MAX_ELEMENTS)
        return NULL;
    float *made = region((size_t)heads * sizeof *made, 0);
    for (int64_t i = 0; i < heads; i++)
        made[i] = i % 2 ? number() : 0.5f;
    return made;
}

/* Sizes as the tensors give them, before anything was wrong with them. */
struct sizes {
    int64_t B, Lq, Lk, Hq, Hkv, D, Dv;
    int packed;
};

static const headway_tensor *mask(const struct sizes *s, int64_t appended)
{
    static const headway_dtype types[] = {HEADWAY_BOOL, HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16};
    const int64_t full[] = {s->B, s->Hq, s->Lq, s->Lk + (odd() ? appended : 0)};
    static const int ranks[] = {4, 2, 1, 3};
    const int rank = ranks[pick(4)], type = pick(4);
    int64_t shape[4];
    for (int i = 0; i < rank; i++)
        shape[i] = pick(3) == 2 ? 1 : full[4 - rank + i];
    return tensor(types[type], rank, shape, 0);
}

static void outputs(headway_attention_params *p, const struct sizes *s, int64_t appended)
{
    const int64_t lse[] = {s->B, s->Hq, s->Lq}, mean[] = {s->B, s->Lq, s->Lk + appended};
    const int64_t all[] = {s->B, s->Hq, s->Lq, s->Lk + appended};
    if (pick(2))
        p->lse = tensor(HEADWAY_F32, 3, lse, 1);
    if (pick(3) == 1)
        p->weights = pick(2) ? tensor(HEADWAY_F32, 4, all, 1) : tensor(HEADWAY_F32, 3, mean, 1);
}

static headway_kv_cache *cache; /* of the input, or NULL */

/* heads: what (Hq) arrays must have; batch: what (B) arrays must. appended: keys that a layer adds. */
static const headway_attention_params *params(const struct sizes *s, int64_t batch, int64_t heads,
                                              int64_t appended)
{
    headway_attention_params p = HEADWAY_ATTENTION_PARAMS_INIT;
    if (pick(8) == 7)
        return NULL;
    if (pick(3) == 1) {
        const float scale = number();
        p.scale = region_of(&scale, sizeof scale);
    }
    p.causal = (headway_causal)(odd() ? (int)wild() : pick(4));
    if (s->packed) {
        p.sequences = odd() ? wild() : pick(4);
        p.query_starts = starts(p.sequences, s->Lq);
        p.key_starts = pick(2) ? starts(p.sequences, s->Lk) : NULL;
        batch = p.sequences;
    }
    p.row_offsets = p.causal == HEADWAY_CAUSAL_OFFSETS || odd() ? lengths(batch, 6) : NULL;
    if (pick(2)) {
        p.window_left = odd() ? wild() : pick(6) - 1;
        p.window_right = odd() ? wild() : pick(6) - 1;
    }
    p.window_first = pick(4) == 3 ? odd() ? wild() : pick(6) : 0;
    if (cache || odd()) {
        p.cache = cache;
        p.cache_slots = lengths(batch, 3);
        p.shared_prefix = pick(4) == 3 ? odd() ? wild() : pick(8) : 0;
    }
    p.query_lengths = lengths(batch, s->Lq);
    p.key_lengths = lengths(batch, s->Lk);
    if (pick(3) == 1) {
        const int64_t shape[] = {pick(2) ? s->B : 1, s->Lq, 2};
        p.interval =
            pick(2) ? tensor(HEADWAY_I32, 3, shape, 0) : tensor(HEADWAY_I32, 2, shape + 1, 0);
    }
    if (pick(2))
        p.mask = mask(s, appended);
    if (pick(3) == 1)
        p.softcap = number();
    p.alibi_slopes = per_head(heads);
    p.sinks = per_head(heads);
    if (pick(4) == 3) {
        const int64_t shape[] = {s->B, s->Lq}, keys[] = {s->B, s->Lk};
        p.query_positions = tensor(HEADWAY_I32, 2, shape, 0);
        p.key_positions = pick(2) ? tensor(HEADWAY_I32, 2, keys, 0) : NULL;
    }
    outputs(&p, s, appended);
    if (odd())
        p.size = pick(2) ? (size_t)wild() : sizeof p - 8 * (size_t)pick(20);
    return region_sized(&p, p.size, sizeof p);
}

static struct sizes sizes(void)
{
    struct sizes s = {1, 3, 4, 2, 1, 3, 5, 0};
    s.B += pick(3);
    s.Lq = (s.Lq + pick(12)) % 12;
    s.Lk = (s.Lk + pick(12)) % 12;
    s.Hkv += pick(2);
    s.Hq = s.Hkv * (1 + pick(3));
    s.D += pick(4);
    s.Dv += pick(4);
    s.packed = pick(4) == 3;
    if (s.packed)
        s.B = 1;
    return s;
}

/* ---- caches ----------------------------------------------------------------------------------- */

static headway_engine *engine;

static void check_status(headway_status status)
{
    char text[2000];
    DEMAND(status >= HEADWAY_OK && status <= HEADWAY_ERROR_UNSUPPORTED, "an unknown status");
    if (status == HEADWAY_OK)
        return;
    const size_t length = headway_engine_error(engine, text, sizeof text);
    DEMAND(length > 0 && length < sizeof text && strlen(text) == length, "no text for an error");
    for (size_t i = 0; i < length; i++)
        DEMAND((unsigned char)text[i] >= ' ', "a control character in an error's text");
}

/* Large enough for no machine, or nothing. */
static int64_t vast(void)
{
    static const int64_t numbers[] = {
        0, -1, INT64_MAX, INT64_MIN, INT64_C(1) << 40, INT64_C(1) << 62};
    return numbers[pick(6)];
}

static int64_t sequences; /* of the cache */

/* Lengths and pages of all sequences; a refused call leaves them. */
struct states {
    headway_kv_cache_state slot[8];
};

static struct states states(void)
{
    struct states now;
    memset(&now, 0, sizeof now);
    for (int64_t slot = 0; cache && slot < sequences && slot < 8; slot++) {
        now.slot[slot].size = sizeof now.slot[slot];
        DEMAND(headway_kv_cache_get_state(cache, slot, &now.slot[slot]) == HEADWAY_OK, "no state");
        DEMAND(now.slot[slot].length >= 0 && now.slot[slot].pages >= 0 &&
                   now.slot[slot].pages_free >= 0,
               "a state below 0");
    }
    return now;
}

static void check_states(headway_status status, const struct states *before)
{
    const struct states now = states();
    check_status(status);
    DEMAND(status == HEADWAY_OK || memcmp(&now, before, sizeof now) == 0,
           "a refused call changed a cache");
}

static void append_to_cache(const struct sizes *s)
{
    const struct states before = states();
    const int64_t key_shape[] = {1 + pick(3), pick(7), s->Hkv, s->D};
    const int64_t value_shape[] = {key_shape[0], key_shape[1], s->Hkv, s->Dv};
    const headway_tensor *key = tensor(HEADWAY_F32, 4, key_shape, 0);
    const headway_tensor *value = tensor(HEADWAY_F32, 4, value_shape, 0);
    const int64_t batch = batch_of(key, 3);
    const int64_t *slots = lengths(batch, 3);
    const int64_t *counts = lengths(batch, key_shape[1]);
    check_states(headway_kv_cache_append(cache, slots, counts, key, value), &before);
}

static void read_cache(const struct sizes *s, int64_t slot)
{
    const int64_t key[] = {pick(7), s->Hkv, s->D}, value[] = {key[0], s->Hkv, s->Dv};
    const int64_t first = odd() ? wild() : pick(8);
    const headway_tensor *k = tensor(HEADWAY_F32, 3, key, 1), *v = tensor(HEADWAY_F32, 3, value, 1);
    check_status(headway_kv_cache_read(cache, slot, first, k, v));
}

static void change_cache(const struct sizes *s)
{
    const struct states before = states();
    const int64_t slot = odd() ? wild() : pick(4), other = odd() ? wild() : pick(4);
    int32_t pages[6];
    switch (pick(8)) {
    case 0:
        check_states(headway_kv_cache_truncate(cache, slot, odd() ? wild() : pick(9)), &before);
        break;
    case 1:
        check_states(headway_kv_cache_fork(cache, slot, other), &before);
        break;
    case 2:
        for (int i = 0; i < 6; i++)
            pages[i] = odd() ? (int32_t)wild() : pick(6);
        check_states(headway_kv_cache_set_pages(cache, slot, pages, odd() ? vast() : pick(7),
                                                odd() ? wild() : pick(20)),
                     &before);
        break;
    case 3:
        read_cache(s, slot);
        break;
    default:
        append_to_cache(s);
    }
}

/* A cache now and then, and what happened to it. written: the call that comes appends. */
static void make_cache(const struct sizes *s, int written)
{
    static const headway_dtype types[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};
    static const int64_t page_sizes[] = {0, 0, 1, 2, 4, 3};
    headway_kv_cache_config c = HEADWAY_KV_CACHE_CONFIG_INIT;
    if (pick(3) != 2)
        return;
    c.sequences = sequences = odd() ? vast() : s->B + pick(4);
    c.kv_heads = odd() ? vast() : s->Hkv;
    c.head_size = odd() ? vast() : s->D;
    c.value_head_size = odd() ? vast() : s->Dv;
    c.capacity = odd() ? vast() : 1 + pick(20);
    c.key_dtype = odd() ? (headway_dtype)(int)wild() : types[pick(4)];
    c.value_dtype = odd() ? (headway_dtype)(int)wild() : types[pick(4)];
    c.page_size = odd() ? vast() : page_sizes[pick(6)];
    c.pages = pick(4) == 3 && c.page_size ? odd() ? vast() : pick(12) : 0;
    c.rolling = pick(4) == 3;
    c.pinned = c.rolling && pick(2) ? odd() ? vast() : c.page_size : 0;
    c.caller_pages = pick(6) == 5 && c.page_size;
    if (c.rolling && c.page_size > 0 && c.page_size <= 4 && c.capacity <= 20 && !odd())
        c.capacity = (c.capacity / c.page_size + 2) * c.page_size;
    if (pick(3) == 1) {
        const int64_t shape[] = {c.page_size ? c.pages : c.sequences, c.kv_heads,
                                 c.page_size ? c.page_size : c.capacity, c.head_size};
        int64_t values[4];
        memcpy(values, shape, sizeof values);
        values[3] = c.value_head_size;
        c.key = tensor(c.key_dtype, 4, shape, written);
        c.value = tensor(c.value_dtype, 4, values, written);
        if (c.key_dtype == HEADWAY_I8 || odd())
            c.key_scale = tensor(HEADWAY_F32, 3, shape, written);
        if (c.value_dtype == HEADWAY_I8 || odd())
            c.value_scale = tensor(HEADWAY_F32, 3, shape, written);
    }
    if (odd())
        c.size = pick(2) ? (size_t)wild() : sizeof c - 8 * (size_t)pick(16);
    const void *config = region_sized(&c, c.size, sizeof c);
    const headway_status status = headway_kv_cache_create(engine, config, &cache);
    check_status(status);
    DEMAND((status == HEADWAY_OK) == (cache != NULL), "create's status and cache disagree");
    for (int n = cache ? pick(6) : 0; n > 0; n--)
        change_cache(s);
}

/* ---- calls ------------------------------------------------------------------------------------ */

/* What a call gets to work in: what is needed, or too little of it. */
static void *workspace(size_t needed, size_t *bytes, int *refused)
{
    const int kind = odd() ? 1 + pick(3) : 0;
    *refused = kind != 0 && needed > 0;
    *bytes = kind == 1 && needed ? needed - 1 : needed;
    if (needed > (size_t)1 << 26) {
        *refused = needed > 0;
        return NULL;
    }
    if (kind == 2)
        return NULL;
    char *memory = region(needed + (kind == 3), 1);
    return memory + (kind == 3);
}

/* An output may lie on an input; then the call must be refused unless nothing is written. */
static void alias(headway_tensor *out, const headway_tensor *in)
{
    int64_t low, high, in_low, in_high;
    if (out && in && out->data && in->data && odd() && reach(out, &low, &high) &&
        reach(in, &in_low, &in_high) && high - low <= in_high - in_low &&
        size_of(in->dtype) == sizeof(float))
        out->data = (float *)in->data + in_low - low;
}

static void call_attention(void)
{
    const struct sizes s = sizes();
    const int64_t q[] = {s.B, s.Lq, s.Hq, s.D}, k[] = {s.B, s.Lk, s.Hkv, s.D};
    const int64_t v[] = {s.B, s.Lk, s.Hkv, s.Dv}, o[] = {s.B, s.Lq, s.Hq, s.Dv};
    char text[512] = "";
    size_t needed = 0, bytes = 0;
    int refused = 0;
    make_cache(&s, 0);
    const int whole = !cache || odd();
    const headway_tensor *query = tensor(HEADWAY_F32, 4, q, 0);
    const headway_tensor *key = whole ? tensor(HEADWAY_F32, 4, k, 0) : NULL;
    const headway_tensor *value = whole ? tensor(HEADWAY_F32, 4, v, 0) : NULL;
    headway_tensor *out = tensor(HEADWAY_F32, 4, o, 1);
    const headway_attention_params *p = params(&s, batch_of(query, 3), extent(query, 2), 0);
    alias(out, query);
    alias(out, value);
    const struct states before = states();
    seal();
    const headway_status asked = headway_attention_workspace(engine, p, query, key, value, &needed);
    check_status(asked);
    const headway_status told =
        headway_attention_explain(engine, p, query, key, value, text, sizeof text);
    check_status(told);
    DEMAND(asked == told, "explain and workspace disagree");
    void *memory = asked == HEADWAY_OK ? workspace(needed, &bytes, &refused) : NULL;
    const headway_status status =
        headway_attention(engine, p, query, key, value, out, memory, bytes);
    const struct states after = states();
    check_status(status);
    DEMAND(memcmp(&before, &after, sizeof after) == 0, "attention changed a cache");
    DEMAND(status != HEADWAY_OK || (asked == HEADWAY_OK && !refused),
           "what workspace refuses is accepted, or a bad workspace is");
    verify(status == HEADWAY_OK);
}

static const headway_tensor *weight(int64_t outputs_, int64_t inputs, int transposed)
{
    const int64_t shape[] = {transposed ? inputs : outputs_, transposed ? outputs_ : inputs};
    return tensor(HEADWAY_F32, 2, shape, 0);
}

static const headway_tensor *vector(int64_t count)
{
    return pick(2) ? tensor(HEADWAY_F32, 1, &count, 0) : NULL;
}

static const headway_rope_config *rope(int64_t size)
{
    headway_rope_config r = HEADWAY_ROPE_CONFIG_INIT;
    double factors[64];
    if (pick(2) == 0)
        return NULL;
    r.style = (headway_rope_style)(odd() ? (int)wild() : pick(3));
    r.rotary_size = odd() ? wild() : pick(3) * 2;
    r.positions = odd() ? wild() : 16;
    r.scaling = (headway_rope_scaling)(odd() ? (int)wild() : pick(6));
    r.theta = pick(3) ? 0.0 : (double)number() * 100;
    r.factor = r.scaling == HEADWAY_ROPE_PLAIN && !odd() ? 0.0 : pick(4) ? 4.0 : (double)number();
    r.original_positions = r.scaling >= HEADWAY_ROPE_DYNAMIC || odd() ? pick(2) ? 8 : wild() : 0;
    if (r.scaling == HEADWAY_ROPE_LLAMA3 || odd()) {
        r.low_freq_factor = pick(4) ? 1.0 : (double)number();
        r.high_freq_factor = pick(4) ? 4.0 : (double)number();
    }
    if (r.scaling == HEADWAY_ROPE_YARN || odd()) {
        r.beta_fast = pick(4) ? 0.0 : (double)number();
        r.beta_slow = pick(4) ? 0.0 : (double)number();
        r.no_truncate = pick(2);
        r.mscale = pick(4) ? 0.0 : (double)number();
        r.mscale_all_dim = pick(4) ? 0.0 : (double)number();
    }
    if (r.scaling >= HEADWAY_ROPE_YARN || odd())
        r.attention_factor = pick(4) ? 0.0 : (double)number();
    for (int i = 0; i < 64; i++)
        factors[i] = i == 1 ? (double)number() : 1.0 + i;
    if (r.scaling == HEADWAY_ROPE_LONGROPE || odd()) {
        r.short_factors = region_of(factors, sizeof factors);
        r.long_factors = odd() ? NULL : region_of(factors, sizeof factors);
    }
    if (pick(4) == 3) {
        const int64_t table[] = {16, (r.rotary_size > 0 ? r.rotary_size : size) / 2};
        r.cos = tensor(HEADWAY_F32, 2, table, 0);
        r.sin = tensor(HEADWAY_F32, 2, table, 0);
    }
    if (odd())
        r.size = pick(2) ? (size_t)wild() : sizeof r - 8 * (size_t)pick(20);
    return region_sized(&r, r.size, sizeof r);
}

static headway_mha *create(const struct sizes *s, int64_t E)
{
    headway_mha_config c = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights w = HEADWAY_MHA_WEIGHTS_INIT;
    headway_mha *layer = NULL;
    const int64_t Q = s->Hq * s->D, K = s->Hkv * s->D, V = s->Hkv * s->Dv;
    c.heads = odd() ? wild() : s->Hq;
    c.kv_heads = odd() ? wild() : s->Hkv;
    c.head_size = odd() ? wild() : s->D;
    c.value_head_size = odd() ? wild() : s->Dv;
    c.transposed = pick(2);
    c.rope = rope(s->D);
    c.norm_eps = pick(3) ? 0.0f : number();
    c.add_zero_attn = pick(2);
    if (pick(2) == 0) {
        w.fused = weight(Q + K + V, E, c.transposed);
        w.fused_bias = vector(Q + K + V);
    }
    if (!w.fused || odd()) {
        w.query = weight(Q, E, c.transposed);
        w.key = weight(K, E, c.transposed);
        w.value = weight(V, E, c.transposed);
        w.query_bias = vector(Q);
        w.key_bias = vector(K);
        w.value_bias = vector(V);
    }
    w.out = weight(E, s->Hq * s->Dv, c.transposed);
    w.out_bias = vector(E);
    w.query_norm = vector(s->D);
    w.key_norm = vector(s->D);
    if (pick(2)) {
        const int64_t key[] = {s->Hkv, s->D}, value[] = {s->Hkv, s->Dv};
        w.bias_k = tensor(HEADWAY_F32, 2, key, 0);
        w.bias_v = tensor(HEADWAY_F32, 2, value, 0);
    }
    if (odd())
        c.size = pick(2) ? (size_t)wild() : sizeof c - 8 * (size_t)pick(10);
    if (odd())
        w.size = pick(2) ? (size_t)wild() : sizeof w - 8 * (size_t)pick(16);
    const void *config = region_sized(&c, c.size, sizeof c);
    const void *weights = region_sized(&w, w.size, sizeof w);
    seal();
    const headway_status status = headway_mha_create(engine, config, weights, &layer);
    check_status(status);
    verify(0);
    DEMAND((status == HEADWAY_OK) == (layer != NULL), "create's status and layer disagree");
    release();
    return layer;
}

static void call_layer(void)
{
    const struct sizes s = sizes();
    const int64_t E = 1 + pick(9), q[] = {s.B, s.Lq, E}, k[] = {s.B, s.Lk, E};
    char text[512] = "";
    size_t needed = 0, bytes = 0;
    int refused = 0;
    headway_mha *layer = create(&s, E);
    if (!layer)
        return;
    struct sizes self = s;
    make_cache(&s, 1);
    const headway_tensor *query = tensor(HEADWAY_F32, 3, q, 0);
    const headway_tensor *key = pick(2) ? tensor(HEADWAY_F32, 3, k, 0) : NULL;
    const headway_tensor *value = pick(2) ? tensor(HEADWAY_F32, 3, k, 0) : NULL;
    headway_tensor *out = tensor(HEADWAY_F32, 3, q, 1);
    if (!key)
        self.Lk = s.Lq;
    const headway_attention_params *p = params(&self, batch_of(query, 2), s.Hq, pick(3));
    alias(out, query);
    const struct states before = states();
    seal();
    const headway_status asked = headway_mha_workspace(layer, p, query, key, value, &needed);
    check_status(asked);
    const headway_status told = headway_mha_explain(layer, p, query, key, value, text, sizeof text);
    check_status(told);
    DEMAND(asked == told, "the layer's explain and workspace disagree");
    void *memory = asked == HEADWAY_OK ? workspace(needed, &bytes, &refused) : NULL;
    const headway_status status =
        headway_mha_forward(layer, p, query, key, value, out, memory, bytes);
    check_states(status, &before);
    DEMAND(status != HEADWAY_OK || (asked == HEADWAY_OK && !refused),
           "what the layer's workspace refuses is accepted, or a bad workspace is");
    verify(status == HEADWAY_OK);
    headway_mha_destroy(layer);
}

/* Saved weights, cut, changed or sound: refused, or a layer that runs. */
static void call_packed(void)
{
    const struct sizes s = sizes();
    const int64_t E = 1 + pick(9), q[] = {s.B, s.Lq, E};
    size_t bytes = 0, needed = 0;
    headway_mha *layer = create(&s, E), *mapped = NULL;
    if (!layer)
        return;
    check_status(headway_mha_packed_bytes(layer, &bytes));
    uint8_t *saved = region(bytes, 1);
    const int damages = pick(4);
    const headway_status written = headway_mha_save_packed(layer, saved, bytes);
    check_status(written);
    headway_mha_destroy(layer);
    for (int n = 0; n < damages && bytes > 0; n++) {
        const size_t place = (pick(2) ? byte() * 8 : byte() << 8 | byte()) % bytes;
        const int64_t put = wild();
        if (pick(2))
            memcpy(saved + place, &put, bytes - place < sizeof put ? bytes - place : sizeof put);
        else
            saved[place] ^= (uint8_t)(1 << pick(8));
    }
    const size_t given =
        pick(4) == 3 ? odd() ? (size_t)wild() % (bytes + 1) : bytes * byte() / 256 : bytes;
    void *cut = region_of(saved, given);
    seal();
    const headway_status status = headway_mha_map_packed(engine, cut, given, &mapped);
    check_status(status);
    DEMAND((status == HEADWAY_OK) == (mapped != NULL), "map's status and layer disagree");
    DEMAND(damages || given < bytes || written != HEADWAY_OK || mapped,
           "sound weights are refused");
    if (mapped) {
        headway_mha_sizes learned = HEADWAY_MHA_SIZES_INIT;
        DEMAND(headway_mha_get_sizes(mapped, &learned) == HEADWAY_OK && learned.heads >= 1 &&
                   learned.query_width >= 1,
               "a mapped layer without sizes");
        const headway_tensor *query = tensor(HEADWAY_F32, 3, q, 0);
        const headway_tensor *out = tensor(HEADWAY_F32, 3, q, 1);
        headway_status ran = headway_mha_workspace(mapped, NULL, query, NULL, NULL, &needed);
        check_status(ran);
        void *memory = ran == HEADWAY_OK && needed < (size_t)1 << 26 ? region(needed, 1) : NULL;
        check_status(headway_mha_forward(mapped, NULL, query, NULL, NULL, out, memory, needed));
    }
    headway_mha_destroy(mapped);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static const char *const rows[] = {NULL, "scalar", "avx2"};
    static void (*const calls[])(void) = {call_attention, call_layer, call_attention, call_layer,
                                          call_packed};
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    at = bytes;
    end = bytes + count;
    config.isa = rows[pick(3)];
    config.threads = 1;
    if (headway_engine_create(&config, &engine) != HEADWAY_OK)
        return 0;
    calls[pick(5)]();
    headway_kv_cache_destroy(cache);
    cache = NULL;
    release();
    headway_engine_destroy(engine);
    return 0;
}
