/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the test double shares between processes: legacy IPC handles, which
 * name a descriptor of the exporting process, and virtual memory management
 * with POSIX descriptors.
 */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gpu/double/double.h"

struct share_handle {                  /* inside a cu_ipc_memory */
    uint64_t inode, size, id;
    int32_t pid, fd, device;
    char magic[12];
};
_Static_assert(sizeof(struct share_handle) <= sizeof(cu_ipc_memory), "ABI");

/* ---- legacy handles ------------------------------------------------------ */

cu_result cuIpcGetMemHandle(cu_ipc_memory *handle, cu_pointer pointer)
{
    struct share_handle mine = { .magic = "cudadouble" };
    struct double_range *range;
    struct stat status;

    DOUBLE_BEGIN();
    range = double_range_find_locked((void *)(uintptr_t)pointer);
    if (double_context_locked() == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (range == NULL || range->freed || range->kind != DOUBLE_MALLOC
        || fstat(range->store->fd, &status) != 0)
        return double_end(CU_INVALID_VALUE);
    mine.inode = status.st_ino;
    mine.size = range->size;
    mine.id = range->id;
    mine.pid = (int32_t)getpid();
    mine.fd = range->store->fd;
    mine.device = double_place(range->device);
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &mine, sizeof(mine));
    return double_end(CU_OK);
}

/* The exporter's descriptor, if it still is what the handle says. */
static int share_fetch(const struct share_handle *theirs)
{
    char path[64];
    struct stat status;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", theirs->pid, theirs->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &status) != 0
                    || status.st_ino != theirs->inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

cu_result cuIpcOpenMemHandle_v2(cu_pointer *pointer, cu_ipc_memory handle,
                                unsigned flags)
{
    struct share_handle theirs;
    struct double_store *store;
    struct cu_context_s *context;
    void *start;
    int fd;

    DOUBLE_BEGIN();
    memcpy(&theirs, &handle, sizeof(theirs));
    context = double_context_locked();
    if (context == NULL || theirs.pid == (int32_t)getpid())
        return double_end(CU_INVALID_CONTEXT);
    if (memcmp(theirs.magic, "cudadouble", 10) != 0
        || flags != CU_IPC_LAZY_PEER)
        return double_end(CU_INVALID_VALUE);
    if (theirs.device != double_place(context->device)
        && !double_settings.peers)
        return double_end(CU_PEER_ACCESS_UNSUPPORTED);
    fd = share_fetch(&theirs);
    if (fd < 0)
        return double_end(CU_INVALID_VALUE);
    store = double_store_open_locked(fd);
    start = store != NULL && store->header->freed == 0
            ? mmap(NULL, theirs.size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
            : MAP_FAILED;
    if (start == MAP_FAILED) {
        double_store_drop_locked(store);
        return double_end(CU_INVALID_VALUE);
    }
    /* A driver has none for it, either. */
    close(store->fd);
    store->fd = -1;
    double_range_add_locked(start, theirs.size, DOUBLE_IMPORT,
                            context->device, store)->opens = 1;
    *pointer = (cu_pointer)(uintptr_t)start;
    return double_end(CU_OK);
}

cu_result cuIpcCloseMemHandle(cu_pointer pointer)
{
    struct double_range *range;

    DOUBLE_BEGIN();
    range = double_range_find_locked((void *)(uintptr_t)pointer);
    if (double_context_locked() == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (range == NULL || range->freed || range->kind != DOUBLE_IMPORT)
        return double_end(CU_INVALID_VALUE);
    double_idle_locked(double_context_locked()->device);
    double_range_retire_locked(range);
    return double_end(CU_OK);
}

/* ---- virtual memory management ------------------------------------------- */

static struct double_store *share_store(cu_memory memory)
{
    return (struct double_store *)(uintptr_t)memory;
}

cu_result cuMemGetAllocationGranularity(size_t *granularity,
                const struct cu_memory_properties *properties, int option)
{
    (void)properties;
    (void)option;
    DOUBLE_BEGIN();
    *granularity = DOUBLE_GRANULE;
    return double_end(double_settings.vmm ? CU_OK : CU_NOT_SUPPORTED);
}

cu_result cuMemCreate(cu_memory *memory, size_t size,
                      const struct cu_memory_properties *properties,
                      unsigned long long flags)
{
    struct double_store *store;

    DOUBLE_BEGIN();
    if (!double_settings.vmm)
        return double_end(CU_NOT_SUPPORTED);
    if (size == 0 || size % DOUBLE_GRANULE != 0 || flags != 0
        || properties->type != CU_ALLOCATION_PINNED
        || properties->location.type != CU_LOCATION_DEVICE
        || !double_valid_device(properties->location.id))
        return double_end(CU_INVALID_VALUE);
    if (size > (size_t)1 << 40)
        return double_end(CU_OUT_OF_MEMORY);
    store = double_store_new_locked(size, properties->location.id);
    if (store == NULL)
        return double_end(CU_OUT_OF_MEMORY);
    store->closed = (properties->handle_types & CU_HANDLE_POSIX_FD) == 0;
    *memory = (cu_memory)(uintptr_t)store;
    return double_end(CU_OK);
}

cu_result cuMemRelease(cu_memory memory)
{
    DOUBLE_BEGIN();
    double_store_drop_locked(share_store(memory));
    return double_end(CU_OK);
}

cu_result cuMemRetainAllocationHandle(cu_memory *memory, void *address)
{
    struct double_range *range;

    DOUBLE_BEGIN();
    range = double_range_find_locked(address);
    if (range == NULL || range->freed || range->kind != DOUBLE_VMM)
        return double_end(CU_INVALID_VALUE);
    range->store->holds++;
    *memory = (cu_memory)(uintptr_t)range->store;
    return double_end(CU_OK);
}

cu_result cuMemExportToShareableHandle(void *shareable, cu_memory memory,
                                       int type, unsigned long long flags)
{
    int fd;

    DOUBLE_BEGIN();
    if (type != CU_HANDLE_POSIX_FD || flags != 0)
        return double_end(CU_NOT_SUPPORTED);
    if (share_store(memory)->closed)
        return double_end(CU_INVALID_VALUE);
    fd = fcntl(share_store(memory)->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return double_end(CU_OUT_OF_MEMORY);
    memcpy(shareable, &fd, sizeof(fd));
    return double_end(CU_OK);
}

/* The descriptor stays the caller's. */
cu_result cuMemImportFromShareableHandle(cu_memory *memory, void *shareable,
                                         int type)
{
    struct double_store *store;
    int fd;

    DOUBLE_BEGIN();
    if (type != CU_HANDLE_POSIX_FD)
        return double_end(CU_NOT_SUPPORTED);
    fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 3);
    store = fd >= 0 ? double_store_open_locked(fd) : NULL;
    if (store == NULL)
        return double_end(CU_INVALID_VALUE);
    *memory = (cu_memory)(uintptr_t)store;
    return double_end(CU_OK);
}

cu_result cuMemAddressReserve(cu_pointer *pointer, size_t size,
                              size_t alignment, cu_pointer hint,
                              unsigned long long flags)
{
    void *start;

    (void)alignment;
    (void)hint;
    DOUBLE_BEGIN();
    if (size == 0 || size % DOUBLE_GRANULE != 0 || flags != 0)
        return double_end(CU_INVALID_VALUE);
    start = mmap(NULL, size, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return double_end(CU_OUT_OF_MEMORY);
    double_range_add_locked(start, size, DOUBLE_RESERVED, 0, NULL);
    *pointer = (cu_pointer)(uintptr_t)start;
    return double_end(CU_OK);
}

/* The addresses stay unused for ever, so that a late use is told. */
cu_result cuMemAddressFree(cu_pointer pointer, size_t size)
{
    (void)size;
    DOUBLE_BEGIN();
    return double_end(double_range_find_locked((void *)(uintptr_t)pointer)
                      != NULL ? CU_OK : CU_INVALID_VALUE);
}

cu_result cuMemMap(cu_pointer pointer, size_t size, size_t offset,
                   cu_memory memory, unsigned long long flags)
{
    struct double_store *store = share_store(memory);
    struct double_range *range;
    int device;

    DOUBLE_BEGIN();
    if (offset != 0 || flags != 0 || size != store->size
        || !double_range_vacant_locked((void *)(uintptr_t)pointer, size))
        return double_end(CU_INVALID_VALUE);
    device = double_device(store->header->device);
    if (device < 0)
        device = 0;                    /* of one that is not visible here */
    store->holds++;
    range = double_range_add_locked((void *)(uintptr_t)pointer, size,
                                    DOUBLE_VMM, device, store);
    /* Which memory it is, not which mapping of it. */
    range->block = (uint64_t)(uintptr_t)store;
    return double_end(CU_OK);
}

static cu_result share_each(cu_pointer pointer, size_t size,
                            void (*act)(struct double_range *range))
{
    while (size > 0) {
        struct double_range *range
            = double_range_find_locked((void *)(uintptr_t)pointer);

        if (range == NULL || range->kind != DOUBLE_VMM || range->freed
            || range->size > size)
            return CU_INVALID_VALUE;
        pointer += range->size;
        size -= range->size;
        act(range);
    }
    return CU_OK;
}

static void share_unmap(struct double_range *range)
{
    double_range_retire_locked(range);
}

static uint32_t share_devices;         /* for share_allow() */

static void share_allow(struct double_range *range)
{
    range->access |= share_devices;
}

/* Does not wait, unlike cuMemFree(): what still runs uses freed memory. */
cu_result cuMemUnmap(cu_pointer pointer, size_t size)
{
    DOUBLE_BEGIN();
    return double_end(share_each(pointer, size, share_unmap));
}

cu_result cuMemSetAccess(cu_pointer pointer, size_t size,
                         const struct cu_access *access, size_t count)
{
    DOUBLE_BEGIN();
    share_devices = 0;
    for (size_t i = 0; i < count; i++) {
        struct double_range *range
            = double_range_find_locked((void *)(uintptr_t)pointer);

        if (!double_valid_device(access[i].location.id) || range == NULL)
            return double_end(CU_INVALID_VALUE);
        if (range->device != access[i].location.id && !double_settings.peers)
            return double_end(CU_PEER_ACCESS_UNSUPPORTED);
        share_devices |= 1u << access[i].location.id;
    }
    return double_end(share_each(pointer, size, share_allow));
}
