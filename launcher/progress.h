/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A line now and then while a job starts slowly: how many ranks have been
 * started, and how many have joined, where some did.  For people: on a
 * terminal, or with --verbose.
 */
#ifndef TPL_PROGRESS_H
#define TPL_PROGRESS_H

#include "launcher/job.h"

/* From now on, until all ranks have joined or the job ends. */
void tpl_progress_begin(struct tpl_job *job);

void tpl_progress_end(struct tpl_job *job);

#endif
