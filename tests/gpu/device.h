/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices for tests: the driver that TP_CUDA_LIBRARY names, which is the double
 * unless a test runs on a real GPU.  What fails ends the test.
 */
#ifndef TPX_DEVICE_H
#define TPX_DEVICE_H

#include "gpu/cuda_driver.h"

/* Points TP_CUDA_LIBRARY at the double of the build tree, if it is not set. */
void tpx_device_choose(void);

/* The same driver as libtp's; loads it. */
const struct tpg_cuda *tpx_device_driver(void);

/* Makes the device's primary context current in this thread, for good. */
void tpx_device_use(int device);
/* The device that a test means: on a machine that has fewer, one of these. */
int tpx_device_number(int wanted);
/* Is it the double, that does what its variables say?  Loads it, but does not
 * wake it: so a process may ask before it forks. */
bool tpx_device_is_double(void);
/* The double is to fail by that plan (CUDADOUBLE_FAIL), or with "" no more. */
void tpx_device_fails(const char *plan);

cu_stream tpx_device_stream(void);
void *tpx_device_malloc(size_t size);
/* Enqueues a copy; the host memory is pinned by the test or waited for. */
void tpx_device_copy(void *to, const void *from, size_t size, cu_stream s);
void tpx_device_sync(cu_stream stream);
/* CU_OK or the test ends. */
void tpx_cu(cu_result code, const char *what);
#define TPX_CU(call) tpx_cu(call, #call)

#endif
