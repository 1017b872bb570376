/* Connections whose turn it is, and for how long: libmicrohttpd's own timeout starts again with every
 * byte, so that a drip of them never meets it. */
#ifndef SERVE_CLIENTS_H
#define SERVE_CLIENTS_H

#include <pthread.h>

struct client {
    int socket;
    double since; /* it has been the client's turn; 0: it is ours */
    int cut_off;
    struct client *next, **at;
};

struct clients {
    pthread_mutex_t mutex;
    struct client *first;
};

void clients_init(struct clients *clients);
void clients_destroy(struct clients *clients); /* when all have gone */

/* It is the client's turn at first. NULL: out of memory, and it is not watched. */
struct client *clients_come(struct clients *clients, int socket);
void clients_go(struct clients *clients, struct client *client);

/* since: clock_seconds(), or 0. Nothing for a client that is NULL. */
void clients_turn(struct clients *clients, struct client *client, double since);

/* Ends the streams of those whose turn has lasted since before `since`. */
void clients_cut_off(struct clients *clients, double since);

#endif
