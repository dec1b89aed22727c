/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joining with connected endpoints (FI_EP_MSG).  The host opens a door, a
 * passive endpoint at the address where the visitor met it, and tells its
 * port and a ticket; who comes to the door with the ticket is let in.  When
 * nobody is expected any more the door is closed together with its event
 * queue, so that whatever strangers left hanging there is gone too.
 *
 * Not so with libfabric's `net` (a silent rail): who has called there, and has
 * not said anything yet, is kept with a pointer to the passive endpoint, which
 * is used when he says something, also after it was closed.  So it stays open
 * as long as the rail, whose progress those callers are part of.
 */
#include "config.h"

#include <stdio.h>
#include <sys/epoll.h>

#include "fabric/ofi/ofi.h"

TPB_LOG_COMPONENT("ofi");

/* ---- the door ---------------------------------------------------------- */

static bool door_events(struct ofi_rail *rail);

static void door_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_door *door = TPB_CONTAINER(watch, struct ofi_door,
                                          events.watch);

    (void)events;
    if (!door_events(door->rail))
        ofi_events_calm(door->rail, &door->events);
}

void ofi_door_close(struct ofi_rail *rail)
{
    struct ofi_door *door = &rail->door;

    /* Nothing may read this queue once the pep is gone. */
    if (door->pep != NULL)
        fi_close(&door->pep->fid);
    door->pep = NULL;
    ofi_events_close(rail, &door->events);
}

static tp_status door_open(struct ofi_rail *rail, struct tpb_error *error)
{
    struct ofi_door *door = &rail->door;
    int code;

    if (door->pep != NULL)
        return TP_OK;
    door->events.watch.ready = door_ready;
    if (ofi_events_open(rail, &door->events, error) != TP_OK) {
        ofi_door_close(rail);
        return TP_ERR_BACKEND;
    }
    code = fi_passive_ep(rail->fabric, rail->info, &door->pep, NULL);
    if (code == 0)
        code = fi_pep_bind(door->pep, &door->events.eq->fid, 0);
    if (code == 0)
        code = fi_listen(door->pep);
    if (code == 0)
        return TP_OK;
    ofi_door_close(rail);
    return ofi_fail(error, code, "a passive endpoint");
}

static void door_expect(struct ofi_conn *conn)
{
    conn->invited = true;
    conn->rail->door.expected++;
}

/* The conn has come, or will not.  The door itself is closed by progress(),
 * because this may be called while its queue is read. */
static void door_forget(struct ofi_conn *conn)
{
    if (conn->invited)
        conn->rail->door.expected--;
    conn->invited = false;
}

/* ---- endpoints --------------------------------------------------------- */

static tp_status msg_endpoint(struct ofi_conn *conn, struct fi_info *info,
                              struct tpb_error *error)
{
    struct ofi_rail *rail = conn->rail;
    int code;

    conn->shared = ofi_cq_hold(rail, error);
    if (conn->shared == NULL)
        return TP_ERR_BACKEND;
    code = fi_endpoint(rail->domain, info, &conn->ep, conn);
    if (code == 0)
        code = fi_ep_bind(conn->ep, &rail->events.eq->fid, 0);
    if (code == 0)
        code = fi_ep_bind(conn->ep, &conn->shared->cq->fid,
                          FI_TRANSMIT | FI_RECV);
    if (code == 0)
        code = fi_enable(conn->ep);
    if (code != 0)
        return ofi_fail(error, code, "an endpoint");
    conn->joining = true;
    rail->joining++;
    return ofi_conn_post(conn, error);
}

static void msg_settled(struct ofi_conn *conn)
{
    if (conn->joining)
        conn->rail->joining--;
    conn->joining = false;
}

static tp_status msg_prepare(struct ofi_conn *conn, struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);

    conn->rail = ofi_rail_get(endpoint, &conn->meet->where, error);
    if (conn->rail == NULL)
        return TP_ERR_BACKEND;
    return ofi_conn_buffers(conn, error);
}

static tp_status msg_host(struct ofi_conn *conn, struct tpb_error *error)
{
    struct sockaddr_storage address;
    size_t length = sizeof(address);
    tp_status status = door_open(conn->rail, error);
    int code;

    if (status != TP_OK)
        return status;
    code = fi_getname(&conn->rail->door.pep->fid, &address, &length);
    if (code != 0)
        return ofi_fail(error, code, "the name of a passive endpoint");
    if (!ofi_where_from_socket(&address, &conn->meet->ours.where))
        return tpb_fail(error, TP_ERR_BACKEND,
                        "libfabric listens at an unknown kind of address");
    tpb_random(conn->ticket, sizeof(conn->ticket));
    memcpy(conn->meet->ours.key, conn->ticket, sizeof(conn->ticket));
    door_expect(conn);
    return TP_OK;
}

static tp_status msg_answered(struct ofi_conn *conn, struct tpb_error *error)
{
    (void)error;
    conn->meet->stage = OFI_JOINING;
    return TP_OK;
}

/* libfabric's event says it, and may come after the first message. */
static void msg_first(struct ofi_conn *conn)
{
    (void)conn;
}

static tp_status msg_visit(struct ofi_conn *conn, struct tpb_error *error)
{
    const struct ofi_note *note = &conn->meet->theirs;
    struct fi_info *info;
    tp_status status;
    int code;

    if (note->where.family != 4 && note->where.family != 6)
        return tpb_fail(error, TP_ERR_PROTOCOL, "it names no address");
    info = ofi_info_towards(conn->rail->info, &note->where);
    if (info == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for fi_info");
    status = msg_endpoint(conn, info, error);
    if (status == TP_OK) {
        code = fi_connect(conn->ep, info->dest_addr, note->key,
                          sizeof(note->key));
        if (code != 0)
            status = ofi_fail(error, code, "connecting");
    }
    ofi_lib->freeinfo(info);
    return status;
}

/* No fi_shutdown(): it may wait, and closing the socket says the same. */
static void msg_leave(struct ofi_conn *conn)
{
    msg_settled(conn);
    door_forget(conn);
    if (conn->ep != NULL) {
        fi_close(&conn->ep->fid);
        conn->ep = NULL;
        /* Completions of the closed endpoint still name our slots. */
        ofi_cq_drain(conn->shared->cq, true);
    }
    if (conn->shared != NULL)
        ofi_cq_drop(conn->shared);
    conn->shared = NULL;
}

const struct ofi_join ofi_join_msg = {
    .prepare = msg_prepare,
    .host = msg_host,
    .answered = msg_answered,
    .first = msg_first,
    .visit = msg_visit,
    .leave = msg_leave
};

/* ---- events ------------------------------------------------------------ */

static struct ofi_conn *msg_conn_of(struct ofi_rail *rail, fid_t fid)
{
    TPB_LIST_EACH(node, &rail->endpoint->conns) {
        struct ofi_conn *conn = TPB_CONTAINER(node, struct ofi_conn, link);

        if (conn->ep != NULL && &conn->ep->fid == fid)
            return conn;
    }
    return NULL;
}

static struct ofi_conn *msg_ticket(struct ofi_rail *rail, const void *ticket)
{
    TPB_LIST_EACH(node, &rail->endpoint->conns) {
        struct ofi_conn *conn = TPB_CONTAINER(node, struct ofi_conn, link);

        if (conn->invited && conn->rail == rail && conn->ep == NULL
            && tpb_equal_secret(conn->ticket, ticket, OFI_KEY))
            return conn;
    }
    return NULL;
}

/* Somebody at the door. */
static void door_request(struct ofi_rail *rail, struct fi_info *info,
                         const void *ticket, size_t length)
{
    struct ofi_conn *conn = length >= OFI_KEY ? msg_ticket(rail, ticket)
                                              : NULL;
    struct tpb_error error = { "" };
    int code = 0;

    if (conn == NULL) {
        tpb_debug("a visitor without a ticket was sent away");
        fi_reject(rail->door.pep, info->handle, NULL, 0);
    } else if (msg_endpoint(conn, info, &error) != TP_OK
               || (code = fi_accept(conn->ep, NULL, 0)) != 0) {
        if (code != 0)
            ofi_fail(&error, code, "accepting");
        if (conn->ep == NULL)
            fi_reject(rail->door.pep, info->handle, NULL, 0);
        ofi_conn_lost(conn, TP_ERR_BACKEND, "%s", error.text);
    }
    ofi_lib->freeinfo(info);
}

bool ofi_request_read(struct fid_eq *eq, struct ofi_request *request)
{
    struct fi_eq_err_entry gone = { .err_data_size = 0 };
    uint32_t kind = 0;
    ssize_t got = fi_eq_read(eq, &kind, &request->event,
                             sizeof(request->event), 0);

    request->info = NULL;
    if (got == -FI_EAVAIL)
        return fi_eq_readerr(eq, &gone, 0) >= 0;
    if (got < (ssize_t)sizeof(request->event.entry))
        return false;
    if (kind == FI_CONNREQ) {
        request->info = request->event.entry.info;
        request->length = (size_t)got - sizeof(request->event.entry);
        request->ticket = request->event.bytes + sizeof(request->event.entry);
    }
    return true;
}

static bool door_events(struct ofi_rail *rail)
{
    struct ofi_request request;
    bool any = false;

    while (rail->door.events.eq != NULL
           && ofi_request_read(rail->door.events.eq, &request)) {
        if (request.info != NULL)
            door_request(rail, request.info, request.ticket, request.length);
        any = true;
    }
    return any;
}

static void msg_error(struct ofi_rail *rail)
{
    struct fi_eq_err_entry entry = { .err_data_size = 0 };
    struct ofi_conn *conn;

    if (fi_eq_readerr(rail->events.eq, &entry, 0) < 0 || entry.fid == NULL)
        return;
    conn = msg_conn_of(rail, entry.fid);
    if (conn == NULL)
        return;
    msg_settled(conn);
    if (conn->joined) {
        ofi_cq_drain(conn->shared->cq, true);
        ofi_conn_lost(conn, TP_ERR_PEER_FAILED, "the connection broke: %s",
                      ofi_lib->strerror(entry.err));
    } else if (conn->visit != NULL) {
        ofi_meet_failed(conn, TP_ERR_UNREACHABLE,
                        ofi_lib->strerror(entry.err));
    } else {
        ofi_conn_lost(conn, TP_ERR_UNREACHABLE, "joining failed: %s",
                      ofi_lib->strerror(entry.err));
    }
}

static void msg_event(uint32_t kind, struct ofi_conn *conn)
{
    if (conn == NULL)
        return;
    msg_settled(conn);
    if (kind == FI_CONNECTED) {
        door_forget(conn);
        if (ofi_endpoint_of(conn->common.endpoint)->kind->max_lent > 0)
            ofi_socket_find(conn);
        ofi_meet_done(conn);
        ofi_conn_joined(conn);
    } else if (kind == FI_SHUTDOWN && conn->joined) {
        ofi_cq_drain(conn->shared->cq, true);
        ofi_conn_lost(conn, TP_ERR_PEER_FAILED,
                      "the other side closed the connection or is gone");
    } else if (kind == FI_SHUTDOWN && conn->visit != NULL) {
        ofi_meet_failed(conn, TP_ERR_UNREACHABLE, "hung up while joining");
    } else if (kind == FI_SHUTDOWN) {
        ofi_conn_lost(conn, TP_ERR_PEER_FAILED, "hung up while joining");
    }
}

bool ofi_msg_events(struct ofi_rail *rail)
{
    bool any = door_events(rail);

    if (rail->door.pep != NULL && rail->door.expected == 0 && !rail->silent)
        ofi_door_close(rail);
    for (;;) {
        union ofi_event event;
        uint32_t kind = 0;
        ssize_t got = fi_eq_read(rail->events.eq, &kind, &event,
                                 sizeof(event), 0);

        if (got == -FI_EAVAIL)
            msg_error(rail);
        else if (got < (ssize_t)sizeof(event.entry))
            return any;
        else
            msg_event(kind, msg_conn_of(rail, event.entry.fid));
        any = true;
    }
}
