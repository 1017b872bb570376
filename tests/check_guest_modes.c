/* Foreign rounding, subnormals as zeros, on the calling thread and in workers. */
#define _GNU_SOURCE
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "check_guest.h"
#include "cpu/kernels.h"
#ifdef _OPENMP
#include <omp.h>
#endif

/* Modes of OpenMP's threads but this one. */
static void openmp_mode(int threads, int mode)
{
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    {
        if (omp_get_thread_num() > 0)
            mode_set(mode);
    }
#else
    (void)threads;
    (void)mode;
#endif
}

/* How many of them have another. */
static int openmp_moved(int threads, uint64_t bits)
{
    int moved = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(+ : moved)
    {
        moved += omp_get_thread_num() > 0 && mode_bits() != bits;
    }
#else
    (void)threads;
    (void)bits;
#endif
    return moved;
}

/* The modes make a difference to what the row's kernels do unless somebody sets them right. */
static void check_sensitive(const struct headway_row *row)
{
    static float a[64], b[64], out[64], usual[64];
    struct headway_gemm g = {.m = 1, .k = 2, .a = a, .b = b, .vectors = 1, .c = {out}};
    g.a_row = 2;
    g.a_col = 1;
    g.c_row = 64;
    for (int i = 0; i < 64; i++)
        b[i] = 1.0f + 0x1p-20f * (float)(i + 1);
    for (int small = 0; small < 2; small++) {
        a[0] = a[1] = small ? 1e-39f : 0.1f;
        row->gemm(&g);
        memcpy(usual, out, sizeof usual);
        mode_set(small ? 6 : 1);
        row->gemm(&g);
        mode_set(0);
        CHECK(memcmp(usual, out, sizeof usual) != 0, "the kernels don't notice the mode");
    }
}

static void in_mode(const headway_engine *engine, int mode, const char *where)
{
    mode_set(mode);
    const uint64_t bits = mode_bits();
    feclearexcept(FE_ALL_EXCEPT);
    feraiseexcept(FE_DIVBYZERO);
    expect_same(engine, where);
    CHECK(mode_bits() == bits, "%s: modes are %llx, were %llx", where,
          (unsigned long long)mode_bits(), (unsigned long long)bits);
    CHECK(fetestexcept(FE_DIVBYZERO), "%s: a flag is gone", where);
    CHECK(!fetestexcept(FE_INVALID | FE_OVERFLOW), "%s: flags %x", where,
          (unsigned)fetestexcept(FE_ALL_EXCEPT));
    feclearexcept(FE_ALL_EXCEPT);
    mode_set(0);
}

static void check_mode(const struct headway_row *row, int mode)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    struct pool *pool = pool_make(2);
    headway_engine *serial, *pooled, *openmp;
    mode_set(0);
    const uint64_t usual = mode_bits();
    config.threads = 1;
    serial = guest_make(config, row);
    config.threads = 3;
    openmp = guest_make(config, row);
    config.parallel_for = pool_for;
    config.parallel_context = pool;
    pooled = guest_make(config, row);
    in_mode(serial, mode, "on one thread");
    in_mode(openmp, mode, "on OpenMP's threads");
    in_mode(pooled, mode, "on a pool's threads");
    /* The other threads alone, then all. */
    for (int own = 0; own <= mode; own += mode ? mode : 1) {
        mode_set(mode);
        const uint64_t bits = mode_bits();
        mode_set(0);
        openmp_mode(3, mode);
        /* LLVM's runtime gives its threads the modes of who begins a region. */
        const int kept = openmp_moved(3, bits) == 0;
        pool_mode(pool, mode);
        in_mode(openmp, own, "among OpenMP's threads of other modes");
        in_mode(pooled, own, "among a pool's threads of other modes");
        CHECK(!kept || openmp_moved(3, bits) == 0,
              "OpenMP's threads have other modes than before");
        openmp_mode(3, 0);
    }
    const struct pool_counts counts = pool_counts(pool);
    CHECK(counts.calls > 0 && counts.moved == 0, "%d calls, %d of the pool's bodies left a mode",
          counts.calls, counts.moved);
    CHECK(mode_bits() == usual, "the test's own modes");
    headway_engine_destroy(serial);
    headway_engine_destroy(pooled);
    headway_engine_destroy(openmp);
    pool_free(pool);
}

/* One call that rounds. */
static void check_flags(void)
{
    float slopes[12];
    for (int mode = 0; mode < MODES; mode++) {
        mode_set(mode);
        feclearexcept(FE_ALL_EXCEPT);
        feraiseexcept(FE_DIVBYZERO);
        CHECK(headway_alibi_slopes(12, slopes) == HEADWAY_OK, "slopes");
        const int flags = fetestexcept(FE_ALL_EXCEPT);
        mode_set(0);
        CHECK(flags == (FE_DIVBYZERO | FE_INEXACT), "mode %d: flags are %x", mode, (unsigned)flags);
    }
    feclearexcept(FE_ALL_EXCEPT);
}

/* The pool's own code runs under the caller's modes. */
static uint64_t seen;
static int seen_calls;

static void look_for(void *context, int count, void (*body)(void *task, int index), void *task)
{
    (void)context;
    seen = mode_bits();
    seen_calls++;
    for (int i = count; i-- > 0;) {
        body(task, i);
        if (mode_bits() != seen)
            seen = UINT64_MAX;
    }
}

static void check_callers(const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.threads = 4;
    config.parallel_for = look_for;
    headway_engine *engine = guest_make(config, row);
    seen_calls = 0;
    mode_set(7);
    const uint64_t bits = mode_bits();
    expect_same(engine, "one index after the other, backwards");
    mode_set(0);
    CHECK(seen_calls > 0, "the caller's parallel_for was not called");
    CHECK(seen == bits, "parallel_for ran under %llx, called under %llx", (unsigned long long)seen,
          (unsigned long long)bits);
    headway_engine_destroy(engine);
}

/* Zeros of n tokens raise nothing, trapped or not. */
static void check_zeros(const struct headway_row *row)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    const int loud = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    config.threads = 1;
    headway_engine *engine = guest_make(config, row);
    feclearexcept(FE_ALL_EXCEPT);
    const int trapped = feenableexcept(loud);
    for (int64_t n = 1; n <= 40; n++) {
        const int64_t shape[] = {1, n, 1, n};
        float *zeros = check_guard((size_t)(n * n) * sizeof(float), 1);
        float *result = check_guard((size_t)(n * n) * sizeof(float), 1);
        memset(zeros, 0, (size_t)(n * n) * sizeof(float));
        const headway_tensor in = headway_tensor_dense(zeros, HEADWAY_F32, 4, shape);
        const headway_tensor out = headway_tensor_dense(result, HEADWAY_F32, 4, shape);
        size_t bytes = 0;
        headway_status status = headway_attention_workspace(engine, NULL, &in, &in, &in, &bytes);
        void *workspace = check_guard(bytes, 0);
        if (status == HEADWAY_OK)
            status = headway_attention(engine, NULL, &in, &in, &in, &out, workspace, bytes);
        CHECK(status == HEADWAY_OK && result[0] == 0.0f && result[n * n - 1] == 0.0f, "%lld tokens",
              (long long)n);
        CHECK(!fetestexcept(loud), "%lld tokens raise %x", (long long)n,
              (unsigned)fetestexcept(FE_ALL_EXCEPT));
        check_guard_free(zeros);
        check_guard_free(result);
        check_guard_free(workspace);
    }
    CHECK(trapped < 0 || fegetexcept() == loud, "traps are %x", (unsigned)fegetexcept());
    fedisableexcept(loud);
    headway_engine_destroy(engine);
}

void check_guest_modes(const struct headway_row *row, int quick)
{
    static const char *const names[MODES] = {"as usual",
                                             "upward",
                                             "downward",
                                             "toward zero",
                                             "subnormal results are zeros",
                                             "subnormal inputs are zeros",
                                             "subnormals are zeros",
                                             "upward, subnormals are zeros"};
    if (check_case("%s: kernels by themselves notice modes", row->name))
        check_sensitive(row);
    if (check_case("%s: flags of exceptions stay", row->name))
        check_flags();
    for (int mode = 0; mode < MODES; mode += quick ? 3 : 1)
        if (check_case("%s: %s", row->name, names[mode]))
            check_mode(row, mode);
    if (check_case("%s: parallel_for runs under the caller's modes", row->name))
        check_callers(row);
    if (check_case("%s: zeros raise no flag and trap nothing", row->name))
        check_zeros(row);
}
