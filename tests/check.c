#define _GNU_SOURCE
#include "check.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/kernels.h"
#include "cpu/tiers.h"

enum { EXIT_USAGE = 2, EXIT_SKIPPED = 77, SHOWN_PER_CASE = 10, MAX_OWN = 16, FILL = 0xA5 };

uint64_t check_seed = 1;

static struct {
    const char *isa, *only, *required;
    size_t slack;
    struct {
        const char *name;
        int64_t value;
        int read;
    } own[MAX_OWN];
    int own_count;
    char name[600]; /* of the case that is open */
    int open;
    int failures; /* of the case that is open */
    int trial, trial_failures;
    char trial_text[400]; /* of the trial's first failure */
    int passed, failed, skipped;
} run;

/* ---- options --------------------------------------------------------------------------------- */

static void usage(const char *problem, const char *what)
{
    fprintf(stderr, "check: %s %s\n", problem, what);
    exit(EXIT_USAGE);
}

static int64_t number(const char *text, const char *option)
{
    char *end;
    const int64_t value = strtoll(text, &end, 0);
    if (end == text || *end)
        usage("not a number behind", option);
    return value;
}

static const struct headway_row_entry *find_row(const char *name, size_t length)
{
    const struct headway_row_entry *entry;
    for (int i = 0; (entry = headway_row_at(i)) != NULL; i++)
        if (strlen(entry->name) == length && memcmp(entry->name, name, length) == 0)
            return entry;
    return NULL;
}

/* Is `name` one of the comma-separated words of --require? */
static int is_required(const char *name)
{
    const char *word = run.required;
    while (word && *word) {
        const size_t length = strcspn(word, ",");
        if (strlen(name) == length && memcmp(word, name, length) == 0)
            return 1;
        word += length + (word[length] == ',');
    }
    return 0;
}

static void check_required(void)
{
    const char *word = run.required;
    while (word && *word) {
        const size_t length = strcspn(word, ",");
        if (!find_row(word, length))
            usage("--require names a row that this version does not know:", word);
        word += length + (word[length] == ',');
    }
}

static const char *why_not(const struct headway_row_entry *entry)
{
    const struct headway_cpu_registers registers = headway_cpu_read();
    if (!entry->row)
        return entry->absent;
    return headway_tier_missing(entry->row->tiers, headway_cpu_tiers(&registers));
}

static void list_rows(void)
{
    const struct headway_row_entry *entry;
    for (int i = 0; (entry = headway_row_at(i)) != NULL; i++) {
        const char *reason = why_not(entry);
        if (!entry->row)
            printf("%-8s absent: %s\n", entry->name, reason);
        else if (reason)
            printf("%-8s built, cannot run here: %s\n", entry->name, reason);
        else
            printf("%-8s built, runs here\n", entry->name);
    }
}

void check_begin(int argc, char **argv)
{
    int list = 0;
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        const char *value = i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0 ? argv[i + 1] : NULL;
        if (strncmp(option, "--", 2) != 0)
            usage("unexpected argument", option);
        if (strcmp(option, "--list") == 0) {
            list = 1;
            continue;
        }
        const char **text = strcmp(option, "--isa") == 0       ? &run.isa
                            : strcmp(option, "--case") == 0    ? &run.only
                            : strcmp(option, "--require") == 0 ? &run.required
                                                               : NULL;
        const int is_seed = strcmp(option, "--seed") == 0,
                  is_slack = strcmp(option, "--slack") == 0;
        if ((text || is_seed || is_slack) && !value)
            usage("nothing behind", option);
        if (text) {
            *text = value;
        } else if (is_seed) {
            check_seed = (uint64_t)number(value, option);
        } else if (is_slack) {
            run.slack = (size_t)number(value, option);
        } else {
            if (run.own_count == MAX_OWN)
                usage("too many options:", option);
            run.own[run.own_count].name = option;
            run.own[run.own_count++].value = value ? number(value, option) : 1;
        }
        i += value != NULL;
    }
    if (list) {
        list_rows();
        exit(0);
    }
    if (run.isa && !find_row(run.isa, strlen(run.isa)))
        usage("--isa names a row that this version does not know:", run.isa);
    check_required();
}

int64_t check_option(const char *name, int64_t otherwise)
{
    int64_t value = otherwise;
    for (int i = 0; i < run.own_count; i++)
        if (strcmp(run.own[i].name, name) == 0) {
            run.own[i].read = 1;
            value = run.own[i].value;
        }
    return value;
}

const char *check_isa(void)
{
    return run.isa;
}

const char *check_only(void)
{
    return run.only;
}

const struct headway_row *check_next_row(int *index)
{
    const struct headway_row_entry *entry;
    while ((entry = headway_row_at(*index)) != NULL) {
        ++*index;
        if (run.isa && strcmp(run.isa, entry->name) != 0)
            continue;
        const char *reason = why_not(entry);
        if (!reason)
            return entry->row;
        check_skip(entry->name, reason);
    }
    return NULL;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void close_case(void)
{
    if (!run.open)
        return;
    if (run.failures > SHOWN_PER_CASE)
        printf("%s: %d more\n", run.name, run.failures - SHOWN_PER_CASE);
    if (run.failures)
        run.failed++;
    else
        run.passed++;
    run.open = 0;
    run.failures = 0;
}

int check_case(const char *format, ...)
{
    va_list arguments;
    close_case();
    va_start(arguments, format);
    vsnprintf(run.name, sizeof run.name, format, arguments);
    va_end(arguments);
    run.open = !run.only || strstr(run.name, run.only) != NULL;
    return run.open;
}

int check_case_failures(void)
{
    return run.failures;
}

void check_trial_begin(void)
{
    run.trial = 1;
    run.trial_failures = 0;
}

int check_trial_end(const char **text)
{
    run.trial = 0;
    *text = run.trial_text;
    return run.trial_failures;
}

void check_fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    if (run.trial) {
        if (!run.trial_failures++) {
            va_start(arguments, format);
            vsnprintf(run.trial_text, sizeof run.trial_text, format, arguments);
            va_end(arguments);
        }
        return;
    }
    if (!run.open) {
        snprintf(run.name, sizeof run.name, "outside any case");
        run.open = 1;
    }
    if (++run.failures > SHOWN_PER_CASE)
        return;
    printf("%s: FAIL %s:%d: ", run.name, file, line);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(" (seed %" PRIu64 ")\n", check_seed);
    fflush(stdout);
}

void check_skip(const char *what, const char *reason)
{
    if (is_required(what)) {
        check_case("%s", what);
        run.open = 1;
        CHECK(0, "required, but skipped: %s", reason);
        close_case();
        return;
    }
    printf("%s - skipped: %s\n", what, reason);
    run.skipped++;
}

int check_end(void)
{
    close_case();
    for (int i = 0; i < run.own_count; i++)
        if (!run.own[i].read) {
            printf("FAIL: nobody knows the option %s\n", run.own[i].name);
            run.failed++;
        }
    const int ran = run.passed + run.failed;
    if (!ran && !run.skipped)
        printf("FAIL: no case ran\n");
    printf("%d passed, %d failed, %d skipped\n", run.passed, run.failed, run.skipped);
    fflush(stdout);
    if (run.failed || (!ran && !run.skipped))
        return 1;
    return ran ? 0 : EXIT_SKIPPED;
}

/* ---- guarded memory -------------------------------------------------------------------------- */

/* Mappings are kept for reuse: a test asks for the same few sizes thousands of times. */
struct mapping {
    struct mapping *next;
    unsigned char *pages; /* the readable part */
    size_t size;
    unsigned char *memory; /* what the caller has, and its size */
    size_t bytes;
};
static struct mapping *used, *spare;
static size_t spare_bytes;
enum { MOST_SPARE_BYTES = 1 << 26 };

static struct mapping *map(size_t size, size_t page)
{
    for (struct mapping **at = &spare; *at; at = &(*at)->next)
        if ((*at)->size == size) {
            struct mapping *m = *at;
            *at = m->next;
            spare_bytes -= m->size;
            return m;
        }
    struct mapping *m = malloc(sizeof *m);
    unsigned char *all = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!m || all == MAP_FAILED ||
        (size && mprotect(all + page, size, PROT_READ | PROT_WRITE) != 0)) {
        perror("check: guarded memory");
        exit(1);
    }
    m->pages = all + page;
    m->size = size;
    return m;
}

void *check_guard(size_t bytes, int at_end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t size = (bytes + run.slack + page - 1) / page * page;
    struct mapping *m = map(size, page);
    memset(m->pages, FILL, size);
    m->memory = at_end ? m->pages + size - bytes - run.slack : m->pages;
    m->bytes = bytes;
    m->next = used;
    used = m;
    return m->memory;
}

static int is_filled(const unsigned char *from, const unsigned char *to)
{
    for (; from < to && ((uintptr_t)from & 7); from++)
        if (*from != FILL)
            return 0;
    for (uint64_t word; to - from >= 8; from += 8) {
        memcpy(&word, from, 8);
        if (word != FILL * UINT64_C(0x0101010101010101))
            return 0;
    }
    for (; from < to; from++)
        if (*from != FILL)
            return 0;
    return 1;
}

void check_guard_free(void *memory)
{
    struct mapping **at = &used;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    struct mapping *m = *at;
    if (!m) {
        CHECK(0, "check_guard_free: not from check_guard");
        return;
    }
    *at = m->next;
    CHECK(is_filled(m->pages, m->memory) && is_filled(m->memory + m->bytes, m->pages + m->size),
          "memory beside a buffer of %zu bytes was written", m->bytes);
    if (spare_bytes + m->size > MOST_SPARE_BYTES) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        munmap(m->pages - page, m->size + 2 * page);
        free(m);
        return;
    }
    spare_bytes += m->size;
    m->next = spare;
    spare = m;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void check_bits(const float *got, const float *expected, int64_t count, const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t g = bits_of(got[i]), e = bits_of(expected[i]);
        if (g == e || (isnan(got[i]) && isnan(expected[i])))
            continue;
        CHECK(0,
              "%s: element %" PRId64 " of %" PRId64 " is %.9g (%08" PRIx32
              "), expected %.9g (%08" PRIx32 ")",
              what, i, count, (double)got[i], g, (double)expected[i], e);
        return;
    }
}

/* |got - expected| in units of the bound; NaN or infinity where that makes no sense. */
static double error_in_bounds(double got, double expected, double bound)
{
    if (got == expected || (isinf(bound) && !isfinite(expected) && !isfinite(got)))
        return 0;
    if (isnan(expected))
        return isnan(got) ? 0 : INFINITY;
    return fabs(got - expected) / bound;
}

double check_bound(const float *got, const double *expected, const double *bound, int64_t count,
                   const char *what)
{
    double largest = 0;
    int64_t worst = -1;
    for (int64_t i = 0; i < count; i++) {
        const double error = error_in_bounds((double)got[i], expected[i], bound[i]);
        if (!(error <= largest)) {
            largest = isnan(error) ? INFINITY : error;
            worst = i;
        }
    }
    if (!(largest <= 1))
        CHECK(0, "%s: element %" PRId64 " of %" PRId64 " is %.9g, expected %.17g +- %.3g", what,
              worst, count, (double)got[worst], expected[worst], bound[worst]);
    return largest;
}

void check_poison(float *memory, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = UINT32_C(0x7fc00000) | (uint32_t)((i * 40503 + 0xDEAD) & 0x3fffff);
        memcpy(&memory[i], &bits, sizeof bits);
    }
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* splitmix64 (Steele, Lea, Flood 2014) with its published constants. */
uint64_t check_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

float check_uniform(uint64_t *state, float low, float high)
{
    return low + (high - low) * ((float)(check_random(state) >> 40) * 0x1p-24f);
}

/* The sum of twelve uniform numbers has variance 1 and needs no logarithm, whose bits could differ
 * from machine to machine. */
float check_normal(uint64_t *state)
{
    int64_t sum = 0;
    for (int i = 0; i < 3; i++)
        for (uint64_t four = check_random(state), j = 0; j < 4; j++, four >>= 16)
            sum += (int64_t)(four & 0xffff);
    return (float)(2 * sum - 12 * 65535) * 0x1p-17f;
}

void check_fill_normal(uint64_t *state, float *to, int64_t count, float deviation)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = check_normal(state) * deviation;
}
