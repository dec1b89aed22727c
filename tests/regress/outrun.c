/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A message of so many buffers, of which both ends are to copy some, that their
 * numbers come again in 16 bits.  Its sender looks away until its reader is in
 * the middle of the last one, and then hears of the first ones: of the one with
 * that number in 16 bits he copied pieces to where that one is to be, and the
 * reader took them for pieces of the last one.
 *
 * Each sees where the other is in a file, which is the argument: who drives to
 * hear it is not away.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/tp.h"

enum {
    OUTRUN_NUMBERS = 65535,        /* that are different */
    OUTRUN_FIRST = 4,              /* the long one at the beginning ... */
    OUTRUN_LAST = OUTRUN_FIRST + OUTRUN_NUMBERS,   /* ... and at the end */
    OUTRUN_COUNT,
    OUTRUN_SHORT = 32 * 1024,
    OUTRUN_LONG = 4 * 1024 * 1024, /* several strides */
    OUTRUN_BYTES = OUTRUN_SHORT + 2 * OUTRUN_LONG,
    OUTRUN_LOOKS = 1000
};

/* Where both are. */
static struct outrun {
    _Atomic unsigned described, away, ahead, heard;
} *outrun;

/* All short ones lie in one place, at either end. */
static unsigned char *outrun_memory;
static unsigned outrun_over;

static void outrun_check(tp_status status, const char *what)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "outrun: %s: %s\n", what, tp_strerror(status));
    exit(1);
}

static unsigned char *outrun_place(int index)
{
    return outrun_memory + (index == OUTRUN_FIRST ? OUTRUN_SHORT
                            : index == OUTRUN_LAST
                            ? OUTRUN_SHORT + OUTRUN_LONG : 0);
}

static void outrun_done(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    outrun_check(status, "a callback");
    outrun_over++;
}

static void outrun_wait(_Atomic unsigned *word)
{
    while (atomic_load(word) == 0)
        usleep(100);
}

static void outrun_send(tp_context *context, tp_pipe *pipe)
{
    tp_payload *payloads = calloc(OUTRUN_COUNT, sizeof(*payloads));
    tp_message message = { .payloads = payloads,
                           .payload_count = OUTRUN_COUNT };

    if (payloads == NULL)
        outrun_check(TP_ERR_NO_MEMORY, "calloc");
    for (int i = 0; i < OUTRUN_COUNT; i++) {
        payloads[i].data = outrun_place(i);
        payloads[i].length = i == OUTRUN_FIRST || i == OUTRUN_LAST
                             ? OUTRUN_LONG : OUTRUN_SHORT;
    }
    memset(outrun_place(0), 1, OUTRUN_SHORT);
    memset(outrun_place(OUTRUN_FIRST), 2, OUTRUN_LONG);
    memset(outrun_place(OUTRUN_LAST), 3, OUTRUN_LONG);
    outrun_check(tp_pipe_write(pipe, &message, outrun_done, NULL), "write");
    while (atomic_load(&outrun->described) == 0)
        outrun_check(tp_progress(context, NULL), "progress");
    atomic_store(&outrun->away, 1);
    outrun_wait(&outrun->ahead);
    for (int i = 0; i < OUTRUN_LOOKS; i++)
        outrun_check(tp_progress(context, NULL), "progress");
    atomic_store(&outrun->heard, 1);
    while (outrun_over == 0)
        outrun_check(tp_wait(context, -1, NULL), "wait");
    free(payloads);
}

static void outrun_receive(tp_context *context, tp_pipe *pipe)
{
    volatile unsigned char *last = outrun_place(OUTRUN_LAST);
    tp_message *skeleton;
    size_t wrong = 0;

    outrun_check(tp_pipe_recv_skeleton(pipe, &skeleton, -1), "skeleton");
    for (size_t i = 0; i < skeleton->payload_count; i++)
        skeleton->payloads[i].data = outrun_place((int)i);
    atomic_store(&outrun->described, 1);
    outrun_wait(&outrun->away);
    outrun_check(tp_pipe_read(pipe, skeleton, outrun_done, NULL), "read");
    while (outrun_over == 0 && *last == 0)
        outrun_check(tp_progress(context, NULL), "progress");
    atomic_store(&outrun->ahead, 1);
    outrun_wait(&outrun->heard);
    while (outrun_over == 0)
        outrun_check(tp_wait(context, -1, NULL), "wait");
    for (size_t i = 0; i < OUTRUN_LONG; i++)
        wrong += last[i] != 3;
    if (wrong > 0) {
        fprintf(stderr, "outrun: %zu bytes of the last buffer are wrong\n",
                wrong);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_pipe *pipe;
    void *memory;
    int rank;

    if (fd < 0 || ftruncate(fd, sizeof(*outrun)) < 0)
        return 1;
    outrun = mmap(NULL, sizeof(*outrun), PROT_READ | PROT_WRITE, MAP_SHARED,
                  fd, 0);
    if (outrun == MAP_FAILED)
        return 1;
    options.progress = TP_PROGRESS_MANUAL;
    outrun_check(tp_init(&options, &context), "init");
    outrun_check(tp_alloc(context, OUTRUN_BYTES,
                          (tp_device){ TP_DEVICE_CPU, 0 }, &memory), "alloc");
    outrun_memory = memory;
    rank = tp_rank(context);
    outrun_check(tp_pipe_to_rank(context, 1 - rank, &pipe), "pipe");
    if (rank == 0)
        outrun_send(context, pipe);
    else
        outrun_receive(context, pipe);
    outrun_check(tp_free(context, memory), "free");
    outrun_check(tp_finalize(context), "finalize");
    return 0;
}
