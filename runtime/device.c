/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tensors on devices, as the message machinery sees them: what waits for a
 * device, and bytes that go through host memory on their way in or out.
 */
#include "config.h"

#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("device");

/* ---- what callers say ---------------------------------------------------- */

bool tpr_device_valid(tp_device device)
{
    return device.type == TP_DEVICE_CPU ? device.index == 0
           : device.type == TP_DEVICE_CUDA && device.index >= 0;
}

bool tpr_target_valid(tp_device target)
{
    return target.type == TP_DEVICE_ANY || tpr_device_valid(target);
}

static bool device_any(const tp_message *message)
{
    for (size_t i = 0; i < message->tensor_count; i++)
        if (message->tensors[i].device.type == TP_DEVICE_CUDA)
            return true;
    return false;
}

static tp_status device_unknown(tp_device device, const char *use,
                                struct tpb_error *error)
{
    switch (device.type) {
    case TP_DEVICE_CPU:
        return tpb_fail(error, TP_ERR_INVALID,
                        "there is no device cpu:%d%s: the index of"
                        " TP_DEVICE_CPU is 0", device.index, use);
    case TP_DEVICE_CUDA:
        return tpb_fail(error, TP_ERR_INVALID, "there is no device cuda:%d%s",
                        device.index, use);
    case TP_DEVICE_ANY:
        return tpb_fail(error, TP_ERR_INVALID, "TP_DEVICE_ANY is no place for"
                        " a tensor to be, only for its target");
    }
    return tpb_fail(error, TP_ERR_INVALID, "there are no devices of type %d%s",
                    (int)device.type, use);
}

static tp_status device_refuse(tp_pipe *pipe, tp_status status,
                               const struct tpb_error *error)
{
    if (status == TP_ERR_NOT_SUPPORTED)
        tpb_info("a tensor on a device: %s", error->text);
    else
        tpb_warn("a tensor on a device: %s", error->text);
    tpr_pipe_refuse(pipe, error->text);
    return status;
}

void tpr_device_tell(tp_pipe *pipe, const tp_tensor *tensor)
{
    struct tpb_error error = { "" };
    tp_status status = tpr_device_valid(tensor->device)
                       ? device_unknown(tensor->target, ", its target", &error)
                       : device_unknown(tensor->device, "", &error);

    (void)device_refuse(pipe, status, &error);
}

tp_status tpr_device_claim_tensors(tp_pipe *pipe, const tp_message *message,
                                   bool reads, struct tpg_work **work)
{
    tp_context *context = pipe->context;
    struct tpb_error error = { "" };
    struct tpf_buffer buffer;
    tp_status status = TP_OK;

    for (size_t i = message->payload_count;
         status == TP_OK && tpr_message_buffer(message, i, &buffer); i++)
        if (!tpr_device_valid(buffer.device))
            status = device_unknown(buffer.device, "", &error);
        else if (buffer.data != NULL)
            status = tpg_claim(context->gpu, &buffer, &error);
    if (status == TP_OK && device_any(message))
        status = tpg_work_new(context->gpu, message, work, &error);
    if (status == TP_ERR_NOT_SUPPORTED && reads)
        status = TP_ERR_INVALID;   /* it can be read into CPU memory */
    return status == TP_OK ? TP_OK : device_refuse(pipe, status, &error);
}

/* ---- waiting ------------------------------------------------------------- */

void tpr_device_wait(tp_pipe *pipe)
{
    if (tpb_list_empty(&pipe->device_link))
        tpb_list_append(&pipe->context->device_pipes, &pipe->device_link);
    tpr_touch(pipe->context);
}

bool tpr_device_may_read(tp_pipe *pipe, struct tpr_op *op)
{
    enum tpg_answer answer = op->status != TP_OK ? TPG_FAILED
                             : tpg_work_ready(op->work);

    if (answer == TPG_NOW)
        return true;
    if (answer == TPG_LATER) {
        tpb_list_append(&pipe->context->device_reads, &op->link);
        tpr_touch(pipe->context);
        return false;
    }
    if (op->status == TP_OK)
        op->status = TP_ERR_BACKEND;
    tpb_list_append(&pipe->reads, &op->link);
    tpr_rx_break(pipe, op->status, op->work != NULL ? tpg_work_error(op->work)
                 : "the device that a message was to be read to has failed");
    return false;
}

static bool device_read_over(const struct tpr_op *op)
{
    const tp_pipe *pipe = op->pipe;

    return pipe->rx_state != TPR_RX_OFFERED || pipe->skeleton == NULL
           || op->message != &pipe->skeleton->message;
}

bool tpr_device_progress(tp_context *context)
{
    struct tpb_list turn, *node;
    bool moved = false;

    tpb_list_init(&turn);
    while ((node = tpb_list_take(&context->device_pipes)) != NULL)
        tpb_list_append(&turn, node);
    while ((node = tpb_list_take(&turn)) != NULL) {
        tp_pipe *pipe = TPB_CONTAINER(node, tp_pipe, device_link);

        tpr_tx_pump(pipe);
        moved |= tpb_list_empty(&pipe->device_link);
    }
    while ((node = tpb_list_take(&context->device_reads)) != NULL)
        tpb_list_append(&turn, node);
    while ((node = tpb_list_take(&turn)) != NULL) {
        struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);
        tp_pipe *pipe = op->pipe;

        /* Its peer is gone, with a part of the message: that does not wait for
         * a stream.  What had arrived is read when the stream allows. */
        if (!device_read_over(op) && pipe->rx_end != TP_OK
            && !tpr_rx_has_all(pipe)
            && tpg_work_ready(op->work) == TPG_LATER)
            tpr_rx_drop(pipe, pipe->rx_end);
        tpr_rx_read(pipe, op);
        moved |= tpb_list_empty(&context->device_reads);
    }
    if (!tpb_list_empty(&context->device_releases))
        moved |= tpr_borrow_progress(context);
    return moved;
}

/* ---- out ----------------------------------------------------------------- */

/* Is the cursor in a buffer on a device? */
static bool device_at(const struct tpr_op *op, const struct tpr_cursor *cursor,
                      struct tpf_buffer *buffer)
{
    return op->work != NULL
           && tpr_message_buffer(op->message, cursor->buffer, buffer)
           && buffer->device.type != TP_DEVICE_CPU;
}

bool tpr_device_cursor_at(struct tpr_op *op, struct tpr_cursor *cursor,
                          unsigned char **data, size_t *left)
{
    const unsigned char *bytes;
    struct tpf_buffer buffer;
    enum tpg_answer answer;

    if (!tpr_cursor_at(op->message, cursor, data, left))
        return false;
    if (TPB_LIKELY(!device_at(op, cursor, &buffer)))
        return true;
    answer = tpg_work_fetch(op->work, cursor->buffer, &buffer, cursor->offset,
                            &bytes, left);
    if (answer == TPG_FAILED)
        op->status = TP_ERR_BACKEND;
    if (answer == TPG_NOW)
        *data = (unsigned char *)(uintptr_t)bytes;
    return answer == TPG_NOW;
}

size_t tpr_device_ahead(struct tpr_op *op, size_t length)
{
    struct tpr_cursor cursor = op->cursor;
    size_t ready = 0;

    if (op->position < op->descriptor_length)
        ready = op->descriptor_length - op->position;
    while (ready < length) {
        struct tpf_buffer buffer;
        unsigned char *data;
        size_t left;

        if (!tpr_device_cursor_at(op, &cursor, &data, &left))
            break;
        ready += left;
        cursor.offset += left;
        /* Only one device buffer's bytes are at hand at a time. */
        if (device_at(op, &cursor, &buffer))
            break;
    }
    if (op->status != TP_OK)
        return 0;
    return ready < length ? ready : length;
}

/* ---- in ------------------------------------------------------------------ */

bool tpr_device_store(struct tpr_op *op, size_t index, size_t offset,
                      const void *bytes, size_t length, const char **text)
{
    struct tpr_cursor cursor = { .buffer = index, .offset = offset };
    struct tpf_buffer buffer;

    tpr_message_buffer(op->message, index, &buffer);
    if (!device_at(op, &cursor, &buffer)) {
        tpb_copy((unsigned char *)buffer.data + offset, bytes, length);
        return true;
    }
    if (tpg_work_store(op->work, index, &buffer, offset, bytes, length)
        == TP_OK)
        return true;
    *text = tpg_work_error(op->work);
    return false;
}
