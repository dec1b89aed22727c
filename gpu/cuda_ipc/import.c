/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cuda_ipc at the receiver: the sender's memory, open here.
 *
 * Opening costs far more than a copy, so imports are kept: by the exporter's
 * buffer id, which no later allocation has, and not by address alone, which
 * comes back.  They go when the exporter says so, when there are too many, and
 * when the two part; one that is in use goes when that is over.
 */
#include "config.h"

#include "gpu/cuda_ipc/ipc.h"
#include "gpu/cuda_late.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("cuda_ipc");

/* ---- closing ------------------------------------------------------------- */

static void import_close(struct ipc_import *import)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();

    for (size_t i = 0; i < import->pieces; i++)
        tpb_close(&import->part[i].fd);
    if (import->pointer != 0 && cuda != NULL) {
        if (import->form == IPC_LEGACY) {
            tpg_late(cuda, TPG_LATE_IMPORT, import->device, import->pointer,
                     import->size);
        } else if (tpg_cuda_enter(cuda, import->device, NULL) == TP_OK) {
            cuda->cuMemUnmap(import->pointer, import->size);
            cuda->cuMemAddressFree(import->pointer, import->size);
            tpg_cuda_leave(cuda);
        }
    }
    tpb_free(import);
}

void ipc_import_let_go(struct ipc_import *import)
{
    if (--import->holds == 0 && import->dropped)
        import_close(import);
}

/* Out of the link; closed as soon as nobody holds it. */
static void import_drop(struct ipc_link *link, struct ipc_import *import)
{
    tpb_list_unlink(&import->node);
    IPC_COUNT(link, closed, 1);
    if (import->pointer != 0) {
        IPC_COUNT(link, open, -UINT64_C(1));
        IPC_COUNT(link, open_bytes, -import->size);
    } else {
        for (size_t i = 0; i < import->got; i++)
            link->parts--;
    }
    import->dropped = true;
    if (import->holds == 0)
        import_close(import);
}

/* Regions go when their exporter, who has the same limits, says so: what has
 * been told once is not told again. */
static void import_room(struct ipc_link *link, uint64_t size)
{
    const struct tpb_settings *settings = link->base.channel->env->settings;
    uint64_t most = (uint64_t)settings->number[TPB_SET_CUDA_IMPORTS];
    uint64_t bytes = (uint64_t)settings->number[TPB_SET_CUDA_IMPORT_BYTES];

    TPB_LIST_EACH(node, &link->imports) {
        struct ipc_import *import = TPB_CONTAINER(node, struct ipc_import,
                                                  node);

        if (link->imported.open < most
            && link->imported.open_bytes + size <= bytes)
            return;
        if (import->holds == 0 && import->form == IPC_LEGACY)
            import_drop(link, import);
    }
}

void ipc_imports_end(struct ipc_link *link)
{
    const struct tpb_record_imports *all = &link->imported;

    if (all->opened + all->pulled + all->lent > 0)
        tpb_info("%llu buffers pulled (%llu bytes), %llu lent; imports: %llu"
                 " opened, %llu found, %llu closed before the end",
                 (unsigned long long)all->pulled,
                 (unsigned long long)all->pulled_bytes,
                 (unsigned long long)all->lent,
                 (unsigned long long)all->opened,
                 (unsigned long long)all->found,
                 (unsigned long long)all->closed);
    while (!tpb_list_empty(&link->imports))
        import_drop(link, TPB_CONTAINER(link->imports.next, struct ipc_import,
                                        node));
}

/* ---- opening ------------------------------------------------------------- */

/* Of a region there is one for all devices; else `device` tells. */
static struct ipc_import *import_find(struct ipc_link *link,
                                      enum ipc_form form, uint64_t id,
                                      uint64_t base, uint64_t size, int device)
{
    TPB_LIST_EACH(node, &link->imports) {
        struct ipc_import *import = TPB_CONTAINER(node, struct ipc_import,
                                                  node);

        if (import->form != form)
            continue;
        if (form == IPC_REGION ? import->id == id
            : (import->id == id || TPG_MUTANT(STALE_IMPORT))
              && import->base == base && import->size == size
              && import->device == device)
            return import;
    }
    return NULL;
}

/* With the context current.  What the source says of its size is believed only
 * as far as the driver agrees. */
static tp_status import_legacy(const struct tpg_cuda *cuda,
                               const struct ipc_source *source,
                               struct ipc_import *import,
                               struct tpb_error *error)
{
    cu_pointer base;
    size_t size;
    tp_status status;
    cu_result code = cuda->cuIpcOpenMemHandle_v2(
        &import->pointer, source->handle, CU_IPC_LAZY_PEER);

    /* In the way of what was there before, and is open here still. */
    if (code == CU_ALREADY_MAPPED) {
        tpg_late_now();
        code = cuda->cuIpcOpenMemHandle_v2(&import->pointer, source->handle,
                                           CU_IPC_LAZY_PEER);
    }
    status = tpg_cuda_fail(cuda, code, "cuIpcOpenMemHandle", error);
    if (status != TP_OK)
        return status;
    if (cuda->cuMemGetAddressRange_v2(&base, &size, import->pointer) != CU_OK
        || (base <= import->pointer
            && size - (import->pointer - base) >= source->size))
        return TP_OK;
    tpg_late(cuda, TPG_LATE_IMPORT, import->device, import->pointer, size);
    import->pointer = 0;
    return tpb_fail(error, TP_ERR_PROTOCOL, "the allocation is smaller than it"
                    " was said to be");
}

static cu_result import_part(const struct tpg_cuda *cuda, cu_pointer at,
                             struct ipc_part *part)
{
    cu_memory memory;
    cu_result code = cuda->cuMemImportFromShareableHandle(
        &memory, (void *)(intptr_t)part->fd, CU_HANDLE_POSIX_FD);

    if (code != CU_OK)
        return code;
    code = cuda->cuMemMap(at, part->size, 0, memory, 0);
    cuda->cuMemRelease(memory);    /* the mapping keeps it */
    return code;
}

static cu_result import_allow_one(const struct tpg_cuda *cuda,
                                  cu_pointer at, size_t size, int device)
{
    struct cu_access access = { { CU_LOCATION_DEVICE, device },
                                CU_ACCESS_READ_WRITE };

    return cuda->cuMemSetAccess(at, size, &access, 1);
}

/* The device that copies to itself; if that may not, the one that has the
 * memory, and the driver finds a way. */
static cu_result import_allow(const struct tpg_cuda *cuda, cu_pointer at,
                              struct ipc_import *import, int user, int own)
{
    cu_result code = import_allow_one(cuda, at, import->size, user);

    if (code == CU_OK)
        import->allowed |= UINT64_C(1) << user;
    else if (own >= 0 && own != user)
        code = import_allow_one(cuda, at, import->size, own);
    return code;
}

static tp_status import_region(const struct tpg_cuda *cuda,
                               struct ipc_import *import, int own,
                               struct tpb_error *error)
{
    cu_pointer at = 0;
    size_t mapped = 0, i = 0;
    cu_result code = cuda->cuMemAddressReserve(&at, import->size, 0, 0, 0);

    if (code != CU_OK)
        return tpg_cuda_fail(cuda, code, "cuMemAddressReserve", error);
    for (; code == CU_OK && i < import->pieces; i++) {
        code = import_part(cuda, at + mapped, &import->part[i]);
        if (code == CU_OK)
            mapped += import->part[i].size;
    }
    if (code == CU_OK)
        code = import_allow(cuda, at, import, import->device, own);
    if (code != CU_OK) {
        if (mapped > 0)
            cuda->cuMemUnmap(at, mapped);
        cuda->cuMemAddressFree(at, import->size);
        return tpg_cuda_fail(cuda, code, "a peer's memory of cuMemMap", error);
    }
    import->pointer = at;
    for (i = 0; i < import->pieces; i++)
        tpb_close(&import->part[i].fd);
    return TP_OK;
}

static tp_status import_open_on(const struct tpg_cuda *cuda,
                                const struct ipc_source *source,
                                struct ipc_import *import, int device, int own,
                                struct tpb_error *error)
{
    tp_status status = tpg_cuda_enter(cuda, device, error);

    if (status != TP_OK)
        return status;
    import->device = device;
    status = import->form == IPC_REGION
             ? import_region(cuda, import, own, error)
             : import_legacy(cuda, source, import, error);
    tpg_cuda_leave(cuda);
    return status;
}

/* On `device`; if that may not, on the one that has the memory, whether this
 * process used that before or not. */
static tp_status import_open(struct ipc_link *link,
                             const struct tpg_cuda *cuda,
                             const struct ipc_source *source,
                             struct ipc_import *import, int device, int own,
                             struct tpb_error *error)
{
    tp_status status = import_open_on(cuda, source, import, device, own,
                                      error);

    if (status != TP_OK && import->form == IPC_LEGACY && own >= 0
        && own != device)
        status = import_open_on(cuda, source, import, own, own, error);
    if (status != TP_OK)
        return status;
    if (import->form == IPC_REGION)
        link->parts -= (uint32_t)import->pieces;
    IPC_COUNT(link, open, 1);
    IPC_COUNT(link, open_bytes, import->size);
    IPC_COUNT(link, opened, 1);
    tpb_debug("import %llu: %llu bytes on device %d",
              (unsigned long long)import->id,
              (unsigned long long)import->size, import->device);
    return TP_OK;
}

static struct ipc_import *import_new(struct ipc_link *link, enum ipc_form form,
                                     uint64_t id, size_t pieces)
{
    struct ipc_import *import
        = tpb_zalloc(sizeof(*import) + pieces * sizeof(import->part[0]));

    if (import == NULL)
        return NULL;
    import->form = form;
    import->id = id;
    import->pieces = pieces;
    for (size_t i = 0; i < pieces; i++)
        import->part[i].fd = -1;
    tpb_list_append(&link->imports, &import->node);
    return import;
}

/* A region was announced by notes, which may still be in the socket. */
static struct ipc_import *import_announced(struct ipc_link *link, uint64_t id)
{
    struct ipc_import *import = import_find(link, IPC_REGION, id, 0, 0, 0);

    if (import == NULL || import->got < import->pieces) {
        if (!tpf_link_notes(&link->base))
            return NULL;
        import = import_find(link, IPC_REGION, id, 0, 0, 0);
    }
    return import != NULL && import->got == import->pieces ? import : NULL;
}

/* Where to open it: see ipc_import_get().  A device that this process does not
 * see is opened across, by the driver. */
static int import_place(const struct tpg_cuda *cuda, int own, int user)
{
    int any;

    if (own >= 0 && (own == user || tpg_cuda_active(cuda, own)))
        return own;
    if (user >= 0)
        return user;
    any = tpg_cuda_any(cuda);
    return any >= 0 ? any : own >= 0 ? own : 0;
}

/* The one that is there already, of the device that has the memory or at that
 * place; NULL: none, or a region that cannot be had, with words. */
static struct ipc_import *import_known(struct ipc_link *link,
                                       const struct ipc_source *source,
                                       int own, int place, tp_status *status,
                                       struct tpb_error *error)
{
    enum ipc_form form = (enum ipc_form)source->form;
    struct ipc_import *import;

    if (form == IPC_LEGACY) {
        import = own < 0 ? NULL : import_find(link, form, source->id,
                                              source->base, source->size, own);
        return import != NULL ? import
               : import_find(link, form, source->id, source->base,
                             source->size, place);
    }
    import = import_announced(link, source->id);
    if (import == NULL)
        *status = tpb_fail(error, TP_ERR_NOT_FOUND, "the peer's memory of"
                           " cuMemMap was not announced (out of"
                           " descriptors?)");
    else if (import->size != source->size)
        *status = tpb_fail(error, TP_ERR_PROTOCOL, "a region of another size");
    return *status == TP_OK ? import : NULL;
}

static struct ipc_import *import_again(struct ipc_link *link,
                                       const struct tpg_cuda *cuda,
                                       struct ipc_import *import, int user)
{
    tpb_list_unlink(&import->node);
    tpb_list_append(&link->imports, &import->node);
    IPC_COUNT(link, found, 1);
    import->holds++;
    /* Another device than before; if it may not, the driver finds a way. */
    if (import->form == IPC_REGION && user >= 0
        && (import->allowed >> user & 1) == 0
        && import_allow_one(cuda, import->pointer, import->size, user)
           == CU_OK)
        import->allowed |= UINT64_C(1) << user;
    return import;
}

struct ipc_import *ipc_import_get(struct ipc_link *link,
                                  const struct tpg_cuda *cuda,
                                  const struct ipc_source *source,
                                  int user, tp_status *status,
                                  struct tpb_error *error)
{
    int own = tpg_cuda_find(cuda, &source->device);
    int place = import_place(cuda, own, user);
    struct ipc_import *import;

    *status = TP_OK;
    import = import_known(link, source, own, place, status, error);
    if (*status != TP_OK)
        return NULL;
    if (import != NULL && import->pointer != 0)
        return import_again(link, cuda, import, user);
    if (import == NULL) {
        import_room(link, source->size);
        import = import_new(link, IPC_LEGACY, source->id, 0);
        if (import == NULL) {
            *status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
            return NULL;
        }
        import->base = source->base;
        import->size = source->size;
    }
    /* A region is mapped for who uses it, whoever has it. */
    *status = import_open(link, cuda, source, import,
                          import->form == IPC_REGION && user >= 0 ? user
                          : place, own, error);
    if (*status != TP_OK) {
        import_drop(link, import);
        return NULL;
    }
    import->holds++;
    return import;
}

/* ---- what the exporter says ---------------------------------------------- */

/* The next piece of a region.  Lack of anything leaves the region incomplete:
 * then its buffers come in frames.  False: nonsense. */
static bool import_piece(struct ipc_link *link, const struct ipc_note *note,
                         int *fd)
{
    struct ipc_import *import;

    if (note->pieces == 0 || note->pieces > IPC_PIECES
        || note->piece >= note->pieces || note->size == 0
        || note->size > SIZE_MAX / IPC_PIECES / 2)
        return false;
    import = import_find(link, IPC_REGION, note->id, 0, 0, 0);
    if (*fd < 0) {                 /* the kernel found none free here */
        if (import != NULL)
            import_drop(link, import);
        return true;
    }
    if (note->piece == 0) {
        if (import != NULL || link->parts + note->pieces > IPC_PIECES_HELD)
            return import == NULL;
        import = import_new(link, IPC_REGION, note->id, note->pieces);
    }
    if (import == NULL)
        return true;
    if (import->got != note->piece || import->pieces != note->pieces)
        return false;
    import->part[import->got].fd = *fd;
    import->part[import->got++].size = note->size;
    import->size += note->size;
    link->parts++;
    *fd = -1;
    return true;
}

static void import_forget(struct ipc_link *link, const struct ipc_note *note)
{
    TPB_LIST_EACH(node, &link->imports) {
        struct ipc_import *import = TPB_CONTAINER(node, struct ipc_import,
                                                  node);

        if (import->form == (enum ipc_form)note->form
            && import->id == note->id && !TPG_MUTANT(STALE_IMPORT))
            import_drop(link, import);
    }
}

bool ipc_note(struct tpf_link *base, const void *bytes, size_t length, int fd)
{
    struct ipc_link *link = (struct ipc_link *)base;
    struct ipc_note note;
    bool good = length == sizeof(note);

    if (good)
        memcpy(&note, bytes, sizeof(note));
    if (good && note.what == IPC_PIECE)
        good = import_piece(link, &note, &fd);
    else if (good && note.what == IPC_FORGET)
        import_forget(link, &note);
    else
        good = false;
    tpb_close(&fd);
    return good;
}
