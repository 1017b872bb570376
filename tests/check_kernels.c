/* Every kernel of every built row that runs here, on every tile size: guarded operands flush to
 * either unreadable page, poison in what must not be read, surroundings unchanged, the scalar row's
 * bits, the scalar row's error against double, special values, and the floating-point environment.
 * --quick takes a sample, for emulators. */
#define _GNU_SOURCE
#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "check_kernels.h"

enum { POOL = 1 << 16 };
static float pool[POOL];
static struct subject subject;

void label(struct subject *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->label, sizeof s->label, format, arguments);
    va_end(arguments);
    s->cases++;
}

int below(struct subject *s, int n)
{
    return (int)((check_random(&s->random) >> 33) % (uint64_t)n);
}

void fill_normal(struct subject *s, float *to, int64_t count, float scale)
{
    while (count > 0) {
        const int64_t at = below(s, POOL), rest = POOL - at;
        const int64_t n = count < rest ? count : rest;
        for (int64_t i = 0; i < n; i++)
            to[i] = pool[at + i] * scale;
        to += n;
        count -= n;
    }
}

/* ---- operands -------------------------------------------------------------------------------- */

static void *guarded_bytes(const void *from, size_t bytes, int at_end)
{
    void *to = check_guard(bytes, at_end);
    if (bytes)
        memcpy(to, from, bytes);
    return to;
}

float *guarded(const float *from, int64_t count, int at_end)
{
    return guarded_bytes(from, (size_t)count * sizeof *from, at_end);
}

int32_t *guarded_ints(const int32_t *from, int64_t count, int at_end)
{
    return guarded_bytes(from, (size_t)count * sizeof *from, at_end);
}

uint64_t *guarded_words(const uint64_t *from, int64_t count, int at_end)
{
    return guarded_bytes(from, (size_t)count * sizeof *from, at_end);
}

void release_read_only(struct subject *s, void *operand, const void *original, size_t bytes,
                       const char *name)
{
    if (!operand)
        return;
    CHECK(!bytes || memcmp(operand, original, bytes) == 0, "%s: %s was written", s->label, name);
    check_guard_free(operand);
}

void release_written(struct subject *s, float *buffer, const float *expected, int64_t count,
                     int64_t line, int64_t stride, const char *name)
{
    if (count && memcmp(buffer, expected, (size_t)count * sizeof *buffer) != 0)
        for (int64_t i = 0; i < count; i++) {
            const int inside = i % stride < line;
            uint32_t got, want;
            memcpy(&got, &buffer[i], sizeof got);
            memcpy(&want, &expected[i], sizeof want);
            if (got == want || (inside && isnan(buffer[i]) && isnan(expected[i])))
                continue;
            CHECK(0,
                  "%s: %s[%" PRId64 "] of %" PRId64 "%s is %.9g (%08" PRIx32
                  "), expected %.9g (%08" PRIx32 ")",
                  s->label, name, i, count, inside ? "" : ", not to be written,", (double)buffer[i],
                  got, (double)expected[i], want);
            break;
        }
    check_guard_free(buffer);
}

/* ---- floating-point environment -------------------------------------------------------------- */

/* Rounding, flushing to zero and traps, without the flags that operations raise. */
static uint64_t control(void)
{
#if defined(__SSE__)
    return _mm_getcsr() & ~0x3fu;
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return (uint64_t)fegetround();
#endif
}

static uint64_t entered;

void environment_enter(void)
{
    feclearexcept(FE_ALL_EXCEPT);
    entered = control();
}

void environment_leave(struct subject *s, int finite)
{
    const int raised = fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    CHECK(control() == entered, "%s: the floating-point control word changed", s->label);
    CHECK(!finite || !raised, "%s: raised%s%s%s", s->label, raised & FE_INVALID ? " invalid" : "",
          raised & FE_DIVBYZERO ? " division by zero" : "",
          raised & FE_OVERFLOW ? " overflow" : "");
}

/* ---- peak ------------------------------------------------------------------------------------ */

void check_peak(struct subject *s)
{
    int64_t before = 0;
    for (int64_t rounds = 0; rounds <= 4096; rounds = rounds ? rounds * 2 : 1)
        for (int at_end = 0; at_end < 2; at_end++) {
            label(s, "%d rounds", (int)rounds);
            float *sink = check_guard(sizeof *sink, at_end);
            *sink = NAN;
            environment_enter();
            const int64_t operations = s->row->peak(rounds, sink);
            environment_leave(s, 1);
            CHECK(isfinite(*sink), "%s: the sink is %g", s->label, (double)*sink);
            CHECK(rounds < 2 || operations == (at_end ? before : 2 * before),
                  "%s: %" PRId64 " operations after %" PRId64, s->label, operations, before);
            CHECK(operations >= 2 * s->row->lanes * rounds && (rounds || !operations),
                  "%s: %" PRId64 " operations", s->label, operations);
            before = operations;
            check_guard_free(sink);
        }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*check)(struct subject *s);
} kernels[] = {
    {"gemm", check_gemm},     {"softmax", check_softmax}, {"merge", check_merge},
    {"pack", check_pack},     {"unpack", check_unpack},   {"bits", check_bits_kernel},
    {"widen", check_widen},   {"narrow", check_narrow},   {"dot", check_dot},
    {"mix", check_mix},       {"peak", check_peak},
};

/* Says which case touched what it must not; the signal then takes its course. */
static void say_case(int number)
{
    const char *words[] = {subject.row->name, ": FAIL memory fault in the case: ", subject.label,
                           "\n"};
    for (int i = 0; i < 4; i++)
        if (write(STDOUT_FILENO, words[i], strlen(words[i])) < 0)
            break;
    raise(number);
}

int main(int argc, char **argv)
{
    const struct sigaction fault = {.sa_handler = say_case, .sa_flags = (int)SA_RESETHAND};
    const struct headway_row *row;
    int index = 0;

    check_begin(argc, argv);
    const int quick = check_option("--quick", 0) != 0;
    uint64_t random = check_seed;
    check_fill_normal(&random, pool, POOL, 1);
    if (!scalar_row()) {
        check_case("scalar");
        CHECK(0, "no scalar row to compare with");
        return check_end();
    }
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGBUS, &fault, NULL);
    while ((row = check_next_row(&index)) != NULL)
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
            if (!check_case("%s %s", row->name, kernels[i].name))
                continue;
            subject = (struct subject){.row = row, .random = check_seed, .quick = quick};
            kernels[i].check(&subject);
            printf("%s %s %" PRId64 " cases %s\n", row->name, kernels[i].name, subject.cases,
                   check_case_failures() ? "FAILED" : "ok");
            fflush(stdout);
        }
    return check_end();
}
