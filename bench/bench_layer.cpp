/* layer/<who>/f32/<shape>/threads:<N>: self-attention with biases, projections included, and
 * others' beside it, and what decode.cpp has. */
#include "layer.h"

#include <algorithm>
#include <cmath>

extern "C" {
#include "oracle/reference.h"
#include "system/parallel.h"
}

namespace
{

using bench::Floats;
using bench::LayerData;
using bench::Prepared;
using bench::Shape;
using bench::Weight;
using bench::Who;

const std::vector<Shape> standard = {
    {"tiny", 1, 4, 4, 16, 16, 16, 16, false, 0},
    {"mini", 1, 12, 12, 128, 128, 32, 32, false, 0},
    {"base128", 1, 12, 12, 128, 128, 64, 64, false, 0},
    {"base512", 1, 12, 12, 512, 512, 64, 64, false, 0},
    {"base512b8", 8, 12, 12, 512, 512, 64, 64, false, 0},
    {"large", 1, 16, 16, 512, 512, 64, 64, false, 0},
};

/* y = x . W^T + bias with the row's GEMM, W packed once into panels. */
class Projection
{
  public:
    Projection(const headway_row *row, const Weight &weight)
        : row_(row), outputs_(weight.tensor.shape[0]), inputs_(weight.tensor.shape[1]),
          width_(row->vectors * row->lanes), panels_((outputs_ + width_ - 1) / width_),
          packed_(bench::floats(panels_ * inputs_ * width_)), bias_(bench::floats(panels_ * width_))
    {
        const float *lines[HEADWAY_MAX_WIDTH];
        std::fill_n(bias_.get(), panels_ * width_, 0.0f);
        std::copy_n(weight.bias.get(), outputs_, bias_.get());
        for (int64_t panel = 0; panel < panels_; panel++) {
            const int64_t first = panel * width_;
            const int count = int(std::min<int64_t>(width_, outputs_ - first));
            for (int i = 0; i < count; i++)
                lines[i] = weight.matrix.get() + (first + i) * inputs_;
            row->pack(packed_.get() + panel * inputs_ * width_, width_, lines, count, inputs_, 1);
        }
    }

    void run(int threads, const float *x, float *y, int64_t tokens) const
    {
        Call call{this, x, y, tokens};
        headway_team team{};
        team.threads = threads;
        headway_parallel(&team, threads, (tokens + block - 1) / block, run_block, &call);
    }

  private:
    static constexpr int64_t block = 64; /* tokens that stay in cache while the panels pass by */
    struct Call {
        const Projection *self;
        const float *x;
        float *y;
        int64_t tokens;
    };

    static void run_block(void *context, int64_t task, int)
    {
        const Call &call = *static_cast<const Call *>(context);
        const Projection &self = *call.self;
        const int64_t token = task * block;
        headway_gemm gemm{};
        gemm.m = std::min(block, call.tokens - token);
        gemm.k = self.inputs_;
        gemm.a = call.x + token * self.inputs_;
        gemm.a_row = self.inputs_;
        gemm.a_col = 1;
        gemm.c_row = self.outputs_;
        for (int64_t panel = 0; panel < self.panels_; panel++)
            self.run_panel(gemm, panel, call.y + token * self.outputs_);
    }

    /* The last panel may be narrower; its vectors past the outputs count nothing. */
    void run_panel(headway_gemm &gemm, int64_t panel, float *y) const
    {
        int count[HEADWAY_MAX_VECTORS];
        const int64_t first = panel * width_;
        for (int v = 0; v < row_->vectors; v++) {
            const int64_t left = outputs_ - first - v * row_->lanes;
            count[v] = int(std::clamp<int64_t>(left, 0, row_->lanes));
            gemm.c[v] = count[v] ? y + first + v * row_->lanes : y;
        }
        gemm.vectors = row_->vectors;
        gemm.b = packed_.get() + panel * inputs_ * width_;
        gemm.bias = bias_.get() + first;
        gemm.count = first + width_ > outputs_ ? count : nullptr;
        row_->gemm(&gemm);
    }

    const headway_row *row_;
    int64_t outputs_, inputs_;
    int width_;
    int64_t panels_;
    Floats packed_, bias_;
};

/* The unfused layer: projections into dense Q, K and V, the unfused attention, a projection. */
class UnfusedLayer
{
  public:
    UnfusedLayer(const headway_row *row, int threads, const LayerData &data)
        : threads_(threads), data_(data), attention_(row, threads, data.shape), q_(row, data.q),
          k_(row, data.k), v_(row, data.v), o_(row, data.o),
          query_(bench::floats(data.shape.B * data.shape.Lq * data.shape.Hq * data.shape.D)),
          key_(bench::floats(data.shape.B * data.shape.Lk * data.shape.Hkv * data.shape.D)),
          value_(bench::floats(data.shape.B * data.shape.Lk * data.shape.Hkv * data.shape.Dv)),
          heads_(bench::floats(data.shape.B * data.shape.Lq * data.shape.Hq * data.shape.Dv))
    {
    }

    void run(float *out)
    {
        const Shape &shape = data_.shape;
        const float *key = data_.key_or_null ? data_.key.get() : data_.query.get();
        q_.run(threads_, data_.query.get(), query_.get(), shape.B * shape.Lq);
        k_.run(threads_, key, key_.get(), shape.B * shape.Lk);
        v_.run(threads_, key, value_.get(), shape.B * shape.Lk);
        attention_.run(query_.get(), key_.get(), value_.get(), heads_.get());
        o_.run(threads_, heads_.get(), out, shape.B * shape.Lq);
    }

    int64_t bytes() const
    {
        const Shape &s = data_.shape;
        return attention_.bytes() + 4 * s.B * (s.D + s.Dv) * (s.Lq * s.Hq + s.Lk * s.Hkv);
    }

  private:
    int threads_;
    const LayerData &data_;
    bench::Unfused attention_;
    Projection q_, k_, v_, o_;
    Floats query_, key_, value_, heads_;
};

void expect(LayerData &data)
{
    const int64_t count = data.out_count();
    if (data.flops() <= bench::reference_flops) {
        headway_reference_out results{};
        data.expected.values.resize(size_t(count));
        data.expected.bounds.resize(size_t(count));
        results.out = data.expected.values.data();
        results.out_bound = data.expected.bounds.data();
        if (headway_reference_mha(&data.config, &data.weights, &data.params, &data.query_tensor,
                                  data.key_or_null, nullptr, &results) == 0)
            return;
    }
    Floats out = bench::floats(count);
    UnfusedLayer(bench::rows()[0], 1, data).run(out.get());
    data.expected = bench::expect_like(out.get(), count);
}

std::shared_ptr<LayerData> data_of(const Shape &shape)
{
    static std::shared_ptr<LayerData> latest;
    if (!latest || latest->shape.name != shape.name) {
        latest.reset();
        latest = std::make_shared<LayerData>(shape);
        expect(*latest);
    }
    return latest;
}

/* The engine outlives the layer. */
struct Layer {
    bench::Engine engine;
    headway_mha *layer = nullptr;
    ~Layer()
    {
        headway_mha_destroy(layer);
    }
};

void prepare_headway(Prepared &made, const LayerData &data, const headway_tensor &out)
{
    auto made_layer = std::make_shared<Layer>();
    size_t bytes = 0;
    made_layer->engine = bench::make_engine(made.row, made.threads);
    if (!made_layer->engine) {
        made.error = "FAIL: headway_engine_create";
        return;
    }
    if (headway_mha_create(made_layer->engine.get(), &data.config, &data.weights,
                           &made_layer->layer) != HEADWAY_OK ||
        headway_mha_workspace(made_layer->layer, &data.params, &data.query_tensor, data.key_or_null,
                              nullptr, &bytes) != HEADWAY_OK) {
        made.error = "FAIL: the layer was refused";
        return;
    }
    Floats workspace = bench::floats(int64_t(bytes / 4 + 1));
    made.workspace = int64_t(bytes);
    made.run = [=, &data, error = &made.error] {
        if (headway_mha_forward(made_layer->layer, &data.params, &data.query_tensor,
                                data.key_or_null, nullptr, &out, workspace.get(),
                                bytes) != HEADWAY_OK)
            *error = "FAIL: headway_mha_forward";
    };
}

void prepare_onednn(Prepared &made, headway_onednn_path path, const LayerData &data,
                    const headway_tensor &out)
{
    char note[512] = "";
    bench::set_openmp_threads(made.threads);
    std::shared_ptr<headway_onednn> onednn(
        headway_onednn_mha(path, &data.config, &data.weights, &data.params, &data.query_tensor,
                           data.key_or_null, nullptr, &out, note, sizeof note),
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
    std::shared_ptr<LayerData> data = data_of(shape);
    made.flops = data->flops();
    made.bytes = data->bytes();
    made.error = bench::why_skipped(who.row, made.threads, made.flops, slow);
    if (!made.error.empty())
        return;
    const int64_t sizes[] = {shape.B, shape.Lq, data->E};
    Floats out = bench::floats(data->out_count());
    std::fill_n(out.get(), data->out_count(), NAN);
    auto out_tensor =
        std::make_shared<headway_tensor>(headway_tensor_dense(out.get(), HEADWAY_F32, 3, sizes));
    made.owned = {data, out, out_tensor};
    if (who.kind == Who::Headway) {
        prepare_headway(made, *data, *out_tensor);
    } else if (who.kind == Who::UnfusedPath) {
        auto unfused = std::make_shared<UnfusedLayer>(who.row, made.threads, *data);
        made.workspace = unfused->bytes();
        made.run = [=] { unfused->run(out.get()); };
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
    shapes.insert(shapes.end(), options.shapes.begin(), options.shapes.end());
    for (const Shape &shape : shapes)
        for (int threads : options.threads)
            for (const Who &who : bench::everybody()) {
                const std::string name = "layer/" + who.name + "/f32/" + shape.name +
                                         "/threads:" + std::to_string(threads);
                bench::register_case(name, [=, slow = options.slow](Prepared &made) {
                    made.threads = threads;
                    prepare(made, who, shape, slow);
                });
            }
    bench::register_steps(options.threads);
    return bench::run_all();
}
