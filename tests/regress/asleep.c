/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rank 0 has a thread of the context's own that sleeps at once, and makes no
 * call while rank 1 connects to it: the message must come all the same.  Over
 * ofi:shm nothing woke the thread for the visitor's first frame.
 */
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>

#include "runtime/tp.h"

enum { ASLEEP_SECONDS = 60 };

static sem_t asleep_over;
static char asleep_byte;

static void asleep_read(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    if (status == TP_OK)
        sem_post(&asleep_over);
}

static void asleep_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *arg)
{
    if (status != TP_OK || message->payload_count != 1)
        return;
    message->payloads[0].data = &asleep_byte;
    tp_pipe_read(pipe, message, asleep_read, arg);
}

static tp_status asleep_wait(tp_context *context)
{
    tp_status status = tp_read_descriptor_any(context, asleep_arrived, NULL);
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += ASLEEP_SECONDS;
    while (status == TP_OK && sem_timedwait(&asleep_over, &limit) != 0)
        if (errno != EINTR)
            status = TP_ERR_TIMEOUT;
    return status;
}

int main(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_pipe *pipe;
    tp_status status;

    options.progress = TP_PROGRESS_THREAD;
    options.spin_us = -1;
    sem_init(&asleep_over, 0, 0);
    if (tp_init(&options, &context) != TP_OK)
        return 1;
    if (tp_rank(context) == 0)
        status = asleep_wait(context);
    else if ((status = tp_pipe_to_rank(context, 0, &pipe)) == TP_OK)
        status = tp_pipe_send(pipe, "x", 1);
    if (status != TP_OK)
        fprintf(stderr, "asleep: rank %d: %s\n", tp_rank(context),
                tp_strerror(status));
    return tp_finalize(context) == TP_OK && status == TP_OK ? 0 : 1;
}
