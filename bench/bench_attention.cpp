/* attention/<who>/<dtype>/<shape>/threads:<N>: the attention core, and others' beside it; from a cache
 * of keys and values, headway-cache and headway-paged16, with the cache's dtype. */
#include "data.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

namespace
{

using bench::Call;
using bench::Data;
using bench::Floats;
using bench::Prepared;
using bench::Shape;
using bench::Who;

/* The shapes of real models: BERT-base, ViT-B/16, MiniLM, head sizes 80 and 128, grouped queries,
 * and one token against a long past. */
const std::vector<Shape> standard = {
    {"bert128", 1, 12, 12, 128, 128, 64, 64, false, 0},
    {"bert512", 1, 12, 12, 512, 512, 64, 64, false, 0},
    {"bert512mask", 1, 12, 12, 512, 512, 64, 64, false, 50},
    {"bert512bias", 1, 12, 12, 512, 512, 64, 64, false, 0, true},
    {"bert1024", 1, 12, 12, 1024, 1024, 64, 64, false, 0},
    {"long16k", 1, 1, 1, 16384, 16384, 64, 64, false, 0},
    {"vit197", 8, 12, 12, 197, 197, 64, 64, false, 0},
    {"mini128", 8, 12, 12, 128, 128, 32, 32, false, 0},
    {"d80", 1, 16, 16, 512, 512, 80, 80, false, 0},
    {"d128", 1, 8, 8, 1024, 1024, 128, 128, false, 0},
    {"gqa512c", 1, 32, 8, 512, 512, 128, 128, true, 0},
    {"gqa2048c", 1, 32, 8, 2048, 2048, 128, 128, true, 0},
    {"dec1k", 1, 32, 8, 1, 1024, 128, 128, false, 0},
    {"dec8k", 1, 32, 8, 1, 8192, 128, 128, false, 0},
    {"dec32k", 1, 32, 8, 1, 32768, 128, 128, false, 0},
    {"dec4kb8", 8, 32, 8, 1, 4096, 128, 128, false, 0},
    {"w256full", 1, 12, 12, 8192, 8192, 64, 64, false, 0},
};

/* bert512 with each option and with all of them, the long one in a window, and sequences of many
 * lengths, together and one by one. */
std::vector<Shape> with_options()
{
    std::vector<Shape> shapes;
    for (const char *options :
         {"-window:window=64", "-interval:interval=128", "-softcap:softcap=50", "-alibi:alibi",
          "-sink:sink", "-mask4:mask4", "-bias:bias", "-all:window=64,softcap=50,alibi,sink,mask4",
          "-varlen:varlen=64", "-varlen-each:varlen=64,each"}) {
        const std::string text = options, sizes = "1,12,12,512,512,64,";
        const size_t colon = text.find(':') + 1;
        shapes.push_back(
            bench::parse_shape("bert512" + text.substr(0, colon) + sizes + text.substr(colon)));
    }
    shapes.push_back(bench::parse_shape("w256:1,12,12,8192,8192,64,window=256"));
    return shapes;
}

/* BERT-base's heads over head sizes, and over lengths around the edges of tiles and blocks. */
std::vector<Shape> sweep()
{
    std::set<std::pair<int64_t, int64_t>> sizes; /* D, L */
    for (int64_t D : {1, 3, 17, 32, 40, 64, 72, 80, 96, 112, 128, 160, 256, 320, 576})
        sizes.insert({D, 512});
    for (int64_t L :
         {1,   2,   15,  16,  17,  31,  33,  47,  49,  63,  64,  65,   96,   127,  128,
          129, 192, 255, 256, 257, 384, 511, 512, 513, 640, 768, 1023, 1024, 1025, 2048})
        sizes.insert({64, L});
    for (int64_t L = 1; L <= 2048; L *= 2) {
        sizes.insert({32, L});
        sizes.insert({128, L});
    }
    std::vector<Shape> shapes;
    for (const auto &[D, L] : sizes)
        shapes.push_back({"sweep-d" + std::to_string(D) + "-l" + std::to_string(L), 1, 12, 12, L, L,
                          D, D, false, 0, false, true});
    return shapes;
}

/* The latest shape's data; the next shape's takes its place. */
std::shared_ptr<Data> data_of(const Shape &shape)
{
    static std::shared_ptr<Data> latest;
    if (!latest || latest->shape().name != shape.name) {
        latest.reset();
        latest = std::make_shared<Data>(shape);
    }
    return latest;
}

void prepare_headway(Prepared &made, const Data &data, float *out)
{
    const std::shared_ptr<headway_engine> engine = bench::make_engine(made.row, made.threads);
    const std::vector<Call> calls = data.calls();
    std::vector<headway_tensor> outs;
    size_t bytes = 0;
    if (!engine) {
        made.error = "FAIL: headway_engine_create";
        return;
    }
    for (const Call &call : calls) {
        size_t needed = 0;
        if (headway_attention_workspace(engine.get(), &call.params, &call.query, &call.key,
                                        &call.value, &needed) != HEADWAY_OK)
            made.error = "FAIL: headway_attention_workspace";
        bytes = std::max(bytes, needed);
        outs.push_back(data.out_tensor(out, call));
    }
    Floats workspace = bench::floats(static_cast<int64_t>(bytes / 4 + 1));
    made.workspace = static_cast<int64_t>(bytes);
    made.run = [=, error = &made.error] {
        for (size_t i = 0; i < calls.size(); i++)
            if (headway_attention(engine.get(), &calls[i].params, &calls[i].query, &calls[i].key,
                                  &calls[i].value, &outs[i], workspace.get(), bytes) != HEADWAY_OK)
                *error = "FAIL: headway_attention";
    };
}

void prepare_onednn(Prepared &made, headway_onednn_path path, const Data &data,
                    const headway_tensor &out)
{
    const Call &call = data.whole();
    char note[512] = "";
    bench::set_openmp_threads(made.threads);
    std::shared_ptr<headway_onednn> onednn(headway_onednn_attention(path, &call.params, &call.query,
                                                                    &call.key, &call.value, &out,
                                                                    note, sizeof note),
                                           headway_onednn_free);
    made.label = note;
    if (!onednn) {
        made.error = note;
        return;
    }
    made.run = [=, threads = made.threads, error = &made.error] {
        bench::set_openmp_threads(threads);
        if (headway_onednn_run(onednn.get()) != 0)
            *error = "FAIL: oneDNN reported a failure";
    };
}

void prepare(Prepared &made, const Who &who, const Shape &shape, bool slow)
{
    made.row = who.row;
    made.label = who.row->name;
    made.flops = shape.attention_flops();
    made.bytes = shape.attention_bytes();
    made.from_memory = !shape.swept; /* small enough for a cache */
    made.error = bench::why_skipped(who.row, made.threads, made.flops, slow);
    if (!made.error.empty())
        return;
    std::shared_ptr<Data> data = data_of(shape);
    Floats out = bench::floats(data->out_count());
    std::fill_n(out.get(), data->out_count(), NAN);
    made.owned = {data, out};
    if (who.kind == Who::Headway) {
        prepare_headway(made, *data, out.get());
    } else if (who.kind == Who::UnfusedPath) {
        auto unfused = std::make_shared<bench::Unfused>(who.row, made.threads, shape);
        made.workspace = unfused->bytes();
        made.run = [=] {
            const Call &call = data->whole();
            unfused->run(static_cast<const float *>(call.query.data),
                         static_cast<const float *>(call.key.data),
                         static_cast<const float *>(call.value.data), out.get(), data->bias());
        };
    } else {
        auto out_tensor =
            std::make_shared<headway_tensor>(data->out_tensor(out.get(), data->whole()));
        made.owned.push_back(out_tensor);
        prepare_onednn(made,
                       who.kind == Who::Graph ? HEADWAY_ONEDNN_GRAPH : HEADWAY_ONEDNN_PRIMITIVES,
                       *data, *out_tensor);
    }
    if (made.error.empty())
        made.run();
    if (made.error.empty())
        made.error = data->expected().check(out.get());
}

/* Keys and values in a cache: contiguous, or in pages. */
struct Cache {
    std::string who, dtype;
    headway_dtype stored;
    double bytes; /* of an element of a head of 128, scales included */
    int64_t page_size;
};

std::vector<Cache> caches()
{
    std::vector<Cache> all;
    for (int64_t page_size : {0, 16})
        for (const auto &[dtype, stored, bytes] :
             {std::tuple<const char *, headway_dtype, double>{"f32", HEADWAY_F32, 4},
              {"f16", HEADWAY_F16, 2},
              {"bf16", HEADWAY_BF16, 2},
              {"int8", HEADWAY_I8, 1 + 4.0 / 128}})
            all.push_back(
                {page_size ? "headway-paged" + std::to_string(page_size) : "headway-cache", dtype,
                 stored, bytes, page_size});
    return all;
}

using KvCache = std::shared_ptr<headway_kv_cache>;

KvCache fill_cache(const headway_engine *engine, const Cache &cache, const Shape &shape,
                   const Call &call)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    config.sequences = shape.B;
    config.kv_heads = shape.Hkv;
    config.head_size = shape.D;
    config.value_head_size = shape.Dv;
    config.capacity = shape.Lk;
    config.key_dtype = config.value_dtype = cache.stored;
    config.page_size = cache.page_size;
    headway_kv_cache *made = nullptr;
    if (headway_kv_cache_create(engine, &config, &made) != HEADWAY_OK)
        return nullptr;
    KvCache owned(made, headway_kv_cache_destroy);
    if (headway_kv_cache_append(made, nullptr, nullptr, &call.key, &call.value) != HEADWAY_OK)
        return nullptr;
    return owned;
}

/* "" or why the answer from the cache isn't, bit by bit, that of the stored values as tensors. */
std::string check_cache(const headway_engine *engine, const KvCache &cache, const Shape &shape,
                        const Call &call, const Data &data, const float *out)
{
    const Floats key = bench::floats(shape.B * shape.Lk * shape.Hkv * shape.D);
    const Floats value = bench::floats(shape.B * shape.Lk * shape.Hkv * shape.Dv);
    const Floats expected = bench::floats(data.out_count());
    const int64_t keys[4] = {shape.B, shape.Lk, shape.Hkv, shape.D};
    const int64_t values[4] = {shape.B, shape.Lk, shape.Hkv, shape.Dv};
    size_t bytes = 0;
    for (int64_t b = 0; b < shape.B; b++) {
        float *k = key.get() + b * keys[1] * keys[2] * keys[3];
        float *v = value.get() + b * values[1] * values[2] * values[3];
        const headway_tensor k_of = headway_tensor_dense(k, HEADWAY_F32, 3, keys + 1);
        const headway_tensor v_of = headway_tensor_dense(v, HEADWAY_F32, 3, values + 1);
        if (headway_kv_cache_read(cache.get(), b, 0, &k_of, &v_of) != HEADWAY_OK)
            return "FAIL: headway_kv_cache_read";
    }
    const headway_tensor k = headway_tensor_dense(key.get(), HEADWAY_F32, 4, keys);
    const headway_tensor v = headway_tensor_dense(value.get(), HEADWAY_F32, 4, values);
    const headway_tensor to = data.out_tensor(expected.get(), call);
    if (headway_attention_workspace(engine, &call.params, &call.query, &k, &v, &bytes) !=
        HEADWAY_OK)
        return "FAIL: headway_attention_workspace";
    const Floats workspace = bench::floats(static_cast<int64_t>(bytes / 4 + 1));
    if (headway_attention(engine, &call.params, &call.query, &k, &v, &to, workspace.get(), bytes) !=
        HEADWAY_OK)
        return "FAIL: headway_attention";
    return std::equal(out, out + data.out_count(), expected.get()) ? ""
                                                                   : "FAIL: not the stored values'";
}

void prepare_cache(Prepared &made, const Cache &cache, const Shape &shape)
{
    made.row = bench::rows().front();
    made.label = made.row->name;
    made.flops = shape.attention_flops();
    const double stored =
        static_cast<double>(shape.B * shape.Hkv * shape.Lk * (shape.D + shape.Dv));
    made.bytes = shape.attention_bytes() - stored * (4 - cache.bytes);
    const std::shared_ptr<headway_engine> engine = bench::make_engine(made.row, made.threads);
    if (!engine) {
        made.error = bench::why_skipped(made.row, made.threads, made.flops, true);
        return;
    }
    const std::shared_ptr<Data> data = data_of(shape);
    const Call &call = data->whole();
    const Floats out = bench::floats(data->out_count());
    const headway_tensor to = data->out_tensor(out.get(), call);
    const KvCache filled = fill_cache(engine.get(), cache, shape, call);
    headway_attention_params params = call.params;
    size_t bytes = 0;
    params.cache = filled.get();
    if (!filled || headway_attention_workspace(engine.get(), &params, &call.query, nullptr, nullptr,
                                               &bytes) != HEADWAY_OK) {
        made.error = "FAIL: no cache";
        return;
    }
    const Floats workspace = bench::floats(static_cast<int64_t>(bytes / 4 + 1));
    made.workspace = static_cast<int64_t>(bytes);
    made.owned = {data, out, filled};
    made.run = [=, query = call.query, error = &made.error] {
        if (headway_attention(engine.get(), &params, &query, nullptr, nullptr, &to, workspace.get(),
                              bytes) != HEADWAY_OK)
            *error = "FAIL: headway_attention";
    };
    made.run();
    if (made.error.empty())
        made.error = check_cache(engine.get(), filled, shape, call, *data, out.get());
}

/* Whether it could be asked for the shape: the unfused way has no options but masks and ranges, and
 * nobody else has packed sequences. oneDNN says itself what it can't do. */
bool offers(const Who &who, const Shape &shape)
{
    if (who.kind == Who::UnfusedPath &&
        (shape.softcap > 0 || shape.alibi || shape.sink || shape.holes))
        return false;
    return who.kind == Who::Headway || shape.starts.empty();
}

} // namespace

int main(int argc, char **argv)
{
    const bench::Options options = bench::take_options(argc, argv);
    std::vector<Shape> shapes = standard;
    for (const Shape &shape : with_options())
        shapes.push_back(shape);
    if (options.sweep)
        for (const Shape &shape : sweep())
            shapes.push_back(shape);
    shapes.insert(shapes.end(), options.shapes.begin(), options.shapes.end());
    for (const Shape &shape : shapes)
        for (int threads : options.threads) {
            /* One token against a past is what caches are for. */
            for (const Cache &cache :
                 shape.Lq == 1 && !shape.swept ? caches() : std::vector<Cache>())
                bench::register_case("attention/" + cache.who + "/" + cache.dtype + "/" +
                                         shape.name + "/threads:" + std::to_string(threads),
                                     [=](Prepared &made) {
                                         made.threads = threads;
                                         prepare_cache(made, cache, shape);
                                     });
            for (const Who &who : bench::everybody()) {
                if (!offers(who, shape))
                    continue;
                const std::string name = "attention/" + who.name + "/f32/" + shape.name +
                                         "/threads:" + std::to_string(threads);
                bench::register_case(name, [=, slow = options.slow](Prepared &made) {
                    made.threads = threads;
                    prepare(made, who, shape, slow);
                });
            }
        }
    return bench::run_all();
}
