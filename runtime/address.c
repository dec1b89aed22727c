/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses of listeners: text to parts and back. */
#include "config.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>

#include "runtime/address.h"

static const char address_prefix[] = "tp:1;";

/* ---- sockets' addresses -------------------------------------------------- */

socklen_t tpr_way_socket(const struct tpr_way *way,
                         struct sockaddr_storage *address)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;

    memset(address, 0, sizeof(*address));
    if (way->family == 4) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(way->port);
        memcpy(&v4->sin_addr, way->address, sizeof(v4->sin_addr));
        return sizeof(*v4);
    }
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(way->port);
    memcpy(&v6->sin6_addr, way->address, sizeof(v6->sin6_addr));
    return sizeof(*v6);
}

bool tpr_way_from_socket(const struct sockaddr *address, struct tpr_way *way)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    memset(way, 0, sizeof(*way));
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof(v4));
        way->family = 4;
        way->port = ntohs(v4.sin_port);
        memcpy(way->address, &v4.sin_addr, sizeof(v4.sin_addr));
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof(v6));
        way->family = 6;
        way->port = ntohs(v6.sin6_port);
        memcpy(way->address, &v6.sin6_addr, sizeof(v6.sin6_addr));
    }
    return way->family != 0;
}

const char *tpr_way_text(const struct tpr_way *way, char text[TPR_WAY_TEXT])
{
    char name[INET6_ADDRSTRLEN] = "?";

    inet_ntop(way->family == 4 ? AF_INET : AF_INET6, way->address, name,
              sizeof(name));
    snprintf(text, TPR_WAY_TEXT, way->family == 4 ? "%s:%u" : "[%s]:%u", name,
             way->port);
    return text;
}

socklen_t tpr_name_socket(const char *name, struct sockaddr_storage *address)
{
    struct sockaddr_un *un = (struct sockaddr_un *)address;

    memset(address, 0, sizeof(*address));
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1
                       + strlen(name));
}

/* ---- parts --------------------------------------------------------------- */

static bool address_port(const char *text, uint16_t *port)
{
    unsigned long value = 0;
    const char *at = text;

    for (; *at >= '0' && *at <= '9' && at < text + 6; at++)
        value = value * 10 + (unsigned long)(*at - '0');
    *port = (uint16_t)value;
    return at > text && *at == '\0' && value <= 65535;
}

/* HOST:PORT; an IPv6 address stands in brackets. */
static bool address_host_port(const char *text, char host[TPR_HOST_TEXT],
                              uint16_t *port)
{
    const char *colon = strrchr(text, ':'), *end = colon;
    bool brackets = *text == '[';

    if (colon == NULL || !address_port(colon + 1, port))
        return false;
    if (brackets) {
        if (end == text || *--end != ']')
            return false;
        text++;
    }
    if (end < text || (size_t)(end - text) >= TPR_HOST_TEXT)
        return false;
    memcpy(host, text, (size_t)(end - text));
    host[end - text] = '\0';
    /* Else the colon was one of an IPv6 address, and nothing is sure. */
    return strpbrk(host, "[]/;=@") == NULL
           && (brackets || strchr(host, ':') == NULL);
}

static bool address_way(const char *text, struct tpr_way *way)
{
    char host[TPR_HOST_TEXT];

    memset(way, 0, sizeof(*way));
    if (!address_host_port(text, host, &way->port) || way->port == 0)
        return false;
    way->family = *text == '[' ? 6 : 4;
    return inet_pton(way->family == 4 ? AF_INET : AF_INET6, host,
                     way->address) == 1;
}

static bool address_hex(const char *text, size_t bytes, uint8_t *to)
{
    return strlen(text) == 2 * bytes && tpb_hex(text, bytes, to);
}

/* One NAME=VALUE.  What a later version may have added is left alone. */
static bool address_item(struct tpr_address *address, const char *name,
                         const char *value)
{
    uint8_t key[16];

    if (strcmp(name, "host") == 0) {
        if (address->has_host)
            return false;
        address->has_host = true;
        return address_hex(value, 16, address->boot_id);
    }
    if (strcmp(name, "unix") == 0) {
        if (address->name[0] != '\0' || *value == '\0'
            || strlen(value) >= sizeof(address->name))
            return false;
        strcpy(address->name, value);
        return true;
    }
    if (strcmp(name, "key") == 0) {
        if (address->key[0] != '\0' || !address_hex(value, 16, key))
            return false;
        strcpy(address->key, value);
        return true;
    }
    if (strcmp(name, "tcp") == 0)
        return address->count < TPR_WAYS
               && address_way(value, &address->ways[address->count++]);
    return true;
}

static tp_status address_written(const char *text, struct tpr_address *address,
                                 struct tpb_error *error)
{
    char copy[TPR_ADDRESS_TEXT], *rest = NULL, *item;

    snprintf(copy, sizeof(copy), "%s", text + strlen(address_prefix));
    for (item = strtok_r(copy, ";", &rest); item != NULL;
         item = strtok_r(NULL, ";", &rest)) {
        char *value = strchr(item, '=');

        if (value == NULL)
            return tpb_fail(error, TP_ERR_INVALID, "the address has a part"
                            " \"%s\" without a value", item);
        *value++ = '\0';
        if (!address_item(address, item, value))
            return tpb_fail(error, TP_ERR_INVALID,
                            "the part \"%s=%s\" of the address is not valid",
                            item,
                            value);
    }
    if (address->count == 0 && address->name[0] == '\0')
        return tpb_fail(error, TP_ERR_INVALID, "the address names no way to"
                        " the listener");
    return TP_OK;
}

tp_status tpr_address_parse(const char *text, struct tpr_address *address,
                            struct tpb_error *error)
{
    static const char tcp[] = "tcp://";

    memset(address, 0, sizeof(*address));
    if (strlen(text) >= TPR_ADDRESS_TEXT)
        return tpb_fail(error, TP_ERR_INVALID, "the address is longer than %d"
                        " characters", TPR_ADDRESS_TEXT - 1);
    for (const char *at = text; *at != '\0'; at++)
        if (*at <= ' ' || *at > '~')
            return tpb_fail(error, TP_ERR_INVALID, "the address has a"
                            " character that is not printable");
    if (strncmp(text, address_prefix, strlen(address_prefix)) == 0)
        return address_written(text, address, error);
    if (strncmp(text, "tp:", 3) == 0)
        return tpb_fail(error, TP_ERR_INVALID, "the address is of another"
                        " version of tp, or not whole");
    address->by_hand = true;
    address->local = strcmp(text, "local") == 0;
    if (address->local)
        return TP_OK;
    if (!address_host_port(strncmp(text, tcp, strlen(tcp)) == 0
                           ? text + strlen(tcp) : text, address->host,
                           &address->port))
        return tpb_fail(error, TP_ERR_INVALID, "\"%s\" is not an address: "
                        "expected HOST:PORT or tcp://HOST:PORT; to listen"
                        " also \"local\", to connect also what"
                        " tp_listener_address() wrote", text);
    return TP_OK;
}

tp_status tpr_address_format(const struct tpr_address *address,
                             struct tpb_text *text)
{
    char way[TPR_WAY_TEXT];

    tpb_text_add(text, "tp:1");
    if (address->has_host) {
        tpb_text_add(text, ";host=");
        for (size_t i = 0; i < sizeof(address->boot_id); i++)
            tpb_text_add(text, "%02x", address->boot_id[i]);
    }
    if (address->name[0] != '\0')
        tpb_text_add(text, ";unix=%s", address->name);
    for (uint32_t i = 0; i < address->count; i++)
        tpb_text_add(text, ";tcp=%s", tpr_way_text(&address->ways[i], way));
    if (address->key[0] != '\0')
        tpb_text_add(text, ";key=%s", address->key);
    return text->failed ? TP_ERR_NO_MEMORY : TP_OK;
}
