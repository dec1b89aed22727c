/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which of this host's addresses an RDMA device carries, told by sysfs: to ask
 * libibverbs would take longer than all else that a rank does to start.
 *
 * A device's GIDs name its addresses.  RoCE has one for each address of its
 * interface; InfiniBand's is the end of the IPoIB interface's hardware
 * address; iWARP's is the hardware address.  Connections are made by IP
 * address in all three cases (librdmacm).
 */
#include "config.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"

#define RDMA_CM "/dev/infiniband/rdma_cm"

enum {
    RDMA_GID = 16,
    RDMA_HOLE = 16,                /* unused GIDs in a row that end a table */
    RDMA_TABLE = 1024,
    RDMA_HARDWARE = 20,            /* bytes of an IPoIB hardware address */
    RDMA_FAR_PERCENT = 90          /* as score.c has it */
};

const char *ofi_rdma_sysfs = "/sys";

/* The addresses that are looked for. */
struct rdma_search {
    const struct tpt_card *card;
    const struct ofi_where *list;
    int count;
    char interfaces[OFI_WHERES][64];
    uint8_t hardware[OFI_WHERES][RDMA_HARDWARE];
    size_t hardware_length[OFI_WHERES];
    int64_t value[OFI_WHERES];     /* of the best device; -1: none */
};

/* ---- sysfs ------------------------------------------------------------- */

static bool rdma_line(const char *path, char line[64])
{
    char *text = tpb_read_file(path, NULL);

    if (text == NULL)
        return false;
    snprintf(line, 64, "%.*s", (int)strcspn(text, "\n"), text);
    tpb_free(text);
    return true;
}

/* Bytes in hexadecimal, with or without colons; how many there are. */
static size_t rdma_bytes(const char *text, uint8_t *bytes, size_t capacity)
{
    size_t count = 0;
    unsigned value;

    while (count < capacity && sscanf(text, "%2x", &value) == 1) {
        bytes[count++] = (uint8_t)value;
        text += 2;
        text += *text == ':';
    }
    return count;
}

/* ---- addresses --------------------------------------------------------- */

static void rdma_hardware(struct rdma_search *search, int at)
{
    char path[PATH_MAX], line[64];

    snprintf(path, sizeof(path), "%s/class/net/%s/address", ofi_rdma_sysfs,
             search->interfaces[at]);
    if (rdma_line(path, line))
        search->hardware_length[at] = rdma_bytes(
            line, search->hardware[at], RDMA_HARDWARE);
}

/* Which interfaces have the addresses. */
static void rdma_interfaces(struct rdma_search *search)
{
    const struct tpb_interfaces *all = tpb_interfaces_hold();

    for (size_t i = 0; all != NULL && i < all->count; i++) {
        const struct tpb_interface *one = &all->list[i];

        for (int at = 0; at < search->count; at++)
            if (one->family == search->list[at].family
                && memcmp(one->address, search->list[at].address,
                          sizeof(one->address)) == 0
                && search->interfaces[at][0] == '\0') {
                snprintf(search->interfaces[at],
                         sizeof(search->interfaces[at]), "%s", one->name);
                rdma_hardware(search, at);
            }
    }
    tpb_interfaces_drop(all);
}

/* Does the GID stand for this address? */
static bool rdma_matches(const struct rdma_search *search, int at,
                         const uint8_t gid[RDMA_GID])
{
    static const uint8_t mapped[12] = {
        [10] = 0xff, [11] = 0xff
    };
    static const uint8_t zeros[RDMA_GID];
    const struct ofi_where *where = &search->list[at];
    const uint8_t *hardware = search->hardware[at];

    if (where->family == 4 && memcmp(gid, mapped, sizeof(mapped)) == 0)
        return memcmp(gid + sizeof(mapped), where->address, 4) == 0;
    if (where->family == 6 && memcmp(gid, where->address, RDMA_GID) == 0)
        return true;
    if (search->hardware_length[at] == RDMA_HARDWARE)
        return memcmp(gid, hardware + RDMA_HARDWARE - RDMA_GID, RDMA_GID) == 0;
    return search->hardware_length[at] == 6 && memcmp(gid, hardware, 6) == 0
           && memcmp(hardware, zeros, 6) != 0
           && memcmp(gid + 6, zeros, RDMA_GID - 6) == 0;
}

/* ---- devices ----------------------------------------------------------- */

/* What the device is worth to this rank: its speed, less if it is attached to
 * another NUMA node.  That of the rank's GPU comes first: the ranks of a host
 * share its devices so. */
static int64_t rdma_value(const struct tpt_card *card, const char *device)
{
    for (uint32_t i = 0; i < card->nic_count; i++) {
        const struct tpt_nic *nic = &card->nics[i];

        if (nic->kind == TPT_NIC_RDMA && strcmp(nic->name, device) == 0)
            return (int)i == tpt_card_nic(card) ? INT64_MAX
                   : (int64_t)nic->megabits
                   * (nic->numa >= 0 && card->place.numa >= 0
                              && nic->numa != card->place.numa
                          ? RDMA_FAR_PERCENT : 100);
    }
    return 0;
}

static void rdma_port(struct rdma_search *search, const char *port,
                      int64_t value)
{
    char path[PATH_MAX], line[64];
    int hole = 0;

    if (snprintf(path, sizeof(path), "%s/state", port) >= PATH_MAX
        || !rdma_line(path, line) || strstr(line, "ACTIVE") == NULL)
        return;
    for (int i = 0; i < RDMA_TABLE && hole < RDMA_HOLE; i++) {
        static const uint8_t zeros[RDMA_GID];
        uint8_t gid[RDMA_GID];

        hole++;
        if (snprintf(path, sizeof(path), "%s/gids/%d", port, i) >= PATH_MAX
            || !rdma_line(path, line)
            || rdma_bytes(line, gid, sizeof(gid)) != sizeof(gid)
            || memcmp(gid, zeros, sizeof(gid)) == 0)
            continue;
        hole = 0;
        for (int at = 0; at < search->count; at++)
            if (search->value[at] < value && rdma_matches(search, at, gid))
                search->value[at] = value;
    }
}

/* Every entry of a folder but those with a dot: how many there are. */
static int rdma_each(struct rdma_search *search, const char *folder,
                     void (*visit)(struct rdma_search *search,
                                   const char *path, int64_t value),
                     int64_t value)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    int count = 0;

    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char path[PATH_MAX];

        if (entry->d_name[0] == '.'
            || snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name)
                   >= PATH_MAX)
            continue;
        visit(search, path, value);
        count++;
    }
    if (directory != NULL)
        closedir(directory);
    return count;
}

static void rdma_device(struct rdma_search *search, const char *path,
                        int64_t value)
{
    char ports[PATH_MAX];

    (void)value;
    if (snprintf(ports, sizeof(ports), "%s/ports", path) < PATH_MAX)
        rdma_each(search, ports, rdma_port,
                  rdma_value(search->card, strrchr(path, '/') + 1));
}

/* The number of devices; their worth by address is in the search. */
static int rdma_search(struct rdma_search *search)
{
    char folder[PATH_MAX];

    for (int i = 0; i < OFI_WHERES; i++)
        search->value[i] = -1;
    rdma_interfaces(search);
    snprintf(folder, sizeof(folder), "%s/class/infiniband", ofi_rdma_sysfs);
    return rdma_each(search, folder, rdma_device, 0);
}

/* ---- for the others ---------------------------------------------------- */

int ofi_rdma_keep(const struct tpt_card *card, struct ofi_where *list,
                  int count)
{
    struct rdma_search search = { .card = card, .list = list,
                                  .count = count };
    struct ofi_where kept[OFI_WHERES];
    int64_t value[OFI_WHERES];
    int used = 0;

    if (count == 0 || rdma_search(&search) == 0)
        return 0;
    for (int i = 0; i < count; i++) {
        int at = used;

        if (search.value[i] < 0)
            continue;
        while (at > 0 && value[at - 1] < search.value[i]) {
            kept[at] = kept[at - 1];
            value[at] = value[at - 1];
            at--;
        }
        kept[at] = list[i];
        value[at] = search.value[i];
        used++;
    }
    memcpy(list, kept, sizeof(kept[0]) * (size_t)used);
    return used;
}

tp_status ofi_rdma_probe(const struct tpf_env *env, size_t locked,
                         struct tpb_error *error)
{
    const char *ifaces = env->settings->text[TPB_SET_IFACE];
    struct rlimit limit = { .rlim_cur = RLIM_INFINITY };
    struct ofi_where list[OFI_WHERES];

    if (access("/sys/class/infiniband", F_OK) < 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "no RDMA device (there is no /sys/class/infiniband)");
    if (access(RDMA_CM, R_OK | W_OK) < 0) {
        tpb_fail_errno(error, errno, "%s (of the kernel's rdma_ucm)",
                       RDMA_CM);
        return TP_ERR_NOT_SUPPORTED;
    }
    if (ofi_rdma_keep(env->card, list, ofi_where_list(ifaces, list)) == 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "no RDMA device with an active port and an IP "
                        "address%s%s", *ifaces != '\0' ? " that TP_IFACE "
                        "allows: " : "", ifaces);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY
        && limit.rlim_cur < locked)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "only %llu KiB of memory may be locked (ulimit -l); "
                        "one connection takes %zu",
                        (unsigned long long)limit.rlim_cur / 1024,
                        locked / 1024);
    return TP_OK;
}
