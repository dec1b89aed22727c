/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Receiving: frames become messages.
 *
 * A frame is consumed where it lies, in the backend's memory, as far as its
 * pipe's readers go.  What nobody wants yet is copied to the pipe's backlog,
 * which credit bounds.  If the reader's callback asks for the data at once, as
 * most do, nothing is copied but into his buffers.
 */
#include "config.h"

#include <stdio.h>

#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/base/pages.h"
#include "runtime/channels.h"
#include "runtime/contract.h"
#include "runtime/core.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("rx");

enum {
    RX_FRAMES = 64,                /* of one conn per turn */
    RX_GATHER_KEPT = 65536,        /* bytes for the next descriptor */
    RX_ROUNDS = 16                 /* of callbacks over one open frame */
};

/* What rx_step() consumes: of an open frame or of a chunk. */
struct rx_view {
    uint8_t type, flags;
    bool *started;                 /* a MESSAGE has begun to be read */
    const unsigned char *bytes;
    uint32_t length;
    uint32_t *taken;
};

void tpr_rx_break(tp_pipe *pipe, tp_status status, const char *text)
{
    bool tell;

    /* A broken contract that ends the job is told as its end. */
    if (status != TP_ERR_UNREACHABLE || !tpr_contract_ends_job(pipe->context))
        tpb_warn("%s: %s", atomic_load(&pipe->peer->name), text);
    if (status == TP_ERR_PROTOCOL) {
        tpr_rx_drop(pipe, status);
        tpr_peer_end(pipe->peer, status, text);
        return;
    }
    tell = pipe->rx_end != TP_ERR_PEER_CLOSED;
    tpr_pipe_fail(pipe, text);
    tpr_tx_end(pipe, status);
    tpr_rx_drop(pipe, status);
    if (tell && pipe->peer->state == TPR_PEER_CONNECTED)
        tpr_tx_close(pipe);
}

/* There is none for `what`, of so many bytes: where a limit would come from. */
static void rx_no_memory(tp_pipe *pipe, const char *what, uint64_t bytes)
{
    char text[160];

    snprintf(text, sizeof(text), "out of memory: %s of %llu bytes (see ulimit "
             "-v, and the limit of the cgroup)", what,
             (unsigned long long)bytes);
    tpr_rx_break(pipe, TP_ERR_NO_MEMORY, text);
}

/* ---- messages and their readers ----------------------------------------- */

/* The stream has brought all of the message: its read ends, if no channel
 * brings more. */
static void rx_complete(tp_pipe *pipe)
{
    struct tpr_op *op = TPB_CONTAINER(pipe->reads.prev, struct tpr_op, link);

    op->data_length = pipe->skeleton->data_length;
    op->streamed = true;
    tpr_rx_framed(pipe, pipe->skeleton->stream_length);
    pipe->skeleton = NULL;
    pipe->rx_state = TPR_RX_IDLE;
    tpr_pull_settle(op);
}

void tpr_rx_land(tp_pipe *pipe)
{
    while (!tpb_list_empty(&pipe->reads)) {
        struct tpr_op *op = TPB_CONTAINER(pipe->reads.next, struct tpr_op,
                                          link);
        bool queued = op->queued;

        if (op->pulls > 0 || (!op->streamed && op->status == TP_OK))
            return;
        if (op->borrow && op->status == TP_OK)
            tpr_borrow_begin(op);
        /* It was kept behind a pull that could not be stopped. */
        if (TPB_UNLIKELY(pipe->rx_end != TP_OK))
            tpr_borrow_recall_one(op);
        tpr_op_end(op, op->status);
        /* What came by frames may have been whole before the pulls ahead of it
         * were, whose DONEs are kept since. */
        if (!queued)
            tpr_late_tell(pipe);
    }
}

void tpr_rx_begin(tp_pipe *pipe, struct tpr_op *op)
{
    struct tpr_skeleton *skeleton = pipe->skeleton;

    op->kind = TPR_OP_READ;
    op->message = &skeleton->message;
    tpb_list_append(&pipe->reads, &op->link);
    pipe->rx_state = TPR_RX_DATA;
    pipe->cursor = (struct tpr_cursor){ .skip = skeleton->offers };
    op->queued = skeleton->offers != NULL && !op->borrow
                 && (pipe->flags & WIRE_QUEUED) != 0;
    if (TPB_UNLIKELY(skeleton->data_length >= TPB_PAGES_HUGE))
        tpr_rx_pages(pipe, op);
    if (TPB_UNLIKELY((pipe->flags & WIRE_ALONE) != 0))
        tpr_pull_clock(pipe, op);
    if (TPB_UNLIKELY(skeleton->offers != NULL)) {
        /* Nobody is there any more from whom it could be had. */
        if (pipe->rx_end != TP_OK) {
            tpr_rx_drop(pipe, pipe->rx_end);
            return;
        }
        if (!tpr_pull_begin(pipe, op))
            return;
        if (op->status != TP_OK) { /* no memory for what was to be lent */
            tpr_pull_cancel(op, op->status);
            rx_no_memory(pipe, "buffers to borrow", skeleton->data_length);
            return;
        }
    }
    pipe->flags = 0;
    if (pipe->missing == 0)
        rx_complete(pipe);
}

/* tp_pipe_recv(): the caller's one buffer takes all buffers of the message. */
static void rx_direct(tp_pipe *pipe, struct tpr_op *op)
{
    tp_message *message = &pipe->skeleton->message;
    unsigned char *to = op->sync->data;

    tpr_op_clear(op);
    for (size_t i = 0; i < message->payload_count; i++) {
        message->payloads[i].data = to;
        to += message->payloads[i].length;
    }
    for (size_t i = 0; i < message->tensor_count; i++) {
        message->tensors[i].data = to;
        message->tensors[i].device = (tp_device){ TP_DEVICE_CPU, 0 };
        to += message->tensors[i].length;
    }
    tpr_rx_begin(pipe, op);
}

/* Takes a reader for the next message; NULL if there is none. */
static struct tpr_op *rx_reader(tp_pipe *pipe)
{
    tp_context *context = pipe->context;
    struct tpb_list *node = tpb_list_take(&pipe->armed);
    struct tpr_op *op;

    if (node != NULL)
        return TPB_CONTAINER(node, struct tpr_op, link);
    node = pipe->unseen ? NULL : tpb_list_take(&context->any);
    if (node == NULL)
        return NULL;
    op = TPB_CONTAINER(node, struct tpr_op, link);
    op->pipe = pipe;
    TPR_COUNT(pipe->record->stats.reads_pending, 1);
    return op;
}

static bool rx_wanted(const tp_pipe *pipe)
{
    return !tpb_list_empty(&pipe->armed)
           || (!tpb_list_empty(&pipe->context->any) && !pipe->unseen);
}

/* The descriptor is complete: gives the skeleton to the next reader. */
void tpr_rx_offer(tp_pipe *pipe)
{
    struct tpr_skeleton *skeleton = pipe->skeleton;
    struct tpr_op *op;

    pipe->rx_state = TPR_RX_HELD;
    tpr_pull_show(pipe);
    while ((op = rx_reader(pipe)) != NULL) {
        if (op->sync == NULL || !op->sync->direct) {
            pipe->rx_state = TPR_RX_OFFERED;
            op->message = &skeleton->message;
            atomic_store_explicit(&pipe->offered, &skeleton->message,
                                  memory_order_release);
            tpr_op_end(op, TP_OK);
            return;
        }
        op->sync->length = skeleton->data_length;
        if (skeleton->data_length <= op->sync->capacity) {
            rx_direct(pipe, op);
            return;
        }
        tpr_op_end(op, TP_ERR_TRUNCATED);
    }
}

/* ---- the steps ---------------------------------------------------------- */

/* A descriptor has become the pipe's skeleton, or not. */
static bool rx_decoded(tp_pipe *pipe, tp_status status)
{
    if (status != TP_OK) {
        tpr_rx_break(pipe, status, status == TP_ERR_PROTOCOL
                 ? "a descriptor of garbage" : "out of memory for a message");
        return false;
    }
    pipe->missing = pipe->skeleton->stream_length;
    if (pipe->skeleton->offers != NULL) {
        pipe->skeleton->number = tpr_offer_number(&pipe->offered_to_me);
        pipe->offers_seen = true;
    }
    tpr_rx_offer(pipe);
    return pipe->rx_state != TPR_RX_ENDED;     /* else the view is gone */
}

/* The view has one of lent.c. */
static bool rx_lent(tp_pipe *pipe, struct rx_view *view)
{
    tp_status status = tpr_lent_decode(pipe, view->flags, view->bytes,
                                       view->length, &pipe->skeleton);

    *view->taken = view->length;
    return rx_decoded(pipe, status);
}

/* The view has one of small.c. */
static bool rx_small(tp_pipe *pipe, struct rx_view *view)
{
    uint32_t taken = view->length;
    tp_status status = tpr_small_decode(pipe, view->bytes, view->length,
                                        &pipe->skeleton, &taken);

    *view->taken = taken;
    return rx_decoded(pipe, status);
}

static bool rx_start_message(tp_pipe *pipe, struct rx_view *view)
{
    if (view->type != WIRE_MESSAGE) {
        tpr_rx_break(pipe, TP_ERR_PROTOCOL, "data without a message");
        return false;
    }
    if ((view->flags & (WIRE_SHORT | WIRE_TENSOR)) == WIRE_TENSOR
        || (view->flags & (WIRE_TENSOR | WIRE_HOST)) == WIRE_HOST
        || ((view->flags & WIRE_SMALL) != 0 && view->flags != WIRE_SMALL)) {
        tpr_rx_break(pipe, TP_ERR_PROTOCOL, "a frame of garbage");
        return false;
    }
    if (!rx_wanted(pipe))
        return false;
    *view->started = true;
    pipe->flags = view->flags;
    if ((view->flags & (WIRE_SHORT | WIRE_OFFERS))
        == (WIRE_SHORT | WIRE_OFFERS))
        return rx_lent(pipe, view);
    if ((view->flags & WIRE_SMALL) != 0)
        return rx_small(pipe, view);
    if ((view->flags & WIRE_SHORT) == 0) {
        pipe->gathered = 0;
        pipe->rx_state = TPR_RX_DESCRIPTOR;
        return true;
    }
    pipe->skeleton = tpr_skeleton_single(pipe, view->flags, view->length);
    if (pipe->skeleton == NULL) {
        rx_no_memory(pipe, "a message", view->length);
        return false;
    }
    pipe->missing = view->length;
    tpr_rx_offer(pipe);
    return pipe->rx_state != TPR_RX_ENDED;     /* else the view is gone */
}

static bool rx_decode(tp_pipe *pipe, const unsigned char *descriptor,
                      uint64_t length)
{
    return rx_decoded(pipe, tpr_skeleton_decode(pipe, descriptor, length,
                                                &pipe->skeleton));
}

void tpr_rx_gather_drop(tp_pipe *pipe)
{
    tpb_free(pipe->gather);
    pipe->gather = NULL;
    pipe->gather_capacity = 0;
}

static bool rx_gather_grow(tp_pipe *pipe, uint64_t need)
{
    uint64_t capacity = pipe->gather_capacity;
    unsigned char *grown;

    if (need <= capacity)
        return true;
    while (capacity < need)
        capacity = capacity < 4096 ? 4096 : capacity * 2;
    grown = tpb_resize(pipe->gather, capacity);
    if (grown == NULL)
        return false;
    pipe->gather = grown;
    pipe->gather_capacity = capacity;
    return true;
}

/* It is whole.  What a long one took is not kept for the pipe's life. */
static bool rx_gathered(tp_pipe *pipe, uint64_t length)
{
    bool good = rx_decode(pipe, pipe->gather, length);

    if (pipe->gather_capacity > RX_GATHER_KEPT)
        tpr_rx_gather_drop(pipe);
    return good;
}

/* Collects a descriptor; memory grows with what came, not with what is
 * claimed. */
static bool rx_gather(tp_pipe *pipe, struct rx_view *view)
{
    const unsigned char *bytes = view->bytes + *view->taken;
    uint64_t left = view->length - *view->taken, need, length;
    struct wire_descriptor head;

    if (left == 0)
        return false;
    if (pipe->gathered == 0 && left >= sizeof(head)) {
        memcpy(&head, bytes, sizeof(head));
        length = tpr_descriptor_check(&head);
        if (length != 0 && length <= left) {
            *view->taken += (uint32_t)length;
            return rx_decode(pipe, bytes, length);
        }
    }
    need = sizeof(head);
    if (pipe->gathered >= sizeof(head)) {
        memcpy(&head, pipe->gather, sizeof(head));
        need = tpr_descriptor_check(&head);
        if (need == 0) {
            tpr_rx_break(pipe, TP_ERR_PROTOCOL, "a descriptor of garbage");
            return false;
        }
    }
    if (left > need - pipe->gathered)
        left = need - pipe->gathered;
    if (!rx_gather_grow(pipe, pipe->gathered + left)) {
        rx_no_memory(pipe, "a descriptor", need);
        return false;
    }
    tpb_copy(pipe->gather + pipe->gathered, bytes, left);
    pipe->gathered += left;
    *view->taken += (uint32_t)left;
    if (need > sizeof(head) && pipe->gathered == need)
        return rx_gathered(pipe, need);
    if (pipe->gathered == sizeof(head)) {
        memcpy(&head, pipe->gather, sizeof(head));
        if (tpr_descriptor_check(&head) == sizeof(head))
            return rx_gathered(pipe, sizeof(head));
    }
    return true;
}

/* Of a frame that has not been set aside. */
static struct tpb_fetch *rx_fetch(const tp_pipe *pipe)
{
    const struct tpr_open_frame *open = &pipe->context->open;

    return open->pipe == pipe ? open->conn->fetch : NULL;
}

static bool rx_fill(tp_pipe *pipe, struct rx_view *view)
{
    struct tpr_op *op = TPB_CONTAINER(pipe->reads.prev, struct tpr_op, link);
    const unsigned char *bytes = view->bytes + *view->taken;
    size_t left = view->length - *view->taken, room;
    unsigned char *data;

    if (left == 0)
        return false;
    if (!tpr_cursor_at(&pipe->skeleton->message, &pipe->cursor, &data, &room)) {
        tpr_rx_break(pipe, TP_ERR_PROTOCOL, "more data than announced");
        return false;
    }
    if (left > room)
        left = room;
    if (TPB_UNLIKELY(op->work != NULL)) {
        const char *text;

        if (!tpr_device_store(op, pipe->cursor.buffer, pipe->cursor.offset,
                              bytes, left, &text)) {
            tpr_rx_break(pipe, TP_ERR_BACKEND, text);
            return false;
        }
    } else if (data == bytes) {
        /* It has landed there. */
    } else if (TPB_UNLIKELY(pipe->skeleton->stream_length >= TPB_COPY_PAST)) {
        tpb_copy_past(data, bytes, left);
    } else {
        tpb_fetch_copy(rx_fetch(pipe), data, bytes, left);
    }
    pipe->cursor.offset += left;
    *view->taken += (uint32_t)left;
    pipe->missing -= left;
    if (pipe->missing == 0)
        rx_complete(pipe);
    return true;
}

/* One step; false if it cannot go on with this view now. */
static bool rx_step(tp_pipe *pipe, struct rx_view *view)
{
    switch (pipe->rx_state) {
    case TPR_RX_IDLE:
        if (*view->started) {
            /* The frame's message is over, and so must be the frame. */
            if (*view->taken < view->length)
                tpr_rx_break(pipe, TP_ERR_PROTOCOL, "more data than announced");
            return false;
        }
        return rx_start_message(pipe, view);
    case TPR_RX_DESCRIPTOR:
        *view->started = true;
        return rx_gather(pipe, view);
    case TPR_RX_DATA:
        *view->started = true;
        return rx_fill(pipe, view);
    case TPR_RX_HELD:
    case TPR_RX_OFFERED:
        break;
    case TPR_RX_ENDED:
        *view->started = true;
        *view->taken = view->length;
        break;
    }
    return false;
}

/* ---- frames ------------------------------------------------------------- */

static bool rx_keep(tp_pipe *pipe, const struct rx_view *view, uint32_t cost)
{
    uint32_t length = view->length - *view->taken;
    struct tpr_chunk *chunk = tpr_chunk_new(pipe->context, length);

    if (chunk == NULL)
        return false;
    chunk->type = view->type;
    chunk->flags = view->flags;
    chunk->started = *view->started;
    chunk->cost = cost;
    chunk->length = length;
    chunk->taken = 0;
    tpb_copy(chunk->bytes, view->bytes + *view->taken, length);
    tpb_list_append(&pipe->backlog, &chunk->link);
    pipe->kept += cost;
    TPR_COUNT(pipe->record->stats.bytes_buffered, length);
    return true;
}

static void rx_stash(tp_pipe *pipe, const struct rx_view *view, uint32_t cost)
{
    if (!rx_keep(pipe, view, cost))
        rx_no_memory(pipe, "a frame that nobody has read yet,",
                     view->length - *view->taken);
}

void tpr_rx_forget(tp_pipe *pipe, struct tpr_chunk *chunk)
{
    pipe->consumed += chunk->cost;
    pipe->kept -= chunk->cost;
    tpb_list_unlink(&chunk->link);
    tpr_chunk_free(pipe->context, chunk);
}

bool tpr_rx_set_aside(tp_pipe *pipe, unsigned flags, const unsigned char *data,
                      uint32_t length, uint32_t cost)
{
    bool started = true;
    uint32_t taken = 0;
    struct rx_view view = { WIRE_MESSAGE, (uint8_t)flags, &started, data,
                            length, &taken };

    return rx_keep(pipe, &view, cost);
}

/* Is this pipe one that tp_read_descriptor_any() should know of? */
static void rx_note_unread(tp_pipe *pipe)
{
    bool unread = tpb_list_empty(&pipe->armed) && !pipe->unseen
                  && (pipe->rx_state == TPR_RX_HELD
                      || (pipe->rx_state == TPR_RX_IDLE
                          && !tpb_list_empty(&pipe->backlog)));

    if (!unread)
        tpb_list_unlink(&pipe->unread_link);
    else if (tpb_list_empty(&pipe->unread_link))
        tpb_list_append(&pipe->context->unread, &pipe->unread_link);
}

static bool rx_view_used(const struct rx_view *view)
{
    return *view->started && *view->taken == view->length;
}

/* One that waits for nothing but its turn has its data, and keeps it. */
static void rx_cancel(struct tpr_op *op, tp_status status)
{
    if (op->status == TP_OK && (op->pulls > 0 || !op->streamed))
        tpr_pull_cancel(op, status);
}

/* The peer will send no more, and all it sent has been used. */
void tpr_rx_finish(tp_pipe *pipe)
{
    tp_status status = pipe->rx_end;
    struct tpb_list *node;

    while ((node = tpb_list_take(&pipe->armed)) != NULL)
        tpr_op_end(TPB_CONTAINER(node, struct tpr_op, link), status);
    if (pipe->rx_state == TPR_RX_HELD)
        tpr_skeleton_free(pipe->skeleton);
    pipe->skeleton = NULL;
    pipe->rx_state = TPR_RX_ENDED;
    TPB_LIST_EACH(read, &pipe->reads)
        rx_cancel(TPB_CONTAINER(read, struct tpr_op, link), status);
    tpr_rx_land(pipe);
    tpb_list_unlink(&pipe->unread_link);
}

/* Goes on with the backlog as far as readers go. */
void tpr_rx_pump(tp_pipe *pipe)
{
    if (TPB_UNLIKELY(pipe->pumping))
        return;                    /* the pipe ends within a step */
    /* Nobody waited for it when it was whole; who waits for any has come since,
     * and the pipe was not among those that have something unread. */
    if (pipe->rx_state == TPR_RX_HELD && rx_wanted(pipe))
        tpr_rx_offer(pipe);
    while (!tpb_list_empty(&pipe->backlog)) {
        struct tpr_chunk *chunk = TPB_CONTAINER(pipe->backlog.next,
                                                struct tpr_chunk, link);
        struct rx_view view = { chunk->type, chunk->flags, &chunk->started,
                                chunk->bytes, chunk->length, &chunk->taken };
        uint32_t before = chunk->taken;

        pipe->pumping = true;
        while (rx_step(pipe, &view))
            ;
        pipe->pumping = false;
        if (tpb_list_empty(&pipe->backlog))
            return;                /* rx_break() has dropped it */
        TPR_COUNT(pipe->record->stats.bytes_buffered, -(int64_t)(chunk->taken
                                                          - before));
        if (!rx_view_used(&view))
            break;
        tpr_rx_forget(pipe, chunk);
        tpr_tx_return_credit(pipe);
    }
    if (pipe->rx_end != TP_OK && tpb_list_empty(&pipe->backlog)
        && pipe->rx_state != TPR_RX_ENDED
        && pipe->rx_state != TPR_RX_OFFERED
        && !(pipe->rx_state == TPR_RX_HELD && pipe->missing == 0))
        tpr_rx_finish(pipe);
    else if (TPB_UNLIKELY(pipe->rx_end != TP_OK)
             && pipe->rx_end != TP_ERR_PEER_CLOSED
             && pipe->rx_state == TPR_RX_OFFERED)
        tpr_rx_end_idle(pipe);
    rx_note_unread(pipe);
}

static void rx_pop(struct tpf_conn *conn)
{
    conn->backend->pop(conn);
}

/* Ends the open frame: what is left of it goes to the backlog. */
void tpr_rx_stash_open(tp_context *context)
{
    struct tpr_open_frame *open = &context->open;
    tp_pipe *pipe = open->pipe;
    struct rx_view view = { open->type, open->flags, &open->started,
                            open->bytes, open->length, &open->taken };
    uint32_t cost = open->length + (uint32_t)sizeof(struct wire_frame);

    open->pipe = NULL;
    open->offered = open->lent = open->small = NULL;
    if (open->read != NULL) {
        if (open->read->borrow)
            tpr_borrow_begin(open->read);
        if (open->read->borrow && pipe->rx_end != TP_OK)
            tpr_borrow_recall_one(open->read);
        tpb_list_append(&context->done, &open->read->link);
    } else if (open->spare != NULL) {
        tpr_op_free(context, open->spare);
    }
    open->read = open->spare = NULL;
    if (rx_view_used(&view) || pipe->rx_state == TPR_RX_ENDED) {
        pipe->consumed += cost;
        rx_pop(open->conn);
        if (pipe->peer->conn != NULL)
            tpr_tx_return_credit(pipe);
        /* tpr_rx_end() left it to us; or who waited for the message went, and
         * no frame of it will come: the next reader is to find it. */
        if (pipe->rx_end != TP_OK || pipe->rx_state == TPR_RX_HELD)
            tpr_rx_pump(pipe);
        return;
    }
    rx_stash(pipe, &view, cost);
    rx_pop(open->conn);
    tpr_rx_pump(pipe);
}

/* The open frame: steps, and callbacks in between, so that a reader may ask
 * for the data while it still lies in the backend's memory. */
void tpr_rx_run_open(tp_context *context)
{
    struct tpr_open_frame *open = &context->open;
    tp_pipe *pipe = open->pipe;
    struct rx_view view = { open->type, open->flags, &open->started,
                            open->bytes, open->length, &open->taken };

    /* Callbacks that go on and on, as each asks for what ends at once, keep
     * nobody here. */
    for (int round = 0; round < RX_ROUNDS; round++) {
        while (rx_step(pipe, &view))
            ;
        if (rx_view_used(&view) || context->env.calls
            || tpb_list_empty(&context->done))
            break;
        tpr_dispatch(context);
        if (open->pipe == NULL)
            return;                /* stashed by a nested wait */
    }
    tpr_rx_stash_open(context);
}

/* Does the peer keep to its credit, which bounds the backlog?  What of the pipe
 * is not in the backlog has been consumed, of which it may not know yet; a
 * frame that finds nothing there may always come. */
static bool rx_may_keep(const tp_pipe *pipe, const struct tpf_conn *conn,
                        uint32_t cost)
{
    return (uint64_t)pipe->kept + cost <= conn->window + conn->window_spread;
}

/*
 * Does it begin a message that nobody waits for yet, while a callback that has
 * just run may be what a caller waits for, who then asks for the next message?
 * Until then that is better left where it is: a short one is given to him there
 * and not copied twice, and copying several frames aside, in step with their
 * sender, would keep him here.  Once: callbacks of others could keep it there
 * for ever, and what is behind it.
 */
static bool rx_is_early(const tp_context *context, const tp_pipe *pipe,
                        const struct tpf_conn *conn,
                        const struct wire_frame *frame)
{
    return context->delivered != context->delivered_before
           && frame->type == WIRE_MESSAGE && pipe->rx_state == TPR_RX_IDLE
           && pipe->left_at != pipe->consumed
           && tpb_list_empty(&pipe->backlog) && !rx_wanted(pipe)
           && conn->landing == NULL;
}

static void rx_stream_frame(tp_pipe *pipe, struct tpf_conn *conn,
                            const struct wire_frame *frame,
                            const unsigned char *body)
{
    tp_context *context = pipe->context;
    uint32_t cost = frame->length + (uint32_t)sizeof(*frame);

    if (tpb_list_empty(&pipe->backlog)) {
        struct tpr_open_frame *open = &context->open;

        open->pipe = pipe;         /* spare and read are NULL between frames */
        open->conn = conn;
        open->type = frame->type;
        open->flags = frame->flags;
        open->started = false;
        open->bytes = body;
        open->length = frame->length;
        open->taken = 0;
        tpr_rx_run_open(context);
    } else if (TPB_UNLIKELY(!rx_may_keep(pipe, conn, cost))) {
        rx_pop(conn);
        tpr_rx_break(pipe, TP_ERR_PROTOCOL, "it sends more than it may");
    } else {
        bool started = false;
        uint32_t taken = 0;
        struct rx_view view = { frame->type, frame->flags, &started, body,
                                frame->length, &taken };

        rx_stash(pipe, &view, cost);
        rx_pop(conn);
    }
}

/* DONE, ASK, PUSH, CALL or RELEASE.  Pops it. */
static void rx_about_frame(tp_pipe *pipe, struct tpf_conn *conn,
                           const struct wire_frame *frame,
                           const unsigned char *body)
{
    bool release = frame->type == WIRE_RELEASE;
    size_t head = release ? sizeof(struct wire_release)
                          : sizeof(struct wire_about);
    size_t length = frame->length - head;
    bool good = frame->length >= head;
    struct wire_about about = { .message = 0 };

    if (good) {
        memcpy(&about, body, release ? sizeof(about.message) : head);
        body += head;
    }
    if (good && (release || frame->type == WIRE_DONE))
        good = tpr_offer_done(pipe, &about);
    else if (good && frame->type == WIRE_ASK)
        good = tpr_offer_asked(pipe, &about, (const char *)body, length);
    else if (good && frame->type == WIRE_CALL)
        good = tpr_offer_called(pipe, &about, body, length);
    else if (good)
        good = tpr_pull_pushed(pipe, &about, body, length);
    if (frame->type == WIRE_PUSH)
        pipe->consumed += frame->length + (uint32_t)sizeof(*frame);
    rx_pop(conn);
    if (!good)
        tpr_peer_end(pipe->peer, TP_ERR_PROTOCOL,
                     "it speaks of buffers that it does not have");
    else if (frame->type == WIRE_PUSH)
        tpr_tx_return_credit(pipe);
}

/* A frame for a pipe.  Pops it, or leaves it for the next pass. */
static void rx_pipe_frame(struct tpr_peer *peer, struct tpf_conn *conn,
                          const struct wire_frame *frame,
                          const unsigned char *body)
{
    tp_pipe *pipe = tpr_pipe_of(peer, frame->number);

    if (TPB_UNLIKELY(pipe == NULL)) {
        if (peer->guest != NULL) {
            rx_pop(conn);
            tpr_peer_end(peer, TP_ERR_PROTOCOL, "a frame of no pipe");
            return;
        }
        pipe = tpr_pipe_get(peer, frame->number);
    }
    if (pipe == NULL) {
        rx_pop(conn);
        tpr_peer_end(peer, TP_ERR_NO_MEMORY, "out of memory for a pipe");
        return;
    }
    if (TPB_UNLIKELY(pipe->context->closing) && pipe->rx_end == TP_OK)
        tpr_rx_drop(pipe, TP_ERR_CLOSED);      /* a new one */
    if (TPB_UNLIKELY(peer->wished != frame->wishes)) {
        peer->wished = frame->wishes;
        peer->stamps = 0;
        peer->tasted = 0;
        tpr_tx_brief(peer);
    }
    tpr_tx_credit(pipe, frame->credit);
    pipe->offers_seen |= (frame->flags & WIRE_OFFERS) != 0;
    if (TPB_UNLIKELY(frame->type > WIRE_BYE)) {
        rx_about_frame(pipe, conn, frame, body);
    } else if (frame->type == WIRE_CREDIT || pipe->closed) {
        rx_pop(conn);
        if (frame->type == WIRE_CLOSE)
            tpr_pipe_both_closed(pipe);
    } else if (frame->type == WIRE_CLOSE) {
        rx_pop(conn);
        tpr_pipe_fail(pipe, "the peer closed the pipe");
        tpr_tx_end(pipe, TP_ERR_PEER_CLOSED);
        tpr_rx_end(pipe, TP_ERR_PEER_CLOSED);
        tpr_pull_tell_all(pipe, false);
        /* Its only pipe: there is nothing more to say on this conn, but that it
         * has its memory back. */
        if (peer->guest != NULL && !pipe->tell_due)
            tpr_peer_end(peer, TP_ERR_PEER_CLOSED, "the peer closed the pipe");
    } else if (pipe->rx_end != TP_OK) {
        /* The pipe broke here, or nobody reads it any more: the peer shall not
         * wait for us. */
        rx_pop(conn);
        pipe->consumed += frame->length + (uint32_t)sizeof(*frame);
        tpr_tx_return_credit(pipe);
        if ((frame->flags & WIRE_OFFERS) != 0)
            tpr_pull_tell_all(pipe, true);
    } else if (TPB_UNLIKELY(rx_is_early(pipe->context, pipe, conn, frame))) {
        pipe->left_at = pipe->consumed;
        pipe->context->served = true;
    } else {
        rx_stream_frame(pipe, conn, frame, body);
    }
}

static void rx_frame(struct tpr_peer *peer, struct tpf_conn *conn,
                     const unsigned char *bytes, size_t size)
{
    struct wire_frame frame;

    if (size < sizeof(frame)) {
        rx_pop(conn);
        tpr_peer_end(peer, TP_ERR_PROTOCOL, "a frame of garbage");
        return;
    }
    memcpy(&frame, bytes, sizeof(frame));
    if (frame.length != size - sizeof(frame) || frame.type < WIRE_MESSAGE
        || frame.type > WIRE_LAST
        || ((frame.flags & (WIRE_SHORT | WIRE_TENSOR | WIRE_HOST
                            | WIRE_SMALL)) != 0
            && frame.type != WIRE_MESSAGE)) {
        rx_pop(conn);
        tpr_peer_end(peer, TP_ERR_PROTOCOL, "a frame of garbage");
    } else if (frame.type == WIRE_BYE) {
        tpr_hello_bye(peer, bytes + sizeof(frame), frame.length);
        rx_pop(conn);
    } else {
        rx_pipe_frame(peer, conn, &frame,
                      TPB_LIKELY(conn->landing == NULL)
                          ? bytes + sizeof(frame) : tpr_landed(conn));
    }
}

/* One that tpr_short_serve() leaves to others. */
static void rx_other(tp_context *context, struct tpf_conn *conn,
                     const unsigned char *frame, size_t size)
{
    struct tpr_peer *peer = conn->peer;

    if (peer == NULL || peer->state != TPR_PEER_CONNECTED) {
        if (conn->landing == NULL)
            tpr_hello_frame(context, conn, frame, size);
        rx_pop(conn);
    } else {
        rx_frame(peer, conn, frame, size);
    }
}

/* True if it may have more frames.  *vain: it had none. */
static bool rx_serve(tp_context *context, struct tpf_conn *conn, bool *vain)
{
    for (int left = RX_FRAMES; left > 0; left--) {
        const unsigned char *frame;
        enum tpr_short what;
        size_t size;

        what = tpr_short_serve(context, conn, &left, &frame, &size);
        if (what == TPR_SHORT_NONE) {
            *vain = left == RX_FRAMES;
            if (conn->backend->coming != NULL)
                tpr_land(conn);
            return false;
        }
        if (what == TPR_SHORT_OTHER)
            rx_other(context, conn, frame, size);
        if (conn->peer == NULL)
            return false;          /* it ended; the conn is buried */
        if (!context->env.calls && !tpb_list_empty(&context->done))
            tpr_dispatch(context);
        if (conn->peer == NULL)
            return false;
        /* A waiting caller has what it wanted, or may have.  It may ask for the
         * next frame in a moment: until then that is better left. */
        if (context->served || tpr_turn_takes_long(context, left))
            break;
    }
    return true;
}

/* Serves one conn that has frames; puts it back if it may have more.  False: a
 * callback waits, in the middle of serving conns; this one had no frames. */
bool tpr_rx_conn(tp_context *context, struct tpf_conn *conn)
{
    struct tpf_conn *before = context->serving;
    bool vain = false;

    context->serving = conn;
    if (conn->backend->glance != NULL)
        context->hot = conn;
    if (rx_serve(context, conn, &vain))
        tpf_conn_ready(conn);
    context->serving = before;
    tpf_gathered(&context->env);
    return before == NULL || !vain;
}
