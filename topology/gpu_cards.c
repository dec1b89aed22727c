/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The GPUs that a rank sees, onto its card.  All that is told here the kernel
 * tells, or the recorded topology: no driver's library is loaded.
 */
#include "config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "topology/devices.h"
#include "topology/gpus.h"
#include "topology/private.h"

/* It does not include what it needs. */
#include <hwloc/distances.h>

enum { GPU_LINK = 25000 };         /* MB/s of one NVLink, to count them by */

/* "GPU-5c5ba1b8-..." as 16 bytes; all zero if it is no such thing. */
static void gpu_uuid(const char *text, uint8_t uuid[16])
{
    uint8_t bytes[16] = { 0 };
    unsigned digits = 0;

    if (strncmp(text, "GPU-", 4) != 0)
        return;
    for (text += 4; *text != '\0' && digits < 32; text++) {
        char digit[2] = { *text, '\0' };
        char *end;
        unsigned long value = strtoul(digit, &end, 16);

        if (*text == '-')
            continue;
        if (*end != '\0')
            return;
        bytes[digits / 2] |= (uint8_t)(value << (digits % 2 == 0 ? 4 : 0));
        digits++;
    }
    if (digits == 32)
        memcpy(uuid, bytes, sizeof(bytes));
}

/* ---- recorded ---------------------------------------------------------- */

static hwloc_obj_t gpu_recorded(const struct tpt_topology *topology,
                                uint32_t pci)
{
    hwloc_obj_t device = NULL;

    while ((device = hwloc_get_next_pcidev(topology->hwloc, device)) != NULL) {
        const struct hwloc_pcidev_attr_s *attr = &device->attr->pcidev;

        if (tpt_pci_number(attr->domain, attr->bus, attr->dev, attr->func)
            == pci)
            break;
    }
    return device;
}

static struct tpt_card_gpu *gpu_of(struct tpt_card_gpu *gpus, uint32_t count,
                                   hwloc_obj_t object)
{
    const struct hwloc_pcidev_attr_s *attr;

    while (object != NULL && object->type != HWLOC_OBJ_PCI_DEVICE)
        object = object->parent;
    if (object == NULL)
        return NULL;
    attr = &object->attr->pcidev;
    for (uint32_t i = 0; i < count; i++)
        if (gpus[i].place.pci == tpt_pci_number(attr->domain, attr->bus,
                                                attr->dev, attr->func))
            return &gpus[i];
    return NULL;
}

/* Named by hwloc, which finds it at the other end of a GPU's link. */
static bool gpu_is_switch(hwloc_obj_t object)
{
    return object != NULL && object->subtype != NULL
           && strcmp(object->subtype, "NVSwitch") == 0;
}

/* `to` is NULL for links to switches. */
static void gpu_link(struct tpt_card_gpu *from, const struct tpt_card_gpu *to,
                     uint64_t megabytes)
{
    uint64_t count = megabytes / GPU_LINK;

    if (megabytes == 0)
        return;
    if (count == 0)
        count = 1;
    if (count > UINT8_MAX)
        count = UINT8_MAX;
    from->link_megabytes = (uint32_t)(megabytes / count);
    if (to != NULL && from->link_count < TPT_GPU_LINKS)
        from->links[from->link_count++] = (struct tpt_gpu_link) {
            to->place.pci, (uint32_t)count
        };
    else                           /* so many are joined by switches only */
        from->switched = (uint8_t)count;
}

/* A row of the matrix, which has GPUs, switches, and on POWER packages. */
static void gpu_recorded_row(const struct hwloc_distances_s *matrix,
                             unsigned row, struct tpt_card_gpu *gpus,
                             uint32_t count)
{
    struct tpt_card_gpu *from = gpu_of(gpus, count, matrix->objs[row]);
    uint64_t switched = 0;

    if (from == NULL)
        return;
    for (unsigned i = 0; i < matrix->nbobjs; i++) {
        uint64_t megabytes = matrix->values[row * matrix->nbobjs + i];
        struct tpt_card_gpu *to = gpu_of(gpus, count, matrix->objs[i]);

        if (to != NULL && to != from)
            gpu_link(from, to, megabytes);
        else if (gpu_is_switch(matrix->objs[i]))
            switched += megabytes;
    }
    gpu_link(from, NULL, switched);
    from->asked = TPT_LINKS_RECORDED;
}

/* What hwloc asked the driver's library for when the machine was recorded. */
static void gpu_recorded_links(const struct tpt_topology *topology,
                               struct tpt_card_gpu *gpus, uint32_t count)
{
    struct hwloc_distances_s *matrix;
    unsigned found = 1;

    if (hwloc_distances_get_by_name(topology->hwloc, "NVLinkBandwidth", &found,
                                    &matrix, 0) != 0 || found == 0)
        return;
    for (unsigned i = 0; i < matrix->nbobjs; i++)
        gpu_recorded_row(matrix, i, gpus, count);
    hwloc_distances_release(topology->hwloc, matrix);
}

/* ---- one ---------------------------------------------------------------- */

static bool gpu_is_recorded(const struct tpt_topology *topology,
                            const char *root)
{
    return !topology->table->this_machine && *root == '\0'
           && topology->hwloc != NULL;
}

static void gpu_place(const struct tpt_topology *topology, const char *root,
                      uint32_t pci, struct tpt_pci_place *place,
                      uint32_t *megabytes)
{
    hwloc_obj_t device;

    *place = (struct tpt_pci_place) { .pci = pci, .numa = -1 };
    if (!gpu_is_recorded(topology, root)) {
        tpt_pci_machine(topology, root, pci, place);
        *megabytes = tpt_pci_megabytes(root, pci);
        return;
    }
    device = gpu_recorded(topology, pci);
    if (device == NULL)
        return;
    tpt_pci_recorded(topology, device, place);
    *megabytes = device->attr->pcidev.linkspeed > 0
                 ? (uint32_t)(device->attr->pcidev.linkspeed * 1000) : 0;
}

/* ---- which NIC ---------------------------------------------------------- */

static void gpu_nics(const struct tpt_topology *topology, const char *root,
                     const struct tpt_card *card, struct tpt_card_gpu *gpus,
                     uint32_t count)
{
    struct tpt_pci_place places[TPT_GPUS];
    struct tpt_affinity_nic nics[TPT_NICS];
    uint8_t index[TPT_NICS], nic_of[TPT_GPUS];
    uint32_t nic_count = 0, ignored;

    for (uint32_t i = 0; i < card->nic_count; i++)
        if (card->nics[i].kind == TPT_NIC_RDMA && card->nics[i].pci != 0) {
            index[nic_count] = (uint8_t)i;
            nics[nic_count].megabits = card->nics[i].megabits;
            gpu_place(topology, root, card->nics[i].pci,
                      &nics[nic_count++].place, &ignored);
        }
    for (uint32_t i = 0; i < count; i++)
        places[i] = gpus[i].place;
    tpt_affinity_solve(places, count, nics, nic_count, nic_of);
    for (uint32_t i = 0; i < count; i++) {
        if (nic_of[i] == 0)
            continue;
        gpus[i].nic = (uint8_t)(1 + index[nic_of[i] - 1]);
        gpus[i].nic_path = (uint8_t)tpt_path_pci(&places[i],
                                                 &nics[nic_of[i] - 1].place);
    }
}

/* ---- which are seen ----------------------------------------------------- */

/* As CUDA does it: the first word that means nothing ends the list. */
static void gpu_restrict(const struct tpt_gpus *there, const char *visible,
                         const struct tpt_card_gpu *gpus,
                         struct tpt_card *card)
{
    char *copy = tpb_copy_string(visible), *rest = copy, *word;

    while (card->gpu_count < TPT_CARD_GPUS
           && (word = tpt_gpus_word(&rest)) != NULL) {
        int index = tpt_gpus_named(there, word);

        if (index < 0)
            break;
        card->gpus[card->gpu_count++] = gpus[index];
    }
    tpb_free(copy);
}

/* What is hidden from this process is not on its card, and has no number. */
static uint32_t gpu_open(struct tpt_gpus *there, struct tpt_card_gpu *gpus)
{
    uint32_t count = 0;

    for (int i = 0; i < there->count; i++)
        if (!there->list[i].hidden)
            gpus[count++] = gpus[i];
    tpt_gpus_open(there);
    return count;
}

/* Does a daemon of CUDA's multi-process service run here?  Then all processes
 * that use a GPU use it by that. */
static bool gpu_mps(const struct tpt_topology *topology, const char *root)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];

    if (gpu_is_recorded(topology, root))
        return false;
    snprintf(path, sizeof(path), "%s/control",
             folder != NULL ? folder : "/tmp/nvidia-mps");
    return access(path, F_OK) == 0;
}

static void gpu_all(const struct tpt_topology *topology, const char *root,
                    struct tpt_gpus *there, const char *visible,
                    struct tpt_card *card)
{
    uint32_t count = (uint32_t)there->count;
    struct tpt_card_gpu *gpus = tpb_zalloc(count * sizeof(gpus[0]));
    bool mps = gpu_mps(topology, root);

    if (gpus == NULL)
        return;
    for (uint32_t i = 0; i < count; i++) {
        gpu_place(topology, root, tpt_pci_parse(there->list[i].bus),
                  &gpus[i].place, &gpus[i].megabytes);
        gpu_uuid(there->list[i].uuid, gpus[i].uuid);
        gpus[i].mps = mps;
    }
    gpu_nics(topology, root, card, gpus, count);
    if (gpu_is_recorded(topology, root))
        gpu_recorded_links(topology, gpus, count);
    count = gpu_open(there, gpus);
    if (visible != NULL) {
        gpu_restrict(there, visible, gpus, card);
    } else {
        card->gpu_count = count < TPT_CARD_GPUS ? count : TPT_CARD_GPUS;
        memcpy(card->gpus, gpus, card->gpu_count * sizeof(gpus[0]));
    }
    tpb_free(gpus);
}

int tpt_topology_gpus(struct tpt_topology *topology, const char *root,
                      const char *visible, struct tpt_card *card)
{
    struct tpt_gpus *there = tpb_zalloc(sizeof(*there));
    int count = 0;

    card->gpu_count = 0;
    memset(card->gpus, 0, sizeof(card->gpus));
    /* A recorded one is needed whole. */
    if (!topology->table->this_machine && *root == '\0')
        (void)tpt_topology_handle(topology);
    if (there != NULL) {
        tpt_gpus_all(topology, root, there);
        count = there->count;
    }
    if (count > 0)
        gpu_all(topology, root, there, visible, card);
    tpb_free(there);
    return count;
}
