/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Starting the ranks of a job, one after the other: what each is given to run,
 * to read, to write to, and in its environment.
 */
#ifndef TPL_START_H
#define TPL_START_H

#include <sys/resource.h>

#include "launcher/iof.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/placement.h"

struct tpl_start {
    const struct tpl_options *options;
    const struct tpl_placement *placement;
    char **environment;            /* as tpl_pmix_environment() */
    const struct tpl_limits *limits;       /* as the user has them */
    struct tpl_loop *loop;
    struct tpl_iof *iof;
    struct tpl_job *job;
};

/*
 * Looks up the programs of all ranks and what wraps them, so that a typing
 * error costs one line and no job.  0, or the exit status with words.
 */
int tpl_start_find(struct tpl_options *options, struct tpb_error *error);

/*
 * Starts all ranks, as long as the job runs; the loop turns meanwhile.  A rank
 * that cannot be started ends the job; an error is what keeps all of them from
 * it.
 */
tp_status tpl_start_ranks(const struct tpl_start *start,
                          struct tpb_error *error);

#endif
