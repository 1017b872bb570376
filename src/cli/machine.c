#define _GNU_SOURCE

#include "cli/machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

enum { MEASUREMENTS = 5, MOST_THREADS = 256 };

struct spinner {
    const struct headway_row *row;
    int64_t rounds, operations;
    float sink;
};

static void *spin(void *context)
{
    struct spinner *s = context;
    s->operations = s->row->peak(s->rounds, &s->sink);
    return NULL;
}

/* Operations per second of one burst: all threads between the first start and the last end. */
static double burst(struct spinner *spinners, int threads, int64_t rounds)
{
    pthread_t ids[MOST_THREADS];
    int started = 0;
    double operations = 0, start = seconds();
    for (int i = 0; i < threads; i++)
        spinners[i].rounds = rounds;
    for (; started < threads - 1; started++)
        if (pthread_create(&ids[started], NULL, spin, &spinners[started + 1]))
            break;
    spin(&spinners[0]);
    operations += (double)spinners[0].operations;
    for (int i = 0; i < started; i++) {
        pthread_join(ids[i], NULL);
        operations += (double)spinners[i + 1].operations;
    }
    return operations / (seconds() - start);
}

double fma_peak(const struct headway_row *row, int threads)
{
    if (threads > MOST_THREADS)
        threads = MOST_THREADS;
    struct spinner *spinners = calloc((size_t)threads, sizeof *spinners);
    if (!spinners)
        return 0;
    for (int i = 0; i < threads; i++)
        spinners[i].row = row;
    int64_t rounds = 1000;
    double took = 0, best = 0;
    /* A burst of some 20 ms: long beside starting a thread, short beside a time slice. */
    while (took < 0.005) {
        double start = seconds();
        rounds *= 2;
        spin((spinners[0].rounds = rounds, &spinners[0]));
        took = seconds() - start;
    }
    rounds = (int64_t)((double)rounds * 0.02 / took) + 1;
    for (int i = 0; i < MEASUREMENTS; i++) {
        double rate = burst(spinners, threads, rounds);
        if (rate > best)
            best = rate;
    }
    free(spinners);
    return best;
}

/* First line of a file of /proc or /sys; 0 when there is none. */
static int first_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "r");
    int read = file && fgets(line, (int)size, file);
    if (file)
        fclose(file);
    if (read)
        line[strcspn(line, "\n")] = '\0';
    return read;
}

static void print_cpu(void)
{
    static const char *const keys[] = {"model name", "Processor", "CPU part"};
    char line[512], name[512] = "unknown";
    size_t best = sizeof keys / sizeof *keys;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        for (size_t i = 0; i < best; i++) {
            const char *colon = strchr(line, ':');
            if (colon && strncmp(line, keys[i], strlen(keys[i])) == 0) {
                colon += 1 + strspn(colon + 1, " \t");
                snprintf(name, sizeof name, "%s%.*s", i == 2 ? "part " : "",
                         (int)strcspn(colon, "\n"), colon);
                best = i;
            }
        }
    if (file)
        fclose(file);
    printf("cpu %s, %ld online\n", name, sysconf(_SC_NPROCESSORS_ONLN));
}

static void print_caches(void)
{
    printf("caches");
    int count = 0;
    for (int i = 0; i < 8; i++) {
        static const char *const fields[] = {"level", "type", "size"};
        char path[96], values[3][64];
        int found = 0;
        for (int f = 0; f < 3; f++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i,
                     fields[f]);
            found += first_line(path, values[f], sizeof values[f]);
        }
        if (found == 3 && strcmp(values[1], "Instruction") != 0)
            printf("%s L%s%s %s", count++ ? "," : "", values[0],
                   strcmp(values[1], "Data") == 0 ? "d" : "", values[2]);
    }
    printf("%s\n", count ? "" : " unknown");
}

void machine_print(void)
{
    print_cpu();
    print_caches();
}
