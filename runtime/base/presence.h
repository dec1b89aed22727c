/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where ranks share cpus: whether a rank runs just now, for those that wait for
 * it.  In memory that all its peers have mapped; who writes nonsense there
 * makes others wait in a worse way, and no more.
 */
#ifndef TPB_PRESENCE_H
#define TPB_PRESENCE_H

#include <stdatomic.h>

#include "runtime/base/base.h"

struct tpb_presence {
    /* The owner's: 1 + the cpu that it looks from, or 0: it has given its cpu
     * away, or has not waited yet. */
    _Alignas(TPB_CACHE_LINE) _Atomic uint32_t cpu;
    /* Of those who send to it while it is away, the first one's tpb_now(); the
     * owner clears it before it goes. */
    _Atomic uint64_t told;
};

/* After a frame for its owner. */
static inline void tpb_presence_tell(struct tpb_presence *theirs)
{
    if (atomic_load_explicit(&theirs->cpu, memory_order_relaxed) == 0
        && atomic_load_explicit(&theirs->told, memory_order_relaxed) == 0)
        atomic_store_explicit(&theirs->told, tpb_now(), memory_order_relaxed);
}

#endif
