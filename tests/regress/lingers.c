/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program that uses libpmix itself: that goes on after tp_finalize(), and
 * answers what tp had asked it of a rank that never came.  What such an answer
 * is about had been freed.
 */
#include <pmix.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/tp.h"

static tp_status lingers_ask(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_message message = { .payload_count = 0 };
    tp_context *context;
    tp_pipe *pipe;
    tp_status status;

    options.finalize_timeout_ms = 100;
    status = tp_init(&options, &context);
    if (status != TP_OK)
        return status;
    status = tp_pipe_to_rank(context, 1, &pipe);
    if (status == TP_OK)
        status = tp_pipe_write(pipe, &message, NULL, NULL);
    if (tp_finalize(context) != TP_ERR_TIMEOUT)
        fprintf(stderr, "lingers: rank 1 was there\n");
    return status;
}

int main(void)
{
    pmix_proc_t me;

    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS
        || (me.rank == 0 && lingers_ask() != TP_OK))
        return 1;
    /* Longer than the launcher takes to say that there is no such card. */
    sleep(4);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 1;
}
