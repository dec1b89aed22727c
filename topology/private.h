/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of topology/ share among themselves. */
#ifndef TPT_PRIVATE_H
#define TPT_PRIVATE_H

#include <hwloc.h>

#include "topology/discover.h"
#include "topology/score.h"

/* One cpu: the system's number, and hwloc's logical indexes of what it is part
 * of, -1 where there is none. */
struct tpt_table_cpu {
    int32_t cpu, core, l2, l3, numa, package;
};

/* All that ranks need of a topology.  Behind the cpus stand the system's
 * numbers of the NUMA nodes. */
struct tpt_table {
    uint64_t magic;
    uint64_t checksum;             /* of all that follows, `length` in all */
    uint64_t hash;
    uint64_t memory;
    uint32_t length;               /* bytes */
    uint32_t cpus, numas, packages, l3s, cores;
    uint32_t this_machine, unused;
    struct tpt_table_cpu cpu[];
};

struct tpt_network;

struct tpt_topology {
    hwloc_topology_t hwloc;        /* NULL while only the table is mapped */
    struct tpt_table *table;
    size_t mapped;                 /* bytes to unmap; 0: table was allocated */
    const struct tpt_network *network;     /* mapped; NULL: ask the kernel */
    void *told;                    /* by tpt_topology_look(); or NULL */
    size_t told_length;
    char *shared;                  /* the TP_TOPOLOGY_SHARED it came from */
    char *source;
};

/* The GPUs of a card as bytes; 0: one of them is not as it should be. */
#define TPT_CARD_GPUS_BYTES 4096
size_t tpt_card_gpus_encode(const struct tpt_card *card,
                            uint8_t bytes[TPT_CARD_GPUS_BYTES]);
/* Into the card, whose NICs are there already.  What is wrong, or NULL. */
const char *tpt_card_gpus_decode(const uint8_t *bytes, size_t length,
                                 struct tpt_card *card);

/* The table of a loaded topology, to be freed with tpb_free(); NULL without
 * memory. */
struct tpt_table *tpt_table_new(hwloc_topology_t hwloc);

/* Is what lies there, with so many bytes, a table? */
bool tpt_table_valid(const struct tpt_table *table, size_t available);

/* What ranks shall know of the network, to stand behind the table at the next
 * multiple of 8 bytes; to be freed with tpb_free().  NULL: nothing is known.
 * Of what was mapped, the second looks whether it is whole, if it is there,
 * and the third makes use of it, if it still counts. */
void *tpt_network_new(struct tpt_topology *topology, size_t *length);
bool tpt_network_whole(const struct tpt_table *table, size_t available);
void tpt_network_find(struct tpt_topology *topology);
uint32_t tpt_network_nics(const struct tpt_network *network,
                          struct tpt_nic nics[TPT_NICS]);

/* As the functions of discover.h. */
void tpt_table_place(const struct tpt_table *table, struct tpt_place *place);
bool tpt_table_place_core(const struct tpt_table *table, uint32_t index,
                          struct tpt_place *place);

/* The logical index of the NUMA node with the system's number; -1: none. */
int32_t tpt_table_numa(const struct tpt_table *table, unsigned os_index);

/* That of all these cpus; -1 if they have several, or none.  So it is that of a
 * recorded device at these cpus, whatever more memory is there. */
int32_t tpt_table_numa_around(const struct tpt_table *table,
                              hwloc_const_bitmap_t cpus);

/* Of the number that begins the text, as "2.5 GT/s": the kernel's, with a point
 * in every locale.  0 if there is none, or it is beyond a million. */
uint32_t tpt_thousandths(const char *text);

/* As tpt_nic.pci has it. */
uint32_t tpt_pci_number(unsigned domain, unsigned bus, unsigned device,
                        unsigned function);

/* Where a PCI device hangs: one of a recorded machine, one of this machine by
 * the kernel's files below `root` ("" outside tests). */
void tpt_pci_recorded(const struct tpt_topology *topology, hwloc_obj_t device,
                      struct tpt_pci_place *place);
void tpt_pci_machine(const struct tpt_topology *topology, const char *root,
                     uint32_t pci, struct tpt_pci_place *place);

/* MB/s of its link as that machine's kernel knows it; 0: it does not. */
uint32_t tpt_pci_megabytes(const char *root, uint32_t pci);

/* A loaded topology of this machine. */
tp_status tpt_discover_machine(hwloc_topology_t *hwloc,
                               struct tpb_error *error);

/*
 * Maps the table that the launcher shared, `text` being the value of
 * TP_TOPOLOGY_SHARED; *mapped gets the bytes for munmap().  Any failure is
 * INVALID with words, and harmless: load the topology then.
 */
tp_status tpt_shared_map(const char *text, struct tpt_table **table,
                         size_t *mapped, struct tpb_error *error);

/* The whole of it, for those who need hwloc's.  Likewise. */
tp_status tpt_shared_adopt(const char *text, hwloc_topology_t *hwloc,
                           struct tpb_error *error);

/* What the locality costs, see locality.c. */
uint32_t tpt_locality_latency(enum tpt_locality locality);   /* adds ns */
uint32_t tpt_locality_percent(enum tpt_locality locality);   /* of MB/s */

/* The items of the contract that concern this locality and name backends of
 * this role and for devices or not, "shm, ofi:tcp". */
void tpt_require_list(const char *require, enum tpt_locality locality,
                      const struct tpt_known *known, size_t count,
                      enum tpt_role role, bool devices, char *list,
                      size_t size);

/* libfabric's providers: "ofi:tcp".  A name may leave that out. */
#define TPT_PROVIDER "ofi:"

/* Would that card have the backend if its rank's TP_BACKENDS named it?  So it
 * is with all providers but those that every build has. */
bool tpt_policy_names(const char *name, const struct tpt_card *card);

/* Is it "ofi:tcp" or, with `name` "ofi", one of those? */
bool tpt_name_within(const char *name, size_t length, const char *backend);

/*
 * Chooses among the candidates that are possible, judges channels beside the
 * chosen transport, and puts all in order.  Done again after one was refused.
 */
void tpt_plan_settle(struct tpt_plan *plan);

/* For tpt_score(), before the plan is settled: gives the plan's candidates for
 * devices the terms of the pair's first devices, and refuses those that cannot
 * be between the only two.  devices.c */
void tpt_device_weigh(const struct tpt_card *mine,
                      const struct tpt_card *yours, struct tpt_plan *plan);
void tpt_device_deny(const struct tpt_card *mine, const struct tpt_card *yours,
                     struct tpt_plan *plan);

/* For tpt_plan_settle(): a possible channel for devices, beside the transport
 * that is chosen. */
void tpt_device_settle(const struct tpt_plan *plan,
                       const struct tpt_candidate *transport,
                       struct tpt_candidate *channel);

struct tpt_device_plan;
/* Do the two have to take turns at the one device that both are? */
bool tpt_device_turns(const struct tpt_card *mine,
                      const struct tpt_card *yours, uint32_t index_mine,
                      uint32_t index_yours);
/* What the path rests on, in words. */
void tpt_device_evidence(const struct tpt_card *mine,
                         const struct tpt_card *yours,
                         struct tpt_device_plan *plan);

/* The nanoseconds of a buffer: latency + bytes / (MB/s). */
uint64_t tpt_time(uint64_t latency_ns, uint64_t megabytes, uint64_t bytes);

#define TPT_MESSAGE (64 << 10)     /* what candidates are ordered by */

#endif
