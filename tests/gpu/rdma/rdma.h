/* SPDX-License-Identifier: BSD-3-Clause */
/* What the doubles of libibverbs and libfabric have in common. */
#ifndef TPX_RDMA_H
#define TPX_RDMA_H

#include <stddef.h>

/* Whether device memory may be registered by this thread's next call. */
enum rdma_permit {
    RDMA_ASK,                          /* as VERBSDOUBLE_PLAIN says */
    RDMA_ALLOW,
    RDMA_HOST                          /* host memory is registered instead */
};

typedef void *rdma_way_in(const void *address, size_t length, int *answer);
typedef void rdma_permit_fn(enum rdma_permit permit);

#endif
