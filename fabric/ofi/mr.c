/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Registrations of the user's memory, of which some are kept.
 *
 * A registration pins the pages that are behind an address at that moment.
 * The user may give the memory back and get other pages at the same address;
 * who then used the old registration would send what is not there any more, or
 * receive where nobody looks.  Every way to notice that from outside misses
 * some (hooks in malloc, mmap and brk miss what a library does by itself, and
 * what a device's driver does), so we notice it by contract:
 *
 * - Memory of tp_alloc() is ours.  Its block is registered once, whole, and
 *   that registration lives as long as the block.  It is found by the block's
 *   number, which is never used again, not by its address.
 * - Other memory is only the caller's promise, for the time of one operation.
 *   Its registration lives as long as somebody holds it.  Operations that use
 *   the same memory at the same time share it: the first one's promise still
 *   stands when the second one begins, so the pages are the same.  That is why
 *   a registration serves what lies in the very range that was asked for, and
 *   not what is merely on the same pages.
 *
 * What the device or the limit on locked memory has no room for is taken from
 * blocks that nobody uses just now, the one that was used longest ago first.
 *
 * libfabric's own cache, which goes by addresses, is switched off: see
 * ofi_library_environment().
 */
#include "config.h"

#include "fabric/memory.h"
#include "fabric/ofi/ofi.h"
#include "runtime/base/alloc.h"

static void mr_free(struct ofi_mr *mr)
{
    if (mr->mr != NULL)
        fi_close(&mr->mr->fid);
    tpb_list_unlink(&mr->link);
    tpb_free(mr);
}

static struct ofi_mr *mr_new(struct ofi_rail *rail, const void *start,
                             size_t length, uint64_t access,
                             struct tpb_error *error)
{
    struct ofi_mr *mr = tpb_zalloc(sizeof(*mr));
    int code;

    if (mr == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for a registration");
        return NULL;
    }
    tpb_list_init(&mr->link);
    mr->start = (uintptr_t)start;
    mr->length = length;
    mr->access = access;
    code = ofi_mr_register(rail, start, length, access, &mr->mr, error);
    if (code != 0) {
        mr_free(mr);
        return NULL;
    }
    tpb_list_append(&rail->mrs, &mr->link);
    return mr;
}

static bool mr_covers(const struct ofi_mr *mr, uintptr_t start, size_t length,
                      uint64_t access)
{
    return start >= mr->start && start - mr->start <= mr->length
           && length <= mr->length - (start - mr->start)
           && (access & ~mr->access) == 0;
}

/* Of other memory: what is held just now. */
static struct ofi_mr *mr_find(struct ofi_rail *rail, uintptr_t start,
                              size_t length, uint64_t access)
{
    TPB_LIST_EACH(node, &rail->mrs) {
        struct ofi_mr *mr = TPB_CONTAINER(node, struct ofi_mr, link);

        if (mr->block == 0 && mr_covers(mr, start, length, access))
            return mr;
    }
    return NULL;
}

static struct ofi_mr *mr_block(struct ofi_rail *rail,
                               const struct tpf_memory *block,
                               struct tpb_error *error)
{
    struct ofi_mr *mr;

    TPB_LIST_EACH(node, &rail->mrs) {
        mr = TPB_CONTAINER(node, struct ofi_mr, link);
        if (mr->block == block->id)
            return mr;
    }
    mr = mr_new(rail, block->address, block->length,
                FI_SEND | FI_READ | FI_REMOTE_READ, error);
    if (mr != NULL)
        mr->block = block->id;
    return mr;
}

/* The block of tp_alloc() in which the bytes lie. */
static bool mr_is_ours(struct ofi_rail *rail, const void *address,
                       size_t length, struct tpf_memory *block)
{
    struct tpf_memories *memories = rail->endpoint->common.env->memories;

    return memories != NULL
           && tpf_memory_find(memories, address, length, block)
           && block->device.type == TP_DEVICE_CPU;
}

/* Gives up a registration that nobody holds; false if there is none. */
static bool mr_evict(struct ofi_rail *rail)
{
    TPB_LIST_EACH(node, &rail->mrs) {
        struct ofi_mr *mr = TPB_CONTAINER(node, struct ofi_mr, link);

        if (mr->holds > 0)
            continue;
        mr_free(mr);
        return true;
    }
    return false;
}

int ofi_mr_register(struct ofi_rail *rail, const void *start, size_t length,
                    uint64_t access, struct fid_mr **mr,
                    struct tpb_error *error)
{
    int code;

    /* Providers that do not choose keys want each only once. */
    do
        code = fi_mr_reg(rail->domain, start, length, access, 0,
                         ++rail->mr_key, 0, mr, NULL);
    while ((code == -FI_ENOMEM || code == -FI_ENOSPC) && mr_evict(rail));
    if (code == -FI_ENOMEM || code == -FI_ENOSPC)
        tpb_fail(error, TP_ERR_NO_MEMORY,
                 "%zu KiB cannot be locked in memory (ulimit -l)",
                 length / 1024);
    else if (code != 0)
        ofi_fail(error, code, "registering memory");
    return code;
}

/* One more that uses it, and so the last one to be given up. */
static struct ofi_mr *mr_hold(struct ofi_rail *rail, struct ofi_mr *mr)
{
    if (mr == NULL)
        return NULL;
    mr->holds++;
    tpb_list_unlink(&mr->link);
    tpb_list_append(&rail->mrs, &mr->link);
    return mr;
}

struct ofi_mr *ofi_mr_hold(struct ofi_rail *rail, const void *address,
                           size_t length, uint64_t access,
                           struct tpb_error *error)
{
    struct tpf_memory block;
    struct ofi_mr *mr;

    if (mr_is_ours(rail, address, length, &block)) {
        mr = mr_block(rail, &block, error);
    } else {
        mr = mr_find(rail, (uintptr_t)address, length, access);
        if (mr == NULL)
            mr = mr_new(rail, address, length, access, error);
    }
    return mr_hold(rail, mr);
}

struct ofi_mr *ofi_mr_hold_ours(struct ofi_rail *rail, const void *address,
                                size_t length)
{
    struct tpf_memory block;
    struct ofi_mr *mr = NULL;

    if (mr_is_ours(rail, address, length, &block))
        mr = mr_block(rail, &block, NULL);
    return mr_hold(rail, mr);
}

void ofi_mr_drop(struct ofi_mr *mr)
{
    if (mr == NULL || --mr->holds > 0)
        return;
    if (mr->block == 0 || mr->freed)
        mr_free(mr);
}

void ofi_mr_freed(struct ofi_rail *rail, uint64_t block)
{
    TPB_LIST_EACH(node, &rail->mrs) {
        struct ofi_mr *mr = TPB_CONTAINER(node, struct ofi_mr, link);

        if (mr->block != block)
            continue;
        mr->freed = true;
        if (mr->holds == 0)
            mr_free(mr);
    }
}

void ofi_mr_close(struct ofi_rail *rail)
{
    TPB_LIST_EACH(node, &rail->mrs)
        mr_free(TPB_CONTAINER(node, struct ofi_mr, link));
}
