/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Slots: buffers that libfabric sends from and receives into.  All of one
 * direction lie in one mapping, so that they are registered at once where the
 * provider wants that, and only those pages take memory that were used.
 */
#include "config.h"

#include <errno.h>
#include <sys/mman.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"

static size_t slots_stride(size_t frame)
{
    return (sizeof(struct ofi_head) + frame + TPB_CACHE_LINE - 1)
           & ~(size_t)(TPB_CACHE_LINE - 1);
}

static tp_status slots_register(struct ofi_slots *slots,
                                struct ofi_conn *conn, uint64_t access,
                                struct tpb_error *error)
{
    if (!(conn->rail->info->domain_attr->mr_mode & FI_MR_LOCAL))
        return TP_OK;
    return ofi_mr_register(conn->rail, slots->memory, slots->bytes, access,
                           &slots->mr, error) == 0 ? TP_OK : TP_ERR_BACKEND;
}

tp_status ofi_slots_open(struct ofi_slots *slots, struct ofi_conn *conn,
                         unsigned count, size_t frame, uint64_t access,
                         struct tpb_error *error)
{
    size_t stride = slots_stride(frame);
    tp_status status;

    slots->slot = tpb_array(count, sizeof(*slots->slot));
    if (slots->slot == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for %u slots",
                        count);
    slots->bytes = stride * count;
    slots->memory = mmap(NULL, slots->bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slots->memory == MAP_FAILED) {
        slots->memory = NULL;
        return tpb_fail(error, TP_ERR_NO_MEMORY,
                        "no memory for %zu bytes of buffers%s", slots->bytes,
                        tpb_errno_remedy(ENOMEM));
    }
    status = slots_register(slots, conn, access, error);
    if (status != TP_OK)
        return status;
    /* Of huge pages, which some systems give unasked, the first slot that is
     * used would take one. */
    if (slots->mr == NULL)
        (void)madvise(slots->memory, slots->bytes, MADV_NOHUGEPAGE);
    slots->count = count;
    for (unsigned i = count; i > 0; i--) {
        struct ofi_slot *slot = &slots->slot[i - 1];

        slot->conn = conn;
        slot->head = (struct ofi_head *)(void *)((char *)slots->memory
                                                 + (i - 1) * stride);
        slot->desc = slots->mr != NULL ? fi_mr_desc(slots->mr) : NULL;
        ofi_slot_give(slots, slot);
    }
    return TP_OK;
}

void ofi_slots_close(struct ofi_slots *slots)
{
    if (slots->mr != NULL)
        fi_close(&slots->mr->fid);
    if (slots->memory != NULL)
        munmap(slots->memory, slots->bytes);
    tpb_free(slots->slot);
    memset(slots, 0, sizeof(*slots));
}

struct ofi_slot *ofi_slot_take(struct ofi_slots *slots)
{
    struct ofi_slot *slot = slots->free;

    if (slot == NULL)
        return NULL;
    slots->free = slot->next;
    slots->available--;
    return slot;
}

void ofi_slot_give(struct ofi_slots *slots, struct ofi_slot *slot)
{
    slot->next = slots->free;
    slots->free = slot;
    slots->available++;
}

void ofi_queue_add(struct ofi_queue *queue, struct ofi_slot *slot)
{
    slot->next = NULL;
    if (queue->first == NULL)
        queue->first = slot;
    else
        queue->last->next = slot;
    queue->last = slot;
}

struct ofi_slot *ofi_queue_take(struct ofi_queue *queue)
{
    struct ofi_slot *slot = queue->first;

    if (slot != NULL)
        queue->first = slot->next;
    return slot;
}
