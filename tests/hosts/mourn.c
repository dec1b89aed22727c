/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank dies, the others are told.  Started by the scripts of this folder:
 *
 *   mourn HOW     deaf: all ask for what nobody sends, and stay
 *                 kill: the last rank kills itself after a word to each
 *                 abort: it ends the job instead, with status 42
 *                 leave: it exits without tp_finalize
 *                 well: all part in peace
 *                 never: it leaves, and never asked for a pipe
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { MOURN_LIMIT = 300000 };     /* ms; the scripts end earlier */

static tp_pipe *mourn_pipe;         /* whose words explain a failure */

static void mourn_need(tp_status status, const char *what)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "mourn: %s: %s: %s\n", what, tp_strerror(status),
            mourn_pipe != NULL ? tp_pipe_error(mourn_pipe) : "");
    exit(9);
}

static double mourn_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* The one that goes. */
static void mourn_last(tp_context *context, const char *how)
{
    int last = tp_size(context) - 1;

    for (int i = 0; i < last && strcmp(how, "never") != 0; i++) {
        tp_pipe *pipe;
        char word;
        size_t length;

        mourn_need(tp_pipe_to_rank(context, i, &pipe), "pipe");
        mourn_pipe = pipe;
        mourn_need(tp_pipe_send(pipe, "w", 1), "send");
        mourn_need(tp_pipe_recv(pipe, &word, 1, &length), "recv");
    }
    if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(how, "abort") == 0)
        tp_abort(context, 42, "the disk of this node is full");
    if (strcmp(how, "leave") == 0)
        _exit(0);
}

static void mourn_other(tp_context *context, const char *how)
{
    tp_message *message = NULL;
    tp_pipe *pipe;
    tp_status status;
    double begun;
    char word;
    size_t length;

    mourn_need(tp_pipe_to_rank(context, tp_size(context) - 1, &pipe),
               "pipe");
    mourn_pipe = pipe;
    if (strcmp(how, "never") == 0) {
        if (tp_rank(context) > 0)
            usleep(300000);        /* rank 0 is early, most likely */
        status = tp_pipe_recv(pipe, &word, 1, &length);
        printf("rank %d: %s: %s\n", tp_rank(context), tp_strerror(status),
               tp_pipe_error(pipe));
        if (status != TP_ERR_PEER_CLOSED)
            exit(8);
        return;
    }
    mourn_need(tp_pipe_recv(pipe, &word, 1, &length), "recv");
    mourn_need(tp_pipe_send(pipe, "w", 1), "send");
    if (strcmp(how, "well") == 0)
        return;
    begun = mourn_now();
    status = tp_pipe_recv_skeleton(pipe, &message, MOURN_LIMIT);
    printf("rank %d: %s after %.0f ms\n", tp_rank(context),
           tp_strerror(status), mourn_now() - begun);
    fflush(stdout);                /* before the engine ends us as well */
    if (status != TP_ERR_PEER_FAILED)
        exit(8);
}

/* Whatever the answer is, it makes nothing of it. */
static void mourn_deaf(tp_context *context)
{
    tp_pipe *pipe;
    char word;
    size_t length;

    mourn_need(tp_pipe_to_rank(context, (tp_rank(context) + 1)
                               % tp_size(context), &pipe), "pipe");
    printf("rank %d: %s\n", tp_rank(context),
           tp_strerror(tp_pipe_recv(pipe, &word, 1, &length)));
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    tp_context *context;
    const char *how = argc > 1 ? argv[1] : "well";

    mourn_need(tp_init(NULL, &context), "tp_init");
    if (strcmp(how, "deaf") == 0)
        mourn_deaf(context);
    if (tp_rank(context) == tp_size(context) - 1)
        mourn_last(context, how);
    else
        mourn_other(context, how);
    mourn_need(tp_finalize(context), "tp_finalize");
    return 0;
}
