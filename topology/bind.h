/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where ranks may run.  A plan is made from the topology and from the cpus
 * that this process itself is allowed (cgroup, taskset); it is advice, which
 * the kernel may refuse.
 */
#ifndef TPT_BIND_H
#define TPT_BIND_H

#include <sched.h>

#include "topology/discover.h"

enum tpt_bind {
    TPT_BIND_DEFAULT,              /* core if there are enough, else none */
    TPT_BIND_NONE, TPT_BIND_CORE, TPT_BIND_PACKAGE
};

struct tpt_bind_place {
    cpu_set_t *cpus;               /* NULL: not bound */
    char *list;                    /* "0-1,4": the cpus it may use */
    char *locality;                /* as PMIx writes it: "hwloc:SK0:CR1:HT1" */
};

struct tpt_bind_plan {
    enum tpt_bind bind;            /* what was done; never DEFAULT */
    size_t cpus_size;              /* bytes of each cpus */
    unsigned allowed_cores;
    int count;
    struct tpt_bind_place *places; /* by rank */
};

/*
 * Neighbouring ranks get neighbouring cores or packages; with more ranks than
 * cores an explicit TPT_BIND_CORE starts over.  A topology of another machine
 * (TP_TOPOLOGY) binds nothing.  On TP_OK the caller calls
 * tpt_bind_plan_fini(); it accepts a zeroed plan.
 */
tp_status tpt_bind_plan(struct tpt_topology *topology, enum tpt_bind bind,
                        int ranks, struct tpt_bind_plan *plan,
                        struct tpb_error *error);
void tpt_bind_plan_fini(struct tpt_bind_plan *plan);

const char *tpt_bind_name(enum tpt_bind bind);         /* "core" */

/*
 * A topology of one cpu, made in no time, for a library that insists on having
 * one before it starts.  NULL if hwloc cannot.  Never freed.
 */
void *tpt_topology_stub(void);

#endif
