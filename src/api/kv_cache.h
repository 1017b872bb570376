/* The cache as the API's other files see it. What a call appends is a struct headway_cached whose
 * store is the cache's: slots, and how many tokens to each. Appending is four steps, so that a
 * layer can put the tokens where they belong while it projects them:
 *
 *   prepare   every check; changes nothing
 *   begin     takes pages and copies shared ones where tokens will be written; can't fail
 *   (put)     headway_store_put() of each token behind the slot's length, from any threads
 *   commit    lengths move on
 */
#ifndef HEADWAY_KV_CACHE_H
#define HEADWAY_KV_CACHE_H

#include "core/attend.h"
#include "headway/headway.h"

/* Elements and, of I8, scales of keys and values. */
enum {
    HEADWAY_CACHE_KEY,
    HEADWAY_CACHE_VALUE,
    HEADWAY_CACHE_KEY_SCALE,
    HEADWAY_CACHE_VALUE_SCALE,
    HEADWAY_CACHE_TENSORS
};

/* Lies at the start of one allocation that the arrays follow, and the elements unless they are the
 * caller's. A page is named by the tables of `shares` slots and, where by none, is one of the last
 * `free_pages` of the list. A table's entry is -1 where no kept token lies. Contiguous: slot s is
 * page s, for ever. */
struct headway_kv_cache {
    const headway_engine *engine;
    struct headway_store store;
    int64_t sequences, kv_heads, size, value_size;
    int64_t capacity, pinned; /* tokens; of them, behind the pinned ones, capacity - pinned */
    int contiguous, rolling, caller_pages;
    int own; /* the elements are in the allocation */
    int64_t pages, free_pages;
    int32_t *tables;  /* (sequences, entries) */
    int64_t *lengths; /* (sequences) */
    int64_t
        *first; /* (sequences) the oldest token behind the pinned ones that is kept, or pinned */
    int32_t *shares, *free; /* (pages) */
    int32_t *leaving;       /* (pages) zero between calls */
    unsigned char *marks;   /* (sequences) zero between calls */
    headway_tensor
        memory[HEADWAY_CACHE_TENSORS]; /* where the elements and scales are; data NULL: none */
    int64_t element_bytes;             /* of all of them */
    size_t bytes;                      /* of the allocation */
};

/* Tokens of a rolling sequence, at most: sums of a few stay in int64_t. */
#define HEADWAY_CACHE_LONGEST (INT64_C(1) << 61)

/* Slots are in range, one or a batch's: `name` is the argument that said them. Needs none of the
 * below. */
headway_status headway_cache_check_slot(const headway_kv_cache *cache, const char *name,
                                        int64_t slot);
headway_status headway_cache_check_slots(const headway_engine *engine,
                                         const headway_kv_cache *cache, const char *name,
                                         const int64_t *slots, int64_t batch);

/* Where sequence b's tokens would begin to be kept behind the pinned ones once grow's are
 * appended. */
int64_t headway_cache_first(const headway_kv_cache *cache, const struct headway_cached *grow,
                            int64_t b);

/* Slots (in range already) are distinct, nobody passes the capacity, there are pages enough.
 * `engine` is told of errors, `name` is what the slots are called. Not beside another call that
 * changes the cache, as append itself. */
headway_status headway_cache_prepare(const headway_engine *engine, const headway_kv_cache *cache,
                                     const char *name, const struct headway_cached *grow,
                                     int64_t batch);
void headway_cache_begin(headway_kv_cache *cache, const struct headway_cached *grow, int64_t batch);
void headway_cache_commit(headway_kv_cache *cache, const struct headway_cached *grow,
                          int64_t batch);

/* Gives up the pages that no kept token lies in. */
void headway_cache_give_back(headway_kv_cache *cache, int64_t slot);
/* Empties a slot; with caller_pages its numbers are forgotten. */
void headway_cache_empty(headway_kv_cache *cache, int64_t slot);
/* Empties slot `to`, which then holds what `from` does. */
void headway_cache_copy(headway_kv_cache *cache, int64_t from, int64_t to);

#endif
