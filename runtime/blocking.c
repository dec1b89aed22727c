/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The blocking calls: an operation whose waiter is on the caller's stack, and
 * the caller drives until it is over.
 */
#include "config.h"

#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/drive.h"
#include "runtime/futex.h"
#include "runtime/stream.h"

static uint64_t blocking_deadline(int timeout_ms)
{
    if (timeout_ms < 0)
        return 0;
    return tpb_now() + (uint64_t)timeout_ms * 1000000u + 1;
}

static bool blocking_over(struct tpr_sync *sync)
{
    return atomic_load_explicit(&sync->over, memory_order_acquire) != 0;
}

/* The operation of this waiter in a list, or NULL. */
static struct tpr_op *blocking_find(struct tpb_list *list,
                                    struct tpr_sync *sync)
{
    TPB_LIST_EACH(node, list) {
        struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

        if (op->sync == sync)
            return op;
    }
    return NULL;
}

/* The time is up: withdraws the operation, or, where a part of it has
 * happened, closes the pipe.  Ends it in either case. */
static void blocking_withdraw(tp_pipe *pipe, struct tpr_sync *sync)
{
    struct tpr_op *op = blocking_find(&pipe->writes, sync);

    if (op != NULL && !op->begun) {
        tpr_offer_forget(op);
        tpr_op_end(op, TP_ERR_TIMEOUT);
        tpr_tx_pump(pipe);         /* what stood behind it may fit */
        return;
    }
    op = blocking_find(&pipe->armed, sync);
    if (op != NULL) {
        tpr_op_end(op, TP_ERR_TIMEOUT);
        return;
    }
    tpr_pipe_close(pipe, "a message was cut off by a caller's timeout");
}

/* What a caller whose time is up has the holder of the token do, who may not
 * let go of it for long; after one more pass, since the operation may have been
 * left to him just now, too. */
struct blocking_cut {
    struct tpr_task task;
    struct tpr_sync done;
    tp_pipe *pipe;
    struct tpr_sync *sync;
    bool again;
};

static void blocking_cut_off(tp_context *context, struct tpr_task *task)
{
    struct blocking_cut *cut = TPB_CONTAINER(task, struct blocking_cut, task);

    if (!blocking_over(cut->sync)) {
        if (!cut->again) {
            cut->again = true;
            tpr_submit(context, task);
            return;
        }
        blocking_withdraw(cut->pipe, cut->sync);
    }
    tpr_sync_end(context, &cut->done);
    tpr_tell_sleepers(context);
}

/* The caller's time is up, unless the operation has ended meanwhile.  Only the
 * holder may withdraw; it is on our stack, so we wait for it. */
static tp_status blocking_late(tp_pipe *pipe, struct tpr_sync *sync)
{
    tp_context *context = pipe->context;

    while (!blocking_over(sync)) {
        struct blocking_cut cut = {
            .task.run = blocking_cut_off, .pipe = pipe, .sync = sync,
            .done = { .wait = sync->wait, .pipe = pipe }
        };

        tpr_submit(context, &cut.task);
        tpr_drive(context, &cut.done, 0);
        tpr_drive(context, sync, tpb_now() + 1000000);
    }
    return sync->status == TP_ERR_CLOSED ? TP_ERR_TIMEOUT : sync->status;
}

static tp_status blocking_wait(tp_pipe *pipe, struct tpr_sync *sync,
                               int timeout_ms)
{
    return tpr_drive(pipe->context, sync, blocking_deadline(timeout_ms))
           ? sync->status : blocking_late(pipe, sync);
}

tp_status tp_pipe_send_message(tp_pipe *pipe, tp_message *message,
                               int timeout_ms)
{
    struct tpr_sync sync = { .wait = TPB_WAIT_SEND, .pipe = pipe };
    tp_status status;

    if (timeout_ms < -1)
        return TP_ERR_INVALID;
    status = tpr_call_write(pipe, message, NULL, NULL, &sync);
    return status == TP_OK ? blocking_wait(pipe, &sync, timeout_ms) : status;
}

/* The token is held from where the operation begins to where it ends: else it
 * would be taken twice. */
static tp_status blocking_entered(tp_pipe *pipe, struct tpr_sync *sync,
                                  int timeout_ms)
{
    tp_status status = TP_OK;

    if (TPB_UNLIKELY(!tpr_short_arm(pipe, sync)))
        status = tpr_call_descriptor(pipe->context, pipe, NULL, NULL, sync);
    if (TPB_UNLIKELY(status != TP_OK))     /* there is nothing to wait for */
        *sync = (struct tpr_sync){ .over = 1, .status = status };
    return tpr_drive_entered(pipe->context, sync,
                             blocking_deadline(timeout_ms))
           ? sync->status : blocking_late(pipe, sync);
}

/* Waits for the next message, or its skeleton. */
static tp_status blocking_receive(tp_pipe *pipe, struct tpr_sync *sync,
                                  int timeout_ms)
{
    tp_status status;

    if (TPB_LIKELY(tpr_drive_enter(pipe->context)))
        return blocking_entered(pipe, sync, timeout_ms);
    status = tpr_call_descriptor(pipe->context, pipe, NULL, NULL, sync);
    return status == TP_OK ? blocking_wait(pipe, sync, timeout_ms) : status;
}

tp_status tp_pipe_recv_skeleton(tp_pipe *pipe, tp_message **skeleton,
                                int timeout_ms)
{
    struct tpr_sync sync = { .wait = TPB_WAIT_RECEIVE, .pipe = pipe };
    tp_status status;

    if (pipe == NULL || skeleton == NULL || timeout_ms < -1)
        return TP_ERR_INVALID;
    status = blocking_receive(pipe, &sync, timeout_ms);
    if (status == TP_OK)
        *skeleton = sync.message;
    return status;
}

/* What is here already needs no operation. */
static bool blocking_have(tp_pipe *pipe, tp_message *skeleton)
{
    bool taken;

    if (pipe == NULL || skeleton == NULL || !tpr_enter_in_turn(pipe->context))
        return false;
    taken = tpr_aside_take(pipe, skeleton);
    tpr_leave(pipe->context);
    return taken;
}

tp_status tp_pipe_recv_message(tp_pipe *pipe, tp_message *skeleton,
                               int timeout_ms)
{
    struct tpr_sync sync = { .wait = TPB_WAIT_READ, .pipe = pipe };
    tp_status status;

    if (timeout_ms < -1)
        return TP_ERR_INVALID;
    if (blocking_have(pipe, skeleton))
        return TP_OK;
    status = tpr_call_read(pipe, skeleton, false, NULL, NULL, &sync);
    return status == TP_OK ? blocking_wait(pipe, &sync, timeout_ms) : status;
}

tp_status tp_pipe_send(tp_pipe *pipe, const void *data, size_t length)
{
    tp_payload payload = { .data = (void *)(uintptr_t)data,
                           .length = length };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    if (pipe == NULL || (data == NULL && length > 0))
        return TP_ERR_INVALID;
    if (tpr_enter_in_turn(pipe->context)) {
        bool sent = tpr_tx_short(pipe, data, length);

        tpr_leave(pipe->context);
        if (sent)
            return TP_OK;
    }
    return tp_pipe_send_message(pipe, &message, -1);
}

tp_status tp_pipe_recv(tp_pipe *pipe, void *data, size_t capacity,
                       size_t *length)
{
    struct tpr_sync sync = { .direct = true, .data = data,
                             .capacity = capacity,
                             .wait = TPB_WAIT_RECEIVE, .pipe = pipe };
    tp_status status;

    if (pipe == NULL || (data == NULL && capacity > 0))
        return TP_ERR_INVALID;
    status = blocking_receive(pipe, &sync, -1);
    if (length != NULL && (status == TP_OK || status == TP_ERR_TRUNCATED))
        *length = sync.length;
    return status;
}
