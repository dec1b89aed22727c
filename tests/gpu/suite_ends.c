/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Ends of pipes, meant or not, while devices copy and memory is on loan: nobody
 * has memory back that another process still reads.
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/buffer.h"
#include "tests/gpu/suite_device.h"

enum { PATIENCE = 60000 };

static const tp_device ends_cpu = { TP_DEVICE_CPU, 0 };

/* A device fails under a write, and the pipe breaks, while the peer copies what
 * was written before: that is its writer's again when nobody reads it any
 * more. */
static void ends_break(void)
{
    enum { LONG = 1 << 20, NAP_MS = 300 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 20), *other = tpx_pipe(!tpx_me.rank,
                                                                  21);
    struct tpx_buffer buffer;
    unsigned char *memory[2];
    struct tpx_end end = { 0 };
    char byte;

    if (!tpx_device_is_double() || tpx_backend("cuda_ipc")
        || tpx_backend("cuda_host"))
        return;
    for (int i = 0; i < 2; i++)
        tpx_ok(tp_alloc(tpx_me.context, LONG, ends_cpu,
                        (void **)&memory[i]));
    tpx_buffer_make(&buffer, TPX_MALLOC, 0, 3 << 20);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_payload payloads[2] = { { memory[0], LONG, NULL, 0 },
                                   { memory[1], LONG, NULL, 0 } };
        tp_message messages[2] = {
            { .payloads = &payloads[0], .payload_count = 1 },
            { .payloads = &payloads[1], .payload_count = 1 } };
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };

        for (unsigned i = 0; i < 2; i++) {
            tpx_fill(memory[i], LONG, i);
            tpx_ok(tp_pipe_write(pipe, &messages[i], tpx_ended, &end));
        }
        tpx_buffer_fill(&buffer, 1);
        tpx_ok(tp_pipe_recv(other, &byte, 1, NULL));
        tpx_device_fails("cuMemcpyAsync:3+:700");
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_until(&end.over, 3);
        tpx_device_fails("");
        memset(memory[1], 0xee, LONG);
    } else {
        unsigned char *to = malloc(LONG);

        for (unsigned i = 0; i < 2; i++) {
            tp_message *skeleton;

            tpx_check(to != NULL, "no memory for the test itself");
            tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
            skeleton->payloads[0].data = to;
            if (i == 1)
                tpx_ok(tp_pipe_send(other, "", 1));
            tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
            if (i == 1)
                tpx_sleep_ms(NAP_MS);
            tpx_until(&end.over, i + 1);
            if (i == 0 || end.status == TP_OK)
                tpx_equal(tpx_verify(to, LONG, i), LONG);
        }
        free(to);
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

/* A read fails for its device, and the pipe breaks, while another device copies
 * for the read before: the peer has its memory back after that. */
static void ends_break_reader(void)
{
    for (unsigned i = 0; i < 8 && tpx_device_is_double(); i++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 30 + i);
        struct tpx_buffer buffers[2];
        struct tpx_end end = { 0 };

        for (int k = 0; k < 2; k++)
            tpx_buffer_make(&buffers[k], TPX_MALLOC, 0, 700000);
        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 0) {
            tp_tensor tensors[2] = { tpx_buffer_tensor(&buffers[0]),
                                     tpx_buffer_tensor(&buffers[1]) };
            tp_message messages[2] = {
                { .tensors = &tensors[0], .tensor_count = 1 },
                { .tensors = &tensors[1], .tensor_count = 1 } };

            for (unsigned k = 0; k < 2; k++) {
                tpx_buffer_fill(&buffers[k], k);
                tpx_ok(tp_pipe_write(pipe, &messages[k], tpx_ended, &end));
            }
            tpx_until(&end.over, 2);
            for (unsigned k = 0; k < 2; k++)
                tpx_buffer_drop(&buffers[k]);
            tpx_meet(1);
            continue;
        }
        for (unsigned k = 0; k < 2; k++) {
            tp_message *skeleton;

            tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
            tpx_buffer_place(&buffers[k], &skeleton->tensors[0]);
            if (k == 1)
                tpx_device_fails("cuEventRecord:1+:700");
            tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
            tpx_device_fails("");
            for (unsigned spin = i; k == 0 && spin > 0; spin--)
                tpx_ok(tp_progress(tpx_me.context, NULL));
        }
        tpx_sleep_ms(50);
        tpx_until(&end.over, 2);
        tpx_meet(0);
        for (unsigned k = 0; k < 2; k++)
            tpx_buffer_drop(&buffers[k]);
    }
}

/* ---- behind a read that cannot be stopped -------------------------------- */

enum { ENDS_TENSORS = 8, ENDS_LONG = 64 * 1024, ENDS_ROUNDS = 8 };

struct ends_loan {
    unsigned done, seed;
};

/* Odd ones break the pipe by a third message, the others close it. */
static void ends_lender(tp_pipe *pipe, struct tpx_buffer *buffers,
                        unsigned char *memory, unsigned seed)
{
    unsigned count = 2 + seed % 2;
    tp_payload payload = { memory, ENDS_LONG, NULL, 0 };
    tp_tensor tensors[ENDS_TENSORS];
    tp_message messages[3] = {
        { .tensors = tensors, .tensor_count = ENDS_TENSORS },
        { .payloads = &payload, .payload_count = 1 },
        { .tensors = tensors, .tensor_count = 1 } };
    struct tpx_end end = { 0 };

    for (int k = 0; k < ENDS_TENSORS; k++) {
        tpx_buffer_fill(&buffers[k], 1);
        tensors[k] = tpx_buffer_tensor(&buffers[k]);
    }
    tpx_fill(memory, ENDS_LONG, seed);
    for (unsigned k = 0; k < count; k++)
        tpx_ok(tp_pipe_write(pipe, &messages[k], tpx_ended, &end));
    tpx_until(&end.over, count);
    memset(memory, 0xee, ENDS_LONG);
}

/* Nobody is told that all is well and sees that the peer has changed what it
 * had lent. */
static void ends_lent(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    struct ends_loan *loan = arg;

    if (status == TP_OK) {
        tpx_sleep_ms(100);
        tpx_equal(tpx_verify(message->payloads[0].data, ENDS_LONG,
                             loan->seed), ENDS_LONG);
        tpx_ok(tp_pipe_release(pipe, message));
    }
    __atomic_fetch_add(&loan->done, 1, __ATOMIC_RELEASE);
}

static void ends_borrower(tp_pipe *pipe, struct tpx_buffer *buffers,
                          unsigned seed)
{
    struct ends_loan loan = { 0, seed };
    tp_message *skeleton;
    struct tpx_end end = { 0 };

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    for (int k = 0; k < ENDS_TENSORS; k++)
        tpx_buffer_place(&buffers[k], &skeleton->tensors[k]);
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_ok(tp_pipe_borrow(pipe, skeleton, ends_lent, &loan));
    if (seed % 2 == 0 || !tpx_device_is_double()) {
        tpx_ok(tp_pipe_close(pipe));
    } else {
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&buffers[0], &skeleton->tensors[0]);
        tpx_device_fails("cuEventRecord:1+:700");
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_device_fails("");
        tpx_until(&end.over, 2);
    }
    tpx_until(&end.over, 1);
    tpx_until(&loan.done, 1);
}

static void ends_borrow(void)
{
    struct tpx_buffer buffers[ENDS_TENSORS];
    void *memory;

    tpx_ok(tp_alloc(tpx_me.context, ENDS_LONG, ends_cpu, &memory));
    for (int k = 0; k < ENDS_TENSORS; k++)
        tpx_buffer_make(&buffers[k], TPX_MALLOC, 0, 700000);
    for (unsigned i = 0; i < ENDS_ROUNDS; i++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 40 + i);

        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 0)
            ends_lender(pipe, buffers, memory, i);
        else
            ends_borrower(pipe, buffers, i);
    }
    tpx_meet(!tpx_me.rank);
    for (int k = 0; k < ENDS_TENSORS; k++)
        tpx_buffer_drop(&buffers[k]);
}

/* The reader leaves while its device copies: the sender has its memory back
 * after that. */
static void ends_finalize(void)
{
    struct tpx_buffer buffers[ENDS_TENSORS];
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_message *skeleton;
    struct tpx_end end = { 0 };

    for (int k = 0; k < ENDS_TENSORS; k++)
        tpx_buffer_make(&buffers[k], TPX_MALLOC, 0, 700000);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_tensor tensors[ENDS_TENSORS];
        tp_message message = { .tensors = tensors,
                               .tensor_count = ENDS_TENSORS };

        for (int k = 0; k < ENDS_TENSORS; k++) {
            tpx_buffer_fill(&buffers[k], 1);
            tensors[k] = tpx_buffer_tensor(&buffers[k]);
        }
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_until(&end.over, 1);
    } else {
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        for (int k = 0; k < ENDS_TENSORS; k++)
            tpx_buffer_place(&buffers[k], &skeleton->tensors[k]);
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
        tpx_equal(end.over, 1);
    }
    for (int k = 0; k < ENDS_TENSORS; k++)
        tpx_buffer_drop(&buffers[k]);
}

/* Its sender leaves without waiting any longer, and has its memory back, while
 * it is read: that is not a message any more. */
static void ends_timeout(void)
{
    struct tpx_buffer buffer;
    tp_pipe *pipe;
    struct tpx_end end = { 0 };

    setenv("TP_FINALIZE_TIMEOUT", "50ms", 1);
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_me.size = tp_size(tpx_me.context);
    pipe = tpx_pipe(!tpx_me.rank, 0);
    tpx_buffer_make(&buffer, TPX_MALLOC, 0, 700000);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };

        tpx_buffer_fill(&buffer, 5);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        while (access(tpx_file("begun"), F_OK) != 0)
            tp_wait(tpx_me.context, 1, NULL);
        (void)tp_finalize(tpx_me.context);
        tpx_me.context = NULL;
        tpx_buffer_spoil(&buffer);
        tpx_device_sync(buffer.stream);
        tpx_file_make("left");
        while (access(tpx_file("read"), F_OK) != 0)
            tpx_sleep_ms(1);
    } else {
        tp_message *skeleton;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&buffer, &skeleton->tensors[0]);
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_file_make("begun");
        while (access(tpx_file("left"), F_OK) != 0)
            tpx_sleep_ms(1);
        tpx_until(&end.over, 1);
        if (end.status == TP_OK)
            tpx_buffer_check(&buffer, 5);
        else
            tpx_equal(end.status, TP_ERR_PEER_FAILED);
        tpx_file_make("read");
    }
    tpx_buffer_drop(&buffer);
}

/* ---- what was given back while a stream reads it ------------------------- */

struct ends_opener {
    struct tpx_gate gate;
    pthread_t thread;
};

static void *ends_open_later(void *arg)
{
    struct ends_opener *opener = arg;

    tpx_sleep_ms(300);
    tpx_gate_open(&opener->gate);
    return NULL;
}

static void ends_loan(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    (void)pipe;
    tpx_ok(status);
    __atomic_store_n((tp_message **)arg, message, __ATOMIC_RELEASE);
}

/* Gives back what a stream, which is held up for a while, is to copy. */
static void ends_give_back(tp_pipe *pipe, struct tpx_buffer *copy,
                           struct ends_opener *opener)
{
    tp_message *skeleton, *loan = NULL;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_ok(tp_pipe_borrow(pipe, skeleton, ends_loan, &loan));
    while (__atomic_load_n(&loan, __ATOMIC_ACQUIRE) == NULL)
        tp_wait(tpx_me.context, 1, NULL);
    tpx_gate_close(&opener->gate, copy->stream);
    tpx_device_copy(copy->data, loan->tensors[0].data, copy->length,
                    copy->stream);
    loan->tensors[0].stream = copy->stream;
    tpx_ok(tp_pipe_release(pipe, loan));
    tpx_equal(pthread_create(&opener->thread, NULL, ends_open_later, opener),
              0);
}

/* The pipe is closed, or all of it, right after a release whose stream still
 * reads: the sender has its memory back after that. */
static void ends_released_by(bool finalize)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    struct tpx_end end = { 0 };

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, 700000);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };

        tpx_buffer_fill(&buffer, 5);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_until(&end.over, 1);
        tpx_buffer_spoil(&buffer);
    } else if (tpx_backend("cuda_ipc")) {
        struct ends_opener opener;

        ends_give_back(pipe, &buffer, &opener);
        if (finalize) {
            tpx_ok(tp_finalize(tpx_me.context));
            tpx_me.context = NULL;
        } else {
            tpx_ok(tp_pipe_close(pipe));
        }
        pthread_join(opener.thread, NULL);
        tpx_buffer_check(&buffer, 5);
    } else {
        tp_message *skeleton;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&buffer, &skeleton->tensors[0]);
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    }
    tpx_device_sync(buffer.stream);
    if (!finalize)
        tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

static void ends_released(void)
{
    ends_released_by(false);
}

static void ends_released_finalize(void)
{
    ends_released_by(true);
}

/* A read is over for its caller before the last copies are: then its memory may
 * go, at once or with all the rest. */
static void ends_freed(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer, to[2];
    tp_message *skeleton;

    tpx_buffer_make(&buffer, TPX_MANAGED, 0, 700000);
    for (int k = 0; k < 2; k++)
        tpx_buffer_make(&to[k], TPX_ALLOC, 0, 700000);
    for (int k = 0; k < 2; k++) {
        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 0) {
            tp_tensor tensor = tpx_buffer_tensor(&buffer);
            tp_message message = { .tensors = &tensor, .tensor_count = 1 };

            tpx_ok(tp_pipe_send_message(pipe, &message, PATIENCE));
            continue;
        }
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&to[k], &skeleton->tensors[0]);
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        if (k == 0)
            tpx_ok(tp_free(tpx_me.context, to[k].memory));
    }
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    for (int k = 0; k < 2; k++)
        tpx_device_sync(to[k].stream);
    tpx_buffer_drop(&buffer);
}

/* ---- a channel's end in the middle of a message -------------------------- */

/* Of a message's tensors one goes by a channel, which is refused, and one goes
 * in frames: those of both come in turn, more of either than a slot holds. */
static void ends_channel(void)
{
    enum { LONG = 3 << 20 };
    static const enum tpx_kind kinds[2] = { TPX_MALLOC, TPX_MANAGED };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffers[2];
    tp_message *skeleton;

    if (!tpx_device_is_double() || !tpx_backend("cuda_ipc"))
        return;
    for (int k = 0; k < 2; k++)
        tpx_buffer_make(&buffers[k], kinds[k], 0, LONG);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_tensor tensors[2];
        tp_message message = { .tensors = tensors, .tensor_count = 2 };

        tpx_buffers_send(pipe, &message, buffers, 1, PATIENCE);
    } else {
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        for (int k = 0; k < 2; k++)
            tpx_buffer_place(&buffers[k], &skeleton->tensors[k]);
        tpx_device_fails("cuIpcOpenMemHandle_v2:1+:217");
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        tpx_device_fails("");
        for (unsigned k = 0; k < 2; k++)
            tpx_buffer_check(&buffers[k], 1 + k);
    }
    tpx_meet(!tpx_me.rank);
    for (int k = 0; k < 2; k++)
        tpx_buffer_drop(&buffers[k]);
}

/* ---- copies that nothing tells the end of -------------------------------- */

/* How the driver fails when a copy is enqueued, and where to. */
static const struct ends_unmarked {
    const char *plan;
    enum tpx_kind to;
    size_t length;
} ends_plans[] = {
    /* Its end cannot be marked. */
    { "cuStreamWriteValue32_v2:1+:801,cuEventRecord:1:2", TPX_PLAIN, 700000 },
    /* Of a short copy's two parts only one can be had. */
    { "cuMemcpy2DAsync_v2:2:2", TPX_MALLOC, 777 },
    /* Nor can it be asked for. */
    { "cuStreamQuery:1+:999,cuEventQuery:1+:999", TPX_PLAIN, 700000 }
};

/* The second message is without faults, and moves what was left behind. */
static void ends_unmarked_read(struct tpx_buffer *buffers, unsigned first,
                               const struct ends_unmarked *of)
{
    for (unsigned k = 0; k < 2; k++) {
        tp_pipe *pipe = tpx_pipe(0, first + k);
        struct tpx_end end = { 0 };
        tp_message *skeleton;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&buffers[k], &skeleton->tensors[0]);
        tpx_device_fails(k == 0 ? of->plan : "");
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_until(&end.over, 1);
        tpx_device_fails("");
        if (k == 1 || end.status == TP_OK)
            tpx_buffer_check(&buffers[k], first);
        else
            tpx_equal(end.status, TP_ERR_BACKEND);
        if (k == 0) {
            tpx_buffer_fill(&buffers[k], 99);
            tpx_device_sync(buffers[k].stream);
        }
    }
    tpx_buffer_check(&buffers[0], 99);
}

static void ends_unmarked_by(const struct ends_unmarked *of)
{
    struct tpx_buffer buffers[2];

    if (!tpx_device_is_double())
        return;                        /* no driver fails when asked to */
    for (int k = 0; k < 2; k++)
        tpx_buffer_make(&buffers[k], tpx_me.rank == 0 || k == 1
                        ? TPX_MALLOC : of->to, 0, of->length);
    tpx_meet(!tpx_me.rank);
    for (unsigned k = 0; tpx_me.rank == 0 && k < 2; k++) {
        tp_tensor tensor;
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };

        tpx_buffer_fill(&buffers[k], 50);
        tensor = tpx_buffer_tensor(&buffers[k]);
        (void)tp_pipe_send_message(tpx_pipe(1, 50 + k), &message, PATIENCE);
    }
    if (tpx_me.rank == 1)
        ends_unmarked_read(buffers, 50, of);
    tpx_meet(!tpx_me.rank);
    for (int k = 0; k < 2; k++)
        tpx_buffer_drop(&buffers[k]);
}

/* A read is over, well or not, while what it had enqueued is still to run: its
 * memory is its caller's, and nobody else writes there. */
static void ends_unmarked(void)
{
    ends_unmarked_by(&ends_plans[0]);
}

static void ends_half(void)
{
    ends_unmarked_by(&ends_plans[1]);
}

static void ends_unasked(void)
{
    ends_unmarked_by(&ends_plans[2]);
}

const struct tpx_spmd tpx_ends_suite[] = {
    { "ends_break", ends_break, 2, TPX_MANUAL | TPX_WARNS, 30 },
    { "ends_break_reader", ends_break_reader, 2, TPX_WARNS, 30 },
    { "ends_borrow", ends_borrow, 2, TPX_WARNS, 30 },
    { "ends_released", ends_released, 2, 0, 30 },
    { "ends_released_finalize", ends_released_finalize, 2, 0, 30 },
    { "ends_freed", ends_freed, 2, 0, 30 },
    { "ends_channel", ends_channel, 2, 0, 30 },
    { "ends_finalize", ends_finalize, 2, 0, 30 },
    { "ends_timeout", ends_timeout, 2, TPX_MANUAL | TPX_BARE | TPX_WARNS, 30 },
    { "ends_unmarked", ends_unmarked, 2, TPX_WARNS, 30 },
    { "ends_half", ends_half, 2, TPX_WARNS, 30 },
    { "ends_unasked", ends_unasked, 2, TPX_WARNS, 30 },
    { NULL }
};
