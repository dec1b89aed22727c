/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What comes whole in a frame, for callers of tp_pipe_recv_skeleton(): its
 * bytes are set aside, for the caller comes back for them, with
 * tp_pipe_recv_message(), when he likes, and other frames of the conn need not
 * wait for that.  As in short.c, whatever differs goes the way of rx.c.
 */
#include "config.h"

#include "runtime/core.h"
#include "runtime/stream.h"

bool tpr_aside_put(tp_pipe *pipe, struct tpr_op *op,
                   struct tpr_skeleton *skeleton,
                   const struct wire_frame *frame, const unsigned char *data)
{
    struct tpr_sync *sync = op->sync;
    uint32_t length = (uint32_t)skeleton->data_length;
    uint32_t cost = frame->length + (uint32_t)sizeof(*frame);

    if (length == 0)
        pipe->consumed += cost;
    else if (!tpr_rx_set_aside(pipe, frame->flags, data, length, cost))
        return false;
    tpr_short_offer(pipe, op, skeleton);
    pipe->flags = frame->flags;
    op->sync = NULL;
    tpr_op_free(pipe->context, op);
    sync->message = &skeleton->message;
    sync->status = TP_OK;
    return true;
}

/* The one chunk in which all of the message is that the user has; NULL if there
 * are several, or if anything is to be done besides copying it. */
static struct tpr_chunk *aside_chunk(const tp_pipe *pipe)
{
    struct tpr_chunk *chunk;

    if (pipe->skeleton->offers != NULL || tpb_list_empty(&pipe->backlog)
        || !tpb_list_empty(&pipe->reads) || !tpb_list_empty(&pipe->late_link))
        return NULL;
    chunk = TPB_CONTAINER(pipe->backlog.next, struct tpr_chunk, link);
    return chunk->started && chunk->length - chunk->taken == pipe->missing
           && pipe->missing == pipe->skeleton->data_length ? chunk : NULL;
}

bool tpr_aside_take(tp_pipe *pipe, tp_message *message)
{
    struct tpr_skeleton *skeleton = pipe->skeleton;
    tp_message *expected = message;
    struct tpr_chunk *chunk;
    uint64_t length;

    if (pipe->rx_state != TPR_RX_OFFERED || pipe->rx_end != TP_OK
        || pipe->context->closed || pipe->context->open.pipe == pipe
        || atomic_load_explicit(&pipe->offered, memory_order_relaxed)
           != message
        || (chunk = aside_chunk(pipe)) == NULL
        || !tpr_short_is_filled(pipe, message)
        || !atomic_compare_exchange_strong(&pipe->offered, &expected, NULL))
        return false;
    length = skeleton->data_length;
    tpr_short_spread(message, NULL, chunk->bytes + chunk->taken);
    tpr_rx_framed(pipe, length);
    pipe->skeleton = NULL;
    pipe->missing = 0;
    pipe->flags = 0;
    pipe->rx_state = TPR_RX_IDLE;
    tpr_count_received(pipe, length);
    tpr_skeleton_free(skeleton);
    TPR_COUNT(pipe->record->stats.bytes_buffered, -(int64_t)length);
    tpr_rx_forget(pipe, chunk);
    tpr_tx_return_credit(pipe);
    if (TPB_UNLIKELY(!tpb_list_empty(&pipe->backlog)))
        tpr_rx_pump(pipe);
    return true;
}
