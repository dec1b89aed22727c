/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The visitor: finds the one of the peer's addresses that leads to it.
 *
 * Some lead nowhere, some to somebody else, and only a try can tell.  A call
 * that gets no answer stays open while the next address is called, so a dead
 * end costs a fraction of a second and not a TCP time-out.  One that was taken
 * but not answered may be the peer, busy with something else, so it stays open
 * for as long as there is patience.
 */
#include "config.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum {
    VISIT_DIAL_MS = 5000,          /* for one address to take the call */
    VISIT_JOIN_MS = 3000,          /* for libfabric, if there are other ways;
                                      doubled every round */
    VISIT_NEXT_MS = 250,           /* until the next address is called, while
                                      one is silent (RFC 8305, section 5) */
    VISIT_BUSY_MS = 1000,          /* ... or has taken the call */
    VISIT_FULL_MS = 10,            /* until one is called again where too many
                                      wait to be let in */
    VISIT_HUNG_UP_MS = 100,        /* ... or that has hung up; then doubled */
    VISIT_HANG_UPS = 3             /* ... of which the last one is final */
};

TPB_LOG_COMPONENT("ofi");

static void visit_next(struct ofi_visit *visit);

/* ---- what happened so far ---------------------------------------------- */

static int visit_ways(const struct ofi_visit *visit)
{
    return visit->endpoint->kind->within_host ? 1 : visit->card.count;
}

static const char *visit_where(const struct ofi_visit *visit, int at,
                               char text[64])
{
    if (visit->endpoint->kind->within_host)
        return "its socket on this host";
    return ofi_where_text(&visit->card.wheres[at], true, text);
}

static void visit_say(struct tpb_text *text, const char *where,
                      const char *what)
{
    tpb_text_add(text, "%s%s: %s", text->length > 0 ? "; " : "", where, what);
}

void ofi_visit_words(const struct ofi_visit *visit, struct tpb_text *text)
{
    static const char *const waits[] = {
        [OFI_DIALING] = "no answer yet",
        [OFI_ASKED] = "it accepted the connection, but has not answered yet",
        [OFI_LOADING] = "it answered, and waits for its turn",
        [OFI_JOINING] = "it answered, and libfabric is connecting"
    };
    char where[64];

    if (visit->history.length > 0)
        tpb_text_add(text, " %s;", visit->history.text);
    for (int at = 0; at < visit_ways(visit); at++)
        if (visit->calls[at] != NULL)
            tpb_text_add(text, " %s: %s;", visit_where(visit, at, where),
                         waits[visit->calls[at]->stage]);
        else if (visit->again[at] != 0)
            tpb_text_add(text, " %s: %s, and is tried again;",
                         visit_where(visit, at, where),
                         visit->hung_up[at] > 0 ? "it hung up"
                                                : "too many peers connect to "
                                                  "it");
}

/* One way is over: notes what it answered and goes on. */
static void visit_over(struct ofi_visit *visit, int at, tp_status status,
                       const char *text)
{
    char room[64];
    const char *where = visit_where(visit, at, room);

    tpb_debug("%s: %s", where, text);
    visit_say(&visit->history, where, text);
    visit->done[at] = true;
    visit->verdict = status;
    visit->next = 0;
    visit_next(visit);
}

/* A call came to nothing. */
static void visit_hang_up(struct ofi_meet *meet)
{
    struct ofi_conn *conn = meet->visit->conn;
    bool joining = conn->meet == meet;

    ofi_meet_drop(meet);
    if (joining)
        ofi_conn_reset(conn);
}

static void visit_lost(struct ofi_meet *meet, tp_status status,
                       const char *text)
{
    struct ofi_visit *visit = meet->visit;
    int at = meet->at;

    visit_hang_up(meet);
    visit_over(visit, at, status, text);
}

void ofi_visit_failed(struct ofi_conn *conn, tp_status status,
                      const char *text)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);

    visit_lost(conn->meet, status, text);
    ofi_meet_schedule(endpoint);   /* another call may have to wait */
}

/* This call was for nothing, and does not count: others were in the way. */
static void visit_again(struct ofi_meet *meet, int64_t ms)
{
    struct ofi_visit *visit = meet->visit;
    int at = meet->at;

    visit_hang_up(meet);
    visit->tries[at]--;
    visit->again[at] = ofi_meet_after(ms);
    visit->next = 0;
    visit_next(visit);
}

/* It hung up without an answer.  Of many callers the host sends those away who
 * were late to show the key (meet.c), which is no reason to give it up. */
static void visit_hung_up(struct ofi_meet *meet)
{
    unsigned times = ++meet->visit->hung_up[meet->at];

    if (times < VISIT_HANG_UPS)
        visit_again(meet, VISIT_HUNG_UP_MS << (times - 1));
    else
        visit_lost(meet, TP_ERR_UNREACHABLE,
                   "hung up without an answer, each time: another process "
                   "lives there, it just ended, or too many peers connect "
                   "to it");
}

/* ---- from the first call to the answer --------------------------------- */

/* Is there any other way that may still lead to the peer? */
static bool visit_has_other(const struct ofi_visit *visit, int than)
{
    for (int at = 0; at < visit_ways(visit); at++)
        if (at != than && !visit->done[at])
            return true;
    return false;
}

static uint64_t visit_join_deadline(const struct ofi_meet *meet)
{
    int64_t patience = ofi_meet_patience(meet->endpoint);
    int64_t limit = (int64_t)VISIT_JOIN_MS << meet->visit->round;

    if (!visit_has_other(meet->visit, meet->at)
        || (patience >= 0 && limit > patience))
        limit = patience;
    return ofi_meet_after(limit);
}

/* This is the one: the others have to wait. */
static void visit_choose(struct ofi_meet *meet)
{
    meet->conn = meet->visit->conn;
    meet->conn->meet = meet;
}

/* Where we call from is where the RDMA connection begins.  The kernel chooses
 * by its routes, which know nothing of what serves this rank best; our own
 * addresses stand in that order.  Within the host any is as good. */
static void visit_bind(const struct ofi_visit *visit, int at, int fd)
{
    const struct ofi_card *ours = &visit->endpoint->card;
    struct sockaddr_storage address;
    struct ofi_where from;
    socklen_t length;

    if (!visit->endpoint->kind->rdma || visit->card.host == ours->host
        || !ofi_where_beside(ours->wheres, ours->count,
                             &visit->card.wheres[at], &from))
        return;
    length = ofi_where_to_socket(&from, &address);
    if (bind(fd, (const struct sockaddr *)&address, length) < 0)
        tpb_debug("cannot call from a chosen address: %s", strerror(errno));
}

static int visit_dial(const struct ofi_visit *visit, int at,
                      const struct sockaddr_storage *address, socklen_t length)
{
    int fd = socket(address->ss_family,
                    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0)
        visit_bind(visit, at, fd);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, length) < 0
        && errno != EINPROGRESS)
        tpb_close(&fd);
    return fd;
}

static void visit_call(struct ofi_visit *visit, int at)
{
    struct ofi_meet *meet = ofi_meet_new(visit->endpoint);
    struct sockaddr_storage address;
    socklen_t length = visit->endpoint->kind->within_host
                           ? ofi_unix_address(visit->card.key, &address)
                           : ofi_where_to_socket(&visit->card.wheres[at],
                                                 &address);

    visit->tries[at]++;
    visit->again[at] = 0;
    if (meet == NULL) {
        visit_over(visit, at, TP_ERR_NO_MEMORY, "no memory for a meeting");
        return;
    }
    meet->visit = visit;
    meet->at = at;
    meet->stage = OFI_DIALING;
    visit->calls[at] = meet;
    meet->watch.fd = visit_dial(visit, at, &address, length);
    if (meet->watch.fd < 0 && errno == EAGAIN
        && visit->endpoint->kind->within_host) {
        /* A Unix socket's calls do not wait in the kernel. */
        visit_again(meet, VISIT_FULL_MS);
        return;
    }
    if (meet->watch.fd < 0
        || tpf_watch_add(visit->endpoint->common.env, &meet->watch, EPOLLOUT)
               != 0) {
        int code = errno;
        tp_status status = code == EMFILE || code == ENFILE
                               ? TP_ERR_SYSTEM : TP_ERR_UNREACHABLE;
        char text[96];

        snprintf(text, sizeof(text), "%s%s", strerror(code),
                 tpb_errno_remedy(code));
        visit_lost(meet, status, text);
        return;
    }
    meet->deadline = ofi_meet_after(VISIT_DIAL_MS);
    visit->next = ofi_meet_after(VISIT_NEXT_MS);
}

/* The socket is connected: says our note. */
static void visit_ask(struct ofi_meet *meet)
{
    const struct ofi_join *join = meet->endpoint->kind->join;
    struct ofi_visit *visit = meet->visit;
    struct tpb_error error = { "" };
    int code = tpb_socket_dialed(meet->watch.fd);

    if (code == 0 && !ofi_meet_note(meet, visit->card.key))
        code = errno;
    if (code != 0) {
        visit_lost(meet, TP_ERR_UNREACHABLE, strerror(code));
        return;
    }
    if (join->name_first) {
        tp_status status;

        visit_choose(meet);
        status = join->prepare(visit->conn, &error);
        if (status != TP_OK) {
            visit_lost(meet, status, error.text);
            return;
        }
    }
    if (!ofi_meet_say(meet)
        || tpf_watch_change(meet->endpoint->common.env, &meet->watch, EPOLLIN)
               != 0) {
        visit_hung_up(meet);
        return;
    }
    meet->stage = OFI_ASKED;
    meet->deadline = join->name_first
                         ? visit_join_deadline(meet)
                         : ofi_meet_after(ofi_meet_patience(meet->endpoint));
    visit->next = ofi_meet_after(VISIT_BUSY_MS);
}

/* A whole note has come. */
static void visit_answered(struct ofi_meet *meet)
{
    struct ofi_note *note = &meet->theirs;

    if (note->magic != htole32(OFI_MAGIC)) {
        visit_lost(meet, TP_ERR_UNREACHABLE, "something else lives there");
    } else if (note->status != htole32(TP_OK)) {
        char text[sizeof(note->text) + 16];

        /* What is wrong is wrong over there. */
        note->text[sizeof(note->text) - 1] = '\0';
        snprintf(text, sizeof(text), "it answers: %s", note->text);
        visit_lost(meet, TP_ERR_DENIED, text);
    } else {
        meet->stage = OFI_LOADING;
        visit_next(meet->visit);
    }
}

/* ---- joining ----------------------------------------------------------- */

static void visit_join(struct ofi_meet *meet)
{
    const struct ofi_join *join = meet->endpoint->kind->join;
    struct ofi_conn *conn = meet->visit->conn;
    struct tpb_error error = { "" };
    tp_status status = TP_OK;

    visit_choose(meet);
    meet->stage = OFI_JOINING;
    meet->deadline = visit_join_deadline(meet);
    if (!join->name_first)
        status = join->prepare(conn, &error);
    if (status == TP_OK)
        status = ofi_conn_terms(conn, &meet->theirs, &error);
    if (status == TP_OK)
        status = join->visit(conn, &error);    /* may be the visit's end */
    if (status != TP_OK)
        visit_lost(meet, status, error.text);
}

/* No more ways: the conn is not coming about. */
static void visit_give_up(struct ofi_visit *visit)
{
    const char *history = visit->history.text;

    ofi_conn_lost(visit->conn, visit->verdict, "%s",
                  history != NULL ? history : "it published no address that "
                                              "can be reached from here");
    ofi_visit_end(visit);
}

/* The best address that has not been called in this round, and need not wait
 * for it; -1: none. */
static int visit_pick(const struct ofi_visit *visit)
{
    uint64_t now = tpb_now();

    for (int at = 0; at < visit_ways(visit); at++)
        if (!visit->done[at] && visit->calls[at] == NULL
            && visit->tries[at] <= visit->round && visit->again[at] <= now)
            return at;
    return -1;
}

/* When the first of those that have to wait may be called; 0: there are
 * none. */
static uint64_t visit_wait(const struct ofi_visit *visit)
{
    uint64_t first = 0;

    for (int at = 0; at < visit_ways(visit); at++)
        if (visit->again[at] != 0 && (first == 0 || visit->again[at] < first))
            first = visit->again[at];
    return first;
}

/* The best call that has been answered; *open counts all. */
static struct ofi_meet *visit_best(const struct ofi_visit *visit, int *open)
{
    struct ofi_meet *best = NULL;

    *open = 0;
    for (int at = 0; at < visit_ways(visit); at++) {
        struct ofi_meet *meet = visit->calls[at];

        *open += meet != NULL;
        if (best == NULL && meet != NULL && meet->stage == OFI_LOADING)
            best = meet;
    }
    return best;
}

/* Does what there is to do now.  The visit may be over after this. */
static void visit_next(struct ofi_visit *visit)
{
    bool alone = visit->endpoint->kind->join->name_first;
    struct tpb_error error = { "" };
    struct ofi_meet *best;
    tp_status status = TP_OK;
    uint64_t wait;
    int open, at;

    best = visit_best(visit, &open);
    if (best != NULL && (visit->conn->meet == NULL
                         || visit->conn->meet == best)) {
        if (ofi_library_get(visit->endpoint->loaded.fd, &status, &error)
            != NULL) {
            visit_join(best);
        } else if (status != TP_OK) {
            ofi_conn_lost(visit->conn, status, "%s", error.text);
            ofi_visit_end(visit);
        } else {
            visit->next = 0;       /* it will be joined, once that is there */
        }
        return;
    }
    if (visit->conn->meet != NULL)
        return;                    /* one is being joined */
    if (open > 0 && (alone || visit->next > tpb_now()))
        return;
    at = visit_pick(visit);
    wait = visit_wait(visit);
    if (at < 0 && open == 0 && wait == 0 && visit_has_other(visit, -1)) {
        visit->round++;
        at = visit_pick(visit);
    }
    if (at >= 0)
        visit_call(visit, at);
    else if (open == 0 && wait == 0)
        visit_give_up(visit);
    else
        visit->next = wait;        /* all the others have been called */
}

/* ---- what moves it on -------------------------------------------------- */

void ofi_visit_ready(struct ofi_meet *meet, uint32_t events)
{
    bool gone = false;

    if (meet->stage == OFI_DIALING)
        visit_ask(meet);
    else if (meet->stage == OFI_ASKED && ofi_meet_read(meet, &gone))
        visit_answered(meet);
    else if (meet->stage == OFI_ASKED
             && (gone || events & (EPOLLHUP | EPOLLERR)))
        visit_hung_up(meet);
    else if (meet->stage != OFI_ASKED && !ofi_meet_settled(meet))
        visit_lost(meet, TP_ERR_UNREACHABLE, "hung up while joining");
}

void ofi_visit_late(struct ofi_meet *meet)
{
    struct ofi_visit *visit = meet->visit;

    if (meet->stage == OFI_DIALING) {
        visit_lost(meet, TP_ERR_UNREACHABLE, "no answer");
    } else if (meet->stage == OFI_ASKED) {
        visit_lost(meet, TP_ERR_UNREACHABLE,
                   "accepted the connection, but did not answer in time");
    } else if (visit_has_other(visit, meet->at)) {
        visit_hang_up(meet);       /* once more if the others fail too */
        visit->next = 0;
        visit_next(visit);
    } else {
        visit_lost(meet, TP_ERR_UNREACHABLE,
                   "answered, but libfabric did not join in time");
    }
}

void ofi_visit_timer(struct ofi_visit *visit, uint64_t now)
{
    if (visit->next == 0 || visit->next > now)
        return;
    visit->next = 0;
    visit_next(visit);
}

void ofi_visit_loaded(struct ofi_visit *visit)
{
    struct tpb_error error = { "" };
    tp_status status;

    if (!visit->loading) {
        visit_next(visit);
    } else if (ofi_library_get(visit->endpoint->loaded.fd, &status, &error)
               != NULL) {
        visit->loading = false;
        visit_next(visit);
    } else if (status != TP_OK) {
        ofi_conn_lost(visit->conn, status, "%s", error.text);
        ofi_visit_end(visit);
    }
}

tp_status ofi_visit_start(struct ofi_conn *conn, const struct ofi_card *card,
                          struct tpb_text *left_out, struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);
    struct ofi_visit *visit = tpb_zalloc(sizeof(*visit));
    const struct ofi_library *there;
    tp_status status;

    if (visit == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for a visit");
    visit->endpoint = endpoint;
    visit->conn = conn;
    visit->card = *card;
    visit->verdict = TP_ERR_UNREACHABLE;
    visit->history = *left_out;
    *left_out = (struct tpb_text){ 0 };
    tpb_list_init(&visit->link);
    tpb_list_append(&endpoint->visits, &visit->link);
    conn->visit = visit;
    /* It takes its time, so it starts at once. */
    there = ofi_library_get(endpoint->loaded.fd, &status, error);
    if (status != TP_OK) {
        ofi_visit_end(visit);
        return status;
    }
    visit->loading = there == NULL && endpoint->kind->join->name_first;
    if (!visit->loading)
        visit_next(visit);
    ofi_meet_schedule(endpoint);
    return TP_OK;
}

void ofi_visit_end(struct ofi_visit *visit)
{
    for (int at = 0; at < OFI_WHERES; at++)
        if (visit->calls[at] != NULL)
            ofi_meet_drop(visit->calls[at]);
    visit->conn->visit = NULL;
    tpb_list_unlink(&visit->link);
    tpb_text_fini(&visit->history);
    tpb_free(visit);
}
