#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char folder[4096];

static void fatal(const char *what)
{
    fprintf(stderr, "check: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void keep(struct arguments *a, const char *text, size_t length)
{
    if (a->used + length + 1 > sizeof a->text || a->count + 2 > 96) {
        fprintf(stderr, "check: too many arguments for the test's array\n");
        exit(2);
    }
    char *copy = a->text + a->used;
    memcpy(copy, text, length);
    copy[length] = '\0';
    a->used += length + 1;
    a->list[a->count++] = copy;
    a->list[a->count] = NULL;
}

void arguments_split(struct arguments *a, const char *words)
{
    static const char blanks[] = " \t\r\n";
    for (words += strspn(words, blanks); *words; words += strspn(words, blanks)) {
        size_t length = strcspn(words, blanks);
        keep(a, words, length);
        words += length;
    }
}

int arguments_begin(struct arguments *a)
{
    const char *command = getenv("HEADWAY_COMMAND"), *emulator = getenv("HEADWAY_EMULATOR");
    a->count = 0;
    a->used = 0;
    if (!command || !*command)
        return 0;
    arguments_split(a, emulator ? emulator : "");
    keep(a, command, strlen(command));
    return 1;
}

void arguments_add(struct arguments *a, const char *format, ...)
{
    char text[8192];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    keep(a, text, (size_t)length);
}

static void read_back(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, size - 1, file) : 0;
    text[length] = '\0';
    if (file)
        fclose(file);
}

static void redirect(const char *path, int to)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, to) < 0)
        _exit(126);
    close(file);
}

void command_run(struct arguments *a, const char *in, const char *out, struct outcome *outcome)
{
    char out_path[4200], err_path[4200];
    int status;
    snprintf(out_path, sizeof out_path, "%s/.stdout", folder);
    snprintf(err_path, sizeof err_path, "%s/.stderr", folder);
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        fatal("fork");
    if (child == 0) {
        redirect(out ? out : out_path, STDOUT_FILENO);
        redirect(err_path, STDERR_FILENO);
        if (in && chdir(in))
            _exit(126);
        execvp(a->list[0], (char *const *)a->list);
        _exit(127);
    }
    if (waitpid(child, &status, 0) != child)
        fatal("waitpid");
    outcome->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_back(out ? "/dev/null" : out_path, outcome->out, sizeof outcome->out);
    read_back(err_path, outcome->err, sizeof outcome->err);
}

const char *folder_make(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/headway-check-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder))
        fatal(folder);
    return folder;
}

void folder_remove(void)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    while (directory && (entry = readdir(directory)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlink(folder_path(entry->d_name));
    if (directory)
        closedir(directory);
    rmdir(folder);
}

const char *folder_path(const char *name)
{
    static char paths[8][8192];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

int file_exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0;
}

void file_write(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file))
        fatal(path);
}

void expect_refusal(const struct outcome *o, const char *words, const char *what)
{
    const char *newline = strchr(o->err, '\n');
    CHECK(o->status == 2, "%s: exit %d, 2 expected; stderr: %.300s", what, o->status, o->err);
    CHECK(strncmp(o->err, "headway: ", 9) == 0 && newline && newline[1] == '\0',
          "%s: one line 'headway: ...' expected on stderr: %.300s", what, o->err);
    while (*words) {
        size_t length = strcspn(words, "|");
        CHECK(memmem(o->err, strlen(o->err), words, length), "%s: '%.*s' is not in: %.300s", what,
              (int)length, words, o->err);
        words += length + (words[length] == '|');
    }
}

static int read_doubles(const char *path, struct array *shape, double **values, const char *what)
{
    struct array doubles = {0};
    char error[ERROR_SIZE];
    if (npy_read(path, shape, error) || array_convert(&doubles, shape, ARRAY_F64, error)) {
        CHECK(0, "%s: %s", what, error);
        return -1;
    }
    *values = doubles.data;
    return 0;
}

void expect_close(const char *got, const char *expected, double tolerance, int relative,
                  const char *what)
{
    struct array a = {0}, b = {0};
    double *x = NULL, *y = NULL, largest = 0;
    if (read_doubles(got, &a, &x, what) || read_doubles(expected, &b, &y, what))
        return;
    int64_t count = array_count(&a);
    int same = a.rank == b.rank;
    for (int axis = 0; same && axis < a.rank; axis++)
        same = a.shape[axis] == b.shape[axis];
    CHECK(same, "%s: the shapes differ", what);
    for (int64_t i = 0; same && relative && i < count; i++)
        largest = fmax(largest, fabs(y[i]));
    if (relative)
        tolerance *= largest;
    for (int64_t i = 0; same && i < count; i++)
        if (!(fabs(x[i] - y[i]) <= tolerance) && !(isnan(x[i]) && isnan(y[i])) && x[i] != y[i]) {
            CHECK(0, "%s: element %lld is %.9g, %.9g +- %.3g expected", what, (long long)i, x[i],
                  y[i], tolerance);
            break;
        }
    array_free(&a);
    array_free(&b);
    free(x);
    free(y);
}
