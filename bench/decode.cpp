/* A decode step of a whole layer: projections of a token, its key and value into a cache, attention to
 * all that is there, the output's projection. */
#include "layer.h"

extern "C" {
#include "oracle/reference.h"
}

namespace bench
{

namespace
{

/* A decode step: a token for each of B sequences with `past` tokens in a cache. */
struct Step {
    std::string name;
    int64_t B, past = 4096;
};
const std::vector<Step> steps = {{"step4k", 1}, {"step4kb4", 4}, {"step4kb8", 8}};

struct Stored {
    std::string name;
    headway_dtype dtype;
    int64_t bytes, scales; /* of an element; of a head's token beside its elements */
};
const std::vector<Stored> stored = {{"f32", HEADWAY_F32, 4, 0},
                                    {"f16", HEADWAY_F16, 2, 0},
                                    {"bf16", HEADWAY_BF16, 2, 0},
                                    {"i8", HEADWAY_I8, 1, 4}};

/* A layer of 4096 inputs as in models of 8e9 weights, and its cache. */
class Decode
{
  public:
    Decode(Engine engine, const Step &step, const Stored &type)
        : engine_(std::move(engine)), step_(step), type_(type),
          data_({step.name, step.B, 32, 8, 1, 1, 128, 128, false, 0}),
          out_(floats(data_.out_count()))
    {
        const int64_t sizes[] = {step.B, 1, data_.E};
        out_tensor_ = headway_tensor_dense(out_.get(), HEADWAY_F32, 3, sizes);
        rope_.style = HEADWAY_ROPE_HALF;
        rope_.theta = 500000;
        rope_.positions = step.past + 1;
        data_.config.rope = &rope_;
        error_ = make();
    }
    ~Decode()
    {
        headway_mha_destroy(layer_);
        headway_kv_cache_destroy(cache_);
    }
    Decode(const Decode &) = delete;
    Decode &operator=(const Decode &) = delete;

    const std::string &error() const
    {
        return error_;
    }
    int64_t workspace() const
    {
        return int64_t(bytes_);
    }
    double flops() const
    {
        Shape seen = data_.shape;
        seen.Lk = step_.past + 1;
        return data_.flops() + seen.attention_flops() - data_.shape.attention_flops();
    }
    /* Weights, keys, values, input and output once. */
    double bytes() const
    {
        const int64_t line = 2 * (data_.shape.D * type_.bytes + type_.scales);
        return data_.bytes() + double(step_.B * data_.shape.Hkv * (step_.past + 1) * line);
    }
    void run()
    {
        for (int64_t b = 0; b < step_.B; b++)
            if (headway_kv_cache_truncate(cache_, b, step_.past) != HEADWAY_OK)
                error_ = "FAIL: headway_kv_cache_truncate";
        if (headway_mha_forward(layer_, &data_.params, &data_.query_tensor, nullptr, nullptr,
                                &out_tensor_, workspace_.get(), bytes_) != HEADWAY_OK)
            error_ = "FAIL: headway_mha_forward";
    }
    /* The first sequence against the double reference on what its cache holds after a run. */
    std::string check() const
    {
        const Shape &s = data_.shape;
        const int64_t keys[] = {1, step_.past + 1, s.Hkv, s.D}, x[] = {1, 1, data_.E};
        const int32_t place = int32_t(step_.past);
        const Floats key = floats(keys[1] * s.Hkv * s.D), value = floats(keys[1] * s.Hkv * s.D);
        headway_tensor lines = headway_tensor_dense(key.get(), HEADWAY_F32, 3, keys + 1);
        headway_tensor others = headway_tensor_dense(value.get(), HEADWAY_F32, 3, keys + 1);
        const headway_tensor places =
            headway_tensor_dense(const_cast<int32_t *>(&place), HEADWAY_I32, 2, x);
        if (headway_kv_cache_read(cache_, 0, 0, &lines, &others) != HEADWAY_OK)
            return "FAIL: headway_kv_cache_read";
        const headway_tensor query = headway_tensor_dense(data_.query.get(), HEADWAY_F32, 3, x);
        const headway_tensor k = headway_tensor_dense(key.get(), HEADWAY_F32, 4, keys);
        const headway_tensor v = headway_tensor_dense(value.get(), HEADWAY_F32, 4, keys);
        headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
        params.query_positions = &places;
        std::vector<double> expected(size_t(data_.E)), bounds(size_t(data_.E));
        headway_reference_out results{};
        results.out = expected.data();
        results.out_bound = bounds.data();
        if (headway_reference_mha(&data_.config, &data_.weights, &params, &query, &k, &v,
                                  &results) != 0)
            return "the reference has no memory";
        return compare(out_.get(), expected.data(), bounds.data(), 0, data_.E);
    }

  private:
    std::string make()
    {
        const Shape &s = data_.shape;
        headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
        config.sequences = s.B;
        config.kv_heads = s.Hkv;
        config.head_size = s.D;
        config.capacity = step_.past + 1;
        config.key_dtype = config.value_dtype = type_.dtype;
        const int64_t tokens[] = {s.B, step_.past, s.Hkv, s.D};
        const int64_t count = s.B * step_.past * s.Hkv * s.D;
        const Floats key = floats(count), value = floats(count);
        fill_normal(key.get(), count, 21, 1.0f);
        fill_normal(value.get(), count, 22, 1.0f);
        const headway_tensor k = headway_tensor_dense(key.get(), HEADWAY_F32, 4, tokens);
        const headway_tensor v = headway_tensor_dense(value.get(), HEADWAY_F32, 4, tokens);
        if (headway_kv_cache_create(engine_.get(), &config, &cache_) != HEADWAY_OK ||
            headway_kv_cache_append(cache_, nullptr, nullptr, &k, &v) != HEADWAY_OK)
            return "FAIL: the cache was refused";
        data_.params.cache = cache_;
        if (headway_mha_create(engine_.get(), &data_.config, &data_.weights, &layer_) !=
                HEADWAY_OK ||
            headway_mha_workspace(layer_, &data_.params, &data_.query_tensor, nullptr, nullptr,
                                  &bytes_) != HEADWAY_OK)
            return "FAIL: the layer was refused";
        workspace_ = floats(int64_t(bytes_ / 4 + 1));
        return "";
    }

    Engine engine_;
    Step step_;
    Stored type_;
    LayerData data_;
    headway_rope_config rope_ = HEADWAY_ROPE_CONFIG_INIT;
    headway_kv_cache *cache_ = nullptr;
    headway_mha *layer_ = nullptr;
    size_t bytes_ = 0;
    Floats out_, workspace_;
    headway_tensor out_tensor_{};
    std::string error_;
};

void prepare_step(Prepared &made, const Step &step, const Stored &type)
{
    made.row = rows()[0];
    made.label = made.row->name;
    Engine engine = make_engine(made.row, made.threads);
    if (!engine) {
        made.error = "fewer threads here";
        return;
    }
    auto decode = std::make_shared<Decode>(std::move(engine), step, type);
    made.owned = {decode};
    made.flops = decode->flops();
    made.bytes = decode->bytes();
    made.workspace = decode->workspace();
    made.run = [decode = decode.get()] { decode->run(); };
    if (decode->error().empty())
        made.run();
    made.error = decode->error().empty() ? decode->check() : decode->error();
}

} // namespace

void register_steps(const std::vector<int> &thread_counts)
{
    for (const Step &step : steps)
        for (const Stored &type : stored)
            for (int threads : thread_counts) {
                if (step.B > 1 && type.dtype != HEADWAY_F32)
                    continue;
                const std::string name = "layer/headway/" + type.name + "/" + step.name +
                                         "/threads:" + std::to_string(threads);
                register_case(name, [=](Prepared &made) {
                    made.threads = threads;
                    prepare_step(made, step, type);
                });
            }
}

} // namespace bench
