/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The same work by UCX: tagged messages of ucp.  Its own variables choose the
 * way, UCX_TLS=sysv,cma,self among them.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "bench/peer.h"

struct ucx {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoints[PEER_RANKS];
    ucp_request_param_t send, receive;     /* but for user_data */
};

static bool ucx_good(ucs_status_t status, const char *what)
{
    if (status == UCS_OK)
        return true;
    bench_say("%s: %s", what, ucs_status_string(status));
    return false;
}

/* ---- messages ----------------------------------------------------------- */

static void ucx_sent(void *request, ucs_status_t status, void *data)
{
    ((struct peer_request *)data)->over = ucx_good(status, "ucp_tag_send_nbx");
    ucp_request_free(request);
}

static void ucx_received(void *request, ucs_status_t status,
                         const ucp_tag_recv_info_t *info, void *data)
{
    (void)info;
    ((struct peer_request *)data)->over = ucx_good(status, "ucp_tag_recv_nbx");
    ucp_request_free(request);
}

/* What a call of ucp returned: over at once, later, or failed. */
static bool ucx_begun(ucs_status_ptr_t pointer, struct peer_request *request,
                      const char *what)
{
    if (UCS_PTR_IS_ERR(pointer))
        return ucx_good(UCS_PTR_STATUS(pointer), what);
    if (pointer == NULL)
        request->over = true;
    return true;
}

static bool ucx_send(struct peer *peer, int rank, const void *data,
                     size_t length, struct peer_request *request)
{
    struct ucx *ucx = peer->library;

    ucx->send.user_data = request;
    return ucx_begun(ucp_tag_send_nbx(ucx->endpoints[rank], data, length,
                                      (ucp_tag_t)peer->driver.rank,
                                      &ucx->send),
                     request, "ucp_tag_send_nbx");
}

static bool ucx_receive(struct peer *peer, int rank, void *data, size_t length,
                        struct peer_request *request)
{
    struct ucx *ucx = peer->library;

    ucx->receive.user_data = request;
    return ucx_begun(ucp_tag_recv_nbx(ucx->worker, data, length,
                                      (ucp_tag_t)rank, ~(ucp_tag_t)0,
                                      &ucx->receive),
                     request, "ucp_tag_recv_nbx");
}

static bool ucx_progress(struct peer *peer, bool *some)
{
    struct ucx *ucx = peer->library;

    *some = ucp_worker_progress(ucx->worker) > 0;
    return true;
}

/* ---- start and end ------------------------------------------------------ */

/* No call has to find out what memory it is given. */
static void ucx_params(struct ucx *ucx)
{
    ucx->send = (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK
                        | UCP_OP_ATTR_FIELD_USER_DATA
                        | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .memory_type = UCS_MEMORY_TYPE_HOST
    };
    ucx->receive = ucx->send;
    ucx->send.cb.send = ucx_sent;
    ucx->receive.cb.recv = ucx_received;
}

static bool ucx_address(struct ucx *ucx, void *room, size_t *length)
{
    ucp_address_t *address;
    size_t needed;
    bool good;

    if (!ucx_good(ucp_worker_get_address(ucx->worker, &address, &needed),
                  "ucp_worker_get_address"))
        return false;
    good = needed <= *length;
    if (good)
        memcpy(room, address, needed);
    else
        bench_say("an address of %zu bytes is too long", needed);
    *length = needed;
    ucp_worker_release_address(ucx->worker, address);
    return good;
}

static bool ucx_open(struct peer *peer, void *address, size_t *length)
{
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
                            .features = UCP_FEATURE_TAG };
    ucp_worker_params_t worker = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE
    };
    struct ucx *ucx = calloc(1, sizeof(*ucx));
    ucp_config_t *config;
    bool good;

    peer->library = ucx;
    if (ucx == NULL) {
        bench_say("out of memory");
        return false;
    }
    ucx_params(ucx);
    if (!ucx_good(ucp_config_read(NULL, NULL, &config), "ucp_config_read"))
        return false;
    good = ucx_good(ucp_init(&params, config, &ucx->context), "ucp_init");
    ucp_config_release(config);
    return good
           && ucx_good(ucp_worker_create(ucx->context, &worker, &ucx->worker),
                       "ucp_worker_create")
           && ucx_address(ucx, address, length);
}

static bool ucx_connect(struct peer *peer)
{
    struct ucx *ucx = peer->library;

    for (int rank = 0; rank < peer->driver.size; rank++) {
        size_t length;
        ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
            .address = peer_address(peer, rank, &length)
        };

        if (rank != peer->driver.rank
            && !ucx_good(ucp_ep_create(ucx->worker, &params,
                                       &ucx->endpoints[rank]),
                         "ucp_ep_create"))
            return false;
    }
    return true;
}

/* The endpoints go with the worker. */
static void ucx_close(struct peer *peer)
{
    struct ucx *ucx = peer->library;

    if (ucx->worker != NULL)
        ucp_worker_destroy(ucx->worker);
    if (ucx->context != NULL)
        ucp_cleanup(ucx->context);
    free(ucx);
}

int main(int argc, char **argv)
{
    static const struct peer_kind kind = {
        .who = "ucx", .open = ucx_open, .connect = ucx_connect,
        .close = ucx_close, .send = ucx_send, .receive = ucx_receive,
        .progress = ucx_progress
    };

    return peer_main(argc, argv, &kind);
}
