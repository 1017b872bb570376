#define _XOPEN_SOURCE 700

#include "check_files.h"

/* Element (row, column) of a view of weights; rank 3 has its rows in two axes, a bias no columns.
 */
static float at(const headway_tensor *t, int64_t row, int64_t column, int is_bias)
{
    const float *data = t->data;
    if (t->rank == (is_bias ? 1 : 2)) {
        return data[row * t->stride[0] + (is_bias ? 0 : column * t->stride[1])];
    }
    return data[row / t->shape[1] * t->stride[0] + row % t->shape[1] * t->stride[1] +
                (is_bias ? 0 : column * t->stride[2])];
}

static int64_t rows_of(const headway_tensor *t, int is_bias)
{
    return t->rank == (is_bias ? 1 : 2) ? t->shape[0] : t->shape[0] * t->shape[1];
}

/* What part of the file a view must show: row r (its head's number h) is at element
 * first + r * row + h * head, columns `column` apart; head_rows rows are a head's. */
struct place {
    const char *tensor;
    int64_t rows, columns, first, row, column, head, head_rows;
};

static void expect(const struct maker *m, const headway_tensor *view, struct place p, int is_bias,
                   const char *what)
{
    CHECK(view != NULL, "%s is missing", what);
    if (!view) {
        return;
    }
    CHECK(view->dtype == HEADWAY_F32 && rows_of(view, is_bias) == p.rows, "%s has %lld rows", what,
          (long long)rows_of(view, is_bias));
    CHECK(is_bias || view->shape[view->rank - 1] == p.columns, "%s has %lld columns", what,
          (long long)view->shape[view->rank - 1]);
    for (int64_t r = 0; r < p.rows; r++) {
        for (int64_t c = 0; c < (is_bias ? 1 : p.columns); c++) {
            int64_t head = p.head_rows ? r / p.head_rows : 0;
            float expected =
                maker_value(m, p.tensor, p.first + r * p.row + c * p.column + head * p.head);
            CHECK(at(view, r, c, is_bias) == expected, "%s (%lld, %lld) is %g, expected %g", what,
                  (long long)r, (long long)c, (double)at(view, r, c, is_bias), (double)expected);
        }
    }
}

static void expect_matrix(const struct maker *m, const headway_tensor *view, const char *tensor,
                          int64_t rows, int64_t columns)
{
    struct place p = {tensor, rows, columns, 0, columns, 1, 0, 0};
    expect(m, view, p, 0, tensor);
}

static void expect_bias(const struct maker *m, const headway_tensor *view, const char *tensor,
                        int64_t first, int64_t rows)
{
    struct place p = {tensor, rows, 0, first, 1, 0, 0, 0};
    expect(m, view, p, 1, tensor);
}

static struct layer_request request_of(const char *path, const char *layer, int64_t heads)
{
    struct layer_request request = {0};
    request.path = files_path(path);
    request.layer = layer;
    request.heads = heads;
    return request;
}

/* heads, kv heads, size, value size; widths of query, key, value; outputs. */
static int load(const struct layer_request *request, struct layer *layer, const char *family,
                const char *sizes)
{
    char error[ERROR_SIZE] = "";
    char text[128];
    int result = layer_load(request, layer, error);
    CHECK(result == 0, "%s", error);
    if (result == 0) {
        const headway_mha_config *c = &layer->config;
        snprintf(text, sizeof text, "%lld %lld %lld %lld, %lld %lld %lld, %lld",
                 (long long)c->heads, (long long)c->kv_heads, (long long)c->head_size,
                 (long long)c->value_head_size, (long long)layer->query_width,
                 (long long)layer->key_width, (long long)layer->value_width,
                 (long long)layer->out_width);
        CHECK(strcmp(text, sizes) == 0, "the sizes are %s, expected %s", text, sizes);
        CHECK(strcmp(layer->family, family) == 0, "the family is %s, expected %s", layer->family,
              family);
    }
    return result;
}

static void refused(const struct layer_request *request, const char *words)
{
    char error[ERROR_SIZE] = "";
    struct layer layer;
    int result = layer_load(request, &layer, error);
    CHECK(result == -1, "was loaded, expected '%s'", words);
    if (result == 0) {
        layer_free(&layer);
    } else {
        files_check_error(error, words);
    }
}

/* prefix + stem + ".weight" of (rows, columns), and ".bias" when there is one. */
static void add_linear(struct maker *m, const char *prefix, const char *stem, int64_t rows,
                       int64_t columns, int bias)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s.weight", prefix, stem);
    maker_matrix(m, name, rows, columns);
    if (bias) {
        snprintf(name, sizeof name, "%s%s.bias", prefix, stem);
        maker_vector(m, name, rows);
    }
}

static const char *joined(const char *prefix, const char *stem, const char *end)
{
    static char names[4][128];
    static int next;
    char *name = names[next++ % 4];
    snprintf(name, sizeof names[0], "%s%s%s", prefix, stem, end);
    return name;
}

/* A family of four linear maps: q (H*D, E), k and v (Hkv*D, E), o (E, H*D). */
static void check_separate(const char *family, const char *prefix, const char *layer,
                           const char *const stems[4], int kv_heads, int biases)
{
    struct maker *m = malloc(sizeof *m);
    struct layer loaded;
    int64_t heads = 4;
    int64_t size = 3;
    int64_t width = 5;
    int64_t rows[] = {heads * size, kv_heads * size, kv_heads * size, width};
    int64_t columns[] = {width, width, width, heads * size};
    char sizes[64];
    if (!check_case("family/%s %s%d key heads, biases %d", family, prefix, kv_heads, biases)) {
        free(m);
        return;
    }
    maker_start(m);
    maker_matrix(m, "embeddings.weight", 3, 5);
    for (int i = 3; i >= 0; i--) {
        add_linear(m, prefix, stems[i], rows[i], columns[i], biases >> i & 1);
    }
    maker_vector(m, "norm.weight", 5);
    maker_write(m, "family.safetensors", 0);
    struct layer_request request = request_of("family.safetensors", layer, heads);
    snprintf(sizes, sizeof sizes, "4 %d 3 3, 5 5 5, 5", kv_heads);
    if (load(&request, &loaded, family, sizes) == 0) {
        const headway_tensor *weights[] = {loaded.weights.query, loaded.weights.key,
                                           loaded.weights.value, loaded.weights.out};
        const headway_tensor *bias[] = {loaded.weights.query_bias, loaded.weights.key_bias,
                                        loaded.weights.value_bias, loaded.weights.out_bias};
        for (int i = 0; i < 4; i++) {
            expect_matrix(m, weights[i], joined(prefix, stems[i], ".weight"), rows[i], columns[i]);
            CHECK(!bias[i] == !(biases >> i & 1), "bias %d is %s", i,
                  bias[i] ? "there" : "missing");
            if (biases >> i & 1) {
                expect_bias(m, bias[i], joined(prefix, stems[i], ".bias"), 0, rows[i]);
            }
        }
        CHECK(!loaded.weights.fused && !loaded.config.transposed, "is fused");
        layer_free(&loaded);
    }
    free(m);
}

/* A fused matrix of (rows, 5) and an output of (5, out). heads 4 of 3, kv heads of the same size.
 */
static void check_fused(const char *family, const char *prefix, const char *stem, const char *out,
                        int kv_heads, int per_head, const char *flag)
{
    struct maker *m = malloc(sizeof *m);
    struct layer loaded;
    int64_t rows = (4 + 2 * kv_heads) * 3;
    char sizes[64];
    if (!check_case("family/%s %s%s %d key heads%s%s", family, prefix, stem, kv_heads,
                    flag ? " " : "", flag ? flag : "")) {
        free(m);
        return;
    }
    maker_start(m);
    add_linear(m, prefix, stem, rows, 5, 1);
    add_linear(m, prefix, out, 5, 12, 0);
    maker_write(m, "family.safetensors", 0);
    struct layer_request request = request_of("family.safetensors", NULL, 4);
    request.qkv_rows = flag;
    snprintf(sizes, sizeof sizes, "4 %d 3 3, 5 5 5, 5", kv_heads);
    if (load(&request, &loaded, family, sizes) == 0) {
        const headway_mha_weights *w = &loaded.weights;
        const char *weight = joined(prefix, stem, ".weight");
        const char *bias = joined(prefix, stem, ".bias");
        expect_matrix(m, w->out, joined(prefix, out, ".weight"), 5, 12);
        if (!per_head) {
            expect_matrix(m, w->fused, weight, rows, 5);
            expect_bias(m, w->fused_bias, bias, 0, rows);
            CHECK(!w->query && !w->key_bias, "is fused and separate");
        } else {
            const headway_tensor *views[] = {w->query, w->key, w->value};
            const headway_tensor *biases[] = {w->query_bias, w->key_bias, w->value_bias};
            for (int kind = 0; kind < 3; kind++) {
                struct place p = {weight, 12, 5, 15 * kind, 5, 1, 30, 3};
                struct place b = {bias, 12, 0, 3 * kind, 1, 0, 6, 3};
                expect(m, views[kind], p, 0, weight);
                expect(m, biases[kind], b, 1, bias);
            }
            CHECK(!w->fused, "is fused and separate");
        }
        layer_free(&loaded);
    }
    free(m);
}

static void check_torch_added(void)
{
    struct maker *m = malloc(sizeof *m);
    struct layer layer;
    struct layer_request request;
    if (check_case("family/torch with bias_k")) {
        maker_start(m);
        maker_matrix(m, "in_proj_weight", 36, 12);
        maker_add(m, "bias_k", "F32", 3, 1, 1, 12, 0);
        maker_add(m, "bias_v", "F32", 3, 1, 1, 12, 0);
        add_linear(m, "", "out_proj", 12, 12, 0);
        maker_write(m, "torch.safetensors", 0);
        request = request_of("torch.safetensors", NULL, 4);
        request.add_zero_attn = 1;
        if (load(&request, &layer, "torch.nn.MultiheadAttention", "4 4 3 3, 12 12 12, 12") == 0) {
            const headway_tensor *k = layer.weights.bias_k, *v = layer.weights.bias_v;
            CHECK(k && v && k->rank == 2 && k->shape[0] == 4 && k->shape[1] == 3, "the shape");
            for (int i = 0; k && v && i < 12; i++)
                CHECK(((float *)k->data)[i] == maker_value(m, "bias_k", i) &&
                          ((float *)v->data)[i] == maker_value(m, "bias_v", i),
                      "element %d", i);
            CHECK(layer.config.add_zero_attn == 1, "add_zero_attn");
            layer_free(&layer);
        }
    }
    if (check_case("family/torch with bias_k alone or of another size")) {
        for (int i = 0; i < 2; i++) {
            maker_start(m);
            maker_matrix(m, "in_proj_weight", 36, 12);
            maker_add(m, "bias_k", "F32", 3, 1, 1, i ? 13 : 12, 0);
            if (i)
                maker_add(m, "bias_v", "F32", 3, 1, 1, 13, 0);
            add_linear(m, "", "out_proj", 12, 12, 0);
            maker_write(m, "torch.safetensors", 0);
            request = request_of("torch.safetensors", NULL, 4);
            refused(&request, i ? "bias_k|13|12" : "bias_k|bias_v is not|both or none");
        }
    }
    free(m);
}

static void check_torch(void)
{
    struct maker *m = malloc(sizeof *m);
    struct layer layer;
    struct layer_request request;
    if (check_case("family/torch fused, at the root and below")) {
        static const char *const prefixes[] = {"", "layers.1.self_attn."};
        for (int i = 0; i < 2; i++) {
            maker_start(m);
            maker_matrix(m, joined(prefixes[i], "in_proj_weight", ""), 36, 12);
            maker_vector(m, joined(prefixes[i], "in_proj_bias", ""), 36);
            add_linear(m, prefixes[i], "out_proj", 12, 12, 1);
            maker_write(m, "torch.safetensors", 0);
            request = request_of("torch.safetensors", NULL, 4);
            if (load(&request, &layer, "torch.nn.MultiheadAttention", "4 4 3 3, 12 12 12, 12") ==
                0) {
                expect_matrix(m, layer.weights.fused, joined(prefixes[i], "in_proj_weight", ""), 36,
                              12);
                expect_bias(m, layer.weights.fused_bias, joined(prefixes[i], "in_proj_bias", ""), 0,
                            36);
                expect_bias(m, layer.weights.out_bias, joined(prefixes[i], "out_proj.bias", ""), 0,
                            12);
                layer_free(&layer);
            }
        }
    }
    if (check_case("family/torch with kdim and vdim")) {
        maker_start(m);
        maker_matrix(m, "a.q_proj_weight", 12, 12);
        maker_matrix(m, "a.k_proj_weight", 12, 7);
        maker_matrix(m, "a.v_proj_weight", 12, 9);
        maker_vector(m, "a.in_proj_bias", 36);
        add_linear(m, "a.", "out_proj", 12, 12, 0);
        maker_write(m, "torch.safetensors", 0);
        request = request_of("torch.safetensors", "a", 4);
        if (load(&request, &layer, "torch.nn.MultiheadAttention", "4 4 3 3, 12 7 9, 12") == 0) {
            expect_matrix(m, layer.weights.key, "a.k_proj_weight", 12, 7);
            expect_matrix(m, layer.weights.value, "a.v_proj_weight", 12, 9);
            expect_bias(m, layer.weights.query_bias, "a.in_proj_bias", 0, 12);
            expect_bias(m, layer.weights.key_bias, "a.in_proj_bias", 12, 12);
            expect_bias(m, layer.weights.value_bias, "a.in_proj_bias", 24, 12);
            layer_free(&layer);
        }
    }
    free(m);
}

/* fused (E, 3E) stored as GPT-2 does, with the mask buffers of old checkpoints; or as Linear does.
 */
static void check_gpt2(int stored, int bias)
{
    struct maker *m = malloc(sizeof *m);
    struct layer layer;
    if (!check_case("family/GPT-2, stored %s, bias %d", stored ? "(in, out)" : "(out, in)", bias)) {
        free(m);
        return;
    }
    maker_start(m);
    maker_add(m, "h.0.attn.bias", "F32", 4, 1, 1, 8, 8);
    maker_add(m, "h.0.attn.masked_bias", "F32", 0, 0, 0, 0, 0);
    maker_matrix(m, "h.0.attn.c_attn.weight", stored ? 6 : 18, stored ? 18 : 6);
    if (bias) {
        maker_vector(m, "h.0.attn.c_attn.bias", 18);
    }
    maker_matrix(m, "h.0.attn.c_proj.weight", 6, 6);
    maker_vector(m, "h.0.attn.c_proj.bias", 6);
    maker_write(m, "gpt2.safetensors", 0);
    struct layer_request request = request_of("gpt2.safetensors", "h.0", 2);
    if (load(&request, &layer, "GPT-2", "2 2 3 3, 6 6 6, 6") == 0) {
        int64_t row = stored ? 1 : 6;
        struct place fused = {"h.0.attn.c_attn.weight", 18, 6, 0, row, stored ? 18 : 1, 0, 0};
        struct place out = {"h.0.attn.c_proj.weight", 6, 6, 0, row, stored ? 6 : 1, 0, 0};
        expect(m, layer.weights.fused, fused, 0, "c_attn");
        expect(m, layer.weights.out, out, 0, "c_proj");
        CHECK(!layer.weights.fused_bias == !bias, "the bias");
        if (bias) {
            expect_bias(m, layer.weights.fused_bias, "h.0.attn.c_attn.bias", 0, 18);
        }
        expect_bias(m, layer.weights.out_bias, "h.0.attn.c_proj.bias", 0, 6);
        layer_free(&layer);
    }
    free(m);
}

static void check_gpt2_cross(void)
{
    struct maker *m = malloc(sizeof *m);
    struct layer layer;
    if (check_case("family/GPT-2 cross-attention")) {
        maker_start(m);
        maker_matrix(m, "h.0.crossattention.c_attn.weight", 6, 12);
        maker_vector(m, "h.0.crossattention.c_attn.bias", 12);
        maker_matrix(m, "h.0.crossattention.q_attn.weight", 6, 6);
        maker_vector(m, "h.0.crossattention.q_attn.bias", 6);
        maker_matrix(m, "h.0.crossattention.c_proj.weight", 6, 6);
        maker_write(m, "gpt2.safetensors", 0);
        struct layer_request request = request_of("gpt2.safetensors", NULL, 2);
        if (load(&request, &layer, "GPT-2", "2 2 3 3, 6 6 6, 6") == 0) {
            struct place key = {"h.0.crossattention.c_attn.weight", 6, 6, 0, 1, 12, 0, 0};
            struct place value = {"h.0.crossattention.c_attn.weight", 6, 6, 6, 1, 12, 0, 0};
            struct place query = {"h.0.crossattention.q_attn.weight", 6, 6, 0, 1, 6, 0, 0};
            expect(m, layer.weights.query, query, 0, "query");
            expect(m, layer.weights.key, key, 0, "key");
            expect(m, layer.weights.value, value, 0, "value");
            expect_bias(m, layer.weights.value_bias, "h.0.crossattention.c_attn.bias", 6, 6);
            layer_free(&layer);
        }
    }
    free(m);
}

/* One small matrix per head: 11 of them, so that 10 must follow 9. */
static void check_heads(int bias)
{
    struct maker *m = malloc(sizeof *m);
    struct layer layer;
    char stem[64];
    if (!check_case("family/one matrix per head, bias %d", bias)) {
        free(m);
        return;
    }
    maker_start(m);
    for (int head = 10; head >= 0; head--) {
        static const char *const kinds[] = {"key", "query", "value"};
        for (int kind = 0; kind < 3; kind++) {
            snprintf(stem, sizeof stem, "heads.%d.%s", head, kinds[kind]);
            add_linear(m, "blocks.0.sa.", stem, 2, 5, bias);
        }
        snprintf(stem, sizeof stem, "blocks.0.sa.heads.%d.tril", head);
        maker_matrix(m, stem, 8, 8);
    }
    add_linear(m, "blocks.0.sa.", "proj", 5, 22, 1);
    maker_matrix(m, "blocks.0.ffwd.net.0.weight", 20, 5);
    maker_write(m, "heads.safetensors", 0);
    struct layer_request request = request_of("heads.safetensors", "blocks.0", 0);
    if (load(&request, &layer, "one matrix per head", "11 11 2 2, 5 5 5, 5") == 0) {
        const headway_tensor *views[] = {layer.weights.query, layer.weights.key,
                                         layer.weights.value};
        const headway_tensor *biases[] = {layer.weights.query_bias, layer.weights.key_bias,
                                          layer.weights.value_bias};
        static const char *const kinds[] = {"query", "key", "value"};
        for (int kind = 0; kind < 3; kind++) {
            for (int row = 0; row < 22; row++) {
                snprintf(stem, sizeof stem, "blocks.0.sa.heads.%d.%s.", row / 2, kinds[kind]);
                float first = maker_value(m, joined(stem, "weight", ""), row % 2 * 5);
                CHECK(at(views[kind], row, 0, 0) == first &&
                          at(views[kind], row, 4, 0) == first + 4,
                      "%s row %d", kinds[kind], row);
                CHECK(!bias || at(biases[kind], row, 0, 1) ==
                                   maker_value(m, joined(stem, "bias", ""), row % 2),
                      "%s bias %d", kinds[kind], row);
            }
        }
        layer_free(&layer);
    }
    request.heads = 10;
    refused(&request, "10 heads|11");
    free(m);
}

static void check_qkv_rows(void)
{
    struct maker *m = malloc(sizeof *m);
    if (check_case("family/qkv_proj, rows not told")) {
        maker_start(m);
        add_linear(m, "self_attn.", "qkv_proj", 36, 5, 0);
        add_linear(m, "self_attn.", "o_proj", 5, 12, 0);
        maker_write(m, "family.safetensors", 0);
        struct layer_request request = request_of("family.safetensors", NULL, 4);
        refused(&request, "--qkv-rows per-head|per-kind");
        request.qkv_rows = "per-row";
        refused(&request, "per-row|per-head|per-kind");
        request.qkv_rows = "per-head";
        request.kv_heads = 2;
        refused(&request, "per head|query heads");
    }
    if (check_case("family/query_key_value elsewhere")) {
        maker_start(m);
        add_linear(m, "h.0.self_attention.", "query_key_value", 36, 12, 0);
        add_linear(m, "h.0.self_attention.", "dense", 12, 12, 0);
        maker_write(m, "family.safetensors", 0);
        struct layer_request request = request_of("family.safetensors", NULL, 4);
        refused(&request, "--qkv-rows");
    }
    free(m);
}

void check_families(void)
{
    static const char *const bert[] = {"self.query", "self.key", "self.value", "output.dense"};
    static const char *const vit[] = {"attention.query", "attention.key", "attention.value",
                                      "output.dense"};
    static const char *const llama[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    static const char *const phi[] = {"q_proj", "k_proj", "v_proj", "dense"};
    static const char *const bart[] = {"q_proj", "k_proj", "v_proj", "out_proj"};
    static const char *const t5[] = {"q", "k", "v", "o"};
    static const char *const distil[] = {"q_lin", "k_lin", "v_lin", "out_lin"};
    check_torch();
    check_torch_added();
    check_separate("BERT", "encoder.layer.0.attention.", "0", bert, 4, 15);
    check_separate("BERT", "", NULL, bert, 4, 15);
    check_separate("BERT", "roberta.encoder.layer.3.attention.", "roberta.encoder", bert, 4, 8);
    check_separate("BERT cross-attention", "encoder.layer.0.crossattention.", NULL, bert, 4, 15);
    check_separate("ViT", "vit.encoder.layer.0.attention.", NULL, vit, 4, 15);
    check_separate("Llama", "model.layers.3.self_attn.", "model.layers.3", llama, 2, 0);
    check_separate("Llama", "model.layers.3.self_attn.", "model.layers.3.self_attn", llama, 1, 7);
    check_separate("Phi", "model.layers.0.self_attn.", NULL, phi, 4, 15);
    check_separate("BART", "model.decoder.layers.0.encoder_attn.", "model.decoder", bart, 4, 13);
    check_separate("BART", "", NULL, bart, 4, 15);
    check_separate("GPT-J", "transformer.h.0.attn.", "0", bart, 4, 0);
    check_separate("T5", "encoder.block.0.layer.0.SelfAttention.", NULL, t5, 4, 0);
    check_separate("T5 cross-attention", "decoder.block.0.layer.1.EncDecAttention.", NULL, t5, 4,
                   0);
    check_separate("DistilBERT", "transformer.layer.0.attention.", NULL, distil, 4, 15);
    check_fused("Phi-3", "model.layers.0.self_attn.", "qkv_proj", "o_proj", 2, 0, NULL);
    check_fused("Phi-3", "model.layers.0.self_attn.", "qkv_proj", "o_proj", 4, 0, "per-kind");
    check_fused("UvA tutorial", "", "qkv_proj", "o_proj", 4, 1, NULL);
    check_fused("Phi-3", "", "qkv_proj", "o_proj", 4, 0, "per-kind");
    check_fused("UvA tutorial", "self_attn.", "qkv_proj", "o_proj", 4, 1, "per-head");
    check_fused("GPT-NeoX", "gpt_neox.layers.0.attention.", "query_key_value", "dense", 4, 1, NULL);
    check_fused("timm ViT", "blocks.0.attn.", "qkv", "proj", 4, 0, NULL);
    check_fused("timm ViT", "blocks.0.attn.", "qkv", "proj", 4, 1, "per-head");
    for (int i = 0; i < 4; i++) {
        check_gpt2(i & 1, i >> 1);
    }
    check_gpt2_cross();
    check_heads(0);
    check_heads(1);
    check_qkv_rows();
}
