/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda_ipc channel: the receiver imports the sender's allocation and copies
 * straight out of it, by the GPU.
 *
 * The sender describes a buffer when the work on its stream is done, and the
 * receiver says that it is through when its copy is: so no event crosses
 * processes, and no stream waits for one.  For memory of cudaMalloc() and
 * cuMemAlloc(); other kinds go staged.
 *
 * Imports are kept per peer by the exporter's buffer id, which no later
 * allocation has, and not by address, which comes back.
 */
#include "config.h"

#include <unistd.h>

#include "gpu/cuda.h"
#include "gpu/cuda_mem.h"
#include "runtime/base/alloc.h"

enum { IPC_IMPORTS = 64 };             /* of one peer that are kept */

struct ipc_source {
    cu_ipc_memory handle;
    cu_uuid device;
    uint64_t id, size, offset;
};
_Static_assert(sizeof(struct ipc_source) == 104, "wire layout");
_Static_assert(sizeof(struct ipc_source) <= TPF_SOURCE, "TPF_SOURCE");

struct ipc_import {
    struct tpb_list node;              /* the link's, used last at the end */
    uint64_t id;
    int device;                        /* in whose context it is open */
    cu_pointer pointer;
    size_t size;
    uint32_t holds;                    /* pulls out of it */
};

struct ipc_channel {
    struct tpf_channel base;
    struct tpb_list pulls;
};

struct ipc_link {
    struct tpf_link base;
    struct tpb_list imports;
    uint32_t count;
};

struct ipc_pull {
    struct tpf_pull base;
    struct ipc_import *import;
    cu_pointer from;
    cu_event copied;
    size_t part;                       /* under way */
};
_Static_assert(sizeof(struct ipc_pull) <= TPF_PULL, "TPF_PULL is too small");

/* ---- the channel --------------------------------------------------------- */

/* Without waking the driver: is there anything that could be a GPU? */
static tp_status ipc_probe(const struct tpf_env *env, struct tpb_error *error)
{
    const struct tpb_settings *settings = env->settings;

    if (strcmp(settings->text[TPB_SET_CUDA_LIBRARY], "none") == 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "TP_CUDA_LIBRARY=none forbids the use of GPUs");
    if (!settings->set[TPB_SET_CUDA_LIBRARY]
        && access("/dev/nvidiactl", F_OK) != 0
        && access("/dev/dxg", F_OK) != 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "no NVIDIA GPU here (no /dev/nvidiactl)");
    return TP_OK;
}

static tp_status ipc_open(struct tpf_channel *base, struct tpb_error *error)
{
    (void)error;
    tpb_list_init(&((struct ipc_channel *)base)->pulls);
    return TP_OK;
}

static void ipc_close(struct tpf_channel *base)
{
    (void)base;
}

/* Only the first import tells whether it may be; then the driver is up. */
static tp_status ipc_link(struct tpf_link *base, const void *address,
                          size_t length, struct tpb_error *error)
{
    (void)address;
    (void)length;
    (void)error;
    tpb_list_init(&((struct ipc_link *)base)->imports);
    return TP_OK;
}

/* ---- imports ------------------------------------------------------------- */

static void ipc_import_close(struct ipc_link *link, struct ipc_import *import)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();

    if (cuda != NULL && tpg_cuda_enter(cuda, import->device, NULL) == TP_OK) {
        cuda->cuIpcCloseMemHandle(import->pointer);
        tpg_cuda_leave(cuda);
    }
    tpb_list_unlink(&import->node);
    link->count--;
    tpb_free(import);
}

static void ipc_import_room(struct ipc_link *link)
{
    TPB_LIST_EACH(node, &link->imports) {
        struct ipc_import *import = TPB_CONTAINER(node, struct ipc_import,
                                                  node);

        if (link->count < IPC_IMPORTS)
            return;
        if (import->holds == 0) {
            ipc_import_close(link, import);
            return;                    /* the list has changed */
        }
    }
}

static struct ipc_import *ipc_import_find(struct ipc_link *link,
                                          const struct ipc_source *source)
{
    TPB_LIST_EACH(node, &link->imports) {
        struct ipc_import *import = TPB_CONTAINER(node, struct ipc_import,
                                                  node);

        if (import->id == source->id && import->size == source->size) {
            tpb_list_unlink(&import->node);
            tpb_list_append(&link->imports, &import->node);
            return import;
        }
    }
    return NULL;
}

/* NULL with words. */
static struct ipc_import *ipc_import_get(struct ipc_link *link,
                                         const struct tpg_cuda *cuda,
                                         const struct ipc_source *source,
                                         int fallback,
                                         struct tpb_error *error)
{
    struct ipc_import *import = ipc_import_find(link, source);
    int device = tpg_cuda_find(cuda, &source->device);
    tp_status status;

    if (import != NULL)
        return import;
    ipc_import_room(link);
    if (device < 0)
        device = fallback;             /* the driver opens it across devices */
    import = tpb_zalloc(sizeof(*import));
    if (import == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    status = tpg_cuda_enter(cuda, device, error);
    if (status == TP_OK) {
        status = tpg_cuda_fail(cuda, cuda->cuIpcOpenMemHandle_v2(
            &import->pointer, source->handle, CU_IPC_LAZY_PEER),
            "cuIpcOpenMemHandle", error);
        tpg_cuda_leave(cuda);
    }
    if (status != TP_OK) {
        tpb_free(import);
        return NULL;
    }
    import->id = source->id;
    import->size = source->size;
    import->device = device;
    tpb_list_append(&link->imports, &import->node);
    link->count++;
    return import;
}

/* ---- the sender ---------------------------------------------------------- */

static size_t ipc_describe(struct tpf_link *base,
                           const struct tpf_buffer *buffer,
                           unsigned char source[TPF_SOURCE], void **hold)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct tpg_memory memory;
    struct ipc_source mine;
    cu_result code;

    (void)base;
    (void)hold;
    if (buffer->device.type != TP_DEVICE_CUDA || cuda == NULL || !cuda->ipc
        || tpg_memory_look(cuda, buffer->data, &memory, NULL) != TP_OK
        || memory.route != TPG_ROUTE_LEGACY
        || tpg_cuda_enter(cuda, memory.device, NULL) != TP_OK)
        return 0;
    code = cuda->cuIpcGetMemHandle(&mine.handle, memory.base);
    tpg_cuda_leave(cuda);
    if (code != CU_OK)
        return 0;
    mine.device = cuda->uuids[memory.device];
    mine.id = memory.id;
    mine.size = memory.size;
    mine.offset = (uint64_t)(uintptr_t)buffer->data - memory.base;
    memcpy(source, &mine, sizeof(mine));
    return sizeof(mine);
}

/* ---- the receiver -------------------------------------------------------- */

static struct tpg_gpu *ipc_gpu(const struct tpf_pull *pull)
{
    return pull->link->channel->env->gpu;
}

static void ipc_end(const struct tpg_cuda *cuda, struct ipc_pull *pull)
{
    if (pull->copied != NULL)
        cuda->cuEventDestroy_v2(pull->copied);
    pull->copied = NULL;
    pull->import->holds--;
}

/* The next copy: all of it to a device; to the host, where the driver may wait
 * for it, a stride. */
static tp_status ipc_copy(const struct tpg_cuda *cuda, struct ipc_pull *pull,
                          struct tpb_error *error)
{
    struct tpf_pull *base = &pull->base;
    int device = base->to.device.type == TP_DEVICE_CUDA ? base->to.device.index
                                                        : pull->import->device;
    tp_status status = tpg_device_enter(ipc_gpu(base), cuda, device, error);
    cu_stream stream = ipc_gpu(base)->devices[device].in;
    cu_result code = CU_OK;

    if (status != TP_OK)
        return status;
    pull->part = base->to.device.type == TP_DEVICE_CUDA
                 ? base->to.length - base->moved : tpf_stride(base);
    if (pull->copied == NULL)
        code = cuda->cuEventCreate(&pull->copied, CU_EVENT_NO_TIMING);
    if (code == CU_OK)
        code = cuda->cuMemcpyAsync((cu_pointer)(uintptr_t)base->to.data
                                   + base->moved, pull->from + base->moved,
                                   pull->part, stream);
    if (code == CU_OK)
        code = cuda->cuEventRecord(pull->copied, stream);
    tpg_cuda_leave(cuda);
    return tpg_cuda_fail(cuda, code, "a copy between processes", error);
}

static enum tpf_progress ipc_pull(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    struct ipc_pull *pull = (struct ipc_pull *)base;
    struct ipc_channel *channel = (struct ipc_channel *)base->link->channel;
    struct ipc_source source;
    const struct tpg_cuda *cuda;

    if (base->source_length != sizeof(source)) {
        tpb_fail(error, TP_ERR_PROTOCOL, "not a buffer for cuda_ipc");
        return TPF_PULL_REFUSED;
    }
    memcpy(&source, base->source, sizeof(source));
    if (source.offset > source.size
        || base->to.length > source.size - source.offset) {
        tpb_fail(error, TP_ERR_PROTOCOL, "a buffer beyond its allocation");
        return TPF_PULL_REFUSED;
    }
    if (tpg_cuda_load(channel->base.env->settings, &cuda, error) != TP_OK)
        return TPF_PULL_REFUSED;
    pull->copied = NULL;
    pull->import = ipc_import_get((struct ipc_link *)base->link, cuda, &source,
                                  base->to.device.type == TP_DEVICE_CUDA
                                  ? base->to.device.index : 0, error);
    if (pull->import == NULL)
        return TPF_PULL_REFUSED;
    pull->import->holds++;
    pull->from = pull->import->pointer + source.offset;
    if (ipc_copy(cuda, pull, error) != TP_OK) {
        ipc_end(cuda, pull);
        return TPF_PULL_REFUSED;
    }
    tpb_list_append(&channel->pulls, &base->node);
    return TPF_PULL_MORE;
}

/* A copy that was enqueued cannot be taken back. */
static bool ipc_cancel(struct tpf_pull *pull)
{
    (void)pull;
    return false;
}

static bool ipc_step(const struct tpg_cuda *cuda, struct ipc_pull *pull)
{
    struct tpf_env *env = pull->base.link->channel->env;
    struct tpb_error error = { "" };
    cu_result code = cuda->cuEventQuery(pull->copied);
    tp_status status;

    if (code == CU_NOT_READY)
        return false;
    status = tpg_cuda_fail(cuda, code, "a copy between processes", &error);
    if (status == TP_OK) {
        pull->base.moved += pull->part;
        if (pull->base.moved < pull->base.to.length) {
            status = ipc_copy(cuda, pull, &error);
            if (status == TP_OK)
                return true;
        }
    }
    tpb_list_unlink(&pull->base.node);
    ipc_end(cuda, pull);
    env->upcalls->pulled(env->core, &pull->base,
                         status == TP_OK ? TPF_PULL_DONE : TPF_PULL_REFUSED,
                         error.text);
    return true;
}

static bool ipc_progress(struct tpf_channel *base)
{
    struct ipc_channel *channel = (struct ipc_channel *)base;
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct tpb_list *node = tpb_list_take(&channel->pulls);

    /* One at a time, in turn: an upcall may change the list. */
    if (node == NULL)
        return false;
    tpb_list_append(&channel->pulls, node);
    return ipc_step(cuda, TPB_CONTAINER(node, struct ipc_pull, base.node));
}

/* The core has ended the link's pulls: their copies are waited for, since the
 * memory on both sides may go now. */
static void ipc_unlink(struct tpf_link *base)
{
    struct ipc_link *link = (struct ipc_link *)base;
    struct ipc_channel *channel = (struct ipc_channel *)base->channel;
    struct tpg_gpu *gpu = base->channel->env->gpu;
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct tpb_list keep, *node;

    tpb_list_init(&keep);
    while ((node = tpb_list_take(&channel->pulls)) != NULL) {
        struct ipc_pull *pull = TPB_CONTAINER(node, struct ipc_pull,
                                              base.node);

        if (pull->base.link != base)
            tpb_list_append(&keep, node);
        else
            ipc_end(cuda, pull);
    }
    while ((node = tpb_list_take(&keep)) != NULL)
        tpb_list_append(&channel->pulls, node);
    for (int i = 0; cuda != NULL && i < cuda->devices && link->count > 0; i++)
        if (gpu->devices[i].open && tpg_cuda_enter(cuda, i, NULL) == TP_OK) {
            cuda->cuStreamSynchronize(gpu->devices[i].in);
            tpg_cuda_leave(cuda);
        }
    while (link->imports.next != NULL && !tpb_list_empty(&link->imports))
        ipc_import_close(link, TPB_CONTAINER(link->imports.next,
                                             struct ipc_import, node));
}

const struct tpf_channel_kind tpg_cuda_ipc = {
    .name = "cuda_ipc",
    .number = TPF_CHANNEL_CUDA_IPC,
    .reach = TPT_REACH_HOST,
    .devices = true,
    .latency_ns = 8000,
    .megabytes = 100000,
    .channel_size = sizeof(struct ipc_channel),
    .link_size = sizeof(struct ipc_link),
    .pull_size = sizeof(struct ipc_pull),
    .probe = ipc_probe,
    .open = ipc_open,
    .close = ipc_close,
    .link = ipc_link,
    .unlink = ipc_unlink,
    .describe = ipc_describe,
    .pull = ipc_pull,
    .cancel = ipc_cancel,
    .progress = ipc_progress,
};
