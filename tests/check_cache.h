/* What the parts of check_cache share. */
#ifndef HEADWAY_CHECK_CACHE_H
#define HEADWAY_CHECK_CACHE_H

#include "arena.h"
#include "attend.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

enum { ROWS = 8, THREADS = 2, LONGEST = 4096 };

/* Engines of each row that was asked for and runs. */
extern struct row_engines {
    const char *name;
    headway_engine *engine[THREADS]; /* of 1 and 2 threads */
} rows[ROWS];
extern int row_count;

/* A configuration of the storage types, and page_size (0: contiguous). */
headway_kv_cache_config config_make(int64_t sequences, int64_t capacity, int64_t page_size,
                                    headway_dtype key, headway_dtype value);
headway_kv_cache *cache_make(const headway_engine *engine, const headway_kv_cache_config *config);

/* The caller's memory for a cache, in guarded memory full of NaN; fills the config's tensors.
 * Order: how the axes nest, 0 .. 2. */
struct caller {
    struct arena arena;
    headway_tensor tensor[4]; /* key, value, key_scale, value_scale */
};
void caller_make(struct caller *m, headway_kv_cache_config *config, int order, int at_end);

/* Random tokens (L, Hkv, D) and (L, Hkv, Dv), token t of sequence s the same whenever they are
 * asked for. */
void tokens_fill(float *to, uint64_t seed, int64_t sequence, int64_t first, int64_t count,
                 int64_t heads, int64_t size);
/* The stored values of floats. */
void stored_values(float *line, int64_t size, headway_dtype dtype);

/* Appends tokens_fill()'s next `count` tokens of the sequence to a slot. */
headway_status append_tokens(headway_kv_cache *cache, const headway_kv_cache_config *config,
                             uint64_t seed, int64_t sequence, int64_t slot, int64_t count);
int64_t length_of(const headway_kv_cache *cache, int64_t slot);
headway_kv_cache_state state_of(const headway_kv_cache *cache, int64_t slot);
/* Fails the case unless tokens first .. first + count - 1 of the slot are tokens_fill()'s,
 * stored. */
void expect_tokens(const headway_kv_cache *cache, const headway_kv_cache_config *config,
                   uint64_t seed, int64_t sequence, int64_t slot, int64_t first, int64_t count,
                   const char *what);

/* Keys and values for lengths that were changed: numbers below, NaN beyond. */
void problem_fill_keys(struct problem *p);
/* Appends the problem's keys and values to the slots, below the key lengths, in chunks; then they
 * are what the cache has stored of them. */
void problem_store(struct problem *p, headway_kv_cache *cache, const int64_t *slots);
/* Appends the one sequence's keys from `from` on, which is what the slot holds, and nothing
 * more. */
void problem_append(const struct problem *p, headway_kv_cache *cache, int64_t slot, int64_t from);
/* As attend(), but keys and values are the cache's; packed where p->packed is set. Key lengths are
 * given where a slot holds more. */
struct answer attend_cached(const headway_engine *engine, const struct problem *p,
                            headway_kv_cache *cache, const int64_t *slots, int64_t shared_prefix);

/* All bytes of a cache: its allocation and the caller's memory. */
struct bytes {
    size_t count[5];
    unsigned char *at[5];
};
struct bytes bytes_of(const headway_kv_cache *cache);
void bytes_free(struct bytes *bytes);
/* Fails the case unless they are still the same; frees. */
void bytes_same(struct bytes *before, const headway_kv_cache *cache, const char *what);

void check_arguments(void);
void check_attention_calls(void);
void check_tokens(void);
void check_sharing(void);
void check_rolling_caches(void);
void check_attending(int quick);
void check_random_operations(int64_t seconds, int planted);

#endif
