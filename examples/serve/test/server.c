#include "server.h"
#include "client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void become(const char *program, const char *weights, const char *layer, int tokens,
                   char **more, int out)
{
    enum { MOST = 60 };
    static const char *const options[] = {"--port",
                                          "0",
                                          "--threads",
                                          "2",
                                          "--slots",
                                          "80",
                                          "--pages",
                                          "640",
                                          "--requests",
                                          "120",
                                          "--chunk",
                                          "48",
                                          "--step-tokens",
                                          "256",
                                          "--body",
                                          "8000000",
                                          "--seconds",
                                          "6",
                                          "--stop-seconds",
                                          "2",
                                          "--session-seconds",
                                          "20"};
    const char *arguments[MOST] = {program, "--weights", weights};
    char number[16];
    int count = 3;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        arguments[count++] = options[i];
    snprintf(number, sizeof number, "%d", tokens);
    arguments[count++] = "--tokens";
    arguments[count++] = number;
    if (layer) {
        arguments[count++] = "--layer";
        arguments[count++] = layer;
    }
    while (more && *more && count < MOST - 1)
        arguments[count++] = *more++;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    execv(program, (char *const *)arguments);
    _exit(127);
}

int server_start(struct server *server, const char *program, const char *weights, const char *layer,
                 int tokens, char **more)
{
    int ends[2];
    if (pipe(ends))
        return -1;
    server->process = fork();
    if (server->process == 0)
        become(program, weights, layer, tokens, more, ends[1]);
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    int found = said && fscanf(said, "listening on 127.0.0.1:%d", &server->port) == 1;
    if (said)
        fclose(said);
    if (found)
        return 0;
    printf("FAIL %s does not start\n", program);
    return -1;
}

int server_stop(struct server *server)
{
    int status = 0;
    kill(server->process, SIGTERM);
    for (int tries = 0; tries < 6000; tries++) {
        if (waitpid(server->process, &status, WNOHANG) == server->process)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        client_sleep(0.01);
    }
    kill(server->process, SIGKILL);
    waitpid(server->process, &status, 0);
    return -1;
}

long server_resident(const struct server *server)
{
    char path[64], line[200];
    long resident = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", (long)server->process);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %ld", &resident) == 1)
            break;
    if (file)
        fclose(file);
    return resident;
}

double server_metric(const struct server *server, const char *name)
{
    struct answer answer = {0};
    char line[200];
    double value = 0;
    snprintf(line, sizeof line, "\nheadway_serve_%s ", name);
    if (client_get(server->port, "/metrics", &answer) == 200) {
        const char *at = strstr(answer.body, line);
        value = at ? strtod(at + strlen(line), NULL) : 0;
    }
    client_forget(&answer);
    return value;
}
