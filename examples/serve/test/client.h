/* A client over a plain socket, which can misbehave where a library would not. */
#ifndef SERVE_TEST_CLIENT_H
#define SERVE_TEST_CLIENT_H

#include <stddef.h>

struct answer {
    int status; /* 0: the connection ended before one came */
    int closes; /* the server closes the connection behind it */
    size_t size;
    char *body; /* in `buffer`, a zero behind it */
    char *buffer;
    size_t room;
};

/* A socket, -1: refused. Nothing on it waits longer than a minute. */
int client_connect(int port);

/* 0, -1: the server has closed. */
int client_send(int client, const void *data, size_t size);

/* Reads one answer; answer->buffer is kept between calls and freed by client_forget(). */
void client_receive(int client, struct answer *answer);
void client_forget(struct answer *answer);

/* GET path on a connection of its own: the status. */
int client_get(int port, const char *path, struct answer *answer);

void client_sleep(double seconds);

#endif
