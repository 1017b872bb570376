/* What a family's config.json makes of a layer: RoPE, window, softcap, scale, slopes, norms, sinks;
 * and what the command line makes of that. Expected values are those of the families' own codes. */
#define _XOPEN_SOURCE 700

#include "check_files.h"

#include <math.h>
#include <unistd.h>

/* Heads 2, head size 8, a module called `module` in a model folder; extra tensors by name: norms of
 * 8, sinks of 2. */
static void make(const char *module, const char *config, const char *const *extras)
{
    static const char *const stems[2][4] = {
        {"q_proj", "k_proj", "v_proj", "o_proj"},
        {"self.query", "self.key", "self.value", "output.dense"},
    };
    struct maker *m = malloc(sizeof *m);
    char name[128];
    files_empty("meaning");
    maker_start(m);
    int mpt = strstr(module, ".attn") != NULL && strstr(config, "\"mpt\"") != NULL;
    int bloom = strstr(module, "self_attention") != NULL;
    int bert = strstr(module, ".attention") != NULL;
    if (mpt || bloom) {
        snprintf(name, sizeof name, "%s.%s.weight", module, mpt ? "Wqkv" : "query_key_value");
        maker_matrix(m, name, 48, 16);
        snprintf(name, sizeof name, "%s.%s.weight", module, mpt ? "out_proj" : "dense");
        maker_matrix(m, name, 16, 16);
    }
    for (int i = 0; !mpt && !bloom && i < 4; i++) {
        snprintf(name, sizeof name, "%s.%s.weight", module, stems[bert][i]);
        maker_matrix(m, name, 16, 16);
    }
    for (; extras && *extras; extras++) {
        snprintf(name, sizeof name, "%s.%s", module, *extras);
        maker_vector(m, name, strcmp(*extras, "sinks") == 0 ? 2 : 8);
    }
    maker_write(m, "meaning/model.safetensors", 0);
    files_write("meaning/config.json", config, strlen(config));
    free(m);
}

/* The folder, for as long as the program runs. */
static const char *folder(void)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s", files_path("meaning"));
    return path;
}

static const char *kind_text(headway_rope_scaling scaling)
{
    static const char *const names[] = {"plain", "linear", "dynamic", "llama3", "yarn", "longrope"};
    return names[scaling];
}

/* "half 8 theta 10000 plain; window 4; cap 50; scale 0.25; eps 1e-05 +1; slopes 0.0625 0.00390625;
 * sinks", each part only where it says something. */
static const char *describe(const struct layer *layer, int plus_one)
{
    static char text[512];
    size_t used = 0;
#define SAY(...) used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__)
    text[0] = 0;
    if (layer->config.rope) {
        const headway_rope_config *r = layer->config.rope;
        SAY("%s %lld theta %g %s", r->style == HEADWAY_ROPE_HALF ? "half" : "interleaved",
            (long long)r->rotary_size, r->theta, kind_text(r->scaling));
        if (r->scaling != HEADWAY_ROPE_PLAIN)
            SAY(" %g/%lld", r->factor, (long long)r->original_positions);
        SAY(";");
    }
    if (layer->window_left >= 0)
        SAY(" left %lld;", (long long)layer->window_left);
    if (layer->softcap != 0)
        SAY(" cap %g;", (double)layer->softcap);
    if (layer->has_scale)
        SAY(" scale %g;", (double)layer->scale);
    if (layer->weights.query_norm)
        SAY(" eps %g%s;", (double)layer->config.norm_eps, plus_one ? " +1" : "");
    if (layer->slopes)
        SAY(" slopes %g %g;", (double)layer->slopes[0], (double)layer->slopes[1]);
    if (layer->sinks)
        SAY(" sinks;");
#undef SAY
    return text + (text[0] == ' ');
}

static const char *const norms[] = {"q_norm.weight", "k_norm.weight", NULL};
static const char *const sinks[] = {"sinks", NULL};
static const char *const frequencies[] = {"rotary_emb.inv_freq", NULL};

static const struct {
    const char *fields; /* of config.json, beside the heads */
    int index;          /* of the layer */
    const char *const *extras;
    const char *expected;
} models[] = {
    {"'model_type':'llama'", 0, NULL, "half 8 theta 10000 plain;"},
    {"'model_type':'llama','rope_theta':500000", 0, frequencies, "half 8 theta 500000 plain;"},
    {"'model_type':'llama','rope_theta':5e5,'max_position_embeddings':131072,'rope_scaling':"
     "{'rope_type':'llama3','factor':8,'low_freq_factor':1,'high_freq_factor':4,"
     "'original_max_position_embeddings':8192}",
     0, NULL, "half 8 theta 500000 llama3 8/8192;"},
    {"'model_type':'llama','rope_parameters':{'rope_theta':7e4,'rope_type':'linear','factor':4}", 0,
     NULL, "half 8 theta 70000 linear 4/0;"},
    {"'model_type':'llama','max_position_embeddings':2048,'rope_scaling':{'type':'dynamic',"
     "'factor':2,'original_max_position_embeddings':77}",
     0, NULL, "half 8 theta 10000 dynamic 2/2048;"},
    {"'model_type':'qwen2','rope_theta':1e6,'max_position_embeddings':32768,'rope_scaling':"
     "{'type':'yarn','factor':4,'original_max_position_embeddings':8192}",
     0, NULL, "half 8 theta 1e+06 yarn 4/8192;"},
    {"'model_type':'phi3','max_position_embeddings':131072,"
     "'original_max_position_embeddings':4096,'partial_rotary_factor':0.75,'rope_scaling':"
     "{'type':'longrope','short_factor':[1,2,3],'long_factor':[4,5,6]}",
     0, NULL, "half 6 theta 10000 longrope 32/4096;"},
    {"'model_type':'phi3','sliding_window':2047,'rope_scaling':null", 0, NULL,
     "half 8 theta 10000 plain; left 2046;"},
    {"'model_type':'mistral','sliding_window':4096", 3, NULL,
     "half 8 theta 10000 plain; left 4095;"},
    {"'model_type':'mistral','sliding_window':null", 3, NULL, "half 8 theta 10000 plain;"},
    {"'model_type':'qwen2','sliding_window':100", 30, NULL, "half 8 theta 10000 plain;"},
    {"'model_type':'qwen2','sliding_window':100,'use_sliding_window':true,'max_window_layers':2", 1,
     NULL, "half 8 theta 10000 plain;"},
    {"'model_type':'qwen2','sliding_window':100,'use_sliding_window':true,'max_window_layers':2", 2,
     NULL, "half 8 theta 10000 plain; left 99;"},
    {"'model_type':'qwen3','rope_theta':1000000,'rms_norm_eps':1e-6", 0, norms,
     "half 8 theta 1e+06 plain; eps 1e-06;"},
    {"'model_type':'gemma2','query_pre_attn_scalar':16,'attn_logit_softcapping':50.0,"
     "'sliding_window':4096",
     0, NULL, "half 8 theta 10000 plain; left 4095; cap 50; scale 0.25;"},
    {"'model_type':'gemma2','query_pre_attn_scalar':16,'attn_logit_softcapping':null,"
     "'sliding_window':4096",
     1, NULL, "half 8 theta 10000 plain; scale 0.25;"},
    {"'model_type':'gemma3_text','query_pre_attn_scalar':16,'rms_norm_eps':1e-5,"
     "'rope_theta':1e6,'rope_local_base_freq':1e4,'sliding_window':512,"
     "'sliding_window_pattern':3,'rope_scaling':{'rope_type':'linear','factor':8}",
     1, norms, "half 8 theta 10000 plain; left 511; scale 0.25; eps 1e-05 +1;"},
    {"'model_type':'gemma3_text','query_pre_attn_scalar':16,'rms_norm_eps':1e-5,"
     "'rope_theta':1e6,'rope_local_base_freq':1e4,'sliding_window':512,"
     "'sliding_window_pattern':3,'rope_scaling':{'rope_type':'linear','factor':8}",
     2, norms, "half 8 theta 1e+06 linear 8/0; scale 0.25; eps 1e-05 +1;"},
    {"'model_type':'gemma3_text','rms_norm_eps':1e-5,'sliding_window':512,'layer_types':"
     "['sliding_attention','full_attention'],'rope_parameters':{'sliding_attention':"
     "{'rope_theta':123,'rope_type':'default'},'full_attention':{'rope_theta':456,"
     "'rope_type':'linear','factor':2}}",
     0, norms, "half 8 theta 123 plain; left 511; scale 0.0625; eps 1e-05 +1;"},
    {"'model_type':'gemma3_text','rms_norm_eps':1e-5,'sliding_window':512,'layer_types':"
     "['sliding_attention','full_attention'],'rope_parameters':{'sliding_attention':"
     "{'rope_theta':123,'rope_type':'default'},'full_attention':{'rope_theta':456,"
     "'rope_type':'linear','factor':2}}",
     1, norms, "half 8 theta 456 linear 2/0; scale 0.0625; eps 1e-05 +1;"},
    {"'model_type':'gpt_oss','sliding_window':128,'rope_theta':150000,'max_position_embeddings':"
     "131072,'layer_types':['sliding_attention','full_attention'],'rope_scaling':{'beta_fast':32,"
     "'beta_slow':1,'factor':32,'original_max_position_embeddings':4096,'rope_type':'yarn',"
     "'truncate':false}",
     0, sinks, "half 8 theta 150000 yarn 32/4096; left 127; sinks;"},
    {"'model_type':'gptj','rotary_dim':4", 0, NULL, "interleaved 4 theta 10000 plain;"},
    {"'model_type':'gpt_neox','rotary_pct':0.25,'rotary_emb_base':20000", 0, NULL,
     "half 2 theta 20000 plain;"},
    {"'model_type':'phi','partial_rotary_factor':0.5", 0, NULL, "half 4 theta 10000 plain;"},
    {"'model_type':'cohere','rope_theta':8e6", 0, NULL, "interleaved 8 theta 8e+06 plain;"},
    {"'model_type':'cohere2','rope_theta':5e4,'sliding_window':64", 2, NULL,
     "interleaved 8 theta 50000 plain; left 63;"},
    {"'model_type':'cohere2','rope_theta':5e4,'sliding_window':64", 3, NULL, ""},
    {"'model_type':'glm','partial_rotary_factor':0.5", 0, NULL, "interleaved 4 theta 10000 plain;"},
    {"'model_type':'granite','attention_multiplier':0.5", 0, NULL,
     "half 8 theta 10000 plain; scale 0.5;"},
    {"'model_type':'granite'", 0, NULL, "half 8 theta 10000 plain; scale 1;"},
    {"'model_type':'smollm3','rope_theta':2e6,'no_rope_layers':[1,0]", 0, NULL,
     "half 8 theta 2e+06 plain;"},
    {"'model_type':'smollm3','rope_theta':2e6,'no_rope_layers':[1,0]", 1, NULL, ""},
    {"'model_type':'smollm3','rope_theta':2e6,'no_rope_layer_interval':2", 1, NULL, ""},
    {"'model_type':'esm','position_embedding_type':'rotary'", 0, NULL, "half 8 theta 10000 plain;"},
    {"'model_type':'esm','position_embedding_type':'absolute'", 0, NULL, ""},
    {"'attn_logit_softcapping':30", 0, NULL, "cap 30;"},
    {"'model_type':'gpt_neo','attention_layers':['global','local'],'window_size':32", 1, NULL,
     "left 31; scale 1;"},
    {"'model_type':'bart'", 0, sinks, "sinks;"},
};

/* JSON with its quotes. */
static const char *json(const char *fields)
{
    static char text[1024];
    snprintf(text, sizeof text, "{\"num_attention_heads\":2,%s}", fields);
    for (char *at = text; *at; at++)
        if (*at == '\'')
            *at = '"';
    return text;
}

static void expect(const struct layer_request *request, const char *extra, const char *expected)
{
    char error[ERROR_SIZE] = "";
    struct layer layer;
    int result = layer_load(request, &layer, error);
    if (expected[0] == '!') {
        CHECK(result == -1, "was loaded");
        if (result == 0)
            layer_free(&layer);
        else
            files_check_error(error, expected + 1);
        return;
    }
    CHECK(result == 0, "%s", error);
    if (result)
        return;
    /* The maker's weights are whole numbers, consecutive: the first one's fraction tells nothing. */
    const headway_tensor *norm = layer.weights.query_norm;
    int plus_one = norm && fmod((double)((float *)norm->data)[0], 4096) == 1;
    const char *got = describe(&layer, plus_one);
    CHECK(strcmp(got, expected) == 0, "%s: '%s', expected '%s'", extra, got, expected);
    layer_free(&layer);
}

static void check_families_meaning(void)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char module[64];
        struct layer_request request = {0};
        if (!check_case("meaning/layer %d of %s", models[i].index, models[i].fields))
            continue;
        snprintf(module, sizeof module, "model.layers.%d.self_attn", models[i].index);
        make(module, json(models[i].fields), models[i].extras);
        request.path = folder();
        expect(&request, models[i].fields, models[i].expected);
    }
}

static void check_slopes(void)
{
    struct layer_request request = {.path = folder()};
    if (check_case("meaning/BLOOM")) {
        make("transformer.h.0.self_attention", json("'model_type':'bloom'"), NULL);
        expect(&request, "bloom", "slopes 0.0625 0.00390625;");
    }
    if (check_case("meaning/MPT")) {
        const char *module = "transformer.blocks.0.attn";
        make(module, json("'model_type':'mpt','attn_config':{'alibi':true}"), NULL);
        expect(&request, "mpt", "slopes 0.0625 0.00390625;");
        make(module,
             json("'model_type':'mpt','attn_config':{'alibi':true,'alibi_bias_max':4,"
                  "'softmax_scale':0.5}"),
             NULL);
        expect(&request, "mpt", "scale 0.5; slopes 0.25 0.0625;");
        make(module, json("'model_type':'mpt','attn_config':{'alibi':true,'model_type':''}"), NULL);
        expect(&request, "mpt, a part without a name", "slopes 0.0625 0.00390625;");
        make(module, json("'model_type':'mpt','attn_config':{'alibi':false}"), NULL);
        expect(&request, "mpt", "");
    }
}

/* The norm before ESM's attention is not its own; one inside would be. */
static void check_esm(void)
{
    static const char *const outside[] = {"LayerNorm.weight", "LayerNorm.bias",
                                          "self.rotary_embeddings.inv_freq", NULL};
    static const char *const inside[] = {"self.LayerNorm.weight", NULL};
    struct layer_request request = {.path = folder()};
    const char *module = "esm.encoder.layer.0.attention";
    if (check_case("meaning/ESM")) {
        make(module, json("'model_type':'esm','position_embedding_type':'rotary'"), outside);
        expect(&request, "esm", "half 8 theta 10000 plain;");
        make(module, json("'model_type':'esm','position_embedding_type':'rotary'"), inside);
        expect(&request, "esm, a norm inside", "!self.LayerNorm.weight");
    }
}

/* The command line wins, each option for itself. */
static void check_flags(void)
{
    const char *module = "model.layers.0.self_attn";
    struct layer_request plain = {.path = folder()};
    struct layer_request request = plain;
    if (check_case("meaning/flags over a model's")) {
        make(module,
             json("'model_type':'gemma2','query_pre_attn_scalar':16,'sliding_window':32,"
                  "'rope_scaling':{'type':'linear','factor':2}"),
             NULL);
        expect(&request, "none", "half 8 theta 10000 linear 2/0; left 31; cap 50; scale 0.25;");
        request.has_scale = request.has_window = request.has_softcap = 1;
        expect(&request, "scores", "half 8 theta 10000 linear 2/0;");
        request.rope_theta = 77;
        request.rope_style = "interleaved";
        request.rope_size = 4;
        expect(&request, "rope", "interleaved 4 theta 77 linear 2/0;");
        request.rope_scale = 3;
        expect(&request, "scale", "interleaved 4 theta 77 linear 3/0;");
        request.rope_theta = request.rope_scale = 0;
        request.rope_table = 1;
        expect(&request, "tables", "interleaved 4 theta 0 plain;");
    }
    if (check_case("meaning/flags where a model's family isn't known")) {
        make(module, json("'model_type':'other','rope_theta':5e4,'sliding_window':9,'alibi':true"),
             NULL);
        request = plain;
        expect(&request, "none", "!sliding window|ALiBi");
        request.has_window = request.has_alibi = 1;
        expect(&request, "no style", "");
        make(module, json("'model_type':'other','rope_theta':5e4"), NULL);
        expect(&request, "no style", "!RoPE (rope_theta)|--rope-style");
        request.rope_style = "interleaved";
        expect(&request, "style", "interleaved 8 theta 50000 plain;");
    }
    if (check_case("meaning/rotary flags without rotary embedding")) {
        make(module, json("'model_type':'bart'"), NULL);
        request = plain;
        request.rope_style = "half";
        expect(&request, "style", "!--rope-style|--rope");
        request = plain;
        request.rope_size = 4;
        expect(&request, "size", "!--rope-size|--rope");
        request = plain;
        request.rope_scale = 4;
        expect(&request, "scale", "!--rope-scale|--rope");
        request.rope_theta = 99;
        expect(&request, "theta", "half 8 theta 99 linear 4/0;");
        request.rope_size = 10;
        expect(&request, "size", "!--rope-size|10|8");
        request.rope_size = 3;
        expect(&request, "size", "!--rope-size|3|even");
    }
}

static void check_norms(void)
{
    const char *module = "model.layers.0.self_attn";
    struct layer_request request = {.path = folder()};
    if (check_case("meaning/norms of no known family")) {
        make(module, json("'model_type':'other'"), norms);
        expect(&request, "other", "!q_norm|other|--qk-norm-eps");
        request.norm_eps = 1e-3;
        expect(&request, "eps", "eps 0.001;");
        make(module, json("'model_type':'bart'"), NULL);
        expect(&request, "no norms", "!--qk-norm-eps|q_norm");
    }
    if (check_case("meaning/norms without a config.json")) {
        make(module, "{}", norms);
        unlink(files_path("meaning/config.json"));
        request = (struct layer_request){.path = folder(), .heads = 2};
        expect(&request, "no config", "eps 0;");
        request.norm_eps = 0.5;
        expect(&request, "eps", "eps 0.5;");
        static const char *const gemma[] = {"q_norm.weight", "k_norm.weight",
                                            "pre_feedforward_layernorm.weight", NULL};
        make(module, "{}", gemma);
        unlink(files_path("meaning/config.json"));
        request.norm_eps = 0;
        expect(&request, "gemma", "!pre_feedforward_layernorm|not in this version");
    }
    if (check_case("meaning/frequencies without RoPE")) {
        make(module, json("'model_type':'bart'"), frequencies);
        request = (struct layer_request){.path = folder()};
        expect(&request, "none", "!inv_freq|RoPE|not in this version");
        request.rope_theta = 1e4;
        expect(&request, "theta", "half 8 theta 10000 plain;");
    }
    if (check_case("meaning/cross-attention has neither RoPE nor window nor needed norms")) {
        make("model.layers.0.cross_attn", json("'model_type':'qwen3','sliding_window':4"), NULL);
        request = (struct layer_request){.path = folder()};
        expect(&request, "cross", "");
    }
}

void check_models_meaning(void)
{
    check_families_meaning();
    check_slopes();
    check_esm();
    check_flags();
    check_norms();
}
