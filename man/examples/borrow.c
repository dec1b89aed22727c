/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rank 0 offers numbers; rank 1 adds them up where they are, without a copy if
 * its host is the same.
 *
 *     tprun -n 2 ./borrow
 */
#include <stdbool.h>
#include <stdio.h>
#include <tp.h>

enum { COUNT = 1 << 20, LIMIT_MS = 60000 };

struct sum {
    double total;
    bool done;
    tp_status status;
};

static void borrowed(tp_pipe *pipe, tp_status status, tp_message *message,
                     void *arg)
{
    struct sum *sum = arg;

    if (status == TP_OK) {
        const double *numbers = message->tensors[0].data;

        for (size_t i = 0; i < COUNT; i++)
            sum->total += numbers[i];
        status = tp_pipe_release(pipe, message);   /* rank 0's write ends */
    }
    sum->status = status;
    sum->done = true;
}

static void arrived(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                    void *arg)
{
    struct sum *sum = arg;

    if (status == TP_OK && (skeleton->tensor_count != 1
        || skeleton->tensors[0].length != COUNT * sizeof(double)))
        status = TP_ERR_PROTOCOL;
    if (status == TP_OK)
        status = tp_pipe_borrow(pipe, skeleton, borrowed, sum);
    if (status != TP_OK) {
        sum->status = status;
        sum->done = true;
    }
}

static tp_status offer(tp_context *context, tp_pipe *pipe)
{
    tp_tensor tensor = { .length = COUNT * sizeof(double),
                         .target = { TP_DEVICE_ANY, 0 } };
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };
    const tp_device cpu = { TP_DEVICE_CPU, 0 };
    tp_status status = tp_alloc(context, tensor.length, cpu, &tensor.data);

    if (status != TP_OK)
        return status;
    for (size_t i = 0; i < COUNT; i++)
        ((double *)tensor.data)[i] = (double)i;
    status = tp_pipe_send_message(pipe, &message, LIMIT_MS);
    tp_free(context, tensor.data);
    return status;
}

static tp_status add_up(tp_context *context, tp_pipe *pipe)
{
    static struct sum sum;
    tp_status status = tp_pipe_read_descriptor(pipe, arrived, &sum);

    while (status == TP_OK && !sum.done)
        status = tp_wait(context, LIMIT_MS, NULL);
    if (status == TP_OK)
        status = sum.status;
    if (status == TP_OK)
        printf("the sum is %.0f\n", sum.total);
    return status;
}

int main(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_pipe *pipe;
    tp_status status;

    options.progress = TP_PROGRESS_MANUAL;
    status = tp_init(&options, &context);
    if (status != TP_OK) {
        fprintf(stderr, "borrow: tp_init: %s\n", tp_strerror(status));
        return 1;
    }
    if (tp_size(context) == 2) {
        status = tp_pipe_to_rank(context, 1 - tp_rank(context), &pipe);
        if (status == TP_OK)
            status = tp_rank(context) == 0 ? offer(context, pipe)
                : add_up(context, pipe);
    } else {
        fprintf(stderr, "usage: tprun -n 2 borrow\n");
        status = TP_ERR_INVALID;
    }
    if (status != TP_OK)
        fprintf(stderr, "borrow: %s\n", tp_strerror(status));
    return tp_finalize(context) == TP_OK && status == TP_OK ? 0 : 1;
}
