/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where two processes meet before libfabric joins them: a TCP socket per
 * published address, or a Unix socket for what stays on the host.  Each side
 * says one note.  Whoever does not show the key is a stranger: it gets no
 * answer, some seconds, and is forgotten.
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

#define MEET_MAGIC 0x326f7074u     /* "tpo2" */

enum {
    MEET_DIAL_MS = 5000,           /* for one address to take the call */
    MEET_STRANGER_MS = 10000,      /* for a visitor to show the key */
    MEET_PAUSE_MS = 100            /* when there are no descriptors */
};

TPB_LOG_COMPONENT("ofi");

static void meet_next(struct ofi_meet *meet);
static void meet_ready(struct tpf_watch *watch, uint32_t events);

static uint64_t meet_after(int64_t ms)
{
    return ms < 0 ? 0 : tpb_now() + (uint64_t)ms * 1000000u;
}

static int64_t meet_patience(const struct ofi_meet *meet)
{
    const struct tpb_settings *settings =
        meet->endpoint->common.env->settings;

    return settings->number[TPB_SET_CONNECT_TIMEOUT];
}

/* ---- meetings come and go ---------------------------------------------- */

static struct ofi_meet *meet_new(struct ofi_endpoint *endpoint)
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

static void meet_hang_up(struct ofi_meet *meet)
{
    if (meet->watch.fd >= 0)
        tpf_watch_remove(meet->endpoint->common.env, &meet->watch);
    tpb_close(&meet->watch.fd);
}

/* Its memory stays until the next progress(): epoll may have returned an
 * event for it together with the one that brought us here. */
static void meet_end(struct ofi_meet *meet)
{
    meet_hang_up(meet);
    if (meet->conn != NULL)
        meet->conn->meet = NULL;
    else if (!meet->visitor)
        meet->endpoint->strangers--;
    meet->conn = NULL;
    meet->visitor = true;          /* not a stranger any more */
    meet->watch.ready = meet_ready;
    tpb_list_unlink(&meet->link);
    tpb_list_append(&meet->endpoint->dead, &meet->link);
}

void ofi_meet_bury(struct ofi_endpoint *endpoint)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&endpoint->dead)) != NULL) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);

        tpb_text_fini(&meet->history);
        tpb_free(meet);
    }
}

void ofi_meet_end(struct ofi_conn *conn)
{
    if (conn->meet != NULL)
        meet_end(conn->meet);
}

void ofi_meet_done(struct ofi_conn *conn)
{
    /* The host lets the visitor hang up first: the news of libfabric's
     * connection may be slower than that of this one's end. */
    if (conn->meet != NULL
        && (conn->meet->visitor || conn->meet->watch.fd < 0))
        meet_end(conn->meet);
}

/* ---- the visitor ------------------------------------------------------- */

/* No more addresses: the conn is not coming about. */
static void meet_give_up(struct ofi_meet *meet)
{
    struct ofi_conn *conn = meet->conn;
    const char *history = meet->history.text;

    ofi_conn_lost(conn, meet->verdict, "%s",
                  history != NULL ? history : "it published no address that "
                                              "can be reached from here");
    meet_end(meet);
}

void ofi_meet_failed(struct ofi_conn *conn, tp_status status, const char *text)
{
    struct ofi_meet *meet = conn->meet;
    char where[64] = "its socket on this host";

    if (meet == NULL || !meet->visitor) {
        ofi_conn_lost(conn, status, "%s", text);
        return;
    }
    if (!meet->endpoint->kind->within_host && meet->tried > 0)
        ofi_where_text(&meet->card.wheres[meet->tried - 1], true, where);
    tpb_text_add(&meet->history, "%s%s: %s",
                 meet->history.length > 0 ? "; " : "", where, text);
    meet->verdict = status;
    meet_hang_up(meet);
    ofi_conn_reset(conn);
    meet_next(meet);
}

static int meet_dial(const struct sockaddr_storage *address, socklen_t length)
{
    int fd = socket(address->ss_family,
                    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, length) < 0
        && errno != EINPROGRESS)
        tpb_close(&fd);
    return fd;
}

/* Tries the next address, if there is one. */
static void meet_next(struct ofi_meet *meet)
{
    int ways = meet->endpoint->kind->within_host ? 1 : meet->card.count;
    struct sockaddr_storage address;
    socklen_t length;

    if (meet->tried >= ways) {
        meet_give_up(meet);
        return;
    }
    length = meet->endpoint->kind->within_host
                 ? ofi_unix_address(meet->card.key, &address)
                 : ofi_where_to_socket(&meet->card.wheres[meet->tried],
                                       &address);
    meet->tried++;
    meet->got = 0;
    meet->stage = OFI_DIALING;
    meet->deadline = meet_after(MEET_DIAL_MS);
    meet->watch.fd = meet_dial(&address, length);
    if (meet->watch.fd < 0
        || tpf_watch_add(meet->endpoint->common.env, &meet->watch, EPOLLOUT)
               != 0) {
        tp_status status = errno == EMFILE || errno == ENFILE
                               ? TP_ERR_SYSTEM : TP_ERR_UNREACHABLE;

        tpb_close(&meet->watch.fd);
        ofi_meet_failed(meet->conn, status, strerror(errno));
    }
}

static void meet_note(struct ofi_meet *meet, const uint8_t *key)
{
    const struct ofi_kind *kind = meet->endpoint->kind;

    meet->ours.magic = htole32(MEET_MAGIC);
    meet->ours.max_frame = htole32(kind->max_frame);
    meet->ours.slots = htole32(kind->slots);
    if (key != NULL)
        memcpy(meet->ours.key, key, OFI_KEY);
}

static bool meet_say(struct ofi_meet *meet)
{
    ssize_t sent = send(meet->watch.fd, &meet->ours, sizeof(meet->ours),
                        MSG_NOSIGNAL);

    return sent == (ssize_t)sizeof(meet->ours);
}

/* Our address as the other side sees it, for the rail. */
static bool meet_self(struct ofi_meet *meet)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);

    if (meet->endpoint->kind->within_host)
        return true;
    memset(&address, 0, sizeof(address));
    return getsockname(meet->watch.fd, (struct sockaddr *)&address, &length)
               == 0
           && ofi_where_from_socket(&address, &meet->where);
}

/* The library is there: objects and notes that need it. */
static void meet_prepare(struct ofi_meet *meet)
{
    const struct ofi_join *join = meet->endpoint->kind->join;
    struct ofi_conn *conn = meet->conn;
    struct tpb_error error = { "" };
    tp_status status = join->prepare(conn, &error);

    if (status != TP_OK)
        ofi_meet_failed(conn, status, error.text);
}

/* The socket is connected: says our note. */
static void meet_ask(struct ofi_meet *meet)
{
    const struct ofi_join *join = meet->endpoint->kind->join;
    int code = 0;
    socklen_t length = sizeof(code);

    if (getsockopt(meet->watch.fd, SOL_SOCKET, SO_ERROR, &code, &length) < 0)
        code = errno;
    if (code != 0) {
        ofi_meet_failed(meet->conn, TP_ERR_UNREACHABLE, strerror(code));
        return;
    }
    memset(&meet->ours, 0, sizeof(meet->ours));
    meet_note(meet, meet->card.key);
    if (!meet_self(meet)) {
        ofi_meet_failed(meet->conn, TP_ERR_SYSTEM, strerror(errno));
        return;
    }
    if (join->name_first) {
        meet_prepare(meet);
        if (meet->conn == NULL || meet->stage != OFI_DIALING
            || meet->watch.fd < 0)
            return;
    }
    if (!meet_say(meet)
        || tpf_watch_change(meet->endpoint->common.env, &meet->watch, EPOLLIN)
               != 0) {
        ofi_meet_failed(meet->conn, TP_ERR_UNREACHABLE, "hung up at once");
        return;
    }
    meet->stage = OFI_ASKED;
    meet->deadline = meet_after(meet_patience(meet));
}

/* The library, or a wait for it.  True if it is there. */
static bool meet_library(struct ofi_meet *meet)
{
    struct tpb_error error = { "" };
    tp_status status;

    if (ofi_library_get(meet->endpoint->loaded.fd, &status, &error) != NULL)
        return true;
    if (status != TP_OK) {
        meet->card.count = 0;      /* the other addresses cannot help */
        meet->tried = OFI_WHERES;
        ofi_meet_failed(meet->conn, status, error.text);
    } else {
        meet->stage = OFI_LOADING;
        meet->deadline = 0;
    }
    return false;
}

/* The host has answered. */
static void meet_visit(struct ofi_meet *meet)
{
    const struct ofi_join *join = meet->endpoint->kind->join;
    struct ofi_conn *conn = meet->conn;
    struct ofi_note *note = &meet->theirs;
    struct tpb_error error = { "" };
    tp_status status;

    if (note->magic != htole32(MEET_MAGIC)) {
        ofi_meet_failed(conn, TP_ERR_PROTOCOL, "something else lives there");
        return;
    }
    if (note->status != htole32(TP_OK)) {
        note->text[sizeof(note->text) - 1] = '\0';
        ofi_meet_failed(conn, TP_ERR_DENIED, note->text);
        return;
    }
    if (!meet_library(meet))
        return;
    meet->stage = OFI_JOINING;
    meet->deadline = meet_after(meet_patience(meet));
    if (!join->name_first) {
        meet_prepare(meet);
        if (conn->meet != meet || meet->stage != OFI_JOINING)
            return;
    }
    status = ofi_conn_terms(conn, note, &error);
    if (status == TP_OK)
        status = join->visit(conn, &error);
    if (status != TP_OK)
        ofi_meet_failed(conn, status, error.text);
}

tp_status ofi_meet_visit(struct ofi_conn *conn, const struct ofi_card *card,
                         struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);
    struct ofi_meet *meet = meet_new(endpoint);
    const struct ofi_library *there;
    tp_status status;

    if (meet == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for a meeting");
    meet->visitor = true;
    meet->conn = conn;
    conn->meet = meet;
    meet->card = *card;
    meet->verdict = TP_ERR_UNREACHABLE;
    /* It takes its time, so it starts at once; RDM needs it for its note. */
    there = ofi_library_get(endpoint->loaded.fd, &status, error);
    if (status != TP_OK) {
        meet_end(meet);
        return status;
    }
    if (there == NULL && endpoint->kind->join->name_first)
        meet->stage = OFI_LOADING;
    else
        meet_next(meet);
    ofi_meet_schedule(endpoint);
    return TP_OK;
}

/* ---- the host ---------------------------------------------------------- */

/* Says no, once, and ends it. */
static void meet_refuse(struct ofi_meet *meet, tp_status status,
                        const char *text)
{
    meet->ours.magic = htole32(MEET_MAGIC);
    meet->ours.status = htole32((uint32_t)status);
    snprintf(meet->ours.text, sizeof(meet->ours.text), "%s", text);
    meet_say(meet);
    if (meet->conn != NULL)
        ofi_conn_drop(meet->conn);
    else
        meet_end(meet);
}

/* The library is there: prepares everything and answers. */
static void meet_host(struct ofi_meet *meet)
{
    const struct ofi_join *join = meet->endpoint->kind->join;
    struct ofi_conn *conn = meet->conn;
    struct tpb_error error = { "" };
    tp_status status = ofi_conn_terms(conn, &meet->theirs, &error);

    memset(&meet->ours, 0, sizeof(meet->ours));
    meet_note(meet, NULL);
    if (status == TP_OK && !meet_self(meet))
        status = tpb_fail_errno(&error, errno, "the socket's own address");
    if (status == TP_OK)
        status = join->prepare(conn, &error);
    if (status == TP_OK)
        status = join->host(conn, &error);
    if (status != TP_OK) {
        meet_refuse(meet, status, error.text);
        return;
    }
    if (!meet_say(meet)) {
        ofi_conn_drop(conn);
        return;
    }
    meet->deadline = meet_after(meet_patience(meet));
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

    if (meet->theirs.magic != htole32(MEET_MAGIC)
        || !tpb_equal_secret(meet->theirs.key, endpoint->card.key, OFI_KEY)) {
        tpb_debug("a stranger without the key was sent away");
        meet_end(meet);
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

/* The oldest stranger makes room. */
static void meet_crowd(struct ofi_endpoint *endpoint)
{
    if (endpoint->strangers < OFI_STRANGERS)
        return;
    TPB_LIST_EACH(node, &endpoint->meets) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);

        if (meet->conn == NULL && !meet->visitor) {
            meet_end(meet);
            return;
        }
    }
}

void ofi_meet_stranger(struct ofi_endpoint *endpoint, int fd)
{
    struct ofi_meet *meet;

    meet_crowd(endpoint);
    meet = meet_new(endpoint);
    if (meet == NULL) {
        close(fd);
        return;
    }
    endpoint->strangers++;
    meet->watch.fd = fd;
    meet->stage = OFI_STRANGER;
    meet->deadline = meet_after(MEET_STRANGER_MS);
    if (tpf_watch_add(endpoint->common.env, &meet->watch, EPOLLIN) != 0)
        meet_end(meet);
}

/* ---- what the socket says ---------------------------------------------- */

/* Reads the other's note; true when it is whole.  *gone: there will be none. */
static bool meet_read(struct ofi_meet *meet, bool *gone)
{
    ssize_t got = recv(meet->watch.fd, (char *)&meet->theirs + meet->got,
                       sizeof(meet->theirs) - meet->got, 0);

    *gone = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    if (got > 0)
        meet->got += (size_t)got;
    return got > 0 && meet->got == sizeof(meet->theirs);
}

/* The other side hung up, or says more than it should. */
static void meet_broken(struct ofi_meet *meet)
{
    struct ofi_conn *conn = meet->conn;

    if (conn == NULL || conn->joined) {
        meet_end(meet);
        return;
    }
    /* Once joined, the visitor hangs up; libfabric's word is then there. */
    if (meet->stage == OFI_JOINING && conn->rail != NULL
        && conn->rail->eq != NULL) {
        ofi_msg_events(conn->rail);
        if (conn->joined && conn->meet == meet)
            meet_end(meet);
        if (meet->conn != conn)
            return;
    }
    if (meet->visitor) {
        ofi_meet_failed(conn, TP_ERR_UNREACHABLE, "hung up without an answer");
    } else if (meet->stage == OFI_JOINING) {
        /* Joined already, as the visitor sees it: over RDMA the news may come
         * later than that of the socket's end. */
        meet_hang_up(meet);
        meet->deadline = meet_after(MEET_DIAL_MS);
    } else {
        ofi_conn_drop(conn);
    }
}

static void meet_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_meet *meet = TPB_CONTAINER(watch, struct ofi_meet, watch);
    struct ofi_endpoint *endpoint = meet->endpoint;
    bool gone = false;

    if (meet->watch.fd < 0)
        return;                    /* ended by an earlier event */
    if (meet->stage == OFI_DIALING) {
        meet_ask(meet);
    } else if (meet->got < sizeof(meet->theirs)) {
        if (meet_read(meet, &gone)) {
            if (meet->visitor)
                meet_visit(meet);
            else
                meet_introduced(meet);
        } else if (gone || events & (EPOLLHUP | EPOLLERR)) {
            meet_broken(meet);
        }
    } else {
        meet_broken(meet);
    }
    ofi_meet_schedule(endpoint);
}

void ofi_meet_loaded(struct ofi_endpoint *endpoint)
{
    TPB_LIST_EACH(node, &endpoint->meets) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);
        struct tpb_error error = { "" };
        tp_status status;

        if (meet->stage != OFI_LOADING || meet->conn == NULL)
            continue;
        if (ofi_library_get(endpoint->loaded.fd, &status, &error) == NULL
            && status == TP_OK)
            return;
        if (status != TP_OK && !meet->visitor)
            meet_refuse(meet, status, error.text);
        else if (!meet->visitor)
            meet_host(meet);
        else if (meet->got == sizeof(meet->theirs))
            meet_visit(meet);
        else if (meet_library(meet))
            meet_next(meet);
    }
    ofi_meet_schedule(endpoint);
}

/* ---- time -------------------------------------------------------------- */

static void meet_late(struct ofi_meet *meet)
{
    meet->deadline = 0;
    if (meet->conn == NULL || meet->conn->joined)
        meet_end(meet);
    else if (meet->visitor)
        ofi_meet_failed(meet->conn, TP_ERR_UNREACHABLE, "no answer in time");
    else
        ofi_conn_drop(meet->conn);
}

void ofi_meet_timers(struct ofi_endpoint *endpoint)
{
    uint64_t now = tpb_now();

    if (endpoint->listen_paused)
        ofi_listen_pause(endpoint, false);
    TPB_LIST_EACH(node, &endpoint->meets) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);

        if (meet->deadline != 0 && meet->deadline <= now)
            meet_late(meet);
    }
    ofi_meet_schedule(endpoint);
}

void ofi_meet_schedule(struct ofi_endpoint *endpoint)
{
    uint64_t next = endpoint->listen_paused ? meet_after(MEET_PAUSE_MS) : 0;
    struct itimerspec when = { .it_value = { 0 } };

    TPB_LIST_EACH(node, &endpoint->meets) {
        struct ofi_meet *meet = TPB_CONTAINER(node, struct ofi_meet, link);

        if (meet->deadline != 0 && (next == 0 || meet->deadline < next))
            next = meet->deadline;
    }
    when.it_value.tv_sec = (time_t)(next / 1000000000u);
    when.it_value.tv_nsec = (long)(next % 1000000000u);
    timerfd_settime(endpoint->timer.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void ofi_meet_close(struct ofi_endpoint *endpoint)
{
    while (!tpb_list_empty(&endpoint->meets)) {
        struct ofi_meet *meet = TPB_CONTAINER(endpoint->meets.next,
                                              struct ofi_meet, link);

        if (meet->conn != NULL && meet->conn->incoming)
            ofi_conn_drop(meet->conn);
        else
            meet_end(meet);
    }
    ofi_meet_bury(endpoint);
}
