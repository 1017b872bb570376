#include "clients.h"
#include "clock.h"

#include <stdlib.h>
#include <sys/socket.h>

void clients_init(struct clients *clients)
{
    pthread_mutex_init(&clients->mutex, NULL);
    clients->first = NULL;
}

void clients_destroy(struct clients *clients)
{
    pthread_mutex_destroy(&clients->mutex);
}

struct client *clients_come(struct clients *clients, int socket)
{
    struct client *client = calloc(1, sizeof *client);
    if (!client)
        return NULL;
    client->socket = socket;
    client->since = clock_seconds();
    pthread_mutex_lock(&clients->mutex);
    client->at = &clients->first;
    client->next = clients->first;
    if (client->next)
        client->next->at = &client->next;
    clients->first = client;
    pthread_mutex_unlock(&clients->mutex);
    return client;
}

void clients_go(struct clients *clients, struct client *client)
{
    if (!client)
        return;
    pthread_mutex_lock(&clients->mutex);
    *client->at = client->next;
    if (client->next)
        client->next->at = client->at;
    pthread_mutex_unlock(&clients->mutex);
    free(client);
}

void clients_turn(struct clients *clients, struct client *client, double since)
{
    if (!client)
        return;
    pthread_mutex_lock(&clients->mutex);
    client->since = since;
    pthread_mutex_unlock(&clients->mutex);
}

void clients_cut_off(struct clients *clients, double since)
{
    pthread_mutex_lock(&clients->mutex);
    for (struct client *client = clients->first; client; client = client->next)
        if (client->since > 0 && client->since < since && !client->cut_off) {
            client->cut_off = 1;
            shutdown(client->socket, SHUT_RDWR);
        }
    pthread_mutex_unlock(&clients->mutex);
}
