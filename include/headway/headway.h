/* Headway: multi-head attention for CPUs.
 *
 * Everything public is in this header. Conventions:
 *
 *   sizes      int64_t counts of elements; strides too (elements, never bytes); workspaces in bytes
 *   letters    B batch, Lq/Lk query/key length, Hq/Hkv query/key-value heads, D head size of query
 *              and key, Dv head size of value, E width of the layer's input
 *   errors     every function that can fail returns a headway_status; on any error no output has
 *              been written, and headway_engine_error() says which argument was wrong, what was
 *              given and what was expected. Nothing here prints, aborts, exits or sets errno.
 *   memory     create functions allocate, the others never do: they use the caller's workspace
 *   threads    engines and layers are read-only once created; any number of host threads may use
 *              one at the same time, each call with a workspace of its own. A cache is changed by
 *              the calls that append to it: one of those at a time, and no other beside it
 *   growth     structs that callers fill begin with their own size and have an initialiser macro;
 *              start from it, and a program built against an older header keeps its meaning: from
 *              0.1 on fields are added at the end alone, with an initial value that changes nothing,
 *              and the sizes of earlier versions stay allowed; any other size is an error
 *
 * One answer: with f32 arithmetic an output row has the same bits on every instruction set, for any
 * thread count, batch, place in the batch, strides and tiling, and way of serving: at once, in
 * chunks or token by token through a cache of F32. It depends on that row's inputs only. Rounding is
 * to nearest and subnormals are numbers whatever the calling threads' floating-point modes are; they
 * are put back as they were.
 */
#ifndef HEADWAY_H
#define HEADWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HEADWAY_API __attribute__((visibility("default")))
#else
#define HEADWAY_API
#endif

#define HEADWAY_VERSION_MAJOR 0
#define HEADWAY_VERSION_MINOR 1
#define HEADWAY_VERSION_PATCH 0

/* "0.1.0": the version of the library that runs, which may be newer than the header. */
HEADWAY_API const char *headway_version(void);

/* ---- status ---------------------------------------------------------------------------------- */

typedef enum headway_status {
    HEADWAY_OK = 0,
    HEADWAY_ERROR_ARGUMENT,    /* a null pointer, a size, shape, stride, type or enum out of range */
    HEADWAY_ERROR_OVERLAP,     /* elements of an output overlap each other or an input */
    HEADWAY_ERROR_WORKSPACE,   /* the workspace is missing, too small or misaligned */
    HEADWAY_ERROR_MEMORY,      /* allocation failed, or a size does not fit the address space */
    HEADWAY_ERROR_NOT_BUILT,   /* the instruction set asked for is not in this build */
    HEADWAY_ERROR_CANNOT_RUN,  /* it is built, but this CPU or operating system can't run it */
    HEADWAY_ERROR_UNSUPPORTED  /* legal by the documentation, but not in this version */
} headway_status;

/* "ok", "argument", ...: a short lasting name; "unknown status" for anything else. */
HEADWAY_API const char *headway_status_text(headway_status status);

/* ---- tensor ---------------------------------------------------------------------------------- */

typedef enum headway_dtype {
    HEADWAY_F32 = 0,
    HEADWAY_F16 = 1,
    HEADWAY_BF16 = 2,
    HEADWAY_BOOL = 3, /* one byte, non-zero is true */
    HEADWAY_I32 = 4,
    HEADWAY_I8 = 5 /* storage of caches, with a scale per token and head */
} headway_dtype;

#define HEADWAY_MAX_RANK 8

/* A view of the caller's memory. Element (i0, i1, ...) lies at data + sum(i * stride), strides in
 * elements. Strides may be 0 (broadcast, inputs only) or negative. The memory stays the caller's.
 */
typedef struct headway_tensor {
    void *data;
    headway_dtype dtype;
    int rank;
    int64_t shape[HEADWAY_MAX_RANK];
    int64_t stride[HEADWAY_MAX_RANK];
} headway_tensor;

/* A view of densely packed, row-major data of the first `rank` extents of `shape`. */
HEADWAY_API headway_tensor headway_tensor_dense(void *data, headway_dtype dtype, int rank,
                                                const int64_t *shape);

/* ---- engine: which instruction set, how many threads ------------------------------------------ */

typedef struct headway_engine headway_engine;

/* Receives one line per error that an engine reports. May be called from several threads at once.
 */
typedef void headway_log_fn(void *context, const char *line);

/* The caller's threads: must call body(task, index) once for every index of 0 .. count - 1, on any
 * threads, at once or one after the other, and return when all are done and what they wrote is seen.
 * count is at most the engine's threads; no index waits for another, so that a busy pool may always
 * run them itself, one by one. May be called from several threads at once, and from threads of the
 * pool where the pool's own tasks call the library: never from within body. Runs under the
 * floating-point modes of the call's thread. */
typedef void headway_parallel_for_fn(void *context, int count, void (*body)(void *task, int index),
                                     void *task);

/* The caller's memory, for create functions: `bytes` bytes aligned to 16, or NULL, and their return
 * with the same size. May be called from several threads at once. */
typedef void *headway_allocate_fn(void *context, size_t bytes);
typedef void headway_release_fn(void *context, void *memory, size_t bytes);

#define HEADWAY_TRACE_PHASES 4

/* What a call did. */
typedef struct headway_trace {
    size_t size;
    const char *call;    /* "attention", "mha", "append" */
    const char *isa;     /* the row */
    /* Of attention, its longest sequence: "few rows", keys taken as they lie, or "tiles"; else "". */
    const char *path;
    int threads;         /* that could have work: 1 in an OpenMP region or a forked child, where OpenMP's
                          * are not used; of the caller's there may be fewer at a time */
    int64_t tasks;       /* of attention */
    /* Of attention 2 (D + Dv) for each head's pair that lengths, causality, window and interval allow,
     * whatever a mask says; of projections 2 for each token and weight. */
    double flops;
    /* Queries, keys, values and outputs of attention, tokens and weights in and tokens out of
     * projections, once each as if nothing else shared them; appended: read and stored. */
    int64_t bytes;
    int64_t workspace;   /* bytes that the call needs */
    int64_t nanoseconds; /* of the whole call; steady clock */
    int phases;          /* of it, in order; they add up to it */
    struct {
        const char *name; /* "check", "project", "attend", "out", "append" */
        int64_t nanoseconds;
    } phase[HEADWAY_TRACE_PHASES];
} headway_trace;

/* Called at the end of every headway_attention(), headway_mha_forward() and headway_kv_cache_append()
 * that succeeds, on the calling thread, under its own floating-point modes. The trace and its texts
 * last until it returns. */
typedef void headway_trace_fn(void *context, const headway_trace *trace);

typedef struct headway_engine_config {
    size_t size;
    /* Name of the instruction set's row: "avx512", "avx2", "neon", "scalar". NULL: the environment
     * variable HEADWAY_ISA if it is set and not empty, else the best that runs here. */
    const char *isa;
    /* Threads a call may use, the caller's included; 0: what affinity, the cgroup's quota and
     * OpenMP's own settings allow. OpenMP's settings are left as they are; calls from inside its
     * parallel regions run on the calling thread alone. Always 1 in a process that was forked and has
     * not called exec: OpenMP's threads do not survive a fork. With parallel_for, `count` is at most
     * this, and 0 means what affinity and the cgroup's quota allow; forks and regions are then the
     * caller's business. */
    int threads;
    headway_log_fn *log; /* may be NULL */
    void *log_context;
    headway_parallel_for_fn *parallel_for; /* NULL: OpenMP's threads */
    void *parallel_context;
    /* Both or none. NULL: the C library's, where blocks of 8 MB and more are advised to be of huge
     * pages. */
    headway_allocate_fn *allocate;
    headway_release_fn *release;
    void *memory_context;
    headway_trace_fn *trace; /* NULL: no clock is read */
    void *trace_context;
} headway_engine_config;

#define HEADWAY_ENGINE_CONFIG_INIT                                                                 \
    {sizeof(headway_engine_config), NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* Chooses the kernel row and stores it in the engine. config may be NULL: all defaults.
 * Errors: NOT_BUILT and CANNOT_RUN name the row and the reason in the log line (config->log).
 * *engine is written only on success. */
HEADWAY_API headway_status headway_engine_create(const headway_engine_config *config,
                                                 headway_engine **engine);

/* NULL is allowed. Layers made with the engine must be destroyed before it. */
HEADWAY_API void headway_engine_destroy(headway_engine *engine);

/* Copies the detail text of the engine's last error ("" if there was none), cut to size - 1 bytes
 * and terminated. Returns the whole text's length. With one engine in several threads "last" is
 * whichever call came last; the text is never torn. */
HEADWAY_API size_t headway_engine_error(const headway_engine *engine, char *text, size_t size);

/* Name of the chosen row, and the largest number of threads a call will use. */
HEADWAY_API const char *headway_engine_isa(const headway_engine *engine);
HEADWAY_API int headway_engine_threads(const headway_engine *engine);

/* The rows this version knows, best first. */
typedef struct headway_isa_info {
    const char *name;
    int built;          /* compiled into this library */
    int runs;           /* this CPU and operating system can run it */
    const char *reason; /* why not built or why it cannot run; "" when it runs */
} headway_isa_info;

/* Fills *info for row `index` (0, 1, ...); HEADWAY_ERROR_ARGUMENT past the last row. */
HEADWAY_API headway_status headway_isa_at(int index, headway_isa_info *info);

/* ---- kv cache --------------------------------------------------------------------------------- */

/* Keys and values of sequences, appended in place: token t of a sequence is where it was first put
 * until it is truncated. What has not been appended is never read. It appends and is read back on the
 * engine it was made with, and may be attended with any. */
typedef struct headway_kv_cache headway_kv_cache;

typedef struct headway_kv_cache_config {
    size_t size;
    int64_t sequences; /* how many it holds at a time: slots 0 .. sequences - 1, empty at first */
    int64_t kv_heads;        /* Hkv */
    int64_t head_size;       /* D */
    int64_t value_head_size; /* Dv; 0: D */
    int64_t capacity; /* tokens of a sequence, at most; rolling: that it keeps, in whole pages */
    /* F32, F16, BF16 (rounded once, to nearest even) or I8: of each token and head, with a = max |x|,
     * scale = a / 127 and round(x * (127 / a)), all in float; scale 0 where a < 2^-100, NaN where an
     * element is not finite, which makes that token's head NaN. The stored value is element * scale
     * rounded to float. It differs from x by at most: F16 max(2^-11 |x|, 2^-25) up to 65504, BF16
     * max(2^-8 |x|, 2^-134) up to 255 * 2^120, beyond which they may be infinite; I8 with a < FLT_MAX
     * a / 254 * (1 + 2^-14) + 2^-100, while with a = FLT_MAX the largest are infinite. */
    headway_dtype key_dtype, value_dtype;
    int64_t page_size; /* 0: contiguous; 1, 2, 4 .. 256: in pages of so many tokens */
    int64_t pages;     /* with page_size: how many there are for all; 0: sequences at capacity */
    /* Non-zero: a sequence goes on for ever. Its first `pinned` and its last `capacity - pinned`
     * tokens are kept, others are overwritten; no append may overwrite its own. A call in which a row
     * sees keys that are gone, masked or not, is an error. */
    int rolling;
    int64_t pinned; /* rolling in pages: first tokens that stay, whole pages, less than capacity */
    /* Non-zero: pages are the caller's to hand out, by headway_kv_cache_set_pages(); appending takes
     * none, truncating gives none back and fork copies numbers. */
    int caller_pages;
    /* The caller's memory for the elements, which must outlive the cache, or NULL both: it allocates
     * its own. Of key_dtype and value_dtype, (sequences, Hkv, capacity, D | Dv), with page_size
     * (pages, Hkv, page_size, D | Dv); the innermost stride is 1, the elements distinct. With I8 also
     * the scales, F32, of the first three axes. */
    const headway_tensor *key, *value, *key_scale, *value_scale;
} headway_kv_cache_config;

#define HEADWAY_KV_CACHE_CONFIG_INIT                                                               \
    {sizeof(headway_kv_cache_config), 0, 0, 0, 0, 0, HEADWAY_F32, HEADWAY_F32, 0, 0, 0, 0, 0,      \
     NULL, NULL, NULL, NULL}

/* The engine must outlive the cache. */
HEADWAY_API headway_status headway_kv_cache_create(const headway_engine *engine,
                                                   const headway_kv_cache_config *config,
                                                   headway_kv_cache **cache);

/* NULL is allowed. */
HEADWAY_API void headway_kv_cache_destroy(headway_kv_cache *cache);

/* Appends key (B, L, Hkv, D) and value (B, L, Hkv, Dv), F32, any strides but the innermost, which is 1:
 * lengths[b] tokens (NULL: L) to slot slots[b] (NULL: b), no two the same. A page that is shared is
 * copied first where it would be written. ARGUMENT when a sequence would pass its capacity, MEMORY
 * when there are too few pages: then nothing has changed. */
HEADWAY_API headway_status headway_kv_cache_append(headway_kv_cache *cache, const int64_t *slots,
                                                   const int64_t *lengths,
                                                   const headway_tensor *key,
                                                   const headway_tensor *value);

/* Keeps the first `length` tokens, 0 .. the sequence's length; pages that nobody needs are free
 * again. Rolling: what was overwritten stays gone. */
HEADWAY_API headway_status headway_kv_cache_truncate(headway_kv_cache *cache, int64_t slot,
                                                     int64_t length);

/* Empties the slot: its pages are free again, or forgotten where they are the caller's. */
HEADWAY_API headway_status headway_kv_cache_reset(headway_kv_cache *cache, int64_t slot);

/* Slot `to` becomes a copy of another, `from`; what it held is given up. Pages are shared, not copied;
 * contiguous tokens are copied. */
HEADWAY_API headway_status headway_kv_cache_fork(headway_kv_cache *cache, int64_t from, int64_t to);

/* With caller_pages: the sequence's tokens are now in pages[0 .. count - 1], page i holding tokens i *
 * page_size and on, `length` of them valid. The numbers are copied. Rolling: pages[p .. c - 1], of p
 * pinned pages and c at capacity, are a ring, and page i >= c is pages[p + (i - p) % (c - p)]. Whether
 * a page may be written is the caller's to know. */
HEADWAY_API headway_status headway_kv_cache_set_pages(headway_kv_cache *cache, int64_t slot,
                                                      const int32_t *pages, int64_t count,
                                                      int64_t length);

/* The stored values of tokens first, first + 1, ... as floats into key (L, Hkv, D) and value (L, Hkv,
 * Dv), F32, innermost stride 1; either may be NULL. */
HEADWAY_API headway_status headway_kv_cache_read(const headway_kv_cache *cache, int64_t slot,
                                                 int64_t first, const headway_tensor *key,
                                                 const headway_tensor *value);

typedef struct headway_kv_cache_state {
    size_t size;
    int64_t length;     /* tokens appended and not truncated */
    int64_t first;      /* the oldest that is kept behind the pinned ones; 0 unless rolling */
    int64_t pages;      /* of the sequence; 0 when contiguous */
    int64_t pages_free; /* of the cache; 0 when contiguous or the caller's */
    int64_t bytes;      /* of elements and scales, of the whole cache */
} headway_kv_cache_state;

#define HEADWAY_KV_CACHE_STATE_INIT {sizeof(headway_kv_cache_state), 0, 0, 0, 0, 0}

HEADWAY_API headway_status headway_kv_cache_get_state(const headway_kv_cache *cache, int64_t slot,
                                                      headway_kv_cache_state *state);

/* ---- attention: the core on the caller's tensors ---------------------------------------------- */

/* Where query row i stands among the keys: at i + offset[b]. Causality allows key j <= i + offset[b];
 * the window and ALiBi count from the same place. */
typedef enum headway_causal {
    HEADWAY_CAUSAL_NONE = 0,         /* offset[b] = row_offsets[b], or 0 without them */
    HEADWAY_CAUSAL_TOP_LEFT = 1,     /* offset 0 */
    HEADWAY_CAUSAL_BOTTOM_RIGHT = 2, /* offset[b] = key_length[b] - query_length[b] */
    HEADWAY_CAUSAL_OFFSETS = 3       /* offset[b] = row_offsets[b], any sign */
} headway_causal;

/* What a call computes, beyond its tensors. For query row i and key j of batch b, head h:
 *
 *   score(i,j)   = scale * dot(query[b,i,h,:], key[b,j,h / (Hq/Hkv),:])
 *                  softcap > 0:  score = softcap * tanh(score / softcap)
 *                  alibi_slopes: score = score + alibi_slopes[h] * (j - (i + offset[b]))
 *                  float mask:   score = score + mask[b,h,i,j]
 *   valid(i,j)   = bool mask AND float mask != -inf AND j < key_length[b]
 *                  AND, when causal, j <= i + offset[b]
 *                  AND (i + offset[b] - window_left <= j <= i + offset[b] + window_right
 *                       OR j < window_first)
 *                  AND interval[b,i,0] <= j < interval[b,i,1]
 *   sum(i)       = sum over valid j of exp(score(i,j)), and exp(sinks[h]) with sinks
 *   weight(i,j)  = exp(score(i,j)) / sum(i) for valid j, else 0
 *   out[b,i,h]   = sum over valid j of weight(i,j) * value[b,j,h / (Hq/Hkv),:]
 *   lse[b,h,i]   = log(sum(i))
 *
 * A row with no valid key gives out = 0, weights 0 and lse = -inf (with a sink: the sink). What lies
 * in key and value at keys that are not valid for a row never influences that row, be it NaN or Inf.
 * Finite mask values are numbers, however low. NaN in a valid place gives NaN in that row (value: in
 * that row's column) only. A score of -inf that comes from the data is a weight of 0; a row of
 * nothing else is an empty row.
 *
 * Packed sequences (varlen): with query_starts and key_starts the batch's extent is 1 and the length
 * axes hold all sequences one after the other; sequence b is rows starts[b] .. starts[b+1] - 1.
 * Above, B then means `sequences`, i and j count from the sequence's start, and Lq and Lk of a mask
 * are the longest sequence's; interval, lse and positions have the packed length (lse also without
 * its first axis).
 *
 * With a cache, keys and values are those of the cache's sequences: key_length[b]
 * is the sequence's own, or less by key_lengths; Lk is the largest of these, for the mask and the
 * weights too. BOTTOM_RIGHT places the rows at the sequence's end. Sequences may have any number of rows each, by
 * query_lengths or packed by query_starts.
 */
typedef struct headway_attention_params {
    size_t size;
    const float *scale; /* NULL: 1/sqrt(D); else any finite value, 0 and negative ones included */
    headway_causal causal;
    const int64_t *row_offsets;         /* (B); NULL with TOP_LEFT and BOTTOM_RIGHT */
    /* Keys beside the row's own place; -1, and INT64_MAX: unbounded. */
    int64_t window_left, window_right;
    int64_t window_first; /* first keys that lie in every window: the sinks of streaming; 0: none */
    const int64_t *query_lengths;       /* (B), 0..Lq, or NULL: Lq. Rows beyond it are not written */
    const int64_t *key_lengths;         /* (B), 0..Lk, or NULL: Lk */
    int64_t sequences;                  /* with query_starts: how many there are, else 0 */
    const int64_t *query_starts;        /* (sequences + 1): 0, never falling, the packed length */
    const int64_t *key_starts;          /* as query_starts; NULL: the same as query_starts */
    const headway_tensor *interval;     /* I32 (Lq, 2) or (B|1, Lq, 2), any strides; NULL: none */
    /* BOOL (non-zero: attend) or F32, F16, BF16 (added), of rank 1 (Lk), 2 (Lq, Lk), 4 (B, Hq, Lq,
     * Lk) or query's rank, where every extent may be 1 (broadcast). Any strides. Read in place.
     * NULL: none. */
    const headway_tensor *mask;
    float softcap;                      /* 0: none; else 2^-125 .. 2^125 */
    /* (Hq) finite, or NULL; headway_alibi_slopes(). With them |offset| + Lq + Lk is below 2^31. */
    const float *alibi_slopes;
    const float *sinks;                 /* (Hq) finite or -inf (no sink), or NULL */
    /* headway_mha_forward() of a layer with rotary embedding: positions of the tokens, I32 (Lq) or
     * (B|1, Lq), and of Lk. NULL: i + offset[b] and j; in self-attention key_positions NULL means
     * query_positions. Elsewhere NULL. */
    const headway_tensor *query_positions, *key_positions;
    headway_kv_cache *cache;    /* NULL: none. headway_attention() only reads it */
    const int64_t *cache_slots; /* (B) the slot of each sequence; NULL: 0 .. B - 1 */
    /* How many first keys all sequences of the batch have in common: as far as they lie in the same
     * pages, whole 512 of them come from memory once for all. Says nothing about the result. */
    int64_t shared_prefix;
    const headway_tensor *lse; /* output, F32 (B, Hq, Lq), any strides, or NULL */
    /* Output, F32, or NULL: the weights (B, Hq, Lq, Lk), or their mean over heads (B, Lq, Lk).
     * Innermost stride 1. Rows beyond a query length are not written. Not with packed sequences. */
    const headway_tensor *weights;
} headway_attention_params;

#define HEADWAY_ATTENTION_PARAMS_INIT                                                              \
    {sizeof(headway_attention_params), NULL, HEADWAY_CAUSAL_NONE, NULL, -1, -1, 0, NULL, NULL, 0,  \
     NULL, NULL, NULL, NULL, 0.0f, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL}

/* The slopes of ALiBi (Press et al. 2022, "Train Short, Test Long") for any number of heads: with n
 * the largest power of two <= heads, slope h is 2^(-8 (h+1) / n) for h < n, then every other one of
 * the same sequence for 2n heads. slopes: (heads), each within 0.501 ulp, whole powers of two
 * exact, the same bits on every machine. ARGUMENT when heads < 1 or slopes is NULL. */
HEADWAY_API headway_status headway_alibi_slopes(int64_t heads, float *slopes);

#define HEADWAY_WORKSPACE_ALIGNMENT 64

/* query (B, Lq, Hq, D), key (B, Lk, Hkv, D), value (B, Lk, Hkv, Dv), out (B, Lq, Hq, Dv), all F32.
 * Any strides of the axes but the last (other layouts and packed QKV are strides alone); the last
 * must be 1 unless its extent is 1. Hq is a multiple of Hkv, both >= 1; D >= 1; the other extents
 * may be 0. Outputs must not share memory with each other, an input or the workspace, and an
 * output's axes must nest: sorted by stride, each steps over all elements of the smaller ones.
 * params may be NULL. With params->cache key and value are NULL: they are the cache's.
 *
 * In place of B query may have any number of leading batch axes, none included; B is then their
 * product. Whatever else has a batch, here or in params, has the same leading axes or one axis of
 * extent B. In each tensor leading axes must collapse: each one's stride is the next one's times
 * its extent. Extents of 1 don't count; a mask's or interval's extent of 1 where query has more
 * counts as a stride of 0.
 *
 * Error of an f32 result against exact arithmetic on the same inputs, u = 2^-24, the same on every
 * instruction set as the bits are, and for every dtype of mask, as F16 and BF16 are F32 exactly:
 *   |out - exact| <= (expm1(2 * e) + n * u) * sum_j p(j) |value(j)| + Lk * 2^-125 * max_j |value(j)|
 *                    + n * 2^-150
 *   |lse - exact| <= e + n * u + 2 * u * |lse|; 0 where the row has no valid key
 *   |weight - exact| <= (expm1(2 * e) + n * u) * weight + 2^-125; of the mean over heads: the heads'
 *                    mean of that, and Hq * u * mean
 *   n = Lk + Lk/64 + 16, with sinks 9 more (weights below 2^-125.5 of the largest may be 0, hence
 *   what has 2^-125, and NaN where the value is infinite);
 *   Lk of packed sequences is the sequence's own
 *   e = max over valid j of (c(j) * r(j) + 4 * u * |score(j)|
 *                            + 4 * u * |alibi_slopes[h] * (j - (i + offset[b]))|
 *                            + 11 * u * |capped(j)| + 2^-148 * softcap), and 4 * u * |sinks[h]|
 *   r(j) = (D + 4) * u * |scale| * sum_d |q(d) k(j,d)| + 2^-149 * sum_d |k(j,d)|
 *   c(j) = 1 - tanh(max(0, |scale * dot| - r(j)) / softcap)^2, capped(j) the score after softcap;
 *   without softcap c(j) is 1 and the terms of softcap are 0
 * with scale 0 or not subnormal, and neither scale * query nor the sum of a score above FLT_MAX.
 * Where Lk * max_j |value(j)| is above FLT_MAX, or scores of a row (sink included) lie further apart
 * than that, the result is as stated, but floating-point exception flags may be raised on the way;
 * finite inputs raise none of them otherwise.
 *
 * workspace: headway_attention_workspace() says how many bytes a call needs, one through a cache while
 * the cache holds what it does; data pointers are not looked at there and may be NULL. Alignment
 * HEADWAY_WORKSPACE_ALIGNMENT. Its content means nothing before or after the call. */
HEADWAY_API headway_status headway_attention_workspace(const headway_engine *engine,
                                                       const headway_attention_params *params,
                                                       const headway_tensor *query,
                                                       const headway_tensor *key,
                                                       const headway_tensor *value, size_t *bytes);

HEADWAY_API headway_status headway_attention(const headway_engine *engine,
                                             const headway_attention_params *params,
                                             const headway_tensor *query, const headway_tensor *key,
                                             const headway_tensor *value, const headway_tensor *out,
                                             void *workspace, size_t bytes);

/* Writes in words what a call with these arguments would do: row, path, tile sizes, threads,
 * workspace, and why. Cut to size - 1 bytes and terminated. */
HEADWAY_API headway_status headway_attention_explain(const headway_engine *engine,
                                                     const headway_attention_params *params,
                                                     const headway_tensor *query,
                                                     const headway_tensor *key,
                                                     const headway_tensor *value, char *text,
                                                     size_t size);

/* ---- mha: the layer --------------------------------------------------------------------------- */

typedef struct headway_mha headway_mha;

/* Rotary position embedding (RoPE; Su et al. 2021): the pair (x, y) of frequency k at position t
 * becomes (x cos a - y sin a, x sin a + y cos a) with a = t * frequency(k), 0 <= k < rotary_size / 2;
 * channels from rotary_size on pass through. cos and sin are multiplied by the scaling's attention
 * factor where it has one. */
typedef enum headway_rope_style {
    HEADWAY_ROPE_NONE = 0,
    HEADWAY_ROPE_HALF = 1,       /* pairs (k, k + rotary_size / 2): Llama, GPT-NeoX */
    HEADWAY_ROPE_INTERLEAVED = 2 /* pairs (2k, 2k + 1): GPT-J, the paper */
} headway_rope_style;

/* frequency(k) starts as theta^(-2k / rotary_size). The kinds and the names of their numbers are
 * those of Hugging Face's config.json ("rope_scaling"). */
typedef enum headway_rope_scaling {
    HEADWAY_ROPE_PLAIN = 0,
    HEADWAY_ROPE_LINEAR = 1,   /* divided by factor */
    HEADWAY_ROPE_DYNAMIC = 2,  /* dynamic NTK: theta grows when `positions` > original_positions */
    HEADWAY_ROPE_LLAMA3 = 3,   /* low frequencies divided by factor, blended between two limits */
    HEADWAY_ROPE_YARN = 4,     /* the same by a ramp over dimensions, with an attention factor */
    HEADWAY_ROPE_LONGROPE = 5  /* divided by given factors, long ones when `positions` is larger than
                                  original_positions, with an attention factor */
} headway_rope_scaling;

typedef struct headway_rope_config {
    size_t size;
    headway_rope_style style;
    int64_t rotary_size; /* even, at most the head size; 0: the head size */
    double theta;        /* 0: 10000 */
    int64_t positions;   /* tables are made at create for positions 0 .. positions - 1 */
    headway_rope_scaling scaling;
    double factor;                     /* all kinds but PLAIN; LONGROPE: 0 when not needed */
    int64_t original_positions;        /* DYNAMIC, LLAMA3, YARN, LONGROPE */
    double low_freq_factor;            /* LLAMA3 */
    double high_freq_factor;           /* LLAMA3 */
    double beta_fast, beta_slow;       /* YARN; 0: 32 and 1 */
    int no_truncate;                   /* YARN: the ramp's ends are not rounded to whole dimensions */
    double attention_factor;           /* YARN, LONGROPE; 0: what the scaling's paper says */
    double mscale, mscale_all_dim;     /* YARN; 0: not given */
    const double *short_factors, *long_factors; /* LONGROPE: (rotary_size / 2) each */
    /* The caller's own tables, F32 (positions, rotary_size / 2), any strides, copied at create; then
     * theta, positions and scaling say nothing and stay as initialised. Both or none. */
    const headway_tensor *cos, *sin;
} headway_rope_config;

#define HEADWAY_ROPE_CONFIG_INIT                                                                   \
    {sizeof(headway_rope_config), HEADWAY_ROPE_NONE, 0, 0.0, 0, HEADWAY_ROPE_PLAIN, 0.0, 0, 0.0,   \
     0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, NULL, NULL, NULL, NULL}

typedef struct headway_mha_config {
    size_t size;
    int64_t heads;           /* Hq, required */
    int64_t kv_heads;        /* 0: heads */
    int64_t head_size;       /* D; 0: rows of the query weight / heads */
    int64_t value_head_size; /* Dv; 0: rows of the value weight / kv_heads, fused: head_size */
    int transposed;          /* non-zero: weights are stored (inputs, outputs), as GPT-2's Conv1D */
    const headway_rope_config *rope; /* NULL: none */
    float norm_eps;                  /* of query_norm and key_norm; 0: 1e-6 */
    int add_zero_attn; /* non-zero: a key and value of zeros that every row attends, after bias_k */
} headway_mha_config;

#define HEADWAY_MHA_CONFIG_INIT {sizeof(headway_mha_config), 0, 0, 0, 0, 0, NULL, 0.0f, 0}

/* Weights are F32, of rank 2 (outputs, inputs) or, for query, key, value and their biases, with the
 * outputs axis split in two: (heads, head size, inputs), or (inputs, heads, head size) when
 * transposed. Any strides, so that every interleaving of fused projections is a view. Output
 * channel c belongs to head c / head size. Give either `fused` or all of query, key, value. Biases
 * may each be NULL. Everything is copied at create. */
typedef struct headway_mha_weights {
    size_t size;
    const headway_tensor *fused; /* (Hq*D + Hkv*D + Hkv*Dv, E): rows of query, key, value */
    const headway_tensor *fused_bias;
    const headway_tensor *query; /* (Hq*D, E) */
    const headway_tensor *query_bias;
    const headway_tensor *key; /* (Hkv*D, Ek) */
    const headway_tensor *key_bias;
    const headway_tensor *value; /* (Hkv*Dv, Ev) */
    const headway_tensor *value_bias;
    const headway_tensor *out; /* (Eo, Hq*Dv) */
    const headway_tensor *out_bias;
    /* RMS norm of each projected head, before RoPE: x * w / sqrt(mean(x^2) + norm_eps). (D) each. */
    const headway_tensor *query_norm, *key_norm;
    /* A key (Hkv, D) and a value (Hkv, Dv) that every row attends, after the last key given: neither
     * mask nor causality, window, interval, lengths or ALiBi apply to them, and neither does RoPE.
     * Both or none. */
    const headway_tensor *bias_k, *bias_v;
} headway_mha_weights;

#define HEADWAY_MHA_WEIGHTS_INIT                                                                   \
    {sizeof(headway_mha_weights), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,      \
     NULL, NULL, NULL, NULL}

/* Packs the weights once for the engine's row. The engine must outlive the layer. */
HEADWAY_API headway_status headway_mha_create(const headway_engine *engine,
                                              const headway_mha_config *config,
                                              const headway_mha_weights *weights,
                                              headway_mha **layer);

/* NULL is allowed. */
HEADWAY_API void headway_mha_destroy(headway_mha *layer);

/* What its tensors and its cache must be made for. */
typedef struct headway_mha_sizes {
    size_t size;
    int64_t heads, kv_heads;            /* Hq, Hkv */
    int64_t head_size, value_head_size; /* D, Dv */
    int64_t query_width, key_width, value_width, out_width; /* E, Ek, Ev, Eo */
    int64_t positions;     /* of the rotary tables: 0 .. positions - 1; 0: no rotary embedding */
    int64_t appended_keys; /* by bias_k and add_zero_attn: what the weights' last axis has more */
} headway_mha_sizes;

#define HEADWAY_MHA_SIZES_INIT {sizeof(headway_mha_sizes), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* ARGUMENT when sizes->size is not this version's. */
HEADWAY_API headway_status headway_mha_get_sizes(const headway_mha *layer,
                                                 headway_mha_sizes *sizes);

/* The whole layer:
 *   Q = query . Wq^T + bq, K = key . Wk^T + bk, V = value . Wv^T + bv, split into heads
 *   Q, K = RMS norm, then RoPE of each head where the layer has them
 *   K, V = with bias_k, bias_v, then zeros, appended where the layer has them
 *   out = concatenated heads of attention(Q, K, V) . Wo^T + bo
 *
 * query (B, Lq, E), key (B, Lk, Ek), value (B, Lk, Ev), out (B, Lq, Eo), all F32; the last stride
 * is 1 unless its extent is 1. key NULL: query (self-attention); value NULL: key. Leading batch
 * axes and params as for headway_attention(); params may be NULL. Keys appended by the layer count
 * in the weights' last axis, and in nothing else. An empty row gives the output bias. Rows of out
 * at and beyond a query length are not written. Outputs must not share memory with each other, an
 * input or the workspace.
 *
 * With params->cache (of the layer's Hkv, D and Dv) the projected keys and values, turned, are first
 * appended to the sequences' slots, which must differ, and the rows attend to all that the sequences
 * then hold; key_lengths and key_starts are of the tokens to append (in self-attention those of the
 * queries, and NULL). A key of length 0 appends nothing: cross-attention to what is there. Positions
 * of the tokens default to the sequence's length before the call and on, of the queries too in
 * self-attention. On any error the cache is as it was. */
HEADWAY_API headway_status headway_mha_workspace(const headway_mha *layer,
                                                 const headway_attention_params *params,
                                                 const headway_tensor *query,
                                                 const headway_tensor *key,
                                                 const headway_tensor *value, size_t *bytes);

HEADWAY_API headway_status headway_mha_forward(const headway_mha *layer,
                                               const headway_attention_params *params,
                                               const headway_tensor *query,
                                               const headway_tensor *key,
                                               const headway_tensor *value,
                                               const headway_tensor *out, void *workspace,
                                               size_t bytes);

HEADWAY_API headway_status headway_mha_explain(const headway_mha *layer,
                                               const headway_attention_params *params,
                                               const headway_tensor *query,
                                               const headway_tensor *key,
                                               const headway_tensor *value, char *text, size_t size);

/* Packed weights, to be made once and shared: `bytes` of headway_mha_packed_bytes() into memory (64-
 * byte aligned), as they would be mapped from a file. They belong to the row that packed them and to
 * this version's format. */
HEADWAY_API headway_status headway_mha_packed_bytes(const headway_mha *layer, size_t *bytes);
HEADWAY_API headway_status headway_mha_save_packed(const headway_mha *layer, void *memory,
                                                   size_t bytes);

/* A layer on saved weights: memory is only read, not copied (64-byte aligned: a mapping), and must
 * outlive the layer, whose sizes headway_mha_get_sizes() tells. ARGUMENT when it is no such thing, cut,
 * damaged, of another format; CANNOT_RUN when it was packed for another row than the engine's. */
HEADWAY_API headway_status headway_mha_map_packed(const headway_engine *engine, const void *memory,
                                                  size_t bytes, headway_mha **layer);

#ifdef __cplusplus
}
#endif

#endif
