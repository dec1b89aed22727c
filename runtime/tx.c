/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sending: the writes of a pipe become a stream of frames, as far as the
 * backend has room and the peer's credit goes.
 */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

/* From this size on data is not copied into the backend's memory where the
 * backend can send it from where it lies. */
enum { TX_ZERO_COPY = 16 * 1024 };
/* Up to this size a plain message goes without looking further. */
enum { TX_AT_ONCE = 8 * 1024 };
/* So many pipes are refused room before the others are not asked. */
#define TX_REFUSALS 16u

/* ---- frames ------------------------------------------------------------- */

static void tx_head(tp_pipe *pipe, unsigned char *to, enum wire_type type,
                    unsigned flags, size_t length)
{
    struct wire_frame frame = { .type = (uint8_t)type,
                                .flags = (uint8_t)flags,
                                .wishes = pipe->peer->wishes,
                                .number = pipe->number,
                                .credit = pipe->consumed,
                                .length = (uint32_t)length };

    memcpy(to, &frame, sizeof(frame));
    pipe->advertised = pipe->consumed;
}

/* For the record: a write waits from now on, if it did not before; for room in
 * the backend, or for its reader to take what was sent. */
static void tx_stall(tp_pipe *pipe)
{
    if (TPB_RECORD_GET(pipe->record->blocked_since) != 0)
        return;
    TPB_RECORD_SET(pipe->record->blocked_since, tpb_now());
    TPR_COUNT(pipe->record->stats.blocked, 1);
}

static void tx_flow(tp_pipe *pipe)
{
    if (TPB_RECORD_GET(pipe->record->blocked_since) != 0)
        TPB_RECORD_SET(pipe->record->blocked_since, 0);
}

static void tx_block(tp_pipe *pipe)
{
    if (tpb_list_empty(&pipe->blocked_link))
        tpb_list_append(&pipe->peer->blocked, &pipe->blocked_link);
    if (!tpb_list_empty(&pipe->writes))
        tx_stall(pipe);
    pipe->peer->refused++;
    tpr_touch(pipe->context);
}

/* Room in the backend, or the pipe waits for it. */
static unsigned char *tx_reserve(tp_pipe *pipe, size_t length)
{
    struct tpf_conn *conn = pipe->peer->conn;
    unsigned char *room = conn->backend->reserve(conn, length);

    if (TPB_UNLIKELY(room == NULL))
        tx_block(pipe);
    return room;
}

/* Copies the next `length` bytes of the stream. */
static void tx_fill(struct tpr_op *op, unsigned char *to, size_t length)
{
    struct tpb_way *way = op->pipe->peer->conn->way;

    if (op->position < op->descriptor_length) {
        size_t part = op->descriptor_length - op->position;

        if (part > length)
            part = length;
        tpr_descriptor_encode(op->message, op->offers, op->sent,
                              op->descriptor_length, op->position, to, part);
        op->position += part;
        to += part;
        length -= part;
    }
    while (length > 0) {
        unsigned char *data;
        size_t left;

        if (!tpr_device_cursor_at(op, &op->cursor, &data, &left))
            return;
        if (left > length)
            left = length;
        if (left < TPB_WAY_LEAST || way == NULL)
            tpb_copy(to, data, left);
        else
            tpb_way_copy(way, to, data, left);
        op->cursor.offset += left;
        op->position += left;
        to += left;
        length -= left;
    }
}

static bool tx_short(tp_pipe *pipe, struct tpf_conn *conn, unsigned flags,
                     const void *data, size_t length)
{
    size_t size = sizeof(struct wire_frame) + length;

    if (!tpr_tx_credit_for(pipe, size))
        return false;
    if (!tpf_post(conn, tpr_frame_head(pipe, WIRE_MESSAGE, flags, length),
                  data, length)) {
        tx_block(pipe);
        return false;
    }
    pipe->advertised = pipe->consumed;
    pipe->sent += (uint32_t)size;
    return true;
}

/* Is a frame with so many bytes better copied, as it goes with others? */
static inline bool tx_gathers(const struct tpf_conn *conn, size_t length)
{
    return TPB_UNLIKELY(sizeof(struct wire_frame) + length <= conn->gathers)
           && tpf_env_gathers(conn->endpoint->env);
}

/* A piece of one buffer, from where it lies: of the stream, or a whole short
 * message. */
static bool tx_lend(tp_pipe *pipe, struct tpr_op *op, struct tpf_conn *conn,
                    enum wire_type type, unsigned flags)
{
    unsigned char head[sizeof(struct wire_frame)], *data;
    size_t left, most = conn->max_frame - sizeof(head);
    uint32_t advertised = pipe->advertised;

    if (conn->max_lent > 0)
        most = conn->max_lent - sizeof(head);
    if (!tpr_cursor_at(op->message, &op->cursor, &data, &left))
        return false;
    if (left > most)
        left = most;
    if (!tpr_tx_credit_for(pipe, sizeof(head) + left))
        return false;
    tx_head(pipe, head, type, flags, left);
    if (!conn->backend->send_data(conn, head, sizeof(head), data, left, op)) {
        pipe->advertised = advertised;
        tx_block(pipe);
        return false;
    }
    op->lent++;
    op->cursor.offset += left;
    op->position += left;
    pipe->sent += (uint32_t)(sizeof(head) + left);
    return true;
}

/* A write that has begun cannot be left out any more: the pipe breaks if the
 * device fails.  One whose pipe was closed meanwhile only waits. */
static void tx_wait_device(tp_pipe *pipe, struct tpr_op *op)
{
    if (op->status != TP_ERR_BACKEND)
        tpr_device_wait(pipe);
    else
        tpr_rx_break(pipe, op->status, tpg_work_error(op->work));
}

static unsigned tx_flags(const tp_pipe *pipe, const struct tpr_op *op)
{
    const struct tpr_offer *first = op->offers;

    return (first != NULL ? WIRE_OFFERS : 0u)
           | tpr_late_flags(pipe, first != NULL ? first->to : NULL,
                            op->data_length, op->alone,
                            op->paced && op->way == TPR_PACE_SHARED);
}

/* What says in one word all that there is to say of a message; 0: nothing. */
static unsigned tx_short_flags(const tp_message *message)
{
    return tpr_message_plain(message) ? WIRE_SHORT : tpr_tensor_flags(message);
}

/* Is one short frame all that there is to say of it?  `brief` is of that. */
static bool tx_is_lent(const struct tpr_op *op, unsigned brief)
{
    return op->offers != NULL && brief != 0
           && op->offers->source_length <= WIRE_LENT_SOURCE;
}

static bool tx_lent(tp_pipe *pipe, struct tpr_op *op, unsigned brief)
{
    if (!tpr_tx_credit_for(pipe, TPR_LENT_FRAME))
        return false;
    if (!tpr_lent_send(pipe, op->offers, brief | tx_flags(pipe, op))) {
        tx_block(pipe);
        return false;
    }
    op->position = op->descriptor_length;
    return true;
}

/* The one frame of a small message, whose body is so long.  Its head last, as
 * that line is what its reader looks at. */
static void tx_small(tp_pipe *pipe, const tp_message *message, size_t length,
                     unsigned char *room)
{
    struct tpf_conn *conn = pipe->peer->conn;
    size_t size = sizeof(struct wire_frame) + length;

    tpr_small_encode(message, length, room + sizeof(struct wire_frame));
    tx_head(pipe, room, WIRE_MESSAGE, WIRE_SMALL, length);
    conn->backend->commit(conn, size);
    pipe->sent += (uint32_t)size;
}

/* Of a write of which nothing is under way yet: the body of that frame; 0: it
 * does not go that way. */
static size_t tx_small_length(const struct tpr_op *op, unsigned brief)
{
    size_t data;

    return brief == 0 && !op->begun && op->offers == NULL && op->work == NULL
           ? tpr_small_length(op->message, &data) : 0;
}

/*
 * Of the rest of a write's stream, so many bytes are in the next frame.  Of two
 * frames that are copied into shared memory the first is half, so that its
 * reader copies it while we copy the other; were it as long as it can be he
 * would begin as we end.
 */
static size_t tx_length(const struct tpr_op *op, const struct tpf_conn *conn,
                        uint64_t rest, size_t most)
{
    if (conn->backend->send_data == NULL && !op->begun && rest > most
        && rest <= 2 * most)
        rest = TPB_CACHE_LINE * (rest / 2 / TPB_CACHE_LINE + 1);
    return rest < most ? (size_t)rest : most;
}

/* The next frame of a write.  False: no room or no credit now. */
static bool tx_frame(tp_pipe *pipe, struct tpr_op *op, struct tpf_conn *conn)
{
    uint64_t total = op->descriptor_length + op->stream_length;
    size_t most = conn->max_frame - sizeof(struct wire_frame), length;
    unsigned brief = op->begun ? 0 : tx_short_flags(op->message);
    unsigned char *room;

    length = tx_small_length(op, brief);
    if (length != 0 && length <= most) {
        if (!tpr_tx_credit_for(pipe, sizeof(struct wire_frame) + length))
            return false;
        room = tx_reserve(pipe, sizeof(struct wire_frame) + length);
        if (room == NULL)
            return false;
        tx_small(pipe, op->message, length, room);
        op->position = total;
        return true;
    }
    if (tx_is_lent(op, brief))
        return tx_lent(pipe, op, brief);
    /* What may land in place is better not with its descriptor: there is no
     * reader yet. */
    if (brief != 0 && op->offers == NULL && op->data_length <= most
        && op->sent == 0
        && (conn->lands == 0 || op->data_length < conn->lands)) {
        bool lend = conn->backend->send_data != NULL
                    && op->data_length >= TX_ZERO_COPY
                    && !tx_gathers(conn, op->data_length);

        if (!(lend ? tx_lend(pipe, op, conn, WIRE_MESSAGE, brief)
                   : tx_short(pipe, conn, brief, brief == WIRE_SHORT
                              ? op->message->payloads[0].data
                              : op->message->tensors[0].data,
                              op->data_length)))
            return false;
        op->position = total;
        return true;
    }
    if (conn->backend->send_data != NULL && op->work == NULL
        && op->position >= op->descriptor_length
        && total - op->position >= TX_ZERO_COPY)
        return tx_lend(pipe, op, conn, WIRE_DATA, 0);
    length = tx_length(op, conn, total - op->position, most);
    if (conn->backend->send_data != NULL && !op->begun
        && op->stream_length >= TX_ZERO_COPY && op->descriptor_length < length)
        length = op->descriptor_length;
    if (TPB_UNLIKELY(op->work != NULL)) {
        length = tpr_device_ahead(op, length);
        if (length == 0) {
            tx_wait_device(pipe, op);
            return false;
        }
    }
    if (!tpr_tx_credit_for(pipe, sizeof(struct wire_frame) + length))
        return false;
    room = tx_reserve(pipe, sizeof(struct wire_frame) + length);
    if (room == NULL)
        return false;
    tx_head(pipe, room, op->begun ? WIRE_DATA : WIRE_MESSAGE,
            op->begun ? 0 : tx_flags(pipe, op), length);
    tx_fill(op, room + sizeof(struct wire_frame), length);
    /* A device may fail after it has said that the bytes are there. */
    if (TPB_UNLIKELY(op->status != TP_OK)) {
        tx_wait_device(pipe, op);
        return false;
    }
    conn->more = op->position < total;
    conn->backend->commit(conn, sizeof(struct wire_frame) + length);
    pipe->sent += (uint32_t)(sizeof(struct wire_frame) + length);
    return true;
}

/* ---- control ------------------------------------------------------------ */

/* A frame without a body; waits for room by itself. */
bool tpr_tx_control(tp_pipe *pipe, enum wire_type type)
{
    struct tpf_conn *conn = pipe->peer->conn;
    unsigned char *room;

    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return false;
    room = tx_reserve(pipe, sizeof(struct wire_frame));
    if (room == NULL) {
        pipe->close_due |= type == WIRE_CLOSE;
        pipe->credit_due |= type == WIRE_CREDIT;
        return false;
    }
    tx_head(pipe, room, type, 0, 0);
    conn->backend->commit(conn, sizeof(struct wire_frame));
    pipe->close_due &= type != WIRE_CLOSE;
    pipe->credit_due = false;
    return true;
}

void tpr_tx_close(tp_pipe *pipe)
{
    tpr_late_tell(pipe);
    if (pipe->lent > 0)
        tpr_borrow_recall(pipe);
    /* Not while a channel still fetches from the peer's memory, which CLOSE
     * gives back, nor before what is still to be told; and there must be room,
     * or first a conn. */
    if (tpr_pull_any(pipe) || !tpb_list_empty(&pipe->notes)
        || !tpr_tx_control(pipe, WIRE_CLOSE))
        pipe->close_due = true;
    if (pipe->close_due && tpb_list_empty(&pipe->blocked_link))
        tpb_list_append(&pipe->peer->blocked, &pipe->blocked_link);
}

void tpr_tx_return_credit(tp_pipe *pipe)
{
    if (pipe->peer->state == TPR_PEER_CONNECTED && !pipe->closed
        && pipe->consumed - pipe->advertised >= pipe->peer->conn->returns)
        tpr_tx_control(pipe, WIRE_CREDIT);
}

void tpr_tx_credit(tp_pipe *pipe, uint32_t credit)
{
    /* Only forward, and never over what was sent. */
    if (credit == pipe->acknowledged
        || credit - pipe->acknowledged > pipe->sent - pipe->acknowledged)
        return;
    pipe->acknowledged = credit;
    if (!tpb_list_empty(&pipe->writes) || !tpb_list_empty(&pipe->pushes))
        tpr_tx_pump(pipe);
}

/* ---- what is said of buffers that go by channels ------------------------ */

/* A frame that found no room. */
struct tpr_note {
    struct tpb_list link;          /* in pipe->notes */
    enum wire_type type;
    size_t length;
    unsigned char body[];
};

static bool tx_note(tp_pipe *pipe, enum wire_type type, const void *body,
                    size_t length)
{
    struct tpf_conn *conn = pipe->peer->conn;
    unsigned char *room = tx_reserve(pipe, sizeof(struct wire_frame) + length);

    if (room == NULL)
        return false;
    tx_head(pipe, room, type, 0, length);
    memcpy(room + sizeof(struct wire_frame), body, length);
    /* Nobody waits for what its reader does next. */
    pipe->context->env.aside = type == WIRE_DONE;
    conn->backend->commit(conn, sizeof(struct wire_frame) + length);
    pipe->context->env.aside = false;
    return true;
}

static bool tx_notes(tp_pipe *pipe)
{
    while (!tpb_list_empty(&pipe->notes)) {
        struct tpr_note *note = TPB_CONTAINER(pipe->notes.next,
                                              struct tpr_note, link);

        if (!tx_note(pipe, note->type, note->body, note->length))
            return false;
        tpb_list_unlink(&note->link);
        tpb_free(note);
    }
    return true;
}

void tpr_tx_about(tp_pipe *pipe, enum wire_type type,
                  const struct wire_about *about, const void *more,
                  size_t length)
{
    unsigned char body[sizeof(*about) + TPT_WORDS];
    struct tpr_note *note;

    memcpy(body, about, sizeof(*about));
    if (length > 0)
        memcpy(body + sizeof(*about), more, length);
    length += sizeof(*about);
    if (tpb_list_empty(&pipe->notes) && tx_note(pipe, type, body, length))
        return;
    note = tpb_zalloc(sizeof(*note) + length);
    if (note == NULL) {
        tpr_peer_end(pipe->peer, TP_ERR_NO_MEMORY, "out of memory");
        return;
    }
    note->type = type;
    note->length = length;
    memcpy(note->body, body, length);
    tpb_list_append(&pipe->notes, &note->link);
}

void tpr_tx_notes_drop(tp_pipe *pipe)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&pipe->notes)) != NULL)
        tpb_free(TPB_CONTAINER(node, struct tpr_note, link));
}

/* The next piece of a buffer that was asked for.  False: not now.  It needs no
 * credit, since the receiver has its memory and takes it at once; what was sent
 * behind that message, and nobody reads before it, may have used all up. */
static bool tx_push(tp_pipe *pipe, struct tpr_offer *offer)
{
    struct tpf_conn *conn = pipe->peer->conn;
    struct wire_about about = { .message = offer->op->number,
                                .buffer = offer->buffer,
                                .offset = offer->at };
    size_t head = sizeof(struct wire_frame) + sizeof(about);
    size_t length = offer->length - offer->at;
    struct tpr_cursor cursor = { .buffer = offer->buffer,
                                 .offset = offer->at };
    unsigned char *room, *data;
    size_t left;

    if (!tpr_device_cursor_at(offer->op, &cursor, &data, &left)) {
        tx_wait_device(pipe, offer->op);
        return false;
    }
    if (length > left)
        length = left;
    if (length > conn->max_frame - head)
        length = conn->max_frame - head;
    room = tx_reserve(pipe, head + length);
    if (room == NULL)
        return false;
    tx_head(pipe, room, WIRE_PUSH, 0, sizeof(about) + length);
    memcpy(room + sizeof(struct wire_frame), &about, sizeof(about));
    tpb_copy(room + head, data, length);
    conn->backend->commit(conn, head + length);
    pipe->sent += (uint32_t)(head + length);
    offer->at += length;
    return true;
}

static bool tx_pushes(tp_pipe *pipe)
{
    while (!tpb_list_empty(&pipe->pushes)) {
        struct tpr_offer *offer = TPB_CONTAINER(pipe->pushes.next,
                                                struct tpr_offer, link);

        if (!tx_push(pipe, offer))
            return false;
        if (offer->at == offer->length)
            tpb_list_unlink(&offer->link);
    }
    return true;
}

/* ---- the pump ----------------------------------------------------------- */

static void tx_end(tp_pipe *pipe, struct tpr_op *op, tp_status status)
{
    if (TPB_UNLIKELY(op->paced) && status == TP_OK)
        tpr_offer_paced(pipe, op);
    tpr_op_end(op, status);
}

/* Ends the writes at the head that need their memory no more, in order. */
static void tx_land(tp_pipe *pipe)
{
    while (!tpb_list_empty(&pipe->landing)) {
        struct tpr_op *op = TPB_CONTAINER(pipe->landing.next, struct tpr_op,
                                          link);

        if (op->lent > 0 || op->offers != NULL)
            return;
        tx_end(pipe, op, op->status);
    }
}

static void tx_finish(tp_pipe *pipe, struct tpr_op *op, tp_status status)
{
    op->finished = true;
    op->status = status;
    tpb_list_unlink(&op->link);
    /* The peer has not heard of it, and will not say that it is done. */
    if (TPB_UNLIKELY(!op->begun))
        tpr_offer_forget(op);
    if (op->lent == 0 && op->offers == NULL
        && tpb_list_empty(&pipe->landing)) {
        tx_end(pipe, op, status);
        return;
    }
    tpb_list_append(&pipe->landing, &op->link);
}

/* The writes that wait, as far as there is room and credit. */
static void tx_pump_writes(tp_pipe *pipe, struct tpr_peer *peer)
{
    const struct tpr_op *whole = NULL;  /* all of it goes now */

    while (!tpb_list_empty(&pipe->writes)) {
        struct tpr_op *op = TPB_CONTAINER(pipe->writes.next, struct tpr_op,
                                          link);

        if (TPB_UNLIKELY(op->status != TP_OK)) {
            tx_finish(pipe, op, op->status);
            continue;
        }
        if (TPB_UNLIKELY(op->work != NULL) && !op->weighed) {
            enum tpg_answer answer = tpg_work_ready(op->work);

            if (answer == TPG_LATER) {
                tpr_device_wait(pipe);
                return;
            }
            if (answer == TPG_FAILED) {
                tpr_pipe_refuse(pipe, tpg_work_error(op->work));
                op->status = TP_ERR_BACKEND;
                continue;
            }
            if (!tpr_offer_outbox(pipe, op)) {
                tpr_device_wait(pipe);
                return;
            }
        }
        if (!op->weighed) {
            tpr_offer_weigh(pipe, op);
            if (TPB_UNLIKELY(op->status != TP_OK))
                continue;
            whole = op;
        }
        if (!tx_frame(pipe, op, peer->conn) || peer->conn == NULL) {
            /* A device of ours is nobody's reader. */
            if (peer->conn != NULL && tpb_list_empty(&pipe->device_link))
                tx_stall(pipe);
            return;
        }
        tx_flow(pipe);
        if (!op->begun && op->offers != NULL)
            op->number = tpr_offer_number(&pipe->offering);
        op->begun = true;
        if (op->position == op->descriptor_length + op->stream_length) {
            if (TPB_UNLIKELY(op->sent != 0) && op == whole)
                tpr_offer_copied(peer, op);
            tx_finish(pipe, op, TP_OK);
        }
    }
}

void tpr_tx_pump(tp_pipe *pipe)
{
    struct tpf_env *env = &pipe->context->env;
    struct tpr_peer *peer = pipe->peer;
    bool before;

    tx_land(pipe);
    if (tpb_list_empty(&pipe->writes))
        tx_flow(pipe);             /* the one that waited was withdrawn */
    if (peer->state != TPR_PEER_CONNECTED)
        return;
    /* Before CLOSE, which ends what they may tell of. */
    if (TPB_UNLIKELY(!tpb_list_empty(&pipe->notes)) && !tx_notes(pipe))
        return;
    if (TPB_UNLIKELY(pipe->close_due)
        && (tpr_pull_any(pipe) || !tpr_tx_control(pipe, WIRE_CLOSE)))
        return;
    if (TPB_UNLIKELY(pipe->credit_due)
        && !tpr_tx_control(pipe, WIRE_CREDIT))
        return;
    if (TPB_UNLIKELY(!tpb_list_empty(&pipe->pushes)) && !tx_pushes(pipe))
        return;
    if (pipe->writes.next == pipe->writes.prev) {
        tx_pump_writes(pipe, peer);
        return;
    }
    before = env->bursts;
    env->bursts = true;
    tx_pump_writes(pipe, peer);
    env->bursts = before;
    if (!before && !env->calls)
        tpf_gathered(env);
}

/* The backend has room: each blocked pipe gets its turn once, until several
 * were refused.  That brings the next call, and the others are first then: to
 * ask for thousands each time that there is room for a few takes long. */
void tpr_tx_unblock(struct tpr_peer *peer)
{
    unsigned start = peer->refused;
    struct tpb_list *first = NULL, *node;

    while ((node = peer->blocked.next) != &peer->blocked && node != first
           && peer->refused - start < TX_REFUSALS) {
        unsigned before = peer->refused;

        tpb_list_unlink(node);
        tpr_tx_pump(TPB_CONTAINER(node, tp_pipe, blocked_link));
        if (first == NULL && peer->refused != before)
            first = node;
    }
}

void tpr_tx_write(tp_pipe *pipe, struct tpr_op *op)
{
    tpr_peer_use(pipe, true);
    if (TPB_UNLIKELY(pipe->tx_end != TP_OK)) {
        /* In its turn, behind writes whose memory is still needed. */
        tx_finish(pipe, op, pipe->tx_end);
        return;
    }
    tpb_list_append(&pipe->writes, &op->link);
    if (pipe->writes.next == &op->link)
        tpr_tx_pump(pipe);
}

/* Of one that is not brief: has it no frame to go in, or to go another way? */
static __attribute__((noinline)) bool tx_is_long(const struct tpr_peer *peer,
                                                 size_t length)
{
    const struct tpr_links *links = peer->links;

    return peer->state != TPR_PEER_CONNECTED
           || length > peer->conn->max_frame - sizeof(struct wire_frame)
           || (links != NULL && links->insisted && length >= links->least);
}

/* Sends a short message at once, without an operation, if that can be. */
bool tpr_tx_short(tp_pipe *pipe, const void *data, size_t length)
{
    struct tpr_peer *peer = pipe->peer;

    if ((length >= peer->brief && tx_is_long(peer, length))
        || pipe->tx_end != TP_OK
        || !tpb_list_empty(&pipe->writes) || !tpb_list_empty(&pipe->landing)
        || !tx_short(pipe, peer->conn, WIRE_SHORT, data, length))
        return false;
    TPR_COUNT(pipe->record->stats.messages_sent, 1);
    TPR_COUNT(pipe->record->stats.bytes_sent, length);
    return true;
}

bool tpr_tx_small(tp_pipe *pipe, const tp_message *message, size_t length,
                  size_t data_length)
{
    const struct tpr_peer *peer = pipe->peer;
    size_t size = sizeof(struct wire_frame) + length;
    unsigned char *room;

    if (length >= peer->brief || pipe->tx_end != TP_OK
        || !tpb_list_empty(&pipe->writes) || !tpb_list_empty(&pipe->landing)
        || !tpr_tx_credit_for(pipe, size))
        return false;
    room = peer->conn->backend->reserve(peer->conn, size);
    if (room == NULL)
        return false;
    tx_small(pipe, message, length, room);
    TPR_COUNT(pipe->record->stats.messages_sent, 1);
    TPR_COUNT(pipe->record->stats.bytes_sent, data_length);
    return true;
}

/* The channel that comes first for the host's memory, if that can be lent. */
static void tx_lends(struct tpr_peer *peer)
{
    const struct tpr_links *links = peer->links;

    peer->lend = NULL;
    peer->lend_least = SIZE_MAX;
    if (peer->state != TPR_PEER_CONNECTED || links == NULL || links->rivals)
        return;
    for (uint32_t i = 0; i < links->ordered; i++) {
        const struct tpr_link *link = links->order[i];

        if (link->link->kind->devices)
            continue;
        if (link->link->kind->map == NULL)
            return;
        peer->lend = link->link;
        peer->lend_least = link->sizes.from;
        if ((peer->wished & WIRE_BORROWS) != 0
            && peer->lend_least > TPR_BORROWED)
            peer->lend_least = TPR_BORROWED;
        return;
    }
}

/* What is shorter than this goes in one frame at once.  Channels that take host
 * memory from some length on come first; `lend`: also the one it is lent by. */
static size_t tx_at_once(const struct tpr_peer *peer, bool lend)
{
    const struct tpf_conn *conn = peer->conn;
    const struct tpr_links *links = peer->links;
    size_t least = conn->backend->send_data != NULL ? TX_AT_ONCE + 1 : SIZE_MAX;

    if (least > conn->max_frame - sizeof(struct wire_frame) + 1)
        least = conn->max_frame - sizeof(struct wire_frame) + 1;
    for (uint32_t i = 0; links != NULL && i < links->ordered; i++) {
        const struct tpr_link *link = links->order[i];

        if (!link->link->kind->devices && (lend || link->link != peer->lend)
            && link->sizes.from < least)
            least = link->sizes.from;
    }
    return least;
}

/* No channel is to be asked for so short a message, and it fits a frame; nor
 * for one that is longer if its memory cannot be lent. */
void tpr_tx_brief(struct tpr_peer *peer)
{
    const struct tpr_links *links = peer->links;

    peer->brief = peer->whole = 0;
    tx_lends(peer);
    if (peer->state != TPR_PEER_CONNECTED)
        return;
    peer->brief = tx_at_once(peer, true);
    peer->whole = links != NULL && links->insisted ? peer->brief
                  : tx_at_once(peer, false);
}

/* Did a write end before its peer can have got all of it?  What a peer that
 * closes in good order has not read is no failure of the write's. */
static bool tx_is_cut(const struct tpr_op *op, tp_status status, bool lost)
{
    return op->offers != NULL
           || (lost && op->lent > 0 && status != TP_ERR_PEER_CLOSED
               && status != TP_ERR_CLOSED);
}

/* Nothing can be written any more. */
void tpr_tx_end(tp_pipe *pipe, tp_status status)
{
    bool lost = pipe->peer->state != TPR_PEER_CONNECTED;

    if (pipe->tx_end == TP_OK)
        pipe->tx_end = status;
    while (!tpb_list_empty(&pipe->writes))
        tx_finish(pipe, TPB_CONTAINER(pipe->writes.next, struct tpr_op, link),
                  status);
    tx_flow(pipe);
    /* Without a conn nobody touches lent memory any more, nor tells.  A peer
     * that closed the pipe pulls no more; one that is to hear of its end here
     * says so then. */
    TPB_LIST_EACH(node, &pipe->landing) {
        struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

        if (op->status == TP_OK && tx_is_cut(op, status, lost))
            op->status = status;
        if (lost)
            op->lent = 0;
        if (lost || status == TP_ERR_PEER_CLOSED)
            tpr_offer_forget(op);
    }
    if (lost)
        tpr_tx_notes_drop(pipe);
    tx_land(pipe);
    while (tpb_list_take(&pipe->pushes) != NULL)
        ;
    /* What the peer is to be told still waits for room. */
    if (tpb_list_empty(&pipe->notes) && (lost || !pipe->close_due))
        tpb_list_unlink(&pipe->blocked_link);
    tpb_list_unlink(&pipe->device_link);
}
