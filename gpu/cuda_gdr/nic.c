/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which NIC serves a device: the one that topology/ has chosen for it, jointly
 * with those of the host's other devices.  Another one only if this rank may
 * not use that one, or if it is farther away than TP_GDR_PATH allows.
 */
#include "config.h"

#include <stdio.h>

#include "gpu/cuda_gdr/gdr.h"

static const enum tpt_path nic_limits[] = {
    TPT_PATH_PIX, TPT_PATH_PXB, TPT_PATH_PHB, TPT_PATH_NODE, TPT_PATH_SYS
};

enum tpt_path gdr_nic_limit(const char *word)
{
    for (size_t i = 0; i < TPB_COUNT(nic_limits); i++)
        if (strcasecmp(word, tpt_path_name(nic_limits[i])) == 0)
            return nic_limits[i];
    return TPT_PATH_PXB;
}

/* What is not known speaks against nothing. */
static bool nic_allows(enum tpt_path most, enum tpt_path path)
{
    return path <= most || path == TPT_PATH_UNKNOWN;
}

static const struct tpt_card_gpu *nic_gpu(const struct tpt_card *card,
                                          uint32_t pci)
{
    for (uint32_t i = 0; pci != 0 && i < card->gpu_count; i++)
        if (card->gpus[i].place.pci == pci)
            return &card->gpus[i];
    return NULL;
}

static const struct tpt_nic *nic_on_card(const struct tpt_card *card,
                                         const char *name)
{
    for (uint32_t i = 0; i < card->nic_count; i++)
        if (card->nics[i].kind == TPT_NIC_RDMA
            && strcmp(card->nics[i].name, name) == 0)
            return &card->nics[i];
    return NULL;
}

/* What topology has chosen, with the path to it; -1: nothing, or none that is
 * open to this rank. */
static int nic_solved(const struct gdr_channel *channel, uint32_t pci,
                      enum tpt_path *path)
{
    const struct tpt_card *card = channel->base.env->card;
    const struct tpt_card_gpu *gpu = nic_gpu(card, pci);

    if (gpu == NULL || gpu->nic == 0 || gpu->nic > card->nic_count)
        return -1;
    *path = (enum tpt_path)gpu->nic_path;
    for (int i = 0; i < channel->nic_count; i++)
        if (strcmp(channel->nics[i].nic.device, card->nics[gpu->nic - 1].name)
            == 0)
            return i;
    return -1;
}

int gdr_nic_for(const struct gdr_channel *channel, uint32_t pci,
                struct tpb_error *error)
{
    const struct tpt_card *card = channel->base.env->card;
    enum tpt_path most = gdr_nic_limit(
        channel->base.env->settings->text[TPB_SET_GDR_PATH]);
    enum tpt_path path = TPT_PATH_UNKNOWN, best_path = TPT_PATH_UNKNOWN;
    int best = nic_solved(channel, pci, &path);

    if (best >= 0 && nic_allows(most, path))
        return best;
    best = -1;
    /* The first of equals: it serves this rank best. */
    for (int i = 0; i < channel->nic_count; i++) {
        const char *name = channel->nics[i].nic.device;
        const struct tpt_nic *nic = nic_on_card(card, name);

        path = nic != NULL ? tpt_path_here("", pci, nic->pci)
                           : TPT_PATH_UNKNOWN;
        if (!nic_allows(most, path)) {
            tpb_fail(error, TP_ERR_NOT_SUPPORTED, "%s is too far away: %s, and"
                     " TP_GDR_PATH=%s", name, tpt_path_name(path),
                     tpt_path_name(most));
        } else if (best < 0 || path < best_path) {
            best = i;
            best_path = path;
        }
    }
    return best;
}
