/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * With TP_PROGRESS_THREAD every callback comes from the context's own thread,
 * also those of operations that tp_finalize() ends, which its caller ran.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/tp.h"

enum { OWN_TEXT = 8 };

static pthread_t own_main, own_thread;
static int own_messages, own_ends;         /* callbacks of each kind */

static void own_check(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "own: %s\n", what);
    exit(1);
}

static void own_here(const char *what)
{
    own_check(!pthread_equal(pthread_self(), own_main), what);
    if (own_messages + own_ends == 0)
        own_thread = pthread_self();
    own_check(pthread_equal(pthread_self(), own_thread), what);
}

static void own_ended(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                      void *arg)
{
    (void)pipe;
    (void)skeleton;
    (void)arg;
    own_here("the end of a read came from another thread");
    own_check(status == TP_ERR_CLOSED, tp_strerror(status));
    own_ends++;
}

static void own_written(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    own_here("a write's end came from another thread");
    own_check(status == TP_OK, tp_strerror(status));
    own_messages++;
}

int main(void)
{
    tp_options options = TP_OPTIONS_INIT;
    char out[] = "to me", text[OWN_TEXT];
    tp_payload payload = { .data = out, .length = sizeof(out) };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_context *context;
    tp_pipe *pipe;

    own_main = pthread_self();
    options.progress = TP_PROGRESS_THREAD;
    own_check(tp_init(&options, &context) == TP_OK, "tp_init");
    own_check(tp_pipe_to_rank(context, 0, &pipe) == TP_OK, "pipe");
    own_check(tp_pipe_write(pipe, &message, own_written, NULL) == TP_OK,
              "write");
    own_check(tp_pipe_recv(pipe, text, sizeof(text), NULL) == TP_OK, "recv");
    own_check(tp_pipe_read_descriptor(pipe, own_ended, NULL) == TP_OK, "read");
    own_check(tp_read_descriptor_any(context, own_ended, NULL) == TP_OK,
              "any");
    own_check(tp_finalize(context) == TP_OK, "finalize");
    own_check(own_messages == 1 && own_ends == 2, "callbacks are missing");
    return 0;
}
