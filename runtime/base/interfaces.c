/* SPDX-License-Identifier: BSD-3-Clause */
/* The network addresses of this host. */
#include "config.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "runtime/base/alloc.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"
#include "runtime/base/settings.h"

_Static_assert((int)TPB_INTERFACE_NAME == (int)IFNAMSIZ, "names fit");

/* What is held just now. */
static pthread_mutex_t interfaces_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tpb_interfaces *interfaces_now;
static unsigned interfaces_holds;

/* The bytes of an IPv4 or IPv6 address; 0 for any other. */
static uint8_t interfaces_bytes(const struct sockaddr *from, int family,
                                uint8_t bytes[16])
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    memset(bytes, 0, 16);
    if (family == AF_INET) {
        memcpy(&v4, from, sizeof(v4));
        memcpy(bytes, &v4.sin_addr, 4);
        return 4;
    }
    if (family != AF_INET6)
        return 0;
    memcpy(&v6, from, sizeof(v6));
    memcpy(bytes, &v6.sin6_addr, 16);
    return 6;
}

/* Asks the driver; false if there is none that answers. */
static bool interfaces_ask(int fd, const char *name, void *question)
{
    struct ifreq request = { .ifr_data = question };

    memcpy(request.ifr_name, name, sizeof(request.ifr_name));
    return fd >= 0 && ioctl(fd, SIOCETHTOOL, &request) == 0;
}

/* Not from /sys, which may show another network namespace. */
static void interfaces_link(int fd, struct tpb_interface *interface)
{
    struct ethtool_drvinfo driver = { .cmd = ETHTOOL_GDRVINFO };
    struct ethtool_cmd link = { .cmd = ETHTOOL_GSET };
    uint32_t speed;

    interface->bridge = interfaces_ask(fd, interface->name, &driver)
                        && strncmp(driver.driver, "bridge", 6) == 0;
    if (interface->bridge || !interfaces_ask(fd, interface->name, &link))
        return;
    /* ethtool_cmd_speed() shifts an int until it overflows. */
    speed = (uint32_t)link.speed_hi << 16 | link.speed;
    if (speed != UINT32_MAX)
        interface->megabits = speed;
}

/* The next one; what is known of its interface already is not asked again. */
static void interfaces_add(struct tpb_interfaces *all, int fd,
                           const struct ifaddrs *from)
{
    struct tpb_interface *next = &all->list[all->count];
    const unsigned up = IFF_UP | IFF_RUNNING;

    memset(next, 0, sizeof(*next));
    if (from->ifa_addr == NULL)
        return;
    next->family = interfaces_bytes(from->ifa_addr, from->ifa_addr->sa_family,
                                    next->address);
    if (next->family == 0)
        return;
    snprintf(next->name, sizeof(next->name), "%s", from->ifa_name);
    memset(next->mask, 0xff, sizeof(next->mask));
    if (from->ifa_netmask != NULL)     /* not all kernels set its family */
        interfaces_bytes(from->ifa_netmask, from->ifa_addr->sa_family,
                         next->mask);
    next->up = (from->ifa_flags & up) == up;
    next->local = (from->ifa_flags & IFF_LOOPBACK) != 0;
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->list[i].name, next->name) == 0) {
            next->bridge = all->list[i].bridge;
            next->megabits = all->list[i].megabits;
            all->count++;
            return;
        }
    if (next->up && !next->local)
        interfaces_link(fd, next);
    all->count++;
}

static struct tpb_interfaces *interfaces_fetch(void)
{
    struct tpb_interfaces *all;
    struct ifaddrs *found = NULL;
    size_t count = 0;
    int fd;

    if (getifaddrs(&found) < 0)
        return NULL;
    for (struct ifaddrs *i = found; i != NULL; i = i->ifa_next)
        count++;
    all = tpb_zalloc(sizeof(*all) + count * sizeof(all->list[0]));
    if (all == NULL) {
        freeifaddrs(found);
        errno = ENOMEM;
        return NULL;
    }
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (struct ifaddrs *i = found; i != NULL; i = i->ifa_next)
        interfaces_add(all, fd, i);
    tpb_close(&fd);
    freeifaddrs(found);
    return all;
}

static struct tpb_interfaces *interfaces_copy(const struct tpb_interface *list,
                                              size_t count)
{
    size_t bytes = count * sizeof(list[0]);
    struct tpb_interfaces *all = tpb_zalloc(sizeof(*all) + bytes);

    if (all == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(all->list, list, bytes);
    all->count = count;
    return all;
}

const struct tpb_interfaces *
tpb_interfaces_hold_known(const struct tpb_interface *list, size_t count)
{
    const struct tpb_interfaces *all;

    pthread_mutex_lock(&interfaces_lock);
    if (interfaces_now == NULL)
        interfaces_now = list != NULL ? interfaces_copy(list, count)
                                      : interfaces_fetch();
    all = interfaces_now;
    interfaces_holds += all != NULL;
    pthread_mutex_unlock(&interfaces_lock);
    return all;
}

const struct tpb_interfaces *tpb_interfaces_hold(void)
{
    return tpb_interfaces_hold_known(NULL, 0);
}

void tpb_interfaces_drop(const struct tpb_interfaces *interfaces)
{
    if (interfaces == NULL)
        return;
    pthread_mutex_lock(&interfaces_lock);
    if (--interfaces_holds == 0) {
        tpb_free(interfaces_now);
        interfaces_now = NULL;
    }
    pthread_mutex_unlock(&interfaces_lock);
}

bool tpb_interface_usable(const struct tpb_interface *interface,
                          const char *allowed)
{
    const uint8_t *a = interface->address;

    if (!interface->up || !tpb_list_allows(allowed, interface->name))
        return false;
    return interface->family == 4
               ? !(a[0] == 169 && a[1] == 254)
               : !(a[0] == 0xfe && (a[1] & 0xc0) == 0x80);
}

tp_status tpb_interfaces_none(const char *allowed, tp_status status,
                              struct tpb_error *error)
{
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    int code = errno;

    if (all == NULL) {
        bool denied = code == EAFNOSUPPORT || code == EPERM || code == EACCES;

        /* A card has no room for more. */
        return tpb_fail(error, status, "cannot list network interfaces%s: %s%s",
                        denied ? " (a sandbox must allow AF_NETLINK)" : "",
                        strerror(code), denied ? "" : tpb_errno_remedy(code));
    }
    tpb_interfaces_drop(all);
    return tpb_fail(error, status, "no network interface that is up%s%s",
                    *allowed != '\0' ? " and allowed by TP_IFACE=" : "",
                    allowed);
}
