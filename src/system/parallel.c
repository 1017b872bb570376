/* affinity masks, getpid */
#define _GNU_SOURCE
#include "system/parallel.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#define PATH_SIZE 4096

int headway_process(void)
{
    return (int)getpid();
}

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t\n");
}

int headway_quota_cpus(const char *text)
{
    const char *at = skip_blanks(text);
    char *end;
    long long quota, period = 100000;

    quota = strtoll(at, &end, 10);
    if (end == at || quota <= 0 || quota == LLONG_MAX)
        return 0;
    at = skip_blanks(end);
    if (*at) {
        period = strtoll(at, &end, 10);
        if (end == at || *skip_blanks(end) || period <= 0)
            return 0;
    }
    quota = quota / period + (quota % period != 0);
    return quota < INT_MAX ? (int)quota : INT_MAX;
}

/* A short file's text; 0 when there is none. Read without stdio, which would allocate. */
static int read_text(const char *path, char *text, size_t size)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t got = 0;

    if (file < 0)
        return 0;
    while (used < size - 1 && (got = read(file, text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    close(file);
    text[used] = '\0';
    return got >= 0;
}

/* The limit of one group, whose files lie in `folder`. version is cgroup's, 1 or 2. */
static int group_cpus(const char *folder, int version)
{
    char path[PATH_SIZE], text[128], period[64];

    if (version == 2) {
        snprintf(path, sizeof path, "%.3900s/cpu.max", folder);
        return read_text(path, text, sizeof text) ? headway_quota_cpus(text) : 0;
    }
    snprintf(path, sizeof path, "%.3900s/cpu.cfs_quota_us", folder);
    if (!read_text(path, text, sizeof text - sizeof period))
        return 0;
    snprintf(path, sizeof path, "%.3900s/cpu.cfs_period_us", folder);
    if (read_text(path, period, sizeof period)) {
        strcat(text, " ");
        strcat(text, period);
    }
    return headway_quota_cpus(text);
}

/* The least limit of a group and all groups above it. In a container the path may be one of the
 * host's that is not visible here; the mount's root is then the container's group, and it is
 * reached too. */
static int path_cpus(const char *mount, const char *group, int version)
{
    char folder[PATH_SIZE];
    const size_t root = strlen(mount);
    int least = 0;

    snprintf(folder, sizeof folder, "%s%.3800s", mount, group);
    for (;;) {
        const int cpus = group_cpus(folder, version);
        char *slash = strrchr(folder, '/');
        if (cpus > 0 && (least == 0 || cpus < least))
            least = cpus;
        if (!slash || slash < folder + root)
            return least;
        *slash = '\0';
    }
}

/* Whether the comma-separated list that ends at `end` has the word "cpu". */
static int names_cpu(const char *list, const char *end)
{
    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma ? comma : end;
        if (stop - list == 3 && memcmp(list, "cpu", 3) == 0)
            return 1;
        list = stop + 1;
    }
    return 0;
}

/* CPUs that the cgroups of this process allow, or 0. A line of /proc/self/cgroup is
 * "id:controllers:path", with no controllers for version 2. */
static int cgroup_cpus(void)
{
    char text[PATH_SIZE];
    char *line, *rest = text;
    int least = 0;

    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return 0;
    while ((line = strsep(&rest, "\n"))) {
        const char *list = strchr(line, ':');
        const char *path = list ? strchr(list + 1, ':') : NULL;
        int cpus = 0;
        if (!path)
            continue;
        if (path == list + 1)
            cpus = path_cpus("/sys/fs/cgroup", path + 1, 2);
        else if (names_cpu(list + 1, path))
            cpus = path_cpus("/sys/fs/cgroup/cpu", path + 1, 1);
        if (cpus > 0 && (least == 0 || cpus < least))
            least = cpus;
    }
    return least;
}

static int affinity_cpus(void)
{
    cpu_set_t set[16]; /* 16384 CPUs; the kernel refuses a mask shorter than its own */

    return sched_getaffinity(0, sizeof set, set) == 0 ? CPU_COUNT_S(sizeof set, set) : 0;
}

static int at_most(int threads, int limit)
{
    return limit > 0 && limit < threads ? limit : threads;
}

/* `threads`, or fewer where this process may not use so many CPUs at a time. */
static int within_limits(int threads)
{
    return at_most(at_most(threads, affinity_cpus()), cgroup_cpus());
}

int headway_threads_of_caller(int asked)
{
    const int saved = errno;
    int threads = asked;

    if (asked <= 0)
        threads = within_limits((int)sysconf(_SC_NPROCESSORS_ONLN));
    threads = at_most(threads, HEADWAY_MAX_THREADS);
    errno = saved;
    return threads > 1 ? threads : 1;
}

#ifdef _OPENMP
/* Whether this process was forked and has not called exec: PF_FORKNOEXEC of Linux in field 9 of its
 * first thread's stat, whose second field is a name in parentheses. The process's own stat says the
 * same, but emulators make that one up. */
static int forked_without_exec(void)
{
    char path[64], text[1024];
    const char *at;
    unsigned long flags;

    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    if (!read_text(path, text, sizeof text) || !(at = strrchr(text, ')')) ||
        sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags) != 1)
        return 0;
    return (flags & 0x40) != 0;
}

int headway_threads_allowed(int asked)
{
    const int saved = errno;
    int threads = asked > 0 ? asked : within_limits(omp_get_max_threads());

    threads = at_most(threads, omp_get_thread_limit());
    threads = at_most(threads, HEADWAY_MAX_THREADS);
    if (threads > 1 && forked_without_exec())
        threads = 1;
    errno = saved;
    return threads > 1 ? threads : 1;
}
#else
int headway_threads_allowed(int asked)
{
    (void)asked;
    return 1;
}
#endif

/* One call's tasks. */
struct work {
    headway_task_fn *body;
    void *context;
    int64_t tasks;
    atomic_llong next;
};

/* As worker `index`, until no task is left: indices that come late find none. */
static void run_worker(void *task, int index)
{
    struct work *work = task;
    const struct headway_float_mode before = headway_float_enter();

    for (;;) {
        const int64_t next = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed);
        if (next >= work->tasks)
            break;
        work->body(work->context, next, index);
    }
    headway_float_leave(before);
}

#ifdef _OPENMP
/* A region costs several times what asking for the process does. */
static int openmp_can(const struct headway_team *team)
{
    return !omp_in_parallel() && (!team->process || team->process == headway_process());
}

/* libgomp ends and makes threads, and allocates, whenever one team is larger or smaller than the
 * last: all teams have the same size, and those who have nothing to do go home. */
static void run_openmp(const struct headway_team *team, int threads, struct work *work)
{
#pragma omp parallel num_threads(team->threads)
    {
        if (omp_get_thread_num() < threads)
            run_worker(work, omp_get_thread_num());
    }
}
#else
static int openmp_can(const struct headway_team *team)
{
    (void)team;
    return 0;
}

static void run_openmp(const struct headway_team *team, int threads, struct work *work)
{
    (void)team;
    (void)threads;
    run_worker(work, 0);
}
#endif

int headway_team_threads(const struct headway_team *team)
{
    return team->threads > 1 && (team->parallel_for || openmp_can(team)) ? team->threads : 1;
}

void headway_parallel(const struct headway_team *team, int threads, int64_t tasks,
                      headway_task_fn *body, void *context)
{
    struct work work = {body, context, tasks, 0};
    const int saved = errno;

    if (tasks < threads)
        threads = (int)tasks;
    if (threads <= 1 || headway_team_threads(team) <= 1) {
        for (int64_t task = 0; task < tasks; task++)
            body(context, task, 0);
        return;
    }
    /* Threads that start now, and tasks of the caller's that its pool runs here, have the caller's
     * modes. */
    headway_float_leave(team->before);
    if (team->parallel_for)
        team->parallel_for(team->context, threads, run_worker, &work);
    else
        run_openmp(team, threads, &work);
    headway_float_enter();
    errno = saved;
}
