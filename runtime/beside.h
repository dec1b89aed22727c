/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks on one cpu though there are cpus for all.
 *
 * Ranks that are not bound come to that where other programs have the other
 * cpus.  Each then polls while the other waits for this very cpu, until the
 * first one sleeps; and since both sleep half of the time, the kernel sees no
 * reason to move one.  So a wait that finds nothing says where it is, and who
 * sees that he is on the same cpu as the one that he waits for gives it to him,
 * and goes to another one after a while.
 */
#ifndef TPR_BESIDE_H
#define TPR_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/presence.h"

/* One per context, used by whoever drives it; tpr_beside_init(). */
struct tpr_beside {
    uint64_t near;                 /* ns without an answer until a yield */
    uint32_t given;                /* yields of this wait */
    uint32_t vain;                 /* short ones lately that found nothing */
    bool strangers;                /* a long one did so, ... */
    uint64_t apart, away;          /* ... so until then there are none, and for
                                      how long the next time; ns */
    uint64_t since, seen;          /* we are there (0: we are not), and when
                                      that was seen last */
    uint64_t left, stay;           /* when we went away last, and for how long
                                      to stay before that; ns */
};

void tpr_beside_init(struct tpr_beside *beside);
/*
 * A wait has found nothing for `waited` ns, to `now`.  `mine` is where others
 * see where we are, `theirs` of who is waited for; either may be NULL.  *gave,
 * 0 as a wait begins, is of this function: ns that the cpu was given away for.
 * True: it is better to sleep.
 */
bool tpr_beside_sleeps(struct tpr_beside *beside, struct tpb_presence *mine,
                       const struct tpb_presence *theirs, uint64_t waited,
                       uint64_t now, uint64_t *gave);

#endif
