/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stands in for the kernel's part of GPUDirect RDMA, in front of libibverbs, by
 * LD_PRELOAD: the memory of the CUDA double (tests/gpu/double) can be
 * registered at the addresses that the program knows, which itself may not
 * touch it.  For tests only, never installed.
 *
 *   VERBSDOUBLE_PLAIN=1     as with nvidia_peermem: ibv_reg_mr() takes device
 *                           memory; without it, EFAULT
 *   VERBSDOUBLE_SHORT=N     of a bigger piece of device memory only the first N
 *                           bytes are registered: what lies behind fails when
 *                           it is reached
 *   VERBSDOUBLE_REFUSE=N    device memory is refused from the Nth time on
 *
 * The double of libfabric beside it says for one call that it may register
 * device memory, or shall register something else.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/gpu/rdma/rdma.h"

struct ibv_pd;
struct ibv_mr;

static _Thread_local enum rdma_permit rdma_permit;

/* In front of libibverbs's, by their names. */
#pragma GCC visibility push(default)
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length,
                          int access);
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length,
                               uint64_t iova, int access);
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address,
                                size_t length, uint64_t iova, unsigned access);
rdma_permit_fn rdma_permit_set;
#pragma GCC visibility pop

void rdma_permit_set(enum rdma_permit permit)
{
    rdma_permit = permit;
}

/* The CUDA double, if this process has it. */
static rdma_way_in *verbs_way_in(void)
{
    static _Atomic(rdma_way_in *) found;
    rdma_way_in *way_in = atomic_load(&found);
    const char *path = getenv("TP_CUDA_LIBRARY");
    void *library;

    if (way_in != NULL || path == NULL)
        return way_in;
    library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return NULL;
    *(void **)&way_in = dlsym(library, "cudadouble_way_in");
    atomic_store(&found, way_in);
    return way_in;
}

static size_t verbs_number(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 0) : 0;
}

/* May it, this time? */
static int verbs_allows(void)
{
    static atomic_size_t count;
    size_t refuse = verbs_number("VERBSDOUBLE_REFUSE");

    if (rdma_permit == RDMA_ASK && verbs_number("VERBSDOUBLE_PLAIN") == 0)
        return 0;
    return refuse == 0 || atomic_fetch_add(&count, 1) + 1 < refuse;
}

/* NULL with errno if device memory is not to be had; *length may shrink. */
static void *verbs_real(void *address, size_t *length)
{
    rdma_way_in *way_in = verbs_way_in();
    size_t most = verbs_number("VERBSDOUBLE_SHORT");
    void *real;
    int device = 0;

    if (way_in == NULL)
        return address;
    real = way_in(address, *length, &device);
    if (!device)
        return address;
    if (real == NULL || !verbs_allows()) {
        errno = EFAULT;
        return NULL;
    }
    if (most > 0 && *length > most)
        *length = most;
    if (rdma_permit == RDMA_HOST) {    /* pages that are not the device's */
        real = mmap(NULL, *length, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (real == MAP_FAILED)
            return NULL;
    }
    return real;
}

typedef struct ibv_mr *verbs_iova2_fn(struct ibv_pd *pd, void *address,
                                      size_t length, uint64_t iova,
                                      unsigned access);

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address,
                                size_t length, uint64_t iova, unsigned access)
{
    static _Atomic(verbs_iova2_fn *) next;
    verbs_iova2_fn *call = atomic_load(&next);
    void *real = verbs_real(address, &length);

    if (call == NULL) {                /* libfabric has loaded it for itself */
        void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

        if (library != NULL)
            *(void **)&call = dlsym(library, "ibv_reg_mr_iova2");
        if (call == NULL)
            abort();
        atomic_store(&next, call);
    }
    return real == NULL ? NULL : call(pd, real, length, iova, access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length,
                          int access)
{
    return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address,
                            (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length,
                               uint64_t iova, int access)
{
    return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned)access);
}
