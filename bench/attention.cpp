#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

extern "C" {
#include "cpu/exp_poly.h"
#include "system/parallel.h"
}

namespace bench
{

namespace
{

/* Output elements that one call of the second GEMM makes: its result stays on the stack. */
constexpr int64_t value_step = 64;

} // namespace

/* One tile of the matrix: (Lk, width) of the query rows of one key-value head. */
struct Unfused::Tile {
    int64_t batch, kv_head, first;
    int count;
    float *scores;
};

Unfused::Unfused(const headway_row *row, int threads, const Shape &shape)
    : row_(row), threads_(threads), shape_(shape), rows_(shape.Hq / shape.Hkv * shape.Lq)
{
    const int64_t needed = (rows_ + row->lanes - 1) / row->lanes;
    vectors_ = static_cast<int>(std::min<int64_t>(row->vectors, needed));
    width_ = vectors_ * row->lanes;
    tiles_ = (rows_ + width_ - 1) / width_;
    matrix_floats_ = shape.B * shape.Hkv * tiles_ * shape.Lk * width_;
    matrix_ = floats(matrix_floats_);
}

Unfused::Tile Unfused::tile(int64_t task) const
{
    Tile tile;
    tile.batch = task / tiles_ / shape_.Hkv;
    tile.kv_head = task / tiles_ % shape_.Hkv;
    tile.first = task % tiles_ * width_;
    tile.count = static_cast<int>(std::min<int64_t>(width_, rows_ - tile.first));
    tile.scores = matrix_.get() + task * shape_.Lk * width_;
    return tile;
}

void Unfused::scores(int64_t task) const
{
    const Tile t = tile(task);
    const int64_t group = shape_.Hq / shape_.Hkv, D = shape_.D;
    const float scale = HEADWAY_EXP_UNIT / std::sqrt(static_cast<float>(D));
    const float *lines[HEADWAY_MAX_WIDTH];
    thread_local std::vector<float> panel;

    panel.resize(static_cast<size_t>(D * width_));
    for (int i = 0; i < t.count; i++) {
        const int64_t r = t.first + i, token = r / group, head = t.kv_head * group + r % group;
        lines[i] = query_ + ((t.batch * shape_.Lq + token) * shape_.Hq + head) * D;
    }
    row_->pack(panel.data(), width_, lines, t.count, D, scale);
    headway_gemm gemm{};
    gemm.m = shape_.Lk;
    gemm.k = D;
    gemm.vectors = vectors_;
    gemm.a = key_ + shape_.first_key(t.batch, t.kv_head, D);
    gemm.a_row = shape_.key_pitch(D);
    gemm.a_col = 1;
    gemm.b = panel.data();
    for (int v = 0; v < vectors_; v++)
        gemm.c[v] = t.scores + v * row_->lanes;
    gemm.c_row = width_;
    row_->gemm(&gemm);
}

/* The bias of one block of keys, as the scores lie. */
void Unfused::bias(const Tile &t, int64_t begin, int keys, float *panel) const
{
    const int64_t group = shape_.Hq / shape_.Hkv;
    const float *lines[HEADWAY_MAX_WIDTH];
    for (int i = 0; i < t.count; i++) {
        const int64_t r = t.first + i, token = r / group, head = t.kv_head * group + r % group;
        lines[i] = bias_ + ((t.batch * shape_.Hq + head) * shape_.Lq + token) * shape_.Lk + begin;
    }
    row_->pack(panel, width_, lines, t.count, keys, 1);
}

/* The softmax kernel goes forward by blocks and leaves each block relative to the maximum so far;
 * the way back brings all to the last one and divides by the sum. */
void Unfused::softmax(int64_t task) const
{
    const Tile t = tile(task);
    const int64_t group = shape_.Hq / shape_.Hkv;
    const int64_t blocks = (shape_.Lk + HEADWAY_KEY_BLOCK - 1) / HEADWAY_KEY_BLOCK;
    int32_t first[HEADWAY_MAX_WIDTH], last[HEADWAY_MAX_WIDTH];
    float row_max[HEADWAY_MAX_WIDTH], row_sum[HEADWAY_MAX_WIDTH], factor[HEADWAY_MAX_WIDTH];
    thread_local std::vector<float> rescale, panel;

    rescale.resize(static_cast<size_t>(blocks * width_));
    panel.resize(bias_ ? static_cast<size_t>(HEADWAY_KEY_BLOCK * width_) : 0);
    std::fill_n(row_max, width_, -INFINITY);
    std::fill_n(row_sum, width_, 0.0f);
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t begin = block * HEADWAY_KEY_BLOCK;
        for (int i = 0; i < width_; i++) {
            const Keys keys = shape_.keys_of((t.first + i) / group);
            first[i] = static_cast<int32_t>(keys.first - begin);
            last[i] = static_cast<int32_t>(keys.last - begin);
        }
        headway_softmax s{};
        s.keys = static_cast<int>(std::min<int64_t>(HEADWAY_KEY_BLOCK, shape_.Lk - begin));
        s.vectors = vectors_;
        s.scores = t.scores + begin * width_;
        if (shape_.causal || shape_.masked || shape_.window >= 0 || shape_.prefix) {
            s.first = first;
            s.last = last;
        }
        if (bias_) {
            bias(t, begin, s.keys, panel.data());
            s.bias = panel.data();
        }
        s.row_max = row_max;
        s.row_sum = row_sum;
        s.rescale = rescale.data() + block * width_;
        row_->softmax(&s);
    }
    for (int i = 0; i < width_; i++)
        factor[i] = row_sum[i] > 0 ? 1.0f / row_sum[i] : 0.0f;
    for (int64_t block = blocks - 1; block >= 0; block--) {
        const int64_t end = std::min<int64_t>((block + 1) * HEADWAY_KEY_BLOCK, shape_.Lk);
        for (int64_t j = block * HEADWAY_KEY_BLOCK; j < end; j++)
            for (int i = 0; i < width_; i++)
                t.scores[j * width_ + i] *= factor[i];
        for (int i = 0; i < width_; i++)
            factor[i] *= rescale[static_cast<size_t>(block * width_ + i)];
    }
}

void Unfused::output(int64_t task) const
{
    const Tile t = tile(task);
    const int64_t group = shape_.Hq / shape_.Hkv, Dv = shape_.Dv;
    alignas(64) float sums[value_step * HEADWAY_MAX_WIDTH];
    float ones[HEADWAY_MAX_WIDTH];
    float *lines[HEADWAY_MAX_WIDTH];

    std::fill_n(ones, width_, 1.0f);
    for (int64_t d = 0; d < Dv; d += value_step) {
        headway_gemm gemm{};
        gemm.m = std::min(value_step, Dv - d);
        gemm.k = shape_.Lk;
        gemm.vectors = vectors_;
        gemm.a = value_ + shape_.first_key(t.batch, t.kv_head, Dv) + d;
        gemm.a_row = 1;
        gemm.a_col = shape_.key_pitch(Dv);
        gemm.b = t.scores;
        for (int v = 0; v < vectors_; v++)
            gemm.c[v] = sums + v * row_->lanes;
        gemm.c_row = width_;
        row_->gemm(&gemm);
        for (int i = 0; i < t.count; i++) {
            const int64_t r = t.first + i, token = r / group, head = t.kv_head * group + r % group;
            lines[i] = out_ + ((t.batch * shape_.Lq + token) * shape_.Hq + head) * Dv + d;
        }
        row_->unpack(lines, t.count, sums, width_, gemm.m, ones);
    }
}

void Unfused::phase(void (Unfused::*step)(int64_t) const) const
{
    struct Context {
        const Unfused *self;
        void (Unfused::*step)(int64_t) const;
    } context{this, step};
    headway_team team{};
    team.threads = threads_;
    headway_parallel(
        &team, threads_, shape_.B * shape_.Hkv * tiles_,
        [](void *given, int64_t task, int) {
            Context *c = static_cast<Context *>(given);
            (c->self->*c->step)(task);
        },
        &context);
}

void Unfused::run(const float *query, const float *key, const float *value, float *out,
                  const float *bias)
{
    query_ = query;
    key_ = key;
    value_ = value;
    out_ = out;
    bias_ = bias;
    phase(&Unfused::scores);
    phase(&Unfused::softmax);
    phase(&Unfused::output);
}

std::vector<Who> everybody()
{
    const headway_row *best = rows()[0];
    std::vector<Who> all = {{"headway", Who::Headway, best},
                            {"onednn-graph", Who::Graph, best},
                            {"onednn-primitives", Who::Primitives, best},
                            {"unfused", Who::UnfusedPath, best}};
    for (const headway_row *row : rows())
        all.push_back({std::string("headway-") + row->name, Who::Headway, row});
    return all;
}

std::string why_skipped(const headway_row *row, int threads, double flops, bool slow)
{
    if (headway_threads_allowed(threads) < threads)
        return "skipped: this machine or build gives fewer threads";
    const double seconds = slow ? 0 : flops / fma_peak(row, 1) / threads;
    char text[128] = "";
    if (seconds > 3)
        std::snprintf(text, sizeof text,
                      "skipped: a call takes at least %.0f s on row %s; --slow runs it", seconds,
                      row->name);
    return text;
}

std::string Expected::check(const float *got) const
{
    return compare(got, values.data(), bounds.empty() ? nullptr : bounds.data(), bound,
                   static_cast<int64_t>(values.size()));
}

Expected expect_like(const float *result, int64_t count)
{
    Expected expected;
    expected.values.assign(result, result + count);
    for (double value : expected.values)
        expected.bound = std::max(expected.bound, 1e-4 * std::fabs(value));
    return expected;
}

} // namespace bench
