/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Local RDMA addresses for device memory, and its registration (remote.h).
 *
 * libfabric's headers of 1.17 do not know dmabuf yet; what 1.20 and later add
 * to its binary interface is declared here, and asked for only where the
 * library that was loaded is new enough.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "fabric/ofi/line.h"
#include "runtime/base/alloc.h"

enum { REMOTE_CQ = 1024 };

_Static_assert(sizeof(struct ofi_where) == TPF_REMOTE_WHERE, "it is sent");

/* ---- what libfabric 1.20 added ------------------------------------------- */

/* rdma/fi_domain.h of libfabric 1.20 to 2.3, by their names with REMOTE_. */
#define REMOTE_MR_DMABUF (UINT64_C(1) << 40)

struct remote_dmabuf {
    int fd;
    uint64_t offset;
    size_t length;
    void *base;
};

/* Grows at its end from release to release: zeros are what is meant there. */
union remote_attributes {
    struct fi_mr_attr attr;
    unsigned char room[256];
};
_Static_assert(sizeof(struct fi_mr_attr) <= 256, "room for later members");
_Static_assert(offsetof(struct fi_mr_attr, mr_iov) == 0,
               "the dmabuf takes the place of mr_iov");

static uint32_t remote_version(enum tpf_remote_how how)
{
    return how == TPF_REMOTE_DMABUF ? FI_VERSION(1, 20) : FI_VERSION(1, 17);
}

/* ---- finding ------------------------------------------------------------- */

static void remote_hints(enum tpf_remote_how how, struct fi_info *hints)
{
    hints->caps = FI_MSG | FI_SEND | FI_RECV | FI_RMA | FI_READ
                  | FI_REMOTE_READ;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED
                                  | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    hints->tx_attr->size = 2 * LINE_READS;
    hints->rx_attr->size = 1;
    if (how == TPF_REMOTE_HMEM) {
        hints->caps |= FI_HMEM;
        hints->domain_attr->mr_mode |= FI_MR_HMEM;
    }
}

/* NULL with words. */
static struct fi_info *remote_info(const struct ofi_where *where,
                                   enum tpf_remote_how how,
                                   struct tpb_error *error)
{
    struct fi_info *hints = ofi_lib->dupinfo(NULL), *info = NULL;
    char text[64];
    int code;

    if (hints == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for fi_info");
        return NULL;
    }
    remote_hints(how, hints);
    hints->fabric_attr->prov_name = strdup("verbs");
    code = ofi_lib->getinfo(remote_version(how),
                            ofi_where_text(where, false, text), NULL,
                            FI_SOURCE | FI_NUMERICHOST, hints, &info);
    ofi_lib->freeinfo(hints);
    if (code == 0)
        return info;
    if (how == TPF_REMOTE_HMEM)
        tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                 "libfabric offers no FI_HMEM at %s", text);
    else
        ofi_fail(error, code, "libfabric's provider verbs");
    return NULL;
}

int tpf_remote_list(const struct tpf_env *env, struct tpf_remote_nic *nics)
{
    const char *ifaces = env->settings->text[TPB_SET_IFACE];
    struct ofi_where list[OFI_WHERES];
    int count, used = 0;

    if (ofi_lib == NULL)
        return 0;
    count = ofi_rdma_keep(env->card, list, ofi_where_list(ifaces, list));
    for (int i = 0; i < count && used < TPF_REMOTE_NICS; i++) {
        struct fi_info *info = remote_info(&list[i], TPF_REMOTE_PLAIN, NULL);

        if (info == NULL)
            continue;
        snprintf(nics[used].device, sizeof(nics[used].device), "%.*s",
                 (int)sizeof(nics[used].device) - 1,
                 info->domain_attr->name != NULL ? info->domain_attr->name
                                                 : "");
        memcpy(nics[used++].where, &list[i], sizeof(list[i]));
        ofi_lib->freeinfo(info);
    }
    return used;
}

/* ---- opening ------------------------------------------------------------- */

static void remote_ready(struct tpf_watch *watch, uint32_t events)
{
    (void)events;
    ofi_line_events(TPB_CONTAINER(watch, struct tpf_remote, eq_watch));
}

static void remote_door_ready(struct tpf_watch *watch, uint32_t events)
{
    (void)events;
    ofi_line_events(TPB_CONTAINER(watch, struct tpf_remote, door_watch));
}

static int remote_watch(struct tpf_remote *remote, struct fid_eq *eq,
                        struct tpf_watch *watch)
{
    int fd = -1, code = fi_control(&eq->fid, FI_GETWAIT, &fd);

    if (code != 0)
        return code;
    watch->fd = fd;
    code = tpf_watch_add(remote->env, watch, EPOLLIN);
    if (code != 0)
        watch->fd = -1;
    return -code;
}

/* 0 or a negative fi_errno; *what says of which. */
static int remote_objects(struct tpf_remote *remote, const char **what)
{
    struct fi_eq_attr eq = { .wait_obj = FI_WAIT_FD };
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_CONTEXT,
                             .wait_obj = FI_WAIT_NONE, .size = REMOTE_CQ };
    int code;

    *what = "a fabric";
    code = ofi_lib->fabric(remote->info->fabric_attr, &remote->fabric, NULL);
    if (code != 0)
        return code;
    *what = "a domain";
    code = fi_domain(remote->fabric, remote->info, &remote->domain, NULL);
    if (code != 0) {
        remote->domain = NULL;
        return code;
    }
    *what = "queues";
    code = fi_cq_open(remote->domain, &cq, &remote->cq, NULL);
    if (code == 0)
        code = fi_eq_open(remote->fabric, &eq, &remote->eq, NULL);
    if (code == 0)
        code = fi_eq_open(remote->fabric, &eq, &remote->door_eq, NULL);
    if (code == 0)
        code = remote_watch(remote, remote->eq, &remote->eq_watch);
    return code;
}

static int remote_listen(struct tpf_remote *remote)
{
    struct sockaddr_storage address;
    size_t length = sizeof(address);
    int code = fi_passive_ep(remote->fabric, remote->info, &remote->door,
                             NULL);

    if (code == 0)
        code = fi_pep_bind(remote->door, &remote->door_eq->fid, 0);
    if (code == 0)
        code = fi_listen(remote->door);
    if (code == 0)
        code = fi_getname(&remote->door->fid, &address, &length);
    if (code == 0 && !ofi_where_from_socket(&address, &remote->where))
        code = -FI_EADDRNOTAVAIL;
    if (code == 0)
        code = remote_watch(remote, remote->door_eq, &remote->door_watch);
    return code;
}

tp_status tpf_remote_open(struct tpf_env *env,
                          const struct tpf_remote_nic *nic,
                          enum tpf_remote_how how,
                          struct tpf_remote **result, struct tpb_error *error)
{
    struct tpf_remote *remote;
    const char *what = "";
    int code;

    if (ofi_lib == NULL)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "libfabric is not loaded yet");
    if (FI_VERSION_LT(ofi_lib->version, remote_version(how)))
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "libfabric %u.%u knows no dmabuf, 1.20 does",
                        FI_MAJOR(ofi_lib->version),
                        FI_MINOR(ofi_lib->version));
    remote = tpb_zalloc(sizeof(*remote));
    if (remote == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    remote->env = env;
    remote->eq_watch.fd = remote->door_watch.fd = -1;
    remote->eq_watch.ready = remote_ready;
    remote->door_watch.ready = remote_door_ready;
    tpb_list_init(&remote->lines);
    tpb_list_init(&remote->guests);
    memcpy(&remote->where, nic->where, sizeof(remote->where));
    tpb_random(remote->ticket, sizeof(remote->ticket));
    remote->info = remote_info(&remote->where, how, error);
    if (remote->info == NULL) {
        tpf_remote_close(remote);
        return TP_ERR_NOT_SUPPORTED;
    }
    code = remote_objects(remote, &what);
    if (code == 0) {
        what = "a passive endpoint";
        code = remote_listen(remote);
    }
    if (code != 0) {
        tpf_remote_close(remote);
        return ofi_fail(error, code, what);
    }
    *result = remote;
    return TP_OK;
}

static void remote_unwatch(struct tpf_remote *remote, struct tpf_watch *watch)
{
    if (watch->fd >= 0)
        tpf_watch_remove(remote->env, watch);
    watch->fd = -1;
}

void tpf_remote_close(struct tpf_remote *remote)
{
    if (remote == NULL)
        return;
    remote_unwatch(remote, &remote->door_watch);
    remote_unwatch(remote, &remote->eq_watch);
    ofi_line_guests_close(remote);
    if (remote->door != NULL)
        fi_close(&remote->door->fid);
    if (remote->door_eq != NULL)
        fi_close(&remote->door_eq->fid);
    if (remote->eq != NULL)
        fi_close(&remote->eq->fid);
    if (remote->cq != NULL)
        fi_close(&remote->cq->fid);
    if (remote->domain != NULL)
        fi_close(&remote->domain->fid);
    if (remote->fabric != NULL)
        fi_close(&remote->fabric->fid);
    if (remote->info != NULL)
        ofi_lib->freeinfo(remote->info);
    tpb_free(remote);
}

void tpf_remote_place(const struct tpf_remote *remote,
                      struct tpf_remote_place *place)
{
    memcpy(place->where, &remote->where, sizeof(place->where));
    memcpy(place->ticket, remote->ticket, sizeof(place->ticket));
}

/* ---- registering --------------------------------------------------------- */

static void remote_register_failed(const struct tpf_remote_memory *memory,
                                   int code, struct tpb_error *error)
{
    if (code == -FI_EFAULT)
        tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                 "Bad address (no kernel module gives it to the NIC:"
                 " nvidia_peermem)");
    else if (code == -FI_ENOMEM)
        tpb_fail(error, TP_ERR_NO_MEMORY,
                 "%zu KiB cannot be registered (ulimit -l, or the GPU's BAR1"
                 " is full)", memory->length / 1024);
    else
        ofi_fail(error, code, "registering memory");
}

tp_status tpf_remote_register(struct tpf_remote *remote,
                              const struct tpf_remote_memory *memory,
                              struct tpf_registration **result,
                              struct tpb_error *error)
{
    struct tpf_registration *registration = tpb_zalloc(sizeof(*registration));
    struct remote_dmabuf dmabuf = { .fd = memory->fd,
                                    .length = memory->length,
                                    .base = memory->address };
    struct iovec whole = { memory->address, memory->length };
    union remote_attributes attributes = { .room = { 0 } };
    struct fi_mr_attr *attr = &attributes.attr;
    bool by_fd = memory->how == TPF_REMOTE_DMABUF && memory->fd >= 0;
    int code;

    if (registration == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    attr->mr_iov = &whole;
    if (by_fd)
        attr->mr_iov = (const struct iovec *)(void *)&dmabuf;
    attr->iov_count = 1;
    attr->access = FI_READ | FI_REMOTE_READ;
    attr->requested_key = ++remote->mr_key;
    attr->iface = FI_HMEM_SYSTEM;
    if (memory->how == TPF_REMOTE_HMEM && memory->device >= 0) {
        attr->iface = FI_HMEM_CUDA;
        attr->device.cuda = memory->device;
    }
    code = fi_mr_regattr(remote->domain, attr, by_fd ? REMOTE_MR_DMABUF : 0,
                         &registration->mr);
    if (code != 0) {
        tpb_free(registration);
        remote_register_failed(memory, code, error);
        return TP_ERR_BACKEND;
    }
    *result = registration;
    return TP_OK;
}

void tpf_remote_deregister(struct tpf_registration *registration)
{
    if (registration == NULL)
        return;
    fi_close(&registration->mr->fid);
    tpb_free(registration);
}

uint64_t tpf_registration_key(const struct tpf_registration *registration)
{
    return fi_mr_key(registration->mr);
}
