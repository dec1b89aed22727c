/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Classification of memory by one cuPointerGetAttributes(), claims of callers
 * compared with it, and memory of our own that other processes can import.
 */
#include "config.h"

#include "gpu/cuda.h"
#include "gpu/cuda_late.h"
#include "gpu/cuda_mem.h"
#include "runtime/base/alloc.h"

const char *tpg_kind_name(enum tpg_kind kind)
{
    static const char *const names[] = {
        "memory of the host", "pinned memory of the host", "managed memory",
        "memory of cudaMalloc", "memory of cuMemMap",
        "memory of a stream-ordered pool", "memory of another process"
    };

    return names[kind];
}

static void mem_sort(struct tpg_memory *memory, bool managed, bool legacy,
                     uint64_t handles, const void *pool)
{
    if (managed) {
        memory->kind = TPG_MANAGED;
        memory->route = TPG_ROUTE_STAGED;
    } else if (legacy) {
        memory->kind = TPG_MALLOC;
        memory->route = TPG_ROUTE_LEGACY;
    } else if (pool != NULL) {
        memory->kind = TPG_POOL;
        memory->route = TPG_ROUTE_STAGED;
    } else if ((handles & CU_HANDLE_POSIX_FD) != 0) {
        memory->kind = TPG_VMM;
        memory->route = TPG_ROUTE_FD;
    } else {
        memory->kind = TPG_IMPORTED;
        memory->route = TPG_ROUTE_STAGED;
    }
}

/* VMM: the mapping, not the addresses reserved around it.  A driver that does
 * not know these attributes answers cuMemGetAddressRange() with it. */
static bool mem_mapping(const struct tpg_cuda *cuda, cu_pointer pointer,
                        struct tpg_memory *memory)
{
    uint64_t base = 0, block = 0;
    size_t size = 0;
    int attributes[] = { CU_POINTER_MAPPING_BASE, CU_POINTER_MAPPING_SIZE,
                         CU_POINTER_BLOCK_ID };
    void *places[] = { &base, &size, &block };

    if (memory->kind != TPG_VMM
        || cuda->cuPointerGetAttributes(TPB_COUNT(attributes), attributes,
                                        places, pointer) != CU_OK
        || base == 0 || size == 0 || pointer - base >= size)
        return false;
    memory->base = base;
    memory->size = size;
    memory->block = block;
    return true;
}

/* The whole allocation.  This call, unlike the others here, needs a context. */
static tp_status mem_range(const struct tpg_cuda *cuda, cu_pointer pointer,
                           struct tpg_memory *memory, struct tpb_error *error)
{
    tp_status status = tpg_cuda_enter(cuda, memory->device, error);

    if (status != TP_OK)
        return status;
    status = tpg_cuda_fail(cuda, cuda->cuMemGetAddressRange_v2(
        &memory->base, &memory->size, pointer), "cuMemGetAddressRange", error);
    tpg_cuda_leave(cuda);
    return status;
}

tp_status tpg_memory_look(const struct tpg_cuda *cuda, const void *data,
                          struct tpg_memory *memory,
                          struct tpb_error *error)
{
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    uint64_t id = 0, handles = 0, legacy = 0;
    void *pool = NULL;
    int attributes[] = { CU_POINTER_MEMORY_TYPE, CU_POINTER_IS_MANAGED,
                         CU_POINTER_ORDINAL, CU_POINTER_BUFFER_ID,
                         CU_POINTER_LEGACY_IPC, CU_POINTER_ALLOWED_HANDLES,
                         CU_POINTER_POOL };
    void *places[] = { &type, &managed, &ordinal, &id, &legacy, &handles,
                       &pool };
    cu_pointer pointer = (cu_pointer)(uintptr_t)data;
    cu_result code = cuda->cuPointerGetAttributes(TPB_COUNT(attributes),
                                                  attributes, places,
                                                  pointer);

    memset(memory, 0, sizeof(*memory));
    memory->device = -1;
    if (code != CU_OK)                 /* an attribute it does not know yet */
        code = cuda->cuPointerGetAttributes(TPB_COUNT(attributes) - 2,
                                            attributes, places, pointer);
    memory->kind = TPG_HOST;
    /* Of a device that has failed, the driver tells nothing any more. */
    if (code != CU_OK && code != CU_INVALID_VALUE)
        return tpg_cuda_fail(cuda, code, "cuPointerGetAttributes", error);
    if (code != CU_OK || type == 0)
        return TP_OK;
    memory->id = id;
    /* Managed memory may be said to be where its pages are. */
    if (type == CU_MEMORY_HOST && managed == 0) {
        memory->kind = TPG_PINNED;
        return TP_OK;
    }
    memory->device = ordinal < 0 || ordinal >= cuda->devices ? 0 : ordinal;
    mem_sort(memory, managed != 0, legacy != 0, handles, pool);
    if (mem_mapping(cuda, pointer, memory))
        return TP_OK;
    return mem_range(cuda, pointer, memory, error);
}

/* The whole range has to be of that kind; VMM's may be many mappings. */
static bool mem_reaches(const struct tpg_cuda *cuda,
                        const struct tpg_memory *memory, uint64_t start,
                        size_t length)
{
    uint64_t at = memory->base + memory->size;

    while (at - start < length) {
        struct tpg_memory next;

        if (memory->kind != TPG_VMM
            || tpg_memory_look(cuda, (const void *)(uintptr_t)at, &next, NULL)
               != TP_OK
            || next.kind != TPG_VMM || next.size == 0)
            return false;
        at = next.base + next.size;
    }
    return true;
}

tp_status tpg_claim_check(const struct tpg_cuda *cuda,
                          const struct tpf_buffer *buffer,
                          struct tpb_error *error)
{
    struct tpg_memory memory;
    tp_status status;

    if (buffer->device.type == TP_DEVICE_CUDA
        && (buffer->device.index < 0
            || buffer->device.index >= cuda->devices))
        return tpb_fail(error, TP_ERR_INVALID, "there is no CUDA device %d"
                        " here (%d visible)", buffer->device.index,
                        cuda->devices);
    if (buffer->length == 0)
        return TP_OK;
    status = tpg_memory_look(cuda, buffer->data, &memory, error);
    if (buffer->device.type == TP_DEVICE_CPU) {
        if (status != TP_OK || memory.device < 0
            || memory.kind == TPG_MANAGED)
            return TP_OK;
        return tpb_fail(error, TP_ERR_INVALID, "%p is %s on CUDA device %d, not"
                        " CPU memory", buffer->data,
                        tpg_kind_name(memory.kind), memory.device);
    }
    if (status != TP_OK)
        return status;
    if (memory.device < 0)
        return tpb_fail(error, TP_ERR_INVALID, "%p is %s, not of CUDA device"
                        " %d", buffer->data, tpg_kind_name(memory.kind),
                        buffer->device.index);
    if (memory.device != buffer->device.index && memory.kind != TPG_MANAGED)
        return tpb_fail(error, TP_ERR_INVALID, "%p is on CUDA device %d, not on"
                        " %d", buffer->data, memory.device,
                        buffer->device.index);
    if (!mem_reaches(cuda, &memory, (uint64_t)(uintptr_t)buffer->data,
                     buffer->length))
        return tpb_fail(error, TP_ERR_INVALID, "%zu bytes at %p run past the "
                        "end of that allocation", buffer->length, buffer->data);
    return TP_OK;
}

/* ---- memory of our own --------------------------------------------------- */

struct mem_owned {
    bool vmm;
    size_t size;
    cu_memory handle;
    bool created, mapped;
    cu_pointer pointer;
};

static void mem_vmm_undo(const struct tpg_cuda *cuda, struct mem_owned *owned)
{
    if (owned->mapped)
        cuda->cuMemUnmap(owned->pointer, owned->size);
    if (owned->pointer != 0)
        cuda->cuMemAddressFree(owned->pointer, owned->size);
    if (owned->created)
        cuda->cuMemRelease(owned->handle);
}

static cu_result mem_vmm(const struct tpg_cuda *cuda, int device, size_t bytes,
                         struct mem_owned *owned)
{
    struct cu_memory_properties properties = {
        .type = CU_ALLOCATION_PINNED, .handle_types = CU_HANDLE_POSIX_FD,
        .location = { CU_LOCATION_DEVICE, device } };
    struct cu_access access = { properties.location, CU_ACCESS_READ_WRITE };
    size_t granule = 0;
    int rdma = 0;
    cu_result code = cuda->cuDeviceGetAttribute(&rdma, CU_ATTRIBUTE_GDR_VMM,
                                                device);

    /* Else no NIC may read it (cuda_gdr). */
    properties.flags.gpudirect_rdma = code == CU_OK && rdma != 0;
    code = cuda->cuMemGetAllocationGranularity(
        &granule, &properties, CU_GRANULARITY_MINIMUM);

    if (code != CU_OK)
        return code;
    owned->vmm = true;
    owned->size = (bytes + granule - 1) / granule * granule;
    code = cuda->cuMemCreate(&owned->handle, owned->size, &properties, 0);
    owned->created = code == CU_OK;
    if (code == CU_OK)
        code = cuda->cuMemAddressReserve(&owned->pointer, owned->size, 0, 0,
                                         0);
    if (code == CU_OK) {
        code = cuda->cuMemMap(owned->pointer, owned->size, 0, owned->handle,
                              0);
        owned->mapped = code == CU_OK;
    }
    if (code == CU_OK)
        code = cuda->cuMemSetAccess(owned->pointer, owned->size, &access, 1);
    if (code != CU_OK) {
        mem_vmm_undo(cuda, owned);
        memset(owned, 0, sizeof(*owned));
    }
    return code;
}

static bool mem_vmm_possible(const struct tpg_cuda *cuda, int device)
{
    int vmm = 0, fd = 0;

    return cuda->vmm
           && cuda->cuDeviceGetAttribute(&vmm, CU_ATTRIBUTE_VMM, device)
              == CU_OK && vmm != 0
           && cuda->cuDeviceGetAttribute(&fd, CU_ATTRIBUTE_POSIX_FD, device)
              == CU_OK && fd != 0;
}

tp_status tpg_alloc_on(const struct tpg_cuda *cuda, size_t bytes,
                       tp_device device, struct tpf_memory *block,
                       struct tpb_error *error)
{
    struct mem_owned *owned = tpb_zalloc(sizeof(*owned));
    cu_result code = CU_NOT_SUPPORTED;
    tp_status status;

    if (owned == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    status = tpg_cuda_enter(cuda, device.index, error);
    if (status != TP_OK) {
        tpb_free(owned);
        return status;
    }
    if (mem_vmm_possible(cuda, device.index))
        code = mem_vmm(cuda, device.index, bytes, owned);
    if (code != CU_OK && code != CU_OUT_OF_MEMORY) {
        owned->size = bytes;
        code = cuda->cuMemAlloc_v2(&owned->pointer, bytes);
    }
    tpg_cuda_leave(cuda);
    if (code != CU_OK) {
        tpb_free(owned);
        return tpg_cuda_fail(cuda, code, "device memory", error);
    }
    memset(block, 0, sizeof(*block));
    block->address = (unsigned char *)(uintptr_t)owned->pointer;
    block->length = bytes;
    block->device = device;
    block->fd = -1;
    block->owned = owned;
    return TP_OK;
}

/* cuMemUnmap() does not. */
static void mem_wait(const struct tpg_cuda *cuda,
                     const struct tpg_device *device)
{
    if (!atomic_load(&device->open))
        return;
    cuda->cuStreamSynchronize(device->in);
    cuda->cuStreamSynchronize(device->out);
}

void tpg_free(struct tpg_gpu *gpu, struct tpf_memory *block)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct mem_owned *owned = block->owned;
    int device = block->device.index;

    if (cuda != NULL && !owned->vmm) {
        tpg_late(cuda, TPG_LATE_MEMORY, device, owned->pointer, owned->size);
    } else if (cuda != NULL && tpg_cuda_enter(cuda, device, NULL) == TP_OK) {
        mem_wait(cuda, &gpu->devices[device]);
        mem_vmm_undo(cuda, owned);
        tpg_cuda_leave(cuda);
    }
    tpb_free(owned);
}
