/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tensors on devices over each transport, in each mode of the double.  With
 * TP_CUDA_LIBRARY set the driver it names is used, as on a machine with GPUs.
 */
#include "config.h"

#include "tests/gpu/device.h"
#include "tests/gpu/suite_device.h"
#include "tests/lib/tpx.h"
#include "tests/multi/harness.h"

static const struct {
    const char *backends, *mode, *reuse, *peers, *progress;
} runs[] = {
    { "loop,shm", "CUDADOUBLE_MODE=lazy", "CUDADOUBLE_REUSE=0",
      "CUDADOUBLE_P2P=1", "auto" },
    { "loop,shm", "CUDADOUBLE_MODE=delay", "CUDADOUBLE_REUSE=1",
      "CUDADOUBLE_P2P=0", "thread" },
    { "loop,shm,map,cma", "CUDADOUBLE_MODE=lazy", "CUDADOUBLE_REUSE=1",
      "CUDADOUBLE_P2P=0", "manual" },
    { "loop,shm,cuda_ipc", "CUDADOUBLE_MODE=lazy", "CUDADOUBLE_REUSE=1",
      "CUDADOUBLE_P2P=1", "auto" },
    { "loop,shm,cuda_ipc,map,cma", "CUDADOUBLE_MODE=delay",
      "CUDADOUBLE_REUSE=1", "CUDADOUBLE_P2P=0", "thread" },
    { "loop,ofi:tcp", "CUDADOUBLE_MODE=lazy", "CUDADOUBLE_REUSE=1",
      "CUDADOUBLE_P2P=1", "auto" },
    { "loop,ofi:tcp", "CUDADOUBLE_MODE=eager", "CUDADOUBLE_REUSE=0",
      "CUDADOUBLE_P2P=1", "thread" },
};

START_TEST(run)
{
    const struct tpx_spmd *test
        = &tpx_device_suite[_i / (int)TPB_COUNT(runs)];
    size_t at = (size_t)_i % TPB_COUNT(runs);
    char *environment[] = { (char *)(uintptr_t)runs[at].mode,
                            (char *)(uintptr_t)runs[at].reuse,
                            (char *)(uintptr_t)runs[at].peers, NULL };
    struct tpx_job job = { .test = test, .ranks = test->ranks,
                           .backends = runs[at].backends,
                           .progress = runs[at].progress,
                           .environment = environment };

    tpx_device_choose();
    tpx_job_run(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device");

    for (int i = 0; tpx_device_suite[i].name != NULL; i++) {
        TCase *tests = tcase_create(tpx_device_suite[i].name);

        tcase_set_timeout(tests, tpx_patience_ms(tpx_device_suite[i].seconds)
                                 / 1000.0 + 10);
        tcase_add_loop_test(tests, run, i * (int)TPB_COUNT(runs),
                            (i + 1) * (int)TPB_COUNT(runs));
        suite_add_tcase(suite, tests);
    }
    return tpx_run(suite);
}
