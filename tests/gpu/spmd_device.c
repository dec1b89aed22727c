/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs one test of tensors on devices in the calling rank, under any launcher:
 *
 *     tprun -n 2 tests/gpu/spmd_device gdr_mix direct
 */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/device.h"
#include "tests/gpu/suite_device.h"
#include "tests/gpu/suite_gdr.h"

int main(int argc, char **argv)
{
    const struct tpx_spmd *const suites[] = { tpx_device_suite,
                                              tpx_gdr_suite };

    alarm(300);                        /* whatever the launcher does */
    tpx_device_choose();
    for (size_t s = 0; argc > 1 && s < 2; s++)
        for (const struct tpx_spmd *test = suites[s]; test->name != NULL;
             test++)
            if (strcmp(test->name, argv[1]) == 0) {
                tpx_rank_run(test, argv + 2);
                return 0;
            }
    fprintf(stderr, "spmd_device: no test is called %s\n",
            argc > 1 ? argv[1] : "nothing");
    return 2;
}
