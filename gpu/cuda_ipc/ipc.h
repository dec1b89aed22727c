/* SPDX-License-Identifier: BSD-3-Clause */
/* The inside of the cuda_ipc channel: what its files know of each other. */
#ifndef TPG_IPC_H
#define TPG_IPC_H

#include "fabric/memory.h"
#include "gpu/cuda.h"
#include "gpu/cuda_mem.h"
#include "runtime/base/record.h"

enum {
    IPC_PIECES = 512,              /* mappings of one region */
    IPC_PIECES_HELD = 1024         /* descriptors held for one peer, not yet
                                      imported */
};

/* ---- on the wire --------------------------------------------------------- */

enum ipc_form {
    IPC_LEGACY = 1,                /* a handle, in the source */
    IPC_REGION,                    /* descriptors, passed before */
    IPC_OWN                        /* of this very process: its address */
};

struct ipc_source {
    uint8_t form, zero[7];
    uint64_t id;                   /* buffer id; region: its number */
    uint64_t base, size;           /* at the exporter, of the whole */
    uint64_t offset;               /* of the buffer */
    cu_uuid device;
    cu_ipc_memory handle;          /* IPC_LEGACY */
};
_Static_assert(sizeof(struct ipc_source) == 120, "wire layout");
_Static_assert(sizeof(struct ipc_source) <= TPF_SOURCE, "TPF_SOURCE");

enum ipc_what { IPC_PIECE = 1, IPC_FORGET };

/* Passed beside the frames; the first byte names the channel. */
struct ipc_note {
    uint8_t channel, what;
    uint16_t piece, pieces;        /* IPC_PIECE: which of how many */
    uint8_t form, zero;            /* IPC_FORGET: of what */
    uint64_t id;
    uint64_t size;                 /* of the piece */
};
_Static_assert(sizeof(struct ipc_note) == 24, "wire layout");

/* ---- objects ------------------------------------------------------------- */

/* What the peer was told of: lives in a link. */
struct ipc_export {
    struct tpb_list node;          /* the link's, used last at the end */
    enum ipc_form form;
    uint64_t id, base, size;
    uint64_t block;                /* of tp_alloc(), 0: none */
    int device;
    cu_ipc_memory handle;
    uint32_t holds;                /* writes under way */
    bool gone;                     /* not in the link any more */
    size_t pieces, told;           /* so many of them */
    struct ipc_piece {
        uint64_t id, block, base, size;
    } piece[];                     /* of a region */
};

/* What of the peer's is open here.  Outlives its link while it is held. */
struct ipc_import {
    struct tpb_list node;          /* the link's, used last at the end */
    enum ipc_form form;
    uint64_t id, base, size;
    int device;                    /* in whose context it is open */
    uint64_t allowed;              /* a region: who may use it, a bit each */
    cu_pointer pointer;            /* 0: a region that was not needed yet */
    uint32_t holds;                /* pulls out of it, and what is lent */
    bool dropped;                  /* not in the link any more */
    size_t pieces, got;            /* of a region */
    struct ipc_part {
        int fd;                    /* -1: imported */
        size_t size;
    } part[];
};

struct ipc_channel {
    struct tpf_channel base;
    struct tpb_list pulls, links;
};

struct ipc_link {
    struct tpf_link base;
    struct tpb_list node;          /* the channel's */
    bool own;                      /* the peer is this process */
    struct tpb_list exports, imports;
    uint64_t regions;              /* told so far */
    uint32_t exported;             /* how many there are ... */
    uint64_t exported_bytes;
    uint32_t parts;                /* descriptors that wait to be imported */
    struct tpb_record_imports imported;
};

/* Of this pair, and in the rank's record. */
#define IPC_COUNT(link, member, value) \
    do { \
        (link)->imported.member += (value); \
        TPB_RECORD_ADD((link)->base.channel->env->imports->member, (value)); \
    } while (0)

/* ---- export.c ------------------------------------------------------------ */

size_t ipc_describe(struct tpf_link *link, const struct tpf_buffer *buffer,
                    unsigned char source[TPF_SOURCE], void **hold);
void ipc_forget(struct tpf_link *link, void *hold);
/* A block of tp_alloc() goes. */
void ipc_freed(struct tpf_channel *channel, uint64_t block);
/* Memory of our own goes: the `gone` of struct tpg_gpu. */
void ipc_gone(void *channel, cu_pointer memory);
void ipc_exports_end(struct ipc_link *link);

/* ---- import.c ------------------------------------------------------------ */

/* The source's memory, open here, held.  `user`: the device that is to use it,
 * -1 for any.  It is opened in the context of the device that has the memory
 * only if this process uses that one anyway, or no other way is open.  NULL
 * with words; *status: NOT_FOUND if only this one cannot be had. */
struct ipc_import *ipc_import_get(struct ipc_link *link,
                                  const struct tpg_cuda *cuda,
                                  const struct ipc_source *source,
                                  int user, tp_status *status,
                                  struct tpb_error *error);
void ipc_import_let_go(struct ipc_import *import);
bool ipc_note(struct tpf_link *link, const void *note, size_t length, int fd);
void ipc_imports_end(struct ipc_link *link);

#endif
