#include "oracle/onednn_plan.h"

void plan_tidy(struct dnn_view *v)
{
    int64_t inner = 1;
    for (int axis = v->rank - 1; axis >= 0; axis--) {
        if (v->shape[axis] == 1)
            v->stride[axis] = inner;
        if (v->stride[axis] * v->shape[axis] > inner)
            inner = v->stride[axis] * v->shape[axis];
    }
}

struct dnn_view plan_dense(float *data, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[4] = {a, b, c, d};
    struct dnn_view v = {.data = data, .rank = rank};
    int64_t stride = 1;
    for (int axis = rank - 1; axis >= 0; axis--) {
        v.shape[axis] = shape[axis];
        v.stride[axis] = stride;
        stride *= shape[axis];
    }
    return v;
}

int plan_has_gaps(const struct dnn_view *v)
{
    int64_t count = 1, last = 0;
    for (int axis = 0; axis < v->rank; axis++) {
        count *= v->shape[axis];
        last += (v->shape[axis] - 1) * v->stride[axis];
    }
    return last + 1 != count;
}

struct dnn_view plan_transposed(const struct dnn_view *v)
{
    struct dnn_view t = *v;
    t.shape[2] = v->shape[3];
    t.shape[3] = v->shape[2];
    t.stride[2] = v->stride[3];
    t.stride[3] = v->stride[2];
    return t;
}

void plan_fold(struct dnn_view *v, int64_t group)
{
    v->shape[2] = group;
    v->stride[2] = v->stride[1];
    v->shape[1] /= group;
    v->stride[1] *= group;
    plan_tidy(v);
}
