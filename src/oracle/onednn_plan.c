#include "oracle/onednn_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int plan_refuse(struct plan *p, const char *what)
{
    snprintf(p->note, p->size, "onednn: cannot express %s", what);
    return -1;
}

float *plan_buffer(struct plan *p, int64_t count)
{
    struct headway_onednn *prepared = p->prepared;
    size_t bytes;
    float *memory = NULL;
    if (prepared->buffers < MAX_BUFFERS && !__builtin_mul_overflow(count, 4, &bytes) &&
        bytes <= PTRDIFF_MAX - 64)
        memory = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (memory)
        prepared->buffer[prepared->buffers++] = memory;
    else
        snprintf(p->note, p->size, "onednn: out of memory");
    return memory;
}

/* A tensor's view, its axes in the order given. */
static int view(struct plan *p, struct dnn_view *v, const headway_tensor *t, const int order[])
{
    *v = (struct dnn_view){.data = t->data, .rank = t->rank};
    for (int axis = 0; axis < t->rank; axis++) {
        v->shape[axis] = t->shape[order[axis]];
        v->stride[axis] = t->stride[order[axis]];
        if (v->shape[axis] > 1 && v->stride[axis] <= 0)
            return plan_refuse(p, "strides of 0 or below");
    }
    plan_tidy(v);
    return 0;
}

/* ---- masks ----------------------------------------------------------------------------------- */

static int is_finite(const headway_tensor *t)
{
    double *all = reference_gather(t);
    int64_t count = 1;
    int finite = all != NULL;
    for (int axis = 0; axis < t->rank; axis++)
        count *= t->shape[axis];
    for (int64_t i = 0; finite && i < count; i++)
        finite = isfinite(all[i]);
    free(all);
    return finite;
}

/* What no mask can say, and whether there is anything to do (1) or not (0). */
static int examine(struct plan *p)
{
    const struct problem *s = &p->sizes;
    const headway_attention_params *params = s->params;
    const char *beyond = params->lse            ? "lse"
                         : params->weights      ? "weights"
                         : params->softcap > 0  ? "softcap"
                         : params->sinks        ? "sinks"
                         : params->query_starts ? "packed sequences"
                                                : NULL;
    if (beyond)
        return plan_refuse(p, beyond);
    if (s->batch == 0 || s->query_length == 0 || s->value_size == 0) {
        snprintf(p->note, p->size, "onednn: nothing to compute");
        return 0;
    }
    return s->key_length == 0 ? plan_refuse(p, "rows without keys") : 1;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Views in the order batch, head, row, element. */
struct operands {
    struct dnn_view query, key, value, out, mask;
    int64_t mask_groups;
    int masked, folded;
};

/* Batches b .. b + batches, of query, out and mask every group-th head from head g on. */
static struct operands part_of(const struct operands *o, int64_t b, int64_t batches, int64_t g,
                               int64_t group)
{
    struct operands part = *o;
    struct dnn_view *views[5] = {&part.query, &part.out, &part.key, &part.value, &part.mask};
    for (int n = 0; n < 5; n++) {
        struct dnn_view *v = views[n];
        if (n == 4 && !o->masked)
            break;
        if (n < 2) {
            v->data += g * v->stride[1];
            v->shape[1] /= group;
            v->stride[1] *= group;
        } else if (n == 4 && o->mask_groups > 1) {
            v->data += g * v->shape[0] * v->stride[0];
        }
        if (v->shape[0] > 1) {
            v->data += b * v->stride[0];
            v->shape[0] = batches;
        }
        plan_tidy(v);
    }
    return part;
}

static int add_pass(struct plan *p, const struct operands *o, float *scores_memory, float scale,
                    int first)
{
    struct dnn_steps *steps = p->prepared->steps;
    const struct dnn_view *added = o->masked ? &o->mask : NULL;
    if (p->path == HEADWAY_ONEDNN_GRAPH)
        return dnn_sdpa(steps, &o->query, &o->key, &o->value, &o->out, scale, added, first);
    struct dnn_view keys = plan_transposed(&o->key);
    struct dnn_view scores = plan_dense(scores_memory, 4, o->query.shape[0], o->query.shape[1],
                                        o->query.shape[2], o->key.shape[2]);
    if (dnn_matmul(steps, first ? "scores" : NULL, &o->query, &keys, &scores, scale, added) ||
        dnn_softmax(steps, first ? "softmax" : NULL, &scores))
        return -1;
    return dnn_matmul(steps, first ? "out" : NULL, &scores, &o->value, &o->out, 1, NULL);
}

static int is_shorter(const struct problem *s)
{
    for (int64_t b = 0; b < s->batch; b++) {
        if (reference_query_length(s, b) != s->query_length)
            return 1;
    }
    return 0;
}

/* Cuts one batch to its query length; 0 if nothing is left. A folded one has a single query row. */
static int shorten(struct operands *part, int64_t length)
{
    if (length == 0 || part->folded)
        return length > 0;
    part->query.shape[2] = part->out.shape[2] = length;
    if (part->masked && part->mask.shape[2] > length)
        part->mask.shape[2] = length;
    plan_tidy(&part->query);
    plan_tidy(&part->out);
    plan_tidy(&part->mask);
    return 1;
}

/* Passes share the scores' memory. There is one for each query head of a group, as query heads that
 * share a key head are apart in memory; and one for each batch where query lengths differ or views
 * have gaps, as matmul of 3.7 then finds the first batch only. */
static int attend(struct plan *p, struct operands *o, float scale)
{
    const struct problem *s = &p->sizes;
    int shorter = is_shorter(s), mentioned = 0;
    int64_t group = s->query_heads / s->kv_heads, rows = s->query_length, count = 0;
    if (rows == 1 && !(o->masked && o->mask_groups > 1)) {
        plan_fold(&o->query, group);
        plan_fold(&o->out, group);
        rows = group;
        group = 1;
        o->folded = 1;
    }
    int gaps = shorter || group > 1 || plan_has_gaps(&o->query) || plan_has_gaps(&o->key) ||
               plan_has_gaps(&o->value) || plan_has_gaps(&o->out);
    int64_t batches = gaps ? 1 : s->batch, passes = group * (s->batch / batches);
    float *scores = NULL;
    if (p->path == HEADWAY_ONEDNN_PRIMITIVES) {
        if (__builtin_mul_overflow(batches * s->kv_heads * rows, s->key_length, &count))
            return plan_refuse(p, "so many scores");
        if (!(scores = plan_buffer(p, count)))
            return -1;
    } else if (s->size != s->value_size) {
        /* The fused kernel of 3.7 takes the one for the other: wrong results, or an exception. */
        return plan_refuse(p, "head sizes of key and value that differ as a graph");
    }
    if (shorter && o->masked && o->mask.shape[1] > 1)
        return plan_refuse(p, "query lengths with a mask for each head");
    for (int64_t n = 0; n < passes; n++) {
        struct operands part = part_of(o, n / group, batches, n % group, group);
        if (shorter && !shorten(&part, reference_query_length(s, n / group)))
            continue;
        if (add_pass(p, &part, scores, scale, !mentioned++))
            return -1;
    }
    size_t used = strlen(p->note);
    if (passes > 1)
        snprintf(p->note + used, p->size - used, "; %d passes", (int)passes);
    return 0;
}

static int write_mask_if_any(struct plan *p, struct operands *o, const headway_tensor *key,
                             const headway_tensor *value)
{
    const headway_attention_params *params = p->sizes.params;
    int excluded = 0;
    o->masked = params->mask || params->key_lengths || params->causal != HEADWAY_CAUSAL_NONE ||
                params->window_left >= 0 || params->window_right >= 0 || params->interval ||
                params->alibi_slopes;
    if (o->masked && plan_mask(p, &o->mask, &o->mask_groups, &excluded))
        return -1;
    if (excluded && !(is_finite(key) && is_finite(value)))
        return plan_refuse(p, "excluded keys beside numbers that are not finite");
    return 0;
}

static struct headway_onednn *begin(struct plan *p, enum headway_onednn_path path,
                                    const headway_attention_params *params, char *note, size_t size)
{
    static char nowhere[1];
    *p = (struct plan){.path = path, .note = size ? note : nowhere, .size = size ? size : 1};
    p->sizes.params = reference_params(params);
    p->prepared = calloc(1, sizeof *p->prepared);
    if (!p->prepared)
        snprintf(p->note, p->size, "onednn: out of memory");
    return p->prepared;
}

static int begin_steps(struct plan *p)
{
    p->prepared->steps = dnn_create(p->note, p->size);
    if (!p->prepared->steps)
        return -1;
    snprintf(p->note, p->size, "onednn %s",
             p->path == HEADWAY_ONEDNN_GRAPH ? "graph" : "primitives");
    return 0;
}

/* Batch axes, which collapse, as one. */
static headway_tensor collapsed(const headway_tensor *t)
{
    int outer = t->rank - 3;
    headway_tensor one = {.data = t->data, .dtype = t->dtype, .rank = 4, .shape = {1}};
    for (int axis = outer - 1; axis >= 0; axis--) {
        if (one.shape[0] == 1)
            one.stride[0] = t->stride[axis];
        one.shape[0] *= t->shape[axis];
    }
    memcpy(one.shape + 1, t->shape + outer, 3 * sizeof *t->shape);
    memcpy(one.stride + 1, t->stride + outer, 3 * sizeof *t->stride);
    return one;
}

static int plan_attention(struct plan *p, const headway_tensor *const operands[4])
{
    static const int by_head[4] = {0, 2, 1, 3};
    struct operands o = {0};
    struct problem *s = &p->sizes;
    const headway_tensor query = collapsed(operands[0]), key = collapsed(operands[1]);
    const headway_tensor value = collapsed(operands[2]), out = collapsed(operands[3]);
    memcpy(s->batch_shape, operands[0]->shape, sizeof s->batch_shape);
    s->batch = query.shape[0];
    s->query_length = query.shape[1];
    s->query_heads = query.shape[2];
    s->size = query.shape[3];
    s->key_length = key.shape[1];
    s->kv_heads = key.shape[2];
    s->value_size = value.shape[3];
    reference_finish(s);
    int todo = examine(p);
    if (todo <= 0)
        return todo;
    if (view(p, &o.query, &query, by_head) || view(p, &o.key, &key, by_head) ||
        view(p, &o.value, &value, by_head) || view(p, &o.out, &out, by_head) ||
        write_mask_if_any(p, &o, &key, &value) || begin_steps(p))
        return -1;
    return attend(p, &o, (float)s->scale);
}

struct headway_onednn *headway_onednn_attention(enum headway_onednn_path path,
                                                const headway_attention_params *params,
                                                const headway_tensor *query,
                                                const headway_tensor *key,
                                                const headway_tensor *value,
                                                const headway_tensor *out, char *note, size_t size)
{
    struct plan p;
    struct headway_onednn *prepared = begin(&p, path, params, note, size);
    const headway_tensor *const operands[4] = {query, key, value, out};
    if (prepared && plan_attention(&p, operands)) {
        headway_onednn_free(prepared);
        return NULL;
    }
    return prepared;
}

int headway_onednn_run(struct headway_onednn *prepared)
{
    return prepared->steps ? dnn_run(prepared->steps) : 0;
}

void headway_onednn_free(struct headway_onednn *prepared)
{
    if (!prepared)
        return;
    dnn_free(prepared->steps);
    for (int n = 0; n < prepared->buffers; n++)
        free(prepared->buffer[n]);
    free(prepared);
}

/* ---- the layer ------------------------------------------------------------------------------- */

static int is_dense(const struct dnn_view *v)
{
    int64_t stride = 1;
    for (int axis = v->rank - 1; axis >= 0; axis--) {
        if (v->stride[axis] != stride)
            return 0;
        stride *= v->shape[axis];
    }
    return 1;
}

/* Rows of a (B, L, E) tensor as a dense matrix, through a copy at each run where it isn't one. */
static int rows_of(struct plan *p, struct dnn_view *rows, const headway_tensor *t)
{
    static const int as_is[3] = {0, 1, 2};
    struct dnn_view v;
    if (view(p, &v, t, as_is))
        return -1;
    float *data = v.data;
    if (!is_dense(&v)) {
        if (!(data = plan_buffer(p, v.shape[0] * v.shape[1] * v.shape[2])))
            return -1;
        struct dnn_view copy = plan_dense(data, 3, v.shape[0], v.shape[1], v.shape[2], 0);
        if (dnn_copy(p->prepared->steps, "copy", &v, &copy))
            return -1;
    }
    *rows = plan_dense(data, 2, v.shape[0] * v.shape[1], v.shape[2], 0, 0);
    return 0;
}

/* Appends `count` matrices with their inputs in common as one projection. */
static int project(struct plan *p, const char *label, const struct dnn_view *x,
                   const struct matrix *m, int count, const struct dnn_view *out)
{
    int64_t inputs = m[0].inputs, outputs = out->shape[1], first = 0;
    float *weight = malloc((size_t)(inputs * outputs) * sizeof(float));
    float *bias = calloc((size_t)outputs, sizeof(float));
    int failed = !weight || !bias, biased = 0;
    for (int n = 0; !failed && n < count; first += m[n++].outputs) {
        for (int64_t c = 0; c < m[n].outputs; c++) {
            for (int64_t k = 0; k < inputs; k++)
                weight[(first + c) * inputs + k] = (float)m[n].data[k * m[n].outputs + c];
            if (m[n].bias)
                bias[first + c] = (float)m[n].bias[c];
        }
        biased |= m[n].bias != NULL;
    }
    if (failed) {
        snprintf(p->note, p->size, "onednn: out of memory");
    } else {
        struct dnn_view weights = plan_dense(weight, 2, outputs, inputs, 0, 0);
        struct dnn_view biases = plan_dense(bias, 1, outputs, 0, 0, 0);
        failed = dnn_linear(p->prepared->steps, label, x, &weights, biased ? &biases : NULL, out);
    }
    free(weight);
    free(bias);
    return failed ? -1 : 0;
}

/* Channels from `first` on of a dense (B * L, width) matrix as (B, heads, L, size). */
static struct dnn_view heads_in(const struct dnn_view *rows, int64_t batch, int64_t first,
                                int64_t heads, int64_t size)
{
    int64_t width = rows->shape[1], length = rows->shape[0] / batch;
    struct dnn_view v = {.data = rows->data + first,
                         .rank = 4,
                         .shape = {batch, heads, length, size},
                         .stride = {length * width, size, width, 1}};
    plan_tidy(&v);
    return v;
}

/* Projects query, key and value, in one product where their inputs are the same. */
static int project_inputs(struct plan *p, struct operands *o, const struct matrix m[4],
                          const headway_tensor *const inputs[3])
{
    const struct problem *s = &p->sizes;
    static const char *const labels[3] = {"query", "key", "value"};
    struct dnn_view *to[3] = {&o->query, &o->key, &o->value};
    const int64_t sizes[3] = {s->size, s->size, s->value_size};
    int together = inputs[0] == inputs[1] && inputs[1] == inputs[2];
    struct dnn_view x, rows = {0};
    int64_t first = 0;
    for (int n = 0; n < 3; n++) {
        if (n == 0 || !together) {
            int64_t width = m[n].outputs + (together ? m[1].outputs + m[2].outputs : 0);
            int64_t length = n ? s->key_length : s->query_length;
            float *data = plan_buffer(p, s->batch * length * width);
            rows = plan_dense(data, 2, s->batch * length, width, 0, 0);
            first = 0;
            if (!data || rows_of(p, &x, inputs[n]) ||
                project(p, together ? "query, key, value" : labels[n], &x, &m[n], together ? 3 : 1,
                        &rows))
                return -1;
        }
        *to[n] = heads_in(&rows, s->batch, first, n ? s->kv_heads : s->query_heads, sizes[n]);
        first += m[n].outputs;
    }
    return 0;
}

/* The output projection, into place where `out` is dense and all of it is wanted. */
static int project_output(struct plan *p, const struct dnn_view *attended, const struct matrix *m,
                          const headway_tensor *out)
{
    static const int as_is[3] = {0, 1, 2};
    struct dnn_view v;
    if (view(p, &v, out, as_is))
        return -1;
    int64_t batch = v.shape[0], length = v.shape[1], width = v.shape[2];
    int direct = is_dense(&v) && !is_shorter(&p->sizes);
    float *data = direct ? v.data : plan_buffer(p, batch * length * width);
    struct dnn_view rows = plan_dense(data, 2, batch * length, width, 0, 0);
    if (!data || project(p, "output", attended, m, 1, &rows))
        return -1;
    for (int64_t b = 0; !direct && b < batch; b++) {
        int64_t wanted = reference_query_length(&p->sizes, b);
        struct dnn_view from = plan_dense(data + b * length * width, 2, wanted, width, 0, 0);
        struct dnn_view to = {.data = v.data + b * v.stride[0],
                              .rank = 2,
                              .shape = {wanted, width},
                              .stride = {v.stride[1], v.stride[2]}};
        plan_tidy(&to);
        if (wanted > 0 && dnn_copy(p->prepared->steps, b ? NULL : "copy", &from, &to))
            return -1;
    }
    return 0;
}

static int plan_layer(struct plan *p, const headway_mha_config *config,
                      const headway_mha_weights *weights, const headway_tensor *const inputs[3],
                      const headway_tensor *out, struct matrix m[4])
{
    struct operands o = {0};
    struct problem *s = &p->sizes;
    const char *beyond = config->rope && config->rope->style        ? "rotary embedding"
                         : weights->query_norm || weights->key_norm ? "norms of query and key"
                         : weights->bias_k || weights->bias_v       ? "bias_k and bias_v"
                         : config->add_zero_attn                    ? "add_zero_attn"
                         : inputs[0]->rank != 3                     ? "a layer's batch axes but one"
                                                                    : NULL;
    if (beyond)
        return plan_refuse(p, beyond);
    s->batch = inputs[0]->shape[0];
    s->query_length = inputs[0]->shape[1];
    s->key_length = inputs[1]->shape[1];
    reference_size_heads(s, config, weights);
    reference_finish(s);
    int todo = examine(p);
    if (todo <= 0)
        return todo;
    if (reference_load_weights(m, s, config, weights)) {
        snprintf(p->note, p->size, "onednn: out of memory");
        return -1;
    }
    int64_t rows = s->batch * s->query_length, width = s->query_heads * s->value_size;
    float *data = plan_buffer(p, rows * width);
    struct dnn_view attended = plan_dense(data, 2, rows, width, 0, 0);
    if (!data || write_mask_if_any(p, &o, inputs[1], inputs[2]) || begin_steps(p) ||
        project_inputs(p, &o, m, inputs))
        return -1;
    memset(data, 0, (size_t)(rows * width) * sizeof(float)); /* rows that no pass writes are read */
    o.out = heads_in(&attended, s->batch, 0, s->query_heads, s->value_size);
    return attend(p, &o, (float)s->scale) || project_output(p, &attended, &m[3], out) ? -1 : 0;
}

struct headway_onednn *
headway_onednn_mha(enum headway_onednn_path path, const headway_mha_config *config,
                   const headway_mha_weights *weights, const headway_attention_params *params,
                   const headway_tensor *query, const headway_tensor *key,
                   const headway_tensor *value, const headway_tensor *out, char *note, size_t size)
{
    struct plan p;
    struct matrix m[4] = {{0}};
    struct headway_onednn *prepared = begin(&p, path, params, note, size);
    const headway_tensor *const inputs[3] = {query, key ? key : query,
                                             value ? value
                                             : key ? key
                                                   : query};
    if (prepared && plan_layer(&p, config, weights, inputs, out, m)) {
        headway_onednn_free(prepared);
        prepared = NULL;
    }
    reference_free_weights(m);
    return prepared;
}
