/* linear/headway/f32/m<M>_<N>x<K>/threads:<N>: M tokens through a projection of K inputs and N
 * outputs, as the layer runs it; up to 64 tokens its weights come from memory.
 * kernels/<kernel>/<isa>/<sizes>: one kernel on data in cache, one thread. GFLOPS of the GEMMs are
 * as usual; the softmax is counted as 20 operations an element (what exp_poly.h, maximum and sum
 * take); pack and unpack, which compute nothing, are counted in bytes; dot and mix, a block of stored
 * keys or values against few lanes, in both. */
#include "attention.h"

#include <algorithm>
#include <cmath>

/* A struct and a function of one name are C's. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
extern "C" {
#include "api/engine.h"
#include "core/linear.h"
#include "cpu/exp_poly.h"
}
#pragma GCC diagnostic pop

namespace
{

using bench::Floats;
using bench::Prepared;

constexpr int keys = HEADWAY_KEY_BLOCK;

Floats normal(int64_t count, uint64_t seed)
{
    Floats made = bench::floats(count);
    bench::fill_normal(made.get(), count, seed, 1.0f);
    return made;
}

/* A GEMM's tile, checked against double sums at its first and last element. */
struct Gemm {
    headway_gemm g{};
    Floats a, b, c, scale, bias;
    int lanes = 0;
};

std::shared_ptr<Gemm> make_gemm(const headway_row *row, int64_t m, int64_t k, ptrdiff_t a_row,
                                ptrdiff_t a_col)
{
    auto made = std::make_shared<Gemm>();
    const int width = row->vectors * row->lanes;
    made->lanes = row->lanes;
    made->a = normal((m - 1) * a_row + (k - 1) * a_col + 1, 1);
    made->b = normal(k * width, 2);
    made->c = normal(m * width, 3);
    made->scale = bench::floats(width);
    made->bias = normal(width, 5);
    std::fill_n(made->scale.get(), width, 0.5f);
    headway_gemm &g = made->g;
    g.m = m;
    g.k = k;
    g.vectors = row->vectors;
    g.a = made->a.get();
    g.a_row = a_row;
    g.a_col = a_col;
    g.b = made->b.get();
    for (int v = 0; v < row->vectors; v++)
        g.c[v] = made->c.get() + v * row->lanes;
    g.c_row = width;
    return made;
}

std::string check_gemm(const headway_row *row, Gemm &gemm)
{
    const headway_gemm &g = gemm.g;
    const int width = g.vectors * gemm.lanes;
    std::vector<double> sums(size_t(g.m * width)), bounds(sums.size());
    for (int64_t i = 0; i < g.m; i++)
        for (int j = 0; j < width; j++) {
            const size_t at = size_t(i * width + j);
            double sum = 0, size = 0;
            if (g.accumulate)
                sum = double(gemm.c[i * width + j]) * double(g.scale ? gemm.scale[j] : 1.0f);
            size = std::fabs(sum);
            for (int64_t p = 0; p < g.k; p++) {
                const double a = double(g.a[i * g.a_row + p * g.a_col]);
                const double product = a * double(g.b[p * width + j]);
                sum += product;
                size += std::fabs(product);
            }
            if (g.bias)
                sum += double(gemm.bias[j]);
            sums[at] = sum;
            bounds[at] = double(g.k + 4) * 0x1p-24 * (size + 4);
        }
    row->gemm(&g);
    return bench::compare(gemm.c.get(), sums.data(), bounds.data(), 0, g.m * width);
}

void prepare_gemm(Prepared &made, std::shared_ptr<Gemm> gemm)
{
    const headway_row *row = made.row;
    made.flops = 2.0 * double(gemm->g.m * gemm->g.k * gemm->g.vectors * gemm->lanes);
    made.error = check_gemm(row, *gemm);
    made.run = [=] { row->gemm(&gemm->g); };
}

/* K . Q^T: a block of keys of one head of 12 against a packed tile of queries. */
void scores(Prepared &made, int64_t D)
{
    prepare_gemm(made, make_gemm(made.row, keys, D, 12 * D, 1));
}

/* P . V: the same block's values against a tile of weights, on top of the rescaled sums. */
void values(Prepared &made, int64_t D)
{
    auto gemm = make_gemm(made.row, D, keys, 1, 12 * D);
    gemm->g.accumulate = 1;
    gemm->g.scale = gemm->scale.get();
    prepare_gemm(made, gemm);
}

/* A block of tokens against one panel of packed weights. */
void projection(Prepared &made, int64_t m, int64_t k)
{
    auto gemm = make_gemm(made.row, m, k, k, 1);
    gemm->g.bias = gemm->bias.get();
    prepare_gemm(made, gemm);
}

struct Softmax {
    Floats source, scores, row_max, row_sum, rescale;
    headway_softmax s{};
};

void softmax(Prepared &made, int64_t)
{
    const headway_row *row = made.row;
    const int width = row->vectors * row->lanes;
    auto tile = std::make_shared<Softmax>();
    tile->source = normal(keys * width, 1);
    tile->scores = bench::floats(keys * width);
    tile->row_max = bench::floats(width);
    tile->row_sum = bench::floats(width);
    tile->rescale = bench::floats(width);
    tile->s.keys = keys;
    tile->s.vectors = row->vectors;
    tile->s.scores = tile->scores.get();
    tile->s.row_max = tile->row_max.get();
    tile->s.row_sum = tile->row_sum.get();
    tile->s.rescale = tile->rescale.get();
    made.flops = 20.0 * keys * width;
    /* In place: every round needs fresh scores, and the copy is part of the time. */
    made.run = [=] {
        std::copy_n(tile->source.get(), keys * width, tile->scores.get());
        std::fill_n(tile->row_max.get(), width, -INFINITY);
        std::fill_n(tile->row_sum.get(), width, 0.0f);
        row->softmax(&tile->s);
    };
    made.run();
    std::vector<double> weights(size_t(keys * width));
    for (int i = 0; i < width; i++) {
        double top = -INFINITY;
        for (int j = 0; j < keys; j++)
            top = std::max(top, double(tile->source[j * width + i]));
        for (int j = 0; j < keys; j++)
            weights[size_t(j * width + i)] =
                std::exp2(2.0 * (double(tile->source[j * width + i]) - top));
    }
    made.error = bench::compare(tile->scores.get(), weights.data(), nullptr, 1e-6, keys * width);
}

struct Transpose {
    Floats lines, panel, divisor;
    std::vector<float *> to;
    std::vector<const float *> from;
};

std::shared_ptr<Transpose> make_transpose(int width, int64_t D)
{
    auto made = std::make_shared<Transpose>();
    made->lines = normal(width * 12 * D, 1);
    made->panel = normal(D * width, 2);
    made->divisor = bench::floats(width);
    std::fill_n(made->divisor.get(), width, 2.0f);
    for (int i = 0; i < width; i++) {
        made->to.push_back(made->lines.get() + i * 12 * D);
        made->from.push_back(made->to.back());
    }
    return made;
}

/* Queries of one head of 12 into a panel, read and written. */
void pack(Prepared &made, int64_t D)
{
    const headway_row *row = made.row;
    const int width = row->vectors * row->lanes;
    auto data = make_transpose(width, D);
    made.bytes = 8.0 * double(D * width);
    made.run = [=] { row->pack(data->panel.get(), width, data->from.data(), width, D, 0.5f); };
    made.run();
    for (int i = 0; i < width; i++)
        for (int64_t p = 0; p < D; p++)
            if (!(data->panel[p * width + i] == data->from[size_t(i)][p] * 0.5f))
                made.error = "FAIL: a packed value is another";
}

void unpack(Prepared &made, int64_t D)
{
    const headway_row *row = made.row;
    const int width = row->vectors * row->lanes;
    auto data = make_transpose(width, D);
    made.bytes = 8.0 * double(D * width);
    made.run = [=] {
        row->unpack(data->to.data(), width, data->panel.get(), width, D, data->divisor.get());
    };
    made.run();
    for (int i = 0; i < width; i++)
        for (int64_t p = 0; p < D; p++)
            if (!(data->to[size_t(i)][p] == data->panel[p * width + i] / 2.0f))
                made.error = "FAIL: an unpacked value is another";
}

struct Few {
    Floats floats, panel, sums, rescale;
    std::vector<uint8_t> stored;
    std::vector<const void *> row;
    std::vector<float> scale;
    headway_rows rows{};
    headway_dot dot{};
    headway_mix mix{};
};

/* A block's rows of one head of 12, kept as `storage` says; `floats` are their values. */
std::shared_ptr<Few> make_few(const headway_row *row, headway_storage storage, int n, int64_t D)
{
    auto made = std::make_shared<Few>();
    const int width = row->lanes * ((n + row->lanes - 1) / row->lanes);
    const int64_t size = storage == HEADWAY_STORED_F32 ? 4 : storage == HEADWAY_STORED_I8 ? 1 : 2;
    made->floats = normal(keys * D, 1);
    made->panel = normal(std::max<int64_t>(keys, D) * width, 2);
    made->sums = normal(std::max<int64_t>(keys * width, n * D), 3);
    made->rescale = bench::floats(n);
    std::fill_n(made->rescale.get(), n, 0.5f);
    made->stored.resize(size_t(keys * D * size));
    made->scale.resize(keys);
    for (int64_t j = 0; j < keys; j++) {
        void *at = made->stored.data() + j * D * size;
        float *line = made->floats.get() + j * D;
        row->narrow(at, line, D, storage, &made->scale[size_t(j)]);
        row->widen(line, at, D, storage, made->scale[size_t(j)]);
        made->row.push_back(at);
    }
    made->rows = {made->row.data(), nullptr, made->scale.data(), keys, storage};
    made->dot = {&made->rows, n, width, D, made->panel.get(), made->sums.get()};
    made->mix = {&made->rows,      n, width, D, made->panel.get(), made->rescale.get(), 0,
                 made->sums.get(), D};
    return made;
}

void dot(Prepared &made, headway_storage storage, int n, int64_t D)
{
    const headway_row *row = made.row;
    auto few = make_few(row, storage, n, D);
    const int64_t width = few->dot.width;
    std::vector<double> sums(size_t(keys * width)), bounds(sums.size());
    for (int64_t j = 0; j < keys; j++)
        for (int64_t l = 0; l < n; l++)
            for (int64_t p = 0; p < D; p++) {
                const double key = double(few->floats[j * D + p]);
                const double product = key * double(few->panel[p * width + l]);
                sums[size_t(j * width + l)] += product;
                bounds[size_t(j * width + l)] += double(D + 1) * 0x1p-24 * std::fabs(product);
            }
    row->dot(&few->dot);
    made.error = bench::compare(few->sums.get(), sums.data(), bounds.data(), 0, keys * width);
    made.flops = 2.0 * double(keys * n * D);
    made.bytes = double(few->stored.size());
    made.run = [=] { row->dot(&few->dot); };
}

void mix(Prepared &made, headway_storage storage, int n, int64_t D)
{
    const headway_row *row = made.row;
    auto few = make_few(row, storage, n, D);
    std::vector<double> sums(size_t(n * D)), bounds(sums.size());
    for (int64_t l = 0; l < n; l++)
        for (int64_t d = 0; d < D; d++) {
            double sum = double(few->sums[l * D + d] * 0.5f), size = std::fabs(sum);
            for (int64_t j = 0; j < keys; j++) {
                const double value = double(few->floats[j * D + d]);
                const double product = value * double(few->panel[j * few->mix.width + l]);
                sum += product;
                size += std::fabs(product);
            }
            sums[size_t(l * D + d)] = sum;
            bounds[size_t(l * D + d)] = double(keys + 1) * 0x1p-24 * size;
        }
    row->mix(&few->mix);
    made.error = bench::compare(few->sums.get(), sums.data(), bounds.data(), 0, n * D);
    made.flops = 2.0 * double(keys * n * D);
    made.bytes = double(few->stored.size());
    made.run = [=] { row->mix(&few->mix); };
}

/* A projection of N outputs and K inputs, packed several times over where it shall not stay in a
 * cache: a run takes the next copy, and all of them exceed the last level twice. */
struct Linear {
    Linear(int64_t N, int64_t K, bool rotates)
        : outputs(N), inputs(K), matrix(normal(N * K, 11)), bias(normal(N, 12))
    {
        headway_linear made{};
        int64_t size = 0;
        made.inputs = K;
        made.groups = 1;
        made.size = N;
        made.has_bias = 1;
        if (headway_linear_size(&made, bench::rows()[0], &size) != 0)
            return;
        const int64_t twice = 2 * bench::last_level_bytes();
        const int64_t count = rotates ? std::max<int64_t>(2, twice / (4 * size) + 1) : 1;
        const headway_weight_view view = {matrix.get(), 0, K, 1, bias.get(), 0, 1};
        std::vector<float> zeros(static_cast<size_t>(K));
        for (int64_t i = 0; i < count; i++) {
            rooms.push_back(bench::floats(size));
            headway_linear_attach(&made, bench::rows()[0], rooms.back().get());
            headway_linear_pack(&made, bench::rows()[0], &view, rooms.back().get(), zeros.data());
            copies.push_back(made);
        }
    }

    void run(const headway_machine &machine, int64_t tokens, const float *x, float *y)
    {
        headway_linear_job job{};
        job.linear = &copies[next++ % copies.size()];
        job.x = x;
        job.x_batch = tokens * inputs;
        job.x_row = inputs;
        job.y = y;
        job.y_batch = tokens * outputs;
        job.y_row = outputs;
        job.batch = 1;
        job.rows = tokens;
        headway_linear_run(&machine, &job, 1);
    }

    /* "" or what is wrong in y: every row at channels that fall on all lanes and panels. */
    std::string check(int64_t tokens, const float *x, const float *y) const
    {
        std::vector<float> got;
        std::vector<double> sums, bounds;
        for (int64_t i = 0; i < tokens; i++)
            for (int64_t c = i % 31; c < outputs; c += 31) {
                double sum = double(bias[c]), size = std::fabs(sum);
                for (int64_t p = 0; p < inputs; p++) {
                    const double product =
                        double(x[i * inputs + p]) * double(matrix[c * inputs + p]);
                    sum += product;
                    size += std::fabs(product);
                }
                got.push_back(y[i * outputs + c]);
                sums.push_back(sum);
                bounds.push_back(double(inputs + 2) * 0x1p-24 * size);
            }
        return bench::compare(got.data(), sums.data(), bounds.data(), 0, int64_t(got.size()));
    }

    int64_t outputs, inputs;
    Floats matrix, bias;
    std::vector<Floats> rooms;
    std::vector<headway_linear> copies;
    size_t next = 0;
};

/* The latest sizes' weights, for any number of tokens. */
std::shared_ptr<Linear> linear_of(int64_t N, int64_t K, bool rotates)
{
    static std::shared_ptr<Linear> latest;
    if (!latest || latest->outputs != N || latest->inputs != K) {
        latest.reset();
        latest = std::make_shared<Linear>(N, K, rotates);
    }
    return latest;
}

void prepare_linear(Prepared &made, int64_t M, int64_t N, int64_t K)
{
    made.row = bench::rows()[0];
    made.label = made.row->name;
    made.flops = 2.0 * double(M * N * K);
    made.bytes = 4.0 * double(N * K + M * (N + K));
    made.error = bench::why_skipped(made.row, made.threads, made.flops, true);
    if (!made.error.empty())
        return;
    std::shared_ptr<headway_engine> engine = bench::make_engine(made.row, made.threads);
    auto linear = linear_of(N, K, M <= 64);
    if (!engine || linear->copies.empty()) {
        made.error = "FAIL: no engine or no room";
        return;
    }
    made.owned = {engine};
    Floats x = normal(M * K, 1), y = bench::floats(M * N);
    made.run = [=, machine = headway_engine_machine(engine.get())] {
        linear->run(machine, M, x.get(), y.get());
    };
    for (size_t i = 0; i < linear->copies.size() && made.error.empty(); i++) {
        std::fill_n(y.get(), M * N, NAN);
        made.run();
        made.error = linear->check(M, x.get(), y.get());
    }
}

void register_linear(const std::vector<int> &counts)
{
    for (int64_t M : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 512})
        for (int threads : counts) {
            const int64_t size = M <= 64 ? 4096 : 768;
            const std::string sizes =
                "m" + std::to_string(M) + "_" + std::to_string(size) + "x" + std::to_string(size);
            bench::register_case("linear/headway/f32/" + sizes +
                                     "/threads:" + std::to_string(threads),
                                 [=](Prepared &made) {
                                     made.threads = threads;
                                     prepare_linear(made, M, size, size);
                                 });
        }
}

} // namespace

int main(int argc, char **argv)
{
    struct Case {
        std::string kernel, sizes;
        std::function<void(Prepared &)> make;
    };
    std::vector<Case> cases;
    const bench::Options options = bench::take_options(argc, argv);
    for (int64_t D : {32, 64, 80, 128}) {
        const std::string sizes = "d" + std::to_string(D);
        cases.push_back({"scores", sizes, [D](Prepared &made) { scores(made, D); }});
        cases.push_back({"values", sizes, [D](Prepared &made) { values(made, D); }});
        cases.push_back({"pack", sizes, [D](Prepared &made) { pack(made, D); }});
        cases.push_back({"unpack", sizes, [D](Prepared &made) { unpack(made, D); }});
    }
    for (int64_t m : {1, 16, 128})
        cases.push_back({"projection", "m" + std::to_string(m) + "k768",
                         [m](Prepared &made) { projection(made, m, 768); }});
    const char *const stored[] = {"f32", "f16", "bf16", "i8"};
    for (int storage = HEADWAY_STORED_F32; storage <= HEADWAY_STORED_I8; storage++)
        for (int n : {1, 4, 8}) {
            const auto kept = static_cast<headway_storage>(storage);
            const std::string sizes =
                std::string(stored[storage]) + "n" + std::to_string(n) + "d128";
            cases.push_back({"dot", sizes, [=](Prepared &made) { dot(made, kept, n, 128); }});
            cases.push_back({"mix", sizes, [=](Prepared &made) { mix(made, kept, n, 128); }});
        }
    cases.push_back({"softmax", "keys128", [](Prepared &made) { softmax(made, keys); }});
    std::stable_sort(cases.begin(), cases.end(),
                     [](const Case &a, const Case &b) { return a.kernel < b.kernel; });
    for (const Case &one : cases)
        for (const headway_row *row : bench::rows())
            bench::register_case("kernels/" + one.kernel + "/" + row->name + "/" + one.sizes,
                                 [=, make = one.make](Prepared &made) {
                                     made.row = row;
                                     made.label = row->name;
                                     made.from_memory = false;
                                     make(made);
                                 });
    register_linear(options.threads);
    return bench::run_all();
}
