#include "common.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>

extern "C" {
#include "cpu/tiers.h"
#include "system/memory.h"
#include "system/parallel.h"
}

#ifdef _OPENMP
#include <omp.h>
#endif

namespace bench
{

namespace
{

using Clock = std::chrono::steady_clock;

bool wrong_answer = false;
std::unique_ptr<benchmark::BenchmarkReporter> reporter;

double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/* Runs body(worker) on `count` threads that begin together; the sum of what the bodies return. */
double together(int count, const std::function<double(int)> &body)
{
    std::vector<std::thread> threads;
    std::vector<double> results(static_cast<size_t>(count));
    std::atomic<int> waiting{count};
    auto one = [&](int worker) {
        waiting--;
        while (waiting > 0)
            std::this_thread::yield();
        results[static_cast<size_t>(worker)] = body(worker);
    };
    for (int i = 1; i < count; i++)
        threads.emplace_back(one, i);
    one(0);
    for (std::thread &thread : threads)
        thread.join();
    double sum = 0;
    for (double result : results)
        sum += result;
    return sum;
}

/* FLOP/s of this thread during 2 ms: less than a time slice, so that among several measurements
 * there is one without another guest's. */
double peak_of_this_thread(const headway_row *row)
{
    const Clock::time_point start = Clock::now();
    int64_t operations = 0;
    double passed = 0;
    float sink = 0;
    while (passed < 0.002) {
        operations += row->peak(5000, &sink);
        benchmark::DoNotOptimize(sink);
        passed = seconds_since(start);
    }
    return static_cast<double>(operations) / passed;
}

/* Of all threads of this process. */
double cpu_seconds()
{
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool skip_with_error(benchmark::State &state, const Prepared &prepared)
{
    if (prepared.error.empty())
        return false;
    wrong_answer = wrong_answer || prepared.error.rfind("FAIL", 0) == 0;
    state.SkipWithError(prepared.error.c_str());
    return true;
}

void time_prepared(benchmark::State &state, Prepared &prepared)
{
    state.SetLabel(prepared.label);
    if (skip_with_error(state, prepared))
        return;
    double peak = fma_peak(prepared.row, prepared.threads);
    double bandwidth = prepared.from_memory ? read_bandwidth(prepared.threads) : 0;
    std::vector<double> times;
    prepared.run(); /* its threads are awake and its data is where it will be */
    const double cpu_start = cpu_seconds();
    for (auto _ : state) {
        const Clock::time_point start = Clock::now();
        prepared.run();
        times.push_back(seconds_since(start));
    }
    if (skip_with_error(state, prepared))
        return;
    const double cpu = (cpu_seconds() - cpu_start) / static_cast<double>(times.size());
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    const double seconds = *middle;
    peak = std::max(peak, fma_peak(prepared.row, prepared.threads));
    state.counters["median_seconds"] = seconds;
    if (prepared.flops > 0) {
        state.counters["GFLOPS"] = prepared.flops / seconds * 1e-9;
        state.counters["peak_share"] = prepared.flops / seconds / peak;
        state.counters["cpu_peak_share"] = prepared.flops / cpu / (peak / prepared.threads);
    }
    if (prepared.bytes > 0)
        state.counters["GBps"] = prepared.bytes / seconds * 1e-9;
    if (prepared.from_memory) {
        bandwidth = std::max(bandwidth, read_bandwidth(prepared.threads));
        state.counters["read_share"] = prepared.bytes / seconds / bandwidth;
    }
    if (prepared.workspace >= 0)
        state.counters["workspace_bytes"] = static_cast<double>(prepared.workspace);
}

} // namespace

void refuse(const std::string &what)
{
    std::fprintf(stderr, "bench: %s\n", what.c_str());
    std::exit(2);
}

std::vector<std::string> split(const std::string &text, char at)
{
    std::vector<std::string> parts(1);
    for (char c : text)
        if (c == at)
            parts.emplace_back();
        else
            parts.back() += c;
    return parts;
}

int64_t number(const std::string &text, const std::string &flag, int64_t most)
{
    char *end = nullptr;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end || value < 1 || value > most)
        refuse(flag + ": \"" + text + "\" is out of range, expected 1 .. " + std::to_string(most));
    return value;
}

Options take_options(int argc, char **argv)
{
    Options options;
    std::vector<char *> rest;
    for (int i = 0; i < argc; i++) {
        const std::string argument = argv[i];
        if (i > 0 && argument.rfind("--shape=", 0) == 0)
            options.shapes.push_back(parse_shape(argument.substr(8)));
        else if (i > 0 && argument == "--slow")
            options.slow = true;
        else if (i > 0 && argument == "--sweep")
            options.sweep = true;
        else if (i > 0 && argument.rfind("--threads=", 0) == 0)
            for (const std::string &part : split(argument.substr(10), ','))
                options.threads.push_back(
                    static_cast<int>(number(part, "--threads", HEADWAY_MAX_THREADS)));
        else
            rest.push_back(argv[i]);
    }
    reporter = table_for_terminal(argc, argv);
    int count = static_cast<int>(rest.size());
    rest.push_back(nullptr);
    benchmark::Initialize(&count, rest.data());
    if (benchmark::ReportUnrecognizedArguments(count, rest.data()))
        std::exit(2);
    if (options.threads.empty()) {
        options.threads.push_back(1);
        if (headway_threads_allowed(0) > 1)
            options.threads.push_back(headway_threads_allowed(0));
    }
    benchmark::AddCustomContext("cpu", cpu_name());
    benchmark::AddCustomContext("compiler", HEADWAY_COMPILER);
    benchmark::AddCustomContext("headway", std::string(headway_version()) + ", " + rows()[0]->name);
    benchmark::AddCustomContext("onednn", headway_onednn_about());
    return options;
}

int run_all()
{
    if (reporter)
        benchmark::RunSpecifiedBenchmarks(reporter.get());
    else
        benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return wrong_answer ? 1 : 0;
}

const std::vector<const headway_row *> &rows()
{
    static const std::vector<const headway_row *> found = [] {
        const headway_cpu_registers registers = headway_cpu_read();
        std::vector<const headway_row *> runnable;
        for (int i = 0; const headway_row_entry *entry = headway_row_at(i); i++)
            if (entry->row &&
                !headway_tier_missing(entry->row->tiers, headway_cpu_tiers(&registers)))
                runnable.push_back(entry->row);
        if (runnable.empty())
            refuse("no row of this build can run here");
        return runnable;
    }();
    return found;
}

Engine make_engine(const headway_row *row, int threads)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = nullptr;
    config.isa = row->name;
    config.threads = threads;
    if (headway_engine_create(&config, &engine) != HEADWAY_OK)
        return nullptr;
    Engine made(engine);
    return headway_engine_threads(engine) == threads ? std::move(made) : nullptr;
}

double fma_peak(const headway_row *row, int threads)
{
    double best = 0;
    for (int i = 0; i < 12; i++)
        best = std::max(best, together(threads, [row](int) { return peak_of_this_thread(row); }));
    return best;
}

namespace
{

/* Two halves of a vector keep the loads ahead of the memory. */
typedef uint64_t Pair __attribute__((vector_size(32), aligned(32), may_alias));
constexpr size_t pairs_of_two_lines = 4, pairs_ahead = 1024;

/* Bytes per second of this thread; ask: level 2 is asked for what comes 32 KB later. */
template <bool ask> double read(const Pair *data, size_t count)
{
    const Clock::time_point start = Clock::now();
    Pair a = data[0], b = data[1], c = data[2], d = data[3];
    for (size_t j = pairs_of_two_lines; j + pairs_of_two_lines <= count; j += pairs_of_two_lines) {
        if (ask) {
            __builtin_prefetch(&data[j + pairs_ahead], 0, 2);
            __builtin_prefetch(&data[j + pairs_ahead + 2], 0, 2);
        }
        a ^= data[j];
        b ^= data[j + 1];
        c ^= data[j + 2];
        d ^= data[j + 3];
    }
    a ^= b ^ c ^ d;
    uint64_t sum = a[0] ^ a[1] ^ a[2] ^ a[3];
    benchmark::DoNotOptimize(sum);
    return static_cast<double>(count * sizeof(Pair)) / seconds_since(start);
}

} // namespace

/* The better of two ways to read: which of them it is depends on the CPU. In the largest pages there
 * are, as caches lie in. */
double read_bandwidth(int threads)
{
    /* Far beyond a level-3 cache. */
    static const size_t count = (size_t{256} << 20) / sizeof(Pair);
    static const Pair *const data = [] {
        const headway_memory own = {};
        void *memory = headway_allocate(&own, (count + pairs_ahead) * sizeof(Pair));
        if (!memory)
            refuse("no memory to read from");
        std::memset(memory, 1, (count + pairs_ahead) * sizeof(Pair));
        return static_cast<const Pair *>(memory);
    }();
    const size_t share =
        count / static_cast<size_t>(threads) / pairs_of_two_lines * pairs_of_two_lines;
    const auto part = [=](int worker) { return data + share * static_cast<size_t>(worker); };
    double best = 0;
    for (int i = 0; i < 2; i++) {
        best =
            std::max(best, together(threads, [=](int w) { return read<false>(part(w), share); }));
        best = std::max(best, together(threads, [=](int w) { return read<true>(part(w), share); }));
    }
    return best;
}

int64_t last_level_bytes()
{
    int64_t most = 0;
    for (int i = 0; i < 8; i++) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) +
                           "/size");
        int64_t size = 0;
        char unit = 0;
        if (file >> size >> unit)
            most = std::max(most, size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
    }
    return most ? most : int64_t{64} << 20;
}

void set_openmp_threads(int threads)
{
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

Floats floats(int64_t count)
{
    static constexpr headway_memory c_library{};
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    float *memory = static_cast<float *>(headway_allocate(&c_library, bytes));
    if (!memory)
        refuse("no memory for " + std::to_string(count) + " floats");
    return Floats(memory, [](float *given) { headway_release(&c_library, given); });
}

uint64_t random_bits(uint64_t index)
{
    /* splitmix64. */
    uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void fill_normal(float *to, int64_t count, uint64_t seed, float deviation)
{
    /* The sum of four 16-bit numbers is normal enough here, and quick. */
    for (int64_t i = 0; i < count; i++) {
        const uint64_t z = random_bits((seed << 40) + static_cast<uint64_t>(i));
        const int64_t sum = static_cast<int64_t>((z & 0xFFFF) + (z >> 16 & 0xFFFF) +
                                                 (z >> 32 & 0xFFFF) + (z >> 48));
        /* The sum's deviation is 65536 / sqrt(3). */
        to[i] = static_cast<float>(sum - 131070) * (deviation * 1.7320508f / 65536.0f);
    }
}

void register_case(const std::string &name, const std::function<void(Prepared &)> &make)
{
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State &state) {
        static std::string latest;
        static std::unique_ptr<Prepared> kept;
        if (name != latest) {
            kept.reset(); /* before the next one takes memory */
            kept = std::make_unique<Prepared>();
            latest = name;
            make(*kept);
        }
        time_prepared(state, *kept);
    });
}

std::string compare(const float *got, const double *expected, const double *bounds, double bound,
                    int64_t count)
{
    double worst = 0;
    int64_t where = -1;
    for (int64_t i = 0; i < count; i++) {
        const double error = std::fabs(got[i] - expected[i]);
        const double allowed = bounds ? bounds[i] : bound;
        if (!(error <= allowed) && (where < 0 || !(error / allowed <= worst))) {
            where = i;
            worst = error / allowed;
        }
    }
    if (where < 0)
        return "";
    char text[160];
    std::snprintf(text, sizeof text, "FAIL: element %lld is %g, expected %g, %g times the bound",
                  static_cast<long long>(where), static_cast<double>(got[where]), expected[where],
                  worst);
    return text;
}

} // namespace bench
