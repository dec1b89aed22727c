/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which way between two GPUs, and why.  Pure functions of two cards, as
 * score.h, on top of the plan of the pair of ranks.
 */
#ifndef TPT_DEVICES_H
#define TPT_DEVICES_H

#include "topology/score.h"

/* What lies between two devices, from nearest to farthest. */
enum tpt_path {
    TPT_PATH_SAME,                 /* it is one device */
    TPT_PATH_NVL,                  /* NVLinks, direct or through switches */
    TPT_PATH_PIX,                  /* one PCI switch */
    TPT_PATH_PXB,                  /* several, but no host bridge */
    TPT_PATH_PHB,                  /* the host bridge of both */
    TPT_PATH_NODE,                 /* host bridges of one NUMA node */
    TPT_PATH_SYS,                  /* the link between NUMA nodes */
    TPT_PATH_NET,                  /* a network */
    TPT_PATH_UNKNOWN               /* of one host; costs what PHB costs */
};
#define TPT_PATHS (TPT_PATH_NET + 1)   /* that can be measured */
_Static_assert(TPT_PATHS <= TPT_LOCALITIES, "they share tpt_costs_row");

const char *tpt_path_name(enum tpt_path path);     /* "PIX" */
const char *tpt_path_words(enum tpt_path path);    /* "one PCI switch" */

/*
 * Between two PCI devices of one host.  Source of the classes: NCCL's, as
 * `nvidia-smi topo -m` shows them.  A switch is two bridges, one above the
 * other, so devices at it have one bridge each below the one they share.
 */
enum tpt_path tpt_path_pci(const struct tpt_pci_place *a,
                           const struct tpt_pci_place *b);

/* The same of this machine's, by their numbers as on a card and the kernel's
 * files below `root` ("" outside tests).  What is no PCI device is unknown. */
enum tpt_path tpt_path_here(const char *root, uint32_t a, uint32_t b);

/* Between two GPUs of cards; one that the card does not have is unknown. */
enum tpt_path tpt_path_gpus(const struct tpt_card *a, uint32_t index_a,
                            const struct tpt_card *b, uint32_t index_b);

/*
 * Which NIC for which GPU of a host: nic_of[g] becomes 1 + the NIC's index, 0
 * if there is none.  The sum of the distances is the least that can be had
 * while no NIC serves more GPUs than its share, which is that of its speed in
 * the speed of all, rounded up; one that is much slower than the fastest serves
 * none.  Ties: the faster NIC, then that whose turn it is in the order of the
 * bus.  The order of the arguments is no matter.  At most 64 GPUs and TPT_NICS
 * NICs.
 */
struct tpt_affinity_nic {
    struct tpt_pci_place place;
    uint32_t megabits;             /* 0: unknown, and not used if others are */
};
void tpt_affinity_solve(const struct tpt_pci_place *gpus, uint32_t gpu_count,
                        const struct tpt_affinity_nic *nics,
                        uint32_t nic_count, uint8_t *nic_of);

/* ---- a pair of devices -------------------------------------------------- */

#define TPT_MAPPED "map"
#define TPT_STAGED "cuda_staged"
#define TPT_PINNED "cuda_host"
#define TPT_WAYS 6

/* One way for the bytes, with its verdict as in struct tpt_candidate. */
struct tpt_way {
    char name[TPT_NAME];
    bool possible, spare;
    enum tpt_reason reason;
    bool measured;
    uint64_t latency_ns, megabytes;
    uint64_t model_latency_ns, model_megabytes;
    uint64_t cost_ns;              /* of 64 KiB, with the transport's latency */
    uint64_t from_bytes;           /* the smallest buffer for which it is worth
                                      more than cuda_staged; UINT64_MAX: none */
    char evidence[TPT_EVIDENCE];
    char remedy[TPT_WORDS * 2];
};

struct tpt_device_plan {
    uint32_t mine, yours;          /* CUDA's numbers, there and here */
    enum tpt_path path;
    char evidence[256];            /* for the path */
    uint32_t count;                /* best first, impossible ones last */
    struct tpt_way ways[TPT_WAYS];
};

/*
 * The ways between two devices of a pair that was scored.  Symmetric, as
 * tpt_score().  Verdicts, trials and contract are the plan's; what it costs
 * depends on the path:
 *   cuda_ipc     the card's latency and what the path adds, or, where two
 *                processes have one device, its switch between them; of the
 *                slower PCI link the path's percentage, or what the NVLinks
 *                give
 *   cuda_host    the slower PCI link
 *   cuda_gdr     the slower NIC of the two GPUs, by its path to them
 *   cuda_staged  the transport's latency and the card's for each copy; the
 *                slowest of both PCI links and half of the transport
 * Measured costs of the path (TP_COSTS) take the model's place.
 */
void tpt_device_score(const struct tpt_card *mine, const struct tpt_card *yours,
                      const struct tpt_plan *plan, uint32_t index_mine,
                      uint32_t index_yours, struct tpt_device_plan *out);

/* Which way buffers between the two go, by size, until the next; what a way
 * does not take goes the others'.  Returns how many there are. */
#define TPT_DEVICE_ROUTES (2 * TPT_WAYS)
struct tpt_device_route {
    uint64_t from_bytes;
    int way;                       /* -1: none is allowed */
};
size_t tpt_device_routes(const struct tpt_device_plan *plan,
                         struct tpt_device_route routes[TPT_DEVICE_ROUTES]);

/* Does a direct way with those terms, both at least 1, take less time for so
 * many bytes than the other? */
bool tpt_device_sooner(uint64_t latency_ns, uint64_t megabytes,
                       uint64_t than_latency_ns, uint64_t than_megabytes,
                       uint64_t bytes);

/*
 * From which size on the candidate, a channel for devices, takes buffers of
 * that pair of devices: as tpt_device_score() says it, UINT64_MAX for not at
 * all.
 */
uint64_t tpt_device_from(const struct tpt_card *mine,
                         const struct tpt_card *yours,
                         const struct tpt_plan *plan,
                         const struct tpt_candidate *candidate,
                         uint32_t index_mine, uint32_t index_yours);
/* Its terms between the two, where several are possible. */
void tpt_device_cost(const struct tpt_card *mine, const struct tpt_card *yours,
                     const struct tpt_candidate *candidate,
                     uint32_t index_mine, uint32_t index_yours,
                     uint64_t *latency_ns, uint64_t *megabytes);

/*
 * One of each kind of pair that the cards' devices make, at most `most`; the
 * pairs of the same kind are counted.  Returns how many there are; without a
 * GPU on either card none.
 */
struct tpt_device_kind {
    uint32_t mine, yours, count;
};
#define TPT_DEVICE_KINDS 8
size_t tpt_device_kinds(const struct tpt_card *mine,
                        const struct tpt_card *yours,
                        const struct tpt_plan *plan,
                        struct tpt_device_kind kinds[TPT_DEVICE_KINDS]);

/* Why a device's buffer of that pair goes no way that is allowed, with what
 * helps, in one line; appended. */
void tpt_device_refusal(const struct tpt_plan *plan, struct tpb_text *text);

#endif
