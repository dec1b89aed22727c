/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who waits for whom, from the ranks' records: for the last words of a job that
 * hangs or has lost a rank.  Ranks that do not use tp have nothing there, and
 * nothing is said of them unless others do.
 */
#ifndef TPL_POSTMORTEM_H
#define TPL_POSTMORTEM_H

#include "launcher/job.h"

/* "; it was waiting 3.2 s for a message from rank 1", or "" if nothing is
 * known.  The rank may be dead. */
void tpl_postmortem_rank(const struct tpl_job *job, int rank, char *text,
                         size_t size);

/* A line per rank, and one for each circle; says them through job->iof. */
void tpl_postmortem_all(const struct tpl_job *job);

/* One line: who was waiting for this rank; nothing if nobody was. */
void tpl_postmortem_waiting_for(const struct tpl_job *job, int rank);

/* Has a signal or a debugger stopped the process?  It will never do anything
 * by itself then. */
bool tpl_postmortem_stopped(pid_t pid);

#endif
