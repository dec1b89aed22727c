/* SPDX-License-Identifier: BSD-3-Clause */
/* Network addresses: which ones this host has, and what others learn. */
#include "config.h"

#include <arpa/inet.h>
#include <endian.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/io.h"

#define ADDRESS_MAGIC 0x316f7074u  /* "tpo1" */

/* One of this host's addresses, and what it hangs on. */
struct address_entry {
    struct ofi_where where;
    uint8_t mask[16];              /* ones for the bits of its network */
    bool bridge;                   /* such as docker0 and virbr0 */
    uint32_t worth;                /* more is tried first */
};

/* ---- conversions ------------------------------------------------------- */

socklen_t ofi_where_to_socket(const struct ofi_where *where,
                              struct sockaddr_storage *address)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;

    memset(address, 0, sizeof(*address));
    if (where->family == 4) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(le16toh(where->port));
        memcpy(&v4->sin_addr, where->address, sizeof(v4->sin_addr));
        return sizeof(*v4);
    }
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(le16toh(where->port));
    memcpy(&v6->sin6_addr, where->address, sizeof(v6->sin6_addr));
    return sizeof(*v6);
}

bool ofi_where_from_socket(const struct sockaddr_storage *address,
                           struct ofi_where *where)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

    memset(where, 0, sizeof(*where));
    if (address->ss_family == AF_INET) {
        where->family = 4;
        where->port = htole16(ntohs(v4->sin_port));
        memcpy(where->address, &v4->sin_addr, sizeof(v4->sin_addr));
        where->local = where->address[0] == 127;
        return true;
    }
    if (address->ss_family == AF_INET6) {
        where->family = 6;
        where->port = htole16(ntohs(v6->sin6_port));
        memcpy(where->address, &v6->sin6_addr, sizeof(v6->sin6_addr));
        where->local = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
        return true;
    }
    return false;
}

const char *ofi_where_text(const struct ofi_where *where, bool port,
                           char text[64])
{
    char name[INET6_ADDRSTRLEN] = "?";

    inet_ntop(where->family == 4 ? AF_INET : AF_INET6, where->address, name,
              sizeof(name));
    if (!port)
        snprintf(text, 64, "%s", name);
    else
        snprintf(text, 64, where->family == 4 ? "%s:%u" : "[%s]:%u", name,
                 le16toh(where->port));
    return text;
}

socklen_t ofi_unix_address(const uint8_t key[OFI_KEY],
                           struct sockaddr_storage *address)
{
    struct sockaddr_un *un = (struct sockaddr_un *)address;
    char *text = un->sun_path + 1;     /* a NUL first: no file */
    size_t length;

    memset(address, 0, sizeof(*address));
    un->sun_family = AF_UNIX;
    length = (size_t)sprintf(text, "tp.ofi.");
    /* Half the key names the socket, the other half stays a secret. */
    for (int i = 0; i < OFI_KEY / 2; i++)
        length += (size_t)sprintf(text + length, "%02x", key[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/* ---- this host --------------------------------------------------------- */

/* Can peers connect to it?  Not to link-local addresses, which mean nothing
 * without the name of an interface. */
static bool address_usable(const struct ifaddrs *entry, const char *ifaces,
                           struct ofi_where *where)
{
    struct sockaddr_storage copy;

    if (entry->ifa_addr == NULL || !(entry->ifa_flags & IFF_UP)
        || !(entry->ifa_flags & IFF_RUNNING)
        || !tpb_list_allows(ifaces, entry->ifa_name))
        return false;
    memset(&copy, 0, sizeof(copy));
    if (entry->ifa_addr->sa_family == AF_INET)
        memcpy(&copy, entry->ifa_addr, sizeof(struct sockaddr_in));
    else if (entry->ifa_addr->sa_family == AF_INET6)
        memcpy(&copy, entry->ifa_addr, sizeof(struct sockaddr_in6));
    if (!ofi_where_from_socket(&copy, where))
        return false;
    where->port = 0;
    where->local |= (entry->ifa_flags & IFF_LOOPBACK) != 0;
    if (where->family == 6
        && IN6_IS_ADDR_LINKLOCAL((struct in6_addr *)where->address))
        return false;
    return !(where->family == 4 && where->address[0] == 169
             && where->address[1] == 254);
}

/* Was loopback asked for by name? */
static bool address_wants_local(const char *ifaces)
{
    return *ifaces != '\0' && *ifaces != '^' && tpb_list_allows(ifaces, "lo");
}

/* Asks the driver; false if there is none that answers. */
static bool address_ask(int fd, const char *name, void *question)
{
    struct ifreq request = { .ifr_data = question };

    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    return fd >= 0 && ioctl(fd, SIOCETHTOOL, &request) == 0;
}

/* A bridge of this host often ends in it, and its network has the same
 * addresses on the next host, so it comes last; the others by their speed.
 * Not from /sys, which may show another network namespace. */
static void address_value(int fd, const char *name,
                          struct address_entry *entry)
{
    struct ethtool_drvinfo driver = { .cmd = ETHTOOL_GDRVINFO };
    struct ethtool_cmd link = { .cmd = ETHTOOL_GSET };
    uint32_t speed;

    entry->bridge = address_ask(fd, name, &driver)
                    && strncmp(driver.driver, "bridge", 6) == 0;
    entry->worth = entry->bridge ? 0 : 1;
    if (entry->bridge || !address_ask(fd, name, &link))
        return;
    /* ethtool_cmd_speed() shifts an int until it overflows. */
    speed = (uint32_t)link.speed_hi << 16 | link.speed;
    if (speed != UINT32_MAX)
        entry->worth += speed;
}

static void address_mask(const struct ifaddrs *from,
                         struct address_entry *entry)
{
    struct sockaddr_storage copy;
    struct ofi_where mask;
    bool v4 = entry->where.family == 4;

    memset(entry->mask, 0xff, sizeof(entry->mask));
    if (from->ifa_netmask == NULL)
        return;
    memset(&copy, 0, sizeof(copy));
    memcpy(&copy, from->ifa_netmask, v4 ? sizeof(struct sockaddr_in)
                                        : sizeof(struct sockaddr_in6));
    copy.ss_family = v4 ? AF_INET : AF_INET6;  /* not all kernels set it */
    if (ofi_where_from_socket(&copy, &mask))
        memcpy(entry->mask, mask.address, v4 ? 4 : 16);
}

/* Puts an entry where it belongs; the least worthy one falls out. */
static int address_insert(struct address_entry list[OFI_WHERES], int count,
                          const struct address_entry *entry)
{
    int at = count;

    while (at > 0 && list[at - 1].worth < entry->worth)
        at--;
    if (at == OFI_WHERES)
        return count;
    if (count == OFI_WHERES)
        count--;
    memmove(&list[at + 1], &list[at], sizeof(*list) * (size_t)(count - at));
    list[at] = *entry;
    return count + 1;
}

static int address_list(const char *ifaces,
                        struct address_entry list[OFI_WHERES])
{
    struct ifaddrs *all = NULL;
    int count = 0, fd;

    if (getifaddrs(&all) < 0)
        return 0;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (int local = 0; local <= 1; local++) {
        if (local == 1 && count > 0 && !address_wants_local(ifaces))
            break;
        for (struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
            struct address_entry entry;

            if (!address_usable(i, ifaces, &entry.where)
                || entry.where.local != local)
                continue;
            address_mask(i, &entry);
            address_value(fd, i->ifa_name, &entry);
            if (local == 1)
                entry.worth = 0;
            count = address_insert(list, count, &entry);
        }
    }
    tpb_close(&fd);
    freeifaddrs(all);
    return count;
}

int ofi_where_list(const char *ifaces, struct ofi_where list[OFI_WHERES])
{
    struct address_entry entries[OFI_WHERES];
    int count = address_list(ifaces, entries);

    for (int i = 0; i < count; i++)
        list[i] = entries[i].where;
    return count;
}

uint64_t ofi_host_id(const struct tpt_card *card)
{
    uint64_t hash = 0xcbf29ce484222325u ^ card->host.net_namespace;

    for (size_t i = 0; i < sizeof(card->host.boot_id); i++)
        hash = (hash ^ card->host.boot_id[i]) * 0x100000001b3u;
    return hash;
}

/* ---- what is published ------------------------------------------------- */

/* Against damage and garbage, not against malice: the key is for that. */
static uint32_t card_check(const uint8_t *bytes, size_t length)
{
    uint32_t hash = 0x811c9dc5u;

    for (size_t i = offsetof(struct ofi_card, key); i < length; i++)
        hash = (hash ^ bytes[i]) * 0x01000193u;
    return hash;
}

size_t ofi_card_encode(struct ofi_card *card, void *buffer, size_t capacity)
{
    size_t length = offsetof(struct ofi_card, wheres)
                    + card->count * sizeof(card->wheres[0]);

    if (length > capacity)
        return 0;
    card->magic = htole32(ADDRESS_MAGIC);
    card->check = htole32(card_check((const uint8_t *)card, length));
    memcpy(buffer, card, length);
    return length;
}

tp_status ofi_card_decode(struct ofi_card *card, const void *bytes,
                          size_t length, struct tpb_error *error)
{
    const size_t least = offsetof(struct ofi_card, wheres);
    bool right;

    memset(card, 0, sizeof(*card));
    right = length >= least && length <= sizeof(*card);
    if (right) {
        memcpy(card, bytes, length);
        right = card->magic == htole32(ADDRESS_MAGIC)
                && card->check == htole32(card_check(bytes, length))
                && card->count <= OFI_WHERES
                && length == least + card->count * sizeof(card->wheres[0]);
    }
    for (int i = 0; right && i < card->count; i++)
        right = (card->wheres[i].family == 4 || card->wheres[i].family == 6)
                && card->wheres[i].local <= 1 && card->wheres[i].port != 0;
    if (!right)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "the peer's address (%zu bytes) is damaged or from "
                        "another version", length);
    return TP_OK;
}

/* How good an address of the peer looks from here. */
enum card_way {
    CARD_OURS,                     /* it would be ourselves */
    CARD_LOCAL,                    /* does not leave the host */
    CARD_BRIDGE,                   /* in the network of a bridge of ours */
    CARD_ROUTED,                   /* in no network of ours */
    CARD_LINK                      /* in a network of ours */
};

static bool card_same_network(const struct address_entry *ours,
                              const struct ofi_where *where)
{
    for (int i = 0; i < (where->family == 4 ? 4 : 16); i++)
        if (((ours->where.address[i] ^ where->address[i]) & ours->mask[i])
            != 0)
            return false;
    return true;
}

static enum card_way card_way(const struct ofi_where *where, bool same_host,
                              const struct address_entry *ours, int count)
{
    enum card_way best = CARD_ROUTED;
    bool bridge = false;

    if (where->local)
        return same_host ? CARD_LOCAL : CARD_OURS;
    for (int i = 0; i < count; i++) {
        if (ours[i].where.family != where->family)
            continue;
        if (!same_host && memcmp(ours[i].where.address, where->address,
                                 sizeof(where->address)) == 0)
            return CARD_OURS;
        if (!card_same_network(&ours[i], where))
            continue;
        if (!ours[i].bridge)
            best = CARD_LINK;
        bridge |= ours[i].bridge;
    }
    return bridge && best != CARD_LINK ? CARD_BRIDGE : best;
}

void ofi_card_order(struct ofi_card *card, uint64_t our_host,
                    struct tpb_text *left_out)
{
    struct address_entry ours[OFI_WHERES];
    struct ofi_where kept[OFI_WHERES];
    enum card_way ways[OFI_WHERES];
    int count = address_list("", ours), used = 0;

    for (int i = 0; i < card->count; i++) {
        const struct ofi_where *where = &card->wheres[i];
        enum card_way way = card_way(where, le64toh(card->host) == our_host,
                                     ours, count);
        char text[64];
        int at = used;

        if (way == CARD_OURS) {
            tpb_text_add(left_out, "%s%s: not tried, it is an address of this"
                         " host too", left_out->length > 0 ? "; " : "",
                         ofi_where_text(where, true, text));
            continue;
        }
        while (at > 0 && ways[at - 1] < way) {
            kept[at] = kept[at - 1];
            ways[at] = ways[at - 1];
            at--;
        }
        kept[at] = *where;
        ways[at] = way;
        used++;
    }
    memcpy(card->wheres, kept, sizeof(kept[0]) * (size_t)used);
    card->count = (uint8_t)used;
}
