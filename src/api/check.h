/* Argument checks that the public functions share: each argument is looked at once, here, and what
 * is found wrong is told by name, with what was given and what was expected. */
#ifndef HEADWAY_CHECK_ARGUMENTS_H
#define HEADWAY_CHECK_ARGUMENTS_H

#include "api/engine.h"
#include "core/attend.h"
#include "headway/headway.h"

/* Returns early with the status of a failed check. */
#define HEADWAY_TRY(call)                                                                          \
    do {                                                                                           \
        const headway_status status_ = (call);                                                     \
        if (status_ != HEADWAY_OK)                                                                 \
            return status_;                                                                        \
    } while (0)

/* The stride of an axis; 0 where a single element makes it meaningless, so that no arithmetic on it
 * overflows. */
static inline ptrdiff_t headway_stride(const headway_tensor *tensor, int axis)
{
    return tensor->shape[axis] == 1 ? 0 : (ptrdiff_t)tensor->stride[axis];
}

/* A config's or params' size field: at least `least` (its first version), at most `known`. */
headway_status headway_check_size(const headway_engine *engine, const char *name, size_t given,
                                  size_t least, size_t known);

/* Not NULL, of that dtype and rank, no negative extent, every element's offset within 2^62 bytes.
 * axes names them for the message: "(B, Lq, Hq, D)". */
headway_status headway_check_tensor(const headway_engine *engine, const char *name,
                                    const headway_tensor *tensor, headway_dtype dtype, int rank,
                                    const char *axes);
headway_status headway_check_extent(const headway_engine *engine, const char *name, int axis,
                                    int64_t given, int64_t expected, const char *why);

/* lengths NULL, or (batch) of 0 .. most. */
headway_status headway_check_lengths(const headway_engine *engine, const char *name,
                                     const int64_t *lengths, int64_t batch, int64_t most);

/* The axes in front of a tensor's own: any number that collapse into one. */
struct headway_batch {
    int axes;
    int64_t extents[HEADWAY_MAX_RANK];
    int64_t all; /* their product */
};
/* Reads them off an F32 tensor with `rank` axes of its own. */
headway_status headway_check_batch(const headway_engine *engine, const char *name,
                                   const headway_tensor *tensor, int rank, const char *axes,
                                   struct headway_batch *batch);

/* Which extents may be 1 for all. */
enum headway_shared { HEADWAY_SHARED_NONE, HEADWAY_SHARED_BATCH, HEADWAY_SHARED_ANY };

/* What a tensor with a batch must look like: the batch's axes, or one axis B in their place, or
 * none where no_batch is set; then `rank` axes of its own. */
struct headway_form {
    const char *name, *axes; /* "lse", "(B, Hq, Lq)" */
    headway_dtype dtype;
    int rank;
    int64_t extents[3]; /* negative: any */
    const char *why[3]; /* what an extent must equal, in words */
    enum headway_shared shared;
    int no_batch;
};
/* *flat: the tensor as (B, its own axes), with stride 0 where an extent is 1 or nothing lies there.
 */
headway_status headway_check_form(const headway_engine *engine, const struct headway_batch *batch,
                                  const struct headway_form *form, const headway_tensor *tensor,
                                  headway_tensor *flat);

/* Of a tensor that headway_check_tensor() has passed: whether it has no elements; its lowest and
 * highest element offset, 0 when they don't fit; bytes of an element. */
int headway_tensor_empty(const headway_tensor *tensor);
int headway_tensor_span(const headway_tensor *tensor, int64_t *low, int64_t *high);
int64_t headway_dtype_size(headway_dtype dtype);
/* "F32", or "unknown type". */
const char *headway_dtype_name(headway_dtype dtype);

/* Data present and aligned to its type (unless empty). */
headway_status headway_check_memory(const headway_engine *engine, const char *name,
                                    const headway_tensor *tensor);
/* The same, and innermost stride 1. */
headway_status headway_check_data(const headway_engine *engine, const char *name,
                                  const headway_tensor *tensor);
/* An output shares no memory with another tensor of the call, both checked before. */
headway_status headway_check_apart(const headway_engine *engine, const char *name,
                                   const headway_tensor *out, const char *other_name,
                                   const headway_tensor *other);
/* An output's axes nest: sorted by stride, each steps over the smaller ones. */
headway_status headway_check_distinct(const headway_engine *engine, const char *name,
                                      const headway_tensor *out);
/* The memory of a call whose shapes and params have been checked: data present, aligned, innermost
 * strides 1 where asked, outputs (out and params' lse and weights) of distinct elements that share
 * no memory with each other, an input (params' arrays included) or the workspace, and a workspace
 * of `needed` bytes that shares none with any. */
headway_status headway_check_operands(const headway_engine *engine,
                                      const headway_attention_params *params,
                                      const struct headway_problem *problem,
                                      const headway_tensor *query, const headway_tensor *key,
                                      const headway_tensor *value, const headway_tensor *out,
                                      void *workspace, size_t bytes, size_t needed);

/* Who asks: what is different for a layer. */
enum {
    HEADWAY_CALL_POSITIONS = 1, /* query_ and key_positions may be given */
    HEADWAY_CALL_LAYER = 2,     /* with a cache it appends */
    HEADWAY_CALL_SELF = 4 /* keys are the queries' tokens: with a cache no lengths of their own */
};

/* A layer's call whose key tensor is what a cache takes. */
#define HEADWAY_CALL_APPENDS_KEY(call) (((call)&HEADWAY_CALL_LAYER) && !((call)&HEADWAY_CALL_SELF))

/* *params NULL becomes the defaults; given ones are of a size that is known. Before any other look at
 * them. */
headway_status headway_check_given(const headway_engine *engine,
                                   const headway_attention_params **params);

/* The params' options into *problem, whose sizes (and `appended`) are set. With packed sequences
 * its sizes are those of the tensors before and those of the sequences after. call: the above,
 * or'ed. The positions are for the caller to look at, with headway_check_form(). Data pointers are
 * not looked at.
 *
 * With params->cache the problem's `cached` is filled (store NULL: no cache), keys becomes the
 * longest key length, and all is checked but whether what a layer appends has room:
 * headway_cache_prepare(). Before, of a layer, `keys` is how many tokens the key tensor has
 * (packed: in all): cached.more_* then say how many are appended, by key_lengths or key_starts, in
 * self-attention by query_lengths or query_starts, and problem->key_lengths and key_starts are
 * NULL. Of attention `keys` is 0 before. */
headway_status headway_check_params(const headway_engine *engine,
                                    const headway_attention_params *params,
                                    const struct headway_batch *batch, int call,
                                    struct headway_problem *problem);

/* Parts of the above for a cache (check_cache.c). Its sizes are the problem's; without one nothing
 * is given that needs it. Then, for a batch of known query lengths: slots, lengths,
 * problem->cached. */
headway_status headway_check_cache(const headway_engine *engine,
                                   const headway_attention_params *params,
                                   struct headway_problem *problem);
headway_status headway_check_cached(const headway_engine *engine,
                                    const headway_attention_params *params, int call,
                                    struct headway_problem *problem);
/* No row of a checked problem sees keys that a rolling cache has overwritten, or will by what the
 * call appends. Reads the interval. headway_check_operands() asks it last. */
headway_status headway_check_reach(const headway_engine *engine, const headway_kv_cache *cache,
                                   const struct headway_problem *problem);

#endif
