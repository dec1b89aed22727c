/* SPDX-License-Identifier: BSD-3-Clause */
/* Listeners: the calls, the sockets, and who waits for whom. */
#include "config.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>

#include "runtime/base/alloc.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/desk.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("listener");

enum { LISTENER_BACKLOG = 4096, LISTENER_CALLS = 8 };

/* ---- visitors come ------------------------------------------------------- */

void tpr_listener_pause(tp_listener *listener, bool pause)
{
    if (listener->closed || listener->paused == pause)
        return;
    listener->paused = pause;
    for (uint32_t i = 0; i < listener->entrance_count; i++)
        tpf_watch_change(&listener->context->env,
                         &listener->entrances[i].watch, pause ? 0 : EPOLLIN);
    if (pause)
        tpr_desk_tick(listener->context->desk);
}

static void listener_refused(tp_listener *listener, int code)
{
    if (!listener->warned)
        tpb_warn("cannot accept a peer from outside: %s%s", strerror(code),
                 tpb_accept_remedy(code));
    listener->warned = true;
    tpr_listener_pause(listener, true);
}

static void listener_called(struct tpf_watch *watch, uint32_t events)
{
    struct tpr_entrance *entrance = TPB_CONTAINER(watch, struct tpr_entrance,
                                                  watch);
    tp_listener *listener = entrance->listener;

    (void)events;
    for (int i = 0; i < LISTENER_CALLS && !listener->closed; i++) {
        int fd;

        if (tpr_visitors_full(listener->context->desk)) {
            tpr_listener_pause(listener, true);
            return;
        }
        fd = tpb_accept(watch->fd);
        if (fd < 0) {
            if (errno != EAGAIN)
                listener_refused(listener, errno);
            return;
        }
        listener->warned = false;
        tpr_visitor_new(listener, fd);
    }
}

/* ---- who waits ----------------------------------------------------------- */

/* One tp_accept(). */
struct listener_accept {
    struct tpb_list link;          /* in listener->accepts */
    struct tpr_task task;
    struct tpr_op *op;             /* runs the callback, in its turn */
    tp_listener *listener;
    tp_pipe *pipe;
    tp_accept_fn *accepted;
    void *arg;
};

static void listener_deliver(tp_pipe *none, tp_status status,
                             tp_message *nothing, void *arg)
{
    struct listener_accept *accept = arg, copy = *accept;

    (void)none, (void)nothing;
    tpb_free(accept);
    copy.accepted(copy.listener, status, copy.pipe, copy.arg);
}

static void listener_accept_end(struct listener_accept *accept,
                                tp_status status, tp_pipe *pipe)
{
    tpb_list_unlink(&accept->link);
    accept->pipe = pipe;
    tpr_op_end(accept->op, status);
}

/* As many as there are both of those who come and those who wait. */
static void listener_match(tp_listener *listener)
{
    while (!tpb_list_empty(&listener->accepts)
           && !tpb_list_empty(&listener->here)) {
        struct tpr_guest *guest = TPB_CONTAINER(
            tpb_list_take(&listener->here), struct tpr_guest, link);
        tp_pipe *pipe = tpr_guest_pipe(guest);

        guest->listener = NULL;
        listener->guests--;
        listener->waiting--;
        listener_accept_end(TPB_CONTAINER(listener->accepts.next,
                                          struct listener_accept, link),
                            TP_OK, pipe);
        pipe->unseen = false;
        if (listener->context->open.pipe != pipe)
            tpr_rx_pump(pipe);     /* for tp_read_descriptor_any() */
    }
}

void tpr_listener_arrived(tp_listener *listener, struct tpr_guest *guest)
{
    tpb_list_append(&listener->here, &guest->link);
    listener->waiting++;
    listener_match(listener);
}

static void listener_accept_start(struct listener_accept *accept)
{
    tp_listener *listener = accept->listener;

    if (listener->closed || listener->context->closed) {
        listener_accept_end(accept, TP_ERR_CLOSED, NULL);
        return;
    }
    tpb_list_append(&listener->accepts, &accept->link);
    listener_match(listener);
}

static void listener_accept_run(tp_context *context, struct tpr_task *task)
{
    (void)context;
    listener_accept_start(TPB_CONTAINER(task, struct listener_accept, task));
}

tp_status tp_accept(tp_listener *listener, tp_accept_fn *accepted, void *arg)
{
    struct listener_accept *accept;

    if (listener == NULL || accepted == NULL
        || (tpr_holds(listener->context) && listener->context->closed))
        return TP_ERR_INVALID;
    accept = tpb_zalloc(sizeof(*accept));
    if (accept == NULL)
        return TP_ERR_NO_MEMORY;
    tpb_list_init(&accept->link);
    accept->listener = listener;
    accept->accepted = accepted;
    accept->arg = arg;
    accept->task.run = listener_accept_run;
    accept->op = tpr_op_alloc(listener->context);
    if (accept->op == NULL) {
        tpb_free(accept);
        return TP_ERR_NO_MEMORY;
    }
    accept->op->kind = TPR_OP_DESCRIPTOR;
    accept->op->done = listener_deliver;
    accept->op->arg = accept;
    tpr_submit(listener->context, &accept->task);
    return TP_OK;
}

/* ---- closing ------------------------------------------------------------- */

/* Connected, but nobody wanted it. */
static void listener_dismiss(struct tpr_guest *guest, const char *why)
{
    tpb_list_unlink(&guest->link);
    guest->listener->guests--;
    guest->listener->waiting--;
    guest->listener = NULL;
    tpr_pipe_close(tpr_guest_pipe(guest), why);
}

void tpr_listener_close(tp_listener *listener, const char *why)
{
    tp_context *context = listener->context;

    if (listener->closed)
        return;
    listener->closed = true;
    for (uint32_t i = 0; i < listener->entrance_count; i++) {
        tpf_watch_remove(&context->env, &listener->entrances[i].watch);
        tpb_close(&listener->entrances[i].watch.fd);
    }
    tpr_visitors_end(context->desk, listener);
    TPB_LIST_EACH(node, &context->desk->promised) {
        struct tpr_guest *guest = TPB_CONTAINER(node, struct tpr_guest, link);

        if (guest->listener == listener)
            tpr_peer_end(guest->peer, TP_ERR_CLOSED, why);
    }
    while (!tpb_list_empty(&listener->here))
        listener_dismiss(TPB_CONTAINER(listener->here.next,
                                       struct tpr_guest, link), why);
    while (!tpb_list_empty(&listener->accepts))
        listener_accept_end(TPB_CONTAINER(listener->accepts.next,
                                          struct listener_accept, link),
                            TP_ERR_CLOSED, NULL);
    pthread_mutex_lock(&context->table_lock);
    tpb_list_unlink(&listener->link);
    tpb_list_append(&context->desk->shut, &listener->link);
    pthread_mutex_unlock(&context->table_lock);
    listener->tick = context->desk->ticks;
    if (++context->desk->shut_count > DESK_KEPT)
        tpr_desk_tick(context->desk);
    tpr_touch(context);
}

static void listener_close_run(tp_context *context, struct tpr_task *task)
{
    (void)context;
    tpr_listener_close(TPB_CONTAINER(task, struct tp_listener, task),
                       "the listener was closed");
}

tp_status tp_listener_close(tp_listener *listener)
{
    if (listener == NULL)
        return TP_ERR_INVALID;
    if (!atomic_exchange(&listener->closing, true))
        tpr_submit(listener->context, &listener->task);
    return TP_OK;
}

/* ---- opening ------------------------------------------------------------- */

/* Nobody else knows of the listener yet. */
static tp_status listener_entrance(tp_listener *listener,
                                   const struct sockaddr_storage *address,
                                   socklen_t length, const char *words,
                                   int *code, struct tpb_error *error)
{
    struct tpr_entrance *entrance
        = &listener->entrances[listener->entrance_count];
    int one = 1, fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC
                             | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        *code = errno;
        return tpb_fail_errno(error, *code, "listening at %s", words);
    }
    if (address->ss_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (address->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, (const struct sockaddr *)address, length) < 0
        || listen(fd, LISTENER_BACKLOG) < 0) {
        *code = errno;
        tpb_close(&fd);
        return tpb_fail_errno(error, *code, "listening at %s", words);
    }
    entrance->listener = listener;
    entrance->watch = (struct tpf_watch){ .fd = fd,
                                          .ready = listener_called };
    listener->entrance_count++;
    return TP_OK;
}

static tp_status listener_network(tp_listener *listener, struct tpr_way *way,
                                  int *code, struct tpb_error *error)
{
    struct sockaddr_storage address;
    socklen_t length = tpr_way_socket(way, &address);
    char words[TPR_WAY_TEXT];
    tp_status status = listener_entrance(listener, &address, length,
                                         tpr_way_text(way, words), code,
                                         error);
    uint32_t last = listener->entrance_count - 1;

    if (status != TP_OK)
        return status;
    length = sizeof(address);
    if (getsockname(listener->entrances[last].watch.fd,
                    (struct sockaddr *)&address, &length) < 0
        || !tpr_way_from_socket((struct sockaddr *)&address, way))
        return tpb_fail_errno(error, errno, "listening at %s", words);
    return TP_OK;
}

/* Files and name servers tell of addresses that this host has not, as ::1 where
 * IPv6 is switched off, in many a container. */
static bool listener_lacks(int code)
{
    return code == EADDRNOTAVAIL || code == EAFNOSUPPORT;
}

/* Those of `ways` that work; one that does not is no reason to give up the
 * others, if all were meant, or if this host does not have it. */
static tp_status listener_ways(tp_listener *listener, struct tpr_way *ways,
                               uint32_t count, bool each,
                               struct tpr_address *published,
                               struct tpb_error *error)
{
    tp_status status = TP_OK, last = TP_OK;

    for (uint32_t i = 0; i < count; i++) {
        int code = 0;

        last = listener_network(listener, &ways[i], &code, error);
        if (last == TP_OK)
            published->ways[published->count++] = ways[i];
        else if (status == TP_OK && !listener_lacks(code))
            status = last;
    }
    if (each && status != TP_OK)
        return status;
    if (published->count == 0 && count > 0)
        return last;
    return TP_OK;
}

static tp_status listener_name(tp_listener *listener,
                               struct tpr_address *published,
                               struct tpb_error *error)
{
    struct sockaddr_storage address;
    uint8_t random[16];
    socklen_t length;
    int code;

    tpb_random(random, sizeof(random));
    memcpy(published->name, "tp-listener-", 12);
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(published->name + 12 + 2 * i, 3, "%02x", random[i]);
    length = tpr_name_socket(published->name, &address);
    return listener_entrance(listener, &address, length, "a Unix socket",
                             &code, error);
}

/* Does this HOST mean every address of this one, or every one of a family? */
static bool listener_means_all(const char *host)
{
    return *host == '\0' || strcmp(host, "*") == 0
           || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static tp_status listener_by_hand(tp_listener *listener,
                                  const struct tpr_address *given,
                                  struct tpr_address *published,
                                  struct tpb_error *error)
{
    const char *ifaces = listener->context->settings.text[TPB_SET_IFACE];
    uint8_t family = strcmp(given->host, "0.0.0.0") == 0 ? 4
                     : strcmp(given->host, "::") == 0 ? 6 : 0;
    struct tpr_way ways[TPR_WAYS];
    uint32_t count = 0;
    tp_status status;

    if (!listener_means_all(given->host)) {
        status = tpr_resolve(given->host, given->port, true, ways, &count,
                             error);
        return status != TP_OK ? status
                               : listener_ways(listener, ways, count, true,
                                               published, error);
    }
    count = tpr_interfaces(ifaces, family, true, ways);
    for (uint32_t i = 0; i < count; i++)
        ways[i].port = given->port;
    if (count == 0)
        return tpb_interfaces_none(ifaces, TP_ERR_NOT_FOUND, error);
    return listener_ways(listener, ways, count, given->port != 0, published,
                         error);
}

static tp_status listener_everything(tp_listener *listener,
                                     struct tpr_address *published,
                                     struct tpb_error *error)
{
    const char *ifaces = listener->context->settings.text[TPB_SET_IFACE];
    struct tpr_way ways[TPR_WAYS];
    uint32_t count = tpr_interfaces(ifaces, 0, false, ways);
    tp_status status = listener_name(listener, published, error);

    /* A host without a network still has its own processes. */
    if (status == TP_OK && listener_ways(listener, ways, count, false,
                                         published, error) != TP_OK)
        tpb_info("%s", error->text);
    return status;
}

static tp_status listener_open(tp_listener *listener, const char *text,
                               struct tpb_error *error)
{
    tp_context *context = listener->context;
    struct tpr_address given, published = { .has_host = true };
    struct tpb_text written = { 0 };
    tp_status status;

    memcpy(published.boot_id, context->card.host.boot_id, 16);
    status = text == NULL ? TP_OK : tpr_address_parse(text, &given, error);
    if (status == TP_OK && text != NULL && !given.by_hand)
        status = tpb_fail(error, TP_ERR_INVALID, "an address that"
                          " tp_listener_address() wrote is for tp_connect()");
    if (status == TP_OK)
        status = tpr_secret_open(error);
    if (status == TP_OK)
        status = tpr_secret_get(&context->settings, listener->secret, error);
    if (status != TP_OK)
        return status;
    if (listener->secret[0] == '\0') {
        uint8_t random[16];

        tpb_random(random, sizeof(random));
        for (size_t i = 0; i < sizeof(random); i++)
            snprintf(published.key + 2 * i, 3, "%02x", random[i]);
        memcpy(listener->secret, published.key, sizeof(published.key));
    }
    if (text == NULL)
        status = listener_everything(listener, &published, error);
    else if (given.local)
        status = listener_name(listener, &published, error);
    else
        status = listener_by_hand(listener, &given, &published, error);
    if (status == TP_OK)
        status = tpr_address_format(&published, &written);
    if (status == TP_OK)
        snprintf(listener->address, sizeof(listener->address), "%s",
                 written.text);
    tpb_text_fini(&written);
    return status;
}

/* From here on visitors may come, on another thread. */
static tp_status listener_start(tp_listener *listener,
                                struct tpb_error *error)
{
    tp_context *context = listener->context;
    int code = 0;

    pthread_mutex_lock(&context->table_lock);
    tpb_list_append(&context->desk->listeners, &listener->link);
    pthread_mutex_unlock(&context->table_lock);
    for (uint32_t i = 0; i < listener->entrance_count && code == 0; i++)
        code = tpf_watch_add(&context->env, &listener->entrances[i].watch,
                             EPOLLIN);
    if (code == 0)
        return TP_OK;
    tp_listener_close(listener);   /* its memory is the desk's */
    return tpb_fail_errno(error, code, "epoll");
}

static tp_listener *listener_new(tp_context *context)
{
    tp_listener *listener = tpb_zalloc(sizeof(*listener));

    if (listener == NULL)
        return NULL;
    listener->context = context;
    tpb_list_init(&listener->link);
    tpb_list_init(&listener->accepts);
    tpb_list_init(&listener->here);
    listener->task.run = listener_close_run;
    return listener;
}

tp_status tp_listen(tp_context *context, const char *address,
                    tp_listener **result)
{
    struct tpb_error error = { "" };
    tp_listener *listener;
    tp_status status;

    if (context == NULL || result == NULL)
        return TP_ERR_INVALID;
    listener = listener_new(context);
    if (listener == NULL)
        return TP_ERR_NO_MEMORY;
    status = tpr_desk_open(context, &error);
    if (status == TP_OK)
        status = listener_open(listener, address, &error);
    if (status == TP_OK) {
        status = listener_start(listener, &error);
    } else {
        for (uint32_t i = 0; i < listener->entrance_count; i++)
            tpb_close(&listener->entrances[i].watch.fd);
        tpb_free(listener);
    }
    if (status == TP_OK)
        *result = listener;
    else if (status != TP_ERR_NO_MEMORY)
        tpb_error_log("tp_listen: %s", error.text);
    return status;
}

tp_status tp_listener_address(const tp_listener *listener, char *buffer,
                              size_t size)
{
    if (listener == NULL || buffer == NULL)
        return TP_ERR_INVALID;
    if (strlen(listener->address) >= size)
        return TP_ERR_TRUNCATED;
    strcpy(buffer, listener->address);
    return TP_OK;
}

/* ---- the other side ------------------------------------------------------ */

/* A tp_connect() that found the token taken. */
struct listener_connect {
    struct tpr_task task;
    struct tpr_peer *peer;
};

static void listener_connect_run(tp_context *context, struct tpr_task *base)
{
    struct listener_connect *task = TPB_CONTAINER(base,
                                                  struct listener_connect,
                                                  task);

    if (context->closed)
        tpr_peer_end(task->peer, TP_ERR_CLOSED, "tp_finalize");
    else
        tpr_peer_contact(task->peer, true);
    tpb_free(task);
}

/* What people are told: an address without its key, and shortened. */
static void listener_words(const char *address,
                           const struct tpr_address *parts, char words[96])
{
    char way[TPR_WAY_TEXT];

    if (parts->by_hand)
        snprintf(words, 96, "the listener at %.70s", address);
    else if (parts->count > 0)
        snprintf(words, 96, "the listener at %s",
                 tpr_way_text(&parts->ways[0], way));
    else
        snprintf(words, 96, "the listener %.70s", parts->name);
}

/* Is it an address that one can connect to?  Not all to listen at are. */
static bool listener_leads(const char *address, struct tpr_address *parts,
                           struct tpb_error *error)
{
    if (tpr_address_parse(address, parts, error) != TP_OK)
        return false;
    if (!parts->local
        && (!parts->by_hand || (parts->port != 0
                                && !listener_means_all(parts->host))))
        return true;
    tpb_fail(error, TP_ERR_INVALID, "\"%s\" is an address to listen at only;"
             " tp_listener_address() writes the one to connect to", address);
    return false;
}

tp_status tp_connect(tp_context *context, const char *address, tp_pipe **pipe)
{
    struct tpr_address parts;
    struct tpb_error error = { "" };
    struct listener_connect *task;
    struct tpr_guest *guest;
    tp_status status;
    char words[96];

    if (context == NULL || address == NULL || pipe == NULL
        || (tpr_holds(context) && context->closed))
        return TP_ERR_INVALID;
    if (!listener_leads(address, &parts, &error)) {
        tpb_error_log("tp_connect: %s", error.text);
        return TP_ERR_INVALID;
    }
    listener_words(address, &parts, words);
    task = tpb_zalloc(sizeof(*task));
    if (task == NULL)
        return TP_ERR_NO_MEMORY;
    status = tpr_desk_open(context, &error);
    if (status == TP_ERR_SYSTEM)
        tpb_error_log("tp_connect: %s", error.text);
    if (status != TP_OK
        || (guest = tpr_guest_new(context, words)) == NULL) {
        tpb_free(task);
        return TP_ERR_NO_MEMORY;
    }
    guest->visit = tpr_visit_new(guest, &parts);
    if (guest->visit == NULL) {
        tpr_guest_discard(guest);
        tpb_free(task);
        return TP_ERR_NO_MEMORY;
    }
    task->task.run = listener_connect_run;
    task->peer = guest->peer;
    *pipe = tpr_guest_pipe(guest);
    tpr_submit(context, &task->task);
    return TP_OK;
}
