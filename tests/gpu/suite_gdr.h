/* SPDX-License-Identifier: BSD-3-Clause */
/* The tests of cuda_gdr between ranks, for a machine with an RDMA device. */
#ifndef TPX_SUITE_GDR_H
#define TPX_SUITE_GDR_H

#include "tests/multi/spmd.h"

extern const struct tpx_spmd tpx_gdr_suite[];

#endif
