/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks that send each other messages so long that both ends of each copy,
 * into memory that nobody has written before, and look at every byte: for
 * valgrind's memcheck, which took those that the sender had written for
 * uninitialised.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tp.h"

enum { SEEN_BYTES = 1 << 20, SEEN_TURNS = 60 };

static void seen_check(tp_status status, const char *what)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "seen: %s: %s\n", what, tp_strerror(status));
    exit(1);
}

static void seen_receive(tp_pipe *pipe, unsigned char wanted)
{
    unsigned char *data = malloc(SEEN_BYTES);
    size_t wrong = 0;

    if (data == NULL)
        seen_check(TP_ERR_NO_MEMORY, "malloc");
    seen_check(tp_pipe_recv(pipe, data, SEEN_BYTES, NULL), "recv");
    for (size_t i = 0; i < SEEN_BYTES; i++)
        if (data[i] != wanted)
            wrong++;
    if (wrong > 0) {
        fprintf(stderr, "seen: %zu bytes are wrong\n", wrong);
        exit(1);
    }
    free(data);
}

int main(void)
{
    unsigned char *data = malloc(SEEN_BYTES);
    tp_context *context;
    tp_pipe *pipe;
    int rank;

    if (data == NULL)
        return 1;
    seen_check(tp_init(NULL, &context), "init");
    rank = tp_rank(context);
    seen_check(tp_pipe_to_rank(context, 1 - rank, &pipe), "pipe");
    for (int i = 0; i < SEEN_TURNS; i++) {
        if (i % 2 == rank) {
            memset(data, i, SEEN_BYTES);
            seen_check(tp_pipe_send(pipe, data, SEEN_BYTES), "send");
        } else {
            seen_receive(pipe, (unsigned char)i);
        }
    }
    seen_check(tp_finalize(context), "finalize");
    free(data);
    return 0;
}
