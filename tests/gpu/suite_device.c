/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tensors on devices between ranks: every mix of sides, the order of streams,
 * wrong claims, failing devices and dying peers.
 */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/buffer.h"
#include "tests/gpu/suite_device.h"

enum { PATIENCE = 60000 };

static const tp_device device_cpu = { TP_DEVICE_CPU, 0 };

static void device_make(struct tpx_buffer *buffer, tp_device where,
                        size_t length)
{
    tpx_buffer_make(buffer, where.type == TP_DEVICE_CUDA ? TPX_MALLOC
                                                         : TPX_PINNED,
                    where.index, length);
}

static void device_send(tp_pipe *pipe, struct tpx_buffer *buffers,
                        size_t count, uint64_t seed)
{
    char greeting[] = "between";
    tp_payload payload = { .data = greeting, .length = sizeof(greeting) };
    tp_tensor tensors[4];
    tp_message message = { .payloads = &payload, .payload_count = 1,
                           .tensors = tensors, .tensor_count = count };

    tpx_buffers_send(pipe, &message, buffers, seed, PATIENCE);
}

static void device_receive(tp_pipe *pipe, struct tpx_buffer *buffers,
                           size_t count, uint64_t seed)
{
    char greeting[8];
    tp_message *skeleton;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_equal(skeleton->tensor_count, count);
    skeleton->payloads[0].data = greeting;
    for (size_t i = 0; i < count; i++) {
        tpx_equal(skeleton->tensors[i].length, buffers[i].length);
        tpx_buffer_spoil(&buffers[i]);
        tpx_buffer_place(&buffers[i], &skeleton->tensors[i]);
    }
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    tpx_check(strcmp(greeting, "between") == 0, "the payload is wrong");
    for (size_t i = 0; i < count; i++)
        tpx_buffer_check(&buffers[i], seed + i);
}

/* ---- every mix ----------------------------------------------------------- */

static void device_mix(void)
{
    static const size_t sizes[] = { 1, 100, 4097, 65536, 512 * 1024,
                                    512 * 1024 + 1, 5 * 1024 * 1024 + 7 };
    static const tp_device places[] = { { TP_DEVICE_CPU, 0 },
                                        { TP_DEVICE_CUDA, 0 },
                                        { TP_DEVICE_CUDA, 1 } };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (unsigned mix = 0; mix < 9; mix++) {
            tp_device from = places[mix / 3], to = places[mix % 3];
            tp_device mine = tpx_me.rank == 0 ? from : to;
            struct tpx_buffer buffers[3];

            device_make(&buffers[0], mine, sizes[i]);
            device_make(&buffers[1], device_cpu, 333);
            device_make(&buffers[2], mine, sizes[i] / 2 + 1);
            for (unsigned way = 0; way < 2; way++) {
                if (tpx_me.rank == (int)way)
                    device_send(pipe, buffers, 3, i * 100 + mix);
                else
                    device_receive(pipe, buffers, 3, i * 100 + mix);
            }
            for (unsigned j = 0; j < 3; j++)
                tpx_buffer_drop(&buffers[j]);
        }
    tpx_meet(!tpx_me.rank);
}

/* To oneself, and without a tensor on this side. */
static void device_self(void)
{
    struct tpx_buffer from, to;
    tp_pipe *pipe = tpx_pipe(tpx_me.rank, 0);
    tp_device one = { TP_DEVICE_CUDA, 1 }, zero = { TP_DEVICE_CUDA, 0 };
    tp_tensor tensor;
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };
    tp_message *skeleton;
    unsigned done = 0;

    device_make(&from, zero, 1 << 20);
    device_make(&to, one, 1 << 20);
    tpx_device_use(0);
    tpx_buffer_fill(&from, 5);
    tensor = tpx_buffer_tensor(&from);
    tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    skeleton->tensors[0].data = to.data;
    skeleton->tensors[0].device = to.where;
    skeleton->tensors[0].stream = to.stream;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    tpx_until(&done, 1);
    tpx_device_use(1);
    tpx_buffer_check(&to, 5);
    tpx_buffer_drop(&from);
    tpx_buffer_drop(&to);
}

/* A contract holds for what a rank sends itself, too. */
static void device_self_contract(void)
{
    struct tpx_buffer from, to;
    tp_device zero = { TP_DEVICE_CUDA, 0 };
    tp_tensor tensor;
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };
    tp_message *skeleton;
    tp_pipe *pipe;
    unsigned done = 0;
    char *json, *at;

    tpx_check(setenv("TP_REQUIRE", "cuda:cuda_ipc", 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    pipe = tpx_pipe(0, 0);
    device_make(&from, zero, 5000);
    device_make(&to, zero, 5000);
    tpx_buffer_fill(&from, 5);
    tensor = tpx_buffer_tensor(&from);
    if (tpx_backend("cuda_ipc")) {
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&to, &skeleton->tensors[0]);
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        tpx_until(&done, 1);
        tpx_buffer_check(&to, 5);
        tpx_ok(tp_pipe_explain(pipe, &json));
        at = strstr(json, "\"candidates\"");
        at = at != NULL ? strstr(at, "\"name\": \"cuda_ipc\"") : NULL;
        at = at != NULL ? strstr(at, "\"reason\": ") : NULL;
        tpx_check(at != NULL && strncmp(at, "\"reason\": \"chosen\"", 18) == 0,
                  "%s", json);
        free(json);
    } else {
        tpx_status(tp_pipe_send_message(pipe, &message, PATIENCE),
                   TP_ERR_UNREACHABLE);
        tpx_check(strstr(tp_pipe_error(pipe), "cuda_ipc") != NULL, "%s",
                  tp_pipe_error(pipe));
    }
    tpx_buffer_drop(&from);
    tpx_buffer_drop(&to);
}

/* ---- the order of streams ------------------------------------------------ */

static void device_drive(unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++)
        tp_wait(tpx_me.context, 1, NULL);
}

/* The copy starts after what is on the sender's stream, however late that is;
 * meanwhile another pipe works. */
static void device_order_sender(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_pipe *other = tpx_pipe(!tpx_me.rank, 1);
    struct tpx_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    device_make(&buffer, zero, 700000);
    if (tpx_me.rank == 0) {
        struct tpx_gate gate;
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        unsigned done = 0;

        tpx_gate_close(&gate, buffer.stream);
        tpx_buffer_fill(&buffer, 77);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        device_drive(20);
        tpx_equal(done, 0);
        tpx_ok(tp_pipe_send(other, "x", 1));
        tpx_gate_open(&gate);
        tpx_until(&done, 1);
        tpx_buffer_spoil(&buffer);
    } else {
        tp_message *skeleton;
        char byte;

        tpx_ok(tp_pipe_recv(other, &byte, 1, NULL));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        skeleton->tensors[0].data = buffer.data;
        skeleton->tensors[0].stream = buffer.stream;
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        tpx_buffer_check(&buffer, 77);
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

/* What was on the receiver's stream before uses the memory before. */
static void device_order_receiver(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer, before;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    device_make(&buffer, zero, 700000);
    if (tpx_me.rank == 0) {
        device_send(pipe, &buffer, 1, 3);
    } else {
        struct tpx_gate gate;
        tp_message *skeleton;
        char greeting[8];
        unsigned done = 0;

        device_make(&before, zero, buffer.length);
        tpx_buffer_fill(&buffer, 1);
        tpx_gate_close(&gate, buffer.stream);
        tpx_device_copy(before.data, buffer.data, buffer.length,
                        buffer.stream);
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        skeleton->payloads[0].data = greeting;
        skeleton->tensors[0].data = buffer.data;
        skeleton->tensors[0].stream = buffer.stream;
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &done));
        device_drive(20);
        tpx_gate_open(&gate);
        tpx_until(&done, 1);
        tpx_buffer_check(&buffer, 3);
        tpx_buffer_check(&before, 1);
        tpx_buffer_drop(&before);
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

/* ---- claims -------------------------------------------------------------- */

static void device_claims(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 }, one = { TP_DEVICE_CUDA, 1 };
    tp_tensor tensor;
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };

    device_make(&buffer, zero, 5000);
    if (tpx_me.rank == 0) {
        tensor = tpx_buffer_tensor(&buffer);
        tensor.device = device_cpu;
        tpx_status(tp_pipe_write(pipe, &message, tpx_count_ok, NULL),
                   TP_ERR_INVALID);
        tensor.device = one;
        tpx_status(tp_pipe_write(pipe, &message, tpx_count_ok, NULL),
                   TP_ERR_INVALID);
        tensor.device.index = 7;
        tpx_status(tp_pipe_write(pipe, &message, tpx_count_ok, NULL),
                   TP_ERR_INVALID);
        tensor.device = zero;
        tensor.data = buffer.shadow;
        tpx_status(tp_pipe_write(pipe, &message, tpx_count_ok, NULL),
                   TP_ERR_INVALID);
        device_send(pipe, &buffer, 1, 9);
    } else {
        tp_message *skeleton;
        char greeting[8];

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        skeleton->payloads[0].data = greeting;
        skeleton->tensors[0].data = buffer.shadow;     /* device is still 0 */
        tpx_status(tp_pipe_recv_message(pipe, skeleton, PATIENCE),
                   TP_ERR_INVALID);
        /* It is not lost by that. */
        skeleton->tensors[0].device = device_cpu;
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        tpx_equal(tpx_verify(buffer.shadow, 5000, 9), 5000);
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

/* ---- borrowing ----------------------------------------------------------- */

struct device_borrow {
    tp_message *message;
    unsigned lent;
};

static void device_lent(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    struct device_borrow *borrow = arg;

    (void)pipe;
    tpx_ok(status);
    borrow->message = message;
    __atomic_fetch_add(&borrow->lent, 1, __ATOMIC_RELEASE);
}

/* What was lent, copied by this side's own stream, which is held up. */
static void device_borrow_reader(tp_pipe *pipe, enum tpx_kind kind,
                                 struct tpx_buffer *copy)
{
    struct device_borrow borrow = { 0 };
    struct tpx_gate gate;
    tp_message *skeleton;
    tp_tensor *tensor;
    bool device;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_ok(tp_pipe_borrow(pipe, skeleton, device_lent, &borrow));
    tpx_until(&borrow.lent, 1);
    tensor = &borrow.message->tensors[0];
    device = tensor->device.type == TP_DEVICE_CUDA;
    tpx_check(device == (tpx_backend("cuda_ipc") && tpx_kind_goes_direct(kind)),
              "%s is %slent in place", tpx_kind_name(kind),
              device ? "" : "not ");
    if (!device) {
        tpx_equal(tpx_verify(tensor->data, tensor->length, kind),
                  tensor->length);
        tpx_ok(tp_pipe_release(pipe, borrow.message));
        return;
    }
    tpx_equal(tensor->device.index, tpx_device_number(1));
    tpx_gate_close(&gate, copy->stream);
    tpx_device_copy(copy->data, tensor->data, tensor->length, copy->stream);
    tensor->stream = copy->stream;
    tpx_ok(tp_pipe_release(pipe, borrow.message));
    /* The release waits for the stream; other messages do not. */
    tpx_ok(tp_pipe_send(tpx_pipe(0, 1), "r", 1));
    device_drive(10);
    tpx_gate_open(&gate);
    tpx_buffer_check(copy, kind);
}

static void device_borrow(void)
{
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_VMM, TPX_PIECES,
                                           TPX_POOL, TPX_MANAGED, TPX_ALLOC };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        bool lent = tpx_backend("cuda_ipc") && tpx_kind_goes_direct(kinds[i]);
        struct tpx_buffer buffer;
        unsigned done = 0;
        char byte;

        tpx_buffer_make(&buffer, tpx_me.rank == 0 ? kinds[i] : TPX_MALLOC, 1,
                        300000);
        if (tpx_me.rank == 0) {
            tp_tensor tensor = tpx_buffer_tensor(&buffer);
            tp_message message = { .tensors = &tensor, .tensor_count = 1 };

            tpx_buffer_fill(&buffer, kinds[i]);
            tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
            if (lent) {
                tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &byte, 1, NULL));
                device_drive(5);
            }
            tpx_until(&done, 1);
            tpx_buffer_spoil(&buffer);
        } else {
            device_borrow_reader(pipe, kinds[i], &buffer);
        }
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
    }
}

/* What is lent stays readable after its owner died; only he frees it. */
static void device_borrow_death(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct device_borrow borrow = { 0 };
    struct tpx_buffer buffer;
    tp_message *skeleton;
    tp_tensor *tensor;
    char byte;

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, 300000);
    if (tpx_me.rank == 0) {
        tp_message message = { .tensor_count = 1 };
        tp_tensor mine = tpx_buffer_tensor(&buffer);

        message.tensors = &mine;
        tpx_buffer_fill(&buffer, 6);
        tpx_ok(tp_pipe_write(pipe, &message, NULL, NULL));
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &byte, 1, NULL));
        raise(SIGKILL);
    }
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_ok(tp_pipe_borrow(pipe, skeleton, device_lent, &borrow));
    tpx_until(&borrow.lent, 1);
    tpx_ok(tp_pipe_send(tpx_pipe(0, 1), "k", 1));
    tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_FAILED);
    tensor = &borrow.message->tensors[0];
    if (tensor->device.type == TP_DEVICE_CUDA) {
        tpx_device_copy(buffer.data, tensor->data, tensor->length,
                        buffer.stream);
        tensor->stream = buffer.stream;
        tpx_buffer_check(&buffer, 6);
    } else {
        tpx_equal(tpx_verify(tensor->data, tensor->length, 6),
                  tensor->length);
    }
    tpx_ok(tp_pipe_release(pipe, borrow.message));
    tpx_status(tp_pipe_release(pipe, borrow.message), TP_ERR_INVALID);
    tpx_buffer_drop(&buffer);
}

/* ---- trouble ------------------------------------------------------------- */

/* The peer dies while a read waits for its stream: it ends, and the stream is
 * not left waiting. */
static void device_death(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    device_make(&buffer, zero, 4 << 20);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        struct tpx_end end = { 0 };
        char byte;

        tpx_buffer_fill(&buffer, 1);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &byte, 1, NULL));
        raise(SIGKILL);
    } else {
        struct tpx_gate gate;
        tp_message *skeleton;
        struct tpx_end end = { 0 };

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_gate_close(&gate, buffer.stream);
        skeleton->tensors[0].data = buffer.data;
        skeleton->tensors[0].stream = buffer.stream;
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_ok(tp_pipe_send(tpx_pipe(0, 1), "x", 1));
        tpx_until(&end.over, 1);
        tpx_equal(end.status, TP_ERR_PEER_FAILED);
        tpx_gate_open(&gate);
        tpx_device_sync(buffer.stream);
        tpx_buffer_drop(&buffer);
    }
}

/* The peer dies while this side's device is at a copy out of its memory, which
 * does not end by itself: the driver is made to say that it is not ready.  The
 * read ends, and what the user puts there afterwards stays. */
static void device_death_pull(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    pid_t peer = getpid();

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, 700000);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        struct tpx_end end = { 0 };

        tpx_ok(tp_pipe_send(tpx_pipe(1, 1), &peer, sizeof(peer)));
        tpx_buffer_fill(&buffer, 1);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_until(&end.over, 1);
        /* Without cuda_ipc it may be over before the other kills us. */
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 2), &peer, 1, NULL));
    } else {
        tp_message *skeleton;
        struct tpx_end end = { 0 };
        bool held;

        tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), &peer, sizeof(peer), NULL));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_spoil(&buffer);
        tpx_device_sync(buffer.stream);
        tpx_buffer_place(&buffer, &skeleton->tensors[0]);
        held = tpx_backend("cuda_ipc") && tpx_device_is_double();
        if (held)
            tpx_device_fails("cuStreamQuery:1+:600");
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_equal(kill(peer, SIGKILL), 0);
        tpx_until(&end.over, 1);
        tpx_device_fails("");
        if (held)
            tpx_equal(end.status, TP_ERR_PEER_FAILED);
        tpx_buffer_fill(&buffer, 2);
        tpx_device_sync(buffer.stream);
        tpx_buffer_check(&buffer, 2);
        tpx_buffer_drop(&buffer);
    }
}

/* The sender closes the pipe over what the other's device copies: it has its
 * memory back only when nobody reads it any more. */
static void device_close(void)
{
    for (unsigned i = 0; i < 8; i++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 10 + i);
        struct tpx_buffer buffer;
        struct tpx_end end = { 0 };

        tpx_buffer_make(&buffer, i % 2 == 0 ? TPX_MALLOC : TPX_POOL, 0, 700000);
        if (tpx_me.rank == 0) {
            tp_tensor tensor = tpx_buffer_tensor(&buffer);
            tp_message message = { .tensors = &tensor, .tensor_count = 1 };

            tpx_buffer_fill(&buffer, i);
            tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
            for (unsigned spin = i * 2; spin > 0; spin--)
                tpx_ok(tp_progress(tpx_me.context, NULL));
            tpx_ok(tp_pipe_close(pipe));
            tpx_until(&end.over, 1);
            tpx_buffer_spoil(&buffer);
        } else {
            tp_message *skeleton;
            tp_status status = tp_pipe_recv_skeleton(pipe, &skeleton,
                                                     PATIENCE);

            if (status == TP_OK) {
                tpx_buffer_place(&buffer, &skeleton->tensors[0]);
                status = tp_pipe_recv_message(pipe, skeleton, PATIENCE);
            }
            if (status == TP_OK)
                tpx_buffer_check(&buffer, i);
            else
                tpx_equal(status, TP_ERR_PEER_CLOSED);
        }
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
    }
}

/* A device that fails ends the write with words; the peer hears of it.  Over
 * cuda_ipc the sender's device copies nothing, and so cannot fail: which shows
 * that the buffer went that way. */
static void device_fails(void)
{
    bool direct = tpx_backend("cuda_ipc");
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    if (!tpx_device_is_double())
        return;                        /* no driver fails when asked to */
    device_make(&buffer, zero, 3 << 20);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        struct tpx_end end = { 0 };

        tpx_buffer_fill(&buffer, 1);
        tpx_device_fails("cuMemcpyAsync:3+:700");
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_until(&end.over, 1);
        tpx_equal(end.status, direct ? TP_OK : TP_ERR_BACKEND);
        tpx_check(direct || strstr(tp_pipe_error(pipe), "(700)") != NULL, "%s",
                  tp_pipe_error(pipe));
        tpx_device_fails("");
    } else {
        tp_message *skeleton;
        tp_status status = tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE);

        if (status == TP_OK) {
            skeleton->tensors[0].data = buffer.data;
            skeleton->tensors[0].stream = buffer.stream;
            status = tp_pipe_recv_message(pipe, skeleton, PATIENCE);
        }
        tpx_equal(status, direct ? TP_OK : TP_ERR_PEER_CLOSED);
    }
    tpx_device_sync(buffer.stream);
    tpx_buffer_drop(&buffer);
    tpx_ok(tp_pipe_send(tpx_pipe(!tpx_me.rank, 3), "y", 1));
    tpx_ok(tp_pipe_recv(tpx_pipe(!tpx_me.rank, 3), &(char){ 0 }, 1, NULL));
}

/* A device that has failed before it is read to: the read is called, and its
 * callback tells; the peer's write ends, too, well if all had left by then, and
 * its pipe has ended. */
static void device_read_fails(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_device zero = { TP_DEVICE_CUDA, 0 };
    struct tpx_buffer buffer;
    struct tpx_end end = { 0 };

    if (!tpx_device_is_double())
        return;                        /* no driver fails when asked to */
    device_make(&buffer, zero, 3 << 20);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = tpx_buffer_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };

        tpx_buffer_fill(&buffer, 1);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_until(&end.over, 1);
        if (end.status != TP_OK)
            tpx_equal(end.status, TP_ERR_PEER_CLOSED);
        tpx_equal(tp_pipe_recv(pipe, &(char){ 0 }, 1, NULL),
                  TP_ERR_PEER_CLOSED);
    } else {
        tp_message *skeleton;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        skeleton->tensors[0].data = buffer.data;
        skeleton->tensors[0].stream = buffer.stream;
        tpx_device_fails("cuEventRecord:1+:700");
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_until(&end.over, 1);
        tpx_device_fails("");
        tpx_equal(end.status, TP_ERR_BACKEND);
        tpx_check(*tp_pipe_error(pipe) != '\0', "no words for it");
    }
    tpx_device_sync(buffer.stream);
    tpx_buffer_drop(&buffer);
    tpx_meet(!tpx_me.rank);
}

/* A device that has failed tells nothing of its memory: that is no mistake of
 * the caller's.  Memory of the CPU still goes. */
static void device_claim_fails(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_device zero = { TP_DEVICE_CUDA, 0 };
    struct tpx_buffer buffers[2];
    struct tpx_end end = { 0 };

    if (!tpx_device_is_double())
        return;                        /* no driver fails when asked to */
    device_make(&buffers[0], zero, 5000);
    device_make(&buffers[1], device_cpu, 5000);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = tpx_buffer_tensor(&buffers[0]);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };

        tpx_device_fails("cuPointerGetAttributes:1+:700");
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        tpx_until(&end.over, 1);
        tpx_equal(end.status, TP_ERR_BACKEND);
        device_send(pipe, &buffers[1], 1, 4);
        tpx_device_fails("");
    } else {
        device_receive(pipe, &buffers[1], 1, 4);
    }
    tpx_meet(!tpx_me.rank);
    for (int i = 0; i < 2; i++)
        tpx_buffer_drop(&buffers[i]);
}

/* The device fails when it has just said that bytes are there, or at any other
 * time: a message comes whole and right, or not, but is never waited for in
 * vain. */
static void device_fails_late(void)
{
    enum { ROUNDS = 24, LONG = 700000, STEP = 17 };
    tp_device zero = { TP_DEVICE_CUDA, 0 };
    char plan[ROUNDS * 32] = "";
    struct tpx_buffer buffer;

    if (!tpx_device_is_double())
        return;                        /* no driver fails when asked to */
    tpx_buffer_make(&buffer, TPX_MANAGED, zero.index, LONG);
    for (int i = 1; i <= ROUNDS; i++)
        snprintf(plan + strlen(plan), sizeof(plan) - strlen(plan),
                 "%scuEventQuery:%d:700", i > 1 ? "," : "", i * STEP);
    for (unsigned i = 0; i < ROUNDS; i++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 100 + i);
        struct tpx_end end = { 0 };

        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 0) {
            tp_tensor tensor = tpx_buffer_tensor(&buffer);
            tp_message message = { .tensors = &tensor, .tensor_count = 1 };

            tpx_buffer_fill(&buffer, i);
            tpx_device_sync(buffer.stream);
            tpx_device_fails(plan);
            tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
            tpx_until(&end.over, 1);
            tpx_device_fails("");
            tpx_ok(tp_pipe_close(pipe));
        } else {
            unsigned char *to = malloc(LONG);
            tp_message *skeleton;
            tp_status status = tp_pipe_recv_skeleton(pipe, &skeleton,
                                                     PATIENCE);

            tpx_check(to != NULL, "no memory for the test itself");
            if (status == TP_OK) {
                skeleton->tensors[0].data = to;
                skeleton->tensors[0].device = device_cpu;
                status = tp_pipe_recv_message(pipe, skeleton, PATIENCE);
            }
            if (status == TP_OK)
                tpx_equal(tpx_verify(to, LONG, i), LONG);
            else
                tpx_equal(status, TP_ERR_PEER_CLOSED);
            free(to);
        }
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

const struct tpx_spmd tpx_device_suite[] = {
    { "device_mix", device_mix, 2, 0, 90 },
    { "device_self", device_self, 1, 0, 30 },
    { "device_self_contract", device_self_contract, 1, TPX_BARE | TPX_WARNS,
      60 },
    { "device_order_sender", device_order_sender, 2, 0, 30 },
    { "device_order_receiver", device_order_receiver, 2, 0, 30 },
    { "device_claims", device_claims, 2, TPX_WARNS, 30 },
    { "device_borrow", device_borrow, 2, 0, 30 },
    { "device_borrow_death", device_borrow_death, 2, TPX_KILLS, 30 },
    { "device_death", device_death, 2, TPX_KILLS, 30 },
    { "device_death_pull", device_death_pull, 2, TPX_KILLS, 30 },
    { "device_close", device_close, 2, 0, 30 },
    { "device_fails", device_fails, 2, TPX_WARNS, 30 },
    { "device_claim_fails", device_claim_fails, 2, TPX_WARNS, 30 },
    { "device_fails_late", device_fails_late, 2, TPX_WARNS, 30 },
    { "device_read_fails", device_read_fails, 2, TPX_WARNS, 30 },
    { NULL }
};
