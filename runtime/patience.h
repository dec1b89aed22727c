/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * For how long a caller that waits polls before it sleeps.
 *
 * Who sleeps is told by a system call of the sender, and wakes up some 50 us
 * later in a virtual machine.  Ranks that compute between their messages, and
 * not all for the same time, would pay for that in each round.  So a wait whose
 * sleep was short makes the next ones poll for longer, up to a limit; one that
 * was long makes them poll briefly again.  Beyond what is usual the cpu is
 * offered to others now and then, and who finds that there are some sleeps.
 */
#ifndef TPR_PATIENCE_H
#define TPR_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

struct tpr_patience {
    uint64_t least, most;          /* const: ns */
    uint64_t budget;               /* ns, between them */
    uint64_t offered;              /* when the cpu was, last */
};

/* `most` is no less than `least`. */
void tpr_patience_init(struct tpr_patience *patience, uint64_t least,
                       uint64_t most);
/* A caller has polled for `waited` ns, to `now`, no less than `least`: does it
 * go on?  May yield. */
bool tpr_patience_lasts(struct tpr_patience *patience, uint64_t waited,
                        uint64_t now);
/* A wait that polled for so many ns has had no more time. */
void tpr_patience_vain(struct tpr_patience *patience, uint64_t waited);
/* A wait that slept in the end was over after so many ns. */
void tpr_patience_slept(struct tpr_patience *patience, uint64_t waited);

#endif
