/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Standard input for one rank, for all, or for none.  For one, what is not a
 * terminal is handed over as it is: no copy, and nothing is read ahead of the
 * rank.  A terminal cannot be, since ranks are not in its foreground process
 * group; it is copied through a pipe, and only while tprun is in the
 * foreground.  For all it is copied to each, at the speed of the slowest.
 */
#ifndef TPL_INPUT_H
#define TPL_INPUT_H

#include "launcher/iof.h"
#include "launcher/loop.h"

/* Prepares for `ranks` ranks; `who` is one of them, or TPL_STDIN_*.  `iof` says
 * that it cannot be read. */
tp_status tpl_input_open(struct tpl_loop *loop, struct tpl_iof *iof, int who,
                         int ranks, struct tpb_error *error);

/* What becomes that rank's standard input: a descriptor that the caller closes
 * once the rank runs.  -1 with errno. */
int tpl_input_for(int rank);

/* Does that rank get tprun's terminal?  Then tpl_input_terminal() takes the
 * place of tpl_input_for(): keys go to `fd` as they are typed, also those that
 * make signals.  The descriptor is taken over. */
bool tpl_input_wants_terminal(int rank);
void tpl_input_terminal(int fd);

/* tprun is about to stop: gives the terminal its settings back. */
void tpl_input_pause(void);

/* tprun was continued: it may be in the foreground now. */
void tpl_input_resume(void);

/* Also gives the terminal its settings back. */
void tpl_input_close(void);

/* Closes it and frees what the loop may have named until now. */
void tpl_input_fini(void);

#endif
