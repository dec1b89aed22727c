/* SPDX-License-Identifier: BSD-3-Clause */
/* The network addresses at which a listener can be found. */
#include "config.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "runtime/desk.h"

/* Link-local ones mean nothing without the name of an interface. */
static bool interface_usable(const struct ifaddrs *entry, const char *ifaces,
                             struct tpr_way *way)
{
    if (entry->ifa_addr == NULL || !(entry->ifa_flags & IFF_UP)
        || !(entry->ifa_flags & IFF_RUNNING)
        || !tpb_list_allows(ifaces, entry->ifa_name)
        || !tpr_way_from_socket(entry->ifa_addr, way))
        return false;
    way->port = 0;
    return way->family == 4
           ? !(way->address[0] == 169 && way->address[1] == 254)
           : !(way->address[0] == 0xfe && (way->address[1] & 0xc0) == 0x80);
}

uint32_t tpr_interfaces(const char *ifaces, bool local,
                        struct tpr_way ways[TPR_WAYS])
{
    struct ifaddrs *all = NULL;
    uint32_t count = 0;

    if (getifaddrs(&all) < 0)
        return 0;
    for (unsigned loop = 0; loop <= IFF_LOOPBACK; loop += IFF_LOOPBACK) {
        if (loop != 0 && count > 0 && !local)
            break;
        for (struct ifaddrs *i = all; i != NULL && count < TPR_WAYS;
             i = i->ifa_next)
            if ((i->ifa_flags & IFF_LOOPBACK) == loop
                && interface_usable(i, ifaces, &ways[count]))
                count++;
    }
    freeifaddrs(all);
    return count;
}
