/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the conformance suite puts in the place of the core: an endpoint with
 * its epoll set (a side), what is known of each conn (a link), streams of
 * frames whose bytes can be predicted, and a second process to talk to.
 *
 * Every function fails the running test if something is against the contract
 * of fabric/backend.h; none returns an error.
 */
#ifndef TPX_SIDE_H
#define TPX_SIDE_H

#include <sys/types.h>

#include "fabric/backend.h"
#include "tests/lib/tpx.h"

struct tpx_side;

/* Of those that are opened next: they say where bodies go, see link_land(). */
extern bool tpx_lands;

/* A sequence of frames that both ends can compute: frame k has a length and
 * bytes that follow from `seed` and k. */
struct tpx_stream {
    uint64_t seed;
    uint64_t next;                 /* the frame to come */
    size_t (*size)(const struct tpx_stream *stream, size_t max_frame);
    size_t fixed;                  /* for tpx_size_fixed() */
};
size_t tpx_size_fixed(const struct tpx_stream *stream, size_t max_frame);
size_t tpx_size_random(const struct tpx_stream *stream, size_t max_frame);
size_t tpx_size_small(const struct tpx_stream *stream, size_t max_frame);
size_t tpx_size_every(const struct tpx_stream *stream, size_t max_frame);
size_t tpx_size_top(const struct tpx_stream *stream, size_t max_frame);
uint64_t tpx_mix(uint64_t x);      /* a well-spread function of x */

/* The core's view of one conn. */
struct tpx_link {
    struct tpb_list node;          /* in side->links */
    struct tpx_side *side;
    struct tpf_conn *conn;         /* NULL after tpx_disconnect() */
    bool incoming, connected, failed;
    tp_status status;
    char text[512];
    unsigned writable, sent;
    void *token;                   /* of the last sent upcall */
    bool hold;                     /* do not peek */
    bool held;                     /* there is something to peek at */
    struct tpx_stream in, out;
    unsigned char *place;          /* for bodies; NULL: they go behind heads */
    size_t head;                   /* of the frame whose body goes there; 0: of
                                      none */
    unsigned waits;                /* looks until it is said where */
    struct {                       /* bodies, by where they went */
        unsigned behind, placed;
    } went;
};

struct tpx_side {
    const struct tpf_backend *backend;
    struct tpf_env env;
    _Atomic uint32_t watches;      /* env.watches */
    struct tpf_endpoint *endpoint;
    struct tpb_settings settings;
    struct tpt_card card;
    struct tpb_list links;
    unsigned incoming;
    uint8_t address[TPT_ADDRESS];
    size_t address_length;
    struct tpx_stream expect;      /* `in` of incoming links */
    uint64_t wakeups;              /* times that epoll returned something */
    struct {                       /* what its steps found */
        uint64_t steps, watches, progress, frames;
        int fd;                    /* the last one that was ready */
    } found;
};

/* Opens; the test fails if that fails. */
struct tpx_side *tpx_side_open(const struct tpf_backend *backend);
/* Opens; NULL with words instead. */
struct tpx_side *tpx_side_try(const struct tpf_backend *backend,
                              struct tpb_error *error);
/* Disconnects and frees every link, closes, frees.  NULL is allowed. */
void tpx_side_close(struct tpx_side *side);

/* Once around: watches, progress, frames.  True if anything happened. */
bool tpx_side_step(struct tpx_side *side);

/* Steps both until there is nothing to do for `side`, which never arms: no
 * descriptor of it stays readable without a cause. */
void tpx_side_calm(struct tpx_side *side, struct tpx_side *other);

/* The same, but sleeps as the core would, at most `ms`. */
void tpx_side_sleep(struct tpx_side *side, int ms);

/* Connects; status and error as connect().  The link is returned in any case;
 * after a refusal its conn is gone. */
struct tpx_link *tpx_connect_try(struct tpx_side *side, const void *address,
                                 size_t length, tp_status *status,
                                 struct tpb_error *error);
struct tpx_link *tpx_connect(struct tpx_side *side, const void *address,
                             size_t length);
void tpx_disconnect(struct tpx_link *link);

/* Is it not connected yet, and do the words for what it tries have these? */
bool tpx_trying(const struct tpx_link *link, const char *words);

/* The n-th incoming link (0 is the first), or NULL. */
struct tpx_link *tpx_incoming(struct tpx_side *side, unsigned n);

/* Sends the next frame of link->out if there is room. */
bool tpx_send(struct tpx_link *link);

/* The bytes of frame `k`; length as the stream says. */
const void *tpx_bytes(const struct tpx_stream *stream, uint64_t k);

/* Two sides in this process and one connection between them.  With a TPF_SELF
 * backend both names mean the same side and link. */
struct tpx_pair {
    struct tpx_side *a, *b;
    struct tpx_link *ab, *ba;
};
void tpx_pair_open(struct tpx_pair *pair, const struct tpf_backend *backend);
void tpx_pair_close(struct tpx_pair *pair);
bool tpx_pair_step(struct tpx_pair *pair);

/* A stream of frames from `from`, to be verified at `to`. */
void tpx_stream_set(struct tpx_link *from, struct tpx_link *to, uint64_t seed,
                    size_t (*size)(const struct tpx_stream *, size_t),
                    size_t fixed);

enum { TPX_DEADLINE_MS = 60000 };

/* Steps the sides in this process until `condition`, or fails the test with
 * that text. */
#define TPX_UNTIL_OR(step, condition, ...) \
    do { \
        uint64_t tpx_limit = tpb_now() + TPX_DEADLINE_MS * 1000000ull; \
        while (!(condition)) { \
            step; \
            ck_assert_msg(tpb_now() < tpx_limit, __VA_ARGS__); \
        } \
    } while (0)
#define TPX_UNTIL(step, condition) \
    TPX_UNTIL_OR(step, condition, "not in time: %s", #condition)

/*
 * Another process, forked before any endpoint is open, that runs `body` and
 * ends.  `control` is one end of a socket pair: messages, in order.
 */
struct tpx_child {
    pid_t pid;
    int control;
};
void tpx_child_start(struct tpx_child *child,
                     void (*body)(int control, void *arg), void *arg);
void tpx_child_end(struct tpx_child *child);    /* it must end with 0 */
/* By SIGKILL, and waits; `between`: not in a call of the backend, but before
 * its next step. */
void tpx_child_kill(struct tpx_child *child, bool between);

void tpx_tell(int control, const void *data, size_t length);
size_t tpx_hear(int control, void *data, size_t capacity);
/* Something to hear, or the other end is gone? */
bool tpx_told(int control);

int tpx_fd_count(void);            /* open descriptors of this process */
const char *tpx_fd_names(void);    /* what they are, until the next call */

/* There are no more descriptors than there were `before`, or soon will be. */
#define TPX_FDS_BACK(step, before) \
    TPX_UNTIL_OR(step, tpx_fd_count() <= (before), \
                 "%d descriptors, %d before:%s", tpx_fd_count(), (before), \
                 tpx_fd_names())

#endif
