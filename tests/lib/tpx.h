/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What every test program uses: one main for a Check suite, skips with a
 * reason, and the totals line that the summary adds up.
 */
#ifndef TPX_H
#define TPX_H

#include <check.h>
#include <stdatomic.h>

#include "runtime/base/base.h"

/*
 * Check writes the place of every assertion that holds to a file, by calls of
 * the kernel, to tell where a test crashed.  For those that ask a million times
 * that is most of their time; so here each line does it once, and "after this
 * point" of a crash is the last line that was new.
 */
static inline void tpx_mark(const char *file, int line)
{
    static _Atomic uint64_t seen[32];
    _Atomic uint64_t *word = &seen[(unsigned)line / 64 % TPB_COUNT(seen)];
    uint64_t bit = UINT64_C(1) << ((unsigned)line % 64);

    if ((atomic_load_explicit(word, memory_order_relaxed) & bit) != 0)
        return;
    atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
    (_mark_point)(file, line);
}
#define _mark_point(file, line) tpx_mark(file, line)

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
