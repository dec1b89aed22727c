/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The straight path of short messages: one payload, nothing else, in one frame;
 * and beside it those of one tensor of the host's memory, and of what has
 * metadata or not one buffer (small.c).  What is sent is in short_write.c.
 *
 * Here is what happens where nothing is in the way: nothing is queued on the
 * pipe, the callback that waits gets the message where it lies in the backend's
 * memory, reads it at once and arms again; or a caller of tp_pipe_recv() has it
 * copied from there.  Whatever differs goes the way of
 * tx.c and rx.c, which leads to the same; each function says so by returning
 * false, before it has changed anything.  Ten or twenty million times a second
 * each instruction counts, so all of it stands together, to be one function
 * per call.
 */
#include "config.h"

#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

/* ---- arming ------------------------------------------------------------- */

/* If nothing is there to be given to it, and the pipe is in order. */
static inline __attribute__((always_inline)) bool
short_arm(tp_pipe *pipe, tp_message_fn *arrived, void *arg,
          struct tpr_sync *sync)
{
    tp_context *context = pipe->context;
    struct tpr_op *op = tpr_short_op(context);

    if (TPB_UNLIKELY(context->closed || op == NULL)
        || pipe->peer->state != TPR_PEER_CONNECTED
        || pipe->rx_state == TPR_RX_HELD || pipe->rx_end != TP_OK
        || !tpb_list_empty(&pipe->backlog)
        || !tpb_list_empty(&pipe->unread_link))
        return false;
    tpr_short_op_take(context);
    tpr_op_bare_set(op, TPR_OP_DESCRIPTOR, pipe, NULL, arrived, arg);
    if (sync != NULL)
        op->sync = sync;
    tpb_list_append(&pipe->armed, &op->link);
    TPR_COUNT(pipe->record->stats.reads_pending, 1);
    return true;
}

static __attribute__((noinline)) bool
short_arm_outside(tp_pipe *pipe, tp_message_fn *arrived, void *arg)
{
    bool armed;

    if (!tpr_enter_token(pipe->context))
        return false;
    armed = short_arm(pipe, arrived, arg, NULL);
    tpr_leave_token(pipe->context);
    return armed;
}

bool tpr_short_arm(tp_pipe *pipe, struct tpr_sync *sync)
{
    return short_arm(pipe, NULL, NULL, sync);
}

tp_status tp_pipe_read_descriptor(tp_pipe *pipe, tp_message_fn *arrived,
                                  void *arg)
{
    if (pipe == NULL || arrived == NULL)
        return TP_ERR_INVALID;
    if (TPB_LIKELY(tpr_holds(pipe->context))
        ? tpr_short_in_turn(pipe->context)
          && short_arm(pipe, arrived, arg, NULL)
        : short_arm_outside(pipe, arrived, arg))
        return TP_OK;
    return tpr_call_descriptor(pipe->context, pipe, arrived, arg, NULL);
}

/* The same for a message on any pipe, in a callback. */
static inline bool short_arm_any(tp_context *context, tp_message_fn *arrived,
                                 void *arg)
{
    struct tpr_op *op = tpr_short_op(context);

    if (context->closed || op == NULL || !context->listens
        || !tpb_list_empty(&context->unread))
        return false;
    tpr_short_op_take(context);
    tpr_op_bare_set(op, TPR_OP_DESCRIPTOR, NULL, NULL, arrived, arg);
    tpb_list_append(&context->any, &op->link);
    return true;
}

tp_status tp_read_descriptor_any(tp_context *context, tp_message_fn *arrived,
                                 void *arg)
{
    if (context != NULL && arrived != NULL && tpr_holds(context)
        && tpr_short_in_turn(context) && short_arm_any(context, arrived, arg))
        return TP_OK;
    return tpr_call_descriptor(context, NULL, arrived, arg, NULL);
}

/* ---- reading ------------------------------------------------------------ */

/* Its reader has asked for the message of the open frame, and has it now. */
static inline void short_have(tp_pipe *pipe, uint64_t length, bool borrow,
                              tp_message_fn *done, void *arg)
{
    struct tpr_open_frame *open = &pipe->context->open;
    struct tpr_op *op = open->spare;

    /* No exchange: whoever claims it in another thread reads the same message
     * twice, and is told so by tpr_rx_read(). */
    atomic_store_explicit(&pipe->offered, NULL, memory_order_relaxed);
    open->spare = NULL;
    open->read = op;
    pipe->skeleton = NULL;
    pipe->missing = 0;
    pipe->rx_state = TPR_RX_IDLE;
    tpr_count_received(pipe, length);
    op->kind = TPR_OP_READ;
    op->done = done;
    op->arg = arg;
    op->borrow = borrow;
}

/* Nobody else has it; and nothing was asked for before that is still to be
 * done, as to arm the pipe again: its next message would be for any reader. */
static inline bool short_is_offered(const tp_pipe *pipe,
                                    const tp_message *message)
{
    return pipe->context->open.pipe == pipe
           && tpr_short_in_turn(pipe->context)
           && pipe->rx_state == TPR_RX_OFFERED
           && atomic_load_explicit(&pipe->offered, memory_order_relaxed)
              == message;
}

/* ... and it is as it was: one payload, or one tensor. */
static inline bool short_may_read(const tp_pipe *pipe,
                                  const tp_message *message, size_t tensors)
{
    return short_is_offered(pipe, message)
           && message->payload_count == 1 - tensors
           && message->tensor_count == tensors;
}

/* One that was copied and might have been lent: its sender shall know. */
static __attribute__((noinline, cold)) void short_wish(struct tpr_peer *peer)
{
    if (peer->lend != NULL)        /* and so may the other way */
        peer->wishes |= WIRE_BORROWS | WIRE_KEEPS;
}

/* Memory for a message of so many bytes that is copied; or NULL. */
static inline void short_borrow(tp_pipe *pipe, tp_message *message,
                                void **data, uint32_t length)
{
    *data = length == 0 ? NULL : tpr_borrow_copy(message, length);
    if (length >= TPR_BORROWED && (pipe->peer->wishes & WIRE_BORROWS) == 0)
        short_wish(pipe->peer);
}

/* The last that is done, so that its caller has nothing to keep meanwhile. */
static __attribute__((noinline)) tp_status
short_copy(void *to, const struct tpr_open_frame *open)
{
    tpb_fetch_copy(open->conn->fetch, to, open->bytes, open->length);
    tpr_rx_framed(open->pipe, open->length);
    return TP_OK;
}

static inline tp_status short_bytes(const struct tpr_open_frame *open, void *to)
{
    if (TPB_LIKELY(open->length >= 8 && open->length <= 16)) {
        tpb_copy(to, open->bytes, open->length);
        return TP_OK;
    }
    return open->length == 0 ? TP_OK : short_copy(to, open);
}

/* What lies in the open frame goes to *data, or to memory for the borrower.
 * False: there is none, nothing is done; else the bytes are to be copied. */
static inline __attribute__((always_inline)) bool
short_read_data(tp_pipe *pipe, tp_message *message, void **data, bool borrow,
                tp_message_fn *done, void *arg)
{
    struct tpr_open_frame *open = &pipe->context->open;
    uint32_t length = open->length;

    if (borrow)
        short_borrow(pipe, message, data, length);
    if (*data == NULL && length > 0)
        return false;
    open->taken = length;
    open->offered = NULL;
    short_have(pipe, length, borrow, done, arg);
    return true;
}

/*
 * The message that lies in the open frame, whose reader is being told of it
 * right now, see short_take().  He has the token.  False: nothing is done;
 * else its bytes are to be copied.
 */
static inline __attribute__((always_inline)) bool
short_read(tp_pipe *pipe, tp_message *message, bool borrow,
           tp_message_fn *done, void *arg)
{
    const struct tpr_open_frame *open = &pipe->context->open;

    return open->offered == message && short_may_read(pipe, message, 0)
           && message->payloads[0].length == open->length
           && short_read_data(pipe, message, &message->payloads[0].data,
                              borrow, done, arg);
}

/* The tensor is the host's memory for sure, and so is what is read to. */
static inline bool short_is_here(const tp_pipe *pipe, const tp_tensor *tensor)
{
    return tensor->device.type == TP_DEVICE_CPU && tensor->device.index == 0
           && tpg_absent(pipe->context->gpu);
}

/* The same of a tensor, with its bytes. */
static bool short_read_tensor(tp_pipe *pipe, tp_message *message, bool borrow,
                              tp_message_fn *done, void *arg)
{
    const struct tpr_open_frame *open = &pipe->context->open;
    tp_tensor *tensor = message->tensors;

    return open->offered == message && short_may_read(pipe, message, 1)
           && tensor->length == open->length && short_is_here(pipe, tensor)
           && short_read_data(pipe, message, &tensor->data, borrow, done, arg)
           && short_bytes(open, tensor->data) == TP_OK;
}

bool tpr_short_is_filled(const tp_pipe *pipe, const tp_message *message)
{
    uint64_t left = pipe->skeleton->data_length;

    for (size_t i = 0; i < message->payload_count; i++) {
        const tp_payload *payload = &message->payloads[i];

        if ((payload->data == NULL && payload->length > 0)
            || payload->length > left)
            return false;
        left -= payload->length;
    }
    for (size_t i = 0; i < message->tensor_count; i++) {
        const tp_tensor *tensor = &message->tensors[i];

        if ((tensor->data == NULL && tensor->length > 0)
            || tensor->length > left || !short_is_here(pipe, tensor))
            return false;
        left -= tensor->length;
    }
    return left == 0;
}

static inline const unsigned char *short_part(struct tpb_fetch *fetch,
                                              void *to,
                                              const unsigned char *from,
                                              size_t length)
{
    tpb_fetch_copy(fetch, to, from, length);
    return from + length;
}

void tpr_short_spread(const tp_message *message, struct tpb_fetch *fetch,
                      const unsigned char *from)
{
    for (size_t i = 0; i < message->payload_count; i++)
        from = short_part(fetch, message->payloads[i].data, from,
                          message->payloads[i].length);
    for (size_t i = 0; i < message->tensor_count; i++)
        from = short_part(fetch, message->tensors[i].data, from,
                          message->tensors[i].length);
}

/* The same of one that has metadata, or not one buffer. */
static bool short_read_small(tp_pipe *pipe, tp_message *message,
                             tp_message_fn *done, void *arg)
{
    struct tpr_open_frame *open = &pipe->context->open;
    const unsigned char *from = open->bytes + open->taken;

    if (open->small != message || !short_is_offered(pipe, message)
        || !tpr_short_is_filled(pipe, message))
        return false;
    open->small = NULL;
    open->taken = open->length;
    short_have(pipe, pipe->skeleton->data_length, false, done, arg);
    tpr_short_spread(message, open->conn->fetch, from);
    return true;
}

/* The same of one that lies at its sender: what is offered, and where its
 * reader says that the buffer is; or NULL. */
static inline struct tpr_offer *short_offer(const tp_pipe *pipe,
                                            const tp_message *message,
                                            void ***data)
{
    const struct tpr_open_frame *open = &pipe->context->open;
    size_t tensors = (open->flags & WIRE_TENSOR) != 0, length;
    struct tpr_offer *offer;

    if (open->lent != message || !short_may_read(pipe, message, tensors)
        || pipe->rx_end != TP_OK || pipe->peer->links == NULL)
        return NULL;
    offer = pipe->skeleton->offers;
    if (tensors == 0) {
        length = message->payloads[0].length;
        *data = &message->payloads[0].data;
    } else if (short_is_here(pipe, &message->tensors[0])) {
        length = message->tensors[0].length;
        *data = &message->tensors[0].data;
    } else {
        return NULL;
    }
    return length == offer->length ? offer : NULL;
}

/* Reads one that lies at its sender by mapping it. */
static bool short_map(tp_pipe *pipe, tp_message *message, tp_message_fn *done,
                      void *arg)
{
    void **data;
    struct tpr_offer *offer = short_offer(pipe, message, &data);
    struct tpf_buffer buffer = { .data = NULL };
    struct tpf_link *link;
    struct tpb_error error;

    if (offer == NULL)
        return false;
    link = pipe->peer->links->of[offer->channel].link;
    if (link == NULL || link->kind->map == NULL
        || link->kind->map(link, offer->source, offer->source_length,
                           offer->length, &buffer, &offer->hold, &error)
           != TPF_PULL_DONE)
        return false;
    offer->borrowed = true;
    pipe->peer->wishes |= WIRE_KEEPS;
    *data = buffer.data;
    pipe->context->open.lent = NULL;
    pipe->flags = 0;
    short_have(pipe, offer->length, true, done, arg);
    return true;
}

/* ... whose buffer is fetched from there now. */
static bool short_pull(tp_pipe *pipe, tp_message *message, tp_message_fn *done,
                       void *arg)
{
    struct tpr_open_frame *open = &pipe->context->open;
    struct tpr_skeleton *skeleton = pipe->skeleton;
    bool queued = (pipe->flags & WIRE_QUEUED) != 0;
    const struct tpr_offer *offer;
    uint64_t length;
    void **data;

    offer = short_offer(pipe, message, &data);
    if (offer == NULL || *data == NULL)
        return false;
    length = offer->length;
    /* From here on another thread that reads it, too, is told so. */
    atomic_store_explicit(&pipe->offered, NULL, memory_order_relaxed);
    if (!tpr_pull_at_once(pipe, skeleton, *data)) {
        atomic_store_explicit(&pipe->offered, message, memory_order_release);
        return false;
    }
    if (length < TPR_BORROWED_MOST)
        pipe->peer->wishes &= (uint16_t)~WIRE_BORROWS;
    open->lent = NULL;
    pipe->flags = 0;
    short_have(pipe, length, false, done, arg);
    open->read->data_length = length;
    open->read->number = skeleton->number;
    open->read->queued = queued;
    open->read->position = pipe->shown;
    tpr_pull_was_at_once(open->read);
    return true;
}

/* What does not lie in the open frame; with registers of its own. */
static __attribute__((noinline)) tp_status
short_read_other(tp_pipe *pipe, tp_message *skeleton, tp_message_fn *done,
                 void *arg)
{
    if (pipe != NULL && skeleton != NULL && done != NULL
        && tpr_holds(pipe->context)
        && (short_read_small(pipe, skeleton, done, arg)
            || short_read_tensor(pipe, skeleton, false, done, arg)
            || short_pull(pipe, skeleton, done, arg)))
        return TP_OK;
    return tpr_call_read(pipe, skeleton, false, done, arg, NULL);
}

tp_status tp_pipe_read(tp_pipe *pipe, tp_message *skeleton,
                       tp_message_fn *done, void *arg)
{
    if (TPB_LIKELY(pipe != NULL && skeleton != NULL && done != NULL
                   && tpr_holds(pipe->context))
        && short_read(pipe, skeleton, false, done, arg))
        return short_bytes(&pipe->context->open,
                           skeleton->payloads[0].data);
    return short_read_other(pipe, skeleton, done, arg);
}

tp_status tp_pipe_borrow(tp_pipe *pipe, tp_message *skeleton,
                         tp_message_fn *done, void *arg)
{
    if (done == NULL)
        return TP_ERR_INVALID;     /* nobody could give it back */
    if (TPB_LIKELY(pipe != NULL && skeleton != NULL
                   && tpr_holds(pipe->context))
        && short_read(pipe, skeleton, true, done, arg))
        return short_bytes(&pipe->context->open,
                           skeleton->payloads[0].data);
    if (TPB_LIKELY(pipe != NULL && skeleton != NULL
                   && tpr_holds(pipe->context))
        && (short_map(pipe, skeleton, done, arg)
            || short_read_tensor(pipe, skeleton, true, done, arg)))
        return TP_OK;
    return tpr_call_read(pipe, skeleton, true, done, arg, NULL);
}

/* ---- arriving ----------------------------------------------------------- */

/* Is the frame a whole short message of a rank's ready-made pipe, and says
 * nothing else?  What all of these have in common is compared at once. */
static inline bool short_is_whole(const struct tpr_peer *peer,
                                  const tp_pipe *pipe,
                                  const unsigned char *bytes,
                                  const struct wire_frame *frame, size_t size)
{
    const uint64_t same = tpr_frame_word(WIRE_MESSAGE, WIRE_SHORT,
                                         peer->wished, 0);
    uint64_t first;

    memcpy(&first, bytes, sizeof(first));
    return first == same && frame->length == size - sizeof(*frame)
           && pipe != NULL;
}

/* One that says nothing besides. */
static inline bool short_is_mere(const struct tpr_peer *peer,
                                 const tp_pipe *pipe,
                                 const struct wire_frame *frame, size_t size)
{
    return frame->wishes == peer->wished
           && frame->length == size - sizeof(*frame) && pipe != NULL;
}

/* Of these: one of lent.c's, ... */
static inline bool short_is_lent(const struct wire_frame *frame)
{
    return (frame->flags & (WIRE_SHORT | WIRE_OFFERS | WIRE_SHARED
                            | WIRE_SMALL)) == (WIRE_SHORT | WIRE_OFFERS)
           && frame->type == WIRE_MESSAGE;
}

/* ... a whole short message of one tensor, ... */
static inline bool short_is_tensor(const struct wire_frame *frame)
{
    return (frame->flags & ~WIRE_HOST) == (WIRE_SHORT | WIRE_TENSOR)
           && frame->type == WIRE_MESSAGE;
}

/* ... one with metadata, or of some buffers, ... */
static inline bool short_is_small(const struct wire_frame *frame)
{
    return frame->flags == WIRE_SMALL && frame->type == WIRE_MESSAGE;
}

/* ... or what gives one of ours back. */
static inline bool short_is_release(const struct wire_frame *frame)
{
    return frame->type == WIRE_RELEASE && frame->flags == 0
           && frame->length == sizeof(struct wire_release);
}

/* What it says of credit may end writes, whose callbacks come first. */
static inline bool short_credit(tp_pipe *pipe, uint32_t credit)
{
    if (TPB_LIKELY(credit == pipe->acknowledged))
        return true;
    tpr_tx_credit(pipe, credit);
    return tpb_list_empty(&pipe->context->done);
}

/* Who waits for the pipe's next message, or for any pipe's; there is one. */
static inline struct tpr_op *short_reader(const tp_pipe *pipe)
{
    const struct tpb_list *armed = TPB_LIKELY(!tpb_list_empty(&pipe->armed))
                                   ? &pipe->armed : &pipe->context->any;

    return TPB_CONTAINER(armed->next, struct tpr_op, link);
}

/* Somebody does, and nothing is before either. */
static inline bool short_awaited(const tp_context *context,
                                 const tp_pipe *pipe)
{
    return pipe->rx_state == TPR_RX_IDLE && pipe->rx_end == TP_OK
           && !context->closing
           && (TPB_LIKELY(!tpb_list_empty(&pipe->armed))
               || (!tpb_list_empty(&context->any) && !pipe->unseen))
           && tpb_list_empty(&pipe->backlog) && tpb_list_empty(&pipe->reads);
}

/* ... and it is a callback. */
static inline bool short_wanted(const tp_context *context,
                                const tp_pipe *pipe)
{
    return short_awaited(context, pipe) && short_reader(pipe)->sync == NULL;
}

/* One that is whole in its frame: nor is there what is to be told before it,
 * DONEs that late.c keeps while their stream goes on. */
static inline bool short_is_due(const tp_context *context, tp_pipe *pipe,
                                const struct wire_frame *frame)
{
    return short_credit(pipe, frame->credit) && short_awaited(context, pipe)
           && tpb_list_empty(&pipe->late_link);
}

/* ... to a callback, or a caller of tp_pipe_recv_skeleton(). */
static inline bool short_is_next(const tp_context *context, tp_pipe *pipe,
                                 const struct wire_frame *frame)
{
    return short_is_due(context, pipe, frame)
           && (short_reader(pipe)->sync == NULL
               || !short_reader(pipe)->sync->direct);
}

static inline __attribute__((always_inline)) void
short_open(struct tpr_open_frame *open, tp_pipe *pipe, struct tpf_conn *conn,
           struct tpr_op *op, unsigned flags, struct tpr_skeleton *skeleton)
{
    open->pipe = pipe;             /* `read` is NULL between frames */
    open->conn = conn;
    open->type = WIRE_MESSAGE;
    open->flags = (uint8_t)flags;
    open->started = true;
    open->length = (uint32_t)skeleton->data_length;
    open->taken = 0;
    open->spare = op;
    open->offered = &skeleton->message;
    if (TPB_UNLIKELY(op->pipe != pipe)) {      /* it waits for any */
        op->pipe = pipe;
        TPR_COUNT(pipe->record->stats.reads_pending, 1);
    }
    tpr_short_offer(pipe, op, skeleton);
    op->status = TP_OK;
    op->message = &skeleton->message;
}

/* The frame's reader has been told: true if he read it, as most do. */
static inline bool short_was_read(tp_context *context)
{
    struct tpr_open_frame *open = &context->open;

    if (TPB_UNLIKELY(open->pipe == NULL))
        return false;              /* stashed by a nested wait */
    if (TPB_LIKELY(open->spare == NULL))
        return open->pipe->rx_end == TP_OK;    /* short_have() took it */
    open->offered = open->lent = open->small = NULL;
    tpr_op_free(context, open->spare);
    open->spare = NULL;
    return false;
}

/* The frame goes, of which so many bytes are the message. */
static inline void short_pop(tp_pipe *pipe, struct tpf_conn *conn,
                             uint32_t length)
{
    pipe->consumed += length + (uint32_t)sizeof(struct wire_frame);
    conn->backend->pop(conn);
    if (TPB_UNLIKELY(pipe->consumed - pipe->advertised >= conn->returns))
        tpr_tx_return_credit(pipe);
}

/* Its frame goes, then its reader is told that it is over. */
static inline void short_end(tp_context *context, tp_pipe *pipe,
                             struct tpf_conn *conn)
{
    struct tpr_open_frame *open = &context->open;
    struct tpr_op *read = open->read;
    tp_message *message = read->message;
    tp_message_fn *done = read->done;
    void *arg = read->arg;
    bool borrowed = read->borrow;

    open->read = NULL;
    open->pipe = NULL;
    short_pop(pipe, conn, open->length);
    if (TPB_UNLIKELY(borrowed)) {
        tpr_borrow_begin(read);
        read->borrow = false;
    }
    /* Most callbacks begin the next operation, and find its memory in the
     * cache. */
    tpr_op_free(context, read);
    done(pipe, TP_OK, message, arg);
    if (TPB_LIKELY(!borrowed))     /* else it may be given back by now */
        tpr_skeleton_put((struct tpr_skeleton *)(void *)message);
}

/* Its reader is told. */
static inline __attribute__((always_inline)) void
short_tell(tp_context *context, tp_pipe *pipe, struct tpf_conn *conn,
           struct tpr_op *op, struct tpr_skeleton *skeleton)
{
    context->env.calls = true;
    context->depth++;
    op->done(pipe, TP_OK, &skeleton->message, op->arg);
    tpr_op_told(context);
    if (TPB_LIKELY(short_was_read(context))) {
        short_end(context, pipe, conn);
        tpr_op_told(context);
    }
    context->depth--;
    context->env.calls = false;
    if (TPB_UNLIKELY(context->open.pipe != NULL))
        tpr_rx_run_open(context);
}

/* Its reader is told of what is whole in the frame. */
static inline __attribute__((always_inline)) void
short_show(tp_context *context, tp_pipe *pipe, struct tpf_conn *conn,
           unsigned flags, const unsigned char *body,
           struct tpr_skeleton *skeleton)
{
    struct tpr_op *op = short_reader(pipe);

    context->open.bytes = body;
    short_open(&context->open, pipe, conn, op, flags, skeleton);
    short_tell(context, pipe, conn, op, skeleton);
}

/* Of one that lies at its sender. */
static bool short_lent(tp_context *context, tp_pipe *pipe,
                       struct tpf_conn *conn, const struct wire_frame *frame,
                       const unsigned char *body)
{
    struct tpr_open_frame *open = &context->open;
    struct tpr_skeleton *skeleton;
    struct tpr_op *op;

    if (!short_credit(pipe, frame->credit) || !short_wanted(context, pipe)
        || tpr_lent_decode(pipe, frame->flags, body, frame->length, &skeleton)
           != TP_OK)
        return false;
    skeleton->number = tpr_offer_number(&pipe->offered_to_me);
    pipe->offers_seen = true;
    pipe->flags = frame->flags;
    op = short_reader(pipe);
    open->bytes = body;
    short_open(open, pipe, conn, op, frame->flags, skeleton);
    open->length = open->taken = frame->length;
    open->offered = NULL;
    open->lent = &skeleton->message;
    tpr_pull_show(pipe);
    pipe->missing = 0;
    short_tell(context, pipe, conn, op, skeleton);
    return true;
}

/* For a caller of tp_pipe_recv_skeleton(): of the body so many bytes are not
 * data. */
static bool short_aside(tp_context *context, tp_pipe *pipe,
                        struct tpf_conn *conn, const struct wire_frame *frame,
                        const unsigned char *body, uint32_t taken,
                        struct tpr_skeleton *skeleton)
{
    struct tpr_op *op = short_reader(pipe);
    struct tpr_sync *sync = op->sync;

    if (!tpr_aside_put(pipe, op, skeleton, frame, body + taken)) {
        tpr_skeleton_free(skeleton);
        return false;
    }
    conn->backend->pop(conn);
    tpr_tx_return_credit(pipe);    /* if it was empty */
    tpr_sync_end(context, sync);
    return true;
}

/* Of one tensor. */
static bool short_tensor(tp_context *context, tp_pipe *pipe,
                         struct tpf_conn *conn, const struct wire_frame *frame,
                         const unsigned char *body)
{
    struct tpr_skeleton *skeleton;

    if (!short_is_next(context, pipe, frame)
        || (skeleton = tpr_skeleton_tensor(pipe, frame->flags,
                                           frame->length)) == NULL)
        return false;
    if (short_reader(pipe)->sync != NULL)
        return short_aside(context, pipe, conn, frame, body, 0, skeleton);
    short_show(context, pipe, conn, frame->flags, body, skeleton);
    return true;
}

/* Of one that has metadata, or not one buffer. */
static bool short_small(tp_context *context, tp_pipe *pipe,
                        struct tpf_conn *conn, const struct wire_frame *frame,
                        const unsigned char *body)
{
    struct tpr_open_frame *open = &context->open;
    struct tpr_skeleton *skeleton;
    struct tpr_op *op;
    uint32_t taken;

    if (!short_is_next(context, pipe, frame)
        || tpr_small_decode(pipe, body, frame->length, &skeleton, &taken)
           != TP_OK)
        return false;
    op = short_reader(pipe);
    if (op->sync != NULL)
        return short_aside(context, pipe, conn, frame, body, taken, skeleton);
    open->bytes = body;
    short_open(open, pipe, conn, op, frame->flags, skeleton);
    open->length = frame->length;
    open->taken = taken;
    open->offered = NULL;
    open->small = &skeleton->message;
    short_tell(context, pipe, conn, op, skeleton);
    return true;
}

/* One of ours is given back: its write ends. */
static bool short_back(tp_context *context, tp_pipe *pipe,
                       struct tpf_conn *conn, const struct wire_frame *frame,
                       const unsigned char *body)
{
    struct tp_stats *stats = &pipe->record->stats;
    struct tpr_op *op;
    tp_message *message;
    tp_message_fn *done;
    struct wire_release release;
    void *arg;

    memcpy(&release, body, sizeof(release));
    if (!short_credit(pipe, frame->credit)
        || (op = tpr_lent_back(pipe, release.message)) == NULL)
        return false;
    conn->backend->pop(conn);
    TPR_COUNT(stats->writes_pending, -1);
    TPR_COUNT(stats->messages_sent, 1);
    TPR_COUNT(stats->bytes_sent, op->data_length);
    message = op->message;
    done = op->done;
    arg = op->arg;
    tpr_op_free(context, op);
    if (done == NULL)
        return true;
    context->env.calls = true;
    context->depth++;
    done(pipe, TP_OK, message, arg);
    tpr_op_told(context);
    context->depth--;
    context->env.calls = false;
    return true;
}

/* Of one payload, for a caller of tp_pipe_recv(). */
static bool short_direct(tp_context *context, tp_pipe *pipe,
                         struct tpf_conn *conn, const unsigned char *body,
                         uint32_t length)
{
    struct tpr_op *op = short_reader(pipe);
    struct tpr_sync *sync = op->sync;

    if (length > sync->capacity)
        return false;
    tpb_list_unlink(&op->link);
    op->sync = NULL;
    tpr_op_free(context, op);
    tpb_fetch_copy(conn->fetch, sync->data, body, length);
    tpr_rx_framed(pipe, length);
    short_pop(pipe, conn, length);
    TPR_COUNT(pipe->record->stats.reads_pending, -1);
    tpr_count_received(pipe, length);
    sync->length = length;
    sync->status = TP_OK;
    tpr_sync_end(context, sync);
    return true;
}

/* ... or one of tp_pipe_recv_skeleton(). */
static __attribute__((noinline)) bool
short_caller(tp_context *context, tp_pipe *pipe, struct tpf_conn *conn,
             const struct wire_frame *frame, const unsigned char *body)
{
    struct tpr_skeleton *skeleton;

    if (short_reader(pipe)->sync->direct)
        return short_direct(context, pipe, conn, body, frame->length);
    skeleton = tpr_skeleton_short(pipe, frame->length);
    return skeleton != NULL
           && short_aside(context, pipe, conn, frame, body, 0, skeleton);
}

/* A whole short message.  False: it goes the other way, nothing is done. */
static inline __attribute__((always_inline)) bool
short_take_whole(tp_context *context, tp_pipe *pipe, struct tpf_conn *conn,
                 const struct wire_frame *frame, const unsigned char *body)
{
    struct tpr_skeleton *skeleton;

    if (!short_is_due(context, pipe, frame))
        return false;
    if (TPB_UNLIKELY(short_reader(pipe)->sync != NULL))
        return short_caller(context, pipe, conn, frame, body);
    skeleton = tpr_skeleton_short(pipe, frame->length);
    if (TPB_UNLIKELY(skeleton == NULL))
        return false;
    short_show(context, pipe, conn, WIRE_SHORT, body, skeleton);
    return true;
}

/* The same of frames of other kinds, and of pipes by number. */
static __attribute__((noinline)) bool
short_take_other(tp_context *context, struct tpr_peer *peer,
                 struct tpf_conn *conn, const struct wire_frame *frame,
                 const unsigned char *body, size_t size)
{
    tp_pipe *pipe = tpr_pipe_of(peer, frame->number);

    if (!short_is_mere(peer, pipe, frame, size))
        return false;
    if (frame->type == WIRE_MESSAGE && frame->flags == WIRE_SHORT)
        return short_take_whole(context, pipe, conn, frame, body);
    if (short_is_small(frame))
        return short_small(context, pipe, conn, frame, body);
    if (short_is_tensor(frame))
        return short_tensor(context, pipe, conn, frame, body);
    if (short_is_lent(frame))
        return short_lent(context, pipe, conn, frame, body);
    return short_is_release(frame)
           && short_back(context, pipe, conn, frame, body);
}

static inline bool short_take(tp_context *context, struct tpr_peer *peer,
                              struct tpf_conn *conn,
                              const unsigned char *bytes, size_t size)
{
    tp_pipe *pipe = atomic_load_explicit(&peer->ready_made,
                                         memory_order_acquire);
    struct wire_frame frame;

    if (size < sizeof(frame))
        return false;
    memcpy(&frame, bytes, sizeof(frame));
    if (!short_is_whole(peer, pipe, bytes, &frame, size))
        return short_take_other(context, peer, conn, &frame,
                                bytes + sizeof(frame), size);
    return short_take_whole(context, pipe, conn, &frame,
                            bytes + sizeof(frame));
}

enum tpr_short tpr_short_serve(tp_context *context, struct tpf_conn *conn,
                               int *left, const unsigned char **frame,
                               size_t *size)
{
    /* Inside a callback nobody is called, and what is due comes first. */
    bool others = context->env.calls || !tpb_list_empty(&context->done);

    for (; *left > 0; --*left) {
        struct tpr_peer *peer = conn->peer;
        const unsigned char *bytes = conn->backend->peek(conn, size);

        *frame = bytes;
        if (bytes == NULL)
            return TPR_SHORT_NONE;
        if (others || peer == NULL || peer->state != TPR_PEER_CONNECTED)
            return TPR_SHORT_OTHER;
        /* Credit may have set writes going, and one of them ended the conn. */
        if (!short_take(context, peer, conn, bytes, *size))
            return conn->peer == peer ? TPR_SHORT_OTHER : TPR_SHORT_PAUSE;
        if (TPB_UNLIKELY(*left % TPF_GATHERED_CALLS == 0))
            tpf_gathered_late(&context->env);
        /* A waiting caller has what it wanted.  It may ask for the next frame
         * in a moment: until then that is better left where it is. */
        if (context->served || conn->peer == NULL
            || !tpb_list_empty(&context->done)
            || tpr_turn_takes_long(context, *left))
            break;
    }
    return TPR_SHORT_PAUSE;
}
