/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The machine as hwloc sees it.  The only door to hwloc for the others: no
 * hwloc type leaves topology/ but through tpt_topology_handle().
 */
#ifndef TPT_DISCOVER_H
#define TPT_DISCOVER_H

#include "runtime/base/settings.h"
#include "topology/card.h"

struct tpb_interface;
struct tpt_topology;

/*
 * Maps the topology that the launcher shared (TP_TOPOLOGY_SHARED) if there is
 * one, else reads TP_TOPOLOGY (an XML file), else asks the machine.  Components
 * that would wake GPUs or displays are left out, and of a live machine the I/O
 * devices.  Some 2 ms from the machine, 0.02 ms shared, for then only a table
 * is mapped and hwloc is not touched.  On TP_OK the caller calls
 * tpt_topology_free().
 * Errors: INVALID (broken XML, named), SYSTEM, NO_MEMORY.
 */
tp_status tpt_topology_load(const struct tpb_settings *settings,
                            struct tpt_topology **topology,
                            struct tpb_error *error);
void tpt_topology_free(struct tpt_topology *topology);   /* NULL is allowed */

/* The same from one XML file, whatever the settings say. */
tp_status tpt_topology_load_file(const char *path,
                                 struct tpt_topology **topology,
                                 struct tpb_error *error);

/* Where it came from, for people: "this machine", "the launcher, shared", or
 * the name of the file.  Valid as long as the topology. */
const char *tpt_topology_source(const struct tpt_topology *topology);

/* How much of what there is. */
struct tpt_shape {
    uint64_t hash;                 /* as in tpt_place */
    uint64_t memory;               /* bytes */
    uint32_t packages, numas, l3s, cores, cpus;
    bool this_machine;             /* not a recorded one */
};
void tpt_topology_shape(struct tpt_topology *topology,
                        struct tpt_shape *shape);

/* The hwloc_topology_t, for libpmix, which wants it.  Of a
 * shared topology it is made at the first call: NULL if memory lacks, or if a
 * recorded one cannot be mapped.  One thread at a time. */
void *tpt_topology_handle(struct tpt_topology *topology);

/*
 * Puts the topology into anonymous memory that children can map: sealed, so
 * that nobody can change it any more.  *fd is the caller's, and not
 * close-on-exec; `text` becomes the value of TP_TOPOLOGY_SHARED.
 * NOT_SUPPORTED where hwloc or the kernel cannot; ranks then load their own.
 * A rank maps it only if the descriptor is such memory, by its name, seals and
 * size, since a program between may have closed it and opened another under
 * the same number; what is refused is left alone, what is mapped becomes
 * close-on-exec.
 */
tp_status tpt_topology_share(struct tpt_topology *topology, int *fd,
                             char text[64], struct tpb_error *error);

/* Looks already now for what tpt_topology_share() is to tell of the network. */
void tpt_topology_look(struct tpt_topology *topology);

/* Where the calling thread may run now. */
void tpt_topology_place(struct tpt_topology *topology,
                        struct tpt_place *place);

/* Where a rank bound to the index-th core would be.  False if there is no such
 * core.  For plans and tests. */
bool tpt_topology_place_core(struct tpt_topology *topology, uint32_t index,
                             struct tpt_place *place);

/*
 * Network devices with speed and place, the fastest first, at most TPT_NICS;
 * returns how many.  Of a recorded machine only what hwloc recorded is known;
 * a speed can be added there by hand, as an info "tp:megabits" of the device.
 * On this machine interfaces without hardware (bond0, a container's eth0) are
 * there too, but no bridges and what hangs on them.
 */
uint32_t tpt_topology_nics(struct tpt_topology *topology,
                           struct tpt_nic nics[TPT_NICS]);

/* This host's addresses as the launcher has just found them, for
 * tpb_interfaces_hold_known(); NULL if it told none, or of another network
 * namespace.  Until the topology is freed. */
const struct tpb_interface *
tpt_topology_interfaces(const struct tpt_topology *topology, size_t *count);

/* What tpt_topology_nics() does on this machine, with another sysfs than /sys;
 * for tests. */
uint32_t tpt_topology_nics_at(struct tpt_topology *topology, const char *root,
                              struct tpt_nic nics[TPT_NICS]);

/* A drawing for people, as `tpinfo` shows it; appended to *text. */
void tpt_topology_describe(struct tpt_topology *topology,
                           struct tpb_text *text);

#endif
