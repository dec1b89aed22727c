/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The socket that libfabric has for a connection, which it does not show.
 * life.c asks it whether what is sent arrives.  And how far the peer is, which
 * the socket where the two meet knows.
 *
 * Within a host there is nothing that could be congested, but kernels whose
 * congestion control is BBR pace there as anywhere: between two packets of 64
 * KiB they set a timer, and who sends waits for it, in a virtual machine for 30
 * us.  So a connection that does not leave the host has the plain one.
 */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"

TPB_LOG_COMPONENT("ofi");

enum {
    SOCKET_MOST = 4096,            /* descriptors looked at: some ms */
    SOCKET_RECENT = 32,            /* of these, first */
    SOCKET_NEAR_US = 500,          /* a round trip for which a pipe's window
                                      suffices as it is */
    SOCKET_PER_US = 1250           /* bytes: 10 Gb/s */
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

/* Its two ends. */
static bool socket_ends(const struct ofi_conn *conn, struct ofi_where *ours,
                        struct ofi_where *theirs)
{
    struct sockaddr_storage address;
    size_t length = sizeof(address);

    if (fi_getname(&conn->ep->fid, &address, &length) != 0
        || !ofi_where_from_socket(&address, ours))
        return false;
    length = sizeof(address);
    return fi_getpeer(conn->ep, &address, &length) == 0
           && ofi_where_from_socket(&address, theirs);
}

void ofi_socket_find(struct ofi_conn *conn)
{
    struct ofi_where ours, theirs;
    bool here;

    conn->wire = -1;
    if (!socket_ends(conn, &ours, &theirs))
        return;
    here = ofi_where_same(&ours, &theirs);
    conn->wire = socket_recent(&ours, &theirs);
    conn->wire_sought = here;
    if (conn->wire < 0 && here)
        conn->wire = socket_search(&ours, &theirs);
    if (here && (conn->wire < 0
                 || setsockopt(conn->wire, IPPROTO_TCP, TCP_CONGESTION, "reno",
                               4) < 0))
        tpb_debug("the congestion control within the host stays as it is");
}

void ofi_socket_seek(struct ofi_conn *conn)
{
    struct ofi_where ours, theirs;

    conn->wire_sought = true;
    if (socket_ends(conn, &ours, &theirs))
        conn->wire = socket_search(&ours, &theirs);
    if (conn->wire < 0)
        tpb_debug("libfabric's socket is not found: nobody sees whether what"
                  " is sent there arrives");
}

/* The quickest: others take as long as the processes need to get a cpu. */
uint32_t ofi_socket_round(int fd)
{
    struct tcp_info info = { .tcpi_min_rtt = UINT32_MAX };
    socklen_t length = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0
           && info.tcpi_min_rtt < UINT32_MAX ? info.tcpi_min_rtt : 0;
}

size_t ofi_socket_far(uint32_t round_us)
{
    if (round_us < SOCKET_NEAR_US)
        return 0;
    return round_us < OFI_FAR / SOCKET_PER_US
               ? (size_t)round_us * SOCKET_PER_US : OFI_FAR;
}

/* The number may be another's by now, if libfabric has closed its socket. */
int64_t ofi_socket_silent(const struct ofi_conn *conn)
{
    struct ofi_where ours, theirs;
    struct tcp_info info = { .tcpi_unacked = 0 };
    socklen_t length = sizeof(info);

    if (conn->wire < 0 || conn->ep == NULL
        || !socket_ends(conn, &ours, &theirs)
        || !socket_is(conn->wire, &ours, &theirs)
        || getsockopt(conn->wire, IPPROTO_TCP, TCP_INFO, &info, &length) < 0
        || info.tcpi_unacked == 0)
        return -1;
    /* What waits for a window that is shut is not sent again, but asked for. */
    return info.tcpi_retransmits > 0 ? info.tcpi_last_ack_recv : 0;
}
