/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The floors: what two processes that share memory can do at best, with no
 * message layer at all.  What the files of the program share.
 */
#ifndef FLOORS_H
#define FLOORS_H

#include <stdalign.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "bench/bench.h"

enum {
    FLOOR_LINE_DATA = 48,          /* bytes that travel inside a line */
    FLOOR_LINES = 256,
    FLOOR_RING = 256 * 1024,
    FLOOR_PIECE = 8192,            /* of a ring's copy, so that the two sides
                                      copy at the same time */
    FLOOR_APART = 128              /* the machine fetches lines in pairs */
};

/* One cache line: number and contents travel together. */
struct floor_line {
    alignas(64) _Atomic uint64_t number;   /* pairs with itself */
    uint64_t length;
    unsigned char data[FLOOR_LINE_DATA];
};
_Static_assert(sizeof(struct floor_line) == 64, "one cache line");

/* One direction, all of it in shared memory. */
struct floor_way {
    struct floor_line lines[FLOOR_LINES];
    alignas(FLOOR_APART) _Atomic uint64_t taken;   /* lines, told seldom */
    alignas(FLOOR_APART) _Atomic uint64_t tail;    /* bytes put in the ring */
    alignas(FLOOR_APART) _Atomic uint64_t head;    /* ... and taken out */
    alignas(FLOOR_APART) _Atomic uint64_t copied;  /* messages of a window */
    alignas(FLOOR_APART) unsigned char ring[FLOOR_RING];
};

/* One process's end. */
struct floors {
    struct bench_driver driver;
    const struct floor_kind *kind;
    struct floor_way *out, *in;    /* shared */
    uint64_t line_tail, line_head, line_taken;
    uint64_t ring_tail, ring_head, ring_seen;
    bool received;                 /* ... since the last message was sent */
    bool demotes;                  /* the processor can give up a line ... */
    bool owns;                     /* ... and ask for one as its own */
    uint64_t posted;               /* descriptors ever */
    unsigned char *arena;          /* shared: memory of messages, per rank */
    size_t arena_used;
    pid_t peer;
    int socket;
    int wake_out, wake_in;         /* eventfd */
};

struct floor_kind {
    const char *name;              /* who: "floor/line" */
    const char *mode;
    unsigned tests;
    size_t most;                   /* bytes of a message, 0: any */
    bool (*send)(struct bench_driver *, int, const void *, size_t);
    bool (*receive)(struct bench_driver *, int, void *, size_t);
    bool (*stream)(struct bench_driver *, struct bench_job *);
    bool arena;                    /* messages are in shared memory */
};

static inline struct floors *floors_of(struct bench_driver *driver)
{
    return driver->state;
}

/* floors_ring.c */
void floor_line_put(struct floors *floors, const void *data, size_t length);
/* The next line; valid until floor_line_done(). */
const struct floor_line *floor_line_next(struct floors *floors);
void floor_line_done(struct floors *floors);
extern const struct floor_kind floor_line, floor_ring;

/* floors_copy.c: one side reads where the other wrote. */
extern const struct floor_kind floor_mapped, floor_cma;

/* floors_system.c: by way of the kernel. */
extern const struct floor_kind floor_socket, floor_eventfd;

#endif
