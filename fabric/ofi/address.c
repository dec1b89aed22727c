/* SPDX-License-Identifier: BSD-3-Clause */
/* Network addresses: which ones this host has, and what others learn. */
#include "config.h"

#include <arpa/inet.h>
#include <endian.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>

#include "fabric/ofi/ofi.h"

#define ADDRESS_MAGIC 0x316f7074u  /* "tpo1" */

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

int ofi_where_list(const char *ifaces, struct ofi_where list[OFI_WHERES])
{
    struct ifaddrs *all = NULL;
    int count = 0;

    if (getifaddrs(&all) < 0)
        return 0;
    for (int local = 0; local <= 1; local++) {
        if (local == 1 && count > 0 && !address_wants_local(ifaces))
            break;
        for (struct ifaddrs *i = all; i != NULL && count < OFI_WHERES;
             i = i->ifa_next)
            if (address_usable(i, ifaces, &list[count])
                && list[count].local == local)
                count++;
    }
    freeifaddrs(all);
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

/* The longest prefix that `where` shares with an address of ours, in bits. */
static int card_nearness(const struct ofi_where *where,
                         const struct ofi_where *ours, int count)
{
    int best = 0;

    for (int i = 0; i < count; i++) {
        int bits = 0, limit = ours[i].family == 4 ? 32 : 128;

        if (ours[i].family != where->family)
            continue;
        while (bits < limit
               && ((ours[i].address[bits / 8] ^ where->address[bits / 8])
                   >> (7 - bits % 8) & 1) == 0)
            bits++;
        bits = bits * 128 / limit + 1;
        if (bits > best)
            best = bits;
    }
    return best;
}

void ofi_card_order(struct ofi_card *card, uint64_t our_host)
{
    struct ofi_where ours[OFI_WHERES], kept[OFI_WHERES];
    int count = ofi_where_list("", ours), rank[OFI_WHERES], used = 0;

    for (int i = 0; i < card->count; i++) {
        const struct ofi_where *where = &card->wheres[i];
        int nearness = where->local ? 0 : card_nearness(where, ours, count);
        int at = used;

        if (where->local && le64toh(card->host) != our_host)
            continue;              /* that would be our own host */
        while (at > 0 && rank[at - 1] < nearness) {
            kept[at] = kept[at - 1];
            rank[at] = rank[at - 1];
            at--;
        }
        kept[at] = *where;
        rank[at] = nearness;
        used++;
    }
    memcpy(card->wheres, kept, sizeof(kept[0]) * (size_t)used);
    card->count = (uint8_t)used;
}
