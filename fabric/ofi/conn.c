/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A conn once it is joined: frames in slots, credits, acknowledgements.
 *
 * Each message tells how many frames its sender has got and popped.  Popped
 * ones are credit: the other side never has more frames under way than there
 * are receive slots for it.  Those got make flushed() true: a frame that is
 * in the other side's memory is safe from the reset that a TCP socket sends
 * when it is closed with something unread.
 *
 * Nothing here makes upcalls but ofi_conn_upcalls().
 */
#include "config.h"

#include <stdio.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/touch.h"

enum {
    CONN_BROKEN_MS = 1000,         /* from the first error in sending on */
    CONN_IN_PLACE = 4096,          /* less is copied sooner than described */
    CONN_WINDOW = 2 * 1024 * 1024 + 64 * 1024,     /* of one pipe: two long
                                      frames, and what goes before them */
};

/* ---- life -------------------------------------------------------------- */

void ofi_conn_init(struct ofi_conn *conn)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);

    tpb_list_init(&conn->link);
    tpb_list_init(&conn->due);
    tpb_list_init(&conn->pulls);
    tpb_list_init(&conn->pulled);
    tpb_list_init(&conn->lively);
    tpb_list_append(&endpoint->conns, &conn->link);
    conn->life.fd = -1;
    conn->met_fd = -1;
    conn->wire = -1;
    conn->wire_sought = true;
    conn->peer = FI_ADDR_UNSPEC;
    conn->common.max_frame = endpoint->kind->max_frame;
}

tp_status ofi_conn_buffers(struct ofi_conn *conn, struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);
    const struct ofi_kind *kind = endpoint->kind;
    unsigned count = kind->slots + OFI_CONTROL_SLOTS;
    tp_status status = ofi_slots_open(&conn->receive, conn, count,
                                      ofi_land_room(endpoint), FI_RECV, error);

    if (status == TP_OK)
        status = ofi_slots_open(&conn->send, conn, count, kind->max_frame,
                                FI_SEND, error);
    return status;
}

tp_status ofi_conn_terms(struct ofi_conn *conn, const struct ofi_note *note,
                         struct tpb_error *error)
{
    const struct ofi_kind *kind = ofi_endpoint_of(conn->common.endpoint)->kind;
    uint32_t max_frame = le32toh(note->max_frame), slots = le32toh(note->slots);
    size_t far = 0;

    if (max_frame < 1024 || slots < 2 || slots > OFI_SLOTS_MAX)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "the other side offers %u slots of %u bytes", slots,
                        max_frame);
    conn->common.max_frame = max_frame < kind->max_frame ? max_frame
                                                         : kind->max_frame;
    conn->limit = slots < kind->slots ? slots : kind->slots;
    conn->common.lands = conn->common.max_lent = 0;
    if (kind->max_lent > 0 && note->splits == OFI_SPLITS
        && conn->common.endpoint->env->lands
        && conn->common.max_frame > OFI_SPLIT + OFI_SPLIT_HEAD) {
        conn->common.lands = OFI_SPLIT;
        conn->common.max_lent = kind->max_lent;
    }
    conn->bundles = note->bundles == OFI_BUNDLES;
    conn->common.window = conn->common.max_frame * conn->limit / 2;
    if (conn->common.window > CONN_WINDOW)
        conn->common.window = CONN_WINDOW;
    conn->common.returns = conn->common.window / 4;
    conn->keeps = kind->posts > 0 && note->shorts == OFI_SHORTS;
    if (kind->posts > 0)
        far = ofi_socket_far(ofi_socket_round(conn->meet->watch.fd));
    conn->shorts = conn->keeps && far > 0;
    conn->common.window += far;
    conn->common.window_spread = kind->posts > 0 ? OFI_FAR - far : 0;
    return TP_OK;
}

void ofi_conn_is_due(struct ofi_conn *conn)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);

    tpb_list_unlink(&conn->due);
    tpb_list_append(&endpoint->due, &conn->due);
    /* Who sleeps has looked already, and no descriptor tells of this. */
    if (TPB_UNLIKELY(endpoint->armed) && conn->told)
        tpf_conn_ready(&conn->common);
}

void ofi_conn_joined(struct ofi_conn *conn)
{
    conn->joined = true;
    ofi_conn_is_due(conn);
}

void ofi_conn_lost(struct ofi_conn *conn, tp_status status, const char *format,
                   ...)
{
    va_list args;
    int used;

    if (conn->lost)
        return;
    conn->lost = true;
    conn->status = status;
    used = snprintf(conn->text, sizeof(conn->text), "%s: ",
                    conn->common.backend->name);
    va_start(args, format);
    vsnprintf(conn->text + used, sizeof(conn->text) - (size_t)used, format,
              args);
    va_end(args);
    ofi_conn_is_due(conn);
}

void ofi_conn_reset(struct ofi_conn *conn)
{
    ofi_endpoint_of(conn->common.endpoint)->kind->join->leave(conn);
    ofi_rma_leave(conn);
    while (conn->lent.first != NULL)
        ofi_mr_drop(ofi_queue_take(&conn->lent)->mr);
    ofi_life_leave(conn);
    ofi_land_leave(conn);
    ofi_bundle_leave(conn);
    ofi_slots_close(&conn->receive);
    ofi_slots_close(&conn->kept);
    ofi_slots_close(&conn->send);
    memset(&conn->arrived, 0, sizeof(conn->arrived));
    memset(&conn->waiting, 0, sizeof(conn->waiting));
    conn->lent = conn->arrived;
    conn->ahead = NULL;
    conn->reserved = conn->half = NULL;
    conn->posts = 0;
    conn->rail = NULL;
    conn->broken = false;
}

static void conn_release(struct ofi_conn *conn)
{
    ofi_meet_end(conn);
    conn->lost = true;             /* what still comes of it is ignored */
    ofi_conn_reset(conn);
    tpb_list_unlink(&conn->link);
    tpb_list_unlink(&conn->due);
}

void ofi_conn_drop(struct ofi_conn *conn)
{
    conn_release(conn);
    tpf_conn_free(&conn->common);
}

tp_status ofi_conn_connect(struct tpf_conn *common, const void *address,
                           size_t length, struct tpb_error *error)
{
    struct ofi_conn *conn = ofi_conn_of(common);
    struct ofi_endpoint *endpoint = ofi_endpoint_of(common->endpoint);
    struct tpb_text left_out = { 0 };
    struct ofi_card card;
    tp_status status;

    ofi_conn_init(conn);
    status = ofi_card_decode(&card, address, length, error);
    if (status != TP_OK)
        return status;
    if (strncmp((const char *)card.provider, endpoint->kind->provider,
                sizeof(card.provider)) != 0)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "the address is not one of %s",
                        endpoint->kind->backend);
    if (endpoint->kind->within_host && card.host != endpoint->card.host)
        return tpb_fail(error, TP_ERR_UNREACHABLE,
                        "%s: the peer is on another host or in another "
                        "network namespace", endpoint->kind->backend);
    ofi_card_order(&card, le64toh(endpoint->card.host), &left_out);
    status = ofi_visit_start(conn, &card, &left_out, error);
    tpb_text_fini(&left_out);
    return status;
}

void ofi_conn_trying(struct tpf_conn *common, struct tpb_text *text)
{
    struct ofi_conn *conn = ofi_conn_of(common);

    if (conn->visit != NULL)
        ofi_visit_words(conn->visit, text);
    else if (conn->lost)           /* and not said yet */
        tpb_text_add(text, " %s;", conn->text);
}

void ofi_conn_disconnect(struct tpf_conn *common)
{
    conn_release(ofi_conn_of(common));
}

/* ---- sending ----------------------------------------------------------- */

/* What the peer has been told of what came in; kept, as it may not be sent. */
struct conn_told {
    uint32_t popped, got;
};

static struct conn_told conn_fill(struct ofi_conn *conn, struct ofi_slot *slot)
{
    struct conn_told before = { conn->told_popped, conn->told_got };

    if (TPB_UNLIKELY(conn->probing))
        ofi_life_sends(conn);
    slot->head->popped = htole32(conn->popped);
    slot->head->got = htole32(conn->got);
    conn->told_popped = conn->popped;
    conn->told_got = conn->got;
    return before;
}

/* It was not sent, so the peer knows no more than before. */
static void conn_not_told(struct ofi_conn *conn, struct conn_told before)
{
    conn->told_popped = before.popped;
    conn->told_got = before.got;
}

/* Hands a message to libfabric.  False: it cannot take it now. */
static bool conn_submit(struct ofi_conn *conn, struct ofi_slot *slot)
{
    size_t length = sizeof(*slot->head) + slot->size;
    struct conn_told before = conn_fill(conn, slot);
    ssize_t code;

    if (length <= conn->rail->inject) {
        code = fi_inject(conn->ep, slot->head, length, conn->peer);
        if (code == 0)
            ofi_slot_give(&conn->send, slot);
    } else {
        code = fi_send(conn->ep, slot->head, length, slot->desc, conn->peer,
                       &slot->context);
        slot->posted = code == 0;
    }
    if (code == 0)
        return true;
    conn_not_told(conn, before);
    if (code != -FI_EAGAIN)
        ofi_conn_broken(conn, (int)code);
    return false;
}

static void conn_send(struct ofi_conn *conn, struct ofi_slot *slot)
{
    if (conn->waiting.first == NULL && conn->half == NULL
        && conn_submit(conn, slot))
        return;
    ofi_queue_add(&conn->waiting, slot);
    ofi_conn_is_due(conn);
}

static void conn_number(struct ofi_conn *conn, struct ofi_slot *slot,
                        size_t size, uint32_t flags)
{
    slot->head->size = htole32((uint32_t)size);
    slot->head->flags = htole32((conn->frames_sent << OFI_NUMBER_SHIFT)
                                | flags);
    conn->frames_sent++;
}

void ofi_conn_send_slot(struct ofi_conn *conn, struct ofi_slot *slot,
                        size_t size, uint32_t flags)
{
    slot->use = OFI_SEND;
    slot->size = size;
    conn_number(conn, slot, size, flags);
    conn_send(conn, slot);
}

/* A message without a frame.  False: not now. */
static bool conn_control(struct ofi_conn *conn)
{
    struct ofi_slot *slot;

    if (conn->waiting.first != NULL || conn->half != NULL)
        return false;
    slot = ofi_slot_take(&conn->send);
    if (slot == NULL)
        return false;
    slot->use = OFI_SEND;
    slot->size = 0;
    slot->head->size = 0;
    slot->head->flags = htole32((conn->frames_sent << OFI_NUMBER_SHIFT)
                                | (conn->ping_due ? OFI_FLAG_PING : 0));
    if (!conn_submit(conn, slot)) {
        ofi_slot_give(&conn->send, slot);
        return false;
    }
    conn->ping_due = conn->pong_due = false;
    return true;
}

/* Credit is told in good time, not for every frame. */
static bool conn_wants_control(const struct ofi_conn *conn)
{
    return conn->ping_due || conn->pong_due
           || conn->popped - conn->told_popped >= conn->limit / 2;
}

bool ofi_conn_push(struct ofi_conn *conn)
{
    struct tpb_error error;
    bool pushed;

    if (conn->lost || conn->ep == NULL)
        return true;
    if (conn->broken) {
        if (tpb_now() - conn->broken_since > CONN_BROKEN_MS * 1000000ull)
            ofi_conn_lost(conn, TP_ERR_PEER_FAILED,
                          "the other side does not answer any more");
        return conn->lost;
    }
    /* Who cannot send must receive all the same, or neither goes on. */
    pushed = ofi_land_push(conn);
    if (!ofi_land_post(conn))
        return false;
    if (ofi_conn_post(conn, &error) != TP_OK) {
        ofi_conn_lost(conn, TP_ERR_BACKEND, "%s", error.text);
        return true;
    }
    if (!pushed)
        return false;
    while (conn->waiting.first != NULL) {
        struct ofi_slot *slot = conn->waiting.first;
        struct ofi_slot *next = slot->next;

        if (!conn_submit(conn, slot))
            return false;
        conn->waiting.first = next;
    }
    if (!ofi_rma_push(conn))
        return false;
    return !conn_wants_control(conn) || conn_control(conn);
}

static bool conn_may_send(const struct ofi_conn *conn, size_t size)
{
    uint32_t under_way = conn->frames_sent - conn->peer_popped;

    return conn->joined && !conn->lost && !conn->broken
           && (under_way < conn->limit
               || (conn->shorts && ofi_shorts_fit(size, under_way)))
           && conn->send.available > OFI_CONTROL_SLOTS;
}

/* What could not be sent can be now, most likely. */
static bool conn_unblocks(const struct ofi_conn *conn)
{
    return conn->blocked && conn_may_send(conn, conn->wants);
}

/* What has been posted may be over at once, and a silent rail tells nobody. */
void ofi_conn_stir(struct ofi_conn *conn)
{
    const struct ofi_endpoint *endpoint
        = ofi_endpoint_of(conn->common.endpoint);

    if (endpoint->armed && conn->rail->silent && conn->told)
        tpf_conn_ready(&conn->common);
}

struct ofi_slot *ofi_conn_slot(struct ofi_conn *conn, size_t size)
{
    /* What could go with others does not take their place. */
    if (tpf_env_gathers(conn->common.endpoint->env))
        size = SIZE_MAX;
    if (!conn_may_send(conn, size)) {
        conn->blocked = true;
        conn->wants = size;
        ofi_conn_stir(conn);
        return NULL;
    }
    return ofi_slot_take(&conn->send);
}

/* Its slot may be beyond what there is room for, for another size. */
static void conn_unreserve(struct ofi_conn *conn)
{
    if (conn->reserved != NULL)
        ofi_slot_give(&conn->send, conn->reserved);
    conn->reserved = NULL;
}

void *ofi_conn_reserve(struct tpf_conn *common, size_t size)
{
    struct ofi_conn *conn = ofi_conn_of(common);
    void *room;

    conn_unreserve(conn);
    room = ofi_bundle_reserve(conn, size);
    if (room != NULL)
        return room;
    conn->reserved = ofi_conn_slot(conn, size);
    return conn->reserved != NULL ? conn->reserved->head + 1 : NULL;
}

void ofi_conn_commit(struct tpf_conn *common, size_t size)
{
    struct ofi_conn *conn = ofi_conn_of(common);
    struct ofi_slot *slot = conn->reserved;

    conn->reserved = NULL;
    if (slot == NULL) {
        ofi_bundle_commit(conn, size);
        return;
    }
    ofi_bundle_send(conn);         /* which was before it */
    ofi_conn_send_slot(conn, slot, size, 0);
}

/* Two pieces straight from where they are. */
static ssize_t conn_send_pieces(struct ofi_conn *conn, struct ofi_slot *slot,
                                size_t head_length)
{
    struct iovec pieces[2] = {
        { slot->head, sizeof(*slot->head) + head_length },
        { (void *)(uintptr_t)slot->data, slot->length }
    };
    void *descs[2] = {
        slot->desc, slot->mr != NULL ? fi_mr_desc(slot->mr->mr) : NULL
    };

    return fi_sendv(conn->ep, pieces, descs, 2, conn->peer, &slot->context);
}

/* Where the provider wants registered memory, that is memory of tp_alloc(): to
 * register any other costs more than to copy a frame. */
static bool conn_in_place(struct ofi_conn *conn, struct ofi_slot *slot)
{
    if (conn->rail->info->tx_attr->iov_limit < 2)
        return false;
    if (slot->desc == NULL)
        return true;
    if (slot->length >= CONN_IN_PLACE)
        slot->mr = ofi_mr_hold_ours(conn->rail, slot->data, slot->length);
    return slot->mr != NULL;
}

bool ofi_conn_send_data(struct tpf_conn *common, const void *head,
                        size_t head_length, const void *data, size_t length,
                        void *token)
{
    struct ofi_conn *conn = ofi_conn_of(common);
    struct conn_told before;
    struct ofi_slot *slot;
    bool copy, split;
    ssize_t code;

    ofi_bundle_send(conn);
    if (conn->waiting.first != NULL || conn->half != NULL) {
        conn->blocked = true;
        return false;
    }
    conn_unreserve(conn);
    slot = ofi_conn_slot(conn, head_length + length);
    if (slot == NULL)
        return false;
    ofi_bundle_lent(conn, head_length + length);
    slot->use = OFI_SEND_DATA;
    slot->size = head_length + length;
    slot->data = data;
    slot->length = length;
    slot->token = token;
    memcpy(slot->head + 1, head, head_length);
    conn_number(conn, slot, slot->size, 0);
    slot->mr = NULL;
    split = conn->common.lands > 0 && length >= conn->common.lands;
    copy = !split && !conn_in_place(conn, slot);
    if (copy)
        tpb_copy((char *)(slot->head + 1) + head_length, data, length);
    else
        tpb_touch(data, length);
    slot->posted = true;
    before = conn_fill(conn, slot);
    if (split)
        code = ofi_land_send(conn, slot, head_length);
    else if (copy)
        code = fi_send(conn->ep, slot->head,
                       sizeof(*slot->head) + slot->size, slot->desc,
                       conn->peer, &slot->context);
    else
        code = conn_send_pieces(conn, slot, head_length);
    if (code == 0) {
        ofi_queue_add(&conn->lent, slot);
        ofi_conn_stir(conn);
        return true;
    }
    conn_not_told(conn, before);
    conn->frames_sent--;
    slot->posted = false;
    ofi_mr_drop(slot->mr);
    ofi_slot_give(&conn->send, slot);
    conn->blocked = true;
    if (code == -FI_EAGAIN)
        ofi_conn_is_due(conn);
    else
        ofi_conn_broken(conn, (int)code);
    return false;
}

bool ofi_conn_flushed(struct tpf_conn *common)
{
    struct ofi_conn *conn = ofi_conn_of(common);

    if (conn->lost || conn->broken)
        return false;
    ofi_bundle_send(conn);
    if (conn->peer_got == conn->frames_sent)
        return true;
    if (conn->pinged != conn->frames_sent) {
        conn->pinged = conn->frames_sent;
        conn->ping_due = true;
        if (!ofi_conn_push(conn))
            ofi_conn_is_due(conn);
    }
    return false;
}

bool ofi_conn_settled(const struct ofi_conn *conn)
{
    unsigned free = conn->send.available + (conn->reserved != NULL);

    return conn->lost || (conn->joined && free == conn->send.count
                          && conn->coming == NULL);
}

/* ---- receiving --------------------------------------------------------- */

tp_status ofi_conn_post(struct ofi_conn *conn, struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);
    const struct ofi_kind *kind = endpoint->kind;
    struct ofi_slot *slot;
    uint32_t most;

    /* What waited in libfabric for a buffer fills it at once. */
    ofi_conn_stir(conn);
    most = ofi_land_posts(conn, kind->posts);
    while ((kind->posts == 0 || conn->posts < most)
           && (slot = ofi_slot_take(&conn->receive)) != NULL) {
        ssize_t code = fi_recv(conn->ep, slot->head,
                               sizeof(*slot->head) + ofi_land_room(endpoint),
                               slot->desc, FI_ADDR_UNSPEC, &slot->context);

        slot->use = OFI_RECEIVE;
        slot->posted = code == 0;
        if (code == 0) {
            conn->posts++;
            continue;
        }
        ofi_slot_give(&conn->receive, slot);
        if (code != -FI_EAGAIN)
            return ofi_fail(error, (int)code, "posting a receive buffer");
        ofi_conn_is_due(conn);
        break;
    }
    return TP_OK;
}

const void *ofi_conn_peek(struct tpf_conn *common, size_t *size)
{
    struct ofi_slot *slot = ofi_conn_of(common)->arrived.first;

    if (slot == NULL)
        return NULL;
    if (TPB_UNLIKELY(slot->bundle))
        return ofi_bundle_peek(slot, size);
    *size = slot->size;
    return slot->head + 1;
}

void ofi_conn_pop(struct tpf_conn *common)
{
    struct ofi_conn *conn = ofi_conn_of(common);
    struct ofi_slot *slot = conn->arrived.first;

    if (slot == NULL || (slot->bundle && ofi_bundle_pop(slot)))
        return;
    ofi_queue_take(&conn->arrived);
    conn->popped++;
    ofi_shorts_give(conn, slot);
    if (conn->lost) {
        if (conn->arrived.first == NULL)
            ofi_conn_is_due(conn);
    } else if (!ofi_conn_push(conn)) {
        ofi_conn_is_due(conn);
    }
}

/*
 * Datagrams are matched with buffers in the order in which they were sent, but
 * long ones, which a provider fetches, may be whole after later short ones.
 */
static bool conn_reorders(const struct ofi_conn *conn)
{
    return ofi_endpoint_of(conn->common.endpoint)->kind->type == FI_EP_RDM;
}

/* How many frames are before this one that have not come yet. */
static uint32_t conn_before(const struct ofi_conn *conn,
                            const struct ofi_head *head)
{
    return ((le32toh(head->flags) >> OFI_NUMBER_SHIFT) - conn->got)
           & (UINT32_MAX >> OFI_NUMBER_SHIFT);
}

/* What the other side says of our frames; false if it cannot be. */
static bool conn_told(struct ofi_conn *conn, const struct ofi_head *head)
{
    uint32_t popped = le32toh(head->popped), got = le32toh(head->got);

    /* It has said more since then. */
    if (conn_reorders(conn) && (int32_t)(got - conn->peer_got) <= 0
        && (int32_t)(popped - conn->peer_popped) <= 0)
        return true;
    if (conn->frames_sent - got > conn->frames_sent - conn->peer_got
        || got - popped > got - conn->peer_popped)
        return false;
    conn->peer_got = got;
    conn->peer_popped = popped;
    return true;
}

/* The words for a message that cannot be right, or NULL: then the slot knows
 * what it holds. */
static const char *conn_check(struct ofi_conn *conn, struct ofi_slot *slot,
                              size_t length)
{
    const struct ofi_head *head = slot->head;
    uint32_t before = conn_before(conn, head);
    uint32_t unread = conn->got - conn->popped;
    bool split = conn->common.lands > 0
                 && (le32toh(head->flags) & OFI_FLAG_SPLIT) != 0;

    if (length < sizeof(*head)
        || le32toh(head->size) < length - sizeof(*head)
        || split != (le32toh(head->size) > length - sizeof(*head))
        || le32toh(head->size) > (split ? conn->common.max_lent
                                        : conn->common.max_frame))
        return "a message has the wrong length";
    if (!conn_told(conn, head))
        return "it acknowledges what was not sent";
    if (head->size == 0)
        return NULL;
    if (before != 0 && !conn_reorders(conn))
        return "frames came out of order";
    if (before + unread >= conn->limit
        && !(conn->keeps && ofi_shorts_fit(le32toh(head->size), unread)))
        return "it sends more than it may";
    slot->size = le32toh(head->size);
    slot->at = 0;
    slot->bundle = (le32toh(head->flags) & OFI_FLAG_BUNDLE) != 0;
    return !slot->bundle
           || (conn->bundles && !split && ofi_bundle_right(slot))
               ? NULL : "frames that came together have wrong lengths";
}

void ofi_conn_arrived(struct ofi_conn *conn, struct ofi_slot *slot)
{
    conn->got++;
    slot = ofi_shorts_keep(conn, slot);
    if (slot == NULL)
        return;
    ofi_queue_add(&conn->arrived, slot);
    if (TPB_UNLIKELY(conn->asked_early) && conn->got == conn->asked_for) {
        conn->asked_early = false;
        conn->pong_due = true;
        ofi_conn_is_due(conn);
    }
    if (conn->posts == 0 && !ofi_conn_push(conn))
        ofi_conn_is_due(conn);
    if (conn->told)
        tpf_conn_ready(&conn->common);
}

/* Keeps a frame until those before it have come. */
static void conn_keep(struct ofi_conn *conn, struct ofi_slot *slot)
{
    uint32_t before = conn_before(conn, slot->head);
    struct ofi_slot **at = &conn->ahead;

    while (*at != NULL && conn_before(conn, (*at)->head) < before)
        at = &(*at)->next;
    if (*at != NULL && conn_before(conn, (*at)->head) == before) {
        ofi_slot_give(&conn->receive, slot);
        ofi_conn_lost(conn, TP_ERR_PROTOCOL, "a frame came twice");
        return;
    }
    slot->next = *at;
    *at = slot;
}

/* The next frame, and those that were kept for it to come. */
static void conn_in_turn(struct ofi_conn *conn, struct ofi_slot *slot)
{
    ofi_conn_arrived(conn, slot);
    while (TPB_UNLIKELY(conn->ahead != NULL)
           && conn_before(conn, conn->ahead->head) == 0) {
        slot = conn->ahead;
        conn->ahead = slot->next;
        ofi_conn_arrived(conn, slot);
    }
}

/* It asks for frames that were sent before: they may be still to come. */
static void conn_pinged(struct ofi_conn *conn, const struct ofi_head *head)
{
    uint32_t before = conn_before(conn, head);

    conn->asked_early = before > 0 && before <= conn->limit;
    conn->asked_for = conn->got + before;
    conn->pong_due |= !conn->asked_early;
}

void ofi_conn_received(struct ofi_conn *conn, struct ofi_slot *slot,
                       size_t length)
{
    const struct ofi_join *join =
        ofi_endpoint_of(conn->common.endpoint)->kind->join;
    const struct ofi_head *head = slot->head;
    const char *wrong;

    slot->posted = slot->bundle = false;
    conn->posts--;
    if (TPB_UNLIKELY(conn->coming != NULL && !conn->lost)) {
        ofi_land_slot(conn, slot, length);
        return;
    }
    wrong = conn->lost ? NULL : conn_check(conn, slot, length);
    if (wrong != NULL)
        ofi_conn_lost(conn, TP_ERR_PROTOCOL, "%s", wrong);
    if (conn->lost) {
        ofi_slot_give(&conn->receive, slot);
        return;
    }
    conn->heard = true;
    if (TPB_UNLIKELY(conn->probing))
        ofi_life_heard(conn);
    if (!conn->joined)
        join->first(conn);
    if (le32toh(head->flags) & OFI_FLAG_PING && head->size == 0)
        conn_pinged(conn, head);
    if (le32toh(head->size) > length - sizeof(*head)) {
        ofi_land_head(conn, slot, length);
    } else if (head->size != 0) {
        if (conn->careful > 0)
            conn->careful--;
        if (TPB_UNLIKELY(conn_before(conn, head) != 0))
            conn_keep(conn, slot);
        else
            conn_in_turn(conn, slot);
    } else {
        ofi_slot_give(&conn->receive, slot);
        if (!ofi_conn_push(conn))
            ofi_conn_is_due(conn);
    }
    if (conn_unblocks(conn))
        ofi_conn_is_due(conn);
}

/* ---- completions ------------------------------------------------------- */

void ofi_conn_sent(struct ofi_conn *conn, struct ofi_slot *slot)
{
    slot->posted = false;
    if (slot->use == OFI_SEND)
        ofi_slot_give(&conn->send, slot);
    if (!conn->lost && (slot->use == OFI_SEND_DATA || conn->blocked))
        ofi_conn_is_due(conn);
}

/* ---- upcalls ----------------------------------------------------------- */

/* Memory that was lent comes back in the order in which it was lent. */
static void conn_hand_back(struct ofi_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;

    while (!conn->lost && !conn->broken && conn->lent.first != NULL
           && !conn->lent.first->posted) {
        struct ofi_slot *slot = ofi_queue_take(&conn->lent);
        void *token = slot->token;

        ofi_mr_drop(slot->mr);
        ofi_slot_give(&conn->send, slot);
        env->upcalls->sent(env->core, &conn->common, token);
    }
}

static void conn_upcalls(struct ofi_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;

    if (conn->joined && !conn->told) {
        conn->told = true;
        if (conn->incoming)
            env->upcalls->incoming(env->core, &conn->common);
        else
            env->upcalls->connected(env->core, &conn->common);
        if (conn->arrived.first != NULL || conn->coming != NULL)
            tpf_conn_ready(&conn->common);
    }
    conn_hand_back(conn);
    ofi_rma_upcalls(conn);
    if (conn->told && conn_unblocks(conn)) {
        conn->blocked = false;
        env->upcalls->writable(env->core, &conn->common);
    }
    if (conn->lost && conn->arrived.first == NULL && !conn->over) {
        conn->over = true;
        env->upcalls->failed(env->core, &conn->common, conn->status,
                             conn->text);
    }
}

bool ofi_conn_upcalls(struct ofi_endpoint *endpoint)
{
    struct tpb_list now, *node;
    bool any = false;

    if (tpb_list_empty(&endpoint->due))
        return false;
    /* What becomes due by the upcalls waits for the next time. */
    tpb_list_init(&now);
    while ((node = tpb_list_take(&endpoint->due)) != NULL)
        tpb_list_append(&now, node);
    while ((node = tpb_list_take(&now)) != NULL) {
        struct ofi_conn *conn = TPB_CONTAINER(node, struct ofi_conn, due);

        if (conn->lost && conn->incoming && !conn->joined) {
            ofi_conn_drop(conn);
            any = true;
            continue;
        }
        if (ofi_conn_push(conn))
            any = true;
        else if (tpb_list_empty(&conn->due))
            tpb_list_append(&endpoint->stuck, &conn->due);
        conn_upcalls(conn);
    }
    return any;
}
