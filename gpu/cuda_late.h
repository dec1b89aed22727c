/* SPDX-License-Identifier: BSD-3-Clause */
/* What the driver lets go of only when the device is idle: none of it is done
 * while messages are moved.  Any thread may call. */
#ifndef TPG_CUDA_LATE_H
#define TPG_CUDA_LATE_H

#include "gpu/cuda_driver.h"

enum tpg_late { TPG_LATE_IMPORT, TPG_LATE_MEMORY, TPG_LATE_PINNED };

/* Closes an import, or frees memory of cuMemAlloc, of that device and size, or
 * unmaps memory of the host that was registered: by and by, or never.  What is
 * enqueued already may still use it. */
void tpg_late(const struct tpg_cuda *cuda, enum tpg_late what, int device,
              cu_pointer pointer, size_t size);

/* Lets go of all that is left, and waits for it. */
void tpg_late_now(void);

/*
 * Pinned memory that all devices may use, not zeroed; of one that was given
 * back if there is one of that size.  With a context current.  Who gives it
 * back has waited for the copies from and to it.
 */
tp_status tpg_pinned_take(const struct tpg_cuda *cuda, size_t size,
                          void **memory, struct tpb_error *error);
void tpg_pinned_give(void *memory, size_t size);

#endif
