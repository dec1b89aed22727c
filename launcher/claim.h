/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Cores among jobs.  A job that binds ranks to cores claims each by holding an
 * abstract Unix socket of its name, so that the next job that starts on this
 * machine looks for others.  The kernel gives a name to one holder at a time
 * and forgets it with its process: there is nothing to clean up.  It is a
 * courtesy among tpruns of one network namespace, not protection.
 */
#ifndef TPL_CLAIM_H
#define TPL_CLAIM_H

#include <sched.h>

#include "topology/bind.h"

/* A set of cpus that grows; zeroed is empty. */
struct tpl_claims {
    int *fds;
    int count;
    cpu_set_t *taken;              /* cores of others, by their lowest cpu */
    size_t taken_size;             /* bytes */
};

/*
 * Claims every core of the plan.  False if some are others': these are in
 * `taken` now, nothing is claimed, and another plan may be made.  What cannot
 * be claimed for other reasons is left unclaimed.
 */
bool tpl_claims_take(struct tpl_claims *claims,
                     const struct tpt_bind_plan *plan);

void tpl_claims_fini(struct tpl_claims *claims);

#endif
