/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program that looks at no status: the last rank sends a tensor on a device
 * to rank 0, which reads it, and both go on as if nothing was.  What ends it is
 * a path contract that the launcher insists on.
 */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

#include "tests/gpu/device.h"
#include "runtime/tp.h"

enum { STUBBORN_BYTES = 1 << 20, STUBBORN_SECONDS = 60 };

static void *stubborn_memory;

static void stubborn_arrived(tp_pipe *pipe, tp_status status,
                             tp_message *skeleton, void *arg)
{
    (void)arg;
    if (status != TP_OK)
        return;
    skeleton->tensors[0].data = stubborn_memory;
    skeleton->tensors[0].device = (tp_device){ TP_DEVICE_CUDA, 0 };
    tp_pipe_read(pipe, skeleton, NULL, NULL);
}

int main(void)
{
    tp_tensor tensor = { .length = STUBBORN_BYTES,
                         .device = { TP_DEVICE_CUDA, 0 },
                         .target = { TP_DEVICE_ANY, 0 } };
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };
    tp_context *context;
    tp_pipe *pipe;

    alarm(2 * STUBBORN_SECONDS);
    tpx_device_choose();
    if (tp_init(NULL, &context) != TP_OK)
        return 2;
    tpx_device_use(0);
    stubborn_memory = tensor.data = tpx_device_malloc(STUBBORN_BYTES);
    if (tp_rank(context) == 0)
        tp_read_descriptor_any(context, stubborn_arrived, NULL);
    if (tp_rank(context) == tp_size(context) - 1
        && tp_pipe_to_rank(context, 0, &pipe) == TP_OK)
        tp_pipe_write(pipe, &message, NULL, NULL);
    sleep(STUBBORN_SECONDS);
    fprintf(stderr, "stubborn: still there\n");
    return 0;
}
