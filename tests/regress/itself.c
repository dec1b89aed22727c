/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls a port that nobody listens on: itself ADDRESS.  A TCP socket that is
 * given that very port for its own end meets itself, and a listener was said to
 * be there that does not know the secret.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "runtime/tp.h"

enum { ITSELF_MS = 1000 };

int main(int argc, char **argv)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_pipe *pipe;
    tp_status status;
    const char *error;
    bool well;

    options.connect_timeout_ms = ITSELF_MS;
    options.secret = "known to nobody else";
    if (argc != 2 || tp_init(&options, &context) != TP_OK)
        return 1;
    if (tp_connect(context, argv[1], &pipe) != TP_OK)
        return 1;
    status = tp_pipe_send(pipe, argv[1], strlen(argv[1]));
    error = tp_pipe_error(pipe);
    well = status == TP_ERR_UNREACHABLE && strstr(error, "refused") != NULL;
    if (!well)
        fprintf(stderr, "itself: %s: %s\n", tp_strerror(status), error);
    return tp_finalize(context) == TP_OK && well ? 0 : 1;
}
