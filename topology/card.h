/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The card: what a rank publishes about itself, once, and all that another
 * rank needs to choose a path to it.  Facts only; opinions are in score.h.
 * The card stands here, below fabric and runtime, because scoring is a pure
 * function of two cards.
 */
#ifndef TPT_CARD_H
#define TPT_CARD_H

#include "runtime/base/base.h"

#define TPT_CARD_BYTES 8192        /* the most an encoded card may have */
#define TPT_BACKENDS 16            /* the most backends on a card */
#define TPT_NICS 16
#define TPT_NAME 24                /* with the final NUL */
#define TPT_ADDRESS 512            /* the most bytes of one backend's address */
#define TPT_WORDS 96
#define TPT_CARD_GPUS 16           /* the most GPUs on a card */
#define TPT_PCI_DEPTH 8            /* bridges above a device that are kept */
#define TPT_GPU_LINKS 8            /* GPUs that one is joined to directly */

/* What two ranks share, from nearest to farthest. */
enum tpt_locality {
    TPT_SAME_PROCESS, TPT_SAME_CORE, TPT_SAME_L2, TPT_SAME_L3, TPT_SAME_NUMA,
    TPT_SAME_PACKAGE, TPT_SAME_HOST, TPT_OTHER_HOST
};
#define TPT_LOCALITIES (TPT_OTHER_HOST + 1)

/* What a backend is for. */
enum tpt_role {
    TPT_ROLE_TRANSPORT,            /* carries frames; a pair uses one */
    TPT_ROLE_CHANNEL               /* moves one big buffer beside a transport */
};

/* How far a backend carries. */
enum tpt_reach {
    TPT_REACH_PROCESS,             /* a rank to itself */
    TPT_REACH_HOST,                /* ranks of one host */
    TPT_REACH_NETWORK
};

/* Who a host is.  Two cards are of one host if boot_id is equal; what the
 * namespaces then still forbid is found out by trial. */
struct tpt_host {
    uint8_t boot_id[16];
    uint64_t net_namespace, pid_namespace, user_namespace, mount_namespace;
    char name[64];
};

/*
 * Where a rank may run, in the terms of hwloc's tree: the logical index of the
 * one object that contains all its allowed PUs, or -1 if they lie in several
 * or the machine tells of no such level.  Two ranks of one host with the same
 * `topology` share the deepest level whose indexes are equal and not -1.  The
 * hash covers the system's numbers of the PUs, so that two containers with
 * different cpus do not compare indexes.
 */
struct tpt_place {
    uint64_t topology;             /* hash of the machine's shape */
    int32_t core, l2, l3, numa, package;
    uint32_t cpus;                 /* PUs this rank may run on */
    uint32_t machine_cpus;
};

/* What a NIC can carry, and which NICs a backend uses. */
enum tpt_nic_kind {
    TPT_NIC_ANY,                   /* unknown, or any of them */
    TPT_NIC_IP,                    /* an interface: "eth0", "bond0" */
    TPT_NIC_RDMA                   /* a verbs device: "mlx5_0" */
};

struct tpt_nic {
    char name[TPT_NAME];           /* "eth0", "mlx5_0" */
    uint32_t megabits;             /* link speed; 0: unknown or down */
    int32_t numa;                  /* hwloc's logical index; -1: unknown */
    uint32_t pci;                  /* domain:16, bus:8, device:5, function:3;
                                      0: none */
    uint8_t kind;                  /* enum tpt_nic_kind */
};

/*
 * Where a PCI device hangs: the bridges above it, the host bridge first, which
 * has a number of its own.  Of more than TPT_PCI_DEPTH the lowest are left out.
 * Two devices that have a bridge in common reach each other below it.
 */
struct tpt_pci_place {
    uint32_t pci;                  /* as in tpt_nic; 0: unknown */
    int32_t numa;                  /* hwloc's logical index; -1: unknown */
    uint32_t depth;                /* 0: unknown */
    uint32_t path[TPT_PCI_DEPTH];
};

/* NVLinks from one GPU to another one. */
struct tpt_gpu_link {
    uint32_t pci;                  /* of the other */
    uint32_t count;                /* at most 255 */
};

enum tpt_gpu_asked {
    TPT_LINKS_UNKNOWN,             /* nobody could tell */
    TPT_LINKS_RECORDED,            /* in the recorded topology */
    TPT_LINKS_NVML                 /* the driver's library told */
};

/* A GPU that the rank sees; the n-th is its CUDA device n, as far as one can
 * tell without waking the driver: in the order of the bus, as
 * CUDA_VISIBLE_DEVICES has them. */
struct tpt_card_gpu {
    struct tpt_pci_place place;
    uint8_t uuid[16];              /* all zero: unknown */
    uint32_t megabytes;            /* of its PCI link, MB/s; 0: unknown */
    uint8_t nic;                   /* 1 + the index of its NIC; 0: none */
    uint8_t nic_path;              /* enum tpt_path from there to it */
    uint8_t asked;                 /* enum tpt_gpu_asked: about what follows */
    uint8_t switched;              /* NVLinks to switches that join all */
    uint32_t link_megabytes;       /* of one NVLink, MB/s; 0: unknown */
    uint16_t link_count, denied_count;
    struct tpt_gpu_link links[TPT_GPU_LINKS];
    uint32_t denied[TPT_GPU_LINKS];    /* whose memory it may not access */
    uint8_t mps;                   /* 1: its processes share it by MPS, and do
                                      not take turns */
};

/* Time of a message of n bytes one way: latency + n / (MB/s). */
struct tpt_cost {
    uint32_t latency_ns;
    uint32_t megabytes;            /* MB/s; 0: not known */
};

/* One backend of that rank.  What a channel costs comes on top of what a
 * message of its transport takes. */
struct tpt_backend_card {
    char name[TPT_NAME];           /* "shm", "ofi:tcp", "cma" */
    char over[TPT_NAME];           /* channel: the transport that it needs,
                                      "ofi" for all of those; "": any */
    uint8_t role;                  /* enum tpt_role */
    uint8_t reach;                 /* enum tpt_reach */
    uint8_t usable;                /* 0: `why` says why not */
    uint8_t forbidden;             /* 1: by its rank's TP_BACKENDS */
    uint8_t nic_kind;              /* enum tpt_nic_kind: what it goes over */
    uint8_t devices;               /* 1: for memory of GPUs only */
    uint16_t nics;                 /* over all of these at once: a bit for each,
                                      by its place on the card; 0: over the
                                      best one of the kind */
    uint16_t address_length;
    uint32_t latency_ns;           /* model: half round trip, small message */
    uint32_t megabytes;            /* model: MB/s for big ones */
    struct tpt_cost measured[TPT_LOCALITIES];   /* here, instead of the model;
                                      by enum tpt_locality; of those for
                                      GPUs by enum tpt_path (devices.h) */
    char why[TPT_WORDS];
    uint8_t address[TPT_ADDRESS];  /* for the peer's connect() */
};

struct tpt_card {
    char job[64];                  /* PMIx namespace or the like */
    int32_t rank, size;
    uint32_t pid, uid;
    uint8_t instance[16];          /* random: this very process */
    uint8_t cookie[16];            /* secret: who shows it has read this card */
    struct tpt_host host;
    struct tpt_place place;
    bool recorded;                 /* a machine that is not here; never sent */
    uint32_t nic_count, gpu_count, backend_count;
    struct tpt_nic nics[TPT_NICS];
    struct tpt_card_gpu gpus[TPT_CARD_GPUS];
    struct tpt_backend_card backends[TPT_BACKENDS];
};

/* The NIC that was solved for the rank's GPUs, if it is the same for all that
 * it sees: then the rank's other traffic goes over it as well.  Its index on
 * the card; -1: none, or several. */
static inline int tpt_card_nic(const struct tpt_card *card)
{
    uint8_t nic = card->gpu_count > 0 ? card->gpus[0].nic : 0;

    for (uint32_t i = 1; i < card->gpu_count; i++)
        if (card->gpus[i].nic != nic)
            return -1;
    return nic <= card->nic_count ? (int)nic - 1 : -1;
}

/*
 * Encodes into `blob`; little-endian, versioned, strings and addresses at
 * their own length, with a checksum.  *length gets the bytes used, at most
 * TPT_CARD_BYTES.  Control characters in texts become '?', since the peer
 * prints them.  INVALID if a count or length is over its limit, a string is
 * not terminated, a backend has no name or the name of another, or the whole
 * does not fit.
 */
tp_status tpt_card_encode(const struct tpt_card *card,
                          uint8_t blob[TPT_CARD_BYTES], size_t *length);

/*
 * Decodes what another process published.  Records of kinds that this version
 * does not know are skipped.  Every length is checked, every
 * string terminated and free of control characters.  PROTOCOL, with words, for
 * anything that is not a card of a version we know; *card is then undefined.
 * The checksum finds every damage that is confined to one byte; it is no proof
 * of who wrote the card.  Whether rank, size and job are the expected ones is
 * the caller's to compare.
 */
tp_status tpt_card_decode(const void *blob, size_t length,
                          struct tpt_card *card, struct tpb_error *error);

/* "0000:18:00.0" */
#define TPT_PCI_TEXT 16
void tpt_pci_text(uint32_t pci, char text[TPT_PCI_TEXT]);
/* The number of that; 0 for anything else. */
uint32_t tpt_pci_parse(const char *text);

/* Bits as in tpt_backend_card.nics for the fastest NICs of that kind, at most
 * `most`; 0 if there are less than two. */
uint16_t tpt_card_nics(const struct tpt_card *card, enum tpt_nic_kind kind,
                       uint32_t most);

/* The backend of that name on the card, or NULL. */
const struct tpt_backend_card *tpt_card_backend(const struct tpt_card *card,
                                                const char *name);

/*
 * Fills host (boot id, namespaces, name), pid, uid, instance and cookie; the
 * rest of *card is left alone.  A namespace that /proc does not show is 0.
 * SYSTEM if nothing tells this host from others.
 */
tp_status tpt_card_identify(struct tpt_card *card, struct tpb_error *error);

/* The inode number of one of this process's namespaces, "net" or alike; 0 where
 * there is no /proc. */
uint64_t tpt_namespace(const char *name);

#endif
