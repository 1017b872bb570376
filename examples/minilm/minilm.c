/* The real attention layer of a sentence-embedding model on real sentences: right, how fast, and
 * what it looks at. Exit status: 0 all right, 1 a difference, 2 bad arguments or files. */
#include "cli/compare.h"
#include "cli/compute.h"
#include "cli/machine.h"
#include "heatmap.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/engine.h"

struct settings {
    const char *folder, *isa, *require;
    int64_t threads, sentence, head, repeat;
    int checksum_only, every_isa;
};

/* The sentences, and the long text. */
enum { TEXTS = 2 };
static const char *const titles[TEXTS] = {"8 sentences, 172 tokens", "one text of 512 tokens"};

struct text {
    char paths[3][4096]; /* weights, input, lengths */
    struct options options;
    struct problem problem;
    struct computation computation;
    struct answer answer;
};

/* What the table shows of the two texts, line by line. */
struct table {
    struct {
        char label[40], cells[TEXTS][48];
    } lines[16];
    int count;
    char notes[2][ERROR_SIZE]; /* what oneDNN says of its two paths */
};

static void die(const char *error)
{
    fflush(stdout);
    fprintf(stderr, "minilm: %s\n", error);
    exit(2);
}

/* weights: those of attention are an output too. */
static void open_text(const struct settings *s, int which, int weights, struct text *t)
{
    char error[ERROR_SIZE];
    memset(t, 0, sizeof *t);
    snprintf(t->paths[0], sizeof t->paths[0], "%s/layer0.safetensors", s->folder);
    snprintf(t->paths[1], sizeof t->paths[1], "%s/%s.npy", s->folder, which ? "long" : "hidden");
    snprintf(t->paths[2], sizeof t->paths[2], "%s/lengths.npy", s->folder);
    t->options.verb = VERB_CHECK;
    t->options.weights = t->paths[0];
    t->options.input = t->paths[1];
    if (!which)
        t->options.query_lengths = t->options.key_lengths = t->paths[2];
    if (weights)
        t->options.probs = "weights"; /* asks for them; nothing here writes files */
    t->options.isa = s->isa;
    t->options.threads = s->threads;
    if (problem_load(&t->options, &t->problem, error) ||
        compute_open(&t->computation, &t->problem, error) || compute_run(&t->computation, error))
        die(error);
}

static void close_text(struct text *t)
{
    answer_free(&t->answer);
    compute_close(&t->computation);
    problem_unload(&t->problem);
}

/* ---- checksum ---------------------------------------------------------------------------------
 */

/* FNV-1a of 64 bits, over the bytes of both outputs. */
static uint64_t checksum(const struct text *texts)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (int which = 0; which < TEXTS; which++) {
        const struct array *result = &texts[which].problem.result;
        const unsigned char *bytes = result->data;
        for (int64_t i = 0, n = array_count(result) * (int64_t)sizeof(float); i < n; i++)
            sum = (sum ^ bytes[i]) * 0x100000001b3u;
    }
    return sum;
}

static int recorded(const struct settings *s, uint64_t *sum)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/checksum.txt", s->folder);
    FILE *file = fopen(path, "r");
    int found = file && fscanf(file, "%" SCNx64, sum) == 1;
    if (file)
        fclose(file);
    return found;
}

/* Prints it and says whether it is the recorded one; 1 when it is not. */
static int print_checksum(const struct settings *s, const char *before, uint64_t sum)
{
    uint64_t expected;
    int known = recorded(s, &expected);
    printf("%schecksum of the output: %016" PRIx64, before, sum);
    if (!known)
        printf(", none is recorded: FAIL\n");
    else if (sum != expected)
        printf(", %016" PRIx64 " is recorded: FAIL\n", expected);
    else
        printf(", as recorded: the same on every machine\n");
    return !known || sum != expected;
}

static int is_required(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at && *at; at += *at == ',') {
        size_t word = strcspn(at, ",");
        if (word == length && strncmp(at, name, length) == 0)
            return 1;
        at += word;
    }
    return 0;
}

static int checksum_of(struct settings s, const char *before)
{
    struct text texts[TEXTS];
    for (int which = 0; which < TEXTS; which++)
        open_text(&s, which, 0, &texts[which]);
    int differs = print_checksum(&s, before, checksum(texts));
    for (int which = 0; which < TEXTS; which++)
        close_text(&texts[which]);
    return differs;
}

/* Every row that runs here, in one and in three threads. */
static int every_isa(const struct settings *settings)
{
    headway_isa_info row;
    int differs = 0;
    for (int i = 0; headway_isa_at(i, &row) == HEADWAY_OK; i++) {
        if (!row.built || !row.runs) {
            int required = is_required(settings->require, row.name);
            printf("%s - %s: %s\n", row.name, required ? "required, FAIL" : "skipped", row.reason);
            differs |= required;
            continue;
        }
        for (int threads = 1; threads <= 3; threads += 2) {
            struct settings s = *settings;
            char before[64];
            s.isa = row.name;
            s.threads = threads;
            snprintf(before, sizeof before, "%s, %d thread%s: ", row.name, threads,
                     threads > 1 ? "s" : "");
            differs |= checksum_of(s, before);
        }
    }
    return differs;
}

/* ---- errors -----------------------------------------------------------------------------------
 */

static int add_line(struct table *table, const char *label)
{
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->lines[i].label, label) == 0)
            return i;
    snprintf(table->lines[table->count].label, sizeof table->lines[0].label, "%s", label);
    return table->count++;
}

#define CELL(table, label, which, ...)                                                             \
    snprintf((table)->lines[add_line(table, label)].cells[which], 48, __VA_ARGS__)

static int add_errors(struct table *table, const char *label, int which, const struct comparison *c)
{
    CELL(table, label, which, "%.1e, %.1e of the bound: %s", c->largest, c->worst,
         c->outside ? "FAIL" : "ok");
    return c->outside != 0;
}

static void read_array(const struct settings *s, const char *name, struct array *array)
{
    char path[4200], error[ERROR_SIZE];
    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    if (npy_read(path, array, error))
        die(error);
}

/* The long text's expected file holds some rows only. */
static void compare_rows(const struct settings *s, const struct text *t, struct comparison *c)
{
    struct array expected = {0}, rows = {0};
    char error[ERROR_SIZE];
    int64_t *row, width = t->problem.layer.out_width;
    read_array(s, "long_expected.npy", &expected);
    read_array(s, "long_rows.npy", &rows);
    if (array_integers(&row, &rows, error))
        die(error);
    memset(c, 0, sizeof *c);
    for (int64_t i = 0; i < rows.shape[0]; i++)
        for (int64_t d = 0; d < width; d++) {
            int64_t at = row[i] * width + d;
            double value = ((const float *)expected.data)[i * width + d];
            compare_element(c, at, ((const float *)t->problem.result.data)[at], value,
                            t->answer.out_bound[at] + half_unit(ARRAY_F32, value));
        }
    free(row);
    array_free(&expected);
    array_free(&rows);
}

static int check_text(const struct settings *s, int which, struct text *t, struct table *table)
{
    struct comparison c;
    struct array expected = {0};
    char error[ERROR_SIZE];
    if (answer_make(&t->problem, NULL, &t->answer, error))
        die(error);
    if (which)
        compare_rows(s, t, &c);
    else {
        read_array(s, "expected.npy", &expected);
        if (compare_out(&t->problem, &t->answer, SOURCE_FILE, &expected, &c, error))
            die(error);
        array_free(&expected);
    }
    int differs = add_errors(table, "error, expected file", which, &c);
    if (compare_out(&t->problem, &t->answer, SOURCE_REFERENCE, NULL, &c, error))
        die(error);
    return add_errors(table, "error, double reference", which, &c) | differs;
}

/* ---- time -------------------------------------------------------------------------------------
 */

static int run_ours(void *context)
{
    char error[ERROR_SIZE];
    return compute_run(context, error);
}

static int run_onednn(void *context)
{
    return headway_onednn_run(context);
}

static void time_text(const struct settings *s, int which, struct text *t, struct table *table)
{
    const headway_engine *engine = t->computation.engine;
    double peak = fma_peak(headway_engine_machine(engine).row, headway_engine_threads(engine));
    double time = time_median(s->repeat, run_ours, &t->computation);
    double rate = problem_flops(&t->problem) / time;
    CELL(table, "time", which, "%.3f ms", time * 1e3);
    CELL(table, "speed", which, "%.1f GFLOP/s", rate * 1e-9);
    CELL(table, "share of the FMA peak", which, "%.2f of %.1f GFLOP/s", rate / peak, peak * 1e-9);
}

static int onednn_text(const struct settings *s, int which, struct text *t, struct table *table)
{
    static const char *const names[] = {"primitives", "graph"};
    const struct problem *p = &t->problem;
    int differs = 0;
    for (int path = 0; path < 2; path++) {
        char note[ERROR_SIZE] = "", error[ERROR_SIZE], label[40], time_label[40];
        struct array other = {0};
        struct comparison c;
        if (array_make(&other, ARRAY_F32, p->result.rank, p->result.shape, error))
            die(error);
        headway_tensor out = problem_out(p, other.data);
        struct headway_onednn *prepared =
            onednn_open(p, &t->answer, (enum headway_onednn_path)path, &out, note, sizeof note);
        snprintf(label, sizeof label, "difference, oneDNN %s", names[path]);
        snprintf(time_label, sizeof time_label, "time, oneDNN %s", names[path]);
        if (prepared) {
            double time = time_median(s->repeat, run_onednn, prepared);
            if (time < 0 || compare_out(p, &t->answer, SOURCE_ONEDNN, &other, &c, error))
                die("oneDNN reported a failure");
            differs |= add_errors(table, label, which, &c);
            CELL(table, time_label, which, "%.3f ms", time * 1e3);
        } else {
            CELL(table, label, which, "-");
            CELL(table, time_label, which, "-");
        }
        if (which == 0 || !prepared)
            memcpy(table->notes[path], note, sizeof note);
        headway_onednn_free(prepared);
        array_free(&other);
    }
    return differs;
}

static void print_table(const struct table *table)
{
    printf("%-30s %-40s %s\n", "", titles[0], titles[1]);
    for (int i = 0; i < table->count; i++)
        printf("%-30s %-40s %s\n", table->lines[i].label, table->lines[i].cells[0],
               table->lines[i].cells[1]);
    printf("\n%s\n%s\n", table->notes[0], table->notes[1]);
}

/* ---- what it looks at -------------------------------------------------------------------------
 */

static void show_head(const struct settings *s)
{
    struct text text;
    struct tokens tokens;
    char path[4200];
    open_text(s, 0, 1, &text);
    const struct problem *p = &text.problem;
    snprintf(path, sizeof path, "%s/tokens.txt", s->folder);
    if (s->sentence >= p->batch || s->head >= p->heads ||
        tokens_read(path, (int)s->sentence, &tokens))
        die("--sentence and --head count from 0, to 7 and 11");
    printf("\nSentence %d, head %d: where each token (left) looks (top)\n\n", (int)s->sentence,
           (int)s->head);
    heatmap_print(&tokens,
                  (const float *)p->probs.data +
                      (s->sentence * p->heads + s->head) * p->query_length * p->key_length,
                  p->key_length);
    close_text(&text);
}

static int demo(const struct settings *s)
{
    struct text texts[TEXTS];
    struct table table = {.count = 0};
    int differs = 0;
    for (int which = 0; which < TEXTS; which++)
        open_text(s, which, 0, &texts[which]);
    const headway_engine *engine = texts[0].computation.engine;
    int threads = headway_engine_threads(engine);
    printf(
        "MiniLM's first attention layer: width 384, 12 heads of 32, f32; row %s, %d thread%s\n\n",
        headway_engine_isa(engine), threads, threads == 1 ? "" : "s");
    fflush(stdout);
    for (int which = 0; which < TEXTS; which++) {
        differs |= check_text(s, which, &texts[which], &table);
        time_text(s, which, &texts[which], &table);
        differs |= onednn_text(s, which, &texts[which], &table);
    }
    print_table(&table);
    show_head(s);
    printf("\n");
    differs |= print_checksum(s, "", checksum(texts));
    for (int which = 0; which < TEXTS; which++)
        close_text(&texts[which]);
    return differs;
}

static int usage(void)
{
    fprintf(stderr,
            "minilm: [--isa NAME] [--threads N] [--sentence N] [--head N] [--repeat N]\n"
            "        [--checksum-only | --every-isa [--require ROW,ROW]] [FOLDER] expected\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct settings s = {.folder = HEADWAY_EXAMPLE, .head = 2, .repeat = 50};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        int64_t *number = strcmp(name, "--threads") == 0    ? &s.threads
                          : strcmp(name, "--sentence") == 0 ? &s.sentence
                          : strcmp(name, "--head") == 0     ? &s.head
                          : strcmp(name, "--repeat") == 0   ? &s.repeat
                                                            : NULL;
        const char **text = strcmp(name, "--isa") == 0       ? &s.isa
                            : strcmp(name, "--require") == 0 ? &s.require
                                                             : NULL;
        if (number || text)
            i++;
        if ((number && parse_integer(value, number == &s.repeat, 1 << 20, number)) ||
            (text && !*value))
            return usage();
        if (text)
            *text = value;
        else if (strcmp(name, "--checksum-only") == 0)
            s.checksum_only = 1;
        else if (strcmp(name, "--every-isa") == 0)
            s.every_isa = 1;
        else if (!number && name[0] == '-')
            return usage();
        else if (!number)
            s.folder = name;
    }
    return s.every_isa ? every_isa(&s) : s.checksum_only ? checksum_of(s, "") : demo(&s);
}
