/* SPDX-License-Identifier: BSD-3-Clause */
/* See beside.h. */
#include "config.h"

#include <sched.h>

#include "runtime/beside.h"
#include "runtime/crowd.h"

enum {
    BESIDE_NEAR_NS = 2000,         /* an answer from another cpu comes sooner */
    BESIDE_FEW = 2,                /* yields of a wait that found its answer */
    BESIDE_LONG_NS = 100000,       /* a yield to others than ranks */
    BESIDE_VAIN = 64,              /* short yields in vain until there are
                                      none */
    BESIDE_AWAY_NS = 1000000, BESIDE_AWAY_MOST_NS = 1000000000,
    BESIDE_STAY_NS = 5000000, BESIDE_STAY_MOST_NS = 1000000000,
    BESIDE_SELDOM = 8              /* times as long apart: that was right */
};

void tpr_beside_init(struct tpr_beside *beside)
{
    *beside = (struct tpr_beside){ .near = BESIDE_NEAR_NS,
                                   .away = BESIDE_AWAY_NS,
                                   .stay = BESIDE_STAY_NS };
}

/*
 * The last yield of this wait took so many ns, and nothing had come.  If it was
 * short who is waited for has gone elsewhere.  If not others have the cpu, and
 * who yields to those gets nothing done: then it is better to sleep, and to be
 * woken, for a while.
 */
static void beside_vain(struct tpr_beside *beside, uint64_t gave, uint64_t now)
{
    beside->near = BESIDE_NEAR_NS;
    beside->strangers = gave >= BESIDE_LONG_NS;
    if (!beside->strangers && ++beside->vain < BESIDE_VAIN)
        return;
    beside->vain = beside->given = 0;
    beside->apart = now + beside->away;
    if (beside->away < BESIDE_AWAY_MOST_NS)
        beside->away *= 2;
}

/* Has the last wait found its answer by that? */
static void beside_judge(struct tpr_beside *beside)
{
    if (beside->given > 0 && beside->given <= BESIDE_FEW) {
        beside->vain = 0;
        beside->near = 0;
        beside->away = BESIDE_AWAY_NS;
    }
    beside->given = 0;
}

static void beside_say(struct tpb_presence *mine, uint32_t place)
{
    if (atomic_load_explicit(&mine->place, memory_order_relaxed) != place)
        atomic_store_explicit(&mine->place, place, memory_order_relaxed);
}

/* One of the two is enough: the other one does not see us here from now on. */
static void beside_part(struct tpr_beside *beside, struct tpb_presence *mine,
                        uint64_t now)
{
    beside_say(mine, 0);
    tpr_crowd_part((int)tpb_presence_cpu() - 1);
    beside_say(mine, tpb_presence_here());
    beside->since = 0;
    if (now - beside->left > BESIDE_SELDOM * beside->stay)
        beside->stay = BESIDE_STAY_NS;
    else if (beside->stay < BESIDE_STAY_MOST_NS)
        beside->stay *= 2;
    beside->left = now;
}

bool tpr_beside_sleeps(struct tpr_beside *beside, struct tpb_presence *mine,
                       const struct tpb_presence *theirs, uint64_t waited,
                       uint64_t now, uint64_t *gave)
{
    uint32_t place;

    if (waited < beside->near || mine == NULL)
        return false;
    place = tpb_presence_here();
    beside_say(mine, place);
    if (theirs == NULL || place == TPB_PRESENT /* nothing tells */
        || atomic_load_explicit(&theirs->place, memory_order_relaxed)
           != place) {
        beside->since = *gave = 0;
        return false;
    }
    if (*gave > 0)
        beside_vain(beside, *gave, now);
    else
        beside_judge(beside);
    *gave = 0;
    if (beside->since == 0 || now - beside->seen > beside->stay)
        beside->since = now;
    beside->seen = now;
    if (now < beside->apart)
        return beside->strangers;
    if (now - beside->since >= beside->stay)
        beside_part(beside, mine, now);
    else
        sched_yield();
    beside->given++;
    *gave = tpb_now() - now + 1;
    return false;
}
