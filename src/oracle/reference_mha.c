#include "oracle/reference_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The errors that the projections carry into the attention, and through it into the output, are
 * derived at the top of reference.c. */

static int64_t channel_offset(const headway_tensor *t, int axis, int axes, int64_t channel)
{
    if (axes == 1)
        return channel * t->stride[axis];
    int64_t size = t->shape[axis + 1];
    return channel / size * t->stride[axis] + channel % size * t->stride[axis + 1];
}

static int64_t weight_outputs(const headway_tensor *t, int transposed)
{
    int axis = transposed ? 1 : 0;
    return t->rank == 3 ? t->shape[axis] * t->shape[axis + 1] : t->shape[axis];
}

/* Rows first .. first + outputs of a weight; a rank-3 weight counts them over both output axes. */
static int load_matrix(struct matrix *m, const headway_tensor *weight, const headway_tensor *bias,
                       int transposed, int64_t first, int64_t outputs)
{
    int inputs_axis = transposed ? 0 : weight->rank - 1;
    m->inputs = weight->shape[inputs_axis];
    m->outputs = outputs;
    m->data = reference_doubles(m->inputs, outputs, 1, 1);
    m->bias = bias ? reference_doubles(outputs, 1, 1, 1) : NULL;
    if (!m->data || (bias && !m->bias))
        return -1;
    for (int64_t c = 0; c < outputs; c++) {
        int64_t start = channel_offset(weight, transposed ? 1 : 0, weight->rank - 1, first + c);
        for (int64_t k = 0; k < m->inputs; k++) {
            m->data[k * outputs + c] =
                reference_at(weight, start + k * weight->stride[inputs_axis]);
        }
        if (bias)
            m->bias[c] = reference_at(bias, channel_offset(bias, 0, bias->rank, first + c));
    }
    return 0;
}

void reference_free_weights(struct matrix m[4])
{
    for (int n = 0; n < 4; n++) {
        free(m[n].data);
        free(m[n].bias);
    }
}

enum { PROJECT_BLOCK = 16 };

/* Channels first .. first + count of one row: spread(k) is what multiplies |w| in it. */
static void project_block(const struct matrix *m, const double *x, const double *spread,
                          int64_t first, int64_t count, double *out, double *error)
{
    double sum[PROJECT_BLOCK] = {0}, off[PROJECT_BLOCK] = {0};
    for (int64_t k = 0; k < m->inputs; k++) {
        const double *w = m->data + k * m->outputs + first;
        double xk = x[k], sk = spread[k];
        if (count == PROJECT_BLOCK) {
            for (int c = 0; c < PROJECT_BLOCK; c++)
                sum[c] += xk * w[c];
            for (int c = 0; c < PROJECT_BLOCK; c++)
                off[c] += sk * fabs(w[c]);
        } else {
            for (int64_t c = 0; c < count; c++)
                sum[c] += xk * w[c];
            for (int64_t c = 0; c < count; c++)
                off[c] += sk * fabs(w[c]);
        }
    }
    for (int64_t c = 0; c < count; c++) {
        out[first + c] = m->bias ? sum[c] + m->bias[first + c] : sum[c];
        error[first + c] = off[c] + ROUNDOFF * (fabs(out[first + c]) + off[c]) +
                           ((double)m->inputs + 2) * SUBNORMAL;
    }
}

/* out and error (rows, outputs) from x (rows, inputs) and its error, NULL: none. */
static int project(const struct matrix *m, int64_t rows, const double *x, const double *x_error,
                   double *out, double *error)
{
    double *spread = reference_doubles(m->inputs, 1, 1, 1);
    if (!spread)
        return -1;
    for (int64_t r = 0; r < rows; r++) {
        const double *from = x + r * m->inputs;
        for (int64_t k = 0; k < m->inputs; k++) {
            double dx = x_error ? x_error[r * m->inputs + k] : 0;
            spread[k] = dx + ((double)m->inputs + 1) * ROUNDOFF * (fabs(from[k]) + dx);
        }
        for (int64_t c = 0; c < m->outputs; c += PROJECT_BLOCK) {
            int64_t count = m->outputs - c < PROJECT_BLOCK ? m->outputs - c : PROJECT_BLOCK;
            project_block(m, from, spread, c, count, out + r * m->outputs, error + r * m->outputs);
        }
    }
    free(spread);
    return 0;
}

/* A key or value that the layer appends to each batch: bias (Hkv, size), or zeros where it is NULL.
 * Both are exact. */
static void fill_appended(const struct operand *o, int64_t row, const headway_tensor *bias)
{
    for (int64_t h = 0; bias && h < o->heads; h++)
        for (int64_t d = 0; d < o->size; d++)
            o->data[(row * o->heads + h) * o->size + d] =
                reference_at(bias, h * bias->stride[0] + d * bias->stride[1]);
}

static int project_operand(struct operand *to, const struct matrix *m, const headway_tensor *x,
                           int64_t batch, const headway_tensor *bias)
{
    int64_t length = x->shape[x->rank - 2];
    double *from = reference_gather(x);
    to->data = reference_doubles(batch, to->length, m->outputs, 1);
    to->error = reference_doubles(batch, to->length, m->outputs, 1);
    int status = from && to->data && to->error ? 0 : -1;
    for (int64_t b = 0; status == 0 && b < batch; b++) {
        int64_t at = b * to->length * m->outputs;
        status =
            project(m, length, from + b * length * m->inputs, NULL, to->data + at, to->error + at);
        if (length < to->length)
            fill_appended(to, b * to->length + length, bias);
    }
    free(from);
    return status;
}

/* What a cache holds in the place of projected tokens; bias as above. */
static int take_operand(struct operand *to, const headway_tensor *x, int64_t batch,
                        const headway_tensor *bias)
{
    int64_t length = x->shape[x->rank - 3], token = to->heads * to->size;
    double *from = reference_gather(x);
    to->data = reference_doubles(batch, to->length, token, 1);
    to->error = reference_doubles(batch, to->length, token, 1);
    int status = from && to->data && to->error ? 0 : -1;
    for (int64_t b = 0; status == 0 && b < batch; b++) {
        memcpy(to->data + b * to->length * token, from + b * length * token,
               (size_t)(length * token) * sizeof *from);
        if (length < to->length)
            fill_appended(to, b * to->length + length, bias);
    }
    free(from);
    return status;
}

void reference_size_heads(struct problem *p, const headway_mha_config *config,
                          const headway_mha_weights *weights)
{
    p->query_heads = config->heads;
    p->kv_heads = config->kv_heads ? config->kv_heads : config->heads;
    p->size = config->head_size;
    p->value_size = config->value_head_size;
    if (weights->fused) {
        int64_t rows = weight_outputs(weights->fused, config->transposed);
        int64_t keys = p->query_heads + p->kv_heads;
        if (!p->size && p->value_size)
            p->size = (rows - p->kv_heads * p->value_size) / keys;
        if (!p->size)
            p->size = rows / (keys + p->kv_heads);
        if (!p->value_size)
            p->value_size = p->size;
        return;
    }
    if (!p->size)
        p->size = weight_outputs(weights->query, config->transposed) / p->query_heads;
    if (!p->value_size) {
        p->value_size = weight_outputs(weights->value, config->transposed) / p->kv_heads;
    }
}

int reference_load_weights(struct matrix m[4], const struct problem *p,
                           const headway_mha_config *config, const headway_mha_weights *w)
{
    int64_t queries = p->query_heads * p->size, keys = p->kv_heads * p->size;
    int64_t values = p->kv_heads * p->value_size;
    int t = config->transposed, status = 0;
    if (w->fused) {
        status |= load_matrix(&m[0], w->fused, w->fused_bias, t, 0, queries);
        status |= load_matrix(&m[1], w->fused, w->fused_bias, t, queries, keys);
        status |= load_matrix(&m[2], w->fused, w->fused_bias, t, queries + keys, values);
    } else {
        status |= load_matrix(&m[0], w->query, w->query_bias, t, 0, queries);
        status |= load_matrix(&m[1], w->key, w->key_bias, t, 0, keys);
        status |= load_matrix(&m[2], w->value, w->value_bias, t, 0, values);
    }
    return status | load_matrix(&m[3], w->out, w->out_bias, t, 0, weight_outputs(w->out, t));
}

/* The output projection of the attention's results; rows beyond a query length stay 0. */
static int project_out(const struct problem *p, const struct matrix *m, const double *attended,
                       const double *attended_error, const struct headway_reference_out *results)
{
    double *out = reference_doubles(p->batch, p->query_length, m->outputs, 1);
    double *bound = reference_doubles(p->batch, p->query_length, m->outputs, 1);
    int status = out && bound ? 0 : -1;
    for (int64_t b = 0; status == 0 && b < p->batch; b++) {
        int64_t from = b * p->query_length;
        int64_t rows = p->params->query_starts ? p->query_length : reference_query_length(p, b);
        status = project(m, rows, attended + from * m->inputs, attended_error + from * m->inputs,
                         out + from * m->outputs, bound + from * m->outputs);
    }
    size_t bytes = (size_t)(p->batch * p->query_length * m->outputs) * sizeof(double);
    if (status == 0 && results->out)
        memcpy(results->out, out, bytes);
    if (status == 0 && results->out_bound)
        memcpy(results->out_bound, bound, bytes);
    free(out);
    free(bound);
    return status;
}

int headway_reference_mha(const headway_mha_config *config, const headway_mha_weights *weights,
                          const headway_attention_params *params, const headway_tensor *query,
                          const headway_tensor *key, const headway_tensor *value,
                          const struct headway_reference_out *results)
{
    struct problem p = {0};
    struct matrix m[4] = {{0}};
    int self = !key;
    if (!key)
        key = query;
    if (!value)
        value = key;
    p.params = reference_params(params);
    p.batch = 1;
    for (int axis = 0; axis < query->rank - 2; axis++)
        p.batch *= p.batch_shape[axis] = query->shape[axis];
    p.query_length = query->shape[query->rank - 2];
    p.stored = key->rank > query->rank;
    p.key_length = key->shape[key->rank - 2 - p.stored];
    p.appended = (weights->bias_k != NULL) + (config->add_zero_attn != 0);
    reference_size_heads(&p, config, weights);
    reference_finish(&p);
    struct headway_reference_out inner = *results;
    inner.out = reference_doubles(p.batch, p.query_length, p.query_heads, p.value_size);
    inner.out_bound = reference_doubles(p.batch, p.query_length, p.query_heads, p.value_size);
    int status = inner.out && inner.out_bound ? reference_load_weights(m, &p, config, weights) : -1;
    if (status == 0)
        status |= project_operand(&p.query, &m[0], query, p.batch, NULL);
    if (status == 0)
        status |= p.stored ? take_operand(&p.key, key, p.batch, weights->bias_k)
                           : project_operand(&p.key, &m[1], key, p.batch, weights->bias_k);
    if (status == 0)
        status |= p.stored ? take_operand(&p.value, value, p.batch, weights->bias_v)
                           : project_operand(&p.value, &m[2], value, p.batch, weights->bias_v);
    if (status == 0)
        status |= reference_turn(&p, config, weights, self);
    if (status == 0)
        status |= reference_attend(&p, &inner);
    if (status == 0)
        status |= project_out(&p, &m[3], inner.out, inner.out_bound, results);
    reference_free_weights(m);
    reference_free(&p);
    free(inner.out);
    free(inner.out_bound);
    return status;
}
