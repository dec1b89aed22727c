/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Signals: those that end the job, those that are passed on to the ranks, and
 * what a rank gets back before it runs.
 */
#ifndef TPL_SIGNALS_H
#define TPL_SIGNALS_H

#include <sys/types.h>

#include "runtime/base/base.h"

/* Remembers what tprun was started with and makes it predictable: SIGPIPE
 * and SIGXFSZ ignored, SIGCHLD not.  First of all, before any thread or
 * child. */
void tpl_signals_init(void);

/*
 * Blocks all that tprun handles, in the calling thread and those it starts
 * later.  Signals that tprun was started to ignore (nohup) stay ignored.
 */
void tpl_signals_block(void);

/* Undoes the above: signals end tprun at once, as anybody. */
void tpl_signals_unblock(void);

/* The signalfd from which the loop reads; -1 with errno. */
int tpl_signals_open(void);

/* The next signal that has come, 0 if there is none.  *typed, unless NULL: did
 * a terminal send it, as for a key, and not kill(2)? */
int tpl_signals_next(int fd, bool *typed);

/* Does it end the job (INT, TERM, HUP, QUIT), or is it passed on? */
bool tpl_signal_ends(int signal);

/* In a new rank, before exec: mask and dispositions as tprun got them. */
void tpl_signals_restore(void);

/*
 * Stops this process because of a SIGTSTP; returns once continued.  A SIGTSTP
 * that was typed stops nobody whom no shell could continue, as the kernel has
 * it (setpgid(2), orphaned process groups): false then, at once.
 */
bool tpl_signals_stop(bool typed);

/* Ends this process by the signal itself, so that a shell sees it. */
void tpl_signals_die(int signal) __attribute__((__noreturn__));

/* "9 (SIGKILL)".  Static per thread until the next call. */
const char *tpl_signal_name(int signal);

#endif
