/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Is the other side still there?  The socket where two processes met knows:
 * see ofi.h.  A host that crashed, or whose cable was pulled, stops answering
 * the kernel's probes; TP_HEARTBEAT is the time after which that is believed.
 *
 * TCP_USER_TIMEOUT on libfabric's own socket would not do: it also ends a
 * connection to a living peer that takes nothing for a while (its window is
 * shut), as a computing one does.
 */
#include "config.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/io.h"

enum {
    LIFE_LEAST_S = 5,              /* whole seconds are the kernel's unit, and
                                      one lost probe must not be a death */
    LIFE_LOOK_MS = 500,            /* how often busy conns are looked at */
    LIFE_LIMITS = 3,               /* for messages that do not arrive: there
                                      are networks that lose some */
    LIFE_GRACE_MS = 800            /* for libfabric to tell of an end, too */
};

TPB_LOG_COMPONENT("ofi");

/* Seconds; 0: probes are switched off. */
static int life_limit(const struct ofi_endpoint *endpoint)
{
    int64_t ms = endpoint->common.env->settings->number[TPB_SET_HEARTBEAT];
    int64_t seconds = (ms + 999) / 1000;

    if (ms <= 0 || endpoint->kind->within_host)
        return 0;
    if (seconds < LIFE_LEAST_S)
        return LIFE_LEAST_S;
    return seconds > 86400 ? 86400 : (int)seconds;
}

static bool life_set(struct ofi_conn *conn, int level, int option, int value)
{
    return setsockopt(conn->life.fd, level, option, &value, sizeof(value))
           == 0;
}

/* A quiet conn is found after two looks at most; the rest of the limit, less
 * a second, is shared by the wait for the first probe and the unanswered
 * ones. */
static void life_probes(struct ofi_conn *conn, int limit)
{
    int rest = limit - 1 - 2 * LIFE_LOOK_MS / 1000;
    int idle = rest * 3 / 8 > 0 ? rest * 3 / 8 : 1;
    int interval = (rest - idle) / 4 > 0 ? (rest - idle) / 4 : 1;
    int count = (rest - idle) / interval > 0 ? (rest - idle) / interval : 1;

    if (!life_set(conn, IPPROTO_TCP, TCP_KEEPIDLE, idle)
        || !life_set(conn, IPPROTO_TCP, TCP_KEEPINTVL, interval)
        || !life_set(conn, IPPROTO_TCP, TCP_KEEPCNT, count))
        tpb_warn("TP_HEARTBEAT: cannot be set on a socket: %s",
                 strerror(errno));
}

/* Later the socket does not know any more. */
static void life_remember(struct ofi_conn *conn)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);

    memset(&address, 0, sizeof(address));
    if (getpeername(conn->life.fd, (struct sockaddr *)&address, &length) == 0)
        ofi_where_from_socket(&address, &conn->life_peer);
}

static void life_list(struct ofi_conn *conn)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);

    tpb_list_unlink(&conn->lively);
    tpb_list_append(&endpoint->lively, &conn->lively);
    if (endpoint->life_look == 0)
        endpoint->life_look = ofi_meet_after(LIFE_LOOK_MS);
    ofi_meet_schedule(endpoint);
}

/* The look that ends the grace of an end that the socket told. */
static uint64_t life_grace_over(const struct ofi_conn *conn)
{
    return conn->life_ended + LIFE_GRACE_MS * UINT64_C(1000000);
}

void ofi_life_heard(struct ofi_conn *conn)
{
    conn->probing = !life_set(conn, SOL_SOCKET, SO_KEEPALIVE, 0);
    life_list(conn);
}

/* Everything that came in before the end is still to be delivered. */
static void life_lost(struct ofi_conn *conn, const char *text)
{
    struct fid_cq *cq = conn->cq != NULL ? conn->cq
                        : conn->shared != NULL ? conn->shared->cq : NULL;

    if (cq != NULL && !conn->lost)
        ofi_cq_drain(cq, true);
    ofi_conn_lost(conn, TP_ERR_PEER_FAILED, "%s", text);
}

static void life_silent(struct ofi_conn *conn, int code)
{
    char where[64], text[192];

    snprintf(text, sizeof(text), "%s does not answer any more (%s): the host "
             "crashed, or the network to it is cut (TP_HEARTBEAT is %d s)",
             ofi_where_text(&conn->life_peer, false, where), strerror(code),
             life_limit(ofi_endpoint_of(conn->common.endpoint)));
    life_lost(conn, text);
}

/*
 * The socket has ended.  libfabric's own connection has too, or is about to;
 * what is still under way there comes first, so it gets some time.  Providers
 * of datagrams never tell: for them this is the end.
 */
static void life_ready(struct tpf_watch *watch, uint32_t events)
{
    static const char gone[] =
        "the other side closed the connection or is gone";
    struct ofi_conn *conn = TPB_CONTAINER(watch, struct ofi_conn, life);
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);
    char byte;
    ssize_t got;

    (void)events;
    if (watch->fd < 0)
        return;
    got = recv(watch->fd, &byte, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0 && errno != ECONNRESET) {
        life_silent(conn, errno);
    } else if (endpoint->kind->type == FI_EP_RDM) {
        life_lost(conn, gone);
    } else {
        conn->life_ended = tpb_now();
        if (endpoint->life_look > life_grace_over(conn))
            endpoint->life_look = life_grace_over(conn);
        life_list(conn);
    }
    /* Of the datagrams' objects nothing is touched any more but to close
     * them: this tells a twin (rdm.c) that it may go. */
    tpf_watch_remove(endpoint->common.env, watch);
    tpb_close(&watch->fd);
    conn->probing = false;
}

tp_status ofi_life_keep(struct ofi_conn *conn, struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);
    struct tpf_env *env = endpoint->common.env;
    int code, limit = life_limit(endpoint);

    tpf_watch_remove(env, &conn->meet->watch);
    conn->life.fd = conn->meet->watch.fd;
    conn->life.ready = life_ready;
    conn->meet->watch.fd = -1;
    code = tpf_watch_add(env, &conn->life, EPOLLIN | EPOLLRDHUP);
    if (code != 0) {
        tpb_close(&conn->life.fd);
        return tpb_fail_errno(error, code, "watching the peer");
    }
    conn->heard = true;
    if (limit > 0) {
        life_remember(conn);
        life_probes(conn, limit);
        life_list(conn);
    }
    return TP_OK;
}

void ofi_life_leave(struct ofi_conn *conn)
{
    tpb_list_unlink(&conn->lively);
    if (conn->life.fd >= 0)
        tpf_watch_remove(conn->common.endpoint->env, &conn->life);
    tpb_close(&conn->life.fd);
    conn->probing = false;
    conn->life_ended = conn->stuck_since = 0;
}

/*
 * Is what was last said on the socket not confirmed yet?  The kernel then sends
 * that again instead of probes, for a quarter of an hour, unless it is told a
 * limit; which must go again before there are probes, or the first one that is
 * lost would be the end.
 */
static bool life_waits(struct ofi_conn *conn)
{
    int limit = life_limit(ofi_endpoint_of(conn->common.endpoint));
    int unconfirmed = 0;

    if (ioctl(conn->life.fd, SIOCOUTQ, &unconfirmed) != 0)
        unconfirmed = 0;
    life_set(conn, IPPROTO_TCP, TCP_USER_TIMEOUT,
             unconfirmed > 0 ? (limit - 2) * 1000 : 0);
    return unconfirmed > 0;
}

void ofi_life_sends(struct ofi_conn *conn)
{
    if (tpb_list_empty(&conn->lively))
        life_list(conn);
}

/* A search takes milliseconds where descriptors are many, so one is enough for
 * each turn of looks.  True: this conn's is still to come. */
static bool life_seeks(struct ofi_conn *conn, bool *sought)
{
    if (conn->wire >= 0 || conn->wire_sought || conn->ep == NULL)
        return false;
    if (*sought)
        return true;
    *sought = true;
    ofi_socket_seek(conn);
    return false;
}

/*
 * The host answers; but does what is sent to it arrive?  A firewall may have
 * forgotten the connection, or long packets may vanish on the way.  The kernel
 * goes on for a quarter of an hour.  False: all is confirmed, or nobody knows;
 * it need not be looked at.
 */
static bool life_stuck(struct ofi_conn *conn, uint64_t now)
{
    int limit = life_limit(ofi_endpoint_of(conn->common.endpoint));
    int64_t silent = ofi_socket_silent(conn), stuck;
    char where[64], text[320];

    if (silent <= 0) {
        conn->stuck_since = 0;
        return silent == 0;
    }
    if (conn->stuck_since == 0)
        conn->stuck_since = now;
    /* The pipe may have rested before it was sent. */
    stuck = (int64_t)((now - conn->stuck_since) / 1000000);
    if (stuck > silent)
        stuck = silent;
    if (stuck < LIFE_LIMITS * limit * 1000)
        return true;
    snprintf(text, sizeof(text), "%s answers, but messages do not arrive there:"
             " nothing is confirmed for %d s (TP_HEARTBEAT is %d s); does a "
             "firewall drop the connection, or is the MTU larger than what the "
             "network passes on?",
             ofi_where_text(&conn->life_peer, false, where),
             (int)(stuck / 1000), limit);
    tpb_list_unlink(&conn->lively);
    life_lost(conn, text);
    return true;
}

static void life_look(struct ofi_conn *conn, uint64_t now, bool *sought)
{
    if (conn->lost) {
        tpb_list_unlink(&conn->lively);
    } else if (conn->life_ended != 0) {
        if (now < life_grace_over(conn))
            return;
        tpb_list_unlink(&conn->lively);
        life_lost(conn, "the other side closed the connection or is gone");
    } else if (conn->heard) {
        conn->heard = false;
        conn->stuck_since = 0;
    } else if (!life_waits(conn)) {
        conn->probing = life_set(conn, SOL_SOCKET, SO_KEEPALIVE, 1);
        if (!life_seeks(conn, sought) && !life_stuck(conn, now))
            tpb_list_unlink(&conn->lively);
    }
}

void ofi_life_timers(struct ofi_endpoint *endpoint, uint64_t now)
{
    bool sought = false;

    if (endpoint->life_look == 0 || endpoint->life_look > now)
        return;
    endpoint->life_look = ofi_meet_after(LIFE_LOOK_MS);
    TPB_LIST_EACH(node, &endpoint->lively) {
        struct ofi_conn *conn = TPB_CONTAINER(node, struct ofi_conn, lively);

        life_look(conn, now, &sought);
        if (conn->life_ended != 0 && !conn->lost
            && endpoint->life_look > life_grace_over(conn))
            endpoint->life_look = life_grace_over(conn);
    }
    if (tpb_list_empty(&endpoint->lively))
        endpoint->life_look = 0;
}

uint64_t ofi_life_next(const struct ofi_endpoint *endpoint)
{
    return endpoint->life_look;
}
