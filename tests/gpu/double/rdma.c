/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the test double does for network cards: dmabufs, the flush of their
 * writes, and the way in to device memory for the double of libibverbs
 * (tests/gpu/rdma), which stands in for the kernel.
 */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/gpu/double/double.h"

static unsigned rdma_flushes;

static int rdma_number(const char *name, int initial)
{
    const char *text = double_variable(name);

    return text != NULL && *text != '\0' ? atoi(text) : initial;
}

int double_rdma_attribute(int attribute)
{
    switch (attribute) {
    case CU_ATTRIBUTE_GDR:
    case CU_ATTRIBUTE_GDR_VMM:
        return rdma_number("CUDADOUBLE_GDR", 1);
    case CU_ATTRIBUTE_GDR_FLUSH:
        return CU_GDR_FLUSH_HOST;
    case CU_ATTRIBUTE_GDR_ORDER:
        return rdma_number("CUDADOUBLE_GDR_ORDER", 0);
    case CU_ATTRIBUTE_DMABUF:
        return rdma_number("CUDADOUBLE_DMABUF", 1);
    default:
        return 0;
    }
}

cu_result cuPointerSetAttribute(const void *value, int attribute,
                                cu_pointer pointer)
{
    struct double_range *range;

    DOUBLE_BEGIN();
    range = double_range_find_locked((void *)(uintptr_t)pointer);
    if (range == NULL || range->freed || attribute != CU_POINTER_SYNC_MEMOPS
        || value == NULL || range->kind == DOUBLE_VMM)
        return double_end(CU_INVALID_VALUE);
    range->synchronous = true;
    return double_end(CU_OK);
}

/* The whole pages of one allocation.  The descriptor is the caller's. */
cu_result cuMemGetHandleForAddressRange(void *handle, cu_pointer pointer,
                                        size_t size, int type,
                                        unsigned long long flags)
{
    struct double_range *range;
    int fd;

    DOUBLE_BEGIN();
    range = double_range_find_locked((void *)(uintptr_t)pointer);
    if (type != CU_RANGE_DMABUF || flags != 0
        || double_rdma_attribute(CU_ATTRIBUTE_DMABUF) == 0)
        return double_end(CU_NOT_SUPPORTED);
    if (double_context_locked() == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (range == NULL || range->freed || range->store == NULL
        || range->kind == DOUBLE_MANAGED || range->kind == DOUBLE_IMPORT
        || pointer % DOUBLE_PAGE != 0 || size % DOUBLE_PAGE != 0
        || range->start != (unsigned char *)(uintptr_t)pointer
        || size > range->size)
        return double_end(CU_INVALID_VALUE);
    fd = fcntl(range->store->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return double_end(CU_OUT_OF_MEMORY);
    *(int *)handle = fd;
    return double_end(CU_OK);
}

cu_result cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    DOUBLE_BEGIN();
    if (double_context_locked() == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (target != CU_GDR_FLUSH_CURRENT || scope != CU_GDR_FLUSH_TO_OWNER)
        return double_end(CU_INVALID_VALUE);
    rdma_flushes++;
    return double_end(CU_OK);
}

unsigned cudadouble_flushes(void)
{
    unsigned count;

    pthread_mutex_lock(&double_lock);
    count = rdma_flushes;
    pthread_mutex_unlock(&double_lock);
    return count;
}

/* *answer: it is device memory; then the double's own way in, or NULL if it is
 * not all there. */
void *cudadouble_way_in(const void *address, size_t length, int *answer)
{
    struct double_range *range;
    unsigned char *bytes = NULL;
    size_t offset;

    pthread_mutex_lock(&double_lock);
    range = double_range_find_locked(address);
    *answer = range != NULL && range->store != NULL && !range->freed
              && range->kind != DOUBLE_MANAGED;
    if (*answer) {
        offset = (size_t)((const unsigned char *)address - range->start);
        if (!range->synchronous && !double_synchronous_locked(range->device))
            double_report("a NIC is let at memory without SYNC_MEMOPS: buffer"
                          " %llu", (unsigned long long)range->id);
        if (length <= range->size - offset)
            bytes = range->store->bytes + offset;
    }
    pthread_mutex_unlock(&double_lock);
    return bytes;
}
