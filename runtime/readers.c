/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Receiving, from the reader's side: who waits for a message, where its bytes
 * shall go, and what becomes of both when the pipe ends.  How frames become
 * messages is in rx.c.
 */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/base/pages.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

void tpr_rx_arm(tp_pipe *pipe, struct tpr_op *op)
{
    tpr_peer_use(pipe, false);
    if (pipe->rx_state == TPR_RX_ENDED) {
        tpr_op_end(op, pipe->rx_end);
        return;
    }
    tpb_list_append(&pipe->armed, &op->link);
    if (pipe->rx_state == TPR_RX_HELD)
        tpr_rx_offer(pipe);
    if (pipe->context->open.pipe != pipe)
        tpr_rx_pump(pipe);
}

void tpr_rx_arm_any(tp_context *context, struct tpr_op *op)
{
    struct tpb_list *node;

    if (TPB_UNLIKELY(!context->listens))
        tpr_peer_listen(context);
    tpb_list_append(&context->any, &op->link);
    /* A pipe that has more stands at the end again: they take turns.  One may
     * turn out to have only a part of a message: then it is the next one's. */
    while (!tpb_list_empty(&context->any)
           && (node = tpb_list_take(&context->unread)) != NULL) {
        tp_pipe *pipe = TPB_CONTAINER(node, tp_pipe, unread_link);

        if (pipe->rx_state == TPR_RX_HELD)
            tpr_rx_offer(pipe);
        if (context->open.pipe != pipe)
            tpr_rx_pump(pipe);
    }
}

void tpr_rx_pages(tp_pipe *pipe, const struct tpr_op *op)
{
    const tp_message *message = op->message;

    if (op->borrow)
        return;
    for (size_t i = 0; i < message->payload_count; i++)
        tpb_pages_huge(message->payloads[i].data, message->payloads[i].length,
                       &pipe->resident);
    for (size_t i = 0; i < message->tensor_count; i++)
        if (message->tensors[i].device.type == TP_DEVICE_CPU)
            tpb_pages_huge(message->tensors[i].data,
                           message->tensors[i].length, &pipe->resident);
}

/* The skeleton was claimed by tpr_skeleton_claim(). */
void tpr_rx_read(tp_pipe *pipe, struct tpr_op *op)
{
    if (pipe->rx_state != TPR_RX_OFFERED
        || op->message != &pipe->skeleton->message) {
        /* In its turn, behind reads that are not over yet. */
        op->status = pipe->closed ? TP_ERR_CLOSED : pipe->rx_end;
        if (TPB_UNLIKELY(op->status == TP_OK)) {
            op->message = NULL;    /* another thread has read it meanwhile */
            op->status = TP_ERR_INVALID;
        }
        tpb_list_append(&pipe->reads, &op->link);
        tpr_rx_land(pipe);
        return;
    }
    if (TPB_UNLIKELY(op->borrow)
        && pipe->skeleton->data_length >= TPR_BORROWED)
        pipe->peer->wishes |= WIRE_KEEPS;
    /* It would have been there sooner in its frame. */
    if (TPB_UNLIKELY(pipe->skeleton->offers != NULL) && !op->borrow
        && pipe->skeleton->data_length < TPR_BORROWED_MOST)
        pipe->peer->wishes &= (uint16_t)~WIRE_BORROWS;
    if (TPB_UNLIKELY(op->work != NULL || op->status != TP_OK)
        && !tpr_device_may_read(pipe, op))
        return;
    tpr_rx_begin(pipe, op);
    if (pipe->context->open.pipe != pipe)
        tpr_rx_pump(pipe);
}

/* ---- the end ------------------------------------------------------------ */

/* Is it where a message begins, of which nothing has been used yet? */
static bool readers_begins(const struct tpr_chunk *chunk)
{
    return chunk->type == WIRE_MESSAGE && !chunk->started;
}

bool tpr_rx_has_all(const tp_pipe *pipe)
{
    uint64_t there = 0;

    if (pipe->skeleton->offers != NULL)
        return false;              /* a channel was to bring some */
    TPB_LIST_EACH(node, &pipe->backlog) {
        const struct tpr_chunk *chunk = TPB_CONTAINER(node, struct tpr_chunk,
                                                      link);

        if (readers_begins(chunk))
            break;                 /* the next message's */
        there += chunk->length - chunk->taken;
    }
    return there >= pipe->missing;
}

/* Is its descriptor there, of which `have` bytes or more have come? */
static bool readers_described(const struct tpr_chunk *first, uint64_t have)
{
    struct wire_descriptor head;

    if ((first->flags & (WIRE_SHORT | WIRE_SMALL)) != 0)
        return true;
    if (first->length < sizeof(head))
        return false;
    memcpy(&head, first->bytes, sizeof(head));
    return have >= tpr_descriptor_check(&head);
}

/* The messages in the backlog that can be told of. */
static unsigned readers_arrived(const tp_pipe *pipe)
{
    const struct tpr_chunk *first = NULL;
    unsigned arrived = 0;
    uint64_t have = 0;

    TPB_LIST_EACH(link, &pipe->backlog) {
        const struct tpr_chunk *chunk = TPB_CONTAINER(link, struct tpr_chunk,
                                                      link);

        if (readers_begins(chunk)) {
            first = chunk;
            have = 0;
            arrived++;
        }
        have += chunk->length;
    }
    /* The last one may have been cut off. */
    if (first != NULL && !readers_described(first, have))
        arrived--;
    return arrived;
}

void tpr_rx_end_idle(tp_pipe *pipe)
{
    struct tpb_list *node = pipe->armed.next, *next;
    unsigned arrived = readers_arrived(pipe);

    for (; node != &pipe->armed; node = next) {
        next = node->next;
        if (arrived > 0) {
            arrived--;
            continue;
        }
        tpb_list_unlink(node);
        tpr_op_end(TPB_CONTAINER(node, struct tpr_op, link), pipe->rx_end);
    }
}

void tpr_rx_end(tp_pipe *pipe, tp_status status)
{
    if (pipe->rx_end == TP_OK)
        pipe->rx_end = status;
    /* What a channel was to bring does not come any more, nor what is behind
     * it. */
    TPB_LIST_EACH(node, &pipe->reads)
        if (TPB_CONTAINER(node, struct tpr_op, link)->pulls > 0) {
            tpr_rx_drop(pipe, pipe->rx_end);
            return;
        }
    if (pipe->context->open.pipe != pipe)
        tpr_rx_pump(pipe);
}

void tpr_rx_drop(tp_pipe *pipe, tp_status status)
{
    pipe->rx_end = status;
    while (!tpb_list_empty(&pipe->backlog))
        tpr_rx_forget(pipe, TPB_CONTAINER(pipe->backlog.next,
                                          struct tpr_chunk, link));
    __atomic_store_n(&pipe->record->stats.bytes_buffered, 0, __ATOMIC_RELAXED);
    if (pipe->rx_state == TPR_RX_OFFERED)
        pipe->skeleton = NULL;     /* it is with the user */
    if (pipe->rx_state != TPR_RX_ENDED)
        tpr_rx_finish(pipe);
    tpr_tx_return_credit(pipe);
}
