/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a rank tells the process beside it, when tprun has had it started by
 * another engine: that it has joined the job and left it, and why it ends it.
 * No effect under any other launcher.
 */
#ifndef TPR_REPORT_H
#define TPR_REPORT_H

#include "runtime/base/settings.h"

/* The process has its first context, or has closed its last.  Which of its
 * rank's programs it is, from 0; that is answered, within a second. */
uint32_t tpr_report_joined(const struct tpb_settings *settings);
void tpr_report_left(void);

/* The job ends with that status, for that reason.  Waits up to a second until
 * it has been noted, for the end may come quickly.  false: nobody listens. */
bool tpr_report_abort(int status, const char *reason);

#endif
