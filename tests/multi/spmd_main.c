/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs one test function in the calling rank, under any launcher:
 *
 *     tprun -n 4 tests/multi/spmd NAME
 *     mpirun -n 4 tests/multi/spmd NAME
 *
 * Without a name it lists them.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

static void spmd_list(void)
{
    for (size_t s = 0; tpx_suites[s] != NULL; s++)
        for (const struct tpx_spmd *test = tpx_suites[s]; test->name != NULL;
             test++)
            printf("%-28s %2d ranks%s\n", test->name, test->ranks,
                   (test->flags & TPX_LAUNCH) != 0 ? ", with a launcher" : "");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        spmd_list();
        return 0;
    }
    alarm(1000);               /* whatever the launcher does */
    for (size_t s = 0; tpx_suites[s] != NULL; s++)
        for (const struct tpx_spmd *test = tpx_suites[s]; test->name != NULL;
             test++)
            if (strcmp(test->name, argv[1]) == 0) {
                tpx_rank_run(test, argv + 2);
                /* For launchers that miss the end of a rank. */
                if (getenv("TPX_TELL") != NULL)
                    fprintf(stderr, "spmd: a rank is done\n");
                return 0;
            }
    fprintf(stderr, "spmd: no test is called %s\n", argv[1]);
    return 2;
}
