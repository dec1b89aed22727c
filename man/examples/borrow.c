/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rank 0 offers numbers; rank 1 adds them up in place, without a copy.  Where
 * tp cannot lend them, rank 1 reads them into memory of its own.
 *
 *     tprun -n 2 ./borrow
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <tp.h>

enum { COUNT = 1 << 20, LIMIT_MS = 60000 };

struct sum {
    double *copy;              /* our own memory, if it has come to that */
    bool done;
    tp_status status;
};

static void finish(struct sum *sum, tp_status status, const tp_message *message)
{
    const double *numbers;
    double total = 0;

    sum->status = status;
    sum->done = true;
    if (status != TP_OK)
        return;
    numbers = sum->copy != NULL ? sum->copy : message->tensors[0].data;
    for (size_t i = 0; i < COUNT; i++)
        total += numbers[i];
    printf("%s: %.0f\n", sum->copy != NULL ? "in a copy" : "in place", total);
}

static void copied(tp_pipe *pipe, tp_status status, tp_message *message,
                   void *arg)
{
    (void)pipe;
    finish(arg, status, message);
}

static void borrowed(tp_pipe *pipe, tp_status status, tp_message *message,
                     void *arg)
{
    finish(arg, status, message);
    if (status == TP_OK)
        tp_pipe_release(pipe, message);     /* now rank 0's write completes */
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
    if (status == TP_ERR_NOT_SUPPORTED) {
        sum->copy = malloc(skeleton->tensors[0].length);
        skeleton->tensors[0].data = sum->copy;
        skeleton->tensors[0].device.type = TP_DEVICE_CPU;
        status = sum->copy == NULL ? TP_ERR_NO_MEMORY
            : tp_pipe_read(pipe, skeleton, copied, sum);
    }
    if (status != TP_OK)
        finish(sum, status, NULL);
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
        free(sum.copy);
    return status == TP_OK ? sum.status : status;
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
