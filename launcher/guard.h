/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The guard: a tiny process that outlives a SIGKILL of tprun by an instant.
 * It holds the read end of a pipe whose write end only tprun has.  At end of
 * file it kills every process group of the job that it was told of, then
 * every process whose environment carries the job's name, and exits.  Ranks
 * themselves die without it (PR_SET_PDEATHSIG); it is for their children.
 * On other hosts tprun-rank has such guards for its one rank.
 *
 * There are two of them, so that one may be killed in the same instant as
 * tprun, and tprun starts another for one that is gone.  They are started
 * without an exit signal (see clone(2)): waitpid(-1) does not see them,
 * SIGCHLD does not tell of them.
 */
#ifndef TPL_GUARD_H
#define TPL_GUARD_H

#include <sys/types.h>

#include "launcher/loop.h"

/*
 * Starts the guards of all that has this in its environment, and of up to
 * `ranks` groups.  Called before any thread exists and before anything is open
 * that it should not hold.  After an error there is no guard.
 */
tp_status tpl_guard_start(const char *name, const char *value, int ranks,
                          struct tpb_error *error);

/* From now on the loop starts another guard should one be killed. */
void tpl_guard_watch(struct tpl_loop *loop);

/* In a new rank, before exec: its process group is `pid`. */
void tpl_guard_tell(int rank, pid_t pid);

/* In tprun: the group of this rank is `pid`, or gone if 0. */
void tpl_guard_note(int rank, pid_t pid);

/* Is this child of ours a guard? */
bool tpl_guard_is(pid_t pid);

/* The guards may end: at once if the job is over, else once they have killed
 * what is left of it.  The other one waits until they have.  The one goes well
 * before the other. */
void tpl_guard_dismiss(bool over);
void tpl_guard_stop(void);

#endif
