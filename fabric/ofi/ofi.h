/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transports over libfabric, one backend per provider ("ofi:tcp").
 *
 * Two processes meet first and join then.  They meet over a plain socket of
 * ours (TCP, or a Unix socket for providers that do not leave the host): the
 * visitor shows the key from the host's published address, both exchange
 * notes.  Only then is libfabric loaded, on a thread of its own because that
 * takes a quarter of a second, and only then do its ports open, for as long
 * as somebody is expected.  So strangers talk to our twenty lines of parser,
 * and a job that never leaves shared memory never pays for libfabric.
 *
 * They join with connected endpoints (FI_EP_MSG: msg.c) or with reliable
 * datagrams (FI_EP_RDM: rdm.c), one libfabric endpoint per conn in both
 * cases.  After that there is no difference (conn.c): every libfabric message
 * is a struct ofi_head and maybe a frame; receive buffers are posted before
 * anything can arrive, and credits keep the sender to their number.  Where the
 * provider leaves in the socket what has no buffer yet (tcp), a few are posted
 * at a time, so that they stay in the cache.
 *
 *   library.c   loads libfabric, asks it what it has
 *   quick.c     spares it what takes long for hardware that is not there
 *   address.c   our network addresses, and what is published of them
 *   rdma.c      which of these an RDMA device carries
 *   listen.c    the sockets at which visitors call
 *   meet.c      two processes meet: what both do, and the host's part
 *   visit.c     the visitor's: which of the host's addresses leads to it
 *   life.c      the socket where they met stays, to see the other's end
 *   rail.c      one fabric, domain and queues per local address
 *   mr.c        registrations of the user's memory
 *   rma.c       the channel: big buffers by remote reads
 *   any.c       providers that are known by their name only
 *   buffers.c   slots: a buffer with its libfabric context; buffers.h
 *   shorts.c    short frames beyond the slots
 *   bundle.c    several short frames in one message
 *   broken.c    what does not go through, and whose fault that is
 *   land.c      long frames, received where the reader wants them
 *   socket.c    what is set at a socket of libfabric's
 *   endpoint.c  the backend's table; open, close, progress, sleep
 */
#ifndef TPF_OFI_H
#define TPF_OFI_H

#include <endian.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "fabric/backend.h"
#include "fabric/ofi/buffers.h"
#include "runtime/base/log.h"

enum {
    OFI_KEY = 16,                  /* bytes of a secret */
    OFI_WHERES = 16,               /* network addresses that we publish */
    OFI_NAME = 64,                 /* of a datagram endpoint, with its NUL */
    OFI_SLOTS_MAX = 256,           /* frames under way, whatever a peer says */
    OFI_CONTROL_SLOTS = 8,         /* receive slots beyond the credits */
    OFI_SPLIT = 128 * 1024,        /* frames from this body on, see land.c */
    OFI_SPLIT_HEAD = 64,           /* ... beside their bodies, at most */
    OFI_SPLITS = 3,                /* 2 was: bodies in pieces */
    OFI_BUNDLES = 1,
    OFI_SHORT = 4096 + 256,        /* frames of less bytes: shorts.c */
    OFI_SHORT_MOST = 1024,         /* ... so many under way, at most */
    OFI_SHORT_BYTES = 1024 * 1024, /* ... if all were as long as the next */
    OFI_SHORTS = 1,
    OFI_FAR = 14 * 1024 * 1024,    /* bytes of a pipe that may be under way for
                                      the length of the way, at most */
    OFI_STRANGERS = 64,            /* visitors that have not shown the key */
    OFI_STRANGER_MS = 100          /* of each, however many come */
};

#define OFI_MAGIC 0x326f7074u      /* "tpo2", before every note */

struct ofi_endpoint;
struct ofi_conn;
struct ofi_meet;
struct ofi_mr;
struct ofi_rail;
struct ofi_reads;
struct ofi_visit;
struct ofi_where;

/* ---- one row per backend ----------------------------------------------- */

struct ofi_kind {
    const char *backend;           /* "ofi:tcp" */
    const char *provider;          /* "tcp", as libfabric calls it */
    const char *heir;              /* before libfabric 1.18: what took that
                                      one's place and name then; or NULL */
    enum fi_ep_type type;          /* FI_EP_MSG or FI_EP_RDM */
    bool within_host;              /* meet over a Unix socket */
    bool rdma;                     /* at addresses of RDMA devices only */
    bool rma;                      /* big buffers by remote reads */
    uint32_t max_frame;
    uint32_t max_lent;             /* long frames, land.c; or 0 */
    uint32_t slots;                /* frames under way in one direction */
    uint32_t posts;                /* receive buffers at a time; 0: all */
    const struct ofi_join *join;
};

/* How two processes that have met join; msg.c and rdm.c.  All return
 * TP_OK or an error with words. */
struct ofi_join {
    /* Both sides, with the library there: libfabric's objects and what the
     * note tells of them.  The visitor's note waits for it if `name_first`. */
    bool name_first;
    tp_status (*prepare)(struct ofi_conn *conn, struct tpb_error *error);
    /* The host has read the visitor's note: makes ready for it and adds to
     * the answer. */
    tp_status (*host)(struct ofi_conn *conn, struct tpb_error *error);
    /* The answer has been written. */
    tp_status (*answered)(struct ofi_conn *conn, struct tpb_error *error);
    /* The visitor has read the host's answer. */
    tp_status (*visit)(struct ofi_conn *conn, struct tpb_error *error);
    /* The first frame or other message came in before anything said so. */
    void (*first)(struct ofi_conn *conn);
    /* Gives up libfabric's objects of this conn; may be called twice. */
    void (*leave)(struct ofi_conn *conn);
};
extern const struct ofi_join ofi_join_msg, ofi_join_rdm, ofi_join_any;

/* rdm.c, for whatever joins with datagrams.  The queue, the address vector and
 * the endpoint of a conn, by conn->name if that is not empty. */
tp_status ofi_rdm_open(struct ofi_conn *conn, struct tpb_error *error);
/* The name in the other side's note becomes conn->peer; `what` it names is for
 * the words of a failure. */
tp_status ofi_rdm_insert(struct ofi_conn *conn, const char *what,
                         struct tpb_error *error);
/* The host's answer has been written; the visitor has taken it in, and pings,
 * so that the host knows; that ping, or the answer to it, is here. */
tp_status ofi_rdm_answered(struct ofi_conn *conn, struct tpb_error *error);
tp_status ofi_rdm_visited(struct ofi_conn *conn, struct tpb_error *error);
void ofi_rdm_first(struct ofi_conn *conn);
/* Whoever drives has to look for the visitor's first ping, as nothing wakes;
 * ends with that, or when the conn is left. */
void ofi_rdm_await(struct ofi_conn *conn, bool await);
/* What a conn of datagrams has; each may be NULL. */
void ofi_rdm_close(struct fid_ep *ep, struct fid_av *av, struct fid_cq *cq);
/* The endpoint is being closed, and has dropped its rails: what rdm.c keeps of
 * its conns is for others to close. */
void ofi_rdm_orphan(const struct ofi_endpoint *endpoint);

/* ---- library.c --------------------------------------------------------- */

/* The few functions that are not inline in libfabric's headers. */
struct ofi_library {
    uint32_t version;              /* as FI_VERSION() makes it */
    int (*getinfo)(uint32_t version, const char *node, const char *service,
                   uint64_t flags, const struct fi_info *hints,
                   struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
                  void *context);
    const char *(*strerror)(int code);
};

/* Is it installed?  Looks, does not load. */
tp_status ofi_library_probe(struct tpb_error *error);

/*
 * Gets the library.  NULL with TP_OK in *status: it is being loaded, and
 * `eventfd` will be rung.  NULL with an error: it cannot be.  An eventfd that
 * may still be rung is taken back by ofi_library_forget(), which waits if the
 * thread is at work and nobody else has an interest in it.
 */
const struct ofi_library *ofi_library_get(int eventfd, tp_status *status,
                                          struct tpb_error *error);
void ofi_library_forget(int eventfd);
/* Blocks until it is loaded; false: it cannot be. */
bool ofi_library_wait(void);
/* Call before the first thread of ours: sets what libfabric and the libraries
 * under it read from the environment. */
void ofi_library_environment(void);

/* The library, loaded; only after ofi_library_get() gave it. */
extern const struct ofi_library *ofi_lib;

/* "libfabric: what: words of code" (a negative fi_errno). */
tp_status ofi_fail(struct tpb_error *error, int code, const char *what);

/* fi_getinfo() for this kind; `node` is a numeric address or NULL.  `wish`: the
 * provider, "-" for the better one (TP_OFI_TCP). */
tp_status ofi_info(const struct ofi_kind *kind, const char *wish,
                   const char *node, struct fi_info **info,
                   struct tpb_error *error);
/* "libfabric 1.17's provider net" */
void ofi_info_words(const struct fi_info *info, char *words, size_t size);
/* Is it the provider that needs no signal of its own for each completion?  Its
 * queues of events wake whoever sleeps on them for all of the domain. */
bool ofi_info_silent(const struct fi_info *info);
/* A copy for an endpoint that will be connected to there (dest_addr): verbs
 * chooses route and device by that.  NULL: no memory. */
struct fi_info *ofi_info_towards(const struct fi_info *info,
                                 const struct ofi_where *where);
/* Bytes for one remote read, when so many are left. */
size_t ofi_piece(const struct fi_info *info, size_t left);

/* An event as fi_eq_read() fills it. */
union ofi_event {
    struct fi_eq_cm_entry entry;
    uint8_t bytes[512];
};

/* ---- address.c --------------------------------------------------------- */

/* A network address and port; fixed layout, because it is sent. */
struct ofi_where {
    uint8_t family;                /* 4 or 6; 0: none */
    uint8_t local;                 /* does not leave the host */
    uint16_t port;                 /* little-endian */
    uint8_t address[16];
};
_Static_assert(sizeof(struct ofi_where) == 20, "struct ofi_where is sent");

/* What address() publishes, less the unused `where`s at its end. */
struct ofi_card {
    uint32_t magic;                /* little-endian, as all numbers here */
    uint32_t check;                /* over all that follows */
    uint8_t key[OFI_KEY];
    uint64_t host;                 /* equal: same host and network */
    uint8_t provider[16];
    uint8_t count;
    uint8_t unused[7];
    struct ofi_where wheres[OFI_WHERES];
};
_Static_assert(sizeof(struct ofi_card) == 56 + 20 * OFI_WHERES,
               "struct ofi_card is sent");
_Static_assert(sizeof(struct ofi_card) <= TPT_ADDRESS, "it fits on the card");

/* The addresses of this host that TP_IFACE (`ifaces`) allows, fast NICs first,
 * bridges last; loopback only if there are no others or if it is asked for.
 * Returns their number. */
int ofi_where_list(const char *ifaces, struct ofi_where list[OFI_WHERES]);

size_t ofi_card_encode(struct ofi_card *card, void *buffer, size_t capacity);
tp_status ofi_card_decode(struct ofi_card *card, const void *bytes,
                          size_t length, struct tpb_error *error);
/* Best first for us: in a network of ours, then routed ones, then in that of a
 * bridge, then within the host.  The peer's own order decides between equals.
 * Takes out those that would lead to ourselves, and says so in `left_out`. */
void ofi_card_order(struct ofi_card *card, uint64_t our_host,
                    struct tpb_text *left_out);
/* The first of our addresses that is in one network with `to`, without port;
 * false if none is. */
bool ofi_where_beside(const struct ofi_where *ours, int count,
                      const struct ofi_where *to, struct ofi_where *from);
uint64_t ofi_host_id(const struct tpt_card *card);

/* The same but for the port. */
static inline bool ofi_where_same(const struct ofi_where *a,
                                  const struct ofi_where *b)
{
    return a->family == b->family
           && memcmp(a->address, b->address, sizeof(a->address)) == 0;
}

socklen_t ofi_where_to_socket(const struct ofi_where *where,
                              struct sockaddr_storage *address);
bool ofi_where_from_socket(const struct sockaddr_storage *address,
                           struct ofi_where *where);
/* "192.0.2.1:4711", "[fd00::1]:4711"; without port if `port` is false. */
const char *ofi_where_text(const struct ofi_where *where, bool port,
                           char text[64]);
/* The name of the abstract Unix socket that belongs to `key`. */
socklen_t ofi_unix_address(const uint8_t key[OFI_KEY],
                           struct sockaddr_storage *address);

/* ---- rdma.c ------------------------------------------------------------ */

/* Where sysfs is; tests have one of their own. */
extern const char *ofi_rdma_sysfs;

/* Takes out of `list` what no RDMA device with an active port carries, and
 * orders the rest: the device that serves this rank best comes first.  Returns
 * how many are left. */
int ofi_rdma_keep(const struct tpt_card *card, struct ofi_where *list,
                  int count);
/* Is there such an address, and may this process use the device, and lock
 * that many bytes of memory?  Reads sysfs, loads nothing. */
tp_status ofi_rdma_probe(const struct tpf_env *env, size_t locked,
                         struct tpb_error *error);

/* ---- listen.c ---------------------------------------------------------- */

/* One listening socket. */
struct ofi_listen {
    struct tpf_watch watch;
    struct ofi_endpoint *endpoint;
};

tp_status ofi_listen_open(struct ofi_endpoint *endpoint,
                          struct tpb_error *error);
void ofi_listen_close(struct ofi_endpoint *endpoint);
/* Nobody is let in for so long; 0: again. */
void ofi_listen_pause(struct ofi_endpoint *endpoint, int64_t ms);

/* ---- meet.c ------------------------------------------------------------ */

/* What both say when they meet; the same layout both ways. */
struct ofi_note {
    uint32_t magic;
    uint32_t status;               /* host's: a tp_status */
    uint8_t key[OFI_KEY];          /* visitor's: host's key; host's: ticket */
    uint32_t max_frame, slots;
    struct ofi_where where;        /* host's, MSG: where to connect to */
    uint8_t name_length;           /* any.c: bytes of the name */
    uint8_t splits;                /* OFI_SPLITS: takes heads and bodies */
    uint8_t bundles;               /* OFI_BUNDLES: takes them, bundle.c */
    uint8_t shorts;                /* OFI_SHORTS: keeps such, shorts.c */
    char name[OFI_NAME];           /* RDM: the endpoint's name */
    char text[128];                /* host's: why it refuses */
};
_Static_assert(sizeof(struct ofi_note) == 248, "struct ofi_note is sent");

enum ofi_stage {
    OFI_STRANGER,                  /* host: waiting for the visitor's note */
    OFI_DIALING,                   /* visitor: connecting the socket */
    OFI_ASKED,                     /* visitor: waiting for the host's answer */
    OFI_LOADING,                   /* has the other's note; waits for the
                                      library, or (visitor) for its turn */
    OFI_JOINING                    /* libfabric is at it */
};

/* One socket between two processes that meet. */
struct ofi_meet {
    struct tpf_watch watch;        /* fd: the socket, or -1 */
    struct tpb_list link;          /* in endpoint->meets, or ->dead */
    struct ofi_endpoint *endpoint;
    struct ofi_visit *visit;       /* visitor: the visit it belongs to */
    int at;                        /* visitor: which of the card's addresses */
    struct ofi_conn *conn;         /* NULL: a stranger, or not joining */
    enum ofi_stage stage;
    uint64_t deadline;             /* of this stage; tpb_now(); 0: none */
    bool longer;                   /* it was put off, as nobody looked */
    struct ofi_where where;        /* our end of the socket */
    struct ofi_note theirs, ours;
    size_t got;                    /* bytes of `theirs` that are there */
};

/* Is there no room for a stranger, and nobody to make it?  Then they wait with
 * the kernel. */
bool ofi_meet_full(struct ofi_endpoint *endpoint);
/* Somebody has called; the descriptor is ours now. */
void ofi_meet_stranger(struct ofi_endpoint *endpoint, int fd);
/* Takes the conn's meeting away, or its visit, if there is one. */
void ofi_meet_end(struct ofi_conn *conn);
/* The way tried just now did not lead to a connection. */
void ofi_meet_failed(struct ofi_conn *conn, tp_status status,
                     const char *text);
/* libfabric has joined the two: the meeting is over. */
void ofi_meet_done(struct ofi_conn *conn);
/* The library has come (or not): goes on with whoever waited for it. */
void ofi_meet_loaded(struct ofi_endpoint *endpoint);
/* Deadlines; and the timer for the next one. */
void ofi_meet_timers(struct ofi_endpoint *endpoint);
void ofi_meet_schedule(struct ofi_endpoint *endpoint);
/* Frees what ended; when no event for it can be under way any more. */
void ofi_meet_bury(struct ofi_endpoint *endpoint);
/* Ends all. */
void ofi_meet_close(struct ofi_endpoint *endpoint);

/* For visit.c.  The socket, if one is left, is closed by drop. */
struct ofi_meet *ofi_meet_new(struct ofi_endpoint *endpoint);
void ofi_meet_drop(struct ofi_meet *meet);
uint64_t ofi_meet_after(int64_t ms);   /* a deadline; 0 for negative ms */
int64_t ofi_meet_patience(const struct ofi_endpoint *endpoint);    /* ms */
/* Fills in our note, and where we are; false with errno. */
bool ofi_meet_note(struct ofi_meet *meet, const uint8_t *key);
bool ofi_meet_say(struct ofi_meet *meet);
/* Reads the other's note; true when it is whole.  *gone: it never will be. */
bool ofi_meet_read(struct ofi_meet *meet, bool *gone);
/* libfabric's news before a verdict on a socket that ended while joining.
 * True if the meeting was over by that. */
bool ofi_meet_settled(struct ofi_meet *meet);

/* ---- visit.c ----------------------------------------------------------- */

/*
 * The way to one peer.  Its addresses are called one after the other, the best
 * first, without waiting for the end of those that do not answer at once (as
 * RFC 8305 has it).  The first that answers as the peer would is joined; the
 * others are given up when that has led to a connection.
 */
struct ofi_visit {
    struct tpb_list link;          /* in endpoint->visits */
    struct ofi_endpoint *endpoint;
    struct ofi_conn *conn;
    struct ofi_card card;          /* the addresses in our order */
    struct ofi_meet *calls[OFI_WHERES];    /* under way, one per address */
    bool done[OFI_WHERES];         /* it leads nowhere */
    unsigned tries[OFI_WHERES], round;     /* those late are called again */
    uint64_t again[OFI_WHERES];    /* others were in the way there: it is not
                                      called before that time; 0: they were
                                      not */
    unsigned hung_up[OFI_WHERES];  /* how often it has, without an answer */
    bool loading;                  /* no note can be made without the library */
    uint64_t next;                 /* when to call the next one; 0: not */
    struct tpb_text history;       /* what each answered */
    tp_status verdict;             /* of the last one */
};

/* The conn's failed or connected upcall comes of it. */
tp_status ofi_visit_start(struct ofi_conn *conn, const struct ofi_card *card,
                          struct tpb_text *left_out, struct tpb_error *error);
void ofi_visit_end(struct ofi_visit *visit);
/* Something happened to one of its sockets; or time has passed. */
void ofi_visit_ready(struct ofi_meet *meet, uint32_t events);
void ofi_visit_late(struct ofi_meet *meet);
void ofi_visit_timer(struct ofi_visit *visit, uint64_t now);
void ofi_visit_loaded(struct ofi_visit *visit);
/* The one that is joining did not come about. */
void ofi_visit_failed(struct ofi_conn *conn, tp_status status,
                      const char *text);
/* What has been tried and what is waited for, in words. */
void ofi_visit_words(const struct ofi_visit *visit, struct tpb_text *text);

/* ---- life.c ------------------------------------------------------------ */

/*
 * The socket where two processes met stays open as long as they are joined.
 * No byte goes over it.  Its end tells of the other process's end, and the
 * kernel's own probes (SO_KEEPALIVE) of the other host's: they are answered by
 * that kernel, whatever the process there does or does not do, so a program
 * that computes for an hour is not taken for dead.  The probes stop while
 * messages come in, which prove as much.
 */
tp_status ofi_life_keep(struct ofi_conn *conn, struct tpb_error *error);
void ofi_life_leave(struct ofi_conn *conn);
/* A message came in while probes are sent: they are not needed for now. */
void ofi_life_heard(struct ofi_conn *conn);
/* One goes out while they are: is it confirmed? */
void ofi_life_sends(struct ofi_conn *conn);
void ofi_life_timers(struct ofi_endpoint *endpoint, uint64_t now);
/* When it wants to be called; 0: not. */
uint64_t ofi_life_next(const struct ofi_endpoint *endpoint);

/* ---- rail.c ------------------------------------------------------------ */

/* A queue of connection events, and its descriptor in the env's epoll set. */
struct ofi_events {
    struct fid_eq *eq;
    struct fid_wait *wait;         /* of a silent rail's */
    struct tpf_watch watch;
};

/* MSG: while somebody is expected, or from then on (msg.c says why), a passive
 * endpoint with its own event queue, so that nothing of a stranger's outlives
 * it. */
struct ofi_door {
    struct fid_pep *pep;
    struct ofi_events events;
    struct ofi_rail *rail;
    unsigned expected;             /* conns that have been invited */
};

/*
 * MSG: a completion queue and the conns that share it.  A device's queue has a
 * fixed size, beyond which completions are lost, and a limit to that size: so
 * there is another one when this one is taken.
 */
struct ofi_cq {
    struct tpb_list link;          /* in rail->cqs */
    struct ofi_rail *rail;
    struct fid_cq *cq;
    struct tpf_watch watch;        /* not of a silent rail's */
    unsigned conns, limit;         /* those it has, and has room for */
};

/* libfabric's objects for one local address (MSG) or for all conns (RDM).
 * Made at first use, live as long as the endpoint. */
struct ofi_rail {
    struct tpb_list link;          /* in endpoint->rails */
    struct ofi_endpoint *endpoint;
    struct ofi_where where;        /* MSG: the address, without port */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct ofi_events events;      /* MSG */
    struct tpb_list cqs;           /* MSG; RDM has one per conn */
    bool silent;                   /* events' descriptor tells of cqs, too */
    char carrier[64];              /* what explain says of it */
    struct ofi_door door;
    unsigned vain;                 /* wakes without a cause, in a row */
    bool edges;                    /* so its watch is told once of each thing */
    unsigned joining;              /* conns for which eq matters now */
    unsigned holds;                /* of the endpoint, and of RDM conns */
    size_t inject;                 /* bytes that may be injected */
    bool rma;                      /* it can read remotely */
    struct tpb_list mrs;           /* ofi_mr, the user's memory */
    uint64_t mr_key;               /* the last one asked for */
};

/* The rail for a local address (port ignored), or for RDM. */
struct ofi_rail *ofi_rail_get(struct ofi_endpoint *endpoint,
                              const struct ofi_where *where,
                              struct tpb_error *error);
void ofi_rail_drop(struct ofi_rail *rail);
/* RDM: a queue for one conn. */
struct fid_cq *ofi_cq_open(struct ofi_rail *rail, struct tpb_error *error);
/* MSG: a queue with room for one more conn, or NULL. */
struct ofi_cq *ofi_cq_hold(struct ofi_rail *rail, struct tpb_error *error);
void ofi_cq_drop(struct ofi_cq *cq);
/* All of the rail's queues, as ofi_cq_drain(). */
bool ofi_rail_drain(struct ofi_rail *rail, bool all);
/* One that has not been opened may be closed, too. */
tp_status ofi_events_open(struct ofi_rail *rail, struct ofi_events *events,
                          struct tpb_error *error);
void ofi_events_close(struct ofi_rail *rail, struct ofi_events *events);
/* Puts its descriptor back: an event that comes in after this makes it
 * readable again.  False: there is one already. */
bool ofi_events_calm(struct ofi_rail *rail, struct ofi_events *events);
/* The descriptor behind a queue, in the env's epoll set. */
tp_status ofi_watch_fid(struct ofi_endpoint *endpoint, struct fid *fid,
                        struct tpf_watch *watch, struct tpb_error *error);
/* The completions that are there; surely `all` of them, or what one look
 * shows.  Upcalls wait until ofi_conn_upcalls(). */
bool ofi_cq_drain(struct fid_cq *cq, bool all);
/* True if nothing came in between and one may sleep on its descriptor. */
bool ofi_rail_sleepy(struct ofi_rail *rail);

/* msg.c: what comes from the queues of connection events. */
bool ofi_msg_events(struct ofi_rail *rail);

/* Somebody who asks a passive endpoint to be let in. */
struct ofi_request {
    struct fi_info *info;          /* the reader's to free; NULL: the event was
                                      of another kind */
    const void *ticket;            /* what he brings, in `event` */
    size_t length;
    union ofi_event event;         /* last, for it ends without a size */
};
/* False: nothing came in. */
bool ofi_request_read(struct fid_eq *eq, struct ofi_request *request);
void ofi_door_close(struct ofi_rail *rail);

/* ---- mr.c --------------------------------------------------------------- */

/* A registration of the user's memory with one rail. */
struct ofi_mr {
    struct tpb_list link;          /* in rail->mrs */
    struct fid_mr *mr;
    uintptr_t start;
    size_t length;
    uint64_t access;               /* FI_SEND, FI_READ, FI_REMOTE_READ */
    uint64_t block;                /* of tp_alloc(), by its number; or 0 */
    unsigned holds;
    bool freed;                    /* the block is: closed with its last hold */
};

/* fi_mr_reg(); 0 or a negative fi_errno with words.  If there is no room it
 * gives up registrations that are kept, but not held. */
int ofi_mr_register(struct ofi_rail *rail, const void *start, size_t length,
                    uint64_t access, struct fid_mr **mr,
                    struct tpb_error *error);

/*
 * A registration for the time of one operation, during which the memory stays
 * the caller's: shared with others that use it just now, kept beyond it only
 * if it is memory of tp_alloc().  NULL with words.
 */
struct ofi_mr *ofi_mr_hold(struct ofi_rail *rail, const void *address,
                           size_t length, uint64_t access,
                           struct tpb_error *error);
/* Of tp_alloc()'s memory only, FI_SEND included; NULL for any other. */
struct ofi_mr *ofi_mr_hold_ours(struct ofi_rail *rail, const void *address,
                                size_t length);
void ofi_mr_drop(struct ofi_mr *mr);       /* NULL is allowed */
/* A block of tp_alloc() is freed. */
void ofi_mr_freed(struct ofi_rail *rail, uint64_t block);
/* Closes what is left; nobody holds any. */
void ofi_mr_close(struct ofi_rail *rail);

/* What a peer must say to reach `address` in it. */
static inline uint64_t ofi_mr_address(const struct ofi_rail *rail,
                                      const struct ofi_mr *mr,
                                      const void *address)
{
    return rail->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR
               ? (uintptr_t)address : (uintptr_t)address - mr->start;
}

/* ---- conn.c ------------------------------------------------------------ */

struct ofi_conn {
    struct tpf_conn common;
    struct tpb_list link;          /* in endpoint->conns */
    struct tpb_list due;           /* in endpoint->due: upcalls to be made */
    struct ofi_meet *meet;         /* while the two join */
    struct ofi_visit *visit;       /* while we look for a way to the peer */
    struct ofi_rail *rail;
    struct fid_ep *ep;
    struct ofi_cq *shared;         /* MSG: the queue it shares */
    struct fid_cq *cq;             /* RDM: its own */
    struct fid_av *av;             /* RDM */
    fi_addr_t peer;                /* RDM */
    char name[OFI_NAME];           /* RDM: our endpoint's */
    uint8_t ticket[OFI_KEY];       /* MSG, host: what the visitor brings */
    bool invited;                  /* MSG, host: counted in door.expected */
    bool joining;                  /* MSG: counted in rail.joining */
    struct tpf_watch life;         /* the meeting's socket, kept to see the
                                      peer go; -1: none */
    struct ofi_where life_peer;    /* its other end */
    struct tpb_list lively;        /* in endpoint->lively: no probes now */
    int wire;                      /* MSG: libfabric's socket, its number only;
                                      -1: not known */
    bool wire_sought;              /* ... and will not be found */
    uint64_t stuck_since;          /* ... has sent the same again; 0: not */
    bool probing;                  /* the kernel asks the peer's */
    bool heard;                    /* a message came since the last look */
    uint64_t life_ended;           /* its socket ended; 0: not */
    bool twin;                     /* RDM: the peer is in this process */
    int met_fd;                    /* ... the meeting's socket once more,
                                      until life has it; -1: none */
    bool incoming;                 /* the core does not know it yet */
    bool awaited;                  /* RDM: counted in env->joining */
    bool joined;                   /* frames may flow */
    bool told;                     /* ... and the core knows */
    bool lost;                     /* no more frames will come */
    bool broken;                   /* sending has failed: soon lost */
    bool over;                     /* failed has been said */
    bool blocked;                  /* the core waits for writable */
    uint64_t broken_since;
    tp_status status;              /* why it was lost */
    char text[1536];

    struct tpb_list pulls;         /* rma.c: those that are not over */
    struct tpb_list pulled;        /* ... and those with an upcall due */
    struct ofi_reads *reads;       /* ... NULL before the first one */

    struct ofi_slots receive, send;
    struct ofi_slots kept;         /* short frames; none before the first */
    struct ofi_queue arrived;      /* for peek() */
    struct ofi_slot *ahead;        /* RDM: came before others that are before
                                      them; by their numbers */
    struct ofi_queue waiting;      /* sent when libfabric takes them */
    struct ofi_queue lent;         /* OFI_SEND_DATA, oldest first */
    struct ofi_slot *reserved;
    bool bundles;                  /* the peer takes them */
    struct ofi_slot *bundle;       /* not sent yet; or NULL */
    size_t bundled;                /* bytes of its frames */
    unsigned singles;              /* bundles of one long frame, in a row, and
                                      long frames that have been lent then */
    uint64_t called;               /* when a callback sent something last */
    struct ofi_slot *half;         /* whose body is still to be sent */
    struct ofi_slot *coming;       /* whose body is not here yet */
    struct ofi_slot body;          /* the context of its receive */
    char *place;                   /* where it goes; NULL: not known yet */
    bool asked;                    /* it has a receive */
    uint32_t careful;              /* not more than one buffer is posted for
                                      that many short frames */
    uint32_t posts;                /* receive slots that libfabric has */
    uint32_t limit;                /* frames that the peer has room for */
    bool shorts, keeps;            /* it, or we keep short ones beyond these,
                                      shorts.c */
    size_t wants;                  /* what is blocked is so long */
    uint32_t frames_sent, peer_popped, peer_got;
    uint32_t got, popped;          /* ours */
    uint32_t told_popped, told_got;
    uint32_t pinged;               /* frames_sent at the last ping */
    bool ping_due, pong_due;
    bool asked_early;              /* RDM: a ping came before frames that it
                                      asks for; the answer waits for ... */
    uint32_t asked_for;            /* ... `got` to be that */
};

static inline struct ofi_conn *ofi_conn_of(struct tpf_conn *conn)
{
    return TPB_CONTAINER(conn, struct ofi_conn, common);
}

/* Readies a conn that the core or we have allocated. */
void ofi_conn_init(struct ofi_conn *conn);
tp_status ofi_conn_buffers(struct ofi_conn *conn, struct tpb_error *error);
/* Gives up rail, endpoint and buffers, for another try. */
void ofi_conn_reset(struct ofi_conn *conn);
/* Posts all receive slots; the ep is enabled. */
tp_status ofi_conn_post(struct ofi_conn *conn, struct tpb_error *error);
/* What the peer said in its note. */
tp_status ofi_conn_terms(struct ofi_conn *conn, const struct ofi_note *note,
                         struct tpb_error *error);
void ofi_conn_joined(struct ofi_conn *conn);
/* No more frames will come; said to the core when it has read the last. */
void ofi_conn_lost(struct ofi_conn *conn, tp_status status, const char *format,
                   ...) TPB_PRINTF(3, 4);
/* A conn that the core does not know: freed, with all it has. */
void ofi_conn_drop(struct ofi_conn *conn);
/* Completions. */
void ofi_conn_received(struct ofi_conn *conn, struct ofi_slot *slot,
                       size_t length);
void ofi_conn_sent(struct ofi_conn *conn, struct ofi_slot *slot);
/* Retries, acknowledgements. */
bool ofi_conn_push(struct ofi_conn *conn);
/* Something was posted: who sleeps must look, if nothing else wakes him. */
void ofi_conn_stir(struct ofi_conn *conn);
void ofi_conn_is_due(struct ofi_conn *conn);
/* Makes the upcalls that are due; true if there were any. */
bool ofi_conn_upcalls(struct ofi_endpoint *endpoint);

/* The backend's functions. */
tp_status ofi_conn_connect(struct tpf_conn *conn, const void *address,
                           size_t length, struct tpb_error *error);
void ofi_conn_disconnect(struct tpf_conn *conn);
void ofi_conn_trying(struct tpf_conn *conn, struct tpb_text *text);
void *ofi_conn_reserve(struct tpf_conn *conn, size_t size);
void ofi_conn_commit(struct tpf_conn *conn, size_t size);
bool ofi_conn_send_data(struct tpf_conn *conn, const void *head,
                        size_t head_length, const void *data, size_t length,
                        void *token);
const void *ofi_conn_peek(struct tpf_conn *conn, size_t *size);
void ofi_conn_pop(struct tpf_conn *conn);
bool ofi_conn_flushed(struct tpf_conn *conn);
/* Libfabric has sent all that it was given, but for short messages that it has
 * copied, and nothing comes in pieces. */
bool ofi_conn_settled(const struct ofi_conn *conn);

/* A slot for a frame of that size, or NULL and a promise to say when. */
struct ofi_slot *ofi_conn_slot(struct ofi_conn *conn, size_t size);
/* What it holds is the next frame. */
void ofi_conn_send_slot(struct ofi_conn *conn, struct ofi_slot *slot,
                        size_t size, uint32_t flags);
/* A frame is there, whole, in its slot or where the core wants it. */
void ofi_conn_arrived(struct ofi_conn *conn, struct ofi_slot *slot);

/* ---- broken.c ----------------------------------------------------------- */

/* Libfabric said no to sending: soon lost. */
void ofi_conn_broken(struct ofi_conn *conn, int code);
/* The completion of what did not go through. */
void ofi_conn_error(struct ofi_conn *conn, struct ofi_slot *slot, int code);

/* ---- shorts.c ------------------------------------------------------------ */

/* Is there room beyond the slots for a frame of that size behind so many? */
static inline bool ofi_shorts_fit(size_t size, uint32_t under_way)
{
    return under_way < OFI_SHORT_MOST && size < OFI_SHORT
           && under_way * size < OFI_SHORT_BYTES;
}

/* A frame is here that is not read yet.  Where it is from now on, which is
 * another slot if receive slots are scarce; NULL: there is no memory, and the
 * conn is lost. */
struct ofi_slot *ofi_shorts_keep(struct ofi_conn *conn, struct ofi_slot *slot);
/* A received frame is over. */
void ofi_shorts_give(struct ofi_conn *conn, struct ofi_slot *slot);

/* ---- bundle.c ------------------------------------------------------------ */

/* Room for a frame behind those that are kept; NULL: it does not go that way,
 * and what was kept has been sent if it has no room. */
void *ofi_bundle_reserve(struct ofi_conn *conn, size_t size);
void ofi_bundle_commit(struct ofi_conn *conn, size_t size);
/* A frame of that size is sent from where it lies: tells the core whether that
 * is right for the next one. */
void ofi_bundle_lent(struct ofi_conn *conn, size_t size);
/* What is kept goes, before what is sent after it. */
void ofi_bundle_send(struct ofi_conn *conn);
void ofi_conn_gathered(struct tpf_conn *conn);
void ofi_bundle_leave(struct ofi_conn *conn);
/* Of a received slot: is it well made?  Its next frame; true: there is one
 * more. */
bool ofi_bundle_right(const struct ofi_slot *slot);
const void *ofi_bundle_peek(const struct ofi_slot *slot, size_t *size);
bool ofi_bundle_pop(struct ofi_slot *slot);

/* ---- land.c -------------------------------------------------------------- */

/* A filled slot's head, and the caller's data.  As fi_send(). */
ssize_t ofi_land_send(struct ofi_conn *conn, struct ofi_slot *slot,
                      size_t head_length);
/* What libfabric had no room for; false: it has none. */
bool ofi_land_push(struct ofi_conn *conn);
bool ofi_land_post(struct ofi_conn *conn);
/* How many receive slots may be posted, of `most`. */
uint32_t ofi_land_posts(const struct ofi_conn *conn, uint32_t most);
/* What a slot must have room for beside its head. */
size_t ofi_land_room(const struct ofi_endpoint *endpoint);
/* A message that is a head; a slot that got its body; it is in its place. */
void ofi_land_head(struct ofi_conn *conn, struct ofi_slot *slot,
                   size_t length);
void ofi_land_slot(struct ofi_conn *conn, struct ofi_slot *slot,
                   size_t length);
void ofi_land_done(struct ofi_conn *conn, size_t length);
/* The endpoint is closed. */
void ofi_land_leave(struct ofi_conn *conn);
/* The backend's functions. */
const void *ofi_conn_coming(struct tpf_conn *conn, size_t *head, size_t *size);
void ofi_conn_land(struct tpf_conn *conn, void *to);

/* ---- socket.c ------------------------------------------------------------ */

/* Joined over TCP: looks for the socket, once.  Without congestion control, as
 * far as that goes, if it does not leave the host. */
void ofi_socket_find(struct ofi_conn *conn);
/* Where that found nothing: among all descriptors. */
void ofi_socket_seek(struct ofi_conn *conn);
/* How long ago, in ms, did the peer's kernel confirm anything, if something is
 * being sent to it again?  0: for the first time; -1: all is confirmed, or
 * nobody knows.  Nothing may have been sent for most of that time. */
int64_t ofi_socket_silent(const struct ofi_conn *conn);
/* What a round trip takes there at least, in us; 0: nobody knows. */
uint32_t ofi_socket_round(int fd);
/* Bytes that are to be under way on a pipe beyond those that suffice next door,
 * where that takes so many us. */
size_t ofi_socket_far(uint32_t round_us);

/* ---- any.c --------------------------------------------------------------- */

/* The kind of a backend that tpf_ofi_make() made; and what these are like. */
const struct ofi_kind *ofi_any_kind(const struct tpf_backend *backend);
extern const struct tpf_backend ofi_any_template;

/* ---- rma.c -------------------------------------------------------------- */

/* Posts reads.  False: libfabric had no room for one. */
bool ofi_rma_push(struct ofi_conn *conn);
/* A read has ended; 0 or a positive fi_errno. */
void ofi_rma_done(struct ofi_slot *slot, int code);
void ofi_rma_upcalls(struct ofi_conn *conn);
/* The conn's endpoint is closed: no upcalls for what was under way. */
void ofi_rma_leave(struct ofi_conn *conn);

/* ---- endpoint.c -------------------------------------------------------- */

struct ofi_endpoint {
    struct tpf_endpoint common;
    const struct ofi_kind *kind;
    struct ofi_card card;          /* what we publish */
    struct ofi_listen listens[OFI_WHERES];
    int listen_count;
    uint64_t listen_paused;        /* no descriptors, or many strangers: until
                                      the timer wakes it; 0: it is not */
    bool listen_full;              /* ... these: or until there are fewer */
    bool listen_warned;            /* of the lack of descriptors */
    struct tpf_watch timer, loaded;
    uint64_t looked;               /* when the timer was served last */
    struct tpb_list meets, dead, visits, rails, conns;
    struct tpb_list lively;        /* conns that need no probes, see life.c */
    uint64_t life_look;            /* when to look at them again */
    struct tpb_list due;           /* conns with upcalls to be made */
    struct tpb_list stuck;         /* ... that libfabric had no room for */
    unsigned strangers;
    bool armed;                    /* whoever drives may sleep */
    unsigned turns;                /* of progress(), to do some things seldom */
    uint64_t asked;                /* tpb_tick() of the last one */
};

static inline struct ofi_endpoint *ofi_endpoint_of(struct tpf_endpoint *e)
{
    return TPB_CONTAINER(e, struct ofi_endpoint, common);
}

/* The conn as ours; NULL if another backend has it. */
struct ofi_conn *ofi_conn_if(struct tpf_conn *conn);

#endif
