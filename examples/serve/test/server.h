/* The server as a process. */
#ifndef SERVE_TEST_SERVER_H
#define SERVE_TEST_SERVER_H

#include <sys/types.h>

struct server {
    pid_t process;
    int port;
};

/* On a free port, with little room: slots, pages and requests run out under load. more: further
 * arguments, ended by NULL, or NULL. 0, or -1: a FAIL line
 * was printed. */
int server_start(struct server *server, const char *program, const char *weights, const char *layer,
                 int tokens, char **more);

/* SIGTERM; the exit status, 128 and more for a signal, -1 when it had to be killed. */
int server_stop(struct server *server);

long server_resident(const struct server *server); /* KB */

/* The value of headway_serve_NAME in /metrics; 0 when there is none. */
double server_metric(const struct server *server, const char *name);

#endif
