/* SPDX-License-Identifier: BSD-3-Clause */
/* The backends' tables; an endpoint opens, moves on, sleeps and closes. */
#include "config.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"

enum { ENDPOINT_SELDOM = 64 };     /* turns of progress() */

extern const struct tpf_backend tpf_ofi_tcp, tpf_ofi_verbs, tpf_ofi_shm;

static const struct ofi_kind endpoint_kinds[] = {
    /* A frame costs two calls of the system, so it is long; but the receiver
     * begins when all of one is there.  With its heads it is four packets of
     * the network within a host, and not four and a nearly empty one.  Few
     * buffers in turn stay in the receiver's cache. */
    { .backend = "ofi:tcp", .provider = "tcp", .heir = "net",
      .type = FI_EP_MSG,
      .max_frame = 4 * 65456, .max_lent = 1024 * 1024 + 64,
      .slots = 64, .posts = 4,
      .join = &ofi_join_msg },
    { .backend = "ofi:verbs", .provider = "verbs", .type = FI_EP_MSG,
      .rdma = true, .rma = true, .max_frame = 32768, .slots = 32,
      .join = &ofi_join_msg },
    { .backend = "ofi:shm", .provider = "shm", .type = FI_EP_RDM,
      .within_host = true, .max_frame = 65536, .slots = 32,
      .join = &ofi_join_rdm }
};

static const struct ofi_kind *endpoint_kind(const struct tpf_backend *backend)
{
    for (size_t i = 0; i < TPB_COUNT(endpoint_kinds); i++)
        if (strcmp(endpoint_kinds[i].backend, backend->name) == 0)
            return &endpoint_kinds[i];
    return ofi_any_kind(backend);
}

/* ---- probing ----------------------------------------------------------- */

static tp_status endpoint_probe_tcp(const struct tpf_env *env,
                                    struct tpb_error *error)
{
    const char *ifaces = env->settings->text[TPB_SET_IFACE];
    struct ofi_where list[OFI_WHERES];

    if (ofi_where_list(ifaces, list) == 0)
        return tpb_interfaces_none(ifaces, TP_ERR_NOT_SUPPORTED, error);
    return ofi_library_probe(error);
}

/* What it takes beside the address: all buffers are locked in memory. */
static tp_status endpoint_probe_verbs(const struct tpf_env *env,
                                      struct tpb_error *error)
{
    const struct ofi_kind *kind = endpoint_kind(&tpf_ofi_verbs);
    tp_status status = ofi_rdma_probe(env, 2 * (size_t)kind->max_frame
                                           * (kind->slots
                                              + OFI_CONTROL_SLOTS), error);

    return status == TP_OK ? ofi_library_probe(error) : status;
}

static tp_status endpoint_probe_shm(const struct tpf_env *env,
                                    struct tpb_error *error)
{
    (void)env;
    if (access("/dev/shm", W_OK | X_OK) < 0) {
        tpb_fail_errno(error, errno, "/dev/shm cannot be written to");
        return TP_ERR_NOT_SUPPORTED;
    }
    return ofi_library_probe(error);
}

/* ---- opening and closing ----------------------------------------------- */

static void endpoint_loaded(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_endpoint *endpoint = TPB_CONTAINER(watch, struct ofi_endpoint,
                                                  loaded);

    (void)events;
    tpb_eventfd_drain(watch->fd);
    ofi_meet_loaded(endpoint);
}

static void endpoint_timer(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_endpoint *endpoint = TPB_CONTAINER(watch, struct ofi_endpoint,
                                                  timer);
    uint64_t count;

    (void)events;
    if (read(watch->fd, &count, sizeof(count)) == sizeof(count))
        ofi_meet_timers(endpoint);
}

struct ofi_conn *ofi_conn_if(struct tpf_conn *conn)
{
    return conn->backend->connect == ofi_conn_connect ? ofi_conn_of(conn)
                                                      : NULL;
}

static void endpoint_init(struct ofi_endpoint *endpoint)
{
    tpb_list_init(&endpoint->meets);
    tpb_list_init(&endpoint->dead);
    tpb_list_init(&endpoint->visits);
    tpb_list_init(&endpoint->lively);
    tpb_list_init(&endpoint->rails);
    tpb_list_init(&endpoint->conns);
    tpb_list_init(&endpoint->due);
    tpb_list_init(&endpoint->stuck);
    endpoint->kind = endpoint_kind(endpoint->common.backend);
    endpoint->timer.fd = endpoint->loaded.fd = -1;
    endpoint->timer.ready = endpoint_timer;
    endpoint->loaded.ready = endpoint_loaded;
}

static tp_status endpoint_watch(struct ofi_endpoint *endpoint,
                                struct tpf_watch *watch, int fd,
                                struct tpb_error *error)
{
    int code = errno;

    watch->fd = fd;
    if (fd >= 0)
        code = tpf_watch_add(endpoint->common.env, watch, EPOLLIN);
    return code == 0 ? TP_OK
                     : tpb_fail_errno(error, code, "%s: a descriptor",
                                      endpoint->kind->backend);
}

static tp_status endpoint_open(struct tpf_endpoint *common,
                               struct tpb_error *error)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(common);
    tp_status status;

    ofi_library_environment();
    endpoint_init(endpoint);
    tpb_random(endpoint->card.key, sizeof(endpoint->card.key));
    endpoint->card.host = htole64(ofi_host_id(common->env->card));
    snprintf((char *)endpoint->card.provider, sizeof(endpoint->card.provider),
             "%s", endpoint->kind->provider);
    status = endpoint_watch(endpoint, &endpoint->loaded, tpb_eventfd(), error);
    if (status == TP_OK)
        status = endpoint_watch(endpoint, &endpoint->timer,
                                timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC
                                                                | TFD_NONBLOCK),
                                error);
    return status == TP_OK ? ofi_listen_open(endpoint, error) : status;
}

static void endpoint_unwatch(struct ofi_endpoint *endpoint,
                             struct tpf_watch *watch)
{
    if (watch->fd >= 0)
        tpf_watch_remove(endpoint->common.env, watch);
    tpb_close(&watch->fd);
}

static void endpoint_close(struct tpf_endpoint *common)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(common);

    ofi_library_forget(endpoint->loaded.fd);
    ofi_listen_close(endpoint);
    ofi_meet_close(endpoint);
    while (!tpb_list_empty(&endpoint->conns))
        ofi_conn_drop(TPB_CONTAINER(endpoint->conns.next, struct ofi_conn,
                                    link));
    TPB_LIST_EACH(node, &endpoint->rails) {
        struct ofi_rail *rail = TPB_CONTAINER(node, struct ofi_rail, link);

        tpb_list_unlink(&rail->link);
        ofi_rail_drop(rail);
    }
    ofi_rdm_orphan(endpoint);
    endpoint_unwatch(endpoint, &endpoint->timer);
    endpoint_unwatch(endpoint, &endpoint->loaded);
}

static size_t endpoint_address(struct tpf_endpoint *common, void *buffer,
                               size_t capacity)
{
    return ofi_card_encode(&ofi_endpoint_of(common)->card, buffer, capacity);
}

static const char *endpoint_carrier(struct tpf_conn *common)
{
    const struct ofi_rail *rail = ofi_conn_of(common)->rail;

    return rail != NULL ? rail->carrier : NULL;
}

static void endpoint_carriers_tcp(const struct tpf_env *env,
                                  struct tpb_text *text)
{
    struct fi_info *info;
    char words[64];

    if (!ofi_library_wait()
        || ofi_info(endpoint_kind(&tpf_ofi_tcp),
                    env->settings->text[TPB_SET_OFI_TCP], NULL, &info, NULL)
               != TP_OK)
        return;
    ofi_info_words(info, words, sizeof(words));
    ofi_lib->freeinfo(info);
    tpb_text_add(text, "%s", words);
}

/* ---- moving on --------------------------------------------------------- */

/* So many turns, or some milliseconds: a turn may take that long.  And where
 * messages always come, a descriptor tells of those first. */
static bool endpoint_asks(struct ofi_endpoint *endpoint)
{
    uint64_t before = endpoint->asked;

    endpoint->asked = tpb_tick();
    return ++endpoint->turns % ENDPOINT_SELDOM == 0
           || endpoint->asked != before;
}

/* Connection events cost a system call, so they are only asked for while
 * somebody is joining, and now and then; their descriptor tells as well. */
static bool endpoint_rails(struct ofi_endpoint *endpoint)
{
    bool seldom = endpoint_asks(endpoint), any = false;

    TPB_LIST_EACH(node, &endpoint->rails) {
        struct ofi_rail *rail = TPB_CONTAINER(node, struct ofi_rail, link);

        if (rail->events.eq == NULL)
            continue;
        any |= ofi_rail_drain(rail, false);
        if (seldom || rail->joining > 0 || rail->door.expected > 0
            || (rail->door.pep != NULL && !rail->silent))
            any |= ofi_msg_events(rail);
    }
    return any;
}

static bool endpoint_conns(struct ofi_endpoint *endpoint)
{
    bool any = false;

    if (endpoint->kind->type == FI_EP_MSG)
        return false;              /* they share the rail's queue */
    TPB_LIST_EACH(node, &endpoint->conns) {
        struct ofi_conn *conn = TPB_CONTAINER(node, struct ofi_conn, link);

        if (conn->cq != NULL && !conn->lost)
            any |= ofi_cq_drain(conn->cq, false);
    }
    return any;
}

/* What libfabric did not take last time is tried again. */
static void endpoint_unstick(struct ofi_endpoint *endpoint)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&endpoint->stuck)) != NULL)
        tpb_list_append(&endpoint->due, node);
}

static bool endpoint_progress(struct tpf_endpoint *common)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(common);
    bool any;

    ofi_meet_bury(endpoint);
    any = endpoint_rails(endpoint);
    any |= endpoint_conns(endpoint);
    endpoint_unstick(endpoint);
    return ofi_conn_upcalls(endpoint) || any;
}

static void endpoint_freed(struct tpf_endpoint *common, uint64_t block)
{
    TPB_LIST_EACH(node, &ofi_endpoint_of(common)->rails)
        ofi_mr_freed(TPB_CONTAINER(node, struct ofi_rail, link), block);
}

static bool endpoint_settled(struct tpf_endpoint *common)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(common);

    if (endpoint->kind->type != FI_EP_MSG || !tpb_list_empty(&endpoint->due)
        || !tpb_list_empty(&endpoint->stuck)
        || !tpb_list_empty(&endpoint->visits)
        || !tpb_list_empty(&endpoint->meets))
        return false;
    TPB_LIST_EACH(node, &endpoint->conns)
        if (!ofi_conn_settled(TPB_CONTAINER(node, struct ofi_conn, link)))
            return false;
    return true;
}

static bool endpoint_arm(struct tpf_endpoint *common)
{
    struct ofi_endpoint *endpoint = ofi_endpoint_of(common);

    endpoint->armed = true;
    if (!tpb_list_empty(&endpoint->due))
        return false;
    if (endpoint->kind->type != FI_EP_MSG)
        return true;               /* TPF_POLLED */
    if (!tpb_list_empty(&endpoint->stuck))
        return false;
    TPB_LIST_EACH(node, &endpoint->rails)
        if (!ofi_rail_sleepy(TPB_CONTAINER(node, struct ofi_rail, link)))
            return false;
    return true;
}

static void endpoint_disarm(struct tpf_endpoint *common)
{
    ofi_endpoint_of(common)->armed = false;
}

/* ---- the tables -------------------------------------------------------- */

#define ENDPOINT_COMMON \
    .endpoint_size = sizeof(struct ofi_endpoint), \
    .conn_size = sizeof(struct ofi_conn), \
    .open = endpoint_open, \
    .close = endpoint_close, \
    .address = endpoint_address, \
    .settled = endpoint_settled, \
    .freed = endpoint_freed, \
    .connect = ofi_conn_connect, \
    .disconnect = ofi_conn_disconnect, \
    .trying = ofi_conn_trying, \
    .carrier = endpoint_carrier, \
    .reserve = ofi_conn_reserve, \
    .commit = ofi_conn_commit, \
    .gathered = ofi_conn_gathered, \
    .send_data = ofi_conn_send_data, \
    .peek = ofi_conn_peek, \
    .pop = ofi_conn_pop, \
    .coming = ofi_conn_coming, \
    .land = ofi_conn_land, \
    .flushed = ofi_conn_flushed, \
    .progress = endpoint_progress, \
    .arm = endpoint_arm, \
    .disarm = endpoint_disarm

const struct tpf_backend tpf_ofi_tcp = {
    .name = "ofi:tcp",
    .reach = TPT_REACH_NETWORK,
    .latency_ns = 15000,
    .megabytes = 3000,
    .nic_kind = TPT_NIC_IP,
    .probe = endpoint_probe_tcp,
    .carriers = endpoint_carriers_tcp,
    ENDPOINT_COMMON
};

const struct tpf_backend tpf_ofi_verbs = {
    .name = "ofi:verbs",
    .reach = TPT_REACH_NETWORK,
    .latency_ns = 1200,
    .megabytes = 8000,             /* frames: copied at both ends */
    .nic_kind = TPT_NIC_RDMA,
    .probe = endpoint_probe_verbs,
    ENDPOINT_COMMON
};

/* Nothing is known of these but that they are slower than what is known. */
const struct tpf_backend ofi_any_template = {
    .reach = TPT_REACH_NETWORK,
    .flags = TPF_POLLED,
    .latency_ns = 20000,
    .megabytes = 1000,
    .probe = endpoint_probe_tcp,
    ENDPOINT_COMMON
};

const struct tpf_backend tpf_ofi_shm = {
    .name = "ofi:shm",
    .reach = TPT_REACH_HOST,
    .flags = TPF_POLLED,
    .latency_ns = 700,
    .megabytes = 8000,
    .probe = endpoint_probe_shm,
    ENDPOINT_COMMON
};
