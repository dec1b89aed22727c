/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The GPUs of a machine as far as placement needs them: which there are, in
 * CUDA's order by PCI bus, and which cpus are near.  Nothing wakes them.
 */
#ifndef TPT_GPUS_H
#define TPT_GPUS_H

#include "topology/discover.h"

enum { TPT_GPUS = 64 };

struct tpt_gpu {
    char bus[16];                  /* "0000:18:00.0" */
    char uuid[48];                 /* "GPU-..."; "" if not known */
    char visible[48];              /* its word for CUDA_VISIBLE_DEVICES */
    char near[4096];               /* cpus, "0-15,32-47"; "" if not known.  Of
                                      two nodes that have every other cpu each
                                      the list is long */
    int minor;                     /* of /dev/nvidiaN; -1 if not known */
    bool hidden;                   /* this process may not open that: CUDA does
                                      not count it */
};

struct tpt_gpus {
    int count;
    struct tpt_gpu list[TPT_GPUS];
};

/*
 * All that the machine has, in PCI order: those of a recorded one from its
 * topology, those of this one from the driver's files below `root` ("" outside
 * tests).  The driver shows all of them to everybody; a container or a cgroup
 * (Slurm's ConstrainDevices) leaves a process the device files of some.
 */
void tpt_gpus_all(struct tpt_topology *topology, const char *root,
                  struct tpt_gpus *gpus);

/* Leaves those that are not hidden, as CUDA numbers them. */
void tpt_gpus_open(struct tpt_gpus *gpus);

/* Takes the next word off CUDA_VISIBLE_DEVICES, *list being a copy of it or of
 * what is left; NULL at its end, which to CUDA also is where nothing stands
 * between two commas. */
char *tpt_gpus_word(char **list);

/* Which of them such a word means; -1: none. */
int tpt_gpus_named(const struct tpt_gpus *gpus, const char *word);

/*
 * Those that are not hidden.  `visible` is what
 * CUDA_VISIBLE_DEVICES says, NULL if nothing: only those remain, in PCI order.
 * INVALID with words if it names what cannot be matched.
 */
tp_status tpt_gpus_find(struct tpt_topology *topology, const char *root,
                        const char *visible, struct tpt_gpus *gpus,
                        struct tpb_error *error);

/*
 * Gives `want[i]` GPUs to rank i: the first that are free, several for one rank
 * from the first neighbourhood that has as many.  owner[g] becomes the rank, -1
 * for a GPU that is left over.  INVALID with words if there are too few.
 */
tp_status tpt_gpus_assign(const struct tpt_gpus *gpus, const int *want,
                          int ranks, int owner[TPT_GPUS],
                          struct tpb_error *error);

/*
 * Puts the GPUs that a process with that CUDA_VISIBLE_DEVICES (NULL: not set)
 * sees onto its card, in CUDA's order as far as it follows the bus, each with
 * its NIC, which is chosen jointly for all GPUs of the machine.  The card's
 * NICs are there already.  Returns how many GPUs the machine has, seen or not.
 * The kernel's files tell, below `root` ("" outside tests), or the recorded
 * topology; no driver's library does.
 */
int tpt_topology_gpus(struct tpt_topology *topology, const char *root,
                      const char *visible, struct tpt_card *card);

#endif
