/* SPDX-License-Identifier: BSD-3-Clause */
/* Suites over the ways of device memory and the modes of the double. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/device.h"
#include "tests/gpu/runs.h"
#include "tests/lib/tpx.h"

enum { RUNS_TESTS = 64 };

static const struct tpx_spmd *runs_tests[RUNS_TESTS];
static const struct tpx_run *runs_ways;
static int runs_count;

struct tpx_job tpx_run_job(const struct tpx_spmd *test,
                           const struct tpx_run *run, char **environment)
{
    static char mode[64], reuse[][20] = { "CUDADOUBLE_REUSE=0",
                                          "CUDADOUBLE_REUSE=1" };
    static char peers[][20] = { "CUDADOUBLE_P2P=0", "CUDADOUBLE_P2P=1" };
    static char flags[][20] = { "CUDADOUBLE_FLAGS=0", "CUDADOUBLE_FLAGS=1" };

    snprintf(mode, sizeof(mode), "CUDADOUBLE_MODE=%s", run->mode);
    environment[0] = mode;
    environment[1] = reuse[run->reuse];
    environment[2] = peers[run->peers];
    environment[3] = flags[run->flags];
    environment[4] = NULL;
    return (struct tpx_job){ .test = test, .ranks = test->ranks,
                             .backends = run->backends,
                             .progress = run->progress,
                             .environment = environment };
}

START_TEST(run)
{
    char *environment[8];
    struct tpx_job job = tpx_run_job(runs_tests[_i / runs_count],
                                     &runs_ways[_i % runs_count],
                                     environment);

    tpx_device_choose();
    tpx_job_run(&job);
}
END_TEST

/* Is there anything to learn from it here? */
static bool runs_has(const struct tpx_spmd *test, const struct tpx_run *way)
{
    if (way->plain && tpx_sanitized())
        return false;
    return (test->flags & TPX_MANUAL) == 0
           || strcmp(way->progress, "manual") == 0;
}

Suite *tpx_runs_suite(const char *name, const struct tpx_spmd *const *suites,
                      const struct tpx_run *ways, int count)
{
    Suite *suite = suite_create(name);
    int tests = 0;

    runs_ways = ways;
    runs_count = count;
    for (; *suites != NULL; suites++)
        for (const struct tpx_spmd *test = *suites; test->name != NULL; test++)
        {
            TCase *cases = tcase_create(test->name);

            if (!tpx_chosen(test->name))
                continue;
            runs_tests[tests] = test;
            tcase_set_timeout(cases, tpx_patience_ms(test->seconds) / 1000.0
                                     + 10);
            for (int i = 0; i < count; i++)
                if (runs_has(test, &ways[i]))
                    tcase_add_loop_test(cases, run, tests * count + i,
                                        tests * count + i + 1);
            suite_add_tcase(suite, cases);
            tests++;
        }
    return suite;
}
