/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The asynchronous calls.  Each checks its arguments, makes an operation, and
 * hands it to the machinery: at once if the token is free, else as a task.
 */
#include "config.h"

#include <stdio.h>

#include "runtime/base/alloc.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

static uint64_t pipe_data_length(const tp_message *message)
{
    uint64_t total = 0;

    for (size_t i = 0; i < message->payload_count; i++)
        total += message->payloads[i].length;
    for (size_t i = 0; i < message->tensor_count; i++)
        total += message->tensors[i].length;
    return total;
}

/* ---- handing over ------------------------------------------------------- */

static void pipe_op_start(struct tpr_op *op)
{
    tp_pipe *pipe = op->pipe;

    switch (op->kind) {
    case TPR_OP_WRITE:
        TPR_COUNT(pipe->record->stats.writes_pending, 1);
        tpr_tx_write(pipe, op);
        break;
    case TPR_OP_DESCRIPTOR:
        if (pipe == NULL) {
            tpr_rx_arm_any(op->context, op);
        } else {
            TPR_COUNT(pipe->record->stats.reads_pending, 1);
            tpr_rx_arm(pipe, op);
        }
        break;
    case TPR_OP_READ:
        TPR_COUNT(pipe->record->stats.reads_pending, 1);
        tpr_rx_read(pipe, op);
        break;
    }
}

static void pipe_op_run(tp_context *context, struct tpr_task *task)
{
    struct tpr_op *op = TPB_CONTAINER(task, struct tpr_op, task);

    /* Left behind while the context closed: it still gets its end. */
    if (context->closed)
        tpr_op_end(op, TP_ERR_CLOSED);
    else
        pipe_op_start(op);
}

/*
 * What a call wants becomes an operation.  pipe_op() takes the token if it is
 * free, and an operation; the caller sets the rest of its first part (see
 * core.h) by pipe_op_set(), and pipe_op_go() hands it over.
 */
static tp_status pipe_op(tp_context *context, bool *mine,
                         struct tpr_op **result)
{
    struct tpr_op *op;

    *mine = tpr_enter_in_turn(context);
    if (TPB_UNLIKELY(*mine && context->closed)) {
        tpr_leave(context);
        return TP_ERR_INVALID;
    }
    op = *mine ? tpr_op_new(context) : tpr_op_alloc(context);
    if (TPB_UNLIKELY(op == NULL)) {
        if (*mine)
            tpr_leave(context);
        return TP_ERR_NO_MEMORY;
    }
    *result = op;
    return TP_OK;
}

/* All of its first part, as it is where nothing else is said. */
static void pipe_op_set(struct tpr_op *op, enum tpr_op_kind kind,
                        tp_pipe *pipe, tp_message_fn *done, void *arg,
                        struct tpr_sync *sync)
{
    op->kind = kind;
    op->status = TP_OK;
    op->pipe = pipe;
    op->message = NULL;
    op->done = done;
    op->arg = arg;
    op->sync = sync;
    op->work = NULL;
    op->data_length = op->descriptor_length = 0;
}

static void pipe_op_go(struct tpr_op *op, bool mine)
{
    tp_context *context = op->context;

    if (mine) {
        pipe_op_start(op);
        tpr_leave(context);
    } else {
        op->task.run = pipe_op_run;
        tpr_submit(context, &op->task);
    }
}

tp_status tpr_call_write(tp_pipe *pipe, tp_message *message,
                         tp_message_fn *done, void *arg,
                         struct tpr_sync *sync)
{
    struct tpg_work *work;
    struct tpr_op *op;
    tp_status claimed, status;
    bool mine;

    if (pipe == NULL)
        return TP_ERR_INVALID;
    if (!tpr_message_valid(message)) {
        tpr_message_tell(pipe, message);
        return TP_ERR_INVALID;
    }
    if (sync != NULL && tpr_short_at_once(pipe, message)) {
        sync->status = TP_OK;
        atomic_store_explicit(&sync->over, 1, memory_order_relaxed);
        return TP_OK;
    }
    claimed = tpr_device_claim(pipe, message, false, &work);
    if (claimed == TP_ERR_INVALID || claimed == TP_ERR_NO_MEMORY)
        return claimed;
    status = pipe_op(pipe->context, &mine, &op);
    if (TPB_UNLIKELY(status != TP_OK)) {
        tpg_work_end(work);
        return status;
    }
    pipe_op_set(op, TPR_OP_WRITE, pipe, done, arg, sync);
    op->status = claimed;          /* told in its turn */
    op->message = message;
    op->work = work;
    op->data_length = pipe_data_length(message);
    op->descriptor_length = tpr_descriptor_length(message);
    pipe_op_go(op, mine);
    return TP_OK;
}

tp_status tpr_call_descriptor(tp_context *context, tp_pipe *pipe,
                              tp_message_fn *arrived, void *arg,
                              struct tpr_sync *sync)
{
    struct tpr_op *op;
    tp_status status;
    bool mine;

    if (context == NULL || (arrived == NULL && sync == NULL))
        return TP_ERR_INVALID;
    status = pipe_op(context, &mine, &op);
    if (TPB_UNLIKELY(status != TP_OK))
        return status;
    pipe_op_set(op, TPR_OP_DESCRIPTOR, pipe, arrived, arg, sync);
    pipe_op_go(op, mine);
    return TP_OK;
}

tp_status tpr_call_read(tp_pipe *pipe, tp_message *skeleton, bool borrow,
                        tp_message_fn *done, void *arg,
                        struct tpr_sync *sync)
{
    tp_status status, claimed;
    struct tpg_work *work;
    struct tpr_op *op;
    bool mine;

    if (pipe == NULL || skeleton == NULL)
        return TP_ERR_INVALID;
    if (!tpr_skeleton_claim(pipe, skeleton, borrow)) {
        tpr_skeleton_tell(pipe, skeleton);
        return TP_ERR_INVALID;
    }
    if (borrow && !tpr_borrow_prepare(pipe->context, skeleton)) {
        tpr_skeleton_unclaim(pipe, skeleton);
        return TP_ERR_NO_MEMORY;
    }
    claimed = tpr_device_claim(pipe, skeleton, true, &work);
    status = claimed == TP_ERR_INVALID || claimed == TP_ERR_NO_MEMORY
             ? claimed : pipe_op(pipe->context, &mine, &op);
    if (TPB_UNLIKELY(status != TP_OK)) {
        tpg_work_end(work);
        tpr_skeleton_unclaim(pipe, skeleton);
        return status;
    }
    pipe_op_set(op, TPR_OP_READ, pipe, done, arg, sync);
    op->status = claimed;          /* told in its turn */
    op->message = skeleton;
    op->work = work;
    op->borrow = borrow;
    pipe_op_go(op, mine);
    return TP_OK;
}

/* ---- opening and closing ------------------------------------------------ */

tp_status tp_pipe_open(tp_context *context, int rank, unsigned number,
                       tp_pipe **result)
{
    struct tpr_peer *peer;
    tp_pipe *pipe;

    if (context == NULL || result == NULL || rank < 0
        || rank >= context->size)
        return TP_ERR_INVALID;
    peer = tpr_peer_get(context, rank);
    pipe = peer == NULL ? NULL : tpr_pipe_get(peer, number);
    if (pipe == NULL)
        return TP_ERR_NO_MEMORY;
    *result = pipe;
    return TP_OK;
}

tp_status tp_pipe_to_rank(tp_context *context, int rank, tp_pipe **pipe)
{
    return tp_pipe_open(context, rank, 0, pipe);
}

/* Ends the pipe from this side; token. */
void tpr_pipe_close(tp_pipe *pipe, const char *why)
{
    bool tell;

    if (pipe->closed)
        return;
    pipe->closed = true;
    tpr_pipe_fail(pipe, why);
    tell = pipe->rx_end == TP_OK && pipe->tx_end == TP_OK
           && pipe->peer->state != TPR_PEER_ENDED;
    pipe->tx_end = TP_ERR_CLOSED;
    tpr_tx_end(pipe, TP_ERR_CLOSED);
    tpr_rx_drop(pipe, TP_ERR_CLOSED);
    if (tell)
        tpr_tx_close(pipe);
    if (pipe->peer->guest != NULL)
        tpr_guest_closed(pipe->peer);
}

static void pipe_close_run(tp_context *context, struct tpr_task *task)
{
    (void)context;
    tpr_pipe_close(TPB_CONTAINER(task, tp_pipe, closer),
                   "this side closed the pipe");
}

void tpr_pipe_both_closed(tp_pipe *pipe)
{
    const struct wire_about all = { .message = WIRE_ALL };

    tpr_offer_done(pipe, &all);
    if (pipe->peer->guest != NULL)
        tpr_peer_end(pipe->peer, TP_ERR_PEER_CLOSED,
                     "the peer closed the pipe");
}

tp_status tp_pipe_close(tp_pipe *pipe)
{
    if (pipe == NULL)
        return TP_ERR_INVALID;
    if (tpr_enter_in_turn(pipe->context)) {
        tpr_pipe_close(pipe, "this side closed the pipe");
        tpr_leave(pipe->context);
        return TP_OK;
    }
    if (!atomic_exchange(&pipe->closing, true)) {
        pipe->closer.run = pipe_close_run;
        tpr_submit(pipe->context, &pipe->closer);
    }
    return TP_OK;
}

/* ---- words -------------------------------------------------------------- */

void tpr_pipe_fail(tp_pipe *pipe, const char *text)
{
    char *copy;

    if (*atomic_load(&pipe->error) != '\0')
        return;                    /* the first cause counts */
    copy = tpb_copy_string(text);
    atomic_store(&pipe->error, copy != NULL ? copy : "out of memory");
    pipe->error_owned = copy != NULL;
}

void tpr_pipe_refuse(tp_pipe *pipe, const char *text)
{
    char *copy, *none = NULL;

    if (atomic_load(&pipe->refusal) != NULL)
        return;
    copy = tpb_copy_string(text);
    if (!atomic_compare_exchange_strong(&pipe->refusal, &none, copy))
        tpb_free(copy);
}

void tpr_pipe_lean(tp_pipe *pipe)
{
    tpr_rx_gather_drop(pipe);
    tpr_skeletons_fini(pipe);
}

static bool pipe_is_of_any(const tp_pipe *pipe, struct tpb_list *ops)
{
    TPB_LIST_EACH(node, ops)
        if (TPB_CONTAINER(node, struct tpr_op, link)->pipe == pipe)
            return true;
    return false;
}

bool tpr_pipe_is_over(const tp_pipe *pipe)
{
    tp_context *context = pipe->context;

    return tpb_list_empty(&pipe->writes) && tpb_list_empty(&pipe->landing)
           && tpb_list_empty(&pipe->pushes) && tpb_list_empty(&pipe->armed)
           && tpb_list_empty(&pipe->reads) && tpb_list_empty(&pipe->turns)
           && tpb_list_empty(&pipe->device_link) && pipe->lent == 0
           && context->open.pipe != pipe
           && !pipe_is_of_any(pipe, &context->device_reads)
           && !pipe_is_of_any(pipe, &context->done);
}

void tpr_pipe_fini(tp_pipe *pipe)
{
    struct tpr_skeleton *offered
        = (struct tpr_skeleton *)(void *)atomic_load(&pipe->offered);
    struct tpb_list *node;

    while ((node = tpb_list_take(&pipe->backlog)) != NULL)
        tpb_free(TPB_CONTAINER(node, struct tpr_chunk, link));
    /* A skeleton that the user still has is not in the pool. */
    if (pipe->skeleton != NULL && pipe->skeleton != offered)
        tpr_skeleton_free(pipe->skeleton);
    if (offered != NULL)
        tpr_skeleton_free(offered);
    tpr_tx_notes_drop(pipe);
    tpr_skeletons_fini(pipe);
    tpb_list_unlink(&pipe->late_link);
    tpb_free(pipe->late);
    tpr_rx_gather_drop(pipe);
    tpb_free(atomic_load(&pipe->refusal));
    if (pipe->error_owned)
        tpb_free((char *)(uintptr_t)atomic_load(&pipe->error));
    tpb_free(pipe);
}

int tp_pipe_rank(const tp_pipe *pipe)
{
    return pipe == NULL ? -1 : pipe->peer->rank;
}

const char *tp_pipe_peer(const tp_pipe *pipe)
{
    return pipe == NULL ? "" : atomic_load(&pipe->peer->name);
}

const char *tp_pipe_error(const tp_pipe *pipe)
{
    const char *error = "", *refusal = NULL;

    if (pipe != NULL) {
        error = atomic_load(&pipe->error);
        refusal = atomic_load(&pipe->refusal);
    }
    return *error == '\0' && refusal != NULL ? refusal : error;
}

tp_status tp_pipe_stats(const tp_pipe *pipe, struct tp_stats *stats)
{
    const char *transport;

    if (pipe == NULL || stats == NULL)
        return TP_ERR_INVALID;
    memset(stats, 0, sizeof(*stats));
    tpr_record_stats(pipe, stats);
    transport = atomic_load(&pipe->peer->transport);
    snprintf(stats->transport, sizeof(stats->transport), "%s", transport);
    return TP_OK;
}
