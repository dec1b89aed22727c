/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Standard input for rank 0.  What is not a terminal is handed over as it is:
 * no copy, and nothing is read ahead of the rank.  A terminal cannot be, since
 * ranks are not in its foreground process group; it is copied through a pipe,
 * and only while tprun is in the foreground.
 */
#ifndef TPL_INPUT_H
#define TPL_INPUT_H

#include "launcher/loop.h"

/* *fd becomes rank 0's standard input: 0 itself, or the read end of a pipe,
 * which the caller closes once the rank runs. */
tp_status tpl_input_open(struct tpl_loop *loop, int *fd,
                         struct tpb_error *error);

/* tprun was continued: it may be in the foreground now. */
void tpl_input_resume(void);

void tpl_input_close(void);

#endif
