/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks, one of which has to try again: tp_init() fails with what it asks
 * for first.  The n-th context of one meets the n-th of the other; calls that
 * failed were counted, too, and the two never met.
 */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/tp.h"

enum { FALLBACK_CONTEXTS = 2 };

static void fallback_check(tp_status status, const char *what)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "fallback: %s: %s\n", what, tp_strerror(status));
    exit(1);
}

int main(void)
{
    const char *rank = getenv("PMIX_RANK");
    tp_context *contexts[FALLBACK_CONTEXTS];

    for (int i = 0; i < FALLBACK_CONTEXTS; i++) {
        tp_options options = TP_OPTIONS_INIT;
        char out = 'f', in = 0;
        tp_pipe *pipe;

        options.backends = "nowhere";
        if (rank != NULL && atoi(rank) == 1
            && tp_init(&options, &contexts[i]) != TP_ERR_UNREACHABLE)
            fallback_check(TP_ERR_PROTOCOL, "a backend that there is not");
        fallback_check(tp_init(NULL, &contexts[i]), "init");
        fallback_check(tp_pipe_to_rank(contexts[i], 1 - tp_rank(contexts[i]),
                                       &pipe), "pipe");
        fallback_check(tp_pipe_send(pipe, &out, 1), "send");
        fallback_check(tp_pipe_recv(pipe, &in, 1, NULL), "receive");
    }
    for (int i = 0; i < FALLBACK_CONTEXTS; i++)
        fallback_check(tp_finalize(contexts[i]), "finalize");
    return 0;
}
