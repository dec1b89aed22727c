/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Streams of every kind: threads' own, those that are captured into graphs,
 * and threads without a context.
 */
#include "config.h"

#include "tests/gpu/buffer.h"
#include "tests/gpu/suite_device.h"

enum { PATIENCE = 60000, LENGTH = 700000, TURNS = 6 };

static void streams_send(tp_pipe *pipe, const tp_tensor *tensor)
{
    tp_tensor copy = *tensor;
    tp_message message = { .tensors = &copy, .tensor_count = 1 };

    tpx_ok(tp_pipe_send_message(pipe, &message, PATIENCE));
}

static void streams_receive(tp_pipe *pipe, const tp_tensor *tensor)
{
    tp_message *skeleton;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_equal(skeleton->tensor_count, 1);
    skeleton->tensors[0].data = tensor->data;
    skeleton->tensors[0].device = tensor->device;
    skeleton->tensors[0].stream = tensor->stream;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
}

/* The stream of the thread that reads is that of no other thread. */
static void streams_thread(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    cu_stream own;

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, LENGTH);
    own = buffer.stream;
    buffer.stream = CU_THREAD_STREAM;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        tp_tensor tensor;

        if (tpx_me.rank == 0)
            tpx_buffer_fill(&buffer, turn);
        else
            tpx_buffer_spoil(&buffer);
        tensor = tpx_buffer_tensor(&buffer);
        if (tpx_me.rank == 0) {
            streams_send(pipe, &tensor);
            tpx_buffer_spoil(&buffer);
        } else {
            streams_receive(pipe, &tensor);
            tpx_buffer_check(&buffer, turn);
        }
        tpx_meet(!tpx_me.rank);
    }
    tpx_device_sync(CU_THREAD_STREAM);
    buffer.stream = own;
    tpx_buffer_drop(&buffer);
}

/* A graph that the program captures is not broken by what goes on here, and
 * what is captured is told from what runs. */
static void streams_capture(void)
{
    const struct tpg_cuda *cuda = tpx_device_driver();
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    tp_message message = { .tensor_count = 1 };
    tp_tensor tensor, captured;
    void *graph = NULL;
    cu_stream stream;

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, LENGTH);
    tensor = captured = tpx_buffer_tensor(&buffer);
    stream = tpx_device_stream();
    captured.stream = stream;
    message.tensors = &captured;
    for (int mode = CU_CAPTURE_GLOBAL; mode <= CU_CAPTURE_RELAXED; mode++) {
        if (tpx_me.rank == 0)
            tpx_buffer_fill(&buffer, 7);
        tpx_meet(!tpx_me.rank);
        TPX_CU(cuda->cuStreamBeginCapture_v2(stream, mode));
        if (tpx_me.rank == 0) {
            streams_send(pipe, &tensor);
            tpx_status(tp_pipe_write(pipe, &message, tpx_count_ok, NULL),
                       TP_ERR_INVALID);
        } else {
            streams_receive(pipe, &tensor);
        }
        tpx_meet(!tpx_me.rank);
        TPX_CU(cuda->cuStreamEndCapture(stream, &graph));
        tpx_check(graph != NULL, "a capture of mode %d was broken", mode);
        if (tpx_me.rank == 1)
            tpx_buffer_check(&buffer, 7);
    }
    TPX_CU(cuda->cuStreamDestroy_v2(stream));
    tpx_buffer_drop(&buffer);
}

/* A stream may be captured from the call on: the end of an operation that was
 * written or read on it is not part of the graph, and does not break it. */
static void streams_capture_later(void)
{
    const struct tpg_cuda *cuda = tpx_device_driver();
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffer;
    struct tpx_gate gate;
    tp_message message = { .tensor_count = 1 }, *skeleton;
    tp_tensor tensor;
    void *graph = NULL;
    unsigned done = 0;

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, LENGTH);
    tensor = tpx_buffer_tensor(&buffer);
    message.tensors = &tensor;
    tpx_gate_close(&gate, buffer.stream);
    if (tpx_me.rank == 0) {
        tpx_buffer_fill(&buffer, 3);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
    } else {
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&buffer, &skeleton->tensors[0]);
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &done));
    }
    TPX_CU(cuda->cuStreamBeginCapture_v2(buffer.stream, CU_CAPTURE_GLOBAL));
    tpx_gate_open(&gate);
    tpx_until(&done, 1);
    TPX_CU(cuda->cuStreamEndCapture(buffer.stream, &graph));
    tpx_check(graph != NULL, "a capture was broken");
    if (tpx_me.rank == 1)
        tpx_buffer_check(&buffer, 3);
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

/* No context is current in the thread that calls. */
static void streams_bare(void)
{
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_POOL, TPX_MANAGED,
                                           TPX_VMM };
    const struct tpg_cuda *cuda = tpx_device_driver();
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    for (size_t i = 0; i < TPB_COUNT(kinds); i++) {
        struct tpx_buffer buffer;
        cu_context current;
        tp_tensor tensor;

        tpx_buffer_make(&buffer, kinds[i], (int)(i % 2), LENGTH);
        if (tpx_me.rank == 0)
            tpx_buffer_fill(&buffer, i);
        tensor = tpx_buffer_tensor(&buffer);
        TPX_CU(cuda->cuCtxSetCurrent(NULL));
        if (tpx_me.rank == 0)
            streams_send(pipe, &tensor);
        else
            streams_receive(pipe, &tensor);
        TPX_CU(cuda->cuCtxGetCurrent(&current));
        tpx_check(current == NULL, "a context was left behind");
        if (tpx_me.rank == 1)
            tpx_buffer_check(&buffer, i);
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
    }
}

/* A stream of another device is told before anything is sent. */
static void streams_foreign(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_message message = { .tensor_count = 1 };
    struct tpx_buffer buffer, other;
    tp_tensor tensor;

    if (tpx_device_number(1) == tpx_device_number(0))
        return;                        /* one device: there is no other */
    tpx_buffer_make(&buffer, TPX_MALLOC, 0, LENGTH);
    tpx_buffer_make(&other, TPX_MALLOC, 1, LENGTH);
    tensor = tpx_buffer_tensor(&buffer);
    tensor.stream = other.stream;
    message.tensors = &tensor;
    tpx_status(tp_pipe_write(pipe, &message, tpx_count_ok, NULL),
               TP_ERR_INVALID);
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&other);
    tpx_buffer_drop(&buffer);
}

const struct tpx_spmd tpx_streams_thread
    = { "streams_thread", streams_thread, 2, 0, 60 };
const struct tpx_spmd tpx_streams_capture
    = { "streams_capture", streams_capture, 2, TPX_WARNS, 60 };

const struct tpx_spmd tpx_streams_suite[] = {
    { "streams_thread", streams_thread, 2, 0, 30 },
    { "streams_capture", streams_capture, 2, TPX_WARNS, 30 },
    { "streams_capture_later", streams_capture_later, 2, 0, 30 },
    { "streams_bare", streams_bare, 2, 0, 30 },
    { "streams_foreign", streams_foreign, 2, TPX_WARNS, 30 },
    { NULL }
};
