/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which rank runs where on this machine: finds out, says so, and compares it
 * afterwards with what the kernel says.
 */
#ifndef TPL_PLACEMENT_H
#define TPL_PLACEMENT_H

#include <pthread.h>
#include <sys/types.h>

#include "launcher/claim.h"
#include "launcher/options.h"
#include "runtime/base/settings.h"
#include "topology/bind.h"

struct tpl_placement {
    struct tpt_topology *topology;
    struct tpt_bind_plan plan;
    struct tpl_claims claims;
    const struct tpb_settings *settings;   /* while it is being loaded */
    pthread_t loader;
    bool loading;
    tp_status loaded;
    struct tpb_error why;          /* not OK */
};

/*
 * Begins to look at this machine on a thread of its own, which
 * tpl_placement_make() waits for; nobody may change the environment until
 * then.  Does nothing if the topology comes from elsewhere, or without threads.
 * `settings` stay valid that long.
 */
void tpl_placement_begin(const struct tpb_settings *settings,
                         struct tpl_placement *placement);

/*
 * Loads the topology and plans the ranks of `options`; claims their cores
 * unless nothing will start.  Errors are those of tpt_topology_load() and
 * tpt_bind_plan().  In any case the caller calls tpl_placement_fini(); zeroed
 * is empty.
 */
tp_status tpl_placement_make(const struct tpl_options *options,
                             const struct tpb_settings *settings,
                             struct tpl_placement *placement,
                             struct tpb_error *error);
void tpl_placement_fini(struct tpl_placement *placement);

/* How many cpus of this machine all ranks together have, also if the topology
 * is another's; 0: nobody knows. */
unsigned tpl_placement_cpus(const struct tpl_placement *placement);

/* The map, a line per rank; the caller calls tpb_text_fini(). */
void tpl_placement_show(const struct tpl_placement *placement,
                        const struct tpl_options *options,
                        const char *host, struct tpb_text *text);

/* Of a rank that runs: what was asked, and what the kernel says. */
void tpl_placement_report(const struct tpl_placement *placement, int rank,
                          pid_t pid, struct tpb_text *text);

#endif
