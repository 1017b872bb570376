#include "client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int client_connect(int port)
{
    const struct timeval minute = {60, 0};
    const int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    if (client < 0)
        return -1;
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &minute, sizeof minute);
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(client, (struct sockaddr *)&address, sizeof address) == 0)
        return client;
    close(client);
    return -1;
}

int client_send(int client, const void *data, size_t size)
{
    const char *at = data;
    while (size) {
        ssize_t sent = send(client, at, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return -1;
        at += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int more(int client, struct answer *answer, size_t *have)
{
    if (answer->room - *have < 4096) {
        size_t room = answer->room ? answer->room * 2 : 65536;
        char *buffer = realloc(answer->buffer, room);
        if (!buffer)
            return -1;
        answer->buffer = buffer;
        answer->room = room;
    }
    ssize_t got = recv(client, answer->buffer + *have, answer->room - *have - 1, 0);
    if (got <= 0)
        return -1;
    *have += (size_t)got;
    answer->buffer[*have] = 0;
    return 0;
}

/* The header's value in the lines up to `end`, or NULL. */
static const char *header(const char *lines, const char *end, const char *name)
{
    for (const char *at = lines; at && at < end; at = strstr(at, "\r\n")) {
        at += 2;
        if (strncasecmp(at, name, strlen(name)) == 0)
            return at + strlen(name);
    }
    return NULL;
}

void client_receive(int client, struct answer *answer)
{
    size_t have = 0;
    char *end = NULL;
    answer->status = 0;
    while (!end) {
        if (more(client, answer, &have))
            return;
        end = strstr(answer->buffer, "\r\n\r\n");
    }
    int status = 0;
    const char *lines = strstr(answer->buffer, "\r\n");
    const char *length = header(lines, end, "Content-Length: ");
    const char *connection = header(lines, end, "Connection: ");
    if (sscanf(answer->buffer, "HTTP/1.%*d %d", &status) != 1 || !length)
        return;
    answer->closes = connection && strncasecmp(connection, "close", 5) == 0;
    answer->size = strtoul(length, NULL, 10);
    size_t from = (size_t)(end - answer->buffer) + 4;
    while (have < from + answer->size)
        if (more(client, answer, &have))
            return;
    answer->body = answer->buffer + from;
    answer->status = have == from + answer->size ? status : 0;
}

void client_forget(struct answer *answer)
{
    free(answer->buffer);
    memset(answer, 0, sizeof *answer);
}

int client_get(int port, const char *path, struct answer *answer)
{
    char text[200];
    int client = client_connect(port);
    int size = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    answer->status = 0;
    if (client < 0)
        return 0;
    if (client_send(client, text, (size_t)size) == 0)
        client_receive(client, answer);
    close(client);
    return answer->status;
}

void client_sleep(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}
