/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A context's GPUs: claims of callers, the order of streams, and the staged
 * way of device memory through pinned bounce slots (cuda_staged), which works
 * over every transport because what comes out of it is ordinary bytes.
 */
#include "config.h"

#include <stdlib.h>

#include "gpu/cuda.h"
#include "gpu/cuda_late.h"
#include "runtime/base/alloc.h"

enum { CUDA_ROWS_MOST = 32 * 1024 - 1 };

/* ---- opening ------------------------------------------------------------- */

struct tpg_gpu *tpg_open(const struct tpb_settings *settings)
{
    struct tpg_gpu *gpu = tpb_zalloc(sizeof(*gpu));

    if (gpu != NULL)
        gpu->settings = settings;
    return gpu;
}

static void cuda_slot_free(const struct tpg_cuda *cuda, struct tpg_slot *slot)
{
    cuda->cuEventDestroy_v2(slot->copied);
    tpg_pinned_give(slot->memory, TPG_SLOT);
    tpb_free(slot);
}

static void cuda_device_close(const struct tpg_cuda *cuda,
                              struct tpg_device *device)
{
    cuda->cuStreamSynchronize(device->in);
    cuda->cuStreamSynchronize(device->out);
    for (int i = 0; i < 2; i++) {
        struct tpg_slot **list = i == 0 ? &device->free : &device->draining;

        while (*list != NULL) {
            struct tpg_slot *slot = *list;

            *list = slot->next;
            cuda_slot_free(cuda, slot);
        }
    }
    cuda->cuStreamDestroy_v2(device->in);
    cuda->cuStreamDestroy_v2(device->out);
}

void tpg_close(struct tpg_gpu *gpu)
{
    const struct tpg_cuda *cuda = gpu != NULL ? tpg_cuda_loaded() : NULL;

    for (int i = 0; cuda != NULL && i < cuda->devices; i++)
        if (gpu->devices[i].open
            && tpg_cuda_enter(cuda, i, NULL) == TP_OK) {
            cuda_device_close(cuda, &gpu->devices[i]);
            tpg_cuda_leave(cuda);
        }
    if (cuda != NULL) {
        tpg_boxes_free(gpu, cuda);
        tpg_flags_free(gpu);
    }
    tpb_free(gpu);
}

tp_status tpg_device_enter(struct tpg_gpu *gpu, const struct tpg_cuda *cuda,
                           int index, struct tpb_error *error)
{
    struct tpg_device *device = &gpu->devices[index];
    tp_status status = tpg_cuda_enter(cuda, index, error);

    if (status != TP_OK || device->open)
        return status;
    status = tpg_cuda_fail(cuda, cuda->cuStreamCreateWithPriority(
        &device->in, CU_STREAM_PLAIN, 0), "cuStreamCreate", error);
    if (status == TP_OK) {
        status = tpg_cuda_fail(cuda, cuda->cuStreamCreateWithPriority(
            &device->out, CU_STREAM_PLAIN, 0), "cuStreamCreate", error);
        if (status != TP_OK)
            cuda->cuStreamDestroy_v2(device->in);
    }
    device->open = status == TP_OK;
    if (status != TP_OK)
        tpg_cuda_leave(cuda);
    return status;
}

/* ---- claims -------------------------------------------------------------- */

bool tpg_absent(const struct tpg_gpu *gpu)
{
    return tpg_cuda_notice(gpu->settings) == NULL;
}

tp_status tpg_claim(struct tpg_gpu *gpu, const struct tpf_buffer *buffer,
                    struct tpb_error *error)
{
    const struct tpg_cuda *cuda = tpg_cuda_notice(gpu->settings);
    tp_status status;

    /* Without a driver in use no memory can be a device's. */
    if (cuda == NULL && buffer->device.type == TP_DEVICE_CPU)
        return TP_OK;
    status = cuda != NULL ? TP_OK : tpg_cuda_load(gpu->settings, &cuda, error);
    return status != TP_OK ? status : tpg_claim_check(cuda, buffer, error);
}

tp_status tpg_alloc(struct tpg_gpu *gpu, size_t bytes, tp_device device,
                    struct tpf_memory *block, struct tpb_error *error)
{
    const struct tpg_cuda *cuda = NULL;
    tp_status status = tpg_cuda_load(gpu->settings, &cuda, error);

    if (status == TP_OK)
        status = tpg_alloc_on(cuda, bytes, device, block, error);
    if (status != TP_ERR_NO_MEMORY || cuda == NULL)
        return status;
    /* What peers have freed may be open here still, and what we have freed
     * may not be the device's again. */
    tpg_late_now();
    return tpg_alloc_on(cuda, bytes, device, block, error);
}

/* ---- the order ----------------------------------------------------------- */

struct tpg_mark *tpg_mark_find(struct tpg_work *work, int device,
                               void *stream)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->marks[i].device == device
            && work->marks[i].stream == stream)
            return &work->marks[i];
    return NULL;
}

#define CUDA_NO_STREAM \
    "the tensor's stream is not in the primary context of CUDA device %d"

/*
 * Can that stream be worked with?  One that is being captured runs nothing: an
 * event on it never comes, and one of ours before it ends the capture.  The
 * legacy stream cannot be used while another is captured.
 */
static tp_status cuda_mark_check(const struct tpg_cuda *cuda,
                                 const tp_tensor *tensor,
                                 struct tpb_error *error)
{
    int capturing = CU_CAPTURE_NONE;
    cu_result code = cuda->cuStreamIsCapturing(tensor->stream, &capturing);

    if (code == CU_CAPTURE_IMPLICIT
        || (code == CU_OK && capturing != CU_CAPTURE_NONE))
        return tpb_fail(error, TP_ERR_INVALID, "the tensor's stream is being"
                        " captured into a graph; messages cannot be part of a "
                        "graph: send and receive outside the capture");
    if (code == CU_INVALID_HANDLE || code == CU_INVALID_VALUE
        || code == CU_INVALID_CONTEXT)
        return tpb_fail(error, TP_ERR_INVALID, CUDA_NO_STREAM,
                        tensor->device.index);
    return tpg_cuda_fail(cuda, code, "the tensor's stream", error);
}

/* What a stream of another context is told by, at the latest. */
static tp_status cuda_mark_record(const struct tpg_cuda *cuda,
                                  const struct tpg_mark *mark,
                                  struct tpb_error *error)
{
    cu_result code = cuda->cuEventRecord(
        mark->event, TPG_MUTANT(WRONG_STREAM) ? NULL : mark->stream);

    if (code == CU_INVALID_HANDLE)
        return tpb_fail(error, TP_ERR_INVALID, CUDA_NO_STREAM, mark->device);
    return tpg_cuda_fail(cuda, code, "the tensor's stream", error);
}

static tp_status cuda_mark_add(struct tpg_work *work, const tp_tensor *tensor,
                               struct tpb_error *error)
{
    const struct tpg_cuda *cuda = work->cuda;
    struct tpg_mark *mark = &work->marks[work->count];
    tp_status status;

    if (tpg_mark_find(work, tensor->device.index, tensor->stream) != NULL)
        return TP_OK;
    status = tpg_cuda_enter(cuda, tensor->device.index, error);
    if (status != TP_OK)
        return status;
    mark->device = tensor->device.index;
    mark->stream = tensor->stream;
    status = cuda_mark_check(cuda, tensor, error);
    if (status == TP_OK)
        status = tpg_cuda_fail(cuda, cuda->cuEventCreate(
            &mark->event, CU_EVENT_NO_TIMING), "cuEventCreate", error);
    if (status == TP_OK) {
        work->count++;
        status = cuda_mark_record(cuda, mark, error);
    }
    tpg_cuda_leave(cuda);
    return status;
}

tp_status tpg_work_new(struct tpg_gpu *gpu, const tp_message *message,
                       struct tpg_work **result, struct tpb_error *error)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct tpg_work *work;
    size_t count = 0;
    tp_status status;

    for (size_t i = 0; i < message->tensor_count; i++)
        count += message->tensors[i].device.type == TP_DEVICE_CUDA
                 && message->tensors[i].length > 0;
    *result = NULL;
    if (count == 0)
        return TP_OK;
    status = cuda != NULL ? TP_OK : tpg_cuda_load(gpu->settings, &cuda, error);
    if (status != TP_OK)
        return status;
    work = tpb_zalloc(sizeof(*work) + count * sizeof(work->marks[0]));
    if (work == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    work->gpu = gpu;
    work->cuda = cuda;
    work->end = &work->first;
    for (size_t i = 0; status == TP_OK && i < message->tensor_count; i++)
        if (message->tensors[i].device.type == TP_DEVICE_CUDA
            && message->tensors[i].length > 0)
            status = cuda_mark_add(work, &message->tensors[i], error);
    if (status != TP_OK) {
        tpg_work_end(work);
        return status;
    }
    *result = work;
    return TP_OK;
}

const char *tpg_work_error(const struct tpg_work *work)
{
    return work->error.text;
}

enum tpg_answer tpg_event_ask(struct tpg_work *work, cu_event event)
{
    cu_result code = tpg_event_query(work->cuda, event);

    if (code == CU_OK)
        return TPG_NOW;
    if (code == CU_NOT_READY)
        return TPG_LATER;
    tpg_cuda_fail(work->cuda, code, "work on the GPU failed", &work->error);
    return TPG_FAILED;
}

enum tpg_answer tpg_work_ready(struct tpg_work *work)
{
    if (TPG_MUTANT(NO_STREAM_WAIT))
        return TPG_NOW;
    for (size_t i = 0; i < work->count; i++) {
        struct tpg_mark *mark = &work->marks[i];
        enum tpg_answer answer;

        if (mark->event == NULL)
            continue;
        answer = tpg_event_ask(work, mark->event);
        if (answer != TPG_NOW)
            return answer;
        tpg_event_destroy(work->cuda, mark->device, mark->event);
        mark->event = NULL;
    }
    return TPG_NOW;
}

/* ---- slots --------------------------------------------------------------- */

static struct tpg_slot *cuda_slot_new(struct tpg_work *work, int device)
{
    const struct tpg_cuda *cuda = work->cuda;
    struct tpg_slot *slot = tpb_zalloc(sizeof(*slot));
    void *memory;
    tp_status status;

    if (slot == NULL) {
        tpb_fail(&work->error, TP_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    slot->device = device;
    status = tpg_pinned_take(cuda, TPG_SLOT, &memory, &work->error);
    if (status == TP_OK) {
        status = tpg_cuda_fail(cuda, cuda->cuEventCreate(
            &slot->copied, CU_EVENT_NO_TIMING), "cuEventCreate",
            &work->error);
        if (status != TP_OK)
            tpg_pinned_give(memory, TPG_SLOT);
    }
    if (status != TP_OK) {
        tpb_free(slot);
        return NULL;
    }
    slot->memory = memory;
    return slot;
}

/* Slots that the device is through with are free again. */
static void cuda_slots_reclaim(struct tpg_work *work,
                               struct tpg_device *device)
{
    struct tpg_slot **at = &device->draining;

    while (*at != NULL) {
        struct tpg_slot *slot = *at;

        if (!TPG_MUTANT(SLOT_TWICE)
            && work->cuda->cuEventQuery(slot->copied) == CU_NOT_READY) {
            at = &slot->next;
            continue;
        }
        *at = slot->next;
        slot->next = device->free;
        device->free = slot;
        device->draining_count--;
    }
}

/* The device's context is current.  NULL with words. */
static struct tpg_slot *cuda_slot_take(struct tpg_work *work, int index)
{
    struct tpg_device *device = &work->gpu->devices[index];
    struct tpg_slot *slot;

    cuda_slots_reclaim(work, device);
    slot = device->free;
    if (slot == NULL)
        return cuda_slot_new(work, index);
    device->free = slot->next;
    slot->next = NULL;
    return slot;
}

static void cuda_slot_drain(struct tpg_gpu *gpu, struct tpg_slot *slot)
{
    struct tpg_device *device = &gpu->devices[slot->device];

    slot->next = device->draining;
    device->draining = slot;
    device->draining_count++;
}

static cu_result cuda_copy_rows(const struct tpg_cuda *cuda, cu_pointer to,
                                const unsigned char *from, size_t width,
                                cu_stream stream)
{
    struct cu_rows rows = {
        .from = { .type = CU_MEMORY_HOST, .host = from, .pitch = width },
        .to = { .type = CU_MEMORY_DEVICE, .device = to, .pitch = width },
        .width = width, .height = 2
    };

    return cuda->cuMemcpy2DAsync_v2(&rows, stream);
}

/*
 * To a device.  Up to some 24 KiB the driver puts the bytes among the commands
 * of the compute engine, for which the processes that share a GPU take turns:
 * 140 us, and behind whatever kernel is at it.  As two rows the same bytes take
 * a copy engine, 8 us (on an H200 with driver 580).
 */
cu_result tpg_copy_in(const struct tpg_cuda *cuda, cu_pointer to,
                      const unsigned char *from, size_t length,
                      cu_stream stream)
{
    cu_result code;

    if (length < 2 || length > CUDA_ROWS_MOST)
        return cuda->cuMemcpyAsync(to, (cu_pointer)(uintptr_t)from, length,
                                   stream);
    code = cuda_copy_rows(cuda, to, from, length / 2, stream);
    if (code == CU_OK && length % 2 != 0)
        code = cuda_copy_rows(cuda, to + length - 2, from + length - 2, 1,
                              stream);
    return code;
}

/* Starts the copy and marks its end. */
static tp_status cuda_slot_copy(struct tpg_work *work, struct tpg_slot *slot,
                                const struct tpf_buffer *buffer, bool out)
{
    const struct tpg_cuda *cuda = work->cuda;
    struct tpg_device *device = &work->gpu->devices[slot->device];
    cu_stream stream = out ? device->out : device->in;
    cu_pointer there = (cu_pointer)(uintptr_t)buffer->data + slot->offset;
    struct tpg_mark *mark = tpg_mark_find(work, buffer->device.index,
                                            buffer->stream);
    cu_result code = out ? cuda->cuMemcpyAsync(
                               (cu_pointer)(uintptr_t)slot->memory, there,
                               slot->length, stream)
                     : tpg_copy_in(cuda, there, slot->memory, slot->length,
                                   stream);

    if (code == CU_OK && mark != NULL) {
        mark->out |= out;
        mark->in |= !out;
    }
    if (code == CU_OK)
        code = cuda->cuEventRecord(slot->copied, stream);
    /* What was enqueued is over before anybody else has the memory. */
    if (code != CU_OK)
        cuda->cuStreamSynchronize(stream);
    return tpg_cuda_fail(cuda, code, "a copy between host and device",
                         &work->error);
}

/* ---- out ----------------------------------------------------------------- */

static void cuda_out_drop(struct tpg_work *work)
{
    struct tpg_slot *slot = work->first;

    work->first = slot->next;
    if (work->first == NULL)
        work->end = &work->first;
    work->slots--;
    cuda_slot_drain(work->gpu, slot);
}

/* Keeps some copies under way. */
static tp_status cuda_out_start(struct tpg_work *work,
                                const struct tpf_buffer *buffer)
{
    tp_status status = TP_OK;

    if (work->slots >= TPG_OUT_SLOTS || work->next >= buffer->length)
        return TP_OK;
    status = tpg_device_enter(work->gpu, work->cuda, buffer->device.index,
                              &work->error);
    if (status != TP_OK)
        return status;
    while (status == TP_OK && work->slots < TPG_OUT_SLOTS
           && work->next < buffer->length) {
        struct tpg_slot *slot = cuda_slot_take(work, buffer->device.index);
        size_t left = buffer->length - work->next;

        if (slot == NULL) {
            status = work->slots > 0 ? TP_OK : TP_ERR_BACKEND;
            break;
        }
        slot->offset = work->next;
        slot->length = left < TPG_SLOT ? left : TPG_SLOT;
        *work->end = slot;
        work->end = &slot->next;
        work->slots++;
        work->next += slot->length;
        status = cuda_slot_copy(work, slot, buffer, true);
    }
    tpg_cuda_leave(work->cuda);
    return status;
}

enum tpg_answer tpg_work_fetch(struct tpg_work *work, size_t index,
                               const struct tpf_buffer *buffer, size_t offset,
                               const unsigned char **bytes, size_t *length)
{
    struct tpg_slot *slot;
    enum tpg_answer answer;

    while (work->first != NULL
           && (work->index != index || offset < work->first->offset
               || offset >= work->first->offset + work->first->length))
        cuda_out_drop(work);
    if (work->first == NULL)
        work->next = offset;
    work->index = index;
    if (cuda_out_start(work, buffer) != TP_OK)
        return TPG_FAILED;
    slot = work->first;
    answer = TPG_MUTANT(NO_SLOT_WAIT) ? TPG_NOW
             : tpg_event_ask(work, slot->copied);
    if (answer != TPG_NOW)
        return answer;
    *bytes = slot->memory + (offset - slot->offset);
    *length = slot->length - (offset - slot->offset);
    return TPG_NOW;
}

/* ---- in ------------------------------------------------------------------ */

static tp_status cuda_in_flush(struct tpg_work *work)
{
    struct tpg_slot *slot = work->filling;
    tp_status status = tpg_device_enter(work->gpu, work->cuda, slot->device,
                                        &work->error);

    if (status == TP_OK) {
        status = cuda_slot_copy(work, slot, &work->into, false);
        tpg_cuda_leave(work->cuda);
    }
    work->filling = NULL;
    cuda_slot_drain(work->gpu, slot);
    return status;
}

static tp_status cuda_in_slot(struct tpg_work *work, size_t index,
                              const struct tpf_buffer *buffer, size_t offset)
{
    struct tpg_device *device = &work->gpu->devices[buffer->device.index];
    struct tpg_slot *slot;

    cuda_slots_reclaim(work, device);
    /* Only our own copies are on that stream: it is soon over. */
    if (device->free == NULL && device->draining_count >= TPG_IN_SLOTS)
        work->cuda->cuStreamSynchronize(device->in);
    slot = cuda_slot_take(work, buffer->device.index);
    if (slot == NULL)
        return TP_ERR_BACKEND;
    slot->index = index;
    slot->offset = offset;
    slot->length = 0;
    work->filling = slot;
    work->into = *buffer;
    return TP_OK;
}

/* With the device's context current. */
static tp_status cuda_in_put(struct tpg_work *work, size_t index,
                             const struct tpf_buffer *buffer, size_t offset,
                             const unsigned char *bytes, size_t length)
{
    tp_status status = TP_OK;

    while (status == TP_OK && length > 0) {
        struct tpg_slot *slot = work->filling;
        size_t part = length;

        if (slot == NULL) {
            status = cuda_in_slot(work, index, buffer, offset);
            continue;
        }
        /* Of what was to come by a channel, frames come among the others. */
        if (slot->index != index || slot->offset + slot->length != offset) {
            status = cuda_in_flush(work);
            continue;
        }
        if (part > TPG_SLOT - slot->length)
            part = TPG_SLOT - slot->length;
        tpb_copy(slot->memory + slot->length, bytes, part);
        slot->length += part;
        offset += part;
        bytes += part;
        length -= part;
        if (slot->length == TPG_SLOT || offset == buffer->length)
            status = cuda_in_flush(work);
    }
    return status;
}

tp_status tpg_work_store(struct tpg_work *work, size_t index,
                         const struct tpf_buffer *buffer, size_t offset,
                         const void *bytes, size_t length)
{
    tp_status status = tpg_device_enter(work->gpu, work->cuda,
                                        buffer->device.index, &work->error);

    if (status != TP_OK)
        return TP_ERR_BACKEND;
    status = cuda_in_put(work, index, buffer, offset, bytes, length);
    tpg_cuda_leave(work->cuda);
    return status == TP_OK ? TP_OK : TP_ERR_BACKEND;
}

/* ---- the end ------------------------------------------------------------- */

/* May an event of ours be waited for there?  Not by this thread's own stream,
 * which is not the caller's; nor, since that would end the capture, by one that
 * is being captured by now.  (Another thread may begin to right after that.) */
static bool cuda_mark_joins(const struct tpg_cuda *cuda,
                            const struct tpg_mark *mark)
{
    int capturing = CU_CAPTURE_NONE;

    if (mark->stream == CU_THREAD_STREAM && !TPG_MUTANT(THREAD_STREAM))
        return false;
    return cuda->cuStreamIsCapturing(mark->stream, &capturing) == CU_OK
           && capturing == CU_CAPTURE_NONE;
}

/* Later work on the user's stream comes after what we enqueued. */
static void cuda_mark_join(struct tpg_work *work, const struct tpg_mark *mark)
{
    const struct tpg_cuda *cuda = work->cuda;
    struct tpg_device *device = &work->gpu->devices[mark->device];
    cu_event event;

    for (int in = 0; in < 2; in++) {
        cu_stream stream = in ? device->in : device->out;

        if (!(in ? mark->in : mark->out) || TPG_MUTANT(NO_JOIN))
            continue;
        /* Else wait: the copies are our own. */
        if (!cuda_mark_joins(cuda, mark)
            || cuda->cuEventCreate(&event, CU_EVENT_NO_TIMING) != CU_OK) {
            cuda->cuStreamSynchronize(stream);
            continue;
        }
        if (cuda->cuEventRecord(event, stream) != CU_OK
            || cuda->cuStreamWaitEvent(mark->stream, event, 0) != CU_OK)
            cuda->cuStreamSynchronize(stream);
        cuda->cuEventDestroy_v2(event);
    }
}

void tpg_work_end(struct tpg_work *work)
{
    if (work == NULL)
        return;
    while (work->first != NULL)
        cuda_out_drop(work);
    tpg_boxes_back(work);
    if (work->filling != NULL) {
        struct tpg_device *device
            = &work->gpu->devices[work->filling->device];

        work->filling->next = device->free;
        device->free = work->filling;
    }
    for (size_t i = 0; i < work->count; i++) {
        struct tpg_mark *mark = &work->marks[i];

        if (mark->event != NULL)
            tpg_event_destroy(work->cuda, mark->device, mark->event);
        if ((mark->in || mark->out)
            && tpg_cuda_enter(work->cuda, mark->device, NULL) == TP_OK) {
            cuda_mark_join(work, mark);
            tpg_cuda_leave(work->cuda);
        }
    }
    tpb_free(work);
}
