#include "oracle/onednn.h"

#include "oracle/onednn_steps.h"

#if HEADWAY_HAVE_ONEDNN

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#define DNN_V3 (DNNL_VERSION_MAJOR >= 3)
#if DNN_V3 && defined(ONEDNN_BUILD_GRAPH)
#define DNN_GRAPH 1
#include <oneapi/dnnl/dnnl_graph.h>
#else
#define DNN_GRAPH 0
#endif

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *headway_onednn_about(void)
{
    return "onednn " TEXT(DNNL_VERSION_MAJOR) "." TEXT(DNNL_VERSION_MINOR) "." TEXT(
        DNNL_VERSION_PATCH)
#if DNN_GRAPH
        ": primitives (v3 API), graph";
#elif DNN_V3
        ": primitives (v3 API), no graph in this build of it";
#else
        ": primitives (v2 API), no graph in this version";
#endif
}

/* The next call, unless one before it failed. */
#define TRY(call) (status = status ? status : (call))
#define DROP(destroy, object) ((object) ? (void)destroy(object) : (void)0)

enum { MAX_ARGUMENTS = 5 };

/* A primitive with its memory objects, or a compiled partition of a graph with its tensors. */
struct step {
    struct step *next;
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[MAX_ARGUMENTS];
#if DNN_GRAPH
    dnnl_graph_compiled_partition_t compiled;
    size_t inputs;
    dnnl_graph_tensor_t tensors[MAX_ARGUMENTS + 1]; /* the inputs, then the output */
    float scale;                                    /* what the scale's tensor points at */
#endif
};

struct dnn_steps {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct step *first, **end; /* in order; where the next one is hung */
    char *note;
    size_t size;
};

static void say(struct dnn_steps *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct dnn_steps *s, const char *format, ...)
{
    size_t used = strlen(s->note);
    va_list list;
    va_start(list, format);
    if (used < s->size)
        vsnprintf(s->note + used, s->size - used, format, list);
    va_end(list);
}

static int refuse(struct dnn_steps *s, const char *what, dnnl_status_t status)
{
    const char *why = status == dnnl_out_of_memory       ? "out of memory"
                      : status == dnnl_unimplemented     ? "not implemented"
                      : status == dnnl_invalid_arguments ? "arguments it calls invalid"
                                                         : "a failure inside it";
    if (s->size > 0)
        s->note[0] = '\0';
    say(s, "onednn: cannot express %s: %s", what, why);
    return -1;
}

/* ---- v2 and v3 differ in how things are described ------------------------------------------ */

#if DNN_V3
#define REF(description) (description)
#define DESCRIBE_FREE dnnl_memory_desc_create_with_tag
#define DESCRIBE_STRIDES dnnl_memory_desc_create_with_strides
#define WHOLE
typedef const_dnnl_memory_desc_t description_ref;
#else
#define REF(description) (&(description))
#define DESCRIBE_FREE dnnl_memory_desc_init_by_tag
#define DESCRIBE_STRIDES dnnl_memory_desc_init_by_strides
#define WHOLE 1, /* scales the function's result by 1 */
typedef const dnnl_memory_desc_t *description_ref;
#endif

/* free_layout: the layout is left to oneDNN. */
static dnnl_status_t describe(dnnl_memory_desc_t *d, const struct dnn_view *v, int free_layout)
{
    if (free_layout)
        return DESCRIBE_FREE(d, v->rank, v->shape, dnnl_f32, dnnl_format_tag_any);
    return DESCRIBE_STRIDES(d, v->rank, v->shape, dnnl_f32, v->stride);
}

static void undescribe(dnnl_memory_desc_t *d, int count)
{
#if DNN_V3
    for (int n = 0; n < count; n++)
        DROP(dnnl_memory_desc_destroy, d[n]);
#else
    (void)d, (void)count;
#endif
}

enum kind { MATMUL, SOFTMAX, LINEAR, COPY };

/* A primitive to make: up to four arguments, absent ones NULL. */
struct recipe {
    enum kind kind;
    const char *label, *what;
    const struct dnn_view *view[4];
    int name[4];
    float scale;
};

/* Lets oneDNN choose an implementation for the recipe, d describes its views. */
static dnnl_status_t choose(dnnl_primitive_desc_t *chosen, dnnl_engine_t engine,
                            const struct recipe *r, const dnnl_memory_desc_t d[4],
                            dnnl_primitive_attr_t attr)
{
    if (r->kind == COPY)
        return dnnl_reorder_primitive_desc_create(chosen, REF(d[0]), engine, REF(d[1]), engine,
                                                  attr);
    const int axis = r->view[0]->rank - 1;
#if DNN_V3
    if (r->kind == MATMUL)
        return dnnl_matmul_primitive_desc_create(chosen, engine, d[0], d[1], NULL, d[2], attr);
    if (r->kind == SOFTMAX)
        return dnnl_softmax_forward_primitive_desc_create(
            chosen, engine, dnnl_forward_inference, dnnl_softmax_accurate, d[0], d[1], axis, attr);
    return dnnl_inner_product_forward_primitive_desc_create(chosen, engine, dnnl_forward_inference,
                                                            d[0], d[1], d[3], d[2], attr);
#else
    union {
        dnnl_matmul_desc_t matmul;
        dnnl_softmax_v2_desc_t softmax;
        dnnl_inner_product_desc_t linear;
    } op;
    dnnl_status_t status;
    if (r->kind == MATMUL)
        status = dnnl_matmul_desc_init(&op.matmul, &d[0], &d[1], NULL, &d[2]);
    else if (r->kind == SOFTMAX)
        status = dnnl_softmax_v2_forward_desc_init(&op.softmax, dnnl_forward_inference,
                                                   dnnl_softmax_accurate, &d[0], &d[1], axis);
    else
        status = dnnl_inner_product_forward_desc_init(&op.linear, dnnl_forward_inference, &d[0],
                                                      &d[1], r->view[3] ? &d[3] : NULL, &d[2]);
    return TRY(dnnl_primitive_desc_create(chosen, &op, attr, engine, NULL));
#endif
}

/* ---- steps --------------------------------------------------------------------------------- */

struct dnn_steps *dnn_create(char *note, size_t size)
{
    struct dnn_steps *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(note, size, "onednn: out of memory");
        return NULL;
    }
    s->end = &s->first;
    s->note = note;
    s->size = size;
    dnnl_status_t status = dnnl_engine_create(&s->engine, dnnl_cpu, 0);
    TRY(dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags));
    if (!status)
        return s;
    refuse(s, "anything on this machine", status);
    dnn_free(s);
    return NULL;
}

static void free_step(struct step *step)
{
    for (int n = 0; n < step->count; n++)
        dnnl_memory_destroy(step->arguments[n].memory);
    DROP(dnnl_primitive_destroy, step->primitive);
#if DNN_GRAPH
    for (int n = 0; n <= MAX_ARGUMENTS; n++)
        DROP(dnnl_graph_tensor_destroy, step->tensors[n]);
    DROP(dnnl_graph_compiled_partition_destroy, step->compiled);
#endif
    free(step);
}

void dnn_free(struct dnn_steps *s)
{
    if (!s)
        return;
    for (struct step *step = s->first, *next; step; step = next) {
        next = step->next;
        free_step(step);
    }
    DROP(dnnl_stream_destroy, s->stream);
    DROP(dnnl_engine_destroy, s->engine);
    free(s);
}

static struct step *new_step(struct dnn_steps *s)
{
    struct step *step = calloc(1, sizeof *step);
    if (step) {
        *s->end = step;
        s->end = &step->next;
    }
    return step;
}

int dnn_run(struct dnn_steps *s)
{
    for (struct step *step = s->first; step; step = step->next) {
        dnnl_status_t status = dnnl_success;
        if (step->primitive)
            status =
                dnnl_primitive_execute(step->primitive, s->stream, step->count, step->arguments);
#if DNN_GRAPH
        if (step->compiled)
            status = dnnl_graph_compiled_partition_execute(
                step->compiled, s->stream, step->inputs, (const_dnnl_graph_tensor_t *)step->tensors,
                1, (const_dnnl_graph_tensor_t *)step->tensors + step->inputs);
#endif
        if (status)
            return -1;
    }
    return dnnl_stream_wait(s->stream) ? -1 : 0;
}

/* One argument of the step being built. */
static dnnl_status_t bind(struct dnn_steps *s, struct step *step, int name, description_ref d,
                          void *data)
{
    dnnl_exec_arg_t *argument = &step->arguments[step->count];
    argument->arg = name;
    dnnl_status_t status = dnnl_memory_create(&argument->memory, d, s->engine, data);
    step->count += !status;
    return status;
}

/* Attributes that scale and then add the mask described. */
static dnnl_status_t score_attributes(dnnl_primitive_attr_t *attr, float scale,
                                      const dnnl_memory_desc_t *mask)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    TRY(dnnl_post_ops_create(&ops));
    if (!status && scale != 1)
        status = dnnl_post_ops_append_eltwise(ops, WHOLE dnnl_eltwise_linear, scale, 0);
    if (!status && mask)
        status = dnnl_post_ops_append_binary(ops, dnnl_binary_add, REF(*mask));
    TRY(dnnl_primitive_attr_set_post_ops(*attr, ops));
    DROP(dnnl_post_ops_destroy, ops);
    return status;
}

/* Binds memory of oneDNN's own, laid out as `want` says, that holds what `have` holds now. */
static dnnl_status_t bind_packed(struct dnn_steps *s, struct step *step, int name,
                                 description_ref want, const struct dnn_view *have)
{
    dnnl_memory_desc_t d = {0};
    dnnl_memory_t from = NULL;
    dnnl_primitive_desc_t chosen = NULL;
    dnnl_primitive_t reorder = NULL;
    dnnl_status_t status = bind(s, step, name, want, DNNL_MEMORY_ALLOCATE);
    TRY(describe(&d, have, 0));
    TRY(dnnl_memory_create(&from, REF(d), s->engine, have->data));
    TRY(dnnl_reorder_primitive_desc_create(&chosen, REF(d), s->engine, want, s->engine, NULL));
    TRY(dnnl_primitive_create(&reorder, chosen));
    if (!status) {
        const dnnl_exec_arg_t arguments[2] = {
            {DNNL_ARG_FROM, from}, {DNNL_ARG_TO, step->arguments[step->count - 1].memory}};
        TRY(dnnl_primitive_execute(reorder, s->stream, 2, arguments));
        TRY(dnnl_stream_wait(s->stream));
    }
    DROP(dnnl_primitive_destroy, reorder);
    DROP(dnnl_primitive_desc_destroy, chosen);
    DROP(dnnl_memory_destroy, from);
    undescribe(&d, 1);
    return status;
}

static int add(struct dnn_steps *s, const struct recipe *r)
{
    dnnl_memory_desc_t d[4] = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t chosen = NULL;
    struct step *step = new_step(s);
    dnnl_status_t status = step ? dnnl_success : dnnl_out_of_memory;
    for (int n = 0; n < 4; n++) {
        if (r->view[n])
            TRY(describe(&d[n], r->view[n], r->kind == LINEAR && n == 1));
    }
    if (r->kind == MATMUL)
        TRY(score_attributes(&attr, r->scale, r->view[3] ? &d[3] : NULL));
    TRY(choose(&chosen, s->engine, r, d, attr));
    for (int n = 0; !status && n < 4; n++) {
        if (!r->view[n])
            continue;
        if (r->kind == LINEAR && n == 1)
            status = bind_packed(s, step, r->name[n],
                                 dnnl_primitive_desc_query_md(chosen, dnnl_query_weights_md, 0),
                                 r->view[n]);
        else if (r->kind == LINEAR && n == 3)
            status = bind_packed(s, step, r->name[n], REF(d[n]), r->view[n]);
        else
            status = bind(s, step, r->name[n], REF(d[n]), r->view[n]->data);
    }
    TRY(dnnl_primitive_create(&step->primitive, chosen));
    const char *name = NULL;
    if (!status && r->label &&
        !dnnl_primitive_desc_query(chosen, dnnl_query_impl_info_str, 0, &name))
        say(s, "; %s %s", r->label, name);
    DROP(dnnl_primitive_desc_destroy, chosen);
    DROP(dnnl_primitive_attr_destroy, attr);
    undescribe(d, 4);
    return status ? refuse(s, r->what, status) : 0;
}

int dnn_matmul(struct dnn_steps *s, const char *label, const struct dnn_view *a,
               const struct dnn_view *b, const struct dnn_view *out, float scale,
               const struct dnn_view *mask)
{
    const int last = scale == 1 ? 0 : 1;
    const int added = DNNL_ARG_ATTR_MULTIPLE_POST_OP(last) | DNNL_ARG_SRC_1;
    const struct recipe r = {
        MATMUL, label, "this product", {a, b, out, mask},
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, added}, scale};
    return add(s, &r);
}

int dnn_softmax(struct dnn_steps *s, const char *label, const struct dnn_view *scores)
{
    const struct recipe r = {
        SOFTMAX, label, "this softmax", {scores, scores}, {DNNL_ARG_SRC, DNNL_ARG_DST}, 1};
    return add(s, &r);
}

int dnn_copy(struct dnn_steps *s, const char *label, const struct dnn_view *from,
             const struct dnn_view *to)
{
    const struct recipe r = {
        COPY, label, "this copy", {from, to}, {DNNL_ARG_FROM, DNNL_ARG_TO}, 1};
    return add(s, &r);
}

int dnn_linear(struct dnn_steps *s, const char *label, const struct dnn_view *x,
               const struct dnn_view *weight, const struct dnn_view *bias,
               const struct dnn_view *out)
{
    const struct recipe r = {
        LINEAR, label, "this projection", {x, weight, out, bias},
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS}, 1};
    return add(s, &r);
}

/* ---- Graph API ----------------------------------------------------------------------------- */

#if DNN_GRAPH

/* The tensors of the pattern by their numbers in the graph; the first four are memory. */
enum { QUERY, KEY, SCALE, MASK, VALUE, OUT, DOTS, SCALED, MASKED, WEIGHTS, TENSORS };

struct pattern {
    dnnl_graph_graph_t graph;
    dnnl_graph_logical_tensor_t tensor[TENSORS];
    int masked;
};

static dnnl_status_t add_op(struct pattern *p, size_t id, dnnl_graph_op_kind_t kind, int a, int b,
                            int out)
{
    static const uint8_t yes = 1;
    const int64_t axis = p->tensor[OUT].ndims - 1;
    dnnl_graph_op_t op = NULL;
    dnnl_status_t status = dnnl_graph_op_create(&op, id, kind, "");
    TRY(dnnl_graph_op_add_input(op, &p->tensor[a]));
    if (b != TENSORS)
        TRY(dnnl_graph_op_add_input(op, &p->tensor[b]));
    TRY(dnnl_graph_op_add_output(op, &p->tensor[out]));
    if (b == KEY)
        TRY(dnnl_graph_op_set_attr_bool(op, dnnl_graph_op_attr_transpose_b, &yes, 1));
    if (kind == dnnl_graph_op_softmax)
        TRY(dnnl_graph_op_set_attr_s64(op, dnnl_graph_op_attr_axis, &axis, 1));
    TRY(dnnl_graph_add_op(p->graph, op));
    DROP(dnnl_graph_op_destroy, op);
    return status;
}

static dnnl_status_t build(struct pattern *p, const struct dnn_view *const views[OUT + 1])
{
    dnnl_status_t status = dnnl_graph_graph_create(&p->graph, dnnl_cpu);
    for (size_t n = 0; n <= OUT; n++) {
        if (views[n])
            TRY(dnnl_graph_logical_tensor_init_with_strides(
                &p->tensor[n], n, dnnl_f32, views[n]->rank, views[n]->shape, views[n]->stride,
                dnnl_graph_tensor_property_variable));
    }
    dnnl_dims_t scores;
    memcpy(scores, views[QUERY]->shape, sizeof scores);
    scores[views[KEY]->rank - 1] = views[KEY]->shape[views[KEY]->rank - 2];
    for (size_t n = DOTS; n < TENSORS; n++)
        TRY(dnnl_graph_logical_tensor_init_with_dims(&p->tensor[n], n, dnnl_f32, views[QUERY]->rank,
                                                     scores, dnnl_graph_layout_type_strided,
                                                     dnnl_graph_tensor_property_variable));
    TRY(add_op(p, 0, dnnl_graph_op_matmul, QUERY, KEY, DOTS));
    TRY(add_op(p, 1, dnnl_graph_op_multiply, DOTS, SCALE, SCALED));
    if (p->masked)
        TRY(add_op(p, 2, dnnl_graph_op_add, SCALED, MASK, MASKED));
    TRY(add_op(p, 3, dnnl_graph_op_softmax, p->masked ? MASKED : SCALED, TENSORS, WEIGHTS));
    TRY(add_op(p, 4, dnnl_graph_op_matmul, WEIGHTS, VALUE, OUT));
    TRY(dnnl_graph_graph_finalize(p->graph));
    return TRY(dnnl_graph_graph_filter(p->graph, dnnl_graph_partition_policy_fusion));
}

/* Compiles the one partition into the step and binds its tensors in the order of its ports. */
static dnnl_status_t compile(struct dnn_steps *s, struct step *step, struct pattern *p,
                             dnnl_graph_partition_t whole, const struct dnn_view *const views[])
{
    dnnl_graph_logical_tensor_t port[MAX_ARGUMENTS];
    const dnnl_graph_logical_tensor_t *inputs[MAX_ARGUMENTS], *out = &p->tensor[OUT];
    dnnl_status_t status = dnnl_graph_partition_get_input_ports_num(whole, &step->inputs);
    if (step->inputs > MAX_ARGUMENTS)
        return dnnl_unimplemented;
    TRY(dnnl_graph_partition_get_input_ports(whole, step->inputs, port));
    for (size_t n = 0; !status && n < step->inputs; n++)
        inputs[n] = &p->tensor[port[n].id];
    TRY(dnnl_graph_compiled_partition_create(&step->compiled, whole));
    TRY(dnnl_graph_partition_compile(whole, step->compiled, step->inputs, inputs, 1, &out,
                                     s->engine));
    for (size_t n = 0; !status && n < step->inputs; n++)
        TRY(dnnl_graph_tensor_create(&step->tensors[n], inputs[n], s->engine,
                                     views[inputs[n]->id]->data));
    return TRY(
        dnnl_graph_tensor_create(&step->tensors[step->inputs], out, s->engine, views[OUT]->data));
}

int dnn_sdpa(struct dnn_steps *s, const struct dnn_view *query, const struct dnn_view *key,
             const struct dnn_view *value, const struct dnn_view *out, float scale,
             const struct dnn_view *mask, int mention)
{
    struct pattern p = {.masked = mask != NULL};
    struct step *step = new_step(s);
    if (!step)
        return refuse(s, "this graph", dnnl_out_of_memory);
    step->scale = scale;
    const struct dnn_view scalar = {&step->scale, 1, {1}, {1}};
    const struct dnn_view *const views[OUT + 1] = {query, key, &scalar, mask, value, out};
    dnnl_graph_partition_t whole = NULL;
    size_t partitions = 0, ops = 0;
    uint8_t supported = 0;
    dnnl_status_t status = build(&p, views);
    TRY(dnnl_graph_graph_get_partition_num(p.graph, &partitions));
    if (!status && partitions == 1) {
        TRY(dnnl_graph_graph_get_partitions(p.graph, 1, &whole));
        TRY(dnnl_graph_partition_is_supported(whole, &supported));
        TRY(dnnl_graph_partition_get_op_num(whole, &ops));
    }
    if (!status && !supported)
        status = dnnl_unimplemented;
    TRY(compile(s, step, &p, whole, views));
    DROP(dnnl_graph_partition_destroy, whole);
    if (p.graph)
        dnnl_graph_graph_destroy(p.graph);
    if (status)
        return refuse(s, "this attention as one partition of a graph", status);
    if (mention)
        say(s, "; 1 partition of %d operations", (int)ops);
    return 0;
}

#else

int dnn_sdpa(struct dnn_steps *s, const struct dnn_view *query, const struct dnn_view *key,
             const struct dnn_view *value, const struct dnn_view *out, float scale,
             const struct dnn_view *mask, int mention)
{
    (void)query, (void)key, (void)value, (void)out, (void)scale, (void)mask, (void)mention;
    return refuse(s, "attention as a graph, this version has no Graph API", dnnl_unimplemented);
}

#endif

#endif
