/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Processes that ranks leave behind.  tprun is their subreaper: when their
 * parent dies they become its children, wherever they moved themselves to, so
 * their ids cannot be reused before it has reaped them.
 */
#ifndef TPL_ORPHANS_H
#define TPL_ORPHANS_H

#include <sys/types.h>

#include "runtime/base/base.h"

/* Makes this process the subreaper and remembers children that it has already
 * (from before an exec); those are none of our business. */
void tpl_orphans_adopt(void);

/*
 * Sends `signal` to every child but those remembered and the guards, and says
 * how many there are, at least; one that has ended counts until it is reaped.
 * Where /proc cannot be read nobody gets a signal.
 */
int tpl_orphans_kill(int signal);

/* Is there no /proc to find them in, or only that of another PID namespace, in
 * which their numbers are other processes'?  Calls the kernel only. */
bool tpl_orphans_hidden(void);

#endif
