/* attention/<who>/f32/<shape>/threads:<N>: the attention core, and others' beside it. */
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

extern "C" {
#include "oracle/reference.h"
}

namespace
{

using bench::Expected;
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
};

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

/* A shape's inputs, and tensors on them. */
struct Data {
    explicit Data(const Shape &given)
        : shape(given), query(bench::floats(given.B * given.Lq * given.Hq * given.D)),
          key(bench::floats(given.B * given.Lk * given.Hkv * given.D)),
          value(bench::floats(given.B * given.Lk * given.Hkv * given.Dv))
    {
        const int64_t q[] = {shape.B, shape.Lq, shape.Hq, shape.D};
        const int64_t k[] = {shape.B, shape.Lk, shape.Hkv, shape.D};
        const int64_t v[] = {shape.B, shape.Lk, shape.Hkv, shape.Dv};
        const int64_t m[] = {shape.B, 1, 1, shape.Lk};
        bench::fill_normal(query.get(), q[0] * q[1] * q[2] * q[3], 1, 1.0f);
        bench::fill_normal(key.get(), k[0] * k[1] * k[2] * k[3], 2, 1.0f);
        bench::fill_normal(value.get(), v[0] * v[1] * v[2] * v[3], 3, 1.0f);
        query_tensor = headway_tensor_dense(query.get(), HEADWAY_F32, 4, q);
        key_tensor = headway_tensor_dense(key.get(), HEADWAY_F32, 4, k);
        value_tensor = headway_tensor_dense(value.get(), HEADWAY_F32, 4, v);
        params.causal = shape.causal ? HEADWAY_CAUSAL_BOTTOM_RIGHT : HEADWAY_CAUSAL_NONE;
        if (shape.masked) {
            for (int64_t b = 0; b < shape.B; b++)
                for (int64_t j = 0; j < shape.Lk; j++)
                    mask.push_back(j < shape.Lk - shape.masked);
            mask_tensor = headway_tensor_dense(mask.data(), HEADWAY_BOOL, 4, m);
            params.mask = &mask_tensor;
        }
        if (shape.biased) {
            const int64_t s[] = {shape.B, shape.Hq, shape.Lq, shape.Lk};
            bias = bench::floats(s[0] * s[1] * s[2] * s[3]);
            bench::fill_normal(bias.get(), s[0] * s[1] * s[2] * s[3], 4, 1.0f);
            mask_tensor = headway_tensor_dense(bias.get(), HEADWAY_F32, 4, s);
            params.mask = &mask_tensor;
        }
    }
    int64_t out_count() const
    {
        return shape.B * shape.Lq * shape.Hq * shape.Dv;
    }
    headway_tensor out_tensor(float *out) const
    {
        const int64_t o[] = {shape.B, shape.Lq, shape.Hq, shape.Dv};
        return headway_tensor_dense(out, HEADWAY_F32, 4, o);
    }

    Shape shape;
    Floats query, key, value, bias;
    std::vector<unsigned char> mask;
    headway_tensor query_tensor, key_tensor, value_tensor, mask_tensor{};
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    Expected expected;
};

void expect(Data &data)
{
    const int64_t count = data.out_count();
    if (data.shape.attention_flops() <= bench::reference_flops) {
        headway_reference_out results{};
        data.expected.values.resize(static_cast<size_t>(count));
        data.expected.bounds.resize(static_cast<size_t>(count));
        results.out = data.expected.values.data();
        results.out_bound = data.expected.bounds.data();
        if (headway_reference_attention(&data.params, &data.query_tensor, &data.key_tensor,
                                        &data.value_tensor, &results) == 0)
            return;
    }
    Floats out = bench::floats(count);
    bench::Unfused unfused(bench::rows()[0], 1, data.shape);
    unfused.run(data.query.get(), data.key.get(), data.value.get(), out.get(), data.bias.get());
    data.expected = bench::expect_like(out.get(), count);
}

/* The latest shape's data; the next shape's takes its place. */
std::shared_ptr<Data> data_of(const Shape &shape)
{
    static std::shared_ptr<Data> latest;
    if (!latest || latest->shape.name != shape.name) {
        latest.reset();
        latest = std::make_shared<Data>(shape);
        expect(*latest);
    }
    return latest;
}

void prepare_headway(Prepared &made, const Data &data, const headway_tensor &out)
{
    bench::Engine engine = bench::make_engine(made.row, made.threads);
    size_t bytes = 0;
    if (!engine) {
        made.error = "FAIL: headway_engine_create";
        return;
    }
    if (headway_attention_workspace(engine.get(), &data.params, &data.query_tensor,
                                    &data.key_tensor, &data.value_tensor, &bytes) != HEADWAY_OK) {
        made.error = "FAIL: headway_attention_workspace";
        return;
    }
    std::shared_ptr<headway_engine> shared = std::move(engine);
    Floats workspace = bench::floats(static_cast<int64_t>(bytes / 4 + 1));
    made.workspace = static_cast<int64_t>(bytes);
    made.run = [=, &data, error = &made.error] {
        if (headway_attention(shared.get(), &data.params, &data.query_tensor, &data.key_tensor,
                              &data.value_tensor, &out, workspace.get(), bytes) != HEADWAY_OK)
            *error = "FAIL: headway_attention";
    };
}

void prepare_onednn(Prepared &made, headway_onednn_path path, const Data &data,
                    const headway_tensor &out)
{
    char note[512] = "";
    bench::set_openmp_threads(made.threads);
    std::shared_ptr<headway_onednn> onednn(
        headway_onednn_attention(path, &data.params, &data.query_tensor, &data.key_tensor,
                                 &data.value_tensor, &out, note, sizeof note),
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
    auto out_tensor = std::make_shared<headway_tensor>(data->out_tensor(out.get()));
    made.owned = {data, out, out_tensor};
    if (who.kind == Who::Headway) {
        prepare_headway(made, *data, *out_tensor);
    } else if (who.kind == Who::UnfusedPath) {
        auto unfused = std::make_shared<bench::Unfused>(who.row, made.threads, shape);
        made.workspace = unfused->bytes();
        made.run = [=] {
            unfused->run(data->query.get(), data->key.get(), data->value.get(), out.get(),
                         data->bias.get());
        };
    } else {
        prepare_onednn(made,
                       who.kind == Who::Graph ? HEADWAY_ONEDNN_GRAPH : HEADWAY_ONEDNN_PRIMITIVES,
                       *data, *out_tensor);
    }
    if (made.error.empty())
        made.run();
    if (made.error.empty())
        made.error = data->expected.check(out.get());
}

} // namespace

int main(int argc, char **argv)
{
    const bench::Options options = bench::take_options(argc, argv);
    std::vector<Shape> shapes = standard;
    if (options.sweep)
        for (const Shape &shape : sweep())
            shapes.push_back(shape);
    shapes.insert(shapes.end(), options.shapes.begin(), options.shapes.end());
    for (const Shape &shape : shapes)
        for (int threads : options.threads)
            for (const Who &who : bench::everybody()) {
                const std::string name = "attention/" + who.name + "/f32/" + shape.name +
                                         "/threads:" + std::to_string(threads);
                bench::register_case(name, [=, slow = options.slow](Prepared &made) {
                    made.threads = threads;
                    prepare(made, who, shape, slow);
                });
            }
    return bench::run_all();
}
