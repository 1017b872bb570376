/* Attention problems whose keys and values go through a cache: memory that is poisoned where nothing
 * was appended and ends at unreadable pages, tokens in chunks, rows in calls of a few. */
#ifndef HEADWAY_CACHED_TESTS_H
#define HEADWAY_CACHED_TESTS_H

#include "headway/headway.h"

struct problem; /* and answer: attend.h */
struct answer;

struct way {
    int64_t page;  /* 0: contiguous */
    int64_t chunk; /* tokens appended at a time; 0: all */
    int64_t rows;  /* query rows of a call; 0: all */
    int64_t spare; /* capacity beyond what is needed */
    headway_dtype key, value;
    int turned;  /* sequences lie in other slots than their own */
    int beyond;  /* keys beyond the key lengths are appended too, the call says what is seen */
    int rolling; /* a ring; pinned: first tokens that stay */
    int64_t pinned;
    int grow; /* before each call only the keys that its rows may see by causality are there */
};

/* A cache and the memory it lies in. */
struct stored {
    headway_kv_cache *cache;
    int64_t kv_heads, size, value_size;
    int64_t slots[64]; /* of each sequence */
    void *memory[4];
};

/* NULL as cache is a failure of the case. */
struct stored stored_make(const headway_engine *engine, const struct way *way, int64_t sequences,
                          int64_t kv_heads, int64_t size, int64_t value_size, int64_t capacity);
void stored_free(struct stored *s);
/* Appends to `batch` sequences from b on: lengths[..] tokens each, sequence n's first at key + n *
 * key_pitch, value + n * value_pitch (floats). */
void stored_append(const struct stored *s, int64_t b, int64_t batch, const int64_t *lengths,
                   const float *key, int64_t key_pitch, const float *value, int64_t value_pitch);
/* The stored values of a sequence's first `count` tokens, but for those that a ring has lost. */
void stored_read(const struct stored *s, int64_t b, int64_t pinned, int64_t count, float *key,
                 float *value);

/* As attend(), through a cache; not of packed problems. */
struct answer cached_attend(const headway_engine *engine, const struct problem *p,
                            const struct way *way);
/* The problem with the values that a cache would hold in the place of its keys and values. */
struct problem *cached_problem(const headway_engine *engine, const struct problem *p,
                               const struct way *way);

#endif
