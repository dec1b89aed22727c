/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What every test program uses: one main for a Check suite, skips with a
 * reason, and the totals line that the summary adds up.
 */
#ifndef TPX_H
#define TPX_H

#include <check.h>

#include "runtime/base/base.h"

/* Runs the suite, prints "tpx: P passed, F failed, S skipped", and returns the
 * exit status for main: 0, 1 on failures, 77 if all was skipped. */
int tpx_run(Suite *suite);

/*
 * Something the tests need is not on this machine.  Counts and prints
 * "SKIP: what: reason"; if TP_TEST_REQUIRE (a comma list) names `what`, the
 * test fails instead.  Returns so that the caller can leave its test.
 */
void tpx_skip(const char *what, const char *reason);

/* Does TP_TEST_ONLY, a list as of TP_BACKENDS, leave this test in? */
bool tpx_chosen(const char *test);

/* libfabric takes 0.2 s to load.  Where the backend needs it it is loaded here,
 * so that not every process forked from this one has to do it again.  (Programs
 * that tests start load it as a user's do.) */
void tpx_load(const char *backend);

/* Is that variable of the environment there, and not empty? */
bool tpx_is_set(const char *variable);

/* Is this a sanitizer's build (TP_TEST_SANITIZER), ThreadSanitizer's? */
bool tpx_sanitized(void);
bool tpx_sanitized_thread(void);

/* So many, or few of them (a tenth) if TP_TEST_FEW is set: for machines that
 * are emulated. */
unsigned tpx_few(unsigned many);

/* The build tree's programs: "launcher/tprun" gives its absolute path.
 * Static memory per call site's string; never NULL. */
const char *tpx_program(const char *path);

#endif
