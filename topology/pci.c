/* SPDX-License-Identifier: BSD-3-Clause */
/* Where PCI devices hang: from hwloc's tree of a recorded machine, and from
 * the paths of sysfs on this one. */
#include "config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "topology/devices.h"
#include "topology/private.h"

uint32_t tpt_pci_number(unsigned domain, unsigned bus, unsigned device,
                        unsigned function)
{
    return domain << 16 | (bus & 0xff) << 8 | (device & 0x1f) << 3
           | (function & 7);
}

uint32_t tpt_pci_parse(const char *text)
{
    unsigned domain, bus, device, function;
    int used = 0;

    if (sscanf(text, "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &used)
        != 4 || text[used] != '\0')
        return 0;
    return tpt_pci_number(domain, bus, device, function);
}

/* ---- recorded ---------------------------------------------------------- */

static uint32_t pci_bridge(hwloc_obj_t bridge)
{
    const union hwloc_obj_attr_u *attr = bridge->attr;

    if (attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
        return tpt_pci_number(attr->bridge.downstream.pci.domain,
                              attr->bridge.downstream.pci.secondary_bus, 0, 0);
    return tpt_pci_number(attr->bridge.upstream.pci.domain,
                          attr->bridge.upstream.pci.bus,
                          attr->bridge.upstream.pci.dev,
                          attr->bridge.upstream.pci.func);
}

void tpt_pci_recorded(const struct tpt_topology *topology, hwloc_obj_t device,
                      struct tpt_pci_place *place)
{
    const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
    hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(topology->hwloc,
                                                       device);
    unsigned above = 0;

    *place = (struct tpt_pci_place) {
        .pci = tpt_pci_number(pci->domain, pci->bus, pci->dev, pci->func),
        .numa = -1
    };
    if (parent != NULL)
        place->numa = tpt_table_numa_around(topology->table, parent->cpuset);
    for (hwloc_obj_t bridge = device->parent;
         bridge != NULL && bridge->type == HWLOC_OBJ_BRIDGE;
         bridge = bridge->parent)
        above++;
    place->depth = above < TPT_PCI_DEPTH ? above : TPT_PCI_DEPTH;
    for (hwloc_obj_t bridge = device->parent; above > 0;
         bridge = bridge->parent)
        if (--above < TPT_PCI_DEPTH)
            place->path[above] = pci_bridge(bridge);
}

/* ---- this machine ------------------------------------------------------ */

/* The first line of a file of the device; false if it cannot be read. */
static bool pci_line(const char *root, uint32_t pci, const char *file,
                     char line[64])
{
    char path[PATH_MAX], bus[TPT_PCI_TEXT], *text;

    tpt_pci_text(pci, bus);
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/%s", root, bus,
             file);
    text = tpb_read_file(path, NULL);
    if (text == NULL)
        return false;
    snprintf(line, 64, "%.*s", (int)strcspn(text, "\n"), text);
    tpb_free(text);
    return true;
}

/* The bridges stand in the path of the device: .../pci0000:15/0000:15:01.0/
 * 0000:16:00.0. */
static void pci_path(const char *root, struct tpt_pci_place *place)
{
    char path[PATH_MAX], found[PATH_MAX], bus[TPT_PCI_TEXT], *save, *word;
    unsigned domain, host;

    tpt_pci_text(place->pci, bus);
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s", root, bus);
    if (realpath(path, found) == NULL)
        return;
    for (word = strtok_r(found, "/", &save); word != NULL;
         word = strtok_r(NULL, "/", &save)) {
        uint32_t number = tpt_pci_parse(word);

        if (sscanf(word, "pci%x:%x", &domain, &host) == 2)
            number = tpt_pci_number(domain, host, 0, 0);
        else if (number == 0 || place->depth == 0)
            continue;
        if (strcmp(word, bus) != 0 && place->depth < TPT_PCI_DEPTH)
            place->path[place->depth++] = number;
    }
}

void tpt_pci_machine(const struct tpt_topology *topology, const char *root,
                     uint32_t pci, struct tpt_pci_place *place)
{
    char line[64];

    *place = (struct tpt_pci_place) { .pci = pci, .numa = -1 };
    if (pci_line(root, pci, "numa_node", line) && line[0] != '-')
        place->numa = tpt_table_numa(topology->table,
                                     (unsigned)strtoul(line, NULL, 10));
    else if (topology->table->numas == 1)
        place->numa = 0;           /* see nics_locate() */
    pci_path(root, place);
}

/* A place without the table of the machine: its NUMA node by the kernel's
 * number. */
static void pci_here(const char *root, uint32_t pci,
                     struct tpt_pci_place *place)
{
    char line[64];

    *place = (struct tpt_pci_place) { .pci = pci, .numa = -1 };
    if (pci_line(root, pci, "numa_node", line))
        place->numa = (int32_t)strtol(line, NULL, 10);
    pci_path(root, place);
}

enum tpt_path tpt_path_here(const char *root, uint32_t a, uint32_t b)
{
    struct tpt_pci_place x, y;
    enum tpt_path path;

    if (a == 0 || b == 0)
        return TPT_PATH_UNKNOWN;
    pci_here(root, a, &x);
    pci_here(root, b, &y);
    path = tpt_path_pci(&x, &y);
    /* Bridges that are known and not shared; a machine of one node names
     * none. */
    return path == TPT_PATH_UNKNOWN && x.depth > 0 && y.depth > 0
           ? TPT_PATH_NODE : path;
}

uint32_t tpt_thousandths(const char *text)
{
    uint64_t value = 0;
    int digits = -1;               /* behind the point; -1: before it */

    for (; digits < 3 && value < UINT32_MAX; text++) {
        if (digits < 0 && *text == '.')
            digits = 0;
        else if (*text < '0' || *text > '9')
            break;
        else {
            value = value * 10 + (uint64_t)(*text - '0');
            digits += digits >= 0;
        }
    }
    for (int i = digits > 0 ? digits : 0; i < 3; i++)
        value *= 10;
    return value < UINT64_C(1000000000) ? (uint32_t)value : 0;
}

/* Generations 1 and 2 send 10 bits for 8, later ones 130 for 128.  The most
 * that it can: an idle GPU shows less. */
uint32_t tpt_pci_megabytes(const char *root, uint32_t pci)
{
    char speed[64], width[64];
    double gigas;
    long lanes;

    if (!pci_line(root, pci, "max_link_speed", speed)
        || !pci_line(root, pci, "max_link_width", width))
        return 0;
    gigas = tpt_thousandths(speed) / 1000.0;
    lanes = strtol(width, NULL, 10);
    if (gigas <= 0 || gigas > 1000 || lanes <= 0 || lanes > 64)
        return 0;
    return (uint32_t)(gigas * 1000 * (double)lanes / 8
                      * (gigas < 8 ? 0.8 : 128.0 / 130));
}
