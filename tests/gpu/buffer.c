/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors for tests, of every kind of memory. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "tests/gpu/buffer.h"

enum { BUFFER_OFFSET = 1000 };     /* tensors need not begin allocations */

static const struct {
    const char *name;
    bool device, direct;
} buffer_kinds[TPX_KINDS] = {
    [TPX_PLAIN] = { "plain", false, false },
    [TPX_PINNED] = { "pinned", false, false },
    [TPX_SHARED] = { "shared", false, false },
    [TPX_MALLOC] = { "malloc", true, true },
    [TPX_MANAGED] = { "managed", true, false },
    [TPX_POOL] = { "pool", true, true },
    [TPX_VMM] = { "vmm", true, true },
    [TPX_PIECES] = { "pieces", true, true },
    [TPX_CLOSED] = { "closed", true, true },
    [TPX_ALLOC] = { "alloc", true, true }
};

const char *tpx_kind_name(enum tpx_kind kind)
{
    return buffer_kinds[kind].name;
}

bool tpx_kind_on_device(enum tpx_kind kind)
{
    return buffer_kinds[kind].device;
}

bool tpx_kind_goes_direct(enum tpx_kind kind)
{
    return buffer_kinds[kind].direct;
}

static cu_pointer buffer_at(const void *memory)
{
    return (cu_pointer)(uintptr_t)memory;
}

/* ---- memory -------------------------------------------------------------- */

static void buffer_map(struct tpx_buffer *buffer, size_t pieces,
                       int handle_types)
{
    const struct tpg_cuda *cuda = tpx_device_driver();
    struct cu_memory_properties properties = {
        .type = CU_ALLOCATION_PINNED, .handle_types = handle_types,
        .location = { CU_LOCATION_DEVICE, buffer->where.index } };
    struct cu_access access = { properties.location, CU_ACCESS_READ_WRITE };
    size_t granule, part;
    cu_pointer at;

    TPX_CU(cuda->cuMemGetAllocationGranularity(&granule, &properties,
                                               CU_GRANULARITY_MINIMUM));
    part = (buffer->size / pieces + granule) / granule * granule;
    TPX_CU(cuda->cuMemAddressReserve(&at, part * pieces, 0, 0, 0));
    for (size_t i = 0; i < pieces; i++) {
        TPX_CU(cuda->cuMemCreate(&buffer->handles[i], part, &properties, 0));
        TPX_CU(cuda->cuMemMap(at + i * part, part, 0, buffer->handles[i], 0));
    }
    TPX_CU(cuda->cuMemSetAccess(at, part * pieces, &access, 1));
    buffer->memory = (void *)(uintptr_t)at;
    buffer->size = part * pieces;
    buffer->pieces = pieces;
}

static void buffer_memory(struct tpx_buffer *buffer)
{
    const struct tpg_cuda *cuda = tpx_device_driver();
    cu_pointer at = 0;

    switch (buffer->kind) {
    case TPX_PLAIN:
        buffer->memory = malloc(buffer->size);
        break;
    case TPX_PINNED:
        TPX_CU(cuda->cuMemHostAlloc(&buffer->memory, buffer->size, 0));
        break;
    case TPX_MANAGED:
        TPX_CU(cuda->cuMemAllocManaged(&at, buffer->size, 1));
        break;
    case TPX_POOL:
        TPX_CU(cuda->cuMemAllocAsync(&at, buffer->size, buffer->stream));
        break;
    case TPX_VMM:
        buffer_map(buffer, 1, CU_HANDLE_POSIX_FD);
        break;
    case TPX_PIECES:
        buffer_map(buffer, 3, CU_HANDLE_POSIX_FD);
        break;
    case TPX_CLOSED:
        buffer_map(buffer, 1, 0);
        break;
    case TPX_SHARED:
    case TPX_ALLOC:
        tpx_ok(tp_alloc(tpx_me.context, buffer->size, buffer->where,
                        &buffer->memory));
        break;
    default:
        buffer->memory = tpx_device_malloc(buffer->size);
        break;
    }
    if (at != 0)
        buffer->memory = (void *)(uintptr_t)at;
    tpx_check(buffer->memory != NULL, "no memory for the test itself");
}

void tpx_buffer_make(struct tpx_buffer *buffer, enum tpx_kind kind, int device,
                     size_t length)
{
    void *shadow;

    memset(buffer, 0, sizeof(*buffer));
    buffer->kind = kind;
    if (tpx_kind_on_device(kind))
        buffer->where = (tp_device){ TP_DEVICE_CUDA,
                                     tpx_device_number(device) };
    buffer->target = (tp_device){ TP_DEVICE_ANY, 0 };
    buffer->length = length;
    buffer->size = length + BUFFER_OFFSET;
    tpx_device_use(buffer->where.index);
    TPX_CU(tpx_device_driver()->cuMemHostAlloc(&shadow, length, 0));
    buffer->shadow = shadow;
    buffer->stream = tpx_device_stream();
    buffer_memory(buffer);
    buffer->data = (unsigned char *)buffer->memory + BUFFER_OFFSET;
}

static void buffer_unmap(struct tpx_buffer *buffer)
{
    const struct tpg_cuda *cuda = tpx_device_driver();

    TPX_CU(cuda->cuMemUnmap(buffer_at(buffer->memory), buffer->size));
    TPX_CU(cuda->cuMemAddressFree(buffer_at(buffer->memory), buffer->size));
    for (size_t i = 0; i < buffer->pieces; i++)
        TPX_CU(cuda->cuMemRelease(buffer->handles[i]));
}

void tpx_buffer_drop(struct tpx_buffer *buffer)
{
    const struct tpg_cuda *cuda = tpx_device_driver();

    tpx_device_use(buffer->where.index);
    tpx_device_sync(buffer->stream);
    switch (buffer->kind) {
    case TPX_PLAIN:
        free(buffer->memory);
        break;
    case TPX_PINNED:
        TPX_CU(cuda->cuMemFreeHost(buffer->memory));
        break;
    case TPX_POOL:
        TPX_CU(cuda->cuMemFreeAsync(buffer_at(buffer->memory),
                                    buffer->stream));
        break;
    case TPX_VMM:
    case TPX_PIECES:
    case TPX_CLOSED:
        buffer_unmap(buffer);
        break;
    case TPX_SHARED:
    case TPX_ALLOC:
        tpx_ok(tp_free(tpx_me.context, buffer->memory));
        break;
    default:
        TPX_CU(cuda->cuMemFree_v2(buffer_at(buffer->memory)));
        break;
    }
    TPX_CU(cuda->cuStreamDestroy_v2(buffer->stream));
    TPX_CU(cuda->cuMemFreeHost(buffer->shadow));
}

/* ---- contents ------------------------------------------------------------ */

void tpx_buffer_fill(struct tpx_buffer *buffer, uint64_t seed)
{
    tpx_fill(buffer->shadow, buffer->length, seed);
    tpx_device_use(buffer->where.index);
    if (tpx_kind_on_device(buffer->kind))
        tpx_device_copy(buffer->data, buffer->shadow, buffer->length,
                        buffer->stream);
    else
        memcpy(buffer->data, buffer->shadow, buffer->length);
}

void tpx_buffer_spoil(struct tpx_buffer *buffer)
{
    tpx_device_use(buffer->where.index);
    if (tpx_kind_on_device(buffer->kind))
        TPX_CU(tpx_device_driver()->cuMemsetD8Async(
            buffer_at(buffer->data), 0xee, buffer->length, buffer->stream));
    else
        memset(buffer->data, 0xee, buffer->length);
}

void tpx_buffer_fetch(struct tpx_buffer *buffer)
{
    memset(buffer->shadow, 0, buffer->length);
    tpx_device_use(buffer->where.index);
    if (tpx_kind_on_device(buffer->kind))
        tpx_device_copy(buffer->shadow, buffer->data, buffer->length,
                        buffer->stream);
    else
        memcpy(buffer->shadow, buffer->data, buffer->length);
}

void tpx_buffer_compare(struct tpx_buffer *buffer, uint64_t seed)
{
    size_t wrong;

    tpx_device_sync(buffer->stream);
    wrong = tpx_verify(buffer->shadow, buffer->length, seed);
    tpx_check(wrong == buffer->length, "byte %zu of %zu is wrong (%s)", wrong,
              buffer->length, tpx_kind_name(buffer->kind));
}

void tpx_buffer_check(struct tpx_buffer *buffer, uint64_t seed)
{
    tpx_buffer_fetch(buffer);
    tpx_buffer_compare(buffer, seed);
}

void tpx_buffer_place(const struct tpx_buffer *buffer, tp_tensor *tensor)
{
    tensor->data = buffer->data;
    tensor->device = buffer->where;
    tensor->stream = buffer->where.type == TP_DEVICE_CUDA ? buffer->stream
                                                          : NULL;
}

tp_tensor tpx_buffer_tensor(const struct tpx_buffer *buffer)
{
    tp_tensor tensor = { .length = buffer->length,
                         .target = buffer->target };

    tpx_buffer_place(buffer, &tensor);
    return tensor;
}

void tpx_buffers_send(tp_pipe *pipe, tp_message *message,
                      struct tpx_buffer *buffers, uint64_t seed,
                      int64_t patience_ms)
{
    for (size_t i = 0; i < message->tensor_count; i++) {
        tpx_buffer_fill(&buffers[i], seed + i);
        message->tensors[i] = tpx_buffer_tensor(&buffers[i]);
    }
    tpx_ok(tp_pipe_send_message(pipe, message, patience_ms));
    for (size_t i = 0; i < message->tensor_count; i++)
        tpx_buffer_spoil(&buffers[i]);
}

/* ---- gates --------------------------------------------------------------- */

void tpx_gate_close(struct tpx_gate *gate, cu_stream stream)
{
    void *memory;

    TPX_CU(tpx_device_driver()->cuMemHostAlloc(&memory, sizeof(uint32_t), 0));
    gate->value = memory;
    __atomic_store_n(gate->value, 0, __ATOMIC_RELEASE);
    TPX_CU(tpx_device_driver()->cuStreamWaitValue32_v2(
        stream, buffer_at(memory), 1, 1));
}

void tpx_gate_open(struct tpx_gate *gate)
{
    __atomic_store_n(gate->value, 1, __ATOMIC_RELEASE);
}
