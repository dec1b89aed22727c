/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Inside shm: what is shared, and who owns it.
 *
 * A conn has one segment (anonymous, passed over a Unix socket) with a ring in
 * each direction; the side that connected made it and is side 0.  A process
 * has one mailbox, which all its peers map: a bit per conn that says "look at
 * this ring", and whether the process sleeps.  The few rings that were active
 * lately are watched directly and need no bits; so polling costs the same with
 * a thousand peers as with eight.
 *
 * Nothing here has a name in a file system.  The listening socket's name is
 * abstract and random; the kernel forgets it with the process.
 */
#ifndef TPF_SHM_H
#define TPF_SHM_H

#include "fabric/backend.h"
#include "fabric/shm/ring.h"
#include "runtime/base/door.h"
#include "runtime/base/presence.h"

enum {
    SHM_VERSION = 8,
    SHM_SLOTS = 4096,              /* the most conns of one endpoint */
    SHM_WATCHED_RINGS = 8,
    SHM_WINDOW = 2 * SHM_NARROW,   /* of a pipe: sent, and not consumed */
    SHM_WIDE = 8,                  /* rings that we write all of */
    SHM_STREAM = 256,              /* records that may be one ... */
    SHM_ROW = 16,                  /* ... where so many of them come ... */
    SHM_ROW_BYTES = 8 * 1024,      /* ... or so many bytes, together ... */
    SHM_AWAY_NS = 2500,            /* ... as we look away for so long */
    SHM_BODY = 512,                /* bytes of a record that is more than what
                                      is said of a long message, or after it */
    SHM_APART = 64,                /* records until that is tried again, ... */
    SHM_APART_MOST = 4096,         /* ... twice as many each time, up to that */
    SHM_LIVELY = 64,               /* records from sleep to sleep: fences for
                                      so many take as long as a barrier */
    SHM_TURNS = 3,                 /* of struct shm_conn; so they count */
    SHM_TURNS_MOST = 6,
    SHM_CONTROL = 4096,            /* at the segment's begin, at most */
    SHM_PENDING = 256,             /* strangers that have not said hello */
    SHM_WAYS_IN = 2                /* the listener and the door */
};

struct shm_segment {
    struct shm_side sides[2];      /* of the rings that side 0 / 1 consume */
    struct shm_channel {           /* of what side 0 / 1 receives */
        _Alignas(TPB_CACHE_LINE) unsigned char bytes[TPF_SHARED];
    } channels[2];
    _Atomic uint32_t closed[2];    /* side 0 / 1 closed the conn; its process
                                      need not have ended */
};
_Static_assert(sizeof(struct shm_segment) <= SHM_CONTROL, "layout");

/* Written by all peers.  `any` is set after a bit of `told`, and cleared before
 * the bits are looked at. */
struct shm_mailbox {
    _Alignas(TPB_CACHE_LINE) _Atomic uint32_t any;
    _Alignas(TPB_CACHE_LINE) _Atomic uint32_t asleep;
    _Alignas(TPB_CACHE_LINE) _Atomic uint64_t told[SHM_SLOTS / 64];
    struct tpb_presence presence;
};

/* The first and only message of the connecting side, with descriptors
 * {segment, mailbox, doorbell}; answered by shm_welcome with {mailbox,
 * doorbell}. */
struct shm_hello {
    char magic[4];                 /* "tpsh" */
    uint32_t version;
    uint8_t cookie[16];            /* of the card that was connected to */
    uint32_t slot;                 /* the sender's bit in its mailbox */
    uint32_t ring;                 /* SHM_RING */
};
_Static_assert(sizeof(struct shm_hello) == 32, "layout");

struct shm_welcome {
    char magic[4];
    uint32_t version;
    uint32_t status;               /* 0, or a tp_status that refuses */
    uint32_t slot;
    char why[112];                 /* it refuses, in words; terminated */
};
_Static_assert(sizeof(struct shm_welcome) == 128, "layout");

/* What is published.  The name is abstract: a NUL stands before it.  It is
 * known in that network namespace; from others a door may lead there. */
struct shm_address {
    uint32_t version;
    uint32_t name_length;
    uint64_t net_namespace;        /* 0: not known */
    uint8_t cookie[16];
    char name[64];
    char door[TPB_DOOR_NAME];      /* "": none */
};

/* What goes through a door, with one end of a pair of sockets: from there on
 * as if that had been accepted. */
struct shm_call {
    char magic[4];                 /* "tpsd" */
    uint32_t version;
    uint8_t cookie[16];            /* of the address */
};
_Static_assert(sizeof(struct shm_call) == 24, "layout");

enum shm_state {
    SHM_NEW,
    SHM_RETRY,                     /* the peer's backlog is full, or too much
                                      is under way */
    SHM_GREETED,                   /* hello sent, welcome to come */
    SHM_STRANGER,                  /* accepted, hello to come */
    SHM_HEARD,                     /* ... and heard, but not answered yet */
    SHM_OPEN,
    SHM_HUNG_UP,                   /* frames may still be in the ring */
    SHM_DEAD                       /* failed was called */
};

/* See extent.c: how much of a ring those use who take turns. */
struct shm_fit {
    uint32_t extent;               /* what their records need; 0: not known */
    uint32_t length;               /* they are no longer than this, and longer
                                      than half of it */
    uint32_t other;                /* bytes of laps that ended with others, one
                                      after the other */
    uint32_t stage;                /* enum extent_stage */
    uint32_t trials;               /* that are over, of all of the ring */
    uint64_t best[2];              /* ns for 1 MiB; all of it: [1]; 0: none */
    bool wide;                     /* that was better */
    uint32_t kept, left;           /* MiB, about, until it is tried again */
    uint64_t bytes, took;          /* of the trial, or of that */
};

enum { SHM_EARLY_TRIALS = 3 };         /* each way */
/* See early.c: is the line that an answer begins in asked for early? */
struct shm_early {
    bool on;
    bool pair;                     /* also the second line, as our records have
                                      two, which their reader asks for */
    uint32_t length;               /* their records are no longer than this, and
                                      longer than half of it; 0: not known */
    uint32_t trial;                /* trials that are over */
    uint64_t bytes, took;          /* of this one, or since they are over */
    uint64_t tried[2][SHM_EARLY_TRIALS];   /* ns for 1 MiB; with it: [1] */
    uint64_t without;              /* what was found; 0: nothing yet */
    uint64_t kept, left;           /* bytes until it is tried again: the next
                                      time, and now */
    uint32_t other;                /* laps that took another time, one after
                                      the other */
    uint32_t strange;              /* ... that ended with other records */
};

struct shm_conn {
    struct tpf_conn base;
    enum shm_state state;
    struct tpf_watch watch;        /* the socket; its hang-up is death */
    struct tpf_watch death;        /* a pidfd, while OPEN; or -1 */
    struct tpb_list link;          /* in retries, strangers, heard or watched */
    struct tpb_list want_link;     /* in wanting while `wanted` is set */
    struct shm_producer out;
    struct shm_consumer in;
    struct tpb_way way;            /* into `out` */
    struct tpb_fetch fetch;        /* out of `in` */
    uint64_t lapped;               /* when `out` began its memory again, */
    uint32_t record;               /* ... the size of the last one before, */
    bool several;                  /* ... and whether messages were of several
                                      since then */
    struct shm_fit fit;
    struct shm_early early;
    uint64_t busy_since;           /* how many bytes since then, see extent.c */
    uint64_t busy_bytes;
    uint64_t answered;             /* how far we had read as we last wrote */
    uint32_t looked;               /* records read as we last looked away */
    uint32_t next_look;            /* ... and when that is due again, if not
                                      more than credit is written before */
    uint32_t apart;                /* records until then; 0: a stream */
    uint32_t slept;                /* records read as we last went to sleep */
    uint64_t before;               /* bytes written since the last record that
                                      was not followed by another at once */
    bool follows;                  /* the first of those followed one read */
    bool second;                   /* ... or one that did and was whole, as a
                                      body follows its header */
    bool whole;                    /* the last one was a message by itself */
    unsigned turns;                /* how sure it is that we take turns, or
                                      only return credit */
    struct shm_mailbox *mailbox;   /* the peer's, or NULL */
    unsigned char *map;            /* the segment ... */
    int side;                      /* ... of which this is ours */
    int doorbell;                  /* the peer's */
    struct tpb_list notes;         /* that found no room in the socket; OPEN */
    bool hung_up;                  /* the peer's process has */
    bool dialed;                   /* it has our call, but not our hello */
    bool called;                   /* we made both ends of the socket ... */
    pid_t peer_pid;                /* ... so it does not know who has one */
    uint32_t slot;                 /* mine; SHM_SLOTS: none */
    uint32_t peer_slot;
    size_t wanted;                 /* the reservation that failed */
    bool watched;                  /* link is in the endpoint's watched */
    bool evicted;                  /* it was watched, others are more lively */
    bool lively;                   /* we read much of it from sleep to sleep */
    struct shm_address address;    /* while retrying */
};

struct shm_endpoint {
    struct tpf_endpoint base;
    struct tpf_watch listener;
    struct tpf_watch door;         /* fd -1: none */
    struct tpf_watch doorbell;
    struct tpf_watch timer;        /* while there are retries, or answers to
                                      be sent, or paused */
    bool paused;                   /* the listener, for want of descriptors */
    bool warned;                   /* ... and that has been said */
    struct shm_mailbox *mailbox;
    int mailbox_fd;
    struct shm_address address;
    struct shm_conn **slots;       /* SHM_SLOTS entries */
    uint32_t next_slot;
    struct tpb_list retries, strangers, heard;
    uint32_t stranger_count;
    struct shm_conn *evicted[SHM_WAYS_IN]; /* the last ones */
    uint32_t evictions;
    struct tpb_list watched;       /* most recently active first */
    uint32_t watched_count;
    bool barriers;                 /* membarrier(2) goes, and pays */
    struct tpb_list wanting;       /* conns that wait for room */
    struct shm_conn *wide[SHM_WIDE];
    uint64_t scarce;               /* no memory for them until then */
};

static inline struct shm_conn *shm_conn(struct tpf_conn *conn)
{
    return (struct shm_conn *)conn;
}

/* Did what was sent lately follow something read, each time? */
static inline bool shm_in_turns(const struct shm_conn *conn)
{
    return conn->turns >= SHM_TURNS;
}

/* What trials tell records apart by: the next power of two. */
static inline uint32_t shm_length(uint32_t record)
{
    uint32_t length = 1;

    while (record > length)
        length *= 2;
    return length;
}

/* ... and what they compare. */
static inline uint64_t shm_per_mib(uint64_t took, uint64_t bytes)
{
    return (took << 20) / bytes;
}

static inline struct shm_endpoint *shm_endpoint(struct shm_conn *conn)
{
    return (struct shm_endpoint *)conn->base.endpoint;
}

/* segment.c: maps the segment `fd` (NULL-safe unmap), checks what a stranger
 * sent.  Side 0 made the segment. */
int shm_segment_make(void);                          /* fd, or -1 and errno */
tp_status shm_segment_map(struct shm_conn *conn, int fd, int side,
                          struct tpb_error *error);
void shm_segment_unmap(struct shm_conn *conn);
struct shm_mailbox *shm_mailbox_map(int fd);         /* or NULL and errno */
void shm_mailbox_unmap(struct shm_mailbox *mailbox);

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23         /* Linux 5.14 */
#endif

/* extent.c: before a record that shm_ring_reaches(); after one that was the
 * last before the memory's beginning; and of a conn that ends. */
void shm_extent_end(struct shm_conn *conn, size_t size);
void shm_extent_lap(struct shm_conn *conn, uint64_t now);
void shm_extent_forget(struct shm_conn *conn);

/* early.c: after a lap of a ring whose records are written in turns; after one
 * that says nothing; and once they are not. */
void shm_early_lap(struct shm_conn *conn, uint64_t took);
void shm_early_again(struct shm_conn *conn);
void shm_early_end(struct shm_conn *conn);

/* wireup.c: sockets, hello and welcome. */
tp_status shm_listen(struct shm_endpoint *endpoint, struct tpb_error *error);
void shm_unlisten(struct shm_endpoint *endpoint);
tp_status shm_connect(struct tpf_conn *conn, const void *address,
                      size_t length, struct tpb_error *error);
void shm_hang_up(struct shm_conn *conn);
bool shm_pass(struct tpf_conn *conn, const void *note, size_t length, int fd);
void shm_notes(struct tpf_conn *conn);
void shm_notes_drop(struct shm_conn *conn);
int shm_peer_pid(struct tpf_conn *conn);

/* death.c: of a conn that is OPEN, with its socket; and no more.  The last one
 * is the contract's. */
void shm_death_watch(struct shm_conn *conn);
void shm_death_forget(struct shm_conn *conn);
bool shm_parted(struct tpf_conn *base);

/* shm.c: slots and attention. */
tp_status shm_slot_take(struct shm_conn *conn);
void shm_slot_give(struct shm_conn *conn);
void shm_watch_ring(struct shm_conn *conn);
void shm_tell(struct shm_conn *conn);
void shm_fail(struct shm_conn *conn, tp_status status, const char *text);

#endif
