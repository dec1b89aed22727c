/* SPDX-License-Identifier: BSD-3-Clause */
/* The inside of struct tpg_gpu where there is CUDA: for the files of gpu/. */
#ifndef TPG_CUDA_H
#define TPG_CUDA_H

#include <pthread.h>

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
    bool open;
    cu_stream out, in;             /* our own: never wait for the user's */
    struct tpg_slot *free, *draining;
    size_t draining_count;
};

struct tpg_gpu {
    const struct tpb_settings *settings;
    struct tpg_device devices[TPG_DEVICES];    /* token */
};

tp_status tpg_claim_check(const struct tpg_cuda *cuda,
                          const struct tpf_buffer *buffer,
                          struct tpb_error *error);
tp_status tpg_alloc_on(const struct tpg_cuda *cuda, size_t bytes,
                       tp_device device, struct tpf_memory *block,
                       struct tpb_error *error);

/* The device's streams.  Its context is current afterwards if OK: pair with
 * tpg_cuda_leave(). */
tp_status tpg_device_enter(struct tpg_gpu *gpu, const struct tpg_cuda *cuda,
                           int device, struct tpb_error *error);

#endif
