/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda_ipc channel: the receiver opens the sender's allocation and copies
 * straight out of it, by the GPU.
 *
 * The sender describes a buffer when the work on its stream is done, and the
 * receiver says that it is through when its copy is: so no event crosses
 * processes, and no stream waits for one.  The end of a copy shows in a word
 * of host memory that the stream writes (cuda_flag.c), or else by its event.
 */
#include "config.h"

#include <unistd.h>

#include "gpu/cuda_ipc/ipc.h"

enum { IPC_LOOK_NS = 100000 };         /* look for errors beside a flag */

struct ipc_pull {
    struct tpf_pull base;
    struct ipc_import *import;         /* NULL: memory of this process */
    cu_pointer from;
    int device;                        /* whose stream copies */
    int source;                        /* another one, which has the bytes, if
                                          the copy is between two contexts; or
                                          -1 */
    cu_event copied;                   /* without flags */
    bool flagged;
    uint32_t turn;                     /* of the flag */
    uint64_t looked;
    size_t part;                       /* under way */
};
_Static_assert(sizeof(struct ipc_pull) <= TPF_PULL, "TPF_PULL is too small");

/* ---- the channel --------------------------------------------------------- */

static tp_status ipc_probe(const struct tpf_env *env, struct tpb_error *error)
{
    return tpg_probe(env->settings, error);
}

static tp_status ipc_open(struct tpf_channel *base, struct tpb_error *error)
{
    struct ipc_channel *channel = (struct ipc_channel *)base;

    (void)error;
    tpb_list_init(&channel->pulls);
    tpb_list_init(&channel->links);
    base->env->gpu->gone = ipc_gone;
    base->env->gpu->gone_arg = channel;
    return TP_OK;
}

static void ipc_close(struct tpf_channel *base)
{
    base->env->gpu->gone = NULL;
}

/* Only the first import tells whether it may be; then the driver is up. */
static tp_status ipc_link(struct tpf_link *base, const void *address,
                          size_t length, struct tpb_error *error)
{
    struct ipc_link *link = (struct ipc_link *)base;
    const struct tpf_backend *backend = base->conn->backend;

    (void)address;
    (void)length;
    (void)error;
    tpb_list_init(&link->exports);
    tpb_list_init(&link->imports);
    tpb_list_append(&((struct ipc_channel *)base->channel)->links,
                    &link->node);
    /* The kernel's word for it, not the peer's. */
    link->own = (backend->flags & TPF_SELF) != 0
                || (backend->peer_pid != NULL
                    && backend->peer_pid(base->conn) == (int)getpid());
    return TP_OK;
}

/* ---- pulling ------------------------------------------------------------- */

static struct tpg_gpu *ipc_gpu(const struct tpf_pull *pull)
{
    return pull->link->channel->env->gpu;
}

static void ipc_end(const struct tpg_cuda *cuda, struct ipc_pull *pull)
{
    if (pull->copied != NULL && cuda != NULL)
        tpg_event_destroy(cuda, pull->device, pull->copied);
    pull->copied = NULL;
    if (pull->import != NULL)
        ipc_import_let_go(pull->import);
    pull->import = NULL;
}

/* Marks the end of what was enqueued.  With the context current. */
static cu_result ipc_mark(const struct tpg_cuda *cuda, struct ipc_pull *pull)
{
    struct tpg_gpu *gpu = ipc_gpu(&pull->base);
    cu_result code = CU_OK;

    pull->looked = tpb_now();
    pull->flagged = tpg_flag_raise(gpu, cuda, pull->device, &pull->turn);
    if (pull->flagged)
        return CU_OK;
    if (pull->copied == NULL)
        code = cuda->cuEventCreate(&pull->copied, CU_EVENT_NO_TIMING);
    if (code == CU_OK)
        code = cuda->cuEventRecord(pull->copied, gpu->devices[pull->device].in);
    return code;
}

static const char ipc_copying[] = "a copy between processes";

/* Memory of cuMemMap may be mapped for the device that has it alone: a plain
 * copy by another one's stream would not reach it. */
static tp_status ipc_enqueue(const struct tpg_cuda *cuda,
                             const struct ipc_pull *pull, cu_stream stream,
                             struct tpb_error *error)
{
    cu_pointer to = (cu_pointer)(uintptr_t)pull->base.to.data
                    + pull->base.moved;
    cu_pointer from = pull->from + pull->base.moved;
    cu_context here, there;
    cu_result code;
    tp_status status;

    if (pull->source < 0) {
        code = cuda->cuMemcpyAsync(to, from, pull->part, stream);
    } else {
        status = tpg_cuda_context(cuda, pull->device, &here, error);
        if (status == TP_OK)
            status = tpg_cuda_context(cuda, pull->source, &there, error);
        if (status != TP_OK)
            return status;
        code = cuda->cuMemcpyPeerAsync(to, here, from, there, pull->part,
                                       stream);
    }
    return tpg_cuda_fail(cuda, code, ipc_copying, error);
}

/* The next copy: all of it to a device; to the host, where the driver may wait
 * for it, a stride. */
static tp_status ipc_copy(const struct tpg_cuda *cuda, struct ipc_pull *pull,
                          struct tpb_error *error)
{
    struct tpf_pull *base = &pull->base;
    struct tpg_gpu *gpu = ipc_gpu(base);
    tp_status status = tpg_device_enter(gpu, cuda, pull->device, error);
    cu_stream stream;

    if (status != TP_OK)
        return status;
    stream = gpu->devices[pull->device].in;
    pull->part = base->to.device.type == TP_DEVICE_CUDA
                 ? base->to.length - base->moved : tpf_stride(base);
    status = ipc_enqueue(cuda, pull, stream, error);
    if (status == TP_OK)
        status = tpg_cuda_fail(cuda, ipc_mark(cuda, pull), ipc_copying, error);
    /* What was enqueued is over before anybody else has the memory. */
    if (status != TP_OK)
        cuda->cuStreamSynchronize(stream);
    tpg_cuda_leave(cuda);
    return status;
}

/* The source as the peer wrote it: nonsense is told by words. */
static tp_status ipc_read_source(const struct ipc_link *link,
                                 const void *bytes, size_t source_length,
                                 size_t length, struct ipc_source *source,
                                 struct tpb_error *error)
{
    if (source_length != sizeof(*source))
        return tpb_fail(error, TP_ERR_PROTOCOL, "not a buffer for cuda_ipc");
    memcpy(source, bytes, sizeof(*source));
    if (source->offset > source->size
        || length > source->size - source->offset)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "a buffer beyond its allocation");
    if (source->form != IPC_LEGACY && source->form != IPC_REGION
        && !(source->form == IPC_OWN && link->own))
        return tpb_fail(error, TP_ERR_PROTOCOL, "no such form of memory");
    return TP_OK;
}

/* Where the source's bytes are in this process.  On failure *refusal. */
static bool ipc_find(struct ipc_link *link, const struct tpg_cuda *cuda,
                     const struct ipc_source *source, int user,
                     struct ipc_import **import, cu_pointer *from,
                     enum tpf_progress *refusal, struct tpb_error *error)
{
    tp_status status;

    *import = NULL;
    if (source->form == IPC_OWN) {
        *from = source->base + source->offset;
        return true;
    }
    *import = ipc_import_get(link, cuda, source, user, &status, error);
    if (*import == NULL) {
        *refusal = status == TP_ERR_NOT_FOUND ? TPF_PULL_PASS
                                              : TPF_PULL_REFUSED;
        return false;
    }
    *from = (*import)->pointer + source->offset;
    return true;
}

/* Is the copy one between two contexts?  What is opened here is so for the
 * device that copies; but a region may be mapped for its own alone. */
static bool ipc_goes_across(const struct ipc_pull *pull)
{
    const struct ipc_import *import = pull->import;

    if (pull->source < 0 || pull->source == pull->device)
        return false;
    return import == NULL
           || (import->form == IPC_REGION
               && (import->allowed >> pull->device & 1) == 0);
}

static enum tpf_progress ipc_pull(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    struct ipc_pull *pull = (struct ipc_pull *)base;
    struct ipc_link *link = (struct ipc_link *)base->link;
    struct ipc_channel *channel = (struct ipc_channel *)base->link->channel;
    bool to_device = base->to.device.type == TP_DEVICE_CUDA;
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    enum tpf_progress refusal = TPF_PULL_REFUSED;
    struct ipc_source source;

    if (ipc_read_source(link, base->source, base->source_length,
                        base->to.length, &source, error) != TP_OK)
        return TPF_PULL_REFUSED;
    if (cuda == NULL && !to_device) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                 "to the CPU, in a process that uses no GPU");
        return TPF_PULL_PASS;
    }
    if (tpg_cuda_load(base->link->channel->env->settings, &cuda, error)
        != TP_OK)
        return TPF_PULL_REFUSED;
    pull->copied = NULL;
    if (!ipc_find(link, cuda, &source, to_device ? base->to.device.index : -1,
                  &pull->import, &pull->from, &refusal, error))
        return refusal;
    pull->source = tpg_cuda_find(cuda, &source.device);
    pull->device = to_device ? base->to.device.index
                   : pull->import != NULL ? pull->import->device
                   : pull->source;
    if (!ipc_goes_across(pull))
        pull->source = -1;
    if (pull->device < 0 || ipc_copy(cuda, pull, error) != TP_OK) {
        ipc_end(cuda, pull);
        return TPF_PULL_REFUSED;
    }
    tpb_list_append(&channel->pulls, &base->node);
    base->link->channel->env->on_devices++;
    return TPF_PULL_MORE;
}

/* A copy that was enqueued cannot be taken back. */
static bool ipc_cancel(struct tpf_pull *pull)
{
    (void)pull;
    return false;
}

/* A flag says when all is well; that something failed, only the driver. */
static cu_result ipc_ask(const struct tpg_cuda *cuda, struct ipc_pull *pull)
{
    struct tpg_gpu *gpu = ipc_gpu(&pull->base);
    cu_result code;
    uint64_t now;

    if (!pull->flagged)
        return tpg_event_query(cuda, pull->copied);
    if (tpg_flag_reached(gpu, pull->device, pull->turn)
        || TPG_MUTANT(NO_FLAG_WAIT))
        return CU_OK;
    now = tpb_now();
    if (now - pull->looked < IPC_LOOK_NS)
        return CU_NOT_READY;
    pull->looked = now;
    if (tpg_cuda_enter(cuda, pull->device, NULL) != TP_OK)
        return CU_INVALID_CONTEXT;
    code = cuda->cuStreamQuery(gpu->devices[pull->device].in);
    tpg_cuda_leave(cuda);
    return code;
}

static void ipc_settle(const struct tpg_cuda *cuda,
                       const struct ipc_pull *pull)
{
    if (cuda != NULL)
        tpg_cuda_settle(cuda, pull->device,
                        ipc_gpu(&pull->base)->devices[pull->device].in);
}

static bool ipc_step(struct tpb_list *node)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct ipc_pull *pull = TPB_CONTAINER(node, struct ipc_pull, base.node);
    struct ipc_link *link = (struct ipc_link *)pull->base.link;
    struct tpf_env *env = pull->base.link->channel->env;
    struct tpb_error error = { "" };
    cu_result code = ipc_ask(cuda, pull);
    tp_status status;

    if (code == CU_NOT_READY)
        return false;
    status = tpg_cuda_fail(cuda, code, ipc_copying, &error);
    if (status != TP_OK) {
        ipc_settle(cuda, pull);
    } else {
        pull->base.moved += pull->part;
        if (pull->base.moved < pull->base.to.length) {
            status = ipc_copy(cuda, pull, &error);
            if (status == TP_OK)
                return true;
        }
    }
    IPC_COUNT(link, pulled, 1);
    IPC_COUNT(link, pulled_bytes, pull->base.moved);
    tpb_list_unlink(&pull->base.node);
    env->on_devices--;
    ipc_end(cuda, pull);
    env->upcalls->pulled(env->core, &pull->base,
                         status == TP_OK ? TPF_PULL_DONE : TPF_PULL_REFUSED,
                         error.text);
    return true;
}

static bool ipc_progress(struct tpf_channel *base)
{
    /* Who sleeps between two passes is to see all that is over. */
    return tpb_list_turn(&((struct ipc_channel *)base)->pulls, ipc_step);
}

/* Waits for the copies of that link. */
static void ipc_stop(struct tpf_link *base)
{
    struct ipc_channel *channel = (struct ipc_channel *)base->channel;
    const struct tpg_cuda *cuda = tpg_cuda_loaded();

    TPB_LIST_EACH(node, &channel->pulls) {
        struct ipc_pull *pull = TPB_CONTAINER(node, struct ipc_pull,
                                              base.node);

        if (pull->base.link != base)
            continue;
        tpb_list_unlink(node);
        base->channel->env->on_devices--;
        ipc_settle(cuda, pull);
        ipc_end(cuda, pull);
    }
}

static void ipc_unlink(struct tpf_link *base)
{
    struct ipc_link *link = (struct ipc_link *)base;

    if (link->node.next == NULL)
        return;                        /* it never was linked */
    tpb_list_unlink(&link->node);
    ipc_exports_end(link);
    ipc_imports_end(link);
}

/* ---- lending ------------------------------------------------------------- */

static enum tpf_progress ipc_map(struct tpf_link *base, const void *bytes,
                                 size_t source_length, size_t length,
                                 struct tpf_buffer *buffer, void **hold,
                                 struct tpb_error *error)
{
    struct ipc_link *link = (struct ipc_link *)base;
    enum tpf_progress refusal;
    const struct tpg_cuda *cuda;
    struct ipc_import *import;
    struct ipc_source source;
    cu_pointer from;
    int device;

    if (ipc_read_source(link, bytes, source_length, length, &source, error)
        != TP_OK
        || tpg_cuda_load(base->channel->env->settings, &cuda, error) != TP_OK)
        return TPF_PULL_REFUSED;
    /* What is in place is on the sender's device: it has to be seen here. */
    device = tpg_cuda_find(cuda, &source.device);
    if (device < 0
        || !ipc_find(link, cuda, &source, device, &import, &from, &refusal,
                     error))
        return TPF_PULL_REFUSED;
    buffer->data = (void *)(uintptr_t)from;
    buffer->device = (tp_device){ TP_DEVICE_CUDA, device };
    *hold = import;
    IPC_COUNT(link, lent, 1);
    return TPF_PULL_DONE;
}

static void ipc_unmap(struct tpf_channel *channel, void *hold)
{
    (void)channel;
    if (hold != NULL)
        ipc_import_let_go(hold);
}

const struct tpf_channel_kind tpg_cuda_ipc = {
    .name = "cuda_ipc",
    .number = TPF_CHANNEL_CUDA_IPC,
    .reach = TPT_REACH_HOST,
    .devices = true,
    .by_device = true,
    .within = true,
    .exports = true,
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
    .forget = ipc_forget,
    .freed = ipc_freed,
    .note = ipc_note,
    .map = ipc_map,
    .unmap = ipc_unmap,
    .pull = ipc_pull,
    .cancel = ipc_cancel,
    .stop = ipc_stop,
    .progress = ipc_progress,
};
