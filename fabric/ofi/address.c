/* SPDX-License-Identifier: BSD-3-Clause */
/* Network addresses: which ones this host has, and what others learn. */
#include "config.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdio.h>
#include <sys/un.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/interfaces.h"

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

/* Was loopback asked for by name? */
static bool address_wants_local(const char *ifaces)
{
    return *ifaces != '\0' && *ifaces != '^' && tpb_list_allows(ifaces, "lo");
}

/* A bridge of this host often ends in it, and its network has the same
 * addresses on the next host, so it comes last; the others by their speed. */
static void address_fill(const struct tpb_interface *from,
                         struct address_entry *entry)
{
    memset(entry, 0, sizeof(*entry));
    entry->where.family = from->family;
    entry->where.local = from->local;
    memcpy(entry->where.address, from->address, sizeof(from->address));
    memcpy(entry->mask, from->mask, sizeof(from->mask));
    entry->bridge = from->bridge;
    if (!from->local)
        entry->worth = from->bridge ? 0 : 1 + from->megabits;
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
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    int count = 0;

    for (int local = 0; local <= 1; local++) {
        if (local == 1 && count > 0 && !address_wants_local(ifaces))
            break;
        for (size_t i = 0; all != NULL && i < all->count; i++) {
            struct address_entry entry;

            address_fill(&all->list[i], &entry);
            if (entry.where.local == local
                && tpb_interface_usable(&all->list[i], ifaces))
                count = address_insert(list, count, &entry);
        }
    }
    tpb_interfaces_drop(all);
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

bool ofi_where_beside(const struct ofi_where *ours, int count,
                      const struct ofi_where *to, struct ofi_where *from)
{
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    bool found = false;

    for (int i = 0; i < count && !found; i++)
        for (size_t k = 0; all != NULL && k < all->count && !found; k++) {
            struct address_entry entry;

            address_fill(&all->list[k], &entry);
            found = to->family == ours[i].family
                    && ofi_where_same(&entry.where, &ours[i])
                    && card_same_network(&entry, to);
            if (found) {
                *from = ours[i];
                from->port = 0;
            }
        }
    tpb_interfaces_drop(all);
    return found;
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
            tpb_text_add(left_out, "%s%s: not tried, %s",
                         left_out->length > 0 ? "; " : "",
                         ofi_where_text(where, true, text),
                         where->local ? "loopback does not leave that host"
                                      : "it is an address of this host too");
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
