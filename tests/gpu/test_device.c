/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tensors on devices over each transport, in each mode of the double.  With
 * TP_CUDA_LIBRARY set the driver it names is used, as on a machine with GPUs.
 */
#include "config.h"

#include "runtime/base/base.h"
#include "tests/gpu/runs.h"
#include "tests/gpu/suite_device.h"

static const struct tpx_run runs[] = {
    { "loop,shm", "auto", "lazy", false, true, true, false },
    { "loop,shm", "thread", "delay", true, false, true, true },
    { "loop,shm,map,cma", "manual", "lazy", true, false, true, true },
    { "loop,shm,cuda_ipc", "auto", "lazy", true, true, true, false },
    { "loop,shm,cuda_ipc,map,cma", "thread", "delay", true, false, true,
      false },
    { "loop,shm,cuda_ipc", "manual", "lazy", true, true, true, true },
    { "loop,shm,cuda_host", "auto", "lazy", true, true, true, false },
    { "loop,shm,cuda_host,map,cma", "manual", "delay", false, false, true,
      true },
    { "loop,ofi:tcp", "auto", "lazy", true, true, true, true },
    { "loop,ofi:tcp", "thread", "eager", false, true, true, false },
};

int main(void)
{
    static const struct tpx_spmd *const suites[] = { tpx_device_suite,
                                                     tpx_ends_suite,
                                                     tpx_streams_suite,
                                                     NULL };

    return tpx_run(tpx_runs_suite("device", suites, runs,
                                  (int)TPB_COUNT(runs)));
}
