/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two processes that no launcher knows.  One listens and prints its address;
 * the other is given that address, connects and sends a greeting.
 *
 *     ./outsider
 *     ./outsider ADDRESS
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp.h>

enum { LIMIT_MS = 60000 };

struct host {
    bool done;
    tp_status status;
    tp_pipe *guest;
};

static void accepted(tp_listener *listener, tp_status status, tp_pipe *pipe,
                     void *arg)
{
    struct host *host = arg;

    (void)listener;
    host->status = status;
    host->guest = pipe;
    host->done = true;
}

static tp_status receive_guest(tp_context *context, tp_listener *listener)
{
    struct host host = { 0 };
    char address[1024], text[64];
    tp_status status;

    status = tp_listener_address(listener, address, sizeof(address));
    if (status != TP_OK)
        return status;
    printf("%s\n", address);
    fflush(stdout);
    status = tp_accept(listener, accepted, &host);
    while (status == TP_OK && !host.done)
        status = tp_wait(context, LIMIT_MS, NULL);
    if (status == TP_OK)
        status = host.status;
    if (status == TP_OK)
        status = tp_pipe_recv(host.guest, text, sizeof(text), NULL);
    if (status == TP_OK)
        printf("%s: %s\n", tp_pipe_peer(host.guest), text);
    return status;
}

static tp_status be_host(tp_context *context)
{
    tp_listener *listener;
    tp_status status, last;

    status = tp_listen(context, NULL, &listener);
    if (status != TP_OK)
        return status;
    status = receive_guest(context, listener);
    last = tp_listener_close(listener);
    return status != TP_OK ? status : last;
}

static tp_status be_guest(tp_context *context, const char *address)
{
    static const char text[] = "hello from outside";
    tp_pipe *pipe = NULL;
    tp_status status = tp_connect(context, address, &pipe);

    if (status == TP_OK)
        status = tp_pipe_send(pipe, text, sizeof(text));
    if (status != TP_OK && pipe != NULL)
        fprintf(stderr, "outsider: %s\n", tp_pipe_error(pipe));
    return status;
}

int main(int argc, char **argv)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_status status, last;

    options.progress = TP_PROGRESS_MANUAL;
    status = tp_init(&options, &context);
    if (status != TP_OK) {
        fprintf(stderr, "outsider: tp_init: %s\n", tp_strerror(status));
        return 1;
    }
    status = argc > 1 ? be_guest(context, argv[1]) : be_host(context);
    if (status != TP_OK)
        fprintf(stderr, "outsider: %s\n", tp_strerror(status));
    last = tp_finalize(context);
    return status == TP_OK && last == TP_OK ? 0 : 1;
}
