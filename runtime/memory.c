/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tp_alloc(): memory that a local peer can map, since it is a memfd, and that
 * begins on a page.
 */
#include "config.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/core.h"

struct tpr_memory {
    struct tpb_list link;          /* in context->memory */
    void *address;
    size_t length;
    int fd;
};

static void memory_free(struct tpr_memory *memory)
{
    if (memory->address != NULL)
        munmap(memory->address, memory->length);
    tpb_close(&memory->fd);
    tpb_free(memory);
}

tp_status tp_alloc(tp_context *context, size_t bytes, tp_device device,
                   void **result)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct tpr_memory *memory;

    if (context == NULL || result == NULL || bytes == 0
        || bytes > SIZE_MAX / 2
        || (device.type == TP_DEVICE_CPU && device.index != 0))
        return TP_ERR_INVALID;
    if (device.type != TP_DEVICE_CPU)
        return TP_ERR_NOT_SUPPORTED;
    memory = tpb_zalloc(sizeof(*memory));
    if (memory == NULL)
        return TP_ERR_NO_MEMORY;
    memory->length = (bytes + page - 1) / page * page;
    memory->fd = tpb_shared_memory("tp-alloc", memory->length);
    if (memory->fd >= 0) {
        memory->address = mmap(NULL, memory->length, PROT_READ | PROT_WRITE,
                               MAP_SHARED, memory->fd, 0);
        if (memory->address == MAP_FAILED)
            memory->address = NULL;
    }
    if (memory->address == NULL) {
        memory_free(memory);
        return TP_ERR_NO_MEMORY;
    }
    pthread_mutex_lock(&context->table_lock);
    tpb_list_append(&context->memory, &memory->link);
    pthread_mutex_unlock(&context->table_lock);
    *result = memory->address;
    return TP_OK;
}

tp_status tp_free(tp_context *context, void *address)
{
    struct tpr_memory *found = NULL;

    if (context == NULL)
        return TP_ERR_INVALID;
    if (address == NULL)
        return TP_OK;
    pthread_mutex_lock(&context->table_lock);
    TPB_LIST_EACH(node, &context->memory) {
        struct tpr_memory *memory = TPB_CONTAINER(node, struct tpr_memory,
                                                  link);

        if (memory->address == address)
            found = memory;
    }
    if (found != NULL)
        tpb_list_unlink(&found->link);
    pthread_mutex_unlock(&context->table_lock);
    if (found == NULL)
        return TP_ERR_INVALID;
    memory_free(found);
    return TP_OK;
}

void tpr_memory_fini(tp_context *context)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&context->memory)) != NULL)
        memory_free(TPB_CONTAINER(node, struct tpr_memory, link));
}
