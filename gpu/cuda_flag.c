/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Flags: words of pinned host memory that streams of ours write when they have
 * come so far (cuStreamWriteValue32).  They are in host memory, and nothing on
 * a device waits for one: so no flag that never comes holds up a stream.
 */
#include "config.h"

#include <string.h>

#include "gpu/cuda.h"
#include "gpu/cuda_late.h"
#include "runtime/base/alloc.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("cuda");

struct flag_word {
    _Alignas(TPB_CACHE_LINE) uint32_t value;   /* the device writes it */
};

struct tpg_flags {
    struct flag_word *words;       /* registered; one per device */
    cu_pointer there;              /* the same as the devices know it */
    uint32_t turns[TPG_DEVICES];
    bool none;                     /* this driver does not do it */
};

enum { FLAG_BYTES = TPG_DEVICES * sizeof(struct flag_word) };

/* With a context current.  What fails is not tried again. */
static bool flag_map(struct tpg_flags *flags, const struct tpg_cuda *cuda)
{
    void *memory;

    flags->none = true;
    if (tpg_pinned_take(cuda, FLAG_BYTES, &memory, NULL) != TP_OK)
        return false;
    memset(memory, 0, FLAG_BYTES);
    flags->words = memory;
    flags->none = cuda->cuMemHostGetDevicePointer_v2(&flags->there, memory, 0)
                  != CU_OK;
    return !flags->none;
}

bool tpg_flag_raise(struct tpg_gpu *gpu, const struct tpg_cuda *cuda,
                    int device, uint32_t *turn)
{
    struct tpg_flags *flags = gpu->flags;

    if (flags == NULL) {
        if (!cuda->flag)
            return false;
        gpu->flags = flags = tpb_zalloc(sizeof(*flags));
        if (flags == NULL || !flag_map(flags, cuda))
            return false;
    }
    if (flags->none)
        return false;
    if (cuda->cuStreamWriteValue32_v2(gpu->devices[device].in, flags->there
                                      + (size_t)device
                                        * sizeof(struct flag_word),
                                      flags->turns[device] + 1, 0) != CU_OK) {
        tpb_info("this driver writes no flags from streams: events instead");
        flags->none = true;
        return false;
    }
    *turn = ++flags->turns[device];
    return true;
}

bool tpg_flag_reached(const struct tpg_gpu *gpu, int device, uint32_t turn)
{
    /* Acquire: what the stream did before is there, too. */
    uint32_t value = __atomic_load_n(&gpu->flags->words[device].value,
                                     __ATOMIC_ACQUIRE);

    return (int32_t)(value - turn) >= 0;
}

/* The streams are gone, and with them the last write. */
void tpg_flags_free(struct tpg_gpu *gpu)
{
    struct tpg_flags *flags = gpu->flags;

    if (flags != NULL && flags->words != NULL)
        tpg_pinned_give(flags->words, FLAG_BYTES);
    tpb_free(flags);
    gpu->flags = NULL;
}
