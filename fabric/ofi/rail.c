/* SPDX-License-Identifier: BSD-3-Clause */
/* libfabric's objects that conns share: one set per local address. */
#include "config.h"

#include <stdio.h>
#include <sys/epoll.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"

enum { RAIL_CQ = 1024, RAIL_READ = 16, RAIL_EQ_SELDOM = 64 };

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

static void rail_cq_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_rail *rail = TPB_CONTAINER(watch, struct ofi_rail, cq_watch);

    (void)events;
    ofi_cq_drain(rail->cq, false);
}

static void rail_eq_ready(struct tpf_watch *watch, uint32_t events)
{
    struct ofi_rail *rail = TPB_CONTAINER(watch, struct ofi_rail, eq_watch);

    (void)events;
    ofi_msg_events(rail);
}

/* ---- opening ----------------------------------------------------------- */

struct fid_cq *ofi_cq_open(struct ofi_rail *rail, bool waitable,
                           struct tpb_error *error)
{
    struct fi_cq_attr attr = {
        .size = RAIL_CQ,
        .format = FI_CQ_FORMAT_MSG,
        .wait_obj = waitable ? FI_WAIT_FD : FI_WAIT_NONE
    };
    struct fid_cq *cq = NULL;
    int code = fi_cq_open(rail->domain, &attr, &cq, NULL);

    if (code == 0)
        return cq;
    ofi_fail(error, code, "a completion queue");
    return NULL;
}

static tp_status rail_queues(struct ofi_rail *rail, struct tpb_error *error)
{
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
    tp_status status;
    int code = fi_eq_open(rail->fabric, &attr, &rail->eq, rail);

    if (code != 0)
        return ofi_fail(error, code, "an event queue");
    rail->cq = ofi_cq_open(rail, true, error);
    if (rail->cq == NULL)
        return TP_ERR_BACKEND;
    status = ofi_watch_fid(rail->endpoint, &rail->eq->fid, &rail->eq_watch,
                           error);
    if (status == TP_OK)
        status = ofi_watch_fid(rail->endpoint, &rail->cq->fid,
                               &rail->cq_watch, error);
    return status;
}

static tp_status rail_open(struct ofi_rail *rail, struct tpb_error *error)
{
    const struct ofi_kind *kind = rail->endpoint->kind;
    bool msg = kind->type == FI_EP_MSG;
    char text[64];
    tp_status status = ofi_info(kind, msg ? ofi_where_text(&rail->where,
                                                           false, text)
                                          : NULL,
                                &rail->info, error);
    int code;

    if (status != TP_OK)
        return status;
    code = ofi_lib->fabric(rail->info->fabric_attr, &rail->fabric, NULL);
    if (code != 0)
        return ofi_fail(error, code, "a fabric");
    code = fi_domain(rail->fabric, rail->info, &rail->domain, NULL);
    if (code != 0)
        return ofi_fail(error, code, "a domain");
    rail->inject = rail->info->tx_attr->inject_size;
    return msg ? rail_queues(rail, error) : TP_OK;
}

void ofi_rail_drop(struct ofi_rail *rail)
{
    if (--rail->holds > 0)
        return;
    ofi_door_close(rail);
    rail_unwatch(rail, &rail->cq_watch);
    rail_unwatch(rail, &rail->eq_watch);
    if (rail->cq != NULL)
        fi_close(&rail->cq->fid);
    if (rail->eq != NULL)
        fi_close(&rail->eq->fid);
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
    rail->cq_watch.fd = rail->eq_watch.fd = rail->door.watch.fd = -1;
    rail->cq_watch.ready = rail_cq_ready;
    rail->eq_watch.ready = rail_eq_ready;
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
            else
                ofi_conn_sent(slot->conn, slot);
            any = true;
        }
    } while (count == RAIL_READ || count == -FI_EAVAIL || (all && count > 0));
    return any;
}

bool ofi_rail_sleepy(struct ofi_rail *rail)
{
    struct fid *fids[3];
    int count = 0;

    if (rail->cq != NULL)
        fids[count++] = &rail->cq->fid;
    if (rail->eq != NULL)
        fids[count++] = &rail->eq->fid;
    if (rail->door.eq != NULL)
        fids[count++] = &rail->door.eq->fid;
    return count == 0 || fi_trywait(rail->fabric, fids, count) == FI_SUCCESS;
}
