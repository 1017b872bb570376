/* A cache's tokens: appended and read back, on the engine's threads where there are many. */
#include <string.h>

#include "api/call.h"
#include "api/check.h"
#include "api/kv_cache.h"
#include "system/parallel.h"

#define CHUNK_TOKENS 16
#define ELEMENT_FLOPS 4 /* that take as long as an element does */

/* Tokens between a cache and the caller's (B, L, H, size) lines; data NULL: none of that kind. */
struct transfer {
    const headway_kv_cache *cache;
    const struct headway_row *row;
    struct headway_cached of; /* what is appended, or whose slots are read */
    struct headway_view key, value;
    int64_t chunks; /* of a sequence */
    int64_t first;  /* the token to begin to read at */
    int reading;
};

static void move_lines(const struct transfer *t, const struct headway_pool *pool,
                       const struct headway_view *view, int64_t size, int64_t b, int64_t i)
{
    const headway_kv_cache *c = t->cache;
    const int64_t slot = headway_slot(&t->of, b);
    const int64_t token = i + (t->reading ? t->first : c->lengths[slot]);
    for (int64_t h = 0; view->data && h < c->kv_heads; h++) {
        float *line = view->data + b * view->batch + i * view->row + h * view->head;
        if (t->reading)
            headway_store_get(t->row, &c->store, pool, slot, h, token, size, line);
        else
            headway_store_put(t->row, &c->store, pool, slot, h, token, size, line);
    }
}

static void transfer_task(void *context, int64_t task, int worker)
{
    const struct transfer *t = context;
    const headway_kv_cache *c = t->cache;
    const int64_t b = task / t->chunks, from = task % t->chunks * CHUNK_TOKENS;
    const int64_t end = headway_at_most(from + CHUNK_TOKENS, headway_more(&t->of, b));
    (void)worker;
    for (int64_t i = from; i < end; i++) {
        move_lines(t, &c->store.key, &t->key, c->size, b, i);
        move_lines(t, &c->store.value, &t->value, c->value_size, b, i);
    }
}

static void transfer(struct headway_call *call, struct transfer *t, int64_t batch)
{
    const struct headway_machine machine = headway_call_machine(call);
    const double elements =
        (double)t->cache->kv_heads *
        (double)((t->key.data ? t->cache->size : 0) + (t->value.data ? t->cache->value_size : 0));
    double tokens = 0;
    int64_t longest = 0;
    for (int64_t b = 0; b < batch; b++) {
        tokens += (double)headway_more(&t->of, b);
        if (headway_more(&t->of, b) > longest)
            longest = headway_more(&t->of, b);
    }
    t->row = machine.row;
    t->chunks = headway_divide_up(longest, CHUNK_TOKENS);
    if (tokens == 0)
        return;
    const int threads =
        headway_threads_for(tokens * elements * ELEMENT_FLOPS, machine.team.threads);
    headway_call_threads(call, threads);
    headway_parallel(&machine.team, threads, batch * t->chunks, transfer_task, t);
}

/* Tokens of the caller: (B, L, Hkv, size), or without B. */
static headway_status check_tokens(const headway_kv_cache *c, const char *name,
                                   const headway_tensor *tensor, int rank, int64_t size)
{
    const headway_engine *engine = c->engine;
    HEADWAY_TRY(headway_check_tensor(engine, name, tensor, HEADWAY_F32, rank,
                                     rank == 4 ? "(B, L, Hkv, size)" : "(L, Hkv, size)"));
    HEADWAY_TRY(headway_check_extent(engine, name, rank - 2, tensor->shape[rank - 2], c->kv_heads,
                                     "the cache's heads"));
    HEADWAY_TRY(headway_check_extent(engine, name, rank - 1, tensor->shape[rank - 1], size,
                                     "the cache's head size"));
    HEADWAY_TRY(headway_check_data(engine, name, tensor));
    for (int i = 0; i < HEADWAY_CACHE_TENSORS; i++)
        if (c->memory[i].rank)
            HEADWAY_TRY(headway_check_apart(engine, name, tensor, "the cache", &c->memory[i]));
    return HEADWAY_OK;
}

static struct headway_view view_of(const headway_tensor *tensor)
{
    const int row = tensor->rank - 3;
    const struct headway_view view = {tensor->data, row ? headway_stride(tensor, 0) : 0,
                                      headway_stride(tensor, row), headway_stride(tensor, row + 1)};
    return view;
}

static headway_status append(struct headway_call *call, headway_kv_cache *cache,
                             const int64_t *slots, const int64_t *lengths,
                             const headway_tensor *key, const headway_tensor *value)
{
    const headway_engine *engine = call->engine;
    HEADWAY_TRY(check_tokens(cache, "key", key, 4, cache->size));
    HEADWAY_TRY(check_tokens(cache, "value", value, 4, cache->value_size));
    for (int i = 0; i < 2; i++)
        HEADWAY_TRY(headway_check_extent(engine, "value", i, value->shape[i], key->shape[i],
                                         i ? "key's length" : "key's batch"));
    const int64_t batch = key->shape[0];
    HEADWAY_TRY(headway_cache_check_slots(engine, cache, "slots", slots, batch));
    HEADWAY_TRY(headway_check_lengths(engine, "lengths", lengths, batch, key->shape[1]));
    struct transfer t = {.cache = cache,
                         .of = {&cache->store, slots, lengths, NULL, key->shape[1]},
                         .key = view_of(key),
                         .value = view_of(value)};
    HEADWAY_TRY(headway_cache_prepare(engine, cache, "slots", &t.of, batch));
    headway_call_phase(call, "check");
    headway_cache_begin(cache, &t.of, batch);
    transfer(call, &t, batch);
    headway_cache_commit(cache, &t.of, batch);
    headway_call_phase(call, "append");
    for (int64_t b = 0; b < batch; b++)
        headway_call_append(call, &cache->store, cache->kv_heads, cache->size, cache->value_size,
                            headway_more(&t.of, b));
    return HEADWAY_OK;
}

headway_status headway_kv_cache_append(headway_kv_cache *cache, const int64_t *slots,
                                       const int64_t *lengths, const headway_tensor *key,
                                       const headway_tensor *value)
{
    struct headway_call call;
    if (!cache)
        return HEADWAY_ERROR_ARGUMENT;
    headway_call_begin(&call, cache->engine, "append");
    return headway_call_end(&call, append(&call, cache, slots, lengths, key, value));
}

/* Tokens first .. first + count - 1 are there. */
static headway_status check_kept(const headway_kv_cache *c, int64_t slot, int64_t first,
                                 int64_t count)
{
    const int64_t length = c->lengths[slot], oldest = c->first[slot];
    if (first < 0 || first > length || count > length - first)
        return headway_fail(c->engine, HEADWAY_ERROR_ARGUMENT,
                            "first: %lld with %lld tokens, expected within the sequence's %lld",
                            (long long)first, (long long)count, (long long)length);
    if (count > 0 && first + count > c->pinned && oldest > c->pinned && first < oldest)
        return headway_fail(
            c->engine, HEADWAY_ERROR_ARGUMENT,
            "first: %lld with %lld tokens, expected below %lld or from %lld on (what "
            "a rolling sequence has kept)",
            (long long)first, (long long)count, (long long)c->pinned, (long long)oldest);
    return HEADWAY_OK;
}

headway_status headway_kv_cache_read(const headway_kv_cache *cache, int64_t slot, int64_t first,
                                     const headway_tensor *key, const headway_tensor *value)
{
    const headway_tensor *any = key ? key : value;
    if (!cache)
        return HEADWAY_ERROR_ARGUMENT;
    const headway_engine *engine = cache->engine;
    HEADWAY_TRY(headway_cache_check_slot(cache, "slot", slot));
    if (!any)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "key: NULL as value is, expected one of them");
    if (key)
        HEADWAY_TRY(check_tokens(cache, "key", key, 3, cache->size));
    if (value)
        HEADWAY_TRY(check_tokens(cache, "value", value, 3, cache->value_size));
    if (key)
        HEADWAY_TRY(headway_check_distinct(engine, "key", key));
    if (value)
        HEADWAY_TRY(headway_check_distinct(engine, "value", value));
    if (key && value) {
        HEADWAY_TRY(headway_check_extent(engine, "value", 0, value->shape[0], key->shape[0],
                                         "key's length"));
        HEADWAY_TRY(headway_check_apart(engine, "value", value, "key", key));
    }
    HEADWAY_TRY(check_kept(cache, slot, first, any->shape[0]));
    struct transfer t = {.cache = cache,
                         .of = {&cache->store, &slot, NULL, NULL, any->shape[0]},
                         .first = first,
                         .reading = 1};
    if (key)
        t.key = view_of(key);
    if (value)
        t.value = view_of(value);
    struct headway_call call = {.engine = engine, .before = headway_float_enter()};
    transfer(&call, &t, 1);
    headway_float_leave(call.before);
    return HEADWAY_OK;
}
