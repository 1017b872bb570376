/* What params say of a cache, into the problem that the core works on. */
#include "api/check.h"
#include "api/kv_cache.h"
#include "core/tile.h"
#include "system/memory.h"

static headway_status check_size_of(const headway_engine *engine, const char *what, int64_t given,
                                    int64_t expected)
{
    if (given != expected)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "cache: %s %lld, expected %lld", what,
                            (long long)given, (long long)expected);
    return HEADWAY_OK;
}

headway_status headway_check_cache(const headway_engine *engine,
                                   const headway_attention_params *params,
                                   struct headway_problem *problem)
{
    const headway_kv_cache *cache = params->cache;
    problem->cached = (struct headway_cached){.store = NULL};
    problem->shared_prefix = 0;
    if (!cache && (params->cache_slots || params->shared_prefix != 0))
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "%s: given without cache, expected %s",
                            params->cache_slots ? "cache_slots" : "shared_prefix",
                            params->cache_slots ? "NULL" : "0");
    if (!cache)
        return HEADWAY_OK;
    if (params->shared_prefix < 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "shared_prefix: %lld, expected 0 or more",
                            (long long)params->shared_prefix);
    HEADWAY_TRY(check_size_of(engine, "kv_heads", cache->kv_heads, problem->kv_heads));
    HEADWAY_TRY(check_size_of(engine, "head_size", cache->size, problem->size));
    return check_size_of(engine, "value_head_size", cache->value_size, problem->value_size);
}

/* What a layer's call appends: cached.more_*. */
static headway_status check_more(const headway_engine *engine,
                                 const headway_attention_params *params, int call,
                                 struct headway_problem *p)
{
    struct headway_cached *cached = &p->cached;
    if (!HEADWAY_CALL_APPENDS_KEY(call)) {
        if (params->key_lengths || params->key_starts)
            return headway_fail(
                engine, HEADWAY_ERROR_ARGUMENT,
                "%s: given in self-attention with a cache, expected NULL (the tokens "
                "are the queries')",
                params->key_lengths ? "key_lengths" : "key_starts");
        cached->more_lengths = p->query_lengths;
        cached->more_starts = p->query_starts;
        cached->more_rows = p->query_rows;
        return HEADWAY_OK;
    }
    HEADWAY_TRY(
        headway_check_lengths(engine, "key_lengths", params->key_lengths, p->batch, p->keys));
    cached->more_lengths = params->key_lengths;
    cached->more_starts = p->key_starts;
    cached->more_rows = p->keys;
    return HEADWAY_OK;
}

/* How many of the cached keys are seen. */
static headway_status check_seen(const headway_engine *engine,
                                 const headway_attention_params *params, struct headway_problem *p)
{
    const struct headway_cached *cached = &p->cached;
    if (params->key_starts)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "key_starts: given with cache, expected NULL");
    for (int64_t b = 0; params->key_lengths && b < p->batch; b++) {
        const int64_t most = cached->store->lengths[headway_slot(cached, b)];
        if (params->key_lengths[b] < 0 || params->key_lengths[b] > most)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "key_lengths: %lld for batch %lld, expected 0..%lld (what its slot "
                                "holds)",
                                (long long)params->key_lengths[b], (long long)b, (long long)most);
    }
    p->key_lengths = params->key_lengths;
    return HEADWAY_OK;
}

/* How many of the first `most` keys lie at the same addresses for all sequences. Of a rolling cache
 * those that stay. */
static int64_t shared_keys(const headway_kv_cache *c, const struct headway_problem *p, int64_t most)
{
    const struct headway_cached *cached = &p->cached;
    const int32_t *tables = c->tables;
    int64_t shared = p->batch < 1 ? 0 : c->rolling && c->pinned < most ? c->pinned : most;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t slot = headway_slot(cached, b), first = headway_slot(cached, 0);
        const int32_t *table = tables + slot * c->store.entries;
        const int32_t *other = tables + first * c->store.entries;
        int64_t page = 0;
        shared = headway_at_most(shared, c->lengths[slot]);
        while (page * c->store.page_size < shared && table[page] == other[page])
            page++;
        shared = headway_at_most(shared, page * c->store.page_size);
    }
    return shared;
}

headway_status headway_check_cached(const headway_engine *engine,
                                    const headway_attention_params *params, int call,
                                    struct headway_problem *problem)
{
    const headway_kv_cache *cache = params->cache;
    struct headway_cached *cached = &problem->cached;
    cached->store = &cache->store;
    cached->slots = params->cache_slots;
    HEADWAY_TRY(
        headway_cache_check_slots(engine, cache, "cache_slots", cached->slots, problem->batch));
    problem->key_lengths = NULL;
    if (call & HEADWAY_CALL_LAYER)
        HEADWAY_TRY(check_more(engine, params, call, problem));
    else
        HEADWAY_TRY(check_seen(engine, params, problem));
    problem->key_starts = NULL;
    problem->keys = 0;
    for (int64_t b = 0; b < problem->batch; b++) {
        const int64_t length = cache->lengths[headway_slot(cached, b)];
        int64_t sum;
        if (!headway_add(length, headway_more(cached, b), &sum) || sum > HEADWAY_CACHE_LONGEST)
            return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                                "cache: more than 2^61 tokens for batch %lld", (long long)b);
        if (headway_key_length(problem, b) > problem->keys)
            problem->keys = headway_key_length(problem, b);
    }
    problem->shared_prefix = shared_keys(cache, problem, params->shared_prefix);
    return HEADWAY_OK;
}

/* A row that sees keys from .. end - 1 sees none of those between the pinned ones and `first`. */
static int is_kept(const headway_kv_cache *c, int64_t first, int64_t from, int64_t end)
{
    return from >= end || end <= c->pinned || from >= first;
}

headway_status headway_check_reach(const headway_engine *engine, const headway_kv_cache *cache,
                                   const struct headway_problem *problem)
{
    struct headway_lanes l = {.group = 1};
    for (l.b = 0; cache->rolling && l.b < problem->batch; l.b++) {
        const int64_t rows = headway_query_length(problem, l.b);
        const int64_t first = headway_cache_first(cache, &problem->cached, l.b);
        l.query_start = problem->query_starts ? problem->query_starts[l.b] : 0;
        for (l.start = 0; first > cache->pinned && l.start < rows; l.start += l.n) {
            l.n = (int)headway_at_most(rows - l.start, HEADWAY_MAX_WIDTH);
            l.width = l.n;
            headway_mask_ranges(problem, &l);
            for (int lane = 0; lane < l.n; lane++) {
                int64_t from = 0, end = 0;
                if (l.prefix > 0)
                    headway_mask_prefix(problem, &l, lane, &from, &end);
                if (is_kept(cache, first, from, end) &&
                    is_kept(cache, first, l.first[lane], l.last[lane]))
                    continue;
                return headway_fail(
                    engine, HEADWAY_ERROR_ARGUMENT,
                    "cache: row %lld of sequence %lld sees keys that are gone, "
                    "expected below %lld or from %lld on (window_left, window_first)",
                    (long long)(l.start + lane), (long long)l.b, (long long)cache->pinned,
                    (long long)first);
            }
        }
    }
    return HEADWAY_OK;
}
