/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The same work by libfabric itself: tagged messages between endpoints of
 * type FI_EP_RDM.  --over names the provider: shm, "tcp;ofi_rxm", net.
 */
#include "config.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdlib.h>
#include <string.h>

#include "bench/peer.h"

enum { OFI_EVENTS = 16, OFI_QUEUE = 4096 };

struct ofi {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *endpoint;
    struct fid_av *av;
    struct fid_cq *cq;
    fi_addr_t peers[PEER_RANKS];
    size_t inject;                 /* bytes that need no completion */
};
_Static_assert(sizeof(struct fi_context2)
                   <= sizeof(((struct peer_request *)0)->room),
               "room for what a provider keeps with an operation");

static bool ofi_good(long code, const char *what)
{
    if (code == 0)
        return true;
    bench_say("%s: %s", what, fi_strerror((int)-code));
    return false;
}

/* ---- messages ----------------------------------------------------------- */

static bool ofi_failed(struct ofi *ofi)
{
    struct fi_cq_err_entry error = { 0 };
    char text[128];

    if (fi_cq_readerr(ofi->cq, &error, 0) < 0)
        bench_say("fi_cq_readerr failed");
    else
        bench_say("an operation failed: %s, %s", fi_strerror(error.err),
                  fi_cq_strerror(ofi->cq, error.prov_errno, error.err_data,
                                 text, sizeof(text)));
    return false;
}

static bool ofi_progress(struct peer *peer, bool *some)
{
    struct ofi *ofi = peer->library;
    struct fi_cq_entry entries[OFI_EVENTS];
    ssize_t count = fi_cq_read(ofi->cq, entries, OFI_EVENTS);

    if (count == -FI_EAGAIN)
        return true;
    if (count < 0)
        return ofi_failed(ofi);
    /* The context of an operation is the request: its room comes first. */
    for (ssize_t i = 0; i < count; i++)
        if (entries[i].op_context != NULL)
            ((struct peer_request *)entries[i].op_context)->over = true;
    *some = count > 0;
    return true;
}

static bool ofi_send(struct peer *peer, int rank, const void *data,
                     size_t length, struct peer_request *request)
{
    struct ofi *ofi = peer->library;
    uint64_t tag = (uint64_t)peer->driver.rank;
    bool small = length <= ofi->inject;
    ssize_t code;

    for (;;) {
        if (small)
            code = fi_tinject(ofi->endpoint, data, length, ofi->peers[rank],
                              tag);
        else
            code = fi_tsend(ofi->endpoint, data, length, NULL,
                            ofi->peers[rank], tag, request);
        if (code != -FI_EAGAIN)
            break;
        if (!peer_look(peer))
            return false;
    }
    if (small)
        request->over = true;
    return ofi_good(code, small ? "fi_tinject" : "fi_tsend");
}

static bool ofi_receive(struct peer *peer, int rank, void *data, size_t length,
                        struct peer_request *request)
{
    struct ofi *ofi = peer->library;
    ssize_t code;

    while ((code = fi_trecv(ofi->endpoint, data, length, NULL,
                            ofi->peers[rank], (uint64_t)rank, 0, request))
           == -FI_EAGAIN)
        if (!peer_look(peer))
            return false;
    return ofi_good(code, "fi_trecv");
}

/* ---- start and end ------------------------------------------------------ */

static bool ofi_find(struct peer *peer, struct ofi *ofi)
{
    struct fi_info *hints = fi_allocinfo();
    const char *over = peer_over(peer);
    const char *node = strcmp(over, "shm") == 0 ? NULL : "127.0.0.1";
    int code;

    if (hints == NULL) {
        bench_say("out of memory");
        return false;
    }
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(over);
    code = fi_getinfo(FI_VERSION(1, 17), node, NULL,
                      node != NULL ? FI_SOURCE : 0, hints, &ofi->info);
    fi_freeinfo(hints);
    return ofi_good(code, "fi_getinfo");
}

static bool ofi_endpoint(struct ofi *ofi)
{
    struct fi_cq_attr cq = { .size = OFI_QUEUE, .format = FI_CQ_FORMAT_CONTEXT,
                             .wait_obj = FI_WAIT_NONE };
    struct fi_av_attr av = { .type = FI_AV_UNSPEC, .count = PEER_RANKS };

    ofi->inject = ofi->info->tx_attr->inject_size;
    return ofi_good(fi_fabric(ofi->info->fabric_attr, &ofi->fabric, NULL),
                    "fi_fabric")
           && ofi_good(fi_domain(ofi->fabric, ofi->info, &ofi->domain, NULL),
                       "fi_domain")
           && ofi_good(fi_endpoint(ofi->domain, ofi->info, &ofi->endpoint,
                                   NULL), "fi_endpoint")
           && ofi_good(fi_cq_open(ofi->domain, &cq, &ofi->cq, NULL),
                       "fi_cq_open")
           && ofi_good(fi_av_open(ofi->domain, &av, &ofi->av, NULL),
                       "fi_av_open")
           && ofi_good(fi_ep_bind(ofi->endpoint, &ofi->cq->fid,
                                  FI_TRANSMIT | FI_RECV), "fi_ep_bind")
           && ofi_good(fi_ep_bind(ofi->endpoint, &ofi->av->fid, 0),
                       "fi_ep_bind")
           && ofi_good(fi_enable(ofi->endpoint), "fi_enable");
}

static bool ofi_open(struct peer *peer, void *address, size_t *length)
{
    struct ofi *ofi = calloc(1, sizeof(*ofi));

    peer->library = ofi;
    if (ofi == NULL) {
        bench_say("out of memory");
        return false;
    }
    return ofi_find(peer, ofi) && ofi_endpoint(ofi)
           && ofi_good(fi_getname(&ofi->endpoint->fid, address, length),
                       "fi_getname");
}

static bool ofi_connect(struct peer *peer)
{
    struct ofi *ofi = peer->library;

    for (int rank = 0; rank < peer->driver.size; rank++) {
        size_t length;
        const void *address = peer_address(peer, rank, &length);

        if (fi_av_insert(ofi->av, address, 1, &ofi->peers[rank], 0, NULL)
            != 1) {
            bench_say("fi_av_insert refused the address of rank %d", rank);
            return false;
        }
    }
    return true;
}

static void ofi_end(struct fid *fid)
{
    if (fid != NULL)
        fi_close(fid);
}

#define OFI_END(object) ofi_end((object) != NULL ? &(object)->fid : NULL)

static void ofi_close(struct peer *peer)
{
    struct ofi *ofi = peer->library;

    OFI_END(ofi->endpoint);
    OFI_END(ofi->av);
    OFI_END(ofi->cq);
    OFI_END(ofi->domain);
    OFI_END(ofi->fabric);
    fi_freeinfo(ofi->info);
    free(ofi);
}

int main(int argc, char **argv)
{
    static const struct peer_kind kind = {
        .who = "libfabric", .over = "shm", .open = ofi_open,
        .connect = ofi_connect, .close = ofi_close, .send = ofi_send,
        .receive = ofi_receive, .progress = ofi_progress
    };

    return peer_main(argc, argv, &kind);
}
