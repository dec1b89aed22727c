/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The outbox: memory of a device that other processes can open, for what they
 * cannot (stream-ordered pools, imports of a third process).  The copy there
 * stays on the device, and costs far less than the way through the host.
 *
 * Boxes are kept and used again, so that their imports stay good.
 */
#include "config.h"

#include "gpu/cuda.h"
#include "gpu/cuda_late.h"
#include "gpu/cuda_mem.h"
#include "runtime/base/alloc.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("outbox");

enum { OUTBOX_GRANULE = 2 * 1024 * 1024 };

/* ---- boxes --------------------------------------------------------------- */

static void outbox_free(struct tpg_gpu *gpu, const struct tpg_cuda *cuda,
                        struct tpg_box *box)
{
    if (gpu->gone != NULL)
        gpu->gone(gpu->gone_arg, box->memory);
    if (tpg_cuda_enter(cuda, box->device, NULL) == TP_OK) {
        cuda->cuEventDestroy_v2(box->copied);
        tpg_cuda_leave(cuda);
    }
    tpg_late(cuda, TPG_LATE_MEMORY, box->device, box->memory, box->size);
    gpu->box_bytes -= box->size;
    tpb_free(box);
}

void tpg_boxes_free(struct tpg_gpu *gpu, const struct tpg_cuda *cuda)
{
    while (gpu->boxes != NULL) {
        struct tpg_box *box = gpu->boxes;

        gpu->boxes = box->next;
        outbox_free(gpu, cuda, box);
    }
}

/* The smallest of those that are free and do; NULL if none is. */
static struct tpg_box *outbox_reuse(struct tpg_gpu *gpu, int device,
                                    size_t length)
{
    struct tpg_box **best = NULL, *box;

    for (struct tpg_box **at = &gpu->boxes; *at != NULL; at = &(*at)->next)
        if ((*at)->device == device && (*at)->size >= length
            && (best == NULL || (*at)->size < (*best)->size))
            best = at;
    if (best == NULL)
        return NULL;
    box = *best;
    *best = box->next;
    return box;
}

/* Room for so many bytes more: the free ones go, used longest ago first. */
static bool outbox_room(struct tpg_gpu *gpu, const struct tpg_cuda *cuda,
                        size_t size)
{
    size_t most = (size_t)gpu->settings->number[TPB_SET_CUDA_OUTBOX];

    while (gpu->box_bytes + size > most && gpu->boxes != NULL) {
        struct tpg_box **last = &gpu->boxes, *box;

        while ((*last)->next != NULL)
            last = &(*last)->next;
        box = *last;
        *last = NULL;
        outbox_free(gpu, cuda, box);
    }
    return gpu->box_bytes + size <= most;
}

/* With the device's context current; NULL: there is no room. */
static struct tpg_box *outbox_new(struct tpg_gpu *gpu,
                                  const struct tpg_cuda *cuda, int device,
                                  size_t length)
{
    size_t size = (length + OUTBOX_GRANULE - 1) / OUTBOX_GRANULE
                  * OUTBOX_GRANULE;
    struct tpg_box *box;

    if (size < length || !outbox_room(gpu, cuda, size))
        return NULL;
    box = tpb_zalloc(sizeof(*box));
    if (box == NULL)
        return NULL;
    if (cuda->cuEventCreate(&box->copied, CU_EVENT_NO_TIMING) != CU_OK) {
        tpb_free(box);
        return NULL;
    }
    if (cuda->cuMemAlloc_v2(&box->memory, size) != CU_OK) {
        cuda->cuEventDestroy_v2(box->copied);
        tpb_free(box);
        return NULL;
    }
    box->device = device;
    box->size = size;
    gpu->box_bytes += size;
    return box;
}

/* ---- of an operation ----------------------------------------------------- */

static struct tpg_box *outbox_find(const struct tpg_work *work, size_t index)
{
    struct tpg_box *box = work->boxes;

    while (box != NULL && box->index != index)
        box = box->next;
    return box;
}

/* Takes it back from the operation: there is no copy. */
static enum tpg_answer outbox_drop(struct tpg_work *work, struct tpg_box *box)
{
    struct tpg_box **at = &work->boxes;

    while (*at != box)
        at = &(*at)->next;
    *at = box->next;
    box->next = work->gpu->boxes;
    work->gpu->boxes = box;
    return TPG_NOW;
}

/* With the device's context current. */
static cu_result outbox_copy(struct tpg_work *work, struct tpg_box *box,
                             const struct tpf_buffer *buffer)
{
    const struct tpg_cuda *cuda = work->cuda;
    cu_stream out = work->gpu->devices[box->device].out;
    struct tpg_mark *mark = tpg_mark_find(work, buffer->device.index,
                                          buffer->stream);
    cu_result code = cuda->cuMemcpyAsync(
        box->memory, (cu_pointer)(uintptr_t)buffer->data, buffer->length, out);

    if (code == CU_OK && mark != NULL)
        mark->out = true;
    return code == CU_OK ? cuda->cuEventRecord(box->copied, out) : code;
}

static enum tpg_answer outbox_start(struct tpg_work *work, size_t index,
                                    const struct tpf_buffer *buffer)
{
    int device = buffer->device.index;
    struct tpg_box *box;
    cu_result code = CU_OUT_OF_MEMORY;

    if (tpg_device_enter(work->gpu, work->cuda, device, NULL) != TP_OK)
        return TPG_NOW;
    box = outbox_reuse(work->gpu, device, buffer->length);
    if (box == NULL)
        box = outbox_new(work->gpu, work->cuda, device, buffer->length);
    if (box != NULL) {
        box->index = index;
        box->ready = false;
        box->next = work->boxes;
        work->boxes = box;
        code = outbox_copy(work, box, buffer);
        if (code != CU_OK)
            outbox_drop(work, box);
    }
    tpg_cuda_leave(work->cuda);
    if (code == CU_OK) {
        box->ready = TPG_MUTANT(NO_BOX_WAIT);
        return box->ready ? TPG_NOW : TPG_LATER;
    }
    tpb_info("no room for a copy of %zu bytes that other processes can open"
             " (TP_CUDA_OUTBOX): they go through the host", buffer->length);
    return TPG_NOW;
}

enum tpg_answer tpg_work_outbox(struct tpg_work *work, size_t index,
                                const struct tpf_buffer *buffer)
{
    struct tpg_box *box = outbox_find(work, index);
    struct tpg_memory memory;
    enum tpg_answer answer;

    if (box == NULL) {
        if (tpg_memory_look(work->cuda, buffer->data, &memory, NULL) != TP_OK
            || memory.route != TPG_ROUTE_STAGED || memory.kind == TPG_MANAGED)
            return TPG_NOW;
        return outbox_start(work, index, buffer);
    }
    if (box->ready)
        return TPG_NOW;
    answer = TPG_MUTANT(NO_BOX_WAIT) ? TPG_NOW
             : tpg_event_ask(work, box->copied);
    if (answer == TPG_FAILED)
        return outbox_drop(work, box);
    box->ready = answer == TPG_NOW;
    return answer;
}

void tpg_work_boxed(const struct tpg_work *work, size_t index,
                    struct tpf_buffer *buffer)
{
    const struct tpg_box *box = outbox_find(work, index);

    if (box != NULL && box->ready)
        buffer->data = (void *)(uintptr_t)box->memory;
}

void tpg_boxes_back(struct tpg_work *work)
{
    while (work->boxes != NULL)
        outbox_drop(work, work->boxes);
}
