/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank that joins, sends a word to its right, hears one from its left, and
 * leaves: the whole job is timed, from outside.  The MPI programs' test init
 * does no more.
 */
#include <stdint.h>
#include <stdio.h>

#include "runtime/tp.h"

static int meet_failed(const char *what, tp_status status)
{
    fprintf(stderr, "meet: %s: %s\n", what, tp_strerror(status));
    return 1;
}

/* Eight bytes are always taken at once: the ring cannot stand still. */
static tp_status meet_ring(tp_context *context)
{
    int rank = tp_rank(context), size = tp_size(context);
    int left = (rank + size - 1) % size;
    uint64_t out = (uint64_t)rank, in = 0;
    tp_pipe *to, *from;
    tp_status status;
    size_t length;

    status = tp_pipe_to_rank(context, (rank + 1) % size, &to);
    if (status == TP_OK)
        status = tp_pipe_to_rank(context, left, &from);
    if (status == TP_OK)
        status = tp_pipe_send(to, &out, sizeof(out));
    if (status == TP_OK)
        status = tp_pipe_recv(from, &in, sizeof(in), &length);
    if (status == TP_OK && (length != sizeof(in) || in != (uint64_t)left))
        status = TP_ERR_PROTOCOL;
    return status;
}

int main(void)
{
    tp_context *context;
    tp_status status = tp_init(NULL, &context), end;

    if (status != TP_OK)
        return meet_failed("tp_init", status);
    status = meet_ring(context);
    end = tp_finalize(context);
    if (status != TP_OK)
        return meet_failed("the ring", status);
    return end != TP_OK ? meet_failed("tp_finalize", end) : 0;
}
