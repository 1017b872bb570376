/* Where the cycles of an attention call go, on one thread: the kernels are timed one by one on data
 * in cache, on the very tiles and blocks that the call is cut into; the products once more in the
 * call's order on the call's keys and values, which come from further away; all of it is added up
 * beside the time of the whole call. */
#include "attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

/* A struct and a function of one name are C's. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
extern "C" {
#include "api/engine.h"
#include "core/attend.h"
}
#pragma GCC diagnostic pop

namespace
{

using bench::Floats;
using bench::Shape;

const std::vector<Shape> standard = {
    {"bert128", 1, 12, 12, 128, 128, 64, 64},    {"bert512", 1, 12, 12, 512, 512, 64, 64},
    {"bert1024", 1, 12, 12, 1024, 1024, 64, 64}, {"d128", 1, 8, 8, 1024, 1024, 128, 128},
    {"mini128", 8, 12, 12, 128, 128, 32, 32},    {"vit197", 8, 12, 12, 197, 197, 64, 64}};

double now()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/* Seconds of one call of `run`: the least of several samples of some 50 us or a call. */
template <typename Run> double seconds(const Run &run)
{
    run();
    double start = now();
    run();
    const int calls = static_cast<int>(5e-5 / std::max(now() - start, 1e-7)) + 1;
    const double begin = now();
    double least = 1e9;
    for (int sample = 0; sample < 60 && (sample < 5 || now() - begin < 0.5); sample++) {
        start = now();
        for (int i = 0; i < calls; i++)
            run();
        least = std::min(least, (now() - start) / calls);
    }
    return least;
}

Floats normal(int64_t count, uint64_t seed)
{
    Floats made = bench::floats(count);
    bench::fill_normal(made.get(), count, seed, 1.0f);
    return made;
}

struct Parts {
    double products = 0, softmax = 0, edges = 0;
    double sum() const
    {
        return products + softmax + edges;
    }
    void add(const Parts &other, double times)
    {
        products += other.products * times;
        softmax += other.softmax * times;
        edges += other.edges * times;
    }
};

/* One tile at work in cache: n rows in `vectors` vectors of a row, the keys of one head. */
class Tile
{
  public:
    Tile(const headway_row *row, int vectors, int n, const Shape &shape)
        : row_(row), vectors_(vectors), width_(vectors * row->lanes), n_(n), D_(shape.D),
          pitch_(shape.Hkv * shape.D), lines_(normal(HEADWAY_MAX_WIDTH * pitch_, 1)),
          keys_(normal(HEADWAY_KEY_BLOCK * pitch_, 2)), panel_(normal(D_ * width_, 3)),
          scores_(normal(HEADWAY_KEY_BLOCK * width_, 4)), sum_(bench::floats(D_ * width_)),
          later_(normal(D_ * width_, 5)), stats_(bench::floats(6 * width_))
    {
        std::fill_n(sum_.get(), D_ * width_, 1.0f);
        std::fill_n(stats_.get(), 6 * width_, 1.0f);
        for (int i = 0; i < n; i++)
            at_[i] = lines_.get() + i * pitch_;
    }

    Parts whole(int64_t keys) const
    {
        Parts parts;
        parts.edges = pack() + unpack();
        for (int64_t begin = 0; begin < keys; begin += HEADWAY_KEY_BLOCK) {
            const int count = static_cast<int>(std::min<int64_t>(HEADWAY_KEY_BLOCK, keys - begin));
            const bool fresh = begin % HEADWAY_SEGMENT_KEYS == 0;
            parts.products += seconds([&] { scores(keys_.get(), count); }) +
                              seconds([&] { values(keys_.get(), count, fresh); });
            parts.softmax += softmax(count);
            if (fresh && begin > 0)
                parts.edges += merge();
        }
        return parts;
    }

    /* The products alone, of a head at these places. */
    void products(const float *key, const float *value, int64_t keys) const
    {
        for (int64_t begin = 0; begin < keys; begin += HEADWAY_KEY_BLOCK) {
            const int count = static_cast<int>(std::min<int64_t>(HEADWAY_KEY_BLOCK, keys - begin));
            scores(key + begin * pitch_, count);
            values(value + begin * pitch_, count, begin % HEADWAY_SEGMENT_KEYS == 0);
        }
    }

  private:
    double pack() const
    {
        return seconds([&] { row_->pack(panel_.get(), width_, at_, n_, D_, 0.1f); });
    }

    double unpack() const
    {
        std::fill_n(stats_.get(), width_, 2.0f);
        return seconds([&] { row_->unpack(at_, n_, later_.get(), width_, D_, stats_.get()); });
    }

    headway_gemm gemm(const float *a, int64_t m, int64_t k, ptrdiff_t a_row, ptrdiff_t a_col,
                      const Floats &b, const Floats &c) const
    {
        headway_gemm g{};
        g.m = m;
        g.k = k;
        g.vectors = vectors_;
        g.a = a;
        g.a_row = a_row;
        g.a_col = a_col;
        g.b = b.get();
        for (int v = 0; v < vectors_; v++)
            g.c[v] = c.get() + v * row_->lanes;
        g.c_row = width_;
        return g;
    }

    void scores(const float *key, int count) const
    {
        headway_gemm g = gemm(key, count, D_, pitch_, 1, panel_, scores_);
        g.highest = stats_.get() + 4 * width_;
        g.lowest = stats_.get() + 5 * width_;
        row_->gemm(&g);
    }

    void values(const float *value, int count, bool fresh) const
    {
        headway_gemm g = gemm(value, D_, count, 1, pitch_, scores_, sum_);
        g.accumulate = !fresh;
        row_->gemm(&g);
    }

    /* In place: scores are brought back each time, and that is timed alone and taken off. */
    double softmax(int count) const
    {
        const Floats source = normal(count * width_, 6);
        float *stats = stats_.get();
        headway_softmax s{};
        s.keys = count;
        s.vectors = vectors_;
        s.scores = scores_.get();
        s.highest = stats + 4 * width_;
        s.lowest = stats + 5 * width_;
        s.row_max = stats;
        s.row_sum = stats + width_;
        s.rescale = stats + 2 * width_;
        std::fill_n(stats + 4 * width_, width_, 4.0f);
        std::fill_n(stats + 5 * width_, width_, -4.0f);
        const auto renew = [&] {
            std::copy_n(source.get(), count * width_, scores_.get());
            std::fill_n(stats, width_, -INFINITY);
            std::fill_n(stats + width_, width_, 0.0f);
        };
        const double both = seconds([&] {
            renew();
            row_->softmax(&s);
        });
        return both - seconds(renew);
    }

    double merge() const
    {
        float *stats = stats_.get();
        std::fill_n(stats, 4 * width_, 1.0f);
        headway_merge g{};
        g.m = D_;
        g.vectors = vectors_;
        g.sum = sum_.get();
        g.row_max = stats;
        g.row_sum = stats + width_;
        g.later = later_.get();
        g.later_max = stats + 2 * width_;
        g.later_sum = stats + 3 * width_;
        return seconds([&] { row_->merge(&g); });
    }

    const headway_row *row_;
    int vectors_, width_, n_;
    int64_t D_, pitch_;
    Floats lines_, keys_, panel_, scores_, sum_, later_, stats_;
    float *at_[HEADWAY_MAX_WIDTH];
};

/* A call of the library. */
struct Whole {
    bench::Engine engine = bench::make_engine(bench::rows()[0], 1);
    Floats query, key, value, out, workspace;
    headway_tensor q, k, v, o;
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    size_t bytes = 0;

    explicit Whole(const Shape &s)
    {
        const int64_t rows[] = {s.B, s.Lq, s.Hq, s.D}, keys[] = {s.B, s.Lk, s.Hkv, s.D};
        const int64_t count = s.B * s.Lq * s.Hq * s.D, others = s.B * s.Lk * s.Hkv * s.D;
        query = normal(count, 1);
        key = normal(others, 2);
        value = normal(others, 3);
        out = bench::floats(count);
        q = headway_tensor_dense(query.get(), HEADWAY_F32, 4, rows);
        k = headway_tensor_dense(key.get(), HEADWAY_F32, 4, keys);
        v = headway_tensor_dense(value.get(), HEADWAY_F32, 4, keys);
        o = headway_tensor_dense(out.get(), HEADWAY_F32, 4, rows);
        if (headway_attention_workspace(engine.get(), &params, &q, &k, &v, &bytes) != HEADWAY_OK)
            bench::refuse("the library refuses " + s.name);
        workspace = bench::floats(static_cast<int64_t>(bytes / 4 + 16));
    }

    double time() const
    {
        return seconds([&] {
            headway_attention(engine.get(), &params, &q, &k, &v, &o, workspace.get(), bytes);
        });
    }
};

/* The tiles of one head. */
std::vector<Tile> tiles_of(const headway_machine &machine, const Shape &shape)
{
    headway_problem p{};
    struct headway_attend_plan plan;
    p.batch = shape.B;
    p.query_rows = shape.Lq;
    p.keys = shape.Lk;
    p.heads = p.kv_heads = shape.Hq;
    p.group = 1;
    p.size = p.value_size = shape.D;
    p.window_left = p.window_right = INT64_MAX;
    if (headway_attend_plan(&p, &machine, &plan) != 0)
        bench::refuse("no plan for " + shape.name);
    const headway_cut &cut = plan.cut;
    const int lanes = machine.row->lanes;
    std::vector<Tile> tiles;
    for (int64_t i = 0; i < cut.tiles; i++) {
        const bool wide = i < cut.wide;
        const int64_t from = wide ? i * cut.vectors / cut.wide : cut.vectors;
        const int64_t vectors = wide ? (i + 1) * cut.vectors / cut.wide - from : 1;
        const headway_row *row = wide ? machine.row : machine.narrow;
        const int64_t live = std::min<int64_t>(shape.Lq - from * lanes, vectors * row->lanes);
        tiles.emplace_back(row, static_cast<int>(vectors), static_cast<int>(live), shape);
    }
    return tiles;
}

Parts all_of(const std::vector<Tile> &tiles, const Shape &shape)
{
    Parts parts;
    for (const Tile &tile : tiles)
        parts.add(tile.whole(shape.Lk), static_cast<double>(shape.B * shape.Hq));
    return parts;
}

/* All products of a call where its keys and values are. */
double products_in_place(const std::vector<Tile> &tiles, const Whole &whole, const Shape &s)
{
    return seconds([&] {
        for (int64_t b = 0; b < s.B; b++)
            for (int64_t h = 0; h < s.Hkv; h++)
                for (const Tile &tile : tiles) {
                    const int64_t at = (b * s.Lk * s.Hkv + h) * s.D;
                    tile.products(whole.key.get() + at, whole.value.get() + at, s.Lk);
                }
    });
}

void print(const Shape &shape)
{
    if (shape.causal || shape.Hq != shape.Hkv || shape.D != shape.Dv || shape.masked ||
        shape.biased || shape.window >= 0 || shape.prefix || !shape.starts.empty())
        bench::refuse("the model knows no options and one head size: " + shape.name);
    const Whole whole(shape);
    const headway_machine machine = headway_engine_machine(whole.engine.get());
    double measured = whole.time();
    const double ideal = shape.attention_flops() / bench::fma_peak(machine.row, 1);
    const std::vector<Tile> tiles = tiles_of(machine, shape);
    const Parts parts = all_of(tiles, shape);
    const double memory = products_in_place(tiles, whole, shape) - parts.products;
    /* What a call does beside kernels shows where there is one key. */
    Shape little = shape;
    little.Lk = 1;
    const double setup =
        std::max(0.0, Whole(little).time() - all_of(tiles_of(machine, little), little).sum());
    measured = std::min(measured, whole.time());
    const double model = parts.sum() + setup + memory;
    const double percent = 100 / measured;
    std::printf("%-9s %9.1f %9.1f %6.3f %6.1f %8.1f %8.1f %6.1f %6.1f %7.1f\n", shape.name.c_str(),
                measured * 1e6, model * 1e6, model / measured, ideal * percent,
                (parts.products - ideal) * percent, parts.softmax * percent, parts.edges * percent,
                setup * percent, memory * percent);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char **argv)
{
    const bench::Options options = bench::take_options(argc, argv);
    std::printf(
        "shape      measured     model          %% of the measured time\n"
        "                 us        us  ratio    FMA products  softmax  edges set-up  memory\n");
    for (const Shape &shape : options.shapes.empty() ? standard : options.shapes)
        print(shape);
    return 0;
}
