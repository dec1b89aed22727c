/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Frames whose bodies are received where the reader wants them, by backends
 * that can (coming() and land() of fabric/backend.h).
 *
 * The body counts among the read's `pulls` until it is there: a read that ends
 * before keeps its memory for that long, as it does for a channel.
 */
#include "config.h"

#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

/* The read that the next bytes of the pipe's stream are for, and would go to
 * one place; else NULL. */
static struct tpr_op *land_read(tp_pipe *pipe, size_t length, void **to)
{
    struct tpr_op *op;
    unsigned char *data;
    size_t room;

    if (pipe->rx_state != TPR_RX_DATA || pipe->rx_end != TP_OK || pipe->closed
        || !tpb_list_empty(&pipe->backlog)
        || pipe->context->open.pipe == pipe || pipe->missing < length)
        return NULL;
    op = TPB_CONTAINER(pipe->reads.prev, struct tpr_op, link);
    if (op->work != NULL || op->status != TP_OK || op->landing
        || !tpr_cursor_at(&pipe->skeleton->message, &pipe->cursor, &data,
                          &room)
        || room < length)
        return NULL;
    *to = data;
    return op;
}

static struct tpr_op *land_find(struct tpf_conn *conn, const void *bytes,
                                size_t head, size_t size, void **to)
{
    struct tpr_peer *peer = conn->peer;
    struct wire_frame frame;
    tp_pipe *pipe;

    if (head != sizeof(frame) || peer == NULL
        || peer->state != TPR_PEER_CONNECTED)
        return NULL;
    memcpy(&frame, bytes, sizeof(frame));
    if (frame.type != WIRE_DATA || frame.length != size - head)
        return NULL;
    pipe = tpr_pipe_of(peer, frame.number);
    return pipe != NULL ? land_read(pipe, frame.length, to) : NULL;
}

void tpr_land(struct tpf_conn *conn)
{
    size_t head, size;
    const void *bytes = conn->backend->coming(conn, &head, &size);
    struct tpr_op *op;
    void *to = NULL;

    if (bytes == NULL)
        return;
    op = land_find(conn, bytes, head, size, &to);
    if (op != NULL) {
        op->landing = true;
        op->pulls++;
    }
    conn->landing = op;
    conn->landed = to;
    conn->backend->land(conn, to);
}

void *tpr_landed(struct tpf_conn *conn)
{
    struct tpr_op *op = conn->landing;

    conn->landing = NULL;
    tpr_pull_landed(op);
    return conn->landed;
}
