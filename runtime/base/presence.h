/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where ranks share cpus: whether a rank has something to do just now, for
 * those that wait for it.  In memory that all its peers have mapped; who writes
 * nonsense there makes others wait in a worse way, and no more.
 */
#ifndef TPB_PRESENCE_H
#define TPB_PRESENCE_H

#include <sched.h>
#include <stdatomic.h>

#include "runtime/base/base.h"

enum { TPB_PRESENT = 1 };

/* 0 where nothing is known yet. */
struct tpb_presence {
    /* The owner's: twice 1 + the cpu that it last looked from, and whether it
     * is there, or has given that cpu away. */
    _Alignas(TPB_CACHE_LINE) _Atomic uint32_t place;
    /* Of those who send to it while it is away, the first one's 1 + cpu, and
     * tpb_now(); the owner clears that before it goes. */
    _Atomic uint32_t teller;
    _Atomic uint64_t told;
};

static inline uint32_t tpb_presence_cpu(void)
{
    return (uint32_t)sched_getcpu() + 1;
}

/* The place of who is there. */
static inline uint32_t tpb_presence_here(void)
{
    return 2 * tpb_presence_cpu() | TPB_PRESENT;
}

/* After a frame for its owner: true if he waits for this cpu. */
static inline bool tpb_presence_tell(struct tpb_presence *theirs)
{
    /* Pairs with tpr_crowd_leave(): what was told before that is cleared. */
    uint32_t place = atomic_load_explicit(&theirs->place,
                                          memory_order_acquire), cpu;

    if (place == 0 || (place & TPB_PRESENT) != 0)
        return false;
    cpu = tpb_presence_cpu();
    if (atomic_load_explicit(&theirs->told, memory_order_relaxed) == 0) {
        atomic_store_explicit(&theirs->teller, cpu, memory_order_relaxed);
        /* Pairs with crowd_turn(). */
        atomic_store_explicit(&theirs->told, tpb_now(), memory_order_release);
    }
    return place / 2 == cpu;
}

/* On another cpu than ours, and at work there, or soon? */
static inline bool tpb_presence_busy(const struct tpb_presence *theirs)
{
    uint32_t place = atomic_load_explicit(&theirs->place,
                                          memory_order_relaxed);

    return place != 0 && place / 2 != tpb_presence_cpu()
           && ((place & TPB_PRESENT) != 0
               || atomic_load_explicit(&theirs->told, memory_order_relaxed)
                  != 0);
}

#endif
