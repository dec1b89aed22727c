/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The straight path of short messages: one payload, nothing else, in one frame.
 *
 * Here is what happens where nothing is in the way: nothing is queued on the
 * pipe, the callback that waits gets the message where it lies in the backend's
 * memory, reads it at once and arms again.  Whatever differs goes the way of
 * tx.c and rx.c, which leads to the same; each function says so by returning
 * false, before it has changed anything.  Ten or twenty million times a second
 * each instruction counts, so all of it stands in one file, to be one function
 * per call.
 */
#include "config.h"

#include "runtime/core.h"

/* ---- the token ---------------------------------------------------------- */

/* As tpr_enter_in_turn(), but who is inside a callback enters nothing, and has
 * nothing to leave: `held`. */
static inline bool short_enter(tp_context *context, bool *held)
{
    *held = tpr_holds(context);
    if (TPB_UNLIKELY(!*held))
        return tpr_enter_token(context);
    return atomic_load_explicit(&context->tasks, memory_order_relaxed) == NULL;
}

static inline void short_leave(tp_context *context, bool held)
{
    if (TPB_UNLIKELY(!held))
        tpr_leave_token(context);
}

/* ---- writing ------------------------------------------------------------ */

static inline bool short_is_plain(const tp_message *message)
{
    return message != NULL && message->payload_count == 1
           && message->tensor_count == 0 && message->metadata_length == 0
           && message->payloads != NULL
           && message->payloads[0].metadata_length == 0
           && (message->payloads[0].data != NULL
               || message->payloads[0].length == 0);
}

/* Its frame is under way. */
static inline bool short_send(tp_pipe *pipe, const tp_payload *payload)
{
    const struct tpr_peer *peer = pipe->peer;
    struct tpf_conn *conn = peer->conn;
    size_t length = payload->length, size = sizeof(struct wire_frame) + length;
    struct wire_frame frame = { .type = WIRE_MESSAGE, .flags = WIRE_SHORT,
                                .wishes = peer->wishes,
                                .number = pipe->number,
                                .credit = pipe->consumed,
                                .length = (uint32_t)length };
    uint32_t under_way = pipe->sent - pipe->acknowledged;

    if (length >= peer->brief || pipe->tx_end != TP_OK
        || !tpb_list_empty(&pipe->writes) || !tpb_list_empty(&pipe->landing)
        || (under_way != 0 && under_way + size > conn->window)
        || !tpf_post(conn, &frame, payload->data, length))
        return false;
    pipe->advertised = pipe->consumed;
    pipe->sent += (uint32_t)size;
    TPR_COUNT(pipe->record->stats.messages_sent, 1);
    TPR_COUNT(pipe->record->stats.bytes_sent, length);
    return true;
}

static inline bool short_write(tp_pipe *pipe, tp_message *message,
                               tp_message_fn *done, void *arg)
{
    tp_context *context = pipe->context;
    struct tpr_op *op = NULL;
    bool held, sent;

    if (!short_enter(context, &held))
        return false;
    sent = !context->closed
           && (done == NULL || (op = tpr_op_bare(context)) != NULL)
           && short_send(pipe, &message->payloads[0]);
    if (TPB_UNLIKELY(!sent)) {
        if (op != NULL)
            tpr_op_free(context, op);
    } else if (op != NULL) {
        tpr_op_bare_set(op, TPR_OP_WRITE, pipe, message, done, arg);
        tpb_list_append(&context->done, &op->link);
    }
    short_leave(context, held);
    return sent;
}

tp_status tp_pipe_write(tp_pipe *pipe, tp_message *message,
                        tp_message_fn *done, void *arg)
{
    if (TPB_LIKELY(pipe != NULL && short_is_plain(message)
                   && short_write(pipe, message, done, arg)))
        return TP_OK;
    return tpr_call_write(pipe, message, done, arg, NULL);
}

/* ---- arming ------------------------------------------------------------- */

/* Nothing is there to be given to it, and the pipe is in order. */
static inline bool short_can_arm(const tp_pipe *pipe)
{
    return pipe->peer->state == TPR_PEER_CONNECTED
           && pipe->rx_state != TPR_RX_HELD && pipe->rx_end == TP_OK
           && tpb_list_empty(&pipe->backlog)
           && tpb_list_empty(&pipe->unread_link);
}

static inline bool short_arm(tp_pipe *pipe, tp_message_fn *arrived, void *arg)
{
    tp_context *context = pipe->context;
    struct tpr_op *op = NULL;
    bool held;

    if (!short_enter(context, &held))
        return false;
    if (TPB_LIKELY(!context->closed && short_can_arm(pipe)
                   && (op = tpr_op_bare(context)) != NULL)) {
        tpr_op_bare_set(op, TPR_OP_DESCRIPTOR, pipe, NULL, arrived, arg);
        tpb_list_append(&pipe->armed, &op->link);
        TPR_COUNT(pipe->record->stats.reads_pending, 1);
    }
    short_leave(context, held);
    return op != NULL;
}

tp_status tp_pipe_read_descriptor(tp_pipe *pipe, tp_message_fn *arrived,
                                  void *arg)
{
    if (pipe == NULL || arrived == NULL)
        return TP_ERR_INVALID;
    if (TPB_LIKELY(short_arm(pipe, arrived, arg)))
        return TP_OK;
    return tpr_call_descriptor(pipe->context, pipe, arrived, arg, NULL);
}

/* ---- reading ------------------------------------------------------------ */

/*
 * The message that lies in the open frame, whose reader is being told of it
 * right now, see tpr_short_take().  He has the token.
 */
static inline bool short_read(tp_pipe *pipe, tp_message *message,
                              tp_message_fn *done, void *arg)
{
    struct tpr_open_frame *open = &pipe->context->open;
    const tp_payload *payload;
    struct tpr_op *op = open->spare;

    if (!tpr_holds(pipe->context) || open->offered != message
        || open->pipe != pipe || pipe->rx_state != TPR_RX_OFFERED
        || atomic_load_explicit(&pipe->offered, memory_order_relaxed)
           != message
        || message->payload_count != 1 || message->tensor_count != 0)
        return false;
    payload = &message->payloads[0];
    if (payload->length != open->length
        || (payload->data == NULL && open->length > 0))
        return false;
    /* No exchange: whoever claims it in another thread reads the same message
     * twice, and is told so by tpr_rx_read(). */
    atomic_store_explicit(&pipe->offered, NULL, memory_order_relaxed);
    tpb_copy(payload->data, open->bytes, open->length);
    open->taken = open->length;
    open->offered = NULL;
    open->spare = NULL;
    open->read = op;
    pipe->skeleton = NULL;
    pipe->missing = 0;
    pipe->rx_state = TPR_RX_IDLE;
    TPR_COUNT(pipe->record->stats.messages_received, 1);
    TPR_COUNT(pipe->record->stats.bytes_received, open->length);
    op->kind = TPR_OP_READ;
    op->done = done;
    op->arg = arg;
    return true;
}

tp_status tp_pipe_read(tp_pipe *pipe, tp_message *skeleton,
                       tp_message_fn *done, void *arg)
{
    if (TPB_LIKELY(pipe != NULL && skeleton != NULL && done != NULL
                   && short_read(pipe, skeleton, done, arg)))
        return TP_OK;
    return tpr_call_read(pipe, skeleton, false, done, arg, NULL);
}

/* ---- arriving ----------------------------------------------------------- */

/* The next frame's pipe, if the frame is a whole short message of a rank's
 * ready-made pipe, and says nothing else. */
static inline tp_pipe *short_pipe(struct tpr_peer *peer,
                                  const struct wire_frame *frame, size_t size)
{
    tp_pipe *pipe = atomic_load_explicit(&peer->ready_made,
                                         memory_order_acquire);

    if (frame->type != WIRE_MESSAGE || frame->flags != WIRE_SHORT
        || frame->wishes != peer->wished || frame->number != 0
        || frame->length != size - sizeof(*frame) || pipe == NULL)
        return NULL;
    if (TPB_UNLIKELY(frame->credit != pipe->acknowledged))
        tpr_tx_credit(pipe, frame->credit);
    return pipe;
}

/* A callback waits for it, and nothing is before either. */
static inline bool short_wanted(const tp_pipe *pipe)
{
    const tp_context *context = pipe->context;

    return pipe->rx_state == TPR_RX_IDLE && pipe->rx_end == TP_OK
           && !pipe->closed && !context->closing && !context->dispatching
           && !tpb_list_empty(&pipe->armed) && tpb_list_empty(&pipe->backlog)
           && tpb_list_empty(&pipe->reads) && tpb_list_empty(&context->done)
           && TPB_CONTAINER(pipe->armed.next, struct tpr_op, link)->sync
              == NULL;
}

static inline void short_open(tp_pipe *pipe, struct tpf_conn *conn,
                              struct tpr_skeleton *skeleton,
                              const unsigned char *body)
{
    struct tpr_open_frame *open = &pipe->context->open;
    uint32_t length = (uint32_t)skeleton->data_length;
    struct tpr_op *op = TPB_CONTAINER(pipe->armed.next, struct tpr_op, link);

    tpb_list_unlink(&op->link);
    op->status = TP_OK;
    op->message = &skeleton->message;
    open->pipe = pipe;             /* `read` is NULL between frames */
    open->conn = conn;
    open->type = WIRE_MESSAGE;
    open->flags = WIRE_SHORT;
    open->started = true;
    open->bytes = body;
    open->length = length;
    open->taken = 0;
    open->spare = op;
    open->offered = &skeleton->message;
    pipe->skeleton = skeleton;
    pipe->missing = length;
    pipe->rx_state = TPR_RX_OFFERED;
    atomic_store_explicit(&pipe->offered, &skeleton->message,
                          memory_order_release);
    TPR_COUNT(pipe->record->stats.reads_pending, -1);
}

/* The frame's reader has been told: true if he read it, as most do. */
static inline bool short_was_read(tp_context *context)
{
    struct tpr_open_frame *open = &context->open;
    struct tpr_op *spare = open->spare;

    open->offered = NULL;
    if (TPB_UNLIKELY(spare != NULL)) {
        open->spare = NULL;
        tpr_op_free(context, spare);
    }
    return open->read != NULL && open->pipe->rx_end == TP_OK;
}

/* Its frame goes, then its reader is told that it is over. */
static inline void short_end(tp_pipe *pipe, struct tpf_conn *conn)
{
    tp_context *context = pipe->context;
    struct tpr_open_frame *open = &context->open;
    struct tpr_op *read = open->read;
    tp_message *message = read->message;
    tp_message_fn *done = read->done;
    void *arg = read->arg;

    open->read = NULL;
    open->pipe = NULL;
    pipe->consumed += open->length + (uint32_t)sizeof(struct wire_frame);
    conn->backend->pop(conn);
    if (TPB_UNLIKELY(pipe->consumed - pipe->advertised >= conn->window / 4))
        tpr_tx_return_credit(pipe);
    /* Most callbacks begin the next operation, and find its memory in the
     * cache. */
    tpr_op_free(context, read);
    done(pipe, TP_OK, message, arg);
}

bool tpr_short_take(struct tpr_peer *peer, struct tpf_conn *conn,
                    const unsigned char *bytes, size_t size)
{
    struct tpr_skeleton *skeleton;
    struct wire_frame frame;
    tp_context *context;
    struct tpr_op *op;
    tp_pipe *pipe;

    if (size < sizeof(frame))
        return false;
    memcpy(&frame, bytes, sizeof(frame));
    pipe = short_pipe(peer, &frame, size);
    if (pipe == NULL || !short_wanted(pipe)
        || (skeleton = tpr_skeleton_short(pipe, frame.length)) == NULL)
        return false;
    short_open(pipe, conn, skeleton, bytes + sizeof(frame));
    context = pipe->context;
    op = context->open.spare;
    context->dispatching = true;
    context->depth++;
    op->done(pipe, TP_OK, &skeleton->message, op->arg);
    tpr_op_told(context, 1);
    if (TPB_LIKELY(context->open.pipe != NULL && short_was_read(context))) {
        short_end(pipe, conn);
        tpr_op_told(context, 1);
        tpr_skeleton_put(skeleton);
    }
    context->depth--;
    context->dispatching = false;
    if (TPB_UNLIKELY(context->open.pipe != NULL))
        tpr_rx_run_open(context);
    return true;
}
