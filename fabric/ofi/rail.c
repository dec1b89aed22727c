/* SPDX-License-Identifier: BSD-3-Clause */
/* libfabric's objects that conns share: one set per local address. */
#include "config.h"

#include <stdio.h>
#include <sys/epoll.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"

TPB_LOG_COMPONENT("ofi");

enum {
    RAIL_CQ = 4096,                /* soft-RoCE has room for 32767 */
    RAIL_READ = 16,
    RAIL_VAIN = 16                 /* wakes in a row with nothing behind them */
};

/* ---- watching ---------------------------------------------------------- */

tp_status ofi_watch_fid(struct ofi_endpoint *endpoint, struct fid *fid,
                        struct tpf_watch *watch, struct tpb_error *error)
{
    int fd = -1, code = fi_control(fid, FI_GETWAIT, &fd);

    if (code != 0)
        return ofi_fail(error, code, "a queue's descriptor");
    watch->fd = fd;
    code = tpf_watch_add(endpoint->common.env, watch, EPOLLIN);
    if (code != 0) {
        watch->fd = -1;
        return tpb_fail_errno(error, code, "watching a queue");
    }
    return TP_OK;
}

static void rail_unwatch(struct ofi_rail *rail, struct tpf_watch *watch)
{
    if (watch->fd >= 0)
        tpf_watch_remove(rail->endpoint->common.env, watch);
    watch->fd = -1;
}

static bool rail_trywait(struct ofi_rail *rail, struct fid *fid)
{
    return fi_trywait(rail->fabric, &fid, 1) == FI_SUCCESS;
}

/* What brought one event stays readable until it is put back, which arm() does
 * before somebody sleeps.  Who polls, or naps without arming, would find it
 * readable each time and take that for something that happened; so it is put
 * back here when there was nothing behind it. */
static void rail_cq_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_cq *cq = TPB_CONTAINER(watch, struct ofi_cq, watch);

    (void)events;
    if (!ofi_cq_drain(cq->cq, false))
        rail_trywait(cq->rail, &cq->cq->fid);
}

/* Somebody calls whom libfabric cannot let in, for want of descriptors, or long
 * messages come in many small bits.  From now on only what is new wakes us: all
 * else is looked at before a sleep. */
static void rail_vain(struct ofi_rail *rail)
{
    if (!rail->silent || rail->edges || ++rail->vain < RAIL_VAIN)
        return;
    tpb_info("%s: woken in vain", rail->endpoint->kind->backend);
    rail->edges = tpf_watch_change(rail->endpoint->common.env,
                                   &rail->events.watch,
                                   EPOLLIN | EPOLLET) == 0;
}

/* Mostly it is a message.  What is put back for nothing to be there may have
 * come just now, and would not be told of again. */
static void rail_eq_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_rail *rail = TPB_CONTAINER(watch, struct ofi_rail,
                                          events.watch);

    (void)events;
    if ((rail->silent && ofi_rail_drain(rail, false)) || ofi_msg_events(rail)
        || (!ofi_events_calm(rail, &rail->events) && ofi_msg_events(rail)))
        rail->vain = 0;
    else
        rail_vain(rail);
}

/* ---- queues of events -------------------------------------------------- */

/*
 * A silent rail's completion queues have no descriptor, so that libfabric does
 * not write to one for each completion.  Its queue of events has one that
 * wakes for all that the domain's sockets bring, and the door's.  It also stays
 * readable from the first event on, until a wait set of ours puts it back
 * (fi_trywait() of libfabric 1.17 does not).  The door's queue shares that: one
 * of its own would wake us twice for each message.
 *
 * The wait set's functions are called as fi_wait_open() and fi_wait() do, which
 * the headers of libfabric 2 warn of; its tcp has wait sets as before.
 */
tp_status ofi_events_open(struct ofi_rail *rail, struct ofi_events *events,
                          struct tpb_error *error)
{
    struct fi_wait_attr wait = { .wait_obj = FI_WAIT_FD };
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
    int code = 0;

    if (rail->silent) {
        if (rail->events.wait == NULL)
            code = rail->fabric->ops->wait_open(rail->fabric, &wait,
                                                &rail->events.wait);
        attr.wait_obj = FI_WAIT_SET;
        attr.wait_set = rail->events.wait;
    }
    if (code == 0)
        code = fi_eq_open(rail->fabric, &attr, &events->eq, NULL);
    if (code != 0)
        return ofi_fail(error, code, "an event queue");
    if (rail->silent && events != &rail->events)
        return TP_OK;
    return ofi_watch_fid(rail->endpoint, &events->eq->fid, &events->watch,
                         error);
}

bool ofi_events_calm(struct ofi_rail *rail, struct ofi_events *events)
{
    if (events->wait != NULL)
        return events->wait->ops->wait(events->wait, 0) == -FI_ETIMEDOUT;
    return events->eq == NULL || rail_trywait(rail, &events->eq->fid);
}

void ofi_events_close(struct ofi_rail *rail, struct ofi_events *events)
{
    rail_unwatch(rail, &events->watch);
    if (events->eq != NULL)
        fi_close(&events->eq->fid);
    if (events->wait != NULL)
        fi_close(&events->wait->fid);
    events->eq = NULL;
    events->wait = NULL;
}

/* ---- completion queues ------------------------------------------------- */

/* What one conn may have under way: all that its endpoint takes. */
static size_t cq_share(const struct ofi_rail *rail)
{
    return rail->info->tx_attr->size + rail->info->rx_attr->size;
}

/* As big as the device has them, down to what one conn needs. */
static struct fid_cq *cq_make(struct ofi_rail *rail, size_t *size,
                              enum fi_wait_obj wait, struct tpb_error *error)
{
    struct fi_cq_attr attr = {
        .format = FI_CQ_FORMAT_MSG, .wait_obj = wait
    };
    struct fid_cq *cq = NULL;
    int code = -FI_EINVAL;

    for (; code != 0 && *size >= cq_share(rail); *size /= 2) {
        attr.size = *size;
        code = fi_cq_open(rail->domain, &attr, &cq, NULL);
        if (code == 0)
            return cq;
    }
    ofi_fail(error, code, "a completion queue");
    return NULL;
}

struct fid_cq *ofi_cq_open(struct ofi_rail *rail, struct tpb_error *error)
{
    size_t size = cq_share(rail);

    return cq_make(rail, &size, FI_WAIT_NONE, error);
}

static void cq_free(struct ofi_cq *cq)
{
    rail_unwatch(cq->rail, &cq->watch);
    if (cq->cq != NULL)
        fi_close(&cq->cq->fid);
    tpb_list_unlink(&cq->link);
    tpb_free(cq);
}

static struct ofi_cq *cq_new(struct ofi_rail *rail, struct tpb_error *error)
{
    struct ofi_cq *cq = tpb_zalloc(sizeof(*cq));
    size_t share = cq_share(rail);
    size_t size = share > RAIL_CQ ? share : RAIL_CQ;

    if (cq == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for a queue");
        return NULL;
    }
    tpb_list_init(&cq->link);
    cq->rail = rail;
    cq->watch.fd = -1;
    cq->watch.ready = rail_cq_ready;
    cq->cq = cq_make(rail, &size, rail->silent ? FI_WAIT_NONE : FI_WAIT_FD,
                     error);
    cq->limit = (unsigned)(size / share);
    if (cq->cq == NULL
        || (!rail->silent
            && ofi_watch_fid(rail->endpoint, &cq->cq->fid, &cq->watch, error)
                   != TP_OK)) {
        cq_free(cq);
        return NULL;
    }
    tpb_list_append(&rail->cqs, &cq->link);
    return cq;
}

struct ofi_cq *ofi_cq_hold(struct ofi_rail *rail, struct tpb_error *error)
{
    struct ofi_cq *cq = NULL;

    TPB_LIST_EACH(node, &rail->cqs) {
        cq = TPB_CONTAINER(node, struct ofi_cq, link);
        /* A silent rail has one, which grows: to read another one would fill
         * those that have been looked at before. */
        if (cq->conns < cq->limit || rail->silent)
            break;
        cq = NULL;
    }
    if (cq == NULL)
        cq = cq_new(rail, error);
    if (cq != NULL)
        cq->conns++;
    return cq;
}

/* Stays for the next one: to make one takes its time. */
void ofi_cq_drop(struct ofi_cq *cq)
{
    cq->conns--;
}

bool ofi_rail_drain(struct ofi_rail *rail, bool all)
{
    bool any = false;

    TPB_LIST_EACH(node, &rail->cqs)
        any |= ofi_cq_drain(TPB_CONTAINER(node, struct ofi_cq, link)->cq, all);
    return any;
}

/* ---- opening ----------------------------------------------------------- */

static tp_status rail_open(struct ofi_rail *rail, struct tpb_error *error)
{
    const struct ofi_kind *kind = rail->endpoint->kind;
    const struct tpb_settings *settings =
        rail->endpoint->common.env->settings;
    const char *wish = settings->text[TPB_SET_OFI_TCP];
    bool msg = kind->type == FI_EP_MSG;
    char text[64];
    tp_status status = ofi_info(kind, wish, rail->where.family != 0
                                                ? ofi_where_text(&rail->where,
                                                                 false, text)
                                                : NULL,
                                &rail->info, error);
    int code;

    /* Not every provider goes by addresses. */
    if (status != TP_OK && !msg && rail->where.family != 0)
        status = ofi_info(kind, wish, NULL, &rail->info, error);
    if (status != TP_OK)
        return status;
    code = ofi_lib->fabric(rail->info->fabric_attr, &rail->fabric, NULL);
    if (code != 0)
        return ofi_fail(error, code, "a fabric");
    code = fi_domain(rail->fabric, rail->info, &rail->domain, NULL);
    if (code != 0) {
        rail->domain = NULL;       /* sockets leaves what it has freed */
        return ofi_fail(error, code, "a domain");
    }
    rail->inject = rail->info->tx_attr->inject_size;
    rail->rma = (rail->info->caps & FI_RMA) != 0
                && !(rail->info->domain_attr->mr_mode
                     & (FI_MR_RAW | FI_MR_ENDPOINT));
    rail->silent = msg && ofi_info_silent(rail->info);
    ofi_info_words(rail->info, rail->carrier, sizeof(rail->carrier));
    tpb_info("%s goes over %s", kind->backend, rail->carrier);
    return msg ? ofi_events_open(rail, &rail->events, error) : TP_OK;
}

void ofi_rail_drop(struct ofi_rail *rail)
{
    if (--rail->holds > 0)
        return;
    ofi_door_close(rail);
    TPB_LIST_EACH(node, &rail->cqs)
        cq_free(TPB_CONTAINER(node, struct ofi_cq, link));
    ofi_events_close(rail, &rail->events);
    ofi_mr_close(rail);
    if (rail->domain != NULL)
        fi_close(&rail->domain->fid);
    if (rail->fabric != NULL)
        fi_close(&rail->fabric->fid);
    if (rail->info != NULL)
        ofi_lib->freeinfo(rail->info);
    tpb_list_unlink(&rail->link);
    tpb_free(rail);
}

struct ofi_rail *ofi_rail_get(struct ofi_endpoint *endpoint,
                              const struct ofi_where *where,
                              struct tpb_error *error)
{
    struct ofi_rail *rail;

    TPB_LIST_EACH(node, &endpoint->rails) {
        rail = TPB_CONTAINER(node, struct ofi_rail, link);
        if (where == NULL || ofi_where_same(&rail->where, where))
            return rail;
    }
    rail = tpb_zalloc(sizeof(*rail));
    if (rail == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for a rail");
        return NULL;
    }
    tpb_list_init(&rail->link);
    rail->endpoint = endpoint;
    rail->holds = 1;
    if (where != NULL)
        rail->where = *where;
    tpb_list_init(&rail->cqs);
    tpb_list_init(&rail->mrs);
    rail->events.watch.fd = rail->door.events.watch.fd = -1;
    rail->events.watch.ready = rail_eq_ready;
    rail->door.rail = rail;
    if (rail_open(rail, error) != TP_OK) {
        ofi_rail_drop(rail);
        return NULL;
    }
    tpb_list_append(&endpoint->rails, &rail->link);
    return rail;
}

/* ---- completions ------------------------------------------------------- */

static void cq_error(struct fid_cq *cq)
{
    struct fi_cq_err_entry entry = { .err_data_size = 0 };
    struct ofi_slot *slot;

    if (fi_cq_readerr(cq, &entry, 0) != 1 || entry.op_context == NULL)
        return;
    slot = TPB_CONTAINER(entry.op_context, struct ofi_slot, context);
    ofi_conn_error(slot->conn, slot, entry.err);
}

bool ofi_cq_drain(struct fid_cq *cq, bool all)
{
    struct fi_cq_msg_entry entries[RAIL_READ];
    bool any = false;
    ssize_t count;

    do {
        count = fi_cq_read(cq, entries, RAIL_READ);
        if (count == -FI_EAVAIL) {
            cq_error(cq);
            any = true;
            continue;
        }
        for (ssize_t i = 0; i < count; i++) {
            struct ofi_slot *slot = TPB_CONTAINER(entries[i].op_context,
                                                  struct ofi_slot, context);

            if (slot->use == OFI_RECEIVE)
                ofi_conn_received(slot->conn, slot, entries[i].len);
            else if (slot->use == OFI_BODY)
                ofi_land_done(slot->conn, entries[i].len);
            else if (slot->use == OFI_READ)
                ofi_rma_done(slot, 0);
            else
                ofi_conn_sent(slot->conn, slot);
            any = true;
        }
    } while (count == RAIL_READ || count == -FI_EAVAIL || (all && count > 0));
    return any;
}

/* An edge may have gone to one who did not read the queue.  Who is expected at
 * the door, and could not be let in, makes none when he can. */
static bool rail_smooth(struct ofi_rail *rail)
{
    if (ofi_events_calm(rail, &rail->events))
        return rail->door.expected == 0;
    ofi_msg_events(rail);
    return false;
}

bool ofi_rail_sleepy(struct ofi_rail *rail)
{
    /* Sockets with something in them wake us, and so does the queue of events;
     * but not what libfabric has read from them already. */
    if (rail->edges && !rail_smooth(rail))
        return false;
    if (rail->silent)
        return !ofi_rail_drain(rail, true);
    TPB_LIST_EACH(node, &rail->cqs)
        if (!rail_trywait(rail, &TPB_CONTAINER(node, struct ofi_cq,
                                               link)->cq->fid))
            return false;
    return ofi_events_calm(rail, &rail->events)
           && ofi_events_calm(rail, &rail->door.events);
}
