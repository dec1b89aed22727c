/* SPDX-License-Identifier: BSD-3-Clause */
/* How far a NIC is from a device on the PCI buses. */
#include "config.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/cuda_gdr/gdr.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum { PATH_DEEP = 32 };               /* devices one behind the other */

static const char *const path_names[] = { "PIX", "PXB", "PHB", "SYS" };

const char *gdr_path_name(enum gdr_path path)
{
    return path < GDR_PATHS ? path_names[path] : "unknown";
}

enum gdr_path gdr_path_named(const char *name)
{
    for (int i = 0; i < GDR_PATHS; i++)
        if (strcasecmp(name, path_names[i]) == 0)
            return (enum gdr_path)i;
    return GDR_PXB;
}

/* The parts from "pci0000:00" on; their number, 0 if it has no such part. */
static int path_split(const char *path, const char *parts[PATH_DEEP],
                      size_t lengths[PATH_DEEP])
{
    int count = 0;

    while (*path != '\0' && count < PATH_DEEP) {
        size_t length = strcspn(path, "/");

        if (length > 0 && (count > 0 || strncmp(path, "pci", 3) == 0)) {
            parts[count] = path;
            lengths[count++] = length;
        }
        path += length + (path[length] == '/');
    }
    return count;
}

enum gdr_path gdr_path_between(const char *gpu, int gpu_numa, const char *nic,
                               int nic_numa)
{
    const char *a[PATH_DEEP], *b[PATH_DEEP];
    size_t a_length[PATH_DEEP], b_length[PATH_DEEP];
    int a_count = path_split(gpu, a, a_length);
    int b_count = path_split(nic, b, b_length);
    int shared = 0, a_bridges, b_bridges;

    if (a_count < 2 || b_count < 2)
        return GDR_PATHS;
    while (shared < a_count - 1 && shared < b_count - 1
           && a_length[shared] == b_length[shared]
           && memcmp(a[shared], b[shared], a_length[shared]) == 0)
        shared++;
    a_bridges = a_count - 1 - shared;
    b_bridges = b_count - 1 - shared;
    if (shared >= 2)
        return a_bridges <= 1 && b_bridges <= 1 ? GDR_PIX : GDR_PXB;
    if (shared == 1)
        return GDR_PHB;
    return gpu_numa >= 0 && gpu_numa == nic_numa ? GDR_PHB : GDR_SYS;
}

/* Where a link in sysfs leads, and the NUMA node there. */
static bool path_look(const char *link, char path[PATH_MAX], int *numa)
{
    char file[PATH_MAX];
    char *text = NULL;

    *numa = -1;
    if (realpath(link, path) == NULL)
        return false;
    if (snprintf(file, sizeof(file), "%s/numa_node", path)
        < (int)sizeof(file))
        text = tpb_read_file(file, NULL);
    if (text != NULL)
        *numa = atoi(text);
    tpb_free(text);
    return true;
}

enum gdr_path gdr_path_of(const char *bus_id, const char *rdma)
{
    char link[PATH_MAX], gpu[PATH_MAX], nic[PATH_MAX], id[32];
    int gpu_numa, nic_numa;

    snprintf(id, sizeof(id), "%s", bus_id);
    for (char *c = id; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);     /* CUDA has capitals */
    snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s", id);
    if (!path_look(link, gpu, &gpu_numa))
        return GDR_PATHS;
    snprintf(link, sizeof(link), "/sys/class/infiniband/%s/device", rdma);
    if (!path_look(link, nic, &nic_numa))
        return GDR_PATHS;
    return gdr_path_between(gpu, gpu_numa, nic, nic_numa);
}
