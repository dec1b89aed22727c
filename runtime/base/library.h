/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Libraries that are loaded when they are needed; and is the one that the
 * loader took the one that was asked for?  Releases 3 to 6 of PMIx all call
 * themselves libpmix.so.2.
 */
#ifndef TPB_LIBRARY_H
#define TPB_LIBRARY_H

#include "runtime/base/base.h"

/*
 * As dlopen(3): by its name, so that LD_LIBRARY_PATH counts; and if nothing of
 * that name can be loaded, from the place where it was when tp was built.
 */
void *tpb_library_open(const char *name, const char *place, int flags);

/*
 * `version` is what libpmix says of itself, `function` one of its functions,
 * which tells its place, and built_* what we were compiled with.  False, with
 * words that have both versions and the place, for what is older than 4.2.
 */
bool tpb_pmix_fits(const char *version, const void *function,
                   long built_major, long built_minor,
                   struct tpb_error *error);

/* Has this process no HOME, and its user no entry in the list of users that
 * tells one?  libpmix looks there for its settings, and crashes. */
bool tpb_pmix_homeless(void);

#endif
