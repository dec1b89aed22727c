/* SPDX-License-Identifier: BSD-3-Clause */
/* See queue.h. */
#include "config.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/queue.h"

enum {
    QUEUE_LATE_NS = 1200,          /* what one switch takes is not late */
    QUEUE_LATE_MOST = 64           /* messages for a move, at most */
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
    if (!queue->fixed)
        queue->fixed = !queue_put(&attributes, slice);
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
    if (queue->fixed)
        return;
    if (waited <= QUEUE_LATE_NS) {
        if (waited > 0 && queue->enough > 0)
            queue->enough--;
        return;
    }
    /* Longer than it was away: its clock is not ours. */
    if (waited > took || ++queue->late < queue->enough)
        return;
    queue->late = 0;
    if (queue->enough < QUEUE_LATE_MOST)
        queue->enough++;
    queue->forward = ((double)waited - QUEUE_LATE_NS / 2.0) / (double)took;
    if (queue->forward > QUEUE_FORWARD_MOST)
        queue->forward = QUEUE_FORWARD_MOST;
}
