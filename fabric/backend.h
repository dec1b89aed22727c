/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The contract between the core (runtime/) and the backends (fabric/NAME/).
 *
 * A backend of this header is a transport: it carries frames, that is pieces
 * of at most max_frame bytes, from one process to another; whole, once, in
 * order, and it wakes the other side when that side sleeps.  It knows nothing
 * of ranks, pipes or messages, and it trusts nothing that comes in.
 *
 * Objects.  An endpoint is one backend's presence in one context.  A conn is
 * one connection to one other process (or, for TPF_SELF, to this one).  Both
 * are allocated by the core, zeroed, at the size the backend names; the
 * backend's own struct begins with the common one below.  Their init is
 * open() and connect(); if these fail, what they leave is fit for close() and
 * disconnect(), which are always called, exactly once, and cannot fail.
 *
 * Threads.  Every function of one endpoint and its conns is called by one
 * thread at a time, by different threads over time.  No locks are needed.
 *
 * Blocking.  No function blocks.  No function but open() and address() takes
 * longer than some microseconds per kibibyte moved.
 *
 * Life of a conn:
 *
 *   connect()            called by the core.  Refusal may come back at once,
 *                        or later by the failed upcall.
 *   -> connected upcall  both sides can send.  Nothing has been checked yet:
 *                        the core sends its own hello as the first frame.
 *   or incoming upcall   on the side that was connected to, with a conn that
 *                        the backend had from tpf_conn_new().  It is
 *                        connected from then on.
 *   -> failed upcall     the connection is lost, or never came about: at most
 *                        once, and the last upcall for this conn.  Frames that
 *                        had arrived whole before the loss are delivered by
 *                        peek() first; failed comes when peek() has no more.
 *                        TP_ERR_PEER_FAILED: it was there and is gone.
 *                        TP_ERR_UNREACHABLE: nobody answered.
 *                        TP_ERR_DENIED, TP_ERR_PROTOCOL, TP_ERR_BACKEND...
 *   disconnect()         called by the core, in any state, also while frames
 *                        are under way; releases everything; the other side
 *                        sees a failed upcall after what was committed.  What
 *                        was committed before still arrives if the other side
 *                        lives and flushed() had become true.
 *
 * Upcalls come from inside progress(), from inside a watch's ready function,
 * and (failed, only) from inside connect(), reserve(), commit() and peek().
 * In an upcall the core does not call disconnect() for the same conn; it
 * remembers, and does it later.
 */
#ifndef TPF_BACKEND_H
#define TPF_BACKEND_H

#include <stdatomic.h>

#include "runtime/base/list.h"
#include "runtime/base/presence.h"
#include "runtime/base/settings.h"
#include "runtime/base/way.h"
#include "topology/card.h"

struct tpf_backend;
struct tpf_endpoint;
struct tpf_conn;
struct tpf_memories;
struct tpf_pull;
struct tpg_gpu;

/* A descriptor in the context's epoll set.  Embedded in the backend's state;
 * `ready` is called with epoll's event bits, level-triggered, by whoever
 * drives the context; it may be called once more than there is a cause, but
 * then leaves the descriptor unreadable: else whoever polls never gets to
 * sleep, and whoever naps without arm() never does. */
struct tpf_watch {
    int fd;
    void (*ready)(struct tpf_watch *watch, uint32_t events);
};

/* How a pull of channel.h stands. */
enum tpf_progress {
    TPF_PULL_DONE,                 /* all of it is there; no upcall comes */
    TPF_PULL_MORE,                 /* under way; the pulled upcall will come */
    TPF_PULL_REFUSED,              /* not to be had; no upcall comes */
    TPF_PULL_PASS                  /* nor is this one, but others may be */
};

/* What the core does when something happens.  `core` is the env's. */
struct tpf_upcalls {
    void (*incoming)(void *core, struct tpf_conn *conn);
    void (*connected)(void *core, struct tpf_conn *conn);
    /* reserve() had answered NULL, or send_data() false, and may do better
     * now.  May come too often, never too seldom. */
    void (*writable)(void *core, struct tpf_conn *conn);
    /* The memory given to send_data() is the caller's again. */
    void (*sent)(void *core, struct tpf_conn *conn, void *token);
    void (*failed)(void *core, struct tpf_conn *conn, tp_status status,
                   const char *text);
    /* What the other side gave to pass(); the receiver owns `fd` (-1: none). */
    void (*passed)(void *core, struct tpf_conn *conn, const void *note,
                   size_t length, int fd);
    /* A pull (channel.h) that was under way has ended. */
    void (*pulled)(void *core, struct tpf_pull *pull,
                   enum tpf_progress result, const char *text);
};

/* What the core lends to an endpoint, for as long as it is open. */
struct tpf_env {
    const struct tpf_upcalls *upcalls;
    void *core;
    int epoll;                     /* for tpf_watch_add() only */
    _Atomic uint32_t *watches;     /* counts how often what that watches has
                                      changed; one for all of a context.  NULL:
                                      nobody asks */
    const struct tpb_settings *settings;
    const struct tpt_card *card;   /* this process: host, pid, place, NICs */
    struct tpg_gpu *gpu;           /* the context's, gpu/cuda.h */
    struct tpb_record_imports *imports;    /* where those are counted */
    struct tpf_memories *memories; /* what tp_alloc() made, memory.h */
    uint32_t on_devices;           /* pulls that a device moves: whoever drives
                                      looks for their end now and then */
    uint32_t helping;              /* buffers of which this side, which sends
                                      them, copies some, see channel.h */
    uint32_t joining;              /* conns that the core does not know yet,
                                      and whose coming no descriptor tells */
    bool lands;                    /* the core calls coming() and land() */
    bool crowded;                  /* more ranks than cpus: sleeps often */
    bool aside;                    /* what is committed gives its reader nothing
                                      to do that others wait for */
    bool beside;                   /* crowded: somebody who has something to do
                                      since then waits for the caller's cpu */
    struct tpb_presence *presence; /* by a backend that can tell its peers where
                                      we are; or NULL */
    bool calls;                    /* the core runs callbacks: what it commits
                                      meanwhile may wait for their end */
    bool bursts;                   /* ... or sends what waited for room */
    struct tpb_list ready;         /* conns with frames, see tpf_conn_ready() */
    struct tpb_list gathered;      /* ... with such as wait, see
                                      tpf_conn_gathered() */
    uint64_t gathered_since;       /* ... the first of them; tpb_now() */
};

struct tpf_endpoint {
    const struct tpf_backend *backend;
    struct tpf_env *env;
    uint32_t conns;                /* the core's: those that it has begun */
};

struct tpf_conn {
    const struct tpf_backend *backend;
    struct tpf_endpoint *endpoint;
    void *peer;                    /* the core's; NULL until it sets it, and
                                      when it has no use for the conn */
    void *links;                   /* the core's too */
    void *landing, *landed;        /* and these: where a body goes, land() */
    struct tpb_list ready;         /* in env->ready, or unlinked */
    struct tpb_list gathered;      /* in env->gathered, or unlinked */
    size_t max_frame;              /* set before connected/incoming */
    size_t lands;                  /* set likewise: frames of send_data() whose
                                      bodies are so long may come(); 0: none */
    size_t max_lent;               /* ... and be this long, at least max_frame;
                                      0: no longer than others */
    size_t window;                 /* set likewise: bytes of frames that it
                                      pays to have under way on one pipe */
    size_t window_spread;          /* ... by so much the peer's may be longer
                                      than this side's */
    size_t returns;                /* ... and after how many that were read
                                      the peer is told, whose window may be
                                      shorter than this side's */
    uint32_t both_number;          /* both.c: the last buffer of which the peer
                                      was called to copy some ... */
    bool both_called;              /* ... and it is not over */
    size_t gathers;                /* a hint: while env->calls or env->bursts,
                                      frames so long are better committed, as
                                      they go with others, than lent */
    bool more;                     /* the core's, before it sends a frame: it is
                                      likely to send another at once.  A hint,
                                      which the backend takes back */
    struct tpb_way *way;           /* the backend's: into the memory that
                                      reserve() gives; NULL: as any other */
    struct tpb_fetch *fetch;       /* ... and out of what peek() shows */
};

/* The first bytes of a frame for post(): in registers, as memory that has just
 * been written in pieces would hold up who reads it in one. */
struct tpf_head {
    uint64_t words[2];
};

enum { TPF_NOTE = 64, TPF_SHARED = 2 * TPB_CACHE_LINE };

enum {
    TPF_SELF = 1,      /* connects a process to itself: what is sent on a conn
                          comes back on the same conn; connected comes from
                          inside connect() */
    TPF_POLLED = 2     /* has no descriptor to wait on: arm() does not suffice,
                          the core calls progress() now and then */
};

struct tpf_backend {
    const char *name;              /* "shm"; "ofi:tcp" */
    enum tpt_reach reach;
    unsigned flags;
    enum tpt_nic_kind nic_kind;    /* which NICs bound it, with REACH_NETWORK */
    unsigned nics_most;            /* of these it goes over so many at once;
                                      0: over one */
    uint32_t latency_ns;           /* the built-in model, for the card */
    uint32_t megabytes;
    size_t endpoint_size, conn_size;

    /* May be NULL.  What costs less while this process has one thread; called
     * before the bootstrap starts others, of allowed backends only. */
    void (*prepare)(void);

    /*
     * Can this machine do it at all?  Cheap (under a millisecond where
     * possible), changes nothing, needs no endpoint.  The words of a refusal
     * go into explain: name what is missing.
     */
    tp_status (*probe)(const struct tpf_env *env, struct tpb_error *error);

    /* After TP_OK the endpoint can be connected to. */
    tp_status (*open)(struct tpf_endpoint *endpoint, struct tpb_error *error);
    void (*close)(struct tpf_endpoint *endpoint);   /* all conns are gone */

    /* What a peer needs for connect().  Returns the bytes written, at most
     * `capacity` (TPT_ADDRESS); 0 if it cannot be said. */
    size_t (*address)(struct tpf_endpoint *endpoint, void *buffer,
                      size_t capacity);

    /* With nics_most: the NICs of env->card that the endpoint goes over, a bit
     * each by its place there, for the card; else NULL. */
    uint16_t (*nics)(struct tpf_endpoint *endpoint);

    /*
     * Starts a connection to the process that published `address` (its bytes
     * are not trusted).  TP_OK: connected or failed will come.  Anything else:
     * refused, with words, and no upcall comes.
     */
    tp_status (*connect)(struct tpf_conn *conn, const void *address,
                         size_t length, struct tpb_error *error);
    void (*disconnect)(struct tpf_conn *conn);

    /* May be NULL.  For a conn that is not connected yet: what has been tried
     * and what is waited for, added to `text` in words for people, each item
     * between a blank and a semicolon. */
    void (*trying)(struct tpf_conn *conn, struct tpb_text *text);

    /* May be NULL.  What a connected conn goes over, in words for explain that
     * stay as long as the endpoint; NULL: there is nothing to add. */
    const char *(*carrier)(struct tpf_conn *conn);

    /* May be NULL.  The same before there is one, for tpinfo: what a conn would
     * go over here, added to `text`.  May load libraries, and so block for a
     * second; needs no endpoint. */
    void (*carriers)(const struct tpf_env *env, struct tpb_text *text);

    /*
     * Room for one frame of at most `size` (1..max_frame) bytes, contiguous,
     * 8-byte aligned, in the backend's memory.  NULL: again; nothing
     * happened, and writable will come.  At most one reservation per conn is
     * open; another reserve() replaces it, whatever it answers, and post(),
     * send_data(), flushed() and gathered() end it.  The caller writes, it does
     * not read: the memory may be shared.
     */
    void *(*reserve)(struct tpf_conn *conn, size_t size);

    /* The first `size` bytes (1.. what was reserved) of the reservation are a
     * frame; it is under way, and the other side is woken if it sleeps. */
    void (*commit)(struct tpf_conn *conn, size_t size);

    /*
     * May be NULL.  Of a backend that keeps back what is committed while
     * env->calls or env->bursts is true: that is over, and it goes now.
     */
    void (*gathered)(struct tpf_conn *conn);

    /*
     * May be NULL.  reserve() and commit() in one call, for what pays for each
     * instruction: a frame made of `head` and `data`, which is copied.  False:
     * again, as reserve().
     */
    bool (*post)(struct tpf_conn *conn, struct tpf_head head, const void *data,
                 size_t length);

    /*
     * May be NULL.  One frame made of `head` (copied before return) and `data`
     * (used in place until the sent upcall with `token`).  Together at most
     * max_frame bytes, or max_lent where `length` lands.  False: again, as
     * reserve().  After failed or disconnect() no sent upcall comes and `data`
     * is not touched any more.
     */
    bool (*send_data)(struct tpf_conn *conn, const void *head,
                      size_t head_length, const void *data, size_t length,
                      void *token);

    /*
     * The oldest frame that has arrived, in place, 8-byte aligned; NULL if
     * there is none.  Stays valid until pop(); the other process may change
     * the bytes at any time, so what is checked must be copied first.
     */
    const void *(*peek)(struct tpf_conn *conn, size_t *size);
    void (*pop)(struct tpf_conn *conn);

    /*
     * Each may be NULL; for those that set env->lands.  A frame of which only
     * the first *head of *size bytes are here; NULL if there is none, or others
     * have arrived before it.  It goes on when land() has said where the rest
     * is to be: behind the head (NULL), or `to`, where the backend may write
     * until peek() has that frame, or disconnect() returns.  That frame's
     * memory then has the head only.
     */
    const void *(*coming)(struct tpf_conn *conn, size_t *head, size_t *size);
    void (*land)(struct tpf_conn *conn, void *to);

    /* Everything committed is out of this process's hands: it arrives even if
     * this process ends now (and the other one and the network live). */
    bool (*flushed)(struct tpf_conn *conn);

    /*
     * Moves on whatever can move and calls tpf_conn_ready() for every conn
     * that has frames and is not in the ready list.  Called very often.
     * Returns whether anything happened.
     */
    bool (*progress)(struct tpf_endpoint *endpoint);

    /* May be NULL: that is not known.  True: what this process has sent needs
     * no progress() of it any more, or may wait some milliseconds for it.  Of a
     * backend with presence() that is always so. */
    bool (*settled)(struct tpf_endpoint *endpoint);

    /* May be NULL.  A block of tp_alloc() is freed: what the backend keeps of
     * it, as a registration, goes, or does with the last frame in it. */
    void (*freed)(struct tpf_endpoint *endpoint, uint64_t block);

    /* May be NULL.  Has this conn, which is connected, a frame?  Looks up to
     * `times` times, more than once only for who waits, and then maybe with a
     * pause of some us, as in a stream; and does nothing else: for the conn
     * that the next frame is expected on, between two calls of progress(). */
    bool (*glance)(struct tpf_conn *conn, unsigned times);

    /* May be NULL.  Whether the process at the other end runs just now, or
     * NULL: that is not to be seen. */
    const struct tpb_presence *(*presence)(struct tpf_conn *conn);

    /*
     * Before the process sleeps in epoll: from now on whoever sends wakes it.
     * False: something has arrived meanwhile, do not sleep.  disarm() undoes
     * it and comes after every arm().
     */
    bool (*arm)(struct tpf_endpoint *endpoint);
    void (*disarm)(struct tpf_endpoint *endpoint);

    /* ---- what channels lean on; each may be NULL ------------------------ */

    /*
     * Passes a descriptor (-1: none) and a note of at most TPF_NOTE bytes to
     * the other side, where the passed upcall brings them.  They are there
     * before every frame that is committed later is: but the other side may
     * have to look, by notes().  The descriptor stays the caller's.  False:
     * again, nothing happened.  But a note alone for which there is no room is
     * kept, and comes as soon as there is some: after frames, perhaps.
     */
    bool (*pass)(struct tpf_conn *conn, const void *note, size_t length,
                 int fd);
    /* Upcalls now for all that has been passed so far. */
    void (*notes)(struct tpf_conn *conn);

    /* TPF_SHARED bytes that both sides have mapped until disconnect(), on cache
     * lines of their own and zero at first: `mine` for what this side receives,
     * else for what it sends.  For one buffer of the pair at a time, see
     * both.h. */
    void *(*shared)(struct tpf_conn *conn, bool mine);

    /* The process at the other end as the kernel knows it, in this process's
     * PID namespace; 0 if it cannot be seen from here. */
    int (*peer_pid)(struct tpf_conn *conn);

    /* Has that process ended, become another program, or parted?  Then it has
     * nothing of this one mapped any more.  With shared(). */
    bool (*parted)(struct tpf_conn *conn);
};

/* Every backend of this build, in no order that matters; NULL-terminated. */
extern const struct tpf_backend *const tpf_backends[];
/* Or NULL.  Makes those that can be made by their name ("ofi:sockets"); what
 * it is and whether it works on this machine only a try will tell. */
const struct tpf_backend *tpf_backend_find(const char *name);
/* Those of the build, and those that can be made and that `list`, as
 * TP_BACKENDS, names; at most `most`.  Returns how many. */
size_t tpf_backends_for(const char *list, const struct tpf_backend **backends,
                        size_t most);

/* ---- helpers for backends ---------------------------------------------- */

/* A conn for an incoming connection, zeroed but for the common part.  NULL
 * without memory.  Passes to the core with the incoming upcall; before that
 * the backend gives it back with tpf_conn_free(). */
struct tpf_conn *tpf_conn_new(struct tpf_endpoint *endpoint);
void tpf_conn_free(struct tpf_conn *conn);

/* post(), by all backends. */
bool tpf_post_reserved(struct tpf_conn *conn, struct tpf_head head,
                       const void *data, size_t length);
static inline bool tpf_post(struct tpf_conn *conn, struct tpf_head head,
                            const void *data, size_t length)
{
    if (TPB_LIKELY(conn->backend->post != NULL))
        return conn->backend->post(conn, head, data, length);
    return tpf_post_reserved(conn, head, data, length);
}

/* This conn has frames: the core will peek until NULL. */
static inline void tpf_conn_ready(struct tpf_conn *conn)
{
    if (conn->ready.next == &conn->ready)
        tpb_list_append(&conn->endpoint->env->ready, &conn->ready);
}

/* May it keep back what is committed now? */
static inline bool tpf_env_gathers(const struct tpf_env *env)
{
    return env->calls || env->bursts;
}
/* It keeps back what was committed: the core will call gathered(). */
static inline void tpf_conn_gathered(struct tpf_conn *conn)
{
    struct tpf_env *env = conn->endpoint->env;

    if (conn->gathered.next != &conn->gathered)
        return;
    if (tpb_list_empty(&env->gathered))
        env->gathered_since = tpb_now();
    tpb_list_append(&env->gathered, &conn->gathered);
}

/* By the core: that is over; or a callback waits itself. */
void tpf_send_gathered(struct tpf_env *env);
static inline void tpf_gathered(struct tpf_env *env)
{
    if (TPB_UNLIKELY(!tpb_list_empty(&env->gathered)))
        tpf_send_gathered(env);
}
/* ... by callbacks that take long, each so many of them. */
enum { TPF_GATHERED_CALLS = 16, TPF_GATHERED_NS = 50000 };
static inline void tpf_gathered_late(struct tpf_env *env)
{
    if (TPB_UNLIKELY(!tpb_list_empty(&env->gathered))
        && tpb_now() - env->gathered_since > TPF_GATHERED_NS)
        tpf_send_gathered(env);
}

/* epoll's event bits in `events`; 0 or an errno. */
int tpf_watch_add(struct tpf_env *env, struct tpf_watch *watch,
                  uint32_t events);
int tpf_watch_change(struct tpf_env *env, struct tpf_watch *watch,
                     uint32_t events);
void tpf_watch_remove(struct tpf_env *env, struct tpf_watch *watch);

#endif
