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
    uint32_t ranks;                /* const: on each cpu, more or less */
    bool fixed;                    /* there is no order to change, or no slice
                                      to change it by */
    uint64_t turn;                 /* ns that each rank's takes */
    double forward;                /* of a slice, at the next yield; or 0 */
    bool vain;                     /* a turn since the last one that was not */
    uint32_t late;                 /* turns one after the other */
    uint32_t seldom;               /* of so many one makes it move, then */
    uint32_t chance;               /* the state of a generator of such */
};

void tpr_queue_init(struct tpr_queue *queue, int ranks, uint32_t seed);

/* Yields; with a move, if one is due. */
void tpr_queue_yield(struct tpr_queue *queue);
/* A turn begins, `took` ns after the last one ended.  What it is for had been
 * there for `waited` ns, 0: it had not. */
void tpr_queue_turn(struct tpr_queue *queue, uint64_t took, uint64_t waited);

#endif
