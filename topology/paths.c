/* SPDX-License-Identifier: BSD-3-Clause */
/* What lies between two PCI devices, and between two GPUs. */
#include "config.h"

#include "topology/devices.h"

static const struct {
    const char *name, *words;
} paths_table[] = {
    [TPT_PATH_SAME] = { "same device", "one device" },
    [TPT_PATH_NVL] = { "NVL", "NVLinks" },
    [TPT_PATH_PIX] = { "PIX", "one PCI switch" },
    [TPT_PATH_PXB] = { "PXB", "several PCI switches" },
    [TPT_PATH_PHB] = { "PHB", "one host bridge" },
    [TPT_PATH_NODE] = { "NODE", "host bridges of one NUMA node" },
    [TPT_PATH_SYS] = { "SYS", "the link between NUMA nodes" },
    [TPT_PATH_NET] = { "NET", "a network" },
    [TPT_PATH_UNKNOWN] = { "unknown", "nothing that the cards tell" },
};

const char *tpt_path_name(enum tpt_path path)
{
    return paths_table[path].name;
}

const char *tpt_path_words(enum tpt_path path)
{
    return paths_table[path].words;
}

enum tpt_path tpt_path_pci(const struct tpt_pci_place *a,
                           const struct tpt_pci_place *b)
{
    unsigned shared = 0, least = a->depth < b->depth ? a->depth : b->depth;

    if (a->pci != 0 && a->pci == b->pci)
        return TPT_PATH_SAME;
    while (shared < least && a->path[shared] == b->path[shared])
        shared++;
    if (shared >= 2)
        return a->depth - shared <= 1 && b->depth - shared <= 1
               ? TPT_PATH_PIX : TPT_PATH_PXB;
    if (shared == 1)
        return TPT_PATH_PHB;
    if (a->numa >= 0 && b->numa >= 0)
        return a->numa == b->numa ? TPT_PATH_NODE : TPT_PATH_SYS;
    return TPT_PATH_UNKNOWN;
}

static bool paths_linked(const struct tpt_card_gpu *from,
                         const struct tpt_card_gpu *to)
{
    for (unsigned i = 0; i < from->link_count; i++)
        if (from->links[i].pci == to->place.pci && from->links[i].count > 0)
            return true;
    return from->switched > 0 && to->switched > 0;
}

static bool paths_same_gpu(const struct tpt_card_gpu *a,
                           const struct tpt_card_gpu *b)
{
    static const uint8_t nothing[sizeof(a->uuid)];

    if (memcmp(a->uuid, nothing, sizeof(nothing)) != 0
        && memcmp(b->uuid, nothing, sizeof(nothing)) != 0)
        return memcmp(a->uuid, b->uuid, sizeof(nothing)) == 0;
    return a->place.pci != 0 && a->place.pci == b->place.pci;
}

enum tpt_path tpt_path_gpus(const struct tpt_card *a, uint32_t index_a,
                            const struct tpt_card *b, uint32_t index_b)
{
    const struct tpt_card_gpu *x = &a->gpus[index_a], *y = &b->gpus[index_b];

    if (tpt_locality(a, b) == TPT_OTHER_HOST)
        return TPT_PATH_NET;
    if (index_a >= a->gpu_count || index_b >= b->gpu_count)
        return TPT_PATH_UNKNOWN;
    if (paths_same_gpu(x, y))
        return TPT_PATH_SAME;
    if (paths_linked(x, y) || paths_linked(y, x))
        return TPT_PATH_NVL;
    /* Two names for one place: what they say of it does not hold. */
    if (x->place.pci == y->place.pci)
        return TPT_PATH_UNKNOWN;
    return tpt_path_pci(&x->place, &y->place);
}
