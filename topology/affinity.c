/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which NIC for which GPU: an assignment problem.  A NIC that may serve several
 * GPUs stands there several times, once for each.  Solved by shortest
 * augmenting paths with potentials, which is exact.
 *
 * Source: R. Jonker and A. Volgenant, "A shortest augmenting path algorithm for
 * dense and sparse linear assignment problems", Computing 38 (1987).
 */
#include "config.h"

#include <stdlib.h>

#include "topology/devices.h"

enum {
    AFFINITY_GPUS = 64,
    AFFINITY_SLOTS = AFFINITY_GPUS + TPT_NICS,
    AFFINITY_FAR = 30,             /* percent of its speed that a NIC gives at
                                      the greatest distance, as devices.c has
                                      it */
    /* One step of what comes first outweighs all steps of what comes next. */
    AFFINITY_ORDER = 1 << 14,      /* 64 GPUs, squares of up to 15 */
    AFFINITY_SPEED = AFFINITY_ORDER * 64 * TPT_NICS
};

struct affinity {
    uint32_t gpus, nics, slots;
    const struct tpt_pci_place *gpu[AFFINITY_GPUS];
    const struct tpt_affinity_nic *nic[TPT_NICS];
    uint32_t rank[TPT_NICS];       /* by speed, 0 the fastest */
    uint32_t slot_nic[AFFINITY_SLOTS];
    /* Slots are rows of their own: 0 stands for "none". */
    uint32_t owner[AFFINITY_SLOTS + 1], way[AFFINITY_SLOTS + 1];
    int64_t gpu_potential[AFFINITY_GPUS + 1];
    int64_t slot_potential[AFFINITY_SLOTS + 1];
};

static void affinity_sort(struct affinity *all)
{
    for (uint32_t i = 1; i < all->gpus; i++)
        for (uint32_t j = i; j > 0 && all->gpu[j]->pci < all->gpu[j - 1]->pci;
             j--) {
            const struct tpt_pci_place *other = all->gpu[j];

            all->gpu[j] = all->gpu[j - 1];
            all->gpu[j - 1] = other;
        }
    for (uint32_t i = 1; i < all->nics; i++)
        for (uint32_t j = i; j > 0 && all->nic[j]->place.pci
                                      < all->nic[j - 1]->place.pci; j--) {
            const struct tpt_affinity_nic *other = all->nic[j];

            all->nic[j] = all->nic[j - 1];
            all->nic[j - 1] = other;
        }
}

/* One that is slower than the fastest is from afar serves nobody, such as an
 * Ethernet port beside InfiniBand.  So those whose speed is not known count
 * only among themselves. */
static void affinity_take(struct affinity *all,
                          const struct tpt_affinity_nic *nics, uint32_t count)
{
    uint64_t fastest = 0;

    for (uint32_t i = 0; i < count && i < TPT_NICS; i++)
        if (nics[i].megabits > fastest)
            fastest = nics[i].megabits;
    for (uint32_t i = 0; i < count && i < TPT_NICS; i++)
        if ((uint64_t)nics[i].megabits * 100 >= fastest * AFFINITY_FAR)
            all->nic[all->nics++] = &nics[i];
}

static void affinity_slots(struct affinity *all)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < all->nics; i++)
        total += all->nic[i]->megabits;
    for (uint32_t i = 0; i < all->nics; i++) {
        uint64_t part = total > 0 ? all->nic[i]->megabits : 1;
        uint64_t of = total > 0 ? total : all->nics;
        uint64_t share = (all->gpus * part + of - 1) / of;

        for (uint32_t j = 0; j < all->nics; j++)
            all->rank[i] += all->nic[j]->megabits > all->nic[i]->megabits;
        while (share-- > 0 && all->slots < AFFINITY_SLOTS)
            all->slot_nic[all->slots++] = i;
    }
}

static int64_t affinity_cost(const struct affinity *all, uint32_t gpu,
                             uint32_t slot)
{
    uint32_t nic = all->slot_nic[slot];
    enum tpt_path path = tpt_path_pci(all->gpu[gpu], &all->nic[nic]->place);
    /* Whose turn it is, from 0 to 15 for both. */
    int64_t turn = (int64_t)(gpu * 15 / (all->gpus > 1 ? all->gpus - 1 : 1))
                   - (int64_t)(nic * 15 / (all->nics > 1 ? all->nics - 1 : 1));

    return (int64_t)path * AFFINITY_SPEED * TPT_NICS
           + (int64_t)all->rank[nic] * AFFINITY_ORDER + turn * turn;
}

/* The slot that is nearest to those reached already, over `at`. */
static uint32_t affinity_nearest(struct affinity *all, uint32_t at,
                                 int64_t *distance, const bool *reached)
{
    uint32_t gpu = all->owner[at], best = 0;
    int64_t least = INT64_MAX;

    for (uint32_t j = 1; j <= all->slots; j++) {
        int64_t over;

        if (reached[j])
            continue;
        over = affinity_cost(all, gpu - 1, j - 1) - all->gpu_potential[gpu]
               - all->slot_potential[j];
        if (over < distance[j]) {
            distance[j] = over;
            all->way[j] = at;
        }
        if (distance[j] < least) {
            least = distance[j];
            best = j;
        }
    }
    for (uint32_t j = 0; j <= all->slots; j++)
        if (reached[j]) {
            all->gpu_potential[all->owner[j]] += least;
            all->slot_potential[j] -= least;
        } else {
            distance[j] -= least;
        }
    return best;
}

/* Places one more GPU, moving others if that is cheaper for all. */
static void affinity_place(struct affinity *all, uint32_t gpu)
{
    int64_t distance[AFFINITY_SLOTS + 1];
    bool reached[AFFINITY_SLOTS + 1] = { false };
    uint32_t at = 0;

    for (uint32_t j = 0; j <= all->slots; j++)
        distance[j] = INT64_MAX / 4;
    all->owner[0] = gpu;
    do {
        reached[at] = true;
        at = affinity_nearest(all, at, distance, reached);
    } while (all->owner[at] != 0);
    while (at != 0) {
        uint32_t before = all->way[at];

        all->owner[at] = all->owner[before];
        at = before;
    }
}

void tpt_affinity_solve(const struct tpt_pci_place *gpus, uint32_t gpu_count,
                        const struct tpt_affinity_nic *nics,
                        uint32_t nic_count, uint8_t *nic_of)
{
    struct affinity all = { .gpus = gpu_count };

    memset(nic_of, 0, gpu_count);
    if (gpu_count == 0 || gpu_count > AFFINITY_GPUS)
        return;
    for (uint32_t i = 0; i < gpu_count; i++)
        all.gpu[i] = &gpus[i];
    affinity_take(&all, nics, nic_count);
    if (all.nics == 0)
        return;
    affinity_sort(&all);
    affinity_slots(&all);
    for (uint32_t gpu = 1; gpu <= all.gpus; gpu++)
        affinity_place(&all, gpu);
    for (uint32_t j = 1; j <= all.slots; j++)
        if (all.owner[j] != 0)
            nic_of[all.gpu[all.owner[j] - 1] - gpus]
                = (uint8_t)(1 + (all.nic[all.slot_nic[j - 1]] - nics));
}
