/* SPDX-License-Identifier: BSD-3-Clause */
/* The inside of struct tpg_gpu where there is CUDA: for the files of gpu/. */
#ifndef TPG_CUDA_H
#define TPG_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu/cuda_driver.h"
#include "gpu/gpu.h"

enum {
    TPG_SLOT = 512 * 1024,         /* bytes of a bounce slot */
    TPG_OUT_SLOTS = 4,             /* that one sender has under way */
    TPG_IN_SLOTS = 8               /* per device and context */
};

/* Pinned host memory for copies of one device. */
struct tpg_slot {
    struct tpg_slot *next;
    int device;
    unsigned char *memory;
    cu_event copied;               /* when the device is through with it */
    size_t index, offset, length;  /* what it holds, of which buffer */
};

/* One device as a context uses it; made on first use. */
struct tpg_device {
    _Atomic bool open;             /* atomic: the streams are there */
    cu_stream out, in;             /* our own: never wait for the user's */
    struct tpg_slot *free, *draining;
    size_t draining_count;
};

/* A copy of what other processes cannot open, in memory that they can. */
struct tpg_box {
    struct tpg_box *next;          /* the context's, or of one operation */
    int device;
    cu_pointer memory;
    size_t size;
    cu_event copied;
    bool ready;                    /* the device is through with it */
    size_t index;                  /* which buffer it stands for */
};

struct tpg_gpu {
    const struct tpb_settings *settings;
    struct tpg_device devices[TPG_DEVICES];    /* token */
    struct tpg_box *boxes;         /* that nobody uses, used last first */
    size_t box_bytes;              /* of all */
    /* Told before memory of our own goes that others may have open. */
    void (*gone)(void *arg, cu_pointer memory);
    void *gone_arg;
    struct tpg_flags *flags;       /* NULL: none yet */
};

/* One stream whose work an operation has to wait for. */
struct tpg_mark {
    int device;
    cu_stream stream;
    cu_event event;                /* NULL: passed */
    bool in, out;                  /* copies that it must wait for at the end */
};

struct tpg_work {
    struct tpg_gpu *gpu;
    const struct tpg_cuda *cuda;
    struct tpb_error error;
    /* The sender's: slots under way, in order; of the buffer `index`. */
    struct tpg_slot *first, **end;
    size_t slots, index, next;
    struct tpg_box *boxes;
    /* The receiver's: the slot that is being filled, and for which buffer. */
    struct tpg_slot *filling;
    struct tpf_buffer into;
    size_t count;
    struct tpg_mark marks[];
};

/* The mark of that stream; NULL if there is none. */
struct tpg_mark *tpg_mark_find(struct tpg_work *work, int device,
                               void *stream);
/* Has the event come?  FAILED: the device is broken. */
enum tpg_answer tpg_event_ask(struct tpg_work *work, cu_event event);

/* ---- cuda_outbox.c ------------------------------------------------------- */

/* The operation has no use for its copies any more. */
void tpg_boxes_back(struct tpg_work *work);
/* Frees those that nobody uses. */
void tpg_boxes_free(struct tpg_gpu *gpu, const struct tpg_cuda *cuda);

/* ---- cuda_flag.c --------------------------------------------------------- */

/*
 * A word of host memory that a device's stream `in` writes: to see how far it
 * is takes a load, and no call of the driver.  The device's context is current.
 * False: this driver has none, use an event.
 */
bool tpg_flag_raise(struct tpg_gpu *gpu, const struct tpg_cuda *cuda,
                    int device, uint32_t *turn);
/* Has the stream come that far? */
bool tpg_flag_reached(const struct tpg_gpu *gpu, int device, uint32_t turn);
void tpg_flags_free(struct tpg_gpu *gpu);

/* ---- the other files ----------------------------------------------------- */

tp_status tpg_claim_check(const struct tpg_cuda *cuda,
                          const struct tpf_buffer *buffer,
                          struct tpb_error *error);
tp_status tpg_alloc_on(const struct tpg_cuda *cuda, size_t bytes,
                       tp_device device, struct tpf_memory *block,
                       struct tpb_error *error);

/* A copy from pinned memory to a device, with its context current. */
cu_result tpg_copy_in(const struct tpg_cuda *cuda, cu_pointer to,
                      const unsigned char *from, size_t length,
                      cu_stream stream);

/* The device's streams.  Its context is current afterwards if OK: pair with
 * tpg_cuda_leave(). */
tp_status tpg_device_enter(struct tpg_gpu *gpu, const struct tpg_cuda *cuda,
                           int device, struct tpb_error *error);

#endif
