/* What the benchmark programs share: shapes, flags, the machine's limits measured beside every
 * result, and the loop that times and counts. */
#ifndef HEADWAY_BENCH_COMMON_H
#define HEADWAY_BENCH_COMMON_H

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "cpu/kernels.h"
#include "oracle/onednn.h"
}

namespace bench
{

/* The keys first <= j < last. */
struct Keys {
    int64_t first, last;
};

/* One call's sizes and options. D = 0 never; causal aligns the last query with the last key. */
struct Shape {
    std::string name;
    int64_t B = 1, Hq = 1, Hkv = 1, Lq = 1, Lk = 1, D = 64, Dv = 64;
    bool causal = false;
    int64_t masked = 0;  /* the last keys that a bool mask (B, 1, 1, Lk) excludes */
    bool biased = false; /* a float mask (B, Hq, Lq, Lk) is added to the scores */
    bool swept = false;  /* one of the sweep over sizes */
    int64_t window = -1; /* keys to the left and to the right of the row's own place */
    int64_t prefix = 0; /* an interval: that many first keys, and those up to the row's own place */
    double softcap = 0;
    bool alibi = false, sink = false;
    bool holes = false; /* a bool mask (B, Hq, Lq, Lk) excludes the pairs of hole() */
    /* Not empty: packed sequences, B = 1, Lq = Lk = starts.back(). */
    std::vector<int64_t> starts = {};
    bool each = false; /* their padded-free ideal: a call for each sequence */

    bool hole(int64_t b, int64_t h, int64_t i, int64_t j) const; /* one in ten, at random */
    /* Keys and values lie head by head, as caches hold the past of one token, not token by token. */
    bool by_head() const
    {
        return Lq == 1 && !swept;
    }
    /* Floats from one key to the next of a head of that size, and from the data to a head's first. */
    int64_t key_pitch(int64_t size) const
    {
        return by_head() ? size : Hkv * size;
    }
    int64_t first_key(int64_t b, int64_t head, int64_t size) const
    {
        return b * Lk * Hkv * size + head * (by_head() ? Lk * size : size);
    }
    Keys keys_of(int64_t query) const; /* of one sequence, holes apart */
    int64_t sequences() const;         /* 0: not packed */
    Shape sequence(int64_t b) const;   /* as a shape of its own */
    double attention_flops() const;    /* 2 pairs (D + Dv), the pairs allowed in all heads */
    double attention_bytes() const;    /* K and V once, Q and O */
};
/* The shape as `count` packed sequences of 1 .. Lq rows and keys, the same lengths every time. */
Shape packed(Shape shape, int64_t count);

struct Options {
    std::vector<Shape> shapes; /* --shape=..., parse_shape() */
    std::vector<int> threads;  /* --threads=1,2; default 1 and what the machine allows */
    bool slow = false;         /* --slow: also what takes many seconds a call */
    bool sweep = false;        /* --sweep: also the sweep over sizes */
};

/* NAME:B,Hq,Hkv,Lq,Lk,D[,Dv][,option]... */
Shape parse_shape(const std::string &text);
/* A flag's number, 1 .. most. */
int64_t number(const std::string &text, const std::string &flag, int64_t most = 1 << 28);
std::vector<std::string> split(const std::string &text, char at);
/* Says what is wrong and exits with 2. */
[[noreturn]] void refuse(const std::string &what);

/* Takes Google Benchmark's flags and ours out of argv. Exits with 2 and a message on others. */
Options take_options(int argc, char **argv);
/* Runs what is registered; the exit status, 1 when a case was wrong. */
int run_all();

/* A reporter with a short table when stdout is a terminal and no format was asked for, or null. */
std::unique_ptr<benchmark::BenchmarkReporter> table_for_terminal(int argc, char **argv);
/* The processor as the system calls it, or "unknown". */
std::string cpu_name();

/* The rows that run here, best first. */
const std::vector<const headway_row *> &rows();

/* An engine of that row and thread count, or null when the machine gives fewer threads. */
struct EngineDeleter {
    void operator()(headway_engine *engine) const
    {
        headway_engine_destroy(engine);
    }
};
using Engine = std::unique_ptr<headway_engine, EngineDeleter>;
Engine make_engine(const headway_row *row, int threads);

/* FLOP/s of fused multiply-adds, and bytes/s read from memory far larger than the caches, on that
 * many threads at once; the best of a few short measurements. */
double fma_peak(const headway_row *row, int threads);
double read_bandwidth(int threads);
/* Bytes of the largest cache as the system tells it, or 64 MB when it doesn't. */
int64_t last_level_bytes();

/* oneDNN and everything else that asks OpenMP for threads. */
void set_openmp_threads(int threads);

/* 64-byte aligned floats, uninitialised. */
using Floats = std::shared_ptr<float[]>;
Floats floats(int64_t count);
/* Number `index` of a random sequence that is the same everywhere. */
uint64_t random_bits(uint64_t index);
/* The same numbers everywhere, normally distributed. */
void fill_normal(float *to, int64_t count, uint64_t seed, float deviation);

/* Something that can be timed: made once for a name, checked once, then run. */
struct Prepared {
    std::function<void()> run;
    std::string label;                /* who computes: row, or oneDNN's implementations */
    std::string error;                /* not empty: cannot run, and why */
    const headway_row *row = nullptr; /* whose FMA peak counts */
    int threads = 1;
    int64_t workspace = -1; /* bytes, -1: not known */
    double flops = 0, bytes = 0;
    bool from_memory = true; /* bytes count against the read bandwidth */
    std::vector<std::shared_ptr<void>> owned;
};

/* Registers a benchmark that `make` prepares. What is prepared stays for the repetitions of the
 * same benchmark only: the large shapes would not fit together. Label and counters come from the
 * median call; the peaks are measured before and after, because other guests of the machine come
 * and go. cpu_peak_share counts the CPU time of all threads instead: what the code does with a core
 * it has, whatever share of the cores it was given. */
void register_case(const std::string &name, const std::function<void(Prepared &)> &make);

/* "" or "FAIL: ..." when a value is further from its expected one than the bound: its own one, or
 * `bound` when bounds is null. */
std::string compare(const float *got, const double *expected, const double *bounds, double bound,
                    int64_t count);

} // namespace bench

#endif
