/* SPDX-License-Identifier: BSD-3-Clause */
/* How long a caller that waits polls: by how long the last ones did. */
#include "config.h"

#include <sched.h>

#include "runtime/base/base.h"
#include "runtime/patience.h"

enum {
    PATIENCE_OFFER_NS = 50000,
    PATIENCE_TAKEN_NS = 100000,    /* by others, if a yield takes that long */
    PATIENCE_SPARE = 2             /* times what would have been enough */
};

void tpr_patience_init(struct tpr_patience *patience, uint64_t least,
                       uint64_t most)
{
    *patience = (struct tpr_patience){ .least = least, .most = most,
                                       .budget = least };
}

bool tpr_patience_lasts(struct tpr_patience *patience, uint64_t waited,
                        uint64_t now)
{
    if (waited >= patience->budget)
        return false;
    if (now - patience->offered < PATIENCE_OFFER_NS)
        return true;
    sched_yield();
    patience->offered = tpb_now();
    if (patience->offered - now < PATIENCE_TAKEN_NS)
        return true;
    patience->budget = patience->least;
    return false;
}

void tpr_patience_vain(struct tpr_patience *patience, uint64_t waited)
{
    if (waited >= patience->least)
        patience->budget = patience->least;
}

void tpr_patience_slept(struct tpr_patience *patience, uint64_t waited)
{
    uint64_t enough = PATIENCE_SPARE * waited;

    if (waited > patience->most)
        patience->budget = patience->least;
    else if (enough > patience->budget)
        patience->budget = enough < patience->most ? enough : patience->most;
}
