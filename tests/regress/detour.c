/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A listener whose address names ways that lead nowhere before the one that
 * leads to it: calls there get no answer.  Each of them took five seconds, one
 * after the other, and here the time was up before the good one had its turn.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/tp.h"

enum {
    DETOUR_DEAD = 11,              /* with the good one, as many as there may
                                      be */
    DETOUR_MS = 40000,
    DETOUR_FULL = 8                /* callers, more than the backlog holds */
};

/* Nobody accepts at this port, and the kernel drops who calls once its backlog
 * is full. */
static unsigned detour_silent(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0
        || listen(fd, 0) < 0
        || getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return 0;
    for (int i = 0; i < DETOUR_FULL; i++) {
        int call = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                          0);

        if (call < 0)
            return 0;
        connect(call, (struct sockaddr *)&address, length);
    }
    return ntohs(address.sin_port);
}

/* `address`, with ways to that port before its own. */
static void detour_lead(const char *address, unsigned port, char text[1024])
{
    const char *way = strstr(address, ";tcp=");
    int length = snprintf(text, 1024, "%.*s", (int)(way - address), address);

    for (int i = 0; i < DETOUR_DEAD; i++)
        length += snprintf(text + length, 1024 - (size_t)length,
                           ";tcp=127.0.0.1:%u", port);
    snprintf(text + length, 1024 - (size_t)length, "%s", way);
}

static void detour_accepted(tp_listener *listener, tp_status status,
                            tp_pipe *pipe, void *arg)
{
    static char byte = 'x';
    static tp_payload payload = { .data = &byte, .length = 1 };
    static tp_message message = { .payloads = &payload, .payload_count = 1 };

    (void)listener;
    (void)arg;
    if (status == TP_OK)
        tp_pipe_write(pipe, &message, NULL, NULL);
}

int main(void)
{
    tp_options options = TP_OPTIONS_INIT;
    char address[1024], text[1024], byte;
    unsigned port = detour_silent();
    tp_listener *listener;
    tp_context *context;
    tp_pipe *pipe;
    tp_status status;

    options.connect_timeout_ms = DETOUR_MS;
    if (port == 0 || tp_init(&options, &context) != TP_OK
        || tp_listen(context, "127.0.0.1:0", &listener) != TP_OK
        || tp_listener_address(listener, address, sizeof(address)) != TP_OK
        || tp_accept(listener, detour_accepted, NULL) != TP_OK)
        return 1;
    detour_lead(address, port, text);
    if (tp_connect(context, text, &pipe) != TP_OK)
        return 1;
    status = tp_pipe_recv(pipe, &byte, 1, NULL);
    if (status != TP_OK)
        fprintf(stderr, "detour: %s: %s\n", tp_strerror(status),
                tp_pipe_error(pipe));
    return tp_finalize(context) == TP_OK && status == TP_OK ? 0 : 1;
}
