/* The machine's limits: fused multiply-adds per second of every row, and bytes read per second. */
#include "common.h"

#include <algorithm>

namespace
{

void register_limit(const std::string &name, int threads, const char *counter,
                    const std::function<double(int)> &measure)
{
    const std::string full = "machine/" + name + "/threads:" + std::to_string(threads);
    benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State &state) {
        double best = 0;
        for (auto _ : state)
            best = std::max(best, measure(threads));
        state.counters[counter] = best * 1e-9;
    });
}

} // namespace

int main(int argc, char **argv)
{
    const bench::Options options = bench::take_options(argc, argv);
    for (int threads : options.threads) {
        for (const headway_row *row : bench::rows())
            register_limit(std::string("fma/f32/") + row->name, threads, "GFLOPS",
                           [row](int count) { return bench::fma_peak(row, count); });
        register_limit("read", threads, "GBps", bench::read_bandwidth);
    }
    return bench::run_all();
}
