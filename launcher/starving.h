/* SPDX-License-Identifier: BSD-3-Clause */
/* Does a process do nothing because it has nothing to do, or because it gets no
 * cpu? */
#ifndef TPL_STARVING_H
#define TPL_STARVING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * True if it could run, but has had less than ten milliseconds of a cpu since
 * the first look, which *ran notes; 0 before that.  False where the kernel does
 * not tell.
 */
bool tpl_starving(pid_t pid, uint64_t *ran);

/* The same of the texts of /proc/PID/stat and /proc/PID/schedstat. */
bool tpl_starving_text(const char *stat, const char *schedstat,
                       uint64_t *ran);

#endif
