/* SPDX-License-Identifier: BSD-3-Clause */
/* Which hosts are this machine. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/hosts.h"
#include "runtime/base/interfaces.h"

enum { HERE_HELPERS = 8 };

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

static bool here_equal(const struct tpb_interface *own,
                       const struct sockaddr *other)
{
    const struct sockaddr_in6 *six = (const void *)other;
    const struct sockaddr_in *four = (const void *)other;

    if (own->family == 4)
        return other->sa_family == AF_INET
               && memcmp(own->address, &four->sin_addr, 4) == 0;
    return other->sa_family == AF_INET6
           && memcmp(own->address, &six->sin6_addr, 16) == 0;
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
                            const struct tpb_interfaces *own)
{
    for (; found != NULL; found = found->ai_next) {
        if (here_loopback(found->ai_addr))
            return true;
        for (size_t i = 0; own != NULL && i < own->count; i++)
            if (here_equal(&own->list[i], found->ai_addr))
                return true;
    }
    return false;
}

/* A helper process: every HERE_HELPERS-th host from `first` on.  Writes the
 * numbers of those that are this machine. */
static void here_help(const struct tpl_hosts *hosts, size_t first, int out)
{
    static const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    const struct tpb_interfaces *own = tpb_interfaces_hold();

    for (size_t i = first; i < hosts->count; i += HERE_HELPERS) {
        struct addrinfo *found = NULL;

        if (!hosts->list[i].here
            && getaddrinfo(hosts->list[i].name, NULL, &hints, &found) == 0
            && here_by_address(found, own)
            && write(out, &i, sizeof(i)) != (ssize_t)sizeof(i))
            break;
    }
    _exit(0);
}

/* What is there when the time is over counts, too: we may have been stopped. */
static void here_listen(struct tpl_hosts *hosts, int in, uint64_t until)
{
    struct pollfd poll_in = { in, POLLIN, 0 };
    size_t number;

    for (;;) {
        uint64_t now = tpb_now();
        int found = poll(&poll_in, 1, now < until
                                      ? (int)((until - now) / 1000000) + 1
                                      : 0);

        if (found == 0 && now < until)
            continue;
        if (found < 0 && errno == EINTR)
            continue;
        if (found <= 0
            || read(in, &number, sizeof(number)) != (ssize_t)sizeof(number))
            return;
        if (number < hosts->count)
            hosts->list[number].here = true;
    }
}

/* In processes, which can be left in the middle of a name server's silence;
 * several, for one that is down answers none of the names.  (getaddrinfo_a(3)
 * of glibc 2.36 crashes when it is done early.) */
static void here_resolve(struct tpl_hosts *hosts, int seconds)
{
    pid_t helpers[HERE_HELPERS];
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return;
    for (size_t i = 0; i < HERE_HELPERS; i++) {
        helpers[i] = i < hosts->count ? fork() : -1;
        if (helpers[i] == 0)
            here_help(hosts, i, ends[1]);
    }
    close(ends[1]);
    here_listen(hosts, ends[0],
                tpb_now() + (uint64_t)seconds * UINT64_C(1000000000));
    close(ends[0]);
    for (size_t i = 0; i < HERE_HELPERS; i++)
        if (helpers[i] > 0) {
            kill(helpers[i], SIGKILL);
            waitpid(helpers[i], NULL, 0);
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
