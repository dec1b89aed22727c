/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tensors for tests, of every kind of memory, each with a shadow in pinned
 * memory of the host: what is filled and checked goes through it by copies on
 * the tensor's stream.
 */
#ifndef TPX_BUFFER_H
#define TPX_BUFFER_H

#include "tests/gpu/device.h"
#include "tests/multi/spmd.h"

enum tpx_kind {
    TPX_PLAIN,                 /* malloc() */
    TPX_PINNED,                /* cuMemHostAlloc() */
    TPX_SHARED,                /* tp_alloc() on the CPU */
    TPX_MALLOC,                /* cuMemAlloc(), as cudaMalloc() */
    TPX_MANAGED,               /* cuMemAllocManaged() */
    TPX_POOL,                  /* cuMemAllocAsync() */
    TPX_VMM,                   /* cuMemMap(), one handle that can be exported */
    TPX_PIECES,                /* several of them in a row */
    TPX_CLOSED,                /* cuMemMap() without a way to export it */
    TPX_ALLOC,                 /* tp_alloc() on the device */
    TPX_KINDS
};
const char *tpx_kind_name(enum tpx_kind kind);
bool tpx_kind_on_device(enum tpx_kind kind);
/* Does cuda_ipc carry it, by itself or through the outbox? */
bool tpx_kind_goes_direct(enum tpx_kind kind);

struct tpx_buffer {
    enum tpx_kind kind;
    tp_device where;
    tp_device target;          /* TP_DEVICE_ANY, or what the test says */
    size_t length;
    unsigned char *data;       /* inside of `memory` */
    unsigned char *shadow;
    cu_stream stream;
    void *memory;
    size_t size;               /* of `memory` */
    cu_memory handles[3];
    size_t pieces;
};

/* `device` is ignored for memory of the CPU. */
void tpx_buffer_make(struct tpx_buffer *buffer, enum tpx_kind kind, int device,
                     size_t length);
/* Waits for its stream first. */
void tpx_buffer_drop(struct tpx_buffer *buffer);

/* Enqueued only: whoever reads the tensor has to wait. */
void tpx_buffer_fill(struct tpx_buffer *buffer, uint64_t seed);
/* Overwrites it: enqueued likewise. */
void tpx_buffer_spoil(struct tpx_buffer *buffer);
/* Enqueues the copy back, when a fill is surely through. */
void tpx_buffer_fetch(struct tpx_buffer *buffer);
/* Of what was fetched. */
void tpx_buffer_compare(struct tpx_buffer *buffer, uint64_t seed);
/* Both, and waits in between. */
void tpx_buffer_check(struct tpx_buffer *buffer, uint64_t seed);
/* As a tensor of a message, or of a skeleton. */
tp_tensor tpx_buffer_tensor(const struct tpx_buffer *buffer);
void tpx_buffer_place(const struct tpx_buffer *buffer, tp_tensor *tensor);
/* Sends as many of them as the message has tensors, which it fills in, with the
 * bytes of `seed` and on; spoils them once they are ours again: what comes then
 * must not be seen over there. */
void tpx_buffers_send(tp_pipe *pipe, tp_message *message,
                      struct tpx_buffer *buffers, uint64_t seed,
                      int64_t patience_ms);

/* Holds up a stream until it is opened. */
struct tpx_gate {
    uint32_t *value;
};
void tpx_gate_close(struct tpx_gate *gate, cu_stream stream);
void tpx_gate_open(struct tpx_gate *gate);

#endif
