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
 *
 * Where a control group limits the time of the cpus, what is polled away in a
 * period lacks at its end, and all in the group stand still for tens of
 * milliseconds then.  While that happens a lot, waits poll for no longer than a
 * sleep costs.  Now and then it is tried whether it still would.
 */
#ifndef TPR_PATIENCE_H
#define TPR_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

struct tpr_patience {
    uint64_t least, most;          /* const: ns */
    uint64_t budget;               /* ns, between them */
    uint64_t offered;              /* when the cpu was, last */
    int statistics;                /* of the group, a descriptor; -1: none */
    uint64_t cpus;                 /* const: which it may have */
    uint64_t looked;               /* at them, when ... */
    uint64_t stood;                /* ... and how long it had stood by then */
    uint64_t frugal;               /* until then waits poll briefly ... */
    uint64_t spell;                /* ... since so many ns before; 0: never */
};

/* `most` is no less than `least`. */
void tpr_patience_init(struct tpr_patience *patience, uint64_t least,
                       uint64_t most);
/* The descriptor is that of the group's cpu.stat, and the callee's from then
 * on; -1: there is none.  It counts the time that the group stands on each cpu,
 * and has that of so many `cpus` at least. */
void tpr_patience_watch(struct tpr_patience *patience, int statistics,
                        uint64_t cpus);
/* Closes it. */
void tpr_patience_fini(struct tpr_patience *patience);
/* What the text of that file says of how long the group has stood still, in
 * ns. */
uint64_t tpr_patience_parse(const char *statistics);
/* By `now` it has stood for so long, on all cpus together. */
void tpr_patience_stood(struct tpr_patience *patience, uint64_t now,
                        uint64_t stood);
/* A caller has polled for `waited` ns, to `now`: does the group bear more? */
bool tpr_patience_affords(struct tpr_patience *patience, uint64_t waited,
                          uint64_t now);
/* A caller has polled for `waited` ns, to `now`, no less than `least`: does it
 * go on?  May yield. */
bool tpr_patience_lasts(struct tpr_patience *patience, uint64_t waited,
                        uint64_t now);
/* A wait that polled for so many ns has had no more time. */
void tpr_patience_vain(struct tpr_patience *patience, uint64_t waited);
/* A wait that slept in the end was over after so many ns. */
void tpr_patience_slept(struct tpr_patience *patience, uint64_t waited);

#endif
