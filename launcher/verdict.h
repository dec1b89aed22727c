/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank ended, judged and put into words. */
#ifndef TPL_VERDICT_H
#define TPL_VERDICT_H

#include <stddef.h>

#include "launcher/job.h"

/* How much an end tells about what went wrong: of ranks that end in one
 * instant, a signal is rather the cause, a status the consequence. */
enum tpl_verdict {
    TPL_WELL, TPL_UNFINALIZED, TPL_BY_STATUS, TPL_BY_SIGNAL
};

enum tpl_verdict tpl_verdict(const struct tpl_rank *rank);

/* What tprun exits with if this rank is the first that failed. */
int tpl_verdict_status(const struct tpl_rank *rank);

/*
 * "rank 2 (pid 4711 on node07) was killed by signal 11 (SIGSEGV), core in
 * /tmp/core.4711".
 */
void tpl_verdict_describe(const struct tpl_job *job, int rank, char *text,
                          size_t size);

#endif
