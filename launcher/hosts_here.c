/* SPDX-License-Identifier: BSD-3-Clause */
/* Which hosts are this machine. */
#include "config.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <unistd.h>

#include "launcher/hosts.h"
#include "runtime/base/alloc.h"

/* By name alone: localhost, or the name of this machine with or without its
 * domain.  Two names with different domains are two machines. */
static bool here_by_name(const char *name)
{
    char own[256] = "";
    size_t length;

    if (strcasecmp(name, "localhost") == 0)
        return true;
    if (gethostname(own, sizeof(own) - 1) < 0)
        return false;
    if (strcasecmp(name, own) == 0)
        return true;
    length = strcspn(own, ".");
    if (name[strcspn(name, ".")] == '\0')
        return strlen(name) == length && strncasecmp(name, own, length) == 0;
    return own[length] == '\0' && strcspn(name, ".") == length
           && strncasecmp(name, own, length) == 0;
}

static bool here_equal(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a == NULL || b == NULL || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr
               == ((const struct sockaddr_in *)(const void *)b)
               ->sin_addr.s_addr;
    if (a->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)(const void *)a)
                      ->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)b)
                      ->sin6_addr, sizeof(struct in6_addr)) == 0;
    return false;
}

static bool here_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in6 *six = (const void *)address;
    const struct sockaddr_in *four = (const void *)address;

    if (address->sa_family == AF_INET)
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6
           && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

static bool here_by_address(const struct addrinfo *found,
                            const struct ifaddrs *own)
{
    for (; found != NULL; found = found->ai_next) {
        if (here_loopback(found->ai_addr))
            return true;
        for (const struct ifaddrs *it = own; it != NULL; it = it->ifa_next)
            if (here_equal(it->ifa_addr, found->ai_addr))
                return true;
    }
    return false;
}

/* All names at once, for a name server that is down answers none of them.
 * Leaks what is still being asked for when the time is over: libc holds it. */
static void here_resolve(struct tpl_hosts *hosts, int seconds)
{
    struct gaicb *requests = tpb_array(hosts->count, sizeof(*requests));
    struct gaicb **list = tpb_array(hosts->count, sizeof(*list));
    uint64_t until = tpb_now() + (uint64_t)seconds * 1000000000u, now;
    struct ifaddrs *own = NULL;
    bool waits = false;

    if (requests == NULL || list == NULL || getifaddrs(&own) < 0)
        goto out;
    for (size_t i = 0; i < hosts->count; i++) {
        requests[i].ar_name = hosts->list[i].name;
        list[i] = hosts->list[i].here ? NULL : &requests[i];
    }
    if (getaddrinfo_a(GAI_NOWAIT, list, (int)hosts->count, NULL) != 0)
        goto out;
    do {
        struct timespec rest = { 0 };

        waits = false;
        for (size_t i = 0; i < hosts->count; i++) {
            if (list[i] == NULL)
                continue;
            if (gai_error(list[i]) == EAI_INPROGRESS) {
                waits = true;
                continue;
            }
            if (gai_error(list[i]) == 0)
                hosts->list[i].here = here_by_address(list[i]->ar_result,
                                                      own);
            freeaddrinfo(list[i]->ar_result);
            list[i] = NULL;
        }
        now = tpb_now();
        if (waits && now < until) {
            rest.tv_sec = (time_t)((until - now) / 1000000000u);
            rest.tv_nsec = (long)((until - now) % 1000000000u);
            gai_suspend((const struct gaicb *const *)list,
                        (int)hosts->count, &rest);
        }
    } while (waits && now < until);
out:
    freeifaddrs(own);
    if (!waits) {
        tpb_free(requests);
        tpb_free(list);
    }
}

void tpl_hosts_find_here(struct tpl_hosts *hosts, int seconds)
{
    bool all = true;

    for (size_t i = 0; i < hosts->count; i++) {
        hosts->list[i].here = here_by_name(hosts->list[i].name);
        all &= hosts->list[i].here;
    }
    if (!all)
        here_resolve(hosts, seconds);
}
