/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * elsewhere ADDRESS: the address of a listener on another host, which that one
 * also has, as a bridge of containers is called the same everywhere.  Here
 * another listener is there, at the same port, which knows the same secret: it
 * is not the one that is meant, and was taken for it.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "runtime/tp.h"

enum { ELSEWHERE_MS = 1000 };

int main(int argc, char **argv)
{
    tp_options options = TP_OPTIONS_INIT;
    char address[1024], *host, byte;
    tp_listener *listener;
    tp_context *context;
    tp_pipe *pipe;
    tp_status status;
    const char *error;
    bool well;

    options.connect_timeout_ms = ELSEWHERE_MS;
    options.secret = "known on all hosts";
    if (argc != 2 || tp_init(&options, &context) != TP_OK
        || tp_listen(context, argv[1], &listener) != TP_OK
        || tp_listener_address(listener, address, sizeof(address)) != TP_OK
        || (host = strstr(address, ";host=")) == NULL)
        return 1;
    host[6] = host[6] == '0' ? '1' : '0';
    if (tp_connect(context, address, &pipe) != TP_OK)
        return 1;
    status = tp_pipe_send(pipe, &byte, 0);
    error = tp_pipe_error(pipe);
    well = status == TP_ERR_UNREACHABLE && strstr(error, "leads there") != NULL;
    if (!well)
        fprintf(stderr, "elsewhere: %s: %s\n", tp_strerror(status), error);
    return tp_finalize(context) == TP_OK && well ? 0 : 1;
}
