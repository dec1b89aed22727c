/* SPDX-License-Identifier: BSD-3-Clause */
/* getaddrinfo(3), here or in a thread that nobody has to wait for. */
#include "config.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/thread.h"
#include "runtime/resolve.h"

/* getaddrinfo(3); but localhost means this host also where there is neither
 * /etc/hosts nor a name server, as in a bare container (RFC 6761, 6.3). */
static int resolve_look_up(const char *host, bool names,
                           struct addrinfo **list)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                              .ai_flags = names ? 0 : AI_NUMERICHOST };
    int code = getaddrinfo(host, NULL, &hints, list);

    if (code != 0 && names && strcasecmp(host, "localhost") == 0) {
        hints.ai_flags = AI_NUMERICHOST;
        code = getaddrinfo("127.0.0.1", NULL, &hints, list);
    }
    return code;
}

tp_status tpr_resolve(const char *host, uint16_t port, bool names,
                      struct tpr_way ways[TPR_WAYS], uint32_t *count,
                      struct tpb_error *error)
{
    struct addrinfo *list = NULL;
    int code = resolve_look_up(host, names, &list);

    if (code == EAI_NONAME && !names)
        return TP_ERR_INVALID;
    if (code != 0)
        return tpb_fail(error, TP_ERR_NOT_FOUND, "%s: %s", host,
                        code == EAI_SYSTEM ? strerror(errno)
                                           : gai_strerror(code));
    *count = 0;
    for (struct addrinfo *i = list; i != NULL && *count < TPR_WAYS;
         i = i->ai_next)
        if (tpr_way_from_socket(i->ai_addr, &ways[*count]))
            ways[(*count)++].port = port;
    freeaddrinfo(list);
    return *count > 0 ? TP_OK
                      : tpb_fail(error, TP_ERR_NOT_FOUND,
                                 "%s: no address of IPv4 or IPv6", host);
}

/* ---- beside the callers -------------------------------------------------- */

/* The caller's and the thread's; whoever comes last frees it. */
struct tpr_resolve {
    _Atomic int holders;
    int fd;                        /* eventfd; rung when the rest is there */
    _Atomic bool done;             /* ... and this is true */
    uint16_t port;
    tp_status status;
    struct tpb_error error;
    struct tpr_way ways[TPR_WAYS];
    uint32_t count;
    char host[TPR_HOST_TEXT];
};

void tpr_resolve_drop(struct tpr_resolve *resolve)
{
    if (resolve == NULL || atomic_fetch_sub(&resolve->holders, 1) > 1)
        return;
    tpb_close(&resolve->fd);
    tpb_free(resolve);
}

static void *resolve_run(void *arg)
{
    struct tpr_resolve *resolve = arg;

    resolve->status = tpr_resolve(resolve->host, resolve->port, true,
                                  resolve->ways, &resolve->count,
                                  &resolve->error);
    /* Pairs with tpr_resolve_result(). */
    atomic_store_explicit(&resolve->done, true, memory_order_release);
    tpb_eventfd_ring(resolve->fd);
    tpr_resolve_drop(resolve);
    return NULL;
}

static int resolve_thread(struct tpr_resolve *resolve)
{
    pthread_t thread;
    int code = tpb_thread_start(&thread, resolve_run, resolve);

    if (code == 0)
        pthread_detach(thread);
    return code;
}

struct tpr_resolve *tpr_resolve_start(const char *host, uint16_t port, int *fd)
{
    struct tpr_resolve *resolve = tpb_zalloc(sizeof(*resolve));
    int code = ENOMEM;

    if (resolve == NULL)
        goto error;
    snprintf(resolve->host, sizeof(resolve->host), "%s", host);
    resolve->port = port;
    atomic_init(&resolve->holders, 2);
    resolve->fd = tpb_eventfd();
    code = resolve->fd < 0 ? errno : resolve_thread(resolve);
    if (code == 0) {
        *fd = resolve->fd;
        return resolve;
    }
    tpb_close(&resolve->fd);
    tpb_free(resolve);
error:
    errno = code;
    return NULL;
}

tp_status tpr_resolve_result(const struct tpr_resolve *resolve,
                             struct tpr_way ways[TPR_WAYS], uint32_t *count,
                             struct tpb_error *error)
{
    if (!atomic_load_explicit(&resolve->done, memory_order_acquire))
        return tpb_fail(error, TP_ERR_NOT_FOUND, "not looked up yet");
    *error = resolve->error;
    if (resolve->status == TP_OK) {
        memcpy(ways, resolve->ways, sizeof(resolve->ways));
        *count = resolve->count;
    }
    return resolve->status;
}
