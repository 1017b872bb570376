#include "talks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

static int compute(const headway_engine *engine, const struct model *model, float *in, float *out,
                   int64_t tokens)
{
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    int64_t shape[3] = {1, tokens, model->sizes.query_width};
    headway_tensor x = headway_tensor_dense(in, HEADWAY_F32, 3, shape);
    headway_tensor y = headway_tensor_dense(out, HEADWAY_F32, 3, shape);
    char detail[300];
    void *workspace = NULL;
    size_t bytes = 0;
    params.causal = HEADWAY_CAUSAL_TOP_LEFT;
    headway_status status = headway_mha_workspace(model->layer, &params, &x, NULL, NULL, &bytes);
    if (status == HEADWAY_OK && posix_memalign(&workspace, HEADWAY_WORKSPACE_ALIGNMENT, bytes + 64))
        status = HEADWAY_ERROR_MEMORY;
    if (status == HEADWAY_OK)
        status = headway_mha_forward(model->layer, &params, &x, NULL, NULL, &y, workspace, bytes);
    free(workspace);
    if (status == HEADWAY_OK)
        return 0;
    headway_engine_error(engine, detail, sizeof detail);
    printf("FAIL the layer alone: %s\n", detail);
    return -1;
}

/* Writes rows, and reads them back: the text must stand for these bits and no others. */
static int write_rows(FILE *file, const char *name, const float *rows, int64_t count, int64_t width)
{
    int differs = 0;
    fprintf(file, "\"%s\":[", name);
    for (int64_t i = 0; i < count * width; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.9g", (double)rows[i]);
        float back = strtof(text, NULL);
        differs |= memcmp(&back, &rows[i], sizeof back) != 0;
        fprintf(file, "%s%s%s",
                i % width ? ","
                : i       ? "],["
                          : "[",
                text, i + 1 < count * width ? "" : "]");
    }
    fprintf(file, "]");
    return differs;
}

/* `tokens` rows from x, of which the last `steps` are steps, and the answer y. */
static int make_part(struct part *part, const float *x, const float *y, int64_t tokens,
                     int64_t steps, int64_t width, int64_t past, int last)
{
    char *body = NULL, headers[200];
    size_t size = 0;
    int64_t whole = tokens - steps;
    FILE *file = open_memstream(&body, &size);
    fprintf(file, "{");
    if (past >= 0)
        fprintf(file, "\"session\":\"%.*s\",\"past\":%" PRId64 ",\"last\":%s,", NAME, "--------",
                past, last ? "true" : "false");
    int differs = write_rows(file, "tokens", x, whole, width);
    fprintf(file, ",");
    differs |= write_rows(file, "steps", x + whole * width, steps, width);
    fprintf(file, "}");
    fclose(file);
    int length = snprintf(headers, sizeof headers,
                          "POST /v1/states HTTP/1.1\r\nHost: localhost\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                          size);
    part->text_size = (size_t)length + size;
    part->text = malloc(part->text_size + 1);
    memcpy(part->text, headers, (size_t)length);
    memcpy(part->text + length, body, size);
    part->name = past >= 0 ? (size_t)length + 12 : 0;
    part->tokens = tokens;
    free(body);
    file = open_memstream(&part->answer, &part->answer_size);
    fprintf(file, "{");
    differs |= write_rows(file, "states", y, whole, width);
    fprintf(file, ",");
    differs |= write_rows(file, "steps", y + whole * width, steps, width);
    fprintf(file, "}\n");
    fclose(file);
    if (differs)
        printf("FAIL a float's nine digits do not stand for it\n");
    return differs;
}

static int make_talk(struct talk *talk, const float *x, const float *y, int64_t tokens,
                     int64_t width, uint64_t *seed)
{
    int64_t at = 0;
    talk->parts = draw(seed) % 4 ? 1 : (int)(tokens < PARTS ? tokens : PARTS);
    for (int i = 0; i < talk->parts; i++) {
        int64_t left = tokens - at - (talk->parts - 1 - i);
        int64_t count = i + 1 < talk->parts ? 1 + (int64_t)(draw(seed) % (uint64_t)left) : left;
        int64_t steps = (int64_t)(draw(seed) % 3) * (int64_t)(draw(seed) % 60);
        steps = steps < count ? steps : count;
        if (make_part(&talk->part[i], x + at * width, y + at * width, count, steps, width,
                      talk->parts > 1 ? at : -1, i + 1 == talk->parts))
            return -1;
        at += count;
    }
    return 0;
}

int talks_make(const headway_engine *engine, const struct model *model, int64_t longest, int count,
               struct talk *talks)
{
    uint64_t seed = 88172645463325252u;
    size_t floats = (size_t)(longest * model->sizes.query_width);
    float *x = malloc(floats * sizeof(float)), *y = malloc(floats * sizeof(float));
    int failed = !x || !y;
    memset(talks, 0, (size_t)count * sizeof *talks);
    for (int t = 0; t < count && !failed; t++) {
        int64_t tokens = t == 0   ? 1
                         : t == 1 ? longest
                                  : 1 + (int64_t)(draw(&seed) % (uint64_t)longest);
        for (size_t i = 0; i < floats; i++)
            x[i] = (float)(int64_t)(draw(&seed) >> 40) * 0x1p-22f - 2;
        failed = compute(engine, model, x, y, tokens) ||
                 make_talk(&talks[t], x, y, tokens, model->sizes.query_width, &seed);
    }
    free(x);
    free(y);
    return failed ? -1 : 0;
}

void talks_free(struct talk *talks, int count)
{
    for (int t = 0; t < count; t++)
        for (int i = 0; i < talks[t].parts; i++) {
            free(talks[t].part[i].text);
            free(talks[t].part[i].answer);
        }
}
