/* SPDX-License-Identifier: BSD-3-Clause */
/* Which GPUs there are, and who gets them. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "topology/gpus.h"
#include "topology/private.h"

enum { GPUS_NVIDIA = 0x10de, GPUS_DISPLAY = 0x03 };    /* vendor, class */

static struct tpt_gpu *gpus_add(struct tpt_gpus *gpus, const char *bus)
{
    struct tpt_gpu *gpu;

    if (gpus->count == TPT_GPUS || strlen(bus) >= sizeof(gpu->bus))
        return NULL;
    gpu = &gpus->list[gpus->count++];
    memset(gpu, 0, sizeof(*gpu));
    strcpy(gpu->bus, bus);
    gpu->minor = -1;
    return gpu;
}

/* ---- recorded ---------------------------------------------------------- */

static void gpus_recorded(hwloc_topology_t hwloc, struct tpt_gpus *gpus)
{
    hwloc_obj_t device = NULL;

    while ((device = hwloc_get_next_pcidev(hwloc, device)) != NULL) {
        const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
        hwloc_obj_t parent;
        struct tpt_gpu *gpu;
        char bus[32];

        if (pci->vendor_id != GPUS_NVIDIA
            || pci->class_id >> 8 != GPUS_DISPLAY)
            continue;
        snprintf(bus, sizeof(bus), "%04x:%02x:%02x.%x", pci->domain, pci->bus,
                 pci->dev, pci->func);
        gpu = gpus_add(gpus, bus);
        parent = hwloc_get_non_io_ancestor_obj(hwloc, device);
        if (gpu != NULL && parent != NULL)
            hwloc_bitmap_list_snprintf(gpu->near, sizeof(gpu->near),
                                       parent->cpuset);
    }
}

/* ---- this machine ------------------------------------------------------ */

/* The value of a line "NAME: value" of the driver's information. */
static void gpus_information(const char *text, const char *name, char *value,
                             size_t size)
{
    const char *line = strstr(text, name);

    *value = '\0';
    if (line == NULL)
        return;
    line += strlen(name);
    line += strspn(line, ": \t");
    snprintf(value, size, "%.*s", (int)strcspn(line, " \n"), line);
}

static void gpus_read(const char *root, const char *bus,
                      struct tpt_gpus *gpus)
{
    struct tpt_gpu *gpu = gpus_add(gpus, bus);
    char path[512], number[16], *text;

    if (gpu == NULL)
        return;
    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus/%s/information",
             root, bus);
    text = tpb_read_file(path, NULL);
    if (text != NULL) {
        gpus_information(text, "GPU UUID", gpu->uuid, sizeof(gpu->uuid));
        gpus_information(text, "Device Minor", number, sizeof(number));
        if (*number != '\0')
            gpu->minor = atoi(number);
    }
    tpb_free(text);
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/local_cpulist",
             root, bus);
    text = tpb_read_file(path, NULL);
    if (text != NULL)
        snprintf(gpu->near, sizeof(gpu->near), "%.*s",
                 (int)strcspn(text, "\n"), text);
    tpb_free(text);
}

static int gpus_compare(const void *a, const void *b)
{
    return strcmp(((const struct tpt_gpu *)a)->bus,
                  ((const struct tpt_gpu *)b)->bus);
}

static void gpus_machine(const char *root, struct tpt_gpus *gpus)
{
    struct dirent *entry;
    char path[256];
    DIR *folder;

    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus", root);
    folder = opendir(path);
    if (folder == NULL)
        return;
    while ((entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.')
            gpus_read(root, entry->d_name, gpus);
    closedir(folder);
}

/* Which may not be opened?  Whose file is missing is hidden only where others
 * are there: the driver's helper makes all of them when one is first needed. */
static void gpus_hide(const char *root, struct tpt_gpus *gpus)
{
    bool missing[TPT_GPUS] = { false }, any = false;

    for (int i = 0; i < gpus->count; i++) {
        struct tpt_gpu *gpu = &gpus->list[i];
        char path[256];

        if (gpu->minor < 0)
            continue;
        snprintf(path, sizeof(path), "%s/dev/nvidia%d", root, gpu->minor);
        if (access(path, R_OK | W_OK) == 0)
            any = true;
        else if (errno == ENOENT)
            missing[i] = true;
        else
            gpu->hidden = any = true;
    }
    for (int i = 0; i < gpus->count; i++)
        gpus->list[i].hidden |= any && missing[i];
}

/* ---- what CUDA_VISIBLE_DEVICES leaves ---------------------------------- */

char *tpt_gpus_word(char **list)
{
    char *word = strsep(list, ",");

    if (word == NULL)
        return NULL;
    word += strspn(word, " ");
    word[strcspn(word, " ")] = '\0';
    return *word != '\0' ? word : NULL;
}

int tpt_gpus_named(const struct tpt_gpus *gpus, const char *word)
{
    char *end;
    long index = strtol(word, &end, 10);

    if (end != word && *end == '\0')
        return index >= 0 && index < gpus->count ? (int)index : -1;
    for (int i = 0; i < gpus->count; i++)
        if (strncmp(word, "GPU-", 4) == 0 && strlen(word) > 4
            && strncmp(gpus->list[i].uuid, word, strlen(word)) == 0)
            return i;
    return -1;
}

static tp_status gpus_restrict(struct tpt_gpus *gpus, const char *visible,
                               struct tpb_error *error)
{
    bool keep[TPT_GPUS] = { false };
    char *copy = tpb_copy_string(visible), *rest = copy, *word;
    int unknown = 0, count = 0;

    if (copy == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    while ((word = tpt_gpus_word(&rest)) != NULL) {
        int index = tpt_gpus_named(gpus, word);

        if (index >= 0)
            keep[index] = true;
        else
            unknown++;
    }
    tpb_free(copy);
    if (unknown > 0)
        return tpb_fail(error, TP_ERR_INVALID,
                        "CUDA_VISIBLE_DEVICES=%s names something that is none "
                        "of the %d GPUs here; --gpus-per-rank needs numbers or "
                        "GPU-... "
                        "names", visible, gpus->count);
    for (int i = 0; i < gpus->count; i++)
        if (keep[i])
            gpus->list[count++] = gpus->list[i];
    gpus->count = count;
    return TP_OK;
}

void tpt_gpus_all(struct tpt_topology *topology, const char *root,
                  struct tpt_gpus *gpus)
{
    bool recorded = !topology->table->this_machine && *root == '\0';
    hwloc_topology_t hwloc = recorded ? tpt_topology_handle(topology) : NULL;

    gpus->count = 0;
    if (hwloc != NULL) {
        gpus_recorded(hwloc, gpus);
    } else if (!recorded) {
        gpus_machine(root, gpus);
        gpus_hide(root, gpus);
    }
    qsort(gpus->list, (size_t)gpus->count, sizeof(gpus->list[0]),
          gpus_compare);
}

void tpt_gpus_open(struct tpt_gpus *gpus)
{
    int count = 0;

    for (int i = 0; i < gpus->count; i++)
        if (!gpus->list[i].hidden)
            gpus->list[count++] = gpus->list[i];
    gpus->count = count;
}

tp_status tpt_gpus_find(struct tpt_topology *topology, const char *root,
                        const char *visible, struct tpt_gpus *gpus,
                        struct tpb_error *error)
{
    tpt_gpus_all(topology, root, gpus);
    tpt_gpus_open(gpus);
    /* Numbers count in this order because the ranks get
     * CUDA_DEVICE_ORDER=PCI_BUS_ID. */
    for (int i = 0; i < gpus->count; i++)
        snprintf(gpus->list[i].visible, sizeof(gpus->list[i].visible), "%d",
                 i);
    return visible != NULL ? gpus_restrict(gpus, visible, error) : TP_OK;
}

/* The first free GPU whose neighbourhood has as many as are wanted, else the
 * first free one. */
static int gpus_first(const struct tpt_gpus *gpus, const int *owner, int want)
{
    int first = -1;

    for (int g = 0; g < gpus->count; g++) {
        int near = 0;

        if (owner[g] >= 0)
            continue;
        if (first < 0)
            first = g;
        for (int i = g; i < gpus->count; i++)
            near += owner[i] < 0
                    && strcmp(gpus->list[i].near, gpus->list[g].near) == 0;
        if (near >= want)
            return g;
    }
    return first;
}

/* The next free GPU, the first near to `like` if there is one. */
static int gpus_next(const struct tpt_gpus *gpus, const int *owner,
                     const struct tpt_gpu *like)
{
    int first = -1;

    for (int g = 0; g < gpus->count; g++) {
        if (owner[g] >= 0)
            continue;
        if (strcmp(like->near, gpus->list[g].near) == 0)
            return g;
        if (first < 0)
            first = g;
    }
    return first;
}

tp_status tpt_gpus_assign(const struct tpt_gpus *gpus, const int *want,
                          int ranks, int owner[TPT_GPUS],
                          struct tpb_error *error)
{
    long needed = 0;

    for (int i = 0; i < ranks; i++)
        needed += want[i];
    if (needed > 0 && gpus->count == 0)
        return tpb_fail(error, TP_ERR_INVALID,
                        "--gpus-per-rank: there is no GPU here that the "
                        "NVIDIA driver knows (nvidia-smi) and this process "
                        "may open (/dev/nvidia*), or CUDA_VISIBLE_DEVICES "
                        "leaves none");
    if (needed > gpus->count)
        return tpb_fail(error, TP_ERR_INVALID,
                        "--gpus-per-rank: the ranks need %ld GPUs, there %s "
                        "%d; start fewer ranks, or let them share with "
                        "-x CUDA_VISIBLE_DEVICES=...", needed,
                        gpus->count == 1 ? "is" : "are", gpus->count);
    for (int g = 0; g < TPT_GPUS; g++)
        owner[g] = -1;
    for (int i = 0; i < ranks; i++) {
        const struct tpt_gpu *like = NULL;

        for (int n = 0; n < want[i]; n++) {
            int g = like == NULL ? gpus_first(gpus, owner, want[i])
                    : gpus_next(gpus, owner, like);

            owner[g] = i;
            if (like == NULL)
                like = &gpus->list[g];
        }
    }
    return TP_OK;
}
