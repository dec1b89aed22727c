/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tensors on devices between ranks: every mix of sides, the order of streams,
 * wrong claims, failing devices and dying peers.
 */
#include "config.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/device.h"
#include "tests/gpu/suite_device.h"

enum { PATIENCE = 60000 };

static const tp_device device_cpu = { TP_DEVICE_CPU, 0 };

/* A tensor's memory, with a shadow in pinned memory of the host. */
struct device_buffer {
    tp_device where;
    size_t length;
    unsigned char *data, *shadow;
    cu_stream stream;
};

static void device_make(struct device_buffer *buffer, tp_device where,
                        size_t length)
{
    void *shadow;

    tpx_device_use(where.type == TP_DEVICE_CUDA ? where.index : 0);
    TPX_CU(tpx_device_driver()->cuMemHostAlloc(&shadow, length, 0));
    buffer->where = where;
    buffer->length = length;
    buffer->shadow = shadow;
    buffer->stream = tpx_device_stream();
    buffer->data = where.type == TP_DEVICE_CUDA ? tpx_device_malloc(length)
                                                : shadow;
}

static void device_drop(struct device_buffer *buffer)
{
    const struct tpg_cuda *cuda = tpx_device_driver();

    tpx_device_use(buffer->where.type == TP_DEVICE_CUDA ? buffer->where.index
                                                        : 0);
    if (buffer->data != buffer->shadow)
        TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)buffer->data));
    TPX_CU(cuda->cuStreamDestroy_v2(buffer->stream));
    TPX_CU(cuda->cuMemFreeHost(buffer->shadow));
}

/* Enqueued only: whoever reads the tensor has to wait. */
static void device_fill(struct device_buffer *buffer, uint64_t seed)
{
    tpx_fill(buffer->shadow, buffer->length, seed);
    if (buffer->data != buffer->shadow)
        tpx_device_copy(buffer->data, buffer->shadow, buffer->length,
                        buffer->stream);
}

static void device_check(struct device_buffer *buffer, uint64_t seed)
{
    if (buffer->data != buffer->shadow) {
        memset(buffer->shadow, 0, buffer->length);
        tpx_device_copy(buffer->shadow, buffer->data, buffer->length,
                        buffer->stream);
        tpx_device_sync(buffer->stream);
    }
    tpx_equal(tpx_verify(buffer->shadow, buffer->length, seed),
              buffer->length);
}

static void device_spoil(struct device_buffer *buffer)
{
    if (buffer->data != buffer->shadow)
        TPX_CU(tpx_device_driver()->cuMemsetD8Async(
            (cu_pointer)(uintptr_t)buffer->data, 0xee, buffer->length,
            buffer->stream));
    else
        memset(buffer->data, 0xee, buffer->length);
}

static tp_tensor device_tensor(const struct device_buffer *buffer)
{
    return (tp_tensor){ .data = buffer->data, .length = buffer->length,
                        .device = buffer->where,
                        .target = { TP_DEVICE_ANY, 0 },
                        .stream = buffer->where.type == TP_DEVICE_CUDA
                                  ? buffer->stream : NULL };
}

static void device_send(tp_pipe *pipe, struct device_buffer *buffers,
                        size_t count, uint64_t seed)
{
    char greeting[] = "between";
    tp_payload payload = { .data = greeting, .length = sizeof(greeting) };
    tp_tensor tensors[4];
    tp_message message = { .payloads = &payload, .payload_count = 1,
                           .tensors = tensors, .tensor_count = count };

    for (size_t i = 0; i < count; i++) {
        device_fill(&buffers[i], seed + i);
        tensors[i] = device_tensor(&buffers[i]);
    }
    tpx_ok(tp_pipe_send_message(pipe, &message, PATIENCE));
    /* It is ours again: what comes now must not be seen over there. */
    for (size_t i = 0; i < count; i++)
        device_spoil(&buffers[i]);
}

static void device_receive(tp_pipe *pipe, struct device_buffer *buffers,
                           size_t count, uint64_t seed)
{
    char greeting[8];
    tp_message *skeleton;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_equal(skeleton->tensor_count, count);
    skeleton->payloads[0].data = greeting;
    for (size_t i = 0; i < count; i++) {
        tpx_equal(skeleton->tensors[i].length, buffers[i].length);
        device_spoil(&buffers[i]);
        skeleton->tensors[i].data = buffers[i].data;
        skeleton->tensors[i].device = buffers[i].where;
        skeleton->tensors[i].stream = buffers[i].stream;
    }
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    tpx_check(strcmp(greeting, "between") == 0, "the payload is wrong");
    for (size_t i = 0; i < count; i++)
        device_check(&buffers[i], seed + i);
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
            struct device_buffer buffers[3];

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
                device_drop(&buffers[j]);
        }
    tpx_meet(!tpx_me.rank);
}

/* To oneself, and without a tensor on this side. */
static void device_self(void)
{
    struct device_buffer from, to;
    tp_pipe *pipe = tpx_pipe(tpx_me.rank, 0);
    tp_device one = { TP_DEVICE_CUDA, 1 }, zero = { TP_DEVICE_CUDA, 0 };
    tp_tensor tensor;
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };
    tp_message *skeleton;
    unsigned done = 0;

    device_make(&from, zero, 1 << 20);
    device_make(&to, one, 1 << 20);
    tpx_device_use(0);
    device_fill(&from, 5);
    tensor = device_tensor(&from);
    tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    skeleton->tensors[0].data = to.data;
    skeleton->tensors[0].device = to.where;
    skeleton->tensors[0].stream = to.stream;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    tpx_until(&done, 1);
    tpx_device_use(1);
    device_check(&to, 5);
    device_drop(&from);
    device_drop(&to);
}

/* ---- the order of streams ------------------------------------------------ */

/* Holds up a stream until it is opened. */
struct device_gate {
    uint32_t *value;
};

static void device_gate_close(struct device_gate *gate, cu_stream stream)
{
    void *memory;

    TPX_CU(tpx_device_driver()->cuMemHostAlloc(&memory, sizeof(uint32_t), 0));
    gate->value = memory;
    __atomic_store_n(gate->value, 0, __ATOMIC_RELEASE);
    TPX_CU(tpx_device_driver()->cuStreamWaitValue32_v2(
        stream, (cu_pointer)(uintptr_t)memory, 1, 1));
}

static void device_gate_open(struct device_gate *gate)
{
    __atomic_store_n(gate->value, 1, __ATOMIC_RELEASE);
}

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
    struct device_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    device_make(&buffer, zero, 700000);
    if (tpx_me.rank == 0) {
        struct device_gate gate;
        tp_tensor tensor = device_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        unsigned done = 0;

        device_gate_close(&gate, buffer.stream);
        device_fill(&buffer, 77);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        device_drive(20);
        tpx_equal(done, 0);
        tpx_ok(tp_pipe_send(other, "x", 1));
        device_gate_open(&gate);
        tpx_until(&done, 1);
        device_spoil(&buffer);
    } else {
        tp_message *skeleton;
        char byte;

        tpx_ok(tp_pipe_recv(other, &byte, 1, NULL));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        skeleton->tensors[0].data = buffer.data;
        skeleton->tensors[0].stream = buffer.stream;
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        device_check(&buffer, 77);
    }
    tpx_meet(!tpx_me.rank);
    device_drop(&buffer);
}

/* What was on the receiver's stream before uses the memory before. */
static void device_order_receiver(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct device_buffer buffer, before;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    device_make(&buffer, zero, 700000);
    if (tpx_me.rank == 0) {
        device_send(pipe, &buffer, 1, 3);
    } else {
        struct device_gate gate;
        tp_message *skeleton;
        char greeting[8];
        unsigned done = 0;

        device_make(&before, zero, buffer.length);
        device_fill(&buffer, 1);
        device_gate_close(&gate, buffer.stream);
        tpx_device_copy(before.data, buffer.data, buffer.length,
                        buffer.stream);
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        skeleton->payloads[0].data = greeting;
        skeleton->tensors[0].data = buffer.data;
        skeleton->tensors[0].stream = buffer.stream;
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &done));
        device_drive(20);
        device_gate_open(&gate);
        tpx_until(&done, 1);
        device_check(&buffer, 3);
        device_check(&before, 1);
        device_drop(&before);
    }
    tpx_meet(!tpx_me.rank);
    device_drop(&buffer);
}

/* ---- claims, borrowing --------------------------------------------------- */

static void device_claims(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct device_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 }, one = { TP_DEVICE_CUDA, 1 };
    tp_tensor tensor;
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };

    device_make(&buffer, zero, 5000);
    if (tpx_me.rank == 0) {
        tensor = device_tensor(&buffer);
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
    device_drop(&buffer);
}

static void device_borrowed(tp_pipe *pipe, tp_status status,
                            tp_message *message, void *arg)
{
    tpx_ok(status);
    tpx_equal(message->tensors[0].device.type, TP_DEVICE_CPU);
    tpx_equal(tpx_verify(message->tensors[0].data, 300000, 4), 300000);
    tpx_ok(tp_pipe_release(pipe, message));
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_RELEASE);
}

static void device_borrow(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct device_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    if (tpx_me.rank == 0) {
        device_make(&buffer, zero, 300000);
        device_send(pipe, &buffer, 1, 4);
        device_drop(&buffer);
    } else {
        tp_message *skeleton;
        unsigned done = 0;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_ok(tp_pipe_borrow(pipe, skeleton, device_borrowed, &done));
        tpx_until(&done, 1);
    }
    tpx_meet(!tpx_me.rank);
}

/* tp_alloc() memory of a device is as good as any. */
static void device_alloc(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct device_buffer buffer;
    tp_device one = { TP_DEVICE_CUDA, 1 };
    void *memory;

    device_make(&buffer, one, 200000);
    TPX_CU(tpx_device_driver()->cuMemFree_v2(
        (cu_pointer)(uintptr_t)buffer.data));
    tpx_ok(tp_alloc(tpx_me.context, buffer.length, one, &memory));
    buffer.data = memory;
    if (tpx_me.rank == 0)
        device_send(pipe, &buffer, 1, 8);
    else
        device_receive(pipe, &buffer, 1, 8);
    tpx_meet(!tpx_me.rank);
    tpx_device_sync(buffer.stream);
    tpx_ok(tp_free(tpx_me.context, memory));
}

/* ---- trouble ------------------------------------------------------------- */

static tp_status device_end_status;

static void device_ended(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    (void)pipe;
    (void)message;
    device_end_status = status;
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_RELEASE);
}

/* The peer dies while a read waits for its stream: it ends, and the stream is
 * not left waiting. */
static void device_death(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct device_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    device_make(&buffer, zero, 4 << 20);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = device_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        unsigned done = 0;
        char byte;

        device_fill(&buffer, 1);
        tpx_ok(tp_pipe_write(pipe, &message, device_ended, &done));
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &byte, 1, NULL));
        raise(SIGKILL);
    } else {
        struct device_gate gate;
        tp_message *skeleton;
        unsigned done = 0;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        device_gate_close(&gate, buffer.stream);
        skeleton->tensors[0].data = buffer.data;
        skeleton->tensors[0].stream = buffer.stream;
        tpx_ok(tp_pipe_read(pipe, skeleton, device_ended, &done));
        tpx_ok(tp_pipe_send(tpx_pipe(0, 1), "x", 1));
        tpx_until(&done, 1);
        tpx_equal(device_end_status, TP_ERR_PEER_FAILED);
        device_gate_open(&gate);
        tpx_device_sync(buffer.stream);
        device_drop(&buffer);
    }
}

/* A device that fails ends the write with words; the peer hears of it.  Over
 * cuda_ipc the sender's device copies nothing, and so cannot fail: which shows
 * that the buffer went that way. */
static void device_fails(void)
{
    const char *backends = getenv("TP_BACKENDS");
    bool direct = backends != NULL && strstr(backends, "cuda_ipc") != NULL;
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct device_buffer buffer;
    tp_device zero = { TP_DEVICE_CUDA, 0 };

    device_make(&buffer, zero, 3 << 20);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_tensor tensor = device_tensor(&buffer);
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        unsigned done = 0;

        device_fill(&buffer, 1);
        setenv("CUDADOUBLE_FAIL", "cuMemcpyAsync:3+:700", 1);
        tpx_ok(tp_pipe_write(pipe, &message, device_ended, &done));
        tpx_until(&done, 1);
        tpx_equal(device_end_status, direct ? TP_OK : TP_ERR_BACKEND);
        tpx_check(direct || strstr(tp_pipe_error(pipe), "(700)") != NULL, "%s",
                  tp_pipe_error(pipe));
        unsetenv("CUDADOUBLE_FAIL");
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
    device_drop(&buffer);
    tpx_ok(tp_pipe_send(tpx_pipe(!tpx_me.rank, 3), "y", 1));
    tpx_ok(tp_pipe_recv(tpx_pipe(!tpx_me.rank, 3), &(char){ 0 }, 1, NULL));
}

const struct tpx_spmd tpx_device_suite[] = {
    { "device_mix", device_mix, 2, 0, 90 },
    { "device_self", device_self, 1, 0, 30 },
    { "device_order_sender", device_order_sender, 2, 0, 30 },
    { "device_order_receiver", device_order_receiver, 2, 0, 30 },
    { "device_claims", device_claims, 2, TPX_WARNS, 30 },
    { "device_borrow", device_borrow, 2, 0, 30 },
    { "device_alloc", device_alloc, 2, 0, 30 },
    { "device_death", device_death, 2, TPX_KILLS, 30 },
    { "device_fails", device_fails, 2, TPX_WARNS, 30 },
    { NULL }
};
