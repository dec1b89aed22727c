/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda_gdr channel's parts.
 *
 *   cuda_gdr.c  the channel: describes, pulls
 *   port.c      a device's way to the network: which NIC, registered how, and
 *               the trial of it
 *   region.c    registrations, kept by buffer id
 *   nic.c       which NIC serves a device
 */
#ifndef TPG_GDR_H
#define TPG_GDR_H

#include "fabric/remote.h"
#include "gpu/cuda.h"
#include "gpu/cuda_mem.h"
#include "topology/devices.h"

/* The transport beside which it works; tests without an RDMA device have
 * another one. */
#ifndef TPG_GDR_OVER
#define TPG_GDR_OVER "ofi:verbs"
#endif

enum {
    GDR_REGIONS = 64,                  /* that a port keeps */
    GDR_HOST = TPG_DEVICES             /* the port for memory of the host */
};

/* ---- port.c -------------------------------------------------------------- */

/* One device's way to the network in one context; or the host's. */
struct gdr_port {
    struct tpf_remote *remote;         /* NULL: there is none, see words */
    enum tpf_remote_how how;
    int device;                        /* -1: memory of the host */
    bool flush;                        /* what the NIC wrote has to be */
    struct tpb_list regions;           /* used last at the end */
    unsigned count;
    struct tpb_error words;
};

/* A NIC, opened once for each kind of domain. */
struct gdr_nic {
    struct tpf_remote_nic nic;
    struct tpf_remote *remotes[TPF_REMOTE_WAYS];
    struct tpb_error refused[TPF_REMOTE_WAYS];
};

struct gdr_channel {
    struct tpf_channel base;
    struct gdr_nic nics[TPF_REMOTE_NICS];
    int nic_count;
    bool listed;
    struct gdr_port *ports[TPG_DEVICES + 1];
};

/*
 * The port of a device (GDR_HOST: of the host), made on first use; NULL with
 * words if memory of it goes no way to the network.  The first time that takes
 * some milliseconds: every way is tried, the best first, by sending a pattern
 * from a buffer of that device to another one through the NIC and comparing
 * what arrived.
 */
struct gdr_port *gdr_port_get(struct gdr_channel *channel,
                              const struct tpg_cuda *cuda, int device,
                              struct tpb_error *error);
/* Makes what the NIC has written visible to the device. */
tp_status gdr_port_flush(const struct gdr_port *port,
                         const struct tpg_cuda *cuda, struct tpb_error *error);
void gdr_ports_close(struct gdr_channel *channel);

/* ---- nic.c --------------------------------------------------------------- */

/* The longest way that TP_GDR_PATH allows; PXB for a word that is none. */
enum tpt_path gdr_nic_limit(const char *word);
/*
 * Which of the channel's NICs serves the device with that PCI number (0:
 * unknown): the one on the card, if it is open to this rank and near enough,
 * else the nearest that is.  -1 with words: all are too far away.
 */
int gdr_nic_for(const struct gdr_channel *channel, uint32_t pci,
                struct tpb_error *error);

/* ---- region.c ------------------------------------------------------------ */

struct gdr_region {
    struct tpb_list node;              /* the port's; unlinked: of one use */
    struct gdr_port *port;
    uint64_t id, block, base;          /* as tpg_memory_look() tells them */
    size_t size;
    uint64_t owned;                    /* the block of tp_alloc(); 0: none */
    struct tpf_registration *registration;
    unsigned holds;
    bool stale;                        /* closed with its last hold */
};

/*
 * A registration that covers the buffer, to be dropped.  Of a device's memory
 * the whole allocation is registered, and kept for the next time under its
 * buffer id, which no later allocation has; what was kept of memory that is
 * not there any more is closed then.  Of the host's memory it lasts one use.
 * NULL with words.
 */
struct gdr_region *gdr_region_hold(struct gdr_port *port,
                                   const struct tpg_cuda *cuda,
                                   const struct tpf_buffer *buffer,
                                   struct tpb_error *error);
void gdr_region_drop(struct gdr_region *region);       /* NULL is allowed */
/* Those of allocations that are gone, and that nobody uses. */
void gdr_regions_sweep(struct gdr_port *port, const struct tpg_cuda *cuda);
/* That of a block of tp_alloc() that is freed: it would keep the memory. */
void gdr_regions_freed(struct gdr_port *port, uint64_t block);
void gdr_regions_close(struct gdr_port *port);

#endif
