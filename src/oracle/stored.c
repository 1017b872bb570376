#include "oracle/reference.h"

static headway_tensor tokens(const headway_tensor *t, int64_t first, int64_t count)
{
    headway_tensor part = *t;
    part.data = (float *)t->data + first * t->stride[0];
    part.shape[0] = count;
    return part;
}

static headway_status read_tokens(const headway_kv_cache *cache, int64_t slot, int64_t first,
                                  int64_t end, const headway_tensor *key,
                                  const headway_tensor *value)
{
    if (first >= end)
        return HEADWAY_OK;
    headway_tensor keys = tokens(key, first, end - first);
    headway_tensor values = tokens(value, first, end - first);
    return headway_kv_cache_read(cache, slot, first, &keys, &values);
}

headway_status headway_stored_values(const headway_kv_cache *cache, int64_t slot, int64_t pinned,
                                     const headway_tensor *key, const headway_tensor *value)
{
    headway_kv_cache_state state = HEADWAY_KV_CACHE_STATE_INIT;
    headway_status status = headway_kv_cache_get_state(cache, slot, &state);
    int64_t end = state.length < key->shape[0] ? state.length : key->shape[0];
    if (state.first <= pinned)
        return status ? status : read_tokens(cache, slot, 0, end, key, value);
    if (status == HEADWAY_OK)
        status = read_tokens(cache, slot, 0, pinned < end ? pinned : end, key, value);
    return status ? status : read_tokens(cache, slot, state.first, end, key, value);
}
