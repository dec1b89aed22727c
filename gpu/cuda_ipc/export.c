/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cuda_ipc at the sender: what it says of its memory, and to whom.
 *
 * Memory of cudaMalloc() has a handle, which stands in each source.  Memory of
 * cuMemMap() has a descriptor per mapping: those under a buffer make a region,
 * and are passed to the peer once.  What a link has told is kept by buffer id:
 * so memory that was freed and came back at the same address is seen, and the
 * peer is told to forget the old.
 */
#include "config.h"

#include <unistd.h>

#include "gpu/cuda_ipc/ipc.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

/* ---- what was told ------------------------------------------------------- */

static bool export_pass(struct ipc_link *link, const struct ipc_note *note,
                        int fd)
{
    struct tpf_conn *conn = link->base.conn;

    return conn->backend->pass != NULL
           && conn->backend->pass(conn, note, sizeof(*note), fd);
}

/* A peer that cannot be told, for lack of memory, keeps it open until the two
 * part: it is told for the memory's sake.  That it copies out of nothing that
 * is stale does not rest on it, since every source names its buffer id. */
static void export_drop(struct ipc_link *link, struct ipc_export *export)
{
    struct ipc_note note = { .channel = TPF_CHANNEL_CUDA_IPC,
                             .what = IPC_FORGET,
                             .form = (uint8_t)export->form,
                             .id = export->id };

    if (!TPG_MUTANT(NO_FORGET))
        export_pass(link, &note, -1);
    tpb_list_unlink(&export->node);
    link->exported--;
    link->exported_bytes -= export->size;
    export->gone = true;
    if (export->holds == 0)
        tpb_free(export);
}

static void export_room(struct ipc_link *link, uint64_t size)
{
    const struct tpb_settings *settings = link->base.channel->env->settings;
    uint64_t most = (uint64_t)settings->number[TPB_SET_CUDA_IMPORTS];
    uint64_t bytes = (uint64_t)settings->number[TPB_SET_CUDA_IMPORT_BYTES];

    TPB_LIST_EACH(node, &link->exports) {
        struct ipc_export *export = TPB_CONTAINER(node, struct ipc_export,
                                                  node);

        if (link->exported < most && link->exported_bytes + size <= bytes)
            return;
        if (export->holds == 0)
            export_drop(link, export);
    }
}

static struct ipc_export *export_new(enum ipc_form form, size_t pieces,
                                     uint64_t base, uint64_t size)
{
    struct ipc_export *export
        = tpb_zalloc(sizeof(*export) + pieces * sizeof(export->piece[0]));

    if (export == NULL)
        return NULL;
    export->form = form;
    export->base = base;
    export->size = size;
    export->pieces = pieces;
    return export;
}

static void export_keep(struct ipc_link *link, struct ipc_export *export,
                        const struct tpf_buffer *buffer)
{
    struct tpf_memory block;

    export_room(link, export->size);
    if (tpf_memory_find(link->base.channel->env->memories, buffer->data,
                        buffer->length, &block))
        export->block = block.id;
    tpb_list_append(&link->exports, &export->node);
    link->exported++;
    link->exported_bytes += export->size;
}

/* Is all of the region under the buffer what it was when it was told? */
static bool export_holds(const struct tpg_cuda *cuda,
                         const struct ipc_export *export, uint64_t start,
                         size_t length)
{
    for (size_t i = 0; i < export->pieces; i++) {
        const struct ipc_piece *piece = &export->piece[i];
        struct tpg_memory now;

        if (piece->base >= start + length
            || piece->base + piece->size <= start)
            continue;
        if (tpg_memory_look(cuda, (void *)(uintptr_t)piece->base, &now, NULL)
            != TP_OK || now.route != TPG_ROUTE_FD || now.id != piece->id
            || now.block != piece->block || now.base != piece->base
            || now.size != piece->size)
            return false;
    }
    return true;
}

/* What the program has freed since, by calls of the driver that nobody sees, is
 * open over there still, and so not the device's again. */
static void exports_sweep(struct ipc_link *link, const struct tpg_cuda *cuda)
{
    TPB_LIST_EACH(node, &link->exports) {
        struct ipc_export *export = TPB_CONTAINER(node, struct ipc_export,
                                                  node);
        struct tpg_memory now;

        if (export->form == IPC_LEGACY
            ? tpg_memory_look(cuda, (void *)(uintptr_t)export->base, &now,
                              NULL) != TP_OK
              || (now.id != export->id && !TPG_MUTANT(STALE_EXPORT))
            : !export_holds(cuda, export, export->base, export->size))
            export_drop(link, export);
    }
}

/* What the peer knows of this buffer; NULL: nothing that is still so. */
static struct ipc_export *export_find(struct ipc_link *link,
                                      const struct tpg_cuda *cuda,
                                      const struct tpg_memory *memory,
                                      const struct tpf_buffer *buffer)
{
    uint64_t start = (uint64_t)(uintptr_t)buffer->data;

    TPB_LIST_EACH(node, &link->exports) {
        struct ipc_export *export = TPB_CONTAINER(node, struct ipc_export,
                                                  node);

        if (start + buffer->length <= export->base
            || export->base + export->size <= start)
            continue;
        if (export->form == IPC_LEGACY
            ? export->base != memory->base || export->size != memory->size
              || (export->id != memory->id && !TPG_MUTANT(STALE_EXPORT))
            : memory->route != TPG_ROUTE_FD
              || !export_holds(cuda, export, start, buffer->length)) {
            export_drop(link, export);
            continue;
        }
        if (start < export->base
            || start + buffer->length > export->base + export->size)
            continue;              /* a part of it only */
        tpb_list_unlink(&export->node);
        tpb_list_append(&link->exports, &export->node);
        return export;
    }
    return NULL;
}

/* ---- telling ------------------------------------------------------------- */

static struct ipc_export *export_legacy(struct ipc_link *link,
                                        const struct tpg_cuda *cuda,
                                        const struct tpg_memory *memory,
                                        const struct tpf_buffer *buffer)
{
    struct ipc_export *export = export_new(IPC_LEGACY, 0, memory->base,
                                           memory->size);
    cu_result code;

    if (export == NULL || tpg_cuda_enter(cuda, memory->device, NULL) != TP_OK) {
        tpb_free(export);
        return NULL;
    }
    code = cuda->cuIpcGetMemHandle(&export->handle, memory->base);
    tpg_cuda_leave(cuda);
    if (code != CU_OK) {
        tpb_free(export);
        return NULL;
    }
    export->id = memory->id;
    export->device = memory->device;
    export_keep(link, export, buffer);
    return export;
}

/* The mappings under the buffer: how many, and into `piece` if it is not NULL.
 * 0: it cannot go this way. */
static size_t export_walk(const struct tpg_cuda *cuda,
                          const struct tpf_buffer *buffer, int device,
                          struct ipc_piece *piece)
{
    uint64_t at = (uint64_t)(uintptr_t)buffer->data;
    uint64_t end = at + buffer->length;
    size_t count = 0;

    while (at < end) {
        struct tpg_memory memory;

        if (count == IPC_PIECES
            || tpg_memory_look(cuda, (void *)(uintptr_t)at, &memory, NULL)
               != TP_OK || memory.route != TPG_ROUTE_FD
            || memory.device != device || memory.size == 0
            || (count > 0 && memory.base != at))
            return 0;
        if (piece != NULL)
            piece[count] = (struct ipc_piece){ memory.id, memory.block,
                                               memory.base, memory.size };
        count++;
        at = memory.base + memory.size;
    }
    return count;
}

static bool export_piece(struct ipc_link *link, const struct tpg_cuda *cuda,
                         const struct ipc_export *export, size_t i)
{
    const struct ipc_piece *piece = &export->piece[i];
    struct ipc_note note = { .channel = TPF_CHANNEL_CUDA_IPC,
                             .what = IPC_PIECE, .piece = (uint16_t)i,
                             .pieces = (uint16_t)export->pieces,
                             .id = export->id, .size = piece->size };
    cu_memory handle;
    int fd = -1;
    bool passed;

    if (cuda->cuMemRetainAllocationHandle(&handle,
                                          (void *)(uintptr_t)piece->base)
        != CU_OK)
        return false;
    passed = cuda->cuMemExportToShareableHandle(&fd, handle,
                                                CU_HANDLE_POSIX_FD, 0)
             == CU_OK && export_pass(link, &note, fd);
    cuda->cuMemRelease(handle);
    tpb_close(&fd);
    return passed;
}

/* A socket takes so many descriptors at a time: what is left of a region is
 * told with the next message of it, and this one goes another way.  To begin
 * again would have the peer hold those of each attempt. */
static bool export_tell(struct ipc_link *link, const struct tpg_cuda *cuda,
                        struct ipc_export *export)
{
    if (export->told == export->pieces)
        return true;
    if (tpg_cuda_enter(cuda, export->device, NULL) != TP_OK)
        return false;
    while (export->told < export->pieces
           && export_piece(link, cuda, export, export->told))
        export->told++;
    tpg_cuda_leave(cuda);
    return export->told == export->pieces;
}

static struct ipc_export *export_region(struct ipc_link *link,
                                        const struct tpg_cuda *cuda,
                                        const struct tpg_memory *memory,
                                        const struct tpf_buffer *buffer)
{
    size_t count;
    struct ipc_export *export;

    if (link->base.conn->backend->pass == NULL || !cuda->vmm)
        return NULL;
    count = export_walk(cuda, buffer, memory->device, NULL);
    export = count == 0 ? NULL
             : export_new(IPC_REGION, count, memory->base, 0);
    if (export == NULL)
        return NULL;
    export_walk(cuda, buffer, memory->device, export->piece);
    export->size = export->piece[count - 1].base
                   + export->piece[count - 1].size - export->base;
    export->id = ++link->regions;
    export->device = memory->device;
    export_keep(link, export, buffer);
    return export;
}

/* To this process itself. */
static size_t export_own(const struct tpf_buffer *buffer,
                         const struct tpg_memory *memory,
                         const struct tpg_cuda *cuda,
                         unsigned char source[TPF_SOURCE])
{
    struct ipc_source mine = { .form = IPC_OWN, .size = buffer->length };

    mine.base = (uint64_t)(uintptr_t)buffer->data;
    mine.device = cuda->uuids[memory->device];
    memcpy(source, &mine, sizeof(mine));
    return sizeof(mine);
}

size_t ipc_describe(struct tpf_link *base, const struct tpf_buffer *buffer,
                    unsigned char source[TPF_SOURCE], void **hold)
{
    struct ipc_link *link = (struct ipc_link *)base;
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct ipc_source mine = { 0 };
    struct ipc_export *export;
    struct tpg_memory memory;

    if (buffer->device.type != TP_DEVICE_CUDA || cuda == NULL || !cuda->ipc
        || tpg_memory_look(cuda, buffer->data, &memory, NULL) != TP_OK)
        return 0;
    if (link->own)
        return export_own(buffer, &memory, cuda, source);
    if (memory.route != TPG_ROUTE_LEGACY && memory.route != TPG_ROUTE_FD)
        return 0;
    export = export_find(link, cuda, &memory, buffer);
    if (export == NULL) {
        exports_sweep(link, cuda);
        export = memory.route == TPG_ROUTE_LEGACY
                 ? export_legacy(link, cuda, &memory, buffer)
                 : export_region(link, cuda, &memory, buffer);
    }
    if (export == NULL || !export_tell(link, cuda, export))
        return 0;
    mine.form = (uint8_t)export->form;
    mine.id = export->id;
    mine.base = export->base;
    mine.size = export->size;
    mine.offset = (uint64_t)(uintptr_t)buffer->data - export->base;
    mine.device = cuda->uuids[export->device];
    mine.handle = export->handle;
    memcpy(source, &mine, sizeof(mine));
    export->holds++;
    *hold = export;
    return sizeof(mine);
}

void ipc_forget(struct tpf_link *base, void *hold)
{
    struct ipc_export *export = hold;

    (void)base;
    if (export != NULL && --export->holds == 0 && export->gone)
        tpb_free(export);
}

/* ---- the end of memory --------------------------------------------------- */

void ipc_freed(struct tpf_channel *base, uint64_t block)
{
    TPB_LIST_EACH(at, &((struct ipc_channel *)base)->links) {
        struct ipc_link *link = TPB_CONTAINER(at, struct ipc_link, node);

        TPB_LIST_EACH(node, &link->exports) {
            struct ipc_export *export = TPB_CONTAINER(node, struct ipc_export,
                                                      node);

            if (export->block == block)
                export_drop(link, export);
        }
    }
}

void ipc_gone(void *arg, cu_pointer memory)
{
    TPB_LIST_EACH(at, &((struct ipc_channel *)arg)->links) {
        struct ipc_link *link = TPB_CONTAINER(at, struct ipc_link, node);

        TPB_LIST_EACH(node, &link->exports) {
            struct ipc_export *export = TPB_CONTAINER(node, struct ipc_export,
                                                      node);

            if (export->base == memory)
                export_drop(link, export);
        }
    }
}

void ipc_exports_end(struct ipc_link *link)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&link->exports)) != NULL) {
        struct ipc_export *export = TPB_CONTAINER(node, struct ipc_export,
                                                  node);

        export->gone = true;
        if (export->holds == 0)
            tpb_free(export);
    }
}
