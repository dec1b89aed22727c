/* SPDX-License-Identifier: BSD-3-Clause */
/* Names of memory in /dev/shm that processes have left behind. */
#ifndef TPB_LEAVINGS_H
#define TPB_LEAVINGS_H

#include <sys/types.h>

/* What they begin with; the process's PID and a period follow. */
#define TPB_LEAVINGS "tp.ofi."

/* Removes this user's names of `count` processes, all of which have ended; of 0
 * there are none.  Root's those of every user: a program may have changed it.
 * By PID: processes in a namespace of their own have others.  System calls and
 * the stack only. */
void tpb_leavings_remove(const pid_t *pids, int count);

/* ... of processes that are not there any more, if older than that. */
void tpb_leavings_sweep(int seconds);

#endif
