/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Registrations of device memory, kept by buffer id.
 *
 * A device's address comes back under another owner at once, by calls of the
 * driver that no hook sees.  So an address says nothing: the driver is asked
 * for the buffer id at each use, which costs less than a microsecond, and a
 * registration of the same range under another id is closed.
 */
#include "config.h"

#include "gpu/cuda_gdr/gdr.h"
#include "gpu/mutants.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

static void region_free(struct gdr_region *region)
{
    if (!tpb_list_empty(&region->node))
        region->port->count--;
    tpb_list_unlink(&region->node);
    tpf_remote_deregister(region->registration);
    tpb_free(region);
}

static void region_retire(struct gdr_region *region)
{
    if (region->holds == 0) {
        region_free(region);
        return;
    }
    region->stale = true;
    region->port->count--;
    tpb_list_unlink(&region->node);
}

void gdr_region_drop(struct gdr_region *region)
{
    if (region != NULL && --region->holds == 0
        && tpb_list_empty(&region->node))
        region_free(region);
}

/* Of that very allocation? */
static bool region_is(const struct gdr_region *region,
                      const struct tpg_memory *memory)
{
    return (region->id == memory->id && region->block == memory->block)
           || TPG_MUTANT(GDR_ADDRESS);
}

/* The one of that very allocation; others at its place are stale. */
static struct gdr_region *region_find(struct gdr_port *port,
                                      const struct tpg_memory *memory)
{
    struct gdr_region *found = NULL;

    TPB_LIST_EACH(node, &port->regions) {
        struct gdr_region *region = TPB_CONTAINER(node, struct gdr_region,
                                                  node);

        if (region->base >= memory->base + memory->size
            || memory->base >= region->base + region->size)
            continue;
        if (region_is(region, memory) && region->base == memory->base
            && region->size == memory->size)
            found = region;
        else
            region_retire(region);
    }
    if (found != NULL) {
        tpb_list_unlink(&found->node);
        tpb_list_append(&port->regions, &found->node);
    }
    return found;
}

/* The one that was used longest ago, and is not now, makes room. */
static void region_room(struct gdr_port *port)
{
    if (port->count < GDR_REGIONS)
        return;
    TPB_LIST_EACH(node, &port->regions) {
        struct gdr_region *region = TPB_CONTAINER(node, struct gdr_region,
                                                  node);

        if (region->holds == 0) {
            region_free(region);
            return;
        }
    }
}

/* For the dmabuf way: the range's descriptor, whole pages of it. */
static tp_status region_fd(const struct tpg_cuda *cuda, int device,
                           struct tpf_remote_memory *memory,
                           struct tpb_error *error)
{
    uint64_t start = (uint64_t)(uintptr_t)memory->address;
    uint64_t end = start + memory->length;
    size_t page = tpb_page();
    tp_status status;

    start -= start % page;
    end += (page - end % page) % page;
    memory->address = (void *)(uintptr_t)start;
    memory->length = (size_t)(end - start);
    status = tpg_cuda_enter(cuda, device, error);
    if (status != TP_OK)
        return status;
    status = tpg_cuda_fail(cuda, cuda->cuMemGetHandleForAddressRange(
        &memory->fd, start, memory->length, CU_RANGE_DMABUF, 0),
        "a dmabuf of device memory", error);
    tpg_cuda_leave(cuda);
    return status;
}

/* Of the context that is current: all copies that it makes from now on. */
static bool region_synchronous_context(const struct tpg_cuda *cuda)
{
    unsigned flags = 0;

    return cuda->cuCtxGetFlags != NULL && cuda->cuCtxSetFlags != NULL
           && cuda->cuCtxGetFlags(&flags) == CU_OK
           && ((flags & CU_CONTEXT_SYNC_MEMOPS) != 0
               || cuda->cuCtxSetFlags(flags | CU_CONTEXT_SYNC_MEMOPS) == CU_OK);
}

/* Synchronous copies into it wait for their end from now on: else a NIC could
 * read what such a copy has not written yet.  Memory of cuMemMap() has no such
 * attribute, but since CUDA 12.1 contexts have. */
static tp_status region_synchronous(const struct tpg_cuda *cuda, int device,
                                    uint64_t base, struct tpb_error *error)
{
    unsigned yes = 1;
    cu_result code = CU_NOT_SUPPORTED;
    tp_status status = tpg_cuda_enter(cuda, device, error);

    if (status != TP_OK)
        return status;
    if (cuda->cuPointerSetAttribute != NULL)
        code = cuda->cuPointerSetAttribute(&yes, CU_POINTER_SYNC_MEMOPS, base);
    if (code != CU_OK && region_synchronous_context(cuda))
        code = CU_OK;
    status = tpg_cuda_fail(cuda, code, "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS",
                           error);
    tpg_cuda_leave(cuda);
    return status;
}

static tp_status region_register(struct gdr_region *region,
                                 const struct tpg_cuda *cuda,
                                 struct tpb_error *error)
{
    struct gdr_port *port = region->port;
    struct tpf_remote_memory memory = {
        .how = port->how, .address = (void *)(uintptr_t)region->base,
        .length = region->size, .fd = -1, .device = port->device };
    tp_status status = TP_OK;

    if (port->device >= 0 && !TPG_MUTANT(GDR_NO_SYNC))
        status = region_synchronous(cuda, port->device, region->base, error);
    if (status == TP_OK && port->device >= 0
        && port->how == TPF_REMOTE_DMABUF)
        status = region_fd(cuda, port->device, &memory, error);
    if (status == TP_OK)
        status = tpf_remote_register(port->remote, &memory,
                                     &region->registration, error);
    tpb_close(&memory.fd);
    return status;
}

/* NULL with words. */
static struct gdr_region *region_new(struct gdr_port *port,
                                     const struct tpg_cuda *cuda,
                                     const struct tpg_memory *memory,
                                     struct tpb_error *error)
{
    struct gdr_region *region = tpb_zalloc(sizeof(*region));

    if (region == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    tpb_list_init(&region->node);
    region->port = port;
    region->id = memory->id;
    region->block = memory->block;
    region->base = memory->base;
    region->size = memory->size;
    if (region_register(region, cuda, error) == TP_OK)
        return region;
    tpb_free(region);
    return NULL;
}

/* Does this kind of memory have a place on the bus? */
static bool region_possible(const struct gdr_port *port,
                            const struct tpg_cuda *cuda,
                            const struct tpf_buffer *buffer,
                            const struct tpg_memory *memory,
                            struct tpb_error *error)
{
    uint64_t start = (uint64_t)(uintptr_t)buffer->data;
    int attribute = CU_POINTER_GDR;
    unsigned capable = 1;
    void *place = &capable;

    if (memory->device != port->device || memory->kind == TPG_MANAGED
        || memory->kind == TPG_IMPORTED) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED, "it is %s",
                 tpg_kind_name(memory->kind));
        return false;
    }
    /* An attribute that the driver does not know says nothing. */
    if (port->how != TPF_REMOTE_DMABUF
        && cuda->cuPointerGetAttributes(1, &attribute, &place, start) == CU_OK
        && capable == 0) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                 "the driver does not let NICs at that memory (%s)",
                 tpg_kind_name(memory->kind));
        return false;
    }
    if (start < memory->base || start - memory->base > memory->size
        || buffer->length > memory->size - (start - memory->base)) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                 "it lies in more than one allocation");
        return false;
    }
    return true;
}

static struct gdr_region *region_of_device(struct gdr_port *port,
                                           const struct tpg_cuda *cuda,
                                           const struct tpf_buffer *buffer,
                                           struct tpb_error *error)
{
    struct tpg_memory memory;
    struct gdr_region *region;

    if (tpg_memory_look(cuda, buffer->data, &memory, error) != TP_OK
        || !region_possible(port, cuda, buffer, &memory, error))
        return NULL;
    region = region_find(port, &memory);
    if (region != NULL)
        return region;
    gdr_regions_sweep(port, cuda);
    region_room(port);
    region = region_new(port, cuda, &memory, error);
    if (region == NULL)
        return NULL;
    tpb_list_append(&port->regions, &region->node);
    port->count++;
    return region;
}

struct gdr_region *gdr_region_hold(struct gdr_port *port,
                                   const struct tpg_cuda *cuda,
                                   const struct tpf_buffer *buffer,
                                   struct tpb_error *error)
{
    struct tpg_memory host = { .base = (uint64_t)(uintptr_t)buffer->data,
                               .size = buffer->length };
    struct gdr_region *region
        = port->device >= 0 ? region_of_device(port, cuda, buffer, error)
                            : region_new(port, cuda, &host, error);

    if (region != NULL)
        region->holds++;
    return region;
}

void gdr_regions_sweep(struct gdr_port *port, const struct tpg_cuda *cuda)
{
    TPB_LIST_EACH(node, &port->regions) {
        struct gdr_region *region = TPB_CONTAINER(node, struct gdr_region,
                                                  node);
        struct tpg_memory memory;

        if (region->holds == 0
            && (tpg_memory_look(cuda, (void *)(uintptr_t)region->base,
                                &memory, NULL) != TP_OK
                || !region_is(region, &memory)))
            region_free(region);
    }
}

void gdr_regions_freed(struct gdr_port *port, uint64_t block)
{
    TPB_LIST_EACH(node, &port->regions) {
        struct gdr_region *region = TPB_CONTAINER(node, struct gdr_region,
                                                  node);

        if (region->owned == block)
            region_retire(region);
    }
}

void gdr_regions_close(struct gdr_port *port)
{
    TPB_LIST_EACH(node, &port->regions)
        region_free(TPB_CONTAINER(node, struct gdr_region, node));
}
