/* SPDX-License-Identifier: BSD-3-Clause */
/* Terminals for ranks to write to. */
#ifndef TPL_TERMINAL_H
#define TPL_TERMINAL_H

/* A new one that passes on what is written as it is.  Returns the side that
 * we read, and the rank's in *writer, both close-on-exec; -1 with errno. */
int tpl_terminal_open(int *writer);

#endif
