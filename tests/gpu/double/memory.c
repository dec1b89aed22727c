/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory of the test double.  Device memory is a memfd; the program's
 * addresses for it are mapped without any right, the double has a second
 * mapping.  Ranges that were freed are remembered, so that their use is told
 * from garbage; with CUDADOUBLE_REUSE their addresses come back at once, under
 * a new buffer id.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/gpu/double/double.h"

#define MEMORY_MAGIC UINT64_C(0x656c62756f646475)

static struct double_range *memory_ranges;
static uint64_t memory_ids;

static size_t memory_round(size_t size)
{
    return (size + DOUBLE_GRANULE - 1) / DOUBLE_GRANULE * DOUBLE_GRANULE;
}

/* ---- stores -------------------------------------------------------------- */

static struct double_store *memory_store_map(int fd, size_t size)
{
    struct double_store *store = calloc(1, sizeof(*store));
    void *at = mmap(NULL, size + DOUBLE_PAGE, PROT_READ | PROT_WRITE,
                    MAP_SHARED, fd, 0);

    if (store == NULL || at == MAP_FAILED) {
        free(store);
        close(fd);
        return NULL;
    }
    store->fd = fd;
    store->header = at;
    store->bytes = (unsigned char *)at + DOUBLE_PAGE;
    store->size = size;
    store->holds = 1;
    return store;
}

struct double_store *double_store_new_locked(size_t size, int device)
{
    int fd = memfd_create("cudadouble", MFD_CLOEXEC);
    struct double_store *store;

    size = memory_round(size);
    if (fd < 0 || ftruncate(fd, (off_t)(size + DOUBLE_PAGE)) != 0)
        return NULL;
    store = memory_store_map(fd, size);
    if (store == NULL)
        return NULL;
    store->header->magic = MEMORY_MAGIC;
    store->header->size = size;
    store->header->device = double_place(device);
    store->header->pid = (int32_t)getpid();
    memset(store->bytes, DOUBLE_POISON, size < 65536 ? size : 65536);
    return store;
}

struct double_store *double_store_open_locked(int fd)
{
    struct double_header header;

    if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header)
        || header.magic != MEMORY_MAGIC) {
        close(fd);
        return NULL;
    }
    return memory_store_map(fd, header.size);
}

void double_store_drop_locked(struct double_store *store)
{
    if (store == NULL || --store->holds > 0)
        return;
    munmap(store->header, store->size + DOUBLE_PAGE);
    if (store->fd >= 0)
        close(store->fd);
    free(store);
}

/* ---- ranges -------------------------------------------------------------- */

struct double_range *double_range_find_locked(const void *address)
{
    struct double_range *freed = NULL, *reserved = NULL;

    for (struct double_range *range = memory_ranges; range != NULL;
         range = range->next) {
        size_t offset = (size_t)((const unsigned char *)address
                                 - range->start);

        if ((const unsigned char *)address < range->start
            || offset >= range->size)
            continue;
        if (range->kind == DOUBLE_RESERVED)
            reserved = range;
        else if (range->freed)
            freed = freed != NULL ? freed : range;
        else
            return range;
    }
    return freed != NULL ? freed : reserved;
}

/* Addresses of a freed range of that size, if they may come back. */
static void *memory_again(size_t size)
{
    for (struct double_range **at = &memory_ranges; *at != NULL;
         at = &(*at)->next) {
        struct double_range *range = *at;

        if (range->freed && range->size == size
            && (range->kind == DOUBLE_MALLOC || range->kind == DOUBLE_POOL)) {
            void *start = range->start;

            *at = range->next;
            free(range);
            return start;
        }
    }
    return NULL;
}

void *double_addresses_locked(size_t size)
{
    void *start = double_settings.reuse ? memory_again(size) : NULL;

    if (start == NULL)
        start = mmap(NULL, size, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

struct double_range *double_range_add_locked(void *start, size_t size,
                                             enum double_kind kind,
                                             int device,
                                             struct double_store *store)
{
    struct double_range *range = calloc(1, sizeof(*range));

    if (range == NULL)
        double_report("out of memory");
    range->start = start;
    range->size = size;
    range->kind = kind;
    range->device = device;
    range->store = store;
    range->id = ++memory_ids;
    range->next = memory_ranges;
    memory_ranges = range;
    return range;
}

void double_range_retire_locked(struct double_range *range)
{
    if (range->store != NULL && range->kind != DOUBLE_IMPORT
        && range->kind != DOUBLE_VMM)
        range->store->header->freed = 1;
    double_store_drop_locked(range->store);
    range->store = NULL;
    range->freed = true;
}

bool double_range_vacant_locked(const unsigned char *start, size_t size)
{
    struct double_range **at = &memory_ranges, *range;
    bool reserved = false;

    while ((range = *at) != NULL) {
        bool apart = range->start >= start + size
                     || start >= range->start + range->size;

        if (apart || range->kind == DOUBLE_RESERVED) {
            reserved |= !apart && range->start <= start
                        && start + size <= range->start + range->size;
        } else if (range->freed) {
            *at = range->next;
            free(range);
            continue;
        } else {
            return false;
        }
        at = &range->next;
    }
    return reserved;
}

unsigned char *double_bytes_locked(cu_pointer pointer, size_t *length,
                                   const char *what)
{
    unsigned char *address = (unsigned char *)(uintptr_t)pointer;
    struct double_range *range = double_range_find_locked(address);
    size_t offset;

    if (range == NULL)
        return address;                /* ordinary memory of the host */
    offset = (size_t)(address - range->start);
    if (range->freed)
        double_report("%s uses freed memory: buffer %llu, offset %zu", what,
                      (unsigned long long)range->id, offset);
    if (range->kind == DOUBLE_RESERVED
        || (range->kind == DOUBLE_VMM && range->access == 0))
        double_report("%s uses addresses without memory or access", what);
    if (range->kind == DOUBLE_IMPORT && range->store->header->freed)
        double_report("%s uses an import of memory that its owner freed", what);
    if (*length > range->size - offset) {
        if (range->kind != DOUBLE_VMM)
            double_report("%s overruns buffer %llu by %zu bytes", what,
                          (unsigned long long)range->id,
                          *length - (range->size - offset));
        *length = range->size - offset;
    }
    return range->store == NULL ? address : range->store->bytes + offset;
}

bool double_mapped_locked(cu_pointer pointer, size_t length)
{
    const unsigned char *address = (unsigned char *)(uintptr_t)pointer;
    struct double_range *range = double_range_find_locked(address);

    if (range == NULL || range->freed
        || length > range->size - (size_t)(address - range->start))
        return false;
    return (range->kind != DOUBLE_HOST && range->kind != DOUBLE_REGISTERED)
           || range->mapped;
}

/* ---- the calls ----------------------------------------------------------- */

static cu_result memory_device(cu_pointer *pointer, size_t size,
                               enum double_kind kind)
{
    struct cu_context_s *context = double_context_locked();
    struct double_store *store;
    void *start;

    if (context == NULL)
        return CU_INVALID_CONTEXT;
    if (size == 0)
        return CU_INVALID_VALUE;
    if (size > (size_t)1 << 40)
        return CU_OUT_OF_MEMORY;
    store = double_store_new_locked(size, context->device);
    if (store == NULL)
        return CU_OUT_OF_MEMORY;
    start = kind == DOUBLE_MANAGED
            ? mmap(NULL, store->size, PROT_READ | PROT_WRITE, MAP_SHARED,
                   store->fd, DOUBLE_PAGE)
            : double_addresses_locked(memory_round(size));
    if (start == NULL || start == MAP_FAILED) {
        double_store_drop_locked(store);
        return CU_OUT_OF_MEMORY;
    }
    store->header->id = double_range_add_locked(start, memory_round(size),
                                                kind, context->device,
                                                store)->id;
    *pointer = (cu_pointer)(uintptr_t)start;
    return CU_OK;
}

static cu_result memory_free(cu_pointer pointer, enum double_kind kind,
                             bool waits)
{
    struct double_range *range
        = double_range_find_locked((void *)(uintptr_t)pointer);

    if (range != NULL && range->freed)
        double_report("freed twice: buffer %llu",
                      (unsigned long long)range->id);
    if (range == NULL || range->start != (void *)(uintptr_t)pointer
        || (range->kind != kind
            && !(kind == DOUBLE_MALLOC && (range->kind == DOUBLE_MANAGED
                                           || range->kind == DOUBLE_POOL))))
        return CU_INVALID_VALUE;
    if (waits)
        double_idle_locked(range->device);
    else
        double_settle_locked();
    if (range->kind == DOUBLE_MANAGED)
        mprotect(range->start, range->size, PROT_NONE);
    double_range_retire_locked(range);
    return CU_OK;
}

cu_result cuMemAlloc_v2(cu_pointer *pointer, size_t size)
{
    DOUBLE_BEGIN();
    return double_end(memory_device(pointer, size, DOUBLE_MALLOC));
}

cu_result cuMemAllocManaged(cu_pointer *pointer, size_t size, unsigned flags)
{
    (void)flags;
    DOUBLE_BEGIN();
    return double_end(memory_device(pointer, size, DOUBLE_MANAGED));
}

cu_result cuMemAllocAsync(cu_pointer *pointer, size_t size, cu_stream stream)
{
    (void)stream;
    DOUBLE_BEGIN();
    return double_end(memory_device(pointer, size, DOUBLE_POOL));
}

cu_result cuMemFreeAsync(cu_pointer pointer, cu_stream stream)
{
    (void)stream;
    DOUBLE_BEGIN();
    return double_end(memory_free(pointer, DOUBLE_POOL, false));
}

cu_result cuMemFree_v2(cu_pointer pointer)
{
    DOUBLE_BEGIN();
    if (double_context_locked() == NULL)
        return double_end(CU_INVALID_CONTEXT);
    return double_end(memory_free(pointer, DOUBLE_MALLOC, true));
}

cu_result cuMemHostRegister_v2(void *memory, size_t size, unsigned flags)
{
    struct double_range *range;

    DOUBLE_BEGIN();
    if (double_context_locked() == NULL)
        return double_end(CU_INVALID_CONTEXT);
    range = double_range_find_locked(memory);
    if (memory == NULL || size == 0 || (range != NULL && !range->freed))
        return double_end(CU_INVALID_VALUE);
    double_range_add_locked(memory, size, DOUBLE_REGISTERED, 0, NULL)->mapped
        = (flags & CU_HOST_DEVICE_MAP) != 0;
    return double_end(CU_OK);
}

/* Host memory may be used otherwise afterwards: not remembered. */
static cu_result memory_forget(void *memory, enum double_kind kind)
{
    for (struct double_range **at = &memory_ranges; *at != NULL;
         at = &(*at)->next) {
        struct double_range *range = *at;

        if (range->start != memory || range->kind != kind)
            continue;
        double_idle_locked(-1);
        *at = range->next;
        free(range);
        return CU_OK;
    }
    return CU_INVALID_VALUE;
}

cu_result cuMemHostUnregister(void *memory)
{
    DOUBLE_BEGIN();
    return double_end(memory_forget(memory, DOUBLE_REGISTERED));
}

cu_result cuMemHostGetDevicePointer_v2(cu_pointer *pointer, void *memory,
                                       unsigned flags)
{
    DOUBLE_BEGIN();
    if (flags != 0
        || !double_mapped_locked((cu_pointer)(uintptr_t)memory, 1))
        return double_end(CU_INVALID_VALUE);
    *pointer = (cu_pointer)(uintptr_t)memory;
    return double_end(CU_OK);
}

cu_result cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
    void *start;

    (void)flags;
    DOUBLE_BEGIN();
    if (double_context_locked() == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (posix_memalign(&start, DOUBLE_PAGE, size) != 0)
        return double_end(CU_OUT_OF_MEMORY);
    double_range_add_locked(start, size, DOUBLE_HOST, 0, NULL)->mapped = true;
    *memory = start;
    return double_end(CU_OK);
}

cu_result cuMemFreeHost(void *memory)
{
    cu_result code;

    DOUBLE_BEGIN();
    code = memory_forget(memory, DOUBLE_HOST);
    if (code == CU_OK)
        free(memory);
    return double_end(code);
}

cu_result cuMemGetAddressRange_v2(cu_pointer *base, size_t *size,
                                  cu_pointer pointer)
{
    struct double_range *range;

    DOUBLE_BEGIN();
    range = double_range_find_locked((void *)(uintptr_t)pointer);
    if (range == NULL || range->freed)
        return double_end(CU_INVALID_VALUE);
    *base = (cu_pointer)(uintptr_t)range->start;
    *size = range->size;
    return double_end(CU_OK);
}

static uint64_t memory_attribute(const struct double_range *range,
                                 int attribute)
{
    bool host = range->kind == DOUBLE_HOST
                || range->kind == DOUBLE_REGISTERED;

    switch (attribute) {
    case CU_POINTER_MEMORY_TYPE:
        return host ? CU_MEMORY_HOST : CU_MEMORY_DEVICE;
    case CU_POINTER_BUFFER_ID:
        return range->id;
    case CU_POINTER_IS_MANAGED:
        return range->kind == DOUBLE_MANAGED;
    case CU_POINTER_ORDINAL:
        return (uint64_t)range->device;
    case CU_POINTER_LEGACY_IPC:
        return range->kind == DOUBLE_MALLOC;
    case CU_POINTER_ALLOWED_HANDLES:
        return range->kind == DOUBLE_VMM && !range->store->closed
               ? CU_HANDLE_POSIX_FD : 0;
    case CU_POINTER_GDR:
        return range->kind == DOUBLE_MALLOC || range->kind == DOUBLE_VMM;
    case CU_POINTER_POOL:
        return range->kind == DOUBLE_POOL ? (uintptr_t)&memory_ids : 0;
    case CU_POINTER_MAPPING_BASE:
        return (uintptr_t)range->start;
    case CU_POINTER_MAPPING_SIZE:
        return range->size;
    case CU_POINTER_BLOCK_ID:
        return range->block;
    default:
        return 0;
    }
}

static size_t memory_attribute_size(int attribute)
{
    switch (attribute) {
    case CU_POINTER_LEGACY_IPC:
        return 1;
    case CU_POINTER_BUFFER_ID:
    case CU_POINTER_ALLOWED_HANDLES:
    case CU_POINTER_POOL:
    case CU_POINTER_MAPPING_BASE:
    case CU_POINTER_MAPPING_SIZE:
    case CU_POINTER_BLOCK_ID:
        return 8;
    default:
        return 4;
    }
}

cu_result cuPointerGetAttributes(unsigned count, int *attributes, void **data,
                                 cu_pointer pointer)
{
    struct double_range *range;

    DOUBLE_BEGIN();
    range = double_range_find_locked((void *)(uintptr_t)pointer);
    for (unsigned i = 0; i < count; i++) {
        uint64_t value = range == NULL || range->freed ? 0
                         : memory_attribute(range, attributes[i]);

        memcpy(data[i], &value, memory_attribute_size(attributes[i]));
    }
    return double_end(CU_OK);
}
