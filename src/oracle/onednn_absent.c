#include "oracle/onednn.h"
#include "oracle/onednn_steps.h"

/* In the place of onednn.c in a build without oneDNN. No step is ever added: dnn_create() fails. */
#if !HEADWAY_HAVE_ONEDNN

#include <stdio.h>

const char *headway_onednn_about(void)
{
    return "onednn absent: not in this build";
}

struct dnn_steps *dnn_create(char *note, size_t size)
{
    snprintf(note, size, "onednn: not in this build");
    return NULL;
}

void dnn_free(struct dnn_steps *steps)
{
    (void)steps;
}

int dnn_run(struct dnn_steps *steps)
{
    (void)steps;
    return -1;
}

int dnn_matmul(struct dnn_steps *steps, const char *label, const struct dnn_view *a,
               const struct dnn_view *b, const struct dnn_view *out, float scale,
               const struct dnn_view *mask)
{
    (void)steps, (void)label, (void)a, (void)b, (void)out, (void)scale, (void)mask;
    return -1;
}

int dnn_softmax(struct dnn_steps *steps, const char *label, const struct dnn_view *scores)
{
    (void)steps, (void)label, (void)scores;
    return -1;
}

int dnn_linear(struct dnn_steps *steps, const char *label, const struct dnn_view *x,
               const struct dnn_view *weight, const struct dnn_view *bias,
               const struct dnn_view *out)
{
    (void)steps, (void)label, (void)x, (void)weight, (void)bias, (void)out;
    return -1;
}

int dnn_copy(struct dnn_steps *steps, const char *label, const struct dnn_view *from,
             const struct dnn_view *to)
{
    (void)steps, (void)label, (void)from, (void)to;
    return -1;
}

int dnn_sdpa(struct dnn_steps *steps, const struct dnn_view *query, const struct dnn_view *key,
             const struct dnn_view *value, const struct dnn_view *out, float scale,
             const struct dnn_view *mask, int mention)
{
    (void)steps, (void)query, (void)key, (void)value, (void)out, (void)scale, (void)mask;
    (void)mention;
    return -1;
}

#endif
