/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a rank writes, sent on in frames (launcher/frames.h) by tprun-rank.  It
 * keeps nothing back: what was read is on its way before the next is read.
 */
#ifndef TPL_RELAY_H
#define TPL_RELAY_H

#include "runtime/base/base.h"

struct tpl_relay {
    int fds[2];                    /* we read; -1: ended, or not there */
    int writers[2];                /* the rank's, until it runs */
    int to;                        /* where frames go */
};

/* Standard output is a terminal, as under mpirun, so that a program shows its
 * lines when they are written; `merge` sends standard error there, too.  0, or
 * -1 with errno. */
int tpl_relay_open(struct tpl_relay *relay, int to, bool merge);

/* The rank runs: the ends are its own now. */
void tpl_relay_started(struct tpl_relay *relay);

/* Sends on what one of the two has, as much as fits a frame. */
void tpl_relay_move(struct tpl_relay *relay, int which);

/* All that has been written until now. */
void tpl_relay_drain(struct tpl_relay *relay);

#endif
