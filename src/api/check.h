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

/* Not NULL, F32 or `dtype`, `rank` axes, no negative extent, every element's offset within 2^62
 * bytes. axes names them for the message: "(B, Lq, Hq, D)". */
headway_status headway_check_tensor(const headway_engine *engine, const char *name,
                                    const headway_tensor *tensor, headway_dtype dtype, int rank,
                                    const char *axes);
/* Data present and aligned to its type (unless empty). */
headway_status headway_check_memory(const headway_engine *engine, const char *name,
                                    const headway_tensor *tensor);
/* The memory of a call whose shapes have been checked: data present, aligned, innermost strides 1
 * where asked, outputs (out and params' lse) of distinct elements that share no memory with each
 * other, an input or the workspace, and a workspace of `needed` bytes that shares none with any. An
 * output's axes must nest: sorted by stride, each steps over the smaller ones. */
headway_status headway_check_operands(const headway_engine *engine,
                                      const headway_attention_params *params,
                                      const headway_tensor *query, const headway_tensor *key,
                                      const headway_tensor *value, const headway_tensor *out,
                                      void *workspace, size_t bytes, size_t needed);
headway_status headway_check_extent(const headway_engine *engine, const char *name, int axis,
                                    int64_t given, int64_t expected, const char *why);

/* The params' options into problem (whose sizes are set); data pointers are looked at by the
 * caller. */
headway_status headway_check_params(const headway_engine *engine,
                                    const headway_attention_params *params,
                                    struct headway_problem *problem);

#endif
