/* SPDX-License-Identifier: BSD-3-Clause */
/* What libfabric has to say of a conn's messages when they do not go through,
 * and whose fault that is. */
#include "config.h"

#include "fabric/ofi/ofi.h"

TPB_LOG_COMPONENT("ofi");

/* Libfabric said no to sending.  What came in before is still to be read, so
 * the end is left to the event that follows; if none does, to the clock. */
void ofi_conn_broken(struct ofi_conn *conn, int code)
{
    if (conn->broken || conn->lost)
        return;
    tpb_debug("broken: %s", ofi_lib->strerror(code < 0 ? -code : code));
    conn->broken = true;
    conn->broken_since = tpb_now();
    ofi_conn_is_due(conn);
}

/* The peer is well, but the program's memory was not there when the kernel
 * copied: it was when it was named (touch.h).  A part of the frame is gone, and
 * with it the order of all that follows. */
static void broken_memory(struct ofi_conn *conn, const char *what)
{
    ofi_conn_lost(conn, TP_ERR_SYSTEM, "%s (Bad address): this program has"
                  " unmapped or protected it, or cut its file, while the"
                  " message was under way", what);
}

/* For those that are cancelled an event says what happened; if none does, the
 * clock. */
static void broken_receive(struct ofi_conn *conn, int code)
{
    if (code == FI_ECANCELED)
        ofi_conn_broken(conn, code);
    else if (code == FI_EFAULT)
        broken_memory(conn, "memory given to a read cannot be written");
    else
        ofi_conn_lost(conn, TP_ERR_PEER_FAILED, "receiving failed: %s",
                      ofi_lib->strerror(code));
}

void ofi_conn_error(struct ofi_conn *conn, struct ofi_slot *slot, int code)
{
    slot->posted = false;
    if (slot->use == OFI_RECEIVE) {
        conn->posts--;
        ofi_slot_give(&conn->receive, slot);
    }
    if (slot->use == OFI_RECEIVE || slot->use == OFI_BODY) {
        broken_receive(conn, code);
        return;
    }
    if (slot->use == OFI_READ)
        ofi_rma_done(slot, code);
    else if (slot->use == OFI_SEND)
        ofi_slot_give(&conn->send, slot);
    else if (code == FI_EFAULT)
        broken_memory(conn, "memory of a message cannot be read");
    ofi_conn_broken(conn, code);
}
