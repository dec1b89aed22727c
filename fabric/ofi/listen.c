/* SPDX-License-Identifier: BSD-3-Clause */
/* The sockets at which visitors call: one per published address. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"

enum {
    LISTEN_BACKLOG = 4096,
    LISTEN_LACK_MS = 100,          /* when there are no descriptors */
    LISTEN_FULL_MS = 20            /* ... or enough strangers */
};

TPB_LOG_COMPONENT("ofi");

void ofi_listen_pause(struct ofi_endpoint *endpoint, int64_t ms)
{
    for (int i = 0; i < endpoint->listen_count; i++)
        tpf_watch_change(endpoint->common.env, &endpoint->listens[i].watch,
                         ms > 0 ? 0 : EPOLLIN);
    endpoint->listen_paused = ms > 0 ? ofi_meet_after(ms) : 0;
    endpoint->listen_full = false;
}

static void listen_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_listen *listener = TPB_CONTAINER(watch, struct ofi_listen,
                                                watch);
    struct ofi_endpoint *endpoint = listener->endpoint;
    bool full = ofi_meet_full(endpoint);
    int fd = full ? -1 : tpb_accept(watch->fd);

    (void)events;
    if (full) {
        ofi_listen_pause(endpoint, LISTEN_FULL_MS);
        endpoint->listen_full = true;
    } else if (fd >= 0) {
        endpoint->listen_warned = false;
        ofi_meet_stranger(endpoint, fd);
    } else if (errno != EAGAIN) {
        if (!endpoint->listen_warned)
            tpb_warn("cannot accept a peer: %s%s", strerror(errno),
                     tpb_accept_remedy(errno));
        endpoint->listen_warned = true;
        /* The socket would wake us all the time. */
        ofi_listen_pause(endpoint, LISTEN_LACK_MS);
    }
    ofi_meet_schedule(endpoint);
}

static int listen_socket(const struct sockaddr_storage *address,
                         socklen_t length)
{
    int one = 1, fd = socket(address->ss_family,
                             SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    if (address->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, (const struct sockaddr *)address, length) < 0
        || listen(fd, LISTEN_BACKLOG) < 0)
        tpb_close(&fd);
    return fd;
}

/* Listens at `address`; fills *where with the port it got. */
static tp_status listen_at(struct ofi_endpoint *endpoint,
                           struct sockaddr_storage *address, socklen_t length,
                           struct ofi_where *where, struct tpb_error *error)
{
    struct ofi_listen *listener = &endpoint->listens[endpoint->listen_count];
    char text[64] = "a Unix socket";
    struct ofi_where bound;
    int code;

    if (where != NULL)
        ofi_where_text(where, false, text);
    listener->endpoint = endpoint;
    listener->watch.ready = listen_ready;
    listener->watch.fd = listen_socket(address, length);
    if (listener->watch.fd < 0)
        return tpb_fail_errno(error, errno, "listening at %s", text);
    code = tpf_watch_add(endpoint->common.env, &listener->watch, EPOLLIN);
    if (code == 0) {
        endpoint->listen_count++;
        length = sizeof(*address);
        if (where == NULL)
            return TP_OK;
        if (getsockname(listener->watch.fd, (struct sockaddr *)address,
                        &length) == 0
            && ofi_where_from_socket(address, &bound)) {
            where->port = bound.port;
            return TP_OK;
        }
        code = errno;
    } else {
        tpb_close(&listener->watch.fd);    /* it is not among those opened */
    }
    return tpb_fail_errno(error, code, "listening at %s", text);
}

/* One address that does not work is no reason to give up the others. */
static tp_status listen_network(struct ofi_endpoint *endpoint,
                                struct tpb_error *error)
{
    const char *ifaces = endpoint->common.env->settings->text[TPB_SET_IFACE];
    struct ofi_where list[OFI_WHERES];
    int count = ofi_where_list(ifaces, list);

    if (endpoint->kind->rdma)
        count = ofi_rdma_keep(endpoint->common.env->card, list, count);
    if (count == 0)
        return tpb_interfaces_none(ifaces, TP_ERR_NOT_FOUND, error);
    for (int i = 0; i < count; i++) {
        struct sockaddr_storage address;
        socklen_t length = ofi_where_to_socket(&list[i], &address);

        if (listen_at(endpoint, &address, length, &list[i], error) == TP_OK)
            endpoint->card.wheres[endpoint->card.count++] = list[i];
        else
            tpb_debug("%s", error != NULL ? error->text : "cannot listen");
    }
    return endpoint->card.count > 0 ? TP_OK : TP_ERR_SYSTEM;
}

tp_status ofi_listen_open(struct ofi_endpoint *endpoint,
                          struct tpb_error *error)
{
    struct sockaddr_storage address;
    socklen_t length;

    if (!endpoint->kind->within_host)
        return listen_network(endpoint, error);
    length = ofi_unix_address(endpoint->card.key, &address);
    return listen_at(endpoint, &address, length, NULL, error);
}

void ofi_listen_close(struct ofi_endpoint *endpoint)
{
    for (int i = 0; i < endpoint->listen_count; i++) {
        tpf_watch_remove(endpoint->common.env, &endpoint->listens[i].watch);
        tpb_close(&endpoint->listens[i].watch.fd);
    }
    endpoint->listen_count = 0;
}
