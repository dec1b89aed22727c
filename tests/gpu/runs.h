/* SPDX-License-Identifier: BSD-3-Clause */
/* Suites over the ways of device memory and the modes of the double. */
#ifndef TPX_RUNS_H
#define TPX_RUNS_H

#include "tests/lib/tpx.h"
#include "tests/multi/harness.h"

/* One way to run a suite. */
struct tpx_run {
    const char *backends, *progress;
    const char *mode;          /* CUDADOUBLE_MODE */
    bool reuse, peers, flags;  /* the rest of it */
    bool plain;                /* not under sanitizers: adds nothing there */
};

/* The job of that test and run.  `environment` has room for 8 pointers. */
struct tpx_job tpx_run_job(const struct tpx_spmd *test,
                           const struct tpx_run *run, char **environment);

/* Each test in each way; once in a program. */
Suite *tpx_runs_suite(const char *name, const struct tpx_spmd *const *suites,
                      const struct tpx_run *runs, int count);

#endif
