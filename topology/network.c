/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What tprun finds out of the network for its ranks: NICs and addresses.  The
 * kernel tells them under one lock for all, on which ranks that start together
 * would queue.  It stands behind the table in the shared topology, and counts
 * for seconds only, and only where a rank sees the same network and the same
 * files as tprun.
 */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/base/interfaces.h"
#include "topology/private.h"

#define NETWORK_MAGIC 0x0154454e54705401u  /* changes with the layout */

enum { NETWORK_LIFE = 3 };         /* seconds */

struct tpt_network {
    uint64_t magic;
    uint64_t checksum;             /* of all that follows, `length` in all */
    uint64_t time;
    uint64_t namespaces[2];        /* as tpt_namespace() has them */
    uint32_t length;               /* bytes */
    uint32_t nic_count, interface_count, unused;
    struct tpt_nic nics[TPT_NICS];
    struct tpb_interface list[];
};

/* What a rank must share with tprun to see the same. */
static const char *const network_spaces[] = { "net", "mnt" };

static uint64_t network_checksum(const struct tpt_network *network)
{
    size_t start = offsetof(struct tpt_network, time);

    return tpb_hash(TPB_HASH_INIT, (const char *)network + start,
                    network->length - start);
}

void *tpt_network_new(struct tpt_topology *topology, size_t *length)
{
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    size_t bytes = 0;
    struct tpt_network *network = NULL;

    if (all != NULL && topology->table->this_machine) {
        bytes = sizeof(*network) + all->count * sizeof(network->list[0]);
        network = tpb_zalloc(bytes);
    }
    if (network != NULL) {
        network->magic = NETWORK_MAGIC;
        network->time = tpb_now();
        for (size_t i = 0; i < TPB_COUNT(network_spaces); i++)
            network->namespaces[i] = tpt_namespace(network_spaces[i]);
        network->length = (uint32_t)bytes;
        network->nic_count = tpt_topology_nics(topology, network->nics);
        network->interface_count = (uint32_t)all->count;
        memcpy(network->list, all->list,
               all->count * sizeof(network->list[0]));
        network->checksum = network_checksum(network);
        *length = bytes;
    }
    tpb_interfaces_drop(all);
    return network;
}

static bool network_valid(const struct tpt_network *network, size_t available)
{
    return available >= sizeof(*network) && network->magic == NETWORK_MAGIC
           && network->length == available
           && network->length == sizeof(*network)
              + network->interface_count * sizeof(network->list[0])
           && network->nic_count <= TPT_NICS
           && network->checksum == network_checksum(network);
}

static bool network_fresh(const struct tpt_network *network)
{
    uint64_t now = tpb_now();

    return now >= network->time
           && now - network->time < NETWORK_LIFE * UINT64_C(1000000000);
}

/* Of another namespace is not ours; without /proc nobody can tell. */
static bool network_ours(const struct tpt_network *network)
{
    for (size_t i = 0; i < TPB_COUNT(network->namespaces); i++)
        if (network->namespaces[i] == 0
            || network->namespaces[i] != tpt_namespace(network_spaces[i]))
            return false;
    return true;
}

/* Where it stands; NULL if nothing does. */
static const struct tpt_network *network_of(const struct tpt_table *table,
                                            size_t available, size_t *left)
{
    size_t start = (table->length + 7) / 8 * 8;

    *left = available > start ? available - start : 0;
    return available > table->length
           ? (const void *)((const char *)table + start) : NULL;
}

bool tpt_network_whole(const struct tpt_table *table, size_t available)
{
    size_t left;
    const struct tpt_network *network = network_of(table, available, &left);

    return network == NULL || network_valid(network, left);
}

void tpt_network_find(struct tpt_topology *topology)
{
    size_t left;
    const struct tpt_network *network = network_of(topology->table,
                                                   topology->mapped, &left);

    if (network != NULL && topology->table->this_machine
        && network_fresh(network) && network_ours(network))
        topology->network = network;
}

uint32_t tpt_network_nics(const struct tpt_network *network,
                          struct tpt_nic nics[TPT_NICS])
{
    memcpy(nics, network->nics, sizeof(network->nics));
    return network->nic_count;
}

const struct tpb_interface *
tpt_topology_interfaces(const struct tpt_topology *topology, size_t *count)
{
    const struct tpt_network *network = topology->network;

    *count = network != NULL ? network->interface_count : 0;
    return network != NULL ? network->list : NULL;
}
