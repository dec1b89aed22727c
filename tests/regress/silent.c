/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two contexts of one process; the argument says where they find each other.
 * One of them calls the other and then is not driven, so it does not greet.
 * Whoever sleeps on tp_fd() of the other one has to be woken, for after some
 * time the caller is to be sent away.  The clock for that was set to a second
 * in nanoseconds, which the kernel refuses.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/tp.h"

enum { SILENT_ROUNDS = 100, SILENT_MS = 30000 };

static tp_context *silent_here, *silent_there;

static void silent_check(tp_status status, const char *what)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "silent: %s: %s\n", what, tp_strerror(status));
    exit(1);
}

static void silent_count(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    (void)pipe;
    (void)message;
    silent_check(status, "the write");
    ++*(int *)arg;
}

static void silent_init(const char *bootstrap, const char *rank,
                        tp_context **context)
{
    tp_options options = TP_OPTIONS_INIT;

    options.progress = TP_PROGRESS_MANUAL;
    options.bootstrap = bootstrap;
    setenv("TP_RANK", rank, 1);
    silent_check(tp_init(&options, context), "tp_init");
}

/* The caller is let in, and nothing else is left to do. */
static void silent_settle(void)
{
    struct timespec pause = { 0, 1000000 };

    for (int i = 0; i < SILENT_ROUNDS; i++) {
        silent_check(tp_progress(silent_here, NULL), "progress");
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv)
{
    char byte = 'x';
    tp_payload payload = { .data = &byte, .length = 1 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    struct pollfd loop = { .events = POLLIN };
    int written = 0, woken;
    tp_pipe *pipe;

    if (argc != 2)
        return 2;
    setenv("TP_SIZE", "2", 1);
    silent_init(argv[1], "0", &silent_here);
    silent_init(argv[1], "1", &silent_there);
    loop.fd = tp_fd(silent_here);
    silent_check(tp_pipe_to_rank(silent_there, 0, &pipe), "pipe");
    silent_check(tp_pipe_write(pipe, &message, silent_count, &written),
                 "write");
    silent_settle();
    woken = poll(&loop, 1, SILENT_MS);
    if (woken != 1)
        fprintf(stderr, "silent: nobody looks at who does not greet\n");
    while (written == 0) {
        silent_check(tp_progress(silent_here, NULL), "progress");
        silent_check(tp_progress(silent_there, NULL), "progress");
    }
    silent_check(tp_finalize(silent_there), "finalize");
    silent_check(tp_finalize(silent_here), "finalize");
    return woken == 1 ? 0 : 1;
}
