#include <stdio.h>
#include <stdlib.h>

#include "attend.h"
#include "oracle/reference.h"

static double *doubles(int64_t count)
{
    double *memory = malloc((count > 0 ? (size_t)count : 1) * sizeof *memory);
    if (!memory) {
        perror("test");
        exit(1);
    }
    return memory;
}

struct expected expect(const struct problem *p)
{
    const struct shape *s = &p->shape;
    const int64_t query_shape[4] = {s->batch, s->queries, s->heads, s->size};
    const int64_t key_shape[4] = {s->batch, s->keys, s->kv_heads, s->size};
    const int64_t value_shape[4] = {s->batch, s->keys, s->kv_heads, s->value_size};
    const headway_tensor query = headway_tensor_dense(p->query, HEADWAY_F32, 4, query_shape);
    const headway_tensor key = headway_tensor_dense(p->key, HEADWAY_F32, 4, key_shape);
    const headway_tensor value = headway_tensor_dense(p->value, HEADWAY_F32, 4, value_shape);
    const headway_tensor mask = mask_tensor(p);
    const int64_t lines = s->batch * s->queries * s->heads;
    const int64_t all = p->weights == WEIGHTS_NONE    ? 0
                        : p->weights == WEIGHTS_HEADS ? lines * s->keys
                                                      : s->batch * s->queries * s->keys;
    struct expected e = {doubles(lines * s->value_size),
                         doubles(lines * s->value_size),
                         doubles(lines),
                         doubles(lines),
                         doubles(all),
                         doubles(all)};
    struct headway_reference_out results = {
        .out = e.out, .out_bound = e.out_bound, .lse = e.lse, .lse_bound = e.lse_bound};
    if (p->weights == WEIGHTS_HEADS) {
        results.probs = e.weights;
        results.probs_bound = e.weights_bound;
    } else if (p->weights == WEIGHTS_MEAN) {
        results.mean = e.weights;
        results.mean_bound = e.weights_bound;
    }
    const int64_t interval_shape[3] = {p->interval_batch, s->queries, 2};
    const headway_tensor interval =
        headway_tensor_dense(p->interval, HEADWAY_I32, p->interval_batch ? 3 : 2,
                             interval_shape + (p->interval_batch ? 0 : 1));
    headway_attention_params params = problem_params(p, &mask);
    params.interval = p->interval ? &interval : NULL;
    CHECK(headway_reference_attention(&params, &query, &key, &value, &results) == 0,
          "the reference has no memory");
    return e;
}

void expected_free(struct expected *e)
{
    free(e->out);
    free(e->out_bound);
    free(e->lse);
    free(e->lse_bound);
    free(e->weights);
    free(e->weights_bound);
}

double compare(const struct problem *p, const struct answer *a, const struct expected *e)
{
    const double out = check_bound(a->out, e->out, e->out_bound, a->outs, problem_name(p));
    const double lse = check_bound(a->lse, e->lse, e->lse_bound, a->lses, "lse");
    const double weights =
        check_bound(a->weights, e->weights, e->weights_bound, a->all_weights, "weights");
    const double most = out > lse ? out : lse;
    return most > weights ? most : weights;
}
