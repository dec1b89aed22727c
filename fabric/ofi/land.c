/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Long frames in two messages of libfabric's: the head, and the body, from and
 * to where it lies.
 *
 * A body that is received into a slot has to be copied once more.  So a sender
 * that may lend the body sends it apart; when the head has come, the receiver
 * asks the core for the place, and posts that.  Until then no other buffer may
 * be posted, for libfabric would put the body there: while long frames come,
 * one is posted at a time.  A body that finds one all the same is copied.
 *
 * The body is one call of the kernel's.  Until that is over the kernel reads no
 * acknowledgements and so has new pages for all of it; of several calls, it
 * seems, the later ones get the pages of the first, which the other core has
 * just read and still has in its cache.
 *
 * Where libfabric fills a buffer only within calls of ours (over TCP), nothing
 * writes to the place but those, until the body is there or its endpoint is
 * closed.
 */
#include "config.h"

#include "fabric/ofi/ofi.h"
#include "runtime/base/touch.h"

enum { LAND_CAREFUL = 32 };        /* short frames until more are posted */

size_t ofi_land_room(const struct ofi_endpoint *endpoint)
{
    const struct ofi_kind *kind = endpoint->kind;

    return endpoint->common.env->lands && kind->max_lent > kind->max_frame
           ? kind->max_lent : kind->max_frame;
}

static size_t land_body(const struct ofi_conn *conn)
{
    return conn->coming->size - conn->coming->length;
}

/* Room for the body behind the head. */
static char *land_behind(const struct ofi_conn *conn)
{
    return (char *)(conn->coming->head + 1) + conn->coming->length;
}

/* ---- the sender ---------------------------------------------------------- */

ssize_t ofi_land_send(struct ofi_conn *conn, struct ofi_slot *slot,
                      size_t head_length)
{
    size_t length = sizeof(*slot->head) + head_length;
    ssize_t code;

    slot->head->flags |= htole32(OFI_FLAG_SPLIT);
    code = fi_inject(conn->ep, slot->head, length, conn->peer);
    if (code != 0)
        return code;
    conn->half = slot;
    ofi_land_push(conn);
    return 0;
}

bool ofi_land_push(struct ofi_conn *conn)
{
    struct ofi_slot *slot = conn->half;
    ssize_t code;

    if (slot == NULL)
        return true;
    code = fi_send(conn->ep, slot->data, slot->length, NULL, conn->peer,
                   &slot->context);
    if (code == -FI_EAGAIN)
        ofi_conn_is_due(conn);
    else if (code != 0)
        ofi_conn_broken(conn, (int)code);
    if (code != 0)
        return false;
    ofi_conn_stir(conn);
    conn->half = NULL;
    return true;
}

/* ---- the receiver -------------------------------------------------------- */

uint32_t ofi_land_posts(const struct ofi_conn *conn, uint32_t most)
{
    if (conn->coming != NULL && !conn->asked)
        return 0;
    return conn->careful > 0 ? 1 : most;
}

void ofi_land_head(struct ofi_conn *conn, struct ofi_slot *slot, size_t length)
{
    slot->length = length - sizeof(*slot->head);
    conn->coming = slot;
    conn->place = NULL;
    conn->asked = conn->posts > 0;
    conn->careful = LAND_CAREFUL;
    if (conn->told)
        tpf_conn_ready(&conn->common);
}

/* Is this the body?  Then all of the frame is there; the next one may be in the
 * next slot, so it does not wait for the core. */
static void land_came(struct ofi_conn *conn, size_t length, const void *slot)
{
    struct ofi_slot *frame = conn->coming;

    if (length != land_body(conn)) {
        ofi_conn_lost(conn, TP_ERR_PROTOCOL, "a body has the wrong length");
        return;
    }
    if (slot != NULL)
        tpb_copy(conn->place != NULL ? conn->place : land_behind(conn), slot,
                 length);
    conn->coming = NULL;
    conn->place = NULL;
    ofi_conn_arrived(conn, frame);
}

void ofi_land_slot(struct ofi_conn *conn, struct ofi_slot *slot, size_t length)
{
    land_came(conn, length, slot->head);
    ofi_slot_give(&conn->receive, slot);
}

void ofi_land_done(struct ofi_conn *conn, size_t length)
{
    if (!conn->lost)
        land_came(conn, length, NULL);
}

bool ofi_land_post(struct ofi_conn *conn)
{
    ssize_t code;

    if (conn->coming == NULL || conn->place == NULL || conn->asked)
        return true;
    code = fi_recv(conn->ep, conn->place, land_body(conn), NULL,
                   FI_ADDR_UNSPEC, &conn->body.context);
    if (code == -FI_EAGAIN)
        return false;
    if (code != 0) {
        ofi_conn_broken(conn, (int)code);
        return true;
    }
    conn->asked = true;
    ofi_conn_stir(conn);
    return true;
}

/* ---- for the core -------------------------------------------------------- */

const void *ofi_conn_coming(struct tpf_conn *common, size_t *head,
                            size_t *size)
{
    struct ofi_conn *conn = ofi_conn_of(common);

    if (conn->coming == NULL || conn->place != NULL
        || conn->arrived.first != NULL || conn->lost)
        return NULL;
    *head = conn->coming->length;
    *size = conn->coming->size;
    return conn->coming->head + 1;
}

void ofi_conn_land(struct tpf_conn *common, void *to)
{
    struct ofi_conn *conn = ofi_conn_of(common);

    conn->body.use = OFI_BODY;
    conn->body.conn = conn;
    conn->place = to != NULL ? to : land_behind(conn);
    if (to != NULL)
        tpb_touch_to_write(to, land_body(conn));
    if (!ofi_conn_push(conn))
        ofi_conn_is_due(conn);
}

void ofi_land_leave(struct ofi_conn *conn)
{
    conn->coming = NULL;
    conn->place = NULL;
    conn->careful = 0;
}
