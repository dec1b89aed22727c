/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * losing FILE, two ranks: rank 0 writes to one that does nothing meanwhile, and
 * leaves without what it wrote; then it makes FILE.  What rank 1 reads then is
 * not the end of a stream that has come whole: it was PEER_CLOSED.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { LOSING_MS = 300, LOSING_LOOK_US = 10000 };

static int losing_lost;

static void losing_check(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "losing: %s\n", what);
    exit(1);
}

static void losing_written(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    losing_lost += status != TP_OK;
}

static void losing_write(tp_context *context, tp_pipe *pipe, const char *file)
{
    char out[] = "lost";
    tp_payload payload = { .data = out, .length = sizeof(out) };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    int fd;

    losing_check(tp_pipe_write(pipe, &message, losing_written, NULL) == TP_OK,
                 "write");
    losing_check(tp_finalize(context) == TP_ERR_TIMEOUT && losing_lost == 1,
                 "all was flushed");
    fd = open(file, O_WRONLY | O_CREAT, 0600);
    losing_check(fd >= 0, file);
    close(fd);
}

static void losing_read(tp_context *context, tp_pipe *pipe, const char *file)
{
    char text[8];
    tp_status status;

    while (access(file, F_OK) != 0)
        usleep(LOSING_LOOK_US);
    status = tp_pipe_recv(pipe, text, sizeof(text), NULL);
    losing_check(status == TP_ERR_PEER_FAILED, tp_strerror(status));
    losing_check(strstr(tp_pipe_error(pipe), "FINALIZE_TIMEOUT") != NULL,
                 tp_pipe_error(pipe));
    losing_check(tp_finalize(context) == TP_OK, "finalize");
}

int main(int argc, char **argv)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_pipe *pipe;
    int rank;

    options.progress = TP_PROGRESS_MANUAL;
    options.finalize_timeout_ms = LOSING_MS;
    losing_check(argc == 2 && tp_init(&options, &context) == TP_OK,
                 "tp_init");
    rank = tp_rank(context);
    losing_check(tp_pipe_to_rank(context, 1 - rank, &pipe) == TP_OK, "pipe");
    if (rank == 0)
        losing_write(context, pipe, argv[1]);
    else
        losing_read(context, pipe, argv[1]);
    return 0;
}
