/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where two processes meet before libfabric joins them: a TCP socket per
 * published address, or a Unix socket for what stays on the host.  Each side
 * says one note.  Whoever does not show the key is a stranger: it gets no
 * answer, some seconds, and is forgotten.  The visitor's part is in visit.c.
 */
#include "config.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum {
    MEET_STRANGER_MS = 10000,      /* for a visitor to show the key */
    MEET_STOPPED_MS = 1000,        /* late by that: this process was stopped, or
                                      nobody drove ... */
    MEET_LONGER_MS = 5000          /* ... and it goes on, at most so long */
};

TPB_LOG_COMPONENT("ofi");

static void meet_ready(struct tpf_watch *watch, uint32_t events);

uint64_t ofi_meet_after(int64_t ms)
{
    return ms < 0 ? 0 : tpb_now() + (uint64_t)ms * 1000000u;
}

int64_t ofi_meet_patience(const struct ofi_endpoint *endpoint)
{
    const struct tpb_settings *settings = endpoint->common.env->settings;

    return settings->number[TPB_SET_CONNECT_TIMEOUT];
}

/* ---- meetings come and go ---------------------------------------------- */

struct ofi_meet *ofi_meet_new(struct ofi_endpoint *endpoint)
{
    struct ofi_meet *meet = tpb_zalloc(sizeof(*meet));

    if (meet == NULL)
        return NULL;
    meet->endpoint = endpoint;
    meet->watch.fd = -1;
    meet->watch.ready = meet_ready;
    tpb_list_init(&meet->link);
    tpb_list_append(&endpoint->meets, &meet->link);
    return meet;
}

/* Its memory stays until the next progress(): epoll may have returned an
 * event for it together with the one that brought us here. */
void ofi_meet_drop(struct ofi_meet *meet)
{
    if (meet->watch.fd >= 0)
        tpf_watch_remove(meet->endpoint->common.env, &meet->watch);
    tpb_close(&meet->watch.fd);
    if (meet->conn != NULL)
        meet->conn->meet = NULL;
    if (meet->visit != NULL)
        meet->visit->calls[meet->at] = NULL;
    else if (meet->stage == OFI_STRANGER)
        meet->endpoint->strangers--;
    meet->conn = NULL;
    meet->visit = NULL;
    meet->stage = OFI_JOINING;     /* not a stranger any more */
    meet->deadline = 0;
    tpb_list_unlink(&meet->link);
    tpb_list_append(&meet->endpoint->dead, &meet->link);
}

void ofi_meet_bury(struct ofi_endpoint *endpoint)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&endpoint->dead)) != NULL)
        tpb_free(TPB_CONTAINER(node, struct ofi_meet, link));
}

void ofi_meet_end(struct ofi_conn *conn)
{
    if (conn->visit != NULL)
        ofi_visit_end(conn->visit);
    if (conn->meet != NULL)
        ofi_meet_drop(conn->meet);
}

void ofi_meet_done(struct ofi_conn *conn)
{
    struct tpb_error error = { "" };

    if (conn->meet != NULL && conn->meet->watch.fd >= 0
        && ofi_life_keep(conn, &error) != TP_OK)
        ofi_conn_lost(conn, TP_ERR_SYSTEM, "%s", error.text);
    ofi_meet_end(conn);
}

void ofi_meet_failed(struct ofi_conn *conn, tp_status status, const char *text)
{
    if (conn->visit != NULL && conn->meet != NULL)
        ofi_visit_failed(conn, status, text);
    else
        ofi_conn_lost(conn, status, "%s", text);
}

/* ---- what is said ------------------------------------------------------ */

bool ofi_meet_note(struct ofi_meet *meet, const uint8_t *key)
{
    const struct ofi_kind *kind = meet->endpoint->kind;
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);

    memset(&meet->ours, 0, sizeof(meet->ours));
    meet->ours.magic = htole32(OFI_MAGIC);
    meet->ours.max_frame = htole32(kind->max_frame);
    meet->ours.slots = htole32(kind->slots);
    if (kind->max_lent > 0 && meet->endpoint->common.env->lands)
        meet->ours.splits = OFI_SPLITS;
    meet->ours.bundles = OFI_BUNDLES;
    if (kind->posts > 0)
        meet->ours.shorts = OFI_SHORTS;
    if (key != NULL)
        memcpy(meet->ours.key, key, OFI_KEY);
    if (kind->within_host)
        return true;
    /* Our address as the other side sees it, for the rail. */
    memset(&address, 0, sizeof(address));
    return getsockname(meet->watch.fd, (struct sockaddr *)&address, &length)
               == 0
           && ofi_where_from_socket(&address, &meet->where);
}

bool ofi_meet_say(struct ofi_meet *meet)
{
    ssize_t sent = send(meet->watch.fd, &meet->ours, sizeof(meet->ours),
                        MSG_NOSIGNAL);

    return sent == (ssize_t)sizeof(meet->ours);
}

bool ofi_meet_read(struct ofi_meet *meet, bool *gone)
{
    ssize_t got = recv(meet->watch.fd, (char *)&meet->theirs + meet->got,
                       sizeof(meet->theirs) - meet->got, 0);

    *gone = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    if (got > 0)
        meet->got += (size_t)got;
    return got > 0 && meet->got == sizeof(meet->theirs);
}

bool ofi_meet_settled(struct ofi_meet *meet)
{
    struct ofi_conn *conn = meet->conn;

    if (meet->stage != OFI_JOINING || conn == NULL || conn->rail == NULL
        || conn->rail->events.eq == NULL)
        return false;
    ofi_msg_events(conn->rail);
    return meet->conn != conn;
}

/* ---- the host ---------------------------------------------------------- */

/* Says no, once, and ends it. */
static void meet_refuse(struct ofi_meet *meet, tp_status status,
                        const char *text)
{
    ofi_meet_note(meet, NULL);
    meet->ours.status = htole32((uint32_t)status);
    snprintf(meet->ours.text, sizeof(meet->ours.text), "%s", text);
    ofi_meet_say(meet);
    if (meet->conn != NULL)
        ofi_conn_drop(meet->conn);
    else
        ofi_meet_drop(meet);
}

/* The library is there: prepares everything and answers. */
static void meet_host(struct ofi_meet *meet)
{
    const struct ofi_join *join = meet->endpoint->kind->join;
    struct ofi_conn *conn = meet->conn;
    struct tpb_error error = { "" };
    tp_status status = ofi_conn_terms(conn, &meet->theirs, &error);

    if (!ofi_meet_note(meet, NULL) && status == TP_OK)
        status = tpb_fail_errno(&error, errno, "the socket's own address");
    if (status == TP_OK)
        status = join->prepare(conn, &error);
    if (status == TP_OK)
        status = join->host(conn, &error);
    if (status != TP_OK) {
        meet_refuse(meet, status, error.text);
        return;
    }
    if (!ofi_meet_say(meet)) {
        ofi_conn_drop(conn);
        return;
    }
    meet->deadline = ofi_meet_after(ofi_meet_patience(meet->endpoint));
    if (join->answered(conn, &error) != TP_OK)
        ofi_conn_drop(conn);
}

/* A stranger has said a whole note. */
static void meet_introduced(struct ofi_meet *meet)
{
    struct ofi_endpoint *endpoint = meet->endpoint;
    struct ofi_conn *conn;
    struct tpb_error error = { "" };
    tp_status status;

    if (meet->theirs.magic != htole32(OFI_MAGIC)
        || !tpb_equal_secret(meet->theirs.key, endpoint->card.key, OFI_KEY)) {
        tpb_debug("a stranger without the key was sent away");
        ofi_meet_drop(meet);
        return;
    }
    conn = (struct ofi_conn *)tpf_conn_new(&endpoint->common);
    if (conn == NULL) {
        meet_refuse(meet, TP_ERR_NO_MEMORY, "no memory for a connection");
        return;
    }
    ofi_conn_init(conn);
    conn->incoming = true;
    conn->meet = meet;
    meet->conn = conn;
    endpoint->strangers--;
    meet->stage = OFI_LOADING;
    meet->deadline = 0;
    if (ofi_library_get(endpoint->loaded.fd, &status, &error) != NULL)
        meet_host(meet);
    else if (status != TP_OK)
        meet_refuse(meet, status, error.text);
}

/* Of many, the oldest makes room as soon as it has had its time: who has the
 * key shows it at once, and of a thousand such that call at once each has its
 * turn.  NULL: there are not so many, or none has. */
static struct ofi_meet *meet_slow(struct ofi_endpoint *endpoint)
{
    if (endpoint->strangers < OFI_STRANGERS)
        return NULL;
    TPB_LIST_EACH(node, &endpoint->meets) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);

        if (meet->stage == OFI_STRANGER)
            return ofi_meet_after(MEET_STRANGER_MS - OFI_STRANGER_MS)
                   < meet->deadline ? NULL : meet;
    }
    return NULL;
}

bool ofi_meet_full(struct ofi_endpoint *endpoint)
{
    return endpoint->strangers >= OFI_STRANGERS && meet_slow(endpoint) == NULL;
}

void ofi_meet_stranger(struct ofi_endpoint *endpoint, int fd)
{
    struct ofi_meet *slow = meet_slow(endpoint), *meet;

    if (slow != NULL)
        ofi_meet_drop(slow);
    meet = ofi_meet_new(endpoint);
    if (meet == NULL) {
        close(fd);
        return;
    }
    endpoint->strangers++;
    meet->watch.fd = fd;
    meet->stage = OFI_STRANGER;
    meet->deadline = ofi_meet_after(MEET_STRANGER_MS);
    if (tpf_watch_add(endpoint->common.env, &meet->watch, EPOLLIN) != 0)
        ofi_meet_drop(meet);
}

/* ---- what the socket says ---------------------------------------------- */

/* The visitor hung up, or says more than it should. */
static void meet_broken(struct ofi_meet *meet)
{
    if (meet->conn == NULL || meet->conn->joined)
        ofi_meet_drop(meet);
    else if (!ofi_meet_settled(meet))
        ofi_conn_drop(meet->conn);
}

static void meet_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_meet *meet = TPB_CONTAINER(watch, struct ofi_meet, watch);
    struct ofi_endpoint *endpoint = meet->endpoint;
    bool gone = false;

    if (meet->watch.fd < 0)
        return;                    /* ended by an earlier event */
    if (meet->visit != NULL)
        ofi_visit_ready(meet, events);
    else if (meet->got == sizeof(meet->theirs))
        meet_broken(meet);
    else if (ofi_meet_read(meet, &gone))
        meet_introduced(meet);
    else if (gone || events & (EPOLLHUP | EPOLLERR))
        meet_broken(meet);
    if (endpoint->listen_full && endpoint->strangers <= OFI_STRANGERS / 2)
        ofi_listen_pause(endpoint, 0);
    ofi_meet_schedule(endpoint);
}

void ofi_meet_loaded(struct ofi_endpoint *endpoint)
{
    TPB_LIST_EACH(node, &endpoint->meets) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);
        struct tpb_error error = { "" };
        tp_status status;

        if (meet->stage != OFI_LOADING || meet->visit != NULL)
            continue;
        if (ofi_library_get(endpoint->loaded.fd, &status, &error) != NULL)
            meet_host(meet);
        else if (status != TP_OK)
            meet_refuse(meet, status, error.text);
    }
    TPB_LIST_EACH(node, &endpoint->visits)
        ofi_visit_loaded(TPB_CONTAINER(node, struct ofi_visit, link));
    ofi_meet_schedule(endpoint);
}

/* ---- time -------------------------------------------------------------- */

static void meet_late(struct ofi_meet *meet)
{
    meet->deadline = 0;
    if (meet->visit != NULL)
        ofi_visit_late(meet);
    else if (meet->conn == NULL || meet->conn->joined)
        ofi_meet_drop(meet);
    else
        ofi_conn_drop(meet->conn);
}

/* Is it found late because nobody looked for long? */
static bool meet_excused(struct ofi_meet *meet, uint64_t looked)
{
    return tpb_excuse(&meet->deadline, &meet->longer, looked,
                      MEET_STOPPED_MS * UINT64_C(1000000),
                      MEET_LONGER_MS * UINT64_C(1000000));
}

/* From the beginning each time: one that is late may take others with it. */
static struct ofi_meet *meet_overdue(struct ofi_endpoint *endpoint,
                                     uint64_t now)
{
    TPB_LIST_EACH(node, &endpoint->meets) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);

        if (meet->deadline != 0 && meet->deadline <= now
            && !meet_excused(meet, endpoint->looked))
            return meet;
    }
    return NULL;
}

/* The clock rings again at once if there is anything that is late by now. */
void ofi_meet_timers(struct ofi_endpoint *endpoint)
{
    uint64_t now = tpb_look(&endpoint->looked);

    if (endpoint->listen_paused != 0 && endpoint->listen_paused <= tpb_now())
        ofi_listen_pause(endpoint, 0);
    for (struct ofi_meet *meet; (meet = meet_overdue(endpoint, now)) != NULL;)
        meet_late(meet);
    TPB_LIST_EACH(node, &endpoint->visits)
        ofi_visit_timer(TPB_CONTAINER(node, struct ofi_visit, link), now);
    ofi_life_timers(endpoint, now);
    ofi_meet_schedule(endpoint);
}

static void meet_sooner(uint64_t *next, uint64_t when)
{
    if (when != 0 && (*next == 0 || when < *next))
        *next = when;
}

void ofi_meet_schedule(struct ofi_endpoint *endpoint)
{
    uint64_t next = ofi_life_next(endpoint);
    struct itimerspec when = { .it_value = { 0 } };

    meet_sooner(&next, endpoint->listen_paused);
    TPB_LIST_EACH(node, &endpoint->meets)
        meet_sooner(&next,
                    TPB_CONTAINER(node, struct ofi_meet, link)->deadline);
    TPB_LIST_EACH(node, &endpoint->visits)
        meet_sooner(&next, TPB_CONTAINER(node, struct ofi_visit, link)->next);
    when.it_value.tv_sec = (time_t)(next / 1000000000u);
    when.it_value.tv_nsec = (long)(next % 1000000000u);
    timerfd_settime(endpoint->timer.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void ofi_meet_close(struct ofi_endpoint *endpoint)
{
    TPB_LIST_EACH(node, &endpoint->visits)
        ofi_visit_end(TPB_CONTAINER(node, struct ofi_visit, link));
    while (!tpb_list_empty(&endpoint->meets)) {
        struct ofi_meet *meet = TPB_CONTAINER(endpoint->meets.next,
                                              struct ofi_meet, link);

        if (meet->conn != NULL && meet->conn->incoming)
            ofi_conn_drop(meet->conn);
        else
            ofi_meet_drop(meet);
    }
    ofi_meet_bury(endpoint);
}
