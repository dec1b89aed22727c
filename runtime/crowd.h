/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a rank waits where there are more ranks than cpus.
 *
 * Who answers may need this cpu, so a wait gives it away between two looks.
 * That is the cheapest hand-over there is: one system call and one switch,
 * where a sleep and a bell take three to eight times as long.  What is left to
 * decide is when not to: two that both have a cpu answer each other thousands
 * of times before one loses it, if neither gives it away, and strangers give
 * nothing back.
 */
#ifndef TPR_CROWD_H
#define TPR_CROWD_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/presence.h"
#include "runtime/beside.h"
#include "runtime/queue.h"

/* One per context, used by whoever drives it. */
struct tpr_crowd {
    int home;                      /* the cpu to be on; -1: any */
    int apart_home, beside_home;   /* const: home is one of them */
    uint64_t long_least;           /* const: bytes of a long message */
    uint32_t longs;                /* grows with each of these, and falls with
                                      each wait ... */
    bool counting;                 /* ... and is so high that these are what
                                      counts */
    uint64_t timed;                /* when look CROWD_TIMED was, or 0 */
    uint64_t look;                 /* ns that one takes; 0: not known yet */
    uint64_t empty;                /* ns of a yield to nobody ... */
    uint64_t round;                /* ... and to others; 0: not known yet */
    uint32_t together;             /* looks before the first yield, ... */
    uint32_t lingers;              /* ... after each, while who is waited for
                                      has something to do ... */
    uint32_t stays;                /* ... and in any case */
    uint64_t enough;               /* const: ns, see patience */
    uint32_t stay;                 /* of them, still to come */
    uint32_t strangers;            /* waits that do without a yield */
    bool meeting;                  /* so do all, as peers are being connected,
                                      until ... */
    uint64_t met;                  /* ... this */
    uint32_t apart;                /* waits that yield at once ... */
    uint32_t apart_next;           /* ... and how many will, the next time */
    uint32_t trust;                /* that answers come without a yield */
    uint64_t returned;             /* when the last yield ended, if it was timed
                                      and no sleep came after it; or 0 */
    uint32_t untimed;              /* yields to come that are not timed */
    uint64_t patience;             /* ns that long yields may take until others
                                      than ranks are held to be here */
    struct tpb_presence *mine;     /* where others see whether we run */
    uint32_t linger;               /* looks to come while who is waited for
                                      runs */
    bool gone;                     /* who left has not returned */
    bool looked_on;                /* since the last yield */
    int32_t worth;                 /* how often that was right, of late ... */
    uint32_t turns;                /* ... and turns where it was not */
    uint32_t first;                /* the look before this wait's first yield;
                                      1 also where somebody beside us had
                                      something to do */
    struct tpr_queue queue;
    uint64_t settled, away;        /* when it was looked whether this is home,
                                      and for how long that holds */
    struct tpr_beside beside;      /* where there are cpus for all */
};

/* The local_rank-th of local_size ranks that share `cpus`, of which this one
 * may use `own`. */
void tpr_crowd_init(struct tpr_crowd *crowd, int local_rank, int local_size,
                    int cpus, const cpu_set_t *own);

/* Are peers being connected?  That takes each rank milliseconds, so meanwhile
 * waits sleep; but it is no work of strangers. */
void tpr_crowd_meet(struct tpr_crowd *crowd, bool meeting);
/* A wait begins. */
void tpr_crowd_begin(struct tpr_crowd *crowd);
/* After look number `turn` (from 1) of a wait found nothing: look again before
 * the next yield?  Not if somebody `beside` us, on this cpu, has been given
 * something to do since the last one.  `theirs` is of the process that is
 * waited for, or NULL. */
bool tpr_crowd_stays(struct tpr_crowd *crowd, uint32_t turn, bool beside,
                     const struct tpb_presence *theirs);
/* Do answers need this cpu, so that a wait that begins now yields after its
 * first look? */
bool tpr_crowd_apart(const struct tpr_crowd *crowd);
/* Gives the cpu to another without a look at the clock.  False: not this time,
 * nothing is done. */
bool tpr_crowd_untimed(struct tpr_crowd *crowd);
/* Gives the cpu to another, or not.  `now` is the time before it; returns the
 * time after it. */
uint64_t tpr_crowd_yield(struct tpr_crowd *crowd, uint64_t now);
/* So many bytes of a message are copied that another rank of this host has
 * written.  Returns whether that is a long one. */
bool tpr_crowd_copied(struct tpr_crowd *crowd, uint64_t bytes);
enum { TPR_CROWD_LONG = 12 * 1024 };   /* no fewer are long */
/* Are long ones what counts? */
static inline bool tpr_crowd_longs(const struct tpr_crowd *crowd)
{
    return crowd->counting;
}
/* The wait is over, by look number `turn`. */
void tpr_crowd_end(struct tpr_crowd *crowd, uint32_t turn);
/* Around a sleep, with the token held: who waits for us need not look for an
 * answer. */
void tpr_crowd_leave(struct tpr_crowd *crowd);
void tpr_crowd_return(struct tpr_crowd *crowd);
/* How long a wait may go on without a sleep, which is `budget` at best. */
uint64_t tpr_crowd_budget(const struct tpr_crowd *crowd, uint64_t budget);

/* Has the kernel put the calling thread on cpu `home` if it is elsewhere, where
 * it may be moved from at once: what it may use does not change.  At `now`, and
 * not again within some milliseconds; more seldom where the kernel always moves
 * it away. */
void tpr_crowd_settle(struct tpr_crowd *crowd, uint64_t now);
/* The same, on any cpu but that.  (From Linux 6.2 on a thread for which that
 * was done does not get cpus that its cgroup gets later.) */
void tpr_crowd_part(int cpu);

#endif
