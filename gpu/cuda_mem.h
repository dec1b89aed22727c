/* SPDX-License-Identifier: BSD-3-Clause */
/* What kind of memory a pointer names, and how it can leave the process. */
#ifndef TPG_CUDA_MEM_H
#define TPG_CUDA_MEM_H

#include "gpu/cuda_driver.h"

enum tpg_kind {
    TPG_HOST,                      /* nothing the driver knows */
    TPG_PINNED,                    /* of the host, known to the driver */
    TPG_MANAGED,                   /* cuMemAllocManaged: either side's */
    TPG_MALLOC,                    /* cuMemAlloc, cudaMalloc */
    TPG_VMM,                       /* cuMemCreate and cuMemMap */
    TPG_POOL,                      /* cudaMallocAsync */
    TPG_IMPORTED                   /* of another process; or unknown */
};

/* How its bytes reach another process of the host. */
enum tpg_route {
    TPG_ROUTE_HOST,                /* as any host memory */
    TPG_ROUTE_LEGACY,              /* cuIpcGetMemHandle of its base */
    TPG_ROUTE_FD,                  /* a POSIX descriptor per mapping */
    TPG_ROUTE_STAGED               /* by way of host memory */
};

struct tpg_memory {
    enum tpg_kind kind;
    enum tpg_route route;
    int device;                    /* -1 for the host */
    uint64_t id;                   /* never used again in this process */
    uint64_t block;                /* VMM: what is mapped there; likewise */
    uint64_t base;                 /* of the whole allocation (device kinds);
                                      VMM: of one mapping of several */
    size_t size;
};

const char *tpg_kind_name(enum tpg_kind kind);

/* Asks the driver.  Never cached: addresses come back under other owners. */
tp_status tpg_memory_look(const struct tpg_cuda *cuda, const void *data,
                          struct tpg_memory *memory,
                          struct tpb_error *error);

#endif
