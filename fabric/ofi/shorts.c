/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Short frames beyond the slots.
 *
 * Each frame under way has its slot at the receiver, of which there are few, as
 * each has room for the longest one: where the way is far, a sender of short
 * messages waits for most of each round trip.  So there may be many more frames
 * under way if they are short, and the receiver copies those for which it has
 * no slot to spare to smaller ones.
 *
 * Only where the way is far: what a process that is killed has sent and its
 * kernel has not, for the receiver's is full, is lost, as credit that it has
 * not read makes that a reset.  So next door it is no more than the slots are
 * for.  Who receives does not ask how far it is, as the other side may find
 * that another way.
 */
#include "config.h"

#include "fabric/ofi/ofi.h"

static bool shorts_open(struct ofi_conn *conn)
{
    struct tpb_error error;

    if (ofi_slots_open(&conn->kept, conn, OFI_SHORT_MOST, OFI_SHORT, FI_RECV,
                       &error) != TP_OK) {
        ofi_slots_close(&conn->kept);
        ofi_conn_lost(conn, TP_ERR_NO_MEMORY, "%s", error.text);
        return false;
    }
    for (unsigned i = 0; i < conn->kept.count; i++)
        conn->kept.slot[i].kept = true;
    return true;
}

struct ofi_slot *ofi_shorts_keep(struct ofi_conn *conn, struct ofi_slot *slot)
{
    struct ofi_slot *kept;

    if (conn->receive.available >= OFI_CONTROL_SLOTS || slot->size >= OFI_SHORT
        || !conn->keeps)
        return slot;
    kept = conn->kept.count > 0 || shorts_open(conn)
               ? ofi_slot_take(&conn->kept) : NULL;
    if (kept != NULL) {
        kept->size = slot->size;
        kept->bundle = slot->bundle;
        kept->at = slot->at;
        memcpy(kept->head, slot->head, sizeof(*slot->head) + slot->size);
    }
    ofi_slot_give(&conn->receive, slot);
    return kept;
}

void ofi_shorts_give(struct ofi_conn *conn, struct ofi_slot *slot)
{
    ofi_slot_give(slot->kept ? &conn->kept : &conn->receive, slot);
}
