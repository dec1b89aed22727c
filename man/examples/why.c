/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which way goes each pipe of rank 0, and why?  Moves one tensor to every
 * other rank, so that the pipes are connected, and prints the explanations.
 *
 *     tprun -n 3 ./why
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp.h>

enum { BYTES = 1 << 20, LIMIT_MS = 60000 };

static tp_status give(tp_pipe *pipe, void *memory)
{
    tp_tensor tensor = { 0 };
    tp_message message = { 0 };

    tensor.data = memory;
    tensor.length = BYTES;
    tensor.target.type = TP_DEVICE_ANY;
    message.tensors = &tensor;
    message.tensor_count = 1;
    return tp_pipe_send_message(pipe, &message, LIMIT_MS);
}

static tp_status take(tp_pipe *pipe, void *memory)
{
    size_t length;
    tp_status status = tp_pipe_recv(pipe, memory, BYTES, &length);

    return status == TP_OK && length != BYTES ? TP_ERR_PROTOCOL : status;
}

static tp_status explain(tp_pipe *pipe)
{
    char *json;
    tp_status status = tp_pipe_explain(pipe, &json);

    if (status != TP_OK)
        return status;
    printf("to %s:\n%s\n", tp_pipe_peer(pipe), json);
    free(json);
    return TP_OK;
}

static tp_status run(tp_context *context, void *memory)
{
    tp_status status = TP_OK;
    tp_pipe *pipe;

    if (tp_rank(context) > 0) {
        status = tp_pipe_to_rank(context, 0, &pipe);
        return status == TP_OK ? take(pipe, memory) : status;
    }
    for (int rank = 1; rank < tp_size(context) && status == TP_OK; rank++) {
        status = tp_pipe_to_rank(context, rank, &pipe);
        if (status == TP_OK)
            status = give(pipe, memory);
        if (status == TP_OK)
            status = explain(pipe);
    }
    return status;
}

int main(void)
{
    const tp_device cpu = { TP_DEVICE_CPU, 0 };
    tp_context *context;
    void *memory;
    tp_status status = tp_init(NULL, &context);

    if (status != TP_OK) {
        fprintf(stderr, "why: tp_init: %s\n", tp_strerror(status));
        return 1;
    }
    if (tp_rank(context) == 0)
        printf("tp %s: %d ranks, %d of them on this host\n", tp_version(),
               tp_size(context), tp_local_size(context));
    status = tp_alloc(context, BYTES, cpu, &memory);
    if (status == TP_OK) {
        memset(memory, tp_local_rank(context), BYTES);
        status = run(context, memory);
        tp_free(context, memory);
    }
    if (status != TP_OK)
        tp_abort(context, 1, tp_strerror(status));
    return tp_finalize(context) == TP_OK ? 0 : 1;
}
