#include "drawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define COUNT(a) ((int64_t)(sizeof(a) / sizeof *(a)))

/* A field's name, its plain value, and the values it may have. */
static const struct {
    const char *name;
    int64_t plain, low, high;
} fields[DRAW_FIELDS] = {
    [DRAW_BATCH] = {"b", 1, 0, 64},
    [DRAW_QUERIES] = {"lq", 1, 0, 1 << 20},
    [DRAW_KEYS] = {"lk", 1, 0, 1 << 20},
    [DRAW_KV_HEADS] = {"kv", 1, 1, 64},
    [DRAW_GROUP] = {"group", 1, 1, 64},
    [DRAW_SIZE] = {"d", 1, 1, 4096},
    [DRAW_VALUE_SIZE] = {"dv", 1, 0, 4096},
    [DRAW_CAUSAL] = {"causal", 0, 0, 3},
    [DRAW_OFFSETS] = {"offsets", 0, 0, 2},
    [DRAW_LEFT] = {"left", -1, -1, INT64_MAX - 1},
    [DRAW_RIGHT] = {"right", -1, -1, INT64_MAX - 1},
    [DRAW_FIRST] = {"first", 0, 0, 1 << 20},
    [DRAW_QUERY_LENGTHS] = {"qlen", 0, 0, 1},
    [DRAW_KEY_LENGTHS] = {"klen", 0, 0, 1},
    [DRAW_PACKED] = {"packed", 0, 0, 64},
    [DRAW_KEY_STARTS] = {"kstarts", 0, 0, 1},
    [DRAW_INTERVAL] = {"interval", 0, 0, 3},
    [DRAW_MASK] = {"mask", 0, 0, 4},
    [DRAW_MASK_RANK] = {"rank", 1, 1, 4},
    [DRAW_MASK_FULL] = {"full", 15, 0, 15},
    [DRAW_SCALE] = {"scale", 0, 0, 4},
    [DRAW_SOFTCAP] = {"softcap", 0, 0, 5},
    [DRAW_ALIBI] = {"alibi", 0, 0, 2},
    [DRAW_SINKS] = {"sinks", 0, 0, 3},
    [DRAW_LSE] = {"lse", 0, 0, 1},
    [DRAW_WEIGHTS] = {"weights", 0, 0, 2},
    [DRAW_POISON] = {"poison", 0, 0, 2},
    [DRAW_VALUES] = {"values", 0, 0, 6},
    [DRAW_LAYOUT] = {"layout", 0, 0, 4},
    [DRAW_SHARED] = {"shared", 0, 0, 7},
    [DRAW_LEADING] = {"leading", 0, 0, 3},
    [DRAW_THREADS] = {"threads", 1, 1, 4},
    [DRAW_AT_END] = {"end", 0, 0, 1},
    [DRAW_CACHE] = {"cache", 0, 0, 10},
    [DRAW_KEY_STORAGE] = {"kstore", 0, 0, 3},
    [DRAW_VALUE_STORAGE] = {"vstore", 0, 0, 3},
    [DRAW_CHUNK] = {"chunk", 0, 0, 3},
    [DRAW_SLOTS] = {"slots", 0, 0, 3},
    [DRAW_PREFIX] = {"prefix", 0, 0, 3},
    [DRAW_ROLLING] = {"rolling", 0, 0, 1},
    [DRAW_LAYER] = {"layer", 0, 0, 1},
    [DRAW_WIDTH] = {"e", 1, 1, 4096},
    [DRAW_KEY_WIDTH] = {"ek", 1, 1, 4096},
    [DRAW_VALUE_WIDTH] = {"ev", 1, 1, 4096},
    [DRAW_OUT_WIDTH] = {"eo", 1, 1, 4096},
    [DRAW_SELF] = {"self", 0, 0, 2},
    [DRAW_STORAGE] = {"storage", 0, 0, 2},
    [DRAW_BIASES] = {"biases", 0, 0, 15},
    [DRAW_ROPE] = {"rope", 0, 0, 2},
    [DRAW_ROPE_SIZE] = {"pairs", 0, 0, 2048},
    [DRAW_SCALING] = {"scaling", 0, 0, 6},
    [DRAW_NORM] = {"norm", 0, 0, 1},
    [DRAW_MORE] = {"more", 0, 0, 1},
    [DRAW_ZERO] = {"zero", 0, 0, 1},
    [DRAW_POSITIONS] = {"positions", 0, 0, 3},
    [DRAW_PAST] = {"past", 0, 0, 2},
};

struct drawn drawn_plain(uint64_t seed)
{
    struct drawn d = {seed, {0}};
    for (int i = 0; i < DRAW_FIELDS; i++)
        d.f[i] = fields[i].plain;
    return d;
}

static void settle_layer(int64_t *f)
{
    if (!f[DRAW_LAYER]) {
        for (int i = DRAW_WIDTH; i < DRAW_FIELDS; i++)
            f[i] = fields[i].plain;
        return;
    }
    if (f[DRAW_STORAGE] == 2)
        f[DRAW_VALUE_WIDTH] = f[DRAW_KEY_WIDTH] = f[DRAW_WIDTH];
    if (f[DRAW_SELF] == 2) {
        f[DRAW_KEYS] = f[DRAW_QUERIES];
        f[DRAW_KEY_WIDTH] = f[DRAW_WIDTH];
        f[DRAW_KEY_STARTS] = 0;
    }
    if (f[DRAW_SELF])
        f[DRAW_VALUE_WIDTH] = f[DRAW_KEY_WIDTH];
    f[DRAW_SHARED] = 0;
    f[DRAW_LAYOUT] = f[DRAW_LAYOUT] == 2 || f[DRAW_LAYOUT] == 1 ? 0 : f[DRAW_LAYOUT];
    f[DRAW_VALUES] = f[DRAW_VALUES] == 3 || f[DRAW_VALUES] == 4 ? f[DRAW_VALUES] : 0;
    if (f[DRAW_VALUE_SIZE] == 0)
        f[DRAW_VALUE_SIZE] = 1;
    if (f[DRAW_SIZE] < 2)
        f[DRAW_ROPE] = 0;
    if (!f[DRAW_ROPE]) {
        f[DRAW_ROPE_SIZE] = f[DRAW_SCALING] = f[DRAW_POSITIONS] = 0;
        return;
    }
    if (f[DRAW_ROPE_SIZE] > f[DRAW_SIZE] / 2 || (!f[DRAW_ROPE_SIZE] && f[DRAW_SIZE] % 2))
        f[DRAW_ROPE_SIZE] = f[DRAW_SIZE] / 2;
    if (f[DRAW_SCALING] == HEADWAY_ROPE_DYNAMIC && (f[DRAW_ROPE_SIZE] == 1 || f[DRAW_SIZE] < 4))
        f[DRAW_SCALING] = HEADWAY_ROPE_LINEAR;
    /* Rows may stand before the first key, where no table is. */
    if (!f[DRAW_POSITIONS] && (f[DRAW_OFFSETS] || f[DRAW_CAUSAL] > HEADWAY_CAUSAL_TOP_LEFT))
        f[DRAW_POSITIONS] = 2;
}

static void settle_cache(int64_t *f)
{
    if (f[DRAW_BATCH] == 0)
        f[DRAW_CACHE] = 0;
    if (!f[DRAW_CACHE]) {
        for (int i = DRAW_CACHE; i < DRAW_LAYER; i++)
            f[i] = fields[i].plain;
        f[DRAW_PAST] = 0;
        return;
    }
    if (f[DRAW_VALUE_SIZE] == 0)
        f[DRAW_VALUE_SIZE] = 1;
    if (f[DRAW_LAYER]) {
        f[DRAW_PREFIX] = f[DRAW_CHUNK] = 0;
        f[DRAW_SLOTS] &= 1;
    }
    if (f[DRAW_PACKED])
        f[DRAW_SLOTS] &= 1;
    if (f[DRAW_PREFIX])
        f[DRAW_POISON] = 0;
    /* What is stored, or not kept, need not be the same where the inputs are. */
    f[DRAW_SHARED] = 0;
    if (f[DRAW_ROLLING] && f[DRAW_LAYER])
        f[DRAW_PAST] = 2;
}

void drawn_settle(struct drawn *d)
{
    int64_t *f = d->f;
    settle_layer(f);
    settle_cache(f);
    if (f[DRAW_LEFT] < 0 && f[DRAW_RIGHT] < 0)
        f[DRAW_FIRST] = 0;
    /* Places that far away have no distance that ALiBi could count. */
    if (f[DRAW_OFFSETS] == 2 && f[DRAW_ALIBI])
        f[DRAW_OFFSETS] = 1;
    if (f[DRAW_CAUSAL] != HEADWAY_CAUSAL_NONE &&
        (f[DRAW_CAUSAL] != HEADWAY_CAUSAL_OFFSETS || f[DRAW_OFFSETS] == 1))
        f[DRAW_OFFSETS] = 0;
    if (f[DRAW_PACKED]) {
        f[DRAW_BATCH] = 1;
        f[DRAW_QUERY_LENGTHS] = f[DRAW_KEY_LENGTHS] = f[DRAW_WEIGHTS] = f[DRAW_LEADING] = 0;
        if (!f[DRAW_KEY_STARTS])
            f[DRAW_KEYS] = f[DRAW_QUERIES];
    } else {
        f[DRAW_KEY_STARTS] = 0;
    }
    if (!f[DRAW_MASK]) {
        f[DRAW_MASK_RANK] = 1;
        f[DRAW_MASK_FULL] = 15;
    }
    if (f[DRAW_MASK_RANK] == 3)
        f[DRAW_MASK_RANK] = 2;
    f[DRAW_MASK_FULL] |= (16 >> f[DRAW_MASK_RANK]) - 1;
    if (f[DRAW_LAYOUT] == 2)
        f[DRAW_SHARED] = 0;
    if (f[DRAW_LEADING] == 1 && f[DRAW_BATCH] != 1)
        f[DRAW_LEADING] = 2;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static int64_t below(uint64_t *random, int64_t n)
{
    return (int64_t)(check_random(random) % (uint64_t)n);
}

/* Around the places where tiles, blocks and segments end. */
static int64_t draw_length(uint64_t *random)
{
    static const int64_t edges[] = {0, 1, 2, 16, 32, 64, 128, 256, 512};
    const int64_t edge = edges[below(random, COUNT(edges))] + below(random, 3) - 1;
    switch (below(random, 4)) {
    case 0:
        return 1 + below(random, 70);
    case 1:
        return below(random, 300);
    default:
        return edge < 0 ? 0 : edge;
    }
}

static int64_t draw_size(uint64_t *random)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 80, 128};
    return below(random, 8) ? sizes[below(random, COUNT(sizes))] : 1 + below(random, 260);
}

static void draw_shape(struct drawn *d, uint64_t *random, double cost)
{
    int64_t *f = d->f;
    do {
        f[DRAW_BATCH] = below(random, 30) ? 1 + below(random, 4) : 0;
        f[DRAW_QUERIES] = draw_length(random);
        f[DRAW_KEYS] = below(random, 3) ? draw_length(random) : f[DRAW_QUERIES];
        f[DRAW_KV_HEADS] = 1 + below(random, 4);
        f[DRAW_GROUP] = below(random, 2) ? 1 : 1 + below(random, 8);
        f[DRAW_SIZE] = draw_size(random);
        f[DRAW_VALUE_SIZE] = below(random, 2)    ? f[DRAW_SIZE]
                             : below(random, 20) ? draw_size(random)
                                                 : 0;
    } while ((double)f[DRAW_BATCH] * (double)f[DRAW_QUERIES] * (double)f[DRAW_KEYS] *
                 (double)(f[DRAW_KV_HEADS] * f[DRAW_GROUP]) *
                 (double)(f[DRAW_SIZE] + f[DRAW_VALUE_SIZE]) >
             cost);
}

static int64_t draw_window(uint64_t *random, int64_t keys)
{
    switch (below(random, 8)) {
    case 0:
        return INT64_MAX - 1 - below(random, 3);
    case 1:
        return 0;
    case 2:
        return keys;
    default:
        return below(random, keys + 2);
    }
}

static void draw_layer(int64_t *f, uint64_t *random)
{
    static const int64_t widths[] = {1, 2, 7, 16, 24, 33, 48, 64, 65, 100};
    f[DRAW_LAYER] = 1;
    for (int i = DRAW_WIDTH; i <= DRAW_OUT_WIDTH; i++)
        f[i] = widths[below(random, COUNT(widths))];
    f[DRAW_ROPE_SIZE] = below(random, 3) ? 0 : 1 + below(random, 40);
    f[DRAW_BIASES] = below(random, 16);
    f[DRAW_SELF] = below(random, 3);
}

/* Few rows of many keys: these are cut into segments, which tasks or sequences may share. */
static void draw_long(int64_t *f, uint64_t *random)
{
    f[DRAW_BATCH] = 1 + below(random, 3);
    f[DRAW_QUERIES] = 1 + below(random, 3);
    f[DRAW_KEYS] = 512 * (1 + below(random, 4)) + below(random, 200);
    f[DRAW_KV_HEADS] = 1;
    f[DRAW_GROUP] = 1 + below(random, 3);
    f[DRAW_SIZE] = 1 + below(random, 5);
    f[DRAW_VALUE_SIZE] = 1 + below(random, 5);
    f[DRAW_PREFIX] = below(random, 4);
    f[DRAW_THREADS] = 1 + below(random, 4);
}

struct drawn drawn_draw(uint64_t seed, double cost, int layer)
{
    struct drawn d = drawn_plain(seed);
    uint64_t state = seed, random = check_random(&state);
    int64_t *f = d.f;
    draw_shape(&d, &random, cost);
    /* Some problems have many options, some few. */
    const int64_t rarity = 2 + below(&random, 5);
    for (int i = DRAW_CAUSAL; i < DRAW_FIELDS; i++) {
        const int64_t low = fields[i].low;
        if (below(&random, rarity) != 0 || (i >= DRAW_LAYER && i <= DRAW_OUT_WIDTH) ||
            i == DRAW_ROPE_SIZE)
            continue;
        if (i == DRAW_LEFT || i == DRAW_RIGHT)
            f[i] = draw_window(&random, f[DRAW_KEYS]);
        else if (i == DRAW_FIRST)
            f[i] = below(&random, 2) ? below(&random, f[DRAW_KEYS] + 2) : below(&random, 6);
        else if (i == DRAW_PACKED)
            f[i] = below(&random, 2) ? 1 + below(&random, 9) : 0;
        else if (i == DRAW_MASK_FULL)
            f[i] = below(&random, 16);
        else
            f[i] = low + below(&random, fields[i].high - low + 1);
    }
    if (layer)
        draw_layer(f, &random);
    if (below(&random, 2) == 0)
        f[DRAW_CACHE] = 1 + below(&random, 10);
    if (f[DRAW_CACHE] && !layer && below(&random, 4) == 0)
        draw_long(f, &random);
    if (f[DRAW_MASK])
        f[DRAW_MASK_RANK] = below(&random, 2) ? 4 : 1 + below(&random, 2);
    drawn_settle(&d);
    return d;
}

/* ---- text ------------------------------------------------------------------------------------ */

const char *drawn_text(const struct drawn *d)
{
    static char text[500];
    int used = 0;
    for (int i = 0; i < DRAW_FIELDS; i++)
        if (d->f[i] != fields[i].plain)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%s=%lld", used ? " " : "",
                             fields[i].name, (long long)d->f[i]);
    return used ? text : "plain";
}

int drawn_parse(struct drawn *d, const char *text)
{
    *d = drawn_plain(d->seed);
    if (strcmp(text, "plain") == 0)
        return 1;
    while (*text) {
        const size_t length = strcspn(text, "= ");
        int i = 0;
        char *end;
        while (i < DRAW_FIELDS &&
               (strlen(fields[i].name) != length || memcmp(fields[i].name, text, length) != 0))
            i++;
        if (i == DRAW_FIELDS || text[length] != '=')
            return 0;
        d->f[i] = strtoll(text + length + 1, &end, 10);
        if (end == text + length + 1 || d->f[i] < fields[i].low || d->f[i] > fields[i].high)
            return 0;
        text = end + strspn(end, " ");
        if (text == end && *text)
            return 0;
    }
    drawn_settle(d);
    return 1;
}

int drawn_each(int n, struct drawn *d)
{
    static const char *const small[] = {
        "b=2 lq=19 lk=37 kv=2 group=2 d=9 dv=5 lse=1 weights=1",
        "lq=41 lk=41 kv=2 group=3 d=8 dv=16 lse=1 packed=4",
        ("layer=1 b=2 lq=21 lk=18 kv=2 group=2 d=8 dv=5 e=9 ek=16 ev=7 eo=33 biases=15 rope=1 "
         "more=1 zero=1 norm=1 weights=1 lse=1"),
        "layer=1 lq=30 lk=30 kv=2 d=10 dv=10 e=20 ek=20 ev=20 eo=20 self=2 rope=2 packed=3"};
    enum { ENOUGH = 17 };
    for (int base = 0; base < COUNT(small); base++)
        for (int i = DRAW_CAUSAL; i < (base < 2 ? DRAW_LAYER : DRAW_FIELDS); i++)
            for (int64_t v = fields[i].low; v <= fields[i].high && v < ENOUGH; v++)
                if (n-- == 0) {
                    if (!drawn_parse(d, small[base]))
                        abort();
                    d->f[i] = v;
                    if (i == DRAW_MASK_RANK || i == DRAW_MASK_FULL)
                        d->f[DRAW_MASK] = 2;
                    if (i == DRAW_MASK || i == DRAW_MASK_FULL)
                        d->f[DRAW_MASK_RANK] = 4;
                    if (i == DRAW_FIRST || i == DRAW_ROLLING)
                        d->f[DRAW_LEFT] = 3;
                    if ((i > DRAW_CACHE && i < DRAW_LAYER) || i == DRAW_PAST)
                        d->f[DRAW_CACHE] = 4;
                    drawn_settle(d);
                    return 1;
                }
    return 0;
}

int drawn_simpler(const struct drawn *d, int n, struct drawn *simpler)
{
    enum { WAYS = 3 };
    const int i = n / WAYS;
    if (i >= DRAW_FIELDS)
        return 0;
    const int64_t now = d->f[i], plain = fields[i].plain;
    const int64_t ways[WAYS] = {plain, (plain + now) / 2, now > plain ? now - 1 : now + 1};
    *simpler = *d;
    simpler->f[i] = now == plain ? plain : ways[n % WAYS];
    drawn_settle(simpler);
    return 1;
}

static void add(char *text, size_t size, const char *word)
{
    strncat(text, word, size - strlen(text) - 1);
}

const char *drawn_command(const struct drawn *d)
{
    static char text[900];
    static const char *const causal[] = {"", " --causal top-left", " --causal bottom-right",
                                         " --causal OFFSETS.npy"};
    static const char *const mask[] = {"", "bool", "f32", "f16", "bf16"};
    static const char *const softcap[] = {
        "", " --softcap 0.5", " --softcap 5", " --softcap 30", " --softcap 50", " --softcap 1e4"};
    static const char *const alibi[] = {"", " --alibi default", " --alibi SLOPES.npy"};
    const int64_t *f = d->f;
    char word[300];
    snprintf(text, sizeof text,
             "headway check --query Q.npy (%lld,%lld,%lld,%lld) --key K.npy (%lld,%lld,%lld,%lld) "
             "--value V.npy (..,%lld) --threads %lld%s",
             (long long)f[DRAW_BATCH], (long long)f[DRAW_QUERIES],
             (long long)(f[DRAW_KV_HEADS] * f[DRAW_GROUP]), (long long)f[DRAW_SIZE],
             (long long)f[DRAW_BATCH], (long long)f[DRAW_KEYS], (long long)f[DRAW_KV_HEADS],
             (long long)f[DRAW_SIZE], (long long)f[DRAW_VALUE_SIZE], (long long)f[DRAW_THREADS],
             causal[f[DRAW_CAUSAL]]);
    if (f[DRAW_LAYER]) {
        snprintf(word, sizeof word,
                 "headway check --weights W.safetensors --input X.npy (%lld,%lld,%lld)%s%s",
                 (long long)f[DRAW_BATCH], (long long)f[DRAW_QUERIES], (long long)f[DRAW_WIDTH],
                 f[DRAW_SELF] < 2 ? " --key K.npy" : "", causal[f[DRAW_CAUSAL]]);
        snprintf(text, sizeof text, "%s", word);
    }
    if (f[DRAW_LEFT] >= 0 || f[DRAW_RIGHT] >= 0) {
        snprintf(word, sizeof word, " --window %lld,%lld", (long long)f[DRAW_LEFT],
                 (long long)f[DRAW_RIGHT]);
        add(text, sizeof text, word);
    }
    if (f[DRAW_MASK]) {
        snprintf(word, sizeof word, " --mask M.npy (%s, rank %lld)", mask[f[DRAW_MASK]],
                 (long long)f[DRAW_MASK_RANK]);
        add(text, sizeof text, word);
    }
    if (f[DRAW_CACHE]) {
        snprintf(word, sizeof word, " --cache paged:%d", 1 << (f[DRAW_CACHE] - 2));
        add(text, sizeof text, f[DRAW_CACHE] == 1 ? " --cache contiguous" : word);
    }
    add(text, sizeof text, f[DRAW_OFFSETS] ? " --offset OFFSETS.npy" : "");
    add(text, sizeof text, f[DRAW_QUERY_LENGTHS] ? " --query-lengths QL.npy" : "");
    add(text, sizeof text, f[DRAW_KEY_LENGTHS] ? " --key-lengths KL.npy" : "");
    add(text, sizeof text, f[DRAW_PACKED] ? " --query-offsets QS.npy" : "");
    add(text, sizeof text, f[DRAW_KEY_STARTS] ? " --key-offsets KS.npy" : "");
    add(text, sizeof text, f[DRAW_INTERVAL] ? " --interval I.npy" : "");
    add(text, sizeof text, f[DRAW_SCALE] ? " --scale X" : "");
    add(text, sizeof text, softcap[f[DRAW_SOFTCAP]]);
    add(text, sizeof text, alibi[f[DRAW_ALIBI]]);
    add(text, sizeof text, f[DRAW_SINKS] ? " --sink S.npy" : "");
    add(text, sizeof text, f[DRAW_LSE] ? " --lse L.npy" : "");
    add(text, sizeof text,
        f[DRAW_WEIGHTS] == 1   ? " --probs W.npy"
        : f[DRAW_WEIGHTS] == 2 ? " --probs-mean W.npy"
                               : "");
    return text;
}
