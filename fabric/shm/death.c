/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The peer's process, watched beside its socket: a child that it forked and
 * that has not called exec(2) holds the socket's other end, too, so that the
 * hang-up comes only when that child ends.  A pidfd tells of the process
 * itself.  Where there is none, the socket has to do.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fabric/shm/shm.h"
#include "runtime/base/io.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77            /* since Linux 6.5 */
#endif

/* A number can be another process's by now; what the socket holds cannot. */
static int death_pidfd(struct shm_conn *conn)
{
    int fd = -1;
    socklen_t length = sizeof(fd);
    pid_t pid;

    if (!conn->called
        && getsockopt(conn->watch.fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &length)
           == 0)
        return fd;
    pid = shm_peer_pid(&conn->base);
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* It is worth a descriptor, but not one that a connection will need. */
static bool death_affords(int fd)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0
           && (rlim_t)fd < limit.rlim_cur / 2;
}

static void death_came(struct tpf_watch *watch, uint32_t events)
{
    struct shm_conn *conn = TPB_CONTAINER(watch, struct shm_conn, death);

    (void)events;
    if (conn->state == SHM_OPEN)
        shm_notes(&conn->base);
    if (conn->state == SHM_OPEN)
        shm_hang_up(conn);
}

void shm_death_watch(struct shm_conn *conn)
{
    conn->death = (struct tpf_watch){ .fd = death_pidfd(conn),
                                      .ready = death_came };
    if (conn->death.fd >= 0
        && (!death_affords(conn->death.fd)
            || tpf_watch_add(conn->base.endpoint->env, &conn->death, EPOLLIN)
               != 0))
        tpb_close(&conn->death.fd);
}

void shm_death_forget(struct shm_conn *conn)
{
    if (conn->death.fd >= 0)
        tpf_watch_remove(conn->base.endpoint->env, &conn->death);
    tpb_close(&conn->death.fd);
}

static bool death_told(int fd, short events)
{
    struct pollfd look = { .fd = fd, .events = events };

    return poll(&look, 1, 0) > 0;
}

/* The kernel takes a process's memory away before it closes its descriptors,
 * at its end as well as in exec(2). */
bool shm_parted(struct tpf_conn *base)
{
    struct shm_conn *conn = shm_conn(base);
    bool over;
    int fd;

    if (conn->hung_up || conn->watch.fd < 0
        || death_told(conn->watch.fd, POLLRDHUP))
        return true;
    fd = death_pidfd(conn);
    over = fd >= 0 ? death_told(fd, POLLIN) : errno == ESRCH;
    tpb_close(&fd);
    return over;
}
