/* SPDX-License-Identifier: BSD-3-Clause */
/* The tests of tensors on devices, for whoever runs ranks. */
#ifndef TPX_SUITE_DEVICE_H
#define TPX_SUITE_DEVICE_H

#include "tests/multi/spmd.h"

extern const struct tpx_spmd tpx_device_suite[], tpx_ends_suite[],
    tpx_kinds_suite[], tpx_kinds_fault, tpx_kinds_short, tpx_streams_suite[],
    tpx_streams_thread, tpx_streams_capture, tpx_rivals;

#endif
