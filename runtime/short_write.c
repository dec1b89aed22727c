/* SPDX-License-Identifier: BSD-3-Clause */
/* The sending side of short.c: what goes at once, without being queued. */
#include "config.h"

#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

static inline bool short_is_plain(const tp_message *message)
{
    return message != NULL && tpr_message_plain(message)
           && (message->payloads[0].data != NULL
               || message->payloads[0].length == 0);
}

/* Its frame is under way, if it is shorter than `below`. */
static inline __attribute__((always_inline)) bool
short_send(tp_pipe *pipe, unsigned flags, const void *data, size_t length,
           size_t below)
{
    struct tpf_conn *conn = pipe->peer->conn;
    size_t size = sizeof(struct wire_frame) + length;
    struct tp_stats *stats = &pipe->record->stats;

    if (length >= below || pipe->tx_end != TP_OK
        || !tpb_list_empty(&pipe->writes) || !tpb_list_empty(&pipe->landing)
        || !tpr_tx_credit_for(pipe, size)
        || !tpf_post(conn, tpr_frame_head(pipe, WIRE_MESSAGE, flags, length),
                     data, length))
        return false;
    pipe->advertised = pipe->consumed;
    pipe->sent += (uint32_t)size;
    TPR_COUNT(stats->messages_sent, 1);
    TPR_COUNT(stats->bytes_sent, length);
    return true;
}

/* Writes the message, whose one buffer this is, as `flags` say. */
static inline __attribute__((always_inline)) bool
short_write_data(tp_pipe *pipe, unsigned flags, void *data, size_t length,
                 tp_message *message, tp_message_fn *done, void *arg)
{
    tp_context *context = pipe->context;
    struct tpr_op *op = tpr_short_op(context);
    size_t below = pipe->peer->brief;
    bool foreign = false;

    if (TPB_UNLIKELY(length >= pipe->peer->lend_least) && !context->closed) {
        if (tpr_lent_write(pipe, flags, data, length, message, done, arg,
                           &foreign))
            return true;
        if (foreign)
            below = tpr_offer_tastes(pipe, length) ? 0 : pipe->peer->whole;
    }
    if (TPB_UNLIKELY(context->closed || op == NULL)
        || !short_send(pipe, flags, data, length, below))
        return false;
    if (TPB_LIKELY(done != NULL)) {
        tpr_short_op_take(context);
        tpr_op_bare_set(op, TPR_OP_WRITE, pipe, message, done, arg);
        tpb_list_append(&context->done, &op->link);
    }
    return true;
}

static inline __attribute__((always_inline)) bool
short_write(tp_pipe *pipe, tp_message *message, tp_message_fn *done, void *arg)
{
    return short_write_data(pipe, WIRE_SHORT, message->payloads[0].data,
                            message->payloads[0].length, message, done, arg);
}

static __attribute__((noinline)) bool
short_write_outside(tp_pipe *pipe, tp_message *message, tp_message_fn *done,
                    void *arg)
{
    bool sent;

    if (!tpr_enter_token(pipe->context))
        return false;
    sent = short_write(pipe, message, done, arg);
    tpr_leave_token(pipe->context);
    return sent;
}

/* One tensor, of which its flags tell all. */
static bool short_write_tensor(tp_pipe *pipe, unsigned flags,
                               tp_message *message, tp_message_fn *done,
                               void *arg)
{
    const tp_tensor *tensor = message->tensors;

    return (tensor->data != NULL || tensor->length == 0)
           && short_write_data(pipe, flags, tensor->data, tensor->length,
                               message, done, arg);
}

/* What has metadata, or not one buffer: so many bytes, see small.c. */
static bool short_write_small(tp_pipe *pipe, size_t length, size_t data_length,
                              tp_message *message, tp_message_fn *done,
                              void *arg)
{
    tp_context *context = pipe->context;
    struct tpr_op *op = tpr_short_op(context);

    if (context->closed || op == NULL
        || !tpr_tx_small(pipe, message, length, data_length))
        return false;
    if (done != NULL) {
        tpr_short_op_take(context);
        tpr_op_bare_set(op, TPR_OP_WRITE, pipe, message, done, arg);
        tpb_list_append(&context->done, &op->link);
    }
    return true;
}

/* Is it either of them, and tensors are the host's memory for sure?  What its
 * flags are, or how long it is, and its buffers. */
static bool short_shape(const tp_pipe *pipe, const tp_message *message,
                        unsigned *flags, size_t *length, size_t *data)
{
    *flags = tpr_tensor_flags(message);
    *length = *flags != 0 ? 0 : tpr_small_length(message, data);
    return (*flags != 0 || *length > 0)
           && (message->tensor_count == 0 || tpg_absent(pipe->context->gpu));
}

static bool short_write_rest(tp_pipe *pipe, tp_message *message,
                             tp_message_fn *done, void *arg)
{
    tp_context *context = pipe->context;
    bool nested = tpr_holds(context), sent;
    unsigned flags;
    size_t data, length;

    if (!short_shape(pipe, message, &flags, &length, &data)
        || (nested ? !tpr_short_in_turn(context) : !tpr_enter_token(context)))
        return false;
    sent = flags != 0
           ? short_write_tensor(pipe, flags, message, done, arg)
           : short_write_small(pipe, length, data, message, done, arg);
    if (!nested)
        tpr_leave_token(context);
    return sent;
}

/* For a caller who waits: nothing is lent, he has the memory back at once. */
static bool short_write_now(tp_pipe *pipe, const tp_message *message)
{
    const struct tpr_peer *peer = pipe->peer;
    unsigned flags;
    size_t length, data;

    if (TPB_LIKELY(tpr_message_plain(message)))
        return message->payloads[0].length < peer->brief
               && tpr_tx_short(pipe, message->payloads[0].data,
                               message->payloads[0].length);
    if (!short_shape(pipe, message, &flags, &length, &data))
        return false;
    if (flags != 0)
        return message->tensors[0].length < peer->lend_least
               && short_send(pipe, flags, message->tensors[0].data,
                             message->tensors[0].length, peer->brief);
    return tpr_tx_small(pipe, message, length, data);
}

bool tpr_short_at_once(tp_pipe *pipe, const tp_message *message)
{
    tp_context *context = pipe->context;
    bool sent;

    if (!tpr_enter_in_turn(context))
        return false;
    sent = !context->closed && short_write_now(pipe, message);
    tpr_leave(context);
    return sent;
}

static __attribute__((noinline)) tp_status
short_write_other(tp_pipe *pipe, tp_message *message, tp_message_fn *done,
                  void *arg)
{
    if (pipe != NULL && message != NULL && !short_is_plain(message)
        && short_write_rest(pipe, message, done, arg))
        return TP_OK;
    return tpr_call_write(pipe, message, done, arg, NULL);
}

tp_status tp_pipe_write(tp_pipe *pipe, tp_message *message,
                        tp_message_fn *done, void *arg)
{
    if (TPB_LIKELY(pipe != NULL && short_is_plain(message))
        && (TPB_LIKELY(tpr_holds(pipe->context))
            ? tpr_short_in_turn(pipe->context)
              && short_write(pipe, message, done, arg)
            : short_write_outside(pipe, message, done, arg)))
        return TP_OK;
    return short_write_other(pipe, message, done, arg);
}
