/* Attention of one shape: its data, what it should give, and the ways to compute it. */
#ifndef HEADWAY_BENCH_ATTENTION_H
#define HEADWAY_BENCH_ATTENTION_H

#include "common.h"

namespace bench
{

/* The unfused way, with the row's own kernels: S = Q . K^T of all queries and keys is written to
 * memory, then its softmax, then P . V. The query rows of a group of heads share the lanes. */
class Unfused
{
  public:
    Unfused(const headway_row *row, int threads, const Shape &shape);
    /* Dense (B, Lq, Hq, D), (B, Lk, Hkv, D), (B, Lk, Hkv, Dv), (B, Lq, Hq, Dv), and (B, Hq, Lq, Lk)
     * where the shape is biased. */
    void run(const float *query, const float *key, const float *value, float *out,
             const float *bias = nullptr);
    int64_t bytes() const
    {
        return matrix_floats_ * 4;
    }

  private:
    struct Tile;
    Tile tile(int64_t task) const;
    void scores(int64_t task) const;
    void bias(const Tile &tile, int64_t begin, int keys, float *panel) const;
    void softmax(int64_t task) const;
    void output(int64_t task) const;
    void phase(void (Unfused::*step)(int64_t) const) const;

    const headway_row *row_;
    int threads_;
    Shape shape_;
    int vectors_, width_;
    int64_t rows_, tiles_, matrix_floats_;
    Floats matrix_;
    const float *query_ = nullptr, *key_ = nullptr, *value_ = nullptr;
    const float *bias_ = nullptr;
    float *out_ = nullptr;
};

/* Who computes: a name of the benchmark, and the row if it is one of ours. */
struct Who {
    std::string name;
    enum Kind { Headway, Graph, Primitives, UnfusedPath } kind;
    const headway_row *row;
};
std::vector<Who> everybody();

/* "" or why it is skipped: fewer threads here, or many seconds a call and --slow was not given. */
std::string why_skipped(const headway_row *row, int threads, double flops, bool slow);

/* Float64 copies of what the reference said, or of another way's result where it takes too long. */
struct Expected {
    std::vector<double> values, bounds; /* bounds empty: `bound` for every element */
    double bound = 0;
    std::string check(const float *got) const;
};
/* Another computation's result as what to expect: within 1e-4 of its largest value. */
Expected expect_like(const float *result, int64_t count);
/* Up to how many operations the double reference is asked. */
constexpr double reference_flops = 1.2e9;

} // namespace bench

#endif
