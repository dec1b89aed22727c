/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The rma channel: the receiver's NIC reads a big buffer out of the sender's
 * memory, without a copy and without the sender's CPU, over the endpoint that
 * the frames go over.
 *
 * The sender registers the buffer for as long as it is offered and tells
 * address and key; what a key opens is exactly that range, or the block of
 * tp_alloc() in which it lies.  A read that fails breaks the endpoint, so
 * there is nothing to ask for in frames afterwards: the pair's end follows.
 */
#include "config.h"

#include <endian.h>
#include <stdio.h>

#include "fabric/channel.h"
#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"

enum { RMA_READS = 8 };            /* under way on one conn */

struct rma_source {
    uint64_t address, key;         /* little-endian */
};
_Static_assert(sizeof(struct rma_source) == 16, "wire layout");

struct rma_channel {
    struct tpf_channel base;
};

struct rma_pull {
    struct tpf_pull base;
    struct ofi_mr *mr;             /* of its destination; NULL: not active */
    uint64_t address, key;
    size_t posted, done;           /* bytes asked for; those that are there */
    uint32_t reads;                /* under way */
    int code;                      /* why it failed; 0: it has not */
    bool cancelled;
};
_Static_assert(sizeof(struct rma_pull) <= TPF_PULL, "TPF_PULL is too small");

/* One read; completions know it by its slot. */
struct rma_read {
    struct ofi_slot slot;
    struct rma_pull *pull;         /* NULL: free */
    size_t offset, length;
};

struct ofi_reads {
    struct rma_read reads[RMA_READS];
};

static struct rma_pull *rma_pull_of(struct tpb_list *node)
{
    return (struct rma_pull *)TPB_CONTAINER(node, struct tpf_pull, node);
}

/* ---- the channel and the trial ------------------------------------------ */

static tp_status rma_probe(const struct tpf_env *env, struct tpb_error *error)
{
    return tpf_backend_find("ofi:verbs")->probe(env, error);
}

static tp_status rma_open(struct tpf_channel *channel, struct tpb_error *error)
{
    (void)channel;
    (void)error;
    return TP_OK;
}

static void rma_close(struct tpf_channel *channel)
{
    (void)channel;
}

/* The two are connected already; what is left to ask is whether that device
 * reads remotely at all. */
static tp_status rma_link(struct tpf_link *link, const void *address,
                          size_t length, struct tpb_error *error)
{
    struct ofi_conn *conn = ofi_conn_if(link->conn);

    (void)address;
    (void)length;
    if (conn == NULL)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "goes over libfabric's transports only");
    if (conn->rail == NULL || !conn->rail->rma)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "libfabric's %s cannot read remotely here",
                        ofi_endpoint_of(link->conn->endpoint)->kind->provider);
    return TP_OK;
}

static void rma_unlink(struct tpf_link *link)
{
    (void)link;
}

/* ---- the sender ---------------------------------------------------------- */

static size_t rma_describe(struct tpf_link *link,
                           const struct tpf_buffer *buffer,
                           unsigned char source[TPF_SOURCE], void **hold)
{
    struct ofi_conn *conn = ofi_conn_if(link->conn);
    struct tpb_error error = { "" };
    struct rma_source where;
    struct ofi_mr *mr;

    /* What is meant for a device goes there by cuda_gdr, or staged.  One that
     * is lost still describes: that its buffers go no way is not why the write
     * fails, and the core is about to be told why. */
    if (buffer->device.type != TP_DEVICE_CPU
        || buffer->target.type == TP_DEVICE_CUDA || conn == NULL
        || conn->rail == NULL || !conn->rail->rma)
        return 0;
    mr = ofi_mr_hold(conn->rail, buffer->data, buffer->length, FI_REMOTE_READ,
                     &error);
    if (mr == NULL)
        return 0;                  /* in frames, which copy */
    where.address = htole64(ofi_mr_address(conn->rail, mr, buffer->data));
    where.key = htole64(fi_mr_key(mr->mr));
    memcpy(source, &where, sizeof(where));
    *hold = mr;
    return sizeof(where);
}

static void rma_forget(struct tpf_link *link, void *hold)
{
    (void)link;
    ofi_mr_drop(hold);
}

/* ---- the receiver -------------------------------------------------------- */

static struct rma_read *rma_free_read(struct ofi_conn *conn)
{
    for (size_t i = 0; i < RMA_READS; i++)
        if (conn->reads->reads[i].pull == NULL)
            return &conn->reads->reads[i];
    return NULL;
}

static bool rma_is_over(const struct rma_pull *pull)
{
    return pull->reads == 0
           && (pull->code != 0 || pull->cancelled
               || pull->done == pull->base.to.length);
}

/* One more read of this pull.  False: libfabric or we have no room now. */
static bool rma_post(struct ofi_conn *conn, struct rma_pull *pull)
{
    struct rma_read *read = rma_free_read(conn);
    ssize_t code;

    if (read == NULL)
        return false;
    read->slot.use = OFI_READ;
    read->slot.conn = conn;
    read->offset = pull->posted;
    read->length = ofi_piece(conn->rail->info,
                             pull->base.to.length - pull->posted);
    code = fi_read(conn->ep, (char *)pull->base.to.data + read->offset,
                   read->length, fi_mr_desc(pull->mr->mr), conn->peer,
                   pull->address + read->offset, pull->key,
                   &read->slot.context);
    if (code == -FI_EAGAIN)
        return false;
    if (code != 0) {
        pull->code = (int)-code;
        return true;
    }
    read->pull = pull;
    pull->posted += read->length;
    pull->reads++;
    return true;
}

/* Over: it only waits for its upcall. */
static void rma_settle(struct ofi_conn *conn, struct rma_pull *pull)
{
    if (!rma_is_over(pull))
        return;
    tpb_list_unlink(&pull->base.node);
    tpb_list_append(&conn->pulled, &pull->base.node);
    ofi_conn_is_due(conn);
}

bool ofi_rma_push(struct ofi_conn *conn)
{
    TPB_LIST_EACH(node, &conn->pulls) {
        struct rma_pull *pull = rma_pull_of(node);

        while (pull->posted < pull->base.to.length && pull->code == 0
               && !pull->cancelled && !conn->lost)
            if (!rma_post(conn, pull))
                return conn->reads == NULL || rma_free_read(conn) == NULL;
        rma_settle(conn, pull);
    }
    return true;
}

void ofi_rma_done(struct ofi_slot *slot, int code)
{
    struct rma_read *read = TPB_CONTAINER(slot, struct rma_read, slot);
    struct rma_pull *pull = read->pull;
    struct ofi_conn *conn = slot->conn;

    if (pull == NULL)
        return;
    read->pull = NULL;
    pull->reads--;
    if (code != 0) {
        if (pull->code == 0)
            pull->code = code;
    } else {
        pull->done += read->length;
        if (pull->base.moved == read->offset)
            pull->base.moved += read->length;
    }
    if (rma_is_over(pull)) {
        if (pull->done == pull->base.to.length)
            pull->base.moved = pull->done;
        rma_settle(conn, pull);
    } else if (!ofi_rma_push(conn)) {
        ofi_conn_is_due(conn);
    }
}

void ofi_rma_upcalls(struct ofi_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;
    struct tpb_list *node;

    while ((node = tpb_list_take(&conn->pulled)) != NULL) {
        struct rma_pull *pull = rma_pull_of(node);
        bool whole = pull->done == pull->base.to.length;
        char text[128] = "";

        ofi_mr_drop(pull->mr);
        pull->mr = NULL;
        if (!whole)
            snprintf(text, sizeof(text), "reading remotely failed: %s",
                     ofi_lib->strerror(pull->code != 0 ? pull->code
                                                       : FI_ECANCELED));
        env->upcalls->pulled(env->core, &pull->base,
                             whole ? TPF_PULL_DONE : TPF_PULL_REFUSED, text);
    }
}

/* The endpoint is closed, so nothing writes into their memory any more. */
static void rma_abandon(struct tpb_list *list)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(list)) != NULL) {
        ofi_mr_drop(rma_pull_of(node)->mr);
        rma_pull_of(node)->mr = NULL;
    }
}

void ofi_rma_leave(struct ofi_conn *conn)
{
    rma_abandon(&conn->pulls);
    rma_abandon(&conn->pulled);
    tpb_free(conn->reads);
    conn->reads = NULL;
}

static enum tpf_progress rma_pull(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    struct rma_pull *pull = (struct rma_pull *)base;
    struct ofi_conn *conn = ofi_conn_if(base->link->conn);
    struct rma_source where;

    if (base->source_length != sizeof(where) || base->to.length == 0
        || base->to.device.type != TP_DEVICE_CPU || conn == NULL) {
        tpb_fail(error, TP_ERR_PROTOCOL, "not a buffer for rma");
        return TPF_PULL_REFUSED;
    }
    if (conn->lost || conn->broken || conn->rail == NULL
        || !conn->rail->rma) {
        tpb_fail(error, TP_ERR_PEER_FAILED, "the connection is gone");
        return TPF_PULL_REFUSED;
    }
    if (conn->reads == NULL)
        conn->reads = tpb_zalloc(sizeof(*conn->reads));
    if (conn->reads == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for reads");
        return TPF_PULL_REFUSED;
    }
    memcpy(&where, base->source, sizeof(where));
    pull->address = le64toh(where.address);
    pull->key = le64toh(where.key);
    pull->mr = ofi_mr_hold(conn->rail, base->to.data, base->to.length, FI_READ,
                           error);
    if (pull->mr == NULL)
        return TPF_PULL_REFUSED;
    tpb_list_append(&conn->pulls, &base->node);
    if (!ofi_rma_push(conn))
        ofi_conn_is_due(conn);
    return TPF_PULL_MORE;
}

static bool rma_cancel(struct tpf_pull *base)
{
    struct rma_pull *pull = (struct rma_pull *)base;

    if (pull->mr != NULL && pull->reads > 0) {
        pull->cancelled = true;    /* it will be over with its last read */
        return false;
    }
    tpb_list_unlink(&base->node);
    ofi_mr_drop(pull->mr);
    pull->mr = NULL;
    return true;
}

const struct tpf_channel_kind tpf_rma = {
    .name = "rma",
    .number = TPF_CHANNEL_RMA,
    .reach = TPT_REACH_NETWORK,
    .over = "ofi:verbs",
    .nic_kind = TPT_NIC_RDMA,
    .latency_ns = 15000,           /* two registrations and a round trip */
    .megabytes = 24000,
    .channel_size = sizeof(struct rma_channel),
    .link_size = sizeof(struct tpf_link),
    .pull_size = sizeof(struct rma_pull),
    .probe = rma_probe,
    .open = rma_open,
    .close = rma_close,
    .link = rma_link,
    .unlink = rma_unlink,
    .describe = rma_describe,
    .forget = rma_forget,
    .pull = rma_pull,
    .cancel = rma_cancel,
};
