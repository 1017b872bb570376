/* What a person at a terminal reads: a line for every benchmark. */
#include "common.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <unistd.h>

namespace bench
{

namespace
{

using Run = benchmark::BenchmarkReporter::Run;

/* Google Benchmark 1.8 renamed it. */
template <class R> auto why_skipped(const R &run, int) -> decltype(run.error_message)
{
    return run.error_message;
}
template <class R> std::string why_skipped(const R &run, long)
{
    return run.skip_message;
}

double counter(const Run &run, const char *name)
{
    const auto found = run.counters.find(name);
    return found == run.counters.end() ? NAN : found->second.value;
}

/* The median call's where it is told: the other numbers are about it. */
double seconds_of(const Run &run)
{
    const double median = counter(run, "median_seconds");
    return std::isfinite(median)
               ? median
               : run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
}

std::string number(double value, const char *format)
{
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return std::isfinite(value) ? text : "";
}

/* Without the second part: whoever computes the same has the same. */
std::string what_of(const std::string &name)
{
    const size_t from = name.find('/'), to = name.find('/', from + 1);
    return to == std::string::npos ? name : name.substr(0, from) + name.substr(to);
}

struct Line {
    std::string name, skipped;
    double seconds, gflops, share, gbps;
};

std::string time_text(double seconds)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    double value = seconds * 1e9;
    int unit = 0;
    for (; unit < 3 && value >= 1000; unit++)
        value /= 1000;
    char text[32];
    std::snprintf(text, sizeof text, "%.4g %s", value, units[unit]);
    return text;
}

/* Lines wait for the others of their shape and thread count, so that ours can stand beside
 * oneDNN's. Of several repetitions the median counts. */
class Table : public benchmark::BenchmarkReporter
{
  public:
    bool ReportContext(const Context &context) override
    {
        width_ = static_cast<int>(std::max<size_t>(context.name_field_width, 24));
        std::printf("%-*s %10s %8s %8s %6s %7s %8s %6s\n", width_, "", "time", "GFLOP/s", "peak",
                    "share", "GB/s", "oneDNN", "share");
        return true;
    }

    void ReportRuns(const std::vector<Run> &runs) override
    {
        for (const Run &run : runs) {
            const bool aggregate = run.run_type == Run::RT_Aggregate;
            const std::string skipped = why_skipped(run, 0);
            if (aggregate ? run.aggregate_name != "median" : run.repetitions > 1 && skipped.empty())
                continue;
            const std::string name = run.run_name.str();
            if (!lines_.empty() && what_of(lines_.front().name) != what_of(name))
                flush();
            if (!lines_.empty() && lines_.back().name == name)
                lines_.pop_back();
            lines_.push_back({name, skipped, seconds_of(run), counter(run, "GFLOPS"),
                              counter(run, "peak_share"), counter(run, "GBps")});
        }
    }

    void Finalize() override
    {
        flush();
    }

  private:
    void flush()
    {
        const Line *onednn = nullptr;
        for (const Line &line : lines_)
            if (line.name.find("/onednn-") != std::string::npos && line.skipped.empty() &&
                !(onednn && onednn->gflops >= line.gflops))
                onednn = &line;
        for (const Line &line : lines_)
            print(line, line.name.find("/headway") != std::string::npos ? onednn : nullptr);
        lines_.clear();
        std::fflush(stdout);
    }

    void print(const Line &line, const Line *beside) const
    {
        if (!line.skipped.empty()) {
            std::printf("%-*s %s\n", width_, line.name.c_str(), line.skipped.c_str());
            return;
        }
        std::printf("%-*s %10s %8s %8s %6s %7s", width_, line.name.c_str(),
                    time_text(line.seconds).c_str(), number(line.gflops, "%.1f").c_str(),
                    number(line.gflops / line.share, "%.1f").c_str(),
                    number(line.share, "%.3f").c_str(), number(line.gbps, "%.1f").c_str());
        if (beside)
            std::printf(" %8s %6s", number(beside->gflops, "%.1f").c_str(),
                        number(beside->share, "%.3f").c_str());
        std::printf("\n");
    }

    int width_ = 0;
    std::vector<Line> lines_;
};

} // namespace

std::unique_ptr<benchmark::BenchmarkReporter> table_for_terminal(int argc, char **argv)
{
    bool wanted = isatty(STDOUT_FILENO) && !std::getenv("BENCHMARK_FORMAT");
    for (int i = 1; i < argc; i++)
        wanted = wanted && std::strncmp(argv[i], "--benchmark_format", 18) != 0;
    return wanted ? std::make_unique<Table>() : nullptr;
}

std::string cpu_name()
{
    std::ifstream file("/proc/cpuinfo");
    std::string line, name, numbers;
    while (std::getline(file, line) && !line.empty()) {
        const size_t colon = line.find(": ");
        const std::string key =
            line.substr(0, line.find_last_not_of("\t ", line.find(':') - 1) + 1);
        if (colon == std::string::npos)
            continue;
        if (key == "model name")
            name = line.substr(colon + 2);
        else if (key == "cpu family" || key == "model")
            numbers += (numbers.empty() ? " (" : ", ") +
                       std::string(key == "model" ? "model " : "family ") + line.substr(colon + 2);
    }
    return name.empty() ? "unknown" : name + numbers + (numbers.empty() ? "" : ")");
}

} // namespace bench
