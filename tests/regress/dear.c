/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks exchange messages of several long buffers, and each system call of
 * the channel that would pull them takes long.  Most of them must come in
 * frames: how such messages come was never measured, and so all of them went as
 * the model guessed.  (What disturbs frames has the channel tried again.)
 * Status 3: nothing was pulled at all.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { DEAR_BUFFERS = 4, DEAR_BYTES = 65536, DEAR_MESSAGES = 100,
       DEAR_MOST = 75, DEAR_LEAST = 4096, DEAR_NS = 10000000 };

static unsigned dear_calls;
static unsigned char dear_out[DEAR_BUFFERS][DEAR_BYTES];
static unsigned char dear_in[DEAR_BUFFERS][DEAR_BYTES];

/* What the channel calls. */
__attribute__((__visibility__("default")))
ssize_t process_vm_readv(pid_t pid, const struct iovec *mine,
                         unsigned long my_count, const struct iovec *theirs,
                         unsigned long their_count, unsigned long flags)
{
    struct timespec pause = { 0, DEAR_NS };
    size_t length = 0;

    for (unsigned long i = 0; i < my_count; i++)
        length += mine[i].iov_len;
    /* Shorter ones only look whether it may. */
    if (length >= DEAR_LEAST) {
        dear_calls++;
        nanosleep(&pause, NULL);
    }
    return syscall(SYS_process_vm_readv, pid, mine, my_count, theirs,
                   their_count, flags);
}

static void dear_check(tp_pipe *pipe, tp_status status)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "dear: %s: %s\n", tp_strerror(status),
            tp_pipe_error(pipe));
    exit(1);
}

/* Payloads, and tensors behind them. */
static void dear_send(tp_pipe *pipe, int round)
{
    tp_payload payloads[DEAR_BUFFERS / 2];
    tp_tensor tensors[DEAR_BUFFERS / 2];
    tp_message message = { .payloads = payloads,
                           .payload_count = DEAR_BUFFERS / 2,
                           .tensors = tensors,
                           .tensor_count = DEAR_BUFFERS / 2 };

    memset(tensors, 0, sizeof(tensors));
    memset(payloads, 0, sizeof(payloads));
    for (int i = 0; i < DEAR_BUFFERS; i++) {
        memset(dear_out[i], round * DEAR_BUFFERS + i, DEAR_BYTES);
        if (i < DEAR_BUFFERS / 2) {
            payloads[i].data = dear_out[i];
            payloads[i].length = DEAR_BYTES;
        } else {
            tensors[i - DEAR_BUFFERS / 2].data = dear_out[i];
            tensors[i - DEAR_BUFFERS / 2].length = DEAR_BYTES;
        }
    }
    dear_check(pipe, tp_pipe_send_message(pipe, &message, -1));
}

static void dear_receive(tp_pipe *pipe, int round)
{
    tp_message *skeleton;

    dear_check(pipe, tp_pipe_recv_skeleton(pipe, &skeleton, -1));
    for (int i = 0; i < DEAR_BUFFERS / 2; i++) {
        skeleton->payloads[i].data = dear_in[i];
        skeleton->tensors[i].data = dear_in[DEAR_BUFFERS / 2 + i];
    }
    dear_check(pipe, tp_pipe_recv_message(pipe, skeleton, -1));
    for (int i = 0; i < DEAR_BUFFERS; i++)
        if (dear_in[i][0] != (unsigned char)(round * DEAR_BUFFERS + i)
            || memcmp(dear_in[i], dear_in[i] + 1, DEAR_BYTES - 1) != 0) {
            fprintf(stderr, "dear: wrong bytes in buffer %d\n", i);
            exit(1);
        }
}

int main(void)
{
    tp_context *context;
    tp_pipe *pipe;
    unsigned pulled = 0;
    int rank;

    if (tp_init(NULL, &context) != TP_OK)
        return 1;
    rank = tp_rank(context);
    if (tp_pipe_to_rank(context, !rank, &pipe) != TP_OK)
        return 1;
    for (int round = 0; round < DEAR_MESSAGES; round++) {
        unsigned before = dear_calls;

        if (rank == 0)
            dear_send(pipe, round);
        dear_receive(pipe, round);
        pulled += dear_calls > before;
        if (rank == 1)
            dear_send(pipe, round);
    }
    if (tp_finalize(context) != TP_OK)
        return 1;
    if (pulled == 0)
        return 3;
    if (pulled <= DEAR_MOST)
        return 0;
    fprintf(stderr, "dear: rank %d has pulled %u of %d messages\n", rank,
            pulled, DEAR_MESSAGES);
    return 1;
}
