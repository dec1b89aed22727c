/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where ranks may run.  A plan is made from the topology, from the cpus that
 * this process itself is allowed (cgroup, taskset), and from what other jobs
 * have taken.  For a recorded topology (TP_TOPOLOGY) it is a pure function of
 * that and of the wishes, which is how it is tested.  On the machine it is
 * advice, which the kernel may refuse.
 */
#ifndef TPT_BIND_H
#define TPT_BIND_H

#include <sched.h>

#include "topology/discover.h"
#include "topology/gpus.h"

/* In the order of the words of tprun --bind-to and --map-by. */
enum tpt_bind {
    TPT_BIND_DEFAULT,              /* core if there are enough, else none */
    TPT_BIND_CORE, TPT_BIND_L3, TPT_BIND_NUMA, TPT_BIND_PACKAGE, TPT_BIND_NONE
};
enum tpt_map {
    TPT_MAP_DEFAULT,               /* neighbours near to each other */
    TPT_MAP_CORE, TPT_MAP_L3, TPT_MAP_NUMA, TPT_MAP_PACKAGE
};

struct tpt_bind_wish {
    enum tpt_bind bind;
    enum tpt_map map;
    int ranks;
    const int *gpus;               /* how many, by rank; NULL: none */
    const struct tpt_gpus *there;  /* which there are; NULL: none */
    const cpu_set_t *taken;        /* cpus to leave to others if that goes */
    size_t taken_size;             /* bytes */
};

struct tpt_bind_place {
    cpu_set_t *cpus;               /* NULL: not bound */
    char *list;                    /* "0-1,4": the cpus it may use */
    char *locality;                /* as PMIx writes it: "hwloc:SK0:CR1:HT1" */
    char *where;                   /* for people: "package 0, core 3" */
    char *gpus;                    /* "0,1": CUDA_VISIBLE_DEVICES; or NULL */
    int core;                      /* lowest cpu of its own core; -1: none */
};

struct tpt_bind_plan {
    enum tpt_bind bind;            /* what was done; never DEFAULT */
    bool here;                     /* for this machine, not a recorded one */
    bool yielded;                  /* none, because others have the cores */
    size_t cpus_size;              /* bytes of each cpus */
    unsigned allowed_cores;
    int count;
    struct tpt_bind_place *places; /* by rank */
};

/*
 * Consecutive ranks get consecutive cores (TPT_MAP_CORE), or cores in
 * consecutive caches, NUMA nodes or packages, and are bound to their core or
 * to what it is part of.  Of NUMA nodes with the same cpus the first counts.
 * Bound to more than a core, without a wish how to map, they are dealt out in
 * blocks, so that neighbours stay together and all parts get as many.  No core
 * gets a second rank while another has none, so parts with fewer cores get
 * fewer ranks; cores outside all parts come last.  Ranks with GPUs get cores
 * near to them, before others choose.
 * INVALID with words: more GPUs wanted than there are.  NO_MEMORY.  On TP_OK
 * the caller calls tpt_bind_plan_fini(); it accepts a zeroed plan.
 */
tp_status tpt_bind_plan(struct tpt_topology *topology,
                        const struct tpt_bind_wish *wish,
                        struct tpt_bind_plan *plan, struct tpb_error *error);
void tpt_bind_plan_fini(struct tpt_bind_plan *plan);

const char *tpt_bind_name(enum tpt_bind bind);         /* "core" */

/*
 * A topology of one cpu, made in no time, for a library that insists on having
 * one before it starts.  NULL if hwloc cannot.  Never freed.
 */
void *tpt_topology_stub(void);

#endif
