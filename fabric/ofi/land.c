/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Long frames in several messages of libfabric's: the head, and the body in
 * pieces, from and to where it lies.
 *
 * A body that is received into a slot has to be copied once more.  So a sender
 * that may lend the body sends it apart; when the head has come, the receiver
 * asks the core for the place, and posts that, for all pieces at once.  Until
 * then no other buffer may be posted, for libfabric would put the body there:
 * while long frames come, one is posted at a time.  Pieces that find some all
 * the same are copied.
 *
 * One head for many pieces, because it costs as much as any other message.  Not
 * one piece for all, because the sender's kernel reads no acknowledgements
 * before a call is over.  Both sides cut a body alike.
 *
 * Where libfabric fills a buffer only within calls of ours (over TCP), nothing
 * writes to the place but those, until the body is there or its endpoint is
 * closed.  And it does not look at contexts, so that all pieces have one.
 */
#include "config.h"

#include <sys/mman.h>

#include "fabric/ofi/ofi.h"

enum { LAND_CAREFUL = 32 };        /* short frames until more are posted */

static const struct ofi_kind *land_kind(const struct ofi_conn *conn)
{
    return ofi_endpoint_of(conn->common.endpoint)->kind;
}

/* The last piece takes what would be too short to go alone. */
static size_t land_most(const struct ofi_kind *kind)
{
    return kind->piece + kind->piece / 4;
}

size_t ofi_land_room(const struct ofi_kind *kind)
{
    size_t most = land_most(kind) + OFI_SPLIT_HEAD;

    return kind->piece > 0 && most > kind->max_frame ? most : kind->max_frame;
}

/* The next piece, when so many bytes are left. */
static size_t land_piece(const struct ofi_conn *conn, size_t left)
{
    const struct ofi_kind *kind = land_kind(conn);

    return left <= land_most(kind) ? left : kind->piece;
}

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
    slot->at = 0;
    conn->half = slot;
    ofi_land_push(conn);
    return 0;
}

bool ofi_land_push(struct ofi_conn *conn)
{
    struct ofi_slot *slot = conn->half;
    ssize_t code;

    while (slot != NULL) {
        size_t piece = land_piece(conn, slot->length - slot->at);

        code = fi_send(conn->ep, (const char *)slot->data + slot->at, piece,
                       NULL, conn->peer, &slot->context);
        if (code == -FI_EAGAIN)
            ofi_conn_is_due(conn);
        else if (code != 0)
            ofi_conn_broken(conn, (int)code);
        if (code != 0)
            return false;
        ofi_conn_stir(conn);
        slot->pieces++;
        slot->at += piece;
        if (slot->at == slot->length)
            slot = conn->half = NULL;
    }
    return true;
}

/* ---- the receiver -------------------------------------------------------- */

uint32_t ofi_land_posts(const struct ofi_conn *conn, uint32_t most)
{
    if (conn->coming != NULL && conn->asked < land_body(conn))
        return 0;
    return conn->careful > 0 ? 1 : most;
}

void ofi_land_head(struct ofi_conn *conn, struct ofi_slot *slot, size_t length)
{
    size_t body;

    slot->size = le32toh(slot->head->size);
    slot->length = length - sizeof(*slot->head);
    conn->coming = slot;
    conn->place = NULL;
    conn->asked = conn->here = 0;
    body = land_body(conn);
    for (uint32_t i = 0; i < conn->posts && conn->asked < body; i++)
        conn->asked += land_piece(conn, body - conn->asked);
    conn->careful = LAND_CAREFUL;
    if (conn->told)
        tpf_conn_ready(&conn->common);
}

/* All of the frame is there. */
static void land_over(struct ofi_conn *conn)
{
    struct ofi_slot *slot = conn->coming;

    conn->coming = NULL;
    conn->place = NULL;
    ofi_conn_arrived(conn, slot);
}

/* A buffer for what fits no slot; NULL without memory. */
static struct ofi_head *land_longer(struct ofi_conn *conn)
{
    struct ofi_head *memory = conn->longer;

    conn->longer = NULL;
    if (memory == NULL)
        memory = mmap(NULL, sizeof(*memory) + land_kind(conn)->max_lent,
                      PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

static void land_free(struct ofi_conn *conn, struct ofi_head *memory)
{
    if (memory != NULL)
        munmap(memory, sizeof(*memory) + land_kind(conn)->max_lent);
}

void ofi_land_home(struct ofi_conn *conn, struct ofi_slot *slot)
{
    struct ofi_head *memory = slot->head;

    slot->head = slot->home;
    slot->home = NULL;
    land_free(conn, conn->longer);
    conn->longer = memory;
}

/* Room behind the head; NULL without memory. */
static char *land_behind(struct ofi_conn *conn)
{
    struct ofi_slot *slot = conn->coming;
    size_t head = sizeof(*slot->head) + slot->length;

    if (slot->size > ofi_land_room(land_kind(conn))) {
        struct ofi_head *longer = land_longer(conn);

        if (longer == NULL)
            return NULL;
        memcpy(longer, slot->head, head);
        slot->home = slot->head;
        slot->head = longer;
    }
    return (char *)slot->head + head;
}

/* The body goes there, or behind the head: that has come of it, and what will
 * come.  False: it is lost. */
static bool land_there(struct ofi_conn *conn, void *to)
{
    struct ofi_slot *slot;
    size_t at = 0;

    conn->place = to != NULL ? to : land_behind(conn);
    if (conn->place == NULL) {
        ofi_conn_lost(conn, TP_ERR_NO_MEMORY,
                      "no memory for a frame of %zu bytes",
                      conn->coming->size);
        return false;
    }
    while ((slot = ofi_queue_take(&conn->early)) != NULL) {
        memcpy(conn->place + at, slot->head, slot->size);
        at += slot->size;
        ofi_slot_give(&conn->receive, slot);
    }
    return true;
}

/* Is it the next piece? */
static bool land_good(struct ofi_conn *conn, size_t length)
{
    if (length == land_piece(conn, land_body(conn) - conn->here))
        return true;
    ofi_conn_lost(conn, TP_ERR_PROTOCOL, "a body has the wrong length");
    return false;
}

/* The next frame may be in the next slot: it cannot wait for the core. */
static void land_came(struct ofi_conn *conn, size_t length)
{
    conn->here += length;
    if (conn->here == land_body(conn)
        && (conn->place != NULL || land_there(conn, NULL)))
        land_over(conn);
}

/* It found a slot that had been posted before. */
void ofi_land_slot(struct ofi_conn *conn, struct ofi_slot *slot, size_t length)
{
    bool good = land_good(conn, length);

    if (good && conn->place == NULL) {
        slot->size = length;
        ofi_queue_add(&conn->early, slot);
    } else {
        if (good)
            memcpy(conn->place + conn->here, slot->head, length);
        ofi_slot_give(&conn->receive, slot);
    }
    if (good)
        land_came(conn, length);
}

void ofi_land_done(struct ofi_conn *conn, size_t length)
{
    if (!conn->lost && land_good(conn, length))
        land_came(conn, length);
}

bool ofi_land_post(struct ofi_conn *conn)
{
    if (conn->coming == NULL || conn->place == NULL)
        return true;
    while (conn->asked < land_body(conn)) {
        size_t piece = land_piece(conn, land_body(conn) - conn->asked);
        ssize_t code = fi_recv(conn->ep, conn->place + conn->asked, piece,
                               NULL, FI_ADDR_UNSPEC, &conn->body.context);

        if (code == -FI_EAGAIN)
            return false;
        if (code != 0) {
            ofi_conn_broken(conn, (int)code);
            return true;
        }
        ofi_conn_stir(conn);
        conn->asked += piece;
    }
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
    if (land_there(conn, to) && !ofi_conn_push(conn))
        ofi_conn_is_due(conn);
}

void ofi_land_leave(struct ofi_conn *conn)
{
    for (unsigned i = 0; i < conn->receive.count; i++)
        if (conn->receive.slot[i].home != NULL)
            land_free(conn, conn->receive.slot[i].head);
    land_free(conn, conn->longer);
    conn->longer = NULL;
    conn->coming = NULL;
    conn->place = NULL;
    conn->careful = 0;
    memset(&conn->early, 0, sizeof(conn->early));
}
