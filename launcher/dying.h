/* SPDX-License-Identifier: BSD-3-Clause */
/* Has the kernel begun to end a process? */
#ifndef TPL_DYING_H
#define TPL_DYING_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * A child of ours that was not reaped: does none of its threads run any more?
 * What it ends with is settled then, though waitpid(2) may not tell yet: its
 * memory may take seconds to go.  False where /proc does not show it.
 */
bool tpl_dying(pid_t pid);

#endif
