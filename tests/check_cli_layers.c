/* What the options of the whole layer mean: rotary embedding, positions, norms, added keys, packed
 * inputs; and what a config.json beside the weights does to a run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_cli_parts.h"

enum { WIDTH = 32, HEADS = 4, SIZE = 8, ROWS = 5 };

#define LAYER "run --weights layer.safetensors --input q2.npy --heads 4 "
#define NORMED "run --weights normed.safetensors --input q2.npy --heads 4 "
#define TORCH "run --weights torch.safetensors --input q2.npy --heads 4 "

static float numbers[3 * WIDTH * WIDTH + 4 * WIDTH];

static void write_weights(void)
{
    const float *w = numbers;
    uint64_t state = check_seed + 7;
    check_fill_normal(&state, numbers, (int64_t)(sizeof numbers / sizeof *numbers), 0.3f);
    const struct cli_tensor query = {"q_proj.weight", 2, {WIDTH, WIDTH, 0}, w};
    const struct cli_tensor key = {"k_proj.weight", 2, {WIDTH / 2, WIDTH, 0}, w + 40};
    const struct cli_tensor value = {"v_proj.weight", 2, {WIDTH / 2, WIDTH, 0}, w + 80};
    const struct cli_tensor out = {"o_proj.weight", 2, {WIDTH, WIDTH, 0}, w + 120};
    const struct cli_tensor bias = {"k_proj.bias", 1, {WIDTH / 2, 0, 0}, w + 7};
    cli_weights("layer.safetensors",
                (const struct cli_tensor[]){query, key, value, out, bias, {NULL, 0, {0}, NULL}});
    cli_weights("normed.safetensors",
                (const struct cli_tensor[]){query,
                                            key,
                                            value,
                                            out,
                                            {"q_norm.weight", 1, {SIZE, 0, 0}, w + 11},
                                            {"k_norm.weight", 1, {SIZE, 0, 0}, w + 29},
                                            {"sinks", 1, {HEADS, 0, 0}, w + 60},
                                            {NULL, 0, {0}, NULL}});
    cli_weights("torch.safetensors",
                (const struct cli_tensor[]){{"in_proj_weight", 2, {3 * WIDTH, WIDTH, 0}, w},
                                            {"in_proj_bias", 1, {3 * WIDTH, 0, 0}, w + 17},
                                            {"out_proj.weight", 2, {WIDTH, WIDTH, 0}, w + 33},
                                            {"bias_k", 3, {1, 1, WIDTH}, w + 100},
                                            {"bias_v", 3, {1, 1, WIDTH}, w + 200},
                                            {NULL, 0, {0}, NULL}});
}

static void write_files(void)
{
    double cosines[6 * 4], sines[6 * 4], own[ROWS], even[ROWS], later[ROWS];
    for (int t = 0; t < 6; t++)
        for (int k = 0; k < 4; k++) {
            cosines[4 * t + k] = cos(t * (k + 1) * 0.25);
            sines[4 * t + k] = sin(t * (k + 1) * 0.25);
        }
    for (int i = 0; i < ROWS; i++) {
        own[i] = i;
        even[i] = 2 * i;
        later[i] = i + 2;
    }
    cli_write("cos.npy", ARRAY_F32, 2, (int64_t[]){6, 4}, cosines);
    cli_write("sin.npy", ARRAY_F32, 2, (int64_t[]){6, 4}, sines);
    cli_write("cos64.npy", ARRAY_F64, 2, (int64_t[]){6, 4}, cosines);
    cli_write("sin5.npy", ARRAY_F32, 2, (int64_t[]){5, 4}, sines);
    cli_write("cos2.npy", ARRAY_F32, 2, (int64_t[]){6, 2}, cosines);
    cli_write("sin2.npy", ARRAY_F32, 2, (int64_t[]){6, 2}, sines);
    cli_write("cos1.npy", ARRAY_F32, 1, (int64_t[]){24}, cosines);
    cli_write("own.npy", ARRAY_I64, 1, (int64_t[]){ROWS}, own);
    cli_write("own2.npy", ARRAY_I8, 2, (int64_t[]){1, ROWS}, own);
    cli_write("even.npy", ARRAY_I32, 2, (int64_t[]){1, ROWS}, even);
    cli_write("later.npy", ARRAY_I32, 1, (int64_t[]){ROWS}, later);
    cli_write("shown2.npy", ARRAY_I64, 1, (int64_t[]){1}, own + 2);
    cli_write("shown0.npy", ARRAY_I64, 1, (int64_t[]){1}, own);
    own[2] = -1;
    cli_write("negative.npy", ARRAY_I32, 1, (int64_t[]){ROWS}, own);
    own[2] = 6;
    cli_write("beyond.npy", ARRAY_I32, 1, (int64_t[]){ROWS}, own);
    own[2] = 4e9;
    cli_write("huge.npy", ARRAY_I64, 1, (int64_t[]){ROWS}, own);
    cli_write("four.npy", ARRAY_I64, 1, (int64_t[]){4}, own);
}

static void same_meaning(void)
{
    cli_equal(LAYER, LAYER "--kv-heads 2 --head-size 8 --value-head-size 8");
    cli_equal(LAYER "--rope 1e4", LAYER "--rope 10000 --rope-style half --rope-size 8");
    cli_equal(LAYER "--rope 1e4", LAYER "--rope 1e4 --rope-scale 1");
    cli_equal(LAYER "--rope 1e4", LAYER "--rope 1e4 --positions own.npy");
    cli_equal(LAYER "--rope 1e4", LAYER "--rope 1e4 --positions own2.npy --isa scalar");
    cli_equal(LAYER "--rope 1e4", LAYER "--rope 1e4 --rope-scale 2 --positions even.npy");
    cli_equal(LAYER "--rope 1e4 --causal 2", LAYER "--rope 1e4 --causal 2 --threads 2");
    cli_equal(LAYER "--rope-table cos.npy,sin.npy", LAYER "--rope-table cos64.npy,sin.npy");
    cli_equal(LAYER "--rope-table cos2.npy,sin2.npy --rope-size 4 --rope-style interleaved",
              LAYER "--rope-style interleaved --rope-size 4 --rope-table cos2.npy,sin2.npy");
    cli_equal(NORMED "--rope 1e6", NORMED "--rope 1e6 --qk-norm-eps 1e-6");
    cli_equal(LAYER "--rope 1e4 --key q2.npy --value q2.npy", LAYER "--rope 1e4");
}

/* Both outputs are there and differ. */
static void differ(const char *first, const char *second)
{
    char words[1024];
    struct array a, b;
    if (!check_case("cli/differ/%s, %s", first, second))
        return;
    snprintf(words, sizeof words, "%s--output a.npy", first);
    cli_done(words);
    snprintf(words, sizeof words, "%s--output b.npy", second);
    cli_done(words);
    float *x = cli_read("a.npy", &a), *y = cli_read("b.npy", &b), most = 0;
    for (int64_t i = 0; x && y && i < ROWS * WIDTH; i++)
        most = fmaxf(most, fabsf(x[i] - y[i]));
    CHECK(most > 1e-4f, "they differ by %g", (double)most);
    array_free(&a);
    array_free(&b);
}

static void different_meaning(void)
{
    differ(LAYER, LAYER "--rope 1e4 ");
    differ(LAYER "--rope 1e4 ", LAYER "--rope 1e4 --rope-style interleaved ");
    differ(LAYER "--rope 1e4 ", LAYER "--rope 50 ");
    differ(LAYER "--rope 1e4 ", LAYER "--rope 1e4 --rope-size 4 ");
    differ(LAYER "--rope 1e4 ", LAYER "--rope 1e4 --rope-scale 4 ");
    differ(LAYER "--rope 1e4 ", LAYER "--rope 1e4 --positions even.npy ");
    differ(NORMED, NORMED "--qk-norm-eps 10 ");
    differ(NORMED, NORMED "--sink nosinks.npy ");
    differ(TORCH, TORCH "--add-zero-attn ");
}

#define OUTPUTS "--lse l.npy --probs p.npy --probs-mean m.npy "
#define CHECKED(weights) "check --weights " weights ".safetensors --input q2.npy --heads 4 "

static void checks(void)
{
    static const char *const table[] = {
        CHECKED("layer") "--rope 1e4 --causal top-left " OUTPUTS,
        CHECKED(
            "layer") "--rope 1e4 --rope-style interleaved --rope-size 6 --rope-scale 3 " OUTPUTS,
        CHECKED("layer") "--rope-table cos.npy,sin.npy --positions own2.npy " OUTPUTS,
        CHECKED("layer") "--rope 1e4 --positions own2.npy --query-lengths shown2.npy " OUTPUTS,
        CHECKED("layer") "--rope 1e4 --positions own2.npy --query-lengths shown0.npy " OUTPUTS,
        CHECKED("layer") "--add-zero-attn --mask mq.npy --softcap 3 " OUTPUTS,
        CHECKED("normed") "--rope 1e6 --window 1,1 --qk-norm-eps 1e-3 " OUTPUTS,
        CHECKED("torch") OUTPUTS,
        CHECKED("torch") "--add-zero-attn --causal top-left --alibi default " OUTPUTS,
        CHECKED("layer") "--key k2w.npy --rope 500 --offset 2 --window 3,2 " OUTPUTS,
    };
    double values[7 * WIDTH], mask[ROWS * ROWS];
    uint64_t state = check_seed + 3;
    for (int n = 0; n < 7 * WIDTH; n++)
        values[n] = (double)check_normal(&state);
    for (int n = 0; n < ROWS * ROWS; n++)
        mask[n] = n % 3 != 1;
    cli_write("k2w.npy", ARRAY_F32, 2, (int64_t[]){7, WIDTH}, values);
    cli_write("mq.npy", ARRAY_BOOL, 2, (int64_t[]){ROWS, ROWS}, mask);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct outcome outcome;
        if (!check_case("cli/check/%s", table[i]))
            continue;
        cli_run(table[i], &outcome);
        CHECK(outcome.status == 0 && outcome.err[0] == '\0' && !strstr(outcome.out, "FAIL") &&
                  strstr(outcome.out, "probs against reference: ") &&
                  strstr(outcome.out, "probs-mean against reference: ") &&
                  strstr(outcome.out, "lse against reference: "),
              "exit %d: %s%s", outcome.status, outcome.out, outcome.err);
    }
}

/* The keys that the layer adds count in the weights. */
static void added_keys(void)
{
    struct array probs;
    if (!check_case("cli/added keys"))
        return;
    cli_done(TORCH "--add-zero-attn --output a.npy --probs p.npy --window 0,0");
    float *p = cli_read("p.npy", &probs);
    if (!p)
        return;
    CHECK(probs.rank == 4 && probs.shape[3] == ROWS + 2, "the weights' shape");
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROWS + 2; j++) {
                float w = p[(h * ROWS + i) * (ROWS + 2) + j];
                CHECK(j == i || j >= ROWS ? w > 0 : w == 0, "weight %d %d %d is %g", h, i, j,
                      (double)w);
            }
    array_free(&probs);
}

/* Sequences of a packed input are layers of their own, each with positions from 0. */
static void packed(void)
{
    struct array whole, part;
    double rows[ROWS * WIDTH];
    if (!check_case("cli/packed layer"))
        return;
    float *q = cli_read("q2.npy", &whole);
    for (int n = 0; q && n < ROWS * WIDTH; n++)
        rows[n] = (double)q[n];
    array_free(&whole);
    cli_write("first.npy", ARRAY_F32, 2, (int64_t[]){2, WIDTH}, rows);
    cli_write("second.npy", ARRAY_F32, 2, (int64_t[]){3, WIDTH}, rows + 2 * WIDTH);
    cli_write("starts.npy", ARRAY_I64, 1, (int64_t[]){4}, (double[]){0, 2, 2, 5});
    cli_done(LAYER "--rope 1e4 --causal top-left --query-offsets starts.npy --output a.npy --lse "
                   "l.npy");
    float *all = cli_read("a.npy", &whole);
    for (int n = 0; all && n < 2; n++) {
        char words[256];
        snprintf(words, sizeof words,
                 "run --weights layer.safetensors --heads 4 --rope 1e4 --causal top-left --input "
                 "%s.npy --output b.npy",
                 n ? "second" : "first");
        cli_done(words);
        float *own = cli_read("b.npy", &part);
        if (own)
            check_bits(all + 2 * n * WIDTH, own, (2 + n) * WIDTH, "a packed sequence");
        array_free(&part);
    }
    array_free(&whole);
}

static void refusals(void)
{
    static const char *const table[][2] = {
        {LAYER "--output y.npy --positions own.npy", "--positions|--rope"},
        {LAYER "--output y.npy --rope-style half", "--rope-style|--rope"},
        {LAYER "--output y.npy --rope-scale 2", "--rope-scale|--rope"},
        {LAYER "--output y.npy --rope-size 4", "--rope-size|--rope"},
        {LAYER "--output y.npy --rope 1e4 --rope-size 10", "--rope-size|10|8"},
        {LAYER "--output y.npy --rope 1e4 --rope-size 3", "--rope-size|3|even"},
        {LAYER "--output y.npy --rope-table cos.npy", "--rope-table|COS.npy,SIN.npy"},
        {LAYER "--output y.npy --rope-table cos.npy,none.npy", "none.npy"},
        {LAYER "--output y.npy --rope-table cos1.npy,sin.npy", "--rope-table|rank 1"},
        {LAYER "--output y.npy --rope-table cos2.npy,sin2.npy", "--rope-table|2|4"},
        {LAYER "--output y.npy --rope-table cos.npy,sin5.npy", "--rope-table|6|5"},
        {LAYER "--output y.npy --rope-table own.npy,sin.npy", "--rope-table|i64"},
        {LAYER "--output y.npy --rope-table cos.npy,sin.npy --positions beyond.npy", "6"},
        {LAYER "--output y.npy --rope 1e4 --positions negative.npy", "-1"},
        {LAYER "--output y.npy --rope 1e4 --positions huge.npy", "--positions|4000000000"},
        {LAYER "--output y.npy --rope 1e4 --positions four.npy", "positions|4"},
        {LAYER "--output y.npy --rope 1e4 --positions cos.npy", "--positions|f32"},
        {LAYER "--output y.npy --rope 1e4 --causal -1", "-1"},
        {LAYER "--output y.npy --rope 1e4 --causal 9000000000000000000", "positions"},
        {LAYER "--output y.npy --qk-norm-eps 1e-6", "--qk-norm-eps|q_norm"},
        {LAYER "--output y.npy --query-offsets n3.npy", "--query-offsets"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (check_case("cli/refused/%s", table[i][0]))
            cli_refused(table[i][0], table[i][1]);
}

/* Files of a folder: weights and what its config.json says, against the same said by options. */
static void configs(void)
{
    static const struct {
        const char *config, *options;
    } table[] = {
        {"\"model_type\":\"llama\",\"rope_theta\":500", "--rope 500 "},
        {"\"model_type\":\"cohere\",\"rope_theta\":500", "--rope 500 --rope-style interleaved "},
        {"\"model_type\":\"mistral\",\"sliding_window\":3", "--rope 1e4 --window 2,-1 "},
        {"\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":16,\"sliding_window\":2",
         "--rope 1e4 --window 1,-1 --scale 0.25 --softcap 50 "},
        {"\"model_type\":\"granite\",\"attention_multiplier\":0.125,\"rope_scaling\":{\"type\":"
         "\"linear\",\"factor\":4}",
         "--rope 1e4 --rope-scale 4 --scale 0.125 "},
        {"\"model_type\":\"phi\",\"partial_rotary_factor\":0.5", "--rope 1e4 --rope-size 4 "},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char config[512], words[512];
        struct outcome outcome;
        if (!check_case("cli/config/%s", table[i].config))
            continue;
        snprintf(config, sizeof config, "{\"num_attention_heads\":4,%s}", table[i].config);
        cli_done("run --weights layer.safetensors --input q2.npy --heads 4 --output a.npy");
        snprintf(words, sizeof words, "%s%s--causal top-left --output a.npy", LAYER,
                 table[i].options);
        cli_done(words);
        file_write(folder_path("config.json"), config, strlen(config));
        cli_done("run --weights layer.safetensors --input q2.npy --causal top-left --output b.npy");
        cli_run("run --weights layer.safetensors --input q2.npy --output y.npy", &outcome);
        CHECK(outcome.status == 0 && strstr(outcome.err, "headway: note: ") &&
                  strstr(outcome.err, "--causal"),
              "a decoder without --causal: exit %d: %s", outcome.status, outcome.err);
        remove(folder_path("config.json"));
        remove(folder_path("y.npy"));
        cli_same("a.npy", "b.npy");
    }
}

/* Tables of dynamic scaling reach to the run's largest position and no further: with few rows they
 * are the plain ones. */
static void longest(void)
{
    static const char config[] =
        "{\"num_attention_heads\":4,\"model_type\":\"llama\",\"max_position_embeddings\":5,"
        "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}";
    if (!check_case("cli/dynamic scaling"))
        return;
    cli_done(LAYER "--rope 1e4 --causal top-left --output a.npy");
    cli_done(LAYER "--rope 1e4 --causal top-left --positions later.npy --output c.npy");
    file_write(folder_path("config.json"), config, strlen(config));
    cli_done(LAYER "--causal top-left --output b.npy");
    cli_same("a.npy", "b.npy");
    cli_done(LAYER "--causal top-left --positions later.npy --output b.npy");
    remove(folder_path("config.json"));
    struct array plain, grown;
    float *x = cli_read("c.npy", &plain), *y = cli_read("b.npy", &grown), most = 0;
    for (int n = 0; x && y && n < ROWS * WIDTH; n++)
        most = fmaxf(most, fabsf(x[n] - y[n]));
    CHECK(most > 1e-4f, "positions up to 6 change nothing: %g", (double)most);
    array_free(&plain);
    array_free(&grown);
}

void check_cli_layers(void)
{
    write_weights();
    write_files();
    same_meaning();
    different_meaning();
    checks();
    added_keys();
    packed();
    refusals();
    configs();
    longest();
}
