/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank's place among those that share its cpu.
 *
 * Ranks that wait with sched_yield() get the cpu in an order that never
 * changes: each yield puts its caller one slice of the scheduler's time behind
 * where it was.  So whom messages reach just after his turn waits for a whole
 * round, each time.  Who finds that what he waits for had come long before his
 * turn makes one slice shorter by as much, once, and so moves forward among the
 * others; from then on his turn comes earlier.  Ranks in a ring end in the
 * order of the ring by that, within some hundred messages.
 */
#ifndef TPR_QUEUE_H
#define TPR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct tpr_queue {
    bool fixed;                    /* the kernel has no slices to set */
    double forward;                /* of a slice, at the next yield; or 0 */
    uint32_t late;                 /* messages that came too early, since the
                                      last move ... */
    uint32_t enough;               /* ... and how many make the next one */
};

/* Yields; with a move, if one is due. */
void tpr_queue_yield(struct tpr_queue *queue);
/* A turn begins, `took` ns after the last one ended.  What it is for had been
 * there for `waited` ns, 0: it had not. */
void tpr_queue_turn(struct tpr_queue *queue, uint64_t took, uint64_t waited);

#endif
