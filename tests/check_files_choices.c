#define _XOPEN_SOURCE 700

#include "check_files.h"

#include <locale.h>
#include <strings.h>
#include <unistd.h>

/* Four square maps of width 12 called as Llama's or as `stems` says, below prefix. */
static void add_module(struct maker *m, const char *prefix, const char *const *stems)
{
    static const char *const llama[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    char name[128];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s.weight", prefix, (stems ? stems : llama)[i]);
        maker_matrix(m, name, 12, 12);
    }
}

/* Loads and gives the module's name, or the error with "! " in front. */
static const char *outcome(const char *path, const char *layer, int64_t heads)
{
    static char text[ERROR_SIZE + 8];
    char error[ERROR_SIZE] = "";
    struct layer loaded;
    struct layer_request request = {0};
    request.path = files_path(path);
    request.layer = layer;
    request.heads = heads;
    if (layer_load(&request, &loaded, error) == 0) {
        snprintf(text, sizeof text, "%s", loaded.name);
        layer_free(&loaded);
    } else {
        CHECK(!strchr(error, '\n'), "the error has several lines: %s", error);
        snprintf(text, sizeof text, "! %s", error);
    }
    return text;
}

static void check_chosen(const char *path, const char *layer, const char *expected)
{
    if (check_case("choice/%s --layer %s", path, layer ? layer : "(none)")) {
        const char *got = outcome(path, layer, 3);
        if (expected[0] == '!') {
            CHECK(got[0] == '!', "%s was chosen", got);
            files_check_error(got, expected + 1);
        } else {
            CHECK(strcmp(got, expected) == 0, "'%s' was chosen, expected '%s'", got, expected);
        }
    }
}

static void check_layers(void)
{
    static const char *const bart[] = {"q_proj", "k_proj", "v_proj", "out_proj"};
    struct maker *m = malloc(sizeof *m);
    char prefix[64];
    maker_start(m);
    for (int i = 0; i < 12; i++) {
        snprintf(prefix, sizeof prefix, "model.layers.%d.self_attn.", i);
        add_module(m, prefix, NULL);
    }
    maker_write(m, "many.safetensors", 0);
    check_chosen("many.safetensors", "2", "model.layers.2.self_attn");
    check_chosen("many.safetensors", "10", "model.layers.10.self_attn");
    check_chosen("many.safetensors", "11", "model.layers.11.self_attn");
    check_chosen("many.safetensors", "12", "!--layer 12|below 12");
    check_chosen("many.safetensors", "99999999999999999999999", "!below 12");
    check_chosen("many.safetensors", "model.layers.1", "model.layers.1.self_attn");
    check_chosen("many.safetensors", "model.layers.1.self_attn", "model.layers.1.self_attn");
    check_chosen("many.safetensors", "model.layers.1.self_attn.q_proj", "!no attention module");
    check_chosen("many.safetensors", "model.layers.1.self", "!no attention module");
    check_chosen("many.safetensors", "model", "!several|model.layers.2.self_attn, model.layers.3");
    check_chosen("many.safetensors", NULL, "!several|--layer");
    check_chosen("many.safetensors", "-1", "!no attention module");
    maker_start(m);
    add_module(m, "decoder.layers.0.self_attn.", bart);
    add_module(m, "decoder.layers.0.encoder_attn.", bart);
    add_module(m, "encoder.layers.0.self_attn.", bart);
    maker_write(m, "both.safetensors", 0);
    check_chosen("both.safetensors", "decoder",
                 "!decoder.layers.0.encoder_attn, decoder.layers.0.self");
    check_chosen("both.safetensors", "encoder", "encoder.layers.0.self_attn");
    check_chosen("both.safetensors", "decoder.layers.0.encoder_attn",
                 "decoder.layers.0.encoder_attn");
    maker_start(m);
    maker_matrix(m, "linear.weight", 3, 3);
    maker_write(m, "nothing.safetensors", 0);
    check_chosen("nothing.safetensors", NULL, "!no attention module");
    check_chosen("nothing.safetensors", "0", "!no attention module");
    free(m);
}

/* A Llama-like module with one more tensor in the file. */
static void check_beside(const char *extra, const char *type, int rank, const char *words)
{
    struct maker *m = malloc(sizeof *m);
    if (check_case("beside/%s %s rank %d", extra, type, rank)) {
        maker_start(m);
        maker_add(m, extra, type, rank, 2, 2, 2, 2);
        add_module(m, "model.layers.0.self_attn.", NULL);
        maker_write(m, "beside.safetensors", 0);
        const char *got = outcome("beside.safetensors", NULL, 3);
        if (words) {
            CHECK(got[0] == '!', "was loaded");
            files_check_error(got, words);
            CHECK(strstr(got, "not in this version"), "%s", got);
        } else {
            CHECK(got[0] != '!', "%s", got);
        }
    }
    free(m);
}

static void check_others(void)
{
    static const char *const t5[] = {"q", "k", "v", "o"};
    struct maker *m = malloc(sizeof *m);
    /* Two elements, which are neither a head's four channels nor one for each of three heads. */
    check_beside("model.layers.0.self_attn.q_norm.weight", "F32", 1, "q_norm|(2,)|4");
    check_beside("model.layers.0.self_attn.k_norm.weight", "BF16", 1, "k_norm|(2,)|4");
    check_beside("model.layers.0.self_attn.sinks", "F32", 1, "sinks|(2,)|3");
    check_beside("model.layers.0.self_attn.q_norm.bias", "F32", 1, "q_norm.bias");
    check_beside("model.layers.0.self_attn.q_layernorm.weight", "F32", 1, "q_layernorm");
    check_beside("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 1, "RoPE");
    check_beside("model.layers.0.self_attn.relative_position_bias_table", "F32", 2,
                 "relative position");
    check_beside("model.layers.0.self_attn.q_proj.lora_A.weight", "F32", 2, "lora_A");
    check_beside("model.layers.0.self_attn.anything.weight", "F32", 2, "anything");
    check_beside("relative_attention_bias.weight", "F32", 2, "relative position");
    check_beside("model.relative_position_bias.table", "F32", 2, "relative position");
    check_beside("model.layers.1.self_attn.q_norm.weight", "F32", 1, NULL);
    check_beside("model.layers.0.mlp.up_proj.weight", "F32", 2, NULL);
    check_beside("model.layers.0.self_attn.bias", "F32", 4, NULL);
    check_beside("model.layers.0.self_attn.bias", "U8", 4, NULL);
    check_beside("model.layers.0.self_attn.bias", "F32", 1, "bias");
    check_beside("model.layers.0.self_attn.positions", "I64", 1, NULL);
    check_beside("model.embeddings.position_ids", "I64", 2, NULL);
    if (check_case("beside/T5's table of the first block serves all")) {
        maker_start(m);
        add_module(m, "encoder.block.0.layer.0.SelfAttention.", t5);
        add_module(m, "encoder.block.1.layer.0.SelfAttention.", t5);
        add_module(m, "decoder.block.1.layer.0.SelfAttention.", t5);
        add_module(m, "decoder.block.1.layer.1.EncDecAttention.", t5);
        maker_matrix(m, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 8,
                     3);
        maker_write(m, "t5.safetensors", 0);
        files_check_error(outcome("t5.safetensors", "encoder.block.0", 3),
                          "relative|not in this version");
        files_check_error(outcome("t5.safetensors", "encoder.block.1", 3),
                          "relative|not in this version");
        const char *got = outcome("t5.safetensors", "decoder.block.1.layer.0", 3);
        CHECK(got[0] != '!', "another stack: %s", got);
        got = outcome("t5.safetensors", "decoder.block.1.layer.1", 3);
        CHECK(got[0] != '!', "cross-attention: %s", got);
    }
    if (check_case("beside/at the root")) {
        maker_start(m);
        add_module(m, "", NULL);
        maker_matrix(m, "linear1.weight", 3, 3);
        maker_write(m, "root.safetensors", 0);
        const char *got = outcome("root.safetensors", NULL, 3);
        CHECK(got[0] == 0, "%s", got);
        maker_start(m);
        add_module(m, "", NULL);
        maker_vector(m, "q_norm.weight", 12);
        maker_write(m, "root.safetensors", 0);
        files_check_error(outcome("root.safetensors", NULL, 3), "q_norm|not in this version");
    }
    free(m);
}

static void check_bad_layer(const char *name, const char *stem, const char *type, int rank,
                            int64_t a, int64_t b, const char *words)
{
    static const char *const stems[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    struct maker *m = malloc(sizeof *m);
    char tensor[64];
    if (check_case("layer refused/%s", name)) {
        maker_start(m);
        for (int i = 0; i < 4; i++) {
            snprintf(tensor, sizeof tensor, "%s.weight", stems[i]);
            if (strcmp(tensor, stem) != 0) {
                maker_matrix(m, tensor, 12, 12);
            }
        }
        if (type) {
            maker_add(m, stem, type, rank, a, b, 1, 1);
        }
        maker_write(m, "bad.safetensors", 0);
        const char *got = outcome("bad.safetensors", NULL, 3);
        CHECK(got[0] == '!', "was loaded");
        files_check_error(got, words);
    }
    free(m);
}

static void check_sizes(const char *name, int64_t heads, int64_t kv, int64_t size,
                        int64_t value_size, const char *words)
{
    char error[ERROR_SIZE] = "";
    struct layer layer;
    struct layer_request request = {0};
    request.path = files_path("sizes.safetensors");
    request.heads = heads;
    request.kv_heads = kv;
    request.head_size = size;
    request.value_head_size = value_size;
    if (!check_case("sizes/%s", name)) {
        return;
    }
    int result = layer_load(&request, &layer, error);
    CHECK((result == 0) == !words, "%s", result ? error : "was loaded");
    if (result == 0) {
        CHECK(layer.config.heads == 6 && layer.config.kv_heads == 2 &&
                  layer.config.head_size == 4 && layer.config.value_head_size == 5,
              "%lld heads, %lld kv heads", (long long)layer.config.heads,
              (long long)layer.config.kv_heads);
        layer_free(&layer);
    } else if (words) {
        files_check_error(error, words);
    }
}

static void check_all_sizes(void)
{
    struct maker *m = malloc(sizeof *m);
    maker_start(m);
    maker_matrix(m, "q_proj.weight", 24, 7);
    maker_matrix(m, "k_proj.weight", 8, 9);
    maker_matrix(m, "v_proj.weight", 10, 11);
    maker_matrix(m, "o_proj.weight", 3, 30);
    maker_write(m, "sizes.safetensors", 0);
    check_sizes("heads alone", 6, 0, 0, 0, NULL);
    check_sizes("head size alone", 0, 0, 4, 0, NULL);
    check_sizes("all", 6, 2, 4, 5, NULL);
    check_sizes("none", 0, 0, 0, 0, "--heads");
    check_sizes("heads that don't divide", 5, 0, 0, 0, "24|5 heads");
    check_sizes("a size that doesn't divide", 0, 0, 5, 0, "24|not heads of 5");
    check_sizes("other heads", 12, 0, 0, 0, "");
    check_sizes("other kv heads", 6, 4, 0, 0, "k_proj");
    check_sizes("other size", 6, 0, 3, 0, "24|q_proj");
    check_sizes("other value size", 6, 0, 0, 4, "v_proj");
    check_sizes("negative", -6, 0, 0, 0, "-6");
    check_sizes("huge", INT64_MAX, 0, 0, 0, "9223372036854775807");
    check_sizes("huge size", 6, 0, INT64_MAX / 2, 0, "2^31");
    check_bad_layer("no key", "k_proj.weight", NULL, 0, 0, 0, "k_proj.weight|missing");
    check_bad_layer("no output", "o_proj.weight", NULL, 0, 0, 0, "o_proj.weight|missing");
    check_bad_layer("two outputs", "dense.weight", "F32", 2, 12, 12, "o_proj|dense");
    check_bad_layer("value of I8", "v_proj.weight", "I8", 2, 12, 12, "v_proj.weight|I8");
    check_bad_layer("query of rank 1", "q_proj.weight", "F32", 1, 12, 0, "q_proj.weight|rank");
    check_bad_layer("query of rank 3", "q_proj.weight", "F32", 3, 12, 12, "q_proj.weight|rank");
    check_bad_layer("empty query", "q_proj.weight", "F32", 2, 12, 0, "empty");
    check_bad_layer("bias too short", "q_proj.bias", "F32", 1, 11, 0, "q_proj.bias|12");
    check_bad_layer("bias of I64", "q_proj.bias", "I64", 1, 12, 0, "q_proj.bias|I64");
    check_bad_layer("output too narrow", "o_proj.weight", "F32", 2, 12, 9, "o_proj|9");
    free(m);
}

static void check_types(void)
{
    static const char *const types[] = {"F32", "F16", "BF16", "F64"};
    struct maker *m = malloc(sizeof *m);
    for (int i = 0; i < 4; i++) {
        struct layer layer;
        char error[ERROR_SIZE];
        struct layer_request request = {0};
        if (!check_case("layer/of %s", types[i])) {
            continue;
        }
        maker_start(m);
        maker_add(m, "q_proj.weight", types[i], 2, 4, 4, 0, 0);
        maker_add(m, "k_proj.weight", types[i], 2, 4, 4, 0, 0);
        maker_add(m, "v_proj.weight", types[i], 2, 4, 4, 0, 0);
        maker_add(m, "o_proj.weight", types[i], 2, 4, 4, 0, 0);
        maker_vector(m, "q_proj.bias", 4);
        maker_write(m, "typed.safetensors", i);
        request.path = files_path("typed.safetensors");
        request.heads = 2;
        CHECK(layer_load(&request, &layer, error) == 0, "%s", error);
        if (layer.memory) {
            const float *query = layer.weights.query->data;
            const float *key = layer.weights.key->data;
            CHECK(strcasecmp(array_type_name(layer.stored), types[i]) == 0, "stored as %s",
                  array_type_name(layer.stored));
            CHECK(query[15] == 15 && key[0] == 4096, "%g %g", (double)query[15], (double)key[0]);
            layer_free(&layer);
        }
    }
    free(m);
}

static void check_models(void)
{
    static const struct {
        const char *model, *layer, *name;
        int heads;
    } table[] = {
        {"bert", "encoder.layer.0", "encoder.layer.0.attention", 5},
        {"bert", "1", "encoder.layer.1.attention", 5},
        {"gpt2", "transformer.h.1", "transformer.h.1.attn", 7},
        {"torch-mha", "0", "layers.0.self_attn", 0},
        {"llama-gqa-rope", "1", "model.layers.1.self_attn", 4},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char path[1024];
        char error[ERROR_SIZE];
        struct layer layer;
        struct layer_request request = {0};
        if (!check_case("models/%s %s", table[i].model, table[i].layer)) {
            continue;
        }
        snprintf(path, sizeof path, "%s/models/%s", HEADWAY_TEST_DATA, table[i].model);
        request.path = path;
        request.layer = table[i].layer;
        request.heads = strcmp(table[i].model, "torch-mha") == 0 ? 3 : 0;
        CHECK(layer_load(&request, &layer, error) == 0, "%s", error);
        CHECK(strcmp(layer.name, table[i].name) == 0, "%s", layer.name);
        CHECK(table[i].heads == 0 || layer.config.heads == table[i].heads, "%lld heads",
              (long long)layer.config.heads);
        int rotates = strcmp(table[i].model, "llama-gqa-rope") == 0;
        CHECK(layer.is_decoder == (rotates || strcmp(table[i].model, "gpt2") == 0), "is_decoder %d",
              layer.is_decoder);
        CHECK(rotates == (layer.config.rope != NULL), "RoPE");
        CHECK(!rotates || (layer.rope.theta == 50000 && layer.rope.style == HEADWAY_ROPE_HALF &&
                           layer.rope.rotary_size == 10),
              "theta %g, size %lld", layer.rope.theta, (long long)layer.rope.rotary_size);
        layer_free(&layer);
    }
}

void check_choices(void)
{
    check_layers();
    check_others();
    check_all_sizes();
    check_types();
    check_models();
}

/* A folder with a module of width 12 below prefix and this config.json. */
static void make_model(const char *prefix, const char *const *stems, const char *config)
{
    struct maker *m = malloc(sizeof *m);
    char name[128];
    files_empty("model");
    maker_start(m);
    add_module(m, prefix, stems);
    snprintf(name, sizeof name, "%sunused.ids", prefix);
    maker_add(m, name, "I64", 1, 2, 0, 0, 0);
    maker_write(m, "model/model.safetensors", 0);
    files_write("model/config.json", config, strlen(config));
    free(m);
}

/* scale 0: none of the model's own. words: a refusal. */
static void check_one_config(const char *prefix, const char *const *stems, const char *config,
                             int64_t heads, double scale, int decoder, const char *words)
{
    char error[ERROR_SIZE] = "";
    struct layer layer;
    struct layer_request request = {0};
    if (!check_case("config/%s %s", prefix, config)) {
        return;
    }
    make_model(prefix, stems, config);
    request.path = files_path("model");
    int result = layer_load(&request, &layer, error);
    CHECK((result == 0) == !words, "%s", result ? error : "was loaded");
    if (result == 0) {
        CHECK(layer.config.heads == heads, "%lld heads", (long long)layer.config.heads);
        CHECK(layer.has_scale == (scale != 0) && layer.scale == (float)scale, "scale %d %g",
              layer.has_scale, (double)layer.scale);
        CHECK(layer.is_decoder == decoder, "is_decoder %d", layer.is_decoder);
        layer_free(&layer);
    } else if (words) {
        files_check_error(error, words);
    }
}

static const char *const bert[] = {"self.query", "self.key", "self.value", "output.dense"};
static const char *const bart[] = {"q_proj", "k_proj", "v_proj", "out_proj"};
static const char *const t5[] = {"q", "k", "v", "o"};
static const char *const distil[] = {"q_lin", "k_lin", "v_lin", "out_lin"};
static const char *const llama[] = {"q_proj", "k_proj", "v_proj", "o_proj"};

static void check_counts(void)
{
    const char *enc = "model.encoder.layers.0.self_attn.";
    const char *dec = "model.decoder.layers.0.self_attn.";
    const char *cross = "model.decoder.layers.0.encoder_attn.";
    const char *sides = "{\"model_type\":\"bart\",\"is_encoder_decoder\":true,"
                        "\"encoder_attention_heads\":4,\"decoder_attention_heads\":6}";
    const char *clip =
        "{\"text_config\":{\"model_type\":\"clip_text_model\",\"num_attention_heads\":2},"
        "\"vision_config\":{\"model_type\":\"clip_vision_model\","
        "\"num_attention_heads\":3},\"model_type\":\"clip\"}";
    const char *pair = "{\"model_type\":\"encoder-decoder\",\"encoder\":{\"model_type\":\"bert\","
                       "\"num_attention_heads\":3},\"decoder\":{\"model_type\":\"bert\","
                       "\"num_attention_heads\":4,\"is_decoder\":true}}";
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":3,\"hidden_size\":12}", 3, 0,
                     0, NULL);
    check_one_config("a.0.attention.", distil, "{\"n_heads\":2,\"model_type\":\"distilbert\"}", 2,
                     0, 0, NULL);
    check_one_config(enc, bart, sides, 4, 0, 0, NULL);
    check_one_config(dec, bart, sides, 6, 0, 1, NULL);
    check_one_config(cross, bart, sides, 6, 0, 0, NULL);
    check_one_config("text_model.encoder.layers.0.self_attn.", bart, clip, 2, 0, 1, NULL);
    check_one_config("vision_model.encoder.layers.0.self_attn.", bart, clip, 3, 0, 0, NULL);
    check_one_config("layers.0.self_attn.", bart, clip, 0, 0, 0, "text_config|vision_config");
    check_one_config("encoder.encoder.layer.0.attention.", bert, pair, 3, 0, 0, NULL);
    check_one_config("decoder.bert.encoder.layer.0.attention.", bert, pair, 4, 0, 1, NULL);
    check_one_config("decoder.bert.encoder.layer.0.crossattention.", bert, pair, 4, 0, 0, NULL);
    check_one_config("visual.blocks.0.attention.", bert,
                     "{\"num_attention_heads\":4,\"vision_config\":{\"num_heads\":2}}", 2, 0, 0,
                     NULL);
    check_one_config("h.0.self_attn.", bart, "{\"only_config\":{\"num_heads\":6}}", 6, 0, 0, NULL);
    check_one_config("h.0.self_attn.", bart, "{\"self_attn\":{\"x\":{}},\"n_head\":6}", 6, 0, 0,
                     NULL);
    check_one_config("a.0.attention.", bert, "{}", 0, 0, 0, "--heads");
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":null}", 0, 0, 0, "--heads");
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":\"3\"}", 0, 0, 0,
                     "not a count");
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":3.5}", 0, 0, 0,
                     "not a count");
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":0}", 0, 0, 0, "not a count");
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":1e300}", 0, 0, 0,
                     "not a count");
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":5}", 0, 0, 0, "5 heads");
    check_one_config("a.0.attention.", bert, "{\"num_attention_heads\":3,", 0, 0, 0,
                     "config.json|byte");
    check_one_config("a.0.attention.", bert, "", 0, 0, 0, "config.json");
    check_one_config("a.0.attention.", bert, "{\"n_head\":3,\"n_head\":4}", 0, 0, 0,
                     "n_head|twice");
}

static void check_scales(void)
{
    const char *self = "layers.3.self_attn.";
    check_one_config(self, llama, "{\"num_heads\":3,\"attention_multiplier\":0.015625}", 3,
                     0.015625, 0, NULL);
    check_one_config(self, llama, "{\"num_heads\":3,\"query_pre_attn_scalar\":16}", 3, 0.25, 0,
                     NULL);
    check_one_config(self, llama, "{\"num_heads\":3,\"query_pre_attn_scalar\":0}", 0, 0, 0,
                     "query_pre");
    check_one_config(self, llama, "{\"num_heads\":3,\"attention_multiplier\":\"a\"}", 0, 0, 0,
                     "attention_multiplier");
    check_one_config("h.3.attn.", llama, "{\"num_heads\":3,\"scale_attn_weights\":false}", 3, 1, 0,
                     NULL);
    check_one_config("h.3.attn.", llama,
                     "{\"num_heads\":3,\"scale_attn_by_inverse_layer_idx\":true}", 3, 0.125, 0,
                     NULL);
    check_one_config(
        "h.0.attn.attention.", bart,
        "{\"model_type\":\"gpt_neo\",\"num_heads\":3,\"attention_layers\":[\"global\"]}", 3, 1, 1,
        NULL);
    check_one_config("decoder.block.0.layer.1.EncDecAttention.", t5,
                     "{\"model_type\":\"t5\",\"num_heads\":3,\"d_kv\":4,"
                     "\"relative_attention_num_buckets\":32}",
                     3, 1, 0, NULL);
    check_one_config("decoder.block.0.layer.0.SelfAttention.", t5,
                     "{\"model_type\":\"t5\",\"num_heads\":3,\"d_kv\":4,"
                     "\"relative_attention_num_buckets\":32}",
                     0, 0, 0, "relative position bias");
    if (check_case("config/GPT-Neo's names without a config.json")) {
        make_model("h.0.attn.attention.", bart, "{}");
        unlink(files_path("model/config.json"));
        files_check_error(outcome("model", NULL, 3), "GPT-Neo|--scale");
    }
}

static const struct {
    const char *fields, *words;
} not_computed[] = {
    {"\"rope_theta\":10000.0", "RoPE|--rope-style"},
    {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2.0}", "RoPE|rope_scaling"},
    {"\"rotary_pct\":0.25", "RoPE|rotary_pct"},
    {"\"rotary_dim\":64", "RoPE"},
    {"\"partial_rotary_factor\":0.5", "RoPE"},
    {"\"model_type\":\"falcon\"", "RoPE|falcon"},
    {"\"model_type\":\"llama4_text\"", "RoPE|chunked"},
    {"\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"new\",\"factor\":2.0}", "new"},
    {"\"model_type\":\"qwen2\",\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[1,2,3]"
     "}",
     "MRoPE"},
    {"\"model_type\":\"pixtral\",\"rope_theta\":1e4", "two dimensions"},
    {"\"model_type\":\"codegen\"", "order of rows"},
    {"\"model_type\":\"gpt_bigcode\",\"multi_query\":false", "order of rows"},
    {"\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":512", "latent attention"},
    {"\"model_type\":\"llama\",\"sliding_window\":128", "sliding window"},
    {"\"model_type\":\"qwen3_moe\",\"sliding_window\":128,\"use_sliding_window\":true",
     "sliding window"},
    {"\"model_type\":\"gemma3_text\",\"sliding_window\":128,"
     "\"use_bidirectional_attention\":true",
     "window to both sides"},
    {"\"position_embedding_type\":\"rotary\"", "RoPE"},
    {"\"position_embedding_type\":\"relative_key_query\"", "relative position bias"},
    {"\"position_embedding_type\":\"alibi\"", "ALiBi"},
    {"\"position_embedding_type\":\"new\"", "position embedding|new"},
    {"\"alibi\":true", "ALiBi"},
    {"\"model_type\":\"falcon\",\"alibi\":true", "ALiBi|falcon"},
    {"\"sliding_window\":128", "sliding window"},
    {"\"layer_types\":[\"full_attention\",\"sliding_attention\"]", "sliding window"},
    {"\"layer_types\":[\"full_attention\",\"linear_attention\"]", "linear_attention"},
    {"\"use_qk_norm\":true", "q_norm"},
    {"\"clip_qkv\":8.0", "clip"},
    {"\"model_type\":\"mpt\",\"attn_config\":{\"clip_qkv\":6}", "clip"},
    {"\"attention_type\":\"block_sparse\"", "block-sparse"},
    {"\"has_relative_attention_bias\":true", "relative position bias"},
    {"\"model_type\":\"longformer\"", "sliding window"},
    {"\"model_type\":\"modernbert\",\"global_rope_theta\":1e5,\"local_attention\":128",
     "RoPE|sliding window"},
    {"\"model_type\":\"roformer\",\"rotary_value\":true", "RoPE of values"},
};

static const char *const wrong_configs[][2] = {
    {"\"model_type\":\"qwen3\"", "q_norm.weight is missing"},
    {"\"model_type\":\"gpt_oss\"", "sinks is missing"},
    {"\"model_type\":\"llama\",\"rope_theta\":0", "rope_theta|positive"},
    {"\"model_type\":\"llama\",\"rope_theta\":\"a\"", "rope_theta|number"},
    {"\"model_type\":\"llama\",\"rope_scaling\":{\"factor\":2}", "factor|no type"},
    {"\"model_type\":\"gptj\",\"rotary_dim\":5", "rope-size|5"},
    {"\"model_type\":\"gptj\",\"rotary_dim\":6", "rope-size|6|4"},
    {"\"model_type\":\"phi\",\"partial_rotary_factor\":0.25", "rope-size|1"},
    {"\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"longrope\"}", "short_factor"},
    {"\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1],"
     "\"long_factor\":[1,1,1]}",
     "short_factor|3|2"},
    {"\"model_type\":\"mistral\",\"sliding_window\":-1", "sliding_window|count"},
    {"\"attn_logit_softcapping\":-1", "attn_logit_softcapping|negative"},
};

static const char *const fine_configs[] = {
    "\"position_embedding_type\":\"absolute\"",
    "\"sliding_window\":null,\"attn_logit_softcapping\":null,\"rope_scaling\":null",
    "\"sliding_window\":128,\"use_sliding_window\":false",
    "\"sliding_window\":128,\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
    "\"attention_type\":\"original_full\",\"alibi\":false,\"use_qk_norm\":false",
    "\"model_type\":\"opt2\",\"final_logit_softcapping\":30,\"max_position_embeddings\":64",
};

static void check_refusals(void)
{
    char config[512];
    for (size_t i = 0; i < sizeof not_computed / sizeof not_computed[0]; i++) {
        snprintf(config, sizeof config, "{\"num_heads\":3,%s}", not_computed[i].fields);
        check_one_config("layers.1.self_attn.", llama, config, 0, 0, 0, not_computed[i].words);
    }
    for (size_t i = 0; i < sizeof wrong_configs / sizeof wrong_configs[0]; i++) {
        snprintf(config, sizeof config, "{\"num_heads\":3,%s}", wrong_configs[i][0]);
        check_one_config("layers.1.self_attn.", llama, config, 0, 0, 0, wrong_configs[i][1]);
    }
    for (size_t i = 0; i < sizeof fine_configs / sizeof fine_configs[0]; i++) {
        snprintf(config, sizeof config, "{\"num_heads\":3,%s}", fine_configs[i]);
        check_one_config("layers.1.self_attn.", llama, config, 3, 0, 0, NULL);
    }
    check_one_config("layers.1.self_attn.", llama,
                     "{\"num_heads\":3,\"architectures\":[\"OtherForCausalLM\"]}", 3, 0, 1, NULL);
}

/* The command line wins, and what config.json says of another split of the rows is left aside. */
static void check_flags_win(void)
{
    char error[ERROR_SIZE] = "";
    struct layer layer;
    struct layer_request request = {0};
    if (!check_case("config/flags win")) {
        return;
    }
    make_model(
        "layers.0.self_attn.", llama,
        "{\"num_heads\":3,\"num_key_value_heads\":3,\"head_dim\":4,\"attention_multiplier\":2}");
    request.path = files_path("model");
    request.heads = 6;
    CHECK(layer_load(&request, &layer, error) == 0, "%s", error);
    CHECK(layer.config.heads == 6 && layer.config.kv_heads == 6 && layer.config.head_size == 2,
          "%lld heads", (long long)layer.config.heads);
    CHECK(layer.has_scale && layer.scale == 2, "scale %g", (double)layer.scale);
    layer_free(&layer);
    request.has_scale = 1;
    CHECK(layer_load(&request, &layer, error) == 0, "%s", error);
    CHECK(!layer.has_scale, "the model's scale is kept");
    layer_free(&layer);
    request.path = files_path("model/model.safetensors");
    request.heads = 0;
    CHECK(layer_load(&request, &layer, error) == 0, "the config.json beside a file: %s", error);
    CHECK(layer.config.heads == 3, "%lld heads", (long long)layer.config.heads);
    layer_free(&layer);
}

void check_config(void)
{
    check_counts();
    check_scales();
    check_refusals();
    check_flags_win();
}

/* A locale with a decimal comma and grouping, made here when the machine has none. */
static const char *german_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE"};
    char command[1400];
    for (int made = 0; made < 2; made++) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (setlocale(LC_ALL, names[i])) {
                return names[i];
            }
        }
        files_folder("locale");
        snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s' >/dev/null 2>&1",
                 files_path("locale/de_DE.UTF-8"));
        if (made == 0 && system(command) != 0) {
            return NULL;
        }
        setenv("LOCPATH", files_path("locale"), 1);
    }
    return NULL;
}

void check_locale(void)
{
    char error[ERROR_SIZE] = "";
    size_t count = 0;
    if (!check_case("locale/decimal comma")) {
        return;
    }
    if (!german_locale() || strcmp(localeconv()->decimal_point, ",") != 0) {
        check_skip("locale/decimal comma", "no de_DE locale, and localedef can't make one");
        return;
    }
    int64_t shape[] = {2621, 401};
    struct array array;
    struct array back;
    CHECK(array_make(&array, ARRAY_I8, 2, shape, error) == 0, "%s", error);
    struct npy_output output = {files_path("german.npy"), &array};
    CHECK(npy_write_all(&output, 1, error) == 0, "%s", error);
    char *bytes = files_read("german.npy", &count);
    CHECK(strstr(bytes + 10, "'shape': (2621, 401), }"), "the header is %.100s", bytes + 10);
    CHECK(npy_read(files_path("german.npy"), &back, error) == 0, "%s", error);
    array_free(&back);
    array_free(&array);
    free(bytes);
    check_one_config("layers.0.self_attn.", llama,
                     "{\"num_heads\":3,\"attention_multiplier\":0.125,\"x\":[1.5,2.25]}", 3, 0.125,
                     0, NULL);
    CHECK(strcmp(localeconv()->decimal_point, ",") == 0, "the locale was changed");
    setlocale(LC_ALL, "C");
}
