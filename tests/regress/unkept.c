/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A client whose path contract lets it use no backend, and that tries again and
 * again: each time the listener lets it in, and it does not come.  Another one
 * was then kept out, for as long as the listener waits for those.
 */
#include <stdbool.h>
#include <stdio.h>

#include "runtime/tp.h"

enum {
    UNKEPT_TURNS = 85,             /* with as many at once, more than a ... */
    UNKEPT_AT_ONCE = 50,           /* ... listener waits for */
    UNKEPT_MS = 20000              /* it waits six times as long */
};

static void unkept_accepted(tp_listener *listener, tp_status status,
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

static tp_context *unkept_context(const char *require, int connect_ms)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;

    options.bootstrap = "single";
    options.require = require;
    options.connect_timeout_ms = connect_ms;
    return tp_init(&options, &context) == TP_OK ? context : NULL;
}

static bool unkept_try(tp_context *context, const char *address)
{
    tp_pipe *pipes[UNKEPT_AT_ONCE];
    char byte;

    for (int i = 0; i < UNKEPT_AT_ONCE; i++)
        if (tp_connect(context, address, &pipes[i]) != TP_OK)
            return false;
    for (int i = 0; i < UNKEPT_AT_ONCE; i++) {
        tp_status status = tp_pipe_recv(pipes[i], &byte, 1, NULL);

        if (status != TP_ERR_UNREACHABLE) {
            fprintf(stderr, "unkept: a contract that is not: %s: %s\n",
                    tp_strerror(status), tp_pipe_error(pipes[i]));
            return false;
        }
        tp_pipe_close(pipes[i]);
    }
    return true;
}

int main(void)
{
    tp_context *host = unkept_context(NULL, 6 * UNKEPT_MS);
    tp_context *bound = unkept_context("any:rails", UNKEPT_MS);
    tp_context *client = unkept_context(NULL, UNKEPT_MS);
    tp_listener *listener;
    char address[1024], byte;
    tp_status status;
    tp_pipe *pipe;

    if (host == NULL || bound == NULL || client == NULL
        || tp_listen(host, "local", &listener) != TP_OK
        || tp_listener_address(listener, address, sizeof(address)) != TP_OK
        || tp_accept(listener, unkept_accepted, NULL) != TP_OK)
        return 1;
    for (int i = 0; i < UNKEPT_TURNS; i++)
        if (!unkept_try(bound, address))
            return 1;
    if (tp_connect(client, address, &pipe) != TP_OK)
        return 1;
    status = tp_pipe_recv(pipe, &byte, 1, NULL);
    if (status != TP_OK)
        fprintf(stderr, "unkept: %s: %s\n", tp_strerror(status),
                tp_pipe_error(pipe));
    tp_finalize(bound);
    tp_finalize(client);
    return tp_finalize(host) == TP_OK && status == TP_OK ? 0 : 1;
}
