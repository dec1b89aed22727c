/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Network devices.  On this machine they come from sysfs directly: hwloc would
 * read every PCI device's configuration for it, which takes some milliseconds
 * each on a virtual machine.  Of a recorded machine hwloc's XML holds them.
 */
#include "config.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "topology/private.h"

enum {
    NICS_SEEN = 128,               /* before the fastest are chosen */
    NICS_OTHERS = 4                /* interfaces that devices leave a place */
};

struct nics {
    uint32_t count;
    struct tpt_nic list[NICS_SEEN];
};

static int nics_compare(const void *a, const void *b)
{
    const struct tpt_nic *x = a, *y = b;

    if (x->megabits != y->megabits)
        return x->megabits > y->megabits ? -1 : 1;
    return strcmp(x->name, y->name);
}

static bool nics_is_real(const struct tpt_nic *nic)
{
    return nic->kind == TPT_NIC_RDMA || nic->pci != 0;
}

/* Those of a bus before made-up ones, whatever speed these claim. */
static int nics_compare_kept(const struct tpt_nic *x, const struct tpt_nic *y)
{
    if (nics_is_real(x) != nics_is_real(y))
        return nics_is_real(x) ? -1 : 1;
    return nics_compare(x, y);
}

/* A host of many containers has hundreds of interfaces, in no order: the last
 * ones give way. */
static void nics_add(struct nics *nics, const struct tpt_nic *nic)
{
    struct tpt_nic *last = &nics->list[0];

    if (nics->count < NICS_SEEN) {
        nics->list[nics->count++] = *nic;
        return;
    }
    for (uint32_t i = 1; i < nics->count; i++)
        if (nics_compare_kept(&nics->list[i], last) > 0)
            last = &nics->list[i];
    if (nics_compare_kept(nic, last) < 0)
        *last = *nic;
}

/* ---- recorded ---------------------------------------------------------- */

/* What somebody wrote into the XML. */
static uint32_t nics_recorded_speed(hwloc_obj_t device)
{
    const char *text = hwloc_obj_get_info_by_name(device, "tp:megabits");
    long megabits = text != NULL ? strtol(text, NULL, 10) : 0;

    return megabits > 0 && megabits < INT32_MAX ? (uint32_t)megabits : 0;
}

/* The NUMA node that the device hangs on; -1 if there are several. */
static int32_t nics_recorded_numa(const struct tpt_topology *topology,
                                  hwloc_obj_t device)
{
    hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(topology->hwloc,
                                                       device);

    return parent == NULL ? -1
           : tpt_table_numa_around(topology->table, parent->cpuset);
}

static uint32_t nics_recorded_pci(hwloc_obj_t device)
{
    const struct hwloc_pcidev_attr_s *pci;

    if (device->parent == NULL || device->parent->type != HWLOC_OBJ_PCI_DEVICE)
        return 0;
    pci = &device->parent->attr->pcidev;
    return tpt_pci_number(pci->domain, pci->bus, pci->dev, pci->func);
}

/* From hwloc 3 on a device may be of several kinds. */
static bool nics_recorded_is(hwloc_obj_t device,
                             enum hwloc_obj_osdev_type_e kind)
{
#if HWLOC_API_VERSION >= 0x00030000
    return (device->attr->osdev.types & kind) != 0;
#else
    return device->attr->osdev.type == kind;
#endif
}

static void nics_recorded(const struct tpt_topology *topology,
                          struct nics *nics)
{
    hwloc_obj_t device = NULL;

    while ((device = hwloc_get_next_osdev(topology->hwloc, device)) != NULL) {
        bool rdma = nics_recorded_is(device, HWLOC_OBJ_OSDEV_OPENFABRICS);
        struct tpt_nic nic = { .kind = rdma ? TPT_NIC_RDMA : TPT_NIC_IP };

        if ((!rdma && !nics_recorded_is(device, HWLOC_OBJ_OSDEV_NETWORK))
            || device->name == NULL)
            continue;
        snprintf(nic.name, sizeof(nic.name), "%s", device->name);
        nic.numa = nics_recorded_numa(topology, device);
        nic.pci = nics_recorded_pci(device);
        nic.megabits = nics_recorded_speed(device);
        nics_add(nics, &nic);
    }
}

/* ---- this machine ------------------------------------------------------ */

/* One device in sysfs. */
struct nics_device {
    const struct tpt_table *table;
    const char *name;
    char path[PATH_MAX];           /* ROOT/class/CLASS/NAME */
};

static void nics_path(const struct nics_device *device, const char *file,
                      char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/%s", device->path, file) >= PATH_MAX)
        path[0] = '\0';
}

static bool nics_has(const struct nics_device *device, const char *file)
{
    char path[PATH_MAX];

    nics_path(device, file, path);
    return access(path, F_OK) == 0;
}

/* The first line of a file of the device; false if it cannot be read. */
static bool nics_line(const struct nics_device *device, const char *file,
                      char line[64])
{
    char path[PATH_MAX], *text;

    nics_path(device, file, path);
    text = tpb_read_file(path, NULL);
    if (text == NULL)
        return false;
    snprintf(line, 64, "%.*s", (int)strcspn(text, "\n"), text);
    tpb_free(text);
    return true;
}

/* Mb/s; -1 and errors stand for a link that is down or virtual. */
static uint32_t nics_ip_speed(const struct nics_device *device)
{
    char line[64];
    long megabits;

    if (!nics_line(device, "speed", line))
        return 0;
    megabits = strtol(line, NULL, 10);
    return megabits > 0 && megabits < INT32_MAX ? (uint32_t)megabits : 0;
}

/* "200 Gb/sec (4X HDR)"; a port that is not active shows its slowest rate. */
static uint32_t nics_rdma_speed(const struct nics_device *device)
{
    char line[64];

    if (!nics_line(device, "ports/1/state", line)
        || strstr(line, "ACTIVE") == NULL
        || !nics_line(device, "ports/1/rate", line))
        return 0;
    return tpt_thousandths(line);
}

/*
 * Place and address stand somewhere above the device: a virtio interface's
 * device is virtio2, whose parent is the PCI device.  On a machine of one NUMA
 * node the kernel does not name it; a name that means nothing here is that of a
 * node that this process may not use.
 */
static void nics_locate(const struct nics_device *device, struct tpt_nic *nic)
{
    struct nics_device above = *device;
    char line[64], link[PATH_MAX], *slash;
    bool named = false;

    nic->numa = -1;
    nics_path(device, "device", link);
    if (realpath(link, above.path) == NULL)
        return;
    while (nic->pci == 0 && (slash = strrchr(above.path, '/')) != NULL) {
        nic->pci = tpt_pci_parse(slash + 1);
        if (nic->numa < 0 && nics_line(&above, "numa_node", line)
            && line[0] != '-') {
            named = true;
            nic->numa = tpt_table_numa(device->table,
                                       (unsigned)strtoul(line, NULL, 10));
        }
        *slash = '\0';
    }
    if (!named && device->table->numas == 1)
        nic->numa = 0;
}

/* Hardware, or an interface with traffic of its own that is up: no loopback,
 * no bridge, nothing that belongs to a bridge or bond. */
static bool nics_counts(const struct nics_device *device)
{
    char line[64];

    if (nics_has(device, "device"))
        return true;
    return strcmp(device->name, "lo") != 0
           && nics_line(device, "operstate", line) && strcmp(line, "up") == 0
           && !nics_has(device, "bridge") && !nics_has(device, "master");
}

static void nics_class(const struct tpt_table *table, const char *root,
                       enum tpt_nic_kind kind, struct nics *nics)
{
    const char *class = kind == TPT_NIC_RDMA ? "infiniband" : "net";
    struct nics_device device = { .table = table };
    char path[PATH_MAX];
    struct dirent *entry;
    DIR *directory;

    snprintf(path, sizeof(path), "%s/class/%s", root, class);
    directory = opendir(path);
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        struct tpt_nic nic = { .kind = (uint8_t)kind };

        device.name = entry->d_name;
        if (entry->d_name[0] == '.'
            || strlen(entry->d_name) >= sizeof(nic.name)
            || snprintf(device.path, sizeof(device.path), "%s/class/%s/%s",
                        root, class, entry->d_name) >= PATH_MAX
            || !nics_counts(&device))
            continue;
        memcpy(nic.name, entry->d_name, strlen(entry->d_name));
        nics_locate(&device, &nic);
        nic.megabits = kind == TPT_NIC_RDMA ? nics_rdma_speed(&device)
                       : nics_ip_speed(&device);
        nics_add(nics, &nic);
    }
    if (directory != NULL)
        closedir(directory);
}

/* ---- both -------------------------------------------------------------- */

static int nics_compare_bus(const void *a, const void *b)
{
    const struct tpt_nic *x = a, *y = b;

    if (x->megabits == y->megabits && x->pci != y->pci)
        return x->pci < y->pci ? -1 : 1;
    return nics_compare(x, y);
}

/* Of the sorted ones of that kind, as many as there is room for; of equally
 * fast ones that are too many, some from everywhere on the bus. */
static uint32_t nics_keep(const struct nics *seen, bool rdma, uint32_t room,
                          struct tpt_nic *kept)
{
    const struct tpt_nic *list[NICS_SEEN];
    uint32_t count = 0, used = 0, end;

    for (uint32_t i = 0; i < seen->count; i++)
        if ((seen->list[i].kind == TPT_NIC_RDMA) == rdma)
            list[count++] = &seen->list[i];
    for (uint32_t start = 0; start < count && used < room; start = end) {
        uint32_t left = room - used, take;

        end = start;
        while (end < count && list[end]->megabits == list[start]->megabits)
            end++;
        take = end - start < left ? end - start : left;
        for (uint32_t i = 0; i < take; i++)
            kept[used++] = *list[start + i * (end - start) / take];
    }
    return used;
}

/*
 * The fastest that the card has room for.  Each RDMA device may have an
 * interface as well, so those leave the devices all places but a few: each GPU
 * wants the device that is near to it, and of the interfaces no more are used.
 */
static uint32_t nics_choose(struct nics *seen, struct tpt_nic nics[TPT_NICS])
{
    uint32_t devices = 0, others, count;

    for (uint32_t i = 0; i < seen->count; i++)
        devices += seen->list[i].kind == TPT_NIC_RDMA;
    others = seen->count - devices < NICS_OTHERS ? seen->count - devices
                                                 : NICS_OTHERS;
    if (devices > TPT_NICS - others)
        devices = TPT_NICS - others;
    qsort(seen->list, seen->count, sizeof(seen->list[0]), nics_compare_bus);
    count = nics_keep(seen, true, devices, nics);
    count += nics_keep(seen, false, TPT_NICS - devices, nics + count);
    qsort(nics, count, sizeof(nics[0]), nics_compare);
    return count;
}

uint32_t tpt_topology_nics_at(struct tpt_topology *topology, const char *root,
                              struct tpt_nic nics[TPT_NICS])
{
    struct nics seen = { 0 };

    nics_class(topology->table, root, TPT_NIC_RDMA, &seen);
    nics_class(topology->table, root, TPT_NIC_IP, &seen);
    return nics_choose(&seen, nics);
}

uint32_t tpt_topology_nics(struct tpt_topology *topology,
                           struct tpt_nic nics[TPT_NICS])
{
    struct nics seen = { 0 };

    if (topology->network != NULL)
        return tpt_network_nics(topology->network, nics);
    if (topology->table->this_machine)
        return tpt_topology_nics_at(topology, "/sys", nics);
    if (tpt_topology_handle(topology) != NULL)
        nics_recorded(topology, &seen);
    return nics_choose(&seen, nics);
}
