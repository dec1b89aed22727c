/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How two processes come to share a segment: a Unix socket with an abstract
 * name, one message each way.  The socket stays open; its hang-up is how a
 * process learns at once that the other is gone.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "fabric/shm/shm.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("shm");

enum {
    SHM_BACKLOG = 4096,
    SHM_RETRY_MS = 2,
    SHM_PAUSE_MS = 100             /* when there are no descriptors */
};

static const char wireup_magic[4] = { 't', 'p', 's', 'h' };
static const char wireup_call_magic[4] = { 't', 'p', 's', 'd' };

static socklen_t wireup_name(const struct shm_address *address,
                             struct sockaddr_un *name)
{
    memset(name, 0, sizeof(*name));
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path + 1, address->name, address->name_length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1
                       + address->name_length);
}

static int wireup_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* ---- notes: what is passed beside the frames ---------------------------- */

/* One that waits for room: the socket holds some hundred. */
struct wireup_note {
    struct tpb_list link;
    size_t length;
    unsigned char bytes[TPF_NOTE];
};

static bool wireup_say(struct shm_conn *conn, const void *note, size_t length,
                       int fd)
{
    return tpb_send_fds(conn->watch.fd, note, length, &fd, fd >= 0)
           == (ssize_t)length;
}

/* What was kept; false if some still is. */
static bool wireup_notes_go(struct shm_conn *conn)
{
    if (tpb_list_empty(&conn->notes))
        return true;
    while (!tpb_list_empty(&conn->notes)) {
        struct wireup_note *note = TPB_CONTAINER(conn->notes.next,
                                                 struct wireup_note, link);

        if (!wireup_say(conn, note->bytes, note->length, -1))
            return false;
        tpb_list_unlink(&note->link);
        tpb_free(note);
    }
    tpf_watch_change(conn->base.endpoint->env, &conn->watch,
                     EPOLLIN | EPOLLRDHUP);
    return true;
}

/* What is not needed any more is told so, and not much: those who pass
 * descriptors wait until all of it has gone. */
static bool wireup_note_keep(struct shm_conn *conn, const void *bytes,
                             size_t length)
{
    struct wireup_note *note = tpb_zalloc(sizeof(*note));

    if (note == NULL)
        return false;
    memcpy(note->bytes, bytes, length);
    note->length = length;
    if (tpb_list_empty(&conn->notes))
        tpf_watch_change(conn->base.endpoint->env, &conn->watch,
                         EPOLLIN | EPOLLRDHUP | EPOLLOUT);
    tpb_list_append(&conn->notes, &note->link);
    return true;
}

void shm_notes_drop(struct shm_conn *conn)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&conn->notes)) != NULL)
        tpb_free(TPB_CONTAINER(node, struct wireup_note, link));
}

bool shm_pass(struct tpf_conn *base, const void *note, size_t length, int fd)
{
    struct shm_conn *conn = shm_conn(base);

    /* A hung-up socket takes no more, and its frames go nowhere either. */
    if (conn->state != SHM_OPEN)
        return false;
    return (wireup_notes_go(conn) && wireup_say(conn, note, length, fd))
           || (fd < 0 && wireup_note_keep(conn, note, length));
}

/* End of file is a hang-up; so is a note that is too long to be one. */
void shm_notes(struct tpf_conn *base)
{
    struct shm_conn *conn = shm_conn(base);
    struct tpf_env *env = base->endpoint->env;

    while (conn->state == SHM_OPEN) {
        unsigned char note[TPF_NOTE + 1];
        int fd = -1, count = 1;
        ssize_t got = tpb_recv_fds(conn->watch.fd, note, sizeof(note), &fd,
                                   &count);

        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0 || got > TPF_NOTE) {
            tpb_close(&fd);
            shm_hang_up(conn);
            return;
        }
        env->upcalls->passed(env->core, base, note, (size_t)got, fd);
    }
}

/* ---- the connecting side ----------------------------------------------- */

static void wireup_refused(struct shm_conn *conn,
                           const struct shm_welcome *welcome)
{
    char text[sizeof(welcome->why) + 32];

    snprintf(text, sizeof(text), "it refused the connection: %.*s",
             (int)sizeof(welcome->why), welcome->why[0] != '\0'
             ? welcome->why : tp_strerror((tp_status)welcome->status));
    shm_fail(conn, welcome->status == TP_ERR_DENIED ? TP_ERR_DENIED
                                                    : TP_ERR_BACKEND, text);
}

static bool wireup_is_doorbell(struct shm_conn *conn, int fd)
{
    return tpb_eventfd_like(fd, shm_endpoint(conn)->doorbell.fd);
}

static void wireup_welcome(struct shm_conn *conn)
{
    struct shm_welcome welcome;
    int fds[2] = { -1, -1 }, count = 2;
    ssize_t got = tpb_recv_fds_from(conn->watch.fd, &welcome, sizeof(welcome),
                                    fds, &count, &conn->peer_pid);

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (got <= 0) {
        shm_fail(conn, TP_ERR_PEER_FAILED,
                 "it ended, or refused, before the connection was made");
    } else if (got != sizeof(welcome)
               || memcmp(welcome.magic, wireup_magic, 4) != 0
               || welcome.version != SHM_VERSION) {
        shm_fail(conn, TP_ERR_PROTOCOL, "its answer was not tp's");
    } else if (welcome.status != 0) {
        wireup_refused(conn, &welcome);
    } else if (count != 2 || welcome.slot >= SHM_SLOTS
               || (conn->mailbox = shm_mailbox_map(fds[0])) == NULL) {
        shm_fail(conn, TP_ERR_PROTOCOL,
                 "its answer brought no mailbox (out of descriptors?)");
    } else if (!wireup_is_doorbell(conn, fds[1])) {
        shm_fail(conn, TP_ERR_PROTOCOL, "its doorbell is no eventfd");
    } else {
        struct tpf_env *env = conn->base.endpoint->env;

        conn->doorbell = fds[1];
        fds[1] = -1;
        conn->peer_slot = welcome.slot;
        conn->state = SHM_OPEN;
        shm_death_watch(conn);
        shm_watch_ring(conn);
        env->upcalls->connected(env->core, &conn->base);
    }
    tpb_close(&fds[0]);
    tpb_close(&fds[1]);
}

/* The socket of a conn has something to say, or room for what was kept. */
static void wireup_ready(struct tpf_watch *watch, uint32_t events)
{
    struct shm_conn *conn = TPB_CONTAINER(watch, struct shm_conn, watch);

    if (conn->state == SHM_GREETED)
        wireup_welcome(conn);
    else if (conn->state == SHM_OPEN) {
        shm_notes(&conn->base);
        if (conn->state == SHM_OPEN && (events & EPOLLOUT) != 0)
            (void)wireup_notes_go(conn);
        if (conn->state == SHM_OPEN
            && (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0)
            shm_hang_up(conn);
    }
}

void shm_hang_up(struct shm_conn *conn)
{
    tpf_watch_remove(conn->base.endpoint->env, &conn->watch);
    shm_death_forget(conn);
    conn->state = SHM_HUNG_UP;
    conn->hung_up = true;
    /* The core peeks; when the ring is empty peek() reports the failure. */
    tpf_conn_ready(&conn->base);
}

int shm_peer_pid(struct tpf_conn *base)
{
    struct shm_conn *conn = shm_conn(base);
    struct ucred peer = { 0 };
    socklen_t length = sizeof(peer);

    if (conn->called)
        return conn->peer_pid;
    return getsockopt(conn->watch.fd, SOL_SOCKET, SO_PEERCRED, &peer,
                      &length) < 0 ? 0 : peer.pid;
}

/* ---- greeting ----------------------------------------------------------- */

static void wireup_timer(struct shm_endpoint *endpoint, long ms)
{
    struct itimerspec soon = { .it_value.tv_nsec = ms * 1000000 };

    timerfd_settime(endpoint->timer.fd, 0, &soon, NULL);
}

static tp_status wireup_later(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    conn->state = SHM_RETRY;
    tpb_list_append(&endpoint->retries, &conn->link);
    wireup_timer(endpoint, SHM_RETRY_MS);
    return TP_OK;
}

/* The kernel lets no more descriptors of a user be under way, of all its ranks,
 * than one process may have open: the hello is said again on the same socket.
 * Or the peer has sent us away meanwhile: then it is called again. */
static tp_status wireup_crowded(struct shm_conn *conn, int code,
                                struct tpb_error *error)
{
    shm_segment_unmap(conn);
    conn->dialed = code == ETOOMANYREFS;
    if (conn->dialed)
        return wireup_later(conn);
    tpb_close(&conn->watch.fd);
    conn->called = false;
    conn->watch.fd = wireup_socket();
    return conn->watch.fd >= 0 ? wireup_later(conn)
                               : tpb_fail_errno(error, errno, "socket");
}

static tp_status wireup_greet(struct shm_conn *conn, struct tpb_error *error)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);
    struct shm_hello hello = { .version = SHM_VERSION, .slot = conn->slot,
                               .ring = SHM_RING };
    int fds[3] = { shm_segment_make(), endpoint->mailbox_fd,
                   endpoint->doorbell.fd };
    tp_status status;
    int code = 0;

    if (fds[0] < 0)
        return tpb_fail_errno(error, errno, "no shared memory for a ring");
    memcpy(hello.magic, wireup_magic, 4);
    memcpy(hello.cookie, conn->address.cookie, sizeof(hello.cookie));
    status = shm_segment_map(conn, fds[0], 0, error);
    if (status == TP_OK
        && tpb_send_fds(conn->watch.fd, &hello, sizeof(hello), fds, 3) < 0) {
        code = errno;
        status = tpb_fail_errno(error, code, "cannot greet the peer");
    }
    tpb_close(&fds[0]);
    if (code == ETOOMANYREFS || (code == EPIPE && conn->dialed))
        return wireup_crowded(conn, code, error);
    if (status != TP_OK)
        return status;
    conn->state = SHM_GREETED;
    conn->watch.ready = wireup_ready;
    code = tpf_watch_add(endpoint->base.env, &conn->watch,
                         EPOLLIN | EPOLLRDHUP);
    return code == 0 ? TP_OK : tpb_fail_errno(error, code, "epoll");
}

/* Nobody is let in for a while, or again: who waits at the listener would wake
 * us all the time. */
static void wireup_pause(struct shm_endpoint *endpoint, bool pause)
{
    tpf_watch_change(endpoint->base.env, &endpoint->listener,
                     pause ? 0 : EPOLLIN);
    endpoint->paused = pause;
    if (pause && tpb_list_empty(&endpoint->retries)
        && tpb_list_empty(&endpoint->heard))
        wireup_timer(endpoint, SHM_PAUSE_MS);
}

/* Sends one end of a pair of sockets through the doors.  Should the peer go
 * before it looks, the kernel closes that end, and we see it. */
static tp_status wireup_call(struct shm_conn *conn, struct tpb_error *error)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);
    struct shm_call call = { .version = SHM_VERSION };
    struct sockaddr_storage name;
    socklen_t length = tpb_door_address(conn->address.door, &name);
    int ends[2], code = 0, one = 1;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                   ends) < 0)
        return tpb_fail_errno(error, errno, "socketpair");
    /* Its welcome shall tell its PID. */
    setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &one, sizeof(one));
    memcpy(call.magic, wireup_call_magic, sizeof(call.magic));
    memcpy(call.cookie, conn->address.cookie, sizeof(call.cookie));
    if (tpb_send_fds_to(endpoint->door.fd, (struct sockaddr *)&name, length,
                        &call, sizeof(call), &ends[1], 1) < 0)
        code = errno;
    close(ends[1]);
    if (code == 0) {
        tpb_close(&conn->watch.fd);
        conn->watch.fd = ends[0];
        conn->called = true;
        return wireup_greet(conn, error);
    }
    close(ends[0]);
    if (code == EAGAIN || code == ETOOMANYREFS)
        return wireup_later(conn);
    if (code == ECONNREFUSED)
        return tpb_fail(error, TP_ERR_UNREACHABLE, "nobody listens at its "
                        "door: it ended, or belongs to another job");
    return tpb_fail_errno(error, code, "the door to it");
}

/* Another network namespace: who has doors of one launcher needs no name. */
static tp_status wireup_apart(struct shm_conn *conn, struct tpb_error *error)
{
    bool mine = shm_endpoint(conn)->door.fd >= 0;

    if (mine && conn->address.door[0] != '\0')
        return wireup_call(conn, error);
    return tpb_fail(error, TP_ERR_UNREACHABLE, "it lives in another network"
                    " namespace, and %s no door of tprun's",
                    mine ? "has" : "there is");
}

/* Tries once.  TP_OK also if it is to be tried again. */
static tp_status wireup_try(struct shm_conn *conn, struct tpb_error *error)
{
    uint64_t mine = shm_endpoint(conn)->address.net_namespace;
    uint64_t theirs = conn->address.net_namespace;
    struct sockaddr_un name;
    socklen_t length = wireup_name(&conn->address, &name);

    if (conn->dialed)
        return wireup_greet(conn, error);
    if (mine != 0 && theirs != 0 && mine != theirs)
        return wireup_apart(conn, error);
    if (connect(conn->watch.fd, (struct sockaddr *)&name, length) == 0)
        return wireup_greet(conn, error);
    if (errno == EAGAIN || errno == EINTR)
        return wireup_later(conn);
    if (errno == ECONNREFUSED && (mine == 0 || theirs == 0))
        return wireup_apart(conn, error);
    if (errno == ECONNREFUSED)
        return tpb_fail(error, TP_ERR_UNREACHABLE,
                        "nobody listens: it ended, or left the job");
    return tpb_fail_errno(error, errno, "connect");
}

static void wireup_answer_again(struct shm_endpoint *endpoint);

static void wireup_retry(struct tpf_watch *watch, uint32_t events)
{
    struct shm_endpoint *endpoint = TPB_CONTAINER(watch, struct shm_endpoint,
                                                  timer);
    struct tpb_list again, *node;

    (void)events;
    tpb_eventfd_drain(watch->fd);
    if (endpoint->paused)
        wireup_pause(endpoint, false);
    wireup_answer_again(endpoint);
    tpb_list_init(&again);
    while ((node = tpb_list_take(&endpoint->retries)) != NULL)
        tpb_list_append(&again, node);
    while ((node = tpb_list_take(&again)) != NULL) {
        struct shm_conn *conn = TPB_CONTAINER(node, struct shm_conn, link);
        struct tpb_error error = { "" };
        tp_status status = wireup_try(conn, &error);

        if (status != TP_OK)
            shm_fail(conn, status, error.text);
    }
}

static void wireup_terms(struct tpf_conn *base)
{
    base->max_frame = SHM_FRAME;
    base->window = SHM_WINDOW;
    base->returns = SHM_WINDOW / 4;
}

tp_status shm_connect(struct tpf_conn *base, const void *address,
                      size_t length, struct tpb_error *error)
{
    struct shm_conn *conn = shm_conn(base);
    tp_status status;

    conn->watch.fd = conn->doorbell = conn->death.fd = -1;
    conn->slot = SHM_SLOTS;
    tpb_list_init(&conn->link);
    tpb_list_init(&conn->want_link);
    tpb_list_init(&conn->notes);
    wireup_terms(base);
    if (length != sizeof(conn->address))
        return tpb_fail(error, TP_ERR_PROTOCOL, "its shm address is garbage");
    memcpy(&conn->address, address, length);
    if (conn->address.version != SHM_VERSION
        || conn->address.name_length > sizeof(conn->address.name)
        || strnlen(conn->address.door, TPB_DOOR_NAME) == TPB_DOOR_NAME)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "its shm address is of another version");
    status = shm_slot_take(conn);
    if (status != TP_OK)
        return tpb_fail(error, TP_ERR_BACKEND, "over %d local peers",
                        SHM_SLOTS);
    conn->watch.fd = wireup_socket();
    if (conn->watch.fd < 0)
        return tpb_fail_errno(error, errno, "socket");
    return wireup_try(conn, error);
}

/* ---- the listening side ------------------------------------------------ */

static void wireup_hush(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    tpb_list_unlink(&conn->link);
    endpoint->stranger_count -= conn->state == SHM_STRANGER;
    tpf_watch_remove(endpoint->base.env, &conn->watch);
    tpb_close(&conn->watch.fd);
    shm_segment_unmap(conn);
    shm_mailbox_unmap(conn->mailbox);
    tpb_close(&conn->doorbell);
    shm_slot_give(conn);
}

static void wireup_forget(struct shm_conn *conn)
{
    wireup_hush(conn);
    tpf_conn_free(&conn->base);
}

/* The oldest one makes room.  Epoll may have told of it together with who comes
 * in, so its memory stays until others have made room: one for each way in. */
static void wireup_evict(struct shm_endpoint *endpoint)
{
    struct shm_conn **place
        = &endpoint->evicted[endpoint->evictions++ % SHM_WAYS_IN];
    struct shm_conn *oldest = TPB_CONTAINER(endpoint->strangers.next,
                                            struct shm_conn, link);

    wireup_hush(oldest);
    if (*place != NULL)
        tpf_conn_free(&(*place)->base);
    *place = oldest;
}

/* Reads a stranger's hello; INVALID if it is still to come. */
static tp_status wireup_hello(struct shm_conn *conn, struct tpb_error *error)
{
    struct shm_hello hello;
    int fds[3] = { -1, -1, -1 }, count = 3;
    ssize_t got = tpb_recv_fds(conn->watch.fd, &hello, sizeof(hello), fds,
                               &count);
    tp_status status = TP_OK;

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return TP_ERR_INVALID;
    if (got != sizeof(hello) || memcmp(hello.magic, wireup_magic, 4) != 0
        || hello.version != SHM_VERSION || hello.ring != SHM_RING
        || hello.slot >= SHM_SLOTS)
        status = tpb_fail(error, TP_ERR_PROTOCOL, "a hello that is not tp's");
    else if (!tpb_equal_secret(hello.cookie,
                               shm_endpoint(conn)->address.cookie,
                               sizeof(hello.cookie)))
        status = tpb_fail(error, TP_ERR_DENIED, "a wrong cookie");
    else if (count != 3)
        status = tpb_fail(error, TP_ERR_SYSTEM,
                          "descriptors were lost: raise ulimit -n");
    else if (!wireup_is_doorbell(conn, fds[2]))
        status = tpb_fail(error, TP_ERR_PROTOCOL,
                          "the peer's doorbell is no eventfd");
    if (status == TP_OK)
        status = shm_segment_map(conn, fds[0], 1, error);
    if (status == TP_OK && (conn->mailbox = shm_mailbox_map(fds[1])) == NULL)
        status = tpb_fail_errno(error, errno, "the peer's mailbox");
    if (status == TP_OK) {
        conn->peer_slot = hello.slot;
        conn->doorbell = fds[2];
        fds[2] = -1;
        status = shm_slot_take(conn);
    }
    for (int i = 0; i < 3; i++)
        tpb_close(&fds[i]);
    return status;
}

/* The peer may be gone already; what it left in the ring still counts, so that
 * is no error here: the hang-up will tell.  EAGAIN: it is to be tried again,
 * see wireup_crowded().  Else the peer lives, and would wait for the answer. */
static int wireup_answer(struct shm_conn *conn, tp_status status,
                         const char *why)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);
    struct shm_welcome welcome = { .version = SHM_VERSION,
                                   .status = (uint32_t)status,
                                   .slot = conn->slot };
    int fds[2] = { endpoint->mailbox_fd, endpoint->doorbell.fd };
    int code;

    memcpy(welcome.magic, wireup_magic, 4);
    snprintf(welcome.why, sizeof(welcome.why), "%s", why);
    if (tpb_send_fds(conn->watch.fd, &welcome, sizeof(welcome), fds,
                     status == TP_OK ? 2 : 0) >= 0)
        return 0;
    code = errno;
    if (code == ETOOMANYREFS || code == ENOBUFS || code == ENOMEM)
        return EAGAIN;
    tpb_debug("cannot answer a hello: %s", strerror(code));
    return code == EPIPE || code == ECONNRESET ? 0 : code;
}

static void wireup_let_in(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);
    struct tpf_env *env = endpoint->base.env;

    tpb_list_unlink(&conn->link);
    if (conn->state == SHM_STRANGER)
        endpoint->stranger_count--;
    else
        tpf_watch_change(env, &conn->watch, EPOLLIN | EPOLLRDHUP);
    conn->state = SHM_OPEN;
    shm_death_watch(conn);
    conn->watch.ready = wireup_ready;
    wireup_terms(&conn->base);
    env->upcalls->incoming(env->core, &conn->base);
    shm_watch_ring(conn);
    tpf_conn_ready(&conn->base);   /* it may have written before we mapped */
}

/* It is no stranger any more, but cannot be answered now.  It has nothing to
 * say until it is. */
static void wireup_hold(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    tpb_list_unlink(&conn->link);
    endpoint->stranger_count--;
    tpb_list_append(&endpoint->heard, &conn->link);
    conn->state = SHM_HEARD;
    tpf_watch_change(endpoint->base.env, &conn->watch, EPOLLRDHUP);
    wireup_timer(endpoint, SHM_RETRY_MS);
}

static void wireup_answer_again(struct shm_endpoint *endpoint)
{
    while (!tpb_list_empty(&endpoint->heard)) {
        struct shm_conn *conn = TPB_CONTAINER(endpoint->heard.next,
                                              struct shm_conn, link);
        int code = wireup_answer(conn, TP_OK, "");

        if (code == EAGAIN) {
            wireup_timer(endpoint, SHM_RETRY_MS);
            return;
        }
        if (code == 0) {
            wireup_let_in(conn);
            continue;
        }
        /* Its own event may be among those of this turn, and finds the end. */
        tpb_list_unlink(&conn->link);
        shutdown(conn->watch.fd, SHUT_RDWR);
    }
}

static void wireup_stranger(struct tpf_watch *watch, uint32_t events)
{
    struct shm_conn *conn = TPB_CONTAINER(watch, struct shm_conn, watch);
    struct tpb_error error = { "" };
    tp_status status;
    int code;

    if (watch->fd < 0)
        return;                    /* evicted by an earlier event */
    (void)events;
    if (conn->state == SHM_HEARD) {    /* a hang-up */
        wireup_forget(conn);
        return;
    }
    status = wireup_hello(conn, &error);
    if (status == TP_ERR_INVALID)
        return;
    code = wireup_answer(conn, status, error.text);
    if (status != TP_OK)
        tpb_info("refused a connection: %s", error.text);
    if (status == TP_OK && code == 0)
        wireup_let_in(conn);
    else if (status == TP_OK && code == EAGAIN)
        wireup_hold(conn);
    else
        wireup_forget(conn);
}

/* Somebody is at the other end of this socket; it is ours now. */
static void wireup_admit(struct shm_endpoint *endpoint, int fd)
{
    struct shm_conn *conn;

    if (endpoint->stranger_count >= SHM_PENDING)
        wireup_evict(endpoint);
    conn = (struct shm_conn *)tpf_conn_new(&endpoint->base);
    if (conn == NULL) {
        close(fd);
        return;
    }
    conn->state = SHM_STRANGER;
    conn->watch = (struct tpf_watch){ .fd = fd, .ready = wireup_stranger };
    conn->doorbell = conn->death.fd = -1;
    conn->slot = SHM_SLOTS;
    tpb_list_init(&conn->link);
    tpb_list_init(&conn->want_link);
    tpb_list_init(&conn->notes);
    tpb_list_append(&endpoint->strangers, &conn->link);
    endpoint->stranger_count++;
    if (tpf_watch_add(endpoint->base.env, &conn->watch,
                      EPOLLIN | EPOLLRDHUP) != 0)
        wireup_forget(conn);
}

static void wireup_accept(struct tpf_watch *watch, uint32_t events)
{
    struct shm_endpoint *endpoint = TPB_CONTAINER(watch, struct shm_endpoint,
                                                  listener);
    int fd = tpb_accept(watch->fd);

    (void)events;
    if (fd >= 0) {
        endpoint->warned = false;
        wireup_admit(endpoint, fd);
    } else if (errno != EAGAIN) {
        if (!endpoint->warned)
            tpb_warn("cannot accept a local peer: %s%s", strerror(errno),
                     tpb_accept_remedy(errno));
        endpoint->warned = true;
        wireup_pause(endpoint, true);
    }
}

/* A socket comes through the door. */
static void wireup_called(struct tpf_watch *watch, uint32_t events)
{
    struct shm_endpoint *endpoint = TPB_CONTAINER(watch, struct shm_endpoint,
                                                  door);
    struct shm_call call;
    int fd = -1, count = 1;
    ssize_t got = tpb_recv_fds(watch->fd, &call, sizeof(call), &fd, &count);

    (void)events;
    if (got == sizeof(call) && count == 1
        && memcmp(call.magic, wireup_call_magic, sizeof(call.magic)) == 0
        && call.version == SHM_VERSION
        && tpb_equal_secret(call.cookie, endpoint->address.cookie,
                            sizeof(call.cookie))
        && fcntl(fd, F_SETFL, O_NONBLOCK) == 0)
        wireup_admit(endpoint, fd);
    else if (count == 1)
        close(fd);
}

/* What tprun gave us, if nobody in this process has it yet. */
static void wireup_door(struct shm_endpoint *endpoint)
{
    struct tpf_env *env = endpoint->base.env;
    const char *job = getenv("PMIX_NAMESPACE");
    struct tpb_door door;

    endpoint->door = (struct tpf_watch){ .fd = -1, .ready = wireup_called };
    if (job == NULL
        || !tpb_door_of_job(env->settings->text[TPB_SET_DOOR], job, &door)
        || !tpb_door_take(door.host, endpoint->address.door))
        return;
    endpoint->door.fd = door.host;
    if (tpf_watch_add(env, &endpoint->door, EPOLLIN) == 0)
        return;
    tpb_close(&endpoint->door.fd);
    endpoint->address.door[0] = '\0';
}

tp_status shm_listen(struct shm_endpoint *endpoint, struct tpb_error *error)
{
    struct tpf_env *env = endpoint->base.env;
    struct sockaddr_un name;
    uint8_t random[16];
    socklen_t length;
    int code;

    tpb_random(random, sizeof(random));
    endpoint->address.version = SHM_VERSION;
    endpoint->address.net_namespace = env->card->host.net_namespace;
    /* Not the card's: those outside the job learn this one. */
    tpb_random(endpoint->address.cookie, sizeof(endpoint->address.cookie));
    endpoint->address.name_length = 3 + 2 * sizeof(random);
    memcpy(endpoint->address.name, "tp-", 3);
    for (size_t i = 0; i < sizeof(random); i++) {
        char hex[3];

        snprintf(hex, sizeof(hex), "%02x", random[i]);
        memcpy(endpoint->address.name + 3 + 2 * i, hex, 2);
    }
    endpoint->listener = (struct tpf_watch){ .fd = wireup_socket(),
                                             .ready = wireup_accept };
    endpoint->timer = (struct tpf_watch){
        .fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
        .ready = wireup_retry };
    length = wireup_name(&endpoint->address, &name);
    if (endpoint->listener.fd < 0 || endpoint->timer.fd < 0
        || bind(endpoint->listener.fd, (struct sockaddr *)&name, length) < 0
        || listen(endpoint->listener.fd, SHM_BACKLOG) < 0)
        return tpb_fail_errno(error, errno, "cannot listen for local peers");
    wireup_door(endpoint);
    code = tpf_watch_add(env, &endpoint->listener, EPOLLIN);
    if (code == 0)
        code = tpf_watch_add(env, &endpoint->timer, EPOLLIN);
    return code == 0 ? TP_OK : tpb_fail_errno(error, code, "epoll");
}

void shm_unlisten(struct shm_endpoint *endpoint)
{
    while (!tpb_list_empty(&endpoint->heard))
        wireup_forget(TPB_CONTAINER(endpoint->heard.next, struct shm_conn,
                                    link));
    while (!tpb_list_empty(&endpoint->strangers))
        wireup_forget(TPB_CONTAINER(endpoint->strangers.next, struct shm_conn,
                                    link));
    for (int i = 0; i < SHM_WAYS_IN; i++)
        if (endpoint->evicted[i] != NULL)
            tpf_conn_free(&endpoint->evicted[i]->base);
    tpf_watch_remove(endpoint->base.env, &endpoint->listener);
    tpf_watch_remove(endpoint->base.env, &endpoint->timer);
    if (endpoint->door.fd >= 0)
        tpf_watch_remove(endpoint->base.env, &endpoint->door);
    tpb_close(&endpoint->door.fd);
    tpb_close(&endpoint->listener.fd);
    tpb_close(&endpoint->timer.fd);
}
