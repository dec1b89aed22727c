/* SPDX-License-Identifier: BSD-3-Clause */
/* What a message of libfabric's begins with, and the buffers that they are sent
 * from and received into. */
#ifndef TPF_OFI_BUFFERS_H
#define TPF_OFI_BUFFERS_H

#include <stdbool.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "runtime/base/base.h"

struct ofi_conn;
struct ofi_mr;

/* Before each frame. */
struct ofi_head {
    uint32_t size;                 /* of the frame; 0: there is none */
    uint32_t flags;                /* low byte; above it the frame's number */
    uint32_t popped;               /* frames the core has taken, modulo 2^32 */
    uint32_t got;                  /* frames that have come in, likewise */
};
_Static_assert(sizeof(struct ofi_head) == 16, "frames are aligned");

/* In the low byte of flags. */
enum {
    OFI_FLAG_PING = 1,             /* tell me what you have got */
    OFI_FLAG_SPLIT = 2,            /* the rest is the next message */
    OFI_FLAG_BUNDLE = 4,           /* frames behind their lengths, bundle.c */
    OFI_NUMBER_SHIFT = 8
};

enum ofi_use { OFI_RECEIVE, OFI_SEND, OFI_SEND_DATA, OFI_READ, OFI_BODY };

struct ofi_slot {
    struct fi_context2 context;    /* first: libfabric hands back its address */
    struct ofi_conn *conn;
    struct ofi_slot *next;
    struct ofi_head *head;         /* the buffer: head, then frame */
    void *desc;
    size_t size;                   /* of the frame */
    enum ofi_use use;
    bool posted;                   /* libfabric has it */
    bool bundle;                   /* received: several frames ... */
    bool kept;                     /* it is one of those of shorts.c */
    size_t at;                     /* ... of which the next one is here */
    const void *data;              /* OFI_SEND_DATA: the caller's memory */
    struct ofi_mr *mr;             /* ... its registration, or NULL */
    size_t length;                 /* ... its bytes; in conn->coming: those
                                      of the frame that came with the head */
    void *token;
};

/* Slots of one direction of one conn, in one mapping. */
struct ofi_slots {
    struct ofi_slot *slot;
    void *memory;
    size_t bytes;
    unsigned count, available;     /* all of them; those in `free` */
    struct ofi_slot *free;         /* a stack: the last one used is warm */
    struct fid_mr *mr;
};
tp_status ofi_slots_open(struct ofi_slots *slots, struct ofi_conn *conn,
                         unsigned count, size_t frame, uint64_t access,
                         struct tpb_error *error);
void ofi_slots_close(struct ofi_slots *slots);
struct ofi_slot *ofi_slot_take(struct ofi_slots *slots);
void ofi_slot_give(struct ofi_slots *slots, struct ofi_slot *slot);

/* First in, first out. */
struct ofi_queue {
    struct ofi_slot *first, *last;
};
void ofi_queue_add(struct ofi_queue *queue, struct ofi_slot *slot);
struct ofi_slot *ofi_queue_take(struct ofi_queue *queue);

#endif
