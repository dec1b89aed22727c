/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two contexts of one thread, which drives both itself: the one that ends first
 * has nobody at the other end who would confirm what it sent beside messages.
 * tp_finalize() took that for a message that could not be flushed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tp.h"

enum { TWICE_BYTES = 300000, TWICE_MESSAGES = 40 };

static tp_context *twice_here, *twice_there;
static tp_pipe *twice_accepted;
static int twice_written, twice_read;
static char twice_out[TWICE_BYTES], twice_in[TWICE_BYTES];

static void twice_check(tp_status status, const char *what)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "twice: %s: %s\n", what, tp_strerror(status));
    exit(1);
}

static void twice_accept(tp_listener *listener, tp_status status,
                         tp_pipe *pipe, void *arg)
{
    (void)listener;
    (void)arg;
    twice_check(status, "accept");
    twice_accepted = pipe;
}

static void twice_count(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)pipe;
    (void)message;
    twice_check(status, "an operation");
    ++*(int *)arg;
}

static void twice_arrived(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    twice_check(status, "arrived");
    skeleton->payloads[0].data = twice_in;
    twice_check(tp_pipe_read(pipe, skeleton, twice_count, arg), "read");
}

static void twice_drive(void)
{
    twice_check(tp_progress(twice_here, NULL), "progress");
    twice_check(tp_progress(twice_there, NULL), "progress");
}

/* From here to there, one after the other: there it costs frames of credit. */
static void twice_messages(tp_pipe *pipe)
{
    for (int i = 0; i < TWICE_MESSAGES; i++) {
        tp_payload payload = { twice_out, TWICE_BYTES, NULL, 0 };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        memset(twice_out, i + 1, TWICE_BYTES);
        twice_check(tp_pipe_write(pipe, &message, twice_count,
                                  &twice_written), "write");
        while (twice_accepted == NULL)
            twice_drive();
        twice_check(tp_pipe_read_descriptor(twice_accepted, twice_arrived,
                                            &twice_read), "descriptor");
        while (twice_written <= i || twice_read <= i)
            twice_drive();
        if (memcmp(twice_in, twice_out, TWICE_BYTES) != 0)
            twice_check(TP_ERR_PROTOCOL, "what was read");
    }
}

int main(void)
{
    tp_options options = TP_OPTIONS_INIT;
    char address[1024];
    tp_listener *listener;
    tp_pipe *pipe;

    options.progress = TP_PROGRESS_MANUAL;
    options.bootstrap = "single";
    options.finalize_timeout_ms = 1000;
    twice_check(tp_init(&options, &twice_here), "init");
    twice_check(tp_init(&options, &twice_there), "init again");
    twice_check(tp_listen(twice_there, NULL, &listener), "listen");
    twice_check(tp_listener_address(listener, address, sizeof(address)),
                "address");
    twice_check(tp_accept(listener, twice_accept, NULL), "accept");
    twice_check(tp_connect(twice_here, address, &pipe), "connect");
    twice_messages(pipe);
    /* It has written nothing. */
    twice_check(tp_finalize(twice_there), "the reader's end");
    twice_check(tp_finalize(twice_here), "the writer's end");
    return 0;
}
