/* Relations of caches: what lies where, since when and how it came there says nothing. */
#include "check_metamorphic.h"

#include "check.h"

static int64_t below(uint64_t *random, int64_t n)
{
    return (int64_t)(check_random(random) % (uint64_t)n);
}

static void fit_cache(struct drawn *d)
{
    if (!d->f[DRAW_CACHE])
        d->f[DRAW_CACHE] = 1 + (int64_t)(d->seed % 10);
    d->f[DRAW_BATCH] += d->f[DRAW_BATCH] == 0;
}

static void fit_fixed(struct drawn *d)
{
    fit_cache(d);
    d->f[DRAW_ROLLING] = d->f[DRAW_SLOTS] = 0;
}

static void fit_forks(struct drawn *d)
{
    fit_fixed(d);
    d->f[DRAW_PREFIX] = 1 + (int64_t)(d->seed % 3);
    if (!d->f[DRAW_PACKED] && d->f[DRAW_BATCH] < 2)
        d->f[DRAW_BATCH] = 3;
    if (d->seed % 3 == 0) {
        d->f[DRAW_KEYS] = 512 * (1 + (int64_t)(d->seed % 3)) + (int64_t)(d->seed % 70);
        d->f[DRAW_QUERIES] = 1 + (int64_t)(d->seed % 4);
        d->f[DRAW_SIZE] = d->f[DRAW_VALUE_SIZE] = d->f[DRAW_KV_HEADS] = 2;
        d->f[DRAW_PACKED] = d->f[DRAW_KEY_LENGTHS] = d->f[DRAW_MASK] = 0;
        d->f[DRAW_PREFIX] = 2 + (int64_t)(d->seed / 3 % 2);
    }
}

static void fit_shorter(struct drawn *d)
{
    fit_fixed(d);
    d->f[DRAW_PACKED] = d->f[DRAW_PREFIX] = 0;
    d->f[DRAW_KEY_LENGTHS] = 1;
}

static void fit_rolling(struct drawn *d)
{
    fit_cache(d);
    d->f[DRAW_ROLLING] = 1;
    d->f[DRAW_CAUSAL] = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    d->f[DRAW_LEFT] = (int64_t)(d->seed % 30);
    if (d->f[DRAW_QUERIES] > 8)
        d->f[DRAW_QUERIES] %= 8;
}

static void other_chunks(struct inputs *in)
{
    static const int64_t chunks[] = {1, 3, 16, 65, 0};
    in->cache->way.chunk = chunks[below(&in->random, 5)];
}

static void other_pages(struct inputs *in)
{
    in->cache->way.page = below(&in->random, 4) ? (int64_t)1 << below(&in->random, 9) : 0;
}

static void other_slots(struct inputs *in)
{
    in->cache->way.turned = !in->cache->way.turned;
    in->cache->way.spare += 40;
}

static void copies(struct inputs *in)
{
    in->cache->common = in->cache->prefix = 0;
}

static void other_hint(struct inputs *in)
{
    in->cache->prefix = in->cache->prefix == 1 ? 2 : 1;
}

static void detour(struct inputs *in)
{
    in->cache->detour = 1;
}

static void truncated(struct inputs *in)
{
    in->cache->detour = 2;
}

static void length_given(struct inputs *in)
{
    in->cache->way.beyond = 1;
}

static void all_kept(struct inputs *in)
{
    in->cache->way.rolling = 0;
    in->cache->way.pinned = 0;
}

const struct relation cache_relations[] = {
    {"cache: tokens in other chunks", fit_cache, other_chunks},
    {"cache: pages of another size", fit_fixed, other_pages},
    {"cache: other slots and capacity", fit_fixed, other_slots},
    {"cache: forks = copies", fit_forks, copies},
    {"cache: a shared prefix said or not", fit_forks, other_hint},
    {"cache: truncated and appended = appended", fit_fixed, detour},
    {"cache: truncated = never there", fit_shorter, truncated},
    {"cache: key lengths = truncated", fit_shorter, length_given},
    {"cache: rolling = all kept", fit_rolling, all_kept},
    {0},
};

void fit_cache_rows(struct drawn *d)
{
    fit_cache(d);
    d->f[DRAW_PACKED] = 0;
}

void fit_cache_batch(struct drawn *d)
{
    fit_cache(d);
    d->f[DRAW_PACKED] = d->f[DRAW_KEY_LENGTHS] = d->f[DRAW_PREFIX] = 0;
}
