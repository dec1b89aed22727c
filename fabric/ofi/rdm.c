/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joining with reliable datagrams (FI_EP_RDM), for providers that do not
 * leave the host.  Each conn has an endpoint of its own: then the name that
 * libfabric's shm puts into /dev/shm can go as soon as the other side has
 * mapped it, and a dead peer leaves nothing there.  libfabric does not tell
 * when a peer dies, so the socket where the two met is kept to see that.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/leavings.h"

enum { RDM_SWEEP_SECONDS = 10 };

/* ---- endpoints --------------------------------------------------------- */

/* libfabric's shm, which others use within a host, takes over these signals at
 * its first endpoint, to remove its names; the program's own handlers come back
 * here, and the names are gone before they could matter. */
static int rdm_endpoint(struct ofi_conn *conn)
{
    static const int signals[] = { SIGBUS, SIGSEGV, SIGTERM, SIGINT };
    struct sigaction before[TPB_COUNT(signals)];
    int code;

    for (size_t i = 0; i < TPB_COUNT(signals); i++)
        sigaction(signals[i], NULL, &before[i]);
    code = fi_endpoint(conn->rail->domain, conn->rail->info, &conn->ep, conn);
    for (size_t i = 0; i < TPB_COUNT(signals); i++)
        sigaction(signals[i], &before[i], NULL);
    if (code != 0)
        conn->ep = NULL;           /* some leave what they have freed */
    return code;
}

/* shm of libfabric 2 reads through a null pointer where it cannot make the
 * memory of that name. */
static int rdm_rehearse(const char *name)
{
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);

    if (fd < 0)
        return -errno;
    shm_unlink(name);
    close(fd);
    return 0;
}

static int rdm_enable(struct ofi_conn *conn)
{
    sigset_t before;
    int code = conn->name[0] == '\0'
                   ? 0 : fi_setname(&conn->ep->fid, conn->name,
                                    sizeof(conn->name));

    if (code == 0)
        code = fi_ep_bind(conn->ep, &conn->av->fid, 0);
    if (code == 0)
        code = fi_ep_bind(conn->ep, &conn->cq->fid, FI_TRANSMIT | FI_RECV);
    if (code == 0 && conn->name[0] != '\0')
        code = rdm_rehearse(conn->name);
    if (code == 0) {
        tpb_long_files_hold(&before);   /* shm makes its memory here */
        code = fi_enable(conn->ep);
        tpb_long_files_let(&before, code != 0);
    }
    return code;
}

tp_status ofi_rdm_open(struct ofi_conn *conn, struct tpb_error *error)
{
    struct fi_av_attr attr = { .type = FI_AV_TABLE, .count = 1 };
    int code;

    conn->cq = ofi_cq_open(conn->rail, error);
    if (conn->cq == NULL)
        return TP_ERR_BACKEND;
    code = fi_av_open(conn->rail->domain, &attr, &conn->av, NULL);
    if (code != 0)
        conn->av = NULL;           /* likewise */
    else
        code = rdm_endpoint(conn);
    if (code == 0)
        code = rdm_enable(conn);
    return code == 0 ? TP_OK : ofi_fail(error, code, "an endpoint");
}

tp_status ofi_rdm_insert(struct ofi_conn *conn, const char *what,
                         struct tpb_error *error)
{
    int code = fi_av_insert(conn->av, conn->meet->theirs.name, 1, &conn->peer,
                            0, NULL);

    if (code == 1 && conn->peer != FI_ADDR_NOTAVAIL)
        return TP_OK;
    return ofi_fail(error, code < 0 ? code : FI_EADDRNOTAVAIL, what);
}

static void rdm_name(struct ofi_conn *conn)
{
    uint64_t random[2];            /* libfabric never forgets a name */

    tpb_random(random, sizeof(random));
    snprintf(conn->name, sizeof(conn->name),
             TPB_LEAVINGS "%d.%016llx%016llx",
             getpid(), (unsigned long long)random[0],
             (unsigned long long)random[1]);
}

/* Is the peer in this process?  Then the socket is held from here on: it may
 * look at us as soon as it has our name, which is before life has that. */
static tp_status rdm_see_twin(struct ofi_conn *conn, struct tpb_error *error)
{
    struct ucred who = { .pid = 0 };
    socklen_t length = sizeof(who);

    conn->twin = getsockopt(conn->meet->watch.fd, SOL_SOCKET, SO_PEERCRED,
                            &who, &length) == 0 && who.pid == getpid();
    if (!conn->twin)
        return TP_OK;
    conn->met_fd = fcntl(conn->meet->watch.fd, F_DUPFD_CLOEXEC, 0);
    return conn->met_fd >= 0
               ? TP_OK : tpb_fail_errno(error, errno, "a peer's socket");
}

static tp_status rdm_prepare(struct ofi_conn *conn, struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(conn->common.endpoint);
    tp_status status;

    conn->rail = ofi_rail_get(endpoint, NULL, error);
    if (conn->rail == NULL)
        return TP_ERR_BACKEND;
    /* Of those who died between making one and having been mapped. */
    if (conn->rail->holds++ == 1)
        tpb_leavings_sweep(RDM_SWEEP_SECONDS);
    status = ofi_conn_buffers(conn, error);
    rdm_name(conn);
    if (status == TP_OK)
        status = ofi_rdm_open(conn, error);
    if (status == TP_OK)
        status = ofi_conn_post(conn, error);
    if (status == TP_OK)
        status = rdm_see_twin(conn, error);
    if (status == TP_OK)
        memcpy(conn->meet->ours.name, conn->name, sizeof(conn->name));
    return status;
}

/* libfabric's word for a name that it cannot map is the same for all causes. */
static tp_status rdm_refused(const char *name, tp_status status,
                             struct tpb_error *error)
{
    int fd = shm_open(name, O_RDWR, 0), code = fd < 0 ? errno : 0;

    tpb_close(&fd);
    if (code == EACCES)
        return tpb_fail(error, status, "the other side's memory in /dev/shm is"
                        " not for this user (%d): its process runs as another",
                        (int)geteuid());
    if (code == ENOENT)
        return tpb_fail(error, status, "the other side's memory is not in the"
                        " /dev/shm of this process: it has one of its own");
    return status;
}

/* Maps the other side's memory by the name that it told. */
static tp_status rdm_insert(struct ofi_conn *conn, struct tpb_error *error)
{
    const char *name = conn->meet->theirs.name;
    tp_status status;

    /* Only names such as we give: it becomes a path. */
    if (memchr(name, '\0', OFI_NAME) == NULL
        || strncmp(name, TPB_LEAVINGS, strlen(TPB_LEAVINGS)) != 0
        || name[strlen(TPB_LEAVINGS)
                + strspn(name + strlen(TPB_LEAVINGS), "0123456789abcdef.")]
           != '\0')
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "the other side's endpoint has an impossible name");
    status = ofi_rdm_insert(conn, "the other side's memory", error);
    return status == TP_OK ? TP_OK : rdm_refused(name, status, error);
}

/* ---- twins ------------------------------------------------------------- */

/*
 * Two endpoints in one process share one mapping of each other's memory in
 * libfabric's shm, and it unmaps it under whoever still uses it.  So the one
 * that leaves first is kept, unused, until the other has left too, which the
 * socket between them shows.  Its rail is driven without a lock, by whoever
 * drives its endpoint: so only he closes it, as long as there is one.
 */
struct rdm_twin {
    struct tpb_list link;
    const struct ofi_endpoint *endpoint;   /* NULL: it has been closed */
    struct ofi_rail *rail;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    int fd;
};

static pthread_mutex_t rdm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tpb_list rdm_twins = { &rdm_twins, &rdm_twins };

void ofi_rdm_close(struct fid_ep *ep, struct fid_av *av, struct fid_cq *cq)
{
    if (ep != NULL)
        fi_close(&ep->fid);
    if (av != NULL)
        fi_close(&av->fid);
    if (cq != NULL)
        fi_close(&cq->fid);
}

/* Has the other end of the socket been closed altogether? */
static bool rdm_left(int fd)
{
    struct pollfd poller = { .fd = fd };

    return fd < 0 || (poll(&poller, 1, 0) > 0 && poller.revents & POLLHUP);
}

/* With the lock. */
static void rdm_reap(const struct ofi_endpoint *endpoint)
{
    TPB_LIST_EACH(node, &rdm_twins) {
        struct rdm_twin *twin = TPB_CONTAINER(node, struct rdm_twin, link);

        if ((twin->endpoint != NULL && twin->endpoint != endpoint)
            || !rdm_left(twin->fd))
            continue;
        tpb_list_unlink(&twin->link);
        ofi_rdm_close(twin->ep, twin->av, twin->cq);
        ofi_rail_drop(twin->rail);
        tpb_close(&twin->fd);
        tpb_free(twin);
    }
}

void ofi_rdm_orphan(const struct ofi_endpoint *endpoint)
{
    pthread_mutex_lock(&rdm_lock);
    rdm_reap(endpoint);
    TPB_LIST_EACH(node, &rdm_twins) {
        struct rdm_twin *twin = TPB_CONTAINER(node, struct rdm_twin, link);

        if (twin->endpoint == endpoint)
            twin->endpoint = NULL;
    }
    pthread_mutex_unlock(&rdm_lock);
}

/* True if a twin has taken over what the conn had. */
static bool rdm_linger(struct ofi_conn *conn)
{
    int *fd = conn->life.fd >= 0 ? &conn->life.fd : &conn->met_fd;
    struct rdm_twin *twin;

    if (!conn->twin || rdm_left(*fd))
        return false;
    twin = tpb_zalloc(sizeof(*twin));
    if (twin == NULL)
        return false;
    twin->endpoint = ofi_endpoint_of(conn->common.endpoint);
    twin->rail = conn->rail;
    twin->ep = conn->ep;
    twin->cq = conn->cq;
    twin->av = conn->av;
    twin->fd = *fd;
    *fd = -1;
    shutdown(twin->fd, SHUT_WR);
    shm_unlink(conn->name);        /* within the process nobody opens it */
    pthread_mutex_lock(&rdm_lock);
    tpb_list_append(&rdm_twins, &twin->link);
    pthread_mutex_unlock(&rdm_lock);
    return true;
}

/* ---- joining ----------------------------------------------------------- */

static tp_status rdm_met(struct ofi_conn *conn, struct tpb_error *error)
{
    tp_status status = ofi_life_keep(conn, error);

    if (status == TP_OK) {
        tpb_close(&conn->met_fd);  /* life has it */
        ofi_meet_done(conn);
    }
    return status;
}

tp_status ofi_rdm_visited(struct ofi_conn *conn, struct tpb_error *error)
{
    tp_status status = rdm_met(conn, error);

    if (status != TP_OK)
        return status;
    conn->ping_due = true;
    ofi_conn_is_due(conn);
    return TP_OK;
}

void ofi_rdm_await(struct ofi_conn *conn, bool await)
{
    struct tpf_env *env = conn->common.endpoint->env;

    if (conn->awaited != await)
        env->joining += await ? 1 : -1u;
    conn->awaited = await;
}

tp_status ofi_rdm_answered(struct ofi_conn *conn, struct tpb_error *error)
{
    tp_status status = rdm_met(conn, error);

    if (status == TP_OK)
        ofi_rdm_await(conn, true);
    return status;
}

void ofi_rdm_first(struct ofi_conn *conn)
{
    ofi_rdm_await(conn, false);
    ofi_conn_joined(conn);
}

/* The visitor's ping, or the host's answer to it: the other side has mapped
 * us, so our name has done its duty.  Not before: libfabric 2 maps who sends
 * when his first message comes in, and not when it is told of him. */
static void rdm_first(struct ofi_conn *conn)
{
    shm_unlink(conn->name);
    ofi_rdm_first(conn);
}

static tp_status rdm_visit(struct ofi_conn *conn, struct tpb_error *error)
{
    tp_status status = rdm_insert(conn, error);

    return status == TP_OK ? ofi_rdm_visited(conn, error) : status;
}

static void rdm_leave(struct ofi_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;

    pthread_mutex_lock(&rdm_lock);
    rdm_reap(ofi_endpoint_of(conn->common.endpoint));
    pthread_mutex_unlock(&rdm_lock);
    ofi_rdm_await(conn, false);
    if (conn->life.fd >= 0)
        tpf_watch_remove(env, &conn->life);
    if (!rdm_linger(conn)) {
        ofi_rdm_close(conn->ep, conn->av, conn->cq);
        if (conn->rail != NULL)
            ofi_rail_drop(conn->rail);
    }
    tpb_close(&conn->life.fd);
    tpb_close(&conn->met_fd);
    conn->rail = NULL;
    conn->ep = NULL;
    conn->av = NULL;
    conn->cq = NULL;
}

const struct ofi_join ofi_join_rdm = {
    .name_first = true,
    .prepare = rdm_prepare,
    .host = rdm_insert,
    .answered = ofi_rdm_answered,
    .visit = rdm_visit,
    .first = rdm_first,
    .leave = rdm_leave
};
