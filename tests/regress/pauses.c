/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks that compute, and rest, between their messages: the context's own
 * thread wakes now and then to look, as nobody else does, and callers come and
 * go beside it.  One of them must not sleep for ever.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/tp.h"

enum { PAUSES_ROUNDS = 300, PAUSES_MOST_US = 12000 };

static void pauses_work(long us)
{
    struct timespec begun, now;

    clock_gettime(CLOCK_MONOTONIC, &begun);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000
           + (now.tv_nsec - begun.tv_nsec) / 1000 < us);
}

static void pauses_rest(long us)
{
    struct timespec nap = { 0, us * 1000 };

    nanosleep(&nap, NULL);
}

int main(void)
{
    tp_context *context;
    unsigned state, round = 0;
    tp_pipe *pipe;
    tp_status status;
    int rank;
    char byte = 0;

    if (tp_init(NULL, &context) != TP_OK)
        return 1;
    rank = tp_rank(context);
    state = (unsigned)rank;
    status = tp_pipe_to_rank(context, !rank, &pipe);
    for (; status == TP_OK && round < PAUSES_ROUNDS; round++) {
        long us = rand_r(&state) % PAUSES_MOST_US;

        if (round % 2 == 0)
            pauses_work(us);
        else
            pauses_rest(us);
        status = (int)(round % 2) == rank ? tp_pipe_send(pipe, &byte, 1)
                 : tp_pipe_recv(pipe, &byte, 1, NULL);
    }
    if (status != TP_OK)
        fprintf(stderr, "pauses: rank %d, round %u: %s\n", rank, round,
                tp_strerror(status));
    return tp_finalize(context) == TP_OK && status == TP_OK ? 0 : 1;
}
