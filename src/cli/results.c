/* A problem's outputs: what is asked for, its shapes, its files. */
#include "cli/problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int same_file(const char *a, const char *b)
{
    char folder[2][4096];
    const char *paths[2] = {a, b}, *names[2];
    struct stat status[2];
    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(paths[i], '/');
        names[i] = slash ? slash + 1 : paths[i];
        snprintf(folder[i], sizeof folder[i], "%.*s.", slash ? (int)(slash + 1 - paths[i]) : 0,
                 paths[i]);
        if (stat(folder[i], &status[i]))
            return strcmp(a, b) == 0;
    }
    return strcmp(names[0], names[1]) == 0 && status[0].st_dev == status[1].st_dev &&
           status[0].st_ino == status[1].st_ino;
}

enum { OUTPUTS = 4 };

struct wanted {
    const char *flag, *path;
    const struct array *array;
};

static void list_outputs(const struct problem *p, struct wanted *wanted)
{
    const struct options *o = p->options;
    wanted[0] = (struct wanted){"output", o->output, &p->result};
    wanted[1] = (struct wanted){"lse", o->lse, &p->lse};
    wanted[2] = (struct wanted){"probs", o->probs, &p->probs};
    wanted[3] = (struct wanted){"probs-mean", o->probs_mean, &p->mean};
}

static int check_paths(const struct problem *p, char *error)
{
    struct wanted wanted[OUTPUTS];
    list_outputs(p, wanted);
    for (int i = 1; i < OUTPUTS; i++)
        for (int j = 0; j < i; j++)
            if (wanted[i].path && wanted[j].path && same_file(wanted[i].path, wanted[j].path)) {
                snprintf(error, ERROR_SIZE,
                         "--%s: %.200s given, the path of --%s; another expected", wanted[i].flag,
                         wanted[i].path, wanted[j].flag);
                return -1;
            }
    return 0;
}

/* An output beside the first, where it is asked for, and the tensor of all its elements. */
static int make(const char *flag, const char *path, struct array *array, int rank,
                const int64_t *shape, headway_tensor *tensor, char *error)
{
    char detail[ERROR_SIZE];
    if (!path)
        return 0;
    if (array_make(array, ARRAY_F32, rank, shape, detail)) {
        snprintf(error, ERROR_SIZE, "--%s: %.400s", flag, detail);
        return -1;
    }
    *tensor = headway_tensor_dense(array->data, HEADWAY_F32, rank, shape);
    return 0;
}

int problem_results(struct problem *p, char *error)
{
    const struct options *o = p->options;
    const struct array *query = &p->inputs[0];
    int packed = p->query_starts != NULL, axes = packed && !p->is_layer ? 3 : 4;
    int64_t shape[ARRAY_MAX_RANK];
    int64_t keys = p->key_length + p->appended;
    int64_t by_head[4] = {p->batch, p->heads, p->query_length, keys};
    int64_t by_row[3] = {p->batch, p->query_length, keys};
    memcpy(shape, query->shape, sizeof shape);
    int64_t width = p->is_layer ? p->layer.out_width : p->value_head_size;
    shape[query->rank - 1] = p->is_layer || query->rank >= axes ? width : p->heads * width;
    if (check_paths(p, error) || array_make(&p->result, ARRAY_F32, query->rank, shape, error) ||
        make("lse", o->lse, &p->lse, packed ? 2 : 3, by_head + packed, &p->lse_tensor, error) ||
        make("probs", o->probs, &p->probs, 4, by_head, &p->probs_tensor, error) ||
        make("probs-mean", o->probs_mean, &p->mean, 3, by_row, &p->mean_tensor, error))
        return -1;
    p->out = problem_out(p, p->result.data);
    if (p->lse.data)
        p->params.lse = &p->lse_tensor;
    if (p->probs.data)
        p->params.weights = &p->probs_tensor;
    else if (p->mean.data)
        p->params.weights = &p->mean_tensor;
    problem_clear(p);
    return 0;
}

headway_tensor problem_out(const struct problem *p, void *data)
{
    int64_t layer[3] = {p->batch, p->query_length, p->layer.out_width};
    int64_t core[4] = {p->batch, p->query_length, p->heads, p->value_head_size};
    int bhld = !p->is_layer && p->inputs[0].rank == 4 && p->options->layout &&
               strcmp(p->options->layout, "bhld") == 0;
    if (p->is_layer)
        return headway_tensor_dense(data, HEADWAY_F32, 3, layer);
    if (bhld) {
        core[1] = p->heads;
        core[2] = p->query_length;
    }
    headway_tensor out = headway_tensor_dense(data, HEADWAY_F32, 4, core);
    if (bhld)
        heads_third(&out);
    return out;
}

void problem_clear(struct problem *p)
{
    struct array *const zeros[] = {&p->result, &p->probs, &p->mean};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        if (zeros[i]->data)
            memset(zeros[i]->data, 0, (size_t)array_count(zeros[i]) * sizeof(float));
    if (p->lse.data)
        for (int64_t i = 0, n = array_count(&p->lse); i < n; i++)
            ((float *)p->lse.data)[i] = -INFINITY;
}

int problem_write(const struct problem *p, char *error)
{
    struct npy_output outputs[OUTPUTS];
    struct wanted wanted[OUTPUTS];
    struct array converted;
    int count = 0, failed;
    if (array_convert(&converted, &p->result, p->type, error))
        return -1;
    list_outputs(p, wanted);
    wanted[0].array = &converted;
    for (int i = 0; i < OUTPUTS; i++)
        if (wanted[i].path)
            outputs[count++] = (struct npy_output){wanted[i].path, wanted[i].array};
    failed = count ? npy_write_all(outputs, count, error) : 0;
    array_free(&converted);
    return failed;
}
