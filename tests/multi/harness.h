/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The side of the Check program: forks the ranks of a job, waits for them with
 * a deadline, and fails the test with a rank's own words.
 *
 * The ranks find each other through a private directory, which is removed.
 * Standard error of each rank is kept, and shown if something is wrong; a rank
 * that logs a warning it was not expected to log fails the test.  Nothing is
 * left behind: ranks die with the test program, and leftovers are killed.
 */
#ifndef TPX_HARNESS_H
#define TPX_HARNESS_H

#include "tests/multi/spmd.h"

struct tpx_job {
    const struct tpx_spmd *test;
    int ranks;
    const char *backends;      /* TP_BACKENDS, NULL: all */
    const char *require;       /* TP_REQUIRE, NULL: nothing */
    const char *progress;      /* TP_PROGRESS, NULL: the default */
    char *const *environment;  /* more "NAME=VALUE", NULL-terminated, or NULL */
};

/* Runs the job; the calling Check test fails if it does. */
void tpx_job_run(const struct tpx_job *job);

/* The same for a job that shall fail: whether it did; `text` gets why. */
bool tpx_job_fails(const struct tpx_job *job, char *text, size_t size);

/* The milliseconds given to a test of this many seconds: more under a
 * sanitizer, and more on a machine that is busy.  TP_TEST_SECONDS sets it, for
 * those who hunt a hang. */
int tpx_patience_ms(int seconds);

/* Runs a program to its end with a deadline.  Its output (both streams) is
 * written to `output`.  Returns what waitpid() says; -1: it was killed here. */
int tpx_execute(char *const *command, int seconds, char *output,
                size_t capacity);

/* main() of a suite's program: each test over every transport of the build and
 * in every progress mode. */
int tpx_multi_main(const char *name, const struct tpx_spmd *suite);

#endif
