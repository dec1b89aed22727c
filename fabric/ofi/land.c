/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Long frames in two messages of libfabric's: the head, and the body from and
 * to where it lies.
 *
 * A body that is received into a slot has to be copied once more.  So a sender
 * that may lend the body sends it apart; when the head has come, the receiver
 * asks the core for the place, and posts that.  Until then no other buffer may
 * be posted, for libfabric would put the body there: while long frames come,
 * one is posted at a time.  A body that finds one all the same is copied.
 *
 * Where libfabric fills a buffer only within calls of ours (over TCP), nothing
 * writes to the place but those, until the body is there or its endpoint is
 * closed.
 */
#include "config.h"

#include "fabric/ofi/ofi.h"

enum { LAND_CAREFUL = 32 };        /* short frames until more are posted */

static size_t land_body(const struct ofi_conn *conn)
{
    return conn->coming->size - conn->coming->length;
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
    if (code == 0)
        conn->half = NULL;
    else if (code == -FI_EAGAIN)
        ofi_conn_is_due(conn);
    else
        ofi_conn_broken(conn, (int)code);
    return code == 0;
}

/* ---- the receiver -------------------------------------------------------- */

uint32_t ofi_land_posts(const struct ofi_conn *conn, uint32_t most)
{
    if (conn->coming != NULL && !conn->landing)
        return 0;
    return conn->careful > 0 ? 1 : most;
}

void ofi_land_head(struct ofi_conn *conn, struct ofi_slot *slot, size_t length)
{
    slot->size = le32toh(slot->head->size);
    slot->length = length - sizeof(*slot->head);
    conn->coming = slot;
    conn->careful = LAND_CAREFUL;
    if (conn->told)
        tpf_conn_ready(&conn->common);
}

/* All of the frame is there. */
static void land_over(struct ofi_conn *conn)
{
    struct ofi_slot *slot = conn->coming;

    conn->coming = NULL;
    ofi_conn_arrived(conn, slot);
}

/* It found a slot that had been posted before. */
void ofi_land_slot(struct ofi_conn *conn, struct ofi_slot *slot, size_t length)
{
    struct ofi_slot *coming = conn->coming;

    if (length == land_body(conn))
        memcpy((char *)(coming->head + 1) + coming->length, slot->head,
               length);
    else
        ofi_conn_lost(conn, TP_ERR_PROTOCOL, "a body has the wrong length");
    ofi_slot_give(&conn->receive, slot);
    if (!conn->lost)
        land_over(conn);
}

void ofi_land_done(struct ofi_conn *conn, size_t length)
{
    conn->landing = false;
    if (conn->lost)
        return;
    if (length == land_body(conn))
        land_over(conn);
    else
        ofi_conn_lost(conn, TP_ERR_PROTOCOL, "a body has the wrong length");
}

/* ---- for the core -------------------------------------------------------- */

const void *ofi_conn_coming(struct tpf_conn *common, size_t *head,
                            size_t *size)
{
    struct ofi_conn *conn = ofi_conn_of(common);

    if (conn->coming == NULL || conn->place != NULL || conn->posts > 0
        || conn->arrived.first != NULL || conn->lost)
        return NULL;
    *head = conn->coming->length;
    *size = conn->coming->size;
    return conn->coming->head + 1;
}

bool ofi_land_post(struct ofi_conn *conn)
{
    ssize_t code;

    if (conn->place == NULL)
        return true;
    conn->body.use = OFI_BODY;
    conn->body.conn = conn;
    code = fi_recv(conn->ep, conn->place, land_body(conn), NULL,
                   FI_ADDR_UNSPEC, &conn->body.context);
    if (code == -FI_EAGAIN)
        return false;
    conn->place = NULL;
    if (code == 0)
        conn->landing = true;
    else
        ofi_conn_broken(conn, (int)code);
    return true;
}

void ofi_conn_land(struct tpf_conn *common, void *to)
{
    struct ofi_conn *conn = ofi_conn_of(common);
    struct ofi_slot *slot = conn->coming;

    conn->place = to != NULL ? to : (char *)(slot->head + 1) + slot->length;
    if (!ofi_conn_push(conn))
        ofi_conn_is_due(conn);
}
