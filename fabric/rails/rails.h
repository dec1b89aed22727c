/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A transport over several connections of other transports: one per network
 * interface, or several streams over one.
 *
 * Words.  A rail is one connection of another backend; the conn of the core is
 * the group of its rails.  Every frame of the core has a number and goes over
 * one rail with our head before it; the receiver gives the core the frames by
 * their numbers.  Each rail is first in, first out, so the next frame usually
 * is the oldest of some rail and is read in place.  What came too early on the
 * rails before that one is copied to the stash.
 *
 * Nothing is forgotten before the other side has it: each head tells how many
 * frames its sender has taken off that rail.  A frame of a rail that was lost,
 * and that is not known to be there, goes again over another; if it was there
 * after all, its number tells.  Who gives a rail up says so on the others:
 * what it was sent there goes again at once as well, and not when the other
 * side has found out by itself.
 *
 *   address.c   what is published: every interface with its sub-address
 *   pace.c      how fast a rail is, and which one gets the next frame
 *   send.c      the window of frames that may have to go again
 *   receive.c   frames in the order of their numbers
 *   conn.c      a group and its rails: joining, losing, being looked after
 *   visit.c     the side that dials; host.c: the side that is dialled
 *   below.c     upcalls of the backends that the rails go over
 *   clock.c     what takes time: rails that stall or are called again
 *   endpoint.c  the backend's table; open, close, progress, sleep
 */
#ifndef TPF_RAILS_H
#define TPF_RAILS_H

#include <endian.h>

#include "fabric/backend.h"
#include "runtime/base/alloc.h"
#include "runtime/base/log.h"

enum {
    RAILS_SUBS = 4,                /* interfaces that we publish */
    RAILS_MAX = 8,                 /* rails of one conn; as settings_check.c */
    RAILS_WINDOW = 256,            /* frames not yet popped by the peer */
    RAILS_POPS = 32,               /* ... after so many they are told */
    RAILS_RING = 1024 * 1024,      /* bytes of frames that we copied */
    RAILS_KEY = 16,
    RAILS_NAME = 16,               /* an interface's name, with its NUL */
    RAILS_BIG = 16 * 1024,         /* a frame that shows how fast a rail is */
    RAILS_CORE_HEAD = 64,          /* the most that send_data() takes apart */
    RAILS_LEAST_FRAME = 256,       /* of a group */
    RAILS_MOST_FRAME = 64 * 1024,  /* with its head: smaller ones spread better,
                                      and a ring holds several */
    RAILS_JOIN_MS = 10000,         /* to be welcomed, beside others */
    RAILS_RETRY_MS = 100           /* until a lost rail is called again */
};

struct rails_endpoint;
struct rails_conn;

/* ---- address.c --------------------------------------------------------- */

/* One interface as published: a backend there and its address. */
struct rails_place {
    char backend[TPT_NAME];
    char nic[RAILS_NAME];
    uint32_t megabits;             /* 0: not known */
    uint16_t length;
    uint8_t address[TPT_ADDRESS];
};

struct rails_card {
    uint8_t key[RAILS_KEY];        /* who shows it has read this address */
    unsigned count;
    struct rails_place places[RAILS_SUBS];
};

/* Places that do not fit any more are left out; 0 if not one does. */
size_t rails_card_encode(const struct rails_card *card, void *buffer,
                         size_t capacity);
tp_status rails_card_decode(struct rails_card *card, const void *bytes,
                            size_t length, struct tpb_error *error);

/* ---- pace.c ------------------------------------------------------------ */

/* How fast a rail is, as far as we know.  Times are those of tpb_now(). */
struct rails_pace {
    double rate;                   /* bytes per second */
    bool measured;
    uint64_t inflight;             /* bytes sent and not acknowledged */
    uint64_t big;                  /* ... in big frames */
    uint64_t since, bytes;         /* of the sample being taken */
    uint64_t last_sent, last_moved;
};

void rails_pace_init(struct rails_pace *pace, uint32_t megabits);
void rails_pace_sent(struct rails_pace *pace, size_t size, uint64_t now);
void rails_pace_acked(struct rails_pace *pace, size_t size, uint64_t now);
/* The rail that would finish a frame of `size` bytes first; entries that are
 * NULL cannot take one.  -1: none; or better wait for one that is busy. */
int rails_pace_choose(struct rails_pace *const pace[], int count, size_t size,
                      uint64_t now);

/* ---- what is sent ------------------------------------------------------ */

enum rails_kind {
    RAILS_DATA = 1, RAILS_ACK, RAILS_JOIN, RAILS_WELCOME,
    RAILS_GONE                     /* only to who takes it */
};

enum { RAILS_TAKES_GONE = 1 };

/* Before each frame; little-endian. */
struct rails_head {
    uint8_t kind;
    uint8_t urgent;                /* somebody waits for this one's ack */
    uint8_t gone;                  /* JOIN, WELCOME: RAILS_TAKES_GONE, or 0 */
    uint8_t unused;
    uint32_t taken;                /* frames taken off this rail, modulo 2^32 */
    uint64_t number;               /* DATA: of the frame, from 0 */
    uint64_t popped;               /* all numbers below are with the core */
};
_Static_assert(sizeof(struct rails_head) == 24, "frames are aligned");

/* After the head of JOIN, WELCOME and GONE. */
struct rails_join {
    uint8_t key[RAILS_KEY];        /* JOIN: of the card */
    uint8_t group[RAILS_KEY];      /* not of GONE */
    uint32_t max_frame;            /* of the group; not of GONE */
    uint8_t rail;                  /* its place in the group */
    uint8_t fresh;                 /* JOIN: the group may not be known yet */
    uint16_t turn;                 /* JOIN: the how many-th there; GONE: which
                                      of them has been given up */
};
_Static_assert(sizeof(struct rails_join) == 40, "struct rails_join is sent");

/* ---- rails and groups -------------------------------------------------- */

enum rails_stage {
    RAILS_DIALING,                 /* the sub-conn is being made */
    RAILS_REACHED,                 /* it is there */
    RAILS_ASKED,                   /* JOIN sent; or stranger: none read yet */
    RAILS_UP
};

struct rails_rail {
    struct tpb_list link;          /* stranger: in endpoint->strangers */
    struct rails_endpoint *endpoint;
    struct rails_conn *group;      /* NULL: a stranger */
    struct tpf_conn *conn;         /* of the other backend */
    unsigned place;                /* in group->rails */
    enum rails_stage stage;
    uint64_t deadline;             /* to get up */
    bool failed;                   /* the other backend said so */
    bool full;                     /* ... or that it has no room */
    bool gone;                     /* the other side has given it up */
    uint16_t turn;                 /* as in its JOIN */
    uint8_t tell;                  /* a bit for each place: GONE is due here */
    tp_status status;
    struct rails_pace pace;
    uint32_t sent, acked;          /* data frames, modulo 2^32 */
    uint64_t order[RAILS_WINDOW];  /* the number of the k-th, by k % WINDOW */
    uint32_t taken, told;          /* data frames of theirs */
    uint64_t carried;              /* bytes of frames sent */
    uint64_t asked;                /* when, while another one stalls ... */
    uint32_t heard;                /* ... and `taken` then */
    uint64_t doubted;              /* it stalls: when another one answered */
    uint64_t suspected;            /* short frames: when they were found not
                                      to be there; 0: they may be */
};

/* One way to the peer; the visitor's. */
struct rails_way {
    unsigned sub;                  /* of ours */
    unsigned place;                /* of the card */
    unsigned tries;                /* since it was up */
    uint64_t retry;                /* when; 0: not now */
    uint16_t turns;                /* how often it has asked to join */
};

/* How the rail of a place ended that was up last. */
struct rails_loss {
    char nic[RAILS_NAME];          /* of ours */
    char why[320];                 /* "": it is up, or never was */
};

enum rails_state { RAILS_FREE, RAILS_WAITING, RAILS_SENT, RAILS_ACKED };

/* A frame that the peer may not have yet. */
struct rails_frame {
    enum rails_state state;
    uint8_t rail;                  /* SENT: over which */
    bool lent;                     /* data is the caller's, with token */
    bool held;                     /* the rail's backend has the memory */
    uint32_t head_length, length;
    const void *data;
    void *token;
    uint64_t ring_end;             /* copied: the ring is free up to here */
    char head[RAILS_CORE_HEAD];
};

struct rails_early {
    void *memory;
    size_t size;
};

struct rails_conn {
    struct tpf_conn common;
    struct tpb_list link;          /* in endpoint->conns */
    struct tpb_list due;           /* in endpoint->due */
    uint8_t group[RAILS_KEY];
    bool visitor;
    bool ready;                    /* one rail has been up */
    bool told;                     /* ... and the core knows */
    bool over;                     /* failed has been said */
    bool blocked;                  /* the core waits for writable */
    bool broken;                   /* the peer does not keep to the rules */
    bool vain;                     /* visitor: too few rails got up */
    bool tells;                    /* the peer takes GONE */
    uint16_t gone[RAILS_MAX];      /* turns that we have given up last */
    unsigned up;
    uint64_t patience;             /* visitor: the core is told at that time
                                      though some rails are still missing */
    tp_status status;
    char text[3072];
    struct rails_loss losses[RAILS_MAX];
    struct rails_card *card;       /* visitor: the peer's */
    unsigned way_count;
    struct rails_way ways[RAILS_MAX];
    struct rails_rail *rails[RAILS_MAX];

    /* sending */
    struct rails_frame window[RAILS_WINDOW];
    uint64_t first, next;          /* numbers in the window */
    uint64_t given;                /* what was lent below has been given back */
    uint64_t peer_popped;
    unsigned waiting;              /* frames in state WAITING */
    uint64_t big_sent;             /* when the last big frame was */
    char *ring;
    uint64_t ring_read, ring_written, ring_reserved;
    bool reserved;

    /* receiving */
    struct rails_early stash[RAILS_WINDOW];
    uint64_t popped, told_popped;  /* popped: the number that comes next */
    int head_rail;                 /* which has it as its oldest; -1: none */
    bool head_urgent;
    bool ack_wanted;
};

_Static_assert(sizeof(((struct rails_conn *)0)->text)
                   > RAILS_MAX * (sizeof(struct rails_loss) + 6),
               "all losses have room");

struct rails_sub {
    struct rails_endpoint *endpoint;
    struct tpf_env env;
    struct tpb_settings settings;  /* borrowed, but for the interface */
    char nic[RAILS_NAME];
    uint32_t megabits;
    struct tpf_endpoint *open;
};

struct rails_endpoint {
    struct tpf_endpoint common;
    uint8_t key[RAILS_KEY];
    unsigned sub_count;
    struct rails_sub subs[RAILS_SUBS];
    struct tpb_list conns, due, strangers;
    struct tpb_list graves;        /* of the backends' conns: to be given up */
    struct tpb_list dead;          /* ... that is done */
    unsigned stranger_count;
    struct tpf_watch timer;
    bool ticking, slowly;
    uint64_t looked;               /* the time of the last tick */
    bool settled;                  /* a rail is up: ticks may not be needed */
    bool wanted;                   /* ... whether it pays or not */
    bool armed;                    /* whoever drives may sleep */
};

static inline struct rails_conn *rails_conn_of(struct tpf_conn *conn)
{
    return TPB_CONTAINER(conn, struct rails_conn, common);
}

static inline struct rails_endpoint *rails_of(struct tpf_endpoint *endpoint)
{
    return TPB_CONTAINER(endpoint, struct rails_endpoint, common);
}

static inline struct rails_endpoint *rails_endpoint_of(struct rails_conn *conn)
{
    return rails_of(conn->common.endpoint);
}

/* ---- endpoint.c -------------------------------------------------------- */

/* To be looked after in progress(). */
void rails_is_due(struct rails_conn *conn);
/* rails_tick() is to be called ten times a second from now on. */
void rails_ticks(struct rails_endpoint *endpoint);
/* ... or in half a second, for what is in no hurry. */
void rails_ticks_slowly(struct rails_endpoint *endpoint);

/* ---- send.c ------------------------------------------------------------ */

void *rails_reserve(struct tpf_conn *common, size_t size);
void rails_commit(struct tpf_conn *common, size_t size);
bool rails_send_data(struct tpf_conn *common, const void *head,
                     size_t head_length, const void *data, size_t length,
                     void *token);
bool rails_flushed(struct tpf_conn *common);
/* Sends what waits, as far as there is room. */
void rails_push(struct rails_conn *conn);
/* Room for another frame, as far as can be said? */
bool rails_roomy(struct rails_conn *conn);
/* Frames that the peer has: gives back their memory, in order. */
void rails_release(struct rails_conn *conn);
/* What a head says of our frames; false if it cannot be. */
bool rails_acked(struct rails_rail *rail, const struct rails_head *head);
/* What went over this rail, which is no more, and is not known to be there,
 * waits to go again. */
void rails_again(struct rails_rail *rail);
void rails_acks(struct rails_conn *conn);
/* A frame of our own; false: no room. */
bool rails_control(struct rails_rail *rail, enum rails_kind kind,
                   const struct rails_join *join);

/* ---- receive.c --------------------------------------------------------- */

const void *rails_peek(struct tpf_conn *common, size_t *size);
void rails_pop(struct tpf_conn *common);
/* Looks at what has come in; true if the next frame is there. */
bool rails_scan(struct rails_conn *conn);
void rails_stash_free(struct rails_conn *conn);

/* ---- below.c ----------------------------------------------------------- */

extern const struct tpf_upcalls rails_upcalls;   /* for the subs; core is the
                                                    struct rails_sub */

/* ---- visit.c ----------------------------------------------------------- */

tp_status rails_connect(struct tpf_conn *common, const void *address,
                        size_t length, struct tpb_error *error);
/* Dials the way of that number; it has no rail now. */
tp_status rails_dial(struct rails_conn *conn, unsigned i,
                     struct tpb_error *error);
/* Asks to join, over a rail that is there: at once over the first, over the
 * others when that one has been welcomed. */
void rails_join(struct rails_conn *conn, struct rails_rail *rail);
/* WELCOME has come. */
void rails_welcomed(struct rails_rail *rail, const struct rails_join *join);
void rails_trying(struct tpf_conn *common, struct tpb_text *text);
const char *rails_carrier(struct tpf_conn *common);

/* ---- host.c ------------------------------------------------------------ */

/* A stranger may have said something. */
void rails_hear_stranger(struct rails_rail *rail);

/* ---- conn.c ------------------------------------------------------------ */

/* What a rail has room for in one frame of its group. */
static inline size_t rails_room(const struct rails_rail *rail)
{
    size_t most = rail->conn->max_frame;

    return (most < RAILS_MOST_FRAME ? most : RAILS_MOST_FRAME)
           - sizeof(struct rails_head);
}

/* Of a new, zeroed conn; false: no memory. */
bool rails_group_init(struct rails_conn *conn);
/* The first rail is welcome: it says how big a frame may be. */
void rails_founded(struct rails_conn *conn, struct rails_rail *rail,
                   size_t max_frame);
/* Puts a rail to where it belongs. */
void rails_attach(struct rails_conn *conn, struct rails_rail *rail,
                  unsigned place);
void rails_is_up(struct rails_conn *conn, struct rails_rail *rail);
/* Rails that may still get up. */
unsigned rails_coming(const struct rails_conn *conn);
void rails_disconnect(struct tpf_conn *common);
/* All that a conn has to do, and its upcalls. */
void rails_service(struct rails_conn *conn);
/* Gives a rail up; for tests too. */
void rails_lose(struct rails_rail *rail, tp_status status, const char *why);
/* GONE has come over this rail. */
void rails_is_gone(struct rails_rail *by, const struct rails_join *join);
/* Why it will be lost, if it is up: the first word counts. */
void rails_blame(const struct rails_rail *rail, const char *why);
/* Against the rules: the group ends. */
void rails_break(struct rails_conn *conn, const char *why);
void rails_rail_free(struct rails_rail *rail);

/* ---- clock.c ----------------------------------------------------------- */

static inline uint64_t rails_after(uint64_t ms)
{
    return tpb_now() + ms * 1000000u;
}
/* Until when the first rail waits to be welcomed, and a stranger may say who he
 * is: the peer may be busy with something else. */
uint64_t rails_patience(const struct rails_endpoint *endpoint);
void rails_tick(struct rails_endpoint *endpoint);
/* Is there nothing that takes time? */
bool rails_calm(const struct rails_endpoint *endpoint);

#endif
