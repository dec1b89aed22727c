/* SPDX-License-Identifier: BSD-3-Clause */
/* See queue.h. */
#include "config.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/queue.h"

enum {
    QUEUE_LEAST = 3,               /* ranks that have more than one order */
    QUEUE_LATE = 12,               /* eighths of a turn: what comes while the
                                      one before has its turn is not late */
    QUEUE_GROWTH = 64,             /* how soon a longer turn is believed */
    QUEUE_ROW = 3,                 /* late turns that say something */
    QUEUE_SELDOM = 2,              /* late turns for a move, at best ... */
    QUEUE_SELDOM_MOST = 64         /* ... and where moves do not help */
};
#define QUEUE_FORWARD_MOST 0.9     /* of a slice, in one move */

/* struct sched_attr of Linux, whose header and <sched.h> exclude each other in
 * many releases. */
struct queue_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice, deadline, period;  /* ns; the first is "runtime" there */
    uint32_t least, most;
};

enum { QUEUE_RESET_ON_FORK = 1 };  /* the one flag that is kept */

static bool queue_put(struct queue_attributes *attributes, uint64_t slice)
{
    attributes->slice = slice;
    return syscall(SYS_sched_setattr, 0, attributes, 0) == 0;
}

/* Of the calling thread; false: it has none. */
static bool queue_get(struct queue_attributes *attributes)
{
    if (syscall(SYS_sched_getattr, 0, attributes, sizeof(*attributes), 0) != 0)
        return false;
    attributes->size = sizeof(*attributes);
    attributes->flags &= QUEUE_RESET_ON_FORK;
    return attributes->slice > 0
           && (attributes->policy == SCHED_OTHER
               || attributes->policy == SCHED_BATCH
               || attributes->policy == SCHED_IDLE);
}

/* The slice in force when the turn begins is the distance of the next yield,
 * so it is put back right after this one. */
static void queue_move(struct tpr_queue *queue)
{
    struct queue_attributes attributes = { .size = sizeof(attributes) };
    uint64_t slice;

    if (!queue_get(&attributes)) {
        queue->fixed = true;
        sched_yield();
        return;
    }
    slice = attributes.slice;
    queue->fixed = !queue_put(&attributes,
                              (uint64_t)((double)slice
                                         * (1 - queue->forward)));
    sched_yield();
    /* They may be others now: reniced, say. */
    if (!queue->fixed)
        queue->fixed = !queue_get(&attributes)
                       || !queue_put(&attributes, slice);
}

void tpr_queue_init(struct tpr_queue *queue, int ranks, uint32_t seed)
{
    *queue = (struct tpr_queue){ .ranks = (uint32_t)ranks,
                                 .fixed = ranks < QUEUE_LEAST,
                                 .turn = UINT32_MAX,
                                 .seldom = QUEUE_SELDOM,
                                 .chance = seed * 0x9e3779b9u | 1 };
}

/* By chance once in queue->seldom times: of several that are late not all
 * should move at once. */
static bool queue_moves(struct tpr_queue *queue)
{
    queue->chance ^= queue->chance << 13;
    queue->chance ^= queue->chance >> 17;
    queue->chance ^= queue->chance << 5;
    return queue->chance % queue->seldom == 0;
}

void tpr_queue_yield(struct tpr_queue *queue)
{
    if (TPB_LIKELY(queue->forward == 0)) {
        sched_yield();
        return;
    }
    queue_move(queue);
    queue->forward = 0;
}

/*
 * Where moving does not help, since messages come at any time, or many ranks
 * have something to do at once, moves become seldom.
 */
void tpr_queue_turn(struct tpr_queue *queue, uint64_t took, uint64_t waited)
{
    uint64_t late;
    bool vain;

    if (queue->fixed)
        return;
    /* The shortest: those that have nothing to do. */
    queue->turn += queue->turn / QUEUE_GROWTH + 1;
    if (queue->turn * queue->ranks > took)
        queue->turn = took / queue->ranks;
    late = queue->turn * QUEUE_LATE / 8;
    /* Longer than it was away: its clock is not ours. */
    if (waited > took)
        return;
    if (waited == 0) {
        queue->vain = true;
        return;
    }
    vain = queue->vain;
    queue->vain = false;
    if (waited <= late || !vain) {
        queue->late = 0;
        if (queue->seldom > QUEUE_SELDOM)
            queue->seldom--;
        return;
    }
    if (++queue->late < QUEUE_ROW || !queue_moves(queue))
        return;
    queue->late = 0;
    if (queue->seldom < QUEUE_SELDOM_MOST)
        queue->seldom++;
    queue->forward = (double)(waited - late / 2) / (double)took;
    if (queue->forward > QUEUE_FORWARD_MOST)
        queue->forward = QUEUE_FORWARD_MOST;
}
