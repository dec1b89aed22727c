/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Short frames about long messages: one payload, or one tensor of the host's
 * memory, which a channel brings, or which lies in memory that its receiver has
 * mapped.  A frame that fits a cache line says where it is, and another one
 * that it is given back; so what is borrowed in place costs what a short
 * message costs, whatever its length, and what is copied little more than the
 * copy.
 *
 * These are offers like those of offer.c and pull.c, which take over wherever
 * something is in the way.
 */
#include "config.h"

#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

/* ---- the sender ---------------------------------------------------------- */

static bool lent_describe(const struct tpr_peer *peer, void *data,
                          size_t size, struct tpr_offer *offer)
{
    struct tpf_buffer buffer = { .data = data, .length = size };
    struct tpf_link *link = peer->lend;
    size_t length = link->kind->describe(link, &buffer, offer->source,
                                         &offer->hold);

    if (length == 0)
        return false;
    offer->to = link;
    if (length > WIRE_LENT_SOURCE)
        return false;
    offer->channel = (uint8_t)link->kind->number;
    offer->source_length = (uint8_t)length;
    offer->length = size;
    return true;
}

void tpr_lent_pace(struct tpr_op *op, struct tpr_pace *pace)
{
    bool first = op->alone && pace->way != TPR_PACE_FRAMES;

    op->way = (uint8_t)pace->way;
    op->pace_asked = op->lendable = true;
    op->paced = tpr_offer_counts(op->way == TPR_PACE_FRAMES ? op->pipe->peer
                                                            : NULL,
                                 pace, op, first) || !first;
}

/* All of a write's offer that tpr_offer_weigh() and tx_frame() set. */
static void lent_begin(tp_pipe *pipe, struct tpr_op *op,
                       struct tpr_offer *offer)
{
    offer->op = op;
    op->data_length = offer->length;
    op->descriptor_length = 0;
    op->offers = offer;
    op->number = tpr_offer_number(&pipe->offering);
    op->weighed = op->begun = op->finished = true;
    tpb_list_append(&pipe->landing, &op->link);
    TPR_COUNT(pipe->record->stats.writes_pending, 1);
}

bool tpr_lent_send(tp_pipe *pipe, const struct tpr_offer *offer,
                   unsigned flags)
{
    struct wire_lent lent = { .length = offer->length,
                              .channel = offer->channel,
                              .source_length = offer->source_length,
                              .sent = offer->op != NULL ? offer->op->sent
                                                        : 0 };

    memcpy(lent.source, offer->source, sizeof(lent.source));
    flags |= WIRE_OFFERS;
    if (!tpf_post(pipe->peer->conn,
                  tpr_frame_head(pipe, WIRE_MESSAGE, flags, sizeof(lent)),
                  &lent, sizeof(lent)))
        return false;
    pipe->advertised = pipe->consumed;
    pipe->sent += (uint32_t)TPR_LENT_FRAME;
    return true;
}

bool tpr_lent_write(tp_pipe *pipe, unsigned flags, void *data, size_t length,
                    tp_message *message, tp_message_fn *done, void *arg,
                    bool *foreign)
{
    tp_context *context = pipe->context;
    bool alone = tpb_list_empty(&pipe->landing);
    struct tpr_pace *pace;
    struct tpr_offer *offer;
    struct tpr_op *op;

    if (pipe->peer->lend == NULL || length > SIZE_MAX / 2 || length == 0
        || pipe->tx_end != TP_OK
        || !tpb_list_empty(&pipe->writes) || !tpb_list_empty(&pipe->notes)
        || !tpb_list_empty(&pipe->pushes)
        || !tpr_tx_credit_for(pipe, TPR_LENT_FRAME))
        return false;
    *foreign = (pipe->peer->conn->backend->flags & TPF_SELF) != 0
               ? tpr_offer_keeps(pipe, length)
               : tpf_memory_is_outside(context->env.memories, data);
    if (*foreign)
        return false;
    pace = tpr_offer_lends(pipe->peer, length);
    if (TPB_UNLIKELY(pace != NULL && pace->way == TPR_PACE_FRAMES))
        return false;
    offer = tpr_offer_new(context);
    op = tpr_op_new(context);
    if (TPB_UNLIKELY(offer == NULL || op == NULL))
        goto out;
    if (!lent_describe(pipe->peer, data, length, offer)
        || !tpr_lent_send(pipe, offer, flags
                          | tpr_late_flags(pipe, alone ? NULL : offer->to,
                                           length, alone, pace != NULL
                                           && pace->way == TPR_PACE_SHARED)))
        goto out;
    op->context = context;
    tpr_op_bare_set(op, TPR_OP_WRITE, pipe, message, done, arg);
    op->alone = alone;
    if (pace != NULL)
        tpr_lent_pace(op, pace);
    lent_begin(pipe, op, offer);
    return true;
out:
    *foreign = offer != NULL && op != NULL && offer->to == NULL;
    if (offer != NULL && offer->to != NULL && offer->to->kind->forget != NULL)
        offer->to->kind->forget(offer->to, offer->hold);
    if (offer != NULL)
        tpr_offer_free(context, offer);
    if (op != NULL)
        tpr_op_free(context, op);
    return false;
}

struct tpr_op *tpr_lent_back(tp_pipe *pipe, uint32_t number)
{
    struct tpb_list *node = pipe->landing.next;
    struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

    if (node == &pipe->landing || op->offers == NULL || op->number != number
        || op->status != TP_OK || op->lent > 0
        || (op->paced && !op->lendable)
        || op->work != NULL || op->sync != NULL
        || !tpb_list_empty(&pipe->writes))
        return NULL;
    /* Behind it others may have ended that waited for it. */
    node = node->next;
    if (node != &pipe->landing
        && TPB_CONTAINER(node, struct tpr_op, link)->offers == NULL)
        return NULL;
    tpb_list_unlink(&op->link);
    if (op->paced)
        tpr_offer_paced(pipe, op);
    tpr_offer_forget(op);
    return op;
}

/* ---- the receiver -------------------------------------------------------- */

tp_status tpr_lent_decode(tp_pipe *pipe, unsigned flags,
                          const unsigned char *body, size_t length,
                          struct tpr_skeleton **result)
{
    struct tpr_skeleton *skeleton;
    struct tpr_offer *offer;
    struct wire_lent lent;

    if (length != sizeof(lent))
        return TP_ERR_PROTOCOL;
    memcpy(&lent, body, sizeof(lent));
    if (lent.channel == TPF_CHANNEL_NONE || lent.channel >= TPF_CHANNELS
        || lent.source_length == 0 || lent.source_length > WIRE_LENT_SOURCE
        || lent.length == 0 || lent.length > SIZE_MAX / 2)
        return TP_ERR_PROTOCOL;
    skeleton = tpr_skeleton_single(pipe, flags, lent.length);
    if (skeleton == NULL)
        return TP_ERR_NO_MEMORY;
    offer = tpr_offer_new(pipe->context);
    if (offer == NULL) {
        tpr_skeleton_put(skeleton);
        return TP_ERR_NO_MEMORY;
    }
    offer->channel = lent.channel;
    offer->source_length = lent.source_length;
    offer->length = lent.length;
    memcpy(offer->source, lent.source, sizeof(lent.source));
    skeleton->stream_length = 0;
    skeleton->sent = lent.sent;
    skeleton->offers = offer;
    *result = skeleton;
    return TP_OK;
}

void tpr_lent_release(tp_pipe *pipe, uint32_t number)
{
    struct wire_about about = { .message = number };
    struct wire_release body = { .message = number };
    struct tpf_conn *conn = pipe->peer->conn;
    bool posted = false;

    if (tpb_list_empty(&pipe->notes)) {
        /* Most answers are written by the callback that gives back; and nobody
         * waits for what the sender does with this. */
        conn->more = pipe->context->env.calls;
        pipe->context->env.aside = true;
        posted = tpf_post(conn, tpr_frame_head(pipe, WIRE_RELEASE, 0,
                                               sizeof(body)),
                          &body, sizeof(body));
        pipe->context->env.aside = false;
    }
    if (posted) {
        pipe->advertised = pipe->consumed;
    } else {
        conn->more = false;
        tpr_tx_about(pipe, WIRE_DONE, &about, NULL, 0);
    }
}
