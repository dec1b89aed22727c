/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The socket that libfabric has for a connection, which it does not show.
 *
 * Within a host there is nothing that could be congested, but kernels whose
 * congestion control is BBR pace there as anywhere: between two packets of 64
 * KiB they set a timer, and who sends waits for it, in a virtual machine for 30
 * us.  So a connection that does not leave the host has the plain one.
 */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"

TPB_LOG_COMPONENT("ofi");

enum {
    SOCKET_MOST = 4096,            /* descriptors looked at: some ms */
    SOCKET_RECENT = 32             /* of these, first */
};

static bool socket_same(const struct sockaddr_storage *address,
                        const struct ofi_where *where)
{
    struct ofi_where other;

    return ofi_where_from_socket(address, &other)
           && ofi_where_same(&other, where) && other.port == where->port;
}

static bool socket_is(int fd, const struct ofi_where *ours,
                      const struct ofi_where *theirs)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);

    if (getpeername(fd, (struct sockaddr *)&address, &length) < 0
        || !socket_same(&address, theirs))
        return false;
    length = sizeof(address);
    return getsockname(fd, (struct sockaddr *)&address, &length) == 0
           && socket_same(&address, ours);
}

/* It was opened a moment ago, so it is most likely right below the lowest one
 * that is free: with a thousand connections that is all that can be afforded
 * for each. */
static int socket_recent(const struct ofi_where *ours,
                         const struct ofi_where *theirs)
{
    int free = open("/dev/null", O_RDONLY | O_CLOEXEC), found = -1;

    for (int fd = free - 1; fd >= 0 && fd >= free - SOCKET_RECENT && found < 0;
         fd--)
        if (socket_is(fd, ours, theirs))
            found = fd;
    if (free >= 0)
        close(free);
    return found;
}

/* The descriptor of the connection between the two; -1: none of ours. */
static int socket_search(const struct ofi_where *ours,
                         const struct ofi_where *theirs)
{
    DIR *all = opendir("/proc/self/fd");
    struct dirent *entry;
    int found = -1, left = SOCKET_MOST;

    while (all != NULL && found < 0 && left-- > 0
           && (entry = readdir(all)) != NULL) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);

        if (end != entry->d_name && socket_is((int)fd, ours, theirs))
            found = (int)fd;
    }
    if (all != NULL)
        closedir(all);
    return found;
}

void ofi_socket_plain(struct ofi_conn *conn)
{
    struct sockaddr_storage address;
    struct ofi_where ours, theirs;
    size_t length = sizeof(address);
    int fd;

    if (fi_getname(&conn->ep->fid, &address, &length) != 0
        || !ofi_where_from_socket(&address, &ours))
        return;
    length = sizeof(address);
    if (fi_getpeer(conn->ep, &address, &length) != 0
        || !ofi_where_from_socket(&address, &theirs)
        || !ofi_where_same(&ours, &theirs))
        return;
    fd = socket_recent(&ours, &theirs);
    if (fd < 0)
        fd = socket_search(&ours, &theirs);
    if (fd < 0
        || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) < 0)
        tpb_debug("the congestion control within the host stays as it is");
}
