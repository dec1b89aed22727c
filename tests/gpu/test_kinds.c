/* SPDX-License-Identifier: BSD-3-Clause */
/* Kinds of memory and orders of streams, in the modes of the double. */
#include "config.h"

#include "runtime/base/base.h"
#include "tests/gpu/device.h"
#include "tests/gpu/runs.h"
#include "tests/gpu/suite_device.h"

static const struct tpx_run runs[] = {
    { "loop,shm", "auto", "lazy", true, true, true, false },
    { "loop,shm,cuda_ipc", "auto", "lazy", false, true, true, true },
    { "loop,shm,cuda_ipc", "manual", "lazy", true, true, false, false },
    { "loop,shm,cuda_host", "auto", "lazy", false, true, true, false },
    { "loop,shm,cuda_ipc,map,cma", "thread", "delay", true, false, true,
      false },
    { "loop,shm,cuda_ipc", "auto", "eager", true, true, true, true },
    { "loop,shm,cuda_host", "thread", "delay", true, false, true, false },
    { "loop,ofi:tcp,cuda_ipc", "auto", "lazy", true, true, true, true },
};

static char faults[][64] = {
    "TP_TEST_FAULT=reader=cuIpcOpenMemHandle_v2:1+:217",
    "TP_TEST_FAULT=reader=cuIpcOpenMemHandle_v2:1:101",
    "TP_TEST_FAULT=reader=cuIpcOpenMemHandle_v2:1:205",
    "TP_TEST_FAULT=reader=cuIpcOpenMemHandle_v2:1:208",
    "TP_TEST_FAULT=reader=cuMemImportFromShareableHandle:2:999",
    "TP_TEST_FAULT=reader=cuMemMap:3:2",
    "TP_TEST_FAULT=reader=cuMemSetAccess:1+:1",
    "TP_TEST_FAULT=reader=cuMemAddressReserve:1:2",
    "TP_TEST_FAULT=reader=cuStreamWriteValue32_v2:3:801",
    "TP_TEST_FAULT=reader=cuMemHostRegister_v2:1:800",
    "TP_TEST_FAULT=writer=cuIpcGetMemHandle:1+:201",
    "TP_TEST_FAULT=writer=cuMemExportToShareableHandle:2:800",
    "TP_TEST_FAULT=writer=cuMemRetainAllocationHandle:1+:1",
    "TP_TEST_FAULT=writer=cuMemHostRegister_v2:1:800",
    "TP_TEST_FAULT=reader=cuMemHostRegister_v2:1:800",
    "TP_TEST_FAULT=reader=cuMemcpy2DAsync_v2:1:2",
};

/* The first of them over cuda_ipc, the others over cuda_host. */
enum { FAULTS_IPC = 13 };

START_TEST(fault)
{
    char *environment[8];
    struct tpx_job job = tpx_run_job(&tpx_kinds_fault,
                                     &runs[_i < FAULTS_IPC ? 2 : 3],
                                     environment);

    tpx_device_choose();
    environment[4] = faults[_i];
    environment[5] = NULL;
    tpx_job_run(&job);
}
END_TEST

int main(void)
{
    static const struct tpx_spmd *const suites[] = { tpx_kinds_suite, NULL };
    Suite *suite = tpx_runs_suite("kinds", suites, runs,
                                  (int)TPB_COUNT(runs));
    TCase *tests = tcase_create("fault");

    tcase_set_timeout(tests, tpx_patience_ms(30) / 1000.0 + 10);
    tcase_add_loop_test(tests, fault, 0, (int)TPB_COUNT(faults));
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
